/* keys.c - see keys.h. */
#include "models/checkpoint/config.h"
#include "kernels/json_read.h"

#include <math.h>
#include <stddef.h>

/* ---- neutral values ---- */

/* Whether the value says "none". */
static bool off(const json_t *v, const struct arch *)
{
    return json_is_null(v) || json_is_false(v) ||
           (json_is_number(v) && json_number_value(v) == 0) ||
           (json_is_string(v) && !json_string_length(v)) ||
           (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v));
}

static bool is(const json_t *v, double x)
{
    return off(v, NULL) ||
           (json_is_number(v) && fabs(json_number_value(v) - x) <= 1e-6 * fabs(x));
}

/* Whether the value v of a key is neutral in the model a: a function for the table below. */
#define NEUTRAL(name, condition)                                                                   \
    static bool name(const json_t *v, const struct arch *a)                                        \
    {                                                                                              \
        (void)a;                                                                                   \
        return condition;                                                                          \
    }

NEUTRAL(one, is(v, 1))
NEUTRAL(only_true, json_is_true(v))
NEUTRAL(exactly_one, json_number_value(v) == 1)

/* A list in which each entry is neutral, or none. */
static bool each(const json_t *v, const struct arch *a,
                 bool (*neutral)(const json_t *v, const struct arch *a))
{
    size_t i;
    json_t *x;
    json_array_foreach(v, i, x)
        if (!neutral(x, a))
            return false;
    return json_is_array(v) || json_is_null(v);
}
NEUTRAL(ones, each(v, a, exactly_one))
NEUTRAL(no_limits, each(v, a, off))

/* Whether v is the number that all full or all sliding layers have. */
#define IN_LAYERS(v, a, sliding, field) in_layers(v, a, sliding, offsetof(struct layer, field))
static bool in_layers(const json_t *v, const struct arch *a, bool sliding, size_t field)
{
    for (int i = 0; i < a->cfg->n_layer; i++) {
        int have;
        memcpy(&have, (const char *)&a->layer[i] + field, sizeof have);
        if ((a->layer[i].window > 0) == sliding && !is(v, have))
            return false;
    }
    return true;
}
NEUTRAL(same_global_dim, IN_LAYERS(v, a, false, head_dim))
NEUTRAL(same_global_kv, IN_LAYERS(v, a, false, n_kv))
NEUTRAL(same_sliding_heads, IN_LAYERS(v, a, true, n_head))
NEUTRAL(same_sliding_kv, IN_LAYERS(v, a, true, n_kv))
NEUTRAL(same_head_dim, is(v, a->layer[0].head_dim))
NEUTRAL(same_value_dim, is(v, a->cfg->v_head_dim ? a->cfg->v_head_dim : a->layer[0].head_dim))
NEUTRAL(same_experts, is(v, a->cfg->n_expert))
NEUTRAL(same_top_k, is(v, a->cfg->top_k))
NEUTRAL(same_expert_ffn, is(v, a->cfg->expert_ffn))
NEUTRAL(same_scale, is(v, a->cfg->attn_scale))
NEUTRAL(same_query_scale, is(v, pow(a->cfg->attn_scale, -2)))
NEUTRAL(same_sinks, json_is_null(v) || json_is_true(v) == a->cfg->sinks)
NEUTRAL(same_parallel, json_is_null(v) || json_is_true(v) == (a->cfg->place == PLACE_PARALLEL))
NEUTRAL(no_ple, off(v, a) || !a->cfg->ple)
/* A copy of the window's size under another name: gemma 2 of 9B and 27B. */
NEUTRAL(same_window_size, is(v, a->cfg->window))

/* What the model has, as true or false. */
static bool same_flag(const json_t *v, bool have)
{
    return json_is_null(v) || (json_is_boolean(v) && json_is_true(v) == have);
}
NEUTRAL(same_slides, same_flag(v, a->cfg->window > 0))
NEUTRAL(same_qk_norm, same_flag(v, a->cfg->qk_norm))

bool act_of_name(const char *name, enum act_kind *act)
{
    bool silu = !strcmp(name, "silu") || !strcmp(name, "swish");
    *act = silu ? ACT_SILU : ACT_GELU_TANH;
    return silu || !strcmp(name, "gelu_pytorch_tanh") || !strcmp(name, "gelu_new");
}

static bool same_act(const json_t *v, const struct arch *a)
{
    const char *s = json_string_value(v);
    enum act_kind have = a->cfg->act == ACT_SWIGLU_CLAMP ? ACT_SILU : a->cfg->act, act;
    return off(v, a) || (s && act_of_name(s, &act) && act == have);
}

static bool same_types(const json_t *v, const struct arch *a)
{
    if (!json_is_array(v) || json_array_size(v) != (size_t)a->cfg->n_layer)
        return json_is_null(v);
    for (int i = 0; i < a->cfg->n_layer; i++) {
        const char *s = json_string_value(json_array_get(v, (size_t)i));
        if (!s || strcmp(s, a->layer[i].window ? "sliding_attention" : "full_attention") != 0)
            return false;
    }
    return true;
}

/* A window as long as the context hides nothing. */
static bool same_window(const json_t *v, const struct arch *a)
{
    return is(v, a->cfg->window) ||
           (!a->cfg->window && json_is_integer(v) && json_integer_value(v) >= a->cfg->max_pos);
}

/* Published configs of MiMo-V2 repeat the window's size here; nothing is attended in chunks. */
static bool no_chunks(const json_t *v, const struct arch *a)
{
    const json_t *size = json_object_get(a->c.obj, "sliding_window_size");
    return off(v, a) || (json_is_number(size) && is(v, json_number_value(size)));
}

/* layer_types comes before a pattern. */
static bool same_pattern(const json_t *v, const struct arch *a)
{
    if (off(v, a) || conf_has(&a->c, "layer_types"))
        return true;
    json_int_t n = json_integer_value(v);
    for (int i = 0; n > 0 && i < a->cfg->n_layer; i++)
        if (((i + 1) % n != 0) != (a->layer[i].window > 0))
            return false;
    return n > 0;
}

static bool no_window_key(const json_t *, const struct arch *a)
{
    return !json_is_true(json_object_get(a->c.obj, "use_sliding_window"));
}

static bool same_theta(const json_t *v, const struct arch *a, bool of_sliding_layers)
{
    for (int i = 0; i < a->cfg->n_layer; i++)
        if (((a->layer[i].window > 0) == of_sliding_layers) && a->layer[i].rope_id >= 0 &&
            !is(v, a->cfg->rope[a->layer[i].rope_id].theta))
            return false;
    return true;
}

NEUTRAL(same_full_theta, same_theta(v, a, false))
NEUTRAL(same_sliding_theta, same_theta(v, a, true))

/* Whether the weights of a token's experts add up to 1. */
static bool same_norm(const json_t *v, const struct arch *a)
{
    bool normed = a->cfg->router == ROUTER_CHOSEN || a->cfg->router == ROUTER_SIGMOID;
    return json_is_null(v) || !a->cfg->n_expert || json_is_true(v) == normed;
}

static bool same_score(const json_t *v, const struct arch *a)
{
    const char *s = json_string_value(v);
    bool sigmoid = a->cfg->router == ROUTER_SIGMOID || a->cfg->router == ROUTER_RAW;
    return off(v, a) || (s && !strcmp(s, sigmoid ? "sigmoid" : "softmax"));
}

static bool same_heads(const json_t *v, const struct arch *a)
{
    if (json_is_array(v) && json_array_size(v) != (size_t)a->cfg->n_layer)
        return false;
    return !ANY(i, a->cfg->n_layer,
                !json_is_null(v) && !is(json_array_get(v, (size_t)i), a->layer[i].n_head));
}

/* ---- the keys ---- */

static const struct decides {
    const char *key;
    bool (*neutral)(const json_t *v, const struct arch *a);
    const char *expected; /* the neutral values, for messages */
} decides[] = {
    /* sizes: all families use them */
    {"hidden_size", off, "none"},
    {"vocab_size", off, "none"},
    {"num_hidden_layers", off, "none"},
    {"max_position_embeddings", off, "none"},
    {"rms_norm_eps", off, "none"},
    {"layer_norm_eps", off, "none"},
    {"num_attention_heads", off, "none"},
    {"num_key_value_heads", off, "none"},
    {"intermediate_size", off, "none"},
    {"head_dim", off, "none"},
    /* the arithmetic of a layer */
    {"hidden_act", same_act, "the activation that the model has"},
    {"hidden_activation", same_act, "the activation that the model has"},
    {"attention_bias", off, "false"},
    {"mlp_bias", off, "false"},
    {"query_pre_attn_scalar", same_query_scale, "the model's own scale"},
    {"attn_logit_softcapping", off, "null"},
    {"gating", off, "false"},
    {"mup_enabled", off, "false"},
    {"post_norm_eps", off, "none"},
    {"qk_scale_factor", one, "1"},
    {"output_multiplier", one, "1"},
    {"attention_value_scale", one, "1"},
    {"final_logit_softcapping", off, "null"},
    {"use_qk_norm", same_qk_norm, "what the model has"},
    {"clip_qkv", off, "null"},
    {"use_parallel_block", same_parallel, "what the model has"},
    {"attention_multiplier", same_scale, "the model's own scale"},
    {"embedding_multiplier", one, "1"},
    {"residual_multiplier", one, "1"},
    {"logits_scaling", one, "1"},
    {"logit_scale", one, "1"},
    /* the head, and how weights are stored */
    {"tie_word_embeddings", off, "false"},
    {"quantization_config", off, "none"},
    {"compression_config", off, "none"},
    {"transformers_weights", off, "none"},
    {"fusion_config", off, "none"},
    /* which keys a query sees */
    {"is_causal", only_true, "true"},
    {"use_bidirectional_attention", off, "false"},
    {"sliding_window", same_window, "null, or the window that the model has"},
    {"layer_types", same_types, "the types that the model has"},
    {"sliding_window_pattern", same_pattern, "the pattern that the model has"},
    {"_sliding_window_pattern", same_pattern, "the pattern that the model has"},
    {"use_sliding_window", same_slides, "what the model has"},
    {"max_window_layers", no_window_key, "none"},
    {"attention_chunk_size", no_chunks, "null"},
    {"sliding_window_size", same_window_size, "none, or the window that the model has"},
    {"hybrid_layer_pattern", off, "none"},
    {"global_attn_every_n_layers", same_pattern, "the pattern that the model has"},
    {"kv_sharing_modes", off, "none"},
    /* positions */
    {"rope_theta", same_full_theta, "the theta of the model's full layers"},
    {"rope_local_base_freq", same_sliding_theta, "the theta of the model's sliding layers"},
    {"rope_scaling", off, "null"},
    {"rope_parameters", off, "null"},
    {"partial_rotary_factor", one, "1"},
    {"original_max_position_embeddings", off, "null"},
    {"rotary_pct", one, "1"},
    {"rope_ratio", one, "1"},
    {"rope_interleaved", off, "false"},
    {"no_rope_layers", ones, "1 for each layer"},
    {"no_rope_layer_interval", off, "none"},
    {"layer_rope_theta", off, "none"},
    {"alibi", off, "false"},
    {"attn_temperature_tuning", off, "false"},
    {"floor_scale", off, "none"},
    {"attn_scale", off, "none"},
    {"swa_rope_theta", same_sliding_theta, "the theta of the model's sliding layers"},
    {"partial_rotary_factors", off, "none"},
    {"llama_4_scaling_beta", off, "none"},
    /* experts */
    {"num_experts", same_experts, "the model's number of experts"},
    {"num_local_experts", same_experts, "the model's number of experts"},
    {"num_experts_per_tok", same_top_k, "the model's number of experts a token"},
    {"experts_per_token", same_top_k, "the model's number of experts a token"},
    {"top_k_experts", same_top_k, "the model's number of experts a token"},
    {"moe_intermediate_size", same_expert_ffn, "the width of the model's experts"},
    {"enable_moe_block", off, "false"},
    {"norm_topk_prob", same_norm, "true if the model has experts"},
    {"decoder_sparse_step", one, "1"},
    {"score_func", same_score, "how the model weighs experts"},
    {"scoring_func", same_score, "how the model weighs experts"},
    {"route_norm", same_norm, "true if the model has experts"},
    {"n_group", one, "1"},
    {"topk_group", one, "1"},
    {"n_routed_experts", same_experts, "the model's number of experts"},
    {"n_shared_experts", off, "none"},
    {"num_shared_experts", off, "none"},
    {"num_dense_layers", off, "none"},
    {"route_scale", one, "1"},
    {"routed_scaling_factor", one, "1"},
    {"moe_routed_scaling_factor", one, "1"},
    {"moe_router_scaling_factor", one, "1"},
    {"moe_router_logit_softcapping", off, "0"},
    {"moe_apply_router_weight_on_input", off, "false"},
    {"shared_expert_intermediate_size", off, "0"},
    {"share_expert_dim", off, "0"},
    {"moe_layers", off, "none"},
    {"moe_layers_enum", off, "none"},
    {"interleave_moe_layer_step", one, "1"},
    {"intermediate_size_mlp", off, "none"},
    {"swiglu_limits", no_limits, "none"},
    {"swiglu_limits_shared", no_limits, "none"},
    {"mlp_only_layers", off, "none"},
    {"mlp_layer_types", off, "none"},
    {"shared_intermediate_size", off, "0"},
    {"swiglu_limit", off, "none"},
    {"swiglu_alpha", off, "none"},
    /* gemma-4, and layers that differ from the others */
    {"num_attention_heads_per_layer", same_heads, "num_attention_heads for each layer"},
    {"num_sliding_attention_heads", same_sliding_heads, "the heads of the model's sliding layers"},
    {"v_head_dim", same_value_dim, "head_dim"},
    {"attention_other_setting", off, "none"},
    {"swa_num_key_value_heads", same_sliding_kv, "the KV heads of the model's sliding layers"},
    {"swa_head_dim", same_head_dim, "head_dim"},
    {"swa_v_head_dim", same_value_dim, "v_head_dim"},
    {"add_swa_attention_sink_bias", same_sinks, "what the model has"},
    {"add_full_attention_sink_bias", off, "false"},
    {"attention_k_eq_v", off, "false"},
    {"global_head_dim", same_global_dim, "head_dim"},
    {"num_global_key_value_heads", same_global_kv, "num_key_value_heads"},
    {"hidden_size_per_layer_input", off, "0"},
    {"vocab_size_per_layer_input", no_ple, "none"},
    {"num_kv_shared_layers", off, "0"},
    {"use_double_wide_mlp", off, "false"},
    {"per_layer_config", off, "none"},
    {"text_config", off, "none"},
};

enum { N_DECIDES = LEN(decides) };

static bool key_decides(const char *key)
{
    return ROW_NAMED(decides, key) != NULL;
}

/* ---- one object of a config ---- */

bool conf_refuse(const struct conf *c, const char *key, const char *fmt, ...)
{
    struct conf_file *f = c->file;
    if (f->bad)
        return false;
    f->bad = true;
    char what[300];
    PRINT_ARGS(what, fmt);
    return err_file(f->e, f->path, "%s%s %s", c->at, show(key).s, what);
}

/* Whether a reader sees the key. Such a key must be in the list above. */
static bool conf_sees(const struct conf *c, const char *key)
{
    if (!c->keys)
        return true;
    CHECK(key_decides(key));
    for (const char *const *k = c->keys; *k; k++)
        if (!strcmp(*k, key))
            return true;
    return false;
}

const json_t *conf_value(const struct conf *c, const char *key)
{
    const json_t *v = conf_sees(c, key) ? json_object_get(c->obj, key) : NULL;
    return v && !json_is_null(v) ? v : NULL;
}

bool conf_has(const struct conf *c, const char *key)
{
    return conf_value(c, key) != NULL;
}

bool conf_is_null(const struct conf *c, const char *key)
{
    return conf_sees(c, key) && json_is_null(json_object_get(c->obj, key));
}

bool conf_enter(const struct conf *c, const char *key, struct conf *out)
{
    const json_t *v = conf_value(c, key);
    if (!v)
        return false;
    if (!json_is_object(v))
        return conf_refuse(c, key, "is not an object");
    struct conf in = {.obj = v, .file = c->file};
    snprintf(in.at, sizeof in.at, "%.60s%.30s.", c->at, key);
    *out = in; /* out may be c */
    return true;
}

int conf_int(const struct conf *c, const char *key, int64_t dflt, int min, int max)
{
    const json_t *v = conf_value(c, key);
    if (!v && dflt != CONF_NEEDED)
        return (int)dflt;
    if (!v)
        return conf_refuse(c, key, "is missing"), min;
    if (!json_is_integer(v)) {
        if (json_is_real(v)) {
            char real[32]; /* 64.0 is not shown as 64 */
            json_real_text(real, json_real_value(v));
            conf_refuse(c, key, "is %s, expected an integer", real);
        } else
            conf_refuse(c, key, "is not a number, expected an integer");
        return min;
    }
    json_int_t n = json_integer_value(v);
    if (n < min || n > max)
        return conf_refuse(c, key, "is %lld, expected %d to %d", (long long)n, min, max), min;
    return (int)n;
}

double conf_num(const struct conf *c, const char *key, double dflt, double min, double max)
{
    const json_t *v = conf_value(c, key);
    if (!v && !isnan(dflt))
        return dflt;
    if (!v)
        return conf_refuse(c, key, "is missing"), min;
    if (!json_is_number(v))
        return conf_refuse(c, key, "is not a number"), min;
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return conf_refuse(c, key, "is %g, expected %g to %g", x, min, max), min;
    return x;
}

bool conf_bool(const struct conf *c, const char *key, bool dflt)
{
    const json_t *v = conf_value(c, key);
    if (!v)
        return dflt;
    if (!json_is_boolean(v))
        return conf_refuse(c, key, "is neither true nor false"), dflt;
    return json_is_true(v);
}

const char *conf_str(const struct conf *c, const char *key, const char *dflt)
{
    const json_t *v = conf_value(c, key);
    if (!v)
        return dflt;
    if (!json_is_string(v))
        return conf_refuse(c, key, "is not a string"), dflt;
    return json_string_value(v);
}

int conf_ints(const struct conf *c, const char *key, int64_t *v, int max)
{
    const json_t *j = conf_value(c, key);
    size_t n = !j ? 0 : json_is_array(j) ? json_array_size(j) : 1;
    if (n > (size_t)max)
        return conf_refuse(c, key, "has %zu entries, expected at most %d", n, max), 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_is_array(j) ? json_array_get(j, i) : j;
        if (!json_is_integer(x))
            return conf_refuse(c, key, "is not an integer or a list of integers"), 0;
        v[i] = json_integer_value(x);
    }
    return (int)n;
}

/* ---- keys that the family does not use ---- */

static void refuse(const struct conf *c, const struct decides *d, const json_t *v,
                   const char *family)
{
    FREED(free_at) char *text = json_written(v, JSON_COMPACT);
    conf_refuse(c, d->key, "is %.60s, which a %s model does not use, expected %s",
                text ? show(text).s : "?", family, d->expected);
}

/* Keys beside text_config that a multimodal folder uses. */
static bool used_outside(const char *key)
{
    return !strcmp(key, "text_config") || !strcmp(key, "tie_word_embeddings") ||
           !strcmp(key, "quantization_config");
}

void arch_refuse_unused(const struct arch *a)
{
    for (const char *const *k = a->c.keys; *k; k++)
        CHECK(key_decides(*k));
    for (int i = 0; i < N_DECIDES && conf_ok(&a->c); i++) {
        const struct decides *d = &decides[i];
        const json_t *in = json_object_get(a->c.obj, d->key), *out;
        if (in && !conf_sees(&a->c, d->key) && !d->neutral(in, a))
            refuse(&a->c, d, in, a->cfg->family);
        if (a->c.obj == a->top.obj || used_outside(d->key))
            continue;
        out = json_object_get(a->top.obj, d->key);
        if (out && !(in && json_equal(in, out)) && !d->neutral(out, a))
            conf_refuse(&a->top, d->key, "is not used beside text_config, expected what "
                        "text_config has");
    }
}
