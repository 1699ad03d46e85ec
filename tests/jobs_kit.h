/* jobs_kit.h - for tests of jobs: an engine, the results of each job, and kernels that a test can
 * hold or falsify. */
#pragma once

#include "tests/serve_kit.h"

#include <math.h>
#include <unistd.h>

static const char *precision = "f32";

enum { N_JOBS = 20, CONTEXT = 224, REPLY = 40 };

/* ---- a spy on the CPU's kernels -------------------------------------------------------------- */

static struct {
    struct kernels k;
    atomic_int calls, hold_at; /* the number of the attention call that waits; 0: none */
    bool spoils;               /* falsify: the last of several rows depends on its neighbours */
} spy;

static inline void spy_attn(struct kdev *d, const struct k_attn *a)
{
    size_t n = (size_t)(a->n_head * a->cells.head_dim);
    kernels_cpu.attn(d, a);
    if (spy.spoils && a->rows > 1)
        ((float *)a->dst.p)[(size_t)(a->rows - 1) * n] *= 1.25f;
    int at = atomic_fetch_add(&spy.calls, 1) + 1;
    while (at == atomic_load(&spy.hold_at))
        usleep(100);
}

static inline void spy_on(struct engine_opts *o, bool queued)
{
    if (strcmp(device, "cpu") != 0)
        skip();
    memset(&spy, 0, sizeof spy);
    spy.k = kernels_cpu;
    spy.k.attn = spy_attn;
    spy.k.queued = queued;
    o->backend = &spy.k;
}

static inline void hold(int at)
{
    atomic_store(&spy.calls, 0);
    atomic_store(&spy.hold_at, at);
}

static inline void await_hold(void)
{
    while (atomic_load(&spy.calls) < atomic_load(&spy.hold_at))
        usleep(100);
}

static inline void let_go(void)
{
    atomic_store(&spy.hold_at, 0);
}

/* ---- the results of a job -------------------------------------------------------------------- */

struct told {
    struct job_ask ask; /* its prompt is a copy; its format, a constant */
    bool started, cancelled, ended;
    int n_begin, n_reused, n_generated, n_steps, n_accepted;
    struct ids tokens;
    struct buf facts, top;             /* struct token_fact, struct job_token */
    struct buf prompt_facts, prompt_top;
    enum stop_reason reason;
    struct buf why;
};

static inline void told_free(struct told *k)
{
    ids_free(&k->ask.prompt);
    ids_free(&k->tokens);
    buf_free(&k->facts);
    buf_free(&k->top);
    buf_free(&k->prompt_facts);
    buf_free(&k->prompt_top);
    buf_free(&k->why);
    *k = (struct told){0};
}

static inline void take_begin(struct told *k, const struct event *ev)
{
    const struct job_news *n = ev->job;
    assert_true(k->n_begin++ == 0 && k->tokens.n == 0);
    assert_int_equal(n->n_prompt, k->ask.prompt.n);
    assert_true((n->prompt_fact != NULL) == (k->ask.prompt_top >= 0) &&
                (n->top != NULL) == (k->ask.prompt_top > 0));
    k->n_reused = n->n_reused;
    if (n->prompt_fact)
        buf_add(&k->prompt_facts, n->prompt_fact, (size_t)n->n_prompt * sizeof *n->prompt_fact);
    if (n->top)
        buf_add(&k->prompt_top, n->top, (size_t)(n->n_prompt * n->n_top) * sizeof *n->top);
}

static inline void take_step(struct told *k, const struct event *ev)
{
    assert_true(k->n_begin == 1 && ev->tokens.n > 0 && ev->facts);
    ids_cat(&k->tokens, ev->tokens.v, ev->tokens.n);
    buf_add(&k->facts, ev->facts, (size_t)ev->tokens.n * sizeof *ev->facts);
    assert_true((ev->job->top != NULL) == (k->ask.top > 0));
    if (ev->job->top)
        buf_add(&k->top, ev->job->top, (size_t)(ev->tokens.n * k->ask.top) * sizeof *ev->job->top);
}

static inline void take_end(struct told *k, const struct event *ev)
{
    k->ended = true;
    k->reason = ev->reason;
    k->n_generated = ev->job->n_generated;
    k->n_steps = ev->job->n_steps;
    k->n_accepted = ev->job->n_accepted;
    buf_add(&k->why, ev->text.p ? ev->text.p : "", ev->text.n);
    if (k->n_begin)
        assert_int_equal(k->n_reused, ev->job->n_reused);
    assert_int_equal(k->n_generated, k->tokens.n);
    assert_true(ev->job->us_wait >= 0 && ev->job->us_prefill >= 0 && ev->job->us_decode >= 0);
}

/* Adds an event to the results of its job; false: it belongs to no job. */
static inline bool take(struct told *all, const struct event *ev)
{
    if (ev->kind != EV_JOB_BEGIN && ev->kind != EV_JOB_STEP && ev->kind != EV_JOB_END) {
        if (ev->kind == EV_FAULT || ev->kind == EV_NOTICE)
            fail_msg("%s", ev->text.p);
        return false;
    }
    struct told *k = &all[ev->job->id - 1];
    assert_true(ev->job->id >= 1 && ev->job->id <= N_JOBS && k->started && !k->ended);
    if (ev->kind == EV_JOB_BEGIN)
        take_begin(k, ev);
    else if (ev->kind == EV_JOB_STEP)
        take_step(k, ev);
    else
        take_end(k, ev);
    return true;
}

/* Waits until all jobs have ended. */
static inline void take_all(struct backend *g, struct told *all)
{
    struct event ev;
    while (serve_event(g, &ev)) {
        take(all, &ev);
        event_free(&ev);
    }
}

static inline void start(struct backend *g, struct told *k, uint64_t id)
{
    struct err e = {0};
    struct job_ask a = k->ask;
    k->ask.id = a.id = id;
    a.format = a.format ? xstrdup(a.format) : NULL;
    a.prompt = (struct ids){0};
    ids_cat(&a.prompt, k->ask.prompt.v, k->ask.prompt.n);
    k->started = true;
    must(g->jobs->start(g, &a, &e), &e);
    assert_null(a.prompt.v);
}

/* ---- engines --------------------------------------------------------------------------------- */

static inline struct engine_opts opts(int lanes)
{
    struct engine_opts o = serve_opts();
    o.device = device;
    o.load = strcmp(device, "cpu") == 0 ? o.load : NULL;
    o.precision = precision;
    o.lanes = lanes;
    o.context = CONTEXT;
    o.settings.check = CHECK_STRICT;
    return o;
}

static inline void assert_whole(struct backend *g)
{
    struct pool_view pool[N_POOLS];
    struct check_report r;
    struct err e = {0};
    g->pools->ledger(g, pool);
    for (int i = 0; i < N_POOLS; i++)
        assert_int_equal(pool[i].free + pool[i].used + pool[i].evictable + pool[i].protected_,
                         pool[i].total - pool[i].reserved);
    must(g->check->sweep(g, &r, &e), &e);
}

/* After a request, no page is held by a job. */
static inline void assert_empty(struct backend *g)
{
    struct pool_view pool[N_POOLS];
    struct told none[1] = {{.started = false}};
    submit(g, RQ_SYSTEM, "", 0);
    take_all(g, none);
    g->pools->ledger(g, pool);
    for (int i = 0; i < N_POOLS; i++)
        assert_int_equal(pool[i].free, pool[i].exists ? pool[i].total - pool[i].reserved : 0);
    assert_whole(g);
}

static inline void encode(struct backend *g, const char *text, struct ids *out)
{
    struct err e = {0};
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)text};
    out->n = 0;
    must(chat_render(g->jobs->chat(g), &m, 1, out, &e), &e);
}

static inline struct told job_of(struct backend *g, const char *text, int most)
{
    struct told k = {.ask = {.most = most, .top_p = 1, .prompt_top = -1}};
    encode(g, text, &k.ask.prompt);
    return k;
}
