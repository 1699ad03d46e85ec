/* constrain.c - grammars and guides of replies: see internal.h. */

#include "engine/thread/internal.h"
#include "kernels/json_read.h"

/* What precedes the answer in a reply to the prompt. */
static struct reply_form form_of(const struct chat *c, const struct ids *prompt)
{
    struct reply_form f = {.kind = FORM_TEXT};
    struct chat_marks m;
    struct chat_reader r;
    FREED(buf_free) struct buf rest = {0};
    if (chat_marks(c, &m))
        return (struct reply_form){FORM_HARMONY, m.channel, m.message, m.end, m.start, -1, -1};
    chat_reader_init(&r, c);
    chat_reader_follow(&r, prompt);
    f.kind = r.channel == CHAN_ANALYSIS                     ? FORM_THOUGHT
             : chat_call_tokens(c, &f.call, &f.call_end) ? FORM_CALLS
                                                            : FORM_TEXT;
    chat_reader_end(&r, &rest);
    return f;
}

bool constrain_compile(const struct loaded *loaded, const char *format, const struct ids *prompt,
                       struct grammar **out, struct err *e)
{
    json_error_t why;
    FREED(json_decrefp) json_t *o = json_parse(format, strlen(format), JSON_ALLOW_NUL, &why);
    if (!o)
        return err_set(e, ERR_USAGE, "the response format is no JSON: line %d, column %d: %.100s",
                       why.line, why.column, why.text);
    const char *text = json_string_value(json_object_get(o, "form"));
    struct reply_form f = {.kind = FORM_TEXT};
    if (prompt && !(text && !strcmp(text, "text")))
        f = form_of(loaded->chat, prompt);
    *out = grammar_open(o, &f, prompt ? loaded->tok : NULL, e);
    return *out != NULL;
}

struct guide *constrain_guide(struct engine *engine, struct grammar *grammar)
{
    struct runtime *rt = &engine->own.runtime;
    if (!grammar)
        return NULL;
    if (!engine->own.order)
        engine->own.order = token_order_open(engine->loaded.tok);
    return guide_open(grammar, engine->own.order, rt->model->cfg.vocab, rt->stop, rt->n_stop);
}
