/* rerun.c - see rerun.h. */
#include "repl/process/open.h"
#include "kernels/ascii.h"
#include "kernels/lines.h"
#include "repl/compare/rerun.h"

#include <errno.h>
#include <unistd.h>

#include "models/chat/chat.h"
#include "repl/compare/change.h"
#include "repl/compare/conditions.h"
#include "repl/compare/facts.h"
#include "repl/process/interrupt.h"

/* ---- changes --------------------------------------------------------------------------------- */

/* The fault or the setting that a line sets: two lines set the same if their keys are equal. Keys
 * of options are their names. */
static char *key_of(const char *line)
{
    enum bug b;
    struct err e;
    char *name = xasprintf("%.*s", (int)strcspn(line, "=\n"), line), *key = NULL;
    if (strncmp(name, "bug.", 4) == 0 && bug_find(name + 4, &b, &e))
        key = xasprintf("bug.%d", bug_at(b)->number);
    else if (settings_named(name)) /* "draft" is an option */
        key = xstrdup(name);
    if (!key)
        return name;
    free(name);
    return key;
}

/* Whether a change names the setting, fault or option of a line "name=value". */
static bool rerun_changes(const char *const *with, int n, const char *line)
{
    FREED(free_at) char *key = key_of(line);
    bool found = false;
    for (int i = 0; i < n && !found; i++) {
        FREED(free_at) char *other = key_of(with[i]);
        found = strcmp(key, other) == 0;
    }
    return found;
}

/* Whether an engine takes the change as an RQ_SET, besides as an option of opening. */
static bool is_set(const char *change)
{
    FREED(free_at) char *key = key_of(change);
    return settings_named(key) || strncmp(key, "bug.", 4) == 0;
}

/* Appends a change as a line of settings: "bug.24617=on". */
static void add_change(const char *change, struct buf *out)
{
    FREED(free_at) char *key = key_of(change);
    buf_printf(out, "%s%s\n", key, strchr(change, '='));
}

static bool is_kind(const char *line, enum option_kind kind)
{
    FREED(free_at) char *key = key_of(line);
    const struct option *o = settings_named(key);
    return o && o->kind == kind;
}

void rerun_settings(const char *const *with, int n, const char *lines, struct buf *out)
{
    FOR_LINES(l, lines) {
        FREED(free_at) char *line = line_copy(l);
        if (!rerun_changes(with, n, line))
            buf_printf(out, "%s\n", line);
    }
    for (int i = 0; i < n; i++) /* of two values of a setting, the last holds */
        if (is_set(with[i]) && !rerun_changes(with + i + 1, n - i - 1, with[i]))
            add_change(with[i], out);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void handle_event(struct rerun *r, struct event *ev)
{
    if (ev->kind == EV_FAULT && ev->lost)
        err_set(&r->lost, ERR_MODEL, "%s", ev->text.p);
    if (r->on.event && !r->on.event(r->on.arg, r->turn, ev))
        r->stop = true;
    if (r->turn && ev->kind == EV_TURN_END) {
        r->ended = true;
        r->n_reply = ev->n_tokens;
    }
}

static bool holds(const struct rerun *r, const struct act *a)
{
    return r->how.hold && a && a == r->goal && backend_has(r->backend, VIEW_DEBUG);
}

/* Handles the pause of a turn, before or after the step; if the turn does not reach the step, there
 * is no pause. */
static void on_pause(struct rerun *r, const struct event *ev)
{
    bool done = ev->step >= r->how.step;
    struct err e;
    if (r->on.held)
        r->on.held(r->on.arg, r->backend, done);
    r->reached |= done;
    r->stop |= done;
    if (done)
        backend_cancel(r->backend);
    r->backend->debug->run(r->backend, done ? RUN_FINISH : RUN_STEP, 1, NULL, &e);
}

/* Submits a request and handles events until the engine is idle. In a chat a signal ends it. */
static bool run_request(struct rerun *r, struct request *rq, struct err *e)
{
    if (!backend_submit(r->backend, rq, e))
        return false;
    bool interrupted = false;
    for (bool cancelled = false;;) {
        bool busy =
            /* asked before the queue is read, so that the queue has all its events */
            backend_busy(r->backend);
        interrupted = interrupted || interrupt_waits();
        struct event ev;
        bool got = backend_wait(r->backend, &ev, busy ? 2 : 0);
        if (got) {
            if (ev.kind == EV_PAUSE && holds(r, r->turn))
                on_pause(r, &ev);
            else
                handle_event(r, &ev);
            event_free(&ev);
        } else if (!busy) {
            break;
        }
        if ((interrupted || (r->stop && !r->ended)) && !cancelled) {
            backend_cancel(r->backend);
            cancelled = true;
        }
    }
    if (interrupted)
        return err_set(e, ERR_USAGE, "interrupted");
    return !r->lost.kind || err_set(e, ERR_MODEL, "%s", r->lost.msg);
}

static bool run_text_request(struct rerun *r, enum request_kind kind, const char *session,
                             const char *text, struct err *e)
{
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL};
    memcpy(rq.session, session, SESSION_ID);
    return run_request(r, &rq, e);
}

/* ---- the engine ------------------------------------------------------------------------------ */

/* The facts of the opened engine as "name=value" lines, as the log has them. */
static void lines_now(const struct engine_opts *o, const struct backend_info *i, struct buf *out)
{
    facts_models(i, out);
    buf_printf(out, "device=%s\nflags=%s\n", i->device ? i->device : "", facts_build());
    facts_config(o, i, out);
}

void rerun_options_free(struct logged_engine *l)
{
    FREE(l->lines, l->model, l->draft);
}

/* The logged folder of a model, or, if it does not exist, the default one: a pack names no folders,
 * and hashes decide whether the models are the same. "ngram" is not a folder. */
static const char *found(const char *logged, const char *usual)
{
    bool here = !logged || !usual || !strcmp(logged, "ngram") || access(logged, R_OK) == 0;
    return here ? logged : usual;
}

/* A draft that is asked for must fit: without drafting, the run would be another one. The layers
 * that the log's draft read are not those of another draft, and its precision is none of n-grams,
 * which have no weights. */
static bool apply_changes(struct logged_engine *l, const struct rerun_how *how, struct err *e)
{
    const bool draft = rerun_changes(how->with, how->n_with, "draft=");
    if (draft)
        l->opts.capture = how->engine.capture;
    for (int i = 0; i < how->n_with; i++)
        if (!change_apply(&l->opts, how->with[i], e))
            return false;
    const bool asked = draft || rerun_changes(how->with, how->n_with, "eagle_capture=") ||
                       (how->draft_given && !how->refusal); /* a check names what differs */
    l->opts.require_draft = l->opts.draft && asked;
    if (l->opts.draft && strcmp(l->opts.draft, "ngram") == 0 &&
        !how->engine.quant.draft_weights &&
        !rerun_changes(how->with, how->n_with, "draft_weights="))
        l->opts.quant.draft_weights = NULL;
    return true;
}

/* For a run that a server computed: only the settings and the chat format apply to this engine. */
static bool read_served(struct logged_engine *l, const struct rerun_how *how, const struct act *a,
                        struct err *e)
{
    l->opts = how->engine;
    l->opts.server = (struct server_opts){0};
    l->opts.log = NULL;
    FREED(free_at) char *raw = facts_value(a->about, "raw");
    l->opts.raw |= raw && strcmp(raw, "0") != 0;
    settings_init(&l->opts.settings);
    bool ok = settings_parse(&l->opts.settings, a->text, e) && apply_changes(l, how, e);
    if (ok && !l->opts.model)
        ok = err_set(e, ERR_MODEL, "no model: the bundled one is not installed; expected -m DIR");
    return ok;
}

bool rerun_options(struct logged_engine *l, const struct rerun_how *how, const struct act *a,
                   struct err *e)
{
    *l = (struct logged_engine){0};
    if (facts_served(a->about))
        return read_served(l, how, a, e);
    struct engine_opts asked = how->engine;
    if (asked.device && strcmp(asked.device, "auto") == 0)
        asked.device = NULL;
    l->lines = xstrdup(a->about);
    l->model = facts_value(a->about, "model_dir");
    l->draft = facts_value(a->about, "draft_dir");
    l->opts = (struct engine_opts){.backend = asked.backend, .progress = asked.progress,
                                   .progress_arg = asked.progress_arg};
    opts_read(&l->opts, &asked, l->lines);
    l->device = asked.device ? NULL : l->opts.device;
    if (!l->opts.device)
        l->opts.device = how->engine.device;
    if (l->opts.kv && strcmp(l->opts.kv, "fp8") != 0) /* the log has what `auto` was */
        l->opts.kv = asked.kv;
    if (!how->model_given)
        l->opts.model = found(l->model, asked.model);
    if (!how->draft_given)
        l->opts.draft = found(l->draft && *l->draft ? l->draft : NULL, asked.draft);
    settings_init(&l->opts.settings);
    bool ok = settings_parse(&l->opts.settings, a->text, e);
    bool context = rerun_changes(how->with, how->n_with, "context=");
    bool pages = rerun_changes(how->with, how->n_with, "page_size=");
    if (pages && !context) /* the log's numbers of pages assume its page size */
        l->opts.was = (struct pools_before){l->opts.page_size, l->opts.full_pages,
                                            l->opts.swa_pages};
    if (pages || context)
        l->opts.full_pages = l->opts.swa_pages = 0;
    return ok && apply_changes(l, how, e);
}

static bool open_failed(const struct rerun_how *how, const struct logged_engine *l, struct err *e)
{
    bool moved = !how->model_given && !rerun_changes(how->with, how->n_with, "model=") &&
                 l->opts.model && access(l->opts.model, R_OK) != 0;
    if (moved)
        err_prefix(e, "the session's model is not where it was; -m DIR names its folder");
    else if (l->device && l->opts.device == l->device)
        err_prefix(e, "%sthe session was computed on %s", how->refusal ? how->refusal : "",
                   l->device);
    return false;
}

void rerun_engine_close(struct rerun_engine *k)
{
    backend_close(k->b);
    free(k->key);
    *k = (struct rerun_engine){0};
}

/* Gives the engine that was left open the settings and faults of *o; after RQ_NEW it computes the
 * same as a new one. */
static bool take_kept(struct rerun *r, const struct engine_opts *o, struct err *e)
{
    struct engine_opts now = {0};
    struct chat_view v;
    FREED(buf_free) struct buf lines = {0};
    char none[SESSION_ID] = "";
    bool ok = true;
    r->backend = r->how.keep->b;
    r->how.keep->b = NULL;
    backend_chat(r->backend, &v);
    now.settings = v.settings;
    if (backend_has(r->backend, VIEW_FAULTS))
        r->backend->faults->on(r->backend, &now.bugs);
    change_lines(&now, o, &lines);
    FOR_LINES(l, lines.p) {
        FREED(free_at) char *line = line_copy(l);
        ok = ok && run_text_request(r, RQ_SET, none, line, e);
    }
    return ok;
}

/* An engine with these options: the one that was left open if its key is the same, else a new
 * one. */
static bool get_engine(struct rerun *r, const struct logged_engine *l, struct err *e)
{
    struct rerun_engine *keep = r->how.keep;
    struct buf key = {0};
    opts_key(&l->opts, &key);
    bool fits = keep && keep->b && strcmp(keep->key, key.p) == 0;
    if (keep && !fits) { /* closed first, because both may not fit in memory */
        rerun_engine_close(keep);
        keep->key = key.p;
        key.p = NULL;
    }
    free(key.p);
    if (fits)
        return take_kept(r, &l->opts, e);
    r->backend = open_backend(&l->opts, e);
    return r->backend || open_failed(&r->how, l, e);
}

/* Whether the default model, opened because the logged folder does not exist, is a different
 * model. */
static bool wrong_model(const struct rerun *r, const struct logged_engine *l, const char *about)
{
    bool instead = l->opts.model == r->how.engine.model && !r->how.model_given &&
                   !facts_served(about);
    FREED(free_at) char *sha = instead ? facts_value(about, "model_sha") : NULL;
    return instead && (!r->backend || !sha ||
                       strcmp(sha, backend_info(r->backend)->model_sha) != 0);
}

/* Opens an engine with the options of the run and the settings of its OP_OPEN. */
static bool open_engine(struct rerun *r, const struct act *a, struct err *e)
{
    FREED(rerun_options_free) struct logged_engine l = {0};
    backend_close(r->backend);
    r->backend = NULL;
    bool ok = rerun_options(&l, &r->how, a, e);
    if (ok) {
        ok = get_engine(r, &l, e);
        if (wrong_model(r, &l, a->about)) {
            backend_close(r->backend);
            r->backend = NULL;
            ok = err_set(e, ERR_MODEL, "the session's model is not where it was; -m DIR names its "
                         "folder: %s: %s", l.model, strerror(ENOENT));
        }
    }
    r->about = a->about;
    if (ok) {
        r->now.n = 0;
        lines_now(&l.opts, backend_info(r->backend), &r->now);
        if (l.opts.draft && backend_info(r->backend)->draft_off)
            buf_printf(&r->now, "draft_off=%s\n", backend_info(r->backend)->draft_off);
        ok = !r->on.opened || r->on.opened(r->on.arg, r->backend, a->about, r->now.p, e);
    }
    return ok;
}

/* ---- the script, act by act ------------------------------------------------------------------ */

/* Whether the log has the replies of the conversation, which a damaged log may lack. */
static bool replies_logged(const struct rerun *r, struct err *e)
{
    for (int i = 0; i < r->n_live; i++)
        if (!r->live[i]->reply.n)
            return err_set(e, ERR_DB, "the log has no reply of turn %d, so what follows it cannot "
                                      "be computed again", r->live[i]->user.n);
    return true;
}

/* The request of /resume and /fork: the turns of the log, which has their replies, as the
 * conversation. A reply of a server, or of a model with another vocabulary, is given as text, as in
 * the chat (repl/app/resume.c). */
static struct request past_request(const struct rerun *r, enum request_kind kind,
                                   const struct act *a)
{
    struct request rq = {.kind = kind, .next_turn = 1};
    for (int i = 0; i < r->n_logged; i++) {
        rq.next_turn = max_int(rq.next_turn, r->logged[i]->user.n + 1);
        rq.draws = r->logged[i]->reply.draws1 > rq.draws ? r->logged[i]->reply.draws1 : rq.draws;
    }
    memcpy(rq.session, a->session, SESSION_ID);
    for (int i = 0; i < r->n_live; i++) {
        struct past_turn *t = past_add(&rq.past, &rq.n_past, r->live[i]->user.n,
                                       r->live[i]->user.text, r->live[i]->reply.text);
        if (!r->live[i]->reply.served &&
            facts_same_tokens(r->live[i]->about, backend_info(r->backend)->tokenizer_sha))
            ids_cat(&t->ids, r->live[i]->reply.tokens.v, r->live[i]->reply.tokens.n);
    }
    return rq;
}

/* Switches off all faults except changed ones: operations that follow switch on those of the
 * session. */
static bool switches_off(struct rerun *r, const struct act *a, struct err *e)
{
    struct bugs on = {0};
    bool ok = true;
    if (backend_has(r->backend, VIEW_FAULTS))
        r->backend->faults->on(r->backend, &on);
    for (int i = 0; ok && i < N_BUGS; i++) {
        FREED(free_at) char *off = xasprintf("bug.%d=off", bug_at((enum bug)i)->number);
        if (bug_on(&on, (enum bug)i) && !rerun_changes(r->how.with, r->how.n_with, off))
            ok = run_text_request(r, RQ_SET, a->session, off, e);
    }
    return ok;
}

/* Empties the pools and restores the turns with RQ_RESUME: the same state as in a new engine, but
 * faster. */
static bool play_resume(struct rerun *r, const struct act *a, struct err *e)
{
    bool fits = r->about && strcmp(r->about, a->about) == 0;
    if (!replies_logged(r, e) || !(fits ? switches_off(r, a, e) : open_engine(r, a, e)))
        return false;
    struct request rq = past_request(r, RQ_RESUME, a);
    struct buf lines = {0};
    struct settings now;
    settings_init(&now);
    FOR_LINES(l, a->text) {
        FREED(free_at) char *line = line_copy(l);
        if (!rerun_changes(r->how.with, r->how.n_with, line))
            buf_printf(&lines, "%s\n", line);
    }
    for (int i = 0; i < r->how.n_with; i++) {
        FREED(free_at) char *key = key_of(r->how.with[i]);
        if (settings_named(key))
            add_change(r->how.with[i], &lines);
    }
    rq.settings = lines.p ? lines.p : xstrdup("");
    return run_request(r, &rq, e);
}

/* Begins the child with the turns that its operation names, whatever the parent did after the
 * fork. */
static bool play_fork(struct rerun *r, const struct act *a, struct err *e)
{
    while (r->n_logged && r->logged[r->n_logged - 1]->user.n > a->turn)
        r->n_logged--;
    r->n_live = 0;
    for (int i = 0; i < r->n_logged; i++)
        if (turns_have(&a->turns, r->logged[i]->user.n))
            r->live[r->n_live++] = r->logged[i];
    if (!replies_logged(r, e))
        return false;
    struct request rq = past_request(r, RQ_FORK, a);
    rq.next_turn = a->turn + 1;
    return run_request(r, &rq, e);
}

static bool play_forget(struct rerun *r, const struct act *a, struct err *e)
{
    int n = 0;
    for (int k = 0; k < r->n_live; k++)
        if (!turns_have(&a->turns, r->live[k]->user.n))
            r->live[n++] = r->live[k];
    r->n_live = n;
    struct request rq = {.kind = RQ_FORGET};
    memcpy(rq.session, a->session, SESSION_ID);
    ids_cat(&rq.turns, a->turns.v, a->turns.n);
    return run_request(r, &rq, e);
}

/* What the user set, unless a change says otherwise. The draft's shape consists of its parts: a
 * change of the shape holds against a part that was set, and one of a part against the shape. */
static bool play_set(struct rerun *r, const struct act *a, struct err *e)
{
    const bool part = is_kind(a->text, OPT_PART), shape = is_kind(a->text, OPT_SHAPE);
    const char *const *with = r->how.with;
    bool ok = rerun_changes(with, r->how.n_with, a->text) ||
              (part && rerun_changes(with, r->how.n_with, "draft.shape")) ||
              run_text_request(r, RQ_SET, a->session, a->text, e);
    for (int i = 0; i < r->how.n_with && ok && shape; i++) {
        FREED(buf_free) struct buf line = {0};
        if (!is_kind(with[i], OPT_PART))
            continue;
        add_change(with[i], &line);
        line.p[--line.n] = '\0'; /* the line break */
        ok = run_text_request(r, RQ_SET, a->session, line.p, e);
    }
    return ok;
}

static bool play_op(struct rerun *r, const struct act *a, struct err *e)
{
    switch (a->op) {
    case OP_OPEN: return open_engine(r, a, e) && run_text_request(r, RQ_NEW, a->session, NULL, e);
    case OP_SET: return play_set(r, a, e);
    case OP_SYSTEM: return run_text_request(r, RQ_SYSTEM, a->session, a->text, e);
    case OP_FORMAT: return run_text_request(r, RQ_FORMAT, a->session, a->text, e);
    case OP_UNDO:
        r->n_live -= r->n_live > 0;
        return run_text_request(r, RQ_UNDO, a->session, NULL, e);
    case OP_FORGET: return play_forget(r, a, e);
    case OP_RESUME: return play_resume(r, a, e);
    case OP_FORK: return play_fork(r, a, e);
    case OP_FORCE:
    case OP_SHAPE: return true; /* of the turn before it: play_turn() */
    }
    return err_set(e, ERR_DB, "the log holds an operation that this aerie does not know");
}

/* Makes the turn that is sent next pause before the step of `how`. */
static bool ask_to_hold(struct rerun *r, struct err *e)
{
    struct backend *b = r->backend;
    if (r->how.step <= 1)
        return b->debug->run(b, RUN_STEP, 1, NULL, e);
    FREED(free_at) char *when = xasprintf("step==%d.%d", r->how.turn, r->how.step - 1);
    return b->debug->run(b, RUN_ON, 0, when, e);
}

static const struct ids *given_tokens(const struct rerun *r, const struct act *a)
{
    const struct trace *t = r->how.given;
    for (int i = 0; t && i < t->n; i++)
        if (t->turn[i].n == a->user.n)
            return &t->turn[i].reply;
    return &a->reply.tokens;
}

/* The tokens that the user forced while the turn ran, from the operations that follow the turn in
 * the log; as_logged: the turn's steps have the log's numbers. */
static void add_forced(const struct act *a, const struct act *end, bool as_logged,
                       struct request *rq)
{
    for (const struct act *op = a + 1; op < end && !op->is_turn; op++) {
        struct forced_token f = op->forced;
        if (!f.step || op->turn != a->user.n)
            continue;
        for (int i = 0; i < a->n_step && !as_logged && a->step[i].n < f.step; i++)
            f.after += a->step[i].tokens.n;
        f.step = as_logged || !a->n_step ? f.step : 0;
        *APPEND(rq->force, rq->n_force) = f;
    }
}

/* The shapes of the turn's trees, from the operations that follow the turn in the log, unless the
 * changes set others; auto in place of auto sets none. */
static bool add_shapes(const struct rerun *r, const struct act *a, const struct act *end,
                       struct request *rq, struct err *e)
{
    bool changed = false;
    for (int i = 0; i < r->how.n_with; i++)
        changed |= is_kind(r->how.with[i], OPT_PART) ||
                   (is_kind(r->how.with[i], OPT_SHAPE) && !ends_with(r->how.with[i], "=auto"));
    for (const struct act *op = a + 1; op < end && !op->is_turn && !changed; op++) {
        struct shape_change s = {0};
        struct settings set;
        const char *shape = op->text;
        if (op->op != OP_SHAPE || op->turn != a->user.n)
            continue;
        settings_init(&set);
        bool stepped = int_at(&shape, &s.step) && *shape++ == ' ',
            plain = stepped && !strcmp(shape, "0-0-1");
        if (!stepped || s.step < 1 ||
            (!plain && (!settings_set(&set, "draft.shape", shape, e) || set.auto_shape)))
            return err_set(e, ERR_DB, "turn %d: the log has the draft's shape \"%.40s\"; expected "
                                      "a step and a shape as 5-1-6", a->user.n, op->text);
        if (!plain)
            s = (struct shape_change){s.step, set.steps, set.topk, set.nodes};
        s.nodes = max_int(1, s.nodes);
        *APPEND(rq->shape, rq->n_shape) = s;
    }
    return true;
}

/* The prompt of a turn. For a turn that was refused because it did not fit the context, the log has
 * no prompt: any prompt that does not fit. */
static void logged_prompt(const struct rerun *r, const struct act *a, struct ids *out)
{
    bool refused = act_refused(a);
    for (int i = 0; refused && i < backend_info(r->backend)->context; i++)
        ids_add(out, 0);
    if (!refused)
        ids_cat(out, a->user.tokens.v, a->user.tokens.n);
}

/* A server's ids must be ids of this engine's model. */
static bool ids_known(const struct rerun *r, const struct act *a, const struct ids *ids,
                      const char *what, struct err *e)
{
    int n = backend_info(r->backend)->vocab;
    for (int i = 0; i < ids->n; i++)
        if (ids->v[i] < 0 || ids->v[i] >= n)
            return err_set(e, ERR_USAGE, "turn %d: id %d at position %d of the %s is not in the "
                                         "vocabulary of this model, which has %d; the server's "
                                         "model is another (-m DIR names its folder)",
                           a->user.n, ids->v[i], i, what, n);
    return true;
}

/* Takes the server's ids if it sent them. Without those of the prompt, the conversation is rendered
 * here; without those of the reply, nothing is computed after the prompt. */
static bool set_served(struct rerun *r, const struct act *a, struct request *rq, struct err *e)
{
    if (!ids_known(r, a, &a->user.tokens, "prompt", e) || !ids_known(r, a, &rq->given, "reply", e))
        return false;
    if (!r->by_ids) /* else it is there already: logged_prompt() */
        ids_cat(&rq->prompt, a->user.tokens.v, a->user.tokens.n);
    if (r->how.forced && !rq->given.n)
        rq->stop_after_step = STOP_BEFORE_STEPS;
    return true;
}

/* Whether stop tokens did not end a client's reply ("ignore_eos"): the reply goes on after one, or
 * ended with one for another reason. */
static bool ran_on(const struct rerun *r, const struct act *a)
{
    int32_t stop[MAX_STOP];
    const struct ids *reply = &a->reply.tokens;
    bool found = false;
    if (!r->served || !r->backend->jobs || a->reply.stop == STOP_END)
        return false;
    int n = chat_stops(r->backend->jobs->chat(r->backend), stop);
    for (int i = 0; i < reply->n && !found; i++)
        for (int k = 0; k < n; k++)
            found |= reply->v[i] == stop[k];
    return found;
}

/* Whether the turn's work is cut into steps as in the log, so that its steps have the log's
 * numbers. */
static bool steps_as_logged(const struct rerun *r, const struct act *a)
{
    FREED(conditions_free) struct conditions c = {0};
    FREED(buf_free) struct buf settings = {0};
    rerun_settings(r->how.with, r->how.n_with, a->user.sampling, &settings);
    conditions_read(&c, a->about, a->user.sampling, r->now.p, settings.p);
    return !(c.may & (MAY_STEP | MAY_ROUND | MAY_LOGITS | MAY_SAMPLE));
}

/* Stops the turn where the log's turn was stopped: after the same step, or, if steps are cut
 * otherwise, at the same token. A fault that stopped it in the step behind that place is looked for
 * there. A fault in the prompt is looked for up to the first token. */
static void stop_as_logged(const struct rerun *r, const struct act *a, struct request *rq)
{
    int steps = a->reply.n_steps, tokens = a->reply.tokens.n;
    bool cut = act_cut_short(a);
    if (!cut && !a->fault)
        return;
    if (cut && !a->user.tokens.n)
        rq->stop_after_step = STOP_BEFORE_PROMPT;
    else if (a->fault && !tokens)
        rq->stop_after_token = 1;
    else if (steps && steps_as_logged(r, a))
        rq->stop_after_step = steps;
    else if (tokens)
        rq->stop_after_token = tokens;
    else
        rq->stop_after_step = STOP_BEFORE_STEPS;
    rq->stop_inside = a->fault && tokens && a->fault_step > steps;
}

static bool play_turn(struct rerun *r, struct act *a, const struct act *end, struct err *e)
{
    struct request rq = {.kind = a->user.regen ? RQ_REGEN : RQ_SAY, .only_given = r->how.forced};
    bool last = a == r->goal;
    r->turn = a;
    r->ended = false;
    r->n_reply = 0;
    if (!r->how.forced)
        stop_as_logged(r, a, &rq);
    if (r->how.forced) {
        const struct ids *given = given_tokens(r, a);
        ids_cat(&rq.given, given->v, given->n);
    } else {
        add_forced(a, end, steps_as_logged(r, a), &rq);
    }
    if (last && r->how.step && !r->how.hold) {
        rq.stop_after_step = r->how.step;
        rq.stop_after_token = rq.stop_inside = 0;
    }
    if (!a->user.regen)
        rq.text = xstrdup(a->user.text);
    if (r->by_ids)
        logged_prompt(r, a, &rq.prompt);
    rq.run_on = ran_on(r, a);
    if (!add_shapes(r, a, end, &rq, e) || (facts_served(a->about) && !set_served(r, a, &rq, e))) {
        request_free(&rq);
        return false;
    }
    memcpy(rq.session, a->session, SESSION_ID);
    r->n_live -= a->user.regen && r->n_live;
    if (a->reply.tokens.n) /* a turn without a reply is not in the context */
        r->live[r->n_live++] = a;
    r->logged[r->n_logged++] = a;
    if (r->on.turn)
        r->on.turn(r->on.arg, a);
    bool ok = !holds(r, a) || ask_to_hold(r, e);
    if (!ok)
        request_free(&rq);
    ok = ok && run_request(r, &rq, e);
    r->turn = NULL;
    if (ok && !last && !r->stop && (act_cut_short(a) || a->fault) && !a->reply.tokens.n &&
        r->n_reply)
        ok = run_text_request(r, RQ_UNDO, a->session, NULL, e); /* the log's context has no such
                                                                   reply */
    r->reached |= last;
    r->stop |= last;
    return ok;
}

bool rerun_play(struct rerun *r, const struct script *s, const struct rerun_how *how,
                const struct rerun_calls *on, struct err *e)
{
    *r = (struct rerun){.how = *how, .on = *on, .by_ids = s->by_ids, .served = s->served};
    if (s->no_ids)
        return err_set(e, ERR_USAGE, "the pack holds no token ids (--no-ids): it can be looked at, "
                                     "not computed again");
    for (int i = 0; i < s->n && !how->forced; i++)
        if (facts_served(s->act[i].about))
            return err_set(e, ERR_USAGE, "the session was computed by a server, so it cannot be "
                                         "computed again here; replay --forced gives its tokens to "
                                         "the local engine");
    r->live = xcalloc((size_t)s->n + 1, sizeof *r->live);
    r->logged = xcalloc((size_t)s->n + 1, sizeof *r->logged);
    for (int i = 0; i < s->n; i++) /* a fork's own turn, not the parent's of the same number */
        if (s->act[i].is_turn && s->act[i].user.n == how->turn)
            r->goal = &s->act[i];
    for (int i = 0; i < s->n && !r->stop; i++) {
        struct act *a = &s->act[i];
        if (!r->backend && (a->is_turn || (a->op != OP_OPEN && a->op != OP_RESUME)))
            return err_set(e, ERR_DB, "the log of session %s does not begin with its opening",
                           a->session);
        if (!(a->is_turn ? play_turn(r, a, s->act + s->n, e) : play_op(r, a, e)))
            return false;
    }
    return true;
}

void rerun_close(struct rerun *r)
{
    if (r->how.keep && !r->lost.kind)
        r->how.keep->b = r->backend;
    else
        backend_close(r->backend);
    buf_free(&r->now);
    FREE(r->live, r->logged);
    *r = (struct rerun){0};
}
