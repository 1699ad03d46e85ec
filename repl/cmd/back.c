/* back.c - commands that move the paused turn to another step or choose its next token: /rstep,
 * /goto and /force. */

#include "repl/cmd/cmd.h"

/* ---- going back ------------------------------------------------------------------------------ */

static bool go_to(struct cmd_call *c, int turn, int step)
{
    struct app *a = c->app;
    if (!a->backend->debug->back(a->backend, turn, step, c->e))
        return false;
    print_line(&c->to, ST_TEXT, "\f%d{turn}%d{step}", turn, step);
    return true; /* EV_PAUSE follows when the turn has reached the step */
}

bool cmd_rstep(struct cmd_call *c)
{
    struct app *a = c->app;
    long n = 1;
    struct debug_view v;
    if (!arg_number(c, "the number of steps", 1, 1000000, &n) ||
        !cmd_needs(c, VIEW_DEBUG))
        return false;
    a->backend->debug->view(a->backend, &v);
    if (v.paused && v.step == 0)
        return err_set(c->e, ERR_USAGE, "turn %d begins here; aerie replay ID shows every step of "
                       "a saved session", v.turn);
    return go_to(c, v.paused ? v.turn : a->turn, v.paused ? max_int(0, v.step - (int)n) : a->step);
}

/* Reads "9.3", or "3" for a step of the paused turn; step 0 is the beginning of the turn. */
static bool read_place(const struct debug_view *v, const char *s, int *turn, int *step,
                       struct err *e)
{
    char *end;
    long a = strtol(s, &end, 10), b = -1;
    bool ok = end > s && strspn(s, "0123456789.") == strlen(s) && strlen(s) < 20;
    if (ok && *end == '.') {
        const char *second = end + 1;
        b = strtol(second, &end, 10);
        ok = end > second;
    }
    if (!ok || *end || a > INT32_MAX || b > INT32_MAX)
        return err_set(e, ERR_USAGE, "a step is written TURN.STEP, for example 9.214, or STEP of "
                       "this turn; 0 is where the turn begins; not \"%.40s\"", s);
    *turn = b < 0 ? v->turn : (int)a;
    *step = (int)(b < 0 ? a : b);
    return true;
}

bool cmd_goto(struct cmd_call *c)
{
    struct app *a = c->app;
    struct debug_view v;
    int turn = 0, step = 0;
    if (!cmd_needs(c, VIEW_DEBUG))
        return false;
    a->backend->debug->view(a->backend, &v);
    if (!v.paused)
        v.turn = a->turn;
    return read_place(&v, c->argv[0], &turn, &step, c->e) && go_to(c, turn, step);
}

/* ---- a token by hand ------------------------------------------------------------------------- */

static void say_forced(struct app *a, int32_t id, const struct printer *to)
{
    size_t n;
    FREED(buf_free) struct buf clean = {0};
    const char *text = backend_token(a->backend, id, &n);
    text_sanitise(&clean, text, n, false);
    print_note(to, ST_TEXT, "the next token will be #%d \"%s\", by hand; the log says so", id,
               buf_text(&clean));
    print_line(to, ST_TEXT, "\f%d{token}%.*s{text}", id, (int)n, text);
}

void app_forced_line(struct app *a, const struct event *ev, struct buf *out)
{
    size_t n;
    if (!ev->forced.step) /* not in a pack without tokens */
        return;
    const char *text = backend_token(a->backend, ev->forced.token, &n);
    buf_printf(out, "step %d.%d begins with #%d \"", ev->turn, ev->forced.step, ev->forced.token);
    text_sanitise(out, text, n, false);
    buf_str(out, "\", by hand");
}

/* The text between the quotes, with \" and \\ and \n. */
static bool unquote(const char *s, struct buf *out, struct err *e)
{
    const char *at = s + 1;
    for (; *at && *at != '"'; at++) {
        if (*at == '\\' && at[1])
            at++;
        buf_char(out, *at == 'n' && at[-1] == '\\' ? '\n' : *at);
    }
    return (*at == '"' && !at[1] && out->n) ||
           err_set(e, ERR_USAGE, "/force takes a text in quotes or #ID, not %.60s (example: /force "
                                 "\" the\")", s);
}

bool cmd_force(struct cmd_call *c)
{
    struct app *a = c->app;
    FREED(buf_free) struct buf text = {0};
    int32_t id = -1;
    char *end = NULL;
    if (!cmd_needs(c, VIEW_DEBUG))
        return false;
    if (!a->backend->debug->force)
        return err_set(c->e, ERR_USAGE, "/force needs an engine: a recording is not changed");
    bool ok = true, off = strcmp(c->rest, "off") == 0;
    if (c->argc < 1)
        return arg_expected(c, "takes a text in quotes or #ID");
    if (c->rest[0] == '#') {
        long n = strtol(c->rest + 1, &end, 10);
        ok = (end > c->rest + 1 && !*end && n >= 0 && n <= INT32_MAX) ||
             arg_expected(c, "takes a text in quotes or #ID");
        id = (int32_t)n;
    } else if (!off) {
        ok = c->rest[0] == '"' ? unquote(c->rest, &text, c->e)
                               : arg_expected(c, "takes a text in quotes or #ID");
    }
    ok = ok && a->backend->debug->force(a->backend, text.n ? text.p : NULL, &id, c->e);
    if (ok && !off)
        say_forced(a, id, &c->to);
    else if (ok)
        print_note(&c->to, ST_TEXT, "the target chooses the next token");
    return ok;
}
