/* bench_peer.c - a prompt's products alone, ours and cuBLASLt's, at a chunk's rows and the model's
 * shapes. The time of cuBLASLt for all products of a prompt is the yardstick of prefill.*.
 *
 * Experts are one product each there, as if every expert had its even share of the rows, in bf16.
 * Its numbers are spread as those of synthetic weights are, because a large product is bound by the
 * GPU's power, which depends on the numbers: with a single exponent it takes a few percent less
 * time (tests/bench/results-h200.md). See bench_model.h.
 */
#include "engine/tools/bench_model.h"

#include <math.h>

enum { MOST_SHAPES = 16, SETS = 3, IN_TURN = 8 };

/* One product of a layer, and the layers that have it. */
struct peer_shape {
    const char *what;         /* "qkv", "o", "glu", "down" */
    int rows, in, out, batch; /* batch: experts, 1 of a dense one; rows: of each */
    int layers, layer[IN_TURN];
};

struct peer_shapes {
    struct peer_shape v[MOST_SHAPES];
    int n;
};

/* ---- the model's shapes ---------------------------------------------------------------------- */

static void add_shape(struct peer_shapes *all, const char *what, int l, int rows, int in, int out,
                      int batch)
{
    FOR_EACH(struct peer_shape, s, all->v, all->n)
        if (!strcmp(s->what, what) && s->in == in && s->out == out && s->batch == batch) {
            if (s->layers < IN_TURN)
                s->layer[s->layers] = l;
            s->layers++;
            return;
        }
    CHECK(all->n < MOST_SHAPES);
    all->v[all->n++] = (struct peer_shape){what, rows, in, out, batch, 1, {l}};
}

static int outputs(const struct tensor *t)
{
    return t->data ? t->dim[0] : 0;
}

static void collect(const struct model *m, int rows, struct peer_shapes *all)
{
    const struct config *c = &m->cfg;
    for (int l = 0; l < c->n_layer; l++) {
        const struct layer *w = &m->layer[l];
        add_shape(all, "qkv", l, rows, c->hidden,
                  outputs(&w->wq) + outputs(&w->wk) + outputs(&w->wv), 1);
        add_shape(all, "o", l, rows, w->wo.dim[1], c->hidden, 1);
        if (w->gate.data) {
            add_shape(all, "glu", l, rows, c->hidden, 2 * w->gate.dim[0], 1);
            add_shape(all, "down", l, rows, w->down.dim[1], c->hidden, 1);
        }
        if (w->is_moe) {
            int share = max_int(1, rows * c->top_k / c->n_expert);
            add_shape(all, "glu", l, share, c->hidden, 2 * c->expert_ffn, c->n_expert);
            add_shape(all, "down", l, share, c->expert_ffn, c->hidden, c->n_expert);
        }
    }
}

static double shape_flops(const struct peer_shape *s)
{
    return 2.0 * s->batch * s->rows * s->in * s->out;
}

/* "cublas.20b.glu"; a second shape of the same part of a layer: "cublas.E4b.glu.2" */
static void shape_name(char *out, size_t room, const char *kind, const struct subject *s,
                       const struct peer_shapes *all, const struct peer_shape *at)
{
    int before = 0;
    for (const struct peer_shape *x = all->v; x < at; x++)
        before += !strcmp(x->what, at->what);
    int n = snprintf(out, room, "%s.%.24s.%s", kind, s->name, at->what);
    if (before)
        snprintf(out + n, room - (size_t)n, ".%d", before + 1);
}

static void describe_shape(char *out, size_t room, const struct peer_shape *s, const char *more)
{
    char experts[24] = "";
    if (s->batch > 1)
        snprintf(experts, sizeof experts, "%d x ", s->batch);
    snprintf(out, room, "%s%d rows, %dx%d bf16, %d layers%s", experts, s->rows, s->out, s->in,
             s->layers, more);
}

/* ---- cuBLASLt -------------------------------------------------------------------------------- */

struct theirs {
    struct k_peer a;
    kbuf w[SETS];
    int sets;
};

static void run_theirs(struct bench *b, void *arg)
{
    struct theirs *t = arg;
    for (int i = 0; i < t->sets; i++) {
        t->a.w = t->w[i];
        b->dev.k->peer(b->dev.d, &t->a, NULL);
    }
}

static bool open_theirs(struct bench *b, const struct peer_shape *s, struct theirs *t,
                        struct err *e)
{
    size_t n = (size_t)s->batch * 2, in = (size_t)s->in, out = (size_t)s->out,
           rows = (size_t)s->rows;
    t->a = (struct k_peer){.library = b->o->library, .rows = s->rows, .in = s->in, .out = s->out,
                           .batch = s->batch, .src = bench_buffer(b, n * rows * in, NULL, e),
                           .dst = bench_buffer(b, n * rows * out, NULL, e)};
    t->sets = s->batch > 1 ? 1 : SETS;
    bool ok = t->a.src.p && t->a.dst.p && bench_fill_uniform(b, t->a.src, 1, e);
    for (int i = 0; i < t->sets && ok; i++) {
        t->w[i] = bench_buffer(b, n * out * in, NULL, e);
        ok = t->w[i].p && bench_fill_uniform(b, t->w[i], 1 / 64.f, e);
    }
    t->a.w = t->w[0];
    return ok;
}

static void close_theirs(struct bench *b, struct theirs *t)
{
    bench_release(b, &t->a.src, 1);
    bench_release(b, &t->a.dst, 1);
    bench_release(b, t->w, SETS);
}

/* Checks some of the results, so that the library computes the same product. */
static bool theirs_is_right(struct bench *b, const struct peer_shape *s, const struct theirs *t,
                            struct err *e)
{
    size_t in = (size_t)s->in, out = (size_t)s->out, rows = (size_t)s->rows;
    uint16_t *x = xmalloc(in * 2), *w = xmalloc(in * 2), y;
    bool ok = true;
    for (int i = 0; i < 8 && ok; i++) {
        size_t of = bench_random(b) % (uint64_t)s->batch, r = bench_random(b) % rows,
               o = bench_random(b) % out;
        double want = 0, size = 0;
        b->dev.k->get(b->dev.d, x, kbuf_at(t->a.src, (of * rows + r) * in * 2, in * 2), in * 2);
        b->dev.k->get(b->dev.d, w, kbuf_at(t->a.w, (of * out + o) * in * 2, in * 2), in * 2);
        b->dev.k->get(b->dev.d, &y, kbuf_at(t->a.dst, ((of * rows + r) * out + o) * 2, 2), 2);
        for (size_t k = 0; k < in; k++) {
            double v = (double)bf16_to_f32(x[k]) * (double)bf16_to_f32(w[k]);
            want += v, size += v * v;
        }
        ok = fabs((double)bf16_to_f32(y) - want) <= 0x1p-7 * fabs(want) + 1e-3 * sqrt(size);
    }
    FREE(x, w);
    return b->dev.k->sync(b->dev.d, e) &&
           (ok || err_set(e, ERR_NEGATIVE, "cuBLASLt's product is another one"));
}

/* The fastest of the algorithms that the library proposes. */
static bool time_theirs(struct bench *b, const struct peer_shape *s, struct theirs *t,
                        struct timing *best, int *of, struct err *e)
{
    struct work w = {.run = run_theirs, .arg = t, .times = t->sets, .samples = 5};
    int fastest = 0;
    t->a.choice = INT32_MAX;
    *of = b->dev.k->peer(b->dev.d, &t->a, e);
    for (int i = 0; i < *of; i++) {
        struct timing now;
        t->a.choice = i;
        if (!bench_time(b, &w, &now, e))
            return false;
        if (i == 0 || now.ms < best->ms)
            fastest = i, *best = now;
    }
    t->a.choice = fastest;
    w.samples = 0;
    return *of > 0 && bench_time(b, &w, best, e) && theirs_is_right(b, s, t, e);
}

/* ---- our kernels ----------------------------------------------------------------------------- */

struct ours {
    struct subject *s;
    const struct peer_shape *shape;
    int rows;
};

/* One of a layer's products, as the pass has it but for norms and additions behind it. */
static void our_product(struct runtime *rt, const char *what, int l, int rows)
{
    struct net *n = &rt->net;
    const struct kernels *k = n->dev.k;
    const struct config *c = &rt->model->cfg;
    const struct layer *w = &rt->model->layer[l];
    bool o = !strcmp(what, "o");
    if (!strcmp(what, "qkv"))
        net_qkv(n, &rt->pass.kp, l, rows);
    else if (!strcmp(what, "glu"))
        k->glu(n->dev.d, &(struct k_glu){.rows = rows, .src = n->x,
                                         .pre = norm_of(c, &w->ffn_in_norm), .gate = &w->gate,
                                         .up = &w->up, .act = c->act, .dst = n->h});
    else
        k->linear(n->dev.d, &(struct k_linear){
            .rows = rows, .src_stride = o ? w->n_head * w->head_dim : w->ffn,
            .src = o ? n->o : n->h, .w = o ? &w->wo : &w->down, .scale = 1, .dst = n->y});
}

static void run_ours(struct bench *, void *arg)
{
    struct ours *o = arg;
    for (int i = 0; i < o->shape->layers && i < IN_TURN; i++)
        our_product(&o->s->runtime, o->shape->what, o->shape->layer[i], o->rows);
}

static bool tell_ours(struct bench *b, struct subject *s, const struct peer_shapes *all,
                      const struct peer_shape *at, double theirs_ms, struct err *e)
{
    char name[64], text[96];
    struct ours o = {s, at, at->rows};
    struct work w = {.run = run_ours, .arg = &o, .times = min_int(at->layers, IN_TURN)};
    struct timing t;
    shape_name(name, sizeof name, "product", s, all, at);
    if (at->batch > 1 || !bench_wanted(b, name)) /* experts are one operation: see moe.* */
        return true;
    if (!bench_time(b, &w, &t, e))
        return err_prefix(e, "%s", name);
    describe_shape(text, sizeof text, at, ", R: of cublas");
    bench_tell_beside(b, name, text, &t, shape_flops(at), theirs_ms);
    return true;
}

/* ---- in order -------------------------------------------------------------------------------- */

/* One shape; *ms grows by what all its layers take. */
static bool compare(struct bench *b, struct subject *s, const struct peer_shapes *all,
                    const struct peer_shape *at, bool print, struct timing *sum, struct err *e)
{
    char name[64], text[96], more[32];
    struct theirs theirs = {0};
    struct timing t = {0};
    int of;
    shape_name(name, sizeof name, "cublas", s, all, at);
    bool ok = open_theirs(b, at, &theirs, e) && time_theirs(b, at, &theirs, &t, &of, e);
    close_theirs(b, &theirs);
    if (!ok)
        return err_prefix(e, "%s", name);
    sum->ms += t.ms * at->layers;
    sum->spread += t.spread * at->layers;
    sum->runs = t.runs;
    snprintf(more, sizeof more, ", the best of %d", of);
    describe_shape(text, sizeof text, at, more);
    if (print && bench_wanted(b, name))
        bench_tell(b, name, text, &t,
                   &(struct figure){0, 0, shape_flops(at) / t.ms * 1e-9, "TFLOP/s"});
    return !print || tell_ours(b, s, all, at, t.ms, e);
}

/* The products of a prompt of n tokens. Single ones are printed at whole chunks. */
static bool prompt_products(struct bench *b, struct subject *s, int n, double *ms, struct err *e)
{
    struct peer_shapes *all = xcalloc(1, sizeof *all);
    struct timing sum = {0};
    int rows = min_int(n, s->chunk), passes = n / rows;
    char name[64], text[64], length[16];
    double flops = 0;
    bool ok = true;
    collect(&s->l.model, rows, all);
    for (int i = 0; i < all->n && ok; i++) {
        flops += shape_flops(&all->v[i]) * all->v[i].layers * passes;
        ok = compare(b, s, all, &all->v[i], n > rows, &sum, e);
    }
    free(all);
    sum.ms *= passes, sum.spread *= passes;
    *ms = ok ? sum.ms : 0;
    snprintf(name, sizeof name, "cublas.%.24s.%s", s->name, bench_length(length, n));
    snprintf(text, sizeof text, "all products of %d tokens, by parts", n);
    if (ok && bench_wanted(b, name))
        bench_tell(b, name, text, &sum, &(struct figure){0, 0, flops / sum.ms * 1e-9, "TFLOP/s"});
    return ok;
}

/* Without the library one line says so, and prefill.* has no yardstick. */
static bool missing(struct bench *b, struct subject *s)
{
    char name[64];
    struct err why = {0};
    kbuf any = bench_buffer(b, (size_t)16 * 16 * 2, NULL, &why);
    struct k_peer a = {.library = b->o->library, .rows = 16, .in = 16, .out = 16, .batch = 1,
                       .choice = INT32_MAX, .src = any, .w = any, .dst = any};
    bool none = !any.p || b->dev.k->peer(b->dev.d, &a, &why) == 0;
    bench_release(b, &any, 1);
    snprintf(name, sizeof name, "cublas.%.24s", s->name);
    if (none)
        bench_tell(b, name, why.msg, &(struct timing){0}, &(struct figure){0, 0, 0, NULL});
    return none;
}

bool bench_products(struct bench *b, struct subject *s, struct err *e)
{
    bool prompts = bench_wanted_any(b, "prefill.");
    struct lane lane;
    if (!b->graphs || (!prompts && !bench_wanted_any(b, "cublas.") &&
                       !bench_wanted_any(b, "product.")) || missing(b, s))
        return true;
    /* one chunk was run: rows and slots are there */
    bool ok = bench_prompted(b, s, &lane, min_int(s->chunk, s->most), 0, e) &&
              prompt_products(b, s, 512, &s->peer_ms[0], e) &&
              (s->most < 4096 || prompt_products(b, s, 4096, &s->peer_ms[1], e));
    lane_free(&s->runtime, &lane);
    return ok;
}
