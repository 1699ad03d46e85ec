/* gauges.c - see gauges.h. Metric names: those of vLLM 0.26, of SGLang in late 2026 (aerie serve
 * has the same), of llama-server b11434, and the fields of its /slots. */
#include "engine/remote/gauges.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remote/metrics.h"
#include "kernels/json_read.h"

/* ---- a page ---------------------------------------------------------------------------------- */

void gauge_page_init(struct gauge_page *p)
{
    *p = (struct gauge_page){.hits = -1, .queries = -1, .tokens = -1, .drafts = -1, .accepted = -1};
    for (int i = 0; i < N_GAUGES; i++)
        p->v[i] = NAN;
}

static double value_of(const struct metrics *m, const char *name, enum metrics_join join)
{
    double v;
    return metrics_value(m, name, NULL, NULL, join, &v, NULL) && v >= 0 && v < 1e15 ? v : -1;
}

/* The first of the names that is reported: servers name the same number differently. */
static double first_of(const struct metrics *m, enum metrics_join join, const char *a,
                       const char *b, const char *c)
{
    const char *name[] = {a, b, c};
    double v = -1;
    for (int i = 0; i < 3 && name[i] && v < 0; i++)
        v = value_of(m, name[i], join);
    return v;
}

static int whole(double v)
{
    return v > INT32_MAX / 4 ? INT32_MAX / 4 : (int)(v + 0.5);
}

static void set_gauge(struct gauge_page *p, int gauge, double v)
{
    if (v >= 0)
        p->v[gauge] = (float)v;
}

/* used + free + evictable == total, in tokens or blocks. */
static void set_pool(struct gauge_page *p, enum pool_id pool, double used, double free_,
                     double evictable)
{
    struct pool_view *v = &p->pool[pool];
    *v = (struct pool_view){.exists = true, .page_size = 1, .used = whole(used),
                            .free = whole(free_),
                            .evictable = whole(evictable)};
    v->total = v->used + v->free + v->evictable;
    if (v->total > 0)
        set_gauge(p, GAUGE_POOL + (int)pool, (double)v->used / v->total);
}

/* Exact pools, in tokens. All ranks of tensor parallelism hold the same tokens, so the greatest
 * value of a rank counts. */
static bool token_pool(const struct metrics *m, const char *prefix, enum pool_id pool,
                       struct gauge_page *p)
{
    static const char *const part[] = {"used_tokens", "available_tokens", "evictable_tokens"};
    char name[64];
    double v[3];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s_%s", prefix, part[i]);
        v[i] = value_of(m, name, METRICS_MAX);
        if (v[i] < 0)
            return false;
    }
    set_pool(p, pool, v[0], v[1], v[2]);
    return true;
}

static bool token_pools(const struct metrics *m, struct gauge_page *p)
{
    bool full = token_pool(m, "kv", POOL_FULL, p), swa = token_pool(m, "swa", POOL_SWA, p);
    if (!full) /* older versions report shares only */
        set_gauge(p, GAUGE_POOL + POOL_FULL, value_of(m, "full_token_usage", METRICS_MAX));
    if (!swa)
        set_gauge(p, GAUGE_POOL + POOL_SWA, value_of(m, "swa_token_usage", METRICS_MAX));
    token_pool(m, "draft", POOL_DRAFT, p);
    if (isnan(p->v[GAUGE_POOL + POOL_FULL]))
        return false;
    p->about = full ? "tokens, as the server counts them; used by requests, evictable: "
    "held by the prefix cache "
                      "only; of several ranks, which hold the same tokens, the fullest"
                    : "shares, as the server reports them, without the sizes of the pools; "
                    "of several ranks the "
                      "fullest";
    return true;
}

/* A label of cache_config_info as a number; -1: it has none. */
static double config_label(const struct metrics *m, const char *label)
{
    double v = -1;
    for (int i = 0; i < m->n && v < 0; i++) {
        struct buf text = {0};
        if (!strcmp(m->at[i].name, "cache_config_info") && metric_label(&m->at[i], label, &text) &&
            text.p)
            v = strtod(text.p, NULL);
        buf_free(&text);
    }
    return v;
}

static bool block_pool(const struct metrics *m, struct gauge_page *p)
{
    double share = value_of(m, "kv_cache_usage_perc", METRICS_MAX);
    double blocks = config_label(m, "num_gpu_blocks"), size = config_label(m, "block_size");
    if (share < 0 || share > 1)
        return false;
    p->unit = "blocks";
    p->about = "vLLM reports one share of all blocks: full and window layers are not apart, "
    "and blocks "
               "that only the prefix cache holds count as free; of several engines the fullest";
    if (blocks >= 1 && blocks < INT32_MAX / 4 && size >= 1 && size <= 65536) {
        set_pool(p, POOL_FULL, share * blocks, blocks - whole(share * blocks), 0);
        p->pool[POOL_FULL].page_size = (int)size;
    }
    set_gauge(p, GAUGE_POOL + POOL_FULL, share);
    return true;
}

static bool read_metrics(const struct metrics *m, struct gauge_page *p)
{
    bool pools = isnan(p->v[GAUGE_POOL + POOL_FULL]) && (token_pools(m, p) || block_pool(m, p));
    set_gauge(p, GAUGE_RUNNING, first_of(m, METRICS_SUM, "num_running_reqs", "num_requests_running",
                                         "requests_processing"));
    set_gauge(p, GAUGE_WAITING, first_of(m, METRICS_SUM, "num_queue_reqs", "num_requests_waiting",
                                         "requests_deferred"));
    set_gauge(p, GAUGE_TOKENS, value_of(m, "gen_throughput", METRICS_SUM));
    set_gauge(p, GAUGE_HITS, value_of(m, "cache_hit_rate", METRICS_MAX));
    set_gauge(p, GAUGE_MAL, value_of(m, "spec_accept_length", METRICS_MAX));
    if (p->v[GAUGE_MAL] < 1) /* 0: nothing was drafted */
        p->v[GAUGE_MAL] = NAN;
    p->hits = first_of(m, METRICS_SUM, "prefix_cache_hits_total", "prompt_tokens_cached_total",
                       NULL);
    p->queries = value_of(m, "prefix_cache_queries_total", METRICS_SUM);
    double computed = value_of(m, "prompt_tokens_total", METRICS_SUM);
    /* llama-server counts prompt tokens without the cached ones */
    if (p->queries < 0 && p->hits >= 0 && computed >= 0)
        p->queries = p->hits + computed;
    p->tokens = first_of(m, METRICS_SUM, "generation_tokens_total", "tokens_predicted_total", NULL);
    p->drafts = value_of(m, "spec_decode_num_drafts_total", METRICS_SUM);
    p->accepted = value_of(m, "spec_decode_num_accepted_tokens_total", METRICS_SUM);
    return pools || p->v[GAUGE_RUNNING] >= 0 || p->tokens >= 0;
}

static bool read_slots(const char *page, size_t n, struct gauge_page *p)
{
    double total = 0, used = 0, running = 0;
    json_t *all = json_parse(page, n, 0, NULL), *slot;
    size_t i;
    json_array_foreach(all, i, slot) {
        /* the prompt's tokens and those generated so far */
        double held = json_number_value(json_object_get(slot, "n_prompt_tokens"));
        double room = json_number_value(json_object_get(slot, "n_ctx"));
        total += fmax(0, room);
        used += fmin(fmax(0, held), fmax(0, room));
        running += json_is_true(json_object_get(slot, "is_processing"));
    }
    json_decref(all);
    if (!(total > 0 && total < INT32_MAX / 4))
        return false;
    p->unit = "slots";
    p->about = "tokens of the server's slots; tokens that an idle slot holds for later count as "
    "used";
    set_pool(p, POOL_FULL, used, total - whole(used), 0);
    p->v[GAUGE_RUNNING] = (float)running;
    return true;
}

/* Whether a page is a JSON array; its bytes need not end in a NUL. */
static bool is_array(const char *page, size_t n)
{
    while (n && strchr(" \t\r\n", *page) && *page)
        page++, n--;
    return n && *page == '[';
}

bool gauges_read(enum server_kind kind, const char *page, size_t n, struct gauge_page *p)
{
    struct metrics m;
    if (kind == SERVER_LLAMA && is_array(page, n))
        return read_slots(page, n, p);
    if (!metrics_read(&m, page, n, NULL))
        return false;
    bool ok = read_metrics(&m, p);
    metrics_free(&m);
    return ok;
}

/* ---- over time ------------------------------------------------------------------------------- */

/* The increase of a counter; -1: not known, or the server was restarted. */
static double growth(double now, double before)
{
    return now >= 0 && before >= 0 && now >= before ? now - before : -1;
}

void gauges_add(struct gauges *g, const struct gauge_page *now, uint64_t ns,
                const struct gauge_page *before, uint64_t ns_before)
{
    struct gauge_sample s = {.ns = ns};
    memcpy(s.v, now->v, sizeof s.v);
    if (ns_before && ns > ns_before) {
        double queries = growth(now->queries, before->queries),
            hits = growth(now->hits, before->hits);
        double drafts = growth(now->drafts, before->drafts),
            tokens = growth(now->tokens, before->tokens);
        double accepted = growth(now->accepted, before->accepted);
        if (queries > 0 && hits >= 0)
            s.v[GAUGE_HITS] = (float)fmin(hits / queries, 1);
        if (tokens >= 0)
            s.v[GAUGE_TOKENS] = (float)(tokens * 1e9 / (double)(ns - ns_before));
        if (drafts > 0 && accepted >= 0)
            s.v[GAUGE_MAL] = (float)(1 + accepted / drafts);
    }
    pthread_mutex_lock(&g->mu);
    if (!g->sample)
        g->sample = xcalloc(GAUGES_KEPT, sizeof *g->sample);
    g->sample[g->n_sample++ % GAUGES_KEPT] = s;
    g->page = *now;
    g->view.n_read++;
    g->view.fault[0] = '\0';
    g->view.unit = now->unit;
    g->view.about = now->about ? now->about : "from the server's metrics, which say nothing about "
    "its KV pools";
    g->view.hits = now->hits;
    g->view.queries = now->queries;
    for (int i = 0; i < N_GAUGES; i++)
        g->view.reported[i] |= !isnan(s.v[i]);
    pthread_mutex_unlock(&g->mu);
}

void gauges_pools(struct gauges *g, struct pool_view pool[N_POOLS])
{
    pthread_mutex_lock(&g->mu);
    memcpy(pool, g->page.pool, sizeof g->page.pool);
    pthread_mutex_unlock(&g->mu);
}

void gauges_view(struct gauges *g, struct gauges_view *out)
{
    pthread_mutex_lock(&g->mu);
    *out = g->view;
    pthread_mutex_unlock(&g->mu);
}

int gauges_samples(struct gauges *g, struct gauge_sample *out, int max)
{
    pthread_mutex_lock(&g->mu);
    uint64_t held = g->n_sample < GAUGES_KEPT ? g->n_sample : GAUGES_KEPT;
    int n = min_int(max, (int)held);
    for (int i = 0; i < n; i++)
        out[i] = g->sample[(g->n_sample - (uint64_t)(n - i)) % GAUGES_KEPT];
    pthread_mutex_unlock(&g->mu);
    return n;
}

/* ---- asking ---------------------------------------------------------------------------------- */

void gauges_open(struct gauges *g)
{
    pthread_mutex_init(&g->mu, NULL);
    gauge_page_init(&g->page);
    g->view.hits = g->view.queries = -1;
}

void gauges_close(struct gauges *g, struct http *h)
{
    if (g->asking)
        http_end(h, &g->call);
    buf_free(&g->call.answer);
    buf_free(&g->metrics);
    free(g->sample);
    pthread_mutex_destroy(&g->mu);
}

/* The i-th page that a server answers; NULL: there are no more. */
static const char *page_path(const struct server *s, int i)
{
    bool slots = s->kind == SERVER_LLAMA && s->answers[REPORT_POOLS];
    if (slots && i == 0)
        return "/slots";
    return s->answers[REPORT_METRICS] && i == slots ? "/metrics" : NULL;
}

static void begin_page(struct gauges *g, struct http *h, const char *path)
{
    struct buf answer = g->call.answer;
    g->call = (struct http_call){.method = "GET", .answer = answer, .path = path};
    g->asking = true;
    http_begin(h, &g->call);
}

static void note_failure(struct gauges *g, const struct err *e)
{
    pthread_mutex_lock(&g->mu);
    g->view.n_failed++;
    snprintf(g->view.fault, sizeof g->view.fault, "%.190s", e->msg);
    pthread_mutex_unlock(&g->mu);
}

/* False: the reading has failed; the old numbers and their time are kept. */
static bool take_page(struct gauges *g, enum server_kind kind)
{
    const struct buf *b = &g->call.answer;
    struct err e;
    g->unreachable = g->call.failed;
    if (g->call.failed)
        e = g->call.why;
    else if (g->call.status != 200)
        http_refused(&g->call, &e);
    else if (gauges_read(kind, b->p ? b->p : "", b->n, &g->now))
        return true;
    else
        err_set(&e, ERR_MODEL, "%s says nothing about pools or requests", g->call.path);
    note_failure(g, &e);
    return false;
}

static bool read_buf(const struct buf *b, enum server_kind kind, struct gauge_page *p)
{
    return b->n && gauges_read(kind, b->p, b->n, p);
}

void gauges_first(struct gauges *g, const struct server *s, int ms)
{
    struct gauge_page page;
    gauge_page_init(&page);
    bool slots = read_buf(&s->slots, s->kind, &page);
    bool read = read_buf(&s->page, s->kind, &page) || slots;
    g->view.ms = ms;
    if (!read)
        return;
    g->ns_begin = clock_ns();
    gauges_add(g, &page, g->ns_begin, &g->before, 0);
    g->before = page;
}

int gauges_look(struct gauges *g, struct http *h, const struct server *s, int ms)
{
    uint64_t now = clock_ns(), before = g->ns_begin;
    if (g->view.ms != ms) {
        pthread_mutex_lock(&g->mu);
        g->view.ms = ms;
        pthread_mutex_unlock(&g->mu);
    }
    if (g->asking && g->call.done) {
        http_end(h, &g->call);
        g->asking = false;
        bool ok = take_page(g, s->kind);
        if (ok && strcmp(g->call.path, "/metrics") == 0) {
            buf_clear(&g->metrics);
            buf_add(&g->metrics, g->call.answer.p, g->call.answer.n);
            g->ns_metrics = clock_ns();
        }
        const char *more = ok ? page_path(s, ++g->path) : NULL;
        if (more) {
            begin_page(g, h, more);
        } else if (ok) {
            uint64_t last = g->n_sample ? g->sample[(g->n_sample - 1) % GAUGES_KEPT].ns : 0;
            gauges_add(g, &g->now, g->ns_begin, &g->before, last);
            g->before = g->now;
        }
    }
    uint64_t due = before + (uint64_t)ms * 1000000;
    if (g->asking || ms == 0 || !page_path(s, 0))
        return ms ? min_int(ms, 1000) : 60000;
    if (before && now < due)
        return (int)((due - now) / 1000000) + 1;
    g->ns_begin = now;
    g->path = 0;
    gauge_page_init(&g->now);
    begin_page(g, h, page_path(s, 0));
    return 0;
}
