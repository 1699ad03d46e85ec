/* bench_model.c - whole passes of a model: a step, a verify pass, a draft step, a cycle, a prompt.
 *
 * step, verify and draft.step are the device's operations of one pass, recorded where that can be
 * done; cycle and chat go through lane_extend() and lane_step(), host time included. A long context
 * needs no prompt: its pages are taken and marked as a prompt's would be, and the cells hold random
 * numbers.
 *
 * The bytes of a pass are its weights (of the experts, those that its rows chose), the embedding's
 * rows, and for each layer the keys and values that it may see; activations are not counted.
 */
#include "engine/bench_run.h"

#include "engine/cycle.h"
#include "engine/settings.h"
#include "engine/synthetic.h"
#include "models/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MANY = 60 }; /* cycles that are timed */

struct subject {
    const char *name; /* in lines */
    struct model m;
    struct draft d;
    bool has_draft;
    struct rig rig;
    int chunk;   /* prompt tokens a pass */
    int most;    /* longest context that is measured */
    int usual;   /* context of verify passes and cycles */
    double step_ms;  /* of the step at the usual context, 0: not measured */
    double plain_ms; /* of lane_step() there without a draft */
};

/* ---- bytes and products ------------------------------------------------------------------------ */

static bool is_expert(const struct layer *l, const struct tensor *t)
{
    return t == &l->gate_up || t == &l->gate_up_s || t == &l->gate_up_b || t == &l->down_e ||
           t == &l->down_s || t == &l->down_b;
}

static double cell_bytes(const struct layer *l, enum kv_type type)
{
    return 2.0 * l->n_kv * l->head_dim * (double)kv_type_size(type);
}

/* Weights and cells of one layer for rows behind n cells; `hit` of the experts are read. */
static double layer_bytes(struct layer *l, const struct config *c, enum kv_type type, int rows,
                          int n, double hit)
{
    int count;
    double bytes = 0;
    struct tensor *t = layer_tensors(l, &count);
    for (int i = 0; i < count; i++)
        if (t[i].bytes)
            bytes += (double)t[i].bytes * (is_expert(l, &t[i]) ? hit / c->n_expert : 1);
    int seen = l->window && l->window < n ? l->window : n;
    return bytes + cell_bytes(l, type) * (seen + rows);
}

/* Experts that layer l's rows of the last pass chose. */
static int experts_hit(struct bench *b, const struct rig *r, int l, int rows)
{
    const struct config *c = &r->m->cfg;
    size_t each = (size_t)r->net.max_rows * (size_t)c->top_k * 4;
    size_t n = (size_t)(rows * c->top_k);
    int32_t *ids = xmalloc(n * sizeof *ids);
    bool *seen = xcalloc((size_t)c->n_expert, 1);
    int hit = 0;
    b->dev.k->get(b->dev.d, ids, kbuf_at(r->net.chosen, (size_t)l * each, each), n * sizeof *ids);
    for (size_t i = 0; i < n; i++) {
        CHECK(ids[i] >= 0 && ids[i] < c->n_expert);
        hit += !seen[ids[i]];
        seen[ids[i]] = true;
    }
    free(ids);
    free(seen);
    return hit;
}

/* Of a pass of the target; *hit (may be NULL): experts a layer. */
static double pass_bytes(struct bench *b, struct rig *r, int rows, int n, double *hit)
{
    struct model *m = r->m;
    const struct config *c = &m->cfg;
    double all = 0, bytes = 0;
    for (int l = 0; l < c->n_layer; l++) {
        int now = m->layer[l].is_moe ? experts_hit(b, r, l, rows) : 0;
        all += now;
        bytes += layer_bytes(&m->layer[l], c, r->net.cells[l].type, rows, n, now);
    }
    if (hit)
        *hit = all / c->n_layer;
    double embedded = (double)c->hidden * (double)dtype_size(m->embed.type) +
                      2.0 * c->ple * c->n_layer;
    return bytes + (double)(m->head.bytes + m->norm.bytes + m->ple_model_proj.bytes) +
           rows * embedded;
}

/* Of one pass of an EAGLE3 head with as many rows; fc joins the target's states in the first only. */
static double draft_bytes(struct rig *r, int rows, int n, bool first)
{
    struct draft *d = r->drafter->w;
    const struct tensor *head = d->head.data ? &d->head : &r->m->head;
    double bytes = (double)head->bytes + (first ? (double)d->fc.bytes : 0);
    for (int l = 0; l < d->cfg.n_layer; l++)
        bytes += layer_bytes(&d->layer[l], &d->cfg, r->net.cells[0].type, rows, n, 0);
    return bytes;
}

/* Multiplications and additions of n prompt tokens; the head runs once. */
static double prompt_flops(struct model *m, int n)
{
    const struct config *c = &m->cfg;
    double all = 2.0 * c->hidden * c->vocab;
    for (int l = 0; l < c->n_layer; l++) {
        struct layer *w = &m->layer[l];
        int count, window = w->window && w->window < n ? w->window : n;
        const struct tensor *t = layer_tensors(w, &count);
        double weights = w->is_moe ? 3.0 * c->top_k * c->hidden * c->expert_ffn : 0;
        for (int i = 0; i < count; i++)
            if (t[i].n_dim == 2 && !is_expert(w, &t[i]))
                weights += (double)t[i].dim[0] * (double)t[i].dim[1];
        double keys = (double)window * n - (double)window * window / 2;
        all += 2 * weights * n + 4.0 * w->n_head * w->head_dim * keys;
    }
    return all;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void add_tokens(struct bench *b, struct subject *s, struct lane *l, int n)
{
    while (l->tok.n < n)
        ids_add(&l->tok, (int32_t)(bench_random(b) % (uint64_t)s->m.cfg.vocab));
}

/* A lane behind n cells that no pass has filled, and a pending token. */
static bool pretend(struct bench *b, struct subject *s, struct lane *l, int n, struct err *e)
{
    struct rig *r = &s->rig;
    *l = (struct lane){.tap_row = -1};
    add_tokens(b, s, l, n + 1);
    for (int upto; l->seq.committed < n;) {
        int from = l->seq.committed;
        upto = min_int(from + r->max_rows, n);
        struct plan_req req = {.seq = &l->seq, .n = upto - from, .token = l->tok.v + from};
        if (!kv_reserve(&r->kv, &l->seq, upto, e) ||
            !pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e))
            return false;
        kv_commit(&r->kv, &l->seq, upto);
        kv_release_window(&r->kv, &l->seq);
    }
    return true;
}

/* A lane behind a prompt of n tokens that was run. */
static bool prompted(struct bench *b, struct subject *s, struct lane *l, int n, int topk,
                     struct err *e)
{
    *l = (struct lane){.tap_row = -1};
    add_tokens(b, s, l, n);
    while (l->seq.committed < n) {
        int upto = min_int(l->seq.committed + s->chunk, n);
        if (!lane_extend(&s->rig, l, upto, upto == n, topk > 0, max_int(topk, 1), e))
            return false;
    }
    return true;
}

/* ---- one pass of the target ------------------------------------------------------------------ */

struct pass_run {
    struct rig *r;
    enum plan_mode mode;
    int rows;
};

static void run_pass(struct bench *b, void *arg)
{
    struct pass_run *p = arg;
    struct rig *r = p->r;
    size_t row = (size_t)r->m->cfg.vocab * 4;
    net_forward(&r->net, &r->pass.plan[p->mode], &r->pass.kp, NULL);
    net_logits(&r->net, p->rows, (kbuf){0}, r->logits, (kbuf){0});
    b->dev.k->sample(b->dev.d, &(struct k_sample){
        .rows = p->rows, .n = r->m->cfg.vocab, .logits = kbuf_at(r->logits, 0, (size_t)p->rows * row),
        .how = {.top_p = 1}, .ids = r->ids, .p = r->p});
}

/* Times the prepared pass; *w.out are its logits. */
static bool time_pass(struct bench *b, struct subject *s, struct pass_run *p, struct timing *t,
                      struct err *e)
{
    size_t bytes = (size_t)p->rows * (size_t)s->m.cfg.vocab * 4;
    struct work w = {.run = run_pass, .arg = p, .times = 1, .numbers = true,
                     .out = kbuf_at(s->rig.logits, 0, bytes)};
    return bench_time(b, &w, t, e);
}

static void describe(char *out, size_t room, const struct subject *s, int n, double hit)
{
    size_t at = (size_t)snprintf(out, room, "%d cells, %s", n,
                                 s->rig.net.cells[0].type == KV_BF16 ? "bf16" : "f32");
    if (hit > 0)
        snprintf(out + at, room - at, ", %.1f experts a layer", hit);
}

static const char *length_name(char out[16], int n)
{
    snprintf(out, 16, n >= 1024 && n % 1024 == 0 ? "%dk" : "%d", n >= 1024 && n % 1024 == 0 ? n >> 10 : n);
    return out;
}

static bool step(struct bench *b, struct subject *s, int n, struct err *e)
{
    struct rig *r = &s->rig;
    char name[64], shape[64], length[16];
    snprintf(name, sizeof name, "step.%s.%s", s->name, length_name(length, n));
    bool host = n == s->usual && bench_wanted_any(b, "cycle.host");
    if (n > s->most || (!bench_wanted(b, name) && !host))
        return true;
    struct lane l;
    struct timing t;
    struct pass_run p = {r, PLAN_DECODE, 1};
    bool ok = pretend(b, s, &l, n, e) && kv_reserve(&r->kv, &l.seq, n + 1, e);
    struct plan_req req = {.seq = &l.seq, .n = 1, .token = l.tok.v + l.tok.n - 1};
    ok = ok && pass_prepare(&r->pass, PLAN_DECODE, &req, 1, e) && time_pass(b, s, &p, &t, e);
    if (ok) {
        double hit, bytes = pass_bytes(b, r, 1, n, &hit);
        describe(shape, sizeof shape, s, n, hit);
        bench_tell(b, name, shape, &t, &(struct figure){bytes, 0, 1e3 / t.ms, "tok/s"});
        if (n == s->usual)
            s->step_ms = t.ms;
    }
    lane_free(r, &l);
    return ok || err_prefix(e, "%s", name);
}

/* A chain, or from eight nodes on a tree in which every node has two children. */
static void grow(struct bench *b, struct subject *s, struct tree *t, int32_t root, int nodes)
{
    tree_init(t, root);
    for (int i = 1; i < nodes; i++) {
        int32_t id = (int32_t)(bench_random(b) % (uint64_t)s->m.cfg.vocab);
        tree_add(t, nodes < 8 ? i - 1 : (i - 1) / 2, id, 0.5f, -(float)i);
    }
}

static bool verify(struct bench *b, struct subject *s, int rows, struct err *e)
{
    struct rig *r = &s->rig;
    char name[64], shape[64];
    snprintf(name, sizeof name, "verify.%s.T%d", s->name, rows);
    if (!bench_wanted(b, name))
        return true;
    struct lane l;
    struct timing t;
    struct pass_run p = {r, PLAN_VERIFY, rows};
    int n = s->usual;
    bool ok = pretend(b, s, &l, n, e) && kv_reserve(&r->kv, &l.seq, n + rows, e);
    if (ok) {
        grow(b, s, &l.tree, l.tok.v[n], rows);
        struct plan_req req = {.seq = &l.seq, .n = rows, .token = l.tree.token, .tree = &l.tree};
        ok = pass_prepare(&r->pass, PLAN_VERIFY, &req, 1, e) && time_pass(b, s, &p, &t, e);
    }
    if (ok) {
        double hit, bytes = pass_bytes(b, r, rows, n, &hit);
        describe(shape, sizeof shape, s, n, hit);
        bench_tell(b, name, shape, &t,
                   &(struct figure){bytes, 0, s->step_ms > 0 ? t.ms / s->step_ms : 0,
                                    s->step_ms > 0 ? "x step" : NULL});
    }
    lane_free(r, &l);
    return ok || err_prefix(e, "%s", name);
}

/* ---- one pass of the draft ------------------------------------------------------------------- */

static void run_draft(struct bench *b, void *arg)
{
    struct rig *r = arg;
    struct drafter *d = r->drafter;
    (void)b;
    d->ops->level(d, &r->pass.kp, 1, d->inputs);
    drafter_topk(d, 1, 1, d->ids, d->logp);
}

/* One row of a later level, behind a prompt that the draft followed. */
static bool draft_step(struct bench *b, struct subject *s, struct err *e)
{
    struct rig *r = &s->rig;
    char name[64], shape[64];
    snprintf(name, sizeof name, "draft.step.%s", s->name);
    if (!bench_wanted(b, name) || !r->drafter || !drafter_owns_kv(r->drafter))
        return true;
    struct lane l;
    struct timing t;
    size_t vocab = (size_t)r->drafter->w->draft_vocab * 4;
    struct work w = {.run = run_draft, .arg = r, .times = 1, .numbers = true,
                     .out = kbuf_at(r->drafter->logits, 0, vocab)};
    bool ok = prompted(b, s, &l, s->usual, 1, e) &&
              kv_reserve_draft(&r->kv, &l.seq, l.seq.drafted, l.seq.drafted + 1, e);
    if (ok) {
        struct draft_row row = {.depth = 1, .cell = l.seq.drafted, .up = -1, .n_seen = 1,
                                .seen = {l.seq.drafted}};
        struct plan_req req = {.seq = &l.seq, .n = 1, .token = l.tok.v, .draft = &row, .levels = 1,
                               .topk = 1};
        int32_t from = l.slot - 1;
        drafter_pick(r->drafter, r->drafter->root, &from, 1, r->drafter->state_n,
                     r->drafter->inputs);
        ok = pass_prepare(&r->pass, PLAN_DRAFT, &req, 1, e) && bench_time(b, &w, &t, e);
    }
    if (ok) {
        snprintf(shape, sizeof shape, "%d cells, %d ids", l.seq.drafted, r->drafter->w->draft_vocab);
        bench_tell(b, name, shape, &t,
                   &(struct figure){draft_bytes(r, 1, l.seq.drafted, false), 0, t.ms * 1e3, "us"});
    }
    lane_free(r, &l);
    return ok || err_prefix(e, "%s", name);
}

/* ---- cycles ---------------------------------------------------------------------------------- */

/* Times lane_step() after three that are not timed. The acceptance length, on average, is scripted
 * (0: the target's own choice). *mean: tokens a cycle. */
static bool time_cycles(struct bench *b, struct subject *s, struct lane *l,
                        const struct tree_shape *shape, double accepted, struct timing *t,
                        double *mean, struct err *e)
{
    enum { WARM = 3 };
    const struct step_limits lim = {1 << 20};
    int n = b->o->brief && !b->graphs ? 20 : MANY, tokens = 0;
    double seconds[MANY], due = 0;
    for (int i = -WARM; i < n; i++) {
        due += accepted;
        l->force = accepted > 0 ? (int)due : 0;
        due -= l->force;
        uint64_t t0 = clock_ns();
        if (!lane_step(&s->rig, &l, &lim, 1, shape, e))
            return false;
        if (i >= 0) {
            seconds[i] = (double)(clock_ns() - t0) * 1e-9;
            tokens += l->n_new;
        }
    }
    *mean = (double)tokens / n;
    *t = bench_timing(seconds, n, 1);
    return true;
}

/* The step as a chat without a draft takes it, and what of it the device does not account for. */
static bool plain(struct bench *b, struct subject *s, struct err *e)
{
    char name[64], shape[64];
    struct lane l;
    struct timing t;
    double mean;
    snprintf(name, sizeof name, "cycle.%s.plain", s->name);
    if (!bench_wanted_any(b, "cycle."))
        return true;
    bool ok = pretend(b, s, &l, s->usual, e) && time_cycles(b, s, &l, NULL, 0, &t, &mean, e);
    if (ok) {
        double hit, bytes = pass_bytes(b, &s->rig, 1, s->usual, &hit);
        describe(shape, sizeof shape, s, s->usual, hit);
        s->plain_ms = t.ms;
        if (bench_wanted(b, name))
            bench_tell(b, name, shape, &t, &(struct figure){bytes, 0, 1e3 / t.ms, "tok/s"});
        snprintf(name, sizeof name, "cycle.host.%s", s->name);
        struct timing host = {t.ms - s->step_ms, t.spread, t.runs};
        if (bench_wanted(b, name) && s->step_ms > 0)
            bench_tell(b, name, "a plain step's wall time beyond its device time", &host,
                       &(struct figure){0, 0, host.ms * 1e3, "us"});
    }
    lane_free(&s->rig, &l);
    return ok || err_prefix(e, "%s", name);
}

static bool cycle(struct bench *b, struct subject *s, struct tree_shape shape, double accepted,
                  struct err *e)
{
    struct rig *r = &s->rig;
    char name[64], text[80];
    struct lane l;
    struct timing t;
    double mean, hit;
    snprintf(name, sizeof name, "cycle.%s.%d-%d-%d", s->name, shape.steps, shape.topk, shape.nodes);
    if (!r->drafter || !bench_wanted(b, name))
        return true;
    bool ok = prompted(b, s, &l, s->usual, shape.topk, e) &&
              time_cycles(b, s, &l, &shape, accepted, &t, &mean, e);
    if (ok) {
        int n = l.seq.committed;
        double bytes = pass_bytes(b, r, shape.nodes, n, &hit);
        if (drafter_owns_kv(r->drafter))
            for (int i = 0; i < shape.steps; i++)
                bytes += draft_bytes(r, i ? shape.topk : 1, n, i == 0);
        snprintf(text, sizeof text, "%d cells, %.2f tokens a cycle, %.0f tok/s", s->usual, mean,
                 mean / t.ms * 1e3);
        bench_tell(b, name, text, &t,
                   &(struct figure){bytes, 0, s->plain_ms > 0 ? mean * s->plain_ms / t.ms : 0,
                                    s->plain_ms > 0 ? "x plain" : NULL});
    }
    lane_free(r, &l);
    return ok || err_prefix(e, "%s", name);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static bool prefill(struct bench *b, struct subject *s, int n, struct err *e)
{
    enum { TIMES = 5 };
    char name[64], shape[64], length[16];
    double seconds[TIMES];
    snprintf(name, sizeof name, "prefill.%s.%s", s->name, length_name(length, n));
    if (n > s->most || !bench_wanted(b, name))
        return true;
    int times = b->o->brief || n > 512 ? 3 : TIMES;
    for (int i = -1; i < times; i++) {
        struct lane l;
        uint64_t t0 = clock_ns();
        bool ok = prompted(b, s, &l, n, 0, e) && b->dev.k->sync(b->dev.d, e);
        if (i >= 0)
            seconds[i] = (double)(clock_ns() - t0) * 1e-9;
        lane_free(&s->rig, &l);
        if (!ok)
            return err_prefix(e, "%s", name);
    }
    struct timing t = bench_timing(seconds, times, 1);
    double flops = prompt_flops(&s->m, n);
    snprintf(shape, sizeof shape, "chunks of %d, %.0f tok/s", s->chunk, n / t.ms * 1e3);
    bench_tell(b, name, shape, &t, &(struct figure){0, flops, 0, NULL});
    return true;
}

/* ---- a reply, as it is talked ---------------------------------------------------------------- */

struct talk {
    struct tokenizer *tok;
    struct chat *chat;
    struct ids prompt;
};

static bool open_talk(struct subject *s, struct talk *k, struct err *e)
{
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)"Tell me a story about a fox."};
    k->tok = tok_open(s->m.dir, e);
    k->chat = k->tok ? chat_open(&s->m, k->tok, false, NULL, e) : NULL;
    return k->chat && chat_render(k->chat, &m, 1, &k->prompt, e);
}

/* One greedy reply of at most 128 tokens, its prompt not counted. */
static bool reply(struct subject *s, const struct talk *k, const struct tree_shape *shape,
                  double *seconds, int *tokens, int *cycles, struct err *e)
{
    struct lane l = {.tap_row = -1};
    const struct step_limits lim = {128};
    int n = k->prompt.n;
    ids_cat(&l.tok, k->prompt.v, n);
    bool ok = lane_extend(&s->rig, &l, n, true, shape, shape ? shape->topk : 1, e);
    uint64_t t0 = clock_ns();
    *tokens = *cycles = 0;
    for (; ok && !l.stopped && *tokens < lim.max_new; ++*cycles) {
        struct lane *one = &l;
        ok = lane_step(&s->rig, &one, &lim, 1, shape, e);
        *tokens += ok ? l.n_new : 0;
    }
    *seconds = (double)(clock_ns() - t0) * 1e-9;
    lane_free(&s->rig, &l);
    return ok && (*tokens > 0 || err_set(e, ERR_NEGATIVE, "the reply is empty"));
}

static bool talk(struct bench *b, struct subject *s, const struct talk *k,
                 const struct tree_shape *shape, struct err *e)
{
    enum { TIMES = 7 };
    char name[64], text[64];
    double seconds[TIMES];
    int tokens = 0, cycles = 0, times = b->o->brief ? 3 : TIMES;
    snprintf(name, sizeof name, "chat.%s.%s", s->name, shape ? "spec" : "plain");
    if (!bench_wanted(b, name) || (shape && !s->rig.drafter))
        return true;
    for (int i = -1; i < times; i++) {
        double took;
        if (!reply(s, k, shape, &took, &tokens, &cycles, e))
            return err_prefix(e, "%s", name);
        if (i >= 0)
            seconds[i] = took;
    }
    struct timing t = bench_timing(seconds, times, tokens);
    snprintf(text, sizeof text, "ms a token of %d, %.2f tokens a step", tokens,
             (double)tokens / cycles);
    bench_tell(b, name, text, &t, &(struct figure){0, 0, 1e3 / t.ms, "tok/s"});
    return true;
}

static bool talks(struct bench *b, struct subject *s, struct err *e)
{
    if (!bench_wanted_any(b, "chat.") || b->o->synthetic)
        return true;
    struct settings set;
    settings_init(&set);
    struct tree_shape shape = {set.steps, set.topk, set.nodes};
    struct talk k = {0};
    bool ok = open_talk(s, &k, e);
    if (ok)
        s->rig.n_stop = chat_stops(k.chat, s->rig.stop);
    ok = ok && talk(b, s, &k, NULL, e) && talk(b, s, &k, &shape, e);
    s->rig.n_stop = 0;
    ids_free(&k.prompt);
    if (k.chat)
        chat_close(k.chat);
    if (k.tok)
        tok_close(k.tok);
    return ok;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool load(struct bench *b, struct subject *s, struct err *e)
{
    const struct bench_opts *o = b->o;
    if (o->synthetic) {
        s->has_draft = true;
        return synthetic_open(&s->m, &s->d, o->synthetic, &s->name, e);
    }
    s->name = o->model_name;
    if (!model_load(&s->m, o->model, NULL, e))
        return false;
    s->has_draft = o->draft != NULL;
    return !o->draft || draft_load(&s->d, o->draft, &s->m, NULL, NULL, e);
}

/* What weights and the cells of the longest context take. Says so in one line where there is less. */
static bool fits(struct bench *b, struct subject *s, struct err *e)
{
    double need = (double)(s->m.bytes + s->d.bytes);
    for (int l = 0; l < s->m.cfg.n_layer; l++) {
        const struct layer *w = &s->m.layer[l];
        if (w->kv_src == l)
            need += cell_bytes(w, b->dev.kv) * (w->window ? w->window + 4096 : s->most);
    }
    if (!b->graphs) { /* the host's own memory, which it would promise without having it */
        double have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
        return need < have * 0.9 ||
               err_set(e, ERR_MODEL, "%s needs %.1f GiB, this machine has %.1f GiB", s->name,
                       need / (1 << 30), have / (1 << 30));
    }
    kbuf all = b->dev.k->alloc(b->dev.d, (size_t)need, s->name, e);
    b->dev.k->release(b->dev.d, all);
    return all.p != NULL;
}

/* Every cell but the guard page's holds a number; expert choices are kept. */
static bool prepare(struct bench *b, struct subject *s, struct err *e)
{
    struct rig *r = &s->rig;
    const struct config *c = &s->m.cfg;
    for (int l = 0; l < c->n_layer; l++) {
        const struct k_cells *cells = &r->net.cells[l];
        size_t cell = cells->k.n / (size_t)cells->n_slots;
        kbuf both[] = {cells->k, cells->v};
        for (int i = 0; i < 2 && s->m.layer[l].kv_src == l; i++) {
            if (!bench_fill(b, both[i], cells->type, e))
                return false;
            b->dev.k->fill(b->dev.d, kbuf_at(both[i], 0, cell * (size_t)r->kv.page_size), 0xff);
        }
    }
    if (c->n_expert == 0)
        return true;
    size_t bytes = (size_t)c->n_layer * (size_t)r->net.max_rows * (size_t)c->top_k * 4;
    r->net.chosen = bench_buffer(b, bytes, NULL, e);
    return r->net.chosen.p != NULL;
}

static bool measure(struct bench *b, struct subject *s, struct err *e)
{
    static const int steps[] = {512, 4096, 32768, 131072}, rows[] = {3, 4, 8, 16, 60};
    static const struct {
        struct tree_shape shape;
        double accepted;
    } cycles[] = {{{2, 1, 3}, 2.35}, {{3, 1, 4}, 2.35}, {{5, 8, 60}, 4.0}};
    bool brief = b->o->brief, ok = true;
    for (int i = 0; i < 4 && ok; i++)
        ok = (brief && steps[i] != s->usual) || step(b, s, steps[i], e);
    for (int i = 0; i < 5 && ok; i++)
        ok = (brief && rows[i] != 4 && rows[i] != 16) || verify(b, s, rows[i], e);
    ok = ok && draft_step(b, s, e) && plain(b, s, e);
    for (int i = 0; i < 3 && ok; i++)
        ok = (brief && i != 1) || cycle(b, s, cycles[i].shape, cycles[i].accepted, e);
    ok = ok && prefill(b, s, 512, e);
    if (!brief || b->graphs)
        ok = ok && prefill(b, s, 4096, e);
    return ok && talks(b, s, e);
}

static bool any_wanted(const struct bench *b)
{
    static const char *const part[] = {"step.", "verify.", "draft.", "cycle.", "prefill.", "chat."};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (bench_wanted_any(b, part[i]))
            return true;
    return false;
}

bool bench_models(struct bench *b, struct err *e)
{
    struct subject *s = xcalloc(1, sizeof *s);
    const bool asked = any_wanted(b) && (b->o->synthetic || b->o->model);
    bool ok = !asked || load(b, s, e);
    if (ok && asked) {
        s->chunk = b->graphs ? 2048 : 256;
        s->usual = b->graphs ? 4096 : 512;
        s->most = b->graphs && !b->o->brief ? 131072 : b->o->brief && !b->graphs ? 512 : 4096;
        s->most = min_int(s->most, s->m.cfg.max_pos);
        s->usual = min_int(s->usual, s->most);
        struct rig_shape shape = {.page_size = 16, .context = s->most + 1024, .max_rows = s->chunk,
                                  .kv = b->dev.kv};
        ok = fits(b, s, e) &&
             rig_open(&s->rig, b->dev, &s->m, s->has_draft ? &s->d : NULL, &shape, e);
        ok = ok && prepare(b, s, e) && measure(b, s, e);
        bench_release(b, &s->rig.net.chosen, 1);
        rig_close(&s->rig);
        ok &= b->dev.k->sync(b->dev.d, ok ? e : NULL);
    }
    draft_free(&s->d);
    model_free(&s->m);
    free(s);
    return ok;
}
