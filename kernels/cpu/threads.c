/* threads.c - a pool of threads for parallel regions that last microseconds.
 *
 * A region is a number of items. Each thread begins with a share of its own, the items of consecutive
 * numbers, and takes them in ascending order: neighbouring items read neighbouring memory, so each
 * thread reads one contiguous part of a matrix. A thread whose share is empty takes the upper half of
 * another's. The calling thread takes items, too, and waits only for items that a worker has begun, so
 * a worker that sleeps or is descheduled never blocks a region. After a region workers spin for a
 * short time, then yield to other processes, then sleep, so an idle program uses no CPU.
 *
 * A share is one word: first << 32 | end of its free items. Each free item is in exactly one share or
 * in the hands of the thread that took it: shares change by compare-and-swap and exchange only, and
 * whoever changes one has the items that the change removes. fn and arg change only while no item is
 * free or running; a thread reads them after it has taken items, so they belong to the region of these
 * items.
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

struct share {
    _Alignas(64) _Atomic uint64_t free; /* first << 32 | end */
};

struct cpu_pool {
    _Alignas(64) _Atomic uint64_t region; /* number of the latest; stored after its shares */
    _Atomic(cpu_item *) fn;
    _Atomic(void *) arg;
    _Alignas(64) _Atomic uint32_t done; /* finished items of this region */
    _Alignas(64) _Atomic int sleepers;
    pthread_mutex_t lock; /* held while a worker goes to sleep */
    pthread_cond_t wake;
    bool stop;
    int n_workers;
    int n_share;
    struct share *share; /* (n_share) by number of the thread; those of threads that the system
                            refused stay empty */
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

static inline uint64_t range(uint64_t first, uint64_t end)
{
    return first << 32 | end;
}

static inline uint32_t first_of(uint64_t range)
{
    return (uint32_t)(range >> 32);
}

static inline uint32_t count_of(uint64_t range)
{
    return (uint32_t)range - first_of(range);
}

/* Takes the first free item of a share. */
static bool take_first(struct share *s, uint32_t *item)
{
    uint64_t r = atomic_load_explicit(&s->free, memory_order_acquire);
    while (count_of(r))
        if (atomic_compare_exchange_weak_explicit(&s->free, &r, r + range(1, 0),
                                                  memory_order_acq_rel, memory_order_acquire)) {
            *item = first_of(r);
            return true;
        }
    return false;
}

/* Takes the upper half, rounded up, of another thread's share. An empty range: none has any. */
static uint64_t take_half(struct cpu_pool *p, int thread)
{
    for (int i = 1; i < p->n_share; i++) {
        struct share *s = &p->share[(thread + i) % p->n_share];
        uint64_t r = atomic_load_explicit(&s->free, memory_order_acquire);
        while (count_of(r)) {
            uint64_t end = (uint32_t)r, from = end - (count_of(r) + 1) / 2;
            if (atomic_compare_exchange_weak_explicit(&s->free, &r, range(first_of(r), from),
                                                      memory_order_acq_rel, memory_order_acquire))
                return range(from, end);
        }
    }
    return 0;
}

static void run_item(struct cpu_pool *p, uint32_t item, int thread)
{
    cpu_item *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
    fn(atomic_load_explicit(&p->arg, memory_order_relaxed), (int)item, thread);
    atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
}

static void run_range(struct cpu_pool *p, uint64_t r, int thread)
{
    for (uint32_t i = first_of(r); i < (uint32_t)r; i++)
        run_item(p, i, thread);
}

/* Takes and runs items until none is free. */
static void take_items(struct cpu_pool *p, int thread)
{
    struct share *own = &p->share[thread];
    for (;;) {
        uint32_t item;
        while (take_first(own, &item))
            run_item(p, item, thread);
        uint64_t empty = atomic_load_explicit(&own->free, memory_order_acquire);
        uint64_t got = count_of(empty) ? 0 : take_half(p, thread);
        if (!count_of(empty) && !count_of(got))
            return;
        /* The half becomes this thread's share, unless a region that began in between has given it
         * another one. */
        if (count_of(got) && !atomic_compare_exchange_strong_explicit(
                                 &own->free, &empty, got, memory_order_acq_rel, memory_order_relaxed))
            run_range(p, got, thread);
    }
}

/* Waits without sleeping for a region after `seen`. False if none begins within YIELD_NS. */
static bool spin_for_region(struct cpu_pool *p, uint64_t seen)
{
    uint64_t start = 0;
    for (unsigned i = 0;; i++) {
        if (atomic_load_explicit(&p->region, memory_order_acquire) != seen)
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
        uint64_t seen = atomic_load_explicit(&p->region, memory_order_acquire);
        take_items(p, w->number);
        if (spin_for_region(p, seen))
            continue;
        pthread_mutex_lock(&p->lock);
        atomic_fetch_add(&p->sleepers, 1); /* before reading the region again: see cpu_pool_run() */
        while (!p->stop && atomic_load(&p->region) == seen)
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
    uint64_t threads = (uint64_t)p->n_workers + 1, items = (uint64_t)n;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    for (uint64_t i = 0; i < threads; i++) {
        uint64_t moved = atomic_exchange_explicit(
            &p->share[i].free, range(items * i / threads, items * (i + 1) / threads),
            memory_order_acq_rel);
        run_range(p, moved, 0); /* a worker that was still looking has taken a half already */
    }
    /* This thread stores the region and then reads `sleepers`; a worker increments `sleepers` and
     * then reads the region. All four are sequentially consistent, so either this thread sees the
     * sleeper or the worker sees the region. */
    atomic_store(&p->region, atomic_load_explicit(&p->region, memory_order_relaxed) + 1);
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
        if (i % 64 == 0)
            take_items(p, 0); /* of a worker that took a half and was descheduled */
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
    p->n_share = threads;
    p->share = xaligned((size_t)threads * sizeof *p->share);
    memset(p->share, 0, (size_t)threads * sizeof *p->share);
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
    free(p->share);
    free(p);
}
