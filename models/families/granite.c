/* granite.c - Granite with sliding layers, dense and as a mixture of experts: sinks in all layers,
 * a theta for each layer, and multipliers of the embedding, the scores, what a block adds, and the
 * logits.
 */
#include "models/families/families.h"

/* The table of that theta, a new one if it is new. */
static int rope_of_theta(struct arch *a, double theta)
{
    struct config *g = a->cfg;
    int r = 0;
    while (r < g->n_rope && g->rope[r].theta != theta)
        r++;
    if (r == MAX_ROPE) {
        conf_refuse(&a->c, "layer_rope_theta", "has more than %d values that are not 0, which is "
                    "not supported", MAX_ROPE);
        return 0;
    }
    if (r == g->n_rope) {
        g->rope[r] = g->rope[0];
        g->rope[r].theta = theta;
        g->n_rope++;
    }
    return r;
}

/* layer_rope_theta has a theta for each layer; 0: the layer has no rope. */
static void configure_ropes(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    const json_t *thetas = arch_list(a, "layer_rope_theta", true);
    g->n_rope = thetas ? 0 : 1;
    for (int i = 0; thetas && i < g->n_layer && conf_ok(c); i++) {
        const json_t *v = json_array_get(thetas, (size_t)i);
        double theta = json_number_value(v);
        if (!json_is_number(v) || (theta != 0 && !(theta > 1 && theta <= 1e12)))
            conf_refuse(c, "layer_rope_theta", "has no theta for layer %d, expected 0 or more than "
                                               "1", i);
        a->layer[i].rope_id = theta != 0 ? rope_of_theta(a, theta) : -1;
    }
    if (g->n_rope == 0)
        g->n_rope = 1; /* a table that no layer uses */
}

static void configure_block(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->sinks = true;
    g->embed_scale = (float)conf_num(c, "embedding_multiplier", 1, 1e-6, 1e6);
    g->attn_scale = (float)conf_num(c, "attention_multiplier", 1, 1e-6, 1e6);
    g->residual_scale = (float)conf_num(c, "residual_multiplier", 1, 1e-6, 1e6);
    g->logit_scale = (float)(1 / conf_num(c, "logits_scaling", 1, 1e-6, 1e6));
    arch_windows_from(a, 4, 0, 128); /* the first layer is a full one */
    configure_ropes(a);
}

static void configure_dense(struct arch *a)
{
    configure_block(a);
    a->cfg->tied = arch_tied(a, true);
}

/* intermediate_size is the width of an expert. */
static void configure_moe(struct arch *a)
{
    configure_block(a);
    arch_experts(a, "num_local_experts", 8, 2, 0);
    arch_mlp_types(a, 0);
    arch_shared(a, conf_int(&a->c, "shared_intermediate_size", 0, 0, 1 << 20));
}

static const struct tensor_spec dense_layer[] = {
    SPECS_PRE_NORM, SPECS_ATTENTION, {SPEC(layer, sinks, "self_attn.sinks", X_HEADS)}, SPECS_MLP,
    {0},
};
static const struct tensor_spec moe_layer[] = {
    SPECS_PRE_NORM,
    SPECS_ATTENTION,
    {SPEC(layer, sinks, "self_attn.sinks", X_HEADS)},
    {SPEC(layer, router, "block_sparse_moe.router.weight", X_EXPERTS, X_HIDDEN),
     .older = "block_sparse_moe.router.layer.weight"},
    {SPEC(layer, gate_up, "block_sparse_moe.experts.gate_up_proj", X_EXPERTS, X_EXPERT_FFN2,
          X_HIDDEN), .older = "block_sparse_moe.input_linear.weight"},
    {SPEC(layer, down_e, "block_sparse_moe.experts.down_proj", X_EXPERTS, X_HIDDEN, X_EXPERT_FFN),
     .older = "block_sparse_moe.output_linear.weight"},
    {SPEC(layer, gate, "shared_mlp.input_linear.weight", X_FFN, X_HIDDEN), .when = IF_SHARED,
     .fused = 2},
    {SPEC(layer, up, "shared_mlp.input_linear.weight", X_FFN, X_HIDDEN), .when = IF_SHARED},
    {SPEC(layer, down, "shared_mlp.output_linear.weight", X_HIDDEN, X_FFN), .when = IF_SHARED},
    {0},
};

#define KEYS                                                                                       \
    KEYS_OF_MOST, "attention_bias", "sliding_window", "layer_types", "layer_rope_theta",           \
        "embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"

const struct family family_granite_swa = {
    .name = "granite",
    .types = {"granite_swa"},
    .keys = (const char *const[]){KEYS, NULL},
    .sizes = {.kv = 4, .eps = 1e-5},
    .rope = {ROPE_OLD(1e4)},
    .configure = configure_dense,
    .layer = dense_layer,
};

const struct family family_granitemoe_swa = {
    .name = "granite",
    .types = {"granitemoe_swa"},
    .keys = (const char *const[]){
        KEYS, "num_local_experts", "num_experts_per_tok", "shared_intermediate_size", NULL},
    .sizes = {.eps = 1e-6},
    .rope = {ROPE_OLD(1e4)},
    .configure = configure_moe,
    .layer = moe_layer,
};
