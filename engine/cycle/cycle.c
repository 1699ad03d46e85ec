/* cycle.c - see cycle.h. */
#include "engine/cycle/cycle.h"

#include "engine/cycle/fused.h"
#include "engine/run/probe_pass.h"

#include <stdlib.h>
#include <string.h>

/* ---- phases ---------------------------------------------------------------------------------- */

static void phase_begin(struct cycle *c, enum cycle_phase before)
{
    CHECK(c->phase == before);
    c->t0 = clock_ns();
    c->check0 = c->r->pass.check.ns;
}

/* Returns the nanoseconds that the phase took. */
static uint64_t phase_end(struct cycle *c, enum cycle_phase phase, bool ok)
{
    uint64_t ns = clock_ns() - c->t0;
    c->ns += ns;
    c->ns_check += c->r->pass.check.ns - c->check0;
    c->phase = ok ? phase : CYCLE_FAILED;
    return ns;
}

static struct cycle_lane *add_lane(struct cycle *c, struct lane *l, int max_new)
{
    struct cycle_lane *x = &c->lane[c->n++];
    x->lane = l;
    x->max_new = max_new;
    x->follows = x->lags = x->captured = x->took_slot = false;
    x->tree.n = 0;
    return x;
}

/* Gives the lane a slot of the drafter, for as long as it lives, unless the cycle is abandoned. */
static bool take_slot(struct cycle *c, struct cycle_lane *x)
{
    bool had = x->lane->slot > 0, ok = lane_take_slot(c->r, x->lane);
    x->took_slot = ok && !had;
    return ok;
}

/* Whether the drafter runs over the lane's new cells: only a head does, if its own cells reach that
 * far. */
static bool can_follow(struct cycle *c, struct cycle_lane *x)
{
    return drafter_taps(c->r->drafter) && lane_can_follow(c->r, x->lane) && take_slot(c, x);
}

/* Whether a plain step's cell can join the backlog: the drafter has its guess, or is behind only by
 * cells of the backlog. */
static bool can_lag(const struct runtime *r, const struct lane *l)
{
    return r->drafter && r->drafter->head && drafter_owns_kv(r->drafter) &&
           l->behind < HEAD_BACKLOG && l->seq.drafted + l->behind == l->seq.committed &&
           (l->behind > 0 || l->guess.n > 0);
}

static void begin(struct cycle *c, struct runtime *r, int topk)
{
    c->r = r;
    c->phase = CYCLE_BEGUN;
    c->shape = (struct tree_shape){0};
    c->fused = false;
    c->topk = topk;
    c->n = 0;
    follow_init(&c->follow);
    c->ns = c->ns_draft = c->ns_verify = c->ns_check = 0;
    pass_begin_step(&r->pass);
}

static void begin_step(struct cycle *c, struct runtime *r, struct lane *const *lane,
                       const struct step_limits *lim, int n, const struct tree_shape *shape)
{
    CHECK(n <= MAX_LANES);
    begin(c, r, 1);
    if (shape && shape->steps)
        c->shape = *shape;
    for (int b = 0; b < n; b++) {
        struct lane *l = lane[b];
        struct cycle_lane *x = add_lane(c, l, lim[b].max_new);
        if (shape)
            c->topk = max_int(c->topk, lane_guesses(l, shape->topk));
        tree_init(&x->tree, l->tok.v[l->tok.n - 1]);
        x->lags = shape && !shape->steps && n == 1 && can_lag(r, l);
        x->follows = shape && shape->steps && can_follow(c, x);
        if (x->follows)
            follow_add(&c->follow, l, &x->out, false);
    }
}

void cycle_begin(struct cycle *c, struct runtime *r, struct lane *const *lane,
                 const struct step_limits *lim, int n, const struct tree_shape *shape)
{
    for (int b = 0; b < n; b++)
        lane_park(r, lane[b]);
    begin_step(c, r, lane, lim, n, shape);
}

static bool draft(struct cycle *c, struct err *e)
{
    struct runtime *r = c->r;
    struct drafting d[MAX_LANES];
    int k = 0;
    for (int b = 0; b < c->n; b++) {
        struct cycle_lane *x = &c->lane[b];
        struct lane *l = x->lane;
        int depth = lane_draft_depth(r, l, x->max_new);
        struct drafting one = {&l->seq, &l->guess, l->slot - 1, depth, &x->tree,
                               l->tok.v, l->tok.n};
        if (r->drafter && depth > 0 && c->shape.nodes > 1 &&
            r->drafter->ops->ready(r->drafter, &one))
            d[k++] = one;
    }
    return k == 0 || drafter_grow(r->drafter, &r->pass, d, k, &c->shape, e);
}

bool cycle_draft(struct cycle *c, struct err *e)
{
    phase_begin(c, CYCLE_BEGUN);
    bool ok = draft(c, e);
    c->ns_draft = phase_end(c, CYCLE_DRAFTED, ok);
    return ok;
}

/* Runs the target over a prepared pass. With `capture`, the states that the drafter reads overwrite
 * those of the previous pass on the device, even if the pass is stopped halfway. A pass that can be
 * stopped therefore parks the old states first, so that a stopped step leaves the lane
 * unchanged. */
static bool forward(struct cycle *c, const struct plan *p, bool capture, struct err *e)
{
    struct runtime *r = c->r;
    for (int b = 0; b < c->n && capture; b++) {
        c->lane[b].captured = c->lane[b].follows || c->lane[b].lags || p->mode == PLAN_EXTEND;
        if (r->net.stop)
            lane_park(r, c->lane[b].lane);
        c->lane[b].lane->tap_row = -1;
    }
    return net_forward(&r->net, p, &r->pass.kp, capture ? drafter_taps(r->drafter) : NULL) ||
           err_set(e, ERR_NEGATIVE, "the pass was stopped");
}

static enum plan_mode mode_of(const struct cycle *c)
{
    for (int b = 0; b < c->n; b++)
        if (c->lane[b].tree.n > 1)
            return PLAN_VERIFY;
    return PLAN_DECODE;
}

/* Runs the target over the trees, whose pass is prepared, and waits for the logits of all rows. */
static bool run_trees(struct cycle *c, struct err *e)
{
    struct runtime *r = c->r;
    const struct plan *p = &r->pass.plan[mode_of(c)];
    if (!forward(c, p, c->follow.n > 0 || c->lane[0].lags, e))
        return false;
    net_logits(&r->net, p->n_rows, (kbuf){0}, r->logits, (kbuf){0});
    probe_logits(&r->net, 0, p->n_rows, r->logits, r->ids, r->p);
    return r->dev.k->sync(r->dev.d, e);
}

/* Reserves the cells of all trees and runs the target over them. */
static bool verify(struct cycle *c, struct err *e)
{
    struct runtime *r = c->r;
    struct plan_req req[MAX_LANES];
    enum plan_mode mode = mode_of(c);
    bool ok = true;
    pass_lock(&r->pass);
    for (int b = 0; b < c->n && ok; b++) {
        struct seq *s = &c->lane[b].lane->seq;
        const struct tree *t = &c->lane[b].tree;
        ok = kv_reserve(&r->kv, s, s->committed + t->n, e);
        req[b] = (struct plan_req){.seq = s, .n = t->n, .token = t->token,
                                   .tree = mode == PLAN_VERIFY ? t : NULL};
    }
    pass_unlock(&r->pass);
    return ok && pass_prepare(&r->pass, mode, req, c->n, e) && run_trees(c, e);
}

bool cycle_verify(struct cycle *c, struct err *e)
{
    phase_begin(c, CYCLE_DRAFTED);
    bool ok = verify(c, e);
    c->ns_verify = phase_end(c, CYCLE_VERIFIED, ok);
    return ok;
}

bool cycle_verify_again(struct cycle *c, struct err *e)
{
    phase_begin(c, CYCLE_VERIFIED);
    bool ok = run_trees(c, e);
    c->ns_verify += phase_end(c, CYCLE_VERIFIED, ok);
    return ok;
}

static bool accept_lanes(struct cycle *c, struct err *e)
{
    for (int b = 0, first = 0; b < c->n; first += c->lane[b].tree.n, b++) {
        struct cycle_lane *x = &c->lane[b];
        if (!accept_lane(c->r, x->lane, first, x->max_new, &x->tree, &x->out, e))
            return false;
    }
    return true;
}

bool cycle_accept(struct cycle *c, struct err *e)
{
    phase_begin(c, CYCLE_VERIFIED);
    bool ok = accept_lanes(c, e) && follow_plan(c->r, &c->follow, e);
    phase_end(c, CYCLE_ACCEPTED, ok);
    return ok;
}

static void commit_lane(struct runtime *r, struct cycle_lane *x)
{
    struct lane *l = x->lane;
    const struct outcome *o = &x->out;
    kv_commit(&r->kv, &l->seq, l->seq.committed + o->n_cells);
    if (o->draft_cells >= 0)
        kv_commit_draft(&r->kv, &l->seq, o->draft_cells);
    for (int i = 0; i < o->n_new; i++)
        ids_add(&l->tok, o->token[i]);
    if (o->draft_cells >= 0)
        l->seq.next = l->tok.v[o->draft_cells];
    kv_release_before(&r->kv, &l->seq,
                      r->hook.passed ? r->hook.passed(r, l, o) : l->seq.committed);
    kv_rollback(&r->kv, &l->seq);
    l->rec = o->rec;
    l->draws = o->draws;
    l->n_new = o->n_new;
    memcpy(l->fact, o->fact, (size_t)o->n_new * sizeof *l->fact);
    for (int i = 0; i < o->n_new; i++)
        l->row[i] = o->rec.kind == STEP_PREFILL ? 0 : outcome_row(o, i);
    l->stopped = o->n_new > 0 && !l->run_on && runtime_stops(r, o->token[o->n_new - 1]);
    if (o->rec.forced) {
        l->given += o->rec.forced;
        l->n_given -= o->rec.forced;
    }
    l->tree.n = 0;
    if (x->tree.n)
        l->tree = x->tree;
    l->guess.n = 0;
    l->settled = false;
    l->tap_row = x->captured ? outcome_row(o, o->n_cells - 1) : -1;
    l->behind = x->lags ? l->behind + 1 : 0;
    free(l->tap);
    l->tap = NULL;
}

void cycle_commit(struct cycle *c)
{
    phase_begin(c, CYCLE_ACCEPTED);
    pass_lock(&c->r->pass);
    for (int b = 0; b < c->n; b++)
        commit_lane(c->r, &c->lane[b]);
    pass_unlock(&c->r->pass);
    phase_end(c, CYCLE_COMMITTED, true);
}

static uint32_t microseconds(uint64_t ns) /* at most 71 minutes: the process may have been
                                             stopped */
{
    return ns / 1000 < UINT32_MAX ? (uint32_t)(ns / 1000) : UINT32_MAX;
}

/* Fills the fields of a step's record that describe the whole cycle. The time of follow is part of
 * us_commit. */
static void finish_record(const struct cycle *c, const struct tree *t, struct step_rec *rec)
{
    uint64_t taken = c->ns_draft + c->ns_verify;
    rec->fused = c->fused;
    rec->page_digest = c->r->pass.digest;
    rec->draft_digest = t->n > 1 ? tree_digest(t) : 0;
    rec->draft_window = t->n > 1 ? c->r->kv.draft_window : 0;
    rec->us_draft = microseconds(c->ns_draft);
    rec->us_verify = microseconds(c->ns_verify);
    rec->us_commit = microseconds(c->ns > taken ? c->ns - taken : 0);
    rec->us_check = microseconds(c->ns_check);
}

/* The captured states of the lane's last cell join the backlog. */
static void keep_tap(struct head *h, struct lane *l)
{
    head_copy_tap(h, l->tap_row, head_backlog_row(h, l->behind - 1));
    l->tap_row = -1;
}

void cycle_follow(struct cycle *c)
{
    phase_begin(c, CYCLE_COMMITTED);
    if (!c->fused)
        follow_run(c->r, &c->follow, c->topk);
    for (int b = 0; b < c->n; b++)
        if (c->lane[b].lags)
            keep_tap(c->r->drafter->head, c->lane[b].lane);
    for (int b = 0; b < c->follow.n; b++)
        c->follow.lane[b].lane->guess = c->follow.guess[b];
    phase_end(c, CYCLE_FOLLOWED, true);
    for (int b = 0; b < c->n; b++)
        finish_record(c, &c->lane[b].tree, &c->lane[b].lane->rec);
}

void cycle_abandon(struct cycle *c)
{
    struct runtime *r = c->r;
    CHECK(c->phase <= CYCLE_ACCEPTED || c->phase == CYCLE_FAILED);
    pass_lock(&r->pass);
    follow_abandon(&c->follow);
    for (int b = 0; b < c->n; b++) {
        kv_rollback(&r->kv, &c->lane[b].lane->seq);
        if (c->lane[b].took_slot)
            lane_give_slot(r, c->lane[b].lane);
    }
    pass_unlock(&r->pass);
    c->phase = CYCLE_ABANDONED;
}

/* Commits and follows if the phases before have succeeded. */
static bool finish(struct cycle *c, bool ok)
{
    if (!ok) {
        cycle_abandon(c);
        return false;
    }
    cycle_commit(c);
    cycle_follow(c);
    return true;
}

/* ---- a lane that is behind ------------------------------------------------------------------- */

bool lane_catch_up(struct runtime *r, struct lane *l, int topk, struct err *e)
{
    struct follow f;
    struct outcome none = {.draft_cells = -1};
    bool had = l->slot > 0;
    if (l->behind == 0)
        return true;
    follow_init(&f);
    if (!lane_take_slot(r, l))
        return err_set(e, ERR_NEGATIVE, "all slots of the drafter are in use");
    follow_add(&f, l, &none, false);
    f.lane[0].behind = l->behind;
    bool ok = follow_plan(r, &f, e);
    if (ok)
        follow_run(r, &f, lane_guesses(l, topk));
    pass_lock(&r->pass);
    if (ok) {
        kv_commit_draft(&r->kv, &l->seq, none.draft_cells);
        l->seq.next = l->tok.v[none.draft_cells];
        kv_release_window(&r->kv, &l->seq);
    } else {
        follow_abandon(&f);
    }
    kv_rollback(&r->kv, &l->seq);
    if (!ok && !had)
        lane_give_slot(r, l);
    pass_unlock(&r->pass);
    if (ok) {
        l->guess = f.guess[0];
        l->behind = 0;
    }
    return ok;
}

bool lane_ready_for(struct runtime *r, struct lane *l, const struct tree_shape *shape,
                    struct err *e)
{
    bool needed = shape && (shape->steps || l->behind == HEAD_BACKLOG);
    return !needed || lane_catch_up(r, l, shape->topk, e);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* The draft phase of a drafter without a head, which grows its trees on the host. If it drafts for
 * no lane, the cycle becomes plain decoding, which may be fused. */
static bool draft_on_host(struct cycle *c, struct err *e)
{
    bool ok = cycle_draft(c, e), drafted = false;
    for (int b = 0; b < c->n; b++)
        drafted |= c->lane[b].tree.n > 1;
    if (!drafted)
        c->shape = (struct tree_shape){0};
    c->fused = ok && !drafted && fused_fits(c);
    return ok;
}

/* Runs the phases up to accept as one run of device operations; without draft if draft_on_host()
 * has drafted. */
static bool run_fused(struct cycle *c, struct err *e)
{
    phase_begin(c, c->phase);
    bool ok = fused_run(c, e);
    phase_end(c, CYCLE_ACCEPTED, ok);
    return ok;
}

bool lane_step(struct runtime *r, struct lane **lane, const struct step_limits *lim, int n,
               const struct tree_shape *shape, struct err *e)
{
    struct cycle c;
    for (int b = 0; b < n; b++)
        if (!lane_ready_for(r, lane[b], shape, e))
            return false;
    begin_step(&c, r, lane, lim, n, shape);
    bool ok = true;
    if (shape && shape->steps && r->drafter && !r->drafter->head)
        ok = draft_on_host(&c, e);
    else if (!(c.fused = fused_fits(&c)))
        ok = cycle_draft(&c, e);
    ok = ok && (c.fused ? run_fused(&c, e) : cycle_verify(&c, e) && cycle_accept(&c, e));
    uint64_t ns = c.ns;
    ok = finish(&c, ok);
    if (c.fused)
        r->host.after += c.ns - ns;
    return ok;
}

/* ---- a prompt chunk -------------------------------------------------------------------------- */

/* The log probabilities of the tokens that follow the chunk's rows in the prompt. */
static void score_chunk(struct runtime *r, const struct lane *l, int from, int n)
{
    n = min_int(n, l->scores->n - from - 1);
    for (int i = 0, some; i < n; i += some) {
        int32_t row[TREE_MAX];
        some = min_int(score_rows(r), n - i);
        for (int k = 0; k < some; k++)
            row[k] = i + k;
        r->dev.k->put(r->dev.d, r->row, row, (size_t)some * 4);
        net_logits(&r->net, some, r->row, r->logits, (kbuf){0});
        score_prompt(r, l, from + i + 1, some);
    }
}

/* The target's pass over the chunk, and with `last` the next token and the best of its logits. */
static bool run_chunk(struct cycle *c, int n, bool last, bool capture, int32_t *choice,
                      struct best_logits *best, struct err *e)
{
    struct runtime *r = c->r;
    struct lane *l = c->lane[0].lane;
    int from = l->seq.committed;
    struct plan_req req = {.seq = &l->seq, .n = n, .token = l->tok.v + from};
    best->rows = 0;
    pass_lock(&r->pass);
    bool ok = kv_reserve(&r->kv, &l->seq, from + n, e);
    pass_unlock(&r->pass);
    if (!ok || !pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e) ||
        !forward(c, &r->pass.plan[PLAN_EXTEND], capture, e))
        return false;
    if (l->scores)
        score_chunk(r, l, from, n);
    if (last) {
        int32_t row = n - 1;
        r->dev.k->put(r->dev.d, r->row, &row, 4);
        net_logits(&r->net, 1, r->row, r->logits, (kbuf){0});
        *choice = sample_prompt(r, l, best);
        probe_logits(&r->net, row, 1, r->logits, r->ids, r->p);
    }
    return r->dev.k->sync(r->dev.d, e); /* after a failure the choices are zeros, not results */
}

bool lane_extend(struct runtime *r, struct lane *l, int upto, bool last, bool draft, int topk,
                 struct err *e)
{
    int from = l->seq.committed, n = upto - from;
    int32_t choice = -1;
    struct best_logits best;
    struct cycle c;
    CHECK(n > 0 && n <= r->max_rows && upto <= l->tok.n && (!last || upto == l->tok.n));
    r->pass.opts.parts = max_int(1, r->parts);
    if (r->pass.opts.parts == 2 && !net_two_parts(&r->net, e))
        return false;
    lane_park(r, l);
    begin(&c, r, lane_guesses(l, topk));
    struct cycle_lane *x = add_lane(&c, l, last);
    draft = draft && can_follow(&c, x);
    x->follows = draft && (last || drafter_owns_kv(r->drafter));
    if (x->follows)
        follow_add(&c.follow, l, &x->out, l->tap && from > 0);
    c.phase = CYCLE_DRAFTED; /* nothing to draft */
    phase_begin(&c, CYCLE_DRAFTED);
    bool ok = run_chunk(&c, n, last, draft, &choice, &best, e);
    c.ns_verify = phase_end(&c, CYCLE_VERIFIED, ok);
    if (ok) {
        phase_begin(&c, CYCLE_VERIFIED);
        ok = accept_prompt(l, n, last, &choice, &x->out, e) && follow_plan(r, &c.follow, e);
        if (ok)
            outcome_set_logits(r, &x->out, &best, &(int32_t){0}, NULL);
        phase_end(&c, CYCLE_ACCEPTED, ok);
    }
    return finish(&c, ok);
}
