/* threads.c - a pool of threads for parallel regions that last microseconds.
 *
 * A region is a number of items; each thread that is awake takes the next free item. The calling
 * thread takes items, too, and waits only for items that a worker has begun, so a worker that
 * sleeps or is descheduled never blocks a region. After a region workers spin for a short time,
 * then yield to other processes, then sleep, so an idle program uses no CPU.
 *
 * `ticket` holds the region's number and the count of its free items. fn and arg change only while
 * no item is free. A worker reads the ticket, then fn and arg, and takes an item by a
 * compare-and-swap from that ticket: if it succeeds, fn and arg belong to the same region.
 */
#include "kernels/cpu/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    SPIN_NS = 30 * 1000,   /* spin without yielding: longer than the gaps within a forward pass */
    YIELD_NS = 150 * 1000, /* spin and yield: longer than the gaps between two passes */
};

struct worker {
    struct cpu_pool *pool;
    pthread_t thread;
    int number; /* 1.. ; the caller is 0 */
};

struct cpu_pool {
    _Alignas(64) _Atomic uint64_t ticket; /* region << 32 | free items */
    _Atomic(cpu_item *) fn;
    _Atomic(void *) arg;
    _Alignas(64) _Atomic uint32_t done; /* finished items of this region */
    _Alignas(64) _Atomic int sleepers;
    pthread_mutex_t lock; /* held while a worker goes to sleep */
    pthread_cond_t wake;
    bool stop;
    int n_workers;
    struct worker worker[];
};

static inline void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline uint32_t items_left(uint64_t ticket)
{
    return (uint32_t)ticket;
}

/* Takes and runs items until none is free. */
static void take_items(struct cpu_pool *p, int thread)
{
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    while (items_left(t)) {
        cpu_item *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(arg, (int)(items_left(t) - 1), thread);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
        t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
}

/* Waits for a free item without sleeping. False if none appears within YIELD_NS. */
static bool spin_for_items(struct cpu_pool *p)
{
    uint64_t start = 0;
    for (unsigned i = 0;; i++) {
        if (items_left(atomic_load_explicit(&p->ticket, memory_order_acquire)))
            return true;
        pause_core();
        if (i % 64 != 63)
            continue;
        uint64_t now = clock_ns();
        if (!start)
            start = now;
        else if (now - start > YIELD_NS)
            return false;
        else if (now - start > SPIN_NS)
            sched_yield();
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct cpu_pool *p = w->pool;
    for (;;) {
        take_items(p, w->number);
        if (spin_for_items(p))
            continue;
        pthread_mutex_lock(&p->lock);
        atomic_fetch_add(&p->sleepers, 1); /* before reading the ticket again: see cpu_pool_run() */
        while (!p->stop && !items_left(atomic_load(&p->ticket)))
            pthread_cond_wait(&p->wake, &p->lock);
        atomic_fetch_sub(&p->sleepers, 1);
        bool stop = p->stop;
        pthread_mutex_unlock(&p->lock);
        if (stop)
            return NULL;
    }
}

void cpu_pool_run(struct cpu_pool *p, int n, cpu_item *fn, void *arg)
{
    uint64_t region = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    /* This thread stores the ticket and then reads `sleepers`; a worker increments `sleepers` and
     * then reads the ticket. All four are sequentially consistent, so either this thread sees the
     * sleeper or the worker sees the items. */
    atomic_store(&p->ticket, region << 32 | (uint32_t)n);
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    take_items(p, 0);
    for (unsigned i = 1; atomic_load_explicit(&p->done, memory_order_acquire) != (uint32_t)n; i++) {
        pause_core();
        if (i % 1024 == 0)
            sched_yield(); /* a worker with an item may be waiting for this core */
    }
}

int cpu_pool_threads(const struct cpu_pool *p)
{
    return p ? p->n_workers + 1 : 1;
}

struct cpu_pool *cpu_pool_open(int threads)
{
    if (threads <= 1)
        return NULL;
    size_t bytes = sizeof(struct cpu_pool) + (size_t)(threads - 1) * sizeof(struct worker);
    struct cpu_pool *p = xaligned(bytes);
    memset(p, 0, bytes);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 0; i < threads - 1; i++) {
        p->worker[i] = (struct worker){.pool = p, .number = i + 1};
        if (pthread_create(&p->worker[i].thread, NULL, worker_main, &p->worker[i]) != 0)
            break; /* continue with fewer threads */
        p->n_workers++;
    }
    return p;
}

void cpu_pool_close(struct cpu_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_workers; i++)
        pthread_join(p->worker[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
