/* cuda.h - what the files of the CUDA backend share; nothing outside kernels/ includes it.
 *
 * Layout on the device. Vectors keep the checkpoint's layout. Matrices of bf16 are stored in
 * panels, in the order in which blocks read them (base/panel.cuh), and so are matrices packed in
 * blocks (dense/packed.cuh), if products are not in float32 (packs_on()). Packed experts are
 * in tiles of 16 rows (moe/expert_blocks.cuh), and so are bf16 experts where wgmma runs
 * (cuda_tiles_experts()). Other float matrices, and those of which single rows are read, keep their
 * rows, padded with zeros to a multiple of 32 elements so that every row can be read 16 bytes at a
 * time. MXFP4 rows are padded to a multiple of four blocks and stored in tiles of 16 rows with
 * re-ordered bits (mem.cu). An activation enters the tensor
 * cores as one 16-bit number or as the sum of two (its terms; dense/product.cuh).
 *
 * Products by number of rows. Decode rows (up to MAX_DECODE_ROWS), verify rows (up to
 * MAX_VERIFY_ROWS) and prefill rows (more) have a kernel each: dense/decode.cu, verify.cu and
 * prefill.cu; up to 128 prefill rows take that of verify rows (route.c). Without wgmma, and for
 * verify rows of two terms, the tile kernel (dense/tile.cu) takes the place of the other two; it
 * takes packed weights unpacked to scratch, as the prefill kernel does for many rows. A row's bits
 * do not depend on the kernel.
 *
 * One stream for all devices of a process on a GPU (stream.cu). Where the device has programmatic
 * dependent launch (PDL), a kernel may start while its predecessor drains. Therefore every kernel
 * calls pdl_wait() before it touches anything that another kernel writes or reads, weights
 * excepted, and pdl_trigger() to allow its successor to start. If a kernel triggers before its own
 * wait, its successor may start while kernels long before both still run. If it triggers after its
 * wait, all kernels before it are complete when the successor starts (kdev.late_epoch).
 *
 * Scratch is one arena of a fixed size, allocated at open. An operation that needs more runs in
 * groups of rows, which changes no bit of a row. Multiplications and additions are contracted only
 * where the source says fmaf (the files are compiled with -fmad=false), so that two kernels that
 * share a function agree to the bit.
 */
#pragma once

#define _Noreturn [[noreturn]]
extern "C" {
#include "kernels/kernels.h"
#include "kernels/packed.h"
}
#include "kernels/cuda/route.h"

#include "kernels/cuda/timeline.h"

/* `make NOWAIT=1` builds a program in which no kernel and no block waits for another one: the same
 * kernels read the same bytes, and every result is wrong. What a step then takes is what waiting
 * does not cost (results-h200.md). Such a program runs `aerie bench` alone (repl/cli/cli.c). */
#ifdef NOWAIT
enum { WAITS = 0 };
#else
enum { WAITS = 1 };
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

typedef __nv_bfloat16 bf16;

enum {
    STAGE_BYTES = 1 << 20, /* pinned; a put of at most half of it is copied through it */
    LAND_BYTES = 256 << 10, /* pinned, behind the stage; so is a get of at most so many bytes */
    N_COUNTERS = 1 << 17,  /* zero between operations */
    MOE_COUNTERS_AT = N_COUNTERS / 2, /* the counters from here on belong to mixtures of experts */
    PENDING_BYTES = 48 << 20, /* the largest pending update of prefill rows */
    INBOX_BYTES = 8 << 20, OUTBOX_BYTES = 256 << 10,
    ATTN_EXCHANGE_BYTES = 40 << 20, /* zero between operations */
    MAX_QUERY_WIDTH = 16384,        /* the widest queries of which verify rows have a copy */
    MAX_FITS = 64,
};

/* Pinned host memory that the device reads and writes. */
struct port {
    char *host, *dev;
};

/* A vector of weights as kernels take it. */
struct vec {
    const void *p; /* NULL: absent */
    int type;      /* enum dtype */
};

struct norm {
    int kind; /* enum norm_kind */
    struct vec w;
    float eps;
};

/* A pending residual update: x (+)= post(src), computed by an earlier operation but not yet
 * applied. The next operation may apply it in its prologue, along with its own norm; otherwise
 * cuda_begin() launches a kernel that does. */
struct pending {
    const float *src; /* NULL: none */
    float *x;
    int rows, n;
    struct norm post;
    bool add;
    int splits; /* src holds this many split-K partial sums of each element (partial_at()), to be
                   reduced first; 0: it holds the elements */
};

/* What an operation leaves to a later one that reads its result: in which layout the rows are. */
enum layout {
    LAYOUT_FLOATS,
    LAYOUT_PACKED, /* in place of the floats, as the product takes them (cuda_rows_format()) */
    LAYOUT_BF16,   /* beside the floats, in kdev.query_bf16 */
};
struct handoff {
    const void *buffer; /* the result; NULL: nothing is left */
    enum layout layout;
    int rows, n;    /* rows of n elements */
    uint64_t epoch; /* of the operation (kdev.epoch) */
};

/* Keys and values of decode rows, in float32, that are yet to be stored as FP8 cells. The blocks of
 * the product have parts of heads, and the scale of a head needs all of it; attention, which reads
 * these cells next, has whole heads and stores them. If another operation follows, cuda_begin()
 * launches a kernel that does. */
struct fresh_cells {
    const float *k, *v;   /* (rows, n_kv, head_dim); k NULL: none */
    const int32_t *write; /* the slot of each row */
    void *cell_k, *cell_v;
    size_t cell_bytes; /* kv_cell_bytes() */
    int rows, n_kv, head_dim, n_slots;
};

/* How many blocks of a kernel a multiprocessor holds, as asked before. */
struct fit {
    const void *kernel;
    size_t shared;
    int threads, each;
};

struct kdev {
    int ordinal;
    struct gpu gpu; /* what routes depend on */
    bool has_pdl;   /* the code that runs was compiled for 9.0 or later: it has PDL */
    cudaStream_t stream;     /* where operations go: run_stream, or record_stream while recording */
    cudaStream_t run_stream; /* shared by all devices of the process on this GPU (stream.cu) */
    cudaStream_t record_stream;
    cudaEvent_t reached; /* for the host's waits */
    int wait_limit_ms;   /* 0: the default */
    struct fit fits[MAX_FITS];
    int n_fits;
    char *arena;
    size_t arena_at;
    unsigned *counters; /* (N_COUNTERS) */
    char *stage;        /* pinned host memory, used as a ring */
    size_t stage_at;
    bool recording;
    struct port in, out; /* the host's ports (graph.cu) */
    unsigned *ticket;    /* on the device: number of gives that have run */
    uint32_t launched_gives, recorded_gives; /* recorded: in the graph being recorded */
    void **held; /* device memory of weights, freed with the device */
    int n_held, cap_held;
    struct pending pending;
    uint64_t epoch;         /* the number of the current operation */
    struct handoff packed;  /* of the last operation that was allowed to store packed rows */
    struct handoff queries; /* of the last operation that stored queries as bf16, too */
    float *pending_buf[2]; /* (PENDING_SPLITS, MAX_VERIFY_ROWS, MAX_PENDING_WIDTH) each; used
                              alternately */
    int pending_next;
    float *pending_rows; /* (PENDING_BYTES); NULL: without wgmma, prefill rows have no pending
                            updates */
    bool pending_rows_used; /* by the pending update, or by one that this operation has applied */
    unsigned *readers; /* blocks that have read the pending row; zero between operations */
    const char *op; /* the current operation, for messages */
    /* The last operation whose last kernel calls pdl_trigger() only after its own wait. Then
     * everything before that kernel is complete and visible when the next kernel starts: the next
     * kernel may read, before its own wait, whatever that kernel does not write. */
    uint64_t late_epoch;
    uint16_t *query_bf16; /* pending_rows; without: (MAX_VERIFY_ROWS, MAX_QUERY_WIDTH) */
    bool failed;
    struct err first;
    char about[192];
    char slow_start[256]; /* "": the start is not slow */
    void *attn_exchange; /* (ATTN_EXCHANGE_BYTES): partial results that blocks of one attention
                            kernel exchange */
    bool restricted; /* used as another GPU (AERIE_GPU_AS): its limits bound launches */
    void *withheld;  /* device memory that nothing may use (AERIE_GPU_MEMORY), or NULL */
    struct fresh_cells fresh;
    float *fresh_pool; /* K, then V: (MAX_FRESH_ROWS, MAX_FRESH_WIDTH) each; a row's slot is its
                          number */
    int32_t *fresh_slots; /* (MAX_FRESH_ROWS): 0, 1, 2, ... */
    bool serial; /* the next kernel reads before its own wait what the last one writes: no PDL */
#ifdef STRESS
    struct tally *recorded; /* the kernels of the graph being recorded (cuda_count()) */
#endif
};

/* ---- host: errors and scratch --------------------------------------------------------------- */

/* Begins an operation: sets its name for messages, empties the arena, selects the device on this
 * thread, applies a pending residual update and stores fresh cells. */
void cuda_begin(struct kdev *d, const char *op);
/* As cuda_begin(), for an operation that can apply a pending update in its prologue: an update of
 * rows of n elements at src stays pending. */
void cuda_begin_fused(struct kdev *d, const char *op, const void *src, int rows, int n);
/* Launches the kernels that apply the pending residual update, if there is one. */
void cuda_apply_pending(struct kdev *d);
/* Stores cells; f->k NULL: nothing (dense/fresh.cu). */
void cuda_store_fresh(struct kdev *d, const struct fresh_cells *f);
/* Reduces the split-K partial sums of a pending update (dense/verify.cu). */
void cuda_reduce_pending(struct kdev *d, struct pending *p);
/* Keeps the first failure. True if there is none. */
bool cuda_ok(struct kdev *d, cudaError_t rc);
/* rc == cudaSuccess; otherwise *e says that the device cannot be opened. */
bool cuda_opens(const struct kdev *d, cudaError_t rc, struct err *e);
/* In a function that returns an error code: ends it with that of a call that has failed. */
#define TRY(call)             \
    do {                      \
        const auto rc = call; \
        if (rc)               \
            return rc;        \
    } while (0)
/* Keeps `why`, with the name of the current operation, unless there was a failure before. From then
 * on nothing is launched. */
void cuda_fail(struct kdev *d, const char *why);

/* ---- host: the stream and waits (stream.cu) -------------------------------------------------- */

/* Opens and closes the device's streams and its event. False: *e; close all the same. */
bool cuda_open_stream(struct kdev *d, struct err *e);
void cuda_close_stream(struct kdev *d);
/* Waits until the device has done all that was launched. False: it has failed, or the time limit
 * has passed (cuda_hung()); the failure is kept. cuda_finish(): the same as an error code. */
bool cuda_wait(struct kdev *d);
cudaError_t cuda_finish(struct kdev *d);
/* True after a wait has passed its time limit. Calls of the runtime that wait, as cudaFree() does,
 * would then not return. */
bool cuda_hung(const struct kdev *d);
/* The time that a wait may still take. cuda_keep_waiting() is called between polls: it sleeps for a
 * moment if the wait is a long one, and keeps a failure and returns false if the limit has
 * passed. */
struct countdown {
    uint64_t last, waited, limit; /* ns */
};
struct countdown cuda_countdown(const struct kdev *d);
bool cuda_keep_waiting(struct kdev *d, struct countdown *c);
/* Allows a kernel so much dynamic shared memory. Its static shared memory comes on top, and both
 * may exceed the default limit of 48 KiB. */
void cuda_allow_shared(struct kdev *d, const void *kernel, size_t shared);
/* Whether so many blocks of a kernel can be resident at once on an empty device; otherwise the
 * device fails. */
bool cuda_fits_at_once(struct kdev *d, const void *kernel, int blocks, int threads, size_t shared);

/* Whether operation `epoch` is the one before the current one. */
static inline bool cuda_was_last(const struct kdev *d, uint64_t epoch)
{
    return epoch + 1 == d->epoch;
}
/* Whether the rows at `buffer`, rows of n elements, were left in this layout. */
static inline bool cuda_handed(const struct handoff *h, enum layout layout, const void *buffer,
                               int rows, int n)
{
    const bool same = buffer && h->buffer == buffer && h->layout == layout;
    CHECK(!same || layout != LAYOUT_PACKED || (h->rows == rows && h->n == n));
    return same && h->rows == rows && h->n == n;
}

/* n rounded up to a multiple of `to`. */
static inline size_t cuda_round(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Scratch that is valid until the operation ends. The caller must not exceed the arena. */
static inline void *cuda_take(struct kdev *d, size_t bytes)
{
    size_t at = d->arena_at;
    CHECK(bytes <= (size_t)ARENA_BYTES - at);
    d->arena_at = cuda_round(at + bytes, 256);
    return d->arena + at;
}
/* The number of rows, at most `rows`, that fit into the arena at bytes_each. */
static inline int cuda_fit(int rows, size_t bytes_each)
{
    size_t fit = ((size_t)ARENA_BYTES - (1 << 16)) / bytes_each;
    return fit < (size_t)rows ? (int)fit : rows;
}

/* ---- host: tensors and buffers -------------------------------------------------------------- */

/* Elements from one row of a float tensor to the next. */
static inline size_t cuda_pitch(const struct tensor *t)
{
    size_t n = (size_t)t->dim[t->n_dim - 1];
    return t->n_dim >= 2 ? cuda_round(n, 32) : n;
}

/* The weights of a float tensor; absent for NULL. */
static inline struct vec cuda_vec(const struct tensor *t)
{
    struct vec v = {NULL, DT_F32};
    if (!t)
        return v;
    CHECK(t->data && (t->type == DT_BF16 || t->type == DT_F16 || t->type == DT_F32));
    v.p = t->data;
    v.type = t->type;
    return v;
}

static inline struct norm cuda_norm(const struct k_norm *n)
{
    bool weighted = n->kind == NORM_RMS || n->kind == NORM_RMS1P;
    CHECK(n->kind != NORM_LAYER && (!weighted || (n->w && n->w->data)));
    struct norm m = {n->kind, cuda_vec(weighted ? n->w : NULL), n->eps};
    return m;
}

/* The buffer's elements; CHECKs that it has at least n of them. */
static inline float *cuda_f32(kbuf b, size_t n)
{
    CHECK(n == 0 || (b.p && n <= b.n / sizeof(float)));
    return (float *)b.p;
}
static inline int32_t *cuda_i32(kbuf b, size_t n)
{
    CHECK(n == 0 || (b.p && n <= b.n / sizeof(int32_t)));
    return (int32_t *)b.p;
}
/* Elements between rows: stride, or n if stride is 0 (dense rows). */
static inline int cuda_stride(int stride, int n) { return stride > 0 ? stride : n; }
/* Elements from the first element of a matrix to the end of its last row. */
static inline size_t cuda_span(int rows, int stride, int n)
{
    return rows ? (size_t)(rows - 1) * (size_t)stride + (size_t)n : 0;
}

static inline bool at_16(const void *p) { return (uintptr_t)p % 16 == 0; }

/* ---- host: launching ------------------------------------------------------------------------ */

/* Whether a block of the kernel fits the GPU as which the device is used; otherwise the device
 * fails. */
bool cuda_within_limits(struct kdev *d, const void *kernel, int threads, size_t shared);

/* A build with STRESS=1 counts how often each kernel runs, in replayed graphs, too, and at the
 * process's end appends lines "COUNT KERNEL" to the file that AERIE_LAUNCHES names (stream.cu). */
#ifdef STRESS
void cuda_count(struct kdev *d, const void *kernel);
#else
static inline void cuda_count(struct kdev *, const void *) {}
#endif

/* Launches a kernel on the device's stream, with PDL if the device has it. shared: bytes of dynamic
 * shared memory. Launches nothing after a failure or for an empty grid. */
template <class... Params, class... Args>
void cuda_launch(struct kdev *d, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                 const Args &...args)
{
    if (d->failed || grid.x == 0 || grid.y == 0 || grid.z == 0)
        return;
    if (d->restricted && !cuda_within_limits(d, (const void *)kernel, (int)block.x, shared))
        return;
    /* All kernels use the same division of a multiprocessor's memory into L1 and shared memory. A
     * kernel with another division could not start before its predecessor has left. */
    cudaLaunchAttribute attr[2] = {};
    attr[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attr[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = d->stream;
    c.attrs = attr;
    c.numAttrs = d->has_pdl && !d->serial ? 2 : 1;
    d->serial = false;
    cuda_allow_shared(d, (const void *)kernel, shared);
    if (!d->failed && cuda_ok(d, cudaLaunchKernelEx(&c, kernel, (Params)args...)))
        cuda_count(d, (const void *)kernel);
}

/* cuda_launch() for a kernel whose blocks wait for each other: launches it only if all its blocks
 * are resident at once (stream.cu). */
template <class... Params, class... Args>
void cuda_launch_resident(struct kdev *d, void (*kernel)(Params...), dim3 grid, dim3 block,
                          size_t shared, const Args &...args)
{
    if (d->failed)
        return;
    cuda_allow_shared(d, (const void *)kernel, shared);
    if (cuda_fits_at_once(d, (const void *)kernel, (int)(grid.x * grid.y * grid.z),
                          (int)(block.x * block.y * block.z), shared))
        cuda_launch(d, kernel, grid, block, shared, args...);
}

/* An amount of dynamic shared memory with which a block has a multiprocessor to itself; 0 if there
 * are more blocks than multiprocessors. Without it, while another kernel occupies most
 * multiprocessors, the blocks of a short kernel would crowd on the free ones and slow each other
 * down; with it they wait until blocks of that kernel leave. */
static inline size_t cuda_exclusive_smem(const struct kdev *d, int blocks)
{
    return blocks <= d->gpu.n_sm ? d->gpu.smem_max / 2 + 2048 : 0;
}

/* ---- operations ----------------------------------------------------------------------------- */

kbuf cuda_alloc(struct kdev *d, size_t bytes, const char *what, struct err *e);
void cuda_release(struct kdev *d, kbuf b);
void cuda_put(struct kdev *d, kbuf dst, const void *src, size_t bytes);
void cuda_get(struct kdev *d, void *dst, kbuf src, size_t bytes);
void cuda_fill(struct kdev *d, kbuf dst, uint8_t byte);
bool cuda_upload(struct kdev *d, struct tensor *t, struct err *e);
void cuda_unload(struct kdev *d, struct tensor *t);
size_t cuda_footprint(struct kdev *d, const struct tensor *t);
bool cuda_holds(struct kdev *d, const struct tensor *t);
void cuda_memory(struct kdev *d, size_t *free_bytes, size_t *total_bytes);

#define CUDA_OPERATION(op) void cuda_##op(struct kdev *d, const struct k_##op *a);
K_OPERATIONS(CUDA_OPERATION)
#undef CUDA_OPERATION

/* stream.cu, in a build with STRESS=1: the counts of the graph that was recorded, which the graph
 * keeps; adds them for one launch of the graph. */
#ifdef STRESS
struct tally *cuda_tally_of_graph(struct kdev *d);
void cuda_tally_add(const struct tally *t);
#endif

/* graph.cu */
cudaError_t cuda_open_ports(struct kdev *d);
void cuda_close_ports(struct kdev *d);
void *cuda_inbox(struct kdev *d, size_t bytes);
void cuda_read_inbox(struct kdev *d, kbuf dst, size_t bytes);
void cuda_write_outbox(struct kdev *d, kbuf src, size_t bytes);
const void *cuda_outbox(struct kdev *d);
bool cuda_graph_begin(struct kdev *d);
struct kgraph *cuda_graph_end(struct kdev *d, struct err *e);
void cuda_graph_launch(struct kdev *d, struct kgraph *g);
void cuda_graph_free(struct kdev *d, struct kgraph *g);

/* dense/prefill.cu: whether the driver can encode tensor maps (TMA). */
bool cuda_has_tensor_maps(void);
/* dense/agree.cu: whether wgmma gives the bits of mma.sync. */
bool cuda_wgmma_agrees(struct kdev *d);

/* bench.cu */
bool cuda_synthesize(struct kdev *d, struct tensor *t, uint64_t seed, float scale, struct err *e);
void cuda_stream(struct kdev *d, kbuf src, kbuf dst);
bool cuda_phase(struct kdev *d, enum k_phase kind, int n);
int cuda_peer(struct kdev *d, const struct k_peer *a, struct err *e);

/* dst[r] = (norm(src[r]) + (add ? dst[r] : 0)) * scale; for normalize() and as a row epilogue. */
void cuda_norm_rows(struct kdev *d, const float *src, int src_stride, float *dst, int dst_stride,
                    int rows, int n, const struct norm *norm, bool add, float scale);
/* dst[r] = src[r] */
void cuda_copy_rows(struct kdev *d, const float *src, size_t src_stride, float *dst,
                    size_t dst_stride, int rows, int n);

/* ---- device: helpers of every kernel -------------------------------------------------------- */

#ifdef __CUDACC__

/* Discards the 128-byte line at p in L2. Scratch that has been read for the last time would
 * otherwise be written back to memory. All readers of the line must have their values; the line
 * must be written before it is read again. */
__device__ __forceinline__ void discard(const void *p)
{
    asm volatile("discard.global.L2 [%0], 128;" ::"l"(p) : "memory");
}

/* Prefetches the line at p into L2 and its address translation into the TLB; p may point to data
 * that must not be read yet. */
__device__ __forceinline__ void prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* 2^x in one instruction: relative error 2^-22. */
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Allows the next kernel of the stream to start once every block has called this or has ended. The
 * next kernel still waits for this one in its own pdl_wait(), so the call is correct at any time;
 * an early call lets the next kernel occupy free multiprocessors and fetch weights early. */
__device__ __forceinline__ void pdl_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until everything before this kernel in the stream is complete and visible. */
__device__ __forceinline__ void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    STAMP_WAIT(STAMP_WAITS);
    if (WAITS)
        asm volatile("griddepcontrol.wait;" ::: "memory");
    STAMP_WAIT(STAMP_WENT);
#endif
}

/* pdl_wait(), then pdl_trigger(). */
__device__ __forceinline__ void pdl_wait_trigger()
{
    pdl_wait();
    pdl_trigger();
}

__device__ __forceinline__ float weight_at(struct vec v, size_t i)
{
    if (v.type == DT_BF16)
        return __bfloat162float(((const bf16 *)v.p)[i]);
    if (v.type == DT_F16)
        return __half2float(((const __half *)v.p)[i]);
    return ((const float *)v.p)[i];
}

/* Element i of a vector as stored, in the low bits, and its value. Converting a number waits for
 * its load, so a kernel that fetches weights early converts them later. */
__device__ __forceinline__ uint32_t raw_at(const struct vec &v, int i)
{
    return v.type == DT_F32 ? __ldg((const uint32_t *)v.p + i)
                            : (uint32_t)__ldg((const uint16_t *)v.p + i);
}
__device__ __forceinline__ float raw_value(int type, uint32_t raw)
{
    return type == DT_F32    ? __uint_as_float(raw)
           : type == DT_BF16 ? __uint_as_float(raw << 16)
                             : __half2float(__ushort_as_half((uint16_t)raw));
}

/* An element of a normalised row; x: before the norm, inv: the row's 1 / rms, w: the element's
 * weight. */
__device__ __forceinline__ float normed_by(int kind, float x, float inv, float w)
{
    if (kind == NORM_NONE)
        return x;
    float y = x * inv;
    return kind == NORM_PLAIN ? y : y * (kind == NORM_RMS1P ? 1 + w : w);
}

/* 1 / (1 + e^-x), from e^-|x| so that neither side overflows. The divisor is within [1, 2], where
 * the fast division is accurate to two roundings; the exact division has a branch. */
__device__ __forceinline__ float sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return __fdividef(x < 0 ? e : 1.f, 1 + e);
}

__device__ __forceinline__ float activate(float x, int act)
{
    if (act == ACT_SILU)
        return x * sigmoid(x);
    if (act == ACT_GELU_TANH)
        return x * sigmoid(1.59576912160573071f * fmaf(0.044715f, x * x * x, x));
    return x;
}

/* act(g) * u; ACT_SWIGLU_CLAMP is defined in base.h. */
__device__ __forceinline__ float gated(float g, float u, int act, float limit)
{
    if (act != ACT_SWIGLU_CLAMP)
        return activate(g, act) * u;
    g = g > limit ? limit : g; /* written so that NaN passes */
    u = u > limit ? limit : u < -limit ? -limit : u;
    return g * sigmoid(1.702f * g) * (u + 1);
}

__device__ __forceinline__ float soft_capped(float x, float cap)
{
    return cap > 0 ? cap * tanhf(x / cap) : x;
}

#endif
