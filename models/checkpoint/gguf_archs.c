/* gguf_archs.c - the architectures of GGUF files: the config of each, the names of tensors that are
 * its own, and the table of both. See gguf_meta.h and gguf_model.h.
 *
 * An absent key has the default of the architecture, which is the one of llama.cpp: a file without
 * it is normal. What the format does not store is what the published models have: attention scales
 * of gemma, YaRN's `truncate` of gpt-oss, layers without rope of smollm3. ollama's converter
 * leaves out keys, and gives keys and tensors other names: both are known here.
 */
#include "models/checkpoint/gguf_meta.h"

#include <math.h>

/* Puts a list of n values; value: a json_t *, made of i. */
#define PUT_LIST(m, key, i, n, value)                                                              \
    do {                                                                                           \
        json_t *list_ = json_array();                                                              \
        for (int64_t i = 0; (m)->ok && i < (int64_t)(n); i++)                                      \
            json_array_append_new(list_, (value));                                                 \
        json_object_set_new((m)->out, (key), list_);                                               \
    } while (0)

/* Puts a number that is above 0; another one, and none, is left out. */
static void put_positive(struct gguf_meta *m, const char *out, const char *key)
{
    double v = meta_real(m, key, 0);
    if (v > 0)
        put_real(m, out, v);
}

static void put_block(struct gguf_meta *m, const char *type)
{
    put_string(m, "model_type", type);
    meta_heads(m);
    meta_dense(m);
    meta_rope(m, true);
    if (meta_has_bias(m))
        put_bool(m, "attention_bias", true);
}

/* Llama, Mistral and others that have the same block. */
static void config_llama(struct gguf_meta *m)
{
    if (meta_has(m, "attention.sliding_window_pattern")) {
        put_block(m, "ministral");
        meta_windows(m, 1, false, META_NEEDED);
        return;
    }
    int64_t context = meta_int(m, "context_length", META_NEEDED, INT32_MAX);
    int64_t window = meta_int(m, "attention.sliding_window", 0, INT32_MAX);
    bool slides = window && window < context;
    put_block(m, slides ? "mistral" : "llama");
    if (slides)
        put_int(m, "sliding_window", window);
}

/* q, k and v have biases in every file. The format stores no window. */
static void config_qwen2(struct gguf_meta *m)
{
    put_string(m, "model_type", "qwen2");
    meta_heads(m);
    meta_dense(m);
    meta_rope(m, true);
}

static void config_qwen3(struct gguf_meta *m)
{
    put_block(m, "qwen3");
}

/* The number of experts, which the config calls `count`, of a token's, and their width. */
static void put_experts(struct gguf_meta *m, const char *count)
{
    put_int(m, count, meta_int(m, "expert_count", META_NEEDED, META_MAX));
    put_int(m, "num_experts_per_tok", meta_same(m, "expert_used_count", META_NEEDED, META_MAX));
    int64_t width = meta_int(m, "expert_feed_forward_length", META_NEEDED, META_MAX);
    int64_t dense = meta_same(m, "feed_forward_length", width, META_MAX);
    put_int(m, "moe_intermediate_size", width);
    put_int(m, "intermediate_size", dense ? dense : width);
    if (meta_int(m, "expert_group_count", 1, META_MAX) > 1)
        meta_refuse(m, "expert_group_count", "is above 1, which aerie does not have");
}

static bool has_experts(const struct gguf_meta *m, int i)
{
    return meta_in_layer(m, i, "ffn_gate_inp.weight");
}

/* A layer without experts is dense. */
static void put_mlp_types(struct gguf_meta *m)
{
    PUT_LIST(m, "mlp_layer_types", i, m->layers,
             json_string(has_experts(m, (int)i) ? "sparse" : "dense"));
}

/* Experts are chosen by the sigmoids of the router's logits, and a token's weights add up to 1;
 * normed: without a key, too. */
static void check_sigmoid(struct gguf_meta *m, bool normed)
{
    enum { SIGMOID = 2 };
    int64_t func = meta_int(m, "expert_gating_func", SIGMOID, 1 << 16);
    if (func != SIGMOID && func != 0)
        meta_refuse(m, "expert_gating_func", "is %lld, expected %d: sigmoid", (long long)func,
                    SIGMOID);
    if (!meta_bool(m, "expert_weights_norm", normed))
        meta_refuse(m, "expert_weights_norm", "is false, or absent, expected true");
}

/* Weights of experts always add up to 1. */
static void config_qwen3moe(struct gguf_meta *m)
{
    put_string(m, "model_type", "qwen3_moe");
    meta_heads(m);
    meta_rope(m, true);
    put_bool(m, "attention_bias", meta_has_bias(m));
    put_bool(m, "norm_topk_prob", true);
    put_experts(m, "num_experts");
    json_t *dense = json_array();
    for (int i = 0; m->ok && i < m->layers; i++)
        if (!has_experts(m, i))
            json_array_append_new(dense, json_integer(i));
    json_object_set_new(m->out, "mlp_only_layers", dense);
}

/* Every fourth layer has no rope, which the format does not say. */
static void config_smollm3(struct gguf_meta *m)
{
    put_block(m, "smollm3");
}

/* YaRN whose temperature is 1, and a factor of queries far into the context. */
static void config_mistral3(struct gguf_meta *m)
{
    put_string(m, "model_type", "ministral3");
    meta_heads(m);
    meta_dense(m);
    double theta = meta_real(m, "rope.freq_base", 10000);
    double log_mul = meta_real(m, meta_either(m, "rope.scaling.yarn_log_multiplier",
                                              "rope.scaling.mscale_all_dim"), 0);
    double temper = meta_real(m, meta_either(m, "attention.temperature_scale",
                                             "rope.scaling_beta"), 0);
    double mscale = meta_real(m, "rope.scaling.mscale", 1);
    json_t *s = meta_scaling(m, true);
    if (!s)
        s = json_pack("{s:s}", "rope_type", "default");
    json_object_set_new(s, "rope_theta", json_real(theta));
    if (log_mul != 0) {
        json_object_set_new(s, "mscale", json_real(mscale));
        json_object_set_new(s, "mscale_all_dim", json_real(log_mul));
    }
    if (temper != 0)
        json_object_set_new(s, "llama_4_scaling_beta", json_real(temper));
    json_object_set_new(m->out, "rope_parameters", s);
}

/* The model of 64 layers has windows, whose full layers have no rope; the one of 30 has none. */
static void config_exaone4(struct gguf_meta *m)
{
    bool slides = m->layers == 64 || meta_int(m, "attention.sliding_window", 0, INT32_MAX) > 0;
    put_block(m, "exaone4");
    if (slides)
        meta_windows(m, 4, false, 4096);
    else
        json_object_set_new(m->out, "sliding_window", json_null());
}

/* The scale of the queries: by the width of a head, but in the largest model of a family by
 * hidden_size / heads. */
static void put_gemma(struct gguf_meta *m, const char *type, int largest)
{
    put_string(m, "model_type", type);
    meta_heads(m);
    meta_dense(m);
    int64_t hidden = put_before(m, "hidden_size");
    int64_t dim = put_before(m, "head_dim");
    put_int(m, "query_pre_attn_scalar", m->ok && m->layers == largest ? hidden / m->heads : dim);
    put_bool(m, "tie_word_embeddings", !gguf_find(m->g, "output.weight"));
}

static void config_gemma2(struct gguf_meta *m)
{
    put_gemma(m, "gemma2", 46);
    meta_windows(m, 2, false, 4096);
    meta_rope(m, true);
    put_real(m, "attn_logit_softcapping", meta_real(m, "attn_logit_softcapping", 50));
    put_real(m, "final_logit_softcapping", meta_real(m, "final_logit_softcapping", 30));
}

/* ollama's files of gemma-3: their ropes have the published values, which the files leave out. */
static bool is_ollama_gemma3(struct gguf_meta *m)
{
    return !meta_has(m, "attention.layer_norm_rms_epsilon") || meta_has(m, "mm.tokens_per_image") ||
           meta_has(m, "rope.local.freq_base") || meta_has(m, "rope.global.freq_base");
}

static void config_gemma3(struct gguf_meta *m)
{
    const bool ollama = is_ollama_gemma3(m);
    put_gemma(m, "gemma3_text", 62);
    meta_windows(m, 6, false, META_NEEDED);
    const char *full = meta_either(m, "rope.freq_base", "rope.global.freq_base"),
               *sliding = meta_either(m, "rope.freq_base_swa", "rope.local.freq_base");
    bool scaled = meta_has(m, "rope.scaling.type") || meta_has(m, "rope.scaling.factor");
    json_t *scaling = meta_scaling(m, true);
    if (ollama && !scaled && put_before(m, "max_position_embeddings") >= 131072)
        scaling = json_pack("{s:s, s:f}", "rope_type", "linear", "factor", 8.0);
    put_rope(m, meta_real(m, full, ollama ? 1e6 : 10000), scaling);
    put_real(m, "rope_local_base_freq", meta_real(m, sliding, 10000));
    put_positive(m, "final_logit_softcapping", "final_logit_softcapping");
}

static void config_gptoss(struct gguf_meta *m)
{
    put_string(m, "model_type", "gpt_oss");
    meta_heads(m);
    meta_windows(m, 2, false, META_NEEDED);
    meta_rope(m, false);
    int64_t dense = meta_same(m, "feed_forward_length", 0, META_MAX);
    put_int(m, "intermediate_size",
            meta_int(m, "expert_feed_forward_length", dense ? dense : META_NEEDED, META_MAX));
    put_int(m, "num_local_experts", meta_int(m, "expert_count", META_NEEDED, META_MAX));
    put_int(m, "num_experts_per_tok", meta_int(m, "expert_used_count", META_NEEDED, META_MAX));
    put_bool(m, "attention_bias", meta_has_bias(m));
    if (!gguf_plain_experts(m->g))
        json_object_set_new(m->out, "quantization_config",
                            json_pack("{s:s}", "quant_method", "mxfp4"));
}

/* OLMo 2 and, where there is a window, OLMo 3. */
static void config_olmo(struct gguf_meta *m)
{
    if (!meta_int(m, "attention.sliding_window", 0, INT32_MAX)) {
        put_block(m, "olmo2");
        return;
    }
    put_string(m, "model_type", "olmo3");
    meta_heads(m);
    meta_dense(m);
    meta_windows(m, 4, false, 0);
    meta_ropes(m, meta_scaling(m, true), 10000, 0, NULL);
}

/* The share of a head that full layers rotate: pairs whose factor is 1, the others never turn. */
static double gemma4_partial(struct gguf_meta *m, int64_t dim)
{
    const char *name;
    int64_t n = dim / 2, ones = 0;
    FREED(free_at) float *f = meta_factors(m, n, &name);
    while (f && ones < n && f[ones] == 1)
        ones++;
    for (int64_t i = ones; f && i < n; i++)
        if (!(f[i] >= 1e20f) && m->ok)
            m->ok = err_file(m->e, m->g->file[0].path, "the factors in tensor %s are neither 1 nor "
                             "1e30, as those of a partial rope are", show(name).s);
    return !f || !n ? 1 : (double)ones / (double)n;
}

/* Layer i < layers - shared has `wide`, or what all have; the others twice as much. */
static void put_gemma4_mlp(struct gguf_meta *m, int64_t shared)
{
    const char *const key = "feed_forward_length";
    FREED(free_at) int64_t *v = meta_layers(m, key, META_NEEDED, META_MAX);
    int64_t first = v[0];
    bool wide = m->ok && shared && v[m->layers - 1] == 2 * first;
    for (int i = 0; m->ok && i < m->layers; i++)
        if (v[i] != (wide && i >= m->layers - shared ? 2 * first : first))
            meta_refuse(m, key,
                   "is %lld for layer %d, expected %lld, or twice that in the last %lld layers",
                   (long long)v[i], i, (long long)first, (long long)shared);
    put_int(m, "intermediate_size", first);
    put_int(m, "num_kv_shared_layers", shared);
    put_bool(m, "use_double_wide_mlp", wide);
}

/* Of a number that full layers and sliding ones have each: [0] of full ones, [1] of sliding ones; 0
 * if there is no such layer. After meta_windows(). */
static void by_type(struct gguf_meta *m, const char *key, int64_t of[2])
{
    FREED(free_at) int64_t *v = meta_layers(m, key, m->heads, 1 << 16);
    of[0] = of[1] = 0;
    for (int i = 0; m->ok && i < m->layers; i++) {
        int slides = meta_slides(m, i);
        if (of[slides] && of[slides] != v[i])
            meta_refuse(m, key, "is %lld for layer %d and %lld for others of its type",
                        (long long)v[i], i, (long long)of[slides]);
        of[slides] = v[i];
    }
}

/* Refuses a width that is not the one at another key. */
static void check_width(struct gguf_meta *m, const char *key, int64_t width, const char *other)
{
    if (meta_int(m, key, width, 1 << 16) != width)
        meta_refuse(m, key, "is not %s", other);
}

/* Heads of full layers are wider and may be fewer. */
static void put_gemma4_heads(struct gguf_meta *m)
{
    static const char *const key = "attention.head_count_kv", *const full = "attention.key_length",
                      *const sliding = "attention.key_length_swa";
    int64_t dim = meta_int(m, full, META_NEEDED, 1 << 16), of[2];
    int64_t swa = meta_int(m, sliding, dim, 1 << 16);
    check_width(m, "attention.value_length", dim, full);
    check_width(m, "attention.value_length_swa", swa, sliding);
    check_width(m, "rope.dimension_count", dim, full);
    check_width(m, "rope.dimension_count_swa", swa, sliding);
    by_type(m, key, of);
    bool k_is_v = false;
    for (int i = 0; i < m->layers; i++)
        k_is_v |= !meta_slides(m, i) && meta_in_layer(m, i, "attn_k.weight") &&
                  !meta_in_layer(m, i, "attn_v.weight");
    if (m->ok && of[0] && of[1] && of[0] != of[1] && !k_is_v)
        meta_refuse(m, key, "differs between full and sliding layers, expected that where K is V "
                            "only");
    put_int(m, "head_dim", swa);
    put_int(m, "global_head_dim", dim);
    put_int(m, "num_key_value_heads", of[1] ? of[1] : of[0]);
    put_bool(m, "attention_k_eq_v", k_is_v);
    if (k_is_v)
        put_int(m, "num_global_key_value_heads", of[0] ? of[0] : of[1]);
}

static void config_gemma4(struct gguf_meta *m)
{
    put_string(m, "model_type", "gemma4_text");
    meta_windows(m, 6, false, META_NEEDED);
    put_gemma4_heads(m);
    put_gemma4_mlp(m, meta_int(m, "attention.shared_kv_layers", 0, m->layers));
    int64_t dim = put_before(m, "global_head_dim");
    meta_unscaled(m, false);
    meta_ropes(m, json_pack("{s:s, s:f}", "rope_type", "proportional", "partial_rotary_factor",
                            gemma4_partial(m, dim)), 1e6, 10000, NULL);
    put_int(m, "hidden_size_per_layer_input",
            meta_int(m, "embedding_length_per_layer_input", 0, META_MAX));
    put_int(m, "vocab_size_per_layer_input", meta_rows(m, "per_layer_token_embd.weight"));
    put_positive(m, "final_logit_softcapping", "final_logit_softcapping");
    int64_t experts = meta_int(m, "expert_count", 0, META_MAX);
    put_bool(m, "enable_moe_block", experts > 0);
    if (!experts)
        return;
    put_int(m, "num_experts", experts);
    put_int(m, "top_k_experts", meta_int(m, "expert_used_count", META_NEEDED, META_MAX));
    put_int(m, "moe_intermediate_size",
            meta_int(m, "expert_feed_forward_length", META_NEEDED, META_MAX));
}

/* Attention and MLP read one norm. Heads keep the published order, which rotates neighbours. */
static void config_cohere2(struct gguf_meta *m)
{
    put_block(m, "cohere2");
    meta_windows(m, 4, false, META_NEEDED);
    put_real(m, "logit_scale", meta_real(m, "logit_scale", NAN));
}

/* The factors that a rope of two lists divides frequencies by. */
static json_t *factors_of(struct gguf_meta *m, const char *name, int64_t n)
{
    const struct gguf_tensor *t = gguf_find(m->g, name);
    FREED(free_at) float *f = t && m->ok ? meta_floats(m, t, n) : NULL;
    json_t *all = f ? json_array() : NULL;
    for (int64_t i = 0; f && i < n; i++)
        json_array_append_new(all, json_real(f[i]));
    return all;
}

/* The rope of phi-3: a share of a head, and for long contexts a list of factors. */
static void put_phi3_rope(struct gguf_meta *m, int64_t dim)
{
    double share = meta_partial(m, "rope.dimension_count", dim, 1);
    int64_t n = (int64_t)((double)dim * share) / 2,
        longest = put_before(m, "max_position_embeddings");
    int64_t from = meta_int(m, "rope.scaling.original_context_length", 4096, INT32_MAX);
    json_t *rope = json_pack("{s:f, s:f}", "rope_theta", meta_real(m, "rope.freq_base", 10000),
                             "partial_rotary_factor", share);
    FREED(json_decrefp) json_t *far = factors_of(m, "rope_factors_long.weight", n);
    FREED(json_decrefp) json_t *near = factors_of(m, "rope_factors_short.weight", n);
    double scale = from > 1 ? (double)longest / (double)from : 1;
    double dflt = scale > 1 ? sqrt(1 + log(scale) / log((double)from)) : 1;
    double factor = meta_real(m, "rope.scaling.attn_factor", dflt);
    put_int(m, "original_max_position_embeddings", from);
    json_object_set_new(rope, "rope_type", json_string(far && near ? "longrope" : "default"));
    if (far && near) {
        json_object_set(rope, "long_factor", far);
        json_object_set(rope, "short_factor", near);
        if (fabs(factor - dflt) > 1e-6 * dflt) /* the default has more digits */
            json_object_set_new(rope, "attention_factor", json_real(factor));
    }
    json_object_set_new(m->out, "rope_parameters", rope);
}

/* A window of 0 is none; older files of the models of 4096 tokens do not have the key. */
static void config_phi3(struct gguf_meta *m)
{
    put_string(m, "model_type", "phi3");
    int64_t dim = meta_kv_heads(m);
    meta_dense(m);
    put_phi3_rope(m, dim);
    meta_unscaled(m, true);
    int64_t old = put_before(m, "max_position_embeddings") == 4096 ? 2047 : 0;
    int64_t window = meta_int(m, "attention.sliding_window", old, INT32_MAX);
    json_object_set_new(m->out, "sliding_window", window ? json_integer(window) : json_null());
}

/* The embedding is always scaled. Layers without experts come first. */
static void config_afmoe(struct gguf_meta *m)
{
    put_string(m, "model_type", "afmoe");
    meta_heads(m);
    meta_rope(m, true);
    meta_windows(m, 4, false, META_NEEDED);
    put_experts(m, "num_experts");
    check_sigmoid(m, false);
    int dense = 0;
    while (m->ok && dense < m->layers && !has_experts(m, dense))
        dense++;
    put_int(m, "num_dense_layers", dense);
    put_int(m, "num_shared_experts", meta_int(m, "expert_shared_count", META_NEEDED, 1 << 16));
    put_real(m, "route_scale", meta_real(m, "expert_weights_scale", 1));
    put_bool(m, "mup_enabled", true);
}

/* The gate's rows say whether it is one a head or one an element. */
static void config_laguna(struct gguf_meta *m)
{
    put_string(m, "model_type", "laguna");
    int64_t dim = meta_kv_heads(m);
    FREED(free_at) int64_t *heads = meta_layers(m, "attention.head_count", META_NEEDED, 1 << 16);
    PUT_LIST(m, "num_attention_heads_per_layer", i, m->layers, json_integer(heads[i]));
    bool by_element = meta_rows(m, "blk.0.attn_gate.weight") == m->heads * dim && dim > 1;
    json_object_set_new(m->out, "gating", by_element ? json_string("per-element") : json_true());
    put_experts(m, "num_experts");
    check_sigmoid(m, false);
    put_mlp_types(m);
    put_int(m, "shared_expert_intermediate_size",
            meta_int(m, "expert_shared_feed_forward_length", META_NEEDED, META_MAX));
    put_real(m, "moe_routed_scaling_factor", meta_real(m, "expert_weights_scale", 1));
    put_positive(m, "moe_router_logit_softcapping", "router_logit_softcapping");
    if (meta_int(m, "attention.sliding_window", 0, INT32_MAX))
        meta_windows(m, 4, true, META_NEEDED);
    double full = meta_partial(m, "rope.dimension_count", dim, 1);
    const double share[] = {full, meta_partial(m, "rope.dimension_count_swa", dim, full)};
    meta_ropes(m, meta_scaling(m, true), 10000, 0, share);
}

/* Sliding layers have a rope of their own, which is never scaled. */
static void config_mellum(struct gguf_meta *m)
{
    put_string(m, "model_type", "mellum");
    meta_heads(m);
    put_bool(m, "attention_bias", meta_has_bias(m));
    put_experts(m, "num_experts");
    put_mlp_types(m);
    put_bool(m, "norm_topk_prob", true);
    if (meta_int(m, "attention.sliding_window", 0, INT32_MAX))
        meta_windows(m, 4, false, META_NEEDED);
    meta_ropes(m, meta_scaling(m, true), 10000, 0, NULL);
}

/* A multiplier; one that is absent, or 0, is `dflt`. */
static void put_multiplier(struct gguf_meta *m, const char *out, const char *key, double dflt)
{
    double v = meta_real(m, key, 0);
    put_real(m, out, v != 0 ? v : dflt);
}

/* Granite with sliding layers, dense or with experts in all layers. Entries of rope_pattern that
 * are 0 are layers without rope. */
static void config_granite_swa(struct gguf_meta *m)
{
    bool experts = meta_int(m, "expert_count", 0, META_MAX) > 0;
    put_string(m, "model_type", experts ? "granitemoe_swa" : "granite_swa");
    meta_heads(m);
    put_int(m, "intermediate_size", meta_same(m, "feed_forward_length", META_NEEDED, META_MAX));
    put_bool(m, "attention_bias", meta_has_bias(m));
    meta_windows(m, 4, true, META_NEEDED);
    meta_rope(m, true);
    double theta = json_number_value(json_object_get(m->out, "rope_theta"));
    FREED(free_at) int64_t *rotates = meta_layers(m, "attention.rope_pattern", 1, 1 << 16);
    PUT_LIST(m, "layer_rope_theta", i, m->layers, json_real(rotates[i] ? theta : 0));
    put_multiplier(m, "embedding_multiplier", "embedding_scale", 1);
    put_multiplier(m, "attention_multiplier", "attention.scale",
                   1 / sqrt((double)put_before(m, "head_dim")));
    put_multiplier(m, "residual_multiplier", "residual_scale", 1);
    put_multiplier(m, "logits_scaling", "logit_scale", 1);
    if (!experts)
        return;
    put_int(m, "num_local_experts", meta_int(m, "expert_count", META_NEEDED, META_MAX));
    put_int(m, "num_experts_per_tok", meta_same(m, "expert_used_count", META_NEEDED, META_MAX));
    put_int(m, "shared_intermediate_size",
            meta_int(m, "expert_shared_feed_forward_length", 0, META_MAX));
}

/* The factor of the queries is stored as the weights of a norm, which layer 0 has. */
static double muse_query_scale(struct gguf_meta *m, int64_t dim)
{
    double scale = 1;
    for (int i = 0; m->ok && i < 2 * m->layers; i++) {
        char name[48];
        snprintf(name, sizeof name, "blk.%d.attn_%c_norm.weight", i / 2, i % 2 ? 'k' : 'q');
        const struct gguf_tensor *t = gguf_find(m->g, name);
        FREED(free_at) float *f = t ? meta_floats(m, t, dim) : NULL;
        if (f && !i)
            scale = f[0];
        for (int64_t k = 0; m->ok && f && k < dim; k++)
            if (f[k] != (i % 2 ? 1 : scale))
                m->ok = err_file(m->e, m->g->file[t->file].path, "tensor %s has %g, expected %g: "
                                 "one factor for all queries, and 1 for all keys", name,
                                 (double)f[k], i % 2 ? 1 : scale);
    }
    return scale;
}

/* Full layers have no rope. */
static void config_muse(struct gguf_meta *m)
{
    put_block(m, "muse_glimmer_text");
    meta_windows(m, 4, false, META_NEEDED);
    double theta = json_number_value(json_object_get(m->out, "rope_theta"));
    PUT_LIST(m, "layer_rope_theta", i, m->layers, json_real(meta_slides(m, (int)i) ? theta : 0));
    put_real(m, "qk_scale_factor", muse_query_scale(m, put_before(m, "head_dim")));
    put_real(m, "output_multiplier", meta_real(m, "logit_scale", NAN));
    double cap = meta_real(m, "final_logit_softcapping", 0);
    json_object_set_new(m->out, "final_logit_softcapping", cap > 0 ? json_real(cap) : json_null());
}

/* Sliding layers have twice the KV heads. */
static void config_mimo2(struct gguf_meta *m)
{
    static const char *const key = "attention.head_count_kv";
    int64_t kv[2];
    put_string(m, "model_type", "mimo_v2_flash");
    put_int(m, "v_head_dim", meta_some_heads(m));
    meta_windows(m, 1, false, META_NEEDED);
    by_type(m, key, kv);
    if (!kv[0])
        kv[0] = kv[1] / 2;
    if (m->ok && kv[1] && kv[1] != 2 * kv[0])
        meta_refuse(m, key, "is %lld in sliding layers, expected twice the %lld of full ones",
                    (long long)kv[1], (long long)kv[0]);
    put_int(m, "num_key_value_heads", kv[0]);
    put_experts(m, "n_routed_experts");
    check_sigmoid(m, true);
    put_mlp_types(m);
    put_real(m, "routed_scaling_factor", meta_real(m, "expert_weights_scale", 1));
    put_real(m, "attention_value_scale", meta_real(m, "attention.value_scale", 1));
    double part = meta_partial(m, "rope.dimension_count", put_before(m, "head_dim"), 1);
    meta_unscaled(m, false);
    meta_ropes(m, NULL, 10000, 10000, (const double[]){part, part});
}

/* One number a layer, 0: none. */
static void put_limits(struct gguf_meta *m, const char *out, const char *key)
{
    size_t n = 0;
    if (!meta_has(m, key) || !m->ok)
        return;
    FREED(free_at) float *v = meta_reals(m, key, &n);
    if (m->ok && n != (size_t)m->blocks)
        meta_refuse(m, key, "has %zu entries, expected %d, one a layer", n, m->blocks);
    PUT_LIST(m, out, i, m->layers, json_real(v[i]));
}

/* Full layers rotate half of what sliding ones do. */
static void config_step35(struct gguf_meta *m)
{
    int64_t heads[2];
    put_string(m, "model_type", "step3p5");
    int64_t dim = meta_kv_heads(m);
    meta_windows(m, 1, false, META_NEEDED);
    by_type(m, "attention.head_count", heads);
    put_int(m, "num_attention_heads", heads[0] ? heads[0] : heads[1]);
    if (heads[1])
        put_int(m, "num_sliding_attention_heads", heads[1]);
    put_experts(m, "n_routed_experts");
    check_sigmoid(m, false);
    put_mlp_types(m);
    put_int(m, "share_expert_dim",
            meta_int(m, "expert_shared_feed_forward_length", META_NEEDED, META_MAX));
    put_real(m, "moe_router_scaling_factor", meta_real(m, "expert_weights_scale", 1));
    put_limits(m, "swiglu_limits", "swiglu_clamp_exp");
    put_limits(m, "swiglu_limits_shared", "swiglu_clamp_shexp");
    double theta = meta_real(m, "rope.freq_base", 10000);
    double part = meta_partial(m, "rope.dimension_count", dim, 1);
    const double share[] = {part / 2, meta_partial(m, "rope.dimension_count_swa", dim, part)};
    meta_unscaled(m, false);
    meta_ropes(m, meta_llama3(m, theta, 32), 10000, 10000, share);
}

/* ---- drafters ---- */

/* The captured states: entry i is the state that enters that layer. */
static void put_captures(struct gguf_meta *m, const char *out)
{
    const char *key = meta_either(m, "target_layers", "extract_layers"); /* the older one */
    size_t n = 0;
    FREED(free_at) int64_t *v = meta_ints(m, key, INT32_MAX, &n);
    if (m->ok && !n)
        meta_refuse(m, key, "is missing: the draft does not say which states of its target it "
                            "reads");
    PUT_LIST(m, out, i, n, json_integer(v[i]));
    int64_t hidden = meta_int(m, "target_hidden_size", 0, META_MAX);
    if (hidden)
        put_int(m, "target_hidden_size", hidden);
}

static void config_eagle3(struct gguf_meta *m)
{
    put_block(m, "eagle3");
    put_captures(m, "eagle_aux_hidden_state_layer_ids");
    put_bool(m, "norm_before_residual", meta_bool(m, "norm_before_residual", false));
    put_bool(m, "norm_before_fc", meta_bool(m, "norm_before_fc", false));
}

static void config_dflash(struct gguf_meta *m)
{
    int64_t mask = meta_int(m, "mask_token_id", -1, INT32_MAX);
    put_block(m, "dflash");
    put_captures(m, "aux_hidden_state_layer_ids");
    put_int(m, "block_size", meta_int(m, "block_size", 16, 1 << 16));
    if (m->ok && mask < 0)
        m->ok = gguf_int(m->g, "tokenizer.ggml.mask_token_id", 0, INT32_MAX, &mask, m->e);
    if (mask >= 0)
        put_int(m, "mask_token_id", mask);
    if (meta_int(m, "attention.sliding_window", 0, INT32_MAX))
        meta_windows(m, 1, false, META_NEEDED);
    put_positive(m, "final_logit_softcapping", "final_logit_softcapping");
    put_multiplier(m, "logit_scale", "logit_scale", 1);
}

/* ---- names of tensors ---- */

static const struct gguf_name gptoss_names[] = {
    {"attn_sinks.weight", "self_attn.sinks"},
    {"attn_sinks", "self_attn.sinks"}, /* ollama's names */
    {"attn_out.weight", "self_attn.o_proj.weight"},
    {"attn_out.bias", "self_attn.o_proj.bias"},
    {"ffn_gate_inp.weight", "mlp.router.weight"},
    {"ffn_gate_inp.bias", "mlp.router.bias"},
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
    {0},
};
static const struct gguf_name qwen3moe_names[] = {{"ffn_gate_inp.weight", "mlp.gate.weight"}, {0}};
static const struct gguf_name gemma4_names[] = {
    {"ffn_gate_inp.weight", "router.proj.weight"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"ffn_down_exps.weight", "experts.down_proj"},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj"},
    {"layer_output_scale.weight", "layer_scalar"},
    {0},
};
static const struct gguf_name phi3_names[] = {
    {"attn_qkv.weight", "self_attn.qkv_proj.weight"},
    {"ffn_up.weight", "mlp.gate_up_proj.weight"},
    {"rope_factors_long.weight", NULL},
    {"rope_factors_short.weight", NULL},
    {0},
};
static const struct gguf_name afmoe_names[] = {
    {"attn_gate.weight", "self_attn.gate_proj.weight"},
    {"ffn_norm.weight", "pre_mlp_layernorm.weight"},
    {"post_ffw_norm.weight", "post_mlp_layernorm.weight"},
    {"ffn_gate_inp.weight", "mlp.router.gate.weight"},
    {"exp_probs_b.bias", "mlp.expert_bias"},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
    {0},
};
static const struct gguf_name laguna_names[] = {
    {"attn_gate.weight", "self_attn.g_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"exp_probs_b.bias", "mlp.experts.e_score_correction_bias"},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {0},
};
static const struct gguf_name granite_names[] = {
    {"attn_sinks.weight", "self_attn.sinks"},
    {"ffn_gate_inp.weight", "block_sparse_moe.router.weight"},
    {"ffn_gate_up_exps.weight", "block_sparse_moe.experts.gate_up_proj"},
    {"ffn_down_exps.weight", "block_sparse_moe.experts.down_proj"},
    {"ffn_up_shexp.weight", "shared_mlp.input_linear.weight"},
    {"ffn_down_shexp.weight", "shared_mlp.output_linear.weight"},
    {0},
};
static const struct gguf_name muse_names[] = {
    {"attn_gate.weight", "self_attn.gate_proj.weight"},
    {"attn_q_norm.weight", NULL},
    {"attn_k_norm.weight", NULL},
    {0},
};
static const struct gguf_name mimo2_names[] = {
    {"attn_sinks.weight", "self_attn.attention_sink_bias"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {0},
};
static const struct gguf_name step35_names[] = {
    {"attn_gate.weight", "self_attn.g_proj.weight"},
    {"ffn_gate_inp.weight", "moe.gate.weight"},
    {"exp_probs_b.bias", "moe.router_bias"},
    {"ffn_gate_exps.weight", "moe.gate_proj.weight"},
    {"ffn_up_exps.weight", "moe.up_proj.weight"},
    {"ffn_down_exps.weight", "moe.down_proj.weight"},
    {"ffn_gate_shexp.weight", "share_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "share_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "share_expert.down_proj.weight"},
    {0},
};

/* The ids of d2t are the target's, not offsets. */
static const struct gguf_name eagle3_names[] = {
    {"attn_norm_2.weight", "hidden_norm.weight"},
    {"enc.output_norm.weight", "input_norm.weight"},
    {"d2t", "d2t_ids"},
    {0},
};
static const struct gguf_name dflash_names[] = {
    {"enc.output_norm.weight", "hidden_norm.weight"},
    {"d2t", "d2t_ids"},
    {0},
};

static const struct gguf_arch archs[] = {
    {.name = "llama", .paired = true, .config = config_llama},
    {.name = "gemma2", .plus_1 = true, .sandwich = true, .config = config_gemma2},
    {.name = "gemma3", .plus_1 = true, .sandwich = true, .eps = 1e-6, .config = config_gemma3},
    {.name = "gemma4", .sandwich = true, .names = gemma4_names, .config = config_gemma4},
    {.name = "gpt-oss", .experts = EXPERTS_GPT_OSS, .names = gptoss_names,
     .config = config_gptoss},
    {.name = "gptoss", .experts = EXPERTS_GPT_OSS, .yarn = true, .names = gptoss_names,
     .config = config_gptoss}, /* ollama's name */
    {.name = "olmo2", .config = config_olmo},
    {.name = "olmo3", .config = config_olmo}, /* ollama's name */
    {.name = "qwen2", .config = config_qwen2},
    {.name = "qwen3", .config = config_qwen3},
    {.name = "qwen3moe", .experts = EXPERTS_SINGLE, .names = qwen3moe_names,
     .config = config_qwen3moe},
    {.name = "smollm3", .paired = true, .config = config_smollm3},
    {.name = "mistral3", .paired = true, .config = config_mistral3},
    {.name = "exaone4", .config = config_exaone4},
    {.name = "cohere2", .layer_norm = true, .config = config_cohere2},
    {.name = "phi3", .names = phi3_names, .config = config_phi3},
    {.name = "afmoe", .experts = EXPERTS_SINGLE, .names = afmoe_names, .config = config_afmoe},
    {.name = "laguna", .by_layer = true, .experts = EXPERTS_SINGLE, .names = laguna_names,
     .config = config_laguna},
    {.name = "mellum", .experts = EXPERTS_SINGLE, .names = qwen3moe_names,
     .config = config_mellum},
    {.name = "granite_swa", .paired = true, .names = granite_names,
     .config = config_granite_swa},
    {.name = "muse-glimmer", .paired = true, .plus_1 = true, .last_norm_plain = true,
     .sandwich = true, .names = muse_names, .config = config_muse},
    {.name = "mimo2", .experts = EXPERTS_SINGLE, .names = mimo2_names, .config = config_mimo2},
    {.name = "step35", .plus_1 = true, .by_layer = true, .names = step35_names,
     .config = config_step35},
    {.name = "eagle3", .draft = true, .paired = true, .names = eagle3_names,
     .config = config_eagle3},
    {.name = "dflash", .draft = true, .names = dflash_names, .config = config_dflash},
};

enum { N_ARCHS = LEN(archs) };

const struct gguf_arch *gguf_arch(const struct gguf *g, struct err *e)
{
    static const char *const key = "general.architecture";
    struct gguf_text t = {NULL, 0};
    FREED(buf_free) struct buf known = {0};
    if (!gguf_string(g, key, &t, e))
        return NULL;
    for (int i = 0; t.p && i < N_ARCHS; i++)
        if (strlen(archs[i].name) == t.n && !memcmp(archs[i].name, t.p, t.n))
            return &archs[i];
    for (int i = 0; i < N_ARCHS; i++)
        buf_printf(&known, "%s%s", i ? ", " : "", archs[i].name);
    FREED(free_at) char *name = xasprintf("%.*s", (int)(t.n < 60 ? t.n : 60), t.p ? t.p : "");
    if (!t.p)
        gguf_refuse(g, key, e, "is missing");
    else if (!strcmp(name, "clip") || !strcmp(name, "mmproj"))
        gguf_refuse(g, key, e,
                    "is \"%s\": these are the image and sound parts of a model (mmproj), "
                    "expected the file of its text model",
                    name);
    else if (!strcmp(name, "gemma4-assistant"))
        gguf_refuse(g, key, e,
                    "\"gemma4-assistant\" is not supported: expected the folder of the drafter");
    else if (!strcmp(name, "llama4"))
        gguf_refuse(g, key, e,
                    "\"llama4\" is not supported: its experts are transposed in a GGUF, expected "
                    "the folder of the model");
    else
        gguf_refuse(g, key, e, "\"%s\" is not supported, expected one of %s", show(name).s,
                    known.p);
    return NULL;
}
