/* differ.h - compares what two runs of a session computed, step by step in the order of cause and
 * effect: pages, draft, target logits, sampler. Main thread only.
 *
 * Which facts must be equal follows from what the two runs were computed with: struct conditions
 * lists what differs there, and what each difference may change by its nature.
 */
#ifndef AERIE_DIFFER_H
#define AERIE_DIFFER_H

#include "repl/compare/trace.h"

/* In the order of cause and effect. */
enum diff_class {
    DIFF_NONE,
    DIFF_PROMPT,  /* the turn's tokens before the reply */
    DIFF_PAGES,   /* the plans of a step: positions, pages, slots, extents */
    DIFF_DRAFT,   /* the tree that was drafted */
    DIFF_LOGITS,  /* of the target */
    DIFF_SAMPLER, /* the tokens chosen from equal logits; accepted nodes, uniforms */
    DIFF_REPLY,   /* how the turn ended */
    DIFF_STOP,    /* a violated rule stopped the turn on one side only */
    DIFF_MESSAGE, /* the sessions' messages: their turns cannot be compared */
    DIFF_LOG,     /* the log contradicts itself */
};
const char *diff_class_name(enum diff_class c); /* "page table", ... */

/* What a changed condition may change in the results by its nature. */
enum {
    MAY_NUMBER = 1,  /* which pages hold a position */
    MAY_STEP = 2,    /* how the work is cut into steps: drafted trees, prompt chunks */
    MAY_ROUND = 4,   /* the last bits of every number */
    MAY_LOGITS = 8,  /* the numbers: other weights */
    MAY_SAMPLE = 16, /* which token is chosen from equal logits */
    MAY_PROMPT = 32, /* the tokens of a message */
    MAY_END = 64,    /* where a reply ends */
    MAY_FAULT = 128, /* anything: a historical fault is on in one run only */
    MAY_BUILD = 256, /* the last bits of every number; builds and machines usually agree, so such
                        runs are compared bit by bit nevertheless */
};

/* A condition that differs between the two runs. */
struct condition {
    char name[32];
    char *a, *b; /* its values, owned; "" if the run does not record one */
    unsigned may;
};
struct conditions {
    struct condition *at;
    int n;
    unsigned may; /* `may` of all conditions together */
};
/* about: facts of the run; settings: lines in force. Either may be NULL. */
void conditions_read(struct conditions *c, const char *about_a, const char *settings_a,
                     const char *about_b, const char *settings_b);
/* Adds a condition, unless there is one of this name. */
void conditions_add(struct conditions *c, const char *name, const char *a, const char *b, unsigned may);
void conditions_free(struct conditions *c);
/* "page_size 16 | 4, draft.topk 1 | 4"; those that may change any of `may`. */
void conditions_text(const struct conditions *c, unsigned may, struct buf *out);
/* Appends what `may` stands for, as "trees and chunks, page numbers". */
void may_text(unsigned may, struct buf *out);
/* Appends the key "changed" and an array of {"name", a, b, "may_change"}; a, b: the keys for the
 * values of the two runs. */
void conditions_json(const struct conditions *c, const char *a, const char *b, struct buf *json);

struct difference {
    enum diff_class class; /* DIFF_NONE: none */
    int index;             /* of the turn in both traces */
    int turn;              /* its number in the first one */
    int step[2];           /* in each run; 0: none, or the turn as a whole */
    int token;             /* of the reply, from 0; -1: not of one token */
    char why[256];
};

/* The names of the runs in messages: "in the log", "now". */
struct diff_names {
    const char *a, *b;
};

/* Compares two records of the same step. pages: both runs number pages alike, so page digests can
 * be compared. */
bool differ_step(const struct step_row *a, const struct step_row *b, bool pages,
                 const struct diff_names *in, struct difference *d);
/* Compares two lists of ids, as part of a class. */
bool differ_ids(const struct ids *a, const struct ids *b, enum diff_class class,
                const struct diff_names *in, struct difference *d);

/* Compares the prompts of two turns by their ids, or, where they are not known, by the messages. */
bool differ_prompts(const struct trace_turn *a, const struct trace_turn *b, const struct diff_names *in,
                    struct difference *d);

/* What was compared. */
struct diff_counts {
    int turns, steps, tokens;
    bool by_position; /* tokens by position, not step by step */
    bool pages;       /* page tables were compared, by number */
    bool meaning;     /* page tables were compared by the positions that are held, not by page
                         numbers */
    bool facts;       /* by position: log probabilities were compared */
    bool text_only;   /* a turn without steps was compared by its reply */
    int stopped;      /* turns that a fault, a cancel or a crash stopped: compared up to there */
    char stop[256];   /* what is to be said of the first of them that a fault stopped; "": nothing */
    bool over;        /* a fault stopped that turn at different tokens, so later turns have different
                         contexts and were not compared */
    double most;      /* by position: largest difference of two log probabilities of one token, */
    int most_turn, most_token; /* of this turn's reply */
};
/* The first difference of two runs, turn by turn; *all: all conditions that differ up to there.
 * The caller frees *all. */
void differ_traces(const struct trace *a, const struct trace *b, const struct diff_names *in,
                   struct difference *d, struct conditions *all, struct diff_counts *n);
/* As above, but compares only the tokens and their log probabilities, by position. */
void differ_by_position(const struct trace *a, const struct trace *b, const struct diff_names *in,
                        struct difference *d, struct conditions *all, struct diff_counts *n);

#endif
