/* fused_ops.c - the device operations of a fused cycle, from the inbox to the outbox. */
#include "engine/cycle/fused_parts.h"

static struct k_reach reach_of(const struct k_table *t, int window, kbuf slots)
{
    return (struct k_reach){.window = window, .expand_w = t->expand_w, .slots = slots, .lo = t->lo,
                            .hi = t->hi, .n_expand = t->n_expand, .expand = t->expand};
}

/* Grows the tree. Level 1 is the lane's guess; for each further level the drafter runs over the
 * front of the level before. */
static void grow_levels(struct fused_cycle *run)
{
    struct runtime *rt = run->rt;
    struct head *head = rt->drafter->head;
    int K = run->key.topk;
    struct k_plan all = {0};
    struct k_topk best;
    struct k_grow a = {.t = &run->at.tree, .ids = run->at.guess, .logp = run->at.guess_logp,
                       .prefix = run->at.drafted, .root = run->at.state, .from = head->idx,
                       .time = run->at.time[TIME_BEGIN]};
    if (run->draft)
        all = plan_view(run->draft, run->at.plan_draft);
    for (a.level = 1; a.level <= run->key.steps; a.level++) {
        struct k_plan kp = {0};
        a.n_reach = 0;
        if (a.level < run->key.steps) {
            CHECK(run->draft); /* of every shape with two steps or more */
            kp = plan_rows(&all, (a.level - 1) * K, K);
            a.token = kp.token;
            for (int i = TABLE_DRAFT; i < N_TABLES; i++)
                if (run->draft->table[i].used)
                    a.reach[a.n_reach++] =
                        reach_of(&kp.table[i], run->draft->table[i].window, run->at.cells);
        }
        rt->dev.k->grow(rt->dev.d, &a);
        if (a.level == run->key.steps)
            break;
        head->ops->level(head, &kp, K, a.level == 1 ? head->root : head->state, head->idx);
        best = head_best(head, K, K, head->ids, head->logp);
        a.topk = &best;
        a.ids = head->ids;
        a.logp = head->logp;
        a.d2t = head->d2t;
        a.time = (kbuf){0};
    }
}

/* out (steps * topk, topk): topk copies of each row, because all nodes of a depth have the same
 * children. */
static kbuf copies(struct fused_cycle *run, kbuf rows, kbuf out, int guesses)
{
    const int K = run->key.topk;
    if (K == 1)
        return rows;
    run->rt->dev.k->rows(run->rt->dev.d, &(struct k_rows){
        .rows = guesses * K, .n = K, .src_stride = K, .dst_stride = K, .src = rows, .dst = out,
        .idx = run->at.copied});
    return out;
}

/* The levels after a block whose guesses depend on the token before: a row for each node of the
 * front, whose tokens grow() leaves. */
static void grow_edges(struct fused_cycle *run, struct k_grow a)
{
    struct head *head = run->rt->drafter->head;
    const int K = run->key.topk;
    a.d2t = head->d2t;
    a.time = (kbuf){0};
    a.ids = head->ids;
    a.logp = head->logp;
    for (a.level = 1; a.level <= run->key.steps; a.level++) {
        const int rows = a.level > 1 ? K : 1;
        const size_t from = (size_t)((a.level - 1) * K) * 4;
        head->ops->edges(head, rows, a.level > 1 ? a.token : run->at.root,
                         kbuf_at(run->at.copied, from, (size_t)rows * 4), K);
        run->rt->dev.k->grow(run->rt->dev.d, &a);
    }
}

/* The same from one pass over a block, whose plan is complete: a row a level, from the drafter's
 * first one on. */
static void grow_block(struct fused_cycle *run)
{
    struct runtime *rt = run->rt;
    struct head *head = rt->drafter->head;
    const int K = run->key.topk, first = draft_block_first(head->w);
    const int guesses = run->key.steps + 1 - first;
    struct k_plan kp = plan_view(run->draft, run->at.plan_draft);
    struct k_grow a = {.t = &run->at.tree, .level = 1, .ids = run->at.guess,
                       .logp = run->at.guess_logp,
                       .prefix = run->at.drafted, .root = run->at.state, .token = run->at.unused[0],
                       .from = run->at.unused[1], .time = run->at.time[TIME_BEGIN]};
    rt->dev.k->grow(rt->dev.d, &a); /* notes the time; if level 1 is the block's, it is made
                                       again */
    head->ops->block(head, &kp, run->block, run->at.which, guesses);
    if (head->w->edges) {
        grow_edges(run, a);
        return;
    }
    head_topk(head, guesses, K, head->ids, head->logp);
    kbuf ids = copies(run, head->ids, run->at.copy, guesses);
    kbuf logp = copies(run, head->logp, run->at.copy_logp, guesses);
    a.d2t = head->d2t;
    a.time = (kbuf){0};
    for (a.level = first; a.level <= run->key.steps; a.level++) {
        const size_t at = (size_t)(a.level - first) * (size_t)(K * K) * 4;
        a.ids = kbuf_at(ids, at, (size_t)(a.level > 1 ? K * K : K) * 4);
        a.logp = kbuf_at(logp, at, (size_t)(a.level > 1 ? K * K : K) * 4);
        rt->dev.k->grow(rt->dev.d, &a);
    }
}

static void select_rows(struct fused_cycle *run, const struct k_plan *kp)
{
    struct fused_layout *at = &run->at;
    struct k_select a = {
        .t = &at->tree, .root = at->root, .prefix = at->prefix, .draws = at->draws,
        .n = at->n_nodes,
        .token = kp->token, .pos = kp->pos, .parent = at->parent, .parent0 = at->parent0,
        .logp = at->logp, .score = at->score, .u = at->u, .time = at->time[TIME_GROWN]};
    const struct table *swa = &run->verify->table[TABLE_SWA];
    a.reach[a.n_reach++] = reach_of(&kp->table[TABLE_FULL], 0, at->full);
    if (swa->used)
        a.reach[a.n_reach++] = reach_of(&kp->table[TABLE_SWA], swa->window, at->swa);
    run->rt->dev.k->select(run->rt->dev.d, &a);
}

/* Samples every row; also computes the best logits of each for the digest, and the probability of
 * each node. */
static void sample_rows(struct fused_cycle *run, const struct k_plan *kp)
{
    struct runtime *rt = run->rt;
    struct fused_layout *at = &run->at;
    int V = rt->model->cfg.vocab, N = run->nodes;
    size_t bytes = (size_t)(N - 1) * 4;
    struct k_sample sample = {
        .rows = N, .n = V, .logits = rt->logits, .mask = rt->mask, .how = run->key.how,
        .u = run->key.steps ? at->u : at->draws, .ids = at->choice, .p = at->choice_p};
    struct k_topk best = {.rows = N, .n = V, .k = min_int(DIGEST_BEST, V), .logits = rt->logits,
                          .ids = at->best, .logp = at->best_logp};
    struct k_read read = {.sample = &sample, .topk = &best};
    struct k_logp nodes;
    if (N > 1) {
        nodes = (struct k_logp){.pairs = N - 1, .n = V, .rows = N, .logits = rt->logits,
                                .row = kbuf_at(at->parent0, 4, bytes),
                                .id = kbuf_at(kp->token, 4, bytes), .logp = at->node_logp};
        read.logp = &nodes;
    }
    rt->dev.k->read(rt->dev.d, &read);
}

/* Walks the tree and moves the accepted cells. emitted: the tokens of the drafter's pass. */
static void accept_rows(struct fused_cycle *run, const struct k_plan *kp, kbuf emitted)
{
    struct runtime *rt = run->rt;
    struct fused_layout *at = &run->at;
    struct k_accept a = {
        .nodes = run->nodes, .steps = run->key.steps, .n_stop = rt->n_stop, .n = at->n_nodes,
        .token = kp->token, .parent = at->parent, .choice = at->choice, .limit = at->limit,
        .force = at->force, .stop = at->stop, .n_pools = rt->kv.has_swa ? 2 : 1,
        .slots = {at->full, at->swa}, .n_path = at->n_path, .path = at->path, .emitted = emitted,
        .last = at->last, .src = {at->src[0], at->src[1]}, .dst = {at->dst[0], at->dst[1]},
        .time = at->time[TIME_SAMPLED]};
    rt->dev.k->accept(rt->dev.d, &a);
    if (!rt->kv.has_swa)
        a.src[POOL_SWA] = (kbuf){0};
    net_move(&rt->net, run->key.steps + 1, a.src, a.dst);
}

void fused_operations(struct fused_cycle *run)
{
    struct runtime *rt = run->rt;
    struct k_plan kp = plan_view(run->verify, run->at.plan_verify);
    rt->dev.k->read_inbox(rt->dev.d, kbuf_at(run->fused->mem, 0, run->at.in), run->at.in);
    if (run->key.steps) {
        run->block ? grow_block(run) : grow_levels(run);
        select_rows(run, &kp);
    }
    net_forward(&rt->net, run->verify, &kp, run->key.captures ? drafter_taps(rt->drafter) : NULL);
    net_logits(&rt->net, run->nodes, (kbuf){0}, rt->logits);
    sample_rows(run, &kp);
    if (run->key.steps) {
        struct k_plan after = plan_view(run->extend, run->at.plan_extend);
        struct head *head = rt->drafter->head;
        accept_rows(run, &kp, after.token);
        head->ops->extend(head, &after, run->key.steps + 1, run->at.path, run->at.last, 1,
                          head_root(head, run->key.slot));
        if (draft_guesses_next(head->w))
            head_topk(head, 1, run->key.guesses, run->at.next, run->at.next_logp);
    }
    size_t out = run->at.out1 - run->at.out0;
    rt->dev.k->write_outbox(rt->dev.d, kbuf_at(run->fused->mem, run->at.out0, out), out);
}
