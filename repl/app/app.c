/* app.c - the program's state: opens log, engine and session together, and passes messages and
 * events on.
 *
 * The log is opened before the engine, because the engine posts into its queue. A log that cannot
 * be opened causes a notice and a badge in the status line; the chat goes on. */
#include <langinfo.h>
#include <signal.h>
#include <unistd.h>

#include "repl/process/open.h"
#include "repl/recorded/recorded.h"
#include "repl/repl.h"
#include "repl/compare/facts.h"
#include "repl/process/interrupt.h"
#include "repl/process/isolate.h"

/* ---- opening and closing --------------------------------------------------------------------- */

static bool color_wanted(const struct options *o)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    if (o->color)
        return o->color == 1;
    return !(no && *no) && isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

/* The facts of this process for the log; `i` is NULL before the engine is open. */
static struct history_about about(const struct app *a, const struct backend_info *i,
                                  const char *config)
{
    const struct engine_opts *o = &a->opt.engine;
    return (struct history_about){
        .version = AERIE_VERSION,
        .device = i && i->server_kind ? "" : i && i->device ? i->device : i ? "unknown" : o->device
                      ? o->device : "auto",
        .flags = facts_build(),
        .model_dir = i && i->server_kind ? i->model_dir : o->model,
        .model_sha = i ? i->model_sha : "",
        .draft_dir = i && !i->draft_dir ? NULL : o->draft,
        .draft_sha = i ? i->draft_sha : "",
        .tokenizer_sha = i ? i->tokenizer_sha : "",
        .server = i ? i->server_kind : NULL,
        .server_version = i ? i->server_version : NULL,
        .server_url = i ? i->server_url : NULL,
        .server_facts = i ? i->server_facts : NULL,
        .config = config,
    };
}

static const char *token_text(void *backend, int32_t id, size_t *n)
{
    return backend_token(backend, id, n);
}

/* Appends the options that a replay needs; for `aerie serve` also a line that the prompts are
 * clients'. */
static void describe(const struct app *a, const struct backend_info *i, struct buf *out)
{
    facts_config(&a->opt.engine, i, out);
    if (a->opt.served)
        buf_str(out, "served=yes\n");
}

/* Removes the sessions that the options keep-days and keep-sessions no longer keep; adds a line to
 * `notes`. */
static void retain(struct app *a)
{
    const struct prune_rule rule = {.older_than = a->opt.keep_days ? a->opt.keep_days : ANY_AGE,
                                    .keep = a->opt.keep_sessions ? a->opt.keep_sessions : -1,
                                    .to_bytes = -1,
                                    .by_itself = true};
    struct pruned gone;
    struct err e = {0};
    if (rule.older_than == ANY_AGE && rule.keep < 0)
        return;
    if (!history_prune(a->db_path, &rule, &gone, NULL, &e))
        buf_printf(&a->notes, "old sessions were not removed: %s\n", e.msg);
    else if (gone.clock_doubted)
        buf_str(&a->notes, "the clock is over a year past the newest session: "
                           "no session was removed for its age (keep-days)\n");
    if (gone.sessions)
        buf_printf(&a->notes, "%d old session%s removed from the log (keep-days, keep-sessions)\n",
                   gone.sessions, plural(gone.sessions));
}

static void open_log(struct app *a)
{
    if (a->opt.level == LOG_OFF || a->opt.readonly)
        return;
    struct err e = {0};
    FREED(buf_free) struct buf config = {0};
    describe(a, NULL, &config);
    struct history_about h = about(a, NULL, config.p);
    a->history = history_open(a->db_path, a->opt.level, &h, &e);
    if (!a->history)
        snprintf(a->log_error, sizeof a->log_error, "%.255s", e.msg);
    if (a->history) {
        const struct history_limit limit = {a->opt.max_size * INT64_C(1000000),
                                            a->opt.at_limit == 1};
        struct history_status s;
        history_status(a->history, &s);
        if (s.notice[0])
            buf_printf(&a->notes, "%s\n", s.notice);
        retain(a);
        if (limit.max_bytes)
            history_set_limit(a->history, &limit);
    }
}

/* Colours and characters, from the options. */
static void app_look_at_terminal(struct app *a)
{
    a->color = color_wanted(&a->opt);
    a->ascii = a->opt.ascii || strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
}

static bool open_session(struct app *a, const char *id, struct err *e)
{
    char parent[SESSION_ID];
    if (!id && a->opt.fork)
        return err_set(e, ERR_USAGE, "--fork takes up a copy of a session; expected --session ID "
                                     "or -c, too");
    if (!id) {
        struct settings set;
        struct bugs on;
        app_settings(a, &set);
        app_bugs(a, &on);
        app_note_idle_bugs(a, &set, &on);
        return app_new_session(a, e);
    }
    if (a->opt.fork)
        return app_fork_of(a, id, parent, e);
    return app_resume(a, id, e);
}

void app_describe(struct app *a)
{
    if (!a->history)
        return;
    FREED(buf_free) struct buf config = {0};
    describe(a, backend_info(a->backend), &config);
    struct history_about h = about(a, backend_info(a->backend), config.p);
    struct history_texts texts = {backend_info(a->backend)->vocab, token_text, a->backend};
    history_describe(a->history, &h, &texts);
}

bool app_open(struct app *a, const struct options *o, struct err *e)
{
    struct face face = a->face; /* kept: it shows the progress of loading */
    memset(a, 0, sizeof *a);
    a->face = face;
    a->opt = *o;
    a->opt.engine.settings.verbose |= o->verbose;
    app_look_at_terminal(a);
    a->db_path = o->db ? xstrdup(o->db) : history_default_path();
    a->system = o->system ? xstrdup(o->system) : NULL;
    open_log(a);
    a->opt.engine.log = a->history ? history_queue(a->history) : NULL;
    a->backend = open_backend(&a->opt.engine, e);
    isolate_after_loading(); /* also where the backend is a server */
    if (!a->backend ||
        !settings_fit(&a->opt.engine.settings, backend_info(a->backend)->vocab, e)) {
        app_close(a);
        return false;
    }
    app_describe(a);
    const char *id = o->session ? o->session : o->resume_last ? "last" : NULL;
    bool ok = open_session(a, id, e);
    if (!ok)
        app_close(a);
    return ok;
}

/* "2 turns are not saved: ...", or "the session's last changes are ..." when no whole turn is
 * missing. */
static void name_unstored(const struct history_left *left, struct buf *out)
{
    if (left->turns)
        buf_printf(out, "%d turn%s %s ", left->turns, plural(left->turns),
                   left->turns == 1 ? "is" : "are");
    else
        buf_str(out, "the session's last changes are ");
    buf_printf(out, "%s%s", left->failed ? "not saved: " : "still being stored", left->why);
}

/* Prints on standard error, also under --quiet, because the line is about lost messages of the
 * user. */
static void print_unstored(const struct history_left *left)
{
    FREED(buf_free) struct buf line = {0}, clean = {0};
    name_unstored(left, &line);
    if (left->kept[0])
        buf_printf(&line, "; kept in %s, the next start stores it", left->kept);
    else
        buf_str(&line, ", and no file beside the log could be written: it is lost");
    text_sanitise(&clean, line.p, line.n, false);
    err_print("%s", clean.p);
}

/* Before the wait for a disk that is slow. */
static void print_wait(const struct history_left *left)
{
    FREED(buf_free) struct buf line = {0};
    name_unstored(left, &line);
    err_print("%s; a signal from now on ends the program before that", line.p);
}

/* Waits while the disk refuses writes; longer if the turns could not be kept in a side file
 * either. */
static bool wait_for_log(struct app *a, struct history_left *left)
{
    enum { KEPT_MS = 10000, BARE_MS = 60000, STEP_MS = 100 };
    static const int sig[] = {SIGINT, SIGTERM, SIGHUP};
    FREED(buf_free) struct buf line = {0};
    bool done = false;
    int most = left->kept[0] || !isatty(STDIN_FILENO) ? KEPT_MS : BARE_MS;
    interrupt_close();
    bool can_leave = interrupt_open(sig, 3, false, NULL, NULL);
    name_unstored(left, &line);
    err_print("%s; waiting up to %d s, Ctrl-C leaves", line.p, most / 1000);
    for (int ms = 0; !done && ms < most && !(can_leave && interrupt_waits()); ms += STEP_MS)
        done = history_finish(a->history, STEP_MS, left);
    for (int got; (got = interrupt_next()) != 0;)
        if (got != SIGINT) /* Ctrl-C only ends the wait; the exit code depends on what was stored */
            a->exit_code = 128 + got;
    interrupt_close();
    return done;
}

/* Called after the engine is closed: the log stores the events that are still in its queue. */
static bool close_log(struct app *a)
{
    struct history_left left;
    if (!a->history)
        return true;
    struct history_status s;
    const bool ended = a->exit_code >= 128; /* ended by a signal: do not wait long */
    if (ended)
        history_hasten(a->history);
    bool stored = history_finish(a->history, ended ? 600 : 1500, &left);
    history_status(a->history, &s);
    if (s.left_out)
        err_print("%llu turn%s %s not saved: %s", (unsigned long long)s.left_out,
                plural((long long)s.left_out), s.left_out == 1 ? "is" : "are", s.limit);
    else if (s.room_left != ROOM_ENOUGH && a->log_room == ROOM_ENOUGH && !a->opt.quiet)
        err_print("%s", s.limit);
    if (!stored && !ended)
        stored = wait_for_log(a, &left);
    if (!stored && !left.failed)
        print_wait(&left);
    if (!stored && !(stored = history_join(a->history, &left)))
        print_unstored(&left);
    history_status(a->history, &s);
    if (stored && s.error[0] && !s.left_out) /* steps, which a reply can do without */
        err_print("not saved: %s", s.error);
    history_close(a->history);
    return stored && !s.left_out;
}

bool app_close(struct app *a)
{
    app_drop_past(a);
    backend_close(a->backend);
    hdb_close(a->hdb); /* before the writer: the last connection removes the write-ahead log */
    bool stored = close_log(a);
    for (int i = a->early_next; i < a->n_early; i++)
        event_free(&a->early[i]);
    FREE(a->early, a->before);
    ids_free(&a->turns);
    attached_free(&a->attached);
    buf_free(&a->asked);
    buf_free(&a->said);
    buf_free(&a->notes);
    buf_free(&a->parting);
    FREE(a->db_path, a->system, a->own_model, a->own_draft);
    a->own_model = a->own_draft = NULL;
    a->backend = NULL;
    a->history = NULL;
    a->hdb = NULL;
    a->db_path = a->system = NULL;
    return stored;
}

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
                      const char *session, struct event *early, int n)
{
    memset(a, 0, sizeof *a);
    a->opt = *o;
    a->opt.readonly = true;
    a->backend = b;
    app_look_at_terminal(a);
    snprintf(a->session, sizeof a->session, "%s", session);
    a->db_path = o->db ? xstrdup(o->db) : history_default_path();
    a->early = early;
    a->n_early = n;
}

/* ---- requests to the engine ----------------------------------------------------------------- */

bool app_submit(struct app *a, struct request *rq, struct err *e)
{
    enum request_kind kind = rq->kind;
    memcpy(rq->session, a->session, sizeof rq->session);
    bool ok = backend_submit(a->backend, rq, e);
    bool goes_on = kind == RQ_SAY || kind == RQ_REGEN || kind == RQ_UNDO || kind == RQ_FORGET;
    if (ok && goes_on) /* the conversation goes on: the present is shown */
        a->at = (struct address){0};
    return ok;
}

bool app_request(struct app *a, enum request_kind kind, const char *text, struct err *e)
{
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL};
    return app_submit(a, &rq, e);
}

bool app_new_session(struct app *a, struct err *e)
{
    session_new_id(a->session);
    a->turn = a->step = a->turns.n = 0;
    a->at = (struct address){0}; /* it was an address in the session before */
    a->refused = a->resumed = false;
    a->foreign = 0;
    a->past_of[0] = '\0';
    return app_request(a, RQ_NEW, a->system, e);
}

bool app_send(struct app *a, const char *text, struct err *e)
{
    FREED(buf_free) struct buf all = {0};
    int n = app_attached(a);
    if (text[strspn(text, " \t\r\n")] == '\0' && n == 0)
        return err_set(e, ERR_USAGE, "the message is empty");
    for (int i = 0; i < n; i++) {
        const struct buf *t = &a->attached.file[i].text;
        buf_add(&all, t->p, t->n);
        buf_str(&all, t->p[t->n - 1] == '\n' ? "\n" : "\n\n");
    }
    buf_str(&all, text);
    bool ok = backend_fits(a->backend, all.p, e) && app_request(a, RQ_SAY, all.p, e);
    if (ok)
        app_drop(a, -1);
    return ok;
}

/* ---- attachments ----------------------------------------------------------------------------- */

void attached_free(struct attached *f)
{
    for (int i = 0; i < f->n; i++) {
        free(f->file[i].name);
        buf_free(&f->file[i].text);
    }
    free(f->file);
    *f = (struct attached){0};
}

int app_attached(struct app *a)
{
    if (a->attached.n > 0 && strcmp(a->attached.session, a->session) != 0) {
        FREED(buf_free) struct buf names = {0};
        app_attached_text(a, &names);
        app_say(a, ST_WARN, "attached in another session, so not in the next message: %.800s",
                names.p);
        attached_free(&a->attached);
    }
    return a->attached.n;
}

void app_attach(struct app *a, const char *name, struct buf *text)
{
    struct attached *f = &a->attached;
    app_attached(a);
    memcpy(f->session, a->session, sizeof f->session);
    *APPEND(f->file, f->n) = (struct attachment){.name = xstrdup(name), .text = *text};
    *text = (struct buf){0};
}

void app_drop(struct app *a, int i)
{
    struct attached *f = &a->attached;
    if (i < 0) {
        attached_free(f);
        return;
    }
    CHECK(i < f->n);
    free(f->file[i].name);
    buf_free(&f->file[i].text);
    CUT(f->file, f->n, i);
}

void app_attached_text(const struct app *a, struct buf *out)
{
    buf_str(out, "");
    for (int i = 0; i < a->attached.n; i++) {
        const struct attachment *f = &a->attached.file[i];
        double n = (double)f->text.n;
        buf_printf(out, "%s%s ", i ? ", " : "", f->name);
        if (n < 1000)
            buf_printf(out, "%.0f B", n);
        else
            buf_printf(out, n < 999500 ? "%.1f kB" : "%.1f MB", n < 999500 ? n / 1e3 : n / 1e6);
    }
}

/* ---- events from the engine -------------------------------------------------------------- */

void app_event(struct app *a, const struct event *ev)
{
    switch (ev->kind) {
    case EV_TURN_BEGIN:
        if (ev->regen)
            app_forget_turn(a);
        ids_add(&a->turns, ev->turn);
        a->refused = false;
        buf_clear(&a->asked);
        buf_add(&a->asked, ev->text.p, ev->text.n);
        buf_str(&a->asked, "");
        buf_clear(&a->said);
        a->turn = a->said_turn = ev->turn;
        a->step = 0;
        if (a->history) { /* what the turns before have filled */
            struct history_status s;
            history_status(a->history, &s);
            app_watch_log(a, &s);
        }
        break;
    case EV_TEXT:
        if (ev->channel == 0 && ev->turn == a->said_turn)
            buf_add(&a->said, ev->text.p, ev->text.n);
        break;
    case EV_TURN_END:
        if (ev->n_tokens ==
            0) /* the turn left nothing in the context; the screen may still show it */
            a->turns.n -= a->turns.n > 0;
        a->refused = ev->reason == STOP_CONTEXT && ev->n_tokens == 0;
        break;
    case EV_OP:
        if (ev->op == OP_UNDO)
            app_forget_turn(a);
        if (ev->op == OP_FORGET) {
            int n = 0;
            for (int i = 0; i < a->turns.n; i++)
                if (!turns_have(&ev->turns, a->turns.v[i]))
                    a->turns.v[n++] = a->turns.v[i];
            a->turns.n = n;
        }
        break;
    case EV_SESSION:
        if (!a->past.b || strcmp(a->past.session, ev->session) != 0)
            app_drop_past(a);
        a->violated = false;
        a->said_turn = 0;
        break;
    case EV_FAULT:
        a->violated |= ev->fault == ERR_INVARIANT && !app_recording(a);
        break;
    case EV_STEP:
        a->step = ev->step;
        break;
    case EV_PAUSE:
        app_follow_recording(a);
        break;
    default:
        break;
    }
}

/* ---- notices and errors ---------------------------------------------------------------------- */

void app_watch_log(struct app *a, const struct history_status *s)
{
    if (s->room_left > a->log_room)
        app_say(a, ST_WARN, "%s", s->limit);
    a->log_room = s->room_left;
}

bool app_saving_changed(struct app *a, char line[256])
{
    struct history_status now;
    if (!a->history)
        return false;
    history_status(a->history, &now);
    bool changed = strcmp(now.error, a->unsaved) != 0;
    if (now.error[0])
        snprintf(line, 256, "not saved: %.244s", now.error);
    else
        snprintf(line, 256, "the log is saved again");
    memcpy(a->unsaved, now.error, sizeof a->unsaved);
    return changed;
}

void app_last_words(const struct app *a, const struct event *ev, struct buf *out)
{
    struct history_status h = {0};
    if (a->history)
        history_status(a->history, &h);
    buf_str(out, ev->text.p ? ev->text.p : "the device failed");
    if (h.recording && !a->private_)
        buf_printf(out, "; aerie --session %s goes on from what was said", a->session);
}

int app_exit_code(const struct app *a)
{
    return a->violated ? max_int(a->exit_code, ERR_INVARIANT) : a->exit_code;
}

void app_fault_next(struct app *a, const struct violation *at, struct buf *out)
{
    struct chat_view v;
    bool pages = backend_has(a->backend, VIEW_PAGES);
    if (!at->rule || !backend_has(a->backend, VIEW_CHECK))
        return;
    backend_chat(a->backend, &v);
    if (at->mode >= 0 && backend_has(a->backend, VIEW_PLAN))
        buf_printf(out, "/plan %s, ", plan_mode_name((enum plan_mode)at->mode));
    if (pages && at->cell >= 0 && at->cell < v.length)
        buf_printf(out, "/map %d, ", at->cell);
    if (pages && at->page > 0 && at->pool >= 0)
        buf_printf(out, "/page %d %s, ", at->page, pool_name((enum pool_id)at->pool));
    buf_str(out, "/check");
}
