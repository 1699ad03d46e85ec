/* hands.c - commands that hand text of the conversation over: /copy to the clipboard, /edit to the
 * input. */
#include <limits.h>

#include "repl/cmd/cmd.h"

/* The newest turn of the context if its texts are in memory, as those of a turn that this process
 * computed are; else 0. */
static int turn_in_memory(const struct app *a)
{
    int newest = a->turns.n ? a->turns.v[a->turns.n - 1] : 0;
    return newest == a->said_turn ? newest : 0;
}

/* Appends the message of a turn, or its reply, of a reply that is not complete what there is of it;
 * turn 0: the newest. Returns the turn's number; 0 and *e: there is none, or it cannot be read. */
static int text_of(struct cmd_call *c, int turn, bool reply, struct buf *out)
{
    struct app *a = c->app;
    int here = turn_in_memory(a);
    if (here && (!turn || turn == here)) {
        const struct buf *text = reply ? &a->said : &a->asked;
        buf_add(out, text->p, text->n);
        return text->n ? here : err_set(c->e, ERR_NEGATIVE, "reply %d has no text yet", here);
    }
    FREED(hdb_past_free) struct hdb_past p = {0};
    struct hdb *d = app_own_log(a, c->e);
    if (!d || !hdb_past(d, a->session, INT_MAX, &p, c->e))
        return 0;
    int found = 0;
    for (int i = p.n - 1; i >= 0 && !found; i--) {
        const struct turn_row *r = reply ? &p.turn[i].reply : &p.turn[i].user;
        if (r->n && (turn ? r->n == turn : p.turn[i].state == PAST_LIVE)) {
            buf_add(out, r->text ? r->text : "", r->text_n);
            found = r->n;
        }
    }
    if (!found && turn)
        err_set(c->e, ERR_USAGE, "this session has no turn %d in its log", turn);
    else if (!found)
        err_set(c->e, ERR_USAGE, "this session has no turn in its log yet");
    return found;
}

/* The `want`th block between lines of ``` or ~~~, 0: the last. False: there is none. */
static bool code_block(const char *text, int want, struct buf *out)
{
    int n = 0;
    bool inside = false;
    for (const char *p = text, *end; *p; p = end) {
        end = strchrnul(p, '\n');
        end += *end != '\0';
        const char *mark = p + strspn(p, " ");
        if (strncmp(mark, "```", 3) == 0 || strncmp(mark, "~~~", 3) == 0) {
            inside = !inside;
            n += inside;
            if (inside && want == 0)
                buf_clear(out);
        } else if (inside && (want == 0 || n == want)) {
            buf_add(out, p, (size_t)(end - p));
        }
    }
    return want ? n >= want : n > 0;
}

/* Gives text to the terminal; without a full screen it is the command's answer. */
static bool hand_over(struct cmd_call *c, const char *what, const struct buf *text)
{
    struct app *a = c->app;
    if (!a->face.copy) {
        print_text(&c->to, ST_TEXT, buf_text(text));
        print_line(&c->to, ST_TEXT, "\f%s{text}", buf_text(text));
        return true;
    }
    if (!a->face.copy(a, text->p, text->n, c->e))
        return false;
    print_line(&c->to, ST_DIM, "%s, %zu{bytes} bytes, for the terminal's clipboard (OSC 52)", what,
               text->n);
    return true;
}

bool cmd_copy(struct cmd_call *c)
{
    static const char *const what[] = {"reply", "message", "code"};
    enum { REPLY, MESSAGE, CODE };
    int i = REPLY;
    long n = 0;
    if (c->argc > 0 && (i = arg_choice(c->argv[0], "what to copy", what, 3, c->e)) < 0)
        return false;
    if (c->argc > 1 && !arg_int(c->argv[1], i == CODE ? "the number of the block" : "the turn", 1,
                                INT_MAX, &n, c->e))
        return false;
    FREED(buf_free) struct buf text = {0}, block = {0};
    int turn = text_of(c, i == CODE ? 0 : (int)n, i != MESSAGE, &text);
    bool ok = turn > 0;
    if (ok && i == CODE && !code_block(buf_text(&text), (int)n, &block))
        ok = err_set(c->e, ERR_NEGATIVE, n ? "reply %d has no code block %ld"
                                           : "reply %d has no code block", turn, n);
    bool so_far = i == REPLY && turn == turn_in_memory(c->app) && backend_busy(c->app->backend);
    ok = ok && hand_over(c, so_far ? "reply so far" : what[i], i == CODE ? &block : &text);
    return ok;
}

/* Sets *e: the turn is not one of the context's, whose newest ones are named. */
static bool not_there(const struct app *a, long turn, struct err *e)
{
    enum { NAMED = 12 };
    FREED(buf_free) struct buf list = {0};
    int first = max_int(0, a->turns.n - NAMED);
    for (int i = first; i < a->turns.n; i++)
        buf_printf(&list, "%s%d", i > first ? ", " : first ? "..., " : "", a->turns.v[i]);
    return err_set(e, ERR_USAGE, "turn %ld is not in the context, which has %s%s", turn,
                   !list.n ? "no turn" : a->turns.n == 1 ? "turn " : "turns ", buf_text(&list));
}

bool cmd_edit(struct cmd_call *c)
{
    struct app *a = c->app;
    FREED(buf_free) struct buf text = {0};
    long turn = a->turns.n ? a->turns.v[a->turns.n - 1] : 0;
    if (!a->face.edit)
        return err_set(c->e, ERR_USAGE, "/edit needs the full screen; /fork TURN and the message "
                                        "again do the same");
    if (c->argc == 1 && !arg_int(c->argv[0], "the turn", 1, INT_MAX, &turn, c->e))
        return false;
    if (!turn)
        return err_set(c->e, ERR_USAGE, "there is no message to edit");
    int before = 0; /* the turn in the context that comes before */
    bool there = false;
    for (int i = 0; i < a->turns.n && !there; i++) {
        there = a->turns.v[i] == turn;
        before = there ? before : a->turns.v[i];
    }
    bool ok = (there || not_there(a, turn, c->e)) &&
              text_of(c, (int)turn, false, &text) && app_fork(a, before, c->e);
    if (ok) {
        a->face.edit(a, buf_text(&text));
        print_line(&c->to, ST_DIM, "a new session goes on before turn %ld{turn}; Enter sends the "
                                   "message again", turn);
    }
    return ok;
}
