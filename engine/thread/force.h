/* force.h - tokens that the user commits by hand: /force, and a replay of a log that says so.
 *
 * A forced token is a given token (engine/cycle/lane.h) of one step: the step emits it first. The
 * user's token waits in the debugger until a step of the running or the next turn emits something;
 * OP_FORCE then says which step that was, before the step itself is posted. The tokens of the turn
 * are kept, so that a step that runs again after going back is forced again. The engine's thread.
 */
#pragma once

#include "engine/backend.h"

struct engine;

struct forcing {
    struct forced_token *at; /* (n) of the turn; owned */
    int n;
    int32_t id;  /* the token given to the lane, if `on` */
    bool on;
    bool by_user;
    bool silent; /* the step was posted before: the user's token waits for a new one */
};

/* The turn begins with the tokens that its request forces. */
void force_turn_begins(struct engine *engine, const struct request *rq);
void force_turn_ended(struct engine *engine);
/* At most how many tokens the next step may emit, so that a token that is forced after so many of
 * the reply comes first in a step. generated: tokens of the reply so far. */
int force_room(const struct engine *engine, int generated);
/* Before a step, and again before its accept phase. Tokens that the request gives come first. */
void force_step_begins(struct engine *engine, int generated);
void force_step_ended(struct engine *engine, bool ok); /* before it is posted */
