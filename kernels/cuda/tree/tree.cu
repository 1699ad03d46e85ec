/* tree.cu - the draft tree on the device: grow, select (the rows to verify) and accept, one small
 * block each. If grow() is given the topk() before it, it also combines the partial results of that
 * topk()'s blocks.
 *
 * These operations run between the passes of a cycle, when nothing else can run, so the chain of
 * dependent steps decides: one round of loads fetches everything, a second follows ids and parents,
 * and the rest happens in shared memory. The rules are those of kernels/tree_rules.h; results equal
 * those of kernels/cpu/tree.c to the bit.
 */
#include "kernels/cuda/sampling/sample.cuh"
#include "kernels/tree_rules.h"

enum {
    MAX_FRONT = K_MAX_STEPS * K_MAX_TOPK,
    MAX_CANDIDATES = K_MAX_TOPK + (K_MAX_STEPS - 1) * K_MAX_TOPK * K_MAX_TOPK,
    MAX_ROWS = K_MAX_NODES, MAX_DEPTH = K_MAX_STEPS + 1,
};

struct tree {
    int topk, steps, nodes, n; /* n: candidates */
    int32_t *token, *parent, *cell, *front;
    float *logp, *score;
};

struct reach {
    int window, expand_w;
    const int32_t *slots;
    int32_t *lo, *hi, *n_expand, *expand;
};

static tree tree_of(const struct k_tree *t)
{
    CHECK(t->topk >= 1 && t->topk <= K_MAX_TOPK && t->steps >= 1 && t->steps <= K_MAX_STEPS &&
          t->nodes >= 1 && t->nodes <= K_MAX_NODES);
    int n = tree_candidates(t->topk, t->steps);
    size_t m = (size_t)n;
    tree c = {t->topk, t->steps, t->nodes, n, cuda_i32(t->token, m), cuda_i32(t->parent, m),
              cuda_i32(t->cell, m), cuda_i32(t->front, (size_t)(t->steps * t->topk)),
              cuda_f32(t->logp, m), cuda_f32(t->score, m)};
    return c;
}

static void reaches_of(const struct k_reach *a, int n_reach, int rows, int slots, int most,
                       reach *out)
{
    CHECK(n_reach >= 0 && n_reach <= 2);
    for (int p = 0; p < n_reach; p++) {
        size_t n = (size_t)rows;
        CHECK(a[p].expand_w >= (a[p].window > 0 ? min_int(most, a[p].window) : most));
        reach r = {a[p].window, a[p].expand_w, cuda_i32(a[p].slots, (size_t)slots),
                   cuda_i32(a[p].lo, n), cuda_i32(a[p].hi, n), cuda_i32(a[p].n_expand, n),
                   cuda_i32(a[p].expand, n * (size_t)a[p].expand_w)};
        out[p] = r;
    }
}

static u64 *time_of(kbuf to)
{
    CHECK(!to.p || to.n >= sizeof(u64));
    return (u64 *)to.p;
}
__device__ __forceinline__ void record_time(u64 *to)
{
    if (to && threadIdx.x == 0)
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(*to));
}

/* ---- what a row sees ------------------------------------------------------------------------- */

/* Writes the extent and the expanded slots of row r, which has n ancestors, itself the last;
 * slot_at(i) is the slot of the i-th. This thread writes columns column, column + columns, ...; the
 * thread of column 0 writes the extent. */
template <class Slot>
__device__ __forceinline__ void write_reach(const reach &a, int r, int column, int columns,
                                            int prefix, int n, Slot slot_at)
{
    const struct row_extent x = row_extent(prefix, n, a.window);
    if (column == 0) {
        a.lo[r] = x.lo;
        a.hi[r] = x.hi;
        a.n_expand[r] = x.n_expand;
    }
    for (int e = column; e < a.expand_w; e += columns)
        a.expand[r * a.expand_w + e] = e < x.n_expand ? slot_at(x.skip + e) : 0;
}

/* ---- grow ----------------------------------------------------------------------------------- */

struct grow_args {
    tree t;
    int level, rows, n_d2t, n_reach;
    unsigned inverse; /* x * inverse >> 16 == x / topk, for x < 256: tree_row_of() of a level */
    const int32_t *ids, *d2t, *prefix, *root;
    const float *logp;
    int32_t *token, *from;
    reach reach[2];
    u64 *time;
    struct topk_parts parts; /* if set: ids and logp are still to be computed from these */
};

/* A token that a row proposes as its child. */
struct proposal {
    int32_t token; /* -1: none */
    float logp;
};

__device__ __forceinline__ int32_t token_of(const grow_args &a, int32_t id)
{
    return tree_target_id(a.d2t, a.n_d2t, id);
}

/* Adds the level's candidate of this thread: tid = row * topk + rank. base: the parent's score.
 * Returns the candidate's key. */
__device__ __forceinline__ u64 add_candidate(const grow_args &a, int up, float base, proposal &g)
{
    const int tid = (int)threadIdx.x, at = tree_level_first(a.t.topk, a.level) + tid;
    bool none = a.level > 1 && up < 0;
    g.token = none ? -1 : g.token;
    float score = none ? -INFINITY : tree_score(base, g.logp);
    a.t.token[at] = g.token;
    a.t.parent[at] = up;
    a.t.logp[at] = none ? -INFINITY : g.logp;
    a.t.score[at] = score;
    return key_at(tree_key(score, g.token), tid);
}

/* Shared memory of grow(). */
struct grow_state {
    int front[MAX_FRONT], slots[2][MAX_FRONT];
    ulonglong2 keys[128];
    proposal proposals[K_MAX_TOPK * K_MAX_TOPK];
    float base[K_MAX_TOPK];                    /* scores of the last front */
    __align__(16) u64 list[WARPS][MAX_PARTS];  /* the keys of each warp's row */
    int token[K_MAX_TOPK], proposer[K_MAX_TOPK]; /* the new front, and its proposing rows */
    /* The ancestors of each row of the last pass, itself last: their rows, by level - 1. */
    uint8_t chain[K_MAX_TOPK][K_MAX_STEPS];
};

/* Finds the ancestors of row f of the last pass, one for each earlier pass. */
__device__ __forceinline__ void trace_ancestors(const grow_args &a, grow_state &s, int f)
{
    const int topk = a.t.topk, row = f;
    for (int l = a.level - 1; l >= 1; l--) {
        s.chain[row][l - 1] = (uint8_t)f;
        int i = max(0, s.front[(l - 1) * topk + f] - tree_level_first(topk, l));
        f = l > 1 ? (int)((unsigned)i * a.inverse >> 16) : 0;
    }
}

/* Writes column e of row k of the tables of reach p for the next pass; one thread a row also writes
 * its token and the row of its hidden state. */
__device__ __forceinline__ void write_next_row(const grow_args &a, const grow_state &s, int p,
                                               int k, int column, int prefix, int root)
{
    const int topk = a.t.topk, *mine = s.front + (a.level - 1) * topk;
    const int row = mine[k] >= 0 ? k : 0, own = tree_scratch_cell(topk, a.level, k);
    const bool none = mine[row] < 0;
    const int n = none ? 1 : a.level;
    if (p == 0 && column == 7) {
        a.token[k] = none ? 0 : s.token[row];
        a.from[k] = none ? 0 : a.level == 1 ? root : s.proposer[row];
    }
    if (p < a.n_reach)
        write_reach(a.reach[p], k, column, 8, prefix, n, [&](int at) {
            return s.slots[p][at == n - 1 ? own : at * topk + s.chain[s.proposer[row]][at]];
        });
}

/* Combines a row's partial results as topk() does: the k best and their log probabilities; one
 * warp. */
__device__ __forceinline__ void propose_row(const grow_args &a, grow_state &s, int r)
{
    const int lane = (int)threadIdx.x % 32, k = a.parts.k;
    u64 *list = s.list[threadIdx.x / 32], key[PARTS_PER_LANE];
    exp_sum m[PARTS_PER_LANE];
    int32_t token[PARTS_PER_LANE];
    int above[PARTS_PER_LANE] = {};
#pragma unroll
    for (int j = 0; j < PARTS_PER_LANE; j++) {
        int i = j * 32 + lane;
        key[j] = i < a.parts.keys ? __ldcg(a.parts.best + r * a.parts.keys + i) : 0;
        m[j] = {-INFINITY, 0};
        if (i < a.parts.exp_sums)
            m[j] = load_exp_sum(a.parts.part + r * a.parts.exp_sums + i);
    }
#pragma unroll
    for (int j = 0; j < PARTS_PER_LANE; j++) {
        token[j] = key[j] ? token_of(a, index_of(key[j])) : -1;
        list[j * 32 + lane] = key[j];
    }
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < a.parts.keys; i += 2) {
        ulonglong2 two = *(const ulonglong2 *)(list + i);
#pragma unroll
        for (int j = 0; j < PARTS_PER_LANE; j++)
            above[j] += (two.x > key[j]) + (two.y > key[j]);
    }
    const double lse = warp_lse_of(m);
    if (lane < k)
        s.proposals[r * k + lane] = {-1, -INFINITY}, a.parts.ids[r * k + lane] = -1;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < PARTS_PER_LANE; j++)
        if (key[j] && above[j] < k) {
            const int at = r * k + above[j];
            s.proposals[at] = {token[j], (float)((double)logit_of(key[j]) - lse)};
            a.parts.ids[at] = index_of(key[j]);
        }
    __syncwarp();
    if (lane < k)
        a.parts.logp[r * k + lane] = s.proposals[r * k + lane].logp;
}

__global__ void __launch_bounds__(256) grow_kernel(const __grid_constant__ grow_args a)
{
    __shared__ grow_state s;
    const int tid = (int)threadIdx.x, topk = a.t.topk, m = a.rows * topk;
    pdl_trigger();
    for (int i = tid * 32; i < a.n_d2t; i += (int)blockDim.x * 32)
        prefetch_l2(a.d2t + i);
    pdl_wait_trigger();
    record_time(a.time);
    const bool is = tid < m, from_parts = a.parts.best;
    int32_t id = is && !from_parts ? a.ids[tid] : -1;
    float logp = is && !from_parts ? a.logp[tid] : 0.f;
    int last = a.level > 1 && tid < topk ? a.t.front[(a.level - 2) * topk + tid] : -1;
    float base = last < 0 ? 0.f : a.t.score[last];
    int prefix = a.prefix[0], root = a.root[0], seen = (a.level - 1) * topk;
    for (int i = tid; i < seen + topk; i += (int)blockDim.x) {
        s.front[i] = i < seen ? a.t.front[i] : -1;
        for (int p = 0; p < a.n_reach; p++)
            s.slots[p][i] = a.reach[p].slots[i];
    }
    for (int r = tid / 32; from_parts && r < a.rows; r += (int)blockDim.x / 32)
        propose_row(a, s, r);
    proposal g = {token_of(a, id), logp};
    if (tid < topk)
        s.base[tid] = base;
    __syncthreads();

    int row = (int)((unsigned)tid * a.inverse >> 16);
    int up = a.level > 1 && is ? s.front[seen - topk + row] : -1;
    if (from_parts && is)
        g = s.proposals[tid];
    u64 key = is ? add_candidate(a, up, a.level > 1 ? s.base[row] : 0.f, g) : 0;
    if (tid < topk)
        trace_ancestors(a, s, tid);
    ((u64 *)s.keys)[tid] = key;
    __syncthreads();

    int rank = 0, at = tree_level_first(topk, a.level) + tid;
#pragma unroll 8
    for (int i = 0; i < (m + 1) / 2; i++) {
        ulonglong2 pair = s.keys[i];
        rank += (pair.x > key) + (pair.y > key);
    }
    bool chosen = key && rank < topk;
    if (chosen) {
        s.front[seen + rank] = at;
        s.token[rank] = g.token;
        s.proposer[rank] = row;
    }
    if (is)
        a.t.cell[at] = chosen && a.level < a.t.steps ? tree_scratch_cell(topk, a.level, rank) : -1;
    __syncthreads();

    if (tid < topk)
        a.t.front[seen + tid] = s.front[seen + tid];
    for (int i = tid / 8; i < 2 * topk && a.level < a.t.steps; i += (int)blockDim.x / 8) {
        int p = i >= topk;
        write_next_row(a, s, p, i - p * topk, tid % 8, prefix, root);
    }
}

void cuda_grow(struct kdev *d, const struct k_grow *a)
{
    grow_args s = {};
    if (a->topk) {
        CHECK(a->topk->rows == (a->level == 1 ? 1 : a->t->topk) && a->topk->k == a->t->topk &&
              a->topk->ids.p == a->ids.p && a->topk->logp.p == a->logp.p);
        if (!cuda_topk_parts(d, a->topk, &s.parts))
            cuda_topk(d, a->topk);
    }
    cuda_begin(d, "grow");
    s.t = tree_of(a->t);
    s.level = a->level;
    CHECK(a->level >= 1 && a->level <= s.t.steps);
    s.time = time_of(a->time);
    int topk = s.t.topk;
    s.rows = a->level == 1 ? 1 : topk;
    size_t m = (size_t)(s.rows * topk);
    s.inverse = (65536u + (unsigned)topk - 1) / (unsigned)topk;
    s.ids = cuda_i32(a->ids, m), s.logp = cuda_f32(a->logp, m);
    s.d2t = (const int32_t *)a->d2t.p, s.n_d2t = (int)(a->d2t.n / sizeof(int32_t));
    s.prefix = cuda_i32(a->prefix, 1), s.root = cuda_i32(a->root, 1);
    if (a->level < s.t.steps) {
        s.n_reach = a->n_reach;
        s.token = cuda_i32(a->token, (size_t)topk), s.from = cuda_i32(a->from, (size_t)topk);
        reaches_of(a->reach, a->n_reach, topk, a->level * topk, a->level, s.reach);
    }
    int threads = s.parts.best ? 256 : max_int((int)cuda_round(m, 32), 128);
    cuda_launch(d, grow_kernel, dim3(1), threads, 0, s);
}

/* ---- select --------------------------------------------------------------------------------- */

struct select_args {
    tree t;
    int n_reach;
    unsigned inverse; /* x * inverse >> 20 == x / topk^2, for x < 15 topk^2: tree_level_of() */
    const int32_t *root, *prefix;
    const float *draws;
    int32_t *n, *token, *pos, *parent, *parent0;
    float *logp, *score, *u;
    reach reach[2];
    u64 *time;
};

enum { CHUNK = 4, SELECT_THREADS = 1024 }; /* a thread has CHUNK successive candidates */

/* The candidates to select: those with key >> shift above `top`, and the first `ties` of those
 * equal to it. */
struct cutoff {
    uint32_t top;
    int shift, ties;
};

/* One step of a radix selection of the `need` best. count: how many keys have each value of 255 -
 * digit. Computes the digit of the last selected key, how many keys with that digit are needed, and
 * how many there are. False if there are fewer than `need` keys. Every warp computes it for
 * itself. */
__device__ __forceinline__ bool digit_of(const int *count, int *need, uint32_t *digit, int *has)
{
    const int lane = (int)threadIdx.x % 32;
    int c[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        int4 four = ((const int4 *)count)[lane * 2 + i / 4];
        c[i] = four.x, c[i + 1] = four.y, c[i + 2] = four.z, c[i + 3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += c[i];
    const int upto = inclusive_scan(sum);
    unsigned enough = __ballot_sync(~0u, upto >= *need);
    if (!enough)
        return false;
    int owner = __ffs((int)enough) - 1, remaining = *need - (upto - sum), index = 0, have = c[0];
#pragma unroll
    for (int i = 1; i < 8; i++)
        if (index == i - 1 && remaining > have)
            remaining -= have, index = i, have = c[i];
    *need = __shfl_sync(~0u, remaining, owner);
    *has = __shfl_sync(~0u, have, owner);
    *digit = (uint32_t)(255 - (owner * 8 + __shfl_sync(~0u, index, owner)));
    return true;
}

/* count: (4, 256) zeros, 16-byte aligned. */
__device__ cutoff find_cutoff(const uint32_t (&key)[CHUNK], int need, int (*count)[256])
{
    cutoff b = {0, 0, 0};
    for (int round = 0; round < 4; round++) {
        uint32_t digit;
        int has, shift = 24 - 8 * round;
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            if (key[i] && (round == 0 || key[i] >> (shift + 8) == b.top))
                atomicAdd(&count[round][255 - (key[i] >> shift & 255)], 1);
        __syncthreads();
        if (!digit_of(count[round], &need, &digit, &has))
            return b; /* all keys are selected */
        b.top = b.top << 8 | digit, b.shift = shift, b.ties = need;
        if (has == need)
            break;
    }
    return b;
}

/* Exclusive scan of v (two 16-bit halves) over the threads, and the sum over all. scratch: 32. */
__device__ __forceinline__ unsigned exclusive_scan(unsigned v, unsigned *all, unsigned *scratch)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const unsigned mine = v;
    v = inclusive_scan(v);
    if (lane == 31)
        scratch[warp] = v;
    __syncthreads();
    const unsigned w = inclusive_scan(lane < (int)blockDim.x / 32 ? scratch[lane] : 0u);
    *all = __shfl_sync(~0u, w, 31);
    unsigned before = __shfl_sync(~0u, w, (warp + 31) % 32);
    return v - mine + (warp ? before : 0);
}

/* The rows of the verify pass, in shared memory. */
struct rows {
    int n;
    int token[MAX_ROWS], up[MAX_ROWS], depth[MAX_ROWS]; /* up: the parent candidate */
    float logp[MAX_ROWS], score[MAX_ROWS];
    int n_ancestors[MAX_ROWS];           /* ancestors of a row, itself included */
    uint8_t chain[MAX_ROWS][MAX_DEPTH];  /* the rows of these ancestors, root first */
    uint8_t of[MAX_CANDIDATES];          /* the row of each selected candidate */
};

/* Makes rows of this thread's selected candidates. */
__device__ void select_rows(const select_args &a, rows &rows, const uint32_t (&key)[CHUNK],
                            const int32_t (&token)[CHUNK], const int32_t (&parent)[CHUNK],
                            const float (&logp)[CHUNK], const float (&score)[CHUNK], cutoff b,
                            unsigned *scratch)
{
    const int from = (int)threadIdx.x * CHUNK, topk = a.t.topk;
    unsigned counts = 0, all;
    bool above[CHUNK], at[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        above[i] = key[i] >> b.shift > b.top;
        at[i] = key[i] && key[i] >> b.shift == b.top && b.ties > 0; /* key 0: no candidate */
        counts += (above[i] ? 1u : 0u) + (at[i] ? 65536u : 0u);
    }
    unsigned before = exclusive_scan(counts, &all, scratch);
    int over = (int)(before & 0xffff), tied = (int)(before >> 16);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        if (above[i] || (at[i] && tied < b.ties)) {
            int r = 1 + over + min(tied, b.ties), c = from + i;
            rows.of[c] = (uint8_t)r;
            rows.token[r] = token[i], rows.up[r] = parent[i];
            rows.logp[r] = logp[i], rows.score[r] = score[i];
            rows.depth[r] = c < topk ? 1 : 2 + (int)((unsigned)(c - topk) * a.inverse >> 20);
        }
        over += above[i], tied += at[i];
    }
    if (threadIdx.x == 0)
        rows.n = 1 + (int)(all & 0xffff) + min((int)(all >> 16), b.ties);
}

__global__ void __launch_bounds__(SELECT_THREADS)
    select_kernel(const __grid_constant__ select_args a)
{
    __shared__ struct rows rows;
    __shared__ __align__(16) int count[4][256];
    __shared__ int slots[2][MAX_ROWS];
    __shared__ unsigned scratch[32];
    __shared__ float draws[MAX_DEPTH];
    const int tid = (int)threadIdx.x, nodes = a.t.nodes;
    uint32_t key[CHUNK];
    int32_t token[CHUNK], parent[CHUNK];
    float logp[CHUNK], score[CHUNK];
    pdl_trigger();
    for (int i = tid; i < 1024; i += (int)blockDim.x)
        count[i / 256][i % 256] = 0;
    pdl_wait_trigger();
    record_time(a.time);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        int c = tid * CHUNK + i;
        bool is = c < a.t.n;
        token[i] = is ? a.t.token[c] : -1;
        score[i] = is ? a.t.score[c] : 0.f;
        parent[i] = is ? a.t.parent[c] : -1;
        logp[i] = is ? a.t.logp[c] : 0.f;
    }
    int root = a.root[0], prefix = a.prefix[0];
    if (tid <= a.t.steps)
        draws[tid] = a.draws[tid];
    for (int p = 0; p < a.n_reach && tid < nodes; p++)
        slots[p][tid] = a.reach[p].slots[tid];
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        key[i] = tree_key(score[i], token[i]);
    __syncthreads();
    cutoff b = {0, 0, 0};
    if (nodes == 1)
        b.top = ~0u;
    else if (a.t.n >= nodes)
        b = find_cutoff(key, nodes - 1, count);
    select_rows(a, rows, key, token, parent, logp, score, b, scratch);
    __syncthreads();

    if (tid < nodes) {
        bool selected = tid > 0 && tid < rows.n;
        int up = selected ? rows.up[tid] : -1, row = !selected ? -1 : up < 0 ? 0 : rows.of[up];
        int depth = selected ? rows.depth[tid] : 0;
        a.token[tid] = selected ? rows.token[tid] : root;
        a.pos[tid] = prefix + depth;
        a.parent[tid] = row;
        a.parent0[tid] = max(0, row);
        a.logp[tid] = selected ? rows.logp[tid] : 0.f;
        a.score[tid] = selected ? rows.score[tid] : 0.f;
        a.u[tid] = draws[depth];
        rows.n_ancestors[tid] = depth + 1;
        rows.chain[tid][depth] = (uint8_t)tid;
        for (int at = depth - 1, j = row; at >= 0; at--) {
            rows.chain[tid][at] = (uint8_t)j;
            up = rows.up[j];
            j = at > 1 ? rows.of[up] : 0;
        }
        if (tid == 0)
            a.n[0] = rows.n;
    }
    __syncthreads();
    for (int i = tid / 8; i < nodes * a.n_reach; i += (int)blockDim.x / 8) {
        int p = i >= nodes, r = i - p * nodes;
        write_reach(a.reach[p], r, tid % 8, 8, prefix, rows.n_ancestors[r],
                    [&](int at) { return slots[p][rows.chain[r][at]]; });
    }
}

void cuda_select(struct kdev *d, const struct k_select *a)
{
    cuda_begin(d, "select");
    select_args s = {};
    s.t = tree_of(a->t);
    s.time = time_of(a->time);
    size_t m = (size_t)s.t.nodes;
    s.root = cuda_i32(a->root, 1), s.prefix = cuda_i32(a->prefix, 1);
    s.draws = cuda_f32(a->draws, (size_t)s.t.steps + 1);
    s.inverse = ((1u << 20) + (unsigned)(s.t.topk * s.t.topk) - 1) /
                (unsigned)(s.t.topk * s.t.topk);
    s.n = cuda_i32(a->n, 1);
    s.token = cuda_i32(a->token, m), s.pos = cuda_i32(a->pos, m);
    s.parent = cuda_i32(a->parent, m), s.parent0 = cuda_i32(a->parent0, m);
    s.logp = cuda_f32(a->logp, m), s.score = cuda_f32(a->score, m), s.u = cuda_f32(a->u, m);
    s.n_reach = a->n_reach;
    reaches_of(a->reach, a->n_reach, s.t.nodes, s.t.nodes, min_int(s.t.steps + 1, s.t.nodes),
               s.reach);
    int threads = (int)cuda_round((size_t)div_up(s.t.n, CHUNK), 32);
    cuda_launch(d, select_kernel, dim3(1), threads < 256 ? 256 : threads, 0, s);
}

/* ---- accept ---------------------------------------------------------------------------------- */

struct accept_args {
    int nodes, steps, n_stop, n_pools;
    const int32_t *n, *token, *parent, *choice, *limit, *force, *stop;
    const int32_t *slots[2];
    int32_t *n_path, *path, *emitted, *last;
    int32_t *src[2], *dst[2];
    u64 *time;
};

__global__ void __launch_bounds__(MAX_ROWS) accept_kernel(const __grid_constant__ accept_args a)
{
    __shared__ int next[MAX_ROWS], token[MAX_ROWS], choice[MAX_ROWS], slots[2][MAX_ROWS];
    const int i = (int)threadIdx.x;
    pdl_trigger();
    next[i] = MAX_ROWS;
    pdl_wait_trigger();
    record_time(a.time);
    bool in = i < a.nodes;
    int n = a.n[0], limit = a.limit[0], force = a.force[0];
    int parent = in ? a.parent[i] : -1;
    token[i] = in ? a.token[i] : -1;
    choice[i] = in ? a.choice[i] : 0;
    for (int p = 0; p < a.n_pools && in; p++)
        slots[p][i] = a.slots[p][i];
    bool ends = in && tree_stops(a.stop, a.n_stop, choice[i], force > 0);
    bool bad = __syncthreads_or(i < n && choice[i] < 0);

    if (i > 0 && i < n && tree_accepts(parent, parent, token[i], choice[parent], force > 0))
        atomicMin(&next[parent], i);
    __syncthreads();
    if (ends)
        next[i] = MAX_ROWS;
    __syncthreads();

    limit = bad ? 0 : min(tree_limit(limit, force), a.steps + 1);
    /* The row at position i of the path, and the next row of the path. */
    int len = 0, mine = 0, then = -1;
    for (int at = 0; at < n && len < limit; at = next[at], len++) {
        mine = len == i ? at : mine;
        then = len == i + 1 ? at : then;
    }
    if (i == 0) {
        a.n_path[0] = len;
        a.last[0] = max(0, len - 1);
    }
    if (i > a.steps)
        return;
    int cell = min(i, a.nodes - 1); /* a path is no longer than the tree */
    a.path[i] = mine;
    a.emitted[i] = i >= len ? 0 : then >= 0 ? token[then] : choice[mine];
    for (int p = 0; p < a.n_pools; p++) {
        a.src[p][i] = slots[p][i < len ? mine : cell];
        a.dst[p][i] = slots[p][cell];
    }
}

void cuda_accept(struct kdev *d, const struct k_accept *a)
{
    cuda_begin(d, "accept");
    size_t m = (size_t)a->nodes, most = (size_t)a->steps + 1;
    CHECK(a->nodes >= 1 && a->nodes <= K_MAX_NODES && a->steps >= 1 && a->steps <= K_MAX_STEPS &&
          a->n_stop >= 0 && a->n_pools >= 0 && a->n_pools <= 2);
    accept_args s = {a->nodes, a->steps, a->n_stop, a->n_pools, cuda_i32(a->n, 1),
                     cuda_i32(a->token, m), cuda_i32(a->parent, m), cuda_i32(a->choice, m),
                     cuda_i32(a->limit, 1), cuda_i32(a->force, 1),
                     cuda_i32(a->stop, (size_t)a->n_stop), {}, cuda_i32(a->n_path, 1),
                     cuda_i32(a->path, most), cuda_i32(a->emitted, most), cuda_i32(a->last, 1),
                     {}, {}, time_of(a->time)};
    for (int p = 0; p < a->n_pools; p++) {
        s.slots[p] = cuda_i32(a->slots[p], m);
        s.src[p] = cuda_i32(a->src[p], most), s.dst[p] = cuda_i32(a->dst[p], most);
    }
    cuda_launch(d, accept_kernel, dim3(1), MAX_ROWS, 0, s);
}
