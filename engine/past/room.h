/* room.h - which turns leave a full context. Pure functions.
 *
 * Turns that leave change the beginning of the prompt, so all that comes after them is computed
 * again. If each message removed only what it needs, each message to a full context would therefore
 * wait for a whole prompt. So a quarter of the room that is not taken by long texts, the system
 * prompt and the message becomes free at once: the context then grows by a quarter before it is
 * computed again, about three tokens for each new one. */
#pragma once

#include "kernels/base.h"

struct room_turns {
    const int *tokens; /* (n) of each turn, message and reply, the oldest first */
    bool *gone;        /* (n) the turns that leave */
    int n;
    int context; /* tokens that it holds */
};

/* Tokens kept free for the reply if possible; the number of free tokens below which a long text
 * leaves the context. */
int room_reserve(int context);
int room_least(int context);

/* Marks the oldest turns, so that of a prompt of `all` tokens the reserve and a quarter of the
 * remaining room become free. A turn of more than a quarter of the context (a long text that later
 * questions are about) leaves only if fewer than room_least() tokens were free otherwise, the
 * newest turn only for the reserve. */
void room_choose(const struct room_turns *t, int all);
/* Whether a turn that is not a long text is left. */
bool room_has_short(const struct room_turns *t);
/* Marks one more turn: the oldest that is no long text, else the oldest. False: none is left. */
bool room_leave_one(const struct room_turns *t);

/* "turn 3", "turns 1-3, 5": of numbers that ascend. */
void room_print_turns(const struct ids *turns, struct buf *out);
