/* redraft.h - runs a draft head again over known tokens: as it is configured, and with one thing
 * changed at a time.
 *
 * The target runs over the texts once, and its captured states are kept. For each reading of the
 * head (other layers, another norm, another rope, the target's embedding, ...) the head then runs
 * over the same states, teacher-forced, and its first guess at each position is compared with the
 * target's own choice there. That is the acceptance of a greedy chain's first token, without the
 * pages, trees and sampling of a conversation: a difference between two readings is the effect of
 * the one thing that was changed. Runs on the calling thread. */
#pragma once

#include "engine/event.h"

struct loaded;
struct stop;

enum reading_of {
    READ_AS_IS,
    READ_LAYERS,  /* other captured boundaries of the target */
    READ_NORM,    /* a norm's place, kind, epsilon */
    READ_ROPE,    /* theta, scaling */
    READ_WINDOW,  /* the head sees the newest positions only, or all */
    READ_EMBED,   /* the target's embedding in place of the head's own */
    READ_IDS,     /* another map from the head's ids to the target's */
    READ_STALE,   /* the states of the position before */
    READ_TOKEN,   /* the state of a position beside its own token, not the next one */
    READ_HEAD,    /* the target's output matrix in place of the head's own */
    N_READINGS_OF
};

enum { READINGS = 96, REDRAFT_TOKENS = 1024, REDRAFT_CONTEXT = 4096, REDRAFT_RANKS = 8 };

/* A conversation: its tokens, of which those from `first` on are scored. */
struct redraft_text {
    const int32_t *id;
    int n, first;
    const bool *skip;     /* (n) tokens behind `first` that are not scored; NULL: there are none */
    const int32_t *guess; /* (n) the first guess that the session's draft had for token i; -1: none,
                             or not known. NULL: none is known */
};

struct reading {
    enum reading_of of;
    char what[80];      /* "boundaries 2,4,5" */
    int boundary[CALIB_CAPTURES], n_boundary; /* READ_LAYERS */
    int sees;           /* READ_WINDOW: the newest positions seen; 0: all */
    int tokens;         /* scored: all, or the first ones, after which it was clearly worse than
                           the configured reading */
    int hits;           /* of these: the first guess was the target's choice */
    int won, lost;      /* tokens that this reading hits and the configured one does not; and the
                           other way around */
    int ahead, behind;  /* the same beside the reading with the most hits */
    int same, same_won, same_lost; /* of `logged`: the guess was the session's; against as is */
    int cycles, accepted; /* of chains; 0 cycles: chains were not measured for the reading */
    double longer, error; /* accepted tokens a chain more than as configured; standard error */
    int hits_at[DRAFT_RANGES]; /* by length of the context: draft_range_first() */
};

struct redraft {
    int n;
    struct reading r[READINGS]; /* the first is READ_AS_IS; of a stopped run those that were done
                                   with */
    int best;                   /* the reading with the most hits, the first of several */
    int texts, tokens, logged;  /* scored; of them with a logged guess */
    int rows;                   /* tokens of the texts, the scored ones among them */
    int tokens_at[DRAFT_RANGES];
    int longest;                /* tokens of the longest text */
    int rank[REDRAFT_RANKS + 1]; /* as configured: the target's choice was the k-th guess; [0]: it
                                    was none of the first REDRAFT_RANKS */
    int map_tokens, map_hits, map_as_is; /* tokens whose draft id was guessed elsewhere, too; the
                                    target's most frequent choice there was its choice here, too;
                                    the guess itself was */
    int chain_steps;            /* depth of the chains */
    char constant[160];         /* norms whose weights are all equal: "midlayer.hidden_norm.weight
                                   (all 1)"; "": there are none */
    double embed_alike;         /* cosine of the head's own embedding rows with the target's, the
                                   mean over ids; NAN: it has none, or they cannot be compared */
    double embed_other;         /* the same with the best of other ids' rows, over a sample */
    char of_tokenizer[160];     /* how the tokenizer in the head's folder differs; "": it does not,
                                   or there is none */
    bool has_embed;             /* the head's own */
    int max_pos, window;        /* of the head's config; window 0: none */
    bool stopped;
};

enum redraft_which {
    REDRAFT_ALL,
    REDRAFT_LAYERS, /* as configured, and with the captured layers of other conventions; no chains.
                       Of any head that captures states, also of one that guesses blocks */
    REDRAFT_AS_IS,  /* as configured; no chains */
};

struct redraft_opts {
    struct loaded *l;
    enum redraft_which which;
    bool uploaded;           /* a runtime was opened over it before: norms are not looked at */
    const struct redraft_text *text; /* in order of preference: as many as fit are used */
    int n_text;
    int chain;               /* depth of chains; 0: they are not measured */
    int sees;                /* the newest positions that the session's head saw; 0: all */
    const struct stop *stop; /* may be NULL */
    void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total); /* or NULL */
    void *progress_arg;
};

/* Whether the drafter is a head whose readings can all be scored; false: *why is a noun phrase of
 * its kind. */
bool redraft_can(const struct loaded *loaded, const char **why);
/* False and *e: redraft_can() says no (unless the layers alone are asked for), no token can be
 * scored, or the device failed. *out is complete unless `stopped`, which is no failure. */
bool redraft_run(const struct redraft_opts *o, struct redraft *out, struct err *e);

/* The i-th message of a few that any chat model can answer; NULL: there are fewer. Constant. */
const char *redraft_message(int i);
/* Appends the target's greedy reply to a prompt, at most `most` tokens. False and *e: the prompt
 * does not fit, stopped, or the device failed. */
bool redraft_answer(struct loaded *loaded, const struct ids *prompt, int most,
                    const struct stop *stop, struct ids *reply, struct err *e);
