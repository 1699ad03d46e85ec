/* app_recorded.c - the app over a recording, and views of steps that left the engine's memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "repl/recorded.h"
#include "repl/repl.h"

bool app_open_recorded(struct app *a, const struct options *o, struct hdb *d,
                       const struct session_row *row, bool file, struct err *e)
{
    memset(a, 0, sizeof *a);
    a->opt = *o;
    a->opt.readonly = true;
    a->hdb = d;
    app_look_at_terminal(a);
    memcpy(a->session, row->id, sizeof a->session);
    a->db_path = o->db ? xstrdup(o->db) : history_default_path();
    char name[SESSION_ID];
    snprintf(name, sizeof name, "%s", row->id);
    if (row->number > 0 && !file)
        snprintf(name, sizeof name, "%d", row->number);
    a->backend = recorded_open(d, row->id, name, file, e);
    if (!a->backend)
        app_close(a);
    return a->backend != NULL;
}

void app_open_running(struct app *a, const struct options *o, struct backend *b,
                      const char *session)
{
    memset(a, 0, sizeof *a);
    a->opt = *o;
    a->opt.readonly = true;
    a->backend = b;
    app_look_at_terminal(a);
    snprintf(a->session, sizeof a->session, "%s", session);
    a->db_path = o->db ? xstrdup(o->db) : history_default_path();
}

bool app_recording(const struct app *a)
{
    return a->backend && backend_info(a->backend)->recording;
}

/* A recording of the live session, for steps that are no longer in memory; NULL and *e. It is read
 * again only when steps were added since, so that a step that nobody has costs nothing. */
static struct backend *past_of(struct app *a, struct err *e)
{
    struct chat_view v;
    struct app_past *p = &a->past;
    backend_chat(a->backend, &v);
    if (strcmp(p->session, v.session) == 0 && p->turn == v.turn && p->step == v.step)
        return p->b ? p->b : (err_set(e, ERR_NEGATIVE, "the log does not hold this session"), NULL);
    backend_close(p->b);
    *p = (struct app_past){.turn = v.turn, .step = v.step};
    memcpy(p->session, v.session, sizeof p->session);
    struct hdb *d = app_hdb(a, e);
    if (d)
        p->b = recorded_open(d, v.session, v.session, false, e);
    return p->b;
}

void app_drop_past(struct app *a)
{
    backend_close(a->past.b);
    a->past = (struct app_past){0};
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
    if (app_recording(a) || e->kind != ERR_NEGATIVE || !(b = past_of(a, e)))
        return false;
    return b->pages ? b->pages->table_at(b, turn, step, t, e)
                    : err_set(e, ERR_NEGATIVE, "%s", b->lacks[VIEW_PAGES]);
}

bool app_position_at(struct app *a, int turn, int step, int position, struct pos_view *v,
                     struct err *e)
{
    struct backend *b = a->backend;
    if (turn == 0)
        return b->pages->position(b, position, v, e);
    if (b->pages->position_at(b, turn, step, position, v, e))
        return true;
    if (app_recording(a) || e->kind != ERR_NEGATIVE || !(b = past_of(a, e)))
        return false;
    return b->pages ? b->pages->position_at(b, turn, step, position, v, e)
                    : err_set(e, ERR_NEGATIVE, "%s", b->lacks[VIEW_PAGES]);
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
    bool any = app_recording(a) && a->backend->steps && a->backend->steps->latest(a->backend, &s, 1);
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
    struct page_table t;
    if (!app_address(a, &turn, &step)) {
        a->backend->pools->ledger(a->backend, pool);
        return true;
    }
    if (!app_needs(a, "pool", VIEW_PAGES, e) || !app_table_at(a, turn, step, &t, e))
        return false;
    memcpy(pool, t.pool, sizeof t.pool);
    page_table_free(&t);
    return true;
}

bool app_position(struct app *a, int position, struct pos_view *v, struct err *e)
{
    int turn, step;
    app_address(a, &turn, &step);
    return app_position_at(a, turn, step, position, v, e);
}
