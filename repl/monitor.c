/* monitor.c - see monitor.h. */
#include "repl/monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum op { OP_CREATE, OP_DISCARD, OP_EDIT, OP_QUERY, OP_END, OP_KILL };

/* Both are one datagram; a request may carry two descriptors, an answer one. */
struct ask {
    int32_t op;
    char path[PATH_MAX];
};
struct answer {
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

static struct {
    int link;
    int (*query)(void);
    pid_t child; /* of the query; 0: none */
    char *made;  /* the file created last */
    dev_t dev;
    ino_t ino;
} mon;

const char *monitor_editor(void)
{
    const char *visual = getenv("VISUAL"), *editor = getenv("EDITOR");
    return visual && *visual ? visual : editor && *editor ? editor : "vi";
}

/* A name or a folder that begins with a dot, "." and ".." apart. */
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

static int create(const char *path, struct answer *a)
{
    struct stat st;
    int fd = -1;
    if (is_hidden(path))
        errno = EPERM;
    else
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &st) != 0) {
        a->error = errno;
        return fd;
    }
    free(mon.made);
    mon.made = xstrdup(path);
    mon.dev = st.st_dev;
    mon.ino = st.st_ino;
    return fd;
}

static void discard(const char *path, struct answer *a)
{
    struct stat st;
    if (!mon.made || strcmp(path, mon.made) != 0 || lstat(path, &st) != 0 || st.st_dev != mon.dev ||
        st.st_ino != mon.ino)
        a->error = EPERM;
    else if (unlink(path) != 0)
        a->error = errno;
}

/* Signals as a program expects them at its start. */
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

/* Runs "EDITOR FILE" through the shell, because $EDITOR may hold options. */
static void edit(const char *path, struct answer *a)
{
    char *script = xasprintf("%s \"$1\"", monitor_editor());
    pid_t pid = fork();
    if (pid == 0) {
        default_signals();
        execl("/bin/sh", "sh", "-c", script, "sh", path, (char *)NULL);
        _exit(127);
    }
    free(script);
    if (pid < 0)
        a->error = errno;
    else
        a->value = wait_for(pid);
}

static void query(const int fd[2], struct answer *a)
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
        exit(mon.query());
    }
    if (pid < 0)
        a->error = errno;
    else
        mon.child = pid;
}

static void end_query(bool stop, struct answer *a)
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

static _Noreturn void serve(void)
{
    prctl(PR_SET_NAME, "aerie-monitor");
    static struct ask ask;
    int fd[2];
    for (int s = 1; s < NSIG; s++) /* the terminal's are for the program; the monitor ends with it */
        if (s != SIGCHLD)
            signal(s, SIG_IGN);
    while (receive_with(mon.link, &ask, sizeof ask, fd)) {
        struct answer a = {0};
        int made = -1;
        ask.path[sizeof ask.path - 1] = '\0';
        switch (ask.op) {
        case OP_CREATE: made = create(ask.path, &a); break;
        case OP_DISCARD: discard(ask.path, &a); break;
        case OP_EDIT: edit(ask.path, &a); break;
        case OP_QUERY: query(fd, &a); break;
        case OP_END: end_query(false, &a); break;
        case OP_KILL: end_query(true, &a); break;
        default: a.error = EINVAL;
        }
        for (int i = 0; i < 2; i++)
            if (fd[i] >= 0)
                close(fd[i]);
        bool sent = send_with(mon.link, &a, sizeof a, &made, made >= 0);
        if (made >= 0)
            close(made);
        if (!sent)
            break;
    }
    if (mon.child)
        kill(mon.child, SIGKILL);
    _exit(0);
}

/* ---- the program ----------------------------------------------------------------------------- */

static int monitor_link = -1;

bool monitor_start(int (*query_main)(void), struct err *e)
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

/* Sends a request and waits for its answer. *made receives the descriptor that comes with it. False and errno. */
static bool request(enum op op, const char *path, const int *fd, int n_fd, struct answer *a,
                    int *made)
{
    static struct ask ask;
    int got[2];
    memset(&ask, 0, sizeof ask);
    ask.op = (int32_t)op;
    CHECK(monitor_link >= 0);
    if (path && strlen(path) >= sizeof ask.path) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (path)
        memcpy(ask.path, path, strlen(path));
    if (!send_with(monitor_link, &ask, sizeof ask, fd, n_fd) ||
        !receive_with(monitor_link, a, sizeof *a, got)) {
        errno = ESRCH; /* the monitor was killed */
        return false;
    }
    if (made)
        *made = got[0];
    if (a->error)
        errno = a->error;
    return a->error == 0;
}

int monitor_create(const char *path)
{
    struct answer a;
    int fd = -1;
    return request(OP_CREATE, path, NULL, 0, &a, &fd) ? fd : -1;
}

bool monitor_discard(const char *path)
{
    struct answer a;
    return request(OP_DISCARD, path, NULL, 0, &a, NULL);
}

int monitor_edit(const char *path)
{
    struct answer a;
    return request(OP_EDIT, path, NULL, 0, &a, NULL) ? a.value : -1;
}

bool monitor_query(int in, int out)
{
    struct answer a;
    return request(OP_QUERY, NULL, (int[]){in, out}, 2, &a, NULL);
}

int monitor_query_end(bool kill_it)
{
    struct answer a;
    return request(kill_it ? OP_KILL : OP_END, NULL, NULL, 0, &a, NULL) ? a.value : 127 << 8;
}
