/* gpt_oss.c - gpt-oss 20b and 120b: alternating windows, sinks, biases, clamped-SwiGLU experts
 * (MXFP4 as published, plain bf16, or another type of a GGUF), YaRN on every layer.
 */
#include "models/families/families.h"

#include <math.h>

static void configure_experts(const struct conf *c, struct config *g, const struct layer *first)
{
    double alpha = conf_num(c, "swiglu_alpha", 1.702, 0, 100);
    if (fabs(alpha - 1.702) > 1e-9)
        conf_refuse(c, "swiglu_alpha", "is %g, expected 1.702", alpha);
    g->act = ACT_SWIGLU_CLAMP;
    g->swiglu_limit = (float)conf_num(c, "swiglu_limit", 7, 1e-3, 1e6);
    g->moe = MOE_ALONE;
    int n = conf_int(c, "num_local_experts", 128, 1, 4096);
    g->n_expert = conf_int(c, "num_experts", n, 1, 4096); /* another name, which comes first */
    g->top_k = conf_int(c, "num_experts_per_tok", 4, 1, g->n_expert);
    if (g->top_k > g->n_expert)
        conf_refuse(c, "num_experts_per_tok", "is missing, and its default 4 is more than the %d "
                                              "experts", g->n_expert);
    g->expert_ffn = first->ffn;
}

static void configure(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->qkv_bias = g->o_bias = conf_bool(c, "attention_bias", true);
    g->sinks = true;
    configure_experts(c, g, &a->layer[0]);
    g->store = conf_has(c, "quantization_config") ? STORE_MXFP4 : STORE_IN_OUT;
    arch_windows(a, 2, 128);
    arch_mlp_types(a, 0);
}

static const struct tensor_spec layer[] = {
    SPECS_PRE_NORM,
    SPECS_ATTENTION,
    {SPEC(layer, sinks, "self_attn.sinks", X_HEADS)},
    {SPEC(layer, router, "mlp.router.weight", X_EXPERTS, X_HIDDEN)},
    {SPEC(layer, router_b, "mlp.router.bias", X_EXPERTS)},
    {SPEC(layer, gate_up, "mlp.experts.gate_up_proj_blocks", X_EXPERTS, X_EXPERT_FFN2,
          X_HIDDEN_BLOCKS, X_BLOCK), .when = IF_MXFP4, .content = BYTES},
    {SPEC(layer, gate_up_s, "mlp.experts.gate_up_proj_scales", X_EXPERTS, X_EXPERT_FFN2,
          X_HIDDEN_BLOCKS), .when = IF_MXFP4, .content = BYTES},
    {SPEC(layer, down_e, "mlp.experts.down_proj_blocks", X_EXPERTS, X_HIDDEN,
          X_EXPERT_FFN_BLOCKS, X_BLOCK), .when = IF_MXFP4, .content = BYTES},
    {SPEC(layer, down_s, "mlp.experts.down_proj_scales", X_EXPERTS, X_HIDDEN,
          X_EXPERT_FFN_BLOCKS), .when = IF_MXFP4, .content = BYTES},
    {SPEC(layer, gate_up, "mlp.experts.gate_up_proj", X_EXPERTS, X_HIDDEN, X_EXPERT_FFN2),
     .when = IF_IN_OUT},
    {SPEC(layer, down_e, "mlp.experts.down_proj", X_EXPERTS, X_EXPERT_FFN, X_HIDDEN),
     .when = IF_IN_OUT},
    /* of a GGUF: rows of gate before those of up, also in gate_up_proj_bias */
    {SPEC(layer, gate_up, "mlp.experts.gate_up_proj.weight", X_EXPERTS, X_EXPERT_FFN2, X_HIDDEN),
     .when = IF_HALVES},
    {SPEC(layer, down_e, "mlp.experts.down_proj.weight", X_EXPERTS, X_HIDDEN, X_EXPERT_FFN),
     .when = IF_HALVES},
    {SPEC(layer, gate_up_b, "mlp.experts.gate_up_proj_bias", X_EXPERTS, X_EXPERT_FFN2)},
    {SPEC(layer, down_b, "mlp.experts.down_proj_bias", X_EXPERTS, X_HIDDEN)},
    {0},
};

const struct family family_gpt_oss = {
    .name = "gpt_oss",
    .types = {"gpt_oss"},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "attention_bias", "layer_types", "sliding_window",
        "num_local_experts", "num_experts", "num_experts_per_tok", "swiglu_limit", "swiglu_alpha",
        NULL},
    .sizes = {.hidden = 2880, .ffn = 2880, .layers = 36, .heads = 64, .kv = 8, .head_dim = 64,
              .vocab = 201088, .max_pos = 131072, .eps = 1e-5},
    .rope = {{.theta = "rope_theta", .scaled = true,
              .dflt = {.kind = ROPE_YARN, .theta = 150000, .factor = 32, .original_max = 4096,
                       .beta_fast = 32, .beta_slow = 1, .partial = 1, .truncate = false}}},
    .quantized = "mxfp4",
    .configure = configure,
    .layer = layer,
};
