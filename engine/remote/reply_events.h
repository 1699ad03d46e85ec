/* reply_events.h - the events of a finished reply of a server: its ids, the facts of its tokens,
 * its steps.
 *
 * An event holds only what the server reported; what it did not report is absent, never guessed.
 * Threads: as talk.h.
 */
#pragma once

#include "engine/remote/incoming.h"
#include "engine/remote/talk.h"

enum stop_reason reply_stop(const struct incoming *in);
int reply_count(int64_t v); /* a count of the server as an int; 0 if it is negative: not reported */
/* Log probability, best rival and its log probability of n tokens from `first` on; NULL if n is 0.
 * The caller frees. */
struct token_fact *reply_facts(const struct incoming *in, int first, int n);
/* Appends the ids of the whole reply as the server sent them; nothing if it did not send all of
 * them. */
void reply_ids(const struct incoming *in, struct ids *out);
/* Posts the steps of the reply: those that the server lists, if they add up to its tokens, else the
 * pieces of the stream. Returns how many there are; adds them to *sums. */
int reply_post_steps(struct talk *talk, const struct incoming *in, struct draft_sums *sums);
/* How many of the reply's first tokens come before the first step that the server lists: 0 or 1.
 * -1: the lists do not add up to the number of tokens, so the steps of the tokens are not known.
 *
 * A server that lists its drafting steps reports how many drafts each accepted. A step yields these
 * and one token of the target's own; the last step perhaps fewer. The token of the prompt's pass
 * belongs to no listed step (vLLM, aerie serve), but some servers list the prompt's pass, too. If
 * the number of tokens fits both readings, the ends of the stream's pieces decide. */
int server_steps_lead(const struct incoming *in);
