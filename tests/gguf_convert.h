/* gguf_convert.h - turns a checkpoint folder of the tests into a GGUF file as llama.cpp's converter
 * does, and into the folder that the file must equal: the same weights, unpacked and rounded once
 * to bf16.
 *
 * Packed weights are random codes with small scales: what is tested is where they go.
 */
#pragma once

#include "tests/ckpt.h"
#include "tests/gguf_kit.h"

#include "kernels/packed.h"

#include <math.h>

/* How a folder becomes a file. */
struct conversion {
    const char *arch;  /* general.architecture */
    const char *trunk; /* prefix of tensor names in the folder, as "model." */
    int type; /* of matrices whose rows are whole blocks; others are BF16. -1: every type in turn;
                 -2: NVFP4 and Q4_0 */
    bool paired; /* rows of q and k are permuted */
    bool halves; /* gate and up of experts in one tensor, where the folder has them so */
    bool fused;  /* q, k and v in one tensor */
    bool window; /* of an architecture whose published name has windows, too */
    bool images; /* parts of an image model in the file, too */
    bool ollama; /* keys and tensors as ollama's converter names them, or leaves them out */
    int further; /* layers behind the model's that predict further tokens */
    const int *captures; /* a drafter's boundaries, -1 behind them */
    const struct gw *more; /* further keys; or NULL */
};

static inline json_int_t gc_int(const struct ck *c, const char *key)
{
    return json_integer_value(json_object_get(c->config, key));
}

static inline double gc_real(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static inline bool gc_is(const struct conversion *how, const char *const *archs)
{
    for (; *archs; archs++)
        if (!strcmp(how->arch, *archs))
            return true;
    return false;
}

#define GC_IS(how, ...) gc_is(how, (const char *const[]){__VA_ARGS__, NULL})

/* Architectures whose folders have a matrix of each expert. */
#define GC_SINGLE(how) GC_IS(how, "qwen3moe", "afmoe", "laguna", "mellum", "mimo2")

/* ---- metadata ---- */

struct gc {
    struct ck *c; /* becomes the folder that the file must equal */
    const struct conversion *how;
    struct gw w;
    uint64_t seed;
    int next_type;
    struct buf outer; /* numbers that multiply the matrices in NVFP4 which gc_retype() made */
    bool qkv;         /* q, k and v, which are one matrix: the numbers of all are the first one */
};

static inline const char *gc_key(const struct gc *g, const char *key)
{
    static char full[2][96];
    static int turn;
    turn ^= 1;
    snprintf(full[turn], sizeof full[turn], "%s.%s", g->how->arch, key);
    return full[turn];
}

static inline bool gc_slides(const struct gc *g, int layer)
{
    const json_t *types = json_object_get(g->c->config, "layer_types");
    const char *t = json_string_value(json_array_get(types, (size_t)layer));
    if (t)
        return !strcmp(t, "sliding_attention");
    json_int_t p = gc_int(g->c, "sliding_window_pattern");
    return p && (layer + 1) % p;
}

static inline void gc_factors(struct gc *g, const float *f, size_t n)
{
    gw_tensor(&g->w, "rope_freqs.weight", GGUF_F32, 1, (const int64_t[]){(int64_t)n}, f, 4 * n);
}

/* Factors of a llama-3 rope as llama.cpp's converter computes them. */
static inline void gc_llama3(struct gc *g, const json_t *rope)
{
    int dim = (int)gc_int(g->c, "head_dim");
    double factor = gc_real(rope, "factor"), low = gc_real(rope, "low_freq_factor");
    double high = gc_real(rope, "high_freq_factor"),
           old = gc_real(rope, "original_max_position_embeddings");
    float f[512];
    for (int i = 0; i < dim / 2; i++) {
        double wave = 2 * M_PI * pow(gc_real(rope, "rope_theta"), 2.0 * i / dim);
        double smooth = (old / wave - low) / (high - low);
        f[i] = (float)(wave < old / high  ? 1
                       : wave > old / low ? factor
                                          : 1 / ((1 - smooth) / factor + smooth));
    }
    gc_factors(g, f, (size_t)dim / 2);
}

static inline void gc_yarn(struct gc *g, const json_t *rope)
{
    if (!g->how->ollama)
        gw_string(&g->w, gc_key(g, "rope.scaling.type"), "yarn");
    gw_f32(&g->w, gc_key(g, "rope.scaling.factor"), gc_real(rope, "factor"));
    gw_u32(&g->w, gc_key(g, "rope.scaling.original_context_length"),
           json_integer_value(json_object_get(rope, "original_max_position_embeddings")));
    gw_f32(&g->w, gc_key(g, "rope.scaling.yarn_beta_fast"), gc_real(rope, "beta_fast"));
    gw_f32(&g->w, gc_key(g, "rope.scaling.yarn_beta_slow"), gc_real(rope, "beta_slow"));
    if (gc_real(rope, "mscale_all_dim") != 0)
        gw_f32(&g->w, gc_key(g, "rope.scaling.yarn_log_multiplier"),
               gc_real(rope, "mscale_all_dim"));
    if (gc_real(rope, "llama_4_scaling_beta") != 0)
        gw_f32(&g->w, gc_key(g, "attention.temperature_scale"),
               gc_real(rope, "llama_4_scaling_beta"));
}

/* The two lists of a rope for long contexts. */
static inline void gc_long(struct gc *g, const json_t *rope)
{
    static const char *const list[2][2] = {{"long_factor", "rope_factors_long.weight"},
                                           {"short_factor", "rope_factors_short.weight"}};
    double old = gc_real(g->c->config, "original_max_position_embeddings");
    double scale = gc_real(g->c->config, "max_position_embeddings") / old;
    for (int k = 0; k < 2; k++) {
        const json_t *v = json_object_get(rope, list[k][0]);
        float f[64];
        size_t n = json_array_size(v);
        for (size_t i = 0; i < n; i++)
            f[i] = (float)json_number_value(json_array_get(v, i));
        gw_tensor(&g->w, list[k][1], GGUF_F32, 1, (const int64_t[]){(int64_t)n}, f, 4 * n);
    }
    gw_f32(&g->w, gc_key(g, "rope.scaling.attn_factor"),
           scale > 1 ? sqrt(1 + log(scale) / log(old)) : 1);
}

static inline void gc_rope(struct gc *g)
{
    const json_t *c = g->c->config, *p = json_object_get(c, "rope_parameters");
    const json_t *all =
        json_object_get(p, "full_attention") ? json_object_get(p, "full_attention") : p;
    const json_t *swa = json_object_get(p, "sliding_attention");
    const json_t *old = json_object_get(c, "rope_scaling");
    const json_t *scaled = json_is_object(old) ? old : all;
    const char *type = json_string_value(json_object_get(scaled, "rope_type"));
    const bool gemma3 = g->how->ollama && GC_IS(g->how, "gemma3");
    if (gemma3 && g->how->images) /* whose files of image models leave ropes out */
        return;
    gw_f32(&g->w, gc_key(g, gemma3 ? "rope.global.freq_base" : "rope.freq_base"),
           gc_real(all ? all : c, "rope_theta"));
    if (gemma3)
        gw_f32(&g->w, gc_key(g, "rope.local.freq_base"), gc_real(c, "rope_local_base_freq"));
    else if (swa && strncmp(g->how->arch, "olmo", 4) != 0)
        gw_f32(&g->w, gc_key(g, "rope.freq_base_swa"), gc_real(swa, "rope_theta"));
    else if (json_object_get(c, "rope_local_base_freq"))
        gw_f32(&g->w, gc_key(g, "rope.freq_base_swa"), gc_real(c, "rope_local_base_freq"));
    if (type && !strcmp(type, "llama3"))
        gc_llama3(g, scaled);
    if (type && !strcmp(type, "yarn"))
        gc_yarn(g, scaled);
    if (type && !strcmp(type, "longrope"))
        gc_long(g, scaled);
}

/* How many dimensions of a head are rotated. */
static inline void gc_partial(struct gc *g, const char *key, const json_t *rope)
{
    double dim = gc_real(g->c->config, "head_dim");
    if (dim == 0)
        dim = gc_real(g->c->config, "hidden_size") / gc_real(g->c->config, "num_attention_heads");
    if (json_object_get(rope, "partial_rotary_factor"))
        gw_u32(&g->w, gc_key(g, key), (int)(dim * gc_real(rope, "partial_rotary_factor")));
}

static inline void gc_gemma4(struct gc *g, int layers)
{
    const json_t *c = g->c->config, *by = json_object_get(c, "per_layer_config"), *one;
    json_int_t dim = gc_int(g->c, "global_head_dim"), kv = gc_int(g->c, "num_key_value_heads");
    json_int_t global = gc_int(g->c, "num_global_key_value_heads");
    int64_t heads[64], wide[64];
    int shared = (int)gc_int(g->c, "num_kv_shared_layers");
    bool twice = json_is_true(json_object_get(c, "use_double_wide_mlp"));
    for (int i = 0; i < layers; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        heads[i] = gc_slides(g, i) || !global ? kv : global;
        if ((one = json_object_get(by, name)) && json_object_get(one, "num_key_value_heads"))
            heads[i] = json_integer_value(json_object_get(one, "num_key_value_heads"));
        if (one)
            dim = json_integer_value(json_object_get(one, "head_dim"));
        wide[i] = gc_int(g->c, "intermediate_size") * (twice && i >= layers - shared ? 2 : 1);
    }
    gw_ints(&g->w, gc_key(g, "attention.head_count_kv"), GW_I32, heads, (size_t)layers);
    gw_ints(&g->w, gc_key(g, "feed_forward_length"), GW_I32, wide, (size_t)layers);
    gw_u32(&g->w, gc_key(g, "attention.key_length"), dim);
    gw_u32(&g->w, gc_key(g, "attention.value_length"), dim);
    gw_u32(&g->w, gc_key(g, "attention.key_length_swa"), gc_int(g->c, "head_dim"));
    gw_u32(&g->w, gc_key(g, "attention.value_length_swa"), gc_int(g->c, "head_dim"));
    gw_u32(&g->w, gc_key(g, "rope.dimension_count"), dim);
    gw_u32(&g->w, gc_key(g, "rope.dimension_count_swa"), gc_int(g->c, "head_dim"));
    gw_u32(&g->w, gc_key(g, "attention.shared_kv_layers"), shared);
    gw_u32(&g->w, gc_key(g, "embedding_length_per_layer_input"),
           gc_int(g->c, "hidden_size_per_layer_input"));
    if (json_is_true(json_object_get(c, "enable_moe_block"))) {
        gw_u32(&g->w, gc_key(g, "expert_count"), gc_int(g->c, "num_experts"));
        gw_u32(&g->w, gc_key(g, "expert_used_count"), gc_int(g->c, "top_k_experts"));
        gw_u32(&g->w, gc_key(g, "expert_feed_forward_length"),
               gc_int(g->c, "moe_intermediate_size"));
    }
    float f[512];
    for (int i = 0; i < dim / 2; i++)
        f[i] = i < (int)((double)dim / 2 * 0.25) ? 1 : 1e30f;
    gc_factors(g, f, (size_t)dim / 2);
}

static inline void gc_windows(struct gc *g, int layers)
{
    int64_t slides[64];
    for (int i = 0; i < layers + g->how->further; i++)
        slides[i] = i >= layers || gc_slides(g, i);
    gw_u32(&g->w, gc_key(g, "attention.sliding_window"), gc_int(g->c, "sliding_window"));
    if (gc_int(g->c, "sliding_window_pattern") || json_object_get(g->c->config, "layer_types"))
        gw_ints(&g->w, gc_key(g, "attention.sliding_window_pattern"), GW_BOOL, slides,
                (size_t)(layers + g->how->further));
}

static inline void gc_real_key(struct gc *g, const char *key, const char *from)
{
    if (json_object_get(g->c->config, from))
        gw_f32(&g->w, gc_key(g, key), gc_real(g->c->config, from));
}

/* The first key of a list that the config has. */
static inline json_int_t gc_first(const struct gc *g, const char *const *keys)
{
    while (keys[1] && !json_object_get(g->c->config, *keys))
        keys++;
    return gc_int(g->c, *keys);
}

#define GC_FIRST(g, ...) gc_first(g, (const char *const[]){__VA_ARGS__, NULL})

static inline json_int_t gc_experts(const struct gc *g)
{
    return GC_FIRST(g, "num_local_experts", "num_experts", "n_routed_experts");
}

/* A number of each layer: one of full layers, one of sliding ones, and that of sliding ones for
 * further layers. */
static inline void gc_by_type(struct gc *g, const char *key, int64_t full, int64_t sliding)
{
    int64_t v[64];
    int n = (int)gc_int(g->c, "num_hidden_layers");
    for (int i = 0; i < n + g->how->further; i++)
        v[i] = i < n && !gc_slides(g, i) ? full : sliding;
    gw_ints(&g->w, gc_key(g, key), GW_I32, v, (size_t)(n + g->how->further));
}

static inline void gc_heads(struct gc *g)
{
    json_int_t heads = gc_int(g->c, "num_attention_heads"),
        kv = gc_int(g->c, "num_key_value_heads");
    const json_t *each = json_object_get(g->c->config, "num_attention_heads_per_layer");
    int64_t v[64];
    for (size_t i = 0; i < json_array_size(each); i++)
        v[i] = json_integer_value(json_array_get(each, i));
    if (each)
        gw_ints(&g->w, gc_key(g, "attention.head_count"), GW_I32, v, json_array_size(each));
    else if (GC_IS(g->how, "step35"))
        gc_by_type(g, "attention.head_count", heads, gc_int(g->c, "num_sliding_attention_heads"));
    else
        gw_u32(&g->w, gc_key(g, "attention.head_count"), heads);
    if (GC_IS(g->how, "mimo2"))
        gc_by_type(g, "attention.head_count_kv", kv, 2 * kv);
    else if (!GC_IS(g->how, "gemma4"))
        gw_u32(&g->w, gc_key(g, "attention.head_count_kv"), kv);
}

static inline void gc_limits(struct gc *g, const char *key, const char *from)
{
    const json_t *all = json_object_get(g->c->config, from);
    size_t n = json_array_size(all);
    if (n)
        gw_array(&g->w, gc_key(g, key), GW_F32, n);
    for (size_t i = 0; i < n; i++) {
        float v = (float)json_number_value(json_array_get(all, i));
        buf_add(&g->w.keys, &v, 4);
    }
}

static inline void gc_rope_pattern(struct gc *g)
{
    const json_t *thetas = json_object_get(g->c->config, "layer_rope_theta");
    int64_t v[64];
    size_t n = json_array_size(thetas);
    for (size_t i = 0; i < n; i++)
        v[i] = json_number_value(json_array_get(thetas, i)) != 0;
    gw_ints(&g->w, gc_key(g, "attention.rope_pattern"), GW_I32, v, n);
}

static inline void gc_ones(struct gc *g, const char *name, double v, int64_t n)
{
    float f[64];
    for (int64_t i = 0; i < n; i++)
        f[i] = (float)v;
    gw_tensor(&g->w, name, GGUF_F32, 1, (const int64_t[]){n}, f, 4 * (size_t)n);
}

/* What some architectures have beside the block. */
static inline void gc_own(struct gc *g)
{
    const json_t *c = g->c->config, *p = json_object_get(c, "rope_parameters");
    const json_t *full = json_object_get(p, "full_attention");
    gc_real_key(g, "logit_scale", GC_IS(g->how, "granite_swa")    ? "logits_scaling"
                                  : GC_IS(g->how, "muse-glimmer") ? "output_multiplier"
                                                                  : "logit_scale");
    gc_real_key(g, "embedding_scale", "embedding_multiplier");
    gc_real_key(g, "residual_scale", "residual_multiplier");
    gc_real_key(g, "attention.scale", "attention_multiplier");
    gc_real_key(g, "attention.value_scale", "attention_value_scale");
    const char *const scale[] = {"route_scale", "moe_routed_scaling_factor",
                                 "moe_router_scaling_factor", "routed_scaling_factor"};
    for (int i = 0; i < 4; i++)
        gc_real_key(g, "expert_weights_scale", scale[i]);
    gc_limits(g, "swiglu_clamp_exp", "swiglu_limits");
    gc_limits(g, "swiglu_clamp_shexp", "swiglu_limits_shared");
    if (json_object_get(c, "layer_rope_theta") && GC_IS(g->how, "granite_swa"))
        gc_rope_pattern(g);
    if (GC_IS(g->how, "phi3"))
        gw_u32(&g->w, gc_key(g, "rope.scaling.original_context_length"),
               gc_int(g->c, "original_max_position_embeddings"));
    if (GC_IS(g->how, "phi3", "laguna", "mimo2"))
        gc_partial(g, "rope.dimension_count", full ? full : p);
    if (GC_IS(g->how, "laguna"))
        gc_partial(g, "rope.dimension_count_swa", json_object_get(p, "sliding_attention"));
    for (int i = 0; GC_IS(g->how, "muse-glimmer") && i < gc_int(g->c, "num_hidden_layers"); i++)
        for (int k = 0; k < 2; k++) {
            char name[48];
            snprintf(name, sizeof name, "blk.%d.attn_%c_norm.weight", i, k ? 'k' : 'q');
            gc_ones(g, name, k ? 1 : gc_real(c, "qk_scale_factor"), gc_int(g->c, "head_dim"));
        }
}

static inline void gc_draft(struct gc *g)
{
    int64_t v[8];
    size_t n = 0;
    for (; g->how->captures[n] >= 0; n++)
        v[n] = g->how->captures[n];
    gw_ints(&g->w, gc_key(g, "target_layers"), GW_I32, v, n);
    gw_u32(&g->w, gc_key(g, "vocab_size"), gc_int(g->c, "vocab_size"));
    if (GC_IS(g->how, "eagle3")) {
        const json_t *c = g->c->config;
        gw_bool(&g->w, gc_key(g, "norm_before_residual"),
                json_is_true(json_object_get(c, "norm_before_residual")));
        gw_bool(&g->w, gc_key(g, "norm_before_fc"),
                json_is_true(json_object_get(c, "norm_before_fc")));
        return;
    }
    gw_u32(&g->w, gc_key(g, "block_size"), gc_int(g->c, "block_size"));
    gw_u32(&g->w, "tokenizer.ggml.mask_token_id", gc_int(g->c, "mask_token_id"));
}

/* Dense layers before the first one with experts. */
static inline int gc_leading_dense(const struct gc *g)
{
    const json_t *types = json_object_get(g->c->config, "mlp_layer_types");
    int n = (int)gc_int(g->c, "num_dense_layers");
    const char *t;
    while ((t = json_string_value(json_array_get(types, (size_t)n))) && !strcmp(t, "dense"))
        n++;
    return n;
}

static inline void gc_moe(struct gc *g)
{
    bool within = GC_IS(g->how, "gpt-oss", "gptoss", "granite_swa"); /* one width */
    gw_u32(&g->w, gc_key(g, "expert_count"), gc_experts(g));
    gw_u32(&g->w, gc_key(g, "expert_used_count"), gc_int(g->c, "num_experts_per_tok"));
    if (!GC_IS(g->how, "granite_swa") && !g->how->ollama)
        gw_u32(&g->w, gc_key(g, "expert_feed_forward_length"),
               gc_int(g->c, within ? "intermediate_size" : "moe_intermediate_size"));
    json_int_t shared = GC_FIRST(g, "shared_expert_intermediate_size", "share_expert_dim",
                                 "shared_intermediate_size");
    if (shared)
        gw_u32(&g->w, gc_key(g, "expert_shared_feed_forward_length"), shared);
    if (GC_IS(g->how, "afmoe", "laguna", "mimo2", "step35")) {
        gw_u32(&g->w, gc_key(g, "leading_dense_block_count"), gc_leading_dense(g));
        gw_bool(&g->w, gc_key(g, "expert_weights_norm"), true);
        gw_u32(&g->w, gc_key(g, "expert_gating_func"), 2);
    }
    if (gc_int(g->c, "num_shared_experts"))
        gw_u32(&g->w, gc_key(g, "expert_shared_count"), gc_int(g->c, "num_shared_experts"));
}

static inline void gc_metadata(struct gc *g)
{
    const json_t *c = g->c->config;
    const char *arch = g->how->arch;
    int layers = (int)gc_int(g->c, "num_hidden_layers");
    json_t *eos = json_object_get(c, "eos_token_id");
    gw_string(&g->w, "general.architecture", arch);
    gw_string(&g->w, "general.name", "a test's");
    gw_u32(&g->w, gc_key(g, "block_count"), layers + g->how->further);
    if (g->how->further)
        gw_u32(&g->w, gc_key(g, "nextn_predict_layers"), g->how->further);
    gw_u32(&g->w, gc_key(g, "context_length"), gc_int(g->c, "max_position_embeddings"));
    gw_u32(&g->w, gc_key(g, "embedding_length"), gc_int(g->c, "hidden_size"));
    gc_heads(g);
    if (!g->how->ollama || !GC_IS(g->how, "gemma3"))
        gc_real_key(g, "attention.layer_norm_rms_epsilon", "rms_norm_eps");
    gc_real_key(g, "attention.layer_norm_epsilon", "layer_norm_eps");
    if (json_is_array(eos) && !g->how->ollama)
        gw_u32(&g->w, "tokenizer.ggml.eot_token_id", json_integer_value(json_array_get(eos, 1)));
    if (json_is_array(eos) && g->how->ollama)
        gw_ints(&g->w, "tokenizer.ggml.eos_token_ids", GW_I32,
                (const int64_t[]){json_integer_value(json_array_get(eos, 0)),
                                  json_integer_value(json_array_get(eos, 1))}, 2);
    gw_u32(&g->w, "tokenizer.ggml.eos_token_id",
           json_integer_value(json_is_array(eos) ? json_array_get(eos, 0) : eos));
    gw_u32(&g->w, "tokenizer.ggml.bos_token_id", gc_int(g->c, "bos_token_id"));
    gw_u32(&g->w, "tokenizer.ggml.padding_token_id", gc_int(g->c, "pad_token_id"));
    if (gc_real(c, "final_logit_softcapping") != 0)
        gw_f32(&g->w, gc_key(g, "final_logit_softcapping"), gc_real(c, "final_logit_softcapping"));
    if (gc_real(c, "attn_logit_softcapping") != 0)
        gw_f32(&g->w, gc_key(g, "attn_logit_softcapping"), gc_real(c, "attn_logit_softcapping"));
    gc_rope(g);
    if (g->how->window)
        gc_windows(g, layers);
    if (!strcmp(arch, "gemma4")) {
        gc_gemma4(g, layers);
        return;
    }
    gw_u32(&g->w, gc_key(g, "feed_forward_length"), gc_int(g->c, "intermediate_size"));
    if (json_object_get(c, "head_dim")) {
        gw_u32(&g->w, gc_key(g, "attention.key_length"), gc_int(g->c, "head_dim"));
        gw_u32(&g->w, gc_key(g, "attention.value_length"), GC_FIRST(g, "v_head_dim", "head_dim"));
    }
    gc_own(g);
    if (g->how->captures)
        gc_draft(g);
    if (gc_experts(g))
        gc_moe(g);
}

/* ---- weights ---- */

static inline uint64_t gc_random(struct gc *g)
{
    return g->seed = mix64(g->seed);
}

/* n random blocks with scales of about 1/500. */
static inline char *gc_blocks(struct gc *g, enum dtype t, size_t n)
{
    const struct packed_format *f = packed_format(t);
    uint8_t *b = xmalloc(n * (size_t)f->bytes);
    for (size_t i = 0; i < n * (size_t)f->bytes; i++)
        b[i] = (uint8_t)gc_random(g);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 2; k++)
            if (f->scale[k] >= 0) {
                b[i * (size_t)f->bytes + (size_t)f->scale[k]] = (uint8_t)gc_random(g);
                b[i * (size_t)f->bytes + (size_t)f->scale[k] + 1] = 0x18 | (gc_random(g) & 1) << 7;
            }
    for (size_t i = 0; t == DT_MXFP4 && i < n; i++)
        b[i * 17] = (uint8_t)(118 + gc_random(g) % 4);
    for (size_t i = 0; t == DT_NVFP4 && i < 4 * n; i++) /* 1 to 128; the sign has no meaning */
        b[i / 4 * 36 + i % 4] = (uint8_t)(56 + gc_random(g) % 56) | (uint8_t)(i % 3 << 7);
    return (char *)b;
}

static inline void gc_set(struct ck_tensor *t, const char *dtype, size_t n)
{
    free(t->dtype);
    t->dtype = xstrdup(dtype);
    t->data = xrealloc(t->data, n, 1);
    t->n = n;
}

static inline float gc_float(const struct ck_tensor *t, size_t i)
{
    uint16_t v;
    memcpy(&v, t->data + 2 * i, 2);
    return bf16_to_f32(v);
}

/* f16, rounded toward 0; numbers below 2^-14 become 0. */
static inline uint16_t gc_half(float f)
{
    union {
        float f;
        uint32_t u;
    } x = {.f = f};
    int e = (int)(x.u >> 23 & 255) - 112;
    uint32_t sign = x.u >> 16 & 0x8000;
    return (uint16_t)(e <= 0   ? sign
                      : e > 30 ? sign | 0x7bff
                               : sign | (uint32_t)e << 10 | (x.u >> 13 & 1023));
}

struct gc_shape {
    int n;
    int64_t dim[4];
    size_t rows, elems;
};

static inline struct gc_shape gc_shape(const struct ck_tensor *t)
{
    struct gc_shape s = {.n = (int)json_array_size(t->shape), .rows = 1, .elems = 1};
    for (int i = 0; i < s.n; i++) {
        s.dim[i] = json_integer_value(json_array_get(t->shape, (size_t)i));
        if (i < s.n - 1)
            s.rows *= (size_t)s.dim[i];
        else
            s.elems = (size_t)s.dim[i];
    }
    return s;
}

/* The type that a matrix gets. (Experts' are not F32 or F16: of two types in one tensor of theirs,
 * both become bf16 then, which is what the folder has.) */
static inline int gc_type(struct gc *g, size_t elems, bool experts)
{
    static const int all[] = {GGUF_Q8_0,   GGUF_Q4_0, GGUF_Q4_1, GGUF_Q5_0, GGUF_Q5_1,
                              GGUF_IQ4_NL, GGUF_F16,  GGUF_BF16, GGUF_F32,  GGUF_MXFP4,
                              GGUF_NVFP4};
    const int turn = g->next_type++;
    int t = g->how->type;
    if (t < 0)
        t = t == -1    ? all[turn % (int)(sizeof all / sizeof *all)]
            : turn % 2 ? GGUF_NVFP4
                       : GGUF_Q4_0;
    int block = t == GGUF_F32 || t == GGUF_F16 || t == GGUF_BF16 ? 1
                : t >= GGUF_Q2_K && t <= GGUF_Q6_K               ? 256
                : t == GGUF_NVFP4                                ? 64
                                                                 : 32;
    return elems % (size_t)block || (experts && g->how->type < 0 && block == 1) ? GGUF_BF16 : t;
}

static inline enum dtype gc_packed(int type)
{
    static const enum dtype of[GGUF_TYPES] = {
        [GGUF_Q8_0] = DT_Q8_0,   [GGUF_Q4_0] = DT_Q4_0, [GGUF_Q4_1] = DT_Q4_1,
        [GGUF_Q5_0] = DT_Q5_0,   [GGUF_Q5_1] = DT_Q5_1, [GGUF_IQ4_NL] = DT_IQ4_NL,
        [GGUF_MXFP4] = DT_MXFP4, [GGUF_Q2_K] = DT_Q2_K, [GGUF_Q3_K] = DT_Q3_K,
        [GGUF_Q4_K] = DT_Q4_K,   [GGUF_Q5_K] = DT_Q5_K, [GGUF_Q6_K] = DT_Q6_K,
        [GGUF_NVFP4] = DT_NVFP4};
    return of[type];
}

static inline size_t gc_bytes(int type, size_t n)
{
    return type == GGUF_F32                        ? 4 * n
           : type == GGUF_F16 || type == GGUF_BF16 ? 2 * n
                                                   : dtype_bytes(gc_packed(type), n);
}

/* The weights of n / 64 blocks of NVFP4, in as many parts of one random number each that multiplies
 * them, as bf16; keeps the numbers in g->outer. */
static inline void gc_outer(struct gc *g, const uint8_t *b, size_t n, size_t parts, uint16_t *out)
{
    static const double level[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    float outer = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % (n / parts) == 0) {
            outer = (gc_random(g) % 8 ? 1 : -1) / (float)(2000 + gc_random(g) % 4000);
            if (!g->qkv || !g->outer.n)
                buf_add(&g->outer, &outer, sizeof outer);
            memcpy(&outer, g->outer.p + (g->qkv ? 0 : g->outer.n - sizeof outer), sizeof outer);
        }
        const uint8_t *block = b + i / 64 * 36;
        const size_t k = i % 64 / 16, j = i % 16;
        const int code = block[4 + 8 * k + j % 8] >> (j < 8 ? 0 : 4) & 15,
                  e = block[k] >> 3 & 15, m = block[k] & 7;
        const double scale = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        out[i] = f32_to_bf16((float)(scale * (code & 8 ? -level[code & 7] : level[code])) * outer);
    }
}

/* Adds a tensor, and behind one in NVFP4 each `step`th of the numbers that multiply it, from number
 * `from` on, and scales of inputs. */
static inline void gc_add(struct gc *g, const char *name, int type, int n_dim, const int64_t *dim,
                          const void *bytes, size_t n, size_t from, size_t step)
{
    gw_tensor(&g->w, name, type, n_dim, dim, bytes, n);
    if (type != GGUF_NVFP4)
        return;
    struct buf v = {0};
    char other[80];
    for (size_t i = from; i < g->outer.n / 4; i += step)
        buf_add(&v, g->outer.p + 4 * i, 4);
    for (int k = 0; k < 2; k++) {
        snprintf(other, sizeof other, "%.*s%s", (int)(strlen(name) - strlen(".weight")), name,
                 k ? ".input_scale" : ".scale");
        gw_tensor(&g->w, other, GGUF_F32, 1, (const int64_t[]){(int64_t)v.n / 4}, v.p, v.n);
    }
    buf_free(&v);
    if (from + 1 == step)
        buf_free(&g->outer);
}

/* Gives the tensor a type of GGUF: returns the bytes of its rows in the file's type, in the
 * folder's order; the folder's tensor becomes what it must equal. */
static inline char *gc_retype(struct gc *g, struct ck_tensor *t, int type, size_t n, size_t parts)
{
    char *file;
    if (type == GGUF_BF16) {
        file = xmalloc(t->n);
        memcpy(file, t->data, t->n);
    } else if (type == GGUF_F32 || type == GGUF_F16) {
        size_t size = type == GGUF_F32 ? 4 : 2;
        file = xmalloc(n * size);
        for (size_t i = 0; i < n; i++) {
            float f = gc_float(t, i);
            uint16_t h = gc_half(f);
            memcpy(file + size * i, type == GGUF_F32 ? (void *)&f : (void *)&h, size);
        }
        gc_set(t, type == GGUF_F32 ? "F32" : "F16", n * size);
        memcpy(t->data, file, n * size);
    } else {
        enum dtype p = gc_packed(type);
        file = gc_blocks(g, p, n / (size_t)packed_format(p)->elements);
        if (p == DT_NVFP4)
            gc_outer(g, (uint8_t *)file, n, parts, (uint16_t *)(void *)t->data);
        else
            packed_bf16(p, file, n, (uint16_t *)(void *)t->data);
    }
    return file;
}

/* ---- names and orders ---- */

static const char *const gc_names[][2] = {
    {"embed_tokens", "token_embd"},
    {"norm", "output_norm"},
    {"lm_head", "output"},
    {"embed_tokens_per_layer", "per_layer_token_embd"},
    {"per_layer_model_projection", "per_layer_model_proj"},
    {"per_layer_projection_norm", "per_layer_proj_norm"},
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.sinks", "attn_sinks"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"mlp.router", "ffn_gate_inp"},
    {"router.proj", "ffn_gate_inp"},
    {"mlp.gate", "ffn_gate_inp"},
    {"experts.down_proj", "ffn_down_exps"},
    {"experts.gate_up_proj", "ffn_gate_up_exps"},
    {"layer_scalar", "layer_output_scale"},
    {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
    {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
    {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
    {"per_layer_input_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    {"post_per_layer_input_norm", "post_norm"},
    {"pre_mlp_layernorm", "ffn_norm"},
    {"post_mlp_layernorm", "post_ffw_norm"},
    {"self_attn.gate_proj", "attn_gate"},
    {"self_attn.g_proj", "attn_gate"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.attention_sink_bias", "attn_sinks"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.router.gate", "ffn_gate_inp"},
    {"block_sparse_moe.router", "ffn_gate_inp"},
    {"moe.gate", "ffn_gate_inp"},
    {"mlp.expert_bias", "exp_probs_b"},
    {"mlp.experts.e_score_correction_bias", "exp_probs_b"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b"},
    {"moe.router_bias", "exp_probs_b"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"share_expert.gate_proj", "ffn_gate_shexp"},
    {"share_expert.up_proj", "ffn_up_shexp"},
    {"share_expert.down_proj", "ffn_down_shexp"},
    {"shared_mlp.input_linear", "ffn_up_shexp"},
    {"shared_mlp.output_linear", "ffn_down_shexp"},
    {"block_sparse_moe.experts.gate_up_proj", "ffn_gate_up_exps"},
    {"block_sparse_moe.experts.down_proj", "ffn_down_exps"},
    {"fc", "fc"},
    {"input_norm", "enc.output_norm"},
    {"moe.gate_proj", "ffn_gate_exps"},
    {"moe.up_proj", "ffn_up_exps"},
    {"moe.down_proj", "ffn_down_exps"},
};

/* The name in the file of a tensor below the trunk. */
static inline void gc_name(const struct gc *g, const char *name, char *out, size_t room)
{
    int layer, at = 0;
    char stem[96];
    bool in_layer = sscanf(name, "layers.%d.%n", &layer, &at) == 1 && at;
    const char *rest = name + at, *end = strrchr(rest, '.');
    bool kind = end && (!strcmp(end, ".weight") || !strcmp(end, ".bias"));
    snprintf(stem, sizeof stem, "%.*s", kind ? (int)(end - rest) : 95, rest);
    const char *to = NULL, *kept = kind ? end : ".weight";
    for (size_t i = 0; i < sizeof gc_names / sizeof *gc_names; i++)
        if (!strcmp(gc_names[i][0], stem))
            to = gc_names[i][1];
    if (!strcmp(stem, "post_attention_layernorm"))
        to = GC_IS(g->how, "gemma2", "gemma3", "gemma4", "gpt-oss", "olmo2", "olmo3", "exaone4",
                   "afmoe", "muse-glimmer")
                 ? "post_attention_norm"
                 : "ffn_norm";
    if (to && !strcmp(to, "exp_probs_b"))
        kept = ".bias";
    if (g->how->ollama && !strcmp(stem, "self_attn.sinks"))
        kept = "";
    if (GC_IS(g->how, "gptoss") && !strcmp(stem, "self_attn.o_proj"))
        to = "attn_out";
    if (!strcmp(stem, "hidden_norm"))
        to = in_layer ? "attn_norm_2" : "enc.output_norm";
    if (!strcmp(rest, "router.scale"))
        to = "ffn_gate_inp", kept = ".scale";
    if (!strcmp(rest, "router.per_expert_scale"))
        to = "ffn_down_exps", kept = ".scale";
    if (!to)
        die("no name for %s", name);
    if (in_layer)
        snprintf(out, room, "blk.%d.%s%s", layer, to, kept);
    else
        snprintf(out, room, "%s%s", to, kept);
}

/* Pairs the halves of each head's rows. */
static inline void gc_permute(char *rows, size_t n, size_t bytes, size_t heads)
{
    char *was = xmalloc(n * bytes);
    size_t d = n / heads;
    memcpy(was, rows, n * bytes);
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < d / 2; i++)
            for (size_t k = 0; k < 2; k++)
                memcpy(rows + (h * d + 2 * i + k) * bytes, was + (h * d + k * (d / 2) + i) * bytes,
                       bytes);
    free(was);
}

/* A norm of gemma 2 and 3: the file has w + 1, in float32. */
static inline void gc_norm(struct gc *g, struct ck_tensor *t, const char *name)
{
    struct gc_shape s = gc_shape(t);
    float *f = xmalloc(s.elems * sizeof *f), *w = xmalloc(s.elems * sizeof *w);
    for (size_t i = 0; i < s.elems; i++) {
        f[i] = gc_float(t, i) + 1;
        w[i] = f[i] - 1; /* of small ones the file keeps a part */
    }
    gc_set(t, "F32", s.elems * 4);
    memcpy(t->data, w, s.elems * 4);
    gw_tensor(&g->w, name, GGUF_F32, 1, s.dim, f, s.elems * 4);
    free(f);
    free(w);
}

/* Blocks and scales of gpt-oss in one tensor, its rows `step` apart from row `first` on. */
static inline void gc_mxfp4(struct gc *g, const char *name, const struct ck_tensor *blocks,
                            const struct ck_tensor *scales, size_t first, size_t step)
{
    struct gc_shape s = gc_shape(blocks); /* E, rows, blocks, 16 */
    size_t rows = (size_t)s.dim[1] / step, each = (size_t)s.dim[2];
    struct buf b = {0};
    for (size_t e = 0; e < (size_t)s.dim[0]; e++)
        for (size_t r = 0; r < rows; r++)
            for (size_t k = 0; k < each; k++) {
                size_t at = (e * (size_t)s.dim[1] + r * step + first) * each + k;
                const uint8_t *q = (const uint8_t *)blocks->data + 16 * at;
                buf_char(&b, scales->data[at]);
                for (int j = 0; j < 16; j++) {
                    int low = q[j / 2] >> 4 * (j % 2) & 15, high = q[8 + j / 2] >> 4 * (j % 2) & 15;
                    buf_char(&b, (char)(low | high << 4));
                }
            }
    gw_tensor(&g->w, name, GGUF_MXFP4, 3, (const int64_t[]){s.dim[0], (int64_t)rows, 32 * s.dim[2]},
              b.p, b.n);
    buf_free(&b);
}

/* The experts' biases as F32 tensors of `names`, two for gate and up, whose elements take turns.
 * The folder's tensor becomes F32; halves: and has those of gate before those of up. */
static inline void gc_biases(struct gc *g, struct ck_tensor *t, const char names[2][64],
                             size_t step, bool halves)
{
    struct gc_shape s = gc_shape(t);
    size_t each = s.elems / step, n = s.rows * s.elems, at = 0;
    float *w = xmalloc(n * 4), *part[2] = {xmalloc(n * 4), xmalloc(n * 4)};
    for (size_t i = 0; i < n; i++)
        part[i % step][i / step] = w[i] = gc_float(t, i);
    for (size_t r = 0; halves && r < s.rows; r++)
        for (size_t k = 0; k < step; k++, at += each)
            memcpy(w + at, part[k] + r * each, each * 4);
    gc_set(t, "F32", n * 4);
    memcpy(t->data, w, n * 4);
    s.dim[s.n - 1] /= (int64_t)step;
    for (size_t k = 0; k < step; k++)
        gw_tensor(&g->w, names[k], GGUF_F32, s.n, s.dim, part[k], n / step * 4);
    FREE(w, part[0], part[1]);
}

/* Plain experts of gpt-oss: (in, out) becomes (out, in), rows of gate before those of up. */
static inline void gc_transpose(struct ck_tensor *t, bool down)
{
    struct gc_shape s = gc_shape(t);
    size_t E = (size_t)s.dim[0], in = (size_t)s.dim[1], out = (size_t)s.dim[2], half = out / 2;
    uint16_t *from = (uint16_t *)(void *)t->data, *to = xmalloc(t->n);
    for (size_t e = 0; e < E; e++)
        for (size_t o = 0; o < out; o++)
            for (size_t i = 0; i < in; i++)
                to[(e * out + (down ? o : o / 2 + o % 2 * half)) * in + i] =
                    from[(e * in + i) * out + o];
    memcpy(from, to, t->n);
    free(to);
    json_array_set_new(t->shape, 1, json_integer((json_int_t)out));
    json_array_set_new(t->shape, 2, json_integer((json_int_t)in));
}

/* gate_up_proj of experts, gate before up, as two tensors. */
static inline void gc_two(struct gc *g, const char *rows, const struct gc_shape *s, int type,
                          size_t bytes, const char *name)
{
    size_t half = (size_t)s->dim[1] / 2 * bytes;
    int layer = 0;
    sscanf(name, "blk.%d.", &layer);
    for (size_t k = 0; k < 2; k++) {
        struct buf b = {0};
        char part[64];
        snprintf(part, sizeof part, "blk.%d.ffn_%s_exps.weight", layer, k ? "up" : "gate");
        for (size_t e = 0; e < (size_t)s->dim[0]; e++)
            buf_add(&b, rows + (2 * e + k) * half, half);
        gc_add(g, part, type, 3, (const int64_t[]){s->dim[0], s->dim[1] / 2, s->dim[2]}, b.p, b.n,
               k, 2);
        buf_free(&b);
    }
}

/* Experts of gpt-oss. Whether the tensor was one of theirs. */
static inline bool gc_gptoss(struct gc *g, struct ck_tensor *t, const char *name)
{
    int layer;
    char what[64], file[2][64], scales[128];
    if (sscanf(name, "layers.%d.mlp.experts.%63s", &layer, what) != 2)
        return false;
    bool down = !strncmp(what, "down", 4), bias = strstr(what, "_bias") != NULL;
    const bool plain = !json_object_get(g->c->config, "quantization_config");
    const char *const part[] = {down ? "down" : "gate", "up"};
    if (strstr(what, "_scales"))
        return true;
    snprintf(scales, sizeof scales, "%slayers.%d.mlp.experts.%s_scales", g->how->trunk, layer,
             down ? "down_proj" : "gate_up_proj");
    for (size_t k = 0; k < 2; k++) {
        snprintf(file[k], sizeof file[k], "blk.%d.ffn_%s_exps.%s", layer, part[k],
                 bias ? "bias" : "weight");
        if (!bias && !plain && (!k || !down))
            gc_mxfp4(g, file[k], t, ck_find(g->c, scales), k, down ? 1 : 2);
    }
    if (bias)
        gc_biases(g, t, file, down ? 1 : 2, plain && !down);
    if (bias || !plain)
        return true;
    gc_transpose(t, down);
    struct gc_shape s = gc_shape(t);
    int type = gc_type(g, s.elems, true);
    char *rows = gc_retype(g, t, type, s.rows * s.elems, (size_t)s.dim[0] * (down ? 1 : 2));
    if (down)
        gc_add(g, file[0], type, 3, s.dim, rows, gc_bytes(type, s.rows * s.elems), 0, 1);
    else
        gc_two(g, rows, &s, type, gc_bytes(type, s.elems), file[0]);
    free(rows);
    t->name = xrealloc(t->name, strlen(t->name) + 8, 1);
    strcat(t->name, ".weight");
    return true;
}

/* A matrix of each expert: expert 0's begins one tensor of all. Whether t was one. */
static inline bool gc_stack(struct gc *g, const struct ck_tensor *t, const char *name)
{
    int layer, expert;
    char what[16], file[64], each[128];
    if (sscanf(name, "layers.%d.mlp.experts.%d.%15[a-z]", &layer, &expert, what) != 3)
        return false;
    int n = (int)gc_experts(g);
    struct gc_shape s = gc_shape(t);
    int type = expert ? 0 : gc_type(g, s.elems, true);
    struct buf b = {0};
    for (int i = 0; !expert && i < n; i++) {
        snprintf(each, sizeof each, "%slayers.%d.mlp.experts.%d.%s_proj.weight", g->how->trunk,
                 layer, i, what);
        char *rows = gc_retype(g, ck_find(g->c, each), type, s.rows * s.elems, 1);
        buf_add(&b, rows, gc_bytes(type, s.rows * s.elems));
        free(rows);
    }
    snprintf(file, sizeof file, "blk.%d.ffn_%s_exps.weight", layer, what);
    if (!expert)
        gc_add(g, file, type, 3, (const int64_t[]){n, s.dim[0], s.dim[1]}, b.p, b.n, 0, 1);
    buf_free(&b);
    return true;
}

/* A drafter's ids as the target's, not as offsets. */
static inline void gc_ids(struct gc *g, const struct ck_tensor *t)
{
    int64_t n = (int64_t)(t->n / 8), *v = xmalloc(t->n);
    memcpy(v, t->data, t->n);
    for (int64_t i = 0; i < n; i++)
        v[i] += i;
    gw_tensor(&g->w, "d2t", GGUF_I64, 1, &n, v, t->n);
    free(v);
}

static inline void gc_tensor(struct gc *g, struct ck_tensor *t, struct buf qkv[3], int *qkv_type)
{
    size_t trunk = strlen(g->how->trunk);
    const char *name = strncmp(t->name, g->how->trunk, trunk) ? t->name : t->name + trunk;
    char file[96];
    if (!strcmp(name, "d2t"))
        gc_ids(g, t);
    if (name == t->name && !strstr(name, "lm_head.weight"))
        return; /* a part beside the text model */
    if (name == t->name)
        name = "lm_head.weight";
    if ((GC_IS(g->how, "gpt-oss", "gptoss") && gc_gptoss(g, t, name)) ||
        (GC_SINGLE(g->how) && gc_stack(g, t, name)))
        return;
    gc_name(g, name, file, sizeof file);
    struct gc_shape s = gc_shape(t);
    bool norm = strlen(file) > 11 && !strcmp(file + strlen(file) - 11, "norm.weight");
    if (norm && (GC_IS(g->how, "gemma2", "gemma3", "step35") ||
                 (GC_IS(g->how, "muse-glimmer") && strcmp(file, "output_norm.weight") != 0))) {
        gc_norm(g, t, file);
        return;
    }
    bool q = strstr(file, "attn_q."), k = strstr(file, "attn_k."), v = strstr(file, "attn_v.");
    int type = s.n == 1 || (strstr(file, "ffn_gate_inp") && g->how->type != GGUF_NVFP4)
                   ? GGUF_F32 : gc_type(g, s.elems, strstr(file, "_exps.") != NULL);
    if (g->how->fused && (q || k || v))
        type = s.n == 1 || g->how->type == GGUF_F32 ? GGUF_F32
               : type == GGUF_NVFP4 && g->how->type >= 0 ? type : GGUF_BF16;
    const bool two = strstr(file, "ffn_gate_up_exps") && !g->how->halves;
    char *rows = gc_retype(g, t, type, s.rows * s.elems,
                           s.n == 3 ? (size_t)s.dim[0] * (two ? 2 : 1) : 1);
    size_t n = s.n == 1 ? s.elems : s.rows, bytes = s.n == 1 ? 4 : gc_bytes(type, s.elems);
    if (g->how->paired && (q || k))
        gc_permute(rows, n, bytes,
                   (size_t)gc_int(g->c, q ? "num_attention_heads" : "num_key_value_heads"));
    if (g->how->fused && (q || k || v)) {
        buf_add(&qkv[q ? 0 : k ? 1 : 2], rows, n * bytes);
        *qkv_type = type;
    } else if (two) {
        gc_two(g, rows, &s, type, bytes, file);
    } else {
        gc_add(g, file, type, s.n, s.dim, rows, n * bytes, 0, 1);
    }
    free(rows);
}

/* q, k and v of one layer that were kept back, as one tensor. */
static inline void gc_flush_qkv(struct gc *g, struct buf qkv[3], int layer, const char *kind,
                                int type, int64_t elems)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_qkv.%s", layer, kind);
    for (int i = 1; i < 3; i++)
        buf_add(&qkv[0], qkv[i].p, qkv[i].n);
    const int64_t bytes = elems ? (int64_t)gc_bytes(type, (size_t)elems) : 4;
    if (qkv[0].n)
        gc_add(g, name, elems ? type : GGUF_F32, elems ? 2 : 1,
               (const int64_t[]){(int64_t)qkv[0].n / bytes, elems}, qkv[0].p, qkv[0].n, 0, 1);
    for (int i = 0; i < 3; i++)
        buf_free(&qkv[i]);
}

/* The GGUF file of a folder in memory; *c becomes the folder that it must equal. The caller
 * frees. */
static inline struct buf gguf_of(struct ck *c, const struct conversion *how)
{
    struct gc g = {.c = c, .how = how, .seed = 7};
    int type = 0, layers = (int)gc_int(c, "num_hidden_layers");
    gc_metadata(&g);
    if (how->more) {
        buf_add(&g.w.keys, how->more->keys.p, how->more->keys.n);
        g.w.n_key += how->more->n_key;
    }
    for (int i = 0; i < c->n; i++)
        if (!how->fused || !strstr(c->t[i].name, "self_attn.") || strstr(c->t[i].name, "o_proj") ||
            strstr(c->t[i].name, "norm"))
            gc_tensor(&g, &c->t[i], NULL, &type);
    for (int i = 0; how->images && i < 2; i++)
        gc_ones(&g, i ? "mm.input_projection.weight" : "v.blk.0.attn_norm.weight", 1, 8);
    for (int i = 0; i < how->further; i++) {
        char name[48];
        snprintf(name, sizeof name, "blk.%d.attn_norm.weight", layers + i);
        gc_ones(&g, name, 1, 8);
        snprintf(name, sizeof name, "blk.%d.nextn.eh_proj.weight", layers + i);
        gc_ones(&g, name, 1, 8);
    }
    g.qkv = true;
    for (int l = 0; how->fused && l < layers; l++)
        for (int k = 0; k < 2; k++) {
            struct buf qkv[3] = {{0}};
            for (int i = 0; i < c->n; i++) {
                char layer[64];
                snprintf(layer, sizeof layer, "%slayers.%d.self_attn.", how->trunk, l);
                const char *end = c->t[i].name + strlen(layer);
                if (!strncmp(c->t[i].name, layer, strlen(layer)) && *end != 'o' &&
                    !strstr(end, "norm") && (strstr(end, "bias") != NULL) == (k == 1))
                    gc_tensor(&g, &c->t[i], qkv, &type);
            }
            gc_flush_qkv(&g, qkv, l, k ? "bias" : "weight", type,
                         k ? 0 : gc_int(c, "hidden_size"));
        }
    return gw_bytes(&g.w);
}
