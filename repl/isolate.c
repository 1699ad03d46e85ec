/* isolate.c - see isolate.h.
 *
 * Both interfaces are used through their system calls: neither glibc nor a library of Debian 12
 * wraps Landlock, and a filter of one list of numbers needs no library.
 * https://docs.kernel.org/userspace-api/landlock.html, .../seccomp_filter.html
 */
#include "repl/isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/sanitizers.h"

/* ---- Landlock: writes ------------------------------------------------------------------------ */

/* Not from linux/landlock.h: that of an older kernel lacks the newer rights. The numbers are part
 * of the ABI. */
enum {
    FS_WRITE_FILE = 1 << 1,
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
    ON_DEVICE = FS_WRITE_FILE | FS_TRUNCATE,
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
    uint64_t all = IN_FOLDER | FS_MAKE_CHAR | FS_MAKE_SOCK | FS_MAKE_FIFO | FS_MAKE_BLOCK |
                   FS_MAKE_SYM;
    return all & ~(uint64_t)((abi < 2 ? FS_REFER : 0) | (abi < 3 ? FS_TRUNCATE : 0));
}

/* Allows `rights` on a file or in a folder. A path that does not exist, or that this process may
 * not open, needs no rule. Neither does a file outside of mounted file systems (EBADFD), such as a
 * pipe that is the standard output: Landlock does not restrict it. */
static bool allow(int ruleset, const char *path, uint64_t rights)
{
    struct stat st;
    int fd = file_open(path, O_PATH, 0);
    if (fd < 0) /* after any other error a right that the program needs would be missing */
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == EPERM;
    if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode))
        rights &= FS_WRITE_FILE | FS_TRUNCATE;
    struct path_attr a = {rights, fd};
    bool ok = syscall(SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &a, 0) == 0 || errno == EBADFD;
    int why = errno;
    close(fd);
    errno = why;
    return ok;
}

/* The terminal, and what the CUDA driver opens. */
static bool allow_devices(int ruleset, uint64_t rights)
{
    static const char *const name[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/pts",
                                       "/dev/stdout", "/dev/stderr", "/proc/self/task"};
    glob_t found = {0};
    bool ok = true;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        ok = ok && allow(ruleset, name[i], rights);
    if (glob("/dev/nvidia*", 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            ok = ok && allow(ruleset, found.gl_pathv[i], rights);
    globfree(&found);
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
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, size, 0);
    bool ok = ruleset >= 0 && allow_devices(ruleset, rights & ON_DEVICE);
    for (int f = 0; ok && f < i->n_folder; f++)
        ok = allow(ruleset, i->folder[f], rights & IN_FOLDER);
    ok = ok && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_landlock_restrict_self, ruleset, 0) == 0;
    *failed = !ok;
    if (!ok)
        snprintf(why, 96, "Landlock failed: %s", strerror(errno));
    if (ruleset >= 0)
        close(ruleset);
    return ok;
}

/* ---- seccomp: programs and the network ------------------------------------------------------- */

#if defined(__x86_64__)
#define THIS_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif

/* System calls that nothing in aerie or the CUDA driver makes. */
static const int16_t unused_calls[] = {
    SYS_execve, SYS_execveat,
#if !HAS_ASAN && !HAS_TSAN /* the sanitizers' leak checker needs it */
    SYS_ptrace,
#endif
    SYS_process_vm_readv, SYS_process_vm_writev, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
    SYS_keyctl, SYS_add_key, SYS_request_key, SYS_unshare, SYS_setns, SYS_chroot, SYS_pivot_root,
    SYS_mount, SYS_umount2, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_init_module, SYS_finit_module,
    SYS_delete_module, SYS_kexec_load, SYS_acct, SYS_settimeofday, SYS_clock_settime,
    SYS_sethostname, SYS_setdomainname, SYS_open_by_handle_at, SYS_mknodat,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, /* can open sockets */
    SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_pidfd_getfd,
#if defined(SYS_mknod)
    SYS_mknod,
#endif
};

#if defined(THIS_ARCH)

#define WORD(field) ((uint32_t)offsetof(struct seccomp_data, field))
#define LOAD(field) (struct sock_filter) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, WORD(field))
/* executes the next instruction if the loaded word equals `value` (BPF_JGE: is at least `value`),
 * else skips it */
#define IF(how, value) (struct sock_filter) BPF_JUMP(BPF_JMP | (how) | BPF_K, (uint32_t)(value), 0, 1)
#define RETURN(verdict) (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, (uint32_t)(verdict))
#define REFUSE RETURN(SECCOMP_RET_ERRNO | EPERM)

enum { X32 = 0x40000000, N_UNUSED = sizeof unused_calls / sizeof *unused_calls };

/* Installs a filter that refuses the unused calls, if `programs`, and socket(), if `network`. */
static bool install(bool programs, bool network, char why[96])
{
    struct sock_filter f[2 * N_UNUSED + 32];
    unsigned n = 0;
    f[n++] = LOAD(arch);
    f[n++] = IF(BPF_JEQ, THIS_ARCH), f[n - 1].jt = 1, f[n - 1].jf = 0;
    f[n++] = REFUSE;
    f[n++] = LOAD(nr);
#if defined(__x86_64__)
    f[n++] = IF(BPF_JGE, X32), f[n++] = REFUSE;
#endif
    for (unsigned i = 0; programs && i < N_UNUSED; i++)
        f[n++] = IF(BPF_JEQ, unused_calls[i]), f[n++] = REFUSE;
    if (network)
        f[n++] = IF(BPF_JEQ, SYS_socket), f[n++] = REFUSE;
    if (programs) { /* ioctl()s that put input into the terminal, as if the user had typed it */
        f[n++] = (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 5);
        f[n++] = LOAD(args[1]);
        f[n++] = IF(BPF_JEQ, TIOCSTI), f[n++] = REFUSE;
        f[n++] = IF(BPF_JEQ, TIOCLINUX), f[n++] = REFUSE;
    }
    f[n++] = RETURN(SECCOMP_RET_ALLOW);
    CHECK(n <= sizeof f / sizeof *f);
    struct sock_fprog program = {(unsigned short)n, f};
    long rc = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                  ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)
                  : -1;
    if (rc != 0)
        snprintf(why, 96, "seccomp is refused here: %s", rc > 0 ? "a thread has another filter"
                                                                 : strerror(errno));
    return rc == 0;
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

static bool install(bool programs, bool network, char why[96])
{
    (void)programs, (void)network;
    snprintf(why, 96, "no filter was written for this kind of processor");
    return false;
}

static bool can_filter(char why[96])
{
    return install(true, true, why);
}

#endif

static bool filtered, until_loaded; /* set by isolate(): a filter is installed; socket() works until
                                       the model is loaded */

/* ---- both ------------------------------------------------------------------------------------ */

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
                    (install(true, i->network == NETWORK_NEVER, got->programs_why_not) || !(got->failed = true));
    got->network = got->programs && i->network != NETWORK_KEPT;
    filtered = got->programs;
    until_loaded = filtered && i->network == NETWORK_UNTIL_LOADED;
}

void isolate_after_loading(void)
{
    if (until_loaded)
        isolate_from_network();
    until_loaded = false;
}

void isolate_from_network(void)
{
    char why[96];
    if (filtered)
        install(false, true, why);
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
