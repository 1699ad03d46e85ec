/* cmd.h - what cmd.c and the files of commands share.
 *
 * cmd.c has the table, the splitting into words and completion; the other files have the commands,
 * help.c also the help texts.
 */
#ifndef AERIE_CMD_H
#define AERIE_CMD_H

#include "kernels/json.h"
#include "repl/repl.h"

typedef bool cmd_fn(struct app *a, int argc, char **argv, const char *rest, struct sheet *out,
                    struct buf *json, struct err *e);
/* One candidate; help: a line of description, or NULL. */
typedef void cmd_add_fn(void *arg, const char *s, const char *help);
typedef void cmd_complete_fn(struct app *a, const char *before, const char *word, cmd_add_fn *add,
                             void *arg);

cmd_fn cmd_help, cmd_set, cmd_system, cmd_read, cmd_drop, cmd_regen, cmd_undo, cmd_forget, cmd_clear;
cmd_fn cmd_bye;
cmd_fn cmd_sessions, cmd_search, cmd_resume, cmd_fork, cmd_title, cmd_export, cmd_private;
cmd_fn cmd_stats, cmd_accept, cmd_timing, cmd_tree, cmd_pages, cmd_page, cmd_map, cmd_pool, cmd_gauges, cmd_blocks;
cmd_fn cmd_where, cmd_step, cmd_phase, cmd_next, cmd_finish, cmd_continue, cmd_until;
cmd_fn cmd_rstep, cmd_goto, cmd_force, cmd_what_if;
cmd_fn cmd_diff, cmd_diverge;
cmd_fn cmd_break, cmd_watch, cmd_delete, cmd_breaks;
cmd_fn cmd_why, cmd_top, cmd_tokens, cmd_layers, cmd_attn;
cmd_fn cmd_address, cmd_layout;
cmd_fn cmd_plan, cmd_bug, cmd_several, cmd_check, cmd_calibrate, cmd_sql;
cmd_complete_fn complete_bug, complete_help, complete_set, complete_file, complete_session, complete_drop;
cmd_complete_fn complete_condition, complete_layout;

/* ---- arguments ------------------------------------------------------------------------------- */

/* Splits text at blanks; "a b" is one word, \" a quote inside it. At most max words, allocated;
 * returns their number, -1 and *e when a quote is not closed or there are too many. */
int words_split(const char *text, char **word, int max, struct err *e);
void words_free(char **word, int n);
/* A whole number between min and max; `what` names it in the error. */
bool arg_int(const char *s, const char *what, long min, long max, long *out, struct err *e);
/* "/tree takes a step such as 9.214, not "x" (example: /tree 9.214)" for the command's usage. */
bool arg_expected(const char *name, const char *expected, struct err *e);
/* The index of the one of n words that a word is, or of which it is an unambiguous beginning; -1
 * and *e. */
int arg_choice(const char *s, const char *what, const char *const *word, int n, struct err *e);

/* Reads "9.214", or "214" for a step of the current turn; if `third` is not NULL, also "9.214.2"
 * (*third: 2, or -1 without the third number). */
bool arg_step(const struct app *a, const char *s, int *turn, int *step, int *third, struct err *e);

/* Appends the names nearest to a word as "a, b or c"; nothing when no name is near. */
void nearest_names(const char *word, const char *(*name)(int i), int n, const char *before,
                   struct buf *out);

/* ---- help (help.c) ----------------------------------------------------------------------- */

int topic_count(void);
const char *topic_name(int i);

/* Appends an array of {"token": id, "text": ...}. */
void tokens_json(struct app *a, const int32_t *token, int n, struct buf *json);

/* ---- steps (step.c) -------------------------------------------------------------------------- */

/* The facts of a step from the log that are needed to compute it again; freed with
 * probe_past_free(). NULL and *e: the log does not have all of them. */
struct probe_past *app_logged_step(struct app *a, int turn, int step, struct err *e);
/* Whether the step has a tree; false and *e: why not. */
bool step_drafted(const struct step_view *v, struct err *e);
/* The step that commands without an address show: that of /at, else the newest. False: there is
 * none. */
bool app_newest_step(struct app *a, struct step_view *v, struct err *e);
/* Calls fn for each step of the session up to the app's address, oldest first, until it returns false.
 * The steps come from memory if it has the first step, else from the log, else from memory as far as
 * it has them; `source` says which. with_trees: fn needs trees and tokens; a log without them is not
 * read then. For backends with VIEW_STEPS. */
enum { STEP_SOURCE = 128 };
void app_each_step(struct app *a, bool with_trees, bool (*fn)(const struct step_view *v, void *arg),
                   void *arg, char source[STEP_SOURCE]);
/* At an address: says that what follows is of now. */
void say_now(const struct app *a, const char *command, struct sheet *out);

/* ---- with a server (served_tokens.c): for backends with VIEW_SERVED -------------------------- */

/* turn 0: the step of /at, else the newest. row -1: all rows. Writes to out or to json, whichever
 * is not NULL. */
bool served_why(struct app *a, int turn, int step, struct sheet *out, struct buf *json, struct err *e);
bool served_top(struct app *a, int turn, int step, int row, struct sheet *out, struct buf *json, struct err *e);
/* The latest tokens of replies. */
bool served_tokens(struct app *a, long most, struct sheet *out, struct buf *json, struct err *e);

/* ---- settings of the screen (screen.c) ------------------------------------------------------- */

bool is_screen_setting(const char *name);
const char *screen_setting_name(int i); /* NULL after the last */
/* Shows a setting of the screen, or changes it. */
bool screen_setting(struct app *a, const char *name, const char *value, struct sheet *out,
                    struct buf *json, struct err *e);
void screen_settings(struct app *a, struct sheet *out, struct buf *json); /* shows all */
/* Offers the names of these settings, or, with a name, the values of that one. */
void complete_screen_setting(const char *name, const char *word, cmd_add_fn *add, void *arg);
/* Offers the words of a list such as "auto | dark | light" that begin with `word`; of others, such as
 * "0 .. 100", none. */
void complete_words(const char *list, const char *word, cmd_add_fn *add, void *arg);

/* ---- small things of the commands ------------------------------------------------------------ */

/* A line of text, and text of several lines, a row each. */
void say_line(struct sheet *out, enum style st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void say_text(struct sheet *out, enum style st, const char *text);
/* Submits a request without text. */
bool app_request(struct app *a, enum request_kind kind, const char *text, struct err *e);
int view_width(const struct app *a);

#endif
