/* debug.c - the commands that pause turns: /break, /watch, /delete, /breaks, /step, /phase, /next,
 * /finish, /continue, /until and /where.
 *
 * A paused turn waits in the engine's thread; the rest of the program goes on. Both faces call
 * app_show_pause(), which shows where and why the turn waits, when the engine posts EV_PAUSE. */

#include "repl/cmd/cmd.h"

/* ---- where a turn is paused ------------------------------------------------------------------ */

void print_tokens(struct app *a, const char *label, const int32_t *token, int n_token,
                  const struct printer *to)
{
    print_add(to, ST_TEXT, "%s", label);
    print_open(to, "tokens", '[');
    for (int i = 0; i < n_token; i++) {
        size_t n;
        const char *text = backend_token(a->backend, token[i], &n);
        PRINT_IN(to, NULL, '{');
        print_add(to, ST_TEXT, "\f%d{token}\f%s\"%.*s{text}\"", token[i], i ? " " : "", (int)n,
                  text);
    }
    print_close(to, ']');
    print_end(to);
}

static void write_pause(struct app *a, const void *arg, const struct printer *to)
{
    const struct debug_view *v = arg;
    PRINT_IN(to, NULL, '{');
    print_facts(to, ST_WARN, "\f%d{paused?}%d{turn}%d{step}%s{phase}\f%s%s{why}\f%d{first}%d{last}"
                "%d{nodes}", true, v->turn, v->step, step_phase_name(v->phase),
                app_recording(a) ? "" : "paused: ", v->why, v->first, v->last, v->tree.n);
    if (to->json || v->n_token)
        print_tokens(a, "tokens of the step: ", v->token, v->n_token, to);
    if (v->pauses == 1 && !app_recording(a))
        print_note(to, ST_DIM, "/phase, /step, /finish or /continue goes on; /tree, /pages and all "
                   "other views show this state");
    PRINT_IN(to, "displays", '[');
    for (int i = 0; i < v->n_break; i++)
        if (v->at[i].kind == BREAK_DISPLAY)
            print_line(to, ST_TEXT, "%d{number}: %s{expr} = %s{value}", v->at[i].number,
                       v->at[i].text, v->at[i].value);
}

uint64_t app_show_pause(struct app *a)
{
    struct debug_view v;
    a->backend->debug->view(a->backend, &v);
    if (v.paused) /* else the turn is running already */
        app_print(a, write_pause, &v);
    return v.pauses;
}

bool cmd_where(struct cmd_call *c)
{
    struct app *a = c->app;
    struct debug_view v;
    if (!cmd_needs(c, VIEW_DEBUG))
        return false;
    a->backend->debug->view(a->backend, &v);
    if (v.paused)
        write_pause(a, &v, &c->to);
    else
        print_line(&c->to, ST_TEXT, "%s\f%d{paused?}", backend_busy(a->backend)
                       ? "the turn runs; /step pauses it after its step"
                       : "no turn runs; /step pauses the next one where it begins", false);
    return true;
}

/* ---- going on -------------------------------------------------------------------------------- */

/* Continues a paused turn; if no turn is paused, says where the next one will pause. */
static bool run_on(struct cmd_call *c, enum run_until until, int steps, const char *condition,
                   const char *reply)
{
    struct app *a = c->app;
    if (!cmd_needs(c, VIEW_DEBUG))
        return false;
    bool paused = app_paused(a) > 0;
    if (!paused && until == RUN_FINISH)
        return err_set(c->e, ERR_USAGE, "no turn is paused");
    if (!a->backend->debug->run(a->backend, until, steps, condition, c->e))
        return false;
    print_line(&c->to, ST_TEXT, paused ? "\f%s%s{run}" : "%s\f%s{run}", reply, c->cmd->name);
    return true;
}

static const char *pauses_when(const struct app *a)
{
    return backend_busy(a->backend) ? "the turn pauses soon"
                                    : "the next turn pauses where it begins";
}

bool cmd_step(struct cmd_call *c)
{
    long n = 1;
    return arg_number(c, "the number of steps", 1, 1000000, &n) &&
           run_on(c, RUN_STEP, (int)n, NULL, pauses_when(c->app));
}

bool cmd_phase(struct cmd_call *c)
{
    return run_on(c, RUN_PHASE, 1, NULL, pauses_when(c->app));
}

bool cmd_next(struct cmd_call *c)
{
    return run_on(c, RUN_TURN, 1, NULL, "the next turn pauses where it begins");
}

bool cmd_finish(struct cmd_call *c)
{
    return run_on(c, RUN_FINISH, 1, NULL, "");
}

bool cmd_continue(struct cmd_call *c)
{
    return run_on(c, RUN_ON, 1, NULL, "turns run; breakpoints hold");
}

bool cmd_until(struct cmd_call *c)
{
    return run_on(c, RUN_ON, 1, c->rest, "the next turn pauses where the condition holds, once");
}

/* ---- breakpoints ----------------------------------------------------------------------------- */

static void list_breaks(struct app *a, const struct printer *to)
{
    struct debug_view v;
    a->backend->debug->view(a->backend, &v);
    print_open(to, NULL, '[');
    int n = 0;
    FOR_EACH(const struct debug_break, b, v.at, v.n_break) {
        if (b->kind == BREAK_DISPLAY)
            continue;
        n++;
        print_line(to, ST_TEXT, "%3d{number}  %-5s{kind}  %s{condition}  (%lu{hits} time%s)",
                   b->number, b->kind == BREAK_WATCH ? "watch" : "break", b->text, b->hits,
                   plural((long)b->hits));
    }
    print_close(to, ']');
    if (n == 0)
        print_note(to, ST_TEXT, "there are no breakpoints; /break accept==0 makes one");
}

bool cmd_breaks(struct cmd_call *c)
{
    if (!app_needs(c->app, "breaks", VIEW_DEBUG, c->e)) /* also when /break lists them */
        return false;
    list_breaks(c->app, &c->to);
    return true;
}

/* "A if B" is "(A) && (B)"; the `if` must stand between blanks, outside quotes. */
static void join_if(const char *rest, struct buf *out)
{
    bool quoted = false;
    for (const char *s = rest; *s; s++) {
        quoted ^= *s == '"' && (s == rest || s[-1] != '\\');
        if (quoted || strncmp(s, " if ", 4) != 0)
            continue;
        buf_printf(out, "(%.*s) && (%s)", (int)(s - rest), rest, s + 4);
        return;
    }
    buf_str(out, rest);
}

int app_break(struct app *a, const char *text, enum break_kind kind, struct err *e)
{
    FREED(buf_free) struct buf condition = {0};
    join_if(text, &condition);
    return a->backend->debug->add(a->backend, buf_text(&condition), kind, e);
}

static bool add_break(struct cmd_call *c, enum break_kind kind)
{
    struct app *a = c->app;
    struct debug_view v;
    int number = cmd_needs(c, VIEW_DEBUG) ? app_break(a, c->rest, kind, c->e) : 0;
    if (number == 0)
        return false;
    a->backend->debug->view(a->backend, &v);
    for (int i = 0; i < v.n_break; i++)
        if (v.at[i].number == number)
            print_line(&c->to, ST_TEXT, "%s %d{number}: \f%s{kind}\f%s{condition}\f%lu{hits}",
                       kind == BREAK_WATCH ? "watch" : "breakpoint", number,
                       kind == BREAK_WATCH ? "watch" : "break", v.at[i].text, v.at[i].hits);
    return true;
}

bool cmd_break(struct cmd_call *c)
{
    if (!*c->rest)
        return cmd_breaks(c);
    return add_break(c, BREAK_IF);
}

bool cmd_watch(struct cmd_call *c)
{
    return add_break(c, BREAK_WATCH);
}

/* ---- displays -------------------------------------------------------------------------------- */

/* One display, number 0: all. */
static void show_displays(struct app *a, int number, const struct printer *to)
{
    struct debug_view v;
    int n = 0;
    a->backend->debug->view(a->backend, &v);
    print_open(to, NULL, '[');
    FOR_EACH(const struct debug_break, b, v.at, v.n_break) {
        if (b->kind != BREAK_DISPLAY || (number && b->number != number))
            continue;
        n++;
        print_line(to, ST_TEXT, *b->value ? "%d{number}: %s{expr} = %s{value}"
                                          : "%d{number}: %s{expr}\f%s{value}",
                   b->number, b->text, b->value);
    }
    print_close(to, ']');
    if (n == 0)
        print_note(to, ST_TEXT, "nothing is displayed; /display pool.swa.free shows it at each "
                                "pause");
}

bool cmd_display(struct cmd_call *c)
{
    if (!cmd_needs(c, VIEW_DEBUG))
        return false;
    int number = *c->rest ? app_break(c->app, c->rest, BREAK_DISPLAY, c->e) : 0;
    if (*c->rest && !number)
        return false;
    show_displays(c->app, number, &c->to);
    return true;
}

static bool is_display(struct app *a, long number)
{
    struct debug_view v;
    a->backend->debug->view(a->backend, &v);
    return ANY(i, v.n_break, v.at[i].number == number && v.at[i].kind == BREAK_DISPLAY);
}

bool cmd_undisplay(struct cmd_call *c)
{
    long n = -1;
    if (!arg_number(c, "the number of a display", 1, INT32_MAX, &n) ||
        !cmd_needs(c, VIEW_DEBUG))
        return false;
    if (n > 0 && !is_display(c->app, n))
        return err_set(c->e, ERR_USAGE, "there is no display %ld; /display lists them", n);
    if (!c->app->backend->debug->remove(c->app->backend, (int)n, c->e))
        return false;
    print_note(&c->to, ST_TEXT, n > 0 ? "display %ld is gone" : "nothing is displayed now\f%ld", n);
    if (c->to.json)
        show_displays(c->app, 0, &c->to);
    return true;
}

bool cmd_delete(struct cmd_call *c)
{
    long n = 0;
    if (!arg_number(c, "the number of a breakpoint", 1, INT32_MAX, &n) ||
        !cmd_needs(c, VIEW_DEBUG))
        return false;
    if (n && is_display(c->app, n))
        return err_set(c->e, ERR_USAGE, "%ld is a display; /undisplay %ld removes it", n, n);
    if (!c->app->backend->debug->remove(c->app->backend, (int)n, c->e))
        return false;
    print_note(&c->to, ST_TEXT, n ? "breakpoint %ld is gone" : "there are no breakpoints now\f%ld",
               n);
    if (c->to.json)
        list_breaks(c->app, &c->to);
    return true;
}

/* Completes the name at the end of a condition. */
void complete_condition(struct app *a, const char *, const char *word, cmd_add_fn *add,
                        void *arg)
{
    const char *meaning, *name;
    if (!backend_has(a->backend, VIEW_DEBUG))
        return;
    for (int i = 0; (name = a->backend->debug->name(i, &meaning)) != NULL; i++)
        if (strncmp(name, word, strlen(word)) == 0)
            add(arg, name, meaning);
}
