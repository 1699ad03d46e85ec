/* tree.c - see tree.h. */
#include "engine/cache/tree.h"

#include "kernels/tree_rules.h"

#include <math.h>

enum { PACK_VERSION = 1, PACK_HEAD = 2, PACK_NODE = 18 };

void tree_init(struct tree *t, int32_t root)
{
    memset(t, 0, sizeof *t);
    t->n = 1;
    t->token[0] = root;
    t->parent[0] = -1;
    t->anc[0] = 1;
    t->q[0] = 1;
    t->p[0] = t->u[0] = NAN;
}

int tree_add(struct tree *t, int parent, int32_t token, float q, float score)
{
    CHECK(t->n >= 1 && t->n < TREE_MAX && parent >= 0 && parent < t->n);
    int i = t->n++;
    t->token[i] = token;
    t->parent[i] = (int8_t)parent;
    t->depth[i] = (int8_t)(t->depth[parent] + 1);
    t->fate[i] = FATE_NONE;
    t->anc[i] = t->anc[parent] | UINT64_C(1) << i;
    t->score[i] = score;
    t->q[i] = q;
    t->p[i] = t->u[i] = NAN;
    return i;
}

struct tree_node tree_node(const struct tree *t, int i)
{
    return (struct tree_node){t->token[i], t->q[i], t->p[i], t->u[i], t->parent[i], t->fate[i]};
}

void tree_put(struct tree *t, const struct tree_node *n, float score)
{
    int i = t->n;
    if (i == 0)
        tree_init(t, n->token);
    else
        tree_add(t, n->parent, n->token, n->q, score);
    t->q[i] = n->q;
    t->p[i] = n->p;
    t->u[i] = n->u;
    t->fate[i] = n->fate;
}

bool tree_ok(const struct tree *t, struct err *e)
{
    if (t->n < 1 || t->n > TREE_MAX)
        return err_set(e, ERR_INVARIANT, "tree has %d nodes, expected 1 .. %d", t->n, TREE_MAX);
    if (t->parent[0] != -1)
        return err_set(e, ERR_INVARIANT, "tree rule 1: the root's parent is %d, expected -1",
                       t->parent[0]);
    if (t->depth[0] != 0)
        return err_set(e, ERR_INVARIANT, "tree rule 2: the root's depth is %d, expected 0",
                       t->depth[0]);
    if (t->anc[0] != 1)
        return err_set(e, ERR_INVARIANT,
                       "tree rule 3: the root's ancestors are %#llx, expected 0x1",
                       (unsigned long long)t->anc[0]);
    for (int i = 1; i < t->n; i++) {
        int up = t->parent[i];
        if (up < 0 || up >= i)
            return err_set(e, ERR_INVARIANT, "tree rule 1: node %d has parent %d, expected 0 .. %d",
                           i, up, i - 1);
        if (t->depth[i] != t->depth[up] + 1)
            return err_set(e, ERR_INVARIANT, "tree rule 2: node %d has depth %d, expected %d", i,
                           t->depth[i], t->depth[up] + 1);
        uint64_t anc = t->anc[up] | UINT64_C(1) << i;
        if (t->anc[i] != anc)
            return err_set(e, ERR_INVARIANT,
                           "tree rule 3: node %d has ancestors %#llx, expected %#llx", i,
                           (unsigned long long)t->anc[i], (unsigned long long)anc);
    }
    return true;
}

int tree_depth(const struct tree *t)
{
    int depth = 0;
    for (int i = 0; i < t->n; i++)
        depth = max_int(depth, t->depth[i]);
    return depth;
}

int tree_rank(const struct tree *t, int node, int *of)
{
    int rank = 1;
    *of = 0;
    for (int i = 1; i < t->n; i++) {
        if (t->parent[i] != t->parent[node])
            continue;
        ++*of;
        rank += t->q[i] > t->q[node] || (i < node && !(t->q[i] < t->q[node]));
    }
    return rank;
}

int tree_accepted(const struct tree *t)
{
    int n = 0;
    for (int i = 1; i < t->n; i++)
        n += t->fate[i] == FATE_ACCEPTED;
    return n;
}

uint64_t tree_digest(const struct tree *t)
{
    uint64_t h = mix64((uint64_t)t->n);
    for (int i = 0; i < t->n; i++)
        h = mix64(h ^ ((uint64_t)(uint32_t)t->token[i] | (uint64_t)(uint8_t)t->parent[i] << 32 |
                       (uint64_t)(t->fate[i] == FATE_ACCEPTED) << 40));
    return h;
}

int tree_accept(struct tree *t, const int32_t *choice, const struct tree_ends *ends,
                int path[TREE_MAX], int *held)
{
    CHECK(t->n >= 1 && t->n <= TREE_MAX && ends->max_nodes >= 1);
    int32_t parent[TREE_MAX];
    for (int i = 0; i < t->n; i++)
        parent[i] = t->parent[i];
    int n = tree_walk(t->token, parent, t->n, choice, ends->max_nodes, ends->force, ends->stop,
                      ends->n_stop, path);
    int last = path[n - 1], next = last + 1;
    while (next < t->n && !tree_accepts(parent[next], last, t->token[next], choice[last], false))
        next++;
    *held = next < t->n ? next : -1;
    t->fate[0] = FATE_ACCEPTED;
    for (int i = 1, k = 1; i < t->n; i++) {
        bool on_path = k < n && path[k] == i;
        bool judged = t->fate[parent[i]] == FATE_ACCEPTED && parent[i] != *held;
        k += on_path;
        t->fate[i] = on_path || i == *held ? FATE_ACCEPTED : judged ? FATE_REJECTED : FATE_CUT;
    }
    return n;
}

/* ---- packed form ---- */

static void put_u32(struct buf *out, uint32_t v)
{
    uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    buf_add(out, b, sizeof b);
}

static void put_f32(struct buf *out, float f)
{
    uint32_t v;
    memcpy(&v, &f, sizeof v);
    put_u32(out, v);
}

static uint32_t get_u32(const uint8_t *b)
{
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static float get_f32(const uint8_t *b)
{
    uint32_t v = get_u32(b);
    float f;
    memcpy(&f, &v, sizeof f);
    return f;
}

void tree_pack(const struct tree *t, struct buf *out)
{
    CHECK(t->n >= 1 && t->n <= TREE_MAX);
    buf_char(out, PACK_VERSION);
    buf_char(out, (char)t->n);
    for (int i = 0; i < t->n; i++) {
        put_u32(out, (uint32_t)t->token[i]);
        buf_char(out, (char)t->parent[i]);
        buf_char(out, (char)t->fate[i]);
        put_f32(out, t->q[i]);
        put_f32(out, t->p[i]);
        put_f32(out, t->u[i]);
    }
}

bool tree_unpack(struct tree *t, const void *p, size_t n, struct err *e)
{
    const uint8_t *b = p;
    if (n < PACK_HEAD || b[0] != PACK_VERSION)
        return err_set(e, ERR_DB, "not a packed draft tree of version %d", PACK_VERSION);
    int nodes = b[1];
    if (nodes < 1 || nodes > TREE_MAX || n != PACK_HEAD + (size_t)nodes * PACK_NODE)
        return err_set(e, ERR_DB,
                       "packed draft tree: %d nodes in %zu bytes, expected 1 .. %d nodes "
                       "of %d bytes",
                       nodes, n, TREE_MAX, PACK_NODE);
    struct tree got = {0};
    for (int i = 0; i < nodes; i++) {
        const uint8_t *at = b + PACK_HEAD + mul64(i, PACK_NODE);
        struct tree_node node = {(int32_t)get_u32(at), get_f32(at + 6), get_f32(at + 10),
                                 get_f32(at + 14), (int8_t)at[4], at[5]};
        if (i == 0 ? node.parent != -1 : node.parent < 0 || node.parent >= i)
            return err_set(e, ERR_DB, "packed draft tree: node %d has parent %d", i, node.parent);
        if (node.fate > FATE_CUT)
            return err_set(e, ERR_DB, "packed draft tree: node %d has fate %d", i, node.fate);
        tree_put(&got, &node, i ? got.score[node.parent] + logf(node.q) : 0);
    }
    *t = got;
    return true;
}
