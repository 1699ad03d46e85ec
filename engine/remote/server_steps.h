/* server_steps.h - how the tokens of a reply divide into the steps that a server lists.
 *
 * A server that lists its drafting steps says how many drafts each accepted; a step yields them and one
 * token of the target's own, the last step perhaps fewer. The token that the prompt's pass yields belongs to
 * no listed step (vLLM, aerie serve). Some servers list the prompt's pass, too: where both readings fit
 * the number of tokens, the ends of the stream's pieces decide which one it is. Pure functions.
 */
#ifndef AERIE_SERVER_STEPS_H
#define AERIE_SERVER_STEPS_H

#include "engine/remote/incoming.h"

/* How many of the reply's first tokens come before the first listed step: 0 or 1. -1: the lists do not
 * add up to the tokens, so which step yielded which is not known. */
int server_steps_lead(const struct incoming *in);

#endif
