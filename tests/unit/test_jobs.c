/* test_jobs.c - jobs of clients: any number of them, started, joined and cancelled at any time, in
 * small pools, drafting or not: each one's tokens, log probabilities and best tokens are those of a
 * lane of its own that is fed token by token, and nothing stays behind.
 *
 *   test_jobs [DEVICE [PRECISION [FILTER]]]      cpu f32 */
#include "tests/chance.h"
#include "tests/few.h"
#include "tests/jobs_kit.h"

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_a_job_is_answered_from_its_prompt_to_its_end(void **state)
{
    (void)state;
    struct engine_opts o = opts(2);
    struct backend *g = serve_open(&o);
    struct told all[4] = {job_of(g, "Hello!", -1), job_of(g, "count to one hundred", 7),
                          job_of(g, "Hello!", 0), job_of(g, "Hello!", 30)};
    struct brought b = {0};
    all[3].ask.run_on = true;
    assert_true(backend_has(g, VIEW_JOBS) && g->jobs->tokenizer(g));
    for (uint64_t i = 0; i < 4; i++)
        start(g, &all[i], i + 1);
    take_all(g, all);
    assert_whole(g);
    static const enum stop_reason reason[] = {STOP_END, STOP_MAX, STOP_MAX, STOP_MAX};
    static const int most[] = {-1, 7, 0, 30};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(all[i].reason, reason[i]);
        assert_true(all[i].n_begin == 1 && all[i].ended);
        if (most[i] >= 0)
            assert_int_equal(all[i].tokens.n, most[i]);
    }
    /* the reply goes on behind the token that ended the other one */
    assert_true(all[0].tokens.n < 30);
    assert_memory_equal(all[0].tokens.v, all[3].tokens.v, (size_t)all[0].tokens.n * 4);
    ask(g, RQ_NEW, NULL, &b);
    ask(g, RQ_SAY, "Hello!", &b); /* the conversation says the same */
    assert_int_equal(b.end_tokens.n, all[0].tokens.n);
    assert_memory_equal(b.end_tokens.v, all[0].tokens.v, (size_t)all[0].tokens.n * 4);
    for (int i = 0; i < 4; i++)
        told_free(&all[i]);
    brought_clear(&b);
    ask(g, RQ_NEW, NULL, &b);
    assert_empty(g);
    brought_free(&b);
    backend_close(g);
}

/* RQ_NEW empties the prefix cache before the jobs that came after it, also behind another request:
 * the second of two equal jobs finds the first one's KV. */
static void a_job_after_a_new_session_keeps_its_cells(void **state)
{
    (void)state;
    struct engine_opts o = opts(1);
    struct backend *g = serve_open(&o);
    struct told all[N_JOBS] = {{.started = false}};
    for (int i = 0; i < 2; i++) {
        all[i] = job_of(g, "Tell me a story about a fox.", 3);
        if (i == 0) {
            submit(g, RQ_SYSTEM, "", 0);
            submit(g, RQ_NEW, NULL, 0);
        }
        start(g, &all[i], (uint64_t)i + 1);
        take_all(g, all);
    }
    assert_true(all[0].n_reused == 0 && all[1].n_reused > 0);
    for (int i = 0; i < 2; i++)
        told_free(&all[i]);
    backend_close(g);
}

/* ---- a job alone, fed token by token --------------------------------------------------------- */

/* The log probabilities of the lane's token and of the best ones, computed here. */
static void check_logits(struct runtime *r, const struct lane *l)
{
    struct job_token best[JOB_TOP];
    int V = r->model->cfg.vocab;
    float *x = xcalloc((size_t)V, sizeof *x);
    double sum = 0, near = strcmp(device, "cpu") ? 1e-4 : 1e-5;
    lane_best(r, l, JOB_TOP, best);
    r->dev.k->get(r->dev.d, x, kbuf_at(r->logits, (size_t)(l->row[0] * V) * 4, (size_t)V * 4),
                  (size_t)V * 4);
    for (int i = 0; i < V; i++)
        sum += exp((double)x[i]);
    assert_true(fabs((double)x[l->tok.v[l->tok.n - 1]] - log(sum) - (double)l->fact[0].logp) <
                near);
    for (int k = 0; k < JOB_TOP; k++) {
        int above = 0;
        for (int i = 0; i < V; i++)
            above += x[i] > x[best[k].id] || (x[i] == x[best[k].id] && i < best[k].id);
        assert_int_equal(above, k);
        assert_true(fabs((double)x[best[k].id] - log(sum) - (double)best[k].logp) < near);
    }
    free(x);
}

static void told_step(struct told *k, struct runtime *r, const struct lane *l, bool prompt)
{
    struct job_token best[(MAX_STEPS + 1) * JOB_TOP];
    int n = prompt ? k->ask.prompt_top : k->ask.top;
    if (n >= 0)
        buf_add(prompt ? &k->prompt_facts : &k->facts, l->fact, sizeof *l->fact);
    check_logits(r, l);
    if (n > 0) {
        lane_best(r, l, n, best);
        buf_add(prompt ? &k->prompt_top : &k->top, best, (size_t)n * sizeof *best);
    }
    if (!prompt)
        ids_add(&k->tokens, l->tok.v[l->tok.n - 1]);
}

/* The prompt by passes of several rows, as a GPU rounds them. */
static void feed_chunks(struct told *k, struct runtime *r, struct lane *l)
{
    struct err e = {0};
    int n = k->ask.prompt.n, top = max_int(0, k->ask.prompt_top);
    struct prompt_scores s = {.n = n, .k = top};
    s.fact = xcalloc((size_t)n, sizeof *s.fact);
    s.top = xcalloc((size_t)(n * top) + 1, sizeof *s.top);
    l->tok.n = 0;
    ids_cat(&l->tok, k->ask.prompt.v, n);
    l->scores = &s;
    if (n > 1)
        must(lane_extend(r, l, n - 1, false, false, 1, &e), &e);
    l->scores = NULL;
    if (k->ask.prompt_top >= 0)
        buf_add(&k->prompt_facts, s.fact + 1, (size_t)(n - 1) * sizeof *s.fact);
    buf_add(&k->prompt_top, s.top + top, (size_t)((n - 1) * top) * sizeof *s.top);
    free(s.fact);
    free(s.top);
}

/* The prompt by passes of one row: each token is given in place of the target's choice. */
static void feed_tokens(struct told *k, struct runtime *r, struct lane *l)
{
    struct err e = {0};
    struct step_limits lim = {1};
    int n = k->ask.prompt.n;
    l->given = k->ask.prompt.v + 1;
    l->n_given = n - 1;
    for (int i = 1; i < n; i++) {
        must(i == 1 ? lane_extend(r, l, 1, true, false, 1, &e)
                    : lane_step(r, &l, &lim, 1, NULL, &e), &e);
        told_step(k, r, l, true);
    }
}

static bool over(const struct told *k, const struct runtime *r, const struct lane *l)
{
    return (l->stopped && !k->ask.run_on) || l->tok.n >= r->context ||
           (k->ask.most >= 0 && k->tokens.n >= k->ask.most);
}

/* The formats that some jobs have. */
static char formats[][200] = {
    "{\"type\":\"json_object\"}",
    "{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\",\"properties\":{\"answer\":{\"type\":"
    "\"string\",\"maxLength\":30},\"sure\":{\"type\":\"boolean\"}},\"required\":[\"answer\"]}}",
    "{\"type\":\"json_schema\",\"schema\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":"
    "-5,\"maximum\":40},\"maxItems\":9}}",
    "{\"type\":\"json_schema\",\"schema\":{\"enum\":[\"The KV cache\",\"A page\",null,12]}}",
};

static struct guide *guide_of(struct bed *b, const char *format)
{
    static struct token_order *order;
    struct err e;
    json_t *o = json_loads(format, 0, NULL);
    struct grammar *g = grammar_open(o, NULL, b->tok, &e);
    json_decref(o);
    assert_non_null(g);
    if (!order)
        order = token_order_open(b->tok);
    return guide_open(g, order, b->r.model->cfg.vocab, b->r.stop, b->r.n_stop);
}

/* Fills in what the job must bring. */
static void run_alone(struct told *k, struct bed *b)
{
    struct runtime *r = &b->r;
    struct err e = {0};
    struct step_limits lim = {1};
    struct lane lane = {.tap_row = -1}, *l = &lane;
    struct token_fact none = {.logp = NAN, .rival = -1, .rival_logp = NAN};
    if (k->ask.prompt_top >= 0)
        buf_add(&k->prompt_facts, &none, sizeof none);
    for (int i = 0; i < k->ask.prompt_top; i++)
        buf_add(&k->prompt_top, &(struct job_token){-1, NAN}, sizeof(struct job_token));
    ids_add(&l->tok, k->ask.prompt.v[0]);
    if (strcmp(device, "cpu") == 0)
        feed_tokens(k, r, l);
    else
        feed_chunks(k, r, l);
    l->how = (struct sampling){k->ask.temperature, k->ask.top_k, k->ask.top_p, k->ask.min_p};
    struct steer steer;
    struct guide *guide = k->ask.format ? guide_of(b, k->ask.format) : NULL;
    l->steer = steer_set(&steer, &k->ask.penalties, guide, k->ask.prompt.n);
    l->seed = k->ask.seed;
    l->draws = 0;
    l->stopped = false;
    while (!over(k, r, l)) {
        must(l->seq.committed == 0 ? lane_extend(r, l, 1, true, false, 1, &e)
                                   : lane_step(r, &l, &lim, 1, NULL, &e), &e);
        told_step(k, r, l, false);
    }
    guide_close(guide);
    k->reason = l->stopped && !k->ask.run_on                        ? STOP_END
                : k->ask.most >= 0 && k->tokens.n >= k->ask.most ? STOP_MAX
                                                                 : STOP_CONTEXT;
    lane_free(r, l);
}

/* What two sides have in common of a list of items; false: they differ there. */
static bool same_head(const void *a, size_t na, const void *b, size_t nb, bool whole)
{
    return (whole ? na == nb : na <= nb) && (na == 0 || memcmp(a, b, na) == 0);
}

/* NULL: the job brought what the reference has; or the first words of it, where it was cancelled.
 * Else what differs. */
static const char *differs(const struct told *k, const struct told *want)
{
    bool whole = !k->cancelled || k->reason != STOP_CANCEL;
    bool begun = whole || k->n_begin;
    if (!k->ended)
        return "it has not ended";
    if (whole && k->reason != want->reason)
        return "the reason";
    if (!same_head(k->tokens.v, (size_t)k->tokens.n * 4, want->tokens.v,
                   (size_t)want->tokens.n * 4, whole))
        return "the tokens";
    if (k->ask.top >= 0 && !same_head(k->facts.p, k->facts.n, want->facts.p, want->facts.n, whole))
        return "the log probabilities";
    if (!same_head(k->top.p, k->top.n, want->top.p, want->top.n, whole))
        return "the best tokens";
    if (begun && !same_head(k->prompt_facts.p, k->prompt_facts.n, want->prompt_facts.p,
                            want->prompt_facts.n, true))
        return "the log probabilities of the prompt";
    if (begun && !same_head(k->prompt_top.p, k->prompt_top.n, want->prompt_top.p,
                            want->prompt_top.n, true))
        return "the best tokens of the prompt";
    return NULL;
}

/* ---- random jobs ----------------------------------------------------------------------------- */

static struct told wanted[N_JOBS];

/* The prompt of the i-th job: a question; a question of many words; an earlier job's prompt again,
 * or a part of it, or behind it the reply to it or other words. */
static void make_prompt(struct bed *b, int i, struct ids *out)
{
    static const char *const text[] = {"Hello!", "What is a page table?", "count to forty",
                                       "Tell me a story about Clara the owl."};
    const struct told *old = &wanted[i ? below(i) : 0];
    char *many = words(8 + below(12));
    int kind = i < 4 ? 0 : i < 6 ? 1 : 2 + below(4);
    out->n = 0;
    if (kind < 2)
        chat_prompt(b, kind ? many : text[i], out);
    if (kind >= 2)
        ids_cat(out, old->ask.prompt.v, kind == 3 ? 1 + below(old->ask.prompt.n)
                                                  : old->ask.prompt.n);
    if (kind >= 4)
        ids_cat(out, old->tokens.v, old->tokens.n);
    for (int k = kind == 5 ? 1 + below(20) : kind == 3; k > 0; k--)
        ids_add(out, 40 + below(400));
    out->n = min_int(out->n, CONTEXT - 60);
    free(many);
}

/* None for half of the jobs. Biases are of any tokens, some of which replies have. */
static void make_penalties(struct penalties *p)
{
    p->repetition = 1;
    if (below(2))
        return;
    p->presence = below(2) ? (float)(below(401) - 200) / 100 : 0;
    p->frequency = below(2) ? (float)(below(401) - 200) / 100 : 0;
    p->repetition = below(2) ? 0.5f + (float)below(100) / 100 : 1;
    p->bias.n = below(2) ? 1 + below(MOST_BIAS) : 0;
    for (int i = 0; i < p->bias.n; i++) {
        p->bias.id[i] = i + 3;
        p->bias.by[i] = (float)(below(2001) - 1000) / 200;
    }
}

static void make_job(struct bed *b, int i)
{
    static const int top[] = {0, 0, 1, 5, 20}, prompt_top[] = {-1, -1, -1, 0, 3, 20};
    struct job_ask *a = &wanted[i].ask;
    *a = (struct job_ask){.top_p = 1, .seed = (uint64_t)below(1000)};
    make_prompt(b, i, &a->prompt);
    a->temperature = below(3) ? 0.7f + (float)below(8) / 10 : 0;
    a->top_k = below(3) ? 0 : 20;
    a->top_p = below(3) ? 1 : 0.9f;
    a->min_p = below(4) ? 0 : 0.05f;
    make_penalties(&a->penalties);
    a->format = below(3) ? NULL : formats[below(4)];
    a->most = i % 7 == 6 ? 0 : i == 2 ? -1 : 1 + below(REPLY);
    a->run_on = i == 2 || below(3) == 0;
    a->top = top[below(5)];
    a->prompt_top = prompt_top[below(6)];
}

static int make_jobs(void **state)
{
    struct bed b;
    (void)state;
    if (!bed_device(&b, device, precision))
        return 0; /* every test is skipped */
    bed_load(&b, NESTLING, NULL);
    bed_chat(&b, NESTLING);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = CONTEXT, .kv = b.dev.kv});
    bed_stop(&b);
    for (int i = 0; i < N_JOBS; i++) {
        make_job(&b, i);
        run_alone(&wanted[i], &b);
    }
    bed_close(&b);
    return 0;
}

static int free_jobs(void **state)
{
    (void)state;
    for (int i = 0; i < N_JOBS; i++)
        told_free(&wanted[i]);
    return 0;
}

/* ---- penalties, from their definition -------------------------------------------------------- */

static double penalised(const struct penalties *p, const struct ids *tok, int first, int32_t id,
                        float x)
{
    int all = 0, reply = 0;
    for (int i = 0; i < tok->n; i++) {
        all += tok->v[i] == id;
        reply += i >= first && tok->v[i] == id;
    }
    for (int i = 0; i < p->bias.n; i++)
        x += p->bias.id[i] == id ? p->bias.by[i] : 0;
    if (all)
        x = x > 0 ? x / p->repetition : x * p->repetition;
    return (double)x - (reply ? (double)p->presence + (double)p->frequency * reply : 0);
}

static void test_greedy_choices_are_those_of_the_penalised_logits(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    int changed = 0, V;
    if (!bed_device(&b, device, precision))
        skip();
    bed_load(&b, NESTLING, NULL);
    bed_chat(&b, NESTLING);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = CONTEXT, .kv = b.dev.kv});
    V = b.r.model->cfg.vocab;
    float *x = xmalloc((size_t)V * sizeof *x);
    for (int i = 0; i < 6; i++) {
        struct lane lane = {.tap_row = -1}, *l = &lane;
        struct steer steer;
        struct penalties p;
        make_penalties(&p);
        p.frequency = 2;
        p.repetition = i % 2 ? 2.5f : p.repetition;
        chat_prompt(&b, "count to forty", &l->tok);
        int first = l->tok.n;
        l->steer = steer_set(&steer, &p, NULL, first);
        for (int k = 0; k < 24; k++) {
            struct step_limits lim = {1};
            must(k == 0 ? lane_extend(&b.r, l, first, true, false, 1, &e)
                        : lane_step(&b.r, &l, &lim, 1, NULL, &e), &e);
            b.r.dev.k->get(b.r.dev.d, x, kbuf_at(b.r.logits, 0, (size_t)V * 4), (size_t)V * 4);
            int32_t token = l->tok.v[--l->tok.n], best = token, plain = token;
            for (int32_t id = 0; id < V; id++)
                if (tok_bytes(b.tok, id, &(size_t){0})) {
                    best = penalised(&p, &l->tok, first, id, x[id]) >
                           penalised(&p, &l->tok, first, best, x[best]) + 1e-5 ? id : best;
                    plain = x[id] > x[plain] ? id : plain;
                }
            l->tok.n++;
            assert_int_equal(token, best);
            changed += plain != token;
        }
        lane_free(&b.r, l);
    }
    assert_true(changed > 10);
    free(x);
    bed_close(&b);
}

/* Takes at most n events in. */
static void take_some(struct backend *g, struct told *all, int n)
{
    struct event ev;
    while (n-- > 0 && backend_wait(g, &ev, 5)) {
        take(all, &ev);
        event_free(&ev);
    }
}

static void copy_ask(struct told *k, const struct told *from)
{
    *k = (struct told){.ask = from->ask};
    k->ask.prompt = (struct ids){0};
    ids_cat(&k->ask.prompt, from->ask.prompt.v, from->ask.prompt.n);
}

static void cancel_one(struct backend *g, struct told *all, int k)
{
    all[k].cancelled = true;
    g->jobs->cancel(g, (uint64_t)k + 1);
}

/* Starts all jobs in a random order at random times, and cancels some: cancels of 100 starts, and
 * as many later. */
static void run_jobs(struct backend *g, struct told *all, int cancels)
{
    int order[N_JOBS];
    for (int i = 0; i < N_JOBS; i++) {
        copy_ask(&all[i], &wanted[i]);
        order[i] = i;
    }
    for (int i = N_JOBS - 1; i > 0; i--) {
        int k = below(i + 1), x = order[i];
        order[i] = order[k];
        order[k] = x;
    }
    for (int i = 0; i < N_JOBS; i++) {
        start(g, &all[order[i]], (uint64_t)order[i] + 1);
        if (below(3) == 0)
            take_some(g, all, below(30));
        if (below(100) < cancels)
            cancel_one(g, all, order[below(i + 1)]);
    }
    for (int i = 0; i < N_JOBS; i++) {
        take_some(g, all, below(20));
        if (below(100) < cancels)
            cancel_one(g, all, below(N_JOBS));
    }
    g->jobs->cancel(g, 12345);
    take_all(g, all);
}

static int compare_all(struct told *all, bool fails)
{
    int n = 0;
    for (int i = 0; i < N_JOBS; i++) {
        const char *what = differs(&all[i], &wanted[i]);
        if (what && fails)
            fail_msg("job %d of %d prompt tokens (%d reused) and %d tokens: %s", i,
                     all[i].ask.prompt.n, all[i].n_reused, all[i].tokens.n, what);
        n += what != NULL;
    }
    return n;
}

/* Settings under which the jobs run: a job has room alone, all lanes together have not. */
static const struct way {
    int lanes, page_size, chunk, steps, topk, nodes;
} way[] = {{1, 16, 7, 5, 4, 16}, {3, 1, 64, 5, 4, 16}, {8, 4, 24, 3, 1, 4},
           {8, 1, 24, 3, 1, 4},  {8, 1, 7, 0, 1, 4},    {8, 16, 64, 5, 4, 16}};
enum { N_WAYS = sizeof way / sizeof *way };

static struct engine_opts small_opts(const struct way *w)
{
    struct engine_opts o = opts(w->lanes);
    o.page_size = w->page_size;
    o.settings.chunk = w->chunk;
    o.settings.spec = w->steps > 0;
    o.settings.steps = max_int(1, w->steps);
    o.settings.topk = w->topk;
    o.settings.nodes = w->nodes;
    o.full_pages = div_up(CONTEXT + 20, w->page_size) + 2;
    o.swa_pages = div_up(64 + 64 + 40, w->page_size) + 4;
    return o;
}

static void test_jobs_bring_what_they_bring_alone(void **state)
{
    int reused = 0, accepted = 0, cancelled = 0;
    (void)state;
    for (int i = one_in(2) - 1; i < N_WAYS; i += one_in(4)) {
        if (rounds(one_in(2) == 1, 0) && (i == 3 || i == 5))
            continue; /* 3 runs below, where passes are queued; 5 has the parts of the others */
        struct engine_opts o = small_opts(&way[i]);
        struct told all[N_JOBS];
        struct backend *g = serve_open(&o);
        for (int again = 0; again <= i % 2 * rounds(0, 1); again++) {
            run_jobs(g, all, 15 * (i % 2));
            compare_all(all, true);
            assert_whole(g);
            for (int k = 0; k < N_JOBS; k++) {
                reused += all[k].n_reused;
                accepted += all[k].n_accepted;
                cancelled += all[k].reason == STOP_CANCEL;
                told_free(&all[k]);
            }
        }
        assert_empty(g);
        backend_close(g);
    }
    print_message("# %d tokens reused, %d accepted, %d jobs cancelled\n", reused, accepted,
                  cancelled);
    assert_true(reused > 0 && accepted > 0 && cancelled > 0);
}

/* A device that queues passes: fused cycles; what was generated is computed again by cycles. */
static void test_jobs_bring_the_same_where_passes_are_queued(void **state)
{
    (void)state;
    for (int i = 3; i < 5; i += one_in(2)) {
        struct engine_opts o = small_opts(&way[i]);
        struct told all[N_JOBS];
        spy_on(&o, true);
        struct backend *g = serve_open(&o);
        for (int again = 0; again < 4 - i; again++) {
            run_jobs(g, all, 60 * again);
            compare_all(all, true);
            for (int k = 0; k < N_JOBS; k++)
                told_free(&all[k]);
        }
        assert_empty(g);
        backend_close(g);
    }
}

static void test_a_row_that_depends_on_its_neighbours_is_found(void **state)
{
    (void)state;
    struct engine_opts o = small_opts(&way[0]);
    struct told all[N_JOBS];
    spy_on(&o, false);
    struct backend *g = serve_open(&o);
    spy.spoils = true;
    run_jobs(g, all, 0);
    assert_true(compare_all(all, false) > N_JOBS / 2);
    for (int k = 0; k < N_JOBS; k++)
        told_free(&all[k]);
    backend_close(g);
}

/* ---- resident states ------------------------------------------------------------------------- */

/* Runs one job and returns how many tokens of its prompt were held. */
static int run_one(struct backend *g, struct told *k)
{
    struct told all[1] = {*k};
    start(g, all, 1);
    take_all(g, all);
    assert_true(all->ended && all->reason <= STOP_CONTEXT);
    *k = *all;
    return k->n_reused;
}

static void test_a_prompt_begins_with_the_tokens_of_ended_jobs(void **state)
{
    (void)state;
    bool cpu = strcmp(device, "cpu") == 0;
    for (int spec = 0; spec < 2; spec++) {
        struct engine_opts o = opts(2);
        struct pool_view pool[N_POOLS];
        o.settings.spec = spec;
        struct backend *g = serve_open(&o);
        struct told first = job_of(g, "What is a page table?", 20), again = {0}, next = {0};
        struct told scored = {0}, part = {0}, fresh = {0};
        first.ask.run_on = true;
        assert_int_equal(run_one(g, &first), 0);
        g->pools->ledger(g, pool);
        assert_true(pool[POOL_FULL].used == 0 && pool[POOL_FULL].evictable > 0);
        int n = first.ask.prompt.n;
        copy_ask(&again, &first);
        /* a draft's cell knows the next token */
        assert_int_equal(run_one(g, &again), n - 1 - spec);
        copy_ask(&next, &first); /* the next turn of a chat */
        ids_cat(&next.ask.prompt, first.tokens.v, first.tokens.n);
        ids_add(&next.ask.prompt, 50);
        ids_add(&next.ask.prompt, 60);
        assert_int_equal(run_one(g, &next), cpu ? n + 19 : n);
        copy_ask(&part, &first); /* the same words at first, then others */
        part.ask.prompt.v[n - 3] = 70;
        assert_int_equal(run_one(g, &part), n - 3 - spec);
        copy_ask(&scored, &first);
        scored.ask.prompt_top = 0;
        assert_int_equal(run_one(g, &scored), 0);
        assert_int_equal(again.tokens.n, first.tokens.n);
        assert_memory_equal(again.tokens.v, first.tokens.v, (size_t)first.tokens.n * 4);
        assert_memory_equal(again.facts.p, first.facts.p, first.facts.n);
        assert_memory_equal(scored.facts.p, first.facts.p, first.facts.n);
        if (spec)
            assert_true(again.n_accepted > 0 && next.n_accepted > 0 && part.n_accepted > 0);
        copy_ask(&fresh, &next);
        assert_empty(g);
        assert_int_equal(run_one(g, &fresh), 0);
        assert_memory_equal(fresh.facts.p, next.facts.p, next.facts.n);
        struct told *all[] = {&first, &again, &next, &scored, &part, &fresh};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            told_free(all[i]);
        backend_close(g);
    }
}

/* ---- refusals and ends ----------------------------------------------------------------------- */

static void refused_at_once(struct backend *g, struct job_ask a, const char *why)
{
    struct err e = {0};
    assert_false(g->jobs->start(g, &a, &e));
    assert_int_equal(e.kind, ERR_USAGE);
    if (!strstr(e.msg, why))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, why);
    assert_null(a.prompt.v);
}

static void test_what_cannot_be_computed_is_refused_in_one_line(void **state)
{
    (void)state;
    struct engine_opts o = opts(2);
    o.full_pages = 9;
    struct backend *g = serve_open(&o);
    struct job_ask fine = {.id = 9, .top_p = 1, .prompt_top = -1, .most = 1};
    struct job_ask bad[8];
    for (int i = 0; i < 8; i++)
        bad[i] = fine;
    ids_add(&bad[0].prompt, backend_info(g)->vocab);
    bad[1].temperature = NAN;
    bad[2].top_p = 1.5f;
    bad[3].min_p = -1;
    bad[4].top = JOB_TOP + 1;
    bad[5].prompt_top = -2;
    bad[6].top_k = -1;
    bad[7].most = -2;
    static const char *const why[] = {"prompt token 0 is ", "temperature nan: expected 0 to",
                                      "top_p 1.5", "min_p -1", "best tokens 21", "of the prompt -2",
                                      "top_k -1", "number of tokens -2"};
    refused_at_once(g, fine, "the prompt is empty");
    for (int i = 0; i < 8; i++) {
        if (i > 0)
            ids_add(&bad[i].prompt, 5);
        refused_at_once(g, bad[i], why[i]);
    }
    char *many = words(100), *some = words(20);
    struct told all[3] = {job_of(g, many, 5), job_of(g, "Hello!", 5), job_of(g, some, 5)};
    assert_true(all[0].ask.prompt.n >= CONTEXT && all[2].ask.prompt.n > 8 * 16 &&
                all[2].ask.prompt.n < CONTEXT);
    for (uint64_t i = 0; i < 3; i++)
        start(g, &all[i], i + 1);
    take_all(g, all);
    assert_true(all[0].reason == STOP_CONTEXT && all[0].n_begin == 0);
    assert_non_null(strstr(all[0].why.p, "the context holds 224"));
    assert_int_equal(all[1].reason, STOP_MAX);
    assert_true(all[2].reason == STOP_KV_FULL && all[2].n_begin == 0);
    assert_non_null(strstr(all[2].why.p, "pages of the full pool, 8 are free"));
    for (int i = 0; i < 3; i++)
        told_free(&all[i]);
    free(many);
    free(some);
    assert_empty(g);
    backend_close(g);
}

static void test_too_many_jobs_and_ids_in_use_are_refused(void **state)
{
    (void)state;
    struct engine_opts o = opts(2);
    spy_on(&o, false);
    hold(1);
    struct backend *g = serve_open(&o);
    struct err e = {0};
    for (int i = 0; i <= MAX_JOBS; i++) {
        struct job_ask a = {.id = i == 1 ? 1 : (uint64_t)i + 1, .top_p = 1, .prompt_top = -1};
        ids_add(&a.prompt, 5);
        bool ok = g->jobs->start(g, &a, &e);
        if (i == 0)
            await_hold();
        if (i == 1)
            assert_true(!ok && e.kind == ERR_USAGE && strstr(e.msg, "id 1 "));
        else
            must(ok, &e);
    }
    struct job_ask a = {.id = 1000, .top_p = 1, .prompt_top = -1};
    ids_add(&a.prompt, 5);
    assert_false(g->jobs->start(g, &a, &e));
    assert_int_equal(e.kind, ERR_NEGATIVE);
    let_go();
    backend_close(g); /* with jobs that run and wait */
}

static void test_a_cancel_ends_the_jobs_before_it_and_none_after(void **state)
{
    (void)state;
    struct engine_opts o = opts(2);
    spy_on(&o, false);
    o.settings.spec = false;
    struct backend *g = serve_open(&o);
    struct told all[5];
    for (int i = 0; i < 5; i++)
        all[i] = job_of(g, "count to one hundred", 60);
    hold(100);
    for (uint64_t i = 0; i < 3; i++)
        start(g, &all[i], i + 1);
    await_hold();
    backend_cancel(g);
    start(g, &all[3], 4);
    start(g, &all[4], 5);
    g->jobs->cancel(g, 5);
    let_go();
    take_all(g, all);
    for (int i = 0; i < 5; i++)
        assert_int_equal(all[i].reason, i == 3 ? STOP_MAX : STOP_CANCEL);
    assert_true(all[0].tokens.n > 0 && all[0].tokens.n < 60 && all[2].n_begin == 0);
    assert_true(all[3].tokens.n == 60 && all[4].n_begin == 0);
    assert_memory_equal(all[0].tokens.v, all[3].tokens.v, (size_t)all[0].tokens.n * 4);
    for (int i = 0; i < 5; i++)
        told_free(&all[i]);
    assert_empty(g);
    backend_close(g);
}

/* The younger of two jobs gives its pages back, and is cancelled while a device that queues passes
 * computes its tokens again: it keeps those that it has told. */
static void test_a_job_cancelled_while_it_is_computed_again_keeps_its_tokens(void **state)
{
    (void)state;
    int calls = 0; /* in all, without a cancel: passes are the same in both runs */
    for (int cancels = 0; cancels < 2; cancels++) {
        struct engine_opts o = opts(2);
        spy_on(&o, true);
        o.settings.spec = false;
        o.settings.nodes = 4;
        o.page_size = 1;
        o.full_pages = 110;
        struct backend *g = serve_open(&o);
        struct told all[2] = {job_of(g, "count to one hundred", 60),
                              job_of(g, "count to one hundred", 60)};
        hold(1);
        start(g, &all[0], 1);
        await_hold();
        start(g, &all[1], 2);
        if (cancels) { /* 30 cycles before the end: some 20 of them yield new tokens */
            atomic_store(&spy.hold_at, calls - 30 * backend_info(g)->n_layer);
            await_hold();
            g->jobs->cancel(g, 2);
        }
        let_go();
        take_all(g, all);
        calls = atomic_load(&spy.calls);
        assert_true(all[0].tokens.n == 60 && all[1].tokens.n > 10);
        assert_int_equal(all[1].reason, cancels ? STOP_CANCEL : STOP_MAX);
        assert_true(cancels ? all[1].tokens.n < 60 : all[1].tokens.n == 60);
        assert_memory_equal(all[1].tokens.v, all[0].tokens.v, (size_t)all[1].tokens.n * 4);
        assert_memory_equal(all[1].facts.p, all[0].facts.p, all[1].facts.n);
        told_free(&all[0]);
        told_free(&all[1]);
        assert_empty(g);
        backend_close(g);
    }
}

/* ---- beside the conversation ----------------------------------------------------------------- */

/* Questions come while jobs run, wait and are resident: the jobs bring what they bring alone, and
 * the conversation finds the pages that it finds without jobs. */
static void test_the_conversation_and_jobs_take_turns(void **state)
{
    (void)state;
    uint64_t digest[2];
    struct brought said[2];
    memset(said, 0, sizeof said);
    for (int with = 0; with < 2; with++) {
        struct engine_opts o = opts(2);
        struct told all[N_JOBS];
        struct event ev;
        struct backend *g = serve_open(&o);
        ask(g, RQ_NEW, NULL, &said[with]);
        for (int i = 0; i < N_JOBS; i++)
            copy_ask(&all[i], &wanted[i]);
        for (int i = 0; i < N_JOBS; i++) {
            if (with)
                start(g, &all[i], (uint64_t)i + 1);
            if (i == 5 || i == 8)
                submit(g, RQ_SAY, i == 5 ? "Hello!" : "What is a page?", 0);
        }
        while (serve_event(g, &ev)) {
            if (!take(all, &ev))
                bring(&said[with], &ev);
            event_free(&ev);
        }
        if (with)
            compare_all(all, true);
        for (int i = 0; i < N_JOBS; i++)
            told_free(&all[i]);
        digest[with] = engine_of(g)->own.ses.lane.rec.page_digest;
        assert_whole(g);
        backend_close(g);
    }
    assert_int_equal(said[1].n_end, 2);
    assert_int_equal(said[0].end_tokens.n, said[1].end_tokens.n);
    assert_memory_equal(said[0].end_tokens.v, said[1].end_tokens.v,
                        (size_t)said[0].end_tokens.n * 4);
    assert_true(digest[0] != 0 && digest[0] == digest[1]);
    brought_free(&said[0]);
    brought_free(&said[1]);
}

/* A rule is violated: the jobs that ran say which, the engine goes on. */
static void test_a_fault_ends_the_jobs_that_ran(void **state)
{
    (void)state;
    struct engine_opts o = opts(2);
    struct backend *g = serve_open(&o);
    struct told k[2] = {job_of(g, "count to one hundred", 60), job_of(g, "Hello!", 60)};
    struct err e = {0};
    struct event ev;
    int faults = 0;
    struct bugs on = {0};
    must(bug_set(&on, "26512", "on", &e), &e);
    runtime_set_bugs(&engine_of(g)->own.runtime, &on);
    start(g, &k[0], 1);
    while (!k[0].ended)
        if (backend_wait(g, &ev, 20)) {
            faults += ev.kind == EV_FAULT;
            if (ev.kind != EV_FAULT)
                take(k, &ev);
            event_free(&ev);
        }
    assert_int_equal(faults, 1);
    assert_int_equal(k[0].reason, STOP_FAULT);
    assert_non_null(strstr(k[0].why.p, "I"));
    while (backend_busy(g))
        usleep(1000);
    runtime_set_bugs(&engine_of(g)->own.runtime, &(struct bugs){0});
    start(g, &k[1], 2);
    take_all(g, k);
    assert_int_equal(k[1].reason, STOP_END);
    told_free(&k[0]);
    told_free(&k[1]);
    assert_empty(g);
    backend_close(g);
}

/* A prompt of many chunks that comes while another reply is computed: the reply goes on between two
 * chunks. */
static void test_a_long_prompt_does_not_hold_up_other_replies(void **state)
{
    (void)state;
    struct engine_opts o = opts(4);
    spy_on(&o, false);
    o.settings.chunk = 8;
    struct backend *g = serve_open(&o);
    struct told all[2] = {{.ask = {.top_p = 1, .most = 150, .run_on = true, .prompt_top = -1}},
                          {.ask = {.top_p = 1, .most = 3, .run_on = true, .prompt_top = -1}}};
    struct event ev;
    int between = 0;
    for (int i = 0; i < 10; i++)
        ids_add(&all[0].ask.prompt, 40 + i);
    for (int i = 0; i < 100; i++)
        ids_add(&all[1].ask.prompt, 100 + i);
    hold(30);
    start(g, &all[0], 1);
    await_hold();
    start(g, &all[1], 2);
    let_go();
    while (!all[1].n_begin && backend_wait(g, &ev, 5000)) {
        between += ev.kind == EV_JOB_STEP && ev.job->id == 1;
        take(all, &ev);
        event_free(&ev);
    }
    int after = 0;
    while (!all[1].ended && backend_wait(g, &ev, 5000)) {
        after += ev.kind == EV_JOB_STEP && ev.job->id == 1;
        take(all, &ev);
        event_free(&ev);
    }
    print_message("# %d steps before the prompt was computed, %d after\n", between, after);
    assert_true(between > 8 && after > 0);
    take_all(g, all);
    told_free(&all[0]);
    told_free(&all[1]);
    backend_close(g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_after_a_new_session_keeps_its_cells),
        cmocka_unit_test(test_a_long_prompt_does_not_hold_up_other_replies),
        cmocka_unit_test(test_greedy_choices_are_those_of_the_penalised_logits),
        cmocka_unit_test(test_a_job_is_answered_from_its_prompt_to_its_end),
        cmocka_unit_test(test_jobs_bring_what_they_bring_alone),
        cmocka_unit_test(test_jobs_bring_the_same_where_passes_are_queued),
        cmocka_unit_test(test_a_row_that_depends_on_its_neighbours_is_found),
        cmocka_unit_test(test_a_prompt_begins_with_the_tokens_of_ended_jobs),
        cmocka_unit_test(test_what_cannot_be_computed_is_refused_in_one_line),
        cmocka_unit_test(test_too_many_jobs_and_ids_in_use_are_refused),
        cmocka_unit_test(test_a_cancel_ends_the_jobs_before_it_and_none_after),
        cmocka_unit_test(test_a_job_cancelled_while_it_is_computed_again_keeps_its_tokens),
        cmocka_unit_test(test_the_conversation_and_jobs_take_turns),
        cmocka_unit_test(test_a_fault_ends_the_jobs_that_ran),
    };
    device = argc > 1 ? argv[1] : device;
    precision = argc > 2 ? argv[2] : precision;
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, make_jobs, free_jobs);
}
