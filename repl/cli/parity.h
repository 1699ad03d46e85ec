/* parity.h - the results of several computations of the same prompts that `aerie parity` keeps, and
 * its report. The first side is the one that each other side is compared with. Main thread only. */
#pragma once

#include "engine/remote/upkeep.h"
#include "repl/cli/cli.h"
#include "repl/compare/differ.h"
#include "repl/compare/kl.h"

enum { MAX_SIDES = 16 };

/* One reply of one side. */
struct parity_reply {
    bool there;   /* it was computed to its end, or refused */
    bool refused; /* the prompt cannot be computed; `why` says why */
    enum stop_reason reason;
    int n_prompt, n_tokens, n_steps, n_spec, n_drafted, n_accepted; /* n_spec: steps that drafted */
    struct ids ids;    /* of the reply; a server may send none */
    struct ids prompt; /* n 0: not known, or not kept */
    char *text;        /* of the reply; NULL: not kept */
    float *logp;       /* (ids.n) log probability of each token; NULL: not known */
    float *margin;     /* (ids.n) the same less its best rival's, NAN where not known; NULL: not
                          known */
    char answer[64];   /* the number in the reply; "": none, or the prompt has no answer to compare
                          with */
    char why[200];
};

struct side {
    char name;   /* 'a', 'b', 'c', ... */
    char *label; /* its changes: "spec=off, page_size=4" */
    char *word;  /* a copy of the "remote:URL,..." word, cut apart; options point into it */
    char *arm;   /* the same of all words of --arm; NULL: another flag's side */
    struct engine_opts opts; /* server.url NULL: the local engine */
    const char *set[MAX_TEXTS]; /* (n_set) settings that the server must know */
    int n_set;
    /* of a server */
    struct upkeep *upkeep;
    struct draft_totals before; /* when it was opened */
    struct draft_totals drafts; /* since then, of all its clients; metered: it reports them */
    bool metered;
    bool tried_reset, resets;
    char reset[200]; /* how its prefix cache is emptied, or why not */
    /* of the prompts that were compared */
    int64_t tokens, steps, spec, drafted, accepted;
    int at_limit; /* replies that ended at max_tokens, or because the context or a pool was full */
    int right;    /* answers */
    int right_only; /* answers that are wrong on the other side, of two */
    int differ[MAX_SIDES]; /* prompts whose reply is another than that side's */
    int alone;      /* prompts where all other sides agree with each other, and not with this one */
    int kl_prompt;  /* the prompt of the largest difference */
    struct kl kl;   /* log probabilities of the first side's tokens, against the first side's */
    struct kl read; /* --kl: those of its replies at decode against the same tokens as a prompt */
    /* of all prompts that were computed, compared or not */
    struct draft_report drafts_of; /* of the local engine's replies */
    int64_t replied;               /* tokens of replies */
    uint64_t ns;                   /* from the request to its last reply, prompts included */
    int again, again_differ; /* replies computed twice, and those that differ from the first time */
};

/* One prompt's replies of two sides. */
struct compared {
    int prompt, line;    /* both from 1 */
    int of[2];           /* which sides */
    int index;           /* of the first token that differs, in the reply; -1: equal */
    int prompt_index;    /* index of the first different id of the prompts; -1: equal, or not known
                            on a side */
    bool by_text;        /* a side sent no ids: `index` counts bytes of the text */
    const char *answer;  /* the correct answer, or NULL */
    const struct parity_reply *side[2];
};

struct parity {
    struct cli *c;
    struct side side[MAX_SIDES];
    int n_side;
    struct backend *g;  /* the engine that computes; NULL: none */
    struct backend *own[MAX_SIDES]; /* if a side is a server: every side's backend */
    bool servers;       /* a side is a server */
    bool same_tokens;   /* all sides have the same model, so one engine knows the tokens of all */
    int n;              /* prompts of the file */
    int compared, differ, refused; /* compared: equal or not */
    int by_text, prompts_differ, prompts_unknown; /* of those compared */
    int graded, answers_differ;    /* prompts with an answer, of those compared */
    int signal;         /* that ended the run, or 0 */
    enum err_kind fault; /* why the run ended early: a rule was violated or the device failed ... */
    char fault_side;     /* ... on this side */
};

/* ---- sides (parity_side.c) ---- */

/* Fills in the sides from the command line. The caller ends with sides_free(). */
bool sides_set(struct parity *p, struct err *e);
void sides_free(struct parity *p);
/* Opens the backend of a side; complain takes lines for people. NULL and *e. */
struct backend *side_open(struct parity *p, int side, void (*complain)(void *arg, const char *line),
                          struct err *e);
/* Empties the prefix cache of a server, where that is possible. */
void side_reset_cache(struct side *s);
/* Reads a server's draft counts since it was opened. */
void side_meter(struct side *s);

/* ---- the report (parity_report.c) ---- */

/* Compares the two outcomes of c: fills in index, prompt_index and by_text. */
void parity_compare(struct compared *c);
/* One prompt's replies of all sides: all[k] is that of side k. Adds them to the sums, and prints
 * them: under --json every prompt, else those that differ. */
void parity_report(struct parity *p, int prompt, int line, const char *answer,
                   const struct parity_reply *const all[MAX_SIDES]);
/* For people: all sides' drafts side by side, if one has any: acceptance by depth and by context,
 * the time of a cycle's passes, tokens a second (parity_drafts.c). */
void drafts_table(const struct parity *p, const struct printer *to);
/* For programs: members of the side's open object. */
void side_drafts(const struct side *s, const struct printer *to);
/* Prints the sums and the verdict; returns the exit code. */
int parity_verdict(struct parity *p);
