/* wide.h - products of many rows: the lanes of a vector are rows.
 *
 * Included by math.h. Rows come in panels of PANEL: for each input element, the values of the
 * panel's rows. A tile's weights are converted to float32 once for all panels; then each is loaded
 * as a broadcast and multiplied with up to PANELS panels, and each load of a panel serves several
 * outputs. A result is the same as multiply()'s, bit for bit: 32 running sums over the inputs and
 * the tree of v_sum4(). Here a lane is a row, so the sums of a row cannot be held at once: they are
 * computed one after the other, in an order in which the tree needs few of them at a time.
 *
 * The scores of attention are such products, too: the keys are the rows, the queries the weights.
 */
#include "kernels/cpu/vec.h"

/* Panels and outputs of wide_block() at most. */
#if CPU_ISA == 2
enum { PANELS = 2, WIDE_OUT = 6 };
#elif CPU_ISA == 1
enum { PANELS = 1, WIDE_OUT = 3 };
#else
enum { PANELS = 1, WIDE_OUT = 1 };
#endif
enum { N_PAIRS = 16, LEVELS = 5 };

/* Running sums are computed in pairs: those of the packed elements i and i + 16 of 32, which the
 * tree adds first. The pairs come in an order (i: the four bits of the number, reversed; its own
 * inverse) in which those that the tree adds next, 8, 4, 2 and 1 apart, are neighbours, so that few
 * partial results wait for others. */
static const uint8_t reversed[N_PAIRS] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

/* Packed rows (PANEL, k) to a panel: for each pair of sums the groups of 32 inputs, (2, PANEL)
 * each. apart: floats from a pair's groups to the next one's. */
static void row_panel(const float *rows, int k, size_t apart, float *panel)
{
    for (int g = 0; g < k / 32; g++)
        for (int half = 0; half < 2; half++) {
            v16 v[16];
            UNROLL
            for (int r = 0; r < 16; r++)
                v[r] = v_load(rows + (size_t)r * (size_t)k + g * 32 + half * 16);
            v_transpose(v);
            UNROLL
            for (int i = 0; i < 16; i++)
                v_store(panel + reversed[i] * apart + (size_t)((g * 2 + half) * PANEL), v[i]);
        }
}

/* The last n < 32 bf16 weights of a row, two in each lane as they are stored; the others are 0. */
V_FN v16 v_tail_pairs(const uint8_t *p, int n)
{
    V_TAIL(p, n, 2);
    return v_load((const void *)tail);
}

/* Up to 16 rows of k elements, n of them (the others are 0), in the order of a panel's inputs: for
 * each pair of sums the groups of 32 elements, (2, stride) each. */
V_FN void widen_16(const uint8_t *const *row, int n, int k, float *dst, const int stride,
                   const enum cpu_store type)
{
    const size_t size = type == STORED_F32 ? 4 : 2;
    const int n32 = k / 32, tail = k % 32, groups = n32 + (tail > 0);
    for (int g = 0; g < groups; g++) {
        v16 even[16], odd[16];
        UNROLL
        for (int r = 0; r < 16; r++) {
            const uint8_t *at = row[r < n ? r : 0] + (size_t)g * 32 * size;
            odd[r] = v_zero();
            if (r >= n)
                even[r] = v_zero();
            else if (type == STORED_BF16)
                even[r] = g < n32 ? v_load((const void *)at) : v_tail_pairs(at, tail);
            else if (g < n32)
                v_split_any(at, type, &even[r], &odd[r]);
            else
                v_split_tail(at, type, tail, &even[r], &odd[r]);
        }
        v_transpose(even);
        if (type != STORED_BF16)
            v_transpose(odd);
        UNROLL
        for (int l = 0; l < 16; l++) {
            float *to = dst + (reversed[l] * groups + g) * 2 * stride;
            if (type == STORED_BF16)
                v_split_pairs(even[l], &even[l], &odd[l]);
            v_store(to, even[l]);
            v_store(to + stride, odd[l]);
        }
    }
}

/* The same of the packed weights of outputs from `out` on, with stride TILE_OUT. */
static void widen_16_packed(const struct cpu_mat *w, int out, int n, float *dst)
{
    unpack_fn *unpack = unpacking(w->packed).unpack;
    const int all = w->k / 32;
    const size_t step = dtype_bytes(w->packed, PACKED_BLOCK);
    const uint8_t *row = w->data + (size_t)out * w->pitch;
    for (int at = 0; at < all; at += PACKED_BLOCK / 32, row += step) {
        _Alignas(64) float chunk[16][PACKED_BLOCK];
        const int groups = all - at < PACKED_BLOCK / 32 ? all - at : PACKED_BLOCK / 32;
        for (int o = 0; o < n; o++)
            unpack(w->packed, row + (size_t)o * w->pitch, groups, chunk[o]);
        for (int g = 0; g < 2 * groups; g++) { /* 16 even elements, or 16 odd ones */
            v16 v[16];
            UNROLL
            for (int o = 0; o < 16; o++)
                v[o] = o < n ? v_load(chunk[o] + 16 * g) : v_zero();
            v_transpose(v);
            UNROLL
            for (int l = 0; l < 16; l++)
                v_store(dst + ((reversed[l] * all + at) * 2 + g) * TILE_OUT, v[l]);
        }
    }
}

static void widen_tile(const struct cpu_mat *w, int out, int n, float *dst)
{
    CHECK(w->type != STORED_MXFP4);
    BY_16(o, m, n) {
        const uint8_t *row[16];
        for (int i = 0; i < m; i++)
            row[i] = w->data + (size_t)(out + o + i) * w->pitch;
        if (w->type == STORED_PACKED)
            widen_16_packed(w, out + o, m, dst + o);
        else if (w->type == STORED_BF16)
            widen_16(row, m, w->k, dst + o, TILE_OUT, STORED_BF16);
        else if (w->type == STORED_F16)
            widen_16(row, m, w->k, dst + o, TILE_OUT, STORED_F16);
        else
            widen_16(row, m, w->k, dst + o, TILE_OUT, STORED_F32);
    }
}

/* Vectors of a tile: [out][panel]. */
typedef v16 wide_sums[TILE_OUT][PANELS];

/* The sums of a tile so far: partial results, by the number of pairs in them. */
struct wide_held {
    wide_sums level[LEVELS];
};

/* A pair's sums over its first groups. */
struct wide_begun {
    wide_sums even, odd;
};

/* The groups of a pair that are read for all outputs before the next ones. */
struct wide_part {
    int groups, pair; /* pair: its number */
    bool first, last; /* of the pair */
    const float *next; /* the inputs that are read next, of as many groups, as far apart */
};

/* Adds a part to the sums of outputs out .. out + O - 1 for the rows of V panels, which are `apart`
 * floats apart, and behind the last part the pair's sums to the results. x and w: the part's inputs
 * and weights. */
V_FN void wide_block(const float *w, const float *x, size_t apart, const struct wide_part *part,
                     struct wide_begun *begun, struct wide_held *held, int out, const int O,
                     const int V)
{
    const int groups = part->groups;
    v16 even[WIDE_OUT * PANELS], odd[WIDE_OUT * PANELS];
    UNROLL
    for (int j = 0; j < O * V; j++) {
        even[j] = part->first ? v_zero() : begun->even[out + j / V][j % V];
        odd[j] = part->first ? v_zero() : begun->odd[out + j / V][j % V];
    }
    /* The next inputs are prefetched into the second cache by the first 2 V blocks, half a panel
     * each: otherwise the first block of a part waits for them, and the others read none. */
    const int turn = out / WIDE_OUT, step = turn < 2 * V ? PANEL : 0;
    const float *next = part->next;
    if (step)
        next += (size_t)(turn / 2) * apart + (size_t)(turn % 2 * groups * PANEL);
    w += out;
    for (int g = 0; g < groups; g++, w += 2 * TILE_OUT, x += 2 * PANEL, next += step) {
        __builtin_prefetch(next, 0, 2);
        v16 in[PANELS];
        UNROLL
        for (int p = 0; p < V; p++)
            in[p] = v_pinned(v_load(x + (size_t)p * apart));
        UNROLL
        for (int j = 0; j < O * V; j++)
            even[j] = v_fma(v_set(w[j / V]), in[j % V], even[j]);
        UNROLL
        for (int p = 0; p < V; p++)
            in[p] = v_pinned(v_load(x + (size_t)p * apart + PANEL));
        UNROLL
        for (int j = 0; j < O * V; j++)
            odd[j] = v_fma(v_set(w[TILE_OUT + j / V]), in[j % V], odd[j]);
    }
    if (!part->last) {
        UNROLL
        for (int j = 0; j < O * V; j++) {
            begun->even[out + j / V][j % V] = even[j];
            begun->odd[out + j / V][j % V] = odd[j];
        }
        return;
    }
    UNROLL
    for (int j = 0; j < O * V; j++)
        even[j] = v_add(even[j], odd[j]);
    wide_sums *to = held->level;
    for (int bits = part->pair; bits & 1; bits >>= 1, to++) { /* as a binary counter carries */
        UNROLL
        for (int j = 0; j < O * V; j++)
            even[j] = v_add((*to)[out + j / V][j % V], even[j]);
    }
    UNROLL
    for (int j = 0; j < O * V; j++)
        (*to)[out + j / V][j % V] = even[j];
}

/* wide_block() for n outputs: the part's inputs and weights stay in the first cache for all of
 * them. */
V_FN void wide_outputs(const float *w, const float *x, size_t apart, const struct wide_part *part,
                       struct wide_begun *begun, struct wide_held *held, int n, const int V)
{
    for (int o = 0, left; (left = n - o) > 0;) {
        if (left >= WIDE_OUT && left != WIDE_OUT + 2) {
            wide_block(w, x, apart, part, begun, held, o, WIDE_OUT, V);
            o += WIDE_OUT;
        } else if (WIDE_OUT > 4 && left >= 4) {
            wide_block(w, x, apart, part, begun, held, o, 4, V);
            o += 4;
        } else if (WIDE_OUT > 2 && left >= 2) {
            wide_block(w, x, apart, part, begun, held, o, 2, V);
            o += 2;
        } else {
            wide_block(w, x, apart, part, begun, held, o, 1, V);
            o++;
        }
    }
}

/* Adds pair i of the sums of n outputs and the rows of V panels, `apart` floats apart. w and x: the
 * pair's weights and inputs; next: the inputs that are read behind them. Behind the last pair
 * held->level[LEVELS - 1] has the products. */
V_FN void wide_pair(const float *w, const float *x, const float *next, int k, size_t apart, int i,
                    int n, struct wide_held *held, const int V)
{
    enum { MOST = 40 }; /* groups of a part: inputs and weights of 20 KB */
    const int all = k / 32, parts = (all + MOST - 1) / MOST;
    struct wide_begun begun;
    for (int p = 0, done = 0; p < parts; p++) {
        struct wide_part part = {(all - done) / (parts - p), i, p == 0, p == parts - 1, next};
        if (!part.last)
            part.next = x + part.groups * 2 * PANEL;
        wide_outputs(w, x, apart, &part, &begun, held, n, V);
        w += part.groups * 2 * TILE_OUT;
        x += part.groups * 2 * PANEL;
        done += part.groups;
    }
}

/* Stores the products of n outputs and panel i of `held` as rows. */
V_FN void store_rows(const struct wide_held *held, int i, int n, float *tile)
{
    for (int o = 0; o < n; o += 16) {
        v16 v[16];
        UNROLL
        for (int j = 0; j < 16; j++)
            v[j] = o + j < n ? held->level[LEVELS - 1][o + j][i] : v_zero();
        v_transpose(v);
        UNROLL
        for (int r = 0; r < PANEL; r++)
            v_store(tile + r * TILE_OUT + o, v[r]);
    }
}

/* All panels of a sweep are multiplied with a pair's weights before the next pair's are read, so
 * that a tile's weights are read once for all of them. The inputs are read in ascending order. */
static void multiply_wide(const float *w, int k, const float *x, int panels, int n, float *tile)
{
    struct wide_held held[SWEEP / PANELS];
    const size_t piece = (size_t)k / N_PAIRS * PANEL;
    for (int i = 0; i < N_PAIRS; i++, w += (size_t)k / N_PAIRS * TILE_OUT)
        for (int p = 0, m; p < panels; p += m, x += (size_t)m * piece) {
            m = panels - p < PANELS ? panels - p : PANELS;
            const float *next = x + (size_t)m * piece;
            if (m == PANELS)
                wide_pair(w, x, next, k, piece, i, n, &held[p / PANELS], PANELS);
            else
                wide_pair(w, x, next, k, piece, i, n, &held[p / PANELS], 1);
        }
    for (int p = 0; p < panels; p++)
        store_rows(&held[p / PANELS], p % PANELS, n, tile + p * PANEL * TILE_OUT);
}

/* ---- scores of many query heads: the lanes of a vector are keys ------------------------------ */

static void key_panels(const struct cpu_block *b, enum cpu_store type, int head_dim, float *panels)
{
    const size_t floats = (size_t)cpu_packed(head_dim) * PANEL;
    for (int j = 0; j < b->n; j += PANEL, panels += floats) {
        if (type == STORED_BF16)
            widen_16(b->k + j, b->n - j, head_dim, panels, PANEL, STORED_BF16);
        else
            widen_16(b->k + j, b->n - j, head_dim, panels, PANEL, STORED_F32);
    }
}

/* Stores the sums of n heads and V panels as the scores of keys from `at` on, of which `keys`
 * exist. */
V_FN void store_scores(const struct wide_held *held, int n, int keys, float *at, const int V)
{
    for (int g = 0; g < n; g++)
        for (int i = 0; i < V && i * PANEL < keys; i++) {
            float *to = at + g * ATTN_BLOCK + i * PANEL;
            v16 sum = held->level[LEVELS - 1][g][i];
            if (keys - i * PANEL >= PANEL)
                v_store(to, sum);
            else
                v_store_n(to, sum, keys - i * PANEL);
        }
}

/* The scores of n heads and the keys of V panels. */
V_FN void wide_scores(const float *q, int k, const float *panels, int n, struct wide_held *held,
                      const int V)
{
    const size_t piece = (size_t)k / N_PAIRS * PANEL;
    for (int i = 0; i < N_PAIRS; i++, q += (size_t)k / N_PAIRS * TILE_OUT, panels += piece)
        wide_pair(q, panels, panels + piece, k, (size_t)k * PANEL, i, n, held, V);
}

static void score_wide(const float *q, int head_dim, const float *panels, int first, int keys,
                       int n, float *p)
{
    const int k = cpu_packed(head_dim);
    struct wide_held held;
    for (int j = 0; j < keys; j += PANELS * PANEL) {
        const float *x = panels + (size_t)j * (size_t)k;
        if (keys - j > PANEL) {
            wide_scores(q, k, x, n, &held, PANELS);
            store_scores(&held, n, keys - j, p + first + j, PANELS);
        } else {
            wide_scores(q, k, x, n, &held, 1);
            store_scores(&held, n, keys - j, p + first + j, 1);
        }
    }
}
