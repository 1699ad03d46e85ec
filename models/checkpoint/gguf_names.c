/* gguf_names.c - the architectures of GGUF files: a row of the table for each, with the names of
 * tensors that are its own. See gguf_model.h. */
#include "models/checkpoint/gguf_meta.h"

#include <stdlib.h>
#include <string.h>

static const struct gguf_name gptoss_names[] = {
    {"attn_sinks.weight", "self_attn.sinks"},
    {"ffn_gate_inp.weight", "mlp.router.weight"},
    {"ffn_gate_inp.bias", "mlp.router.bias"},
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
    {0},
};
static const struct gguf_name qwen3moe_names[] = {{"ffn_gate_inp.weight", "mlp.gate.weight"}, {0}};
static const struct gguf_name gemma4_names[] = {
    {"ffn_gate_inp.weight", "router.proj.weight"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"ffn_down_exps.weight", "experts.down_proj"},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj"},
    {"layer_output_scale.weight", "layer_scalar"},
    {0},
};
static const struct gguf_name phi3_names[] = {
    {"attn_qkv.weight", "self_attn.qkv_proj.weight"},
    {"ffn_up.weight", "mlp.gate_up_proj.weight"},
    {"rope_factors_long.weight", NULL},
    {"rope_factors_short.weight", NULL},
    {0},
};
static const struct gguf_name afmoe_names[] = {
    {"attn_gate.weight", "self_attn.gate_proj.weight"},
    {"ffn_norm.weight", "pre_mlp_layernorm.weight"},
    {"post_ffw_norm.weight", "post_mlp_layernorm.weight"},
    {"ffn_gate_inp.weight", "mlp.router.gate.weight"},
    {"exp_probs_b.bias", "mlp.expert_bias"},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
    {0},
};
static const struct gguf_name laguna_names[] = {
    {"attn_gate.weight", "self_attn.g_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"exp_probs_b.bias", "mlp.experts.e_score_correction_bias"},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {0},
};
static const struct gguf_name granite_names[] = {
    {"attn_sinks.weight", "self_attn.sinks"},
    {"ffn_gate_inp.weight", "block_sparse_moe.router.weight"},
    {"ffn_gate_up_exps.weight", "block_sparse_moe.experts.gate_up_proj"},
    {"ffn_down_exps.weight", "block_sparse_moe.experts.down_proj"},
    {"ffn_up_shexp.weight", "shared_mlp.input_linear.weight"},
    {"ffn_down_shexp.weight", "shared_mlp.output_linear.weight"},
    {0},
};
static const struct gguf_name muse_names[] = {
    {"attn_gate.weight", "self_attn.gate_proj.weight"},
    {"attn_q_norm.weight", NULL},
    {"attn_k_norm.weight", NULL},
    {0},
};
static const struct gguf_name mimo2_names[] = {
    {"attn_sinks.weight", "self_attn.attention_sink_bias"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {0},
};
static const struct gguf_name step35_names[] = {
    {"attn_gate.weight", "self_attn.g_proj.weight"},
    {"ffn_gate_inp.weight", "moe.gate.weight"},
    {"exp_probs_b.bias", "moe.router_bias"},
    {"ffn_gate_exps.weight", "moe.gate_proj.weight"},
    {"ffn_up_exps.weight", "moe.up_proj.weight"},
    {"ffn_down_exps.weight", "moe.down_proj.weight"},
    {"ffn_gate_shexp.weight", "share_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "share_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "share_expert.down_proj.weight"},
    {0},
};

/* The ids of d2t are the target's, not offsets. */
static const struct gguf_name eagle3_names[] = {
    {"attn_norm_2.weight", "hidden_norm.weight"},
    {"enc.output_norm.weight", "input_norm.weight"},
    {"d2t", "d2t_ids"},
    {0},
};
static const struct gguf_name dflash_names[] = {
    {"enc.output_norm.weight", "hidden_norm.weight"},
    {"d2t", "d2t_ids"},
    {0},
};

static const struct gguf_arch archs[] = {
    {.name = "llama", .paired = true, .config = gguf_config_llama},
    {.name = "gemma2", .plus_1 = true, .sandwich = true, .config = gguf_config_gemma2},
    {.name = "gemma3", .plus_1 = true, .sandwich = true, .config = gguf_config_gemma3},
    {.name = "gemma4", .sandwich = true, .names = gemma4_names, .config = gguf_config_gemma4},
    {.name = "gpt-oss", .experts = EXPERTS_GPT_OSS, .names = gptoss_names,
     .config = gguf_config_gptoss},
    {.name = "olmo2", .config = gguf_config_olmo},
    {.name = "qwen2", .config = gguf_config_qwen2},
    {.name = "qwen3", .config = gguf_config_qwen3},
    {.name = "qwen3moe", .experts = EXPERTS_SINGLE, .names = qwen3moe_names,
     .config = gguf_config_qwen3moe},
    {.name = "smollm3", .paired = true, .config = gguf_config_smollm3},
    {.name = "mistral3", .paired = true, .config = gguf_config_mistral3},
    {.name = "exaone4", .config = gguf_config_exaone4},
    {.name = "cohere2", .layer_norm = true, .config = gguf_config_cohere2},
    {.name = "phi3", .names = phi3_names, .config = gguf_config_phi3},
    {.name = "afmoe", .experts = EXPERTS_SINGLE, .names = afmoe_names, .config = gguf_config_afmoe},
    {.name = "laguna", .by_layer = true, .experts = EXPERTS_SINGLE, .names = laguna_names,
     .config = gguf_config_laguna},
    {.name = "mellum", .experts = EXPERTS_SINGLE, .names = qwen3moe_names,
     .config = gguf_config_mellum},
    {.name = "granite_swa", .paired = true, .names = granite_names,
     .config = gguf_config_granite_swa},
    {.name = "muse-glimmer", .paired = true, .plus_1 = true, .last_norm_plain = true,
     .sandwich = true, .names = muse_names, .config = gguf_config_muse},
    {.name = "mimo2", .experts = EXPERTS_SINGLE, .names = mimo2_names, .config = gguf_config_mimo2},
    {.name = "step35", .plus_1 = true, .by_layer = true, .names = step35_names,
     .config = gguf_config_step35},
    {.name = "eagle3", .draft = true, .paired = true, .names = eagle3_names,
     .config = gguf_config_eagle3},
    {.name = "dflash", .draft = true, .names = dflash_names, .config = gguf_config_dflash},
};

enum { N_ARCHS = sizeof archs / sizeof *archs };

const struct gguf_arch *gguf_arch(const struct gguf *g, struct err *e)
{
    static const char *const key = "general.architecture";
    struct gguf_text t = {NULL, 0};
    struct buf known = {0};
    if (!gguf_string(g, key, &t, e))
        return NULL;
    for (int i = 0; t.p && i < N_ARCHS; i++)
        if (strlen(archs[i].name) == t.n && !memcmp(archs[i].name, t.p, t.n))
            return &archs[i];
    for (int i = 0; i < N_ARCHS; i++)
        buf_printf(&known, "%s%s", i ? ", " : "", archs[i].name);
    char *name = xasprintf("%.*s", (int)(t.n < 60 ? t.n : 60), t.p ? t.p : "");
    if (!t.p)
        gguf_refuse(g, key, e, "is missing");
    else if (!strcmp(name, "clip") || !strcmp(name, "mmproj"))
        gguf_refuse(g, key, e,
                    "is \"%s\": these are the image and sound parts of a model (mmproj), "
                    "expected the file of its text model",
                    name);
    else if (!strcmp(name, "gemma4-assistant"))
        gguf_refuse(g, key, e,
                    "\"gemma4-assistant\" is not supported: expected the folder of the drafter");
    else if (!strcmp(name, "llama4"))
        gguf_refuse(g, key, e,
                    "\"llama4\" is not supported: its experts are transposed in a GGUF, expected "
                    "the folder of the model");
    else
        gguf_refuse(g, key, e, "\"%s\" is not supported, expected one of %s", show(name).s,
                    known.p);
    free(name);
    buf_free(&known);
    return NULL;
}
