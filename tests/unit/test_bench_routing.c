/* test_bench_routing.c - experts that the rows of a pass hit, as `aerie bench` reports them:
 * against a count from the router's logits that this file computes, against the formulas, and what
 * text-like routing changes and leaves as it was. */
#include "engine/tools/bench.h"
#include "engine/tools/bench_routing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 24, EXPERTS = 32, TOP_K = 4, WIDE = 128 }; /* of small-moe-32 */

/* ---- a direct count -------------------------------------------------------------------------- */

static struct {
    struct kernels k;
    int hit[LAYERS]; /* of the last LAYERS operations, one after the other */
    int calls;
} spy;

/* The bf16 numbers of a tensor as the CPU stores it. */
static float at(const struct tensor *t, size_t i)
{
    assert_int_equal(t->type, DT_BF16);
    return bf16_to_f32(((const uint16_t *)t->data)[i]);
}

/* Marks the experts of a row: the largest logits of router rms_norm(x) + bias. */
static void mark_chosen(const struct k_moe *a, const float *x, bool *seen)
{
    double squares = 0, logit[EXPERTS];
    for (int i = 0; i < a->in; i++)
        squares += (double)x[i] * (double)x[i];
    double inv = 1 / sqrt(squares / a->in + (double)a->pre.eps);
    for (int e = 0; e < EXPERTS; e++) {
        logit[e] = (double)at(a->router_b, (size_t)e);
        for (int i = 0; i < a->in; i++)
            logit[e] += (double)at(a->router, (size_t)(e * a->in + i)) * (double)x[i] * inv *
                        (double)at(a->pre.w, (size_t)i);
    }
    for (int k = 0; k < TOP_K; k++) {
        int best = 0;
        for (int e = 1; e < EXPERTS; e++)
            best = logit[e] > logit[best] ? e : best;
        seen[best] = true;
        logit[best] = -INFINITY;
    }
}

static void spy_moe(struct kdev *d, const struct k_moe *a)
{
    bool seen[EXPERTS] = {false};
    int hit = 0;
    assert_true(a->n_expert == EXPERTS && a->top_k == TOP_K && a->in == WIDE);
    assert_true(a->pre.kind == NORM_RMS && a->router_norm.kind == NORM_NONE && !a->router_in);
    for (int r = 0; r < a->rows; r++)
        mark_chosen(a, (const float *)a->src.p + r * a->in, seen);
    for (int e = 0; e < EXPERTS; e++)
        hit += seen[e];
    spy.hit[spy.calls++ % LAYERS] = hit;
    kernels_cpu.moe(d, a);
}

/* ---- lines ----------------------------------------------------------------------------------- */

struct seen_line {
    char name[40], shape[128];
    double bytes, experts, direct; /* direct: this file's count for the last pass */
};
struct lines {
    struct seen_line line[16];
    int n;
};

static void take_line(void *arg, const struct bench_line *l)
{
    struct lines *all = arg;
    struct seen_line *s = &all->line[all->n++];
    double sum = 0;
    assert_true(all->n <= 16);
    snprintf(s->name, sizeof s->name, "%s", l->name);
    snprintf(s->shape, sizeof s->shape, "%s", l->shape);
    s->bytes = l->bytes;
    s->experts = l->experts;
    for (int i = 0; i < LAYERS; i++)
        sum += spy.hit[i];
    s->direct = sum / LAYERS;
}

static void measure(struct lines *out, const char *const *pattern, int n)
{
    struct err e = {0};
    *out = (struct lines){0};
    memset(&spy, 0, sizeof spy);
    spy.k = kernels_cpu;
    spy.k.moe = spy_moe;
    const struct bench_opts o = {.pattern = pattern,
                                 .n_pattern = n,
                                 .synthetic = "small-moe-32",
                                 .engine = {.device = "cpu", .backend = &spy.k},
                                 .brief = true,
                                 .tell = take_line,
                                 .arg = out};
    if (!bench_run(&o, &e))
        fail_msg("%s", e.msg);
}

static const struct seen_line *line(const struct lines *all, const char *name)
{
    for (int i = 0; i < all->n; i++)
        if (!strcmp(all->line[i].name, name))
            return &all->line[i];
    fail_msg("there is no line %s", name);
    return NULL;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_different_choices_count_once(void **state)
{
    (void)state;
    static const int32_t same[] = {3, 1, 0, 2, 2, 3, 1, 0}, other[] = {3, 1, 0, 2, 7, 3, 6, 0};
    assert_int_equal(routing_hit(same, 8, 8), 4);
    assert_int_equal(routing_hit(other, 8, 8), 6);
    assert_int_equal(routing_hit(other, 4, 8), 4);
    assert_int_equal(routing_hit(other, 0, 8), 0);
}

static void test_formulas(void **state)
{
    (void)state;
    static const struct {
        int experts, rows;
        double independent, text;
    } known[] = {{32, 1, 4, 4},
                 {32, 2, 7.5, 6.415},
                 {32, 4, 13.2422, 10.3771},
                 {32, 16, 28.2218, 20.7131},
                 {128, 4, 15.2651, 11.7729},
                 {128, 16, 50.9814, 36.4172}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        double u = routing_independent(known[i].experts, TOP_K, known[i].rows);
        double text = routing_of_text(known[i].experts, TOP_K, known[i].rows);
        assert_true(fabs(u - known[i].independent) < 1e-3 && fabs(text - known[i].text) < 1e-3);
    }
}

/* The lines of independent and of text-like routing, by rows. */
static void check_pair(const struct lines *all, int rows)
{
    /* blocks and scales of three matrices, and their biases */
    const double expert = 3.0 * WIDE * WIDE * 17 / 32 + 3.0 * WIDE * 2;
    char name[40];
    snprintf(name, sizeof name, "verify.m32.T%d", rows);
    const struct seen_line *own = line(all, name);
    snprintf(name, sizeof name, "verify.m32.text.T%d", rows);
    const struct seen_line *text = line(all, name);
    double u = routing_independent(EXPERTS, TOP_K, rows),
           want = routing_of_text(EXPERTS, TOP_K, rows);
    assert_true(own->experts == own->direct && text->experts == text->direct);
    assert_true(text->experts >= TOP_K && text->experts < own->experts);
    assert_true(fabs(own->experts / u - 1) < 0.06); /* 24 layers of one pass */
    assert_true(fabs(text->experts / want - 1) < 0.02);
    double less = (own->experts - text->experts) * LAYERS * expert;
    assert_true(fabs(own->bytes - text->bytes - less) < 1);
    assert_null(strstr(own->shape, "text"));
    snprintf(name, sizeof name, "%.1f experts a layer (text: %.1f;", text->experts, want);
    assert_non_null(strstr(text->shape, name));
}

static void test_lines_count_what_routers_choose(void **state)
{
    (void)state;
    static const char *const wanted[] = {"verify.m32"};
    struct lines all;
    measure(&all, wanted, 1);
    check_pair(&all, 4);
    check_pair(&all, 16);
}

/* A cycle's experts and bytes are those of the same run without lines of text-like routing before
 * it. */
static void test_routers_are_as_before(void **state)
{
    (void)state;
    static const char *const wanted[] = {"cycle.m32.3-1-4", "verify.m32.text"};
    static const char *const cycle = "cycle.m32.3-1-4";
    struct lines without, with;
    measure(&without, wanted, 1);
    measure(&with, wanted, 2);
    line(&with, "verify.m32.text.T4");
    assert_true(line(&with, cycle)->experts == line(&without, cycle)->experts);
    assert_true(line(&with, cycle)->bytes == line(&without, cycle)->bytes);
    assert_true(line(&with, cycle)->experts == line(&with, cycle)->direct);
    assert_true(line(&with, cycle)->experts >= TOP_K);
    assert_non_null(strstr(line(&with, cycle)->shape, " experts a layer"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_different_choices_count_once),
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_lines_count_what_routers_choose),
        cmocka_unit_test(test_routers_are_as_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
