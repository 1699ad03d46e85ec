/* gauges.c - see gauges.h. Metric names: those of vLLM 0.26, of SGLang in late 2026 (aerie serve
 * has the same), of llama-server b11434, and the fields of its /slots. */
#include "engine/remote/gauges.h"

#include <jansson.h>
#include <math.h>

#include "engine/remote/metrics.h"
#include "kernels/json_read.h"

/* ---- a page ---------------------------------------------------------------------------------- */

void gauge_page_init(struct gauge_page *page)
{
    *page = (struct gauge_page){.hits = -1, .queries = -1, .tokens = -1, .drafts = -1,
                                .accepted = -1};
    for (int i = 0; i < N_GAUGES; i++)
        page->v[i] = NAN;
}

static double value_of(const struct metrics *metrics, const char *name, enum metrics_join join)
{
    double v;
    return metrics_value(metrics, name, NULL, NULL, join, &v, NULL) && v >= 0 && v < 1e15 ? v : -1;
}

/* The first of the names that is reported, summed: servers name the same number differently. */
static double first_of(const struct metrics *metrics, const char *a, const char *b, const char *c)
{
    const char *name[] = {a, b, c};
    double v = -1;
    for (int i = 0; i < 3 && name[i] && v < 0; i++)
        v = value_of(metrics, name[i], METRICS_SUM);
    return v;
}

static int whole(double v)
{
    return v > INT32_MAX / 4 ? INT32_MAX / 4 : (int)(v + 0.5);
}

static void set_gauge(struct gauge_page *page, int gauge, double v)
{
    if (v >= 0)
        page->v[gauge] = (float)v;
}

/* used + free + evictable == total, in tokens or blocks. */
static void set_pool(struct gauge_page *page, enum pool_id pool, double used, double free_,
                     double evictable)
{
    struct pool_view *v = &page->pool[pool];
    *v = (struct pool_view){.exists = true, .page_size = 1, .used = whole(used),
                            .free = whole(free_),
                            .evictable = whole(evictable)};
    v->total = v->used + v->free + v->evictable;
    if (v->total > 0)
        set_gauge(page, GAUGE_POOL + (int)pool, (double)v->used / v->total);
}

/* Exact pools, in tokens. All ranks of tensor parallelism hold the same tokens, so the greatest
 * value of a rank counts. */
static bool token_pool(const struct metrics *metrics, const char *prefix, enum pool_id pool,
                       struct gauge_page *page)
{
    static const char *const part[] = {"used_tokens", "available_tokens", "evictable_tokens"};
    char name[64];
    double v[3];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s_%s", prefix, part[i]);
        v[i] = value_of(metrics, name, METRICS_MAX);
        if (v[i] < 0)
            return false;
    }
    set_pool(page, pool, v[0], v[1], v[2]);
    return true;
}

static bool token_pools(const struct metrics *metrics, struct gauge_page *page)
{
    bool full = token_pool(metrics, "kv", POOL_FULL, page),
        swa = token_pool(metrics, "swa", POOL_SWA, page);
    if (!full) /* older versions report shares only */
        set_gauge(page, GAUGE_POOL + POOL_FULL, value_of(metrics, "full_token_usage", METRICS_MAX));
    if (!swa)
        set_gauge(page, GAUGE_POOL + POOL_SWA, value_of(metrics, "swa_token_usage", METRICS_MAX));
    token_pool(metrics, "draft", POOL_DRAFT, page);
    if (isnan(page->v[GAUGE_POOL + POOL_FULL]))
        return false;
    page->about = full ? "tokens, as the server counts them; used by requests, evictable: held by "
                         "the prefix cache only; of several ranks, which hold the same tokens, the "
                         "fullest"
                       : "shares, as the server reports them, without the sizes of the pools; of "
                         "several ranks the fullest";
    return true;
}

/* A label of cache_config_info as a number; -1: it has none. */
static double config_label(const struct metrics *metrics, const char *label)
{
    double v = -1;
    for (int i = 0; i < metrics->n && v < 0; i++) {
        FREED(buf_free) struct buf text = {0};
        if (!strcmp(metrics->at[i].name, "cache_config_info") &&
            metric_label(&metrics->at[i], label, &text) && text.p)
            v = strtod(text.p, NULL);
    }
    return v;
}

static bool block_pool(const struct metrics *metrics, struct gauge_page *page)
{
    double share = value_of(metrics, "kv_cache_usage_perc", METRICS_MAX);
    double blocks = config_label(metrics, "num_gpu_blocks"),
        size = config_label(metrics, "block_size");
    if (share < 0 || share > 1)
        return false;
    page->unit = "blocks";
    page->about = "vLLM reports one share of all blocks: full and window layers are not apart, and "
                  "blocks that only the prefix cache holds count as free; of several engines the "
                  "fullest";
    if (blocks >= 1 && blocks < INT32_MAX / 4 && size >= 1 && size <= 65536) {
        set_pool(page, POOL_FULL, share * blocks, blocks - whole(share * blocks), 0);
        page->pool[POOL_FULL].page_size = (int)size;
    }
    set_gauge(page, GAUGE_POOL + POOL_FULL, share);
    return true;
}

static bool read_metrics(const struct metrics *metrics, struct gauge_page *page)
{
    bool pools = isnan(page->v[GAUGE_POOL + POOL_FULL]) &&
                 (token_pools(metrics, page) || block_pool(metrics, page));
    set_gauge(page, GAUGE_RUNNING,
              first_of(metrics, "num_running_reqs", "num_requests_running", "requests_processing"));
    set_gauge(page, GAUGE_WAITING,
              first_of(metrics, "num_queue_reqs", "num_requests_waiting", "requests_deferred"));
    set_gauge(page, GAUGE_TOKENS, value_of(metrics, "gen_throughput", METRICS_SUM));
    set_gauge(page, GAUGE_HITS, value_of(metrics, "cache_hit_rate", METRICS_MAX));
    set_gauge(page, GAUGE_MAL, value_of(metrics, "spec_accept_length", METRICS_MAX));
    if (page->v[GAUGE_MAL] < 1) /* 0: nothing was drafted */
        page->v[GAUGE_MAL] = NAN;
    page->hits = first_of(metrics, "prefix_cache_hits_total",
                          "prompt_tokens_cached_total", NULL);
    page->queries = value_of(metrics, "prefix_cache_queries_total", METRICS_SUM);
    double computed = value_of(metrics, "prompt_tokens_total", METRICS_SUM);
    /* llama-server counts prompt tokens without the cached ones */
    if (page->queries < 0 && page->hits >= 0 && computed >= 0)
        page->queries = page->hits + computed;
    page->tokens = first_of(metrics, "generation_tokens_total",
                            "tokens_predicted_total", NULL);
    page->drafts = value_of(metrics, "spec_decode_num_drafts_total", METRICS_SUM);
    page->accepted = value_of(metrics, "spec_decode_num_accepted_tokens_total", METRICS_SUM);
    return pools || page->v[GAUGE_RUNNING] >= 0 || page->tokens >= 0;
}

static bool read_slots(const char *text, size_t n, struct gauge_page *page)
{
    double total = 0, used = 0, running = 0;
    json_t *all = json_parse(text, n, 0, NULL), *slot;
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
    page->unit = "slots";
    page->about = "tokens of the server's slots; tokens that an idle slot holds for later count as "
                  "used";
    set_pool(page, POOL_FULL, used, total - whole(used), 0);
    page->v[GAUGE_RUNNING] = (float)running;
    return true;
}

/* Whether a page is a JSON array; its bytes need not end in a NUL. */
static bool is_array(const char *page, size_t n)
{
    while (n && strchr(" \t\r\n", *page) && *page)
        page++, n--;
    return n && *page == '[';
}

bool gauges_read(enum server_kind kind, const char *text, size_t n, struct gauge_page *page)
{
    FREED(metrics_free) struct metrics metrics = {0};
    if (kind == SERVER_LLAMA && is_array(text, n))
        return read_slots(text, n, page);
    return metrics_read(&metrics, text, n, NULL) && read_metrics(&metrics, page);
}

/* ---- over time ------------------------------------------------------------------------------- */

/* The increase of a counter; -1: not known, or the server was restarted. */
static double growth(double now, double before)
{
    return now >= 0 && before >= 0 && now >= before ? now - before : -1;
}

void gauges_add(struct gauges *gauges, const struct gauge_page *now, uint64_t ns,
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
    LOCKED(&gauges->mu);
    if (!gauges->sample)
        gauges->sample = xcalloc(GAUGES_KEPT, sizeof *gauges->sample);
    gauges->sample[gauges->n_sample++ % GAUGES_KEPT] = s;
    gauges->page = *now;
    gauges->view.n_read++;
    gauges->view.fault[0] = '\0';
    gauges->view.unit = now->unit;
    gauges->view.about = now->about ? now->about : "from the server's metrics, which say nothing "
    "about its KV pools";
    gauges->view.hits = now->hits;
    gauges->view.queries = now->queries;
    for (int i = 0; i < N_GAUGES; i++)
        gauges->view.reported[i] |= !isnan(s.v[i]);
}

void gauges_pools(struct gauges *gauges, struct pool_view pool[N_POOLS])
{
    LOCKED(&gauges->mu);
    memcpy(pool, gauges->page.pool, sizeof gauges->page.pool);
}

void gauges_view(struct gauges *gauges, struct gauges_view *out)
{
    LOCKED(&gauges->mu);
    *out = gauges->view;
}

int gauges_samples(struct gauges *gauges, struct gauge_sample *out, int max)
{
    LOCKED(&gauges->mu);
    uint64_t held = gauges->n_sample < GAUGES_KEPT ? gauges->n_sample : GAUGES_KEPT;
    int n = min_int(max, (int)held);
    for (int i = 0; i < n; i++)
        out[i] = gauges->sample[(gauges->n_sample - (uint64_t)(n - i)) % GAUGES_KEPT];
    return n;
}

/* ---- asking ---------------------------------------------------------------------------------- */

void gauges_open(struct gauges *gauges)
{
    pthread_mutex_init(&gauges->mu, NULL);
    gauge_page_init(&gauges->page);
    gauges->view.hits = gauges->view.queries = -1;
}

void gauges_close(struct gauges *gauges, struct http *http)
{
    if (gauges->asking)
        http_end(http, &gauges->call);
    buf_free(&gauges->call.answer);
    buf_free(&gauges->metrics);
    free(gauges->sample);
    pthread_mutex_destroy(&gauges->mu);
}

/* The i-th page that a server answers; NULL: there are no more. */
static const char *page_path(const struct server *server, int i)
{
    bool slots = server->kind == SERVER_LLAMA && server->answers[REPORT_POOLS];
    if (slots && i == 0)
        return "/slots";
    return server->answers[REPORT_METRICS] && i == slots ? "/metrics" : NULL;
}

static void begin_page(struct gauges *gauges, struct http *http, const char *path)
{
    struct buf answer = gauges->call.answer;
    gauges->call = (struct http_call){.method = "GET", .answer = answer, .path = path};
    gauges->asking = true;
    http_begin(http, &gauges->call);
}

static void note_failure(struct gauges *gauges, const struct err *e)
{
    LOCKED(&gauges->mu);
    gauges->view.n_failed++;
    snprintf(gauges->view.fault, sizeof gauges->view.fault, "%.190s", e->msg);
}

/* False: the reading has failed; the old numbers and their time are kept. */
static bool take_page(struct gauges *gauges, enum server_kind kind)
{
    const struct buf *b = &gauges->call.answer;
    struct err e;
    gauges->unreachable = gauges->call.failed;
    if (gauges->call.failed)
        e = gauges->call.why;
    else if (gauges->call.status != 200)
        http_refused(&gauges->call, &e);
    else if (gauges_read(kind, buf_text(b), b->n, &gauges->now))
        return true;
    else
        err_set(&e, ERR_MODEL, "%s says nothing about pools or requests", gauges->call.path);
    note_failure(gauges, &e);
    return false;
}

static bool read_buf(const struct buf *b, enum server_kind kind, struct gauge_page *page)
{
    return b->n && gauges_read(kind, b->p, b->n, page);
}

void gauges_first(struct gauges *gauges, const struct server *server, int ms)
{
    struct gauge_page page;
    gauge_page_init(&page);
    bool slots = read_buf(&server->slots, server->kind, &page);
    bool read = read_buf(&server->page, server->kind, &page) || slots;
    gauges->view.ms = ms;
    if (!read)
        return;
    gauges->ns_begin = clock_ns();
    gauges_add(gauges, &page, gauges->ns_begin, &gauges->before, 0);
    gauges->before = page;
}

int gauges_look(struct gauges *gauges, struct http *http, const struct server *server, int ms)
{
    uint64_t now = clock_ns(), before = gauges->ns_begin;
    if (gauges->view.ms != ms) {
        pthread_mutex_lock(&gauges->mu);
        gauges->view.ms = ms;
        pthread_mutex_unlock(&gauges->mu);
    }
    if (gauges->asking && gauges->call.done) {
        http_end(http, &gauges->call);
        gauges->asking = false;
        bool ok = take_page(gauges, server->kind);
        if (ok && strcmp(gauges->call.path, "/metrics") == 0) {
            buf_clear(&gauges->metrics);
            buf_add(&gauges->metrics, gauges->call.answer.p, gauges->call.answer.n);
            gauges->ns_metrics = clock_ns();
        }
        const char *more = ok ? page_path(server, ++gauges->path) : NULL;
        if (more) {
            begin_page(gauges, http, more);
        } else if (ok) {
            uint64_t last = gauges->n_sample
                                ? gauges->sample[(gauges->n_sample - 1) % GAUGES_KEPT].ns : 0;
            gauges_add(gauges, &gauges->now, gauges->ns_begin, &gauges->before, last);
            gauges->before = gauges->now;
        }
    }
    uint64_t due = before + (uint64_t)ms * 1000000;
    if (gauges->asking || ms == 0 || !page_path(server, 0))
        return ms ? min_int(ms, 1000) : 60000;
    if (before && now < due)
        return (int)((due - now) / 1000000) + 1;
    gauges->ns_begin = now;
    gauges->path = 0;
    gauge_page_init(&gauges->now);
    begin_page(gauges, http, page_path(server, 0));
    return 0;
}
