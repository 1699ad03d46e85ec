/* what_if.c - see what_if.h. */
#include "engine/thread/what_if.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bugs.h"
#include "engine/thread/internal.h"
#include "engine/what_if.h"

/* ---- what is changed ------------------------------------------------------------------------- */

struct changed {
    struct settings set;
    struct bugs bugs;
    int page_size, window; /* 0: as they are */
};

static bool change_number(const char *name, const char *value, int lo, int hi, int *out,
                          struct err *e)
{
    char *end;
    long n = strtol(value, &end, 10);
    if (end == value || *end || n < lo || n > hi)
        return err_set(e, ERR_USAGE, "%s=%.40s: expected %d to %d", name, value, lo, hi);
    *out = (int)n;
    return true;
}

static bool change(const struct engine *g, struct changed *c, const char *name, const char *value,
                   struct err *e)
{
    if (strncmp(name, "bug.", 4) == 0)
        return bug_set(&c->bugs, name + 4, value, e);
    if (strcmp(name, "page_size") == 0)
        return change_number(name, value, 1, 64, &c->page_size, e) &&
               (!(c->page_size & (c->page_size - 1)) ||
                err_set(e, ERR_USAGE, "page_size=%s: expected 1, 2, 4, 8, 16, 32 or 64", value));
    if (strcmp(name, "window") == 0)
        return g->loaded.model.cfg.window == 0
                   ? err_set(e, ERR_USAGE, "window: the model has no sliding layers")
                   : change_number(name, value, 1, 1 << 20, &c->window, e);
    int i = settings_index(name);
    if (i < 0 || strcmp(settings_at(i)->name, name) != 0 || !settings_at(i)->what_if)
        return err_set(e, ERR_USAGE, "%.40s: expected draft.topk, draft.steps, draft.nodes, "
                                     "draft.shape, draft.window, spec, "
                       "temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty, "
                       "repetition_penalty, logit_bias, seed, check, page_size, window or "
                       "bug.NAME", name);
    return settings_set(&c->set, name, value, e);
}

/* Applies "NAME=VALUE" words, separated by blanks or line ends. */
static bool apply_changes(const struct engine *g, struct changed *c, const char *changes,
                          struct err *e)
{
    char *all = xstrdup(changes), *rest = all;
    bool ok = true;
    int n = 0;
    for (char *word; ok && (word = strtok_r(rest, " \n", &rest)) != NULL; n++) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = '\0';
        ok = value ? change(g, c, word, value, e)
                   : err_set(e, ERR_USAGE, "\"%.40s\": expected NAME=VALUE", word);
    }
    free(all);
    return ok && (n > 0 || err_set(e, ERR_USAGE, "expected NAME=VALUE"));
}

/* Appends the value that a name has in *c. */
static void print_value(const struct engine *g, const struct changed *c, const char *name,
                        struct buf *out)
{
    enum bug b;
    if (strncmp(name, "bug.", 4) == 0 && bug_find(name + 4, &b, NULL))
        buf_str(out, bug_state_name(b, bug_on(&c->bugs, b)));
    else if (strcmp(name, "page_size") == 0)
        buf_printf(out, "%d", c->page_size ? c->page_size : g->own.runtime.kv.page_size);
    else if (strcmp(name, "window") == 0)
        buf_printf(out, "%d", c->window ? c->window : g->loaded.model.cfg.window);
    else
        settings_get(&c->set, name, out);
}

/* The names of the changes with the values that they have in *c: "draft.topk=4 seed=1". */
static void print_values(const struct engine *g, const struct changed *c, const char *changes,
                         struct buf *out)
{
    char *all = xstrdup(changes), *rest = all;
    for (char *word; (word = strtok_r(rest, " \n", &rest)) != NULL;) {
        word[strcspn(word, "=")] = '\0';
        buf_printf(out, "%s%s=", out->n ? " " : "", word);
        print_value(g, c, word, out);
    }
    free(all);
}

static void describe(const struct engine *g, const struct changed *as_is, const struct changed *c,
                     const char *changes, struct what_if *w)
{
    struct buf was = {0}, then = {0};
    print_values(g, as_is, changes, &was);
    print_values(g, c, changes, &then);
    snprintf(w->change, sizeof w->change, "%.230s", changes);
    snprintf(w->was, sizeof w->was, "%.230s", was.p);
    w->same = strcmp(was.p, then.p) == 0;
    buf_free(&was);
    buf_free(&then);
}

bool local_what_if(struct backend *b, const char *changes, struct err *e)
{
    struct engine *g = engine_of(b);
    struct request rq = {.kind = RQ_WHAT_IF, .text = xstrdup(changes)};
    shared_lock(&g->shared);
    struct changed c = {.set = g->shared.set, .bugs = *g->shared.bugs};
    shared_unlock(&g->shared);
    if (debug_may_compare(&g->debug, e) && apply_changes(g, &c, changes, e))
        return backend_submit(b, &rq, e);
    request_free(&rq);
    return false;
}

/* ---- a step that is dropped ------------------------------------------------------------------ */

static struct step_limits limits(const struct engine *g, const struct settings *set)
{
    int done = g->own.ses.lane.tok.n - g->own.first;
    return (struct step_limits){set->max_tokens > 0 ? max_int(1, set->max_tokens - done)
                                                    : INT32_MAX};
}

static void take_step(const struct lane *l, struct what_if_side *s)
{
    s->rec = l->rec;
    s->tree = l->tree;
    s->n_token = l->n_new;
    memcpy(s->token, l->tok.v + l->tok.n - l->n_new, (size_t)l->n_new * sizeof *s->token);
    memcpy(s->fact, l->fact, (size_t)l->n_new * sizeof *s->fact);
}

static void take_error(const struct err *e, struct what_if_side *s)
{
    s->failed = true;
    snprintf(s->why, sizeof s->why, "%.250s", e->msg);
}

/* Runs one cycle of the lane with these settings. seqs: all sequences, for a strict check. */
static void run_step(struct engine *g, struct runtime *r, struct lane *l,
                     const struct settings *set, const struct seq *const *seqs, int n_seq,
                     struct what_if_side *s)
{
    struct tree_shape room;
    struct step_limits lim = limits(g, set);
    struct err e = {0};
    l->how = (struct sampling){(float)set->temperature, set->top_k, (float)set->top_p,
                               (float)set->min_p};
    struct penalties p;
    struct steer steer;
    settings_penalties(set, &p);
    l->steer = steer_set(&steer, &p, g->own.guide, g->own.first);
    l->seed = (uint64_t)set->seed;
    bool ok = lane_step(r, &l, &lim, 1, shapes_peek(g, set, &room), &e);
    l->steer = NULL;
    if (ok)
        take_step(l, s);
    if (ok && set->check == CHECK_STRICT)
        ok = check_sweep(&r->kv, seqs, n_seq, &e);
    if (!ok)
        take_error(&e, s);
}

/* On the session's own pools, which are put back. */
static void run_here(struct engine *g, const struct changed *c, struct what_if_side *s)
{
    struct runtime *r = &g->own.runtime;
    struct session *ses = &g->own.ses;
    struct checker counters = r->pass.check;
    struct bugs on = r->bugs;
    enum plan_mode last = r->pass.last;
    const struct seq *seqs[MAX_SEQS];
    struct kept state;
    keep_state(&state, r, &ses->lane);
    runtime_set(r, &c->set);
    runtime_set_bugs(r, &c->bugs);
    run_step(g, r, &ses->lane, &c->set, seqs, shared_seqs(&g->shared, seqs), s);
    runtime_set_bugs(r, &on);
    runtime_set(r, &g->shared.set);
    keep_restore(&state, r, &ses->lane);
    keep_free(&state);
    shared_lock(&g->shared);
    r->pass.check = counters;
    r->pass.last = last;
    shared_unlock(&g->shared);
}

/* ---- on pools of its own --------------------------------------------------------------------- */

/* Computes the context up to the token before the pending one, and gives the pending token to the
 * lane. */
static bool run_context(struct engine *g, struct runtime *r, struct lane *l,
                        const struct settings *set, struct err *e)
{
    const struct lane *from = &g->own.ses.lane;
    int n = from->tok.n - 1, chunk = min_int(set->chunk, r->max_rows);
    struct tree_shape room = {.topk = 1};
    bool draft = shapes_peek(g, set, &room) != NULL;
    int topk = room.topk;
    *l = (struct lane){.tap_row = -1, .how = from->how, .seed = from->seed,
                       .draws = from->draws - (from->how.temperature > 0),
                       .given = from->tok.v + n, .n_given = 1};
    ids_cat(&l->tok, from->tok.v, n);
    while (l->seq.committed < n) {
        int upto = min_int(l->seq.committed + chunk, n);
        if (!lane_extend(r, l, upto, upto == n, draft, max_int(1, topk), e))
            return false;
    }
    return true;
}

/* The models with another window width. The layers are copied; the weights are shared. */
static struct model with_window(const struct model *m, int window, struct layer **layers)
{
    struct model other = *m;
    size_t bytes = (size_t)m->cfg.n_layer * sizeof *m->layer;
    other.layer = *layers = memcpy(xmalloc(bytes), m->layer, bytes);
    other.cfg.window = window;
    for (int l = 0; l < m->cfg.n_layer; l++)
        if (m->layer[l].window)
            (*layers)[l].window = window;
    return other;
}

static void run_elsewhere(struct engine *g, const struct changed *c, struct what_if *w)
{
    const struct runtime *mine = &g->own.runtime;
    struct loaded other = g->loaded; /* not owned; only the model may differ */
    struct layer *layers = NULL;
    struct what_if_side *s = &w->side[1];
    struct err e = {0};
    struct runtime r;
    struct lane l = {.tap_row = -1};
    const struct seq *seq = &l.seq;
    struct runtime_shape shape = {
        .page_size = c->page_size ? c->page_size : mine->kv.page_size,
        .context = min_int(mine->context, g->own.ses.lane.tok.n + 2 * TREE_MAX),
        .max_rows = mine->max_rows, .kv = g->loaded.dev.kv, .bugs = &c->bugs};
    if (c->window)
        other.model = with_window(&g->loaded.model, c->window, &layers);
    w->other_pools = true;
    w->n_context = g->own.ses.lane.tok.n - 1;
    if (loaded_runtime(&r, &other, &shape, &e)) {
        runtime_set(&r, &c->set);
        r.net.stop = mine->dev.k->queued ? NULL : &g->stop;
        if (run_context(g, &r, &l, &c->set, &e))
            run_step(g, &r, &l, &c->set, &seq, 1, s);
        else
            take_error(&e, s);
        lane_free(&r, &l);
        runtime_close(&r);
    } else {
        take_error(&e, s);
    }
    free(layers);
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Whether the change needs pools and a drafter of its own: another layout, or guesses that the
 * drafter has not made after the step before: more of them, or with another window. */
static bool needs_runtime(const struct engine *g, const struct changed *as_is,
                          const struct changed *c)
{
    bool head = g->own.runtime.drafter && g->own.runtime.drafter->head;
    struct tree_shape now = {0}, then = {0};
    bool drafts = shapes_peek(g, &as_is->set, &now) != NULL;
    shapes_peek(g, &c->set, &then);
    const struct lane *l = &g->own.ses.lane;
    bool guessed = then.topk <= now.topk || l->behind || then.topk <= l->guess.n;
    bool sees = g->own.runtime.kv.has_draft && c->set.draft_window != as_is->set.draft_window;
    return c->page_size || c->window || (head && c->set.spec && (!drafts || !guessed || sees));
}

/* Why there is no next step to compare; NULL: there is. */
static const char *no_step(const struct engine *g)
{
    const struct lane *l = &g->own.ses.lane;
    int most = g->shared.set.max_tokens;
    if (l->seq.committed + 1 < l->tok.n || l->tok.n <= g->own.first)
        return "the next step is a chunk of the prompt; /step to the first cycle of the reply";
    if (l->stopped || l->tok.n >= g->own.runtime.context ||
        (most > 0 && l->tok.n - g->own.first >= most))
        return "the turn ends here: there is no next step";
    return NULL;
}

static void post_answer(struct engine *g, struct what_if *w, const char *why)
{
    struct event ev = engine_event(g, EV_WHAT_IF);
    ev.what_if = w;
    buf_str(&ev.text, why);
    engine_post(g, &ev);
}

void engine_what_if(struct engine *g, const char *changes)
{
    struct err e = {0};
    uint64_t start = clock_ns();
    struct changed as_is = {.set = g->shared.set, .bugs = g->own.runtime.bugs}, c = as_is;
    bool ok = debug_may_compare(&g->debug, &e) && apply_changes(g, &c, changes, &e);
    const char *why = ok ? no_step(g) : e.msg;
    if (why) {
        post_answer(g, NULL, why);
        return;
    }
    struct what_if *w = xcalloc(1, sizeof *w);
    w->turn = g->shared.turn;
    w->step = g->shared.step + 1;
    describe(g, &as_is, &c, changes, w);
    run_here(g, &as_is, &w->side[0]);
    if (needs_runtime(g, &as_is, &c))
        run_elsewhere(g, &c, w);
    else
        run_here(g, &c, &w->side[1]);
    w->ms = (double)(clock_ns() - start) / 1e6;
    post_answer(g, w, "");
}
