/* kept.h - keeps a session with a server in memory: its steps, its replies' counts and times, the
 * best tokens of each step, and the texts of token ids that the server sent.
 *
 * All of it comes from the events that the session posts, so the log has all of it, too. Steps are
 * kept in a ring (engine/past/step_ring.h); of the rest the latest are kept.
 * Threads: any; struct remote_kept locks itself.
 */
#pragma once

#include <pthread.h>

#include "engine/backend.h"
#include "engine/past/step_ring.h"

enum { TOPS_KEPT = 4096, TEXT_IDS = 1 << 20 };

struct remote_kept {
    pthread_mutex_t mu;
    char session[SESSION_ID];
    struct step_ring ring;
    struct kept_tops {
        int turn, step;
        struct tops *tops; /* owned */
    } *tops;         /* (TOPS_KEPT) a ring of n_tops ever */
    uint64_t n_tops;
    struct served_turn *turn; /* (SERVED_KEPT) a ring of n_turn ever */
    uint64_t n_turn;
    struct kept_text {
        char *p; /* owned, never moved; NULL: the server has not sent it */
        size_t n;
    } *text; /* (n_text) by id */
    int n_text;
    double (*length)(const struct served *s); /* see struct served_turn; NULL: there is none */
};

void kept_open(struct remote_kept *kept);
void kept_close(struct remote_kept *kept);
/* Records the facts of an event, which it does not change. */
void kept_event(struct remote_kept *kept, const struct event *ev);

/* Copies for views. */
void kept_range(struct remote_kept *kept, struct step_range *out);
int kept_steps(struct remote_kept *kept, struct step_info *out, int max);
bool kept_step(struct remote_kept *kept, int turn, int step, struct step_view *out);
int kept_turns(struct remote_kept *kept, struct served_turn *out, int max);
struct tops *kept_tops(struct remote_kept *kept, int turn, int step);
/* The text of an id, valid as long as the kept texts; "" and *n == 0 if it is not known. */
const char *kept_token(struct remote_kept *kept, int32_t id, size_t *n);
