/* math.h - the inner loops of the CPU backend, written once over vec.h.
 *
 * Included by scalar.c, avx2.c and avx512.c after they set CPU_ISA; defines the table CPU_TABLE.
 * The blocking of multiply() depends on CPU_ISA; the order of every sum does not.
 */
#include "kernels/cpu/unpack.h"

/* ---- norms and rows ------------------------------------------------------------------------- */

static float inverse_rms(const float *x, int n, const struct k_norm *norm)
{
    if (norm->kind == NORM_NONE)
        return 1;
    v16 a = v_zero(), b = v_zero();
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        v16 x0 = v_load(x + i), x1 = v_load(x + i + 16);
        a = v_fma(x0, x0, a);
        b = v_fma(x1, x1, b);
    }
    if (i + 16 <= n) {
        v16 x0 = v_load(x + i);
        a = v_fma(x0, x0, a);
        i += 16;
        if (i < n) {
            v16 x1 = v_load_n(x + i, n - i, 0);
            b = v_fma(x1, x1, b);
        }
    } else if (i < n) {
        v16 x0 = v_load_n(x + i, n - i, 0);
        a = v_fma(x0, x0, a);
    }
    return 1 / sqrtf(v_sum(v_add(a, b)) / (float)n + norm->eps);
}

/* Elements [i, i + n) of the normalised row, n <= 16, other lanes 0. */
V_FN v16 normalized(const float *x, int i, int n, const struct k_norm *norm, v16 inv)
{
    v16 y = n == 16 ? v_load(x + i) : v_load_n(x + i, n, 0);
    if (norm->kind == NORM_NONE)
        return y;
    y = v_mul(y, inv);
    if (norm->kind != NORM_PLAIN) {
        v16 w = v_weights(norm->w, (size_t)i, n);
        y = v_mul(y, norm->kind == NORM_RMS1P ? v_add(v_set(1), w) : w);
    }
    return n == 16 ? y : v_keep(y, n); /* lanes beyond the end may be 0 * inf = NaN */
}

/* Elements [i, i + n) of the row less its mean, n <= 16, other lanes 0. */
V_FN v16 centered(const float *x, int i, int n, v16 mean)
{
    return v_keep(v_sub(v_load_n(x + i, n, 0), mean), n);
}

static float row_mean(const float *x, int n)
{
    v16 sum = v_zero();
    BY_16(i, m, n)
        sum = v_add(sum, v_load_n(x + i, m, 0));
    return v_sum(sum) / (float)n;
}

static float inverse_deviation(const float *x, int n, v16 mean, float eps)
{
    v16 sum = v_zero();
    BY_16(i, m, n) {
        v16 y = centered(x, i, m, mean);
        sum = v_fma(y, y, sum);
    }
    return 1 / sqrtf(v_sum(sum) / (float)n + eps);
}

static void row_normalize(const float *x, int n, const struct k_norm *norm, bool add, float scale,
                          float *dst)
{
    bool layer = norm->kind == NORM_LAYER;
    v16 mean = v_set(layer ? row_mean(x, n) : 0);
    v16 inv = v_set(layer ? inverse_deviation(x, n, mean, norm->eps) : inverse_rms(x, n, norm));
    BY_16(i, m, n) {
        v16 y = layer ? v_mul(v_mul(centered(x, i, m, mean), inv),
                              v_weights(norm->w, (size_t)i, m))
                      : normalized(x, i, m, norm, inv);
        if (add)
            y = v_add(y, v_load_n(dst + i, m, 0));
        v_store_n(dst + i, v_mul(y, v_set(scale)), m);
    }
}

static void row_pack(const float *x, int n, const struct k_norm *norm, const struct tensor *factor,
                     float scale, float *dst)
{
    v16 inv = v_set(inverse_rms(x, n, norm));
    for (int i = 0; i < n; i += 32) {
        v16 y[2] = {v_zero(), v_zero()};
        for (int h = 0; h < 2; h++) {
            int at = i + 16 * h, m = n - at < 16 ? n - at : 16;
            if (m <= 0)
                break;
            y[h] = normalized(x, at, m, norm, inv);
            if (factor)
                y[h] = v_mul(y[h], v_weights(factor, (size_t)at, m));
            if (scale != 1)
                y[h] = v_mul(y[h], v_set(scale));
        }
        v16 even, odd;
        v_split(y[0], y[1], &even, &odd);
        v_store(dst + i, even);
        v_store(dst + i + 16, odd);
    }
}

static void row_unpack(const float *packed, int n, float scale, float *dst)
{
    for (int i = 0; i < n; i += 32) {
        v16 a, b, s = v_set(scale);
        v_join(v_mul(v_load(packed + i), s), v_mul(v_load(packed + i + 16), s), &a, &b);
        v_store_n(dst + i, a, n - i < 16 ? n - i : 16);
        if (n - i > 16)
            v_store_n(dst + i + 16, b, n - i < 32 ? n - i - 16 : 16);
    }
}

static void row_widen(const struct tensor *t, size_t at, int n, float scale, float *dst)
{
    if (dtype_packed(t->type)) {
        const uint8_t *b = (const uint8_t *)t->data + dtype_bytes(t->type, at);
        for (int i = 0, m; i < n; i += m, b += dtype_bytes(t->type, (size_t)m)) {
            _Alignas(64) float chunk[PACKED_BLOCK];
            m = n - i < PACKED_BLOCK ? n - i : PACKED_BLOCK;
            unpacking(t->type).unpack(t->type, b, m / 32, chunk);
            row_unpack(chunk, m, scale, dst + i);
        }
        return;
    }
    BY_16(i, m, n)
        v_store_n(dst + i, v_mul(v_weights(t, at + (size_t)i, m), v_set(scale)), m);
}

static void row_scale(float *x, int n, float s)
{
    BY_16(i, m, n)
        v_store_n(x + i, v_mul(v_load_n(x + i, m, 0), v_set(s)), m);
}

static void row_axpy(float w, const float *src, int n, bool first, float *dst)
{
    BY_16(i, m, n) {
        v16 y = first ? v_zero() : v_load_n(dst + i, m, 0);
        v_store_n(dst + i, v_fma(v_set(w), v_load_n(src + i, m, 0), y), m);
    }
}

static void row_mix(float wa, float *a, float wb, const float *b, int n)
{
    BY_16(i, m, n) {
        v16 y = v_mul(v_set(wb), v_load_n(b + i, m, 0));
        v_store_n(a + i, v_fma(v_set(wa), v_load_n(a + i, m, 0), y), m);
    }
}

static void row_rotate(float *head, int rot, const float *cs)
{
    int half = rot / 2;
    BY_16(i, m, half) {
        v16 c, s, x = v_load_n(head + i, m, 0), y = v_load_n(head + half + i, m, 0);
        int m0 = 2 * m < 16 ? 2 * m : 16, m1 = 2 * m - m0;
        v_split(v_load_n(cs + 2 * i, m0, 0),
                m1 ? v_load_n(cs + 2 * i + 16, m1, 0) : v_zero(), &c, &s);
        v16 minus = v_sub(v_zero(), s);
        v_store_n(head + i, v_fma(x, c, v_mul(y, minus)), m);
        v_store_n(head + half + i, v_fma(y, c, v_mul(x, s)), m);
    }
}

static void row_to_bf16(const float *src, int n, uint16_t *dst)
{
    BY_16(i, m, n) {
        uint16_t h[16];
        v_to_bf16(v_load_n(src + i, m, 0), h);
        memcpy(dst + i, h, (size_t)m * sizeof *h);
    }
}

static float one_exp(float x)
{
    float out[16];
    v_store(out, v_exp(v_set(x)));
    return out[0];
}

/* ---- products ------------------------------------------------------------------------------- */

/* E8M0: 2^(s - 127); 255 is NaN (OCP MX). */
V_FN float e8m0(uint8_t s)
{
    union { uint32_t u; float f; } x;
    x.u = s == 255 ? 0x7fc00000u : s ? (uint32_t)s << 23 : 0x00400000u;
    return x.f;
}

/* Register blocking: block() computes O outputs of R rows. Each weight is loaded and converted once
 * for R rows, each input is loaded once for O outputs, and the 32 running sums of every result stay
 * in registers. MAX_R is the largest R, OUT_r the O for r rows. */
#if CPU_ISA == 2
enum { MAX_R = 6, OUT_1 = 4, OUT_2 = 4, OUT_3 = 3, OUT_4 = 2, OUT_5 = 2, OUT_6 = 2 };
#define EACH_R(X, ...)                                                                             \
    X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__)      \
    X(6, __VA_ARGS__)
#else
enum { MAX_R = 3, OUT_1 = 2, OUT_2 = 1, OUT_3 = 1 };
#define EACH_R(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__)
#endif
#define NAME_OF(R, name) name##_##R,
/* Which line of weights to prefetch while a block of outputs reads line `at` of the block, counted
 * in the order in which the block reads: the weight rows of a tile are contiguous, so the lines of
 * the next block follow in memory, and prefetching them in ascending order is one sequential
 * stream, AHEAD bytes ahead at least. In a mapped file each 4 KB need an address translation of
 * their own, which takes longer than that: lines for the first cache are prefetched into the second
 * one before, FURTHER bytes more ahead. (Of MXFP4, and of packed weights, that costs more than it
 * saves.) */
enum { AHEAD = 4096, FURTHER = 12288 };

/* The sums of O outputs and R rows, [o * R + r]. */
V_FN void store_sums(const v16 *even, const v16 *odd, float *tile, const int O, const int R)
{
    UNROLL
    for (int i = 0; i < O * R; i += 4) {
        v16 sum[4];
        float four[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            sum[j] = i + j < O * R ? v_add(even[i + j], odd[i + j]) : v_zero();
        v_sum4(sum[0], sum[1], sum[2], sum[3], four);
        UNROLL
        for (int j = 0; j < 4; j++)
            if (i + j < O * R)
                tile[(i + j) % R * TILE_OUT + (i + j) / R] = four[j];
    }
}

/* far: see prefetch() */
V_FN void block_sums(const struct cpu_mat *w, const float *const *x, int out, size_t ahead,
                     v16 *even, v16 *odd, const enum cpu_store type, const int O, const int R,
                     const bool far)
{
    const int size = type == STORED_F32 ? 4 : 2, n32 = w->k / 32, tail = w->k % 32;
    const int step = type == STORED_MXFP4 ? 16 : 32 * size;
    const uint8_t *p = w->data + (size_t)out * w->pitch, *next = p + ahead;
    const uint8_t *s = type == STORED_MXFP4 ? w->scale + (size_t)out * w->scale_pitch : NULL;
    for (int c = 0; c < n32 + (tail > 0); c++) {
        v16 we[4], wo[4];
        UNROLL
        for (int o = 0; o < O; o++) {
            const uint8_t *at = p + (size_t)o * w->pitch + (size_t)c * (size_t)step;
            const uint8_t *line = next + ((size_t)c * (size_t)O + (size_t)o) * (size_t)step;
            prefetch(line, far);
            if (!far && type != STORED_MXFP4)
                prefetch(line + FURTHER, true);
            if (type == STORED_MXFP4)
                v_split_mxfp4(at, e8m0(s[(size_t)o * w->scale_pitch + (size_t)c]), &we[o], &wo[o]);
            else if (c < n32)
                v_split_any(at, type, &we[o], &wo[o]);
            else
                v_split_tail(at, type, tail, &we[o], &wo[o]);
        }
        UNROLL
        for (int r = 0; r < R; r++) {
            v16 in = v_pinned(v_load(x[r] + 32 * c));
            UNROLL
            for (int o = 0; o < O; o++)
                even[o * R + r] = v_fma(we[o], in, even[o * R + r]);
            in = v_pinned(v_load(x[r] + 32 * c + 16));
            UNROLL
            for (int o = 0; o < O; o++)
                odd[o * R + r] = v_fma(wo[o], in, odd[o * R + r]);
        }
    }
}

V_FN void block(const struct cpu_mat *w, const float *const *x, int out, float *tile,
                const enum cpu_store type, const int O, const int R)
{
    v16 even[24], odd[24];
    const size_t all = (size_t)O * w->pitch, ahead = all > AHEAD ? all : AHEAD;
    UNROLL
    for (int i = 0; i < O * R; i++)
        even[i] = odd[i] = v_zero();
    if (prefetch_far(w->k, R, ahead))
        block_sums(w, x, out, ahead, even, odd, type, O, R, true);
    else
        block_sums(w, x, out, ahead, even, odd, type, O, R, false);
    store_sums(even, odd, tile, O, R);
}

#define ROWS(R, type)                                                                              \
    static void rows_##type##_##R(const struct cpu_mat *w, const float *const *x, int out, int n,  \
                                  float *tile)                                                     \
    {                                                                                              \
        int o = 0;                                                                                 \
        for (; o + OUT_##R <= n; o += OUT_##R)                                                     \
            block(w, x, out + o, tile + o, STORED_##type, OUT_##R, R);                             \
        for (; OUT_##R > 1 && o < n; o++)                                                          \
            block(w, x, out + o, tile + o, STORED_##type, 1, R);                                   \
    }
EACH_R(ROWS, BF16)
EACH_R(ROWS, F16)
EACH_R(ROWS, F32)
EACH_R(ROWS, MXFP4)

/* ---- products of packed weights -------------------------------------------------------------- */

/* Chunks of PACKED_OUT rows of weights are unpacked into the first cache, once for all input rows,
 * which are multiplied with them up to MAX_R at a time. The sums wait in memory meanwhile. */
enum { PACKED_OUT = CPU_ISA == 2 ? 2 : 1 };
typedef float packed_chunk[PACKED_OUT][PACKED_BLOCK];
typedef v16 packed_sums[TILE_ROWS * PACKED_OUT]; /* [row][output] */

V_FN void packed_part(packed_chunk chunk, int groups, const float *const *x, int at, v16 *even_sum,
                      v16 *odd_sum, const int R)
{
    v16 even[MAX_R * PACKED_OUT], odd[MAX_R * PACKED_OUT];
    UNROLL
    for (int i = 0; i < R * PACKED_OUT; i++)
        even[i] = even_sum[i], odd[i] = odd_sum[i];
    for (int g = 0; g < groups; g++) {
        v16 we[PACKED_OUT], wo[PACKED_OUT];
        UNROLL
        for (int o = 0; o < PACKED_OUT; o++) {
            we[o] = v_pinned(v_load(chunk[o] + 32 * g));
            wo[o] = v_pinned(v_load(chunk[o] + 32 * g + 16));
        }
        UNROLL
        for (int r = 0; r < R; r++) {
            v16 in = v_pinned(v_load(x[r] + at + 32 * g));
            UNROLL
            for (int o = 0; o < PACKED_OUT; o++)
                even[r * PACKED_OUT + o] = v_fma(we[o], in, even[r * PACKED_OUT + o]);
            in = v_pinned(v_load(x[r] + at + 32 * g + 16));
            UNROLL
            for (int o = 0; o < PACKED_OUT; o++)
                odd[r * PACKED_OUT + o] = v_fma(wo[o], in, odd[r * PACKED_OUT + o]);
        }
    }
    UNROLL
    for (int i = 0; i < R * PACKED_OUT; i++)
        even_sum[i] = even[i], odd_sum[i] = odd[i];
}

#define PART(R, _)                                                                                 \
    static void part_##R(packed_chunk chunk, int groups, const float *const *x, int at, v16 *even, \
                         v16 *odd)                                                                 \
    {                                                                                              \
        packed_part(chunk, groups, x, at, even, odd, R);                                           \
    }
EACH_R(PART, _)

static void packed_parts(packed_chunk chunk, int groups, const float *const *x, int at, v16 *even,
                         v16 *odd, int rows)
{
    typedef void part_fn(packed_chunk, int, const float *const *, int, v16 *, v16 *);
    static part_fn *const part[MAX_R] = {EACH_R(NAME_OF, part)};
    for (int r = 0, blocks = (rows + MAX_R - 1) / MAX_R; blocks; blocks--) {
        int m = (rows - r + blocks - 1) / blocks;
        part[m - 1](chunk, groups, x + r, at, even + r * PACKED_OUT, odd + r * PACKED_OUT);
        r += m;
    }
}

static void multiply_packed(const struct cpu_mat *w, unpack_fn *unpack, const float *const *x,
                            int rows, int out, int n, float *tile)
{
    const size_t step = dtype_bytes(w->packed, PACKED_BLOCK);
    for (int o = 0; o < n; o += PACKED_OUT) {
        packed_sums even, odd;
        const uint8_t *p = w->data + (size_t)(out + o) * w->pitch;
        const int outs = n - o < PACKED_OUT ? n - o : PACKED_OUT;
        for (int i = 0; i < rows * PACKED_OUT; i++)
            even[i] = odd[i] = v_zero();
        for (int at = 0; at < w->k; at += PACKED_BLOCK, p += step) {
            _Alignas(64) packed_chunk chunk;
            const int left = (w->k - at) / 32, groups = left < 8 ? left : 8;
            for (int i = 0; i < PACKED_OUT; i++) /* the last row twice where one is missing */
                unpack(w->packed, p + (i < outs ? (size_t)i * w->pitch : 0), groups, chunk[i]);
            packed_parts(chunk, groups, x, at, even, odd, rows);
        }
        for (int i = 0; i < rows * PACKED_OUT; i += 4) {
            v16 sum[4];
            float four[4];
            for (int j = 0; j < 4; j++)
                sum[j] = i + j < rows * PACKED_OUT ? v_add(even[i + j], odd[i + j]) : v_zero();
            v_sum4(sum[0], sum[1], sum[2], sum[3], four);
            for (int j = 0; j < 4 && i + j < rows * PACKED_OUT; j++)
                if ((i + j) % PACKED_OUT < outs)
                    tile[(i + j) / PACKED_OUT * TILE_OUT + o + (i + j) % PACKED_OUT] = four[j];
        }
    }
}

static void multiply(const struct cpu_mat *w, const float *const *x, int rows, int out, int n,
                     float *tile)
{
    typedef void rows_fn(const struct cpu_mat *, const float *const *, int, int, float *);
    static rows_fn *const by_rows[N_STORED][MAX_R] = {
        [STORED_BF16] = {EACH_R(NAME_OF, rows_BF16)}, [STORED_F16] = {EACH_R(NAME_OF, rows_F16)},
        [STORED_F32] = {EACH_R(NAME_OF, rows_F32)}, [STORED_MXFP4] = {EACH_R(NAME_OF, rows_MXFP4)},
    };
    if (w->type == STORED_PACKED) {
        struct unpacking f = unpacking(w->packed);
        if (!f.dot || rows > 2 * DOT_ROWS)
            multiply_packed(w, f.unpack, x, rows, out, n, tile);
        else
            for (int r = 0; r < rows; r += DOT_ROWS)
                f.dot(w, x + r, rows - r < DOT_ROWS ? rows - r : DOT_ROWS, out, n,
                      tile + r * TILE_OUT);
        return;
    }
    for (int r = 0, blocks = (rows + MAX_R - 1) / MAX_R; blocks; blocks--) {
        int m = (rows - r + blocks - 1) / blocks; /* blocks of equal size: 7 = 4 + 3, not 6 + 1 */
        by_rows[w->type][m - 1](w, x + r, out, n, tile + r * TILE_OUT);
        r += m;
    }
}

#include "kernels/cpu/wide.h"

/* ---- the epilogue of a product --------------------------------------------------------------- */

static void epilogue(const struct cpu_epilogue *f, const float *tile, int rows, int n)
{
    for (int r = 0; r < rows; r++) {
        float *dst = f->dst + (size_t)r * f->dst_stride;
        BY_16(i, m, n) {
            v16 y = v_load_n(tile + r * TILE_OUT + i, m, 0);
            if (f->b)
                y = v_add(y, v_weights(f->b, f->b_at + (size_t)i, m));
            y = v_act(y, f->act);
            if (f->softcap > 0)
                y = v_softcap(y, f->softcap);
            if (f->scale != 1)
                y = v_mul(y, v_set(f->scale));
            if (f->mul)
                y = v_mul(y, v_load_n(f->mul + (size_t)r * f->mul_stride + i, m, 0));
            if (f->add)
                y = v_add(y, v_load_n(dst + i, m, 0));
            v_store_n(dst + i, y, m);
        }
    }
}

static void row_gate(const float *g, const float *u, int n, enum act_kind act, float limit,
                     float *dst)
{
    BY_16(i, m, n) {
        v16 a = v_load_n(g + i, m, 0), b = v_load_n(u + i, m, 0);
        if (act == ACT_SWIGLU_CLAMP) {
            v16 hi = v_set(limit), lo = v_set(-limit);
            a = v_min(hi, a); /* this order of operands keeps NaN */
            b = v_max(lo, v_min(hi, b));
            a = v_mul(a, v_sigmoid(v_mul(v_set(1.702f), a)));
            b = v_add(b, v_set(1));
        } else if (act == ACT_SILU_CLAMP) {
            a = v_min(v_set(limit), v_act(a, ACT_SILU));
            b = v_max(v_set(-limit), v_min(v_set(limit), b));
        } else {
            a = v_act(a, act);
        }
        v_store_n(dst + i, v_mul(a, b), m);
    }
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Unscaled scores of n <= 4 keys for H heads: score[g * ATTN_BLOCK + j] = q[g] . k[j]. If n < 4,
 * the first key is read in place of the others and its results are dropped. */
V_FN void score_4(const struct cpu_heads *h, const uint8_t *const *k, int n, const float *q,
                  float *score, const enum cpu_store type, const int H)
{
    const int size = type == STORED_F32 ? 4 : 2, packed = cpu_packed(h->head_dim);
    const int n32 = h->head_dim / 32, tail = h->head_dim % 32;
    v16 even[16], odd[16];
    UNROLL
    for (int i = 0; i < 4 * H; i++)
        even[i] = odd[i] = v_zero();
    const uint8_t *key[4] = {k[0], k[n > 1 ? 1 : 0], k[n > 2 ? 2 : 0], k[n > 3 ? 3 : 0]};
    for (int c = 0; c < n32 + (tail > 0); c++) {
        v16 qe[2], qo[2];
        UNROLL
        for (int g = 0; g < H; g++) {
            qe[g] = v_pinned(v_load(q + g * packed + 32 * c));
            qo[g] = v_pinned(v_load(q + g * packed + 32 * c + 16));
        }
        UNROLL
        for (int j = 0; j < 4; j++) {
            v16 ke, ko;
            const uint8_t *at = key[j] + (size_t)c * 32 * (size_t)size;
            if (c < n32)
                v_load_cell(at, type, &ke, &ko);
            else
                v_load_cell_tail(at, type, tail, &ke, &ko);
            UNROLL
            for (int g = 0; g < H; g++) {
                even[g * 4 + j] = v_fma(ke, qe[g], even[g * 4 + j]);
                odd[g * 4 + j] = v_fma(ko, qo[g], odd[g * 4 + j]);
            }
        }
    }
    UNROLL
    for (int g = 0; g < H; g++) {
        v16 sum[4];
        float four[4];
        UNROLL
        for (int j = 0; j < 4; j++) {
            if (type == STORED_F32)
                v_split(even[g * 4 + j], odd[g * 4 + j], &even[g * 4 + j], &odd[g * 4 + j]);
            sum[j] = v_add(even[g * 4 + j], odd[g * 4 + j]);
        }
        v_sum4(sum[0], sum[1], sum[2], sum[3], four);
        for (int j = 0; j < n && j < 4; j++)
            score[g * ATTN_BLOCK + j] = four[j];
    }
}

V_FN void scores(const struct cpu_heads *h, const struct cpu_block *b, const enum cpu_store type)
{
    int packed = cpu_packed(h->head_dim);
    for (int g = 0; g < h->n; g += 2) {
        float *score = h->p + g * ATTN_BLOCK + b->first;
        for (int j = 0; j < b->n; j += 4) {
            if (g + 1 < h->n)
                score_4(h, b->k + j, b->n - j, h->q + g * packed, score + j, type, 2);
            else
                score_4(h, b->k + j, b->n - j, h->q + g * packed, score + j, type, 1);
        }
    }
}

static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Online softmax of one head over one block: replaces the scores p by exp(score - m), updates the
 * running maximum m and sum l, and returns the factor for earlier results, exp(old m - new m).
 * Lanes outside of the visible keys become 0. */
static float softmax_block(const struct cpu_heads *h, const struct cpu_block *b, float *p, float *m,
                           float *l)
{
    v16 s[4], max = v_set(*m), none = v_set(-INFINITY), lane = v_load(lanes);
    for (int i = 0; i < 4; i++) {
        s[i] = v_mul(v_load(p + 16 * i), v_set(h->scale));
        if (h->softcap > 0)
            s[i] = v_softcap(s[i], h->softcap);
        if (b->n < ATTN_BLOCK) {
            s[i] = v_if_less(lane, v_set((float)(b->first - 16 * i)), none, s[i]);
            s[i] = v_if_less(lane, v_set((float)(b->first + b->n - 16 * i)), s[i], none);
        }
        max = v_max(s[i], max);
    }
    float now = v_max_lane(max), past = one_exp(*m - now);
    for (int i = 0; i < 4; i++) {
        s[i] = v_exp(v_sub(s[i], v_set(now)));
        v_store(p + 16 * i, s[i]);
    }
    float sum = v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
    *l = *l * past + sum;
    *m = now;
    return past;
}

/* acc[g] = acc[g] * past[g] + the sum over the keys, in order, of p[g][j] v[j], for H heads and 32
 * C dimensions from dimension d on. C is 1 if fewer than 32 dimensions are left. */
V_FN void add_values(const struct cpu_heads *h, const struct cpu_block *b, const float *p,
                 const float *past, float *acc, int d, const enum cpu_store type, const int H,
                 const int C)
{
    const int size = type == STORED_F32 ? 4 : 2, packed = cpu_packed(h->head_dim);
    int left = h->head_dim - d;
    v16 even[8], odd[8];
    UNROLL
    for (int i = 0; i < H * C; i++) {
        const float *at = acc + i / C * packed + d + i % C * 32;
        even[i] = v_mul(v_load(at), v_set(past[i / C]));
        odd[i] = v_mul(v_load(at + 16), v_set(past[i / C]));
    }
    for (int j = 0; j < b->n; j++) {
        v16 ve[2], vo[2];
        UNROLL
        for (int c = 0; c < C; c++) {
            const uint8_t *at = b->v[j] + (size_t)(d + 32 * c) * (size_t)size;
            if (left >= 32)
                v_load_cell(at, type, &ve[c], &vo[c]);
            else
                v_load_cell_tail(at, type, left, &ve[c], &vo[c]);
        }
        UNROLL
        for (int g = 0; g < H; g++) {
            v16 w = v_set(p[g * ATTN_BLOCK + b->first + j]);
            UNROLL
            for (int c = 0; c < C; c++) {
                even[g * C + c] = v_fma(w, ve[c], even[g * C + c]);
                odd[g * C + c] = v_fma(w, vo[c], odd[g * C + c]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < H * C; i++) {
        float *at = acc + i / C * packed + d + i % C * 32;
        v_store(at, even[i]);
        v_store(at + 16, odd[i]);
    }
}

V_FN void add_all_values(const struct cpu_heads *h, const struct cpu_block *b, const float *p,
                         const float *past, float *acc, int d, int to, const enum cpu_store type,
                         const int H)
{
    for (; d + 64 <= to; d += 64)
        add_values(h, b, p, past, acc, d, type, H, 2);
    for (; d < to; d += 32)
        add_values(h, b, p, past, acc, d, type, H, 1);
}

V_FN void weigh_as(const struct cpu_heads *h, const struct cpu_block *b, struct cpu_softmax *s,
                   int from, int to, const enum cpu_store type)
{
    int packed = cpu_packed(h->head_dim);
    for (int g = 0; g < h->n; g += 4) {
        float past[4];
        int n = h->n - g < 4 ? h->n - g : 4;
        float *p = h->p + g * ATTN_BLOCK, *acc = s->acc + g * packed;
        for (int i = 0; i < n; i++)
            past[i] = softmax_block(h, b, p + i * ATTN_BLOCK, &s->m[g + i], &s->l[g + i]);
        if (n == 4)
            add_all_values(h, b, p, past, acc, from, to, type, 4);
        else if (n == 3)
            add_all_values(h, b, p, past, acc, from, to, type, 3);
        else if (n == 2)
            add_all_values(h, b, p, past, acc, from, to, type, 2);
        else
            add_all_values(h, b, p, past, acc, from, to, type, 1);
    }
}

static void score(const struct cpu_heads *h, const struct cpu_block *b)
{
    if (h->type == STORED_BF16)
        scores(h, b, STORED_BF16);
    else
        scores(h, b, STORED_F32);
}

static void weigh(const struct cpu_heads *h, const struct cpu_block *b, struct cpu_softmax *s,
                  int from, int to)
{
    if (h->type == STORED_BF16)
        weigh_as(h, b, s, from, to, STORED_BF16);
    else
        weigh_as(h, b, s, from, to, STORED_F32);
}

static void combine(const struct cpu_softmax *a, const struct cpu_softmax *b, int n, int packed)
{
    for (int g = 0; g < n; g++) {
        float m = a->m[g] > b->m[g] ? a->m[g] : b->m[g];
        float wa = one_exp(a->m[g] - m), wb = one_exp(b->m[g] - m);
        a->m[g] = m;
        a->l[g] = a->l[g] * wa + b->l[g] * wb;
        row_mix(wa, a->acc + g * packed, wb, b->acc + g * packed, packed);
    }
}

/* ---- sampling ------------------------------------------------------------------------------- */

/* Elements [i, i + n); -inf for masked elements and for lanes beyond n. */
V_FN v16 candidates(const float *x, const uint8_t *mask, int i, int n)
{
    v16 v = n == 16 ? v_load(x + i) : v_load_n(x + i, n, -INFINITY);
    if (!mask)
        return v;
    if (n == 16)
        return v_ban(v, mask + i);
    uint8_t tail[16] = {0};
    memcpy(tail, mask + i, (size_t)n);
    return v_ban(v, tail);
}

static float row_max(const float *x, const uint8_t *mask, int n, bool *invalid)
{
    v16 max = v_set(-INFINITY), inf = v_set(INFINITY);
    unsigned bad = 0;
    BY_16(i, m, n) {
        bad |= v_not_below(candidates(x, NULL, i, m), inf);
        max = v_max(candidates(x, mask, i, m), max);
    }
    *invalid = bad != 0;
    return v_max_lane(max);
}

/* The sum of exp((x - max) / t). Terms are float32; each 512 of them are summed in 32 float32 sums,
 * and those results in double precision. */
static double row_sum_exp(const float *x, const uint8_t *mask, int n, float max, float t, float *w)
{
    double total = 0;
    for (int from = 0; from < n; from += 512) {
        int to = n - from < 512 ? n : from + 512;
        v16 sum[2] = {v_zero(), v_zero()};
        for (int i = from; i < to; i += 16) {
            int m = to - i < 16 ? to - i : 16;
            v16 y = v_sub(candidates(x, mask, i, m), v_set(max));
            if (t != 1)
                y = v_div(y, v_set(t));
            y = v_exp(y);
            if (w)
                v_store_n(w + i, y, m);
            sum[i / 16 % 2] = v_add(sum[i / 16 % 2], y);
        }
        total += (double)v_sum(v_add(sum[0], sum[1]));
    }
    return total;
}

static int row_find(const float *x, int from, int n, float least)
{
    v16 bar = v_set(least);
    int i = from;
    for (; i + 16 <= n; i += 16) {
        unsigned hit = v_at_least(v_load(x + i), bar);
        if (hit)
            return i + __builtin_ctz(hit);
    }
    for (; i < n; i++)
        if (x[i] >= least)
            return i;
    return n;
}

const struct cpu_isa CPU_TABLE = {
    .name = CPU_NAME, .title = CPU_TITLE,
    .normalize = row_normalize, .pack = row_pack, .widen = row_widen, .scale = row_scale,
    .axpy = row_axpy, .multiply = multiply, .panel = row_panel, .widen_tile = widen_tile,
    .multiply_wide = multiply_wide, .epilogue = epilogue, .gate = row_gate,
    .rotate = row_rotate, .to_bf16 = row_to_bf16, .score = score, .weigh = weigh,
    .key_panels = key_panels, .score_wide = score_wide, .combine = combine,
    .unpack = row_unpack, .mix = row_mix,
    .exp = one_exp, .max = row_max, .sum_exp = row_sum_exp, .find = row_find,
};
