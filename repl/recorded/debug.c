/* debug.c - the debugger's requests on a recording: they move its present from step to step,
 * with the same commands and conditions as a live engine. */
#include <math.h>

#include "repl/recorded/parts.h"

/* ---- facts of a recorded step ---------------------------------------------------------------- */

static const char *text_of(void *arg, int32_t id, size_t *n)
{
    return backend_token(arg, id, n);
}

static void pool_facts(const struct page_history *h, struct step_facts *f)
{
    static const enum fact free_of[N_POOLS] = {FACT_FULL_FREE, FACT_SWA_FREE, FACT_DRAFT_FREE};
    static const enum fact used_of[N_POOLS] = {FACT_FULL_USED, FACT_SWA_USED, FACT_DRAFT_USED};
    for (int p = 0; p < N_POOLS; p++) {
        const struct page_fold *pool = &h->pool[p];
        if (pool->total == 0)
            continue;
        f->fact[used_of[p]] = pool->used;
        f->fact[free_of[p]] = pool->total - 1 - pool->used;
    }
}

/* Whether a condition names node.*. If not, the step's tree is not unpacked, which is most of the
 * work. */
static bool names_nodes(const struct breaks *b)
{
    bool any = b->has_condition && b->condition.nodes;
    for (int i = 0; i < b->n; i++)
        any |= b->at[i].when.nodes;
    return any;
}

/* *t holds the tree and must outlive the facts. */
static struct step_facts facts_of(struct recorded *r, int i, bool nodes, struct tree *t)
{
    const struct rec_step *s = &r->step[i];
    const struct step_rec *rec = &s->rec;
    struct step_facts f = {.turn = s->turn, .step = s->step, .text = text_of, .text_arg = &r->base,
                           .token = r->token.v + s->token, .n_token = s->n_token};
    for (int k = 0; k < N_FACTS; k++)
        f.fact[k] = NAN;
    if (nodes)
        recorded_tree(r, s, t);
    f.tree = nodes ? t : NULL;
    f.fact[FACT_TURN] = s->turn;
    f.fact[FACT_FAULT] = 0;
    expr_record_facts(rec, s->n_token, rec->kind == STEP_PREFILL ? rec->rows : s->n_token,
                      max_int(1, r->base.info.page_size), f.fact);
    const struct page_history *h = recorded_fold(r, i);
    if (h) {
        f.fact[FACT_LENGTH] = h->lengths.length;
        f.fact[FACT_WINDOW_RELEASE] = s->window;
        pool_facts(h, &f);
    }
    return f;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Moves the present, and posts why the debugger pauses there. */
static void arrive(struct recorded *r, int at, int turn, int step, const char *why)
{
    recorded_place(r, at, turn, step);
    r->broke = false;
    if (step)
        snprintf(r->why, sizeof r->why, "after step %d.%d%s%.330s", turn, step, *why ? ": " : "",
                 why);
    else
        snprintf(r->why, sizeof r->why, "turn %d begins", turn);
    recorded_pause(r);
}

static bool at_the_end(const struct recorded *r, struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "the recording ends here, after step %d.%d; "
                                    "/goto and /rstep go back",
                   r->step[r->n_step - 1].turn, r->step[r->n_step - 1].step);
}

/* Steps on from the present: to the step after which `until` or a condition asks for a pause, or to
 * the last one. */
static bool run_steps(struct recorded *r, enum run_until until, int steps, struct err *e)
{
    int last = r->n_step - 1;
    const struct rec_turn *t = recorded_turn(r, r->at_turn);
    if (until == RUN_FINISH && t)
        last = min_int(last, t->first + t->n_step - 1);
    if (r->at >= r->n_step - 1)
        return at_the_end(r, e);
    bool testing = breaks_pause(&r->breaks), nodes = names_nodes(&r->breaks);
    for (int i = r->at + 1; i <= last; i++) {
        struct tree tree;
        char why[340] = "";
        bool holds = false, broke = false;
        if (testing) {
            struct step_facts f = facts_of(r, i, nodes, &tree);
            holds = breaks_hold(&r->breaks, &f, until == RUN_FINISH, &broke, why, sizeof why);
        }
        bool done = until == RUN_STEP && --steps <= 0;
        if (holds || done || i == last) {
            const char *end = until == RUN_ON && !holds ? "the recording ends here" : why;
            r->breaks.has_condition = false;
            arrive(r, i, r->step[i].turn, r->step[i].step, end);
            r->broke = broke;
            return true;
        }
    }
    return at_the_end(r, e); /* the end of the turn, not of the recording */
}

/* Moves to the beginning of the next turn. */
static bool next_turn(struct recorded *r, struct err *e)
{
    for (int i = 0; i < r->n_turn; i++)
        if (r->turn[i].n > r->at_turn) {
            arrive(r, r->turn[i].first - 1, r->turn[i].n, 0, "");
            return true;
        }
    return err_set(e, ERR_NEGATIVE, "turn %d is the recording's last", r->at_turn);
}

static bool run_recording(struct backend *b, enum run_until until, int steps,
                          const char *condition, struct err *e)
{
    struct recorded *r = recorded_of(b);
    if (until == RUN_PHASE)
        return err_set(e, ERR_NEGATIVE, "a recording keeps no phases: /step goes on by a whole "
                                        "step");
    if (condition && !expr_parse_condition(&r->breaks.condition, condition, e))
        return false;
    r->breaks.has_condition = condition != NULL;
    r->until = until;
    return until == RUN_TURN ? next_turn(r, e) : run_steps(r, until, steps, e);
}

static bool go_to_step(struct backend *b, int turn, int step, struct err *e)
{
    struct recorded *r = recorded_of(b);
    if (!recorded_seek(b, turn, step, e))
        return false;
    /* the step that watches saw last is not the one before the present */
    breaks_forget(&r->breaks);
    arrive(r, r->at, r->at_turn, r->at_step, "");
    return true;
}

/* ---- the view -------------------------------------------------------------------------------- */

static void view(struct backend *b, struct debug_view *v)
{
    struct recorded *r = recorded_of(b);
    *v = (struct debug_view){.until = r->until, .paused = true, .pauses = r->pauses,
                             .turn = r->at_turn,
                             .step = r->at_step};
    v->broke = r->broke;
    if (r->why[0])
        memcpy(v->why, r->why, sizeof v->why);
    else
        snprintf(v->why, sizeof v->why, "after step %d.%d%s", r->at_turn, r->at_step,
                 r->at == r->n_step - 1 ? ": the recording ends here" : "");
    const struct rec_turn *t = recorded_turn(r, r->at_turn);
    v->last = t ? t->n_step : 0;
    if (r->at_step && r->at >= 0) {
        const struct rec_step *s = &r->step[r->at];
        recorded_tree(r, s, &v->tree);
        v->n_token = s->n_token;
        for (int i = 0; i < v->n_token; i++)
            v->token[i] = r->token.v[s->token + i];
    }
    struct tree tree;
    struct step_facts f;
    bool here = r->breaks.n && r->at_step && r->at >= 0;
    if (here)
        f = facts_of(r, r->at, true, &tree);
    v->n_break = r->breaks.n;
    breaks_about(&r->breaks, here ? &f : NULL, v->at);
}

static int add_break(struct backend *b, const char *expr, enum break_kind kind, struct err *e)
{
    return breaks_add(&recorded_of(b)->breaks, expr, kind, e);
}

static bool remove_break(struct backend *b, int number, struct err *e)
{
    return breaks_remove(&recorded_of(b)->breaks, number, e);
}

const struct debug_ops recorded_debug = {.view = view, .run = run_recording, .back = go_to_step,
                                         .add = add_break,
                                         .remove = remove_break, .name = expr_name};
