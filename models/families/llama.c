/* llama.c - families of the pre-norm block: Llama 3, Mistral and Ministral (Llama with windows),
 * Ministral 3 (queries far into the context get a factor), SmolLM 3 (some layers have no rope),
 * Qwen 2 (q, k and v have biases), Qwen 3 (q and k are normalised per head), Phi 3 (fused
 * matrices).
 */
#include "models/families/families.h"

static const struct rope_spelling plain_rope = {
    .theta = "rope_theta", .scaled = true, .dflt = ROPE_PLAIN(1e4),
};

static bool configure_block(struct arch *a, const struct sizes *dflt,
                            const struct rope_spelling *rope)
{
    if (!arch_block(a, dflt, PLACE_PRE))
        return false;
    a->cfg->n_rope = 1;
    arch_rope(&a->c, a->cfg, rope, &a->cfg->rope[0]);
    return true;
}

/* All layers have full attention. */
static bool configure_llama(struct arch *a)
{
    static const struct sizes dflt = {.eps = 1e-6};
    return configure_block(a, &dflt, &plain_rope) && conf_ok(&a->c);
}

/* Without layer_types, which Mistral does not use, every layer is a sliding one; a null
 * sliding_window makes all layers full. */
static bool configure_mistral(struct arch *a)
{
    static const struct sizes dflt = {.kv = 8, .eps = 1e-6};
    if (!configure_block(a, &dflt, &plain_rope))
        return false;
    arch_windows(a, conf_is_null(&a->c, "sliding_window") ? 1 : 0, 4096);
    return conf_ok(&a->c);
}

/* All layers are full, or all slide. */
static bool configure_ministral3(struct arch *a)
{
    static const struct sizes dflt = {
        .hidden = 4096, .ffn = 14336, .layers = 34, .heads = 32, .kv = 8, .head_dim = 128,
        .vocab = 131072, .max_pos = 262144, .eps = 1e-5,
    };
    static const struct rope_spelling rope = {
        .theta = "rope_theta", .scaled = true, .tempers = true,
        .dflt = {.kind = ROPE_YARN, .theta = 1e6, .factor = 16, .original_max = 16384,
                 .beta_fast = 32, .beta_slow = 1, .partial = 1, .truncate = true, .mscale = 1,
                 .mscale_all_dim = 1, .temper = 0.1},
    };
    if (!configure_block(a, &dflt, &rope))
        return false;
    arch_windows(a, conf_has(&a->c, "sliding_window") ? 0 : 1, 0);
    for (int i = 0; i < a->cfg->n_layer; i++) {
        a->layer[i].temper = (float)a->cfg->rope[0].temper;
        a->layer[i].temper_period = (float)a->cfg->rope[0].original_max;
    }
    return conf_ok(&a->c);
}

/* sliding_window applies only if use_sliding_window is true, and without layer_types to the layers
 * that have no rope. */
static bool configure_smollm3(struct arch *a)
{
    static const struct sizes dflt = {.kv = 4, .eps = 1e-6};
    static const struct rope_spelling rope = {
        .theta = "rope_theta", .scaled = true, .dflt = ROPE_PLAIN(2e6),
    };
    if (!configure_block(a, &dflt, &rope))
        return false;
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->tied = arch_tied(a, true);
    arch_no_rope(a, 4);
    bool slides = conf_bool(c, "use_sliding_window", false);
    arch_windows(a, 1, 0);
    if (g->window && !slides)
        conf_refuse(c, "layer_types", "has sliding layers, but use_sliding_window is false");
    if (!slides || conf_has(c, "layer_types") || !conf_has(c, "sliding_window"))
        return conf_ok(c);
    int w = conf_int(c, "sliding_window", CONF_NEEDED, 1, 1 << 30);
    for (int i = 0; i < g->n_layer; i++)
        if (a->layer[i].rope_id < 0)
            g->window = a->layer[i].window = w;
    return conf_ok(c);
}

/* sliding_window applies only if use_sliding_window is true, and without layer_types to the layers
 * from max_window_layers on. */
static bool configure_qwen(struct arch *a, const struct sizes *dflt)
{
    if (!configure_block(a, dflt, &plain_rope))
        return false;
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    bool slides = conf_bool(c, "use_sliding_window", false);
    int first = conf_int(c, "max_window_layers", 28, 0, 1 << 20);
    arch_windows(a, 1, 4096);
    if (g->window && !slides)
        conf_refuse(c, "layer_types", "has sliding layers, but use_sliding_window is false");
    if (!slides || conf_has(c, "layer_types") || conf_is_null(c, "sliding_window"))
        return conf_ok(c);
    int w = conf_int(c, "sliding_window", 4096, 1, 1 << 30);
    for (int i = first; i < g->n_layer; i++)
        g->window = a->layer[i].window = w;
    return conf_ok(c);
}

static bool configure_qwen2(struct arch *a)
{
    static const struct sizes dflt = {
        .hidden = 4096, .ffn = 22016, .layers = 32, .heads = 32, .kv = 32, .vocab = 151936,
        .max_pos = 32768, .eps = 1e-6,
    };
    bool ok = configure_qwen(a, &dflt);
    a->cfg->qkv_bias = true;
    return ok;
}

static bool configure_qwen3(struct arch *a)
{
    static const struct sizes dflt = {.kv = 32, .head_dim = 128, .eps = 1e-6};
    bool ok = configure_qwen(a, &dflt);
    a->cfg->qk_norm = true;
    return ok;
}

static bool configure_phi3(struct arch *a)
{
    static const struct sizes dflt = {.eps = 1e-5};
    static const struct rope_spelling rope = {
        .theta = "rope_theta", .scaled = true, .partial = true, .is_long = true,
        .dflt = {.kind = ROPE_DEFAULT, .theta = 1e4, .factor = 1, .partial = 1, .truncate = true,
                 .original_max = 4096},
    };
    if (!configure_block(a, &dflt, &rope))
        return false;
    const struct conf *c = &a->c;
    arch_windows(a, conf_has(c, "sliding_window") ? 0 : 1, 0);
    return conf_ok(c);
}

static const struct tensor_spec trunk[] = {SPECS_TRUNK, {0}};
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
    .types = (const char *const[]){"llama", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act", "attention_bias", NULL},
    .configure = configure_llama,
    .trunk = trunk,
    .layer = layer,
};

const struct family family_mistral = {
    .name = "mistral",
    .types = (const char *const[]){"mistral", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act", "sliding_window", NULL},
    .configure = configure_mistral,
    .trunk = trunk,
    .layer = layer,
};

/* Mistral with layer_types. */
const struct family family_ministral = {
    .name = "mistral",
    .types = (const char *const[]){"ministral", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act", "sliding_window", "layer_types", NULL},
    .configure = configure_mistral,
    .trunk = trunk,
    .layer = layer,
};

const struct family family_ministral3 = {
    .name = "mistral",
    .types = (const char *const[]){"ministral3", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act", "sliding_window", NULL},
    .configure = configure_ministral3,
    .trunk = trunk,
    .layer = layer,
};

const struct family family_smollm3 = {
    .name = "smollm3",
    .types = (const char *const[]){"smollm3", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act", "attention_bias", "sliding_window",
        "use_sliding_window", "layer_types", "no_rope_layers", "no_rope_layer_interval", NULL},
    .configure = configure_smollm3,
    .trunk = trunk,
    .layer = layer,
};

const struct family family_qwen2 = {
    .name = "qwen2",
    .types = (const char *const[]){"qwen2", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act", "sliding_window", "use_sliding_window",
        "max_window_layers", "layer_types", NULL},
    .configure = configure_qwen2,
    .trunk = trunk,
    .layer = layer,
};

const struct family family_qwen3 = {
    .name = "qwen3",
    .types = (const char *const[]){"qwen3", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act", "attention_bias", "sliding_window",
        "use_sliding_window", "max_window_layers", "layer_types", NULL},
    .configure = configure_qwen3,
    .trunk = trunk,
    .layer = qwen3_layer,
};

const struct family family_phi3 = {
    .name = "phi3",
    .types = (const char *const[]){"phi3", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act", "sliding_window", NULL},
    .configure = configure_phi3,
    .trunk = trunk,
    .layer = phi3_layer,
};
