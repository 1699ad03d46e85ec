/* test_speculation.c - speculative decoding on the CPU yields what plain decoding yields, greedy
 * and sampled. */
#include "tests/few.h"
#include "tests/runtimes.h"

#include <math.h>

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"

/* ---- greedy speculation is plain decoding ---------------------------------------------------- */

static const struct tree_shape shapes[] = {{3, 1, 4}, {5, 4, 16}, {6, 8, 60}};
static const int page_sizes[] = {1, 4, 16};

struct parity {
    struct bed *b; /* one bed a page size */
    int runs, tokens;
};

/* Each prompt runs plain once and with every shape, each shape at another page size in turn;
 * usually every third prompt with one shape: nine of them have every pair of a shape and a page
 * size. */
static void parity_one(int i, const char *kind, const char *text, void *arg)
{
    struct parity *p = arg;
    struct ids prompt = {0};
    struct lane plain = {.tap_row = -1};
    (void)kind;
    if (i % rounds(3, 1) != 0)
        return;
    i /= rounds(3, 1);
    chat_prompt(&p->b[0], text, &prompt);
    ids_cat(&plain.tok, prompt.v, prompt.n);
    struct runtime *r = &p->b[i % 3].r;
    lane_prompt(r, &plain, 256, NULL);
    lane_run(r, &plain, 40, NULL);
    for (int k = 0; k < rounds(1, 3); k++) {
        int s = (i / 3 + k) % 3;
        struct runtime *q = &p->b[(i + k) % 3].r;
        struct lane l = {.tap_row = -1};
        ids_cat(&l.tok, prompt.v, prompt.n);
        lane_prompt(q, &l, i % 2 ? 256 : 17, &shapes[s]);
        lane_run(q, &l, 40, &shapes[s]);
        assert_int_equal(l.tok.n, plain.tok.n);
        assert_memory_equal(l.tok.v, plain.tok.v, (size_t)l.tok.n * sizeof *l.tok.v);
        assert_int_equal(l.seq.committed, plain.seq.committed);
        lane_free(q, &l);
        p->runs++;
        p->tokens += plain.tok.n - prompt.n;
    }
    lane_free(r, &plain);
    ids_free(&prompt);
}

static void test_greedy_speculation_equals_greedy_decoding(void **state)
{
    (void)state;
    struct bed b[3];
    for (int i = 0; i < 3; i++) {
        bed_models(&b[i], NESTLING, NESTLING_DRAFT);
        bed_chat(&b[i], NESTLING);
        bed_runtime(&b[i], &(struct runtime_shape){.page_size = page_sizes[i], .context = 4096});
        bed_stop(&b[i]);
    }
    struct parity p = {b, 0, 0};
    int n = each_prompt(parity_one, &p);
    assert_true(n >= 200);
    print_message("%d prompts, %d speculative runs, %d tokens equal\n", n, p.runs, p.tokens);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(b[i].r.pass.check.violations, 0);
        assert_true(b[i].r.pass.check.checks > 1000);
        struct err e = {0};
        must(kv_check(&b[i].r.kv, NULL, 0, &e), &e); /* every page came back */
        bed_close(&b[i]);
    }
}

/* ---- sampling -------------------------------------------------------------------------------- */

static void sample_run(struct runtime *r, struct lane *prompt, uint64_t seed, int n,
                       const struct tree_shape *s, int32_t *out)
{
    struct lane l;
    lane_park(r, prompt);
    lane_fork(r, prompt, &l);
    l.seed = seed;
    l.tok.n--; /* draw the first token anew as well */
    /* the prompt's last token is pending again: run it without the reply's first token */
    int first = l.tok.n;
    lane_prompt(r, &l, 64, s);
    lane_run(r, &l, n - 1, s);
    for (int i = 0; i < n; i++)
        out[i] = l.tok.v[first + i];
    lane_free(r, &l);
}

/* A lane that holds all but the last prompt token, so that forks of it sample from the start. */
static void prepare_prompt(struct bed *b, struct lane *l, const struct tree_shape *s)
{
    struct err e = {0};
    static const int32_t tok[] = {5, 77, 130, 9, 401, 22, 22, 313, 48, 7, 256, 91, 100, 3, 88, 19};
    *l = (struct lane){.tap_row = -1};
    l->how = (struct sampling){.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.01f};
    ids_cat(&l->tok, tok, 16);
    must(lane_extend(&b->r, l, 15, false, s != NULL, s ? s->topk : 1, &e), &e);
    ids_add(&l->tok, 0); /* room that sample_run() takes away again */
}

static void test_sampled_speculation_draws_what_plain_sampling_draws(void **state)
{
    (void)state;
    struct bed b;
    struct lane l;
    bed_models(&b, "tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a");
    bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 256});
    for (int s = 0; s < 3; s++) {
        prepare_prompt(&b, &l, &shapes[s]);
        for (uint64_t seed = 0; seed < (uint64_t)rounds(20, 60); seed++) {
            int32_t plain[24], spec[24];
            sample_run(&b.r, &l, seed, 24, NULL, plain);
            sample_run(&b.r, &l, seed, 24, &shapes[s], spec);
            assert_memory_equal(plain, spec, sizeof plain);
        }
        lane_free(&b.r, &l);
    }
    bed_close(&b);
}

/* Upper tail of chi-square by Wilson and Hilferty's cube-root approximation, as a z score. */
static double chi_square_z(double x, int df)
{
    double k = 2.0 / (9.0 * df);
    return (cbrt(x / df) - (1 - k)) / sqrt(k);
}

static void test_speculative_and_plain_samples_have_one_distribution(void **state)
{
    (void)state;
    enum { N = 5000, V = 512 };
    struct bed b;
    struct lane l;
    static double count[2][V];
    bed_models(&b, "tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a");
    bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 256});
    memset(count, 0, sizeof count);
    prepare_prompt(&b, &l, &shapes[1]);
    for (int i = 0; i < N; i++) {
        int32_t t[3];
        sample_run(&b.r, &l, 10000 + (uint64_t)i, 3, NULL, t);
        count[0][t[2]]++;
        sample_run(&b.r, &l, 900000 + (uint64_t)i, 3, &shapes[1], t);
        count[1][t[2]]++;
    }
    double x = 0, rest[2] = {0, 0};
    int bins = 0;
    for (int v = 0; v < V; v++) {
        double a = count[0][v], c = count[1][v];
        if (a + c < 20) {
            rest[0] += a;
            rest[1] += c;
            continue;
        }
        x += (a - c) * (a - c) / (a + c);
        bins++;
    }
    if (rest[0] + rest[1] > 0) {
        x += (rest[0] - rest[1]) * (rest[0] - rest[1]) / (rest[0] + rest[1]);
        bins++;
    }
    double z = chi_square_z(x, bins - 1);
    print_message("chi-square %.1f over %d bins, z %.2f\n", x, bins, z);
    assert_true(bins > 20);
    assert_true(z < 4);
    lane_free(&b.r, &l);
    bed_close(&b);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_speculation_equals_greedy_decoding),
        cmocka_unit_test(test_sampled_speculation_draws_what_plain_sampling_draws),
        cmocka_unit_test(test_speculative_and_plain_samples_have_one_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
