/* reader.c - turns a reply's tokens into visible text: separates thoughts from the answer, hides
 * markers.
 */
#include "models/chat/parts.h"

/* States of THINK_TAGS. A reply may begin with "<think>"; a thought ends at "</think>"; white space
 * behind either tag is not shown. */
enum { AT_START, IN_THOUGHT, AFTER_TAG, IN_ANSWER };
/* States of THINK_CHANNEL. The line that names a channel is not shown. */
enum { IN_CHANNEL_TEXT, IN_CHANNEL_NAME };

static const char open_tag[] = "<think>", close_tag[] = "</think>";

void chat_reader_init(struct chat_reader *r, const struct chat *c)
{
    *r = (struct chat_reader){.chat = c};
    if (c->format->think == THINK_TAGS && c->open_thought) {
        r->channel = CHAN_ANALYSIS;
        r->state = IN_THOUGHT;
    }
}

void chat_reader_follow(struct chat_reader *r, const struct ids *prompt)
{
    enum { LAST = 16 }; /* more tokens than the tag and a newline have */
    FREED(buf_free) struct buf text = {0};
    int n = prompt->n < LAST ? prompt->n : LAST;
    if (r->chat->format->think != THINK_TAGS || !n)
        return;
    tok_decode(r->chat->tok, prompt->v + prompt->n - n, n, &text);
    while (text.n && text.p[text.n - 1] == '\n')
        text.n--;
    size_t tag = strlen(open_tag);
    bool inside = text.n >= tag && !memcmp(text.p + text.n - tag, open_tag, tag);
    r->channel = inside ? CHAN_ANALYSIS : CHAN_FINAL;
    r->state = inside ? IN_THOUGHT : AT_START;
}

/* ---- thoughts in tags ---- */

/* The number of the first byte that is held back. */
static size_t passed(const struct chat_reader *r)
{
    return r->came - (size_t)r->utf8.n_held - r->held.n;
}

/* Removes the first n bytes of r->held and appends them to out, if out is not NULL. */
static void consume(struct chat_reader *r, size_t n, struct buf *out)
{
    if (out)
        buf_add(out, r->held.p, n);
    r->held.n -= n;
    memmove(r->held.p, r->held.p + n, r->held.n + 1);
    if (out)
        r->shown = passed(r);
}

static bool skip_white(struct chat_reader *r)
{
    size_t n = r->held.n ? strspn(r->held.p, "\n\r\t ") : 0;
    if (n)
        consume(r, n, NULL);
    return r->held.n > 0;
}

/* Decides whether the reply begins with a thought. False while too few bytes have arrived. */
static bool read_opening(struct chat_reader *r)
{
    size_t white = strspn(r->held.p, "\n\r\t "), n = r->held.n - white;
    size_t tag = strlen(open_tag);
    if (strncmp(r->held.p + white, open_tag, n < tag ? n : tag) != 0) {
        r->state = IN_ANSWER;
        return true;
    }
    if (n < tag)
        return false;
    consume(r, white + tag, NULL);
    r->channel = CHAN_ANALYSIS;
    r->state = IN_THOUGHT;
    return true;
}

static void read_thought(struct chat_reader *r, struct buf *out)
{
    const char *end = memmem(r->held.p, r->held.n, close_tag, strlen(close_tag));
    consume(r, end ? (size_t)(end - r->held.p) : r->held.n - partial_tag(&r->held, close_tag), out);
    if (!end)
        return;
    consume(r, strlen(close_tag), NULL);
    r->channel = CHAN_FINAL;
    r->state = AFTER_TAG;
}

/* Reads r->held until text was appended to out or nothing more can be decided. The rest stays held,
 * so that no push appends text of two channels. */
static void push_tags(struct chat_reader *r, struct buf *out, enum channel *channel)
{
    size_t shown = out->n;
    for (bool more = true; more && r->held.n && out->n == shown;) {
        *channel = r->channel;
        switch (r->state) {
        case AT_START:
            more = read_opening(r);
            break;
        case IN_THOUGHT:
            read_thought(r, out);
            more = r->state != IN_THOUGHT;
            break;
        case AFTER_TAG:
            if (skip_white(r))
                r->state = IN_ANSWER;
            break;
        default:
            consume(r, r->held.n, out);
            break;
        }
    }
}

/* ---- gemma-4's channels ---- */

static void push_channel(struct chat_reader *r, int id, struct buf *out, enum channel *channel)
{
    const struct chat *c = r->chat;
    *channel = r->channel;
    if (id == c->mark[MARK_CHANNEL] || id == c->mark[MARK_CHANNEL_END]) {
        bool open = id == c->mark[MARK_CHANNEL];
        tok_stream_flush(&r->utf8, out);
        buf_clear(&r->held);
        r->channel = open ? CHAN_ANALYSIS : CHAN_FINAL;
        r->state = open ? IN_CHANNEL_NAME : IN_CHANNEL_TEXT;
        return;
    }
    struct buf *to = r->state == IN_CHANNEL_TEXT ? out : &r->held;
    const char *spelled = gemma4_spelled(c, id);
    if (spelled) { /* of a call, which call_reader_push() takes out of the text */
        tok_stream_flush(&r->utf8, to);
        buf_str(to, spelled);
        r->came += strlen(spelled);
    } else if (!tok_is_special(c->tok, id)) {
        r->came += tok_stream_push(&r->utf8, c->tok, id, to);
    }
    const char *line = r->held.n ? memchr(r->held.p, '\n', r->held.n) : NULL;
    if (line) {
        consume(r, (size_t)(line + 1 - r->held.p), NULL);
        consume(r, r->held.n, out);
        r->state = IN_CHANNEL_TEXT;
    }
}

/* ---- all formats ---- */

void chat_reader_push(struct chat_reader *r, int id, struct buf *out, enum channel *channel)
{
    const struct tokenizer *t = r->chat->tok;
    *channel = r->channel;
    switch (r->chat->format->think) {
    case THINK_HARMONY:
        harmony_push(r, id, out);
        *channel = r->channel;
        break;
    case THINK_CHANNEL:
        push_channel(r, id, out, channel);
        break;
    case THINK_TAGS:
        if (!tok_is_special(t, id) || id == tok_find(t, open_tag) || id == tok_find(t, close_tag))
            r->came += tok_stream_push(&r->utf8, t, id, &r->held);
        push_tags(r, out, channel);
        break;
    case THINK_NONE:
        if (!tok_is_special(t, id))
            r->came += tok_stream_push(&r->utf8, t, id, out);
        break;
    }
    if (r->chat->format->think != THINK_TAGS) /* consume() has said it */
        r->shown = passed(r);
    if (r->ends)
        ids_add(r->ends, (int32_t)(r->came < INT32_MAX ? r->came : INT32_MAX));
}

void chat_reader_end(struct chat_reader *r, struct buf *out)
{
    enum think_kind think = r->chat->format->think;
    tok_stream_flush(&r->utf8, think == THINK_TAGS ? &r->held : out);
    if (think == THINK_TAGS) {
        if (r->state == AFTER_TAG)
            skip_white(r);
        buf_add(out, r->held.p, r->held.n);
    } else if (think == THINK_HARMONY) {
        harmony_end(r, out);
    }
    buf_free(&r->held);
    r->shown = r->came;
}

void chat_reader_spans(const struct chat_reader *r, size_t at, size_t n, int *first,
                       struct ids *ends)
{
    size_t from = r->shown - n, end;
    int k = r->ends->n;
    while (k > 0 && (size_t)r->ends->v[k - 1] > from)
        k--;
    if (ends->n == 0)
        *first = k;
    for (end = from; end < r->shown && k < r->ends->n; k++) {
        end = (size_t)r->ends->v[k] < r->shown ? (size_t)r->ends->v[k] : r->shown;
        while (*first + ends->n <= k) /* tokens before that show nothing */
            ids_add(ends, (int32_t)at);
        ends->v[k - *first] = (int32_t)(at + end - from);
    }
}
