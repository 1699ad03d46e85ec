/* probe.c - steps with taps: the armed step of a turn, and past steps computed again (RQ_PROBE).
 *
 * A past step is computed again on a scratch sequence with the step's context: cells that the
 * session still has are shared, the others are computed from the tokens that the turn held
 * (contexts.h). Then the rows of the step run, with the tree that it drafted. If the logits equal
 * the recorded ones, the taps show what happened; the probe reports whether they do. They may
 * differ on a device on which a row of a long prompt pass has other bits than the same row of a
 * short pass, and if a setting, a fault switch or the engine has changed since. If the checker
 * refuses the pass because of historical faults that are on, it runs without them, and the probe
 * names the rule.
 *
 * Afterwards the pools are as before, including the order of their free pages (as after a batch),
 * so that a replay, which does not run probes, finds the same pages. */

#include "engine/thread/internal.h"

enum { DECODE_CHUNK = 64 }; /* rows of passes that compute generated tokens again: verify rows */

/* Posts the probe and takes it over, or, with *p NULL, posts why there is none. */
static void post(struct engine *engine, int turn, int step, struct probe *p, const char *why)
{
    struct event ev = engine_event(engine, EV_PROBE);
    ev.turn = turn;
    ev.step = step;
    ev.probe = p;
    if (!p)
        buf_str(&ev.text, why);
    evq_put(engine->base.screen, &ev); /* not to the log, which stores no probes */
}

/* Fills in the facts of a step that the taps do not record. */
static void describe(const struct engine *engine, struct probe *p, int turn, int step,
                     const struct step_rec *rec)
{
    memcpy(p->session, engine->own.ses.id, sizeof p->session);
    p->turn = turn;
    p->step = step;
    p->rec = *rec;
    p->page_size = engine->own.runtime.kv.page_size;
}

/* The tokens of the keys: those of the context for committed positions and for a prompt; for a tree
 * those of the row's ancestors. */
static void name_keys(struct probe *p, const struct ids *context)
{
    if (p->key_layer < 0 || p->n_key == 0) /* a pass in two parts has no keys */
        return;
    p->key_token = xmalloc((size_t)max_int(1, p->n_key) * sizeof *p->key_token);
    for (int i = 0; i < p->n_key; i++)
        p->key_token[i] = p->key_pos[i] < context->n ? context->v[p->key_pos[i]] : -1;
    for (int r = p->share_row; r >= p->row0; r = p->parent[r - p->row0]) {
        int i = p->pos[r - p->row0] - p->key_pos[0];
        if (i >= 0 && i < p->n_key)
            p->key_token[i] = p->token[r - p->row0];
    }
}

/* ---- an armed step --------------------------------------------------------------------------- */

static void disarm(struct engine *engine)
{
    engine->own.armed = (struct probe_ask){0};
}

void probe_step_begins(struct engine *engine)
{
    const struct probe_ask *ask = &engine->own.armed;
    struct err e = {0};
    if (ask->turn != engine->shared.turn || ask->step != engine->shared.step + 1)
        return;
    struct probe_pass *x = xcalloc(1, sizeof *x);
    if (!probe_open(x, &engine->own.runtime.net, &e)) {
        post(engine, ask->turn, ask->step, NULL, e.msg);
        disarm(engine);
        free(x);
        return;
    }
    x->out = xcalloc(1, sizeof(struct probe));
    x->row = ask->row;
    x->key_layer = ask->layer;
    engine->own.probing = x;
    engine->own.runtime.net.probe = x;
}

void probe_step_ended(struct engine *engine, bool ok)
{
    struct probe_pass *x = engine->own.probing;
    if (!x)
        return;
    struct probe *p = x->out;
    engine->own.probing = NULL;
    engine->own.runtime.net.probe = NULL;
    probe_close(x, &engine->own.runtime.net);
    free(x);
    probe_free(engine->own.failed_probe);
    engine->own.failed_probe = NULL;
    if (!ok && p->layer) { /* the step may be tried again */
        engine->own.failed_probe = p;
        return;
    }
    if (!ok) { /* its pass was not launched */
        probe_free(p);
        return;
    }
    describe(engine, p, engine->own.armed.turn, engine->own.armed.step, &engine->own.ses.lane.rec);
    name_keys(p, &engine->own.ses.lane.tok);
    disarm(engine);
    post(engine, p->turn, p->step, p, NULL);
}

void probe_turn_ended(struct engine *engine)
{
    const struct probe_ask *ask = &engine->own.armed;
    char why[80];
    if (ask->turn == 0 || ask->turn > engine->shared.turn)
        return;
    snprintf(why, sizeof why, "turn %d ended after step %d", engine->shared.turn,
             engine->shared.step);
    struct probe *p = engine->own.failed_probe;
    engine->own.failed_probe = NULL;
    if (p)
        describe(engine, p, ask->turn, ask->step, &(struct step_rec){.kind = STEP_DECODE});
    post(engine, ask->turn, ask->step, p, why);
    disarm(engine);
}

/* ---- a past step again ----------------------------------------------------------------------- */

struct again {
    struct engine *g;
    struct runtime *r;
    struct step_rec rec;
    struct tree tree;    /* n <= 1: nothing was drafted */
    struct ids context;  /* of the turn */
    bool unrecorded;     /* the step's logits have no digest yet */
    int n_prompt;
    struct pass pass;    /* plans of the probe, so that /plan shows those of the session */
    struct seq seq;      /* the scratch sequence */
    struct probe_pass x;
    struct probe *out;
};

/* Takes the step in whose middle the turn is paused, and its context, which is the session's. */
static void take_paused(struct again *a, const struct debug_view *v)
{
    a->rec = v->rec;
    a->tree = v->tree;
    a->n_prompt = a->g->own.first;
    a->unrecorded = v->n_token == 0;
    ids_cat(&a->context, a->g->own.ses.lane.tok.v, a->rec.pos0 + 1);
}

/* Takes the step and its context from memory. */
static bool recall_step(struct again *a, int turn, int step, struct err *e)
{
    const struct step_ring *ring = &a->g->shared.ring;
    const struct ring_entry *entry = ring_find(ring, turn, step);
    struct debug_view v;
    if (!entry && debug_verified(&a->g->debug, turn, step, &v)) {
        take_paused(a, &v);
        return true;
    }
    if (!entry)
        return err_set(e, ERR_NEGATIVE, "step %d.%d is not in memory", turn, step);
    a->rec = entry->rec;
    ring_tree(ring, entry, &a->tree);
    return contexts_of(&a->g->shared.contexts, turn, &a->context, &a->n_prompt) ||
           err_set(e, ERR_NEGATIVE, "the tokens of turn %d are not in memory", turn);
}

static void take_past(struct again *a, const struct probe_past *past)
{
    a->rec = past->rec;
    a->tree = past->tree;
    a->n_prompt = past->n_prompt;
    ids_cat(&a->context, past->context.v, past->context.n);
}

/* Whether the step can be run: it fits the engine, and its context has every token that the step
 * needs. The step's facts may come from a log, so they are checked. */
static bool step_fits(struct again *a, const struct probe_ask *ask, struct err *e)
{
    const struct step_rec *r = &a->rec;
    bool prompt = r->kind == STEP_PREFILL, drafted = r->kind == STEP_SPEC;
    int needed = r->pos0 + (prompt ? r->rows : 1), most = prompt ? a->r->max_rows : TREE_MAX;
    bool ok = r->pos0 >= 0 && r->rows >= 1 && r->rows <= most && a->context.n >= needed &&
              needed <= a->r->context && r->accepted >= 0 && r->accepted <= MAX_STEPS;
    for (int i = 0; i < a->context.n && ok; i++)
        ok = a->context.v[i] >= 0 && a->context.v[i] < a->r->model->cfg.vocab;
    if (ok && !prompt && !drafted)
        tree_init(&a->tree, a->context.v[r->pos0]);
    for (int i = 0; i < a->tree.n && ok; i++)
        ok = a->tree.token[i] >= 0 && a->tree.token[i] < a->r->model->cfg.vocab;
    ok = ok && (prompt || (a->tree.n == r->rows && a->tree.token[0] == a->context.v[r->pos0]));
    return ok ||
           err_set(e, ERR_NEGATIVE, "step %d.%d cannot be computed again: its tree or the tokens "
                         "before it are not known", ask->turn, ask->step);
}

static bool find_step(struct again *a, const struct probe_ask *ask, struct err *e)
{
    if (ask->past)
        take_past(a, ask->past);
    return (ask->past || recall_step(a, ask->turn, ask->step, e)) && step_fits(a, ask, e);
}

/* Lists the rows that gave the step's tokens, root first; returns how many there are: one fewer
 * than accepted nodes with the root if the last of them ended the reply. */
static int path_of(const struct again *a, int path[TREE_MAX])
{
    int n = 0, most = step_emits(&a->rec);
    for (int i = 0; i < a->tree.n && n < most; i++)
        if (i == 0 || a->tree.fate[i] == FATE_ACCEPTED)
            path[n++] = i;
    return n;
}

/* Shares the cells of the longest prefix of the context that a resident state of the session
 * holds. */
static void share_cells(struct again *a)
{
    const struct session *s = &a->g->own.ses;
    const struct lane *best = NULL;
    int most = 0;
    for (int i = -1; i < s->n_point + s->n_idle; i++) {
        const struct lane *lane = i < 0             ? &s->lane
                                  : i < s->n_point ? &s->point[i].lane
                                                   : &s->idle[i - s->n_point];
        int n = min_int(lane->seq.committed, a->rec.pos0), same = 0;
        while (same < n && lane->tok.v[same] == a->context.v[same])
            same++;
        if (same > most && kv_can_fork_at(&a->r->kv, &lane->seq, same)) {
            most = same;
            best = lane;
        }
    }
    if (best) {
        pass_lock(&a->r->pass);
        kv_fork_at(&a->r->kv, &best->seq, most, 0, &a->seq);
        pass_unlock(&a->r->pass);
    }
}

static bool stopped(struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "the probe was stopped");
}

/* Runs the target over n rows from the end of the committed cells on. */
static bool run_rows(struct again *a, enum plan_mode mode, const int32_t *token, int n,
                     struct err *e)
{
    struct plan_req req = {.seq = &a->seq, .n = n, .token = token,
                           .tree = mode == PLAN_VERIFY ? &a->tree : NULL};
    if (stop_asked(&a->g->stop))
        return stopped(e);
    pass_lock(&a->r->pass);
    bool ok = kv_reserve(&a->r->kv, &a->seq, a->seq.committed + n, e);
    pass_unlock(&a->r->pass);
    return ok && pass_prepare(&a->pass, mode, &req, 1, e) &&
           (net_forward(&a->r->net, &a->pass.plan[mode], &a->pass.kp, NULL) || stopped(e));
}

/* Computes the cells before the step. */
static bool run_context(struct again *a, struct err *e)
{
    int chunk = min_int(a->g->shared.set.chunk, a->r->max_rows);
    while (a->seq.committed < a->rec.pos0) {
        int from = a->seq.committed, upto = min_int(a->rec.pos0, from + chunk);
        if (from < a->n_prompt)
            upto = min_int(upto, a->n_prompt);
        else
            upto = min_int(upto, from + DECODE_CHUNK);
        if (!run_rows(a, PLAN_EXTEND, a->context.v + from, upto - from, e))
            return false;
        pass_lock(&a->r->pass);
        kv_commit(&a->r->kv, &a->seq, upto);
        kv_release_window(&a->r->kv, &a->seq);
        pass_unlock(&a->r->pass);
    }
    return true;
}

/* The digest of the logits of the step's path, as outcomes have it. */
static uint64_t digest_of(const struct again *a, const int *row, int n)
{
    struct best_logits b = {.rows = n, .k = min_int(DIGEST_BEST, a->r->model->cfg.vocab)};
    CHECK(n <= MAX_STEPS + 1);
    for (int i = 0; i < n; i++) {
        int kept = row[i] - a->out->row0;
        memcpy(b.id + mul64(i, b.k), a->out->best[kept], (size_t)b.k * sizeof *b.id);
        memcpy(b.logp + mul64(i, b.k), a->out->best_logp[kept], (size_t)b.k * sizeof *b.logp);
    }
    return best_digest(&b);
}

/* The logits of the step's rows. */
static bool run_logits(struct again *a, struct err *e)
{
    struct runtime *rt = a->r;
    bool prompt = a->rec.kind == STEP_PREFILL;
    int path[TREE_MAX], n = 1, last = a->rec.rows - 1;
    if (prompt && a->rec.bonus >= 0) {
        int32_t row = last;
        rt->dev.k->put(rt->dev.d, rt->row, &row, sizeof row);
        net_logits(&rt->net, 1, rt->row, rt->logits);
        probe_logits(&rt->net, last, 1, rt->logits, rt->ids, rt->prob);
        path[0] = last;
    } else if (!prompt) {
        net_logits(&rt->net, a->rec.rows, (kbuf){0}, rt->logits);
        probe_logits(&rt->net, 0, a->rec.rows, rt->logits, rt->ids, rt->prob);
        n = path_of(a, path);
    }
    a->out->has_digest = !a->unrecorded && (!prompt || a->rec.bonus >= 0);
    a->out->same = a->out->has_digest && digest_of(a, path, n) == a->rec.logit_digest;
    return rt->dev.k->sync(rt->dev.d, e);
}

static bool run_step(struct again *a, const struct probe_ask *ask, struct err *e)
{
    bool prompt = a->rec.kind == STEP_PREFILL;
    int path[TREE_MAX], n = path_of(a, path), shared = a->seq.committed;
    if (!run_context(a, e))
        return false;
    a->x.out = a->out;
    a->x.row = ask->row >= 0 ? ask->row : prompt ? a->rec.rows - 1 : path[n - 1];
    a->x.key_layer = ask->layer;
    a->r->net.probe = &a->x;
    enum plan_mode mode = prompt          ? PLAN_EXTEND
                          : a->tree.n > 1 ? PLAN_VERIFY
                                          : PLAN_DECODE;
    bool ok = run_rows(a, mode, prompt ? a->context.v + a->rec.pos0 : a->tree.token, a->rec.rows,
                       e) &&
              run_logits(a, e);
    a->r->net.probe = NULL;
    describe(a->g, a->out, ask->turn, ask->step, &a->rec);
    if (ok)
        name_keys(a->out, &a->context);
    a->out->again = true;
    a->out->n_shared = shared;
    return ok;
}

static void show_scratch(struct engine *engine, const struct seq *s)
{
    LOCKED(&engine->shared.mu);
    engine->shared.scratch = s;
}

/* Sets up the passes of the scratch sequence, whose plans and counts are separate from the
 * session's. */
static void open_pass(struct again *a)
{
    const struct pass *of = &a->r->pass;
    pass_init(&a->pass, a->r->dev, &a->r->kv);
    a->pass.opts = of->opts;
    a->pass.check.level = of->check.level;
    a->pass.copy = of->copy;
    a->pass.copy_arg = of->copy_arg;
    a->pass.hold = of->hold;
    a->pass.hold_arg = of->hold_arg;
}

/* Runs the step on a scratch sequence, with these faults, and leaves the pools as they were. */
static bool run_again(struct again *a, const struct probe_ask *ask, const struct bugs *on,
                      struct err *e)
{
    struct engine *engine = a->g;
    struct kv_order order;
    if (!probe_open(&a->x, &a->r->net, e))
        return false;
    engine->own.probed = true;
    open_pass(a);
    a->pass.opts.hook = plan_faults(on);
    a->r->kv.hook = kv_faults(on);
    kv_save_order(&a->r->kv, &order);
    a->r->kv.log.keep = false; /* no turn reports the probe's page events */
    a->seq.holder = HOLDER_BATCH;
    show_scratch(engine, &a->seq);
    share_cells(a);
    bool ok = run_step(a, ask, e);
    pass_lock(&a->r->pass);
    kv_drop(&a->r->kv, &a->seq);
    engine->shared.scratch = NULL;
    struct err leak;
    bool whole = kv_restore_order(&a->r->kv, &order, &leak);
    pass_unlock(&a->r->pass);
    a->r->kv.hook = kv_faults(&a->r->bugs);
    a->r->kv.log.keep = true;
    pass_free(&a->pass);
    probe_close(&a->x, &a->r->net);
    if (!whole) {
        engine_log_pages(engine);
        *e = leak;
    }
    return ok && whole;
}

/* The same with the faults that are on, or if the checker refuses that, without them. */
static bool run_allowed(struct again *a, const struct probe_ask *ask, struct err *e)
{
    static const struct bugs none;
    if (run_again(a, ask, &a->r->bugs, e))
        return true;
    if (e->kind != ERR_INVARIANT || !bugs_any(&a->r->bugs))
        return false;
    struct err other = {0};
    probe_clear(a->out);
    a->seq = (struct seq){0};
    a->x = (struct probe_pass){0};
    if (!run_again(a, ask, &none, &other))
        return false;
    snprintf(a->out->refused, sizeof a->out->refused, "%.199s", e->msg);
    return true;
}

static bool row_there(const struct again *a, const struct probe_ask *ask, struct err *e)
{
    return ask->row < a->rec.rows ||
           err_set(e, ERR_USAGE, "step %d.%d has no row %d: its rows are 0 to %d", ask->turn,
                   ask->step, ask->row, a->rec.rows - 1);
}

void engine_probe(struct engine *engine, const struct probe_ask *ask)
{
    struct err e = {0};
    if (ask->armed) {
        engine->own.armed = *ask;
        return;
    }
    FREED(free_at) struct again *a = xcalloc(1, sizeof *a);
    *a = (struct again){.g = engine, .r = &engine->own.runtime,
                        .out = xcalloc(1, sizeof(struct probe))};
    bool ok = find_step(a, ask, &e) && row_there(a, ask, &e) &&
              run_allowed(a, ask, &e);
    if (!ok) {
        probe_free(a->out);
        a->out = NULL;
    }
    if (!ok && !a->r->dev.k->sync(a->r->dev.d, NULL))
        engine_fault(engine, 0, &e); /* the device is lost */
    post(engine, ask->turn, ask->step, a->out, e.msg);
    ids_free(&a->context);
}

/* ---- the group of views ---------------------------------------------------------------------- */

static bool find_now(const struct engine *engine, const struct probe_ask *ask, struct err *e)
{
    const struct step_ring *r = &engine->shared.ring;
    uint64_t n = r->end - r->first;
    if (n == 0)
        return err_set(e, ERR_NEGATIVE, "there is no step yet: send a message first");
    if (ring_find(r, ask->turn, ask->step))
        return true;
    const struct ring_entry *first = ring_at(r, 0), *last = ring_at(r, n - 1);
    return err_set(e, ERR_NEGATIVE, "step %d.%d is not in memory: the steps %d.%d to %d.%d are",
                   ask->turn, ask->step, first->turn, first->step, last->turn, last->step);
}

static bool probe_ask_local(struct backend *b, const struct probe_ask *ask, struct err *e)
{
    struct engine *engine = engine_of(b);
    struct request rq = {.kind = RQ_PROBE, .probe = *ask};
    struct debug_view v;
    bool paused = debug_verified(&engine->debug, ask->turn, ask->step, &v);
    shared_lock(&engine->shared);
    bool ok = ask->armed || ask->past || paused || find_now(engine, ask, e);
    shared_unlock(&engine->shared);
    if (!ok)
        request_free(&rq);
    return ok && backend_submit(b, &rq, e);
}

const struct probe_ops local_probe = {probe_ask_local};
