/* bench_kernels.c - single operations of the kernel table: memory, phases, products, experts,
 * attention, sampling.
 *
 * Shapes are those of the published models where the device records runs (a GPU); elsewhere the
 * largest are reduced so that a line takes less than a second or two. Every line says its shape.
 */
#include "engine/tools/bench_routing.h"
#include "kernels/packed.h"

#include <unistd.h>

enum { MAX_SETS = 24, MAX_ROWS = 64, PAGE = 16 };

/* So many sets that together they exceed the caches by far: at least three. */
static int sets_for(const struct bench *b, double bytes)
{
    int n = (int)((b->graphs ? 320e6 : 96e6) / bytes) + 1;
    return n < 3 ? 3 : min_int(n, MAX_SETS);
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct memory {
    kbuf src, dst; /* dst empty: src is only read */
    double *rate;  /* bytes a second, of reading */
};

static void run_stream(struct bench *b, void *arg)
{
    struct memory *m = arg;
    b->dev.k->stream(b->dev.d, m->src, m->dst);
}

static bool time_stream(struct bench *b, const char *name, struct memory *m, struct err *e)
{
    /* a recorded copy may be given to a copy engine, which is slower */
    struct work w = {.run = run_stream, .arg = m, .times = 1, .eager = m->dst.p != NULL};
    struct timing t;
    char shape[64];
    double bytes = (double)m->src.n * (m->dst.p ? 2 : 1);
    if (!bench_time(b, &w, &t, e))
        return false;
    if (!m->dst.p)
        *m->rate = bytes / (t.ms * 1e-3);
    int at = snprintf(shape, sizeof shape, "%zu MiB", m->src.n >> 20);
    if (m->rate == &b->cache_rate)
        snprintf(shape + at, sizeof shape - (size_t)at, ", for lines to %zu MB",
                 b->cache_bytes / 1000000);
    bench_tell(b, name, shape, &t, &(struct figure){bytes, 0, bytes / t.ms * 1e-9, "TB/s"});
    return true;
}

/* Bytes of the processor's last cache; 0: not known. */
static size_t last_cache(void)
{
#ifdef _SC_LEVEL3_CACHE_SIZE
    long n = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return n > 0 ? (size_t)n : 0;
#else
    return 0;
#endif
}

/* On a processor: what lies in the cache is read at another rate than what comes from memory, and a
 * small model lies there. */
static bool read_cache(struct bench *b, struct err *e)
{
    enum { CACHED = 16 << 20 };
    struct memory m = {.rate = &b->cache_rate};
    b->cache_bytes = last_cache() / 2 / 1000000 * 1000000;
    if (b->cache_bytes < CACHED)
        return true;
    m.src = bench_buffer(b, CACHED, NULL, e);
    bool ok = m.src.p && bench_fill(b, m.src, KV_BF16, e) && time_stream(b, "mem.cache", &m, e);
    bench_release(b, &m.src, 1);
    return ok;
}

/* Beyond all caches: 4 GiB on a GPU, twice the last cache on a processor (a short run may stay
 * within it); less where that does not fit. */
bool bench_memory(struct bench *b, struct err *e)
{
    struct memory m = {.rate = &b->read_rate};
    size_t n = (size_t)256 << 20;
    while (!b->o->brief && n < 2 * last_cache() && n < (size_t)1 << 30)
        n *= 2;
    if (b->graphs)
        n = (size_t)4 << 30;
    for (; n >= (size_t)32 << 20 && !m.src.p; n /= 2)
        m.src = bench_buffer(b, n, NULL, e);
    bool ok = m.src.p && bench_fill(b, m.src, KV_BF16, e) && time_stream(b, "mem.read", &m, e);
    if (ok && bench_wanted(b, "mem.copy")) {
        size_t half = m.src.n / 2;
        struct memory c = {kbuf_at(m.src, 0, half), kbuf_at(m.src, half, half), NULL};
        ok = time_stream(b, "mem.copy", &c, e);
    }
    bench_release(b, &m.src, 1);
    return ok && (b->graphs || read_cache(b, e));
}

/* ---- phases ---------------------------------------------------------------------------------- */

enum { PHASES = 200 };

static void run_phases(struct bench *b, void *arg)
{
    const enum k_phase *kind = arg;
    b->dev.k->phase(b->dev.d, *kind, PHASES);
}

/* The last line launches the same operations as the first, but one by one from the host. */
static bool phases(struct bench *b, struct err *e)
{
    static const struct {
        const char *name;
        enum k_phase kind;
    } all[] = {{"phase.graph", PHASE_LAUNCH}, {"phase.pdl", PHASE_EARLY},
               {"phase.barrier", PHASE_BARRIER}, {"phase.flag", PHASE_FLAG},
               {"phase.eager", PHASE_LAUNCH}};
    for (int i = b->graphs ? 0 : 4; i < 5; i++) {
        enum k_phase kind = all[i].kind;
        struct work w = {.run = run_phases, .arg = &kind, .times = PHASES, .eager = i == 4};
        struct timing t;
        if (!bench_wanted(b, all[i].name) || !b->dev.k->phase(b->dev.d, kind, 1))
            continue;
        if (!bench_time(b, &w, &t, e))
            return false;
        bench_tell(b, all[i].name, "200 dependent phases", &t,
                   &(struct figure){0, 0, t.ms * 1e3, "us"});
    }
    return true;
}

/* ---- products -------------------------------------------------------------------------------- */

struct bench_product {
    struct tensor w[MAX_SETS], up[MAX_SETS]; /* up: of a gated pair */
    bool glu;
    enum dtype type;
    int sets, rows, in, out;
    kbuf src, dst; /* (rows, in), (rows, out) */
};

static void run_product(struct bench *b, void *arg)
{
    struct bench_product *p = arg;
    for (int i = 0; i < p->sets; i++)
        if (p->glu)
            b->dev.k->glu(b->dev.d, &(struct k_glu){.rows = p->rows, .src = p->src,
                                                    .gate = &p->w[i], .up = &p->up[i],
                                                    .act = ACT_GELU_TANH, .dst = p->dst});
        else
            b->dev.k->linear(b->dev.d, &(struct k_linear){.rows = p->rows, .src_stride = p->in,
                                                          .src = p->src, .w = &p->w[i], .scale = 1,
                                                          .dst = p->dst});
}

static double product_bytes(const struct bench_product *p)
{
    return (double)p->out * (double)dtype_bytes(p->type, (size_t)p->in) * (p->glu ? 2 : 1);
}

static bool open_product(struct bench *b, struct bench_product *p, int most, struct err *e)
{
    for (int i = 0; i < p->sets; i++)
        if (!bench_typed(b, &p->w[i], p->type, p->out, p->in, 1 / 64.f, e) ||
            (p->glu && !bench_typed(b, &p->up[i], p->type, p->out, p->in, 1 / 64.f, e)))
            return false;
    p->src = bench_floats(b, (size_t)most * (size_t)p->in, e);
    p->dst = bench_buffer(b, (size_t)most * (size_t)p->out * 4, NULL, e);
    return p->src.p && p->dst.p;
}

/* flops: the line is about arithmetic, not about bytes. */
static bool time_product(struct bench *b, struct bench_product *p, const char *name, bool flops,
                         struct timing *t, struct err *e)
{
    struct work w = {.run = run_product, .arg = p, .times = p->sets, .numbers = true,
                     .out = kbuf_at(p->dst, 0, (size_t)p->rows * (size_t)p->out * 4)};
    double bytes = product_bytes(p);
    char shape[64];
    if (!bench_time(b, &w, t, e))
        return err_prefix(e, "%s", name);
    snprintf(shape, sizeof shape, "%s%dx%d %s, %d sets", p->glu ? "2 x " : "", p->out, p->in,
             p->type == DT_BF16 ? "bf16" : dtype_name(p->type), p->sets);
    bench_tell(b, name, shape, t, &(struct figure){bytes, flops ? bytes * p->rows : 0, 0, NULL});
    return true;
}

static bool gemv(struct bench *b, const char *name, enum dtype type, int out, int in, bool glu,
                 struct err *e)
{
    static const int rows[] = {1, 4, 16, 64};
    char line[40];
    if (!bench_wanted_any(b, name))
        return true;
    struct bench_product p = {.in = in, .out = out, .glu = glu, .type = type};
    p.sets = sets_for(b, product_bytes(&p));
    bool ok = open_product(b, &p, MAX_ROWS, e), as_it_is = ok && p.w[0].type == type;
    for (int i = 0; i < (b->o->brief ? 2 : 4) && ok && as_it_is; i++) {
        struct timing t;
        p.rows = rows[i];
        snprintf(line, sizeof line, "%s.T%d", name, p.rows);
        ok = !bench_wanted(b, line) || time_product(b, &p, line, false, &t, e);
    }
    kbuf all[] = {p.src, p.dst};
    bench_release(b, all, 2);
    return ok;
}

/* gemv.glu of packed weights; a GPU that unpacks a type has no lines of it. */
static bool packed_gemvs(struct bench *b, struct err *e)
{
    static const struct {
        const char *name;
        enum dtype type;
        bool brief;
    } all[] = {{"gemv.q4_0", DT_Q4_0, true},   {"gemv.q4_k", DT_Q4_K, true},
               {"gemv.q5_0", DT_Q5_0, false},  {"gemv.q5_k", DT_Q5_K, false},
               {"gemv.q6_k", DT_Q6_K, false},  {"gemv.q8_0", DT_Q8_0, false},
               {"gemv.mxfp4", DT_MXFP4, false}};
    bool ok = true;
    for (size_t i = 0; i < LEN(all) && ok; i++)
        if (all[i].brief || !b->o->brief)
            ok = gemv(b, all[i].name, all[i].type, 10240, 2560, true, e);
    return ok;
}

static bool gemvs(struct bench *b, struct err *e)
{
    int vocab = b->graphs ? 201088 : 20128;
    return gemv(b, "gemv.qkv", DT_BF16, 5120, 2880, false, e) &&
           gemv(b, "gemv.o", DT_BF16, 2880, 4096, false, e) &&
           gemv(b, "gemv.glu", DT_BF16, 10240, 2560, true, e) &&
           gemv(b, "gemv.head", DT_BF16, vocab, 2880, false, e) && packed_gemvs(b, e);
}

/* gemm.peak, to which prefill compares: one large product. */
static bool gemm(struct bench *b, struct err *e)
{
    struct bench_product p = {.sets = 1,
                              .type = DT_BF16,
                              .in = b->graphs ? 8192 : 1024,
                              .out = b->graphs ? 8192 : 1024,
                              .rows = b->graphs ? 4096 : 128};
    struct timing t;
    if (!bench_wanted(b, "gemm.peak") && !bench_wanted_any(b, "prefill") &&
        !bench_wanted_any(b, "cublas") && !bench_wanted_any(b, "product"))
        return true;
    bool ok = open_product(b, &p, p.rows, e) && time_product(b, &p, "gemm.peak", true, &t, e);
    if (ok)
        b->matrix_rate = 2.0 * p.rows * p.in * p.out / (t.ms * 1e-3);
    kbuf all[] = {p.src, p.dst};
    bench_release(b, all, 2);
    return ok;
}

/* ---- experts --------------------------------------------------------------------------------- */

struct experts {
    struct tensor gate_up, gate_up_s, gate_up_b, down, down_s, down_b, router, router_b, norm;
};

struct moe {
    struct experts w[MAX_SETS];
    int sets, rows, n_expert, width; /* width: of the model and of an expert */
    kbuf src, dst, chosen[MAX_SETS];
};

enum { TOP_K = 4 };

static bool open_experts(struct bench *b, struct experts *w, int E, int n, struct err *e)
{
    float scale = 1 / 54.f;
    struct tensor *mxfp4[] = {&w->gate_up, &w->gate_up_s, &w->down, &w->down_s};
    for (int i = 0; i < 4; i++) {
        struct tensor *t = mxfp4[i];
        *t = (struct tensor){.type = DT_U8, .n_dim = i % 2 ? 3 : 4, .name = "experts",
                             .dim = {E, i < 2 ? 2 * n : n, n / 32, i % 2 ? 0 : 16}};
        t->bytes = (size_t)E * (size_t)t->dim[1] * (size_t)(n / 32) * (i % 2 ? 1 : 16);
        if (!b->dev.k->synthesize(b->dev.d, t, bench_random(b), scale, e))
            return false;
    }
    return bench_rows(b, &w->gate_up_b, E, 2 * n, scale, e) &&
           bench_rows(b, &w->down_b, E, n, scale, e) &&
           bench_rows(b, &w->router, E, n, scale, e) &&
           bench_weights(b, &w->router_b, 0, E, scale, e) &&
           bench_weights(b, &w->norm, 0, n, 0, e);
}

static void run_moe(struct bench *b, void *arg)
{
    struct moe *m = arg;
    for (int i = 0; i < m->sets; i++) {
        const struct experts *w = &m->w[i];
        b->dev.k->moe(b->dev.d, &(struct k_moe){
            .rows = m->rows, .in = m->width, .ffn = m->width, .n_expert = m->n_expert,
            .top_k = TOP_K, .src = m->src, .pre = {NORM_RMS, &w->norm, 1e-5f}, .router_scale = 1,
            .router = &w->router, .router_b = &w->router_b, .layout = EXPERT_MXFP4,
            .gate_up = &w->gate_up, .gate_up_s = &w->gate_up_s, .gate_up_b = &w->gate_up_b,
            .down = &w->down, .down_s = &w->down_s, .down_b = &w->down_b,
            .act = ACT_SWIGLU_CLAMP, .limit = 7, .dst = m->dst, .chosen = m->chosen[i]});
    }
}

/* Experts that a set's rows chose, on average. */
static double distinct(struct bench *b, const struct moe *m)
{
    int32_t ids[MAX_ROWS * TOP_K];
    int n = 0;
    for (int i = 0; i < m->sets; i++) {
        b->dev.k->get(b->dev.d, ids, m->chosen[i], (size_t)m->rows * (size_t)TOP_K * sizeof *ids);
        n += routing_hit(ids, m->rows * TOP_K, m->n_expert);
    }
    return (double)n / m->sets;
}

/* Rows that share 0.4 of their variance. Of the experts beyond one row's they choose 0.66 to 0.81
 * times as many as independent rows if there are 32 experts (from 4 rows on), 0.80 to 0.56 if
 * there are 128 (tests/bench/results-h200.md); a text's share is in bench_routing.h. */
static kbuf near_rows(struct bench *b, int rows, int n, struct err *e)
{
    float *x = xmalloc((size_t)rows * (size_t)n * sizeof *x), one = synthetic_step(1);
    for (int i = 0; i < n; i++) {
        float shared = (float)(int16_t)bench_random(b) * one * 0.632456f;
        for (int r = 0; r < rows; r++)
            x[r * n + i] = shared + (float)(int16_t)bench_random(b) * one * 0.774597f;
    }
    kbuf buf = bench_buffer(b, (size_t)rows * (size_t)n * sizeof *x, x, e);
    free(x);
    return buf;
}

static bool time_moe(struct bench *b, struct moe *m, const char *name, struct err *e)
{
    struct work w = {.run = run_moe, .arg = m, .times = m->sets, .numbers = true,
                     .out = kbuf_at(m->dst, 0, (size_t)m->rows * (size_t)m->width * 4)};
    struct timing t;
    char shape[80];
    if (!bench_time(b, &w, &t, e))
        return err_prefix(e, "%s", name);
    double hit = distinct(b, m), each = 3.0 * m->width * m->width * 17 / 32;
    snprintf(shape, sizeof shape, "%d of %d experts, %dx%d MXFP4, %d sets", TOP_K, m->n_expert,
             m->width, m->width, m->sets);
    bench_tell_pass(b, name, shape, &t,
                    &(struct figure){hit * each + 2.0 * m->n_expert * m->width, 0, hit, "experts"},
                    hit);
    return true;
}

static bool moe_rows(struct bench *b, struct moe *m, const char *name, kbuf src, int first,
                     struct err *e)
{
    char line[32];
    bool ok = true;
    m->src = src;
    for (m->rows = first; m->rows <= MAX_ROWS && ok; m->rows *= b->o->brief ? 4 : 2) {
        snprintf(line, sizeof line, "%sT%d", name, m->rows);
        ok = !bench_wanted(b, line) || time_moe(b, m, line, e);
    }
    return ok;
}

static bool moe(struct bench *b, int n_expert, struct err *e)
{
    char name[16], alike[24];
    snprintf(name, sizeof name, "moe.e%d.", n_expert);
    snprintf(alike, sizeof alike, "%snear.", name);
    if (!bench_wanted_any(b, name))
        return true;
    FREED(free_at) struct moe *m = xcalloc(1, sizeof *m);
    m->n_expert = n_expert;
    m->width = b->graphs ? 2880 : 384;
    m->sets = sets_for(b, n_expert * 3.0 * m->width * m->width * 17 / 32);
    bool ok = true;
    for (int i = 0; i < m->sets && ok; i++) {
        m->chosen[i] = bench_buffer(b, (size_t)MAX_ROWS * TOP_K * 4, NULL, e);
        ok = m->chosen[i].p && open_experts(b, &m->w[i], n_expert, m->width, e);
    }
    kbuf src[2] = {bench_floats(b, (size_t)MAX_ROWS * (size_t)m->width, e),
                   near_rows(b, MAX_ROWS, m->width, e)};
    m->dst = bench_buffer(b, (size_t)MAX_ROWS * (size_t)m->width * 4, NULL, e);
    ok = ok && src[0].p && src[1].p && m->dst.p && moe_rows(b, m, name, src[0], 1, e) &&
         (b->o->brief || moe_rows(b, m, alike, src[1], 2, e));
    bench_release(b, m->chosen, m->sets);
    bench_release(b, src, 2);
    bench_release(b, &m->dst, 1);
    return ok;
}

/* ---- attention ------------------------------------------------------------------------------- */

struct bench_heads {
    int n_head, n_kv, dim, window;
};

struct attention {
    struct bench_heads h;
    bool slides;
    int n, rows, sets, slots;
    enum kv_type type;
    struct k_table t;
    kbuf k[MAX_SETS], v[MAX_SETS], q, dst;
};

/* Rows behind n cells whose pages lie anywhere; more than one are the nodes of a tree: row r is a
 * child of row (r - 1) / 2 and sees its ancestors' cells, which lie behind all pages. */
static bool open_table(struct bench *b, struct attention *a, struct err *e)
{
    enum { DEEP = 8 };
    int cols = div_up(a->n, PAGE), rows = a->rows;
    int32_t *pages = xmalloc((size_t)cols * 4), expand[MAX_ROWS * DEEP] = {0};
    int32_t lo[MAX_ROWS], hi[MAX_ROWS], n_expand[MAX_ROWS], req[MAX_ROWS] = {0}, write[MAX_ROWS];
    for (int i = 0; i < cols; i++)
        pages[i] = 1 + (int)((int64_t)i * 7919 % cols);
    for (int r = 0; r < rows; r++) {
        int deep = 0, path[DEEP] = {0}, first = (cols + 1) * PAGE;
        for (int at = r; at >= 0; at = at ? (at - 1) / 2 : -1)
            path[deep++] = at;
        struct row_extent x = row_extent(a->n, deep, a->slides ? a->h.window : 0);
        for (int i = 0; i < x.n_expand; i++)
            expand[r * DEEP + i] = first + path[deep - 1 - x.skip - i];
        lo[r] = x.lo;
        hi[r] = x.hi;
        n_expand[r] = x.n_expand;
        write[r] = first + r;
    }
    size_t R = (size_t)rows * 4;
    a->t = (struct k_table){
        .page_size = PAGE, .n_cols = cols, .expand_w = DEEP, .req = bench_buffer(b, R, req, e),
        .pages = bench_buffer(b, (size_t)cols * 4, pages, e), .lo = bench_buffer(b, R, lo, e),
        .hi = bench_buffer(b, R, hi, e), .expand = bench_buffer(b, R * DEEP, expand, e),
        .n_expand = bench_buffer(b, R, n_expand, e), .write = bench_buffer(b, R, write, e)};
    free(pages);
    return a->t.req.p && a->t.pages.p && a->t.lo.p && a->t.hi.p && a->t.expand.p &&
           a->t.n_expand.p && a->t.write.p;
}

static void close_table(struct bench *b, struct k_table *t)
{
    kbuf all[] = {t->req, t->pages, t->lo, t->hi, t->expand, t->n_expand, t->write};
    bench_release(b, all, 7);
}

static void run_attention(struct bench *b, void *arg)
{
    struct attention *a = arg;
    for (int i = 0; i < a->sets; i++)
        b->dev.k->attn(b->dev.d, &(struct k_attn){
            .rows = a->rows, .n_head = a->h.n_head, .scale = 1 / 8.f, .q = a->q,
            .window = a->slides ? a->h.window : 0,
            .cells = {a->k[i], a->v[i], a->type, a->slots, a->h.n_kv, a->h.dim}, .table = &a->t,
            .dst = a->dst});
}

static bool time_attention(struct bench *b, struct attention *a, const char *name, struct err *e)
{
    struct work w = {.run = run_attention, .arg = a, .times = a->sets, .numbers = true,
                     .out = kbuf_at(a->dst, 0,
                                    (size_t)a->rows * (size_t)a->h.n_head * (size_t)a->h.dim * 4)};
    struct timing t;
    char shape[80];
    bool ok = open_table(b, a, e) && bench_time(b, &w, &t, e);
    close_table(b, &a->t);
    if (!ok)
        return err_prefix(e, "%s", name);
    double cells = (a->slides ? min_int(a->n, a->h.window) : a->n) + (a->rows > 1 ? a->rows : 0);
    snprintf(shape, sizeof shape, "%d/%d heads of %d, %s, %d sets", a->h.n_head, a->h.n_kv,
             a->h.dim, a->type == KV_FP8 ? "fp8" : a->type == KV_BF16 ? "bf16" : "f32", a->sets);
    bench_tell(b, name, shape, &t,
               &(struct figure){cells * 2 * (double)kv_cell_bytes(a->type, a->h.n_kv, a->h.dim), 0,
                                t.ms * 1e3, "us"});
    return true;
}

static bool attention(struct bench *b, struct bench_heads h, bool slides, int n, struct err *e)
{
    static const int rows[] = {1, 8, 64};
    char name[32], line[40];
    snprintf(name, sizeof name, "attn.%s.d%d.%dk.", slides ? "swa" : "full", h.dim, n >> 10);
    if (!bench_wanted_any(b, name))
        return true;
    struct attention a = {.h = h, .slides = slides, .n = n,
                          .type = b->dev.kv,
                          .slots = (div_up(n, PAGE) + 1) * PAGE + MAX_ROWS};
    size_t bytes = (size_t)a.slots * kv_cell_bytes(a.type, h.n_kv, h.dim);
    size_t wide = (size_t)MAX_ROWS * (size_t)h.n_head * (size_t)h.dim;
    a.sets = sets_for(b, 2 * (double)bytes);
    a.q = bench_floats(b, wide, e);
    a.dst = bench_buffer(b, wide * 4, NULL, e);
    bool ok = a.q.p && a.dst.p;
    for (int i = 0; i < a.sets && ok; i++) {
        a.k[i] = bench_buffer(b, bytes, NULL, e);
        a.v[i] = bench_buffer(b, bytes, NULL, e);
        ok = a.k[i].p && a.v[i].p && bench_fill(b, a.k[i], a.type, e) &&
             bench_fill(b, a.v[i], a.type, e);
    }
    for (int i = 0; i < (b->o->brief ? 2 : 3) && ok; i++) {
        a.rows = rows[i];
        snprintf(line, sizeof line, "%sT%d", name, a.rows);
        ok = !bench_wanted(b, line) || time_attention(b, &a, line, e);
    }
    bench_release(b, a.k, a.sets);
    bench_release(b, a.v, a.sets);
    bench_release(b, &a.q, 1);
    bench_release(b, &a.dst, 1);
    return ok;
}

static bool attentions(struct bench *b, struct err *e)
{
    static const struct bench_heads heads[] = {
        {64, 8, 64, 128}, {8, 4, 256, 1024}, {32, 4, 512, 0}};
    static const int n[] = {4096, 32768, 131072};
    bool ok = true;
    for (int h = 0; h < (b->graphs ? 3 : 2); h++)
        for (int slides = 0; slides < (heads[h].window ? 2 : 1); slides++)
            for (int i = 0; i < (b->graphs ? 3 : b->o->brief ? 1 : 2); i++)
                ok = ok && attention(b, heads[h], slides, n[i], e);
    return ok;
}

/* ---- sampling -------------------------------------------------------------------------------- */

struct draws {
    int rows, n, sets;
    struct sampling how;
    kbuf logits[MAX_SETS], u, ids, p;
};

static void run_draws(struct bench *b, void *arg)
{
    struct draws *s = arg;
    for (int i = 0; i < s->sets; i++)
        b->dev.k->sample(b->dev.d, &(struct k_sample){.rows = s->rows, .n = s->n,
                                                      .logits = s->logits[i], .how = s->how,
                                                      .u = s->u, .ids = s->ids, .p = s->p});
}

static bool time_draws(struct bench *b, struct draws *s, const char *name, struct err *e)
{
    struct work w = {.run = run_draws, .arg = s, .times = s->sets, .numbers = true,
                     .out = kbuf_at(s->p, 0, (size_t)s->rows * 4)};
    struct timing t;
    char shape[40];
    if (!bench_time(b, &w, &t, e))
        return err_prefix(e, "%s", name);
    snprintf(shape, sizeof shape, "%d rows of %d", s->rows, s->n);
    bench_tell(b, name, shape, &t,
               &(struct figure){(double)s->rows * s->n * 4, 0, t.ms * 1e3, "us"});
    return true;
}

static bool sampling(struct bench *b, int n, struct err *e)
{
    enum { ROWS = 8, SETS = 3 };
    static const struct {
        const char *name;
        struct sampling how;
    } kind[] = {{"argmax", {0, 0, 1, 0}}, {"topk_p", {0.8f, 64, 0.95f, 0}}};
    struct draws s = {.n = n, .sets = SETS};
    if (!bench_wanted_any(b, "sample."))
        return true;
    float u[ROWS];
    for (int i = 0; i < ROWS; i++)
        u[i] = (float)(bench_random(b) >> 40) * 0x1p-24f;
    s.u = bench_buffer(b, sizeof u, u, e);
    s.ids = bench_buffer(b, (size_t)ROWS * 4, NULL, e);
    s.p = bench_buffer(b, (size_t)ROWS * 4, NULL, e);
    bool ok = s.u.p && s.ids.p && s.p.p;
    for (int i = 0; i < SETS && ok; i++)
        ok = (s.logits[i] = bench_floats(b, (size_t)ROWS * (size_t)n, e)).p;
    for (int i = 0; i < 4 && ok; i++) {
        char line[40];
        s.rows = i % 2 ? ROWS : 1;
        s.how = kind[i / 2].how;
        snprintf(line, sizeof line, "sample.%s.%d.T%d", kind[i / 2].name, n, s.rows);
        ok = !bench_wanted(b, line) || time_draws(b, &s, line, e);
    }
    bench_release(b, s.logits, SETS);
    kbuf all[] = {s.u, s.ids, s.p};
    bench_release(b, all, 3);
    return ok;
}

/* The operations of a verify pass of 60 rows on its logits: sampling, the eight best ids, and one
 * log probability a row. */
enum { READ_ROWS = 60, READ_BEST = 8 };

struct reads {
    int n;
    kbuf logits, ids, p, best, best_logp, pair, pair_logp;
};

static void run_reads(struct bench *b, void *arg)
{
    struct reads *r = arg;
    struct k_sample draws = {.rows = READ_ROWS, .n = r->n, .logits = r->logits, .ids = r->ids,
                             .p = r->p};
    struct k_topk best = {.rows = READ_ROWS, .n = r->n, .k = READ_BEST, .logits = r->logits,
                          .ids = r->best, .logp = r->best_logp};
    struct k_logp pairs = {READ_ROWS, r->n, READ_ROWS, r->logits, r->pair, r->pair, r->pair_logp};
    b->dev.k->read(b->dev.d, &(struct k_read){&draws, &best, &pairs});
}

static bool reading(struct bench *b, int n, struct err *e)
{
    const size_t rows = (size_t)READ_ROWS * 4;
    struct reads r = {.n = n};
    int32_t pair[READ_ROWS];
    char name[40], shape[40];
    struct timing t;
    snprintf(name, sizeof name, "sample.read.%d.T%d", n, READ_ROWS);
    snprintf(shape, sizeof shape, "%d rows of %d", READ_ROWS, n);
    if (!bench_wanted(b, name))
        return true;
    for (int i = 0; i < READ_ROWS; i++)
        pair[i] = i;
    r.logits = bench_floats(b, (size_t)READ_ROWS * (size_t)n, e);
    r.pair = bench_buffer(b, rows, pair, e);
    kbuf *out[] = {&r.ids, &r.p, &r.pair_logp, &r.best, &r.best_logp};
    bool ok = r.logits.p && r.pair.p;
    for (int i = 0; i < 5 && ok; i++)
        ok = (*out[i] = bench_buffer(b, i < 3 ? rows : rows * READ_BEST, NULL, e)).p;
    struct work w = {.run = run_reads, .arg = &r, .times = 1, .numbers = true, .out = r.pair_logp};
    if (ok && !bench_time(b, &w, &t, e))
        ok = err_prefix(e, "%s", name);
    if (ok)
        bench_tell(b, name, shape, &t,
                   &(struct figure){(double)READ_ROWS * n * 4, 0, t.ms * 1e3, "us"});
    kbuf all[] = {r.logits, r.pair, r.ids, r.p, r.pair_logp, r.best, r.best_logp};
    bench_release(b, all, 7);
    return ok;
}

/* ---- in order -------------------------------------------------------------------------------- */

bool bench_kernels(struct bench *b, struct err *e)
{
    bool brief = b->o->brief;
    return phases(b, e) && gemvs(b, e) && gemm(b, e) && bench_reopen(b, e) && moe(b, 32, e) &&
           bench_reopen(b, e) && (brief || moe(b, 128, e)) && attentions(b, e) &&
           sampling(b, 201088, e) &&
           (brief || (sampling(b, 262144, e) && reading(b, 262144, e)));
}
