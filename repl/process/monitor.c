/* monitor.c - see monitor.h. */
#include "repl/process/monitor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "repl/process/interrupt.h"

enum op {
    OP_CREATE,
    OP_KEEP,
    OP_DISCARD,
    OP_EDIT,
    OP_HANG_UP,
    OP_KILL_EDITOR,
    OP_QUERY,
    OP_END,
    OP_KILL,
    OP_MESSAGE
};

/* A request and an answer are one datagram each; a request may carry two descriptors, an answer
 * one. Only OP_CREATE reads the path. OP_EDIT is answered when the editor has ended; OP_HANG_UP and
 * OP_KILL_EDITOR have no answer. */
struct monitor_ask {
    int32_t op;
    char path[PATH_MAX];
};
struct monitor_answer {
    int32_t value; /* wait status, 0 */
    int32_t error; /* errno, or 0 */
};

/* ---- datagrams with descriptors -------------------------------------------------------------- */

union control {
    char bytes[CMSG_SPACE(2 * sizeof(int))];
    struct cmsghdr align;
};

static bool send_with(int to, const void *p, size_t n, const int *fd, int n_fd)
{
    union control c = {0};
    struct iovec part = {(void *)(uintptr_t)p, n};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (n_fd) {
        m.msg_control = c.bytes;
        m.msg_controllen = CMSG_SPACE((size_t)n_fd * sizeof(int));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        CHECK(h);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN((size_t)n_fd * sizeof(int));
        memcpy(CMSG_DATA(h), fd, (size_t)n_fd * sizeof(int));
    }
    ssize_t rc;
    do
        rc = sendmsg(to, &m, MSG_NOSIGNAL);
    while (rc < 0 && errno == EINTR);
    return rc == (ssize_t)n;
}

/* Receives exactly n bytes; fd[0..1] receive descriptors or -1. False: the other side has ended. */
static bool receive_with(int from, void *p, size_t n, int fd[2])
{
    union control c = {0};
    struct iovec part = {p, n};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = c.bytes,
                       .msg_controllen = sizeof c.bytes};
    ssize_t rc;
    do
        rc = recvmsg(from, &m, MSG_CMSG_CLOEXEC);
    while (rc < 0 && errno == EINTR);
    fd[0] = fd[1] = -1;
    struct cmsghdr *h = rc > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(h), h->cmsg_len - CMSG_LEN(0));
    return rc == (ssize_t)n;
}

/* ---- the monitor ----------------------------------------------------------------------------- */

/* A file that the monitor created: its folder, and its name there. A link that takes the name's
 * place is another file. */
struct made {
    int folder; /* -1: none was created */
    char *name;
    dev_t dev;
    ino_t ino;
};

static struct {
    int link;
    int (*query)(const char *log);
    char *log;
    pid_t child; /* the query's process; 0: none */
    pid_t editor; /* the editor's process; 0: none */
    int end_editor; /* the signal to be sent to the editor and to the programs that it started; 0:
                       none */
    struct made file; /* of OP_CREATE, until it is kept or removed */
    char *path;       /* its path in the request */
    struct made message;
    char *message_folder;
} mon = {.file.folder = -1, .message.folder = -1};

const char *monitor_editor(void)
{
    const char *visual = getenv("VISUAL"), *editor = getenv("EDITOR");
    return visual && *visual ? visual : editor && *editor ? editor : "vi";
}

/* ---- files that the monitor makes ------------------------------------------------------------ */

/* Whether any component of the path begins with a dot, except "." and "..". */
static bool is_hidden(const char *path)
{
    for (const char *p = path; *p; p += strspn(p, "/")) {
        size_t n = strcspn(p, "/");
        if (p[0] == '.' && !(n == 1 || (n == 2 && p[1] == '.')))
            return true;
        p += n;
    }
    return false;
}

static bool ends_in(const char *name, const char *tail)
{
    size_t n = strlen(name), k = strlen(tail);
    return n > k && strcmp(name + n - k, tail) == 0;
}

/* A name in which no program looks for its settings or for something to run. */
static bool is_export(const char *name)
{
    return ends_in(name, ".md") || ends_in(name, ".jsonl") || ends_in(name, ".svg") ||
           ends_in(name, ".png") || ends_in(name, ".screen.txt");
}

/* Whether files may be created in an open folder: its path as the kernel knows it decides, not the
 * one in the request. False and errno. */
static bool may_create_in(int folder)
{
    static const char *const refused[] = {"/proc", "/sys", "/dev"};
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return false;
    path[length] = '\0';
    errno = EPERM;
    bool ok =
        path[0] == '/' && !is_hidden(path); /* "(unreachable)/...": of another mount namespace */
    for (size_t i = 0; ok && i < LEN(refused); i++) {
        size_t n = strlen(refused[i]);
        ok = strncmp(path, refused[i], n) != 0 || (path[n] != '/' && path[n] != '\0');
    }
    return ok;
}

/* Opens a folder in another one, and closes that. A link is none, whatever it names. -1 and errno:
 * ELOOP for a link. */
static int step_into(int folder, const char *name)
{
    struct stat st;
    int fd = openat(folder, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), why = errno;
    if (fd < 0 && fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
        why = ELOOP;
    close(folder);
    errno = why;
    return fd;
}

/* Opens the folder of a path, component by component, so that no link is followed on any kernel.
 * *name: the last component. -1 and errno. */
static int open_folder_of(const char *path, const char **name)
{
    int folder = file_open(path[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY, 0);
    const char *p = path + strspn(path, "/");
    for (const char *slash; folder >= 0 && (slash = strchr(p, '/'));
         p = slash + strspn(slash, "/")) {
        FREED(free_at) char *part = xasprintf("%.*s", (int)(slash - p), p);
        folder = step_into(folder, part);
    }
    *name = p;
    return folder;
}

static bool is_there(const struct made *m)
{
    struct stat st;
    return m->folder >= 0 && fstatat(m->folder, m->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           st.st_dev == m->dev && st.st_ino == m->ino;
}

static void forget(struct made *m)
{
    if (m->folder >= 0)
        close(m->folder);
    free(m->name);
    *m = (struct made){.folder = -1};
}

/* Creates a file in an open folder, which m takes; returns a descriptor, or -1 and errno: m is
 * none. */
static int make(struct made *m, int folder, const char *name)
{
    struct stat st;
    int fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    *m = (struct made){.folder = folder, .name = xstrdup(name)};
    if (fd >= 0 && fstat(fd, &st) == 0) {
        m->dev = st.st_dev;
        m->ino = st.st_ino;
        return fd;
    }
    int why = errno;
    forget(m);
    errno = why;
    return -1;
}

/* Removes the file, unless another one has its name now. False and errno: nothing changed. */
static bool remove_made(void)
{
    struct made *m = &mon.file;
    errno = EPERM;
    if (!is_there(m) || unlinkat(m->folder, m->name, 0) != 0)
        return false;
    forget(m);
    return true;
}

static int create(const char *path, struct monitor_answer *a)
{
    const char *name = "";
    struct made new = {.folder = -1};
    int fd = -1, folder = -1;
    if (is_hidden(path))
        errno = EPERM;
    else
        folder = open_folder_of(path, &name);
    if (folder >= 0 && may_create_in(folder) && (errno = EPERM, is_export(name))) {
        fd = make(&new, folder, name);
        folder = -1;
    }
    a->error = fd < 0 ? errno : 0;
    if (folder >= 0)
        close(folder);
    if (fd < 0)
        return -1;
    remove_made(); /* one that was not kept */
    forget(&mon.file);
    free(mon.path);
    mon.file = new;
    mon.path = xstrdup(path);
    return fd;
}

static void keep_or_remove(const char *path, bool keep, struct monitor_answer *a)
{
    if (mon.file.folder < 0 || strcmp(path, mon.path) != 0)
        a->error = EPERM;
    else if (keep)
        forget(&mon.file);
    else if (!remove_made())
        a->error = errno;
}

/* Removes the message, and what the editor left beside it. */
static void remove_message(void)
{
    int fd = mon.message.folder >= 0
                 ? openat(mon.message.folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                 : -1;
    FREED(folder_close) DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *f; d && (f = readdir(d));)
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0)
            unlinkat(fd, f->d_name, 0);
    if (mon.message_folder)
        rmdir(mon.message_folder);
    DROP(mon.message_folder);
    forget(&mon.message);
}

/* A folder that only the monitor's user may enter; $TMPDIR and /tmp are no folders in which the
 * isolated process may write, unless the user keeps the log there. */
static int make_message(struct monitor_answer *a)
{
    const char *tmp = getenv("TMPDIR");
    int fd = -1;
    if (mon.editor) {
        a->error = EBUSY;
        return -1;
    }
    remove_message();
    char *path = xasprintf("%s/aerie-XXXXXX", tmp && tmp[0] == '/' ? tmp : "/tmp");
    if (mkdtemp(path)) {
        mon.message_folder = path;
        int folder = file_open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0);
        fd = folder < 0 ? -1 : make(&mon.message, folder, "message.md");
    }
    a->error = fd < 0 ? errno : 0;
    if (!mon.message_folder)
        free(path);
    else if (fd < 0)
        remove_message();
    return fd;
}

/* ---- the editor, and queries ----------------------------------------------------------------- */

/* Resets signal handlers and the signal mask to those that a program expects at its start. */
static void default_signals(void)
{
    sigset_t none;
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static int wait_for(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 127 << 8;
    return status;
}

/* Starts "EDITOR FILE" through the shell, because $EDITOR may hold options. FILE begins with a
 * slash, so that it is none. */
static bool edit(struct monitor_answer *a)
{
    if (mon.editor || !is_there(&mon.message)) {
        a->error = EINVAL;
        return false;
    }
    char *script = xasprintf("%s \"$1\"", monitor_editor()),
         *path = xasprintf("%s/%s", mon.message_folder, mon.message.name);
    CHECK(path[0] == '/');
    pid_t pid = fork();
    if (pid == 0) {
        default_signals();
        execl("/bin/sh", "sh", "-c", script, "sh", path, (char *)NULL);
        _exit(127);
    }
    FREE(script, path);
    if (pid < 0) {
        a->error = errno;
        return false;
    }
    mon.editor = pid;
    mon.end_editor = 0;
    return true;
}

/* Sends a signal to all children except the query's process. Programs that the editor's shell has
 * started become children of the monitor when the shell ends, because the monitor is a subreaper.
 * Returns the number of children. */
static int signal_editor(int sig)
{
    char path[64];
    int n = 0, pid;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "re");
    for (; f && fscanf(f, "%d", &pid) == 1; n++) /* NOLINT(cert-err34-c): the kernel writes process
                                                    ids */
        if (pid == mon.child)
            n--;
        else
            kill(pid, sig);
    if (f)
        fclose(f);
    else if (mon.editor)
        kill(mon.editor, sig);
    return n;
}

/* Reaps children that have ended; answers OP_EDIT when the editor has. False: the answer could not
 * be sent. */
static bool watch_editor(void)
{
    static struct monitor_answer a; /* of the editor */
    static bool ended;
    int status;
    for (pid_t pid; mon.editor && (pid = waitpid(ended ? -1 : mon.editor, &status, WNOHANG)) > 0;) {
        if (pid == mon.editor) {
            a = (struct monitor_answer){.value = status};
            ended = true;
        }
    }
    if (!mon.editor || (mon.end_editor && signal_editor(mon.end_editor) > 0) || !ended)
        return true;
    mon.editor = 0;
    ended = false;
    /* editors replace the file by a new one */
    int text = openat(mon.message.folder, mon.message.name,
                      O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    bool sent = send_with(mon.link, &a, sizeof a, &text, text >= 0);
    if (text >= 0)
        close(text);
    remove_message();
    return sent;
}

static void query(const int fd[2], struct monitor_answer *a)
{
    if (mon.child || fd[0] < 0 || fd[1] < 0) {
        a->error = EINVAL;
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        default_signals();
        if (dup2(fd[0], STDIN_FILENO) < 0 || dup2(fd[1], STDOUT_FILENO) < 0)
            _exit(127);
        close(fd[0]);
        close(fd[1]);
        close(mon.link);
        prctl(PR_SET_NAME, "aerie-query");
        exit(mon.query(mon.log));
    }
    if (pid < 0)
        a->error = errno;
    else
        mon.child = pid;
}

static void end_query(bool stop, struct monitor_answer *a)
{
    if (!mon.child) {
        a->error = ECHILD;
        return;
    }
    if (stop)
        kill(mon.child, SIGKILL);
    a->value = wait_for(mon.child);
    mon.child = 0;
}

/* The handler's only purpose is to interrupt ppoll(). */
static void on_child(int) {}

/* Waits for a request, and meanwhile for the editor's end. False: the program has ended. */
static bool next_request(struct monitor_ask *ask, int fd[2], const sigset_t *awake)
{
    struct pollfd link = {.fd = mon.link, .events = POLLIN};
    while (watch_editor())
        if (ppoll(&link, 1, NULL, awake) > 0)
            return receive_with(mon.link, ask, sizeof *ask, fd);
    return false;
}

static _Noreturn void serve(void)
{
    prctl(PR_SET_NAME, "aerie-monitor");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    static struct monitor_ask ask;
    int fd[2];
    sigset_t child, awake;
    /* the terminal's signals are meant for the program, with which the monitor ends */
    for (int s = 1; s < NSIG; s++)
        signal(s, s == SIGCHLD ? on_child : SIG_IGN);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &awake);
    sigdelset(&awake, SIGCHLD);
    while (next_request(&ask, fd, &awake)) {
        struct monitor_answer a = {0};
        int made = -1;
        bool answered = true;
        ask.path[sizeof ask.path - 1] = '\0';
        switch (ask.op) {
        case OP_CREATE: made = create(ask.path, &a); break;
        case OP_KEEP:
        case OP_DISCARD: keep_or_remove(ask.path, ask.op == OP_KEEP, &a); break;
        case OP_MESSAGE: made = make_message(&a); break;
        case OP_EDIT: answered = !edit(&a); break;
        case OP_HANG_UP:
        case OP_KILL_EDITOR:
            mon.end_editor = ask.op == OP_HANG_UP ? SIGHUP : SIGKILL;
            answered = false;
            break;
        case OP_QUERY: query(fd, &a); break;
        case OP_END: end_query(false, &a); break;
        case OP_KILL: end_query(true, &a); break;
        default: a.error = EINVAL;
        }
        for (int i = 0; i < 2; i++)
            if (fd[i] >= 0)
                close(fd[i]);
        bool sent = !answered || send_with(mon.link, &a, sizeof a, &made, made >= 0);
        if (made >= 0)
            close(made);
        if (!sent)
            break;
    }
    remove_made();
    if (mon.child)
        kill(mon.child, SIGKILL);
    if (mon.editor)
        signal_editor(SIGHUP);
    else
        remove_message();
    _exit(0);
}

/* ---- the program ----------------------------------------------------------------------------- */

static int monitor_link = -1;

bool monitor_start(int (*query_main)(const char *log), const char *log, struct err *e)
{
    int end[2];
    CHECK(monitor_link < 0);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, end) != 0)
        return err_set(e, ERR_USAGE, "cannot connect the monitor process: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        close(end[0]);
        mon.link = end[1];
        mon.query = query_main;
        mon.log = log ? xstrdup(log) : NULL;
        serve();
    }
    close(end[1]);
    if (pid < 0) {
        close(end[0]);
        return err_set(e, ERR_USAGE, "cannot start the monitor process: %s", strerror(errno));
    }
    monitor_link = end[0];
    return true;
}

/* False and errno. */
static bool send_request(enum op op, const char *path, const int *fd, int n_fd)
{
    static struct monitor_ask ask;
    memset(&ask, 0, sizeof ask);
    ask.op = (int32_t)op;
    CHECK(monitor_link >= 0);
    if (path && strlen(path) >= sizeof ask.path) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (path)
        memcpy(ask.path, path, strlen(path));
    if (!send_with(monitor_link, &ask, sizeof ask, fd, n_fd)) {
        errno = ESRCH; /* the monitor was killed */
        return false;
    }
    return true;
}

/* Waits for an answer. *made receives the descriptor that comes with it. False and errno. */
static bool receive_answer(struct monitor_answer *a, int *made)
{
    int got[2];
    if (!receive_with(monitor_link, a, sizeof *a, got)) {
        errno = ESRCH;
        return false;
    }
    if (made)
        *made = got[0];
    if (a->error)
        errno = a->error;
    return a->error == 0;
}

static bool request(enum op op, const char *path, const int *fd, int n_fd, struct monitor_answer *a,
                    int *made)
{
    return send_request(op, path, fd, n_fd) && receive_answer(a, made);
}

int monitor_create(const char *path)
{
    struct monitor_answer a;
    int fd = -1;
    return request(OP_CREATE, path, NULL, 0, &a, &fd) ? fd : -1;
}

bool monitor_settle(const char *path, bool keep)
{
    struct monitor_answer a;
    return request(keep ? OP_KEEP : OP_DISCARD, path, NULL, 0, &a, NULL);
}

int monitor_message(void)
{
    struct monitor_answer a;
    int fd = -1;
    return request(OP_MESSAGE, NULL, NULL, 0, &a, &fd) ? fd : -1;
}

int monitor_edit(int *text)
{
    enum { PATIENCE_MS = 500, SLICE_MS = 50 };
    struct monitor_answer a;
    uint64_t asked_ns = 0; /* when the editor was asked to end */
    bool killed = false;
    *text = -1;
    if (!send_request(OP_EDIT, NULL, NULL, 0))
        return -1;
    struct pollfd p[2] = {{.fd = monitor_link, .events = POLLIN},
                          {.fd = interrupt_fd(), .events = POLLIN}};
    for (;;) {
        /* a signal that does not end the program, such as a resize, stays in the pipe: then poll in
         * slices */
        bool slices = asked_ns || (p[1].revents && !interrupt_waits());
        poll(p, slices ? 1 : 2, slices ? SLICE_MS : -1);
        if (p[0].revents)
            return receive_answer(&a, text) ? a.value : -1;
        if (interrupt_waits() && !asked_ns && send_request(OP_HANG_UP, NULL, NULL, 0))
            asked_ns = clock_ns();
        if (asked_ns && !killed && clock_ns() - asked_ns > PATIENCE_MS * UINT64_C(1000000))
            killed = send_request(OP_KILL_EDITOR, NULL, NULL, 0);
    }
}

bool monitor_query(int in, int out)
{
    struct monitor_answer a;
    return request(OP_QUERY, NULL, (int[]){in, out}, 2, &a, NULL);
}

int monitor_query_end(bool kill_it)
{
    struct monitor_answer a;
    return request(kill_it ? OP_KILL : OP_END, NULL, NULL, 0, &a, NULL) ? a.value : 127 << 8;
}
