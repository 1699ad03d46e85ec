/* redraft_parts.h - shared by redraft.c (a whole run), redraft_readings.c (what can be changed
 * about a head) and redraft_score.c (runs the head and counts). */
#pragma once

#include "engine/thread/load.h"
#include "engine/thread/redraft.h"

enum { REDRAFT_KEPT = 128, /* boundaries whose states are kept */
       REDRAFT_ROWS = 512,    /* of a pass */
       REDRAFT_CLOSE = 3 };   /* readings that hit most, whose chains are measured */

/* One way to run the head. What it does not mention is as configured. */
struct trial {
    enum reading_of of;
    char what[80];
    int capture[MAX_CAPTURE];
    int state_shift, token_shift; /* slot i has state i + state_shift and token i + token_shift */
    int sees;                     /* the newest positions that the head sees; 0: all */
    struct draft d;               /* a copy of the configured draft with the change; its layers are
                                     in `layer` */
    struct layer *layer;          /* (n_layer) owned */
    bool own_rope, own_ids;       /* d's rope, d2t are the trial's own */
    bool chain;                   /* may be better in later guesses only: chains are measured */
    int reading;                  /* its place among the results, once scored */
};

struct scored_text {
    const struct redraft_text *t;
    int32_t *choice; /* (n) the target's choice after token i */
    int at;          /* of its states: row of s->states */
    int n;           /* tokens used */
};

struct scorer {
    const struct redraft_opts *o;
    struct redraft *out;
    struct runtime r;
    struct draft as_is; /* as configured: restored after each trial */
    struct layer *layers;
    int kept[REDRAFT_KEPT], n_kept;
    kbuf states;        /* (tokens of all texts, n_kept, hidden) */
    kbuf last;          /* (REDRAFT_ROWS) i32: the rows of a pass that guess */
    struct scored_text *text;
    int n_text, tokens; /* scored tokens */
    int part, parts;         /* of the readings, for progress */
    uint8_t *hit[READINGS];  /* (tokens) by reading */
    uint8_t *same[READINGS]; /* (tokens) the guess was the logged one; 2: none was logged */
    struct trial close[REDRAFT_CLOSE]; /* (n_close) the readings that gained most by first
                                          guesses */
    int n_close;
    int *chain;              /* accepted tokens of each chain, as configured */
    int n_chain;
};

/* Whether token i of the text is scored. */
static inline bool redraft_scored(const struct redraft_text *t, int i)
{
    return i >= t->first && i >= 2 && !(t->skip && t->skip[i]);
}
/* Adds the reading of a trial to the results and counts it. False: stopped, or *e. */
bool redraft_score(struct scorer *scorer, struct trial *t, struct err *e);
/* Measures the chains of a trial that was scored, and compares them with those of the first one
 * whose chains were measured, which is the configured one. */
bool redraft_chains(struct scorer *scorer, const struct trial *t, struct err *e);
/* The number of the first `most` tokens that the trial hits; -1: as above. */
int redraft_hits(struct scorer *scorer, const struct trial *t, int most, struct err *e);
void redraft_progress(const struct scorer *scorer, const char *what, int done, int total);
bool redraft_stopped(const struct stop *stop, struct err *e);
size_t redraft_row_bytes(const struct scorer *scorer); /* of the kept states of a token */

/* Scores every reading that makes sense for the head. */
bool redraft_try_all(struct scorer *scorer, struct err *e);
