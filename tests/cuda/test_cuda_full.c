/* test_cuda_full.c - two layers of published models at their full widths on a GPU, with made-up
 * weights: one sliding and one full layer, prompts beyond the window. Greedy speculation gives what
 * plain decoding gives, launched kernel by kernel, replayed from a record or stepped, with every
 * page size and prompt chunk, and again when it is run again. Skipped without a GPU. */
#include "tests/few.h"
#include "tests/runtimes.h"

static const char *const configs[] = {
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":2880,\"intermediate_size\":2880,"
    "\"num_hidden_layers\":2,\"num_local_experts\":32,\"num_experts_per_tok\":4,"
    "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":64,\"vocab_size\":201088,"
    "\"max_position_embeddings\":131072,\"sliding_window\":128,\"rope_theta\":150000,"
    "\"eos_token_id\":200002}",
    "{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"intermediate_size\":10240,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":256,"
    "\"sliding_window\":128,\"query_pre_attn_scalar\":256,\"max_position_embeddings\":131072,"
    "\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"vocab_size\":262208,"
    "\"tie_word_embeddings\":false,\"eos_token_id\":1}"};
static const struct tree_shape shapes[] = {{3, 1, 4}, {5, 4, 16}, {5, 8, 60}};
static const char *precision;
static bool fp8; /* cells */
enum { PROMPT = 300, REPLY = 24 };

static void open_bed(struct bed *b, const char *config, int page_size)
{
    struct err e = {0};
    if (!bed_device(b, "cuda", precision))
        skip();
    b->dev.kv = fp8 ? KV_FP8 : b->dev.kv;
    must(model_shaped(&b->m, config, &e), &e);
    must(draft_shaped(&b->d, &b->m, b->m.layer[0].ffn, 32000, &e), &e);
    for (int i = 0; i < 3; i++)
        b->d.capture[i] = i;
    b->has_draft = true;
    bed_runtime(b,
                &(struct runtime_shape){.page_size = page_size, .context = 1024, .kv = b->dev.kv});
}

/* Generates REPLY ids after a prompt of random ids. */
static void reply(struct bed *b, const struct tree_shape *s, int chunk, bool fuse, bool record,
                  int32_t out[REPLY])
{
    struct lane l = {.tap_row = -1};
    uint64_t seed = 5;
    for (int i = 0; i < PROMPT; i++)
        ids_add(&l.tok, (int32_t)((seed = mix64(seed)) % 200000));
    b->r.fuse = fuse;
    b->r.record = record;
    lane_prompt(&b->r, &l, chunk, s);
    lane_run(&b->r, &l, REPLY - 1, s);
    assert_true(l.tok.n >= PROMPT + REPLY);
    memcpy(out, l.tok.v + PROMPT, REPLY * sizeof *out);
    lane_free(&b->r, &l);
}

static void every_way(const char *config)
{
    static const int page_sizes[] = {16, 1, 64}, chunks[] = {512, 77, 129};
    int32_t want[REPLY], got[REPLY];
    for (int p = 0; p < 3; p += one_in(3)) {
        struct bed b;
        open_bed(&b, config, page_sizes[p]);
        for (int s = -1; s < 3; s += one_in(3))
            for (int way = 0; way < 3; way++) {
                reply(&b, s < 0 ? NULL : &shapes[s], chunks[p], way < 2, way == 0, got);
                if (p == 0 && s < 0 && way == 0)
                    memcpy(want, got, sizeof want);
                assert_memory_equal(got, want, sizeof want);
            }
        assert_true(b.r.n_replayed > 0 && b.r.n_fused > b.r.n_replayed);
        bed_close(&b);
    }
    int kinds = 1;
    for (int i = 1; i < REPLY; i++)
        kinds += want[i] != want[i - 1];
    print_message("# %d ids, %d of them other than the one before\n", REPLY, kinds - 1);
    assert_true(kinds > 2);
}

static void test_gpt_oss(void **state)
{
    precision = *state;
    every_way(configs[0]);
}

static void test_gemma_3(void **state)
{
    precision = *state;
    every_way(configs[1]);
}

static void test_fp8_cells(void **state)
{
    precision = *state;
    fp8 = true;
    every_way(configs[0]);
    every_way(configs[1]);
    fp8 = false;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_gpt_oss, (void *)(uintptr_t)"bf16"),
        cmocka_unit_test_prestate(test_gemma_3, (void *)(uintptr_t)"bf16"),
        cmocka_unit_test_prestate(test_gpt_oss, (void *)(uintptr_t)"f32"),
        cmocka_unit_test_prestate(test_gemma_3, (void *)(uintptr_t)"f32"),
        cmocka_unit_test_prestate(test_fp8_cells, (void *)(uintptr_t)"bf16"),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
