/* verdict.h - where two runs of a session first differ, in which layer and operation, and whether
 * that is a bug, rounding, or what was changed on purpose. Main thread only.
 *
 * The engine computes the same bits every time, and a row's bits depend neither on its neighbours
 * nor on pages or trees (kernels/kernels.h). So if none of the changed conditions may round
 * differently, the first difference of any size is a bug; its class, the checker's rule and the
 * taps show which. If numbers may differ by rounding (precision, cells, device, weights), the band
 * of rounding is measured: the first side runs several times, in float32 on the CPU and given its
 * tokens, with added noise of the size of those roundings. A difference within the band is
 * rounding; one far beyond it, or one that violates a rule, is a bug.
 *
 * If a server computed a side (verdict_served.c), its numbers come from another program, so only a
 * violated rule is called a bug. The report says whether the margins that the server reported lie
 * within the band of this engine's roundings or beyond it. */
#pragma once

#include "repl/compare/differ.h"
#include "repl/compare/locate.h"
#include "repl/compare/side.h"
#include "repl/text/print.h"

enum verdict {
    VERDICT_EQUAL,
    VERDICT_BUG,
    VERDICT_ROUNDING,
    VERDICT_PURPOSE, /* a condition that was changed on purpose explains the difference */
    VERDICT_OPEN,    /* the logs alone do not decide */
    VERDICT_OTHER,   /* not comparable: other messages or prompts, which nothing that was changed
                        explains */
    /* where a side was computed by a server */
    VERDICT_WITHIN,  /* the difference lies within the band of rounding */
    VERDICT_BEYOND,  /* the difference lies beyond that band */
};
const char *verdict_name(enum verdict v); /* "bug", "rounding", "changed on purpose", ... */

enum { MAX_EVIDENCE = 16, NOISE_LEAST = 8, NOISE_MOST = 32 };
#define FAR_MARGIN 8 /* root mean squares beyond which a margin's movement is no rounding */

struct report {
    enum verdict verdict;
    struct difference diff; /* the first difference of the logs */
    bool no_ids;            /* a side is a pack without text and token ids */
    struct conditions conditions;
    struct diff_counts counts;
    /* the first place at which the target's arithmetic differs by more than it may */
    struct place place;     /* place.found: it is known */
    int turn, step[2];
    int token;              /* index in the reply of the token chosen there; -1: a whole step was
                               compared */
    /* the checker, strict, over the same steps */
    char rule[256];         /* "": no rule was violated */
    int rule_turn, rule_step, rule_side; /* side 0 or 1 */
    /* at the first token that differs */
    bool has_margin;
    int32_t chosen[2];      /* tokens of the two sides */
    double margins[2];      /* each side's own: log probability of its token less its rival's; NAN:
                               not reported */
    /* measured: how far rounding moves such a margin */
    int noise_runs;         /* 0: not measured, the sides must agree in every bit */
    float noise;            /* size */
    double band;            /* root mean square over the runs, at that token or the median token */
    double worst;           /* largest movement of a margin between the sides, in bands */
    int worst_turn, worst_token;
    /* where a side was computed by a server */
    bool served;
    int n_logp;             /* tokens whose log probabilities both sides know; counts.most is the
                               largest difference of them */
    double logp_median;
    bool forced;            /* the local engine was given the server's tokens */
    int given, parts;       /* number of tokens given; at how many of them it would have chosen
                               another */
    bool sampled;           /* the server sampled its tokens at a temperature above 0 */
    bool steered;           /* where the tokens part, penalties or biases changed the logits, or a
                               token was given by hand: the margins do not decide */
    struct draft_sums drafts[2]; /* of each side; cycles 0: it drafted nothing, or does not say */
    const char *side[2];    /* the sides' names in messages: "in a" */
    char *evidence[MAX_EVIDENCE]; /* owned lines */
    int n_evidence;
};

struct verdict_ask {
    struct diff_side a, b;
    const struct trace *log_a; /* the first side, from its log */
    const struct trace *log_b; /* the second side, from its log; NULL: the second side is run with
                                  the options `b` */
    bool log_only;             /* nothing is run again (log_b is there) */
    bool forced;               /* the first side is a server's; the second is the local engine,
                                  given the first one's prompts and tokens. log_b NULL */
    bool no_band;              /* with `forced`: the band is not measured */
    struct diff_names names; /* "in a", "in b" */
    const char *who[2];      /* "a", "b" */
    void (*progress)(void *arg, const char *what); /* a further run begins; or NULL */
    void *arg;
};

/* False and *e: the second side had to be run, and cannot be. The caller ends with
 * report_free(). */
bool verdict_find(const struct verdict_ask *ask, struct report *r, struct err *e);
void report_free(struct report *r);
/* One more line of evidence; beyond MAX_EVIDENCE it is dropped. */
void report_say(struct report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The report as lines for people, or as the members of an open JSON object. */
void verdict_print(const struct report *r, const struct printer *to);
