/* internal.h - the engine's own state, shared by worker.c and turn.c (its thread) and view.c
 * (copies of it).
 *
 * `mu` guards everything below "state"; the engine thread holds it only while host-side state
 * changes, never while the device computes.
 */
#ifndef AERIE_INTERNAL_H
#define AERIE_INTERNAL_H

#include <pthread.h>

#include "engine/run/device.h"
#include "engine/engine.h"
#include "engine/serve/session.h"
#include "engine/serve/step_ring.h"

enum { MAX_REQUESTS = 64 };

struct engine {
    /* constant while the thread runs */
    struct device dev;
    struct model model;
    struct draft draft;
    bool has_draft;
    struct tokenizer *tok;
    struct chat *chat;
    struct engine_info info;
    char *strings[6]; /* owned strings of info */
    struct evq *screen, *log;
    pthread_t thread;
    bool running;

    /* requests */
    pthread_mutex_t req_mu;
    pthread_cond_t req_cv;
    struct request req[MAX_REQUESTS];
    int n_req;
    bool closing, working;
    struct stop stop;

    /* state */
    pthread_mutex_t mu;
    struct rig rig;
    struct session ses;
    struct settings set;
    int turn, step;
    uint64_t seq, page_seq; /* events posted, page events reported */
    struct step_ring ring;  /* the session's latest steps */
    struct engine_view stats; /* counters only; the rest of it stays empty */
    struct violation violation; /* the latest of this process */
    uint64_t turn_cycles, turn_accepted, turn_new, turn_decode_ns;
    bool attended; /* as opened */
    bool lost; /* the device failed for good; the engine thread's */
};

/* turn.c: an event of the present session, turn and step; posting takes ownership of its parts. */
struct event engine_event(struct engine *g, enum event_kind kind);
void engine_post(struct engine *g, struct event *ev);
/* At check level strict: every pool and sequence, after each step. True at other levels. */
bool engine_sweep(struct engine *g, struct err *e);
void engine_post_text(struct engine *g, enum event_kind kind, const char *text);
/* Posts EV_FAULT for *e at a step of the present turn (0: outside its steps), and finds out whether
 * the device is lost. A violated rule becomes the engine's latest violation. */
void engine_fault(struct engine *g, int step, const struct err *e);
void engine_post_op(struct engine *g, enum op_kind op, const char *text, int turn);
/* Answers a message, or the last one again. stop_after: see struct request. */
void engine_say(struct engine *g, const char *text, bool make_room, int stop_after);
void engine_regen(struct engine *g, int stop_after);
/* Takes turns out of the context, after saying which, and how many tokens that gives. */
void engine_forget(struct engine *g, const char *turns);

#endif
