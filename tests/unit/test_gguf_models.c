/* test_gguf_models.c - models in GGUF files: each equals the folder it was made of, its weights
 * unpacked and rounded once to bf16, bit for bit.
 */
#include "tests/few.h"
#include "tests/gguf_convert.h"
#include "tests/twin_kit.h"

#include "engine/engine.h"
#include "engine/tools/golden.h"
#include "models/checkpoint/gguf_model.h"
#include "models/checkpoint/hub.h"
#include "repl/compare/facts.h"

#include <fcntl.h>

#define G "tests/golden/"

static char *folder, *path;

static int setup(void **state)
{
    (void)state;
    folder = scratch_folder();
    path = xasprintf("%s/x.gguf", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(folder);
    free(path);
    return 0;
}

static const struct family_case {
    const char *dir;  /* below tests/golden/ */
    const char *file; /* of weights; NULL: model.safetensors */
    struct conversion how;
    const char
        *set;    /* "KEY=NUMBER": a value that the format does not store, set to what it means;
                    "KEY=*NUMBER": all numbers of a list but 0; "KEY": it is removed */
    bool golden; /* the reference in the folder is one of this config */
    const int *wide; /* pairs of widths, which become multiples of a block: random weights */
} cases[] = {
    {"llama-b", NULL, {.arch = "llama", .trunk = "model.", .paired = true}, .golden = true},
    {"mistral-b", NULL, {.arch = "llama", .trunk = "model.", .paired = true, .window = true},
     .golden = true},
    {"gemma3-a", NULL, {.arch = "gemma3", .trunk = "model.", .window = true, .images = true},
     .golden = true},
    {"qwen3-b", NULL, {.arch = "qwen3", .trunk = "model."}, .golden = true},
    {"qwen3-b", NULL, {.arch = "qwen3", .trunk = "model.", .fused = true}, .golden = true},
    {"llama-b", NULL, {.arch = "llama", .trunk = "model.", .paired = true, .fused = true},
     .golden = true},
    {"llama-b", NULL, {.arch = "llama", .trunk = "model.", .paired = true},
     .wide = (const int[]){48, 64, 72, 128, 6, 8, 0}},
    {"llama-b", NULL, {.arch = "llama", .trunk = "model.", .paired = true, .fused = true},
     .wide = (const int[]){48, 64, 72, 128, 6, 8, 0}},
    {"gemma2-b", NULL, {.arch = "gemma2", .trunk = "model.", .window = true},
     .set = "query_pre_attn_scalar=10"},
    {"gemma4-a", NULL, {.arch = "gemma4", .trunk = "model.", .window = true}, .golden = true},
    {"gemma4-moe-b", NULL, {.arch = "gemma4", .trunk = "model.", .window = true}, .golden = true},
    {"gemma4-moe-b", NULL, {.arch = "gemma4", .trunk = "model.", .window = true, .halves = true},
     .golden = true},
    {"gemma4-ple-b", NULL, {.arch = "gemma4", .trunk = "model.language_model.", .window = true},
     .golden = true},
    {"gemma4-unified-b", NULL, {.arch = "gemma4", .trunk = "model.language_model.", .window = true},
     .golden = true},
    {"gptoss-mxfp4-b", "model-00000-of-00002.safetensors",
     {.arch = "gpt-oss", .trunk = "model.", .window = true}, .golden = true},
    {"gptoss-mxfp4-b", "model-00000-of-00002.safetensors",
     {.arch = "gptoss", .trunk = "model.", .window = true, .ollama = true}, .golden = true},
    {"gptoss-plain-b", NULL, {.arch = "gpt-oss", .trunk = "model.", .window = true},
     .golden = true},
    {"gptoss-plain-b", NULL, {.arch = "gpt-oss", .trunk = "model.", .window = true},
     .wide = (const int[]){48, 64, 24, 32, 0}},
    {"gemma3-a", NULL, {.arch = "gemma3", .trunk = "model.", .window = true, .ollama = true},
     .golden = true},
    {"gemma3-mm-b", NULL, {.arch = "gemma3", .trunk = "language_model.model.", .window = true,
                           .images = true, .ollama = true},
     .set = "query_pre_attn_scalar=24,max_position_embeddings=131072"},
    {"olmo3-b", NULL, {.arch = "olmo3", .trunk = "model.", .window = true}, .golden = true},
    {"olmo3-b", NULL, {.arch = "olmo2", .trunk = "model.", .window = true}, .golden = true},
    {"olmo2-b", NULL, {.arch = "olmo2", .trunk = "model."}, .golden = true},
    {"qwen2-b", NULL, {.arch = "qwen2", .trunk = "model."},
     .set = "layer_types,max_window_layers,sliding_window,use_sliding_window"},
    {"qwen3moe-c", NULL, {.arch = "qwen3moe", .trunk = "model."}, .golden = true},
    {"ministral3-b", NULL, {.arch = "mistral3", .trunk = "language_model.model.", .paired = true},
     .golden = true},
    {"exaone4-b", NULL, {.arch = "exaone4", .trunk = "model.", .window = true}, .golden = true},
    {"smollm3-b", NULL, {.arch = "smollm3", .trunk = "model.", .paired = true},
     .set = "layer_types,no_rope_layers,sliding_window,use_sliding_window"},
    {"cohere2-b", NULL, {.arch = "cohere2", .trunk = "model.", .window = true}, .golden = true},
    {"cohere2-b", NULL, {.arch = "cohere2", .trunk = "model.", .window = true},
     .set = "attention_bias,layer_types"},
    {"phi3-b", NULL, {.arch = "phi3", .trunk = "model.", .window = true}, .golden = true},
    {"phi3-b", NULL, {.arch = "phi3", .trunk = "model.", .window = true},
     .wide = (const int[]){60, 64, 72, 96, 144, 192, 100, 96, 6, 8, 0}},
    {"phi3-long-b", NULL, {.arch = "phi3", .trunk = "model.", .window = true}, .golden = true},
    {"afmoe-b", NULL, {.arch = "afmoe", .trunk = "model.", .window = true}, .golden = true},
    {"afmoe-b", NULL, {.arch = "afmoe", .trunk = "model.", .window = true},
     .set = "layer_types,global_attn_every_n_layers",
     .wide = (const int[]){48, 64, 12, 32, 24, 64, 72, 96, 0}},
    {"laguna-b", NULL, {.arch = "laguna", .trunk = "model.", .window = true},
     .set = "moe_router_logit_softcapping"},
    {"laguna-c", NULL, {.arch = "laguna", .trunk = "model.", .window = true}, .golden = true},
    {"mellum-b", NULL, {.arch = "mellum", .trunk = "model.", .window = true}, .golden = true},
    {"granite-b", NULL, {.arch = "granite_swa", .trunk = "model.", .paired = true, .window = true},
     .set = "layer_rope_theta=*10000"},
    {"granitemoe-b", NULL,
     {.arch = "granite_swa", .trunk = "model.", .paired = true, .window = true}, .golden = true},
    {"granitemoe-b", NULL,
     {.arch = "granite_swa", .trunk = "model.", .paired = true, .window = true, .halves = true},
     .golden = true},
    {"granitemoe-b", NULL,
     {.arch = "granite_swa", .trunk = "model.", .paired = true, .window = true, .halves = true},
     .wide = (const int[]){48, 64, 20, 32, 40, 64, 6, 8, 0}},
    {"muse-b", NULL, {.arch = "muse-glimmer", .trunk = "model.language_model.", .paired = true,
                      .window = true}, .set = "post_norm_eps"},
    {"mimo-b", NULL, {.arch = "mimo2", .trunk = "model.", .window = true},
     .set = "routed_scaling_factor"},
    {"mimo-b", NULL,
     {.arch = "mimo2", .trunk = "model.", .window = true, .fused = true, .further = 2},
     .golden = true},
    {"step-b", NULL, {.arch = "step35", .trunk = "model.", .window = true}, .golden = true},
};

enum { N_CASES = sizeof cases / sizeof *cases };

/* Gives tensors and the config other widths, and the tensors random numbers of about 1/4. */
static void widen(struct ck *ck, const int *pairs)
{
    static const char *const keys[] = {"hidden_size", "moe_intermediate_size", "intermediate_size",
                                       "num_attention_heads"};
    for (; *pairs; pairs += 2) {
        for (int i = 0; i < 4; i++)
            if (json_integer_value(json_object_get(ck->config, keys[i])) == pairs[0])
                json_object_set_new(ck->config, keys[i], json_integer(pairs[1]));
        for (int i = 0; i < ck->n; i++) {
            size_t k;
            json_t *v;
            json_array_foreach(ck->t[i].shape, k, v) if (json_integer_value(v) == pairs[0])
                json_integer_set(v, -pairs[1]); /* not once more */
        }
    }
    for (int i = 0; i < ck->n; i++) {
        struct ck_tensor *t = &ck->t[i];
        size_t k, n = 1;
        json_t *v;
        json_array_foreach(t->shape, k, v) {
            json_integer_set(v, llabs(json_integer_value(v)));
            n *= (size_t)json_integer_value(v);
        }
        t->data = xrealloc(t->data, n, 2);
        t->n = 2 * n;
        for (size_t x = 0; x < n; x++) {
            uint64_t r = mix64((uint64_t)i << 32 | x);
            uint16_t bits = (uint16_t)(0x3e00 | (r & 0x80ff)); /* 1/8 to 1/2, of either sign */
            memcpy(t->data + 2 * x, &bits, 2);
        }
    }
}

/* The folder of a case in one struct, whatever its number of files. */
static struct ck load_case(const struct family_case *c)
{
    char dir[128];
    snprintf(dir, sizeof dir, G "%s", c->dir);
    struct ck ck = ck_load(dir, c->file ? c->file : ST);
    for (int i = 1; c->file && i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-00002.safetensors", i);
        ck_load_more(&ck, dir, name);
    }
    qsort(ck.t, (size_t)ck.n, sizeof *ck.t, ck_order);
    json_t *text = json_incref(json_object_get(ck.config, "text_config"));
    if (text) {
        json_decref(ck.config);
        ck.config = text;
    }
    if (c->wide)
        widen(&ck, c->wide);
    for (int i = 0; c->set && strstr(c->set, "attention_bias") && i < ck.n; i++)
        if (strstr(ck.t[i].name, ".bias"))
            ck_drop(&ck, ck.t[i--].name);
    for (const char *p = c->set, *next; p; p = next ? next + 1 : NULL) {
        next = strchr(p, ',');
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(p, ",="), p);
        json_t *all = json_object_get(ck.config, key), *v;
        size_t k;
        if (!strncmp(p + strlen(key), "=*", 2)) {
            json_array_foreach(all, k, v) if (json_number_value(v) != 0)
                json_array_set_new(all, k, json_integer(atoi(p + strlen(key) + 2)));
        } else if (p[strlen(key)] == '=')
            json_object_set_new(ck.config, key, json_integer(atoi(p + strlen(key) + 1)));
        else
            json_object_del(ck.config, key);
    }
    return ck;
}

static struct ck write_case(const struct family_case *c, int type)
{
    struct conversion how = c->how;
    how.type = type;
    struct ck ck = load_case(c);
    struct buf b = gguf_of(&ck, &how);
    ck_write(folder, "x.gguf", b.p, b.n);
    buf_free(&b);
    ck_save(&ck, folder, 1);
    return ck;
}

static struct model load_how(const char *from, enum file_use use)
{
    struct model m;
    struct err e = {0};
    const struct loading how = {.use = use};
    if (!model_load(&m, from, &how, &e))
        fail_msg("%s", e.msg);
    return m;
}

/* ---- the same model ---- */

static void assert_same_config(const struct config *a, const struct layer *of_a,
                               const struct config *b, const struct layer *of_b)
{
    struct config x = *a, y = *b;
    assert_int_equal(x.n_rope, y.n_rope);
    for (int i = 0; i < x.n_rope; i++) {
        const struct rope *r = &x.rope[i], *s = &y.rope[i];
        assert_true(r->rot == s->rot && r->cs_factor == s->cs_factor);
        assert_memory_equal(r->inv_freq, s->inv_freq, (size_t)r->half * sizeof *r->inv_freq);
    }
    memset(x.rope, 0, sizeof x.rope);
    memset(y.rope, 0, sizeof y.rope);
    if (!x.ple) /* no number depends on it then */
        x.ple_vocab = y.ple_vocab;
    assert_string_equal(x.family, y.family);
    assert_int_equal(x.hidden, y.hidden);
    assert_int_equal(x.vocab, y.vocab);
    assert_int_equal(x.window, y.window);
    assert_true(x.eps == y.eps && x.attn_scale == y.attn_scale);
    assert_true(x.attn_softcap == y.attn_softcap && x.final_softcap == y.final_softcap);
    assert_int_equal(x.n_stop, y.n_stop);
    assert_memory_equal(&x, &y, sizeof x);
    for (int i = 0; i < x.n_layer; i++)
        assert_memory_equal(&of_a[i], &of_b[i], offsetof(struct layer, in_norm));
}

/* Types of the matrices: one for all, each in turn, and two in turn. */
static const int kinds[] = {GGUF_BF16, GGUF_F32, GGUF_Q8_0, GGUF_Q4_0, GGUF_NVFP4, -1, -2};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static void test_a_file_equals_its_folder(void **state)
{
    const struct family_case *c = *state;
    for (int k = 0; k < N_KINDS; k++) {
        struct ck ck = write_case(c, kinds[k]);
        struct model a = load_how(path, k % 2 ? READ_MAP : READ_COPY),
                     b = load_how(folder, READ_COPY);
        assert_null(a.note);
        assert_null(b.about);
        assert_non_null(strstr(a.about, "GGUF of "));
        assert_same_config(&a.cfg, a.layer, &b.cfg, b.layer);
        assert_same_weights(&a, &b);
        model_free(&a);
        model_free(&b);
        ck_free(&ck);
    }
}

/* ---- the same numbers ---- */

static void test_logits_and_greedy_ids_are_those_of_the_folder(void **state)
{
    const struct family_case *c = *state;
    struct ck ck = write_case(c, -1);
    assert_same_run(path, folder);
    ck_free(&ck);
}

/* The unquantized file gives the numbers of the reference implementation. */
static void test_a_file_equals_the_reference(void **state)
{
    const struct family_case *c = *state;
    struct ck ck = write_case(c, GGUF_BF16);
    char dir[128];
    snprintf(dir, sizeof dir, G "%s", c->dir);
    struct buf golden = ck_read(dir, "golden.safetensors"), report = {0};
    ck_write(folder, "golden.safetensors", golden.p, golden.n);
    struct golden_opts o = {.engine = {.model = path, .device = "cpu", .threads = test_threads()}};
    struct err e = {0};
    if (!golden_run(&o, &report, &e))
        fail_msg("%s\n%s", e.msg, report.p ? report.p : "");
    buf_free(&report);
    buf_free(&golden);
    ck_free(&ck);
}

/* ---- drafters ---- */

static const struct head_case {
    const char *dir, *target; /* below tests/golden/ */
    struct conversion how;
    const char *without; /* a key whose value the format does not store; NULL: none */
} heads[] = {
    {"eagle3-gptoss-a", "gptoss-a",
     {.arch = "eagle3", .trunk = "model.", .paired = true,
      .captures = (const int[]){2, 3, 3, -1}}, NULL},
    {"eagle3-redhat-b", "olmo3-b",
     {.arch = "eagle3", .trunk = "model.", .paired = true,
      .captures = (const int[]){1, 2, 3, -1}}, NULL},
    {"dflash-b", "qwen3-b",
     {.arch = "dflash", .trunk = "model.", .captures = (const int[]){1, 2, -1}}, NULL},
    {"dflash-swa-b", "gemma3-b",
     {.arch = "dflash", .trunk = "model.", .window = true,
      .captures = (const int[]){1, 2, 3, -1}}, "rope_scaling"},
};

enum { N_HEADS = sizeof heads / sizeof *heads };

/* Tensors below "model.", as those of other models. */
static void name_below_model(struct ck *ck)
{
    for (int i = 0; i < ck->n; i++) {
        char *was = ck->t[i].name;
        const char *in_layer = strncmp(was, "midlayer.", 9) ? NULL : was + 9;
        if (strstr(was, "d2t") || strstr(was, "t2d") || strstr(was, "lm_head"))
            continue;
        ck->t[i].name = in_layer ? xasprintf("model.layers.0.%s", in_layer)
                                 : xasprintf("model.%s", was);
        free(was);
    }
    qsort(ck->t, (size_t)ck->n, sizeof *ck->t, ck_order);
}

/* Writes a head's GGUF, x.gguf, and the folder that it must equal. */
static void write_head(const struct head_case *c, int type)
{
    static const char *const inner[] = {"transformer_layer_config", "dflash_config"};
    char dir[128];
    struct conversion how = c->how;
    snprintf(dir, sizeof dir, G "%s", c->dir);
    struct ck ck = ck_load(dir, ST);
    json_t *own = ck.config;
    name_below_model(&ck);
    for (int i = 0; i < 2 && c->without; i++)
        json_object_del(i ? json_object_get(own, inner[0]) : own, c->without);
    ck.config = json_deep_copy(own);
    for (int i = 0; i < 2; i++)
        if (json_object_get(own, inner[i]))
            json_object_update(ck.config, json_object_get(own, inner[i]));
    how.type = type;
    struct buf b = gguf_of(&ck, &how);
    ck_write(folder, "x.gguf", b.p, b.n);
    buf_free(&b);
    json_decref(ck.config);
    ck.config = own;
    ck_save(&ck, folder, 1);
    ck_free(&ck);
}

static struct draft draft_of(const char *from, const struct model *target)
{
    struct draft d;
    struct err e = {0};
    if (!draft_load(&d, from, target, NULL, NULL, &e))
        fail_msg("%s", e.msg);
    return d;
}

static void assert_same_draft(struct draft *a, struct draft *b)
{
    static struct named x, y;
    x.n = y.n = 0;
    assert_same_config(&a->cfg, a->layer, &b->cfg, b->layer);
    assert_string_equal(a->kind, b->kind);
    assert_int_equal(a->n_capture, b->n_capture);
    assert_memory_equal(a->capture, b->capture, (size_t)a->n_capture * sizeof *a->capture);
    assert_int_equal(a->draft_vocab, b->draft_vocab);
    assert_true(a->norm_before_residual == b->norm_before_residual &&
                a->norm_output == b->norm_output && a->block == b->block && a->mask == b->mask &&
                a->causal[0] == b->causal[0] &&
                (!a->cfg.window || a->causal[1] == b->causal[1]));
    assert_int_equal(!a->d2t, !b->d2t);
    if (a->d2t)
        assert_memory_equal(a->d2t, b->d2t, (size_t)a->draft_vocab * sizeof *a->d2t);
    draft_each(a, keep, &x, NULL);
    draft_each(b, keep, &y, NULL);
    assert_same_tensors(&x, &y);
}

/* A head's file equals its folder, and unquantized gives the numbers of its reference. */
static void test_a_drafter_equals_its_folder(void **state)
{
    const struct head_case *c = *state;
    char target[128], dir[128];
    snprintf(target, sizeof target, G "%s", c->target);
    snprintf(dir, sizeof dir, G "%s", c->dir);
    struct model m = load_how(target, READ_COPY);
    for (int k = N_KINDS - 1; k >= 0; k--) {
        write_head(c, kinds[k]);
        struct draft a = draft_of(path, &m), b = draft_of(folder, &m);
        assert_same_draft(&a, &b);
        draft_free(&a);
        draft_free(&b);
    }
    model_free(&m);
    if (c->without)
        return;
    struct buf golden = ck_read(dir, "golden.safetensors"), report = {0};
    ck_write(folder, "golden.safetensors", golden.p, golden.n);
    struct golden_opts o = {
        .engine = {.model = target, .draft = path, .device = "cpu", .threads = test_threads()}};
    struct err e = {0};
    if (!golden_run(&o, &report, &e))
        fail_msg("%s\n%s", e.msg, report.p ? report.p : "");
    buf_free(&report);
    buf_free(&golden);
}

/* ---- what is refused, and what is said ---- */

static void refused(struct gw *w, const char *says)
{
    struct buf b = gw_bytes(w);
    struct model m;
    struct err e = {0};
    ck_write(folder, "x.gguf", b.p, b.n);
    buf_free(&b);
    if (model_load(&m, path, NULL, &e) || !strstr(e.msg, says) || !strstr(e.msg, "x.gguf"))
        fail_msg("\"%s\", expected \"%s\"", e.msg, says);
}

static void test_what_is_no_model_is_refused(void **state)
{
    (void)state;
    struct gw w = {0};
    gw_u32(&w, "x", 1);
    refused(&w, "key general.architecture is missing");
    gw_string(&w, "general.architecture", "mamba");
    refused(&w, "key general.architecture \"mamba\" is not supported, expected one of llama, ");
    gw_string(&w, "general.architecture", "llama4");
    refused(&w, "its experts are transposed in a GGUF, expected the folder of the model");
    gw_string(&w, "general.architecture", "clip");
    refused(&w, "(mmproj)");
    gw_string(&w, "general.architecture", "llama");
    refused(&w, "key llama.block_count is missing");
    gw_string(&w, "general.architecture", "llama");
    gw_u32(&w, "llama.block_count", 0);
    gw_u32(&w, "llama.embedding_length", 8);
    gw_u32(&w, "llama.attention.head_count", 2);
    refused(&w, "key llama.block_count is 0");
    gw_string(&w, "general.architecture", "qwen3");
    gw_u32(&w, "qwen3.block_count", 1);
    gw_u32(&w, "qwen3.embedding_length", 8);
    gw_u32(&w, "qwen3.attention.head_count", 2);
    gw_u32(&w, "qwen3.context_length", 8);
    gw_f32(&w, "qwen3.attention.layer_norm_rms_epsilon", 1e-6);
    refused(&w, "tensor token_embd.weight is missing");
    const char *const keys[] = {"block_count", "embedding_length", "attention.head_count",
                                "context_length", "feed_forward_length"};
    gw_string(&w, "general.architecture", "mistral3");
    for (int i = 0; i < 5; i++) {
        char key[64];
        snprintf(key, sizeof key, "mistral3.%s", keys[i]);
        gw_u32(&w, key, 2);
    }
    gw_f32(&w, "mistral3.attention.layer_norm_rms_epsilon", 1e-6);
    gw_vector(&w, "rope_freqs.weight", 1);
    gw_matrix(&w, "token_embd.weight", GGUF_F32, 2, 2, 0);
    refused(&w, "tensor rope_freqs.weight is not used by architecture mistral3");
    static const char *const scales[][2] = {
        {"blk.0.attn_q", ".scale"}, {"blk.0.ffn_down_exps", ".scale"},
        {"blk.0.ffn_up", ".input_scale"}, {"output", ".scale"}, {"output", ".input_scale"},
        {"token_embd", ".scale"}};
    for (int i = 0; i < COUNT(scales); i++) {
        const char *of = scales[i][0], *end = scales[i][1];
        char name[64], what[160];
        snprintf(name, sizeof name, "%s%s", of, end);
        gw_string(&w, "general.architecture", "mistral3");
        gw_u32(&w, "mistral3.block_count", 1);
        gw_vector(&w, name, 1);
        snprintf(what, sizeof what, "tensor %s is a scale of %s.weight, which is missing", name,
                 of);
        refused(&w, what);
    }
}

/* Scales of matrices in NVFP4 that no converter writes. */
static void test_scales_of_nvfp4_are_checked(void **state)
{
    (void)state;
    enum { WHOLE = 36 };
    static const float ones[2] = {1, 1};
    static const char *const missing = "expected F32 and one of ";
    const struct {
        int of, n_dim, type, n;
        const char *says;
    } bad[] = {
        {GGUF_NVFP4, 2, GGUF_F32, 2, missing},  {GGUF_NVFP4, 3, GGUF_F32, 1, missing},
        {GGUF_NVFP4, 2, GGUF_F16, 1, missing},  {GGUF_NVFP4, 1, GGUF_F32, 1, "dimensions: 1, "},
        {GGUF_MXFP4, 2, GGUF_F32, 1, "type MXFP4"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        const int64_t dim[3][3] = {{64}, {2, 64}, {2, 1, 64}}, n = bad[i].n;
        const char blocks[2 * WHOLE] = {0};
        const size_t one = bad[i].of == GGUF_NVFP4 ? WHOLE : 34;
        struct gw w = {0};
        gw_string(&w, "general.architecture", "mistral3");
        gw_u32(&w, "mistral3.block_count", 1);
        gw_tensor(&w, "blk.0.ffn_up.weight", bad[i].of, bad[i].n_dim, dim[bad[i].n_dim - 1], blocks,
                  bad[i].n_dim == 1 ? one : 2 * one);
        gw_tensor(&w, "blk.0.ffn_up.scale", bad[i].type, 1, &n, ones,
                  (size_t)n * (bad[i].type == GGUF_F32 ? 4 : 2));
        refused(&w, bad[i].says);
    }
    static const float numbers[] = {NAN, INFINITY, -0x1p112f, 0, -0x1.fffffep111f};
    for (int i = 0; i < COUNT(numbers); i++) {
        struct ck ck = write_case(&cases[2], GGUF_NVFP4); /* gemma3-a: rows of 64 */
        struct err e = {0};
        struct gguf *g = gguf_open(path, &e);
        const struct gguf_tensor *t = gguf_find(g, "blk.1.ffn_up.scale");
        int fd = open(path, O_WRONLY);
        assert_int_equal(pwrite(fd, &numbers[i], 4, (off_t)t->at), 4);
        close(fd);
        gguf_close(g);
        struct model m;
        if (i < 3) {
            assert_false(model_load(&m, path, NULL, &e));
            assert_non_null(strstr(e.msg, "blk.1.ffn_up.scale has "));
            assert_non_null(strstr(e.msg, " at 0, expected less than 2^112"));
        } else {
            m = load_how(path, READ_COPY);
            assert_int_equal(m.layer[1].up.type, DT_E2M1);
            assert_int_equal(m.layer[1].wq.type, DT_E2M1);
            float v[32];
            packed_floats(DT_E2M1, m.layer[1].up.data, 32, v);
            for (int k = 0; k < 32; k++)
                assert_true(isfinite(v[k]) && (numbers[i] != 0 || v[k] == 0));
            model_free(&m);
        }
        ck_free(&ck);
    }
}

/* A key of the file, changed, and what is said then. */
static const struct change {
    const char *key;
    int type;
    int64_t v;
    const char *says;
} changes[] = {
    {"llama.block_count", GW_U32, 2000, "key llama.block_count is 2000, expected 0 to 1024"},
    {"llama.block_count", GW_U32, 4, "layers.3"},
    {"llama.block_count", GW_BOOL, 1, "does not belong"},
    {"llama.embedding_length", GW_U32, 32, "expected [131 (vocab_size), 32 (hidden_size)]"},
    {"llama.attention.head_count", GW_U32, 5,
     "expected a multiple of 2 x 5 (llama.attention.head_count)"},
    {"llama.attention.head_count_kv", GW_U32, 3, "expected a multiple of 2 x 3"},
    {"llama.attention.key_length", GW_U32, 6, "value_length is not attention.key_length 6"},
    {"llama.rope.dimension_count", GW_U32, 4, "rope.dimension_count is not 8"},
    {"llama.rope.dimension_count_swa", GW_U32, 4, "rope.dimension_count_swa is not 8"},
    {"llama.expert_count", GW_U32, 8, "key llama.expert_count is not 0"},
    {"llama.attention.layer_norm_rms_epsilon", GW_U32, 1, "is of type u32, expected a number"},
    {"llama.rope.scaling.type", GW_U32, 1, "llama.rope.scaling.type is of type u32"},
    {"llama.context_length", GW_F32, 1, "llama.context_length is of type f32"},
    {"llama.nextn_predict_layers", GW_U32, 9, "block_count is 3, no more than nextn_predict_"},
};

static void test_keys_are_checked(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const struct change *c = &changes[i];
        struct conversion how = cases[0].how;
        how.type = GGUF_BF16;
        struct ck ck = load_case(&cases[0]);
        struct buf b = gguf_of(&ck, &how), changed = {0};
        /* the key's entry is renamed, and another one is put in front */
        char *at = memmem(b.p, b.n, c->key, strlen(c->key));
        if (at)
            at[0] = 'X';
        struct gw w = {0};
        gw_int(&w, c->key, c->type, c->v);
        uint64_t n = ck_u64(b.p + 16) + 1;
        buf_add(&changed, b.p, 16);
        gw_little(&changed, n, 8);
        buf_add(&changed, w.keys.p, w.keys.n);
        struct gguf *g;
        struct err e = {0};
        ck_write(folder, "x.gguf", b.p, b.n);
        g = gguf_open(path, &e);
        assert_non_null(g);
        size_t data = (size_t)g->tensor[0].at, head = data;
        gguf_close(g);
        while (head > 24 && !b.p[head - 1] && data - head < 31)
            head--;
        /* the header's end is where tensors' last offset ends: at a multiple of one byte; keep
         * zeros */
        buf_add(&changed, b.p + 24, head - 24);
        for (size_t pad = 0; pad < 8; pad++) { /* a last offset may end in zeros */
            struct buf whole = {0};
            buf_add(&whole, changed.p, changed.n);
            for (size_t k = 0; k < pad; k++)
                buf_char(&whole, 0);
            gw_pad(&whole, 32);
            buf_add(&whole, b.p + data, b.n - data);
            ck_write(folder, "x.gguf", whole.p, whole.n);
            buf_free(&whole);
            if ((g = gguf_open(path, NULL)))
                break;
        }
        assert_non_null(g);
        gguf_close(g);
        struct model m;
        e = (struct err){0};
        if (model_load(&m, path, NULL, &e) || !strstr(e.msg, c->says))
            fail_msg("%s: \"%s\", expected \"%s\"", c->key, e.msg, c->says);
        buf_free(&w.keys);
        buf_free(&changed);
        buf_free(&b);
        ck_free(&ck);
    }
}

/* Adds `key` to the GGUF file of `dir` and expects the rope's kind and factor, or the refusal
 * `says`. A scaling factor without a type means linear scaling, as in llama.cpp. */
static const struct scaled_rope {
    const char *dir, *key;
    int type;
    double v;
    const char *text, *says;
    enum rope_kind kind;
    double factor;
} scaled_ropes[] = {
    {"qwen3-b", "qwen3.rope.scaling.factor", GW_F32, 2, NULL, NULL, ROPE_LINEAR, 2},
    {"qwen3-b", "qwen3.rope.scale_linear", GW_F32, 4, NULL, NULL, ROPE_LINEAR, 4},
    {"qwen3-b", "qwen3.rope.scaling.factor", GW_F32, 0, NULL, NULL, ROPE_DEFAULT, 1},
    {"gemma2-b", "gemma2.rope.scaling.factor", GW_F32, 8, NULL, NULL, ROPE_LINEAR, 8},
    {"qwen3-b", "qwen3.rope.scaling.attn_factor", GW_F32, 1, NULL, NULL, ROPE_DEFAULT, 1},
    {"qwen3-b", "qwen3.rope.scaling.attn_factor", GW_F32, 1.5, NULL,
     "qwen3.rope.scaling.attn_factor is not 1", 0, 0},
    {"qwen3-b", "qwen3.attention.causal", GW_BOOL, 0, NULL,
     "qwen3.attention.causal is false, expected true", 0, 0},
    {"qwen3-b", "qwen3.rope.scaling.type", GW_STRING, 0, "yarn", NULL, ROPE_YARN, 1},
    {"gemma2-b", "gemma2.rope.freq_base_swa", GW_F32, 777, NULL,
     "gemma2.rope.freq_base_swa is not rope.freq_base", 0, 0},
    {"gemma2-b", "gemma2.rope.freq_base_swa", GW_F32, 10000, NULL, NULL, ROPE_DEFAULT, 1},
    {"llama-b", "llama.rope.scaling.factor", GW_F32, 2, NULL, "there beside rope_freqs.weight", 0,
     0},
    {"phi3-long-b", "phi3.rope.scaling.factor", GW_F32, 2, NULL,
     "phi3.rope.scaling.factor asks for a scaled rope", 0, 0},
    {"phi3-long-b", "phi3.rope.scaling.type", GW_STRING, 0, "longrope", NULL, ROPE_LONG, 1},
    {"phi3-long-b", "phi3.rope.scaling.type", GW_STRING, 0, "yarn",
     "phi3.rope.scaling.type asks for a scaled rope", 0, 0},
    {"gemma4-ple-b", "gemma4.rope.scaling.factor", GW_F32, 2, NULL,
     "gemma4.rope.scaling.factor asks for a scaled rope", 0, 0},
    {"gemma4-ple-b", "gemma4.rope.scaling.attn_factor", GW_F32, 2, NULL, "factor is not 1", 0, 0},
    {"mimo-b", "mimo2.rope.scaling.factor", GW_F32, 2, NULL,
     "mimo2.rope.scaling.factor asks for a scaled rope", 0, 0},
    {"step-b", "step35.rope.scaling.factor", GW_F32, 2, NULL,
     "step35.rope.scaling.factor asks for a scaled rope", 0, 0},
};

static void test_factors_of_ropes_are_not_passed_over(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(scaled_ropes); i++) {
        const struct scaled_rope *r = &scaled_ropes[i];
        const struct family_case *c = cases;
        while (strcmp(c->dir, r->dir) != 0)
            c++;
        struct family_case with = *c;
        struct gw w = {0};
        struct err e = {0};
        if (r->text)
            gw_string(&w, r->key, r->text);
        else if (r->type == GW_BOOL)
            gw_bool(&w, r->key, r->v != 0);
        else
            gw_f32(&w, r->key, r->v);
        with.how.more = &w;
        struct ck ck = write_case(&with, GGUF_BF16);
        struct model m = {0};
        const bool loaded = model_load(&m, path, NULL, &e);
        if (loaded == (r->says != NULL) || (r->says && !strstr(e.msg, r->says)))
            fail_msg("row %d: \"%s\", expected \"%s\"", i, e.msg, r->says ? r->says : "");
        if (loaded) {
            assert_int_equal(m.cfg.rope[0].kind, r->kind);
            assert_true(r->factor == 1 || m.cfg.rope[0].factor == r->factor);
            assert_true(r->kind != ROPE_YARN || m.cfg.rope[0].original_max == 512);
            model_free(&m);
        }
        ck_free(&ck);
        buf_free(&w.keys);
    }
}

/* YaRN's logarithm has a factor of its own for scores; without a key, the other one is 1. */
static void test_yarn_of_mistral3_has_two_factors(void **state)
{
    (void)state;
    const struct family_case *c = cases;
    while (strcmp(c->dir, "ministral3-b") != 0)
        c++;
    struct ck ck = load_case(c);
    json_t *rope = json_object_get(ck.config, "rope_parameters");
    json_object_set_new(rope, "mscale_all_dim", json_real(0.25));
    struct conversion how = c->how;
    how.type = GGUF_BF16;
    struct buf b = gguf_of(&ck, &how);
    ck_write(folder, "x.gguf", b.p, b.n);
    struct model m = load_how(path, READ_COPY);
    assert_true(m.cfg.rope[0].mscale == 1 && m.cfg.rope[0].mscale_all_dim == 0.25);
    model_free(&m);
    buf_free(&b);
    ck_free(&ck);
}

static void test_what_a_file_is(void **state)
{
    (void)state;
    struct ck ck = write_case(&cases[0], GGUF_Q8_0);
    struct model m = load_how(path, READ_COPY);
    assert_non_null(strstr(m.about, " BF16"));
    assert_non_null(strstr(m.about, " F32"));
    model_free(&m);
    struct gw w = {0};
    gw_u32(&w, "general.file_type", 15);
    gw_tensor(&w, "a", GGUF_F32, 1, (const int64_t[]){1}, "abcd", 4);
    gw_tensor(&w, "b", GGUF_F16, 1, (const int64_t[]){1}, "ab", 2);
    gw_tensor(&w, "c", GGUF_F16, 1, (const int64_t[]){1}, "ab", 2);
    struct buf b = gw_bytes(&w), about = {0};
    ck_write(folder, "x.gguf", b.p, b.n);
    buf_free(&b);
    struct gguf *g = gguf_open(path, NULL);
    gguf_about(g, &about);
    assert_string_equal(about.p, "GGUF of 2 F16 + 1 F32, labelled Q4_K_M");
    gguf_close(g);
    /* the scales of a matrix in NVFP4 belong to it; those of other types are tensors */
    const char block[36] = {0};
    gw_tensor(&w, "a.weight", GGUF_NVFP4, 2, (const int64_t[]){1, 64}, block, sizeof block);
    gw_tensor(&w, "b.weight", GGUF_F16, 1, (const int64_t[]){1}, "ab", 2);
    const char *const scales[] = {"a.scale", "a.input_scale", "b.scale", "c.scale"};
    for (int i = 0; i < COUNT(scales); i++)
        gw_tensor(&w, scales[i], GGUF_F32, 1, (const int64_t[]){1}, "abcd", 4);
    b = gw_bytes(&w);
    ck_write(folder, "x.gguf", b.p, b.n);
    buf_free(&b);
    buf_clear(&about);
    g = gguf_open(path, NULL);
    gguf_about(g, &about);
    assert_string_equal(about.p, "GGUF of 2 F32 + 1 F16 + 1 NVFP4");
    buf_free(&about);
    gguf_close(g);
    ck_free(&ck);
}

static void test_a_scale_that_is_not_finite_is_refused(void **state)
{
    (void)state;
    struct ck ck = write_case(&cases[2], GGUF_Q8_0); /* gemma3-a: rows of 64 */
    struct err e = {0};
    struct gguf *g = gguf_open(path, &e);
    const struct gguf_tensor *t = gguf_find(g, "blk.1.ffn_up.weight");
    assert_int_equal(t->type, DT_Q8_0);
    int fd = open(path, O_WRONLY);
    const uint8_t nan[2] = {1, 0x7e};
    assert_int_equal(pwrite(fd, nan, 2, (off_t)t->at + 34 * 3), 2);
    close(fd);
    gguf_close(g);
    struct model m;
    assert_false(model_load(&m, path, NULL, &e));
    assert_non_null(
        strstr(e.msg, "blk.1.ffn_up.weight has a block with a scale that is not finite"));
    ck_free(&ck);
}

/* The seeds of fuzzing are whole models; one of them cut at any byte of its header is refused. */
static void test_small_models_load_or_are_refused(void **state)
{
    (void)state;
    const char *const archs[] = {"llama", "gpt-oss"};
    for (int k = 0; k < 2; k++) {
        struct buf b = gw_small(archs[k]);
        ck_write(folder, "x.gguf", b.p, b.n);
        struct model m = load_how(path, READ_COPY);
        assert_int_equal(m.cfg.n_stop, 1);
        model_free(&m);
        for (size_t n = 0; n < b.n; n += n < 600 ? 1 : 37) {
            struct err e = {0};
            ck_write(folder, "x.gguf", b.p, n);
            assert_false(model_load(&m, path, NULL, &e));
            assert_true(e.kind == ERR_MODEL && !strchr(e.msg, '\n'));
        }
        buf_free(&b);
    }
}

/* A folder with one GGUF file is that file; of several, parts and mmproj files aside, one must be
 * named. */
static void test_a_folder_of_files(void **state)
{
    (void)state;
    char *dir = scratch_folder(), *one = xasprintf("%s/a-00001-of-00002.gguf", dir);
    const char *const names[] = {"a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj-a.gguf"};
    for (int i = 0; i < 3; i++)
        ck_write_text(dir, names[i], "GGUF");
    struct err e = {0};
    char *found = hub_find(dir, &e);
    assert_string_equal(found, one);
    free(found);
    ck_write_text(dir, "b.gguf", "GGUF");
    assert_null(hub_find(dir, &e));
    assert_non_null(strstr(e.msg, "has 2 GGUF files, expected the path of one of them: "
                                  "a-00001-of-00002.gguf, b.gguf"));
    ck_write_text(dir, "config.json", "{}");
    ck_write_text(dir, ST, "");
    found = hub_find(dir, &e);
    assert_string_equal(found, dir);
    free(found);
    scratch_remove(dir);
    free(one);
}

/* ---- the tokenizer in the log ---- */

/* A tokenizer of so many tokens, at most 1024, with two merges. */
static void put_tokenizer(struct gw *w, int vocab, const char *const *merge)
{
    const char *token[1024] = {"a", "b", "c", "ab", "bc", "<s>"};
    int64_t kind[1024] = {1, 1, 1, 1, 1, 3};
    static char pad[1024][16];
    for (int i = 6; i < vocab; i++) {
        snprintf(pad[i], sizeof pad[i], "[%d]", i);
        token[i] = pad[i], kind[i] = 1;
    }
    gw_string(w, "tokenizer.ggml.model", "gpt2");
    gw_string(w, "tokenizer.ggml.pre", "gpt-2");
    gw_strings(w, "tokenizer.ggml.tokens", token, (size_t)vocab);
    gw_ints(w, "tokenizer.ggml.token_type", GW_I32, kind, (size_t)vocab);
    gw_strings(w, "tokenizer.ggml.merges", merge, 2);
}

static const char *const merges[2][2] = {{"a b", "b c"}, {"b c", "a b"}};

/* What an engine with a file of this type says of its tokenizer, which has these merges. */
static void digest_of(int type, const char *const *merge, char out[65])
{
    struct gw w = {0};
    put_tokenizer(&w, 131, merge);
    struct family_case c = cases[0];
    c.how.more = &w;
    struct ck ck = write_case(&c, type);
    struct err e = {0};
    struct engine_opts o = {.model = path, .device = "cpu", .threads = 1, .raw = true};
    settings_init(&o.settings);
    struct backend *g = engine_open(&o, &e);
    if (!g) {
        fail_msg("%s", e.msg);
        return;
    }
    memcpy(out, backend_info(g)->tokenizer_sha, 65);
    backend_close(g);
    ck_free(&ck);
    buf_free(&w.keys);
}

/* Another quantization of a model has the same tokenizer, another order of merges is another one:
 * what a log of one file says is compared with the other (repl/compare/facts.c). */
static void test_sessions_on_a_file_name_its_tokenizer(void **state)
{
    char first[65], again[65], other[65], log[128], now[128];
    struct facts_diff d;
    (void)state;
    digest_of(GGUF_BF16, merges[0], first);
    digest_of(GGUF_Q8_0, merges[0], again);
    digest_of(GGUF_BF16, merges[1], other);
    assert_int_equal(strlen(first), 64);
    assert_string_equal(first, again);
    snprintf(log, sizeof log, "tokenizer_sha=%s\n", first);
    snprintf(now, sizeof now, "tokenizer_sha=%s\n", other);
    facts_compare(log, now, &d);
    assert_int_equal(d.n, 1);
    assert_string_equal(d.at[0].model, "tokenizer");
    facts_diff_free(&d);
}

/* Writes the file of every case, with weights in F32 and a tokenizer, for
 * tests/peers/gguf_families.py. Only files of ollama hold parts of an image model there: llama.cpp
 * refuses those parts. */
static int write_files(const char *to)
{
    setup(NULL);
    for (int i = 0; i < N_CASES; i++) {
        struct family_case c = cases[i];
        char name[64];
        struct gw w = {0};
        struct ck whole = load_case(&c);
        put_tokenizer(&w, (int)gc_int(&whole, "vocab_size"), merges[0]);
        c.how.more = &w;
        c.how.images = c.how.images && c.how.ollama;
        struct ck ck = write_case(&c, GGUF_F32);
        struct buf b = ck_read(folder, "x.gguf");
        int same = 1;
        for (int k = 0; k < i; k++)
            same += !strcmp(cases[k].dir, c.dir);
        snprintf(name, sizeof name, same > 1 ? "%s.%d.gguf" : "%s.gguf", c.dir, same);
        ck_write(to, name, b.p, b.n);
        buf_free(&b);
        buf_free(&w.keys);
        ck_free(&ck);
        ck_free(&whole);
    }
    teardown(NULL);
    return 0;
}

int main(int argc, char **argv)
{
    enum { EACH = 3 };
    if (argc == 3 && !strcmp(argv[1], "--write"))
        return write_files(argv[2]);
    struct CMUnitTest tests[EACH * N_CASES + N_HEADS + 11];
    static char names[EACH * N_CASES + N_HEADS][64];
    int n = 0;
    for (int i = 0; i < N_CASES; i++) {
        const struct family_case *c = &cases[i];
        const CMUnitTestFunction fn[EACH] = {test_a_file_equals_its_folder,
                                             test_logits_and_greedy_ids_are_those_of_the_folder,
                                             test_a_file_equals_the_reference};
        const char *const what[EACH] = {"weights", "numbers", "reference"};
        for (int k = 0; k < EACH; k++) {
            if (k == 2 && !c->golden)
                continue;
            snprintf(names[n], sizeof names[n], "%s_%s_%d", what[k], c->dir, i);
            tests[n] = (struct CMUnitTest){names[n], fn[k], NULL, NULL, (void *)(uintptr_t)c};
            n++;
        }
    }
    for (int i = 0; i < N_HEADS; i++, n++) {
        snprintf(names[n], sizeof names[n], "drafter_%s", heads[i].dir);
        tests[n] = (struct CMUnitTest){names[n], test_a_drafter_equals_its_folder, NULL, NULL,
                                       (void *)(uintptr_t)&heads[i]};
    }
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_what_is_no_model_is_refused),
        cmocka_unit_test(test_scales_of_nvfp4_are_checked),
        cmocka_unit_test(test_keys_are_checked),
        cmocka_unit_test(test_factors_of_ropes_are_not_passed_over),
        cmocka_unit_test(test_yarn_of_mistral3_has_two_factors),
        cmocka_unit_test(test_what_a_file_is),
        cmocka_unit_test(test_a_folder_of_files),
        cmocka_unit_test(test_sessions_on_a_file_name_its_tokenizer),
        cmocka_unit_test(test_small_models_load_or_are_refused),
        cmocka_unit_test(test_a_scale_that_is_not_finite_is_refused),
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        tests[n++] = others[i];
    return _cmocka_run_group_tests("gguf_models", tests, (size_t)n, setup, teardown);
}
