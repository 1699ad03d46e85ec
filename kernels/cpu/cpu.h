/* cpu.h - what the CPU backend's files share: the device, its threads, and the inner loops' table.
 *
 * cpu.c            the device, its memory, the table, and the operations that only copy
 * threads.c    the pool of threads
 * vec.h        sixteen floats at a time, in plain C, AVX2 and AVX-512
 * math.h       the inner loops, written once over vec.h
 * scalar.c, avx2.c, avx512.c    compile math.h, each for one instruction set
 * bench.c      what measuring needs
 * linear.c, attention.c, moe.c, sample.c    cut operations into work for the threads
 * tree.c       a draft tree, on the calling thread
 *
 * Always true: what a row receives depends on that row alone. How work is cut, which thread takes
 * which piece and which instruction set runs it change only the time.
 */
#ifndef AERIE_CPU_H
#define AERIE_CPU_H

#include "kernels/kernels.h"

#include <string.h>

/* ---- threads (threads.c) ---------------------------------------------------------------- */

struct cpu_pool;
typedef void cpu_item(void *arg, int item, int thread);

/* threads counts the caller; NULL for one thread, or when the system gives no more. */
struct cpu_pool *cpu_pool_open(int threads);
void cpu_pool_close(struct cpu_pool *p); /* NULL is fine */
int cpu_pool_threads(const struct cpu_pool *p);
/* Calls fn(arg, item, thread) once for each item in [0, n), on the caller and on whichever workers
 * are awake, and returns when all are done. thread < cpu_pool_threads() is that thread's own. */
void cpu_pool_run(struct cpu_pool *p, int n, cpu_item *fn, void *arg);

/* ---- the device ----------------------------------------------------------------------------- */

/* Scratch memory, one run of bytes for each use. It grows on the calling thread when an operation
 * first needs more and is kept, so that a steady state never allocates. */
enum cpu_room {
    ROOM_PACK, ROOM_PACK_2, ROOM_PTR, ROOM_PTR_2, ROOM_OUT, ROOM_K, ROOM_V, ROOM_PART, ROOM_THREAD,
    ROOM_LOGITS, ROOM_ROUTE, ROOM_UP, ROOM_HIDDEN, ROOM_DOWN, ROOM_MOVE,
    ROOM_INBOX, ROOM_OUTBOX, N_ROOM
};

struct kdev {
    struct cpu_pool *pool;
    int threads;
    const struct cpu_isa *isa;
    char about[64];
    void **made; /* (n_made) weights of synthesize(), freed with the device */
    int n_made;
    struct { void *p; size_t n; } room[N_ROOM];
};

/* At least n elements of `size` bytes, 64-byte aligned, contents undefined. */
void *cpu_room(struct kdev *d, enum cpu_room which, size_t n, size_t size);
static inline float *cpu_floats(struct kdev *d, enum cpu_room which, size_t n)
{
    return cpu_room(d, which, n, sizeof(float));
}
/* Runs items on the pool, or here when all of them together (work: multiply-adds of one item) are
 * not worth waking anybody. */
void cpu_each(struct kdev *d, int n, double work, cpu_item *fn, void *arg);

/* Views of device memory, with the size checked. */
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
    size_t cell = (size_t)c->n_kv * (size_t)c->head_dim * kv_type_size(c->type);
    size_t need = (size_t)c->n_slots * cell;
    CHECK(c->k.p && c->v.p && c->k.n >= need && c->v.n >= need);
}
static inline int cpu_stride(int stride, int dense) { return stride > 0 ? stride : dense; }

/* ---- matrices ------------------------------------------------------------------------------- */

enum cpu_store { STORED_BF16, STORED_F16, STORED_F32, STORED_MXFP4, N_STORED };

/* Rows of k weights; row o begins at data + o * pitch (MXFP4: and scale + o * scale_pitch). */
struct cpu_mat {
    const uint8_t *data, *scale;
    enum cpu_store type;
    int n, k; /* outputs, inputs */
    size_t pitch, scale_pitch;
};

enum cpu_store cpu_store_of(const struct tensor *t);
struct cpu_mat cpu_mat_of(const struct tensor *t); /* of a (n, k) tensor */

/* An input row is multiplied in "packed" order: each run of 32 elements as its 16 even elements,
 * then its 16 odd ones, the last run filled up with zeros. bf16 widens to exactly that order with
 * a shift and a mask, and MXFP4's nibbles lie in it. */
static inline int cpu_packed(int n) { return (n + 31) & ~31; }

/* A tile of results: rows x at most this many outputs. */
enum { TILE_OUT = 32, TILE_ROWS = 24 };

/* ---- the inner loops, one table for each instruction set ------------------------------------ */

/* What happens to a tile of products on its way to memory; pointers begin at the tile's own first
 * output, strides are in floats. */
struct cpu_finish {
    const struct tensor *b; /* or NULL */
    size_t b_at;            /* first element of b */
    enum act_kind act;
    float softcap, scale;
    const float *mul; /* or NULL */
    size_t mul_stride;
    bool add;
    float *dst;
    size_t dst_stride;
};

/* One row's attention in the making, for the n heads of a kv head. acc is in packed order. */
struct cpu_soft {
    float *m, *l; /* (n) running maximum and sum of exp(score - m) */
    float *acc;   /* (n, packed head_dim) sum of exp(score - m) v */
};

enum {
    ATTN_BLOCK = 64,  /* keys between two updates of the running maximum */
    ATTN_SPLIT = 512, /* keys between two joins; may be done by different threads */
};

struct cpu_block { /* keys of one block: lanes [first, first + n) of it are visible */
    int first, n;
    const uint8_t *k[ATTN_BLOCK], *v[ATTN_BLOCK];
};

struct cpu_heads { /* what does not change from block to block */
    int n, head_dim;
    enum cpu_store type;
    float scale, softcap;
    const float *q; /* (n, packed head_dim) */
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
    /* dst[i] = t[at + i] * scale */
    void (*widen)(const struct tensor *t, size_t at, int n, float scale, float *dst);
    void (*scale)(float *x, int n, float s);
    /* dst[i] (+)= w * src[i] */
    void (*axpy)(float w, const float *src, int n, bool first, float *dst);
    /* tile[r * TILE_OUT + o] = row out + o of w, times x[r]; rows <= TILE_ROWS, n <= TILE_OUT */
    void (*multiply)(const struct cpu_mat *w, const float *const *x, int rows, int out, int n,
                     float *tile);
    void (*finish)(const struct cpu_finish *f, const float *tile, int rows, int n);
    /* dst[i] = act(g[i]) * u[i]; limit as in k_moe */
    void (*gate)(const float *g, const float *u, int n, enum act_kind act, float limit, float *dst);
    /* Turns one head: cs is (rot / 2, 2). */
    void (*turn)(float *head, int rot, const float *cs);
    void (*to_bf16)(const float *src, int n, uint16_t *dst);
    /* attention */
    void (*attend)(const struct cpu_heads *h, const struct cpu_block *b, struct cpu_soft *s);
    void (*join)(const struct cpu_soft *a, const struct cpu_soft *b, int n, int packed); /* to a */
    void (*unpack)(const float *packed, int n, float scale, float *dst);
    void (*mix)(float wa, float *a, float wb, const float *b, int n); /* a = wa a + wb b */
    float (*exp)(float x); /* x <= 0 */
    /* sampling */
    float (*peak)(const float *x, const uint8_t *mask, int n, bool *sick); /* sick: NaN or +inf */
    double (*sum_exp)(const float *x, const uint8_t *mask, int n, float max, float temperature,
                      float *w); /* w, if any, receives each term */
    int (*find)(const float *x, int from, int n, float least); /* first i >= from with x >= least */
};

extern const struct cpu_isa cpu_isa_scalar;
#if defined(__x86_64__)
extern const struct cpu_isa cpu_isa_avx2, cpu_isa_avx512;
#endif

/* ---- the operations (see kernels.h) --------------------------------------------------------- */

void cpu_rows(struct kdev *d, const struct k_rows *a);
void cpu_linear(struct kdev *d, const struct k_linear *a);
void cpu_glu(struct kdev *d, const struct k_glu *a);
void cpu_qkv(struct kdev *d, const struct k_qkv *a);
void cpu_attn(struct kdev *d, const struct k_attn *a);
void cpu_merge(struct kdev *d, const struct k_merge *a);
void cpu_moe(struct kdev *d, const struct k_moe *a);
void cpu_topk(struct kdev *d, const struct k_topk *a);
void cpu_sample(struct kdev *d, const struct k_sample *a);
void cpu_logp(struct kdev *d, const struct k_logp *a);
void cpu_read(struct kdev *d, const struct k_read *a);
void cpu_grow(struct kdev *d, const struct k_grow *a);
void cpu_select(struct kdev *d, const struct k_select *a);
void cpu_accept(struct kdev *d, const struct k_accept *a);
bool cpu_upload(struct kdev *d, struct tensor *t, struct err *e);
bool cpu_synthesize(struct kdev *d, struct tensor *t, uint64_t seed, float scale, struct err *e);
void cpu_stream(struct kdev *d, kbuf src, kbuf dst);
bool cpu_phase(struct kdev *d, enum k_phase kind, int n);
int cpu_peer(struct kdev *d, const struct k_peer *a, struct err *e);

/* Normalises and packs rows of n floats; returns (rows, packed n) in the given room. */
float *cpu_pack_rows(struct kdev *d, enum cpu_room room, const float *src, size_t stride, int rows,
                     int n, const struct k_norm *norm, const struct tensor *factor, float scale);
/* dst (rows, n) = w times packed rows, plus b (or NULL). */
void cpu_product(struct kdev *d, const float *packed, int rows, const struct tensor *w,
                 const struct tensor *b, float *dst);

#endif
