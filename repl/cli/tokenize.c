/* tokenize.c - `aerie tokenize`: text in, token ids out, as a folder's tokenizer sees it. */
#include "repl/cli/cli.h"

#include <errno.h>

#include <jansson.h>

#include "models/tokenizer/tokenizer.h"
#include "kernels/json.h"
#include "kernels/json_read.h"
#include "kernels/text.h"
#include "kernels/utf8.h"

static bool read_stream(FILE *f, struct buf *out, struct err *e)
{
    enum { MOST = 256 << 20 }; /* as of tok_encode() */
    char part[65536];
    size_t n;
    if (!file_fits(fileno(f), "the text", MOST, e))
        return false;
    while (out->n <= MOST && (n = fread(part, 1, sizeof part, f)) > 0)
        buf_add(out, part, n);
    if (out->n > MOST)
        return err_set(e, ERR_USAGE, "the text is longer than %d MiB", MOST >> 20);
    return !ferror(f) || err_set(e, ERR_USAGE, "cannot read the text: %s", strerror(errno));
}

static bool print_ids(const struct tokenizer *t, const char *text, size_t n, const struct cli *c,
                      struct buf *line, struct err *e)
{
    FREED(ids_free) struct ids ids = {0};
    bool ok = tok_encode(t, text, n, c->special ? TOK_SPECIAL : 0, &ids, e);
    if (ok && c->jsonl) {
        jput_open(line, '{');
        jput_kopen(line, "ids", '[');
        for (int i = 0; i < ids.n; i++)
            jput_int(line, ids.v[i]);
        jput_close(line, ']');
        jput_close(line, '}');
    } else if (ok) {
        buf_ints(line, ids.v, ids.n);
    }
    if (ok)
        cli_json(line);
    return ok;
}

/* One {"text": ...} a line; empty lines are skipped. */
static bool encode_lines(const struct tokenizer *t, FILE *f, const struct cli *c, struct err *e)
{
    bool ok = true;
    int got;
    FREED(buf_free) struct buf out = {0}, line = {0};
    for (int number = 1; ok && (got = cli_line(f, number, &line, e)); number++) {
        if (got < 0) {
            ok = err_prefix(e, "line %d", number);
            break;
        }
        if (strspn(buf_text(&line), " \t\r") == line.n)
            continue;
        json_error_t why;
        json_t *v = json_parse(line.p, line.n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
        json_t *text = json_object_get(v, "text");
        if (!v)
            ok = err_set(e, ERR_USAGE, "line %d: %s", number, why.text);
        else if (!json_is_string(text))
            ok = err_set(e, ERR_USAGE, "line %d: expected {\"text\": \"...\"}", number);
        else if (!print_ids(t, json_string_value(text), json_string_length(text), c, &out, e))
            ok = err_prefix(e, "line %d", number);
        json_decref(v);
    }
    return ok;
}

static bool encode_text(const struct tokenizer *t, FILE *f, const struct cli *c, struct err *e)
{
    FREED(buf_free) struct buf text = {0}, out = {0};
    if (!read_stream(f, &text, e))
        return false;
    utf8_drop_mark(&text);
    return print_ids(t, buf_text(&text), text.n, c, &out, e);
}

int cli_tokenize(struct cli *c)
{
    struct err e = {0};
    const char *name = c->n_word && strcmp(c->word[0], "-") != 0 ? c->word[0] : NULL;
    FILE *f = stdin;
    struct tokenizer *t = NULL;
    bool ok = false;
    if (!c->opt.engine.model)
        err_set(&e, ERR_MODEL, "no tokenizer: the bundled model is not installed; expected -m DIR");
    else if (name && !(f = fopen(name, "re")))
        err_set(&e, ERR_USAGE, "cannot open %s: %s", name, strerror(errno));
    else if ((t = tok_open(c->opt.engine.model, &e)))
        ok = (c->jsonl ? encode_lines : encode_text)(t, f, c, &e);
    if (name && f)
        fclose(f);
    tok_close(t);
    return ok ? 0 : cli_fail(&e);
}
