/* cmd.h - what cmd.c and the files of commands share.
 *
 * cmd.c has the table, running, completion and /help; the other files have the commands,
 * help.c and find.c what /help says. */
#pragma once

#include "kernels/json.h"
#include "repl/cmd/commands.h"
#include "repl/text/args.h"

typedef void cmd_complete_fn(struct app *a, const char *before, const char *word, cmd_add_fn *add,
                             void *arg);

cmd_fn cmd_help, cmd_set, cmd_system, cmd_read, cmd_drop, cmd_regen, cmd_undo, cmd_forget,
    cmd_clear;
cmd_fn cmd_bye;
cmd_fn cmd_sessions, cmd_search, cmd_resume, cmd_fork, cmd_title, cmd_export, cmd_private;
cmd_fn cmd_stats, cmd_memory, cmd_accept, cmd_timing, cmd_tree, cmd_pages, cmd_page, cmd_map,
    cmd_pool, cmd_gauges, cmd_blocks;
cmd_fn cmd_where, cmd_step, cmd_phase, cmd_next, cmd_finish, cmd_continue, cmd_until;
cmd_fn cmd_rstep, cmd_goto, cmd_force, cmd_what_if;
cmd_fn cmd_diff, cmd_diverge;
cmd_fn cmd_break, cmd_watch, cmd_delete, cmd_breaks, cmd_display, cmd_undisplay;
cmd_fn cmd_why, cmd_steps, cmd_top, cmd_tokens, cmd_layers, cmd_attn;
cmd_fn cmd_address, cmd_layout, cmd_screenshot;
cmd_fn cmd_copy, cmd_edit; /* hands.c */
cmd_fn cmd_draft, cmd_model; /* switch.c */
cmd_fn cmd_preset; /* preset.c */
cmd_complete_fn complete_draft, complete_model, complete_preset;
cmd_fn cmd_plan, cmd_bug, cmd_several, cmd_check, cmd_calibrate, cmd_triage, cmd_sql;
cmd_complete_fn complete_bug, complete_help, complete_set, complete_file, complete_session,
    complete_drop;
cmd_complete_fn complete_condition, complete_layout;

/* ---- arguments ------------------------------------------------------------------------------- */

/* "/tree takes a step such as 9.214, not "x" (example: /tree 9.214)" for the command's usage. */
bool arg_expected(const struct cmd_call *c, const char *expected);
/* At most one argument, a number from lo to hi; without it *n stays. */
bool arg_number(const struct cmd_call *c, const char *what, long lo, long hi, long *n);
/* Whether the backend has a view. False and *e: why the command cannot show it. */
bool cmd_needs(const struct cmd_call *c, enum backend_view v);

/* ---- help (help.c, find.c) --------------------------------------------------------------- */

/* Says what there is on a name (of a command, a setting, a topic), else searches all of it and the
 * manual page for words. a may be NULL. False and *e: there is nothing. */
bool cmd_help_on(struct app *a, const char *words, const struct printer *to, struct err *e);
/* What that is made of; cmd.c has the table. */
struct help_on {
    struct app *app; /* NULL: asked from the shell */
    const char *words, *name; /* name: without a slash */
    const struct cmd *table, *named; /* named: what cmd_find() finds, or NULL */
    int n_table;
    bool is_alias; /* name is another name of `named` */
};
enum { HELP_CELLS = 79 }; /* lines of help that no terminal wraps */
bool help_answer(const struct help_on *on, const struct printer *to);
/* Says the topic of this name, as in the shell. False: there is none. */
bool help_topic(const char *name, const struct printer *to);
/* The search alone: the best answers, each with its matching line. False: there is none. */
bool help_find(const struct help_on *on, const struct printer *to);

/* A line of tokens in quotes, behind a label; the member "tokens", an array of {"token": id,
 * "text": ...}. */
void print_tokens(struct app *a, const char *label, const int32_t *token, int n_token,
                  const struct printer *to);

/* A line if the session had several drafters, whose sums stand above. */
void say_drafters(struct app *a, const struct printer *to);
/* At an address: says that what follows is of now. */
void say_now(const struct cmd_call *c);

/* ---- with a server (served_tokens.c): for backends with VIEW_SERVED -------------------------- */

/* turn 0: the step of /at, else the newest. row -1: all rows. Writes to out or to json, whichever
 * is not NULL. */
bool served_why(struct app *a, int turn, int step, const struct printer *to, struct err *e);
bool served_top(struct app *a, int turn, int step, int row, const struct printer *to,
                struct err *e);
/* The latest tokens of replies. */
bool served_tokens(struct app *a, long most, const struct printer *to, struct err *e);

/* ---- settings of the screen (screen.c) ------------------------------------------------------- */

bool is_screen_setting(const char *name);
/* Shows a setting of the screen, or changes it. */
bool screen_setting(struct app *a, const char *name, const char *value, const struct printer *to,
                    struct err *e);
void screen_settings(struct app *a, const struct printer *to); /* shows all */
/* Shows any setting; more: text behind its help. */
void setting_row(const char *name, const char *value, const char *range, const char *help,
                 const char *more, const struct printer *to);
/* Offers the names of these settings, or, with a name, the values of that one. */
void complete_screen_setting(const char *name, const char *word, cmd_add_fn *add, void *arg);

/* ---- small things of the commands ------------------------------------------------------------ */

int view_width(const struct app *a);
