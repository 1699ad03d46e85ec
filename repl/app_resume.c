/* app_resume.c - a saved session taken up again: its turns read from the log, through the parents
 * it was forked from, and given back to the engine.
 */
#include <stdlib.h>
#include <string.h>

#include "repl/cmd/cmd.h"

struct pair {
    struct turn_row user, reply;
    bool shown_only; /* it failed before it said anything: the context does not hold it */
};

/* A session's context as the log tells it. */
struct past {
    struct pair *v;
    int n, cap;
    int last;    /* the highest turn number used, undone ones included */
    uint64_t draws;
    char *system; /* the last system prompt set, or NULL */
    struct hdb *db;
    /* of the session whose rows are read now: */
    int upto;          /* turns beyond this one belong to the parent only */
    int64_t first_run; /* its first run's id */
    int64_t before;    /* runs with greater ids came after the fork ... */
    int64_t end;       /* ... and so did everything from this order on */
    int64_t *undo;     /* (n_undo) orders of the undos before that, rising */
    int n_undo;
};

static void pair_free(struct pair *p)
{
    turn_row_free(&p->user);
    turn_row_free(&p->reply);
}

static void past_free(struct past *p)
{
    for (int i = 0; i < p->n; i++)
        pair_free(&p->v[i]);
    free(p->v);
    free(p->system);
    free(p->undo);
    *p = (struct past){0};
}

static void row_copy(struct turn_row *dst, const struct turn_row *src)
{
    *dst = *src;
    dst->text = xmalloc(src->text_n + 1);
    memcpy(dst->text, src->text ? src->text : "", src->text ? src->text_n : 0);
    dst->text[src->text_n] = '\0';
    dst->tokens = (struct ids){0};
    ids_cat(&dst->tokens, src->tokens.v, src->tokens.n);
    dst->stop = src->stop ? xstrdup(src->stop) : NULL;
    dst->sampling = dst->snippet = NULL;
}

/* The newest turn leaves the context. */
static void pop(struct past *p)
{
    while (p->n > 0 && p->v[p->n - 1].shown_only)
        pair_free(&p->v[--p->n]);
    if (p->n > 0)
        pair_free(&p->v[--p->n]);
}

static void push(struct past *p, const struct turn_row *user)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 16;
        p->v = xrealloc(p->v, (size_t)p->cap, sizeof *p->v);
    }
    p->v[p->n] = (struct pair){0};
    row_copy(&p->v[p->n++].user, user);
}

/* Applies the undos that came before `order`. */
static void undo_until(struct past *p, int64_t order)
{
    int k = 0;
    for (; k < p->n_undo && p->undo[k] < order; k++)
        pop(p);
    p->n_undo -= k;
    if (k > 0)
        memmove(p->undo, p->undo + k, (size_t)p->n_undo * sizeof *p->undo);
}

/* Where nothing was generated, the message did not stay in the context either; if that was not the
 * user's doing, the turn is still shown. */
static void settle(struct past *p)
{
    struct pair *t = p->n > 0 ? &p->v[p->n - 1] : NULL;
    if (!t || t->shown_only || t->reply.tokens.n || t->reply.text_n)
        return;
    const char *stop = t->reply.stop ? t->reply.stop : "";
    if (strcmp(stop, stop_name(STOP_FAULT)) == 0 || strcmp(stop, stop_name(STOP_DEVICE)) == 0)
        t->shown_only = true;
    else
        pop(p);
}

static bool take_row(const struct turn_row *r, void *arg)
{
    struct past *p = arg;
    if (r->n > p->upto)
        return true;
    p->last = max_int(p->last, r->n);
    p->draws = r->draws1 > p->draws ? r->draws1 : p->draws;
    if (!r->is_user) {
        if (p->n > 0 && p->v[p->n - 1].user.n == r->n)
            row_copy(&p->v[p->n - 1].reply, r);
        return true;
    }
    settle(p);
    undo_until(p, r->order);
    if (r->regen)
        pop(p);
    push(p, r);
    return true;
}

static bool take_run(const struct run_row *r, void *arg)
{
    struct past *p = arg;
    p->first_run = p->first_run < 0 || r->id < p->first_run ? r->id : p->first_run;
    if (r->id > p->before && r->order < p->end)
        p->end = r->order;
    return true;
}

static bool take_op(const struct op_row *r, void *arg)
{
    struct past *p = arg;
    if (r->order >= p->end)
        return true;
    if (r->op == OP_SYSTEM) {
        free(p->system);
        p->system = xstrdup(r->text ? r->text : "");
    }
    if (r->op == OP_UNDO) {
        p->undo = xrealloc(p->undo, (size_t)p->n_undo + 1, sizeof *p->undo);
        p->undo[p->n_undo++] = r->order;
    }
    return true;
}

/* Reads the parents first, each as it was when the next one left it: up to a turn, and without
 * what was undone in it by later runs. */
static bool past_read(struct past *p, const char *id, int upto, int64_t before, int depth,
                      struct err *e)
{
    struct session_row s = {0};
    if (depth > 1000)
        return err_set(e, ERR_DB, "session %s has more than 1000 parents", id);
    if (!hdb_find(p->db, id, &s, e))
        return false;
    p->first_run = -1;
    p->before = before;
    p->end = INT64_MAX;
    bool ok = hdb_runs(p->db, s.id, take_run, p, e) >= 0;
    int64_t end = p->end;
    if (ok && s.parent[0])
        ok = past_read(p, s.parent, min_int(s.fork_turn, upto), p->first_run, depth + 1, e);
    p->upto = upto;
    p->end = end;
    p->n_undo = 0;
    if (s.parent[0])
        p->last = max_int(p->last, s.fork_turn);
    ok = ok && hdb_ops(p->db, s.id, take_op, p, e) >= 0 &&
         hdb_turns(p->db, s.id, 0, take_row, p, e) >= 0;
    settle(p);
    undo_until(p, p->end);
    session_row_free(&s);
    return ok;
}

static bool past_open(struct app *a, struct past *p, const char *id, struct err *e)
{
    *p = (struct past){.db = app_hdb(a, e)};
    if (p->db && past_read(p, id, INT32_MAX, INT64_MAX, 0, e))
        return true;
    past_free(p);
    return false;
}

/* The request that puts these turns back into the context. */
static struct request resume_request(const struct past *p, const char *id, const char *system)
{
    struct request rq = {.kind = RQ_RESUME, .next_turn = p->last + 1,
                         .draws = p->draws, .text = xstrdup(system ? system : "")};
    memcpy(rq.session, id, sizeof rq.session);
    rq.past = xcalloc((size_t)max_int(1, p->n), sizeof *rq.past);
    for (int i = 0; i < p->n; i++) {
        struct past_turn *t = &rq.past[rq.n_past];
        if (p->v[i].shown_only)
            continue;
        rq.n_past++;
        t->turn = p->v[i].user.n;
        t->user = xstrdup(p->v[i].user.text);
        t->reply = xstrdup(p->v[i].reply.text);
        ids_cat(&t->ids, p->v[i].reply.tokens.v, p->v[i].reply.tokens.n);
    }
    return rq;
}

/* The app's side of it, once the engine has the request. */
static void adopt(struct app *a, const struct past *p, const char *id)
{
    memcpy(a->session, id, sizeof a->session);
    a->turn = p->last;
    a->step = a->turns.n = 0;
    for (int i = 0; i < p->n; i++)
        if (!p->v[i].shown_only)
            ids_add(&a->turns, p->v[i].user.n);
}

bool app_resume(struct app *a, const char *id, struct err *e)
{
    struct hdb *db = app_hdb(a, e);
    struct session_row s = {0};
    struct past p = {0};
    if (!db || !hdb_find(db, id, &s, e))
        return false;
    bool ok = past_open(a, &p, s.id, e);
    if (ok && !a->opt.system) {
        free(a->system);
        a->system = p.system && p.system[0] ? xstrdup(p.system) : NULL;
    }
    if (ok) {
        struct request rq = resume_request(&p, s.id, a->system);
        ok = engine_submit(a->engine, &rq, e);
    }
    if (ok)
        adopt(a, &p, s.id);
    past_free(&p);
    session_row_free(&s);
    return ok;
}

bool app_show_past(struct app *a, struct err *e)
{
    struct past p;
    if (!a->face.replay_turn || a->turn == 0)
        return true;
    if (!past_open(a, &p, a->session, e))
        return false;
    for (int i = 0; i < p.n; i++) {
        a->face.replay_turn(a, &p.v[i].user);
        a->face.replay_turn(a, &p.v[i].reply);
    }
    past_free(&p);
    return true;
}
