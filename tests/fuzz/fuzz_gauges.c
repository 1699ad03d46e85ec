/* Pools and gauges from metrics and slots of every kind of server: numbers that a pane can draw.
 * The input is one page or, cut at the first NUL, two pages a second apart. */
#include "engine/remote/gauges.h"
#include "tests/fuzz/arena.h"

#include <math.h>

const int fuzz_inputs = 3000;

static void check_page(const struct gauge_page *p)
{
    for (int i = 0; i < N_POOLS; i++) {
        const struct pool_view *v = &p->pool[i];
        if (!v->exists)
            continue;
        CHECK(v->total >= 0 && v->used >= 0 && v->free >= 0 && v->evictable >= 0 &&
              v->page_size >= 1);
        CHECK((int64_t)v->used + v->free + v->evictable == v->total);
    }
    CHECK(p->hits >= -1 && p->queries >= -1 && p->tokens >= -1 && p->drafts >= -1 &&
          p->accepted >= -1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct gauges g;
    struct gauge_page page[2];
    struct gauge_sample sample[2];
    struct gauges_view view;
    unsigned kind = fuzz_choice(data, &n) % N_SERVERS;
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    size_t first = nul ? (size_t)(nul - data) : n;
    const size_t from[] = {0, nul ? first + 1 : 0}, len[] = {first, nul ? n - first - 1 : 0};
    arena_begin();
    if (!g.sample)
        gauges_open(&g);
    for (int i = 0; i < 2; i++) {
        gauge_page_init(&page[i]);
        gauges_read((enum server_kind)kind, fuzz_tail(data + from[i], len[i]), len[i], &page[i]);
        check_page(&page[i]);
    }
    gauges_add(&g, &page[1], 2000000000, &page[0], 1000000000);
    gauges_view(&g, &view);
    CHECK(gauges_samples(&g, sample, 1) == 1);
    CHECK(isnan(sample[0].v[GAUGE_HITS]) || sample[0].v[GAUGE_HITS] >= 0);
    CHECK(isnan(sample[0].v[GAUGE_TOKENS]) || sample[0].v[GAUGE_TOKENS] >= 0);
    arena_end();
    return 0;
}
