/* sample.cu - one id for each row of logits: the best, or one drawn from all candidates. topk.cu
 * draws from at most MAX_K candidates, and describes how rows are read.
 */
#include "kernels/cuda/sampling/sample.cuh"

/* ---- the best of a row ----------------------------------------------------------------------- */

struct argmax_args {
    logit_rows s;
    u64 *best; /* (rows, segs) */
    unsigned *counters;
    float *top;   /* (rows) logit of the best candidate, NaN for an invalid row; or NULL */
    int32_t *ids; /* (rows), with p; or NULL */
    float *p;
};

/* A NaN or +inf in the row, masked or not, makes the row invalid: a key above all others. */
__global__ void __launch_bounds__(THREADS, 3)
    argmax_kernel(const __grid_constant__ struct argmax_args a)
{
    __shared__ u64 scratch[WARPS];
    const u64 invalid = ~0ull;
    pdl_trigger();
    pdl_wait_trigger();
    const int r = (int)blockIdx.y, seg = (int)blockIdx.x, tid = (int)threadIdx.x;
    float x[PER_THREAD], top = -INFINITY;
    int at = -1;
    bool bad = false;
    load_segment(a.s, r, seg, x);
    unsigned allowed = load_allowed(a.s, seg);
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        bad |= !(x[j] < INFINITY);
        if ((allowed >> j & 1) && x[j] > top)
            top = x[j], at = j;
    }
    u64 best = bad ? invalid : at < 0 ? 0 : key_of(top, element_index(a.s, seg, at));
    best = block_max(best, scratch);
    u64 *all = a.best + (size_t)r * (size_t)a.s.segs;
    if (tid == 0)
        all[seg] = best;
    if (!last_to_arrive(a.counters + r, gridDim.x))
        return;
    best = 0;
    for (int i = tid; i < a.s.segs; i += THREADS) {
        u64 key = __ldcg(all + i);
        best = key > best ? key : best;
    }
    best = block_max(best, scratch);
    if (tid)
        return;
    top = best == invalid ? NAN : best ? logit_of(best) : -INFINITY;
    bool ok = top > -INFINITY;
    if (a.top)
        a.top[r] = top;
    if (a.ids) {
        a.ids[r] = ok ? index_of(best) : -1;
        a.p[r] = ok ? 1.f : 0.f;
    }
}

/* ---- the draw -------------------------------------------------------------------------------- */

struct draw_args {
    logit_rows s;
    struct sampling how;
    const float *top; /* (rows) */
    const float *u;
    u64 *list; /* (rows, n) keys */
    unsigned *counters; /* (rows, CELLS) */
    int32_t *ids;
    float *p;
};

/* A window of the candidates in sorted order: those at positions first + i, i < n, best first, with
 * the cumulative weight up to each. */
struct draw_window {
    u64 key[WINDOW]; /* key and upto also hold the (BINS, THREADS) sums of sum_bins() */
    u64 upto[WINDOW];
    u64 warp[WARPS], weight[BINS];
    int count[BINS];
    int n, first, at;
    u64 before; /* weight of all candidates before the window */
};

/* The row that a block draws from. */
struct row {
    const logit_rows *s;
    const float *x;
    const u64 *list; /* the candidates with keys >= listed */
    int n_list;
    float max, t;
    u64 listed, lowest; /* candidates below `lowest` have weight 0 */
    u64 total, min_p_weight; /* weight of all candidates; of those that min_p keeps */
};

/* Calls f with this thread's share of the candidates whose keys are in [low, high]. */
template <class F>
__device__ __forceinline__ void each_candidate(const row &w, u64 low, u64 high, const F &f)
{
    if (low >= w.listed) {
        for (int i = (int)threadIdx.x; i < w.n_list; i += THREADS) {
            u64 key = __ldcg(w.list + i);
            if (key >= low && key <= high)
                f(key);
        }
        return;
    }
    enum { AT_ONCE = 8 };
    for (int from = (int)threadIdx.x; from < w.s->n; from += AT_ONCE * THREADS) {
        float x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            x[j] = from + j * THREADS < w.s->n ? w.x[from + j * THREADS] : NAN;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = from + j * THREADS;
            u64 key = key_of(x[j], i);
            if (key >= low && key <= high && !(w.s->mask && w.s->mask[i]))
                f(key);
        }
    }
}

/* Inclusive scan of v over the threads of the block. */
__device__ __forceinline__ u64 block_scan(u64 v, u64 *scratch)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    v = inclusive_scan(v);
    __syncthreads();
    if (lane == 31)
        scratch[warp] = v;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        v += scratch[i];
    return v;
}

/* Bitonic sort of n keys (n a power of two), largest first. Steps within 64 keys stay within a
 * warp. */
__device__ void sort_keys(u64 *key, int n)
{
    for (int size = 2; size <= n; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            for (int q = (int)threadIdx.x; q < n / 2; q += THREADS) {
                int i = 2 * q - (q & (step - 1));
                u64 a = key[i], b = key[i + step];
                if ((a < b) == ((i & size) == 0))
                    key[i] = b, key[i + step] = a;
            }
            if (step > 32 || (step == 1 && size >= 64))
                __syncthreads();
            else
                __syncwarp();
        }
    __syncthreads();
}

/* Computes s.upto of the sorted window. Thread t scans keys t * each .. (t + 1) * each - 1. */
__device__ void scan_weights(const row &w, draw_window &s)
{
    const int tid = (int)threadIdx.x, each = (s.n + THREADS - 1) / THREADS;
    const int from = min(s.n, tid * each), to = min(s.n, from + each);
    u64 sum = 0;
    for (int i = from; i < to; i++)
        s.upto[i] = sum += weight_of(logit_of(s.key[i]), w.max, w.t);
    sum = s.before + block_scan(sum, s.warp) - sum;
    for (int i = from; i < to; i++)
        s.upto[i] += sum;
    __syncthreads();
}

/* Makes the candidates in [low, high], at most WINDOW, the window. */
__device__ void fill_window(const row &w, draw_window &s, u64 low, u64 high, int first, u64 before)
{
    int padded = 2;
    __syncthreads();
    if (threadIdx.x == 0)
        s.n = 0, s.first = first, s.before = before;
    __syncthreads();
    each_candidate(w, low, high, [&](u64 key) { s.key[atomicAdd(&s.n, 1)] = key; });
    __syncthreads();
    while (padded < s.n)
        padded *= 2;
    for (int i = s.n + (int)threadIdx.x; i < padded; i += THREADS)
        s.key[i] = 0;
    __syncthreads();
    sort_keys(s.key, padded);
    scan_weights(w, s);
}

/* A range of keys divided into bins, best first: evenly by logit, or by key if the range is
 * narrow. */
struct key_bins {
    u64 low, high;
    bool by_logit;
    float top, step, inverse;
    int shift;
};

__device__ __forceinline__ key_bins key_bins_of(u64 low, u64 high)
{
    key_bins c = {
        low, high, false, logit_of(high), 0, 0, max(0, 60 - __clzll((long long)(high - low)))};
    c.step = (c.top - logit_of(low)) / BINS;
    c.inverse = 1 / c.step;
    c.by_logit = (high - low) >> 40 && c.step < INFINITY && c.inverse < INFINITY;
    return c;
}
/* The upper bound of the logits of bin b, b > 0. */
__device__ __forceinline__ float bin_edge(const key_bins &c, int b)
{
    return c.top - (float)b * c.step;
}
__device__ __forceinline__ int bin_of(const key_bins &c, u64 key)
{
    if (!c.by_logit)
        return (int)((c.high - key) >> c.shift);
    float x = logit_of(key);
    int b = min(BINS - 1, (int)((c.top - x) * c.inverse));
    while (b > 0 && x > bin_edge(c, b))
        b--;
    while (b < BINS - 1 && x <= bin_edge(c, b + 1))
        b++;
    return b;
}
/* The range of keys of bin b. */
__device__ __forceinline__ void bin_range(const key_bins &c, int b, u64 *low, u64 *high)
{
    if (c.by_logit) {
        *high = b ? key_of(bin_edge(c, b), 0) : c.high;
        *low = b < BINS - 1 ? key_of(bin_edge(c, b + 1), 0) + 1 : c.low;
    } else {
        *high = c.high - ((u64)b << c.shift);
        *low = *high - min(*high - c.low, (1ull << c.shift) - 1);
    }
}

/* Computes s.count and s.weight of the bins. A thread sums its own candidates, with the count above
 * bit 52: a thread has fewer than 2^12 candidates, of weight at most 2^40 each. */
__device__ void sum_bins(const row &w, draw_window &s, const key_bins &c)
{
    const int tid = (int)threadIdx.x, lane = tid % 32;
    u64(*sum)[THREADS] = (u64(*)[THREADS])s.key;
    __syncthreads();
    if (tid == 0)
        s.n = 0; /* no window for now: its memory holds the sums */
    for (int b = 0; b < BINS; b++)
        sum[b][tid] = 0;
    each_candidate(w, c.low, c.high, [&](u64 key) {
        sum[bin_of(c, key)][tid] += weight_of(logit_of(key), w.max, w.t) + (1ull << 52);
    });
    __syncthreads();
    for (int b = tid / 32; b < BINS; b += WARPS) {
        u64 count = 0, weight = 0;
        for (int i = lane; i < THREADS; i += 32) {
            count += sum[b][i] >> 52;
            weight += sum[b][i] & ((1ull << 52) - 1);
        }
        count = lanes_u64<false>(count, 32), weight = lanes_u64<false>(weight, 32);
        if (lane == 0)
            s.count[b] = (int)count, s.weight[b] = weight;
    }
    __syncthreads();
}

/* Looks in [low, high] for the candidate at which the count (by_count) or the cumulative weight
 * reaches `goal`, and makes a window around it. Returns false if there is none; *first and *before
 * then include the range. */
__device__ bool find_window(const row &w, draw_window &s, u64 low, u64 high, bool by_count,
                            u64 goal, int *first, u64 *before)
{
    static_assert(2 * WINDOW >= BINS * THREADS, "the sums share the memory of the window");
    while (low <= high) {
        key_bins c = key_bins_of(low, high);
        sum_bins(w, s, c);
        int b = 0;
        for (; b < BINS; b++) {
            u64 have = by_count ? (u64)(*first + s.count[b]) : *before + s.weight[b];
            if (have >= goal)
                break;
            *first += s.count[b], *before += s.weight[b];
        }
        if (b == BINS)
            return false;
        bin_range(c, b, &low, &high);
        if (s.count[b] <= WINDOW) {
            fill_window(w, s, low, high, *first, *before);
            return true;
        }
    }
    return false;
}

/* Whether the window contains the candidate that reaches `goal`; s.at is its index. */
__device__ bool in_window(draw_window &s, bool by_count, u64 goal)
{
    __syncthreads();
    if (threadIdx.x == 0)
        s.at = -1;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < s.n; i += THREADS)
        if (by_count ? (u64)(s.first + i + 1) == goal
                     : s.upto[i] >= goal && (i ? s.upto[i - 1] : s.before) < goal)
            s.at = i;
    __syncthreads();
    return s.at >= 0;
}

/* The cumulative weight at the candidate that reaches `goal`; ~0 if all candidates together do
 * not. */
__device__ u64 reach(const row &w, draw_window &s, bool by_count, u64 goal)
{
    int first = 0;
    u64 before = 0;
    if (!in_window(s, by_count, goal) &&
        !((find_window(w, s, w.listed, key_of(w.max, 0), by_count, goal, &first, &before) ||
           find_window(w, s, w.lowest, w.listed - 1, by_count, goal, &first, &before)) &&
          in_window(s, by_count, goal)))
        return ~0ull;
    return s.upto[s.at];
}

/* Applies the filters, then draws *id with probability *p; the whole block. */
__device__ void draw(const row &w, draw_window &s, const struct sampling &how, float u, int *id,
                     float *p)
{
    u64 mass = w.total;
    __syncthreads();
    if (threadIdx.x == 0)
        s.n = 0;
    if (w.n_list <= WINDOW)
        fill_window(w, s, w.listed, ~0ull, 0, 0);
    if (how.top_k > 0)
        mass = min(mass, reach(w, s, true, (u64)how.top_k));
    if (how.top_p < 1)
        mass = min(mass, reach(w, s, false, top_p_of(how, mass)));
    if (how.min_p > 0)
        mass = min(mass, w.min_p_weight ? w.min_p_weight : 1ull << UNIT_BITS);
    reach(w, s, false, target_of(u, mass));
    int at = max(0, s.at);
    *id = index_of(s.key[at]);
    *p = (float)((double)(s.upto[at] - (at ? s.upto[at - 1] : s.before)) / (double)mass);
}

/* Every block weighs its segment and lists the candidates at most 10 temperatures below the best;
 * those below are rarely drawn. The last block of a row draws. */
__global__ void __launch_bounds__(THREADS, 2)
    draw_kernel(const __grid_constant__ struct draw_args a)
{
    extern __shared__ __align__(16) char scratch[];
    pdl_trigger();
    pdl_wait_trigger();
    const int r = (int)blockIdx.y, seg = (int)blockIdx.x, lane = (int)threadIdx.x % 32;
    float x[PER_THREAD];
    const float max = a.top[r], t = a.how.temperature, lowest = -3.4028235e38f;
    load_segment(a.s, r, seg, x);
    unsigned allowed = load_allowed(a.s, seg), listed = 0;
    if (!(max > -INFINITY)) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            a.ids[r] = -1, a.p[r] = 0;
        return;
    }
    const float threshold = fmaxf(max - 10 * t, lowest);
    unsigned *cell = a.counters + (size_t)r * ROW_COUNTERS;
    u64 *list = a.list + (size_t)r * (size_t)a.s.n, weight = 0, min_p_weight = 0,
        least = min_p_of(a.how);
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        bool is = (allowed >> j & 1) && x[j] >= lowest;
        u64 mine = is ? weight_of(x[j], max, t) : 0;
        weight += mine;
        min_p_weight += mine >= least ? mine : 0;
        listed |= is && x[j] >= threshold ? 1u << j : 0;
    }
    weight = lanes_u64<false>(weight, 32);
    if (lane == 0 && weight)
        atomicAdd((u64 *)(cell + 2), weight);
    if (a.how.min_p > 0) {
        min_p_weight = lanes_u64<false>(min_p_weight, 32);
        if (lane == 0 && min_p_weight)
            atomicAdd((u64 *)(cell + 4), min_p_weight);
    }
    if (__any_sync(~0u, listed)) {
        const unsigned mine = (unsigned)__popc(listed), upto = inclusive_scan(mine);
        unsigned at = 0;
        if (lane == 31)
            at = atomicAdd(cell + 1, upto);
        at = __shfl_sync(~0u, at, 31) + upto - mine;
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++)
            if (listed >> j & 1)
                list[at++] = key_of(x[j], element_index(a.s, seg, j));
    }
    if (!last_to_arrive(cell, gridDim.x))
        return;

    int id;
    float p;
    row w = {&a.s, a.s.x + (size_t)r * (size_t)a.s.n, list, (int)__ldcg(cell + 1), max, t,
             key_of(threshold, a.s.n), key_of(fmaxf(max - 30 * t, lowest), a.s.n),
             __ldcg((u64 *)(cell + 2)), __ldcg((u64 *)(cell + 4))};
    draw(w, *(draw_window *)scratch, a.how, a.u[r], &id, &p);
    if (threadIdx.x == 0) {
        a.ids[r] = id, a.p[r] = p;
        for (int i = 1; i < ROW_COUNTERS; i++)
            cell[i] = 0;
    }
}

/* First finds the best of each row, because weights are relative to it. */
static void draw_rows(struct kdev *d, const struct k_sample *a, struct argmax_args m,
                      struct draw_args w)
{
    size_t n = (size_t)a->n, segs = (size_t)m.s.segs;
    int fit = min_int(cuda_fit(a->rows, (segs + n) * sizeof(u64) + sizeof(float)),
                      (int)N_COUNTERS / ROW_COUNTERS);
    CHECK(fit > 0 && a->n < 1 << 20);
    m.counters = w.counters = d->counters;
    for (int r = 0; r < a->rows; r += fit) {
        int rows = min_int(fit, a->rows - r);
        dim3 grid((unsigned)segs, (unsigned)rows);
        d->arena_at = 0;
        m.best = (u64 *)cuda_take(d, (size_t)rows * segs * sizeof(u64));
        w.list = (u64 *)cuda_take(d, (size_t)rows * n * sizeof(u64));
        w.top = m.top = (float *)cuda_take(d, (size_t)rows * sizeof(float));
        cuda_launch(d, argmax_kernel, grid, THREADS, 0, m);
        cuda_launch(d, draw_kernel, grid, THREADS, sizeof(draw_window), w);
        m.s.x += (size_t)rows * n, w.s.x += (size_t)rows * n;
        w.u += rows, w.ids += rows, w.p += rows;
    }
}

void cuda_sample(struct kdev *d, const struct k_sample *a)
{
    cuda_begin(d, "sample");
    if (a->rows == 0)
        return;
    size_t rows = (size_t)a->rows;
    logit_rows s = logit_rows_of(a->logits, a->mask, a->rows, a->n);
    int32_t *ids = cuda_i32(a->ids, rows);
    float *p = cuda_f32(a->p, rows);
    if (!(a->how.temperature > 0)) {
        u64 *best = (u64 *)cuda_take(d, rows * (size_t)s.segs * sizeof(u64));
        struct argmax_args m = {s, best, d->counters, NULL, ids, p};
        CHECK(a->rows <= N_COUNTERS);
        cuda_launch(d, argmax_kernel, dim3((unsigned)s.segs, (unsigned)a->rows), THREADS, 0, m);
        return;
    }
    const float *u = cuda_f32(a->u, rows);
    if (a->how.top_k > 0 && a->how.top_k <= MAX_K) {
        cuda_topk_draw(d, a);
        return;
    }
    draw_rows(d, a, argmax_args{s, NULL, NULL, NULL, NULL, NULL},
              draw_args{s, a->how, NULL, u, NULL, NULL, ids, p});
}

/* ---- adjust ---------------------------------------------------------------------------------- */

struct adjust_args {
    const float *src;
    float *dst;
    int n, words, rows, changes, every;
    const uint32_t *banned; /* (rows, words) or NULL */
    const struct k_change *change;
};

__device__ __forceinline__ bool is_banned(const struct adjust_args &a, int r, int i)
{
    return a.banned && (a.banned[(size_t)r * (size_t)a.words + (size_t)(i >> 5)] >> (i & 31) & 1);
}

__global__ void __launch_bounds__(THREADS)
    adjust_copy_kernel(const __grid_constant__ struct adjust_args a)
{
    pdl_trigger();
    pdl_wait_trigger();
    int r = (int)blockIdx.y, i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    size_t at = (size_t)r * (size_t)a.n + (size_t)i;
    if (i < a.n)
        a.dst[at] = is_banned(a, r, i) ? -INFINITY : a.src[at];
}

/* Changes [from, to), which write different elements; those for every row have a thread for each
 * row. */
__global__ void __launch_bounds__(THREADS)
    adjust_change_kernel(const __grid_constant__ struct adjust_args a, int from, int to, bool every)
{
    pdl_trigger();
    pdl_wait_trigger();
    int k = from + (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (k >= to)
        return;
    struct k_change c = a.change[k];
    int r = every ? (int)blockIdx.y : c.row;
    if (is_banned(a, r, c.id))
        return;
    size_t at = (size_t)r * (size_t)a.n + (size_t)c.id;
    float x = a.src[at] + c.bias;
    x = x > 0 ? x / c.rep : x * c.rep;
    a.dst[at] = x - c.less;
}

void cuda_adjust(struct kdev *d, const struct k_adjust *a)
{
    cuda_begin(d, "adjust");
    if (a->rows == 0)
        return;
    size_t all = (size_t)a->rows * (size_t)a->n;
    struct adjust_args x = {};
    x.n = a->n, x.words = (a->n + 31) / 32, x.rows = a->rows;
    x.changes = a->changes, x.every = a->every;
    x.src = cuda_f32(a->src, all), x.dst = cuda_f32(a->dst, all);
    x.banned = (const uint32_t *)a->banned.p;
    x.change = (const struct k_change *)a->change.p;
    CHECK(!x.banned || a->banned.n >= (size_t)a->rows * (size_t)x.words * 4);
    CHECK(a->changes == 0 || a->change.n >= (size_t)a->changes * sizeof *x.change);
    cuda_launch(d, adjust_copy_kernel, dim3((unsigned)div_up(a->n, THREADS), (unsigned)a->rows),
                THREADS, 0, x);
    if (a->every)
        cuda_launch(d, adjust_change_kernel,
                    dim3((unsigned)div_up(a->every, THREADS), (unsigned)a->rows), THREADS, 0, x, 0,
                    a->every, true);
    if (a->changes > a->every)
        cuda_launch(d, adjust_change_kernel,
                    dim3((unsigned)div_up(a->changes - a->every, THREADS), 1), THREADS, 0, x,
                    a->every, a->changes, false);
}
