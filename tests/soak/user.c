/* user.c - processes of a soak: starting them, typing, waiting until they rest, reading their
 * ledgers. */
#include "tests/soak/soak.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    KEEP = 1 << 20,   /* bytes of output that are kept */
    PATIENCE = 60000, /* milliseconds in which a program rests again, on a machine under load */
};

/* ---- starting and ending --------------------------------------------------------------------- */

/* In the child, after its terminal or pipes are its standard streams. */
static _Noreturn void become(const char *const *argv)
{
    char *shim = xasprintf("%s/tests/soak/shim.so", soak.build),
        *clock = xasprintf("%s/clock", soak.folder);
    setenv("LD_PRELOAD", shim, 1);
    setenv("AERIE_SOAK_CLOCK", clock, 1);
    /* freed blocks that the allocator keeps for a thread, up to 236 kB each, count as in use */
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
    if (chdir(soak.small) != 0)
        _exit(126);
    execv(argv[0], (char *const *)argv);
    _exit(127);
}

/* Only the two users leak and report their heap, not the programs of run_program(). */
static void is_user(const struct user *u)
{
    char *heap = xasprintf("%s/%s.heap", soak.folder, u->name);
    setenv("AERIE_SOAK_HEAP", heap, 1);
    if (soak.leak[0])
        setenv("AERIE_SOAK_LEAK", soak.leak, 1);
}

static void start_screen(struct user *u, const char *const *argv)
{
    struct winsize size = {.ws_row = (unsigned short)u->height, .ws_col = (unsigned short)u->width};
    u->pid = forkpty(&u->in, NULL, NULL, &size);
    CHECK(u->pid >= 0);
    if (u->pid == 0) {
        setenv("TERM", "screen-256color", 1);
        is_user(u);
        become(argv);
    }
    u->out = u->in;
}

static void start_plain(struct user *u, const char *const *argv)
{
    int in[2], out[2];
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    u->pid = fork();
    CHECK(u->pid >= 0);
    if (u->pid == 0) {
        char *path = xasprintf("%s/%s.err", soak.folder, u->name);
        int err = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (err < 0 || dup2(in[0], 0) < 0 || dup2(out[1], 1) < 0 || dup2(err, 2) < 0)
            _exit(126);
        setenv("TERM", "dumb", 1);
        is_user(u);
        become(argv);
    }
    close(in[0]);
    close(out[1]);
    u->in = in[1];
    u->out = out[0];
}

void user_start(struct user *u)
{
    const char *plain[] = {soak.aerie, "--plain", "--json", NULL}, *screen[] = {soak.aerie, NULL};
    if (u->screen)
        start_screen(u, screen);
    else
        start_plain(u, plain);
    fcntl(u->in, F_SETFD, FD_CLOEXEC);
    fcntl(u->out, F_SETFL, O_NONBLOCK);
    note(u->name, "started, pid %d", (int)u->pid);
    user_settle(u);
}

int user_end(struct user *u)
{
    int status = 0, ms = 0;
    user_line(u, "/bye");
    if (!u->screen)
        close(u->in);
    pid_t done;
    while ((done = waitpid(u->pid, &status, WNOHANG)) == 0 && ms < PATIENCE) {
        user_pump(u, 20);
        ms += 20;
    }
    if (done == 0) {
        failed(u->name, "did not leave within %d s of /bye; killed", PATIENCE / 1000);
        kill(u->pid, SIGKILL);
        waitpid(u->pid, &status, 0);
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_program(const char *const *argv, struct buf *out, int ms, int sig)
{
    int fd[2], status;
    uint64_t begin = clock_ns();
    CHECK(pipe2(fd, O_CLOEXEC) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, 0);
        dup2(fd[1], 1);
        dup2(fd[1], 2);
        become(argv);
    }
    close(fd[1]);
    bool told = false, killed = false;
    for (;;) {
        char bytes[4096];
        struct pollfd p = {.fd = fd[0], .events = POLLIN};
        double ran = seconds_since(begin) * 1000;
        if (!told && ran > ms)
            told = kill(pid, sig) == 0;
        if (!killed && ran > ms + PATIENCE)
            killed = kill(pid, SIGKILL) == 0;
        if (poll(&p, 1, 5) == 0)
            continue;
        ssize_t n = read(fd[0], bytes, sizeof bytes);
        if (n <= 0)
            break;
        if (out->n < KEEP)
            buf_add(out, bytes, (size_t)n);
    }
    close(fd[0]);
    waitpid(pid, &status, 0);
    buf_str(out, "");
    return killed ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void forget_output(struct user *u)
{
    buf_clear(&u->got);
    u->scanned = 0;
}

/* The text between "NAME": and the next comma or brace, as a number; -1: not there. */
static long json_number(const char *from, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *p = strstr(from, key);
    return p ? strtol(p + strlen(key), NULL, 10) : -1;
}

static void read_pools(struct user *u, const char *line)
{
    static const char *const name[N_POOLS] = {"\"pool\":\"full\"", "\"pool\":\"swa\"",
                                              "\"pool\":\"draft\""};
    u->pools_known = true;
    for (int i = 0; i < N_POOLS; i++) {
        const char *p = strstr(line, name[i]);
        if (!p) {
            u->pools_known = false;
            continue;
        }
        u->pool[i] = (struct pool){json_number(p, "total") - json_number(p, "reserved"),
                                   json_number(p, "used"),
                                   json_number(p, "protected"), json_number(p, "evictable"),
                                       json_number(p, "free")};
    }
}

/* A line of standard output under --json. */
static void read_line(struct user *u, const char *line)
{
    if (strncmp(line, "{\"session\":", 11) == 0 && strstr(line, "\"stop\":")) {
        fprintf(u->acked, "%s\n", line);
        fflush(u->acked);
        if (strstr(line, "\"stop\":\"device_failed\"") ||
            (strstr(line, "\"stop\":\"fault\"") && !u->fault_on))
            failed(u->name, "a turn stopped without a reason of ours: %.300s", line);
    } else if (strncmp(line, "{\"command\":\"breaks\"", 18) == 0) {
        u->marked = true;
    } else if (strncmp(line, "{\"command\":\"pool\",\"result\"", 26) == 0) {
        read_pools(u, line);
    } else if (strncmp(line, "{\"command\":\"check\",\"result\"", 27) == 0) {
        u->rules_hold = strstr(line, "\"ok\":true") != NULL;
        if (!u->rules_hold)
            note(u->name, "%.600s", line);
    } else if (strncmp(line, "{\"command\":", 11) == 0 && strstr(line, "\",\"error\":")) {
        atomic_fetch_add(&soak.refused, 1);
        bool log = strstr(line, "\"code\":4") != NULL,
            held = strstr(line, "is open in another aerie") != NULL;
        u->log_refused |= log;
        if (log && !held && !disk_was_full())
            failed(u->name, "the log failed without a reason of ours: %.300s", line);
    } else if (line[0] != '{') {
        failed(u->name, "a line of --json is no object: %.200s", line);
    }
}

static void read_lines(struct user *u)
{
    char *end;
    while (u->scanned < u->got.n &&
           (end = memchr(u->got.p + u->scanned, '\n', u->got.n - u->scanned)) != NULL) {
        *end = 0;
        read_line(u, u->got.p + u->scanned);
        u->scanned = (size_t)(end + 1 - u->got.p);
    }
    if (u->scanned == u->got.n)
        forget_output(u);
}

/* Reads the available output; false: there is none. */
static bool take_output(struct user *u)
{
    char bytes[65536];
    ssize_t n = read(u->out, bytes, sizeof bytes);
    if (n <= 0)
        return false;
    if (u->screen && u->got.n > KEEP)
        forget_output(u);
    buf_add(&u->got, bytes, (size_t)n);
    u->n_out += (size_t)n;
    if (!u->screen)
        read_lines(u);
    return true;
}

void user_pump(struct user *u, int ms)
{
    uint64_t begin = clock_ns();
    for (;;) {
        int left = ms - (int)(seconds_since(begin) * 1000);
        struct pollfd p = {.fd = u->out, .events = POLLIN};
        if (left <= 0 || poll(&p, 1, left) < 0)
            return;
        if ((p.revents & POLLIN) == 0 && p.revents) { /* the program has ended */
            struct timespec t = {.tv_nsec = 5000000};
            nanosleep(&t, NULL);
        }
        take_output(u);
    }
}

void user_send(struct user *u, const char *bytes, size_t n)
{
    u->unanswered = u->n_out;
    /* a terminal's buffer is limited: it accepts more only as the program reads */
    for (size_t at = 0; at < n;) {
        struct pollfd p = {.fd = u->in, .events = POLLOUT};
        if (poll(&p, 1, 1000) == 1 && (p.revents & POLLOUT) == 0)
            return; /* the program has ended, which user_settle() reports */
        size_t part = n - at < 1024 ? n - at : 1024;
        ssize_t w = write(u->in, bytes + at, part);
        if (w < 0 && errno != EAGAIN && errno != EINTR)
            return;
        at += w > 0 ? (size_t)w : 0;
        take_output(u);
    }
}

void user_line(struct user *u, const char *line)
{
    note(u->name, "%s", line);
    atomic_fetch_add(line[0] == '/' ? &soak.commands : &soak.messages, 1);
    user_send(u, line, strlen(line));
    user_send(u, u->screen ? "\r" : "\n", 1);
}

/* ---- rest ------------------------------------------------------------------------------------ */

/* Adds up the CPU time of the threads of a process and of its children; false: one of them is
 * running or waits for a disk. */
static bool all_sleep(pid_t pid, uint64_t *ran)
{
    char path[300], text[600];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    bool sleep = true;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/stat", (int)pid, e->d_name);
        FILE *f = fopen(path, "re");
        if (f && fgets(text, sizeof text, f) && strrchr(text, ')'))
            sleep &= strrchr(text, ')')[2] == 'S';
        if (f)
            fclose(f);
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid, e->d_name);
        f = fopen(path, "re");
        unsigned long long ns = 0;
        if (f && fscanf(f, "%llu", &ns) == 1)
            *ran += ns;
        if (f)
            fclose(f);
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)pid, e->d_name);
        f = fopen(path, "re");
        for (int child; f && fscanf(f, "%d", &child) == 1;)
            sleep &= all_sleep(child, ran);
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return sleep;
}

static bool gone(struct user *u)
{
    int status;
    if (u->pid > 0 && waitpid(u->pid, &status, WNOHANG) == u->pid) {
        failed(u->name, "ended in the middle of the run with status %d, signal %d; "
                        "its last output: %.400s", WEXITSTATUS(status),
               WTERMSIG(status), u->screen && u->got.n > 400 ? u->got.p + u->got.n - 400 : u->got.n
               ? u->got.p : "");
        atomic_store(&soak.over, true);
        u->pid = 0;
    }
    return u->pid == 0;
}

/* Waits until three checks in a row find no output and no CPU time used. After input, it first
 * waits up to `answer` milliseconds for some output, because the kernel may deliver the input late
 * on a machine under load. */
static bool rests_within(struct user *u, int ms, int answer)
{
    uint64_t begin = clock_ns(), ran = 0;
    for (int calm = 0; seconds_since(begin) * 1000 < ms;) {
        uint64_t now = 0;
        size_t had = u->got.n;
        user_pump(u, 8);
        if (gone(u))
            return true;
        bool answered = u->n_out != u->unanswered || seconds_since(begin) * 1000 > answer;
        bool sleep = all_sleep(u->pid, &now) && u->got.n == had && now == ran && answered;
        ran = now;
        calm = sleep ? calm + 1 : 0;
        if (calm == 3)
            return true;
    }
    return false;
}

static bool marked_within(struct user *u, int ms)
{
    uint64_t begin = clock_ns();
    u->marked = false;
    user_send(u, "/breaks\n", 8);
    while (!u->marked && seconds_since(begin) * 1000 < ms && !gone(u))
        user_pump(u, 2);
    return u->marked || u->pid == 0;
}

static void settle(struct user *u, int answer)
{
    if (gone(u))
        return;
    if (u->screen ? rests_within(u, PATIENCE, answer) : marked_within(u, PATIENCE))
        return;
    failed(u->name, "does not rest within %d s", PATIENCE / 1000);
    if (u->screen)
        user_send(u, "\x03", 1);
    else
        kill(u->pid, SIGINT);
    if (u->screen ? rests_within(u, PATIENCE, 0) : marked_within(u, PATIENCE))
        return;
    failed(u->name, "not even %d s after Ctrl-C; killed", PATIENCE / 1000);
    kill(u->pid, SIGABRT);
    atomic_store(&soak.over, true);
}

void user_settle(struct user *u)
{
    settle(u, 500);
}

void user_resize(struct user *u, int width, int height)
{
    struct winsize size = {.ws_row = (unsigned short)height, .ws_col = (unsigned short)width};
    u->width = width;
    u->height = height;
    ioctl(u->in, TIOCSWINSZ, &size);
    atomic_fetch_add(&soak.resizes, 1);
}

/* ---- the screen's text ----------------------------------------------------------------------- */

/* Bytes of an escape sequence at p. */
static size_t escape_length(const char *p, size_t n)
{
    size_t i = 2;
    if (n < 2)
        return n;
    if (p[1] == '[') {
        while (i < n && (unsigned char)p[i] < 0x40)
            i++;
        return i + 1;
    }
    if (p[1] == ']' || p[1] == 'P' || p[1] == 'k') {
        while (i < n && p[i] != 7 && !(p[i] == '\\' && p[i - 1] == 27))
            i++;
        return i + 1;
    }
    return strchr("()#%", p[1]) ? 3 : 2;
}

const char *user_screen(struct user *u)
{
    static _Thread_local struct buf text;
    forget_output(u);
    user_send(u, "\x0c", 1);
    settle(u, 10000);
    buf_clear(&text);
    bool blank = false;
    for (size_t i = 0; i < u->got.n;) {
        char c = u->got.p[i];
        if (c == 27 || (unsigned char)c <= ' ') {
            i += c == 27 ? escape_length(u->got.p + i, u->got.n - i) : 1;
            blank |= c != 27 || (i > 0 && i <= u->got.n && u->got.p[i - 1] != 'm');
            continue;
        }
        if (blank)
            buf_char(&text, ' ');
        blank = false;
        buf_char(&text, c);
        i++;
    }
    buf_str(&text, "");
    return text.p ? text.p : "";
}

/* ---- ledgers --------------------------------------------------------------------------------- */

static void inspect_screen(struct user *u)
{
    static const char *const name[N_POOLS] = {"full", "swa", "draft"};
    user_line(u, "/pool");
    user_settle(u);
    const char *text = user_screen(u);
    u->pools_known = true;
    for (int i = 0; i < N_POOLS; i++) {
        struct pool p = {0};
        bool found = false;
        for (const char *at = text; !found && (at = strstr(at, name[i])) != NULL; at++) {
            char form[64];
            snprintf(form, sizeof form, "%s %%ld + %%ld + %%ld + %%ld = %%ld = ", name[i]);
            found = sscanf(at, form, &p.free, &p.used, &p.evictable, &p.shared, &p.total) == 5;
        }
        u->pools_known &= found;
        u->pool[i] = p;
    }
    if (!u->pools_known)
        note(u->name, "no ledger on the screen: %s", text);
    user_line(u, "/check");
    user_settle(u);
    text = user_screen(u);
    u->rules_hold = strstr(text, "keep every rule") != NULL;
    if (!u->rules_hold)
        note(u->name, "the checker's verdict: %s", text);
}

void user_inspect(struct user *u)
{
    u->pools_known = u->rules_hold = false;
    if (u->screen) {
        inspect_screen(u);
    } else {
        user_line(u, "/pool");
        user_line(u, "/check");
        user_settle(u);
    }
    if (u->pid == 0)
        return;
    if (!u->pools_known)
        failed(u->name, "does not tell its ledgers");
    if (!u->rules_hold)
        failed(u->name, "the checker finds a broken rule, or says nothing");
    for (int i = 0; u->pools_known && i < N_POOLS; i++) {
        struct pool *p = &u->pool[i];
        if (p->free + p->used + p->shared + p->evictable != p->total)
            failed(u->name, "pool %d: %ld free + %ld used + %ld shared + %ld evictable is not %ld",
                   i, p->free, p->used, p->shared, p->evictable, p->total);
    }
}
