/* resume.c - resumes and forks saved sessions: reads the turns from the log, those before a
 * fork from the parent sessions, and sends them to the engine. /fork of the open session does the
 * same, so that the copy has the turns of the log, including those that have left the engine's
 * context since. */
#include <limits.h>

#include "engine/bugs.h"
#include "kernels/lines.h"
#include "repl/compare/facts.h"
#include "repl/process/interrupt.h"
#include "repl/repl.h"

/* Which runs of a session have the open model's vocabulary. */
struct vocabularies {
    const char *now; /* tokenizer's digest */
    struct {
        int64_t from; /* order of the run's beginning */
        bool same;
    } *run;
    int n;
};

static bool look_at_run(const struct run_row *r, void *arg)
{
    struct vocabularies *v = arg;
    MAKE_ROOM(v->run, v->n);
    v->run[v->n].from = r->order;
    v->run[v->n++].same = facts_same_tokens(r->about, v->now);
    return true;
}

/* Drops the ids of replies that were computed with another vocabulary: *p then has their texts.
 * Returns the last such turn; 0: there is none. */
static int drop_foreign_ids(struct app *a, struct hdb_past *p)
{
    int last = 0;
    struct vocabularies v = {.now = backend_info(a->backend)->tokenizer_sha};
    const char *of = "";
    for (int i = 0; i < p->n; i++) {
        const struct turn_row *u = &p->turn[i].user;
        if (strcmp(of, u->session) != 0) {
            of = u->session;
            v.n = 0;
            hdb_runs(a->hdb, of, look_at_run, &v, NULL);
        }
        int k = v.n - 1;
        while (k > 0 && v.run[k].from > u->order)
            k--;
        if (k < 0 || v.run[k].same)
            continue;
        p->turn[i].reply.tokens.n = 0;
        last = u->n;
    }
    free(v.run);
    return last;
}

/* The request with the turns in the context. Replies computed here are given as ids, which the open
 * model knows (drop_foreign_ids()); a server's ids belong to its own vocabulary, so its replies are
 * given as text. */
static struct request past_request(enum request_kind kind, const struct hdb_past *p, const char *id)
{
    struct request rq = {.kind = kind, .next_turn = p->last + 1, .draws = p->draws};
    memcpy(rq.session, id, sizeof rq.session);
    FOR_EACH(const struct past_pair, from, p->turn, p->n) {
        if (from->state != PAST_LIVE)
            continue;
        struct past_turn *t = past_add(&rq.past, &rq.n_past, from->user.n, from->user.text,
                                       from->reply.text);
        if (!from->reply.served)
            ids_cat(&t->ids, from->reply.tokens.v, from->reply.tokens.n);
    }
    return rq;
}

static bool take_number(const struct step_row *r, void *arg)
{
    *(int *)arg = r->n;
    return true;
}

/* The newest step of a turn in the log; 0: it has none. */
static int newest_step(struct app *a, const struct hdb_past *p, int turn)
{
    int i = 0, step = 0;
    while (i + 1 < p->n_part && turn > p->part[i].upto)
        i++;
    return hdb_steps(a->hdb, p->part[i].session, turn, take_number, &step, NULL) > 0 ? step : 0;
}

/* Shows the session as the log has it: the newest step of the conversation. The engine computes it
 * again with the next message. */
static void show_saved(struct app *a, const struct hdb_past *p)
{
    a->resumed_end = (struct address){0};
    for (int i = p->n - 1; i >= 0 && a->at.turn == 0; i--) {
        const struct past_pair *t = &p->turn[i];
        int step = t->user.n <= p->last ? newest_step(a, p, t->user.n) : 0;
        if (step && a->resumed_end.turn == 0)
            a->resumed_end = (struct address){t->user.n, step};
        if (step && t->state == PAST_LIVE && t->user.n > a->foreign)
            a->at = (struct address){t->user.n, step};
    }
}

/* Sets the app's own state of the session, once the engine has accepted the request. */
static void set_session(struct app *a, const struct hdb_past *p, const char *id)
{
    memcpy(a->session, id, sizeof a->session);
    a->turn = p->last;
    a->step = a->turns.n = 0;
    a->at = (struct address){0}; /* it was an address in the session before */
    a->refused = a->resumed = false;
    for (int i = 0; i < p->n; i++)
        if (p->turn[i].state == PAST_LIVE)
            ids_add(&a->turns, p->turn[i].user.n);
}

/* ---- settings of the session ---- */

/* The settings of a resumed session while they are compared with the present ones. */
struct adoption {
    struct app *a;
    const struct settings *now;
    bool same_device; /* if not, `chunk` is not adopted: each device chooses its own */
    struct buf lines; /* for the engine */
    struct buf adopted, refused; /* for people */
};

__attribute__((format(printf, 2, 3)))
static void add_item(struct buf *out, const char *fmt, ...)
{
    char text[256];
    PRINT_ARGS(text, fmt);
    buf_printf(out, "%s%s", out->n ? ", " : "", text);
}

/* Whether the command line gave the setting; of the draft's shape: one of its parts; of a part:
 * the shape. */
static bool is_given(const struct app *a, int i)
{
    const unsigned given = a->opt.given;
    const enum option_kind kind = settings_at(i)->kind,
                           other = kind == OPT_PART ? OPT_SHAPE : OPT_PART;
    return given >> i & 1 ||
           ((kind == OPT_PART || kind == OPT_SHAPE) &&
            ANY(k, settings_count(), (given >> k & 1) && settings_at(k)->kind == other));
}

static void adopt_setting(struct adoption *t, int i, const char *value)
{
    const char *name = settings_at(i)->name;
    struct settings as = *t->now;
    FREED(buf_free) struct buf now = {0};
    struct err e;
    settings_get(t->now, name, &now);
    bool is_check = strcmp(name, "check") == 0, is_chunk = strcmp(name, "chunk") == 0;
    /* whether `forget` is ask or oldest depends on whether a person is at the terminal now */
    bool is_asking = strcmp(name, "forget") == 0 && strcmp(value, "never") != 0;
    /* the shape's parts are settings, too */
    bool is_parts = settings_at(i)->kind == OPT_SHAPE && !t->now->auto_shape &&
                    strcmp(value, "auto") != 0;
    if (strcmp(now.p, value) == 0 || (is_chunk && !t->same_device) || is_asking || is_parts)
        ;
    else if (!settings_set(&as, name, value, &e) ||
             !settings_fit(&as, backend_info(t->a->backend)->vocab, &e))
        add_item(&t->refused, "%s %s (the log has %.40s, which it cannot be)", name, now.p, value);
    else if (is_given(t->a, i))
        add_item(&t->refused, "%s %s (as the command line says; the session had %s)", name, now.p,
                 value);
    else if (is_check && as.check < t->now->check)
        add_item(&t->refused, "check %s (the session had %s; /set check %s)", now.p, value, value);
    else {
        add_item(&t->adopted, "%s %s", name, value);
        buf_printf(&t->lines, "%s=%s\n", name, value);
    }
}

/* A log never switches a fault on. */
static void note_faults(struct adoption *t, const struct bugs *on, const char *lines)
{
    for (int i = 0; i < N_BUGS; i++) {
        FREED(free_at) char *name = xasprintf("bug.%d", bug_at((enum bug)i)->number);
        FREED(free_at) char *value = facts_value(lines, name);
        if (value && strcmp(value, "off") != 0 && !bug_on(on, (enum bug)i))
            add_item(&t->refused, "fault %s off (the session had it %s; /bug %s on)", name + 4,
                     value, name + 4);
    }
}

/* "vLLM 0.26.0 at http://host:8000/ (name)", or "DIR, computed here". */
static void say_who(const char *kind, const char *version, const char *url, const char *model,
                    struct buf *out)
{
    if (kind && *kind)
        buf_printf(out, "%s%s%s%s%s (%s)", kind, version && *version ? " " : "", version ? version
                   : "", url && *url ? " at " : "", url ? url : "", model ? model : "?");
    else
        buf_printf(out, "%s, computed here", model && *model ? model : "a local model");
}

/* If a server computed the session or computes now: notes that another engine answers from here on.
 * False: no server is involved, or it is the same server and model. */
static bool note_server(struct app *a, const char *log)
{
    const struct backend_info *i = backend_info(a->backend);
    static const char *const name[] = {"server_kind", "server_version", "server_url", "model_dir"};
    char *was[4];
    for (int k = 0; k < 4; k++)
        was[k] = facts_value(log, name[k]);
    bool any = was[0] || i->server_kind;
    bool same = was[0] && i->server_kind && was[2] && strcmp(was[2], i->server_url) == 0 &&
                was[3] && strcmp(was[3], i->model_dir) == 0;
    if (any && !same) {
        buf_str(&a->notes, "the turns so far are of ");
        say_who(was[0], was[1], was[2], was[3], &a->notes);
        buf_str(&a->notes, "; the next ones are of ");
        say_who(i->server_kind, i->server_version, i->server_url, i->model_dir, &a->notes);
        buf_str(&a->notes, ", which gets their text\n");
    }
    for (int k = 0; k < 4; k++)
        free(was[k]);
    return any;
}

/* Notes what differs from the session and was fixed when aerie started: models, pools,
 * precision. */
static void note_engine(struct app *a, struct hdb *db, const char *id, bool *same_device)
{
    FREED(buf_free) struct buf log = {0}, now = {0}, lines = {0};
    FREED(facts_diff_free) struct facts_diff all = {0};
    struct facts_diff told = {0};
    struct err e;
    const struct backend_info *i = backend_info(a->backend);
    facts_models(i, &now);
    facts_config(&a->opt.engine, i, &now);
    if (hdb_about(db, id, &log, &e) && !note_server(a, log.p))
        facts_compare(log.p, now.p, &all);
    FREED(free_at) char *was = facts_value(log.p, "backend");
    *same_device = !was || (i->backend && strcmp(was, i->backend) == 0);
    told.at = xcalloc((size_t)all.n + 1, sizeof *told.at); /* shares the strings of `all` */
    for (int k = 0; k < all.n; k++) {
        const struct option *o = opts_logged_as(all.at[k].name);
        if (!o || !o->follows)
            told.at[told.n++] = all.at[k];
    }
    facts_diff_print(&told, &lines);
    if (told.n)
        buf_printf(&a->notes, "not as in the session, fixed since aerie started: %s\n", lines.p);
    free(told.at);
}

/* The settings to adopt from the session, as lines for the engine; a->notes lists them, and those
 * that were not adopted. switched: the session is the present one, and the user has just opened
 * another draft or model. The caller frees. */
static char *adopt_settings(struct app *a, struct hdb *db, const char *id, const struct hdb_past *p,
                            bool switched)
{
    struct settings now;
    struct bugs on;
    struct adoption t = {.a = a, .now = &now};
    app_settings(a, &now);
    app_bugs(a, &on);
    buf_clear(&a->notes);
    if (switched)
        t.same_device = true;
    else
        note_engine(a, db, id, &t.same_device);
    const char *lines = buf_text(&p->settings);
    for (int i = 0; i < settings_count(); i++) {
        FREED(free_at) char *value = facts_value(lines, settings_at(i)->name);
        if (value)
            adopt_setting(&t, i, value);
    }
    note_faults(&t, &on, lines);
    if (t.adopted.n)
        buf_printf(&a->notes, "settings of the session: %s\n", t.adopted.p);
    if (t.refused.n)
        buf_printf(&a->notes, "settings not of the session: %s\n", t.refused.p);
    if (a->opt.system && strcmp(a->opt.system, p->system ? p->system : "") != 0)
        buf_str(&a->notes, "the system prompt is the command line's, not the session's\n");
    buf_str(&t.lines, "");
    struct settings then = now;
    if (settings_parse(&then, t.lines.p, NULL))
        app_note_idle_bugs(a, &then, &on);
    buf_free(&t.adopted);
    buf_free(&t.refused);
    return t.lines.p;
}

void app_tell(struct app *a)
{
    FOR_LINES(l, a->notes.p)
        app_say(a, ST_WARN, "%.*s", (int)l.n, l.p);
    buf_free(&a->notes);
}

/* ---- /resume, --session, --continue ---- */

/* Locks the session, whose log only one process may write; another process may continue a copy. */
static bool lock_session(struct app *a, const char *id, struct err *e)
{
    bool elsewhere;
    if (!a->history || a->private_ || history_lock_session(a->history, id, &elsewhere, e))
        return true;
    if (elsewhere) { /* at the start: the command line asked for this session */
        size_t n = strlen(e->msg);
        char name[SESSION_ID];
        hdb_name(a->hdb, id, name);
        snprintf(e->msg + n, sizeof e->msg - n, a->session[0] ? "; /fork %s goes on in a copy"
                                                              : "; add --fork to go on in a copy",
                 name + (name[0] == '#'));
    }
    return false;
}

static bool open_saved(struct app *a, const char *id, bool copy, bool switched, struct err *e)
{
    FREED(hdb_past_free) struct hdb_past p = {0};
    char session[SESSION_ID];
    memcpy(session, id, sizeof session);
    if (copy)
        session_new_id(session);
    int foreign = 0;
    bool ok = copy || lock_session(a, id, e);
    bool held = ok && !copy && a->history && !a->private_ && strcmp(id, a->session) != 0;
    ok = ok && hdb_past(a->hdb, id, INT_MAX, &p, e);
    /* a copy begins with complete turns only, without one that another process is writing */
    if (copy)
        p.last = p.complete;
    char *was = a->system;
    if (ok && !a->opt.system)
        a->system = p.system && p.system[0] ? xstrdup(p.system) : NULL;
    if (ok) {
        foreign = drop_foreign_ids(a, &p);
        struct request rq = past_request(RQ_RESUME, &p, session);
        if (copy)
            memcpy(rq.parent, id, sizeof rq.parent);
        rq.text = xstrdup(a->system ? a->system : "");
        rq.settings = adopt_settings(a, a->hdb, id, &p, switched);
        ok = backend_submit(a->backend, &rq, e);
    }
    if (ok) {
        set_session(a, &p, session);
        memcpy(a->past_of, id, sizeof a->past_of);
        a->foreign = foreign;
        show_saved(a, &p);
        a->resumed = a->resumed_end.turn > 0;
        DROP(a->before);
        app_drop_past(a);
    } else if (held) {
        history_unlock_session(a->history, id);
    }
    if (a->system != was)
        free(was);
    return ok;
}

static bool find_and_open(struct app *a, const char *id, bool copy, char found[SESSION_ID],
                          struct err *e)
{
    struct hdb *db = app_hdb(a, e);
    FREED(session_row_free) struct session_row s = {0};
    if (!db || !hdb_find(db, id, &s, e))
        return false;
    memcpy(found, s.id, sizeof s.id);
    return open_saved(a, s.id, copy, false, e);
}

bool app_resume(struct app *a, const char *id, struct err *e)
{
    char found[SESSION_ID];
    return find_and_open(a, id, false, found, e);
}

bool app_fork_of(struct app *a, const char *id, char parent[SESSION_ID], struct err *e)
{
    return find_and_open(a, id, true, parent, e);
}

bool app_go_on(struct app *a, bool copy, struct err *e)
{
    char id[SESSION_ID];
    memcpy(id, a->session, sizeof id);
    if (!app_hdb(a, e))
        return false;
    hdb_stop_when(NULL); /* the engine is empty: a Ctrl-C must not leave it so */
    bool ok = open_saved(a, id, copy, true, e);
    hdb_stop_when(interrupt_waits);
    return ok;
}

static void show_past(struct app *a, const struct hdb_past *p)
{
    for (int i = 0; a->face.replay_turn && i < p->n && p->turn[i].user.n <= a->turn; i++) {
        enum past_state is = p->turn[i].state;
        if (is == PAST_LIVE || is == PAST_FAILED || is == PAST_LEFT_OUT) {
            a->face.replay_turn(a, &p->turn[i].user, past_mark(is));
            a->face.replay_turn(a, &p->turn[i].reply, past_mark(is));
        }
    }
}

bool app_show_past(struct app *a, struct err *e)
{
    FREED(hdb_past_free) struct hdb_past p = {0};
    struct hdb *db = app_hdb(a, e);
    if (a->turn == 0)
        return true;
    if (!db || !hdb_past(db, a->past_of, INT_MAX, &p, e))
        return false;
    show_past(a, &p);
    return true;
}

/* ---- /fork ---- */

/* Whether the log holds every turn of the context up to the fork. */
static bool all_stored(const struct app *a, const struct hdb_past *p, int turn, struct err *e)
{
    int k = p->n - 1;
    if (turn > 0 && (k < 0 || p->turn[k].user.n != turn || p->turn[k].state != PAST_LIVE))
        return err_set(e, ERR_USAGE, "turn %d has no reply in the log; expected one that has",
                       turn);
    for (int i = 0, at = 0; i < a->turns.n && a->turns.v[i] <= turn; i++) {
        while (at < p->n && p->turn[at].user.n != a->turns.v[i])
            at++;
        if (at == p->n || p->turn[at].state != PAST_LIVE)
            return err_set(e, ERR_DB, "turn %d is not in the log, so /fork cannot copy it",
                           a->turns.v[i]);
    }
    return true;
}

/* Whether the turns on the screen are those of the past. */
static bool same_turns(const struct app *a, const struct hdb_past *p)
{
    int k = 0;
    for (int i = 0; i < p->n; i++)
        if (p->turn[i].state == PAST_LIVE &&
            (k == a->turns.n || a->turns.v[k++] != p->turn[i].user.n))
            return false;
    return k == a->turns.n;
}

bool app_stored(struct app *a, struct err *e)
{
    struct history_status s;
    FREED(hdb_past_free) struct hdb_past p = {0};
    bool flushed = history_flush_unless(a->history, 5000, interrupt_waits);
    history_status(a->history, &s);
    if (!flushed)
        return err_set(e, ERR_DB, "the log has not stored the session yet%s%s", s.error[0] ? ": "
                       : "", s.error);
    struct hdb *db = app_hdb(a, e);
    if (!db || !hdb_past(db, a->session, INT_MAX, &p, e))
        return false;
    bool same = same_turns(a, &p);
    return same || err_set(e, ERR_DB, "the log does not have all turns of this conversation");
}

bool app_fork(struct app *a, int turn, struct err *e)
{
    struct hdb *db = app_hdb(a, e);
    FREED(hdb_past_free) struct hdb_past p = {0};
    if (!db || !hdb_past(db, a->session, turn, &p, e))
        return false;
    char child[SESSION_ID];
    session_new_id(child);
    p.last = turn;
    bool ok = all_stored(a, &p, turn, e);
    if (ok) {
        drop_foreign_ids(a, &p);
        struct request rq = past_request(RQ_FORK, &p, child);
        ok = backend_submit(a->backend, &rq, e);
    }
    while (ok && a->turns.n && a->turns.v[a->turns.n - 1] > turn)
        app_forget_turn(a);
    bool shown = ok && same_turns(a, &p);
    if (ok)
        set_session(a, &p, child);
    if (ok && !shown && a->face.clear)
        a->face.clear(a);
    if (ok && !shown)
        show_past(a, &p);
    return ok;
}
