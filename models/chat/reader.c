/* reader.c - a reply's tokens as text to show: thoughts told from the answer, marks hidden. */
#include "models/chat/parts.h"

/* THINK_TAGS. At the start the text may open with a tag; a thought ends at its tag; white space
 * after either tag is not shown. */
enum { AT_START, IN_THOUGHT, AFTER_TAG, IN_ANSWER };
/* THINK_CHANNEL: the line that names a channel is hidden. */
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

/* ---- thoughts in tags ---- */

/* Drops n bytes from the front of what is held, or moves them to out. */
static void release(struct chat_reader *r, size_t n, struct buf *out)
{
    if (out)
        buf_add(out, r->head.p, n);
    r->head.n -= n;
    memmove(r->head.p, r->head.p + n, r->head.n + 1);
}

/* Length of the longest end of what is held that begins the tag. */
static size_t partial(const struct buf *b, const char *tag)
{
    size_t n = strlen(tag) - 1;
    for (n = n < b->n ? n : b->n; n; n--)
        if (memcmp(b->p + b->n - n, tag, n) == 0)
            break;
    return n;
}

static bool skip_white(struct chat_reader *r)
{
    size_t n = r->head.n ? strspn(r->head.p, "\n\r\t ") : 0;
    if (n)
        release(r, n, NULL);
    return r->head.n > 0;
}

/* Whether the reply opens with a thought: false while that is open. */
static bool read_start(struct chat_reader *r)
{
    size_t white = strspn(r->head.p, "\n\r\t "), n = r->head.n - white;
    size_t tag = strlen(open_tag);
    if (strncmp(r->head.p + white, open_tag, n < tag ? n : tag) != 0) {
        r->state = IN_ANSWER;
        return true;
    }
    if (n < tag)
        return false;
    release(r, white + tag, NULL);
    r->channel = CHAN_ANALYSIS;
    r->state = IN_THOUGHT;
    return true;
}

static void read_thought(struct chat_reader *r, struct buf *out)
{
    const char *end = memmem(r->head.p, r->head.n, close_tag, strlen(close_tag));
    release(r, end ? (size_t)(end - r->head.p) : r->head.n - partial(&r->head, close_tag), out);
    if (!end)
        return;
    release(r, strlen(close_tag), NULL);
    r->channel = CHAN_FINAL;
    r->state = AFTER_TAG;
}

/* Reads on until there is text to show or no more to read; what is left waits, so that no push
 * shows text of two channels. */
static void push_tags(struct chat_reader *r, struct buf *out, enum channel *channel)
{
    size_t shown = out->n;
    for (bool more = true; more && r->head.n && out->n == shown;) {
        *channel = r->channel;
        switch (r->state) {
        case AT_START:
            more = read_start(r);
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
            release(r, r->head.n, out);
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
        buf_clear(&r->head);
        r->channel = open ? CHAN_ANALYSIS : CHAN_FINAL;
        r->state = open ? IN_CHANNEL_NAME : IN_CHANNEL_TEXT;
        return;
    }
    if (tok_is_special(c->tok, id))
        return;
    tok_stream_push(&r->utf8, c->tok, id, r->state == IN_CHANNEL_TEXT ? out : &r->head);
    const char *line = r->head.n ? memchr(r->head.p, '\n', r->head.n) : NULL;
    if (line) {
        release(r, (size_t)(line + 1 - r->head.p), NULL);
        release(r, r->head.n, out);
        r->state = IN_CHANNEL_TEXT;
    }
}

/* ---- all of them ---- */

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
            tok_stream_push(&r->utf8, t, id, &r->head);
        push_tags(r, out, channel);
        break;
    case THINK_NONE:
        if (!tok_is_special(t, id))
            tok_stream_push(&r->utf8, t, id, out);
        break;
    }
}

void chat_reader_end(struct chat_reader *r, struct buf *out)
{
    enum think_way think = r->chat->format->think;
    tok_stream_flush(&r->utf8, think == THINK_TAGS ? &r->head : out);
    if (think == THINK_TAGS) {
        if (r->state == AFTER_TAG)
            skip_white(r);
        buf_add(out, r->head.p, r->head.n);
    } else if (think == THINK_HARMONY) {
        harmony_end(r, out);
    }
    buf_free(&r->head);
}
