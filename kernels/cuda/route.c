/* route.c - which kernel an operation takes on a GPU. */
#include "kernels/cuda/route.h"

#include "kernels/base.h"

#include <limits.h>

/* ---- products ------------------------------------------------------------------------------- */

/* With two terms, packed rows leave too little scratch to unpack weights to. */
bool packs_on(const struct gpu *g, int type)
{
    return g->terms == 1 && packed_as(type) != DT_NONE;
}

int packed_as(int type)
{
    switch (type) {
#define ITSELF(layout) case layout:
        PACKED_LAYOUTS(ITSELF)
#undef ITSELF
        return type;
    case DT_Q4_1: return DT_Q5_1;
    case DT_IQ4_NL: return DT_IQ4_XS;
    case DT_MXFP4:
    case DT_NVFP4: return DT_E2M1;
    default: return DT_NONE;
    }
}

int experts_as(int type)
{
    switch (type) {
#define ITSELF(form) case form:
        EXPERT_FORMS(ITSELF, ITSELF)
#undef ITSELF
        return type;
    case DT_Q4_1: return DT_Q4_K;
    case DT_Q5_0:
    case DT_Q5_1: return DT_Q5_K;
    case DT_Q3_K: return DT_Q6_K;
    case DT_IQ4_NL: return DT_IQ4_XS;
    case DT_MXFP4:
    case DT_NVFP4: return DT_E2M1;
    default: return DT_NONE;
    }
}

/* The decode kernel has room for 8 columns unless shared memory is LARGE. */
enum product_kernel product_kernel_of(const struct gpu *g, bool bf16, int rows)
{
    if (!bf16)
        return PRODUCT_FLOATS;
    if (rows <= MAX_DECODE_ROWS && (g->smem_max >= LARGE || rows * g->terms <= 8))
        return PRODUCT_DECODE;
    if (g->has_wgmma && rows > MAX_VERIFY_ROWS)
        return PRODUCT_PREFILL;
    return g->has_wgmma && g->terms == 1 && rows > MAX_DECODE_ROWS ? PRODUCT_VERIFY : PRODUCT_TILE;
}

bool product_leaves_splits(const struct gpu *g, int rows)
{
    return g->terms == 1 && rows <= MAX_VERIFY_ROWS &&
           product_kernel_of(g, true, rows) != PRODUCT_DECODE;
}

bool decode_rows_fit(const struct gpu *g, int cols, int kp)
{
    /* Bytes of resident rows, if shared memory is LARGE; with less, two stages of the widest units
     * need room beside the sums (two buffers of 8 k splits), too. */
    enum { RESIDENT_BYTES = 56 << 10, SUMS = 2 * 8 * (JOINED_MAX + 8) * 4 };
    const int bytes = g->smem_max >= LARGE ? (int)RESIDENT_BYTES
                                           : min_int(RESIDENT_BYTES / 2, (48 << 10) - cols * SUMS);
    return cols <= 8 && cols * kp * 2 <= bytes;
}

int decode_group(const struct gpu *g) { return g->smem_max >= LARGE ? 32 : 16; }

/* Whether the blocks of a decode product can finish the heads. Heads and panels must be powers of
 * two, a head must consist of pairs of panels, and with a norm one warp must be able to read all of
 * a head's sums of squares. FP8 cells need the largest number of a head, which no block has: such
 * heads become fresh cells, if there is room for them. */
static bool finishes_heads(const struct gpu *g, const struct product_shape *s)
{
    enum { MOST_LISTS = 1 << 16 /* MOE_COUNTERS_AT */ };
    const struct heads_shape *h = &s->heads;
    const int n = h->head_dim;
    size_t lists = 0;
    if (h->norm_whole || h->v_from_k || (h->rot && h->rot != n) || n & (n - 1) || !h->aligned ||
        !decode_rows_fit(g, s->rows * g->terms, s->kp))
        return false;
    if (h->fp8 && (s->rows > MAX_FRESH_ROWS || h->n_kv * n > MAX_FRESH_WIDTH ||
                   (n != 64 && n != 128 && n != 256)))
        return false;
    for (int i = 0; i < s->n_mats; i++) {
        const struct panel_shape *p = &s->panels[i];
        const int of_head = n / p->rows;
        if (p->rows > 16 || p->rows & (p->rows - 1) || n % (2 * p->rows) ||
            (h->normed[i] && of_head > 32))
            return false;
        lists += (size_t)(p->n / 2 * s->rows) * (size_t)of_head;
    }
    return lists <= MOST_LISTS;
}

/* Outputs of a unit of q, k and v: one or two panels of q, one of k, one of v; 0: they form none.
 * */
static int joined_outputs(const struct product_shape *s)
{
    const struct panel_shape *p = s->panels;
    if (s->work != WORK_HEADS || s->n_mats != 3 || p[2].n != p[1].n ||
        (p[0].n != p[1].n && p[0].n != 2 * p[1].n))
        return 0;
    return p[0].n / p[1].n * p[0].rows + p[1].rows + p[2].rows;
}

/* single: the form for one row. Where blocks have two panels of three tiles each, of weights of
 * four or five bits, they multiply both together: an odd tile wastes half a product of tensor
 * cores. */
static struct decode_form decode_form_of(const struct gpu *g, const struct product_shape *s,
                                         bool single, bool heads)
{
    const int cols = s->rows * g->terms, here = min_int(cols, decode_group(g));
    const int joined = joined_outputs(s);
    const enum rows_kind staged = here <= 8 ? STAGED_NARROW : STAGED_WIDE;
    int rows = 0;
    for (int i = 0; i < s->n_mats; i++)
        rows = max_int(rows, s->panels[i].rows);
    const bool two = s->doubles && s->n_mats == 1 && rows > 16 && s->panels[0].n > g->n_sm;
    if (single || decode_rows_fit(g, cols, s->kp)) {
        const enum rows_kind resident = single ? FUSED_ROW : RESIDENT_ROWS;
        if (s->glu)
            return (struct decode_form){1, 6, UNIT_GATED, resident};
        return heads ? (struct decode_form){1, 4, UNIT_JOINED, resident}
               : two ? (struct decode_form){1, 6, UNIT_DOUBLE, resident}
                     : (struct decode_form){1, rows <= 16 ? 2 : 3, UNIT_PLAIN, resident};
    }
    if (!s->glu && joined && joined <= JOINED_MAX && cols <= 16)
        return (struct decode_form){1, joined <= 32 ? 4 : 6, UNIT_JOINED, staged};
    if (two)
        return (struct decode_form){1, 6, UNIT_DOUBLE, staged};
    return (struct decode_form){here <= 16 ? 1 : 2, s->glu ? 6 : 3,
                                s->glu ? UNIT_GATED : UNIT_PLAIN, staged};
}

static enum row_pack pack_of(const struct gpu *g, const struct product_shape *s, bool single)
{
    if (s->packed)
        return PACK_READY;
    if (single)
        return PACK_PROLOGUE;
    if (s->bf16 && g->terms == 1 && s->in % K_CHUNK == 0 && s->in <= SHORT_ROW && s->aligned &&
        s->all_aligned)
        return PACK_SHORT;
    return s->has_norm ? PACK_ANY : PACK_PLAIN;
}

/* From how many rows on the prefill kernel is faster with weights that become bf16 in scratch
 * before it, once a product, than with weights that its consumers unpack, once for each tile of
 * columns (gemma-3-27b: results-h200.md, "Two numbers for a scale" and "Tables for Q2_K"). */
static int scratch_rows_of(int type)
{
    switch (type) {
    case DT_IQ4_XS:
    case DT_E2M1: return 1024; /* from times of 512 rows */
    case DT_Q5_1: /* the same */
    case DT_Q6_K: return 832;
    case DT_Q4_K:
    case DT_Q5_K: return 576;
    default: return 1536; /* Q4_0, E4M3, Q2_K, Q3_K, Q5_0, Q8_0: of 512 and 2,048 rows */
    }
}

/* The most rows of a product that the verify kernel multiplies faster than the prefill kernel. */
enum { SHORT_ROWS = 128 };

struct product_route product_route_of(const struct gpu *g, const struct product_shape *s)
{
    struct product_route r = {.kernel = product_kernel_of(g, s->bf16, s->whole)};
    if (r.kernel == PRODUCT_PREFILL && g->terms == 1 && s->rows <= SHORT_ROWS)
        r.kernel = PRODUCT_VERIFY; /* its rows are packed alike */
    const bool decode = r.kernel == PRODUCT_DECODE, all = s->rows == s->whole;
    const bool single = decode && s->rows == 1 && g->terms == 1 && decode_rows_fit(g, 1, s->kp) &&
                        s->in % K_CHUNK == 0 &&
                        (s->packed || (s->aligned && (s->in <= PROLOGUE_ROW || !s->has_norm)));
    const bool heads = decode && s->work == WORK_HEADS && finishes_heads(g, s);
    if (decode)
        r.form = decode_form_of(g, s, single, heads);
    r.unpacks = s->blocks && (r.kernel == PRODUCT_TILE ||
                              (r.kernel == PRODUCT_PREFILL && s->rows >= scratch_rows_of(s->type)));
    r.pack = pack_of(g, s, single);
    r.copies_capture = s->captures && r.pack != PACK_SHORT;
    r.applies_update = !r.copies_capture && ((single && s->in <= PROLOGUE_ROW) ||
                                             (all && s->adjacent && r.pack == PACK_SHORT));
    r.fresh = heads && s->heads.fp8;
    if (s->work == WORK_NONE || heads)
        r.finish = FINISH_HERE;
    else if (s->work == WORK_HEADS)
        r.finish = all && product_leaves_splits(g, s->rows) && s->heads.splits ? FINISH_SPLITS
                                                                              : FINISH_NEXT;
    else
        r.finish = all && s->may_wait && s->outs % K_CHUNK == 0 && s->outs <= MAX_PENDING_WIDTH
                       ? FINISH_PENDING
                       : FINISH_NEXT;
    return r;
}

/* ---- attention ------------------------------------------------------------------------------ */

enum {
    MAX_ROUND_ROWS = 64,    /* most packed rows of a request for ATTN_ROUNDS */
    ONE_BLOCK_WINDOW = 256, /* keys of a window: up to here one block is fastest */
    SHORT_WINDOW = 2048,    /* keys of a window: up to here tiles of fewer rows */
};

/* Keys that the table has columns for. */
static size_t table_keys(const struct attn_shape *s)
{
    return (size_t)s->n_cols * (size_t)s->page_size;
}

/* Whether rows may see so many keys that two blocks a multiprocessor are faster than one. */
static bool long_context(const struct attn_shape *s)
{
    return !s->window && table_keys(s) > 2 * SHORT_KEYS;
}

/* Keys of a tile. */
static int tile_keys(const struct attn_shape *s) { return s->head_dim > 128 ? 32 : 64; }

/* Whether tiles serve a shape: all numbers of rows or none, because attention.cu adds in another
 * order. */
static bool has_tiles(const struct gpu *g, const struct attn_shape *s)
{
    return !s->float_cells && g->terms == 1 &&
           (s->head_dim == 64 || s->head_dim == 128 || s->head_dim == 256 || s->head_dim == 512) &&
           (size_t)s->n_slots * (size_t)s->n_kv <= INT_MAX && s->n_head / s->n_kv <= MAX_GROUP &&
           s->scales && !(s->page_size & (s->page_size - 1)) && s->rows > 0;
}

/* The largest power of two of tiles in a split such that the splits are few enough to combine, and
 * with all kv heads enough to fill a device that holds about so many blocks. */
static int cap_shift_of(int n_kv, int blocks)
{
    int shift = 4;
    while (shift < 6 && n_kv << (shift + 1) <= blocks)
        shift++;
    return shift;
}

/* Bounds the splits of a row. One block walks all keys (split_blocks = 0) if the tiles of rows
 * alone fill every multiprocessor, if the window is at most ONE_BLOCK_WINDOW, or if there is no
 * room for the segments. */
static void plan_splits(const struct gpu *g, const struct attn_shape *s, struct attn_route *r)
{
    const int tk = tile_keys(s), blocks = r->tiles * s->n_kv;
    const size_t tiles = (table_keys(s) + (size_t)s->expand_w) / (size_t)tk + 1;
    int cap = (1 << max_int(r->cap_shift, r->long_shift)) + 1;
    if (s->window)
        cap = min_int(cap, s->window / (tk << r->least_shift) + 2);
    r->split_blocks = max_int(1, tiles < (size_t)cap ? (int)tiles : cap);
    r->most_splits = max_int(r->split_blocks, UNSPLIT_TILES) + 1;
    const size_t segments = (size_t)s->rows * (size_t)s->n_head * (size_t)r->most_splits;
    const size_t scratch = segments * (size_t)(s->head_dim + 2) * sizeof(float) + 4096;
    const bool one_block =
        s->window && s->window <= ONE_BLOCK_WINDOW && (!s->expand_w || r->tile_rows == 1);
    const bool fills_device = s->rows > 64 ? 2 * blocks >= g->n_sm : blocks >= 2 * g->n_sm;
    const bool whole = fills_device || scratch > ARENA_BYTES || one_block;
    r->parts = whole ? 0 : segments * (size_t)s->head_dim;
    r->split_blocks = whole ? 0 : r->split_blocks;
}

/* Chooses the rows of a tile: as many as give `packed` packed rows. */
static void plan_tiles(const struct gpu *g, const struct attn_shape *s, struct attn_route *r,
                       int packed)
{
    const int together = div_up(s->rows, max_int(s->n_req, 1));
    r->tile_rows = max_int(1, min_int(together, packed / (s->n_head / s->n_kv)));
    r->tiles = div_up(s->rows, r->tile_rows);
    plan_splits(g, s, r);
}

/* The packed rows of a block of wgmma whose combined sums lie in device memory; 0: heads of this
 * width have no such block. */
static int scratch_rows(int head_dim)
{
    return head_dim == 512 ? 64 : head_dim == 256 ? WIDE_ROWS : 0;
}

/* Whether such blocks, which walk all keys of their rows, are faster than blocks of fewer packed
 * rows: segments must be long, since the combined sums are read and written at the end of each, and
 * the blocks must fill the device. Heads of 512 (else decode attention's rounds): two blocks a
 * multiprocessor at least, since each walks twice as long; FP8 cells take longer to widen here. */
static bool scratch_pays(const struct gpu *g, const struct attn_shape *s)
{
    const bool rounds = s->head_dim == 512;
    const int packed = scratch_rows(s->head_dim);
    if (!packed || !g->has_wgmma || s->window || s->rows <= 64 || (rounds && s->fp8_cells) ||
        table_keys(s) < (rounds ? 4096 : 32768))
        return false;
    const size_t blocks = (size_t)(s->rows / (packed / (s->n_head / s->n_kv))) * (size_t)s->n_kv;
    return rounds ? blocks >= 2 * (size_t)g->n_sm : 2 * blocks >= (size_t)g->n_sm;
}

/* Divides the rows among such blocks; false if there is no room for their combined sums. */
static bool plan_scratch(const struct gpu *g, const struct attn_shape *s, struct attn_route *r)
{
    const int packed = scratch_rows(s->head_dim);
    plan_tiles(g, s, r, packed);
    r->totals = (size_t)r->tiles * (size_t)s->n_kv * (size_t)(packed * s->head_dim);
    if (!r->split_blocks && r->totals * sizeof(float) <= ARENA_BYTES / 2)
        return true;
    r->totals = 0;
    return false;
}

/* The kernel for tiles of `packed` packed rows. If blocks have less shared memory than LARGE, heads
 * of 256 have two stages, and heads of 128 one block a multiprocessor, whose combined sums stay in
 * registers. */
static struct tile_form tile_form_of(const struct gpu *g, int head_dim, int packed, bool splits)
{
    const bool wgmma = g->has_wgmma, large = g->smem_max >= LARGE;
    if (head_dim == 512)
        return (struct tile_form){512, 1, 4, 2, 2, 1, true};
    if (head_dim == 256 && packed < WIDE_ROWS && !wgmma)
        return (struct tile_form){256, 1, 4, 2, large ? 3 : 2, 1, false};
    if (head_dim == 256)
        return packed == WIDE_ROWS ? (struct tile_form){256, 1, 8, 1, 4, 1, true}
               : splits            ? (struct tile_form){256, 1, 4, 1, 2, 2, true}
                                   : (struct tile_form){256, 1, 4, 2, 4, 1, true};
    if (head_dim == 128)
        return packed < WIDE_ROWS ? (struct tile_form){128, 1, 4, 1, 2, large ? 2 : 1, false}
                                  : (struct tile_form){128, 1, 8, 1, wgmma ? 4 : 2, 1, wgmma};
    return packed < WIDE_ROWS ? (struct tile_form){64, 1, 4, 1, 4, 2, false}
           : wgmma            ? (struct tile_form){64, 1, 8, 1, 3, 2, true}
                              : (struct tile_form){64, 2, 4, 1, 3, 2, false};
}

/* One row a block. */
static struct tile_form row_form_of(int head_dim)
{
    return head_dim == 256   ? (struct tile_form){256, 1, 1, 2, 2, 2, false}
           : head_dim == 128 ? (struct tile_form){128, 1, 1, 2, 2, 3, false}
                             : (struct tile_form){64, 1, 1, 2, 3, 4, false};
}

/* Long contexts are faster with two blocks a multiprocessor, short ones with all cells in flight at
 * once. More than 16 packed rows need the registers of two blocks. If blocks have less shared
 * memory than LARGE, rounds are of two tiles, and a multiprocessor holds one block. Of heads of 512
 * dimensions it always does. */
static struct round_form round_form_of(const struct gpu *g, const struct attn_shape *s, int packed)
{
    const bool large = g->smem_max >= LARGE;
    if (s->head_dim == 64)
        return (struct round_form){64, 1, 4, 2};
    if (s->head_dim == 512)
        return g->smem_max >= VAST ? (struct round_form){512, 2, 2, 1}
                                   : (struct round_form){512, 1, 1, 1};
    if (packed > 16)
        return (struct round_form){s->head_dim, 2, large ? 4 : 2, 1};
    return long_context(s) || !large ? (struct round_form){s->head_dim, 1, 2, 2}
                                     : (struct round_form){s->head_dim, 1, 4, 1};
}

/* Sets the number of blocks that share the splits: at most what the device holds, and at most the
 * splits of a window that begins on a split boundary. If the window begins elsewhere, its first and
 * last split together are as long as one, and one block walks both. */
static void share_splits(const struct gpu *g, const struct attn_shape *s, struct attn_route *r)
{
    const int splits = r->split_blocks;
    r->split_blocks = max_int(1, min_int(splits, r->tile.blocks * g->n_sm / (r->tiles * s->n_kv)));
    if (s->window)
        r->split_blocks =
            min_int(r->split_blocks, div_up(s->window, tile_keys(s) << r->least_shift));
    r->merge_splits = splits > r->split_blocks + 2;
}

struct attn_route attn_route_of(const struct gpu *g, const struct attn_shape *s)
{
    struct attn_route r = {.kernel = ATTN_SPLITS};
    if (!has_tiles(g, s))
        return r;
    const int group = s->n_head / s->n_kv, hd = s->head_dim;
    const int packed = div_up(s->rows, max_int(s->n_req, 1)) * group;
    const bool small = packed <= 16 || (packed <= MAX_ROUND_ROWS && !long_context(s));
    const bool short_window = s->window && s->window <= SHORT_WINDOW;
    const bool row_blocks = s->rows <= 64 && s->window && s->window <= ONE_BLOCK_WINDOW;
    /* row_blocks: rounds only if they are at most two blocks a multiprocessor */
    const bool rounds = hd == 512 || (row_blocks ? s->rows * s->n_kv <= 2 * g->n_sm : small);
    const bool wide =
        packed > 64 && (hd < 256 || (g->has_wgmma && s->rows <= 64 && !short_window));
    /* 32 packed rows; with heads of 64 dimensions they would lack registers */
    const bool rows_32 = packed > 16 && hd > 64;
    int rows = hd == 512    ? (g->smem_max >= VAST ? 32 : 16)
               : row_blocks ? group : small ? (rows_32 ? 32 : 16) : wide ? WIDE_ROWS : 64;
    r.least_shift = hd > 128 ? 1 : 2;
    r.long_shift = cap_shift_of(s->n_kv, hd == 512 ? 128 : 256);
    /* measured: combining fewer segments is worth more, if all blocks have some */
    r.cap_shift = hd == 512 ? min_int(r.long_shift, 5) : r.long_shift - 1;
    const bool scratch = scratch_pays(g, s) && plan_scratch(g, s, &r);
    r.kernel = rounds && !scratch ? ATTN_ROUNDS : ATTN_TILES;
    if (scratch)
        rows = scratch_rows(hd);
    else
        plan_tiles(g, s, &r, rows);
    if (!scratch && !r.split_blocks && hd == 256 && rows == WIDE_ROWS)
        plan_tiles(g, s, &r, rows = 64); /* the sums do not fit into shared memory */
    if (r.kernel == ATTN_ROUNDS) {
        r.round = round_form_of(g, s, r.tile_rows * group);
        return r;
    }
    r.tile = row_blocks ? row_form_of(hd) : tile_form_of(g, hd, rows, r.split_blocks);
    if (r.split_blocks)
        share_splits(g, s, &r);
    return r;
}

/* ---- mixtures of experts -------------------------------------------------------------------- */

int moe_packed(const struct moe_shape *s, int n)
{
    const int unit = s->mxfp4 ? 128 : 32;
    return div_up(n, unit) * unit;
}

size_t moe_router_bytes(const struct moe_shape *s, int rows)
{
    return (size_t)(div_up(s->n_expert, 32 / rows) * ROUTER_THREADS) * sizeof(float);
}

size_t moe_pack_bytes(const struct moe_shape *s)
{
    return (size_t)(moe_packed(s, s->in) / 32 * 40) * sizeof(float);
}

/* A thread has registers for its elements of eight rows of ROUTER_PER, or of fewer longer ones. */
int moe_router_rows(const struct gpu *g, const struct moe_shape *s)
{
    const size_t bytes = g->smem_max - (4 << 10);
    for (int rows = 8; rows > 1; rows /= 2)
        if (s->in <= 8 * ROUTER_PER / rows * ROUTER_THREADS && moe_router_bytes(s, rows) <= bytes)
            return moe_pack_bytes(s) <= bytes ? rows : 0;
    return 0;
}

/* Whether the kernels for decode and verify rows take the experts: MXFP4, or bf16 in units of 32
 * outputs and 16 hidden values, which are in whole tiles (cuda_tiles_experts()). */
static bool takes_columns(const struct gpu *g, const struct moe_shape *s)
{
    return s->mxfp4 || (s->as_bf16 && g->has_wgmma && s->in % 32 == 0 && s->ffn % 16 == 0);
}

/* The most rows of bf16 or packed experts that MOE_COLUMNS_4 multiplies faster than MOE_PREFILL: an
 * expert with more rows than a job has needs several, each of which unpacks its weights. */
static int column_rows(const struct moe_shape *s)
{
    const int rows = 4 * s->n_expert / s->top_k; /* so many give an expert a whole job */
    return max_int(COLUMN_ROWS, min_int(rows, MAX_VERIFY_ROWS));
}

/* Whether the rows are multiplied in the order of the experts, by tiles. Without wgmma the decode
 * kernel is faster while most experts have few pairs. */
static bool takes_prefill(const struct gpu *g, const struct moe_shape *s)
{
    /* columns of an expert from which on tiles are faster (mma.sync), by shared memory */
    const int columns = g->smem_max >= LARGE ? 32 : 16;
    const bool many = g->has_wgmma || s->rows * s->top_k * g->terms > columns * s->n_expert;
    if (!s->mxfp4)
        return s->as_bf16 && g->has_wgmma && moe_router_rows(g, s) &&
               s->rows > (takes_columns(g, s) ? column_rows(s) : PLAIN_ROWS);
    return s->rows > MAX_VERIFY_ROWS && many && moe_router_rows(g, s);
}

/* The columns of a row. */
static int terms_of(const struct gpu *g, const struct moe_shape *s)
{
    return s->mxfp4 ? g->terms : 2;
}

/* Dynamic shared memory of a block of an expert kernel with room for `width` columns (4, 8 or 16)
 * of partial sums and `columns` columns of a stage of rows. resident: columns of the input; if
 * there are any, stages hold hidden rows only. */
static size_t expert_bytes(const struct moe_shape *s, const struct moe_route *r, int width,
                           int columns, int resident)
{
    const int pitch = width == 4 ? 24 : 20;
    const int sums = EXPERT_RINGS * 2 * (8 * width * pitch + 16) * 4; /* two tiles, 8 k splits */
    const int in = moe_packed(s, s->in) * 2 + 64, hidden = moe_packed(s, s->ffn) * 2 + 64;
    const int behind = width == 16 ? 16 - columns : 0; /* read behind the last stage; not used */
    return (size_t)(EXPERT_RINGS * r->stages * EXPERT_STAGE + sums + resident * in +
                    (r->row_stages * columns + behind) * (resident ? hidden : max_int(in, hidden)));
}

/* Fewer columns if rows are so long that a block's shared memory cannot hold more. */
static int job_pairs_of(const struct gpu *g, const struct moe_shape *s, size_t room)
{
    const struct moe_route one = {.stages = 1, .row_stages = 1};
    const int pairs = s->rows * s->top_k, terms = g->terms;
    const bool sixteen = s->rows * terms > 8 && pairs * terms > 4 * s->n_expert &&
                         expert_bytes(s, &one, 16, 16, 0) <= room;
    const bool four = terms == 1 && (s->rows <= 4 || pairs <= s->n_expert);
    int job_pairs = min_int(sixteen ? 16 / terms : four ? 4 : 8 / terms, s->rows);
    while (job_pairs > 1 && !sixteen && expert_bytes(s, &one, 8, job_pairs * terms, 0) > room)
        job_pairs--;
    return job_pairs;
}

/* Whether blocks exchange hidden rows and results through words that are their own flags. */
static bool has_few_pairs(const struct gpu *g, const struct moe_shape *s,
                          const struct moe_route *r, size_t room)
{
    const struct moe_route one = {.stages = 1, .row_stages = 1};
    const int terms = terms_of(g, s);
    return r->block_select && (!s->mxfp4 || terms == 1) && r->job_pairs <= 4 &&
           s->rows <= FLAG_ROWS && s->rows * s->top_k <= FLAG_PAIRS &&
           expert_bytes(s, &one, 4, r->job_pairs * terms, s->rows * terms) <= room;
}

/* As many stages of rows as fit beside all stages of weights, because units of few rows soon need
 * the next rows; but two stages of rows are worth more than the last stage of weights. */
static void divide_expert_block(const struct gpu *g, const struct moe_shape *s,
                                struct moe_route *r, size_t room)
{
    const int terms = terms_of(g, s), columns = r->job_pairs * terms;
    const int width = r->kernel == MOE_COLUMNS_16 ? 16 : r->kernel == MOE_COLUMNS_8 ? 8 : 4;
    const int resident = r->kernel == MOE_ROW || r->kernel == MOE_FEW ? s->rows * terms : 0;
    r->stages = !s->mxfp4              ? EXPERT_STAGES
                : r->kernel == MOE_ROW ? EXPERT_GOOD_STAGES
                                       : MXFP4_STAGES;
    r->row_stages = EXPERT_ROW_STAGES;
    while ((r->shared = expert_bytes(s, r, width, columns, resident)) > room &&
           (r->row_stages > 1 || r->stages > 1))
        if (r->row_stages > (r->stages > EXPERT_GOOD_STAGES ? 2 : 1))
            r->row_stages--;
        else
            r->stages--;
    if (r->shared > room)
        r->shared = 0;
}

struct moe_route moe_route_of(const struct gpu *g, const struct moe_shape *s)
{
    const size_t room = g->smem_max - EXPERT_OWN;
    struct moe_route r = {.kernel = MOE_PLAIN, .job_pairs = s->rows};
    if (takes_prefill(g, s)) {
        r.kernel = g->has_wgmma ? MOE_PREFILL : MOE_TILES;
        return r;
    }
    if (!takes_columns(g, s))
        return r;
    r.block_select = s->rows * s->top_k <= DIRECT_PAIRS && s->n_expert <= DIRECT_EXPERTS;
    r.adds_experts = true;
    r.job_pairs = s->mxfp4 ? job_pairs_of(g, s, room) : min_int(s->rows, 4);
    const int columns = r.job_pairs * g->terms;
    if (has_few_pairs(g, s, &r, room))
        r.kernel = s->rows == 1 && moe_packed(s, s->in) <= ROUTER_PER * ROUTER_THREADS &&
                           s->pre_bf16
                       ? MOE_ROW
                       : MOE_FEW;
    else if (!s->mxfp4)
        r.kernel = MOE_COLUMNS_4;
    else
        r.kernel = columns > 8                      ? MOE_COLUMNS_16
                   : columns > 4 || g->terms == 2 ? MOE_COLUMNS_8
                                                    : MOE_COLUMNS_4;
    divide_expert_block(g, s, &r, room);
    if (!r.shared && !s->mxfp4) { /* rows too long for a block */
        const bool many = s->rows > COLUMN_ROWS && moe_router_rows(g, s);
        return (struct moe_route){.kernel = many ? MOE_PREFILL : MOE_PLAIN, .job_pairs = s->rows};
    }
    return r;
}
