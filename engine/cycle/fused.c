/* fused.c - see fused.h. */
#include "engine/cycle/fused_parts.h"

void fused_close(struct runtime *rt)
{
    if (!rt->fused)
        return;
    fused_forget_recordings(rt);
    rt->dev.k->release(rt->dev.d, rt->fused->mem);
    list_close(&rt->fused->list, rt->dev.k, rt->dev.d);
    DROP(rt->fused);
}

enum { SCRATCH = TREE_MAX + MAX_STEPS * MAX_TOPK }; /* cells of a cycle, in any pool, at most */

static int most_columns(const struct runtime *rt)
{
    return div_up(rt->context + SCRATCH, rt->kv.page_size);
}

static bool fused_open(struct runtime *rt, struct err *e)
{
    rt->fused = xcalloc(1, sizeof *rt->fused);
    bool ok = list_open(&rt->fused->list, rt->dev.k, rt->dev.d, most_columns(rt), e);
    if (!ok)
        fused_close(rt);
    return ok;
}

bool fused_fits(const struct cycle *cycle)
{
    const struct runtime *rt = cycle->rt;
    const struct cycle_lane *part = &cycle->lane[0];
    const struct tree_shape *shape = &cycle->shape;
    if (cycle->n != 1 || !rt->fuse || bugs_any(&rt->bugs) || part->lane->n_given > 0 ||
        part->lane->steer || rt->net.probe)
        return false;
    if (!shape->steps)
        return !part->follows;
    const struct head *head = rt->drafter ? rt->drafter->head : NULL;
    bool shaped = head && (head->ops->level ||
                           (head->ops->block && shape->steps <= draft_block_reach(head->w)));
    return part->follows && drafter_owns_kv(rt->drafter) && shaped && shape->nodes > 1 &&
           lane_draft_depth(rt, part->lane, part->max_new) >= shape->steps &&
           cycle->topk <= head_vocab(rt->drafter->head) && part->lane->guess.n >= shape->topk;
}

/* ---- plans, before anything is drafted ------------------------------------------------------- */

static struct plan *plan_of(struct fused_cycle *run, enum plan_mode mode)
{
    return &run->rt->pass.plan[mode];
}

/* Builds and checks one plan under the pass's lock. */
static bool plan_one(struct fused_cycle *run, enum plan_mode mode, const struct plan_req *req,
                     int width, struct err *e)
{
    struct pass *pass = &run->rt->pass;
    struct plan_opts o = pass->opts;
    o.cols = run->key.cols;
    o.width = width;
    o.list = &run->fused->list;
    return pass_plan(pass, mode, req, 1, &o, e);
}

/* Columns of a cycle's tables. Kernel grids depend on them, so a recording fits one number of
 * columns only: the number is doubled when the length needs more. */
static int columns(const struct runtime *rt, const struct lane *lane)
{
    int n = 64;
    while (mul64(n, rt->kv.page_size) < lane->tok.n + SCRATCH)
        n *= 2;
    return min_int(n, most_columns(rt));
}

static bool plan_plain(struct fused_cycle *run, struct err *e)
{
    struct plan_req req = {.seq = &run->lane->seq, .n = 1,
                           .token = run->lane->tok.v + run->lane->seq.committed};
    run->verify = plan_of(run, PLAN_DECODE);
    return plan_one(run, PLAN_DECODE, &req, 0, e);
}

/* All levels in one plan: row (level - 2) * topk + k. The plan fixes only the cells that the rows
 * write. Ancestors are filled in on the device; until then each row lists only itself. */
static bool plan_levels(struct fused_cycle *run, struct err *e)
{
    struct seq *s = &run->lane->seq;
    struct draft_row row[MAX_STEPS * MAX_TOPK];
    int32_t none[MAX_STEPS * MAX_TOPK] = {0};
    struct plan_req req = {.seq = s, .n = run->scratch, .token = none, .draft = row,
                           .levels = run->key.steps - 1, .topk = run->key.topk};
    for (int i = 0; i < run->scratch; i++) {
        row[i].depth = i / run->key.topk + 1;
        row[i].cell = row[i].seen[0] = s->drafted + i;
        row[i].up = -1;
        row[i].n_seen = 1;
    }
    run->draft = plan_of(run, PLAN_DRAFT);
    return plan_one(run, PLAN_DRAFT, &req, run->key.steps - 1, e);
}

/* The block of the drafter. Nothing of its plan is filled in on the device. */
static bool plan_block(struct fused_cycle *run, struct err *e)
{
    int32_t token[MAX_BLOCK];
    struct plan_req req = {.seq = &run->lane->seq, .n = run->block, .token = token};
    const struct head *head = run->rt->drafter->head;
    for (int i = 0; i < run->block; i++)
        token[i] = head_block_token(head, i, run->part->tree.token[0]);
    run->draft = plan_of(run, PLAN_BLOCK);
    return plan_one(run, PLAN_BLOCK, &req, 0, e);
}

static bool plan_guesses(struct fused_cycle *run, struct err *e)
{
    if (run->block)
        return plan_block(run, e);
    return run->scratch == 0 || plan_levels(run, e);
}

/* The plans of a cycle that drafts. The tree consists of its root so far; the verify plan has a row
 * for each node that the tree may get. */
static bool plan_drafting(struct fused_cycle *run, struct err *e)
{
    struct seq *s = &run->lane->seq;
    int after = run->key.steps + 1;
    int32_t none[MAX_STEPS + 1] = {0};
    struct plan_req verify = {.seq = s, .n = run->nodes, .tree = &run->part->tree};
    struct plan_req extend = {.seq = s, .n = after, .token = none, .draft_from = s->drafted,
                              .ahead = after};
    run->verify = plan_of(run, PLAN_VERIFY);
    run->extend = plan_of(run, PLAN_DRAFT_EXTEND);
    return plan_guesses(run, e) &&
           plan_one(run, PLAN_DRAFT_EXTEND, &extend, 0, e) &&
           plan_one(run, PLAN_VERIFY, &verify, min_int(run->key.steps + 1, run->nodes), e);
}

/* Reserves every cell of the cycle. In the draft's pool the levels' scratch cells and the cells of
 * the accepted path are the same ones: the follow overwrites the scratch. */
static bool reserve(struct fused_cycle *run, struct err *e)
{
    struct kv *kv = &run->rt->kv;
    struct seq *s = &run->lane->seq;
    int ahead = max_int(run->scratch, run->key.steps + 1);
    return kv_reserve(kv, s, s->committed + run->nodes, e) &&
           (!run->key.steps || kv_reserve_draft(kv, s, s->drafted, s->drafted + ahead, e));
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
static struct recording *find_recording(struct runtime *rt, const struct graph_key *key)
{
    struct recording *all = rt->fused->recording, *old = all;
    for (int i = 0; i < MAX_RECORDINGS; i++) {
        if (all[i].used && same_key(&all[i].key, key))
            return &all[i];
        if (all[i].used < old->used)
            old = &all[i];
    }
    rt->dev.k->graph_free(rt->dev.d, old->graph);
    *old = (struct recording){.key = *key};
    return old;
}

/* The first run of a key is launched kernel by kernel; the second one is recorded, then
 * replayed. */
static bool launch(struct fused_cycle *run, struct err *e)
{
    const struct kernels *k = run->rt->dev.k;
    struct kdev *d = run->rt->dev.d;
    struct recording *recording = find_recording(run->rt, &run->key);
    bool again = recording->used > 0;
    recording->used = ++run->fused->clock;
    if (run->rt->record && again && !recording->graph && k->graph_begin(d)) {
        fused_operations(run);
        recording->graph = k->graph_end(d, e);
        if (!recording->graph)
            return false;
    }
    bool replay = run->rt->record && recording->graph;
    if (replay)
        k->graph_launch(d, recording->graph);
    else
        fused_operations(run);
    run->rt->n_fused++;
    run->rt->n_replayed += replay;
    return true;
}

/* ---- a cycle --------------------------------------------------------------------------------- */

/* Everything before the launch: reserves, plans, checks, fills the inbox. */
static bool prepare(struct fused_cycle *run, struct err *e)
{
    struct pass *pass = &run->rt->pass;
    pass_lock(pass);
    if (run->fused->checked < pass->check.level)
        list_mark_unchecked(&run->fused->list);
    run->fused->checked = pass->check.level;
    bool ok = reserve(run, e) && (run->key.steps ? plan_drafting(run, e) : plan_plain(run, e));
    if (ok && !run->key.steps)
        plan_mark(run->verify, pass->kv,
                  &(struct plan_req){.seq = &run->lane->seq, .n = 1,
                                     .token = run->lane->tok.v + run->lane->seq.committed});
    if (ok)
        list_mark_checked(&run->fused->list, pass->kv, &run->lane->seq, SIDE_TARGET);
    if (ok && run->extend)
        list_mark_checked(&run->fused->list, pass->kv, &run->lane->seq, SIDE_DRAFT);
    pass_unlock(pass);
    if (!ok || !fused_layout(run, e))
        return false;
    pass_copies(pass);
    list_send(&run->fused->list, run->rt->dev.k, run->rt->dev.d);
    fused_fill_inbox(run);
    return true;
}

/* While the device works: checks once more the columns that the checks before the launch skipped,
 * because they were checked in an earlier cycle and the cache has not changed them since. */
static bool recheck_pages(struct fused_cycle *run, struct err *e)
{
    struct pass *pass = &run->rt->pass;
    struct plan_req req = {.seq = &run->lane->seq};
    pass_lock(pass);
    bool ok = check_list(&pass->check, run->verify, pass->kv, &req, e) &&
              (!run->extend || check_list(&pass->check, run->extend, pass->kv, &req, e));
    if (!ok)
        list_mark_unchecked(&run->fused->list);
    pass_unlock(pass);
    return ok;
}

static struct fused_cycle begin_fused(struct cycle *cycle)
{
    const struct tree_shape *s = &cycle->shape;
    struct lane *lane = cycle->lane[0].lane;
    struct fused_cycle run = {.cycle = cycle, .rt = cycle->rt, .fused = cycle->rt->fused,
                              .lane = lane, .part = &cycle->lane[0],
                              .nodes = 1, .key.cols = columns(cycle->rt, lane)};
    if (lane->how.temperature > 0) /* greedy sampling ignores the other parameters */
        run.key.how = lane->how;
    run.key.captures = s->steps || cycle->lane[0].lags;
    if (!s->steps)
        return run;
    run.key.guesses = cycle->topk;
    run.key.steps = s->steps;
    run.key.topk = s->topk;
    run.key.nodes = run.nodes = min_int(s->nodes, 1 + tree_candidates(s->topk, s->steps));
    run.key.slot = lane->slot - 1;
    run.key.draft_window = cycle->rt->kv.draft_window;
    const struct head *head = cycle->rt->drafter->head;
    run.block = head->w->block ? head_block_rows(head, s->steps) : 0;
    run.scratch = run.block ? run.block : (s->steps - 1) * s->topk;
    return run;
}

/* Launches, checks beside the device, and waits for its results, also if a check fails: the device
 * still works on the buffers. */
static bool run_cycle_graph(struct fused_cycle *run, struct err *e)
{
    struct runtime *rt = run->rt;
    uint64_t t0 = clock_ns();
    if (run->key.captures) {
        run->lane->tap_row = -1;
        run->part->captured = true;
    }
    if (!launch(run, e))
        return false;
    uint64_t t1 = clock_ns();
    bool ok = recheck_pages(run, e);
    rt->host.during = clock_ns() - t1;
    run->out = rt->dev.k->outbox(rt->dev.d);
    run->cycle->ns_verify = clock_ns() - t0;
    return ok && (run->out || rt->dev.k->sync(rt->dev.d, e));
}

bool fused_run(struct cycle *cycle, struct err *e)
{
    struct runtime *rt = cycle->rt;
    uint64_t t0 = clock_ns();
    if (!rt->fused && !fused_open(rt, e))
        return false;
    struct fused_cycle run = begin_fused(cycle);
    bool ok = prepare(&run, e);
    rt->host.before = clock_ns() - t0;
    ok = ok && run_cycle_graph(&run, e);
    uint64_t t1 = clock_ns();
    ok = ok && fused_results(&run, e);
    rt->host.after = clock_ns() - t1;
    return ok;
}

bool fused_again(struct runtime *rt)
{
    const struct recording *all = rt->fused ? rt->fused->recording : NULL, *last = all;
    for (int i = 0; all && i < MAX_RECORDINGS; i++)
        if (all[i].used > last->used)
            last = &all[i];
    if (!last || !last->graph || !rt->record)
        return false;
    rt->dev.k->graph_launch(rt->dev.d, last->graph);
    return true;
}
