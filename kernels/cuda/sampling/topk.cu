/* topk.cu - reading logits: the k best, a draw from them, log probabilities, and all of that
 * in one pass (read).
 *
 * A row is cut into even segments of at most 4096, one block each or, where there are many, a run
 * of them; the block of a row that arrives last joins what they found. Candidates are compared by
 * 64-bit keys that order by (logit descending, index ascending) and are all different, so no result
 * depends on the order in which threads meet them. Log probabilities add up in an order that the
 * row's length fixes; the weights of a draw are integers, whose sum has no order.
 */
#include "kernels/cuda/sampling/sample.cuh"

/* ---- topk ----------------------------------------------------------------------------------- */

/* Row and id of each log probability that is asked for. */
struct pairs {
    int n, rows;
    const int32_t *row, *id;
    float *logp;
};

struct topk_args {
    source s;
    int k, each; /* each: segments of a block */
    u64 *best;   /* (rows, blocks, k) */
    mass *part;  /* (rows, segs, WARPS) */
    unsigned *counters;
    int32_t *ids;
    float *logp, *lse;
    struct sampling how; /* to draw: one id and, in logp, its probability, a row */
    const float *u;
    /* what else is asked of the same rows, which are those from `first` on: the best one that is
     * not banned, and pairs */
    int first;
    const uint8_t *banned;
    int32_t *choice; /* (rows) or NULL */
    float *chance;
    struct pairs pairs;
};

/* Key i of a row's. Those of a block are sorted: they turn from block to block, lest a group of
 * threads had none but bad ones. */
__device__ __forceinline__ int turned(int i, int k)
{
    int block = i / k;
    return block * k + (i + 3 * block) % k;
}

/* The k best of n keys in memory, the first few of each thread in registers. */
enum { FEW = 2 };

__device__ __forceinline__ void row_best(const u64 *key, int n, const u64 (&few)[FEW], int k,
                                         u64 *out, picking &room)
{
    const int tid = (int)threadIdx.x;
    u64 top = 0;
    auto all = [&](auto f) {
#pragma unroll
        for (int i = 0; i < FEW; i++)
            f(few[i]);
        for (int i = FEW * THREADS + tid; i < n; i += THREADS)
            f(__ldcg(key + turned(i, k)));
    };
    all([&](u64 v) { top = v > top ? v : top; });
    best_of(top, all, [&](u64 bar, auto f) {
        all([&](u64 v) {
            if (v >= bar)
                f(v);
        });
    }, k, out, room);
}

/* The best candidate that is not banned, nearly always one of the k best of all; for a whole block.
 */
__device__ void choose(const topk_args &a, int r, const u64 *best, bool sick, picking &s)
{
    const int tid = (int)threadIdx.x;
    auto may = [&](u64 key) {
        bool is = key && logit_of(key) > -INFINITY;
        return is && !(a.banned && a.banned[index_of(key)]) ? key : 0;
    };
    u64 top = block_max(tid < a.k ? may(best[tid]) : 0, s.room);
    if (!top && !sick) {
        const float *x = a.s.x + (size_t)r * (size_t)a.s.n;
        for (int i = tid; i < a.s.n; i += THREADS) {
            u64 key = may(key_of(x[i], i));
            top = key > top ? key : top;
        }
        top = block_max(top, s.room);
    }
    if (tid == 0) {
        a.choice[r] = top && !sick ? index_of(top) : -1;
        a.chance[r] = top && !sick ? 1.f : 0.f;
    }
}

/* The pairs that name row r, whose logits lie at x; row 0 also answers for those that name none. */
__device__ __forceinline__ void answer(const struct pairs &p, const source &s, const float *x,
                                       int r, double lse)
{
    for (int i = (int)threadIdx.x; i < p.n; i += THREADS) {
        int row = p.row[i], id = p.id[i];
        bool none = (unsigned)row >= (unsigned)p.rows;
        if (row == r || (r == 0 && none))
            p.logp[i] =
                none || (unsigned)id >= (unsigned)s.n ? NAN : (float)((double)x[id] - lse);
    }
}

__device__ __forceinline__ mass sick_mass(const float (&x)[EACH])
{
    bool sick = false;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        sick |= !(x[j] < INFINITY);
    return {0, __any_sync(~0u, sick) ? NAN : 0.f};
}

/* The draw from no more than MOST_K candidates, best first; one warp, two of them a lane. */
__device__ void draw_few(const topk_args &a, int r, const u64 *best, bool sick)
{
    const int lane = (int)threadIdx.x;
    if (lane >= 32)
        return;
    const float max = logit_of(best[0]), t = a.how.temperature;
    u64 key[2], upto[2], heavy = 0, least = min_p_of(a.how);
    for (int i = 0; i < 2; i++) {
        int at = 2 * lane + i;
        key[i] = at < a.k ? best[at] : 0;
        bool is = key[i] && logit_of(key[i]) > -INFINITY;
        upto[i] = is ? weight_of(logit_of(key[i]), max, t) : 0;
        heavy += upto[i] >= least ? upto[i] : 0;
    }
    u64 pair = upto[0] + upto[1], sum = pair;
    for (int i = 1; i < 32; i *= 2) {
        u64 v = __shfl_up_sync(~0u, sum, i);
        sum += lane >= i ? v : 0;
    }
    u64 before = sum - pair;
    upto[0] += before, upto[1] = sum;
    u64 mass = __shfl_sync(~0u, sum, 31);
    /* the weight of all up to the first candidate that reaches `goal` */
    auto reach = [&](u64 goal) {
        u64 mine = upto[0] >= goal ? upto[0] : upto[1] >= goal ? upto[1] : ~0ull;
        return ~lanes_u64<true>(~mine, 32);
    };
    if (a.how.top_p < 1)
        mass = min(mass, reach(top_p_of(a.how, mass)));
    if (a.how.min_p > 0) {
        heavy = lanes_u64<false>(heavy, 32);
        mass = min(mass, heavy ? heavy : 1ull << UNIT_BITS);
    }
    bool none = sick || mass == 0;
    u64 goal = target_of(a.u[r], mass);
    int i = upto[0] >= goal ? 0 : 1;
    u64 low = i ? upto[0] : before;
    if (none ? lane == 0 : low < goal && upto[i] >= goal) {
        a.ids[r] = none ? -1 : index_of(key[i]);
        a.logp[r] = none ? 0.f : (float)((double)(upto[i] - low) / (double)mass);
    }
}

/* What a kernel makes of the k best: ids and log probabilities, a draw, or nothing yet. */
enum use { USE_BEST, USE_DRAW, USE_PARTS };

/* The masses of the segments from `from` to before `to`, and their k best; the next one is under
 * way while one is looked at. DRAW: no log probabilities are wanted, but whether the row is
 * sick. */
template <bool DRAW>
__device__ __forceinline__ void read_segments(const topk_args &a, int r, int from, int to,
                                              u64 *best, picking &s)
{
    const int tid = (int)threadIdx.x;
    mass *part = a.part + ((size_t)r * (size_t)a.s.segs + (size_t)from) * WARPS + tid / 32;
    seen v = {0, -INFINITY};
    float x[EACH], next[EACH];
    load_segment(a.s, r, from, x);
#pragma unroll 1
    for (int seg = from; seg < to; seg++, part += WARPS) {
        if (seg + 1 < to)
            load_segment(a.s, r, seg + 1, next);
        const float peak = largest(x);
        const mass m = DRAW ? sick_mass(x) : warp_mass(x, peak);
        if (tid % 32 == 0)
            *part = m;
        list_segment(a.s, seg, x, peak, a.k, v, s);
#pragma unroll
        for (int j = 0; j < EACH; j++)
            x[j] = next[j];
    }
    __syncthreads();
    best_listed([&](auto f) {
        for (int seg = from; seg < to; seg++) {
            float y[EACH];
            load_segment(a.s, r, seg, y);
            unsigned allowed = load_allowed(a.s, seg);
#pragma unroll
            for (int j = 0; j < EACH; j++)
                f(allowed >> j & 1 ? key_of(y[j], place(a.s, seg, j)) : 0);
        }
    }, a.k, best, s);
}

template <int USE>
__global__ void __launch_bounds__(THREADS, 3)
    topk_kernel(const __grid_constant__ struct topk_args a)
{
    __shared__ picking s;
    __shared__ u64 best[MOST_K];
    const int r = (int)blockIdx.y, tid = (int)threadIdx.x, from = (int)blockIdx.x * a.each;
    pdl_trigger();
    if (tid == 0)
        s.n = 0;
    pdl_wait_trigger();
    u64 *all = a.best + (size_t)r * gridDim.x * (size_t)a.k;
    read_segments<USE == USE_DRAW>(a, r, from, min(a.s.segs, from + a.each),
                                   all + blockIdx.x * (size_t)a.k, s);
    if (USE == USE_PARTS || !last_of_row(a.counters + r, gridDim.x))
        return;

    int n = (int)gridDim.x * a.k;
    u64 few[FEW];
#pragma unroll
    for (int i = 0; i < FEW; i++)
        few[i] = i * THREADS + tid < n ? __ldcg(all + turned(i * THREADS + tid, a.k)) : 0;
    total t = my_total(a.part + (size_t)r * (size_t)a.s.segs * WARPS, a.s.segs * WARPS);
    row_best(all, n, few, a.k, best, s);
    double lse = lse_of(t); /* whose barriers show `best` to every thread */
    if (USE == USE_DRAW) {
        draw_few(a, r, best, isnan(lse));
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
        choose(a, r, best, isnan(lse), s);
    answer(a.pairs, a.s, a.s.x + (size_t)r * (size_t)a.s.n, a.first + r, lse);
}

/* As many blocks as there is room for at once, each with a run of segments of one row. */
static int segments_each(const struct kdev *d, int segs, int rows)
{
    int blocks = 3 * d->n_sm;
    return rows * segs <= blocks ? 1 : div_up(segs, max_int(1, blocks / rows));
}

static void topk_rows(struct kdev *d, const struct topk_args *t, int rows, bool draw)
{
    size_t segs = (size_t)t->s.segs, k = (size_t)t->k, per = draw ? 1 : k;
    int fit = min_int(cuda_fit(rows, segs * (k * sizeof(u64) + WARPS * sizeof(mass))), N_COUNTERS);
    for (int r = 0; r < rows; r += fit) {
        int n = min_int(fit, rows - r);
        struct topk_args b = *t;
        d->arena_at = 0;
        b.best = (u64 *)cuda_take(d, (size_t)n * segs * k * sizeof(u64));
        b.part = (mass *)cuda_take(d, (size_t)n * segs * WARPS * sizeof(mass));
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
    CHECK(a->k > 0 && a->k <= MOST_K && a->k <= a->n);
    struct topk_args t = {};
    t.s = source_of(a->logits, a->mask, a->rows, a->n);
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
    t.s = source_of(a->logits, a->mask, a->rows, a->n);
    t.k = min_int(a->how.top_k, a->n), t.how = a->how, t.u = cuda_f32(a->u, rows);
    t.ids = cuda_i32(a->ids, rows), t.logp = cuda_f32(a->p, rows);
    topk_rows(d, &t, a->rows, true);
}

bool cuda_topk_parts(struct kdev *d, const struct k_topk *a, struct found *f)
{
    cuda_begin(d, "topk");
    struct topk_args t = topk_of(a);
    const int segs = t.s.segs, keys = segs * t.k, masses = segs * WARPS;
    if (a->mask.p || a->lse.p || keys > MOST_FOUND || masses > min_int(MOST_FOUND, THREADS) ||
        segments_each(d, segs, a->rows) > 1)
        return false;
    const size_t rows = (size_t)a->rows;
    t.each = 1;
    t.best = (u64 *)cuda_take(d, rows * (size_t)keys * sizeof(u64));
    t.part = (mass *)cuda_take(d, rows * (size_t)masses * sizeof(mass));
    *f = {t.best, t.part, keys, masses, t.k, t.ids, t.logp};
    cuda_launch(d, topk_kernel<USE_PARTS>, dim3((unsigned)segs, (unsigned)a->rows), THREADS, 0, t);
    return true;
}

/* ---- logp ----------------------------------------------------------------------------------- */

struct logp_args {
    source s;
    struct pairs pairs;
    mass *part; /* (rows, segs, WARPS) */
    unsigned *counters;
};

/* The last block of a row has its log of the sum of exp, and writes the pairs that name it. */
__global__ void __launch_bounds__(THREADS, 3)
    logp_kernel(const __grid_constant__ struct logp_args a)
{
    pdl_trigger();
    pdl_wait_trigger();
    const int r = (int)blockIdx.y, tid = (int)threadIdx.x;
    float x[EACH];
    load_segment(a.s, r, (int)blockIdx.x, x);
    const struct pairs &p = a.pairs;
    int named = 0;
    for (int i = tid; i < p.n; i += THREADS)
        named |= p.row[i] == r || (r == 0 && (unsigned)p.row[i] >= (unsigned)p.rows);
    if (!__syncthreads_or(named))
        return;
    mass m = warp_mass(x, largest(x)), *part = a.part + (size_t)r * (size_t)a.s.segs * WARPS;
    if (tid % 32 == 0)
        part[blockIdx.x * WARPS + (unsigned)(tid / 32)] = m;
    if (!last_of_row(a.counters + r, gridDim.x))
        return;
    double lse = lse_of(my_total(part, a.s.segs * WARPS));
    answer(p, a.s, a.s.x + (size_t)r * (size_t)a.s.n, r, lse);
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
    l.s = source_of(a->logits, (kbuf){}, a->rows, a->n);
    size_t each = (size_t)l.s.segs * WARPS * sizeof(mass);
    if (a->rows > cuda_fit(a->rows, each) || a->rows > N_COUNTERS) {
        cuda_fail(d, "too many rows of logits");
        return;
    }
    l.pairs = pairs_of(a);
    l.part = (mass *)cuda_take(d, rows * each);
    l.counters = d->counters;
    cuda_launch(d, logp_kernel, dim3((unsigned)l.s.segs, (unsigned)a->rows), THREADS, 0, l);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* What topk() reads rows for tells the rest as well; a draw other than the best one reads them by
 * itself. */
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
