/* talk.c - `aerie chat` and `aerie run`: opens the app and hands it to a face. */
#include "repl/cli/cli.h"
#include "repl/cmd/commands.h"

#include <unistd.h>

#include "repl/tui/term.h"

static bool have_model(const struct cli *c, struct err *e)
{
    if (c->opt.engine.model || c->opt.engine.server.url)
        return true;
    return err_set(e, ERR_MODEL, "no model: the bundled one is not installed; expected -m DIR, "
                   "a checkpoint folder");
}

/* Closes the app and returns the exit code: rc, or ERR_DB if the log failed and rc is not worse. */
static int leave(struct app *a, int rc)
{
    struct err e = {.kind = ERR_DB};
    bool logged = a->log_error[0] == '\0';
    if (a->parting.n && a->opt.tui) { /* the plain mode printed it */
        err_set(&e, ERR_MODEL, "%s", a->parting.p);
        cli_fail(&e);
    }
    e.kind = ERR_DB;
    snprintf(e.msg, sizeof e.msg, "NOT SAVED: %s", a->log_error);
    bool stored = app_close(a);
    rc = max_int(rc, a->exit_code); /* set if a signal has ended the wait for the log */
    if (!logged && a->opt.tui) /* after the full screen; the plain mode printed it at its start */
        cli_fail(&e);
    return (!stored || !logged) && rc <= ERR_USAGE ? ERR_DB : rc;
}

/* The breakpoints of the command line. */
static bool set_breaks(const struct cli *c, struct app *a, struct err *e)
{
    for (int i = 0; i < c->breaks.n; i++)
        if (!app_needs(a, "--break", VIEW_DEBUG, e) || !app_break(a, c->breaks.v[i], BREAK_IF, e))
            return false;
    return true;
}

static int talk(struct cli *c, int (*face)(struct app *a, const char *prompt), const char *prompt)
{
    struct err e = {0};
    FREED(free_at) struct app *a = xcalloc(1, sizeof *a);
    int rc;
    if (!c->opt.quiet)
        c->opt.engine.progress = cli_progress;
    bool ok = have_model(c, &e) && app_open(a, &c->opt, &e);
    cli_progress_end();
    if (ok && !set_breaks(c, a, &e)) {
        app_close(a);
        err_prefix(&e, "--break");
        ok = false;
    }
    if (ok) {
        a->exit_code = face(a, prompt);
        rc = leave(a, a->exit_code);
    } else {
        rc = cli_fail(&e);
    }
    return rc;
}

/* ---- chat ---- */

/* Whether the full screen is possible. False and *e: why not; *unknown: there is a terminal, but
 * terminfo does not know it, so its user expects the screen. */
static bool terminal(bool *unknown, struct err *e)
{
    const char *term = getenv("TERM");
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return err_set(e, ERR_USAGE, "--tui: standard input and output are not a terminal; "
                       "expected --plain");
    if (!term || !*term || strcmp(term, "dumb") == 0)
        return err_set(e, ERR_USAGE, "--tui: TERM is \"%s\", a terminal without a screen; expected "
                                     "--plain", term ? term : "");
    *unknown = !term_known();
    return !*unknown ||
           err_set(e, ERR_USAGE, "--tui: TERM is \"%.80s\", which terminfo does not know; expected "
                                 "--plain, or a TERM such as xterm-256color", term);
}

static int screen_face(struct app *a, const char *)
{
    return tui_run(a);
}

static int line_face(struct app *a, const char *)
{
    return plain_run(a);
}

bool cli_choose_face(struct cli *c, struct err *e)
{
    struct err why = {0};
    struct options *o = &c->opt;
    bool lines = o->plain || o->json || o->script, unknown = false,
        screen = terminal(&unknown, &why);
    if (o->tui && lines)
        err_set(&why, ERR_USAGE, "--tui cannot go with %s",
                o->plain ? "--plain" : o->json ? "--json" : "--script");
    if (o->tui && (lines || !screen)) {
        *e = why;
        return false;
    }
    o->plain = lines || !screen;
    o->tui = !o->plain;
    if (!lines && unknown && !o->quiet) {
        err_set(&why, ERR_USAGE, "TERM is \"%.80s\", which terminfo does not know: "
                                 "lines instead of the full screen", getenv("TERM"));
        cli_fail(&why);
    }
    return true;
}

int cli_chat(struct cli *c)
{
    struct err e = {0};
    struct options *o = &c->opt;
    if (!cli_choose_face(c, &e))
        return cli_fail(&e);
    o->engine.attended = o->tui || (!o->script && isatty(STDIN_FILENO));
    return talk(c, o->plain ? line_face : screen_face, NULL);
}

/* ---- run ---- */

/* The words are the prompt; without words the prompt is the file or standard input. */
int cli_run(struct cli *c)
{
    FREED(buf_free) struct buf prompt = {0};
    if (c->batch)
        return cli_batch(c);
    for (int i = 0; i < c->n_word; i++)
        buf_printf(&prompt, "%s%s", i ? " " : "", c->word[i]);
    c->opt.plain = true;
    return talk(c, run_once, prompt.p ? prompt.p : c->opt.file ? "" : NULL);
}
