/* reuse.h - how much of a turn's prompt was in the cache, and why not more.
 *
 * The prompt is compared with the tokens of the latest turn whose KV cells the session held, the
 * held tokens. Two facts follow: where and why the prompt differs from the held tokens, and how
 * many of the tokens before that place could be reused. A state of the cache is continued only
 * where it ends, so reused tokens end at the held end or at a checkpoint. Facts of the engine,
 * which an event carries and a log keeps. Any thread: plain values.
 */
#pragma once

#include "kernels/base.h"

/* Why the prompt does not begin with all held tokens. */
enum reuse_change {
    CHANGE_UNKNOWN, /* nothing was compared: a refused message, an old log, another backend */
    CHANGE_NONE,    /* the prompt continues the held tokens */
    CHANGE_FIRST,   /* nothing was held: the session's first turn */
    CHANGE_EMPTIED, /* the session was resumed, or its model or draft switched: empty pools */
    CHANGE_SYSTEM,  /* the system prompt changed */
    CHANGE_UNDO,    /* `turn` was undone */
    CHANGE_REGEN,   /* the reply of `turn` is generated again */
    CHANGE_FORGET,  /* `turn`, perhaps with others, left the context */
    CHANGE_SILENT,  /* `turn` ended without a reply, and its question left the context */
    CHANGE_FORK,    /* the conversation was cut at a fork; `turn`: the last one that remained */
    CHANGE_FORMAT,  /* the chat format renders an earlier message differently now */
};
/* Why not every token before that place is reused. */
enum reuse_limit {
    LIMIT_NONE,    /* all are, except those after the last cell of the state used */
    LIMIT_WINDOW,  /* window pages of the positions from .. to are gone */
    LIMIT_EVICTED, /* a checkpoint of `to` tokens was dropped, because pages or places ran short */
    LIMIT_DRAFT,   /* the draft has no cells of the `to` tokens held: drafting was off */
    LIMIT_STATE,   /* no checkpoint is closer to that place */
};

struct reuse {
    enum reuse_change change;
    enum reuse_limit limit;
    int held; /* tokens with cells before this turn */
    int same; /* of them, tokens that the prompt begins with */
    int turn; /* of the change; 0: none */
    int from, to; /* of the limit: positions, both included; 0, 0: none */
};

const char *reuse_change_name(enum reuse_change c); /* "none", "first", ...; "": unknown */
const char *reuse_limit_name(enum reuse_limit l);   /* "window", ...; "": LIMIT_NONE */
/* False: no such name; "" is CHANGE_UNKNOWN and LIMIT_NONE. */
bool reuse_change_parse(const char *name, enum reuse_change *out);
bool reuse_limit_parse(const char *name, enum reuse_limit *out);

/* Prompt tokens whose cells existed, or had existed before the pools were emptied, and that are
 * computed again. */
int reuse_again(const struct reuse *r, int n_prompt, int n_reused);
/* Whether enough tokens are recomputed for the chat to show a line about it. */
bool reuse_is_notable(const struct reuse *r, int n_prompt, int n_reused);
/* Appends one line without an end: "reused 9,700 of 9,820 prompt tokens: the system prompt changed
 * at token 12". Nothing if the change is unknown. */
void reuse_text(const struct reuse *r, int n_prompt, int n_reused, struct buf *out);
