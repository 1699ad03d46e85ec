/* harmony.c - gpt-oss's harmony format.
 *
 * A reply is one or more messages, each with a header that names its channel; the prompt ends
 * within the first header. If a reply has a message of channel "final", its messages of channel
 * "analysis" (thoughts) are omitted from later prompts. Source: openai/harmony, docs/format.md.
 */
#include "models/chat/parts.h"

static const char assistant[] = "assistant";

/* role: who writes, and to whom, a form of printf. channel: NULL: none. */
__attribute__((format(printf, 3, 4)))
static void put_header(struct render *r, const char *channel, const char *role, ...)
{
    put_mark(r, MARK_OPEN);
    WITH_ARGS(ap, role, buf_vprintf(&r->text, role, ap));
    if (channel) {
        put_mark(r, MARK_CHANNEL);
        put_str(r, channel);
    }
    put_mark(r, MARK_MID);
}

static void system_message(struct render *r)
{
    const struct chat *c = r->c;
    put_header(r, NULL, "system");
    put_format(r, "You are ChatGPT, a large language model trained by OpenAI.\n"
                  "Knowledge cutoff: 2024-06\nCurrent date: %s\n\nReasoning: %s\n\n# Valid "
                  "channels: analysis, commentary, final. Channel must be included for every "
                  "message.", c->date, r->style->effort ? r->style->effort : c->format->effort);
    if (r->style->tools)
        put_str(r, "\nCalls to these tools must go to the commentary channel: 'functions'.");
    put_mark(r, MARK_CLOSE);
}

/* ---- a generated reply as messages ---- */

/* A message within a reply's ids: [from, text) is the header behind the role, [text, to) the text;
 * text -1: the reply ends within the header. */
struct reply_message {
    int from, text, to;
    bool analysis, final;
};

static bool starts(const struct buf *b, const char *word)
{
    return b->n >= strlen(word) && memcmp(b->p, word, strlen(word)) == 0;
}

static bool ends_message(const struct chat *c, int id)
{
    if (id == c->mark[MARK_CLOSE])
        return true;
    return ANY(i, c->n_stop, id == c->stop[i]);
}

enum { NAME_TOKENS = 12 }; /* at least the tokens of a channel's name */

/* Reads the message that begins at *at; *at is then behind the role of the message after it. False
 * at the end of the ids. */
static bool next_message(const struct chat *c, const struct ids *ids, int *at,
                         struct reply_message *p)
{
    int i = *at;
    if (i >= ids->n)
        return false;
    *p = (struct reply_message){.from = i, .text = -1};
    for (; i < ids->n && !ends_message(c, ids->v[i]); i++) {
        if (ids->v[i] == c->mark[MARK_MID] && p->text < 0)
            p->text = i + 1;
        if (ids->v[i] == c->mark[MARK_CHANNEL] && p->text < 0) {
            FREED(buf_free) struct buf name = {0};
            tok_decode(c->tok, ids->v + i + 1, min_int(ids->n - i - 1, NAME_TOKENS), &name);
            p->analysis = starts(&name, "analysis");
            p->final = starts(&name, "final");
        }
    }
    p->to = i;
    if (i < ids->n) /* the end token, then "<|start|>assistant" */
        i++;
    if (i < ids->n && ids->v[i] == c->mark[MARK_OPEN])
        for (i++; i < ids->n && ids->v[i] != c->mark[MARK_CHANNEL] &&
                  ids->v[i] != c->mark[MARK_MID] && !ends_message(c, ids->v[i]);)
            i++;
    *at = i;
    return true;
}

static void put_reply_messages(struct render *r, const struct ids *ids)
{
    struct reply_message p;
    bool finished = false;
    for (int at = 0; next_message(r->c, ids, &at, &p);)
        finished |= p.final && p.text >= 0;
    for (int at = 0; next_message(r->c, ids, &at, &p);) {
        if (p.text < 0 || (finished && p.analysis))
            continue;
        put_mark(r, MARK_OPEN);
        put_str(r, assistant);
        put_ids(r, ids->v + p.from, p.to - p.from);
        put_mark(r, MARK_CLOSE);
    }
}

/* The caller's instructions and the functions. system: NULL if there are no instructions. */
static void developer_message(struct render *r, const struct message *system)
{
    put_header(r, NULL, "%s", role_of(r->c->format, ROLE_SYSTEM));
    if (system) {
        put_str(r, "# Instructions\n\n");
        put_text(r, system->text, strlen(system->text));
        put_str(r, "\n\n");
    }
    put_namespace(r);
    put_mark(r, MARK_CLOSE);
}

/* A reply that calls a function: its text is a thought, which is left out once a reply without
 * calls follows. */
static void put_call(struct render *r, const struct message *m, int n)
{
    const json_t *call = json_array_get(m->calls, 0);
    bool answered = false;
    for (int i = 1; i < n; i++)
        answered |= m[i].role == ROLE_ASSISTANT && !m[i].calls;
    if (m->text && *m->text && !answered) {
        put_header(r, "analysis", assistant);
        put_text(r, m->text, strlen(m->text));
        put_mark(r, MARK_CLOSE);
    }
    put_header(r, "commentary json", "assistant to=functions.%s", json_str(call, "name"));
    put_arguments(r, json_object_get(call, "arguments"));
    put_mark(r, MARK_CALL);
}

static void put_result(struct render *r, const struct message *m)
{
    put_header(r, "commentary", "functions.%s to=assistant", m->name ? m->name : "");
    put_json_text(r, m->text);
    put_mark(r, MARK_CLOSE);
}

bool harmony_conversation(struct render *r, const struct message *m, int n)
{
    system_message(r);
    if (r->style->tools)
        developer_message(r, m[0].role == ROLE_SYSTEM ? m : NULL);
    for (int i = 0; i < n; i++) {
        const char *text = m[i].text ? m[i].text : "";
        if (m[i].role == ROLE_SYSTEM && r->style->tools)
            continue;
        if (m[i].role == ROLE_TOOL || m[i].calls) {
            if (m[i].calls)
                put_call(r, &m[i], n - i);
            else
                put_result(r, &m[i]);
            continue;
        }
        if (m[i].role == ROLE_ASSISTANT && m[i].ids.n) {
            put_reply_messages(r, &m[i].ids);
            continue;
        }
        put_header(r, m[i].role == ROLE_ASSISTANT ? "final" : NULL, "%s",
                   role_of(r->c->format, m[i].role));
        if (m[i].role == ROLE_SYSTEM)
            put_str(r, "# Instructions\n\n");
        put_text(r, text, strlen(text));
        put_mark(r, MARK_CLOSE);
    }
    put_mark(r, MARK_OPEN);
    put_str(r, assistant);
    return true;
}

/* ---- reading ---- */

enum { IN_FIRST_HEADER, IN_HEADER, IN_TEXT };
enum { MAX_HEADER = 256 };

/* The channel named in a header, in which the byte \1 represents the channel marker. */
static enum channel channel_of(const struct buf *header)
{
    const char *at = header->n ? memchr(header->p, '\1', header->n) : NULL;
    if (at && strncmp(at + 1, "analysis", 8) == 0)
        return CHAN_ANALYSIS;
    return at && strncmp(at + 1, "commentary", 10) == 0 ? CHAN_COMMENTARY : CHAN_FINAL;
}

/* The function that a header names as its recipient. */
static void read_recipient(struct chat_reader *r)
{
    static const char word[] = "to=functions.";
    const char *at = r->held.n ? memmem(r->held.p, r->held.n, word, sizeof word - 1) : NULL;
    size_t n = 0;
    r->to[0] = '\0';
    if (!at)
        return;
    for (at += sizeof word - 1; n < sizeof r->to - 1 && at[n] > ' '; n++)
        r->to[n] = at[n];
    r->to[n] = '\0';
}

static void hold_header(struct chat_reader *r, int id, struct buf *out)
{
    size_t n;
    const char *s = tok_bytes(r->chat->tok, id, &n);
    buf_add(&r->held, s ? s : "", n);
    r->came += n;
    if (r->held.n <= MAX_HEADER)
        return;
    r->channel = CHAN_FINAL;
    r->state = IN_TEXT;
    buf_add(out, r->held.p, r->held.n);
    buf_clear(&r->held);
}

/* Reading starts within the first message's header. A header longer than MAX_HEADER is shown as
 * text: the model does not follow the format. */
void harmony_push(struct chat_reader *r, int id, struct buf *out)
{
    const struct chat *c = r->chat;
    bool header = r->state != IN_TEXT;
    if (id == c->mark[MARK_MID] && header) {
        r->channel = channel_of(&r->held);
        read_recipient(r);
        r->state = IN_TEXT;
        buf_clear(&r->held);
    } else if (id == c->mark[MARK_OPEN] || ends_message(c, id)) {
        tok_stream_flush(&r->utf8, out);
        buf_clear(&r->held);
        r->state = IN_HEADER;
    } else if (id == c->mark[MARK_CHANNEL] && header) {
        buf_char(&r->held, '\1');
        r->came++;
    } else if (header && !tok_is_special(c->tok, id)) {
        hold_header(r, id, out);
    } else if (!tok_is_special(c->tok, id)) {
        r->came += tok_stream_push(&r->utf8, c->tok, id, out);
    }
}

void harmony_end(struct chat_reader *r, struct buf *out)
{
    bool header = r->held.n && memchr(r->held.p, '\1', r->held.n);
    if (r->state == IN_FIRST_HEADER && !header)
        buf_add(out, r->held.p, r->held.n);
}
