/* step.c - steps by their address: from memory, else from the log. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "repl/cmd/cmd.h"

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
        return err_set(e, ERR_USAGE,
                       "a step is written TURN.STEP, for example 9.214, or STEP of this "
                       "turn, not \"%.40s\"", s);
    *turn = t;
    *step = n;
    if (third)
        *third = x;
    return true;
}

/* ---- the log --------------------------------------------------------------------------------- */

static void view_of_row(const struct step_row *r, struct step_view *v)
{
    *v = (struct step_view){.turn = r->turn, .step = r->n, .rec = r->rec};
    if (r->tree)
        v->tree = *r->tree;
    v->n_token = min_int(r->tokens.n, TREE_MAX);
    for (int i = 0; i < v->n_token; i++) {
        v->token[i] = r->tokens.v[i];
        v->fact[i] = r->facts ? r->facts[i]
                              : (struct token_fact){.logp = NAN, .rival_logp = NAN, .rival = -1};
    }
}

struct wanted {
    int step;
    bool found;
    struct step_view *v;
    struct tops *tops; /* a copy, or NULL */
};

static bool take_row(const struct step_row *r, void *arg)
{
    struct wanted *w = arg;
    if (r->n != w->step)
        return true;
    w->found = true;
    view_of_row(r, w->v);
    w->tops = tops_copy(r->tops);
    return false;
}

/* The session whose log holds the turn: turns before a fork are in the log of a parent. */
static const struct past_part *part_of(const struct hdb_past *p, int turn)
{
    for (int i = 0; i < p->n_part - 1; i++)
        if (turn <= p->part[i].upto)
            return &p->part[i];
    return &p->part[p->n_part - 1];
}

/* Reads the step from the log; false and *e: the log cannot be read. */
static bool read_step(struct app *a, int turn, struct wanted *w, struct err *e)
{
    struct hdb_past p;
    struct hdb *d = app_hdb(a, e);
    if (!d || !hdb_past(d, a->session, INT_MAX, &p, e))
        return false;
    bool ok = hdb_steps(d, part_of(&p, turn)->session, turn, take_row, w, e) >= 0;
    hdb_past_free(&p);
    return ok;
}

struct tops *app_logged_tops(struct app *a, int turn, int step)
{
    struct step_view v;
    struct wanted w = {.step = step, .v = &v};
    struct err e;
    if (a->history && !a->private_)
        read_step(a, turn, &w, &e);
    return w.tops;
}

/* "memory holds the steps 3.1 to 9.2" of the session, in a sentence. */
static void held_steps(const struct step_range *held, struct buf *out)
{
    if (held->n)
        buf_printf(out, "memory holds the steps %d.%d to %d.%d", held->first_turn, held->first_step,
                   held->last_turn, held->last_step);
    else
        buf_str(out, "this process has run no step of it");
}

static bool find_logged(struct app *a, const struct step_range *in_memory, int turn, int step,
                        struct step_view *v, struct err *e)
{
    struct buf held = {0};
    struct wanted w = {.step = step, .v = v};
    bool logged = a->history && !a->private_, ok = false;
    held_steps(in_memory, &held);
    if (logged && !read_step(a, turn, &w, e))
        ;
    else if (w.found && v->rec.drafted > 0 && v->tree.n == 0 && v->rec.source == STEP_COMPUTED)
        err_set(e, ERR_NEGATIVE, "step %d.%d was logged without its tree, and %s; --log-level tree "
                "keeps every tree", turn, step, held.p);
    else if (w.found)
        ok = true;
    else if (logged)
        err_set(e, ERR_NEGATIVE, "neither the log nor memory has a step %d.%d; %s", turn, step,
                held.p);
    else
        err_set(e, ERR_NEGATIVE, "no step %d.%d: nothing is logged, and %s", turn, step, held.p);
    buf_free(&held);
    tops_free(w.tops);
    return ok;
}

bool app_find_step(struct app *a, int turn, int step, struct step_view *v, struct err *e)
{
    struct chat_view chat;
    struct step_range held;
    if (app_paused_in(a, turn, step, v))
        return true;
    backend_chat(a->backend, &chat);
    a->backend->steps->range(a->backend, &held);
    if (!held.n && !chat.turn)
        return err_set(e, ERR_NEGATIVE, "there is no step yet: send a message first");
    if (held.n &&
        (turn > held.last_turn || (turn == held.last_turn && step > held.last_step)))
        return err_set(e, ERR_NEGATIVE, "there is no step %d.%d yet: %d.%d is the newest", turn,
                       step, held.last_turn, held.last_step);
    return a->backend->steps->of_step(a->backend, turn, step, v) ||
           find_logged(a, &held, turn, step, v, e);
}

/* ---- for computing again --------------------------------------------------------------------- */

struct collected {
    struct probe_past *past;
    int step;
};

static bool take_prompt(const struct turn_row *r, void *arg)
{
    struct collected *c = arg;
    if (!r->is_user)
        return true;
    ids_cat(&c->past->context, r->tokens.v, r->tokens.n);
    c->past->n_prompt = r->tokens.n;
    return false;
}

static bool take_tokens(const struct step_row *r, void *arg)
{
    struct collected *c = arg;
    if (r->n < c->step)
        ids_cat(&c->past->context, r->tokens.v, r->tokens.n);
    return r->n < c->step;
}

struct probe_past *app_logged_step(struct app *a, int turn, int step, struct err *e)
{
    struct step_view v;
    struct hdb_past p;
    if (!a->history || a->private_) {
        err_set(e, ERR_NEGATIVE, "step %d.%d is not in memory, and nothing is logged", turn, step);
        return NULL;
    }
    struct hdb *d = app_hdb(a, e);
    if (!app_find_step(a, turn, step, &v, e) || !d || !hdb_past(d, a->session, INT_MAX, &p, e))
        return NULL;
    struct collected c = {xcalloc(1, sizeof *c.past), step};
    const char *session = part_of(&p, turn)->session;
    c.past->rec = v.rec;
    c.past->tree = v.tree;
    bool ok = hdb_turns(d, session, turn, take_prompt, &c, e) >= 0 &&
              hdb_steps(d, session, turn, take_tokens, &c, e) >= 0;
    hdb_past_free(&p);
    if (ok)
        return c.past;
    probe_past_free(c.past);
    return NULL;
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

struct visit {
    bool (*fn)(const struct step_view *v, void *arg);
    void *arg;
    int upto;      /* turns of a parent session after its fork do not belong to this one */
    bool trees;
    bool bare;     /* a step that drafted was logged without its tree */
    bool over;     /* fn has returned false */
    struct step_view view;
};

static bool visit_row(const struct step_row *r, void *arg)
{
    struct visit *x = arg;
    if (r->turn > x->upto)
        return false;
    view_of_row(r, &x->view);
    x->bare |= x->trees && r->rec.drafted > 0 && !r->tree && r->rec.source == STEP_COMPUTED;
    if (!x->bare && x->fn)
        x->over = !x->fn(&x->view, x->arg);
    return !x->bare && !x->over;
}

static bool visit_log(struct app *a, struct visit *x, struct err *e)
{
    struct hdb_past p;
    struct hdb *d = app_hdb(a, e);
    if (!d || !hdb_past(d, a->session, INT_MAX, &p, e))
        return false;
    bool ok = true;
    for (int i = 0; i < p.n_part && ok && !x->over && !x->bare; i++) {
        x->upto = i + 1 < p.n_part ? p.part[i].upto : INT_MAX;
        ok = hdb_steps(d, p.part[i].session, 0, visit_row, x, e) >= 0;
    }
    hdb_past_free(&p);
    return ok;
}

static void visit_memory(struct app *a, struct visit *x)
{
    struct step_info *step = xmalloc(STEPS_KEPT * sizeof *step);
    int n = a->backend->steps->latest(a->backend, step, STEPS_KEPT);
    for (int i = 0; i < n && !x->over; i++) {
        x->view = (struct step_view){.turn = step[i].turn, .step = step[i].step,
                                     .rec = step[i].rec};
        if (!x->trees ||
            a->backend->steps->of_step(a->backend, step[i].turn, step[i].step, &x->view))
            x->over = !x->fn(&x->view, x->arg);
    }
    free(step);
}

bool app_each_step(struct app *a, bool with_trees, bool (*fn)(const struct step_view *v, void *arg),
                   void *arg, const char **source, struct err *e)
{
    struct visit x = {.fn = fn, .arg = arg, .trees = with_trees};
    struct step_range held;
    bool logged = a->history && !a->private_;
    a->backend->steps->range(a->backend, &held);
    *source = "of this session";
    if (held.n && held.first_turn == 1 && held.first_step == 1) {
        visit_memory(a, &x);
        return true;
    }
    /* checked first, because fn must not see a step twice: are all trees logged? */
    if (logged && with_trees) {
        x.fn = NULL;
        if (!visit_log(a, &x, e))
            return false;
        x.fn = fn;
    }
    *source = "of this session, from the log";
    if (logged && !x.bare)
        return visit_log(a, &x, e);
    *source = logged ? "of the steps in memory (the log has steps without their trees)"
                     : "of the steps in memory (nothing is logged)";
    visit_memory(a, &x);
    return true;
}
