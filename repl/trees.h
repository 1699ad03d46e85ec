/* trees.h - the draft trees of the live session's steps, so that /tree T.S draws each of them whatever
 * the log keeps. Packed: about 100 bytes a step with the default tree. Main thread only.
 */
#ifndef AERIE_TREES_H
#define AERIE_TREES_H

#include "engine/event.h"

enum { TREES_BYTES = 64 << 20 }; /* beyond that the older half is forgotten */

struct trees {
    struct tree_at {
        int turn, step;
        int32_t bonus;
        size_t at, n; /* bytes of `packed`; n == 0: the step did not draft */
    } *step;          /* in order */
    int n, cap;
    struct buf packed;
};

void trees_free(struct trees *t);
/* Takes EV_STEP, and EV_SESSION: another session begins with none, a fork keeps those up to its turn. */
void trees_event(struct trees *t, const struct event *ev);
/* The step's tree; t->n == 0 when it did not draft. False: it is not of the steps that came by. */
bool trees_find(const struct trees *t, int turn, int step, struct tree *out, int32_t *bonus);

#endif
