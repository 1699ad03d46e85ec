/* triage.c - /triage: why drafts of this session are accepted or rejected, as `aerie triage` says
 * of a saved one (repl/compare/triage.h). Works on the log, with an engine of its own. */

#include "repl/cmd/cmd.h"
#include "repl/compare/triage.h"
#include "repl/process/interrupt.h"

struct looking {
    struct app *a;
    struct stop stop;
};

/* Between two passes: shows how far the triage is, and sees Ctrl-C. */
static void show_progress(void *arg, const char *what, uint64_t done, uint64_t total)
{
    struct looking *l = arg;
    char text[80];
    snprintf(text, sizeof text, "triage, %.60s", what);
    if (l->a->face.progress)
        l->a->face.progress(l->a, text, done, total);
    if (interrupt_asked())
        stop_all(&l->stop);
}

bool cmd_triage(struct cmd_call *c)
{
    struct app *a = c->app;
    struct looking l = {a, {.submitted = 1, .running = 1}};
    char name[SESSION_ID];
    if (!a->session[0] || a->turn == 0)
        return err_set(c->e, ERR_USAGE, "this session has no turn yet");
    struct hdb *d = app_own_log(a, c->e);
    if (!d)
        return false;
    hdb_name(d, a->session, name);
    struct triage_ask ask = {.db = d, .session = a->session, .name = name + (name[0] == '#'),
                             .stop = &l.stop, .progress = show_progress, .progress_arg = &l};
    ask.how.engine.device = a->opt.engine.device;
    ask.how.engine.threads = a->opt.engine.threads;
    ask.how.engine.model = a->opt.engine.model;
    ask.how.engine.draft = a->opt.engine.draft;
    FREED(free_at) struct triage *t = xcalloc(1, sizeof *t);
    FREED(free_at) struct triage_verdict *v = xcalloc(1, sizeof *v);
    bool ok = triage_session(&ask, t, c->e);
    if (a->face.progress)
        a->face.progress(a, NULL, 0, 0);
    if (ok) {
        triage_judge(t, v);
        triage_print(t, v, &c->to);
    }
    accepted_free(&t->log);
    return ok;
}
