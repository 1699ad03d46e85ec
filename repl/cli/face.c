/* face.c - the part of `aerie bench` that measures the whole program: a child process runs the full
 * screen on a pseudo-terminal, or the plain mode, answers the same question in one session after
 * another, and its log gives the engine's time for each reply. No file of the user is read or
 * written: the child's files are in a temporary folder. A third process, the keeper, is the child's
 * parent: it ends the child and removes the folder as soon as this process has ended, also by
 * SIGKILL, or has closed a pipe. */
#include "repl/cli/cli.h"

#include "engine/tools/bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMES = 5, PATIENCE_MS = 60000, QUIET_MS = 250, LOOK_MS = 20 };

struct child {
    pid_t keeper; /* see the head of this file */
    int hold;     /* the pipe that the keeper reads: nothing is written to it */
    int link; /* our end: keys are written to it, the screen is read from it */
    char *dir, *db;
    size_t shown; /* bytes written to the screen so far */
    bool ended;
};

/* ---- starting and ending --------------------------------------------------------------------- */

/* In the child: executes the program. */
static void exec_program(const struct cli *c, const struct child *k, bool screen, bool draft)
{
    const struct engine_opts *o = &c->opt.engine;
    char threads[16];
    snprintf(threads, sizeof threads, "%d", o->threads);
    const char *arg[30] = {"aerie", "chat", screen ? "--tui" : "--plain", "--quiet", "--db", k->db,
                           "-p", "temperature=0", "-p", "max_tokens=128", "-m", o->model};
    const char *const more[][2] = {{"--device", o->device}, {"--precision", o->precision},
                                   {"--draft", o->draft}, {"--kv", o->kv},
                                   {"--weights", o->quant.weights},
                                   {"--draft-weights", o->quant.draft_weights},
                                   {"--threads", o->threads ? threads : NULL}};
    int n = 12;
    for (size_t i = 0; i < LEN(more); i++)
        if (more[i][1])
            arg[n++] = more[i][0], arg[n++] = more[i][1];
    if (!draft)
        arg[n++] = "--no-spec";
    setenv("XDG_CONFIG_HOME", k->dir, 1);
    setenv("XDG_STATE_HOME", k->dir, 1);
    setenv("XDG_DATA_HOME", k->dir, 1);
    setenv("TERM", "xterm-256color", 1);
    execv("/proc/self/exe", (char *const *)(uintptr_t)arg);
    _exit(127);
}

static bool open_link(bool screen, int end[2])
{
    struct winsize size = {.ws_row = 40, .ws_col = 120};
    return screen ? openpty(&end[0], &end[1], NULL, NULL, &size) == 0
                  : socketpair(AF_UNIX, SOCK_STREAM, 0, end) == 0;
}

static void remove_folder(const char *path)
{
    FREED(folder_close) DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));) {
        FREED(free_at) char *name = xasprintf("%s/%s", path, f->d_name);
        if (f->d_name[0] != '.' && unlink(name))
            remove_folder(name);
    }
    rmdir(path);
}

/* The keeper: starts the child; when the other end of `hold` is closed, ends the child and removes
 * its folder. */
static _Noreturn void keep_child(const struct cli *c, const struct child *k, bool screen,
                                 bool draft, int hold, const int end[2])
{
    char none;
    setsid(); /* signals of the terminal are meant for the program, with which the keeper ends */
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (screen)
            ioctl(end[1], TIOCSCTTY, 0);
        for (int fd = 0; fd < 3; fd++)
            dup2(end[1], fd);
        close(end[0]);
        if (end[1] > 2)
            close(end[1]);
        exec_program(c, k, screen, draft);
    }
    close(end[0]);
    close(end[1]);
    for (int s = 1; s < NSIG; s++)
        signal(s, s == SIGCHLD ? SIG_DFL : SIG_IGN);
    while (read(hold, &none, 1) < 0 && errno == EINTR)
        ;
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    remove_folder(k->dir);
    _exit(0);
}

static bool start_child(const struct cli *c, struct child *k, bool screen, bool draft,
                        struct err *e)
{
    int end[2], hold[2];
    k->dir = xasprintf("%s/aerie-bench-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(k->dir)) {
        err_set(e, ERR_MODEL, "the folder %s for a chat's files cannot be made: %s", k->dir,
                strerror(errno));
        DROP(k->dir);
        return false;
    }
    k->db = xasprintf("%s/log.db", k->dir);
    if (!open_link(screen, end))
        return err_set(e, ERR_MODEL, "no pseudo-terminal could be opened: %s", strerror(errno));
    if (pipe2(hold, O_CLOEXEC) != 0) {
        close(end[0]);
        close(end[1]);
        return err_set(e, ERR_MODEL, "no pipe could be made: %s", strerror(errno));
    }
    k->keeper = fork();
    if (k->keeper == 0) {
        close(hold[1]);
        keep_child(c, k, screen, draft, hold[0], end);
    }
    int why = errno;
    close(end[1]);
    close(hold[0]);
    k->link = end[0];
    k->hold = hold[1];
    return k->keeper > 0 || err_set(e, ERR_MODEL, "no process could be started: %s", strerror(why));
}

static void end_child(struct child *k)
{
    if (k->link > 0)
        close(k->link);
    if (k->hold > 0)
        close(k->hold);
    if (k->keeper > 0)
        waitpid(k->keeper, NULL, 0);
    else if (k->dir)
        remove_folder(k->dir);
    FREE(k->dir, k->db);
}

/* ---- talking --------------------------------------------------------------------------------- */

/* Reads the child's output until none came for `ms`, for at most `most` milliseconds. True: there
 * was some. */
static bool read_output(struct child *k, int ms, int most)
{
    char some[1 << 14];
    uint64_t t0 = clock_ns();
    size_t before = k->shown;
    struct pollfd p = {.fd = k->link, .events = POLLIN};
    while (!k->ended && poll(&p, 1, ms) > 0 && (int)((clock_ns() - t0) / 1000000) < most) {
        ssize_t n = read(k->link, some, sizeof some);
        k->ended = n <= 0;
        k->shown += n > 0 ? (size_t)n : 0;
    }
    return k->shown > before;
}

static bool type_line(struct child *k, const char *text, char enter)
{
    char line[128];
    int n = snprintf(line, sizeof line, "%s%c", text, enter);
    return write(k->link, line, (size_t)n) == n;
}

static bool count_reply(const struct turn_row *r, void *arg)
{
    struct bench_replies *all = arg;
    if (!r->is_user && r->stop != STOP_OPEN && all->n < BENCH_REPLIES) {
        all->tokens[all->n] = r->tokens.n;
        all->ms[all->n++] = (double)r->us_decode * 1e-3;
    }
    return true;
}

struct reading {
    struct hdb *d;
    struct bench_replies *all;
};

static bool add_session(const struct session_row *r, void *arg)
{
    struct reading *l = arg;
    return hdb_turns(l->d, r->id, 0, count_reply, l->all, NULL) >= 0;
}

/* Reads the replies in the child's log, the latest first. */
static void read_replies(const struct child *k, struct bench_replies *all)
{
    struct err e = {0};
    FREED(hdb_close_at) struct hdb *d = hdb_open(k->db, &e);
    struct reading l = {d, all};
    all->n = 0;
    if (d)
        hdb_sessions(d, NULL, NULL, 0, add_session, &l, &e);
}

/* The first reply is not counted: it includes lazy initialisation. */
static bool ask_all(struct child *k, bool screen, struct bench_replies *all, struct err *e)
{
    const char enter = screen ? '\r' : '\n';
    uint64_t t0 = clock_ns();
    while (screen && !k->shown && !k->ended && (int)((clock_ns() - t0) / 1000000) < PATIENCE_MS)
        read_output(k, QUIET_MS,
                    PATIENCE_MS); /* keys typed before the screen is set up could be lost */
    read_output(k, QUIET_MS, 5000);
    for (int i = 0; i < TIMES; i++) {
        bool asked = (i == 0 || type_line(k, "/new", enter)) && type_line(k, BENCH_QUESTION, enter);
        if (k->ended || !asked)
            return err_set(e, ERR_MODEL, "the chat ended before it was asked");
        for (t0 = clock_ns(); all->n <= i; read_replies(k, all)) {
            read_output(k, LOOK_MS, LOOK_MS);
            if (k->ended || (int)((clock_ns() - t0) / 1000000) > PATIENCE_MS)
                return err_set(e, ERR_MODEL, "no reply to \"" BENCH_QUESTION "\"");
        }
    }
    all->n--;
    all->shown = k->shown;
    return true;
}

bool cli_face(void *arg, bool screen, bool draft, struct bench_replies *all, struct err *e)
{
    struct child k = {0};
    *all = (struct bench_replies){0};
    bool ok = start_child(arg, &k, screen, draft, e) && ask_all(&k, screen, all, e);
    end_child(&k);
    return ok;
}
