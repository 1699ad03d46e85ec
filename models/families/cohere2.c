/* cohere2.c - Cohere 2 (Command R7B, Command A): attention and MLP beside each other behind one
 * layer norm. Sliding layers rotate neighbouring dimensions; full layers have no rope.
 */
#include "models/families/families.h"

static void configure(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->norm = NORM_LAYER;
    g->eps = (float)conf_num(c, "layer_norm_eps", 1e-5, 1e-12, 1);
    g->logit_scale = (float)conf_num(c, "logit_scale", 0.0625, 1e-6, 1e6);
    g->tied = arch_tied(a, true);
    g->rope_adjacent = true;
    if (g->hidden != a->layer[0].head_dim * a->layer[0].n_head)
        conf_refuse(c, "head_dim", "is %d, expected hidden_size / num_attention_heads",
                    a->layer[0].head_dim);
    arch_windows(a, conf_int(c, "sliding_window_pattern", 4, 1, 1024), 4096);
    arch_rope_ids(a, -1, 0);
}

static const struct tensor_spec layer[] = {
    {SPEC(layer, in_norm, "input_layernorm.weight", X_HIDDEN)}, SPECS_ATTENTION, SPECS_MLP, {0},
};

const struct family family_cohere2 = {
    .name = "cohere2",
    .types = {"cohere2"},
    .keys = (const char *const[]){
        KEYS_OF_MOST, "attention_bias", "layer_norm_eps",
        "logit_scale", "sliding_window", "sliding_window_pattern", "layer_types", NULL},
    .sizes = {.hidden = 8192, .ffn = 22528, .layers = 40, .heads = 64, .vocab = 256000,
              .max_pos = 8192, .eps = 1e-5},
    .place = PLACE_PARALLEL,
    .rope = {ROPE_OLD(1e4)},
    .configure = configure,
    .layer = layer,
};
