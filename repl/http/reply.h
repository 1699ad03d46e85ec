/* reply.h - the reply of one job, token by token: text by channel, stop texts, log probabilities,
 * and the pieces in which a stream sends it.
 *
 * Text and ids end with the token that completes a stop text, whatever else the step drafted, so a
 * reply is the same with drafting and without. One thread at a time. */
#pragma once

#include "engine/event.h"
#include "repl/http/ask.h"

/* The additions of one step: tokens [first, first + n) of the reply, and the text that may be
 * shown. */
struct reply_piece {
    int first, n;
    size_t text, thought; /* where the step's text ends in the reply's */
    int calls;            /* of functions, complete by then */
};

enum finish { FINISH_OPEN, FINISH_STOP, FINISH_LENGTH, FINISH_ABORT, FINISH_ERROR, FINISH_CALLS };
const char *finish_word(enum finish f); /* "stop", "length", ...; NULL while open */

struct reply {
    const struct ask *ask;
    const struct ask_of *of;
    const struct ids *prompt;
    int index;
    struct ids tok;
    float *logp;           /* (tok.n) */
    struct job_token *top; /* (tok.n, n_top) */
    int n_top, cap_top;
    struct buf text, thought; /* that may be shown */
    struct reply_piece *piece;
    int n_piece;
    enum finish finish;
    int stop_text; /* index of the stop text that ended the reply, or -1 */
    int stop_id;   /* the token that did, or -1 */
    /* of the prompt, where log probabilities of it were asked for */
    struct token_fact *prompt_fact;
    struct job_token *prompt_top;
    int n_prompt_top;
    /* counts */
    int n_reused;
    struct ids accepted, drafted; /* of each step after the prompt's */
    int64_t us_wait;
    uint64_t ns_begin, ns_first, ns_last;
    /* reading */
    struct chat_reader reader;
    struct tok_stream stream;
    struct call_reader calls; /* where functions may be called */
    struct buf raw;    /* the answer's text with its calls, as the log has it */
    bool open;         /* the reader is open */
    struct buf held;   /* text that may be the beginning of a stop text */
    size_t *offset;    /* (tok.n) characters of the text before each token, held ones included */
    size_t n_chars;
};

void reply_init(struct reply *r, const struct ask *a, const struct ask_of *of, int index);
void reply_free(struct reply *r);
/* The prompt is computed: takes over the facts of the event. */
void reply_begin(struct reply *r, struct event *ev);
/* A step. True: the reply is complete, and the job should be cancelled. */
bool reply_step(struct reply *r, const struct event *ev);
/* The job has ended, and no step follows. The last piece has no tokens: it has the text that was
 * held back, and the end. */
void reply_end(struct reply *r, const struct event *ev);
