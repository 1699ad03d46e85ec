/* state.c - what the other files of app/ stand on: single facts of the open backend, the log for
 * reading, and notices. */

#include "engine/bugs.h"
#include "repl/compare/facts.h"
#include "repl/process/interrupt.h"
#include "repl/repl.h"

/* ---- facts ----------------------------------------------------------------------------------- */

bool app_needs(const struct app *a, const char *command, enum backend_view v, struct err *e)
{
    struct chat_view now;
    if (v == VIEW_ACCEPT) /* known only from a server's answers: see struct backend */
        backend_chat(a->backend, &now);
    const char *why = a->backend->lacks[v];
    return !why || err_set(e, ERR_NEGATIVE, "/%s: %s", command, why);
}

void app_settings(struct app *a, struct settings *s)
{
    struct chat_view v;
    backend_chat(a->backend, &v);
    *s = v.settings;
}

void app_bugs(struct app *a, struct bugs *on)
{
    *on = (struct bugs){0};
    if (backend_has(a->backend, VIEW_FAULTS))
        a->backend->faults->on(a->backend, on);
}

void app_note_idle_bugs(struct app *a, const struct settings *s, const struct bugs *bugs)
{
    for (int b = 0; b < N_BUGS; b++) {
        FREED(buf_free) struct buf needs = {0};
        int on = bug_on(bugs, (enum bug)b);
        const struct bug_info *i = bug_at((enum bug)b);
        if (on && facts_unmet_needs(backend_info(a->backend), s, (enum bug)b, on, &needs))
            buf_printf(&a->notes, "%d %s is on, but cannot fire now; needs %s\n", i->number,
                       i->name, needs.p);
    }
}

bool app_address(const struct app *a, int *turn, int *step)
{
    *turn = a->at.turn;
    *step = a->at.step;
    return a->at.turn > 0;
}

struct hdb *app_hdb(struct app *a, struct err *e)
{
    if (a->history)
        history_flush_unless(a->history, 2000, interrupt_waits);
    hdb_stop_when(interrupt_waits);
    if (!a->hdb)
        a->hdb = hdb_open(a->db_path, e);
    return a->hdb;
}

struct hdb *app_own_log(struct app *a, struct err *e)
{
    FREED(session_row_free) struct session_row row = {0};
    struct hdb *d = app_hdb(a, e);
    bool found = d && hdb_find(d, a->session, &row, e);
    if (d && !found && e && e->kind == ERR_NEGATIVE)
        err_set(e, ERR_NEGATIVE, "nothing of this session is saved: %s",
                a->private_                      ? "it is private"
                : a->history || a->log_error[0] ? "it has no turn yet, or the log cannot be written"
                                                : "the log is off");
    return found ? d : NULL;
}

void app_forget_turn(struct app *a)
{
    if (a->turns.n == 0)
        return;
    int last = a->turns.v[--a->turns.n];
    if (a->face.retract)
        a->face.retract(a, last);
}

/* ---- notices and errors ---------------------------------------------------------------------- */

static void notice(struct app *a, struct sheet *s)
{
    if (a->face.notice)
        a->face.notice(a, s);
    else if (a->face.show)
        a->face.show(a, s);
}

void app_say(struct app *a, enum style st, const char *fmt, ...)
{
    char text[1024];
    PRINT_ARGS(text, fmt);
    FREED(sheet_free) struct sheet s = {.ascii = a->ascii};
    say_line(&s, st, "%s", text);
    notice(a, &s);
}

void app_error(struct app *a, const struct err *e)
{
    if (a->face.error)
        a->face.error(a, e);
    else
        app_say(a, ST_BAD, "%s", e->msg);
}

void app_print(struct app *a,
               void (*write)(struct app *a, const void *arg, const struct printer *to),
               const void *arg)
{
    FREED(buf_free) struct buf json = {0};
    bool as_json = a->opt.json && a->face.json;
    FREED(sheet_free) struct sheet out = {.ascii = a->ascii};
    write(a, arg, &(struct printer){&out, as_json ? &json : NULL});
    if (as_json)
        a->face.json(a, json.p);
    else
        a->face.show(a, &out);
}
