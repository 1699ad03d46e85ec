/* recording.c - the app over a recording, and the session as it was at the app's address.
 *
 * The engine's memory holds the latest steps of this process; the log holds all of them, as a
 * recording. Both give the same facts of a step: what memory holds is taken from there, so that
 * nothing is read. What memory does not keep for a step (the chat in numbers) comes from the
 * recording. */

#include "repl/recorded/recorded.h"
#include "repl/repl.h"

bool app_recording(const struct app *a)
{
    return a->backend && backend_info(a->backend)->recording;
}

bool app_next(struct app *a, struct event *ev)
{
    if (a->early_next == a->n_early)
        return backend_next(a->backend, ev);
    *ev = a->early[a->early_next++];
    return true;
}

/* ---- the log --------------------------------------------------------------------------------- */

/* The session under which the log has the present one; NULL: it is not logged. */
static const char *logged_as(const struct app *a)
{
    bool written = a->history && !a->private_;
    return written ? a->session : a->past_of[0] ? a->past_of : NULL;
}

static bool before(int turn, int step, int turn2, int step2)
{
    return turn != turn2 ? turn < turn2 : step < step2;
}

bool app_own_turn(const struct app *a, int turn, struct err *e)
{
    return turn == 0 || turn > a->foreign ||
           err_set(e, ERR_NEGATIVE, "turn %d has the tokens of another model; /resume of the "
                   "session before, with that model, shows its steps", turn);
}

struct backend *app_past(struct app *a, int turn, int step, struct err *e)
{
    struct app_past *p = &a->past;
    const char *id = logged_as(a);
    struct chat_view live;
    if (!id)
        return FAILED(NULL, e, ERR_NEGATIVE, "nothing is logged");
    if (!app_own_turn(a, turn, e))
        return NULL;
    backend_chat(a->backend, &live);
    if (turn == 0) {
        turn = live.turn;
        step = live.step;
    }
    if (strcmp(p->session, a->session) != 0 || before(p->turn, p->step, turn, step)) {
        app_drop_past(a);
        *p = (struct app_past){.turn = turn, .step = step};
        memcpy(p->session, a->session, sizeof p->session);
        struct hdb *d = app_hdb(a, e);
        p->b = d ? recorded_open(d, id, id, false, e) : NULL;
        struct step_range r = {0};
        if (p->b && p->b->steps)
            p->b->steps->range(p->b, &r);
        if (before(p->turn, p->step, r.last_turn, r.last_step)) {
            p->turn = r.last_turn;
            p->step = r.last_step;
        }
    } else if (!p->b) {
        err_set(e, ERR_NEGATIVE, "the log does not hold this session");
    }
    return p->b;
}

struct backend *app_past_events(struct app *a)
{
    struct err e;
    struct backend *b = a->resumed && !a->foreign ? app_past(a, 0, 0, &e) : NULL;
    if (b)
        recorded_rewind(b);
    return b;
}

void app_drop_past(struct app *a)
{
    backend_close(a->past.b);
    a->past = (struct app_past){0};
}

struct backend *app_shown(struct app *a)
{
    struct err e;
    if (a->at.turn == 0 || app_recording(a))
        return a->backend;
    struct backend *b = app_past(a, a->at.turn, a->at.step, &e);
    return b && recorded_seek(b, a->at.turn, a->at.step, &e) ? b : NULL;
}

struct backend *app_served(struct app *a)
{
    struct backend *b = app_shown(a);
    return b && backend_has(b, VIEW_SERVED) ? b : a->backend;
}

/* ---- the chat in numbers --------------------------------------------------------------------- */

/* Sums over the steps in memory up to an address. */
struct sums {
    struct chat_view *v;
    struct draft_sums turn;      /* of the address's turn */
    int64_t tokens;              /* the same */
    uint64_t us;                 /* its decode time */
    int prompt_turn;             /* the turn whose prompt was counted last */
};

static void add_prompt(struct sums *s, const struct step_view *x)
{
    const struct step_rec *r = &x->rec;
    if (s->prompt_turn != x->turn) { /* its first chunk begins behind what was reused */
        s->v->reuse = (struct reuse_view){.n_prompt = r->pos0, .n_reused = r->pos0};
        s->v->prompt_tokens += (uint64_t)r->pos0;
        s->v->reused_tokens += (uint64_t)r->pos0;
    }
    s->prompt_turn = x->turn;
    s->v->reuse.n_prompt += r->rows;
    s->v->prompt_tokens += (uint64_t)r->rows;
    s->v->us_prefill += r->us_verify;
}

static void add_step(struct sums *s, const struct step_view *x)
{
    const struct step_rec *r = &x->rec;
    struct chat_view *v = s->v;
    int deepest = r->source == STEP_REPORTED ? r->drafted : tree_depth(&x->tree);
    v->generated += (uint64_t)x->n_token;
    v->us_draft += r->us_draft;
    v->us_commit += r->us_commit;
    v->us_check += r->us_check;
    draft_sums_add(&v->drafts, r, deepest);
    if (r->kind == STEP_PREFILL)
        add_prompt(s, x);
    else
        v->us_verify += r->us_verify;
    v->length = r->pos0 + (r->kind == STEP_PREFILL ? r->rows : 1) + x->n_token;
    if (x->turn != v->turn)
        return;
    draft_sums_add(&s->turn, r, deepest);
    s->tokens += x->n_token;
    s->us += r->kind == STEP_PREFILL ? 0 : r->us_draft + r->us_verify + r->us_commit;
}

/* From the steps in memory: all that they tell. Settings and limits are those of now. */
static void chat_from_memory(struct app *a, struct chat_view *v)
{
    struct chat_view live;
    FREED(free_at) struct step_view *x = xmalloc(sizeof *x);
    struct sums s = {.v = v};
    FREED(page_table_free) struct page_table t = {0};
    struct err e;
    backend_chat(a->backend, &live);
    *v = (struct chat_view){.turn = a->at.turn, .step = a->at.step, .capacity = live.capacity,
                            .committed = -1, .settings = live.settings};
    memcpy(v->session, live.session, sizeof v->session);
    FREED(free_at) struct step_info *info = xmalloc(STEPS_KEPT * sizeof *info);
    int n = app_steps(a, info, STEPS_KEPT);
    for (int i = 0; i < n; i++)
        if (a->backend->steps->of_step(a->backend, info[i].turn, info[i].step, x))
            add_step(&s, x);
    v->session_mal = draft_sums_mal(&v->drafts);
    v->turn_mal = draft_sums_mal(&s.turn);
    v->tok_s = reply_tok_s(s.tokens, s.us);
    if (backend_has(a->backend, VIEW_PAGES) && app_table_at(a, a->at.turn, a->at.step, &t, &e)) {
        v->length = t.length;
        v->committed = t.committed;
    }
}

/* The counters of a session that was resumed go on where its log ended. */
static void add_past(struct app *a, struct chat_view *v)
{
    struct err e;
    if (!a->resumed)
        return;
    struct address end = a->resumed_end;
    struct backend *b = a->before ? NULL : app_past(a, end.turn, end.step, &e);
    if (!a->before) {
        a->before = xcalloc(1, sizeof *a->before);
        if (b && recorded_seek(b, end.turn, end.step, &e))
            backend_chat(b, a->before);
    }
    const struct chat_view *was = a->before;
    v->generated += was->generated;
    v->prompt_tokens += was->prompt_tokens;
    v->reused_tokens += was->reused_tokens;
    v->us_prefill += was->us_prefill;
    v->us_draft += was->us_draft;
    v->us_verify += was->us_verify;
    v->us_commit += was->us_commit;
    v->us_check += was->us_check;
    draft_sums_join(&v->drafts, &was->drafts);
    v->session_mal = draft_sums_mal(&v->drafts);
}

void app_chat(struct app *a, struct chat_view *v)
{
    if (a->at.turn == 0 || app_recording(a)) {
        backend_chat(a->backend, v);
        add_past(a, v);
        return;
    }
    bool kept = strcmp(a->then.session, a->session) == 0 && a->then.at.turn == a->at.turn &&
                a->then.at.step == a->at.step;
    struct backend *b = kept ? NULL : app_shown(a);
    if (b)
        backend_chat(b, &a->then.chat);
    else if (!kept)
        chat_from_memory(a, &a->then.chat);
    memcpy(a->then.session, a->session, sizeof a->then.session);
    a->then.at = a->at;
    *v = a->then.chat;
}

/* ---- steps and pages ------------------------------------------------------------------------- */

int app_steps(struct app *a, struct step_info *out, int max)
{
    struct backend *b = app_shown(a);
    if (b && b->steps)
        return b->steps->latest(b, out, max);
    FREED(free_at) struct step_info *all = xmalloc(STEPS_KEPT * sizeof *all);
    int n = a->backend->steps->latest(a->backend, all, STEPS_KEPT), from;
    while (n > 0 && before(a->at.turn, a->at.step, all[n - 1].turn, all[n - 1].step))
        n--;
    from = max_int(0, n - max);
    memcpy(out, all + from, (size_t)(n - from) * sizeof *out);
    return n - from;
}

struct tops *app_tops(struct app *a, int turn, int step)
{
    struct err e;
    struct backend *b = a->backend;
    struct tops *tops = b->served ? b->served->tops(b, turn, step) : NULL;
    if (tops || !b->served || app_recording(a))
        return tops;
    b = app_past(a, turn, step, &e);
    return b && b->served ? b->served->tops(b, turn, step) : NULL;
}

bool app_table_at(struct app *a, int turn, int step, struct page_table *t, struct err *e)
{
    struct backend *b = a->backend;
    *t = (struct page_table){0};
    if (turn == 0) {
        b->pages->table(b, t);
        return true;
    }
    if (b->pages->table_at(b, turn, step, t, e))
        return true;
    if (app_recording(a) || e->kind != ERR_NEGATIVE || !(b = app_past(a, turn, step, e)))
        return false;
    return b->pages ? b->pages->table_at(b, turn, step, t, e)
                    : err_set(e, ERR_NEGATIVE, "%s", b->lacks[VIEW_PAGES]);
}

static bool app_position_at(struct app *a, int turn, int step, int position, struct pos_view *v,
                            struct err *e)
{
    struct backend *b = a->backend;
    if (turn == 0)
        return b->pages->position(b, position, v, e);
    if (b->pages->position_at(b, turn, step, position, v, e))
        return true;
    if (app_recording(a) || e->kind != ERR_NEGATIVE || !(b = app_past(a, turn, step, e)))
        return false;
    return b->pages ? b->pages->position_at(b, turn, step, position, v, e)
                    : err_set(e, ERR_NEGATIVE, "%s", b->lacks[VIEW_PAGES]);
}

int app_page_changes(struct app *a, enum pool_id pool, int page, struct page_change *out, int max)
{
    struct backend *b = a->backend;
    struct err e;
    bool whole;
    int turn, step;
    app_address(a, &turn, &step);
    int n = b->pages->events(b, turn, step, pool, page, out, max, &whole);
    if (whole || app_recording(a))
        return n;
    b = app_past(a, turn, step, &e);
    if (!b || !b->pages)
        return n;
    int pending = 0; /* those since the newest step, which no log has yet */
    while (pending < n && out[n - 1 - pending].turn == 0)
        pending++;
    FREED(free_at) struct page_change *now = xmalloc((size_t)(pending + 1) * sizeof *now);
    memcpy(now, out + n - pending, (size_t)pending * sizeof *now);
    n = b->pages->events(b, turn, step, pool, page, out, max - pending, &whole);
    memcpy(out + n, now, (size_t)pending * sizeof *now);
    return n + pending;
}

void app_seek(struct app *a)
{
    struct step_info s;
    if (!app_recording(a) || !a->backend->steps)
        return;
    bool any = a->backend->steps->latest(a->backend, &s, 1);
    if (!any || s.turn != a->at.turn || s.step != a->at.step) /* where a turn begins it stays */
        recorded_seek(a->backend, a->at.turn, a->at.step, NULL);
}

void app_follow_recording(struct app *a)
{
    struct step_info s;
    bool any = app_recording(a) && a->backend->steps &&
               a->backend->steps->latest(a->backend, &s, 1);
    if (any)
        a->at = (struct address){s.turn, s.step};
}

bool app_table(struct app *a, struct page_table *t, struct err *e)
{
    int turn, step;
    app_address(a, &turn, &step);
    return app_table_at(a, turn, step, t, e);
}

bool app_pools(struct app *a, struct pool_view pool[N_POOLS], struct err *e)
{
    int turn, step;
    FREED(page_table_free) struct page_table t = {0};
    if (!app_address(a, &turn, &step)) {
        a->backend->pools->ledger(a->backend, pool);
        return true;
    }
    if (!app_needs(a, "pool", VIEW_PAGES, e) || !app_table_at(a, turn, step, &t, e))
        return false;
    memcpy(pool, t.pool, sizeof t.pool);
    return true;
}

bool app_position(struct app *a, int position, struct pos_view *v, struct err *e)
{
    int turn, step;
    app_address(a, &turn, &step);
    return app_position_at(a, turn, step, position, v, e);
}
