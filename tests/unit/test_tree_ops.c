/* test_tree_ops.c - growing, keeping and accepting a draft tree: grow(), select(), accept().
 *
 * A case lays every input and output of one whole growth into one image, poisoned where nothing is
 * given, with guard words behind each piece. The CPU's image is compared with a reference that
 * grows the same tree the way a textbook would: lists of nodes, a full sort, sets of visible keys,
 * a walk from child to child. Where there is a GPU, its whole image must equal the CPU's in every
 * word.
 */
#include "engine/cache/tree.h"
#include "tests/few.h"
#include "kernels/tree_rules.h"
#include "tests/kernel_cases.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TOPK = K_MAX_TOPK, STEPS = K_MAX_STEPS, GUARD = 8, POISON = 0xA7, MOST_IDS = 50,
       MOST_CANDS = TOPK + (STEPS - 1) * TOPK * TOPK };

/* ---- a case ---------------------------------------------------------------------------------- */

struct a_case {
    int topk, steps, nodes, n_reach, n_ids, n_stop;
    int prefix, committed, root, root_token, limit, force;
    int window[2], spare_w[2]; /* spare_w: columns more than needed */
    bool d2t;
    int32_t map[MOST_IDS], stop[3];
    int32_t ids[STEPS][TOPK * TOPK];
    float logp[STEPS][TOPK * TOPK], draws[STEPS + 1];
    int32_t draft_slot[2][STEPS * TOPK], slot[2][K_MAX_NODES], choice[K_MAX_NODES];
};

/* Log probabilities with ties, some of them extreme. */
static float rnd_logp(int kind)
{
    if (kind == 0)
        return -(float)rnd_int(4) / 2;
    if (kind == 1)
        return rnd_int(5) == 0 ? -INFINITY : rnd_int(9) == 0 ? NAN : -(float)rnd_int(30) / 8;
    if (kind == 2)
        return rnd_int(3) ? 0 : -0.f;
    return -fabsf(rnd_normal() * (rnd_int(3) ? 1 : 20));
}

static int rnd_window(int prefix, int deepest)
{
    int kind = rnd_int(4);
    return kind == 0 ? 0 : kind == 1 ? 1 + rnd_int(deepest) : 1 + rnd_int(prefix + deepest + 3);
}

static void draw_case(struct a_case *c, int topk, int steps, int nodes)
{
    int kind = rnd_int(4), holes = rnd_int(3) ? 0 : 1 + rnd_int(4);
    memset(c, 0, sizeof *c);
    c->topk = topk, c->steps = steps, c->nodes = nodes;
    c->n_reach = 1 + rnd_int(2), c->n_ids = 2 + rnd_int(MOST_IDS - 2), c->n_stop = rnd_int(4);
    c->prefix = rnd_int(3) ? rnd_int(300) : rnd_int(3), c->committed = c->prefix + rnd_int(2);
    c->root = rnd_int(9), c->root_token = rnd_int(1000), c->d2t = rnd_int(2);
    c->limit = rnd_int(3) ? 100 : rnd_int(6), c->force = rnd_int(4) ? 0 : 1 + rnd_int(6);
    for (int p = 0; p < 2; p++) {
        c->window[p] = rnd_window(c->prefix, steps);
        c->spare_w[p] = rnd_int(3);
        for (int i = 0; i < STEPS * TOPK; i++)
            c->draft_slot[p][i] = rnd_int(100000);
        for (int i = 0; i < K_MAX_NODES; i++)
            c->slot[p][i] = rnd_int(100000);
    }
    for (int i = 0; i < MOST_IDS; i++)
        c->map[i] = rnd_int(200000);
    for (int i = 0; i < 3; i++)
        c->stop[i] = c->d2t ? c->map[rnd_int(c->n_ids)] : rnd_int(c->n_ids);
    for (int l = 0; l < STEPS; l++)
        for (int i = 0; i < TOPK * TOPK; i++) {
            c->ids[l][i] = holes && rnd_int(holes) == 0 ? -1 - rnd_int(2) : rnd_int(c->n_ids);
            c->logp[l][i] = rnd_logp(kind);
        }
    for (int i = 0; i <= STEPS; i++)
        c->draws[i] = rnd_unit();
}

/* ---- the reference: a list of nodes, each with its path -------------------------------------- */

struct node {
    int level, row; /* row of the pass (of level - 1) that guessed it */
    int place;      /* candidate index on the device */
    int up;         /* in the list, -1: the root */
    int32_t token;
    float logp, score;
    int cell, kept;
};

struct grown {
    struct node v[MOST_CANDS];
    int n;
    int front[STEPS][TOPK], n_front[STEPS]; /* in the list, of level l at l - 1 */
    int keep[K_MAX_NODES], n_keep;          /* in the list; [0] is the root, -1 */
    struct tree tree;
};

static const struct grown *sorting;

static int by_score(const void *a, const void *b)
{
    const struct node *x = &sorting->v[*(const int *)a], *y = &sorting->v[*(const int *)b];
    return x->score > y->score ? -1 : x->score < y->score ? 1 : x->place - y->place;
}

/* The true candidates of level `level` (0: of all), best first, at most k. */
static int sorted(const struct grown *g, int level, int k, int *out)
{
    int all[MOST_CANDS], n = 0;
    for (int i = 0; i < g->n; i++)
        if ((!level || g->v[i].level == level) && g->v[i].token >= 0 && !isnan(g->v[i].score))
            all[n++] = i;
    sorting = g;
    qsort(all, (size_t)n, sizeof *all, by_score);
    memcpy(out, all, (size_t)min_int(n, k) * sizeof *out);
    return min_int(n, k);
}

static void grow_level(const struct a_case *c, struct grown *g, int level)
{
    int rows = level == 1 ? 1 : g->n_front[level - 2];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < c->topk; j++) {
            int up = level == 1 ? -1 : g->front[level - 2][r];
            int32_t id = c->ids[level - 1][r * c->topk + j];
            float logp = c->logp[level - 1][r * c->topk + j];
            g->v[g->n++] = (struct node){
                .level = level, .row = r, .up = up, .cell = -1, .logp = logp,
                .place = (level == 1 ? 0 : c->topk + (level - 2) * c->topk * c->topk) +
                         r * c->topk + j,
                .token = id < 0 ? -1 : c->d2t ? c->map[id] : id,
                .score = (up < 0 ? 0 : g->v[up].score) + logp};
        }
    g->n_front[level - 1] = sorted(g, level, c->topk, g->front[level - 1]);
    for (int k = 0; k < g->n_front[level - 1] && level < c->steps; k++)
        g->v[g->front[level - 1][k]].cell = (level - 1) * c->topk + k;
}

static void grow(const struct a_case *c, struct grown *g)
{
    int best[K_MAX_NODES];
    memset(g, 0, sizeof *g);
    for (int l = 1; l <= c->steps; l++)
        grow_level(c, g, l);
    int n = sorted(g, 0, c->nodes - 1, best);
    for (int i = 0; i < n; i++)
        g->v[best[i]].kept = 1;
    tree_init(&g->tree, c->root_token);
    g->keep[0] = -1;
    for (int i = 0; i < g->n; i++)
        if (g->v[i].kept) {
            struct node *v = &g->v[i];
            assert_true(v->up < 0 || g->v[v->up].kept);
            v->kept = tree_add(&g->tree, v->up < 0 ? 0 : g->v[v->up].kept, v->token,
                               expf(v->logp), v->score);
            g->keep[v->kept] = i;
        }
    g->n_keep = n + 1;
}

/* Choices that often follow the tree, now and then stop, and seldom are none. */
static void draw_choices(struct a_case *c, const struct grown *g)
{
    int negative = rnd_int(12) == 0 ? rnd_int(c->nodes) : -1;
    for (int i = 0; i < c->nodes; i++) {
        c->choice[i] = rnd_int(200000);
        if (rnd_int(8) == 0)
            c->choice[i] = c->stop[rnd_int(3)];
        for (int j = g->n_keep - 1; j > i && i < g->n_keep; j--)
            if (g->tree.parent[j] == i && rnd_int(3))
                c->choice[i] = g->tree.token[j];
        if (i == negative)
            c->choice[i] = -1 - rnd_int(3);
    }
}

/* ---- the image ------------------------------------------------------------------------------- */

struct image {
    uint8_t *bytes;
    size_t n, cap;
    struct { size_t at, n; } guard[256];
    int n_guard;
};

struct piece {
    size_t at, n; /* bytes */
};

static struct piece lay(struct image *m, const void *src, size_t words)
{
    struct piece p = {m->n, words * 4};
    CHECK(m->n + p.n + GUARD * 4 <= m->cap && m->n_guard < 256);
    if (src)
        memcpy(m->bytes + p.at, src, p.n);
    m->guard[m->n_guard].at = p.at + p.n;
    m->guard[m->n_guard++].n = GUARD * 4;
    m->n += p.n + GUARD * 4;
    return p;
}

struct pass_rows {
    struct piece token, from, lo[2], hi[2], n_expand[2], expand[2];
    int w[2];
};

/* Where everything of a case lies. */
struct layout {
    struct piece c_token, c_parent, c_logp, c_score, c_cell, front;
    struct piece ids[STEPS], logp[STEPS], map, prefix, root, draft_slot[2];
    struct pass_rows pass[STEPS], verify; /* pass[l]: of level l + 1 */
    struct piece root_token, committed, draws, slot[2], n, pos, parent, parent0, k_logp, k_score, u;
    struct piece choice, limit, force, stop, n_path, path, emitted, last, src[2], dst[2];
};

static void lay_rows(struct image *m, const struct a_case *c, struct pass_rows *r, int rows,
                     int most)
{
    r->token = lay(m, NULL, (size_t)rows);
    for (int p = 0; p < c->n_reach; p++) {
        r->w[p] = (c->window[p] ? min_int(most, c->window[p]) : most) + c->spare_w[p];
        r->lo[p] = lay(m, NULL, (size_t)rows);
        r->hi[p] = lay(m, NULL, (size_t)rows);
        r->n_expand[p] = lay(m, NULL, (size_t)rows);
        r->expand[p] = lay(m, NULL, (size_t)(rows * r->w[p]));
    }
}

static void lay_case(struct image *m, const struct a_case *c, struct layout *l)
{
    size_t k = (size_t)c->topk, n = k + (size_t)(c->steps - 1) * k * k, v = (size_t)c->nodes;
    size_t most = (size_t)c->steps + 1;
    l->c_token = lay(m, NULL, n), l->c_parent = lay(m, NULL, n), l->c_logp = lay(m, NULL, n);
    l->c_score = lay(m, NULL, n), l->c_cell = lay(m, NULL, n);
    l->front = lay(m, NULL, (size_t)c->steps * k);
    for (int i = 0; i < c->steps; i++) {
        l->ids[i] = lay(m, c->ids[i], i ? k * k : k);
        l->logp[i] = lay(m, c->logp[i], i ? k * k : k);
        if (i + 1 < c->steps) {
            lay_rows(m, c, &l->pass[i], c->topk, i + 1);
            l->pass[i].from = lay(m, NULL, k);
        }
    }
    l->map = lay(m, c->map, (size_t)c->n_ids);
    l->prefix = lay(m, &c->prefix, 1), l->root = lay(m, &c->root, 1);
    lay_rows(m, c, &l->verify, c->nodes, min_int(c->steps + 1, c->nodes));
    l->root_token = lay(m, &c->root_token, 1), l->committed = lay(m, &c->committed, 1);
    l->draws = lay(m, c->draws, most);
    l->n = lay(m, NULL, 1), l->pos = lay(m, NULL, v), l->parent = lay(m, NULL, v);
    l->parent0 = lay(m, NULL, v), l->k_logp = lay(m, NULL, v), l->k_score = lay(m, NULL, v);
    l->u = lay(m, NULL, v), l->choice = lay(m, c->choice, v);
    l->limit = lay(m, &c->limit, 1), l->force = lay(m, &c->force, 1);
    l->stop = lay(m, c->stop, (size_t)c->n_stop);
    l->n_path = lay(m, NULL, 1), l->path = lay(m, NULL, most), l->emitted = lay(m, NULL, most);
    l->last = lay(m, NULL, 1);
    for (int p = 0; p < c->n_reach; p++) {
        l->draft_slot[p] = lay(m, c->draft_slot[p], (size_t)(c->steps - 1) * k);
        l->slot[p] = lay(m, c->slot[p], v);
        l->src[p] = lay(m, NULL, most), l->dst[p] = lay(m, NULL, most);
    }
}

/* ---- running it ------------------------------------------------------------------------------ */

#define AT(piece) kbuf_at(all, (piece).at, (piece).n)

static struct k_reach reach_at(kbuf all, const struct pass_rows *r, int p, int window,
                               struct piece slots)
{
    return (struct k_reach){.window = window, .expand_w = r->w[p], .slots = AT(slots),
                            .lo = AT(r->lo[p]), .hi = AT(r->hi[p]),
                            .n_expand = AT(r->n_expand[p]), .expand = AT(r->expand[p])};
}

/* Where ids and log probabilities come from, if they are not given: topk() before grow(), or
 * within it. */
struct guessing {
    int vocab;
    bool at_once;
    const float *logits; /* (steps, topk, vocab) */
};

static struct k_topk topk_of(struct case_dev *d, const struct guessing *g, int topk, int level,
                             kbuf ids, kbuf logp)
{
    int rows = level == 1 ? 1 : topk;
    size_t n = (size_t)topk * (size_t)g->vocab;
    kbuf logits = dev_buf(d, g->logits + (size_t)(level - 1) * n, n * sizeof(float));
    return (struct k_topk){.rows = rows, .n = g->vocab, .k = topk, .logits = logits, .ids = ids,
                           .logp = logp};
}

static void launch(struct case_dev *d, kbuf all, const struct a_case *c, const struct layout *l,
                   const struct guessing *g)
{
    struct k_tree t = {c->topk, c->steps, c->nodes, AT(l->c_token), AT(l->c_parent),
                       AT(l->c_logp), AT(l->c_score), AT(l->c_cell), AT(l->front)};
    for (int i = 0; i < c->steps; i++) {
        struct k_grow s = {.t = &t, .level = i + 1, .ids = AT(l->ids[i]), .logp = AT(l->logp[i]),
                             .prefix = AT(l->prefix), .root = AT(l->root)};
        if (c->d2t)
            s.d2t = AT(l->map);
        if (i + 1 < c->steps) {
            s.token = AT(l->pass[i].token), s.from = AT(l->pass[i].from), s.n_reach = c->n_reach;
            for (int p = 0; p < c->n_reach; p++)
                s.reach[p] = reach_at(all, &l->pass[i], p, c->window[p], l->draft_slot[p]);
        }
        struct k_topk best;
        if (g) {
            best = topk_of(d, g, c->topk, i + 1, s.ids, s.logp);
            s.topk = g->at_once ? &best : NULL;
            if (!g->at_once)
                d->k->topk(d->d, &best);
        }
        d->k->grow(d->d, &s);
    }
    struct k_select k = {.t = &t, .root = AT(l->root_token), .prefix = AT(l->committed),
                       .draws = AT(l->draws), .n = AT(l->n), .token = AT(l->verify.token),
                       .pos = AT(l->pos), .parent = AT(l->parent), .parent0 = AT(l->parent0),
                       .logp = AT(l->k_logp), .score = AT(l->k_score), .u = AT(l->u),
                       .n_reach = c->n_reach};
    struct k_accept a = {.nodes = c->nodes, .steps = c->steps, .n_stop = c->n_stop, .n = AT(l->n),
                         .token = AT(l->verify.token), .parent = AT(l->parent),
                         .choice = AT(l->choice), .limit = AT(l->limit), .force = AT(l->force),
                         .stop = AT(l->stop), .n_pools = c->n_reach, .n_path = AT(l->n_path),
                         .path = AT(l->path), .emitted = AT(l->emitted), .last = AT(l->last)};
    for (int p = 0; p < c->n_reach; p++) {
        k.reach[p] = reach_at(all, &l->verify, p, c->window[p], l->slot[p]);
        a.slots[p] = AT(l->slot[p]), a.src[p] = AT(l->src[p]), a.dst[p] = AT(l->dst[p]);
    }
    d->k->select(d->d, &k);
    d->k->accept(d->d, &a);
}

/* The image after everything ran on it; the caller frees it. */
static uint8_t *image_of(struct case_dev *d, const struct a_case *c, const struct image *m,
                         const struct layout *l, const struct guessing *g)
{
    struct err e;
    uint8_t *out = xmalloc(m->n);
    kbuf all = dev_buf(d, m->bytes, m->n);
    launch(d, all, c, l, g);
    d->k->get(d->d, out, all, m->n);
    if (!d->k->sync(d->d, &e))
        fail_msg("%s", e.msg);
    dev_release(d);
    return out;
}

/* ---- comparing with the reference ----------------------------------------------------------- */

static int32_t word(const uint8_t *b, struct piece p, int i)
{
    int32_t v;
    CHECK(i >= 0 && (size_t)i * 4 < p.n);
    memcpy(&v, b + p.at + (size_t)i * 4, 4);
    return v;
}

static void same_float(const uint8_t *b, struct piece p, int i, float want)
{
    int32_t w, got = word(b, p, i);
    memcpy(&w, &want, 4);
    float f;
    memcpy(&f, &got, 4);
    if (got != w && !(isnan(f) && isnan(want)))
        fail_msg("word %d is %.9g, expected %.9g", i, (double)f, (double)want);
}

/* Row r stands behind the slots `path`: it sees logical keys prefix - ... in pages and the path
 * itself, as far as the window reaches back from its own place. */
static void check_reach(const uint8_t *b, const struct pass_rows *rows, int p, int r, int window,
                        int prefix, const int32_t *path, int n)
{
    int q = prefix + n - 1, in_pages = 0, seen = 0, w = rows->w[p];
    int32_t see[STEPS + 1];
    for (int j = 0; j <= q; j++) {
        if (window > 0 && q - j >= window)
            continue;
        if (j < prefix)
            in_pages++;
        else
            see[seen++] = path[j - prefix];
    }
    int lo = word(b, rows->lo[p], r), hi = word(b, rows->hi[p], r);
    assert_int_equal(hi - lo, in_pages);
    assert_int_equal(word(b, rows->n_expand[p], r), seen);
    assert_int_equal(hi + seen - 1, q); /* logical indices are positions */
    for (int e = 0; e < w; e++)
        assert_int_equal(word(b, rows->expand[p], r * w + e), e < seen ? see[e] : 0);
}

static void check_pass(const uint8_t *b, const struct a_case *c, const struct grown *g,
                       const struct layout *l, int level)
{
    const struct pass_rows *rows = &l->pass[level - 1];
    for (int k = 0; k < c->topk; k++) {
        int there = g->n_front[level - 1], n = there ? level : 1;
        int at = there ? g->front[level - 1][k < there ? k : 0] : -1;
        assert_int_equal(word(b, rows->token, k), there ? g->v[at].token : 0);
        assert_int_equal(word(b, rows->from, k), !there ? 0 : level == 1 ? c->root : g->v[at].row);
        for (int p = 0; p < c->n_reach; p++) {
            int32_t path[STEPS];
            for (int i = at, d = n - 1; i >= 0; i = g->v[i].up, d--)
                path[d] = c->draft_slot[p][g->v[i].cell];
            path[n - 1] = c->draft_slot[p][(level - 1) * c->topk + k];
            check_reach(b, rows, p, k, c->window[p], c->prefix, path, n);
        }
    }
}

static void check_candidates(const uint8_t *b, const struct a_case *c, const struct grown *g,
                             const struct layout *l)
{
    static int at[MOST_CANDS];
    int n = (int)(l->c_token.n / 4);
    for (int i = 0; i < n; i++)
        at[i] = -1;
    for (int i = 0; i < g->n; i++)
        at[g->v[i].place] = i;
    for (int i = 0; i < n; i++) {
        const struct node *v = at[i] < 0 ? NULL : &g->v[at[i]];
        assert_int_equal(word(b, l->c_token, i), v ? v->token : -1);
        assert_int_equal(word(b, l->c_cell, i), v ? v->cell : -1);
        assert_int_equal(word(b, l->c_parent, i), v && v->up >= 0 ? g->v[v->up].place : -1);
        same_float(b, l->c_logp, i, v ? v->logp : -INFINITY);
        same_float(b, l->c_score, i, v ? v->score : -INFINITY);
    }
    for (int s = 0; s < c->steps; s++)
        for (int k = 0; k < c->topk; k++)
            assert_int_equal(word(b, l->front, s * c->topk + k),
                             k < g->n_front[s] ? g->v[g->front[s][k]].place : -1);
}

static void check_kept(const uint8_t *b, const struct a_case *c, const struct grown *g,
                       const struct layout *l)
{
    const struct tree *t = &g->tree;
    assert_int_equal(word(b, l->n, 0), t->n);
    for (int r = 0; r < c->nodes; r++) {
        bool node = r > 0 && r < t->n;
        int depth = node ? t->depth[r] : 0, up = node ? t->parent[r] : -1;
        assert_int_equal(word(b, l->verify.token, r), node ? t->token[r] : c->root_token);
        assert_int_equal(word(b, l->pos, r), c->committed + depth);
        assert_int_equal(word(b, l->parent, r), up);
        assert_int_equal(word(b, l->parent0, r), up < 0 ? 0 : up);
        same_float(b, l->k_logp, r, node ? g->v[g->keep[r]].logp : 0);
        same_float(b, l->k_score, r, node ? t->score[r] : 0);
        same_float(b, l->u, r, c->draws[depth]);
        for (int p = 0; p < c->n_reach; p++) {
            int32_t path[STEPS + 1];
            for (int i = node ? t->parent[r] : -1, d = depth - 1; i >= 0; i = t->parent[i], d--)
                path[d] = c->slot[p][i];
            path[depth] = c->slot[p][r];
            check_reach(b, &l->verify, p, r, c->window[p], c->committed, path, depth + 1);
        }
    }
}

/* The first child of a row: any, or one that holds a token. */
static int first_child(const struct tree *t, int row, bool any, int32_t token)
{
    for (int i = 0; i < t->n; i++)
        if (t->parent[i] == row && (any || t->token[i] == token))
            return i;
    return -1;
}

static bool is_stop(const struct a_case *c, int32_t token)
{
    for (int s = 0; s < c->n_stop; s++)
        if (token == c->stop[s])
            return true;
    return false;
}

/* The path as the textbook walks it, or the first children if acceptance is forced. */
static int wanted_path(const struct a_case *c, const struct grown *g, int *path)
{
    const struct tree *t = &g->tree;
    bool forced = c->force > 0;
    int n = 0;
    for (int i = 0; i < t->n; i++)
        if (c->choice[i] < 0)
            return 0;
    for (int at = 0; at >= 0; at = first_child(t, at, forced, c->choice[at])) {
        if (n > 0 && (n >= c->limit || (forced && n >= c->force)))
            break;
        path[n++] = at;
        if (!forced && is_stop(c, c->choice[at]))
            break;
    }
    return n;
}

static void check_accepted(const uint8_t *b, const struct a_case *c, struct grown *g,
                           const struct layout *l)
{
    int path[TREE_MAX], n = wanted_path(c, g, path);
    assert_int_equal(word(b, l->n_path, 0), n);
    assert_int_equal(word(b, l->last, 0), n ? n - 1 : 0);
    for (int i = 0; i <= c->steps; i++) {
        int own = min_int(i, c->nodes - 1);
        int32_t then = i + 1 < n ? g->tree.token[path[i + 1]] : i < n ? c->choice[path[i]] : 0;
        assert_int_equal(word(b, l->path, i), i < n ? path[i] : 0);
        assert_int_equal(word(b, l->emitted, i), then);
        assert_true(i >= n || c->force > 0 || then == c->choice[path[i]]);
        for (int p = 0; p < c->n_reach; p++) {
            assert_int_equal(word(b, l->src[p], i), c->slot[p][i < n ? path[i] : own]);
            assert_int_equal(word(b, l->dst[p], i), c->slot[p][own]);
        }
    }
}

/* Inputs and guards are as they were given. */
static void check_untouched(const uint8_t *b, const struct image *m)
{
    for (int i = 0; i < m->n_guard; i++)
        assert_memory_equal(b + m->guard[i].at, m->bytes + m->guard[i].at, m->guard[i].n);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static struct case_dev C, G; /* the CPU; a GPU, or none */
static int n_cases, n_compared, paths[STEPS + 2];

/* A sum that is no number has no bits of its own; only scores are sums. */
static bool both_nan(const uint8_t *a, const uint8_t *b, struct piece sums, size_t at)
{
    float x, y;
    memcpy(&x, a + at, 4);
    memcpy(&y, b + at, 4);
    return at >= sums.at && at < sums.at + sums.n && isnan(x) && isnan(y);
}

static void one_case(int topk, int steps, int nodes)
{
    static struct a_case c;
    static struct grown g;
    static struct layout l;
    struct image m = {.cap = 1 << 20};
    draw_case(&c, topk, steps, nodes);
    grow(&c, &g);
    draw_choices(&c, &g);
    memset(m.bytes = xmalloc(m.cap), POISON, m.cap);
    lay_case(&m, &c, &l);
    uint8_t *cpu = image_of(&C, &c, &m, &l, NULL);
    check_untouched(cpu, &m);
    check_candidates(cpu, &c, &g, &l);
    for (int s = 1; s < steps; s++)
        check_pass(cpu, &c, &g, &l, s);
    check_kept(cpu, &c, &g, &l);
    check_accepted(cpu, &c, &g, &l);
    paths[word(cpu, l.n_path, 0)]++;
    n_cases++;
    if (G.d) {
        uint8_t *gpu = image_of(&G, &c, &m, &l, NULL);
        for (size_t i = 0; i < m.n; i += 4)
            if (memcmp(gpu + i, cpu + i, 4) != 0 && !both_nan(gpu, cpu, l.c_score, i))
                fail_msg("topk %d, steps %d, nodes %d: byte %zu of %zu differs", topk, steps, nodes,
                         i, m.n);
        n_compared++;
        free(gpu);
    }
    free(cpu);
    free(m.bytes);
}

static void test_random_growths(void **state)
{
    (void)state;
    for (int i = 0; i < 1200; i += one_in(30))
        one_case(1 + rnd_int(rnd_int(2) ? 4 : TOPK), 1 + rnd_int(8), 2 + rnd_int(63));
    int deep = 0;
    for (int i = 3; i <= STEPS + 1; i++)
        deep += paths[i];
    assert_true(one_in(2) > 1 ||
                (paths[0] > 10 && paths[1] > 100 && paths[2] > 100 && deep > 100));
}

static void test_shapes_at_the_edges(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 3, 4}, {4, 5, 16}, {8, 5, 60}, {1, 1, 2}, {1, 16, 17},
                                    {16, 16, 64}, {16, 1, 64}, {2, 16, 64}, {16, 2, 2}, {1, 16, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int i = 0; i < 30; i += one_in(10))
            one_case(shapes[s][0], shapes[s][1], shapes[s][2]);
}

/* Logits as they come, with ties; some rows have none, or what is no number. */
static float *draw_logits(const struct a_case *c, int vocab)
{
    size_t rows = (size_t)(c->steps * c->topk), n = (size_t)vocab;
    float *x = rnd_floats(rows * n, 4);
    for (size_t r = 0; r < rows; r++) {
        int kind = rnd_int(12);
        for (size_t i = 0; i < n && kind < 3; i++)
            x[r * n + i] = kind == 0 ? -INFINITY : kind == 1 ? (float)rnd_int(3) : x[r * n + i];
        if (kind == 2)
            x[r * n + (size_t)rnd_int(vocab)] = NAN;
    }
    return x;
}

static void same_with_topk(struct case_dev *d, int topk, int steps, int vocab)
{
    static struct a_case c;
    static struct layout l;
    struct image m = {.cap = 1 << 20};
    draw_case(&c, topk, steps, 20);
    c.d2t = vocab <= c.n_ids;
    float *logits = draw_logits(&c, vocab);
    struct guessing g = {vocab, false, logits};
    memset(m.bytes = xmalloc(m.cap), POISON, m.cap);
    lay_case(&m, &c, &l);
    uint8_t *apart = image_of(d, &c, &m, &l, &g);
    g.at_once = true;
    uint8_t *at_once = image_of(d, &c, &m, &l, &g);
    for (size_t i = 0; i < m.n; i += 4)
        if (memcmp(apart + i, at_once + i, 4) != 0)
            fail_msg("topk %d, steps %d, %d ids: byte %zu of %zu differs", topk, steps, vocab, i,
                     m.n);
    free(apart), free(at_once), free(logits), free(m.bytes);
}

static void test_spread_with_topk(void **state)
{
    (void)state;
    static const int vocabs[] = {16, 40, 513, 5000, 32000, 33000};
    for (int i = 0; i < 40; i += one_in(10)) {
        int topk = i < 6 ? 8 : i < 8 ? 16 : 1 + rnd_int(TOPK), steps = 1 + rnd_int(4);
        same_with_topk(&C, topk, steps, vocabs[i % 4]);
        if (G.d)
            same_with_topk(&G, topk, steps, vocabs[i % 6]);
    }
}

static void test_the_gpu_is_the_cpu(void **state)
{
    (void)state;
    if (!G.d)
        skip(); /* the comparisons are part of every case above */
    assert_int_equal(n_compared, n_cases);
    assert_true(n_cases >= 1500 || one_in(2) > 1);
}

/* ---- the rules by themselves ----------------------------------------------------------------- */

static void test_candidates_are_numbered_level_by_level(void **state)
{
    (void)state;
    for (int topk = 1; topk <= TOPK; topk++) {
        int i = 0;
        for (int level = 1; level <= STEPS; level++) {
            assert_int_equal(tree_level_first(topk, level), i);
            for (int row = 0; row < (level == 1 ? 1 : topk); row++)
                for (int rank = 0; rank < topk; rank++, i++) {
                    assert_int_equal(tree_level_of(topk, i), level);
                    assert_int_equal(tree_row_of(topk, i), row);
                }
            assert_int_equal(tree_candidates(topk, level), i);
        }
    }
}

static void test_a_map_has_ids_for_its_own_ids_only(void **state)
{
    static const int32_t map[] = {7, 9, 11}; /* the third lies behind a map of two */
    (void)state;
    for (int id = -1; id < 3; id++) {
        assert_int_equal(tree_target_id(map, 2, id), id < 0 || id == 2 ? -1 : map[id]);
        assert_int_equal(tree_target_id(NULL, 0, id), id);
    }
}

static void test_keys_are_ordered_as_scores(void **state)
{
    (void)state;
    static const float extreme[] = {0, -0.f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 3e38f,
                                    -3e38f};
    for (int i = 0; i < 100000; i++) {
        float a = rnd_int(3) ? rnd_logp(rnd_int(4)) : extreme[rnd_int(9)];
        float b = rnd_int(3) ? rnd_logp(rnd_int(4)) : extreme[rnd_int(9)];
        uint32_t x = tree_key(a, rnd_int(5)), y = tree_key(b, rnd_int(5));
        assert_int_equal(x == 0, isnan(a));
        assert_int_equal(tree_key(a, -1), 0);
        if (!isnan(a) && !isnan(b)) {
            assert_int_equal(x > y, a > b);
            assert_int_equal(x == y, a == b);
        }
    }
}

static void test_the_extent_of_a_row_is_its_window(void **state)
{
    (void)state;
    for (int prefix = 0; prefix < 12; prefix++)
        for (int n = 1; n < 8; n++)
            for (int window = 0; window < 20; window++) {
                struct row_extent e = row_extent(prefix, n, window);
                int seen = 0;
                for (int k = 0; k < prefix + n; k++) {
                    bool visible = window == 0 || prefix + n - 1 - k < window;
                    bool paged = k >= e.lo && k < e.hi, listed = k >= prefix + e.skip;
                    assert_int_equal(paged + listed, visible);
                    seen += visible;
                }
                assert_true(seen > 0 && e.lo <= e.hi && e.hi == prefix + e.skip);
                assert_int_equal(e.n_expand, n - e.skip);
            }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidates_are_numbered_level_by_level),
        cmocka_unit_test(test_a_map_has_ids_for_its_own_ids_only),
        cmocka_unit_test(test_keys_are_ordered_as_scores),
        cmocka_unit_test(test_the_extent_of_a_row_is_its_window),
        cmocka_unit_test(test_random_growths),
        cmocka_unit_test(test_shapes_at_the_edges),
        cmocka_unit_test(test_spread_with_topk),
        cmocka_unit_test(test_the_gpu_is_the_cpu),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    dev_open(&C, &kernels_cpu, NULL, 1);
#if HAVE_CUDA
    struct err e;
    G = (struct case_dev){.k = &kernels_cuda};
    G.d = kernels_cuda.open(&(struct k_opts){0}, &e);
#endif
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dev_close(&C);
    if (G.d)
        dev_close(&G);
    return failed;
}
