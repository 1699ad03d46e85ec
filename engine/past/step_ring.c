/* step_ring.c - see step_ring.h. */
#include "engine/past/step_ring.h"

void ring_open(struct step_ring *r)
{
    *r = (struct step_ring){.entry = xcalloc(RING_STEPS, sizeof *r->entry),
                            .node = xcalloc(RING_NODES, sizeof *r->node),
                            .token = xcalloc(RING_TOKENS, sizeof *r->token)};
}

void ring_close(struct step_ring *r)
{
    FREE(r->entry, r->node, r->token);
    *r = (struct step_ring){0};
}

void ring_clear(struct step_ring *r)
{
    r->first = r->end = r->node_end = r->token_end = r->drafted = 0;
}

static const struct ring_entry *entry_at(const struct step_ring *r, uint64_t i)
{
    return &r->entry[i % RING_STEPS];
}

/* -1, 0 or 1: entry e comes before, is, or comes after the step. */
static int compare_entry(const struct ring_entry *e, int turn, int step)
{
    return e->turn != turn ? (e->turn < turn ? -1 : 1) : (e->step > step) - (e->step < step);
}

void ring_cut(struct step_ring *r, int turn)
{
    while (r->end > r->first && entry_at(r, r->end - 1)->turn > turn) {
        r->end--;
        r->node_end = entry_at(r, r->end)->node;
        r->token_end = entry_at(r, r->end)->token;
    }
    for (r->drafted = r->end; r->drafted > r->first; r->drafted--)
        if (entry_at(r, r->drafted - 1)->n_node)
            return;
    r->drafted = 0;
}

/* Whether one more entry with so many nodes and tokens fits beside the entries that are held. */
static bool fits(const struct step_ring *r, int n_node, int n_token)
{
    const struct ring_entry *oldest = entry_at(r, r->first);
    return r->end == r->first ||
           (r->end - r->first < RING_STEPS &&
            r->node_end + (uint64_t)n_node - oldest->node <= RING_NODES &&
            r->token_end + (uint64_t)n_token - oldest->token <= RING_TOKENS);
}

void ring_push(struct step_ring *r, int turn, int step, const struct step_rec *rec,
               const struct tree *tree, const int32_t *token, const struct token_fact *fact,
               int n_token, const struct pages_held *held)
{
    int n = tree && tree->n > 1 ? tree->n : 0;
    CHECK(r->end == r->first || compare_entry(entry_at(r, r->end - 1), turn, step) < 0);
    while (!fits(r, n, n_token))
        r->first++;
    for (int i = 0; i < n; i++)
        r->node[(r->node_end + (uint64_t)i) % RING_NODES] = tree_node(tree, i);
    r->entry[r->end++ % RING_STEPS] = (struct ring_entry){
        .rec = *rec, .held = *held, .node = r->node_end, .token = r->token_end, .turn = turn,
            .step = step,
        .n_node = n, .n_token = n_token};
    for (int i = 0; i < n_token; i++)
        r->token[(r->token_end + (uint64_t)i) % RING_TOKENS] =
            (struct ring_token){token[i], fact[i]};
    r->node_end += (uint64_t)n;
    r->token_end += (uint64_t)n_token;
    if (n)
        r->drafted = r->end;
}

const struct ring_entry *ring_at(const struct step_ring *r, uint64_t i)
{
    CHECK(i < r->end - r->first);
    return entry_at(r, r->first + i);
}

const struct ring_entry *ring_drafted(const struct step_ring *r)
{
    return r->drafted > r->first ? entry_at(r, r->drafted - 1) : NULL;
}

const struct ring_entry *ring_find(const struct step_ring *r, int turn, int step)
{
    uint64_t n = r->end - r->first;
    uint64_t at = FIRST_NOT(i, n, compare_entry(entry_at(r, r->first + i), turn, step) < 0);
    const struct ring_entry *e = at < n ? entry_at(r, r->first + at) : NULL;
    return e && compare_entry(e, turn, step) == 0 ? e : NULL;
}

void ring_tree(const struct step_ring *r, const struct ring_entry *e, struct tree *out)
{
    *out = (struct tree){0};
    for (int i = 0; i < e->n_node; i++)
        tree_put(out, &r->node[(e->node + (uint64_t)i) % RING_NODES], 0);
}

void ring_tokens(const struct step_ring *r, const struct ring_entry *e, int32_t *token,
                 struct token_fact *fact)
{
    for (int i = 0; i < e->n_token; i++) {
        const struct ring_token *t = &r->token[(e->token + (uint64_t)i) % RING_TOKENS];
        token[i] = t->token;
        fact[i] = t->fact;
    }
}

/* ---- views ----------------------------------------------------------------------------------- */

void ring_range(const struct step_ring *r, struct step_range *out)
{
    *out = (struct step_range){.n = r->end - r->first};
    if (out->n) {
        const struct ring_entry *first = ring_at(r, 0), *last = ring_at(r, out->n - 1);
        out->first_turn = first->turn;
        out->first_step = first->step;
        out->last_turn = last->turn;
        out->last_step = last->step;
    }
}

int ring_latest(const struct step_ring *r, struct step_info *out, int max)
{
    uint64_t held = r->end - r->first;
    int n = held < (uint64_t)max ? (int)held : max;
    for (int i = 0; i < n; i++) {
        const struct ring_entry *e = ring_at(r, held - (uint64_t)(n - i));
        out[i] = (struct step_info){e->turn, e->step, e->rec, e->n_token, e->held};
    }
    return n;
}

void ring_view(const struct step_ring *r, const struct ring_entry *e, struct step_view *out)
{
    *out = (struct step_view){.turn = e->turn, .step = e->step, .rec = e->rec,
                              .held = e->held, .n_token = e->n_token};
    ring_tree(r, e, &out->tree);
    ring_tokens(r, e, out->token, out->fact);
}
