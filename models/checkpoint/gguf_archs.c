/* gguf_archs.c - the config of each architecture of GGUF files. See gguf_meta.h.
 *
 * An absent key has the default of the architecture, which is the one of llama.cpp: a file without
 * it is normal. What the format does not store is what the published models have: attention scales
 * of gemma, YaRN's `truncate` of gpt-oss, layers without rope of smollm3.
 */
#include "models/checkpoint/gguf_meta.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
void gguf_config_llama(struct gguf_meta *m)
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
void gguf_config_qwen2(struct gguf_meta *m)
{
    put_string(m, "model_type", "qwen2");
    meta_heads(m);
    meta_dense(m);
    meta_rope(m, true);
}

void gguf_config_qwen3(struct gguf_meta *m)
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
    json_t *types = json_array();
    for (int i = 0; m->ok && i < m->layers; i++)
        json_array_append_new(types, json_string(has_experts(m, i) ? "sparse" : "dense"));
    json_object_set_new(m->out, "mlp_layer_types", types);
}

/* Experts are chosen by the sigmoids of the router's logits, and a token's weights add up to 1. */
static void check_sigmoid(struct gguf_meta *m)
{
    enum { SIGMOID = 2 };
    int64_t func = meta_int(m, "expert_gating_func", SIGMOID, 1 << 16);
    if (func != SIGMOID && func != 0)
        meta_refuse(m, "expert_gating_func", "is %lld, expected %d: sigmoid", (long long)func,
                    SIGMOID);
    if (!meta_bool(m, "expert_weights_norm", true))
        meta_refuse(m, "expert_weights_norm", "is false, expected true");
}

/* Weights of experts always add up to 1. */
void gguf_config_qwen3moe(struct gguf_meta *m)
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
void gguf_config_smollm3(struct gguf_meta *m)
{
    put_block(m, "smollm3");
}

/* YaRN whose temperature is 1, and a factor of queries far into the context. */
void gguf_config_mistral3(struct gguf_meta *m)
{
    put_string(m, "model_type", "ministral3");
    meta_heads(m);
    meta_dense(m);
    double theta = meta_real(m, "rope.freq_base", 10000);
    double log_mul = meta_real(m, "rope.scaling.yarn_log_multiplier", 0);
    double temper = meta_real(m, "attention.temperature_scale", 0);
    json_t *s = meta_scaling(m, true);
    if (!s)
        s = json_pack("{s:s}", "rope_type", "default");
    json_object_set_new(s, "rope_theta", json_real(theta));
    if (log_mul != 0) {
        json_object_set_new(s, "mscale", json_real(log_mul));
        json_object_set_new(s, "mscale_all_dim", json_real(log_mul));
    }
    if (temper != 0)
        json_object_set_new(s, "llama_4_scaling_beta", json_real(temper));
    json_object_set_new(m->out, "rope_parameters", s);
}

/* The model of 64 layers has windows, whose full layers have no rope; the one of 30 has none. */
void gguf_config_exaone4(struct gguf_meta *m)
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

void gguf_config_gemma2(struct gguf_meta *m)
{
    put_gemma(m, "gemma2", 46);
    meta_windows(m, 2, false, 4096);
    meta_rope(m, true);
    put_real(m, "attn_logit_softcapping", meta_real(m, "attn_logit_softcapping", 50));
    put_real(m, "final_logit_softcapping", meta_real(m, "final_logit_softcapping", 30));
}

void gguf_config_gemma3(struct gguf_meta *m)
{
    put_gemma(m, "gemma3_text", 62);
    meta_windows(m, 6, false, META_NEEDED);
    meta_rope(m, true);
    put_real(m, "rope_local_base_freq", meta_real(m, "rope.freq_base_swa", 10000));
    double cap = meta_real(m, "final_logit_softcapping", 0);
    if (cap > 0)
        put_real(m, "final_logit_softcapping", cap);
}

void gguf_config_gptoss(struct gguf_meta *m)
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
    json_object_set_new(m->out, "quantization_config", json_pack("{s:s}", "quant_method", "mxfp4"));
}

/* OLMo 2 and, where there is a window, OLMo 3. */
void gguf_config_olmo(struct gguf_meta *m)
{
    if (!meta_int(m, "attention.sliding_window", 0, INT32_MAX)) {
        put_block(m, "olmo2");
        return;
    }
    put_string(m, "model_type", "olmo3");
    meta_heads(m);
    meta_dense(m);
    meta_windows(m, 4, false, 0);
    double theta = meta_real(m, "rope.freq_base", 10000);
    meta_ropes(m, meta_scaling(m, true), theta, meta_real(m, "rope.freq_base_swa", theta), NULL);
}

/* The share of a head that full layers rotate: pairs whose factor is 1, the others never turn. */
static double gemma4_partial(struct gguf_meta *m, int64_t dim)
{
    const char *name;
    int64_t n = dim / 2, ones = 0;
    float *f = meta_factors(m, n, &name);
    while (f && ones < n && f[ones] == 1)
        ones++;
    for (int64_t i = ones; f && i < n; i++)
        if (!(f[i] >= 1e20f) && m->ok)
            m->ok = err_file(
                m->e, gguf_path(m->g, 0),
                "the factors in tensor %s are neither 1 nor 1e30, as those of a partial rope are",
                show(name).s);
    bool all = !f || !n;
    free(f);
    return all ? 1 : (double)ones / (double)n;
}

/* Layer i < layers - shared has `wide`, or what all have; the others twice as much. */
static void put_gemma4_mlp(struct gguf_meta *m, int64_t shared)
{
    const char *const key = "feed_forward_length";
    int64_t *v = meta_layers(m, key, META_NEEDED, META_MAX), first = v[0];
    bool wide = m->ok && shared && v[m->layers - 1] == 2 * first;
    for (int i = 0; m->ok && i < m->layers; i++)
        if (v[i] != (wide && i >= m->layers - shared ? 2 * first : first))
            meta_refuse(m, key,
                   "is %lld for layer %d, expected %lld, or twice that in the last %lld layers",
                   (long long)v[i], i, (long long)first, (long long)shared);
    free(v);
    put_int(m, "intermediate_size", first);
    put_int(m, "num_kv_shared_layers", shared);
    put_bool(m, "use_double_wide_mlp", wide);
}

/* Heads of full layers are wider and may be fewer. */
static void put_gemma4_heads(struct gguf_meta *m)
{
    const char *const key = "attention.head_count_kv";
    int64_t dim = meta_int(m, "attention.key_length", META_NEEDED, 1 << 16);
    int64_t swa = meta_int(m, "attention.key_length_swa", dim, 1 << 16);
    if (meta_int(m, "attention.value_length", dim, 1 << 16) != dim)
        meta_refuse(m, "attention.value_length", "is not attention.key_length");
    if (meta_int(m, "attention.value_length_swa", swa, 1 << 16) != swa)
        meta_refuse(m, "attention.value_length_swa", "is not attention.key_length_swa");
    if (meta_int(m, "rope.dimension_count", dim, 1 << 16) != dim)
        meta_refuse(m, "rope.dimension_count", "is not attention.key_length");
    if (meta_int(m, "rope.dimension_count_swa", swa, 1 << 16) != swa)
        meta_refuse(m, "rope.dimension_count_swa", "is not attention.key_length_swa");
    int64_t *kv = meta_layers(m, key, m->heads, 1 << 16), of[2] = {0, 0};
    const json_t *types = json_object_get(m->out, "layer_types");
    bool k_is_v = false;
    for (int i = 0; m->ok && i < m->layers; i++) {
        char v[40];
        bool slides =
            !strcmp(json_string_value(json_array_get(types, (size_t)i)), "sliding_attention");
        snprintf(v, sizeof v, "blk.%d.attn_k.weight", i);
        bool own = gguf_find(m->g, v);
        snprintf(v, sizeof v, "blk.%d.attn_v.weight", i);
        k_is_v |= !slides && own && !gguf_find(m->g, v);
        if (of[slides] && of[slides] != kv[i])
            meta_refuse(m, key, "is %lld for layer %d and %lld for others of its type",
                        (long long)kv[i],
                   i, (long long)of[slides]);
        of[slides] = kv[i];
    }
    free(kv);
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

void gguf_config_gemma4(struct gguf_meta *m)
{
    put_string(m, "model_type", "gemma4_text");
    meta_windows(m, 6, false, META_NEEDED);
    put_gemma4_heads(m);
    put_gemma4_mlp(m, meta_int(m, "attention.shared_kv_layers", 0, m->layers));
    int64_t dim = put_before(m, "global_head_dim");
    double theta = meta_real(m, "rope.freq_base", 1e6), partial = gemma4_partial(m, dim);
    json_t *rope =
        json_pack("{s:s, s:f}", "rope_type", "proportional", "partial_rotary_factor", partial);
    meta_ropes(m, rope, theta, meta_real(m, "rope.freq_base_swa", 10000), NULL);
    put_int(m, "hidden_size_per_layer_input",
            meta_int(m, "embedding_length_per_layer_input", 0, META_MAX));
    put_int(m, "vocab_size_per_layer_input", meta_rows(m, "per_layer_token_embd.weight"));
    double cap = meta_real(m, "final_logit_softcapping", 0);
    if (cap > 0)
        put_real(m, "final_logit_softcapping", cap);
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
void gguf_config_cohere2(struct gguf_meta *m)
{
    put_block(m, "cohere2");
    meta_windows(m, 4, false, META_NEEDED);
    put_real(m, "logit_scale", meta_real(m, "logit_scale", NAN));
}

/* The factors that a rope of two lists divides frequencies by. */
static json_t *factors_of(struct gguf_meta *m, const char *name, int64_t n)
{
    const struct gguf_tensor *t = gguf_find(m->g, name);
    float *f = t && m->ok ? meta_floats(m, t, n) : NULL;
    json_t *all = f ? json_array() : NULL;
    for (int64_t i = 0; f && i < n; i++)
        json_array_append_new(all, json_real(f[i]));
    free(f);
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
    json_t *far = factors_of(m, "rope_factors_long.weight", n);
    json_t *near = factors_of(m, "rope_factors_short.weight", n);
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
    json_decref(far);
    json_decref(near);
    json_object_set_new(m->out, "rope_parameters", rope);
}

/* A window of 0 is none; older files of the models of 4096 tokens do not have the key. */
void gguf_config_phi3(struct gguf_meta *m)
{
    put_string(m, "model_type", "phi3");
    int64_t value = meta_some_heads(m), dim = put_before(m, "head_dim");
    if (value != dim)
        meta_refuse(m, "attention.value_length", "is not attention.key_length %lld",
                    (long long)dim);
    put_int(m, "num_key_value_heads", meta_same(m, "attention.head_count_kv", m->heads, 1 << 16));
    meta_dense(m);
    put_phi3_rope(m, dim);
    int64_t old = put_before(m, "max_position_embeddings") == 4096 ? 2047 : 0;
    int64_t window = meta_int(m, "attention.sliding_window", old, INT32_MAX);
    json_object_set_new(m->out, "sliding_window", window ? json_integer(window) : json_null());
}

/* The embedding is always scaled. Layers without experts come first. */
void gguf_config_afmoe(struct gguf_meta *m)
{
    put_string(m, "model_type", "afmoe");
    meta_heads(m);
    meta_rope(m, true);
    meta_windows(m, 4, false, META_NEEDED);
    put_experts(m, "num_experts");
    check_sigmoid(m);
    int dense = 0;
    while (m->ok && dense < m->layers && !has_experts(m, dense))
        dense++;
    put_int(m, "num_dense_layers", dense);
    put_int(m, "num_shared_experts", meta_int(m, "expert_shared_count", META_NEEDED, 1 << 16));
    put_real(m, "route_scale", meta_real(m, "expert_weights_scale", 1));
    put_bool(m, "mup_enabled", true);
}

/* Heads that keys and values have in all layers, whatever queries have. */
static int64_t put_kv_heads(struct gguf_meta *m)
{
    int64_t value = meta_some_heads(m), dim = put_before(m, "head_dim");
    if (value != dim)
        meta_refuse(m, "attention.value_length", "is not attention.key_length %lld",
                    (long long)dim);
    put_int(m, "num_key_value_heads", meta_same(m, "attention.head_count_kv", m->heads, 1 << 16));
    return dim;
}

/* The gate's rows say whether it is one a head or one an element. */
void gguf_config_laguna(struct gguf_meta *m)
{
    put_string(m, "model_type", "laguna");
    int64_t dim = put_kv_heads(m);
    int64_t *heads = meta_layers(m, "attention.head_count", META_NEEDED, 1 << 16);
    json_t *by_layer = json_array();
    for (int i = 0; m->ok && i < m->layers; i++)
        json_array_append_new(by_layer, json_integer(heads[i]));
    json_object_set_new(m->out, "num_attention_heads_per_layer", by_layer);
    free(heads);
    bool by_element = meta_rows(m, "blk.0.attn_gate.weight") == m->heads * dim && dim > 1;
    json_object_set_new(m->out, "gating", by_element ? json_string("per-element") : json_true());
    put_experts(m, "num_experts");
    check_sigmoid(m);
    put_mlp_types(m);
    put_int(m, "shared_expert_intermediate_size",
            meta_int(m, "expert_shared_feed_forward_length", META_NEEDED, META_MAX));
    put_real(m, "moe_routed_scaling_factor", meta_real(m, "expert_weights_scale", 1));
    double cap = meta_real(m, "router_logit_softcapping", 0), theta;
    if (cap > 0)
        put_real(m, "moe_router_logit_softcapping", cap);
    if (meta_int(m, "attention.sliding_window", 0, INT32_MAX))
        meta_windows(m, 4, true, META_NEEDED);
    theta = meta_real(m, "rope.freq_base", 10000);
    double full = meta_partial(m, "rope.dimension_count", dim, 1);
    const double share[] = {full, meta_partial(m, "rope.dimension_count_swa", dim, full)};
    meta_ropes(m, meta_scaling(m, true), theta, meta_real(m, "rope.freq_base_swa", theta), share);
}

/* Sliding layers have a rope of their own, which is never scaled. */
void gguf_config_mellum(struct gguf_meta *m)
{
    put_string(m, "model_type", "mellum");
    meta_heads(m);
    put_bool(m, "attention_bias", meta_has_bias(m));
    put_experts(m, "num_experts");
    put_mlp_types(m);
    put_bool(m, "norm_topk_prob", true);
    if (meta_int(m, "attention.sliding_window", 0, INT32_MAX))
        meta_windows(m, 4, false, META_NEEDED);
    double theta = meta_real(m, "rope.freq_base", 10000);
    meta_ropes(m, meta_scaling(m, true), theta, meta_real(m, "rope.freq_base_swa", theta), NULL);
}

/* A multiplier; one that is absent, or 0, is `dflt`. */
static void put_multiplier(struct gguf_meta *m, const char *out, const char *key, double dflt)
{
    double v = meta_real(m, key, 0);
    put_real(m, out, v != 0 ? v : dflt);
}

/* Granite with sliding layers, dense or with experts in all layers. Entries of rope_pattern that
 * are 0 are layers without rope. */
void gguf_config_granite_swa(struct gguf_meta *m)
{
    bool experts = meta_int(m, "expert_count", 0, META_MAX) > 0;
    put_string(m, "model_type", experts ? "granitemoe_swa" : "granite_swa");
    meta_heads(m);
    put_int(m, "intermediate_size", meta_same(m, "feed_forward_length", META_NEEDED, META_MAX));
    put_bool(m, "attention_bias", meta_has_bias(m));
    meta_windows(m, 4, true, META_NEEDED);
    meta_rope(m, true);
    double theta = json_number_value(json_object_get(m->out, "rope_theta"));
    int64_t *rotates = meta_layers(m, "attention.rope_pattern", 1, 1 << 16);
    json_t *thetas = json_array();
    for (int i = 0; m->ok && i < m->layers; i++)
        json_array_append_new(thetas, json_real(rotates[i] ? theta : 0));
    json_object_set_new(m->out, "layer_rope_theta", thetas);
    free(rotates);
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
        float *f = t ? meta_floats(m, t, dim) : NULL;
        if (f && !i)
            scale = f[0];
        for (int64_t k = 0; m->ok && f && k < dim; k++)
            if (f[k] != (i % 2 ? 1 : scale))
                m->ok = err_file(
                    m->e, gguf_path(m->g, t->file),
                    "tensor %s has %g, expected %g: one factor for all queries, and 1 for all keys",
                    name, (double)f[k], i % 2 ? 1 : scale);
        free(f);
    }
    return scale;
}

/* Full layers have no rope. */
void gguf_config_muse(struct gguf_meta *m)
{
    put_block(m, "muse_glimmer_text");
    meta_windows(m, 4, false, META_NEEDED);
    double theta = json_number_value(json_object_get(m->out, "rope_theta"));
    json_t *thetas = json_array();
    for (int i = 0; m->ok && i < m->layers; i++)
        json_array_append_new(thetas, json_real(meta_slides(m, i) ? theta : 0));
    json_object_set_new(m->out, "layer_rope_theta", thetas);
    put_real(m, "qk_scale_factor", muse_query_scale(m, put_before(m, "head_dim")));
    put_real(m, "output_multiplier", meta_real(m, "logit_scale", NAN));
    double cap = meta_real(m, "final_logit_softcapping", 0);
    json_object_set_new(m->out, "final_logit_softcapping", cap > 0 ? json_real(cap) : json_null());
}

/* Of a number that full layers and sliding ones have each: [0] of full ones, [1] of sliding ones; 0
 * if there is no such layer. After meta_windows(). */
static void by_type(struct gguf_meta *m, const char *key, int64_t of[2])
{
    int64_t *v = meta_layers(m, key, m->heads, 1 << 16);
    of[0] = of[1] = 0;
    for (int i = 0; m->ok && i < m->layers; i++) {
        int slides = meta_slides(m, i);
        if (of[slides] && of[slides] != v[i])
            meta_refuse(m, key, "is %lld for layer %d and %lld for others of its type",
                        (long long)v[i], i, (long long)of[slides]);
        of[slides] = v[i];
    }
    free(v);
}

/* Sliding layers have twice the KV heads. */
void gguf_config_mimo2(struct gguf_meta *m)
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
    check_sigmoid(m);
    put_mlp_types(m);
    put_real(m, "routed_scaling_factor", meta_real(m, "expert_weights_scale", 1));
    put_real(m, "attention_value_scale", meta_real(m, "attention.value_scale", 1));
    double theta = meta_real(m, "rope.freq_base", 10000);
    double part = meta_partial(m, "rope.dimension_count", put_before(m, "head_dim"), 1);
    const double share[] = {part, part};
    meta_ropes(m, NULL, theta, meta_real(m, "rope.freq_base_swa", theta), share);
}

/* One number a layer, 0: none. */
static void put_limits(struct gguf_meta *m, const char *out, const char *key)
{
    float *v = NULL;
    size_t n = 0;
    char full[80];
    snprintf(full, sizeof full, "%s.%s", m->a->name, key);
    if (!meta_has(m, key) || !m->ok)
        return;
    m->ok = gguf_reals(m->g, full, &v, &n, m->e);
    if (m->ok && n != (size_t)m->blocks)
        meta_refuse(m, key, "has %zu entries, expected %d, one a layer", n, m->blocks);
    json_t *all = json_array();
    for (int i = 0; m->ok && i < m->layers; i++)
        json_array_append_new(all, json_real(v[i]));
    json_object_set_new(m->out, out, all);
    free(v);
}

/* Full layers rotate half of what sliding ones do. */
void gguf_config_step35(struct gguf_meta *m)
{
    int64_t heads[2];
    put_string(m, "model_type", "step3p5");
    int64_t dim = put_kv_heads(m);
    meta_windows(m, 1, false, META_NEEDED);
    by_type(m, "attention.head_count", heads);
    put_int(m, "num_attention_heads", heads[0] ? heads[0] : heads[1]);
    if (heads[1])
        put_int(m, "num_sliding_attention_heads", heads[1]);
    put_experts(m, "n_routed_experts");
    check_sigmoid(m);
    put_mlp_types(m);
    put_int(m, "share_expert_dim",
            meta_int(m, "expert_shared_feed_forward_length", META_NEEDED, META_MAX));
    put_real(m, "moe_router_scaling_factor", meta_real(m, "expert_weights_scale", 1));
    put_limits(m, "swiglu_limits", "swiglu_clamp_exp");
    put_limits(m, "swiglu_limits_shared", "swiglu_clamp_shexp");
    double theta = meta_real(m, "rope.freq_base", 10000);
    double part = meta_partial(m, "rope.dimension_count", dim, 1);
    const double share[] = {part / 2, meta_partial(m, "rope.dimension_count_swa", dim, part)};
    meta_ropes(m, meta_llama3(m, theta, 32), theta, meta_real(m, "rope.freq_base_swa", theta),
               share);
}

/* ---- drafters ---- */

/* The captured states: entry i is the state that enters that layer. */
static void put_captures(struct gguf_meta *m, const char *out)
{
    static const char *const keys[] = {"target_layers", "extract_layers"}; /* the older one */
    const char *key = keys[!meta_has(m, keys[0]) && meta_has(m, keys[1])];
    int64_t *v = NULL;
    size_t n = 0;
    char full[80];
    snprintf(full, sizeof full, "%s.%s", m->a->name, key);
    if (m->ok)
        m->ok = gguf_ints(m->g, full, 0, INT32_MAX, &v, &n, m->e);
    if (m->ok && !n)
        meta_refuse(m, key, "is missing: the draft does not say which states of its target it "
                            "reads");
    json_t *all = json_array();
    for (size_t i = 0; m->ok && i < n; i++)
        json_array_append_new(all, json_integer(v[i]));
    json_object_set_new(m->out, out, all);
    free(v);
    int64_t hidden = meta_int(m, "target_hidden_size", 0, META_MAX);
    if (hidden)
        put_int(m, "target_hidden_size", hidden);
}

void gguf_config_eagle3(struct gguf_meta *m)
{
    put_block(m, "eagle3");
    put_captures(m, "eagle_aux_hidden_state_layer_ids");
    put_bool(m, "norm_before_residual", meta_bool(m, "norm_before_residual", false));
    put_bool(m, "norm_before_fc", meta_bool(m, "norm_before_fc", false));
}

void gguf_config_dflash(struct gguf_meta *m)
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
    double cap = meta_real(m, "final_logit_softcapping", 0);
    if (cap > 0)
        put_real(m, "final_logit_softcapping", cap);
    put_multiplier(m, "logit_scale", "logit_scale", 1);
}
