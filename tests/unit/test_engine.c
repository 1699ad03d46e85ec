/* test_engine.c - the engine end to end on the CPU against reference tensors. */
#include "tests/few.h"
#include "tests/runtimes.h"
#include "tests/scratch.h"

#include <jansson.h>
#include <unistd.h>

#include "engine/tools/golden.h"

#define NESTLING "models/nestling/target"

/* ---- references ------------------------------------------------------------------------------ */

static void golden(const char *dir, const char *draft)
{
    struct buf report = {0};
    struct err e = {0};
    struct golden_opts o = {.engine = {.model = dir, .draft = draft, .device = "cpu",
                                       .threads = test_threads()}};
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
    char *dir = scratch_folder(), cwd[2048];
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

static void test_nestling_and_its_head_equal_their_reference(void **state)
{
    (void)state;
    static const char *const target[][2] = {
        {NESTLING "/config.json", "config.json"},
        {NESTLING "/model.safetensors", "model.safetensors"},
        {"tests/golden/nestling/golden.safetensors", "golden.safetensors"}, {0}};
    char *dir = joined(target);
    golden(dir, NULL);
    scratch_remove(dir);
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
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = 4096});
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
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemma3_equals_its_reference),
        cmocka_unit_test(test_gptoss_and_its_head_equal_their_reference),
        cmocka_unit_test(test_gemma4_and_its_assistant_equal_their_reference),
        cmocka_unit_test(test_nestling_and_its_head_equal_their_reference),
        cmocka_unit_test(test_nestling_continues_twelve_chats_as_the_reference_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
