/* step3p5.c - Step 3.5 and 3.7's text model: heads by layer type, a rope for each, a sigmoid gate
 * by head on attention's output, experts chosen by sigmoids and a bias, beside a shared one; in
 * some layers what the gates and up projections give is clamped.
 */
#include "models/families/families.h"

#include <math.h>

/* ---- the older spelling ---- */

/* Cuts the list at `key` to n entries if it has n + more: those of layers that predict further
 * tokens, which are not loaded. */
static void cut_list(json_t *o, const char *key, size_t n, size_t more)
{
    json_t *list = json_object_get(o, key);
    while (json_array_size(list) > n && json_array_size(list) <= n + more)
        json_array_remove(list, json_array_size(list) - 1);
}

/* The entry of layer i in a list with one for each layer, or the value of all of them. */
static json_t *entry_of(json_t *v, size_t i)
{
    return json_is_array(v) ? json_array_get(v, i) : v;
}

/* The rope of layer i, of that type, in an older config. The scaling is that of full layers. NULL:
 * a list has no entry for the layer. */
static json_t *rope_of_layer(json_t *o, size_t i, const char *type)
{
    static const char *const from[] = {"rope_theta", "partial_rotary_factors"},
                      *const to[] = {"rope_theta", "partial_rotary_factor"};
    const json_t *scaling = json_object_get(o, "rope_scaling");
    json_t *rope = json_object();
    json_object_set_new(rope, "rope_type", json_string("default"));
    if (!strcmp(type, "full_attention") && json_is_object(scaling))
        json_object_update(rope, (json_t *)(uintptr_t)scaling);
    for (int k = 0; k < 2; k++) {
        json_t *v = json_object_get(o, from[k]), *x = entry_of(v, i);
        if (v && !x) {
            json_decref(rope);
            return NULL;
        }
        if (v)
            json_object_set(rope, to[k], x);
    }
    return rope;
}

/* One rope a layer type of what older configs say for each layer. Where layers of a type differ,
 * the keys stay as they are, and are refused. */
static void respell_ropes(json_t *o)
{
    static const char *const old[] = {"rope_theta", "rope_scaling", "partial_rotary_factors"};
    const json_t *types = json_object_get(o, "layer_types");
    json_t *all = json_object();
    bool same = true;
    for (size_t i = 0; same && i < (types ? json_array_size(types) : 1); i++) {
        const char *type = types ? json_string_value(json_array_get(types, i)) : "full_attention";
        json_t *rope = type ? rope_of_layer(o, i, type) : NULL;
        const json_t *before = type ? json_object_get(all, type) : NULL;
        same = rope && (!before || json_equal(before, rope));
        if (same)
            json_object_set_new(all, type, rope);
        else
            json_decref(rope);
    }
    if (same)
        json_object_set(o, "rope_parameters", all);
    json_decref(all);
    for (size_t i = 0; same && i < LEN(old); i++)
        json_object_del(o, old[i]);
}

/* Published configs have other names, lists that go on behind the model's layers, and ropes by
 * layer. */
static void respell(json_t *o)
{
    static const char *const names[][2] = {
        {"num_attention_groups", "num_key_value_heads"}, {"moe_num_experts", "n_routed_experts"},
        {"moe_top_k", "num_experts_per_tok"}, {"share_expert_dims", "share_expert_dim"}};
    static const char *const lists[] = {"layer_types", "mlp_layer_types", "rope_theta",
                                        "partial_rotary_factors"};
    for (size_t i = 0; i < LEN(names); i++) {
        json_t *v = json_object_get(o, names[i][0]);
        if (v && !json_object_get(o, names[i][1]))
            json_object_set(o, names[i][1], v);
        json_object_del(o, names[i][0]);
    }
    json_int_t n = json_integer_value(json_object_get(o, "num_hidden_layers")),
               more = json_integer_value(json_object_get(o, "num_nextn_predict_layers"));
    for (size_t i = 0; n > 0 && more > 0 && i < LEN(lists); i++)
        cut_list(o, lists[i], (size_t)n, (size_t)more);
    if (!json_is_object(json_object_get(o, "rope_parameters")))
        respell_ropes(o);
}

/* ---- the config ---- */

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
    arch_experts(a, "n_routed_experts", 288, 8, 1280);
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
    .respell = respell,
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
