/* qwen3_moe.c - mixtures of experts on Qwen 3's block: Qwen 3 and Mellum 2. Some layers may have a
 * dense MLP. The checkpoint has one matrix per expert. Mellum has sliding layers with a rope of
 * their own, too.
 */
#include "models/families/families.h"

#include <string.h>

/* n_expert, ffn and norm: the defaults. */
static void configure_experts(struct arch *a, int n_expert, int ffn, bool norm)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->qk_norm = true;
    g->moe = MOE_ALONE;
    g->store = STORE_HALVES;
    int n = conf_int(c, "num_local_experts", n_expert, 1, 512);
    g->n_expert = conf_int(c, "num_experts", n, 1, 512); /* another name, which comes first */
    g->top_k = conf_int(c, "num_experts_per_tok", 8, 1, min_int(g->n_expert, 32));
    if (g->top_k > g->n_expert)
        conf_refuse(c, "num_experts_per_tok", "is missing, and its default 8 is more than the %d "
                    "experts", g->n_expert);
    g->expert_ffn = conf_int(c, "moe_intermediate_size", ffn, 1, 1 << 20);
    g->router_all = !conf_bool(c, "norm_topk_prob", norm);
}

/* The layers of mlp_only_layers, and those that no decoder_sparse_step-th is, have a dense MLP. */
static void configure_sparse(struct arch *a)
{
    const struct conf *c = &a->c;
    int64_t dense[1024];
    int step = conf_int(c, "decoder_sparse_step", 1, 1, 1 << 20);
    int n = conf_ints(c, "mlp_only_layers", dense, 1024);
    for (int i = 0; i < a->cfg->n_layer; i++) {
        a->layer[i].is_moe = (i + 1) % step == 0;
        for (int k = 0; k < n; k++)
            a->layer[i].is_moe &= dense[k] != i;
    }
}

static bool configure_qwen3_moe(struct arch *a)
{
    static const struct sizes dflt = {.kv = 4, .eps = 1e-6};
    static const struct rope_spelling rope = {
        .theta = "rope_theta", .scaled = true, .dflt = ROPE_PLAIN(1e4),
    };
    if (!arch_block(a, &dflt, PLACE_PRE))
        return false;
    const struct conf *c = &a->c;
    a->cfg->n_rope = 1;
    arch_rope(c, a->cfg, &rope, &a->cfg->rope[0]);
    configure_experts(a, 128, 768, false);
    configure_sparse(a);
    bool slides = conf_bool(c, "use_sliding_window", false);
    arch_windows(a, slides && !conf_is_null(c, "sliding_window") ? 0 : 1, 4096);
    return conf_ok(c);
}

/* "dense" or "sparse" for each layer; without the list all are sparse. */
static void configure_mlp_types(struct arch *a)
{
    const struct conf *c = &a->c;
    const json_t *types = conf_value(c, "mlp_layer_types");
    int n = a->cfg->n_layer;
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)n))
        conf_refuse(c, "mlp_layer_types", "has %zu entries, expected %d (num_hidden_layers)",
                    json_array_size(types), n);
    for (int i = 0; i < n && conf_ok(c); i++) {
        const char *t = types ? json_string_value(json_array_get(types, (size_t)i)) : "sparse";
        a->layer[i].is_moe = t && !strcmp(t, "sparse");
        if (!t || (!a->layer[i].is_moe && strcmp(t, "dense") != 0))
            conf_refuse(c, "mlp_layer_types", "has \"%.60s\" for layer %d, expected dense or "
                        "sparse", t ? show(t).s : "?", i);
    }
}

static bool configure_mellum(struct arch *a)
{
    static const struct sizes dflt = {
        .hidden = 2304, .ffn = 7168, .layers = 28, .heads = 32, .kv = 4, .head_dim = 128,
        .vocab = 98304, .max_pos = 131072, .eps = 1e-6,
    };
    static const struct rope_spelling full = {
        .type = "full_attention", .dflt = ROPE_PLAIN(5e5),
    };
    static const struct rope_spelling sliding = {
        .type = "sliding_attention", .dflt = ROPE_PLAIN(1e4),
    };
    if (!arch_block(a, &dflt, PLACE_PRE))
        return false;
    struct config *g = a->cfg;
    configure_experts(a, 64, 896, true);
    configure_mlp_types(a);
    arch_windows(a, 1, 1024);
    g->n_rope = 2;
    arch_rope(&a->c, g, &full, &g->rope[0]);
    arch_rope(&a->c, g, &sliding, &g->rope[1]);
    for (int i = 0; i < g->n_layer; i++)
        a->layer[i].rope_id = a->layer[i].window ? 1 : 0;
    return conf_ok(&a->c);
}

static const struct tensor_spec trunk[] = {SPECS_TRUNK, {0}};
static const struct tensor_spec layer[] = {
    SPECS_PRE_NORM,
    SPECS_ATTENTION,
    SPECS_HEAD_NORMS,
    SPECS_MLP_IF(IF_DENSE),
    {SPEC(layer, router, "mlp.gate.weight", X_EXPERTS, X_HIDDEN), .when = IF_MOE},
    {SPEC(layer, gate_up, "mlp.experts.*.gate_proj.weight", X_EXPERT_FFN, X_HIDDEN),
     .when = IF_MOE, .stacked = 2},
    {SPEC(layer, gate_up, "mlp.experts.*.up_proj.weight", X_EXPERT_FFN, X_HIDDEN)},
    {SPEC(layer, down_e, "mlp.experts.*.down_proj.weight", X_HIDDEN, X_EXPERT_FFN),
     .when = IF_MOE, .stacked = 1},
    {0},
};

const struct family family_qwen3_moe = {
    .name = "qwen3",
    .types = (const char *const[]){"qwen3_moe", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act", "attention_bias", "sliding_window",
        "use_sliding_window", "num_experts", "num_local_experts", "num_experts_per_tok",
        "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", NULL},
    .configure = configure_qwen3_moe,
    .trunk = trunk,
    .layer = layer,
};

const struct family family_mellum = {
    .name = "mellum",
    .types = (const char *const[]){"mellum", NULL},
    .keys = (const char *const[]){
        KEYS_OF_ALL, "hidden_act", "attention_bias", "sliding_window", "layer_types",
        "mlp_layer_types", "num_experts", "num_local_experts", "num_experts_per_tok",
        "moe_intermediate_size", "norm_topk_prob", NULL},
    .configure = configure_mellum,
    .trunk = trunk,
    .layer = layer,
};
