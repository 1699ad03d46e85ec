/* what_if.c - see what_if.h. */
#include "engine/thread/what_if.h"

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

static bool change(const struct engine *engine, struct changed *c, const char *name,
                   const char *value, struct err *e)
{
    if (strncmp(name, "bug.", 4) == 0)
        return bug_set(&c->bugs, name + 4, value, e);
    if (strcmp(name, "page_size") == 0)
        return change_number(name, value, 1, 64, &c->page_size, e) &&
               (!(c->page_size & (c->page_size - 1)) ||
                err_set(e, ERR_USAGE, "page_size=%s: expected 1, 2, 4, 8, 16, 32 or 64", value));
    if (strcmp(name, "window") == 0)
        return engine->loaded.model.cfg.window == 0
                   ? err_set(e, ERR_USAGE, "window: the model has no sliding layers")
                   : change_number(name, value, 1, 1 << 20, &c->window, e);
    const struct option *setting = settings_named(name);
    if (!setting || !setting->what_if)
        return err_set(e, ERR_USAGE, "%.40s: expected draft.topk, draft.steps, draft.nodes, "
                                     "draft.shape, draft.window, spec, temperature, top_k, top_p, "
                                     "min_p, presence_penalty, frequency_penalty, "
                                     "repetition_penalty, logit_bias, seed, check, page_size, "
                                     "window or bug.NAME", name);
    return settings_set(&c->set, name, value, e) &&
           settings_fit(&c->set, engine->loaded.model.cfg.vocab, e);
}

/* Applies "NAME=VALUE" words, separated by blanks or line ends. */
static bool apply_changes(const struct engine *engine, struct changed *c, const char *changes,
                          struct err *e)
{
    char *all = xstrdup(changes), *rest = all;
    bool ok = true;
    int n = 0;
    for (char *word; ok && (word = strtok_r(rest, " \n", &rest)) != NULL; n++) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = '\0';
        ok = value ? change(engine, c, word, value, e)
                   : err_set(e, ERR_USAGE, "\"%.40s\": expected NAME=VALUE", word);
    }
    free(all);
    return ok && (n > 0 || err_set(e, ERR_USAGE, "expected NAME=VALUE"));
}

/* Appends the value that a name has in *c. */
static void print_value(const struct engine *engine, const struct changed *c, const char *name,
                        struct buf *out)
{
    enum bug b;
    if (strncmp(name, "bug.", 4) == 0 && bug_find(name + 4, &b, NULL))
        buf_str(out, bug_state_name(b, bug_on(&c->bugs, b)));
    else if (strcmp(name, "page_size") == 0)
        buf_printf(out, "%d", c->page_size ? c->page_size : engine->own.runtime.kv.page_size);
    else if (strcmp(name, "window") == 0)
        buf_printf(out, "%d", c->window ? c->window : engine->loaded.model.cfg.window);
    else
        settings_get(&c->set, name, out);
}

/* The names of the changes with the values that they have in *c: "draft.topk=4 seed=1". */
static void print_values(const struct engine *engine, const struct changed *c, const char *changes,
                         struct buf *out)
{
    char *all = xstrdup(changes), *rest = all;
    for (char *word; (word = strtok_r(rest, " \n", &rest)) != NULL;) {
        word[strcspn(word, "=")] = '\0';
        buf_printf(out, "%s%s=", out->n ? " " : "", word);
        print_value(engine, c, word, out);
    }
    free(all);
}

static void describe(const struct engine *engine, const struct changed *as_is,
                     const struct changed *c, const char *changes, struct what_if *w)
{
    FREED(buf_free) struct buf was = {0}, then = {0};
    print_values(engine, as_is, changes, &was);
    print_values(engine, c, changes, &then);
    snprintf(w->change, sizeof w->change, "%.230s", changes);
    snprintf(w->was, sizeof w->was, "%.230s", was.p);
    w->same = strcmp(was.p, then.p) == 0;
}

bool local_what_if(struct backend *b, const char *changes, struct err *e)
{
    struct engine *engine = engine_of(b);
    struct request rq = {.kind = RQ_WHAT_IF, .text = xstrdup(changes)};
    shared_lock(&engine->shared);
    struct changed c = {.set = engine->shared.set, .bugs = *engine->shared.bugs};
    shared_unlock(&engine->shared);
    if (debug_may_compare(&engine->debug, e) && apply_changes(engine, &c, changes, e))
        return backend_submit(b, &rq, e);
    request_free(&rq);
    return false;
}

/* ---- a step that is dropped ------------------------------------------------------------------ */

static struct step_limits limits(const struct engine *engine, const struct settings *set)
{
    int done = engine->own.ses.lane.tok.n - engine->own.first;
    return (struct step_limits){set->max_tokens > 0 ? max_int(1, set->max_tokens - done)
                                                    : INT32_MAX};
}

static void take_step(const struct lane *lane, struct what_if_side *s)
{
    s->rec = lane->rec;
    s->tree = lane->tree;
    s->n_token = lane->n_new;
    memcpy(s->token, lane->tok.v + lane->tok.n - lane->n_new,
           (size_t)lane->n_new * sizeof *s->token);
    memcpy(s->fact, lane->fact, (size_t)lane->n_new * sizeof *s->fact);
}

static void take_error(const struct err *e, struct what_if_side *s)
{
    s->failed = true;
    snprintf(s->why, sizeof s->why, "%.250s", e->msg);
}

/* Runs one cycle of the lane with these settings. seqs: all sequences, for a strict check. */
static void run_step(struct engine *engine, struct runtime *rt, struct lane *lane,
                     const struct settings *set, const struct seq *const *seqs, int n_seq,
                     struct what_if_side *s)
{
    struct tree_shape room;
    struct step_limits lim = limits(engine, set);
    struct err e = {0};
    lane->how = (struct sampling){(float)set->temperature, set->top_k, (float)set->top_p,
                                  (float)set->min_p};
    struct penalties p;
    struct steer steer;
    settings_penalties(set, &p);
    lane->steer = steer_set(&steer, &p, engine->own.guide, engine->own.first);
    lane->seed = (uint64_t)set->seed;
    bool ok = lane_step(rt, &lane, &lim, 1, shapes_peek(engine, set, &room), &e);
    lane->steer = NULL;
    if (ok)
        take_step(lane, s);
    if (ok && set->check == CHECK_STRICT)
        ok = check_sweep(&rt->kv, seqs, n_seq, &e);
    if (!ok)
        take_error(&e, s);
}

/* On the session's own pools, which are put back. */
static void run_here(struct engine *engine, const struct changed *c, struct what_if_side *s)
{
    struct runtime *rt = &engine->own.runtime;
    struct session *ses = &engine->own.ses;
    struct checker counters = rt->pass.check;
    struct bugs on = rt->bugs;
    enum plan_mode last = rt->pass.last;
    const struct seq *seqs[MAX_SEQS];
    struct kept state;
    keep_state(&state, rt, &ses->lane);
    runtime_set(rt, &c->set);
    runtime_set_bugs(rt, &c->bugs);
    run_step(engine, rt, &ses->lane, &c->set, seqs, shared_seqs(&engine->shared, seqs), s);
    runtime_set_bugs(rt, &on);
    runtime_set(rt, &engine->shared.set);
    keep_restore(&state, rt, &ses->lane);
    keep_free(&state);
    shared_lock(&engine->shared);
    rt->pass.check = counters;
    rt->pass.last = last;
    shared_unlock(&engine->shared);
}

/* ---- on pools of its own --------------------------------------------------------------------- */

/* Computes the context up to the token before the pending one, and gives the pending token to the
 * lane. */
static bool run_context(struct engine *engine, struct runtime *rt, struct lane *lane,
                        const struct settings *set, struct err *e)
{
    const struct lane *from = &engine->own.ses.lane;
    int n = from->tok.n - 1, chunk = min_int(set->chunk, rt->max_rows);
    struct tree_shape room = {.topk = 1};
    bool draft = shapes_peek(engine, set, &room) != NULL;
    int topk = room.topk;
    *lane = (struct lane){.tap_row = -1, .how = from->how, .seed = from->seed,
                          .draws = from->draws - (from->how.temperature > 0),
                          .given = from->tok.v + n, .n_given = 1};
    ids_cat(&lane->tok, from->tok.v, n);
    while (lane->seq.committed < n) {
        int upto = min_int(lane->seq.committed + chunk, n);
        if (!lane_extend(rt, lane, upto, upto == n, draft, max_int(1, topk), e))
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

static void run_elsewhere(struct engine *engine, const struct changed *c, struct what_if *w)
{
    const struct runtime *mine = &engine->own.runtime;
    struct loaded other = engine->loaded; /* not owned; only the model may differ */
    FREED(free_at) struct layer *layers = NULL;
    struct what_if_side *s = &w->side[1];
    struct err e = {0};
    struct runtime rt;
    struct lane lane = {.tap_row = -1};
    const struct seq *seq = &lane.seq;
    struct runtime_shape shape = {
        .page_size = c->page_size ? c->page_size : mine->kv.page_size,
        .context = min_int(mine->context, engine->own.ses.lane.tok.n + 2 * TREE_MAX),
        .max_rows = mine->max_rows, .kv = engine->loaded.dev.kv, .bugs = &c->bugs};
    if (c->window)
        other.model = with_window(&engine->loaded.model, c->window, &layers);
    w->other_pools = true;
    w->n_context = engine->own.ses.lane.tok.n - 1;
    if (loaded_runtime(&rt, &other, &shape, &e)) {
        runtime_set(&rt, &c->set);
        rt.net.stop = mine->dev.k->queued ? NULL : &engine->stop;
        if (run_context(engine, &rt, &lane, &c->set, &e))
            run_step(engine, &rt, &lane, &c->set, &seq, 1, s);
        else
            take_error(&e, s);
        lane_free(&rt, &lane);
        runtime_close(&rt);
    } else {
        take_error(&e, s);
    }
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Whether the change needs pools and a drafter of its own: another layout, or guesses that the
 * drafter has not made after the step before: more of them, or with another window. */
static bool needs_runtime(const struct engine *engine, const struct changed *as_is,
                          const struct changed *c)
{
    bool head = engine->own.runtime.drafter && engine->own.runtime.drafter->head;
    struct tree_shape now = {0}, then = {0};
    bool drafts = shapes_peek(engine, &as_is->set, &now) != NULL;
    shapes_peek(engine, &c->set, &then);
    const struct lane *lane = &engine->own.ses.lane;
    bool guessed = then.topk <= now.topk || lane->behind || then.topk <= lane->guess.n;
    bool sees = engine->own.runtime.kv.has_draft && c->set.draft_window != as_is->set.draft_window;
    return c->page_size || c->window || (head && c->set.spec && (!drafts || !guessed || sees));
}

/* Why there is no next step to compare; NULL: there is. */
static const char *no_step(const struct engine *engine)
{
    const struct lane *lane = &engine->own.ses.lane;
    int most = engine->shared.set.max_tokens;
    if (lane->seq.committed + 1 < lane->tok.n || lane->tok.n <= engine->own.first)
        return "the next step is a chunk of the prompt; /step to the first cycle of the reply";
    if (lane->stopped || lane->tok.n >= engine->own.runtime.context ||
        (most > 0 && lane->tok.n - engine->own.first >= most))
        return "the turn ends here: there is no next step";
    return NULL;
}

static void post_answer(struct engine *engine, struct what_if *w, const char *why)
{
    struct event ev = engine_event(engine, EV_WHAT_IF);
    ev.what_if = w;
    buf_str(&ev.text, why);
    engine_post(engine, &ev);
}

void engine_what_if(struct engine *engine, const char *changes)
{
    struct err e = {0};
    uint64_t start = clock_ns();
    struct changed as_is = {.set = engine->shared.set, .bugs = engine->own.runtime.bugs}, c = as_is;
    bool ok = debug_may_compare(&engine->debug, &e) && apply_changes(engine, &c, changes, &e);
    const char *why = ok ? no_step(engine) : e.msg;
    if (why) {
        post_answer(engine, NULL, why);
        return;
    }
    struct what_if *w = xcalloc(1, sizeof *w);
    w->turn = engine->shared.turn;
    w->step = engine->shared.step + 1;
    describe(engine, &as_is, &c, changes, w);
    run_here(engine, &as_is, &w->side[0]);
    if (needs_runtime(engine, &as_is, &c))
        run_elsewhere(engine, &c, w);
    else
        run_here(engine, &c, &w->side[1]);
    w->ms = (double)(clock_ns() - start) / 1e6;
    post_answer(engine, w, "");
}
