/* qwen3_moe.c - mixtures of experts on Qwen 3's block: Qwen 3 and Mellum 2. Some layers may have a
 * dense MLP. The checkpoint has one matrix per expert. Mellum has sliding layers with a rope of
 * their own, too.
 */
#include "models/families/families.h"

/* n_expert, ffn and norm: the defaults. */
static void configure_experts(struct arch *a, int n_expert, int ffn, bool norm)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->qk_norm = true;
    int n = conf_int(c, "num_local_experts", n_expert, 1, 512);
    /* the name that comes first */
    arch_experts(a, "num_experts", n, 8, ffn);
    g->router = conf_bool(c, "norm_topk_prob", norm) ? ROUTER_CHOSEN : ROUTER_ALL;
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

static void configure_qwen3_moe(struct arch *a)
{
    const struct conf *c = &a->c;
    configure_experts(a, 128, 768, false);
    configure_sparse(a);
    bool slides = conf_bool(c, "use_sliding_window", false);
    arch_windows(a, slides && !conf_is_null(c, "sliding_window") ? 0 : 1, 4096);
}

static void configure_mellum(struct arch *a)
{
    configure_experts(a, 64, 896, true);
    arch_mlp_types(a, 0);
    arch_windows(a, 1, 1024);
}

static const struct tensor_spec layer[] = {
    SPECS_PRE_NORM,
    SPECS_ATTENTION,
    SPECS_HEAD_NORMS,
    SPECS_MLP_IF(IF_DENSE),
    {SPEC(layer, router, "mlp.gate.weight", X_EXPERTS, X_HIDDEN), .when = IF_MOE},
    SPECS_EXPERTS,
    {0},
};

const struct family family_qwen3_moe = {
    .name = "qwen3",
    .types = {"qwen3_moe"},
    .keys = (const char *const[]){
        KEYS_OF_MOST, "attention_bias", "sliding_window",
        "use_sliding_window", "num_experts", "num_local_experts", "num_experts_per_tok",
        "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", NULL},
    .sizes = {.kv = 4, .eps = 1e-6},
    .rope = {ROPE_OLD(1e4)},
    .configure = configure_qwen3_moe,
    .layer = layer,
};

const struct family family_mellum = {
    .name = "mellum",
    .types = {"mellum"},
    .keys = (const char *const[]){
        KEYS_OF_ALL, "hidden_act", "attention_bias", "sliding_window", "layer_types",
        "mlp_layer_types", "num_experts", "num_local_experts", "num_experts_per_tok",
        "moe_intermediate_size", "norm_topk_prob", NULL},
    .sizes = {.hidden = 2304, .ffn = 7168, .layers = 28, .heads = 32, .kv = 4, .head_dim = 128,
              .vocab = 98304, .max_pos = 131072, .eps = 1e-6},
    .rope = {{.type = "full_attention", .dflt = ROPE_PLAIN(5e5)},
             {.type = "sliding_attention", .dflt = ROPE_PLAIN(1e4)}},
    .configure = configure_mellum,
    .layer = layer,
};
