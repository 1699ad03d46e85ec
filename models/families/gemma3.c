/* gemma3.c - Gemma 3 text models (270m to 27b), alone or inside a multimodal folder.
 *
 * Five sliding layers to one full layer; sandwich norms that multiply by 1 + w; q and k normalised
 * per head; one rope table for sliding layers (local theta, never scaled) and one for full layers.
 * Published configs of the larger models omit most fields; the defaults of the reference's
 * configuration class apply then.
 */
#include "models/families/families.h"

#include <math.h>

/* The reference rounds the factor sqrt(hidden) to the type in which it computes: to bf16 in bf16,
 * not at all in float32. Activations here are float32, so the factor is not rounded. */
float gemma_embed_scale(int hidden)
{
    return sqrtf((float)hidden);
}

static void configure(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->norm = NORM_RMS1P;
    g->qk_norm = true;
    g->act = arch_act(c, "hidden_activation", "gelu_pytorch_tanh");
    g->tied = conf_bool(&a->top, "tie_word_embeddings", true);
    g->attn_scale = (float)pow(conf_num(c, "query_pre_attn_scalar", 256, 1, 1e6), -0.5);
    g->final_softcap = arch_softcap(c, "final_logit_softcapping", 0);
    g->embed_scale = gemma_embed_scale(g->hidden);
    /* every so many layers one has full attention */
    arch_windows(a, conf_int(c, "sliding_window_pattern", 6, 1, 1024), 4096);
}

static const struct tensor_spec layer[] = {
    SPECS_SANDWICH, SPECS_ATTENTION, SPECS_HEAD_NORMS, SPECS_MLP, {0},
};

#define BLOCK                                                                                      \
    .sizes = {.hidden = 2304, .ffn = 9216, .layers = 26, .heads = 8, .kv = 4, .head_dim = 256,     \
              .vocab = 262208, .max_pos = 131072, .eps = 1e-6},                                    \
    .place = PLACE_SANDWICH,                                                                       \
    .rope = {{.type = "sliding_attention", .theta = "rope_local_base_freq",                        \
              .dflt = ROPE_PLAIN(1e4)},                                                            \
             {.type = "full_attention", .theta = "rope_theta", .scaled = true,                     \
              .dflt = ROPE_PLAIN(1e6)}},                                                           \
    .configure = configure, .layer = layer
#define KEYS                                                                                       \
    KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "rope_local_base_freq", "hidden_activation", "attention_bias",  \
        "layer_types", "sliding_window", "sliding_window_pattern", "query_pre_attn_scalar"

const struct family family_gemma3 = {
    .name = "gemma3",
    .types = {"gemma3_text"},
    .keys = (const char *const[]){KEYS, "final_logit_softcapping", NULL},
    BLOCK,
};

/* The reference's multimodal model has no soft-cap. */
const struct family family_gemma3_mm = {
    .name = "gemma3",
    .types = {"gemma3"},
    .outer = "gemma3",
    .keys = (const char *const[]){KEYS, NULL},
    BLOCK,
};
