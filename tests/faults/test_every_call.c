/* test_every_call.c - every call of one class fails in turn while the program runs a scripted
 * session.
 *
 *   test_every_call                       a sample of the calls of each session: part of make test
 *   EVERY_CALL=all test_every_call        all of them (make faults); ONLY="chat write" (sessions, classes, ways), JOBS=N;
 *                                         MINUTES=N STATE=FILE: for so long; the next run goes on
 * with the rest
 *   EVERY_CALL="chat write once 7"        one trial, with what it printed
 *
 * Each trial must meet these conditions: no signal, no hang, an exit status that the manual lists;
 * every message begins with "aerie: ", and one names the cause if the program did not do everything
 * that it does without a fault; the next start is clean, the log is intact and has every turn that
 * was reported as stored; the files that the program reported as written are correct; the terminal
 * is restored. */
#include "tests/faults/shared.h"
#include "tests/faults/sweep.h"
#include "tests/faults/terminal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_MS = 40000, MAX_ARGS = 24, SAMPLE = 2 };

static const char *aerie, *preload;

/* ---- sessions -------------------------------------------------------------------------------- */

#define QUICK "--threads", "2", "-p", "max_tokens=6"

static const struct session {
    const char *name;
    const char *arg[MAX_ARGS];
    const char *in;    /* standard input */
    const char *made;  /* a file that it writes, in the scratch folder */
    bool writes;       /* to the log */
    enum { NOT_SAMPLED, SAMPLED, ONLY_READS_INTERRUPTED } sampled; /* in make test */
    bool screen;       /* on a terminal; what is typed is fixed */
} sessions[] = {
    {"chat", {"--plain", "--json", QUICK}, "hello\n/fork 1\nWhat are you?\n/search nestling\n",
     NULL, true, SAMPLED, false},
    {"run", {"run", "--json", "--load", "copy", QUICK, "hello"}, NULL, NULL, true, NOT_SAMPLED,
     false},
    {"search", {"logs", "-q", "nestling", "--json"}, NULL, NULL, false, SAMPLED, false},
    {"show", {"show", "last"}, NULL, NULL, false, NOT_SAMPLED, false},
    {"export", {"export", "last", "-o", "@made.jsonl"}, NULL, "made.jsonl", false, SAMPLED, false},
    {"markdown", {"export", "last", "--format", "md", "-o", "@made.md"}, NULL, "made.md", false,
     NOT_SAMPLED, false},
    {"replay", {"replay", "last", "--check", "--threads", "2"}, NULL, NULL, false, SAMPLED, false},
    {"pack", {"pack", "last", "-o", "@made.pack"}, NULL, "made.pack", false, SAMPLED, false},
    {"check", {"db", "check"}, NULL, NULL, false, NOT_SAMPLED, false},
    {"backup", {"db", "backup", "@made.db"}, NULL, "made.db", false, NOT_SAMPLED, false},
    {"screen", {"--threads", "2", "-p", "max_tokens=6", "--no-mouse"}, NULL, NULL, true,
     ONLY_READS_INTERRUPTED, true},
    {"prune", {"db", "prune", "--keep", "1"}, NULL, NULL, true, NOT_SAMPLED, false},
};

#define N_SESSIONS (sizeof sessions / sizeof *sessions)

/* ---- scratch folders ------------------------------------------------------------------------- */

/* A folder of one worker: base/ is copied to data/ before each trial. */
struct place {
    char root[128];
    struct trial *trial; /* shared with tracers */
};

static void path_of(const struct place *p, char out[256], const char *name)
{
    CHECK(snprintf(out, 256, "%s/%s", p->root, name) < 256);
}

static void remove_files(const char *folder)
{
    DIR *d = opendir(folder);
    char name[512];
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
            if (unlink(name) != 0 && errno == EISDIR)
                remove_files(name), rmdir(name);
        }
    if (d)
        closedir(d);
}

static bool copy_file(const char *from, const char *to)
{
    struct buf b = {0};
    struct err e;
    if (!buf_read_file(&b, from, 64 << 20, &e))
        return false;
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    bool ok = fd >= 0 && write_fully(fd, b.p, b.n);
    if (fd >= 0)
        close(fd);
    buf_free(&b);
    return ok;
}

/* Restores the log and removes written files before a trial. */
static void fresh(const struct place *p)
{
    char data[256], from[256], to[300], name[256];
    path_of(p, data, "data/aerie");
    remove_files(data);
    path_of(p, from, "base.db");
    snprintf(to, sizeof to, "%s/sessions.db", data);
    if (access(from, F_OK) == 0)
        CHECK(copy_file(from, to));
    for (const struct session *s = sessions; s < sessions + N_SESSIONS; s++)
        if (s->made)
            path_of(p, name, s->made), unlink(name);
}

/* The name of the copy of a session's output or file without faults: "out", "err", "made". */
struct name {
    char s[64];
};

static struct name golden_of(const struct session *s, const char *what)
{
    struct name n;
    snprintf(n.s, sizeof n.s, "golden.%s.%s", s->name, what);
    return n;
}

static void text_of(const struct place *p, const char *name, struct buf *out)
{
    char path[256];
    struct err e;
    path_of(p, path, name);
    if (!buf_read_file(out, path, 64 << 20, &e))
        buf_str(out, "");
}

/* ---- running --------------------------------------------------------------------------------- */

static void put_file(const struct place *p, const char *name, const char *bytes, size_t n)
{
    char path[256];
    path_of(p, path, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write_fully(fd, bytes, n));
    close(fd);
}

/* ---- the full screen ------------------------------------------------------------------------- */

enum { SLOWER = 10 };
static bool slowly; /* a process is forked for each allocation: the program is much slower */

/* Runs the program on a terminal. Its output is in the file "out"; the file "terminal" says what
 * was not restored. */
static void run_terminal(const struct place *p, struct command *c, const struct fault *f)
{
    struct termios before, after;
    struct buf shown = {0};
    char why[200] = "";
    int slave, master = terminal_open(&slave, &before);
    c->terminal = slave;
    setenv("TERM", "screen-256color", 1);
    pid_t tracer = trace_start(c, f, p->trial);
    setenv("TERM", "dumb", 1);
    terminal_play(master, tracer, slowly ? SLOWER : 1, &shown);
    trace_wait(tracer);
    if (tcgetattr(slave, &after) == 0)
        terminal_restored(&shown, &before, &after, why);
    put_file(p, "out", shown.p, shown.n);
    put_file(p, "terminal", why, strlen(why));
    put_file(p, "err", "", 0);
    close(master);
    close(slave);
    buf_free(&shown);
}

static void run_session(const struct place *p, const struct session *s, const struct fault *f)
{
    const char *argv[MAX_ARGS + 2] = {aerie};
    char in[256], out[256], err[256], page[256], made[256];
    for (int i = 0; s->arg[i]; i++) {
        argv[i + 1] = s->arg[i];
        if (s->arg[i][0] == '@') {
            path_of(p, made, s->arg[i] + 1);
            argv[i + 1] = made;
        }
    }
    path_of(p, in, "in"), path_of(p, out, "out"), path_of(p, err, "err"), path_of(p, page, "page");
    put_file(p, "in", s->in ? s->in : "", s->in ? strlen(s->in) : 0);
    struct command c = {.argv = (char *const *)(uintptr_t)argv, .in = in, .out = out, .err = err,
                        .terminal = -1,
                        .limit_ms = slowly ? 4 * SLOWER * LIMIT_MS : LIMIT_MS, .page = page,
                        .preload = preload};
    if (s->screen)
        run_terminal(p, &c, f);
    else
        trace_wait(trace_start(&c, f, p->trial));
}

/* Runs the program without faults; its exit status. */
static int run_plain(const struct place *p, const char *const arg[])
{
    char out[256], err[256];
    path_of(p, out, "after.out"), path_of(p, err, "after.err");
    const char *argv[MAX_ARGS + 2] = {aerie};
    for (int i = 0; arg[i]; i++)
        argv[i + 1] = arg[i];
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDONLY), o = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int e = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(null, 0), dup2(o, 1), dup2(e, 2);
        execv(aerie, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    int st = -1;
    waitpid(pid, &st, 0);
    return WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
}

/* ---- what must be true after a trial --------------------------------------------------------- */

/* Whether a message names the cause: with the text of strerror(), or another that says the same. */
static bool names_cause(const char *messages, int error)
{
    static const struct {
        int error;
        const char *text;
    } also[] = {
        {ENOMEM, "Resource temporarily unavailable"}, /* pthread_create() without memory */
        {ENOMEM, "out of memory"}, {ENOMEM, "not enough memory"},
        {ENOSPC, "database or disk is full"},
    };
    if (strstr(messages, strerror(error)))
        return true;
    for (size_t i = 0; i < sizeof also / sizeof *also; i++)
        if (also[i].error == error && strstr(messages, also[i].text))
            return true;
    return false;
}

/* Checks that every line begins with "aerie: ". */
static bool well_formed(const char *messages)
{
    for (const char *p = messages; *p; p = strchrnul(p, '\n'), p += *p == '\n')
        if (strncmp(p, "aerie: ", 7) != 0)
            return false;
    return true;
}

struct verdict {
    bool ok;
    char why[300];
};

static bool bad(struct verdict *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool bad(struct verdict *v, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(v->why, sizeof v->why, fmt, ap);
    va_end(ap);
    return v->ok = false;
}

static bool check_end(const struct trial *t, struct verdict *v)
{
    if (t->timed_out)
        return bad(v, "it did not end in %d s", LIMIT_MS / 1000);
    if (!t->armed)
        return bad(v, "it was not traced");
    if (WIFSIGNALED(t->status))
        return bad(v, "signal %d", WTERMSIG(t->status));
    if (WIFEXITED(t->status) && WEXITSTATUS(t->status) > ERR_DB)
        return bad(v, "exit status %d", WEXITSTATUS(t->status));
    return true;
}

/* Checks that every turn that the program printed is in the log, unless a message says that it was
 * not saved. */
static bool check_turns(const struct place *p, const char *out, const char *messages,
                        struct verdict *v)
{
    char name[256];
    sqlite3 *db;
    sqlite3_stmt *s = NULL;
    if (strstr(messages, "NOT SAVED") || strstr(messages, "it is lost") ||
        (strstr(messages, "not saved") && !strstr(messages, "the next start stores it")))
        return true;
    path_of(p, name, "data/aerie/sessions.db");
    bool ok = sqlite3_open_v2(name, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK &&
              sqlite3_prepare_v2(db, "SELECT 1 FROM turn WHERE role='reply' AND session_id=? AND "
                                     "n=? AND text=?", -1, &s,
                                 NULL) == SQLITE_OK;
    for (const char *at = out, *end; ok && *at; at = end + (*end == '\n')) {
        end = strchrnul(at, '\n');
        json_t *j = json_loadb(at, (size_t)(end - at), 0, NULL);
        const char *id = json_string_value(json_object_get(j, "session"));
        const char *text = json_string_value(json_object_get(j, "text"));
        if (id && text) {
            sqlite3_bind_text(s, 1, id, -1, SQLITE_TRANSIENT);
            sqlite3_bind_int64(s, 2, json_integer_value(json_object_get(j, "turn")));
            sqlite3_bind_text(s, 3, text, -1, SQLITE_TRANSIENT);
            ok = sqlite3_step(s) == SQLITE_ROW ||
                 bad(v, "a printed turn is not in the log: %.60s", text);
            sqlite3_reset(s);
        }
        json_decref(j);
    }
    if (!ok && v->ok)
        bad(v, "the log cannot be read: %s", sqlite3_errmsg(db));
    sqlite3_finalize(s);
    sqlite3_close(db);
    return v->ok;
}

/* Whether the log is in one file: no write-ahead log with content, no side file. */
static bool log_alone(const struct place *p)
{
    char folder[256], name[600];
    struct stat st;
    bool alone = true;
    path_of(p, folder, "data/aerie");
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
        alone &= strcmp(e->d_name, "sessions.db") == 0 || strstr(e->d_name, "-shm") ||
                 e->d_name[0] == '.' || (stat(name, &st) == 0 && st.st_size == 0);
    }
    if (d)
        closedir(d);
    return d && alone;
}

/* Checks that the next start is clean and the log intact. */
static bool check_log(const struct place *p, const struct session *s, struct verdict *v)
{
    struct buf err = {0}, base = {0}, now = {0};
    text_of(p, "base.db", &base);
    text_of(p, "data/aerie/sessions.db", &now);
    bool same = base.n == now.n && memcmp(base.p, now.p, now.n) == 0;
    buf_free(&base);
    buf_free(&now);
    if (same && (!s->writes || log_alone(p)))
        return true;
    int rc = run_plain(p, (const char *[]){"run", "--quiet", "--threads", "1", "-p", "max_tokens=1",
                                           "hi", NULL});
    text_of(p, "after.err", &err);
    if (rc != 0 || err.n)
        bad(v, "the next start (%d): %.200s", rc, err.p);
    buf_free(&err);
    if (v->ok && (rc = run_plain(p, (const char *[]){"db", "check", NULL})) != 0)
        bad(v, "db check: %d", rc);
    return v->ok;
}

/* Checks that the file that a session writes is complete, or is missing after a failure was
 * reported. */
static bool check_made(const struct place *p, const struct session *s, bool success,
                       struct verdict *v)
{
    char name[256];
    struct buf golden = {0}, made = {0};
    if (!s->made)
        return true;
    path_of(p, name, s->made);
    if (!success && access(name, F_OK) != 0)
        return true;
    if (strstr(s->made, ".pack")) { /* a pack contains the time: it cannot be compared */
        int rc = run_plain(p, (const char *[]){"db", "check", "--db", name, NULL});
        return rc == 0 || bad(v, "db check of %s: %d", s->made, rc);
    }
    text_of(p, golden_of(s, "made").s, &golden);
    text_of(p, s->made, &made);
    if (golden.n != made.n || memcmp(golden.p, made.p, made.n) != 0)
        bad(v, "%s has %zu bytes that are not the %zu of a run without faults", s->made, made.n,
            golden.n);
    buf_free(&golden);
    buf_free(&made);
    return v->ok;
}

/* Overwrites the parts of a session's output that differ from run to run: times, ids, speeds,
 * folders. */
static void strip(struct buf *text)
{
    for (char *at = text->p; at && (at = strstr(at, "/aerie-faults-"));) /* the scratch folder of
                                                                            another worker */
        for (int slashes = 0; *at && slashes < 3; at++) {
            slashes += *at == '/';
            *at = '.';
        }
    static const char *const varies[] = {"\"session\":", "\"parent\":", "\"us_prefill\":",
                                         "\"us_decode\":", "\"tok_s\":", "seal ",
                                         /* members that may be missing: */ ",\"parent_number\":"};
    for (size_t i = 0; i < sizeof varies / sizeof *varies; i++)
        for (char *at = text->p; at && (at = strstr(at, varies[i]));) {
            at = (char *)memset(at, '.', strlen(varies[i])) + strlen(varies[i]);
            while (*at && !strchr(",}\n", *at))
                *at++ = '.';
        }
}

/* Whether a trial's output on one stream equals that of the run without faults. */
static bool same_output(const struct place *p, const struct session *s, const char *name)
{
    struct buf a = {0}, b = {0};
    text_of(p, golden_of(s, name).s, &a);
    text_of(p, name, &b);
    strip(&a), strip(&b);
    /* overwritten parts have different lengths: their dots are skipped */
    size_t i = 0, j = 0;
    bool same = true;
    while (same && (i < a.n || j < b.n)) {
        while (i < a.n && a.p[i] == '.')
            i++;
        while (j < b.n && b.p[j] == '.')
            j++;
        same = (i < a.n) == (j < b.n) && (i >= a.n || a.p[i] == b.p[j]);
        i++, j++;
    }
    buf_free(&a);
    buf_free(&b);
    return same;
}

/* The number of complete replies in the log; -1: it cannot be read. */
static int count_replies(const struct place *p, const char *log)
{
    char name[256];
    sqlite3 *db;
    sqlite3_stmt *s = NULL;
    int n = -1;
    path_of(p, name, log);
    if (sqlite3_open_v2(name, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(db, "SELECT count(*) FROM turn WHERE role='reply' AND stop NOT IN ('', "
                               "'crashed')", -1, &s,
                           NULL) == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW)
        n = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return n;
}

/* Whether a read of the terminal failed with EIO, which means to the program that the terminal has
 * hung up. */
static bool read_terminal(const struct trial *t)
{
    static const char head[] = "read ";
    size_t n = strspn(t->what + sizeof head - 1, "0123456789"); /* /dev/pts/N */
    return strncmp(t->what, head, sizeof head - 1) == 0 && n > 0 && t->what[sizeof head - 1 + n] ==
           ' ' && t->error == EIO;
}

/* Judges a trial on the full screen: the typed message is answered and stored, or the screen or the
 * last line says why not; and the terminal is restored. */
static void judge_screen(const struct place *p, const struct session *s, const struct fault *f,
                         struct verdict *v)
{
    enum { AFTER = 1 }; /* check_log() has added one reply */
    struct buf shown = {0}, left = {0};
    const struct trial *t = p->trial;
    *v = (struct verdict){.ok = true};
    text_of(p, "out", &shown);
    text_of(p, "terminal", &left);
    bool hung_up = read_terminal(t) && WIFEXITED(t->status) &&
                   WEXITSTATUS(t->status) == 128 + SIGHUP;
    if ((hung_up || check_end(t, v)) && left.n)
        bad(v, "%.100s", left.p);
    bool clean = WIFEXITED(t->status) && WEXITSTATUS(t->status) == 0;
    if (v->ok && check_log(p, s, v)) {
        int n = count_replies(p, "data/aerie/sessions.db");
        clean = clean && n == count_replies(p, "base.db") + AFTER + 1;
        if (!clean && !hung_up && t->fired && f->how != INTERRUPT && f->how != SHORTEN &&
            !names_cause(shown.p, t->error))
            bad(v, "%d replies, and no message names the cause (%s)", n, strerror(t->error));
        else if (!clean && (!t->fired || f->how == INTERRUPT || f->how == SHORTEN))
            bad(v, "%d replies", n);
    }
    if (!v->ok) { /* the messages after the screen was closed, for explain() */
        const char *end = strstr(shown.p, "\033[?1049l");
        put_file(p, "err", end ? end : "", end ? strlen(end) : 0);
    }
    buf_free(&shown);
    buf_free(&left);
}

static void judge(const struct place *p, const struct session *s, const struct fault *f,
                  struct verdict *v)
{
    struct buf out = {0}, messages = {0};
    const struct trial *t = p->trial;
    *v = (struct verdict){.ok = true};
    text_of(p, "out", &out);
    text_of(p, "err", &messages);
    bool whole = WIFEXITED(t->status) && WEXITSTATUS(t->status) == 0 && same_output(p, s, "out");
    bool quiet = same_output(p, s, "err"), lost = strncmp(t->what, "write err ", 10) == 0;
    check_end(t, v);
    if (v->ok && !well_formed(messages.p))
        bad(v, "a message does not begin with \"aerie: \"");
    if (v->ok && (f->how == INTERRUPT || f->how == SHORTEN) && !(whole && quiet))
        bad(v, "an interrupted or short call changed what the program does");
    if (v->ok && t->fired && !whole && !lost && !names_cause(messages.p, t->error))
        bad(v, "no message names the cause (%s)", strerror(t->error));
    if (v->ok && t->fired && f->class == CALLS_SYNC && strstr(t->what, " made.") &&
        WEXITSTATUS(t->status) == 0) bad(v, "an fsync that failed was ignored");
    if (v->ok && !t->fired && !(whole && quiet))
        bad(v, "it differs from a run without a fault");
    if (v->ok && WIFEXITED(t->status))
        check_made(p, s, WEXITSTATUS(t->status) == 0, v);
    if (v->ok && check_log(p, s, v))
        check_turns(p, out.p, messages.p, v);
    buf_free(&out);
    buf_free(&messages);
}

static const char *how_name(enum how h)
{
    return (const char *[]){"never", "forked", "once", "from", "interrupt", "shorten"}[h];
}

static void explain(const struct place *p, const struct session *s, const struct fault *f,
                    const struct verdict *v)
{
    struct buf messages = {0};
    const struct trial *t = p->trial;
    text_of(p, "err", &messages);
    printf("# %s %s %s %ld (%s; %s): %s; status 0x%x; said: %.300s\n", s->name,
           class_name(f->class),
           how_name(f->how), f->n, t->what, strerror(t->error), v->why, (unsigned)t->status,
           messages.p);
    fflush(stdout);
    buf_free(&messages);
}

static bool try_fault(const struct place *p, const struct session *s, const struct fault *f)
{
    struct verdict v;
    fresh(p);
    run_session(p, s, f);
    (s->screen ? judge_screen : judge)(p, s, f, &v);
    if (!v.ok)
        explain(p, s, f, &v);
    return v.ok;
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

static void make_folder(const struct place *p, const char *name)
{
    char path[256];
    path_of(p, path, name);
    CHECK(mkdir(path, 0700) == 0);
}

static void make_place(struct place *p, const char *root, int i)
{
    static const char config[] = "device = cpu\nload = map\n"; /* a third of a start's time */
    char name[256];
    CHECK(snprintf(p->root, sizeof p->root, "%s/%d", root, i) < (int)sizeof p->root);
    CHECK(mkdir(p->root, 0700) == 0);
    make_folder(p, "data"), make_folder(p, "config"), make_folder(p, "state");
    make_folder(p, "data/aerie"), make_folder(p, "config/aerie");
    path_of(p, name, "config/aerie/config");
    int fd = open(name, O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0 && write_fully(fd, config, sizeof config - 1));
    close(fd);
    p->trial = mmap(NULL, sizeof *p->trial, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                    0);
    CHECK(p->trial != MAP_FAILED);
}

/* Makes this place the home of the program's files. */
static void enter(const struct place *p)
{
    static const char *const var[][2] = {{"XDG_DATA_HOME", "data"}, {"XDG_CONFIG_HOME", "config"},
                                         {"XDG_STATE_HOME", "state"}, {"HOME", "."}};
    char name[256];
    for (size_t i = 0; i < sizeof var / sizeof *var; i++) {
        path_of(p, name, var[i][1]);
        setenv(var[i][0], name, 1);
    }
}

static void share_file(const struct place *from, const struct place *to, const char *name)
{
    char a[256], b[256];
    path_of(from, a, name), path_of(to, b, name);
    if (strcmp(a, b) != 0)
        CHECK(copy_file(a, b));
}

struct run {
    struct place *place; /* of each worker */
    int jobs;
    bool all;
    uint64_t until_ns;
    /* of the session that is being added */
    int listed, n_listed; /* in q->list: the allocations after whose failure the program goes on */
    long calls[N_CLASS];  /* calls of each class without a fault */
    struct queue *q;
};

/* If all calls are tried, a sweep goes on somewhat beyond their number, which varies from run to
 * run with the threads. */
static void add_sweep(struct run *r, const struct session *s, enum fault_class k, enum how how,
                      int error)
{
    long total = r->calls[k], most = r->all ? total : how == ONCE ? SAMPLE : 1;
    struct sweep w = {.session = (int)(s - sessions), .f = {k, how, 1, error}, .total = total,
                      .step = 1};
    if (total == 0) {
        w.n_trial = 0;
    } else if (how == INTERRUPT || how == SHORTEN) {
        w.n_trial = how == INTERRUPT ? FIRST_TRIES : 1;
    } else if (total > most) {
        w.step = total / most;
        w.f.n = 1 + w.step / 2;
        w.n_trial = most;
    } else {
        w.n_trial = total + (r->all ? 3 + total / 20 : 0);
    }
    if (k == CALLS_ALLOC && r->all)
        w.step = 1, w.listed = r->listed, w.n_trial = r->n_listed;
    queue_add(r->q, &w);
}

/* Makes each allocation of a session fail in a forked process (FORKED), and lists those that did
 * not end it. */
static void list_others(struct run *r, const struct session *s)
{
    const struct place *p = &r->place[0];
    char name[256];
    fresh(p);
    slowly = true;
    run_session(p, s, &(struct fault){.class = CALLS_ALLOC, .how = FORKED});
    slowly = false;
    path_of(p, name, "page");
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    const struct faults_page *page = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && page != MAP_FAILED);
    close(fd);
    r->listed = r->q->n_listed;
    r->n_listed = (int)page->n_other;
    CHECK(r->n_listed <= FAULTS_LISTED && r->listed + r->n_listed <= MAX_LISTED);
    for (int i = 0; i < r->n_listed; i++)
        r->q->list[r->q->n_listed++] = (int)page->other[i];
    printf("# %s: %ld allocations, %ld end the program with one line, %ld others; status 0x%x%s\n",
           s->name,
           (long)page->allocs, (long)page->ended, (long)page->n_other, (unsigned)p->trial->status,
           p->trial->timed_out ? ", time out" : "");
    fflush(stdout);
    munmap((void *)(uintptr_t)page, sizeof *page);
}

static bool trial(void *place, const struct sweep *w, const struct fault *f, bool *fired)
{
    const struct place *p = place;
    bool ok = try_fault(p, &sessions[w->session], f);
    *fired = p->trial->fired;
    return ok;
}

static const char *session_name(int i) { return sessions[i].name; }

/* Runs all trials, or as many as the time allows; returns how many sweeps found a fault. */
static long run_all(struct run *r)
{
    fflush(stdout);
    for (int i = 0; i < r->jobs; i++)
        if (fork() == 0) {
            enter(&r->place[i]);
            queue_work(r->q, r->until_ns, trial, &r->place[i]);
            fflush(stdout);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    return queue_print(r->q, session_name, how_name);
}

/* Whether ONLY names this one of `all`, or none of them: it restricts only the kinds that it
 * names. */
static bool wanted(const char *name, const char *const all[], int n)
{
    const char *only = getenv("ONLY");
    bool any = false;
    for (int i = 0; only && i < n; i++) {
        char *words = xstrdup(only);
        for (char *save, *word = strtok_r(words, " ", &save); word;
             word = strtok_r(NULL, " ", &save)) {
            any |= strcmp(word, all[i]) == 0;
            if (strcmp(word, name) == 0 && strcmp(word, all[i]) == 0) {
                free(words);
                return true;
            }
        }
        free(words);
    }
    return !any;
}

static bool class_wanted(enum fault_class k)
{
    const char *classes[N_CLASS];
    for (int i = 0; i < N_CLASS; i++)
        classes[i] = class_name((enum fault_class)i);
    return wanted(class_name(k), classes, N_CLASS);
}

/* Whether calls of a class are to fail in this way in this session. */
static bool way_wanted(const struct run *r, const struct session *s, enum fault_class k,
                       enum how how)
{
    static const char *const hows[] = {"once", "from", "interrupt", "shorten"};
    if (!r->all && !getenv("ONLY") && s->sampled == ONLY_READS_INTERRUPTED)
        return k == CALLS_READ && how == INTERRUPT;
    if (!class_wanted(k) || !wanted(how_name(how), hows, 4))
        return false;
    switch (how) {
    case ONCE: return true;
    case FROM: return r->all || k == CALLS_WRITE || k == CALLS_SYNC;
    case INTERRUPT: return class_interrupts(k);
    case SHORTEN: return k == CALLS_READ || k == CALLS_WRITE;
    default: return false;
    }
}

/* Runs the session without faults: keeps its output, its file and the numbers of its calls. */
static void measure(struct run *r, const struct session *s)
{
    const struct place *p = &r->place[0];
    char from[256], to[256];
    for (enum fault_class k = 0; k < N_CLASS; k++) {
        bool any = false;
        for (enum how how = ONCE; how <= SHORTEN; how++)
            any |= way_wanted(r, s, k, how);
        if (!any)
            continue;
        fresh(p);
        run_session(p, s, &(struct fault){.class = k});
        CHECK(p->trial->armed && WIFEXITED(p->trial->status) && WEXITSTATUS(p->trial->status) == 0);
        r->calls[k] = p->trial->calls;
    }
    const char *const kept[] = {"out", "err", "made"};
    for (int i = 0; i < (s->made ? 3 : 2); i++) {
        path_of(p, from, i == 2 ? s->made : kept[i]);
        path_of(p, to, golden_of(s, kept[i]).s);
        CHECK(copy_file(from, to));
        for (int j = 1; j < r->jobs; j++)
            share_file(p, &r->place[j], golden_of(s, kept[i]).s);
    }
    if (r->all && !r->q->whole &&
        (way_wanted(r, s, CALLS_ALLOC, ONCE) || way_wanted(r, s, CALLS_ALLOC, FROM)))
        list_others(r, s);
}

static void add_session(struct run *r, const struct session *s)
{
    measure(r, s);
    if (r->q->whole) /* an earlier run has added the sweeps */
        return;
    for (enum fault_class k = 0; k < N_CLASS; k++)
        for (int i = 0; i == 0 || (r->all && class_error(k, i)); i++)
            for (enum how how = ONCE; how <= SHORTEN; how++)
                if (way_wanted(r, s, k, how) && (i == 0 || how == ONCE || how == FROM))
                    add_sweep(r, s, k, how, how == INTERRUPT ? EINTR : how == SHORTEN ? 0
                              : class_error(k, i));
}

/* A hash of the program and of ONLY: a run can continue only one with the same. */
static uint64_t identity(void)
{
    struct buf b = {0};
    struct err e;
    uint64_t sum = 14695981039346656037u;
    CHECK(buf_read_file(&b, aerie, 256 << 20, &e));
    buf_str(&b, getenv("ONLY") ? getenv("ONLY") : "");
    for (size_t i = 0; i < b.n; i++)
        sum = (sum ^ (uint8_t)b.p[i]) * 1099511628211u;
    buf_free(&b);
    return sum;
}

/* One trial, with what it printed. */
static int single(const struct place *p, const char *what)
{
    char name[32], cls[32], how[32];
    struct fault f = {0};
    if (sscanf(what, "%31s %31s %31s %ld %d", name, cls, how, &f.n, &f.error) < 4)
        return 2;
    for (f.class = 0; f.class < N_CLASS - 1 && strcmp(cls, class_name(f.class)) != 0;)
        f.class++;
    for (f.how = NEVER; f.how < SHORTEN && strcmp(how, how_name(f.how)) != 0;)
        f.how++;
    const struct session *s = sessions;
    while (strcmp(s->name, name) != 0 && s < sessions + N_SESSIONS - 1)
        s++;
    bool ok = try_fault(p, s, &f);
    for (int i = 0; i < 2; i++) {
        struct buf b = {0};
        text_of(p, (const char *[]){"out", "err"}[i], &b);
        fwrite(b.p, 1, b.n, stdout);
        buf_free(&b);
    }
    printf("%s: %s, %ld calls, status 0x%x, %s\n", ok ? "ok" : "not ok", p->trial->what,
           p->trial->calls, (unsigned)p->trial->status, p->root);
    return !ok;
}

/* The log with which every session begins. */
static void make_base(struct run *r)
{
    static const struct session first = {"first", {"--plain", "--json", QUICK},
                                         "hello\n/fork 1\nWhat are you?\n", NULL, true, NOT_SAMPLED,
                                         false};
    const struct place *p = &r->place[0];
    char from[256], to[256];
    run_session(p, &first, &(struct fault){.class = CALLS_ALLOC});
    CHECK(p->trial->armed && p->trial->status == 0);
    path_of(p, from, "data/aerie/sessions.db"), path_of(p, to, "base.db");
    CHECK(copy_file(from, to));
    for (int i = 0; i < r->jobs; i++)
        share_file(p, &r->place[i], "base.db");
}

int main(void)
{
    char root[64], name[300];
    const char *build = getenv("BUILD"), *want = getenv("EVERY_CALL"), *jobs = getenv("JOBS"),
        *minutes = getenv("MINUTES"), *names[N_SESSIONS];
    struct run r = {.jobs = jobs ? atoi(jobs) : 4};
    r.all = want && strcmp(want, "all") == 0;
    bool traced = !want;
    for (enum fault_class k = CALLS_ALLOC + 1; k < N_CLASS; k++)
        traced |= class_wanted(k);
    if (traced && !trace_possible()) {
        printf("ok 1 # SKIP needs x86-64, no sanitizer, and a kernel that lets a process trace its "
               "children\n1..1\n");
        return 0;
    }
    snprintf(name, sizeof name, "%s/tests/faults/preload.so", build ? build : "build/release-cpu");
    preload = realpath(name, NULL);
    snprintf(name, sizeof name, "%s/aerie", build ? build : "build/release-cpu");
    aerie = realpath(name, NULL);
    CHECK(aerie && preload && r.jobs > 0 && r.jobs < 256);
    setenv("TERM", "dumb", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    snprintf(root, sizeof root, "%s/aerie-faults-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm"
             : "/tmp");
    CHECK(mkdtemp(root));
    struct place place[256];
    r.place = place;
    for (int i = 0; i < r.jobs; i++)
        make_place(&place[i], root, i);
    r.until_ns = minutes ? clock_ns() + (uint64_t)(atof(minutes) * 60e9) : 0;
    r.q = queue_open(getenv("STATE"), identity());
    enter(&place[0]);
    make_base(&r);
    if (want && !r.all)
        return single(&place[0], want);
    for (size_t i = 0; i < N_SESSIONS; i++)
        names[i] = sessions[i].name;
    for (size_t i = 0; i < N_SESSIONS; i++)
        if (wanted(names[i], names, N_SESSIONS) && (r.all || sessions[i].sampled || getenv("ONLY")))
            add_session(&r, &sessions[i]);
    r.q->whole = true;
    long failed = run_all(&r);
    remove_files(root);
    rmdir(root);
    return failed != 0;
}
