/* test_interrupt.c - signals as the loops meet them (repl/process/interrupt.c). */
#include "repl/process/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};

static void open_all(bool restart)
{
    struct err e;
    assert_true(interrupt_open(caught, 4, restart, NULL, &e));
}

static int readable(int ms)
{
    struct pollfd fd = {.fd = interrupt_fd(), .events = POLLIN};
    return poll(&fd, 1, ms);
}

/* A signal that came before the sleep ends the sleep: there is no moment in which it is lost. */
static void test_a_signal_before_the_sleep_ends_it(void **state)
{
    (void)state;
    open_all(false);
    assert_false(interrupt_waits());
    assert_int_equal(interrupt_next(), 0);
    raise(SIGTERM);
    assert_int_equal(readable(-1), 1);
    assert_true(interrupt_waits());
    assert_int_equal(interrupt_next(), SIGTERM);
    assert_false(interrupt_waits());
    assert_int_equal(readable(0), 0);
    interrupt_close();
}

static void test_signals_come_in_order_and_each_once(void **state)
{
    (void)state;
    open_all(true);
    raise(SIGINT);
    raise(SIGWINCH);
    raise(SIGINT);
    raise(SIGHUP);
    assert_int_equal(interrupt_next(), SIGINT);
    assert_true(interrupt_waits());
    assert_int_equal(interrupt_next(), SIGWINCH);
    assert_int_equal(interrupt_next(), SIGINT);
    assert_int_equal(interrupt_next(), SIGHUP);
    assert_false(interrupt_waits());
    raise(SIGWINCH); /* not a signal that ends work */
    assert_false(interrupt_waits());
    assert_int_equal(interrupt_next(), SIGWINCH);
    interrupt_close();
}

/* The work in progress is stopped in the handler, before anybody reads the pipe. */
static void test_a_signal_that_ends_work_stops_it_at_once(void **state)
{
    (void)state;
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        struct stop stop = {.submitted = 1, .running = 1};
        open_all(true);
        interrupt_cancels(&stop);
        raise(SIGWINCH);
        assert_false(stop_asked(&stop));
        raise(ends[i]);
        assert_true(stop_asked(&stop));
        atomic_store(&stop.cancelled, 0);
        interrupt_cancels(NULL);
        raise(ends[i]);
        assert_false(stop_asked(&stop));
        interrupt_close();
    }
}

static void on_old(int sig) { (void)sig; }

static void test_closing_puts_the_old_handlers_back(void **state)
{
    (void)state;
    struct sigaction was = {.sa_handler = on_old}, now;
    sigaction(SIGHUP, &was, NULL);
    open_all(false);
    sigaction(SIGHUP, NULL, &now);
    assert_true(now.sa_handler != on_old);
    interrupt_close();
    interrupt_close(); /* nothing happens */
    sigaction(SIGHUP, NULL, &now);
    assert_true(now.sa_handler == on_old);
    assert_int_equal(interrupt_fd(), -1);
    signal(SIGHUP, SIG_DFL);
}

static int marks[2];

static void restore(void)
{
    ssize_t ignored = write(marks[1], "r", 1);
    (void)ignored;
}

/* A process that takes no signals, as a stuck program. The pipe tells when it is ready. */
static pid_t stuck(bool takes)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct err e;
    if (!interrupt_open(caught, 4, true, restore, &e) || write(marks[1], "s", 1) != 1)
        _exit(1);
    for (;;) {
        poll(NULL, 0, 10);
        while (takes && interrupt_next())
            if (write(marks[1], "t", 1) != 1)
                _exit(1);
    }
}

static char next_mark(void)
{
    char c = 0;
    struct pollfd fd = {.fd = marks[0], .events = POLLIN};
    if (poll(&fd, 1, 10000) == 1 && read(marks[0], &c, 1) == 1)
        return c;
    return 0;
}

static void test_a_stuck_program_is_left_at_the_second_signal(void **state)
{
    (void)state;
    static const int last[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        int status;
        assert_int_equal(pipe(marks), 0);
        pid_t pid = stuck(false);
        assert_int_equal(next_mark(), 's');
        kill(pid, SIGTERM);
        poll(NULL, 0, 600); /* longer than its patience */
        assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
        kill(pid, SIGWINCH); /* no reason to leave */
        kill(pid, last[i]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 128 + last[i]);
        assert_int_equal(next_mark(), 'r'); /* the terminal was restored before */
        close(marks[0]);
        close(marks[1]);
    }
}

static void test_a_program_that_takes_its_signals_stays(void **state)
{
    (void)state;
    int status;
    assert_int_equal(pipe(marks), 0);
    pid_t pid = stuck(true);
    assert_int_equal(next_mark(), 's');
    kill(pid, SIGINT);
    assert_int_equal(next_mark(), 't');
    poll(NULL, 0, 600);
    kill(pid, SIGINT);
    assert_int_equal(next_mark(), 't');
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(marks[0]);
    close(marks[1]);
}

/* A program that closes its log: the signals that a terminal or a service manager sends besides the
 * first one do not cut that short, one that comes later ends it at once. */
static void test_a_program_that_leaves_is_not_cut_short(void **state)
{
    (void)state;
    int status;
    struct err e;
    assert_int_equal(pipe(marks), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (!interrupt_open(caught, 4, true, NULL, &e))
            _exit(1);
        raise(SIGTERM);
        while (interrupt_next())
            ;
        interrupt_leave();
        if (write(marks[1], "l", 1) != 1)
            _exit(1);
        for (;;)
            poll(NULL, 0, 1000);
    }
    assert_int_equal(next_mark(), 'l');
    kill(pid, SIGHUP);
    kill(pid, SIGTERM);
    kill(pid, SIGWINCH);
    poll(NULL, 0, 100);
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    poll(NULL, 0, 600);
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    kill(pid, SIGHUP);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGHUP);
    close(marks[0]);
    close(marks[1]);
}

static pthread_t seen_on;
static int n_seen;

static bool sees(int sig)
{
    seen_on = pthread_self();
    n_seen++;
    return sig == SIGWINCH;
}

static void *send_to_itself(void *sig)
{
    pthread_kill(pthread_self(), *(int *)sig);
    poll(NULL, 0, 1); /* ThreadSanitizer delivers signals in calls that wait */
    return NULL;
}

/* Whichever thread the kernel gives a signal to: the main one's system calls are interrupted. */
static void test_the_first_to_see_a_signal_runs_on_the_main_thread(void **state)
{
    (void)state;
    static int sig[] = {SIGWINCH, SIGHUP};
    pthread_t t;
    open_all(true);
    assert_null(interrupt_first(sees));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&t, NULL, send_to_itself, &sig[i]), 0);
        pthread_join(t, NULL);
    }
    for (int i = 0; i < 1000 && n_seen < 2; i++)
        poll(NULL, 0, 1);
    assert_int_equal(n_seen, 2);
    assert_true(pthread_equal(seen_on, pthread_self()));
    assert_int_equal(interrupt_next(), SIGHUP); /* the other one was dealt with */
    assert_int_equal(interrupt_next(), 0);
    interrupt_close();
    open_all(true);
    assert_null(interrupt_first(NULL)); /* closing forgot the function */
    interrupt_close();
}

static int n_continued;

static void counts(void)
{
    n_continued++;
}

static void test_long_work_is_told_once_that_it_was_continued(void **state)
{
    (void)state;
    const int sig = SIGCONT;
    struct err e = {0};
    assert_true(interrupt_open(&sig, 1, true, NULL, &e));
    interrupt_continued(counts);
    assert_false(interrupt_waits());
    assert_int_equal(n_continued, 0);
    raise(SIGCONT);
    assert_int_equal(n_continued, 0); /* not in the handler */
    assert_false(interrupt_waits());
    assert_false(interrupt_waits());
    assert_int_equal(n_continued, 1);
    raise(SIGCONT);
    assert_int_equal(interrupt_next(), SIGCONT);
    assert_int_equal(interrupt_next(), SIGCONT);
    assert_false(interrupt_waits()); /* who reads the pipe needs no call */
    assert_int_equal(n_continued, 1);
    interrupt_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signal_before_the_sleep_ends_it),
        cmocka_unit_test(test_signals_come_in_order_and_each_once),
        cmocka_unit_test(test_a_signal_that_ends_work_stops_it_at_once),
        cmocka_unit_test(test_closing_puts_the_old_handlers_back),
        cmocka_unit_test(test_a_stuck_program_is_left_at_the_second_signal),
        cmocka_unit_test(test_a_program_that_takes_its_signals_stays),
        cmocka_unit_test(test_a_program_that_leaves_is_not_cut_short),
        cmocka_unit_test(test_long_work_is_told_once_that_it_was_continued),
        cmocka_unit_test(test_the_first_to_see_a_signal_runs_on_the_main_thread),
    };
    return cmocka_run_group_tests_name("interrupt", tests, NULL, NULL);
}
