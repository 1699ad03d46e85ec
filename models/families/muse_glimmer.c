/* muse_glimmer.c - Muse Glimmer: a normalised embedding, norms on both sides of attention and MLP,
 * queries and keys normalised without weights, a sigmoid gate on attention's output. Every fourth
 * layer, counted from the last one, is full and has no rope.
 */
#include "models/families/families.h"

/* One theta is that of all layers; an entry of layer_rope_theta that is 0 takes the rope away. */
static void configure_rope(struct arch *a)
{
    const struct conf *c = &a->c;
    const json_t *thetas = arch_list(a, "layer_rope_theta", true);
    int n = a->cfg->n_layer;
    for (int i = 0; i < n && conf_ok(c); i++) {
        const json_t *v = json_array_get(thetas, (size_t)i);
        if (v && !json_is_number(v))
            conf_refuse(c, "layer_rope_theta", "has no number for layer %d", i);
        bool none = v ? json_number_value(v) == 0 : (n - 1 - i) % 4 == 0;
        a->layer[i].rope_id = none ? -1 : 0;
    }
}

static void configure(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->act = arch_act(c, "hidden_activation", "silu");
    g->norm = NORM_RMS1P;
    g->final_norm = NORM_RMS;
    g->post_eps = (float)conf_num(c, "post_norm_eps", 1e-8, 1e-12, 1);
    g->embed_norm = true;
    g->gate = GATE_SIGMOID;
    g->attn_scale *= (float)conf_num(c, "qk_scale_factor", 3.87, 1e-6, 1e6);
    g->logit_scale = (float)conf_num(c, "output_multiplier", 0.19611613513818404, 1e-6, 1e6);
    /* the reference multiplies before it caps: m y' for y' of a cap of c / m */
    g->final_softcap = arch_softcap(c, "final_logit_softcapping", 20) / g->logit_scale;
    for (int i = 0; i < g->n_layer; i++)
        a->layer[i].qk_plain = true;
    arch_windows_from(a, 4, g->n_layer - 1, 2048);
    configure_rope(a);
}

static const struct tensor_spec layer[] = {
    SPECS_SANDWICH,
    SPECS_ATTENTION,
    {SPEC(layer, wgate, "self_attn.gate_proj.weight", X_GATE, X_HIDDEN)},
    SPECS_MLP,
    {0},
};

const struct family family_muse_glimmer = {
    .name = "muse_glimmer",
    .types = {"muse_glimmer_text", "muse_glimmer"},
    .outer = "muse_glimmer",
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_activation", "attention_bias", "sliding_window",
        "layer_types", "layer_rope_theta", "post_norm_eps", "qk_scale_factor", "output_multiplier",
        "final_logit_softcapping", NULL},
    .sizes = {.hidden = 6656, .ffn = 19968, .layers = 52, .heads = 32, .kv = 2, .head_dim = 128,
              .vocab = 202048, .max_pos = 131072, .eps = 1e-5},
    .place = PLACE_SANDWICH,
    .rope = {ROPE_OLD(1e4)},
    .configure = configure,
    .layer = layer,
};
