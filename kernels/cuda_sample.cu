/* cuda_sample.cu - reading logits: the k best, log probabilities, and the draw.
 *
 * A row is cut into even segments of at most 4096, one block each; the block that is the last of its row to
 * arrive joins what they found. Candidates are compared by 64-bit keys that order by (logit
 * descending, index ascending) and are all different, so no result depends on the order in which
 * threads meet them. Log probabilities add up in an order that the row's length fixes; the weights
 * of a draw are integers, whose sum has no order.
 */
#include "kernels/cuda.h"

enum {
    THREADS = 256, WARPS = THREADS / 32, EACH = 16,
    MOST_K = 64,
    LIST = 512,        /* candidates for the k best that are ranked at once */
    WINDOW = 2048,     /* candidates of a draw that are sorted at once */
    CELLS = 4,         /* counters of a row: arrivals, length of the list, and u64 total weight */
};

typedef unsigned long long u64;

/* Rows of logits, (rows, n), and the ids that are no candidates. */
struct source {
    const float *x;
    const uint8_t *mask;
    int n, segs, len; /* len: of a segment, the last may be shorter */
    bool whole; /* every row can be read 16 bytes at a time */
};

static source source_of(kbuf logits, kbuf mask, int rows, int n)
{
    CHECK(n > 0 && (!mask.p || mask.n >= (size_t)n));
    int segs = div_up(n, THREADS * EACH);
    source s = {cuda_f32(logits, (size_t)rows * (size_t)n), (const uint8_t *)mask.p, n, segs,
                div_up(div_up(n, segs), 4) * 4, false};
    s.whole = n % 4 == 0 && (uintptr_t)s.x % 16 == 0 && (uintptr_t)s.mask % 4 == 0;
    return s;
}

/* ---- keys ----------------------------------------------------------------------------------- */

/* 0 is no candidate: NaN is none. */
__device__ __forceinline__ u64 key_of(float x, int i)
{
    uint32_t u = __float_as_uint(x + 0.f); /* -0 and 0 are a tie */
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return x != x ? 0 : (u64)u << 32 | (0xffffffffu - (uint32_t)i);
}
__device__ __forceinline__ int index_of(u64 key)
{
    return (int)(0xffffffffu - (uint32_t)key);
}
__device__ __forceinline__ float logit_of(u64 key)
{
    uint32_t u = (uint32_t)(key >> 32);
    return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

/* Maximum or sum over `width` neighbouring lanes. */
template <bool MAX> __device__ __forceinline__ u64 lanes_u64(u64 v, int width)
{
    for (int i = width / 2; i; i /= 2) {
        u64 w = __shfl_xor_sync(~0u, v, i);
        v = MAX ? (w > v ? w : v) : v + w;
    }
    return v;
}

/* The maximum over the block, for every thread; room: WARPS. */
__device__ __forceinline__ u64 block_max(u64 v, u64 *room)
{
    v = lanes_u64<true>(v, 32);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = v;
    __syncthreads();
    v = room[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        v = room[i] > v ? room[i] : v;
    return v;
}

/* ---- a segment in registers ------------------------------------------------------------------ */

/* Where this thread's element j of the block's segment lies in the row. */
__device__ __forceinline__ int place(const source &s, int j)
{
    return (int)blockIdx.x * s.len + j / 4 * (4 * THREADS) + (int)threadIdx.x * 4 + j % 4;
}

__device__ __forceinline__ int segment_end(const source &s)
{
    return min(s.n, ((int)blockIdx.x + 1) * s.len);
}

/* x[j]: -inf beyond the segment. */
__device__ __forceinline__ void load_segment(const source &s, int r, float (&x)[EACH])
{
    const int end = segment_end(s);
    const float *row = s.x + (size_t)r * (size_t)s.n;
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        int at = place(s, j);
        float4 v = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (s.whole && at < end) {
            v = *(const float4 *)(row + at);
        } else if (!s.whole) {
            v.x = at < end ? row[at] : v.x, v.y = at + 1 < end ? row[at + 1] : v.y;
            v.z = at + 2 < end ? row[at + 2] : v.z, v.w = at + 3 < end ? row[at + 3] : v.w;
        }
        x[j] = v.x, x[j + 1] = v.y, x[j + 2] = v.z, x[j + 3] = v.w;
    }
}

/* One bit for each element that may be chosen. */
__device__ __forceinline__ unsigned load_allowed(const source &s)
{
    const int end = segment_end(s);
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        int at = place(s, j);
        uint32_t four = 0;
        if (s.mask && s.whole && at < end)
            four = *(const uint32_t *)(s.mask + at);
        else if (s.mask)
            for (int i = 0; i < 4 && at + i < end; i++)
                four |= (uint32_t)s.mask[at + i] << 8 * i;
#pragma unroll
        for (int i = 0; i < 4; i++)
            bits |= at + i < end && !(four >> 8 * i & 255) ? 1u << (j + i) : 0;
    }
    return bits;
}

/* ---- the log of the sum of exp --------------------------------------------------------------- */

struct mass {
    float max, sum; /* sum of exp(x - max); NaN where there is a NaN or +inf */
};

/* Of a warp's share of a segment. */
__device__ __forceinline__ mass warp_mass(const float (&x)[EACH])
{
    mass m = {-INFINITY, 0};
#pragma unroll
    for (int j = 0; j < EACH; j++)
        m.max = fmaxf(m.max, x[j]);
    m.max = warp_max(m.max);
    float from = m.max == -INFINITY ? 0.f : m.max;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        m.sum += expf(x[j] - from);
    m.sum = warp_sum(m.sum);
    return m;
}

/* What a thread has of a row's masses, and of the row. */
struct total {
    float max;
    double sum;
};

/* n masses, thread by thread. */
__device__ __forceinline__ total my_total(const mass *m, int n)
{
    total t = {-INFINITY, 0};
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        float2 v = __ldcg((const float2 *)(m + i));
        float top = fmaxf(t.max, v.x), from = top == -INFINITY ? 0.f : top;
        t.sum = t.sum * (double)expf(t.max - from) + (double)v.y * (double)expf(v.x - from);
        t.max = top;
    }
    return t;
}

/* For the whole block. */
__device__ __forceinline__ double lse_of(total t)
{
    __shared__ float room[33];
    __shared__ double sums[WARPS];
    float top = block_reduce<true>(t.max, room), from = top == -INFINITY ? 0.f : top;
    double sum = t.sum * (double)expf(t.max - from);
    for (int i = 16; i; i /= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < WARPS; i++)
        sum += sums[i];
    return (double)top + log(sum);
}

/* ---- the k best of a block's keys ------------------------------------------------------------ */

struct picking {
    u64 top[MOST_K], list[LIST], room[WARPS], bar;
    int n;
};

/* For keys too many of which look good: one after the other. */
template <class All> __device__ void one_by_one(const All &all, int k, u64 *out, picking &s)
{
    u64 last = ~0ull;
    for (int j = 0; j < k; j++) {
        u64 mine = 0;
        all([&](u64 key) { mine = key < last && key > mine ? key : mine; });
        last = block_max(mine, s.room);
        if (threadIdx.x == 0)
            out[j] = last;
    }
}

/* Writes the k largest keys of the block, best first, 0 where there are fewer; all(f) calls f with
 * each key of this thread. The k-th largest of the maxima of k or more groups of threads bounds
 * them from below, and leaves few above it. */
template <class All> __device__ __forceinline__ void best_of(const All &all, int k, u64 *out,
                                                             picking &s)
{
    const int tid = (int)threadIdx.x, width = k <= WARPS ? 32 : k <= 16 ? 16 : k <= 32 ? 8 : 4;
    u64 mine = 0;
    all([&](u64 key) { mine = key > mine ? key : mine; });
    mine = lanes_u64<true>(mine, width);
    if (tid % width == 0)
        s.top[tid / width] = mine;
    if (tid == 0)
        s.n = 0, s.bar = 1;
    __syncthreads();
    if (tid < THREADS / width) {
        int above = 0;
        mine = s.top[tid];
        for (int i = 0; i < THREADS / width; i++)
            above += s.top[i] > mine;
        if (mine && above == k - 1)
            s.bar = mine;
    }
    __syncthreads();
    u64 bar = s.bar;
    if (k == 1) {
        if (tid == 0)
            out[0] = bar > 1 ? bar : 0;
        return;
    }
    all([&](u64 key) {
        int at = key >= bar ? atomicAdd(&s.n, 1) : LIST;
        if (at < LIST)
            s.list[at] = key;
    });
    __syncthreads();
    int n = s.n;
    if (n > LIST) {
        one_by_one(all, k, out, s);
        return;
    }
    for (int i = tid; i < n; i += THREADS) {
        int above = 0;
        mine = s.list[i];
#pragma unroll 8
        for (int j = 0; j < n; j++)
            above += s.list[j] > mine;
        if (above < k)
            out[above] = mine;
    }
    for (int i = n + tid; i < k; i += THREADS)
        out[i] = 0;
}

/* ---- topk ----------------------------------------------------------------------------------- */

struct topk_args {
    source s;
    int k;
    u64 *best;  /* (rows, segs, k) */
    mass *part; /* (rows, segs, WARPS) */
    unsigned *counters;
    int32_t *ids;
    float *logp, *lse;
};

__global__ void __launch_bounds__(THREADS, 4)
    topk_kernel(const __grid_constant__ struct topk_args a)
{
    __shared__ picking s;
    __shared__ u64 best[MOST_K];
    let_next();
    after();
    const int r = (int)blockIdx.y, seg = (int)blockIdx.x, tid = (int)threadIdx.x;
    float x[EACH];
    load_segment(a.s, r, x);
    unsigned allowed = load_allowed(a.s);
    size_t row = (size_t)r * (size_t)a.s.segs, mine = row + (size_t)seg;
    best_of([&](auto f) {
#pragma unroll
        for (int j = 0; j < EACH; j++)
            f(allowed >> j & 1 ? key_of(x[j], place(a.s, j)) : 0);
    }, a.k, a.best + mine * (size_t)a.k, s);
    mass m = warp_mass(x);
    if (tid % 32 == 0)
        a.part[mine * WARPS + (size_t)(tid / 32)] = m;
    if (!last_to_arrive(a.counters + r, gridDim.x))
        return;

    enum { FEW = 4 };
    const u64 *all = a.best + row * (size_t)a.k;
    int n = a.s.segs * a.k;
    u64 few[FEW];
#pragma unroll
    for (int i = 0; i < FEW; i++)
        few[i] = i * THREADS + tid < n ? __ldcg(all + i * THREADS + tid) : 0;
    total t = my_total(a.part + row * WARPS, a.s.segs * WARPS);
    best_of([&](auto f) {
#pragma unroll
        for (int i = 0; i < FEW; i++)
            f(few[i]);
        for (int i = FEW * THREADS + tid; i < n; i += THREADS)
            f(__ldcg(all + i));
    }, a.k, best, s);
    double lse = lse_of(t); /* whose barriers show `best` to every thread */
    if (a.lse && tid == 0)
        a.lse[r] = (float)lse;
    if (tid < a.k) {
        u64 key = best[tid];
        size_t at = (size_t)r * (size_t)a.k + (size_t)tid;
        a.ids[at] = key ? index_of(key) : -1;
        a.logp[at] = key ? (float)((double)logit_of(key) - lse) : -INFINITY;
    }
}

void cuda_topk(struct kdev *d, const struct k_topk *a)
{
    cuda_begin(d, "topk");
    if (a->rows == 0)
        return;
    size_t rows = (size_t)a->rows, k = (size_t)a->k;
    CHECK(a->k > 0 && a->k <= MOST_K && a->k <= a->n);
    struct topk_args t = {};
    t.s = source_of(a->logits, a->mask, a->rows, a->n);
    t.k = a->k;
    t.counters = d->counters;
    t.ids = cuda_i32(a->ids, rows * k), t.logp = cuda_f32(a->logp, rows * k);
    t.lse = a->lse.p ? cuda_f32(a->lse, rows) : NULL;
    size_t segs = (size_t)t.s.segs;
    int fit = min_int(cuda_fit(a->rows, segs * (k * sizeof(u64) + WARPS * sizeof(mass))),
                      N_COUNTERS);
    for (int r = 0; r < a->rows; r += fit) {
        int n = min_int(fit, a->rows - r);
        struct topk_args b = t;
        d->arena_at = 0;
        b.best = (u64 *)cuda_take(d, (size_t)n * segs * k * sizeof(u64));
        b.part = (mass *)cuda_take(d, (size_t)n * segs * WARPS * sizeof(mass));
        b.s.x += (size_t)r * (size_t)a->n;
        b.ids += (size_t)r * k, b.logp += (size_t)r * k;
        b.lse = t.lse ? t.lse + r : NULL;
        cuda_launch(d, topk_kernel, dim3((unsigned)segs, (unsigned)n), THREADS, 0, b);
    }
}

/* ---- the best of a row ------------------------------------------------------------------------ */

struct argmax_args {
    source s;
    u64 *best; /* (rows, segs) */
    unsigned *counters;
    float *top;   /* (rows) the best candidate's logit, NaN for a sick row; or NULL */
    int32_t *ids; /* (rows), with p, or NULL */
    float *p;
};

/* A NaN or +inf in the row, banned or not, is a key above all others. */
__global__ void __launch_bounds__(THREADS, 4)
    argmax_kernel(const __grid_constant__ struct argmax_args a)
{
    __shared__ u64 room[WARPS];
    const u64 sick = ~0ull;
    let_next();
    after();
    const int r = (int)blockIdx.y, seg = (int)blockIdx.x, tid = (int)threadIdx.x;
    float x[EACH];
    u64 best = 0;
    load_segment(a.s, r, x);
    unsigned allowed = load_allowed(a.s);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        u64 key = allowed >> j & 1 ? key_of(x[j], place(a.s, j)) : 0;
        best = key > best ? key : best;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++)
        best = x[j] < INFINITY ? best : sick;
    best = block_max(best, room);
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
    best = block_max(best, room);
    if (tid)
        return;
    float top = best == sick ? NAN : best ? logit_of(best) : -INFINITY;
    bool ok = top > -INFINITY;
    if (a.top)
        a.top[r] = top;
    if (a.ids) {
        a.ids[r] = ok ? index_of(best) : -1;
        a.p[r] = ok ? 1.f : 0.f;
    }
}

/* ---- the draw --------------------------------------------------------------------------------- */

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

/* Weights exp((x - max) / t) in units of 2^-40: 2^18 of them stay below 2^59. */
__device__ __forceinline__ u64 weight_of(float x, float max, float t)
{
    return __float2ull_rn(expf((x - max) / t) * 1099511627776.f);
}

/* The row that a block draws from, and a window of its candidates: those of rank first + i, i < n,
 * best first, with the weight of all up to each. */
struct drawing {
    u64 key[WINDOW], upto[WINDOW], warp[WARPS];
    int count[THREADS];
    int n, first, at;
    u64 before;    /* weight of the candidates in front of the window */
    u64 end;       /* candidates below the window have keys below this one */
};

/* What does not change while a row is drawn from. */
struct row {
    const source *s;
    const float *x;
    const u64 *list; /* the candidates of logit >= bar */
    int n_list;
    float max, t, bar;
    u64 total; /* weight of all candidates */
};

/* Calls f with this thread's share of the candidates that have keys in [low, high]. */
template <class F>
__device__ __forceinline__ void candidates(const row &w, u64 low, u64 high, const F &f)
{
    if (low >= key_of(w.bar, w.s->n)) {
        for (int i = (int)threadIdx.x; i < w.n_list; i += THREADS) {
            u64 key = __ldcg(w.list + i);
            if (key >= low && key <= high)
                f(key);
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < w.s->n; i += THREADS) {
        u64 key = w.s->mask && w.s->mask[i] ? 0 : key_of(w.x[i], i);
        if (key >= low && key <= high)
            f(key);
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

/* The lowest key that bounds a window of candidates in [low, high], the best of which it holds:
 * not more of them than fit, and at least one if there is any. */
__device__ u64 window_end(const row &w, drawing &s, u64 low, u64 high)
{
    const int tid = (int)threadIdx.x;
    for (;;) {
        int shift = max(0, 56 - __clzll((long long)(high - low)));
        s.count[tid] = 0;
        __syncthreads();
        candidates(w, low, high,
                   [&](u64 key) { atomicAdd(&s.count[(high - key) >> shift], 1); });
        __syncthreads();
        u64 upto = sum_upto((u64)s.count[tid], s.warp);
        u64 bins = (u64)__syncthreads_count(upto <= WINDOW); /* that fit together */
        if (bins == THREADS)
            return low;
        bool any = __syncthreads_or(upto > 0 && upto <= WINDOW);
        high -= bins << shift;
        if (any)
            return high + 1;
        low = high - ((1ull << shift) - 1); /* the first with any is too much alone */
    }
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

/* Fills the window with the best of the candidates whose keys are in [low, high]. */
__device__ void fill(const row &w, drawing &s, u64 low, u64 high)
{
    bool listed = low == key_of(w.bar, w.s->n);
    u64 end = listed && w.n_list <= WINDOW ? low : window_end(w, s, low, high);
    int room = 2;
    __syncthreads();
    if (threadIdx.x == 0)
        s.n = 0, s.end = end;
    __syncthreads();
    candidates(w, end, high, [&](u64 key) { s.key[atomicAdd(&s.n, 1)] = key; });
    __syncthreads();
    while (room < s.n)
        room *= 2;
    for (int i = s.n + (int)threadIdx.x; i < room; i += THREADS)
        s.key[i] = 0;
    __syncthreads();
    sort_keys(s.key, room);
    add_up(w, s);
}

/* The window of the best candidates, and the one behind a window. False: nothing behind it weighs
 * anything. */
__device__ void first_window(const row &w, drawing &s)
{
    __syncthreads();
    if (threadIdx.x == 0)
        s.first = 0, s.before = 0;
    __syncthreads();
    fill(w, s, key_of(w.bar, w.s->n), ~0ull);
}

__device__ bool next_window(const row &w, drawing &s)
{
    u64 listed = key_of(w.bar, w.s->n), upto = s.n ? s.upto[s.n - 1] : s.before, end = s.end;
    __syncthreads();
    if (upto == w.total || end <= 1)
        return false;
    if (threadIdx.x == 0)
        s.first += s.n, s.before = upto;
    fill(w, s, end > listed ? listed : 1, end - 1);
    return true;
}

enum goal { BY_COUNT, BY_WEIGHT, TOO_LIGHT };

/* The rank of the candidate with which the count, or the weight of all up to it, reaches `least`,
 * or the first that weighs less. -1: there is none. It is in the window then. */
__device__ int find(const row &w, drawing &s, enum goal goal, u64 least)
{
    if (s.first)
        first_window(w, s);
    do {
        __syncthreads();
        if (threadIdx.x == 0)
            s.at = -1;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < s.n; i += THREADS) {
            u64 upto = s.upto[i], to = i ? s.upto[i - 1] : s.before;
            bool is = goal == BY_COUNT    ? (u64)(s.first + i + 1) == least
                      : goal == BY_WEIGHT ? upto >= least && (i == 0 || to < least)
                                          : upto - to < least;
            if (is)
                atomicMin((unsigned *)&s.at, (unsigned)i); /* -1 is the greatest */
        }
        __syncthreads();
        if (s.at >= 0)
            return s.first + s.at;
    } while (next_window(w, s));
    return -1;
}

/* Filters, then draws: *id and *p, for the whole block. */
__device__ void draw(const row &w, drawing &s, const struct sampling &how, float u, int *id,
                     float *p)
{
    u64 mass = w.total;
    first_window(w, s);
    if (how.top_k > 0 && find(w, s, BY_COUNT, (u64)how.top_k) >= 0)
        mass = s.upto[s.at];
    if (how.top_p < 1) {
        u64 least = (u64)ceil(fmax((double)how.top_p, 0.) * (double)mass);
        if (find(w, s, BY_WEIGHT, least ? least : 1) >= 0)
            mass = min(mass, s.upto[s.at]);
    }
    if (how.min_p > 0) {
        int rank = find(w, s, TOO_LIGHT, (u64)((double)how.min_p * 1099511627776.0 + .5));
        if (rank >= 0) /* the best one is never too light */
            mass = min(mass, rank == 0 ? s.upto[0] : s.at ? s.upto[s.at - 1] : s.before);
    }
    u64 target = (u64)((double)u * (double)mass) + 1;
    find(w, s, BY_WEIGHT, min(target, mass));
    int at = max(0, s.at);
    *id = index_of(s.key[at]);
    *p = (float)((double)(s.upto[at] - (at ? s.upto[at - 1] : s.before)) / (double)mass);
}

/* Every block weighs its segment and lists what is no more than 10 temperatures below the best,
 * beyond which little is ever drawn; the last one draws. */
__global__ void __launch_bounds__(THREADS, 4)
    draw_kernel(const __grid_constant__ struct draw_args a)
{
    __shared__ drawing s;
    let_next();
    after();
    const int r = (int)blockIdx.y, tid = (int)threadIdx.x;
    float x[EACH];
    const float max = a.top[r], t = a.how.temperature, lowest = -3.4028235e38f;
    load_segment(a.s, r, x);
    unsigned allowed = load_allowed(a.s), listed = 0;
    if (!(max > -INFINITY)) {
        if (blockIdx.x == 0 && tid == 0)
            a.ids[r] = -1, a.p[r] = 0;
        return;
    }
    const float bar = fmaxf(max - 10 * t, lowest);
    unsigned *cell = a.counters + (size_t)r * CELLS;
    u64 *list = a.list + (size_t)r * (size_t)a.s.n, weight = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        bool is = (allowed >> j & 1) && x[j] >= lowest;
        weight += is ? weight_of(x[j], max, t) : 0;
        listed |= is && x[j] >= bar ? 1u << j : 0;
    }
    weight = lanes_u64<false>(weight, 32);
    if (tid % 32 == 0 && weight)
        atomicAdd((u64 *)(cell + 2), weight);
    if (__any_sync(~0u, listed)) {
        unsigned mine = (unsigned)__popc(listed), upto = mine, at = 0;
        for (int i = 1; i < 32; i *= 2) {
            unsigned v = __shfl_up_sync(~0u, upto, i);
            upto += tid % 32 >= i ? v : 0;
        }
        if (tid % 32 == 31)
            at = atomicAdd(cell + 1, upto);
        at = __shfl_sync(~0u, at, 31) + upto - mine;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (listed >> j & 1)
                list[at++] = key_of(x[j], place(a.s, j));
    }
    if (!last_to_arrive(cell, gridDim.x))
        return;

    int id;
    float p;
    row w = {&a.s, a.s.x + (size_t)r * (size_t)a.s.n, list, (int)__ldcg(cell + 1), max, t, bar,
             __ldcg((u64 *)(cell + 2))};
    draw(w, s, a.how, a.u[r], &id, &p);
    if (tid == 0) {
        a.ids[r] = id, a.p[r] = p;
        cell[1] = cell[2] = cell[3] = 0;
    }
}

void cuda_sample(struct kdev *d, const struct k_sample *a)
{
    cuda_begin(d, "sample");
    if (a->rows == 0)
        return;
    size_t rows = (size_t)a->rows, n = (size_t)a->n;
    bool greedy = !(a->how.temperature > 0);
    struct argmax_args m = {};
    struct draw_args w = {};
    m.s = w.s = source_of(a->logits, a->mask, a->rows, a->n);
    m.counters = w.counters = d->counters;
    int32_t *ids = cuda_i32(a->ids, rows);
    float *p = cuda_f32(a->p, rows);
    const float *u = greedy ? NULL : cuda_f32(a->u, rows);
    size_t segs = (size_t)m.s.segs, each = (segs + (greedy ? 0 : n)) * sizeof(u64) + sizeof(float);
    int fit = min_int(cuda_fit(a->rows, each), (int)N_COUNTERS / CELLS);
    CHECK(fit > 0);
    w.how = a->how;
    for (int r = 0; r < a->rows; r += fit) {
        int some = min_int(fit, a->rows - r);
        d->arena_at = 0;
        m.best = (u64 *)cuda_take(d, (size_t)some * segs * sizeof(u64));
        m.s.x = w.s.x = (const float *)a->logits.p + (size_t)r * n;
        m.ids = greedy ? ids + r : NULL;
        m.p = p + r;
        if (!greedy) {
            w.top = m.top = (float *)cuda_take(d, (size_t)some * sizeof(float));
            w.list = (u64 *)cuda_take(d, (size_t)some * n * sizeof(u64));
            w.u = u + r, w.ids = ids + r, w.p = p + r;
        }
        dim3 grid((unsigned)segs, (unsigned)some);
        cuda_launch(d, argmax_kernel, grid, THREADS, 0, m);
        if (!greedy)
            cuda_launch(d, draw_kernel, grid, THREADS, 0, w);
    }
}

/* ---- logp ----------------------------------------------------------------------------------- */

struct logp_args {
    source s;
    int pairs, rows;
    const int32_t *row, *id;
    float *logp;
    mass *part; /* (rows, segs, WARPS) */
    unsigned *counters;
};

/* The last block of a row has its log of the sum of exp, and writes the pairs that name it. The
 * first row also answers for pairs that name none. */
__global__ void __launch_bounds__(THREADS, 4)
    logp_kernel(const __grid_constant__ struct logp_args a)
{
    let_next();
    after();
    const int r = (int)blockIdx.y, tid = (int)threadIdx.x;
    float x[EACH];
    load_segment(a.s, r, x);
    int named = 0;
    for (int i = tid; i < a.pairs; i += THREADS)
        named |= a.row[i] == r || (r == 0 && (unsigned)a.row[i] >= (unsigned)a.rows);
    if (!__syncthreads_or(named))
        return;
    mass m = warp_mass(x), *part = a.part + (size_t)r * (size_t)a.s.segs * WARPS;
    if (tid % 32 == 0)
        part[blockIdx.x * WARPS + (unsigned)(tid / 32)] = m;
    if (!last_to_arrive(a.counters + r, gridDim.x))
        return;
    double lse = lse_of(my_total(part, a.s.segs * WARPS));
    for (int i = tid; i < a.pairs; i += THREADS) {
        int row = a.row[i], id = a.id[i];
        bool none = (unsigned)row >= (unsigned)a.rows;
        if (row == r || (r == 0 && none))
            a.logp[i] = none || (unsigned)id >= (unsigned)a.s.n
                            ? NAN
                            : (float)((double)a.s.x[(size_t)r * (size_t)a.s.n + (size_t)id] - lse);
    }
}

void cuda_logp(struct kdev *d, const struct k_logp *a)
{
    cuda_begin(d, "logp");
    if (a->pairs == 0)
        return;
    size_t rows = (size_t)a->rows, pairs = (size_t)a->pairs;
    struct logp_args l = {};
    l.s = source_of(a->logits, (kbuf){}, a->rows, a->n);
    size_t each = (size_t)l.s.segs * WARPS * sizeof(mass);
    if (a->rows > cuda_fit(a->rows, each) || a->rows > N_COUNTERS) {
        cuda_fail(d, "too many rows of logits");
        return;
    }
    l.pairs = a->pairs, l.rows = a->rows;
    l.row = cuda_i32(a->row, pairs), l.id = cuda_i32(a->id, pairs);
    l.logp = cuda_f32(a->logp, pairs);
    l.part = (mass *)cuda_take(d, rows * each);
    l.counters = d->counters;
    cuda_launch(d, logp_kernel, dim3((unsigned)l.s.segs, (unsigned)a->rows), THREADS, 0, l);
}
