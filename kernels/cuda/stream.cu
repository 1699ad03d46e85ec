/* stream.cu - the stream of a device, why kernels whose blocks wait for each other cannot hang in
 * it, and the host's waits, which end even if the device never finishes.
 *
 * Some kernels exchange data between their blocks (base/barrier.cuh), so all blocks of such a
 * kernel must be resident at once. That holds because of four facts:
 *
 *  1. The blocks fit on an empty device: cuda_launch_resident() asks the driver and fails
 *     otherwise.
 *  2. All kernels of a process run in one stream a GPU, however many devices (struct kdev) the
 *     process has opened. In two streams, two such kernels could each occupy a part of the
 *     multiprocessors and wait for the rest for ever. Only the recording of a graph uses a stream
 *     of its own, in which nothing runs.
 *  3. In the stream, kernels before such a kernel end without waiting for it. The kernel after it
 *     starts only when all its blocks have called pdl_trigger(), so when they are resident.
 *  4. Another process gets time slices of the whole GPU: all blocks of a context are suspended and
 *     resumed together. Only under MPS do processes share multiprocessors; then the process holds a
 *     lock on the GPU's device file, and a second process is refused.
 */
#include "kernels/cuda/cuda.h"

#ifdef STRESS
#include <cxxabi.h>
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* ---- one stream a GPU ------------------------------------------------------------------------ */

enum { MAX_GPUS = 64 };

/* The stream of a GPU and its users, all guarded by `mutex`. */
static struct shared_gpu {
    cudaStream_t stream;
    int users;
    int lock; /* descriptor of the locked device file, if `locked` */
    bool locked;
    bool hung; /* a wait has ended without the device: whatever waits for it would never return */
} gpus[MAX_GPUS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The number in the name of the GPU's device file, /dev/nvidiaN; -1: unknown. */
static int minor_number(int ordinal)
{
    char bus[32], path[96], line[128];
    int minor = -1;
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) != cudaSuccess)
        return -1;
    for (char *c = bus; *c; c++)
        *c = *c >= 'A' && *c <= 'F' ? (char)(*c - 'A' + 'a') : *c;
    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", bus);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Device Minor: %d", &minor) == 1)
            break;
    if (f)
        fclose(f);
    return minor;
}

/* Under MPS, locks the GPU's device file for this process. */
static bool lock_if_shared(struct shared_gpu *g, int ordinal, struct err *e)
{
    int shared = 0;
    char path[32];
    if (cudaDeviceGetAttribute(&shared, cudaDevAttrMpsEnabled, ordinal) != cudaSuccess)
        cudaGetLastError(); /* an older driver does not know the attribute */
    if (!shared)
        return true;
    snprintf(path, sizeof path, "/dev/nvidia%d", minor_number(ordinal));
    g->lock = open(path, O_RDONLY | O_CLOEXEC);
    if (g->lock >= 0 && flock(g->lock, LOCK_EX | LOCK_NB) == 0)
        return g->locked = true;
    const int why = errno;
    if (g->lock >= 0)
        close(g->lock);
    if (why == EWOULDBLOCK)
        return err_set(e, ERR_MODEL, "CUDA device %d is shared through MPS, and another aerie uses "
                       "it: their kernels could wait for each other for ever; stop MPS, or use "
                       "--device cpu", ordinal);
    return err_set(e, ERR_MODEL, "CUDA device %d is shared through MPS, and %s cannot be locked: "
                                 "%s",
                   ordinal, path, strerror(why));
}

static bool open_gpu(struct kdev *d, struct shared_gpu *g, struct err *e)
{
    if (!lock_if_shared(g, d->ordinal, e))
        return false;
    if (cuda_opens(d, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), e))
        return true;
    if (g->locked)
        close(g->lock);
    g->locked = false;
    return false;
}

bool cuda_open_stream(struct kdev *d, struct err *e)
{
    CHECK(d->ordinal < MAX_GPUS);
    struct shared_gpu *g = &gpus[d->ordinal];
    pthread_mutex_lock(&mutex);
    const bool open = g->users > 0 || open_gpu(d, g, e);
    __atomic_store_n(&g->users, g->users + open, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mutex);
    if (!open)
        return false;
    d->stream = d->run_stream = g->stream;
    return cuda_opens(d, cudaStreamCreateWithFlags(&d->record_stream, cudaStreamNonBlocking), e) &&
           cuda_opens(d, cudaEventCreateWithFlags(&d->reached, cudaEventDisableTiming), e);
}

void cuda_close_stream(struct kdev *d)
{
    if (!d->run_stream)
        return;
    if (d->record_stream)
        cudaStreamDestroy(d->record_stream);
    if (d->reached)
        cudaEventDestroy(d->reached);
    struct shared_gpu *g = &gpus[d->ordinal];
    pthread_mutex_lock(&mutex);
    __atomic_store_n(&g->users, g->users - 1, __ATOMIC_RELAXED);
    if (g->users == 0) {
        cudaStreamDestroy(g->stream);
        if (g->locked)
            close(g->lock);
        *g = {};
    }
    pthread_mutex_unlock(&mutex);
}

/* ---- shared memory of kernels ---------------------------------------------------------------- */

/* The limits of kernels, which belong to the process: they are only raised, because another device
 * may be about to launch the kernel with more. Open addressing; guarded by `mutex`. */
enum { MAX_KERNELS = 1024 };
static struct limit {
    const void *kernel;
    int ordinal;
    size_t shared;
} limits[MAX_KERNELS];

void cuda_allow_shared(struct kdev *d, const void *kernel, size_t shared)
{
    if (shared <= 8 << 10)
        return;
    pthread_mutex_lock(&mutex);
    unsigned at = (unsigned)(((uintptr_t)kernel >> 4) + (uintptr_t)d->ordinal);
    for (int i = 0;; i++, at++) {
        struct limit *l = &limits[at % MAX_KERNELS];
        CHECK(i < MAX_KERNELS);
        if (l->kernel && (l->kernel != kernel || l->ordinal != d->ordinal))
            continue;
        if (l->shared < shared &&
            cuda_ok(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)shared)))
            *l = {kernel, d->ordinal, shared};
        break;
    }
    pthread_mutex_unlock(&mutex);
}

/* ---- blocks that wait for each other --------------------------------------------------------- */

/* The answers of the driver are kept: asking takes as long as a launch. */
bool cuda_fits_at_once(struct kdev *d, const void *kernel, int blocks, int threads, size_t shared)
{
    struct fit *f = d->fits;
    const auto is_this = [=](const struct fit *x) {
        return x->kernel == kernel && x->threads == threads && x->shared == shared;
    };
    while (f < d->fits + d->n_fits && !is_this(f))
        f++;
    if (f == d->fits + MAX_FITS)
        f = d->fits;
    if (!is_this(f)) {
        int each = 0;
        if (!cuda_ok(d, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads,
                                                                      shared)))
            return false;
        d->n_fits += f == d->fits + d->n_fits;
        *f = {kernel, shared, threads, each};
    }
    if (blocks <= f->each * d->gpu.n_sm)
        return true;
    char why[160];
    snprintf(why, sizeof why, "%d blocks wait for each other, and the device holds %d at once",
             blocks, f->each * d->gpu.n_sm);
    cuda_fail(d, why);
    return false;
}

/* ---- how often kernels have run, in a build with STRESS=1 ------------------------------------ */

#ifdef STRESS
/* Counts by kernel, in the order in which kernels were first launched. */
struct tally {
    uint64_t n[MAX_KERNELS];
};
static struct tally ran; /* guarded by `mutex` */
static struct counted {
    const void *kernel;
    char *name;
} counted[MAX_KERNELS];
static int n_counted;

/* "void decode_kernel<(int)1>(decode_args)" is decode_kernel<(int)1>. */
static char *name_of(const void *kernel)
{
    const char *mangled = NULL;
    int status = -1;
    if (cudaFuncGetName(&mangled, kernel) != cudaSuccess)
        cudaGetLastError(), mangled = NULL;
    char *name = mangled ? abi::__cxa_demangle(mangled, NULL, NULL, &status) : NULL;
    if (!name)
        return strdup(mangled ? mangled : "unknown");
    char *from = strncmp(name, "void ", 5) ? name : name + 5, *end = strrchr(from, '>');
    end = end ? end + 1 : strchr(from, '(');
    char *part = strndup(from, end ? (size_t)(end - from) : strlen(from));
    free(name);
    return part;
}

static void write_counts(void)
{
    const char *path = getenv("AERIE_LAUNCHES");
    FILE *f = path ? fopen(path, "ae") : NULL;
    for (int i = 0; f && i < n_counted; i++)
        fprintf(f, "%llu %s\n", (unsigned long long)ran.n[i], counted[i].name);
    if (f)
        fclose(f);
}

void cuda_count(struct kdev *d, const void *kernel)
{
    int i = 0;
    pthread_mutex_lock(&mutex);
    while (i < n_counted && counted[i].kernel != kernel)
        i++;
    if (i == n_counted) {
        CHECK(n_counted < MAX_KERNELS);
        if (n_counted++ == 0)
            atexit(write_counts);
        counted[i] = {kernel, name_of(kernel)};
    }
    if (!d->recording) {
        ran.n[i]++;
    } else {
        if (!d->recorded)
            d->recorded = (struct tally *)xcalloc(1, sizeof *d->recorded);
        d->recorded->n[i]++;
    }
    pthread_mutex_unlock(&mutex);
}

struct tally *cuda_tally_of_graph(struct kdev *d)
{
    struct tally *t = d->recorded;
    d->recorded = NULL;
    return t;
}

void cuda_tally_add(const struct tally *t)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; t && i < n_counted; i++)
        ran.n[i] += t->n[i];
    pthread_mutex_unlock(&mutex);
}
#endif

/* ---- waits of the host ----------------------------------------------------------------------- */

enum {
    WAIT_LIMIT_MS = 120 * 1000, /* a pass takes seconds at most; other processes may slow it */
    SPIN_NS = 50 * 1000 * 1000, /* a wait that takes longer sleeps between polls */
    SLEEP_NS = 20 * 1000,
    MOST_NS = 100 * 1000 * 1000, /* counted between two polls: more passes only while the process is
                                    stopped, which says nothing about the device */
};

struct countdown cuda_countdown(const struct kdev *d)
{
    const int ms = d->wait_limit_ms ? d->wait_limit_ms : WAIT_LIMIT_MS;
    return {clock_ns(), 0, (uint64_t)ms * 1000000};
}

bool cuda_keep_waiting(struct kdev *d, struct countdown *c)
{
    const uint64_t now = clock_ns(), passed = now - c->last;
    c->last = now;
    c->waited += passed < (uint64_t)MOST_NS ? passed : (uint64_t)MOST_NS;
    if (c->waited > c->limit) {
        char why[160];
        snprintf(why, sizeof why, "the device has not finished within %.3g s: a kernel hangs, or "
                 "another process keeps the GPU busy", (double)c->limit * 1e-9);
        __atomic_store_n(&gpus[d->ordinal].hung, true, __ATOMIC_RELAXED);
        cuda_fail(d, why);
        return false;
    }
    if (c->waited > (uint64_t)SPIN_NS) {
        struct timespec pause = {0, SLEEP_NS};
        nanosleep(&pause, NULL);
    }
    return true;
}

bool cuda_hung(const struct kdev *d)
{
    return d->run_stream && __atomic_load_n(&gpus[d->ordinal].hung, __ATOMIC_RELAXED);
}

/* With other devices of the process in the stream, waits for an event, because the stream may never
 * become idle. */
cudaError_t cuda_finish(struct kdev *d)
{
    if (cuda_hung(d))
        return cudaErrorLaunchTimeout;
    cudaError_t rc = cudaSuccess;
    bool recorded = false;
    for (struct countdown c = cuda_countdown(d); rc == cudaSuccess;) {
        if (!recorded && __atomic_load_n(&gpus[d->ordinal].users, __ATOMIC_RELAXED) > 1) {
            rc = cudaEventRecord(d->reached, d->stream), recorded = true;
            if (rc != cudaSuccess)
                break;
        }
        rc = recorded ? cudaEventQuery(d->reached) : cudaStreamQuery(d->stream);
        if (rc != cudaErrorNotReady)
            return rc;
        cudaGetLastError();
        rc = cuda_keep_waiting(d, &c) ? cudaSuccess : cudaErrorLaunchTimeout;
    }
    return rc;
}

bool cuda_wait(struct kdev *d) { return cuda_ok(d, cuda_finish(d)); }
