/* clients.c - jobs of clients (engine/job.h): from jobs_ops.start() to EV_JOB_END.
 *
 * Clients' jobs and the conversation's requests alternate: while a request waits, no further job is
 * admitted; when no job runs any more, the request is served, and then the waiting jobs go on. A
 * request finds the pools as before the first job: the jobs' resident states are freed first. */
#include <limits.h>
#include <math.h>

#include "engine/thread/internal.h"

struct client {
    struct job job; /* first */
    uint64_t id;
    int top;
    struct prompt_scores scores;
    uint64_t ns_start;
    bool begin_posted; /* EV_JOB_BEGIN was */
};

struct clients {
    struct jobs jobs;
    struct job *job[MAX_JOBS];
    struct err why; /* of a round that failed */
};

/* ---- events ---------------------------------------------------------------------------------- */

static struct client *client_of(const struct job *j)
{
    return (struct client *)(uintptr_t)j;
}

static struct event job_event(struct engine *engine, const struct client *c, enum event_kind kind)
{
    struct event ev = engine_event(engine, kind);
    ev.job = xcalloc(1, sizeof *ev.job);
    ev.job->id = c->id;
    ev.job->n_prompt = c->job.prompt.n;
    ev.job->n_reused = c->job.n_reused;
    return ev;
}

static void post_begin(struct jobs *js, struct job *j)
{
    struct client *c = client_of(j);
    if (c->begin_posted)
        return;
    c->begin_posted = true;
    struct event ev = job_event(js->g, c, EV_JOB_BEGIN);
    ev.job->prompt_fact = c->scores.fact;
    ev.job->top = c->scores.top;
    ev.job->n_top = c->scores.k;
    c->scores = (struct prompt_scores){0};
    evq_put(js->g->base.screen, &ev);
}

static void post_step(struct jobs *js, struct job *j, const struct lane *lane)
{
    post_begin(js, j);
    const struct client *c = client_of(j);
    struct event ev = job_event(js->g, c, EV_JOB_STEP);
    ev.step = j->n_steps;
    ev.rec = lane->rec;
    ids_cat(&ev.tokens, lane->tok.v + lane->tok.n - lane->n_new, lane->n_new);
    ev.facts = facts_copy(lane->fact, lane->n_new);
    if (c->top) {
        ev.job->n_top = c->top;
        ev.job->top = xcalloc((size_t)lane->n_new * (size_t)c->top, sizeof *ev.job->top);
        lane_best(js->r, lane, c->top, ev.job->top);
    }
    if (lane->tree.n > 1)
        ev.tree = xcopy(&lane->tree, 1, sizeof lane->tree);
    evq_put(js->g->base.screen, &ev);
}

static int64_t microseconds(uint64_t from, uint64_t to)
{
    return to > from ? (int64_t)((to - from) / 1000) : 0;
}

static void post_end(struct jobs *js, struct job *j)
{
    struct client *c = client_of(j);
    struct event ev = job_event(js->g, c, EV_JOB_END);
    const struct clients *all = js->g->own.clients;
    uint64_t now = clock_ns(), begin = j->ns_begin ? j->ns_begin : now;
    uint64_t begun = j->ns_begun ? j->ns_begun : now;
    ev.reason = j->reason;
    if (j->refused)
        buf_add(&ev.text, j->why.p, j->why.n);
    else if (j->reason == STOP_FAULT || j->reason == STOP_DEVICE)
        buf_str(&ev.text, all->why.msg);
    ev.n_steps = ev.job->n_steps = j->n_steps;
    ev.n_drafted = ev.job->n_drafted = j->n_drafted;
    ev.n_accepted = ev.job->n_accepted = j->n_accepted;
    ev.job->n_generated = job_generated(j, &j->tok);
    ev.job->us_wait = microseconds(c->ns_start, begin);
    ev.job->us_prefill = microseconds(begin, begun);
    ev.job->us_decode = microseconds(begun, now);
    evq_put(js->g->base.screen, &ev);
}

static const struct job_owner owner = {.stepped = post_step, .prompted = post_begin,
                                       .ended = post_end};

/* ---- the engine's thread --------------------------------------------------------------------- */

static struct jobs *open_jobs(struct engine *engine)
{
    if (!engine->own.clients) {
        struct clients *c = engine->own.clients = xcalloc(1, sizeof *c);
        c->jobs = (struct jobs){.g = engine, .r = &engine->own.runtime, .set = &engine->shared.set,
                                .owner = &owner,
                                .lanes = max_int(1, min_int(engine->lanes, JOB_LANES)),
                                .job = c->job};
    }
    if (!jobs_opened(&engine->own.clients->jobs))
        jobs_open(&engine->own.clients->jobs);
    return &engine->own.clients->jobs;
}

/* Takes over the jobs that were started since the last call. Returns whether a request or the end
 * of the thread waits. */
static bool take_arrived(struct engine *engine, struct jobs *js)
{
    struct inbox *in = &engine->inbox;
    int before = js->n;
    pthread_mutex_lock(&in->mu);
    for (; in->n_taken < in->n_client; in->n_taken++)
        js->job[js->n++] = &in->client[in->n_taken]->job;
    bool waits = in->n > 0 || in->closing;
    pthread_mutex_unlock(&in->mu);
    for (int i = before; i < js->n; i++)
        if (!job_fits_context(js, js->job[i]))
            post_end(js, js->job[i]);
    return waits;
}

static void free_client(struct client *c)
{
    job_free(&c->job);
    FREE(c->scores.fact, c->scores.top, c);
}

static void drop_ended(struct engine *engine, struct jobs *js)
{
    struct inbox *in = &engine->inbox;
    int n = 0, kept = 0;
    for (int i = 0; i < js->n; i++)
        if (js->job[i]->state != JOB_DONE)
            js->job[n++] = js->job[i];
    if (n == js->n)
        return;
    js->n = n;
    LOCKED(&in->mu);
    for (int i = 0; i < in->n_client; i++) {
        struct client *c = in->client[i];
        if (i < in->n_taken && c->job.state == JOB_DONE)
            free_client(c);
        else
            in->client[kept++] = c;
    }
    in->n_taken -= in->n_client - kept;
    in->n_client = kept;
}

static void end_stopped(struct engine *engine, struct jobs *js)
{
    for (int i = 0; i < js->n; i++)
        if (js->job[i]->state != JOB_DONE && engine->own.lost)
            jobs_end(js, js->job[i], STOP_DEVICE);
        else if (js->job[i]->state != JOB_DONE && job_stopped(js, js->job[i]))
            jobs_end(js, js->job[i], STOP_CANCEL);
}

/* After a round that failed: ends the jobs that it ran; the others go on unless the device is
 * lost. */
static void fail(struct engine *engine, struct jobs *js, const struct err *e)
{
    engine->own.clients->why = *e;
    engine_fail(engine, e);
    for (int i = 0; i < js->n; i++) {
        struct job *j = js->job[i];
        if (j->state == JOB_LIVE || (j == js->failed && j->state == JOB_WAITS))
            jobs_end(js, j, engine->own.lost ? STOP_DEVICE : STOP_FAULT);
    }
    while (jobs_give_state(js))
        ;
}

void engine_jobs(struct engine *engine)
{
    struct jobs *js = open_jobs(engine);
    for (bool first = true;; first = false) {
        bool waits = take_arrived(engine, js);
        struct err e = {0};
        end_stopped(engine, js);
        drop_ended(engine, js);
        if (js->n == 0 || (waits && !first && js->n_live == 0))
            break;
        if (!jobs_round(js, first || !waits, &e))
            fail(engine, js, &e);
    }
}

void engine_jobs_rest(struct engine *engine)
{
    struct err e;
    if (engine->own.clients && jobs_opened(&engine->own.clients->jobs) &&
        !jobs_close(&engine->own.clients->jobs, &e))
        engine_fail(engine, &e);
}

void engine_jobs_free(struct engine *engine)
{
    struct inbox *in = &engine->inbox;
    struct clients *all = engine->own.clients;
    if (all) {
        end_stopped(engine, &all->jobs); /* closing has cancelled all */
        engine_jobs_rest(engine);
    }
    while (in->n_client)
        free_client(in->client[--in->n_client]);
    free(all);
    engine->own.clients = NULL;
}

/* ---- the caller's thread --------------------------------------------------------------------- */

static bool within(const char *what, double v, double lo, double hi, struct err *e)
{
    return (v >= lo && v <= hi) ||
           err_set(e, ERR_USAGE, "%s %g: expected %g to %g", what, v, lo, hi);
}

static bool valid(const struct engine *engine, const struct job_ask *a, struct err *e)
{
    int vocab = engine->loaded.model.cfg.vocab;
    if (a->prompt.n < 1)
        return err_set(e, ERR_USAGE, "the prompt is empty: expected at least 1 token");
    for (int i = 0; i < a->prompt.n; i++)
        if (a->prompt.v[i] < 0 || a->prompt.v[i] >= vocab)
            return err_set(e, ERR_USAGE, "prompt token %d is %d: expected 0 to %d", i,
                           a->prompt.v[i], vocab - 1);
    return within("temperature", a->temperature, 0, 100, e) &&
           within("top_p", a->top_p, 0, 1, e) && within("min_p", a->min_p, 0, 1, e) &&
           within("top_k", a->top_k, 0, INT_MAX, e) &&
           within("presence_penalty", a->penalties.presence, -2, 2, e) &&
           within("frequency_penalty", a->penalties.frequency, -2, 2, e) &&
           within("repetition_penalty", a->penalties.repetition, 0, 100, e) &&
           within("the number of biases", a->penalties.bias.n, 0, MOST_BIAS, e) &&
           within("the number of tokens", a->most, -1, INT_MAX, e) &&
           within("the number of best tokens", a->top, 0, JOB_TOP, e) &&
           within("the number of best tokens of the prompt", a->prompt_top, -1, JOB_TOP, e);
}

static void ask_scores(struct client *c, int n, int k)
{
    struct prompt_scores *s = &c->scores;
    *s = (struct prompt_scores){.n = n, .k = k, .fact = xcalloc((size_t)n, sizeof *s->fact)};
    s->fact[0] = (struct token_fact){.logp = NAN, .rival = -1, .rival_logp = NAN};
    if (k)
        s->top = xcalloc((size_t)n * (size_t)k, sizeof *s->top);
    for (int i = 0; i < k; i++)
        s->top[i] = (struct job_token){.id = -1, .logp = NAN};
    c->job.scores = s;
}

static struct client *make_client(struct job_ask *a, struct grammar *grammar)
{
    struct client *c = xcalloc(1, sizeof *c);
    c->id = a->id;
    c->top = a->top;
    c->ns_start = clock_ns();
    c->job.prompt = a->prompt;
    ids_cat(&c->job.tok, a->prompt.v, a->prompt.n);
    c->job.how = (struct sampling){a->temperature, a->top_k, a->top_p, a->min_p};
    c->job.penalties = a->penalties;
    c->job.grammar = grammar;
    c->job.seed = a->seed;
    c->job.most = a->most < 0 ? INT_MAX : a->most;
    c->job.run_on = a->run_on;
    if (a->prompt_top >= 0)
        ask_scores(c, a->prompt.n, a->prompt_top);
    *a = (struct job_ask){0};
    return c;
}

/* Lock held. */
static bool takes(const struct inbox *in, uint64_t id, struct err *e)
{
    if (in->n_client == MAX_JOBS)
        return err_set(e, ERR_NEGATIVE, "%d jobs are waiting or running already", MAX_JOBS);
    for (int i = 0; i < in->n_client; i++)
        if (in->client[i]->id == id)
            return err_set(e, ERR_USAGE, "a job with the id %llu has not ended yet",
                           (unsigned long long)id);
    return true;
}

static bool local_start(struct backend *b, struct job_ask *ask, struct err *e)
{
    struct engine *engine = engine_of(b);
    struct inbox *in = &engine->inbox;
    struct grammar *grammar = NULL;
    bool ok = valid(engine, ask, e) &&
              (!ask->format || constrain_compile(&engine->loaded, ask->format, &ask->prompt,
                                                 &grammar, e));
    if (ok) {
        pthread_mutex_lock(&in->mu);
        ok = takes(in, ask->id, e);
        if (ok) {
            free(ask->format);
            struct client *c = in->client[in->n_client++] = make_client(ask, grammar);
            c->job.number = atomic_fetch_add(&engine->stop.submitted, 1) + 1;
            pthread_cond_signal(&in->filled);
        }
        pthread_mutex_unlock(&in->mu);
    }
    if (!ok) {
        free(ask->format);
        grammar_close(grammar);
    }
    ids_free(&ask->prompt);
    *ask = (struct job_ask){0};
    return ok;
}

static void local_cancel_job(struct backend *b, uint64_t id)
{
    struct inbox *in = &engine_of(b)->inbox;
    LOCKED(&in->mu);
    for (int i = 0; i < in->n_client; i++)
        if (in->client[i]->id == id)
            atomic_store(&in->client[i]->job.cancelled, true);
}

static const struct chat *local_chat_format(struct backend *b)
{
    return engine_of(b)->loaded.chat;
}

static const struct tokenizer *local_tokenizer(struct backend *b)
{
    return engine_of(b)->loaded.tok;
}

const struct jobs_ops local_jobs = {.start = local_start, .cancel = local_cancel_job,
                                    .chat = local_chat_format, .tokenizer = local_tokenizer};
