/* jobs.h - replies to prompts that run beside each other, outside the conversation: the core that
 * batches (batch.c) and clients' jobs (clients.c) share.
 *
 * Every job that runs is a lane of the conversation's runtime. Jobs wait in order. A job is
 * admitted when the pools have the pages for its prompt and for one more cycle of every lane; else
 * it waits until a lane ends. Where other lanes run, a round computes one chunk of its prompt, and
 * one cycle of each of them. If a pool is short nevertheless, the youngest lane is preempted: its
 * pages are freed, and it is computed again later. A job whose prompt does not fit even alone is
 * refused; the others go on. Checkpoints of the conversation are not dropped for a job.
 *
 * A lane yields the tokens and log probabilities that it would yield alone, because a row does not
 * depend on its neighbours (kernels.h). On a device that queues passes, a prompt's pass may round
 * differently from a cycle. There, cycles with given tokens recompute the tokens that a preempted
 * lane had generated.
 *
 * Resident states (checkpoints of prompts, ends of replies) let a job begin after the tokens whose
 * KV they hold. When all jobs have ended, the pools are as before, including the order of their
 * free pages, so that a replay, which does not run jobs, finds the same pages. The engine's
 * thread. */
#pragma once

#include "engine/cycle/cycle.h"
#include "engine/cycle/steer.h"
#include "engine/settings.h"

struct engine;
struct jobs;

enum {
    JOB_LANES = 32,  /* jobs that run at the same time, at most */
    JOB_STATES = 16, /* resident states, at most */
};

enum job_state { JOB_WAITS, JOB_LIVE, JOB_DONE };

struct job {
    uint64_t number; /* among all requests: a cancel ends those up to a number */
    struct ids prompt;
    struct sampling how;
    struct penalties penalties;
    uint64_t seed;
    int most; /* tokens of the reply; 0: the prompt alone; INT_MAX: what the context holds */
    bool run_on; /* stop tokens do not end the reply */
    struct prompt_scores *scores; /* written while the prompt is computed, all of it; or NULL */
    /* kept by the core */
    enum job_state state;
    struct steer steer; /* while it runs */
    struct grammar *grammar; /* owned: what the reply must be, until it has a guide; NULL: any
                                text */
    struct guide *guide;     /* owned */
    struct ids tok; /* the prompt and what was generated, while there is no lane, and in the end */
    uint64_t draws;
    bool begun;     /* its prompt was computed */
    atomic_bool cancelled; /* this job alone; any thread */
    uint64_t ns_begin, ns_begun; /* when it was first admitted, when its prompt was computed */
    int n_reused;   /* prompt tokens whose KV was held when the job was first admitted */
    int n_computed; /* prompt tokens run for it alone; again after its pages were given back */
    int n_steps, n_spec, n_drafted, n_accepted; /* cycles, those that drafted, ... */
    enum stop_reason reason;
    bool refused; /* the prompt could not be computed: `why` */
    struct buf why;
};

/* The owner of the jobs: batch.c or clients.c. */
struct job_owner {
    /* Tokens were appended: by the prompt's pass or by a cycle (lane->rec.kind). Not called for
     * tokens that are computed again. */
    void (*stepped)(struct jobs *js, struct job *j, const struct lane *l);
    /* The prompt is computed, and no token follows. NULL: all jobs have a reply. */
    void (*prompted)(struct jobs *js, struct job *j);
    /* The job is done, was stopped or refused; j->tok has its tokens. */
    void (*ended)(struct jobs *js, struct job *j);
};

struct jobs {
    struct engine *g;
    struct runtime *r;
    const struct settings *set; /* drafting and chunks */
    const struct job_owner *owner;
    int lanes;
    /* true: one state, made by the owner, begins every job; it is dropped last and counts as in
     * use. false: states are made at the ends of prompts and replies, and the oldest are dropped
     * first. */
    bool head;
    struct job **job; /* (n) in their order, those that wait and run among them; the owner's */
    int n;
    struct lane state[JOB_STATES]; /* oldest first */
    int n_state;
    struct lane lane[JOB_LANES];
    struct job *of[JOB_LANES]; /* job of each lane; oldest first */
    int n_live;
    bool joins;   /* the newest lane's prompt is computed, a chunk a round, up to token join_upto */
    int join_upto;
    bool crowded; /* a lane found too few pages: no job is admitted until one has ended */
    struct job *failed; /* the job in whose prompt the last round failed; NULL: it failed in a
                           cycle */
    int n_computed; /* prompt tokens */
    struct kv_order *order; /* of the free pages before; NULL: closed */
};

/* From here on until jobs_close() the pools hold the jobs' pages, views see them, and no other part
 * of the engine may take or give back pages. */
void jobs_open(struct jobs *js);
/* All lanes have ended. Gives the states back. False: the pools are not as before (*e). */
bool jobs_close(struct jobs *js, struct err *e);
static inline bool jobs_opened(const struct jobs *js)
{
    return js->order != NULL;
}

/* Whether a cancel has reached the job. */
bool job_stopped(const struct jobs *js, const struct job *j);
/* Whether the runtime drafts for jobs. */
bool jobs_draft(const struct jobs *js);
/* Ends a job whose prompt cannot be computed; owner->ended() is not called. */
void job_refuse(struct job *j, enum stop_reason reason, const char *why);
/* Refuses a job whose prompt does not fit the context; owner->ended() is not called. */
bool job_fits_context(const struct jobs *js, struct job *j);
/* Runs the prompt of a lane up to `upto`. False: *e, ERR_NEGATIVE also where the job was
 * stopped. */
bool jobs_extend(struct jobs *js, struct lane *lane, const struct job *j, int upto, bool last,
                 struct err *e);
/* One round: admits the waiting jobs that have room, if `admit`, runs one cycle of every lane, and
 * ends the jobs that are done. Jobs that were stopped stay as they are. False: a rule is violated
 * or the device failed (*e); the lanes are as before. */
bool jobs_round(struct jobs *js, bool admit, struct err *e);
/* The job's tokens, whether it runs or waits. */
const struct ids *job_tokens(const struct jobs *js, const struct job *j);
static inline int job_generated(const struct job *j, const struct ids *tok)
{
    return tok->n - j->prompt.n;
}
/* Ends a job that runs or waits, after its last step. */
void jobs_end(struct jobs *js, struct job *j, enum stop_reason why);
/* Gives the oldest state back. False: there is none. */
bool jobs_give_state(struct jobs *js);
void job_free(struct job *j); /* what it owns */

/* Sequences that hold pages: of lanes and a head, then of other states, from index *states on.
 * Returns how many. Under the lock, or the engine's thread. */
int jobs_seqs(const struct jobs *js, const struct seq **out, int *states);
