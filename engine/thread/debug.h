/* debug.h - the debugger of the decode loop: pauses between steps or phases, and conditions.
 *
 * The engine's thread asks at every boundary of a turn whether to pause there. A pause holds that
 * thread alone: views are copies taken under the engine's lock, which a paused thread does not
 * hold, so everything can be looked at meanwhile. Nothing here changes what a step computes: with
 * phases run one by one (engine/cycle/cycle.h) a turn yields the bits of a turn that runs through.
 *
 * Boundaries of a step: before its first phase, after draft, verify, accept and commit (only while
 * single phases are asked for), and after the step. A prompt chunk is a step without phases.
 *
 * Threads: `mu` guards everything in struct debugger; both threads hold it for moments only. The
 * engine's thread waits on `go` while paused, and looks every 50 ms whether the turn is cancelled.
 */
#pragma once

#include <pthread.h>

#include "engine/backend.h"
#include "engine/cycle/cycle.h"
#include "engine/thread/breaks.h"

struct engine;

struct debugger {
    pthread_mutex_t mu;
    pthread_cond_t go;
    void (*waits)(struct engine *g); /* called by the engine's thread, every 50 ms while it is
                                        paused */
    enum run_until until;
    int left; /* steps still to run, with RUN_STEP */
    int target; /* with RUN_BACK: pause after this step */
    bool asked; /* the user asked to go back, and the engine's thread has not seen it yet */
    int turn, first, last; /* see struct debug_view; turn 0: none runs */
    int32_t forced; /* token that the next step emits, -1: none */
    struct breaks breaks;
    struct debug_view view; /* paused, and where; its breakpoints are filled in by the view */
    struct step_facts facts; /* while paused: of that step, for displays; it points to what the
                                engine's thread keeps until the pause ends */
};

void debug_open(struct debugger *debugger, void (*waits)(struct engine *engine));
void debug_close(struct debugger *debugger);

/* ---- the engine's thread --------------------------------------------------------------------- */

/* Whether the next step is to be run phase by phase. */
bool debug_by_phase(struct debugger *debugger);
/* Before the first step of a turn: pauses if stepping was asked for. */
void debug_turn_begins(struct engine *engine);
/* After a phase of a step that is not committed yet, or just is. False: the turn was cancelled. */
bool debug_phase_done(struct engine *engine, const struct cycle *c);
/* After a committed step: pauses if the steps asked for are done or a condition holds. */
void debug_step_done(struct engine *engine);
/* As above, after a step that a rule or the device stopped. Of its facts only fault, turn, step and
 * the pools are known. */
void debug_step_failed(struct engine *engine, int step);
void debug_turn_ended(struct engine *engine);

/* Whether states are to be kept for going back: there is a breakpoint, or the turn is stepped. */
bool debug_in_use(struct debugger *debugger);
/* Sets the range of steps to which the turn can go back. */
void debug_set_span(struct debugger *debugger, int turn, int first, int last);
/* Whether the turn has been asked to go back (debug_ops.back), and was not cancelled since. */
bool debug_back_asked(struct engine *engine);
/* The step after which to pause; from now on the turn is going back. */
int debug_take_target(struct debugger *debugger);
/* The turn has gone back to that step: pauses. */
void debug_arrived(struct engine *engine);

/* Whether the turn is paused in the middle of this step, after its verify phase; then *v says what
 * is known of the step. Any thread. */
bool debug_verified(struct debugger *debugger, int turn, int step, struct debug_view *v);

/* The forced token that the next step emits, -1: none; and sets it. Any thread. */
int32_t debug_forced(struct debugger *debugger);
void debug_force(struct debugger *debugger, int32_t id);
/* Whether the turn is paused between two steps, so that a step can be computed and dropped. */
bool debug_may_compare(struct debugger *debugger, struct err *e);
/* Whether a token may be forced now: no turn runs, or it is paused at its newest step. */
bool debug_may_force(struct debugger *debugger, struct err *e);

/* ---- debug_ops.c: the group `debug` of the local backend, for the caller's thread ------------ */

extern const struct debug_ops local_debug;
