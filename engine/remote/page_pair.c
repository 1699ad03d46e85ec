/* page_pair.c - see page_pair.h. */
#include "engine/remote/page_pair.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remote/metrics.h"
#include "kernels/ascii.h"

/* ---- two pages into one list ----------------------------------------------------------------- */

/* Appends the labels without the model's name. False: they are of another model. */
static bool own_labels(const struct metric *m, const char *model, struct buf *out)
{
    struct buf name = {0};
    bool named = metric_label(m, "model_name", &name);
    bool own = !named || strcmp(name.p ? name.p : "", model) == 0;
    buf_free(&name);
    buf_str(out, "");
    const char *at = m->labels, *p;
    for (size_t n; own && (p = metric_pair(&at, &n));)
        if (strncmp(p, "model_name", 10) != 0)
            buf_printf(out, "%s%.*s", out->n ? "," : "", (int)n, p);
    return own;
}

static void add_page(const struct buf *page, bool is_after, const char *model, struct served *out)
{
    struct metrics m;
    if (!page->n || !metrics_read(&m, page->p, page->n, NULL))
        return;
    for (int i = 0; i < m.n; i++) {
        const struct metric *s = &m.at[i];
        struct buf labels = {0};
        bool part = ends_with(s->name, "_bucket") || ends_with(s->name, "_created") ||
                    ends_with(s->name, "_info");
        if (*s->prefix && !part && !isnan(s->value) && own_labels(s, model, &labels)) {
            out->metric = xrealloc(out->metric, (size_t)out->n_metric + 1, sizeof *out->metric);
            out->metric[out->n_metric++] = (struct served_metric){
                xasprintf("%s:%s", s->prefix, s->name), xstrdup(labels.p),
                is_after ? NAN : s->value, is_after ? s->value : NAN};
        }
        buf_free(&labels);
    }
    metrics_free(&m);
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
        free(x->name);
        free(x->labels);
    }
    out->n_metric = n;
}

/* ---- reading pages --------------------------------------------------------------------------- */

void page_pair_open(struct page_pair *p, struct server *s)
{
    p->page = s->page;
    p->ns = s->page.n ? clock_ns() : 0;
    s->page = (struct buf){0};
}

void page_pair_begin(struct page_pair *p, const struct gauges *g)
{
    const struct buf *page = g->ns_metrics > p->ns ? &g->metrics : &p->page;
    buf_clear(&p->before);
    if (page->n)
        buf_add(&p->before, page->p, page->n);
    p->ns_before = g->ns_metrics > p->ns ? g->ns_metrics : p->ns;
}

void page_pair_end(struct page_pair *p, struct http *h, const char *model, uint64_t ns_sent, int ms,
                   struct served *out)
{
    static const struct buf none;
    uint64_t end = clock_ns(), until = end + (uint64_t)ms * 1000000;
    p->call = (struct http_call){.method = "GET", .path = "/metrics"};
    http_begin(h, &p->call);
    while (!p->call.done && clock_ns() < until)
        http_run(h, 10);
    http_end(h, &p->call);
    bool got = p->call.done && !p->call.failed && p->call.status == 200;
    page_pair_join(&p->before, got ? &p->call.answer : &none, model, out);
    if (p->ns_before)
        out->ms_before = ns_sent > p->ns_before ? (double)(ns_sent - p->ns_before) / 1e6 : 0;
    if (got) {
        buf_free(&p->page);
        p->page = p->call.answer;
        p->ns = clock_ns();
        out->ms_after = (double)(p->ns - end) / 1e6;
    } else {
        buf_free(&p->call.answer);
    }
    p->call.answer = (struct buf){0};
}

void page_pair_close(struct page_pair *p)
{
    buf_free(&p->page);
    buf_free(&p->before);
}
