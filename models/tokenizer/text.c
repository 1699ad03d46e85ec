/* text.c - applies the normalizer and the pre-tokenizer: from a text to its pieces. */
#include "models/tokenizer/parts.h"

#include <utf8proc.h>

/* ---- the byte alphabet ---- */

/* Whether byte b is represented by the character of the same number: the printable ones of Latin-1.
 * The other 68 bytes are represented by U+0100 and up, in order. */
static bool stands_for_itself(unsigned b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

uint32_t byte_to_char(uint8_t b)
{
    if (stands_for_itself(b))
        return b;
    return 0x100 + (b <= ' ' ? b : b <= 0xA0 ? b - 0x7F + 33u : 67u);
}

int char_to_byte(uint32_t c)
{
    if (c < 0x100)
        return stands_for_itself(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}

/* ---- Unicode normal forms ---- */

struct runes {
    int32_t *v;
    uint8_t *class; /* canonical combining class */
    size_t n, cap;
};

static void add_decomposed(struct runes *r, uint32_t c, int form)
{
    int last = 0;
    for (;;) {
        size_t room = r->cap - r->n;
        utf8proc_ssize_t got = utf8proc_decompose_char((int32_t)c, r->v + r->n,
                                                       (utf8proc_ssize_t)room,
                                                       (utf8proc_option_t)form, &last);
        CHECK(got >= 0);
        if ((size_t)got <= room) {
            r->n += (size_t)got;
            return;
        }
        r->cap = 2 * r->cap + (size_t)got;
        r->v = xrealloc(r->v, r->cap, sizeof *r->v);
    }
}

/* Sorts each run of combining marks by combining class: a stable counting sort, because a run may
 * have a million marks. */
static void order_marks(struct runes *r)
{
    FREED(free_at) int32_t *sorted = NULL;
    r->class = xmalloc(r->n);
    for (size_t i = 0; i < r->n; i++)
        r->class[i] = (uint8_t)utf8proc_get_property(r->v[i])->combining_class;
    for (size_t a = 0, b; a < r->n; a = b + 1) {
        for (b = a; b < r->n && r->class[b]; b++)
            ;
        if (b - a < 2)
            continue;
        size_t at[257] = {0};
        for (size_t i = a; i < b; i++)
            at[r->class[i] + 1]++;
        for (int c = 0; c < 256; c++)
            at[c + 1] += at[c];
        sorted = xrealloc(sorted, b - a, sizeof *sorted);
        for (size_t i = a; i < b; i++)
            sorted[at[r->class[i]]++] = r->v[i];
        memcpy(r->v + a, sorted, (b - a) * sizeof *sorted);
    }
    free(r->class);
}

/* Appends the normal form of the first n runes, and removes them. */
static void put_runes(struct runes *r, size_t n, int form, struct buf *out)
{
    struct runes part = {.v = r->v, .n = n};
    order_marks(&part);
    if (form & UTF8PROC_COMPOSE)
        part.n = (size_t)utf8proc_normalize_utf32(part.v, (utf8proc_ssize_t)part.n,
                                                  (utf8proc_option_t)form);
    for (size_t i = 0; i < part.n; i++)
        buf_utf8(out, (uint32_t)part.v[i]);
    r->n -= n;
    memmove(r->v, r->v + n, r->n * sizeof *r->v);
}

/* Whether the runes before and from `at` on have the same normal form apart as together: two
 * characters of one composition are never of different grapheme clusters. */
static bool apart(const struct runes *r, size_t at)
{
    return utf8proc_get_property(r->v[at])->combining_class == 0 &&
           utf8proc_grapheme_break(r->v[at - 1], r->v[at]);
}

/* Appends the normal form of `in` to out, part by part. False if encoding was stopped. */
static bool normal_form(const struct tok_work *w, const struct buf *in, int form, struct buf *out)
{
    struct runes r = {.cap = CHECK_EVERY};
    bool ok = true;
    r.v = xrealloc(NULL, r.cap, sizeof *r.v);
    for (size_t i = 0, k = 0; ok && i < in->n; i += utf8_len(in->p + i), k++) {
        size_t before = r.n;
        add_decomposed(&r, utf8_at(in->p + i), (form & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE);
        if (before >= CHECK_EVERY && apart(&r, before))
            put_runes(&r, before, form, out);
        ok = k % CHECK_EVERY != 0 || !must_stop(w);
    }
    if (ok)
        put_runes(&r, r.n, form, out);
    free(r.v);
    return ok;
}

/* A fast test that `in` is in normal form already: ASCII is in every form, and all characters
 * before U+0300 (UTF-8: before 0xCC) are in NFC. */
static bool is_normal(const struct buf *in, int form)
{
    uint8_t below = form & UTF8PROC_COMPOSE && !(form & UTF8PROC_COMPAT) ? 0xCC : 0x80;
    return !ANY(i, in->n, (uint8_t)in->p[i] >= below && ((uint8_t)in->p[i] & 0xC0) != 0x80);
}

/* ---- normalizers ---- */

static bool too_long(const struct tok_work *w, struct err *e)
{
    return err_set(e, ERR_MODEL, "the tokenizer's steps expand the text to more than %zu bytes",
                   w->most);
}

static bool replace(const struct pattern *p, const struct buf *by, const char *s, size_t n,
                    struct tok_work *w, struct buf *out, struct err *e)
{
    const char *shown = p->literal ? s : replace_new_chars(&w->find, s, n);
    w->span.n = 0;
    if (!pattern_spans(p, &w->find, shown, n, &w->span, e))
        return false;
    for (size_t i = 0; i < w->span.n; i++) {
        const struct text_span *x = &w->span.v[i];
        if (out->n + (x->match ? by->n : x->len) > w->most)
            return too_long(w, e);
        if (stops_at(w->find.stop, i))
            return was_stopped(e);
        if (x->match)
            buf_add(out, by->p, by->n);
        else
            buf_add(out, s + x->off, x->len);
    }
    return true;
}

static bool normalize_step(const struct norm_step *step, struct tok_work *w, struct err *e)
{
    const struct buf *in = &w->text;
    if (in->n == 0 || (step->kind == NORMALIZE_FORM && is_normal(in, step->form)))
        return true;
    buf_clear(&w->swap);
    if (step->kind == NORMALIZE_FORM) {
        if (!normal_form(w, in, step->form, &w->swap))
            return was_stopped(e);
    } else if (step->kind == NORMALIZE_PREPEND) {
        buf_add(&w->swap, step->content.p, step->content.n);
        buf_add(&w->swap, in->p, in->n);
    } else if (!replace(&step->pattern, &step->content, in->p, in->n, w, &w->swap, e)) {
        return false;
    }
    SWAP(w->text, w->swap);
    return w->text.n <= w->most || too_long(w, e);
}

bool normalize(const struct tokenizer *t, const char *s, size_t n, struct tok_work *w,
               struct err *e)
{
    buf_clear(&w->text);
    buf_add(&w->text, s, n);
    for (int i = 0; i < t->n_norm; i++)
        if (!normalize_step(&t->norm[i], w, e))
            return false;
    if (must_stop(w))
        return was_stopped(e);
    w->made += w->text.n;
    return w->made <= w->most || too_long(w, e);
}

/* ---- pieces ---- */

static void pieces_free(struct pieces *p)
{
    buf_free(&p->text);
    free(p->span.v);
    *p = (struct pieces){0};
}

static void pieces_clear(struct pieces *p)
{
    buf_clear(&p->text);
    p->span.n = 0;
}

/* Appends the pieces of a split to out: `in` are the matches and the text between them, which are
 * joined or dropped as step->how says. False: encoding was stopped. */
static bool join_spans(const struct pre_step *step, const struct tok_work *w, struct spans *in,
                       struct spans *out)
{
    size_t first = out->n;
    bool before = false;
    for (size_t k = 0; k < in->n; k++) {
        if (stops_at(w->find.stop, k))
            return false;
        size_t i = step->how == SPLIT_NEXT ? in->n - 1 - k : k;
        struct text_span x = in->v[i];
        bool match = x.match != step->invert, have = out->n > first;
        struct text_span *last = have ? &out->v[out->n - 1] : NULL;
        bool marks = step->how == SPLIT_PREVIOUS || step->how == SPLIT_NEXT;
        bool join = have && (marks ? match && !before
                                   : step->how == SPLIT_CONTIGUOUS && match == before);
        if (join && step->how == SPLIT_NEXT)
            last->off = x.off, last->len += x.len;
        else if (join)
            last->len += x.len;
        else if (!(step->how == SPLIT_REMOVED && match))
            spans_add(out, x.off, x.len, false);
        before = match;
    }
    if (step->how == SPLIT_NEXT && out->n > first)
        for (size_t a = first, b = out->n - 1; a < b; a++, b--)
            SWAP(out->v[a], out->v[b]);
    return true;
}

static bool split_pieces(const struct pre_step *step, struct tok_work *w, struct err *e)
{
    struct pieces *in = &w->in;
    struct spans *out = &w->out.span;
    const char *text = in->text.p;
    if (!step->pattern.literal)
        text = replace_new_chars(&w->find, text, in->text.n);
    out->n = 0;
    for (size_t i = 0; i < in->span.n; i++) {
        uint32_t off = in->span.v[i].off;
        if (stops_at(w->find.stop, i))
            return was_stopped(e);
        w->span.n = w->group.n = 0;
        if (!pattern_spans(&step->pattern, &w->find, text + off, in->span.v[i].len, &w->span, e))
            return false;
        if (!join_spans(step, w, &w->span, &w->group))
            return was_stopped(e);
        for (size_t k = 0; k < w->group.n; k++) {
            if (stops_at(w->find.stop, k))
                return was_stopped(e);
            if (w->group.v[k].len)
                spans_add(out, off + w->group.v[k].off, w->group.v[k].len, false);
        }
    }
    if (out->n && out->v[0].off != 0)
        in->at_start = false;
    SWAP(in->span, *out);
    return true;
}

static bool rewrite_piece(const struct pre_step *step, const char *s, size_t n, bool first,
                          struct tok_work *w, struct buf *to, struct err *e)
{
    const struct buf *c = &step->content;
    switch (step->kind) {
    case PRE_REPLACE:
        return replace(&step->pattern, c, s, n, w, to, e);
    case PRE_PREFIX:
        if ((n < c->n || memcmp(s, c->p, c->n) != 0) && (first || !step->first_only))
            buf_add(to, c->p, c->n);
        buf_add(to, s, n);
        return true;
    case PRE_BYTES:
        for (size_t i = 0; i < n; i++) {
            if (stops_at(w->find.stop, i))
                return was_stopped(e);
            buf_utf8(to, byte_to_char((uint8_t)s[i]));
        }
        return true;
    case PRE_SPLIT:
        break;
    }
    CHECK(!"a split does not rewrite");
}

static bool rewrite_pieces(const struct pre_step *step, struct tok_work *w, struct err *e)
{
    struct pieces *in = &w->in, *out = &w->out;
    pieces_clear(out);
    for (size_t i = 0; i < in->span.n; i++) {
        size_t at = out->text.n;
        if (!rewrite_piece(step, in->text.p + in->span.v[i].off, in->span.v[i].len,
                           i == 0 && in->at_start, w, &out->text, e))
            return false;
        if (out->text.n > w->most)
            return too_long(w, e);
        if (stops_at(w->find.stop, i))
            return was_stopped(e);
        spans_add(&out->span, at, out->text.n - at, false);
    }
    out->at_start = in->at_start;
    SWAP(*in, *out);
    return true;
}

bool pre_tokenize(const struct tokenizer *t, const char *s, size_t n, bool at_start,
                  struct tok_work *w, struct err *e)
{
    pieces_clear(&w->in);
    buf_add(&w->in.text, s, n);
    spans_add(&w->in.span, 0, n, false);
    w->in.at_start = at_start;
    FOR_EACH(const struct pre_step, step, t->pre, t->n_pre)
        if (!(step->kind == PRE_SPLIT ? split_pieces : rewrite_pieces)(step, w, e))
            return false;
    return true;
}

void tok_work_free(struct tok_work *w)
{
    bpe_work_free(&w->bpe);
    matcher_free(&w->find);
    FREE(w->span.v, w->group.v);
    pieces_free(&w->in);
    pieces_free(&w->out);
    buf_free(&w->text);
    buf_free(&w->swap);
    FREE(w->raw.v, w->norm.v);
    *w = (struct tok_work){0};
}
