/* reply.c - see reply.h. */
#include "repl/http/reply.h"
#include "kernels/utf8.h"

#include <math.h>

const char *finish_word(enum finish f)
{
    static const char *const word[] = {NULL, "stop", "length", "abort", "error",
                                       "tool_calls"};
    return word[f];
}

void reply_init(struct reply *r, const struct ask *a, const struct ask_of *of, int index)
{
    *r = (struct reply){.ask = a, .of = of, .index = index, .prompt = &a->prompt[index / a->n],
                        .stop_text = -1, .stop_id = -1, .open = true};
    buf_str(&r->text, "");
    buf_str(&r->thought, "");
    if (a->chat) {
        chat_reader_init(&r->reader, of->chat);
        chat_reader_follow(&r->reader, r->prompt);
        call_reader_init(&r->calls, of->chat);
    }
}

static void close_reader(struct reply *r, struct buf *rest)
{
    if (!r->open)
        return;
    r->open = false;
    if (r->ask->chat)
        chat_reader_end(&r->reader, rest);
    else
        tok_stream_flush(&r->stream, rest);
}

void reply_free(struct reply *r)
{
    FREED(buf_free) struct buf rest = {0};
    close_reader(r, &rest);
    ids_free(&r->tok);
    FREE(r->logp, r->top, r->offset);
    buf_free(&r->text);
    buf_free(&r->thought);
    buf_free(&r->held);
    buf_free(&r->raw);
    call_reader_free(&r->calls);
    FREE(r->piece, r->prompt_fact, r->prompt_top);
    ids_free(&r->accepted);
    ids_free(&r->drafted);
    *r = (struct reply){0};
}

void reply_begin(struct reply *r, struct event *ev)
{
    struct job_news *j = ev->job;
    r->ns_begin = ev->ns;
    r->n_reused = j->n_reused;
    r->prompt_fact = j->prompt_fact;
    r->prompt_top = j->top;
    r->n_prompt_top = j->top ? j->n_top : 0;
    j->prompt_fact = NULL;
    j->top = NULL;
}

/* ---- stop texts ------------------------------------------------------------------------------ */

/* The first stop text that ends in the bytes from `from` on; the one that begins first. Its index,
 * and where it begins; -1: none. */
static int find_stop(const struct reply *r, const struct buf *b, size_t *at)
{
    int found = -1;
    for (int i = 0; i < r->ask->n_stop; i++) {
        const struct buf *s = &r->ask->stop[i];
        const char *p = b->n >= s->n ? memmem(b->p, b->n, s->p, s->n) : NULL;
        if (p && (found < 0 || (size_t)(p - b->p) < *at)) {
            found = i;
            *at = (size_t)(p - b->p);
        }
    }
    return found;
}

/* The number of bytes at the end that may be the beginning of a stop text. */
static size_t may_begin(const struct reply *r, const struct buf *b)
{
    size_t most = 0;
    FOR_EACH(const struct buf, s, r->ask->stop, r->ask->n_stop) {
        size_t n = s->n - 1 < b->n ? s->n - 1 : b->n;
        while (n > most && memcmp(b->p + b->n - n, s->p, n) != 0)
            n--;
        most = n > most ? n : most;
    }
    return most;
}

static void cut_front(struct buf *b, size_t n)
{
    memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
    b->p[b->n] = '\0';
}

/* Releases the answer's text up to bytes that may begin a stop text. True: a stop text is
 * complete. */
static bool show(struct reply *r, const char *text, size_t n)
{
    size_t at = 0;
    if (n == 0)
        return false;
    if (r->ask->n_stop == 0) {
        buf_add(&r->text, text, n);
        return false;
    }
    buf_add(&r->held, text, n);
    int stop = find_stop(r, &r->held, &at);
    if (stop >= 0 && r->ask->keep_stop)
        at += r->ask->stop[stop].n;
    size_t shown = stop >= 0 ? at : r->held.n - may_begin(r, &r->held);
    buf_add(&r->text, r->held.p, shown);
    cut_front(&r->held, shown);
    if (stop < 0)
        return false;
    buf_clear(&r->held);
    r->stop_text = stop;
    r->finish = FINISH_STOP;
    return true;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Room for one more token. */
static void grow(struct reply *r, int n_top)
{
    MAKE_ROOM(r->logp, r->tok.n);
    MAKE_ROOM(r->offset, r->tok.n);
    RESERVE(r->top, (r->tok.n + 1) * n_top, r->cap_top);
}

static bool ends_by_id(const struct reply *r, int32_t id)
{
    return ANY(i, r->ask->n_stop_id, r->ask->stop_id[i] == id);
}

static void push_token(struct reply *r, int32_t id, struct buf *out, enum channel *channel)
{
    *channel = CHAN_FINAL;
    if (r->ask->chat)
        chat_reader_push(&r->reader, id, out, channel);
    else if (!tok_is_special(r->of->tok, id))
        tok_stream_push(&r->stream, r->of->tok, id, out);
}

/* Takes n bytes of a channel in. True: a stop text is complete. */
static bool take_text(struct reply *r, enum channel channel, const char *text, size_t n)
{
    FREED(buf_free) struct buf seen = {0};
    bool call = r->ask->calls && channel == CHAN_COMMENTARY && r->reader.to[0], ends = false;
    if (!r->ask->calls && channel == CHAN_FINAL)
        return show(r, text, n);
    if (channel != CHAN_FINAL && !call) {
        buf_add(&r->thought, text, n);
        return false;
    }
    if (channel == CHAN_FINAL)
        buf_add(&r->raw, text, n);
    call_reader_push(&r->calls, &r->reader, channel, text, n, &seen);
    ends = show(r, seen.p, seen.n);
    return ends;
}

/* Appends token k of a step. True: it ends the reply. */
static bool add_token(struct reply *r, const struct event *ev, int k)
{
    const struct job_news *j = ev->job;
    int n_top = j && j->top ? j->n_top : 0;
    int32_t id = ev->tokens.v[k];
    FREED(buf_free) struct buf out = {0};
    enum channel channel;
    grow(r, n_top);
    r->n_top = n_top;
    r->logp[r->tok.n] = ev->facts ? ev->facts[k].logp : NAN;
    r->offset[r->tok.n] = r->n_chars;
    if (n_top)
        memcpy(r->top + (size_t)r->tok.n * (size_t)n_top, j->top + (size_t)k * (size_t)n_top,
               (size_t)n_top * sizeof *r->top);
    ids_add(&r->tok, id);
    bool ends = ends_by_id(r, id) && !r->ask->run_on;
    if (ends && !r->ask->keep_stop) {
        r->stop_id = id;
        r->finish = FINISH_STOP;
        return true;
    }
    push_token(r, id, &out, &channel);
    if (channel == CHAN_FINAL)
        r->n_chars += utf8_chars(out.p, out.n);
    ends |= take_text(r, channel, out.p ? out.p : "", out.n);
    if (ends && r->finish == FINISH_OPEN) {
        r->stop_id = id;
        r->finish = FINISH_STOP;
    }
    return ends;
}

static void add_piece(struct reply *r, int first)
{
    *APPEND(r->piece, r->n_piece) = (struct reply_piece){.first = first, .n = r->tok.n - first,
                                                  .text = r->text.n,
                                                  .thought = r->thought.n,
                                                  .calls = r->calls.n};
}

bool reply_step(struct reply *r, const struct event *ev)
{
    int first = r->tok.n;
    bool ends = false;
    if (r->finish != FINISH_OPEN)
        return true;
    for (int k = 0; !ends && k < ev->tokens.n; k++)
        ends = add_token(r, ev, k);
    if (!r->ns_first)
        r->ns_first = ev->ns;
    r->ns_last = ev->ns;
    if (ev->rec.kind != STEP_PREFILL) {
        ids_add(&r->accepted, min_int(ev->rec.accepted, r->tok.n - first));
        ids_add(&r->drafted, ev->rec.drafted);
    }
    add_piece(r, first);
    return ends;
}

static enum finish finish_of(enum stop_reason why)
{
    switch (why) {
    case STOP_END: return FINISH_STOP;
    case STOP_MAX:
    case STOP_CONTEXT:
    case STOP_KV_FULL: return FINISH_LENGTH;
    case STOP_CANCEL: return FINISH_ABORT;
    default: return FINISH_ERROR;
    }
}

void reply_end(struct reply *r, const struct event *ev)
{
    FREED(buf_free) struct buf rest = {0};
    r->us_wait = ev->job ? ev->job->us_wait : 0;
    bool stopped = r->finish != FINISH_OPEN; /* by a stop text: the held text is part of it, or
                                                follows it */
    close_reader(r, &rest);
    if (!stopped) {
        bool ends = false;
        enum channel channel = r->ask->chat ? r->reader.channel : CHAN_FINAL;
        ends = take_text(r, channel, rest.p ? rest.p : "", rest.n);
        if (r->ask->calls && !ends) {
            FREED(buf_free) struct buf seen = {0};
            call_reader_end(&r->calls, &seen);
            ends = show(r, seen.p, seen.n);
        }
        if (!ends) {
            buf_add(&r->text, r->held.p, r->held.n);
            r->finish = finish_of(ev->reason);
        }
        if (ev->reason == STOP_END && r->stop_text < 0 && r->tok.n)
            r->stop_id = r->tok.v[r->tok.n - 1];
    }
    if (r->calls.n && r->finish == FINISH_STOP)
        r->finish = FINISH_CALLS;
    add_piece(r, r->tok.n);
}
