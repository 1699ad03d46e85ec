/* fused.c - see fused.h. */
#include "engine/cycle/fused_parts.h"

#include <stdlib.h>

void fused_close(struct runtime *r)
{
    if (!r->fused)
        return;
    fused_forget_recordings(r);
    r->dev.k->release(r->dev.d, r->fused->mem);
    list_close(&r->fused->list, r->dev.k, r->dev.d);
    free(r->fused);
    r->fused = NULL;
}

enum { SCRATCH = TREE_MAX + MAX_STEPS * MAX_TOPK }; /* cells of a cycle, in any pool, at most */

static int most_columns(const struct runtime *r)
{
    return div_up(r->context + SCRATCH, r->kv.page_size);
}

static bool fused_open(struct runtime *r, struct err *e)
{
    r->fused = xcalloc(1, sizeof *r->fused);
    bool ok = list_open(&r->fused->list, r->dev.k, r->dev.d, most_columns(r), e);
    if (!ok)
        fused_close(r);
    return ok;
}

bool fused_fits(const struct cycle *c)
{
    const struct runtime *r = c->r;
    const struct cycle_lane *x = &c->lane[0];
    const struct tree_shape *shape = &c->shape;
    if (c->n != 1 || !r->fuse || bugs_any(&r->bugs) || x->lane->n_given > 0 ||
        x->lane->steer || r->net.probe)
        return false;
    if (!shape->steps)
        return !x->follows;
    const struct head *d = r->drafter ? r->drafter->head : NULL;
    bool shaped = d && (d->ops->level || (shape->topk == 1 && shape->steps < d->w->block));
    return x->follows && drafter_owns_kv(r->drafter) && shaped && shape->nodes > 1 &&
           lane_draft_depth(r, x->lane, x->max_new) >= shape->steps &&
           c->topk <= head_vocab(r->drafter->head) && x->lane->guess.n >= shape->topk;
}

/* ---- plans, before anything is drafted ------------------------------------------------------- */

static struct plan *plan_of(struct fused_cycle *x, enum plan_mode mode)
{
    return &x->r->pass.plan[mode];
}

/* Builds and checks one plan under the pass's lock. */
static bool plan_one(struct fused_cycle *x, enum plan_mode mode, const struct plan_req *req,
                     int width, struct err *e)
{
    struct pass *ps = &x->r->pass;
    struct plan_opts o = ps->opts;
    o.cols = x->key.cols;
    o.width = width;
    o.list = &x->f->list;
    return pass_plan(ps, mode, req, 1, &o, e);
}

/* Columns of a cycle's tables. Kernel grids depend on them, so a recording fits one number of
 * columns only: the number is doubled when the length needs more. */
static int columns(const struct runtime *r, const struct lane *l)
{
    int n = 64;
    while (mul64(n, r->kv.page_size) < l->tok.n + SCRATCH)
        n *= 2;
    return min_int(n, most_columns(r));
}

static bool plan_plain(struct fused_cycle *x, struct err *e)
{
    struct plan_req req = {.seq = &x->l->seq, .n = 1, .token = x->l->tok.v + x->l->seq.committed};
    x->verify = plan_of(x, PLAN_DECODE);
    return plan_one(x, PLAN_DECODE, &req, 0, e);
}

/* All levels in one plan: row (level - 2) * topk + k. The plan fixes only the cells that the rows
 * write. Ancestors are filled in on the device; until then each row lists only itself. */
static bool plan_levels(struct fused_cycle *x, struct err *e)
{
    struct seq *s = &x->l->seq;
    struct draft_row row[MAX_STEPS * MAX_TOPK];
    int32_t none[MAX_STEPS * MAX_TOPK] = {0};
    struct plan_req req = {.seq = s, .n = x->scratch, .token = none, .draft = row,
                           .levels = x->key.steps - 1, .topk = x->key.topk};
    for (int i = 0; i < x->scratch; i++) {
        row[i].depth = i / x->key.topk + 1;
        row[i].cell = row[i].seen[0] = s->drafted + i;
        row[i].up = -1;
        row[i].n_seen = 1;
    }
    x->draft = plan_of(x, PLAN_DRAFT);
    return plan_one(x, PLAN_DRAFT, &req, x->key.steps - 1, e);
}

/* The block: the pending token and masks. Nothing of its plan is filled in on the device. */
static bool plan_block(struct fused_cycle *x, struct err *e)
{
    int32_t token[MAX_BLOCK];
    struct plan_req req = {.seq = &x->l->seq, .n = x->block, .token = token};
    for (int i = 0; i < x->block; i++)
        token[i] = i ? x->r->drafter->head->w->mask : x->lane->tree.token[0];
    x->draft = plan_of(x, PLAN_BLOCK);
    return plan_one(x, PLAN_BLOCK, &req, 0, e);
}

static bool plan_guesses(struct fused_cycle *x, struct err *e)
{
    if (x->block)
        return plan_block(x, e);
    return x->scratch == 0 || plan_levels(x, e);
}

/* The plans of a cycle that drafts. The tree consists of its root so far; the verify plan has a row
 * for each node that the tree may get. */
static bool plan_drafting(struct fused_cycle *x, struct err *e)
{
    struct seq *s = &x->l->seq;
    int after = x->key.steps + 1;
    int32_t none[MAX_STEPS + 1] = {0};
    struct plan_req verify = {.seq = s, .n = x->nodes, .tree = &x->lane->tree};
    struct plan_req extend = {.seq = s, .n = after, .token = none, .draft_from = s->drafted,
                              .ahead = after};
    x->verify = plan_of(x, PLAN_VERIFY);
    x->extend = plan_of(x, PLAN_DRAFT_EXTEND);
    return plan_guesses(x, e) &&
           plan_one(x, PLAN_DRAFT_EXTEND, &extend, 0, e) &&
           plan_one(x, PLAN_VERIFY, &verify, min_int(x->key.steps + 1, x->nodes), e);
}

/* Reserves every cell of the cycle. In the draft's pool the levels' scratch cells and the cells of
 * the accepted path are the same ones: the follow overwrites the scratch. */
static bool reserve(struct fused_cycle *x, struct err *e)
{
    struct kv *kv = &x->r->kv;
    struct seq *s = &x->l->seq;
    int ahead = max_int(x->scratch, x->key.steps + 1);
    return kv_reserve(kv, s, s->committed + x->nodes, e) &&
           (!x->key.steps || kv_reserve_draft(kv, s, s->drafted, s->drafted + ahead, e));
}

/* ---- recordings ------------------------------------------------------------------------------ */

static bool same_key(const struct graph_key *a, const struct graph_key *b)
{
    return a->steps == b->steps && a->topk == b->topk && a->nodes == b->nodes &&
           a->guesses == b->guesses && a->captures == b->captures && a->slot == b->slot &&
           a->draft_window == b->draft_window && a->cols == b->cols &&
           a->how.temperature == b->how.temperature &&
           a->how.top_k == b->how.top_k && a->how.top_p == b->how.top_p &&
           a->how.min_p == b->how.min_p;
}

/* The recording of this key; a new one replaces the least recently used one. */
static struct recording *find_recording(struct runtime *r, const struct graph_key *key)
{
    struct recording *all = r->fused->recording, *old = all;
    for (int i = 0; i < MAX_RECORDINGS; i++) {
        if (all[i].used && same_key(&all[i].key, key))
            return &all[i];
        if (all[i].used < old->used)
            old = &all[i];
    }
    r->dev.k->graph_free(r->dev.d, old->graph);
    *old = (struct recording){.key = *key};
    return old;
}

/* The first run of a key is launched kernel by kernel; the second one is recorded, then
 * replayed. */
static bool launch(struct fused_cycle *x, struct err *e)
{
    const struct kernels *k = x->r->dev.k;
    struct kdev *d = x->r->dev.d;
    struct recording *run = find_recording(x->r, &x->key);
    bool known = run->used > 0;
    run->used = ++x->f->clock;
    if (x->r->record && known && !run->graph && k->graph_begin(d)) {
        fused_operations(x);
        run->graph = k->graph_end(d, e);
        if (!run->graph)
            return false;
    }
    bool replay = x->r->record && run->graph;
    if (replay)
        k->graph_launch(d, run->graph);
    else
        fused_operations(x);
    x->r->n_fused++;
    x->r->n_replayed += replay;
    return true;
}

/* ---- a cycle --------------------------------------------------------------------------------- */

/* Everything before the launch: reserves, plans, checks, fills the inbox. */
static bool prepare(struct fused_cycle *x, struct err *e)
{
    struct pass *ps = &x->r->pass;
    pass_lock(ps);
    if (x->f->checked < ps->check.level)
        list_mark_unchecked(&x->f->list);
    x->f->checked = ps->check.level;
    bool ok = reserve(x, e) && (x->key.steps ? plan_drafting(x, e) : plan_plain(x, e));
    if (ok && !x->key.steps)
        plan_mark(x->verify, ps->kv,
                  &(struct plan_req){.seq = &x->l->seq, .n = 1,
                                     .token = x->l->tok.v + x->l->seq.committed});
    if (ok)
        list_mark_checked(&x->f->list, ps->kv, &x->l->seq, SIDE_TARGET);
    if (ok && x->extend)
        list_mark_checked(&x->f->list, ps->kv, &x->l->seq, SIDE_DRAFT);
    pass_unlock(ps);
    if (!ok || !fused_layout(x, e))
        return false;
    pass_copies(ps);
    list_send(&x->f->list, x->r->dev.k, x->r->dev.d);
    fused_fill_inbox(x);
    return true;
}

/* While the device works: checks once more the columns that the checks before the launch skipped,
 * because they were checked in an earlier cycle and the cache has not changed them since. */
static bool recheck_pages(struct fused_cycle *x, struct err *e)
{
    struct pass *ps = &x->r->pass;
    struct plan_req req = {.seq = &x->l->seq};
    pass_lock(ps);
    bool ok = check_list(&ps->check, x->verify, ps->kv, &req, e) &&
              (!x->extend || check_list(&ps->check, x->extend, ps->kv, &req, e));
    if (!ok)
        list_mark_unchecked(&x->f->list);
    pass_unlock(ps);
    return ok;
}

static struct fused_cycle begin(struct cycle *c)
{
    const struct tree_shape *s = &c->shape;
    struct lane *l = c->lane[0].lane;
    struct fused_cycle x = {.c = c, .r = c->r, .f = c->r->fused, .l = l, .lane = &c->lane[0],
                            .nodes = 1, .key.cols = columns(c->r, l)};
    if (l->how.temperature > 0) /* greedy sampling ignores the other parameters */
        x.key.how = l->how;
    x.key.captures = s->steps || c->lane[0].lags;
    if (!s->steps)
        return x;
    x.key.guesses = c->topk;
    x.key.steps = s->steps;
    x.key.topk = s->topk;
    x.key.nodes = x.nodes = min_int(s->nodes, 1 + tree_candidates(s->topk, s->steps));
    x.key.slot = l->slot - 1;
    x.key.draft_window = c->r->kv.draft_window;
    x.block = c->r->drafter->head->w->block;
    x.scratch = x.block ? x.block : (s->steps - 1) * s->topk;
    return x;
}

/* Launches, checks beside the device, and waits for its results, also if a check fails: the device
 * still works on the buffers. */
static bool run_cycle_graph(struct fused_cycle *x, struct err *e)
{
    struct runtime *r = x->r;
    uint64_t t0 = clock_ns();
    if (x->key.captures) {
        x->l->tap_row = -1;
        x->lane->captured = true;
    }
    if (!launch(x, e))
        return false;
    uint64_t t1 = clock_ns();
    bool ok = recheck_pages(x, e);
    r->host.during = clock_ns() - t1;
    x->out = r->dev.k->outbox(r->dev.d);
    x->c->ns_verify = clock_ns() - t0;
    return ok && (x->out || r->dev.k->sync(r->dev.d, e));
}

bool fused_run(struct cycle *c, struct err *e)
{
    struct runtime *r = c->r;
    uint64_t t0 = clock_ns();
    if (!r->fused && !fused_open(r, e))
        return false;
    struct fused_cycle x = begin(c);
    bool ok = prepare(&x, e);
    r->host.before = clock_ns() - t0;
    ok = ok && run_cycle_graph(&x, e);
    uint64_t t1 = clock_ns();
    ok = ok && fused_results(&x, e);
    r->host.after = clock_ns() - t1;
    return ok;
}

bool fused_again(struct runtime *r)
{
    const struct recording *all = r->fused ? r->fused->recording : NULL, *last = all;
    for (int i = 0; all && i < MAX_RECORDINGS; i++)
        if (all[i].used > last->used)
            last = &all[i];
    if (!last || !last->graph || !r->record)
        return false;
    r->dev.k->graph_launch(r->dev.d, last->graph);
    return true;
}
