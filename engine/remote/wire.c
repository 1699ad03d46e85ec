/* wire.c - lines, then events: see wire.h. */
#include "engine/remote/wire.h"

#include <string.h>

static bool too_long(struct err *e)
{
    return err_set(e, ERR_MODEL, "the server sent an event of more than %d MiB", WIRE_MOST >> 20);
}

static bool is_blank(const struct buf *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->p[i] != ' ' && b->p[i] != '\t')
            return false;
    return true;
}

static bool deliver(struct buf *data, wire_fn *fn, void *arg, struct err *e)
{
    bool ok = data->n == 0 || fn(arg, data->p, data->n, e);
    buf_clear(data);
    return ok;
}

/* A field of a server-sent event: all but "data" carry nothing for us (event, id, retry). */
static bool add_field(struct wire *w, const char *line, size_t n, struct err *e)
{
    if (n < 4 || memcmp(line, "data", 4) != 0 || (n > 4 && line[4] != ':'))
        return true;
    size_t at = n > 4 ? 5 : 4;
    at += at < n && line[at] == ' ';
    if (w->data.n + (n - at) > WIRE_MOST)
        return too_long(e);
    if (w->data.n)
        buf_char(&w->data, '\n');
    buf_add(&w->data, line + at, n - at);
    return true;
}

static void drop_byte_order_mark(struct wire *w)
{
    if (!w->begun && w->line.n >= 3 && memcmp(w->line.p, "\xEF\xBB\xBF", 3) == 0) {
        memmove(w->line.p, w->line.p + 3, w->line.n - 3);
        w->line.n -= 3;
        w->line.p[w->line.n] = '\0';
    }
    w->begun = true;
}

static bool end_line(struct wire *w, wire_fn *fn, void *arg, struct err *e)
{
    bool ok = true;
    drop_byte_order_mark(w);
    if (w->form == WIRE_LINES)
        ok = is_blank(&w->line) || fn(arg, w->line.p, w->line.n, e);
    else if (w->line.n == 0)
        ok = deliver(&w->data, fn, arg, e);
    else
        ok = add_field(w, w->line.p, w->line.n, e);
    buf_clear(&w->line);
    return ok;
}

bool wire_feed(struct wire *w, const void *bytes, size_t n, wire_fn *fn, void *arg, struct err *e)
{
    const char *p = bytes, *end = p + n;
    while (p < end) {
        if (w->after_cr && *p == '\n') {
            w->after_cr = false;
            p++;
            continue;
        }
        w->after_cr = false;
        const char *stop = p;
        while (stop < end && *stop != '\n' && *stop != '\r')
            stop++;
        if (w->line.n + (size_t)(stop - p) > WIRE_MOST)
            return too_long(e);
        buf_add(&w->line, p, (size_t)(stop - p));
        p = stop;
        if (p == end)
            break;
        w->after_cr = *p++ == '\r';
        if (!end_line(w, fn, arg, e))
            return false;
    }
    return true;
}

bool wire_end(struct wire *w, wire_fn *fn, void *arg, struct err *e)
{
    return (w->line.n == 0 || end_line(w, fn, arg, e)) && deliver(&w->data, fn, arg, e);
}

void wire_free(struct wire *w)
{
    buf_free(&w->line);
    buf_free(&w->data);
    *w = (struct wire){.form = w->form};
}
