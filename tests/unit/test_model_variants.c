/* test_model_variants.c - rope and variants of targets: prefixes, spellings, missing and
 * superfluous entries. Checkpoints are rewritten on the spot; numbers come from published formulas,
 * computed here or quoted in double precision. */
#include "tests/model_kit.h"

/* ---- rope ---- */

static struct rope rope_of(struct rope r, int head_dim)
{
    struct err e = {0};
    if (!rope_init(&r, head_dim, &e))
        fail_msg("%s", e.msg);
    return r;
}

static void assert_near(double x, double y, double relative)
{
    if (!(fabs(x - y) <= relative * fabs(y)))
        fail_msg("%.12g, expected %.12g", x, y);
}

/* Frequencies are computed in float32 in the reference's steps; this bounds what they add up to. */
#define FLOAT_STEPS 4e-7

static void test_yarn_of_gpt_oss(void **state)
{
    (void)state;
    static const struct { int i; double inv; } want[] = {
        {0, 1}, {1, 0.6890443058881632}, {8, 0.050813274815461475}, {9, 0.03170569618466377},
        {12, 0.006794959489732219}, {16, 4.5648391922324086e-4}, {17, 1.29318701245e-4},
        {18, 3.83088123737534e-5}, {31, 3.02351142811921e-7},
    };
    struct rope r = rope_of((struct rope){.kind = ROPE_YARN, .theta = 150000, .factor = 32,
                                          .original_max = 4096, .beta_fast = 32, .beta_slow = 1,
                                          .partial = 1, .truncate = false}, 64);
    assert_true(r.rot == 64 && r.half == 32);
    for (int i = 0; i < COUNT(want); i++)
        assert_near(r.inv_freq[want[i].i], want[i].inv, FLOAT_STEPS);
    assert_near(r.cs_factor, 1.3465735902799727, 1e-7);
    rope_free(&r);
}

static void test_yarn_options(void **state)
{
    (void)state;
    struct rope base = {.kind = ROPE_YARN, .theta = 5e5, .factor = 8, .original_max = 8192,
                        .beta_fast = 32, .beta_slow = 1, .partial = 1, .truncate = true};
    /* OLMo 3: 18.08 and 34.98 become 18 and 35 */
    struct rope r = rope_of(base, 128);
    assert_near(r.inv_freq[18], pow(5e5, -36.0 / 128), FLOAT_STEPS);
    assert_near(r.inv_freq[35], pow(5e5, -70.0 / 128) / 8, FLOAT_STEPS);
    double ramp = (26 - 18.0) / (35 - 18), plain = pow(5e5, -52.0 / 128);
    assert_near(r.inv_freq[26], plain / 8 * ramp + plain * (1 - ramp), FLOAT_STEPS);
    assert_near(r.cs_factor, 1.2079441541679836, FLOAT_STEPS);
    rope_free(&r);
    base.attention_factor = 0.75; /* explicit wins */
    base.mscale = 2, base.mscale_all_dim = 1;
    r = rope_of(base, 128);
    assert_near(r.cs_factor, 0.75, FLOAT_STEPS);
    rope_free(&r);
    base.attention_factor = 0; /* then the ratio of the two */
    r = rope_of(base, 128);
    assert_near(r.cs_factor, (0.2 * log(8) + 1) / (0.1 * log(8) + 1), FLOAT_STEPS);
    rope_free(&r);
    base.mscale_all_dim = 0; /* one alone counts for nothing */
    base.factor = 1;
    r = rope_of(base, 128);
    assert_near(r.cs_factor, 1, FLOAT_STEPS);
    rope_free(&r);
}

static void test_linear_llama3_and_partial(void **state)
{
    (void)state;
    struct rope r = rope_of((struct rope){.kind = ROPE_LINEAR, .theta = 1e6, .factor = 8,
                                          .partial = 1}, 256);
    for (int i = 0; i < 128; i++)
        assert_near(r.inv_freq[i], pow(1e6, -2.0 * i / 256) / 8, FLOAT_STEPS);
    assert_true(r.cs_factor == 1);
    rope_free(&r);
    r = rope_of((struct rope){.kind = ROPE_LLAMA3, .theta = 5e5, .factor = 8, .low_freq_factor = 1,
                              .high_freq_factor = 4, .original_max = 8192, .partial = 1}, 128);
    for (int i = 0; i < 64; i++) {
        double inv = pow(5e5, -2.0 * i / 128), wave = 2 * M_PI / inv, s = (8192 / wave - 1) / 3;
        double want = wave < 2048 ? inv : wave > 8192 ? inv / 8 : (1 - s) * inv / 8 + s * inv;
        assert_near(r.inv_freq[i], want, FLOAT_STEPS);
    }
    rope_free(&r);
    r = rope_of((struct rope){.kind = ROPE_DEFAULT, .theta = 1e4, .partial = 0.5}, 64);
    assert_true(r.rot == 32 && r.half == 16);
    assert_near(r.inv_freq[3], pow(1e4, -6.0 / 32), FLOAT_STEPS);
    rope_free(&r);
    struct err e = {0};
    struct rope odd = {.kind = ROPE_DEFAULT, .theta = 1e4, .partial = 0.334};
    assert_false(rope_init(&odd, 64, &e)); /* 21 dimensions */
    assert_null(odd.inv_freq);
}

/* Values of transformers 5.23 on torch 2.15: equal, or the next float where its pow() rounds
 * otherwise. Frequencies rounded only at the end would turn a head of width 10 by 0.002 radians
 * more or less at position 10,000. */
static void test_frequencies_are_those_of_the_reference(void **state)
{
    (void)state;
    static const struct {
        struct rope rope;
        int head_dim, from;
        float inv[12];
    } want[] = {
        {{.kind = ROPE_YARN, .theta = 150000, .factor = 32, .original_max = 4096, .beta_fast = 32,
          .beta_slow = 1, .partial = 1}, 10, 0,
         {0x1.p+0f, 0x1.79b206p-4f, 0x1.1c2904p-8f, 0x1.9b11bep-16f,
          0x1.2f3d8p-19f}},
        {{.kind = ROPE_YARN, .theta = 150000, .factor = 32, .original_max = 4096, .beta_fast = 32,
          .beta_slow = 1, .partial = 1}, 64, 8,
         {0x1.a04328p-5f, 0x1.03bbaap-5f, 0x1.3cc8dep-6f, 0x1.7bd928p-7f,
          0x1.bd508p-8f, 0x1.f9fc28p-9f, 0x1.127006p-9f, 0x1.13eefp-10f,
          0x1.dea878p-12f, 0x1.0f3372p-13f, 0x1.415b8cp-15f, 0x1.badbf8p-16f}},
        {{.kind = ROPE_LLAMA3, .theta = 5e5, .factor = 8, .low_freq_factor = 1,
          .high_freq_factor = 4, .original_max = 8192, .partial = 1}, 128, 26,
         {0x1.3d2804p-8f, 0x1.025c6ap-8f, 0x1.a4ee4p-9f, 0x1.1bfa0cp-9f,
          0x1.67a23ap-10f, 0x1.c12f3cp-11f, 0x1.132ba4p-11f, 0x1.47e21p-12f,
          0x1.765ba4p-13f, 0x1.90d10cp-14f, 0x1.46831ap-14f, 0x1.09fb7ep-14f}},
        {{.kind = ROPE_YARN, .theta = 5e5, .factor = 8, .original_max = 8192, .beta_fast = 32,
          .beta_slow = 1, .partial = 1, .truncate = true}, 128, 20,
         {0x1.e6ca9p-7f, 0x1.75cbb4p-7f, 0x1.1df734p-7f, 0x1.b3b51cp-8f,
          0x1.4a55dep-8f, 0x1.f21d96p-9f, 0x1.752006p-9f, 0x1.155bacp-9f,
          0x1.988ce4p-10f, 0x1.29838cp-10f, 0x1.ab35f2p-11f, 0x1.2d2a5p-11f}},
        {{.kind = ROPE_PROPORTIONAL, .theta = 1e6, .factor = 1, .partial = 0.25}, 24, 0,
         {0x1.p+0f, 0x1.43d136p-2f, 0x1.999998p-4f, 0,
          0, 0, 0, 0,
          0, 0, 0, 0}},
    };
    for (int k = 0; k < COUNT(want); k++) {
        struct rope r = rope_of(want[k].rope, want[k].head_dim);
        for (int i = 0; i < 12 && want[k].from + i < r.half; i++)
            assert_near(r.inv_freq[want[k].from + i], want[k].inv[i], 1.2e-7);
        rope_free(&r);
    }
}

/* Both spellings of the same rope give the same frequencies. */
static void test_rope_spellings_agree(void **state)
{
    (void)state;
    struct ck c = ck_load(G3, ST);
    ck_set_text(&c, "rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 8.0}");
    struct model old = load_ck(&c, 1);
    ck_set(&c, "rope_scaling", NULL);
    ck_set(&c, "rope_theta", NULL);
    ck_set(&c, "rope_local_base_freq", NULL);
    ck_set_text(&c, "rope_parameters",
                "{\"full_attention\":"
                " {\"rope_type\": \"linear\", \"factor\": 8.0, \"rope_theta\": 1e6},"
                " \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}}");
    struct model new = load_ck(&c, 1);
    for (int r = 0; r < 2; r++)
        assert_memory_equal(old.cfg.rope[r].inv_freq, new.cfg.rope[r].inv_freq, 8 * sizeof(float));
    assert_near(old.cfg.rope[1].inv_freq[1], pow(1e6, -0.125) / 8, FLOAT_STEPS);
    assert_near(old.cfg.rope[0].inv_freq[1], pow(1e4, -0.125), FLOAT_STEPS); /* never scaled */
    model_free(&old);
    model_free(&new);
    ck_free(&c);

    c = ck_load(OSS, ST);
    old = load_ck(&c, 1);
    ck_set(&c, "rope_parameters", json_incref(json_object_get(c.config, "rope_scaling")));
    ck_set(&c, "rope_scaling", NULL);
    ck_set(&c, "rope_theta", NULL);
    new = load_ck(&c, 1);
    assert_memory_equal(old.cfg.rope[0].inv_freq, new.cfg.rope[0].inv_freq, 8 * sizeof(float));
    assert_true(old.cfg.rope[0].cs_factor == new.cfg.rope[0].cs_factor);
    model_free(&old);
    model_free(&new);
    ck_free(&c);
}

/* ---- variants of targets ---- */

/* Puts every config key below text_config and every tensor below another prefix. */
static struct ck wrapped(const char *dir, const char *type, const char *prefix)
{
    struct ck c = ck_load(dir, ST);
    json_t *text = c.config;
    c.config = json_pack("{s:s, s:o}", "model_type", type, "text_config", text);
    for (int i = 0; i < c.n; i++) {
        char *name = xasprintf("%s%s", prefix, c.t[i].name + strlen("model."));
        free(c.t[i].name);
        c.t[i].name = name;
    }
    return c;
}

static void test_multimodal_folders_give_their_text_model(void **state)
{
    (void)state;
    static const char *const prefix[] = {"language_model.model.", "model.language_model.", ""};
    for (int i = 0; i < 3; i++) {
        struct ck c = wrapped(G3, "gemma3", prefix[i]);
        ck_add(&c, "vision_tower.encoder.layers.0.mlp.fc1.weight", "BF16", json_pack("[ii]", 2, 2),
               NULL, 8);
        ck_add(&c, "model.vision_tower.patch.weight", "F32", json_pack("[iiiii]", 1, 1, 1, 1, 2),
               NULL, 8);
        ck_add(&c, "multi_modal_projector.mm_soft_emb_norm.weight", "BF16", json_pack("[i]", 2),
               NULL, 4);
        struct model m = load_ck(&c, 1 + i);
        assert_string_equal(m.cfg.family, "gemma3");
        assert_int_equal(m.bytes, 671360); /* the text model alone */
        model_free(&m);
        ck_free(&c);
    }
    struct ck c = wrapped(G4, "gemma4", "model.language_model.");
    struct model m = load_ck(&c, 3);
    assert_string_equal(m.cfg.family, "gemma4");
    assert_int_equal(m.layer[11].kv_src, 5);
    model_free(&m);
    ck_free(&c);
}

/* gemma-3 4b leaves nearly everything out; what the class assumes shows in what is expected. */
static void test_silent_gemma3_configs_mean_the_class_defaults(void **state)
{
    (void)state;
    static const struct { const char *key, *expected; } silent[] = {
        {"vocab_size", "262208 (vocab_size)"},
        {"hidden_size", "2304 (hidden_size)"},
        {"head_dim", "1024 (heads x head_dim)"},
        {"intermediate_size", "9216 (intermediate_size)"},
        {"num_attention_heads", "128 (heads x head_dim)"},
        {"num_key_value_heads", "64 (kv heads x head_dim)"},
    };
    for (int i = 0; i < COUNT(silent); i++) {
        struct ck c = ck_load(G3, ST);
        struct model m;
        struct err e = {0};
        char *dir = scratch_folder();
        ck_set(&c, silent[i].key, NULL);
        ck_save(&c, dir, 1);
        assert_false(model_load(&m, dir, NULL, &e));
        if (!strstr(e.msg, silent[i].expected))
            fail_msg("%s: %s", silent[i].key, e.msg);
        scratch_remove(dir);
        ck_free(&c);
    }
    struct ck c = ck_load(G3, ST);
    static const char *const rest[] = {
        "sliding_window", "rope_theta", "rope_local_base_freq", "rope_scaling", "rms_norm_eps",
        "hidden_activation", "tie_word_embeddings", "sliding_window_pattern", "bos_token_id",
        "max_position_embeddings", "query_pre_attn_scalar", "final_logit_softcapping",
    };
    for (int i = 0; i < COUNT(rest); i++)
        ck_set(&c, rest[i], NULL);
    struct model m = load_ck(&c, 1);
    assert_true(m.cfg.window == 4096 && m.cfg.max_pos == 131072 && m.cfg.tied);
    assert_true(m.layer[4].window == 4096 && m.layer[5].window == 0 && m.layer[6].window == 4096);
    assert_true(m.cfg.attn_scale == 0.0625f && m.cfg.eps == 1e-6f && m.cfg.act == ACT_GELU_TANH);
    assert_true(m.cfg.rope[0].theta == 1e4 && m.cfg.rope[1].theta == 1e6 && m.cfg.bos == -1);
    model_free(&m);
    ck_free(&c);
}

static void test_a_second_copy_of_a_tied_head_is_accepted(void **state)
{
    (void)state;
    struct ck c = ck_load(G3, ST);
    const struct ck_tensor *t = ck_find(&c, "model.embed_tokens.weight");
    ck_add(&c, "lm_head.weight", "BF16", json_deep_copy(t->shape), t->data, t->n);
    struct model m = load_ck(&c, 1);
    assert_ptr_equal(m.head.data, m.embed.data);
    model_free(&m);
    ck_free(&c);
}

/* As safetensors.torch.save_model() writes a tied model. */
static void test_a_tied_head_alone_is_the_embedding(void **state)
{
    (void)state;
    static const char *const prefix[] = {"model.", "language_model.model.",
                                         "model.language_model.", ""};
    for (int i = 0; i < 4; i++) {
        struct ck c = i ? wrapped(G3, "gemma3", prefix[i]) : ck_load(G3, ST);
        FREED(free_at) char *embed = xasprintf("%sembed_tokens.weight", prefix[i]);
        ck_set_text(&c, "tie_word_embeddings", "true");
        struct model want = load_ck(&c, 1);
        ck_rename(&c, embed, i == 1 ? "language_model.lm_head.weight" : "lm_head.weight");
        struct model m = load_ck(&c, 1);
        assert_ptr_equal(m.head.data, m.embed.data);
        assert_int_equal(m.bytes, want.bytes);
        assert_int_equal(m.embed.bytes, want.embed.bytes);
        assert_memory_equal(m.embed.data, want.embed.data, m.embed.bytes);
        model_free(&want);
        model_free(&m);
        ck_free(&c);
    }
}

static void test_stop_ids_join_and_drop_what_is_out_of_range(void **state)
{
    (void)state;
    struct ck c = wrapped(G3, "gemma3", "model.");
    char *dir = scratch_folder();
    ck_set_text(&c, "eos_token_id", "[1, 7, 600]"); /* 600: past the vocabulary */
    ck_set_text(&c, "text_config.pad_token_id", "-1");
    ck_save(&c, dir, 1);
    ck_write_text(dir, "generation_config.json",
                  "{\"eos_token_id\": [7, 9], \"do_sample\": true, \"top_k\": 64,"
                  " \"top_p\": 0.95, \"suppress_tokens\": [3, 4]}");
    struct model m = load(dir);
    const struct config *g = &m.cfg;
    assert_int_equal(g->n_stop, 4);
    assert_true(g->stop[0] == 1 && g->stop[1] == 7 && g->stop[2] == 106 && g->stop[3] == 9);
    assert_true(g->n_suppressed == 2 && strstr(m.note, "the 2 tokens of suppress_tokens"));
    assert_true(g->pad == -1 && g->bos == 2);
    assert_true(g->sampling.given && g->sampling.temperature == 1 && g->sampling.top_k == 64);
    assert_true(g->sampling.top_p == 0.95f && g->sampling.min_p == 0);
    model_free(&m);
    /* many ends, as some fine-tuned models list, and all tokens in place of a top k */
    ck_write_text(dir, "generation_config.json",
                  "{\"eos_token_id\": [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21],"
                  " \"top_k\": -1}");
    m = load(dir);
    assert_true(g->n_stop == 15 && g->stop[14] == 21 && !g->sampling.top_k && !m.note);
    model_free(&m);
    scratch_remove(dir);
    ck_free(&c);
}

/* gpt-oss with plain experts, stored [in, out] with gate and up interleaved. */
static void test_plain_experts_of_gpt_oss(void **state)
{
    (void)state;
    struct ck c = ck_load(OSS, ST);
    ck_set(&c, "quantization_config", NULL);
    for (int i = 0; i < 6; i++) {
        static const char *const part[] = {"gate_up_proj", "down_proj"};
        for (int k = 0; k < 2; k++) {
            char name[96], to[96];
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s_scales", i, part[k]);
            ck_drop(&c, name);
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s_blocks", i, part[k]);
            snprintf(to, sizeof to, "model.layers.%d.mlp.experts.%s", i, part[k]);
            ck_rename(&c, name, to);
            ck_reshape(&c, to, "BF16", k ? "[8, 64, 64]" : "[8, 64, 128]");
        }
    }
    struct model m = load_ck(&c, 1);
    assert_int_equal(m.cfg.store, STORE_IN_OUT);
    assert_true(m.layer[2].gate_up.type == DT_BF16 && m.layer[2].gate_up.dim[2] == 128);
    assert_true(m.layer[2].down_e.n_dim == 3 && !m.layer[2].down_s.data);
    model_free(&m);
    ck_free(&c);
}

/* Hub files of E2B carry K and V weights of layers that never use them. */
static void test_unused_kv_of_shared_layers_is_skipped(void **state)
{
    (void)state;
    struct ck c = ck_load(G4, ST);
    ck_add(&c, "model.layers.7.self_attn.k_proj.weight", "BF16", json_pack("[ii]", 32, 64), NULL,
           32 * 64 * 2);
    ck_add(&c, "model.layers.7.self_attn.v_proj.weight", "BF16", json_pack("[ii]", 32, 64), NULL,
           32 * 64 * 2);
    ck_add(&c, "model.layers.7.self_attn.k_norm.weight", "BF16", json_pack("[i]", 16), NULL, 32);
    struct model m = load_ck(&c, 1);
    assert_true(!m.layer[7].wk.data && m.layer[7].kv_src == 4);
    model_free(&m);
    ck_free(&c);
}

static void test_gemma4_forces_the_last_layer_full_and_reads_overrides(void **state)
{
    (void)state;
    struct ck c = ck_load(G4, ST);
    json_t *types = json_object_get(c.config, "layer_types");
    json_array_set_new(types, 11, json_string("sliding_attention"));
    ck_set(&c, "global_head_dim", NULL);
    ck_set_text(&c, "per_layer_config", "{\"5\": {\"head_dim\": 32}, \"11\": {\"head_dim\": 32}}");
    struct model m = load_ck(&c, 1);
    assert_true(m.layer[11].window == 0 && m.layer[11].head_dim == 32 && m.layer[11].kv_src == 5);
    model_free(&m);
    ck_free(&c);
}

/* ---- fused and stacked matrices ---- */

/* t has `rows` rows, which are those at p. Returns the bytes behind them. */
static const char *assert_rows(const struct tensor *t, const char *p, int rows, int columns)
{
    assert_true(t->n_dim == 2 && t->dim[0] == rows && t->dim[1] == columns);
    assert_int_equal(t->bytes, 2 * rows * columns);
    assert_memory_equal(t->data, p, t->bytes);
    return p + t->bytes;
}

static const char *data_of(const struct ck *c, int layer, const char *name)
{
    char full[96];
    snprintf(full, sizeof full, "model.layers.%d.%s.weight", layer, name);
    return (const char *)ck_find(c, full)->data;
}

static void test_the_rows_of_a_fused_matrix_are_three_tensors_and_two(void **state)
{
    (void)state;
    struct ck c = ck_load("tests/golden/phi3-b", ST);
    struct model m = load("tests/golden/phi3-b");
    for (int l = 0; l < m.cfg.n_layer; l++) {
        const char *p = data_of(&c, l, "self_attn.qkv_proj");
        p = assert_rows(&m.layer[l].wq, p, 60, 60);
        p = assert_rows(&m.layer[l].wk, p, 20, 60);
        assert_rows(&m.layer[l].wv, p, 20, 60);
        p = data_of(&c, l, "mlp.gate_up_proj");
        p = assert_rows(&m.layer[l].gate, p, 72, 60);
        assert_rows(&m.layer[l].up, p, 72, 60);
    }
    assert_true(m.cfg.rope[0].rot == 8);
    model_free(&m);
    ck_free(&c);
}

static void test_matrices_of_single_experts_are_stacked(void **state)
{
    (void)state;
    struct ck c = ck_load("tests/golden/qwen3moe-b", ST);
    struct model m = load("tests/golden/qwen3moe-b");
    enum { E = 7, F = 20, H = 48, EACH = 2 * F * H };
    for (int l = 0; l < m.cfg.n_layer; l++) {
        const struct layer *w = &m.layer[l];
        assert_int_equal(w->is_moe, l != 1);
        assert_true(w->is_moe ? !w->gate.data : !w->router.data);
        for (int i = 0; w->is_moe && i < E; i++) {
            char name[64];
            const char *gate_up = (const char *)w->gate_up.data + (size_t)i * 2 * EACH;
            snprintf(name, sizeof name, "mlp.experts.%d.gate_proj", i);
            assert_memory_equal(gate_up, data_of(&c, l, name), EACH);
            snprintf(name, sizeof name, "mlp.experts.%d.up_proj", i);
            assert_memory_equal(gate_up + EACH, data_of(&c, l, name), EACH);
            snprintf(name, sizeof name, "mlp.experts.%d.down_proj", i);
            assert_memory_equal((const char *)w->down_e.data + (size_t)i * EACH,
                                data_of(&c, l, name), EACH);
        }
    }
    const struct tensor *t = &m.layer[0].gate_up;
    assert_true(t->n_dim == 3 && t->dim[0] == E && t->dim[1] == 2 * F && t->dim[2] == H);
    assert_int_equal(t->bytes, E * 2 * EACH);
    assert_true(m.cfg.router == ROUTER_ALL);
    model_free(&m);
    ck_free(&c);
}

/* Writes the experts of layer l as two tensors, in place of three matrices an expert. */
static void stack_experts(struct ck *c, const struct layer *w, int l)
{
    static const char *const part[] = {"gate_proj", "up_proj", "down_proj"};
    const struct tensor *all[] = {&w->gate_up, &w->down_e};
    char name[96];
    for (int i = 0; i < w->gate_up.dim[0]; i++)
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", l, i, part[k]);
            ck_drop(c, name);
        }
    for (int k = 0; k < 2; k++) {
        const struct tensor *t = all[k];
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", l,
                 k ? "down_proj" : "gate_up_proj");
        ck_add(c, name, "BF16",
               json_pack("[I,I,I]", (json_int_t)t->dim[0], (json_int_t)t->dim[1],
                         (json_int_t)t->dim[2]),
               t->data, t->bytes);
    }
}

static void test_experts_may_be_stacked_in_the_file(void **state)
{
    (void)state;
    static const char *const folders[] = {"qwen3moe-b", "mellum-b", "afmoe-b", "laguna-b",
                                          "mimo-b"};
    for (int i = 0; i < COUNT(folders); i++) {
        char *dir = xasprintf("tests/golden/%s", folders[i]);
        struct ck c = ck_load(dir, ST);
        struct model m = load(dir), stacked;
        for (int l = 0; l < m.cfg.n_layer; l++)
            if (m.layer[l].is_moe)
                stack_experts(&c, &m.layer[l], l);
        stacked = load_ck(&c, 1);
        assert_int_equal(m.bytes, stacked.bytes);
        for (int l = 0; l < m.cfg.n_layer; l++) {
            const struct layer *a = &m.layer[l], *b = &stacked.layer[l];
            if (!a->is_moe)
                continue;
            assert_memory_equal(a->gate_up.data, b->gate_up.data, a->gate_up.bytes);
            assert_memory_equal(a->down_e.data, b->down_e.data, a->down_e.bytes);
        }
        model_free(&m);
        model_free(&stacked);
        ck_free(&c);
        free(dir);
    }
}

/* The folder's checkpoint is refused with a message that has the words. */
static void refused(struct ck *c, const char *words)
{
    struct model m;
    struct err e = {0};
    char *dir = scratch_folder();
    ck_save(c, dir, 1);
    bool ok = model_load(&m, dir, NULL, &e);
    scratch_remove(dir);
    if (ok || e.kind != ERR_MODEL || !strstr(e.msg, words))
        fail_msg("\"%s\" was expected: %s", words, ok ? "the folder is accepted" : e.msg);
    ck_free(c);
}

static void test_parts_that_do_not_fit_are_refused_by_name(void **state)
{
    (void)state;
#define EXPERT "model.layers.2.mlp.experts.3.up_proj.weight"
    struct ck c = ck_load("tests/golden/qwen3moe-b", ST);
    ck_drop(&c, EXPERT);
    refused(&c, "tensor " EXPERT " is missing, expected [20 (expert width), 48 (hidden_size)]");
    c = ck_load("tests/golden/qwen3moe-b", ST);
    ck_reshape(&c, EXPERT, "F16", "[20, 48]");
    refused(&c, "tensor " EXPERT " has type F16, expected that of the first expert's");
    c = ck_load("tests/golden/qwen3moe-b", ST);
    ck_reshape(&c, EXPERT, "BF16", "[48, 20]");
    refused(&c, "tensor " EXPERT " has shape [48, 20]");
    c = ck_load("tests/golden/qwen3moe-b", ST);
    ck_set_text(&c, "num_experts", "6");
    ck_set_text(&c, "num_local_experts", NULL);
    refused(&c, "mlp.gate.weight has shape [7, 48]");
    c = ck_load("tests/golden/qwen3moe-b", ST);
    ck_rename(&c, EXPERT, "model.layers.2.mlp.experts.03.up_proj.weight");
    refused(&c, "tensor " EXPERT " is missing");
    c = ck_load("tests/golden/phi3-b", ST);
    ck_reshape(&c, "model.layers.1.self_attn.qkv_proj.weight", "BF16", "[60, 100]");
    refused(&c, "qkv_proj.weight has shape [60, 100], expected [100 (of its parts), 60");
}

static void test_older_names_of_granite_experts(void **state)
{
    (void)state;
    struct ck c = ck_load("tests/golden/granitemoe-b", ST);
    struct model m = load("tests/golden/granitemoe-b"), older;
    for (int l = 0; l < m.cfg.n_layer; l++) {
        static const char *const name[][2] = {{"router.weight", "router.layer.weight"},
                                              {"experts.gate_up_proj", "input_linear.weight"},
                                              {"experts.down_proj", "output_linear.weight"}};
        for (int i = 0; i < 3; i++) {
            char from[96], to[96];
            snprintf(from, sizeof from, "model.layers.%d.block_sparse_moe.%s", l, name[i][0]);
            snprintf(to, sizeof to, "model.layers.%d.block_sparse_moe.%s", l, name[i][1]);
            ck_rename(&c, from, to);
        }
    }
    older = load_ck(&c, 1);
    for (int l = 0; l < m.cfg.n_layer; l++)
        assert_memory_equal(m.layer[l].down_e.data, older.layer[l].down_e.data,
                            m.layer[l].down_e.bytes);
    assert_int_equal(m.bytes, older.bytes);
    model_free(&m);
    model_free(&older);
    ck_free(&c);
}

/* A model without a checkpoint has the tensors of one with a checkpoint. */
static void test_shapes_without_a_checkpoint_are_those_of_one(void **state)
{
    (void)state;
    static const char *const folders[] = {"phi3-b", "qwen3moe-b", "mellum-b", "exaone4-b",
                                          "granitemoe-b", "cohere2-b", "afmoe-b", "laguna-b",
                                          "mimo-b", "llama4-b"};
    for (int i = 0; i < COUNT(folders); i++) {
        char *dir = xasprintf("tests/golden/%s", folders[i]);
        struct buf text = ck_read(dir, "config.json");
        struct model m = load(dir), shaped;
        struct err e = {0};
        buf_char(&text, '\0');
        if (!model_shaped(&shaped, text.p, &e))
            fail_msg("%s: %s", folders[i], e.msg);
        if (shaped.bytes != m.bytes)
            fail_msg("%s: %llu bytes, not %llu", folders[i], (unsigned long long)shaped.bytes,
                     (unsigned long long)m.bytes);
        for (int l = 0; l < m.cfg.n_layer; l++) {
            int n;
            struct tensor *x = layer_tensors(&m.layer[l], &n);
            struct tensor *y = layer_tensors(&shaped.layer[l], &n);
            for (int k = 0; k < n; k++)
                assert_true(x[k].bytes == y[k].bytes && x[k].n_dim == y[k].n_dim &&
                            !memcmp(x[k].dim, y[k].dim, sizeof x[k].dim));
        }
        model_free(&m);
        model_free(&shaped);
        buf_free(&text);
        free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yarn_of_gpt_oss),
        cmocka_unit_test(test_yarn_options),
        cmocka_unit_test(test_linear_llama3_and_partial),
        cmocka_unit_test(test_frequencies_are_those_of_the_reference),
        cmocka_unit_test(test_rope_spellings_agree),
        cmocka_unit_test(test_multimodal_folders_give_their_text_model),
        cmocka_unit_test(test_silent_gemma3_configs_mean_the_class_defaults),
        cmocka_unit_test(test_a_second_copy_of_a_tied_head_is_accepted),
        cmocka_unit_test(test_a_tied_head_alone_is_the_embedding),
        cmocka_unit_test(test_stop_ids_join_and_drop_what_is_out_of_range),
        cmocka_unit_test(test_plain_experts_of_gpt_oss),
        cmocka_unit_test(test_unused_kv_of_shared_layers_is_skipped),
        cmocka_unit_test(test_gemma4_forces_the_last_layer_full_and_reads_overrides),
        cmocka_unit_test(test_the_rows_of_a_fused_matrix_are_three_tensors_and_two),
        cmocka_unit_test(test_matrices_of_single_experts_are_stacked),
        cmocka_unit_test(test_experts_may_be_stacked_in_the_file),
        cmocka_unit_test(test_parts_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(test_older_names_of_granite_experts),
        cmocka_unit_test(test_shapes_without_a_checkpoint_are_those_of_one),
    };
    return cmocka_run_group_tests_name("model variants", tests, NULL, NULL);
}
