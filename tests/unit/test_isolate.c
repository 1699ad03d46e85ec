/* test_isolate.c - an isolated process tries to break out: each way must fail, also from a later thread and from a
 * child, and what the program needs must go on working. The same ways must succeed without the isolation, else
 * the test would show nothing. Then the monitor: what it does, and what it refuses. */
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

#include "repl/isolate.h"
#include "repl/monitor.h"

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

static bool opens(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);
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
} files[] = {WAY(create_outside), WAY(write_outside), WAY(cut_outside), WAY(folder_outside), WAY(up_and_down),
             WAY(link_out), WAY(through_a_link), WAY(replace_inside), WAY(move_out), WAY(remove_outside),
             WAY(named_pipe)},
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
        return pthread_create(&t, NULL, on_thread, (void *)(uintptr_t)w) == 0 && pthread_join(t, &got) == 0 && got;
    pid_t pid = fork();
    if (pid == 0)
        _exit(w->out());
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status);
}

/* Whether the way out works in a process of its own. */
static bool works(const struct way *w, enum how how, enum from from)
{
    int status = 0;
    fresh_folders();
    pid_t pid = fork();
    if (pid == 0) {
        const char *const own[] = {inside, "/tmp/aerie-no-such-folder"};
        struct isolated got = {0};
        if (how != FREE)
            isolate(&(struct isolation){own, 2, how == WITH_NETWORK ? NETWORK_KEPT : NETWORK_NEVER}, &got);
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
                fail_msg("%s works from %s", w[i].name, (const char *[]){"main", "a thread", "a child"}[from]);
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
    case 4: end[0] = open(in(inside, "own"), O_RDWR); return unlink(in(inside, "own")) == 0 ? end[0] : -2;
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
    assert_int_equal(works(&networks[0], WITH_NETWORK, FROM_THREAD), works(&networks[0], FREE, FROM_MAIN));
}

/* What the program does all the time. */
static bool ordinary(void)
{
    int end[2];
    char back[4];
    return make(in(inside, "a")) && mkdir(in(inside, "b"), 0700) == 0 && rename(in(inside, "a"), in(inside, "b/c")) == 0 &&
           opens(in(inside, "own"), O_RDWR | O_TRUNC) && unlink(in(inside, "own")) == 0 && opens(in(outside, "old"), O_RDONLY) &&
           opens("/dev/null", O_RDWR) && opens("/proc/self/status", O_RDONLY) &&
           socketpair(AF_UNIX, SOCK_STREAM, 0, end) == 0 && write(end[0], "abc", 4) == 4 && read(end[1], back, 4) == 4 &&
           kill(getpid(), 0) == 0;
}

static void test_what_must_work(void **unused)
{
    (void)unused;
    const struct way w = {"ordinary work", ordinary};
    for (int from = 0; from < N_FROM; from++)
        assert_true(works(&w, ISOLATED, (enum from)from));
}

/* The network is given up once a port is open, or a model is loaded: for threads that run already, too. */
static void *later(void *arg)
{
    int *go = arg;
    char c;
    return read(go[0], &c, 1) == 1 && has_socket(AF_INET, SOCK_STREAM) ? arg : NULL;
}

/* 0: it worked until `give_up`, and then no more. */
static int gives_up(const struct isolation *i, void (*give_up)(void))
{
    struct isolated got;
    pthread_t t;
    void *broke_out = NULL;
    int go[2];
    isolate_from_network(); /* not isolated: nothing happens */
    isolate_after_loading();
    bool before = has_socket(AF_UNIX, SOCK_STREAM);
    isolate(i, &got);
    before = before && has_socket(AF_UNIX, SOCK_STREAM) && pipe(go) == 0 && pthread_create(&t, NULL, later, go) == 0;
    give_up();
    bool after = write(go[1], "x", 1) != 1 || pthread_join(t, &broke_out) != 0 || broke_out || has_socket(AF_UNIX, SOCK_STREAM);
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
            _exit(gives_up(&(struct isolation){NULL, 0, k ? NETWORK_KEPT : NETWORK_UNTIL_LOADED},
                           k ? isolate_from_network : isolate_after_loading));
        waitpid(pid, &status, 0);
        assert_int_equal(status, 0);
    }
}

/* A server that loads a model keeps the network. */
static void test_network_kept_by_a_server(void **unused)
{
    (void)unused;
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        struct isolated got;
        isolate(&(struct isolation){NULL, 0, NETWORK_KEPT}, &got);
        isolate_after_loading();
        _exit(!has_socket(AF_UNIX, SOCK_STREAM));
    }
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

/* ---- the monitor ----------------------------------------------------------------------------- */

static int upper(void)
{
    char c;
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

    setenv("EDITOR", "unused", 1); /* the monitor's own was set before it was started */
    status = monitor_edit(in(outside, "old"));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    char text[8] = "";
    fd = open(in(outside, "old"), O_RDONLY);
    assert_int_equal(read(fd, text, 7), 6);
    assert_string_equal(text, "edited");
    close(fd);
}

/* A program that has a file of each kind made, and then ends without a word to its monitor. Before this one's is started. */
static pid_t start_one_that_ends(void)
{
    struct err e = {0};
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    bool ok = mkdir(outside, 0700) == 0 && monitor_start(upper, &e);
    const char *const name[] = {"whole", "dropped", "unfinished"};
    for (int i = 0; i < 3; i++) {
        int fd = ok ? monitor_create(in(outside, name[i])) : -1;
        ok = fd >= 0 && write(fd, "text", 4) == 4 && (i == 2 || monitor_settle(in(outside, name[i]), i == 0));
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
    for (int i = 0; i < 500 && access(in(outside, "unfinished"), F_OK) == 0; i++)
        usleep(10000);
    assert_int_equal(access(in(outside, "unfinished"), F_OK), -1);
    assert_int_equal(access(in(outside, "dropped"), F_OK), -1);
    assert_int_equal(access(in(outside, "whole"), F_OK), 0);
}

int main(void)
{
    struct err e = {0};
    assert_non_null(mkdtemp(top));
    snprintf(inside, sizeof inside, "%s/inside", top);
    snprintf(outside, sizeof outside, "%s/outside", top);
    unsetenv("VISUAL");
    setenv("EDITOR", "f() { printf edited > \"$1\"; }; f", 1);
    ended = start_one_that_ends();
    if (!monitor_start(upper, &e))
        fail_msg("%s", e.msg);
    isolation_probe(&can);
    if (can.failed)
        fail_msg("%s; %s", can.writes_why_not, can.programs_why_not);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_unfinished_file_goes_with_the_program), /* before the folders are made anew */
        cmocka_unit_test(test_files_outside),
        cmocka_unit_test(test_whatever_the_standard_streams_are),
        cmocka_unit_test(test_a_failure_is_told),
        cmocka_unit_test(test_programs),
        cmocka_unit_test(test_network),
        cmocka_unit_test(test_what_must_work),
        cmocka_unit_test(test_network_given_up_later),
        cmocka_unit_test(test_network_kept_by_a_server),
        cmocka_unit_test(test_monitor),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char *clean = xasprintf("rm -rf %s", top);
    if (system(clean) != 0)
        failed++;
    free(clean);
    return failed;
}
