/* hunt.h - `aerie probe URL`: requests that show whether a reply depends on what else a server
 * computes or has computed.
 *
 * A case is a few requests, some at once, some cancelled. The reply to each judged one is compared
 * with its control: the same request alone and cold. Prompts are token ids of made-up texts, greedy
 * and of a fixed length, so that nothing but the server's state differs. hunt_plan.c has the
 * cases, hunt_run.c sends and compares, hunt_shrink.c makes a case smaller that still differs,
 * hunt_report.c writes. The code says hunt, because a probe is a step run with taps
 * (engine/probe.h). Main thread only. */
#pragma once

#include "engine/remote/by_ids.h"
#include "engine/event.h"
#include "repl/cli/cli.h"

enum { HUNT_ASKS = 40, HUNT_KEPT = 32, HUNT_LENGTHS = 48 };

/* Kernels of another width differ by no more: the largest difference of log probabilities known of
 * engines without a fault, with keys and values in FP8, is 0.46. */
#define HUNT_KERNELS 0.5

/* One request of a case. */
struct hunt_ask {
    int text, n;     /* the prompt: n tokens of the text of this number ... */
    int fork, other; /* ... from token `fork` on those of text `other`; fork 0: never */
    int follows;     /* the prompt and the reply of this ask of the case come first; -1: of none */
    int most;        /* tokens of the reply */
    int group;       /* asks of one group are sent at once, in order; groups one after the other */
    int after_ms, cancel_ms; /* see struct ids_ask */
    bool judged;
};

struct hunt_case {
    const char *kind;
    struct hunt_ask ask[HUNT_ASKS];
    int n;
    bool read; /* the judged one's reply is read as a prompt instead; see DIFF_READ */
};

/* How a reply differs from its control. */
enum hunt_differs {
    DIFF_NONE,
    DIFF_IDS,    /* at `token` the ids part */
    DIFF_LOGP,   /* equal ids; at `token` the log probabilities part */
    DIFF_FAILED, /* the request fails, perhaps alone, too: `why` */
    DIFF_READ,   /* the control's own log probabilities at decode and as a prompt part */
};

struct hunt_diff {
    enum hunt_differs how;
    int ask;            /* of the case */
    int token;          /* index in the reply */
    int position;       /* in the sequence */
    int32_t was, is;    /* ids of the control and of the reply; -1: it has ended */
    double by;          /* largest difference of log probabilities up to there */
    double margin;      /* of the control at `token`; NAN: not known */
    int compared, blind; /* tokens compared; of them by their ids alone: no log probabilities */
    char why[200];
};

/* A request alone and cold, as often as it was sent. */
struct hunt_control {
    struct ids_ask a;   /* its prompt is a copy; the first answer */
    int n_run;
    double noise;       /* largest difference of log probabilities between its runs */
    int unstable;       /* the first token whose id its runs do not share; INT_MAX: none */
    bool scored;
    double read;        /* largest difference from its tokens read as a prompt; NAN: not known */
    double k3;          /* mean of kl.h over them */
    int read_token;     /* where `read` is */
};

struct hunt_found {
    struct hunt_case c;     /* as small as it was made */
    struct hunt_diff d;
    int number, n_before;    /* of the case; its asks before it was made smaller */
    int n_repeat, n_differ;  /* runs of the case that was found; those that differed */
    int requests;            /* sent until it was found */
    double seconds;
    /* of one more run of the small case */
    struct ids prompt[HUNT_ASKS]; /* (c.n) */
    struct ids reply, control;     /* of the judged one; of the same request alone */
    int control_runs;
    double noise;            /* of the control */
    char session[SESSION_ID]; /* of the log; "": nothing is logged */
};

struct hunt {
    struct cli *c;
    struct upkeep *u;
    struct stop stop;
    struct hunt_log *log; /* NULL: nothing is logged */
    uint64_t seed, begin;  /* begin: clock_ns() */
    /* what is known of the server; 0: nothing */
    int page, window, depth, context, pool, lanes;
    bool exact;            /* every difference counts */
    int length[HUNT_LENGTHS], n_length; /* of prompts that are worth a try */
    struct hunt_text { int number; struct ids ids; } *text; /* (n_text) */
    int n_text;
    struct hunt_control *control; /* (n_control) */
    int n_control;
    double rounding;       /* largest difference between decode and prompt of the controls: what
                              another shape of the same sums does on this server */
    int n_asked, n_case, n_arena;
    int64_t n_compared, n_blind; /* tokens, as in hunt_diff, and those of replies read as prompts */
    char refused[200];     /* why the first control failed of those in n_refused */
    int n_once;            /* cases that differed once and not again */
    int n_beside;          /* replies that differ beside others by no more than HUNT_KERNELS */
    double beside;         /* the largest of these differences */
    int n_warm;            /* controls that reused KV all the same */
    bool no_reset;         /* the server's cache cannot be emptied */
    uint64_t until;        /* clock_ns() when the time is over; 0: never */
    int n_rounding, n_noise, n_refused; /* cases that differ as rounding does; as their controls do;
                                           whose controls fail */
    struct hunt_found found[HUNT_KEPT];
    int n_kept;            /* of `found` */
    int n_found;           /* cases that differ, kept or not */
    int n_before, asked_before, found_before; /* cases, requests, differences of earlier calls */
    int asked_noted;       /* n_asked when the last case was noted in the state's file */
    bool quick;            /* a case is made smaller: controls are sent once and not read */
    bool gone;             /* the server does not answer any more */
};

/* ---- hunt_plan.c ---- */

bool hunt_beside(const struct hunt_case *c, int i); /* whether the ask is sent with others */
/* Fills in p->length. */
void hunt_lengths(struct hunt *p);
/* The case of a number, from 0: any number has one. */
void hunt_plan(const struct hunt *p, int number, struct hunt_case *c);
int hunt_kinds(void);           /* cases of one round: each kind once */

/* ---- hunt_run.c ---- */

/* Runs a case in a fresh arena, and compares its judged replies with their controls. *d: the first
 * difference that neither the controls' noise nor rounding explains, or DIFF_NONE. False and *e:
 * stopped, or the server is gone. */
bool hunt_run(struct hunt *p, const struct hunt_case *c, struct hunt_diff *d, struct err *e);
/* Runs f->c once more and fills in its prompts and replies. */
bool hunt_capture(struct hunt *p, struct hunt_found *f, struct err *e);
void hunt_free(struct hunt *p);

/* ---- hunt_shrink.c ---- */

/* Makes f->c smaller as long as it differs. False and *e as hunt_run(). */
bool hunt_shrink(struct hunt *p, struct hunt_found *f, struct err *e);

/* ---- hunt_report.c ---- */

void hunt_print_found(const struct hunt *p, int i, const struct printer *to);
void hunt_print_sum(const struct hunt *p, const struct printer *to);
/* Appends a shell script of curl calls that shows the difference: it exits with 1 if it does. */
void hunt_script(const struct hunt *p, const struct hunt_found *f, struct buf *out);
/* Appends a report in the form of an engine's issues: "sglang", "vllm" or "llama.cpp". */
void hunt_issue(const struct hunt *p, const char *form, struct buf *out);
/* The engine whose form fits the server. */
const char *hunt_form(const struct hunt *p);

/* ---- hunt_log.c: the requests in the session log --------------------------------------------- */
/* A case is a session, each of its requests a turn. */

/* Opens the log for replies of the server. NULL and *e. */
struct hunt_log *hunt_log_open(const char *path, struct upkeep *u, struct err *e);
/* Stores what is left; false and *e: not everything could be stored. NULL is fine. */
bool hunt_log_close(struct hunt_log *l, struct err *e);
/* The session of the next requests: a line that says why they are sent. */
void hunt_log_begin(struct hunt_log *l, const char *title);
void hunt_log_ask(struct hunt_log *l, const char *note, const struct ids_ask *a);
void hunt_log_case(struct hunt_log *l, const struct hunt_case *c, const struct ids_ask *a);
const char *hunt_log_session(const struct hunt_log *l); /* id of the session of the last begin */

/* ---- hunt_state.c: the file of --state ------------------------------------------------------- */
/* A line of JSON for the server and one for each finished case, from which a later call goes on. */

struct hunt_state;

/* Opens or makes the file. NULL and *e: it cannot be read or written, or it is of another server,
 * model or shape. The sums of the earlier calls are added to *p. */
struct hunt_state *hunt_state_open(const char *path, struct hunt *p, struct err *e);
int hunt_state_next(const struct hunt_state *s); /* the number of the first case to run */
/* The case is done; found: p->n_found before it. */
bool hunt_state_add(struct hunt_state *s, int number, const struct hunt *p, int found,
                    struct err *e);
void hunt_state_close(struct hunt_state *s); /* NULL is fine */
/* Reads the lines of a file into *p and *next. False and *e. Nothing else is touched. */
bool hunt_state_read(const char *text, size_t n, struct hunt *p, int *next, struct err *e);
