/* test_calibrate.c - calibration tells on which of the target's states a head was trained. */
#include "tests/runtimes.h"

#include "engine/thread/calibrate.h"
#include "engine/thread/load.h"
#include "repl/app/report.h"

#define TARGET "models/nestling/target"
#define DRAFT "models/nestling/draft"

/* The bundled head was trained on boundaries 2, 4 and 5. */
static const int trained[3] = {2, 4, 5};

/* What the bed holds, for one calibration. */
static struct loaded loaded_of(const struct bed *b)
{
    struct loaded l = {.dev = b->dev, .model = b->m, .draft = b->d, .has_draft = true,
                       .tok = b->tok, .chat = b->chat};
    if (b->chat)
        l.n_stop = chat_stops(b->chat, l.stop);
    return l;
}

static struct calibration calibrate(struct bed *b, const char *capture, const struct ids *text)
{
    struct err e = {0};
    struct calibration c;
    bed_models(b, TARGET, NULL);
    must(draft_load(&b->d, DRAFT, &b->m, capture, NULL, &e), &e);
    b->has_draft = true;
    bed_chat(b, TARGET);
    struct loaded l = loaded_of(b);
    struct calib_opts o = {.l = &l};
    if (text) {
        o.text = text->v;
        o.n_text = text->n;
    }
    must(calibrate_run(&o, &c, &e), &e);
    return c;
}

static void assert_print(const struct calibration *c, const char *says)
{
    struct buf b = {0};
    struct sheet s = {.ascii = true};
    report_calibration(c, ON_SHEET(&s));
    sheet_to_text(&s, false, &b);
    if (!strstr(b.p, says))
        fail_msg("expected \"%s\" in:\n%s", says, b.p);
    sheet_free(&s);
    buf_free(&b);
}

static void test_the_configured_captures_of_the_bundled_head_win(void **state)
{
    (void)state;
    struct bed b;
    struct calibration c = calibrate(&b, NULL, NULL);
    assert_int_equal(c.best, 0);
    assert_memory_equal(c.row[0].boundary, trained, sizeof trained);
    assert_true(c.certain && c.tokens >= 200 && c.n_row >= 3);
    for (int r = 1; r < c.n_row; r++) /* by eight points in a hundred at least */
        assert_true(c.row[0].agree - c.row[r].agree > 8 * c.tokens / 100);
    assert_print(&c, "the head was trained for boundaries 2,4,5, as configured\n");
    bed_close(&b);
}

static void test_captures_that_are_off_by_one_are_found_out(void **state)
{
    (void)state;
    static const char *const wrong[] = {"1,3,4", "3,5,6"};
    for (int i = 0; i < 2; i++) {
        struct bed b;
        char says[64];
        struct calibration c = calibrate(&b, wrong[i], NULL);
        assert_int_not_equal(c.best, 0);
        assert_memory_equal(c.row[c.best].boundary, trained, sizeof trained);
        assert_true(c.certain);
        snprintf(says, sizeof says, "not %s: use --eagle-capture 2,4,5\n", wrong[i]);
        assert_print(&c, says);
        bed_close(&b);
    }
}

/* What is scored is what drafting meets: the first guess of a chain. */
static void test_agreement_is_the_acceptance_of_the_first_guess(void **state)
{
    (void)state;
    struct bed b;
    struct calibration c = calibrate(&b, NULL, NULL);
    const struct tree_shape chain = {1, 1, 2};
    struct runtime_shape shape = {.page_size = 16, .context = 512, .kv = KV_F32};
    bed_runtime(&b, &shape);
    bed_stop(&b);
    struct lane l = {.tap_row = -1}, *lp = &l;
    struct step_limits lim = {96};
    struct err e = {0};
    int tried = 0, taken = 0;
    chat_prompt(&b, "Tell me a short story about a lighthouse and a small bird.", &l.tok);
    lane_prompt(&b.r, &l, 512, &chain);
    while (!l.stopped && l.tok.n < 400) {
        must(lane_step(&b.r, &lp, &lim, 1, &chain, &e), &e);
        tried++;
        taken += l.rec.accepted;
    }
    double here = (double)taken / tried, there = (double)c.row[0].agree / c.tokens;
    assert_true(tried > 20 && here > there - 0.25 && here < there + 0.25);
    lane_free(&b.r, &l);
    bed_close(&b);
}

static void test_a_conversation_is_scored_where_there_is_one(void **state)
{
    (void)state;
    struct bed b;
    struct ids text = {0};
    struct err e = {0};
    bed_models(&b, TARGET, NULL);
    bed_chat(&b, TARGET);
    static char ask[] = "What is speculative decoding, and why is it fast?";
    static char reply[] = "aerie drafts several tokens with a small head and verifies all of them "
                          "in one pass of the target. What agrees is kept, the rest is thrown "
                          "away. The pages of the sliding window are given back as soon as no "
                          "query can see them any more.";
    struct message m[7];
    for (int i = 0; i < 7; i++)
        m[i] = (struct message){.role = i % 2 ? ROLE_ASSISTANT : ROLE_USER,
                                .text = i % 2 ? reply : ask};
    must(chat_render(b.chat, m, 7, &text, &e), &e);
    bed_close(&b);
    assert_true(text.n > CALIB_TOKENS);
    struct calibration c = calibrate(&b, "3,5,6", &text);
    assert_true(c.tokens == min_int(text.n - 1, CALIB_TOKENS));
    assert_memory_equal(c.row[c.best].boundary, trained, sizeof trained);
    bed_close(&b);
    ids_free(&text);
}

/* Random weights agree with nothing: no reading may be called the right one. */
static void test_a_random_head_gets_no_verdict(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    struct ids text = {0};
    struct calibration c;
    bed_models(&b, "tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a");
    for (int i = 0; i < 400; i++)
        ids_add(&text, 3 + (int32_t)(mix64((uint64_t)i) % 500));
    struct loaded l = loaded_of(&b);
    struct calib_opts o = {.l = &l, .text = text.v, .n_text = text.n};
    must(calibrate_run(&o, &c, &e), &e);
    assert_true(!c.certain && c.tokens == CALIB_TOKENS);
    bed_close(&b);
    ids_free(&text);
}

static int of_type[2]; /* attentions over cells of each type */

static void spy_attn(struct kdev *d, const struct k_attn *a)
{
    of_type[a->cells.type]++;
    kernels_cpu.attn(d, a);
}

static void test_cells_are_stored_as_the_device_stores_them(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    struct ids text = {0};
    struct calibration c;
    struct kernels spy = kernels_cpu;
    spy.attn = spy_attn;
    bed_models(&b, "tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a");
    struct loaded l = loaded_of(&b);
    l.dev.k = &spy;
    l.dev.kv = KV_BF16;
    for (int i = 0; i < CALIB_TOKENS + 1; i++)
        ids_add(&text, 3 + i);
    struct calib_opts o = {.l = &l, .text = text.v, .n_text = text.n};
    must(calibrate_run(&o, &c, &e), &e);
    assert_true(of_type[KV_BF16] > 0);
    assert_int_equal(of_type[KV_F32], 0);
    bed_close(&b);
    ids_free(&text);
}

static void test_a_head_without_captures_is_refused(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    struct calibration c;
    bed_models(&b, "tests/golden/gemma4-a", "tests/golden/gemma4-a-assistant");
    struct loaded l = loaded_of(&b);
    struct calib_opts o = {.l = &l};
    assert_false(calibrate_run(&o, &c, &e));
    assert_non_null(strstr(e.msg, "no captured layers"));
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_configured_captures_of_the_bundled_head_win),
        cmocka_unit_test(test_captures_that_are_off_by_one_are_found_out),
        cmocka_unit_test(test_agreement_is_the_acceptance_of_the_first_guess),
        cmocka_unit_test(test_a_conversation_is_scored_where_there_is_one),
        cmocka_unit_test(test_a_random_head_gets_no_verdict),
        cmocka_unit_test(test_cells_are_stored_as_the_device_stores_them),
        cmocka_unit_test(test_a_head_without_captures_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
