/* step_pages.c - reports the page events of a step: to the log in the step's event, to the views
 * through the tape. */

#include "engine/thread/internal.h"

void engine_log_pages(struct engine *engine)
{
    const struct seq *seqs[MAX_SEQS];
    int n = session_seqs(&engine->own.ses, seqs, MAX_SEQS);
    LOCKED(&engine->shared.mu);
    kv_log_state(&engine->own.runtime.kv, seqs, n, engine->own.runtime.context);
}

void engine_forget_pages(struct engine *engine)
{
    LOCKED(&engine->shared.mu);
    engine->own.runtime.kv.log.n_since = 0;
}

/* Only the engine's thread changes the tape, so it reads the tape without the lock. */
static void pack(struct engine *engine, struct step_pages *s)
{
    page_pack(&s->lengths, s->ev, s->n, &s->change);
    if (!tape_wants_whole(&engine->shared.pages))
        return;
    engine_log_pages(engine);
    struct page_log *log = &engine->own.runtime.kv.log;
    page_pack(&s->lengths, log->since, log->n_since, &s->whole);
    engine_forget_pages(engine);
}

void engine_take_pages(struct engine *engine, struct step_pages *out)
{
    const struct lane *lane = &engine->own.ses.lane;
    struct page_log *log = &engine->own.runtime.kv.log;
    size_t bytes = (size_t)log->n_since * sizeof *log->since;
    *out = (struct step_pages){.n = log->n_since};
    out->lengths = (struct context_lengths){lane->tok.n, lane->seq.committed, lane->seq.drafted,
                                            lane->seq.swa_lo};
    out->ev = bytes ? memcpy(xmalloc(bytes), log->since, bytes) : NULL;
    engine_forget_pages(engine);
    engine->own.window_released = 0;
    for (int i = 0; i < out->n; i++)
        engine->own.window_released += page_left_window(&out->ev[i]);
    pack(engine, out);
}
