/* isolate.c - see isolate.h.
 *
 * Both interfaces are used through their system calls: neither glibc nor a library of Debian 12
 * wraps Landlock, and a filter of one list of numbers needs no library.
 * https://docs.kernel.org/userspace-api/landlock.html, .../seccomp_filter.html */
#include "repl/process/isolate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/sanitizers.h"

/* ---- descriptors of the parent process ------------------------------------------------------- */

static void close_if_written(int fd)
{
    int how = fcntl(fd, F_GETFL);
    if (fd > STDERR_FILENO && how >= 0 && (how & O_ACCMODE) != O_RDONLY)
        close(fd);
}

void isolate_descriptors(void)
{
    enum { MOST = 65536 };
    FREED(folder_close) DIR *open_now = opendir("/proc/self/fd");
    struct rlimit most;
    if (open_now) {
        for (struct dirent *f; (f = readdir(open_now));) {
            const char *name = f->d_name;
            int fd;
            if (int_at(&name, &fd))
                close_if_written(fd);
        }
    } else if (getrlimit(RLIMIT_NOFILE, &most) == 0) { /* no /proc */
        for (int fd = 0; fd < MOST && (rlim_t)fd < most.rlim_cur; fd++)
            close_if_written(fd);
    }
}

/* ---- Landlock: writes and devices ------------------------------------------------------------ */

/* Not from linux/landlock.h: that of an older kernel lacks the newer rights. The numbers are part
 * of the ABI. */
enum {
    FS_WRITE_FILE = 1 << 1,
    FS_READ_FILE = 1 << 2,
    FS_REMOVE_DIR = 1 << 4,
    FS_REMOVE_FILE = 1 << 5,
    FS_MAKE_CHAR = 1 << 6,
    FS_MAKE_DIR = 1 << 7,
    FS_MAKE_REG = 1 << 8,
    FS_MAKE_SOCK = 1 << 9,
    FS_MAKE_FIFO = 1 << 10,
    FS_MAKE_BLOCK = 1 << 11,
    FS_MAKE_SYM = 1 << 12,
    FS_REFER = 1 << 13,    /* ABI 2; in ABI 1 files cannot be moved between folders at all */
    FS_TRUNCATE = 1 << 14, /* ABI 3 */
    IN_FOLDER = FS_WRITE_FILE | FS_REMOVE_DIR | FS_REMOVE_FILE | FS_MAKE_DIR | FS_MAKE_REG |
                FS_REFER | FS_TRUNCATE,
    ON_FILE = FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE,
    SCOPE_ABSTRACT_SOCKETS = 1 << 0, /* ABI 6 */
    SCOPE_SIGNALS = 1 << 1,
    RULE_PATH_BENEATH = 1,
    QUERY_VERSION = 1 << 0,
};

#if !defined(SYS_landlock_create_ruleset)
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

struct ruleset_attr {
    uint64_t fs, net, scoped;
};
struct path_attr {
    uint64_t access;
    int32_t fd;
} __attribute__((packed));

/* The version of Landlock's ABI; 0 and why[] if Landlock cannot be used. */
static int landlock_abi(char why[96])
{
    long abi = syscall(SYS_landlock_create_ruleset, NULL, (size_t)0, QUERY_VERSION);
    if (abi > 0)
        return (int)abi;
    snprintf(why, 96, errno == ENOSYS ? "this kernel has no Landlock"
                      : errno == EOPNOTSUPP ? "Landlock is turned off in this kernel"
                                            : "Landlock is refused here");
    return 0;
}

static uint64_t rights_of(int abi)
{
    uint64_t all = IN_FOLDER | FS_READ_FILE | FS_MAKE_CHAR | FS_MAKE_SOCK | FS_MAKE_FIFO |
                   FS_MAKE_BLOCK | FS_MAKE_SYM;
    return all & ~(uint64_t)((abi < 2 ? FS_REFER : 0) | (abi < 3 ? FS_TRUNCATE : 0));
}

/* Allows `rights` on a file, or on all files in a folder. A path that does not exist, or that this
 * process may not open, needs no rule. Neither does a file outside of mounted file systems
 * (EBADFD), such as a pipe that is the standard output: Landlock does not restrict it. */
static bool allow(int ruleset, const char *path, uint64_t rights)
{
    struct stat st;
    int fd = file_open(path, O_PATH, 0);
    if (fd < 0) /* after any other error a right that the program needs would be missing */
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == EPERM ||
               errno == ELOOP || errno == ESTALE || errno == ENOTCONN;
    if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode))
        rights &= ON_FILE;
    struct path_attr a = {rights, fd};
    bool ok = syscall(SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &a, 0) == 0 ||
              errno == EBADFD;
    int why = errno;
    close(fd);
    errno = why;
    return ok;
}

/* As allow(), for a path that names no folder; nothing if it does. */
static bool allow_file(int ruleset, const char *path, uint64_t rights)
{
    struct stat st;
    return (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) || allow(ruleset, path, rights);
}

/* The own terminal, and what the CUDA driver opens. Neither other terminals, nor disks, cameras or
 * keyboards can be opened, not even for reading. */
static bool allow_devices(int ruleset, uint64_t rights)
{
    static const char *const file[] = {"/dev/null",    "/dev/zero", "/dev/full",   "/dev/random",
                                       "/dev/urandom", "/dev/tty",  "/dev/stdout", "/dev/stderr"};
    glob_t found = {0};
    bool ok = true;
    for (size_t i = 0; i < LEN(file); i++)
        ok = ok && allow_file(ruleset, file[i], rights);
    ok = ok && allow_file(ruleset, "/dev/stdin", rights & FS_READ_FILE) &&
         allow(ruleset, "/dev/shm", rights & FS_READ_FILE) &&
         allow(ruleset, "/proc/self/task", rights); /* names of threads */
    if (ok && glob("/dev/nvidia*", 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            ok = ok && allow(ruleset, found.gl_pathv[i], rights);
    globfree(&found);
    return ok;
}

/* Allows reading everywhere but in /dev: Landlock has no rule that takes a right away, so each
 * other folder of the root gets one. */
static bool allow_reading(int ruleset)
{
    DIR *root = opendir("/");
    bool ok = root != NULL;
    for (struct dirent *f; ok && (f = readdir(root));) {
        FREED(free_at) char *path = xasprintf("/%s", f->d_name);
        if (strcmp(f->d_name, "..") != 0 && strcmp(f->d_name, ".") != 0 &&
            strcmp(f->d_name, "dev") != 0)
            ok = allow(ruleset, path, FS_READ_FILE);
    }
    int why = errno;
    if (root)
        closedir(root);
    errno = why;
    return ok;
}

/* Puts Landlock's part in force. False and why[]; *failed: the kernel has Landlock, but a call
 * failed. */
static bool confine_writes(const struct isolation *i, char why[96], bool *failed)
{
    int abi = landlock_abi(why);
    *failed = false;
    if (!abi)
        return false;
    uint64_t rights = rights_of(abi);
    struct ruleset_attr attr = {.fs = rights,
                                .scoped = abi >= 6 ? SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS : 0};
    size_t size = abi >= 6 ? sizeof attr : offsetof(struct ruleset_attr, net);
    FREED(fd_close) int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, size, 0);
    bool ok = ruleset >= 0 && allow_devices(ruleset, rights & ON_FILE) && allow_reading(ruleset);
    for (int f = 0; ok && f < i->n_folder; f++)
        ok = allow(ruleset, i->folder[f],
                   rights & (IN_FOLDER | (i->network & LINKS_MADE ? FS_MAKE_SYM : 0)));
#ifdef COVER /* make MODE=cover: where tests/covers.sh has the counts of lines written */
    const char *counts = getenv("GCOV_PREFIX");
    ok = ok && (!counts || allow(ruleset, counts, rights & IN_FOLDER));
#endif
    ok = ok && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_landlock_restrict_self, ruleset, 0) == 0;
    *failed = !ok;
    if (!ok)
        snprintf(why, 96, "Landlock failed: %s", strerror(errno));
    return ok;
}

/* ---- seccomp: system calls ------------------------------------------------------------------- */

#if defined(__x86_64__)
#define THIS_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif

/* System calls that nothing in aerie or the CUDA driver makes. Those behind #if are not in the
 * headers of every C library or processor; from 424 on, all processors have the same numbers. */
static const int16_t unused_calls[] = {
    /* programs, and the memory and descriptors of other processes */
    SYS_execve, SYS_execveat, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp,
    434 /* pidfd_open */, 438 /* pidfd_getfd */, 440 /* process_madvise */,
    448 /* process_mrelease */,
#if !HAS_ASAN && !HAS_TSAN /* the sanitizers' leak checker needs it */
    SYS_ptrace,
#endif
    /* signals to, and priorities of, other processes; kill() and the like are below */
    SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, 424 /* pidfd_send_signal */, SYS_setpriority,
    SYS_ioprio_set, SYS_sched_setscheduler, SYS_sched_setparam, SYS_sched_setattr,
    SYS_migrate_pages, SYS_move_pages,
    /* memory and messages that are shared by a name */
    SYS_shmget, SYS_shmat, SYS_shmctl, SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_semget,
    SYS_semop, SYS_semtimedop, SYS_semctl, SYS_mq_open, SYS_mq_unlink, SYS_add_key, SYS_request_key,
    SYS_keyctl,
    /* attributes of files, by path and by descriptor: a file that is open for reading only can be
     * changed, too */
    SYS_fchmod, SYS_fchmodat, 452 /* fchmodat2 */, SYS_fchown, SYS_fchownat, SYS_utimensat,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, 463 /* setxattrat */, SYS_removexattr,
    SYS_lremovexattr, SYS_fremovexattr, 466 /* removexattrat */, 469 /* file_setattr */,
#if defined(SYS_chmod)
    SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat,
#endif
    SYS_truncate, /* Landlock limits it from ABI 3 on */
    /* special files, mounts, namespaces, and the rest of the machine */
    SYS_mknodat,
#if defined(SYS_mknod)
    SYS_mknod,
#endif
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_unshare, SYS_setns,
    SYS_open_by_handle_at, SYS_fanotify_init, 428 /* open_tree */, 429 /* move_mount */,
    430 /* fsopen */, 431 /* fsconfig */, 432 /* fsmount */, 433 /* fspick */,
    442 /* mount_setattr */, 443 /* quotactl_fd */, 467 /* open_tree_attr */, SYS_quotactl,
    SYS_swapon, SYS_swapoff, SYS_reboot, SYS_init_module, SYS_finit_module, SYS_delete_module,
    SYS_kexec_load, SYS_acct, SYS_syslog, SYS_vhangup, SYS_settimeofday, SYS_clock_settime,
    SYS_adjtimex, SYS_clock_adjtime, SYS_sethostname, SYS_setdomainname,
#if defined(SYS_kexec_file_load)
    SYS_kexec_file_load,
#endif
#if defined(SYS_iopl)
    SYS_iopl, SYS_ioperm,
#endif
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter,
    SYS_io_uring_register, /* can open sockets */
};

/* The filter cannot read flags that are in memory, nor judge calls that are newer than this list:
 * to the program they do not exist (ENOSYS), as on an older kernel. Libraries then use the older
 * calls. */
enum { CLONE3 = 435, OPENAT2 = 437, FIRST_UNKNOWN = 471 };

/* The ioctl()s on terminals that the program makes, TCGETS2 and its three siblings last. None puts
 * input into a terminal, as TIOCSTI does. */
static const uint32_t terminal_calls[] = {
    TCGETS,    TCSETS,     TCSETSW,    TCSETSF,    TCSBRK,     TCXONC,  TCFLSH,
    TIOCGPGRP, TIOCGSID,   TIOCOUTQ,   TIOCGWINSZ, FIONREAD,   FIONBIO, FIONCLEX,
    FIOCLEX,   0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D,
};

#if defined(THIS_ARCH)

enum {
    X32 = 0x40000000,
    N_UNUSED = LEN(unused_calls),
    N_TERMINAL = LEN(terminal_calls)
};

struct program {
    struct sock_filter f[512];
    unsigned n;
};

static void add_instruction(struct program *p, struct sock_filter f)
{
    CHECK(p->n < sizeof p->f / sizeof *p->f);
    p->f[p->n++] = f;
}

static void load(struct program *p, size_t offset)
{
    add_instruction(p, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

/* The low half of an argument: every argument that is compared is an int. */
static void load_arg(struct program *p, int i)
{
    load(p, offsetof(struct seccomp_data, args) + (size_t)i * sizeof(uint64_t));
}

static void mask(struct program *p, uint32_t bits)
{
    add_instruction(p, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits));
}

static void allow_call(struct program *p)
{
    add_instruction(p, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
}

static void fail_call(struct program *p, int error)
{
    add_instruction(p, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO |
                    (uint32_t)error));
}

/* Executes the next `n` instructions if the loaded word equals the value (BPF_JGE: is at least,
 * BPF_JSET: has a bit of), else skips them. */
static void if_then(struct program *p, int how, uint32_t value, unsigned n)
{
    add_instruction(p, (struct sock_filter)BPF_JUMP((uint16_t)(BPF_JMP | how | BPF_K), value, 0,
                                                    (uint8_t)n));
}

static void fail_if(struct program *p, int how, uint32_t value, int error)
{
    if_then(p, how, value, 1);
    fail_call(p, error);
}

static void allow_if(struct program *p, uint32_t value)
{
    if_then(p, BPF_JEQ, value, 1);
    allow_call(p);
}

/* Fails unless the loaded word is one of n values. */
static void fail_unless(struct program *p, const uint32_t *value, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        add_instruction(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value[i],
                        (uint8_t)(n - i), 0));
    fail_call(p, EPERM);
}

/* Begins the instructions for one call, which may load other words; end_call() allows what none of
 * them failed. */
static unsigned begin_call(struct program *p, int nr)
{
    if_then(p, BPF_JEQ, (uint32_t)nr, 0);
    return p->n - 1;
}

static void end_call(struct program *p, unsigned begin)
{
    allow_call(p);
    CHECK(p->n - begin - 1 < 256);
    p->f[begin].jf = (uint8_t)(p->n - begin - 1);
}

/* Below ABI 3 Landlock does not limit O_TRUNC of a file that is opened for reading, and below ABI
 * 5 no ioctl() on a file that is opened neither for reading nor for writing (access mode 3). */
static void check_open(struct program *p, int nr, int flags)
{
    unsigned at = begin_call(p, nr);
    load_arg(p, flags);
    mask(p, O_ACCMODE);
    fail_if(p, BPF_JEQ, O_ACCMODE, EPERM);
    if_then(p, BPF_JEQ, O_RDONLY, 3);
    load_arg(p, flags);
    fail_if(p, BPF_JSET, O_TRUNC, EPERM);
    end_call(p, at);
}

/* Of a file's descriptor: no owner who receives signals, no lease, which could delay other
 * processes. */
static void check_fcntl(struct program *p)
{
    static const uint32_t refused[] = {F_SETOWN, F_SETOWN_EX, F_SETSIG, F_SETLEASE, F_NOTIFY};
    unsigned at = begin_call(p, SYS_fcntl);
    load_arg(p, 1);
    for (size_t i = 0; i < LEN(refused); i++)
        fail_if(p, BPF_JEQ, refused[i], EPERM);
    end_call(p, at);
}

/* Requests carry the kind of their device in bits 8 to 15: 'F' and 0 are NVIDIA's driver's. */
static void check_ioctl(struct program *p)
{
    static const uint32_t gpu[] = {'F' << 8, 0};
    unsigned at = begin_call(p, SYS_ioctl);
    load_arg(p, 1);
    for (int i = 0; i < N_TERMINAL; i++)
        allow_if(p, terminal_calls[i]);
    mask(p, 0xFF00);
    fail_unless(p, gpu, 2);
    end_call(p, at);
}

/* kill(): signals to this process, the test whether another exists, and Ctrl-Z for all of the
 * terminal's job. Else a call whose first argument names a process may name this one only, or 0 if
 * `zero`. */
static void check_process(struct program *p, int nr, bool zero)
{
    unsigned at = begin_call(p, nr);
    load_arg(p, 0);
    allow_if(p, (uint32_t)getpid());
    if (zero)
        allow_if(p, 0);
    if (nr == SYS_kill) {
        if_then(p, BPF_JEQ, 0, 3);
        load_arg(p, 1);
        allow_if(p, SIGTSTP);
        load_arg(p, 1);
        allow_if(p, 0);
    }
    fail_call(p, EPERM);
    end_call(p, at);
}

static void check_clone(struct program *p)
{
    enum { NEW_NAMESPACES = 0x7E020000 };
    unsigned at = begin_call(p, SYS_clone);
    load_arg(p, 0);
    fail_if(p, BPF_JSET, NEW_NAMESPACES, EPERM);
    end_call(p, at);
}

/* Allows sockets of a family, of n types only. The loaded word is the family. */
static void allow_sockets(struct program *p, uint32_t family, const uint32_t *type, unsigned n)
{
    if_then(p, BPF_JEQ, family, 2 * n + 3);
    load_arg(p, 1);
    mask(p, 0xF); /* without SOCK_CLOEXEC and SOCK_NONBLOCK */
    for (unsigned i = 0; i < n; i++)
        allow_if(p, type[i]);
    fail_call(p, EPERM);
}

static void check_socket(struct program *p, unsigned network)
{
    static const uint32_t internet[] = {SOCK_STREAM, SOCK_DGRAM},
                          local[] = {SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM};
    unsigned at = begin_call(p, SYS_socket);
    load_arg(p, 0);
    if (network & NETWORK_KEPT) {
        allow_sockets(p, AF_INET, internet, 2);
        allow_sockets(p, AF_INET6, internet, 2);
    }
    if (network & (NETWORK_LOCAL | NETWORK_UNTIL_LOADED))
        allow_sockets(p, AF_UNIX, local, network & NETWORK_LOCAL ? 3 : 1);
    fail_call(p, EPERM);
    end_call(p, at);
}

/* A pair for datagrams could be connected to another process's socket afterwards. */
static void check_socketpair(struct program *p)
{
    static const uint32_t type[] = {SOCK_STREAM, SOCK_SEQPACKET};
    unsigned at = begin_call(p, SYS_socketpair);
    load_arg(p, 1);
    mask(p, 0xF);
    fail_unless(p, type, 2);
    end_call(p, at);
}

static void check_arguments(struct program *p)
{
#if defined(SYS_open)
    check_open(p, SYS_open, 1);
#endif
    check_open(p, SYS_openat, 2);
    check_fcntl(p);
    check_ioctl(p);
    check_process(p, SYS_kill, false);
    check_process(p, SYS_tkill, false);
    check_process(p, SYS_tgkill, false);
    check_process(p, SYS_prlimit64, true);
    check_clone(p);
    check_socketpair(p);
}

static void begin_program(struct program *p)
{
    p->n = 0;
    load(p, offsetof(struct seccomp_data, arch));
    add_instruction(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 1, 0));
    fail_call(p, EPERM);
    load(p, offsetof(struct seccomp_data, nr));
#if defined(__x86_64__)
    fail_if(p, BPF_JGE, X32, EPERM);
#endif
}

/* Puts a filter in force for all threads. */
static bool install(struct program *p, char why[96])
{
    allow_call(p);
    struct sock_fprog program = {(unsigned short)p->n, p->f};
    long rc = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                  ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC,
                            &program)
                  : -1;
    if (rc != 0)
        snprintf(why, 96, "seccomp is refused here: %s", rc > 0 ? "a thread has another filter"
                                                                 : strerror(errno));
    return rc == 0;
}

static bool filter_calls(const struct isolation *i, char why[96])
{
    struct program p;
    begin_program(&p);
    for (unsigned k = 0; k < N_UNUSED; k++)
        fail_if(&p, BPF_JEQ, (uint32_t)unused_calls[k], EPERM);
    fail_if(&p, BPF_JEQ, CLONE3, ENOSYS);
    fail_if(&p, BPF_JEQ, OPENAT2, ENOSYS);
    fail_if(&p, BPF_JGE, FIRST_UNKNOWN, ENOSYS);
    check_arguments(&p);
    check_socket(&p, i->network);
    return install(&p, why);
}

static bool filter_sockets(unsigned network, char why[96])
{
    struct program p;
    begin_program(&p);
    check_socket(&p, network);
    return install(&p, why);
}

static bool can_filter(char why[96])
{
    uint32_t action = SECCOMP_RET_ERRNO;
    if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0)
        return true;
    snprintf(why, 96, "this kernel has no seccomp filters");
    return false;
}

#else

static bool can_filter(char why[96])
{
    snprintf(why, 96, "no filter was written for this kind of processor");
    return false;
}

static bool filter_calls(const struct isolation *, char why[96])
{
    return can_filter(why);
}

static bool filter_sockets(unsigned, char why[96])
{
    return can_filter(why);
}

#endif

static bool filtered;        /* set by isolate(): a filter is installed */
static unsigned network_now; /* what it lets socket() make */

/* ---- capabilities: of root ------------------------------------------------------------------- */

/* Gives up what root may do, except with files that the other parts let it reach, and except ports
 * below 1024. False and why[]. */
static bool drop_capabilities(char why[96])
{
    enum {
        KEPT = 1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH | 1 << CAP_FOWNER |
               1 << CAP_NET_BIND_SERVICE
    };
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct now[2] = {0};
    bool ok = syscall(SYS_capget, &head, now) == 0;
    now[0].effective &= KEPT, now[0].permitted &= KEPT, now[0].inheritable = 0;
    now[1] = (struct __user_cap_data_struct){0};
    ok = ok && syscall(SYS_capset, &head, now) == 0;
    if (!ok)
        snprintf(why, 96, "capabilities cannot be given up: %s", strerror(errno));
    return ok;
}

/* ---- all ------------------------------------------------------------------------------------ */

/* If the driver's device files are missing, cuInit() runs a setuid program, nvidia-modprobe, to
 * make them. An isolated process could not start it and would find no GPU. */
static bool gpu_files_missing(void)
{
    return access("/proc/driver/nvidia/version", F_OK) == 0 &&
           (access("/dev/nvidiactl", F_OK) != 0 || access("/dev/nvidia-uvm", F_OK) != 0);
}

/* Whether the process must not be isolated now; then got says why. */
static bool not_now(struct isolated *got)
{
    if (!gpu_files_missing())
        return false;
    snprintf(got->writes_why_not, sizeof got->writes_why_not,
             "the GPU's device files do not exist yet; nvidia-smi makes them");
    memcpy(got->programs_why_not, got->writes_why_not, sizeof got->programs_why_not);
    return true;
}

void isolate(const struct isolation *i, struct isolated *got)
{
    *got = (struct isolated){0};
    if (not_now(got))
        return;
    got->writes = confine_writes(i, got->writes_why_not, &got->failed);
    got->programs = can_filter(got->programs_why_not) &&
                    (filter_calls(i, got->programs_why_not) || !(got->failed = true));
    filtered = got->programs;
    network_now = i->network;
    if (!drop_capabilities(got->programs_why_not))
        got->programs = !(got->failed = true);
    got->network = got->programs && !(i->network & (NETWORK_KEPT | NETWORK_LOCAL));
}

static void restrict_network(unsigned to)
{
    char why[96];
    if (filtered && (network_now & to) != network_now)
        filter_sockets(network_now &= to, why);
}

void isolate_after_loading(void)
{
    restrict_network(~(unsigned)NETWORK_UNTIL_LOADED);
}

void isolate_from_network(void)
{
    restrict_network(NETWORK_NEVER);
}

void isolation_probe(struct isolated *got)
{
    int end[2], status;
    ssize_t n = -1;
    *got = (struct isolated){0};
    pid_t pid = pipe2(end, O_CLOEXEC) == 0 ? fork() : (end[0] = end[1] = -1);
    if (pid == 0) {
        isolate(&(struct isolation){.network = NETWORK_NEVER}, got);
        _exit(write(end[1], got, sizeof *got) != sizeof *got);
    }
    int why = errno;
    if (end[1] >= 0)
        close(end[1]);
    if (pid > 0) {
        n = read(end[0], got, sizeof *got);
        waitpid(pid, &status, 0);
        why = ECHILD;
    }
    if (end[0] >= 0)
        close(end[0]);
    if (n == sizeof *got)
        return;
    *got = (struct isolated){.failed = true};
    snprintf(got->writes_why_not, sizeof got->writes_why_not, "cannot be tried: %s", strerror(why));
    memcpy(got->programs_why_not, got->writes_why_not, sizeof got->programs_why_not);
}
