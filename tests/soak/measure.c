/* measure.c - samples of a soak: memory, descriptors, threads, pages and the log's size, and whether they are flat. */
#include "tests/soak/soak.h"

#include <ctype.h>
#include <dirent.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST = 4000 };

/* What one user's processes hold: the program and its monitor. */
struct held {
    long kb, descriptors, threads, processes;
    long used, evictable; /* pages of all pools */
};

struct sample {
    double at;
    struct held user[2];
    long turns, steps, log_kb, wal_kb;
};

static struct sample *sample;
static int n_sample;

static long count_entries(pid_t pid, const char *what)
{
    char path[64];
    long n = -2; /* . and .. */
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, what);
    DIR *d = opendir(path);
    if (!d)
        return 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void add_process(pid_t pid, struct held *h)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "RssAnon:", 8) == 0)
            h->kb += strtol(line + 8, NULL, 10);
    fclose(f);
    h->processes++;
    h->descriptors += count_entries(pid, "fd");
    h->threads += count_entries(pid, "task");
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    f = fopen(path, "re");
    for (int child; f && fscanf(f, "%d", &child) == 1;)
        add_process(child, h);
    if (f)
        fclose(f);
}

static long file_kb(const char *suffix)
{
    struct stat st;
    char *path = xasprintf("%s%s", soak.log, suffix);
    long kb = stat(path, &st) == 0 ? (long)(st.st_size / 1024) : 0;
    free(path);
    return kb;
}

long log_number(const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *st = NULL;
    long n = -1;
    if (sqlite3_open_v2(soak.log, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK && sqlite3_busy_timeout(db, 10000) == SQLITE_OK &&
        sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW)
        n = (long)sqlite3_column_int64(st, 0);
    else
        failed("log", "%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_finalize(st);
    sqlite3_close(db);
    return n;
}

void measure(void)
{
    if (!sample)
        sample = xcalloc(MOST, sizeof *sample);
    if (n_sample == MOST)
        return;
    struct sample *s = &sample[n_sample++];
    static uint64_t begin;
    if (!begin)
        begin = clock_ns();
    s->at = seconds_since(begin);
    for (int i = 0; i < 2; i++) {
        struct user *u = &soak.user[i];
        add_process(u->pid, &s->user[i]);
        for (int k = 0; k < N_POOLS; k++) {
            s->user[i].used += u->pool[k].used + u->pool[k].shared;
            s->user[i].evictable += u->pool[k].evictable;
        }
    }
    s->turns = log_number("select count(*) from turn where role = 'reply'");
    s->steps = log_number("select count(*) from step");
    s->log_kb = file_kb("");
    s->wal_kb = file_kb("-wal");
    const struct held *a = &s->user[0], *b = &s->user[1];
    note("sample", "%.0f s: screen %ld kB %ld fds %ld threads %ld+%ld pages; plain %ld kB %ld fds %ld threads %ld+%ld pages; log %ld kB, "
         "WAL %ld kB, %ld turns, %ld steps", s->at, a->kb, a->descriptors, a->threads, a->used, a->evictable, b->kb, b->descriptors,
         b->threads, b->used, b->evictable, s->log_kb, s->wal_kb, s->turns, s->steps);
}

/* ---- judging --------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of a quantity over the samples from..to - 1. */
static double median(double (*of)(const struct sample *s, int user), int user, int from, int to)
{
    double *v = xcalloc((size_t)(to - from) + 1, sizeof *v);
    for (int i = from; i < to; i++)
        v[i - from] = of(&sample[i], user);
    qsort(v, (size_t)(to - from), sizeof *v, ascending);
    double m = to > from ? v[(to - from) / 2] : 0;
    free(v);
    return m;
}

static double kb_of(const struct sample *s, int user) { return (double)s->user[user].kb; }
static double descriptors_of(const struct sample *s, int user) { return (double)s->user[user].descriptors; }
static double threads_of(const struct sample *s, int user) { return (double)s->user[user].threads; }
static double used_of(const struct sample *s, int user) { return (double)s->user[user].used; }
static double evictable_of(const struct sample *s, int user) { return (double)s->user[user].evictable; }
static double wal_of(const struct sample *s, int user) { return (double)s->wal_kb + 0 * user; }

/* Compares the last third of the samples with the second; the first third warms up. */
static void judge(const char *who, const char *what, double (*of)(const struct sample *s, int user), int user, double may_grow)
{
    int third = n_sample / 3;
    double first = of(&sample[0], user), middle = median(of, user, third, 2 * third), last = median(of, user, 2 * third, n_sample);
    bool flat = last - middle <= may_grow;
    printf("  %-7s %-12s %8.0f %8.0f %8.0f   %s\n", who, what, first, middle, last, flat ? "flat" : "GROWS");
    if (!flat)
        failed(who, "%s grew from %.0f to %.0f between the second and the last third of the run (at most %.0f is flat)", what, middle,
               last, may_grow);
}

void judge_samples(void)
{
    if (n_sample < 6) {
        failed("samples", "%d samples are too few to judge by (at least 6)", n_sample);
        return;
    }
    printf("at rest:                first   second    third (medians of thirds; kB, numbers)\n");
    for (int i = 0; i < 2; i++) {
        const char *who = soak.user[i].name;
        judge(who, "memory", kb_of, i, 1024 + 0.02 * median(kb_of, i, n_sample / 3, n_sample));
        judge(who, "descriptors", descriptors_of, i, 0);
        judge(who, "threads", threads_of, i, 0);
        judge(who, "pages used", used_of, i, 0);
        judge(who, "pages kept", evictable_of, i, 64);
    }
    judge("log", "WAL", wal_of, 0, 4096);
    int third = n_sample / 3;
    const struct sample *a = &sample[0], *b = &sample[third], *c = &sample[2 * third], *d = &sample[n_sample - 1];
    double early = 1024.0 * (double)(b->log_kb - a->log_kb) / (double)max_int(1, (int)(b->steps - a->steps));
    double late = 1024.0 * (double)(d->log_kb - c->log_kb) / (double)max_int(1, (int)(d->steps - c->steps));
    printf("  log     bytes a step %8.0f %8s %8.0f   %ld kB in %ld turns of %ld steps: %.0f bytes a turn\n", early, "", late,
           d->log_kb, d->turns, d->steps, 1024.0 * (double)d->log_kb / (double)max_int(1, (int)d->turns));
    if (late > 1.5 * early + 64)
        failed("log", "grew by %.0f bytes a step in the last third of the run, by %.0f in the first", late, early);
}
