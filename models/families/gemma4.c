/* gemma4.c - Gemma 4 and Gemma 4 Unified text models, and the trunk of their frozen-KV assistants.
 *
 * Full layers have wider heads than sliding ones; V has a norm without weights; the attention scale
 * is 1. E2B and E4B: per-layer embeddings; the last layers own no K and V but read those of the
 * last earlier layer of their type, and may have MLPs twice as wide. 26B-A4B: experts beside the
 * dense MLP. 26B and 31B: full layers use their K projection as V. Unified: neither per-layer
 * embeddings nor experts, and other defaults.
 */
#include "models/families/families.h"

static void configure_heads(struct arch *a)
{
    const struct conf *c = &a->c;
    int n = a->cfg->n_layer;
    bool k_eq_v = conf_bool(c, "attention_k_eq_v", false);
    /* replaces the keys global_*, also if it is null */
    bool by_layer = conf_has(c, "per_layer_config") || conf_is_null(c, "per_layer_config");
    int dim = by_layer ? a->layer[0].head_dim : conf_int(c, "global_head_dim", 512, 2, 1024);
    int kv = a->layer[0].n_kv;
    if (k_eq_v && !by_layer)
        kv = conf_int(c, "num_global_key_value_heads", kv, 1, 1024);
    if (dim % 2)
        conf_refuse(c, "global_head_dim", "is %d, expected an even number", dim);
    if (a->layer[0].n_head % kv)
        conf_refuse(c, "num_global_key_value_heads", "is %d, which does not divide "
                    "num_attention_heads %d", kv, a->layer[0].n_head);
    for (int i = 0; i < n; i++) {
        if (a->layer[i].window)
            continue;
        a->layer[i].head_dim = dim;
        a->layer[i].n_kv = kv;
        a->layer[i].v_from_k = k_eq_v;
    }
}

/* The other values of a layer must be those of the whole model. */
static void check_others(const struct arch *a, const struct conf *one)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)one->obj, key, v)
        if (strcmp(key, "head_dim") != 0 && strcmp(key, "num_key_value_heads") != 0 &&
            !json_equal(v, json_object_get(a->c.obj, key)))
            conf_refuse(one, key, "is not supported for a single layer, expected head_dim and "
                        "num_key_value_heads");
}

static void configure_override(struct arch *a, const struct conf *one, struct layer *l)
{
    l->head_dim = conf_int(one, "head_dim", l->head_dim, 2, 1024);
    l->n_kv = conf_int(one, "num_key_value_heads", l->n_kv, 1, 1024);
    if (l->head_dim % 2 || l->n_head % l->n_kv)
        conf_refuse(one, l->head_dim % 2 ? "head_dim" : "num_key_value_heads",
                    "does not fit %d heads of an even width", l->n_head);
    check_others(a, one);
}

/* The layer that a key of per_layer_config names, which may begin with zeros; -1: none. */
static int layer_of_key(const char *key, int n_layer)
{
    char *end;
    if (*key < '0' || *key > '9' || strlen(key) > 6)
        return -1;
    long i = strtol(key, &end, 10);
    return *end || i >= n_layer ? -1 : (int)i;
}

/* In newer configs per_layer_config.INDEX.{head_dim, num_key_value_heads} gives the values that
 * differ in a layer. */
static void configure_overrides(struct arch *a)
{
    struct conf all, one;
    const char *key;
    json_t *v;
    if (!conf_enter(&a->c, "per_layer_config", &all))
        return;
    json_object_foreach((json_t *)all.obj, key, v) {
        int i = layer_of_key(key, a->cfg->n_layer);
        if (i < 0)
            conf_refuse(&all, key, "is not the number of a layer, expected 0 to %d",
                        a->cfg->n_layer - 1);
        else if (conf_enter(&all, key, &one))
            configure_override(a, &one, &a->layer[i]);
    }
}

/* Where per_layer_config replaces the keys global_*, or K is not V, these keys must not say
 * something else. */
static void check_global(const struct arch *a)
{
    const struct conf *c = &a->c;
    for (int i = 0; i < a->cfg->n_layer; i++) {
        const struct layer *l = &a->layer[i];
        if (!l->window && conf_int(c, "global_head_dim", l->head_dim, 2, 1024) != l->head_dim)
            conf_refuse(c, "global_head_dim", "is not %d, the head_dim of layer %d in "
                        "per_layer_config", l->head_dim, i);
        if (!l->window && conf_int(c, "num_global_key_value_heads", l->n_kv, 1, 1024) != l->n_kv)
            conf_refuse(c, "num_global_key_value_heads", "is not %d, what layer %d has: it applies "
                        "only with attention_k_eq_v and without per_layer_config", l->n_kv, i);
    }
}

/* The last `shared` layers read the K and V of the last earlier layer of their type. all: in an
 * assistant of the unified model 0 means all layers. */
static void configure_sharing(struct arch *a, bool all)
{
    const struct conf *c = &a->c;
    int n = a->cfg->n_layer;
    int given = conf_int(c, "num_kv_shared_layers", 0, 0, n), shared = given || !all ? given : n;
    bool wide = conf_bool(c, "use_double_wide_mlp", false);
    for (int i = n - shared; i < n; i++) {
        int owner = n - shared - 1;
        while (owner >= 0 && !a->layer[owner].window != !a->layer[i].window)
            owner--;
        /* in an assistant no layer owns K and V: -1; draft loading sets the target's layer later */
        if (owner < 0 && shared < n)
            conf_refuse(c, "num_kv_shared_layers", "is %d, which leaves no layer of the type of "
                        "layer %d that owns its K and V", shared, i);
        a->layer[i].kv_src = owner;
        if (wide)
            a->layer[i].ffn *= 2;
    }
}

static void configure_experts(struct arch *a)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    if (!conf_bool(c, "enable_moe_block", false))
        return;
    g->moe = MOE_GEMMA4;
    g->store = STORE_HALVES;
    g->n_expert = conf_int(c, "num_experts", CONF_NEEDED, 1, 4096);
    g->top_k = conf_int(c, "top_k_experts", CONF_NEEDED, 1, g->n_expert);
    g->expert_ffn = conf_int(c, "moe_intermediate_size", CONF_NEEDED, 1, 1 << 20);
    arch_mlp_types(a, 0);
}

/* The last layer has full attention, whatever layer_types says. */
static void configure_windows(struct arch *a, int window)
{
    struct layer *last = &a->layer[a->cfg->n_layer - 1];
    arch_windows(a, 6, window);
    last->window = 0;
    a->cfg->window = 0;
    for (int i = 0; i < a->cfg->n_layer; i++)
        if (a->layer[i].window)
            a->cfg->window = a->layer[i].window;
}

/* "vision" makes attention bidirectional among image tokens only, so text is not affected. */
static void check_causal(const struct conf *c)
{
    const json_t *v = conf_value(c, "use_bidirectional_attention");
    const char *s = json_string_value(v);
    if (v && !json_is_false(v) && (!s || strcmp(s, "vision") != 0))
        conf_refuse(c, "use_bidirectional_attention", "is set, which is not supported");
}

static void configure_text(struct arch *a, int window, int ple, bool all)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->qk_norm = g->v_norm = true;
    g->act = arch_act(c, "hidden_activation", "gelu_pytorch_tanh");
    g->tied = conf_bool(&a->top, "tie_word_embeddings", true);
    g->attn_scale = 1;
    g->final_softcap = arch_softcap(c, "final_logit_softcapping", 0);
    g->embed_scale = gemma_embed_scale(g->hidden);
    g->ple = conf_int(c, "hidden_size_per_layer_input", ple, 0, 1 << 16);
    g->ple_vocab = conf_int(c, "vocab_size_per_layer_input", 262144, 0, 1 << 22);
    if (g->ple && g->ple_vocab < g->vocab)
        conf_refuse(c, "vocab_size_per_layer_input", "is %d, expected at least vocab_size %d",
                    g->ple_vocab, g->vocab);
    check_causal(c);
    configure_windows(a, window);
    configure_heads(a);
    configure_overrides(a);
    check_global(a);
    configure_sharing(a, all);
    configure_experts(a);
}

static void configure(struct arch *a)
{
    configure_text(a, 512, 256, false);
}

static void configure_unified(struct arch *a)
{
    configure_text(a, 1024, 0, false);
}

static void configure_unified_assistant(struct arch *a)
{
    configure_text(a, 1024, 0, true);
}

static const struct tensor_spec layer[] = {
    SPECS_SANDWICH,
    SPECS_ATTENTION,
    SPECS_HEAD_NORMS,
    SPECS_MLP,
    {SPEC(layer, layer_scalar, "layer_scalar", X_ONE)},
    {SPEC(layer, ple_gate, "per_layer_input_gate.weight", X_PLE, X_HIDDEN), .when = IF_PLE},
    {SPEC(layer, ple_proj, "per_layer_projection.weight", X_HIDDEN, X_PLE), .when = IF_PLE},
    {SPEC(layer, ple_norm, "post_per_layer_input_norm.weight", X_HIDDEN), .when = IF_PLE},
    {SPEC(layer, router, "router.proj.weight", X_EXPERTS, X_HIDDEN), .when = IF_MOE},
    {SPEC(layer, router_in, "router.scale", X_HIDDEN), .when = IF_MOE},
    {SPEC(layer, expert_scale, "router.per_expert_scale", X_EXPERTS), .when = IF_MOE},
    {SPEC(layer, gate_up, "experts.gate_up_proj", X_EXPERTS, X_EXPERT_FFN2, X_HIDDEN),
     .when = IF_MOE},
    {SPEC(layer, gate_up, "experts.*.gate_proj.weight", X_EXPERT_FFN, X_HIDDEN),
     .when = IF_MOE, .stacked = 2, .instead = true},
    {SPEC(layer, gate_up, "experts.*.up_proj.weight", X_EXPERT_FFN, X_HIDDEN)},
    {SPEC(layer, down_e, "experts.down_proj", X_EXPERTS, X_HIDDEN, X_EXPERT_FFN), .when = IF_MOE},
    {SPEC(layer, down_e, "experts.*.down_proj.weight", X_HIDDEN, X_EXPERT_FFN),
     .when = IF_MOE, .stacked = 1, .instead = true},
    {SPEC(layer, ffn_norm_1, "post_feedforward_layernorm_1.weight", X_HIDDEN), .when = IF_MOE},
    {SPEC(layer, ffn_norm_2, "post_feedforward_layernorm_2.weight", X_HIDDEN), .when = IF_MOE},
    {SPEC(layer, ffn_in_norm_2, "pre_feedforward_layernorm_2.weight", X_HIDDEN), .when = IF_MOE},
    {0},
};

#define BLOCK(max_pos_)                                                                            \
    .sizes = {.hidden = 2304, .ffn = 9216, .layers = 30, .heads = 8, .kv = 4, .head_dim = 256,     \
              .vocab = 262144, .max_pos = (max_pos_), .eps = 1e-6},                                \
    .place = PLACE_SANDWICH,                                                                       \
    .rope = {{.type = "sliding_attention", .dflt = ROPE_PLAIN(1e4)},                               \
             {.type = "full_attention",                                                            \
              .dflt = {.kind = ROPE_PROPORTIONAL, .theta = 1e6, .factor = 1, .partial = 0.25}}},   \
    .layer = layer
#define KEYS                                                                                       \
    KEYS_OF_ALL, "hidden_activation", "attention_bias", "layer_types", "sliding_window",           \
        "final_logit_softcapping", "use_bidirectional_attention", "global_head_dim",               \
        "num_global_key_value_heads", "attention_k_eq_v", "num_kv_shared_layers",                  \
        "use_double_wide_mlp", "per_layer_config"

const struct family family_gemma4 = {
    .name = "gemma4",
    .types = {"gemma4", "gemma4_text"},
    .outer = "gemma4",
    .keys = (const char *const[]){
        KEYS, "hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block",
        "num_experts", "top_k_experts", "moe_intermediate_size", NULL},
    .configure = configure,
    BLOCK(131072),
};

const struct family family_gemma4_unified = {
    .name = "gemma4",
    .types = {"gemma4_unified", "gemma4_unified_text"},
    .outer = "gemma4_unified",
    .keys = (const char *const[]){KEYS, NULL},
    .configure = configure_unified,
    BLOCK(262144),
};

/* Of frozen-KV assistants alone. */
const struct family family_gemma4_unified_assistant = {
    .keys = (const char *const[]){KEYS, NULL},
    .configure = configure_unified_assistant,
    BLOCK(262144),
};
