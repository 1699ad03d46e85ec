/* guide.c - states of replies under a grammar, and the tokens that each state allows. See
 * grammar.h.
 *
 * A stack is a list of positions, each the element to continue at, with the element below as its
 * tail; equal stacks are one. A state is a set of stacks whose first element consumes a symbol, and
 * perhaps the empty stack: the text may end. Equal states are one, too. */
#include "kernels/idioms.h"
#include "models/grammar/parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_STACKS = 256,        /* of a state; more ways to read a text are not followed */
    MOST_STATES = 1 << 12,    /* then all are forgotten */
    MOST_NODES = 1 << 20,
    MOST_MASKS = 256,
    STATE_FIRST = 1,
    MAX_STOP_IDS = 32,
};

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* The tokens that have bytes and are not special, in the order of their bytes. */
struct token_order {
    const struct tokenizer *t;
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

struct token_order *token_order_open(const struct tokenizer *t)
{
    struct token_order *o = xcalloc(1, sizeof *o);
    int vocab = tok_vocab(t);
    struct spelled *all = xcalloc((size_t)vocab + 1, sizeof *all);
    o->t = t;
    for (int id = 0; id < vocab; id++) {
        struct spelled *x = &all[o->n];
        x->p = tok_is_special(t, id) ? NULL : tok_bytes(t, id, &x->n);
        x->id = id;
        o->n += x->p && x->n > 0 && x->n < UINT16_MAX;
    }
    qsort(all, (size_t)o->n, sizeof *all, by_bytes);
    o->id = xmalloc(((size_t)o->n + 1) * sizeof *o->id);
    o->common = xcalloc((size_t)o->n + 1, sizeof *o->common);
    for (int i = 0; i < o->n; i++) {
        size_t k = 0;
        while (i && k < all[i].n && k < all[i - 1].n && all[i].p[k] == all[i - 1].p[k])
            k++;
        o->id[i] = all[i].id;
        o->common[i] = (uint16_t)k;
        o->longest = max_int(o->longest, (int)all[i].n);
    }
    free(all);
    return o;
}

void token_order_close(struct token_order *o)
{
    if (!o)
        return;
    free(o->id);
    free(o->common);
    free(o);
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
    struct grammar *g;
    const struct token_order *o;
    int vocab, words;
    int32_t stop[MAX_STOP_IDS];
    int n_stop;
    struct node *node; /* [0] is not used */
    int n_node, cap_node;
    int32_t *stack;
    int n_stack, cap_stack;
    struct state *state; /* [0] is GUIDE_DEAD */
    int n_state, cap_state;
    struct table nodes, states;
    int begin;     /* the state of an empty reply */
    int n_masks;
    struct ids ids; /* of the reply that was followed last ... */
    int at;        /* ... and its state */
    /* for closures */
    int32_t *todo;
    int n_todo, cap_todo, n_seen;
    uint32_t closure;
    int32_t *path; /* (longest + 1) states along a token */
};

static uint64_t hash_node(const struct node *n)
{
    return mix64(((uint64_t)(uint32_t)n->at << 32 | (uint32_t)n->below) ^
                 mix64((uint64_t)(uint32_t)n->count));
}

static void grow_table(struct table *t)
{
    free(t->slot);
    t->size = t->size ? 2 * t->size : 1024;
    t->slot = xcalloc(t->size, sizeof *t->slot);
}

static void put_slot(struct table *t, uint64_t hash, int32_t value)
{
    uint32_t i = (uint32_t)hash & (t->size - 1);
    while (t->slot[i])
        i = (i + 1) & (t->size - 1);
    t->slot[i] = value;
}

/* The stack with this element on top of `below`; one whose alternative is at its end is `below`. */
static int push(struct guide *x, int at, int count, int below)
{
    struct node n = {.at = at, .count = count, .below = below};
    if (x->g->element[at].kind == ELEMENT_END)
        return below;
    uint64_t hash = hash_node(&n);
    for (uint32_t i = (uint32_t)hash & (x->nodes.size - 1); x->nodes.slot[i];
         i = (i + 1) & (x->nodes.size - 1)) {
        const struct node *old = &x->node[x->nodes.slot[i]];
        if (old->at == at && old->count == count && old->below == below)
            return x->nodes.slot[i];
    }
    MAKE_ROOM(x->node, x->n_node, x->cap_node, 64);
    x->node[x->n_node] = n;
    if ((uint32_t)x->n_node * 2 > x->nodes.size) {
        grow_table(&x->nodes);
        for (int i = 1; i < x->n_node; i++)
            put_slot(&x->nodes, hash_node(&x->node[i]), i);
    }
    put_slot(&x->nodes, hash, x->n_node);
    return x->n_node++;
}

/* ---- closures -------------------------------------------------------------------------------- */

static void add_todo(struct guide *x, int stack)
{
    if (x->node[stack].seen == x->closure || x->n_seen >= 8 * MOST_STACKS)
        return;
    x->node[stack].seen = x->closure;
    x->n_seen++;
    MAKE_ROOM(x->todo, x->n_todo, x->cap_todo, 64);
    x->todo[x->n_todo++] = stack;
}

static void add_rule(struct guide *x, int rule, int below)
{
    const struct rule *r = &x->g->rule[rule];
    for (int i = 0; i < r->n; i++)
        add_todo(x, push(x, r->alt[i], 0, below));
}

/* What a stack whose top consumes no symbol becomes. */
static void expand(struct guide *x, int stack)
{
    struct node n = x->node[stack];
    const struct element *e = &x->g->element[n.at];
    if (e->kind == ELEMENT_CALL) {
        add_rule(x, e->at, push(x, n.at + 1, 0, n.below));
        return;
    }
    if (n.count >= e->min)
        add_todo(x, push(x, n.at + 1, 0, n.below));
    if (n.count < e->max) {
        int count = e->max == MANY && n.count >= e->min ? n.count : n.count + 1;
        add_rule(x, e->at, push(x, n.at, count, n.below));
    }
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t hash_stacks(const int32_t *v, int n, bool ended)
{
    uint64_t h = mix64((uint64_t)n * 2 + ended);
    for (int i = 0; i < n; i++)
        h = mix64(h ^ (uint64_t)(uint32_t)v[i]);
    return h;
}

/* The state with these stacks. */
static int intern(struct guide *x, const int32_t *v, int n, bool ended)
{
    uint64_t hash = hash_stacks(v, n, ended);
    if (n == 0 && !ended)
        return GUIDE_DEAD;
    for (uint32_t i = (uint32_t)hash & (x->states.size - 1); x->states.slot[i];
         i = (i + 1) & (x->states.size - 1)) {
        const struct state *s = &x->state[x->states.slot[i]];
        if (s->n == n && s->ended == ended &&
            (n == 0 || !memcmp(x->stack + s->first, v, (size_t)n * sizeof *v)))
            return x->states.slot[i];
    }
    MAKE_ROOM(x->state, x->n_state, x->cap_state, 64);
    if (x->n_stack + n > x->cap_stack)
        x->stack = xrealloc(x->stack, (size_t)(x->cap_stack = 2 * x->cap_stack + n + 64),
                            sizeof *x->stack);
    x->state[x->n_state] = (struct state){.first = x->n_stack, .n = n, .ended = ended};
    if (n)
        memcpy(x->stack + x->n_stack, v, (size_t)n * sizeof *v);
    x->n_stack += n;
    if ((uint32_t)x->n_state * 2 > x->states.size) {
        grow_table(&x->states);
        for (int i = STATE_FIRST; i < x->n_state; i++) {
            const struct state *s = &x->state[i];
            put_slot(&x->states, hash_stacks(x->stack + s->first, s->n, s->ended), i);
        }
    }
    put_slot(&x->states, hash, x->n_state);
    return x->n_state++;
}

/* The state of all stacks that those of `todo` become. */
static int close_over(struct guide *x)
{
    int32_t ready[MOST_STACKS];
    int n = 0;
    while (x->n_todo) {
        int stack = x->todo[--x->n_todo];
        if (stack && x->g->element[x->node[stack].at].kind != ELEMENT_SET)
            expand(x, stack);
        else if (n < MOST_STACKS)
            ready[n++] = stack;
    }
    x->n_seen = 0;
    x->closure++;
    if (n > 1)
        qsort(ready, (size_t)n, sizeof *ready, by_number);
    return intern(x, ready, n, false);
}

/* ---- states ---------------------------------------------------------------------------------- */

static void forget(struct guide *x)
{
    for (int i = 0; i < x->n_state; i++) {
        free(x->state[i].next);
        free(x->state[i].banned);
    }
    x->n_state = STATE_FIRST;
    x->state[GUIDE_DEAD] = (struct state){0};
    x->n_node = 1;
    x->n_stack = x->n_masks = 0;
    memset(x->nodes.slot, 0, x->nodes.size * sizeof *x->nodes.slot);
    memset(x->states.slot, 0, x->states.size * sizeof *x->states.slot);
    x->n_todo = x->n_seen = 0;
    x->closure++;
    add_rule(x, x->g->root, 0);
    x->begin = close_over(x);
    x->ids.n = 0;
    x->at = x->begin;
}

struct guide *guide_open(struct grammar *g, const struct token_order *o, int vocab,
                         const int32_t *stop, int n_stop)
{
    struct guide *x = xcalloc(1, sizeof *x);
    x->g = g;
    x->o = o;
    x->vocab = vocab;
    x->words = (vocab + 31) / 32;
    x->n_stop = min_int(n_stop, MAX_STOP_IDS);
    memcpy(x->stop, stop, (size_t)x->n_stop * sizeof *stop);
    x->path = xcalloc((size_t)o->longest + 1, sizeof *x->path);
    x->state = xcalloc((size_t)(x->cap_state = 64), sizeof *x->state);
    x->node = xcalloc((size_t)(x->cap_node = 64), sizeof *x->node);
    grow_table(&x->nodes);
    grow_table(&x->states);
    forget(x);
    return x;
}

void guide_close(struct guide *x)
{
    if (!x)
        return;
    for (int i = 0; i < x->n_state; i++) {
        free(x->state[i].next);
        free(x->state[i].banned);
    }
    grammar_close(x->g);
    free(x->state);
    free(x->node);
    free(x->stack);
    free(x->nodes.slot);
    free(x->states.slot);
    free(x->todo);
    free(x->path);
    ids_free(&x->ids);
    free(x);
}

/* The state after one symbol. */
static int step(struct guide *x, int state, int symbol)
{
    if (state == GUIDE_DEAD)
        return GUIDE_DEAD;
    if (!x->state[state].next) {
        x->state[state].next = xmalloc(SYMBOLS * sizeof(int32_t));
        memset(x->state[state].next, 0xFF, SYMBOLS * sizeof(int32_t));
    }
    int32_t known = x->state[state].next[symbol];
    if (known >= 0)
        return known;
    for (int i = 0; i < x->state[state].n; i++) {
        int stack = x->stack[x->state[state].first + i];
        struct node n = x->node[stack];
        if (stack && set_has(&x->g->set[x->g->element[n.at].at], symbol))
            add_todo(x, push(x, n.at + 1, 0, n.below));
    }
    int next = close_over(x);
    x->state[state].next[symbol] = next;
    return next;
}

static bool is_stop(const struct guide *x, int32_t id)
{
    for (int i = 0; i < x->n_stop; i++)
        if (x->stop[i] == id)
            return true;
    return false;
}

/* The symbol of a special token; -1: it has none. */
static int symbol_of(const struct guide *x, int32_t id)
{
    const struct reply_form *f = &x->g->form;
    if (f->kind == FORM_CALLS)
        return id == f->call ? SYMBOL_CALL : id == f->call_end ? SYMBOL_CALL_END : -1;
    if (f->kind != FORM_HARMONY)
        return -1;
    return id == f->channel   ? SYMBOL_CHANNEL
           : id == f->message ? SYMBOL_MESSAGE
           : id == f->end     ? SYMBOL_END
           : id == f->start   ? SYMBOL_START
                              : -1;
}

bool guide_accepts(const struct guide *x, int state)
{
    const struct state *s = &x->state[state];
    return s->ended || (s->n && x->stack[s->first] == 0);
}

int guide_next(struct guide *x, int state, int32_t id)
{
    size_t n;
    int symbol = symbol_of(x, id);
    if (state == GUIDE_DEAD || id < 0)
        return GUIDE_DEAD;
    if (is_stop(x, id))
        return guide_accepts(x, state) ? intern(x, NULL, 0, true) : GUIDE_DEAD;
    if (symbol >= 0)
        return step(x, state, symbol);
    const char *p = tok_is_special(x->o->t, id) ? NULL : tok_bytes(x->o->t, id, &n);
    if (!p || n == 0)
        return GUIDE_DEAD;
    for (size_t i = 0; i < n && state; i++)
        state = step(x, state, (unsigned char)p[i]);
    return state;
}

int guide_after(struct guide *x, const int32_t *ids, int n)
{
    if (x->n_state > MOST_STATES || x->n_node > MOST_NODES || x->n_masks > MOST_MASKS)
        forget(x);
    if (x->ids.n > n || (x->ids.n && memcmp(x->ids.v, ids, (size_t)x->ids.n * sizeof *ids) != 0)) {
        x->ids.n = 0;
        x->at = x->begin;
    }
    for (int i = x->ids.n; i < n; i++) {
        x->at = guide_next(x, x->at, ids[i]);
        ids_add(&x->ids, ids[i]);
    }
    return x->at;
}

/* ---- masks ----------------------------------------------------------------------------------- */

static void set_banned(uint32_t *banned, int32_t id, bool ban)
{
    uint32_t bit = 1u << (id & 31);
    banned[id >> 5] = ban ? banned[id >> 5] | bit : banned[id >> 5] & ~bit;
}

/* Walks the tokens in order; the bytes that a token shares with the one before are not read
 * again. */
static void allow_tokens(struct guide *x, int state, uint32_t *banned)
{
    const struct token_order *o = x->o;
    int alive = 0; /* bytes of the last token read up to which the state lives */
    x->path[0] = state;
    for (int i = 0; i < o->n; i++) {
        size_t n;
        int at = o->common[i];
        if (at > alive)
            continue;
        const char *p = tok_bytes(o->t, o->id[i], &n);
        alive = at;
        while (alive < (int)n && (x->path[alive + 1] = step(x, x->path[alive],
                                                           (unsigned char)p[alive])) != GUIDE_DEAD)
            alive++;
        if (alive == (int)n && o->id[i] < x->vocab)
            set_banned(banned, o->id[i], false);
    }
}

const uint32_t *guide_banned(struct guide *x, int state)
{
    struct state *s = &x->state[state];
    if (s->banned)
        return s->banned;
    uint32_t *banned = xmalloc((size_t)x->words * sizeof *banned);
    memset(banned, state == GUIDE_DEAD ? 0 : 0xFF, (size_t)x->words * sizeof *banned);
    if (state != GUIDE_DEAD) {
        const int32_t special[] = {x->g->form.channel, x->g->form.message, x->g->form.end,
                                   x->g->form.start, x->g->form.call, x->g->form.call_end};
        allow_tokens(x, state, banned);
        for (int i = 0; i < x->n_stop; i++)
            if (x->stop[i] >= 0 && x->stop[i] < x->vocab)
                set_banned(banned, x->stop[i], !guide_accepts(x, state));
        for (size_t i = 0; i < sizeof special / sizeof *special; i++)
            if (special[i] >= 0 && special[i] < x->vocab && symbol_of(x, special[i]) >= 0 &&
                guide_next(x, state, special[i]))
                set_banned(banned, special[i], false);
        if (x->vocab % 32) /* no bits behind the last token */
            banned[x->words - 1] &= (1u << x->vocab % 32) - 1;
    }
    x->n_masks++;
    x->state[state].banned = banned; /* the states may have moved */
    return banned;
}
