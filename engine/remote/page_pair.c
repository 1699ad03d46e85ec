/* page_pair.c - see page_pair.h. */
#include "engine/remote/page_pair.h"

#include <math.h>

#include "engine/remote/metrics.h"
#include "kernels/ascii.h"

/* ---- two pages into one list ----------------------------------------------------------------- */

/* Appends the labels without the model's name. False: they are of another model. */
static bool own_labels(const struct metric *m, const char *model, struct buf *out)
{
    FREED(buf_free) struct buf name = {0};
    bool named = metric_label(m, "model_name", &name);
    bool own = !named || strcmp(buf_text(&name), model) == 0;
    buf_str(out, "");
    const char *at = m->labels, *p;
    for (size_t n; own && (p = metric_pair(&at, &n));)
        if (strncmp(p, "model_name", 10) != 0)
            buf_printf(out, "%s%.*s", out->n ? "," : "", (int)n, p);
    return own;
}

static void add_page(const struct buf *page, bool is_after, const char *model, struct served *out)
{
    FREED(metrics_free) struct metrics metrics = {0};
    if (!page->n || !metrics_read(&metrics, page->p, page->n, NULL))
        return;
    FOR_EACH(const struct metric, metric, metrics.at, metrics.n) {
        FREED(buf_free) struct buf labels = {0};
        bool part = ends_with(metric->name, "_bucket") || ends_with(metric->name, "_created") ||
                    ends_with(metric->name, "_info");
        if (*metric->prefix && !part && !isnan(metric->value) &&
            own_labels(metric, model, &labels)) {
            *APPEND(out->metric, out->n_metric) = (struct served_metric){
                xasprintf("%s:%s", metric->prefix, metric->name), xstrdup(labels.p),
                is_after ? NAN : metric->value, is_after ? metric->value : NAN};
        }
    }
}

static int by_name(const void *a, const void *b)
{
    const struct served_metric *x = a, *y = b;
    int c = strcmp(x->name, y->name);
    return c ? c : strcmp(x->labels, y->labels);
}

void page_pair_join(const struct buf *before, const struct buf *after, const char *model,
                    struct served *out)
{
    add_page(before, false, model, out);
    add_page(after, true, model, out);
    if (out->n_metric)
        qsort(out->metric, (size_t)out->n_metric, sizeof *out->metric, by_name);
    int n = 0;
    for (int i = 0; i < out->n_metric; i++) {
        struct served_metric *x = &out->metric[i], *last = n ? &out->metric[n - 1] : NULL;
        bool same = last && by_name(last, x) == 0;
        if (same && isnan(last->before))
            last->before = x->before;
        if (same && isnan(last->after))
            last->after = x->after;
        if (!same && n < SERVED_METRICS) {
            out->metric[n++] = *x;
            continue;
        }
        FREE(x->name, x->labels);
    }
    out->n_metric = n;
}

/* ---- reading pages --------------------------------------------------------------------------- */

void page_pair_open(struct page_pair *pair, struct server *server)
{
    pair->page = server->page;
    pair->ns = server->page.n ? clock_ns() : 0;
    server->page = (struct buf){0};
}

void page_pair_begin(struct page_pair *pair, const struct gauges *gauges)
{
    const struct buf *page = gauges->ns_metrics > pair->ns ? &gauges->metrics : &pair->page;
    buf_clear(&pair->before);
    if (page->n)
        buf_add(&pair->before, page->p, page->n);
    pair->ns_before = gauges->ns_metrics > pair->ns ? gauges->ns_metrics : pair->ns;
}

void page_pair_end(struct page_pair *pair, struct http *http, const char *model, uint64_t ns_sent,
                   int ms, struct served *out)
{
    static const struct buf none;
    uint64_t end = clock_ns(), until = end + (uint64_t)ms * 1000000;
    pair->call = (struct http_call){.method = "GET", .path = "/metrics"};
    http_begin(http, &pair->call);
    while (!pair->call.done && clock_ns() < until)
        http_run(http, 10);
    http_end(http, &pair->call);
    bool got = pair->call.done && !pair->call.failed && pair->call.status == 200;
    page_pair_join(&pair->before, got ? &pair->call.answer : &none, model, out);
    if (pair->ns_before)
        out->ms_before = ns_sent > pair->ns_before ? (double)(ns_sent - pair->ns_before) / 1e6 : 0;
    if (got) {
        buf_free(&pair->page);
        pair->page = pair->call.answer;
        pair->ns = clock_ns();
        out->ms_after = (double)(pair->ns - end) / 1e6;
    } else {
        buf_free(&pair->call.answer);
    }
    pair->call.answer = (struct buf){0};
}

void page_pair_close(struct page_pair *pair)
{
    buf_free(&pair->page);
    buf_free(&pair->before);
}
