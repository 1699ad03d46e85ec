/* decode_epilogue.cuh - the epilogue of the decode kernel: the partial sums of a unit's k splits
 * are reduced, and each lane finishes one output of a row, which may be an element of a head (norm,
 * rope, store to the pool).
 *
 * What a lane needs for its output (struct lane_output) is loaded before the unit is multiplied.
 */
#pragma once

#include "kernels/cuda/dense/decode_blocks.cuh"

#ifdef __CUDACC__

/* ---- a lane's output ------------------------------------------------------------------------ */

/* A lane's output of a unit, for row `row` and every K_SPLITS-th row after it, with the values that
 * its epilogue needs, as loaded. */
struct lane_output {
    int row, mat, o; /* o -1: no output; all lanes of a warp have the same row */
    int bias_type;   /* -1: no bias */
    uint32_t bias;
    bool bare; /* the epilogue has only bias and addition */
    bool add;
    float *dst; /* address of the output in row 0 */
    size_t stride;
    float old;      /* the old value, if the product has one row */
    int n;          /* rows of the output's panel */
    int h, i, slot; /* element i of head h */
    uint32_t w;
    float2 rope; /* cosine, sine */
};

__device__ __forceinline__ const struct norm &norm_of(const heads &a, int mat)
{
    return mat == HEAD_Q ? a.q_norm : mat == HEAD_K ? a.k_norm : a.v_norm;
}

/* Whether the kernel finishes the heads that it computes: with resident rows. */
static constexpr inline __host__ __device__ bool fuses_heads(int kind, int rows)
{
    return kind == UNIT_JOINED && is_resident(rows);
}

/* Sets s to output `o` of the unit. */
template <int KIND>
__device__ __forceinline__ void find_output(const product &p, const decode_args &f,
                                            const unit_iter &at, int o, lane_output &s)
{
    const struct unit_set &d = f.set[at.set];
    int row = o, j = 0;
    if (KIND == UNIT_JOINED) {
        const struct output of = {d.output[min(o, JOINED_MAX - 1)]};
        row = of.row(), j = of.part();
    }
    if (KIND == UNIT_DOUBLE)
        row = o % 32, j = o / 32;
    const struct unit_part &a = d.part[j];
    const bool none = (KIND == UNIT_JOINED ? o >= d.rows : row >= d.part[0].rows) ||
                      (KIND == UNIT_DOUBLE && 2 * at.unit + j > a.times);
    s.mat = a.mat, s.n = a.rows;
    s.o = at.panel<KIND>(a) * a.rows + row;
    if (none || s.row >= p.rows || s.o >= p.m[s.mat].n)
        s.o = -1;
}

/* Loads what does not depend on the previous kernel. */
template <int KIND, int ROWS>
__device__ __forceinline__ lane_output lane_output_of(const product &p, const decode_args &f,
                                                      const unit_iter &at, int row, int o)
{
    lane_output s = {};
    s.row = row, s.bias_type = -1;
    find_output<KIND>(p, f, at, o, s);
    const epilogue &fin = p.f[s.mat];
    s.bare = fin.act == ACT_NONE && !(fin.softcap > 0) && fin.scale == 1 && !fin.mul;
    s.add = fin.add, s.stride = fin.dst_stride, s.dst = fin.dst + s.o;
    if (fin.b.p && KIND != UNIT_GATED) {
        s.bias_type = fin.b.type;
        if (s.o >= 0)
            s.bias = raw_at(fin.b, s.o);
    }
    if (!fuses_heads(KIND, ROWS))
        return s;
    const heads &a = p.row_epilogue.heads;
    s.h = s.o >> f.head_shift, s.i = s.o & (a.head_dim - 1);
    const struct norm &norm = norm_of(a, s.mat);
    if (s.o >= 0 && norm.w.p)
        s.w = raw_at(norm.w, s.i);
    return s;
}

/* Loads the rest, after the wait. */
template <int KIND, int ROWS>
__device__ __forceinline__ void fetch_lane_output(const product &p, lane_output &s)
{
    if ((KIND == UNIT_PLAIN || KIND == UNIT_DOUBLE) && s.o >= 0 && s.add && p.rows == 1)
        s.old = __ldcg(s.dst);
    if (!fuses_heads(KIND, ROWS) || s.o < 0)
        return;
    const heads &a = p.row_epilogue.heads;
    if (s.mat != HEAD_V && a.rot)
        s.rope = __ldcg((const float2 *)(a.cs + (size_t)s.row * (size_t)a.rot) +
                        (s.i & (a.head_dim / 2 - 1)));
    if (s.mat != HEAD_Q)
        s.slot = __ldcg(a.write + s.row);
}

/* Stores element i of packed row r. */
__device__ __forceinline__ void put_term(const product &p, float y, int r, int i)
{
    const int terms = p.x.terms;
    for (int t = 0; t < terms; t++) {
        const bf16 term = rounded_to<bf16>(y);
        *packed_at(p.pack_as, p.pack_to, r * terms + t, i) = bits_of(term);
        y = rest_after(y, float_of(term));
    }
}

/* 1 / rms of heads whose panels belong to several blocks, all of which are resident. Each block has
 * a list in global memory for each of its units and rows, with one word for each panel of the head.
 * A block that has a panel publish()es the panel's sum of squares in all lists; the reader of a
 * list sets its words to 0 again. The order of summation is that of head_sum(). */

/* The list of unit j of a head, for a row. */
__device__ __forceinline__ unsigned *head_list(const product &p, const decode_args &f, int mat,
                                               int h, int row, int j)
{
    const int half = f.half[mat];
    return p.row_epilogue.counters + f.lists[mat] + ((h * half + j) * p.rows + row) * 2 * half;
}

/* The unit, among those of half a head, that has the output. */
__device__ __forceinline__ int unit_of_head(const heads &a, const lane_output &s)
{
    return (s.i & (a.head_dim / 2 - 1)) / s.n;
}

__device__ __forceinline__ void publish_squares(const product &p, const decode_args &f,
                                                const lane_output &s, float y)
{
    const heads &a = p.row_epilogue.heads;
    const int lane = (int)threadIdx.x % 32, half = f.half[s.mat];
    const int panel = unit_of_head(a, s) + (s.i < a.head_dim / 2 ? 0 : half);
    float ss = s.o >= 0 ? y * y : 0.f;
    for (int d = 1; d < s.n; d *= 2)
        ss += __shfl_xor_sync(~0u, ss, d);
    if (s.o < 0 || norm_of(a, s.mat).kind == NORM_NONE)
        return;
    for (int to = lane & (s.n - 1); to < half; to += s.n)
        publish(head_list(p, f, s.mat, s.h, s.row, to) + panel, __float_as_uint(ss));
}

/* 1 / rms of the head of lane `of`; called by the whole warp. */
__device__ __forceinline__ float head_rms_of_lane(const product &p, const decode_args &f,
                                                  const lane_output &s, int of)
{
    const heads &a = p.row_epilogue.heads;
    const int lane = (int)threadIdx.x % 32, mat = __shfl_sync(~0u, s.mat, of);
    const int h = __shfl_sync(~0u, s.h, of), j = __shfl_sync(~0u, unit_of_head(a, s), of);
    const int panels = 2 * f.half[mat];
    const struct norm &norm = norm_of(a, mat);
    if (norm.kind == NORM_NONE)
        return 1;
    unsigned *own = head_list(p, f, mat, h, s.row, j) + (lane & (panels - 1)), v;
    do
        v = poll(own);
    while (WAITS && !__all_sync(~0u, v != 0));
    if (lane < panels)
        *own = 0;
    float ss = __uint_as_float(~v);
    for (int d = 1; d < panels; d *= 2)
        ss += __shfl_xor_sync(~0u, ss, d);
    return 1 / sqrtf(ss / (float)a.head_dim + norm.eps);
}

/* 1 / rms of the lane's own head; a warp's lanes belong to one head or two. */
__device__ __forceinline__ float own_head_rms(const product &p, const decode_args &f,
                                              const lane_output &s, float y)
{
    const int lane = (int)threadIdx.x % 32, span = 2 * __shfl_sync(~0u, s.n, 0);
    publish_squares(p, f, s, y);
    float inv = head_rms_of_lane(p, f, s, 0);
    if (__any_sync(~0u, s.o >= 0 && lane >= span)) {
        const float other = head_rms_of_lane(p, f, s, span);
        inv = lane < span ? inv : other;
    }
    return inv;
}

/* The epilogue of one element of a head, as in finish_kind(); called by the whole warp. */
__device__ __forceinline__ void finish_head_element(const product &p, const decode_args &f,
                                                    const lane_output &s, float y)
{
    const heads &a = p.row_epilogue.heads;
    const struct norm &norm = norm_of(a, s.mat);
    if (__any_sync(~0u, norm.kind != NORM_NONE)) {
        const float inv = own_head_rms(p, f, s, y);
        y = normed_by(norm.kind, y, inv, norm.w.p ? raw_value(norm.w.type, s.w) : 0.f);
    }
    if (a.rot) {
        const float z = __shfl_sync(~0u, y, (int)threadIdx.x % 32 ^ s.n) * s.rope.y;
        const float turned = fmaf(y, s.rope.x, s.i < a.head_dim / 2 ? -z : z);
        y = s.mat == HEAD_V ? y : turned;
    }
    const size_t at = (size_t)s.h * (size_t)a.head_dim + (size_t)s.i;
    if (s.o < 0)
        return;
    if (s.mat == HEAD_Q)
        a.dst[(size_t)s.row * (size_t)(a.n_head * a.head_dim) + at] = y;
    else if (s.slot >= 0 && s.slot < a.n_slots)
        put_cell(s.mat == HEAD_K ? a.cell_k : a.cell_v, a.kv == KV_BF16,
                 (size_t)s.slot * (size_t)(a.n_kv * a.head_dim) + at, y);
}

/* The epilogue of one output; up: with GLU, the sum of the second matrix. */
template <int KIND, int ROWS>
__device__ __forceinline__ void finish_output(const product &p, const decode_args &f,
                                              const lane_output &s, int row, float y, float up)
{
    if (s.bias_type >= 0)
        y += raw_value(s.bias_type, s.bias);
    if (fuses_heads(KIND, ROWS)) {
        finish_head_element(p, f, s, y);
        return;
    }
    if (KIND == UNIT_GATED)
        y = activate(y, p.glu_act) * up;
    if (s.o < 0)
        return;
    float *dst = s.dst + (size_t)row * s.stride;
    if (KIND == UNIT_GATED) {
        if (p.pack_to)
            put_term(p, y, row, s.o);
        else
            *dst = y;
        return;
    }
    if (__builtin_expect(!s.bare, 0))
        y = after_bias(p.f[s.mat], y, s.o, row);
    *dst = s.add ? y + (p.rows == 1 ? s.old : *dst) : y;
}

/* A lane's outputs of a unit: numbers lane, lane + 32, ...; UNIT_DOUBLE: of each panel, number
 * lane. */
template <int NT, int KIND> struct lane_outputs {
    static constexpr int N = KIND == UNIT_JOINED ? (NT + 3) / 4 : KIND == UNIT_DOUBLE ? 2 : 1;
    static constexpr int APART = KIND == UNIT_DOUBLE ? NT * 4 : 32; /* of their sums */
    lane_output of[N];
};
template <int NT, int KIND, int ROWS>
__device__ __forceinline__ lane_outputs<NT, KIND>
lane_outputs_of(const product &p, const decode_args &f, const unit_iter &at, int row)
{
    lane_outputs<NT, KIND> s;
#pragma unroll
    for (int i = 0; i < s.N; i++)
        s.of[i] = lane_output_of<KIND, ROWS>(p, f, at, row, (int)threadIdx.x % 32 + 32 * i);
    return s;
}

template <int NT, int KIND, int ROWS>
__device__ __forceinline__ void fetch_lane_outputs(const product &p, lane_outputs<NT, KIND> &s)
{
#pragma unroll
    for (int i = 0; i < s.N; i++)
        fetch_lane_output<KIND, ROWS>(p, s.of[i]);
}

/* Stores a warp's partial sums of up to eight columns: a lane has two columns of one output of each
 * tile. */
template <int NT>
__device__ __forceinline__ void store_narrow(const float (&acc)[sums_of(NT, RESIDENT_ROWS)][4],
                                             bool two, int cols, float *here)
{
    constexpr int PITCH = sum_pitch(NT);
    const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float x = acc[n / 2][n % 2 * 2], y = acc[n / 2][n % 2 * 2 + 1];
        float *to = here + (two ? q : 2 * q) * PITCH + n * 8 + g;
        if (2 * q < cols)
            to[0] = two ? x + y : x;
        if (!two && 2 * q + 1 < cols)
            to[PITCH] = y;
    }
}

/* Reduces the partial sums in the order of the splits, and applies the epilogue. A warp without a
 * row to finish goes on to the next unit, whose sums go to the other buffer. */
template <int XT, int NT, int KIND, int ROWS>
__device__ __forceinline__ void finish_unit(const product &p, const decode_args &f,
                                            float (&acc)[XT][sums_of(NT, ROWS)][4], float *sums,
                                            int &buf, const lane_outputs<NT, KIND> &own)
{
    constexpr int PITCH = sum_pitch(NT);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4,
              q = lane % 4;
    constexpr bool ONE = ROWS == FUSED_ROW;
    const int two = !ONE && p.x.terms == 2, cols = cols_of<ROWS>(f),
              row0 = ROWS == STAGED_WIDE ? (int)blockIdx.y * f.group >> two : 0,
              sum_cols = ONE ? 1 : f.sum_cols;
#pragma unroll
    for (int m = 0; m < XT; m++) {
        if (m * 16 >= cols)
            break;
        float *here = sums + buf * (int)K_SPLITS * sum_cols * PITCH;
        buf ^= 1;
        if constexpr (is_narrow(ROWS))
            store_narrow<NT>(acc[m], two, cols, here + warp * sum_cols * PITCH);
#pragma unroll
        for (int h = 0; !is_narrow(ROWS) && h < 2; h++) {
            if (m * 16 + h * 8 >= cols)
                break;
            const int row = (g + h * 8) >> two;
            const bool mine = m * 16 + h * 8 + g < cols && !(two && g % 2);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float2 v = make_float2(acc[m][n][2 * h], acc[m][n][2 * h + 1]);
                if (two) {
                    v.x += __shfl_xor_sync(~0u, v.x, 4);
                    v.y += __shfl_xor_sync(~0u, v.y, 4);
                }
                if (mine)
                    *(float2 *)(here + (warp * sum_cols + row) * PITCH + n * 8 + 2 * q) = v;
            }
        }
        row_barrier();
        const int rows = min(cols - m * 16, (int)SUM_COLS) >> two;
        for (int t = own.of[0].row; t < rows; t += K_SPLITS)
#pragma unroll
            for (int i = 0; i < own.N; i++) {
                float y = 0, up = 0;
#pragma unroll
                for (int r = 0; r < K_SPLITS; r++) {
                    const float *from = here + (r * sum_cols + t) * PITCH + lane + own.APART * i;
                    y = r ? y + from[0] : from[0];
                    if (KIND == UNIT_GATED)
                        up = r ? up + from[NT * 4] : from[NT * 4];
                }
                finish_output<KIND, ROWS>(p, f, own.of[i], row0 + (m * 16 >> two) + t, y, up);
            }
    }
}

#endif
