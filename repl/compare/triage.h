/* triage.h - why acceptance is what it is: the facts of a session or a server, judged.
 *
 * The facts are counts of the steps (accepted.h), a second run of the draft head over the same
 * tokens (engine/thread/redraft.h), and what the log or the server says of settings, faults and
 * rules. The judge weighs every cause by these facts alone. Main thread only. */
#pragma once

#include "engine/thread/redraft.h"
#include "repl/compare/accepted.h"
#include "repl/compare/rerun.h"
#include "repl/text/print.h"

enum triage_cause {
    CAUSE_LAYERS,    /* the head reads other layers than it was trained on */
    CAUSE_NORM,      /* a norm is missing, misplaced or of another kind */
    CAUSE_ROPE,      /* rope's base or scaling, positions */
    CAUSE_IDS,       /* the head's ids mean other tokens: d2t, vocabulary */
    CAUSE_TOKENIZER, /* the head was trained with another tokenizer */
    CAUSE_EMBED,     /* the head's embedding is not the target's */
    CAUSE_STALE,     /* captured states of another step or position */
    CAUSE_PAGES,     /* the draft reads or writes pages of another pool or table */
    CAUSE_CELLS,     /* quantized cells or weights */
    CAUSE_CONTEXT,   /* the context is longer than the head was trained for */
    CAUSE_WINDOW,    /* the head sees too much or too little of the context */
    CAUSE_TEMPLATE,  /* prompts without the chat format that both models were trained with */
    CAUSE_SAMPLING,  /* sampling chooses tokens that a greedy draft does not guess */
    CAUSE_SHAPE,     /* trees too short, or their rows misread */
    CAUSE_OTHER,     /* a head for another model, or an untrained one */
    N_CAUSES
};

/* What was measured with one thing of the engine undone: of as many tokens. */
struct undone {
    bool known;
    int hits, tokens;
    char what[80]; /* "cells in bf16", "the gemma format" */
};

/* Requests to a server, and the drafts that its counters counted meanwhile. */
enum { TRIAGE_ARMS = 3 };
struct triage_arm {
    const char *name;
    struct some_drafts drafts;
};

struct triage {
    struct triage_arm arm[TRIAGE_ARMS]; /* short and cold, the same again, long; name NULL: not
                                           asked */
    double length;          /* tokens of a verifying step, where nothing else is known; 0 */
    char of[160], name[64]; /* "session 12: ...", for people; as commands name it: "12", a URL */
    bool server;
    char who[160];          /* target and drafter, for people */
    char drafter[32];       /* "eagle3", ...; "": not known */
    struct accepted log;    /* of a server: `drafts` only */
    bool per_depth;         /* log.drafts has depths */
    bool chats;             /* log.drafts are those of chats that triage sent to the server */
    bool drafting;          /* drafting was on in the last turn */
    double temperature;     /* NAN: not known */
    bool steered;           /* penalties or biases changed the logits of a reply */
    int steps, topk, nodes; /* of the settings; 0: not known */
    int context;            /* most tokens of a request; 0: not known */
    struct redraft re;      /* tokens 0: was not run */
    char no_re[200];        /* why not */
    int replies, reply_tokens; /* of the session; with the tokens of the next */
    int more;               /* replies to other messages than the session's */
    char cells[32], weights[32]; /* quantized ones: "fp8"; "": none, or not known */
    struct undone plain;    /* without quantized cells and weights */
    struct undone format;   /* prompts in the model's chat format */
    struct undone greedy;   /* replies that are not sampled */
    bool raw;               /* no chat format was used */
    int prompts, other_prompts; /* first prompts compared with the model's format; that differ */
    char format_name[32];
    char rule[256];         /* a violated rule; "": none */
    int rule_number;
    bool rule_again;        /* found by a second run, not in the log */
    char faults[160];       /* historical faults that were on: "50170 on"; "" */
    int sees;               /* setting draft.window */
    char launch[200];       /* of a server: flags that matter, for people */
};

enum { TRIAGE_EVIDENCE = 8 };
struct cause_found {
    enum triage_cause cause;
    double weight; /* 0 to 100 */
    struct evidence {
        bool against;
        char text[240];
    } evidence[TRIAGE_EVIDENCE];
    int n;
    char confirm[240]; /* a command */
};

struct triage_verdict {
    enum { TRIAGE_TOO_FEW, TRIAGE_HEALTHY, TRIAGE_CAUSE, TRIAGE_UNKNOWN } is;
    struct cause_found cause[N_CAUSES]; /* the likeliest first */
    char text[240];
};

const char *triage_cause_name(enum triage_cause c);  /* "layers" */
const char *triage_cause_about(enum triage_cause c); /* for people */

/* A session of the log, and how an engine for it is opened. */
struct triage_ask {
    struct hdb *db;
    const char *session;      /* its id */
    const char *name;         /* as commands name it: "12" */
    struct rerun_how how;     /* without turn, step, hold */
    const struct stop *stop;  /* or NULL */
    void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total); /* or NULL */
    void *progress_arg;
    void (*progress_end)(void); /* a line of progress is to be removed; or NULL */
};
/* Fills *t; the caller ends it with accepted_free(&t->log). False and *e: the session drafted
 * nothing, or was stopped, or the log or the device failed. A session whose model cannot be loaded
 * is judged by its log alone. */
bool triage_session(const struct triage_ask *ask, struct triage *t, struct err *e);

void triage_judge(const struct triage *t, struct triage_verdict *v);
/* Whether some reading of the head gains, but on too few tokens to count. */
bool triage_is_open(const struct triage *t);
/* The numbers, the published ones beside them, and the verdict. */
void triage_print(const struct triage *t, const struct triage_verdict *v, const struct printer *to);
