/* measure.c - samples of a soak: memory, descriptors, threads, pages and the log's size, and
 * whether they are flat. */
#include "tests/soak/soak.h"

#include <ctype.h>
#include <dirent.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 4000 };

/* What one user's processes (the program and its monitor) hold. */
struct held {
    long kb, data_kb; /* RssAnon, VmData: private memory, touched and in all */
    long descriptors, threads, processes;
    long log_descriptors; /* of the log's file: SQLite keeps one open while the process has any lock
                             on the file */
    long heap, heap_held, sqlite; /* kB of the program's heap: in use, held by its allocator, in use
                                     by SQLite */
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
        else if (strncmp(line, "VmData:", 7) == 0)
            h->data_kb += strtol(line + 7, NULL, 10);
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

/* Counts the descriptors of the log's file apart from the others, and notes all of them in the
 * journal if a number has changed. */
static void tell_descriptors(const struct user *u, struct held *h, const struct held *before)
{
    char folder[64], path[400], to[400];
    struct buf list = {0};
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)u->pid);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ssize_t n = readlink(path, to, sizeof to - 1);
        to[n > 0 ? n : 0] = 0;
        if (n > 0)
            buf_printf(&list, " %s %s", e->d_name, strncmp(to, soak.folder, strlen(soak.folder))
                       ? to : to + strlen(soak.folder));
        h->log_descriptors += n > 0 && strcmp(to, soak.log) == 0;
    }
    if (d)
        closedir(d);
    h->descriptors -= h->log_descriptors;
    if (!before || h->descriptors != before->descriptors ||
        h->log_descriptors != before->log_descriptors)
        note(u->name, "descriptors:%s", list.n ? list.p : " none");
    buf_free(&list);
}

/* Notes in the journal a user's mappings with more than 256 kB of private memory: touched size and
 * size. */
static void note_mappings(const struct user *u)
{
    char path[64], line[512], name[128] = "";
    struct buf list = {0};
    unsigned long from = 0, to = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps", (int)u->pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        unsigned long a, b, kb;
        char at[128] = "anonymous";
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %127s", &a, &b, at) >= 2) {
            from = a, to = b;
            snprintf(name, sizeof name, "%s", strrchr(at, '/') ? strrchr(at, '/') + 1 : at);
        } else if (sscanf(line, "Anonymous: %lu", &kb) == 1 && kb > 256) {
            buf_printf(&list, " %s %lu of %lu,", name, kb, (to - from) / 1024);
        }
    }
    if (f)
        fclose(f);
    note(u->name, "kB touched:%s", list.n ? list.p : " unknown");
    buf_free(&list);
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
    if (sqlite3_open_v2(soak.log, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK &&
        sqlite3_busy_timeout(db, 10000) == SQLITE_OK &&
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
        s->user[i].heap = (long)(u->heap[0] / 1024);
        s->user[i].sqlite = (long)(u->heap[2] / 1024);
        s->user[i].heap_held = (long)(u->heap[1] / 1024);
        for (int k = 0; k < N_POOLS; k++) {
            s->user[i].used += u->pool[k].used + u->pool[k].shared;
            s->user[i].evictable += u->pool[k].evictable;
        }
    }
    for (int i = 0; i < 2; i++)
        tell_descriptors(&soak.user[i], &s->user[i], n_sample > 1 ? &sample[n_sample - 2].user[i]
                         : NULL);
    for (int i = 0; i < 2; i++)
        if (n_sample % 10 == 1 || atomic_load(&soak.over))
            note_mappings(&soak.user[i]);
    s->turns = log_number("select count(*) from turn where role = 'reply'");
    s->steps = log_number("select count(*) from step");
    s->log_kb = file_kb("");
    s->wal_kb = file_kb("-wal");
    struct buf line = {0};
    for (int i = 0; i < 2; i++) {
        const struct held *h = &s->user[i];
        buf_printf(&line, "%s %ld of %ld kB (heap %ld of %ld, SQLite %ld) %ld+%ld fds %ld threads "
                          "%ld+%ld pages; ", soak.user[i].name,
                   h->kb, h->data_kb, h->heap, h->heap_held, h->sqlite, h->descriptors,
                   h->log_descriptors, h->threads, h->used, h->evictable);
    }
    note("sample", "%.0f s: %slog %ld kB, WAL %ld kB, %ld turns, %ld steps", s->at, line.p,
         s->log_kb, s->wal_kb, s->turns, s->steps);
    buf_free(&line);
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
static double data_of(const struct sample *s, int user) { return (double)s->user[user].data_kb; }
static double descriptors_of(const struct sample *s, int user)
{
    return (double)s->user[user].descriptors;
}
static double log_descriptors_of(const struct sample *s, int user)
{
    return (double)s->user[user].log_descriptors;
}
static double heap_of(const struct sample *s, int user)
{
    return (double)(s->user[user].heap - s->user[user].sqlite);
}
static double sqlite_of(const struct sample *s, int user) { return (double)s->user[user].sqlite; }
static double threads_of(const struct sample *s, int user) { return (double)s->user[user].threads; }
static double used_of(const struct sample *s, int user) { return (double)s->user[user].used; }
static double evictable_of(const struct sample *s, int user)
{
    return (double)s->user[user].evictable;
}
static double wal_of(const struct sample *s, int user) { return (double)s->wal_kb + 0 * user; }

/* Prints the first sample and the medians of the second and the last third; returns the difference
 * of the two medians. */
static double show(const char *who, const char *what,
                   double (*of)(const struct sample *s, int user), int user, const char *why)
{
    int third = n_sample / 3;
    double first = of(&sample[0], user), middle = median(of, user, third, 2 * third),
        last = median(of, user, 2 * third, n_sample);
    printf("  %-7s %-12s %8.0f %8.0f %8.0f   %s\n", who, what, first, middle, last, why);
    return last - middle;
}

static void judge(const char *who, const char *what, double (*of)(const struct sample *s, int user),
                  int user, double may_grow)
{
    double grew = show(who, what, of, user, "");
    if (grew > may_grow)
        failed(who, "%s grew by %.0f between the second and the last third of the run (at most "
                    "%.0f is flat)", what, grew, may_grow);
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
        judge(who, "heap in use", heap_of, i, 512);
        /* pages of the log in its cache: 2 MB a connection */
        judge(who, "SQLite", sqlite_of, i, 2048);
        /* the C library keeps an 8 MB stack for the next thread */
        judge(who, "mapped", data_of, i, 12288);
        show(who, "touched", kb_of, i, "of the mapped; the pools' cells from their first use on");
        judge(who, "descriptors", descriptors_of, i, 0);
        /* at most as many as were ever open at once */
        judge(who, "of the log", log_descriptors_of, i, 1);
        judge(who, "threads", threads_of, i, 0);
        judge(who, "pages used", used_of, i, 0);
        judge(who, "pages kept", evictable_of, i, 64);
    }
    judge("log", "WAL", wal_of, 0, 4096);
    int third = n_sample / 3;
    const struct sample *a = &sample[0], *b = &sample[third], *c = &sample[2 * third],
        *d = &sample[n_sample - 1];
    double early = 1024.0 * (double)(b->log_kb - a->log_kb) /
                   (double)max_int(1, (int)(b->steps - a->steps));
    double late = 1024.0 * (double)(d->log_kb - c->log_kb) /
                  (double)max_int(1, (int)(d->steps - c->steps));
    printf("  log     bytes a step %8.0f %8s %8.0f   %ld kB in %ld turns of %ld steps: "
           "%.0f bytes a turn\n", early, "", late,
           d->log_kb, d->turns, d->steps,
           1024.0 * (double)d->log_kb / (double)max_int(1, (int)d->turns));
    if (late > 1.5 * early + 64)
        failed("log", "grew by %.0f bytes a step in the last third of the run, "
                      "by %.0f in the first", late, early);
}
