/* job.h - jobs: replies to prompts of clients, computed beside the conversation and beside each other.
 *
 * A job brings its own prompt ids, sampling and seed. Jobs are added while others run; up to the lanes
 * that the engine was opened with run at the same time, the others wait in their order. The tokens and
 * log probabilities of a job are those of its run alone, with drafting or without. The conversation
 * stays as it is. A job's prompt, and on a device that queues no passes also its reply, stays resident
 * while there is room, so that a prompt that begins with the same tokens reuses their KV; a request
 * of the conversation (RQ_NEW, ...) ends that.
 *
 * Each job is answered by EV_JOB_BEGIN, any number of EV_JOB_STEP, and EV_JOB_END, on the screen's
 * queue; a job whose prompt cannot be computed by EV_JOB_END alone.
 */
#ifndef AERIE_JOB_H
#define AERIE_JOB_H

#include "kernels/base.h"

enum { JOB_TOP = 20 };

struct job_ask {
    uint64_t id;       /* chosen by the caller: not 0, and of no job that has not ended */
    struct ids prompt; /* at least 1, ids of the vocabulary */
    float temperature, top_p, min_p;
    int top_k;         /* 0: all */
    uint64_t seed;
    int most;          /* tokens of the reply; 0: none, the prompt alone; -1: what the context holds */
    bool run_on;       /* the model's end tokens do not end the reply */
    int top;           /* 0 .. JOB_TOP: best tokens reported beside each token of the reply */
    int prompt_top;    /* -1: nothing is reported of the prompt; 0 .. JOB_TOP: the log probability of
                          each of its tokens, and so many best tokens of each row. The whole prompt is
                          computed then: rows whose KV is reused have no logits */
};

struct token_fact;

/* A token and its log probability, at temperature 1 and without any filter. */
struct job_token {
    int32_t id;
    float logp;
};

/* What EV_JOB_* say beside the event's own fields. BEGIN: the prompt is computed; STEP: event.tokens
 * and event.facts, a step's tokens, drafted and accepted in event.rec; END: event.reason, and
 * event.text = why the job was refused or failed. */
struct job_news {
    uint64_t id;
    int n_prompt, n_reused;         /* BEGIN, END: of the prompt's tokens, those whose KV was held */
    struct token_fact *prompt_fact; /* BEGIN: (n_prompt), [0] is not known; NULL: not asked for */
    struct job_token *top;          /* BEGIN: (n_prompt, n_top); STEP: (event.tokens.n, n_top), best
                                       first; NULL: not asked for */
    int n_top;
    int n_generated, n_steps, n_drafted, n_accepted; /* END */
    int64_t us_wait, us_prefill, us_decode;          /* END: in the queue, for the prompt, after it */
};

#endif
