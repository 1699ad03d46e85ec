/* contexts.h - the tokens that each turn's context held, so that a step of any turn can be computed
 * again.
 *
 * A turn's context is its prompt and what it generated. Most of it is the context of the turn
 * before, so only the part after the common head is kept: all turns of a session together take
 * about as many ids as were ever computed. Above CONTEXT_IDS the oldest turns are removed. Only the
 * engine's thread changes them, under its lock. */
#pragma once

#include "kernels/base.h"

enum { CONTEXT_IDS = 1 << 21 }; /* 8 MB */

struct context {
    int turn;
    int common;      /* ids that the context before begins with, too; the first of all: 0 */
    int n_prompt;    /* ids of the prompt */
    struct ids rest; /* the ids from `common` on */
};

struct contexts {
    struct context *v; /* oldest first, by turn */
    int n;
    int64_t n_id; /* of all */
};

void contexts_free(struct contexts *c); /* empty, and usable again */
/* Adds a turn that begins with this prompt. Turns from `turn` on are removed before. */
void contexts_begin(struct contexts *c, int turn, const int32_t *prompt, int n);
/* Replaces the newest turn's tokens from index `at` on. */
void contexts_add(struct contexts *c, int at, const int32_t *tok, int n);
/* Removes the turns after `turn`. */
void contexts_cut(struct contexts *c, int turn);
/* Appends the context of a turn: its prompt, of *n_prompt ids, and what it generated. False: the
 * turn is not kept. */
bool contexts_of(const struct contexts *c, int turn, struct ids *out, int *n_prompt);
