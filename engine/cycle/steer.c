/* steer.c - see steer.h. */
#include "engine/cycle/steer.h"

#include <stdlib.h>

const struct steer *steer_set(struct steer *s, const struct penalties *p, struct guide *guide,
                              int first)
{
    *s = (struct steer){.p = *p, .guide = guide, .first = first};
    if (p->repetition == 0)
        s->p.repetition = 1;
    return guide || penalties_any(p) ? s : NULL;
}

/* How often the lane's tokens occur, and their biases, for the ids that occur or have one. */
struct tally {
    const struct steer *s;
    struct seen {
        int all, reply; /* in prompt and reply; in the reply */
        float bias;
        bool listed;
    } *of;          /* (vocab) */
    struct ids ids; /* those listed, each once */
};

static struct seen *list(struct tally *t, int32_t id)
{
    struct seen *x = &t->of[id];
    if (!x->listed)
        ids_add(&t->ids, id);
    x->listed = true;
    return x;
}

/* Whether the counts of a token change its logit. */
static bool counts_prompt(const struct steer *s)
{
    return s->p.repetition != 1;
}
static bool counts_reply(const struct steer *s)
{
    return counts_prompt(s) || s->p.presence != 0 || s->p.frequency != 0;
}

static void take_lane(struct tally *t, const struct lane *l, int vocab)
{
    const struct steer *s = t->s;
    for (int i = 0; i < s->p.bias.n; i++)
        if (s->p.bias.id[i] < vocab)
            list(t, s->p.bias.id[i])->bias = s->p.bias.by[i];
    int from = counts_prompt(s) ? 0 : counts_reply(s) ? s->first : l->tok.n;
    for (int i = from; i < l->tok.n; i++) {
        struct seen *x = list(t, l->tok.v[i]);
        x->all++;
        x->reply += i >= s->first;
    }
}

static struct k_change change_of(const struct tally *t, int32_t row, int32_t id)
{
    const struct seen *x = &t->of[id];
    const struct penalties *p = &t->s->p;
    struct k_change c = {.row = row, .id = id, .bias = x->bias, .rep = x->all ? p->repetition : 1};
    if (x->reply)
        c.less = p->presence + p->frequency * (float)x->reply;
    return c;
}

/* Adds a change for each token on the path of node `at`, without the root. */
static void add_path(struct tally *t, const struct tree *tree, int at, int32_t row, struct buf *out)
{
    int32_t path[MAX_STEPS + 1];
    int n = 0;
    for (; at > 0; at = tree->parent[at])
        path[n++] = tree->token[at];
    for (int i = 0; i < n; i++) {
        t->of[path[i]].all++;
        t->of[path[i]].reply++;
    }
    for (int i = 0; i < n; i++) {
        bool again = false;
        for (int k = 0; k < i; k++)
            again |= path[k] == path[i];
        struct k_change c = change_of(t, row, path[i]);
        if (!again)
            buf_add(out, &c, sizeof c);
    }
    for (int i = 0; i < n; i++) {
        t->of[path[i]].all--;
        t->of[path[i]].reply--;
    }
}

/* The state of the grammar after the path of node `at`, given the state after the root. */
static int state_at(struct guide *g, int state, const struct tree *t, int at)
{
    int32_t path[MAX_STEPS + 1];
    int n = 0;
    for (; at > 0; at = t->parent[at])
        path[n++] = t->token[at];
    while (n-- > 0)
        state = guide_next(g, state, path[n]);
    return state;
}

/* Sends the bans of n rows to the device. */
static void send_bans(struct runtime *r, const struct lane *l, const struct tree *t, int at, int n)
{
    const struct steer *s = l->steer;
    size_t row = steer_ban_bytes(r->m->cfg.vocab) / STEER_ROWS;
    int root = guide_after(s->guide, l->tok.v + s->first, l->tok.n - s->first);
    struct buf bans = {0};
    for (int i = 0; i < n; i++)
        buf_add(&bans, guide_banned(s->guide, t ? state_at(s->guide, root, t, at + i) : root), row);
    r->dev.k->put(r->dev.d, r->bans, bans.p, bans.n);
    buf_free(&bans);
}

kbuf steer_rows(struct runtime *r, const struct lane *l, const struct tree *t, int at, int first,
                int n)
{
    int V = r->m->cfg.vocab;
    size_t v = (size_t)V * 4;
    struct tally all = {.s = l->steer, .of = xcalloc((size_t)V, sizeof *all.of)};
    struct buf changes = {0};
    CHECK(n <= STEER_ROWS);
    take_lane(&all, l, V);
    for (int i = 0; i < all.ids.n; i++) {
        struct k_change c = change_of(&all, -1, all.ids.v[i]);
        buf_add(&changes, &c, sizeof c);
    }
    for (int i = 0; t && counts_reply(l->steer) && i < n; i++)
        add_path(&all, t, at + i, i, &changes);
    struct k_adjust a = {.rows = n, .n = V, .every = all.ids.n,
                         .changes = (int)(changes.n / sizeof(struct k_change)),
                         .src = kbuf_at(r->logits, (size_t)first * v, (size_t)n * v),
                         .dst = kbuf_at(r->path_logits, 0, (size_t)n * v), .change = r->changes};
    if (changes.n)
        r->dev.k->put(r->dev.d, r->changes, changes.p, changes.n);
    if (l->steer->guide) {
        send_bans(r, l, t, at, n);
        a.banned = kbuf_at(r->bans, 0, (size_t)n * (steer_ban_bytes(V) / STEER_ROWS));
    }
    r->dev.k->adjust(r->dev.d, &a);
    buf_free(&changes);
    ids_free(&all.ids);
    free(all.of);
    return a.dst;
}
