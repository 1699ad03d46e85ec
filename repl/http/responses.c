/* responses.c - replies of chats as objects and events of /v1/responses: see responses.h. */
#include "repl/http/responses.h"

#include "kernels/json.h"

/* ---- items of the output --------------------------------------------------------------------- */

static const char *session_of(const struct task *t)
{
    return t->job[0].session;
}

static void put_id(const struct task *t, const char *key, const char *kind, int i, struct buf *b)
{
    char id[96];
    snprintf(id, sizeof id, "%s_%s_%d", kind, session_of(t), i);
    jput_kstr(b, key, id);
}

/* A part of a message's or a thought's content. */
static void put_part(const char *type, const char *text, size_t n, struct buf *b)
{
    JPUT_IN(b, '{');
    jput_kstr(b, "type", type);
    jput_key(b, "text");
    jput_strn(b, text, n);
    if (!strcmp(type, "output_text")) {
        jput_key(b, "annotations");
        jput_raw(b, "[]");
        jput_key(b, "logprobs");
        jput_raw(b, "[]");
    }
}

enum item { ITEM_NONE, ITEM_THOUGHT, ITEM_TEXT, ITEM_CALL };

/* The n bytes of text; begun: the item has just begun, and has no content yet. i: its number; call:
 * of the reply, for ITEM_CALL. */
static void put_item(const struct task *t, enum item kind, int i, int call, bool begun,
                     const char *text, size_t n, struct buf *b)
{
    const struct reply *r = &t->job[0].reply;
    const char *status = begun ? "in_progress" : "completed";
    JPUT_IN(b, '{');
    if (kind == ITEM_CALL) {
        const struct tool_call *c = &r->calls.call[call];
        jput_kstr(b, "type", "function_call");
        put_id(t, "id", "fc", i, b);
        put_id(t, "call_id", "call", call, b);
        jput_fields(b, "%s{name}%s{arguments}%s{status}", c->name, begun ? "" : c->arguments,
                    status);
    } else {
        jput_kstr(b, "type", kind == ITEM_TEXT ? "message" : "reasoning");
        put_id(t, "id", kind == ITEM_TEXT ? "msg" : "rs", i, b);
        jput_kstr(b, "status", status);
        if (kind == ITEM_TEXT) {
            jput_kstr(b, "role", "assistant");
        } else {
            jput_key(b, "summary");
            jput_raw(b, "[]");
        }
        JPUT_KIN(b, "content", '[');
        if (!begun)
            put_part(kind == ITEM_TEXT ? "output_text" : "reasoning_text", text, n, b);
    }
}

static void put_output(const struct task *t, struct buf *b)
{
    const struct reply *r = &t->job[0].reply;
    int i = 0;
    JPUT_KIN(b, "output", '[');
    if (r->thought.n)
        put_item(t, ITEM_THOUGHT, i++, 0, false, r->thought.p, r->thought.n, b);
    if (r->text.n || !r->calls.n)
        put_item(t, ITEM_TEXT, i++, 0, false, r->text.p, r->text.n, b);
    for (int k = 0; k < r->calls.n; k++)
        put_item(t, ITEM_CALL, i++, k, false, NULL, 0, b);
}

/* ---- the object ------------------------------------------------------------------------------ */

static void put_usage(const struct task *t, struct buf *b)
{
    struct task_counts c;
    task_count(t, &c);
    JPUT_KIN(b, "usage", '{');
    jput_fields(b, "%ld{input_tokens}%ld{output_tokens}%ld{total_tokens}", c.prompt, c.generated,
                c.prompt + c.generated);
    jput_kopen(b, "input_tokens_details", '{');
    jput_fields(b, "%ld{cached_tokens}", c.cached);
    jput_close(b, '}');
    JPUT_KIN(b, "output_tokens_details", '{');
    jput_kint(b, "reasoning_tokens", 0);
}

static void put_response(const struct task *t, bool ended, struct buf *b)
{
    const struct ask *a = &t->ask;
    bool cut = ended && t->job[0].reply.finish == FINISH_LENGTH;
    JPUT_IN(b, '{');
    put_id(t, "id", "resp", 0, b);
    jput_fields(b, "%s{object}%ld{created_at}%s{status}%s{model}", "response", t->created,
                !ended ? "in_progress" : cut ? "incomplete" : "completed", t->of.model);
    jput_kstr(b, "error", NULL);
    jput_key(b, "incomplete_details");
    jput_raw(b, cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    jput_kstr(b, "instructions", a->system);
    jput_key(b, "max_output_tokens");
    if (a->most < 0)
        jput_null(b);
    else
        jput_int(b, a->most);
    jput_fields(b, "%g{temperature}%g{top_p}%d{parallel_tool_calls?}%s{tool_choice}",
                a->set.temperature, a->set.top_p, true, "auto");
    jput_key(b, "tools");
    jput_raw(b, "[]");
    jput_key(b, "metadata");
    jput_raw(b, "{}");
    jput_fields(b, "%d{previous_response_id:0}%d{store?}%s{truncation}", 0, false, "disabled");
    if (ended) {
        put_output(t, b);
        put_usage(t, b);
    } else {
        jput_key(b, "output");
        jput_raw(b, "[]");
        jput_kstr(b, "usage", NULL);
    }
}

void responses_answer(const struct task *t, struct buf *out)
{
    put_response(t, true, out);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Begins an event; its other fields follow, then send(). */
static void begin_event(struct task *t, const char *type, struct buf *b, struct buf *out)
{
    buf_printf(out, "event: %s\ndata: ", type);
    jput_open(b, '{');
    jput_fields(b, "%s{type}%d{sequence_number}", type, t->events.n++);
}

static void send(struct buf *b, struct buf *out)
{
    jput_close(b, '}');
    buf_add(out, b->p, b->n);
    buf_str(out, "\n\n");
    buf_free(b);
}

static void send_response(struct task *t, const char *type, bool ended, struct buf *out)
{
    struct buf b = {0};
    begin_event(t, type, &b, out);
    jput_key(&b, "response");
    put_response(t, ended, &b);
    send(&b, out);
}

static void begin_item(struct task *t, const char *type, const char *kind, struct buf *b,
                       struct buf *out)
{
    begin_event(t, type, b, out);
    jput_kint(b, "output_index", t->events.items);
    put_id(t, "item_id", kind, t->events.items, b);
}

static void send_item(struct task *t, enum item kind, int call, bool begun, const char *text,
                      size_t n, struct buf *out)
{
    struct buf b = {0};
    begin_event(t, begun ? "response.output_item.added" : "response.output_item.done", &b, out);
    jput_kint(&b, "output_index", t->events.items);
    jput_key(&b, "item");
    put_item(t, kind, t->events.items, call, begun, text, n, &b);
    send(&b, out);
}

static void send_part(struct task *t, enum item kind, bool begun, const char *text, size_t n,
                      struct buf *out)
{
    struct buf b = {0};
    bool is_text = kind == ITEM_TEXT;
    begin_item(t, begun ? "response.content_part.added" : "response.content_part.done",
               is_text ? "msg" : "rs", &b, out);
    jput_kint(&b, "content_index", 0);
    jput_key(&b, "part");
    put_part(is_text ? "output_text" : "reasoning_text", text, n, &b);
    send(&b, out);
}

/* A piece of text (key "delta"), or all of it ("text"). */
static void send_text(struct task *t, enum item kind, bool all, const char *text, size_t n,
                      struct buf *out)
{
    static const char *const type[2][2] = {
        {"response.reasoning_text.delta", "response.reasoning_text.done"},
        {"response.output_text.delta", "response.output_text.done"}};
    struct buf b = {0};
    bool is_text = kind == ITEM_TEXT;
    begin_item(t, type[is_text][all], is_text ? "msg" : "rs", &b, out);
    jput_kint(&b, "content_index", 0);
    if (is_text) {
        jput_key(&b, "logprobs");
        jput_raw(&b, "[]");
    }
    jput_key(&b, all ? "text" : "delta");
    jput_strn(&b, text, n);
    send(&b, out);
}

/* Ends the item that is open. */
static void end_item(struct task *t, struct buf *out)
{
    const struct reply *r = &t->job[0].reply;
    enum item kind = (enum item)t->events.open;
    const struct buf *of = kind == ITEM_TEXT ? &r->text : &r->thought;
    const char *text = of->p + t->events.from;
    size_t n = t->events.to - t->events.from;
    if (kind == ITEM_NONE)
        return;
    send_text(t, kind, true, text, n, out);
    send_part(t, kind, false, text, n, out);
    send_item(t, kind, 0, false, text, n, out);
    t->events.items++;
    t->events.open = ITEM_NONE;
}

/* Bytes [from, to) of the reply's text or thought. */
static void add_text(struct task *t, enum item kind, size_t from, size_t to, struct buf *out)
{
    const struct reply *r = &t->job[0].reply;
    const struct buf *of = kind == ITEM_TEXT ? &r->text : &r->thought;
    if (from == to)
        return;
    if (t->events.open != (int)kind) {
        end_item(t, out);
        t->events.open = kind;
        t->events.from = from;
        send_item(t, kind, 0, true, NULL, 0, out);
        send_part(t, kind, true, "", 0, out);
    }
    t->events.to = to;
    send_text(t, kind, false, of->p + from, to - from, out);
}

static void add_call(struct task *t, int call, struct buf *out)
{
    const struct tool_call *c = &t->job[0].reply.calls.call[call];
    end_item(t, out);
    send_item(t, ITEM_CALL, call, true, NULL, 0, out);
    for (int i = 0; i < 2; i++) {
        struct buf b = {0};
        begin_item(t, i ? "response.function_call_arguments.done"
                        : "response.function_call_arguments.delta", "fc", &b, out);
        if (i)
            jput_kstr(&b, "name", c->name);
        jput_kstr(&b, i ? "arguments" : "delta", c->arguments);
        send(&b, out);
    }
    send_item(t, ITEM_CALL, call, false, NULL, 0, out);
    t->events.items++;
}

static void add_piece(struct task *t, struct buf *out)
{
    const struct reply *r = &t->job[0].reply;
    int k = t->n_written[0]++;
    const struct reply_piece none = {0}, *was = k ? &r->piece[k - 1] : &none, *p = &r->piece[k];
    add_text(t, ITEM_THOUGHT, was->thought, p->thought, out);
    add_text(t, ITEM_TEXT, was->text, p->text, out);
    for (int i = was->calls; i < p->calls; i++)
        add_call(t, i, out);
}

static void end_stream(struct task *t, struct buf *out)
{
    const struct reply *r = &t->job[0].reply;
    t->closed = true;
    if (t->failed.status) {
        struct buf b = {0};
        begin_event(t, "error", &b, out);
        jput_fields(&b, "%d{code}%s{message}%d{param:0}", t->failed.status, t->failed.message, 0);
        send(&b, out);
        return;
    }
    end_item(t, out);
    if (t->events.items == 0) { /* an empty reply is an empty message */
        send_item(t, ITEM_TEXT, 0, true, NULL, 0, out);
        send_item(t, ITEM_TEXT, 0, false, "", 0, out);
        t->events.items++;
    }
    send_response(t, r->finish == FINISH_LENGTH ? "response.incomplete" : "response.completed",
                  true, out);
}

void responses_stream(struct task *t, size_t most, struct buf *out)
{
    if (t->job[0].begun && !t->opened[0]) {
        t->opened[0] = true;
        send_response(t, "response.created", false, out);
        send_response(t, "response.in_progress", false, out);
    }
    while (t->at < t->order.n && out->n < most) {
        t->at++;
        add_piece(t, out);
    }
    if (task_done(t) && t->at == t->order.n && !t->closed)
        end_stream(t, out);
}
