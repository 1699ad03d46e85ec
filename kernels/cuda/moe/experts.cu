/* experts.cu - MXFP4 experts for few rows at the speed of memory.
 *
 * One kernel behind the router, whose blocks are all on the device at once. Its jobs are in two
 * groups and its work in parts: gate and up for one group after the other, then down for each, so
 * that the hidden rows that down begins with were ready long before. A part is cut into units (a
 * job, two tiles of 16 outputs), and every block has an equal share of them, in their order, so
 * that it meets few jobs. At last the rows' experts are added up in the order of their rank.
 *
 * The warps of a block walk through its units side by side, each with a task of its own. A block
 * has two gangs, which take turns: while one waits for sums or ends a unit the other multiplies. Of
 * a gang one warp fetches weights into a ring in shared memory: a slot has one chunk for each of
 * the 8 runs of k and each tile. Eight multiply, a run of both tiles each, with the order of sums
 * of dense/product.cuh. Two end the gang's units: they add the runs in their order and write the
 * results. One more warp, the clerk, brings the rows of the next job and waits for what other
 * blocks must have written before.
 *
 * What bounds the kernel is instructions: a weight costs one and a half to decode, at four rows as
 * at one, and all else must be few. So a warp has two tiles, which share what is read of the rows.
 *
 * Weights, their biases and rows come by the copy engine: a load that must be quick would wait
 * behind all of the ring's, and a fence for its own thread's. Few rows are there before weights are
 * asked for; a single one every block packs for itself. What blocks make for one another is told by
 * counters, or, of a few pairs, is its own flag.
 */
#include "kernels/cuda/moe/experts_decode.cuh"

/* ---- the tasks: fetching -------------------------------------------------------------------- */

template <int KIND>
__device__ __forceinline__ void fetch_weights(const moe_args &a, const work &jobs,
                                              block &b, const room<KIND> &r, int gang)
{
    const int number = a.gate_up_b.type == DT_F32 ? 4 : 2; /* bytes */
    auto &mine = b.gang[gang];
    char *const ring = r.ring + gang * a.slots * SLOT;
    struct place slot = {}, ends = {};
    walk at(a, jobs);
    while (at.next()) {
        if (at.gang != gang)
            continue;
        const bool biased = !at.down() && a.gate_up_b.p;
        const mat &m = at.m();
        const int kp = at.s.kp, each = at.s.each, full = at.s.full, rest = at.s.rest;
        const int next_tile = kp / 128 * CHUNK, next_scales = kp / 128 * CHUNK_SCALES;
        const size_t e = (size_t)jobs.active(at.job), chunks = (size_t)(at.tile * (kp / 128));
        const uint8_t *w = m.w + e * m.expert + chunks * CHUNK;
        const uint8_t *s = m.scale + e * m.expert_scale + chunks * CHUNK_SCALES;
#pragma unroll 1
        for (int i = 0; i < each; i++) {
            const int n = full + (i < rest), more = biased && i == 0 ? BIAS * number : 0;
            char *to = ring + slot.i * SLOT;
            uint64_t *filled = &mine.full[slot.i];
            await(&mine.empty[slot.i], slot.phase ^ 1);
            copies_begin(filled, n * TILES * (CHUNK + CHUNK_SCALES) + more);
#pragma unroll
            for (int t = 0; t < TILES; t++, to += STEP) {
                copy_once(to, w + t * next_tile, n * CHUNK, filled);
                copy_once(to + K_SPLITS * CHUNK, s + t * next_scales, n * CHUNK_SCALES, filled);
            }
            if (more)
                copy_piece(mine.bias[ends.i],
                           (const char *)a.gate_up_b.p +
                               (e * a.gate_up_b_pitch + (size_t)(at.tile * 16)) * (size_t)number,
                           more, filled);
            copies_end(filled);
            w += n * CHUNK, s += n * CHUNK_SCALES;
            slot.next(a.slots);
        }
        ends.next(BIASES);
    }
}

/* ---- the tasks: the clerk ------------------------------------------------------------------- */

/* Whether blocks hand over at once, and the clerks add up: where pairs are few, what one block
 * makes for others is its own flag (publish(), cuda.h), for which the router has cleared the
 * place. */
template <int KIND> __device__ __forceinline__ bool quick(const moe_args &a)
{
    return KIND == EVEN && a.quick;
}

/* A hidden row into shared memory, as it comes; one warp. */
__device__ __forceinline__ void gather_row(const moe_args &a, char *to, int pair)
{
    enum { MANY = 6 };
    const char *const from = (const char *)(a.h.x + (size_t)pair * (size_t)a.h.kp);
    for (int i = (int)threadIdx.x % 32 * 16; i < a.h.kp * 2; i += MANY * 512) {
        uint4 v[MANY];
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (int j = 0; j < MANY; j++) {
                v[j] = make_uint4(~0u, ~0u, ~0u, ~0u); /* behind the row are zeros */
                if (i + j * 512 < a.ffn * 2)
                    v[j] = poll_four((const uint4 *)(from + i + j * 512));
                missing |= !all_published(v[j]);
            }
        } while (missing);
#pragma unroll
        for (int j = 0; j < MANY; j++)
            if (i + j * 512 < a.h.kp * 2)
                *(uint4 *)(to + i + j * 512) = make_uint4(~v[j].x, ~v[j].y, ~v[j].z, ~v[j].w);
    }
}

/* One more block has come this far; the counter is 0 again when all have. */
__device__ __forceinline__ void come(unsigned *counter)
{
    order_memory();
    atomicInc(counter, gridDim.x - 1);
}
/* Only after having come. */
__device__ __forceinline__ void wait_for_all(const unsigned *counter)
{
    while (look(counter))
        ;
}

/* Rows are packed, and where blocks hand over at once come into shared memory before any weights,
 * behind which they would have to wait. */
template <int KIND>
__device__ __forceinline__ void take_rows(const moe_args &a, block &b, const room<KIND> &r)
{
    const int lane = (int)threadIdx.x % 32;
    while (look(a.own + ROWS_READY) != (unsigned)a.rows)
        ;
    copies_follow_writes();
    if (lane < COPIERS) {
        const int rows = quick<KIND>(a) ? a.rows : 0;
        copies_begin(&b.held, rows * a.x.kp * 2);
        for (int i = 0; i < rows; i++)
            copy_piece(r.held + i * r.pitch, a.x.x + (size_t)i * (size_t)a.x.kp, a.x.kp * 2,
                       &b.held);
        copies_end(&b.held);
    }
    for (int p = lane; p < a.rows * a.top_k; p += 32)
        b.lists.x_inv[p] = __ldcg(a.x_inv + p / a.top_k);
    __threadfence_block();
    warp_arrives(&b.held);
}

/* What blocks hand over has room: no flag of an older step is left there. */
__device__ __forceinline__ void wait_for_room(const moe_args &a, block &b)
{
    while (look(a.own + ROWS_CLEARED) != (unsigned)a.rows)
        ;
    await(&b.held, 0);
    __syncwarp();
    if (threadIdx.x % 32)
        return;
    come(a.own + GROUP_READY); /* has chosen, and seen all that a router counts */
    arrive(&b.cleared);
}

/* The block's lists for who comes later. */
__device__ __forceinline__ void keep_choice(const moe_args &a, const struct jobs &l)
{
    for (int p = (int)threadIdx.x % 32; p < a.rows * a.top_k; p += 32) {
        a.chosen[p] = l.chosen[p], a.weight[p] = l.weight[p];
        if (a.chosen_out)
            a.chosen_out[p] = l.chosen[p];
    }
}

/* A share of what the blocks chose by. */
__device__ __forceinline__ void clear_keys(const moe_args &a)
{
    const int lane = (int)threadIdx.x % 32;
    for (int i = (int)blockIdx.x * 32 + lane; i < a.rows * a.n_expert; i += (int)gridDim.x * 32)
        __stcg(a.keys + i, 0u);
    if (blockIdx.x == 0 && lane == 0)
        __stcg(a.own + ROWS_READY, 0u), __stcg(a.own + ROWS_CLEARED, 0u);
    order_memory();
    __syncwarp();
}

/* The first of the elements that a block adds up; none where the sums are not for this kernel. */
__device__ __forceinline__ int first_sum(const moe_args &a)
{
    return a.sums ? (int)(gridDim.x - 1 - blockIdx.x) * THREADS : a.rows * a.in;
}

/* What the sums will want first comes nearer meanwhile. */
__device__ __forceinline__ void prefetch_bias(const moe_args &a, const work &jobs)
{
    enum { APART = 64 };
    const int lane = (int)threadIdx.x % 32, size = a.down_b.type == DT_F32 ? 4 : 2;
    for (int j = lane; a.down_b.p && j < THREADS / APART * a.top_k; j += 32) {
        const int i = first_sum(a) + j / a.top_k * APART, k = j % a.top_k;
        if (i >= a.rows * a.in)
            return;
        const size_t e = (size_t)jobs.own->chosen[i / a.in * a.top_k + k];
        const char *p = (const char *)a.down_b.p + (e * a.down_b_pitch + (size_t)(i % a.in)) * size;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
    }
}

/* Hidden rows of a group are there. */
__device__ __forceinline__ void wait_for_group(const moe_args &a, block &b, int group)
{
    await(&b.told[group], 0);
    wait_for_all(a.own + GROUP_READY + group);
    copies_follow_writes();
}

/* What the blocks chose by may go, once all of them have chosen, and the kernels may come that will
 * write it again. */
template <int KIND>
__device__ __forceinline__ void leave_keys(const moe_args &a, const work &jobs)
{
    if (a.direct)
        clear_keys(a);
    pdl_trigger();
    if (a.direct && !quick<KIND>(a))
        prefetch_bias(a, jobs);
    pdl_wait(); /* long over; who waits for this kernel waits for those before it, too */
}

/* The rows of a job, from memory; by COPIERS. */
__device__ __forceinline__ void copy_rows(const moe_args &a, const work &jobs, bool down, int job,
                                          char *to, int pitch, uint64_t *full)
{
    const packed &x = down ? a.h : a.x;
    const int first = jobs.begin(job), n = jobs.begin(job + 1) - first;
    copies_begin(full, n * a.terms * x.kp * 2);
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        const int pair = jobs.order(first + i), row = down ? pair : pair / a.top_k;
        const uint16_t *from = x.x + (size_t)(row * a.terms) * (size_t)x.kp;
        for (int t = 0; t < a.terms; t++, to += pitch, from += x.kp)
            copy_piece(to, from, x.kp * 2, full);
    }
    copies_end(full);
}

/* The same of hidden rows while they come; by all lanes. */
__device__ __forceinline__ void gather_rows(const moe_args &a, const work &jobs, int job, char *to,
                                            int pitch, uint64_t *full)
{
    for (int i = jobs.begin(job); i < jobs.begin(job + 1); i++, to += pitch)
        gather_row(a, to, jobs.order(i));
    __syncwarp();
    if (threadIdx.x % 32 < COPIERS)
        arrive(full);
}

/* The rows of one job after the other, but those that the block holds already. Between those for
 * gate and up and those for down, or when there are none, it is known that all blocks have chosen.
 */
template <int KIND>
__device__ __forceinline__ void bring_rows(const moe_args &a, const work &jobs, block &b,
                                           const room<KIND> &r)
{
    struct place set = {};
    int ready = 0;
    bool left = false;
    walk at(a, jobs);
    if (quick<KIND>(a))
        wait_for_room(a, b);
    while (at.next()) {
        if (!at.fresh || (quick<KIND>(a) && !at.down()))
            continue;
        if (quick<KIND>(a) && !left) {
            wait_for_all(a.own + GROUP_READY);
            leave_keys<KIND>(a, jobs);
            left = true;
        }
        for (; !quick<KIND>(a) && ready <= at.part - GROUPS; ready++)
            wait_for_group(a, b, ready);
        char *to = r.rows + set.i * r.set;
        await(&b.rows_empty[set.i], set.phase ^ 1);
        if (quick<KIND>(a))
            gather_rows(a, jobs, at.job, to, r.pitch, &b.rows_full[set.i]);
        else if (threadIdx.x % 32 < COPIERS)
            copy_rows(a, jobs, at.down(), at.job, to, r.pitch, &b.rows_full[set.i]);
        __syncwarp();
        set.next(a.sets);
    }
    for (; !quick<KIND>(a) && ready < GROUPS; ready++)
        wait_for_group(a, b, ready);
    if (quick<KIND>(a) && !left)
        wait_for_all(a.own + GROUP_READY);
    if (!left)
        leave_keys<KIND>(a, jobs);
}

/* ---- the tasks: multiplying ----------------------------------------------------------------- */

/* Where a lane's column of a job's rows begins: in the set that the clerk has brought, or among the
 * rows that the block holds. Columns beyond the room for rows repeat the last one's place. */
template <int KIND>
__device__ __forceinline__ const char *column_of(const moe_args &a, const work &jobs,
                                                 const room<KIND> &r, int job, bool held, int set)
{
    const int g = (int)threadIdx.x % 32 / 4, col = KIND == EVEN ? g / 2 : g;
    if (!held)
        return r.rows + set * r.set + min(col, a.per * a.terms - 1) * r.pitch;
    const int first = jobs.begin(job), pair = jobs.order(min(first + col, jobs.begin(job + 1) - 1));
    return r.held + pair / a.top_k * r.pitch;
}

/* A warp multiplies a run of both tiles of its gang's units, which are every other one. */
template <int KIND>
__device__ __forceinline__ void multiply_units(const moe_args &a, const work &jobs, block &b,
                                               const room<KIND> &r, int warp)
{
    using S = shape<KIND>;
    const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int run = warp % (int)K_SPLITS, gang = warp / (int)K_SPLITS;
    auto &own = b.gang[gang];
    const char *const w = r.ring + gang * a.slots * SLOT + run * CHUNK;
    const char *const s = r.ring + gang * a.slots * SLOT + K_SPLITS * CHUNK + run * CHUNK_SCALES;
    float *const sums = r.sums + gang * TILES * S::RED;
    float *const mine = sums + run * S::COLS * S::PITCH + (KIND == EVEN ? q : 2 * q) * S::PITCH + g;
    struct place slot = {}, set = {}, turn = {}; /* turn: of the room for sums */
    bool staged = false;
    int each = 0, n = 0; /* positions of a unit, and how many this run has */
    const char *rows = NULL;
    walk at(a, jobs);
    while (at.next()) {
        if (at.fresh) {
            const bool held = quick<KIND>(a) && !at.down();
            if (staged) {
                warp_arrives(&b.rows_empty[set.i]);
                set.next(a.sets);
            }
            staged = !held;
            each = at.s.each, n = min(each, at.s.kp / 128 - run * each);
            rows = column_of<KIND>(a, jobs, r, at.job, held, set.i) + run * each * 256 + q * 16;
            await(held ? &b.held : &b.rows_full[set.i], held ? 0 : set.phase);
        }
        if (at.gang != gang)
            continue;
        const char *x = rows;
        float acc[TILES][S::NT][4] = {};
        float2 units[TILES] = {};
#pragma unroll 1
        for (int i = 0; i < each; i++, x += 256) {
            const char *const here = w + slot.i * SLOT, *const scales = s + slot.i * SLOT;
            struct weights c[TILES];
            await(&own.full[slot.i], slot.phase);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                c[t].load(here + t * STEP, scales + t * STEP);
                if (run == 0 && i == 0)
                    units[t] = c[t].take_units();
            }
            warp_arrives(&own.empty[slot.i]);
            if (i < n)
                multiply<KIND>(c, x, 8 * r.pitch, acc);
            slot.next(a.slots);
        }
        await(&own.sums_empty, turn.phase ^ 1);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            float *to = mine + t * S::RED;
#pragma unroll
            for (int j = 0; j < S::NT; j++, to += 8 * S::PITCH) {
                to[0] = acc[t][j][0], to[8] = acc[t][j][2];
                if (KIND != EVEN)
                    to[S::PITCH] = acc[t][j][1], to[S::PITCH + 8] = acc[t][j][3];
            }
            if (run == 0 && q == 0) {
                float *at_units = sums + t * S::RED + S::UNITS + g;
                at_units[0] = units[t].x, at_units[8] = units[t].y;
            }
        }
        warp_arrives(&own.sums_full);
        turn.next(1);
    }
}

/* ---- the tasks: ending ---------------------------------------------------------------------- */

__device__ __forceinline__ void put_hidden(const moe_args &a, int pair, int i, float h)
{
    uint16_t *to = a.h_to + (size_t)pair * (size_t)a.terms * (size_t)a.h.kp + (size_t)i;
    __half hi = __float2half_rn(h * a.h_scale);
    *to = __half_as_ushort(hi);
    if (a.terms == 2) {
        float rest = isfinite(__half2float(hi)) ? h * a.h_scale - __half2float(hi) : 0.f;
        to[a.h.kp] = __half_as_ushort(__float2half_rn(rest));
    }
}

/* A lane's outputs 2 * o and 2 * o + 1 of a tile for one pair, which for gate and up are one hidden
 * element. prepare() once for a job; take() the sums and biases, whose room may then go; give(). */
struct ending {
    int pair, col, o; /* pair -1: nothing; all eight lanes of a pair have it */
    float inv;
    float2 y, bias;
    __device__ __forceinline__ void prepare(const moe_args &a, const work &jobs, bool down, int job,
                                            int item)
    {
        const int from = jobs.begin(job);
        const bool some = item / 8 < jobs.begin(job + 1) - from;
        pair = some ? jobs.order(from + item / 8) : -1;
        col = some ? item / 8 * a.terms : 0, o = item % 8;
        inv = a.h_undo;
        if (some && !down)
            inv = jobs.own ? jobs.own->x_inv[pair] : __ldcg(a.x_inv + pair / a.top_k);
    }
    template <int KIND>
    __device__ __forceinline__ void take(const moe_args &a, bool down, const float *red,
                                         const void *tile_bias)
    {
        y = sum_runs<KIND>(red, col, 2 * o, KIND != EVEN && a.terms == 2);
        bias = make_float2(0, 0);
        if (!down && a.gate_up_b.p)
            bias = two_of(a.gate_up_b.type, tile_bias, 2 * o);
    }
    template <int KIND>
    __device__ __forceinline__ void give(const moe_args &a, bool down, int tile) const
    {
        const float2 z = make_float2(mx_sum(y.x * inv), mx_sum(y.y * inv));
        if (down) {
            float *to = a.down + (size_t)pair * (size_t)a.in + (size_t)(tile * 16 + 2 * o);
            if (pair >= 0 && quick<KIND>(a))
                publish_two((uint32_t *)to, z.x, z.y);
            else if (pair >= 0)
                *(float2 *)to = z;
            return;
        }
        const float h = gated(z.x + bias.x, z.y + bias.y, a.act, a.limit);
        if (!quick<KIND>(a)) {
            if (pair >= 0)
                put_hidden(a, pair, tile * 8 + o, h);
            return;
        }
        const uint32_t mine = __half_as_ushort(__float2half_rn(h * a.h_scale)),
                       next = __shfl_down_sync(~0u, mine, 1);
        if (pair >= 0 && o % 2 == 0)
            publish((uint32_t *)(a.h_to + (size_t)pair * (size_t)a.h.kp + (size_t)(tile * 8 + o)),
                 mine | next << 16);
    }
};

/* The block is done with a part. */
__device__ __forceinline__ void tell_part(const moe_args &a, block &b, int part)
{
    enum { ALL = 32 * (int)ENDERS };
    const bool down = part >= GROUPS;
    if (down && part + 1 < PARTS)
        return;
    __syncwarp(); /* the first lane may still be telling of the part before */
    asm volatile("bar.sync 1, %0;" ::"n"((int)ALL) : "memory");
    if ((int)threadIdx.x != 32 * MULTIPLIERS)
        return;
    if (!down) {
        come(a.own + GROUP_READY + part);
        arrive(&b.told[part]);
        return;
    }
    come(a.own + DOWN_READY);
    if (first_sum(a) < a.rows * a.in)
        wait_for_all(a.own + DOWN_READY);
}

/* One for each tile of a gang's units. */
template <int KIND>
__device__ __forceinline__ void end_units(const moe_args &a, const work &jobs, block &b,
                                          const room<KIND> &r, int number)
{
    using S = shape<KIND>;
    const int lane = (int)threadIdx.x % 32, group = number % TILES, gang = number / TILES;
    const int bias_at = group * 16 * (a.gate_up_b.type == DT_F32 ? 4 : 2);
    const float *const red = r.sums + number * S::RED;
    auto &own = b.gang[gang];
    struct place turn = {}, ends = {};
    int told = quick<KIND>(a) ? (int)PARTS : 0;
    bool stale = true;
    struct ending e[S::PASSES];
    if (a.direct)
        await(&b.held, 0); /* x_inv */
    if (quick<KIND>(a))
        await(&b.cleared, 0);
    walk at(a, jobs);
    while (at.next()) {
        const bool down = at.down();
        const int tile = at.tile + group;
        for (; told < at.part; told++)
            tell_part(a, b, told);
        stale |= at.fresh;
        if (at.gang != gang)
            continue;
        if (stale)
#pragma unroll
            for (int i = 0; i < S::PASSES; i++)
                e[i].prepare(a, jobs, down, at.job, lane + i * 32);
        stale = false;
        await(&own.sums_full, turn.phase);
#pragma unroll
        for (int i = 0; i < S::PASSES; i++)
            e[i].template take<KIND>(a, down, red, (const char *)own.bias[ends.i] + bias_at);
        warp_arrives(&own.sums_empty);
        turn.next(1), ends.next(BIASES);
#pragma unroll
        for (int i = 0; i < S::PASSES; i++)
            e[i].template give<KIND>(a, down, tile);
        if (!quick<KIND>(a) && !down && tile == at.s.tiles - 1) { /* zeros up to a whole chunk */
            const int from = jobs.begin(at.job), pad = a.h.kp - a.ffn;
            for (int i = lane; i < (jobs.begin(at.job + 1) - from) * pad; i += 32)
                put_hidden(a, jobs.order(from + i / pad), a.ffn + i % pad, 0);
        }
    }
    for (; told < PARTS; told++)
        tell_part(a, b, told);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Adds up the rows' experts. */
template <class INT>
__device__ __forceinline__ void add_up(const moe_args &a, const INT *chosen, const float *weight)
{
    const int step = (int)gridDim.x * THREADS;
    for (int i = first_sum(a) + (int)threadIdx.x; i < a.rows * a.in; i += step) {
        float old = a.add ? a.dst[i] : 0.f, y = sum_of(a, chosen, weight, i / a.in, i % a.in);
        a.dst[i] = a.add ? y + old : y;
    }
}

/* Four numbers of a vector from i on, a multiple of four. */
__device__ __forceinline__ float4 four_at(const vec &v, size_t i)
{
    if (v.type == DT_F32)
        return __ldg((const float4 *)((const float *)v.p + i));
    const uint2 raw = __ldg((const uint2 *)((const uint16_t *)v.p + i));
    const float2 x = two_of(v.type, &raw, 0), y = two_of(v.type, &raw, 2);
    return make_float4(x.x, x.y, y.x, y.y);
}

/* The same by the clerks, four elements a lane, as the results come. */
__device__ __forceinline__ void add_up_at_once(const moe_args &a, const struct jobs &l)
{
    enum { MANY = 4 };
    const int block = (int)(gridDim.x - 1 - blockIdx.x), lane = (int)threadIdx.x % 32;
    for (int i = (block * 32 + lane) * 4; i < a.rows * a.in; i += (int)gridDim.x * 128) {
        const int pair = i / a.in * a.top_k, at = i % a.in;
        const float4 old = a.add ? __ldcg((const float4 *)(a.dst + i)) : make_float4(0, 0, 0, 0);
        float4 sum = make_float4(0, 0, 0, 0);
        for (int k0 = 0; k0 < a.top_k; k0 += MANY) {
            const int n = min(a.top_k - k0, (int)MANY);
            float4 bias[MANY];
            uint4 y[MANY];
            bool missing;
#pragma unroll
            for (int k = 0; k < MANY; k++)
                bias[k] = a.down_b.p && k < n
                              ? four_at(a.down_b, (size_t)l.chosen[pair + k0 + k] * a.down_b_pitch +
                                                      (size_t)at)
                              : make_float4(0, 0, 0, 0);
            do {
                missing = false;
#pragma unroll
                for (int k = 0; k < MANY; k++)
                    if (k < n) {
                        const size_t from = (size_t)(pair + k0 + k) * (size_t)a.in + (size_t)at;
                        y[k] = poll_four((const uint4 *)(a.down + from));
                        missing |= !all_published(y[k]);
                    }
            } while (missing);
#pragma unroll
            for (int k = 0; k < MANY; k++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float w = l.weight[pair + min(k0 + k, a.top_k - 1)];
                    float v = __uint_as_float(~(&y[k].x)[e]);
                    v = a.down_b.p ? v + (&bias[k].x)[e] : v;
                    if (k < n)
                        (&sum.x)[e] = k0 + k ? fmaf(w, v, (&sum.x)[e]) : v * w;
                }
        }
        if (a.add)
            sum = make_float4(sum.x + old.x, sum.y + old.y, sum.z + old.z, sum.w + old.w);
        *(float4 *)(a.dst + i) = sum;
    }
}

template <int KIND>
__global__ void __launch_bounds__(THREADS, 1)
    expert_kernel(const __grid_constant__ struct moe_args a)
{
    using S = shape<KIND>;
    extern __shared__ __align__(128) char shared[];
    __shared__ struct block b;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x % 32;
    const room<KIND> r(a, shared);
    if (warp == CLERK)
        b.init(a.alone);
    if (a.direct && a.rows == 1 && warp == FETCHER)
        deal(a, a.top_k, b.shares);
    if (a.alone && warp == 0)
        group_one(a, &b.lists);
    __syncthreads();
    if (a.alone) {
        if (warp < ROUTE_WARPS) {
            pack_alone(a, (uint16_t *)r.held, b.lists.x_inv, b.room);
            warp_arrives(&b.held);
        } else if (warp == FETCHER) {
            choose_row(a, &b.lists, 0);
            warp_arrives(&b.chosen);
        } else if (warp > FETCHER) {
            await(&b.chosen, 0);
        }
    } else if (!a.direct) {
        pdl_wait();
        if (warp == FETCHER)
            deal(a, *a.n_active, b.shares);
        __syncthreads();
    } else if (warp == CLERK) {
        take_rows(a, b, r);
        await(&b.chosen, 0);
    } else {
        choose_directly<(int)CHOOSERS>(a, &b.lists, (int *)shared);
        choosers_meet<(int)CHOOSERS>();
        if (a.rows > 1) {
            if (warp == FETCHER)
                deal(a, b.lists.n, b.shares);
            choosers_meet<(int)CHOOSERS>();
        }
        if (threadIdx.x == 0)
            arrive(&b.chosen);
    }
    const struct work jobs = {a.direct ? &b.lists : NULL, a.active, a.begin, a.order, b.shares};
    if (warp < MULTIPLIERS) {
        multiply_units(a, jobs, b, r, warp);
    } else if (warp < FETCHER) {
        end_units(a, jobs, b, r, warp - MULTIPLIERS);
    } else if (warp < CLERK) {
        if (lane < COPIERS)
            fetch_weights(a, jobs, b, r, warp - FETCHER);
    } else {
        if (a.direct && blockIdx.x == 0)
            keep_choice(a, b.lists);
        bring_rows(a, jobs, b, r);
        if (quick<KIND>(a))
            add_up_at_once(a, b.lists);
    }
    if (quick<KIND>(a))
        return;
    __syncthreads();
    if (a.direct)
        add_up(a, b.lists.chosen, b.lists.weight);
    else
        add_up(a, a.chosen, a.weight);
}

/* ---- host ----------------------------------------------------------------------------------- */

template <int KIND> static int shared_of(const struct moe_args *a, int columns)
{
    int pitch = max_int(a->x.kp, a->h.kp) * 2 + 64;
    int held = KIND == EVEN && a->quick ? a->rows : 0;
    return GANGS * a->slots * SLOT + shape<KIND>::SUM_BYTES + (a->sets * columns + held) * pitch;
}

/* What a block may ask for beside what it has of its own. */
static int smem_max(const struct kdev *d)
{
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->ordinal);
    return most - (int)sizeof(struct block) - 128;
}

/* Columns are fewer where rows are so long that the shared memory of a block has not more. */
int cuda_few_pairs(const struct kdev *d, const struct moe_args *given, int rows)
{
    struct moe_args a = *given;
    const int pairs = rows * a.top_k, terms = a.terms, most = smem_max(d);
    a.slots = a.sets = 1;
    bool more = rows * terms > 8 && pairs * terms > 4 * a.n_expert &&
                shared_of<MORE>(&a, 16) <= most;
    bool even = terms == 1 && (rows <= 4 || pairs <= a.n_expert);
    int per = min_int(more ? 16 / terms : even ? 4 : 8 / terms, rows);
    while (per > 1 && !more && shared_of<FEW>(&a, per * terms) > most)
        per--;
    return per;
}

bool cuda_few_quick(const struct kdev *d, const struct moe_args *m)
{
    struct moe_args a = *m;
    a.slots = a.sets = 1, a.quick = true;
    return a.direct && a.sums && a.terms == 1 && a.per <= 4 && a.rows <= QUICK_ROWS &&
           a.rows * a.top_k <= QUICK_PAIRS && shared_of<EVEN>(&a, a.per) <= smem_max(d);
}

bool cuda_few_alone(const struct moe_args *a)
{
    return a->rows == 1 && a->x.kp <= ROUTE_PASS && (!a->pre.w.p || a->pre.w.type == DT_BF16);
}

/* Blocks wait for each other, so no more than fit on the device at once: one a multiprocessor. As
 * many sets of rows as fit beside all slots, for units of few rows soon want the next ones; two
 * sets are worth more than the last slot. */
template <int KIND> static void launch(struct kdev *d, const struct moe_args *given)
{
    struct moe_args a = *given;
    const int most = smem_max(d), columns = a.per * a.terms;
    a.slots = a.alone ? ENOUGH_SLOTS : MOST_SLOTS, a.sets = MOST_SETS;
    while (shared_of<KIND>(&a, columns) > most && (a.sets > 1 || a.slots > 1))
        if (a.sets > (a.slots > ENOUGH_SLOTS ? 2 : 1))
            a.sets--;
        else
            a.slots--;
    if (shared_of<KIND>(&a, columns) > most)
        return cuda_fail(d, "experts need more shared memory than this device has");
    cuda_launch(d, expert_kernel<KIND>, dim3((unsigned)d->n_sm), THREADS,
                (size_t)shared_of<KIND>(&a, columns), a);
}

void cuda_few_experts(struct kdev *d, const struct moe_args *m)
{
    int columns = m->per * m->terms;
    if (columns > 8)
        launch<MORE>(d, m);
    else if (columns > 4 || m->terms == 2)
        launch<FEW>(d, m);
    else
        launch<EVEN>(d, m);
}
