/* laguna.c - Laguna: heads by layer, a rope for each layer type, a softplus gate on attention's
 * output, experts chosen by sigmoids and a bias, beside a shared one.
 */
#include "models/families/families.h"

/* true and "per-head": one number a head; the reference takes anything else for one an element. */
static void configure_gate(struct arch *a)
{
    const json_t *v = conf_value(&a->c, "gating");
    a->cfg->gate = GATE_SOFTPLUS;
    a->cfg->gate_by_head =
        !v || json_is_true(v) || (json_is_string(v) && !strcmp(json_string_value(v), "per-head"));
    if (v && !a->cfg->gate_by_head &&
        (!json_is_string(v) || strcmp(json_string_value(v), "per-element") != 0))
        conf_refuse(&a->c, "gating", "is neither true, \"per-head\" nor \"per-element\"");
}

static void configure_heads(struct arch *a)
{
    const struct conf *c = &a->c;
    int64_t heads[1024];
    int n = conf_ints(c, "num_attention_heads_per_layer", heads, 1024);
    if (n && n != a->cfg->n_layer)
        conf_refuse(c, "num_attention_heads_per_layer", "has %d entries, expected %d "
                    "(num_hidden_layers)", n, a->cfg->n_layer);
    for (int i = 0; i < n && conf_ok(c); i++) {
        if (heads[i] < 1 || heads[i] > 1024 || heads[i] % a->layer[i].n_kv)
            conf_refuse(c, "num_attention_heads_per_layer", "has %lld for layer %d, expected a "
                        "multiple of num_key_value_heads %d", (long long)heads[i], i,
                        a->layer[i].n_kv);
        a->layer[i].n_head = (int)heads[i];
    }
}

static void configure(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->qk_norm = true;
    configure_gate(a);
    configure_heads(a);
    arch_experts(a, "num_experts", 256, 8, 512);
    arch_mlp_types(a, 1);
    arch_shared(a, conf_int(c, "shared_expert_intermediate_size", 512, 1, 1 << 20));
    g->router = ROUTER_SIGMOID;
    g->router_cap = (float)conf_num(c, "moe_router_logit_softcapping", 0, 0, 1e6);
    g->route_scale = (float)conf_num(c, "moe_routed_scaling_factor", 1, 1e-6, 1e6);
    arch_windows(a, 1, 512);
}

static const struct tensor_spec layer[] = {
    SPECS_PRE_NORM,
    SPECS_ATTENTION,
    SPECS_HEAD_NORMS,
    {SPEC(layer, wgate, "self_attn.g_proj.weight", X_GATE, X_HIDDEN)},
    SPECS_MLP_IF(IF_DENSE),
    SPECS_SHARED("mlp.shared_expert."),
    {SPEC(layer, router, "mlp.gate.weight", X_EXPERTS, X_HIDDEN), .when = IF_MOE},
    {SPEC(layer, choice_b, "mlp.experts.e_score_correction_bias", X_EXPERTS), .when = IF_MOE,
     .older = "mlp.gate.e_score_correction_bias"},
    SPECS_EXPERTS,
    {0},
};

const struct family family_laguna = {
    .name = "laguna",
    .types = {"laguna"},
    .keys = (const char *const[]){
        KEYS_OF_ALL, "hidden_act", "attention_bias", "sliding_window", "layer_types", "gating",
        "num_attention_heads_per_layer", "mlp_layer_types", "num_experts", "num_experts_per_tok",
        "moe_intermediate_size", "shared_expert_intermediate_size", "moe_routed_scaling_factor",
        "moe_router_logit_softcapping", NULL},
    .sizes = {.hidden = 2048, .ffn = 8192, .layers = 40, .heads = 48, .kv = 8, .head_dim = 128,
              .vocab = 100352, .max_pos = 131072, .eps = 1e-6},
    .rope = {{.type = "full_attention", .partial = true, .dflt = ROPE_PART(5e5, 0.5)},
             {.type = "sliding_attention", .partial = true, .dflt = ROPE_PLAIN(1e4)}},
    .configure = configure,
    .layer = layer,
};
