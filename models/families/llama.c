/* llama.c - families of the pre-norm block: Llama 3, Mistral and Ministral (Llama with windows),
 * Ministral 3 (queries far into the context get a factor), SmolLM 3 (some layers have no rope),
 * Qwen 2 (q, k and v have biases), Qwen 3 (q and k are normalised per head), Phi 3 (fused
 * matrices).
 */
#include "models/families/families.h"

/* Without layer_types, which Mistral does not use, every layer is a sliding one; a null
 * sliding_window makes all layers full. */
static void configure_mistral(struct arch *a)
{
    arch_windows(a, conf_is_null(&a->c, "sliding_window") ? 1 : 0, 4096);
}

/* All layers are full, or all slide. */
static void configure_all_alike(struct arch *a)
{
    arch_windows(a, conf_has(&a->c, "sliding_window") ? 0 : 1, 0);
}

static void configure_ministral3(struct arch *a)
{
    configure_all_alike(a);
    for (int i = 0; i < a->cfg->n_layer; i++) {
        a->layer[i].temper = (float)a->cfg->rope[0].temper;
        a->layer[i].temper_period = (float)a->cfg->rope[0].original_max;
    }
}

/* Sliding layers there are only if use_sliding_window is true. Returns whether other keys than
 * layer_types say which. window: as that of arch_windows(). */
static bool configure_switch(struct arch *a, int window)
{
    bool slides = conf_bool(&a->c, "use_sliding_window", false);
    arch_windows(a, 1, window);
    if (a->cfg->window && !slides)
        conf_refuse(&a->c, "layer_types", "has sliding layers, but use_sliding_window is false");
    return slides && !conf_has(&a->c, "layer_types");
}

/* Without layer_types the layers slide that have no rope. */
static void configure_smollm3(struct arch *a)
{
    a->cfg->tied = arch_tied(a, true);
    arch_no_rope(a);
    if (!configure_switch(a, 0) || !conf_has(&a->c, "sliding_window"))
        return;
    int w = conf_int(&a->c, "sliding_window", CONF_NEEDED, 1, 1 << 30);
    for (int i = 0; i < a->cfg->n_layer; i++)
        if (a->layer[i].rope_id < 0)
            a->cfg->window = a->layer[i].window = w;
}

/* Without layer_types the layers slide from max_window_layers on. */
static void configure_qwen(struct arch *a)
{
    int first = conf_int(&a->c, "max_window_layers", 28, 0, 1 << 20);
    if (!configure_switch(a, 4096) || conf_is_null(&a->c, "sliding_window"))
        return;
    int w = conf_int(&a->c, "sliding_window", 4096, 1, 1 << 30);
    for (int i = first; i < a->cfg->n_layer; i++)
        a->cfg->window = a->layer[i].window = w;
}

static void configure_qwen2(struct arch *a)
{
    configure_qwen(a);
    a->cfg->qkv_bias = true;
}

static void configure_qwen3(struct arch *a)
{
    configure_qwen(a);
    a->cfg->qk_norm = true;
}

static const struct tensor_spec layer[] = {SPECS_PRE_NORM, SPECS_ATTENTION, SPECS_MLP, {0}};
static const struct tensor_spec qwen3_layer[] = {
    SPECS_PRE_NORM, SPECS_ATTENTION, SPECS_HEAD_NORMS, SPECS_MLP, {0},
};

static const struct tensor_spec phi3_layer[] = {
    SPECS_PRE_NORM,
    {SPEC(layer, wq, "self_attn.qkv_proj.weight", X_Q, X_IN), .fused = 3},
    {SPEC(layer, wk, "self_attn.qkv_proj.weight", X_KV, X_IN)},
    {SPEC(layer, wv, "self_attn.qkv_proj.weight", X_KV, X_IN)},
    {SPEC(layer, wo, "self_attn.o_proj.weight", X_HIDDEN, X_Q)},
    {SPEC(layer, gate, "mlp.gate_up_proj.weight", X_FFN, X_HIDDEN), .fused = 2},
    {SPEC(layer, up, "mlp.gate_up_proj.weight", X_FFN, X_HIDDEN)},
    {SPEC(layer, down, "mlp.down_proj.weight", X_HIDDEN, X_FFN)},
    {0},
};

const struct family family_llama = {
    .name = "llama",
    .types = {"llama"},
    .keys = (const char *const[]){KEYS_OF_MOST, "attention_bias", NULL},
    .sizes = {.eps = 1e-6},
    .rope = {ROPE_OLD(1e4)},
    .layer = layer,
};

const struct family family_mistral = {
    .name = "mistral",
    .types = {"mistral"},
    .keys = (const char *const[]){KEYS_OF_MOST, "sliding_window", NULL},
    .sizes = {.kv = 8, .eps = 1e-6},
    .rope = {ROPE_OLD(1e4)},
    .configure = configure_mistral,
    .layer = layer,
};

/* Mistral with layer_types. */
const struct family family_ministral = {
    .name = "mistral",
    .types = {"ministral"},
    .keys = (const char *const[]){KEYS_OF_MOST, "sliding_window", "layer_types", NULL},
    .sizes = {.kv = 8, .eps = 1e-6},
    .rope = {ROPE_OLD(1e4)},
    .configure = configure_mistral,
    .layer = layer,
};

const struct family family_ministral3 = {
    .name = "mistral",
    .types = {"ministral3"},
    .keys = (const char *const[]){KEYS_OF_MOST, "sliding_window", NULL},
    .sizes = {.hidden = 4096, .ffn = 14336, .layers = 34, .heads = 32, .kv = 8, .head_dim = 128,
              .vocab = 131072, .max_pos = 262144, .eps = 1e-5},
    .rope = {{.theta = "rope_theta", .scaled = true, .tempers = true,
              .dflt = {.kind = ROPE_YARN, .theta = 1e6, .factor = 16, .original_max = 16384,
                       .beta_fast = 32, .beta_slow = 1, .partial = 1, .truncate = true,
                       .mscale = 1, .mscale_all_dim = 1, .temper = 0.1}}},
    .configure = configure_ministral3,
    .layer = layer,
};

const struct family family_smollm3 = {
    .name = "smollm3",
    .types = {"smollm3"},
    .keys = (const char *const[]){
        KEYS_OF_MOST, "attention_bias", "sliding_window",
        "use_sliding_window", "layer_types", "no_rope_layers", "no_rope_layer_interval", NULL},
    .sizes = {.kv = 4, .eps = 1e-6},
    .rope = {ROPE_OLD(2e6)},
    .configure = configure_smollm3,
    .layer = layer,
};

const struct family family_qwen2 = {
    .name = "qwen2",
    .types = {"qwen2"},
    .keys = (const char *const[]){
        KEYS_OF_MOST, "sliding_window", "use_sliding_window",
        "max_window_layers", "layer_types", NULL},
    .sizes = {.hidden = 4096, .ffn = 22016, .layers = 32, .heads = 32, .kv = 32, .vocab = 151936,
              .max_pos = 32768, .eps = 1e-6},
    .rope = {ROPE_OLD(1e4)},
    .configure = configure_qwen2,
    .layer = layer,
};

const struct family family_qwen3 = {
    .name = "qwen3",
    .types = {"qwen3"},
    .keys = (const char *const[]){
        KEYS_OF_MOST, "attention_bias", "sliding_window",
        "use_sliding_window", "max_window_layers", "layer_types", NULL},
    .sizes = {.kv = 32, .head_dim = 128, .eps = 1e-6},
    .rope = {ROPE_OLD(1e4)},
    .configure = configure_qwen3,
    .layer = qwen3_layer,
};

const struct family family_phi3 = {
    .name = "phi3",
    .types = {"phi3"},
    .keys = (const char *const[]){KEYS_OF_MOST, "sliding_window", NULL},
    .sizes = {.eps = 1e-5},
    .rope = {{.theta = "rope_theta", .scaled = true, .partial = true, .is_long = true,
              .dflt = {.kind = ROPE_DEFAULT, .theta = 1e4, .factor = 1, .partial = 1,
                       .truncate = true, .original_max = 4096}}},
    .configure = configure_all_alike,
    .layer = phi3_layer,
};
