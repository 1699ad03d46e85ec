/* trace.c - see trace.h. */
#include "tests/faults/trace.h"
#include "tests/faults/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

/* ---- classes --------------------------------------------------------------------------------- */

struct call {
    short nr;
    const char *name;
    enum { ON_FD, ON_PATH, ON_PATH_AT, ON_NOTHING } on; /* kind of the first argument; ON_PATH_AT: a
                                                           path is the second */
};

static const struct class {
    const char *name, *help;
    int error[3];
    bool interrupts;
    struct call call[16];
} class[N_CLASS] = {
    [CALLS_ALLOC] = {"alloc", "malloc, calloc, realloc, aligned_alloc, posix_memalign", {ENOMEM},
                     false, {{0}}},
#if defined(__x86_64__)
    [CALLS_READ] = {"read", "read, pread, readv, getdents", {EIO}, true,
                {{SYS_read, "read", ON_FD}, {SYS_pread64, "pread", ON_FD},
                 {SYS_readv, "readv", ON_FD},
                 {SYS_getdents64, "getdents", ON_FD}}},
    [CALLS_WRITE] = {"write", "write, pwrite, writev", {ENOSPC, EIO}, true,
                 {{SYS_write, "write", ON_FD}, {SYS_pwrite64, "pwrite", ON_FD},
                  {SYS_writev, "writev", ON_FD}}},
    [CALLS_SYNC] = {"fsync", "fsync, fdatasync", {EIO}, false,
                {{SYS_fsync, "fsync", ON_FD}, {SYS_fdatasync, "fdatasync", ON_FD}}},
    [CALLS_RENAME] = {"rename", "rename, link, unlink, rmdir, mkdir", {EIO, ENOSPC}, false,
                  {{SYS_rename, "rename", ON_PATH}, {SYS_renameat, "rename", ON_PATH_AT},
                   {SYS_renameat2, "rename", ON_PATH_AT}, {SYS_link, "link", ON_PATH},
                   {SYS_unlink, "unlink", ON_PATH},
                   {SYS_unlinkat, "unlink", ON_PATH_AT}, {SYS_rmdir, "rmdir", ON_PATH},
                   {SYS_mkdir, "mkdir", ON_PATH}}},
    [CALLS_MMAP] = {"mmap", "mmap, mremap, mprotect, madvise, brk", {ENOMEM}, false,
                {{SYS_mmap, "mmap", ON_NOTHING}, {SYS_mremap, "mremap", ON_NOTHING},
                 {SYS_mprotect, "mprotect", ON_NOTHING}, {SYS_madvise, "madvise", ON_NOTHING}}},
    [CALLS_THREAD] = {"thread", "creation of a thread", {EAGAIN}, false,
                      {{SYS_clone3, "clone3", ON_NOTHING}}},
    [CALLS_FORK] = {"fork", "creation of a process", {EAGAIN}, false,
                {{SYS_clone, "fork", ON_NOTHING}, {SYS_fork, "fork", ON_NOTHING},
                 {SYS_vfork, "vfork", ON_NOTHING}}},
    [CALLS_POLL] = {"poll", "poll, select, epoll_wait", {ENOMEM}, true,
                {{SYS_poll, "poll", ON_NOTHING}, {SYS_ppoll, "ppoll", ON_NOTHING},
                 {SYS_select, "select", ON_NOTHING},
                 {SYS_pselect6, "pselect", ON_NOTHING}, {SYS_epoll_wait, "epoll_wait", ON_NOTHING},
                 {SYS_epoll_pwait, "epoll_wait", ON_NOTHING}}},
    [CALLS_OPEN] = {"open", "open, openat", {EMFILE, EACCES}, true,
                {{SYS_open, "open", ON_PATH}, {SYS_openat, "open", ON_PATH_AT},
                 {SYS_creat, "creat", ON_PATH}}},
    [CALLS_FILE] = {"file", "stat, fstat, access, ftruncate, fallocate, fadvise, chmod, chown, "
                            "lseek, statfs, close", {EIO},
                false,
                {{SYS_stat, "stat", ON_PATH}, {SYS_lstat, "lstat", ON_PATH},
                 {SYS_fstat, "fstat", ON_FD},
                 {SYS_newfstatat, "stat", ON_PATH_AT}, {SYS_access, "access", ON_PATH},
                 {SYS_ftruncate, "ftruncate", ON_FD}, {SYS_fallocate, "fallocate", ON_FD},
                 {SYS_fadvise64, "fadvise", ON_FD}, {SYS_fchmod, "fchmod", ON_FD},
                 {SYS_fchown, "fchown", ON_FD},
                 {SYS_lseek, "lseek", ON_FD}, {SYS_fstatfs, "fstatfs", ON_FD},
                 {SYS_statfs, "statfs", ON_PATH},
                 {SYS_chmod, "chmod", ON_PATH}, {SYS_statx, "statx", ON_PATH_AT}}},
    [CALLS_LOCK] = {"lock", "fcntl, flock", {ENOLCK}, false,
                    {{SYS_fcntl, "fcntl", ON_FD}, {SYS_flock, "flock", ON_FD}}},
    [CALLS_MESSAGE] = {"message", "sendmsg, recvmsg, sendto, recvfrom, accept, connect",
                       {ECONNRESET}, true,
                   {{SYS_sendmsg, "sendmsg", ON_FD}, {SYS_recvmsg, "recvmsg", ON_FD},
                    {SYS_sendto, "send", ON_FD},
                    {SYS_recvfrom, "recv", ON_FD}, {SYS_accept4, "accept", ON_FD},
                    {SYS_accept, "accept", ON_FD},
                    {SYS_connect, "connect", ON_FD}}},
    [CALLS_MAKE] = {"make", "pipe, socket, socketpair, eventfd, memfd_create, dup, epoll_create, "
                            "timerfd_create", {EMFILE},
                false,
                {{SYS_pipe, "pipe", ON_NOTHING}, {SYS_pipe2, "pipe", ON_NOTHING},
                 {SYS_socket, "socket", ON_NOTHING},
                 {SYS_socketpair, "socketpair", ON_NOTHING}, {SYS_eventfd2, "eventfd", ON_NOTHING},
                 {SYS_memfd_create, "memfd_create", ON_NOTHING}, {SYS_dup, "dup", ON_FD},
                 {SYS_dup2, "dup2", ON_FD},
                 {SYS_dup3, "dup3", ON_FD}, {SYS_epoll_create1, "epoll_create", ON_NOTHING},
                 {SYS_timerfd_create, "timerfd_create", ON_NOTHING}}},
    [CALLS_TERMINAL] = {"terminal", "ioctl", {EIO}, false, {{SYS_ioctl, "ioctl", ON_FD}}},
#endif
};

const char *class_name(enum fault_class c) { return class[c].name; }
const char *class_help(enum fault_class c) { return class[c].help; }
bool class_interrupts(enum fault_class c) { return class[c].interrupts; }
int class_error(enum fault_class c, int i) { return i < 3 ? class[c].error[i] : 0; }

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

/* ---- in the program's process ---------------------------------------------------------------- */

/* Installs a filter that stops the calls of the class, and prctl(). */
static bool install_filter(const struct class *k)
{
    struct sock_filter f[64];
    unsigned short n = 0;
    f[n++] = (struct sock_filter) BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                           offsetof(struct seccomp_data, nr));
    f[n++] = (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 1);
    f[n++] = (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    for (const struct call *c = k->call; c < k->call + 16 && c->name; c++) {
        f[n++] = (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)c->nr, 0, 1);
        f[n++] = (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    f[n++] = (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, f};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

static bool redirect(const char *name, int how, int to)
{
    int fd = open(name ? name : "/dev/null", how, 0600);
    return fd >= 0 && dup2(fd, to) == to && close(fd) == 0;
}

static _Noreturn void become(const struct command *c, const struct class *k, int go)
{
    char byte;
    bool ok = read(go, &byte, 1) == 1; /* until the tracer has attached */
    close(go);
    setsid();
    if (c->terminal >= 0) {
        ok = ok && ioctl(c->terminal, TIOCSCTTY, 0) == 0;
        for (int i = 0; i < 3; i++)
            ok = ok && dup2(c->terminal, i) == i;
        close(c->terminal);
    } else {
        ok = ok && redirect(c->in, O_RDONLY, 0) && redirect(c->out, O_WRONLY | O_CREAT | O_TRUNC,
                                                            1) &&
             redirect(c->err, O_WRONLY | O_CREAT | O_TRUNC, 2);
    }
    personality(ADDR_NO_RANDOMIZE); /* the same return addresses in each run */
    setenv("LD_PRELOAD", c->preload, 1);
    setenv(FAULTS_PAGE, c->page, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ok && (!k->call[0].name || install_filter(k)))
        execv(c->argv[0], c->argv);
    _exit(126);
}

/* ---- the tracer's side ----------------------------------------------------------------------- */

/* Reads a path from the program's memory. */
static const char *path_at(pid_t pid, uintptr_t at, char out[256])
{
    /* not across the page's end */
    struct iovec to = {out, 255}, from = {(void *)at, 4096 - (at & 4095)};
    from.iov_len = from.iov_len < 255 ? from.iov_len : 255;
    ssize_t n = process_vm_readv(pid, &to, 1, &from, 1, 0);
    out[n > 0 ? n : 0] = '\0';
    return out;
}

/* Describes a call: its name, and the file of its descriptor or its path, without the folder. */
static void describe(pid_t pid, const struct call *c, const struct user_regs_struct *r,
                     char out[160])
{
    char link[64], path[256] = "";
    if (c->on == ON_FD) {
        snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)pid, (int)r->rdi);
        ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = '\0';
    } else if (c->on != ON_NOTHING) {
        path_at(pid, (uintptr_t)(c->on == ON_PATH ? r->rdi : r->rsi), path);
    }
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char comm[32] = "";
    snprintf(link, sizeof link, "/proc/%d/comm", (int)pid);
    int fd = open(link, O_RDONLY);
    ssize_t n = fd >= 0 ? read(fd, comm, sizeof comm - 1) : 0;
    comm[n > 1 ? n - 1 : 0] = '\0';
    if (fd >= 0)
        close(fd);
    snprintf(out, 160, "%s%s%.80s (%s)", c->name, *name ? " " : "", *name ? name : *path ? path
             : "", comm);
}

/* Whether a call is left alone, because the kernel never fails it in this way: on an eventfd, which
 * does not block; on a pipe, except with EINTR; with EINTR on a file of terminfo, which the
 * terminal's library reads before any signal handler is set. With FROM, writes to standard error
 * are left alone, too, so that messages get through. */
static bool cannot_fail(pid_t pid, const struct fault *f, const struct user_regs_struct *r)
{
    char link[64], to[256];
    if (f->class == CALLS_OPEN && f->how == INTERRUPT)
        return strstr(path_at(pid, (uintptr_t)r->rsi, to), "/terminfo") != NULL;
    if (f->class != CALLS_READ && f->class != CALLS_WRITE)
        return false;
    if (f->class == CALLS_WRITE && f->how == FROM && r->rdi == STDERR_FILENO)
        return true;
    snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)pid, (int)r->rdi);
    ssize_t n = readlink(link, to, sizeof to - 1);
    to[n > 0 ? n : 0] = '\0';
    return strstr(to, "eventfd") || (f->how != INTERRUPT && strncmp(to, "pipe:", 5) == 0) ||
           (f->how == INTERRUPT && strstr(to, "/terminfo/"));
}

/* Whether a kernel may transfer fewer bytes than the call asks for: on a file, a pipe or a
 * terminal. */
static bool may_be_short(pid_t pid, const struct user_regs_struct *r)
{
    char link[64];
    struct stat st;
    if (r->orig_rax != SYS_read && r->orig_rax != SYS_pread64 && r->orig_rax != SYS_write &&
        r->orig_rax != SYS_pwrite64) return false;
    snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)pid, (int)r->rdi);
    return r->rdx > 1 && stat(link, &st) == 0 &&
           (S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode));
}

static bool is_thread(pid_t pid, const struct user_regs_struct *r)
{
    if (r->orig_rax == SYS_clone3)
        return (ptrace(PTRACE_PEEKDATA, pid, (void *)(uintptr_t)r->rdi, 0) & CLONE_THREAD) != 0;
    return r->orig_rax == SYS_clone && (r->rdi & CLONE_THREAD);
}

/* Whether a call is interrupted. ODD_CALLS and EVEN_CALLS: every second call of a thread, counted
 * by thread, so that each thread makes progress. FIRST_TRIES: every call, except one that repeats
 * the thread's last, interrupted call. */
static bool interrupts(pid_t thread, enum interrupted which, const struct user_regs_struct *r)
{
    static struct { bool was; unsigned long nr, on; } last[1 << 12], *l;
    l = &last[thread & 4095];
    bool again = l->was && l->nr == r->orig_rax && l->on == r->rdi;
    l->nr = r->orig_rax, l->on = r->rdi;
    l->was = which == FIRST_TRIES ? !again : !l->was;
    return l->was != (which == EVEN_CALLS);
}

/* Counts a call that the filter stopped, and makes it fail if the fault says so. */
static void at_call(pid_t pid, const struct fault *f, struct trial *t)
{
    struct user_regs_struct r;
    if (ptrace(PTRACE_GETREGS, pid, NULL, &r) != 0)
        return;
    if (r.orig_rax == SYS_prctl && r.rdi == FAULTS_MARK)
        t->armed = true;
    const struct call *c = class[f->class].call;
    while (c < class[f->class].call + 16 && c->name && c->nr != (long)r.orig_rax)
        c++;
    if (!t->armed || c == class[f->class].call + 16 || !c->name ||
        cannot_fail(pid, f, &r) || (f->class == CALLS_THREAD && !is_thread(pid, &r)) ||
        (f->class == CALLS_FORK && is_thread(pid, &r))) return;
    long n = ++t->calls;
    bool fails = (f->how == ONCE && n == f->n) || (f->how == FROM && n >= f->n) ||
                 (f->how == INTERRUPT && interrupts(pid, (enum interrupted)f->n, &r));
    bool shortens = f->how == SHORTEN && may_be_short(pid, &r);
    if (!fails && !shortens)
        return;
    if (!t->fired) {
        t->fired = true;
        describe(pid, c, &r, t->what);
    }
    if (shortens)
        r.rdx = (r.rdx + 1) / 2;
    else
        r.orig_rax = (unsigned long)-1, r.rax = (unsigned long)-(long)t->error;
    ptrace(PTRACE_SETREGS, pid, NULL, &r);
}

/* Serves the program and all its threads and children until the last of them has ended. */
static void serve(pid_t first, const struct fault *f, struct trial *t)
{
    int st;
    for (pid_t pid; (pid = waitpid(-1, &st, __WALL)) > 0 || errno == EINTR;) {
        if (pid <= 0)
            continue;
        if (WIFEXITED(st) || WIFSIGNALED(st)) {
            if (pid == first)
                t->status = st;
            continue;
        }
        int sig = WSTOPSIG(st), event = st >> 16;
        if (event == PTRACE_EVENT_SECCOMP)
            at_call(pid, f, t);
        ptrace(PTRACE_CONT, pid, NULL, event ? 0 : (void *)(intptr_t)sig);
    }
}

/* The page with which preload.c counts; NULL if there is none. */
static struct faults_page *make_page(const char *name, const struct fault *f)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct faults_page)) != 0)
        return NULL;
    struct faults_page *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return NULL;
    p->fail = f->class == CALLS_ALLOC && (f->how == ONCE || f->how == FROM) ? f->n : 0;
    p->and_later = f->how == FROM;
    p->forks = f->how == FORKED;
    return p;
}

static void allocations(const struct faults_page *p, struct trial *t)
{
    t->calls = atomic_load(&p->allocs);
    t->fired = atomic_load(&p->fired) != 0;
    size_t n = 0;
    for (int i = 2; i < p->n_frame && n + 20 < sizeof t->what; i++)
        n += (size_t)snprintf(t->what + n, sizeof t->what - n, "%lx ", p->frame[i]);
}

static volatile sig_atomic_t too_late;
static pid_t traced;

static void on_alarm(int sig)
{
    (void)sig;
    too_late = 1;
    kill(-traced, SIGKILL); /* its own session, thus its own group */
}

bool trace_possible(void)
{
    int st = 0;
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGALRM, SIG_DFL);
        alarm(10);
        pause();
        _exit(0);
    }
    bool ok = pid > 0 &&
              ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL) == 0;
    kill(pid, SIGKILL);
    return waitpid(pid, &st, 0) == pid && ok;
}

pid_t trace_start(const struct command *c, const struct fault *f, struct trial *t)
{
    const int options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
                        PTRACE_O_TRACEVFORK | PTRACE_O_EXITKILL;
    *t = (struct trial){.status = -1, .error = f->how == INTERRUPT ? EINTR
                                               : f->error          ? f->error
                                                                   : class[f->class].error[0]};
    pid_t tracer = fork();
    if (tracer != 0)
        return tracer;
    int go[2];
    struct faults_page *page = make_page(c->page, f);
    if (!page || pipe2(go, O_CLOEXEC) != 0 || (traced = fork()) < 0)
        _exit(1);
    if (traced == 0)
        become(c, &class[f->class], go[0]);
    close(go[0]);
    if (c->terminal >= 0)
        close(c->terminal);
    struct sigaction act = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &act, NULL);
    /* allocations are not traced: whatever the program leaves behind is waited for, too */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if ((f->class != CALLS_ALLOC && ptrace(PTRACE_SEIZE, traced, NULL, options) != 0) ||
        write(go[1], "", 1) != 1) _exit(1);
    alarm((unsigned)(c->limit_ms + 999) / 1000);
    serve(traced, f, t);
    t->timed_out = too_late;
    if (f->class == CALLS_ALLOC) {
        allocations(page, t);
        t->armed = t->armed || t->calls > 0;
    }
    _exit(0);
}

#else

bool trace_possible(void) { return false; }

pid_t trace_start(const struct command *c, const struct fault *f, struct trial *t)
{
    (void)c, (void)f;
    *t = (struct trial){.status = -1};
    return -1;
}

#endif

void trace_wait(pid_t tracer)
{
    while (tracer > 0 && waitpid(tracer, NULL, 0) < 0 && errno == EINTR)
        ;
}
