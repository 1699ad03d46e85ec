/* grammar.c - a whole grammar: what precedes the text, calls of functions, and what can be spelled.
 * See grammar.h. */
#include "models/grammar/parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- what precedes the text ------------------------------------------------------------------ */

/* A thought up to its first "</think>": rule i has read i bytes of the tag. */
static int thought(struct grammar *g, int then)
{
    static const char tag[] = "</think>";
    enum { N = sizeof tag - 1 };
    int rule[N + 1], white = grammar_rule(g);
    struct sequence s = {0};
    struct set blank = {0};
    set_add(&blank, ' ', ' '), set_add(&blank, '\n', '\n');
    put_set(g, &s, &blank);
    grammar_alt(g, white, &s);
    for (int i = 0; i <= N; i++)
        rule[i] = grammar_rule(g);
    for (int i = 0; i < N; i++) {
        struct set other = {0};
        set_add(&other, 0, 255);
        set_drop(&other, (unsigned char)tag[i]);
        set_drop(&other, '<');
        put_range(g, &s, (unsigned char)tag[i], (unsigned char)tag[i]);
        put_call(g, &s, rule[i + 1]);
        grammar_alt(g, rule[i], &s);
        put_set(g, &s, &other);
        put_call(g, &s, rule[0]);
        grammar_alt(g, rule[i], &s);
        if (tag[i] == '<')
            continue;
        put_literal(g, &s, "<");
        put_call(g, &s, rule[1]);
        grammar_alt(g, rule[i], &s);
    }
    put_repeat(g, &s, white, 0, 2);
    put_call(g, &s, then);
    grammar_alt(g, rule[N], &s);
    return rule[0];
}

/* <|channel|>analysis<|message|>...<|end|><|start|>assistant any number of times, then
 * <|channel|>final<|message|>, or a call, which has a header of its own. */
static int harmony(struct grammar *g, int then, bool call)
{
    int rule = grammar_rule(g), byte = grammar_rule(g);
    struct sequence s = {0};
    put_range(g, &s, 0, 255);
    grammar_alt(g, byte, &s);
    put_range(g, &s, SYMBOL_CHANNEL, SYMBOL_CHANNEL);
    put_literal(g, &s, "analysis");
    put_range(g, &s, SYMBOL_MESSAGE, SYMBOL_MESSAGE);
    put_repeat(g, &s, byte, 0, MANY);
    put_range(g, &s, SYMBOL_END, SYMBOL_END);
    put_range(g, &s, SYMBOL_START, SYMBOL_START);
    put_literal(g, &s, "assistant");
    put_call(g, &s, rule);
    grammar_alt(g, rule, &s);
    if (!call) {
        put_range(g, &s, SYMBOL_CHANNEL, SYMBOL_CHANNEL);
        put_literal(g, &s, "final");
        put_range(g, &s, SYMBOL_MESSAGE, SYMBOL_MESSAGE);
    }
    put_call(g, &s, then);
    grammar_alt(g, rule, &s);
    return rule;
}

/* ---- calls of functions ---------------------------------------------------------------------- */

/* Text in which the special tokens of a form are symbols. */
static void put_marked(struct grammar *g, struct sequence *s, const char *text)
{
    static const struct {
        const char *text;
        int symbol, form;
    } mark[] = {{"<|channel|>", SYMBOL_CHANNEL, FORM_HARMONY},
                {"<|message|>", SYMBOL_MESSAGE, FORM_HARMONY},
                {"<|tool_call>", SYMBOL_CALL, FORM_CALLS},
                {"<tool_call|>", SYMBOL_CALL_END, FORM_CALLS}};
    enum { MARKS = sizeof mark / sizeof *mark };
    for (size_t i; *text;) {
        for (i = 0; i < MARKS && strncmp(text, mark[i].text, strlen(mark[i].text)) != 0; i++)
            ;
        if (i < MARKS && (int)g->form.kind == mark[i].form) {
            put_range(g, s, mark[i].symbol, mark[i].symbol);
            text += strlen(mark[i].text);
        } else {
            put_bytes(g, s, text++, 1);
        }
    }
}

static const char *piece(const json_t *format, const char *key)
{
    const char *s = json_string_value(json_object_get(format, key));
    return s ? s : "";
}

/* One call of one of the functions, or several: see grammar_open(). */
static int calls(struct grammar *g, const json_t *format, struct err *e)
{
    json_t *list = json_object_get(format, "tools"), *one;
    int call = grammar_rule(g), all = grammar_rule(g), more = grammar_rule(g);
    int most = (int)json_integer_value(json_object_get(format, "most"));
    struct sequence s = {0};
    size_t i;
    json_array_foreach(list, i, one) {
        json_t *schema = json_object_get(one, "parameters");
        const char *name = json_string_value(json_object_get(one, "name"));
        int rule = schema ? grammar_schema(g, schema, e) : grammar_known(g, RULE_OBJECT);
        if (rule < 0)
            return -1;
        put_marked(g, &s, piece(format, "open"));
        put_literal(g, &s, name ? name : "");
        put_marked(g, &s, piece(format, "middle"));
        put_call(g, &s, rule);
        put_marked(g, &s, piece(format, "close"));
        grammar_alt(g, call, &s);
    }
    put_marked(g, &s, piece(format, "between"));
    put_call(g, &s, call);
    grammar_alt(g, more, &s);
    put_call(g, &s, call);
    put_repeat(g, &s, more, 0, max_int(0, most - 1));
    grammar_alt(g, all, &s);
    return all;
}

/* ---- what can be spelled --------------------------------------------------------------------- */

/* Leaves in all sets only the bytes that are tokens of their own. */
static void keep_spelled(struct grammar *g, const struct tokenizer *t)
{
    struct set one = {0};
    set_add(&one, 256, SYMBOLS - 1);
    for (int id = 0; id < tok_vocab(t); id++) {
        size_t n;
        const char *p = tok_bytes(t, id, &n);
        if (p && n == 1 && !tok_is_special(t, id))
            set_add(&one, (unsigned char)*p, (unsigned char)*p);
    }
    for (int i = 0; i < g->n_set; i++)
        for (int w = 0; w < SET_WORDS; w++)
            g->set[i].bit[w] &= one.bit[w];
}

static bool is_empty(const struct set *s)
{
    uint32_t any = 0;
    for (int w = 0; w < SET_WORDS; w++)
        any |= s->bit[w];
    return !any;
}

static bool can_end(const struct grammar *g, int at, const bool *ends)
{
    bool ok = true;
    for (const struct element *e = &g->element[at]; ok && e->kind != ELEMENT_END; e++)
        ok = e->kind == ELEMENT_SET    ? !is_empty(&g->set[e->at])
             : e->kind == ELEMENT_CALL ? ends[e->at]
                                       : e->min == 0 || ends[e->at];
    return ok;
}

/* Removes the alternatives that no finite text has. A repetition of a rule without a text remains
 * where it may be empty; guides find no way into it. */
static bool drop_endless(struct grammar *g)
{
    bool *ends = xcalloc((size_t)g->n_rule, sizeof *ends), more = true;
    while (more) {
        more = false;
        for (int i = 0; i < g->n_rule; i++)
            for (int k = 0; k < g->rule[i].n && !ends[i]; k++)
                more |= ends[i] = can_end(g, g->rule[i].alt[k], ends);
    }
    for (int i = 0; i < g->n_rule; i++) {
        struct rule *r = &g->rule[i];
        int n = 0;
        for (int k = 0; k < r->n; k++)
            if (can_end(g, r->alt[k], ends))
                r->alt[n++] = r->alt[k];
        r->n = n;
    }
    bool ok = ends[g->root];
    free(ends);
    return ok;
}

/* ---- a grammar ------------------------------------------------------------------------------- */

static int compile(struct grammar *g, const json_t *format, struct err *e)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type && !strcmp(type, "json_object"))
        return grammar_known(g, RULE_OBJECT);
    if (type && !strcmp(type, "tools"))
        return calls(g, format, e);
    const json_t *schema = json_object_get(format, "schema");
    if (!type || strcmp(type, "json_schema") != 0 || !schema) {
        err_set(e, ERR_USAGE, "a response format is {\"type\": \"json_object\"} or "
                "{\"type\": \"json_schema\", \"schema\": SCHEMA}");
        return -1;
    }
    return grammar_schema(g, schema, e);
}

struct grammar *grammar_open(const json_t *format, const struct reply_form *form,
                             const struct tokenizer *t, struct err *e)
{
    struct grammar *g = xcalloc(1, sizeof *g);
    g->form = form ? *form : (struct reply_form){0};
    g->root = compile(g, format, e);
    bool ok = g->root >= 0;
    if (ok && g->form.kind == FORM_THOUGHT)
        g->root = thought(g, g->root);
    else if (ok && g->form.kind == FORM_HARMONY)
        g->root = harmony(g, g->root, json_object_get(format, "tools") != NULL);
    if (ok && t)
        keep_spelled(g, t);
    if (ok && g->full)
        ok = err_set(e, ERR_USAGE, "the schema is too large: its grammar has more than %d elements",
                     (int)MOST_ELEMENTS);
    if (ok && !drop_endless(g))
        ok = err_set(e, ERR_USAGE, "the schema has no value that can be written");
    if (ok)
        return g;
    grammar_close(g);
    return NULL;
}

void grammar_close(struct grammar *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n_rule; i++)
        free(g->rule[i].alt);
    free(g->rule);
    free(g->set);
    free(g->element);
    free(g);
}
