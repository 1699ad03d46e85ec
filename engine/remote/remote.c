/* remote.c - a turn over the network: see remote.h. */
#include "engine/remote/remote.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remote/http.h"
#include "engine/remote/server.h"
#include "engine/remote/talk.h"
#include "engine/remote/wire.h"

enum { RETRIES = 3, MOST_STEPS = 1 << 16 };

struct remote {
    struct talk talk; /* first */
    struct http *http;
    struct server server;
    char *about, *device, *url; /* owned strings of info */
};

static struct remote *remote_of(struct talk *t)
{
    return (struct remote *)t;
}

/* ---- one reply as it arrives ----------------------------------------------------------------- */

/* Tokens that came in one piece. */
struct piece {
    int first, n;
    uint64_t ns;
};

struct incoming {
    struct remote *r;
    struct talk_reply *out;
    struct wire wire;
    struct answer_token *token; /* (n_token) */
    int n_token, cap_token;
    bool ids; /* every piece so far came with ids */
    struct piece *piece; /* (n_piece) */
    int n_piece, cap_piece;
    int n_text;              /* pieces of text, where nothing else counts tokens */
    struct ids accepted, drafted; /* of each step of the server */
    struct answer_counts count;
    size_t shown;            /* bytes of a cumulative text shown */
    enum finish finish;
    bool end;                /* the server said that it is done */
    char error[400];
    uint64_t ns_first;       /* of the first token */
    struct ids prompt;
    struct http_call call;
    struct buf whole;        /* of an answer that is no stream */
};

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

static void keep_counts(struct answer_counts *c, const struct answer_counts *n)
{
    keep_count(&c->prompt, n->prompt);
    keep_count(&c->generated, n->generated);
    keep_count(&c->cached, n->cached);
    keep_count(&c->drafted, n->drafted);
    keep_count(&c->accepted, n->accepted);
    keep_count(&c->verifies, n->verifies);
    keep_ms(&c->ms_prompt, n->ms_prompt);
    keep_ms(&c->ms_decode, n->ms_decode);
    keep_ms(&c->ms_queue, n->ms_queue);
    keep_ms(&c->ms_first, n->ms_first);
}

static void add_piece(struct incoming *in, const struct answer *a)
{
    for (int i = 0; i < a->n_token; i++) {
        if (in->n_token == in->cap_token)
            in->token = xrealloc(in->token, (size_t)(in->cap_token = 2 * in->cap_token + 64),
                                 sizeof *in->token);
        in->token[in->n_token + i] = a->token[i];
        in->ids = in->ids && a->token[i].id >= 0;
    }
    if (in->n_piece == in->cap_piece)
        in->piece = xrealloc(in->piece, (size_t)(in->cap_piece = 2 * in->cap_piece + 64),
                             sizeof *in->piece);
    in->piece[in->n_piece++] = (struct piece){in->n_token, a->n_token, clock_ns()};
    in->n_token += a->n_token;
}

static void show(struct incoming *in, struct answer *a)
{
    struct talk *t = &in->r->talk;
    const char *text = a->text.p;
    size_t n = a->text.n;
    if (a->cumulative) { /* SGLang repeats the reply from its beginning */
        size_t old = in->shown < n ? in->shown : n;
        text += old;
        n -= old;
        in->shown += n;
    }
    if ((n || a->thought.n || a->n_token) && !in->ns_first)
        in->ns_first = clock_ns();
    talk_text(t, in->out, 1, a->thought.p, a->thought.n);
    talk_text(t, in->out, 0, text, n);
    in->n_text += n || a->thought.n;
}

static void show_progress(struct incoming *in, const struct answer *a)
{
    if (a->total <= 0 || a->total > INT32_MAX || a->done > a->total || in->ns_first)
        return;
    struct event ev = talk_event(&in->r->talk, EV_PREFILL);
    ev.done = (int)a->done;
    ev.total = (int)a->total;
    talk_post(&in->r->talk, &ev);
}

/* Publishes what the views need while the reply runs. */
static void publish(struct incoming *in)
{
    struct talk *t = &in->r->talk;
    int n = in->n_token ? in->n_token : in->n_text;
    pthread_mutex_lock(&t->mu);
    t->view.tok_s = reply_tok_s(n, (clock_ns() - in->ns_first) / 1000);
    pthread_mutex_unlock(&t->mu);
}

static bool take(void *arg, const char *data, size_t n, struct err *e)
{
    struct incoming *in = arg;
    struct answer a;
    if (in->end)
        return true;
    if (!answer_read(&a, data, n, e))
        return false;
    if (a.error[0]) {
        memcpy(in->error, a.error, sizeof in->error);
        answer_free(&a);
        return err_set(e, ERR_MODEL, "the server reports: %s", in->error);
    }
    show_progress(in, &a);
    show(in, &a);
    if (a.n_token)
        add_piece(in, &a);
    keep_counts(&in->count, &a.count);
    ids_cat(&in->accepted, a.accepted.v, a.accepted.n);
    ids_cat(&in->drafted, a.drafted.v, a.drafted.n);
    if (a.prompt.n && in->prompt.n == 0)
        ids_cat(&in->prompt, a.prompt.v, a.prompt.n);
    if (a.reply.n) {
        in->out->ids.n = 0;
        ids_cat(&in->out->ids, a.reply.v, a.reply.n);
    }
    if (a.finish != FINISH_NONE)
        in->finish = a.finish;
    in->end = in->end || a.end;
    answer_free(&a);
    if (in->ns_first)
        publish(in);
    return true;
}

static bool on_bytes(void *arg, const void *p, size_t n, struct err *e)
{
    struct incoming *in = arg;
    const char *type = in->call.type;
    bool stream = !strcmp(type, "text/event-stream"), lines = strstr(type, "ndjson") != NULL;
    if (in->end)
        return true; /* what follows [DONE] is no matter */
    if (stream || lines) {
        in->wire.form = lines ? WIRE_LINES : WIRE_SSE;
        return wire_feed(&in->wire, p, n, take, in, e);
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
    return in->whole.n ? take(in, in->whole.p, in->whole.n, e) : wire_end(&in->wire, take, in, e);
}

/* ---- the request ----------------------------------------------------------------------------- */

static int messages(const struct talk *t, struct said *out)
{
    int n = 0;
    if (t->system)
        out[n++] = (struct said){"system", t->system};
    for (int i = 0; i < t->n_said; i++) {
        out[n++] = (struct said){"user", t->said[i].user};
        if (i < t->n_said - 1)
            out[n++] = (struct said){"assistant", t->said[i].reply};
    }
    return n;
}

/* The ids of the prompt, where the server says them before it generates. */
static void ask_prompt(struct remote *r, const struct said *said, int n, struct ids *out)
{
    struct buf body = {0};
    const char *path = server_ask_prompt(&r->server, said, n, &body);
    struct http_call c = {.method = "POST", .path = path, .body = body.p};
    struct answer a;
    if (path && http_call(r->http, &c, &r->talk.stop, NULL) &&
        answer_read(&a, c.answer.p ? c.answer.p : "", c.answer.n, NULL)) {
        for (int i = 0; i < a.n_token; i++)
            ids_add(out, a.token[i].id);
        answer_free(&a);
    }
    buf_free(&c.answer);
    buf_free(&body);
}

static void wait_ms(struct talk *t, int ms)
{
    for (uint64_t end = clock_ns() + (uint64_t)ms * 1000000; clock_ns() < end && !stop_asked(&t->stop);)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* Whether a failed request may be sent again: the server cannot have begun it. */
static bool may_retry(const struct http_call *c)
{
    return c->unsent || c->status == 429 || c->status == 503;
}

static int retry_ms(const struct http_call *c, int attempt)
{
    return c->retry_s >= 0 && c->retry_s <= 30 ? c->retry_s * 1000 : 500 << attempt;
}

/* Sends the request and reads the reply. False and *e: it failed, in->call says how far it came. */
static bool exchange(struct incoming *in, struct err *e)
{
    struct http *h = in->r->http;
    struct http_call *c = &in->call;
    http_begin(h, c);
    while (!c->done && !in->end && !stop_asked(&in->r->talk.stop))
        http_run(h, 50);
    bool stopped = !c->done && !in->end;
    http_end(h, c);
    if (stopped)
        return err_set(e, ERR_NEGATIVE, "stopped");
    if (in->end)
        return true;
    if (c->failed) {
        *e = c->why;
        return false;
    }
    return c->status == 200 ? read_rest(in, e) : http_refused(c, e);
}

/* What to say after the stream ended: NULL, or why the reply may not be whole. */
static const char *incomplete(const struct incoming *in)
{
    if (in->finish == FINISH_NONE)
        return in->end ? "the server ended the reply without saying why"
                       : "the server's stream ended without an end of the reply";
    return in->finish == FINISH_ABORT ? "the server aborted the reply" : NULL;
}

static enum stop_reason stop_of(enum finish f)
{
    return f == FINISH_LENGTH ? STOP_MAX : f == FINISH_ABORT ? STOP_FAULT : STOP_END;
}

static void converse(struct incoming *in, const char *path, const char *body)
{
    struct talk *t = &in->r->talk;
    struct http_call *c = &in->call;
    struct err e;
    *c = (struct http_call){.method = "POST", .path = path, .body = body, .bytes = on_bytes, .arg = in};
    for (int attempt = 0;; attempt++) {
        if (exchange(in, &e)) {
            const char *why = incomplete(in);
            in->out->why = stop_of(in->finish);
            if (why)
                talk_notice(t, why);
            break;
        }
        if (stop_asked(&t->stop)) {
            in->out->why = STOP_CANCEL;
            break;
        }
        if (attempt == RETRIES || in->ns_first || !may_retry(c)) {
            in->out->why = talk_fault(t, e.msg, false);
            break;
        }
        char line[640];
        snprintf(line, sizeof line, "%.500s; asking again in %d ms", e.msg, retry_ms(c, attempt));
        talk_notice(t, line);
        wait_ms(t, retry_ms(c, attempt));
    }
    buf_free(&c->answer);
    in->out->us_prefill = in->ns_first ? (in->ns_first - c->ns_begin) / 1000 : 0;
    in->out->us_decode =
        in->ns_first && c->ns_last > in->ns_first ? (c->ns_last - in->ns_first) / 1000 : 0;
}

/* ---- the end of a turn ----------------------------------------------------------------------- */

static void post_step(struct incoming *in, int step, int first, int n, const struct step_rec *rec)
{
    struct talk *t = &in->r->talk;
    struct event ev = talk_event(t, EV_STEP);
    ev.step = step;
    ev.rec = *rec;
    for (int i = 0; i < n; i++)
        ids_add(&ev.tokens, in->token[first + i].id);
    talk_post(t, &ev);
}

/* The steps of the server, where it reports the accepted drafts of each: step i yields
 * accepted[i] + 1 tokens, the last one clipped. The reply's first token is the prompt's own. */
static bool post_server_steps(struct incoming *in)
{
    int pos = (int)(in->count.prompt > 0 ? in->count.prompt : 0), at = 0;
    if (in->accepted.n == 0 || !in->ids || in->n_token == 0)
        return false;
    for (int i = 0; i < in->accepted.n && at < in->n_token; i++) {
        int n = min_int(in->accepted.v[i] + 1, in->n_token - at);
        int drafted = i < in->drafted.n ? in->drafted.v[i] : 0;
        post_step(in, i + 1, at, n, &(struct step_rec){
            .kind = drafted ? STEP_SPEC : STEP_DECODE, .pos0 = pos + at, .rows = drafted + 1,
            .drafted = drafted, .accepted = n - 1, .bonus = in->token[at + n - 1].id});
        at += n;
        in->out->n_steps++;
    }
    return true;
}

/* Else the pieces as they came. Whether a piece is a step of the server is not known. */
static void post_pieces(struct incoming *in)
{
    int pos = (int)(in->count.prompt > 0 ? in->count.prompt : 0);
    if (!in->ids)
        return;
    for (int i = 0; i < in->n_piece && i < MOST_STEPS; i++) {
        const struct piece *p = &in->piece[i];
        uint64_t before = i ? in->piece[i - 1].ns : p->ns;
        post_step(in, i + 1, p->first, p->n, &(struct step_rec){
            .kind = STEP_DECODE, .pos0 = pos + p->first, .rows = p->n,
            .bonus = in->token[p->first + p->n - 1].id,
            .us_verify = (uint32_t)((p->ns - before) / 1000)});
        in->out->n_steps++;
    }
}

static void note_seen(struct incoming *in)
{
    bool *said = in->r->server.said;
    said[REPORT_PROMPT_IDS] |= in->prompt.n > 0;
    said[REPORT_REPLY_IDS] |= in->ids && in->n_token > 0;
    said[REPORT_LOGPROBS] |= in->n_token > 0 && !isnan(in->token[0].logp);
    said[REPORT_ACCEPT_REQUEST] |= in->count.drafted >= 0;
    said[REPORT_ACCEPT_STEP] |= in->accepted.n > 0;
    said[REPORT_CACHED] |= in->count.cached >= 0;
}

static void end_reply(struct incoming *in)
{
    struct talk *t = &in->r->talk;
    struct talk_reply *out = in->out;
    if (!post_server_steps(in))
        post_pieces(in);
    if (in->ids && out->ids.n == 0)
        for (int i = 0; i < in->n_token; i++)
            ids_add(&out->ids, in->token[i].id);
    out->n_tokens = in->count.generated >= 0 ? (int)in->count.generated
                    : in->n_token            ? in->n_token
                                             : in->n_text;
    out->n_drafted = (int)(in->count.drafted > 0 ? in->count.drafted : 0);
    out->n_accepted = (int)(in->count.accepted > 0 ? in->count.accepted : 0);
    note_seen(in);
    pthread_mutex_lock(&t->mu);
    struct chat_view *v = &t->view;
    v->generated += (uint64_t)out->n_tokens;
    v->reused_tokens += (uint64_t)(in->count.cached > 0 ? in->count.cached : 0);
    v->us_prefill += out->us_prefill;
    v->drafted += (uint64_t)out->n_drafted;
    v->accepted += (uint64_t)out->n_accepted;
    v->cycles += (uint64_t)(in->count.verifies > 0 ? in->count.verifies : 0);
    v->tok_s = reply_tok_s(out->n_tokens, out->us_decode);
    v->length = in->count.prompt >= 0 ? (int)in->count.prompt + out->n_tokens : talk_words(t);
    pthread_mutex_unlock(&t->mu);
}

static void answer(struct talk *t, bool regen, struct talk_reply *out)
{
    struct remote *r = remote_of(t);
    struct incoming in = {.r = r, .out = out, .ids = true,
                          .count = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1}};
    struct said *said = xcalloc((size_t)(2 * t->n_said + 1), sizeof *said);
    struct buf body = {0};
    struct ids prompt = {0};
    int n = messages(t, said);
    ask_prompt(r, said, n, &prompt);
    int n_prompt = prompt.n;
    talk_turn_begins(t, regen, &prompt, n_prompt);
    /* a sampled reply again needs other draws: the turn's number changes the seed */
    int64_t seed = t->view.settings.seed + (regen ? t->view.turn : 0);
    const char *path = server_ask(&r->server, said, n, &t->view.settings, seed, &body);
    converse(&in, path, body.p);
    end_reply(&in);
    wire_free(&in.wire);
    buf_free(&in.whole);
    free(in.token);
    free(in.piece);
    ids_free(&in.accepted);
    ids_free(&in.drafted);
    ids_free(&in.prompt);
    buf_free(&body);
    free(said);
}

/* ---- the backend ----------------------------------------------------------------------------- */

static const char *refuses(struct talk *t, const struct request *rq)
{
    static _Thread_local char why[160];
    const struct remote *r = remote_of(t);
    char name[64];
    switch (rq->kind) {
    case RQ_SET:
        snprintf(name, sizeof name, "%.*s", (int)strcspn(rq->text, "="), rq->text);
        if (settings_index(name) < 0 || server_knows(&r->server, name))
            return NULL; /* an unknown name is reported as everywhere */
        snprintf(why, sizeof why, "%s has no setting %s", server_kind_name(r->server.kind), name);
        return why;
    case RQ_CALIBRATE: return "a draft head of a server cannot be calibrated from here";
    case RQ_SEVERAL: case RQ_BATCH: return "several replies at once are not sent to a server yet";
    default: return NULL;
    }
}

static void other(struct talk *t, const struct request *rq)
{
    (void)t, (void)rq;
}

static void closed(struct talk *t)
{
    struct remote *r = remote_of(t);
    http_close(r->http);
    server_free(&r->server);
    free(r->about);
    free(r->device);
    free(r->url);
}

static void fill_info(struct remote *r)
{
    struct backend_info *i = &r->talk.info;
    r->url = xstrdup(http_url(r->http));
    r->about = xasprintf("%s%s%s", server_kind_name(r->server.kind), r->server.version[0] ? " " : "",
                         r->server.version);
    r->device = xasprintf("%s at %s", r->about, r->url);
    i->model_dir = r->server.model;
    i->family = r->about;
    i->device = r->device;
    i->chat = "server";
    i->backend = "remote";
    i->context = r->server.context;
}

static void fill_lacks(struct remote *r)
{
    const char **no = r->talk.base.lacks;
    const char *accept = server_lacks(&r->server, REPORT_ACCEPT_STEP);
    no[VIEW_ACCEPT] = accept ? accept : "accepted drafts of a server are not shown yet";
    no[VIEW_STEPS] = "a server does not report its steps";
    no[VIEW_TREES] = "no server reports draft trees";
    no[VIEW_POOLS] = server_lacks(&r->server, REPORT_POOLS);
    if (!no[VIEW_POOLS])
        no[VIEW_POOLS] = "the pools of a server are not shown yet";
    no[VIEW_PAGES] = "no server reports page tables";
    no[VIEW_PLAN] = "no server reports its plans";
    no[VIEW_CHECK] = "a server's pools cannot be checked from here";
    no[VIEW_FAULTS] = "historical faults are switches of the local engine";
    no[VIEW_DEBUG] = "a server's turns cannot be paused";
    no[VIEW_PROBE] = "no server runs a step with taps";
    for (int v = 0; v < N_VIEWS; v++)
        if (!no[v])
            no[v] = "a server does not report this";
}

static const struct talk_hooks hooks = {.refuses = refuses, .answer = answer, .other = other,
                                        .closed = closed};

/* The key in a file: its first line. */
static bool read_key(const char *path, struct buf *out, struct err *e)
{
    if (!path)
        return true;
    if (!buf_read_file(out, path, 65536, e))
        return err_prefix(e, "the key");
    size_t n = out->p ? strcspn(out->p, "\r\n") : 0;
    if (n == 0)
        return err_set(e, ERR_USAGE, "%s holds no key; expected it in the first line", path);
    out->p[n] = '\0';
    return true;
}

static bool open_http(struct http **h, const struct server_opts *o, struct err *e)
{
    struct buf key = {0};
    bool ok = read_key(o->key_file, &key, e) &&
              http_open(h, &(struct http_opts){.url = o->url, .key = o->key_file ? key.p : NULL,
                                               .header = o->header, .n_header = o->n_header}, e);
    if (key.p)
        memset(key.p, 0, key.n);
    buf_free(&key);
    return ok;
}

struct backend *remote_open(const struct engine_opts *o, struct err *e)
{
    struct remote *r = xcalloc(1, sizeof *r);
    r->talk.hooks = &hooks;
    r->talk.view.settings = o->settings;
    if (open_http(&r->http, &o->server, e)) {
        if (server_probe(&r->server, r->http, o->model, NULL, e)) {
            fill_info(r);
            fill_lacks(r);
            if (talk_open(&r->talk, o->log, e)) {
                if (http_warning(r->http))
                    talk_notice(&r->talk, http_warning(r->http));
                return &r->talk.base;
            }
        }
        closed(&r->talk);
    }
    free(r);
    return NULL;
}

bool remote_doctor(const struct engine_opts *o, void (*tell)(void *arg, bool ok, const char *line),
                   void *arg, struct err *e)
{
    struct http *h = NULL;
    struct server s = {0};
    char line[400];
    if (!open_http(&h, &o->server, e))
        return false;
    bool ok = server_probe(&s, h, o->model, NULL, e);
    if (ok) {
        snprintf(line, sizeof line, "%s %s serves %s%s", server_kind_name(s.kind), s.version, s.model,
                 s.context ? "" : "; context not reported");
        tell(arg, true, line);
        if (http_warning(h))
            tell(arg, false, http_warning(h));
        for (int i = 0; i < N_REPORTS; i++) {
            const char *why = server_lacks(&s, (enum report)i);
            snprintf(line, sizeof line, "%s%s%s", report_name((enum report)i), why ? ": " : "",
                     why ? why : "");
            tell(arg, !why, line);
        }
    }
    server_free(&s);
    http_close(h);
    return ok;
}
