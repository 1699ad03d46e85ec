/* trees.c - see trees.h. */
#include "repl/trees.h"

#include <stdlib.h>
#include <string.h>

void trees_free(struct trees *t)
{
    free(t->step);
    buf_free(&t->packed);
    *t = (struct trees){0};
}

/* Forgets the first n steps. */
static void drop_first(struct trees *t, int n)
{
    size_t bytes = n < t->n ? t->step[n].at : t->packed.n;
    memmove(t->packed.p, t->packed.p + bytes, t->packed.n - bytes);
    t->packed.n -= bytes;
    t->n -= n;
    memmove(t->step, t->step + n, (size_t)t->n * sizeof *t->step);
    for (int i = 0; i < t->n; i++)
        t->step[i].at -= bytes;
}

static void add(struct trees *t, const struct event *ev)
{
    if (t->packed.n > TREES_BYTES)
        drop_first(t, t->n / 2);
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 256;
        t->step = xrealloc(t->step, (size_t)t->cap, sizeof *t->step);
    }
    struct tree_at *s = &t->step[t->n++];
    *s = (struct tree_at){ev->turn, ev->step, ev->rec.bonus, t->packed.n, 0};
    if (ev->tree)
        tree_pack(ev->tree, &t->packed);
    s->n = t->packed.n - s->at;
}

void trees_event(struct trees *t, const struct event *ev)
{
    if (ev->kind == EV_STEP)
        add(t, ev);
    if (ev->kind != EV_SESSION)
        return;
    int keep = ev->parent[0] ? ev->fork_turn : 0;
    while (t->n && t->step[t->n - 1].turn > keep)
        t->packed.n = t->step[--t->n].at;
}

bool trees_find(const struct trees *t, int turn, int step, struct tree *out, int32_t *bonus)
{
    for (int i = t->n - 1; i >= 0; i--) {
        const struct tree_at *s = &t->step[i];
        if (s->turn != turn || s->step != step)
            continue;
        out->n = 0;
        *bonus = s->bonus;
        return s->n == 0 || tree_unpack(out, t->packed.p + s->at, s->n, NULL);
    }
    return false;
}
