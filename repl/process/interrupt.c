/* interrupt.c - see interrupt.h. */
#include "repl/process/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static const uint64_t patience_ns = 500 * UINT64_C(1000000);

static struct {
    bool open;
    int pipe[2];
    int sig[16], n_sig;
    struct sigaction old[16];
    void (*restore)(void);
    interrupt_first_fn *_Atomic first;
    pthread_t main;
    struct stop *_Atomic stop;
    void (*continued)(void);
    atomic_bool was_continued; /* SIGCONT came, and neither interrupt_next() nor interrupt_waits()
                                  was called since */
    atomic_bool leaving;
    atomic_uint sent, taken;     /* SIGINT, SIGTERM, SIGHUP */
    _Atomic uint64_t since;      /* when the oldest waiting signal was sent; leaving: when
                                    interrupt_leave() was called */
} in = {.pipe = {-1, -1}};

static bool ends(int sig)
{
    return sig == SIGINT || sig == SIGTERM || sig == SIGHUP;
}

static void on_signal(int sig)
{
    int keep = errno;
    /* the signal must interrupt the main thread's system calls */
    if (!pthread_equal(pthread_self(), in.main)) {
        pthread_kill(in.main, sig);
        errno = keep;
        return;
    }
    unsigned char c = (unsigned char)sig;
    uint64_t now = clock_ns();
    bool waits = atomic_load(&in.sent) != atomic_load(&in.taken) || atomic_load(&in.leaving);
    interrupt_first_fn *first = atomic_load(&in.first);
    if (ends(sig) && waits && now - atomic_load(&in.since) >= patience_ns) {
        if (in.restore)
            in.restore();
        _exit(128 + sig);
    }
    if (first && first(sig)) {
        errno = keep;
        return;
    }
    if (sig == SIGCONT)
        atomic_store(&in.was_continued, true);
    if (ends(sig) && !waits)
        atomic_store(&in.since, now);
    struct stop *stop = atomic_load(&in.stop);
    if (ends(sig) && stop)
        stop_all(stop);
    if (write(in.pipe[1], &c, 1) == 1 &&
        ends(sig)) /* a full pipe holds enough signals */
        atomic_fetch_add(&in.sent, 1);
    errno = keep;
}

bool interrupt_open(const int *sig, int n, bool restart, void (*restore)(void), struct err *e)
{
    CHECK(!in.open && n <= (int)(sizeof in.sig / sizeof *in.sig));
    if (pipe2(in.pipe, O_NONBLOCK | O_CLOEXEC) != 0)
        return err_set(e, ERR_USAGE, "cannot make a pipe for signals: %s", strerror(errno));
    atomic_store(&in.sent, 0);
    atomic_store(&in.taken, 0);
    atomic_store(&in.leaving, false);
    atomic_store(&in.was_continued, false);
    in.main = pthread_self();
    in.restore = restore;
    in.open = true;
    in.n_sig = n;
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = restart ? SA_RESTART : 0};
    sigfillset(&sa.sa_mask);
    for (int i = 0; i < n; i++) {
        in.sig[i] = sig[i];
        sigaction(sig[i], &sa, &in.old[i]);
    }
    return true;
}

void interrupt_cancels(struct stop *s)
{
    atomic_store(&in.stop, s);
}

interrupt_first_fn *interrupt_first(interrupt_first_fn *first)
{
    return atomic_exchange(&in.first, first);
}

void interrupt_continued(void (*continued)(void))
{
    in.continued = continued;
}

/* Handlers call nothing of the caller's any more. */
static void forget_calls(void)
{
    interrupt_cancels(NULL);
    interrupt_continued(NULL);
    interrupt_first(NULL);
}

void interrupt_leave(void)
{
    if (!in.open)
        return;
    forget_calls();
    for (int i = 0; i < in.n_sig; i++)
        if (!ends(in.sig[i]))
            sigaction(in.sig[i], &in.old[i], NULL);
    atomic_store(&in.since, clock_ns());
    atomic_store(&in.leaving, true);
}

void interrupt_close(void)
{
    if (!in.open)
        return;
    forget_calls();
    for (int i = 0; i < in.n_sig; i++)
        sigaction(in.sig[i], &in.old[i], NULL);
    in.open = false;
    close(in.pipe[0]);
    close(in.pipe[1]);
    in.pipe[0] = in.pipe[1] = -1;
}

int interrupt_fd(void)
{
    return in.pipe[0];
}

int interrupt_next(void)
{
    unsigned char c;
    ssize_t n = 0;
    while (in.open && (n = read(in.pipe[0], &c, 1)) < 0 && errno == EINTR)
        ;
    if (n != 1)
        return 0;
    if (ends(c))
        atomic_fetch_add(&in.taken, 1);
    if (c == SIGCONT)
        atomic_store(&in.was_continued, false);
    return c;
}

bool interrupt_waits(void)
{
    if (in.open && in.continued && atomic_exchange(&in.was_continued, false))
        in.continued();
    return interrupt_asked();
}

bool interrupt_asked(void)
{
    return in.open && atomic_load(&in.sent) != atomic_load(&in.taken);
}

/* Waits until fd takes PIPE_BUF bytes without blocking. False: a signal came first. */
static bool wait_writable(int fd)
{
    struct pollfd p[2] = {{.fd = fd, .events = POLLOUT}, {.fd = interrupt_fd(), .events = POLLIN}};
    while (poll(p, 2, -1) < 0 && errno == EINTR)
        ;
    return p[0].revents || !interrupt_waits();
}

bool interrupt_write(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        if (!wait_writable(fd)) {
            errno = EINTR;
            return false;
        }
        ssize_t k = write(fd, bytes, n < PIPE_BUF ? n : PIPE_BUF);
        if (k < 0 && (errno != EINTR || interrupt_waits()))
            return false;
        bytes += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    return true;
}
