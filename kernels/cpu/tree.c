/* tree.c - a draft tree grown, kept and accepted in plain C: the definition of these
 * operations.
 *
 * Every output is written in full, whatever the tree looks like, so that a run recorded once fits
 * all of them. A parent's score is never below its child's, since log probabilities are not
 * positive, and its index is lower: that is why what select() keeps is a tree.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { MOST_CANDIDATES = K_MAX_TOPK + (K_MAX_STEPS - 1) * K_MAX_TOPK * K_MAX_TOPK };

/* ---- candidates ------------------------------------------------------------------------------ */

/* The arrays of a tree, sizes checked. */
struct cands {
    int topk, n;
    int32_t *token, *parent, *cell, *front;
    float *logp, *score;
};

/* The first candidate of a level; of level steps + 1: how many there are. */
static int level_first(int topk, int level)
{
    return level == 1 ? 0 : topk + (level - 2) * topk * topk;
}

static struct cands cands_of(const struct k_tree *t)
{
    CHECK(t->topk >= 1 && t->topk <= K_MAX_TOPK && t->steps >= 1 && t->steps <= K_MAX_STEPS &&
          t->nodes >= 1 && t->nodes <= K_MAX_NODES);
    int n = level_first(t->topk, t->steps + 1);
    size_t m = (size_t)n;
    return (struct cands){t->topk, n, cpu_i32(t->token, m), cpu_i32(t->parent, m),
                          cpu_i32(t->cell, m), cpu_i32(t->front, (size_t)(t->steps * t->topk)),
                          cpu_f32(t->logp, m), cpu_f32(t->score, m)};
}

static int level_of(const struct cands *c, int i)
{
    return i < c->topk ? 1 : 2 + (i - c->topk) / (c->topk * c->topk);
}

/* Which row of the last pass guessed a candidate; 0 at level 1. */
static int row_of(const struct cands *c, int i)
{
    return i < c->topk ? 0 : (i - c->topk) % (c->topk * c->topk) / c->topk;
}

/* The k best of candidates [first, end) by score, best first, ties to the lower index. What is not
 * a number is no candidate: it would compare with nothing. */
static int best(const struct cands *c, int first, int end, int k, int *out)
{
    int n = 0;
    for (int i = first; i < end; i++) {
        int at = n;
        if (c->token[i] < 0 || isnan(c->score[i]))
            continue;
        while (at > 0 && c->score[i] > c->score[out[at - 1]])
            at--;
        if (at == k)
            continue;
        n = min_int(n + 1, k);
        memmove(out + at + 1, out + at, (size_t)(n - at - 1) * sizeof *out);
        out[at] = i;
    }
    return n;
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

/* Row r stands behind the n ancestors in `cell`, itself the last. */
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

/* ---- spread ---------------------------------------------------------------------------------- */

static int32_t target_id(const struct k_grow *a, int32_t id)
{
    if (id < 0 || !a->d2t.p)
        return id < 0 ? -1 : id;
    return cpu_i32(a->d2t, (size_t)id + 1)[id];
}

static void add_level(const struct k_grow *a, const struct cands *c)
{
    int rows = a->level == 1 ? 1 : c->topk, first = level_first(c->topk, a->level);
    const int32_t *ids = cpu_i32(a->ids, (size_t)(rows * c->topk));
    const float *logp = cpu_f32(a->logp, (size_t)(rows * c->topk));
    for (int i = 0; i < rows * c->topk; i++) {
        int at = first + i;
        int up = a->level == 1 ? -1 : c->front[(a->level - 2) * c->topk + i / c->topk];
        bool none = a->level > 1 && up < 0;
        CHECK(up < first);
        c->token[at] = none ? -1 : target_id(a, ids[i]);
        c->parent[at] = up;
        c->cell[at] = -1;
        c->logp[at] = none ? -INFINITY : logp[i];
        c->score[at] = none ? -INFINITY : (up < 0 ? 0 : c->score[up]) + logp[i];
    }
}

/* The scratch cells behind which row k of the next pass stands, its own the last; how many. */
static int cells_behind(const struct k_grow *a, const struct cands *c, int k, int *cell)
{
    const int32_t *front = c->front + (a->level - 1) * c->topk;
    int i = front[k] >= 0 ? front[k] : front[0], own = (a->level - 1) * c->topk + k;
    int n = i < 0 ? 1 : a->level;
    for (int at = n - 1; at >= 0 && i >= 0; at--, i = c->parent[i])
        cell[at] = c->cell[i];
    cell[n - 1] = own;
    return n;
}

static void next_pass(const struct k_grow *a, const struct cands *c)
{
    const int32_t *front = c->front + (a->level - 1) * c->topk;
    int prefix = *cpu_i32(a->prefix, 1), root = *cpu_i32(a->root, 1), cell[K_MAX_STEPS];
    int32_t *token = cpu_i32(a->token, (size_t)c->topk), *from = cpu_i32(a->from, (size_t)c->topk);
    check_reach(a->reach, a->n_reach, c->topk, a->level * c->topk, a->level);
    for (int k = 0; k < c->topk; k++)
        if (front[k] >= 0)
            c->cell[front[k]] = (a->level - 1) * c->topk + k;
    for (int k = 0; k < c->topk; k++) {
        int i = front[k] >= 0 ? front[k] : front[0], n = cells_behind(a, c, k, cell);
        token[k] = i < 0 ? 0 : c->token[i];
        from[k] = i < 0 ? 0 : a->level == 1 ? root : row_of(c, i);
        for (int p = 0; p < a->n_reach; p++)
            reach_row(&a->reach[p], k, prefix, cell, n);
    }
}

void cpu_grow(struct kdev *d, const struct k_grow *a)
{
    note_time(a->time);
    if (a->topk)
        cpu_topk(d, a->topk);
    struct cands c = cands_of(a->t);
    CHECK(a->level >= 1 && a->level <= a->t->steps);
    int32_t *front = c.front + (a->level - 1) * c.topk;
    add_level(a, &c);
    int order[K_MAX_TOPK], n = best(&c, level_first(c.topk, a->level),
                                    level_first(c.topk, a->level + 1), c.topk, order);
    for (int k = 0; k < c.topk; k++)
        front[k] = k < n ? order[k] : -1;
    if (a->level < a->t->steps)
        next_pass(a, &c);
}

/* ---- keep ------------------------------------------------------------------------------------ */

/* Which candidate each row of the verify pass is, -1: none (the root, and beyond the count), and
 * its row's parent. Returns how many rows there are, the root counted. */
static int pick(const struct cands *c, int nodes, int *cand, int *parent)
{
    int order[K_MAX_NODES], row[MOST_CANDIDATES] = {0}, n = 1;
    int kept = best(c, 0, c->n, nodes - 1, order);
    for (int i = 0; i < kept; i++)
        row[order[i]] = -1;
    for (int r = 0; r < nodes; r++)
        cand[r] = parent[r] = -1;
    for (int i = 0; i < c->n; i++) {
        if (row[i] == 0)
            continue;
        int up = c->parent[i];
        CHECK(up < i && (up < 0 || row[up] > 0)); /* the parent was kept too */
        row[i] = n;
        cand[n] = i;
        parent[n++] = up < 0 ? 0 : row[up];
    }
    return n;
}

void cpu_select(struct kdev *d, const struct k_select *a)
{
    (void)d;
    note_time(a->time);
    struct cands c = cands_of(a->t);
    int nodes = a->t->nodes, steps = a->t->steps, cand[K_MAX_NODES], up[K_MAX_NODES];
    size_t m = (size_t)nodes;
    int root = *cpu_i32(a->root, 1), prefix = *cpu_i32(a->prefix, 1);
    const float *draws = cpu_f32(a->draws, (size_t)steps + 1);
    int32_t *token = cpu_i32(a->token, m), *pos = cpu_i32(a->pos, m);
    int32_t *parent = cpu_i32(a->parent, m), *parent0 = cpu_i32(a->parent0, m);
    float *logp = cpu_f32(a->logp, m), *score = cpu_f32(a->score, m), *u = cpu_f32(a->u, m);
    check_reach(a->reach, a->n_reach, nodes, nodes, min_int(steps + 1, nodes));
    *cpu_i32(a->n, 1) = pick(&c, nodes, cand, up);
    for (int r = 0; r < nodes; r++) {
        int i = cand[r], depth = i < 0 ? 0 : level_of(&c, i), row[K_MAX_STEPS + 1];
        token[r] = i < 0 ? root : c.token[i];
        pos[r] = prefix + depth;
        parent[r] = up[r];
        parent0[r] = max_int(0, up[r]);
        logp[r] = i < 0 ? 0 : c.logp[i];
        score[r] = i < 0 ? 0 : c.score[i];
        u[r] = draws[depth];
        for (int at = depth, j = r; at >= 0; at--, j = up[j])
            row[at] = j;
        for (int p = 0; p < a->n_reach; p++)
            reach_row(&a->reach[p], r, prefix, row, depth + 1);
    }
}

/* ---- accept ---------------------------------------------------------------------------------- */

static bool stops(const struct k_accept *a, int32_t id)
{
    const int32_t *stop = cpu_i32(a->stop, (size_t)a->n_stop);
    for (int i = 0; i < a->n_stop; i++)
        if (stop[i] == id)
            return true;
    return false;
}

/* Rows of the path, root first; 0 of them if there is a choice that is no token. */
static int walk(const struct k_accept *a, int n, int32_t *path)
{
    const int32_t *choice = a->choice.p, *token = a->token.p, *parent = a->parent.p;
    int force = *cpu_i32(a->force, 1), limit = max_int(1, *cpu_i32(a->limit, 1)), len = 0;
    for (int i = 0; i < n; i++)
        if (choice[i] < 0)
            return 0;
    limit = min_int(force > 0 ? min_int(limit, force) : limit, a->steps + 1);
    for (int at = 0; at >= 0;) {
        path[len++] = at;
        if (len == limit || (force <= 0 && stops(a, choice[at])))
            break;
        int next = at + 1;
        while (next < n && (parent[next] != at || (force <= 0 && token[next] != choice[at])))
            next++;
        at = next < n ? next : -1;
    }
    return len;
}

void cpu_accept(struct kdev *d, const struct k_accept *a)
{
    (void)d;
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
        emitted[i] = i + 1 < len ? token[path[i + 1]] : choice[path[i]];
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
