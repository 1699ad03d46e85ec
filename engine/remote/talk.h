/* talk.h - the common part of backends that do not compute replies themselves: it takes requests,
 * keeps the messages, and posts events; hooks produce the replies. The remote backend (remote.c)
 * and the tests' mock use it.
 *
 * Threads: one thread takes the requests and calls the hooks. The members after `mu` in struct talk
 * are shared with the caller's thread under that lock; the others belong to the talk's thread while
 * it runs.
 */
#pragma once

#include <pthread.h>

#include "engine/backend.h"

struct talk;

/* A reply, filled in by hooks->answer(). */
struct talk_reply {
    struct buf text;  /* of the final channel */
    struct ids ids;   /* of the whole reply; n 0: not known */
    struct ids prompt; /* of the prompt, if they came after talk_turn_begins() or differ from those
                          given there */
    int n_tokens;     /* generated tokens, as far as known; 0: none */
    int n_drafted, n_accepted, n_steps;
    uint64_t us_prefill, us_decode;
    enum stop_reason why;
    struct served *served; /* owned; NULL: computed here */
};

struct talk_hooks {
    /* Why a request cannot be carried out, as one line; NULL: it can. The caller's thread. */
    const char *(*refuses)(struct talk *t, const struct request *rq);
    /* Answers the last pair of talk->said. Before the first other event it posts EV_TURN_BEGIN with
     * talk_turn_begins(). Looks at t->stop at least every 100 ms. */
    void (*answer)(struct talk *t, bool regen, struct talk_reply *out);
    /* Another request: RQ_SEVERAL, RQ_BATCH, RQ_CALIBRATE. NULL: refused anyway. */
    void (*other)(struct talk *t, const struct request *rq);
    /* Called repeatedly while there is no request: waits until it has something to do, or for
     * wake(), which any thread may call. NULL: the talk's thread just waits. */
    void (*idle)(struct talk *t);
    void (*wake)(struct talk *t); /* ends idle(); NULL without idle() */
    /* Called on the talk's thread before an event is posted; or NULL. */
    void (*posted)(struct talk *t, const struct event *ev);
    void (*closed)(struct talk *t); /* the thread has ended: frees what the backend holds */
    const char *(*token)(struct talk *t, int32_t id, size_t *n); /* NULL: no texts are known */
};

struct talk {
    struct backend base; /* first */
    const struct talk_hooks *hooks;
    struct evq *log;
    pthread_t thread;
    struct stop stop;

    struct past_turn *said; /* (n_said) the context; a reply is "" while it is awaited */
    int n_said;
    char *system; /* NULL: none */
    int prompt_tokens;   /* of the last prompt, as the server counted; 0: not known */
    size_t prompt_bytes; /* of its texts */
    uint64_t seq;
    bool lost; /* the server cannot be used any more */

    pthread_mutex_t mu;
    pthread_cond_t filled;
    struct request waiting[64]; /* (n_waiting) oldest first */
    int n_waiting;
    bool closing, working;
    bool accepts; /* a reply reported drafts: VIEW_ACCEPT exists from now on */
    struct chat_view view;
};

/* Starts the thread. All of *talk is zero except base, info, hooks and view.settings; it is
 * allocated by malloc(), perhaps as the first member of a larger struct. backend_close() frees it
 * after hooks->closed(). False and *e (ERR_MODEL): no thread runs, and the caller frees *talk. */
bool talk_open(struct talk *talk, struct evq *log, struct err *e);

/* ---- for the hooks, on the talk's thread ----------------------------------------------------- */

struct event talk_event(struct talk *talk, enum event_kind kind);
void talk_post(struct talk *talk, struct event *ev); /* to the log and the screen; takes its
                                                        parts */
void talk_notice(struct talk *talk, const char *text);
/* Posts EV_FAULT and returns the stop reason that the turn ends with. */
enum stop_reason talk_fault(struct talk *talk, const char *text, bool lost);
/* prompt: its ids, taken over; n_prompt: tokens, 0: not known. */
void talk_turn_begins(struct talk *talk, bool regen, struct ids *prompt, int n_prompt);
/* Text of the reply, shown and, of channel 0, added to the reply. */
void talk_text(struct talk *talk, struct talk_reply *reply, int channel, const char *text,
               size_t n);
/* The server has counted the tokens of the context, whose last message is not answered yet. */
void talk_counted(struct talk *talk, int tokens);
/* Whether the context, with a last message that is not answered yet and would fit alone, is
 * estimated to fill three quarters of what the server holds. */
bool talk_nearly_full(const struct talk *talk);
int talk_words(const struct talk *talk); /* words in the context: used if a server reports no
                                            tokens */
