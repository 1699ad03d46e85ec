/* tree_rules.h - the rules of a draft tree, once for host and device: how candidates are numbered,
 * scored and ordered, which nodes are accepted. (What a row sees: window.h.)
 *
 * The CPU's operations (cpu/tree.c), the CUDA kernels (cuda/tree/tree.cu), the drafter's growth on
 * the host and the engine's acceptance all take the rules from here; kernels may compute the same
 * values in parallel. Candidates grow level by level. Level 1 holds the topk guesses after the
 * root; level l > 1 holds topk guesses after each candidate of the front of level l - 1. A front is
 * the topk best candidates of a level, best first. Row k of the pass that computes level l + 1 runs
 * front candidate k of level l and writes its scratch cell. Any thread.
 */
#pragma once

#include "kernels/kernels.h"

#include <math.h>

#ifdef __CUDACC__
#define TREE_RULE static __host__ __device__ __forceinline__
#else
#define TREE_RULE static inline
#endif

/* ---- candidates ------------------------------------------------------------------------------ */

/* The index of a level's first candidate. After it the level's candidates are ordered by the front
 * row that guessed them, then by rank: first + row * topk + rank. */
TREE_RULE int tree_level_first(int topk, int level)
{
    return level == 1 ? 0 : topk + (level - 2) * topk * topk;
}
TREE_RULE int tree_candidates(int topk, int steps)
{
    return tree_level_first(topk, steps + 1);
}
TREE_RULE int tree_level_of(int topk, int i)
{
    return i < topk ? 1 : 2 + (i - topk) / (topk * topk);
}
/* The front row that guessed candidate i: its row in the pass of its level; 0 at level 1. */
TREE_RULE int tree_row_of(int topk, int i)
{
    return i < topk ? 0 : (i - topk) % (topk * topk) / topk;
}
/* The draft's scratch cell of front candidate k of a level. */
TREE_RULE int tree_scratch_cell(int topk, int level, int k)
{
    return (level - 1) * topk + k;
}
/* The target's id of a draft id; d2t NULL: the same. n: ids in d2t. -1: none. */
TREE_RULE int32_t tree_target_id(const int32_t *d2t, int n, int32_t id)
{
    return id < 0 ? -1 : !d2t ? id : id < n ? d2t[id] : -1;
}
/* A score is the sum of log probabilities along the path; `parent` is 0 at level 1. */
TREE_RULE float tree_score(float parent, float logp)
{
    return parent + logp;
}
/* Maps a candidate's score to an integer in the same order (0 and -0 are equal); 0: there is no
 * such candidate, because its token is none or its score is not a number. Of equal keys the lower
 * index comes first. */
TREE_RULE uint32_t tree_key(float score, int32_t token)
{
    float sum = score + 0.f;
    uint32_t u;
    memcpy(&u, &sum, sizeof u);
    u ^= (0u - (u >> 31)) | 0x80000000u; /* before the tests, so that no branch is needed */
    return token < 0 || score != score ? 0 : u;
}
/* The candidate that row k of a level's pass extends: a row without a front candidate repeats row 0
 * (but writes a cell of its own). front: (topk) of the level; -1: row 0 has none either. */
TREE_RULE int32_t tree_row_candidate(const int32_t *front, int k)
{
    return front[k] >= 0 ? front[k] : front[0];
}

/* ---- acceptance ------------------------------------------------------------------------------ */

/* The walk begins at the root. At row `at` the target's own token is choice[at]; the first child
 * that holds it is accepted, and the walk goes on there. If acceptance is forced (benchmarks), the
 * first child is accepted whatever was chosen. */
TREE_RULE bool tree_accepts(int parent, int at, int32_t token, int32_t choice, bool forced)
{
    return parent == at && (forced || token == choice);
}
/* Most rows of a path, the root counted: `limit` (below 1 counts as 1), and `force` if that is
 * above 0. */
TREE_RULE int tree_limit(int limit, int force)
{
    limit = limit < 1 ? 1 : limit;
    return force > 0 && force < limit ? force : limit;
}
/* Whether a chosen token ends the path: it is a stop token, and acceptance is not forced. */
TREE_RULE bool tree_stops(const int32_t *stop, int n_stop, int32_t token, bool forced)
{
    bool any = false;
    for (int i = 0; i < n_stop; i++)
        any |= stop[i] == token;
    return any && !forced;
}

#ifndef __CUDACC__

/* ---- the same for whole trees, on the host --------------------------------------------------- */

/* Candidates of a tree: n = tree_candidates(topk, steps). */
struct tree_growth {
    int topk, steps;
    int32_t *token, *parent, *cell; /* (n) token -1: none; parent: candidate, -1: the root; cell:
                                       scratch cell, -1: not extended */
    int32_t *front;                 /* (steps, topk) candidates, -1: none */
    float *logp, *score;            /* (n) */
};

/* The k best of candidates [first, end), best first; returns how many there are. */
static inline int tree_best(const struct tree_growth *g, int first, int end, int k, int *out)
{
    uint32_t key[K_MAX_NODES] = {0};
    int n = 0;
    CHECK(k <= K_MAX_NODES);
    for (int i = first; i < end; i++) {
        uint32_t mine = tree_key(g->score[i], g->token[i]);
        int at = n;
        while (at > 0 && mine > key[at - 1])
            at--;
        if (mine == 0 || at == k)
            continue;
        n = n < k ? n + 1 : k;
        memmove(out + at + 1, out + at, (size_t)(n - at - 1) * sizeof *out);
        memmove(key + at + 1, key + at, (size_t)(n - at - 1) * sizeof *key);
        out[at] = i;
        key[at] = mine;
    }
    return n;
}

/* Adds the candidates of a level and chooses its front; returns how many front candidates there
 * are. ids, logp: (front rows, topk) guesses as the draft's ids; rows without a front candidate are
 * not read. */
static inline int tree_grow_level(struct tree_growth *g, int level, const int32_t *ids,
                                  const float *logp, const int32_t *d2t, int n_d2t)
{
    int topk = g->topk, first = tree_level_first(topk, level), order[K_MAX_TOPK];
    for (int row = 0; row < (level == 1 ? 1 : topk); row++) {
        int up = level == 1 ? -1 : g->front[(level - 2) * topk + row];
        bool none = level > 1 && up < 0;
        CHECK(up < first);
        for (int i = row * topk; i < (row + 1) * topk; i++) {
            g->token[first + i] = none ? -1 : tree_target_id(d2t, n_d2t, ids[i]);
            g->parent[first + i] = up;
            g->cell[first + i] = -1;
            g->logp[first + i] = none ? -INFINITY : logp[i];
            g->score[first + i] =
                none ? -INFINITY : tree_score(up < 0 ? 0 : g->score[up], logp[i]);
        }
    }
    int n = tree_best(g, first, tree_level_first(topk, level + 1), topk, order);
    for (int k = 0; k < topk; k++) {
        g->front[(level - 1) * topk + k] = k < n ? order[k] : -1;
        if (k < n && level < g->steps)
            g->cell[order[k]] = tree_scratch_cell(topk, level, k);
    }
    return n;
}

/* The scratch cells of the ancestors of row k of the pass that extends a level, the row's own cell
 * last; returns how many. front: (topk) of the level. A row that extends nothing has only
 * itself. */
static inline int tree_row_cells(const int32_t *front, const int32_t *parent, const int32_t *cell,
                                 int topk, int level, int k, int *out)
{
    int i = tree_row_candidate(front, k), n = i < 0 ? 1 : level;
    for (int at = n - 1; at >= 0 && i >= 0; at--, i = parent[i])
        out[at] = cell[i];
    out[n - 1] = tree_scratch_cell(topk, level, k);
    return n;
}

/* Selects the rows of the verify pass: row 0 is the root, then the nodes - 1 best candidates in the
 * order of their indices. cand, parent: (nodes) the candidate of each row and its parent's row, -1
 * for row 0 and after the last row. Returns the number of rows. A parent is always selected with
 * its child: its score is at least as good (log probabilities are not positive), its index
 * lower. */
static inline int tree_select(const struct tree_growth *g, int nodes, int *cand, int *parent)
{
    enum { MOST = K_MAX_TOPK + (K_MAX_STEPS - 1) * K_MAX_TOPK * K_MAX_TOPK };
    int order[K_MAX_NODES], row[MOST] = {0}, all = tree_candidates(g->topk, g->steps), n = 1;
    CHECK(all <= MOST);
    int kept = tree_best(g, 0, all, nodes - 1, order);
    for (int i = 0; i < kept; i++)
        row[order[i]] = -1;
    for (int r = 0; r < nodes; r++)
        cand[r] = parent[r] = -1;
    for (int i = 0; i < all; i++) {
        if (row[i] == 0)
            continue;
        int up = g->parent[i];
        CHECK(up < i && (up < 0 || row[up] > 0));
        row[i] = n;
        cand[n] = i;
        parent[n++] = up < 0 ? 0 : row[up];
    }
    return n;
}

/* Walks a tree of n rows and writes the accepted ones, root first, to path; returns how many. */
static inline int tree_walk(const int32_t *token, const int32_t *parent, int n,
                            const int32_t *choice, int limit, int force, const int32_t *stop,
                            int n_stop, int32_t *path)
{
    int len = 0, most = tree_limit(limit, force);
    for (int at = 0; at < n;) {
        path[len++] = at;
        if (len == most || tree_stops(stop, n_stop, choice[at], force > 0))
            break;
        int next = at + 1;
        while (next < n && !tree_accepts(parent[next], at, token[next], choice[at], force > 0))
            next++;
        at = next;
    }
    return len;
}

/* The token after row i of a path of len rows: the next row's, for the last one its choice. */
static inline int32_t tree_emitted(const int32_t *token, const int32_t *choice, const int32_t *path,
                                   int len, int i)
{
    return i + 1 < len ? token[path[i + 1]] : choice[path[i]];
}

#endif
