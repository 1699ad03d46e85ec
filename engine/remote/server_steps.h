/* server_steps.h - how the tokens of a reply divide into the steps that a server lists.
 *
 * A server that lists its drafting steps reports how many drafts each accepted. A step yields these
 * and one token of the target's own; the last step perhaps fewer. The token of the prompt's pass
 * belongs to no listed step (vLLM, aerie serve), but some servers list the prompt's pass, too. If
 * the number of tokens fits both readings, the ends of the stream's pieces decide. Pure functions.
 */
#pragma once

#include "engine/remote/incoming.h"

/* How many of the reply's first tokens come before the first listed step: 0 or 1. -1: the lists do
 * not add up to the number of tokens, so the steps of the tokens are not known. */
int server_steps_lead(const struct incoming *in);
