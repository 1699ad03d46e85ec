/* repl.h - the program's state and its parts.
 *
 * Everything in repl/ runs on the main thread, which owns the terminal and every struct here; the
 * engine's and the log's threads are behind their handles (backend.h, history.h). Two things run
 * beside it: the handler of signals, which writes to a pipe and to atomics only (interrupt.h), and
 * the process of /sql, which shares no memory (sql.c). One struct app holds the engine, the log and
 * the current session; the full screen (tui.c) and the plain mode (plain.c) are two faces of it:
 * both run the same commands (cmd.c), and both print the sheets that commands write, so the plain
 * mode can show everything that the full screen shows. */
#pragma once

#include "engine/backend.h"
#include "engine/opts.h"
#include "history/history.h"
#include "repl/text/print.h"
#include "repl/text/sheet.h"

/* The parsed command line. Strings belong to argv or to the app. */
struct options {
    struct engine_opts engine;
    enum log_level level;
    const char *db; /* NULL: the default place */
    const char *bundled, *bundled_draft; /* folders of the bundled model; NULL: not installed */
    const char *system, *session, *script, *file;
    bool resume_last; /* -c */
    bool fork;        /* with session or resume_last: continue in a copy of the session */
    unsigned given;   /* settings that the command line names: bit i is settings_at(i) */
    bool plain, tui, json, ascii, readonly, quiet, verbose;
    bool served; /* `aerie serve`: the log receives clients' requests, not a conversation */
    int color; /* 0 auto, 1 always, 2 never */
    /* of the full screen; 0 is the default: cmd/screen.c has the values */
    int theme;    /* 0 auto, 1 dark, 2 light */
    int tint;     /* 0 off, 1 on: words of replies are tinted by how their tokens were accepted */
    int timeline; /* 0 on, 1 off */
    int mouse;    /* 0 on, 1 off */
    int sanitize; /* 0 auto, 1 always, 2 never */
    /* of the log */
    const char *seal; /* file of the key, or NULL */
    int keep_days, keep_sessions, max_size, at_limit; /* 0: all; 0: no limit, in MB; 0 warn, 1
                                                         stop */
};

/* Files of /read that are sent before the text of the next message of one session. */
struct attached {
    char session[SESSION_ID];
    struct attachment {
        char *name;      /* as the user wrote it */
        struct buf text;
    } *file;
    int n;
};

/* A step of the session; turn 0: now. */
struct address {
    int turn, step;
};

enum picture { PICTURE_TEXT, PICTURE_SVG, PICTURE_PNG }; /* of the screen, or of a pane */

/* Steps that the engine computes again, and what to show of each when its probe arrives
 * (cmd/probe.c). */
enum { MAX_WANTS = 16 };
struct probe_want {
    enum probe_view { PROBE_LAYERS, PROBE_KEYS, PROBE_TOP } what;
    int turn, step;
};

struct app {
    struct options opt;
    struct backend *backend;
    struct history *history; /* NULL: not recording */
    char *db_path;
    struct hdb *hdb; /* opened on first use by app_hdb() */
    struct app_past {    /* recording.c: */
        struct backend *b; /* a recording of the session, for what the engine's memory does not
                              hold; NULL: not read yet, or the log does not have the session */
        char session[SESSION_ID];
        int turn, step; /* it holds the session up to here, as far as the log does */
    } past;
    struct {             /* the chat at an address, kept while the address is shown */
        char session[SESSION_ID];
        struct address at;
        struct chat_view chat;
    } then;
    struct event *early; /* (n_early) owned: the session's events before those of the backend, of
                            which the first `early_next` were taken */
    int n_early, early_next;
    char session[SESSION_ID];
    char past_of[SESSION_ID]; /* the saved session from which the present one was resumed or copied;
                                 "": none */
    int foreign;              /* turns up to this one have ids of another vocabulary, so their steps
                                 are not shown; 0: none */
    bool resumed;             /* the present session was resumed: the log has its past, up to */
    struct address resumed_end; /* this step */
    struct chat_view *before; /* owned: the chat in numbers there; NULL: not read yet */
    char *system;
    char *own_model, *own_draft; /* owned: of opt.engine, once /model or /draft has changed them */
    struct buf parting;  /* a line for standard error when the face has ended */
    int turn, step;      /* of the last event */
    struct address at;   /* the step that the panes, and commands without an address, show: /at sets
                            it */
    struct ids turns;    /* numbers of the turns in the context, oldest first */
    struct buf asked;    /* the last message sent */
    struct buf said;     /* its reply so far */
    int said_turn;       /* the turn of both; 0: none in this session */
    bool refused;        /* it did not fit the context: /forget sends it again */
    struct probe_want want[MAX_WANTS]; /* (n_want) in the order of their answers */
    int n_want;
    int n_what_if;       /* comparisons of /what-if that are not answered yet */
    struct attached attached; /* valid after app_attached() */
    struct buf notes;         /* lines that app_tell() shows once: settings that were adopted from a
                                resumed session, faults that cannot fire */
    char log_error[256]; /* why there is no log although one was wanted, or "" */
    enum log_room log_room; /* the history_status.room_left that was shown last */
    char unsaved[256];   /* the history_status.error that app_saving_changed() reported last */
    bool private_;       /* /private: nothing more is saved */
    bool color, ascii;   /* from the options, the terminal and the locale */
    bool quit;
    int exit_code;
    bool violated; /* a checker rule was violated in the present session: see app_exit_code() */
    /* output functions of the face, set by tui.c or plain.c */
    struct face {
        /* Shows a finished block of output (command results, notices). The face moves or copies
         * the sheet's rows; the caller frees the sheet. */
        void (*show)(struct app *a, struct sheet *s);
        /* JSON result of a command under --json (plain mode only; NULL in the TUI) */
        void (*json)(struct app *a, const char *text);
        void (*clear)(struct app *a); /* empties the transcript on screen */
        void (*retract)(struct app *a,
                        int turn); /* removes a turn that left the context (undo, regen) */
        /* Shows one row of a past turn: user rows and reply rows alternate. gone: past_mark() of a
         * turn that is not in the context, or "" */
        void (*replay_turn)(struct app *a, const struct turn_row *r, const char *gone);
        /* Opens the panes of a layout (cmd/screen.c); NULL: there are no panes. */
        bool (*layout)(struct app *a, const char *name, struct err *e);
        /* Shows how far a file is read; what NULL: it is read. NULL: there is nothing to show
         * it. */
        void (*progress)(struct app *a, const char *what, uint64_t done, uint64_t total);
        void (*edit)(struct app *a, const char *text); /* puts text into the input; NULL: no
                                                          input */
        /* Gives text to the terminal's clipboard; NULL: there is no terminal. False and *e: it is
         * too long. */
        bool (*copy)(struct app *a, const char *text, size_t n, struct err *e);
        /* Show a one-line notice, and an error; NULL: they go through show() */
        void (*notice)(struct app *a, struct sheet *s);
        void (*error)(struct app *a, const struct err *e);
        /* A picture of the screen, or of a pane; NULL: there is no screen. False and *e: there is
         * no such pane. */
        bool (*shot)(struct app *a, const char *pane, enum picture kind, struct buf *out,
                     struct err *e);
        void *state; /* of the face */
        int width;   /* cells a line, 0: not a terminal's (maps and bars have 80) */
    } face;
};

/* The state shown in the status line and by the panes' alarms: of the chat, and of the views that
 * the backend has. */
struct status {
    struct chat_view chat;
    struct pool_view pool[N_POOLS]; /* none exists without VIEW_POOLS */
    struct gauge_now {
        const char *unit;  /* the first pool's name, NULL: "full" */
        float v[N_GAUGES]; /* of the latest reading, NAN: not reported */
        uint64_t n_read, n_failed;
    } gauge; /* 0 without VIEW_GAUGES */
    struct check_view check;        /* 0 without VIEW_CHECK */
    struct bugs bugs;               /* all off without VIEW_FAULTS */
    struct { bool on; int turn, step, last; enum step_phase phase; } pause; /* off without
                                                                    VIEW_DEBUG */
    struct address at;   /* of the app; all but `pause`, `gauge` and `live` is of this step */
    struct address live; /* the newest step */
    bool single_keys; /* of the full screen: letters step a paused turn */
    bool has[N_VIEWS];
};

/* ---- app/state.c ----------------------------------------------------------------------------- */

/* Whether the backend has a view. False and *e: why `command` cannot show it. */
bool app_needs(const struct app *a, const char *command, enum backend_view v, struct err *e);
void app_settings(struct app *a, struct settings *s); /* as they are now */
void app_bugs(struct app *a, struct bugs *on);        /* historical faults that are on now */
/* Adds a line for app_tell() for each fault that is on but cannot fire under these settings. */
void app_note_idle_bugs(struct app *a, const struct settings *s, const struct bugs *on);
/* The address that was set with /at or on the screen. False: now. */
bool app_address(const struct app *a, int *turn, int *step);
/* The log for reading; flushes it first, so that reads see all of it. */
struct hdb *app_hdb(struct app *a, struct err *e);
/* The same, for what the log has of the present session. NULL and *e also if it has nothing. */
struct hdb *app_own_log(struct app *a, struct err *e);
/* Removes the newest turn from the app's list and from the screen. */
void app_forget_turn(struct app *a);
void app_say(struct app *a, enum style st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* shows a one-line notice */
void app_error(struct app *a, const struct err *e);

/* Shows what write() answers: text, or under --json one JSON value. */
void app_print(struct app *a,
               void (*write)(struct app *a, const void *arg, const struct printer *to),
               const void *arg);

/* ---- app/look.c ------------------------------------------------------------------------------ */

void app_look(struct app *a, struct status *s);

/* ---- app/step.c ------------------------------------------------------------------------------ */

/* Reads "9.214", or "214" for a step of the current turn; if `third` is not NULL, also "9.214.2"
 * (*third: 2, or -1 without the third number). */
bool arg_step(const struct app *a, const char *s, int *turn, int *step, int *third, struct err *e);
/* The number of the pause in which a turn waits, from 1; 0: no turn is paused. */
uint64_t app_paused(const struct app *a);
/* The tree of the step that is paused between two phases, else of the latest step that drafted.
 * False: there is none. For backends with VIEW_TREES. */
bool app_latest_tree(struct app *a, struct step_view *v);
/* The step in whose middle the turn is paused, once the target has verified it: what is known of it
 * so far. False: no turn is paused there. */
bool app_paused_step(struct app *a, struct step_view *v);
/* The same, and it is this step. */
bool app_paused_in(struct app *a, int turn, int step, struct step_view *v);
/* A step of the session, from memory, else from the log; or the step in whose middle the turn is
 * paused. For backends with VIEW_STEPS. Facts that the log does not have are NAN. False and *e:
 * neither has the step. */
bool app_find_step(struct app *a, int turn, int step, struct step_view *v, struct err *e);
/* The facts of a step from the log that are needed to compute it again; freed with
 * probe_past_free(). NULL and *e: the log does not have all of them. */
struct probe_past *app_logged_step(struct app *a, int turn, int step, struct err *e);
/* Whether the step has a tree; false and *e: why not. */
bool step_drafted(const struct step_view *v, struct err *e);
/* The step that commands without an address show: that of /at, else the newest. False: there is
 * none. */
bool app_newest_step(struct app *a, struct step_view *v, struct err *e);
/* Calls fn for each step of the session up to the app's address, oldest first, until it returns
 * false. The steps come from memory if it has the first step, else from the log, else from memory
 * as far as it has them; `source` says which. with_trees: fn needs trees and tokens; a log without
 * them is not read then. For backends with VIEW_STEPS. */
enum { STEP_SOURCE = 128 };
void app_each_step(struct app *a, bool with_trees, bool (*fn)(const struct step_view *v, void *arg),
                   void *arg, char source[STEP_SOURCE]);

/* ---- app/recording.c ------------------------------------------------------------------------- */

bool app_recording(const struct app *a); /* whether the backend is a recording
                                            (repl/recorded/recorded.h) */
/* The next event for a face: one of a->early, else one of the backend. */
bool app_next(struct app *a, struct event *ev);
/* Whether a turn's tokens are of the open model's vocabulary, so that its steps can be shown (0:
 * yes); else *e. */
bool app_own_turn(const struct app *a, int turn, struct err *e);
/* A recording of the session that has step T.S ((0, 0): the newest step), if the log has it. NULL
 * and *e: the session is not logged, or the log cannot be read. It lives until the next call. */
struct backend *app_past(struct app *a, int turn, int step, struct err *e);
/* The past of a session that was resumed: a recording whose next event is its first. NULL: none. */
struct backend *app_past_events(struct app *a);
void app_drop_past(struct app *a);
/* The backend whose present is the step that the app shows: the open one without an address, else a
 * recording that stands there. NULL: the log does not have the step. */
struct backend *app_shown(struct app *a);
/* app_shown(), but the open backend where the log does not have the replies of a server. */
struct backend *app_served(struct app *a);
/* The chat in numbers at the app's address, from the log, else from the steps in memory; or now. */
void app_chat(struct app *a, struct chat_view *v);
/* The best tokens of a server's step, from memory, else from the log, freed by tops_free(); NULL:
 * neither has any. */
struct tops *app_tops(struct app *a, int turn, int step);
/* The latest steps up to the app's address, oldest first; at most max. Returns how many. */
int app_steps(struct app *a, struct step_info *out, int max);
/* The page table as it was after step T.S ((0, 0): now), from the backend's memory or else from the
 * log. False and *e (ERR_NEGATIVE): neither has the step. For backends with VIEW_PAGES. */
bool app_table_at(struct app *a, int turn, int step, struct page_table *t, struct err *e);
/* A page table and a position at the app's address (/at), or now. */
bool app_table(struct app *a, struct page_table *t, struct err *e);
bool app_pools(struct app *a, struct pool_view pool[N_POOLS], struct err *e);
bool app_position(struct app *a, int position, struct pos_view *v, struct err *e);
/* The latest changes of a page up to the app's address, oldest first; at most max. Returns how
 * many. */
int app_page_changes(struct app *a, enum pool_id pool, int page, struct page_change *out, int max);
/* For a recording: the first moves its present step to the app's address, the second (on EV_PAUSE)
 * sets the address to the step to which the debugger has moved. The present step of a live engine
 * is always the newest one. */
void app_seek(struct app *a);
void app_follow_recording(struct app *a);

/* ---- app/app.c; app/resume.c, app/status.c, app/export.c ------------------------------------- */

/* Opens log and engine, begins or resumes the session as the options say. Progress of loading is
 * reported through o->engine.progress. */
bool app_open(struct app *a, const struct options *o, struct err *e);
/* Opens the app over a saved session (repl/recorded/recorded.h): no engine, no log, nothing is
 * saved. Takes over d, also on failure. file: the session is a pack. */
bool app_open_recorded(struct app *a, const struct options *o, struct hdb *d,
                       const struct session_row *row, bool file, struct err *e);
/* Opens the app over an engine that runs already, for a session that is not saved. The engine stays
 * the caller's, who sets a->backend to NULL before app_close(). early: the session's n events so
 * far, which the app takes over. */
void app_open_running(struct app *a, const struct options *o, struct backend *b,
                      const char *session, struct event *early, int n);
/* Tells the log what computes from now on: the backend that is open. */
void app_describe(struct app *a);
/* Closes the app. False: the log could not store everything; a line on standard error says what is
 * missing, why, and where it is kept. May wait for the disk; Ctrl-C ends the wait. */
bool app_close(struct app *a);
/* Attachments. app_attached() first drops files that were attached in another session, with a
 * notice; it returns how many files remain. */
int app_attached(struct app *a);
void app_attach(struct app *a, const char *name, struct buf *text); /* takes the text */
void app_drop(struct app *a, int i); /* i < 0: all */
void attached_free(struct attached *f);
/* "notes.txt 1.2 kB, b.c 340 B" */
void app_attached_text(const struct app *a, struct buf *out);
/* Sends the attached files and the text as one user message. When the backend refuses the request,
 * the files stay attached. */
bool app_send(struct app *a, const char *text, struct err *e);
/* Submits a request of the present session, and takes over its pointers, also on failure. The
 * second makes one of a kind and a text, which may be NULL. */
bool app_submit(struct app *a, struct request *rq, struct err *e);
bool app_request(struct app *a, enum request_kind kind, const char *text, struct err *e);
/* Begins a new session under a new id; settings and system prompt stay. */
bool app_new_session(struct app *a, struct err *e);
/* Continues a saved session: `id` as hdb_find() reads it. Its turns are read from the log, those
 * before a fork from the parents' logs. Past turns are not shown: see app_show_past(). */
bool app_resume(struct app *a, const char *id, struct err *e);
/* Goes on with the present session, or with a copy of it under a new id, after its backend was
 * opened again with another draft or model; the log has all of it (app_stored()). */
bool app_go_on(struct app *a, bool copy, struct err *e);
/* Whether the log has every turn of the context, after it was given time to store them. */
bool app_stored(struct app *a, struct err *e);
/* Continues a copy of a saved session: a new session, forked from it after its last turn. The saved
 * session may be open in another process. parent: its full id. */
bool app_fork_of(struct app *a, const char *id, char parent[SESSION_ID], struct err *e);
/* Continues the conversation up to turn `turn` (0: none) as a new session; the turns are read from
 * the log, as in app_resume(). */
bool app_fork(struct app *a, int turn, struct err *e);
/* Shows the lines of `notes` and empties it: settings adopted from the resumed session, settings
 * not adopted and why, and faults that cannot fire. */
void app_tell(struct app *a);
/* Shows the past turns of the session, in the context or left out of it, through
 * face.replay_turn. */
bool app_show_past(struct app *a, struct err *e);
/* Updates the app's own state from an event, before a face shows it. */
void app_event(struct app *a, const struct event *ev);
/* Shows a new message about the log's size limit. Call it when the log's status has changed, or a
 * turn ended. */
void app_watch_log(struct app *a, const struct history_status *s);
/* True and a line for the user if storing has begun to fail, or works again, since the last call of
 * this function. */
bool app_saving_changed(struct app *a, char line[256]);
/* The line for standard error when the device is lost (an EV_FAULT): the fault, and how to
 * continue. */
void app_last_words(const struct app *a, const struct event *ev, struct buf *out);
/* The greater of exit_code and, if the present session violated a rule, ERR_INVARIANT. Violations
 * of earlier sessions of this process do not count. */
int app_exit_code(const struct app *a);
/* Appends the commands that show the place of a violation: "/plan verify, /map 130, /check". */
void app_fault_next(struct app *a, const struct violation *at, struct buf *out);
/* Appends the hazards: faults that are on and a checker that is off, "BUG 24617 · CHECK OFF".
 * False: none. */
bool app_hazards(const struct status *s, bool ascii, struct buf *out);
/* Writes the hazards, then the parts that fit `width` cells (0: all) of
 * "ctx 3.1k/32k · full 41% swa 88% draft 12% · MAL 2.6 · 71 t/s · step 9.214 · REC"; single blanks
 * stand for the marks between the parts where there is no room for marks. */
void app_status(struct app *a, const struct status *s, int width, struct sheet *out);

/* Writes a session as Markdown to a new private file ("-": standard output). */
bool export_markdown(struct hdb *d, const char *session, const char *path, struct err *e);
/* The format in which a file's name ends, "md" or "jsonl"; NULL: in neither. file may be NULL. */
const char *export_format_of(const char *file);

/* ---- app/switch.c ---------------------------------------------------------------------------- */

/* Opens the backend again, between two turns, and goes on with the conversation. model: a path, or
 * a server's model; NULL: the present one stays loaded. draft: a path, "ngram", or NULL: none; of a
 * server NULL. The same session goes on with another draft; with another model a copy of it, in
 * which the conversation is text. False and *e: the backend is as it was, and so is the session; or
 * a->quit is set, and a->parting says how to go on. */
bool app_switch(struct app *a, const char *model, const char *draft, struct err *e);

/* ---- faces ----------------------------------------------------------------------------------- */

int tui_run(struct app *a);   /* the full screen; returns the exit code */
int plain_run(struct app *a); /* lines from stdin or --script */
int run_once(struct app *a, const char *prompt); /* `aerie run` */

/* ---- cli/cli.c: subcommands; each returns the exit code -------------------------------------- */

int cli_main(int argc, char **argv);
