/* contexts.c - see contexts.h. */
#include "engine/thread/contexts.h"

static void drop_last(struct contexts *c)
{
    struct context *context = &c->v[--c->n];
    c->n_id -= context->rest.n;
    ids_free(&context->rest);
}

void contexts_free(struct contexts *c)
{
    while (c->n)
        drop_last(c);
    free(c->v);
    *c = (struct contexts){0};
}

void contexts_cut(struct contexts *c, int turn)
{
    while (c->n && c->v[c->n - 1].turn > turn)
        drop_last(c);
}

/* Appends the first `n` ids of context i. */
static void head_of(const struct contexts *c, int i, int n, struct ids *out)
{
    const struct context *context = &c->v[i];
    int common = min_int(n, context->common);
    if (common)
        head_of(c, i - 1, common, out);
    ids_cat(out, context->rest.v, min_int(n, context->common + context->rest.n) - common);
}

/* Removes the oldest turn; the next turn then holds all of its ids itself. */
static void drop_first(struct contexts *c)
{
    struct ids whole = {0};
    struct context *next = &c->v[1];
    head_of(c, 1, next->common + next->rest.n, &whole);
    c->n_id += whole.n - next->rest.n - c->v[0].rest.n;
    ids_free(&next->rest);
    ids_free(&c->v[0].rest);
    next->rest = whole;
    next->common = 0;
    memmove(c->v, next, (size_t)(c->n - 1) * sizeof *c->v);
    c->n--;
}

void contexts_begin(struct contexts *c, int turn, const int32_t *prompt, int n)
{
    struct ids last = {0};
    contexts_cut(c, turn - 1);
    if (c->n)
        head_of(c, c->n - 1, n, &last);
    struct context context = {.turn = turn, .n_prompt = n};
    while (context.common < last.n && last.v[context.common] == prompt[context.common])
        context.common++;
    ids_free(&last);
    if (context.common < n) /* a prompt may have no ids at all */
        ids_cat(&context.rest, prompt + context.common, n - context.common);
    *APPEND(c->v, c->n) = context;
    c->n_id += context.rest.n;
    while (c->n > 1 && c->n_id > CONTEXT_IDS)
        drop_first(c);
}

void contexts_add(struct contexts *c, int at, const int32_t *tok, int n)
{
    if (c->n == 0)
        return;
    struct context *context = &c->v[c->n - 1];
    CHECK(at >= context->common && at <= context->common + context->rest.n);
    c->n_id += at - context->common - context->rest.n + n;
    context->rest.n = at - context->common;
    ids_cat(&context->rest, tok, n);
}

bool contexts_of(const struct contexts *c, int turn, struct ids *out, int *n_prompt)
{
    for (int i = c->n - 1; i >= 0; i--)
        if (c->v[i].turn == turn) {
            head_of(c, i, c->v[i].common + c->v[i].rest.n, out);
            *n_prompt = c->v[i].n_prompt;
            return true;
        }
    return false;
}
