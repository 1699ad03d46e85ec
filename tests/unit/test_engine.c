/* test_engine.c - the engine end to end on the CPU: references, speculation, sampling, reuse. */
#include "tests/rigs.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "engine/tools/golden.h"

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"

/* ---- references ------------------------------------------------------------------------------ */

static void golden(const char *dir, const char *draft)
{
    struct buf report = {0};
    struct err e = {0};
    struct golden_opts o = {.dir = dir, .draft = draft, .device = "cpu", .threads = 2};
    if (!golden_run(&o, &report, &e))
        fail_msg("%s\n%s", e.msg, report.p ? report.p : "");
    buf_free(&report);
}

static void test_gemma3_equals_its_reference(void **state)
{
    (void)state;
    golden("tests/golden/gemma3-a", NULL);
}

static void test_gptoss_and_its_head_equal_their_reference(void **state)
{
    (void)state;
    golden("tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a");
}

static void test_gemma4_and_its_assistant_equal_their_reference(void **state)
{
    (void)state;
    golden("tests/golden/gemma4-a", "tests/golden/gemma4-a-assistant");
}

/* A folder whose files are links to others: goldens lie beside the bundled model, not in it. */
static char *joined(const char *const files[][2])
{
    char *dir = xstrdup("/tmp/aerie-golden-XXXXXX"), cwd[2048];
    assert_non_null(mkdtemp(dir));
    assert_non_null(getcwd(cwd, sizeof cwd));
    for (int i = 0; files[i][0]; i++) {
        char *from = xasprintf("%s/%s", cwd, files[i][0]),
             *to = xasprintf("%s/%s", dir, files[i][1]);
        assert_int_equal(symlink(from, to), 0);
        free(from);
        free(to);
    }
    return dir;
}

static void remove_joined(char *dir, const char *const files[][2])
{
    for (int i = 0; files[i][0]; i++) {
        char *to = xasprintf("%s/%s", dir, files[i][1]);
        unlink(to);
        free(to);
    }
    rmdir(dir);
    free(dir);
}

static void test_nestling_and_its_head_equal_their_reference(void **state)
{
    (void)state;
    static const char *const target[][2] = {
        {NESTLING "/config.json", "config.json"},
        {NESTLING "/model.safetensors", "model.safetensors"},
        {"tests/golden/nestling/golden.safetensors", "golden.safetensors"}, {0}};
    char *dir = joined(target);
    golden(dir, NULL);
    remove_joined(dir, target);
}

static void test_nestling_continues_twelve_chats_as_the_reference_does(void **state)
{
    (void)state;
    struct bed b;
    json_t *root = json_load_file("tests/golden/nestling/prompts.json", 0, NULL), *p;
    size_t i, n = 0;
    assert_non_null(root);
    bed_models(&b, NESTLING, NULL);
    bed_chat(&b, NESTLING);
    bed_rig(&b, &(struct rig_shape){.page_size = 16, .context = 4096});
    json_array_foreach(json_object_get(root, "prompts"), i, p) {
        json_t *ids = json_object_get(p, "input_ids"), *want = json_object_get(p, "greedy_ids");
        struct lane l = {.tap_row = -1};
        for (size_t k = 0; k < json_array_size(ids); k++)
            ids_add(&l.tok, (int32_t)json_integer_value(json_array_get(ids, k)));
        int first = l.tok.n;
        lane_prompt(&b.r, &l, 256, NULL);
        lane_run(&b.r, &l, (int)json_array_size(want) - 1, NULL);
        for (size_t k = 0; k < json_array_size(want); k++)
            assert_int_equal(l.tok.v[first + (int)k],
                             json_integer_value(json_array_get(want, k)));
        lane_free(&b.r, &l);
        n++;
    }
    assert_int_equal(n, 12);
    json_decref(root);
    bed_close(&b);
}

/* ---- greedy speculation is plain decoding ---------------------------------------------------- */

static const struct tree_shape shapes[] = {{3, 1, 4}, {5, 4, 16}, {6, 8, 60}};
static const int page_sizes[] = {1, 4, 16};

struct parity {
    struct bed *b; /* one bed a page size */
    int runs, tokens;
};

/* Each prompt runs plain once and with every shape, each shape at another page size in turn. */
static void parity_one(int i, const char *kind, const char *text, void *arg)
{
    struct parity *p = arg;
    struct ids prompt = {0};
    struct lane plain = {.tap_row = -1};
    (void)kind;
    chat_prompt(&p->b[0], text, &prompt);
    ids_cat(&plain.tok, prompt.v, prompt.n);
    struct rig *r = &p->b[i % 3].r;
    lane_prompt(r, &plain, 256, NULL);
    lane_run(r, &plain, 40, NULL);
    for (int s = 0; s < 3; s++) {
        struct rig *q = &p->b[(i + s) % 3].r;
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
        bed_rig(&b[i], &(struct rig_shape){.page_size = page_sizes[i], .context = 4096});
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

static void sample_run(struct rig *r, struct lane *prompt, uint64_t seed, int n,
                       const struct tree_shape *s, int32_t *out)
{
    struct lane l;
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
    bed_rig(&b, &(struct rig_shape){.page_size = 4, .context = 256});
    for (int s = 0; s < 3; s++) {
        prepare_prompt(&b, &l, &shapes[s]);
        for (uint64_t seed = 0; seed < 60; seed++) {
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
    bed_rig(&b, &(struct rig_shape){.page_size = 4, .context = 256});
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

/* ---- poison, pools, edges -------------------------------------------------------------------- */

/* Cells start as NaN (forward.c) and page 0 stays so; with minimal pools every page is reused many
 * times, so a read of a released or foreign cell would change the text. */
static void test_small_pools_change_nothing(void **state)
{
    (void)state;
    struct ids ref = {0};
    for (int k = 0; k < 4; k++) {
        struct bed b;
        struct lane l = {.tap_row = -1};
        int P = k == 3 ? 1 : 16;
        struct rig_shape s = {.page_size = P, .context = 1024};
        if (k == 1)
            s.full_pages = 40, s.swa_pages = 10;
        if (k >= 2)
            s.full_pages = 600 / P + 8, s.swa_pages = (64 + 64 + 60) / P + 4;
        bed_models(&b, NESTLING, NESTLING_DRAFT);
        bed_chat(&b, NESTLING);
        bed_rig(&b, &s);
        chat_prompt(&b, "count to one hundred", &l.tok);
        lane_prompt(&b.r, &l, 32, &shapes[1]);
        lane_run(&b.r, &l, 420, &shapes[1]);
        if (k == 0)
            ids_cat(&ref, l.tok.v, l.tok.n);
        assert_int_equal(l.tok.n, ref.n);
        assert_memory_equal(l.tok.v, ref.v, (size_t)ref.n * sizeof *ref.v);
        lane_free(&b.r, &l);
        bed_close(&b);
    }
    ids_free(&ref);
}

static void test_a_full_pool_is_an_error_that_leaves_the_lane_usable(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    struct lane l = {.tap_row = -1}, *lp = &l;
    bed_models(&b, NESTLING, NESTLING_DRAFT);
    bed_chat(&b, NESTLING);
    bed_rig(&b, &(struct rig_shape){.page_size = 4, .context = 4096, .full_pages = 20});
    chat_prompt(&b, "count to one hundred", &l.tok);
    lane_prompt(&b.r, &l, 32, &shapes[0]);
    bool ok = true;
    struct step_limits lim = {1000};
    while (ok)
        ok = lane_step(&b.r, &lp, &lim, 1, &shapes[0], &e);
    assert_int_equal(e.kind, ERR_NEGATIVE);
    assert_non_null(strstr(e.msg, "full pool"));
    const struct seq *seqs[] = {&l.seq};
    must(kv_check(&b.r.kv, seqs, 1, &e), &e);
    assert_int_equal(l.tok.n, l.seq.committed + 1);
    lane_free(&b.r, &l);
    chat_prompt(&b, "Hello!", &l.tok);
    l.tap_row = -1;
    lane_prompt(&b.r, &l, 32, &shapes[0]);
    lane_run(&b.r, &l, 20, &shapes[0]);
    assert_true(l.tok.n > 20);
    lane_free(&b.r, &l);
    bed_close(&b);
}

/* The context's end, max_tokens and the end of text clip the tree: every length is plain's. */
static void test_edges_clip_the_tree(void **state)
{
    (void)state;
    struct bed b;
    bed_models(&b, NESTLING, NESTLING_DRAFT);
    bed_chat(&b, NESTLING);
    bed_rig(&b, &(struct rig_shape){.page_size = 4, .context = 64});
    for (int max = 1; max < 80; max++)
        for (int s = 0; s < 3; s++) {
            struct lane a = {.tap_row = -1}, c = {.tap_row = -1};
            chat_prompt(&b, "count to one hundred", &a.tok);
            ids_cat(&c.tok, a.tok.v, a.tok.n);
            lane_prompt(&b.r, &a, 64, NULL);
            lane_run(&b.r, &a, max - 1, NULL);
            lane_prompt(&b.r, &c, 64, &shapes[s]);
            lane_run(&b.r, &c, max - 1, &shapes[s]);
            assert_int_equal(a.tok.n, c.tok.n);
            assert_true(c.tok.n <= 64);
            assert_memory_equal(a.tok.v, c.tok.v, (size_t)a.tok.n * sizeof *a.tok.v);
            lane_free(&b.r, &a);
            lane_free(&b.r, &c);
            if (max > 50)
                max += 7;
        }
    bed_close(&b);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Lanes of different lengths in one batch, joining and leaving: each equals its solo run. */
static void test_each_lane_of_a_batch_equals_its_solo_run(void **state)
{
    (void)state;
    static const char *const text[] = {"Hello!", "count to forty", "What is a page table?",
                                       "Tell me a story about Clara the owl.", "reverse planet"};
    enum { N = 5 };
    for (int s = -1; s < 3; s++) {
        const struct tree_shape *shape = s < 0 ? NULL : &shapes[s];
        struct bed b;
        struct lane lane[N], *live[N];
        struct ids solo[N];
        memset(solo, 0, sizeof solo);
        bed_models(&b, NESTLING, NESTLING_DRAFT);
        bed_chat(&b, NESTLING);
        bed_rig(&b, &(struct rig_shape){.page_size = 4, .context = 512, .lanes = N});
        bed_stop(&b);
        for (int i = 0; i < N; i++) {
            struct lane l = {.tap_row = -1};
            chat_prompt(&b, text[i], &l.tok);
            lane_prompt(&b.r, &l, 256, shape);
            lane_run(&b.r, &l, 60, shape);
            ids_cat(&solo[i], l.tok.v, l.tok.n);
            lane_free(&b.r, &l);
        }
        int n = 0, end[N];
        for (int i = 0; i < N; i++) {
            lane[i] = (struct lane){.tap_row = -1};
            chat_prompt(&b, text[i], &lane[i].tok);
            end[i] = lane[i].tok.n + 61;
            lane_prompt(&b.r, &lane[i], 256, shape);
            lane_park(&b.r, &lane[i]); /* the next prompt overwrites the captured states */
        }
        do {
            struct step_limits lim[N];
            struct err e = {0};
            n = 0;
            for (int i = 0; i < N; i++)
                if (!lane[i].stopped && lane[i].tok.n < end[i]) {
                    lim[n].max_new = end[i] - lane[i].tok.n;
                    live[n++] = &lane[i];
                }
            if (n)
                must(lane_step(&b.r, live, lim, n, shape, &e), &e);
        } while (n);
        for (int i = 0; i < N; i++) {
            assert_int_equal(lane[i].tok.n, solo[i].n);
            assert_memory_equal(lane[i].tok.v, solo[i].v, (size_t)solo[i].n * sizeof *solo[i].v);
            lane_free(&b.r, &lane[i]);
            ids_free(&solo[i]);
        }
        bed_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemma3_equals_its_reference),
        cmocka_unit_test(test_gptoss_and_its_head_equal_their_reference),
        cmocka_unit_test(test_gemma4_and_its_assistant_equal_their_reference),
        cmocka_unit_test(test_nestling_and_its_head_equal_their_reference),
        cmocka_unit_test(test_nestling_continues_twelve_chats_as_the_reference_does),
        cmocka_unit_test(test_greedy_speculation_equals_greedy_decoding),
        cmocka_unit_test(test_sampled_speculation_draws_what_plain_sampling_draws),
        cmocka_unit_test(test_speculative_and_plain_samples_have_one_distribution),
        cmocka_unit_test(test_small_pools_change_nothing),
        cmocka_unit_test(test_a_full_pool_is_an_error_that_leaves_the_lane_usable),
        cmocka_unit_test(test_edges_clip_the_tree),
        cmocka_unit_test(test_each_lane_of_a_batch_equals_its_solo_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
