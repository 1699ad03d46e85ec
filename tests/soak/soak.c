/* soak.c - months of use in minutes: two instances of aerie on one log, driven at random without a
 * pause.
 *
 *   soak BUILD SECONDS SEED [--leak memory|descriptors|threads|pages|wal]  (make soak T=600 SEED=7)
 *
 * One instance has the full screen on a pseudo-terminal, one reads plain lines from a pipe. Each is
 * a process that lives through the whole run and receives chats, commands, keys, resizes, forks,
 * cancels, paused turns and historical faults (act.c). At the same time other processes read,
 * export, check, back up and write the same log; some are killed. Sometimes the disk is full.
 *
 * 24 hours in simulated time: the programs' wall clock runs so fast that SECONDS are a day
 * (shim.c), and the users type without the pauses in which a person reads and thinks. The last
 * lines say how many turns, commands, keys and resizes the day had: 1,440 turns are one a minute,
 * day and night. Monotonic time is not changed, because waits use it.
 *
 * Some fifty times the users rest (no turn, empty context, empty screen), and memory, descriptors,
 * threads, pages and the log's size are measured. The run passes if each of them is flat or grows
 * as explained, the ledgers add up, no checker rule is broken, the log passes `db check` and has
 * every printed turn, and every session replays.
 */
#include "kernels/json.h"
#include "tests/soak/soak.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

struct soak soak;

enum { DAY = 86400, SAMPLES = 50, SHOWN = 30 };

static uint64_t begin_ns;
static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;

double seconds_since(uint64_t ns) { return (double)(clock_ns() - ns) / 1e9; }

int roll(uint64_t *rng, int n)
{
    *rng += 0x9E3779B97F4A7C15ull;
    return (int)(mix64(*rng) % (uint64_t)n);
}

void note(const char *who, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&noting);
    fprintf(soak.journal, "%8.2f %-7s ", seconds_since(begin_ns), who);
    vfprintf(soak.journal, fmt, ap);
    fputc('\n', soak.journal);
    fflush(soak.journal);
    pthread_mutex_unlock(&noting);
    va_end(ap);
}

void failed(const char *who, const char *fmt, ...)
{
    char text[2000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' && *p != '\n')
            *p = '.';
    note(who, "FAILED: %s", text);
    int before = atomic_fetch_add(&soak.failures, 1);
    if (before < SHOWN)
        printf("FAILED after %.0f s: %s: %s\n", seconds_since(begin_ns), who, text);
    if (before + 1 == SHOWN)
        printf("further failures are in the journal only\n");
    fflush(stdout);
}

/* ---- the place ------------------------------------------------------------------------------- */

static void make_folder(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void make_folder(const char *fmt, ...)
{
    char path[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(path, sizeof path, fmt, ap);
    va_end(ap);
    CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
}

static void write_file(const char *name, const char *text)
{
    char *path = xasprintf("%s/%s", soak.small, name);
    FILE *f = fopen(path, "we");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
    free(path);
}

/* Mounts a small file system, visible to this process and its children only, which can be filled.
 * Without the right to mount one, the limit of file sizes makes writes fail instead. */
static void mount_small(void)
{
    uid_t uid = getuid();
    gid_t gid = getgid();
    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
            return;
        char map[64];
        int fd = open("/proc/self/setgroups", O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && write(fd, "deny", 4) == 4)
            close(fd);
        snprintf(map, sizeof map, "%u %u 1", uid, uid);
        fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, map, strlen(map)) < 0)
            return;
        close(fd);
        snprintf(map, sizeof map, "%u %u 1", gid, gid);
        fd = open("/proc/self/gid_map", O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, map, strlen(map)) < 0)
            return;
        close(fd);
    }
    soak.mounted = mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                   mount("soak", soak.small, "tmpfs", MS_NOSUID | MS_NODEV,
                         "size=4g,mode=0700") == 0;
}

static void fill_disk(bool full)
{
    if (soak.mounted) {
        struct statfs fs;
        char size[64] = "size=4g,mode=0700";
        if (full && statfs(soak.small, &fs) == 0)
            snprintf(size, sizeof size, "size=%llu,mode=0700",
                     (unsigned long long)(fs.f_blocks - fs.f_bfree) *
                     (unsigned long long)fs.f_bsize);
        if (mount(NULL, soak.small, NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, size) != 0)
            note("disk", "%s: %s", size, strerror(errno));
    } else {
        for (int i = 0; i < 2; i++) {
            struct rlimit l;
            if (soak.user[i].pid && prlimit(soak.user[i].pid, RLIMIT_FSIZE, NULL, &l) == 0) {
                l.rlim_cur = full ? 16384 : l.rlim_max;
                prlimit(soak.user[i].pid, RLIMIT_FSIZE, &l, NULL);
            }
        }
    }
    atomic_store(&soak.room_ns, clock_ns());
    atomic_store(&soak.full, full);
    note("disk", full ? "full" : "has room");
}

bool disk_was_full(void)
{
    uint64_t room = atomic_load(&soak.room_ns);
    return atomic_load(&soak.full) || (room && seconds_since(room) < 5);
}

/* Memory that is shared with the programs through a file of this name. */
static void *shared_file(const char *name, size_t size)
{
    char *path = xasprintf("%s/%s", soak.folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED);
    close(fd);
    free(path);
    return p;
}

static void set_place(void)
{
    char *base = xasprintf("%s/soak", soak.build);
    make_folder("%s", base);
    soak.folder = xasprintf("%s/%llu-%d", base, (unsigned long long)soak.seed, (int)getpid());
    soak.small = xasprintf("%s/disk", soak.folder);
    soak.kept = xasprintf("%s/kept", soak.folder);
    make_folder("%s", soak.folder);
    make_folder("%s", soak.small);
    char *program = xasprintf("%s/aerie", soak.build);
    soak.aerie = xasprintf("%s/aerie", soak.folder);
    /* a link: the same program for the whole run, even if it is rebuilt meanwhile */
    CHECK(link(program, soak.aerie) == 0);
    free(program);
    char *path = xasprintf("%s/journal", soak.folder);
    soak.journal = fopen(path, "we");
    CHECK(soak.journal);
    mount_small();
    make_folder("%s/data", soak.small);
    make_folder("%s/config", soak.small);
    make_folder("%s/config/aerie", soak.small);
    make_folder("%s/state", soak.small);
    soak.log = xasprintf("%s/data/aerie/sessions.db", soak.small);
    write_file("config/aerie/config", "device = cpu\nthreads = 1\nring = 2\n");
    write_file("note.txt", "The capital of the moon is a crater.\n");
    static const char *const var[] = {"data", "config", "state"},
        *const name[] = {"XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"};
    for (int i = 0; i < 3; i++) {
        char *v = xasprintf("%s/%s", soak.small, var[i]);
        setenv(name[i], v, 1);
        free(v);
    }
    setenv("HOME", soak.small, 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("TERM", "dumb", 1);
    setenv("EDITOR", "true", 1); /* Ctrl-G; it ends at once */
    static const char *const unset[] = {"NO_COLOR", "VISUAL", "PAGER", "TMUX"};
    for (int i = 0; i < 4; i++)
        unsetenv(unset[i]);
    soak.clock = shared_file("clock", sizeof *soak.clock);
    free(path);
    free(base);
}

/* ---- the run --------------------------------------------------------------------------------- */

static void start_users(void)
{
    static const char *const name[2] = {"screen", "plain"};
    for (int i = 0; i < 2; i++) {
        struct user *u = &soak.user[i];
        char *path = xasprintf("%s/%s.acked", soak.folder, name[i]);
        *u = (struct user){.name = name[i], .screen = i == 0,
                           .rng = mix64(soak.seed * 2 + (uint64_t)i), .width = 120, .height = 45};
        u->acked = fopen(path, "we");
        CHECK(u->acked);
        free(path);
        path = xasprintf("%s.heap", name[i]);
        u->heap = shared_file(path, 3 * sizeof *u->heap);
        free(path);
        user_start(u);
    }
}

/* A read transaction that never ends, so that the write-ahead log cannot be reset. */
static void leak_wal(void)
{
    static sqlite3 *reader;
    CHECK(sqlite3_open_v2(soak.log, &reader, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK &&
          sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM turn", NULL, NULL, NULL) == SQLITE_OK);
}

/* Runs fn while all users are at rest. */
static void at_rest(void (*fn)(void))
{
    atomic_store(&soak.resting, true);
    pthread_barrier_wait(&soak.rest);
    atomic_store(&soak.resting, false);
    fn();
    pthread_barrier_wait(&soak.go);
}

static void sleep_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
    double ran = seconds_since(begin_ns);
    atomic_store(soak.clock, (int64_t)(ran * (DAY / (double)soak.seconds - 1) * 1e9));
}

static bool day_is_over(void)
{
    return seconds_since(begin_ns) >= soak.seconds;
}

static void run_day(uint64_t *rng)
{
    double every = (double)soak.seconds / SAMPLES, next = every, full_at = soak.seconds * 0.1,
        room_at = 0;
    while (!atomic_load(&soak.over) && !day_is_over()) {
        double now = seconds_since(begin_ns);
        if (!atomic_load(&soak.full) && now >= full_at) {
            fill_disk(true);
            room_at = now + every * 0.7;
        } else if (atomic_load(&soak.full) && now >= room_at) {
            fill_disk(false);
            full_at = now + soak.seconds * (0.1 + 0.001 * roll(rng, 100));
        }
        if (now >= next && !atomic_load(&soak.full)) {
            at_rest(measure);
            next = seconds_since(begin_ns) + every;
        }
        if (roll(rng, 10) == 0)
            visit(rng);
        sleep_ms(50);
    }
    if (atomic_load(&soak.full))
        fill_disk(false);
}

static void finish(void)
{
    measure();
    atomic_store(&soak.stop, true);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void expect(const char *what, const char *const *argv, int ms)
{
    struct buf out = {0};
    uint64_t begin = clock_ns();
    int rc = run_program(argv, &out, ms, SIGTERM);
    note("end", "%s: status %d after %.1f s", what, rc, seconds_since(begin));
    if (rc != 0)
        failed("end", "%s: status %d: %.1200s", what, rc, out.n > 1200 ? out.p + out.n - 1200
               : out.p);
    buf_free(&out);
}

/* Whether the log has the turn of a printed line, with its text as JSON writes it: bytes of the
 * reply that are no UTF-8 are U+FFFD there. */
static bool has_printed(sqlite3_stmt *st, const char *line)
{
    const char *text = strstr(line, "\"text\":"); /* the reply's is the first of this name */
    bool some = false;
    sqlite3_bind_text(st, 1, line, -1, SQLITE_STATIC);
    while (text && !some && sqlite3_step(st) == SQLITE_ROW) {
        struct buf field = {0};
        buf_str(&field, "\"text\":");
        jput_strn(&field, (const char *)sqlite3_column_text(st, 0),
                  (size_t)sqlite3_column_bytes(st, 0));
        some = strncmp(text, field.p, field.n) == 0;
        buf_free(&field);
    }
    sqlite3_reset(st);
    return some;
}

static void check_printed_turns(void)
{
    sqlite3 *db;
    sqlite3_stmt *st = NULL;
    long turns = 0, lost = 0;
    char *path = xasprintf("%s/plain.acked", soak.folder), *line = NULL;
    size_t cap = 0;
    FILE *f = fopen(path, "re");
    CHECK(f && sqlite3_open_v2(soak.log, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK);
    CHECK(sqlite3_prepare_v2(db, "select text from turn where role = 'reply' and session_id = "
                                 "json_extract(?1, '$.session') and n = json_extract(?1, "
                                 "'$.turn') and stop = json_extract(?1, '$.stop')", -1, &st,
                             NULL) == SQLITE_OK);
    while (getline(&line, &cap, f) > 0) {
        turns++;
        if (!has_printed(st, line) && lost++ == 0)
            failed("log", "a turn that was printed is not in it: %.500s", line);
    }
    printf("printed turns: %ld, of which %ld are not in the log\n", turns, lost);
    sqlite3_finalize(st);
    sqlite3_close(db);
    fclose(f);
    free(line);
    free(path);
}

/* Replays all sessions with a number (those without are parents of forks and have no turn) in
 * random order; on a machine under load as many as three times the duration of the run allows. */
static void replay_sessions(uint64_t *rng)
{
    int most = (int)log_number("select max(number) from session"), done = 0, equal = 0;
    uint64_t begin = clock_ns();
    int *number = xcalloc((size_t)most + 1, sizeof *number);
    for (int i = 0; i < most; i++) {
        int k = roll(rng, i + 1);
        number[i] = number[k];
        number[k] = i + 1;
    }
    for (int i = 0; i < most && (done < 10 || seconds_since(begin) < 3.0 * soak.seconds); i++) {
        char text[32], sql[128], what[64];
        snprintf(text, sizeof text, "%d", number[i]);
        snprintf(sql, sizeof sql, "select count(*) from session where number = %d", number[i]);
        if (log_number(sql) != 1)
            continue;
        const char *argv[] = {soak.aerie, "replay", text, "--check", NULL};
        snprintf(what, sizeof what, "replay %d --check", number[i]);
        int before = atomic_load(&soak.failures);
        expect(what, argv, 300000);
        done++;
        equal += before == atomic_load(&soak.failures);
    }
    printf("sessions replayed: %d of %ld, equal: %d, in %.0f s\n", done,
           log_number("select count(number) from session"), equal, seconds_since(begin));
    free(number);
}

static void end_checks(uint64_t *rng)
{
    static const char *const no_fault = "select count(*) from turn where stop = 'device_failed' or "
    "(role = 'reply' and stop = '')";
    const char *start[] = {soak.aerie, "run", "--quiet", "-p", "max_tokens=8", "What are you?",
                           NULL};
    const char *check[] = {soak.aerie, "db", "check", NULL};
    for (int i = 0; i < 2; i++) {
        struct user *u = &soak.user[i];
        if (u->pid == 0)
            continue;
        int rc = user_end(u);
        note(u->name, "left with status %d", rc);
        if (rc < 0 || rc > 5 || rc == 3 || (rc == 4 && !u->log_refused))
            failed(u->name, "left with status %d (0, 1, 2 or 5 were expected)", rc);
    }
    /* this start closes the turns that killed processes left open */
    expect("a start after all", start, 60000);
    expect("db check", check, 300000);
    if (log_number(no_fault) != 0)
        failed("log", "turns are open or lost their device");
    if (log_number("select count(*) from turn where stop = 'crashed'") > soak.kills)
        failed("log", "more turns are marked as crashed than processes were killed, "
                      "or ended while the disk was full (%ld)", soak.kills);
    check_printed_turns();
    replay_sessions(rng);
    expect("db check after the replays", check, 300000);
}

/* The commands with which a user reduces a large log. */
static void prune_log(void)
{
    const char *prune[] = {soak.aerie, "db", "prune", "--keep", "10", NULL},
        *vacuum[] = {soak.aerie, "db", "vacuum", NULL};
    const char *check[] = {soak.aerie, "db", "check", NULL};
    struct stat before, after;
    if (stat(soak.log, &before) != 0)
        return;
    if (atomic_load(&soak.failures) > 0) { /* keeps the whole log as evidence */
        char *whole = xasprintf("%s/whole.db", soak.folder);
        expect("db backup", (const char *[]){soak.aerie, "db", "backup", whole, NULL}, 300000);
        free(whole);
    }
    expect("db prune --keep 10", prune, 300000);
    expect("db vacuum", vacuum, 300000);
    expect("db check after both", check, 300000);
    if (stat(soak.log, &after) == 0)
        printf("log: %lld kB; with the 10 sessions used last: %lld kB\n",
               (long long)before.st_size / 1024, (long long)after.st_size / 1024);
}

/* After a failure, copies the evidence from the small file system before it is unmounted; else
 * keeps only the journal. */
static void keep_or_remove(void)
{
    const char *copy[] = {"/bin/cp", "-r", soak.small, soak.kept, NULL},
        *remove[] = {"/bin/rm", "-rf", soak.small, soak.aerie, NULL};
    struct buf out = {0};
    if (atomic_load(&soak.failures) > 0) {
        run_program(copy, &out, 60000, SIGTERM);
        printf("the log and the journal are kept: %s\n", soak.folder);
    } else {
        run_program(remove, &out, 60000, SIGTERM);
    }
    buf_free(&out);
}

static void give_up(int sig)
{
    (void)sig;
    atomic_store(&soak.over, true);
}

int main(int argc, char **argv)
{
    if (argc != 4 && !(argc == 6 && strcmp(argv[4], "--leak") == 0)) {
        fprintf(stderr,
                "usage: soak BUILD SECONDS SEED [--leak memory|descriptors|threads|pages|wal]\n");
        return 2;
    }
    soak = (struct soak){.build = realpath(argv[1], NULL), .seconds = atoi(argv[2]),
                         .seed = strtoull(argv[3], NULL, 10),
                         .leak = argc == 6 ? argv[5] : ""};
    CHECK(soak.build && soak.seconds > 0);
    begin_ns = clock_ns();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, give_up);
    signal(SIGTERM, give_up);
    set_place();
    printf("soak: %d s are 24 h, seed %llu, %s; journal: %s/journal\n", soak.seconds,
           (unsigned long long)soak.seed,
           soak.mounted ? "the log on a file system of its own"
                        : "no right to mount a file system: file sizes are limited instead",
           soak.folder);
    fflush(stdout);
    start_users();
    pthread_barrier_init(&soak.rest, NULL, 3);
    pthread_barrier_init(&soak.go, NULL, 3);
    uint64_t rng = mix64(soak.seed + 77);
    for (int i = 0; i < 2; i++)
        pthread_create(&soak.user[i].thread, NULL, user_main, &soak.user[i]);
    at_rest(measure);
    if (strcmp(soak.leak, "wal") == 0)
        leak_wal();
    run_day(&rng);
    at_rest(finish);
    for (int i = 0; i < 2; i++)
        pthread_join(soak.user[i].thread, NULL);
    const long turns = log_number("select count(*) from turn where role = 'reply'");
    judge_samples();
    end_checks(&rng);
    prune_log();
    printf("%ld messages, %ld commands (%ld refused), %ld keys, %ld resizes, %ld cancels, "
           "%ld forks, %ld faults, %ld other processes (%ld killed); %d failures\n",
           atomic_load(&soak.messages), atomic_load(&soak.commands), atomic_load(&soak.refused),
           atomic_load(&soak.keys),
           atomic_load(&soak.resizes), atomic_load(&soak.cancels), atomic_load(&soak.forks),
           atomic_load(&soak.faults), soak.visits, soak.kills, atomic_load(&soak.failures));
    printf("in 24 h by the programs' clock: a turn every %.0f s, a command every %.0f s\n",
           DAY / (double)max_int(1, (int)turns),
           DAY / (double)max_int(1, (int)atomic_load(&soak.commands)));
    keep_or_remove();
    return atomic_load(&soak.failures) > 0;
}
