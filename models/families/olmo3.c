/* olmo3.c - families of the post-norm block: norms after attention and MLP only, and norms of q and
 * k.
 *
 * OLMo 2 and 3 normalise q and k over the whole projection. OLMo 2 has full layers only. OLMo 3 has
 * three sliding layers to one full layer, and only full layers use the scaled (YaRN) rope. EXAONE 4
 * normalises q and k per head; where some layers slide, full layers have no rope.
 */
#include "models/families/families.h"

/* The older spelling's theta is one of the full layers only: with it the reference leaves sliding
 * layers at 5e5, where its earlier versions took it for all. So it cannot be followed where the two
 * differ. */
static void check_old_theta(const struct arch *a)
{
    const struct conf *c = &a->c;
    struct conf all, one;
    if (conf_num(c, "rope_theta", 5e5, 1.001, 1e12) == 5e5 || !a->cfg->window ||
        (conf_enter(c, "rope_parameters", &all) && conf_enter(&all, "sliding_attention", &one) &&
         conf_has(&one, "rope_theta")))
        return;
    conf_refuse(c, "rope_theta", "does not say whether it is of sliding layers, too, expected "
                "500000, or a rope_theta in rope_parameters.sliding_attention");
}

static void configure_olmo2(struct arch *a)
{
    a->cfg->qk_norm = a->cfg->qk_norm_whole = true;
}

/* A pattern is a number, or one letter a layer, repeated: "LLLG" is the number 4. The reference
 * takes other letters only beside layer_types, which comes first. */
static int exaone4_period(const struct conf *c)
{
    const char *const key = "sliding_window_pattern";
    const json_t *v = conf_value(c, key);
    if (conf_is_null(c, "sliding_window"))
        return 1;
    if (!json_is_string(v) || conf_has(c, "layer_types"))
        return json_is_string(v) ? 4 : conf_int(c, key, 4, 1, 1024);
    const char *s = json_string_value(v);
    size_t n = strspn(s, "L");
    if (strcmp(s + n, "G") != 0)
        conf_refuse(c, key, "\"%.60s\" is not supported, expected a number, or letters L before "
                            "one G", show(s).s);
    return (int)n + 1;
}

static void configure_exaone4(struct arch *a)
{
    const struct conf *c = &a->c;
    a->cfg->qk_norm = true;
    arch_windows(a, exaone4_period(c), 4096);
    /* the last layer is full whatever the letters say */
    if (!conf_has(c, "layer_types") && json_is_string(conf_value(c, "sliding_window_pattern")))
        a->layer[a->cfg->n_layer - 1].window = 0;
    for (int i = 0; i < a->cfg->n_layer; i++)
        if (!a->layer[i].window && !conf_is_null(c, "sliding_window"))
            a->layer[i].rope_id = -1;
}

static void configure_olmo3(struct arch *a)
{
    configure_olmo2(a);
    arch_windows(a, 4, 4096);
    check_old_theta(a);
}

#define SPECS_POST_NORM                                                                            \
    {SPEC(layer, attn_norm, "post_attention_layernorm.weight", X_HIDDEN)},                         \
    {SPEC(layer, ffn_norm, "post_feedforward_layernorm.weight", X_HIDDEN)}

static const struct tensor_spec layer[] = {
    SPECS_ATTENTION,
    {SPEC(layer, q_norm, "self_attn.q_norm.weight", X_Q)},
    {SPEC(layer, k_norm, "self_attn.k_norm.weight", X_KV)},
    SPECS_MLP,
    SPECS_POST_NORM,
    {0},
};
static const struct tensor_spec exaone4_layer[] = {
    SPECS_ATTENTION, SPECS_HEAD_NORMS, SPECS_MLP, SPECS_POST_NORM, {0},
};

const struct family family_olmo2 = {
    .name = "olmo2",
    .types = {"olmo2"},
    .keys = (const char *const[]){KEYS_OF_MOST, "attention_bias", NULL},
    .sizes = {.eps = 1e-5},
    .place = PLACE_POST,
    .rope = {ROPE_OLD(1e4)},
    .configure = configure_olmo2,
    .layer = layer,
};

const struct family family_exaone4 = {
    .name = "exaone4",
    .types = {"exaone4", "exaone4_5_text"},
    .keys = (const char *const[]){
        KEYS_OF_MOST, "layer_types", "sliding_window", "sliding_window_pattern", NULL},
    .sizes = {.kv = 32, .eps = 1e-5},
    .place = PLACE_POST,
    .rope = {ROPE_OLD(1e4)},
    .configure = configure_exaone4,
    .layer = exaone4_layer,
};

const struct family family_olmo3 = {
    .name = "olmo3",
    .types = {"olmo3"},
    .keys = (const char *const[]){
        KEYS_OF_MOST, "attention_bias", "layer_types", "sliding_window", NULL},
    .sizes = {.eps = 1e-5},
    .place = PLACE_POST,
    .rope = {{.type = "sliding_attention", .dflt = ROPE_PLAIN(5e5)},
             {.type = "full_attention", .theta = "rope_theta", .scaled = true,
              .dflt = ROPE_PLAIN(5e5)}},
    .configure = configure_olmo3,
    .layer = layer,
};
