/* test_draft_heads.c - every dialect of EAGLE3 heads, DFlash drafts and assistants: names, shapes,
 * windows, captures. */
#include "tests/model_kit.h"

/* ---- dialects of EAGLE3 heads ---- */

static void rename_all(struct ck *c, const char *from, const char *to)
{
    for (int i = 0; i < c->n; i++) {
        if (strncmp(c->t[i].name, from, strlen(from)))
            continue;
        char *name = xasprintf("%s%s", to, c->t[i].name + strlen(from));
        free(c->t[i].name);
        c->t[i].name = name;
    }
}

static void add_bf16(struct ck *c, const char *name, int d0, int d1)
{
    json_t *shape = d1 ? json_pack("[ii]", d0, d1) : json_pack("[i]", d0);
    ck_add(c, name, "BF16", shape, NULL, (size_t)d0 * (size_t)(d1 ? d1 : 1) * 2);
}

static void test_block_names_of_all_exporters(void **state)
{
    (void)state;
    static const struct { const char *from, *to; } names[] = {
        {"midlayer.", "layers.0."},
        {"midlayer.", "midlayer.0."},
        {"midlayer.", "model.layers.0."},
        {"", "model."},
    };
    struct model m = load(OSS);
    for (int i = 0; i < COUNT(names); i++) {
        struct ck c = ck_load(EAGLE, ST);
        rename_all(&c, names[i].from, names[i].to);
        struct draft d = load_draft(&c, &m, NULL);
        assert_true(d.layer[0].hidden_norm.data && d.layer[0].wq.dim[1] == 128 && d.d2t);
        draft_free(&d);
        ck_free(&c);
    }
    model_free(&m);
}

/* A speculators file: nested config, captures at the top, norms before fc, verifier copies. */
static struct ck speculators_head(void)
{
    struct ck c = ck_load(EAGLE, ST);
    rename_all(&c, "midlayer.", "layers.0.");
    json_t *block = c.config;
    json_object_del(block, "eagle_config");
    json_object_del(block, "draft_vocab_size");
    json_object_del(block, "target_hidden_size");
    c.config = json_pack("{s:s, s:i, s:b, s:b, s:[i,i,i], s:o}", "speculators_model_type", "eagle3",
                         "draft_vocab_size", 160, "norm_before_residual", 1, "norm_before_fc", 1,
                         "eagle_aux_hidden_state_layer_ids", 2, 3, 5, "transformer_layer_config",
                         block);
    add_bf16(&c, "input_norm.weight", 192, 0);
    add_bf16(&c, "embed_tokens.weight", 512, 64);
    add_bf16(&c, "verifier_norm.weight", 64, 0);
    return c;
}

static void test_speculators_heads(void **state)
{
    (void)state;
    struct model m = load(OSS);
    struct ck c = speculators_head();
    ck_set_text(&c, "transformer_layer_config.rope_scaling",
                "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"truncate\": false,"
                " \"original_max_position_embeddings\": 4096}");
    struct draft d = load_draft(&c, &m, NULL);
    assert_true(d.norm_before_residual && !d.norm_output && d.input_norm.dim[0] == 192);
    assert_true(d.capture[0] == 2 && d.capture[1] == 3 && d.capture[2] == 5);
    assert_non_null(strstr(d.capture_from, "as written"));
    assert_true(d.embed.data && d.draft_vocab == 160 && d.cfg.rope[0].kind == ROPE_YARN);
    assert_true(d.cfg.rope[0].theta == 1e4); /* its own, not the target's 150000 */
    draft_free(&d);
    ck_free(&c);
    model_free(&m);
}

static void test_norms_outputs_and_biases_of_newer_heads(void **state)
{
    (void)state;
    struct model m = load(OSS);
    struct ck c = ck_load(EAGLE, ST);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc_norm.%d.weight", i);
        add_bf16(&c, name, 64, 0);
    }
    ck_set(&c, "norm_output", json_true());
    ck_set(&c, "fc_norm", json_true());
    ck_set(&c, "attention_bias", json_true());
    add_bf16(&c, "midlayer.self_attn.q_proj.bias", 64, 0);
    add_bf16(&c, "midlayer.self_attn.k_proj.bias", 32, 0);
    add_bf16(&c, "midlayer.self_attn.v_proj.bias", 32, 0);
    add_bf16(&c, "fc.bias", 64, 0);
    struct draft d = load_draft(&c, &m, "1,2,6");
    assert_true(d.norm_output && d.fc_norm[0].data && d.fc_norm[2].dim[0] == 64 && d.fc_b.data);
    assert_true(d.cfg.qkv_bias && !d.cfg.o_bias && d.layer[0].bk.data && !d.layer[0].bo.data);
    assert_true(d.capture[0] == 1 && d.capture[1] == 2 && d.capture[2] == 6);
    assert_string_equal(d.capture_from, "given by the user");
    draft_free(&d);
    ck_free(&c);
    model_free(&m);
}

static void test_windows_of_heads(void **state)
{
    (void)state;
    static const struct { const char *types, *use; int window; } cases[] = {
        {NULL, NULL, 0}, /* a window alone proves nothing */
        {NULL, "false", 0},
        {NULL, "true", 128},
        {"[\"sliding_attention\"]", NULL, 128},
        {"[\"full_attention\"]", NULL, 0},
    };
    struct model m = load(OSS);
    for (int i = 0; i < COUNT(cases); i++) {
        struct ck c = ck_load(EAGLE, ST);
        ck_set(&c, "sliding_window", json_integer(128));
        if (cases[i].types)
            ck_set_text(&c, "layer_types", cases[i].types);
        if (cases[i].use)
            ck_set_text(&c, "use_sliding_window", cases[i].use);
        struct draft d = load_draft(&c, &m, NULL);
        assert_int_equal(d.layer[0].window, cases[i].window);
        assert_int_equal(d.cfg.window, cases[i].window);
        draft_free(&d);
        ck_free(&c);
    }
    model_free(&m);
}

/* Two blocks: only the first reads [embedding; hidden]. */
static void test_heads_of_several_layers(void **state)
{
    (void)state;
    struct model m = load(OSS);
    struct ck c = ck_load(EAGLE, ST);
    rename_all(&c, "midlayer.", "midlayer.0.");
    add_bf16(&c, "midlayer.1.input_layernorm.weight", 64, 0);
    add_bf16(&c, "midlayer.1.post_attention_layernorm.weight", 64, 0);
    add_bf16(&c, "midlayer.1.self_attn.q_proj.weight", 64, 64);
    add_bf16(&c, "midlayer.1.self_attn.k_proj.weight", 32, 64);
    add_bf16(&c, "midlayer.1.self_attn.v_proj.weight", 32, 64);
    add_bf16(&c, "midlayer.1.self_attn.o_proj.weight", 64, 64);
    add_bf16(&c, "midlayer.1.mlp.gate_proj.weight", 128, 64);
    add_bf16(&c, "midlayer.1.mlp.up_proj.weight", 128, 64);
    add_bf16(&c, "midlayer.1.mlp.down_proj.weight", 64, 128);
    ck_set(&c, "num_hidden_layers", json_integer(2));
    struct draft d = load_draft(&c, &m, NULL);
    assert_true(d.cfg.n_layer == 2 && d.layer[0].wq.dim[1] == 128 && d.layer[1].wq.dim[1] == 64);
    assert_true(d.layer[0].hidden_norm.data && !d.layer[1].hidden_norm.data);
    draft_free(&d);
    ck_free(&c);
    model_free(&m);
}

static void test_heads_without_a_vocabulary_of_their_own(void **state)
{
    (void)state;
    struct model m = load(OSS);
    struct ck c = ck_load(EAGLE, ST);
    ck_drop(&c, "d2t");
    ck_drop(&c, "t2d");
    ck_drop(&c, "lm_head.weight");
    ck_set(&c, "draft_vocab_size", json_null());
    struct draft d = load_draft(&c, &m, NULL); /* the target's head */
    assert_true(d.draft_vocab == 512 && !d.d2t && !d.head.data);
    draft_free(&d);
    add_bf16(&c, "lm_head.weight", 512, 64); /* its own, over all tokens */
    d = load_draft(&c, &m, NULL);
    assert_true(d.draft_vocab == 512 && !d.d2t && d.head.data);
    draft_free(&d);
    ck_add(&c, "d2t", "I64", json_pack("[i]", 512), NULL, 512 * 8); /* all offsets 0 */
    d = load_draft(&c, &m, NULL);
    assert_null(d.d2t);
    draft_free(&d);
    ck_free(&c);
    model_free(&m);
}

static void test_an_unsorted_map_is_noted_not_refused(void **state)
{
    (void)state;
    struct model m = load(OSS);
    struct ck c = ck_load(EAGLE, ST);
    int64_t *off = (int64_t *)(void *)ck_find(&c, "d2t")->data;
    int64_t first = off[0], second = 1 + off[1];
    off[0] = second, off[1] = first - 1; /* draft ids 0 and 1 change places */
    struct draft d = load_draft(&c, &m, NULL);
    assert_true(d.d2t[0] == second && d.d2t[1] == first);
    assert_non_null(strstr(d.note, "order"));
    draft_free(&d);
    ck_free(&c);
    model_free(&m);
}

/* Stretches gpt-oss to n layers by repeating its own. */
static struct model deep_target(int n)
{
    struct ck c = ck_load(OSS, ST);
    for (int i = 6; i < n; i++)
        for (int k = 0, all = c.n; k < all; k++) {
            char from[32], name[128];
            snprintf(from, sizeof from, "model.layers.%d.", i % 2);
            if (strncmp(c.t[k].name, from, strlen(from)))
                continue;
            snprintf(name, sizeof name, "model.layers.%d.%s", i, c.t[k].name + strlen(from));
            ck_add(&c, name, c.t[k].dtype, json_deep_copy(c.t[k].shape), c.t[k].data, c.t[k].n);
        }
    ck_set(&c, "num_hidden_layers", json_integer(n));
    ck_set(&c, "layer_types", NULL);
    struct model m = load_ck(&c, 1);
    ck_free(&c);
    return m;
}

static void test_capture_conventions(void **state)
{
    (void)state;
    static const struct {
        int layers;
        const char *nested, *top;
        int want[3];
        const char *says;
    } cases[] = {
        {24, NULL, NULL, {2, 12, 21}, "default"},
        {36, NULL, NULL, {2, 18, 33}, "default"},
        {24, "[1, 11, 21]", NULL, {2, 12, 22}, "plus 1"}, /* SpecForge for the 20b */
        {36, "[1, 17, 33]", NULL, {2, 18, 34}, "plus 1"}, /* and for the 120b */
        {36, "[24, 30, 36]", NULL, {24, 30, 36}, "NVIDIA"},
        {36, "[1, 17, 32]", NULL, {1, 17, 32}, "NVIDIA"},
        {24, "[1, 17, 22]", NULL, {2, 18, 23}, "plus 1"},
        {24, NULL, "[2, 12, 21]", {2, 12, 21}, "as written"},
        {24, "[]", NULL, {2, 12, 21}, "default"},
        {24, "[1, 11, 20]", "[1, 11, 20]", {2, 12, 21}, "plus 1"}, /* copied to the top unchanged */
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct model m = deep_target(cases[i].layers);
        struct ck c = ck_load(EAGLE, ST);
        ck_set(&c, "eagle_config", NULL);
        if (cases[i].nested)
            ck_set_text(&c, "eagle_config.eagle_aux_hidden_state_layer_ids", cases[i].nested);
        if (cases[i].top)
            ck_set_text(&c, "eagle_aux_hidden_state_layer_ids", cases[i].top);
        struct draft d = load_draft(&c, &m, NULL);
        for (int k = 0; k < 3; k++)
            assert_int_equal(d.capture[k], cases[i].want[k]);
        if (!strstr(d.capture_from, cases[i].says))
            fail_msg("case %d: %s", i, d.capture_from);
        draft_free(&d);
        ck_free(&c);
        model_free(&m);
    }
}

/* ---- DFlash drafts ---- */

/* A change of config.json and what it makes of the draft: its error, or its switches. */
struct block_case {
    const char *at, *text, *error;
    int window;    /* of layer 1 */
    bool full, swa; /* causal */
};

static void try_block(const struct model *m, const struct block_case *x)
{
    struct ck c = ck_load("tests/golden/dflash-b", ST);
    struct err e = {0};
    struct draft d;
    char *dir = scratch_folder();
    if (x->at)
        ck_set_text(&c, x->at, x->text);
    ck_save(&c, dir, 1);
    bool ok = draft_load(&d, dir, m, NULL, NULL, &e);
    if (ok == (x->error != NULL) || (x->error && !strstr(e.msg, x->error)))
        fail_msg("%s %s: %s", x->at, x->text, ok ? "loaded" : e.msg);
    if (ok) {
        assert_string_equal(d.kind, "dflash");
        if (d.layer[1].window != x->window || d.causal[0] != x->full || d.causal[1] != x->swa)
            fail_msg("%s %s: window %d, causal %d %d", x->at, x->text, d.layer[1].window,
                     d.causal[0], d.causal[1]);
        draft_free(&d);
    }
    scratch_remove(dir);
    ck_free(&c);
}

static void test_masks_and_limits_of_blocks(void **state)
{
    (void)state;
    static const struct block_case cases[] = {
        {NULL, NULL, NULL, 0, false, true},
        {"is_causal", "true", NULL, 0, true, true},
        {"dflash_config.causal", "true", NULL, 0, true, true},
        {"dflash_config.causal", "false", NULL, 0, false, false},
        {"sliding_window_non_causal", "true", NULL, 0, false, false},
        {"dflash_config.use_swa", "true", "sliding_window", 0, false, false},
        {"dflash_config", "{\"use_swa\": true, \"swa_window_size\": 32, \"mask_token_id\": 3, "
                          "\"target_layer_ids\": [0, 1]}", NULL, 32, false, true},
        {"dflash_config", "{\"use_swa\": true, \"swa_window_size\": 5, \"mask_token_id\": 3, "
                          "\"target_layer_ids\": [0, 1]}", "at least the block_size 6", 0, 0, 0},
        {"dflash_config", "{\"target_layer_ids\": [0, 1]}", "mask_token_id is missing", 0, 0, 0},
        {"dflash_config.mask_token_id", "131", "mask_token_id", 0, 0, 0},
        {"dflash_config.target_layer_ids", "[0, 3]", "boundary 4", 0, 0, 0},
        {"dflash_config.target_layer_ids", "[0]", "1 captured states", 0, 0, 0},
        {"block_size", "1", "block_size", 0, 0, 0},
        {"block_size", "18", "block_size", 0, 0, 0},
        {"block_size", "17", NULL, 0, false, true},
        {"num_target_layers", "36", "num_target_layers", 0, 0, 0},
        {"output_multiplier", "2.0", NULL, 0, false, true},
        {"output_multiplier", "0", "output_multiplier", 0, 0, 0},
        {"use_gemma_norm", "true", "use_gemma_norm", 0, 0, 0},
        {"is_neox_style", "false", "is_neox_style", 0, 0, 0},
        {"hidden_act", "\"tanh\"", "hidden_act", 0, 0, 0},
        {"vocab_size", "130", "vocab_size is 130", 0, 0, 0},
    };
    struct model m = load("tests/golden/qwen3-b");
    for (int i = 0; i < COUNT(cases); i++)
        try_block(&m, &cases[i]);
    model_free(&m);
}

static void refused(const struct ck *c, const struct model *m, const char *why)
{
    struct err e = {0};
    struct draft d;
    char *dir = scratch_folder();
    ck_save(c, dir, 1);
    bool ok = draft_load(&d, dir, m, NULL, NULL, &e);
    if (ok || !strstr(e.msg, why))
        fail_msg("%s: %s", why, ok ? "loaded" : e.msg);
    scratch_remove(dir);
}

/* ---- DSpark and DFlash 2 --------------------------------------------------------------------- */

/* A change of config.json of a folder, and the error, or the draft's switches. */
struct edge_case {
    const char *draft, *at, *text, *error;
    enum draft_edges edges;
    int block, depth; /* rows; of the first row's guess */
};

static void try_edges(const struct model *m, const struct edge_case *x)
{
    char *path = xasprintf("tests/golden/%s", x->draft);
    struct ck c = ck_load(path, ST);
    free(path);
    if (x->at && x->text)
        ck_set_text(&c, x->at, x->text);
    else if (x->at)
        ck_set(&c, x->at, NULL);
    if (x->error) {
        refused(&c, m, x->error);
    } else {
        struct draft d = load_draft(&c, m, NULL);
        if (d.edges != x->edges || d.block != x->block || d.block_depth != x->depth ||
            strncmp(d.kind, x->draft, strlen(d.kind)) != 0)
            fail_msg("%s, %s %s: %s, edges %d, block %d, depth %d", x->draft, x->at, x->text,
                     d.kind, d.edges, d.block, d.block_depth);
        assert_true(d.prev.by_row && d.prev.dim[1] == d.rank && d.next.dim[1] == d.rank);
        assert_true(d.edges != EDGES_BEST || (d.next.by_row && d.layer[0].attn_conv.n_dim == 2 &&
                                              d.layer[1].mlp_conv.dim[0] == 2 * d.taps));
        draft_free(&d);
    }
    ck_free(&c);
}

static void test_dialects_of_drafts_whose_guesses_depend_on_the_token_before(void **state)
{
    (void)state;
    static const struct edge_case qwen[] = {
        {"dspark-b", NULL, NULL, NULL, EDGES_BIAS, 6, 1},
        {"dspark-b", "sample_from_anchor", "false", NULL, EDGES_BIAS, 6, 0},
        {"dspark-b", "markov_head_type", NULL, NULL, EDGES_BIAS, 6, 1},
        {"dspark-b", "markov_head_type", "\"rnn\"", "markov_head_type is \"rnn\"", 0, 0, 0},
        {"dspark-b", "markov_head_type", "\"gated\"", "markov_head.gate_proj.weight is missing",
         0, 0, 0},
        {"dspark-b", "markov_rank", "19", "markov_w1.weight has shape [131, 20]", 0, 0, 0},
        {"dspark-b", "markov_rank", "0", "markov_head.markov_w", 0, 0, 0},
        {"dspark-b", "output_multiplier", "2.0", "output_multiplier", 0, 0, 0},
        {"dspark-b", "block_size", "16", NULL, EDGES_BIAS, 16, 1},
        {"dspark-b", "block_size", "17", "block_size", 0, 0, 0},
        {"dspark-b", "log_snr_conditioning", "true", "log_snr_conditioning", 0, 0, 0},
        {"dspark-b", "dspark_noise_token_id", "131", "dspark_noise_token_id", 0, 0, 0},
        {"dflash2-b", NULL, NULL, NULL, EDGES_BEST, 8, 0},
        {"dflash2-b", "sample_from_anchor", "true", NULL, EDGES_BEST, 8, 1},
        {"dflash2-b", "dflash_config.selector_rank", "25", "predecessor_codebook has shape", 0, 0,
         0},
        {"dflash2-b", "dflash_config.selector_top_k", "17", "selector_top_k", 0, 0, 0},
        {"dflash2-b", "dflash_config.conv_group_size", "7", "does not divide hidden_size 48", 0, 0,
         0},
        {"dflash2-b", "dflash_config.conv_kernel_size", "3", "base_kernel has shape [2, 2, 48]", 0,
         0, 0},
        {"dflash2-b", "dflash_config.conv_group_size", "16", "kernel_projection.weight has shape",
         0, 0, 0},
        {"dflash2-b", "draft_vocab_size", "90", "draft_vocab_size", 0, 0, 0},
    };
    static const struct edge_case gemma[] = {
        {"dspark-gated-b", NULL, NULL, NULL, EDGES_GATED, 7, 1},
        {"dspark-gated-b", "sample_from_anchor", NULL, NULL, EDGES_GATED, 7, 0}, /* older files */
        {"dspark-gated-b", "markov_head_type", "\"vanilla\"", "markov_head.gate_proj", 0, 0, 0},
        {"dflash2-swa-b", NULL, NULL, NULL, EDGES_BEST, 5, 1},
        {"dflash2-swa-b", "sample_from_anchor", NULL, NULL, EDGES_BEST, 5, 0},
    };
    struct model m = load("tests/golden/qwen3-b");
    for (int i = 0; i < COUNT(qwen); i++)
        try_edges(&m, &qwen[i]);
    model_free(&m);
    m = load("tests/golden/gemma3-b");
    for (int i = 0; i < COUNT(gemma); i++)
        try_edges(&m, &gemma[i]);
    model_free(&m);
    m = load("tests/golden/qwen3-b");
    struct ck c = ck_load("tests/golden/dspark-b", ST);
    add_bf16(&c, "layers.0.pre_feedforward_layernorm.weight", 48, 0);
    refused(&c, &m, "a draft with gemma-4's layers");
    ck_free(&c);
    model_free(&m);
}

/* ---- P-EAGLE --------------------------------------------------------------------------------- */

/* A change of config.json, and the masks of a block or the error. A head that guesses fewer depths
 * than its file names has a note. */
static const char *parallel_note;
static void try_parallel(const struct model *m, struct ck *c, const char *at, const char *text,
                         int block, const char *error)
{
    struct err e = {0};
    struct draft d;
    char *dir = scratch_folder();
    if (at)
        ck_set_text(c, at, text);
    ck_save(c, dir, 1);
    bool ok = draft_load(&d, dir, m, NULL, NULL, &e);
    if (ok == (error != NULL) || (error && !strstr(e.msg, error)))
        fail_msg("%s %s: %s", at, text, ok ? "loaded" : e.msg);
    if (ok) {
        assert_string_equal(d.kind, block ? "peagle" : "eagle3");
        assert_int_equal(d.block, block);
        if (!parallel_note != !d.note || (d.note && !strstr(d.note, parallel_note)))
            fail_msg("%s %s: note %s", at, text, d.note);
        assert_true(!block || (d.block_depth == 2 && d.causal[0] && d.causal[1] &&
                               d.mask_hidden.data && draft_block_reach(&d) == block + 1));
        draft_free(&d);
    }
    scratch_remove(dir);
}

static void test_parallel_heads(void **state)
{
    (void)state;
    static const struct { const char *at, *text; int block; const char *error, *note; } cases[] = {
        {NULL, NULL, 6, NULL, NULL},
        {"num_depths", "2", 1, NULL, NULL},
        {"num_depths", "1", 0, "num_depths is 1", NULL},
        {"num_depths", "16", 15, NULL, NULL},
        {"num_depths", "40", 15, NULL, "guesses 16 of its 40 depths: a tree has at most 16"},
        {"num_depths", "\"7\"", 0, "num_depths", NULL},
        {"ptd_token_id", "131", 0, "ptd_token_id is 131", NULL},
        {"ptd_token_id", "-1", 0, "ptd_token_id is -1", NULL},
        {"eagle_aux_hidden_state_layer_ids", "[0, 1]", 0, "2 captured states", NULL},
        {"parallel_draft_step", "2", 0, "parallel_draft_step", NULL},
    };
    struct model m = load("tests/golden/llama-b");
    for (int i = 0; i < COUNT(cases); i++) {
        struct ck c = ck_load("tests/golden/peagle-b", ST);
        parallel_note = cases[i].note;
        try_parallel(&m, &c, cases[i].at, cases[i].text, cases[i].block, cases[i].error);
        ck_free(&c);
    }
    parallel_note = NULL;
    struct ck c = ck_load("tests/golden/peagle-b", ST);
    ck_set(&c, "num_depths", NULL);
    try_parallel(&m, &c, NULL, NULL, 15, NULL); /* as deep as a tree can be */
    try_parallel(&m, &c, "speculators_config",
                 "{\"proposal_methods\": [{\"speculative_tokens\": 5}]}", 4, NULL);
    ck_set_text(&c, "layer_types", "[\"full_attention\", \"sliding_attention\"]");
    try_parallel(&m, &c, "sliding_window", "5", 4, NULL);
    parallel_note = ": the draft guesses 3 of its 5 depths: its window is 3";
    try_parallel(&m, &c, "sliding_window", "3", 2, NULL); /* the first true cell stays in sight */
    ck_set(&c, "speculators_config", NULL); /* no number of depths is named */
    parallel_note = NULL;
    try_parallel(&m, &c, "sliding_window", "3", 2, NULL);
    try_parallel(&m, &c, "sliding_window", "1", 0, "sliding_window is 1, expected at least 2");
    ck_free(&c);
    c = ck_load("tests/golden/peagle-b", ST);
    ck_set(&c, "ptd_token_id", NULL);
    try_parallel(&m, &c, NULL, NULL, 0, "ptd_token_id is missing");
    try_parallel(&m, &c, "pard_token", "5", 6, NULL);
    rename_all(&c, "mask_hidden", "model.mask_hidden");
    try_parallel(&m, &c, NULL, NULL, 6, NULL);
    rename_all(&c, "model.mask_hidden", "verifier_mask_hidden");
    try_parallel(&m, &c, NULL, NULL, 0, "pard_token is that of a P-EAGLE head, but the checkpoint "
                                        "has no tensor mask_hidden");
    ck_set(&c, "pard_token", NULL);
    try_parallel(&m, &c, NULL, NULL, 0, "parallel_drafting is that of a P-EAGLE head");
    ck_set(&c, "parallel_drafting", NULL);
    try_parallel(&m, &c, NULL, NULL, 0, NULL);
    ck_free(&c);
    model_free(&m);
}

/* Muse Glimmer's names; without a list the layers are spread evenly; other tensors are refused. */
static void test_names_of_blocks(void **state)
{
    (void)state;
    struct model m = load("tests/golden/qwen3-b");
    struct ck c = ck_load("tests/golden/dflash-b", ST);
    rename_all(&c, "fc.weight", "encoder.fc.weight");
    rename_all(&c, "hidden_norm.weight", "encoder.output_norm_enc.weight");
    ck_set(&c, "model_type", json_string("muse_glimmer_assistant"));
    ck_set(&c, "sliding_window", json_integer(7));
    ck_set_text(&c, "layer_types", "[\"full_attention\", \"sliding_attention\"]");
    struct draft d = load_draft(&c, &m, NULL);
    assert_true(d.fc.data && d.context_norm.data && !d.embed.data && d.block == 6 && d.mask == 128);
    assert_true(d.layer[0].window == 0 && d.layer[1].window == 8 && !d.causal[0] && !d.causal[1]);
    assert_true(d.capture[0] == 1 && d.capture[1] == 2);
    draft_free(&d);
    ck_set(&c, "dflash_config", NULL);
    ck_set(&c, "mask_token_id", json_integer(5));
    d = load_draft(&c, &m, NULL); /* 1 and 1 + (3 - 4) of three layers, plus 1 */
    assert_true(d.capture[0] == 2 && d.capture[1] == 1 && strstr(d.capture_from, "default"));
    draft_free(&d);
    add_bf16(&c, "aux_hidden_norms.0.weight", 48, 0); /* Laguna's */
    refused(&c, &m, "aux_hidden_norms.0.weight");
    ck_drop(&c, "aux_hidden_norms.0.weight");
    add_bf16(&c, "layers.0.attention_conv.base_kernel", 2, 48);
    refused(&c, &m, "layers.0.attention_conv.base_kernel has shape [2, 48], expected [2 (input and "
                    "output), 2 (conv_kernel_size), 48 (hidden_size)]");
    ck_free(&c);
    model_free(&m);
}

/* ---- assistants ---- */

/* Without sharing in the target, its last layers of each type own their cells themselves. */
static void test_an_assistant_attaches_to_the_last_owners(void **state)
{
    (void)state;
    struct ck t = ck_load(G4, ST);
    ck_set(&t, "num_kv_shared_layers", json_integer(0));
    ck_set(&t, "use_double_wide_mlp", json_false());
    for (int i = 6; i < 12; i++) {
        static const char *const more[] = {"self_attn.k_proj.weight", "self_attn.v_proj.weight"};
        int d = i == 11 ? 32 : 16;
        char name[96];
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", i, more[k]);
            add_bf16(&t, name, 2 * d, 64);
        }
        snprintf(name, sizeof name, "model.layers.%d.self_attn.k_norm.weight", i);
        add_bf16(&t, name, d, 0);
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate_proj.weight", i);
        ck_reshape(&t, name, NULL, "[96, 64]");
        snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj.weight", i);
        ck_reshape(&t, name, NULL, "[96, 64]");
        snprintf(name, sizeof name, "model.layers.%d.mlp.down_proj.weight", i);
        ck_reshape(&t, name, NULL, "[64, 96]");
    }
    struct model m = load_ck(&t, 1);
    struct ck c = ck_load(ASSIST, ST);
    struct draft d = load_draft(&c, &m, NULL);
    assert_true(d.kv_full == 11 && d.kv_swa == 10 && d.layer[0].kv_src == 10);
    assert_int_equal(d.layer[3].kv_src, 11);
    draft_free(&d);
    ck_set(&c, "use_ordered_embeddings", json_false());
    ck_drop(&c, "masked_embedding.centroids.weight");
    ck_drop(&c, "masked_embedding.token_ordering");
    d = load_draft(&c, &m, NULL);
    assert_true(d.n_centroid == 0 && !d.token_order && !d.centroids.data);
    draft_free(&d);
    ck_free(&c);
    ck_free(&t);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_names_of_all_exporters),
        cmocka_unit_test(test_speculators_heads),
        cmocka_unit_test(test_norms_outputs_and_biases_of_newer_heads),
        cmocka_unit_test(test_windows_of_heads),
        cmocka_unit_test(test_heads_of_several_layers),
        cmocka_unit_test(test_heads_without_a_vocabulary_of_their_own),
        cmocka_unit_test(test_an_unsorted_map_is_noted_not_refused),
        cmocka_unit_test(test_capture_conventions),
        cmocka_unit_test(test_masks_and_limits_of_blocks),
        cmocka_unit_test(test_names_of_blocks),
        cmocka_unit_test(test_dialects_of_drafts_whose_guesses_depend_on_the_token_before),
        cmocka_unit_test(test_parallel_heads),
        cmocka_unit_test(test_an_assistant_attaches_to_the_last_owners),
    };
    return cmocka_run_group_tests_name("draft heads", tests, NULL, NULL);
}
