/* switch.c - another draft or another model in a running chat.
 *
 * The engine is opened again, as when the program starts, and the conversation goes on in it as a
 * resumed session does: pools are empty, and the next prompt is computed again from its first
 * token. So the log has a further run of the session, which names the draft and the model, and a
 * replay opens the engine of each run in turn; no other record of a switch is needed. With another
 * draft the target stays loaded; prompts computed again have the same bits, so replies do not
 * depend on the draft. With another model the present session ends, and a copy of it begins, to
 * which the conversation is given as text. */

#include "repl/process/interrupt.h"
#include "repl/process/open.h"
#include "repl/repl.h"

static void report(void *arg, const char *what, uint64_t done, uint64_t total)
{
    struct app *a = arg;
    char text[80];
    snprintf(text, sizeof text, "reading the %.60s", what);
    a->face.progress(a, text, done, total);
}

static bool stopped(void *)
{
    return interrupt_waits();
}

/* Whether the log has the session, and so a replay. */
static bool is_logged(const struct app *a)
{
    return a->history && !a->private_;
}

/* A switch waits for the end of a turn, and until the log has saved every step of the run that
 * ends. */
static bool may_switch(struct app *a, struct err *e)
{
    if (app_recording(a))
        return err_set(e, ERR_USAGE, "a recording computes nothing, so it has no model to switch");
    if (backend_busy(a->backend))
        return err_set(e, ERR_USAGE, "a reply is being generated; expected the end of the turn");
    return !is_logged(a) || a->turn == 0 || app_stored(a, e);
}

/* Goes on with what was said, which the log does not have. */
static bool go_on_unlogged(struct app *a, struct request *said, bool copy, const char *tokenizer,
                           struct err *e)
{
    if (copy)
        session_new_id(said->session);
    bool same = strcmp(tokenizer, backend_info(a->backend)->tokenizer_sha) == 0;
    for (int i = 0; i < said->n_past && !same; i++)
        said->past[i].ids.n = 0;
    char id[SESSION_ID];
    memcpy(id, said->session, sizeof id);
    if (!backend_submit(a->backend, said, e))
        return false;
    memcpy(a->session, id, sizeof a->session);
    a->step = 0;
    a->at = (struct address){0};
    a->resumed = false;
    return true;
}

static bool go_on(struct app *a, struct request *said, bool copy, const char *tokenizer,
                  struct err *e)
{
    a->n_want = a->n_what_if = 0;
    app_describe(a);
    if (a->turn == 0)
        return app_new_session(a, e);
    return is_logged(a) ? app_go_on(a, copy, e) : go_on_unlogged(a, said, copy, tokenizer, e);
}

/* The options that were opened are those of the app from now on. */
static void keep_options(struct app *a, const char *model, const char *draft)
{
    struct engine_opts *o = &a->opt.engine;
    char *was[] = {a->own_model, a->own_draft};
    a->own_model = model ? xstrdup(model) : NULL;
    a->own_draft = draft ? xstrdup(draft) : NULL;
    o->model = a->own_model;
    o->draft = a->own_draft;
    o->draft_from = NULL;
    FREE(was[0], was[1]);
}

/* Ends the chat: no turn could be logged any more. */
static void part(struct app *a, const char *now, struct err *e)
{
    buf_printf(&a->parting, "%s; %s", e->msg, now);
    if (is_logged(a) && a->turn)
        buf_printf(&a->parting, "; aerie --session %s goes on from what was said", a->session);
    err_set(e, ERR_MODEL, "%s", a->parting.p);
    a->exit_code = ERR_MODEL;
    a->quit = true;
}

bool app_switch(struct app *a, const char *model, const char *draft, struct err *e)
{
    struct engine_opts now = a->opt.engine, o;
    FREED(request_free) struct request said = {0};
    struct err why = {0};
    char tokenizer[sizeof backend_info(a->backend)->tokenizer_sha];
    if (!may_switch(a, e))
        return false;
    app_settings(a, &now.settings);
    app_bugs(a, &now.bugs);
    now.progress = a->face.progress ? report : NULL;
    now.progress_arg = a;
    now.draft_from = NULL;
    o = now;
    o.stop = stopped;
    if (model)
        o.model = model;
    o.draft = draft;
    memcpy(tokenizer, backend_info(a->backend)->tokenizer_sha, sizeof tokenizer);
    backend_said(a->backend, &said);
    enum reopened got = reopen_backend(&a->backend, &now, &o, &why);
    if (a->face.progress)
        a->face.progress(a, NULL, 0, 0);
    bool done = got == REOPEN_DONE, ok = true;
    if (done)
        keep_options(a, o.model, draft);
    if (got == REOPEN_FAILED) {
        part(a, "no model is open any more", &why);
    } else if (got != REOPEN_KEPT) {
        ok = go_on(a, &said, done && model, tokenizer, e);
        if (!ok)
            part(a, "the engine was opened again, but without what was said", e);
    }
    if (got == REOPEN_EMPTIED && ok)
        err_set(e, why.kind, "%.600s; what was open before is open again", why.msg);
    else if (!done && ok)
        *e = why;
    return done && ok;
}
