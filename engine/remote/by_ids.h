/* by_ids.h - requests to a server whose prompts are token ids: greedy, of a fixed length, one or
 * several at once, and the log probabilities of a prompt's own tokens.
 *
 * Each kind of server takes such requests in a form of its own; a kind that takes none is refused
 * by name. Ids and log probabilities are as the server sent them. One thread.
 */
#pragma once

#include "engine/remote/upkeep.h"

struct ids_ask {
    struct ids prompt; /* the caller's */
    int most;          /* tokens of the reply, at least 1: the end token does not end the reply */
    bool score;        /* log probabilities of the prompt's tokens, too: only where
                          ids_scores_at_once() */
    bool cold;         /* without the prefix cache, if requests have a field for that */
    const char *arena; /* requests of one name may reuse each other's prefixes; those of another
                          name may not, where the server can tell them apart. NULL: no name */
    int after_ms;      /* is sent so long after the first one */
    int cancel_ms;     /* its connection is closed so long after it was sent; 0: never */

    /* the answer, which ids_ask_free() frees */
    bool done;         /* answered; else `why`, or it was cancelled or stopped */
    bool cancelled;
    bool unreachable;  /* not answered, because the server cannot be reached */
    int status;        /* of HTTP; 0: none was received */
    struct err why;
    struct ids reply;
    float *logp;       /* (reply.n) NAN: not reported */
    float *margin;     /* (reply.n) the same less that of the best other token; NAN: not known */
    float *prompt_logp; /* (prompt.n) with `score`; NAN: not reported, as the first */
    struct ids accepted; /* drafted tokens of each step behind the first token that were accepted */
    int64_t cached;    /* tokens of the prompt whose KV was reused; -1: not reported */
    int64_t drafted, n_accepted; /* drafted tokens, those accepted; -1: not reported */
    uint64_t ns;       /* how long it took */
};
void ids_ask_free(struct ids_ask *ask); /* the answer; the prompt stays */

/* Whether the server takes prompts of ids and reports ids and log probabilities. False and *e. */
bool ids_can_ask(const struct upkeep *upkeep, struct err *e);
/* Whether one request reports the log probabilities of its whole prompt. If not, ids_score() asks
 * for them token by token. */
bool ids_scores_at_once(const struct upkeep *upkeep);
/* Whether the server keeps the prefixes of arenas apart; else its cache has to be emptied. */
bool ids_has_arenas(const struct upkeep *upkeep);

enum { IDS_AT_ONCE = 16 };
/* Sends all n requests (at most IDS_AT_ONCE) in order and waits for the answers, or until *stop is
 * set. Calls meanwhile(), unless it is NULL, at least every 50 ms. */
void ids_ask_all(struct upkeep *upkeep, struct ids_ask *ask, int n, const struct stop *stop,
                 void (*meanwhile)(void *arg), void *arg);
/* logp[i], for from <= i < ids->n: the log probability of token i where the tokens before it are
 * the prompt, computed cold. False and *e: a request failed or was stopped. */
bool ids_score(struct upkeep *upkeep, const struct ids *ids, int from, float *logp,
               const struct stop *stop, struct err *e);
/* Appends the ids of a text, without a bos. */
bool ids_of_text(struct upkeep *upkeep, const char *text, struct ids *out, const struct stop *stop,
                 struct err *e);
/* Appends the path and body of a request; for the script of a report. */
const char *ids_request(const struct upkeep *upkeep, const struct ids_ask *ask, struct buf *body);
