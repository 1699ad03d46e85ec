/* families.h - a model family: how its config.json sets the switches, and its tensors' names.
 *
 * Each file of this folder describes one family or several close relatives. A family file holds no
 * state and no arithmetic on weights; after loading, no code depends on the family.
 * A new family: one struct family, listed in models/checkpoint/model.c.
 */
#pragma once

#include "models/checkpoint/config.h"
#include "models/checkpoint/keys.h"
#include "models/checkpoint/weights.h"

struct prefix {
    const char *trunk; /* before "embed_tokens.weight", "layers.0...." and "norm.weight" */
    const char *head;  /* before "lm_head.weight" */
};

struct family {
    const char *name;                /* struct config's family */
    const char *types[3];            /* values of model_type, NULL-terminated */
    const char *outer;               /* that type whose folders are multimodal and have the text
                                        model below text_config; NULL: none */
    const char *const *keys;         /* the keys that decide numbers and that the family uses
                                        (keys.h), NULL-terminated */
    struct sizes sizes;              /* defaults */
    enum norm_place place;
    struct rope_spelling rope[2];    /* of all layers; or one of full layers and one of sliding
                                        ones, in the order of struct config's tables */
    void (*respell)(json_t *text);   /* gives the text model's object of an older config the keys
                                        that newer ones have; NULL: there is nothing to do */
    const char *quantized;           /* a quant_method of its own (arch_block()); NULL: none */
    void (*configure)(struct arch *a); /* sets the switches that arch_family() leaves as they are in
                                        most families; NULL: all are so */
    const struct tensor_spec *layer; /* tensors of struct layer; names follow "TRUNKlayers.N." */
};

/* Fills a->cfg and a->layer: the block with the family's sizes, norms and ropes, then what its
 * configure() says. False: the config is refused. */
bool arch_family(struct arch *a, const struct family *f);

extern const struct family family_afmoe, family_cohere2, family_exaone4, family_gemma2,
    family_gemma3, family_gemma3_mm, family_gemma4, family_gemma4_unified,
    family_gemma4_unified_assistant, family_gpt_oss, family_granite_swa, family_granitemoe_swa,
    family_laguna, family_llama, family_llama4, family_mellum, family_mimo_v2, family_ministral,
    family_ministral3, family_mistral, family_muse_glimmer, family_olmo2, family_olmo3, family_phi3,
    family_qwen2, family_qwen3, family_qwen3_moe, family_smollm3, family_step3p5;

/* sqrt(hidden), the factor of the gemma families' embeddings (gemma3.c explains the rounding). */
float gemma_embed_scale(int hidden);

/* Table rows that most families share. */
#define SPECS_ATTENTION                                                                            \
    {SPEC(layer, wq, "self_attn.q_proj.weight", X_Q, X_IN), .rotates = true},                      \
    {SPEC(layer, wk, "self_attn.k_proj.weight", X_KV, X_IN), .when = IF_OWN_KV,                    \
     .rotates = true, .unused_ok = true},                                                          \
    {SPEC(layer, wv, "self_attn.v_proj.weight", X_V, X_IN), .when = IF_OWN_V, .values = 1,         \
     .unused_ok = true},                                                                           \
    {SPEC(layer, wo, "self_attn.o_proj.weight", X_HIDDEN, X_O), .values = 2},                      \
    {SPEC(layer, bq, "self_attn.q_proj.bias", X_Q), .when = IF_QKV_BIAS, .rotates = true},         \
    {SPEC(layer, bk, "self_attn.k_proj.bias", X_KV), .when = IF_KV_BIAS, .rotates = true},         \
    {SPEC(layer, bv, "self_attn.v_proj.bias", X_V), .when = IF_V_BIAS, .values = 1},               \
    {SPEC(layer, bo, "self_attn.o_proj.bias", X_HIDDEN), .when = IF_O_BIAS}

#define SPECS_HEAD_NORMS                                                                           \
    {SPEC(layer, q_norm, "self_attn.q_norm.weight", X_HEAD_DIM), .when = IF_QK_NORM},              \
    {SPEC(layer, k_norm, "self_attn.k_norm.weight", X_HEAD_DIM), .when = IF_K_NORM,                \
     .unused_ok = true}

#define SPECS_MLP_IF(when_)                                                                        \
    {SPEC(layer, gate, "mlp.gate_proj.weight", X_FFN, X_HIDDEN), .when = when_},                   \
    {SPEC(layer, up, "mlp.up_proj.weight", X_FFN, X_HIDDEN), .when = when_},                       \
    {SPEC(layer, down, "mlp.down_proj.weight", X_HIDDEN, X_FFN), .when = when_}
#define SPECS_MLP SPECS_MLP_IF(ALWAYS)

/* An MLP beside the experts. */
#define SPECS_SHARED(at)                                                                           \
    {SPEC(layer, gate, at "gate_proj.weight", X_FFN, X_HIDDEN), .when = IF_MOE},                   \
    {SPEC(layer, up, at "up_proj.weight", X_FFN, X_HIDDEN), .when = IF_MOE},                       \
    {SPEC(layer, down, at "down_proj.weight", X_HIDDEN, X_FFN), .when = IF_MOE}

/* One matrix per expert, or one tensor of all experts, as later versions of transformers save. */
#define SPECS_EXPERTS                                                                              \
    {SPEC(layer, gate_up, "mlp.experts.gate_up_proj", X_EXPERTS, X_EXPERT_FFN2, X_HIDDEN),         \
     .when = IF_MOE},                                                                              \
    {SPEC(layer, gate_up, "mlp.experts.*.gate_proj.weight", X_EXPERT_FFN, X_HIDDEN),               \
     .when = IF_MOE, .stacked = 2, .instead = true},                                               \
    {SPEC(layer, gate_up, "mlp.experts.*.up_proj.weight", X_EXPERT_FFN, X_HIDDEN)},                \
    {SPEC(layer, down_e, "mlp.experts.down_proj", X_EXPERTS, X_HIDDEN, X_EXPERT_FFN),              \
     .when = IF_MOE},                                                                              \
    {SPEC(layer, down_e, "mlp.experts.*.down_proj.weight", X_HIDDEN, X_EXPERT_FFN),                \
     .when = IF_MOE, .stacked = 1, .instead = true}

/* Norms on both sides of attention and MLP: gemma. */
#define SPECS_SANDWICH                                                                             \
    {SPEC(layer, in_norm, "input_layernorm.weight", X_HIDDEN)},                                    \
    {SPEC(layer, attn_norm, "post_attention_layernorm.weight", X_HIDDEN)},                         \
    {SPEC(layer, ffn_in_norm, "pre_feedforward_layernorm.weight", X_HIDDEN)},                      \
    {SPEC(layer, ffn_norm, "post_feedforward_layernorm.weight", X_HIDDEN)}

/* Norms before attention and MLP (PLACE_PRE). */
#define SPECS_PRE_NORM                                                                             \
    {SPEC(layer, in_norm, "input_layernorm.weight", X_HIDDEN)},                                    \
    {SPEC(layer, ffn_in_norm, "post_attention_layernorm.weight", X_HIDDEN)}
