/* back.h - going back within the turn that runs, and forward again with the same bits.
 *
 * States of the turn are kept (engine/cycle/keep.h): where it begins, always; while the debugger is
 * in use also before the first cycle of the reply and every few steps, in bounded memory: when the
 * places are taken, every second one becomes free and the distance doubles. To go back to step N,
 * the newest kept state at or before N is restored and the steps up to N run again.
 *
 * The frontier is the newest step that was posted. Steps up to the frontier that run again are
 * silent: nothing of them is posted, logged or counted. Each one is compared with what the ring of
 * steps holds of its first run: page tables, draft, logits, tokens, draws. If one differs the turn
 * ends with a fault, so that going back never changes what was said. Past the frontier the turn
 * goes on as if it had never gone back. A cancel behind the frontier first runs the steps up to the
 * frontier, because the log has them.
 *
 * A kept state is valid while the session's other states are those of the time when it was kept
 * (session.h counts the ones that were given up; those that were added since are taken away again).
 * The engine's thread. */
#ifndef AERIE_BACK_H
#define AERIE_BACK_H

#include "engine/cycle/keep.h"

struct engine;

enum {
    BACK_STATES = 9,           /* kept at the same time, the turn's beginning among them */
    BACK_EVERY = 8,            /* steps between two of them, at first */
    BACK_BYTES = 192 << 20,    /* of all together; the turn's beginning does not count */
};

struct back_state {
    struct kept kept;
    int step;  /* after this one; 0: before the first */
    int chunk; /* of the prompt's passes */
    int n_point; /* checkpoints of the session */
    int window_released;
};

struct back {
    struct back_state at[BACK_STATES]; /* oldest first */
    int n, every;
    int frontier;      /* the newest step posted */
    int fault_step;    /* the step for which a fault was posted, 0: none */
    uint64_t given_up; /* the session's count when the states were kept */
    size_t bytes;
};

/* Where the turn begins, before its first step. */
void back_begin(struct engine *g, struct back *b, int chunk);
/* After each step and before the first cycle: keeps a state if one is due, and says to the debugger
 * how far back the turn can go. */
void back_step_done(struct engine *g, struct back *b, int chunk);
void back_end(struct engine *g, struct back *b); /* of the turn: frees all states */

/* Whether the steps that run next were posted already. */
bool back_silent(const struct engine *g, const struct back *b);
/* Takes a silent step in: the step's number and page events. False: it differs from its first run
 * (*e, ERR_INVARIANT). */
bool back_compare(struct engine *g, struct err *e);
/* Goes to the state that the debugger's user asked for, or to the nearest kept state before it: the
 * steps in between have to run. *chunk: as at that step. False: no state before it is kept any
 * more; a notice says so, and the turn stands where it stood. */
bool back_go(struct engine *g, struct back *b, int *chunk);

#endif
