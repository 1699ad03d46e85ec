/* test_odd.c - odd but legal checkpoints: config.json asks for what a family does not have, or asks
 * for it in an unusual way.
 *
 * A case is a golden folder with changed config keys. Either the folder is refused and the message
 * names the key, or the model that is loaded equals that of another config of the same weights, its
 * plain twin: every switch, every layer and every rope frequency. tests/golden/odd.py compares such
 * folders with transformers, which says what is right; the cases here need neither Python nor
 * transformers.
 */
#include "tests/few.h"
#include "tests/model_kit.h"

#include "engine/tools/golden.h"

/* ---- folders ---- */

static const char *const folders[] = {
    "llama-b", "qwen3-b", "mistral-b", "gemma2-b", "gemma3-b", "gemma3-a", "gemma3-mm-b",
    "gemma4-moe-b", "gemma4-ple-b", "gemma4-a", "olmo3-b", "gptoss-plain-b", "gptoss-mxfp4-b",
    "olmo2-b", "smollm3-b", "exaone4-b", "ministral3-b", "gemma4-unified-b", "phi3-b",
    "qwen3moe-b", "qwen3moe-c", "mellum-b", "granite-b", "granitemoe-b", "cohere2-b", "afmoe-b",
    "laguna-b", "muse-b", "mimo-b", "qwen2-b",
};

/* A golden folder whose config.json is written anew for every case. */
struct base {
    const char *name;
    char *dir;
    char *config;       /* as it was */
    const char *prefix; /* of the keys of the text model: "text_config." or "" */
};

static struct base base_open(const char *name)
{
    char *from = xasprintf("tests/golden/%s", name), *abs = realpath(from, NULL);
    struct base b = {.name = name, .dir = scratch_folder()};
    struct buf text = ck_read(from, "config.json");
    DIR *d = opendir(from);
    CHECK(d && abs);
    for (struct dirent *e; (e = readdir(d));) {
        char *old = xasprintf("%s/%s", abs, e->d_name), *new = xasprintf("%s/%s", b.dir, e->d_name);
        if (strstr(e->d_name, ".safetensors"))
            CHECK(symlink(old, new) == 0);
        free(old);
        free(new);
    }
    closedir(d);
    b.config = xasprintf("%.*s", (int)text.n, text.p);
    b.prefix = strstr(b.config, "\"text_config\"") ? "text_config." : "";
    buf_free(&text);
    free(from);
    free(abs);
    return b;
}

static void base_close(struct base *b)
{
    scratch_remove(b->dir);
    free(b->config);
}

/* One change of a config: KEY of the text model, or "^KEY" of the whole file; a.b.c goes into
 * objects. value NULL: the key is removed. */
struct change {
    const char *key, *value;
};

enum { MOST = 6 };

static void write_config(const struct base *b, const struct change *c)
{
    struct ck k = {.config = json_loads(b->config, 0, NULL)};
    CHECK(k.config);
    for (int i = 0; i < MOST && c && c[i].key; i++) {
        bool outer = c[i].key[0] == '^';
        char *path = xasprintf("%s%s", outer ? "" : b->prefix, c[i].key + outer);
        ck_set_text(&k, path, c[i].value);
        free(path);
    }
    ck_save_config(&k, b->dir);
    ck_free(&k);
}

/* ---- what a config means ---- */

static void print_rope(struct buf *out, const struct rope *r)
{
    buf_printf(out, " rope of %d x %.9g temper %.9g:", r->rot, (double)r->cs_factor,
               r->temper * r->original_max);
    for (int i = 0; i < r->half; i++)
        buf_printf(out, " %.9g", (double)r->inv_freq[i]);
}

static void print_layer(struct buf *out, const struct layer *l, const struct config *g)
{
    buf_printf(out, "\nlayer W %d heads %d/%d x %d ffn %d kv_src %d%s%s", l->window, l->n_head,
               l->n_kv, l->head_dim, l->ffn, l->kv_src, l->v_from_k ? " v=k" : "",
               l->is_moe ? " moe" : "");
    buf_printf(out, " plain %d temper %.9g / %.9g + %d limits %.9g %.9g", l->qk_plain,
               (double)l->temper, (double)l->temper_period, l->temper_from, (double)l->expert_limit,
               (double)l->dense_limit);
    if (l->rope_id >= 0)
        print_rope(out, &g->rope[l->rope_id]);
}

/* Everything of a model that decides its numbers, as text. */
static char *meaning(const struct model *m)
{
    struct buf out = {0};
    const struct config *g = &m->cfg;
    buf_printf(&out, "%s %d x %d, vocab %d, %d positions, norm %d at %d eps %.9g, qk %d%d v %d",
               g->family, g->n_layer, g->hidden, g->vocab, g->max_pos, g->norm, g->place,
               (double)g->eps, g->qk_norm, g->qk_norm_whole, g->v_norm);
    buf_printf(&out, ", bias %d%d sinks %d, scale %.9g caps %.9g %.9g embed %.9g act %d limit %.9g",
               g->qkv_bias, g->o_bias, g->sinks, (double)g->attn_scale, (double)g->attn_softcap,
               (double)g->final_softcap, (double)g->embed_scale, g->act, (double)g->swiglu_limit);
    buf_printf(&out, ", residual %.9g logits %.9g", (double)g->residual_scale,
               (double)g->logit_scale);
    buf_printf(&out, ", tied %d head %s, experts %d of %d x %d kind %d%d%d, ple %d of %d", g->tied,
               m->head.name, g->top_k, g->n_expert, g->expert_ffn, g->moe, g->store,
               (int)g->router, g->ple, g->ple_vocab);
    buf_printf(&out, ", gate %d%d embed norm %d final %d post %.9g values %.9g x %d chunks %d",
               g->gate, g->gate_by_head, g->embed_norm, g->final_norm, (double)g->post_eps,
               (double)g->value_scale, g->v_head_dim, g->chunked);
    buf_printf(&out, ", router cap %.9g scale %.9g input %d adjacent %d", (double)g->router_cap,
               (double)g->route_scale, g->weigh_input, g->rope_adjacent);
    for (int i = 0; i < g->n_layer; i++)
        print_layer(&out, &m->layer[i], g);
    return out.p;
}

/* The meaning of the base with these changes, or NULL and *e. */
static char *meaning_of(const struct base *b, const struct change *c, struct err *e)
{
    struct model m;
    write_config(b, c);
    if (!model_load(&m, b->dir, NULL, e))
        return NULL;
    char *text = meaning(&m);
    model_free(&m);
    return text;
}

static void print_changes(struct buf *out, const struct change *c)
{
    for (int i = 0; i < MOST && c && c[i].key; i++)
        buf_printf(out, " %s=%s", c[i].key, c[i].value ? c[i].value : "(absent)");
}

static void wrong(const struct base *b, const struct change *c, const char *what, const char *more)
{
    struct buf out = {0};
    buf_str(&out, b->name);
    print_changes(&out, c);
    print_error("%s: %s\n%s\n", out.p, what, more);
    buf_free(&out);
    fail();
}

static void must_equal(const struct base *b, const struct change *c, const struct change *twin)
{
    struct err e = {0};
    char *expected = meaning_of(b, twin, &e);
    if (!expected)
        wrong(b, twin, "the twin is refused", e.msg);
    char *got = meaning_of(b, c, &e);
    if (!got)
        wrong(b, c, "is refused", e.msg);
    if (strcmp(got, expected) != 0) {
        char *both = xasprintf("%s\nexpected\n%s", got, expected);
        wrong(b, c, "is another model than its twin", both);
    }
    free(expected);
    free(got);
}

/* Refused with a message about config.json that has the word. */
static void must_refuse(const struct base *b, const struct change *c, const char *word)
{
    struct err e = {0};
    char *got = meaning_of(b, c, &e);
    if (got)
        wrong(b, c, "is accepted", got);
    if (e.kind != ERR_MODEL || !strstr(e.msg, "config.json: ") || !strstr(e.msg, word))
        wrong(b, c, "is refused with another message", e.msg);
}

/* ---- keys that a family does not use ---- */

/* The folders of a family begin with its name. `uses`: the families that use the key, as
 * " llama qwen3 ". odd: refused elsewhere; neutral: changes nothing elsewhere. */
static const struct key {
    const char *key, *odd, *neutral, *uses;
} keys[] = {
    {"attn_logit_softcapping", "2.0", "null", " gemma2 "},
    {"final_logit_softcapping", "3.0", "null", " gemma2 gemma3 gemma4 muse "},
    {"query_pre_attn_scalar", "5", "null", " gemma2 gemma3 "},
    {"attention_bias", "true", "false", " llama qwen3 gemma2 gemma3 gemma4 olmo3 gptoss olmo2 "
                                        "smollm3 qwen3moe mellum granite granitemoe cohere2 afmoe "
                                        "laguna muse mimo "},
    {"mlp_bias", "true", "false", " "},
    {"hidden_act", "\"relu\"", "null", " llama qwen2 qwen3 mistral olmo3 olmo2 smollm3 exaone4 "
                                     "ministral3 phi3 qwen3moe mellum granite granitemoe cohere2 "
                                     "afmoe laguna mimo "},
    {"hidden_activation", "\"relu\"", "null", " gemma2 gemma3 gemma4 muse "},
    {"is_causal", "false", "true", " "},
    {"use_bidirectional_attention", "true", "false", " gemma4 "},
    {"attention_chunk_size", "4", "null", " "},
    {"kv_sharing_modes", "[\"reuse\", \"reuse\", \"reuse\"]", "null", " "},
    {"fusion_config", "{\"mlp\": true}", "null", " "},
    {"sliding_window", "3", "null", " qwen2 qwen3 mistral gemma2 gemma3 gemma4 olmo3 gptoss "
                                    "smollm3 exaone4 "
                                   "ministral3 phi3 qwen3moe mellum granite granitemoe cohere2 "
                                   "afmoe laguna muse mimo "},
    {"layer_types", "[\"sliding_attention\"]", "null",
     " qwen2 qwen3 gemma2 gemma3 gemma4 olmo3 gptoss "
                                                     "smollm3 exaone4 mellum granite granitemoe "
                                                     "cohere2 afmoe laguna muse mimo "},
    {"max_window_layers", NULL, "1", " qwen2 qwen3 smollm3 qwen3moe "},
    {"rope_local_base_freq", NULL, "null", " gemma3 "},
    {"partial_rotary_factor", "0.5", "1.0", " gemma4 phi3 laguna mimo "},
    {"rotary_pct", "0.25", "1.0", " "},
    {"rope_interleaved", "true", "false", " "},
    {"no_rope_layers", "[0, 1, 0]", "[1, 1, 1]", " smollm3 "},
    {"alibi", "true", "false", " "},
    {"llama_4_scaling_beta", "0.1", "null", " "},
    {"embedding_multiplier", "12", "1", " granite granitemoe "},
    {"residual_multiplier", "0.22", "1.0", " granite granitemoe "},
    {"layer_rope_theta", "[0, 1e4]", "null", " granite granitemoe muse "},
    {"logits_scaling", "8", "1", " granite granitemoe "},
    {"logit_scale", "0.0625", "1.0", " cohere2 "},
    {"clip_qkv", "8.0", "null", " "},
    {"num_local_experts", "3", "null", " gptoss qwen3moe mellum granitemoe "},
    {"num_experts", "3", "null", " gptoss gemma4 qwen3moe mellum afmoe laguna "},
    {"num_experts_per_tok", "1", "null", " gptoss qwen3moe mellum granitemoe afmoe laguna mimo "},
    {"experts_per_token", "1", "null", " "},
    {"top_k_experts", "1", "null", " gemma4 "},
    {"moe_intermediate_size", "36", "null", " gemma4 qwen3moe mellum afmoe laguna mimo "},
    {"norm_topk_prob", NULL, "null", " qwen3moe mellum mimo "},
    {"decoder_sparse_step", "2", "1", " qwen3moe "},
    {"mlp_only_layers", "[1]", "[]", " qwen3moe "},
    {"mlp_layer_types", "[\"dense\"]", "[]", " mellum laguna mimo "},
    {"shared_intermediate_size", "8", "0", " granitemoe "},
    {"enable_moe_block", "true", "false", " gemma4 "},
    {"swiglu_limit", "1.0", "null", " gptoss "},
    {"attention_k_eq_v", "true", "false", " gemma4 "},
    {"global_head_dim", "4", "null", " gemma4 mistral phi3 qwen3moe "}, /* of full layers, if any */
    {"hidden_size_per_layer_input", "4", "0", " gemma4 "},
    {"num_kv_shared_layers", "1", "0", " gemma4 "},
    {"use_double_wide_mlp", "true", "false", " gemma4 "},
    {"per_layer_config", "{\"1\": {\"head_dim\": 4}}", "{}", " gemma4 "},
    {"text_config", "{\"num_hidden_layers\": 1}", "null", " "},
    {"transformers_weights", "\"other.safetensors\"", "null", " "},
    {"compression_config", "{\"quant_method\": \"x\"}", "null", " "},
    {"an_unknown_key", NULL, "5", " "},
};

static bool uses(const struct base *b, const char *families)
{
    char *family = xasprintf(" %.*s ", (int)strcspn(b->name, "-"), b->name);
    bool found = strstr(families, family);
    free(family);
    return found;
}

static void test_keys_that_a_family_does_not_use_are_refused_or_neutral(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(folders); i++) {
        struct base b = base_open(folders[i]);
        for (int k = 0; k < COUNT(keys); k++) {
            const struct change odd[MOST] = {{keys[k].key, keys[k].odd}};
            const struct change neutral[MOST] = {{keys[k].key, keys[k].neutral}};
            if (uses(&b, keys[k].uses))
                continue;
            if (keys[k].odd)
                must_refuse(&b, odd, keys[k].key);
            must_equal(&b, neutral, NULL);
        }
        base_close(&b);
    }
}

/* Pairs of such keys by chance: refused iff one of them is odd, by the name of an odd one. */
static void one_pair(const struct base *b, uint64_t seed)
{
    uint64_t x = mix64(seed);
    const struct key *p = &keys[x % COUNT(keys)], *q = &keys[(x >> 16) % COUNT(keys)];
    bool p_odd = p->odd && (x >> 32) & 1, q_odd = q->odd && (x >> 33) & 1;
    const struct change c[MOST] = {{p->key, p_odd ? p->odd : p->neutral},
                                   {q->key, q_odd ? q->odd : q->neutral}};
    if (p == q || uses(b, p->uses) || uses(b, q->uses))
        return;
    if (!p_odd && !q_odd) {
        must_equal(b, c, NULL);
        return;
    }
    struct err e = {0};
    char *got = meaning_of(b, c, &e);
    if (got)
        wrong(b, c, "is accepted", got);
    if (!(p_odd && strstr(e.msg, p->key)) && !(q_odd && strstr(e.msg, q->key)))
        wrong(b, c, "is refused with another message", e.msg);
}

static void test_pairs_of_such_keys_are_refused_or_neutral(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(folders); i++) {
        struct base b = base_open(folders[i]);
        for (int k = 0, n = rounds(40, 4000); k < n; k++)
            one_pair(&b, (uint64_t)(i * 1000000 + k));
        base_close(&b);
    }
}

/* ---- keys beside text_config ---- */

static void test_keys_beside_text_config_are_refused_if_they_differ(void **state)
{
    (void)state;
    static const struct change odd[] = {
        {"^sliding_window", "3"}, {"^hidden_size", "24"}, {"^head_dim", "4"},
        {"^is_causal", "false"}, {"^rms_norm_eps", "0.1"}, {"^num_hidden_layers", "1"},
        {"^hidden_act", "\"relu\""}, {"^layer_types", "[\"full_attention\"]"},
        {"^rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 2.0}"},
        {"^per_layer_config", "{\"0\": {\"head_dim\": 4}}"},
        {"^quantization_config", "{\"quant_method\": \"gptq\"}"},
    };
    struct base b = base_open("gemma3-mm-b");
    for (int i = 0; i < COUNT(odd); i++)
        must_refuse(&b, (const struct change[MOST]){odd[i]}, odd[i].key + 1);
    must_equal(&b, (const struct change[MOST]){{"^hidden_size", "48"}, {"^head_dim", "24"},
               {"^is_causal", "true"}, {"^sliding_window", "13"}}, NULL);
    must_refuse(&b, (const struct change[MOST]){{"^text_config", NULL}}, "text_config");
    base_close(&b);
}

/* ---- spellings ---- */

#define LIN "\"rope_type\": \"linear\", \"factor\": 4.0"
#define YRN "\"rope_type\": \"yarn\", \"factor\": 8.0, \"original_max_position_embeddings\": 64"
#define OBJ(s) "{" s "}"
#define TYPES(f, s) "{\"full_attention\": {" f "}, \"sliding_attention\": {" s "}}"
#define THETA(t) "\"rope_theta\": " t

/* A config and its twin; refused: the config is refused, and the message has this word. */
static const struct spelling {
    const char *folder;
    struct change config[MOST], twin[MOST];
    const char *refused;
} spellings[] = {
    /* one rope for all layers */
    {"llama-b", {{"rope_parameters", OBJ(LIN ", " THETA("5e3"))}},
     {{"rope_parameters", NULL}, {"rope_theta", "5e3"}, {"rope_scaling", OBJ(LIN)}}, NULL},
    {"llama-b", {{"rope_parameters", OBJ("\"type\": \"linear\", \"factor\": 4.0")}},
     {{"rope_parameters", OBJ(LIN)}}, NULL},
    {"llama-b", {{"rope_parameters", OBJ(LIN)}, {"rope_scaling", OBJ(LIN)}},
     {{"rope_parameters", OBJ(LIN)}}, NULL},
    {"llama-b", {{"rope_parameters", OBJ(LIN)}, {"rope_scaling", "{}"}},
     {{"rope_parameters", OBJ(LIN)}}, NULL},
    {"llama-b", {{"rope_parameters", OBJ(LIN)}, {"rope_scaling", OBJ(YRN)}}, {{0}}, "rope_scaling"},
    {"llama-b", {{"rope_parameters", OBJ(LIN ", \"type\": \"default\"")}}, {{0}}, "type"},
    {"llama-b", {{"rope_parameters", OBJ(LIN ", \"partial_rotary_factor\": 0.5")}}, {{0}},
     "partial_rotary_factor"},
    {"llama-b", {{"rope_parameters", OBJ(LIN ", \"low_freq_factor\": 1.0")}}, {{0}},
     "low_freq_factor"},
    {"llama-b", {{"rope_parameters", OBJ("\"factor\": 4.0")}}, {{0}}, "factor"},
    {"llama-b", {{"rope_parameters", OBJ("\"factor\": 1.0")}}, {{"rope_parameters", "{}"}}, NULL},
    {"llama-b", {{"rope_parameters", TYPES(LIN, LIN)}}, {{0}}, "full_attention"},
    {"llama-b", {{"rope_parameters", NULL}, {"partial_rotary_factor", "0.5"}}, {{0}},
     "partial_rotary_factor"},
    {"llama-b", {{"rope_parameters", "{\"rope_type\": \"proportional\"}"},
                 {"partial_rotary_factor", "0.5"}},
     {{"rope_parameters", OBJ("\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.5")}},
     NULL},
    {"llama-b", {{"original_max_position_embeddings", "32"}},
     {{"rope_parameters.original_max_position_embeddings", "32"}}, NULL},
    {"gptoss-plain-b", {{"rope_parameters", NULL}, {"rope_scaling", "{}"}},
     {{"rope_parameters", NULL}}, NULL},
    {"gptoss-plain-b", {{"rope_parameters", NULL}, {"original_max_position_embeddings", "64"}},
     {{"rope_parameters.original_max_position_embeddings", "64"}}, NULL},
    /* one for each layer type */
    {"gemma3-b", {{"rope_parameters", OBJ(LIN)}}, {{0}}, "rope_type"},
    {"olmo3-b", {{"rope_parameters", OBJ(THETA("5e3"))}}, {{0}}, "rope_theta"},
    {"gemma4-moe-b", {{"rope_parameters", OBJ(LIN)}}, {{0}}, "rope_type"},
    {"gemma3-b", {{"rope_parameters.factor", "2.0"}}, {{0}}, "factor"},
    {"gemma3-b", {{"rope_parameters", NULL}, {"rope_scaling", TYPES(LIN, LIN)}}, {{0}},
     "full_attention"},
    {"gemma3-b", {{"rope_parameters", "{}"}}, {{"rope_parameters", NULL}}, NULL},
    {"gemma3-b", {{"rope_parameters.full_attention", "null"}},
     {{"rope_parameters.full_attention", NULL}}, NULL},
    {"gemma3-b", {{"rope_parameters", TYPES(LIN ", " THETA("1e6"), THETA("1e4"))}},
     {{"rope_parameters", NULL}, {"rope_scaling", OBJ(LIN)}}, NULL},
    {"gemma3-b", {{"rope_parameters", TYPES(YRN ", \"truncate\": false", THETA("1e4"))}}, {{0}},
     "truncate"},
    {"gemma3-b", {{"rope_scaling", OBJ(LIN)}}, {{0}}, "rope_scaling"},
    {"gemma3-a", {{"rope_scaling", OBJ("\"type\": \"linear\", \"factor\": 4.0")}}, {{0}}, "type"},
    {"olmo3-b", {{"original_max_position_embeddings", "32"}}, {{0}},
     "original_max_position_embeddings"},
    {"olmo3-b", {{"original_max_position_embeddings", "64"}}, {{0}}, NULL},
    {"olmo3-b", {{"rope_parameters", NULL}, {"rope_theta", "1e4"}, {"rope_scaling", OBJ(YRN)}},
     {{0}}, "rope_theta"},
    {"olmo3-b", {{"rope_parameters", NULL}, {"rope_theta", "5e5"}, {"rope_scaling", OBJ(YRN)}},
     {{"rope_parameters", TYPES(YRN ", " THETA("5e5"), THETA("5e5"))}}, NULL},
    {"olmo3-b", {{"rope_parameters", TYPES(YRN, THETA("300.0"))}, {"rope_theta", "1e4"}},
     {{"rope_parameters", TYPES(YRN ", " THETA("1e4"), THETA("300.0"))}}, NULL},
    {"gemma4-moe-b", {{"rope_theta", "300.0"}}, {{0}}, "rope_theta"},
    {"gemma4-moe-b", {{"rope_local_base_freq", "300.0"}}, {{0}}, "rope_local_base_freq"},
    {"gemma4-moe-b", {{"rope_theta", "1e6"}, {"rope_local_base_freq", "1e4"}}, {{0}}, NULL},
    /* windows */
    {"gemma3-a", {{"sliding_window_pattern", NULL}, {"_sliding_window_pattern", "2"}}, {{0}},
     "_sliding_window_pattern"},
    {"gemma3-a", {{"sliding_window_pattern", NULL}, {"_sliding_window_pattern", "6"}}, {{0}}, NULL},
    {"gemma3-b", {{"_sliding_window_pattern", "3"}, {"sliding_window_pattern", "2"}}, {{0}}, NULL},
    {"llama-b", {{"layer_types", "[\"full_attention\", \"full_attention\", \"full_attention\"]"}},
     {{0}}, NULL},
    {"llama-b", {{"layer_types", "[\"full_attention\", \"sliding_attention\", "
                  "\"full_attention\"]"}}, {{0}}, "layer_types"},
    {"llama-b", {{"sliding_window", "512"}}, {{0}}, NULL},
    {"mistral-b", {{"layer_types", "[\"full_attention\", \"sliding_attention\", "
                    "\"full_attention\"]"}}, {{0}}, "layer_types"},
    {"mistral-b", {{"layer_types", "[\"sliding_attention\", \"sliding_attention\", "
                    "\"sliding_attention\"]"}}, {{0}}, NULL},
    {"mistral-b", {{"use_sliding_window", "false"}}, {{0}}, "use_sliding_window"},
    {"qwen3-b", {{"use_sliding_window", "true"}, {"max_window_layers", "0"},
                 {"sliding_window", "null"}}, {{0}}, NULL},
    {"qwen3-b", {{"sliding_window", "5"}, {"layer_types",
                  "[\"full_attention\", \"sliding_attention\", \"full_attention\"]"}}, {{0}},
     "layer_types"},
    {"qwen2-b", {{"use_sliding_window", NULL}}, {{0}}, "layer_types"},
    {"qwen2-b", {{"layer_types", NULL}}, {{0}}, NULL},
    {"qwen2-b", {{"use_sliding_window", "false"}, {"layer_types", NULL}},
     {{"layer_types", "[\"full_attention\", \"full_attention\", \"full_attention\", "
                      "\"full_attention\"]"}}, NULL},
    {"gptoss-plain-b", {{"sliding_window", "null"}}, {{0}}, "sliding_window"},
    /* experts */
    {"gptoss-plain-b", {{"num_experts_per_tok", NULL}, {"experts_per_token", "2"}}, {{0}},
     "experts_per_token"},
    {"gptoss-plain-b", {{"experts_per_token", "2"}}, {{0}}, NULL},
    {"gptoss-plain-b", {{"num_local_experts", NULL}, {"num_experts", "5"}}, {{0}}, NULL},
    {"gptoss-plain-b", {{"num_local_experts", "3"}, {"num_experts", "5"}}, {{0}}, NULL},
    {"gptoss-plain-b", {{"hidden_act", "\"gelu_pytorch_tanh\""}}, {{0}}, "hidden_act"},
    {"gptoss-mxfp4-b", {{"quantization_config", NULL}}, {{0}}, "quantization_config"},
    /* layers that differ */
    {"gemma4-moe-b", {{"per_layer_config",
                       "{\"03\": {\"head_dim\": 16, \"num_key_value_heads\": 3}}"}}, {{0}}, NULL},
    {"gemma4-moe-b", {{"per_layer_config.1", "{\"sliding_window\": 2}"}}, {{0}}, "sliding_window"},
    {"gemma4-moe-b", {{"per_layer_config.1", "{\"rms_norm_eps\": 1e-06}"}}, {{0}}, NULL},
    {"gemma4-moe-b", {{"per_layer_config.9", "{\"head_dim\": 16}"}}, {{0}}, "per_layer_config"},
    {"gemma4-moe-b", {{"global_head_dim", "512"}}, {{0}}, "global_head_dim"},
    {"gemma4-moe-b", {{"global_head_dim", "16"}, {"num_global_key_value_heads", "3"}}, {{0}}, NULL},
    /* layers without rope */
    {"smollm3-b", {{"no_rope_layers", "[1, 0, 1, 1]"}}, {{0}}, "no_rope_layers"},
    {"smollm3-b", {{"no_rope_layers", "[1, 0, 1, 1, \"0\"]"}}, {{0}}, "no_rope_layers"},
    {"smollm3-b", {{"no_rope_layers", "[1, 0, 1, 1, 0, 1, 1]"}}, {{0}}, NULL},
    {"smollm3-b",
     {{"no_rope_layers", NULL}, {"no_rope_layer_interval", "2"}, {"layer_types", NULL}},
     {{"no_rope_layers", "[1, 0, 1, 0, 1]"}, {"layer_types", NULL}}, NULL},
    {"smollm3-b", {{"layer_types", NULL}}, {{0}}, NULL},
    {"smollm3-b", {{"use_sliding_window", "false"}}, {{0}}, "layer_types"},
    {"exaone4-b", {{"layer_types", NULL}}, {{0}}, NULL},
    {"exaone4-b", {{"layer_types", NULL}, {"sliding_window_pattern", "\"LG\""}}, {{0}}, NULL},
    {"exaone4-b", {{"layer_types", NULL}, {"sliding_window_pattern", "\"LLLLG\""}},
     {{"layer_types", NULL}, {"sliding_window_pattern", "4"}}, NULL},
    {"exaone4-b", {{"layer_types", NULL}, {"sliding_window_pattern", "\"LGL\""}}, {{0}},
     "sliding_window_pattern"},
    {"exaone4-b", {{"sliding_window", "null"}}, {{0}}, "sliding_window"},
    {"ministral3-b", {{"rope_parameters.llama_4_scaling_beta", NULL}},
     {{"rope_parameters.llama_4_scaling_beta", "0.0"}}, NULL},
    {"llama-b", {{"rope_parameters.llama_4_scaling_beta", "0.1"}}, {{0}}, "llama_4_scaling_beta"},
    {"ministral3-b", {{"model_type", "\"bert\""}}, {{0}}, "text_config.model_type"},
    {"ministral3-b", {{"^text_config", NULL}}, {{0}}, "text_config"},
    {"ministral3-b", {{"^tie_word_embeddings", NULL}}, {{0}}, NULL},
    {"qwen3moe-b", {{"num_experts", NULL}, {"num_local_experts", "7"}}, {{0}}, NULL},
    {"qwen3moe-b", {{"num_experts", "513"}}, {{0}}, "num_experts"},
    {"qwen3moe-b", {{"num_experts_per_tok", NULL}}, {{0}}, "num_experts_per_tok"},
    {"qwen3moe-b", {{"norm_topk_prob", NULL}}, {{0}}, NULL},
    {"gptoss-plain-b", {{"norm_topk_prob", "false"}}, {{0}}, "norm_topk_prob"},
    {"phi3-b", {{"rope_parameters", OBJ(YRN)}}, {{0}}, "rope_parameters"},
    {"phi3-b", {{"rope_parameters", NULL}, {"rope_scaling", OBJ("\"type\": \"longrope\"")}}, {{0}},
     "short_factor"},
    {"phi3-b", {{"rope_parameters.partial_rotary_factor", NULL}, {"partial_rotary_factor", "0.8"}},
     {{0}}, NULL},
    /* as published: Gemma 2 of 9B and 27B, MiMo-V2-Flash, Llama 4 Scout */
    {"gemma2-b", {{"sliding_window_size", "5"}}, {{0}}, NULL},
    {"gemma2-b", {{"sliding_window_size", "6"}}, {{0}}, "sliding_window_size"},
    {"mimo-b", {{"sliding_window_size", "5"}, {"attention_chunk_size", "5"}}, {{0}}, NULL},
    {"mimo-b", {{"sliding_window_size", "5"}, {"attention_chunk_size", "6"}}, {{0}},
     "attention_chunk_size"},
    {"llama-b", {{"rope_parameters.high_freq_factor", "1"}},
     {{"rope_parameters.high_freq_factor", "1.0001"}}, NULL},
    {"llama-b", {{"rope_parameters.high_freq_factor", "0.9"}}, {{0}}, "high_freq_factor"},
    /* the family's own share of rotated dimensions, where the config says nothing of ropes */
    {"laguna-b", {{"rope_parameters", NULL}},
     {{"rope_parameters", TYPES("\"partial_rotary_factor\": 0.5, " THETA("5e5"),
                                "\"partial_rotary_factor\": 1.0, " THETA("1e4"))}}, NULL},
    {"mimo-b", {{"rope_parameters", NULL}},
     {{"rope_parameters", TYPES("\"partial_rotary_factor\": 0.334, " THETA("5e6"),
                                "\"partial_rotary_factor\": 0.334, " THETA("1e4"))}}, NULL},
    {"mimo-b", {{"rope_parameters", TYPES(LIN ", " THETA("5e6"), THETA("1e4"))}},
     {{"rope_parameters", TYPES("\"partial_rotary_factor\": 1.0, " LIN ", " THETA("5e6"),
                                "\"partial_rotary_factor\": 0.334, " THETA("1e4"))}}, NULL},
    /* of layer types with ropes of their own the reference reads the ropes' objects only */
    {"mimo-b", {{"rope_parameters", NULL}, {"partial_rotary_factor", "0.334"}},
     {{"rope_parameters", NULL}}, NULL},
    {"mimo-b", {{"rope_parameters", NULL}, {"partial_rotary_factor", "0.5"}}, {{0}},
     "partial_rotary_factor is 0.5, which the rope of full_attention layers does not use"},
    {"laguna-b", {{"partial_rotary_factor", "0.25"}}, {{0}}, NULL},
    {"laguna-b", {{"rope_parameters", NULL}, {"partial_rotary_factor", "0.5"}}, {{0}},
     "partial_rotary_factor is 0.5, which the rope of sliding_attention layers does not use"},
    {"laguna-b", {{"rope_parameters", TYPES(THETA("5e5"), THETA("1e4"))},
                  {"partial_rotary_factor", "0.5"}}, {{0}},
     "partial_rotary_factor is 0.5, which the rope of full_attention layers does not use"},
    {"step-b", {{"rope_parameters.sliding_attention", NULL}}, {{0}}, "sliding_attention is missing"},
    /* the published config has other names, a rope a layer, and lists with further layers */
    {"step-b", {{"rope_parameters", NULL},
                {"rope_theta", "[5e5, 1e4, 1e4, 5e5, 1e4, 1e4, 1e4]"},
                {"partial_rotary_factors", "[0.5, 1.0, 1.0, 0.5, 1.0, 0.5, 0.5]"},
                {"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 2, "
                                 "\"low_freq_factor\": 1, \"high_freq_factor\": 32, "
                                 "\"original_max_position_embeddings\": 64}"},
                {"num_nextn_predict_layers", "2"}, {"layer_types",
                 "[\"full_attention\", \"sliding_attention\", \"sliding_attention\", "
                 "\"full_attention\", \"sliding_attention\", \"full_attention\", "
                 "\"full_attention\"]"}},
     {{0}}, NULL},
    {"step-b", {{"num_key_value_heads", NULL}, {"num_attention_groups", "2"},
                {"n_routed_experts", NULL}, {"moe_num_experts", "7"}, {"share_expert_dim", NULL},
                {"share_expert_dims", "20"}}, {{0}}, NULL},
    {"step-b", {{"num_experts_per_tok", NULL}, {"moe_top_k", "3"}, {"mlp_layer_types", NULL},
                {"moe_layers_enum", "\"1,3,4,5\""}, {"num_sliding_attention_heads", NULL},
                {"attention_other_setting", "{\"num_attention_heads\": 4}"}}, {{0}}, NULL},
    {"step-b", {{"rope_parameters", NULL}, {"rope_theta", "[5e5, 1e4, 1e4, 5e5]"}}, {{0}},
     "rope_theta"},
    {"step-b", {{"rope_parameters", NULL}, {"rope_theta", "[5e5, 1e4, 1e4, 5e5, 1e5]"}}, {{0}},
     "rope_theta"},
    {"step-b", {{"rope_parameters", NULL}, {"rope_theta", "\"a\""}}, {{0}}, "rope_theta"},
    {"step-b", {{"num_nextn_predict_layers", "2"},
                {"layer_types", "[\"full_attention\"]"}}, {{0}}, "layer_types has 1 entries"},
    /* the norm of q and k behind the rotation cancels YaRN's factor */
    {"llama4-b", {{"rope_parameters", OBJ(YRN ", \"attention_factor\": 1.5")}},
     {{"rope_parameters", OBJ(YRN ", \"attention_factor\": 1.0")}}, NULL},
    {"smollm3-b", {{"no_rope_layers", "[]"}}, {{"no_rope_layers", NULL}}, NULL},
    /* mellum and granite */
    {"mellum-b", {{"mlp_layer_types", "[\"sparse\", \"dense\"]"}}, {{0}}, "mlp_layer_types"},
    {"mellum-b", {{"mlp_layer_types", "[\"sparse\", \"dense\", \"sparse\", \"moe\"]"}}, {{0}},
     "mlp_layer_types"},
    {"mellum-b", {{"rope_parameters", OBJ(YRN)}}, {{0}}, "rope_type"},
    {"granite-b", {{"layer_types", NULL}}, {{0}}, NULL},
    {"granite-b", {{"layer_rope_theta", "[0, 1e4, 5e5]"}}, {{0}}, "layer_rope_theta"},
    {"granite-b", {{"layer_rope_theta", "[0, 1e4, 5e5, 3e5, 0, 0]"}}, {{0}}, "layer_rope_theta"},
    {"granite-b", {{"layer_rope_theta", "[0, 1e4, 0.5, 0, 0, 0]"}}, {{0}}, "layer_rope_theta"},
    {"granite-b", {{"layer_rope_theta", "[1e4, 1e4, 1e4, 1e4, 1e4, 1e4]"}},
     {{"layer_rope_theta", NULL}}, NULL},
    {"gemma4-unified-b", {{"hidden_size_per_layer_input", "4"}}, {{0}},
     "hidden_size_per_layer_input"},
    {"gemma4-unified-b", {{"use_bidirectional_attention", "\"all\""}}, {{0}},
     "use_bidirectional_attention"},
    /* the head of a multimodal folder is tied by the key beside text_config */
    {"gemma3-mm-b", {{"tie_word_embeddings", "false"}}, {{0}}, NULL},
    {"gemma3-mm-b", {{"final_logit_softcapping", "3.0"}}, {{0}}, "final_logit_softcapping"},
    {"gemma4-ple-b", {{"tie_word_embeddings", "false"}}, {{0}}, NULL},
    /* keys of other families, with the values that the model has: 6 heads of 10, 2 of keys */
    {"gemma3-b", {{"num_sliding_attention_heads", "6"}, {"swa_num_key_value_heads", "2"},
                  {"num_global_key_value_heads", "2"}, {"swa_head_dim", "10"}}, {{0}}, NULL},
    {"gemma3-b", {{"v_head_dim", "10"}, {"swa_v_head_dim", "10"},
                  {"attention_multiplier", "0.288675135"}, {"use_qk_norm", "true"}}, {{0}}, NULL},
    {"gemma3-b", {{"add_swa_attention_sink_bias", "false"}, {"use_parallel_block", "false"},
                  {"swiglu_limits", "[0, 0, null]"},
                  {"num_attention_heads_per_layer", "[6, 6, 6, 6]"}}, {{0}}, NULL},
    {"gemma3-b", {{"vocab_size_per_layer_input", "5"}, {"swiglu_limits_shared", "null"}}, {{0}},
     NULL},
    {"qwen3moe-b", {{"score_func", "\"softmax\""}, {"scoring_func", "\"softmax\""}}, {{0}}, NULL},
    {"gptoss-plain-b", {{"add_swa_attention_sink_bias", "true"}}, {{0}}, NULL},
    {"cohere2-b", {{"use_parallel_block", "true"}}, {{0}}, NULL},
    {"gemma3-b", {{"num_sliding_attention_heads", "4"}}, {{0}}, "num_sliding_attention_heads"},
    {"gemma3-b", {{"swa_num_key_value_heads", "1"}}, {{0}}, "swa_num_key_value_heads"},
    {"gemma3-b", {{"num_global_key_value_heads", "1"}}, {{0}}, "num_global_key_value_heads"},
    {"gemma3-b", {{"swa_head_dim", "12"}}, {{0}}, "swa_head_dim"},
    {"gemma3-b", {{"v_head_dim", "8"}}, {{0}}, "v_head_dim"},
    {"gemma3-b", {{"swa_v_head_dim", "8"}}, {{0}}, "swa_v_head_dim"},
    {"gemma3-b", {{"attention_multiplier", "0.25"}}, {{0}}, "attention_multiplier"},
    {"gemma3-b", {{"use_qk_norm", "false"}}, {{0}}, "use_qk_norm"},
    {"gemma3-b", {{"add_swa_attention_sink_bias", "true"}}, {{0}}, "add_swa_attention_sink_bias"},
    {"gemma3-b", {{"use_parallel_block", "true"}}, {{0}}, "use_parallel_block"},
    {"gemma3-b", {{"swiglu_limits", "[0, 7.0]"}}, {{0}}, "swiglu_limits"},
    {"gemma3-b", {{"num_attention_heads_per_layer", "[6, 6, 6, 4]"}}, {{0}},
     "num_attention_heads_per_layer"},
    {"gemma3-b", {{"num_attention_heads_per_layer", "[6, 6, 6]"}}, {{0}},
     "num_attention_heads_per_layer"},
    {"qwen3moe-b", {{"score_func", "\"sigmoid\""}}, {{0}}, "score_func"},
};

static void test_a_spelling_is_refused_or_equals_its_twin(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(spellings); i++) {
        const struct spelling *s = &spellings[i];
        struct base b = base_open(s->folder);
        if (s->refused)
            must_refuse(&b, s->config, s->refused);
        else
            must_equal(&b, s->config, s->twin);
        base_close(&b);
    }
}

/* What equals the unchanged folder also gives its reference's numbers. */
static void test_neutral_keys_leave_the_numbers(void **state)
{
    (void)state;
    for (int i = 0; i < rounds(2, COUNT(folders)); i++) {
        struct base b = base_open(folders[i]);
        struct buf report = {0};
        struct err e = {0};
        struct golden_opts o =
            {.engine = {.model = b.dir, .device = "cpu", .threads = test_threads()}};
        write_config(&b, (const struct change[MOST]){{"logit_scale", "1.0"}, {"is_causal", "true"},
                     {"an_unknown_key", "5"}, {"per_layer_config", NULL}});
        if (!uses(&b, " gemma4 ") && !golden_run(&o, &report, &e))
            fail_msg("%s: %s\n%s", b.name, e.msg, report.p ? report.p : "");
        buf_free(&report);
        base_close(&b);
    }
}

/* ---- an untied head beside a tied text_config ---- */

static void test_an_untied_head_of_a_multimodal_folder_is_its_own(void **state)
{
    (void)state;
    struct ck c = ck_load("tests/golden/gemma3-mm-b", ST);
    const struct ck_tensor *t = ck_find(&c, "language_model.model.embed_tokens.weight");
    struct ck_tensor *head = ck_add(&c, "language_model.lm_head.weight", "BF16",
                                    json_deep_copy(t->shape), t->data, t->n);
    head->data[0] ^= 1;
    ck_set_text(&c, "tie_word_embeddings", "false");
    struct model m = load_ck(&c, 1);
    assert_true(!m.cfg.tied && m.head.data != m.embed.data);
    assert_string_equal(m.head.name, "language_model.lm_head.weight");
    model_free(&m);
    ck_free(&c);
}

/* ---- two files of weights ---- */

static int unlink_in(const char *dir, const char *name)
{
    char *path = xasprintf("%s/%s", dir, name);
    int rc = unlink(path);
    free(path);
    return rc;
}

static void test_a_single_file_comes_before_an_index(void **state)
{
    (void)state;
    struct ck c = ck_load("tests/golden/llama-b", ST), other = ck_load("tests/golden/llama-b", ST);
    char *dir = scratch_folder();
    ck_find(&other, "model.norm.weight")->data[0] ^= 1;
    ck_save(&other, dir, 3);
    struct model m = load(dir);
    char *shards = xasprintf("%s", m.sha);
    assert_null(m.note);
    model_free(&m);
    ck_save(&c, dir, 1);
    m = load(dir);
    assert_non_null(m.note);
    assert_non_null(strstr(m.note, "model.safetensors.index.json"));
    assert_string_not_equal(m.sha, shards);
    struct model single = load("tests/golden/llama-b");
    assert_int_equal(m.bytes, single.bytes);
    assert_memory_equal(m.norm.data, single.norm.data, m.norm.bytes);
    model_free(&single);
    model_free(&m);
    free(shards);
    assert_int_equal(unlink_in(dir, ST ".index.json"), 0);
    ck_write_text(dir, "adapter_config.json", "{}");
    m = load(dir);
    assert_non_null(strstr(m.note, "adapter_config.json"));
    model_free(&m);
    scratch_remove(dir);
    ck_free(&c);
    ck_free(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_that_a_family_does_not_use_are_refused_or_neutral),
        cmocka_unit_test(test_pairs_of_such_keys_are_refused_or_neutral),
        cmocka_unit_test(test_keys_beside_text_config_are_refused_if_they_differ),
        cmocka_unit_test(test_a_spelling_is_refused_or_equals_its_twin),
        cmocka_unit_test(test_neutral_keys_leave_the_numbers),
        cmocka_unit_test(test_an_untied_head_of_a_multimodal_folder_is_its_own),
        cmocka_unit_test(test_a_single_file_comes_before_an_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
