/* differ.h - compares what two runs of a session computed, step by step in the order of cause and
 * effect: pages, draft, target logits, sampler. Main thread only.
 *
 * Which facts must be equal follows from what the two runs were computed with: struct conditions
 * lists what differs there, and what each difference may change by its nature. */
#pragma once

#include "repl/compare/conditions.h"
#include "repl/compare/differ_pages.h"

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

/* Fills in class and why; returns true. */
bool differ_set(struct difference *d, enum diff_class class, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The index of the first id that differs, or of the end of the shorter list; -1: none. */
int ids_differ_at(const struct ids *a, const struct ids *b);

/* A reply as reported: a server may report no ids, or all but that of the stop token. */
struct reported_reply {
    const struct ids *ids;
    bool has_ids;     /* of all tokens, or of all but the stop token */
    const char *text; /* NULL: not known */
    bool ended;       /* by a stop token */
    int64_t counted;  /* tokens as the program counted them */
};
/* The first token that differs, or, if a side reports no ids, the first byte of the texts; -1:
 * none. */
int differ_replies(const struct reported_reply *a, const struct reported_reply *b, bool *by_text);

/* Compares the prompts of two turns by their ids, or, where they are not known, by the messages.
 * False, too, if a pack without text leaves both unknown. */
bool differ_prompts(const struct trace_turn *a, const struct trace_turn *b,
                    const struct diff_names *in, struct difference *d);

/* Compares how many turns two runs have. */
bool differ_numbers_of_turns(const struct trace *a, const struct trace *b,
                             const struct diff_names *in, struct difference *d);

/* What was compared. */
struct diff_counts {
    int turns, steps, tokens;
    bool by_position; /* tokens by position, not step by step */
    bool pages;       /* page tables were compared, by number */
    bool meaning;     /* page tables were compared by the positions that are held, not by page
                         numbers */
    bool facts;       /* by position: log probabilities were compared */
    bool text_only;   /* a turn whose steps the first run does not have was compared by its reply */
    int stopped;      /* turns that a fault, a cancel or a crash stopped: compared up to there */
    char stop[256];   /* what is to be said of the first of them that a fault stopped; "":
                         nothing */
    bool over;        /* a fault stopped that turn at different tokens, so later turns have
                         different contexts and were not compared */
    int64_t n_logp;   /* equal tokens whose log probabilities both sides know; ... */
    double most;      /* ... their largest difference, */
    int most_turn, most_token; /* of this turn's reply */
};
/* Adds the log probabilities of a token that both sides chose; NAN: not known. */
void counts_logp(struct diff_counts *n, float a, float b, int turn, int token);
enum diff_how {
    DIFF_BY_CONDITIONS, /* equal must be what no changed condition may change */
    DIFF_EXACTLY,       /* every bit must be equal, whatever the conditions */
    DIFF_BY_POSITION,   /* only the tokens and their log probabilities are compared, by position */
};

/* Two runs that are compared turn by turn, up to their first difference. */
struct comparison {
    enum diff_how how;
    const struct diff_names *in;
    struct difference d;   /* the first difference */
    struct conditions all; /* all conditions that differ up to there */
    struct diff_counts n;
    struct page_meaning pages; /* where pages are numbered differently */
    int n_turn;                /* turns so far */
};
/* `in` must outlive it. */
void comparison_begin(struct comparison *c, enum diff_how how, const struct diff_names *in);
/* Compares the next turn of both runs, unless a difference was found in one before it. */
void comparison_turn(struct comparison *c, const struct trace_turn *a, const struct trace_turn *b);
void comparison_free(struct comparison *c);

/* Compares two runs that are over. The caller frees *all. */
void differ_traces(const struct trace *a, const struct trace *b, enum diff_how how,
                   const struct diff_names *in, struct difference *d, struct conditions *all,
                   struct diff_counts *n);
