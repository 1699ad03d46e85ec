/* llama.c - families of the pre-norm block: Llama 3, Mistral and Ministral (Llama with windows),
 * Qwen 3 (Llama with q and k normalised per head).
 */
#include "models/families/families.h"

static bool configure_block(struct arch *a, const struct sizes *dflt)
{
    static const struct rope_spelling rope = {
        .theta = "rope_theta", .scaled = true, .dflt = ROPE_PLAIN(1e4),
    };
    if (!arch_sizes(a, dflt))
        return false;
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->norm = NORM_RMS;
    g->place = PLACE_PRE;
    g->act = arch_act(c, "hidden_act", "silu");
    g->tied = conf_bool(c, "tie_word_embeddings", false);
    arch_quantization(a, NULL);
    g->n_rope = 1;
    arch_rope(c, g, &rope, &g->rope[0]);
    return true;
}

/* All layers have full attention. */
static bool configure_llama(struct arch *a)
{
    static const struct sizes dflt = {.eps = 1e-6};
    return configure_block(a, &dflt) && conf_ok(&a->c);
}

/* Without layer_types, which Mistral does not use, every layer is a sliding one; a null
 * sliding_window makes all layers full. */
static bool configure_mistral(struct arch *a)
{
    static const struct sizes dflt = {.kv = 8, .eps = 1e-6};
    if (!configure_block(a, &dflt))
        return false;
    arch_windows(a, conf_is_null(&a->c, "sliding_window") ? 1 : 0, 4096);
    return conf_ok(&a->c);
}

/* sliding_window applies only if use_sliding_window is true, and without layer_types to the layers
 * from max_window_layers on. */
static bool configure_qwen3(struct arch *a)
{
    static const struct sizes dflt = {.kv = 32, .head_dim = 128, .eps = 1e-6};
    if (!configure_block(a, &dflt))
        return false;
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->qk_norm = true;
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

static const struct tensor_spec trunk[] = {SPECS_TRUNK, {0}};
static const struct tensor_spec layer[] = {SPECS_PRE_NORM, SPECS_ATTENTION, SPECS_MLP, {0}};
static const struct tensor_spec qwen3_layer[] = {
    SPECS_PRE_NORM, SPECS_ATTENTION, SPECS_HEAD_NORMS, SPECS_MLP, {0},
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
