/* steps.c - see steps.h.
 *
 * The reference's decoder works on the list of all tokens of a text. Here every id is decoded once,
 * when the file is read. Both give the same text if each step depends on one token only. The one
 * supported step that does not, stripping the start of the whole text, is done when a text is
 * decoded (t->strip); others are refused.
 */
#include "kernels/json_read.h"
#include "models/checkpoint/json.h"
#include "models/tokenizer/steps.h"

#include <utf8proc.h>

/* ---- reading members ---- */

/* A node of a tree, and its place for messages. */
struct tok_node {
    json_t *j;
    char where[96];
    struct err *e;
};

static bool bad(const struct tok_node *n, const char *what, const char *got)
{
    return err_set(n->e, ERR_MODEL, "%s: %s%s%.48s%s", n->where, what, got ? " \"" : "",
                   got ? show(got).s : "", got ? "\"" : "");
}

static const char *kind_of(const struct tok_node *n)
{
    return json_str(n->j, "type");
}

static bool get_bool(const struct tok_node *n, const char *key, bool missing, bool *out)
{
    json_t *v = json_object_get(n->j, key);
    *out = v ? json_is_true(v) : missing;
    return !v || json_is_boolean(v) || bad(n, "expected true or false for", key);
}

static bool get_int(const struct tok_node *n, const char *key, int *out)
{
    json_t *v = json_object_get(n->j, key);
    json_int_t i = json_integer_value(v);
    *out = (int)i;
    return (json_is_integer(v) && i >= 0 && i <= 1 << 20) || bad(n, "expected a count for", key);
}

static bool get_text(const struct tok_node *n, const char *key, struct buf *out)
{
    json_t *v = json_object_get(n->j, key);
    if (!json_is_string(v))
        return bad(n, "expected a string for", key);
    buf_add(out, json_string_value(v), json_string_length(v));
    return true;
}

/* "pattern": {"String": ...} or {"Regex": ...} */
static bool get_pattern(const struct tok_node *n, struct pattern *p)
{
    json_t *v = json_object_get(n->j, "pattern");
    json_t *s = json_object_get(v, "String"), *r = json_object_get(v, "Regex");
    json_t *text = s ? s : r;
    if (!json_is_string(text) || json_object_size(v) != 1)
        return bad(n, "expected {\"String\": ...} or {\"Regex\": ...} for", "pattern");
    return pattern_open(p, r != NULL, json_string_value(text), json_string_length(text), n->e) ||
           err_prefix(n->e, "%s", n->where);
}

/* ---- walking a tree: the leaves of its Sequences, in order ---- */

static bool walk_steps(struct tok_node *n, const char *list,
                       bool (*leaf)(struct tok_node *n, void *arg), void *arg)
{
    if (!json_is_object(n->j))
        return bad(n, "expected an object", NULL);
    if (strcmp(kind_of(n), "Sequence") != 0)
        return leaf(n, arg);
    json_t *a = json_object_get(n->j, list);
    if (!json_is_array(a))
        return bad(n, "expected an array for", list);
    for (size_t i = 0; i < json_array_size(a); i++) {
        struct tok_node kid = {.j = json_array_get(a, i), .e = n->e};
        snprintf(kid.where, sizeof kid.where, "%.40s.%.20s[%zu]", n->where, list, i);
        if (!walk_steps(&kid, list, leaf, arg))
            return false;
    }
    return true;
}

static bool parse_steps(struct pull_str raw, const char *where, const char *list,
                        bool (*leaf)(struct tok_node *n, void *arg), void *arg, struct err *e)
{
    if (!raw.s)
        return true;
    json_error_t why;
    struct tok_node root = {.e = e};
    snprintf(root.where, sizeof root.where, "%s", where);
    root.j = json_parse(raw.s, raw.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL,
                        &why);
    FREED(json_decrefp) json_t *json = root.j;
    return json ? walk_steps(&root, list, leaf, arg) : bad(&root, show(why.text).s, NULL);
}

/* ---- normalizer ---- */

static bool norm_leaf(struct tok_node *n, void *arg)
{
    static const struct unicode_form {
        const char *name;
        int form;
    } forms[] = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    struct tokenizer *t = arg;
    const char *kind = kind_of(n);
    if (t->n_norm == MAX_STEPS)
        return bad(n, "too many steps", NULL);
    struct norm_step *s = &t->norm[t->n_norm++];
    const struct unicode_form *form = ROW_NAMED(forms, kind);
    if (form) {
        s->kind = NORMALIZE_FORM;
        s->form = form->form;
        return true;
    }
    if (strcmp(kind, "Prepend") == 0) {
        s->kind = NORMALIZE_PREPEND;
        return get_text(n, "prepend", &s->content);
    }
    s->kind = NORMALIZE_REPLACE;
    if (strcmp(kind, "Replace") == 0)
        return get_pattern(n, &s->pattern) && get_text(n, "content", &s->content);
    return bad(n, "unsupported kind", kind);
}

bool steps_normalizer(struct tokenizer *t, struct pull_str raw, struct err *e)
{
    return parse_steps(raw, "normalizer", "normalizers", norm_leaf, t, e);
}

/* ---- pre-tokenizer ---- */

/* GPT-2's expression, which ByteLevel applies if use_regex is set. */
static const char gpt2_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                                 "|\\s+(?!\\S)|\\s+";

static struct pre_step *add_pre(struct tokenizer *t, int kind)
{
    CHECK(t->n_pre < MAX_STEPS);
    struct pre_step *s = &t->pre[t->n_pre++];
    s->kind = kind;
    return s;
}

/* Adds a split that makes each match a piece of its own. */
static bool isolate(struct tokenizer *t, const char *regex, struct err *e)
{
    return pattern_open(&add_pre(t, PRE_SPLIT)->pattern, true, regex, strlen(regex), e);
}

bool steps_bytes(struct tokenizer *t, const char *const *regex, int n, bool gpt2, struct err *e)
{
    if (!ALL(i, n, isolate(t, regex[i], e)) || (gpt2 && !isolate(t, gpt2_regex, e)))
        return false;
    add_pre(t, PRE_BYTES);
    return true;
}

static bool pre_split(struct tok_node *n, struct tokenizer *t)
{
    static const char *const how[] = {"Isolated", "Removed", "MergedWithPrevious",
                                      "MergedWithNext", "Contiguous"};
    struct pre_step *s = add_pre(t, PRE_SPLIT);
    const char *want = json_string_value(json_object_get(n->j, "behavior"));
    int i = 0;
    while (i < 5 && !(want && strcmp(want, how[i]) == 0))
        i++;
    if (i == 5)
        return bad(n, "unsupported behavior", want ? want : "");
    s->how = (enum split_how)i;
    return get_bool(n, "invert", false, &s->invert) && get_pattern(n, &s->pattern);
}

static bool pre_bytes(struct tok_node *n, struct tokenizer *t)
{
    bool space, regex;
    if (!get_bool(n, "add_prefix_space", true, &space) || !get_bool(n, "use_regex", true, &regex))
        return false;
    if (space)
        buf_str(&add_pre(t, PRE_PREFIX)->content, " ");
    return steps_bytes(t, NULL, 0, regex, n->e) || err_prefix(n->e, "%s", n->where);
}

static bool pre_digits(struct tok_node *n, struct tokenizer *t)
{
    bool single;
    if (!get_bool(n, "individual_digits", false, &single))
        return false;
    struct pre_step *s = add_pre(t, PRE_SPLIT);
    s->how = single ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return pattern_open(&s->pattern, true, "\\p{N}", 5, n->e) || err_prefix(n->e, "%s", n->where);
}

/* Reads "prepend_scheme", or the older "add_prefix_space", where true means "always". */
static bool metaspace_prefix(struct tok_node *n, bool *prefix, bool *first_only)
{
    const char *scheme = json_string_value(json_object_get(n->j, "prepend_scheme"));
    if (!get_bool(n, "add_prefix_space", true, prefix))
        return false;
    *first_only = scheme && strcmp(scheme, "first") == 0;
    if (!scheme)
        return true;
    *prefix = strcmp(scheme, "never") != 0;
    return *first_only || !*prefix || strcmp(scheme, "always") == 0 ||
           bad(n, "unsupported prepend_scheme", scheme);
}

/* A text of one character. */
static bool get_char(const struct tok_node *n, const char *key, struct buf *out)
{
    return get_text(n, key, out) &&
           ((out->n && utf8_len(out->p) == out->n) || bad(n, "expected one character for", key));
}

static bool pre_metaspace(struct tok_node *n, struct tokenizer *t)
{
    bool prefix, first_only, split;
    struct pre_step *space = add_pre(t, PRE_REPLACE);
    if (!metaspace_prefix(n, &prefix, &first_only) || !get_bool(n, "split", true, &split) ||
        !get_char(n, "replacement", &space->content) ||
        !pattern_open(&space->pattern, false, " ", 1, n->e))
        return false;
    const struct buf *mark = &space->content;
    if (prefix) {
        struct pre_step *s = add_pre(t, PRE_PREFIX);
        s->first_only = first_only;
        buf_add(&s->content, mark->p, mark->n);
    }
    if (!split)
        return true;
    struct pre_step *s = add_pre(t, PRE_SPLIT);
    s->how = SPLIT_NEXT;
    return pattern_open(&s->pattern, false, mark->p, mark->n, n->e);
}

static bool pre_leaf(struct tok_node *n, void *arg)
{
    static const struct pre_kind {
        const char *name;
        bool (*read)(struct tok_node *n, struct tokenizer *t);
    } kinds[] = {{"Split", pre_split}, {"ByteLevel", pre_bytes}, {"Digits", pre_digits},
                {"Metaspace", pre_metaspace}};
    struct tokenizer *t = arg;
    if (t->n_pre + 3 > MAX_STEPS) /* a leaf adds at most three steps */
        return bad(n, "too many steps", NULL);
    const struct pre_kind *kind = ROW_NAMED(kinds, kind_of(n));
    return kind ? kind->read(n, t) : bad(n, "unsupported kind", kind_of(n));
}

bool steps_pre_tokenizer(struct tokenizer *t, struct pull_str raw, struct err *e)
{
    return parse_steps(raw, "pre_tokenizer", "pretokenizers", pre_leaf, t, e);
}

/* ---- decoder ---- */

/* In the only supported order: steps on strings, then on bytes, then on the joined text. */
enum decode_kind { DECODE_REPLACE, DECODE_STRIP, DECODE_FALLBACK, DECODE_BYTES };

struct decode_step {
    enum decode_kind kind;
    struct pattern pattern;
    struct buf content;
    int start, stop; /* strip */
    bool not_first;  /* replace: matches in a text's first token are removed instead */
};

struct decoding {
    struct tokenizer *t;
    struct decode_step step[MAX_STEPS];
    int n;
    bool first_differs;
    enum { ON_STRINGS, ON_BYTES, ON_TEXT } stage;
};

static bool strip_text(struct tok_node *n, struct tokenizer *t, const char *c, int start)
{
    if (t->strip_max)
        return bad(n, "a second strip of the whole text", NULL);
    snprintf(t->strip, sizeof t->strip, "%s", c);
    t->strip_max = start;
    return true;
}

static bool decode_strip(struct tok_node *n, struct decoding *d, struct decode_step *s)
{
    s->kind = DECODE_STRIP;
    if (!get_char(n, "content", &s->content) || !get_int(n, "start", &s->start) ||
        !get_int(n, "stop", &s->stop))
        return false;
    if (d->stage == ON_STRINGS)
        return true;
    if (d->stage == ON_BYTES || s->stop)
        return bad(n, "a strip across tokens", NULL);
    int start = s->start;
    s->start = 0; /* the start of the text is stripped, not of each token */
    return strip_text(n, d->t, s->content.p, start);
}

/* Metaspace: its replacement character becomes a space; in a text's first token it is removed if
 * encoding put one there. */
static bool decode_metaspace(struct tok_node *n, struct decoding *d, struct decode_step *s)
{
    bool first_only;
    FREED(buf_free) struct buf mark = {0};
    bool ok = metaspace_prefix(n, &s->not_first, &first_only) && get_char(n, "replacement", &mark);
    s->kind = DECODE_REPLACE;
    d->first_differs |= s->not_first;
    buf_str(&s->content, " ");
    return ok && pattern_open(&s->pattern, false, mark.p, mark.n, n->e);
}

static bool decode_leaf(struct tok_node *n, void *arg)
{
    struct decoding *d = arg;
    const char *kind = kind_of(n);
    if (d->n == MAX_STEPS)
        return bad(n, "too many steps", NULL);
    struct decode_step *s = &d->step[d->n++];
    if (strcmp(kind, "Strip") == 0)
        return decode_strip(n, d, s);
    s->kind = DECODE_STRIP; /* strips nothing, unless the kind is set below */
    if (strcmp(kind, "Fuse") == 0) {
        d->stage = ON_TEXT;
        return true;
    }
    if (d->stage != ON_STRINGS)
        return bad(n, "unsupported order: no step but Fuse and Strip may follow bytes; found",
                   kind);
    if (strcmp(kind, "Metaspace") == 0)
        return decode_metaspace(n, d, s);
    if (strcmp(kind, "Replace") == 0) {
        s->kind = DECODE_REPLACE;
        return get_pattern(n, &s->pattern) && get_text(n, "content", &s->content);
    }
    bool bytes = strcmp(kind, "ByteLevel") == 0;
    if (!bytes && strcmp(kind, "ByteFallback") != 0)
        return bad(n, "unsupported kind", kind);
    s->kind = bytes ? DECODE_BYTES : DECODE_FALLBACK;
    d->stage = bytes ? ON_TEXT : ON_BYTES;
    return true;
}

/* "<0xNN>" with exactly two hex digits: the byte, else -1. */
static int fallback_byte(const char *s, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    const char *hi = memchr(digits, s[3] | (s[3] >= 'A' ? 0x20 : 0), 16);
    const char *lo = memchr(digits, s[4] | (s[4] >= 'A' ? 0x20 : 0), 16);
    return hi && lo ? (int)(hi - digits) << 4 | (int)(lo - digits) : -1;
}

/* Converts byte-level text to bytes. A token with a character that represents no byte is copied. */
static void from_alphabet(const char *s, size_t n, struct buf *out)
{
    size_t at = out->n;
    for (size_t i = 0; i < n; i += utf8_len(s + i)) {
        int b = char_to_byte(utf8_at(s + i));
        if (b < 0) {
            out->n = at;
            buf_add(out, s, n);
            return;
        }
        buf_char(out, (char)b);
    }
}

static void strip_token(const struct decode_step *s, const char *p, size_t n, struct buf *out)
{
    const struct buf *c = &s->content;
    for (int i = 0; i < s->start && n >= c->n && memcmp(p, c->p, c->n) == 0; i++) {
        p += c->n;
        n -= c->n;
    }
    for (int i = 0; i < s->stop && n >= c->n && memcmp(p + n - c->n, c->p, c->n) == 0; i++)
        n -= c->n;
    buf_add(out, p, n);
}

enum { MAX_DECODED = 1 << 26 }; /* bytes of all decoded tokens; the largest known file has 2^21 */

/* Scratch memory of decode_all(). */
struct decode_work {
    struct buf in, out;
    struct matcher find;
    struct spans span;
};

static bool decode_replace(const struct decode_step *s, bool first, struct decode_work *w,
                           struct err *e)
{
    w->span.n = 0;
    if (!pattern_spans(&s->pattern, &w->find, w->in.p, w->in.n, &w->span, e))
        return false;
    for (size_t i = 0; i < w->span.n; i++) {
        if (w->out.n > MAX_DECODED)
            return err_set(e, ERR_MODEL, "decoder: a token decodes to more than %d bytes",
                           MAX_DECODED);
        if (!w->span.v[i].match)
            buf_add(&w->out, w->in.p + w->span.v[i].off, w->span.v[i].len);
        else if (!(first && s->not_first))
            buf_add(&w->out, s->content.p, s->content.n);
    }
    return true;
}

static bool decode_step(const struct decode_step *s, bool first, struct decode_work *w,
                        struct err *e)
{
    const struct buf *in = &w->in;
    int b = -1;
    buf_clear(&w->out);
    switch (s->kind) {
    case DECODE_REPLACE:
        return decode_replace(s, first, w, e);
    case DECODE_STRIP:
        strip_token(s, in->p, in->n, &w->out);
        break;
    case DECODE_BYTES:
        from_alphabet(in->p, in->n, &w->out);
        break;
    case DECODE_FALLBACK:
        b = fallback_byte(in->p, in->n);
        if (b >= 0)
            buf_char(&w->out, (char)b);
        else
            buf_add(&w->out, in->p, in->n);
        break;
    }
    return true;
}

/* Sets w->in to the decoded text of one token. */
static bool decode_token(const struct decoding *d, struct pull_str s, bool first,
                         struct decode_work *w, struct err *e)
{
    buf_clear(&w->in);
    buf_add(&w->in, s.s, s.n);
    for (int i = 0; w->in.n && i < d->n; i++) {
        if (!decode_step(&d->step[i], first, w, e))
            return false;
        SWAP(w->in, w->out);
    }
    return true;
}

/* The normalised texts of added tokens with "normalized", by id; s NULL: the id has none. */
static struct pull_str *normalized_texts(const struct tokenizer *t)
{
    struct pull_str *text = xcalloc((size_t)t->bpe.n_token, sizeof *text);
    FOR_EACH(const struct added, x, t->normalized.v, t->normalized.n)
        text[x->id] = (struct pull_str){t->normalized.text.p + x->off, x->len};
    return text;
}

static bool decode_all(struct decoding *d, bool first, struct decoded_text **out, struct err *e)
{
    struct tokenizer *t = d->t;
    const struct bpe *b = &t->bpe;
    struct decode_work w = {0};
    FREED(free_at) struct pull_str *text = normalized_texts(t);
    bool ok = true;
    *out = xcalloc((size_t)b->n_token, sizeof **out);
    for (int id = 0; ok && id < b->n_token; id++) {
        if (!text[id].s)
            text[id] = (struct pull_str){b->text.p + b->token[id].off, b->token[id].len};
        ok = decode_token(d, text[id], first, &w, e);
        if (ok && t->plain.n + w.in.n > MAX_DECODED)
            ok = err_set(e, ERR_MODEL, "decoder: the tokens decode to more than %d bytes",
                         MAX_DECODED);
        if (!ok)
            break;
        (*out)[id] = (struct decoded_text){(uint32_t)t->plain.n, (uint32_t)w.in.n};
        buf_add(&t->plain, w.in.p, w.in.n);
    }
    free(w.span.v);
    matcher_free(&w.find);
    buf_free(&w.in);
    buf_free(&w.out);
    return ok;
}

bool steps_decoder(struct tokenizer *t, struct pull_str raw, struct err *e)
{
    struct decoding d = {.t = t};
    if (!raw.s)
        return err_set(e, ERR_MODEL, "decoder: missing; expected ByteLevel or a Sequence");
    bool ok = parse_steps(raw, "decoder", "decoders", decode_leaf, &d, e) &&
              decode_all(&d, false, &t->decoded, e) &&
              (!d.first_differs || decode_all(&d, true, &t->decoded_first, e));
    for (int i = 0; i < d.n; i++) {
        pattern_free(&d.step[i].pattern);
        buf_free(&d.step[i].content);
    }
    return ok;
}

/* ---- post-processor ---- */

/* TemplateProcessing: "single" lists the special tokens around a text; t->bos is the first element,
 * if it is a special token. */
static bool post_leaf(struct tok_node *n, void *arg)
{
    struct tokenizer *t = arg;
    json_t *first = json_array_get(json_object_get(n->j, "single"), 0);
    const char *id = json_string_value(json_object_get(json_object_get(first, "SpecialToken"),
                                                       "id"));
    if (t->bos < 0 && strcmp(kind_of(n), "TemplateProcessing") == 0 && id)
        t->bos = tok_find(t, id);
    return true;
}

bool steps_post_processor(struct tokenizer *t, struct pull_str raw, struct err *e)
{
    t->bos = -1;
    return parse_steps(raw, "post_processor", "processors", post_leaf, t, e);
}
