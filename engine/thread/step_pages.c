/* step_pages.c - reports the page events of a step: to the log in the step's event, to the views
 * through the tape. */
#include <string.h>

#include "engine/thread/internal.h"

void engine_log_pages(struct engine *g)
{
    const struct seq *seqs[MAX_SEQS];
    int n = session_seqs(&g->own.ses, seqs, MAX_SEQS);
    shared_lock(&g->shared);
    kv_log_state(&g->own.runtime.kv, seqs, n, g->own.runtime.context);
    shared_unlock(&g->shared);
}

void engine_forget_pages(struct engine *g)
{
    shared_lock(&g->shared);
    g->own.runtime.kv.log.n_since = 0;
    shared_unlock(&g->shared);
}

/* Only the engine's thread changes the tape, so it reads the tape without the lock. */
static void pack(struct engine *g, struct step_pages *s)
{
    page_pack(&s->lengths, s->ev, s->n, &s->change);
    if (!tape_wants_whole(&g->shared.pages))
        return;
    engine_log_pages(g);
    struct page_log *log = &g->own.runtime.kv.log;
    page_pack(&s->lengths, log->since, log->n_since, &s->whole);
    engine_forget_pages(g);
}

void engine_take_pages(struct engine *g, struct step_pages *out)
{
    const struct lane *l = &g->own.ses.lane;
    struct page_log *log = &g->own.runtime.kv.log;
    size_t bytes = (size_t)log->n_since * sizeof *log->since;
    *out = (struct step_pages){.n = log->n_since};
    out->lengths = (struct context_lengths){l->tok.n, l->seq.committed, l->seq.drafted,
                                            l->seq.swa_lo};
    out->ev = bytes ? memcpy(xmalloc(bytes), log->since, bytes) : NULL;
    engine_forget_pages(g);
    g->own.window_released = 0;
    for (int i = 0; i < out->n; i++)
        g->own.window_released += page_left_window(&out->ev[i]);
    pack(g, out);
}
