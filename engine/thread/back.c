/* back.c - see back.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/thread/internal.h"

/* ---- keeping --------------------------------------------------------------------------------- */

static void drop_state(struct back *b, int i)
{
    if (i)
        b->bytes -= b->at[i].kept.bytes;
    keep_free(&b->at[i].kept);
    memmove(b->at + i, b->at + i + 1, (size_t)(b->n - i - 1) * sizeof *b->at);
    b->n--;
}

static void drop_after(struct back *b, int step)
{
    while (b->n && b->at[b->n - 1].step > step)
        drop_state(b, b->n - 1);
}

/* Frees places: drops every second state except the first two. */
static void thin_out(struct back *b)
{
    for (int i = 2; i < b->n; i++)
        drop_state(b, i);
    b->every *= 2;
}

static void keep_one(struct engine *g, struct back *b, int chunk)
{
    if (b->n == BACK_STATES || b->bytes > BACK_BYTES)
        thin_out(b);
    struct back_state *s = &b->at[b->n++];
    *s = (struct back_state){.step = g->shared.step, .chunk = chunk,
                             .n_point = g->own.ses.n_point,
                             .window_released = g->own.window_released};
    keep_state(&s->kept, &g->own.runtime, &g->own.ses.lane);
    if (b->n > 1)
        b->bytes += s->kept.bytes;
}

/* Drops the states that were kept before the session dropped a checkpoint: they may refer to pages
 * of it that are free now. */
static void drop_invalid(struct engine *g, struct back *b)
{
    if (b->given_up == g->own.ses.given_up)
        return;
    b->given_up = g->own.ses.given_up;
    while (b->n)
        drop_state(b, 0);
    b->bytes = 0;
}

void back_begin(struct engine *g, struct back *b, int chunk)
{
    *b = (struct back){.every = BACK_EVERY, .given_up = g->own.ses.given_up};
    keep_one(g, b, chunk);
    debug_set_span(&g->debug, g->shared.turn, 0, 0);
}

/* The state before the first cycle is always kept, so that the prompt need not run again. */
static bool due(struct engine *g, const struct back *b)
{
    const struct lane *l = &g->own.ses.lane;
    int last = b->n ? b->at[b->n - 1].step : -1;
    if (!debug_in_use(&g->debug) || g->shared.step <= last)
        return false;
    return b->n == 0 || (l->rec.kind == STEP_PREFILL && l->n_new > 0) ||
           g->shared.step >= last + b->every;
}

void back_step_done(struct engine *g, struct back *b, int chunk)
{
    drop_invalid(g, b);
    if (due(g, b))
        keep_one(g, b, chunk);
    if (g->shared.step > b->frontier)
        b->frontier = g->shared.step;
    debug_set_span(&g->debug, g->shared.turn, b->n ? b->at[0].step : g->shared.step + 1,
                   b->frontier);
}

void back_end(struct engine *g, struct back *b)
{
    while (b->n)
        drop_state(b, b->n - 1);
    debug_set_span(&g->debug, 0, 0, 0);
}

/* ---- silent steps ---------------------------------------------------------------------------- */

bool back_silent(const struct engine *g, const struct back *b)
{
    return g->shared.step < b->frontier;
}

static bool differs(struct engine *g, const char *what, uint64_t first, uint64_t now, struct err *e)
{
    return err_set(e, ERR_INVARIANT, "step %d.%d differs from its first run: %s %016llx then, "
                   "%016llx now", g->shared.turn, g->shared.step, what, (unsigned long long)first,
                   (unsigned long long)now);
}

/* Compares causes before effects. A fused cycle has another page digest than a stepped one (struct
 * step_rec). */
static bool same_record(struct engine *g, const struct step_rec *a, const struct step_rec *b,
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
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].first != all[i].now)
            return differs(g, all[i].what, all[i].first, all[i].now, e);
    return true;
}

bool back_compare(struct engine *g, struct err *e)
{
    const struct page_log *log = &g->own.runtime.kv.log;
    shared_lock(&g->shared);
    g->shared.step++;
    shared_unlock(&g->shared);
    g->own.window_released = 0;
    for (int i = 0; i < log->n_since; i++)
        g->own.window_released += page_left_window(&log->since[i]);
    engine_forget_pages(g);
    const struct ring_entry *first = ring_find(&g->shared.ring, g->shared.turn, g->shared.step);
    return !first || same_record(g, &first->rec, &g->own.ses.lane.rec, e);
}

/* ---- going back ------------------------------------------------------------------------------ */

bool back_go(struct engine *g, struct back *b, int *chunk)
{
    int target = debug_take_target(&g->debug);
    drop_invalid(g, b);
    if (!b->n || b->at[0].step > target) {
        char *line = xasprintf("the turn cannot go back to step %d.%d: the state before it is not "
                               "kept any more", g->shared.turn, target);
        engine_post_text(g, EV_NOTICE, line);
        free(line);
        debug_arrived(g);
        return false;
    }
    if (target < g->shared.step || b->at[b->n - 1].step > g->shared.step) {
        drop_after(b, target);
        const struct back_state *s = &b->at[b->n - 1];
        session_cut_points(&g->own.ses, s->n_point);
        keep_restore(&s->kept, &g->own.runtime, &g->own.ses.lane);
        shared_lock(&g->shared);
        g->shared.step = s->step;
        shared_unlock(&g->shared);
        g->own.window_released = s->window_released;
        *chunk = s->chunk;
    }
    if (g->shared.step == target)
        debug_arrived(g);
    return true;
}
