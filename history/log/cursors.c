/* cursors.c - the sessions that a writer has open, one cursor each. w->cur is the one in use, the
 * others are parked.
 *
 * The conversation of a process has one cursor. Each session beside it (event.beside: a request of
 * a client) has one until its turn ends. There are few, so lookups are linear.
 */
#include "history/internal.h"

void cursor_free(struct cursor *c)
{
    buf_free(&c->settings);
    buf_free(&c->text);
    ids_free(&c->seq);
    *c = (struct cursor){0};
}

/* dst: freed or zeroed. */
static void cursor_copy(struct cursor *dst, const struct cursor *src)
{
    cursor_free(dst);
    *dst = *src;
    dst->settings = dst->text = (struct buf){0};
    dst->seq = (struct ids){0};
    buf_add(&dst->settings, src->settings.p, src->settings.n);
    buf_add(&dst->text, src->text.p, src->text.n);
    ids_cat(&dst->seq, src->seq.v, src->seq.n);
}

static bool is_empty(const struct cursor *c)
{
    return c->session[0] == '\0';
}

void cursors_park(struct writer *w)
{
    if (is_empty(&w->cur)) {
        cursor_free(&w->cur);
        return;
    }
    *APPEND(w->parked, w->n_parked) = w->cur;
    w->cur = (struct cursor){0};
}

/* Parks w->cur and makes the i-th parked cursor w->cur. */
static void unpark(struct writer *w, int i)
{
    struct cursor c = w->parked[i];
    w->parked[i] = w->parked[--w->n_parked];
    cursors_park(w);
    w->cur = c;
}

bool cursors_switch(struct writer *w, const char *session)
{
    if (strcmp(w->cur.session, session) == 0)
        return true;
    for (int i = 0; i < w->n_parked; i++)
        if (strcmp(w->parked[i].session, session) == 0) {
            unpark(w, i);
            return true;
        }
    return false;
}

void cursors_conversation(struct writer *w)
{
    if (!is_empty(&w->cur) && !w->cur.beside)
        return;
    for (int i = 0; i < w->n_parked; i++)
        if (!w->parked[i].beside) {
            unpark(w, i);
            return;
        }
    cursors_park(w);
}

int cursors_each(struct writer *w, int (*fn)(struct writer *w))
{
    int rc = is_empty(&w->cur) ? SQLITE_OK : fn(w);
    for (int i = 0; !rc && i < w->n_parked; i++) {
        struct cursor c = w->cur;
        w->cur = w->parked[i];
        rc = fn(w);
        w->parked[i] = w->cur;
        w->cur = c;
    }
    return rc;
}

void cursors_save(const struct writer *w, struct cursors_saved *out)
{
    *out = (struct cursors_saved){.n_parked = w->n_parked};
    cursor_copy(&out->cur, &w->cur);
    if (w->n_parked)
        out->parked = xcalloc(2 * (size_t)w->n_parked, sizeof *out->parked);
    for (int i = 0; i < w->n_parked; i++)
        cursor_copy(&out->parked[i], &w->parked[i]);
}

void cursors_free(struct writer *w)
{
    cursor_free(&w->cur);
    for (int i = 0; i < w->n_parked; i++)
        cursor_free(&w->parked[i]);
    DROP(w->parked);
    w->n_parked = 0;
}

void cursors_restore(struct writer *w, struct cursors_saved *saved)
{
    cursors_free(w);
    w->cur = saved->cur;
    w->parked = saved->parked;
    w->n_parked = saved->n_parked;
    *saved = (struct cursors_saved){0};
}

void cursors_drop(struct cursors_saved *saved)
{
    struct writer w = {.cur = saved->cur, .parked = saved->parked, .n_parked = saved->n_parked};
    cursors_free(&w);
    *saved = (struct cursors_saved){0};
}
