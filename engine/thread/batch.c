/* batch.c - several replies at once, outside the conversation: the chat's /n (RQ_SEVERAL) and
 * `aerie run --batch` (RQ_BATCH). Every reply is a job (jobs.h).
 *
 * The head is the common prefix of all prompts: a fork of the conversation's newest state that all
 * prompts begin with (its pages are shared, nothing of it is computed again), extended by the other
 * tokens that the prompts have in common. Lanes fork the head. The engine's thread. */
#include <limits.h>

#include "engine/thread/internal.h"

/* One reply. */
struct batch_reply {
    struct job job; /* first */
    struct chat_reader reader;
    bool reading;    /* the reader is open */
    struct buf text; /* of the final channel, or why the prompt was refused */
    int n_read;      /* tokens of the reply that the reader has taken */
    struct batch_rec rec;
    struct token_fact *fact; /* (n_fact) of the generated tokens */
    int n_fact;
    struct draft_report drafts;
};

struct batch {
    struct jobs jobs;
    struct engine *g;
    struct batch_reply *reply; /* (n) */
    int n;
    int n_reported; /* replies [0, n_reported) have had their EV_BATCH_REPLY */
    int n_shared;   /* pages of the head, which all lanes share when they begin */
    uint64_t ns;
};

static struct batch_reply *reply_of(struct job *j)
{
    return (struct batch_reply *)j;
}

/* ---- replies --------------------------------------------------------------------------------- */

static bool stopped(const struct batch *b)
{
    return stop_asked(&b->g->stop);
}

/* Keeps the facts of the tokens that the lane's last pass appended. */
static void take_facts(struct batch_reply *reply, const struct lane *lane)
{
    for (int i = 0; i < lane->n_new; i++)
        *APPEND(reply->fact, reply->n_fact) = lane->fact[i];
}

/* The reply's text up to the last token of *tok. */
static void read_text(struct engine *engine, struct batch_reply *reply, const struct ids *tok)
{
    if (!reply->reading) {
        chat_reader_init(&reply->reader, engine->loaded.chat);
        chat_reader_follow(&reply->reader, &reply->job.prompt);
    }
    reply->reading = true;
    int from = reply->job.prompt.n + reply->n_read;
    engine_post_tokens(engine, &reply->reader, tok->v + from, tok->n - from, &reply->text,
                       &reply->rec);
    reply->n_read = job_generated(&reply->job, tok);
}

static void take_step(struct jobs *js, struct job *j, const struct lane *lane)
{
    take_facts(reply_of(j), lane);
    reply_of(j)->rec.n_computed = j->n_computed;
    reply_of(j)->rec.n_spec = j->n_spec;
    draft_report_add(&reply_of(j)->drafts, &lane->rec, tree_depth(&lane->tree));
    if (lane->rec.kind != STEP_PREFILL)
        read_text(js->g, reply_of(j), &lane->tok);
}

static void take_refusal(struct batch_reply *reply)
{
    buf_clear(&reply->text);
    buf_str(&reply->text, reply->job.why.p);
    reply->rec.refused = true;
}

static void take_end(struct jobs *js, struct job *j)
{
    struct batch_reply *reply = reply_of(j);
    reply->rec.n_computed = j->n_computed;
    if (j->refused) {
        take_refusal(reply);
        return;
    }
    read_text(js->g, reply, &j->tok);
    engine_post_held(js->g, &reply->reader, &reply->text, &reply->rec);
    reply->reading = false;
    reply->rec.n_tokens = job_generated(j, &j->tok);
}

static const struct job_owner owner = {.stepped = take_step, .ended = take_end};

static bool add_reply(struct batch *b, int i, const struct request *rq, const char *question,
                      struct err *e)
{
    struct batch_reply *reply = &b->reply[i];
    const struct settings *set = b->jobs.set;
    reply->rec = (struct batch_rec){.index = i, .count = b->n};
    reply->job.number = rq->number;
    reply->job.seed = (uint64_t)set->seed;
    reply->job.most = set->max_tokens > 0 ? set->max_tokens : INT_MAX;
    reply->job.how = (struct sampling){(float)set->temperature, set->top_k, (float)set->top_p,
                                       (float)set->min_p};
    settings_penalties(set, &reply->job.penalties);
    bool ok = session_render(&b->g->own.ses, question, &reply->job.prompt, e);
    if (!ok && e->kind != ERR_USAGE)
        return false;
    if (!ok)
        job_refuse(&reply->job, STOP_CONTEXT, e->msg);
    reply->rec.n_prompt = reply->job.prompt.n;
    if (!ok || !job_fits_context(&b->jobs, &reply->job))
        take_refusal(reply);
    ids_cat(&reply->job.tok, reply->job.prompt.v, reply->job.prompt.n);
    return true;
}

static void report_reply(struct batch *b, const struct batch_reply *reply)
{
    const struct job *j = &reply->job;
    struct event ev = engine_event(b->g, EV_BATCH_REPLY);
    ev.batch = reply->rec;
    ev.reason = j->reason;
    buf_add(&ev.text, reply->text.p, reply->text.n);
    if (!reply->rec.refused)
        ids_cat(&ev.tokens, j->tok.v + j->prompt.n, reply->rec.n_tokens);
    if (!reply->rec.refused && reply->n_fact == reply->rec.n_tokens)
        ev.facts = facts_copy(reply->fact, reply->n_fact);
    ids_cat(&ev.prompt, j->prompt.v, j->prompt.n);
    ev.n_steps = j->n_steps;
    ev.n_drafted = j->n_drafted;
    ev.n_accepted = j->n_accepted;
    if (reply->drafts.all.cycles)
        ev.drafts = xcopy(&reply->drafts, 1, sizeof reply->drafts);
    engine_post(b->g, &ev);
}

/* Posts complete replies in the order of the prompts: a reply waits for those before it. */
static void report_done(struct batch *b)
{
    for (; b->n_reported < b->n && b->jobs.job[b->n_reported]->state == JOB_DONE; b->n_reported++)
        report_reply(b, &b->reply[b->n_reported]);
}

/* ---- the head -------------------------------------------------------------------------------- */

/* The number of tokens that all prompts have in common, at most all but the last of each; *first:
 * one of the prompts. */
static int common(const struct batch *b, const struct job **first)
{
    int n = 0;
    *first = NULL;
    for (int i = 0; i < b->n; i++) {
        const struct job *j = &b->reply[i].job;
        if (j->state == JOB_DONE)
            continue;
        if (!*first)
            n = (*first = j)->prompt.n - 1;
        int same = 0;
        while (same < min_int(n, j->prompt.n - 1) && j->prompt.v[same] == (*first)->prompt.v[same])
            same++;
        n = same;
    }
    return n;
}

/* Makes the head. It is extended beyond the conversation's state if the other common tokens are a
 * whole prompt or at least a page. If a pool is short, the head ends early. */
static bool share_head(struct batch *b, struct err *e)
{
    struct jobs *js = &b->jobs;
    struct lane *head = &js->state[0];
    const struct job *first;
    int n = common(b, &first);
    *head = (struct lane){.tap_row = -1, .seq.holder = HOLDER_BATCH};
    if (!first)
        return true;
    struct lane *from = session_resident(&b->g->own.ses,
                                         &(struct ids){.v = first->prompt.v, .n = n + 1},
                                         jobs_draft(js));
    if (from)
        lane_park(js->r, from);
    pass_lock(&js->r->pass);
    js->n_state = 1;
    if (from)
        lane_fork_as(js->r, from, head, HOLDER_BATCH);
    pass_unlock(&js->r->pass);
    int reused = head->seq.committed;
    for (int i = 0; i < b->n; i++)
        b->reply[i].rec.n_reused = reused;
    head->tok.n = 0;
    ids_cat(&head->tok, first->prompt.v, first->prompt.n);
    bool ok = true;
    if (b->n > 1 && n > reused && (n + 1 == first->prompt.n || n >= js->r->kv.page_size))
        ok = jobs_extend(js, head, first, n, false, e);
    lane_park(js->r, head);
    b->n_shared = b->n > 1 ? head->seq.committed / js->r->kv.page_size : 0;
    if (head->seq.committed == 0)
        jobs_give_state(js);
    if (ok || e->kind != ERR_NEGATIVE || stopped(b))
        return ok;
    *e = (struct err){0};
    return true;
}

static bool run_batch(struct batch *b, struct err *e)
{
    uint64_t start = clock_ns();
    bool ok = share_head(b, e);
    struct event ev = engine_event(b->g, EV_BATCH_BEGIN);
    ev.batch = (struct batch_rec){.count = b->n, .n_reused = b->n ? b->reply[0].rec.n_reused : 0,
                                  .n_shared = b->n_shared};
    engine_post(b->g, &ev);
    while (ok && b->n_reported < b->n && !stopped(b)) {
        ok = jobs_round(&b->jobs, true, e);
        report_done(b);
    }
    b->ns = clock_ns() - start;
    return ok && b->n_reported == b->n;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Posts EV_BATCH_REPLY for every reply that was not reported yet: for replies that were stopped
 * with the text generated so far, and for complete ones that waited for an earlier reply. */
static void report_rest(struct batch *b, enum stop_reason why)
{
    for (int i = b->n_reported; i < b->n; i++) {
        struct job *j = &b->reply[i].job;
        if (j->state == JOB_LIVE ||
            (j->state == JOB_WAITS && job_generated(j, job_tokens(&b->jobs, j)) > 0))
            jobs_end(&b->jobs, j, why);
    }
    for (; b->n_reported < b->n; b->n_reported++)
        if (b->reply[b->n_reported].job.state == JOB_DONE)
            report_reply(b, &b->reply[b->n_reported]);
}

static void post_end(struct batch *b, enum stop_reason why)
{
    struct event ev = engine_event(b->g, EV_BATCH_END);
    ev.reason = why;
    ev.batch.count = b->n;
    ev.batch.n_computed = b->jobs.n_computed;
    ev.batch.n_shared = b->n_shared;
    FOR_EACH(const struct batch_reply, reply, b->reply, b->n) {
        const struct job *j = &reply->job;
        ev.batch.n_done += j->state == JOB_DONE && !reply->rec.refused && j->reason <= STOP_CONTEXT;
        ev.batch.n_tokens += reply->rec.n_tokens;
        ev.batch.n_spec += j->n_spec;
        ev.n_steps += j->n_steps;
        ev.n_drafted += j->n_drafted;
        ev.n_accepted += j->n_accepted;
    }
    ev.us_decode = b->ns / 1000;
    engine_post(b->g, &ev);
}

static void free_batch(struct batch *b)
{
    FOR_EACH(struct batch_reply, reply, b->reply, b->n) {
        if (reply->reading)
            chat_reader_end(&reply->reader, &reply->text);
        job_free(&reply->job);
        buf_free(&reply->text);
        free(reply->fact);
    }
    FREE(b->reply, b->jobs.job, b);
}

/* Runs the jobs, posts their results and the end, and leaves the pools as they were. */
static void serve(struct batch *b, bool ok, struct err *e)
{
    struct engine *engine = b->g;
    jobs_open(&b->jobs);
    ok = ok && run_batch(b, e);
    enum stop_reason why = !ok && stopped(b) ? STOP_CANCEL : STOP_END;
    if (!ok && why == STOP_END) {
        engine_fail(engine, e);
        why = engine->own.lost ? STOP_DEVICE : STOP_FAULT;
    }
    report_rest(b, why);
    struct err leak;
    if (!jobs_close(&b->jobs, &leak)) {
        engine_fail(engine, &leak);
        why = STOP_FAULT;
    }
    post_end(b, why);
}

static struct batch *open_batch(struct engine *engine, int n, int lanes)
{
    struct batch *b = xcalloc(1, sizeof *b);
    size_t some = (size_t)max_int(1, n);
    b->g = engine;
    b->n = n;
    b->reply = xcalloc(some, sizeof *b->reply);
    b->jobs = (struct jobs){.g = engine, .r = &engine->own.runtime, .set = &engine->shared.set,
                            .owner = &owner,
                            .lanes = lanes, .head = true, .n = n,
                            .job = xcalloc(some, sizeof *b->jobs.job)};
    for (int i = 0; i < n; i++)
        b->jobs.job[i] = &b->reply[i].job;
    return b;
}

void engine_batch(struct engine *engine, const struct request *rq)
{
    struct err e = {0};
    struct batch *b = open_batch(engine, rq->count, max_int(1, min_int(engine->lanes, JOB_LANES)));
    bool ok = true;
    for (int i = 0; i < b->n && ok && !stopped(b); i++)
        ok = add_reply(b, i, rq, rq->prompts[i], &e);
    serve(b, ok && !stopped(b), &e);
    free_batch(b);
}

void engine_several(struct engine *engine, const struct request *rq)
{
    struct err e = {0};
    CHECK(rq->count >= 1 && rq->count <= JOB_LANES);
    struct batch *b = open_batch(engine, rq->count, rq->count);
    bool ok = true;
    for (int i = 0; i < b->n && ok && !stopped(b); i++) {
        struct job *j = &b->reply[i].job;
        ok = add_reply(b, i, rq, rq->text ? rq->text : "", &e);
        j->seed += (uint64_t)i;
        if (j->most == INT_MAX)
            j->most = 1024;
        if (j->how.temperature <= 0) /* greedy replies would all be the same */
            j->how.temperature = 0.8f;
    }
    if (b->reply[0].rec.refused) /* RQ_SEVERAL: all prompts are the same */
        engine_notice(engine, b->reply[0].text.p);
    else
        serve(b, ok && !stopped(b), &e);
    free_batch(b);
}
