/* steer.c - see steer.h. */
#include "engine/cycle/steer.h"

const struct steer *steer_set(struct steer *steer, const struct penalties *penalties,
                              struct guide *guide, int first)
{
    *steer = (struct steer){.penalties = *penalties, .guide = guide, .first = first};
    if (penalties->repetition == 0)
        steer->penalties.repetition = 1;
    return guide || penalties_any(penalties) ? steer : NULL;
}

/* How often the lane's tokens occur, and their biases, for the ids that occur or have one. */
struct tally {
    const struct steer *steer;
    struct seen {
        int all, reply; /* in prompt and reply; in the reply */
        float bias;
        bool listed;
    } *of;          /* (vocab) */
    struct ids ids; /* those listed, each once */
};

static struct seen *list(struct tally *tally, int32_t id)
{
    struct seen *x = &tally->of[id];
    if (!x->listed)
        ids_add(&tally->ids, id);
    x->listed = true;
    return x;
}

/* Whether the counts of a token change its logit. */
static bool counts_prompt(const struct steer *steer)
{
    return steer->penalties.repetition != 1;
}
static bool counts_reply(const struct steer *steer)
{
    return counts_prompt(steer) || steer->penalties.presence != 0 ||
           steer->penalties.frequency != 0;
}

static void take_lane(struct tally *tally, const struct lane *lane, int vocab)
{
    const struct steer *steer = tally->steer;
    for (int i = 0; i < steer->penalties.bias.n; i++)
        if (steer->penalties.bias.id[i] < vocab)
            list(tally, steer->penalties.bias.id[i])->bias = steer->penalties.bias.by[i];
    int from = counts_prompt(steer) ? 0 : counts_reply(steer) ? steer->first : lane->tok.n;
    for (int i = from; i < lane->tok.n; i++) {
        struct seen *x = list(tally, lane->tok.v[i]);
        x->all++;
        x->reply += i >= steer->first;
    }
}

static struct k_change change_of(const struct tally *tally, int32_t row, int32_t id)
{
    const struct seen *x = &tally->of[id];
    const struct penalties *penalties = &tally->steer->penalties;
    struct k_change c = {.row = row, .id = id, .bias = x->bias, .rep = x->all
                         ? penalties->repetition : 1};
    if (x->reply)
        c.less = penalties->presence + penalties->frequency * (float)x->reply;
    return c;
}

/* Adds a change for each token on the path of node `at`, without the root. */
static void add_path(struct tally *tally, const struct tree *tree, int at, int32_t row,
                     struct buf *out)
{
    int32_t path[MAX_STEPS + 1];
    int n = 0;
    for (; at > 0; at = tree->parent[at])
        path[n++] = tree->token[at];
    for (int i = 0; i < n; i++) {
        tally->of[path[i]].all++;
        tally->of[path[i]].reply++;
    }
    for (int i = 0; i < n; i++) {
        bool again = false;
        for (int k = 0; k < i; k++)
            again |= path[k] == path[i];
        struct k_change c = change_of(tally, row, path[i]);
        if (!again)
            buf_add(out, &c, sizeof c);
    }
    for (int i = 0; i < n; i++) {
        tally->of[path[i]].all--;
        tally->of[path[i]].reply--;
    }
}

/* The state of the grammar after the path of node `at`, given the state after the root. */
static int state_at(struct guide *g, int state, const struct tree *tree, int at)
{
    int32_t path[MAX_STEPS + 1];
    int n = 0;
    for (; at > 0; at = tree->parent[at])
        path[n++] = tree->token[at];
    while (n-- > 0)
        state = guide_next(g, state, path[n]);
    return state;
}

/* Sends the bans of n rows to the device. */
static void send_bans(struct runtime *rt, const struct lane *lane, const struct tree *tree, int at,
                      int n)
{
    const struct steer *steer = lane->steer;
    size_t row = steer_ban_bytes(rt->model->cfg.vocab) / STEER_ROWS;
    int root = guide_after(steer->guide, lane->tok.v + steer->first, lane->tok.n - steer->first);
    FREED(buf_free) struct buf bans = {0};
    for (int i = 0; i < n; i++)
        buf_add(&bans, guide_banned(steer->guide, tree ? state_at(steer->guide, root, tree, at + i)
                                                       : root), row);
    rt->dev.k->put(rt->dev.d, rt->bans, bans.p, bans.n);
}

kbuf steer_rows(struct runtime *rt, const struct lane *lane, const struct tree *tree, int at,
                int first, int n)
{
    int V = rt->model->cfg.vocab;
    size_t v = (size_t)V * 4;
    struct tally all = {.steer = lane->steer, .of = xcalloc((size_t)V, sizeof *all.of)};
    FREED(buf_free) struct buf changes = {0};
    CHECK(n <= STEER_ROWS);
    take_lane(&all, lane, V);
    for (int i = 0; i < all.ids.n; i++) {
        struct k_change c = change_of(&all, -1, all.ids.v[i]);
        buf_add(&changes, &c, sizeof c);
    }
    for (int i = 0; tree && counts_reply(lane->steer) && i < n; i++)
        add_path(&all, tree, at + i, i, &changes);
    struct k_adjust a = {.rows = n, .n = V, .every = all.ids.n,
                         .changes = (int)(changes.n / sizeof(struct k_change)),
                         .src = kbuf_at(rt->logits, (size_t)first * v, (size_t)n * v),
                         .dst = kbuf_at(rt->path_logits, 0, (size_t)n * v), .change = rt->changes};
    if (changes.n)
        rt->dev.k->put(rt->dev.d, rt->changes, changes.p, changes.n);
    if (lane->steer->guide) {
        send_bans(rt, lane, tree, at, n);
        a.banned = kbuf_at(rt->bans, 0, (size_t)n * (steer_ban_bytes(V) / STEER_ROWS));
    }
    rt->dev.k->adjust(rt->dev.d, &a);
    ids_free(&all.ids);
    free(all.of);
    return a.dst;
}
