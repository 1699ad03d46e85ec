/* tree.c - grow(), select() and accept() of a draft tree, after kernels/tree_rules.h.
 *
 * Every output is written in full, whatever the tree looks like, so that one recorded run fits all
 * trees.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/tree_rules.h"

/* The arrays of a tree, sizes checked. */
static struct tree_growth growth_of(const struct k_tree *t)
{
    CHECK(t->topk >= 1 && t->topk <= K_MAX_TOPK && t->steps >= 1 && t->steps <= K_MAX_STEPS &&
          t->nodes >= 1 && t->nodes <= K_MAX_NODES);
    size_t n = (size_t)tree_candidates(t->topk, t->steps);
    return (struct tree_growth){
        .topk = t->topk, .steps = t->steps, .token = cpu_i32(t->token, n),
        .parent = cpu_i32(t->parent, n), .cell = cpu_i32(t->cell, n),
        .front = cpu_i32(t->front, (size_t)t->steps * (size_t)t->topk), .logp = cpu_f32(t->logp, n),
        .score = cpu_f32(t->score, n)};
}

/* ---- what a row sees ------------------------------------------------------------------------- */

static void check_reach(const struct k_reach *a, int n_reach, int rows, int slots, int most)
{
    CHECK(n_reach >= 0 && n_reach <= 2);
    for (int p = 0; p < n_reach; p++) {
        size_t n = (size_t)rows;
        CHECK(a[p].expand_w >= (a[p].window > 0 ? min_int(most, a[p].window) : most));
        cpu_i32(a[p].slots, (size_t)slots);
        cpu_i32(a[p].lo, n), cpu_i32(a[p].hi, n), cpu_i32(a[p].n_expand, n);
        cpu_i32(a[p].expand, n * (size_t)a[p].expand_w);
    }
}

/* Writes what row r sees: its n ancestors in `cell`, itself the last, behind the prefix. */
static void reach_row(const struct k_reach *a, int r, int prefix, const int *cell, int n)
{
    const int32_t *slot = a->slots.p;
    int32_t *expand = (int32_t *)a->expand.p + (size_t)r * (size_t)a->expand_w;
    struct row_extent x = row_extent(prefix, n, a->window);
    ((int32_t *)a->lo.p)[r] = x.lo;
    ((int32_t *)a->hi.p)[r] = x.hi;
    ((int32_t *)a->n_expand.p)[r] = x.n_expand;
    for (int e = 0; e < a->expand_w; e++)
        expand[e] = e < x.n_expand ? slot[cell[x.skip + e]] : 0;
}

static void note_time(kbuf to)
{
    uint64_t now = clock_ns();
    if (!to.p)
        return;
    CHECK(to.n >= sizeof now);
    memcpy(to.p, &now, sizeof now);
}

/* ---- grow ------------------------------------------------------------------------------------ */

/* The rows of the pass that extends this level's front. */
static void next_pass(const struct k_grow *a, const struct tree_growth *g)
{
    int topk = g->topk, cell[K_MAX_STEPS];
    const int32_t *front = g->front + mul64(a->level - 1, topk);
    int prefix = *cpu_i32(a->prefix, 1), root = *cpu_i32(a->root, 1);
    int32_t *token = cpu_i32(a->token, (size_t)topk), *from = cpu_i32(a->from, (size_t)topk);
    check_reach(a->reach, a->n_reach, topk, a->level * topk, a->level);
    for (int k = 0; k < topk; k++) {
        int i = tree_row_candidate(front, k);
        int n = tree_row_cells(front, g->parent, g->cell, topk, a->level, k, cell);
        token[k] = i < 0 ? 0 : g->token[i];
        from[k] = i < 0 ? 0 : a->level == 1 ? root : tree_row_of(topk, i);
        for (int p = 0; p < a->n_reach; p++)
            reach_row(&a->reach[p], k, prefix, cell, n);
    }
}

void cpu_grow(struct kdev *d, const struct k_grow *a)
{
    note_time(a->time);
    if (a->topk)
        cpu_topk(d, a->topk);
    struct tree_growth g = growth_of(a->t);
    CHECK(a->level >= 1 && a->level <= g.steps);
    size_t n = (size_t)(a->level == 1 ? 1 : g.topk) * (size_t)g.topk;
    tree_grow_level(&g, a->level, cpu_i32(a->ids, n), cpu_f32(a->logp, n), a->d2t.p,
                    (int)(a->d2t.n / sizeof(int32_t)));
    if (a->level < g.steps)
        next_pass(a, &g);
}

/* ---- select ---------------------------------------------------------------------------------- */

void cpu_select(struct kdev *, const struct k_select *a)
{
    note_time(a->time);
    struct tree_growth g = growth_of(a->t);
    int nodes = a->t->nodes, steps = a->t->steps, cand[K_MAX_NODES], up[K_MAX_NODES];
    size_t m = (size_t)nodes;
    int root = *cpu_i32(a->root, 1), prefix = *cpu_i32(a->prefix, 1);
    const float *draws = cpu_f32(a->draws, (size_t)steps + 1);
    int32_t *token = cpu_i32(a->token, m), *pos = cpu_i32(a->pos, m);
    int32_t *parent = cpu_i32(a->parent, m), *parent0 = cpu_i32(a->parent0, m);
    float *logp = cpu_f32(a->logp, m), *score = cpu_f32(a->score, m), *u = cpu_f32(a->u, m);
    check_reach(a->reach, a->n_reach, nodes, nodes, min_int(steps + 1, nodes));
    *cpu_i32(a->n, 1) = tree_select(&g, nodes, cand, up);
    for (int r = 0; r < nodes; r++) {
        int i = cand[r], depth = i < 0 ? 0 : tree_level_of(g.topk, i), row[K_MAX_STEPS + 1];
        token[r] = i < 0 ? root : g.token[i];
        pos[r] = prefix + depth;
        parent[r] = up[r];
        parent0[r] = max_int(0, up[r]);
        logp[r] = i < 0 ? 0 : g.logp[i];
        score[r] = i < 0 ? 0 : g.score[i];
        u[r] = draws[depth];
        for (int at = depth, j = r; at >= 0; at--, j = up[j])
            row[at] = j;
        for (int p = 0; p < a->n_reach; p++)
            reach_row(&a->reach[p], r, prefix, row, depth + 1);
    }
}

/* ---- accept ---------------------------------------------------------------------------------- */

/* Rows of the path, root first; 0 of them if there is a choice that is no token. */
static int walk(const struct k_accept *a, int n, int32_t *path)
{
    const int32_t *choice = a->choice.p, *stop = cpu_i32(a->stop, (size_t)a->n_stop);
    for (int i = 0; i < n; i++)
        if (choice[i] < 0)
            return 0;
    return tree_walk(a->token.p, a->parent.p, n, choice,
                     min_int(max_int(1, *cpu_i32(a->limit, 1)), a->steps + 1),
                     *cpu_i32(a->force, 1), stop, a->n_stop, path);
}

void cpu_accept(struct kdev *, const struct k_accept *a)
{
    note_time(a->time);
    size_t m = (size_t)a->nodes, most = (size_t)a->steps + 1;
    CHECK(a->nodes >= 1 && a->nodes <= K_MAX_NODES && a->steps >= 1 && a->steps <= K_MAX_STEPS &&
          a->n_stop >= 0 && a->n_pools >= 0 && a->n_pools <= 2);
    const int32_t *token = cpu_i32(a->token, m), *choice = cpu_i32(a->choice, m);
    int n = *cpu_i32(a->n, 1);
    cpu_i32(a->parent, m);
    CHECK(n >= 1 && n <= a->nodes);
    int32_t *path = cpu_i32(a->path, most), *emitted = cpu_i32(a->emitted, most);
    int len = walk(a, n, path);
    *cpu_i32(a->n_path, 1) = len;
    *cpu_i32(a->last, 1) = max_int(0, len - 1);
    for (int i = 0; i <= a->steps; i++) {
        path[i] = i < len ? path[i] : 0;
        emitted[i] = 0;
    }
    for (int i = 0; i < len; i++)
        emitted[i] = tree_emitted(token, choice, path, len, i);
    for (int p = 0; p < a->n_pools; p++) {
        const int32_t *slot = cpu_i32(a->slots[p], m);
        int32_t *src = cpu_i32(a->src[p], most), *dst = cpu_i32(a->dst[p], most);
        for (int i = 0; i <= a->steps; i++) {
            int cell = min_int(i, a->nodes - 1); /* a path is not longer than the tree */
            src[i] = slot[i < len ? path[i] : cell];
            dst[i] = slot[cell];
        }
    }
}
