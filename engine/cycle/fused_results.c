/* fused_results.c - the outbox of a fused cycle, read and checked. */
#include "engine/cycle/fused_parts.h"

#include <math.h>
#include <string.h>

/* Reads a plan as the device has filled it in. */
static void read_plan(struct fused_cycle *x, struct plan *p, kbuf from)
{
    memcpy(p->mem, fused_out(x, from), (size_t)p->n_mem * sizeof *p->mem);
}

/* The tree that the device has grown. Under the pass's lock. */
static bool read_tree(struct fused_cycle *x, struct err *e)
{
    struct tree *tree = &x->lane->tree;
    const int32_t *parent = fused_out(x, x->at.parent);
    const float *logp = fused_out(x, x->at.logp), *score = fused_out(x, x->at.score);
    const float *p = fused_out(x, x->at.node_logp);
    int n = fused_out_int(x, x->at.n);
    if (n < 1 || n > x->nodes)
        return fault_set(e, fault_at(13), "the device's tree has %d nodes of %d", n, x->nodes);
    read_plan(x, x->verify, x->at.plan_verify);
    for (int i = 1; i < n; i++) {
        if (parent[i] < 0 || parent[i] >= i)
            return fault_set(e, fault_at(13), "the device's tree: node %d of %d has parent %d", i,
                             n, parent[i]);
        tree_add(tree, parent[i], x->verify->token[i], expf(logp[i]), score[i]);
        tree->p[i] = expf(p[i - 1]);
    }
    for (int i = 0; i < x->nodes; i++) /* the host's part of the plan: no kernel reads it */
        x->verify->up[i] = i < n ? tree->parent[i] : -1;
    return true;
}

/* Row i of the plan of all levels, as it follows from the candidates; those are checked first. */
static bool read_level_row(struct fused_cycle *x, int i, struct draft_row *row, int32_t *token,
                           struct err *e)
{
    const int32_t *front = fused_out(x, x->at.tree.front), *tok = fused_out(x, x->at.tree.token);
    const int32_t *parent = fused_out(x, x->at.tree.parent), *cell = fused_out(x, x->at.tree.cell);
    int K = x->key.topk, level = i / K + 1, k = i % K, base = x->l->seq.drafted;
    int most = tree_candidates(K, x->key.steps), mine;
    front += mul64(level - 1, K);
    mine = tree_row_candidate(front, k);
    for (int c = mine, at = level; at > 0 && mine >= 0; c = parent[c], at--)
        if (c < 0 || c >= most || cell[c] < 0 || cell[c] >= x->scratch)
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
static bool check_levels(struct fused_cycle *x, struct err *e)
{
    struct pass *ps = &x->r->pass;
    struct draft_row row[MAX_STEPS * MAX_TOPK];
    int32_t token[MAX_STEPS * MAX_TOPK];
    struct plan_req req = {.seq = &x->l->seq, .n = x->scratch, .token = token, .draft = row,
                           .levels = x->key.steps - 1, .topk = x->key.topk};
    read_plan(x, x->draft, x->at.plan_draft);
    for (int i = 0; i < x->scratch; i++) {
        if (!read_level_row(x, i, &row[i], &token[i], e))
            return false;
        x->draft->up[i] = row[i].up;
    }
    return check_filled(&ps->check, x->draft, ps->kv, &req, e);
}

/* Checks the plans as the device has filled them in against the tree that was grown, then marks the
 * cells that the verify pass has written. Under the pass's lock. */
static bool check_grown(struct fused_cycle *x, struct err *e)
{
    struct pass *ps = &x->r->pass;
    struct plan_req req = {.seq = &x->l->seq, .n = x->nodes, .tree = &x->lane->tree};
    if (!check_filled(&ps->check, x->verify, ps->kv, &req, e) ||
        (x->draft && !x->block && !check_levels(x, e))) /* a block's plan was complete before */
        return false;
    plan_mark(x->verify, ps->kv, &req);
    return true;
}

/* Whether the device has accepted the same rows as the host. */
static bool check_path(const struct fused_cycle *x, struct err *e)
{
    const struct outcome *o = &x->lane->out;
    int n = fused_out_int(x, x->at.n_path);
    if (n == o->n_cells &&
        !memcmp(o->path, fused_out(x, x->at.path), (size_t)n * sizeof *o->path))
        return true;
    return fault_set(e, fault_at(17), "the device accepted %d rows of the tree, the host %d", n,
                     o->n_cells);
}

/* Reads the best logits of the accepted rows. The logits themselves are still on the device. */
static void read_logits(const struct fused_cycle *x)
{
    struct outcome *o = &x->lane->out;
    int k = min_int(DIGEST_BEST, x->r->m->cfg.vocab);
    const int32_t *best = fused_out(x, x->at.best);
    const float *best_logp = fused_out(x, x->at.best_logp);
    struct best_logits b = {.rows = o->n_cells, .k = k};
    for (int i = 0; i < o->n_cells; i++) {
        memcpy(b.id + mul64(i, k), best + mul64(o->path[i], k), (size_t)k * 4);
        memcpy(b.logp + mul64(i, k), best_logp + mul64(o->path[i], k), (size_t)k * 4);
    }
    outcome_set_logits(x->r, o, &b, o->path, x->nodes > 1 ? fused_out(x, x->at.node_logp) : NULL);
}

static void read_guess(const struct fused_cycle *x, struct guess *g)
{
    if (x->block) {
        head_no_guesses(g);
        return;
    }
    const int32_t *ids = fused_out(x, x->at.next);
    const struct draft *w = x->r->drafter->head->w;
    g->n = x->key.guesses;
    for (int i = 0; i < g->n; i++)
        g->token[i] = tree_target_id(w->d2t, w->draft_vocab, ids[i]);
    memcpy(g->logp, fused_out(x, x->at.next_logp), (size_t)g->n * sizeof *g->logp);
}

static void read_times(const struct fused_cycle *x)
{
    uint64_t at[N_TIMES];
    for (int i = 0; i < N_TIMES; i++)
        memcpy(&at[i], fused_out(x, x->at.time[i]), sizeof at[i]);
    x->c->ns_draft = at[TIME_GROWN] - at[TIME_BEGIN];
    x->c->ns_verify = at[TIME_SAMPLED] - at[TIME_GROWN];
}

static void digest_plans(struct fused_cycle *x)
{
    const struct plan *p[] = {x->draft, x->verify, x->extend};
    for (int i = 0; i < 3; i++)
        if (p[i])
            x->r->pass.digest = mix64(x->r->pass.digest ^ plan_digest(p[i]));
}

/* Accepts as the stepped cycle does, from the choices that the device has sampled. */
static bool accept(struct fused_cycle *x, struct err *e)
{
    int32_t choice[TREE_MAX];
    struct tree *t = &x->lane->tree;
    float first = lane_uniform(x->l, 0);
    memcpy(choice, fused_out(x, x->at.choice), (size_t)t->n * sizeof *choice);
    return accept_tree(x->r, x->l, t, x->lane->max_new, choice,
                       x->key.steps ? fused_out(x, x->at.u) : &first, &x->lane->out, e);
}

/* Checks and reads the results that only a cycle with a draft has. */
static bool read_drafting(struct fused_cycle *x, struct err *e)
{
    struct outcome *o = &x->lane->out;
    int32_t src[2][MAX_STEPS + 1], dst[2][MAX_STEPS + 1];
    if (!check_path(x, e))
        return false;
    pass_lock(&x->r->pass);
    bool ok = check_grown(x, e);
    for (int i = 0; i < o->n_new && ok; i++)
        x->extend->token[i] = o->token[i]; /* as the device did */
    pass_unlock(&x->r->pass);
    if (!ok)
        return false;
    accept_moves(x->r, x->l, o, src, dst); /* the marks: the device has moved the cells */
    o->draft_cells = x->l->seq.drafted + o->n_cells;
    read_guess(x, &x->c->follow.guess[0]);
    read_times(x);
    return true;
}

bool fused_results(struct fused_cycle *x, struct err *e)
{
    bool ok = true;
    if (x->key.steps) {
        pass_lock(&x->r->pass);
        ok = read_tree(x, e);
        pass_unlock(&x->r->pass);
    }
    if (!ok || !accept(x, e) || (x->key.steps && !read_drafting(x, e)))
        return false;
    read_logits(x);
    digest_plans(x);
    return true;
}
