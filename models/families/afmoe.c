/* afmoe.c - AFMoE (Arcee's Trinity): norms on both sides of attention and MLP, a sigmoid gate on
 * attention's output, experts chosen by sigmoids and a bias, beside shared ones. Full layers have
 * no rope.
 */
#include "models/families/families.h"

#include <math.h>

static void configure(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->qk_norm = true;
    g->gate = GATE_SIGMOID;
    if (conf_bool(c, "mup_enabled", false))
        g->embed_scale = (float)sqrt(g->hidden);
    arch_experts(a, "num_experts", 64, 6, 1408);
    g->router = ROUTER_SIGMOID;
    g->route_scale = (float)conf_num(c, "route_scale", 1, 1e-6, 1e6);
    arch_mlp_types(a, conf_int(c, "num_dense_layers", 1, 0, 1 << 20));
    arch_shared(a, g->expert_ffn * conf_int(c, "num_shared_experts", 2, 1, 64));
    arch_windows(a, conf_int(c, "global_attn_every_n_layers", 4, 1, 1024), 1024);
    arch_rope_ids(a, -1, 0);
}

static const struct tensor_spec layer[] = {
    {SPEC(layer, in_norm, "input_layernorm.weight", X_HIDDEN)},
    {SPEC(layer, attn_norm, "post_attention_layernorm.weight", X_HIDDEN)},
    {SPEC(layer, ffn_in_norm, "pre_mlp_layernorm.weight", X_HIDDEN)},
    {SPEC(layer, ffn_norm, "post_mlp_layernorm.weight", X_HIDDEN)},
    SPECS_ATTENTION,
    SPECS_HEAD_NORMS,
    {SPEC(layer, wgate, "self_attn.gate_proj.weight", X_GATE, X_HIDDEN)},
    SPECS_MLP_IF(IF_DENSE),
    SPECS_SHARED("mlp.shared_experts."),
    {SPEC(layer, router, "mlp.router.gate.weight", X_EXPERTS, X_HIDDEN), .when = IF_MOE},
    {SPEC(layer, choice_b, "mlp.expert_bias", X_EXPERTS), .when = IF_MOE},
    SPECS_EXPERTS,
    {0},
};

const struct family family_afmoe = {
    .name = "afmoe",
    .types = {"afmoe"},
    .keys = (const char *const[]){
        KEYS_OF_MOST, "attention_bias", "sliding_window", "layer_types",
        "global_attn_every_n_layers", "mup_enabled", "num_experts", "num_experts_per_tok",
        "num_shared_experts", "num_dense_layers", "moe_intermediate_size", "route_scale", NULL},
    .sizes = {.hidden = 2048, .ffn = 6144, .layers = 32, .heads = 16, .head_dim = 128,
              .vocab = 200192, .max_pos = 16384, .eps = 1e-5},
    .place = PLACE_SANDWICH,
    .rope = {ROPE_OLD(1e4)},
    .configure = configure,
    .layer = layer,
};
