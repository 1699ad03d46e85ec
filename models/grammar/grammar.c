/* grammar.c - a whole grammar: what precedes the text, calls of functions, and what can be spelled.
 * See grammar.h. */
#include "kernels/json_read.h"
#include "models/grammar/parts.h"

/* ---- what precedes the text ------------------------------------------------------------------ */

/* A thought up to its first "</think>": rule i has read i bytes of the tag. */
static int thought(struct grammar *grammar, int then)
{
    static const char tag[] = "</think>";
    enum { N = sizeof tag - 1 };
    int rule[N + 1], white = grammar_rule(grammar);
    grammar_add(grammar, white, "%[ \n]");
    for (int i = 0; i <= N; i++)
        rule[i] = grammar_rule(grammar);
    for (int i = 0; i < N; i++) {
        struct set other = {0};
        set_add(&other, 0, 255);
        set_drop(&other, (unsigned char)tag[i]);
        set_drop(&other, '<');
        grammar_add(grammar, rule[i], "%r%c", tag[i], tag[i], rule[i + 1]);
        grammar_add(grammar, rule[i], "%s%c", &other, rule[0]);
        if (tag[i] != '<')
            grammar_add(grammar, rule[i], "<%c", rule[1]);
    }
    grammar_add(grammar, rule[N], "%*%c", white, 0, 2, then);
    return rule[0];
}

/* <|channel|>analysis<|message|>...<|end|><|start|>assistant any number of times, then
 * <|channel|>final<|message|>, or a call, which has a header of its own. */
static int harmony(struct grammar *grammar, int then, bool call)
{
    int rule = grammar_rule(grammar), byte = grammar_rule(grammar);
    grammar_add(grammar, byte, "%r", 0, 255);
    grammar_add(grammar, rule, "%ranalysis%r%*%r%rassistant%c", SYMBOL_CHANNEL, SYMBOL_CHANNEL,
                SYMBOL_MESSAGE, SYMBOL_MESSAGE, byte, 0, MANY, SYMBOL_END, SYMBOL_END,
                SYMBOL_START, SYMBOL_START, rule);
    if (call)
        grammar_add(grammar, rule, "%c", then);
    else
        grammar_add(grammar, rule, "%rfinal%r%c", SYMBOL_CHANNEL, SYMBOL_CHANNEL, SYMBOL_MESSAGE,
                    SYMBOL_MESSAGE, then);
    return rule;
}

/* ---- calls of functions ---------------------------------------------------------------------- */

/* Text in which the special tokens of a form are symbols. */
static void put_marked(struct grammar *grammar, struct sequence *seq, const char *text)
{
    static const struct {
        const char *text;
        int symbol, form;
    } mark[] = {{"<|channel|>", SYMBOL_CHANNEL, FORM_HARMONY},
                {"<|message|>", SYMBOL_MESSAGE, FORM_HARMONY},
                {"<|tool_call>", SYMBOL_CALL, FORM_CALLS},
                {"<tool_call|>", SYMBOL_CALL_END, FORM_CALLS}};
    enum { MARKS = LEN(mark) };
    for (size_t i; *text;) {
        for (i = 0; i < MARKS && strncmp(text, mark[i].text, strlen(mark[i].text)) != 0; i++)
            ;
        if (i < MARKS && (int)grammar->form.kind == mark[i].form) {
            grammar_put(grammar, seq, "%r", mark[i].symbol, mark[i].symbol);
            text += strlen(mark[i].text);
        } else {
            put_bytes(grammar, seq, text++, 1);
        }
    }
}

/* One call of one of the functions, or several: see grammar_open(). */
static int calls(struct grammar *grammar, const json_t *format, struct err *e)
{
    json_t *list = json_object_get(format, "tools"), *one;
    int call = grammar_rule(grammar), all = grammar_rule(grammar), more = grammar_rule(grammar);
    int most = (int)json_integer_value(json_object_get(format, "most"));
    struct sequence seq = {0};
    size_t i;
    json_array_foreach(list, i, one) {
        json_t *schema = json_object_get(one, "parameters");
        const char *name = json_string_value(json_object_get(one, "name"));
        int rule = schema ? grammar_schema(grammar, schema, e)
                          : grammar_known(grammar, RULE_OBJECT);
        if (rule < 0)
            return -1;
        put_marked(grammar, &seq, json_str(format, "open"));
        grammar_put(grammar, &seq, "%t", name ? name : "");
        put_marked(grammar, &seq, json_str(format, "middle"));
        grammar_put(grammar, &seq, "%c", rule);
        put_marked(grammar, &seq, json_str(format, "close"));
        grammar_alt(grammar, call, &seq);
    }
    put_marked(grammar, &seq, json_str(format, "between"));
    grammar_put(grammar, &seq, "%c", call);
    grammar_alt(grammar, more, &seq);
    grammar_add(grammar, all, "%c%*", call, more, 0, max_int(0, most - 1));
    return all;
}

/* ---- what can be spelled --------------------------------------------------------------------- */

/* Leaves in all sets only the bytes that are tokens of their own. */
static void keep_spelled(struct grammar *grammar, const struct tokenizer *tok)
{
    struct set one = {0};
    set_add(&one, 256, SYMBOLS - 1);
    for (int id = 0; id < tok_vocab(tok); id++) {
        size_t n;
        const char *p = tok_bytes(tok, id, &n);
        if (p && n == 1 && !tok_is_special(tok, id))
            set_add(&one, (unsigned char)*p, (unsigned char)*p);
    }
    for (int i = 0; i < grammar->n_set; i++)
        for (int w = 0; w < SET_WORDS; w++)
            grammar->set[i].bit[w] &= one.bit[w];
}

static bool is_empty(const struct set *s)
{
    uint32_t any = 0;
    for (int w = 0; w < SET_WORDS; w++)
        any |= s->bit[w];
    return !any;
}

static bool can_end(const struct grammar *grammar, int at, const bool *ends)
{
    bool ok = true;
    for (const struct element *e = &grammar->element[at]; ok && e->kind != ELEMENT_END; e++)
        ok = e->kind == ELEMENT_SET    ? !is_empty(&grammar->set[e->at])
             : e->kind == ELEMENT_CALL ? ends[e->at]
                                             : e->min == 0 || ends[e->at];
    return ok;
}

/* Removes the alternatives that no finite text has. A repetition of a rule without a text remains
 * where it may be empty; guides find no way into it. */
static bool drop_endless(struct grammar *grammar)
{
    FREED(free_at) bool *ends = xcalloc((size_t)grammar->n_rule, sizeof *ends);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < grammar->n_rule; i++)
            for (int k = 0; k < grammar->rule[i].n && !ends[i]; k++)
                more |= ends[i] = can_end(grammar, grammar->rule[i].alt[k], ends);
    }
    FOR_EACH(struct rule, rule, grammar->rule, grammar->n_rule) {
        int n = 0;
        for (int k = 0; k < rule->n; k++)
            if (can_end(grammar, rule->alt[k], ends))
                rule->alt[n++] = rule->alt[k];
        rule->n = n;
    }
    return ends[grammar->root];
}

/* ---- a grammar ------------------------------------------------------------------------------- */

static int compile(struct grammar *grammar, const json_t *format, struct err *e)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type && !strcmp(type, "json_object"))
        return grammar_known(grammar, RULE_OBJECT);
    if (type && !strcmp(type, "tools"))
        return calls(grammar, format, e);
    const json_t *schema = json_object_get(format, "schema");
    if (!type || strcmp(type, "json_schema") != 0 || !schema)
        return FAILED(-1, e, ERR_USAGE, "a response format is {\"type\": \"json_object\"} or "
                      "{\"type\": \"json_schema\", \"schema\": SCHEMA}");
    return grammar_schema(grammar, schema, e);
}

struct grammar *grammar_open(const json_t *format, const struct reply_form *form,
                             const struct tokenizer *tok, struct err *e)
{
    struct grammar *grammar = xcalloc(1, sizeof *grammar);
    grammar->form = form ? *form : (struct reply_form){0};
    grammar->root = compile(grammar, format, e);
    bool ok = grammar->root >= 0;
    if (ok && grammar->form.kind == FORM_THOUGHT)
        grammar->root = thought(grammar, grammar->root);
    else if (ok && grammar->form.kind == FORM_HARMONY)
        grammar->root = harmony(grammar, grammar->root, json_object_get(format, "tools") != NULL);
    if (ok && tok)
        keep_spelled(grammar, tok);
    if (ok && grammar->full)
        ok = err_set(e, ERR_USAGE, "the schema is too large: its grammar has more than %d elements",
                     (int)MOST_ELEMENTS);
    if (ok && !drop_endless(grammar))
        ok = err_set(e, ERR_USAGE, "the schema has no value that can be written");
    if (ok)
        return grammar;
    grammar_close(grammar);
    return NULL;
}

void grammar_close(struct grammar *grammar)
{
    if (!grammar)
        return;
    for (int i = 0; i < grammar->n_rule; i++)
        free(grammar->rule[i].alt);
    FREE(grammar->rule, grammar->set, grammar->element, grammar);
}
