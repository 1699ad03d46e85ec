/* olmo3.c - OLMo 3: norms after attention and MLP only, q and k normalised over the whole
 * projection, three sliding layers to one full layer. Only full layers use the scaled (YaRN) rope.
 */
#include "models/families/families.h"

/* The older spelling's theta is one of the full layers only: with it the reference leaves sliding
 * layers at 5e5, where its earlier versions took it for all. So it cannot be followed where the two
 * differ. */
static void check_old_theta(const struct arch *a)
{
    const struct conf *c = &a->c;
    struct conf all, one;
    if (conf_num(c, "rope_theta", 5e5, 1.001, 1e12) == 5e5 || !a->cfg->window ||
        (conf_enter(c, "rope_parameters", &all) && conf_enter(&all, "sliding_attention", &one) &&
         conf_has(&one, "rope_theta")))
        return;
    conf_refuse(c, "rope_theta", "does not say whether it is of sliding layers, too, expected "
                "500000, or a rope_theta in rope_parameters.sliding_attention");
}

static bool configure(struct arch *a)
{
    static const struct sizes dflt = {.eps = 1e-5};
    static const struct rope_spelling sliding = {
        .type = "sliding_attention", .dflt = ROPE_PLAIN(5e5),
    };
    static const struct rope_spelling full = {
        .type = "full_attention", .theta = "rope_theta", .scaled = true, .dflt = ROPE_PLAIN(5e5),
    };
    if (!arch_sizes(a, &dflt))
        return false;
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->norm = NORM_RMS;
    g->place = PLACE_POST;
    g->qk_norm = g->qk_norm_whole = true;
    g->act = arch_act(c, "hidden_act", "silu");
    g->tied = conf_bool(c, "tie_word_embeddings", false);
    arch_quantization(a, NULL);
    arch_windows(a, 4, 4096);
    g->n_rope = 2;
    arch_rope(c, g, &sliding, &g->rope[0]);
    arch_rope(c, g, &full, &g->rope[1]);
    check_old_theta(a);
    for (int i = 0; i < g->n_layer; i++)
        a->layer[i].rope_id = a->layer[i].window ? 0 : 1;
    return conf_ok(c);
}

static const struct tensor_spec trunk[] = {SPECS_TRUNK, {0}};
static const struct tensor_spec layer[] = {
    SPECS_ATTENTION,
    {SPEC(layer, q_norm, "self_attn.q_norm.weight", X_Q)},
    {SPEC(layer, k_norm, "self_attn.k_norm.weight", X_KV)},
    SPECS_MLP,
    {SPEC(layer, attn_norm, "post_attention_layernorm.weight", X_HIDDEN)},
    {SPEC(layer, ffn_norm, "post_feedforward_layernorm.weight", X_HIDDEN)},
    {0},
};

const struct family family_olmo3 = {
    .name = "olmo3",
    .types = (const char *const[]){"olmo3", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act", "attention_bias", "layer_types",
        "sliding_window", NULL},
    .configure = configure,
    .trunk = trunk,
    .layer = layer,
};
