/* goto.c - `aerie replay ID --goto T.S`: runs a saved session again up to a step, where the user
 * gets the paused chat. Nothing is saved. */

#include "repl/cli/cli.h"
#include "repl/compare/rerun.h"

struct going {
    struct cli *c;
    const char *session;
    int turn, step, rc;
    bool arrived;
    struct event *early; /* (n_early) those before the pause, for the face */
    int n_early;
};

static bool on_event(void *arg, const struct act *, struct event *ev)
{
    struct going *x = arg;
    if (x->arrived)
        return true;
    *APPEND(x->early, x->n_early) = *ev;
    struct event taken = {.kind = ev->kind, .turn = ev->turn, .step = ev->step, .lost = ev->lost};
    *ev = taken; /* its parts are the face's now */
    return true;
}

/* The face gets the engine while the turn is paused; when the face ends, so does the rerun. */
static void on_held(void *arg, struct backend *b, bool done)
{
    struct going *x = arg;
    struct err e = {0};
    if (!done)
        return;
    cli_progress_end();
    x->arrived = true;
    FREED(free_at) struct app *a = xcalloc(1, sizeof *a);
    app_open_running(a, &x->c->opt, b, x->session, x->early, x->n_early);
    x->early = NULL;
    if (b->debug->back(b, x->turn, x->step, &e)) /* posts the EV_PAUSE that the screen or the plain
                                                    mode shows */
        x->rc = a->exit_code = x->c->opt.tui ? tui_run(a) : plain_run(a);
    else
        x->rc = cli_fail(&e);
    a->backend = NULL; /* owned by the rerun */
    app_close(a);
}

static bool read_step(const char *s, int *turn, int *step, struct err *e)
{
    const char *at = s;
    return (address_at(&at, turn, step) && !*at && *turn > 0 && *step > 0) ||
           err_set(e, ERR_USAGE, "--goto %.40s: expected TURN.STEP, for example 9.214", s);
}

int cli_goto(struct cli *c)
{
    struct err e = {0};
    FREED(session_row_free) struct session_row row = {0};
    FREED(script_free) struct script script = {0};
    struct rerun r = {0};
    struct going x = {.c = c};
    struct rerun_how how = cli_rerun(c);
    how.hold = true;
    if (!read_step(c->goto_step, &how.turn, &how.step, &e) || !cli_choose_face(c, &e))
        return cli_fail(&e);
    x.turn = how.turn;
    x.step = how.step;
    struct rerun_calls on = {.held = on_held, .event = on_event, .arg = &x};
    FREED(hdb_close_at) struct hdb *d = cli_open_session(c, c->word[0], &row, &e);
    x.session = row.id;
    bool ok = d && script_read(&script, d, row.id, &e);
    ok = ok && rerun_play(&r, &script, &how, &on, &e);
    cli_progress_end();
    if (ok && !x.arrived)
        ok = err_set(&e, ERR_USAGE, "--goto %s: the session has no such step", c->goto_step);
    int rc = ok ? x.rc : cli_fail(&e);
    for (int i = 0; x.early && i < x.n_early; i++)
        event_free(&x.early[i]);
    free(x.early);
    rerun_close(&r);
    return rc;
}
