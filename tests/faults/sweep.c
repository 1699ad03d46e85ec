/* sweep.c - see sweep.h. */
#include "tests/faults/sweep.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct queue *queue_open(const char *file, uint64_t of)
{
    int fd = file ? open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    CHECK(!file || (fd >= 0 && ftruncate(fd, sizeof(struct queue)) == 0));
    struct queue *q = mmap(NULL, sizeof *q, PROT_READ | PROT_WRITE,
                           MAP_SHARED | (file ? 0 : MAP_ANONYMOUS), fd, 0);
    CHECK(q != MAP_FAILED);
    if (fd >= 0)
        close(fd);
    if (q->of != of || !q->whole) {
        memset(q, 0, sizeof *q);
        q->of = of;
        q->n_listed = 1;
    }
    return q;
}

void queue_add(struct queue *q, const struct sweep *w)
{
    CHECK(q->n_sweep < MAX_SWEEPS);
    q->sweep[q->n_sweep++] = *w;
}

static long common_divisor(long a, long b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* A permutation of n trials that spreads the first trials evenly over the sweep. */
static long spread(long i, long n)
{
    long stride = n * 618 / 1000 + 1;
    while (common_divisor(stride, n) != 1)
        stride++;
    return (long)((__int128)i * stride % n);
}

void queue_work(struct queue *q, uint64_t until_ns, trial_fn *trial, void *arg)
{
    while (!until_ns || clock_ns() < until_ns) {
        long i = atomic_fetch_add(&q->next, 1);
        struct sweep *w = q->sweep, *end = q->sweep + q->n_sweep;
        while (w < end && i >= w->n_trial)
            i -= w++->n_trial;
        if (w == end)
            break;
        struct fault f = w->f;
        bool fired = false;
        i = spread(i, w->n_trial);
        f.n = w->listed ? q->list[w->listed + i] : f.n + i * w->step;
        bool ok = trial(arg, w, &f, &fired);
        atomic_fetch_add(&w->tried, 1);
        atomic_fetch_add(&w->fired, fired);
        atomic_fetch_add(&w->failed, !ok);
    }
}

long queue_print(const struct queue *q, const char *(*session)(int), const char *(*how)(enum how))
{
    long failed = 0, tried = 0, trials = 0;
    for (int i = 0; i < q->n_sweep; i++) {
        const struct sweep *w = &q->sweep[i];
        bool ok = w->failed == 0 && (w->fired > 0 || w->tried < w->n_trial || w->n_trial == 0);
        printf("%sok %d - %s: %s %s (%s): %ld calls, %ld of %ld tried, %ld failed in turn, "
               "%ld faults found\n", ok ? "" : "not ",
               i + 1, session(w->session), how(w->f.how), class_name(w->f.class),
               w->f.how == SHORTEN ? "half the bytes" : strerror(w->f.error), w->total, w->tried,
               w->n_trial, w->fired, w->failed);
        failed += !ok;
        tried += w->tried, trials += w->n_trial;
    }
    printf("1..%d\n", q->n_sweep);
    if (tried < trials)
        printf("# the time is over: %ld of %ld trials were made\n", tried, trials);
    return failed;
}
