/* views.c - the views of a recording: pages->table, steps->of_step and the others, at its
 * present or after any of its steps. */

#include "repl/compare/facts.h"
#include "repl/recorded/parts.h"

/* ---- steps and trees ------------------------------------------------------------------------- */

static int latest_steps(struct backend *b, struct step_info *out, int max)
{
    const struct recorded *r = recorded_of(b);
    int n = min_int(r->at + 1, max);
    for (int i = 0; i < n; i++) {
        const struct rec_step *s = &r->step[r->at + 1 - n + i];
        out[i] = (struct step_info){s->turn, s->step, s->rec, s->n_token, s->held};
    }
    return n;
}

static void range(struct backend *b, struct step_range *v)
{
    const struct recorded *r = recorded_of(b);
    *v = (struct step_range){.n = (uint64_t)r->n_step};
    if (r->n_step == 0)
        return;
    const struct rec_step *first = &r->step[0], *last = &r->step[r->n_step - 1];
    v->first_turn = first->turn;
    v->first_step = first->step;
    v->last_turn = last->turn;
    v->last_step = last->step;
}

static void fill_step(const struct recorded *r, const struct rec_step *s, struct step_view *v)
{
    *v = (struct step_view){.turn = s->turn, .step = s->step, .rec = s->rec, .held = s->held,
                            .n_token = s->n_token};
    recorded_tree(r, s, &v->tree);
    for (int i = 0; i < s->n_token; i++) {
        v->token[i] = r->token.v[s->token + i];
        v->fact[i] = r->fact[s->token + i];
    }
}

static bool latest_tree(struct backend *b, struct step_view *v)
{
    const struct recorded *r = recorded_of(b);
    for (int i = r->at; i >= 0; i--)
        if (r->step[i].n_node) {
            fill_step(r, &r->step[i], v);
            return true;
        }
    return false;
}

static bool step_of(struct backend *b, int turn, int step, struct step_view *v)
{
    const struct recorded *r = recorded_of(b);
    int i = recorded_find(r, turn, step);
    if (i >= 0)
        fill_step(r, &r->step[i], v);
    return i >= 0;
}

void recorded_each(struct backend *b, int turn, int step,
                   bool (*fn)(const struct step_view *v, void *arg), void *arg)
{
    const struct recorded *r = recorded_of(b);
    FREED(free_at) struct step_view *v = xmalloc(sizeof *v);
    bool more = true;
    for (int i = 0; i < r->n_step && more; i++) {
        const struct rec_step *s = &r->step[i];
        if (turn && (s->turn > turn || (s->turn == turn && s->step > step)))
            break;
        fill_step(r, s, v);
        more = fn(v, arg);
    }
}

bool recorded_context(struct backend *b, int turn, int step, struct ids *out, int *n_prompt)
{
    const struct recorded *r = recorded_of(b);
    int i = recorded_find(r, turn, step), from = out->n;
    if (i < 0 || !contexts_of(&r->contexts, turn, out, n_prompt))
        return false;
    const struct step_rec *rec = &r->step[i].rec;
    int n = rec->kind == STEP_PREFILL ? *n_prompt : rec->pos0 + 1;
    out->n = min_int(out->n, from + n);
    return out->n == from + n;
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Of a step that a server reported, with pages: the violated cell that it is about, as `aerie
 * import` stores kv_canary's lines (repl/cli/import.c). */
static void mark_violation(const struct recorded *r, const struct rec_step *s, struct page_table *t)
{
    struct context_lengths l;
    struct page_event *ev;
    int n;
    if (s->rec.source != STEP_REPORTED || !s->paged ||
        !page_unpack(r->pages.p + s->pages, s[1].pages - s->pages, &l, &ev, &n, NULL))
        return;
    for (int i = 0; i < n; i++)
        if (ev[i].op == PAGE_TAKE) {
            t->at = fault_at(0);
            t->at.pool = ev[i].pool;
            t->at.cell = s->rec.pos0;
            t->violated = true;
        }
    free(ev);
}

static void fill_table(const struct recorded *r, const struct page_history *h, int turn, int step,
                       struct page_table *t)
{
    int i = recorded_find(r, turn, step);
    if (h)
        page_history_table(h, t);
    else
        *t = (struct page_table){.page = xcalloc(1, sizeof *t->page)};
    memcpy(t->session, r->session, sizeof t->session);
    t->turn = turn;
    t->step = step;
    t->capacity = r->base.info.context;
    if (i >= 0)
        mark_violation(r, &r->step[i], t);
}

static void table(struct backend *b, struct page_table *t)
{
    struct recorded *r = recorded_of(b);
    fill_table(r, recorded_fold(r, r->at), r->at_turn, r->at_step, t);
}

/* The pages after a step; NULL and *e: there is no such step, or they were not recorded. */
static const struct page_history *fold_of(struct recorded *r, int turn, int step, struct err *e)
{
    int i = recorded_find(r, turn, step);
    if (i < 0)
        err_set(e, ERR_NEGATIVE, "the recording has no step %d.%d", turn, step);
    else if (!r->step[i].paged)
        err_set(e, ERR_NEGATIVE, "the pages of step %d.%d were not recorded", turn, step);
    return recorded_fold(r, i);
}

static bool table_at(struct backend *b, int turn, int step, struct page_table *t, struct err *e)
{
    struct recorded *r = recorded_of(b);
    const struct page_history *h = fold_of(r, turn, step, e);
    *t = (struct page_table){0};
    if (h)
        fill_table(r, h, turn, step, t);
    return h != NULL;
}

static bool position_in(const struct recorded *r, const struct page_history *h, int turn,
                        int position, struct pos_view *v, struct err *e)
{
    FREED(ids_free) struct ids context = {0};
    int n_prompt;
    int32_t token = -1;
    if (contexts_of(&r->contexts, turn, &context, &n_prompt) && position >= 0 &&
        position < context.n)
        token = context.v[position];
    return page_history_position(h, position, token, v, e);
}

static bool position_at(struct backend *b, int turn, int step, int position, struct pos_view *v,
                        struct err *e)
{
    struct recorded *r = recorded_of(b);
    const struct page_history *h = fold_of(r, turn, step, e);
    return h && position_in(r, h, turn, position, v, e);
}

/* At the beginning of a turn, the context is still that after the last step before it. */
static bool position(struct backend *b, int at, struct pos_view *v, struct err *e)
{
    struct recorded *r = recorded_of(b);
    const struct page_history *h = recorded_fold(r, r->at);
    if (r->at < 0)
        return err_set(e, ERR_USAGE, "the context is empty: the recording's first step is still to "
                                     "come");
    if (!h)
        return err_set(e, ERR_NEGATIVE, "the pages of step %d.%d were not recorded",
                       r->step[r->at].turn, r->step[r->at].step);
    return position_in(r, h, r->step[r->at].turn, at, v, e);
}

static int page_events(struct backend *b, int turn, int step, enum pool_id pool, int page,
                       struct page_change *out, int max, bool *whole)
{
    const struct recorded *r = recorded_of(b);
    struct page_walk w = {.pool = pool, .page = page, .out = out, .max = max};
    for (int i = turn ? recorded_find(r, turn, step) : r->at; i >= 0 && !w.over; i--) {
        const struct rec_step *s = &r->step[i];
        if (s->paged)
            page_walk_packed(&w, s->turn, s->step, r->pages.p + s->pages, s[1].pages - s->pages);
        else
            w.over = true; /* unknown from here on back */
    }
    page_walk_end(&w);
    *whole = true;
    return w.n;
}

static void ledger(struct backend *b, struct pool_view pool[N_POOLS])
{
    FREED(page_table_free) struct page_table t = {0};
    table(b, &t);
    memcpy(pool, t.pool, sizeof t.pool);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void faults_on(struct backend *b, struct bugs *on)
{
    const struct recorded *r = recorded_of(b);
    const struct rec_turn *t = recorded_turn(r, r->at_turn);
    *on = (struct bugs){0};
    for (int i = 0; t && i < N_BUGS; i++) {
        char name[24];
        snprintf(name, sizeof name, "bug.%d", bug_at((enum bug)i)->number);
        FREED(free_at) char *value = facts_value(t->settings, name);
        if (value)
            bug_set(on, name + 4, value, NULL);
    }
}

/* ---- the groups ------------------------------------------------------------------------------ */

void recorded_views(struct recorded *r)
{
    static const struct steps_ops steps = {.latest = latest_steps, .range = range,
                                           .of_step = step_of};
    static const struct trees_ops trees = {.latest = latest_tree};
    static const struct pools_ops pools = {.ledger = ledger};
    static const struct pages_ops pages = {.table = table, .position = position,
                                           .events = page_events,
                                           .table_at = table_at, .position_at = position_at};
    static const struct faults_ops faults = {.on = faults_on};
    static const char no_engine[] = "a recorded session has no engine: aerie --session goes on "
                                    "with it";
    static const char no_steps[] = "the log of this session has no steps: the log level was text";
    static const char no_pages[] =
        "the log of this session has no page events: its log level was below tree, "
        "or its aerie older";
    struct backend *b = &r->base;
    b->steps = r->n_step ? &steps : NULL;
    b->trees = r->n_step ? &trees : NULL;
    b->pools = r->any_pages ? &pools : NULL;
    b->pages = r->any_pages ? &pages : NULL;
    b->faults = &faults;
    b->debug = r->n_step ? &recorded_debug : NULL;
    b->lacks[VIEW_BLOCKS] = "KV events are not saved: they show a server as it is now";
    b->lacks[VIEW_GAUGES] = "only a server that is connected has metrics over time";
    b->lacks[VIEW_PLAN] = b->lacks[VIEW_CHECK] = b->lacks[VIEW_PROBE] = b->lacks[VIEW_JOBS] =
        no_engine;
    if (!r->n_step)
        b->lacks[VIEW_STEPS] = b->lacks[VIEW_TREES] = b->lacks[VIEW_ACCEPT] = b->lacks[VIEW_DEBUG] =
            no_steps;
    if (!r->any_pages)
        b->lacks[VIEW_POOLS] = b->lacks[VIEW_PAGES] = no_pages;
}
