/* fused_layout.c - the buffers of a fused cycle: where each lies, the inbox that the host fills,
 * the outbox that it reads. */
#include "engine/cycle/fused_parts.h"

/* ---- layout ---------------------------------------------------------------------------------- */

/* The next `words` words of the memory; absent while there is not enough of it. */
static kbuf region(struct fused_cycle *run, size_t words)
{
    size_t at = run->at.end, bytes = words * 4;
    run->at.end = (at + bytes + 15) & ~(size_t)15;
    return run->fused->mem.n >= run->at.end ? kbuf_at(run->fused->mem, at, bytes) : (kbuf){0};
}

static void layout_inbox(struct fused_cycle *run)
{
    struct fused_layout *at = &run->at;
    size_t S = (size_t)run->key.steps, K = (size_t)run->key.topk;
    at->root = region(run, 1);
    at->prefix = region(run, 1);
    at->drafted = region(run, 1);
    at->state = region(run, 1);
    at->limit = region(run, 1);
    at->force = region(run, 1);
    at->stop = region(run, MAX_STOP);
    at->draws = region(run, S + 1);
    at->guess = region(run, K);
    at->guess_logp = region(run, K);
    at->cells = region(run, (size_t)run->scratch);
    at->which = region(run, run->block ? S : 0);
    at->copied = region(run, run->block ? S * K : 0);
    at->full = region(run, (size_t)run->nodes);
    at->swa = region(run, (size_t)run->nodes);
    if (S)
        at->plan_extend = region(run, (size_t)run->extend->n_mem);
    at->out0 = at->end;
    if (run->draft)
        at->plan_draft = region(run, (size_t)run->draft->n_mem);
    at->plan_verify = region(run, (size_t)run->verify->n_mem);
    at->in = at->end;
}

/* Assigns the buffers that the host reads, then those that only the device uses. */
static void layout_outbox(struct fused_cycle *run)
{
    struct fused_layout *at = &run->at;
    size_t N = (size_t)run->nodes, S = (size_t)run->key.steps, K = (size_t)run->key.topk;
    size_t most = S ? (size_t)tree_candidates(run->key.topk, run->key.steps) : 0;
    at->choice = region(run, N);
    at->best = region(run, N * DIGEST_BEST);
    at->best_logp = region(run, N * DIGEST_BEST);
    if (S) {
        kbuf *rows[] = {&at->parent, &at->logp, &at->score, &at->u, &at->node_logp};
        for (size_t i = 0; i < LEN(rows); i++)
            *rows[i] = region(run, N);
        kbuf *one[] = {&at->n_nodes, &at->n_path, &at->time[0], &at->time[1], &at->time[2]};
        for (size_t i = 0; i < LEN(one); i++)
            *one[i] = region(run, 2);
        at->path = region(run, S + 1);
        at->next = region(run, (size_t)run->key.guesses);
        at->next_logp = region(run, (size_t)run->key.guesses);
        at->tree = (struct k_tree){.topk = run->key.topk, .steps = run->key.steps,
                                   .nodes = run->nodes};
        at->tree.front = region(run, S * K);
        at->tree.parent = region(run, most);
        at->tree.token = region(run, most);
        at->tree.cell = region(run, most);
    }
    at->out1 = at->end;
    at->choice_p = region(run, N);
    if (!S)
        return;
    kbuf *steps[] = {&at->src[0], &at->src[1], &at->dst[0], &at->dst[1]};
    for (size_t i = 0; i < LEN(steps); i++)
        *steps[i] = region(run, S + 1);
    at->parent0 = region(run, N);
    at->last = region(run, 1);
    for (int i = 0; i < 2; i++)
        at->unused[i] = region(run, (size_t)run->key.topk);
    if (run->block) {
        at->copy = region(run, S * K * K);
        at->copy_logp = region(run, S * K * K);
    }
    at->tree.logp = region(run, most);
    at->tree.score = region(run, most);
}

static void layout_buffers(struct fused_cycle *run)
{
    run->at = (struct fused_layout){0};
    layout_inbox(run);
    layout_outbox(run);
}

void fused_forget_recordings(struct runtime *rt)
{
    for (int i = 0; i < MAX_RECORDINGS; i++) {
        if (rt->fused->recording[i].graph)
            rt->dev.k->graph_free(rt->dev.d, rt->fused->recording[i].graph);
        rt->fused->recording[i] = (struct recording){0};
    }
}

bool fused_layout(struct fused_cycle *run, struct err *e)
{
    struct runtime *rt = run->rt;
    layout_buffers(run);
    if (run->at.end > run->fused->mem.n) {
        fused_forget_recordings(rt);
        rt->dev.k->release(rt->dev.d, run->fused->mem);
        run->fused->mem = rt->dev.k->alloc(rt->dev.d, run->at.end * 2, "cycle", e);
        if (!run->fused->mem.p)
            return false;
        /* the outbox also returns the unused ends of tables, which no cycle writes */
        rt->dev.k->fill(rt->dev.d, run->fused->mem, 0);
        layout_buffers(run);
    }
    run->in = rt->dev.k->inbox(rt->dev.d, run->at.in);
    return run->in != NULL || (rt->dev.k->sync(rt->dev.d, e) &&
                               err_set(e, ERR_MODEL,
                                       "the context is too long for one cycle's plan"));
}

/* ---- inbox and outbox ------------------------------------------------------------------------ */

static void *fused_in(const struct fused_cycle *run, kbuf b)
{
    return run->in + ((char *)b.p - (char *)run->fused->mem.p);
}

static void put_int(struct fused_cycle *run, kbuf b, int32_t v)
{
    memcpy(fused_in(run, b), &v, sizeof v);
}

static void put_plan(struct fused_cycle *run, kbuf b, const struct plan *p)
{
    memcpy(fused_in(run, b), p->mem, (size_t)p->n_mem * sizeof *p->mem);
}

static void put_draft(struct fused_cycle *run)
{
    const struct lane *lane = run->lane;
    int32_t *cells = fused_in(run, run->at.cells), *full = fused_in(run, run->at.full);
    int32_t *swa = fused_in(run, run->at.swa);
    const struct kv *kv = &run->rt->kv;
    int32_t *which = run->block ? fused_in(run, run->at.which) : NULL;
    int32_t *copied = run->block ? fused_in(run, run->at.copied) : NULL;
    const struct head *head = run->rt->drafter->head;
    for (int i = 0; run->block && i < run->key.steps; i++)
        which[i] = i + draft_block_first(head->w) - head->w->block_depth;
    for (int i = 0; run->block && i < run->key.steps * run->key.topk; i++)
        copied[i] = i / run->key.topk;
    memcpy(fused_in(run, run->at.guess), lane->guess.token, (size_t)run->key.topk * 4);
    memcpy(fused_in(run, run->at.guess_logp), lane->guess.logp, (size_t)run->key.topk * 4);
    for (int i = 0; i < run->scratch; i++)
        cells[i] = kv_draft_slot(kv, &lane->seq, lane->seq.drafted + i).v;
    for (int i = 0; i < run->nodes; i++) {
        full_slot s = kv_full_slot(kv, &lane->seq, lane->seq.committed + i);
        full[i] = s.v;
        swa[i] = kv->has_swa ? kv_swa_slot(kv, s).v : 0;
    }
    if (run->draft)
        put_plan(run, run->at.plan_draft, run->draft);
    put_plan(run, run->at.plan_extend, run->extend);
}

void fused_fill_inbox(struct fused_cycle *run)
{
    const struct runtime *rt = run->rt;
    const struct lane *lane = run->lane;
    put_int(run, run->at.root, lane->tok.v[lane->tok.n - 1]);
    put_int(run, run->at.prefix, lane->seq.committed);
    put_int(run, run->at.drafted, lane->seq.drafted);
    put_int(run, run->at.state, run->key.slot);
    put_int(run, run->at.limit, accept_limit(rt, lane, run->part->max_new));
    put_int(run, run->at.force, lane->force);
    if (lane->run_on)
        memset(fused_in(run, run->at.stop), -1, sizeof rt->stop); /* no token is one of these */
    else
        memcpy(fused_in(run, run->at.stop), rt->stop, sizeof rt->stop);
    float *draws = fused_in(run, run->at.draws);
    for (int i = 0; i <= run->key.steps; i++)
        draws[i] = lane_uniform(lane, i);
    if (run->key.steps)
        put_draft(run);
    put_plan(run, run->at.plan_verify, run->verify);
}

const void *fused_out(const struct fused_cycle *run, kbuf b)
{
    return run->out + ((char *)b.p - (char *)run->fused->mem.p - run->at.out0);
}

int32_t fused_out_int(const struct fused_cycle *run, kbuf b)
{
    int32_t v;
    memcpy(&v, fused_out(run, b), sizeof v);
    return v;
}
