/* fused_ops.c - the device operations of a fused cycle, from the inbox to the outbox. */
#include "engine/cycle/fused_parts.h"

static struct k_reach reach_of(const struct k_table *t, int window, kbuf slots)
{
    return (struct k_reach){.window = window, .expand_w = t->expand_w, .slots = slots, .lo = t->lo,
                            .hi = t->hi, .n_expand = t->n_expand, .expand = t->expand};
}

/* Grows the tree. Level 1 is the lane's guess; for each further level the drafter runs over the
 * front of the level before. */
static void grow_levels(struct fused_cycle *x)
{
    struct runtime *r = x->r;
    struct head *d = r->drafter->head;
    int K = x->key.topk;
    struct k_plan all = {0};
    struct k_topk best;
    struct k_grow a = {.t = &x->at.tree, .ids = x->at.guess, .logp = x->at.guess_logp,
                       .prefix = x->at.drafted, .root = x->at.state, .from = d->idx,
                       .time = x->at.time[TIME_BEGIN]};
    if (x->draft)
        all = plan_view(x->draft, x->at.plan_draft);
    for (a.level = 1; a.level <= x->key.steps; a.level++) {
        struct k_plan kp = {0};
        a.n_reach = 0;
        if (a.level < x->key.steps) {
            CHECK(x->draft); /* of every shape with two steps or more */
            kp = plan_rows(&all, (a.level - 1) * K, K);
            a.token = kp.token;
            for (int i = TABLE_DRAFT; i < N_TABLES; i++)
                if (x->draft->table[i].used)
                    a.reach[a.n_reach++] =
                        reach_of(&kp.table[i], x->draft->table[i].window, x->at.cells);
        }
        r->dev.k->grow(r->dev.d, &a);
        if (a.level == x->key.steps)
            break;
        d->ops->level(d, &kp, K, a.level == 1 ? d->root : d->state, d->idx);
        best = head_best(d, K, K, d->ids, d->logp);
        a.topk = &best;
        a.ids = d->ids;
        a.logp = d->logp;
        a.d2t = d->d2t;
        a.time = (kbuf){0};
    }
}

/* The same from one pass over a block, whose plan is complete: row l guesses level l. A chain, so
 * each level has one row. */
static void grow_block(struct fused_cycle *x)
{
    struct runtime *r = x->r;
    struct head *d = r->drafter->head;
    struct k_plan kp = plan_view(x->draft, x->at.plan_draft);
    struct k_grow a = {.t = &x->at.tree, .level = 1, .ids = x->at.guess, .logp = x->at.guess_logp,
                       .prefix = x->at.drafted, .root = x->at.state, .token = x->at.unused[0],
                       .from = x->at.unused[1], .time = x->at.time[TIME_BEGIN]};
    CHECK(x->key.topk == 1);
    r->dev.k->grow(r->dev.d, &a); /* notes the time; its level is made again below */
    d->ops->block(d, &kp, x->block, x->at.which, x->key.steps);
    head_topk(d, x->key.steps, 1, d->ids, d->logp);
    a.d2t = d->d2t;
    a.time = (kbuf){0};
    for (; a.level <= x->key.steps; a.level++) {
        a.ids = kbuf_at(d->ids, (size_t)(a.level - 1) * 4, 4);
        a.logp = kbuf_at(d->logp, (size_t)(a.level - 1) * 4, 4);
        r->dev.k->grow(r->dev.d, &a);
    }
}

static void select_rows(struct fused_cycle *x, const struct k_plan *kp)
{
    struct fused_layout *at = &x->at;
    struct k_select a = {
        .t = &at->tree, .root = at->root, .prefix = at->prefix, .draws = at->draws, .n = at->n,
        .token = kp->token, .pos = kp->pos, .parent = at->parent, .parent0 = at->parent0,
        .logp = at->logp, .score = at->score, .u = at->u, .time = at->time[TIME_GROWN]};
    const struct table *swa = &x->verify->table[TABLE_SWA];
    a.reach[a.n_reach++] = reach_of(&kp->table[TABLE_FULL], 0, at->full);
    if (swa->used)
        a.reach[a.n_reach++] = reach_of(&kp->table[TABLE_SWA], swa->window, at->swa);
    x->r->dev.k->select(x->r->dev.d, &a);
}

/* Samples every row; also computes the best logits of each for the digest, and the probability of
 * each node. */
static void sample_rows(struct fused_cycle *x, const struct k_plan *kp)
{
    struct runtime *r = x->r;
    struct fused_layout *at = &x->at;
    int V = r->m->cfg.vocab, N = x->nodes;
    size_t bytes = (size_t)(N - 1) * 4;
    struct k_sample sample = {
        .rows = N, .n = V, .logits = r->logits, .mask = r->mask, .how = x->key.how,
        .u = x->key.steps ? at->u : at->draws, .ids = at->choice, .p = at->choice_p};
    struct k_topk best = {.rows = N, .n = V, .k = min_int(DIGEST_BEST, V), .logits = r->logits,
                          .ids = at->best, .logp = at->best_logp};
    struct k_read read = {.sample = &sample, .topk = &best};
    struct k_logp nodes;
    if (N > 1) {
        nodes = (struct k_logp){.pairs = N - 1, .n = V, .rows = N, .logits = r->logits,
                                .row = kbuf_at(at->parent0, 4, bytes),
                                .id = kbuf_at(kp->token, 4, bytes), .logp = at->node_logp};
        read.logp = &nodes;
    }
    r->dev.k->read(r->dev.d, &read);
}

/* Walks the tree and moves the accepted cells. emitted: the tokens of the drafter's pass. */
static void accept_rows(struct fused_cycle *x, const struct k_plan *kp, kbuf emitted)
{
    struct runtime *r = x->r;
    struct fused_layout *at = &x->at;
    struct k_accept a = {
        .nodes = x->nodes, .steps = x->key.steps, .n_stop = r->n_stop, .n = at->n,
        .token = kp->token, .parent = at->parent, .choice = at->choice, .limit = at->limit,
        .force = at->force, .stop = at->stop, .n_pools = r->kv.has_swa ? 2 : 1,
        .slots = {at->full, at->swa}, .n_path = at->n_path, .path = at->path, .emitted = emitted,
        .last = at->last, .src = {at->src[0], at->src[1]}, .dst = {at->dst[0], at->dst[1]},
        .time = at->time[TIME_SAMPLED]};
    r->dev.k->accept(r->dev.d, &a);
    if (!r->kv.has_swa)
        a.src[POOL_SWA] = (kbuf){0};
    net_move(&r->net, x->key.steps + 1, a.src, a.dst);
}

void fused_operations(struct fused_cycle *x)
{
    struct runtime *r = x->r;
    struct k_plan kp = plan_view(x->verify, x->at.plan_verify);
    r->dev.k->read_inbox(r->dev.d, kbuf_at(x->f->mem, 0, x->at.in), x->at.in);
    if (x->key.steps) {
        x->block ? grow_block(x) : grow_levels(x);
        select_rows(x, &kp);
    }
    net_forward(&r->net, x->verify, &kp, x->key.captures ? drafter_taps(r->drafter) : NULL);
    net_logits(&r->net, x->nodes, (kbuf){0}, r->logits, (kbuf){0});
    sample_rows(x, &kp);
    if (x->key.steps) {
        struct k_plan after = plan_view(x->extend, x->at.plan_extend);
        struct head *d = r->drafter->head;
        accept_rows(x, &kp, after.token);
        d->ops->extend(d, &after, x->key.steps + 1, x->at.path, x->at.last, 1,
                       head_root(d, x->key.slot));
        if (!x->block)
            head_topk(d, 1, x->key.guesses, x->at.next, x->at.next_logp);
    }
    size_t out = x->at.out1 - x->at.out0;
    r->dev.k->write_outbox(r->dev.d, kbuf_at(x->f->mem, x->at.out0, out), out);
}
