/* rules.c - rules and their alternatives: see parts.h. */
#include "kernels/idioms.h"
#include "models/grammar/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rules ----------------------------------------------------------------------------------- */

int grammar_rule(struct grammar *g)
{
    MAKE_ROOM(g->rule, g->n_rule, g->cap_rule, 32);
    g->rule[g->n_rule] = (struct rule){0};
    return g->n_rule++;
}

static void put(struct sequence *s, struct element e)
{
    MAKE_ROOM(s->v, s->n, s->cap, 16);
    s->v[s->n++] = e;
}

void grammar_alt(struct grammar *g, int rule, struct sequence *s)
{
    struct rule *r = &g->rule[rule];
    put(s, (struct element){.kind = ELEMENT_END});
    g->full |= g->n_element + s->n > MOST_ELEMENTS;
    if (!g->full) {
        if (g->n_element + s->n > g->cap_element)
            g->element = xrealloc(g->element,
                                  (size_t)(g->cap_element = 2 * g->cap_element + s->n + 64),
                                  sizeof *g->element);
        MAKE_ROOM(r->alt, r->n, r->cap, 2);
        r->alt[r->n++] = g->n_element;
        memcpy(g->element + g->n_element, s->v, (size_t)s->n * sizeof *s->v);
        g->n_element += s->n;
    }
    free(s->v);
    *s = (struct sequence){0};
}

void put_set(struct grammar *g, struct sequence *s, const struct set *set)
{
    MAKE_ROOM(g->set, g->n_set, g->cap_set, 64);
    g->set[g->n_set] = *set;
    put(s, (struct element){.kind = ELEMENT_SET, .at = g->n_set++});
}

void put_range(struct grammar *g, struct sequence *s, int from, int to)
{
    struct set set = {0};
    set_add(&set, from, to);
    put_set(g, s, &set);
}

void put_bytes(struct grammar *g, struct sequence *s, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int byte = (unsigned char)p[i];
        if (!g->byte[byte]) {
            put_range(g, s, byte, byte);
            g->byte[byte] = g->n_set;
        } else {
            put(s, (struct element){.kind = ELEMENT_SET, .at = g->byte[byte] - 1});
        }
    }
}

void put_literal(struct grammar *g, struct sequence *s, const char *text)
{
    put_bytes(g, s, text, strlen(text));
}

void put_call(struct grammar *g, struct sequence *s, int rule)
{
    (void)g;
    put(s, (struct element){.kind = ELEMENT_CALL, .at = rule});
}

void put_repeat(struct grammar *g, struct sequence *s, int rule, int min, int max)
{
    (void)g;
    if (max > 0)
        put(s, (struct element){.kind = ELEMENT_REPEAT, .at = rule, .min = min, .max = max});
}

void put_json_string(struct grammar *g, struct sequence *s, const char *p, size_t n)
{
    put_literal(g, s, "\"");
    for (size_t i = 0; i < n; i++) {
        char escape[8] = {p[i]};
        if (p[i] == '"' || p[i] == '\\')
            snprintf(escape, sizeof escape, "\\%c", p[i]);
        else if ((unsigned char)p[i] < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)p[i]);
        put_bytes(g, s, escape, escape[0] == '\\' ? strlen(escape) : 1);
    }
    put_literal(g, s, "\"");
}
