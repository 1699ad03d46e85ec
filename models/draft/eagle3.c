/* eagle3.c - loads EAGLE3 heads and P-EAGLE heads in their published layouts.
 *
 * SafeAILab, SpecForge and ModelOpt name the block midlayer.* (or midlayer.N.*), speculators files
 * layers.N.*; all names may begin with "model.". Widths, biases, norms and sharing follow from the
 * tensors and are then compared with the config. A head never shares the target's rope.
 *
 * A P-EAGLE head (arXiv 2602.01469) is an EAGLE3 head with a tensor mask_hidden: (n states) of AWS
 * and NeMo as [1, n], of speculators as [1, 1, n]. The id of its mask is ptd_token_id, pard_token
 * or mask_token_id. How many depths it was trained on (num_depths, or speculators'
 * speculative_tokens) may be absent: then it may guess as deep as a tree can be.
 */
#include "models/draft/draft.h"

static const struct tensor_spec trunk[] = {
    {SPEC(draft, fc, "fc.weight", X_HIDDEN, X_CAPTURED)},
    {SPEC(draft, fc_b, "fc.bias", X_HIDDEN), .when = IF_PRESENT},
    {SPEC(draft, input_norm, "input_norm.weight", X_CAPTURED), .when = IF_PRESENT},
    {SPEC(draft, embed, "embed_tokens.weight", X_VOCAB, X_HIDDEN), .when = IF_PRESENT},
    {SPEC(draft, norm, "norm.weight", X_HIDDEN)},
    {SPEC(draft, head, "lm_head.weight", X_DRAFT_VOCAB, X_HIDDEN), .when = IF_PRESENT},
    {0},
};

static const struct tensor_spec first_specs[] = {
    {SPEC(layer, hidden_norm, "hidden_norm.weight", X_HIDDEN)}, {0},
};

/* ---- names ---- */

/* The prefix of layer i's tensor names; if the checkpoint has no such layer, the prefix for the
 * error message. */
static const char *layer_prefix(const struct binder *b, int i, char *out, size_t room)
{
    static const char *const form[] = {"midlayer.%d.", "layers.%d.", "midlayer."};
    for (int f = i ? 1 : 2; f >= 0; f--)
        for (int r = 0; draft_roots[r]; r++) {
            char below[32];
            snprintf(below, sizeof below, form[f], i);
            snprintf(out, room, "%s%s", draft_roots[r], below);
            if (binder_find(b, (const char *const[]){out, NULL}, "self_attn.q_proj.weight"))
                return out;
        }
    snprintf(out, room, "layers.%d.", i);
    return out;
}

static bool has_in_layer(const struct binder *b, const char *name)
{
    char prefix[48];
    return binder_find(b, (const char *const[]){layer_prefix(b, 0, prefix, sizeof prefix), NULL},
                       name);
}

/* ---- config ---- */

static bool flag(const struct drafting *g, const char *key, bool dflt)
{
    return conf_bool(place_of(g, key), key, dflt);
}

/* Refuses variants of the forward pass that aerie does not implement. */
static void refuse_variants(const struct drafting *g)
{
    static const struct { const char *key; bool only; } fixed[] = {
        {"use_aux_hidden_state", true},
        {"use_input_layernorm_in_first_layer", true},
        {"use_last_layernorm", true},
        {"next_layer_regular", true},
        {"use_mtp_layernorm", false},
    };
    for (size_t i = 0; i < LEN(fixed); i++)
        if (flag(g, fixed[i].key, fixed[i].only) != fixed[i].only)
            conf_refuse(place_of(g, fixed[i].key), fixed[i].key, "is %s, which is not supported",
                        fixed[i].only ? "false" : "true");
    const struct conf *c = place_of(g, "parallel_draft_step");
    if (conf_int(c, "parallel_draft_step", 1, 0, 1 << 20) > 1)
        conf_refuse(c, "parallel_draft_step", "is above 1, which is not supported");
}

/* ---- P-EAGLE ---- */

static const char mask_name[] = "mask_hidden";

/* The depths of a speculators file; 0 if it does not say. */
static int speculators_depths(const struct drafting *g)
{
    struct conf own;
    if (!conf_enter(&g->top, "speculators_config", &own))
        return 0;
    const json_t *first = json_array_get(conf_value(&own, "proposal_methods"), 0);
    const json_t *n = json_object_get(first, "speculative_tokens");
    return json_is_integer(n) && json_integer_value(n) > 1
               ? (int)json_integer_value(n) : 0;
}

/* The depths that the file names, or as many as a tree can have; no more than that, nor than the
 * smallest window leaves room for, so that each mask of a pass sees the true cell before the first
 * one. A note says if these are fewer than the file's. */
static int configure_depths(struct drafting *g)
{
    struct draft *d = g->d;
    const struct conf *c = place_of(g, "num_depths");
    const int own = speculators_depths(g), most = MAX_BLOCK - 1;
    const int named = conf_int(c, "num_depths", own ? own : most, 2, 1 << 10);
    int depths = min_int(named, most), window = 0;
    for (int i = 0; i < d->cfg.n_layer; i++)
        if (d->layer[i].window && d->layer[i].window < depths)
            depths = window = d->layer[i].window;
    if (conf_ok(&g->top) && depths < 2)
        conf_refuse(&g->top, "sliding_window", "is 1, expected at least 2");
    if (depths < named && (own || conf_has(c, "num_depths")))
        draft_note(d, "the draft guesses %d of its %d depths: %s %d", depths, named,
                   window ? "its window is" : "a tree has at most", window ? window : most);
    return depths;
}

/* The masks of one pass are one less than there are depths. */
static void configure_parallel(struct drafting *g)
{
    static const char *const ids[] = {"ptd_token_id", "pard_token", "mask_token_id"};
    struct draft *d = g->d;
    const struct conf *c = NULL;
    const char *id = NULL;
    bool has = binder_find(&g->b, draft_roots, mask_name);
    for (int i = 0; i < 3 && !id; i++)
        if (conf_has(c = place_of(g, ids[i]), ids[i]))
            id = ids[i];
    if (!has && (id || flag(g, "parallel_drafting", false)))
        conf_refuse(id ? c : place_of(g, "parallel_drafting"), id ? id : "parallel_drafting",
                    "is that of a P-EAGLE head, but the checkpoint has no tensor mask_hidden");
    if (!has)
        return;
    d->kind = "peagle";
    if (!id)
        conf_refuse(&g->top, ids[0], "is missing, the id of the mask");
    else
        d->mask = conf_int(c, id, 0, 0, g->target->cfg.vocab - 1);
    d->block = configure_depths(g) - 1;
    d->block_depth = 2;
    d->causal[0] = d->causal[1] = true;
}

/* Binds mask_hidden. */
static bool bind_mask(struct drafting *g)
{
    struct draft *d = g->d;
    const struct tensor *t = binder_find(&g->b, draft_roots, mask_name);
    struct tensor_spec spec[] = {{SPEC(draft, mask_hidden, mask_name, X_ONE, X_CAPTURED)}, {0}};
    if (!d->block)
        return true;
    if (t->n_dim == 1)
        memcpy(spec[0].dim, (enum extent[4]){X_CAPTURED}, sizeof spec[0].dim);
    else if (t->n_dim == 3)
        memcpy(spec[0].dim, (enum extent[4]){X_ONE, X_ONE, X_CAPTURED}, sizeof spec[0].dim);
    return binder_bind(&g->b, spec, draft_roots, d, NULL, 0);
}

/* A row of the loaded mask_hidden is in place of the state of one boundary. */
static void shape_mask(struct draft *d)
{
    d->mask_hidden.n_dim = 2;
    d->mask_hidden.dim[0] = d->n_capture;
    d->mask_hidden.dim[1] = d->target_hidden;
    d->mask_hidden.dim[2] = 0;
}

/* ---- config ---- */

static void configure_norms(struct drafting *g, bool speculators)
{
    struct draft *d = g->d;
    static const char *const key = "norm_before_residual";
    if (speculators && !conf_has(place_of(g, key), key))
        conf_refuse(&g->top, key, "is missing; a speculators file must say which it is");
    d->norm_before_residual = flag(g, key, false);
    d->norm_output = flag(g, "norm_output", false);
    static const char *const before_fc[] = {"norm_before_fc", "fc_norm", "use_aux_norm"};
    bool has = binder_find(&g->b, draft_roots, "input_norm.weight") ||
               binder_find(&g->b, draft_roots, "fc_norm.0.weight");
    for (int i = 0; i < 3; i++)
        if (flag(g, before_fc[i], false) && !has)
            conf_refuse(place_of(g, before_fc[i]), before_fc[i], "is true, but the checkpoint has "
                        "neither input_norm.weight nor fc_norm.0.weight");
}

/* sliding_window applies only with layer_types or use_sliding_window. */
static void configure_windows(struct arch *a)
{
    const struct conf *c = &a->c;
    arch_windows(a, 1, 0);
    if (conf_has(c, "layer_types") || !conf_bool(c, "use_sliding_window", false))
        return;
    int w = conf_int(c, "sliding_window", CONF_NEEDED, 1, 1 << 30);
    int first = conf_int(c, "max_window_layers", 0, 0, 1 << 20);
    for (int i = first; i < a->cfg->n_layer; i++)
        a->cfg->window = a->layer[i].window = w;
}

static void configure_block(struct drafting *g, struct arch *a)
{
    static const struct rope_spelling rope = ROPE_OLD(1e4);
    const struct conf *c = &a->c;
    struct config *cfg = a->cfg;
    cfg->qkv_bias |= conf_bool(c, "bias", false) || conf_bool(c, "qkv_bias", false) ||
                     has_in_layer(&g->b, "self_attn.q_proj.bias");
    cfg->o_bias = has_in_layer(&g->b, "self_attn.o_proj.bias");
    cfg->qk_norm = has_in_layer(&g->b, "self_attn.q_norm.weight");
    cfg->tied = conf_bool(c, "tie_word_embeddings", false);
    configure_windows(a);
    cfg->n_rope = 1;
    arch_rope(c, cfg, &rope, &cfg->rope[0]);
}

static bool configure(struct drafting *g)
{
    struct draft *d = g->d;
    struct arch a = {.top = g->top, .c = g->top, .n_tensor = st_count(g->b.st), .cfg = &d->cfg};
    const struct sizes dflt = {.eps = 1e-6, .vocab = g->target->cfg.vocab, .layers = 1,
                               .max_pos = 4096};
    bool speculators = conf_has(&g->top, "transformer_layer_config") ||
                       conf_has(&g->top, "speculators_model_type");
    conf_enter(&g->top, "eagle_config", &g->own);
    conf_enter(&g->top, "transformer_layer_config", &a.c);
    snprintf(d->cfg.family, sizeof d->cfg.family, "eagle3");
    bool ok = arch_block(&a, &dflt, PLACE_PRE, NULL);
    d->layer = a.layer;
    if (!ok)
        return false;
    refuse_variants(g);
    configure_norms(g, speculators);
    configure_block(g, &a);
    configure_parallel(g);
    const char *vocab = conf_has(place_of(g, "draft_vocab_size"), "draft_vocab_size")
                            ? "draft_vocab_size" : "truncated_vocab_size";
    fit_vocab(g, place_of(g, vocab), vocab);
    const struct conf *own = place_of(g, "target_hidden_size");
    return fit_target(g, conf_has(own, "target_hidden_size") ? own : &a.c,
                      binder_find(&g->b, draft_roots, "fc.weight"), false);
}

/* ---- tensors ---- */

/* Binds fc_norm.N, one per captured state, if the checkpoint has them. */
static bool bind_fc_norms(struct drafting *g)
{
    if (!binder_find(&g->b, draft_roots, "fc_norm.0.weight"))
        return true;
    for (int i = 0; i < g->d->n_capture; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc_norm.%d.weight", i);
        const struct tensor_spec spec[] = {{.name = name, .dim = {X_TARGET}}, {0}};
        if (!binder_bind(&g->b, spec, draft_roots, &g->d->fc_norm[i], NULL, 0))
            return false;
    }
    return true;
}

static bool bind_layer(struct drafting *g, int i)
{
    char name[48];
    struct layer *l = &g->d->layer[i];
    const char *const prefix[] = {layer_prefix(&g->b, i, name, sizeof name), NULL};
    /* the first layer reads [embedding; hidden state] */
    g->b.x[X_IN] = (i == 0 ? 2 : 1) * (int64_t)g->d->cfg.hidden;
    return binder_bind(&g->b, draft_layer, prefix, l, l, i) &&
           (i > 0 || binder_bind(&g->b, first_specs, prefix, l, l, i));
}

/* ---- loading ---- */

bool eagle3_load(struct drafting *g)
{
    struct draft *d = g->d;
    d->kind = "eagle3";
    if (!configure(g))
        return false;
    fit_extents(g);
    if (!binder_bind(&g->b, trunk, draft_roots, d, NULL, 0) || !bind_fc_norms(g) ||
        !bind_mask(g))
        return false;
    for (int i = 0; i < d->cfg.n_layer; i++)
        if (!bind_layer(g, i))
            return false;
    if (!fit_ids(g) || !draft_finish(g, draft_ignored))
        return false;
    if (d->block)
        shape_mask(d);
    if (d->cfg.tied && d->embed.data && !d->head.data)
        d->head = d->embed;
    return true;
}

/* ---- without a checkpoint ---- */

bool draft_shaped(struct draft *d, const struct model *target, int ffn, int vocab, struct err *e)
{
    static const struct tensor_spec head = {
        SPEC(draft, head, "lm_head.weight", X_DRAFT_VOCAB, X_HIDDEN)};
    static const char *const top = "draft.", *const first = "draft.midlayer.";
    const struct config *t = &target->cfg;
    int64_t x[N_EXTENT] = {0};
    struct namer names;
    if (!draft_shape(d, "eagle3", target, 1, ffn, e))
        return false;
    d->draft_vocab = vocab;
    d->n_capture = 3;
    d->capture[0] = 2, d->capture[1] = t->n_layer / 2, d->capture[2] = t->n_layer - 3;
    namer_open(&names, 1);
    shape_extents(x, d);
    shape_tensors(trunk, &d->cfg, x, top, d, NULL, 0, &names);
    shape_tensor(&head, x, top, d, &names);
    x[X_IN] = 2 * (int64_t)t->hidden; /* [embedding; hidden state] */
    shape_tensors(draft_layer, &d->cfg, x, first, d->layer, d->layer, 0, &names);
    shape_tensors(first_specs, &d->cfg, x, first, d->layer, d->layer, 0, &names);
    d->names = names.all;
    d->bytes = names.bytes;
    d->d2t = xcalloc((size_t)vocab, sizeof *d->d2t);
    for (int i = 0; i < vocab; i++)
        d->d2t[i] = (int32_t)((int64_t)i * t->vocab / vocab);
    return true;
}
