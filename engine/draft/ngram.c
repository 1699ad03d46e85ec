/* ngram.c - prompt lookup: a drafter that proposes how the context went on after earlier
 * occurrences of its last tokens (n-grams). It has no weights and keeps nothing between steps. See
 * drafter.h.
 *
 * A match of length m is a place whose m preceding tokens are the last m tokens of the context, m
 * as large as possible but at most LONGEST. Its continuation is the text from there on; a
 * continuation that reaches the end of the context repeats itself, because the text before the end
 * has a period. The longest matches come first, of equal ones the most recent; at most MATCHES are
 * used.
 *
 * Tree: the continuations are merged in a trie. The best node whose parent is in the tree joins the
 * tree, until it has as many nodes as the shape allows; at most topk nodes a depth, and none whose
 * score is below LEAST. The score of a node is the product of q from the root down; ties: the node
 * that an earlier match made.
 *
 * q of a node is estimated by partial matching (PPM, Cleary and Witten 1984) from the matches that
 * pass through its parent: c matches of the greatest length share the probability c / (c + e)
 * equally; the rest, the escape, is shared out among the matches of the next length in the same
 * way, and so on. e = 8 / 3^(m - 1) where m tokens match, those of the path to the parent included:
 * fitted to replies of the bundled model, in which (lists apart) the latest match of 1, 2, 3, 4
 * tokens gave the next token in 14, 42, 47, 77 of 100 cases.
 */
#include "engine/draft/drafter.h"

#include <math.h>

enum {
    LONGEST = 5,
    MATCHES = 32,
    NODES = 1 + MATCHES * MAX_STEPS,
};
static const float LEAST = 0.2f; /* a guess that is right less often is not worth its row */

struct match {
    int at, length; /* where the continuation begins */
};

struct ngram_node {
    int32_t token;
    int parent, depth;
    int child, sibling;     /* the first child, the next sibling; 0: none */
    int count[LONGEST + 1]; /* matches of each length that pass through */
    float q, score;
    int index; /* in the tree; -1: not there */
};

struct ngram {
    struct drafter base;
    struct match match[MATCHES];
    int n_match;
    struct ngram_node node[NODES]; /* the trie; 0 is the root */
    int n_node;
};

/* ---- matches --------------------------------------------------------------------------------- */

static int match_length(const int32_t *token, int n, int at)
{
    int m = 0;
    while (m < LONGEST && m < at && token[at - 1 - m] == token[n - 1 - m])
        m++;
    return m;
}

/* The most recent matches of each length, in one pass over the context from its end. */
static void find_matches(struct ngram *g, const int32_t *token, int n)
{
    int at[LONGEST + 1][MATCHES], found[LONGEST + 1] = {0};
    for (int i = n - 1; i > 0 && found[LONGEST] < MATCHES; i--) {
        int m = token[i - 1] == token[n - 1] ? match_length(token, n, i) : 0;
        if (m > 0 && found[m] < MATCHES)
            at[m][found[m]++] = i;
    }
    g->n_match = 0;
    for (int m = LONGEST; m > 0; m--)
        for (int i = 0; i < found[m] && g->n_match < MATCHES; i++)
            g->match[g->n_match++] = (struct match){at[m][i], m};
}

/* ---- the trie -------------------------------------------------------------------------------- */

static int child_of(struct ngram *g, int parent, int32_t token)
{
    int *link = &g->node[parent].child;
    while (*link && g->node[*link].token != token)
        link = &g->node[*link].sibling;
    if (!*link) {
        *link = g->n_node++;
        g->node[*link] = (struct ngram_node){.token = token, .parent = parent, .index = -1,
                                             .depth = g->node[parent].depth + 1};
    }
    return *link;
}

static void build_trie(struct ngram *g, const int32_t *token, int n, int depth)
{
    g->node[0] = (struct ngram_node){.parent = -1, .q = 1, .score = 1};
    g->n_node = 1;
    FOR_EACH(const struct match, m, g->match, g->n_match) {
        int at = 0;
        g->node[0].count[m->length]++;
        for (int d = 0; d < depth; d++) {
            at = child_of(g, at, token[m->at + d % (n - m->at)]);
            g->node[at].count[m->length]++;
        }
    }
}

static float estimate(const struct ngram_node *parent, const struct ngram_node *v)
{
    static const float e[LONGEST + 1] = {0, 8, 8.0f / 3, 8.0f / 9, 8.0f / 27, 8.0f / 81};
    float q = 0, rest = 1;
    for (int m = LONGEST; m > 0; m--) {
        float escape = e[min_int(m + parent->depth, LONGEST)];
        float each = rest / ((float)parent->count[m] + escape);
        q += each * (float)v->count[m];
        rest = each * escape;
    }
    return q;
}

/* ---- the tree -------------------------------------------------------------------------------- */

/* The best node that may join; 0: none. */
static int best_node(const struct ngram *g, const int *width, int topk)
{
    int best = 0;
    for (int i = 1; i < g->n_node; i++) {
        const struct ngram_node *v = &g->node[i];
        if (v->index < 0 && g->node[v->parent].index >= 0 && width[v->depth] < topk &&
            v->score >= LEAST && (!best || v->score > g->node[best].score))
            best = i;
    }
    return best;
}

static void fill_tree(struct ngram *g, const struct tree_shape *shape, struct tree *t)
{
    int width[MAX_STEPS + 1] = {0}, most = min_int(shape->nodes, TREE_MAX);
    for (int i = 1; i < g->n_node; i++) { /* parents come before children */
        struct ngram_node *v = &g->node[i];
        v->q = estimate(&g->node[v->parent], v);
        v->score = g->node[v->parent].score * v->q;
    }
    for (int i; t->n < most && (i = best_node(g, width, shape->topk)) > 0;) {
        struct ngram_node *v = &g->node[i];
        v->index = tree_add(t, g->node[v->parent].index, v->token, v->q, logf(v->score));
        width[v->depth]++;
    }
}

/* ---- the interface --------------------------------------------------------------------------- */

static struct drafter *open_ngram(const struct drafter_ops *ops, const struct drafter_setup *s,
                                  struct err *e)
{
    (void)ops, (void)s, (void)e;
    struct ngram *g = xcalloc(1, sizeof *g);
    return &g->base;
}

static void close_ngram(struct drafter *d)
{
    free(d);
}

static bool ready(const struct drafter *, const struct drafting *lane)
{
    return lane->n_token > 1;
}

static bool grow(struct drafter *d, struct pass *ps, struct drafting *lane, int n,
                 const struct tree_shape *shape, struct err *e)
{
    struct ngram *g = (struct ngram *)d;
    (void)ps, (void)e;
    for (int b = 0; b < n; b++) {
        find_matches(g, lane[b].token, lane[b].n_token);
        build_trie(g, lane[b].token, lane[b].n_token, min_int(lane[b].max_depth, shape->steps));
        fill_tree(g, shape, lane[b].tree);
    }
    return true;
}

const struct drafter_ops ngram_drafter = {
    .name = "ngram", .about = "n-gram lookup in the context", .weightless = true,
    .kv = DRAFT_KV_NONE, .open = open_ngram, .close = close_ngram, .ready = ready, .grow = grow};
