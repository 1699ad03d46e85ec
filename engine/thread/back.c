/* back.c - see back.h. */

#include "engine/thread/internal.h"

/* ---- keeping --------------------------------------------------------------------------------- */

static void drop_state(struct back *b, int i)
{
    if (i)
        b->bytes -= b->at[i].kept.bytes;
    keep_free(&b->at[i].kept);
    CUT(b->at, b->n, i);
}

/* Frees places: drops every second state except the first two. */
static void thin_out(struct back *b)
{
    for (int i = 2; i < b->n; i++)
        drop_state(b, i);
    b->every *= 2;
}

static void keep_one(struct engine *engine, struct back *b, int chunk)
{
    if (b->n == BACK_STATES || b->bytes > BACK_BYTES)
        thin_out(b);
    struct back_state *s = &b->at[b->n++];
    *s = (struct back_state){.step = engine->shared.step, .chunk = chunk,
                             .n_point = engine->own.ses.n_point,
                             .window_released = engine->own.window_released};
    keep_state(&s->kept, &engine->own.runtime, &engine->own.ses.lane);
    if (b->n > 1)
        b->bytes += s->kept.bytes;
}

/* Drops the states that were kept before the session dropped a checkpoint: they may refer to pages
 * of it that are free now. */
static void drop_invalid(struct engine *engine, struct back *b)
{
    if (b->given_up == engine->own.ses.given_up)
        return;
    b->given_up = engine->own.ses.given_up;
    while (b->n)
        drop_state(b, 0);
    b->bytes = 0;
}

void back_begin(struct engine *engine, struct back *b, int chunk)
{
    *b = (struct back){.every = BACK_EVERY, .given_up = engine->own.ses.given_up};
    keep_one(engine, b, chunk);
    debug_set_span(&engine->debug, engine->shared.turn, 0, 0);
}

/* The state before the first cycle is always kept, so that the prompt need not run again. */
static bool due(struct engine *engine, const struct back *b)
{
    const struct lane *lane = &engine->own.ses.lane;
    int last = b->n ? b->at[b->n - 1].step : -1;
    if (!debug_in_use(&engine->debug) || engine->shared.step <= last)
        return false;
    return b->n == 0 || (lane->rec.kind == STEP_PREFILL && lane->n_new > 0) ||
           engine->shared.step >= last + b->every;
}

void back_step_done(struct engine *engine, struct back *b, int chunk)
{
    drop_invalid(engine, b);
    if (due(engine, b))
        keep_one(engine, b, chunk);
    if (engine->shared.step > b->frontier)
        b->frontier = engine->shared.step;
    debug_set_span(&engine->debug, engine->shared.turn, b->n ? b->at[0].step
                   : engine->shared.step + 1, b->frontier);
}

void back_end(struct engine *engine, struct back *b)
{
    while (b->n)
        drop_state(b, b->n - 1);
    debug_set_span(&engine->debug, 0, 0, 0);
}

/* ---- silent steps ---------------------------------------------------------------------------- */

bool back_silent(const struct engine *engine, const struct back *b)
{
    return engine->shared.step < b->frontier;
}

static bool differs(struct engine *engine, const char *what, uint64_t first, uint64_t now,
                    struct err *e)
{
    return err_set(e, ERR_INVARIANT, "step %d.%d differs from its first run: %s %016llx then, "
                   "%016llx now", engine->shared.turn, engine->shared.step, what,
                   (unsigned long long)first, (unsigned long long)now);
}

/* Compares causes before effects. A fused cycle has another page digest than a stepped one (struct
 * step_rec). */
static bool same_record(struct engine *engine, const struct step_rec *a, const struct step_rec *b,
                        struct err *e)
{
    const struct {
        const char *what;
        uint64_t first, now;
    } all[] = {
        {"position", (uint64_t)a->pos0, (uint64_t)b->pos0},
        {"rows", (uint64_t)a->rows, (uint64_t)b->rows},
        {"page tables", a->page_digest, a->fused == b->fused ? b->page_digest : a->page_digest},
        {"drafted nodes", (uint64_t)a->drafted, (uint64_t)b->drafted},
        {"logits", a->logit_digest, b->logit_digest},
        {"draft", a->draft_digest, b->draft_digest},
        {"accepted nodes", (uint64_t)a->accepted, (uint64_t)b->accepted},
        {"bonus token", (uint64_t)a->bonus, (uint64_t)b->bonus},
        {"random numbers drawn", a->draws, b->draws},
    };
    for (size_t i = 0; i < LEN(all); i++)
        if (all[i].first != all[i].now)
            return differs(engine, all[i].what, all[i].first, all[i].now, e);
    return true;
}

bool back_compare(struct engine *engine, struct err *e)
{
    const struct page_log *log = &engine->own.runtime.kv.log;
    shared_lock(&engine->shared);
    engine->shared.step++;
    shared_unlock(&engine->shared);
    engine->own.window_released = 0;
    for (int i = 0; i < log->n_since; i++)
        engine->own.window_released += page_left_window(&log->since[i]);
    engine_forget_pages(engine);
    const struct ring_entry *first = ring_find(&engine->shared.ring, engine->shared.turn,
                                               engine->shared.step);
    return !first || same_record(engine, &first->rec, &engine->own.ses.lane.rec, e);
}

/* ---- going back ------------------------------------------------------------------------------ */

bool back_go(struct engine *engine, struct back *b, int *chunk)
{
    int target = debug_take_target(&engine->debug);
    drop_invalid(engine, b);
    if (!b->n || b->at[0].step > target) {
        char *line = xasprintf("the turn cannot go back to step %d.%d: the state before it is not "
                               "kept any more", engine->shared.turn, target);
        engine_notice(engine, line);
        free(line);
        debug_arrived(engine);
        return false;
    }
    if (target < engine->shared.step || b->at[b->n - 1].step > engine->shared.step) {
        while (b->n && b->at[b->n - 1].step > target)
            drop_state(b, b->n - 1);
        CHECK(b->n);
        const struct back_state *s = &b->at[b->n - 1];
        session_cut_points(&engine->own.ses, s->n_point);
        keep_restore(&s->kept, &engine->own.runtime, &engine->own.ses.lane);
        shared_lock(&engine->shared);
        engine->shared.step = s->step;
        shared_unlock(&engine->shared);
        engine->own.window_released = s->window_released;
        *chunk = s->chunk;
    }
    if (engine->shared.step == target)
        debug_arrived(engine);
    return true;
}
