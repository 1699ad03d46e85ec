/* job.h - jobs: replies to prompts of clients, computed concurrently, outside the conversation.
 *
 * A job brings its own prompt ids, sampling and seed. Jobs are added while others run; as many as
 * the lanes that the engine was opened with run at the same time, the others wait in order. A job
 * yields the tokens and log probabilities that it would yield alone, with drafting or without. The
 * conversation does not change. A job's prompt, and on a device that does not queue passes also its
 * reply, stays resident while there is room, so that a prompt that begins with the same tokens
 * reuses their KV; a request of the conversation (RQ_NEW, ...) ends that.
 *
 * A job posts EV_JOB_BEGIN, any number of EV_JOB_STEP, and EV_JOB_END to the screen's queue; if its
 * prompt cannot be computed, EV_JOB_END alone.
 */
#pragma once

#include "engine/settings.h"

enum { JOB_TOP = 20 };

struct job_ask {
    uint64_t id;       /* chosen by the caller: not 0, and different from those of all jobs that
                          have not ended */
    struct ids prompt; /* at least 1, ids of the vocabulary */
    float temperature, top_p, min_p;
    int top_k;         /* 0: all */
    struct penalties penalties;
    char *format;      /* what the reply must be, as RQ_FORMAT has it, taken over; NULL: any text */
    uint64_t seed;
    int most;          /* tokens of the reply; 0: none, the prompt alone; -1: what the context
                          holds */
    bool run_on;       /* stop tokens do not end the reply */
    int top;           /* 0 .. JOB_TOP: best tokens reported beside each token of the reply */
    int prompt_top;    /* -1: nothing is reported about the prompt; 0 .. JOB_TOP: the log
                          probability of each of its tokens, and this many best tokens of each row.
                          The whole prompt is then computed, because rows whose KV is reused have no
                          logits */
};

struct token_fact;

/* A token and its log probability, at temperature 1 and without any filter. */
struct job_token {
    int32_t id;
    float logp;
};

/* Fields of EV_JOB_* in addition to those of struct event. BEGIN: the prompt is computed; STEP:
 * event.tokens and event.facts, a step's tokens, drafted and accepted in event.rec; END:
 * event.reason, and event.text = why the job was refused or failed. */
struct job_news {
    uint64_t id;
    int n_prompt, n_reused;         /* BEGIN, END: of the prompt's tokens, those whose KV was
                                       held */
    struct token_fact *prompt_fact; /* BEGIN: (n_prompt), [0] is not known; NULL: not asked for */
    struct job_token *top;          /* BEGIN: (n_prompt, n_top); STEP: (event.tokens.n, n_top), best
                                       first; NULL: not asked for */
    int n_top;
    int n_generated, n_steps, n_drafted, n_accepted; /* END */
    int64_t us_wait, us_prefill, us_decode;          /* END: in the queue, for the prompt, after
                                                        it */
};
