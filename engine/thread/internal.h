/* internal.h - the engine's own state: which thread touches which part of it, and under which lock.
 *
 * Two threads meet here: the engine's thread (worker.c, turn.c, post.c, batch.c, clients.c,
 * calibrate.c, everything below thread/) and the caller's thread (opening and closing in open.c,
 * requests in worker.c, views in view.c). Each field is in one of four places:
 *
 *   struct engine         written by open.c while the thread does not run: before it starts and
 *                         after it has ended; in between both threads read it
 *   struct engine_own     read and written by the engine's thread only, without a lock; view.c
 *                         never names it (tests/e2e/test_layers.sh)
 *   struct engine_shared  written by the engine's thread only, and only under `mu`: therefore the
 *                         engine's thread reads it without `mu`, and other threads under `mu`
 *   struct inbox          requests: read and written by both threads under `inbox.mu`
 *
 * `stop` is atomic but for `stop.running`, which belongs to the engine's thread. Queues of
 * events lock themselves (event.h). */
#pragma once

#include <pthread.h>

#include "engine/past/page_history.h"
#include "engine/run/probe_pass.h"
#include "engine/thread/back.h"
#include "engine/thread/contexts.h"
#include "engine/thread/debug.h"
#include "engine/thread/force.h"
#include "engine/thread/jobs.h"
#include "engine/thread/shapes.h"
#include "engine/thread/what_if.h"
#include "engine/thread/load.h"
#include "engine/thread/session.h"
#include "engine/past/step_ring.h"

enum {
    MAX_REQUESTS = 64,
    MAX_JOBS = 256, /* of clients that have not ended */
    MAX_SEQS = 2 * MAX_POINTS + 1 + JOB_LANES + JOB_STATES + 2 /* of the session, jobs, a probe */
};

struct client; /* clients.c */
struct clients;

/* The parts of runtime and ses to which struct engine_shared points are changed only between
 * pass_lock() and pass_unlock(), which lock and unlock engine_shared.mu. */
struct engine_own {
    struct runtime runtime;
    struct session ses;
    uint64_t seq;           /* events posted */
    bool lost;              /* the device has failed and cannot be used any more */
    const struct store *mute; /* of the draft whose weights were looked at, see turn.c */
    int window_released;    /* pages that left the window in the last step */
    struct forcing force;   /* of the turn */
    struct shapes shapes;
    uint64_t undo_given_up; /* ses.given_up before the step */
    int first;              /* tokens of the turn's prompt */
    struct steer steer;     /* of the turn */
    struct guide *guide;    /* of the turn; NULL: none */
    char *format;           /* what replies must be (RQ_FORMAT); NULL: any text */
    struct token_order *order; /* for guides; NULL until it is needed */
    uint64_t paused_ns;     /* by the debugger, in all */
    struct probe_ask armed;   /* the step that will run with taps; 0.0: none */
    struct probe_pass *probing; /* while it runs */
    bool probed; /* a past step was computed again since this was set to false */
    struct clients *clients; /* jobs of clients that run, wait or are resident; NULL: none yet */
    struct probe *failed_probe; /* of the armed step: its pass ran, but the step failed; or NULL */
};

/* Counters of the turn that runs or ran last. */
struct turn_count {
    struct draft_sums drafts;
    uint64_t generated, decode_ns;
};

/* The state that views copy. The engine's thread holds `mu` while it changes host-side state, never
 * while the device computes, so a view waits for microseconds. */
struct engine_shared {
    pthread_mutex_t mu;
    const struct pass
        *pass; /* in own.runtime. Shared are: plan, last, check's counters, all of *kv */
    const struct session *ses; /* own.ses. Shared are: id, and of its states seq and tok */
    const struct bugs *bugs;   /* own.runtime.bugs */
    const struct jobs *jobs;   /* that run or are resident, or NULL. Shared is: their sequences */
    const struct seq *scratch; /* of a probe that runs, or NULL */
    struct settings set;
    int turn, step;
    struct step_ring ring;      /* the session's latest steps */
    struct page_tape pages;     /* their page tables; the setting `ring` bounds it */
    struct contexts contexts;   /* of their turns, to compute steps of theirs again */
    struct chat_view stats;     /* counters of the session only; the other fields stay 0 */
    struct turn_count count;
    struct violated violation; /* the latest of this process */
};

/* The plans of the one step whose plans a caller asked for (plans.c). */
struct plan_keeper {
    pthread_mutex_t mu; /* guards all members; while `running`, the engine's thread writes json
                           without it */
    int turn, step;     /* 0.0: none */
    bool running, done; /* running: the step is being computed; done: json holds its plans */
    struct buf json;
};

struct inbox {
    pthread_mutex_t mu;
    pthread_cond_t filled;
    struct request rq[MAX_REQUESTS]; /* oldest first */
    int n;
    struct client *client[MAX_JOBS]; /* jobs that have not ended; the engine's thread frees them */
    int n_client;
    int n_taken; /* the engine's thread has taken over client[0 .. n_taken) */
    bool closing, working; /* working: a request has been taken out and is not done */
};

struct engine {
    struct backend base; /* first: what backend.h calls the engine */
    struct loaded loaded;
    char *strings[4]; /* owned strings of base.info */
    struct evq *log;
    bool attended; /* as opened */
    int lanes;     /* replies of RQ_BATCH at the same time, as opened */
    pthread_t thread;
    bool running; /* there is a thread to join */

    struct stop stop;
    struct inbox inbox;
    struct debugger debug; /* locks itself */
    struct plan_keeper plans; /* locks itself */
    struct engine_own own;
    struct engine_shared shared;
};

static inline struct engine *engine_of(struct backend *b)
{
    return (struct engine *)b;
}

static inline void shared_lock(struct engine_shared *s)
{
    pthread_mutex_lock(&s->mu);
}

static inline void shared_unlock(struct engine_shared *s)
{
    pthread_mutex_unlock(&s->mu);
}

/* view.c; the caller's thread. The chat's view, and all groups of views. */
void local_chat(struct backend *b, struct chat_view *v);
void local_views(struct backend *b);

/* worker.c. The engine's thread; and what the backend does with requests, on the caller's. */
void *engine_thread(void *engine);
/* Carries out the probes that wait while a turn is paused. They use the buffer of the logits, and
 * say so in own.probed. The engine's thread. */
void engine_work_in_pause(struct engine *engine);
/* Forgets the steps and the counters of the session. The engine's thread, or before it starts; the
 * same holds for the next one. */
void engine_start_stats(struct engine *engine);
/* Replaces automatic settings by the values that the engine chose, so that the log holds what a
 * replay needs. */
void engine_resolve_settings(struct engine *engine);
bool local_submit(struct backend *b, struct request *rq, struct err *e);
void local_cancel(struct backend *b);
bool local_busy(struct backend *b);

/* post.c; the engine's thread. An event of the present session, turn and step; posting takes
 * ownership of its parts. */
struct event engine_event(struct engine *engine, enum event_kind kind);
void engine_post(struct engine *engine, struct event *ev);
void engine_notice(struct engine *engine, const char *text);
/* Posts EV_FAULT for *e at a step of the present turn (0: outside its steps), and finds out whether
 * the device is lost. A violated rule becomes the engine's latest violation. */
void engine_fault(struct engine *engine, int step, const struct err *e);
/* Posts why a request that is no turn has failed: a notice, or EV_FAULT for a rule or a lost
 * device. */
void engine_fail(struct engine *engine, const struct err *e);
/* Posts the text that n more tokens of a reply complete, as EV_TEXT of the turn (of NULL) or as
 * EV_BATCH_TEXT of a reply, one event for each run of one channel; the final channel's text is also
 * appended to *text. */
void engine_post_tokens(struct engine *engine, struct chat_reader *reader, const int32_t *tok,
                        int n, struct buf *text, const struct batch_rec *of);
/* Posts the text that the reader still holds back, e.g. an incomplete character; ends the
 * reader. */
void engine_post_held(struct engine *engine, struct chat_reader *reader, struct buf *text,
                      const struct batch_rec *of);
void engine_post_op(struct engine *engine, enum op_kind op, const char *text, int turn);
/* Posts an operation that names turns. */
void engine_post_turns(struct engine *engine, enum op_kind op, const struct ids *turns, int turn);

/* turn.c; the engine's thread. */
/* Answers a message (RQ_SAY), or the last one again (RQ_REGEN). */
void engine_say(struct engine *engine, const struct request *rq);
void engine_regen(struct engine *engine, const struct request *rq);
/* Posts which turns leave the context and how many tokens that frees, then removes them. */
void engine_forget(struct engine *engine, const struct ids *turns);

/* probe.c; the engine's thread. engine_probe() serves RQ_PROBE. The others are called around each
 * step of a turn: if it is the armed step, begin sets the net's taps and end posts them. */
void engine_probe(struct engine *engine, const struct probe_ask *ask);
void probe_step_begins(struct engine *engine);
void probe_step_ended(struct engine *engine, bool ok);
void probe_turn_ended(struct engine *engine);
/* The caller's thread: the group `probe` of the local backend. */
extern const struct probe_ops local_probe;

/* undo.c; the engine's thread. Call undo_begin() before each step. undo_step() restores the page
 * tables and the order of free pages after a step that was stopped. undo_possible(): the step has
 * dropped no checkpoint; a step that has cannot be undone, so it is not stopped. undo_wanted(): the
 * user stops the turn, and the step can be undone. */
void undo_begin(struct engine *engine);
bool undo_possible(const struct engine *engine);
bool undo_wanted(const struct engine *engine);
void undo_step(struct engine *engine);

/* plans.c; the engine's thread, around each step of a turn. */
void plans_step_begins(struct engine *engine);
void plans_step_ended(struct engine *engine);
/* The caller's thread: of the group `plan` of the local backend. */
void local_keep_plans(struct backend *b, int turn, int step);
bool local_kept_plans(struct backend *b, struct buf *out);

/* step_pages.c; the engine's thread. The page events since the last step, and the lengths now. */
struct step_pages {
    struct page_event *ev; /* (n) owned */
    int n;
    struct context_lengths lengths;
    struct buf change; /* owned; the events, packed */
    struct buf whole;  /* owned; the whole state, packed, if the tape needs it */
};
void engine_take_pages(struct engine *engine, struct step_pages *out);
/* The next step's page events then describe the whole present state, not a change: at the beginning
 * of a session, and after events were left out. */
void engine_log_pages(struct engine *engine);
/* Drops the page events since the last step: they were reported. Views read them. */
void engine_forget_pages(struct engine *engine);

/* force.c; the caller's thread: debug_ops.force. */
bool local_force(struct backend *b, const char *text, int32_t *id, struct err *e);

/* constrain.c. Compiles a format for replies to the prompt (NULL: to see whether it is supported);
 * any thread. False: *e. */
bool constrain_compile(const struct loaded *loaded, const char *format, const struct ids *prompt,
                       struct grammar **out, struct err *e);
/* The guide of a grammar, which it takes over; NULL: there is none. The engine's thread. */
struct guide *constrain_guide(struct engine *engine, struct grammar *grammar);

/* batch.c; the engine's thread. RQ_BATCH and RQ_SEVERAL. */
void engine_batch(struct engine *engine, const struct request *rq);
void engine_several(struct engine *engine, const struct request *rq);

/* clients.c; the engine's thread. Runs jobs until none is left, or until a request waits and no job
 * runs. Before it returns for a request, it frees the jobs' resident states, so that the pools are
 * as before the first job; waiting jobs stay in the queue. */
void engine_jobs(struct engine *engine);
void engine_jobs_rest(struct engine *engine);
void engine_jobs_free(struct engine *engine); /* at the end of the thread */
/* The caller's thread: the group `jobs` of the local backend. */
extern const struct jobs_ops local_jobs;
/* jobs.c. Any thread, under the lock or the engine's: all sequences that hold pages. Returns how
 * many. */
int shared_seqs(const struct engine_shared *s, const struct seq *out[MAX_SEQS]);
/* The engine's thread, at check level strict: every pool and sequence, after each step. True at
 * other levels. */
bool engine_sweep(struct engine *engine, struct err *e);
