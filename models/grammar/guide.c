/* guide.c - states of replies under a grammar, and the tokens that each state allows. See
 * grammar.h.
 *
 * A stack is a list of positions, each the element to continue at, with the element below as its
 * tail; equal stacks are one. A state is a set of stacks whose first element consumes a symbol, and
 * perhaps the empty stack: the text may end. Equal states are one, too. */
#include "kernels/sort.h"
#include "models/grammar/parts.h"

enum {
    MOST_STACKS = 256,        /* of a state; more ways to read a text are not followed */
    MOST_STATES = 1 << 12,    /* then all are forgotten */
    MOST_NODES = 1 << 20,
    MOST_MASKS = 256,
    STATE_FIRST = 1,
    MAX_STOP_IDS = 64, /* more than a chat has */
};

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* The tokens that have bytes and are not special, in the order of their bytes. */
struct token_order {
    const struct tokenizer *tok;
    int32_t *id;     /* (n) */
    uint16_t *common; /* (n) bytes at the beginning that are those of the token before */
    int n;
    int longest;
};

struct spelled {
    const char *p;
    size_t n;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct spelled *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int order = memcmp(x->p, y->p, n);
    if (order == 0)
        order = x->n < y->n ? -1 : x->n > y->n;
    return order ? order : x->id < y->id ? -1 : 1;
}

struct token_order *token_order_open(const struct tokenizer *tok)
{
    struct token_order *order = xcalloc(1, sizeof *order);
    int vocab = tok_vocab(tok);
    FREED(free_at) struct spelled *all = xcalloc((size_t)vocab + 1, sizeof *all);
    order->tok = tok;
    for (int id = 0; id < vocab; id++) {
        struct spelled *spelled = &all[order->n];
        spelled->p = tok_is_special(tok, id) ? NULL : tok_bytes(tok, id, &spelled->n);
        spelled->id = id;
        order->n += spelled->p && spelled->n > 0 && spelled->n < UINT16_MAX;
    }
    qsort(all, (size_t)order->n, sizeof *all, by_bytes);
    order->id = xmalloc(((size_t)order->n + 1) * sizeof *order->id);
    order->common = xcalloc((size_t)order->n + 1, sizeof *order->common);
    for (int i = 0; i < order->n; i++) {
        size_t k = 0;
        while (i && k < all[i].n && k < all[i - 1].n && all[i].p[k] == all[i - 1].p[k])
            k++;
        order->id[i] = all[i].id;
        order->common[i] = (uint16_t)k;
        order->longest = max_int(order->longest, (int)all[i].n);
    }
    return order;
}

void token_order_close(struct token_order *order)
{
    if (!order)
        return;
    FREE(order->id, order->common, order);
}

/* ---- stacks ---------------------------------------------------------------------------------- */

struct node {
    int at;    /* element */
    int count; /* of a repetition: how often so far */
    int below; /* node; 0: none */
    uint32_t seen; /* number of the closure that saw it last */
};

struct state {
    int first, n;   /* its stacks: guide.stack[first, first + n), ascending; 0: the empty one */
    bool ended;     /* a stop token has come */
    int32_t *next;  /* (SYMBOLS) state, -1: not known; NULL: none is known */
    uint32_t *banned; /* (words) or NULL */
};

struct table {
    int32_t *slot; /* index + 1; 0: free */
    uint32_t size; /* a power of two */
};

struct guide {
    struct grammar *grammar;
    const struct token_order *order;
    int vocab, words;
    int32_t stop[MAX_STOP_IDS];
    int n_stop;
    struct node *node; /* [0] is not used */
    int n_node;
    int32_t *stack;
    int n_stack, cap_stack;
    struct state *state; /* [0] is GUIDE_DEAD */
    int n_state;
    struct table nodes, states;
    int begin;     /* the state of an empty reply */
    int n_masks;
    struct ids ids; /* of the reply that was followed last ... */
    int at;        /* ... and its state */
    /* for closures */
    int32_t *todo;
    int n_todo, n_seen;
    uint32_t closure;
    int32_t *path; /* (longest + 1) states along a token */
};

static uint64_t hash_node(const struct node *node)
{
    return mix64(((uint64_t)(uint32_t)node->at << 32 | (uint32_t)node->below) ^
                 mix64((uint64_t)(uint32_t)node->count));
}

static void grow_table(struct table *table)
{
    free(table->slot);
    table->size = table->size ? 2 * table->size : 1024;
    table->slot = xcalloc(table->size, sizeof *table->slot);
}

static void put_slot(struct table *table, uint64_t hash, int32_t value)
{
    uint32_t i = (uint32_t)hash & (table->size - 1);
    while (table->slot[i])
        i = (i + 1) & (table->size - 1);
    table->slot[i] = value;
}

/* The stack with this element on top of `below`; one whose alternative is at its end is `below`. */
static int push_element(struct guide *guide, int at, int count, int below)
{
    struct node node = {.at = at, .count = count, .below = below};
    if (guide->grammar->element[at].kind == ELEMENT_END)
        return below;
    uint64_t hash = hash_node(&node);
    for (uint32_t i = (uint32_t)hash & (guide->nodes.size - 1); guide->nodes.slot[i];
         i = (i + 1) & (guide->nodes.size - 1)) {
        const struct node *old = &guide->node[guide->nodes.slot[i]];
        if (old->at == at && old->count == count && old->below == below)
            return guide->nodes.slot[i];
    }
    MAKE_ROOM(guide->node, guide->n_node);
    guide->node[guide->n_node] = node;
    if ((uint32_t)guide->n_node * 2 > guide->nodes.size) {
        grow_table(&guide->nodes);
        for (int i = 1; i < guide->n_node; i++)
            put_slot(&guide->nodes, hash_node(&guide->node[i]), i);
    }
    put_slot(&guide->nodes, hash, guide->n_node);
    return guide->n_node++;
}

/* ---- closures -------------------------------------------------------------------------------- */

static void add_todo(struct guide *guide, int stack)
{
    if (guide->node[stack].seen == guide->closure || guide->n_seen >= 8 * MOST_STACKS)
        return;
    guide->node[stack].seen = guide->closure;
    guide->n_seen++;
    *APPEND(guide->todo, guide->n_todo) = stack;
}

static void add_rule(struct guide *guide, int rule, int below)
{
    const struct rule *r = &guide->grammar->rule[rule];
    for (int i = 0; i < r->n; i++)
        add_todo(guide, push_element(guide, r->alt[i], 0, below));
}

/* What a stack whose top consumes no symbol becomes. */
static void expand(struct guide *guide, int stack)
{
    struct node node = guide->node[stack];
    const struct element *e = &guide->grammar->element[node.at];
    if (e->kind == ELEMENT_CALL) {
        add_rule(guide, e->at, push_element(guide, node.at + 1, 0, node.below));
        return;
    }
    if (node.count >= e->min)
        add_todo(guide, push_element(guide, node.at + 1, 0, node.below));
    if (node.count < e->max) {
        int count = e->max == MANY && node.count >= e->min ? node.count : node.count + 1;
        add_rule(guide, e->at, push_element(guide, node.at, count, node.below));
    }
}

static uint64_t hash_stacks(const int32_t *v, int n, bool ended)
{
    uint64_t h = mix64((uint64_t)n * 2 + ended);
    for (int i = 0; i < n; i++)
        h = mix64(h ^ (uint64_t)(uint32_t)v[i]);
    return h;
}

/* The state with these stacks. */
static int intern(struct guide *guide, const int32_t *v, int n, bool ended)
{
    uint64_t hash = hash_stacks(v, n, ended);
    if (n == 0 && !ended)
        return GUIDE_DEAD;
    for (uint32_t i = (uint32_t)hash & (guide->states.size - 1); guide->states.slot[i];
         i = (i + 1) & (guide->states.size - 1)) {
        const struct state *state = &guide->state[guide->states.slot[i]];
        if (state->n == n && state->ended == ended &&
            (n == 0 || !memcmp(guide->stack + state->first, v, (size_t)n * sizeof *v)))
            return guide->states.slot[i];
    }
    RESERVE(guide->stack, guide->n_stack + n, guide->cap_stack);
    MAKE_ROOM(guide->state, guide->n_state);
    guide->state[guide->n_state] = (struct state){.first = guide->n_stack, .n = n, .ended = ended};
    if (n)
        memcpy(guide->stack + guide->n_stack, v, (size_t)n * sizeof *v);
    guide->n_stack += n;
    if ((uint32_t)guide->n_state * 2 > guide->states.size) {
        grow_table(&guide->states);
        for (int i = STATE_FIRST; i < guide->n_state; i++) {
            const struct state *state = &guide->state[i];
            put_slot(&guide->states,
                     hash_stacks(guide->stack + state->first, state->n, state->ended), i);
        }
    }
    put_slot(&guide->states, hash, guide->n_state);
    return guide->n_state++;
}

/* The state of all stacks that those of `todo` become. */
static int close_over(struct guide *guide)
{
    int32_t ready[MOST_STACKS];
    int n = 0;
    while (guide->n_todo) {
        int stack = guide->todo[--guide->n_todo];
        if (stack && guide->grammar->element[guide->node[stack].at].kind != ELEMENT_SET)
            expand(guide, stack);
        else if (n < MOST_STACKS)
            ready[n++] = stack;
    }
    guide->n_seen = 0;
    guide->closure++;
    sort_ints(ready, n);
    return intern(guide, ready, n, false);
}

/* ---- states ---------------------------------------------------------------------------------- */

static void forget(struct guide *guide)
{
    for (int i = 0; i < guide->n_state; i++)
        FREE(guide->state[i].next, guide->state[i].banned);
    guide->n_state = STATE_FIRST;
    guide->state[GUIDE_DEAD] = (struct state){0};
    guide->n_node = 1;
    guide->n_stack = guide->n_masks = 0;
    memset(guide->nodes.slot, 0, guide->nodes.size * sizeof *guide->nodes.slot);
    memset(guide->states.slot, 0, guide->states.size * sizeof *guide->states.slot);
    guide->n_todo = guide->n_seen = 0;
    guide->closure++;
    add_rule(guide, guide->grammar->root, 0);
    guide->begin = close_over(guide);
    guide->ids.n = 0;
    guide->at = guide->begin;
}

struct guide *guide_open(struct grammar *grammar, const struct token_order *order, int vocab,
                         const int32_t *stop, int n_stop)
{
    struct guide *guide = xcalloc(1, sizeof *guide);
    guide->grammar = grammar;
    guide->order = order;
    guide->vocab = vocab;
    guide->words = (vocab + 31) / 32;
    guide->n_stop = min_int(n_stop, MAX_STOP_IDS);
    memcpy(guide->stop, stop, (size_t)guide->n_stop * sizeof *stop);
    guide->path = xcalloc((size_t)order->longest + 1, sizeof *guide->path);
    guide->state = xcalloc(STATE_FIRST + 1, sizeof *guide->state);
    guide->node = xcalloc(2, sizeof *guide->node);
    grow_table(&guide->nodes);
    grow_table(&guide->states);
    forget(guide);
    return guide;
}

void guide_close(struct guide *guide)
{
    if (!guide)
        return;
    for (int i = 0; i < guide->n_state; i++)
        FREE(guide->state[i].next, guide->state[i].banned);
    grammar_close(guide->grammar);
    FREE(guide->state, guide->node, guide->stack, guide->nodes.slot, guide->states.slot,
         guide->todo, guide->path);
    ids_free(&guide->ids);
    free(guide);
}

static int step(struct guide *guide, int state, int symbol)
{
    if (state == GUIDE_DEAD)
        return GUIDE_DEAD;
    if (!guide->state[state].next) {
        guide->state[state].next = xmalloc(SYMBOLS * sizeof(int32_t));
        memset(guide->state[state].next, 0xFF, SYMBOLS * sizeof(int32_t));
    }
    int32_t known = guide->state[state].next[symbol];
    if (known >= 0)
        return known;
    for (int i = 0; i < guide->state[state].n; i++) {
        int stack = guide->stack[guide->state[state].first + i];
        struct node node = guide->node[stack];
        if (stack && set_has(&guide->grammar->set[guide->grammar->element[node.at].at], symbol))
            add_todo(guide, push_element(guide, node.at + 1, 0, node.below));
    }
    int next = close_over(guide);
    guide->state[state].next[symbol] = next;
    return next;
}

/* The token of a symbol from SYMBOL_CHANNEL on; -1: the form has none. */
static int32_t token_of(const struct guide *guide, int symbol)
{
    const struct reply_form *f = &guide->grammar->form;
    const int32_t token[] = {f->channel, f->message, f->end, f->start, f->call, f->call_end};
    bool has = f->kind == (symbol < SYMBOL_CALL ? FORM_HARMONY : FORM_CALLS);
    return has ? token[symbol - SYMBOL_CHANNEL] : -1;
}

/* The symbol of a special token; -1: it has none. */
static int symbol_of(const struct guide *guide, int32_t id)
{
    for (int s = SYMBOL_CHANNEL; s <= SYMBOL_CALL_END; s++)
        if (id >= 0 && token_of(guide, s) == id)
            return s;
    return -1;
}

bool guide_accepts(const struct guide *guide, int state)
{
    const struct state *s = &guide->state[state];
    return s->ended || (s->n && guide->stack[s->first] == 0);
}

int guide_next(struct guide *guide, int state, int32_t id)
{
    size_t n;
    int symbol = symbol_of(guide, id);
    if (state == GUIDE_DEAD || id < 0)
        return GUIDE_DEAD;
    if (ANY(i, guide->n_stop, guide->stop[i] == id))
        return guide_accepts(guide, state) ? intern(guide, NULL, 0, true) : GUIDE_DEAD;
    if (symbol >= 0)
        return step(guide, state, symbol);
    const char *p = tok_is_special(guide->order->tok, id) ? NULL
                                                          : tok_bytes(guide->order->tok, id, &n);
    if (!p || n == 0)
        return GUIDE_DEAD;
    for (size_t i = 0; i < n && state; i++)
        state = step(guide, state, (unsigned char)p[i]);
    return state;
}

int guide_after(struct guide *guide, const int32_t *ids, int n)
{
    if (guide->n_state > MOST_STATES || guide->n_node > MOST_NODES || guide->n_masks > MOST_MASKS)
        forget(guide);
    if (guide->ids.n > n ||
        (guide->ids.n && memcmp(guide->ids.v, ids, (size_t)guide->ids.n * sizeof *ids) != 0)) {
        guide->ids.n = 0;
        guide->at = guide->begin;
    }
    for (int i = guide->ids.n; i < n; i++) {
        guide->at = guide_next(guide, guide->at, ids[i]);
        ids_add(&guide->ids, ids[i]);
    }
    return guide->at;
}

/* ---- masks ----------------------------------------------------------------------------------- */

static void set_banned(uint32_t *banned, int32_t id, bool ban)
{
    uint32_t bit = 1u << (id & 31);
    banned[id >> 5] = ban ? banned[id >> 5] | bit : banned[id >> 5] & ~bit;
}

/* Walks the tokens in order; the bytes that a token shares with the one before are not read
 * again. */
static void allow_tokens(struct guide *guide, int state, uint32_t *banned)
{
    const struct token_order *order = guide->order;
    int alive = 0; /* bytes of the last token read up to which the state lives */
    guide->path[0] = state;
    for (int i = 0; i < order->n; i++) {
        size_t n;
        int at = order->common[i];
        if (at > alive)
            continue;
        const char *p = tok_bytes(order->tok, order->id[i], &n);
        alive = at;
        while (alive < (int)n && (guide->path[alive + 1] = step(guide, guide->path[alive],
                                                           (unsigned char)p[alive])) != GUIDE_DEAD)
            alive++;
        if (alive == (int)n && order->id[i] < guide->vocab)
            set_banned(banned, order->id[i], false);
    }
}

const uint32_t *guide_banned(struct guide *guide, int state)
{
    struct state *s = &guide->state[state];
    if (s->banned)
        return s->banned;
    uint32_t *banned = xmalloc((size_t)guide->words * sizeof *banned);
    memset(banned, state == GUIDE_DEAD ? 0 : 0xFF, (size_t)guide->words * sizeof *banned);
    if (state != GUIDE_DEAD) {
        allow_tokens(guide, state, banned);
        for (int i = 0; i < guide->n_stop; i++)
            if (guide->stop[i] >= 0 && guide->stop[i] < guide->vocab)
                set_banned(banned, guide->stop[i], !guide_accepts(guide, state));
        for (int k = SYMBOL_CHANNEL; k <= SYMBOL_CALL_END; k++) {
            int32_t id = token_of(guide, k);
            if (id >= 0 && id < guide->vocab && guide_next(guide, state, id))
                set_banned(banned, id, false);
        }
        if (guide->vocab % 32) /* no bits behind the last token */
            banned[guide->words - 1] &= (1u << guide->vocab % 32) - 1;
    }
    guide->n_masks++;
    guide->state[state].banned = banned; /* the states may have moved */
    return banned;
}
