/* threads.c - a pool of threads for parallel regions that last microseconds.
 *
 * A region is a number of items. Each thread begins with a share of its own, the items of
 * consecutive numbers, and takes them in ascending order: neighbouring items read neighbouring
 * memory, so each thread reads one contiguous part of a matrix. A thread that has waited for a
 * while after its own share takes items from the ends of other shares. The calling thread takes
 * items, too, and waits only for items that a worker has begun, so a worker that sleeps or is
 * descheduled never blocks a region. After a region a worker prefetches what it will read first in
 * the next product (cpu_pool_ahead()), spins for a short time, then yields to other processes, then
 * sleeps, so an idle program uses no CPU.
 *
 * A region costs one cache line each way and thread: the caller writes what is to be done, each
 * thread writes how many items it ran. A share is one word: the number of its region, first and end
 * of its free items. The word of an earlier region stands for a whole share of the present one, so
 * the caller does not write shares. Shares change by compare-and-swap only, and the thread that
 * changes one runs the item that the change removes. A region ends when all of its items have run,
 * so whoever takes an item of a region knows that the region's fn and arg are valid until the item
 * has run.
 */
#include "kernels/cpu/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum {
    SPIN_NS = 30 * 1000,   /* spin without yielding: longer than the gaps within a forward pass */
    YIELD_NS = 150 * 1000, /* spin and yield: longer than the gaps between two passes */
    MAX_ITEMS = 0xffff,    /* of a share's word; more are taken several at a time */
    WORTH_WAKING = 50 * 1000, /* multiply-adds from which the pool is used: about a microsecond */
    PREFETCH_BYTES = 128 << 10, /* of a share, by a thread that waits */
    PREFETCH_STEP = 1024,
    REFRESH = 1 << 24,     /* regions after which shares that nobody took from are numbered anew */
};

struct worker {
    struct cpu_pool *pool;
    pthread_t thread;
    int number; /* 1.. ; the caller is 0 */
};

struct thread_share {
    _Alignas(64) _Atomic uint64_t free; /* region << 32 | first << 16 | end */
    _Alignas(64) _Atomic uint64_t done; /* region << 32 | items that the thread has run */
};

/* What is to be done. `number` is even, and odd while the rest changes. */
struct region {
    uint32_t number;
    uint32_t items, grain, n; /* n items of fn; `grain` of them are one item of a share */
    cpu_item *fn;
    void *arg;
};

struct cpu_pool {
    _Alignas(64) _Atomic uint32_t number; /* the latest region */
    _Atomic uint32_t items, grain, n;
    _Atomic(cpu_item *) fn;
    _Atomic(void *) arg;
    _Atomic(const struct cpu_ahead *) ahead;
    _Alignas(64) _Atomic int sleepers;
    pthread_mutex_t lock; /* held while a worker goes to sleep */
    pthread_cond_t wake;
    bool stop;
    uint32_t threads, since_refresh;
    int n_workers;
    struct thread_share
        *share; /* (threads) by number of the thread; the others take the share of one
                            that the system refused */
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

/* ---- regions --------------------------------------------------------------------------------- */

/* Whoever reads a member that a later begin_region() has stored (release, acquire) also sees the
 * odd number that was stored before it, and reads again. */
static struct region read_region(struct cpu_pool *p)
{
    for (struct region r;;) {
        r.number = atomic_load_explicit(&p->number, memory_order_acquire);
        r.items = atomic_load_explicit(&p->items, memory_order_acquire);
        r.grain = atomic_load_explicit(&p->grain, memory_order_acquire);
        r.n = atomic_load_explicit(&p->n, memory_order_acquire);
        r.fn = atomic_load_explicit(&p->fn, memory_order_acquire);
        r.arg = atomic_load_explicit(&p->arg, memory_order_acquire);
        if (r.number % 2 == 0 &&
            atomic_load_explicit(&p->number, memory_order_relaxed) == r.number)
            return r;
    }
}

static struct region begin_region(struct cpu_pool *p, int n, cpu_item *fn, void *arg)
{
    uint32_t last = atomic_load_explicit(&p->number, memory_order_relaxed);
    struct region r = {.number = last + 2, .n = (uint32_t)n, .fn = fn, .arg = arg};
    r.grain = (r.n + MAX_ITEMS - 1) / MAX_ITEMS;
    r.items = (r.n + r.grain - 1) / r.grain;
    if (++p->since_refresh == REFRESH) { /* before an old number looks like a later one */
        p->since_refresh = 0;
        for (uint32_t i = 0; i < p->threads; i++) {
            atomic_store_explicit(&p->share[i].free, (uint64_t)last << 32, memory_order_relaxed);
            atomic_store_explicit(&p->share[i].done, (uint64_t)last << 32, memory_order_relaxed);
        }
    }
    atomic_store_explicit(&p->number, last + 1, memory_order_relaxed);
    atomic_store_explicit(&p->items, r.items, memory_order_release);
    atomic_store_explicit(&p->grain, r.grain, memory_order_release);
    atomic_store_explicit(&p->n, r.n, memory_order_release);
    atomic_store_explicit(&p->fn, fn, memory_order_release);
    atomic_store_explicit(&p->arg, arg, memory_order_release);
    /* This thread stores the number and then reads `sleepers`; a worker increments `sleepers` and
     * then reads the number. All four are sequentially consistent, so either this thread sees the
     * sleeper or the worker sees the region. */
    atomic_store(&p->number, r.number);
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    return r;
}

/* Takes the first free item of thread i's share, or the last. False: none is free. */
static bool take_item(struct cpu_pool *p, const struct region *r, uint32_t i, bool last,
                      uint32_t *item)
{
    struct thread_share *s = &p->share[i];
    uint64_t was = atomic_load_explicit(&s->free, memory_order_acquire);
    for (;;) {
        int32_t age = (int32_t)((uint32_t)(was >> 32) - r->number);
        uint64_t first = was >> 16 & MAX_ITEMS, end = was & MAX_ITEMS;
        if (age > 0) /* the region has ended */
            return false;
        if (age < 0) { /* nobody has taken any */
            first = (uint64_t)r->items * i / p->threads;
            end = (uint64_t)r->items * (i + 1) / p->threads;
        }
        if (first >= end)
            return false;
        *item = (uint32_t)(last ? end - 1 : first);
        uint64_t left = (uint64_t)r->number << 32 | (first + !last) << 16 | (end - last);
        if (atomic_compare_exchange_weak_explicit(&s->free, &was, left, memory_order_acq_rel,
                                                  memory_order_acquire))
            return true;
    }
}

static void run_item(const struct region *r, uint32_t item, int thread)
{
    uint32_t first = item * r->grain, end = first + r->grain;
    for (uint32_t i = first; i < (end < r->n ? end : r->n); i++)
        r->fn(r->arg, (int)i, thread);
}

/* Runs the free items of the thread's own share, or of the others', and stores the number of items
 * it has run in the region. An item that is not free never becomes free again. */
static void run_items(struct cpu_pool *p, const struct region *r, int thread, bool others)
{
    uint32_t self = (uint32_t)thread, item, count = 0;
    struct thread_share *own = &p->share[thread];
    for (uint32_t i = others; i < (others ? p->threads : 1); i++)
        while (take_item(p, r, (self + i) % p->threads, others, &item)) {
            run_item(r, item, thread);
            count++;
        }
    if (!count)
        return;
    uint64_t done = atomic_load_explicit(&own->done, memory_order_relaxed);
    if (done >> 32 == r->number)
        count += (uint32_t)done;
    atomic_store_explicit(&own->done, (uint64_t)r->number << 32 | count, memory_order_release);
}

static bool all_done(struct cpu_pool *p, const struct region *r)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->threads; i++) {
        uint64_t done = atomic_load_explicit(&p->share[i].done, memory_order_acquire);
        count += done >> 32 == r->number ? (uint32_t)done : 0;
    }
    return count == r->items;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* What a waiting thread has prefetched. */
struct prefetched {
    const struct cpu_ahead *of;
    size_t at; /* bytes */
};

void cpu_pool_ahead(struct cpu_pool *p, const struct cpu_ahead *next)
{
    if (p)
        atomic_store_explicit(&p->ahead, next, memory_order_relaxed);
}

/* Prefetches the next few lines of the thread's share, from byte *at of the share on, and advances
 * *at. False: *at is at the end of the share, or beyond what a cache holds. */
static bool prefetch_share(const struct cpu_ahead *next, int thread, int threads, size_t *at)
{
    int items = next->items, mats = next->mats;
    size_t tile = next->tile, of_item = tile * (size_t)(next->together ? mats : 1);
    if (*at >= PREFETCH_BYTES || of_item == 0)
        return false;
    int item = (int)((int64_t)items * thread / threads + (int64_t)(*at / of_item)), mat = mats - 1;
    if (item >= (int)((int64_t)items * (thread + 1) / threads))
        return false;
    if (next->together)
        mat = (int)(*at % of_item / tile);
    else
        while (mat > 0 && item < next->first[mat])
            mat--;
    size_t from = *at % of_item % tile, left = tile - from;
    size_t n = left < PREFETCH_STEP ? left : PREFETCH_STEP;
    const uint8_t *p = next->data[mat] + (size_t)(item - next->first[mat]) * tile + from;
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(p + i, 0, 2);
    *at += n;
    return true;
}

/* Prefetches a little more; false if there is nothing more to prefetch. */
static bool prefetch(struct cpu_pool *p, int thread, struct prefetched *so_far)
{
    const struct cpu_ahead *next = atomic_load_explicit(&p->ahead, memory_order_relaxed);
    if (next != so_far->of)
        *so_far = (struct prefetched){.of = next};
    return next && prefetch_share(next, thread, (int)p->threads, &so_far->at);
}

/* Turns of a worker's waiting loop after which it looks for items of others. The caller does so
 * earlier, because nothing else can go on. */
enum { LOOK = 64 };

/* Waits without sleeping for a region after r. False if none begins within YIELD_NS. */
static bool spin_for_region(struct cpu_pool *p, const struct region *r, int thread,
                            struct prefetched *so_far)
{
    uint64_t start = 0;
    for (unsigned i = 1;; i++) {
        if (atomic_load_explicit(&p->number, memory_order_acquire) != r->number)
            return true;
        if (!prefetch(p, thread, so_far))
            pause_core();
        if (i % LOOK)
            continue;
        if (i == LOOK)
            run_items(p, r, thread, true);
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
    struct prefetched so_far = {0};
    for (;;) {
        struct region r = read_region(p);
        run_items(p, &r, w->number, false);
        if (spin_for_region(p, &r, w->number, &so_far))
            continue;
        pthread_mutex_lock(&p->lock);
        atomic_fetch_add(&p->sleepers, 1); /* before reading the number: see begin_region() */
        while (!p->stop && atomic_load(&p->number) == r.number)
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
    if (n <= 0)
        return;
    struct region r = begin_region(p, n, fn, arg);
    run_items(p, &r, 0, false);
    for (unsigned i = 1; !all_done(p, &r); i++) {
        pause_core();
        if (i == LOOK / 8)
            run_items(p, &r, 0, true);
        if (i % 1024 == 0)
            sched_yield(); /* a worker with an item may be waiting for this core */
    }
}

void cpu_each(struct kdev *d, int n, double work, cpu_item *fn, void *arg)
{
    if (d->pool && n > 1 && work * n > WORTH_WAKING) {
        cpu_pool_run(d->pool, n, fn, arg);
        return;
    }
    for (int i = 0; i < n; i++)
        fn(arg, i, 0);
}

/* ---- opening --------------------------------------------------------------------------------- */

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
    p->threads = (uint32_t)threads;
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
    FREE(p->share, p);
}
