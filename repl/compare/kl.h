/* kl.h - how far the log probabilities of a reply, as it was decoded, are from those of the same
 * tokens read as a prompt.
 *
 * For each token r = log probability as a prompt - log probability at decode. The estimator k3 of
 * the divergence is exp(r) - 1 - r, which is never negative; its mean over a reply is what SGLang's
 * own test compares with a limit. Engines that compute a row the same way in both passes have r = 0
 * everywhere. One thread. */
#pragma once

#include "repl/text/print.h"

enum { KL_DEPTHS = 9 };

/* Where a token's row lies. The row of the token at position p is that of position p - 1. */
enum kl_part {
    KL_ALL,
    KL_BELOW_WINDOW, /* the row sees all keys */
    KL_PAST_WINDOW,  /* sliding layers no longer see the first key */
    KL_FIRST,        /* the row is the first of a block */
    KL_INSIDE,
    KL_LAST,         /* the last of a block */
    KL_PROMPT,       /* of the prompt's pass: the reply's first token */
    KL_DEPTH,        /* + depth of the row in the tree of a step; the deepest stands for the rest */
    N_KL_PARTS = KL_DEPTH + KL_DEPTHS
};

struct kl_sum {
    int64_t n, equal; /* tokens; those with r == 0 */
    double k3, abs;   /* sums of k3 and |r| */
    double most;      /* the largest |r| */
};

struct kl {
    int window, block; /* 0: not known, those parts stay empty */
    struct kl_sum part[N_KL_PARTS];
    int n_reply;
    double k3_most;     /* largest mean of a reply */
    int most_reply, most_token, most_position; /* of part[KL_ALL].most; from 1, from 1, from 0 */
    int64_t unknown;    /* tokens without both log probabilities */
    float *abs;         /* (part[KL_ALL].n) every |r| */
};

/* One reply: n tokens behind n_prompt ones. accepted: drafted tokens of each step behind the first
 * token that were accepted; n 0: not known. */
struct kl_reply {
    int n_prompt, n;
    const float *decoded, *read; /* (n) NAN: not known */
    struct ids accepted;
};
void kl_add(struct kl *k, const struct kl_reply *r);
void kl_free(struct kl *k);

double kl_mean(const struct kl_sum *s);   /* of k3; 0 of none */
double kl_below(struct kl *k, double share); /* this share of the |r| is at most so large */
/* Prints the sums and the table, and names them in JSON. */
void kl_print(struct kl *k, const struct printer *to);
