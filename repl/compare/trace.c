/* trace.c - see trace.h. */
#include "repl/compare/trace.h"

#include "repl/compare/facts.h"

static void free_turn(struct trace_turn *t)
{
    for (int i = 0; i < t->n_step; i++)
        step_row_free(&t->step[i]);
    FREE(t->step, t->settings, t->about, t->user, t->text);
    ids_free(&t->prompt);
    ids_free(&t->reply);
}

/* A session's turn numbers only grow, so a number that was there before begins a fork's own turns:
 * the parent's after the fork are dropped. */
static struct trace_turn *add_turn(struct trace *t, int n)
{
    while (t->n && t->turn[t->n - 1].n >= n)
        free_turn(&t->turn[--t->n]);
    struct trace_turn *turn = APPEND(t->turn, t->n);
    *turn = (struct trace_turn){.n = n, .n_prompt = -1, .n_reply = -1, .stop = STOP_OPEN};
    return turn;
}

static void add_step(struct trace_turn *t, const struct step_row *row)
{
    step_row_copy(APPEND(t->step, t->n_step), row);
}

void trace_clear(struct trace *t)
{
    while (t->n)
        free_turn(&t->turn[--t->n]);
}

void trace_free(struct trace *t)
{
    trace_clear(t);
    free(t->turn);
    *t = (struct trace){0};
}

void trace_act(struct trace *t, const struct act *a)
{
    struct trace_turn *x = add_turn(t, a->user.n);
    x->settings = xstrdup(a->user.sampling ? a->user.sampling : "");
    x->about = xstrdup(a->about ? a->about : "");
    x->user = xstrdup(a->user.text ? a->user.text : "");
    x->text = xstrdup(a->reply.text ? a->reply.text : "");
    if (a->reply.served) {
        x->n_prompt = a->reply.served->prompt;
        x->n_reply = a->reply.served->generated;
    }
    x->n_reused = a->user.n_reused;
    x->evicted = a->user.reuse.limit == LIMIT_EVICTED;
    x->cut = act_cut_short(a) || a->fault;
    snprintf(x->fault, sizeof x->fault, "%.250s", a->fault ? a->fault : "");
    x->rule = a->rule;
    x->fault_step = a->fault_step;
    x->stop = a->reply.stop;
    if (!act_refused(a))
        ids_cat(&x->prompt, a->user.tokens.v, a->user.tokens.n);
    ids_cat(&x->reply, a->reply.tokens.v, a->reply.tokens.n);
    for (int i = 0; i < a->n_step; i++)
        add_step(x, &a->step[i]);
}

void trace_op(struct trace *t, const struct act *a)
{
    while (a->op == OP_FORK && t->n && t->turn[t->n - 1].n > a->turn)
        free_turn(&t->turn[--t->n]);
}

void trace_script(struct trace *t, const struct script *s)
{
    *t = (struct trace){0};
    FOR_EACH(const struct act, a, s->act, s->n) {
        if (!a->is_turn) {
            trace_op(t, a);
            continue;
        }
        trace_act(t, a);
        struct trace_turn *x = &t->turn[t->n - 1];
        x->no_text = s->no_text;
        x->no_ids = s->no_ids;
        if (s->no_text) /* the message's text is made up */
            set_text(&x->user, "");
    }
}

void trace_begin(struct trace *t, int n, const char *settings, const char *about)
{
    struct trace_turn *x = add_turn(t, n);
    x->settings = xstrdup(settings ? settings : "");
    x->about = xstrdup(about ? about : "");
}

void trace_event(struct trace *t, const struct event *ev)
{
    if (!t->n)
        return;
    struct trace_turn *x = &t->turn[t->n - 1];
    if (ev->kind == EV_TURN_BEGIN) {
        x->prompt.n = 0;
        ids_cat(&x->prompt, ev->tokens.v, ev->tokens.n);
        set_text(&x->user, buf_text(&ev->text));
        x->n_reused = ev->n_reused;
        x->evicted = ev->reuse.limit == LIMIT_EVICTED;
    } else if (ev->kind == EV_STEP) {
        struct step_row row = {.turn = ev->turn, .n = ev->step, .rec = ev->rec,
                               .tokens = ev->tokens,
                               .facts = ev->facts, .tree = ev->tree};
        page_pack(&ev->lengths, ev->pages, ev->n_pages, &row.pages);
        add_step(x, &row);
        buf_free(&row.pages);
    } else if (ev->kind == EV_FAULT) {
        snprintf(x->fault, sizeof x->fault, "%.250s", buf_text(&ev->text));
        x->fault_step = ev->step;
        x->rule = ev->at.rule;
    } else if (ev->kind == EV_TURN_END) {
        x->reply.n = 0;
        ids_cat(&x->reply, ev->tokens.v, ev->tokens.n);
        set_text(&x->text, buf_text(&ev->text));
        x->stop = ev->reason;
        x->cut = ev->reason == STOP_CANCEL || ev->reason == STOP_DEVICE || ev->reason == STOP_FAULT;
    }
}

int trace_step_of(const struct trace_turn *t, int i, int *at)
{
    for (int k = 0; k < t->n_step; k++) {
        if (i < t->step[k].tokens.n) {
            *at = i;
            return k;
        }
        i -= t->step[k].tokens.n;
    }
    return -1;
}

const struct step_row *trace_token(const struct trace_turn *t, int i, int *at)
{
    int k = t ? trace_step_of(t, i, at) : -1;
    return k < 0 ? NULL : &t->step[k];
}

const struct token_fact *trace_fact(const struct trace_turn *t, int i, int *step)
{
    int at;
    const struct step_row *s = trace_token(t, i, &at);
    if (step)
        *step = s ? s->n : 0;
    return s && s->facts ? &s->facts[at] : NULL;
}

int trace_emitted(const struct trace_turn *t)
{
    int n = 0;
    for (int k = 0; k < t->n_step; k++)
        n += t->step[k].tokens.n;
    return n;
}

void trace_drafts(const struct trace *t, struct draft_sums *s)
{
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->turn[i].n_step; k++) {
            const struct step_row *r = &t->turn[i].step[k];
            draft_sums_add(s, &r->rec, r->tree ? tree_depth(r->tree) : r->rec.drafted);
        }
}

bool trace_served(const struct trace *t)
{
    return ANY(i, t->n, facts_served(t->turn[i].about));
}
