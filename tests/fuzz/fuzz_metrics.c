/* Metrics in the Prometheus text format: every sample is within the page, sums need no luck. */
#include "engine/remote/metrics.h"
#include "engine/remote/upkeep.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>

const int fuzz_inputs = 3000;

static void look_at_sample(const struct metrics *m, const struct metric *s, size_t n)
{
    static struct buf value;
    static const char *const label[] = {"le", "engine", "tp_rank", "", "a"};
    const char *part[] = {s->name, s->labels};
    for (int i = 0; i < 2; i++)
        CHECK(!*part[i] || (part[i] >= m->text && part[i] + strlen(part[i]) <= m->text + n));
    CHECK(strlen(s->prefix) < n);
    for (size_t i = 0; i < sizeof label / sizeof *label; i++) {
        buf_clear(&value);
        if (metric_label(s, label[i], &value))
            CHECK(value.n <= strlen(s->labels));
    }
}

/* Draft counters are counts or "not reported". */
static void look_at_drafts(const char *page, size_t n)
{
    struct draft_totals t;
    drafts_read(page, n, &t);
    CHECK(t.drafts >= -1 && t.drafted >= -1 && t.accepted >= -1);
    CHECK(t.depths >= 0 && t.depths <= METERED_DEPTHS);
    for (int i = 0; i < t.depths; i++)
        CHECK(t.at[i] >= 0 && t.at[i] < (int64_t)1 << 60);
    CHECK(t.length == 0 || t.length >= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct metrics m;
    struct err e = {0};
    double sum = 0, most = 0;
    int count = 0, times = 0;
    char *page = fuzz_tail(data, n);
    look_at_drafts(page, n);
    bool ok = metrics_read(&m, page, n, &e);
    if (!ok) {
        fuzz_message(&e);
        return 0;
    }
    for (int i = 0; i < m.n; i++)
        look_at_sample(&m, &m.at[i], n);
    for (int i = 0; i < m.n && i < 8; i++) {
        CHECK(metrics_value(&m, m.at[i].name, NULL, NULL, METRICS_SUM, &sum, &count) && count >= 1);
        CHECK(metrics_value(&m, m.at[i].name, NULL, NULL, METRICS_MAX, &most, &times) &&
              times == count);
        CHECK(!(most < m.at[i].value));
        metrics_value(&m, m.at[i].name, "engine", "0", METRICS_SUM, &sum, &times);
        CHECK(times <= count);
    }
    CHECK(!metrics_value(&m, "no such metric", NULL, NULL, METRICS_SUM, &sum, &count) &&
          count == 0);
    metrics_free(&m);
    return 0;
}
