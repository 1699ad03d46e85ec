/* replay.c - `aerie replay`: sends the requests of a saved session to an engine and compares the
 * results.
 *
 * Each step is compared with the log in the order of cause and effect: the page table, the draft,
 * the logits, the tokens. The first difference ends the replay. Nothing is saved.
 */
#include "repl/cli/replay.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/bugs.h"
#include "repl/facts.h"
#include "kernels/json.h"

struct replay {
    struct cli *c;
    struct script script;
    struct backend *backend;
    const char *about; /* facts of the run that the engine was opened for; points into the script */
    struct sheet sheet;
    struct act **live;    /* turns of the context, oldest first */
    int n_live;
    struct act **logged; /* all turns of the session and its parents, undone ones included */
    int n_logged;
    int n_turns, n_steps; /* compared */
    bool text_only;       /* a turn without steps in the log was compared by its reply */
    /* the turn that is running */
    const struct act *turn;
    int next_step;
    bool ended;
    /* the first difference */
    struct err lost; /* the device failed: no answer */
    bool differs;
    char *
        other; /* other differences to that run (build, device), printed if the replay differs; or NULL */
    int at_turn, at_step;
    char what[16], why[256];
};

/* ---- differences ---- */

static void set_difference(struct replay *r, int step, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void set_difference(struct replay *r, int step, const char *what, const char *fmt, ...)
{
    if (r->differs)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->why, sizeof r->why, fmt, ap);
    va_end(ap);
    r->differs = true;
    r->at_turn = r->turn->user.n;
    r->at_step = step;
    snprintf(r->what, sizeof r->what, "%s", what);
}

static void compare_number(struct replay *r, int step, const char *what, const char *name,
                           int64_t log, int64_t now)
{
    if (log != now)
        set_difference(r, step, what, "%s %lld in the log, %lld now", name, (long long)log,
                       (long long)now);
}

static void compare_digest(struct replay *r, int step, const char *what, uint64_t log, uint64_t now)
{
    if (log != now)
        set_difference(r, step, what, "digest %016llx in the log, %016llx now",
                       (unsigned long long)log, (unsigned long long)now);
}

static void compare_ids(struct replay *r, int step, const char *what, const struct ids *log,
                        const struct ids *now)
{
    int i = 0, n = min_int(log->n, now->n);
    while (i < n && log->v[i] == now->v[i])
        i++;
    if (i < n)
        set_difference(r, step, what, "token %d is %d in the log, %d now", i, log->v[i], now->v[i]);
    else if (log->n != now->n)
        set_difference(r, step, what, "%d tokens in the log, %d now", log->n, now->n);
}

/* Compares the drafted tree; which nodes were accepted is compared with the tokens. */
static void compare_shape(struct replay *r, int step, const struct tree *log,
                          const struct tree *now)
{
    compare_number(r, step, "draft", "tree nodes", log->n, now ? now->n : 0);
    for (int i = 0; now && i < min_int(log->n, now->n); i++) {
        compare_number(r, step, "draft", "token of a node", log->token[i], now->token[i]);
        compare_number(r, step, "draft", "parent of a node", log->parent[i], now->parent[i]);
    }
}

/* In the order page table, draft, logits, tokens: each depends on those before. */
static void compare_step(struct replay *r, const struct step_row *log, const struct event *now)
{
    const struct step_rec *a = &log->rec, *b = &now->rec;
    int n = log->n;
    compare_number(r, n, "page table", "step kind", a->kind, b->kind);
    compare_number(r, n, "page table", "position", a->pos0, b->pos0);
    compare_number(r, n, "page table", "rows", a->rows, b->rows);
    compare_digest(r, n, "page table", a->page_digest, b->page_digest);
    compare_number(r, n, "draft", "drafted nodes", a->drafted, b->drafted);
    compare_digest(r, n, "draft", a->draft_digest, b->draft_digest);
    if (log->tree)
        compare_shape(r, n, log->tree, now->tree);
    compare_digest(r, n, "logits", a->logit_digest, b->logit_digest);
    compare_number(r, n, "tokens", "accepted", a->accepted, b->accepted);
    compare_number(r, n, "tokens", "bonus token", a->bonus, b->bonus);
    compare_ids(r, n, "tokens", &log->tokens, &now->tokens);
    compare_number(r, n, "tokens", "random numbers drawn", (int64_t)a->draws, (int64_t)b->draws);
    if (log->tree && now->tree)
        compare_digest(r, n, "tokens", tree_digest(log->tree), tree_digest(now->tree));
}

/* Whether the turn was cut short by a cancel, its device or a crash: its end cannot be compared. */
static bool cut_short(const struct act *a)
{
    const char *stop = a->reply.stop;
    return !stop || !*stop || strcmp(stop, stop_name(STOP_CANCEL)) == 0 ||
           strcmp(stop, stop_name(STOP_DEVICE)) == 0 ||
           strcmp(stop, stop_name(STOP_CRASHED)) == 0;
}

static void on_step(struct replay *r, const struct event *ev)
{
    const struct act *a = r->turn;
    if (!a->n_step) {
        if (a->reply.n_steps)
            r->text_only = true;
        return;
    }
    if (r->next_step < a->n_step) {
        compare_step(r, &a->step[r->next_step++], ev);
        r->n_steps++;
    } else if (!cut_short(a)) {
        set_difference(r, ev->step, "tokens", "the log has no such step");
    }
}

static void on_end(struct replay *r, const struct event *ev)
{
    const struct act *a = r->turn;
    r->ended = true;
    r->n_turns++;
    if (r->next_step < a->n_step)
        set_difference(r, a->step[r->next_step].n, "tokens",
                       "the turn is over now (%s), not in the log", stop_name(ev->reason));
    compare_ids(r, 0, "reply", &a->reply.tokens, &ev->tokens);
    if (!cut_short(a) && strcmp(a->reply.stop, stop_name(ev->reason)) != 0)
        set_difference(r, 0, "reply", "it ended with %s in the log, with %s now", a->reply.stop,
                       stop_name(ev->reason));
}

/* ---- what is shown ---- */

static bool shows(const struct replay *r)
{
    return !r->c->check && !r->c->opt.json;
}

static void show_user(struct replay *r)
{
    if (!shows(r))
        return;
    sheet_printf(&r->sheet, ST_HEAD, "turn %d%s", r->turn->user.n,
                 r->turn->user.regen ? "  (again)" : "");
    sheet_line(&r->sheet);
    cli_text(&r->sheet, ST_USER, r->turn->user.text, r->turn->user.text_n);
    cli_print(r->c, &r->sheet);
    fflush(stdout);
}

static void show_reply(struct replay *r, const struct event *ev)
{
    if (!shows(r))
        return;
    cli_text(&r->sheet, ST_TEXT, ev->text.p ? ev->text.p : "", ev->text.n);
    sheet_printf(&r->sheet, r->differs ? ST_BAD : ST_GOOD, "[%s, %d step%s: %s]",
                 stop_name(ev->reason), ev->n_steps, plural(ev->n_steps), r->differs ? "differs" : "equal");
    sheet_line(&r->sheet);
    sheet_line(&r->sheet);
    cli_print(r->c, &r->sheet);
    fflush(stdout);
}

/* ---- the engine ---- */

static void handle_event(struct replay *r, struct event *ev)
{
    if (ev->kind == EV_FAULT && ev->lost)
        err_set(&r->lost, ERR_MODEL, "%s", ev->text.p);
    if (r->turn && ev->kind == EV_TURN_BEGIN)
        compare_ids(r, 0, "prompt", &r->turn->user.tokens, &ev->tokens);
    else if (r->turn && ev->kind == EV_STEP)
        on_step(r, ev);
    if (r->turn && ev->kind == EV_TURN_END) {
        on_end(r, ev);
        show_reply(r, ev);
    }
    event_free(ev);
}

/* Submits a request and handles events until the engine is idle. */
static bool run_request(struct replay *r, struct request *rq, struct err *e)
{
    if (!backend_submit(r->backend, rq, e))
        return false;
    for (;;) {
        bool busy =
            backend_busy(r->backend); /* read before the queue: when idle, all events are in it */
        struct event ev;
        bool got = backend_wait(r->backend, &ev, busy ? 2 : 0);
        if (got)
            handle_event(r, &ev);
        else if (!busy)
            break;
        if (r->differs && !r->ended)
            backend_cancel(r->backend);
    }
    return !r->lost.kind || err_set(e, ERR_MODEL, "%s", r->lost.msg);
}

static bool run_text_request(struct replay *r, enum request_kind kind, const char *session,
                             const char *text, struct err *e)
{
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL};
    memcpy(rq.session, session, SESSION_ID);
    return run_request(r, &rq, e);
}

static int about_int(const char *about, const char *name)
{
    char *v = facts_value(about, name);
    int n = v ? atoi(v) : 0;
    free(v);
    return n;
}

/* The facts of the opened engine as "name=value" lines, as the log has them. */
static void lines_now(const struct engine_opts *o, const struct backend_info *i, struct buf *out)
{
    buf_printf(out, "model_sha=%s\ntokenizer_sha=%s\ndraft_sha=%s\n", i->model_sha, i->tokenizer_sha,
               i->draft_sha);
    facts_config(o, i, out);
}

/* The same models are needed to replay at all; --check needs everything that decides the bits. */
static bool compare_engine(struct replay *r, const struct engine_opts *o, const char *about,
                           struct err *e)
{
    struct buf now = {0}, differs = {0};
    lines_now(o, backend_info(r->backend), &now);
    facts_compare(about, now.p, &differs);
    bool same = differs.n == 0, models = !differs.n || !strstr(differs.p, "another ");
    if (!models)
        err_set(e, ERR_USAGE, "the session was made with %s", differs.p);
    else if (!same && r->c->check)
        err_set(e, ERR_USAGE, "cannot check: the session was made with %s", differs.p);
    else if (!same && !r->c->opt.quiet)
        fprintf(stderr, "aerie: the session was made with %s: its digests may differ\n",
                differs.p);
    buf_free(&now);
    buf_free(&differs);
    return models && (same || !r->c->check);
}

/* Notes another build or device in r->other: they need not change a bit, but if the replay differs
 * they are the likely reason. */
static void note_build(struct replay *r, const char *about)
{
    char *flags = facts_value(about, "flags"), *device = facts_value(about, "device");
    const char *now = backend_info(r->backend)->device;
    free(r->other);
    r->other = NULL;
    if ((flags && *flags && strcmp(flags, facts_build()) != 0) || (device && now && strcmp(device, now) != 0))
        r->other = xasprintf("computed by %s on %s; here %s on %s", flags && *flags ? flags : "an older aerie",
                             device ? device : "an unknown device", facts_build(), now);
    free(flags);
    free(device);
}

static const char *asked_or_logged(const char *asked, const char *log)
{
    return asked ? asked : log && *log ? log : NULL;
}

/* The backend that the log names; logs of earlier versions say it in their device's first word. */
static char *logged_backend(const char *about)
{
    char *backend = facts_value(about, "backend");
    if (backend)
        return backend;
    char *device = facts_value(about, "device");
    if (device)
        device[strcspn(device, ", ")] = '\0';
    bool known = device && (strcmp(device, "cpu") == 0 || strcmp(device, "cuda") == 0);
    if (!known) {
        free(device);
        device = NULL;
    }
    return device;
}

/* Opens an engine with the options of the run and the settings of its OP_OPEN. */
static bool open_engine(struct replay *r, const struct act *a, struct err *e)
{
    struct options *o = &r->c->opt;
    enum { MODEL, DRAFT, CAPTURE, DATE, WEIGHTS, DRAFT_WEIGHTS, PRECISION, N_NAMES };
    static const char *const name[N_NAMES] = {"model_dir", "draft_dir", "capture", "date", "weights",
                                              "draft_weights", "precision"};
    char *log[N_NAMES], *backend = logged_backend(a->about);
    for (int i = 0; i < N_NAMES; i++)
        log[i] = facts_value(a->about, name[i]);
    bool any = !o->engine.device || strcmp(o->engine.device, "auto") == 0;
    struct engine_opts opts = {
        .model = r->c->model_given ? o->engine.model : log[MODEL],
        .draft = r->c->draft_given ? o->engine.draft : asked_or_logged(NULL, log[DRAFT]),
        .device = any && backend ? backend : o->engine.device,
        .backend = o->engine.backend,
        .capture = asked_or_logged(NULL, log[CAPTURE]),
        .quant = {asked_or_logged(o->engine.quant.weights, log[WEIGHTS]),
                asked_or_logged(o->engine.quant.draft_weights, log[DRAFT_WEIGHTS])},
        .raw = about_int(a->about, "raw"),
        .date = asked_or_logged(NULL, log[DATE]),
        .threads = o->engine.threads,
        .precision = asked_or_logged(o->engine.precision, log[PRECISION]),
        .page_size = about_int(a->about, "page_size"),
        .context = about_int(a->about, "context"),
        .full_pages = about_int(a->about, "full_pages"),
        .swa_pages = about_int(a->about, "swa_pages"),
        .rows = about_int(a->about, "rows"),
        .progress = o->quiet ? NULL : cli_progress,
    };
    settings_init(&opts.settings);
    opts.settings.forget = FORGET_EAGER; /* unless the log names another value */
    backend_close(r->backend);
    r->backend = NULL;
    bool ok = settings_parse(&opts.settings, a->text, e);
    if (ok)
        r->backend = open_backend(&opts, e);
    cli_progress_end();
    if (ok && !r->backend && !r->c->model_given && opts.model && access(opts.model, R_OK) != 0)
        err_prefix(e, "the session's model is not where it was; -m DIR names its folder");
    else if (ok && !r->backend && backend && opts.device == backend)
        err_prefix(e, "%sthe session was computed on %s", r->c->check ? "cannot check: " : "", backend);
    r->about = a->about;
    ok = r->backend && compare_engine(r, &opts, a->about, e);
    if (ok)
        note_build(r, a->about);
    for (int i = 0; i < N_NAMES; i++)
        free(log[i]);
    free(backend);
    return ok;
}

/* ---- the script, act by act ---- */

/* The turns of the log as the conversation: what /resume and /fork ask for. */
static struct request past_request(const struct replay *r, enum request_kind kind,
                                   const struct act *a)
{
    struct request rq = {.kind = kind, .next_turn = 1};
    for (int i = 0; i < r->n_logged; i++) {
        rq.next_turn = max_int(rq.next_turn, r->logged[i]->user.n + 1);
        rq.draws = r->logged[i]->reply.draws1 > rq.draws ? r->logged[i]->reply.draws1 : rq.draws;
    }
    memcpy(rq.session, a->session, SESSION_ID);
    rq.past = xcalloc((size_t)max_int(1, r->n_live), sizeof *rq.past);
    for (int i = 0; i < r->n_live; i++) {
        struct past_turn *t = &rq.past[rq.n_past++];
        t->turn = r->live[i]->user.n;
        t->user = xstrdup(r->live[i]->user.text);
        t->reply = xstrdup(r->live[i]->reply.text);
        ids_cat(&t->ids, r->live[i]->reply.tokens.v, r->live[i]->reply.tokens.n);
    }
    return rq;
}

/* Switches all faults off: those of the session are switched on by operations that follow. */
static bool switches_off(struct replay *r, const struct act *a, struct err *e)
{
    struct bugs on = {0};
    bool ok = true;
    if (backend_has(r->backend, VIEW_FAULTS))
        r->backend->faults->on(r->backend, &on);
    for (int i = 0; ok && i < N_BUGS; i++)
        if (bug_on(&on, (enum bug)i)) {
            char *off = xasprintf("bug.%d=off", bug_at((enum bug)i)->number);
            ok = run_text_request(r, RQ_SET, a->session, off, e);
            free(off);
        }
    return ok;
}

/* Empties the pools and restores the turns with RQ_RESUME: equal to a new engine, but faster. */
static bool play_resume(struct replay *r, const struct act *a, struct err *e)
{
    bool fits = r->about && strcmp(r->about, a->about) == 0;
    if (!(fits ? switches_off(r, a, e) : open_engine(r, a, e)))
        return false;
    struct request rq = past_request(r, RQ_RESUME, a);
    rq.settings = xstrdup(a->text);
    return run_request(r, &rq, e);
}

/* The child begins with the turns that its operation names (in logs of earlier versions: with all),
 * wherever the parent went on to. */
static bool play_fork(struct replay *r, const struct act *a, struct err *e)
{
    bool all = strlen(a->text) == SESSION_ID - 1 && !strchr(a->text, ' ');
    while (r->n_logged && r->logged[r->n_logged - 1]->user.n > a->turn)
        r->n_logged--;
    if (!all)
        r->n_live = 0;
    for (int i = 0; !all && i < r->n_logged; i++)
        if (turn_listed(a->text, r->logged[i]->user.n))
            r->live[r->n_live++] = r->logged[i];
    struct request rq = past_request(r, RQ_FORK, a);
    rq.next_turn = a->turn + 1;
    return run_request(r, &rq, e);
}

static bool play_op(struct replay *r, const struct act *a, struct err *e)
{
    switch (a->op) {
    case OP_OPEN: return open_engine(r, a, e) && run_text_request(r, RQ_NEW, a->session, NULL, e);
    case OP_SET: return run_text_request(r, RQ_SET, a->session, a->text, e);
    case OP_SYSTEM: return run_text_request(r, RQ_SYSTEM, a->session, a->text, e);
    case OP_UNDO:
        r->n_live -= r->n_live > 0;
        return run_text_request(r, RQ_UNDO, a->session, NULL, e);
    case OP_FORGET: {
        int n = 0;
        for (int k = 0; k < r->n_live; k++)
            if (!turn_listed(a->text, r->live[k]->user.n))
                r->live[n++] = r->live[k];
        r->n_live = n;
        return run_text_request(r, RQ_FORGET, a->session, a->text, e);
    }
    case OP_RESUME: return play_resume(r, a, e);
    case OP_FORK: return play_fork(r, a, e);
    }
    return err_set(e, ERR_DB, "the log holds an operation that this aerie does not know");
}

static bool play_turn(struct replay *r, struct act *a, struct err *e)
{
    struct request rq = {.kind = a->user.regen ? RQ_REGEN : RQ_SAY};
    r->turn = a;
    r->next_step = 0;
    r->ended = false;
    if (cut_short(a))
        rq.stop_after_step = a->reply.n_steps ? a->reply.n_steps : -1;
    if (!a->user.regen)
        rq.text = xstrdup(a->user.text);
    memcpy(rq.session, a->session, SESSION_ID);
    r->n_live -= a->user.regen && r->n_live;
    if (a->reply.tokens.n) /* a turn without a reply leaves nothing in the context */
        r->live[r->n_live++] = a;
    r->logged[r->n_logged++] = a;
    show_user(r);
    bool ok = run_request(r, &rq, e);
    if (ok && !r->ended)
        set_difference(r, 0, "reply", "the engine did not take the message");
    r->turn = NULL;
    return ok;
}

static bool play(struct replay *r, struct err *e)
{
    r->live = xcalloc((size_t)r->script.n + 1, sizeof *r->live);
    r->logged = xcalloc((size_t)r->script.n + 1, sizeof *r->logged);
    for (int i = 0; i < r->script.n && !r->differs; i++) {
        struct act *a = &r->script.act[i];
        if (!r->backend && (a->is_turn || (a->op != OP_OPEN && a->op != OP_RESUME)))
            return err_set(e, ERR_DB, "the log of session %s does not begin with its opening",
                           a->session);
        if (!(a->is_turn ? play_turn(r, a, e) : play_op(r, a, e)))
            return false;
    }
    return true;
}

/* Checks that the steps in the log account for every token of the replies. */
static bool account(struct replay *r, struct hdb *d, const char *session, struct err *e)
{
    struct hdb_past p;
    if (!hdb_past(d, session, INT_MAX, &p, e))
        return false;
    bool ok = true;
    for (int i = 0; ok && !r->differs && i < p.n_part; i++) {
        int first = 0, bad = 0;
        ok = hdb_account(d, p.part[i].session, &first, &bad, NULL, e);
        if (bad && first <= p.part[i].upto) {
            r->differs = true;
            r->at_turn = first;
            snprintf(r->what, sizeof r->what, "log");
            snprintf(r->why, sizeof r->why, "the steps do not account for every token of the reply");
        }
    }
    hdb_past_free(&p);
    return ok;
}

/* ---- the verdict ---- */

static void verdict_json(const struct replay *r)
{
    struct buf b = {0};
    jput_open(&b, '{');
    jput_kbool(&b, "equal", !r->differs);
    jput_kint(&b, "turns", r->n_turns);
    jput_kint(&b, "steps", r->n_steps);
    jput_kstr(&b, "level", r->text_only ? "text" : "steps");
    if (r->differs) {
        jput_kint(&b, "turn", r->at_turn);
        jput_kint(&b, "step", r->at_step);
        jput_kstr(&b, "what", r->what);
        jput_kstr(&b, "why", r->why);
        jput_kstr(&b, "note", r->other);
    }
    jput_close(&b, '}');
    cli_json(&b);
    buf_free(&b);
}

static int verdict(const struct replay *r)
{
    if (r->c->opt.json)
        verdict_json(r);
    else if (r->differs && r->at_step)
        printf("differs at step %d.%d: %s: %s\n", r->at_turn, r->at_step, r->what, r->why);
    else if (r->differs)
        printf("differs in turn %d: %s: %s\n", r->at_turn, r->what, r->why);
    else
        printf("equal: %d turn%s, %d step%s%s\n", r->n_turns, r->n_turns == 1 ? "" : "s",
               r->n_steps, r->n_steps == 1 ? "" : "s",
               r->text_only ? " (where the log has no steps, only the replies were compared)" : "");
    if (r->differs && r->other && !r->c->opt.json && !r->c->opt.quiet)
        fprintf(stderr, "aerie: the session was %s\n", r->other);
    return r->differs ? ERR_NEGATIVE : 0;
}

int cli_replay(struct cli *c)
{
    struct err e = {0};
    struct replay r = {.c = c};
    struct session_row row = {0};
    sheet_init(&r.sheet, c->opt.ascii);
    struct hdb *d = cli_open_session(c, c->word[0], &row, &e);
    bool ok = d && script_read(&r.script, d, row.id, &e) &&
              play(&r, &e) && (r.differs || account(&r, d, row.id, &e));
    int rc = ok ? verdict(&r) : cli_fail(&e);
    backend_close(r.backend);
    script_free(&r.script);
    session_row_free(&row);
    sheet_free(&r.sheet);
    hdb_close(d);
    free(r.live);
    free(r.logged);
    free(r.other);
    return rc;
}
