/* signals_kit.h - a child on a terminal or on pipes, brought into a state and sent signals: for
 * tests/unit/test_signal_states.c, whose header says what is tested.
 *
 * A worker is the leader of a session of its own, as a shell is: the child runs in the foreground
 * of its terminal, so that SIGTSTP stops it (the kernel drops that signal for a session's leader).
 */
#pragma once

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "kernels/base.h"

enum { ROWS = 30, COLUMNS = 100 };

/* A wait that lasts so many milliseconds is a failure: a third of TEST_WAIT (tests/run.sh), else 20
 * s. */
static inline int hang_ms(void)
{
    const char *wait = getenv("TEST_WAIT");
    return wait ? (int)strtol(wait, NULL, 10) * 1000 / 3 : 20000;
}

struct child {
    pid_t pid;
    int tty, slave;      /* both ends of its terminal; -1: it has none */
    int in, out, err;    /* this side of its pipes; -1 */
    bool deaf;           /* this side does not read the child's output */
    bool gone;           /* it has ended, with `status` */
    bool stopped;
    int status;
    struct rusage used; /* once it is gone */
    struct termios before;
    struct buf text;     /* all output so far */
};

static inline double ms_since(uint64_t t0)
{
    return (double)(clock_ns() - t0) * 1e-6;
}

/* ---- files ----------------------------------------------------------------------------------- */

static inline void copy_file(const char *from, const char *to)
{
    struct buf b;
    struct err e;
    if (!buf_read_file(&b, from, 1 << 30, &e))
        die("%s", e.msg);
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write_fully(fd, b.p, b.n) && close(fd) == 0);
    buf_free(&b);
}

static inline void remove_tree(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));) {
        char *name = xasprintf("%s/%s", path, f->d_name);
        if (strcmp(f->d_name, ".") && strcmp(f->d_name, "..") && unlink(name))
            remove_tree(name);
        free(name);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

/* The first column of the first row; -1: the database cannot be read (yet). */
static inline long db_number(const char *path, const char *query)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *st = NULL;
    long n = -1;
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(db, query, -1, &st, NULL) == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW)
        n = (long)sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    sqlite3_close(db);
    return n;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* The id of a process named `name` (as in ps) in the child's process group; 0: there is none. */
static inline pid_t in_group(pid_t group, const char *name)
{
    DIR *d = opendir("/proc");
    pid_t found = 0;
    for (struct dirent *f; d && !found && (f = readdir(d));) {
        char path[64], line[512] = "", comm[64], state;
        int pid, parent, pgrp;
        if (f->d_name[0] < '1' || f->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/stat", f->d_name);
        FILE *in = fopen(path, "re");
        if (in && fgets(line, sizeof line, in) &&
            sscanf(line, "%d (%63[^)]) %c %d %d", &pid, comm, &state, &parent, &pgrp) == 5 &&
            pgrp == group && state != 'Z' && strcmp(comm, name) == 0)
            found = pid;
        if (in)
            fclose(in);
    }
    if (d)
        closedir(d);
    return found;
}

/* Whether the child has a file open, or mapped, whose path ends so. */
static inline bool has_open(pid_t pid, const char *end)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *in = fopen(path, "re");
    bool found = false;
    while (in && !found && fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = '\0';
        size_t n = strlen(line), m = strlen(end);
        found = n >= m && strcmp(line + n - m, end) == 0;
    }
    if (in)
        fclose(in);
    return found;
}

static inline void shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* In the child: makes the terminal or the pipes its standard streams. */
static inline _Noreturn void become(struct child *c, int in, int out, int err,
                                    const char *const *argv)
{
    sigset_t none;
    setpgid(0, 0);
    if (c->slave >= 0) {
        tcsetpgrp(c->slave, getpid());
        in = out = err = c->slave;
    }
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(126);
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(argv[0], (char **)(uintptr_t)argv);
    _exit(127);
}

/* Starts argv. tty: on a new terminal, the controlling one of this process; else with pipes. */
static inline void start_child(struct child *c, const char *const *argv, bool tty)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    *c = (struct child){.tty = -1, .slave = -1, .in = -1, .out = -1, .err = -1};
    if (tty) {
        struct winsize size = {.ws_row = ROWS, .ws_col = COLUMNS};
        char name[64];
        c->tty = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        CHECK(c->tty >= 0 && grantpt(c->tty) == 0 && unlockpt(c->tty) == 0 &&
              ptsname_r(c->tty, name, sizeof name) == 0);
        c->slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
        CHECK(c->slave >= 0 && ioctl(c->tty, TIOCSWINSZ, &size) == 0 &&
              ioctl(c->slave, TIOCSCTTY, 0) == 0);
        CHECK(tcgetattr(c->slave, &c->before) == 0);
    } else {
        CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0 &&
              pipe2(err, O_CLOEXEC) == 0);
    }
    c->pid = fork();
    CHECK(c->pid >= 0);
    if (c->pid == 0)
        become(c, in[0], out[1], err[1], argv);
    setpgid(c->pid, c->pid);
    if (tty)
        tcsetpgrp(c->slave, c->pid);
    shut(&in[0]);
    shut(&out[1]);
    shut(&err[1]);
    c->in = tty ? dup(c->tty) : in[1];
    c->out = out[0];
    c->err = err[0];
}

/* The processor time of all its threads so far. */
static inline double used_ms(const struct child *c)
{
    if (c->gone)
        return (double)(c->used.ru_utime.tv_sec + c->used.ru_stime.tv_sec) * 1e3 +
               (double)(c->used.ru_utime.tv_usec + c->used.ru_stime.tv_usec) * 1e-3;
    char path[64], line[1024] = "";
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)c->pid);
    FILE *f = fopen(path, "re");
    const char *rest = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (rest)
        sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    if (f)
        fclose(f);
    return (double)(user + system) * 1e3 / (double)sysconf(_SC_CLK_TCK);
}

static inline void look_at_child(struct child *c)
{
    int status;
    if (!c->gone && wait4(c->pid, &status, WNOHANG | WUNTRACED | WCONTINUED, &c->used) == c->pid) {
        c->stopped = WIFSTOPPED(status);
        c->gone = WIFEXITED(status) || WIFSIGNALED(status);
        c->status = status;
    }
}

/* Reads the child's output for up to 2 ms, and notes whether the child has ended or was stopped. */
static inline void pump(struct child *c)
{
    static char part[65536];
    struct pollfd p[3] = {{.fd = c->tty, .events = POLLIN}, {.fd = c->out, .events = POLLIN},
                          {.fd = c->err, .events = POLLIN}};
    if (c->deaf) {
        poll(NULL, 0, 2);
    } else if (poll(p, 3, 2) > 0) {
        for (int i = 0; i < 3; i++) {
            ssize_t n = p[i].revents ? read(p[i].fd, part, sizeof part) : 0;
            if (n > 0)
                buf_add(&c->text, part, (size_t)n);
            else if (p[i].revents && n == 0)
                shut(i == 1 ? &c->out : &c->err);
        }
    }
    look_at_child(c);
}

/* The output from byte `from` on. */
static inline bool printed(const struct child *c, size_t from, const char *text)
{
    return c->text.n > from && memmem(c->text.p + from, c->text.n - from, text, strlen(text));
}

/* Waits until a condition holds; false: it did not within hang_ms(). */
#define AWAIT(c, condition)                                                                        \
    ({                                                                                             \
        uint64_t t0_ = clock_ns();                                                                 \
        bool held_;                                                                                \
        while (!(held_ = (condition)) && ms_since(t0_) < hang_ms())                                \
            pump(c);                                                                               \
        held_;                                                                                     \
    })

static inline void type_keys(struct child *c, const char *keys)
{
    CHECK(write_fully(c->in, keys, strlen(keys)));
}

/* No process of the child's group may be left: no monitor, no query, no editor. */
static inline bool alone(const struct child *c)
{
    return kill(-c->pid, 0) != 0 && errno == ESRCH;
}

static inline void end_child(struct child *c)
{
    kill(-c->pid, SIGKILL);
    if (!c->gone)
        waitpid(c->pid, NULL, 0);
    if (c->slave >= 0)
        ioctl(c->slave, TIOCNOTTY); /* the worker's next child has another terminal */
    shut(&c->in);
    shut(&c->out);
    shut(&c->err);
    shut(&c->tty);
    shut(&c->slave);
    buf_free(&c->text);
}

/* ---- a server that keeps its clients waiting ------------------------------------------------- */

/* Reads to the end of a request's head, then answers a list of models; POST, and everything if
 * `dumb`, gets no answer. */
static inline void serve_one(int fd, int dumb)
{
    static const char models[] =
        "{\"object\":\"list\",\"data\":[{\"id\":\"slow\",\"object\":\"model\"}]}";
    char head[8192];
    size_t n = 0;
    for (ssize_t k; n + 1 < sizeof head && (k = read(fd, head + n, sizeof head - 1 - n)) > 0;) {
        head[n += (size_t)k] = '\0';
        if (strstr(head, "\r\n\r\n"))
            break;
    }
    bool list = strncmp(head, "GET /v1/models ", 15) == 0;
    while (dumb || strncmp(head, "POST ", 5) == 0)
        if (read(fd, head, sizeof head) <= 0)
            _exit(0);
    dprintf(fd, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: "
                "%zu\r\nConnection: close\r\n\r\n%s",
            list ? "200 OK" : "404 Not Found", list ? sizeof models - 1 : 0, list ? models : "");
    close(fd);
    _exit(0);
}

/* Starts a server whose connections are answered by serve(fd, arg), each in a process of its own;
 * *port receives its port. It ends with this process, or when killed. */
static inline pid_t start_server_with(void (*serve)(int fd, int arg), int arg, int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, n) == 0 && listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &n) == 0);
    *port = ntohs(at.sin_port);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGCHLD, SIG_IGN);
        for (int client; (client = accept(fd, NULL, NULL)) >= 0; close(client))
            if (fork() == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                serve(client, arg);
                _exit(0);
            }
        _exit(0);
    }
    close(fd);
    return pid;
}

static inline pid_t start_server(bool dumb, int *port)
{
    return start_server_with(serve_one, dumb, port);
}

/* ---- a slow model: mostly zeros, with one token that always follows itself ------------------- */

enum { WIDE = 16384, VOCABULARY = 4096, HIDDEN = 256, HEAD = 64, LAYERS = 8,
       MORE = 545 /* " more" */ };

static inline void write_new(const char *dir, const char *name, const struct buf *b)
{
    char *path = xasprintf("%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write_fully(fd, b->p, b->n) && close(fd) == 0);
    free(path);
}

/* Appends the part of text before `from`, which must occur in it, then `to`; returns the part after
 * `from`. */
static inline const char *put_with(struct buf *b, const char *text, const char *from,
                                   const char *to)
{
    const char *at = strstr(text, from);
    CHECK(at);
    buf_add(b, text, (size_t)(at - text));
    buf_str(b, to);
    return at + strlen(from);
}

/* Adds a tensor to the header of a checkpoint; returns where the next one begins. */
static inline size_t put_tensor(struct buf *head, size_t at, int rows, int columns,
                                const char *name)
{
    size_t end = at + 2 * (size_t)rows * (size_t)(columns ? columns : 1);
    buf_printf(head, "%s\"model.%s.weight\":{\"dtype\":\"BF16\",\"shape\":[%d", at ? "," : "", name,
               rows);
    if (columns)
        buf_printf(head, ",%d", columns);
    buf_printf(head, "],\"data_offsets\":[%zu,%zu]}", at, end);
    return end;
}

static inline size_t put_layer(struct buf *head, size_t at, int layer)
{
    static const struct {
        const char *name;
        int rows, columns;
    } part[] = {
        {"input_layernorm", HIDDEN, 0},
        {"post_attention_layernorm", HIDDEN, 0},
        {"post_feedforward_layernorm", HIDDEN, 0},
        {"pre_feedforward_layernorm", HIDDEN, 0},
        {"mlp.down_proj", HIDDEN, WIDE},
        {"mlp.gate_proj", WIDE, HIDDEN},
        {"mlp.up_proj", WIDE, HIDDEN},
        {"self_attn.k_norm", HEAD, 0},
        {"self_attn.q_norm", HEAD, 0},
        {"self_attn.k_proj", 2 * HEAD, HIDDEN},
        {"self_attn.v_proj", 2 * HEAD, HIDDEN},
        {"self_attn.q_proj", 4 * HEAD, HIDDEN},
        {"self_attn.o_proj", HIDDEN, 4 * HEAD},
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        char *name = xasprintf("layers.%d.%s", layer, part[i].name);
        at = put_tensor(head, at, part[i].rows, part[i].columns, name);
        free(name);
    }
    return at;
}

/* A file of 200 MB, most of it a hole. */
static inline void make_zeros(const char *dir)
{
    struct buf head = {0};
    uint16_t row[2][HIDDEN];
    buf_str(&head, "{");
    size_t bytes = put_tensor(&head, 0, VOCABULARY, HIDDEN, "embed_tokens"); /* at 0: see below */
    for (int l = 0; l < LAYERS; l++)
        bytes = put_layer(&head, bytes, l);
    bytes = put_tensor(&head, bytes, HIDDEN, 0, "norm");
    buf_str(&head, "}");
    while (head.n % 8)
        buf_char(&head, ' ');
    for (int i = 0; i < HIDDEN; i++) {
        row[0][i] = 0x3F80; /* 1: of token 0, which is chosen where all logits are 0 */
        row[1][i] = 0x4000; /* 2: of " more", chosen from then on */
    }
    char *path = xasprintf("%s/model.safetensors", dir);
    const uint64_t n = head.n;
    const off_t base = (off_t)(sizeof n + head.n);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write_fully(fd, &n, sizeof n) && write_fully(fd, head.p, head.n));
    CHECK(ftruncate(fd, base + (off_t)bytes) == 0);
    CHECK(pwrite(fd, row[0], sizeof row[0], base) == sizeof row[0]);
    CHECK(pwrite(fd, row[1], sizeof row[1], base + MORE * (off_t)sizeof row[1]) == sizeof row[1]);
    CHECK(close(fd) == 0);
    free(path);
    buf_free(&head);
}

/* The bundled model with an MLP of WIDE: a decode step takes some 15 ms, a reply goes on to the end
 * of the context. */
static inline void make_slow_model(const char *dir)
{
    static const char from[] = "models/nestling/target";
    static const char *const same[] = {"tokenizer.json", "tokenizer_config.json",
                                       "special_tokens_map.json", "generation_config.json"};
    struct buf config, wide = {0};
    struct err e;
    char *root = realpath(from, NULL), *path = xasprintf("%s/config.json", from), number[64];
    CHECK(root && mkdir(dir, 0700) == 0 && buf_read_file(&config, path, 1 << 20, &e));
    for (int i = 0; i < 4; i++) {
        char *old = xasprintf("%s/%s", root, same[i]), *new = xasprintf("%s/%s", dir, same[i]);
        CHECK(symlink(old, new) == 0);
        free(old);
        free(new);
    }
    snprintf(number, sizeof number, "\"intermediate_size\": %d,", WIDE);
    const char *rest = put_with(&wide, config.p, "\"intermediate_size\": 896,", number);
    buf_str(&wide, put_with(&wide, rest, "\"max_position_embeddings\": 4096,",
                            "\"max_position_embeddings\": 32768,"));
    write_new(dir, "config.json", &wide);
    make_zeros(dir);
    buf_free(&config);
    buf_free(&wide);
    free(path);
    free(root);
}
