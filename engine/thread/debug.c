/* debug.c - see debug.h. */
#include "engine/thread/debug.h"

#include <math.h>
#include <time.h>

#include "engine/thread/internal.h"

void debug_open(struct debugger *debugger, void (*waits)(struct engine *engine))
{
    debugger->forced = -1;
    debugger->waits = waits;
    pthread_mutex_init(&debugger->mu, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&debugger->go, &attr);
    pthread_condattr_destroy(&attr);
}

void debug_close(struct debugger *debugger)
{
    pthread_cond_destroy(&debugger->go);
    pthread_mutex_destroy(&debugger->mu);
}

/* ---- pausing --------------------------------------------------------------------------------- */

/* Blocks the engine's thread until debug_run() ends the pause. A cancel ends it within 50 ms. */
static void wait_for_run(struct engine *engine)
{
    struct debugger *debugger = &engine->debug;
    uint64_t start = clock_ns();
    pthread_mutex_lock(&debugger->mu);
    while (debugger->view.paused && !stop_asked(&engine->stop)) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 50000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&debugger->go, &debugger->mu, &until);
        pthread_mutex_unlock(&debugger->mu);
        debugger->waits(engine);
        pthread_mutex_lock(&debugger->mu);
    }
    debugger->view.paused = false;
    pthread_mutex_unlock(&debugger->mu);
    engine->own.paused_ns += clock_ns() - start;
}

/* Publishes *v (step, phase, reason) and the facts, which must stay, posts EV_PAUSE and blocks
 * until the pause ends. */
static void pause_at(struct engine *engine, const struct debug_view *v, const struct step_facts *s)
{
    struct debugger *debugger = &engine->debug;
    if (stop_asked(&engine->stop))
        return;
    pthread_mutex_lock(&debugger->mu);
    enum run_until until = debugger->until;
    uint64_t pauses = debugger->view.pauses + 1;
    debugger->view = *v;
    debugger->view.pauses = pauses;
    debugger->view.until = until;
    debugger->view.paused = true;
    debugger->facts = *s;
    debugger->breaks.has_condition = false;
    pthread_mutex_unlock(&debugger->mu);
    struct event ev = engine_event(engine, EV_PAUSE);
    ev.step = v->step;
    buf_str(&ev.text, v->why);
    engine_post(engine, &ev);
    wait_for_run(engine);
}

static struct debug_view view_of(const struct engine *engine, int step, enum step_phase phase,
                                 const struct tree *t, const int32_t *token, int n_token)
{
    struct debug_view v = {.turn = engine->shared.turn, .step = step, .phase = phase,
                           .n_token = n_token};
    if (t && t->n > 1)
        v.tree = *t;
    if (n_token)
        memcpy(v.token, token, (size_t)n_token * sizeof *token);
    return v;
}

/* ---- facts of a step ------------------------------------------------------------------------- */

static const char *text_of(void *arg, int32_t id, size_t *n)
{
    return backend_token(arg, id, n);
}

/* The facts that also a step without a commit has: its turn and number, and the pools. */
static struct step_facts facts_now(struct engine *engine, int step)
{
    static const enum fact free_of[N_POOLS] = {FACT_FULL_FREE, FACT_SWA_FREE, FACT_DRAFT_FREE};
    static const enum fact used_of[N_POOLS] = {FACT_FULL_USED, FACT_SWA_USED, FACT_DRAFT_USED};
    struct step_facts s = {.turn = engine->shared.turn, .step = step, .text = text_of,
                           .text_arg = &engine->base};
    for (int i = 0; i < N_FACTS; i++)
        s.fact[i] = NAN;
    s.fact[FACT_TURN] = s.turn;
    s.fact[FACT_LENGTH] = engine->own.ses.lane.tok.n;
    for (int p = 0; p < N_POOLS; p++) {
        const struct pool *pool = &engine->own.runtime.kv.pool[p];
        if (pool->total == 0)
            continue;
        s.fact[free_of[p]] = pool->n_free;
        s.fact[used_of[p]] = pool->total - GUARD_PAGES - pool->n_free;
    }
    return s;
}

static struct step_facts facts_of_step(struct engine *engine)
{
    const struct lane *lane = &engine->own.ses.lane;
    const struct step_rec *rec = &lane->rec;
    struct step_facts s = facts_now(engine, engine->shared.step);
    s.tree = &lane->tree;
    s.token = lane->tok.v + lane->tok.n - lane->n_new;
    s.n_token = lane->n_new;
    expr_record_facts(rec, lane->n_new, lane->seq.committed - rec->pos0,
                      engine->own.runtime.kv.page_size, s.fact);
    s.fact[FACT_FAULT] = 0;
    s.fact[FACT_WINDOW_RELEASE] = engine->own.window_released;
    return s;
}

/* The facts of the step in whose middle the turn is paused; `known`: the target has chosen. */
static struct step_facts facts_so_far(struct engine *engine, const struct debug_view *v, bool known)
{
    struct step_facts s = facts_now(engine, v->step);
    s.tree = &v->tree;
    s.token = v->token;
    s.n_token = v->n_token;
    if (v->verified)
        expr_record_facts(&v->rec, v->n_token, 0, engine->own.runtime.kv.page_size, s.fact);
    else
        s.fact[FACT_DRAFTED] = max_int(v->tree.n - 1, 0);
    if (!known)
        s.fact[FACT_NEW] = NAN;
    s.fact[FACT_PAGE_WRAP] = NAN; /* its cells are not committed */
    return s;
}

/* ---- boundaries ------------------------------------------------------------------------------ */

bool debug_by_phase(struct debugger *debugger)
{
    LOCKED(&debugger->mu);
    return debugger->until == RUN_PHASE;
}

void debug_turn_begins(struct engine *engine)
{
    struct debugger *debugger = &engine->debug;
    pthread_mutex_lock(&debugger->mu);
    bool stop = debugger->until == RUN_PHASE || debugger->until == RUN_STEP ||
                debugger->until == RUN_TURN;
    pthread_mutex_unlock(&debugger->mu);
    if (!stop)
        return;
    struct debug_view v = view_of(engine, 0, WHOLE_STEP, NULL, NULL, 0);
    struct step_facts s = facts_now(engine, 0);
    snprintf(v.why, sizeof v.why, "turn %d begins", v.turn);
    pause_at(engine, &v, &s);
}

void debug_turn_ended(struct engine *engine)
{
    struct debugger *debugger = &engine->debug;
    LOCKED(&debugger->mu);
    if (debugger->until == RUN_FINISH || debugger->until == RUN_BACK)
        debugger->until = RUN_ON;
    debugger->asked = debugger->breaks.has_condition = false;
    breaks_forget(&debugger->breaks);
}

static enum step_phase phase_of(enum cycle_phase p)
{
    return p == CYCLE_DRAFTED    ? PHASE_DRAFT
           : p == CYCLE_VERIFIED ? PHASE_VERIFY
           : p == CYCLE_ACCEPTED ? PHASE_ACCEPT
                                 : PHASE_COMMIT;
}

bool debug_phase_done(struct engine *engine, const struct cycle *c)
{
    if (!debug_by_phase(&engine->debug))
        return !stop_asked(&engine->stop) && !debug_back_asked(engine);
    const struct cycle_lane *x = &c->lane[0];
    bool known = c->phase >= CYCLE_ACCEPTED;
    struct tree tree = x->tree;
    struct step_rec rec = known ? x->out.rec : (struct step_rec){0};
    bool verified = known || (c->phase == CYCLE_VERIFIED &&
                              accept_peek(c->rt, x->lane, 0, x->max_new, &tree, &rec));
    struct debug_view v = view_of(engine, engine->shared.step + 1, phase_of(c->phase), &tree,
                                  x->out.token, known ? x->out.n_new : 0);
    v.verified = verified;
    v.rec = rec;
    int n = snprintf(v.why, sizeof v.why, "step %d.%d after %s", v.turn, v.step,
                     step_phase_name(v.phase));
    if (c->phase == CYCLE_DRAFTED)
        snprintf(v.why + n, sizeof v.why - (size_t)n, ": %d nodes drafted", x->tree.n - 1);
    else if (verified)
        snprintf(v.why + n, sizeof v.why - (size_t)n, ": %d of %d %s", rec.accepted, rec.drafted,
                 known ? "accepted" : "will be accepted");
    struct step_facts s = facts_so_far(engine, &v, known);
    pause_at(engine, &v, &s);
    return !stop_asked(&engine->stop) && !debug_back_asked(engine);
}

/* Whether the debugger is not in use: the usual case, which must cost nothing. */
static bool idle(struct debugger *debugger)
{
    LOCKED(&debugger->mu);
    return !breaks_pause(&debugger->breaks) &&
           (debugger->until == RUN_ON || debugger->until == RUN_FINISH);
}

/* Pauses if the steps asked for are done or a condition holds. While steps run again to go back,
 * conditions are not tested. */
static void consider(struct engine *engine, const struct step_facts *s, const char *what)
{
    struct debugger *debugger = &engine->debug;
    struct debug_view v = view_of(engine, s->step, WHOLE_STEP, s->tree, s->token, s->n_token);
    char why[340] = "", of[32] = "";
    pthread_mutex_lock(&debugger->mu);
    bool stop = debugger->until == RUN_PHASE ||
                (debugger->until == RUN_STEP && --debugger->left <= 0);
    bool past = debugger->until == RUN_FINISH || debugger->until == RUN_TURN;
    if (debugger->until == RUN_BACK && s->step == debugger->target) {
        stop = true;
        debugger->until = RUN_STEP;
    } else if (debugger->until == RUN_BACK) {
        stop = false;
    } else if (breaks_hold(&debugger->breaks, s, past, &v.broke, why, sizeof why)) {
        stop = true;
    }
    if (s->step < debugger->last)
        snprintf(of, sizeof of, " (of %d.%d)", v.turn, debugger->last);
    pthread_mutex_unlock(&debugger->mu);
    if (!stop)
        return;
    snprintf(v.why, sizeof v.why, "%s step %d.%d%s%s%s", what, v.turn, v.step, of,
             *why ? ": " : "", why);
    pause_at(engine, &v, s);
}

void debug_step_done(struct engine *engine)
{
    if (idle(&engine->debug))
        return;
    struct step_facts s = facts_of_step(engine);
    consider(engine, &s, "after");
}

/* ---- tokens by hand -------------------------------------------------------------------------- */

int32_t debug_forced(struct debugger *debugger)
{
    LOCKED(&debugger->mu);
    return debugger->forced;
}

void debug_force(struct debugger *debugger, int32_t id)
{
    LOCKED(&debugger->mu);
    debugger->forced = id;
}

bool debug_verified(struct debugger *debugger, int turn, int step, struct debug_view *v)
{
    LOCKED(&debugger->mu);
    *v = debugger->view;
    return v->paused && v->verified && v->turn == turn && v->step == step;
}

/* The newest committed step of the paused turn. Call it under mu. */
static int stands_at(const struct debugger *debugger)
{
    const struct debug_view *v = &debugger->view;
    return v->phase != WHOLE_STEP && v->phase != PHASE_COMMIT ? v->step - 1 : v->step;
}

bool debug_may_force(struct debugger *debugger, struct err *e)
{
    LOCKED(&debugger->mu);
    if (debugger->turn && !debugger->view.paused)
        return err_set(e, ERR_USAGE, "the turn runs; /step pauses it after its step");
    if (debugger->turn && stands_at(debugger) < debugger->last)
        return err_set(e, ERR_USAGE, "the turn has gone back, and what was said stays as it is: "
                       "/goto %d.%d first", debugger->turn, debugger->last);
    return true;
}

bool debug_may_compare(struct debugger *debugger, struct err *e)
{
    LOCKED(&debugger->mu);
    if (!debugger->turn || !debugger->view.paused)
        return err_set(e, ERR_USAGE, "no turn is paused; /step pauses the next one");
    return debugger->view.phase == WHOLE_STEP ||
           err_set(e, ERR_USAGE, "the turn is paused between two phases; /step or /rstep "
                              "takes it between two steps");
}

/* ---- going back ------------------------------------------------------------------------------ */

bool debug_in_use(struct debugger *debugger)
{
    return !idle(debugger);
}

void debug_set_span(struct debugger *debugger, int turn, int first, int last)
{
    LOCKED(&debugger->mu);
    debugger->turn = turn;
    debugger->first = first;
    debugger->last = last;
}

bool debug_back_asked(struct engine *engine)
{
    struct debugger *debugger = &engine->debug;
    LOCKED(&debugger->mu);
    bool asked = debugger->asked;
    return asked && !stop_asked(&engine->stop);
}

int debug_take_target(struct debugger *debugger)
{
    LOCKED(&debugger->mu);
    int target = debugger->target;
    debugger->asked = false;
    breaks_forget(&debugger->breaks); /* a watch compares with the step before */
    return target;
}

void debug_arrived(struct engine *engine)
{
    struct debugger *debugger = &engine->debug;
    struct debug_view v = view_of(engine, 0, WHOLE_STEP, NULL, NULL, 0);
    struct step_facts s = facts_now(engine, 0);
    if (engine->shared.step > 0) {
        s = facts_of_step(engine);
        v = view_of(engine, s.step, WHOLE_STEP, s.tree, s.token, s.n_token);
    }
    pthread_mutex_lock(&debugger->mu);
    debugger->until = RUN_STEP;
    int n = v.step ? snprintf(v.why, sizeof v.why, "after step %d.%d", v.turn, v.step)
                   : snprintf(v.why, sizeof v.why, "turn %d begins", v.turn);
    if (v.step < debugger->last)
        snprintf(v.why + n, sizeof v.why - (size_t)n, " (of %d.%d)", v.turn, debugger->last);
    pthread_mutex_unlock(&debugger->mu);
    pause_at(engine, &v, &s);
}

void debug_step_failed(struct engine *engine, int step)
{
    if (idle(&engine->debug))
        return;
    struct step_facts s = facts_now(engine, step);
    s.fact[FACT_FAULT] = 1;
    consider(engine, &s, "a rule was violated in");
}
