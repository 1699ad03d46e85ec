/* script.c - reads a session's runs, operations, turns and steps into one ordered script. */

#include "repl/compare/facts.h"
#include "repl/compare/script.h"

/* One session's rows while they are put in order. */
struct script_reader {
    struct script *s;
    struct hdb *d;
    const char *session;
    int64_t first_run, until_run; /* ids; runs from until_run on are not part of the script */
    int64_t end;                  /* rows with this `order` or a later one are not part of the
                                     script */
    struct run_at {
        int64_t order;
        const char *about;
    } *run;
    int n_run;
    struct script_entry {
        int64_t order;
        struct act act;
    } *entry;
    int n_entry;
};

void act_free(struct act *a)
{
    FREE(a->text, a->fault);
    ids_free(&a->turns);
    turn_row_free(&a->user);
    turn_row_free(&a->reply);
    for (int i = 0; i < a->n_step; i++)
        step_row_free(&a->step[i]);
    free(a->step);
}

void script_free(struct script *s)
{
    for (int i = 0; i < s->n; i++)
        act_free(&s->act[i]);
    for (int i = 0; i < s->n_about; i++)
        free(s->about[i]);
    FREE(s->act, s->about);
    *s = (struct script){0};
}

/* ---- rows into entries ---- */

static struct act *add_entry(struct script_reader *r, int64_t order, bool is_turn)
{
    struct script_entry *e = APPEND(r->entry, r->n_entry);
    *e = (struct script_entry){.order = order, .act = {.is_turn = is_turn,
                                                       .reply.stop = STOP_OPEN}};
    memcpy(e->act.session, r->session, SESSION_ID);
    return &e->act;
}

static bool take_run(const struct run_row *row, void *arg)
{
    struct script_reader *r = arg;
    if (row->id >= r->until_run) {
        r->end = row->order;
        return false;
    }
    if (!r->n_run)
        r->first_run = row->id;
    struct script *s = r->s;
    char *about = xstrdup(row->about);
    *APPEND(s->about, s->n_about) = about;
    *APPEND(r->run, r->n_run) = (struct run_at){row->order, about};
    return true;
}

static bool take_op(const struct op_row *row, void *arg)
{
    struct script_reader *r = arg;
    if (row->order >= r->end)
        return false;
    struct act *a = add_entry(r, row->order, false);
    a->op = row->op;
    a->turn = row->turn;
    a->text = xstrdup(row->text ? row->text : "");
    ids_cat(&a->turns, row->turns.v, row->turns.n);
    a->forced = row->forced;
    return true;
}

static bool take_turn(const struct turn_row *row, void *arg)
{
    struct script_reader *r = arg;
    if (row->is_user && row->order >= r->end)
        return false;
    if (row->is_user)
        turn_row_copy(&add_entry(r, row->order, true)->user, row);
    else if (r->n_entry && r->entry[r->n_entry - 1].act.user.n == row->n)
        turn_row_copy(&r->entry[r->n_entry - 1].act.reply, row);
    return true;
}

/* The latest act of a turn; NULL: the turn is after the fork. */
static struct act *act_of(struct script_reader *r, int turn)
{
    for (int i = r->n_entry - 1; i >= 0; i--)
        if (r->entry[i].act.is_turn && r->entry[i].act.user.n == turn)
            return &r->entry[i].act;
    return NULL;
}

static bool take_step(const struct step_row *row, void *arg)
{
    struct act *a = act_of(arg, row->turn);
    if (a)
        step_row_copy(APPEND(a->step, a->n_step), row);
    return true;
}

/* Of several faults of a turn that the user took back, the last one stopped it. */
static bool take_fault(const struct fault_row *row, void *arg)
{
    struct act *a = act_of(arg, row->turn);
    if (a && a->reply.stop == STOP_FAULT) {
        set_text(&a->fault, row->text);
        a->fault_step = row->step;
        a->rule = row->rule;
    }
    return true;
}

/* ---- one session after another ---- */

static int by_order(const void *a, const void *b)
{
    int64_t x = ((const struct script_entry *)a)->order,
            y = ((const struct script_entry *)b)->order;
    return (x > y) - (x < y);
}

/* Whether a process is writing the turn now, so that some of its steps are missing. */
static bool is_open_turn(const struct act *a)
{
    return a->is_turn && a->reply.n && a->reply.stop == STOP_OPEN;
}

/* Moves the entries to the script, each with its run; open turns are left out. */
static bool append(struct script_reader *r, struct err *e)
{
    struct script *s = r->s;
    if (r->n_entry)
        qsort(r->entry, (size_t)r->n_entry, sizeof *r->entry, by_order);
    s->act = xrealloc(s->act, (size_t)s->n + (size_t)r->n_entry, sizeof *s->act);
    for (int i = 0, run = -1; i < r->n_entry; i++) {
        while (run + 1 < r->n_run && r->run[run + 1].order < r->entry[i].order)
            run++;
        if (run < 0)
            return err_set(e, ERR_DB, "session %s: its log does not begin with a run", r->session);
        if (is_open_turn(&r->entry[i].act)) {
            act_free(&r->entry[i].act);
            r->entry[i].act = (struct act){0};
            continue;
        }
        r->entry[i].act.about = r->run[run].about;
        s->act[s->n++] = r->entry[i].act;
        r->entry[i].act = (struct act){0};
    }
    return true;
}

static bool read_script_rows(struct script_reader *r, struct err *e)
{
    return hdb_turns(r->d, r->session, 0, take_turn, r, e) >= 0 &&
           hdb_steps(r->d, r->session, 0, take_step, r, e) >= 0 &&
           hdb_faults(r->d, r->session, take_fault, r, e) >= 0 &&
           hdb_ops(r->d, r->session, take_op, r, e) >= 0;
}

/* Parents come first, up to the fork, which is where the child's first run begins. */
static bool read_script_session(struct script *s, struct hdb *d, const char *id, int64_t until_run,
                                int depth, struct err *e)
{
    FREED(session_row_free) struct session_row row = {0};
    if (depth > 1000)
        return err_set(e, ERR_DB, "session %s has more than 1000 parents", id);
    if (!hdb_find(d, id, &row, e))
        return false;
    struct script_reader r = {.s = s, .d = d, .session = row.id, .until_run = until_run,
                              .end = INT64_MAX};
    bool ok = hdb_runs(d, row.id, take_run, &r, e) >= 0;
    if (ok && !r.n_run)
        ok = err_set(e, ERR_DB, "session %s has no run in its log", row.id);
    if (ok && row.parent[0])
        ok = read_script_session(s, d, row.parent, r.first_run, depth + 1, e);
    ok = ok && read_script_rows(&r, e) && append(&r, e);
    for (int i = 0; i < r.n_entry; i++)
        act_free(&r.entry[i].act);
    FREE(r.entry, r.run);
    return ok;
}

/* Gives each message of a pack without text a text that is equal to another's only if their prompts
 * are equal: the engine compares messages to find the common beginning of two conversations. */
static void name_messages(struct script *s)
{
    for (int i = 0; i < s->n; i++) {
        struct turn_row *u = &s->act[i].user;
        if (!s->act[i].is_turn)
            continue;
        free(u->text);
        u->text = xasprintf("prompt %016llx", (unsigned long long)hash64(u->tokens.v,
                            (size_t)u->tokens.n * sizeof *u->tokens.v, 0));
        u->text_n = strlen(u->text);
    }
}

/* The prompts come from clients of `aerie serve`: rendering the conversation here would not give
 * them. */
static bool was_served(const struct script *s)
{
    bool served = false;
    for (int i = 0; i < s->n && !served; i++) {
        FREED(free_at) char *v = s->act[i].about ? facts_value(s->act[i].about, "served") : NULL;
        served = v != NULL;
    }
    return served;
}

bool act_has_fault(const struct act *a, const struct event *ev)
{
    return a->fault && a->rule == ev->at.rule;
}

bool act_cut_short(const struct act *a)
{
    enum stop_reason stop = a->reply.stop;
    return stop == STOP_OPEN || stop == STOP_CANCEL || stop == STOP_DEVICE || stop == STOP_CRASHED;
}

bool act_refused(const struct act *a)
{
    return a->reply.stop == STOP_CONTEXT && !a->reply.n_steps;
}

bool script_read(struct script *s, struct hdb *d, const char *session, struct err *e)
{
    const struct pack_about *pack = hdb_packed(d);
    bool no_text = pack && pack->level != PACK_TEXT;
    *s = (struct script){.by_ids = no_text, .no_text = no_text};
    s->no_ids = pack && pack->level == PACK_SHAPE;
    if (read_script_session(s, d, session, INT64_MAX, 0, e)) {
        if (no_text)
            name_messages(s);
        s->served = was_served(s);
        s->by_ids |= s->served;
        return true;
    }
    script_free(s);
    return false;
}
