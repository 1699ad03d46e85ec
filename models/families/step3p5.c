/* step3p5.c - Step 3.5 and 3.7's text model: heads by layer type, a rope for each, a sigmoid gate
 * by head on attention's output, experts chosen by sigmoids and a bias, beside a shared one; in
 * some layers what the gates and up projections give is clamped.
 */
#include "models/families/families.h"

#include <math.h>

static void configure_heads(struct arch *a)
{
    const struct conf *c = &a->c;
    struct conf other;
    int heads = a->layer[0].n_head;
    if (conf_enter(c, "attention_other_setting", &other)) /* the older spelling */
        heads = conf_int(&other, "num_attention_heads", heads, 1, 1024);
    heads = conf_int(c, "num_sliding_attention_heads", heads, 1, 1024);
    for (int i = 0; i < a->cfg->n_layer; i++)
        if (a->layer[i].window)
            a->layer[i].n_head = heads;
    if (heads % a->layer[0].n_kv)
        conf_refuse(c, "num_sliding_attention_heads", "is %d, expected a multiple of "
                    "num_key_value_heads %d", heads, a->layer[0].n_kv);
}

/* The numbers of layers with experts, as text; without the list all but the first three. */
static void configure_sparse(struct arch *a)
{
    const struct conf *c = &a->c;
    const char *s = conf_str(c, "moe_layers_enum", NULL);
    arch_mlp_types(a, 3);
    for (int i = 0; s && !conf_has(c, "mlp_layer_types") && i < a->cfg->n_layer; i++)
        a->layer[i].is_moe = false;
    for (int l = 0; s && *s && !conf_has(c, "mlp_layer_types"); s += strspn(s, ", ")) {
        if (!int_at(&s, &l) || l < 0) {
            conf_refuse(c, "moe_layers_enum", "is not a list of layers, as \"3,4,5\"");
            return;
        }
        if (l < a->cfg->n_layer)
            a->layer[l].is_moe = true;
    }
}

/* One number a layer; 0 or null: none. */
static float limit_of(const struct arch *a, const char *key, int i)
{
    const json_t *x = json_array_get(arch_list(a, key, true), (size_t)i);
    if (x && !json_is_null(x) && !(json_number_value(x) >= 0 && json_number_value(x) < 1e6))
        conf_refuse(&a->c, key, "has no limit for layer %d", i);
    return (float)json_number_value(x);
}

/* The reference takes the ropes of rope_parameters only if each type that layers have has one. */
static void check_ropes(const struct arch *a)
{
    struct conf all;
    if (!conf_enter(&a->c, "rope_parameters", &all))
        return;
    for (int i = 0; i < a->cfg->n_layer; i++) {
        const char *type = a->layer[i].window ? "sliding_attention" : "full_attention";
        if (!conf_has(&all, type))
            conf_refuse(&all, type, "is missing, the rope of layer %d", i);
    }
}

static void configure(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    int dim = a->layer[0].head_dim;
    g->norm = NORM_RMS1P;
    g->qk_norm = g->gate_by_head = true;
    g->gate = GATE_SIGMOID;
    g->attn_scale = (float)pow(conf_num(c, "query_pre_attn_scalar", dim, 1e-3, 1e6), -0.5);
    arch_windows(a, 1, 0);
    check_ropes(a);
    configure_heads(a);
    arch_experts(a, "n_routed_experts", 288, "num_experts_per_tok", 8, 1280);
    configure_sparse(a);
    arch_shared(a, conf_int(c, "share_expert_dim", 1280, 1, 1 << 20));
    g->router = ROUTER_SIGMOID;
    g->route_scale = (float)conf_num(c, "moe_router_scaling_factor", 1, 1e-6, 1e6);
    for (int i = 0; i < g->n_layer; i++) {
        if (a->layer[i].is_moe)
            a->layer[i].expert_limit = limit_of(a, "swiglu_limits", i);
        a->layer[i].dense_limit = limit_of(a, "swiglu_limits_shared", i);
    }
}

static const struct tensor_spec layer[] = {
    SPECS_PRE_NORM,
    SPECS_ATTENTION,
    SPECS_HEAD_NORMS,
    {SPEC(layer, wgate, "self_attn.g_proj.weight", X_GATE, X_HIDDEN)},
    SPECS_MLP_IF(IF_DENSE),
    SPECS_SHARED("share_expert."),
    {SPEC(layer, router, "moe.gate.weight", X_EXPERTS, X_HIDDEN), .when = IF_MOE},
    {SPEC(layer, choice_b, "moe.router_bias", X_EXPERTS), .when = IF_MOE},
    {SPEC(layer, gate_up, "moe.gate_proj.weight", X_EXPERTS, X_EXPERT_FFN, X_HIDDEN),
     .when = IF_MOE, .stacked = 2},
    {SPEC(layer, gate_up, "moe.up_proj.weight", X_EXPERTS, X_EXPERT_FFN, X_HIDDEN)},
    {SPEC(layer, down_e, "moe.down_proj.weight", X_EXPERTS, X_HIDDEN, X_EXPERT_FFN),
     .when = IF_MOE},
    {0},
};

const struct family family_step3p5 = {
    .name = "step3p5",
    .types = {"step3p5", "step3p7"},
    .outer = "step3p7",
    .keys = (const char *const[]){
        KEYS_OF_ALL, "hidden_act", "attention_bias", "query_pre_attn_scalar", "sliding_window",
        "layer_types", "num_sliding_attention_heads", "attention_other_setting",
        "per_layer_config", "mlp_layer_types", "moe_layers_enum", "n_routed_experts",
        "num_experts_per_tok", "moe_intermediate_size", "share_expert_dim",
        "moe_router_scaling_factor", "swiglu_limits", "swiglu_limits_shared", NULL},
    .sizes = {.hidden = 4096, .ffn = 11264, .layers = 45, .heads = 64, .kv = 8, .head_dim = 128,
              .vocab = 128815, .max_pos = 128000, .eps = 1e-5},
    .rope = {{.type = "full_attention", .partial = true, .dflt = ROPE_PLAIN(1e4)},
             {.type = "sliding_attention", .partial = true, .dflt = ROPE_PLAIN(1e4)}},
    .configure = configure,
    .layer = layer,
};
