/* families.h - what a model family is: how its config becomes switches, and its tensors' names.
 *
 * One file each in this folder. A family file holds no state and no arithmetic on weights; after
 * loading nothing asks for the family again.
 */
#ifndef AERIE_MODELS_FAMILIES_H
#define AERIE_MODELS_FAMILIES_H

#include "models/checkpoint/config.h"
#include "models/checkpoint/weights.h"

struct prefix {
    const char *trunk; /* before "embed_tokens.weight", "layers.0...." and "norm.weight" */
    const char *head;  /* before "lm_head.weight" */
};

struct family {
    const char *name;               /* struct config's family */
    const char *const *types;       /* values of model_type, NULL-terminated */
    bool (*configure)(struct arch *a);
    const struct slot *trunk;       /* of struct model, below the trunk prefix */
    const struct slot *layer;       /* of struct layer, below TRUNK layers.N. */
};

extern const struct family family_gemma2, family_gemma3, family_gemma4, family_gpt_oss,
    family_llama, family_mistral, family_olmo3, family_qwen3;

/* sqrt(hidden), which the gemma families multiply embeddings with (gemma3.c says how rounded). */
float gemma_embed_scale(int hidden);

/* Gemma 4's, which its assistants share. In an assistant no layer owns K and V: kv_src is -1. */
bool gemma4_configure(struct arch *a);
extern const struct slot gemma4_layer[];

/* Rows that most families share. */
#define SLOTS_ATTENTION                                                                            \
    {SLOT(layer, wq, "self_attn.q_proj.weight", X_Q, X_IN)},                                       \
    {SLOT(layer, wk, "self_attn.k_proj.weight", X_KV, X_IN), .when = IF_OWN_KV, .spare = true},    \
    {SLOT(layer, wv, "self_attn.v_proj.weight", X_KV, X_IN), .when = IF_OWN_V, .spare = true},     \
    {SLOT(layer, wo, "self_attn.o_proj.weight", X_HIDDEN, X_Q)},                                   \
    {SLOT(layer, bq, "self_attn.q_proj.bias", X_Q), .when = IF_QKV_BIAS},                          \
    {SLOT(layer, bk, "self_attn.k_proj.bias", X_KV), .when = IF_KV_BIAS},                          \
    {SLOT(layer, bv, "self_attn.v_proj.bias", X_KV), .when = IF_V_BIAS},                           \
    {SLOT(layer, bo, "self_attn.o_proj.bias", X_HIDDEN), .when = IF_O_BIAS}

#define SLOTS_HEAD_NORMS                                                                           \
    {SLOT(layer, q_norm, "self_attn.q_norm.weight", X_HEAD_DIM), .when = IF_QK_NORM},              \
    {SLOT(layer, k_norm, "self_attn.k_norm.weight", X_HEAD_DIM), .when = IF_K_NORM, .spare = true}

#define SLOTS_MLP                                                                                  \
    {SLOT(layer, gate, "mlp.gate_proj.weight", X_FFN, X_HIDDEN)},                                  \
    {SLOT(layer, up, "mlp.up_proj.weight", X_FFN, X_HIDDEN)},                                      \
    {SLOT(layer, down, "mlp.down_proj.weight", X_HIDDEN, X_FFN)}

/* Norms on both sides of attention and MLP: gemma. */
#define SLOTS_SANDWICH                                                                             \
    {SLOT(layer, in_norm, "input_layernorm.weight", X_HIDDEN)},                                    \
    {SLOT(layer, attn_norm, "post_attention_layernorm.weight", X_HIDDEN)},                         \
    {SLOT(layer, ffn_in_norm, "pre_feedforward_layernorm.weight", X_HIDDEN)},                      \
    {SLOT(layer, ffn_norm, "post_feedforward_layernorm.weight", X_HIDDEN)}

/* Norms before attention and MLP: most others. */
#define SLOTS_PRE_NORM                                                                             \
    {SLOT(layer, in_norm, "input_layernorm.weight", X_HIDDEN)},                                    \
    {SLOT(layer, ffn_in_norm, "post_attention_layernorm.weight", X_HIDDEN)}

#define SLOTS_TRUNK                                                                                \
    {SLOT(model, embed, "embed_tokens.weight", X_VOCAB, X_HIDDEN)},                                \
    {SLOT(model, norm, "norm.weight", X_HIDDEN)}

#endif
