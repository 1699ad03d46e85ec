/* judge.h - what the verdicts of verdict.c and verdict_served.c share: runs of the sides, and the
 * band of rounding. Only these files include it. Main thread only.
 *
 * The margin of a token is its log probability less its best rival's. Rounding moves margins: a
 * side is run again, given its tokens, with noise of the size of roundings. The band of a token is
 * the root mean square of its margin's movements over these runs, but at least the median token's.
 * What both verdicts report, they report in the words of this file. */
#pragma once

#include "repl/compare/verdict.h"

struct judge {
    const struct verdict_ask *ask;
    struct report *r;
    const struct trace *t[2]; /* the sides */
    struct diff_side side[2]; /* how they are run again */
    struct rerun_engine engine; /* stays open between runs with the same options */
    struct trace now_b; /* the second side's run, if there is no log of it */
    struct bands bands; /* of a row's tapped points */
    /* where a side was computed by a server */
    bool served[2];
    int local;             /* the side that can be run here; -1: none */
    struct run_facts base; /* that side run again, given its tokens */
    double *logp; /* (counts.n_logp of the report) differences of log probabilities, sizes */
    bool exact;            /* both sides are the same build of aerie: every bit must agree */
    bool by_hand;          /* where the tokens part, one was given by hand */
    int n_steered;         /* replies given to the local engine whose logits penalties or biases
                              changed */
    int no_prompt, no_ids, rendered; /* turns without the ids of a prompt or a reply, and those
                                        whose prompt was rendered here instead */
    int no_reply;  /* turns that cannot be compared: a pack has neither ids nor text of the reply */
};

/* Runs a side again; what: for the progress. False and *e: it cannot be run here, which the report
 * then says. The caller ends with run_facts_free(). */
bool judge_run(struct judge *j, int side, const struct run_ask *ask, struct run_facts *f,
               const char *what, struct err *e);
/* Takes over the rule that ended a run, if no other run has named one. where: "in a". */
void judge_rule(struct judge *j, int side, const struct run_facts *f, const char *where);
/* Reports what the conditions of the sides may change. */
void judge_conditions(struct judge *j);
/* Reports that no rule was violated, unless one was or no plan was checked. where: "on either
 * side". */
void judge_checked(struct judge *j, const char *where, uint64_t checks);
/* The verdict if a server computed a side. False and *e: see verdict_find(). */
bool judge_served(struct judge *j, struct err *e);

/* The median of the values that are not NAN; 0: there are none. */
double median(const double *v, int n);
/* NAN: not known. */
double margin_of(const struct token_fact *f);

struct band {
    const struct trace *base; /* the run without noise */
    struct band_token {
        int index, turn, token; /* index of the turn in the trace */
        double margin;          /* NAN: not known */
    } *at;                      /* (n) all tokens, turn after turn */
    double *rms;                /* (n) */
    int n;
    double usual;               /* their median */
    int runs;
};
/* base must outlive the band. The caller ends with band_free(). */
void band_begin(struct band *b, const struct trace *base);
void band_free(struct band *b);
/* Fills in how far the margins of another run, over the rivals of the base, lie from those of the
 * base: NAN where the base's is not known or the run has no such token, infinite where the run has
 * another token there or tells no log probability. */
void band_moves(const struct band *b, const struct trace *t, double *moved);

struct band_ask {
    int side;                  /* is run with noise, ... */
    const struct trace *given; /* ... given these tokens */
    float size;                /* of the noise */
    const double *moved;       /* (n) movements that are compared with the band; NAN: not known */
    double parting;            /* the movement where the choices part; 0: none */
    double clear;              /* bands beyond which more runs change no verdict; 0: none */
};
/* Measures the band by NOISE_LEAST runs, and by NOISE_MOST if a movement lies beyond it; fills in
 * the report's runs, size, band and worst movement, and reports them. *first: the first token
 * (index in b->at) whose movement lies beyond; -1: none. False: the side cannot be run, or there is
 * no token. */
bool judge_band(struct judge *j, struct band *b, const struct band_ask *ask, int *first);
/* The movement of the margin where the choices part, since each side preferred its own token, as
 * far as the margins are known; 0: none is. */
double parting_of(const struct report *r);
/* Whether the movement where the choices part lies beyond the band. */
bool band_parts(const struct judge *j, const struct band *b, double parting);
