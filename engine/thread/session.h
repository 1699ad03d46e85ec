/* session.h - one conversation on the runtime: messages, the live lane, and points to go back to.
 *
 * For every turn the whole conversation is rendered to tokens; session_prepare() finds how much of
 * it the cache already holds. A cached state can be continued only where it ends, because sliding
 * layers keep no more than their window: so reuse points are the live lane's end and checkpoints
 * (forks that nobody extends) at turn ends and at the last chunk border of long prompts. Engine
 * thread.
 */
#pragma once

#include "engine/cycle/cycle.h"
#include "models/chat/chat.h"

enum { MAX_POINTS = 16 };

/* A checkpoint: the lane as it was when the conversation had n_msg messages. */
struct point {
    int n_msg;
    bool turn_end;
    struct lane lane;
};

/* What the latest turn computed: explains why the next prompt reuses no more of it
 * (engine/past/reuse.h). */
struct held {
    struct ids tok;
    int cells;    /* tokens with cells; 0: none were computed since the pools were emptied */
    int swa_lo;   /* first of them whose window pages were held */
    char *system; /* the system prompt then; NULL with cells 0 */
    /* the first change of the conversation since */
    enum reuse_change change; /* CHANGE_NONE: none */
    int turn, msg;            /* its turn; messages before it */
    struct given_up { /* checkpoints dropped because pages or entries of point[] were needed, oldest
                         first */
        int cells, n_msg;
    } gone[MAX_POINTS];
    int n_gone;
};

struct session {
    struct runtime *runtime;
    const struct chat *chat;
    const struct settings *set; /* of the engine; only its thread writes them */
    /* the conversation: no view reads these */
    struct message *msg; /* without the system prompt */
    int *turn_of; /* (n_msg) number of the turn each message belongs to */
    int n_msg;
    char *system; /* never NULL */
    int turn;     /* number of the last turn begun */
    uint64_t draws;
    /* its states: id, pages and tokens change under pass_lock(), because views read them */
    char id[SESSION_ID];
    struct lane lane;
    int expected; /* tokens of a conversation that the lane does not hold; 0: it holds it, or they
                     were not counted */
    struct point point[MAX_POINTS]; /* oldest first */
    int n_point;
    struct lane idle[MAX_POINTS]; /* fork parents, oldest first; kept while there is room */
    int n_idle;
    struct held held; /* the engine's thread only */
    uint64_t given_up; /* checkpoints and idle states dropped while a turn ran */
};

void session_init(struct session *s, struct runtime *runtime, const struct chat *chat,
                  const struct settings *set);
void session_free(struct session *s);
/* Empties the conversation and all pools; the system prompt stays. */
void session_reset(struct session *s, const char *id);
void session_add(struct session *s, enum role role, int turn, const char *text, const int32_t *ids,
                 int n);
void session_set_system(struct session *s, const char *text);
/* Replaces the conversation: session_take_messages() empties it and keeps the resident states,
 * session_add() fills it, and session_fit_states() frees the states that lie after the common
 * beginning of the two conversations, and `old`. If the conversations differ, the live lane goes
 * back to the newest turn end that is still held. */
struct replaced {
    struct message *msg;
    int n_msg;
};
struct replaced session_take_messages(struct session *s);
void session_fit_states(struct session *s, struct replaced *old);
/* Removes the last n messages and restores the state before them. why: CHANGE_UNDO, ... */
void session_rewind(struct session *s, int n, enum reuse_change why);
/* Removes the last message and leaves the resident states as they are: session_prepare() of the
 * next turn finds what it can reuse. */
void session_unsay(struct session *s);
/* The conversation goes on under a new id; the parent's state stays resident, pages shared. */
void session_fork(struct session *s, const char *child);

/* The plan for fitting one more message into the context. */
struct room {
    struct ids prompt; /* the conversation and the message, without `turns` */
    struct ids turns;  /* numbers of the turns that have to leave the context, ascending */
    int n_all;         /* tokens of the prompt if no turn left */
};
void room_free(struct room *r);
/* Renders the conversation with `text`. If fewer tokens than the reserve for the reply would then
 * be free, chooses the turns that have to leave (engine/past/room.h). Changes nothing. False: the
 * message does not fit even alone with the system prompt. */
bool session_room(const struct session *s, const char *text, struct room *out, struct err *e);
/* Removes whole turns from the conversation; returns how many of them it held. The live lane goes
 * back to the newest resident turn end before them. left: tokens of the others, for views. */
int session_forget(struct session *s, const struct ids *turns, int left);
bool session_has_turn(const struct session *s, int turn);
/* As session_render(), without these turns. */
bool session_render_without(const struct session *s, const struct ids *turns, const char *text,
                            struct ids *out, struct err *e);
/* The conversation without its last message. */
bool session_render_again(const struct session *s, struct ids *out, struct err *e);
/* Prepares the live lane for a prompt: lane.tok is the prompt, of which lane.seq.committed tokens
 * are reused. Returns why no more are. */
struct reuse session_prepare(struct session *s, const struct ids *prompt, bool draft);
/* Call it at the end of a turn, before its messages change: records in `held` what the turn
 * computed. */
void session_hold(struct session *s);
/* The resident state that holds the longest prefix of the prompt (at most all but its last token)
 * and can be continued (with draft: drafting, too); NULL: none. */
struct lane *session_resident(struct session *s, const struct ids *prompt, bool draft);
/* The conversation as tokens, with `text` (or NULL) as one more question. */
bool session_render(const struct session *s, const char *text, struct ids *out, struct err *e);
/* Makes a checkpoint of the live lane; drops the oldest one when there are too many. */
void session_mark(struct session *s, bool turn_end);
/* Call it after the pools were restored (engine/cycle/keep.h) to a time with n checkpoints: forgets
 * the checkpoints made since, which hold no pages any more. */
void session_cut_points(struct session *s, int n);
/* Frees the least valuable resident state (oldest point, then an idle fork). False: nothing
 * left. */
bool session_reclaim(struct session *s);
/* Every sequence that holds pages, for kv_check(); at most max. */
int session_seqs(const struct session *s, const struct seq **out, int max);
