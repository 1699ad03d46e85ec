/* meter.c - see meter.h. */
#include "repl/http/meter.h"

static const double first_s[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5,
                                 7.5, 10, 20, 40, 80, 160, 640, 2560, 0};
static const double between_s[] = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5,
                                   7.5, 10, 20, 40, 80, 0};
static const double whole_s[] = {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120,
                                 240, 480, 960, 1920, 7680, 0};
static const double tokens[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000,
                                50000, 100000, 200000, 500000, 1000000, 0};

static void add_value(struct histogram *h, const double *le, double v)
{
    int i = 0;
    while (le[i] && v > le[i])
        i++;
    h->count[i]++;
    h->n++;
    h->sum += v;
}

void meter_begin(struct meter *m, const struct reply *r)
{
    m->prompt += (uint64_t)r->prompt->n;
    m->cached += (uint64_t)r->n_reused;
}

void meter_step(struct meter *m, const struct event *ev, uint64_t ns_before)
{
    const struct step_rec *s = &ev->rec;
    m->generated += (uint64_t)ev->tokens.n;
    if (ns_before)
        add_value(&m->between, between_s, (double)(ev->ns - ns_before) / 1e9);
    draft_sums_add(&m->drafts, s, ev->tree ? tree_depth(ev->tree) : s->drafted);
}

void meter_end(struct meter *m, const struct task *t, const struct reply *r, const struct event *ev)
{
    const struct job_news *j = ev->job;
    m->finished[r->finish]++;
    if (r->ns_first)
        add_value(&m->first, first_s, (double)(r->ns_first - t->ns_arrived) / 1e9);
    add_value(&m->whole, whole_s, (double)(ev->ns - t->ns_arrived) / 1e9);
    add_value(&m->n_prompt, tokens, r->prompt->n);
    add_value(&m->n_generated, tokens, r->tok.n);
    if (!j)
        return;
    add_value(&m->wait, whole_s, (double)j->us_wait / 1e6);
    add_value(&m->prefill, whole_s, (double)j->us_prefill / 1e6);
    add_value(&m->decode, whole_s, (double)j->us_decode / 1e6);
}

/* ---- the page -------------------------------------------------------------------------------- */

struct page {
    struct buf *out;
    char labels[160]; /* engine="0",model_name="..." */
};

static void head(struct page *p, const char *name, const char *type, const char *help)
{
    buf_printf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void sample(struct page *p, const char *name, const char *more, double v)
{
    buf_printf(p->out, "%s{%s%s%s} %.17g\n", name, p->labels, *more ? "," : "", more, v);
}

static void value(struct page *p, const char *name, const char *type, const char *help, double v)
{
    head(p, name, type, help);
    sample(p, name, "", v);
}

static void counter(struct page *p, const char *name, const char *help, uint64_t v)
{
    value(p, name, "counter", help, (double)v);
}

static void histogram(struct page *p, const char *name, const char *help, const double *le,
                      const struct histogram *h)
{
    uint64_t sum = 0;
    head(p, name, "histogram", help);
    for (int i = 0;; i++) {
        char edge[32] = "+Inf";
        sum += h->count[i];
        if (le[i])
            snprintf(edge, sizeof edge, "%.15g", le[i]);
        buf_printf(p->out, "%s_bucket{%s,le=\"%s\"} %llu\n", name, p->labels, edge,
                   (unsigned long long)sum);
        if (!le[i])
            break;
    }
    buf_printf(p->out, "%s_count{%s} %llu\n%s_sum{%s} %.17g\n", name, p->labels,
               (unsigned long long)h->n, name, p->labels, h->sum);
}

static void drafts(struct page *p, const struct meter *m)
{
    counter(p, "vllm:spec_decode_num_drafts_total", "Steps that drafted.", m->drafts.cycles);
    counter(p, "vllm:spec_decode_num_draft_tokens_total", "Drafted tokens.", m->drafts.drafted);
    counter(p, "vllm:spec_decode_num_accepted_tokens_total", "Accepted drafted tokens.",
            m->drafts.accepted);
    head(p, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
         "Accepted drafted tokens by depth.");
    for (int d = 1; d < TREE_MAX && m->drafts.depth[d].drafted; d++) {
        char more[32];
        snprintf(more, sizeof more, "position=\"%d\"", d - 1);
        sample(p, "vllm:spec_decode_num_accepted_tokens_per_pos_total", more,
               (double)m->drafts.depth[d].accepted);
    }
}

static void requests(struct page *p, const struct meter *m)
{
    static const struct { enum finish f; const char *label; } why[] = {
        {FINISH_STOP, "finished_reason=\"stop\""}, {FINISH_LENGTH, "finished_reason=\"length\""},
        {FINISH_ABORT, "finished_reason=\"abort\""}, {FINISH_ERROR, "finished_reason=\"error\""}};
    counter(p, "vllm:prompt_tokens_total", "Prompt tokens.", m->prompt);
    counter(p, "vllm:prompt_tokens_cached_total", "Prompt tokens whose KV was held.", m->cached);
    counter(p, "vllm:generation_tokens_total", "Generated tokens.", m->generated);
    counter(p, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
            m->prompt);
    counter(p, "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
            m->cached);
    head(p, "vllm:request_success_total", "counter", "Replies that ended, by reason.");
    for (int i = 0; i < 4; i++)
        sample(p, "vllm:request_success_total", why[i].label, (double)m->finished[why[i].f]);
    counter(p, "aerie:requests_refused_total", "Requests answered with an error.", m->refused);
    histogram(p, "vllm:time_to_first_token_seconds", "Time to the first token.", first_s,
              &m->first);
    histogram(p, "vllm:inter_token_latency_seconds", "Time between steps of a reply.", between_s,
              &m->between);
    histogram(p, "vllm:e2e_request_latency_seconds", "Time to the end of a reply.", whole_s,
              &m->whole);
    histogram(p, "vllm:request_queue_time_seconds", "Time in the queue.", whole_s, &m->wait);
    histogram(p, "vllm:request_prefill_time_seconds", "Time for the prompt.", whole_s, &m->prefill);
    histogram(p, "vllm:request_decode_time_seconds", "Time after the prompt.", whole_s, &m->decode);
    histogram(p, "vllm:request_prompt_tokens", "Tokens of a prompt.", tokens, &m->n_prompt);
    histogram(p, "vllm:request_generation_tokens", "Tokens of a reply.", tokens, &m->n_generated);
}

static void one_pool(struct page *p, const char *name, const char *about, const struct pool_view *v)
{
    const struct { const char *part, *help; int pages; } part[] = {
        {"used", "in use by requests or by the conversation", v->used + v->protected_},
        {"available", "free", v->free},
        {"evictable", "held for reuse alone", v->evictable},
        {"total", "in all, reserved pages left out", v->total - v->reserved},
    };
    for (size_t i = 0; i < LEN(part); i++) {
        char metric[64], help[160];
        snprintf(metric, sizeof metric, "aerie:%s_%s_tokens", name, part[i].part);
        snprintf(help, sizeof help, "Tokens of the %s pool, in whole pages: %s.", about,
                 part[i].help);
        value(p, metric, "gauge", help, (double)part[i].pages * v->page_size);
    }
}

/* The gauge is vLLM's one number, of the full pool: pages that are only held for reuse count as
 * free. */
static void pools(struct page *p, struct backend *b)
{
    struct pool_view v[N_POOLS];
    if (!backend_has(b, VIEW_POOLS))
        return;
    b->pools->ledger(b, v);
    const struct pool_view *full = &v[POOL_FULL];
    int total = full->total - full->reserved;
    char more[128];
    value(p, "vllm:kv_cache_usage_perc", "gauge", "Share of the full pool that is in use, 0 to 1.",
          total > 0 ? (double)(full->used + full->protected_) / total : 0);
    head(p, "vllm:cache_config_info", "gauge", "The full pool's size.");
    snprintf(more, sizeof more,
             "block_size=\"%d\",enable_prefix_caching=\"True\",num_gpu_blocks=\"%d\"",
             full->page_size, total);
    sample(p, "vllm:cache_config_info", more, 1);
    one_pool(p, "kv", "full", full);
    if (v[POOL_SWA].exists)
        one_pool(p, "swa", "sliding-window", &v[POOL_SWA]);
    if (v[POOL_DRAFT].exists)
        one_pool(p, "draft", "draft's", &v[POOL_DRAFT]);
}

void meter_text(const struct meter *m, const char *model, int running, int waiting,
                struct backend *b, struct buf *out)
{
    struct page p = {.out = out};
    FREED(buf_free) struct buf name = {0};
    buf_str(&name, "");
    for (const char *s = model; *s && name.n < 100; s++) {
        if (*s == '"' || *s == '\\')
            buf_char(&name, '\\');
        buf_char(&name, *s == '\n' ? ' ' : *s);
    }
    snprintf(p.labels, sizeof p.labels, "engine=\"0\",model_name=\"%s\"", name.p);
    value(&p, "vllm:num_requests_running", "gauge", "Replies that are computed now.", running);
    value(&p, "vllm:num_requests_waiting", "gauge", "Replies that wait to be computed.", waiting);
    pools(&p, b);
    requests(&p, m);
    drafts(&p, m);
}
