/* differ.h - compares what two runs of a session computed, step by step in the order of cause and
 * effect: pages, draft, target logits, sampler. Main thread only.
 *
 * Which facts must be equal follows from what the two runs were computed with: struct conditions
 * lists what differs there, and what each difference may change by its nature.
 */
#ifndef AERIE_DIFFER_H
#define AERIE_DIFFER_H

#include "repl/compare/conditions.h"
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
