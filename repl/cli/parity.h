/* parity.h - what `aerie parity` keeps of two computations of the same prompts, and its report.
 * Main thread only. */
#ifndef AERIE_PARITY_H
#define AERIE_PARITY_H

#include "repl/cli/cli.h"

/* One reply of one side. */
struct outcome {
    bool there;   /* it was computed to its end, or refused */
    bool refused; /* the prompt cannot be computed; `why` says why */
    enum stop_reason reason;
    int n_prompt, n_steps, n_spec, n_drafted, n_accepted; /* n_spec: steps that drafted */
    struct ids ids;
    float *margin; /* (ids.n) log probability of a token less its best rival's; NULL: not known */
    char answer[64]; /* the number that the reply gives; "": none, or none was asked for */
    char why[200];
};

struct side {
    char name;   /* 'a', 'b' */
    char *label; /* its changes: "spec=off, page_size=4" */
    struct engine_opts opts;
    /* of the prompts that were compared */
    int64_t tokens, steps, spec, drafted, accepted;
    int at_limit; /* replies that ended at max_tokens, or because the context or a pool was full */
    int right;    /* answers */
};

struct comparison {
    int prompt, line;    /* both from 1 */
    int index;           /* of the first token that differs, in the reply; -1: equal */
    const char *answer;  /* that is right, or NULL */
    const struct outcome *side[2];
};

struct parity {
    struct cli *c;
    struct side side[2];
    struct backend *g;  /* the engine that is open; NULL: none */
    bool same_tokens;   /* both sides have the same model, so one engine knows the tokens of both */
    int n;              /* prompts of the file */
    int compared, differ, refused; /* compared: equal or not */
    int graded, answers_differ;    /* prompts with an answer, of those compared */
    int signal;         /* that ended the run, or 0 */
    enum err_kind fault; /* a rule was violated or the device failed: the run ended there ... */
    char fault_side;     /* ... on this side */
};

/* Adds one prompt to the sums, and prints it: under --json every one, else those that differ. */
void parity_report(struct parity *p, const struct comparison *c);
/* Prints the sums and the verdict; returns the exit code. */
int parity_verdict(const struct parity *p);

#endif
