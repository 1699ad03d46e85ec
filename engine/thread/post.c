/* post.c - posts events of the engine's thread: to the screen, and what the log keeps of them to
 * the log. */

#include "engine/thread/internal.h"

struct event engine_event(struct engine *engine, enum event_kind kind)
{
    struct event ev = {.kind = kind, .seq = ++engine->own.seq, .ns = clock_ns(),
                       .turn = engine->shared.turn,
                       .step = engine->shared.step};
    memcpy(ev.session, engine->own.ses.id, sizeof ev.session);
    return ev;
}

void engine_post(struct engine *engine, struct event *ev)
{
    evq_post(engine->base.screen, engine->log, ev);
}

void engine_notice(struct engine *engine, const char *text)
{
    struct event ev = engine_event(engine, EV_NOTICE);
    buf_str(&ev.text, text);
    engine_post(engine, &ev);
}

void engine_post_op(struct engine *engine, enum op_kind op, const char *text, int turn)
{
    struct event ev = engine_event(engine, EV_OP);
    ev.op = op;
    ev.turn = turn;
    buf_str(&ev.text, text);
    engine_post(engine, &ev);
}

void engine_post_turns(struct engine *engine, enum op_kind op, const struct ids *turns, int turn)
{
    struct event ev = engine_event(engine, EV_OP);
    ev.op = op;
    ev.turn = turn;
    ids_cat(&ev.turns, turns->v, turns->n);
    engine_post(engine, &ev);
}

/* After a device failure every sync() reports it. */
void engine_fault(struct engine *engine, int step, const struct err *e)
{
    struct event ev = engine_event(engine, EV_FAULT);
    struct err sticky;
    ev.fault = e->kind;
    ev.step = step;
    if (!engine->loaded.dev.k->sync(engine->loaded.dev.d, &sticky)) {
        engine->own.lost = ev.lost = true;
        ev.fault = ERR_MODEL;
        buf_printf(&ev.text, "the device failed: %s", sticky.msg);
    } else {
        buf_str(&ev.text, e->msg);
    }
    shared_lock(&engine->shared);
    if (ev.fault == ERR_INVARIANT && e->at.rule) {
        struct violated v = {.turn = ev.turn, .step = step, .at = ev.at = e->at};
        memcpy(v.session, engine->own.ses.id, sizeof v.session);
        snprintf(v.text, sizeof v.text, "%.250s", ev.text.p);
        engine->shared.violation = v;
    }
    shared_unlock(&engine->shared);
    engine_post(engine, &ev);
}

void engine_fail(struct engine *engine, const struct err *e)
{
    bool lost = e->kind == ERR_MODEL && !engine->loaded.dev.k->sync(engine->loaded.dev.d, NULL);
    if (lost || e->kind == ERR_INVARIANT)
        engine_fault(engine, 0, e);
    else
        engine_notice(engine, e->msg);
}

static struct event text_event(struct engine *engine, enum channel ch, const struct batch_rec *of)
{
    struct event ev = engine_event(engine, of ? EV_BATCH_TEXT : EV_TEXT);
    ev.channel = ch;
    if (of)
        ev.batch = *of;
    return ev;
}

/* Notes the tokens of the event's text from byte `at` on, which the reader has just completed. */
static void add_ends(struct event *ev, const struct chat_reader *reader, size_t at)
{
    if (reader->ends && at < ev->text.n)
        chat_reader_spans(reader, at, ev->text.n - at, &ev->first, &ev->ends);
}

void engine_post_tokens(struct engine *engine, struct chat_reader *reader, const int32_t *tok,
                        int n, struct buf *text, const struct batch_rec *of)
{
    struct event ev = {0};
    for (int i = 0; i < n; i++) {
        FREED(buf_free) struct buf piece = {0};
        enum channel ch;
        chat_reader_push(reader, tok[i], &piece, &ch);
        if (piece.n && ev.text.n && (int)ch != ev.channel)
            engine_post(engine, &ev);
        if (piece.n) {
            if (ev.text.n == 0)
                ev = text_event(engine, ch, of);
            buf_add(&ev.text, piece.p, piece.n);
            add_ends(&ev, reader, ev.text.n - piece.n);
            if (ch == CHAN_FINAL)
                buf_add(text, piece.p, piece.n);
        }
    }
    if (ev.text.n)
        engine_post(engine, &ev);
}

void engine_post_held(struct engine *engine, struct chat_reader *reader, struct buf *text,
                      const struct batch_rec *of)
{
    struct event ev = text_event(engine, reader->channel, of);
    chat_reader_end(reader, &ev.text);
    add_ends(&ev, reader, 0);
    if (ev.channel == CHAN_FINAL)
        buf_add(text, ev.text.p, ev.text.n);
    if (ev.text.n)
        engine_post(engine, &ev);
    else
        event_free(&ev);
}
