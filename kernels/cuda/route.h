/* route.h - which kernel an operation takes on a GPU: pure functions of shapes and of the GPU.
 * Plain C, without CUDA headers: tests/unit/test_route.c tabulates them without a GPU.
 *
 * The lists of forms (..._FORMS) are what the files of kernels compile, one kernel a line, or one
 * for bf16 and one for FP8. The test fails if a form of a list is never taken, or if a route takes
 * a form that is in no list.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MAX_DECODE_ROWS = 16, MAX_VERIFY_ROWS = 64,
    VAST = 200 << 10,  /* shared memory of a block on 9.0 and 10.0 */
    LARGE = 160 << 10, /* shared memory of a block on 8.0, 9.0 and 10.0; other GPUs have 99 KiB */
    ARENA_BYTES = 256 << 20, /* scratch of an operation */
    K_CHUNK = 32,            /* elements of k that are multiplied at once (base/panel.cuh) */
    MAX_MATS = 3,            /* matrices of a product */
    SHORT_ROW = 6144,        /* elements of a row that a block can hold in registers, */
    PROLOGUE_ROW = 3072,     /* and that the prologue of a decode product holds */
    /* The largest pending residual update (struct pending): elements of a row, partial sums of an
     * element. */
    MAX_PENDING_WIDTH = 6144, PENDING_SPLITS = 8,
    MAX_FRESH_ROWS = 8, MAX_FRESH_WIDTH = 4096, /* struct fresh_cells: rows, n_kv * head_dim */
};

/* What a route depends on of a device. */
struct gpu {
    int n_sm;
    size_t smem_max; /* the most shared memory of a block, in bytes */
    int terms;       /* terms of an activation: 2, or 1 at K_BF16 */
    bool has_wgmma;  /* the code that runs was compiled for 9.0a: it has wgmma and TMA */
};

/* ---- products ------------------------------------------------------------------------------- */

enum product_kernel {
    PRODUCT_DECODE,  /* dense/decode_run.cuh */
    PRODUCT_VERIFY,  /* dense/verify.cu */
    PRODUCT_PREFILL, /* dense/prefill.cu */
    PRODUCT_TILE,    /* dense/tile.cu */
    PRODUCT_FLOATS,  /* dense/product.cuh */
};

/* Whether a matrix of a packed type (enum dtype) stays packed on the device; otherwise it becomes
 * bf16 during its upload. */
bool packs_on(const struct gpu *g, int type);
/* The packed types whose matrices have a layout of their own (dense/packed.cuh). */
#define PACKED_LAYOUTS(X)                                                                  \
    X(DT_E4M3) X(DT_Q8_0) X(DT_E2M1) X(DT_Q4_0) X(DT_Q4_K) X(DT_Q2_K) X(DT_IQ4_XS)         \
    X(DT_Q3_K) X(DT_Q5_0) X(DT_Q5_1) X(DT_Q5_K) X(DT_Q6_K)
/* The one in whose layout such a matrix is stored: its type, or one that has the same values.
 * DT_NONE: it does not stay packed. */
int packed_as(int type);

/* The forms of packed experts on the device: the packed types in whose layout
 * (moe/expert_blocks.cuh) experts stay packed on every GPU. LAST: as X, or a default. */
#define EXPERT_FORMS(X, LAST)                                                              \
    X(DT_E4M3) X(DT_Q8_0) X(DT_E2M1) X(DT_Q4_0) X(DT_Q4_K) X(DT_Q2_K) X(DT_IQ4_XS)         \
    X(DT_Q5_K) LAST(DT_Q6_K)
/* The form of experts of a packed type: the type itself, or one whose blocks can hold the same
 * values. DT_NONE: the type is not packed. */
int experts_as(int type);

/* The kernel for a product of `rows` rows; bf16: of the weights, packed ones included, else f16 or
 * float32. */
enum product_kernel product_kernel_of(const struct gpu *g, bool bf16, int rows);
/* Whether the projections q, k and v of so many rows may leave partial sums to the kernel of heads,
 * for which they are given room. */
bool product_leaves_splits(const struct gpu *g, int rows);

/* What the decode kernel multiplies before it reduces the k splits: see dense/decode.cuh. */
enum unit_kind { UNIT_PLAIN, UNIT_GATED, UNIT_JOINED, UNIT_DOUBLE };
/* Where its rows of activations are. Resident in shared memory, up to eight columns: packed by the
 * block itself (FUSED_ROW, one column) or copied. Or in the stages, with the weights: up to eight
 * columns (narrow), or more. */
enum rows_kind { FUSED_ROW, RESIDENT_ROWS, STAGED_NARROW, STAGED_WIDE };

/* decode_kernel, for bf16, FP8 and each packed type (UNIT_DOUBLE: those of four bits alone): 16
 * columns by so many, tiles of eight outputs, unit, rows */
#define DECODE_FORMS(X)                                                                    \
    X(1, 6, UNIT_GATED, FUSED_ROW) X(1, 6, UNIT_GATED, RESIDENT_ROWS)                      \
    X(1, 4, UNIT_JOINED, FUSED_ROW) X(1, 4, UNIT_JOINED, RESIDENT_ROWS)                    \
    X(1, 2, UNIT_PLAIN, FUSED_ROW) X(1, 2, UNIT_PLAIN, RESIDENT_ROWS)                      \
    X(1, 3, UNIT_PLAIN, FUSED_ROW) X(1, 3, UNIT_PLAIN, RESIDENT_ROWS)                      \
    X(1, 6, UNIT_GATED, STAGED_NARROW) X(1, 6, UNIT_GATED, STAGED_WIDE)                    \
    X(2, 6, UNIT_GATED, STAGED_WIDE)                                                       \
    X(1, 3, UNIT_PLAIN, STAGED_NARROW) X(1, 3, UNIT_PLAIN, STAGED_WIDE)                    \
    X(2, 3, UNIT_PLAIN, STAGED_WIDE)                                                       \
    X(1, 4, UNIT_JOINED, STAGED_NARROW) X(1, 4, UNIT_JOINED, STAGED_WIDE)                  \
    X(1, 6, UNIT_JOINED, STAGED_NARROW) X(1, 6, UNIT_JOINED, STAGED_WIDE)                  \
    X(1, 6, UNIT_DOUBLE, FUSED_ROW) X(1, 6, UNIT_DOUBLE, RESIDENT_ROWS)                    \
    X(1, 6, UNIT_DOUBLE, STAGED_NARROW) X(1, 6, UNIT_DOUBLE, STAGED_WIDE)

struct decode_form {
    int columns, tiles; /* as in the list */
    enum unit_kind kind;
    enum rows_kind rows;
};
enum { JOINED_MAX = 48 /* outputs of a joined unit */ };

/* Whether so many columns (terms of rows) of kp elements can be resident in shared memory. */
bool decode_rows_fit(const struct gpu *g, int cols, int kp);
/* The most columns of a block whose rows are not resident. */
int decode_group(const struct gpu *g);

/* The heads of q, k and v of a product, in three matrices; those of one at least. */
struct heads_shape {
    int n_kv, head_dim, rot;
    bool norm_whole, v_from_k;
    bool fp8;      /* of the cells that keys and values are stored in */
    bool aligned;  /* cosines and sines can be loaded in pairs */
    bool splits;   /* the kernel of heads can reduce partial sums (cuda_heads_reduce()) */
    bool normed[MAX_MATS];
};

/* What is left to do when a product has its sums. */
enum row_work { WORK_NONE, WORK_NORM /* and maybe an addition */, WORK_HEADS };

struct product_shape {
    int rows, whole;   /* rows of the product; of the operation, of which these may be a group */
    int in, kp;        /* elements of a row; of a packed row */
    int n_mats, outs;  /* matrices; outputs of the first */
    bool bf16;         /* of the weights, else f16 or float32 */
    bool blocks;       /* weights packed in blocks, which are bf16 to all other questions, */
    bool doubles;      /* in whose layout units of two panels are faster (UNIT_DOUBLE) */
    int type;          /* blocks: enum dtype as they are stored */
    bool glu;
    bool packed;       /* the rows come packed */
    bool has_norm;     /* the rows are normalised before they are packed */
    bool aligned;      /* the first row and its norm can be loaded four elements at a time */
    bool all_aligned;  /* the other rows, and captured rows, too */
    bool adjacent;     /* there is nothing between rows */
    bool captures;
    enum row_work work;
    bool may_wait;     /* WORK_NORM: the sums are where a pending update may be, and the result has
                          nothing between rows and can be stored four elements at a time */
    struct heads_shape heads;
    struct panel_shape {
        int rows, n; /* rows of a panel; panels */
    } panels[MAX_MATS];
};

/* How the rows get their packed layout. */
enum row_pack {
    PACK_READY,    /* they come packed */
    PACK_PROLOGUE, /* every block of the decode kernel packs the row */
    PACK_SHORT,    /* pack_short_kernel, which can also capture rows and apply a pending update */
    PACK_PLAIN,    /* pack_plain_kernel: rows without a norm */
    PACK_ANY,      /* pack_kernel */
};
/* Who does the work that is left. */
enum row_finish {
    FINISH_HERE,    /* the product's kernel, or there is none */
    FINISH_NEXT,    /* a kernel after the product */
    FINISH_SPLITS,  /* the kernel of heads, which reduces the partial sums as well */
    FINISH_PENDING, /* it becomes a pending update */
};
struct product_route {
    enum product_kernel kernel;
    struct decode_form form; /* PRODUCT_DECODE */
    bool unpacks;            /* packed weights become bf16 in scratch first */
    enum row_pack pack;
    bool applies_update; /* the kernel that packs applies the pending update, else one before */
    bool copies_capture; /* a kernel captures the rows before they are packed */
    bool fresh;          /* heads become fresh cells (struct fresh_cells) */
    enum row_finish finish;
};
struct product_route product_route_of(const struct gpu *g, const struct product_shape *s);

/* ---- attention ------------------------------------------------------------------------------ */

/* tile_kernel, for bf16 cells and, but for heads of 512, FP8 cells: the arguments of tile_config
 * (attention/config.cuh); whether a block walks all keys of its rows, or some of their splits. */
#define ATTN_TILE_FORMS(X)                                                                 \
    X(512, 1, 4, 2, 2, 1, true, true)                                      /* 64 rows */   \
    X(256, 1, 8, 1, 4, 1, true, true) X(256, 1, 8, 1, 4, 1, true, false)   /* 128 rows */  \
    X(256, 1, 4, 2, 4, 1, true, true) X(256, 1, 4, 1, 2, 2, true, false)   /* 64 rows */   \
    X(256, 1, 4, 2, 3, 1, false, true) X(256, 1, 4, 2, 3, 1, false, false) /* no wgmma */  \
    X(256, 1, 4, 2, 2, 1, false, true) X(256, 1, 4, 2, 2, 1, false, false) /* not LARGE */ \
    X(128, 1, 8, 1, 4, 1, true, true) X(128, 1, 8, 1, 4, 1, true, false)   /* 128 rows */  \
    X(128, 1, 8, 1, 2, 1, false, true) X(128, 1, 8, 1, 2, 1, false, false) /* no wgmma */  \
    X(128, 1, 4, 1, 2, 2, false, true) X(128, 1, 4, 1, 2, 2, false, false) /* 64 rows */   \
    X(128, 1, 4, 1, 2, 1, false, true) X(128, 1, 4, 1, 2, 1, false, false) /* not LARGE */ \
    X(64, 1, 8, 1, 3, 2, true, true) X(64, 1, 8, 1, 3, 2, true, false)     /* 128 rows */  \
    X(64, 2, 4, 1, 3, 2, false, true) X(64, 2, 4, 1, 3, 2, false, false)   /* no wgmma */  \
    X(64, 1, 4, 1, 4, 2, false, true) X(64, 1, 4, 1, 4, 2, false, false)   /* 64 rows */   \
    X(256, 1, 1, 2, 2, 2, false, true) X(128, 1, 1, 2, 2, 3, false, true)  /* one row */   \
    X(64, 1, 1, 2, 3, 4, false, true)
struct tile_form {
    int head_dim, mi, wm, warps, stages, blocks; /* blocks: on a multiprocessor */
    bool wgmma;
};

/* round_kernel, each for blocks that share splits and for blocks that walk all keys, and for bf16
 * and FP8 cells: the arguments of round_config (attention/round.cuh). */
#define ATTN_ROUND_FORMS(X)                                                      \
    X(64, 1, 4, 2)                                                               \
    X(128, 1, 4, 1) X(128, 1, 2, 2) X(128, 2, 4, 1) X(128, 2, 2, 1)              \
    X(256, 1, 4, 1) X(256, 1, 2, 2) X(256, 2, 4, 1) X(256, 2, 2, 1)              \
    X(512, 2, 2, 1) X(512, 1, 1, 1)                                 /* not VAST */
struct round_form {
    int head_dim, mi, g, blocks;
};

enum {
    MAX_GROUP = 16,    /* query heads that share a kv head, at most, if there are tiles */
    UNSPLIT_TILES = 4, /* tiles: a prefix part of so few is never split */
    SHORT_KEYS = 4096, /* keys: up to here fewer splits, so that combining is short */
    WIDE_ROWS = 128,   /* packed rows of the largest tile */
};

enum attn_kernel {
    ATTN_SPLITS, /* attention/attention.cu */
    ATTN_ROUNDS, /* attention/decode.cu */
    ATTN_TILES,  /* attention/tile.cu */
};
struct attn_shape {
    int rows, n_req, n_head, n_kv, head_dim, page_size, n_cols, n_slots, window;
    int expand_w;      /* columns of expanded keys; 0: no row has any */
    bool float_cells, fp8_cells;
    bool scales;       /* scores are multiplied by a number above zero */
};
/* How rows are divided into tiles, and keys into splits; see attention/config.cuh. */
struct attn_route {
    enum attn_kernel kernel;
    struct tile_form tile;
    struct round_form round;
    int least_shift, cap_shift, long_shift; /* log2 of tiles, of splits (struct tile_args) */
    int tiles, tile_rows; /* tiles of rows; rows of a tile */
    int split_blocks;     /* blocks that share a tile's splits; 0: one block walks all keys */
    int most_splits;
    bool merge_splits;
    size_t parts, totals; /* scratch, in floats: values of segments, combined sums of blocks */
};
struct attn_route attn_route_of(const struct gpu *g, const struct attn_shape *s);

/* ---- mixtures of experts -------------------------------------------------------------------- */

enum {
    DIRECT_PAIRS = 256, DIRECT_EXPERTS = 128, FLAG_PAIRS = 32, FLAG_ROWS = 4, /* moe/experts.cuh */
    PLAIN_ROWS = 4, /* most rows of bf16 experts that MOE_PLAIN multiplies faster than
                       MOE_PREFILL, */
    COLUMN_ROWS = 16, /* and that MOE_COLUMNS_4 does */
    ROUTER_THREADS = 384, ROUTER_PER = 8, /* threads that hold a row, elements of each */
    /* Shared memory of a block of the expert kernels: a stage of a ring, two rings a block; static
     * variables and what the system reserves. */
    EXPERT_STAGE = 2 * 8 * (16 * 64 + 16 * 4), EXPERT_RINGS = 2, EXPERT_OWN = 6784,
    EXPERT_STAGES = 4, MXFP4_STAGES = 3, EXPERT_GOOD_STAGES = 2, /* of rings of weights: most of */
    EXPERT_ROW_STAGES = 4, /* bf16 and of MXFP4, enough; of rows: most */
};

/* The kernel for gate, up and down. */
enum moe_kernel {
    MOE_PLAIN,     /* moe.cu: experts that are not MXFP4, unless others take them */
    MOE_ROW,       /* experts_few.cu: a single row, which every block packs */
    MOE_FEW,       /* experts_few.cu: few pairs, whose results are their own flags */
    MOE_COLUMNS_4, /* experts.cu: jobs of up to four rows of one term, or of bf16 experts, */
    MOE_COLUMNS_8, /* up to eight columns, */
    MOE_COLUMNS_16,
    MOE_PREFILL,   /* experts_prefill.cu */
    MOE_TILES,     /* experts_tile.cu */
};
struct moe_shape {
    int rows, in, ffn, n_expert, top_k;
    bool mxfp4;
    bool pre_bf16; /* the weights of the norm before, if there are any */
    bool as_bf16;  /* bf16 or packed experts, as experts_prefill.cu and experts.cu multiply them */
};
struct moe_route {
    enum moe_kernel kernel;
    bool block_select; /* every block selects the experts and groups the pairs */
    bool adds_experts; /* the kernel also sums each row's experts */
    int job_pairs;     /* most pairs of a job */
    int stages, row_stages; /* of a block's rings of weights and of rows */
    size_t shared;     /* dynamic shared memory of a block; 0: it has too little */
};
struct moe_route moe_route_of(const struct gpu *g, const struct moe_shape *s);
/* Elements of a packed row of n. */
int moe_packed(const struct moe_shape *s, int n);
/* The rows of a block of the router for prefill rows; 0: not even two fit. */
int moe_router_rows(const struct gpu *g, const struct moe_shape *s);
/* Dynamic shared memory of that block, and of one that packs a row. */
size_t moe_router_bytes(const struct moe_shape *s, int rows);
size_t moe_pack_bytes(const struct moe_shape *s);

#ifdef __cplusplus
}
#endif
