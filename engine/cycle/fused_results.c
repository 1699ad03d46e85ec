/* fused_results.c - the outbox of a fused cycle, read and checked. */
#include "engine/cycle/fused_parts.h"

#include <math.h>

/* Reads a plan as the device has filled it in. */
static void read_plan(struct fused_cycle *run, struct plan *p, kbuf from)
{
    memcpy(p->mem, fused_out(run, from), (size_t)p->n_mem * sizeof *p->mem);
}

/* The tree that the device has grown. Under the pass's lock. */
static bool read_tree(struct fused_cycle *run, struct err *e)
{
    struct tree *tree = &run->part->tree;
    const int32_t *parent = fused_out(run, run->at.parent);
    const float *logp = fused_out(run, run->at.logp), *score = fused_out(run, run->at.score);
    const float *p = fused_out(run, run->at.node_logp);
    int n = fused_out_int(run, run->at.n_nodes);
    if (n < 1 || n > run->nodes)
        return fault_set(e, fault_at(13), "the device's tree has %d nodes of %d", n, run->nodes);
    read_plan(run, run->verify, run->at.plan_verify);
    for (int i = 1; i < n; i++) {
        if (parent[i] < 0 || parent[i] >= i)
            return fault_set(e, fault_at(13), "the device's tree: node %d of %d has parent %d", i,
                             n, parent[i]);
        tree_add(tree, parent[i], run->verify->token[i], expf(logp[i]), score[i]);
        tree->p[i] = expf(p[i - 1]);
    }
    for (int i = 0; i < run->nodes; i++) /* the host's part of the plan: no kernel reads it */
        run->verify->up[i] = i < n ? tree->parent[i] : -1;
    return true;
}

/* Row i of the plan of all levels, as it follows from the candidates; those are checked first. */
static bool read_level_row(struct fused_cycle *run, int i, struct draft_row *row, int32_t *token,
                           struct err *e)
{
    const int32_t *front = fused_out(run, run->at.tree.front),
        *tok = fused_out(run, run->at.tree.token);
    const int32_t *parent = fused_out(run, run->at.tree.parent),
        *cell = fused_out(run, run->at.tree.cell);
    int K = run->key.topk, level = i / K + 1, k = i % K, base = run->lane->seq.drafted;
    int most = tree_candidates(K, run->key.steps), mine;
    front += mul64(level - 1, K);
    mine = tree_row_candidate(front, k);
    for (int c = mine, at = level; at > 0 && mine >= 0; c = parent[c], at--)
        if (c < 0 || c >= most || cell[c] < 0 || cell[c] >= run->scratch)
            return fault_set(e, fault_at(13),
                             "the device's draft: row %d has candidate %d of %d as ancestor", i, c,
                             most);
    row->depth = level;
    row->cell = base + i;
    row->n_seen = tree_row_cells(front, parent, cell, K, level, k, row->seen);
    row->up = row->n_seen > 1 ? row->seen[row->n_seen - 2] : -1;
    for (int at = 0; at < row->n_seen; at++)
        row->seen[at] += base;
    *token = mine < 0 ? 0 : tok[mine];
    return true;
}

/* Checks the plan of all levels against the rows that follow from the candidates. */
static bool check_levels(struct fused_cycle *run, struct err *e)
{
    struct pass *pass = &run->rt->pass;
    struct draft_row row[MAX_STEPS * MAX_TOPK];
    int32_t token[MAX_STEPS * MAX_TOPK];
    struct plan_req req = {.seq = &run->lane->seq, .n = run->scratch, .token = token, .draft = row,
                           .levels = run->key.steps - 1, .topk = run->key.topk};
    read_plan(run, run->draft, run->at.plan_draft);
    for (int i = 0; i < run->scratch; i++) {
        if (!read_level_row(run, i, &row[i], &token[i], e))
            return false;
        run->draft->up[i] = row[i].up;
    }
    return check_filled(&pass->check, run->draft, pass->kv, &req, e);
}

/* Checks the plans as the device has filled them in against the tree that was grown, then marks the
 * cells that the verify pass has written. Under the pass's lock. */
static bool check_grown(struct fused_cycle *run, struct err *e)
{
    struct pass *pass = &run->rt->pass;
    struct plan_req req = {.seq = &run->lane->seq, .n = run->nodes, .tree = &run->part->tree};
    if (!check_filled(&pass->check, run->verify, pass->kv, &req, e) ||
        (run->draft && !run->block && !check_levels(run, e))) /* a block's plan was complete
                                                                 before */
        return false;
    plan_mark(run->verify, pass->kv, &req);
    return true;
}

/* Whether the device has accepted the same rows as the host. */
static bool check_path(const struct fused_cycle *run, struct err *e)
{
    const struct outcome *out = &run->part->out;
    int n = fused_out_int(run, run->at.n_path);
    if (n == out->n_cells &&
        !memcmp(out->path, fused_out(run, run->at.path), (size_t)n * sizeof *out->path))
        return true;
    return fault_set(e, fault_at(17), "the device accepted %d rows of the tree, the host %d", n,
                     out->n_cells);
}

/* Reads the best logits of the accepted rows. The logits themselves are still on the device. */
static void read_logits(const struct fused_cycle *run)
{
    struct outcome *out = &run->part->out;
    int k = min_int(DIGEST_BEST, run->rt->model->cfg.vocab);
    const int32_t *id = fused_out(run, run->at.best);
    const float *logp = fused_out(run, run->at.best_logp);
    struct best_logits best = {.rows = out->n_cells, .k = k};
    for (int i = 0; i < out->n_cells; i++) {
        memcpy(best.id + mul64(i, k), id + mul64(out->path[i], k), (size_t)k * 4);
        memcpy(best.logp + mul64(i, k), logp + mul64(out->path[i], k), (size_t)k * 4);
    }
    outcome_set_logits(run->rt, out, &best, out->path, run->nodes > 1
                       ? fused_out(run, run->at.node_logp) : NULL);
}

static void read_guess(const struct fused_cycle *run, struct guess *g)
{
    if (!draft_guesses_next(run->rt->drafter->head->w)) {
        head_no_guesses(g);
        return;
    }
    const int32_t *ids = fused_out(run, run->at.next);
    const struct draft *w = run->rt->drafter->head->w;
    g->n = run->key.guesses;
    for (int i = 0; i < g->n; i++)
        g->token[i] = tree_target_id(w->d2t, w->draft_vocab, ids[i]);
    memcpy(g->logp, fused_out(run, run->at.next_logp), (size_t)g->n * sizeof *g->logp);
}

static void read_times(const struct fused_cycle *run)
{
    uint64_t at[N_TIMES];
    for (int i = 0; i < N_TIMES; i++)
        memcpy(&at[i], fused_out(run, run->at.time[i]), sizeof at[i]);
    run->cycle->ns_draft = at[TIME_GROWN] - at[TIME_BEGIN];
    run->cycle->ns_verify = at[TIME_SAMPLED] - at[TIME_GROWN];
}

static void digest_plans(struct fused_cycle *run)
{
    const struct plan *p[] = {run->draft, run->verify, run->extend};
    for (int i = 0; i < 3; i++)
        if (p[i])
            run->rt->pass.digest = mix64(run->rt->pass.digest ^ plan_digest(p[i]));
}

/* Accepts as the stepped cycle does, from the choices that the device has sampled. */
static bool accept(struct fused_cycle *run, struct err *e)
{
    int32_t choice[TREE_MAX];
    struct tree *tree = &run->part->tree;
    float first = lane_uniform(run->lane, 0);
    memcpy(choice, fused_out(run, run->at.choice), (size_t)tree->n * sizeof *choice);
    return accept_tree(run->rt, run->lane, tree, run->part->max_new, choice,
                       run->key.steps ? fused_out(run, run->at.u) : &first, &run->part->out, e);
}

/* Checks and reads the results that only a cycle with a draft has. */
static bool read_drafting(struct fused_cycle *run, struct err *e)
{
    struct outcome *out = &run->part->out;
    int32_t src[2][MAX_STEPS + 1], dst[2][MAX_STEPS + 1];
    if (!check_path(run, e))
        return false;
    pass_lock(&run->rt->pass);
    bool ok = check_grown(run, e);
    for (int i = 0; i < out->n_new && ok; i++)
        run->extend->token[i] = out->token[i]; /* as the device did */
    pass_unlock(&run->rt->pass);
    if (!ok)
        return false;
    accept_moves(run->rt, run->lane, out, src, dst); /* the marks: the device has moved the cells */
    out->draft_cells = run->lane->seq.drafted + out->n_cells;
    read_guess(run, &run->cycle->follow.guess[0]);
    read_times(run);
    return true;
}

bool fused_results(struct fused_cycle *run, struct err *e)
{
    bool ok = true;
    if (run->key.steps) {
        pass_lock(&run->rt->pass);
        ok = read_tree(run, e);
        pass_unlock(&run->rt->pass);
    }
    if (!ok || !accept(run, e) || (run->key.steps && !read_drafting(run, e)))
        return false;
    read_logits(run);
    digest_plans(run);
    return true;
}
