/* step.c - steps by their address: of the paused turn, from memory, else from the log. */
#include <math.h>

#include "repl/repl.h"
#include "repl/recorded/recorded.h"

bool arg_step(const struct app *a, const char *s, int *turn, int *step, int *third, struct err *e)
{
    int t = a->turn, n = 0, x = -1;
    const char *at = s;
    bool ok = strspn(s, "0123456789.") == strlen(s);
    if (!strchr(s, '.'))
        ok = ok && int_at(&at, &n);
    else
        ok = ok && address_at(&at, &t, &n) && (*at != '.' || (third && (at++, int_at(&at, &x))));
    if (!ok || *at || t < 1 || n < 1)
        return err_set(e, ERR_USAGE, "a step is written TURN.STEP, for example 9.214, or STEP of "
                       "this turn, not \"%.40s\"", s);
    *turn = t;
    *step = n;
    if (third)
        *third = x;
    return true;
}

/* ---- the paused turn ------------------------------------------------------------------------- */

uint64_t app_paused(const struct app *a)
{
    struct debug_view v;
    if (!a->backend || !backend_has(a->backend, VIEW_DEBUG))
        return 0;
    a->backend->debug->view(a->backend, &v);
    return v.paused ? v.pauses : 0;
}

/* The step in whose middle a turn is paused, as far as it is known. */
static void view_of_pause(const struct debug_view *d, struct step_view *v)
{
    *v = (struct step_view){
        .turn = d->turn, .step = d->step, .rec = d->rec, .tree = d->tree, .n_token = d->n_token};
    for (int i = 0; i < TREE_MAX; i++)
        v->fact[i] = (struct token_fact){.logp = NAN, .rival_logp = NAN, .rival = -1};
    memcpy(v->token, d->token, (size_t)d->n_token * sizeof *v->token);
    if (!d->verified || (d->forced >= 0 && !d->n_token)) /* a forced token decides */
        v->rec.bonus = -1;
}

bool app_paused_step(struct app *a, struct step_view *v)
{
    struct debug_view d = {0};
    if (app_paused(a))
        a->backend->debug->view(a->backend, &d);
    if (d.paused && d.verified)
        view_of_pause(&d, v);
    return d.paused && d.verified;
}

bool app_paused_in(struct app *a, int turn, int step, struct step_view *v)
{
    return app_paused_step(a, v) && v->turn == turn && v->step == step;
}

bool app_latest_tree(struct app *a, struct step_view *v)
{
    struct debug_view d = {0};
    if (app_paused(a))
        a->backend->debug->view(a->backend, &d);
    if (!d.paused || !d.phase || d.tree.n < 2)
        return a->backend->trees->latest(a->backend, v);
    view_of_pause(&d, v);
    return true;
}

/* ---- the log --------------------------------------------------------------------------------- */

/* A step that drafted, whose tree the log left out. */
static bool is_bare(const struct step_view *v)
{
    return v->rec.drafted > 0 && v->tree.n == 0 && v->rec.source == STEP_COMPUTED;
}

/* "memory holds the steps 3.1 to 9.2" of the session, in a sentence. */
static void held_steps(const struct step_range *held, struct buf *out)
{
    if (held->n)
        buf_printf(out, "memory holds the steps %d.%d to %d.%d", held->first_turn, held->first_step,
                   held->last_turn, held->last_step);
    else
        buf_str(out, "this process has run no step of this session");
}

static bool find_logged(struct app *a, const struct step_range *in_memory, int turn, int step,
                        struct step_view *v, struct err *e)
{
    FREED(buf_free) struct buf held = {0};
    struct err none = {0};
    e = e ? e : &none;
    struct backend *b = app_past(a, turn, step, e);
    bool found = b && b->steps && b->steps->of_step(b, turn, step, v), ok = found && !is_bare(v);
    held_steps(in_memory, &held);
    if (found && !ok)
        err_set(e, ERR_NEGATIVE, "step %d.%d was logged without its tree, and %s; --log-level tree "
                "keeps every tree", turn, step, held.p);
    else if (!ok && b)
        err_set(e, ERR_NEGATIVE, "neither the log nor memory has a step %d.%d; %s", turn, step,
                held.p);
    else if (!ok && e->kind == ERR_NEGATIVE)
        err_set(e, ERR_NEGATIVE, "no step %d.%d: nothing is logged, and %s", turn, step, held.p);
    return ok;
}

bool app_find_step(struct app *a, int turn, int step, struct step_view *v, struct err *e)
{
    struct chat_view chat;
    struct step_range held;
    if (app_paused_in(a, turn, step, v))
        return true;
    if (!app_own_turn(a, turn, e))
        return false;
    backend_chat(a->backend, &chat);
    a->backend->steps->range(a->backend, &held);
    if (!held.n && !chat.turn)
        return err_set(e, ERR_NEGATIVE, "there is no step yet: send a message first");
    if (held.n && (turn > held.last_turn || (turn == held.last_turn && step > held.last_step)))
        return err_set(e, ERR_NEGATIVE, "there is no step %d.%d yet: %d.%d is the newest", turn,
                       step, held.last_turn, held.last_step);
    return a->backend->steps->of_step(a->backend, turn, step, v) ||
           find_logged(a, &held, turn, step, v, e);
}

/* ---- for computing again --------------------------------------------------------------------- */

struct probe_past *app_logged_step(struct app *a, int turn, int step, struct err *e)
{
    struct step_view v;
    struct backend *b = app_past(a, turn, step, e);
    if (!b) {
        if (e->kind == ERR_NEGATIVE)
            err_set(e, ERR_NEGATIVE, "step %d.%d is not in memory, and nothing is logged", turn,
                    step);
        return NULL;
    }
    if (!app_find_step(a, turn, step, &v, e))
        return NULL;
    struct probe_past *past = xcalloc(1, sizeof *past);
    past->rec = v.rec;
    past->tree = v.tree;
    if (recorded_context(b, turn, step, &past->context, &past->n_prompt))
        return past;
    probe_past_free(past);
    return FAILED(NULL, e, ERR_NEGATIVE, "the log does not have the tokens before step %d.%d", turn,
                  step);
}

bool step_drafted(const struct step_view *v, struct err *e)
{
    return v->tree.n > 0 ||
           err_set(e, ERR_NEGATIVE, "step %d.%d did not draft, so it has no tree: it was a %s step",
                   v->turn, v->step, step_kind_name(v->rec.kind));
}

/* Whether the paused turn has gone back before its newest step; then sets the step where it is. */
static bool gone_back(struct app *a, int *turn, int *step)
{
    struct debug_view v;
    if (!backend_has(a->backend, VIEW_DEBUG))
        return false;
    a->backend->debug->view(a->backend, &v);
    *turn = v.turn;
    *step = v.step;
    return v.paused && v.step > 0 && v.step < v.last;
}

bool app_newest_step(struct app *a, struct step_view *v, struct err *e)
{
    struct step_range held;
    int turn, step;
    if (app_address(a, &turn, &step) || gone_back(a, &turn, &step))
        return app_find_step(a, turn, step, v, e);
    if (app_paused_step(a, v))
        return true;
    a->backend->steps->range(a->backend, &held);
    return (held.n && a->backend->steps->of_step(a->backend, held.last_turn, held.last_step, v)) ||
           err_set(e, ERR_NEGATIVE, "there is no step yet: send a message first");
}

/* ---- all steps ------------------------------------------------------------------------------- */

static bool has_tree(const struct step_view *v, void *arg)
{
    *(bool *)arg |= is_bare(v);
    return !is_bare(v);
}

static void visit_memory(struct app *a, bool trees,
                         bool (*fn)(const struct step_view *v, void *arg), void *arg)
{
    FREED(free_at) struct step_info *step = xmalloc(STEPS_KEPT * sizeof *step);
    FREED(free_at) struct step_view *v = xmalloc(sizeof *v);
    int n = a->backend->steps->latest(a->backend, step, STEPS_KEPT);
    bool more = true;
    for (int i = 0; i < n && more; i++) {
        bool later = a->at.turn && (step[i].turn > a->at.turn ||
                                    (step[i].turn == a->at.turn && step[i].step > a->at.step));
        *v = (struct step_view){.turn = step[i].turn, .step = step[i].step, .rec = step[i].rec,
                                 .held = step[i].held};
        if (later)
            break;
        if (!trees || a->backend->steps->of_step(a->backend, step[i].turn, step[i].step, v))
            more = fn(v, arg);
    }
}

/* Passes on the steps whose tokens are of the open model's vocabulary. */
struct own_steps {
    const struct app *app;
    bool (*fn)(const struct step_view *v, void *arg);
    void *arg;
};

static bool own_step(const struct step_view *v, void *arg)
{
    const struct own_steps *o = arg;
    return v->turn <= o->app->foreign || o->fn(v, o->arg);
}

void app_each_step(struct app *a, bool with_trees, bool (*fn)(const struct step_view *v, void *arg),
                   void *arg, char source[STEP_SOURCE])
{
    struct step_range held;
    struct err e;
    char upto[40] = "";
    bool bare = false;
    a->backend->steps->range(a->backend, &held);
    bool whole = held.n && held.first_turn == 1 && held.first_step == 1;
    struct backend *b = whole ? NULL : app_past(a, a->at.turn, a->at.step, &e);
    if (a->at.turn)
        snprintf(upto, sizeof upto, "up to step %d.%d ", a->at.turn, a->at.step);
    if (b && b->steps && with_trees)
        recorded_each(b, a->at.turn, a->at.step, has_tree, &bare);
    bool from_log = b && b->steps && !bare;
    snprintf(source, STEP_SOURCE, "%s%s", upto,
             whole      ? "of this session"
             : from_log ? "of this session, from the log"
             : bare     ? "of the steps in memory (the log has steps without their trees)"
                        : "of the steps in memory (nothing is logged)");
    struct own_steps own = {a, fn, arg};
    if (from_log)
        recorded_each(b, a->at.turn, a->at.step, own_step, &own);
    else
        visit_memory(a, with_trees, fn, arg);
}
