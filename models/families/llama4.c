/* llama4.c - Llama 4's text model: layers that see the chunk of keys that the query is in, and full
 * layers without rope, whose queries get a factor by position. A token's weights multiply the
 * inputs of its experts, beside which a shared one runs. Neighbouring dimensions of a head are
 * rotated.
 */
#include "models/families/families.h"

/* Without layer_types the layers that rotate are chunked, unless attention_chunk_size is null. */
static void configure_chunks(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    const json_t *types = arch_list(a, "layer_types", false);
    bool none = conf_is_null(c, "attention_chunk_size");
    int size = conf_int(c, "attention_chunk_size", 8192, 1, 1 << 30);
    for (int i = 0; i < g->n_layer && conf_ok(c); i++) {
        bool chunked = types ? arch_word(a, "layer_types", i, "full_attention", "chunked_attention")
                             : a->layer[i].rope_id >= 0 && !none;
        if (chunked && none)
            conf_refuse(c, "attention_chunk_size", "is null, but there are chunked layers");
        if (chunked)
            g->window = a->layer[i].window = size, g->chunked = true;
    }
}

static void configure_layers(struct arch *a)
{
    const struct conf *c = &a->c;
    bool tempers = conf_bool(c, "attn_temperature_tuning", true);
    bool norms = conf_bool(c, "use_qk_norm", true);
    float temper = (float)conf_num(c, "attn_scale", 0.1, 0, 1e3);
    float period = (float)conf_num(c, "floor_scale", 8192, 1, 1 << 30);
    arch_no_rope(a);
    if (norms)
        a->cfg->rope[0].attention_factor = 1; /* the norm behind the rotation cancels YaRN's */
    FOR_EACH(struct layer, l, a->layer, a->cfg->n_layer) {
        l->qk_plain = norms && l->rope_id >= 0; /* the norm commutes with the rotation */
        if (!tempers || l->rope_id >= 0)
            continue;
        l->temper = temper;
        l->temper_period = period;
        l->temper_from = 1;
    }
}

/* intermediate_size is the width of an expert and of the shared one. */
static void configure_experts(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    int64_t moe[1024];
    int step = conf_int(c, "interleave_moe_layer_step", 1, 1, 1 << 20);
    int n = conf_ints(c, "moe_layers", moe, 1024);
    int wide = conf_int(c, "intermediate_size_mlp", 16384, 1, 1 << 20);
    arch_experts(a, "num_local_experts", 16, 1, 0);
    g->store = STORE_IN_OUT_HALVES;
    g->router = ROUTER_RAW;
    g->weigh_input = true;
    for (int i = 0; i < g->n_layer; i++) {
        struct layer *l = &a->layer[i];
        l->is_moe = !conf_has(c, "moe_layers") && (i + 1) % step == 0;
        for (int k = 0; k < n; k++)
            l->is_moe |= moe[k] == i;
        l->ffn = l->is_moe ? g->expert_ffn : wide;
    }
}

static void configure(struct arch *a)
{
    a->cfg->rope_adjacent = true;
    configure_experts(a);
    configure_layers(a);
    configure_chunks(a);
}

static const struct tensor_spec layer[] = {
    SPECS_PRE_NORM,
    SPECS_ATTENTION,
    {SPEC(layer, gate, "feed_forward.gate_proj.weight", X_FFN, X_HIDDEN), .when = IF_DENSE},
    {SPEC(layer, up, "feed_forward.up_proj.weight", X_FFN, X_HIDDEN), .when = IF_DENSE},
    {SPEC(layer, down, "feed_forward.down_proj.weight", X_HIDDEN, X_FFN), .when = IF_DENSE},
    SPECS_SHARED("feed_forward.shared_expert."),
    {SPEC(layer, router, "feed_forward.router.weight", X_EXPERTS, X_HIDDEN), .when = IF_MOE},
    {SPEC(layer, gate_up, "feed_forward.experts.gate_up_proj", X_EXPERTS, X_HIDDEN, X_EXPERT_FFN2),
     .when = IF_MOE},
    {SPEC(layer, down_e, "feed_forward.experts.down_proj", X_EXPERTS, X_EXPERT_FFN, X_HIDDEN),
     .when = IF_MOE},
    {0},
};

const struct family family_llama4 = {
    .name = "llama4",
    .types = {"llama4_text", "llama4"},
    .outer = "llama4",
    .keys = (const char *const[]){
        KEYS_OF_MOST, "attention_bias", "layer_types", "attention_chunk_size", "no_rope_layers",
        "no_rope_layer_interval", "use_qk_norm", "attn_temperature_tuning", "attn_scale",
        "floor_scale", "intermediate_size_mlp", "moe_layers", "interleave_moe_layer_step",
        "num_local_experts", "num_experts_per_tok", NULL},
    .sizes = {.hidden = 5120, .ffn = 8192, .layers = 48, .heads = 40, .kv = 8, .head_dim = 128,
              .vocab = 202048, .max_pos = 131072, .eps = 1e-5},
    .rope = {ROPE_OLD(5e5)},
    .configure = configure,
    .layer = layer,
};
