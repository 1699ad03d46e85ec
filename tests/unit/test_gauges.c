/* test_gauges.c - a server's metrics over time: the ring of readings, rates from counters, graphs;
 * and the numbers derived from a server's counts, each compared with an independent computation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/remote/gauges.h"
#include "engine/remote/reply_events.h"
#include "repl/app/gauges.h"
#include "repl/app/served.h"

enum { S = 1000000000 };

static struct gauge_page page_of(double full, double queries, double hits, double tokens,
                                 double drafts, double accepted)
{
    struct gauge_page p;
    gauge_page_init(&p);
    p.v[GAUGE_POOL] = (float)full;
    p.queries = queries;
    p.hits = hits;
    p.tokens = tokens;
    p.drafts = drafts;
    p.accepted = accepted;
    return p;
}

static void rates_come_from_counters(void **state)
{
    (void)state;
    struct gauges g = {0};
    struct gauge_sample s[8];
    struct gauges_view v;
    struct gauge_page a = page_of(0.5, 100, 50, 1000, 10, 20),
        b = page_of(0.6, 300, 200, 1500, 30, 70);
    struct gauge_page c = page_of(0.7, 300, 200, 1500, 30, 70), d = page_of(0.1, 5, 5, 10, 1, 1);
    gauges_open(&g);
    gauges_add(&g, &a, 1 * (uint64_t)S, &a, 0);
    gauges_add(&g, &b, 3 * (uint64_t)S, &a, 1 * (uint64_t)S);
    gauges_add(&g, &c, 4 * (uint64_t)S, &b, 3 * (uint64_t)S);
    gauges_add(&g, &d, 5 * (uint64_t)S, &c, 4 * (uint64_t)S); /* the server began anew */
    assert_int_equal(gauges_samples(&g, s, 8), 4);
    assert_true(isnan(s[0].v[GAUGE_TOKENS]) && isnan(s[0].v[GAUGE_HITS]) &&
                isnan(s[0].v[GAUGE_MAL]));
    assert_float_equal(s[1].v[GAUGE_TOKENS], 250, 1e-3); /* 500 in 2 s */
    assert_float_equal(s[1].v[GAUGE_HITS], 0.75, 1e-6);  /* 150 of 200 */
    assert_float_equal(s[1].v[GAUGE_MAL], 3.5, 1e-6);    /* 1 + 50/20 */
    /* nothing happened: no rate of hits or drafts */
    assert_float_equal(s[2].v[GAUGE_TOKENS], 0, 1e-6);
    assert_true(isnan(s[2].v[GAUGE_HITS]) && isnan(s[2].v[GAUGE_MAL]));
    assert_true(isnan(s[3].v[GAUGE_TOKENS]) && isnan(s[3].v[GAUGE_HITS]) &&
                isnan(s[3].v[GAUGE_MAL]));
    assert_float_equal(s[3].v[GAUGE_POOL], 0.1, 1e-6);
    gauges_view(&g, &v);
    assert_true(v.n_read == 4 && v.reported[GAUGE_POOL] && v.reported[GAUGE_MAL] &&
                !v.reported[GAUGE_WAITING]);
    assert_true(v.hits == 5 && v.queries == 5);
    gauges_close(&g, NULL);
}

static void the_ring_keeps_the_latest_readings_in_their_order(void **state)
{
    (void)state;
    struct gauges g = {0};
    struct gauge_sample *s = malloc(GAUGES_KEPT * sizeof *s);
    struct gauge_page p = page_of(0, -1, -1, -1, -1, -1);
    gauges_open(&g);
    for (int i = 1; i <= GAUGES_KEPT + 100; i++) {
        p.v[GAUGE_RUNNING] = (float)i;
        gauges_add(&g, &p, (uint64_t)i * S, &p, (uint64_t)(i - 1) * S);
        if (i == 7) {
            assert_int_equal(gauges_samples(&g, s, GAUGES_KEPT), 7);
            assert_true(s[0].v[GAUGE_RUNNING] == 1 && s[6].v[GAUGE_RUNNING] == 7);
        }
    }
    assert_int_equal(gauges_samples(&g, s, GAUGES_KEPT), GAUGES_KEPT);
    for (int i = 0; i < GAUGES_KEPT; i++)
        assert_true(s[i].v[GAUGE_RUNNING] == (float)(i + 101));
    assert_int_equal(gauges_samples(&g, s, 3), 3); /* the latest */
    assert_true(s[0].v[GAUGE_RUNNING] == GAUGES_KEPT + 98 &&
                s[2].v[GAUGE_RUNNING] == GAUGES_KEPT + 100);
    gauges_close(&g, NULL);
    free(s);
}

/* Every reading falls into one cell; a cell has the greatest of its readings; cells without one are
 * holes. */
static void a_graph_shows_the_greatest_value_of_each_time(void **state)
{
    (void)state;
    struct gauge_sample at[200];
    struct gauge_series s = {.at = at};
    uint64_t seed = 7;
    s.view.ms = 1000;
    for (int round = 0; round < 300; round++) {
        float cell[60];
        double ms;
        int most = 1 + (int)(mix64(seed++) % 60);
        uint64_t ns = S;
        float top = -1;
        s.n = 1 + (int)(mix64(seed++) % 200);
        for (int i = 0; i < s.n; i++) {
            /* now and then a reading fails for a while */
            ns += (uint64_t)S * (mix64(seed++) % 10 ? 1 : 9);
            at[i].ns = ns;
            at[i].v[GAUGE_RUNNING] = (float)(mix64(seed++) % 50);
            top = fmaxf(top, at[i].v[GAUGE_RUNNING]);
        }
        int used = gauge_cells(&s, GAUGE_RUNNING, most, cell, &ms);
        double span = (double)(at[s.n - 1].ns - at[0].ns) / 1e6;
        float seen = -1;
        int holes = 0;
        assert_true(used >= 1 && used <= most && ms >= 1000 && (double)used * ms >= span);
        for (int c = 0; c < used; c++) {
            holes += isnan(cell[c]);
            seen = isnan(cell[c]) ? seen : fmaxf(seen, cell[c]);
        }
        assert_true(seen == top && !isnan(cell[used - 1]) && !isnan(cell[0]));
        if (span < 1000.0 * most - 1000) /* one cell a second: as many cells as readings */
            assert_int_equal(used - holes, s.n);
        struct gauge_range r = gauge_range(&s, GAUGE_RUNNING);
        assert_true(r.max == top && r.n == s.n && r.min <= r.last &&
                    r.last == at[s.n - 1].v[GAUGE_RUNNING]);
    }
}

/* Of steps, a cell is a whole number of them; pools show their greatest value, rates their mean. */
static void a_graph_of_steps_has_whole_steps_in_a_cell(void **state)
{
    (void)state;
    enum { STEPS = 45 };
    struct gauge_sample at[STEPS];
    struct address step[STEPS];
    struct gauge_series s = {.at = at, .step = step, .n = STEPS, .view = {.ms = 1}};
    float pool[60], rate[60];
    double ms;
    for (int i = 0; i < STEPS; i++) {
        at[i].ns = (uint64_t)i * 1000000;
        at[i].v[GAUGE_POOL] = (float)i;
        at[i].v[GAUGE_MAL] = i % 5 ? (float)i : NAN; /* some did not draft */
        step[i] = (struct address){1, i + 1};
    }
    int used = gauge_cells(&s, GAUGE_POOL, 43, pool, &ms);
    assert_true(ms == 2 && used == gauge_cells(&s, GAUGE_MAL, 43, rate, &ms));
    for (int c = 0, i = 0; c < used; c++) {
        float most = NAN, sum = 0;
        int n = 0;
        for (; i < STEPS && (int)(i / 2.0 + 0.5) == c; i++) {
            most = (float)i;
            sum += i % 5 ? (float)i : 0;
            n += i % 5 != 0;
        }
        assert_true(pool[c] == most);
        assert_true(n ? fabsf(rate[c] - sum / (float)n) < 1e-4f : isnan(rate[c]));
    }
    assert_int_equal(gauge_cells(&s, GAUGE_POOL, 60, pool, &ms), STEPS);
    assert_true(ms == 1);
}

static void lengths_follow_each_servers_definition(void **state)
{
    (void)state;
    struct served s = {.generated = 80, .drafted = 125, .accepted = 54, .verifies = 25};
    assert_float_equal(server_length(SERVER_VLLM)(&s), 1 + 54.0 / 25, 1e-12);
    assert_float_equal(server_length(SERVER_AERIE)(&s), 1 + 54.0 / 25, 1e-12);
    assert_float_equal(server_length(SERVER_SGLANG)(&s), 80.0 / 25, 1e-12);
    assert_float_equal(server_length(SERVER_LLAMA)(&s), 80.0 / 26, 1e-12);
    s.verifies = -1;
    assert_true(isnan(server_length(SERVER_VLLM)(&s)) && isnan(server_length(SERVER_SGLANG)(&s)));
    s.accepted = s.drafted = -1;
    assert_true(isnan(server_length(SERVER_LLAMA)(&s)));
    for (int k = 0; k < N_SERVERS; k++) /* a formula is beside every number */
        assert_true((server_length((enum server_kind)k) != NULL) ==
                    (server_length_formula((enum server_kind)k) != NULL));
}

/* A reply of these pieces whose server lists these steps. */
static int lead_of(const int *piece, int n_piece, const int *accepted, int n_step)
{
    struct piece p[16];
    struct incoming in = {.piece = p, .n_piece = n_piece};
    for (int i = 0; i < n_piece; i++) {
        p[i] = (struct piece){.first = in.n_token, .n = piece[i]};
        in.n_token += piece[i];
    }
    for (int i = 0; i < n_step; i++)
        ids_add(&in.accepted, accepted[i]);
    int lead = server_steps_lead(&in);
    ids_free(&in.accepted);
    return lead;
}

static void the_first_token_is_the_prompts(void **state)
{
    (void)state;
    const int three[] = {2, 0, 3};
    assert_int_equal(lead_of((int[]){1, 3, 1, 4}, 4, three, 3), 1);
    assert_int_equal(lead_of((int[]){3, 1, 4}, 3, three, 3), 0);
    assert_int_equal(lead_of((int[]){1, 3, 1, 2}, 4, three, 3), 1); /* the last step was clipped */
    assert_int_equal(lead_of((int[]){3, 1, 2}, 3, three, 3), 0);
    /* no piece tells: as vLLM lists them */
    assert_int_equal(lead_of((int[]){7}, 1, three, 3), 1);
    assert_int_equal(lead_of((int[]){9}, 1, three, 3), 1);
    assert_int_equal(lead_of((int[]){12}, 1, three, 3), -1);        /* steps are missing */
    assert_int_equal(lead_of((int[]){3}, 1, three, 3), -1);         /* too many */
}

static void spreads_are_by_nearest_rank(void **state)
{
    (void)state;
    double v[500];
    uint64_t seed = 3;
    assert_true(isnan(spread_of(v, 0).median) && spread_of(v, 0).n == 0);
    for (int n = 1; n <= 500; n += 7) {
        for (int i = 0; i < n; i++)
            v[i] = (double)(mix64(seed++) % 1000);
        struct spread s = spread_of(v, n);
        int below = 0, half = 0, above = 0;
        /* at least 99 % are not above it, and it is the least such number */
        for (int i = 0; i < n; i++) {
            below += v[i] <= s.p99;
            above += v[i] < s.p99;
            half += v[i] <= s.median;
        }
        assert_true(below * 100 >= 99 * n && above * 100 < 99 * n && half * 2 >= n &&
                    s.max == v[n - 1]);
    }
}

static void gaps_are_within_a_reply(void **state)
{
    (void)state;
    struct step_info step[] = {
        {.turn = 1, .step = 1, .rec = {.us_arrived = 5000}, .n_token = 1},
        {.turn = 1, .step = 2, .rec = {.us_arrived = 15000}, .n_token = 3},
        {.turn = 1, .step = 3, .rec = {.us_arrived = 18000}, .n_token = 2},
        {.turn = 2, .step = 1, .rec = {.us_arrived = 4000}, .n_token = 1},
        {.turn = 2, .step = 2, .rec = {.us_arrived = 6000}, .n_token = 4}};
    struct served_replies r = {.step = step, .n_step = 5};
    double *v, tokens;
    assert_int_equal(served_gaps(&r, &v, &tokens), 3);
    assert_true(v[0] == 10 && v[1] == 3 && v[2] == 2);
    assert_float_equal(tokens, 3, 1e-12);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_come_from_counters),
        cmocka_unit_test(the_ring_keeps_the_latest_readings_in_their_order),
        cmocka_unit_test(a_graph_shows_the_greatest_value_of_each_time),
        cmocka_unit_test(a_graph_of_steps_has_whole_steps_in_a_cell),
        cmocka_unit_test(lengths_follow_each_servers_definition),
        cmocka_unit_test(the_first_token_is_the_prompts),
        cmocka_unit_test(spreads_are_by_nearest_rank),
        cmocka_unit_test(gaps_are_within_a_reply),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
