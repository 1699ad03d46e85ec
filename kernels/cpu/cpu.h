/* cpu.h - declarations shared by the CPU backend's files: device, threads, table of inner loops.
 *
 * cpu.c        the device, the table, and the operations that embed, rotate, scale or move
 * memory.c     its memory: allocation, copies, and memory that is filled when it is written
 * threads.c    the pool of threads
 * vec.h        sixteen floats at a time, in plain C, AVX2 and AVX-512
 * math.h       the inner loops, written once over vec.h
 * unpack.h     packed weights (kernels/packed.h)
 * wide.h       the inner loops of products of many rows
 * scalar.c, avx2.c, avx512.c    compile math.h, each for one instruction set
 * bench.c      operations for benchmarks
 * linear.c, attention.c, moe.c, sample.c    divide operations into items for the threads
 * tree.c       the draft tree's operations, on the calling thread
 *
 * Threads: a struct kdev, its scratch memory and its pool belong to the thread that calls the
 * operations. Workers of the pool own nothing: during cpu_pool_run() each worker runs items, which
 * write disjoint parts of the outputs and of the scratch memory; between two calls the workers
 * touch no memory but the pool's (threads.c).
 *
 * Always true: a row's results depend on that row's inputs alone. The division into items, the
 * thread that runs an item and the instruction set change only the time.
 */
#pragma once

#include "kernels/kernels.h"
#include "kernels/packed.h"

enum { CPU_MATS = 3 }; /* most matrices of a product */

/* ---- threads (threads.c) ---------------------------------------------------------------- */

struct cpu_pool;
typedef void cpu_item(void *arg, int item, int thread);

/* A pool of `threads` threads, the caller included; fewer if the system refuses more. NULL for one
 * thread, which every function below accepts as a pool except cpu_pool_run(). */
struct cpu_pool *cpu_pool_open(int threads);
void cpu_pool_close(struct cpu_pool *p);
int cpu_pool_threads(const struct cpu_pool *p);
/* Calls fn(arg, item, thread) once for each item in [0, n), on the calling thread (thread 0) and on
 * the workers that are awake, and returns when all items are done. `thread` is below
 * cpu_pool_threads() and identifies the thread that runs the item. One call at a time. */
void cpu_pool_run(struct cpu_pool *p, int n, cpu_item *fn, void *arg);

/* The weights that the items of a product read. The calling thread writes it while other threads
 * read it; a mixture of two products only costs time. */
struct cpu_ahead {
    const void *after; /* weights of the product before this one; calling thread only */
    _Atomic(const uint8_t *) data[CPU_MATS];
    _Atomic int first[CPU_MATS]; /* first item of each matrix */
    _Atomic int mats, items;
    _Atomic bool together;  /* each item reads a tile of every matrix */
    _Atomic size_t tile;    /* bytes of a matrix that an item reads */
};
/* Until the next call, waiting threads prefetch the weights that they will read first in this
 * product. NULL: none. *next must outlive the pool. */
void cpu_pool_ahead(struct cpu_pool *p, const struct cpu_ahead *next);

/* ---- the device ----------------------------------------------------------------------------- */

/* Scratch memory, one buffer for each use. A buffer grows when an operation first needs more, and
 * is kept, so that a steady state never allocates. */
enum cpu_scratch_use {
    SCRATCH_PACK, SCRATCH_PACK_2, SCRATCH_PTR, SCRATCH_PTR_2, SCRATCH_OUT, SCRATCH_K, SCRATCH_V,
    SCRATCH_PART, SCRATCH_CELLS, SCRATCH_SCORES, SCRATCH_SCAN, SCRATCH_SUMS, SCRATCH_IDS,
    SCRATCH_THREAD,
    SCRATCH_WIDE, SCRATCH_LOGITS, SCRATCH_ROUTE, SCRATCH_UP, SCRATCH_HIDDEN, SCRATCH_DOWN,
    SCRATCH_MOVE, SCRATCH_INBOX, SCRATCH_OUTBOX, N_SCRATCH
};

/* A file in memory whose bytes are all 0xff, mapped in place of filling (memory.c). */
struct cpu_ones {
    int fd; /* -1: not made yet */
    size_t bytes;
};

struct kdev {
    struct cpu_pool *pool;
    struct cpu_ones ones;
    int threads;
    const struct cpu_isa *isa;
    char about[64];
    void **synthesized; /* (n_synthesized) weights of synthesize(), freed with the device */
    int n_synthesized;
    struct cpu_ahead *ahead; /* (N_AHEAD) products by the one that came before them */
    const void *last_product;
    struct { void *p; size_t n; } scratch[N_SCRATCH];
};

/* memory.c; as the entries of struct kernels */
kbuf cpu_alloc(struct kdev *d, size_t bytes, const char *what, struct err *e);
void cpu_release(struct kdev *d, kbuf b);
void cpu_put(struct kdev *d, kbuf dst, const void *src, size_t bytes);
void cpu_get(struct kdev *d, void *dst, kbuf src, size_t bytes);
void cpu_fill(struct kdev *d, kbuf dst, uint8_t byte);
void cpu_ones_close(struct cpu_ones *o);

/* The buffer of a use (memory.c): at least n elements of `size` bytes, 64-byte aligned, contents
 * undefined, valid until the next call for the same use. Only on the device's own thread. */
void *cpu_scratch(struct kdev *d, enum cpu_scratch_use which, size_t n, size_t size);
static inline float *cpu_floats(struct kdev *d, enum cpu_scratch_use which, size_t n)
{
    return cpu_scratch(d, which, n, sizeof(float));
}
/* Runs items 0 .. n - 1 on the pool (threads.c), or on the calling thread alone if all of them
 * together take less time than waking a worker. work: multiply-adds of one item. */
void cpu_each(struct kdev *d, int n, double work, cpu_item *fn, void *arg);

/* Typed pointers to device memory; CHECKs that it holds n elements. */
static inline float *cpu_f32(kbuf b, size_t n)
{
    CHECK(n == 0 || (b.p && b.n / sizeof(float) >= n));
    return b.p;
}
static inline int32_t *cpu_i32(kbuf b, size_t n)
{
    CHECK(n == 0 || (b.p && b.n / sizeof(int32_t) >= n));
    return b.p;
}
static inline void cpu_check_cells(const struct k_cells *c)
{
    size_t cell = kv_cell_bytes(c->type, c->n_kv, c->head_dim);
    size_t need = (size_t)c->n_slots * cell;
    CHECK(c->k.p && c->v.p && c->k.n >= need && c->v.n >= need);
}
static inline int cpu_stride(int stride, int dense) { return stride > 0 ? stride : dense; }
/* Floats from the beginning of the first of `rows` rows to the end of the last. */
static inline size_t cpu_span(int rows, int stride, int n)
{
    return rows ? (size_t)(rows - 1) * (size_t)stride + (size_t)n : 0;
}

/* ---- matrices ------------------------------------------------------------------------------- */

enum cpu_store { STORED_BF16, STORED_F16, STORED_F32, STORED_MXFP4, STORED_PACKED, N_STORED };

/* A matrix of n rows of k weights. Row o begins at data + o * pitch; its MXFP4 scales begin at
 * scale + o * scale_pitch (both pitches in bytes). */
struct cpu_mat {
    const uint8_t *data, *scale;
    enum cpu_store type;
    enum dtype packed; /* of STORED_PACKED */
    int n, k; /* outputs, inputs */
    size_t pitch, scale_pitch;
};

static inline enum cpu_store cpu_store_of(const struct tensor *t)
{
    CHECK(t->data && (t->type == DT_BF16 || t->type == DT_F16 || t->type == DT_F32));
    return t->type == DT_BF16 ? STORED_BF16 : t->type == DT_F16 ? STORED_F16 : STORED_F32;
}

/* Rows from `at` on of k weights each. */
static inline struct cpu_mat cpu_rows_at(const struct tensor *t, size_t at, int n, int k)
{
    size_t pitch = dtype_bytes(t->type, (size_t)k);
    bool packed = dtype_packed(t->type);
    CHECK(t->data);
    return (struct cpu_mat){.data = (const uint8_t *)t->data + at * pitch,
                            .n = n,
                            .k = k,
                            .pitch = pitch,
                            .type = packed ? STORED_PACKED : cpu_store_of(t),
                            .packed = packed ? t->type : DT_NONE};
}

/* Of a (n, k) tensor. */
static inline struct cpu_mat cpu_mat_of(const struct tensor *t)
{
    CHECK(t->n_dim == 2 && t->dim[0] <= INT32_MAX && t->dim[1] <= INT32_MAX);
    return cpu_rows_at(t, 0, (int)t->dim[0], (int)t->dim[1]);
}

/* Products read input rows in "packed" order: of each 32 elements first the 16 even ones, then the
 * 16 odd ones; the last 32 are padded with zeros. A shift and a mask convert bf16 pairs to exactly
 * that order, and the nibbles of MXFP4 are stored in it. The length of a packed row of n
 * elements: */
static inline int cpu_packed(int n) { return (n + 31) & ~31; }

/* Largest tile of results: TILE_ROWS rows x TILE_OUT outputs. */
enum { TILE_OUT = 32, TILE_ROWS = 32 };

/* Many rows are multiplied in panels (wide.h): a panel holds the values of PANEL rows for each
 * input element, a tile of weights the float32 weights of TILE_OUT outputs for each. A sweep is up
 * to SWEEP panels that share one reading of a tile's weights; it is stored in 16 pieces, each of
 * which has a sixteenth of the elements of all its panels, one panel behind the other. */
enum { PANEL = 16, SWEEP = 16 };

/* ---- the inner loops, one table for each instruction set ------------------------------------ */

/* The epilogue of a product: operations on a tile of results before it is stored. Pointers are
 * those of the tile's first output, strides are in floats. */
struct cpu_epilogue {
    const struct tensor *b; /* or NULL */
    size_t b_at;            /* index of the tile's first element in b */
    enum act_kind act;
    float softcap, scale;
    const float *mul; /* or NULL */
    size_t mul_stride;
    bool add;
    float *dst;
    size_t dst_stride;
};

/* The running softmax (online softmax) of one row, for the n query heads of a kv head. acc is in
 * the order in which cells are loaded: packed, but of float32 cells as they are. */
struct cpu_softmax {
    float *m, *l; /* (n) running maximum and sum of exp(score - m) */
    float *acc;   /* (n, packed head_dim) sum of exp(score - m) v */
};

enum {
    ATTN_BLOCK = 64,  /* keys of a block: between two updates of the running maximum */
    ATTN_SPLIT = 512, /* keys of a split, which is reduced separately, perhaps by another thread */
};

struct cpu_block { /* keys of one block: lanes [first, first + n) of it are visible */
    int first, n;
    const uint8_t *k[ATTN_BLOCK], *v[ATTN_BLOCK];
};

struct cpu_heads { /* the query heads of one kv head; constant over all blocks */
    int n, head_dim;
    enum cpu_store type;
    float scale, softcap;
    const float *q; /* (n, packed head_dim), in the order of acc */
    float *p;       /* (n, ATTN_BLOCK) scratch */
};

struct cpu_isa {
    const char *name, *title;

    /* dst[i] = (norm(x)[i] + (add ? dst[i] : 0)) * scale */
    void (*normalize)(const float *x, int n, const struct k_norm *norm, bool add, float scale,
                      float *dst);
    /* The same into packed order, times factor[i] (NULL: none) and scale. */
    void (*pack)(const float *x, int n, const struct k_norm *norm, const struct tensor *factor,
                 float scale, float *dst);
    /* dst[i] = t[at + i] * scale; of a packed tensor whole blocks */
    void (*widen)(const struct tensor *t, size_t at, int n, float scale, float *dst);
    void (*scale)(float *x, int n, float s);
    /* dst[i] (+)= w * src[i] */
    void (*axpy)(float w, const float *src, int n, bool first, float *dst);
    /* tile[r * TILE_OUT + o] = row out + o of w, times x[r]; rows <= TILE_ROWS, n <= TILE_OUT */
    void (*multiply)(const struct cpu_mat *w, const float *const *x, int rows, int out, int n,
                     float *tile);
    /* Packed rows (PANEL, k) to a panel of a sweep, whose pieces are `apart` floats apart. */
    void (*panel)(const float *rows, int k, size_t apart, float *panel);
    /* Rows out .. out + n - 1 of w as float32 for multiply_wide(): (packed k, TILE_OUT). */
    void (*widen_tile)(const struct cpu_mat *w, int out, int n, float *dst);
    /* multiply() for the rows of a sweep's panels */
    void (*multiply_wide)(const float *w, int k, const float *x, int panels, int n, float *tile);
    void (*epilogue)(const struct cpu_epilogue *f, const float *tile, int rows, int n);
    /* dst[i] = act(g[i]) * u[i]; limit as in k_moe */
    void (*gate)(const float *g, const float *u, int n, enum act_kind act, float limit, float *dst);
    /* Applies rope to one head: cs is (rot / 2, 2). */
    void (*rotate)(float *head, int rot, const float *cs);
    void (*to_bf16)(const float *src, int n, uint16_t *dst);
    /* attention: score() computes the unscaled scores of a block, h->p (of keys only); weigh() adds
     * the block to s: m, l, and dimensions [from, to) of acc (from: a multiple of 32), and changes
     * h->p on the way. combine() adds b's softmax to a's, mix() is a = wa a + wb b */
    void (*score)(const struct cpu_heads *h, const struct cpu_block *b);
    void (*weigh)(const struct cpu_heads *h, const struct cpu_block *b, struct cpu_softmax *s,
                  int from, int to);
    /* The scores of many heads: the block's keys as panels (16 keys, packed head_dim) of float32,
     * and the scores of n <= TILE_OUT heads, p (n, ATTN_BLOCK), for `keys` keys in the lanes from
     * `first` on.
     * q: the heads' queries by widen_tile(). The same bits as score(). */
    void (*key_panels)(const struct cpu_block *b, enum cpu_store type, int head_dim, float *panels);
    void (*score_wide)(const float *q, int head_dim, const float *panels, int first, int keys,
                       int n, float *p);
    void (*combine)(const struct cpu_softmax *a, const struct cpu_softmax *b, int n, int packed);
    void (*unpack)(const float *packed, int n, float scale, float *dst);
    void (*mix)(float wa, float *a, float wb, const float *b, int n);
    float (*exp)(float x); /* x <= 0 */
    /* sampling: the largest element that is not masked; *invalid: any element is NaN or +inf */
    float (*max)(const float *x, const uint8_t *mask, int n, bool *invalid);
    double (*sum_exp)(const float *x, const uint8_t *mask, int n, float max, float temperature,
                      float *w); /* w, if any, receives each term */
    int (*find)(const float *x, int from, int n, float least); /* first i >= from with x >= least */
};

extern const struct cpu_isa cpu_isa_scalar;
#if defined(__x86_64__)
extern const struct cpu_isa cpu_isa_avx2, cpu_isa_avx512;
#endif

/* ---- the operations (see kernels.h) --------------------------------------------------------- */

#define CPU_OPERATION(op) void cpu_##op(struct kdev *d, const struct k_##op *a);
K_OPERATIONS(CPU_OPERATION)
#undef CPU_OPERATION
bool cpu_upload(struct kdev *d, struct tensor *t, struct err *e);
void cpu_unload(struct kdev *d, struct tensor *t);
bool cpu_synthesize(struct kdev *d, struct tensor *t, uint64_t seed, float scale, struct err *e);
void cpu_stream(struct kdev *d, kbuf src, kbuf dst);
bool cpu_phase(struct kdev *d, enum k_phase kind, int n);
int cpu_peer(struct kdev *d, const struct k_peer *a, struct err *e);

/* Normalises and packs rows of n floats, `stride` floats apart; returns (rows, packed n) in the
 * scratch buffer of the given use. */
float *cpu_pack_rows(struct kdev *d, enum cpu_scratch_use use, const float *src, size_t stride,
                     int rows, int n, const struct k_norm *norm, const struct tensor *factor,
                     float scale);
/* dst (rows, n) = packed rows times w (n, k), plus b (n) if not NULL. */
void cpu_product(struct kdev *d, const float *packed, int rows, const struct tensor *w,
                 const struct tensor *b, float *dst);
