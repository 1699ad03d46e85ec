/* put.c - appends texts, markers and ids to a rendering. */
#include "models/chat/parts.h"
#include "kernels/json_read.h"
#include "kernels/utf8.h"

#include <time.h>

/* ---- white space, as Jinja's trim defines it ---- */

/* Length in bytes of the white-space character at s, or 0. */
static size_t white_at(const char *s, size_t n)
{
    uint32_t c;
    size_t len = n ? utf8_char(s, n, &c) : 0;
    return len && (utf8_is_white(c) || (c >= 0x1C && c <= 0x1F)) ? len : 0;
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
    size_t from = 0;
    for (size_t w; r->eats && (w = white_at(r->text.p + from, r->text.n - from));)
        from += w;
    if (!r->failed && r->text.n > from)
        r->failed = !tok_encode(r->c->tok, r->text.p + from, r->text.n - from,
                                r->out->n ? TOK_INNER : 0, r->out, r->e);
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
    buf_str(&r->text, s ? s : "");
}

void put_format(struct render *r, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, buf_vprintf(&r->text, fmt, ap));
}

void put_json(struct render *r, const json_t *v, size_t flags)
{
    FREED(free_at) char *text = json_written(v, flags);
    put_str(r, text ? text : "null");
}

void put_json_text(struct render *r, const char *s)
{
    FREED(json_decrefp) json_t *text = json_string(s);
    put_json(r, text, 0);
}

void put_arguments(struct render *r, const json_t *v)
{
    if (json_is_string(v))
        put_str(r, json_string_value(v));
    else
        put_json(r, v, 0);
}

void put_mark(struct render *r, enum mark m)
{
    if (r->c->mark[m] < 0)
        return;
    encode_text(r);
    ids_add(r->out, r->c->mark[m]);
    r->eats = tok_eats_white(r->c->tok, r->c->mark[m]);
}

/* The marker that s begins with, or -1. */
static int mark_at(const struct render *r, const char *s)
{
    for (int i = 0; i < MAX_MARK; i++) {
        const char *mark = r->c->format->mark[i];
        if (mark && r->c->mark[i] >= 0 && !strncmp(s, mark, strlen(mark)))
            return i;
    }
    return -1;
}

/* Text in which markers are matched. */
static void put_marked(struct render *r, const char *s)
{
    while (*s) {
        int m = mark_at(r, s);
        if (m >= 0)
            put_mark(r, (enum mark)m);
        else if (*s != '\n' || !r->c->tight)
            buf_char(&r->text, *s);
        s += m >= 0 ? strlen(r->c->format->mark[m]) : 1;
    }
}

void put_ids(struct render *r, const int32_t *v, int n)
{
    encode_text(r);
    ids_cat(r->out, v, n);
    r->eats = false;
}

void put_date(struct render *r, const char *date, int letters)
{
    static const char *const month[] = {"January", "February", "March", "April", "May", "June",
                                        "July", "August", "September", "October", "November",
                                        "December"};
    struct tm tm = {0};
    char s[40] = "";
    if (strptime(date, "%Y-%m-%d", &tm))
        snprintf(s, sizeof s, "%02d %.*s %d", tm.tm_mday, letters ? letters : 9, month[tm.tm_mon],
                 tm.tm_year + 1900);
    put_str(r, s);
}

/* ---- around messages ---- */

const char *const role_names[] = {"system", "user", "assistant", "tool"};

void begin_turn(struct render *r, const char *role)
{
    put_mark(r, MARK_OPEN);
    put_str(r, role);
    put_mark(r, MARK_MID);
    put_str(r, r->c->format->before);
}

void begin_message(struct render *r, enum role role)
{
    const struct format *f = r->c->format;
    if (f->begin[role])
        put_marked(r, f->begin[role]);
    else
        begin_turn(r, role_of(f, role));
}

void end_message(struct render *r, enum role role)
{
    const struct format *f = r->c->format;
    if (f->end[role]) {
        put_marked(r, f->end[role]);
        return;
    }
    put_mark(r, MARK_CLOSE);
    put_str(r, f->after);
}
