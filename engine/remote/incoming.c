/* incoming.c - see incoming.h. */
#include "engine/remote/incoming.h"

/* ---- what the server says -------------------------------------------------------------------- */

static void keep_count(int64_t *have, int64_t got)
{
    if (got >= 0)
        *have = got;
}

static void keep_ms(double *have, double got)
{
    if (got >= 0)
        *have = got;
}

static void keep_counts(struct answer_counts *c, const struct answer_counts *counts)
{
    keep_count(&c->prompt, counts->prompt);
    keep_count(&c->generated, counts->generated);
    keep_count(&c->cached, counts->cached);
    keep_count(&c->drafted, counts->drafted);
    keep_count(&c->accepted, counts->accepted);
    keep_count(&c->verifies, counts->verifies);
    keep_ms(&c->ms_prompt, counts->ms_prompt);
    keep_ms(&c->ms_decode, counts->ms_decode);
    keep_ms(&c->ms_queue, counts->ms_queue);
    keep_ms(&c->ms_first, counts->ms_first);
}

/* Tokens that an answer repeats from earlier ones. */
static int repeated(const struct incoming *in, const struct answer *answer)
{
    int64_t new = answer->n_output < 0 ? answer->n_token : answer->n_output - in->n_token;
    return new <= 0 ? answer->n_token : new < answer->n_token ? answer->n_token - (int)new : 0;
}

static void add_tops(struct incoming *in, const struct tops *t, int skip)
{
    for (int i = 0; i < t->n; i++)
        if (t->at[i].k >= skip)
            tops_add(&in->tops, in->n_token + t->at[i].k - skip, t->at[i].id, t->at[i].logp,
                     t->at[i].text, (size_t)t->at[i].n);
}

static void add_piece(struct incoming *in, const struct answer *answer)
{
    int skip = repeated(in, answer), n = answer->n_token - skip;
    if (n == 0 && answer->n_token) /* all of its tokens were sent before */
        return;
    add_tops(in, &answer->tops, skip);
    RESERVE(in->token, in->n_token + n, in->cap_token);
    for (int i = 0; i < n; i++) {
        in->token[in->n_token + i] = answer->token[skip + i];
        in->ids = in->ids && answer->token[skip + i].id >= 0;
    }
    *APPEND(in->piece, in->n_piece) = (struct piece){in->n_token, n, clock_ns()};
    in->n_token += n;
}

static void tell(struct incoming *in, int channel, const char *text, size_t n)
{
    if (n && in->news && in->news->text)
        in->news->text(in, channel, text, n);
}

static void add_text(struct incoming *in, const struct answer *answer)
{
    const char *text = answer->text.p;
    size_t n = answer->text.n;
    if (answer->cumulative) { /* SGLang repeats the reply from its beginning */
        size_t old = in->shown < n ? in->shown : n;
        text += old;
        n -= old;
        in->shown += n;
    }
    if (n || answer->thought.n || answer->n_token) {
        in->ns_last = clock_ns();
        if (!in->ns_first)
            in->ns_first = in->ns_last;
    }
    in->n_text += n || answer->thought.n;
    tell(in, 1, answer->thought.p, answer->thought.n);
    tell(in, 0, text, n);
}

static void add_progress(struct incoming *in, const struct answer *answer)
{
    if (answer->total > 0 && answer->total <= INT32_MAX && answer->done <= answer->total &&
        !in->ns_first && in->news && in->news->progress)
        in->news->progress(in, answer->done, answer->total);
}

/* Whether a reply ends by itself: text and tokens are bounded. */
static bool is_bounded(struct incoming *in, const struct answer *answer, struct err *e)
{
    in->n_bytes += answer->thought.n + (answer->cumulative ? 0 : answer->text.n);
    if (in->n_bytes > REPLY_TEXT || in->shown > REPLY_TEXT)
        return err_set(e, ERR_MODEL, "the server's reply is longer than %d MiB", REPLY_TEXT >> 20);
    return in->n_token <= REPLY_TOKENS ||
           err_set(e, ERR_MODEL, "the server's reply has more than %d tokens", REPLY_TOKENS);
}

static void replace_ids(struct ids *have, const struct ids *got)
{
    if (got->n) {
        have->n = 0;
        ids_cat(have, got->v, got->n);
    }
}

static bool take_data(void *arg, const char *data, size_t n, struct err *e)
{
    struct incoming *in = arg;
    FREED(answer_free) struct answer answer = {0};
    if (in->end)
        return true; /* data after the end is ignored */
    if (!answer_read(&answer, data, n, e))
        return false;
    int n_text = in->n_text;
    bool ok = !answer.error[0] || err_set(e, ERR_MODEL, "the server reports: %s", answer.error);
    if (ok) {
        replace_ids(&in->prompt, &answer.prompt); /* before the text is reported */
        add_progress(in, &answer);
        add_text(in, &answer);
        if (answer.n_token || in->n_text > n_text)
            add_piece(in, &answer);
        keep_counts(&in->count, &answer.count);
        replace_ids(&in->accepted, &answer.accepted);
        replace_ids(&in->drafted, &answer.drafted);
        if (!answer.partial)
            replace_ids(&in->reply, &answer.reply);
        else
            ids_cat(&in->reply, answer.reply.v, answer.reply.n);
        if (answer.finish != FINISH_NONE) {
            in->finish = answer.finish;
            memcpy(in->finish_word, answer.finish_word, sizeof in->finish_word);
        }
        in->end = answer.end;
        ok = is_bounded(in, &answer, e);
    }
    return ok;
}

static bool on_bytes(void *arg, const void *p, size_t n, struct err *e)
{
    struct incoming *in = arg;
    const char *type = in->call.type;
    bool stream = !strcmp(type, "text/event-stream"), lines = strstr(type, "ndjson") != NULL;
    if (stream || lines) {
        in->wire.form = lines ? WIRE_LINES : WIRE_SSE;
        return wire_feed(&in->wire, p, n, take_data, in, e);
    }
    if (strcmp(type, "application/json") != 0)
        return err_set(e, ERR_MODEL, "the server answers with %s instead of a stream of events",
                       *type ? type : "bytes of no type");
    if (in->whole.n + n > WIRE_MOST)
        return err_set(e, ERR_MODEL, "the server's answer is longer than %d MiB", WIRE_MOST >> 20);
    buf_add(&in->whole, p, n); /* a server that does not stream */
    return true;
}

static bool read_rest(struct incoming *in, struct err *e)
{
    return in->whole.n ? take_data(in, in->whole.p, in->whole.n, e)
                       : wire_end(&in->wire, take_data, in, e);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void send(struct http *http, struct incoming *in)
{
    struct buf answer = in->call.answer;
    in->call = (struct http_call){.method = "POST", .path = in->path, .body = in->body,
                                  .bytes = on_bytes, .arg = in, .stop = in->stop, .answer = answer};
    in->state = INCOMING_RUNS;
    http_begin(http, &in->call);
}

/* After a failure: waits to send the request again, or ends it with *e. */
static void fail(struct incoming *in, const struct err *e)
{
    char line[640];
    in->why = *e;
    int ms = in->ns_first ? -1 : http_retry_ms(&in->call, in->attempt);
    in->failed = ms < 0;
    in->state = in->failed ? INCOMING_DONE : INCOMING_WAITS;
    if (in->failed)
        return;
    in->attempt++;
    in->ns_again = clock_ns() + (uint64_t)ms * 1000000;
    snprintf(line, sizeof line, "%.500s; asking again in %d ms", e->msg, ms);
    if (in->news && in->news->notice)
        in->news->notice(in, line);
}

/* Whether the received ids are those of the whole reply. A llama-server that drafts lists only some
 * of the tokens, and no llama-server lists the stop token. */
static bool whole(const struct incoming *in)
{
    int64_t missing = in->count.generated - in->n_token;
    return in->count.generated < 0 || missing == 0 || (missing == 1 && in->finish == FINISH_STOP);
}

/* Whether the server has said that the reply is complete. False and *e: the reply is cut. */
static bool is_complete(const struct incoming *in, struct err *e)
{
    if (in->finish == FINISH_ABORT)
        return err_set(e, ERR_MODEL, "the server aborted the reply");
    return in->finish != FINISH_NONE || in->end ||
           err_set(e, ERR_MODEL, "the server's stream ended without an end of the reply");
}

/* The connection has ended, or the server has said the end of the reply. */
static void finish(struct http *http, struct incoming *in)
{
    struct err e;
    bool done = in->end;
    http_end(http, &in->call);
    if (!done) {
        if (in->call.failed)
            e = in->call.why;
        else
            done = in->call.status == 200 ? read_rest(in, &e) : http_refused(&in->call, &e);
    }
    done = done && is_complete(in, &e);
    in->ids = in->ids && (!done || whole(in));
    if (done)
        in->state = INCOMING_DONE;
    else
        fail(in, &e);
}

static void stop_all_of(struct http *http, struct incoming *in, int n)
{
    for (int i = 0; i < n; i++)
        if (in[i].state != INCOMING_DONE) {
            if (in[i].state == INCOMING_RUNS)
                http_end(http, &in[i].call);
            in[i].stopped = true;
            in[i].state = INCOMING_DONE;
        }
}

/* Sends requests that may be sent, and ends those that have ended. Returns how many are not
 * done. */
static int look_at_requests(struct http *http, struct incoming *in, int n, int at_once)
{
    int left = 0, busy = 0;
    for (int i = 0; i < n; i++) {
        if (in[i].state == INCOMING_RUNS && (in[i].call.done || in[i].end))
            finish(http, &in[i]);
        busy += in[i].state == INCOMING_RUNS;
    }
    for (int i = 0; i < n; i++) {
        if (in[i].state == INCOMING_WAITS && busy < at_once && clock_ns() >= in[i].ns_again) {
            send(http, &in[i]);
            busy++;
        }
        left += in[i].state != INCOMING_DONE;
    }
    return left;
}

/* Gives the tokens the ids of the whole reply, if there are as many ids as tokens. */
static void name_tokens(struct incoming *in)
{
    bool named = in->n_token > 0 && in->reply.n == in->n_token;
    for (int i = 0; named && i < in->n_token; i++)
        in->token[i].id = in->reply.v[i];
    for (int i = 0; named && i < in->tops.n; i++)
        if (i == 0 || in->tops.at[i].k != in->tops.at[i - 1].k)
            in->tops.at[i].id = in->reply.v[in->tops.at[i].k];
    in->ids |= named;
}

void incoming_run(struct http *http, struct incoming *in, int n, int at_once,
                  const struct stop *stop, void (*meanwhile)(void *arg), void *arg)
{
    for (int i = 0; i < n; i++)
        in[i].stop = stop;
    while (!stop_asked(stop) && look_at_requests(http, in, n, at_once) > 0) {
        http_run(http, 50);
        if (meanwhile)
            meanwhile(arg);
    }
    stop_all_of(http, in, n);
    for (int i = 0; i < n; i++)
        name_tokens(&in[i]);
}

bool incoming_bytes(struct incoming *in, const char *type, const void *p, size_t n, struct err *e)
{
    snprintf(in->call.type, sizeof in->call.type, "%s", type);
    return on_bytes(in, p, n, e);
}

bool incoming_end(struct incoming *in, struct err *e)
{
    bool ok = (in->end || read_rest(in, e)) && is_complete(in, e);
    name_tokens(in);
    return ok;
}

void incoming_init(struct incoming *in)
{
    *in = (struct incoming){.ids = true, .count = NO_COUNTS};
}

void incoming_free(struct incoming *in)
{
    wire_free(&in->wire);
    buf_free(&in->whole);
    buf_free(&in->call.answer);
    FREE(in->token, in->piece);
    tops_clear(&in->tops);
    ids_free(&in->prompt);
    ids_free(&in->reply);
    ids_free(&in->accepted);
    ids_free(&in->drafted);
}

int incoming_tokens(const struct incoming *in)
{
    return in->count.generated >= 0 ? (int)in->count.generated
           : in->n_token            ? in->n_token
                                    : in->n_text;
}

const char *incoming_doubt(const struct incoming *in)
{
    return in->finish == FINISH_NONE ? "the server ended the reply without saying why" : NULL;
}
