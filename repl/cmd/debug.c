/* debug.c - the commands that pause turns: /break, /watch, /delete, /breaks, /step, /phase, /next,
 * /finish, /continue, /until and /where.
 *
 * A paused turn waits in the engine's thread; the rest of the program goes on. Both faces call
 * app_show_pause(), which shows where and why the turn waits, when the engine posts EV_PAUSE.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "repl/cmd/cmd.h"

/* ---- where a turn is paused ------------------------------------------------------------------ */

void tokens_json(struct app *a, const int32_t *token, int n, struct buf *json)
{
    jput_open(json, '[');
    for (int i = 0; i < n; i++) {
        size_t bytes;
        const char *text = backend_token(a->backend, token[i], &bytes);
        jput_record(json, "%d{token}%.*s{text}", token[i], (int)bytes, text);
    }
    jput_close(json, ']');
}

static void tokens_text(struct app *a, const struct debug_view *v, struct buf *out)
{
    for (int i = 0; i < v->n_token; i++) {
        size_t n;
        const char *text = backend_token(a->backend, v->token[i], &n);
        buf_str(out, i ? " " : "");
        buf_char(out, '"');
        text_sanitise(out, text, n, false, NULL);
        buf_char(out, '"');
    }
}

static void pause_json(struct app *a, const struct debug_view *v, struct buf *json)
{
    jput_open(json, '{');
    jput_kbool(json, "paused", v->paused);
    if (v->paused) {
        jput_fields(json, "%d{turn}%d{step}%s{phase}%s{why}%d{first}%d{last}%d{nodes}", v->turn,
                    v->step, step_phase_name(v->phase), v->why, v->first, v->last, v->tree.n);
        jput_key(json, "tokens");
        tokens_json(a, v->token, v->n_token, json);
    }
    jput_close(json, '}');
}

static void pause_text(struct app *a, const struct debug_view *v, struct sheet *out)
{
    struct buf tokens = {0};
    say_line(out, ST_WARN, "%s%s", app_recording(a) ? "" : "paused: ", v->why);
    tokens_text(a, v, &tokens);
    if (v->n_token)
        say_line(out, ST_TEXT, "tokens of the step: %s", tokens.p);
    if (v->pauses == 1 && !app_recording(a))
        say_line(out, ST_DIM, "/phase, /step, /finish or /continue goes on; /tree, /pages and all other views "
                 "show this state");
    buf_free(&tokens);
}

uint64_t app_show_pause(struct app *a)
{
    struct debug_view v;
    a->backend->debug->view(a->backend, &v);
    if (!v.paused) /* the turn is running already */
        return v.pauses;
    if (a->face.json) {
        struct buf json = {0};
        pause_json(a, &v, &json);
        a->face.json(a, json.p);
        buf_free(&json);
        return v.pauses;
    }
    struct sheet s;
    sheet_init(&s, a->ascii);
    pause_text(a, &v, &s);
    a->face.show(a, &s);
    sheet_free(&s);
    return v.pauses;
}

bool cmd_where(struct cmd_call *c)
{
    struct app *a = c->app;
    struct debug_view v;
    if (!cmd_needs(c, VIEW_DEBUG))
        return false;
    a->backend->debug->view(a->backend, &v);
    if (c->json)
        pause_json(a, &v, c->json);
    else if (v.paused)
        pause_text(a, &v, c->out);
    else
        say_line(c->out, ST_TEXT,
                 backend_busy(a->backend) ? "the turn runs; /step pauses it after its step"
                                          : "no turn runs; /step pauses the next one "
                                            "where it begins");
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
    if (c->json) {
        jput_record(c->json, "%s{run}", c->cmd->name);
    } else if (!paused) {
        say_line(c->out, ST_TEXT, "%s", reply);
    }
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
    if (c->argc > 1 ||
        (c->argc == 1 && !arg_int(c->argv[0], "number of steps", 1, 1000000, &n, c->e)))
        return c->argc > 1 ? arg_expected(c, "takes at most one number of steps") : false;
    return run_on(c, RUN_STEP, (int)n, NULL, pauses_when(c->app));
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
    if (!*c->rest)
        return arg_expected(c, "takes a condition");
    return run_on(c, RUN_ON, 1, c->rest, "the next turn pauses where the condition holds, once");
}

/* ---- breakpoints ----------------------------------------------------------------------------- */

static void break_json(const struct debug_break *b, struct buf *json)
{
    jput_record(json, "%d{number}%s{kind}%s{condition}%lu{hits}", b->number,
                b->watch ? "watch" : "break", b->text, b->hits);
}

static void list_breaks(struct app *a, struct sheet *out, struct buf *json)
{
    struct debug_view v;
    a->backend->debug->view(a->backend, &v);
    if (json)
        jput_open(json, '[');
    for (int i = 0; i < v.n_break; i++) {
        const struct debug_break *b = &v.at[i];
        if (json)
            break_json(b, json);
        else
            say_line(out, ST_TEXT, "%3d  %-5s  %s  (%llu time%s)", b->number,
                     b->watch ? "watch" : "break", b->text, (unsigned long long)b->hits,
                     plural((long)b->hits));
    }
    if (json)
        jput_close(json, ']');
    else if (v.n_break == 0)
        say_line(out, ST_TEXT, "there are no breakpoints; /break accept==0 makes one");
}

bool cmd_breaks(struct cmd_call *c)
{
    if (!app_needs(c->app, "breaks", VIEW_DEBUG, c->e)) /* also when /break lists them */
        return false;
    list_breaks(c->app, c->out, c->json);
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

int app_break(struct app *a, const char *text, bool watch, struct err *e)
{
    struct buf condition = {0};
    join_if(text, &condition);
    int number = a->backend->debug->add(a->backend, condition.p ? condition.p : "", watch, e);
    buf_free(&condition);
    return number;
}

static bool add_break(struct cmd_call *c, bool watch)
{
    struct app *a = c->app;
    struct debug_view v;
    int number = cmd_needs(c, VIEW_DEBUG) ? app_break(a, c->rest, watch, c->e) : 0;
    if (number == 0)
        return false;
    a->backend->debug->view(a->backend, &v);
    for (int i = 0; i < v.n_break; i++)
        if (v.at[i].number == number && c->json)
            break_json(&v.at[i], c->json);
        else if (v.at[i].number == number)
            say_line(c->out, ST_TEXT, "%s %d: %s", watch ? "watch" : "breakpoint", number,
                     v.at[i].text);
    return true;
}

bool cmd_break(struct cmd_call *c)
{
    if (!*c->rest)
        return cmd_breaks(c);
    return add_break(c, false);
}

bool cmd_watch(struct cmd_call *c)
{
    if (!*c->rest)
        return arg_expected(c, "takes an expression");
    return add_break(c, true);
}

bool cmd_delete(struct cmd_call *c)
{
    long n = 0;
    if (c->argc > 1)
        return arg_expected(c, "takes at most one number");
    if ((c->argc == 1 && !arg_int(c->argv[0], "number of a breakpoint", 1, INT32_MAX, &n, c->e)) ||
        !cmd_needs(c, VIEW_DEBUG) || !c->app->backend->debug->remove(c->app->backend, (int)n, c->e))
        return false;
    if (c->json)
        list_breaks(c->app, c->out, c->json);
    else if (n)
        say_line(c->out, ST_TEXT, "breakpoint %ld is gone", n);
    else
        say_line(c->out, ST_TEXT, "there are no breakpoints now");
    return true;
}

/* Completes the name at the end of a condition. */
void complete_condition(struct app *a, const char *before, const char *word, cmd_add_fn *add,
                        void *arg)
{
    (void)before;
    const char *meaning, *name;
    if (!backend_has(a->backend, VIEW_DEBUG))
        return;
    for (int i = 0; (name = a->backend->debug->name(i, &meaning)) != NULL; i++)
        if (strncmp(name, word, strlen(word)) == 0)
            add(arg, name, meaning);
}
