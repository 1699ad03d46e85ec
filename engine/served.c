/* served.c - see served.h. */
#include "engine/served.h"

#include <math.h>

struct served *served_new(void)
{
    struct served *s = xcalloc(1, sizeof *s);
    s->prompt = s->generated = s->cached = s->drafted = s->accepted = s->verifies = -1;
    s->ms_queue = s->ms_first = s->ms_prompt = s->ms_decode = s->ms_before = s->ms_after = NAN;
    return s;
}

struct served *served_copy(const struct served *s)
{
    if (!s)
        return NULL;
    struct served *c = xmalloc(sizeof *c);
    *c = *s;
    if (!s->n_metric) {
        c->metric = NULL;
        return c;
    }
    c->metric = xcalloc((size_t)s->n_metric, sizeof *c->metric);
    for (int i = 0; i < s->n_metric; i++) {
        c->metric[i] = s->metric[i];
        c->metric[i].name = xstrdup(s->metric[i].name);
        c->metric[i].labels = xstrdup(s->metric[i].labels);
    }
    return c;
}

void served_free(struct served *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_metric; i++)
        FREE(s->metric[i].name, s->metric[i].labels);
    FREE(s->metric, s);
}

void tops_add(struct tops *t, int k, int32_t id, float logp, const char *text, size_t n)
{
    struct top *x = APPEND(t->at, t->n);
    *x = (struct top){.k = k, .id = id, .logp = logp};
    if (!text)
        return;
    x->text = xmalloc(n + 1);
    memcpy(x->text, text, n);
    x->text[n] = '\0';
    x->n = (int)n;
}

void tops_slice(struct tops *to, const struct tops *from, int first, int n)
{
    int at = FIRST_NOT(i, from->n, from->at[i].k < first);
    for (const struct top *x = from->at + at; at < from->n && x->k < first + n; at++, x++)
        tops_add(to, x->k - first, x->id, x->logp, x->text, (size_t)x->n);
}

struct tops *tops_copy(const struct tops *t)
{
    if (!t)
        return NULL;
    struct tops *c = xcalloc(1, sizeof *c);
    tops_slice(c, t, 0, INT32_MAX);
    return c;
}

void tops_clear(struct tops *t)
{
    for (int i = 0; i < t->n; i++)
        free(t->at[i].text);
    free(t->at);
    *t = (struct tops){0};
}

void tops_free(struct tops *t)
{
    if (!t)
        return;
    tops_clear(t);
    free(t);
}
