/* sample.cu - reading logits for one id a row: the best, or one drawn from all candidates
 * (from a few: topk.cu, which also says how rows are read).
 */
#include "kernels/cuda/sampling/sample.cuh"

/* ---- the best of a row ----------------------------------------------------------------------- */

struct argmax_args {
    source s;
    u64 *best; /* (rows, segs) */
    unsigned *counters;
    float *top;   /* (rows) the best candidate's logit, NaN for a sick row; or NULL */
    int32_t *ids; /* (rows), with p, or NULL */
    float *p;
};

/* A NaN or +inf in the row, banned or not, is a key above all others. */
__global__ void __launch_bounds__(THREADS, 3)
    argmax_kernel(const __grid_constant__ struct argmax_args a)
{
    __shared__ u64 room[WARPS];
    const u64 sick = ~0ull;
    pdl_trigger();
    pdl_wait_trigger();
    const int r = (int)blockIdx.y, seg = (int)blockIdx.x, tid = (int)threadIdx.x;
    float x[EACH], top = -INFINITY;
    int at = -1;
    bool bad = false;
    load_segment(a.s, r, seg, x);
    unsigned allowed = load_allowed(a.s, seg);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        bad |= !(x[j] < INFINITY);
        if ((allowed >> j & 1) && x[j] > top)
            top = x[j], at = j;
    }
    u64 best = bad ? sick : at < 0 ? 0 : key_of(top, place(a.s, seg, at));
    best = block_max(best, room);
    u64 *all = a.best + (size_t)r * (size_t)a.s.segs;
    if (tid == 0)
        all[seg] = best;
    if (!last_of_row(a.counters + r, gridDim.x))
        return;
    best = 0;
    for (int i = tid; i < a.s.segs; i += THREADS) {
        u64 key = __ldcg(all + i);
        best = key > best ? key : best;
    }
    best = block_max(best, room);
    if (tid)
        return;
    top = best == sick ? NAN : best ? logit_of(best) : -INFINITY;
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
    source s;
    struct sampling how;
    const float *top; /* (rows) */
    const float *u;
    u64 *list; /* (rows, n) keys */
    unsigned *counters; /* (rows, CELLS) */
    int32_t *ids;
    float *p;
};

/* A window of the candidates: those of rank first + i, i < n, best first, with the weight of all
 * up to each. */
struct drawing {
    u64 key[WINDOW]; /* both: (BINS, THREADS) sums while a window is looked for */
    u64 upto[WINDOW];
    u64 warp[WARPS], weight[BINS];
    int count[BINS];
    int n, first, at;
    u64 before; /* weight of the candidates in front of the window */
};

/* The row that a block draws from. */
struct row {
    const source *s;
    const float *x;
    const u64 *list; /* the candidates with keys >= listed */
    int n_list;
    float max, t;
    u64 listed, lowest; /* what lies below `lowest` weighs nothing */
    u64 total, heavy; /* weight of all candidates, of those that min_p leaves */
};

/* Calls f with this thread's share of the candidates that have keys in [low, high]. */
template <class F>
__device__ __forceinline__ void candidates(const row &w, u64 low, u64 high, const F &f)
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

/* The sum of v over the threads up to this one. */
__device__ __forceinline__ u64 sum_upto(u64 v, u64 *room)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int i = 1; i < 32; i *= 2) {
        u64 w = __shfl_up_sync(~0u, v, i);
        v += lane >= i ? w : 0;
    }
    __syncthreads();
    if (lane == 31)
        room[warp] = v;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        v += room[i];
    return v;
}

/* Sorts n keys, a power of two, largest first. Steps within 64 keys stay within a warp. */
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

/* s.upto of the sorted window. Each thread has the keys from `each` times its number on. */
__device__ void add_up(const row &w, drawing &s)
{
    const int tid = (int)threadIdx.x, each = (s.n + THREADS - 1) / THREADS;
    const int from = min(s.n, tid * each), to = min(s.n, from + each);
    u64 sum = 0;
    for (int i = from; i < to; i++)
        s.upto[i] = sum += weight_of(logit_of(s.key[i]), w.max, w.t);
    sum = s.before + sum_upto(sum, s.warp) - sum;
    for (int i = from; i < to; i++)
        s.upto[i] += sum;
    __syncthreads();
}

/* The window is the candidates in [low, high], WINDOW of them at most. */
__device__ void fill(const row &w, drawing &s, u64 low, u64 high, int first, u64 before)
{
    int room = 2;
    __syncthreads();
    if (threadIdx.x == 0)
        s.n = 0, s.first = first, s.before = before;
    __syncthreads();
    candidates(w, low, high, [&](u64 key) { s.key[atomicAdd(&s.n, 1)] = key; });
    __syncthreads();
    while (room < s.n)
        room *= 2;
    for (int i = s.n + (int)threadIdx.x; i < room; i += THREADS)
        s.key[i] = 0;
    __syncthreads();
    sort_keys(s.key, room);
    add_up(w, s);
}

/* A range of keys cut into bins, best first: evenly by logit, or by key where it is narrow. */
struct cut {
    u64 low, high;
    bool by_logit;
    float top, step, inverse;
    int shift;
};

__device__ __forceinline__ cut cut_of(u64 low, u64 high)
{
    cut c = {low, high, false, logit_of(high), 0, 0, max(0, 60 - __clzll((long long)(high - low)))};
    c.step = (c.top - logit_of(low)) / BINS;
    c.inverse = 1 / c.step;
    c.by_logit = (high - low) >> 40 && c.step < INFINITY && c.inverse < INFINITY;
    return c;
}
/* No logit of bin b is above this one; b > 0. */
__device__ __forceinline__ float edge(const cut &c, int b)
{
    return c.top - (float)b * c.step;
}
__device__ __forceinline__ int bin_of(const cut &c, u64 key)
{
    if (!c.by_logit)
        return (int)((c.high - key) >> c.shift);
    float x = logit_of(key);
    int b = min(BINS - 1, (int)((c.top - x) * c.inverse));
    while (b > 0 && x > edge(c, b))
        b--;
    while (b < BINS - 1 && x <= edge(c, b + 1))
        b++;
    return b;
}
/* The keys of bin b. */
__device__ __forceinline__ void bin_range(const cut &c, int b, u64 *low, u64 *high)
{
    if (c.by_logit) {
        *high = b ? key_of(edge(c, b), 0) : c.high;
        *low = b < BINS - 1 ? key_of(edge(c, b + 1), 0) + 1 : c.low;
    } else {
        *high = c.high - ((u64)b << c.shift);
        *low = *high - min(*high - c.low, (1ull << c.shift) - 1);
    }
}

/* s.count and s.weight of the bins. A thread adds up its own, the count above bit 52: it has fewer
 * than 2^12 candidates that weigh 2^40 each at most. */
__device__ void weigh_bins(const row &w, drawing &s, const cut &c)
{
    const int tid = (int)threadIdx.x, lane = tid % 32;
    u64(*sum)[THREADS] = (u64(*)[THREADS])s.key;
    __syncthreads();
    if (tid == 0)
        s.n = 0; /* no window for now */
    for (int b = 0; b < BINS; b++)
        sum[b][tid] = 0;
    candidates(w, c.low, c.high, [&](u64 key) {
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

/* Looks for the candidate with which the count (or else the weight) of all up to it reaches `goal`
 * among those in [low, high], and makes a window around it. Both sums go on where there is none. */
__device__ bool narrow(const row &w, drawing &s, u64 low, u64 high, bool by_count, u64 goal,
                       int *first, u64 *before)
{
    static_assert(2 * WINDOW >= BINS * THREADS, "the sums lie in the window");
    while (low <= high) {
        cut c = cut_of(low, high);
        weigh_bins(w, s, c);
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
            fill(w, s, low, high, *first, *before);
            return true;
        }
    }
    return false;
}

/* Whether the window has that candidate; s.at is where. */
__device__ bool in_window(drawing &s, bool by_count, u64 goal)
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

/* The weight of all candidates up to that one; ~0 where even all of them do not reach the goal. */
__device__ u64 reach(const row &w, drawing &s, bool by_count, u64 goal)
{
    int first = 0;
    u64 before = 0;
    if (!in_window(s, by_count, goal) &&
        !((narrow(w, s, w.listed, key_of(w.max, 0), by_count, goal, &first, &before) ||
           narrow(w, s, w.lowest, w.listed - 1, by_count, goal, &first, &before)) &&
          in_window(s, by_count, goal)))
        return ~0ull;
    return s.upto[s.at];
}

/* Filters, then draws: *id and *p, for the whole block. */
__device__ void draw(const row &w, drawing &s, const struct sampling &how, float u, int *id,
                     float *p)
{
    u64 mass = w.total;
    __syncthreads();
    if (threadIdx.x == 0)
        s.n = 0;
    if (w.n_list <= WINDOW)
        fill(w, s, w.listed, ~0ull, 0, 0);
    if (how.top_k > 0)
        mass = min(mass, reach(w, s, true, (u64)how.top_k));
    if (how.top_p < 1)
        mass = min(mass, reach(w, s, false, top_p_of(how, mass)));
    if (how.min_p > 0)
        mass = min(mass, w.heavy ? w.heavy : 1ull << UNIT_BITS);
    reach(w, s, false, target_of(u, mass));
    int at = max(0, s.at);
    *id = index_of(s.key[at]);
    *p = (float)((double)(s.upto[at] - (at ? s.upto[at - 1] : s.before)) / (double)mass);
}

/* Every block weighs its segment and lists what is no more than 10 temperatures below the best,
 * beyond which little is ever drawn; the last one draws. */
__global__ void __launch_bounds__(THREADS, 2)
    draw_kernel(const __grid_constant__ struct draw_args a)
{
    extern __shared__ __align__(16) char room[];
    pdl_trigger();
    pdl_wait_trigger();
    const int r = (int)blockIdx.y, seg = (int)blockIdx.x, lane = (int)threadIdx.x % 32;
    float x[EACH];
    const float max = a.top[r], t = a.how.temperature, lowest = -3.4028235e38f;
    load_segment(a.s, r, seg, x);
    unsigned allowed = load_allowed(a.s, seg), listed = 0;
    if (!(max > -INFINITY)) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            a.ids[r] = -1, a.p[r] = 0;
        return;
    }
    const float bar = fmaxf(max - 10 * t, lowest);
    unsigned *cell = a.counters + (size_t)r * CELLS;
    u64 *list = a.list + (size_t)r * (size_t)a.s.n, weight = 0, heavy = 0, least = min_p_of(a.how);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        bool is = (allowed >> j & 1) && x[j] >= lowest;
        u64 mine = is ? weight_of(x[j], max, t) : 0;
        weight += mine;
        heavy += mine >= least ? mine : 0;
        listed |= is && x[j] >= bar ? 1u << j : 0;
    }
    weight = lanes_u64<false>(weight, 32);
    if (lane == 0 && weight)
        atomicAdd((u64 *)(cell + 2), weight);
    if (a.how.min_p > 0) {
        heavy = lanes_u64<false>(heavy, 32);
        if (lane == 0 && heavy)
            atomicAdd((u64 *)(cell + 4), heavy);
    }
    if (__any_sync(~0u, listed)) {
        unsigned mine = (unsigned)__popc(listed), upto = mine, at = 0;
        for (int i = 1; i < 32; i *= 2) {
            unsigned v = __shfl_up_sync(~0u, upto, i);
            upto += lane >= i ? v : 0;
        }
        if (lane == 31)
            at = atomicAdd(cell + 1, upto);
        at = __shfl_sync(~0u, at, 31) + upto - mine;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (listed >> j & 1)
                list[at++] = key_of(x[j], place(a.s, seg, j));
    }
    if (!last_of_row(cell, gridDim.x))
        return;

    int id;
    float p;
    row w = {&a.s, a.s.x + (size_t)r * (size_t)a.s.n, list, (int)__ldcg(cell + 1), max, t,
             key_of(bar, a.s.n), key_of(fmaxf(max - 30 * t, lowest), a.s.n),
             __ldcg((u64 *)(cell + 2)), __ldcg((u64 *)(cell + 4))};
    draw(w, *(drawing *)room, a.how, a.u[r], &id, &p);
    if (threadIdx.x == 0) {
        a.ids[r] = id, a.p[r] = p;
        for (int i = 1; i < CELLS; i++)
            cell[i] = 0;
    }
}

/* The best of each row first, because weights are relative to it. */
static void draw_rows(struct kdev *d, const struct k_sample *a, struct argmax_args m,
                      struct draw_args w)
{
    size_t n = (size_t)a->n, segs = (size_t)m.s.segs;
    int fit = min_int(cuda_fit(a->rows, (segs + n) * sizeof(u64) + sizeof(float)),
                      (int)N_COUNTERS / CELLS);
    CHECK(fit > 0 && a->n < 1 << 20);
    m.counters = w.counters = d->counters;
    for (int r = 0; r < a->rows; r += fit) {
        int some = min_int(fit, a->rows - r);
        dim3 grid((unsigned)segs, (unsigned)some);
        d->arena_at = 0;
        m.best = (u64 *)cuda_take(d, (size_t)some * segs * sizeof(u64));
        w.list = (u64 *)cuda_take(d, (size_t)some * n * sizeof(u64));
        w.top = m.top = (float *)cuda_take(d, (size_t)some * sizeof(float));
        cuda_launch(d, argmax_kernel, grid, THREADS, 0, m);
        cuda_launch(d, draw_kernel, grid, THREADS, sizeof(drawing), w);
        m.s.x += (size_t)some * n, w.s.x += (size_t)some * n;
        w.u += some, w.ids += some, w.p += some;
    }
}

void cuda_sample(struct kdev *d, const struct k_sample *a)
{
    cuda_begin(d, "sample");
    if (a->rows == 0)
        return;
    size_t rows = (size_t)a->rows;
    source s = source_of(a->logits, a->mask, a->rows, a->n);
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
    if (a->how.top_k > 0 && a->how.top_k <= MOST_K) {
        cuda_topk_draw(d, a);
        return;
    }
    draw_rows(d, a, argmax_args{s, NULL, NULL, NULL, NULL, NULL},
              draw_args{s, a->how, NULL, u, NULL, NULL, ids, p});
}
