/* put.c - appends texts, markers and ids to a rendering. */
#include "models/chat/parts.h"

/* ---- white space, as Jinja's trim defines it ---- */

/* Length in bytes of the white-space character at s, or 0. */
static size_t white_at(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    if (n >= 1 && (p[0] == ' ' || (p[0] >= 9 && p[0] <= 13) || (p[0] >= 0x1C && p[0] <= 0x1F)))
        return 1;
    if (n >= 2 && p[0] == 0xC2 && (p[1] == 0x85 || p[1] == 0xA0))
        return 2;
    if (n < 3)
        return 0;
    uint32_t c = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
    bool white = c == 0xE19A80 || (c >= 0xE28080 && c <= 0xE2808A) || c == 0xE280A8 ||
                 c == 0xE280A9 || c == 0xE280AF || c == 0xE2819F || c == 0xE38080;
    return white ? 3 : 0;
}

const char *trimmed(const char *s, size_t *n)
{
    for (size_t w; (w = white_at(s, *n));) {
        s += w;
        *n -= w;
    }
    for (size_t w = 1; w <= 3 && w <= *n; w++)
        if (white_at(s + *n - w, w) == w) {
            *n -= w;
            w = 0;
        }
    return s;
}

/* ---- appending text and tokens ---- */

void encode_text(struct render *r)
{
    if (!r->failed && r->text.n)
        r->failed = !tok_encode(r->c->tok, r->text.p, r->text.n, r->out->n ? TOK_INNER : 0, r->out,
                                r->e);
    buf_clear(&r->text);
}

void put_text(struct render *r, const char *s, size_t n)
{
    if (r->c->format->trim)
        s = trimmed(s, &n);
    buf_add(&r->text, s, n);
}

void put_str(struct render *r, const char *s)
{
    buf_str(&r->text, s);
}

void put_mark(struct render *r, enum mark m)
{
    if (r->c->mark[m] < 0)
        return;
    encode_text(r);
    ids_add(r->out, r->c->mark[m]);
}

void put_ids(struct render *r, const int32_t *v, int n)
{
    encode_text(r);
    ids_cat(r->out, v, n);
}
