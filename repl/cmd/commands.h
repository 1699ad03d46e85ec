/* commands.h - the commands, as the faces and the command line use them. Main thread only. */
#pragma once

#include "repl/repl.h"

/* ---- cmd.c: the command table ---------------------------------------------------------------- */

enum cmd_flags {
    CMD_WAITS = 1, /* does not run while a reply is generated */
    CMD_REST = 2, /* takes the rest of the line as one argument: quotes are ordinary characters */
    CMD_REPEATS = 4, /* Enter on an empty line gives it again while a turn is paused */
    CMD_SEEKS = 8, /* the transcript goes to the words of the step that it chose */
};

/* One call of a command: its row of the table, its arguments, and where the result goes. */
struct cmd_call {
    struct app *app;
    const struct cmd *cmd;
    int argc;
    char **argv;       /* the arguments only, quotes removed ("a b", \") */
    const char *rest;  /* the raw text after the name */
    struct printer to; /* text, shown by the face; under --json a JSON value */
    struct err *e;     /* after false: one line that says what was expected */
};
typedef bool cmd_fn(struct cmd_call *c);

struct cmd {
    const char *name;  /* without the slash */
    const char *args;  /* "[topic]", "POS", "" */
    const char *group; /* chat, session, inspect, debug, compare */
    cmd_fn *run;
    const char *example;
    const char *help;  /* one line, third person: "draws the draft tree of a step" */
    const char *alias; /* other names, with blanks between them, or NULL */
    int flags;
    struct {
        int least, most;
        const char *text; /* said when there are fewer or more: "takes one file"; NULL: the command
                             sees to it */
    } takes;              /* words after the name; with CMD_REST all of them are one */
    /* Completion candidates for the last word; NULL: the words among the alternatives of `args`.
     * before: the words between the command's name and the last word. */
    void (*complete)(struct app *a, const char *before, const char *word,
                     void (*add)(void *arg, const char *s, const char *help), void *arg);
};

int cmd_count(void);
const struct cmd *cmd_at(int i);
/* Exact name or alias, else the only command that begins with it; *e lists candidates. */
const struct cmd *cmd_find(const char *name, struct err *e);
/* Runs one line without its slash. */
bool cmd_run(struct app *a, const char *line, struct err *e);
/* Sends a user message, or runs a command if it begins with '/' ("//" sends a literal slash). */
bool app_input(struct app *a, const char *line, struct err *e);
/* Calls add() for each completion of the last word of the line up to the cursor, with a line of
 * help or NULL. */
void cmd_complete(struct app *a, const char *line,
                  void (*add)(void *arg, const char *s, const char *help), void *arg);
/* The table as Markdown rows, for repl/README.md; and as /help lists it, in JSON under a key. */
void cmd_table_markdown(struct buf *out);
void cmd_table(const char *key, const struct printer *to);

/* ---- probe.c --------------------------------------------------------------------------------- */

/* Shows the requested facts of a probed step. Both faces call it for EV_PROBE. */
void app_show_probe(struct app *a, const struct event *ev);

/* ---- debug.c --------------------------------------------------------------------------------- */

/* Shows where and why the turn is paused, and returns the number of the latest pause. Both faces
 * call it for EV_PAUSE. */
uint64_t app_show_pause(struct app *a);
/* Adds a breakpoint, a watch or a display, and returns its number; "A if B" is "(A) && (B)". 0 and
 * *e: the condition is invalid. For backends with VIEW_DEBUG. */
int app_break(struct app *a, const char *text, enum break_kind kind, struct err *e);
/* Shows the answer to /what-if (what_if.c). Both faces call it for EV_WHAT_IF. */
void app_show_what_if(struct app *a, const struct event *ev);
/* A line for OP_FORCE: "step 9.4 begins with #269 " the", by hand". */
void app_forced_line(struct app *a, const struct event *ev, struct buf *out); /* back.c */
