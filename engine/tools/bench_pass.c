/* bench_pass.c - single passes of a model: a step, a verify pass, a draft step. They are the
 * device's operations alone, recorded where that can be done. See bench_model.h.
 */
#include "engine/tools/bench_model.h"
#include "kernels/packed.h"
#include "engine/tools/bench_routing.h"

#include <math.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Weights and cells of one layer for rows behind n cells; `hit` of the experts are read. */
static double layer_bytes(struct layer *l, const struct config *c, enum kv_type type, int rows,
                          int n, double hit)
{
    int count;
    double bytes = 0;
    struct tensor *t = layer_tensors(l, &count);
    for (int i = 0; i < count; i++)
        if (t[i].bytes)
            bytes += bench_weight_bytes(&t[i]) * (bench_is_expert(l, &t[i]) ? hit / c->n_expert
                                                  : 1);
    int seen = l->window && l->window < n ? l->window : n;
    return bytes + bench_cell_bytes(l, type) * (seen + rows);
}

/* Experts that layer l's rows of the last pass chose. */
static int experts_hit(struct bench *b, const struct runtime *rt, int l, int rows)
{
    const struct config *c = &rt->model->cfg;
    size_t each = (size_t)rt->net.max_rows * (size_t)c->top_k * 4;
    size_t n = (size_t)rows * (size_t)c->top_k;
    FREED(free_at) int32_t *ids = xmalloc(n * sizeof *ids);
    b->dev.k->get(b->dev.d, ids, kbuf_at(rt->net.chosen, (size_t)l * each, each), n * sizeof *ids);
    return routing_hit(ids, (int)n, c->n_expert);
}

double bench_pass_bytes(struct bench *b, struct runtime *rt, int rows, int n, double *hit)
{
    struct model *m = rt->model;
    const struct config *c = &m->cfg;
    double all = 0, bytes = 0;
    int layers = 0; /* of experts */
    for (int l = 0; l < c->n_layer; l++) {
        int now = m->layer[l].is_moe ? experts_hit(b, rt, l, rows) : 0;
        all += now;
        layers += m->layer[l].is_moe;
        bytes += layer_bytes(&m->layer[l], c, rt->net.cells[l].type, rows, n, now);
    }
    if (hit)
        *hit = all / max_int(layers, 1);
    double embedded =
        (double)dtype_bytes(m->embed.type, (size_t)c->hidden) + 2.0 * c->ple * c->n_layer;
    return bytes + bench_weight_bytes(&m->head) +
           (double)(m->norm.bytes + m->ple_model_proj.bytes) + rows * embedded;
}

double bench_draft_bytes(struct runtime *rt, int rows, int depths, int n, bool first)
{
    struct draft *d = rt->drafter->head->w;
    const struct tensor *head = d->head.data ? &d->head : &rt->model->head;
    double bytes = bench_weight_bytes(head) + (first ? bench_weight_bytes(&d->fc) : 0);
    if (!d->next.by_row) /* a product for each depth; else rows of a few tokens */
        bytes += depths * bench_weight_bytes(&d->next);
    for (int l = 0; l < d->cfg.n_layer; l++)
        bytes += layer_bytes(&d->layer[l], &d->cfg, rt->net.cells[0].type, rows, n, 0);
    return bytes;
}

/* ---- one pass of the target ------------------------------------------------------------------ */

struct pass_run {
    struct runtime *r;
    enum plan_mode mode;
    int rows;
};

static void run_pass(struct bench *b, void *arg)
{
    struct pass_run *p = arg;
    struct runtime *rt = p->r;
    int vocab = rt->model->cfg.vocab;
    kbuf logits = kbuf_at(rt->logits, 0, (size_t)p->rows * (size_t)vocab * 4);
    net_forward(&rt->net, &rt->pass.plan[p->mode], &rt->pass.kp, NULL);
    net_logits(&rt->net, p->rows, (kbuf){0}, rt->logits);
    b->dev.k->sample(b->dev.d, &(struct k_sample){
        .rows = p->rows, .n = vocab, .logits = logits, .how = {.top_p = 1}, .ids = rt->ids,
        .p = rt->prob});
}

/* Times the prepared pass; *w.out are its logits. */
static bool time_pass(struct bench *b, struct subject *s, struct pass_run *p, struct timing *t,
                      struct err *e)
{
    size_t bytes = (size_t)p->rows * (size_t)s->l.model.cfg.vocab * 4;
    struct work w = {.run = run_pass, .arg = p, .times = 1, .numbers = true,
                     .out = kbuf_at(s->runtime.logits, 0, bytes)};
    return bench_time(b, &w, t, e);
}

static bool step(struct bench *b, struct subject *s, int n, struct err *e)
{
    struct runtime *rt = &s->runtime;
    char name[64], shape[64], length[16];
    snprintf(name, sizeof name, "step.%s.%s", s->name, bench_length(length, n));
    if (n > s->most || !bench_wanted(b, name))
        return true;
    struct lane lane;
    struct timing t;
    struct pass_run p = {rt, PLAN_DECODE, 1};
    bool ok = bench_pretend(b, s, &lane, n, e) && kv_reserve(&rt->kv, &lane.seq, n + 1, e);
    struct plan_req req = {.seq = &lane.seq, .n = 1, .token = lane.tok.v + lane.tok.n - 1};
    ok = ok && pass_prepare(&rt->pass, PLAN_DECODE, &req, 1, e) && time_pass(b, s, &p, &t, e);
    if (ok) {
        double hit, bytes = bench_pass_bytes(b, rt, 1, n, &hit);
        bench_describe(shape, sizeof shape, s, n, hit);
        bench_tell_pass(b, name, shape, &t, &(struct figure){bytes, 0, 1e3 / t.ms, "tok/s"}, hit);
        if (n == s->usual)
            s->step_ms = t.ms;
    }
    lane_free(rt, &lane);
    return ok || err_prefix(e, "%s", name);
}

/* A chain, or from eight nodes on a tree in which every node has two children. */
static void grow(struct bench *b, struct subject *s, struct tree *t, int32_t root, int nodes)
{
    tree_init(t, root);
    for (int i = 1; i < nodes; i++) {
        int32_t id = (int32_t)(bench_random(b) % (uint64_t)s->l.model.cfg.vocab);
        tree_add(t, nodes < 8 ? i - 1 : (i - 1) / 2, id, 0.5f, -(float)i);
    }
}

/* Fits the deviation of the biases such that the prepared pass hits as many experts as a text's
 * rows: the best of some halvings. */
static bool fit_text(struct bench *b, struct pass_run *p, struct text_routing *text, double want,
                     struct err *e)
{
    struct runtime *rt = p->r;
    double lo = 0, hi = 4, best = 0, least = INFINITY, hit;
    for (int i = 0; i < 10; i++) {
        double now = (lo + hi) / 2;
        if (!text_routing_set(text, &b->dev, now, e))
            return false;
        net_forward(&rt->net, &rt->pass.plan[p->mode], &rt->pass.kp, NULL);
        if (!b->dev.k->sync(b->dev.d, e))
            return false;
        bench_pass_bytes(b, rt, p->rows, 0, &hit);
        if (fabs(hit - want) < least)
            least = fabs(hit - want), best = now;
        if (hit > want)
            lo = now;
        else
            hi = now;
    }
    return text_routing_set(text, &b->dev, best, e);
}

/* A verify pass; text: NULL, or its rows share experts as those of a text do. */
static bool time_verify(struct bench *b, struct subject *s, const char *name, int rows,
                        struct text_routing *text, struct err *e)
{
    struct runtime *rt = &s->runtime;
    const struct config *c = &s->l.model.cfg;
    const double want = text ? routing_of_text(c->n_expert, c->top_k, rows) : 0;
    char shape[128];
    struct lane lane;
    struct timing t;
    struct pass_run p = {rt, PLAN_VERIFY, rows};
    int n = s->usual;
    bool ok = bench_pretend(b, s, &lane, n, e) && kv_reserve(&rt->kv, &lane.seq, n + rows, e);
    if (ok) {
        grow(b, s, &lane.tree, lane.tok.v[n], rows);
        struct plan_req req = {.seq = &lane.seq, .n = rows, .token = lane.tree.token,
                               .tree = &lane.tree};
        ok = pass_prepare(&rt->pass, PLAN_VERIFY, &req, 1, e) &&
             (!text || fit_text(b, &p, text, want, e)) && time_pass(b, s, &p, &t, e);
    }
    if (ok) {
        double hit, bytes = bench_pass_bytes(b, rt, rows, n, &hit);
        bench_describe(shape, sizeof shape, s, n, hit);
        size_t at = strlen(shape);
        if (text)
            snprintf(shape + at, sizeof shape - at, " (text: %.1f; router biases +-%.2f)", want,
                     text->deviation);
        bench_tell_pass(b, name, shape, &t,
                        &(struct figure){bytes, 0, s->step_ms > 0 ? t.ms / s->step_ms : 0,
                                         s->step_ms > 0 ? "x step" : NULL},
                        hit);
    }
    lane_free(rt, &lane);
    return ok || err_prefix(e, "%s", name);
}

static bool verify(struct bench *b, struct subject *s, int rows, struct err *e)
{
    char name[64];
    snprintf(name, sizeof name, "verify.%s.T%d", s->name, rows);
    return !bench_wanted(b, name) || time_verify(b, s, name, rows, NULL, e);
}

/* For made-up models with experts. The lines behind this one have the same random numbers with and
 * without it. */
static bool verify_text(struct bench *b, struct subject *s, int rows, struct err *e)
{
    struct text_routing text;
    uint64_t random = b->random;
    char name[64];
    snprintf(name, sizeof name, "verify.%s.text.T%d", s->name, rows);
    if (!s->synthetic || !bench_wanted(b, name) || !text_routing_open(&text, &s->l.model))
        return true;
    bool ok = time_verify(b, s, name, rows, &text, e);
    text_routing_close(&text);
    b->random = random;
    return ok;
}

/* ---- one pass of the draft ------------------------------------------------------------------- */

static void run_draft(struct bench *, void *arg)
{
    struct runtime *rt = arg;
    struct head *d = rt->drafter->head;
    int rows = max_int(1, draft_block_guesses(d->w));
    if (d->ops->block)
        d->ops->block(d, &rt->pass.kp, d->w->block, d->idx, rows);
    else
        d->ops->level(d, &rt->pass.kp, 1, d->root, d->idx);
    if (!d->w->edges) {
        head_topk(d, rows, 1, d->ids, d->logp);
        return;
    }
    for (int i = 0; i < rows; i++) /* a chain, over and over after the same token */
        d->ops->edges(d, 1, d->parents, kbuf_at(d->last, (size_t)i * 4, 4), 1);
}

/* Plans the pass that is timed: one row of a later level, or one block. */
static bool plan_draft(struct runtime *rt, struct lane *lane, struct err *e)
{
    struct head *h = rt->drafter->head;
    int32_t which[MAX_BLOCK];
    int guesses = draft_block_guesses(h->w);
    struct draft_row row = {.depth = 1, .cell = lane->seq.drafted, .up = -1, .n_seen = 1,
                            .seen = {lane->seq.drafted}};
    struct plan_req level = {.seq = &lane->seq, .n = 1, .token = lane->tok.v, .draft = &row,
                             .levels = 1,
                             .topk = 1},
                    block = {.seq = &lane->seq, .n = h->w->block, .token = lane->tok.v};
    for (int i = 0; i < MAX_BLOCK; i++)
        which[i] = i + draft_block_first(h->w) - h->w->block_depth;
    int32_t from = lane->slot - 1;
    h->w->block ? head_rows(h, which, guesses) : head_rows(h, &from, 1);
    for (int i = 0; i < guesses; i++)
        which[i] = i;
    if (h->w->edges) {
        rt->dev.k->put(rt->dev.d, h->last, which, (size_t)guesses * sizeof *which);
        rt->dev.k->put(rt->dev.d, h->parents, lane->tok.v, sizeof *lane->tok.v);
    }
    return h->w->block ? pass_prepare(&rt->pass, PLAN_BLOCK, &block, 1, e)
                       : pass_prepare(&rt->pass, PLAN_DRAFT, &level, 1, e);
}

/* One pass of the draft behind a prompt that the draft followed. */
static bool time_draft(struct bench *b, struct subject *s, struct lane *lane, const char *name,
                       struct err *e)
{
    struct runtime *rt = &s->runtime;
    struct seq *q = &lane->seq;
    struct timing t;
    const struct draft *draft = rt->drafter->head->w;
    int rows = max_int(1, draft->block), depths = max_int(1, draft_block_guesses(draft));
    int ids = head_vocab(rt->drafter->head);
    struct work w = {.run = run_draft, .arg = rt, .times = 1, .numbers = true,
                     .out = kbuf_at(rt->drafter->head->logits, 0, (size_t)ids * 4)};
    if (!kv_reserve_draft(&rt->kv, q, q->drafted, q->drafted + rows, e) ||
        !plan_draft(rt, lane, e) || !bench_time(b, &w, &t, e))
        return false;
    char shape[96], window[32] = "", block[24] = "";
    int n = q->drafted, seen = rt->kv.draft_window ? min_int(n, rt->kv.draft_window) : n;
    if (seen < n)
        snprintf(window, sizeof window, ", the last %d seen", seen);
    if (rows > 1)
        snprintf(block, sizeof block, ", block of %d", rows);
    snprintf(shape, sizeof shape, "%d cells%s, %d ids%s", n, window, ids, block);
    double bytes = bench_draft_bytes(rt, rows, depths, seen, false);
    bench_tell(b, name, shape, &t, &(struct figure){bytes, 0, t.ms * 1e3, "us"});
    kv_rollback(&rt->kv, q);
    return true;
}

/* The same behind a long context, which the draft sees whole, then with draft.window. */
static bool draft_windows(struct bench *b, struct subject *s, struct err *e)
{
    enum { LONG = 32768, PART = 8 };
    struct runtime *rt = &s->runtime;
    char whole[64], part[96], length[16], window[16];
    int n = min_int(s->most, LONG), seen = n / PART;
    snprintf(whole, sizeof whole, "draft.step.%s.%s", s->name, bench_length(length, n));
    snprintf(part, sizeof part, "%s.w%s", whole, bench_length(window, seen));
    bool one = bench_wanted(b, whole), other = bench_wanted(b, part);
    if (!one && !other)
        return true;
    struct lane lane;
    bool ok = bench_prompted(b, s, &lane, n, 1, e) && (!one || time_draft(b, s, &lane, whole, e));
    if (ok && other) {
        rt->kv.draft_window = seen;
        kv_release_window(&rt->kv, &lane.seq);
        ok = time_draft(b, s, &lane, part, e);
        rt->kv.draft_window = 0;
    }
    lane_free(rt, &lane);
    return ok || err_prefix(e, "%s", whole);
}

static bool draft_steps(struct bench *b, struct subject *s, struct err *e)
{
    struct runtime *rt = &s->runtime;
    char name[64];
    snprintf(name, sizeof name, "draft.step.%s", s->name);
    if (!rt->drafter || !drafter_owns_kv(rt->drafter))
        return true;
    struct lane lane = {.tap_row = -1};
    bool ok = !bench_wanted(b, name) ||
              (bench_prompted(b, s, &lane, s->usual, 1, e) && time_draft(b, s, &lane, name, e)) ||
              err_prefix(e, "%s", name);
    lane_free(rt, &lane);
    return ok && draft_windows(b, s, e);
}

/* ---- in order -------------------------------------------------------------------------------- */

bool bench_passes(struct bench *b, struct subject *s, struct err *e)
{
    static const int steps[] = {512, 4096, 32768, 131072}, rows[] = {3, 4, 8, 16, 60},
                     text[] = {2, 4, 8, 16, 32, 60};
    bool brief = b->o->brief, ok = true;
    for (int i = 0; i < 4 && ok; i++)
        ok = (brief && steps[i] != s->usual) || step(b, s, steps[i], e);
    for (int i = 0; i < 5 && ok; i++)
        ok = (brief && rows[i] != 4 && rows[i] != 16) || verify(b, s, rows[i], e);
    for (int i = 0; i < 6 && ok; i++)
        ok = (brief && text[i] != 4 && text[i] != 16) || verify_text(b, s, text[i], e);
    return ok && draft_steps(b, s, e);
}
