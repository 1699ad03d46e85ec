/* cuda.cu - the CUDA device: opening, errors, and the kernel table.
 *
 * The runtime is linked statically and loads the driver itself, so the program starts on a machine
 * without a driver; open() then fails with one line. The first failure of the device is kept:
 * nothing is launched after it, and sync() reports it with the operation in which it was noticed.
 */
#include "kernels/cuda/codes.h"
#include "kernels/cuda/cuda.h"

/* ---- errors --------------------------------------------------------------------------------- */

void cuda_fail(struct kdev *d, const char *why)
{
    if (d->failed)
        return;
    d->failed = true;
    err_set(&d->first, ERR_MODEL, "CUDA failed in or before %s: %s", d->op, why);
}

bool cuda_ok(struct kdev *d, cudaError_t rc)
{
    if (rc == cudaSuccess)
        return true;
    cudaGetLastError(); /* clear an error that the device survives, or a later call would return
                           it */
    cuda_fail(d, cudaGetErrorString(rc));
    return false;
}

bool cuda_opens(const struct kdev *d, cudaError_t rc, struct err *e)
{
    return rc == cudaSuccess || err_set(e, ERR_MODEL, "CUDA device %d: %s", d->ordinal,
                                        cudaGetErrorString(rc));
}

void cuda_apply_pending(struct kdev *d)
{
    struct pending p = d->pending;
    d->pending = {};
    if (p.splits)
        cuda_reduce_pending(d, &p);
    if (p.src)
        cuda_norm_rows(d, p.src, p.n, p.x, p.n, p.rows, p.n, &p.post, p.add, 1);
}

void cuda_begin_fused(struct kdev *d, const char *op, const void *src, int rows, int n)
{
    static thread_local int here = -1; /* the runtime keeps the current device per thread */
    if (here != d->ordinal && cuda_ok(d, cudaSetDevice(d->ordinal)))
        here = d->ordinal;
    if (d->pending.x != src || d->pending.rows != rows || d->pending.n != n)
        cuda_apply_pending(d);
    const struct fresh_cells fresh = d->fresh;
    d->fresh = {};
    cuda_store_fresh(d, &fresh);
    d->op = op;
    d->arena_at = 0;
    d->pending_rows_used = d->pending.src && d->pending.src == d->pending_rows;
    d->epoch++;
}

void cuda_begin(struct kdev *d, const char *op) { cuda_begin_fused(d, op, NULL, 0, 0); }

static bool cuda_sync(struct kdev *d, struct err *e)
{
    cuda_begin(d, d->op);
    if (!d->failed)
        cuda_wait(d);
    if (d->failed && e)
        *e = d->first;
    return !d->failed;
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Whether the driver runs the machine code of this build, or with ptx its PTX, which a driver of an
 * older CUDA refuses only when the first kernel is launched. */
static bool version_fits(bool ptx, struct err *e)
{
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        return err_set(e, ERR_MODEL, "no CUDA driver is installed");
    return cuda_driver_runs(driver, runtime, ptx) ||
           err_set(e, ERR_MODEL, "the driver is too old: it supports CUDA %d.%d, this build needs "
                   "%d.%d%s", driver / 1000, driver % 1000 / 10, runtime / 1000,
                   ptx ? runtime % 1000 / 10 : 0, ptx ? " for a GPU of which it has no machine code"
                                                      : "");
}

/* Chooses among the GPU code of this build as the driver does, without loading a kernel: if the
 * driver has to compile PTX, the first load takes a minute, and the user is warned before
 * (slow_start). */
static bool find_code(struct kdev *d, const struct cudaDeviceProp *p, struct err *e)
{
    struct cuda_code code;
    if (p->major < 8)
        return err_set(e, ERR_MODEL, "%s has compute capability %d.%d: 8.0 or newer is needed",
                       p->name, p->major, p->minor);
    if (!cuda_find_code(CUDA_CODES, p->major, p->minor, &code))
        return err_set(e, ERR_MODEL, "%s has compute capability %d.%d, this build has code for %s: "
                       "'make CUDA=1', or 'make' on this machine, builds for it",
                       p->name, p->major, p->minor, CUDA_CODES);
    if (code.ptx && !version_fits(true, e))
        return false;
    d->has_pdl = code.compute >= 90;
    d->gpu.has_wgmma = code.compute == 90 && code.specific && cuda_has_tensor_maps();
    if (code.ptx)
        snprintf(d->slow_start, sizeof d->slow_start,
                 "this build has no machine code for compute capability %d.%d: the driver compiles "
                 "kernels when they are first used, for about a minute at each start; 'make' on "
                 "this machine builds them in, --no-sandbox lets the driver keep them",
                 p->major, p->minor);
    return true;
}

/* For tests on another GPU: AERIE_GPU_AS=8.6 uses the GPU as one of compute capability 8.6 would be
 * used: its kernels, its shared memory. */
static bool restrict_device(struct kdev *d, struct err *e)
{
    static const struct class_of_gpus {
        int compute, smem_kib;
    } classes[] = {{80, 163}, {86, 99}, {87, 163}, {89, 99}, {90, 227}, {120, 99}};
    const char *as = getenv("AERIE_GPU_AS");
    int major = 0, minor = 0;
    if (!as || !*as)
        return true;
    const bool read = sscanf(as, "%2d.%1d", &major, &minor) == 2;
    for (const struct class_of_gpus &c : classes)
        if (read && c.compute == 10 * major + minor) {
            d->restricted = true;
            d->gpu.has_wgmma &= c.compute == 90;
            d->has_pdl &= c.compute >= 90;
            if (d->gpu.smem_max > (size_t)c.smem_kib << 10)
                d->gpu.smem_max = (size_t)c.smem_kib << 10;
            return true;
        }
    return err_set(e, ERR_USAGE, "AERIE_GPU_AS=%.20s: expected 8.0, 8.6, 8.7, 8.9, 9.0 or 12.0",
                   as);
}

bool cuda_within_limits(struct kdev *d, const void *kernel, int threads, size_t shared)
{
    enum { REGISTERS = 1 << 16, UNIT = 8 /* of a thread's registers */ };
    cudaFuncAttributes f = {};
    char why[160];
    if (!cuda_ok(d, cudaFuncGetAttributes(&f, kernel)))
        return false;
    const size_t all = shared + f.sharedSizeBytes;
    const int registers = (f.numRegs + UNIT - 1) / UNIT * UNIT * ((threads + 31) / 32 * 32);
    if (all <= d->gpu.smem_max && registers <= REGISTERS)
        return true;
    snprintf(why, sizeof why, "a block needs %zu bytes of shared memory and %d registers: "
                              "this class "
             "of GPUs has %zu and %d", all, registers, d->gpu.smem_max, (int)REGISTERS);
    cuda_fail(d, why);
    return false;
}

static bool find_device(struct kdev *d, struct err *e)
{
    int n = 0;
    struct cudaDeviceProp p;
    if (!version_fits(false, e))
        return false;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n == 0)
        return err_set(e, ERR_MODEL, "no CUDA device: %s",
                       rc ? cudaGetErrorString(rc) : "none found");
    if (d->ordinal < 0 || d->ordinal >= n)
        return err_set(e, ERR_USAGE, "CUDA device %d: expected 0 to %d", d->ordinal, n - 1);
    if (!cuda_opens(d, cudaSetDevice(d->ordinal), e) ||
        !cuda_opens(d, cudaGetDeviceProperties(&p, d->ordinal), e) || !find_code(d, &p, e))
        return false;
    d->gpu.n_sm = p.multiProcessorCount;
    d->gpu.smem_max = p.sharedMemPerBlockOptin;
    if (!restrict_device(d, e))
        return false;
    snprintf(d->about, sizeof d->about, "%.64s, %.1f GiB, compute capability %d.%d, %s", p.name,
             (double)p.totalGlobalMem / (1 << 30), p.major, p.minor,
             d->gpu.terms == 1 ? "bf16" : "float32");
    return true;
}

/* For tests of small GPUs: AERIE_GPU_MEMORY=8192 leaves 8192 MiB of the free memory to this process
 * and occupies the rest. */
static bool restrict_memory(struct kdev *d, struct err *e)
{
    const char *mib = getenv("AERIE_GPU_MEMORY");
    char *end = NULL;
    const long n = mib ? strtol(mib, &end, 10) : 0;
    size_t left = 0, all = 0;
    if (!mib || !*mib)
        return true;
    if (*end || n < 1 || n > 1 << 24)
        return err_set(e, ERR_USAGE, "AERIE_GPU_MEMORY=%.20s: expected a number of MiB", mib);
    cudaError_t rc = cudaMemGetInfo(&left, &all);
    if (rc == cudaSuccess && left > (size_t)n << 20)
        rc = cudaMalloc(&d->withheld, left - ((size_t)n << 20));
    cudaGetLastError();
    return rc == cudaSuccess || err_set(e, ERR_MODEL, "CUDA device %d: AERIE_GPU_MEMORY: %s",
                                        d->ordinal, cudaGetErrorString(rc));
}

/* Takes the memory that the device holds while it is open. */
static cudaError_t take_memory(struct kdev *d)
{
    const size_t counters = (N_COUNTERS + 1) * sizeof *d->counters;
    const size_t pending = (size_t)PENDING_SPLITS * MAX_VERIFY_ROWS * MAX_PENDING_WIDTH;
    int32_t slots[MAX_FRESH_ROWS];
    for (int i = 0; i < MAX_FRESH_ROWS; i++)
        slots[i] = i;
    TRY(cudaMalloc(&d->arena, ARENA_BYTES));
    TRY(cudaMalloc(&d->counters, counters));
    TRY(cudaMalloc(&d->attn_exchange, ATTN_EXCHANGE_BYTES));
    for (int i = 0; i < 2; i++)
        TRY(cudaMalloc(&d->pending_buf[i], pending * sizeof *d->pending_buf[i]));
    if (d->gpu.has_wgmma)
        TRY(cudaMalloc(&d->pending_rows, PENDING_BYTES));
    /* Between the projections and attention no update is pending. */
    d->query_bf16 = (uint16_t *)d->pending_rows;
    if (!d->query_bf16)
        TRY(cudaMalloc(&d->query_bf16,
                       (size_t)MAX_VERIFY_ROWS * MAX_QUERY_WIDTH * sizeof *d->query_bf16));
    TRY(cudaMalloc(&d->fresh_pool,
                   (size_t)2 * MAX_FRESH_ROWS * MAX_FRESH_WIDTH * sizeof *d->fresh_pool));
    TRY(cudaMalloc(&d->fresh_slots, sizeof slots));
    /* of pageable memory: slots has been read when the call returns */
    TRY(cudaMemcpyAsync(d->fresh_slots, slots, sizeof slots, cudaMemcpyHostToDevice, d->stream));
    TRY(cudaMallocHost(&d->stage, STAGE_BYTES + LAND_BYTES));
    TRY(cudaMemsetAsync(d->counters, 0, counters, d->stream));
    TRY(cudaMemsetAsync(d->attn_exchange, 0, ATTN_EXCHANGE_BYTES, d->stream));
    d->readers = d->counters + N_COUNTERS;
    TRY(cuda_open_ports(d));
    return cuda_finish(d);
}
static bool open_memory(struct kdev *d, struct err *e)
{
    const cudaError_t rc = take_memory(d);
    if (rc != cudaSuccess)
        cudaGetLastError();
    return cuda_opens(d, rc, e);
}

/* Frees what the device holds. */
static void close_memory(struct kdev *d)
{
    cuda_timeline_close();
    for (int i = 0; i < d->n_held; i++)
        cudaFree(d->held[i]);
    cudaFree(d->withheld);
    cudaFree(d->arena);
    cudaFree(d->counters);
    cudaFree(d->attn_exchange);
    if ((void *)d->query_bf16 != d->pending_rows)
        cudaFree(d->query_bf16);
    cudaFree(d->pending_buf[0]);
    cudaFree(d->pending_buf[1]);
    cudaFree(d->pending_rows);
    cudaFree(d->fresh_pool);
    cudaFree(d->fresh_slots);
    cudaFreeHost(d->stage);
    cuda_close_ports(d);
    cuda_close_stream(d);
    cudaGetLastError();
}

static void cuda_close(struct kdev *d)
{
    if (!d)
        return;
    cudaSetDevice(d->ordinal);
    if (d->run_stream)
        cuda_finish(d);
    if (!cuda_hung(d)) /* otherwise the process's end frees the memory */
        close_memory(d);
    free(d->held);
    free(d);
}

/* A GPU whose wgmma does not give the bits of mma.sync is used without wgmma. */
static void check_wgmma(struct kdev *d)
{
    if (!d->gpu.has_wgmma || cuda_wgmma_agrees(d))
        return;
    d->gpu.has_wgmma = false;
    snprintf(d->slow_start, sizeof d->slow_start,
             "wgmma of this GPU differs from mma.sync: prompts are computed with mma.sync, "
             "which is slower; please report the GPU and its driver");
}

static struct kdev *cuda_open(const struct k_opts *opts, struct err *e)
{
    struct kdev *d = (struct kdev *)xcalloc(1, sizeof *d);
    d->ordinal = opts->device;
    d->gpu.terms = opts->precision == K_BF16 ? 1 : 2;
    d->wait_limit_ms = opts->wait_limit_ms;
    d->op = "open";
    d->epoch = 1; /* no operation has number 0 */
    if (find_device(d, e) && restrict_memory(d, e) && cuda_open_stream(d, e) &&
        open_memory(d, e)) {
        cuda_timeline_open(); /* before any kernel */
        check_wgmma(d);
        return d;
    }
    cuda_close(d);
    return NULL;
}

static const char *cuda_about(struct kdev *d)
{
    return d->about;
}

static const char *cuda_slow_start(struct kdev *d)
{
    return *d->slow_start ? d->slow_start : NULL;
}

extern "C" const struct kernels kernels_cuda = {
    .name = "cuda", .queued = true,
    .open = cuda_open, .close = cuda_close, .about = cuda_about,
    .slow_start = cuda_slow_start,
    .alloc = cuda_alloc, .release = cuda_release, .put = cuda_put, .get = cuda_get,
    .fill = cuda_fill, .upload = cuda_upload, .unload = cuda_unload,
    .footprint = cuda_footprint, .holds = cuda_holds, .sync = cuda_sync, .memory = cuda_memory,
#define ENTRY(op) .op = cuda_##op,
    K_OPERATIONS(ENTRY)
#undef ENTRY
    .inbox = cuda_inbox, .read_inbox = cuda_read_inbox, .write_outbox = cuda_write_outbox,
    .outbox = cuda_outbox,
    .graph_begin = cuda_graph_begin, .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch, .graph_free = cuda_graph_free,
    .synthesize = cuda_synthesize, .stream = cuda_stream, .phase = cuda_phase,
    .peer = cuda_peer,
};
