/* test_isolate.c - an isolated process tries to break out: each way must fail, also from a later
 * thread and from a child, and what the program needs must go on working. The same ways must
 * succeed without the isolation, else the test would show nothing. Then the monitor: what it does,
 * and what it refuses. At last an attacker who has taken over the isolated process: a test for
 * each attempt of tests/attacker.h, whose name says what stops it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "repl/cli/flags.h"
#include "repl/process/isolate.h"
#include "repl/process/monitor.h"
#include "repl/process/open.h"
#include "tests/attacker.h"

static char top[64] = "/tmp/aerie-isolate-XXXXXX", inside[80], outside[80];

/* "inside" or "outside"/name, in one of four buffers used in turn */
static const char *in(const char *folder, const char *name)
{
    static char path[4][160];
    static int k;
    snprintf(path[++k & 3], sizeof *path, "%s/%s", folder, name);
    return path[k & 3];
}

static bool make(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static bool opens(const char *path, int how)
{
    int fd = open(path, how | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* ---- ways out: each returns whether it worked ------------------------------------------------ */

static bool create_outside(void) { return make(in(outside, "new")); }
static bool write_outside(void) { return opens(in(outside, "old"), O_WRONLY); }
static bool cut_outside(void) { return truncate(in(outside, "old"), 1) == 0; }
static bool remove_outside(void) { return unlink(in(outside, "old")) == 0; }
static bool folder_outside(void) { return mkdir(in(outside, "folder"), 0700) == 0; }
static bool link_out(void) { return link(in(inside, "own"), in(outside, "linked")) == 0; }
static bool move_out(void) { return rename(in(inside, "own"), in(outside, "moved")) == 0; }
static bool replace_inside(void) { return rename(in(outside, "old"), in(inside, "old")) == 0; }
static bool through_a_link(void) { return opens(in(inside, "link"), O_WRONLY); }
static bool named_pipe(void) { return mkfifo(in(inside, "fifo"), 0600) == 0; }
static bool up_and_down(void)
{
    return make(in(inside, "../outside/dots"));
}

static bool run_a_program(void)
{
    pid_t pid = fork();
    int status = 0;
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(99);
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool run_a_file(void)
{
    int fd = open("/bin/true", O_RDONLY | O_CLOEXEC), status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        char *argv[] = {"true", NULL}, *env[] = {NULL};
        fexecve(fd, argv, env);
        _exit(99);
    }
    close(fd);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool has_socket(int family, int type)
{
    int fd = socket(family, type, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static bool tcp(void) { return has_socket(AF_INET, SOCK_STREAM); }
static bool udp6(void) { return has_socket(AF_INET6, SOCK_DGRAM); }
static bool local_socket(void) { return has_socket(AF_UNIX, SOCK_STREAM); }
static bool netlink(void) { return has_socket(AF_NETLINK, SOCK_RAW); }

/* A call that is not refused fails for its arguments, with another errno than EPERM. */
static bool reaches(long nr)
{
    errno = 0;
    return syscall(nr, -1, -1, -1, -1, -1, -1) >= 0 || errno != EPERM;
}

static bool io_uring(void) { return reaches(SYS_io_uring_setup); }
static bool other_memory(void) { return reaches(SYS_process_vm_writev); }

#define WAY(f) {#f, f}
static const struct way {
    const char *name;
    bool (*out)(void);
} files[] = {WAY(create_outside), WAY(write_outside), WAY(cut_outside), WAY(folder_outside),
WAY(up_and_down),
             WAY(link_out), WAY(through_a_link), WAY(replace_inside), WAY(move_out),
             WAY(remove_outside), WAY(named_pipe)},
  programs[] = {WAY(run_a_program), WAY(run_a_file), WAY(io_uring), WAY(other_memory)},
  networks[] = {WAY(tcp), WAY(udp6), WAY(local_socket), WAY(netlink)};

/* ---- trying them ----------------------------------------------------------------------------- */

static void fresh_folders(void)
{
    char *clean = xasprintf("rm -rf %s/*", top);
    assert_int_equal(system(clean), 0);
    free(clean);
    assert_int_equal(mkdir(inside, 0700), 0);
    assert_int_equal(mkdir(outside, 0700), 0);
    assert_true(make(in(inside, "own")));
    assert_true(make(in(outside, "old")));
    assert_int_equal(symlink(in(outside, "old"), in(inside, "link")), 0);
}

enum from { FROM_MAIN, FROM_THREAD, FROM_CHILD, N_FROM };
enum how { FREE, ISOLATED, WITH_NETWORK };

static void *on_thread(void *arg)
{
    const struct way *w = arg;
    return w->out() ? arg : NULL;
}

static bool attempt(const struct way *w, enum from from)
{
    pthread_t t;
    void *got = NULL;
    int status = 0;
    if (from == FROM_MAIN)
        return w->out();
    if (from == FROM_THREAD)
        return pthread_create(&t, NULL, on_thread, (void *)(uintptr_t)w) == 0 &&
               pthread_join(t, &got) == 0 && got;
    pid_t pid = fork();
    if (pid == 0)
        _exit(w->out());
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status);
}

static pid_t isolated_pid;

/* Whether the way out works in a process of its own. */
static bool works(const struct way *w, enum how how, enum from from)
{
    int status = 0;
    fresh_folders();
    pid_t pid = fork();
    if (pid == 0) {
        const char *const own[] = {inside, "/tmp/aerie-no-such-folder"};
        struct isolated got = {0};
        isolated_pid = getpid();
        if (how != FREE)
            isolate(&(struct isolation){own, 2, how == WITH_NETWORK ? NETWORK_KEPT : NETWORK_NEVER},
                    &got);
        _exit(got.failed ? 2 : attempt(w, from) ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 1;
}

static void all_refused(const struct way *w, size_t n, bool holds)
{
    if (!holds)
        skip();
    for (size_t i = 0; i < n; i++) {
        bool possible = works(&w[i], FREE, FROM_MAIN);
        for (int from = 0; possible && from < N_FROM; from++)
            if (works(&w[i], ISOLATED, (enum from)from))
                fail_msg("%s works from %s", w[i].name,
                         (const char *[]){"main", "a thread", "a child"}[from]);
        if (!possible && w != networks && w[i].out != io_uring)
            fail_msg("%s does not even work without isolation", w[i].name);
    }
}

#define COUNT(a) (sizeof(a) / sizeof *(a))

static struct isolated can;

static void test_files_outside(void **unused)
{
    (void)unused;
    all_refused(files, COUNT(files), can.writes);
}

/* What standard input, output and error may be. -1: closed. */
static int stream(int kind)
{
    int end[2] = {-1, -1};
    switch (kind) {
    case 0: return pipe(end) == 0 ? end[1] : -2;
    case 1: return socketpair(AF_UNIX, SOCK_STREAM, 0, end) == 0 ? end[1] : -2;
    case 2: return open("/dev/null", O_RDWR);
    case 3: return memfd_create("stream", 0);
    case 4: end[0] = open(in(inside, "own"), O_RDWR); return unlink(in(inside, "own")) == 0 ? end[0]
                     : -2;
    case 5: return open(in(outside, "old"), O_RDWR);
    case 6: return posix_openpt(O_RDWR | O_NOCTTY);
    case 7: return eventfd(0, 0);
    default: return -1;
    }
}

/* In a child: 0: isolated, no file outside can be created, and the stream still takes bytes. */
static int isolated_with(int kind)
{
    const char *const own[] = {inside};
    struct isolated got;
    int fd = stream(kind);
    for (int i = 0; i < 3; i++)
        if (fd < 0 ? (close(i), fd == -2) : dup2(fd, i) != i)
            return 1;
    isolate(&(struct isolation){own, 1, NETWORK_NEVER}, &got);
    bool takes = fd < 0 || write(STDOUT_FILENO, "12345678", 8) == 8;
    return !got.writes + 2 * got.failed + 4 * create_outside() + 8 * !takes;
}

static void test_whatever_the_standard_streams_are(void **unused)
{
    (void)unused;
    if (!can.writes)
        skip();
    for (int kind = 0; kind < 9; kind++) {
        int status = 0;
        fresh_folders();
        pid_t pid = fork();
        if (pid == 0)
            _exit(isolated_with(kind));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (status)
            fail_msg("stream %d: status %x", kind, status);
    }
}

/* Without a descriptor for a rule nothing is confined in part, and *got says so. */
static void test_a_failure_is_told(void **unused)
{
    (void)unused;
    if (!can.writes)
        skip();
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        struct isolated got;
        int fd = open("/dev/null", O_RDONLY);
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)fd + 1, (rlim_t)fd + 1});
        close(fd); /* one descriptor is left */
        isolate(&(struct isolation){.network = NETWORK_NEVER}, &got);
        _exit(got.writes || !got.failed || !strstr(got.writes_why_not, strerror(EMFILE)));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_programs(void **unused)
{
    (void)unused;
    all_refused(programs, COUNT(programs), can.programs);
}

static void test_network(void **unused)
{
    (void)unused;
    all_refused(networks, COUNT(networks), can.network);
    assert_int_equal(works(&networks[0], WITH_NETWORK, FROM_THREAD),
                     works(&networks[0], FREE, FROM_MAIN));
}

/* Whether another process exists can be found out: history/log/live.c needs it. */
static bool tells_the_dead(void)
{
    enum { TOO_LARGE = 1 << 23 }; /* the largest process id is 2^22 */
    return (kill(getppid(), 0) == 0 || errno == EPERM) && kill(TOO_LARGE, 0) != 0 && errno == ESRCH;
}

/* Only the isolated process itself may raise a signal, not its children. */
static bool raises(void)
{
    signal(SIGUSR1, SIG_IGN);
    return getpid() != isolated_pid || raise(SIGUSR1) == 0;
}

/* As a shell's <(command). */
static bool open_pipe_by_name(void)
{
    char path[64];
    int end[2];
    if (pipe(end) != 0)
        return false;
    snprintf(path, sizeof path, "/dev/fd/%d", end[0]);
    return opens(path, O_RDONLY);
}

/* What the program does all the time. */
static bool ordinary(void)
{
    int end[2];
    char back[4];
    return make(in(inside, "a")) && mkdir(in(inside, "b"), 0700) == 0 &&
           rename(in(inside, "a"), in(inside, "b/c")) == 0 &&
           opens(in(inside, "own"), O_RDWR | O_TRUNC) && unlink(in(inside, "own")) == 0 &&
           opens(in(outside, "old"), O_RDONLY) && opens("/dev/null", O_RDWR) &&
           opens("/dev/urandom", O_RDONLY) && opens("/proc/self/status", O_RDONLY) &&
           opens("/proc/self/task", O_RDONLY | O_DIRECTORY) &&
           opens("/dev/shm", O_RDONLY | O_DIRECTORY) &&
           socketpair(AF_UNIX, SOCK_STREAM, 0, end) == 0 && write(end[0], "abc", 4) == 4 &&
           read(end[1], back, 4) == 4 && kill(getpid(), 0) == 0 && tells_the_dead() && raises() &&
           open_pipe_by_name();
}

static void test_what_must_work(void **unused)
{
    (void)unused;
    const struct way w = {"ordinary work", ordinary};
    for (int from = 0; from < N_FROM; from++)
        assert_true(works(&w, ISOLATED, (enum from)from));
}

/* The network is given up once a port is open, or a model is loaded: for threads that run already,
 * too. */
struct later {
    int go[2], family, type;
};

static void *later(void *arg)
{
    struct later *l = arg;
    char c;
    return read(l->go[0], &c, 1) == 1 && has_socket(l->family, l->type) ? arg : NULL;
}

/* 0: sockets of one kind could be made until `give_up`, and then no more; others not even
 * before. */
static int gives_up(const struct isolation *i, void (*give_up)(void), int family, int type)
{
    struct isolated got;
    struct later l = {.family = family, .type = type};
    pthread_t t;
    void *broke_out = NULL;
    isolate_from_network(); /* not isolated: nothing happens */
    isolate_after_loading();
    bool before = has_socket(family, type);
    isolate(i, &got);
    before = before && has_socket(family, type) && !has_socket(AF_UNIX, SOCK_STREAM) &&
             !has_socket(AF_NETLINK, SOCK_RAW) && pipe(l.go) == 0 &&
             pthread_create(&t, NULL, later, &l) == 0;
    give_up();
    bool after = write(l.go[1], "x", 1) != 1 || pthread_join(t, &broke_out) != 0 || broke_out ||
                 has_socket(family, type);
    return before && !after ? 0 : 1;
}

static void test_network_given_up_later(void **unused)
{
    (void)unused;
    if (!can.network)
        skip();
    for (int k = 0; k < 2; k++) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0)
            _exit(k ? gives_up(&(struct isolation){NULL, 0, NETWORK_KEPT}, isolate_from_network,
                               AF_INET, SOCK_STREAM)
                    : gives_up(&(struct isolation){NULL, 0, NETWORK_UNTIL_LOADED},
                               isolate_after_loading, AF_UNIX, SOCK_SEQPACKET));
        waitpid(pid, &status, 0);
        assert_int_equal(status, 0);
    }
}

/* A server that loads a model keeps the network, but not the driver's kind of sockets. */
static void test_network_kept_by_a_server(void **unused)
{
    (void)unused;
    int status = 0;
    if (!can.network)
        skip();
    pid_t pid = fork();
    if (pid == 0) {
        struct isolated got;
        isolate(&(struct isolation){NULL, 0, NETWORK_KEPT | NETWORK_UNTIL_LOADED}, &got);
        bool before = has_socket(AF_INET, SOCK_STREAM) && has_socket(AF_UNIX, SOCK_SEQPACKET) &&
                      !has_socket(AF_UNIX, SOCK_STREAM);
        isolate_after_loading();
        _exit(!before || !has_socket(AF_INET, SOCK_STREAM) || !has_socket(AF_INET6, SOCK_DGRAM) ||
              has_socket(AF_UNIX, SOCK_SEQPACKET));
    }
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

/* A command's first engine may be the CPU's, or a server: the driver's kind of sockets is left for
 * the engine that first looks for a GPU. */
static void test_socket_of_the_driver_for_a_later_engine(void **unused)
{
    (void)unused;
    int status = 0;
    if (!can.network)
        skip();
    pid_t pid = fork();
    if (pid == 0) {
        struct isolated got;
        struct err e;
        struct engine_opts o = {.model = "/nowhere", .device = "cpu"};
        settings_init(&o.settings);
        isolate(&(struct isolation){NULL, 0, NETWORK_UNTIL_LOADED}, &got);
        bool ok = !open_backend(&o, &e) && has_socket(AF_UNIX, SOCK_SEQPACKET);
        o.server.url = "no address";
        ok = ok && !open_backend(&o, &e) && has_socket(AF_UNIX, SOCK_SEQPACKET);
        o.server.url = NULL;
        o.device = "auto";
        _exit(!ok || open_backend(&o, &e) || has_socket(AF_UNIX, SOCK_SEQPACKET));
    }
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

/* For a server's events at an ipc:// address. */
static void test_local_sockets_where_they_are_named(void **unused)
{
    (void)unused;
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        struct isolated got;
        isolate(&(struct isolation){NULL, 0, NETWORK_KEPT | NETWORK_LOCAL}, &got);
        _exit(!has_socket(AF_INET, SOCK_STREAM) || !has_socket(AF_UNIX, SOCK_STREAM));
    }
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

/* ---- the monitor ----------------------------------------------------------------------------- */

static const char the_log[] = "the log";

static int upper(const char *log)
{
    char c;
    if (!log || strcmp(log, the_log) != 0)
        return 2;
    while (read(STDIN_FILENO, &c, 1) == 1) {
        if (c == '!') /* never ends */
            for (;;)
                pause();
        c = (char)(c >= 'a' && c <= 'z' ? c - 32 : c);
        if (write(STDOUT_FILENO, &c, 1) != 1)
            return 1;
    }
    return 7;
}

static int ask_query(const char *text, bool stop)
{
    int to[2], from[2];
    char got[16] = "";
    assert_int_equal(pipe(to) | pipe(from), 0);
    assert_true(monitor_query(to[0], from[1]));
    assert_false(monitor_query(to[0], from[1])); /* one at a time */
    close(to[0]);
    close(from[1]);
    assert_int_equal(write(to[1], text, strlen(text)), strlen(text));
    close(to[1]);
    if (!stop) {
        for (int n = 0; n < 3; n++)
            assert_int_equal(read(from[0], got + n, 1), 1);
        assert_string_equal(got, "ABC");
    }
    close(from[0]);
    return monitor_query_end(stop);
}

static void test_monitor(void **unused)
{
    (void)unused;
    char path[200];
    struct stat st;
    fresh_folders();
    int fd = monitor_create(in(outside, "export.md"));
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "text", 4), 4);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    close(fd);
    static const char *const refused[] = {"export.md", ".hidden", ".dir/x", "a/../.b/c"};
    assert_int_equal(monitor_create(in(outside, refused[0])), -1);
    assert_int_equal(errno, EEXIST);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(monitor_create(in(outside, refused[i])), -1);
        assert_int_equal(errno, EPERM);
    }
    assert_int_equal(monitor_create(in(inside, "link")), -1); /* never through a link */
    assert_int_equal(monitor_create(in(outside, "no/folder")), -1);
    assert_int_equal(errno, ENOENT);
    char *far = xasprintf("%s/%5000d", outside, 1);
    assert_int_equal(monitor_create(far), -1);
    assert_int_equal(errno, ENAMETOOLONG);
    free(far);

    assert_false(monitor_settle(in(outside, "old"), false)); /* not the monitor's */
    snprintf(path, sizeof path, "%s", in(outside, "export.md"));
    assert_int_equal(rename(path, in(outside, "kept")), 0);
    assert_true(make(path));
    assert_false(monitor_settle(path, false)); /* the same name, another file */
    assert_int_equal(rename(in(outside, "kept"), path), 0);
    assert_true(monitor_settle(path, false));
    assert_int_equal(access(path, F_OK), -1);

    int status = ask_query("abc", false);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    status = ask_query("!", true);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    fd = monitor_create(in(outside, "first.jsonl"));
    assert_true(fd >= 0);
    close(fd);
    fd = monitor_create(in(outside, "second.jsonl")); /* the first was not kept */
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(access(in(outside, "first.jsonl"), F_OK), -1);
    assert_true(monitor_settle(in(outside, "second.jsonl"), true));
    assert_false(monitor_settle(in(outside, "second.jsonl"), false));
    assert_int_equal(access(in(outside, "second.jsonl"), F_OK), 0);
}

/* How many folders TMPDIR holds in which a message could be. */
static int messages(void)
{
    glob_t found = {0};
    char *pattern = xasprintf("%s/aerie-[A-Za-z0-9]*/message.md", getenv("TMPDIR"));
    int n = glob(pattern, 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    globfree(&found);
    free(pattern);
    return n;
}

static void test_a_message_is_edited(void **unused)
{
    (void)unused;
    int text = -1;
    assert_int_equal(monitor_edit(&text), -1); /* nothing was made */
    assert_int_equal(errno, EINVAL);
    assert_int_equal(text, -1);
    assert_int_equal(messages(), 0);
    close(monitor_message());
    assert_int_equal(messages(), 1);
    int fd = monitor_message(); /* the first is removed */
    assert_true(fd >= 0);
    assert_int_equal(messages(), 1);
    assert_int_equal(write(fd, "mine", 4), 4);
    close(fd);
    setenv("EDITOR", "unused", 1); /* the monitor's own was set before it was started */
    int status = monitor_edit(&text);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    char got[16] = "";
    assert_int_equal(read(text, got, 15), 11);
    assert_string_equal(got, "mine edited");
    close(text);
    for (int i = 0; i < 500 && messages() > 0; i++)
        usleep(10000);
    assert_int_equal(messages(), 0);           /* the file that the editor left beside it, too */
    assert_int_equal(monitor_edit(&text), -1); /* once */
    assert_int_equal(errno, EINVAL);
}

/* ---- what a command may write ---------------------------------------------------------------- */

/* In a child: isolates the process as the program does for a command line, in a folder that is no
 * other command's; bit 0: a file can be created there, 1: in "inside", 2: beside the log, 3: a
 * descriptor that was inherited for writing is open, 4: one for reading is not. */
static int rights_of_command(int argc, char **argv)
{
    struct cli c;
    struct err e = {0};
    const struct command *cmd;
    enum cli_task task;
    if (chdir(outside) != 0 || dup2(open(in(outside, "old"), O_RDWR), 50) != 50 ||
        dup2(open(in(outside, "old"), O_RDONLY), 51) != 51 ||
        !cli_read(&c, argc, argv, &cmd, &task, &e) || !cli_confine(&c, cmd, &e))
        return 255;
    return make("new.jsonl") | make(in(inside, "new.jsonl")) << 1 |
           make(in(inside, "data/aerie/beside")) << 2 | (write(50, "x", 1) == 1) << 3 |
           (fcntl(51, F_GETFL) < 0) << 4;
}

static void test_what_commands_may_write(void **unused)
{
    (void)unused;
    enum { HERE = 1, THERE = 2, LOG = 4 };
    char there[100];
    snprintf(there, sizeof there, "%s/out.jsonl", inside);
    const struct {
        const char *argv[8];
        int rights;
    } command[] = {
        {{"aerie", "export", "last"}, LOG},
        {{"aerie", "export", "last", "-o", "-"}, LOG},
        {{"aerie", "export", "last", "-o", "out.jsonl"}, HERE | LOG},
        {{"aerie", "export", "last", "-o", there}, THERE | LOG},
        {{"aerie", "pack", "last"}, HERE | LOG},
        {{"aerie", "db", "sql", "select 1"}, LOG},
        {{"aerie", "db", "sql", there}, LOG},
        {{"aerie", "db", "pin", there}, LOG},
        {{"aerie", "db", "check"}, LOG},
        {{"aerie", "db", "backup", "copy.db"}, HERE | LOG},
        {{"aerie", "db", "repair", there}, THERE | LOG},
        {{"aerie", "logs"}, LOG},
        {{"aerie", "run", "hello"}, LOG},
        {{"aerie", "chat"}, LOG},
        {{"aerie", "tokenize", "hello"}, 0},
    };
    if (!can.writes)
        skip();
    for (size_t i = 0; i < COUNT(command); i++) {
        int argc = 0, status = 0;
        char *argv[8] = {NULL};
        fresh_folders();
        char *data = xasprintf("%s/data", inside), *log = xasprintf("%s/data/aerie", inside);
        assert_int_equal(mkdir(data, 0700) | mkdir(log, 0700), 0);
        setenv("XDG_DATA_HOME", data, 1);
        for (; command[i].argv[argc]; argc++)
            argv[argc] = xstrdup(command[i].argv[argc]);
        pid_t pid = fork();
        if (pid == 0)
            _exit(rights_of_command(argc, argv));
        waitpid(pid, &status, 0);
        int want = command[i].rights & THERE ? command[i].rights | LOG : command[i].rights;
        if (status != want << 8)
            fail_msg("%s %s %s: %x; expected %x", argv[1], argv[2] ? argv[2] : "",
                     argc > 3 ? argv[argc - 1] : "", status >> 8, want);
        while (argc)
            free(argv[--argc]);
        free(data);
        free(log);
    }
}

/* ---- the attacker ---------------------------------------------------------------------------- */

static struct scene scene;
static int own_terminal, other_terminal; /* their other ends */

static void be_victim(int tell)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un name, daemon_name = socket_name(&scene);
    socklen_t n = sizeof a;
    int report[2] = {0};
    int file = open(in(outside, "old"), O_RDWR), tcp_fd = socket(AF_INET, SOCK_STREAM, 0);
    int local = socket(AF_UNIX, SOCK_DGRAM, 0), daemon_fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    scene.victim = getpid();
    socklen_t n_name = abstract_name(&scene, &name);
    if (dup2(file, 50) == 50 && chdir(outside) == 0 &&
        bind(tcp_fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(tcp_fd, 1) == 0 &&
        getsockname(tcp_fd, (struct sockaddr *)&a, &n) == 0 &&
        bind(local, (struct sockaddr *)&name, n_name) == 0 &&
        bind(daemon_fd, (struct sockaddr *)&daemon_name, sizeof daemon_name) == 0)
        report[0] = ntohs(a.sin_port);
    report[1] = shmget(IPC_PRIVATE, 4096, 0600 | IPC_CREAT);
    alarm(60);
    if (write(tell, report, sizeof report) == sizeof report)
        for (;;)
            pause();
    _exit(1);
}

static void begin_scene(void)
{
    int tell[2], report[2] = {0};
    fresh_folders();
    snprintf(scene.inside, sizeof scene.inside, "%s", inside);
    snprintf(scene.outside, sizeof scene.outside, "%s", outside);
    snprintf(scene.hidden, sizeof scene.hidden, "%s/.hidden", outside);
    assert_int_equal(mkdir(scene.hidden, 0700) | mkdir(in(inside, "real"), 0700), 0);
    assert_int_equal(symlink(scene.hidden, in(outside, "link")) |
                         symlink(scene.hidden, in(inside, "to-hidden")),
                     0);
    assert_true(make(in(outside, "notes.md")));
    setxattr(in(outside, "old"), "user.old", "1", 1, 0); /* not on every file system */
    assert_int_equal(pipe(tell), 0);
    pid_t pid = fork();
    if (pid == 0)
        be_victim(tell[1]);
    close(tell[1]);
    assert_int_equal(read(tell[0], report, sizeof report), sizeof report);
    close(tell[0]);
    assert_true(report[0] > 0);
    scene.victim = pid;
    scene.port = report[0];
    scene.segment = report[1];
}

static void end_scene(void)
{
    kill(scene.victim, SIGKILL);
    waitpid(scene.victim, NULL, 0);
    shmctl(scene.segment, IPC_RMID, NULL);
}

/* In a child: makes the attacker's own terminal the standard input, and opens what it inherits. */
static void prepare(void)
{
    char own[64];
    int fd = ptsname_r(own_terminal, own, sizeof own) == 0 && setsid() > 0 ? open(own, O_RDWR) : -1;
    if (fd < 0 || dup2(fd, STDIN_FILENO) != STDIN_FILENO)
        _exit(255);
    close(fd);
    scene.write_fd = open(in(outside, "old"), O_RDWR);
    scene.read_fd = open(in(outside, "old"), O_RDONLY);
    scene.folder_fd = open(outside, O_RDONLY | O_DIRECTORY);
    signal(SIGTTOU, SIG_IGN);
    alarm(60);
}

/* What an attempt returns, in a process of its own; 255: it was killed. The monitor has to stop
 * its attempts alone, also where the kernel has no part of the isolation. */
static int attacked(const struct attempt *a, bool confined)
{
    const char *const own[] = {inside};
    int status = 0;
    begin_scene();
    pid_t pid = fork();
    if (pid == 0) {
        struct isolated got = {0};
        prepare();
        if (confined && a->by == BY_CLOSING)
            isolate_descriptors(); /* closes the link to the monitor, too */
        if (confined && a->by != BY_MONITOR)
            isolate(&(struct isolation){own, 1, a->how == ONLINE ? NETWORK_KEPT : NETWORK_NEVER},
                    &got);
        _exit(got.failed ? 255 : a->try(&scene));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    end_scene();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static const char *stopped_by(enum by by)
{
    return (const char *[]){"Landlock", "seccomp", "the monitor", "being closed at the start"}[by];
}

static int expected(const struct attempt *a)
{
    return a->error ? a->error : (const int[]){EACCES, EPERM, EPERM, EBADF}[a->by];
}

static int alone[N_ATTEMPTS]; /* what each returned without the isolation */

static void test_attempt(void **state)
{
    const struct attempt *a = *state;
    bool holds = a->by == BY_LANDLOCK ? can.writes : a->by == BY_SECCOMP ? can.programs : true;
    if (!holds || alone[a - attempts] != 0)
        skip();
    int got = attacked(a, true);
    if (got != expected(a))
        fail_msg("%s: %s; expected: %s, by %s", a->what, got ? strerror(got) : "it worked",
                 strerror(expected(a)), stopped_by(a->by));
    struct stat st;
    assert_int_equal(access(in(outside, "option"), F_OK),
                     -1); /* the editor was given no option, ... */
    assert_int_equal(stat(in(outside, "old"), &st), 0);
    assert_int_equal(st.st_size, 0); /* ... and no file but the message */
}

/* The name of a test: what is tried, and what stops it, or why it is not tried. */
static const char *title_of(const struct attempt *a)
{
    int error = alone[a - attempts] = a->how == ALONE ? 0 : attacked(a, false);
    if (a->by == BY_LANDLOCK && !can.writes)
        return xasprintf("%s (%s)", a->what, can.writes_why_not);
    if (a->by == BY_SECCOMP && !can.programs)
        return xasprintf("%s (%s)", a->what, can.programs_why_not);
    if (error)
        return xasprintf("%s (not possible here without the isolation: %s)", a->what,
                         error == 255 ? "killed" : strerror(error));
    return xasprintf("%s: stopped by %s", a->what, stopped_by(a->by));
}

static size_t descriptors_of(pid_t pid)
{
    glob_t found = {0};
    size_t n = glob(of_process(pid, "fd/*"), GLOB_NOCHECK, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return n;
}

static size_t held_before;

static void test_the_monitor_after_the_attempts(void **unused)
{
    (void)unused;
    fresh_folders();
    int fd = monitor_create(in(outside, "still.md"));
    assert_true(fd >= 0 && monitor_settle(in(outside, "still.md"), true));
    close(fd);
    assert_int_equal(descriptors_of(scene.monitor), held_before);
}

/* tests/SECURITY.md has a table of the attempts. */
static void test_the_table_of_attempts(void **unused)
{
    (void)unused;
    struct buf b;
    struct err e = {0};
    if (!buf_read_file(&b, "tests/SECURITY.md", 1 << 20, &e))
        fail_msg("%s", e.msg);
    for (int i = 0; i < N_ATTEMPTS; i++) {
        char *row = xasprintf("| %s | %s |\n", attempts[i].what, stopped_by(attempts[i].by));
        if (!strstr(b.p, row))
            fail_msg("tests/SECURITY.md lacks the row %s", row);
        free(row);
    }
    buf_free(&b);
}

/* A program that has a file of each kind made, and then ends without a word to its monitor. Before
 * this one's is started. */
static pid_t start_one_that_ends(void)
{
    struct err e = {0};
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    bool ok = mkdir(outside, 0700) == 0 && monitor_start(upper, NULL, &e);
    const char *const name[] = {"whole.md", "dropped.md", "unfinished.md"};
    for (int i = 0; i < 3; i++) {
        int fd = ok ? monitor_create(in(outside, name[i])) : -1;
        ok = fd >= 0 && write(fd, "text", 4) == 4 &&
             (i == 2 || monitor_settle(in(outside, name[i]), i == 0));
    }
    _exit(!ok);
}

static pid_t ended;

static void test_an_unfinished_file_goes_with_the_program(void **unused)
{
    (void)unused;
    int status;
    assert_int_equal(waitpid(ended, &status, 0), ended);
    assert_int_equal(status, 0);
    for (int i = 0; i < 500 && access(in(outside, "unfinished.md"), F_OK) == 0; i++)
        usleep(10000);
    assert_int_equal(access(in(outside, "unfinished.md"), F_OK), -1);
    assert_int_equal(access(in(outside, "dropped.md"), F_OK), -1);
    assert_int_equal(access(in(outside, "whole.md"), F_OK), 0);
}

/* The process that monitor_start() started last. */
static pid_t last_child(void)
{
    char path[64];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "re");
    for (int next; f && fscanf(f, "%d", &next) == 1;)
        pid = next;
    if (f)
        fclose(f);
    return pid;
}

/* Two terminals: the one that the isolated process is started on, and another. */
static void open_terminals(void)
{
    own_terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    other_terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(own_terminal >= 0 && other_terminal >= 0);
    assert_int_equal(grantpt(own_terminal) | unlockpt(own_terminal) | grantpt(other_terminal) |
                         unlockpt(other_terminal),
                     0);
    assert_int_equal(ptsname_r(other_terminal, scene.terminal, sizeof scene.terminal), 0);
}

#define EDITOR_OF_THE_TEST                                                                         \
    "f() { case $1 in /*) printf ' edited' >>\"$1\"; touch \"$1~\";; *) "                          \
    "touch %s/option;; esac; }; f"

static void set_up(void)
{
    char editor[256];
    assert_non_null(mkdtemp(top));
    snprintf(inside, sizeof inside, "%s/inside", top);
    snprintf(outside, sizeof outside, "%s/outside", top);
    snprintf(editor, sizeof editor, EDITOR_OF_THE_TEST, outside);
    unsetenv("VISUAL");
    setenv("EDITOR", editor, 1);
    setenv("TMPDIR", top, 1);
    setenv("XDG_STATE_HOME", top, 1);
    setenv("XDG_CONFIG_HOME", top, 1);
    open_terminals();
    isolation_probe(&can);
    if (can.failed)
        fail_msg("%s; %s", can.writes_why_not, can.programs_why_not);
}

static void start_monitors(void)
{
    struct err e = {0};
    char *clean = xasprintf("rm -rf %s/*", top);
    assert_int_equal(system(clean), 0);
    free(clean);
    ended = start_one_that_ends();
    if (!monitor_start(upper, the_log, &e))
        fail_msg("%s", e.msg);
    scene.monitor = last_child();
}

int main(void)
{
    const struct CMUnitTest on_commands[] = {
        cmocka_unit_test(test_what_commands_may_write), /* each starts a monitor of its own */
    };
    const struct CMUnitTest first[] = {
        cmocka_unit_test(
            test_an_unfinished_file_goes_with_the_program), /* before the folders are made anew */
        cmocka_unit_test(test_files_outside),
        cmocka_unit_test(test_whatever_the_standard_streams_are),
        cmocka_unit_test(test_a_failure_is_told),
        cmocka_unit_test(test_programs),
        cmocka_unit_test(test_network),
        cmocka_unit_test(test_what_must_work),
        cmocka_unit_test(test_network_given_up_later),
        cmocka_unit_test(test_network_kept_by_a_server),
        cmocka_unit_test(test_socket_of_the_driver_for_a_later_engine),
        cmocka_unit_test(test_local_sockets_where_they_are_named),
        cmocka_unit_test(test_monitor),
        cmocka_unit_test(test_a_message_is_edited),
        cmocka_unit_test(test_the_table_of_attempts),
    };
    set_up();
    int failed = cmocka_run_group_tests(on_commands, NULL, NULL);
    start_monitors();
    failed += cmocka_run_group_tests(first, NULL, NULL);
    held_before = descriptors_of(scene.monitor);
    struct CMUnitTest tries[N_ATTEMPTS + 1] = {0};
    for (int i = 0; i < N_ATTEMPTS; i++)
        tries[i] = (struct CMUnitTest){title_of(&attempts[i]), test_attempt, NULL, NULL,
                                       (void *)(uintptr_t)&attempts[i]};
    tries[N_ATTEMPTS] = (struct CMUnitTest)cmocka_unit_test(test_the_monitor_after_the_attempts);
    failed += cmocka_run_group_tests(tries, NULL, NULL);
    for (int i = 0; i < N_ATTEMPTS; i++)
        free((char *)(uintptr_t)tries[i].name);
    char *clean = xasprintf("rm -rf %s", top);
    if (system(clean) != 0)
        failed++;
    free(clean);
    return failed;
}
