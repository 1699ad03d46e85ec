/* gemma2.c - Gemma 2: sliding and full layers alternate, two soft-caps, one rope table, no norms of
 * q and k.
 */
#include "models/families/families.h"

#include <math.h>

static void configure(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->norm = NORM_RMS1P;
    g->act = arch_act(c, "hidden_activation", "gelu_pytorch_tanh");
    g->tied = arch_tied(a, true);
    g->attn_scale = (float)pow(conf_num(c, "query_pre_attn_scalar", 256, 1, 1e6), -0.5);
    g->attn_softcap = arch_softcap(c, "attn_logit_softcapping", 50);
    g->final_softcap = arch_softcap(c, "final_logit_softcapping", 30);
    g->embed_scale = gemma_embed_scale(g->hidden);
    arch_windows(a, 2, 4096);
}

static const struct tensor_spec layer[] = {SPECS_SANDWICH, SPECS_ATTENTION, SPECS_MLP, {0}};

const struct family family_gemma2 = {
    .name = "gemma2",
    .types = {"gemma2"},
    .keys = (const char *const[]){
        KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_activation", "attention_bias", "layer_types",
        "sliding_window", "query_pre_attn_scalar", "attn_logit_softcapping",
        "final_logit_softcapping", NULL},
    .sizes = {.hidden = 2304, .ffn = 9216, .layers = 26, .heads = 8, .kv = 4, .head_dim = 256,
              .vocab = 256000, .max_pos = 8192, .eps = 1e-6},
    .place = PLACE_SANDWICH,
    .rope = {ROPE_OLD(1e4)},
    .configure = configure,
    .layer = layer,
};
