/* accepted.c - see accepted.h. */
#include "repl/compare/accepted.h"

const char *const token_kind_name[N_KINDS] = {"code", "digits", "punctuation", "words",
                                              "whitespace"};
const char *const edge_name[N_EDGES] = {"all tokens in the window", "the window's edge",
                                        "a window and more past it"};

enum { FENCE = 3, PERIOD = 12, REPEATS = 3 };

static enum token_kind token_kind(const struct fence *f, const char *text, size_t n)
{
    bool space = true, digit = false;
    if (f->open)
        return KIND_CODE;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i], lower = c | 32;
        if (c >= 0x80 || (lower >= 'a' && lower <= 'z'))
            return KIND_WORDS;
        space &= c == ' ' || (c >= '\t' && c <= '\r');
        digit |= c >= '0' && c <= '9';
    }
    return digit ? KIND_DIGITS : space && n ? KIND_SPACE : KIND_PUNCTUATION;
}

/* A token of the reply. */
static void fence_read(struct fence *f, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        f->ticks = text[i] == '`' ? f->ticks + 1 : 0;
        f->open ^= f->ticks == FENCE;
    }
}

static void add_drafts(struct some_drafts *d, const struct step_rec *r)
{
    d->cycles++;
    d->drafted += (uint64_t)r->drafted;
    d->accepted += (uint64_t)r->accepted;
    d->first += r->accepted > 0;
}

static void add_kinds(struct accepted *a, const struct accepted_step *s, token_text *text,
                      void *arg)
{
    size_t n;
    for (int i = 1; s->tree && i < s->tree->n; i++) {
        const char *p = text(arg, s->tree->token[i], &n);
        struct kind_count *k = &a->kind[token_kind(&a->fence, p, n)];
        k->drafted++;
        k->accepted += s->tree->fate[i] == FATE_ACCEPTED;
    }
    for (int i = 0; i < s->n; i++) {
        const char *p = text(arg, s->token[i], &n);
        struct kind_count *k = &a->kind[token_kind(&a->fence, p, n)];
        k->emitted++;
        k->bonus += i >= s->rec->accepted;
    }
    for (int i = 0; i < s->n; i++) {
        const char *p = text(arg, s->token[i], &n);
        fence_read(&a->fence, p, n);
    }
}

/* Whether the reply's last tokens are one piece of at most PERIOD tokens, REPEATS times. */
static bool repeats(const struct ids *r)
{
    for (int p = 1; p <= PERIOD; p++) {
        int n = p * REPEATS, i = r->n - n + p;
        if (r->n < n || n < 8)
            continue;
        while (i < r->n && r->v[i] == r->v[i - p])
            i++;
        if (i == r->n)
            return true;
    }
    return false;
}

static void add_reply(struct accepted *a, const struct accepted_step *s)
{
    for (int i = 0; i < s->n; i++) {
        ids_add(&a->reply, s->token[i]);
        a->looped += repeats(&a->reply);
    }
    a->tokens += (uint64_t)s->n;
}

/* The first guess below the last accepted node, and whether there is one at all. */
static int first_guess(const struct tree *t)
{
    int last = 0;
    for (int i = 1; i < t->n; i++)
        if (t->fate[i] == FATE_ACCEPTED && t->depth[i] > t->depth[last])
            last = i;
    for (int i = 1; i < t->n; i++)
        if (t->parent[i] == last)
            return i;
    return -1;
}

static void judge(struct accepted *a, const struct accepted_step *s)
{
    const struct tree *t = s->tree;
    int at = s->rec->accepted; /* the token that the target chose after the path */
    a->trees++;
    a->nodes = max_int(a->nodes, t->n);
    a->depth = max_int(a->depth, tree_depth(t));
    if (at >= s->n || s->rec->bonus < 0)
        return;
    a->judged++;
    int guess = first_guess(t);
    if (guess < 0) {
        a->ended++;
        return;
    }
    const struct token_fact *f = s->fact ? &s->fact[at] : NULL;
    a->sampled_away += f && f->rival == t->token[guess] && f->rival_logp > f->logp;
    for (int i = 1; i < t->n; i++)
        if (t->token[i] == s->token[at] && t->fate[i] != FATE_ACCEPTED) {
            a->beside++;
            break;
        }
}

void accepted_add(struct accepted *a, const struct accepted_step *s, token_text *text, void *arg)
{
    const struct step_rec *r = s->rec;
    if (r->kind == STEP_PREFILL && s->n == 0)
        return;
    if (s->turn != a->turn) {
        a->fence = (struct fence){0};
        a->reply.n = 0;
    }
    a->turn = s->turn;
    a->longest = max_int(a->longest, r->pos0);
    add_reply(a, s);
    if (text)
        add_kinds(a, s, text, arg);
    a->plain += r->drafted == 0 && r->kind != STEP_PREFILL;
    if (!r->drafted)
        return;
    draft_sums_add(&a->drafts, r, s->tree ? tree_depth(s->tree) : r->drafted);
    add_drafts(&a->range[draft_range_of(r->pos0)], r);
    if (a->window)
        add_drafts(&a->edge[r->pos0 < a->window       ? EDGE_BEFORE
                            : r->pos0 < 2 * a->window ? EDGE_AT
                                                      : EDGE_PAST], r);
    if (s->tree && s->tree->n > 1)
        judge(a, s);
}

void accepted_free(struct accepted *a)
{
    ids_free(&a->reply);
}

double accepted_at(const struct draft_sums *s, int depth)
{
    return ratio(s->depth[depth].accepted, s->cycles);
}

double accepted_after(const struct draft_sums *s, int depth)
{
    return ratio(s->depth[depth].accepted, depth > 1 ? s->depth[depth - 1].accepted : s->cycles);
}
