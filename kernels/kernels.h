/* kernels.h - the kernel table: all operations of a device.
 *
 * There are two tables: kernels_cpu, the reference implementation, and kernels_cuda, in builds with
 * CUDA. No code outside of this folder depends on a backend. Kernels know nothing of tokens, models
 * or sessions: they see rows, slots and matrices.
 *
 * Rules of every operation
 *  - It returns nothing. The device keeps its first failure, which sync() reports. Wrong arguments
 *    are a bug of the caller and fail a CHECK.
 *  - It may run asynchronously; get() and sync() wait. It never allocates device memory.
 *  - A stride of 0 means dense rows.
 *  - Activations are float32. Weights are bf16, f16, f32 or MXFP4 and are used in the type in which
 *    they are stored, except those that upload() quantizes to FP8 (struct tensor, `quantize`).
 *    Matrices, embedding tables and experts (not those of in x out) may be packed; the results are
 * those
 *    of the bf16 tensors with their values (packed.h).
 *  - A row's result is bit-identical whatever the number of rows, their order, the page size and
 *    the slot layout: each row is reduced in an order that depends on its logical content only. On
 *    the CPU the order is also the same for every instruction set: 32 running sums over an input
 *    row (element i is added to sum i mod 32, by fused multiply-add), then a fixed tree.
 *  - Nothing outside the rows, keys and cells named in the arguments is read: an unowned cell
 *    may hold NaN without changing any result.
 * A device is used by one thread at a time.
 */
#pragma once

#include "kernels/base.h"
#include "kernels/window.h"

struct kdev; /* a backend's own state: threads or a stream, scratch, the first error */

/* Device memory, by value: a pointer that host code never dereferences, and its size. */
typedef struct {
    void *p; /* NULL: absent */
    size_t n; /* bytes */
} kbuf;

static inline kbuf kbuf_at(kbuf b, size_t off, size_t n)
{
    CHECK(off <= b.n && n <= b.n - off);
    return (kbuf){(char *)b.p + off, n};
}

/* How a pool stores keys and values. KV_FP8: the numbers of a head of a cell are E4M3 codes with
 * one scale, a power of two (fp8.h: fp8_cell_scale()), so a cell depends on no other. Every number
 * of such a cell is a bf16 number, too; on CUDA attention has the bits that it has over bf16 cells
 * of these numbers. */
enum kv_type { KV_F32, KV_BF16, KV_FP8 };

/* Of one number; not of KV_FP8. */
static inline size_t kv_type_size(enum kv_type t) { return t == KV_F32 ? 4 : 2; }
/* Bytes of one slot's keys (or values) in one layer. KV_FP8: n_kv * head_dim codes, n_kv scales of
 * a byte, padding to a multiple of 16. */
static inline size_t kv_cell_bytes(enum kv_type t, int n_kv, int head_dim)
{
    size_t n = (size_t)n_kv * (size_t)head_dim;
    return t != KV_FP8 ? n * kv_type_size(t) : (n + (size_t)n_kv + 15) & ~(size_t)15;
}

/* ---- what one forward reads besides weights; filled from a checked plan --------------------- */

/* The slots in which the rows of one forward pass read and write KV in one pool. All ids are slots
 * or pages of that pool. Row r sees the keys at logical indices [lo[r], hi[r] + n_expand[r]): index
 * j < hi[r] is in slot pages[req[r]][j / page_size] * page_size + j % page_size, index hi[r] + e in
 * slot expand[r][e]. (Tree nodes and their ancestors are the expanded keys; all others are read
 * through pages.) A logical index is the key's position, which fixes the order of reduction. lo may
 * be above hi: then the window begins among the expanded keys. Cells that the pass itself writes
 * (`write`, in qkv) are among the last K_MAX_STEPS + 1 keys of each row that sees them, unless the
 * pass has more rows than that; a row with expanded keys reads them through `expand`. */
struct k_table {
    int page_size, n_cols, expand_w; /* n_cols: columns of pages; expand_w: columns of expand */
    kbuf req;      /* (n_rows) i32, row of pages */
    kbuf pages;    /* (n_req, n_cols) i32 */
    kbuf lo, hi;   /* (n_rows) i32 */
    kbuf expand;   /* (n_rows, expand_w) i32 */
    kbuf n_expand; /* (n_rows) i32 */
    kbuf write;    /* (n_rows) i32, the slot that takes the row's K and V; absent: nothing is
                      written (frozen KV) */
};

/* One layer's cells: K and V, each (n_slots, n_kv, head_dim), kv_cell_bytes() a slot. */
struct k_cells {
    kbuf k, v;
    enum kv_type type;
    int n_slots, n_kv, head_dim;
};

/* ---- arguments ------------------------------------------------------------------------------- */

struct k_norm {
    enum norm_kind kind;    /* NORM_LAYER: in a k_normalize only */
    const struct tensor *w; /* (n); unused for NORM_NONE and NORM_PLAIN */
    float eps;
};

/* dst[r] = table[ids[r]] * scale */
struct k_embed {
    int rows, n; /* n: width */
    kbuf ids;    /* (rows) i32 */
    const struct tensor *table; /* (vocab, n) */
    float scale;
    kbuf dst; /* (rows, n) */
    int dst_stride; /* floats */
};

/* cs[r][i] = (cos, sin)(pos[r] * inv_freq[i]) * factor. The angle is the product rounded to
 * float32, as the references compute it: far along the context that rounding is larger than any
 * other. */
struct k_rope {
    int rows, half; /* half: rotated pairs of a head */
    kbuf pos;       /* (rows) i32 */
    const float *inv_freq; /* (half), host memory that outlives the device */
    float factor;
    kbuf cs; /* (rows, half, 2) */
};

/* dst[r] = (norm(src[r]) + (add ? dst[r] : 0)) * scale, over rows of n with the given strides */
struct k_normalize {
    int rows, n, src_stride, dst_stride; /* strides in floats */
    kbuf src, dst;
    struct k_norm norm;
    bool add;
    float scale;
};

/* dst[r] (+)= post(mul[r] * scale * cap(act(w pre(src[r]) + b))), cap(y) = softcap tanh(y/softcap).
 * The order is: pre-norm, product, bias, activation, soft-cap, scale, mul, post-norm, add. */
struct k_linear {
    int rows, src_stride; /* floats between rows of src; dst rows are dense unless dst_stride > 0 */
    int dst_stride;
    kbuf src; /* (rows, in) */
    struct k_norm pre, post;
    const struct tensor *w; /* (out, in) */
    const struct tensor *b; /* (out) or NULL */
    enum act_kind act;
    float softcap; /* 0: none */
    float scale;   /* 1: none */
    kbuf mul;      /* (rows, out) or absent */
    int mul_stride;
    bool add;
    bool packed; /* src is the whole dst of a glu(), attn() or gather() with the same flag; no
                    pre-norm */
    kbuf dst; /* (rows, out) */
};

/* dst[r] = act(gate pre(src[r])) * (up pre(src[r])) */
struct k_glu {
    int rows;
    kbuf src; /* (rows, in) */
    struct k_norm pre;
    const struct tensor *gate, *up; /* (ffn, in) */
    enum act_kind act;
    bool packed; /* the only reader of dst is a linear with the same flag whose weights have the
                    type of gate and up, or all of them are bf16 or packed (dtype_as_bf16()): the
                    device may store dst in its packed activation layout */
    kbuf dst; /* (rows, ffn) */
};

/* Normalises src, projects to q, k and v, normalises the heads, applies rope, and writes K and V
 * into the pool. A shared-KV layer has no wk and wv: only q is computed. With v_from_k, V is the K
 * projection before k_norm and rope, normalised by v_norm (gemma-4). Rope rotates the pairs (i, i +
 * rot/2), i < rot/2, of each head; the other dimensions are copied. */
struct k_qkv {
    int rows, src_stride;
    kbuf src; /* (rows, in) */
    struct k_norm norm;
    bool packed; /* src is the whole dst of a gather() with the same flag; no norm */
    kbuf capture; /* out: src's rows, capture_stride floats apart; absent: none. Not with packed */
    int capture_stride;
    const struct tensor *wq, *wk, *wv; /* (n_head * head_dim, in), (n_kv * head_dim, in) x 2 */
    const struct tensor *bq, *bk, *bv; /* or NULL */
    int n_head, n_kv, head_dim;
    struct k_norm q_norm, k_norm, v_norm; /* NORM_NONE: none */
    bool norm_whole; /* q_norm, k_norm run over all heads of the row at once (olmo-3) */
    bool v_from_k;
    int rot; /* rotated dimensions of a head; 0: no rope */
    kbuf cs; /* (rows, rot / 2, 2) from rope() */
    kbuf q;  /* out: (rows, n_head, head_dim) */
    struct k_cells cells;
    const struct k_table *table; /* its `write` only */
};

/* Paged attention of each row over its keys. With sinks, exp(sink[h]) joins the denominator. A row
 * with no visible key yields zeros. lse, if present, receives the natural log of the denominator
 * (-inf for an empty row). */
struct k_attn {
    int rows, n_head; /* query head h reads kv head h / (n_head / n_kv) */
    float scale, softcap; /* score = cap(scale q.k) */
    int window; /* no row sees more keys; 0: unknown. Changes no bit, only how work is divided */
    const struct tensor *sinks; /* (n_head) or NULL */
    kbuf q; /* (rows, n_head, head_dim) */
    struct k_cells cells;
    const struct k_table *table;
    bool packed; /* as glu()'s, for a linear whose weights are bf16 or packed */
    kbuf dst; /* (rows, n_head, head_dim) */
    kbuf lse; /* (rows, n_head) or absent */
};

/* Combines two attentions over disjoint keys by their log-sum-exp: m = max(la, lb), weights
 * e^(la-m) and e^(lb-m). Either part may be empty (lse -inf); both empty yields zeros. a (+ la) is
 * overwritten with the result. */
struct k_merge {
    int rows, n_head, head_dim;
    kbuf a, la, b, lb;
};

/* Layouts of expert matrices in checkpoints. */
enum expert_layout {
    EXPERT_MXFP4,  /* gate_up blocks (E, 2f, in/32, 16) u8 + scales (E, 2f, in/32) u8, gate and up
                      interleaved by rows; down likewise (E, out, f/32, 16) */
    EXPERT_IN_OUT, /* gate_up (E, in, 2f), interleaved by columns; down (E, f, out): gpt-oss bf16 */
    EXPERT_HALVES, /* gate_up (E, 2f, in): first f rows gate, then up; down (E, out, f): gemma-4 */
    EXPERT_IN_OUT_HALVES, /* EXPERT_IN_OUT with the f columns of gate first, then up: llama 4 */
};

/* Mixture of experts. logits = cap(router rnorm(src) * router_scale...), the top_k largest (ties:
 * lowest index; with choice_b those with the largest sigmoid + choice_b), weights of router_kind,
 * times expert_scale and weight_scale; dst (+)= post(sum_e w_e (down_e h_e + b_e)). With
 * weigh_input w_e multiplies the inputs of gate_up instead. With x, then x = (x + after(dst)) * *s,
 * as normalize and scale compute it. */
struct k_moe {
    int rows, in, ffn, n_expert, top_k;
    kbuf src; /* (rows, in) */
    struct k_norm pre; /* of the experts' input, and of the router's unless router_norm is set */
    struct k_norm router_norm; /* NORM_NONE: the router reads pre(src) */
    const struct tensor *router_in; /* (in) factor on the router's input, or NULL */
    float router_scale;             /* another factor on it; 1: none */
    const struct tensor *router, *router_b; /* (E, in), (E) or NULL */
    const struct tensor *choice_b;  /* (E) or NULL; with the sigmoid kinds only */
    float router_cap;               /* soft-cap of logits, with the sigmoid kinds only; 0: none */
    enum router_kind router_kind;
    bool weigh_input;               /* not EXPERT_MXFP4; without gate_up_b */
    const struct tensor *expert_scale; /* (E) or NULL */
    float weight_scale;                /* another factor of weights; 0: none */
    enum expert_layout layout;
    const struct tensor *gate_up, *gate_up_s, *gate_up_b; /* data, MXFP4 scales, (E, 2f) bias */
    const struct tensor *down, *down_s, *down_b;          /* data, MXFP4 scales, (E, out) bias */
    enum act_kind act;
    float limit; /* of ACT_SWIGLU_CLAMP and ACT_SILU_CLAMP */
    struct k_norm post;
    bool add;
    kbuf dst;            /* (rows, in) */
    kbuf x;              /* (rows, in), not dst; or absent */
    struct k_norm after; /* without x: NORM_NONE; not NORM_LAYER */
    const struct tensor *s; /* (1) or NULL: no factor */
    kbuf chosen;            /* (rows, top_k) i32 out, or absent */
};

/* x[r] *= *s (gemma-4's layer_scalar), or, without s, 1 + beta ln(1 + floor((pos[r] + from) /
 * period))
 * (ministral-3's factor of queries far into the context); with `by`: x[r][i] *= gate(by[r][i /
 * group]) (the output of attention, by element or by head) */
struct k_scale {
    int rows, n;
    kbuf x;
    kbuf by;            /* (rows, n / group) or absent */
    int group;          /* divides n */
    enum gate_kind gate;
    float limit;        /* of GATE_CLAMP */
    const struct tensor *s; /* (1) or NULL */
    kbuf pos;               /* (rows) i32 */
    float beta, period;     /* period: in positions */
    int from;               /* 0 or 1 */
};

/* dst[r][0..n) = src[idx[r]][0..n), or src[r] without idx */
struct k_rows {
    int rows, n, src_stride, dst_stride; /* floats */
    kbuf src, dst;
    kbuf idx; /* (rows) i32 or absent */
};

/* A causal convolution along runs of neighbouring rows, whose coefficients depend on the row:
 *   dst[r][i] = (add ? dst[r][i] : 0) +
 *               sum over taps t of (base[at + t][i] + by[r][t][i / group]) src[r - t][i]
 * A tap that would leave its run, run[r - t] != run[r], is left out. dst is not src. A row's result
 * depends on itself and on the taps - 1 rows before it in its run. */
enum { K_MAX_TAPS = 8 };
struct k_conv {
    int rows, n, taps, group;  /* group divides n; taps <= K_MAX_TAPS */
    kbuf run;                  /* (rows) i32: equal numbers are successive */
    kbuf src;                  /* (rows, n) */
    const struct tensor *base; /* (at + taps rows or more, n), read by row (struct tensor) */
    int at;
    kbuf by;                   /* (rows, taps, n / group), rows by_stride floats apart */
    int by_stride;
    bool add;
    kbuf dst;                  /* (rows, n) */
};

/* The input rows of a pass, and the rope angles of its positions. A row of dst is the concatenation
 * of n_parts parts; each part gathers a row of floats or of a table and normalises it: elements
 * [at, at + n) of dst's row r are norm(y), where y is row idx[r] of src (row r without idx), or row
 * idx[r] of the table times scale. */
enum { K_MAX_PARTS = 9, K_MAX_ROPES = 2 };
struct k_part {
    int n;
    kbuf src; /* rows of floats */
    int src_stride;
    const struct tensor *table; /* (rows, n), in place of src; NULL: none */
    float scale;                /* of the table's rows */
    kbuf idx;                   /* (rows) i32; absent: r */
    struct k_norm norm;
    kbuf copy; /* out: (rows, n) y, or with copy_normed norm(y), as floats; absent: none. It may be
                  src if there is no idx */
    bool copy_normed;
    kbuf dst; /* (rows, width) */
    int width, at;
    bool packed; /* the only reader of dst is a linear or qkv with the same flag whose weights are
                    bf16 or packed: the device may store dst in its packed activation layout. All
                    parts of a row have the same flag */
};
struct k_gather {
    int rows, n_parts;
    struct k_part part[K_MAX_PARTS];
    const struct k_rope *rope[K_MAX_ROPES]; /* of the same rows; the first NULL ends the list */
};

/* The k largest of each row, best first, ties by lowest index: ids, and log softmax at
 * temperature 1. An index whose mask byte is not 0 is skipped but counts in the softmax. Where a
 * row has fewer than k candidates, the rest are id -1, logp -inf. */
struct k_topk {
    int rows, n, k; /* k <= 64 and <= n */
    kbuf logits; /* (rows, n) */
    kbuf mask;   /* (n) u8 or absent */
    kbuf ids;    /* (rows, k) i32 */
    kbuf logp;   /* (rows, k) f32 */
    kbuf lse;    /* (rows) f32 or absent: natural log of the sum of exp */
};

/* How a token is drawn. Greedy (temperature 0) is the argmax, ties by lowest index. Otherwise:
 * order by (logit descending, index ascending), divide by the temperature, keep the top_k first
 * (0: all), then the smallest head whose softmax mass reaches top_p, then those with at least
 * min_p of the first's probability; renormalise and take the first at which the running sum
 * exceeds u. (Filters in the order of Hugging Face: temperature, top-k, top-p, min-p.) */
struct sampling {
    float temperature;
    int top_k;
    float top_p, min_p;
};

struct k_sample {
    int rows, n;
    kbuf logits; /* (rows, n) */
    kbuf mask;   /* (n) u8 or absent: not 0 is never drawn */
    struct sampling how;
    kbuf u;   /* (rows) f32 in [0, 1); unused when greedy */
    kbuf ids; /* (rows) i32 out; -1 (p 0) if the row holds a NaN or +inf or no finite candidate */
    kbuf p;   /* (rows) f32 out, probability of the id under the filtered distribution */
};

/* One changed logit: x + bias; then x / rep if that is positive, else x * rep; then x - less; each
 * rounded to float32. */
struct k_change {
    int32_t row; /* of the rows; every row for the first `every` changes, which ignore it */
    int32_t id;
    float bias, rep, less;
};
/* Chooses again among the n best of a row of logits: candidate c of row from[r] has the score
 * logp[from[r]][c] + src[r] . table[ids[from[r]][c]]. Leaves the k best of each row, best first
 * (ties: the earlier candidate), and their log softmax over the row's candidates. Where a row has
 * fewer (an id of -1 ends the list), the rest has id -1 and -inf. An id behind the table must not
 * occur: the CPU CHECKs it, and CUDA, which cannot, ends the list there. If a score is no number,
 * the row has its first k candidates with NaN. */
struct k_rerank {
    int rows, n, k, width; /* n <= 64 */
    kbuf from;             /* (rows) i32 */
    kbuf ids, logp;        /* (any rows, n) i32 and f32, as topk() leaves them */
    kbuf src;              /* (rows, width) */
    const struct tensor *table; /* (ids, width), read by row (struct tensor) */
    kbuf best, best_logp;  /* out: (rows, k) i32 and f32 */
};

/* Copies rows of logits and changes some: dst[r][i] is -inf where bit i of row r of `banned` is
 * set, else what the change of (r, i), or else that of i for every row, makes of src[r][i], or
 * src[r][i]. */
struct k_adjust {
    int rows, n, changes, every; /* of the changes the first `every` are for every row, their ids
                                    distinct; the pairs (row, id) of the others are distinct, too */
    kbuf src, dst; /* (rows, n) */
    kbuf banned;   /* (rows, (n + 31) / 32) u32, or absent */
    kbuf change;   /* (changes) struct k_change, or absent if there are none */
};

/* logp[i] = log softmax of logits[row[i]] at id[i], at temperature 1 */
struct k_logp {
    int pairs, n, rows;
    kbuf logits;  /* (rows, n) */
    kbuf row, id; /* (pairs) i32 */
    kbuf logp;    /* (pairs) f32 */
};

/* sample(), topk() and logp() of the same rows, with the same bits; the device may read the logits
 * once for all three. */
struct k_read {
    const struct k_sample *sample;
    const struct k_topk *topk; /* without a mask */
    const struct k_logp *logp; /* or NULL */
};

enum { K_MAX_PAIRS = 64 };

/* Moves whole cells of every layer of one pool or two, all sources of a layer read before any of
 * its targets is written. A pair may name one slot twice: nothing happens to it. */
struct k_pool {
    kbuf src, dst; /* (pairs) i32 slots */
    int n_layers;
    const struct k_cells *cells; /* (n_layers) */
};
struct k_move {
    int pairs, n_pools; /* pairs: of each pool, <= K_MAX_PAIRS */
    struct k_pool pool[2];
};

/* ---- a draft tree of one lane, grown and accepted on the device ------------------------------ */

enum { K_MAX_NODES = 64, K_MAX_STEPS = 16, K_MAX_TOPK = 16 };

/* The candidates of a tree that grows: numbers, scores, order and scratch cells are those of
 * kernels/tree_rules.h. */
struct k_tree {
    int topk, steps, nodes; /* nodes: rows of the verify pass, the root among them */
    kbuf token, parent;     /* (topk + (steps - 1) topk^2) i32; parent: a candidate, -1: the root */
    kbuf logp, score;       /* the same, f32; score: sum of logp along the path */
    kbuf cell;              /* the same, i32: scratch cell, -1: not extended */
    kbuf front;             /* (steps, topk) i32: candidates of level l at row l - 1, -1: none */
};

/* grow(), select() and accept() store their starting time in `time` (1) u64, nanoseconds on the
 * device's clock, if `time` is present. */

/* The extents and expand columns that the device fills in for the rows of one pass in one pool:
 * they depend on the tree, which the device grew. A row with n ancestors (itself counted) has the
 * extent row_extent(prefix, n, window), and its expand columns hold the slots of its ancestors from
 * ancestor `skip` on. */
struct k_reach {
    int window, expand_w;
    kbuf slots; /* i32: slot of each scratch cell (grow) or row of the verify pass (select) */
    kbuf lo, hi, n_expand; /* (rows) i32 out */
    kbuf expand;           /* (rows, expand_w) i32 out; 0 beyond n_expand */
};

/* Adds the candidates of a level, chooses its front (the topk best scores of the level, best first,
 * ties to the lower index) and writes the rows of the pass that extends the front. A row without a
 * front candidate has no children: their token is -1, logp and score are -inf. Such a row repeats
 * row 0, but writes its own cell and sees that cell instead of row 0's; if row 0 has no front
 * candidate either, its token is 0, it continues row 0 and its only ancestor is itself. logp is at
 * most 0 or NaN, so a candidate's parent has a score at least as good and a lower index. */
struct k_grow {
    const struct k_tree *t;
    int level;      /* 1 .. steps, of the candidates added */
    kbuf ids, logp; /* (level == 1 ? 1 : topk, topk) i32 draft ids (-1: none), f32 */
    const struct k_topk *topk; /* the operation that computes ids and logp, not yet run: grow() runs
                                  it; NULL: ids and logp are there */
    kbuf d2t;       /* (draft vocabulary) i32 target id of each, or absent: the same ids */
    kbuf prefix;    /* (1) i32: draft cells before the scratch ones */
    kbuf root;      /* (1) i32: state row from which the root's guesses were made */
    /* for the pass of level + 1; unused when level == steps */
    kbuf token;     /* (topk) i32 */
    kbuf from;      /* (topk) i32: level 1: *root; else the row of the last pass that guessed it */
    int n_reach;
    struct k_reach reach[2];
    kbuf time;
};

/* The root and the nodes - 1 best candidates (by score, ties to the lower index) become the rows of
 * the verify pass, candidates in the order of their indices. Rows beyond *n repeat the root, but
 * write their own cell and see that cell instead of the root's. */
struct k_select {
    const struct k_tree *t;
    kbuf root;   /* (1) i32: the pending token */
    kbuf prefix; /* (1) i32: committed cells; the root's position */
    kbuf draws;  /* (steps + 1) f32: the uniform of each depth */
    kbuf n;      /* (1) i32 out: nodes kept, the root counted */
    kbuf token, pos, parent; /* (nodes) i32 out; parent: row, -1 for the root and beyond *n */
    kbuf parent0; /* (nodes) i32 out: the same with 0 for -1 */
    kbuf logp, score, u; /* (nodes) f32 out; logp and score are 0 at the root and beyond *n */
    int n_reach;
    struct k_reach reach[2];
    kbuf time;
};

/* Walks from the root: at row i the target's own token is choice[i]; the first child that holds it
 * is accepted and walked to. The path ends before a row it has no child for, at *limit rows, or
 * where a stop token is chosen. *limit below 1 counts as 1: the root is always accepted. With
 * *force > 0 the path follows first children, whatever was chosen and stop tokens or not, to at
 * most that many rows, the root counted, nor more than *limit (benchmarks script the acceptance
 * so). If any choice of the tree's rows is negative, *n_path is 0 and the rest is as beyond it. */
struct k_accept {
    int nodes, steps, n_stop;
    kbuf n, token, parent; /* of the tree, from select() */
    kbuf choice;           /* (nodes) i32 */
    kbuf limit, force;     /* (1) i32 */
    kbuf stop;             /* (n_stop) i32 */
    int n_pools;
    kbuf slots[2];         /* (nodes) i32: each row's cell, by pool */
    kbuf n_path;           /* (1) i32 out */
    kbuf path;             /* (steps + 1) i32 out: rows, root first; 0 beyond n_path */
    kbuf emitted;          /* (steps + 1) i32 out: the token after each row of the path, which is
                              the next row's, for the last one its choice; 0 beyond */
    kbuf last;             /* (1) i32 out: n_path - 1, 0 if there is none */
    kbuf src[2], dst[2];   /* (steps + 1) i32 out: moves that bring path row i into cell i; beyond
                              n_path src == dst == slot of row i (of the last row, if there are
                              not so many) */
    kbuf time;
};

/* ---- for benchmarks -------------------------------------------------------------------------- */

/* How a phase of work is separated from the next, which needs all results of the previous one. */
enum k_phase {
    PHASE_LAUNCH,  /* a kernel launch each */
    PHASE_EARLY,   /* a launch each, with programmatic dependent launch */
    PHASE_BARRIER, /* one launch, a grid barrier: blocks add to a counter and wait for its sum */
    PHASE_FLAG,    /* one launch: each block sets a flag of its own and waits for all flags */
    PHASE_BUSY,    /* one kernel that takes n milliseconds (tests of the time limit) */
};

/* Products like linear()'s by the vendor's library (cuBLASLt), for comparison in the benchmark:
 * bf16 in and out, accumulation in float32. */
struct k_peer {
    const char *library; /* a file; NULL: by its usual names */
    int rows, in, out;   /* of each product */
    int batch;           /* products, one behind the other */
    int choice;          /* which of the library's own proposals, best guess first */
    kbuf src, w, dst;    /* (batch, rows, in), (batch, out, in), (batch, rows, out) bf16 */
};

/* ---- the table ------------------------------------------------------------------------------- */

/* Precision of the activations that enter a product or an attention. A device with a single
 * precision ignores it. */
enum k_precision {
    K_F32,  /* activations keep at least 16 bits of mantissa (CUDA: as the sum of two numbers) */
    K_BF16, /* activations are rounded to bf16 (f16 before MXFP4), accumulation in float32 */
};

struct k_opts {
    int threads;     /* CPU: worker threads, 0 = one per core */
    const char *isa; /* CPU: "scalar", "avx2", "avx512"; NULL = the best the machine has */
    int device;      /* CUDA: ordinal */
    enum k_precision precision;
    int wait_limit_ms; /* CUDA: how long a wait for the device may take before the device counts as
                          failed; 0: two minutes */
};

struct kgraph; /* a recorded sequence of operations */

/* The operations that take a device and a struct k_NAME: arithmetic, then a draft tree. */
#define K_OPERATIONS(X)                                                                     \
    X(embed) X(rope) X(normalize) X(linear) X(glu) X(qkv) X(attn) X(merge) X(moe) X(scale)  \
    X(rows) X(conv) X(gather) X(topk) X(rerank) X(sample) X(adjust) X(logp) X(read) X(move) \
    X(grow) X(select) X(accept)

struct kernels {
    const char *name; /* "cpu", "cuda" */
    bool queued; /* operations run asynchronously: the host should not wait for each */

    /* The caller closes the device after freeing its buffers. On failure NULL and *e. */
    struct kdev *(*open)(const struct k_opts *opts, struct err *e);
    void (*close)(struct kdev *d);
    /* One line about the device for people, e.g. "2 threads, AVX-512"; valid until close(). */
    const char *(*about)(struct kdev *d);
    /* One line for people about what makes passes slow on this device, or NULL; lives as
     * long as the device. A backend that never has any leaves the entry NULL. */
    const char *(*slow_start)(struct kdev *d);

    /* memory: contents of a new buffer are undefined; names are for messages */
    kbuf (*alloc)(struct kdev *d, size_t bytes, const char *what, struct err *e);
    void (*release)(struct kdev *d, kbuf b); /* an absent buffer is allowed */
    void (*put)(struct kdev *d, kbuf dst, const void *src, size_t bytes);
    void (*get)(struct kdev *d, void *dst, kbuf src, size_t bytes); /* waits */
    void (*fill)(struct kdev *d, kbuf dst, uint8_t byte);
    /* Moves t->data to device memory, in the layout that this backend prefers; the host copy may be
     * freed afterwards unless t->data still points to it (the CPU uses it in place). A tensor with
     * t->quantize (bf16 of two dimensions) is quantized to FP8 during the upload, and every
     * operation sees the rounded weights (fp8.h). A packed tensor stays packed if the backend reads
     * its type; otherwise t becomes the bf16 tensor with its values, of four times the bytes of a
     * 4-bit one: on CUDA, all matrices in float32 (packs_on() of cuda/route.c), experts whose
     * outputs are no multiple of 16, tables of single rows, and matrices with a scale that is too
     * large for the kernels (cuda/dense/packed.cuh says which are). False and *e: out of memory, or
     * a weight is not finite. */
    bool (*upload)(struct kdev *d, struct tensor *t, struct err *e);
    /* Frees the device memory of a tensor that upload() or synthesize() moved there; t->data is
     * NULL then. Another tensor is left as it is. No operation that reads it may be enqueued. */
    void (*unload)(struct kdev *d, struct tensor *t);
    /* Bytes of device memory that upload() or synthesize() would allocate for t, or have; 0: none,
     * the operations use t where it was loaded. */
    size_t (*footprint)(struct kdev *d, const struct tensor *t);
    /* Whether upload() or synthesize() moved t's data to the device. */
    bool (*holds)(struct kdev *d, const struct tensor *t);
    bool (*sync)(struct kdev *d, struct err *e); /* waits; the first failure since open, if any */
    /* Free and total bytes of the memory that alloc() and upload() use; both 0 if that is the
     * machine's main memory. */
    void (*memory)(struct kdev *d, size_t *free_bytes, size_t *total_bytes);

    /* arithmetic and a draft tree */
#define K_ENTRY(op) void (*op)(struct kdev *d, const struct k_##op *a);
    K_OPERATIONS(K_ENTRY)
#undef K_ENTRY

    /* Host input and output of a sequence of operations, without a wait in between. The host fills
     * the inbox (at least `bytes` long; NULL after a failure, or if it cannot be that long);
     * read_inbox() copies its first bytes to the device; write_outbox() copies bytes to the outbox
     * and signals it; outbox() waits for the signal and returns the bytes of the last
     * write_outbox(), NULL after a failure. One sequence at a time: the inbox may be filled again
     * after outbox() has returned. */
    void *(*inbox)(struct kdev *d, size_t bytes);
    void (*read_inbox)(struct kdev *d, kbuf dst, size_t bytes);
    void (*write_outbox)(struct kdev *d, kbuf src, size_t bytes);
    const void *(*outbox)(struct kdev *d);

    /* Graph capture: between graph_begin() and graph_end() operations are recorded, not run; put,
     * get, alloc and sync are not allowed. graph_launch() runs the recorded operations on what the
     * buffers hold then. graph_begin() is false if the device has no graphs; operations then run at
     * once. */
    bool (*graph_begin)(struct kdev *d);
    struct kgraph *(*graph_end)(struct kdev *d, struct err *e);
    void (*graph_launch)(struct kdev *d, struct kgraph *g);
    void (*graph_free)(struct kdev *d, struct kgraph *g); /* NULL is allowed */

    /* for benchmarks */

    /* Like upload() for a tensor without data: random weights of standard deviation `scale` (0: all
     * weights are 1) are generated on the device, the same values on every device. MXFP4 scales (U8
     * of three dimensions) are chosen so that the decoded weights have that deviation. Packed
     * weights: packed_random(). */
    bool (*synthesize)(struct kdev *d, struct tensor *t, uint64_t seed, float scale,
                       struct err *e);
    /* Reads src once, and with dst present copies it there. */
    void (*stream)(struct kdev *d, kbuf src, kbuf dst);
    /* n dependent empty phases; false: this device does not support the kind. */
    bool (*phase)(struct kdev *d, enum k_phase kind, int n);
    /* Runs choice a->choice, if there are that many, and returns the number of choices; 0 and *e:
     * the library is not installed, or it does not support this product. */
    int (*peer)(struct kdev *d, const struct k_peer *a, struct err *e);
};

/* For synthesize(): weights are uniformly distributed 16-bit integers times this step, so that
 * their standard deviation is `scale`; 0 stands for all ones. */
static inline float synthetic_step(float scale) { return scale * (1.7320508f / 32768); }
/* The larger of the two MXFP4 scale bytes that are equally likely: random E2M1 codes have a
 * standard deviation of 2.926, and mixing a scale with its half multiplies the deviation by
 * 0.79. */
static inline int synthetic_exponent(float scale)
{
    int e = 127;
    for (float now = 2.926f * 0.79f; now > scale * 1.4142135f && e > 2; now /= 2)
        e--;
    return e;
}

extern const struct kernels kernels_cpu;
#if HAVE_CUDA
extern const struct kernels kernels_cuda;
#endif
