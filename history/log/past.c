/* past.c - reconstructs a session's conversation from the log, its parent sessions included.
 *
 * A forked session's rows hold its own turns only. Its past is its parent's past up to the turn and
 * the moment of the fork, followed by its own rows. Undone turns and replaced replies keep their
 * rows; the order of turns, undos, regenerations and forgets decides which turns are in the
 * context.
 */
#include "history/internal.h"

#include <limits.h>

enum { MAX_PARENTS = 1000, LAST_TURN = INT_MAX / 2 };

struct past_reader {
    struct hdb *h;
    struct hdb_past *p;
    struct err *e;
    bool failed;
    /* state of the session whose rows are being read */
    const char *session;
    int upto;          /* later turns are ignored: they are the parent's only */
    int64_t first_run; /* its first run's id; -1: none was read */
    int64_t before;    /* runs with greater ids came after the fork ... */
    int64_t end;       /* ... and so did all rows from this order on */
    bool as_of;        /* rows after the end of turn `upto` are ignored */
    int64_t last_order; /* of the last row used */
    struct op_row *change; /* operations before `end` that changed which turns the context holds,
                              in order; without text */
    int n_change, n_done;  /* found, and applied so far */
};

static void pair_free(struct past_pair *t)
{
    turn_row_free(&t->user);
    turn_row_free(&t->reply);
}

void hdb_past_free(struct hdb_past *p)
{
    for (int i = 0; i < p->n; i++)
        pair_free(&p->turn[i]);
    FREE(p->turn, p->part, p->system);
    buf_free(&p->settings);
    *p = (struct hdb_past){0};
}

/* Copies a row without a prompt's ids, which repeat the whole conversation in every turn. */
static void copy_without_prompt(struct turn_row *dst, const struct turn_row *src)
{
    struct turn_row row = *src;
    if (row.is_user)
        row.tokens = (struct ids){0};
    turn_row_copy(dst, &row);
}

const char *past_mark(enum past_state s)
{
    static const char *const mark[] = {[PAST_REPLACED] = "replaced", [PAST_UNDONE] = "undone",
                                       [PAST_LEFT_OUT] = "left out of the context"};
    return (size_t)s < LEN(mark) && mark[s] ? mark[s] : "";
}

/* ---- which turns the context holds ---- */

/* Sets the state of the turns from index i on, except those that were out of the context before. */
static void set_state_from(struct hdb_past *p, int i, enum past_state state)
{
    for (; i < p->n; i++)
        if (p->turn[i].state == PAST_LIVE || p->turn[i].state == PAST_FAILED)
            p->turn[i].state = state;
}

static int newest_live(const struct hdb_past *p)
{
    int i = p->n - 1;
    while (i >= 0 && p->turn[i].state != PAST_LIVE)
        i--;
    return i;
}

static void apply_fork(struct hdb_past *p, const struct ids *turns)
{
    for (int i = 0; i < p->n; i++) {
        bool is_live = p->turn[i].state == PAST_LIVE, listed = turns_have(turns, p->turn[i].user.n);
        if (is_live != listed)
            p->turn[i].state = listed ? PAST_LIVE : PAST_UNDONE;
    }
}

static void apply_forget(struct hdb_past *p, const struct ids *turns)
{
    for (int i = 0; i < p->n; i++)
        if (p->turn[i].state == PAST_LIVE && turns_have(turns, p->turn[i].user.n))
            p->turn[i].state = PAST_LEFT_OUT;
}

/* Applies the changes that came before `order`. OP_UNDO of a turn after the fork has no effect:
 * that turn is not in p. */
static void apply_changes_before(struct past_reader *r, int64_t order)
{
    for (; r->n_done < r->n_change && r->change[r->n_done].order < order; r->n_done++) {
        const struct op_row *c = &r->change[r->n_done];
        int i = newest_live(r->p);
        if (c->op == OP_FORK)
            apply_fork(r->p, &c->turns);
        if (c->op == OP_FORGET)
            apply_forget(r->p, &c->turns);
        if (c->op != OP_UNDO)
            continue;
        while (i >= 0 && r->p->turn[i].user.n != c->turn)
            i--;
        if (i >= 0)
            set_state_from(r->p, i, PAST_UNDONE);
    }
}

/* If the last turn generated nothing, marks it: its message did not stay in the context either. */
static void mark_silent(struct hdb_past *p)
{
    struct past_pair *t = p->n > 0 ? &p->turn[p->n - 1] : NULL;
    if (!t || t->state != PAST_LIVE || t->reply.tokens.n || t->reply.text_n)
        return;
    bool failed = t->reply.stop == STOP_FAULT || t->reply.stop == STOP_DEVICE;
    t->state = failed ? PAST_FAILED : PAST_SILENT;
}

static bool fail_damaged(struct past_reader *r, int turn)
{
    r->failed = true;
    return err_set(r->e, ERR_DB, "session %s: turn number %d is out of range", r->session, turn);
}

static bool add_turn(const struct turn_row *row, void *arg)
{
    struct past_reader *r = arg;
    struct hdb_past *p = r->p;
    if (row->n < 1 || row->n > LAST_TURN)
        return fail_damaged(r, row->n);
    if (row->n > r->upto)
        return false;
    p->last = max_int(p->last, row->n);
    r->last_order = row->order;
    if (!row->is_user && row->stop != STOP_OPEN)
        p->complete = max_int(p->complete, row->n);
    p->draws = row->draws1 > p->draws ? row->draws1 : p->draws;
    if (!row->is_user) {
        if (p->n > 0 && p->turn[p->n - 1].user.n == row->n)
            copy_without_prompt(&p->turn[p->n - 1].reply, row);
        return true;
    }
    mark_silent(p);
    apply_changes_before(r, row->order);
    int i = row->regen ? newest_live(p) : -1;
    if (i >= 0)
        set_state_from(p, i, PAST_REPLACED);
    struct past_pair *pair = APPEND(p->turn, p->n);
    *pair = (struct past_pair){.reply.stop = STOP_OPEN};
    copy_without_prompt(&pair->user, row);
    return true;
}

/* ---- one session after another ---- */

static bool see_run(const struct run_row *row, void *arg)
{
    struct past_reader *r = arg;
    r->first_run = r->first_run < 0 || row->id < r->first_run ? row->id : r->first_run;
    if (row->id > r->before && row->order < r->end)
        r->end = row->order;
    return true;
}

static bool add_op(const struct op_row *row, void *arg)
{
    struct past_reader *r = arg;
    struct hdb_past *p = r->p;
    struct op_row *change;
    if (row->order >= r->end)
        return false;
    switch (row->op) {
    case OP_OPEN:
    case OP_RESUME:
        buf_clear(&p->settings);
        buf_str(&p->settings, row->text);
        break;
    case OP_SET:
        if (*row->text)
            settings_set_line(&p->settings, row->text);
        break;
    case OP_SYSTEM:
        set_text(&p->system, row->text);
        break;
    case OP_UNDO:
    case OP_FORK:
    case OP_FORGET:
        change = APPEND(r->change, r->n_change);
        *change = (struct op_row){.order = row->order, .op = row->op, .turn = row->turn};
        ids_cat(&change->turns, row->turns.v, row->turns.n);
        break;
    case OP_FORCE: break; /* its token is among those of the reply */
    case OP_SHAPE: break; /* changes no token */
    case OP_FORMAT: break; /* a resumed session begins without one */
    }
    return true;
}

static bool read_rows(struct past_reader *r)
{
    struct hdb_past *p = r->p;
    struct past_part *part = APPEND(p->part, p->n_part);
    *part = (struct past_part){.upto = r->upto};
    memcpy(part->session, r->session, SESSION_ID);
    bool ok = hdb_ops(r->h, r->session, add_op, r, r->e) >= 0 &&
              hdb_turns(r->h, r->session, 0, add_turn, r, r->e) >= 0 && !r->failed;
    mark_silent(p);
    apply_changes_before(r, r->as_of ? r->last_order : r->end);
    return ok;
}

/* Reads the parents' rows first, each parent in its state at the fork. */
static bool read_session(struct hdb *h, struct hdb_past *p, const char *id, int upto, bool as_of,
                         int64_t before, int depth, struct err *e)
{
    struct session_row s = {0};
    if (depth > MAX_PARENTS)
        return err_set(e, ERR_DB, "session %s has more than %d parents", id, MAX_PARENTS);
    if (!hdb_find(h, id, &s, e))
        return false;
    struct past_reader r = {.h = h, .p = p, .e = e, .session = s.id, .upto = upto, .as_of = as_of,
                            .first_run = -1, .before = before, .end = INT64_MAX};
    bool ok = hdb_runs(h, s.id, see_run, &r, e) >= 0;
    int fork = min_int(s.fork_turn, upto);
    if (ok && s.parent[0] && (s.fork_turn < 0 || s.fork_turn > LAST_TURN))
        ok = err_set(e, ERR_DB, "session %s: its log says that it was forked after turn %d", s.id,
                     s.fork_turn);
    bool before_fork = as_of && s.parent[0] && upto <= s.fork_turn;
    if (ok && s.parent[0])
        ok = read_session(h, p, s.parent, fork, before_fork, before_fork ? INT64_MAX : r.first_run,
                          depth + 1, e);
    if (ok && s.parent[0]) {
        p->last = max_int(p->last, fork);
        p->complete = max_int(p->complete, fork);
    }
    ok = ok && (before_fork || read_rows(&r));
    for (int i = 0; i < r.n_change; i++)
        op_row_free(&r.change[i]);
    free(r.change);
    session_row_free(&s);
    return ok;
}

bool hdb_past(struct hdb *h, const char *session, int upto, struct hdb_past *p, struct err *e)
{
    *p = (struct hdb_past){0};
    if (!db_exec(&h->db, "SAVEPOINT past", e)) /* all of one moment, while another process writes */
        return false;
    bool ok = read_session(h, p, session, upto, upto < INT_MAX, INT64_MAX, 0, e);
    db_exec(&h->db, "RELEASE past", NULL);
    const char *own = p->n_part ? p->part[p->n_part - 1].session : "";
    for (int i = 0; i < p->n; i++)
        p->turn[i].inherited = strcmp(p->turn[i].user.session, own) != 0;
    if (!ok)
        hdb_past_free(p);
    return ok;
}
