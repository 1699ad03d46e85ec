/* cli.h - the command line: what cli.c parsed, and the subcommands, a file of cli/ each.
 *
 * The parser, the config file, --help and the tests of manual and completions read the same two
 * tables in cli.c: flags and commands. out.c has the output functions of all subcommands. Main
 * thread only. */
#pragma once

#include "models/draft/pair.h"
#include "repl/repl.h"

enum { MAX_TEXTS = 32 };
struct texts {
    const char *v[MAX_TEXTS]; /* point into argv */
    int n;
};

struct cli {
    struct options opt;
    char **word; /* the words after the command; point into argv */
    int n_word;
    /* flags of single commands */
    const char *query, *format, *out, *model_filter, *attempt, *batch, *synthetic, *cublas;
    int limit, older_than, lanes, most; /* most 0: all */
    int keep, to_size; /* db prune; -1: not given */
    bool dry_run;
    const char *head; /* db check */
    struct texts a, b, with; /* NAME=VALUE */
    struct texts arm;        /* NAME=VALUE,... */
    struct texts header;
    struct texts breaks; /* conditions */
    bool no_sandbox; /* --no-sandbox: not isolated */
    bool check, special, jsonl, brief, forced, log_only, control, kl;
    bool with_text, no_ids; /* pack */
    const char *steps, *plan, *issue;
    const char *host, *key_file, *name, *cors; /* serve */
    int port;
    const char *state;     /* probe */
    struct texts shape;
    int minutes;           /* 0: the usual rounds */
    const char *goto_step; /* replay: pause after it */
    /* owned */
    char *bundled;            /* folder with target/ and draft/, or NULL */
    char *target, *draft;     /* paths inside it */
    char *named[2];           /* paths of a model and a draft that were named (hub.h), or NULL */
    struct pairing pair;      /* what was found for a model that was named alone */
    char *config_path;
    struct buf config;        /* text of the config file; values point into it */
    struct err config_error;  /* doctor reports it; every other command fails with it */
    bool model_given, draft_given;
};

/* A word that a subcommand takes, for its help: an action of db, a line of bench. */
struct help_word {
    char name[24]; /* with its argument: "pin ID" */
    const char *help;
};
/* The i-th one; false: there are fewer. */
bool cli_db_action(int i, struct help_word *w);
bool cli_bench_name(int i, struct help_word *w);

/* Each runs one subcommand and returns the exit code; cli_play() is replay without a model, which
 * shows the recording. */
typedef int cli_fn(struct cli *c);
cli_fn cli_chat, cli_run, cli_serve, cli_batch, cli_logs, cli_stats, cli_show, cli_export, cli_pack,
    cli_db, cli_replay, cli_goto, cli_play, cli_diff, cli_parity, cli_kl, cli_probe, cli_triage,
    cli_import, cli_tokenize, cli_golden, cli_dump, cli_fit, cli_pull, cli_check, cli_bugs,
    cli_bench, cli_doctor, cli_help;
/* How the command line has a session run again (repl/compare/rerun.h). */
struct rerun_how;
struct rerun_how cli_rerun(const struct cli *c);
/* For bench_opts.face; arg: the struct cli. */
struct bench_replies;
bool cli_face(void *arg, bool screen, bool draft, struct bench_replies *all, struct err *e);

/* ---- what they share ---- */

struct command;
/* Starts the monitor (repl/process/monitor.h) if the command needs it, and isolates the process
 * (repl/process/isolate.h) as the command allows. Before any thread is started. False and *e: no
 * process could be started. */
bool cli_confine(struct cli *c, const struct command *cmd, struct err *e);
/* Whether `aerie db ACTION FILE` makes the file. */
bool cli_db_makes_file(const char *action);
/* Makes `model`, which lives as long as *c, the engine's model, with the draft that is found for it
 * (models/draft/pair.h); or, if it is a draft, makes it the draft of the target that is found. */
bool cli_find_pair(struct cli *c, const char *model, struct err *e);
/* Decides between the full screen and plain lines, and sets opt.plain and opt.tui. False and *e:
 * the requested face is not possible. */
bool cli_choose_face(struct cli *c, struct err *e);

/* Standard output of subcommands; the main thread only. Bytes are buffered in out.c, not by stdio,
 * which drops its buffer when a write is interrupted and forgets an error when a later write
 * succeeds. A terminal receives each line at once. After a failed write, nothing more is written.
 * out_printf() prints for people: names, paths and texts in it need no treatment, because it
 * sanitises all but line ends. out_bytes() takes what is fit for a terminal already: JSON, and
 * sheets. */
void out_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void out_bytes(const char *bytes, size_t n);
/* Writes the buffered bytes. False: this or an earlier write failed, and errno says why. */
bool out_flush(void);
/* Prints "aerie: message" to standard error; returns the exit code of its kind. */
int cli_fail(const struct err *e);
/* Says on standard error why the program computes on the CPU of a machine with an NVIDIA GPU,
 * unless the user chose the CPU; nothing with --quiet. */
void cli_tell_of_gpu(const struct app *a);
/* A line on standard error, of text from elsewhere; ends the line of progress. */
void cli_complain(void *arg, const char *line);
int cli_width(void);                 /* of the terminal on standard output; 0: none */
/* Prints and empties a sheet on standard output. */
void cli_print(const struct cli *c, struct sheet *s);
/* Prints text of several lines as plain text on standard output. */
void cli_print_text(const struct cli *c, const struct buf *text);
/* Prints one line of JSON (kernels/json.h) on standard output and empties the buffer. */
void cli_json(struct buf *b);
/* An answer, one at a time: between the two calls, print_line() and its kin write it, in JSON
 * between brackets of this kind (0: it is one value without them); the second call prints it, as
 * text or under --json. Without a second call, as after a failure, nothing is printed. */
const struct printer *cli_answer(const struct cli *c, char bracket);
void cli_answer_end(void);
/* Reads line `number`, from 1 on, of a text into *line, without its line break and the byte order
 * mark of the first line: 1; 0 at the end of the file; -1 and *e when the file cannot be read or
 * the line is longer than 16 MiB. The caller frees *line. */
int cli_line(FILE *f, int number, struct buf *line, struct err *e);
/* Call them around work on this thread: from cli_stop_open() on, Ctrl-C and SIGTERM set *s.
 * cli_stop_close() ends that and returns the exit code of the signal that came, or `rc`. */
bool cli_stop_open(struct stop *s, struct err *e);
int cli_stop_close(int rc);
/* cli_stop_open() of a struct stop once models are loaded: before, Ctrl-C ends the process at
 * once. */
void cli_stop_begin(void *stop);
/* Gives the events of an engine to take(), which frees them, until the engine is idle. A signal
 * cancels every request and is in *signal then. Only between interrupt_open() and
 * interrupt_close(). */
void cli_listen(struct backend *g, int *signal, void (*take)(void *arg, struct event *ev),
                void *arg);
/* The database the options name, or the default; the caller frees. */
char *cli_db_path(const struct cli *c);
/* Opens it for reading; NULL and *e. */
struct hdb *cli_open_db(const struct cli *c, struct err *e);
/* Opens the log or the pack that holds the session `name`: a name with '/' or '.', which no
 * session id has, is a pack's path; any other is found in the log by hdb_find(). The caller
 * closes, and frees *row. NULL and *e. */
struct hdb *cli_open_session(const struct cli *c, const char *name, struct session_row *row,
                             struct err *e);
bool cli_names_file(const char *name);
/* Loading progress on standard error, for engine_opts.progress. */
void cli_progress(void *arg, const char *what, uint64_t done, uint64_t total);
void cli_progress_end(void);
/* A line on standard error, sanitised, that takes the place of the one before it; cli_status_end()
 * removes it. For a terminal. */
void cli_status(const char *text);
void cli_status_end(void);
