/* cuda_chain.cu - products of bf16 matrices with one row (decode), several in one launch.
 *
 * Between two attentions a decode step is a chain of products, each short enough that starting it
 * costs as much as a good part of its bytes. So linear, glu and qkv of one row are not launched but
 * noted, and whatever comes next launches all of them as one kernel: a block on every multiprocessor,
 * which goes through the links of the chain together with all others. Weights do not depend on
 * anything: every warp asks for those of its run of k a whole ring ahead, through tiles and links
 * alike, while the block waits for the others or works on rows.
 *
 * A link: the row is normalised and cut into terms by every block itself (cuda_row.cuh); the outputs
 * are shared out evenly, and a block makes its own in groups of two tiles of 16; a warp has one run of
 * k, and the order of sums is that of cuda_product.cuh; then all blocks meet. What a product has behind it as a whole row, a norm and the
 * residual, is done by every block for itself before the next link; block 0 stores it, as soon as
 * all others have read what it replaces. Heads are dealt out to the blocks after the last link.
 *
 * All blocks are on the multiprocessors before the next kernel may be (let_next), so they can wait
 * for each other.
 */
#include "kernels/cuda_product.cuh"

enum {
    CHAIN_MAX = 4,
    LINE = 128,                    /* bytes of a weight row that are asked for at once: two chunks */
    GROUP = 32,                    /* rows of weights of a group */
    STEP = GROUP * LINE,           /* what a warp asks for at once */
    STEPS_MANY = 4, STEPS_FEW = 2, /* of a warp's ring, by the shared memory that a device has */
    MAX_HELD = 8192,              /* floats of a residual row that is kept */
    MAX_PACKED = 48 << 10,        /* bytes of a packed row, all terms */
};

struct chain {
    struct product p[CHAIN_MAX];
    int n;
    int each[CHAIN_MAX]; /* outputs of a block */
    int held, packed;    /* floats and bytes of shared memory for rows */
    unsigned *meeting;   /* (2) zeros: blocks that arrived; blocks that left */
};

static_assert(sizeof(struct chain) <= 4096, "parameters of a kernel");

#ifdef __CUDACC__

/* ---- who does what ---------------------------------------------------------------------------- */

/* Outputs [first, end) of a link are the block's: of its matrices one behind the other; of a gated
 * pair, of each of the two. */
struct share {
    int first, end;
};

static inline __host__ __device__ int outputs_of(const product &p)
{
    int n = p.m[0].n;
    for (int i = 1; i < p.n_mats && !p.glu; i++)
        n += p.m[i].n;
    return n;
}

__device__ __forceinline__ struct share share_of(const chain &a, int link)
{
    int n = outputs_of(a.p[link]);
    struct share s;
    s.first = min((int)blockIdx.x * a.each[link], n);
    s.end = min(s.first + a.each[link], n);
    return s;
}

/* The group that begins at output `at`: outputs of one matrix, n0 .. n0 + rows; half as many of a
 * gated pair. Row g (+ 8) of tile i is output 16 i + g (+ 8); of a pair, 8 i + g of the first (of the
 * second) matrix. */
struct group {
    int mi, n0, rows;
};

__device__ __forceinline__ struct group group_at(const product &p, int at, int end)
{
    struct group t = {0, at, end - at};
    while (!p.glu && t.mi + 1 < p.n_mats && t.n0 >= p.m[t.mi].n)
        t.n0 -= p.m[t.mi++].n;
    t.rows = min(min(t.rows, p.m[t.mi].n - t.n0), p.glu ? GROUP / 2 : GROUP);
    return t;
}

/* This warp's run of k, in chunks. */
struct run {
    int c0, c1;
};
__device__ __forceinline__ struct run run_of(const product &p)
{
    int chunks = p.x.kp / 32, each = (chunks + RUNS - 1) / RUNS, warp = (int)threadIdx.x / 32;
    struct run r;
    r.c0 = min(warp * each, chunks);
    r.c1 = min(r.c0 + each, chunks);
    return r;
}

/* What a warp asks for next. Lane l copies 16 bytes, number l % 8 of a line, of the rows l / 8 + 4 j
 * of the group; they land in the ring so that reading a fragment of it meets no bank twice. */
struct cursor {
    const uint8_t *w0, *w1; /* of rows l / 8 and 8 + l / 8 */
    uint32_t four, tile;    /* bytes from a row to the fourth behind it, and to the next tile's */
    int r0, r1, per_tile;   /* outputs that w0 and w1 stand for, and how many a tile has */
    int link, at, end;      /* output with which the next group begins, the block's last */
    int rows, left;         /* of the group; chunks of the run that were not asked for */
    int steps;              /* so far */
};

/* Goes to the next group of which the warp has something to multiply. */
__device__ __forceinline__ void next_group(const chain &a, struct cursor &c)
{
    const int row = (int)threadIdx.x % 32 / 8;
    for (;;) {
        while (c.at >= c.end) {
            if (++c.link >= a.n)
                return;
            struct share s = share_of(a, c.link);
            c.at = s.first;
            c.end = s.end;
        }
        const product &p = a.p[c.link];
        const struct run r = run_of(p);
        const struct group t = group_at(p, c.at, c.end);
        const mat &m = p.m[t.mi];
        uint32_t pitch = (uint32_t)m.pitch;
        size_t off = (size_t)(t.n0 + row) * pitch + (size_t)(r.c0 * 64 + threadIdx.x % 8 * 16);
        c.per_tile = p.glu ? 8 : 16;
        c.w0 = m.w + off;
        c.w1 = p.glu ? p.m[1].w + off : c.w0 + 8 * pitch;
        c.four = 4 * pitch;
        c.tile = (uint32_t)c.per_tile * pitch;
        c.r0 = row;
        c.r1 = p.glu ? row : row + 8;
        c.rows = t.rows;
        c.at += t.rows;
        c.left = r.c1 - r.c0;
        if (c.left > 0)
            return;
    }
}

/* Asks for two chunks, if any are left. ring: the warp's. */
template <int STEPS>
__device__ __forceinline__ void ask(const chain &a, struct cursor &c, uint32_t ring)
{
    if (c.link < a.n) {
        const int row = (int)threadIdx.x % 32 / 8, piece = (int)threadIdx.x % 8;
        uint32_t to = ring + (uint32_t)(c.steps % STEPS) * STEP +
                      (uint32_t)(row * LINE + (piece ^ (row & 1) * 4) * 16);
        if (piece < 4 || c.left > 1) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int first = i * c.per_tile;
                const uint8_t *w0 = c.w0 + (i ? c.tile : 0), *w1 = c.w1 + (i ? c.tile : 0);
                if (first + c.r0 < c.rows)
                    copy16(to + (16 * i) * LINE, w0);
                if (first + c.r0 + 4 < c.rows)
                    copy16(to + (16 * i + 4) * LINE, w0 + c.four);
                if (first + c.r1 < c.rows)
                    copy16(to + (16 * i + 8) * LINE, w1);
                if (first + c.r1 + 4 < c.rows)
                    copy16(to + (16 * i + 12) * LINE, w1 + c.four);
            }
        }
        c.w0 += LINE;
        c.w1 += LINE;
        c.left -= 2;
        if (c.left <= 0)
            next_group(a, c);
        c.steps++;
    }
    copies_end();
}

/* ---- meeting ----------------------------------------------------------------------------------- */

/* All blocks have come here `times` times, and see what the others wrote before. */
__device__ __forceinline__ void meet(const chain &a, unsigned times)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned seen, all = times * gridDim.x;
        __threadfence();
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.meeting) : "memory");
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(a.meeting)
                         : "memory");
        while (seen < all);
    }
    __syncthreads();
}

/* The last block to leave makes the counters zero again. */
__device__ __forceinline__ void leave(const chain &a)
{
    if (threadIdx.x)
        return;
    __threadfence();
    if (atomicAdd(a.meeting + 1, 1) + 1 == gridDim.x) {
        a.meeting[0] = 0;
        a.meeting[1] = 0;
    }
}

/* ---- rows -------------------------------------------------------------------------------------- */

/* A residual row that every block keeps: thread t holds elements 4 (t + i ROW_THREADS) .. + 3. */
struct held {
    float *row;       /* shared */
    const float *of;  /* the row in memory that it stands for; NULL: none */
    int n;
    bool stored;      /* memory holds the same */
};

/* Norm weights of the elements that a thread has first. */
struct first_weights {
    struct row_part behind, in;
};

__device__ __forceinline__ float squares(float4 v, float ss)
{
    ss = fmaf(v.x, v.x, ss);
    ss = fmaf(v.y, v.y, ss);
    ss = fmaf(v.z, v.z, ss);
    return fmaf(v.w, v.w, ss);
}

/* Block 0 stores what is held: once all blocks have met since it replaced what memory holds. */
__device__ __forceinline__ void store_held(struct held &h)
{
    if (blockIdx.x == 0 && h.of && !h.stored) {
        float *to = (float *)h.of;
        for (int i = (int)threadIdx.x * 4; i < h.n; i += ROW_STEP)
            for (int e = 0; e < 4 && i + e < h.n; e++)
                to[i + e] = h.row[i + e];
    }
    h.stored = true;
}

/* held = norm(y) (+ what b.dst holds): what is behind a product, as norm_row() has it. */
__device__ void settle(const product &p, struct held &h, const struct row_part &w0, float *room)
{
    const struct behind &b = p.behind;
    const float *y = p.f[0].dst;
    const bool mine = h.of == b.dst;
    const int n = p.m[0].n;
    struct row_part x, old, w = w0;
    load_part(y, n, 0, x);
    if (b.add && !mine)
        load_part(b.dst, n, 0, old);
    float inv = row_inverse(x, y, n, b.post, room);
    for (int from = 0; from < n; from += ROW_PASS) {
        if (from) {
            load_norm(b.post, n, from, w);
            load_part(y, n, from, x);
            if (b.add && !mine)
                load_part(b.dst, n, from, old);
        }
#pragma unroll
        for (int j = 0; j < ROW_HELD; j++) {
            int i = row_index(from, j);
            if (i >= n)
                continue;
            float4 z = four_normed(b.post.kind, x.v[j], inv, w.v[j]);
            if (b.add) {
                float4 o = mine ? *(const float4 *)(h.row + i) : old.v[j];
                z = make_float4(z.x + o.x, z.y + o.y, z.z + o.z, z.w + o.w);
            }
            *(float4 *)(h.row + i) = z;
        }
    }
    h.of = b.dst;
    h.n = n;
    h.stored = false;
}

/* The link's row from what is held, packed; as pack_row(). */
__device__ void pack_held(const product &p, const struct held &h, const struct row_part &w0,
                          uint16_t *to, size_t pitch, float *room)
{
    const struct norm &norm = p.in.norm;
    const int n = p.in.n;
    struct row_part w = w0;
    float inv = 1;
    if (norm.kind != NORM_NONE) {
        float ss = 0;
        for (int i = (int)threadIdx.x * 4; i < n; i += ROW_STEP)
            ss = squares(*(const float4 *)(h.row + i), ss);
        inv = 1 / sqrtf(row_sum(ss, room) / (float)n + norm.eps);
    }
    for (int from = 0; from < p.x.kp; from += ROW_PASS) {
        if (from)
            load_norm(norm, n, from, w);
#pragma unroll
        for (int j = 0; j < ROW_HELD; j++) {
            int i = row_index(from, j);
            if (i >= p.x.kp)
                continue;
            float4 v = i < n ? *(const float4 *)(h.row + i) : make_float4(0, 0, 0, 0);
            put_terms(four_normed(norm.kind, v, inv, w.v[j]), i, n, p.x.terms, to, pitch, false);
        }
    }
}

/* ---- a link ------------------------------------------------------------------------------------ */

/* What a group's outputs need besides their sums; a lane has one output. */
struct extra {
    float bias, mul, old;
};

__device__ __forceinline__ struct extra extra_of(const product &p, struct group t, int lane)
{
    const finish &f = p.f[t.mi];
    const int out = t.n0 + lane;
    struct extra x = {0, 1, 0};
    if (lane >= t.rows || p.glu)
        return x;
    if (f.b.p)
        x.bias = weight_at(f.b, (size_t)out);
    if (f.mul)
        x.mul = __ldcg(f.mul + out);
    if (f.add)
        x.old = __ldcg(f.dst + out);
    return x;
}

/* Adds up the runs of a group, in their order, and stores what follows, as finished() has it; one
 * warp. */
__device__ __forceinline__ void finish_group(const product &p, struct group t, struct extra x,
                                             const float *red, int lane)
{
    const finish &f = p.f[t.mi];
    float y = red[lane];
#pragma unroll
    for (int r = 1; r < RUNS; r++)
        y += red[r * GROUP + lane];
    if (p.glu) {
        float up = __shfl_down_sync(~0u, y, 8);
        int o = lane / 16 * 8 + lane % 8;
        if (lane % 16 < 8 && o < t.rows)
            f.dst[t.n0 + o] = activate(y, p.glu_act) * up;
        return;
    }
    if (f.b.p)
        y += x.bias;
    y = soft_capped(activate(y, f.act), f.softcap);
    if (f.scale != 1)
        y *= f.scale;
    if (f.mul)
        y *= x.mul;
    if (lane < t.rows)
        f.dst[t.n0 + lane] = f.add ? y + x.old : y;
}

/* Weights of one step: two chunks of rows g and g + 8 of two tiles. */
struct fragments {
    uint4 w[2][2][2]; /* tile, chunk, row */
    uint4 x[2];
};

/* All of this block's groups. x: the packed row; done: steps that the warp has multiplied so far. The
 * warps take turns in finishing a group. */
template <int STEPS>
__device__ __forceinline__ void multiply(const chain &a, int link, struct cursor &next,
                                         uint32_t ring, int &done, uint32_t x, uint32_t pitch,
                                         float *red)
{
    const product &p = a.p[link];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const struct run r = run_of(p);
    const struct share s = share_of(a, link);
    const int terms = p.x.terms;
    const uint32_t col = x + (uint32_t)min(g, terms - 1) * pitch + (uint32_t)q * 16;
    const uint32_t in_step = (uint32_t)(g * LINE + (q ^ (g & 1) * 4) * 16);
    struct group t;
    int turn = 0;
    for (int at = s.first; at < s.end; at += t.rows, turn++) {
        t = group_at(p, at, s.end);
        const bool finishes = warp == turn % RUNS;
        struct extra more;
        if (finishes)
            more = extra_of(p, t, lane);
        float acc[2][4] = {};
        for (int c = r.c0; c < r.c1; c += 2, done++) {
            const uint32_t from = ring + (uint32_t)(done % STEPS) * STEP + in_step;
            struct fragments f;
            copies_wait<STEPS - 1>();
            __syncwarp();
#pragma unroll
            for (int k = 0; k < 2; k++) {
                f.x[k] = make_uint4(0, 0, 0, 0);
                if (c + k < r.c1)
                    f.x[k] = shared16(col + (uint32_t)(c + k) * 64);
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        f.w[i][k][h] = shared16((from ^ k * 64) + (16 * i + 8 * h) * LINE);
            }
            __syncwarp(); /* all lanes have read the step whose place the next one takes */
            ask<STEPS>(a, next, ring);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (c + k >= r.c1)
                    break;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint4 &w0 = f.w[i][k][0], &w1 = f.w[i][k][1];
                    mma_bf16(acc[i], w0.x, w1.x, w0.y, w1.y, f.x[k].x, f.x[k].y);
                    mma_bf16(acc[i], w0.z, w1.z, w0.w, w1.w, f.x[k].z, f.x[k].w);
                }
            }
        }
        float *all = red + turn % 2 * RUNS * GROUP, *to = all + warp * GROUP + g;
        if (q == 0) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                to[16 * i] = terms == 2 ? acc[i][0] + acc[i][1] : acc[i][0];
                to[16 * i + 8] = terms == 2 ? acc[i][2] + acc[i][3] : acc[i][2];
            }
        }
        __syncthreads();
        if (finishes)
            finish_group(p, t, more, all, lane);
    }
}

/* What is left when the last link is done: the row behind it, heads. */
__device__ __forceinline__ void finish_chain(const chain &a, struct held &held, unsigned &met,
                                             float *room)
{
    const product &last = a.p[a.n - 1];
    const struct heads &h = last.behind.heads;
    if (!last.behind.dst && !last.behind.turns && held.stored)
        return;
    meet(a, ++met);
    store_held(held);
    if (last.behind.dst && blockIdx.x == 0) {
        const struct behind &b = last.behind;
        struct row_part w, old;
        load_norm(b.post, last.m[0].n, 0, w);
        if (b.add)
            load_part(b.dst, last.m[0].n, 0, old);
        norm_row(last.f[0].dst, b.dst, last.m[0].n, b.post, w, old, b.add, 1, room);
    }
    int all = last.behind.turns ? h.n_head + (h.k ? (h.v_from_k ? 1 : 2) * h.n_kv : 0) : 0;
    for (int i = (int)blockIdx.x; i < all; i += (int)gridDim.x) {
        struct head_part part;
        load_head(h, 0, i, part);
        __syncthreads();
        finish_head(h, 0, i, part, room);
    }
}

/* The first norm weights that link l needs, and those behind the link before. */
__device__ __forceinline__ void load_weights_of(const chain &a, int l, struct first_weights &w)
{
    if (l >= a.n)
        return;
    load_norm(a.p[l].in.norm, a.p[l].in.n, 0, w.in);
    if (l > 0 && a.p[l - 1].behind.dst)
        load_norm(a.p[l - 1].behind.post, a.p[l - 1].m[0].n, 0, w.behind);
}

/* The links are read from shared memory: parameters lie behind a cache that knows none of them yet. */
__device__ __forceinline__ void copy_links(const chain &from, chain &to)
{
    const uint32_t *a = (const uint32_t *)&from;
    for (int i = (int)threadIdx.x; i < (int)(sizeof to / 4); i += PRODUCT_THREADS)
        ((uint32_t *)&to)[i] = a[i];
    __syncthreads();
}

/* Shared: the ring; the packed row; the held row. */
template <int STEPS>
__global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    chain_kernel(const __grid_constant__ struct chain param)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float room[2][ROW_WARPS], red[2 * RUNS * GROUP];
    __shared__ struct chain a;
    let_next();
    copy_links(param, a);
    uint8_t *const row = shared + RUNS * STEPS * STEP;
    const uint32_t ring =
        (uint32_t)__cvta_generic_to_shared(shared) + threadIdx.x / 32 * (STEPS * STEP);
    struct held held = {(float *)(row + a.packed), NULL, 0, true};
    struct first_weights w = {}; /* of the link that comes: they take long on a busy memory */
    struct cursor next = {};
    load_weights_of(a, 0, w);
    next.link = -1;
    next_group(a, next);
    for (int i = 0; i < STEPS; i++)
        ask<STEPS>(a, next, ring);

    unsigned met = 0;
    int done = 0;
    for (int l = 0; l < a.n; l++) {
        const product &p = a.p[l];
        const uint32_t pitch = (uint32_t)p.x.kp * 2 + (p.x.kp % 64 ? 0u : 64u);
        if (l == 0) {
            wait_before();
        } else {
            meet(a, ++met);
            store_held(held);
            if (a.p[l - 1].behind.dst)
                settle(a.p[l - 1], held, w.behind, room[0]);
        }
        if (held.of == p.in.src)
            pack_held(p, held, w.in, (uint16_t *)row, pitch / 2, room[1]);
        else
            pack_row(p.in, 0, p.x.kp, p.x.terms, w.in, (uint16_t *)row, pitch / 2, room[1]);
        load_weights_of(a, l + 1, w);
        __syncthreads();
        multiply<STEPS>(a, l, next, ring, done, (uint32_t)__cvta_generic_to_shared(row), pitch,
                        red);
    }
    finish_chain(a, held, met, room[0]);
    if (met)
        leave(a);
}

#endif

/* ---- host ------------------------------------------------------------------------------------ */

static int packed_bytes(const struct product *p)
{
    return (int)cuda_round((size_t)p->x.terms * ((size_t)p->x.kp * 2 + 64), 128);
}

bool cuda_chains(const struct kdev *d, const struct product *p)
{
    for (int i = 0; i < p->n_mats; i++)
        if ((uintptr_t)p->m[i].w % 16 || p->m[i].type != DT_BF16)
            return false;
    return p->rows == 1 && packed_bytes(p) <= MAX_PACKED && !p->behind.heads.whole &&
           (!p->behind.dst || p->m[0].n <= MAX_HELD) && d->shared_most >= 96 << 10;
}

static bool touches(const float *row, int n, const float *from, int m)
{
    return row < from + m && from < row + n;
}

/* A row that blocks hold, and have perhaps not stored yet, may be read as a link's whole row or be
 * added to behind another one, and not be touched otherwise. */
static bool fits(const struct chain *c, const struct product *p)
{
    if (c->n == CHAIN_MAX)
        return false;
    for (int i = 0; i < c->n; i++) {
        const float *held = c->p[i].behind.dst;
        int n = c->p[i].m[0].n;
        if (!held)
            continue;
        if (p->behind.dst && p->behind.dst != held && touches(held, n, p->behind.dst, p->m[0].n))
            return false;
        if (touches(held, n, p->in.src, p->in.n) && (p->in.src != held || p->in.n != n))
            return false;
        for (int j = 0; j < p->n_mats; j++)
            if (touches(held, n, p->f[j].dst, p->m[j].n) ||
                (p->f[j].mul && touches(held, n, p->f[j].mul, p->m[j].n)))
                return false;
    }
    return true;
}

void cuda_chain_add(struct kdev *d, const struct product *p)
{
    if (!d->chain)
        d->chain = (struct chain *)xcalloc(1, sizeof *d->chain);
    if (!fits(d->chain, p))
        cuda_chain_run(d);
    d->chain->p[d->chain->n++] = *p;
    if (p->behind.turns) /* heads come at the end */
        cuda_chain_run(d);
}

bool cuda_chain_pending(const struct kdev *d)
{
    return d->chain && d->chain->n > 0;
}

void cuda_chain_run(struct kdev *d)
{
    struct chain *c = d->chain;
    if (!c || !c->n)
        return;
    struct chain now = *c;
    c->n = 0;
    now.held = now.packed = 0;
    now.meeting = d->meeting;
    for (int i = 0; i < now.n; i++) {
        now.each[i] = div_up(div_up(outputs_of(now.p[i]), 4), d->n_sm) * 4;
        now.packed = max_int(now.packed, packed_bytes(&now.p[i]));
        if (now.p[i].behind.dst)
            now.held = max_int(now.held, (int)cuda_round((size_t)now.p[i].m[0].n, 32));
    }
    size_t rows = (size_t)now.packed + (size_t)now.held * sizeof(float);
    dim3 grid((unsigned)d->n_sm);
    const size_t many = (size_t)RUNS * STEPS_MANY * STEP, few = (size_t)RUNS * STEPS_FEW * STEP;
    if (rows + many + 4096 <= d->shared_most)
        cuda_launch(d, chain_kernel<STEPS_MANY>, grid, PRODUCT_THREADS, rows + many, now);
    else
        cuda_launch(d, chain_kernel<STEPS_FEW>, grid, PRODUCT_THREADS, rows + few, now);
}
