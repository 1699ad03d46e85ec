/* plans.c - keeps the plans of one step of a turn, named before it runs, as JSON.
 *
 * Otherwise the next pass of the same mode overwrites a plan, and the commit changes its page
 * tables. The step runs as a stepped cycle, never fused, so that pass_prepare() builds each of its
 * plans. */
#include "engine/thread/internal.h"
#include "kernels/json.h"

/* ---- the engine's thread ---- */

void plans_step_begins(struct engine *engine)
{
    struct plan_keeper *k = &engine->plans;
    pthread_mutex_lock(&k->mu);
    k->running = k->turn == engine->shared.turn && k->step == engine->shared.step + 1 &&
                 k->turn > 0;
    if (k->running) {
        k->done = false;
        buf_clear(&k->json);
        jput_open(&k->json, '[');
    }
    pthread_mutex_unlock(&k->mu);
    engine->own.runtime.pass.trace = k->running ? &k->json : NULL;
}

void plans_step_ended(struct engine *engine)
{
    struct plan_keeper *k = &engine->plans;
    engine->own.runtime.pass.trace = NULL;
    LOCKED(&k->mu);
    if (k->running) {
        jput_close(&k->json, ']');
        k->done = true;
        k->running = false;
    }
}

/* ---- the caller's thread ---- */

void local_keep_plans(struct backend *b, int turn, int step)
{
    struct plan_keeper *k = &engine_of(b)->plans;
    LOCKED(&k->mu);
    k->turn = turn;
    k->step = step;
    k->done = false;
}

bool local_kept_plans(struct backend *b, struct buf *out)
{
    struct plan_keeper *k = &engine_of(b)->plans;
    LOCKED(&k->mu);
    bool done = k->done;
    if (done)
        buf_add(out, k->json.p, k->json.n);
    return done;
}
