/* step3p5.c - Step 3.5 and 3.7's text model: heads by layer type, a rope for each, a sigmoid gate
 * by head on attention's output, experts chosen by sigmoids and a bias, beside a shared one; in
 * some layers what the gates and up projections give is clamped.
 */
#include "models/families/families.h"

#include <math.h>
#include <string.h>

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
static float limit_of(const struct conf *c, const char *key, int n, int i)
{
    const json_t *v = conf_value(c, key), *x = json_array_get(v, (size_t)i);
    if (v && json_array_size(v) < (size_t)n)
        conf_refuse(c, key, "has %zu entries, expected %d (num_hidden_layers)", json_array_size(v),
                    n);
    if (x && !json_is_null(x) && !(json_number_value(x) >= 0 && json_number_value(x) < 1e6))
        conf_refuse(c, key, "has no limit for layer %d", i);
    return (float)json_number_value(x);
}

static bool configure(struct arch *a)
{
    static const struct sizes dflt = {
        .hidden = 4096, .ffn = 11264, .layers = 45, .heads = 64, .kv = 8, .head_dim = 128,
        .vocab = 128815, .max_pos = 128000, .eps = 1e-5,
    };
    static const struct rope_spelling ropes[2] = {
        {.type = "full_attention", .partial = true, .dflt = ROPE_PLAIN(1e4)},
        {.type = "sliding_attention", .partial = true, .dflt = ROPE_PLAIN(1e4)},
    };
    if (!arch_block(a, &dflt, PLACE_PRE))
        return false;
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    int n = g->n_layer, dim = a->layer[0].head_dim;
    g->norm = NORM_RMS1P;
    g->qk_norm = g->gate_by_head = true;
    g->gate = GATE_SIGMOID;
    g->attn_scale = (float)pow(conf_num(c, "query_pre_attn_scalar", dim, 1e-3, 1e6), -0.5);
    arch_windows(a, 1, 0);
    configure_heads(a);
    arch_experts(a, "n_routed_experts", 288, "num_experts_per_tok", 8, 1280);
    configure_sparse(a);
    arch_shared(a, conf_int(c, "share_expert_dim", 1280, 1, 1 << 20));
    g->router = ROUTER_SIGMOID;
    g->route_scale = (float)conf_num(c, "moe_router_scaling_factor", 1, 1e-6, 1e6);
    g->n_rope = 2;
    for (int i = 0; i < 2; i++)
        arch_rope(c, g, &ropes[i], &g->rope[i]);
    arch_rope_ids(a, 0, 1);
    for (int i = 0; i < n; i++) {
        if (a->layer[i].is_moe)
            a->layer[i].expert_limit = limit_of(c, "swiglu_limits", n, i);
        a->layer[i].dense_limit = limit_of(c, "swiglu_limits_shared", n, i);
    }
    return conf_ok(c);
}

static const struct tensor_spec trunk[] = {SPECS_TRUNK, {0}};
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
    .types = (const char *const[]){"step3p5", "step3p7", NULL},
    .outer = "step3p7",
    .keys = (const char *const[]){
        KEYS_OF_ALL, "hidden_act", "attention_bias", "query_pre_attn_scalar", "sliding_window",
        "layer_types", "num_sliding_attention_heads", "attention_other_setting",
        "per_layer_config", "mlp_layer_types", "moe_layers_enum", "n_routed_experts",
        "num_experts_per_tok", "moe_intermediate_size", "share_expert_dim",
        "moe_router_scaling_factor", "swiglu_limits", "swiglu_limits_shared", NULL},
    .configure = configure,
    .trunk = trunk,
    .layer = layer,
};
