/* back.h - going back within the turn that runs, and forward again with the same bits.
 *
 * States of the turn are kept (engine/cycle/keep.h): where it begins, always; while the debugger is
 * in use also before the first cycle of the reply and every few steps, in bounded memory: when the
 * places are taken, every second one becomes free and the distance doubles. To go back to step N,
 * the newest kept state at or before N is restored and the steps up to N run again.
 *
 * The frontier is the newest step that was posted. Steps up to the frontier that run again are
 * silent: they are not posted, logged or counted. Each is compared with the record of its first run
 * in the ring of steps: page tables, draft, logits, tokens, draws. If one differs, the turn ends
 * with a fault, so that going back never changes tokens that were posted. Past the frontier the
 * turn goes on as if it had never gone back. A cancel before the frontier first runs the steps up
 * to the frontier, because the log has them.
 *
 * A kept state is valid while the session has the checkpoints and idle states that it had when the
 * state was kept: session.h counts those dropped since; those added since are removed when the
 * state is restored. The engine's thread. */
#pragma once

#include "engine/cycle/keep.h"

struct engine;

enum {
    BACK_STATES = 9,           /* kept at the same time, the turn's beginning among them */
    BACK_EVERY = 8,            /* steps between two of them, at first */
    BACK_BYTES = 192 << 20,    /* of all states together, without the turn's beginning */
};

struct back_state {
    struct kept kept;
    int step;  /* the state after this step; 0: before the first */
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
void back_begin(struct engine *engine, struct back *b, int chunk);
/* After each step and before the first cycle: keeps a state if one is due, and says to the debugger
 * how far back the turn can go. */
void back_step_done(struct engine *engine, struct back *b, int chunk);
void back_end(struct engine *engine, struct back *b); /* of the turn: frees all states */

/* Whether the steps that run next were posted already. */
bool back_silent(const struct engine *engine, const struct back *b);
/* After a silent step: counts it, drops its page events, and compares it with its first run. False
 * and *e (ERR_INVARIANT): it differs. */
bool back_compare(struct engine *engine, struct err *e);
/* Restores the state at the step that the debugger's user asked for, or the nearest kept state
 * before it; the steps in between then have to run. *chunk: the chunk size at that step. False: no
 * state before it is kept any more; a notice says so, and nothing changes. */
bool back_go(struct engine *engine, struct back *b, int *chunk);
