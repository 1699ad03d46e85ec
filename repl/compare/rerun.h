/* rerun.h - runs a saved session again: opens an engine as the log names it, with changes, and
 * sends it the script's requests up to a step. Main thread only.
 *
 * What the engine reports goes to callbacks; nothing is saved. Settings, faults and options of
 * opening that are changed keep the changed value for the whole session: operations of the log that
 * set them are skipped. */
#pragma once

#include "engine/backend.h"
#include "engine/opts.h"
#include "repl/compare/script.h"
#include "repl/compare/trace.h"

/* An engine that stays open between reruns with the same key. {0}: none; rerun_engine_close() frees
 * it. */
struct rerun_engine {
    struct backend *b;
    char *key; /* its options, without settings and faults */
};
void rerun_engine_close(struct rerun_engine *e);

/* How a session is run again. All zero: as recorded, to its end. */
struct rerun_how {
    struct engine_opts engine; /* what the command line names: model and draft where given, device,
                                  precision, weights, threads, a kernel table, progress */
    bool model_given, draft_given;
    const char *const *with; /* (n_with) "NAME=VALUE" (repl/compare/change.h) */
    int n_with;
    const char *refusal; /* prefix of the message that the log's backend cannot be opened, or
                            NULL */
    bool forced;    /* each reply is given the recorded tokens */
    const struct trace *given; /* forced: the tokens are this run's, turn by turn; NULL: the
                                  log's */
    int turn, step; /* the session ends after this step of this turn; step 0: after the turn; 0, 0:
                       at its end */
    bool hold;      /* pause before the step and after it: see `held` */
    struct rerun_engine *keep; /* where an engine is taken from, if its key is the same, and left;
                                  or NULL */
};

/* NULL members are not called. The act is NULL for events outside a turn. */
struct rerun_calls {
    /* An engine is open, before its first request. about: the log's facts of the run. now: the
     * facts of this engine as it was opened, with the changes. False and *e: the rerun ends. */
    bool (*opened)(void *arg, struct backend *b, const char *about, const char *now, struct err *e);
    void (*turn)(void *arg, const struct act *a); /* a turn is about to be sent */
    /* May take parts of the event. False: the turn is cancelled and the rerun ends. */
    bool (*event)(void *arg, const struct act *a, struct event *ev);
    /* The engine waits: before the step of `how` (done false), or after it. */
    void (*held)(void *arg, struct backend *b, bool done);
    void *arg;
};

struct rerun {
    struct rerun_how how;
    struct rerun_calls on;
    bool by_ids, served; /* as the script says */
    struct backend *backend; /* NULL: not open. Stays open after rerun_play() */
    const char *about;       /* facts of the run that the engine was opened for; the script's */
    struct buf now;          /* facts of the engine that was opened, with settings and faults; of a
                                draft that does not fit a line "draft_off=WHY" */
    struct act **live;       /* turns of the context, oldest first */
    int n_live;
    struct act **logged; /* all turns of the session and its parents, undone ones included */
    int n_logged;
    const struct act *turn; /* the turn that runs */
    const struct act *goal; /* the turn with the step of `how` */
    bool ended;             /* the end of `turn` was reported */
    int n_reply;            /* tokens of its reply then */
    bool stop;              /* event() returned false, or the step of `how` is reached */
    bool reached;           /* the step of `how` is reached */
    struct err lost;        /* the device failed */
};

/* The engine of a run as the log names it. */
struct logged_engine {
    char *lines, *model, *draft; /* owned; options point into them */
    const char *device;          /* the option, if it is the log's; else NULL */
    struct engine_opts opts;
};
/* Reads the options and settings of the run that an OP_OPEN or OP_RESUME began, with the changes
 * and what the command line names. The caller frees *l either way. */
bool rerun_options(struct logged_engine *l, const struct rerun_how *how, const struct act *a,
                   struct err *e);
void rerun_options_free(struct logged_engine *l);

/* Runs the script. False and *e: an engine cannot be opened, or its device failed. The caller ends
 * with rerun_close() either way. how.with must outlive it. */
bool rerun_play(struct rerun *r, const struct script *s, const struct rerun_how *how,
                const struct rerun_calls *on, struct err *e);
void rerun_close(struct rerun *r);
/* Appends the settings lines in force for a turn of the log, with the changes. */
void rerun_settings(const char *const *with, int n, const char *lines, struct buf *out);
