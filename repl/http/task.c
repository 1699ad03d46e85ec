/* task.c - answers as JSON, field by field as vLLM 0.26 writes them; see task.h. Fields that this
 * server has nothing for are null. */
#include "repl/http/task.h"

#include <math.h>

#include "kernels/json.h"
#include "kernels/utf8.h"

struct task *task_new(struct ask *a, const struct ask_of *of, const char *print)
{
    struct task *t = xcalloc(1, sizeof *t);
    t->ask = *a;
    *a = (struct ask){0};
    t->of = *of;
    t->print = print;
    t->created = clock_unix_ms() / 1000;
    t->ns_arrived = clock_ns();
    t->n_job = t->ask.n * t->ask.n_prompt;
    t->job = xcalloc((size_t)t->n_job, sizeof *t->job);
    t->n_written = xcalloc((size_t)t->n_job, sizeof *t->n_written);
    t->opened = xcalloc((size_t)t->n_job, sizeof *t->opened);
    for (int i = 0; i < t->n_job; i++)
        reply_init(&t->job[i].reply, &t->ask, &t->of, i);
    return t;
}

void task_free(struct task *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n_job; i++) {
        reply_free(&t->job[i].reply);
        ids_free(&t->job[i].all);
    }
    FREE(t->job, t->n_written, t->opened);
    ids_free(&t->order);
    ask_free(&t->ask);
    free(t);
}

bool task_done(const struct task *t)
{
    return t->n_settled == t->n_job;
}

bool task_begun(const struct task *t)
{
    for (int i = 0; i < t->n_job; i++)
        if (t->job[i].begun)
            return true;
    return task_done(t);
}

void task_count(const struct task *t, struct task_counts *c)
{
    *c = (struct task_counts){.ms_first = -1, .ms_queue = -1, .ms_decode = -1};
    for (int i = 0; i < t->n_job; i++) {
        const struct reply *r = &t->job[i].reply;
        c->generated += r->tok.n;
        if (i % t->ask.n == 0) {
            c->prompt += r->prompt->n;
            c->cached += r->n_reused;
        }
        c->ms_queue = fmax(c->ms_queue, (double)r->us_wait / 1e3);
        if (!r->ns_first)
            continue;
        c->ms_first = fmax(c->ms_first, (double)(r->ns_first - t->ns_arrived) / 1e6);
        c->ms_decode = fmax(c->ms_decode, (double)(r->ns_last - r->ns_first) / 1e6);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static const char *bytes_of(const struct task *t, int32_t id, size_t *n)
{
    const char *p = tok_bytes(t->of.tok, id, n);
    if (!p)
        *n = 0;
    return p ? p : "";
}

void token_spelling(const struct tokenizer *t, int32_t id, struct buf *out)
{
    FREED(buf_free) struct buf byte_level = {0}, piece = {0};
    size_t n = 0;
    const char *p = tok_bytes(t, id, &n);
    buf_str(&byte_level, "");
    buf_str(&piece, "");
    for (size_t i = 0; p && i < n; i++) {
        unsigned b = (unsigned char)p[i], c = b;
        /* GPT-2's characters for bytes: printable ones are themselves, the others follow U+0100 */
        if (b <= 32)
            c = 0x100 + b;
        else if (b >= 127 && b <= 160)
            c = 0x121 + b - 127;
        else if (b == 173)
            c = 0x143;
        if (c >= 0x80)
            buf_char(&byte_level, (char)(0xC0 | c >> 6));
        buf_char(&byte_level, c >= 0x80 ? (char)(0x80 | (c & 63)) : (char)c);
        if (b == ' ')
            buf_str(&piece, "\xe2\x96\x81");
        else
            buf_char(&piece, (char)b);
    }
    bool level = tok_find(t, byte_level.p) == id, sp = !level && tok_find(t, piece.p) == id;
    if (level || sp)
        jput_str(out, level ? byte_level.p : piece.p);
    else
        jput_strn(out, p ? p : "", n);
}

/* The token's text; in the legacy form, which has no bytes, "bytes:\xe2\x82" for what is no
 * UTF-8. */
static void name_token(const struct task *t, int32_t id, bool legacy, struct buf *out)
{
    size_t n;
    const char *p = bytes_of(t, id, &n);
    if (t->ask.names_ids) {
        buf_printf(out, "token_id:%d", (int)id);
    } else if (legacy && !utf8_check(p, n)) {
        buf_str(out, "bytes:");
        for (size_t i = 0; i < n; i++)
            buf_printf(out, "\\x%02x", (unsigned char)p[i]);
    } else {
        buf_add(out, p, n);
    }
}

static void put_token(const struct task *t, int32_t id, bool legacy, struct buf *b)
{
    FREED(buf_free) struct buf name = {0};
    name_token(t, id, legacy, &name);
    jput_strn(b, name.n ? name.p : "", name.n);
}

static void put_entry(const struct task *t, int32_t id, float logp, struct buf *b)
{
    size_t n;
    const char *p = bytes_of(t, id, &n);
    jput_key(b, "token");
    put_token(t, id, false, b);
    jput_kreal(b, "logprob", logp);
    JPUT_KIN(b, "bytes", '[');
    for (size_t i = 0; i < n; i++)
        jput_int(b, (unsigned char)p[i]);
}

static const struct job_token *top_of(const struct reply *r, int i)
{
    return r->top ? r->top + (size_t)i * (size_t)r->n_top : NULL;
}

/* {"content": [...]} of tokens [first, first + n), or null. */
static void put_chat_logprobs(const struct task *t, const struct reply *r, int first, int n,
                              struct buf *b)
{
    jput_key(b, "logprobs");
    if (t->ask.top < 0 || n == 0) {
        jput_null(b);
        return;
    }
    JPUT_IN(b, '{');
    JPUT_KIN(b, "content", '[');
    for (int i = first; i < first + n; i++) {
        const struct job_token *top = top_of(r, i);
        JPUT_IN(b, '{');
        put_entry(t, r->tok.v[i], r->logp[i], b);
        JPUT_KIN(b, "top_logprobs", '[');
        for (int k = 0; top && k < min_int(t->ask.top, r->n_top); k++) {
            JPUT_IN(b, '{');
            put_entry(t, top[k].id, top[k].logp, b);
        }
    }
}

/* A row of tokens with what is known of each, of prompt or reply. */
struct task_row {
    int32_t id;
    float logp; /* NAN: not known */
    const struct job_token *top;
    int n_top;
    size_t offset;
};

/* {"text": log probability}: the token, then the best ones. Of two with one name the first
 * counts. */
static void put_best(const struct task *t, const struct task_row *w, struct buf *b)
{
    enum { MOST = JOB_TOP + 1 };
    struct buf name[MOST] = {{0}};
    int n = 0;
    jput_open(b, '{');
    for (int k = -1; k < min_int(w->n_top, JOB_TOP); k++) {
        int32_t id = k < 0 ? w->id : w->top[k].id;
        struct buf *mine = &name[n];
        bool again = k >= 0 && id == w->id;
        buf_clear(mine);
        name_token(t, id, true, mine);
        for (int i = 0; i < n && !again; i++)
            again = name[i].n == mine->n && memcmp(name[i].p, mine->p, mine->n) == 0;
        if (again)
            continue;
        buf_char(mine, '\0');
        mine->n--;
        jput_kreal(b, mine->p, k < 0 ? w->logp : w->top[k].logp);
        n++;
    }
    jput_close(b, '}');
    for (int i = 0; i < MOST; i++)
        buf_free(&name[i]);
}

/* The legacy form: four lists. */
static void put_columns(const struct task *t, const struct task_row *w, int n, struct buf *b)
{
    JPUT_IN(b, '{');
    jput_kopen(b, "text_offset", '[');
    for (int i = 0; i < n; i++)
        jput_int(b, (int64_t)w[i].offset);
    jput_close(b, ']');
    jput_kopen(b, "token_logprobs", '[');
    for (int i = 0; i < n; i++)
        jput_real(b, w[i].logp);
    jput_close(b, ']');
    jput_kopen(b, "tokens", '[');
    for (int i = 0; i < n; i++)
        put_token(t, w[i].id, true, b);
    jput_close(b, ']');
    JPUT_KIN(b, "top_logprobs", '[');
    for (int i = 0; i < n; i++)
        if (isnan(w[i].logp))
            jput_null(b);
        else
            put_best(t, &w[i], b);
}

/* The prompt as a completion with `echo` repeats it. The bos that this server has put before a text
 * is a token, but no part of the text. */
static void echo_text(const struct task *t, const struct reply *r, struct buf *out)
{
    const char *text = t->ask.text[r->index / t->ask.n];
    buf_str(out, "");
    if (text)
        buf_str(out, text);
    else
        tok_decode(t->of.tok, r->prompt->v, r->prompt->n, out);
}

/* Rows of the prompt; returns its characters. */
static size_t prompt_rows(const struct task *t, const struct reply *r, struct task_row *w)
{
    struct tok_stream s = {0};
    FREED(buf_free) struct buf out = {0};
    size_t chars = 0;
    bool added = t->ask.text[r->index / t->ask.n] != NULL;
    for (int i = 0; i < r->prompt->n; i++) {
        int32_t id = r->prompt->v[i];
        w[i] = (struct task_row){id, NAN, NULL, 0, chars};
        if (i > 0 && r->prompt_fact)
            w[i].logp = r->prompt_fact[i].logp;
        if (i > 0 && r->prompt_top) {
            w[i].top = r->prompt_top + (size_t)i * (size_t)r->n_prompt_top;
            w[i].n_top = min_int(max_int(t->ask.top, 0), r->n_prompt_top);
        }
        if (added && i == 0 && id == tok_bos(t->of.tok))
            continue;
        buf_clear(&out);
        tok_stream_push(&s, t->of.tok, id, &out);
        chars += utf8_chars(out.n ? out.p : "", out.n);
    }
    buf_clear(&out);
    tok_stream_flush(&s, &out);
    chars += utf8_chars(out.n ? out.p : "", out.n);
    return chars;
}

/* "logprobs" of a completion: of the prompt too, where `echo`, and of tokens [first, first + n). */
static void put_logprobs(const struct task *t, const struct reply *r, bool echo, int first, int n,
                         struct buf *b)
{
    int before = echo ? r->prompt->n : 0;
    size_t chars = 0;
    jput_key(b, "logprobs");
    if (t->ask.top < 0 || before + n == 0) {
        jput_null(b);
        return;
    }
    FREED(free_at) struct task_row *w = xcalloc((size_t)r->prompt->n + (size_t)n, sizeof *w);
    if (t->ask.echo)
        chars = prompt_rows(t, r, w);
    for (int i = 0; i < n; i++) {
        const struct job_token *top = top_of(r, first + i);
        w[before + i] = (struct task_row){r->tok.v[first + i], r->logp[first + i], top,
                                          top ? min_int(t->ask.top, r->n_top) : 0,
                                          chars + r->offset[first + i]};
    }
    put_columns(t, w, before + n, b);
}

/* [null, {"ID": {"logprob", "rank", "decoded_token"}}, ...]; the rank of a token that is not among
 * the best ones is not known. */
static void put_prompt_logprobs(const struct task *t, const struct reply *r, struct buf *b)
{
    char key[16];
    if (t->ask.prompt_top < 0 || !r->prompt_fact) {
        jput_null(b);
        return;
    }
    JPUT_IN(b, '[');
    for (int i = 0; i < r->prompt->n; i++) {
        const struct job_token *top = r->prompt_top
                                          ? r->prompt_top + (size_t)i * (size_t)r->n_prompt_top
                                          : NULL;
        int rank = 0, n = top ? min_int(t->ask.prompt_top, r->n_prompt_top) : 0;
        if (i == 0) {
            jput_null(b);
            continue;
        }
        for (int k = 0; top && k < r->n_prompt_top; k++)
            if (top[k].id == r->prompt->v[i])
                rank = k + 1;
        jput_open(b, '{');
        for (int k = -1; k < n; k++) {
            int32_t id = k < 0 ? r->prompt->v[i] : top[k].id;
            if (k >= 0 && id == r->prompt->v[i])
                continue;
            snprintf(key, sizeof key, "%d", (int)id);
            JPUT_KIN(b, key, '{');
            jput_kreal(b, "logprob", k < 0 ? r->prompt_fact[i].logp : top[k].logp);
            jput_key(b, "rank");
            if (k >= 0 || rank)
                jput_int(b, k < 0 ? rank : k + 1);
            else
                jput_null(b);
            jput_key(b, "decoded_token");
            put_token(t, id, false, b);
        }
        jput_close(b, '}');
    }
}

/* ---- counts ---------------------------------------------------------------------------------- */

static void put_usage(const struct task *t, struct buf *b)
{
    struct task_counts c;
    task_count(t, &c);
    JPUT_KIN(b, "usage", '{');
    jput_fields(b, "%ld{prompt_tokens}%ld{total_tokens}%ld{completion_tokens}", c.prompt,
                c.prompt + c.generated, c.generated);
    JPUT_KIN(b, "prompt_tokens_details", '{');
    jput_fields(b, "%ld{cached_tokens}%d{created_cache_tokens:0}%d{multimodal_tokens:0}", c.cached,
                0, 0);
}

/* For one reply the lists by step, for several only the sums. */
static void put_speculation(const struct task *t, struct buf *b)
{
    int64_t steps = 0, drafted = 0, accepted = 0;
    for (int i = 0; i < t->n_job; i++) {
        const struct reply *r = &t->job[i].reply;
        for (int k = 0; k < r->drafted.n; k++) {
            steps += r->drafted.v[k] > 0;
            drafted += r->drafted.v[k];
            accepted += r->accepted.v[k];
        }
    }
    jput_key(b, "speculative_decoding");
    if (drafted == 0) {
        jput_null(b);
        return;
    }
    JPUT_IN(b, '{');
    jput_fields(b, "%ld{num_spec_steps}%ld{num_accepted_draft_tokens}%ld{num_draft_tokens}", steps,
                accepted, drafted);
    if (t->n_job == 1) {
        const struct reply *r = &t->job[0].reply;
        jput_kints(b, "per_step_accepted", r->accepted.v, r->accepted.n);
        jput_kints(b, "per_step_drafted", r->drafted.v, r->drafted.n);
    }
}

static void put_ms(struct buf *b, const char *key, double ms)
{
    jput_kreal(b, key, ms < 0 ? NAN : ms);
}

static void put_metrics(const struct task *t, struct buf *b)
{
    struct task_counts c;
    task_count(t, &c);
    double rest = (double)(c.generated - t->n_job); /* tokens after each reply's first */
    JPUT_KIN(b, "metrics", '{');
    put_ms(b, "time_to_first_token_ms", c.ms_first);
    put_ms(b, "generation_time_ms", c.ms_decode);
    put_ms(b, "queue_time_ms", c.ms_queue);
    put_ms(b, "mean_itl_ms", t->n_job == 1 && rest > 0 ? c.ms_decode / rest : -1);
    put_ms(b, "tokens_per_second", rest > 0 && c.ms_decode > 0 ? rest * 1e3 / c.ms_decode : -1);
    put_speculation(t, b);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void put_head(const struct task *t, const char *object, struct buf *b)
{
    char id[96];
    snprintf(id, sizeof id, "%s-%s", t->ask.chat ? "chatcmpl" : "cmpl", t->name[0] ? t->name
             : t->job[0].session);
    jput_open(b, '{');
    jput_fields(b, "%s{id}%s{object}%ld{created}%s{model}", id, object, t->created, t->of.model);
    jput_kopen(b, "choices", '[');
}

static void put_ids(const struct task *t, const char *key, const int32_t *v, int n, struct buf *b)
{
    jput_key(b, key);
    if (t->ask.ids)
        jput_ints(b, v, n);
    else
        jput_null(b);
}

static void put_finish(const struct reply *r, bool ended, struct buf *b)
{
    jput_kstr(b, "finish_reason", ended ? finish_word(r->finish) : NULL);
    if (!ended && r->ask->chat)
        return; /* in a chat only the last chunk has the finish reason */
    jput_key(b, "stop_reason");
    if (ended && r->stop_text >= 0)
        jput_strn(b, r->ask->stop[r->stop_text].p, r->ask->stop[r->stop_text].n);
    else if (ended && r->stop_id >= 0)
        jput_int(b, r->stop_id);
    else
        jput_null(b);
}

static void put_nulls(struct buf *b, const char *const *key)
{
    for (; *key; key++)
        jput_kstr(b, *key, NULL);
}

/* Calls [from, to) of a reply, in a stream with their numbers. */
static void put_calls(const struct task *t, const struct reply *r, int from, int to, bool stream,
                      struct buf *b)
{
    char id[64];
    if (from >= to)
        return;
    JPUT_KIN(b, "tool_calls", '[');
    for (int i = from; i < to; i++) {
        const struct tool_call *c = &r->calls.call[i];
        snprintf(id, sizeof id, "call_%s_%d", t->job[r->index].session, i);
        JPUT_IN(b, '{');
        if (stream)
            jput_kint(b, "index", i);
        jput_fields(b, "%s{id}%s{type}", id, "function");
        JPUT_KIN(b, "function", '{');
        jput_fields(b, "%s{name}%s{arguments}", c->name, c->arguments);
    }
}

static void put_chat_choice(const struct task *t, const struct reply *r, struct buf *b)
{
    static const char *const unused[] = {"refusal", "annotations", "audio", "function_call", NULL};
    jput_kint(b, "index", r->index);
    jput_kopen(b, "message", '{');
    jput_kstr(b, "role", "assistant");
    jput_key(b, "content");
    if (r->text.n || !r->calls.n)
        jput_strn(b, r->text.p, r->text.n);
    else
        jput_null(b);
    put_calls(t, r, 0, r->calls.n, false, b);
    put_nulls(b, unused);
    jput_key(b, "reasoning");
    if (r->thought.n)
        jput_strn(b, r->thought.p, r->thought.n);
    else
        jput_null(b);
    jput_close(b, '}');
    put_chat_logprobs(t, r, 0, r->tok.n, b);
    put_finish(r, true, b);
    put_ids(t, "token_ids", r->tok.v, r->tok.n, b);
    jput_kstr(b, "routed_experts", NULL);
}

static void put_text(const struct task *t, const struct reply *r, bool echo, size_t from, size_t to,
                     struct buf *b)
{
    FREED(buf_free) struct buf text = {0};
    buf_str(&text, "");
    if (echo)
        echo_text(t, r, &text);
    buf_add(&text, r->text.p + from, to - from);
    jput_key(b, "text");
    jput_strn(b, text.p, text.n);
}

static void put_completion_choice(const struct task *t, const struct reply *r, struct buf *b)
{
    jput_kint(b, "index", r->index);
    put_text(t, r, t->ask.echo, 0, r->text.n, b);
    put_logprobs(t, r, t->ask.echo, 0, r->tok.n, b);
    put_finish(r, true, b);
    put_ids(t, "token_ids", r->tok.v, r->tok.n, b);
    jput_key(b, "prompt_logprobs");
    put_prompt_logprobs(t, r, b);
    put_ids(t, "prompt_token_ids", r->prompt->v, r->prompt->n, b);
    jput_kstr(b, "routed_experts", NULL);
}

void task_answer(const struct task *t, struct buf *out)
{
    static const char *const transfer[] = {"kv_transfer_params", "ec_transfer_params", NULL};
    put_head(t, t->ask.chat ? "chat.completion" : "text_completion", out);
    for (int i = 0; i < t->n_job; i++) {
        JPUT_IN(out, '{');
        (t->ask.chat ? put_chat_choice : put_completion_choice)(t, &t->job[i].reply, out);
    }
    jput_close(out, ']');
    jput_fields(out, "%d{service_tier:0}%s{system_fingerprint}", 0, t->print);
    put_usage(t, out);
    if (t->ask.chat) {
        const struct reply *r = &t->job[0].reply;
        jput_key(out, "prompt_logprobs");
        put_prompt_logprobs(t, r, out);
        put_ids(t, "prompt_token_ids", r->prompt->v, r->prompt->n, out);
        jput_kstr(out, "prompt_text", NULL);
    }
    put_nulls(out, transfer);
    put_metrics(t, out);
    jput_close(out, '}');
}

/* ---- streams --------------------------------------------------------------------------------- */

static void put_chunk_head(const struct task *t, struct buf *b)
{
    put_head(t, t->ask.chat ? "chat.completion.chunk" : "text_completion", b);
}

static void put_chunk(struct buf *chunk, struct buf *out)
{
    buf_str(out, "data: ");
    buf_add(out, chunk->p, chunk->n);
    buf_str(out, "\n\n");
    buf_free(chunk);
}

static void put_usage_so_far(const struct task *t, struct buf *b)
{
    if (!t->ask.usage_each)
        return;
    int64_t prompt = 0, generated = 0;
    for (int i = 0; i < t->n_job; i++) {
        const struct reply *r = &t->job[i].reply;
        prompt += i % t->ask.n == 0 ? r->prompt->n : 0;
        generated += t->n_written[i] ? r->piece[t->n_written[i] - 1].first +
                     r->piece[t->n_written[i] - 1].n : 0;
    }
    JPUT_KIN(b, "usage", '{');
    jput_fields(b, "%ld{prompt_tokens}%ld{total_tokens}%ld{completion_tokens}", prompt,
                prompt + generated, generated);
}

/* The first chunk of a reply: the role, or the prompt that is echoed. */
static void open_stream(struct task *t, int i, struct buf *out)
{
    const struct reply *r = &t->job[i].reply;
    struct buf b = {0};
    t->opened[i] = true;
    if (!t->ask.chat && !t->ask.echo)
        return;
    put_chunk_head(t, &b);
    jput_open(&b, '{');
    jput_kint(&b, "index", r->index);
    if (t->ask.chat) {
        jput_key(&b, "delta");
        jput_raw(&b, "{\"role\":\"assistant\",\"content\":\"\"}");
        jput_fields(&b, "%d{logprobs:0}%d{finish_reason:0}", 0, 0);
    } else {
        put_text(t, r, true, 0, 0, &b);
        put_logprobs(t, r, true, 0, 0, &b);
        put_finish(r, false, &b);
        put_ids(t, "prompt_token_ids", r->prompt->v, r->prompt->n, &b);
        jput_kstr(&b, "token_ids", NULL);
    }
    jput_close(&b, '}');
    jput_close(&b, ']');
    put_usage_so_far(t, &b);
    if (t->ask.chat) {
        put_ids(t, "prompt_token_ids", r->prompt->v, r->prompt->n, &b);
        jput_kstr(&b, "prompt_text", NULL);
    }
    jput_close(&b, '}');
    put_chunk(&b, out);
}

static void put_delta(const struct task *t, const struct reply *r, const struct reply_piece *was,
                      const struct reply_piece *p, struct buf *b)
{
    size_t text = was ? was->text : 0, thought = was ? was->thought : 0;
    int calls = was ? was->calls : 0;
    JPUT_KIN(b, "delta", '{');
    if (p->thought > thought) {
        jput_key(b, "reasoning");
        jput_strn(b, r->thought.p + thought, p->thought - thought);
    }
    put_calls(t, r, calls, p->calls, true, b);
    if (p->text > text || (p->thought == thought && p->calls == calls)) {
        jput_key(b, "content");
        jput_strn(b, r->text.p + text, p->text - text);
    }
}

/* The next piece of job i. */
static void put_piece(struct task *t, int i, struct buf *out)
{
    const struct reply *r = &t->job[i].reply;
    int k = t->n_written[i]++;
    const struct reply_piece *p = &r->piece[k];
    size_t text = k ? p[-1].text : 0;
    bool end = t->job[i].settled && k == r->n_piece - 1;
    struct buf b = {0};
    put_chunk_head(t, &b);
    jput_open(&b, '{');
    jput_kint(&b, "index", r->index);
    if (t->ask.chat) {
        put_delta(t, r, k ? p - 1 : NULL, p, &b);
        put_chat_logprobs(t, r, p->first, p->n, &b);
        put_finish(r, end, &b);
    } else {
        put_text(t, r, false, text, p->text, &b);
        put_logprobs(t, r, false, p->first, p->n, &b);
        put_finish(r, end, &b);
        if (k == 0 && !t->ask.echo)
            put_ids(t, "prompt_token_ids", r->prompt->v, r->prompt->n, &b);
        else
            jput_kstr(&b, "prompt_token_ids", NULL);
    }
    put_ids(t, "token_ids", r->tok.v + p->first, p->n, &b);
    jput_close(&b, '}');
    jput_close(&b, ']');
    put_usage_so_far(t, &b);
    if (end)
        jput_kstr(&b, "system_fingerprint", t->print);
    jput_close(&b, '}');
    put_chunk(&b, out);
}

/* Usage and metrics, or why the replies failed, and the end. */
static void close_stream(struct task *t, struct buf *out)
{
    struct buf b = {0};
    t->closed = true;
    if (t->failed.status) {
        refusal_json(&t->failed, &b);
        b.n--; /* the line break */
        put_chunk(&b, out);
        return;
    }
    if (t->ask.usage) {
        put_chunk_head(t, &b);
        jput_close(&b, ']');
        put_usage(t, &b);
        jput_kstr(&b, "system_fingerprint", t->print);
        put_metrics(t, &b);
        jput_close(&b, '}');
        put_chunk(&b, out);
    }
    buf_str(out, "data: [DONE]\n\n");
}

void task_stream(struct task *t, size_t most, struct buf *out)
{
    for (int i = 0; i < t->n_job; i++)
        if (t->job[i].begun && !t->opened[i])
            open_stream(t, i, out);
    while (t->at < t->order.n && out->n < most)
        put_piece(t, t->order.v[t->at++], out);
    if (task_done(t) && t->at == t->order.n && !t->closed)
        close_stream(t, out);
}
