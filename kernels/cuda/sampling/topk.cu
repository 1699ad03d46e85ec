/* topk.cu - the k best of each row of logits, a draw from them, log probabilities, and all of these
 * in one pass (read).
 *
 * A row is divided into equal segments of at most 4096. A block reads one segment, or several
 * successive ones if there are many; the last block of a row to arrive combines the blocks'
 * results. Candidates are compared by 64-bit keys that order by (logit descending, index ascending)
 * and are all different, so no result depends on the order in which threads meet candidates. Log
 * probabilities are summed in an order fixed by the row's length; the weights of a draw are
 * integers, whose sum has no order.
 */
#include "kernels/cuda/sampling/sample.cuh"

/* ---- topk ----------------------------------------------------------------------------------- */

/* Log probabilities to compute: row and id of each. */
struct pairs {
    int n, rows;
    const int32_t *row, *id;
    float *logp;
};

struct topk_args {
    logit_rows s;
    int k, each; /* each: segments of a block */
    u64 *best;   /* (rows, blocks, k) */
    exp_sum *part; /* (rows, segs, WARPS) */
    unsigned *counters;
    int32_t *ids;
    float *logp, *lse;
    struct sampling how; /* for a draw: one id a row, and its probability in logp */
    const float *u;
    /* For cuda_read(), of the same rows, the first of which is row `first` of the operation: the
     * best candidate that is not banned, and log probabilities of pairs. */
    int first;
    const uint8_t *banned;
    int32_t *choice; /* (rows) or NULL */
    float *chance;
    struct pairs pairs;
};

/* Key i of a row's keys. The keys of a block are sorted; rotating them from block to block gives
 * every group of threads some good ones. */
__device__ __forceinline__ int rotated(int i, int k)
{
    int block = i / k;
    return block * k + (i + 3 * block) % k;
}

/* The k best of n keys in memory; the first IN_REGS keys of each thread are in registers. */
enum { IN_REGS = 2 };

__device__ __forceinline__ void topk_of_blocks(const u64 *key, int n, const u64 (&in_regs)[IN_REGS],
                                               int k, u64 *out, topk_state &scratch)
{
    const int tid = (int)threadIdx.x;
    u64 top = 0;
    auto all = [&](auto f) {
#pragma unroll
        for (int i = 0; i < IN_REGS; i++)
            f(in_regs[i]);
        for (int i = IN_REGS * THREADS + tid; i < n; i += THREADS)
            f(__ldcg(key + rotated(i, k)));
    };
    all([&](u64 v) { top = v > top ? v : top; });
    block_topk(
        top, all,
        [&](u64 threshold, auto f) {
            all([&](u64 v) {
                if (v >= threshold)
                    f(v);
            });
        },
        k, out, scratch);
}

/* The best candidate that is not banned; usually one of the k best, otherwise the whole row is
 * searched. The whole block calls. */
__device__ void choose_allowed(const topk_args &a, int r, const u64 *best, bool invalid,
                               topk_state &s)
{
    const int tid = (int)threadIdx.x;
    auto may = [&](u64 key) {
        bool is = key && logit_of(key) > -INFINITY;
        return is && !(a.banned && a.banned[index_of(key)]) ? key : 0;
    };
    u64 top = block_max(tid < a.k ? may(best[tid]) : 0, s.scratch);
    if (!top && !invalid) {
        const float *x = a.s.x + (size_t)r * (size_t)a.s.n;
        for (int i = tid; i < a.s.n; i += THREADS) {
            u64 key = may(key_of(x[i], i));
            top = key > top ? key : top;
        }
        top = block_max(top, s.scratch);
    }
    if (tid == 0) {
        a.choice[r] = top && !invalid ? index_of(top) : -1;
        a.chance[r] = top && !invalid ? 1.f : 0.f;
    }
}

/* Writes the log probabilities of the pairs that name row r, whose logits are at x. Row 0 also
 * writes NaN for pairs that name no row. */
__device__ __forceinline__ void write_pairs(const struct pairs &p, const logit_rows &s,
                                            const float *x, int r, double lse)
{
    for (int i = (int)threadIdx.x; i < p.n; i += THREADS) {
        int row = p.row[i], id = p.id[i];
        bool none = (unsigned)row >= (unsigned)p.rows;
        if (row == r || (r == 0 && none))
            p.logp[i] =
                none || (unsigned)id >= (unsigned)s.n ? NAN : (float)((double)x[id] - lse);
    }
}

__device__ __forceinline__ exp_sum nan_exp_sum(const float (&x)[PER_THREAD])
{
    bool invalid = false;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++)
        invalid |= !(x[j] < INFINITY);
    return {0, __any_sync(~0u, invalid) ? NAN : 0.f};
}

/* Draws from at most MAX_K candidates, best first; one warp, two candidates a lane. */
__device__ void draw_in_warp(const topk_args &a, int r, const u64 *best, bool invalid)
{
    const int lane = (int)threadIdx.x;
    if (lane >= 32)
        return;
    const float max = logit_of(best[0]), t = a.how.temperature;
    u64 key[2], upto[2], min_p_weight = 0, least = min_p_of(a.how);
    for (int i = 0; i < 2; i++) {
        int at = 2 * lane + i;
        key[i] = at < a.k ? best[at] : 0;
        bool is = key[i] && logit_of(key[i]) > -INFINITY;
        upto[i] = is ? weight_of(logit_of(key[i]), max, t) : 0;
        min_p_weight += upto[i] >= least ? upto[i] : 0;
    }
    const u64 pair = upto[0] + upto[1], sum = inclusive_scan(pair);
    u64 before = sum - pair;
    upto[0] += before, upto[1] = sum;
    u64 mass = __shfl_sync(~0u, sum, 31);
    /* The cumulative weight at the first candidate that reaches `goal`. */
    auto reach = [&](u64 goal) {
        u64 mine = upto[0] >= goal ? upto[0] : upto[1] >= goal ? upto[1] : ~0ull;
        return ~lanes_u64<true>(~mine, 32);
    };
    if (a.how.top_p < 1)
        mass = min(mass, reach(top_p_of(a.how, mass)));
    if (a.how.min_p > 0) {
        min_p_weight = lanes_u64<false>(min_p_weight, 32);
        mass = min(mass, min_p_weight ? min_p_weight : 1ull << UNIT_BITS);
    }
    bool none = invalid || mass == 0;
    u64 goal = target_of(a.u[r], mass);
    int i = upto[0] >= goal ? 0 : 1;
    u64 low = i ? upto[0] : before;
    if (none ? lane == 0 : low < goal && upto[i] >= goal) {
        a.ids[r] = none ? -1 : index_of(key[i]);
        a.logp[r] = none ? 0.f : (float)((double)(upto[i] - low) / (double)mass);
    }
}

/* What a kernel computes from the k best: ids and log probabilities, a draw, or nothing
 * (topk_parts). */
enum use { USE_BEST, USE_DRAW, USE_PARTS };

/* The partial sums of exponentials of the segments [from, to), and their k best; the next segment
 * is loaded while one is processed. DRAW: no log probabilities are needed, only whether the row is
 * valid. */
template <bool DRAW>
__device__ __forceinline__ void read_segments(const topk_args &a, int r, int from, int to,
                                              u64 *best, topk_state &s)
{
    const int tid = (int)threadIdx.x;
    exp_sum *part = a.part + ((size_t)r * (size_t)a.s.segs + (size_t)from) * WARPS + tid / 32;
    run_state v = {0, -INFINITY};
    float x[PER_THREAD], next[PER_THREAD];
    load_segment(a.s, r, from, x);
#pragma unroll 1
    for (int seg = from; seg < to; seg++, part += WARPS) {
        if (seg + 1 < to)
            load_segment(a.s, r, seg + 1, next);
        const float peak = largest(x);
        const exp_sum m = DRAW ? nan_exp_sum(x) : warp_exp_sum(x, peak);
        if (tid % 32 == 0)
            *part = m;
        append_segment(a.s, seg, x, peak, a.k, v, s);
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++)
            x[j] = next[j];
    }
    __syncthreads();
    rank_list(
        [&](auto f) {
            for (int seg = from; seg < to; seg++) {
                float y[PER_THREAD];
                load_segment(a.s, r, seg, y);
                unsigned allowed = load_allowed(a.s, seg);
#pragma unroll
                for (int j = 0; j < PER_THREAD; j++)
                    f(allowed >> j & 1 ? key_of(y[j], element_index(a.s, seg, j)) : 0);
            }
        },
        a.k, best, s);
}

template <int USE>
__global__ void __launch_bounds__(THREADS, 3)
    topk_kernel(const __grid_constant__ struct topk_args a)
{
    __shared__ topk_state s;
    __shared__ u64 best[MAX_K];
    const int r = (int)blockIdx.y, tid = (int)threadIdx.x, from = (int)blockIdx.x * a.each;
    pdl_trigger();
    if (tid == 0)
        s.n = 0;
    pdl_wait_trigger();
    u64 *all = a.best + (size_t)r * gridDim.x * (size_t)a.k;
    read_segments<USE == USE_DRAW>(a, r, from, min(a.s.segs, from + a.each),
                                   all + blockIdx.x * (size_t)a.k, s);
    if (USE == USE_PARTS || !last_to_arrive(a.counters + r, gridDim.x))
        return;

    int n = (int)gridDim.x * a.k;
    u64 in_regs[IN_REGS];
#pragma unroll
    for (int i = 0; i < IN_REGS; i++)
        in_regs[i] = i * THREADS + tid < n ? __ldcg(all + rotated(i * THREADS + tid, a.k)) : 0;
    total t = thread_total(a.part + (size_t)r * (size_t)a.s.segs * WARPS, a.s.segs * WARPS);
    topk_of_blocks(all, n, in_regs, a.k, best, s);
    double lse = lse_of(t); /* whose barriers make `best` visible to every thread */
    if (USE == USE_DRAW) {
        draw_in_warp(a, r, best, isnan(lse));
        return;
    }
    if (a.lse && tid == 0)
        a.lse[r] = (float)lse;
    if (tid < a.k) {
        u64 key = best[tid];
        size_t at = (size_t)r * (size_t)a.k + (size_t)tid;
        a.ids[at] = key ? index_of(key) : -1;
        a.logp[at] = key ? (float)((double)logit_of(key) - lse) : -INFINITY;
    }
    if (a.choice)
        choose_allowed(a, r, best, isnan(lse), s);
    write_pairs(a.pairs, a.s, a.s.x + (size_t)r * (size_t)a.s.n, a.first + r, lse);
}

/* Segments of a block, such that all blocks are resident at once. */
static int segments_each(const struct kdev *d, int segs, int rows)
{
    int blocks = 3 * d->gpu.n_sm;
    return rows * segs <= blocks ? 1 : div_up(segs, max_int(1, blocks / rows));
}

static void topk_rows(struct kdev *d, const struct topk_args *t, int rows, bool draw)
{
    size_t segs = (size_t)t->s.segs, k = (size_t)t->k, per = draw ? 1 : k;
    int fit =
        min_int(cuda_fit(rows, segs * (k * sizeof(u64) + WARPS * sizeof(exp_sum))), N_COUNTERS);
    for (int r = 0; r < rows; r += fit) {
        int n = min_int(fit, rows - r);
        struct topk_args b = *t;
        d->arena_at = 0;
        b.best = (u64 *)cuda_take(d, (size_t)n * segs * k * sizeof(u64));
        b.part = (exp_sum *)cuda_take(d, (size_t)n * segs * WARPS * sizeof(exp_sum));
        b.counters = d->counters;
        b.first = r;
        b.each = segments_each(d, b.s.segs, n);
        b.s.x += (size_t)r * (size_t)b.s.n;
        b.ids += (size_t)r * per, b.logp += (size_t)r * per;
        b.lse = b.lse ? b.lse + r : NULL;
        b.u = b.u ? b.u + r : NULL;
        if (b.choice)
            b.choice += r, b.chance += r;
        cuda_launch(d, draw ? topk_kernel<USE_DRAW> : topk_kernel<USE_BEST>,
                    dim3((unsigned)div_up(b.s.segs, b.each), (unsigned)n), THREADS, 0, b);
    }
}

static struct topk_args topk_of(const struct k_topk *a)
{
    size_t rows = (size_t)a->rows, k = (size_t)a->k;
    CHECK(a->k > 0 && a->k <= MAX_K && a->k <= a->n);
    struct topk_args t = {};
    t.s = logit_rows_of(a->logits, a->mask, a->rows, a->n);
    t.k = a->k;
    t.ids = cuda_i32(a->ids, rows * k), t.logp = cuda_f32(a->logp, rows * k);
    t.lse = a->lse.p ? cuda_f32(a->lse, rows) : NULL;
    return t;
}

void cuda_topk(struct kdev *d, const struct k_topk *a)
{
    cuda_begin(d, "topk");
    if (a->rows == 0)
        return;
    struct topk_args t = topk_of(a);
    topk_rows(d, &t, a->rows, false);
}

void cuda_topk_draw(struct kdev *d, const struct k_sample *a)
{
    size_t rows = (size_t)a->rows;
    struct topk_args t = {};
    t.s = logit_rows_of(a->logits, a->mask, a->rows, a->n);
    t.k = min_int(a->how.top_k, a->n), t.how = a->how, t.u = cuda_f32(a->u, rows);
    t.ids = cuda_i32(a->ids, rows), t.logp = cuda_f32(a->p, rows);
    topk_rows(d, &t, a->rows, true);
}

bool cuda_topk_parts(struct kdev *d, const struct k_topk *a, struct topk_parts *f)
{
    cuda_begin(d, "topk");
    struct topk_args t = topk_of(a);
    const int segs = t.s.segs, keys = segs * t.k, exp_sums = segs * WARPS;
    if (a->mask.p || a->lse.p || keys > MAX_PARTS || exp_sums > min_int(MAX_PARTS, THREADS) ||
        segments_each(d, segs, a->rows) > 1)
        return false;
    const size_t rows = (size_t)a->rows;
    t.each = 1;
    t.best = (u64 *)cuda_take(d, rows * (size_t)keys * sizeof(u64));
    t.part = (exp_sum *)cuda_take(d, rows * (size_t)exp_sums * sizeof(exp_sum));
    *f = {t.best, t.part, keys, exp_sums, t.k, t.ids, t.logp};
    cuda_launch(d, topk_kernel<USE_PARTS>, dim3((unsigned)segs, (unsigned)a->rows), THREADS, 0, t);
    return true;
}

/* ---- logp ----------------------------------------------------------------------------------- */

struct logp_args {
    logit_rows s;
    struct pairs pairs;
    exp_sum *part; /* (rows, segs, WARPS) */
    unsigned *counters;
};

/* The last block of a row computes the row's log of the sum of exponentials and writes the pairs
 * that name the row. */
__global__ void __launch_bounds__(THREADS, 3)
    logp_kernel(const __grid_constant__ struct logp_args a)
{
    pdl_trigger();
    pdl_wait_trigger();
    const int r = (int)blockIdx.y, tid = (int)threadIdx.x;
    float x[PER_THREAD];
    load_segment(a.s, r, (int)blockIdx.x, x);
    const struct pairs &p = a.pairs;
    int named = 0;
    for (int i = tid; i < p.n; i += THREADS)
        named |= p.row[i] == r || (r == 0 && (unsigned)p.row[i] >= (unsigned)p.rows);
    if (!__syncthreads_or(named))
        return;
    exp_sum m = warp_exp_sum(x, largest(x)), *part = a.part + (size_t)r * (size_t)a.s.segs * WARPS;
    if (tid % 32 == 0)
        part[blockIdx.x * WARPS + (unsigned)(tid / 32)] = m;
    if (!last_to_arrive(a.counters + r, gridDim.x))
        return;
    double lse = lse_of(thread_total(part, a.s.segs * WARPS));
    write_pairs(p, a.s, a.s.x + (size_t)r * (size_t)a.s.n, r, lse);
}

static struct pairs pairs_of(const struct k_logp *a)
{
    size_t n = (size_t)a->pairs;
    return {a->pairs, a->rows, cuda_i32(a->row, n), cuda_i32(a->id, n), cuda_f32(a->logp, n)};
}

void cuda_logp(struct kdev *d, const struct k_logp *a)
{
    cuda_begin(d, "logp");
    if (a->pairs == 0)
        return;
    size_t rows = (size_t)a->rows;
    struct logp_args l = {};
    l.s = logit_rows_of(a->logits, (kbuf){}, a->rows, a->n);
    size_t each = (size_t)l.s.segs * WARPS * sizeof(exp_sum);
    if (a->rows > cuda_fit(a->rows, each) || a->rows > N_COUNTERS) {
        cuda_fail(d, "too many rows of logits");
        return;
    }
    l.pairs = pairs_of(a);
    l.part = (exp_sum *)cuda_take(d, rows * each);
    l.counters = d->counters;
    cuda_launch(d, logp_kernel, dim3((unsigned)l.s.segs, (unsigned)a->rows), THREADS, 0, l);
}

/* ---- read ----------------------------------------------------------------------------------- */

/* One pass over the logits computes topk, the best candidate and the pairs. A draw at a temperature
 * reads the logits by itself. */
void cuda_read(struct kdev *d, const struct k_read *a)
{
    const struct k_sample *s = a->sample;
    const struct k_topk *k = a->topk;
    CHECK(k->logits.p == s->logits.p && k->rows == s->rows && k->n == s->n && !k->mask.p);
    CHECK(!a->logp || (a->logp->logits.p == k->logits.p && a->logp->rows == k->rows &&
                       a->logp->n == k->n));
    if (s->how.temperature > 0)
        cuda_sample(d, s);
    cuda_begin(d, "read");
    if (k->rows == 0)
        return;
    struct topk_args t = topk_of(k);
    if (!(s->how.temperature > 0)) {
        t.banned = (const uint8_t *)s->mask.p;
        CHECK(!t.banned || s->mask.n >= (size_t)s->n);
        t.choice = cuda_i32(s->ids, (size_t)s->rows), t.chance = cuda_f32(s->p, (size_t)s->rows);
    }
    if (a->logp)
        t.pairs = pairs_of(a->logp);
    topk_rows(d, &t, k->rows, false);
}
