/* cycle.c - see cycle.h. */
#include "engine/cycle/cycle.h"

#include "engine/cycle/fused.h"
#include "engine/run/probe_pass.h"

/* ---- phases ---------------------------------------------------------------------------------- */

static void phase_begin(struct cycle *cycle, enum cycle_phase before)
{
    CHECK(cycle->phase == before);
    cycle->t0 = clock_ns();
    cycle->check0 = cycle->rt->pass.check.ns;
}

/* Returns the nanoseconds that the phase took. */
static uint64_t phase_end(struct cycle *cycle, enum cycle_phase phase, bool ok)
{
    uint64_t ns = clock_ns() - cycle->t0;
    cycle->ns += ns;
    cycle->ns_check += cycle->rt->pass.check.ns - cycle->check0;
    cycle->phase = ok ? phase : CYCLE_FAILED;
    return ns;
}

static struct cycle_lane *add_lane(struct cycle *cycle, struct lane *lane, int max_new)
{
    struct cycle_lane *part = &cycle->lane[cycle->n++];
    part->lane = lane;
    part->max_new = max_new;
    part->follows = part->lags = part->captured = part->took_slot = false;
    part->tree.n = 0;
    return part;
}

/* Gives the lane a slot of the drafter, for as long as it lives, unless the cycle is abandoned. */
static bool take_slot(struct cycle *cycle, struct cycle_lane *part)
{
    bool had = part->lane->slot > 0, ok = lane_take_slot(cycle->rt, part->lane);
    part->took_slot = ok && !had;
    return ok;
}

/* Whether the drafter runs over the lane's new cells: only a head does, if its own cells reach that
 * far. */
static bool can_follow(struct cycle *cycle, struct cycle_lane *part)
{
    return drafter_taps(cycle->rt->drafter) && lane_can_follow(cycle->rt, part->lane) &&
           take_slot(cycle, part);
}

/* Whether a plain step's cell can join the backlog: the drafter has its guess, or is behind only by
 * cells of the backlog. */
static bool can_lag(const struct runtime *rt, const struct lane *lane)
{
    return rt->drafter && rt->drafter->head && drafter_owns_kv(rt->drafter) &&
           lane->behind < HEAD_BACKLOG && lane->seq.drafted + lane->behind == lane->seq.committed &&
           (lane->behind > 0 || lane->guess.n > 0);
}

static void begin_cycle(struct cycle *cycle, struct runtime *rt, int topk)
{
    cycle->rt = rt;
    cycle->phase = CYCLE_BEGUN;
    cycle->shape = (struct tree_shape){0};
    cycle->fused = false;
    cycle->topk = topk;
    cycle->n = 0;
    follow_init(&cycle->follow);
    cycle->ns = cycle->ns_draft = cycle->ns_verify = cycle->ns_check = 0;
    pass_begin_step(&rt->pass);
}

static void begin_step(struct cycle *cycle, struct runtime *rt, struct lane *const *lanes,
                       const struct step_limits *lim, int n, const struct tree_shape *shape)
{
    CHECK(n <= MAX_LANES);
    begin_cycle(cycle, rt, 1);
    if (shape && shape->steps)
        cycle->shape = *shape;
    for (int b = 0; b < n; b++) {
        struct lane *lane = lanes[b];
        struct cycle_lane *part = add_lane(cycle, lane, lim[b].max_new);
        if (shape)
            cycle->topk = max_int(cycle->topk, lane_guesses(lane, shape->topk));
        tree_init(&part->tree, lane->tok.v[lane->tok.n - 1]);
        part->lags = shape && !shape->steps && n == 1 && can_lag(rt, lane);
        part->follows = shape && shape->steps && can_follow(cycle, part);
        if (part->follows)
            follow_add(&cycle->follow, lane, &part->out, false);
    }
}

void cycle_begin(struct cycle *cycle, struct runtime *rt, struct lane *const *lane,
                 const struct step_limits *lim, int n, const struct tree_shape *shape)
{
    for (int b = 0; b < n; b++)
        lane_park(rt, lane[b]);
    begin_step(cycle, rt, lane, lim, n, shape);
}

static bool draft(struct cycle *cycle, struct err *e)
{
    struct runtime *rt = cycle->rt;
    struct drafting d[MAX_LANES];
    int k = 0;
    FOR_EACH(struct cycle_lane, part, cycle->lane, cycle->n) {
        struct lane *lane = part->lane;
        int depth = lane_draft_depth(rt, lane, part->max_new);
        struct drafting one = {&lane->seq, &lane->guess, lane->slot - 1, depth, &part->tree,
                               lane->tok.v, lane->tok.n};
        if (rt->drafter && depth > 0 && cycle->shape.nodes > 1 &&
            rt->drafter->ops->ready(rt->drafter, &one))
            d[k++] = one;
    }
    return k == 0 || drafter_grow(rt->drafter, &rt->pass, d, k, &cycle->shape, e);
}

bool cycle_draft(struct cycle *cycle, struct err *e)
{
    phase_begin(cycle, CYCLE_BEGUN);
    bool ok = draft(cycle, e);
    cycle->ns_draft = phase_end(cycle, CYCLE_DRAFTED, ok);
    return ok;
}

/* Runs the target over a prepared pass. With `capture`, the states that the drafter reads overwrite
 * those of the previous pass on the device, even if the pass is stopped halfway. A pass that can be
 * stopped therefore parks the old states first, so that a stopped step leaves the lane
 * unchanged. */
static bool forward(struct cycle *cycle, const struct plan *p, bool capture, struct err *e)
{
    struct runtime *rt = cycle->rt;
    for (int b = 0; b < cycle->n && capture; b++) {
        cycle->lane[b].captured = cycle->lane[b].follows || cycle->lane[b].lags ||
                                  p->mode == PLAN_EXTEND;
        if (rt->net.stop)
            lane_park(rt, cycle->lane[b].lane);
        cycle->lane[b].lane->tap_row = -1;
    }
    return net_forward(&rt->net, p, &rt->pass.kp, capture ? drafter_taps(rt->drafter) : NULL) ||
           err_set(e, ERR_NEGATIVE, "the pass was stopped");
}

static enum plan_mode mode_of(const struct cycle *cycle)
{
    for (int b = 0; b < cycle->n; b++)
        if (cycle->lane[b].tree.n > 1)
            return PLAN_VERIFY;
    return PLAN_DECODE;
}

/* Runs the target over the trees, whose pass is prepared, and waits for the logits of all rows. */
static bool run_trees(struct cycle *cycle, struct err *e)
{
    struct runtime *rt = cycle->rt;
    const struct plan *p = &rt->pass.plan[mode_of(cycle)];
    if (!forward(cycle, p, cycle->follow.n > 0 || cycle->lane[0].lags, e))
        return false;
    net_logits(&rt->net, p->n_rows, (kbuf){0}, rt->logits);
    probe_logits(&rt->net, 0, p->n_rows, rt->logits, rt->ids, rt->prob);
    return rt->dev.k->sync(rt->dev.d, e);
}

/* Reserves the cells of all trees and runs the target over them. */
static bool verify(struct cycle *cycle, struct err *e)
{
    struct runtime *rt = cycle->rt;
    struct plan_req req[MAX_LANES];
    enum plan_mode mode = mode_of(cycle);
    bool ok = true;
    pass_lock(&rt->pass);
    for (int b = 0; b < cycle->n && ok; b++) {
        struct seq *s = &cycle->lane[b].lane->seq;
        const struct tree *tree = &cycle->lane[b].tree;
        ok = kv_reserve(&rt->kv, s, s->committed + tree->n, e);
        req[b] = (struct plan_req){.seq = s, .n = tree->n, .token = tree->token,
                                   .tree = mode == PLAN_VERIFY ? tree : NULL};
    }
    pass_unlock(&rt->pass);
    return ok && pass_prepare(&rt->pass, mode, req, cycle->n, e) && run_trees(cycle, e);
}

bool cycle_verify(struct cycle *cycle, struct err *e)
{
    phase_begin(cycle, CYCLE_DRAFTED);
    bool ok = verify(cycle, e);
    cycle->ns_verify = phase_end(cycle, CYCLE_VERIFIED, ok);
    return ok;
}

bool cycle_verify_again(struct cycle *cycle, struct err *e)
{
    phase_begin(cycle, CYCLE_VERIFIED);
    bool ok = run_trees(cycle, e);
    cycle->ns_verify += phase_end(cycle, CYCLE_VERIFIED, ok);
    return ok;
}

static bool accept_lanes(struct cycle *cycle, struct err *e)
{
    for (int b = 0, first = 0; b < cycle->n; first += cycle->lane[b].tree.n, b++) {
        struct cycle_lane *part = &cycle->lane[b];
        if (!accept_lane(cycle->rt, part->lane, first, part->max_new, &part->tree, &part->out, e))
            return false;
    }
    return true;
}

bool cycle_accept(struct cycle *cycle, struct err *e)
{
    phase_begin(cycle, CYCLE_VERIFIED);
    bool ok = accept_lanes(cycle, e) && follow_plan(cycle->rt, &cycle->follow, e);
    phase_end(cycle, CYCLE_ACCEPTED, ok);
    return ok;
}

static void commit_lane(struct runtime *rt, struct cycle_lane *part)
{
    struct lane *lane = part->lane;
    const struct outcome *out = &part->out;
    kv_commit(&rt->kv, &lane->seq, lane->seq.committed + out->n_cells);
    if (out->draft_cells >= 0)
        kv_commit_draft(&rt->kv, &lane->seq, out->draft_cells);
    for (int i = 0; i < out->n_new; i++)
        ids_add(&lane->tok, out->token[i]);
    if (out->draft_cells >= 0)
        lane->seq.next = lane->tok.v[out->draft_cells];
    kv_release_before(&rt->kv, &lane->seq,
                      rt->hook.passed ? rt->hook.passed(rt, lane, out) : lane->seq.committed);
    kv_rollback(&rt->kv, &lane->seq);
    lane->rec = out->rec;
    lane->draws = out->draws;
    lane->n_new = out->n_new;
    memcpy(lane->fact, out->fact, (size_t)out->n_new * sizeof *lane->fact);
    for (int i = 0; i < out->n_new; i++)
        lane->row[i] = out->rec.kind == STEP_PREFILL ? 0 : outcome_row(out, i);
    lane->stopped = out->n_new > 0 && !lane->run_on &&
                    runtime_stops(rt, out->token[out->n_new - 1]);
    if (out->rec.forced) {
        lane->given += out->rec.forced;
        lane->n_given -= out->rec.forced;
    }
    lane->tree.n = 0;
    if (part->tree.n)
        lane->tree = part->tree;
    lane->guess.n = 0;
    lane->settled = false;
    lane->tap_row = part->captured ? outcome_row(out, out->n_cells - 1) : -1;
    lane->behind = part->lags ? lane->behind + 1 : 0;
    DROP(lane->tap);
}

void cycle_commit(struct cycle *cycle)
{
    phase_begin(cycle, CYCLE_ACCEPTED);
    pass_lock(&cycle->rt->pass);
    for (int b = 0; b < cycle->n; b++)
        commit_lane(cycle->rt, &cycle->lane[b]);
    pass_unlock(&cycle->rt->pass);
    phase_end(cycle, CYCLE_COMMITTED, true);
}

static uint32_t microseconds(uint64_t ns) /* at most 71 minutes: the process may have been
                                             stopped */
{
    return ns / 1000 < UINT32_MAX ? (uint32_t)(ns / 1000) : UINT32_MAX;
}

/* Fills the fields of a step's record that describe the whole cycle. The time of follow is part of
 * us_commit. */
static void finish_record(const struct cycle *cycle, const struct tree *tree, struct step_rec *rec)
{
    uint64_t taken = cycle->ns_draft + cycle->ns_verify;
    rec->fused = cycle->fused;
    rec->page_digest = cycle->rt->pass.digest;
    rec->draft_digest = tree->n > 1 ? tree_digest(tree) : 0;
    rec->draft_window = tree->n > 1 ? cycle->rt->kv.draft_window : 0;
    rec->us_draft = microseconds(cycle->ns_draft);
    rec->us_verify = microseconds(cycle->ns_verify);
    rec->us_commit = microseconds(cycle->ns > taken ? cycle->ns - taken : 0);
    rec->us_check = microseconds(cycle->ns_check);
}

/* The captured states of the lane's last cell join the backlog. */
static void keep_tap(struct head *head, struct lane *lane)
{
    head_copy_tap(head, lane->tap_row, head_backlog_row(head, lane->behind - 1));
    lane->tap_row = -1;
}

void cycle_follow(struct cycle *cycle)
{
    phase_begin(cycle, CYCLE_COMMITTED);
    if (!cycle->fused)
        follow_run(cycle->rt, &cycle->follow, cycle->topk);
    for (int b = 0; b < cycle->n; b++)
        if (cycle->lane[b].lags)
            keep_tap(cycle->rt->drafter->head, cycle->lane[b].lane);
    for (int b = 0; b < cycle->follow.n; b++)
        cycle->follow.lane[b].lane->guess = cycle->follow.guess[b];
    phase_end(cycle, CYCLE_FOLLOWED, true);
    for (int b = 0; b < cycle->n; b++)
        finish_record(cycle, &cycle->lane[b].tree, &cycle->lane[b].lane->rec);
}

void cycle_abandon(struct cycle *cycle)
{
    struct runtime *rt = cycle->rt;
    CHECK(cycle->phase <= CYCLE_ACCEPTED || cycle->phase == CYCLE_FAILED);
    pass_lock(&rt->pass);
    follow_abandon(&cycle->follow);
    for (int b = 0; b < cycle->n; b++) {
        kv_rollback(&rt->kv, &cycle->lane[b].lane->seq);
        if (cycle->lane[b].took_slot)
            lane_give_slot(rt, cycle->lane[b].lane);
    }
    pass_unlock(&rt->pass);
    cycle->phase = CYCLE_ABANDONED;
}

/* Commits and follows if the phases before have succeeded. */
static bool finish(struct cycle *cycle, bool ok)
{
    if (!ok) {
        cycle_abandon(cycle);
        return false;
    }
    cycle_commit(cycle);
    cycle_follow(cycle);
    return true;
}

/* ---- a lane that is behind ------------------------------------------------------------------- */

bool lane_catch_up(struct runtime *rt, struct lane *lane, int topk, struct err *e)
{
    struct follow follow;
    struct outcome none = {.draft_cells = -1};
    bool had = lane->slot > 0;
    if (lane->behind == 0)
        return true;
    follow_init(&follow);
    if (!lane_take_slot(rt, lane))
        return err_set(e, ERR_NEGATIVE, "all slots of the drafter are in use");
    follow_add(&follow, lane, &none, false);
    follow.lane[0].behind = lane->behind;
    bool ok = follow_plan(rt, &follow, e);
    if (ok)
        follow_run(rt, &follow, lane_guesses(lane, topk));
    pass_lock(&rt->pass);
    if (ok) {
        kv_commit_draft(&rt->kv, &lane->seq, none.draft_cells);
        lane->seq.next = lane->tok.v[none.draft_cells];
        kv_release_window(&rt->kv, &lane->seq);
    } else {
        follow_abandon(&follow);
    }
    kv_rollback(&rt->kv, &lane->seq);
    if (!ok && !had)
        lane_give_slot(rt, lane);
    pass_unlock(&rt->pass);
    if (ok) {
        lane->guess = follow.guess[0];
        lane->behind = 0;
    }
    return ok;
}

bool lane_ready_for(struct runtime *rt, struct lane *lane, const struct tree_shape *shape,
                    struct err *e)
{
    bool needed = shape && (shape->steps || lane->behind == HEAD_BACKLOG);
    return !needed || lane_catch_up(rt, lane, shape->topk, e);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* The draft phase of a drafter without a head, which grows its trees on the host. If it drafts for
 * no lane, the cycle becomes plain decoding, which may be fused. */
static bool draft_on_host(struct cycle *cycle, struct err *e)
{
    bool ok = cycle_draft(cycle, e), drafted = false;
    for (int b = 0; b < cycle->n; b++)
        drafted |= cycle->lane[b].tree.n > 1;
    if (!drafted)
        cycle->shape = (struct tree_shape){0};
    cycle->fused = ok && !drafted && fused_fits(cycle);
    return ok;
}

/* Runs the phases up to accept as one run of device operations; without draft if draft_on_host()
 * has drafted. */
static bool run_fused(struct cycle *cycle, struct err *e)
{
    phase_begin(cycle, cycle->phase);
    bool ok = fused_run(cycle, e);
    phase_end(cycle, CYCLE_ACCEPTED, ok);
    return ok;
}

bool lane_step(struct runtime *rt, struct lane **lane, const struct step_limits *lim, int n,
               const struct tree_shape *shape, struct err *e)
{
    struct cycle cycle;
    for (int b = 0; b < n; b++)
        if (!lane_ready_for(rt, lane[b], shape, e))
            return false;
    begin_step(&cycle, rt, lane, lim, n, shape);
    bool ok = true;
    if (shape && shape->steps && rt->drafter && !rt->drafter->head)
        ok = draft_on_host(&cycle, e);
    else if (!(cycle.fused = fused_fits(&cycle)))
        ok = cycle_draft(&cycle, e);
    ok = ok &&
         (cycle.fused ? run_fused(&cycle, e) : cycle_verify(&cycle, e) && cycle_accept(&cycle, e));
    uint64_t ns = cycle.ns;
    ok = finish(&cycle, ok);
    if (cycle.fused)
        rt->host.after += cycle.ns - ns;
    return ok;
}

/* ---- a prompt chunk -------------------------------------------------------------------------- */

/* The log probabilities of the tokens that follow the chunk's rows in the prompt. */
static void score_chunk(struct runtime *rt, const struct lane *lane, int from, int n)
{
    n = min_int(n, lane->scores->n - from - 1);
    for (int i = 0, some; i < n; i += some) {
        some = runtime_logits(rt, i, n);
        score_prompt(rt, lane, from + i + 1, some);
    }
}

/* The target's pass over the chunk, and with `last` the next token and the best of its logits. */
static bool run_chunk(struct cycle *cycle, int n, bool last, bool capture, int32_t *choice,
                      struct best_logits *best, struct err *e)
{
    struct runtime *rt = cycle->rt;
    struct lane *lane = cycle->lane[0].lane;
    int from = lane->seq.committed;
    struct plan_req req = {.seq = &lane->seq, .n = n, .token = lane->tok.v + from};
    best->rows = 0;
    pass_lock(&rt->pass);
    bool ok = kv_reserve(&rt->kv, &lane->seq, from + n, e);
    pass_unlock(&rt->pass);
    if (!ok || !pass_prepare(&rt->pass, PLAN_EXTEND, &req, 1, e) ||
        !forward(cycle, &rt->pass.plan[PLAN_EXTEND], capture, e))
        return false;
    if (lane->scores)
        score_chunk(rt, lane, from, n);
    if (last) {
        int32_t row = n - 1;
        rt->dev.k->put(rt->dev.d, rt->row, &row, 4);
        net_logits(&rt->net, 1, rt->row, rt->logits);
        *choice = sample_prompt(rt, lane, best);
        probe_logits(&rt->net, row, 1, rt->logits, rt->ids, rt->prob);
    }
    return rt->dev.k->sync(rt->dev.d, e); /* after a failure the choices are zeros, not results */
}

bool lane_extend(struct runtime *rt, struct lane *lane, int upto, bool last, bool draft, int topk,
                 struct err *e)
{
    int from = lane->seq.committed, n = upto - from;
    int32_t choice = -1;
    struct best_logits best;
    struct cycle cycle;
    CHECK(n > 0 && n <= rt->max_rows && upto <= lane->tok.n && (!last || upto == lane->tok.n));
    rt->pass.opts.parts = max_int(1, rt->parts);
    if (rt->pass.opts.parts == 2 && !net_two_parts(&rt->net, e))
        return false;
    lane_park(rt, lane);
    begin_cycle(&cycle, rt, lane_guesses(lane, topk));
    struct cycle_lane *part = add_lane(&cycle, lane, last);
    draft = draft && can_follow(&cycle, part);
    part->follows = draft && (last || drafter_owns_kv(rt->drafter));
    if (part->follows)
        follow_add(&cycle.follow, lane, &part->out, lane->tap && from > 0);
    cycle.phase = CYCLE_DRAFTED; /* nothing to draft */
    phase_begin(&cycle, CYCLE_DRAFTED);
    bool ok = run_chunk(&cycle, n, last, draft, &choice, &best, e);
    cycle.ns_verify = phase_end(&cycle, CYCLE_VERIFIED, ok);
    if (ok) {
        phase_begin(&cycle, CYCLE_VERIFIED);
        ok = accept_prompt(rt, lane, n, last, &choice, &part->out, e) &&
             follow_plan(rt, &cycle.follow, e);
        if (ok)
            outcome_set_logits(rt, &part->out, &best, &(int32_t){0}, NULL);
        phase_end(&cycle, CYCLE_ACCEPTED, ok);
    }
    return finish(&cycle, ok);
}
