/* replies.c - the replies of a batch on the screen, one below the other. The first incomplete reply
 * is shown as it streams; the text of later replies is buffered here until it is their turn. See
 * tui.h. */
#include "repl/app/report.h"
#include "repl/tui/tui.h"

static void clear(struct replies *r)
{
    for (int i = 0; i < r->n; i++)
        buf_free(&r->text[i]);
    free(r->text);
    *r = (struct replies){0};
}

void replies_free(struct tui *t)
{
    clear(&t->replies);
}

static void show(struct tui *t, int index, const struct buf *text)
{
    struct replies *r = &t->replies;
    if (text->n == 0)
        return;
    if (r->headed <= index)
        tui_note(t, ST_DIM, "reply %d of %d", index + 1, r->n);
    r->headed = index + 1;
    transcript_append(&t->talk, 0, ENTRY_REPLY, text->p, text->n);
}

static void piece(struct tui *t, const struct event *ev)
{
    struct replies *r = &t->replies;
    int i = ev->batch.index;
    if (ev->channel != 0 || i < r->done || i >= r->n)
        return;
    if (i == r->done)
        show(t, i, &ev->text);
    else
        buf_add(&r->text[i], ev->text.p, ev->text.n);
}

static void complete(struct tui *t, const struct event *ev)
{
    struct replies *r = &t->replies;
    const struct batch_rec *b = &ev->batch;
    int i = b->index;
    if (i >= r->n)
        return;
    if (b->refused) {
        tui_note(t, ST_BAD, "reply %d of %d: %.800s", i + 1, r->n, buf_text(&ev->text));
    } else {
        if (i > r->done) /* replies in between were stopped before their first token */
            show(t, i, &r->text[i]);
        transcript_end(&t->talk, 0);
        tui_note(t, ST_DIM, "%d token%s, %s", b->n_tokens, plural(b->n_tokens),
                 stop_name(ev->reason));
    }
    r->done = i + 1;
    if (r->done < r->n)
        show(t, r->done, &r->text[r->done]);
}

void replies_event(struct tui *t, const struct event *ev)
{
    struct replies *r = &t->replies;
    switch (ev->kind) {
    case EV_BATCH_BEGIN:
        clear(r);
        r->n = ev->batch.count;
        r->text = xcalloc((size_t)max_int(1, r->n), sizeof *r->text);
        return;
    case EV_BATCH_TEXT: piece(t, ev); return;
    case EV_BATCH_REPLY: complete(t, ev); return;
    case EV_BATCH_END: clear(r); break;
    default: break;
    }
    FREED(sheet_free) struct sheet s = {.ascii = t->app->ascii};
    if (report_event(ev, ON_SHEET(&s)))
        transcript_sheet(&t->talk, ev->kind == EV_BATCH_END ? ENTRY_NOTE : ENTRY_SHEET, &s);
}
