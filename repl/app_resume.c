/* app_resume.c - a saved session taken up again, or forked: its turns are read from the log, through
 * the parents it was forked from, and given to the engine. Both ways to an earlier conversation are
 * this one, so both hold what the log says, whatever has left the engine's context since.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "repl/cmd/cmd.h"

/* The request that makes these turns the conversation. */
static struct request past_request(enum request_kind kind, const struct hdb_past *p, const char *id)
{
    struct request rq = {.kind = kind, .next_turn = p->last + 1, .draws = p->draws};
    memcpy(rq.session, id, sizeof rq.session);
    rq.past = xcalloc((size_t)max_int(1, p->n), sizeof *rq.past);
    for (int i = 0; i < p->n; i++) {
        const struct past_pair *from = &p->turn[i];
        if (from->state != PAST_LIVE)
            continue;
        struct past_turn *t = &rq.past[rq.n_past++];
        t->turn = from->user.n;
        t->user = xstrdup(from->user.text);
        t->reply = xstrdup(from->reply.text ? from->reply.text : "");
        ids_cat(&t->ids, from->reply.tokens.v, from->reply.tokens.n);
    }
    return rq;
}

/* The app's side of it, once the engine has the request. */
static void adopt(struct app *a, const struct hdb_past *p, const char *id)
{
    memcpy(a->session, id, sizeof a->session);
    a->turn = p->last;
    a->step = a->turns.n = 0;
    a->refused = false;
    for (int i = 0; i < p->n; i++)
        if (p->turn[i].state == PAST_LIVE)
            ids_add(&a->turns, p->turn[i].user.n);
}

/* ---- /resume, --session, --continue ---- */

/* The log of a session is written by one process; another may take up a copy. */
static bool hold(struct app *a, const char *id, struct err *e)
{
    if (!a->history || a->private_ || history_hold(a->history, id, e))
        return true;
    if (strstr(e->msg, "is open in")) { /* no session yet: the command line asked for this one */
        size_t n = strlen(e->msg);
        snprintf(e->msg + n, sizeof e->msg - n, a->session[0] ? "; /fork %s goes on in a copy"
                                                              : "; add --fork to go on in a copy",
                 id);
    }
    return false;
}

static bool take_up(struct app *a, const char *id, bool copy, struct err *e)
{
    struct hdb_past p = {0};
    char session[SESSION_ID];
    memcpy(session, id, sizeof session);
    if (copy)
        session_new_id(session);
    bool ok = copy || hold(a, id, e);
    bool held = ok && !copy && a->history && !a->private_ && strcmp(id, a->session) != 0;
    ok = ok && hdb_past(a->hdb, id, INT_MAX, &p, e);
    char *was = a->system;
    if (ok && !a->opt.system)
        a->system = p.system && p.system[0] ? xstrdup(p.system) : NULL;
    if (ok) {
        struct request rq = past_request(RQ_RESUME, &p, session);
        if (copy)
            memcpy(rq.parent, id, sizeof rq.parent);
        rq.text = xstrdup(a->system ? a->system : "");
        ok = engine_submit(a->engine, &rq, e);
    }
    if (ok) {
        adopt(a, &p, session);
        memcpy(a->past_of, id, sizeof a->past_of);
    } else if (held) {
        history_release(a->history, id);
    }
    if (a->system != was)
        free(was);
    hdb_past_free(&p);
    return ok;
}

static bool find_and_take(struct app *a, const char *id, bool copy, char found[SESSION_ID],
                          struct err *e)
{
    struct hdb *db = app_hdb(a, e);
    struct session_row s = {0};
    if (!db || !hdb_find(db, id, &s, e))
        return false;
    memcpy(found, s.id, sizeof s.id);
    bool ok = take_up(a, s.id, copy, e);
    session_row_free(&s);
    return ok;
}

bool app_resume(struct app *a, const char *id, struct err *e)
{
    char found[SESSION_ID];
    return find_and_take(a, id, false, found, e);
}

bool app_fork_of(struct app *a, const char *id, char parent[SESSION_ID], struct err *e)
{
    return find_and_take(a, id, true, parent, e);
}

static void show_past(struct app *a, const struct hdb_past *p)
{
    for (int i = 0; a->face.replay_turn && i < p->n; i++)
        if (p->turn[i].state == PAST_LIVE || p->turn[i].state == PAST_FAILED) {
            a->face.replay_turn(a, &p->turn[i].user);
            a->face.replay_turn(a, &p->turn[i].reply);
        }
}

bool app_show_past(struct app *a, struct err *e)
{
    struct hdb_past p;
    struct hdb *db = app_hdb(a, e);
    if (a->turn == 0)
        return true;
    if (!db || !hdb_past(db, a->past_of, INT_MAX, &p, e))
        return false;
    show_past(a, &p);
    hdb_past_free(&p);
    return true;
}

/* ---- /fork ---- */

/* The log must hold each turn of the context up to the fork: what it has not stored cannot be read
 * back. */
static bool all_stored(const struct app *a, const struct hdb_past *p, int turn, struct err *e)
{
    int k = p->n - 1;
    if (turn > 0 && (k < 0 || p->turn[k].user.n != turn || p->turn[k].state != PAST_LIVE))
        return err_set(e, ERR_USAGE, "turn %d has no reply in the log; expected one that has", turn);
    for (int i = 0, at = 0; i < a->turns.n && a->turns.v[i] <= turn; i++) {
        while (at < p->n && p->turn[at].user.n != a->turns.v[i])
            at++;
        if (at == p->n || p->turn[at].state != PAST_LIVE)
            return err_set(e, ERR_DB, "turn %d is not in the log, so /fork cannot copy it",
                           a->turns.v[i]);
    }
    return true;
}

/* Are the turns on the screen those of the past? */
static bool same_turns(const struct app *a, const struct hdb_past *p)
{
    int k = 0;
    for (int i = 0; i < p->n; i++)
        if (p->turn[i].state == PAST_LIVE && (k == a->turns.n || a->turns.v[k++] != p->turn[i].user.n))
            return false;
    return k == a->turns.n;
}

bool app_fork(struct app *a, int turn, struct err *e)
{
    struct hdb *db = app_hdb(a, e);
    struct hdb_past p = {0};
    if (!db || !hdb_past(db, a->session, turn, &p, e))
        return false;
    char child[SESSION_ID];
    session_new_id(child);
    p.last = turn;
    bool ok = all_stored(a, &p, turn, e);
    if (ok) {
        struct request rq = past_request(RQ_FORK, &p, child);
        ok = engine_submit(a->engine, &rq, e);
    }
    while (ok && a->turns.n && a->turns.v[a->turns.n - 1] > turn)
        app_forget_turn(a);
    bool shown = ok && same_turns(a, &p);
    if (ok)
        adopt(a, &p, child);
    if (ok && !shown && a->face.clear)
        a->face.clear(a);
    if (ok && !shown)
        show_past(a, &p);
    hdb_past_free(&p);
    return ok;
}
