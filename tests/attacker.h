/* attacker.h - ways out of the isolation (repl/process/isolate.h) for code that controls the
 * isolated process: functions that run inside of the isolation, each a way to act outside of it,
 * with what has to stop it.
 *
 * Every attempt is a function of struct scene and returns 0 if it worked, else the errno with
 * which it was refused. Without the isolation it has to work, else it would show nothing; where it
 * does not, because the kernel or the file system lacks something, the test is skipped. Requests
 * to the monitor are written in its datagrams, not through repl/process/monitor.h. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <linux/fs.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#include "kernels/base.h"
#include "kernels/sanitizers.h"

struct scene {
    char inside[80], outside[80]; /* the process may write in one folder, and not in the other */
    char hidden
        [100]; /* a folder in `outside` whose name begins with a dot; outside/link leads to it */
    char terminal[64]; /* that the isolated process was not started on */
    int write_fd, read_fd,
        folder_fd; /* outside/old and `outside`, open since before the isolation */
    pid_t monitor;
    /* a process of the same user, which is not isolated */
    pid_t victim;
    int segment;       /* its System V shared memory */
    int port;          /* a TCP port on which it listens */
    volatile int word; /* the address is the same in both processes */
};

enum by { BY_LANDLOCK, BY_SECCOMP, BY_MONITOR, BY_CLOSING };

struct attempt {
    const char *what;
    int (*try)(const struct scene *s);
    enum by by;
    int error; /* expected; 0: EACCES of Landlock, EPERM of seccomp and of the monitor, EBADF of a
                  closed descriptor */
    enum {
        ALONE,
        CONTROLLED,
        ONLINE
    } how; /* without a control; with one; with one, where the network is granted */
};

static const char *in_folder(const char *folder, const char *name)
{
    static char path[8][300];
    static int k;
    snprintf(path[++k & 7], sizeof *path, "%s/%s", folder, name);
    return path[k & 7];
}

static const char *old(const struct scene *s)
{
    return in_folder(s->outside, "old");
}

static int outcome(bool worked)
{
    return worked ? 0 : errno;
}

static int call(long nr, long a, long b, long c, long d, long e)
{
    errno = 0;
    return outcome(syscall(nr, a, b, c, d, e, 0L) >= 0);
}

#define P(pointer) ((long)(uintptr_t)(pointer))

static int opened(const char *path, int how)
{
    int fd = open(path, how | O_CLOEXEC, 0600), why = errno;
    if (fd >= 0)
        close(fd);
    return fd >= 0 ? 0 : why;
}

/* The exit status of a function in a child process; 127: it was killed. */
static int in_child(int (*f)(const struct scene *s), const struct scene *s)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        _exit(f(s));
    if (pid < 0)
        return errno;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 127;
}

/* An attempt that is one expression. */
#define TRY(name, expression)                                                                      \
    static int try_##name(const struct scene *s)                                                   \
    {                                                                                              \
        (void)s;                                                                                   \
        return expression;                                                                         \
    }

/* ---- attributes of files --------------------------------------------------------------------- */

TRY(chmod, outcome(chmod(old(s), 0777) == 0))
TRY(fchmod, outcome(fchmod(s->read_fd, 0777) == 0))
TRY(fchmodat, call(SYS_fchmodat, AT_FDCWD, P(old(s)), 0777, 0, 0))
TRY(fchmodat2, call(452, AT_FDCWD, P(old(s)), 0777, 0, 0))
TRY(chown, outcome(chown(old(s), geteuid(), getegid()) == 0))
TRY(lchown, outcome(lchown(old(s), geteuid(), getegid()) == 0))
TRY(fchown, outcome(fchown(s->read_fd, geteuid(), getegid()) == 0))
static int try_fchownat(const struct scene *s)
{
    return outcome(fchownat(s->read_fd, "", geteuid(), getegid(), AT_EMPTY_PATH) == 0);
}
TRY(utime, outcome(utime(old(s), NULL) == 0))
TRY(utimes, outcome(utimes(old(s), NULL) == 0))
TRY(utimensat, outcome(utimensat(AT_FDCWD, old(s), NULL, 0) == 0))
TRY(futimens, outcome(futimens(s->read_fd, NULL) == 0))
static int try_futimesat(const struct scene *s)
{
#if defined(SYS_futimesat)
    return call(SYS_futimesat, AT_FDCWD, P(old(s)), 0, 0, 0);
#else
    return (void)s, ENOSYS;
#endif
}
TRY(setxattr, outcome(setxattr(old(s), "user.a", "1", 1, 0) == 0))
TRY(lsetxattr, outcome(lsetxattr(old(s), "user.a", "1", 1, 0) == 0))
TRY(fsetxattr, outcome(fsetxattr(s->read_fd, "user.a", "1", 1, 0) == 0))
/* The scene has set user.old. */
TRY(removexattr, outcome(removexattr(old(s), "user.old") == 0))
TRY(lremovexattr, outcome(lremovexattr(old(s), "user.old") == 0))
TRY(fremovexattr, outcome(fremovexattr(s->read_fd, "user.old") == 0))
static int try_setxattrat(const struct scene *s)
{
    struct {
        uint64_t value;
        uint32_t size, flags;
    } args = {(uintptr_t) "1", 1, 0};
    errno = 0;
    return outcome(syscall(463, AT_FDCWD, old(s), 0, "user.a", &args, sizeof args) == 0);
}
TRY(removexattrat, call(466, AT_FDCWD, P(old(s)), 0, P("user.old"), 0))
static int try_file_setattr(const struct scene *s)
{
    uint64_t attributes[4] = {0};
    return call(469, AT_FDCWD, P(old(s)), P(attributes), 24, 0);
}
static int try_inode_flags(const struct scene *s)
{
    int bits = FS_NODUMP_FL;
    return outcome(ioctl(s->read_fd, FS_IOC_SETFLAGS, &bits) == 0);
}
TRY(truncate, outcome(truncate(old(s), 0) == 0))
TRY(open_truncating, opened(old(s), O_RDONLY | O_TRUNC))
static int try_openat2(const struct scene *s)
{
    uint64_t how[3] = {O_RDONLY | O_TRUNC | O_CLOEXEC, 0, 0};
    return call(437, AT_FDCWD, P(old(s)), P(how), sizeof how, 0);
}

/* ---- terminals and devices ------------------------------------------------------------------- */

TRY(other_terminal, opened(s->terminal, O_WRONLY | O_NOCTTY))
TRY(watch_terminal, opened(s->terminal, O_RDONLY | O_NOCTTY))
TRY(mode_3, opened(s->terminal, O_ACCMODE | O_NOCTTY))
static int try_type(const struct scene *s)
{
    (void)s;
    return outcome(ioctl(STDIN_FILENO, TIOCSTI, "x") ==
                   0); /* standard input is the terminal that controls the attacker */
}
static int try_discipline(const struct scene *s)
{
    int usual = 0;
    (void)s;
    return outcome(ioctl(STDIN_FILENO, TIOCSETD, &usual) == 0);
}
static int try_foreground(const struct scene *s)
{
    (void)s;
    return outcome(tcsetpgrp(STDIN_FILENO, getpgrp()) == 0);
}
static int try_shm_name(const struct scene *s)
{
    (void)s;
    char name[64];
    snprintf(name, sizeof name, "/dev/shm/aerie-%d", getpid());
    int error = opened(name, O_RDWR | O_CREAT | O_EXCL);
    unlink(name);
    return error;
}
TRY(sysctl, opened("/proc/sys/kernel/core_pattern", O_WRONLY))

/* ---- other processes ------------------------------------------------------------------------- */

static const char *of_process(pid_t pid, const char *what)
{
    static char path[4][400];
    static int k;
    snprintf(path[++k & 3], sizeof *path, "/proc/%d/%s", pid, what);
    return path[k & 3];
}

TRY(memory_file, opened(of_process(s->victim, "mem"), O_RDWR))
TRY(monitor_memory, opened(of_process(s->monitor, "mem"), O_RDWR))
TRY(secrets, opened(of_process(s->victim, "environ"), O_RDONLY))
TRY(its_descriptor, opened(of_process(s->victim, "fd/50"), O_WRONLY))
TRY(its_folder, opened(of_process(s->victim, "cwd/old"), O_WRONLY))
static int try_its_root(const struct scene *s)
{
    char path[200];
    snprintf(path, sizeof path, "root%s", old(s));
    return opened(of_process(s->victim, path), O_WRONLY);
}
static int try_monitor_folder(const struct scene *s)
{
    return opened(of_process(s->monitor, "cwd/aerie-attack.md"), O_WRONLY | O_CREAT);
}
static int try_own_root(const struct scene *s)
{
    char path[200];
    snprintf(path, sizeof path, "/proc/self/root%s", old(s));
    return opened(path, O_WRONLY);
}
static int try_own_descriptor(const struct scene *s)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->read_fd);
    return opened(path, O_WRONLY);
}
TRY(ptrace, outcome(ptrace(PTRACE_ATTACH, s->victim, NULL, NULL) == 0))
TRY(seize, outcome(ptrace(PTRACE_SEIZE, s->victim, NULL, NULL) == 0))
TRY(ptrace_monitor, outcome(ptrace(PTRACE_SEIZE, s->monitor, NULL, NULL) == 0))
static int try_write_memory(const struct scene *s)
{
    int one = 1;
    struct iovec from = {&one, sizeof one}, to = {(void *)(uintptr_t)&s->word, sizeof one};
    return outcome(process_vm_writev(s->victim, &from, 1, &to, 1, 0) == sizeof one);
}
static int try_read_memory(const struct scene *s)
{
    int one = 1;
    struct iovec to = {&one, sizeof one}, from = {(void *)(uintptr_t)&s->word, sizeof one};
    return outcome(process_vm_readv(s->victim, &to, 1, &from, 1, 0) == sizeof one);
}
static int try_pidfd_getfd(const struct scene *s)
{
    int pidfd = (int)syscall(434, s->victim, 0);
    return pidfd < 0 ? errno : call(438, pidfd, 50, 0, 0, 0);
}
static int try_pidfd_signal(const struct scene *s)
{
    int pidfd = open(of_process(s->victim, ""),
                     O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* the older form of a pidfd */
    return pidfd < 0 ? errno : call(424, pidfd, SIGTERM, 0, 0, 0);
}
TRY(kill, outcome(kill(s->victim, SIGTERM) == 0))
TRY(kill_monitor, outcome(kill(s->monitor, SIGKILL) == 0))
TRY(tkill, call(SYS_tkill, s->victim, SIGTERM, 0, 0, 0))
TRY(tgkill, call(SYS_tgkill, s->victim, s->victim, SIGTERM, 0, 0))
static int try_queue_signal(const struct scene *s)
{
    siginfo_t info = {.si_signo = SIGTERM, .si_code = SI_QUEUE};
    return call(SYS_rt_sigqueueinfo, s->victim, SIGTERM, P(&info), 0, 0);
}
static int try_queue_thread_signal(const struct scene *s)
{
    siginfo_t info = {.si_signo = SIGTERM, .si_code = SI_QUEUE};
    return call(SYS_rt_tgsigqueueinfo, s->victim, s->victim, SIGTERM, P(&info), 0);
}
static int try_signal_by_descriptor(const struct scene *s)
{
    int end[2];
    return outcome(pipe(end) == 0 && fcntl(end[0], F_SETOWN, s->victim) == 0 &&
                   fcntl(end[0], F_SETSIG, SIGKILL) == 0);
}
static int try_lease(const struct scene *s)
{
    int fd = open(in_folder(s->outside, "notes.md"), O_RDONLY | O_CLOEXEC);
    return outcome(fcntl(fd, F_SETLEASE, F_RDLCK) == 0);
}
static int try_limits(const struct scene *s)
{
    struct rlimit none = {0, 0};
    return call(SYS_prlimit64, s->victim, RLIMIT_NOFILE, P(&none), 0, 0);
}
TRY(priority, outcome(setpriority(PRIO_PROCESS, (id_t)s->victim, 19) == 0))
static int try_scheduler(const struct scene *s)
{
    struct sched_param none = {0};
    return call(SYS_sched_setscheduler, s->victim, SCHED_IDLE, P(&none), 0, 0);
}
static int try_shared_segment(const struct scene *s)
{
    void *p = shmat(s->segment, NULL, 0);
    return outcome(p != (void *)-1); /* NOLINT */
}
static int try_message_queue(const struct scene *s)
{
    char name[32];
    (void)s;
    snprintf(name, sizeof name, "/aerie-%d", getpid());
    mqd_t q = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, NULL);
    int why = errno;
    if (q != (mqd_t)-1)
        mq_unlink(name);
    return q != (mqd_t)-1 ? 0 : why;
}
static int try_key(const struct scene *s)
{
    (void)s;
    return call(SYS_add_key, P("user"), P("aerie-test"), P("x"), 1, -2 /* of this process */);
}

/* ---- programs -------------------------------------------------------------------------------- */

static int copy_of_a_program(void)
{
    char bytes[65536];
    int from = open("/bin/true", O_RDONLY | O_CLOEXEC), to = memfd_create("true", 0);
    for (ssize_t n; from >= 0 && to >= 0 && (n = read(from, bytes, sizeof bytes)) > 0;)
        if (!write_fully(to, bytes, (size_t)n))
            break;
    close(from);
    return to;
}

static int run_memory(const struct scene *s)
{
    char *argv[] = {(char *)(uintptr_t) "true", NULL}, *env[] = {NULL};
    (void)s;
    syscall(SYS_execveat, copy_of_a_program(), "", argv, env, AT_EMPTY_PATH);
    return errno;
}
static int run_memory_by_name(const struct scene *s)
{
    char path[64], *argv[] = {(char *)(uintptr_t) "true", NULL}, *env[] = {NULL};
    (void)s;
    snprintf(path, sizeof path, "/proc/self/fd/%d", copy_of_a_program());
    execve(path, argv, env);
    return errno;
}
TRY(memory_program, in_child(run_memory, s))
TRY(memory_program_by_name, in_child(run_memory_by_name, s))

/* ---- names ----------------------------------------------------------------------------------- */

TRY(symlink, outcome(symlink(old(s), in_folder(s->inside, "to-old")) == 0))
static int try_hard_link(const struct scene *s)
{
    const char *name = in_folder(s->inside, "hard");
    return link(old(s), name) != 0 ? errno : opened(name, O_WRONLY);
}
TRY(rename_over, outcome(rename(in_folder(s->inside, "own"), old(s)) == 0))
static int try_exchange(const struct scene *s)
{
    return call(SYS_renameat2, AT_FDCWD, P(in_folder(s->inside, "own")), AT_FDCWD, P(old(s)),
                2 /* RENAME_EXCHANGE */);
}
static int try_folder_descriptor(const struct scene *s)
{
    int fd = openat(s->folder_fd, "new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    return outcome(fd >= 0);
}
TRY(inherited, outcome(write(s->write_fd, "x", 1) == 1))
static int try_socket_name(const struct scene *s)
{
    int end[2];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", in_folder(s->outside, "socket"));
    return outcome(socketpair(AF_UNIX, SOCK_STREAM, 0, end) == 0 &&
                   bind(end[0], (struct sockaddr *)&a, sizeof a) == 0);
}
static int dump_core(const struct scene *s)
{
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    if (chdir(s->outside) != 0 || setrlimit(RLIMIT_CORE, &all) != 0)
        return errno;
    signal(SIGSEGV, SIG_DFL);
    signal(SIGABRT, SIG_DFL);
#if HAS_ASAN || HAS_TSAN /* their shadow memory would be dumped, too */
    return 0;
#else
    abort();
#endif
}
static int try_core(const struct scene *s)
{
    glob_t found = {0};
    in_child(dump_core, s);
    bool there = glob(in_folder(s->outside, "*core*"), 0, NULL, &found) == 0;
    globfree(&found);
    return there ? 0 : EACCES; /* nobody learns why the kernel wrote none */
}

/* ---- namespaces and mounts ------------------------------------------------------------------- */

TRY(unshare, outcome(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0))
static int try_clone(const struct scene *s)
{
    (void)s;
#if defined(__x86_64__) || defined(__aarch64__)
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
#else
    long pid = -1;
#endif
    if (pid == 0)
        _exit(0);
    return outcome(pid > 0);
}
static int try_clone3(const struct scene *s)
{
    uint64_t args[11] = {[0] = CLONE_NEWUSER, [4] = SIGCHLD};
    (void)s;
    long pid = syscall(435, args, sizeof args);
    if (pid == 0)
        _exit(0);
    return outcome(pid > 0);
}
static int try_setns(const struct scene *s)
{
    (void)s;
    int fd = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
    return outcome(setns(fd, 0) == 0);
}
TRY(mount, outcome(mount("none", s->inside, "tmpfs", 0, "") == 0 && umount(s->inside) == 0))
TRY(chroot, outcome(chroot(s->inside) == 0))
TRY(open_tree, call(428, AT_FDCWD, P(s->outside), 1 /* OPEN_TREE_CLONE */, 0, 0))
TRY(fsopen, call(430, P("tmpfs"), 0, 0, 0, 0))

/* ---- the kernel ------------------------------------------------------------------------------ */

static int try_bpf(const struct scene *s)
{
    uint32_t map[18] = {1 /* a hash */, 4, 4, 1};
    (void)s;
    return call(SYS_bpf, 0 /* BPF_MAP_CREATE */, P(map), sizeof map, 0, 0);
}
static int try_perf(const struct scene *s)
{
    uint32_t event[28] = {1 /* of software */, sizeof event};
    (void)s;
    return call(SYS_perf_event_open, P(event), 0, -1, -1, 0);
}
TRY(userfaultfd, call(SYS_userfaultfd, 1 /* of user mode only */, 0, 0, 0, 0))
static int try_io_uring(const struct scene *s)
{
    uint32_t params[30] = {0};
    (void)s;
    return call(SYS_io_uring_setup, 1, P(params), 0, 0, 0);
}
static int try_32_bits(const struct scene *s)
{
    long rc = -ENOSYS;
#if defined(__x86_64__)
    enum { CHMOD = 15 }; /* of i386 */
    char *path =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (path == MAP_FAILED)
        return errno;
    snprintf(path, 4096, "%s", old(s));
    __asm__ volatile("int $0x80"
                     : "=a"(rc)
                     : "a"(CHMOD), "b"(path), "c"(0777)
                     : "memory", "r8", "r9", "r10", "r11");
    rc = (int)rc;
#endif
    (void)s;
    return rc < 0 ? (int)-rc : 0;
}
/* Calls with arguments that the kernel refuses for another reason. Returns 0 if one is let
 * through. */
static int try_others(const struct scene *s)
{
    static const int nr[] = {SYS_swapon,
                             SYS_swapoff,
                             SYS_kexec_load,
                             SYS_acct,
                             SYS_init_module,
                             SYS_finit_module,
                             SYS_delete_module,
                             SYS_settimeofday,
                             SYS_clock_settime,
                             SYS_sethostname,
                             SYS_setdomainname,
                             SYS_umount2,
                             SYS_pivot_root,
                             SYS_open_by_handle_at,
                             SYS_fanotify_init,
                             SYS_quotactl,
                             429,
                             431,
                             432,
                             433,
                             440,
                             442,
                             448,
                             SYS_kcmp,
                             SYS_migrate_pages,
                             SYS_move_pages,
                             SYS_msgget,
                             SYS_msgctl,
                             SYS_semop,
                             SYS_semctl,
                             SYS_keyctl,
                             SYS_request_key,
                             SYS_io_uring_enter,
                             SYS_io_uring_register,
                             SYS_ioprio_set,
                             SYS_sched_setparam,
                             SYS_sched_setattr,
                             SYS_syslog,
                             SYS_adjtimex,
                             SYS_reboot};
    int let_through = 0;
    (void)s;
    for (size_t i = 0; i < sizeof nr / sizeof *nr; i++)
        let_through += call(nr[i], -1, -1, -1, -1, -1) != EPERM;
    return let_through > 0 ? 0 : EPERM;
}

/* ---- the network ----------------------------------------------------------------------------- */

static int try_tcp(const struct scene *s)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)s->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return outcome(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
}
static socklen_t abstract_name(const struct scene *s, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "aerie-victim-%d", s->victim);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(a->sun_path + 1));
}
static int try_abstract(const struct scene *s)
{
    struct sockaddr_un a;
    socklen_t n = abstract_name(s, &a);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    return outcome(fd >= 0 && connect(fd, (struct sockaddr *)&a, n) == 0);
}
/* As the socket of a session bus, of a display server or of a daemon that runs programs. */
static struct sockaddr_un socket_name(const struct scene *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s/daemon", s->outside);
    return a;
}
static int try_named(const struct scene *s)
{
    struct sockaddr_un a = socket_name(s);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    return outcome(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
}
static int try_pair(const struct scene *s)
{
    struct sockaddr_un a = socket_name(s);
    int end[2];
    return outcome(socketpair(AF_UNIX, SOCK_DGRAM, 0, end) == 0 &&
                   sendto(end[0], "x", 1, 0, (struct sockaddr *)&a, sizeof a) == 1);
}
TRY(raw_packets, outcome(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0))
TRY(netlink, outcome(socket(AF_NETLINK, SOCK_RAW, 0) >= 0))

/* ---- the monitor ----------------------------------------------------------------------------- */

/* Numbers of monitor.c, as a process that was taken over knows them. */
enum { ASK_CREATE, ASK_KEEP, ASK_DISCARD, ASK_EDIT, ASK_MESSAGE = 9 };

/* The descriptor that leads to the monitor: the only socket of its kind. */
static int link_to_monitor(void)
{
    for (int fd = 3; fd < 256; fd++) {
        int type;
        socklen_t n = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_SEQPACKET)
            return fd;
    }
    return -1;
}

/* Sends a request with n descriptors and returns the errno of its answer; 0: it was done. */
static int ask_monitor(int op, const char *path, const int *fd, size_t n)
{
    struct {
        int32_t op;
        char path[PATH_MAX];
    } ask = {.op = op};
    struct {
        int32_t value, error;
    } answer = {0};
    union {
        char bytes[CMSG_SPACE(64 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec part = {&ask, sizeof ask};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    snprintf(ask.path, sizeof ask.path, "%s", path);
    if (n) {
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(n * sizeof(int));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(h), fd, n * sizeof(int));
    }
    int to = link_to_monitor();
    if (sendmsg(to, &m, MSG_NOSIGNAL) != sizeof ask)
        return errno ? errno : EPIPE;
    return recv(to, &answer, sizeof answer, 0) == sizeof answer ? answer.error : EPIPE;
}

static int ask_create(const char *path)
{
    return ask_monitor(ASK_CREATE, path, NULL, 0);
}

static int try_option(const struct scene *s)
{
    (void)s;
    return ask_monitor(ASK_EDIT, "+silent! !touch stolen", NULL, 0);
}
TRY(edit_other, ask_monitor(ASK_EDIT, old(s), NULL, 0))
static int try_working_folder(const struct scene *s)
{
    return chdir(s->hidden) != 0 ? errno : ask_create(of_process(getpid(), "cwd/evil.md"));
}
static int try_monitor_root(const struct scene *s)
{
    char path[200];
    snprintf(path, sizeof path, "root%s/x.md", s->outside);
    return ask_create(of_process(getpid(), path));
}
static int try_folder_by_number(const struct scene *s)
{
    char path[64];
    snprintf(path, sizeof path, "fd/%d/x.md", s->folder_fd);
    return ask_create(of_process(getpid(), path));
}
TRY(link_to_hidden, ask_create(in_folder(s->outside, "link/x.md")))
TRY(hidden, ask_create(in_folder(s->hidden, "x.md")))
TRY(start_of_hidden, ask_create(in_folder(s->outside, ".bash_aliases.md")))
TRY(desktop, ask_create(in_folder(s->outside, "evil.desktop")))
TRY(makefile, ask_create(in_folder(s->outside, "GNUmakefile")))
TRY(kernel_folder, ask_create(of_process(s->victim, "x.md")))
TRY(device_folder, ask_create("/dev/shm/x.md"))
TRY(existing, ask_create(in_folder(s->outside, "notes.md")))
TRY(discard, ask_monitor(ASK_DISCARD, old(s), NULL, 0))
/* A folder that was passed over has a number in the monitor, but the path is resolved before,
 * without links. */
static int try_descriptors(const struct scene *s)
{
    int many[40];
    for (int i = 0; i < 40; i++)
        many[i] = s->folder_fd;
    return ask_monitor(ASK_CREATE, of_process(s->monitor, "fd/6/x.md"), many, 40);
}

static atomic_bool exchanging;

static void *exchange(void *arg)
{
    const struct scene *s = arg;
    char a[100], b[100];
    snprintf(a, sizeof a, "%s/real", s->inside);
    snprintf(b, sizeof b, "%s/to-hidden", s->inside);
    while (atomic_load(&exchanging))
        syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2 /* RENAME_EXCHANGE */);
    return NULL;
}

/* A folder becomes a link to a hidden one between the monitor's check and its use: as often as
 * there is time. */
static int try_race(const struct scene *s)
{
    pthread_t t;
    char name[40];
    int refused = 0;
    atomic_store(&exchanging, true);
    if (pthread_create(&t, NULL, exchange, (void *)(uintptr_t)s) != 0)
        return 0;
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "real/race-%d.md", i);
        int error = ask_create(in_folder(s->inside, name));
        refused = error ? error : refused;
        snprintf(name, sizeof name, "race-%d.md", i);
        if (access(in_folder(s->hidden, name), F_OK) == 0)
            refused = -1;
        if (refused < 0)
            break;
    }
    atomic_store(&exchanging, false);
    pthread_join(t, NULL);
    return refused < 0 ? 0 : ELOOP; /* nothing came to be in the hidden folder */
}

#define BY(by, what, f)                                                                            \
    {                                                                                              \
        what, f, by, 0, CONTROLLED                                                                 \
    }
static const struct attempt attempts[] = {
    /* attributes */
    BY(BY_SECCOMP, "chmod() of another file", try_chmod),
    BY(BY_SECCOMP, "fchmod() of a file open for reading", try_fchmod),
    BY(BY_SECCOMP, "fchmodat()", try_fchmodat),
    BY(BY_SECCOMP, "fchmodat2()", try_fchmodat2),
    BY(BY_SECCOMP, "chown()", try_chown),
    BY(BY_SECCOMP, "lchown()", try_lchown),
    BY(BY_SECCOMP, "fchown() of a file open for reading", try_fchown),
    BY(BY_SECCOMP, "fchownat() of a descriptor", try_fchownat),
    BY(BY_SECCOMP, "utime()", try_utime),
    BY(BY_SECCOMP, "utimes()", try_utimes),
    BY(BY_SECCOMP, "futimesat()", try_futimesat),
    BY(BY_SECCOMP, "utimensat()", try_utimensat),
    BY(BY_SECCOMP, "futimens() of a file open for reading", try_futimens),
    BY(BY_SECCOMP, "setxattr()", try_setxattr),
    BY(BY_SECCOMP, "lsetxattr()", try_lsetxattr),
    BY(BY_SECCOMP, "fsetxattr()", try_fsetxattr),
    BY(BY_SECCOMP, "setxattrat()", try_setxattrat),
    BY(BY_SECCOMP, "removexattr()", try_removexattr),
    BY(BY_SECCOMP, "lremovexattr()", try_lremovexattr),
    BY(BY_SECCOMP, "fremovexattr()", try_fremovexattr),
    BY(BY_SECCOMP, "removexattrat()", try_removexattrat),
    BY(BY_SECCOMP, "file_setattr()", try_file_setattr),
    BY(BY_SECCOMP, "inode flags by ioctl()", try_inode_flags),
    BY(BY_SECCOMP, "truncate()", try_truncate),
    BY(BY_SECCOMP, "open() for reading that truncates", try_open_truncating),
    {"openat2(), whose flags a filter cannot see", try_openat2, BY_SECCOMP, ENOSYS, CONTROLLED},
    /* terminals and devices */
    BY(BY_LANDLOCK, "writing to another terminal", try_other_terminal),
    BY(BY_LANDLOCK, "reading another terminal's keys", try_watch_terminal),
    BY(BY_SECCOMP, "opening another terminal for ioctl() only", try_mode_3),
    BY(BY_SECCOMP, "typing into the own terminal (TIOCSTI)", try_type),
    BY(BY_SECCOMP, "another line discipline (TIOCSETD)", try_discipline),
    BY(BY_SECCOMP, "another foreground job (TIOCSPGRP)", try_foreground),
    BY(BY_LANDLOCK, "a name in /dev/shm", try_shm_name),
    BY(BY_LANDLOCK, "a setting of the kernel in /proc/sys", try_sysctl),
    /* other processes */
    BY(BY_LANDLOCK, "/proc/PID/mem of another process", try_memory_file),
    {"/proc/PID/mem of the monitor", try_monitor_memory, BY_LANDLOCK, 0, CONTROLLED},
    BY(BY_LANDLOCK, "/proc/PID/environ of another process", try_secrets),
    BY(BY_LANDLOCK, "/proc/PID/fd of another process", try_its_descriptor),
    BY(BY_LANDLOCK, "/proc/PID/cwd of another process", try_its_folder),
    BY(BY_LANDLOCK, "/proc/PID/root of another process", try_its_root),
    {"/proc/PID/cwd of the monitor", try_monitor_folder, BY_LANDLOCK, 0, ALONE},
    BY(BY_LANDLOCK, "/proc/self/root", try_own_root),
    BY(BY_LANDLOCK, "/proc/self/fd of a file open for reading", try_own_descriptor),
    BY(BY_SECCOMP, "ptrace(ATTACH) of another process", try_ptrace),
    BY(BY_SECCOMP, "ptrace(SEIZE) of another process", try_seize),
    {"ptrace(SEIZE) of the monitor", try_ptrace_monitor, BY_SECCOMP, 0, CONTROLLED},
    BY(BY_SECCOMP, "process_vm_writev()", try_write_memory),
    BY(BY_SECCOMP, "process_vm_readv()", try_read_memory),
    BY(BY_SECCOMP, "pidfd_open() and pidfd_getfd()", try_pidfd_getfd),
    BY(BY_SECCOMP, "pidfd_send_signal()", try_pidfd_signal),
    BY(BY_SECCOMP, "kill() of another process", try_kill),
    {"kill() of the monitor", try_kill_monitor, BY_SECCOMP, 0, ALONE},
    BY(BY_SECCOMP, "tkill()", try_tkill),
    BY(BY_SECCOMP, "tgkill()", try_tgkill),
    BY(BY_SECCOMP, "rt_sigqueueinfo()", try_queue_signal),
    BY(BY_SECCOMP, "rt_tgsigqueueinfo()", try_queue_thread_signal),
    BY(BY_SECCOMP, "a signal from a descriptor (F_SETOWN, F_SETSIG)", try_signal_by_descriptor),
    BY(BY_SECCOMP, "a lease that delays others (F_SETLEASE)", try_lease),
    BY(BY_SECCOMP, "prlimit() of another process", try_limits),
    BY(BY_SECCOMP, "setpriority() of another process", try_priority),
    BY(BY_SECCOMP, "sched_setscheduler() of another process", try_scheduler),
    BY(BY_SECCOMP, "System V shared memory", try_shared_segment),
    BY(BY_SECCOMP, "a POSIX message queue", try_message_queue),
    BY(BY_SECCOMP, "a key in a keyring", try_key),
    /* programs */
    BY(BY_SECCOMP, "execveat() of a memory file", try_memory_program),
    BY(BY_SECCOMP, "execve() of a memory file through /proc", try_memory_program_by_name),
    /* names */
    BY(BY_LANDLOCK, "a symbolic link out of an own folder", try_symlink),
    {"a hard link into an own folder", try_hard_link, BY_LANDLOCK, EXDEV, CONTROLLED},
    BY(BY_LANDLOCK, "rename() over a file", try_rename_over),
    BY(BY_LANDLOCK, "an exchange of two files", try_exchange),
    BY(BY_LANDLOCK, "a folder's descriptor from before", try_folder_descriptor),
    BY(BY_CLOSING, "writing to a file open since before", try_inherited),
    BY(BY_LANDLOCK, "a name for a socket", try_socket_name),
    BY(BY_LANDLOCK, "a core dump in another folder", try_core),
    /* namespaces and mounts */
    BY(BY_SECCOMP, "unshare() of users and mounts", try_unshare),
    BY(BY_SECCOMP, "clone() with a user namespace", try_clone),
    {"clone3() with a user namespace", try_clone3, BY_SECCOMP, ENOSYS, CONTROLLED},
    BY(BY_SECCOMP, "setns()", try_setns),
    BY(BY_SECCOMP, "mount()", try_mount),
    BY(BY_SECCOMP, "chroot()", try_chroot),
    BY(BY_SECCOMP, "open_tree()", try_open_tree),
    BY(BY_SECCOMP, "fsopen()", try_fsopen),
    /* the kernel */
    BY(BY_SECCOMP, "bpf()", try_bpf),
    BY(BY_SECCOMP, "perf_event_open()", try_perf),
    BY(BY_SECCOMP, "userfaultfd()", try_userfaultfd),
    BY(BY_SECCOMP, "io_uring_setup()", try_io_uring),
    BY(BY_SECCOMP, "a call of the 32-bit kind (int 0x80)", try_32_bits),
    BY(BY_SECCOMP, "40 further calls: modules, clocks, swap, quotas, ...", try_others),
    /* the network */
    BY(BY_SECCOMP, "a TCP connection", try_tcp),
    BY(BY_SECCOMP, "an abstract socket of another process", try_abstract),
    BY(BY_SECCOMP, "a daemon's socket", try_named),
    BY(BY_SECCOMP, "a daemon's socket from a pair of own ones", try_pair),
    {"with the network granted: a daemon's socket", try_named, BY_SECCOMP, 0, ONLINE},
    {"with the network granted: an abstract socket", try_abstract, BY_SECCOMP, 0, ONLINE},
    {"with the network granted: raw packets", try_raw_packets, BY_SECCOMP, 0, ONLINE},
    {"with the network granted: netlink", try_netlink, BY_SECCOMP, 0, ONLINE},
    /* the monitor */
    {"edit: an option in place of a path", try_option, BY_MONITOR, EINVAL, ALONE},
    {"edit: a file that the monitor did not make", try_edit_other, BY_MONITOR, EINVAL, ALONE},
    {"create: through /proc/PID/cwd in a hidden folder", try_working_folder, BY_MONITOR, ELOOP,
     ALONE},
    {"create: through /proc/PID/root", try_monitor_root, BY_MONITOR, ELOOP, ALONE},
    {"create: through /proc/PID/fd", try_folder_by_number, BY_MONITOR, ELOOP, ALONE},
    {"create: through a link to a hidden folder", try_link_to_hidden, BY_MONITOR, ELOOP, ALONE},
    {"create: in a hidden folder", try_hidden, BY_MONITOR, 0, ALONE},
    {"create: a hidden file", try_start_of_hidden, BY_MONITOR, 0, ALONE},
    {"create: a desktop entry", try_desktop, BY_MONITOR, 0, ALONE},
    {"create: a makefile", try_makefile, BY_MONITOR, 0, ALONE},
    {"create: in /proc", try_kernel_folder, BY_MONITOR, 0, ALONE},
    {"create: in /dev", try_device_folder, BY_MONITOR, 0, ALONE},
    {"create: over an existing file", try_existing, BY_MONITOR, EEXIST, ALONE},
    {"create: a folder that becomes a link meanwhile", try_race, BY_MONITOR, ELOOP, ALONE},
    {"create: by the number of a descriptor passed over", try_descriptors, BY_MONITOR, ELOOP,
     ALONE},
    {"discard: a file that the monitor did not make", try_discard, BY_MONITOR, 0, ALONE},
};
#undef BY
#undef TRY
enum { N_ATTEMPTS = sizeof attempts / sizeof *attempts };
