/* view.c - the views of the local backend: copies of engine state. Runs on the caller's thread: of
 * the state that changes, this file reads struct engine_shared only, under its lock. */
#include <limits.h>

#include "engine/thread/internal.h"

/* The state to copy; leave() gives it back. */
static const struct engine_shared *enter(struct backend *b)
{
    shared_lock(&engine_of(b)->shared);
    return &engine_of(b)->shared;
}

static void leave(struct backend *b)
{
    shared_unlock(&engine_of(b)->shared);
}

/* ---- the chat -------------------------------------------------------------------------------- */

void local_chat(struct backend *b, struct chat_view *v)
{
    bool busy = backend_busy(b);
    const struct engine_shared *s = enter(b);
    const struct lane *lane = &s->ses->lane;
    const struct turn_count *now = &s->count;
    *v = s->stats;
    memcpy(v->session, s->ses->id, sizeof v->session);
    v->turn = s->turn;
    v->step = s->step;
    v->busy = busy;
    v->length = max_int(lane->tok.n, s->ses->expected);
    v->committed = lane->seq.committed;
    v->capacity = backend_info(b)->context;
    v->settings = s->set;
    v->session_mal = draft_sums_mal(&v->drafts);
    v->turn_mal = draft_sums_mal(&now->drafts);
    v->tok_s = reply_tok_s((int64_t)now->generated, now->decode_ns / 1000);
    leave(b);
}

/* ---- pools and pages ------------------------------------------------------------------------- */

static int32_t column_page(const struct seq *s, enum pool_id p, int c)
{
    return p == POOL_DRAFT ? s->dcol[c].v : p == POOL_SWA ? s->col[c].swa.v : s->col[c].full.v;
}

/* Bits for the holders of a page; BATCH: a job. Checkpoints and jobs' resident states have no
 * bit. */
enum { HELD_BY_SESSION = 1, HELD_BY_IDLE = 2, HELD_BY_BATCH = 4 };

static void mark_holders(const struct seq *s, enum pool_id p, uint8_t bit, uint8_t *held)
{
    int n = p == POOL_DRAFT ? s->n_dcol : s->n_col;
    for (int c = 0; c < n; c++)
        if (column_page(s, p, c)) /* 0: released */
            held[column_page(s, p, c)] |= bit;
}

/* The ledger of a pool, and in *held an allocated array (total) with the holders of each page; NULL
 * if the pool does not exist. used: held by the current session or a running batch alone;
 * protected: held by the session and also by a fork or the batch; evictable: held by checkpoints or
 * idle sessions only. */
static void view_pool(const struct engine_shared *s, enum pool_id id, struct pool_view *v,
                      uint8_t **held)
{
    const struct pool *p = &s->pass->kv->pool[id];
    *v = (struct pool_view){.exists = p->total > 0};
    *held = v->exists ? xcalloc((size_t)p->total, 1) : NULL;
    if (!v->exists)
        return;
    v->page_size = s->pass->kv->page_size;
    v->total = p->total;
    v->reserved = GUARD_PAGES;
    v->free = p->n_free;
    mark_holders(&s->ses->lane.seq, id, HELD_BY_SESSION, *held);
    for (int i = 0; i < s->ses->n_idle; i++)
        mark_holders(&s->ses->idle[i].seq, id, HELD_BY_IDLE, *held);
    const struct seq *seqs[MAX_SEQS];
    int lanes = 0;
    if (s->jobs)
        jobs_seqs(s->jobs, seqs, &lanes);
    for (int i = 0; i < lanes; i++)
        mark_holders(seqs[i], id, HELD_BY_BATCH, *held);
    if (s->scratch)
        mark_holders(s->scratch, id, HELD_BY_BATCH, *held);
    for (int i = GUARD_PAGES; i < p->total; i++) {
        int by = (*held)[i];
        if (p->ref[i])
            ++*((by & HELD_BY_SESSION) && by != HELD_BY_SESSION ? &v->protected_
                : by & (HELD_BY_SESSION | HELD_BY_BATCH)        ? &v->used
                                                                : &v->evictable);
    }
}

static void local_ledger(struct backend *b, struct pool_view pool[N_POOLS])
{
    uint8_t *held;
    const struct engine_shared *s = enter(b);
    for (int i = 0; i < N_POOLS; i++) {
        view_pool(s, (enum pool_id)i, &pool[i], &held);
        free(held);
    }
    leave(b);
}

static void copy_pool(const struct engine_shared *s, enum pool_id id, struct page_table *t)
{
    const struct pool *p = &s->pass->kv->pool[id];
    view_pool(s, id, &t->pool[id], &t->mine[id]);
    if (!t->pool[id].exists)
        return;
    t->refs[id] = xcopy(p->ref, (size_t)p->total, sizeof *p->ref);
    for (int i = 0; i < p->total; i++)
        t->mine[id][i] &= HELD_BY_SESSION;
}

static void copy_columns(const struct engine_shared *sh, struct page_table *t)
{
    const struct seq *s = &sh->ses->lane.seq;
    const struct kv *kv = sh->pass->kv;
    t->n_page = max_int(s->n_col, s->n_dcol);
    t->page = xcalloc((size_t)t->n_page + 1, sizeof *t->page);
    for (int c = 0; c < t->n_page; c++) {
        struct page_view *p = &t->page[c];
        if (c < s->n_col) {
            p->full = s->col[c].full.v;
            p->swa = s->col[c].swa.v;
            p->full_refs = (int16_t)kv->pool[POOL_FULL].ref[p->full];
            p->swa_refs = p->swa ? (int16_t)kv->pool[POOL_SWA].ref[p->swa] : 0;
        }
        if (c < s->n_dcol) {
            p->draft = s->dcol[c].v;
            p->draft_refs = (int16_t)kv->pool[POOL_DRAFT].ref[p->draft];
        }
    }
}

/* Whether the present turn ended with the latest violation. */
static bool violated_now(const struct engine_shared *s)
{
    return s->violation.text[0] && s->violation.turn == s->turn &&
           !memcmp(s->violation.session, s->ses->id, sizeof s->ses->id);
}

static void local_table(struct backend *b, struct page_table *t)
{
    const struct engine_shared *s = enter(b);
    const struct lane *lane = &s->ses->lane;
    *t = (struct page_table){.turn = s->turn, .step = s->step, .length = lane->tok.n,
                             .committed = lane->seq.committed, .capacity = backend_info(b)->context,
                             .window = backend_info(b)->window, .window_lo = lane->seq.swa_lo,
                             .draft_length = lane->seq.drafted, .violated = violated_now(s),
                             .at = s->violation.at};
    memcpy(t->session, s->ses->id, sizeof t->session);
    for (int i = 0; i < N_POOLS; i++)
        copy_pool(s, (enum pool_id)i, t);
    copy_columns(s, t);
    leave(b);
}

/* The state after a step. Under the lock only bytes are copied: at most those of one group of the
 * tape. */
static bool fold_step(struct backend *b, int turn, int step, struct page_history *h, struct err *e)
{
    FREED(buf_free) struct buf packed = {0};
    bool held = tape_copy(&enter(b)->pages, turn, step, &packed);
    leave(b);
    *h = (struct page_history){0};
    bool ok = held ? page_history_apply(h, packed.p, packed.n, e)
                   : err_set(e, ERR_NEGATIVE, "the pages of step %d.%d are not in memory", turn,
                             step);
    if (!ok)
        page_history_free(h);
    return ok;
}

static bool local_table_at(struct backend *b, int turn, int step, struct page_table *t,
                           struct err *e)
{
    struct page_history h;
    *t = (struct page_table){0};
    if (!fold_step(b, turn, step, &h, e))
        return false;
    page_history_table(&h, t);
    page_history_free(&h);
    t->turn = turn;
    t->step = step;
    const struct engine_shared *s = enter(b);
    memcpy(t->session, s->ses->id, sizeof t->session);
    t->at = s->violation.at;
    t->violated = s->violation.text[0] && s->violation.turn == turn && s->violation.step == step &&
                  !memcmp(s->violation.session, t->session, sizeof t->session);
    leave(b);
    return true;
}

static bool local_position_at(struct backend *b, int turn, int step, int position,
                              struct pos_view *v, struct err *e)
{
    struct page_history h;
    int32_t token = -1;
    if (!fold_step(b, turn, step, &h, e))
        return false;
    FREED(ids_free) struct ids context = {0};
    int n_prompt;
    if (contexts_of(&enter(b)->contexts, turn, &context, &n_prompt) && position >= 0 &&
        position < context.n)
        token = context.v[position];
    leave(b);
    bool ok = page_history_position(&h, position, token, v, e);
    page_history_free(&h);
    return ok;
}

static bool local_position(struct backend *b, int position, struct pos_view *v,
                           struct err *e)
{
    const struct engine_shared *s = enter(b);
    const struct kv *kv = s->pass->kv;
    const struct lane *lane = &s->ses->lane;
    int n = lane->tok.n;
    bool ok = position >= 0 && position < n;
    if (ok) {
        int c = position / kv->page_size;
        *v = (struct pos_view){.position = position, .token = lane->tok.v[position],
                               .committed = position < lane->seq.committed};
        if (c < lane->seq.n_col) {
            full_slot f = kv_full_slot(kv, &lane->seq, position);
            v->full_slot = f.v;
            v->swa_slot = lane->seq.col[c].swa.v ? kv_swa_slot(kv, f).v : 0;
        }
        if (c < lane->seq.n_dcol)
            v->draft_slot = kv_draft_slot(kv, &lane->seq, position).v;
        v->in_window = position >= window_first(lane->seq.committed, kv->window);
    }
    leave(b);
    return ok || (n == 0 ? err_set(e, ERR_USAGE, "the context is empty: send a message first")
                         : err_set(e, ERR_USAGE, "position %d: expected 0 to %d", position, n - 1));
}

/* Under the lock at most one group of the tape is read at a time. */
static int local_page_events(struct backend *b, int turn, int step, enum pool_id pool, int page,
                             struct page_change *out, int max, bool *whole)
{
    struct page_walk w = {.pool = pool, .page = page, .out = out, .max = max};
    bool now = turn == 0;
    int t = now ? INT_MAX : turn, s = now ? INT_MAX : step;
    const struct page_log *log = &enter(b)->pass->kv->log;
    if (now)
        page_walk_add(&w, 0, 0, log->since, log->n_since);
    leave(b);
    for (bool more = true; more && !w.over;) {
        more = tape_walk(&enter(b)->pages, &t, &s, &w);
        leave(b);
    }
    page_walk_end(&w);
    *whole = w.over;
    return w.n;
}

/* ---- steps and trees ------------------------------------------------------------------------- */

static void local_range(struct backend *b, struct step_range *r)
{
    ring_range(&enter(b)->ring, r);
    leave(b);
}

static int local_steps(struct backend *b, struct step_info *out, int max)
{
    int n = ring_latest(&enter(b)->ring, out, max);
    leave(b);
    return n;
}

/* The newest step that drafted, at or before the present step of a turn that has gone back. */
static const struct ring_entry *latest_drafted(const struct engine_shared *s)
{
    const struct ring_entry *e = ring_drafted(&s->ring);
    uint64_t i = s->ring.end - s->ring.first;
    bool back = e && e->turn == s->turn && e->step > s->step;
    while (back && i > 0 && ((e = ring_at(&s->ring, --i))->n_node == 0 ||
                             (e->turn == s->turn && e->step > s->step)))
        e = NULL;
    return e;
}

/* step < 0: the latest one that drafted. */
static bool local_step(struct backend *b, int turn, int step, struct step_view *v)
{
    const struct engine_shared *s = enter(b);
    const struct ring_entry *e = step < 0 ? latest_drafted(s) : ring_find(&s->ring, turn, step);
    if (e)
        ring_view(&s->ring, e, v);
    leave(b);
    return e != NULL;
}

static bool local_latest_tree(struct backend *b, struct step_view *v)
{
    return local_step(b, 0, -1, v);
}

/* ---- the checker ----------------------------------------------------------------------------- */

static void count_checks(const struct engine_shared *s, struct check_view *v)
{
    const struct checker *c = &s->pass->check;
    *v = (struct check_view){.checks = c->checks, .unchecked = c->unchecked,
                             .violations = c->violations, .violation = s->violation,
                             .violated_now = violated_now(s)};
}

static void local_counts(struct backend *b, struct check_view *v)
{
    count_checks(enter(b), v);
    leave(b);
}

static bool local_sweep(struct backend *b, struct check_report *r, struct err *e)
{
    const struct seq *seqs[MAX_SEQS];
    struct err why = {0};
    *r = (struct check_report){.n_rule = check_rule_count()};
    CHECK(r->n_rule <= MAX_RULES);
    const struct engine_shared *s = enter(b);
    r->n_seq = shared_seqs(s, seqs);
    bool ok = check_sweep(s->pass->kv, seqs, r->n_seq, &why);
    r->level = (enum check_level)s->set.check;
    count_checks(s, &r->counts);
    leave(b);
    for (int i = 0; i < r->n_rule; i++) {
        r->rule[i].text = check_rule(i);
        r->rule[i].state = !ok && fault_is_of(&why.at, i + 1) ? RULE_VIOLATED
                           : check_rule_swept(i)          ? RULE_HOLDS
                                                          : RULE_OF_PLANS;
    }
    snprintf(r->fault, sizeof r->fault, "%.250s", why.msg);
    return ok || err_set(e, ERR_INVARIANT, "%s", why.msg);
}

/* ---- the plan -------------------------------------------------------------------------------- */

static bool local_plan_text(struct backend *b, const char *mode, bool json, struct buf *out,
                            struct err *e)
{
    const struct engine_shared *s = enter(b);
    const struct pass *ps = s->pass;
    int which = ps->last;
    if (mode && mode[0]) {
        for (which = 0; which < N_MODES; which++)
            if (!strcmp(mode, plan_mode_name((enum plan_mode)which)))
                break;
        if (which == N_MODES) {
            FREED(buf_free) struct buf list = {0};
            for (int i = 0; i < N_MODES; i++)
                buf_or(&list, i, N_MODES, plan_mode_name((enum plan_mode)i));
            err_set(e, ERR_USAGE, "unknown plan '%.60s': expected %s", mode, list.p);
        }
    } else if (which == N_MODES) {
        err_set(e, ERR_USAGE, "there is no plan yet: send a message first");
    }
    bool ok = which < N_MODES;
    if (ok && !ps->plan[which].mem)
        ok =
            err_set(e, ERR_USAGE, "no %s plan was made yet", plan_mode_name((enum plan_mode)which));
    if (ok)
        plan_print(&ps->plan[which], json, out);
    leave(b);
    return ok;
}

/* ---- historical faults ----------------------------------------------------------------------- */

static void local_faults(struct backend *b, struct bugs *on)
{
    *on = *enter(b)->bugs;
    leave(b);
}

/* ---- the groups ------------------------------------------------------------------------------ */

void local_views(struct backend *b)
{
    static const struct steps_ops steps = {.latest = local_steps, .range = local_range,
                                           .of_step = local_step};
    static const struct trees_ops trees = {.latest = local_latest_tree};
    static const struct pools_ops pools = {.ledger = local_ledger};
    static const struct pages_ops pages = {.table = local_table, .position = local_position,
                                           .events = local_page_events,
                                           .table_at = local_table_at,
                                           .position_at = local_position_at};
    static const struct plan_ops plan = {.text = local_plan_text, .keep = local_keep_plans,
                                         .kept = local_kept_plans};
    static const struct check_ops check = {.counts = local_counts, .sweep = local_sweep};
    static const struct faults_ops faults = {.on = local_faults};
    b->steps = &steps;
    b->trees = &trees;
    b->pools = &pools;
    b->pages = &pages;
    b->plan = &plan;
    b->check = &check;
    b->faults = &faults;
    b->debug = &local_debug;
    b->probe = &local_probe;
    b->lacks[VIEW_SERVED] = "the local engine computes its replies itself";
    b->lacks[VIEW_GAUGES] = "metrics are those of a server; /gauges draws the steps of the local "
                            "engine";
    b->lacks[VIEW_BLOCKS] = "the local engine shows its pages themselves: /pages";
    b->jobs = &local_jobs;
}
