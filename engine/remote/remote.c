/* remote.c - conversations and batches with a server: see remote.h. */
#include "engine/remote/remote.h"

#include <math.h>

#include "engine/remote/blocks.h"
#include "engine/remote/gauges.h"
#include "engine/remote/incoming.h"
#include "engine/remote/kept.h"
#include "engine/remote/page_pair.h"
#include "engine/remote/reply_events.h"
#include "engine/remote/server.h"
#include "engine/remote/talk.h"

enum {
    AT_ONCE = 8,
    METRICS_MS = 1000, /* the end of a turn waits at most this long for the metrics after it */
    STOPPED_METRICS_MS = 100,
    SILENT_MS = 5000, /* silence of a running reply after which the screen reports it */
};

struct remote {
    struct talk talk; /* first */
    struct http *http;
    struct server server;
    struct gauges gauges;
    struct remote_kept kept;
    bool stalled;          /* view.trouble reports that the running reply is silent */
    char unreachable[200]; /* reported in view.trouble: why the server cannot be reached; "": it
                              can */
    struct page_pair pages; /* metrics before and after a turn */
    struct blocks blocks;
    int at_once;  /* replies of a batch at the same time */
    char *about, *device; /* owned strings of info */
    struct buf facts;     /* the same */
    char *lacks[N_VIEWS]; /* the same, of base.lacks; NULL: a constant is there */
    struct served_ops served;
};

static struct remote *remote_of(struct talk *talk)
{
    return (struct remote *)talk;
}

/* Sets the message about the connection on the screen; "": none. */
static void set_trouble(struct remote *remote, const char *text)
{
    LOCKED(&remote->talk.mu);
    snprintf(remote->talk.view.trouble, sizeof remote->talk.view.trouble, "%.190s", text);
}

/* Reads the metrics. Returns the milliseconds until the next call. */
static int look_at_metrics(struct remote *remote)
{
    int ms = gauges_look(&remote->gauges, remote->http, &remote->server,
                         remote->talk.view.settings.gauge_ms);
    const char *why = remote->gauges.unreachable ? remote->gauges.view.fault : "";
    if (strcmp(why, remote->unreachable) != 0) {
        snprintf(remote->unreachable, sizeof remote->unreachable, "%s", why);
        set_trouble(remote, why);
    }
    return ms;
}

/* Called while replies run. */
static void meanwhile(void *arg)
{
    look_at_metrics(arg);
}

static void idle(struct talk *talk)
{
    struct remote *remote = remote_of(talk);
    http_run(remote->http, look_at_metrics(remote));
}

/* Reports on the screen how long a running reply has been silent. */
static void watch_silence(struct remote *remote, const struct incoming *in)
{
    char text[80];
    uint64_t since = in->call.ns_last > in->call.ns_begin ? in->call.ns_last : in->call.ns_begin,
        now = clock_ns();
    bool stalled = in->state == INCOMING_RUNS && since &&
                   now > since + SILENT_MS * (uint64_t)1000000;
    if (stalled) {
        snprintf(text, sizeof text, in->ns_first ? "nothing came for %d s" : "no answer for %d s",
                 (int)((now - since) / 1000000000));
        set_trouble(remote, text);
    } else if (remote->stalled) {
        set_trouble(remote, "");
    }
    remote->stalled = stalled;
}

static void wake(struct talk *talk)
{
    http_wake(remote_of(talk)->http);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Lists the messages of the conversation, and one more question unless it is NULL. Returns how many
 * there are; the caller frees *out. */
static int messages(const struct talk *talk, const char *question, struct said **out)
{
    struct said *said = xcalloc(2 * (size_t)talk->n_said + 2, sizeof *said);
    int n = 0;
    if (talk->system)
        said[n++] = (struct said){"system", talk->system};
    for (int i = 0; i < talk->n_said; i++) {
        said[n++] = (struct said){"user", talk->said[i].user};
        if (i < talk->n_said - 1 || question)
            said[n++] = (struct said){"assistant", talk->said[i].reply};
    }
    if (question)
        said[n++] = (struct said){"user", question};
    *out = said;
    return n;
}

/* ---- a turn ---------------------------------------------------------------------------------- */

static void note_seen(struct remote *remote, const struct incoming *in)
{
    bool *said = remote->server.said;
    said[REPORT_PROMPT_IDS] |= in->prompt.n > 0;
    said[REPORT_REPLY_IDS] |= (in->ids && in->n_token > 0) || in->reply.n > 0;
    said[REPORT_LOGPROBS] |= in->n_token > 0 && !isnan(in->token[0].logp);
    said[REPORT_ACCEPT_REQUEST] |= in->count.drafted >= 0;
    said[REPORT_ACCEPT_STEP] |= in->accepted.n > 0;
    said[REPORT_CACHED] |= in->count.cached >= 0;
    said[REPORT_TIMES] |= in->count.ms_queue >= 0 || in->count.ms_first >= 0 ||
                          in->count.ms_prompt >= 0;
}

/* n_prompt: tokens of the prompt that were counted when the turn began. steps: sums over the steps
 * that the server listed; without any, its own sums count. */
static void count_reply(struct talk *talk, const struct incoming *in, int n_prompt,
                        const struct talk_reply *out, const struct draft_sums *steps)
{
    LOCKED(&talk->mu);
    struct chat_view *v = &talk->view;
    struct draft_sums own = {.drafted = (uint64_t)out->n_drafted,
                             .accepted = (uint64_t)out->n_accepted,
                             .cycles = (uint64_t)reply_count(in->count.verifies)};
    const struct draft_sums *turn = steps->cycles ? steps : &own;
    v->generated += (uint64_t)out->n_tokens;
    v->prompt_tokens += (uint64_t)max_int(0, reply_count(in->count.prompt) - n_prompt);
    v->reused_tokens += (uint64_t)reply_count(in->count.cached);
    v->us_prefill += out->us_prefill;
    talk->accepts |= in->count.drafted >= 0;
    draft_sums_join(&v->drafts, turn);
    v->turn_mal = draft_sums_mal(turn);
    v->session_mal = draft_sums_mal(&v->drafts);
    v->tok_s = reply_tok_s(out->n_tokens, out->us_decode);
    if (in->count.prompt > 0)
        talk_counted(talk, reply_count(in->count.prompt));
    v->length = in->count.prompt >= 0 ? reply_count(in->count.prompt) + out->n_tokens
                                      : talk_words(talk);
}

/* The server's report of a reply, unchanged. prompt: the ids with which the turn began. */
static struct served *served_of(struct remote *remote, const struct incoming *in,
                                const struct ids *prompt)
{
    struct served *served = answer_served(&in->count);
    memcpy(served->finish, in->finish_word, sizeof served->finish);
    served->prompt_ids = prompt->n > 0 || in->prompt.n > 0;
    served->reply_ids = in->reply.n > 0 || in->ids;
    if (remote->server.answers[REPORT_METRICS])
        page_pair_end(&remote->pages, remote->http, remote->server.model, in->call.ns_begin,
                      in->stopped ? STOPPED_METRICS_MS : METRICS_MS, served);
    return served;
}

/* Whether the server refused the prompt, and the reason may be that it does not fit the context:
 * servers say that in different words. */
static bool may_be_full(const struct remote *remote, const struct incoming *in)
{
    return in->failed && in->call.status == 400 && in->n_token == 0 &&
           talk_nearly_full(&remote->talk);
}

static void end_reply(struct remote *remote, const struct incoming *in, const struct ids *prompt,
                      struct talk_reply *out)
{
    if (in->prompt.n && !ids_equal(&in->prompt, prompt))
        ids_cat(&out->prompt, in->prompt.v, in->prompt.n);
    if (may_be_full(remote, in)) {
        char *line = xasprintf("%s; if its context is full, /forget leaves out the oldest turns "
                               "and sends it again", in->why.msg);
        talk_notice(&remote->talk, line);
        free(line);
        out->why = STOP_CONTEXT;
    } else {
        out->why = in->failed ? talk_fault(&remote->talk, in->why.msg, false) : reply_stop(in);
    }
    if (!in->failed && !in->stopped && incoming_doubt(in))
        talk_notice(&remote->talk, incoming_doubt(in));
    struct draft_sums steps = {0};
    out->n_steps = reply_post_steps(&remote->talk, in, &steps);
    reply_ids(in, &out->ids);
    out->n_tokens = incoming_tokens(in);
    out->n_drafted = reply_count(in->count.drafted);
    out->n_accepted = reply_count(in->count.accepted);
    if (in->ns_first) {
        out->us_prefill = (in->ns_first - in->call.ns_begin) / 1000;
        out->us_decode = (in->ns_last - in->ns_first) / 1000;
    }
    out->served = served_of(remote, in, prompt);
    set_trouble(remote, in->failed && in->call.failed ? in->why.msg : "");
    note_seen(remote, in);
    count_reply(&remote->talk, in, prompt->n, out, &steps);
}

/* A turn while its reply arrives. For the log and the screen the turn begins when the ids of its
 * prompt are known. Some servers send them before the reply. Otherwise a second request asks for
 * them when the reply begins without them or is slow; the turn waits at most one second for that
 * answer. */
struct remote_turn {
    struct remote *remote;
    struct talk_reply *out;
    const struct incoming *in;
    bool regen;
    struct http_call ask; /* the request for the prompt's ids; path NULL: the server has no such
                             request */
    uint64_t ns_sent;     /* clock_ns() of the request */
    bool asked, begun;
    struct buf early[2]; /* text that came before the turn began, by channel */
    struct ids prompt;   /* the ids with which the turn began */
};

static void show_text(struct remote_turn *turn, int channel, const char *text, size_t n)
{
    if (turn->begun)
        talk_text(&turn->remote->talk, turn->out, channel, text, n);
    else
        buf_add(&turn->early[channel], text, n);
}

/* The ids of the prompt that the server sent, in the stream or in answer to `ask`. */
static void take_prompt(const struct remote_turn *turn, struct ids *out)
{
    const struct http_call *call = &turn->ask;
    FREED(answer_free) struct answer answer = {0};
    ids_cat(out, turn->in->prompt.v, turn->in->prompt.n);
    if (out->n || !turn->asked || !call->done || call->failed || call->status != 200 ||
        !answer_read(&answer, buf_text(&call->answer), call->answer.n, NULL))
        return;
    for (int i = 0; i < answer.n_token; i++)
        ids_add(out, answer.token[i].id);
}

static void begin_turn(struct remote_turn *turn)
{
    struct ids prompt = {0};
    if (turn->begun)
        return;
    take_prompt(turn, &prompt);
    ids_cat(&turn->prompt, prompt.v, prompt.n);
    blocks_ids(&turn->remote->blocks, &turn->prompt, &turn->out->ids);
    talk_turn_begins(&turn->remote->talk, turn->regen, &prompt, prompt.n);
    turn->begun = true;
    for (int ch = 1; ch >= 0; ch--) {
        show_text(turn, ch, turn->early[ch].p, turn->early[ch].n);
        buf_free(&turn->early[ch]);
    }
}

static void look_for_prompt(struct remote_turn *turn)
{
    const uint64_t slow = 250000000, late = 1000000000;
    const struct incoming *in = turn->in;
    uint64_t now = clock_ns();
    if (turn->begun)
        return;
    if (in->prompt.n || !turn->ask.path) {
        begin_turn(turn);
    } else if (!turn->asked) {
        turn->asked = in->ns_first || now - turn->ns_sent > slow;
        if (turn->asked)
            http_begin(turn->remote->http, &turn->ask);
    } else if (turn->ask.done || now - turn->ask.ns_begin > late) {
        begin_turn(turn);
    }
}

static void turn_meanwhile(void *arg)
{
    struct remote_turn *turn = arg;
    watch_silence(turn->remote, turn->in);
    look_for_prompt(turn);
    meanwhile(turn->remote);
}

static void turn_text(struct incoming *in, int channel, const char *text, size_t n)
{
    struct remote_turn *turn = in->arg;
    struct talk *talk = &turn->remote->talk;
    if (!turn->begun && in->prompt.n)
        begin_turn(turn);
    show_text(turn, channel, text, n);
    LOCKED(&talk->mu);
    talk->view.trouble[0] = '\0';
    talk->view.tok_s = reply_tok_s(in->n_token ? in->n_token : in->n_text,
                                   (in->ns_last - in->ns_first) / 1000);
}

static void turn_progress(struct incoming *in, int64_t done, int64_t total)
{
    struct remote_turn *turn = in->arg;
    struct event ev = talk_event(&turn->remote->talk, EV_PREFILL);
    ev.done = (int)done;
    ev.total = (int)total;
    talk_post(&turn->remote->talk, &ev);
}

static void turn_notice(struct incoming *in, const char *line)
{
    struct remote *remote = ((struct remote_turn *)in->arg)->remote;
    set_trouble(remote, line);
    talk_notice(&remote->talk, line);
}

static void answer_turn(struct talk *talk, bool regen, struct talk_reply *out)
{
    static const struct incoming_news news = {turn_text, turn_progress, turn_notice};
    struct remote *remote = remote_of(talk);
    struct incoming in;
    struct remote_turn turn = {.remote = remote, .out = out, .in = &in, .regen = regen,
                               .ns_sent = clock_ns()};
    FREED(free_at) struct said *said = NULL;
    FREED(buf_free) struct buf body = {0}, ask = {0};
    int n = messages(talk, NULL, &said);
    /* a regenerated reply needs other random numbers: the turn's number changes the seed */
    int64_t seed = talk->view.settings.seed + (regen ? talk->view.turn : 0);
    incoming_init(&in);
    in.news = &news;
    in.arg = &turn;
    in.path = server_ask(&remote->server, said, n, &talk->view.settings, seed, &body);
    in.body = body.p;
    turn.ask = (struct http_call){
        .method = "POST", .path = server_ask_prompt(&remote->server, said, n, &talk->view.settings,
                                                    &ask)};
    turn.ask.body = ask.p;
    look_for_prompt(&turn);
    page_pair_begin(&remote->pages, &remote->gauges);
    incoming_run(remote->http, &in, 1, 1, &talk->stop, turn_meanwhile, &turn);
    evq_flush(talk->base.screen); /* the last text is shown before the metrics are read */
    while (!turn.begun && !in.failed && !stop_asked(&talk->stop)) {
        turn_meanwhile(&turn);
        http_run(remote->http, 50);
    }
    begin_turn(&turn);
    http_end(remote->http, &turn.ask);
    end_reply(remote, &in, &turn.prompt, out);
    blocks_ids(&remote->blocks, in.prompt.n ? &in.prompt : &turn.prompt, &out->ids);
    incoming_free(&in);
    ids_free(&turn.prompt);
    buf_free(&turn.ask.answer);
}

/* ---- batches --------------------------------------------------------------------------------- */

struct remote_batch {
    struct talk *talk;
    struct incoming *in; /* (n) */
    struct buf *text;    /* (n) of the final channel */
    int n;
};

static void batch_text(struct incoming *in, int channel, const char *text, size_t n)
{
    struct remote_batch *batch = in->arg;
    int i = (int)(in - batch->in);
    struct event ev = talk_event(batch->talk, EV_BATCH_TEXT);
    ev.batch = (struct batch_rec){.index = i, .count = batch->n};
    ev.channel = channel;
    buf_add(&ev.text, text, n);
    if (channel == 0)
        buf_add(&batch->text[i], text, n);
    talk_post(batch->talk, &ev);
}

static void batch_notice(struct incoming *in, const char *line)
{
    talk_notice(((struct remote_batch *)in->arg)->talk, line);
}

static void post_batch_reply(struct remote_batch *batch, int i, struct event *end)
{
    const struct incoming *in = &batch->in[i];
    struct event ev = talk_event(batch->talk, EV_BATCH_REPLY);
    ev.batch = (struct batch_rec){.index = i, .count = batch->n,
                                  .n_prompt = reply_count(in->count.prompt),
                                  .n_reused = reply_count(in->count.cached),
                                  .n_tokens = incoming_tokens(in),
                                  .refused = in->failed && in->ns_first == 0};
    ev.batch.n_computed = max_int(0, ev.batch.n_prompt - ev.batch.n_reused);
    ev.reason = reply_stop(in);
    if (ev.batch.refused)
        buf_str(&ev.text, in->why.msg);
    else if (batch->text[i].n)
        buf_add(&ev.text, batch->text[i].p, batch->text[i].n);
    reply_ids(in, &ev.tokens);
    if (ev.tokens.n == in->n_token)
        ev.facts = reply_facts(in, 0, in->n_token);
    ids_cat(&ev.prompt, in->prompt.v, in->prompt.n);
    ev.n_drafted = reply_count(in->count.drafted);
    ev.n_accepted = reply_count(in->count.accepted);
    ev.n_steps = in->accepted.n ? in->accepted.n : reply_count(in->count.verifies);
    for (int k = 0; k < in->drafted.n; k++)
        ev.batch.n_spec += in->drafted.v[k] > 0;
    if (in->failed && !ev.batch.refused) { /* the reply has the text received so far */
        char *line = xasprintf("reply %d of %d broke off: %.500s", i + 1, batch->n, in->why.msg);
        talk_notice(batch->talk, line);
        free(line);
    }
    end->batch.n_done += !in->failed && !in->stopped;
    end->batch.n_tokens += ev.batch.n_tokens;
    end->batch.n_computed += ev.batch.n_computed;
    end->n_drafted += ev.n_drafted;
    end->n_accepted += ev.n_accepted;
    talk_post(batch->talk, &ev);
}

/* RQ_BATCH: count questions; RQ_SEVERAL: one question count times, each with its own seed. */
static void other(struct talk *talk, const struct request *rq)
{
    static const struct incoming_news news = {batch_text, NULL, batch_notice};
    struct remote *remote = remote_of(talk);
    bool several = rq->kind == RQ_SEVERAL;
    struct remote_batch batch = {.talk = talk, .n = rq->count};
    struct buf *body = xcalloc((size_t)batch.n + 1, sizeof *body);
    struct settings set = talk->view.settings;
    uint64_t begin = clock_ns();
    batch.in = xcalloc((size_t)batch.n + 1, sizeof *batch.in);
    batch.text = xcalloc((size_t)batch.n + 1, sizeof *batch.text);
    if (several && set.temperature <= 0)
        set.temperature = 0.8;
    struct event ev = talk_event(talk, EV_BATCH_BEGIN), end = talk_event(talk, EV_BATCH_END);
    ev.batch.count = end.batch.count = batch.n;
    talk_post(talk, &ev);
    for (int i = 0; i < batch.n; i++) {
        struct said *said;
        int n = messages(talk, several ? rq->text : rq->prompts[i], &said);
        incoming_init(&batch.in[i]);
        batch.in[i].news = &news;
        batch.in[i].arg = &batch;
        batch.in[i].path = server_ask(&remote->server, said, n, &set, set.seed + (several ? i : 0),
                                      &body[i]);
        batch.in[i].body = body[i].p;
        free(said);
    }
    incoming_run(remote->http, batch.in, batch.n, remote->at_once, &talk->stop, meanwhile, remote);
    for (int i = 0; i < batch.n; i++) {
        post_batch_reply(&batch, i, &end);
        incoming_free(&batch.in[i]);
        buf_free(&batch.text[i]);
        buf_free(&body[i]);
    }
    end.reason = end.batch.n_done == batch.n ? STOP_END : stop_asked(&talk->stop) ? STOP_CANCEL
                 : STOP_FAULT;
    end.us_decode = (clock_ns() - begin) / 1000;
    talk_post(talk, &end);
    FREE(batch.in, batch.text, body);
}

/* ---- the backend ----------------------------------------------------------------------------- */

static const char *refuses(struct talk *talk, const struct request *rq)
{
    static _Thread_local char why[160];
    const struct remote *remote = remote_of(talk);
    char name[64];
    switch (rq->kind) {
    case RQ_SET:
        snprintf(name, sizeof name, "%.*s", (int)strcspn(rq->text, "="), rq->text);
        if (settings_index(name) < 0 || server_knows(&remote->server, name))
            return NULL; /* an unknown name is reported elsewhere, as for every backend */
        snprintf(why, sizeof why, "%s has no setting %s", server_kind_name(remote->server.kind),
                 name);
        return why;
    case RQ_CALIBRATE: return "a draft head of a server cannot be calibrated from here";
    default: return NULL;
    }
}

static void posted(struct talk *talk, const struct event *ev)
{
    static const struct ids none;
    kept_event(&remote_of(talk)->kept, ev);
    if (ev->kind == EV_SESSION)
        blocks_ids(&remote_of(talk)->blocks, &none, &none);
    if (ev->kind == EV_STEP) {
        pthread_mutex_lock(&talk->mu);
        talk->view.step = ev->step;
        pthread_mutex_unlock(&talk->mu);
    }
}

static const char *token_text(struct talk *talk, int32_t id, size_t *n)
{
    return kept_token(&remote_of(talk)->kept, id, n);
}

static void closed(struct talk *talk)
{
    struct remote *remote = remote_of(talk);
    kept_close(&remote->kept);
    for (int v = 0; v < N_VIEWS; v++)
        free(remote->lacks[v]);
    if (remote->http) {
        gauges_close(&remote->gauges, remote->http);
        page_pair_close(&remote->pages);
    }
    http_close(remote->http);
    blocks_close(&remote->blocks);
    server_free(&remote->server);
    FREE(remote->about, remote->device);
    buf_free(&remote->facts);
}

static void fill_info(struct remote *remote)
{
    struct backend_info *i = &remote->talk.base.info;
    remote->about = xasprintf("%s%s%s", server_kind_name(remote->server.kind),
                              remote->server.version[0] ? " " : "", remote->server.version);
    remote->device = xstrdup(http_url(remote->http));
    server_facts_json(&remote->server, &remote->facts);
    i->model_dir = remote->server.model;
    i->served_models = remote->server.models.p;
    i->family = remote->about;
    i->device = remote->device;
    i->chat = "server";
    i->backend = "remote";
    i->context = remote->server.context;
    i->server_kind = server_kind_name(remote->server.kind);
    i->server_version = remote->server.version;
    i->server_url = remote->device;
    i->server_facts = remote->facts.p;
    page_pair_open(&remote->pages, &remote->server);
}

static void ledger(struct backend *backend, struct pool_view pool[N_POOLS])
{
    gauges_pools(&((struct remote *)backend)->gauges, pool);
}

static void view_gauges(struct backend *backend, struct gauges_view *v)
{
    gauges_view(&((struct remote *)backend)->gauges, v);
}

static int gauge_samples(struct backend *backend, struct gauge_sample *out, int max)
{
    return gauges_samples(&((struct remote *)backend)->gauges, out, max);
}

static struct remote_kept *kept_of(struct backend *backend)
{
    return &((struct remote *)backend)->kept;
}

static int latest_steps(struct backend *backend, struct step_info *out, int max)
{
    return kept_steps(kept_of(backend), out, max);
}

static void step_range(struct backend *backend, struct step_range *out)
{
    kept_range(kept_of(backend), out);
}

static bool step_of(struct backend *backend, int turn, int step, struct step_view *out)
{
    return kept_step(kept_of(backend), turn, step, out);
}

static int served_turns(struct backend *backend, struct served_turn *out, int max)
{
    return kept_turns(kept_of(backend), out, max);
}

static struct tops *step_tops(struct backend *backend, int turn, int step)
{
    return kept_tops(kept_of(backend), turn, step);
}

/* The reasons for views that exist for no server: one line each, with the server's name. */
static void fill_lacks(struct remote *remote)
{
    static const struct { enum backend_view view; const char *what; } never[] = {
        {VIEW_TREES, "%s reports no draft trees; no server does, only the local engine shows them"},
        {VIEW_PAGES, "%s reports no page tables; no server does, only the local engine shows them"},
        {VIEW_PLAN, "%s reports no plans of its passes; no server does"},
        {VIEW_CHECK, "%s reports sums of its pools, no page tables, so there is nothing to check"},
        {VIEW_DEBUG, "%s cannot pause a turn or go back in it; only the local engine can"},
        {VIEW_PROBE, "%s cannot run a step again to look inside; only the local engine can"},
        {VIEW_FAULTS, "%s has no historical faults to switch on: they are switches of the local "
                      "engine"},
        {VIEW_JOBS, "clients of %s ask the server itself"},
    };
    struct backend *backend = &remote->talk.base;
    bool events = remote->server.kind == SERVER_VLLM || remote->server.kind == SERVER_SGLANG;
    for (size_t i = 0; i < LEN(never); i++) {
        enum backend_view v = never[i].view;
        const char *at = strstr(never[i].what, "%s");
        remote->lacks[v] = xasprintf("%.*s%s%s%s", (int)(at - never[i].what), never[i].what,
                                     remote->about, at + 2,
                                     v == VIEW_PAGES && events ? "; --kv-events shows its blocks"
                                     : "");
        backend->lacks[v] = remote->lacks[v];
    }
    backend->lacks[VIEW_ACCEPT] = server_lacks(&remote->server, REPORT_ACCEPT_REQUEST);
    backend->lacks[VIEW_POOLS] = server_lacks(&remote->server, REPORT_POOLS);
}

static void view_blocks(struct backend *backend, struct blocks_view *v)
{
    kv_feed_view(&((struct remote *)backend)->blocks.feed, v);
}

static int block_samples(struct backend *backend, struct block_sample *out, int max)
{
    return kv_feed_samples(&((struct remote *)backend)->blocks.feed, out, max);
}

static int session_blocks(struct backend *backend, struct session_block *out, int max)
{
    return kv_feed_chain(&((struct remote *)backend)->blocks.feed, out, max);
}

static void fill_views(struct remote *remote)
{
    static const struct blocks_ops blocks = {view_blocks, block_samples, session_blocks};
    static const struct pools_ops pools = {ledger};
    static const struct gauges_ops gauges = {view_gauges, gauge_samples};
    static const struct steps_ops steps = {latest_steps, step_range, step_of};
    struct backend *backend = &remote->talk.base;
    fill_lacks(remote);
    remote->served = (struct served_ops){served_turns, step_tops,
                                         server_rate_formula(remote->server.kind),
                                         server_length_formula(remote->server.kind)};
    remote->kept.length = server_length(remote->server.kind);
    backend->steps = &steps;
    backend->served = &remote->served;
    backend->lacks[VIEW_BLOCKS] = blocks_lacks(&remote->blocks);
    backend->lacks[VIEW_GAUGES] = remote->server.answers[REPORT_POOLS]
                                           ? NULL : server_lacks(&remote->server, REPORT_METRICS);
    backend->blocks = backend->lacks[VIEW_BLOCKS] ? NULL : &blocks;
    backend->pools = backend->lacks[VIEW_POOLS] ? NULL : &pools;
    backend->gauges = backend->lacks[VIEW_GAUGES] ? NULL : &gauges;
}

static const struct talk_hooks hooks = {.refuses = refuses, .answer = answer_turn, .other = other,
                                        .idle = idle, .wake = wake, .posted = posted,
                                        .token = token_text,
                                        .closed = closed};

struct backend *remote_open(const struct engine_opts *opts, struct err *e)
{
    struct remote *remote = xcalloc(1, sizeof *remote);
    remote->talk.hooks = &hooks;
    remote->talk.view.settings = opts->settings;
    remote->at_once = opts->lanes ? opts->lanes : AT_ONCE;
    if (blocks_open(&remote->blocks, opts->server.kv_events, e) &&
        server_http(&remote->http, &opts->server, e)) {
        gauges_open(&remote->gauges);
        kept_open(&remote->kept);
        if (server_probe(&remote->server, remote->http, opts->model, e)) {
            gauges_first(&remote->gauges, &remote->server, remote->talk.view.settings.gauge_ms);
            fill_info(remote);
            fill_views(remote);
            if (talk_open(&remote->talk, opts->log, e)) {
                if (http_warning(remote->http))
                    talk_notice(&remote->talk, http_warning(remote->http));
                return &remote->talk.base;
            }
        }
        closed(&remote->talk);
    }
    blocks_close(&remote->blocks);
    free(remote);
    return NULL;
}
