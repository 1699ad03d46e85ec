/* mimo_v2.c - MiMo-V2: heads whose values are narrower than their keys, twice the KV heads and
 * sinks in sliding layers, experts chosen by sigmoids and a bias.
 */
#include "models/families/families.h"

/* Without layer_types and its older spelling the first layer and every sixth are full. A sliding
 * layer sees sliding_window_size keys before the query's own. */
static void configure_windows(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    int64_t slides[1024];
    int n = g->n_layer, old = conf_ints(c, "hybrid_layer_pattern", slides, 1024);
    int size = conf_int(c, "sliding_window_size", 0, 0, 1 << 30);
    if (old && old != n)
        conf_refuse(c, "hybrid_layer_pattern", "has %d entries, expected %d (num_hidden_layers)",
                    old, n);
    arch_windows_from(a, 6, 5, 129);
    for (int i = 0; i < n && conf_ok(c); i++) {
        struct layer *l = &a->layer[i];
        if (!conf_has(c, "layer_types") && (i == 0 || old))
            l->window = old && slides[i] ? conf_int(c, "sliding_window", 129, 1, 1 << 30) : 0;
        if (l->window && size)
            l->window = size + 1;
        if (l->window)
            g->window = l->window, l->n_kv *= 2;
        if (l->n_head % l->n_kv)
            conf_refuse(c, "num_attention_heads",
                        "is %d, expected a multiple of the %d KV heads of sliding layers",
                        l->n_head, l->n_kv);
    }
}

static void configure(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->o_bias = false;
    g->sinks = true;
    g->v_head_dim = conf_int(c, "v_head_dim", 128, 1, a->layer[0].head_dim);
    if (g->v_head_dim > a->layer[0].head_dim)
        conf_refuse(c, "v_head_dim", "is missing, and its default 128 is more than head_dim %d",
                    a->layer[0].head_dim);
    bool scaled = !conf_is_null(c, "attention_value_scale");
    g->value_scale = (float)conf_num(c, "attention_value_scale", scaled ? 0.707 : 1, 1e-6, 1e6);
    arch_experts(a, "n_routed_experts", 256, 8, 2048);
    arch_mlp_types(a, 1);
    g->router = conf_bool(c, "norm_topk_prob", true) ? ROUTER_SIGMOID : ROUTER_RAW;
    g->route_scale = (float)conf_num(c, "routed_scaling_factor", 1, 1e-6, 1e6);
    configure_windows(a);
}

static const struct tensor_spec layer[] = {
    SPECS_PRE_NORM,
    SPECS_ATTENTION,
    {SPEC(layer, sinks, "self_attn.attention_sink_bias", X_HEADS), .when = IF_SINKS},
    SPECS_MLP_IF(IF_DENSE),
    {SPEC(layer, router, "mlp.gate.weight", X_EXPERTS, X_HIDDEN), .when = IF_MOE},
    {SPEC(layer, choice_b, "mlp.gate.e_score_correction_bias", X_EXPERTS), .when = IF_MOE},
    SPECS_EXPERTS,
    {0},
};

const struct family family_mimo_v2 = {
    .name = "mimo_v2",
    .types = {"mimo_v2_flash"},
    .keys = (const char *const[]){
        KEYS_OF_ALL, "hidden_act", "attention_bias", "sliding_window", "sliding_window_size",
        "layer_types", "hybrid_layer_pattern", "v_head_dim", "attention_value_scale",
        "mlp_layer_types", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
        "norm_topk_prob", "routed_scaling_factor", NULL},
    .sizes = {.hidden = 4096, .ffn = 16384, .layers = 48, .heads = 64, .kv = 4, .head_dim = 192,
              .vocab = 152576, .max_pos = 131072, .eps = 1e-5},
    .rope = {{.type = "full_attention", .partial = true, .share = 0.334,
              .dflt = ROPE_PART(5e6, 0.334)},
             {.type = "sliding_attention", .partial = true, .share = 0.334,
              .dflt = ROPE_PART(1e4, 0.334)}},
    .configure = configure,
    .layer = layer,
};
