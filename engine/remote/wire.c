/* wire.c - lines, then events: see wire.h. */
#include "engine/remote/wire.h"

#include "kernels/utf8.h"

static bool too_long(struct err *e)
{
    return err_set(e, ERR_MODEL, "the server sent an event of more than %d MiB", WIRE_MOST >> 20);
}

static bool is_blank(const struct buf *b)
{
    return !ANY(i, b->n, b->p[i] != ' ' && b->p[i] != '\t');
}

static bool deliver(struct buf *data, wire_fn *fn, void *arg, struct err *e)
{
    bool ok = data->n == 0 || fn(arg, data->p, data->n, e);
    buf_clear(data);
    return ok;
}

/* A field of a server-sent event: all but "data" carry nothing for us (event, id, retry). */
static bool add_field(struct wire *wire, const char *line, size_t n, struct err *e)
{
    if (n < 4 || memcmp(line, "data", 4) != 0 || (n > 4 && line[4] != ':'))
        return true;
    size_t at = n > 4 ? 5 : 4;
    at += at < n && line[at] == ' ';
    if (wire->data.n + (n - at) > WIRE_MOST)
        return too_long(e);
    if (wire->data.n)
        buf_char(&wire->data, '\n');
    buf_add(&wire->data, line + at, n - at);
    return true;
}

static void drop_byte_order_mark(struct wire *wire)
{
    if (!wire->begun)
        utf8_drop_mark(&wire->line);
    wire->begun = true;
}

static bool end_line(struct wire *wire, wire_fn *fn, void *arg, struct err *e)
{
    bool ok = true;
    drop_byte_order_mark(wire);
    if (wire->form == WIRE_LINES)
        ok = is_blank(&wire->line) || fn(arg, wire->line.p, wire->line.n, e);
    else if (wire->line.n == 0)
        ok = deliver(&wire->data, fn, arg, e);
    else
        ok = add_field(wire, wire->line.p, wire->line.n, e);
    buf_clear(&wire->line);
    return ok;
}

bool wire_feed(struct wire *wire, const void *bytes, size_t n, wire_fn *fn, void *arg,
               struct err *e)
{
    const char *p = bytes, *end = p + n;
    while (p < end) {
        if (wire->after_cr && *p == '\n') {
            wire->after_cr = false;
            p++;
            continue;
        }
        wire->after_cr = false;
        const char *stop = p;
        while (stop < end && *stop != '\n' && *stop != '\r')
            stop++;
        if (wire->line.n + (size_t)(stop - p) > WIRE_MOST)
            return too_long(e);
        buf_add(&wire->line, p, (size_t)(stop - p));
        p = stop;
        if (p == end)
            break;
        wire->after_cr = *p++ == '\r';
        if (!end_line(wire, fn, arg, e))
            return false;
    }
    return true;
}

bool wire_end(struct wire *wire, wire_fn *fn, void *arg, struct err *e)
{
    return (wire->line.n == 0 || end_line(wire, fn, arg, e)) && deliver(&wire->data, fn, arg, e);
}

void wire_free(struct wire *wire)
{
    buf_free(&wire->line);
    buf_free(&wire->data);
    *wire = (struct wire){.form = wire->form};
}
