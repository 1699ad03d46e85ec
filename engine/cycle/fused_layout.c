/* fused_layout.c - the buffers of a fused cycle: where each lies, the inbox that the host fills,
 * the outbox that it reads. */
#include "engine/cycle/fused_parts.h"

#include <string.h>

/* ---- layout ---------------------------------------------------------------------------------- */

/* The next `words` words of the memory; absent while there is not enough of it. */
static kbuf region(struct fused_cycle *x, size_t words)
{
    size_t at = x->at.end, bytes = words * 4;
    x->at.end = (at + bytes + 15) & ~(size_t)15;
    return x->f->mem.n >= x->at.end ? kbuf_at(x->f->mem, at, bytes) : (kbuf){0};
}

static void layout_inbox(struct fused_cycle *x)
{
    struct fused_layout *at = &x->at;
    size_t S = (size_t)x->key.steps, K = (size_t)x->key.topk;
    at->root = region(x, 1);
    at->prefix = region(x, 1);
    at->drafted = region(x, 1);
    at->state = region(x, 1);
    at->limit = region(x, 1);
    at->force = region(x, 1);
    at->stop = region(x, MAX_STOP);
    at->draws = region(x, S + 1);
    at->guess = region(x, K);
    at->guess_logp = region(x, K);
    at->cells = region(x, (size_t)x->scratch);
    at->which = region(x, x->block ? S : 0);
    at->full = region(x, (size_t)x->nodes);
    at->swa = region(x, (size_t)x->nodes);
    if (S)
        at->plan_extend = region(x, (size_t)x->extend->n_mem);
    at->out0 = at->end;
    if (x->draft)
        at->plan_draft = region(x, (size_t)x->draft->n_mem);
    at->plan_verify = region(x, (size_t)x->verify->n_mem);
    at->in = at->end;
}

/* Assigns the buffers that the host reads, then those that only the device uses. */
static void layout_outbox(struct fused_cycle *x)
{
    struct fused_layout *at = &x->at;
    size_t N = (size_t)x->nodes, S = (size_t)x->key.steps, K = (size_t)x->key.topk;
    size_t most = S ? (size_t)tree_candidates(x->key.topk, x->key.steps) : 0;
    at->choice = region(x, N);
    at->best = region(x, N * DIGEST_BEST);
    at->best_logp = region(x, N * DIGEST_BEST);
    if (S) {
        kbuf *rows[] = {&at->parent, &at->logp, &at->score, &at->u, &at->node_logp};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            *rows[i] = region(x, N);
        kbuf *one[] = {&at->n, &at->n_path, &at->time[0], &at->time[1], &at->time[2]};
        for (size_t i = 0; i < sizeof one / sizeof *one; i++)
            *one[i] = region(x, 2);
        at->path = region(x, S + 1);
        at->next = region(x, (size_t)x->key.guesses);
        at->next_logp = region(x, (size_t)x->key.guesses);
        at->tree = (struct k_tree){.topk = x->key.topk, .steps = x->key.steps, .nodes = x->nodes};
        at->tree.front = region(x, S * K);
        at->tree.parent = region(x, most);
        at->tree.token = region(x, most);
        at->tree.cell = region(x, most);
    }
    at->out1 = at->end;
    at->choice_p = region(x, N);
    if (!S)
        return;
    kbuf *steps[] = {&at->src[0], &at->src[1], &at->dst[0], &at->dst[1]};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        *steps[i] = region(x, S + 1);
    at->parent0 = region(x, N);
    at->last = region(x, 1);
    for (int i = 0; i < 2; i++)
        at->unused[i] = region(x, (size_t)x->key.topk);
    at->tree.logp = region(x, most);
    at->tree.score = region(x, most);
}

static void layout_buffers(struct fused_cycle *x)
{
    x->at = (struct fused_layout){0};
    layout_inbox(x);
    layout_outbox(x);
}

void fused_forget_recordings(struct runtime *r)
{
    for (int i = 0; i < MAX_RECORDINGS; i++) {
        if (r->fused->recording[i].graph)
            r->dev.k->graph_free(r->dev.d, r->fused->recording[i].graph);
        r->fused->recording[i] = (struct recording){0};
    }
}

bool fused_layout(struct fused_cycle *x, struct err *e)
{
    struct runtime *r = x->r;
    layout_buffers(x);
    if (x->at.end > x->f->mem.n) {
        fused_forget_recordings(r);
        r->dev.k->release(r->dev.d, x->f->mem);
        x->f->mem = r->dev.k->alloc(r->dev.d, x->at.end * 2, "cycle", e);
        if (!x->f->mem.p)
            return false;
        /* the outbox also returns the unused ends of tables, which no cycle writes */
        r->dev.k->fill(r->dev.d, x->f->mem, 0);
        layout_buffers(x);
    }
    x->in = r->dev.k->inbox(r->dev.d, x->at.in);
    return x->in != NULL || (r->dev.k->sync(r->dev.d, e) &&
                             err_set(e, ERR_MODEL, "the context is too long for one cycle's plan"));
}

/* ---- inbox and outbox ------------------------------------------------------------------------ */

void *fused_in(const struct fused_cycle *x, kbuf b)
{
    return x->in + ((char *)b.p - (char *)x->f->mem.p);
}

static void put_int(struct fused_cycle *x, kbuf b, int32_t v)
{
    memcpy(fused_in(x, b), &v, sizeof v);
}

static void put_plan(struct fused_cycle *x, kbuf b, const struct plan *p)
{
    memcpy(fused_in(x, b), p->mem, (size_t)p->n_mem * sizeof *p->mem);
}

static void put_draft(struct fused_cycle *x)
{
    const struct lane *l = x->l;
    int32_t *cells = fused_in(x, x->at.cells), *full = fused_in(x, x->at.full);
    int32_t *swa = fused_in(x, x->at.swa);
    const struct kv *kv = &x->r->kv;
    int32_t *which = x->block ? fused_in(x, x->at.which) : NULL;
    for (int i = 0; x->block && i < x->key.steps; i++)
        which[i] = i + 1;
    memcpy(fused_in(x, x->at.guess), l->guess.token, (size_t)x->key.topk * 4);
    memcpy(fused_in(x, x->at.guess_logp), l->guess.logp, (size_t)x->key.topk * 4);
    for (int i = 0; i < x->scratch; i++)
        cells[i] = kv_draft_slot(kv, &l->seq, l->seq.drafted + i).v;
    for (int i = 0; i < x->nodes; i++) {
        full_slot s = kv_full_slot(kv, &l->seq, l->seq.committed + i);
        full[i] = s.v;
        swa[i] = kv->has_swa ? kv_swa_slot(kv, s).v : 0;
    }
    if (x->draft)
        put_plan(x, x->at.plan_draft, x->draft);
    put_plan(x, x->at.plan_extend, x->extend);
}

void fused_fill_inbox(struct fused_cycle *x)
{
    const struct runtime *r = x->r;
    const struct lane *l = x->l;
    put_int(x, x->at.root, l->tok.v[l->tok.n - 1]);
    put_int(x, x->at.prefix, l->seq.committed);
    put_int(x, x->at.drafted, l->seq.drafted);
    put_int(x, x->at.state, x->key.slot);
    put_int(x, x->at.limit, accept_limit(r, l, x->lane->max_new));
    put_int(x, x->at.force, l->force);
    if (l->run_on)
        memset(fused_in(x, x->at.stop), -1, sizeof r->stop); /* no token is one of these */
    else
        memcpy(fused_in(x, x->at.stop), r->stop, sizeof r->stop);
    float *draws = fused_in(x, x->at.draws);
    for (int i = 0; i <= x->key.steps; i++)
        draws[i] = lane_uniform(l, i);
    if (x->key.steps)
        put_draft(x);
    put_plan(x, x->at.plan_verify, x->verify);
}

const void *fused_out(const struct fused_cycle *x, kbuf b)
{
    return x->out + ((char *)b.p - (char *)x->f->mem.p - x->at.out0);
}

int32_t fused_out_int(const struct fused_cycle *x, kbuf b)
{
    int32_t v;
    memcpy(&v, fused_out(x, b), sizeof v);
    return v;
}
