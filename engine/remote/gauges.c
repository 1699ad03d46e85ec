/* gauges.c - see gauges.h. Metric names: those of vLLM 0.26, of SGLang in late 2026, and the fields of
 * llama-server's /slots. */
#include "engine/remote/gauges.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remote/metrics.h"

static double value_of(const struct metrics *m, const char *name, enum metrics_join join)
{
    double v;
    return metrics_value(m, name, NULL, NULL, join, &v, NULL) && v >= 0 && v < 1e15 ? v : -1;
}

static int whole(double v)
{
    return v > INT32_MAX ? INT32_MAX : (int)(v + 0.5);
}

/* used + free + evictable == total, in tokens. */
static void set_pool(struct pool_view *p, double used, double free_, double evictable)
{
    *p = (struct pool_view){.exists = true, .page_size = 1, .used = whole(used), .free = whole(free_),
                            .evictable = whole(evictable)};
    p->total = p->used + p->free + p->evictable;
}

/* One rank's pool is every rank's: the ranks of tensor parallelism hold the same tokens, so the
 * greatest value counts. */
static bool sglang_pool(const struct metrics *m, const char *prefix, struct pool_view *out)
{
    char name[64];
    double v[3];
    static const char *const part[] = {"used_tokens", "available_tokens", "evictable_tokens"};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s_%s", prefix, part[i]);
        v[i] = value_of(m, name, METRICS_MAX);
        if (v[i] < 0)
            return false;
    }
    set_pool(out, v[0], v[1], v[2]);
    return true;
}

static bool read_sglang(const struct metrics *m, struct gauge_view *v)
{
    v->about = "tokens, from the server's metrics; the ranks hold the same tokens, the greatest counts";
    v->running = value_of(m, "num_running_reqs", METRICS_SUM);
    v->waiting = value_of(m, "num_queue_reqs", METRICS_SUM);
    bool full = sglang_pool(m, "kv", &v->pool[POOL_FULL]);
    sglang_pool(m, "swa", &v->pool[POOL_SWA]);
    return full;
}

/* A label of cache_config_info as a number; -1: it has none. */
static double config_label(const struct metrics *m, const char *label)
{
    double v = -1;
    for (int i = 0; i < m->n && v < 0; i++) {
        struct buf text = {0};
        if (!strcmp(m->at[i].name, "cache_config_info") && metric_label(&m->at[i], label, &text) && text.p)
            v = strtod(text.p, NULL);
        buf_free(&text);
    }
    return v;
}

static bool read_vllm(const struct metrics *m, struct gauge_view *v)
{
    double share = value_of(m, "kv_cache_usage_perc", METRICS_MAX);
    double blocks = config_label(m, "num_gpu_blocks"), size = config_label(m, "block_size");
    v->about = "vLLM reports one share of all blocks: full and window layers are not apart, and blocks "
               "that only the prefix cache holds count as free";
    v->running = value_of(m, "num_requests_running", METRICS_SUM);
    v->waiting = value_of(m, "num_requests_waiting", METRICS_SUM);
    v->hits = (uint64_t)fmax(0, value_of(m, "prefix_cache_hits_total", METRICS_SUM));
    v->queries = (uint64_t)fmax(0, value_of(m, "prefix_cache_queries_total", METRICS_SUM));
    if (share < 0 || share > 1 || blocks < 1 || size < 1 || size > 65536)
        return false;
    set_pool(&v->pool[POOL_FULL], share * blocks, blocks - whole(share * blocks), 0);
    v->pool[POOL_FULL].page_size = (int)size;
    return true;
}

static bool read_slots(const char *page, size_t n, struct gauge_view *v)
{
    double total = 0, used = 0;
    json_t *all = json_loadb(page, n, 0, NULL), *slot;
    size_t i;
    v->about = "tokens of the server's slots; what a slot holds for later counts as used";
    v->running = 0;
    json_array_foreach(all, i, slot) {
        /* the prompt's tokens and those generated so far */
        double held = json_number_value(json_object_get(slot, "n_prompt_tokens"));
        total += json_number_value(json_object_get(slot, "n_ctx"));
        used += fmax(0, held);
        v->running += json_is_true(json_object_get(slot, "is_processing"));
    }
    json_decref(all);
    if (total <= 0 || total > INT32_MAX)
        return false;
    set_pool(&v->pool[POOL_FULL], fmin(used, total), total - whole(fmin(used, total)), 0);
    return true;
}

bool gauges_read(enum server_kind kind, const char *page, size_t n, struct gauge_view *out)
{
    struct metrics m;
    *out = (struct gauge_view){.running = -1, .waiting = -1};
    if (kind == SERVER_LLAMA)
        return read_slots(page, n, out);
    if (!metrics_read(&m, page, n, NULL))
        return false;
    bool ok = kind == SERVER_SGLANG ? read_sglang(&m, out) : read_vllm(&m, out);
    metrics_free(&m);
    return ok;
}

/* ---- asking ---------------------------------------------------------------------------------- */

void gauges_open(struct gauges *g)
{
    pthread_mutex_init(&g->mu, NULL);
}

void gauges_close(struct gauges *g, struct http *h)
{
    if (g->running)
        http_end(h, &g->call);
    buf_free(&g->call.answer);
    pthread_mutex_destroy(&g->mu);
}

static void take_page(struct gauges *g, enum server_kind kind)
{
    struct gauge_view v;
    const struct buf *b = &g->call.answer;
    if (g->call.failed || g->call.status != 200 || !gauges_read(kind, b->p ? b->p : "", b->n, &v))
        return; /* the old numbers stay, with their time */
    v.ns = clock_ns();
    pthread_mutex_lock(&g->mu);
    g->view = v;
    pthread_mutex_unlock(&g->mu);
}

void gauges_look(struct gauges *g, struct http *h, const struct server *s)
{
    if (g->running && g->call.done) {
        http_end(h, &g->call);
        g->running = false;
        take_page(g, s->kind);
        g->ns_next = clock_ns() + (uint64_t)GAUGE_MS * 1000000;
    }
    if (!g->running && clock_ns() >= g->ns_next) {
        struct buf answer = g->call.answer;
        g->call = (struct http_call){.method = "GET", .answer = answer,
                                     .path = s->kind == SERVER_LLAMA ? "/slots" : "/metrics"};
        g->running = true;
        http_begin(h, &g->call);
    }
}

void gauges_copy(struct gauges *g, struct gauge_view *out)
{
    pthread_mutex_lock(&g->mu);
    *out = g->view;
    pthread_mutex_unlock(&g->mu);
}
