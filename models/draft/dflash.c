/* dflash.c - loads DFlash drafts, which guess a block of tokens in one pass (arXiv 2602.06036), and
 * their successors DSpark and DFlash 2, in their published layouts.
 *
 * z-lab's folders (DFlashDraftModel) have fc, hidden_norm and layers.N; speculators' (DFlash-
 * Speculator) also d2t, and their config below transformer_layer_config; Muse Glimmer's assistant
 * names the first two encoder.fc and encoder.output_norm_enc. Embedding and head are the target's
 * unless the folder has its own; an embedding of the target is scaled as the target scales it,
 * because gemma drafts were trained so (vLLM pull request 41703).
 *
 * Which rows of a block a row sees is not in the tensors. As in vLLM: is_causal, else
 * dflash_config.causal, else sliding layers are causal and full ones are not; Muse's are not. A
 * window counts the row itself, but for Muse's, which Hugging Face masks by |q - k| <= W. A wrong
 * mask costs acceptance only.
 *
 * DSpark (DeepSpec's Qwen3DSparkModel, speculators' DSparkSpeculator) is a DFlash draft whose first
 * row guesses, too, unless sample_from_anchor is false, with a bias of logits by the token before
 * (markov_head). Files of speculators older than that key have rows as DFlash's, so there it is
 * false if it is absent, as in vLLM. The file's confidence_head is not read: it would end a draft
 * early where rejection is likely, and changes no guess.
 *
 * DFlash 2 (z-lab's DFlash2DraftModel, and speculators') has convolutions over the rows of a block
 * in its layers, and chooses among the best tokens of a row by the token before
 * (candidate_selector). Its rows see the whole block by default, in sliding layers, too.
 */
#include "models/draft/draft.h"
#include "models/checkpoint/safetensors.h"

static const struct tensor_spec trunk[] = {
    {SPEC(draft, fc, "fc.weight", X_HIDDEN, X_CAPTURED), .older = "encoder.fc.weight"},
    {SPEC(draft, context_norm, "hidden_norm.weight", X_HIDDEN),
     .older = "encoder.output_norm_enc.weight"},
    {SPEC(draft, embed, "embed_tokens.weight", X_VOCAB, X_HIDDEN), .when = IF_PRESENT},
    {SPEC(draft, norm, "norm.weight", X_HIDDEN)},
    {SPEC(draft, head, "lm_head.weight", X_DRAFT_VOCAB, X_HIDDEN), .when = IF_PRESENT},
    {0},
};

static const char w1[] = "markov_head.markov_w1.weight";
static const struct tensor_spec bias_specs[] = {
    {SPEC(draft, prev, w1, X_VOCAB, X_RANK), .by_row = true},
    {SPEC(draft, next, "markov_head.markov_w2.weight", X_DRAFT_VOCAB, X_RANK)},
    {0},
};
static const struct tensor_spec gate_specs[] = {
    {SPEC(draft, edge, "markov_head.gate_proj.weight", X_RANK, X_STATE_RANK)},
    {SPEC(draft, edge_b, "markov_head.gate_proj.bias", X_RANK)},
    {0},
};
static const char codebook[] = "candidate_selector.predecessor_codebook";
static const struct tensor_spec best_specs[] = {
    {SPEC(draft, prev, codebook, X_VOCAB, X_RANK), .by_row = true},
    {SPEC(draft, next, "candidate_selector.successor_codebook", X_VOCAB, X_RANK), .by_row = true},
    {SPEC(draft, edge, "candidate_selector.hidden_projection.weight", X_RANK, X_HIDDEN)},
    {0},
};
static const struct tensor_spec conv_specs[] = {
    {SPEC(layer, attn_conv, "attention_conv.base_kernel", X_TWO, X_TAPS, X_HIDDEN),
     .by_row = true},
    {SPEC(layer, attn_by, "attention_conv.kernel_projection.weight", X_KERNELS, X_HIDDEN)},
    {SPEC(layer, mlp_conv, "mlp_conv.base_kernel", X_TWO, X_TAPS, X_HIDDEN), .by_row = true},
    {SPEC(layer, mlp_by, "mlp_conv.kernel_projection.weight", X_KERNELS, X_HIDDEN)},
    {0},
};

static const char *const ignored[] = {"*rotary_emb.inv_freq", "verifier_*", "model.verifier_*",
                                      "confidence_head.*", "model.confidence_head.*", NULL};

/* ---- config ---------------------------------------------------------------------------------- */

/* Whose layout the folder has, neither: z-lab's or DeepSpec's; and which draft it is, neither: a
 * plain one. */
struct layout {
    bool speculators, muse;
    bool dspark, second;
};

/* Refuses variants that aerie does not compute. Those with tensors of their own (Laguna, separate
 * mask rows) are refused by these tensors' names. */
static void refuse_variants(const struct drafting *g)
{
    static const char *const off[] = {"attention_sink_bias", "add_swa_attention_sink_bias",
                                      "use_gemma_norm", "dflash_query_causal",
                                      "log_snr_conditioning", "enable_qwen35_gated_q_proj"};
    for (size_t i = 0; i < LEN(off); i++)
        if (conf_bool(place_of(g, off[i]), off[i], false))
            conf_refuse(place_of(g, off[i]), off[i], "is true, which is not supported");
    if (!conf_bool(&g->top, "is_neox_style", true))
        conf_refuse(&g->top, "is_neox_style", "is false, which is not supported");
}

static int own_int(const struct drafting *g, const char *key, int dflt, int min, int max)
{
    return conf_int(place_of(g, key), key, dflt, min, max);
}

/* DSpark's bias; without a rank there is none. */
static void configure_bias(struct drafting *g)
{
    struct draft *d = g->d;
    static const char type_key[] = "markov_head_type";
    const struct conf *c = place_of(g, type_key);
    const char *type = conf_str(c, type_key, "vanilla");
    bool has = binder_find(&g->b, draft_roots, w1);
    d->rank = own_int(g, "markov_rank", has ? 256 : 0, 0, 1 << 14);
    if (!conf_ok(&g->top) || !d->rank)
        return;
    d->edges = !strcmp(type, "gated") ? EDGES_GATED : EDGES_BIAS;
    if (d->edges == EDGES_BIAS && strcmp(type, "vanilla") != 0)
        conf_refuse(c, type_key, "is \"%.40s\", expected vanilla or gated", show(type).s);
}

/* DFlash 2's convolutions, and its choice among the best. */
static void configure_second(struct drafting *g)
{
    static const char best[] = "selector_top_k", group[] = "conv_group_size";
    struct draft *d = g->d;
    int vocab = g->target->cfg.vocab;
    d->edges = EDGES_BEST;
    d->rank = own_int(g, "selector_rank", 256, 1, 1 << 14);
    d->choices = own_int(g, best, 16, 1, min_int(vocab, MAX_CHOICES));
    d->taps = own_int(g, "conv_kernel_size", 2, 1, MAX_TAPS);
    d->group = own_int(g, group, 16, 1, d->cfg.hidden);
    if (conf_ok(&g->top) && d->cfg.hidden % d->group)
        conf_refuse(place_of(g, group), group, "is %d, which does not divide hidden_size %d",
                    d->group, d->cfg.hidden);
    if (conf_ok(&g->top) && d->draft_vocab != vocab)
        conf_refuse(place_of(g, "draft_vocab_size"), "draft_vocab_size",
                    "is %d, expected the vocab_size %d of a DFlash 2 draft", d->draft_vocab, vocab);
}

/* The head's logits are multiplied, then capped: cap(m y) = m (cap / m) tanh(y / (cap / m)). */
static void configure_logits(struct drafting *g)
{
    static const char cap[] = "final_logit_softcapping", times[] = "output_multiplier";
    struct config *c = &g->d->cfg;
    float m = (float)conf_num(place_of(g, times), times, 1, 1e-6, 1e6);
    c->final_softcap = arch_softcap(place_of(g, cap), cap, 0) / m;
    c->logit_scale = (float)conf_num(&g->top, "logit_scale", 1, 1e-6, 1e6) * m;
    if (m != 1 && g->d->edges != EDGES_NONE && g->d->edges != EDGES_BEST)
        conf_refuse(place_of(g, times), times, "is not 1, which a DSpark draft does not have");
}

static void configure_block(struct drafting *g, const struct layout *p)
{
    static const char anchor[] = "sample_from_anchor", noise[] = "dspark_noise_token_id";
    struct draft *d = g->d;
    d->block_depth = conf_bool(place_of(g, anchor), anchor, p->dspark && !p->speculators);
    d->block = own_int(g, "block_size", p->speculators ? 8 : 16, 2, MAX_BLOCK - d->block_depth);
    const char *mask = conf_has(place_of(g, noise), noise) ? noise : "mask_token_id";
    if (!conf_has(place_of(g, mask), mask))
        conf_refuse(place_of(g, mask), mask, "is missing");
    d->mask = own_int(g, mask, 0, 0, g->target->cfg.vocab - 1);
    const struct conf *c = &g->top;
    if (conf_int(c, "num_target_layers", g->target->cfg.n_layer, 1, 1 << 20) !=
        g->target->cfg.n_layer)
        conf_refuse(c, "num_target_layers", "is not the target's number of layers, %d",
                    g->target->cfg.n_layer);
}

/* layer_types as everywhere; use_swa makes every layer a sliding one unless layer_types has
 * some. */
static void configure_windows(struct drafting *g, struct arch *a, const struct layout *p)
{
    struct config *cfg = a->cfg;
    const struct conf *w = &g->own;
    bool given = conf_has(w, "swa_window_size"), any = false;
    if (conf_has(&a->c, "layer_types") || p->muse)
        arch_windows(a, p->muse ? 0 : 1, p->muse ? 2048 : 0);
    for (int i = 0; i < cfg->n_layer; i++)
        any |= a->layer[i].window > 0;
    bool swa = conf_bool(place_of(g, "use_swa"), "use_swa", false);
    if (!any && !swa)
        return;
    int wide = given ? conf_int(w, "swa_window_size", CONF_NEEDED, 1, 1 << 30)
                     : conf_int(&a->c, "sliding_window", p->muse ? 2048 : CONF_NEEDED, 1, 1 << 30);
    cfg->window = wide + p->muse;
    for (int i = 0; i < cfg->n_layer; i++)
        if (!any || a->layer[i].window)
            a->layer[i].window = cfg->window;
    if (conf_ok(&g->top) && cfg->window < g->d->block)
        conf_refuse(given ? w : &a->c, given ? "swa_window_size" : "sliding_window",
                    "is %d, expected at least the block_size %d", wide, g->d->block);
}

static void configure_causality(const struct drafting *g, const struct layout *p)
{
    struct draft *d = g->d;
    const struct conf *c = conf_has(&g->top, "is_causal") ? &g->top : &g->own;
    const char *key = c == &g->top ? "is_causal" : "causal";
    bool free_swa = conf_bool(&g->top, "sliding_window_non_causal", p->second);
    bool types = conf_has(&g->top, "layer_types") || p->speculators;
    d->causal[0] = conf_bool(c, key, false);
    d->causal[1] = conf_bool(c, key, types && !p->muse && !free_swa);
}

static void configure_rope(struct arch *a, bool muse)
{
    static const struct rope_spelling plain = ROPE_OLD(1e6), own = ROPE_OLD(5e5);
    a->cfg->n_rope = 1;
    arch_rope(&a->c, a->cfg, muse ? &own : &plain, &a->cfg->rope[0]);
}

static bool configure(struct drafting *g)
{
    static const char times[] = "input_embedding_scale";
    struct draft *d = g->d;
    struct layout p = {0};
    struct arch a = {.top = g->top, .c = g->top, .n_tensor = st_count(g->b.st), .cfg = &d->cfg};
    struct sizes dflt = {.eps = 1e-6, .vocab = g->target->cfg.vocab, .max_pos = 4096};
    p.muse = !strcmp(conf_str(&g->top, "model_type", ""), "muse_glimmer_assistant");
    p.speculators = conf_enter(&g->top, "transformer_layer_config", &a.c);
    if (!conf_enter(&g->top, "dflash_config", &g->own))
        conf_enter(&g->top, "dspark_config", &g->own);
    p.second = binder_find(&g->b, draft_roots, codebook) ||
               binder_find(&g->b, draft_roots, "layers.0.attention_conv.base_kernel");
    p.dspark = !p.second && (binder_find(&g->b, draft_roots, w1) ||
                             conf_has(place_of(g, "markov_rank"), "markov_rank"));
    d->kind = p.second ? "dflash2" : p.dspark ? "dspark" : "dflash";
    snprintf(d->cfg.family, sizeof d->cfg.family, "dflash");
    bool ok = arch_block(&a, &dflt, PLACE_PRE, NULL);
    d->layer = a.layer;
    if (!ok)
        return false;
    d->cfg.tied = false; /* a draft without a head has the target's */
    d->cfg.qk_norm = true;
    bool own = binder_find(&g->b, draft_roots, "embed_tokens.weight");
    d->cfg.embed_scale = (own ? 1 : g->target->cfg.embed_scale) *
                         (float)conf_num(place_of(g, times), times, 1, 1e-6, 1e6);
    refuse_variants(g);
    configure_block(g, &p);
    configure_windows(g, &a, &p);
    configure_causality(g, &p);
    configure_rope(&a, p.muse);
    fit_vocab(g, place_of(g, "draft_vocab_size"), "draft_vocab_size");
    if (p.second)
        configure_second(g);
    else if (p.dspark)
        configure_bias(g);
    configure_logits(g);
    const struct tensor *fc = binder_find(&g->b, draft_roots, "fc.weight");
    if (!fc)
        fc = binder_find(&g->b, draft_roots, "encoder.fc.weight");
    if (!fc)
        return err_file(g->b.e, st_path(g->b.st, NULL), "tensor fc.weight is missing");
    return fit_target(g, &g->top, fc, true);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Binds layer i: layers.N, or midlayer in place of the first. */
static bool bind_layer(struct drafting *g, int i)
{
    char name[2][32];
    struct layer *l = &g->d->layer[i];
    snprintf(name[0], sizeof name[0], "layers.%d.", i);
    snprintf(name[1], sizeof name[1], "model.layers.%d.", i);
    const char *const prefix[] = {name[0], name[1], i ? NULL : "midlayer.", NULL};
    return binder_bind(&g->b, draft_layer, prefix, l, l, i) &&
           (!g->d->taps || binder_bind(&g->b, conv_specs, prefix, l, l, i));
}

static bool bind_edges(struct drafting *g)
{
    static const struct tensor_spec *const of[] = {[EDGES_BIAS] = bias_specs,
                                                   [EDGES_GATED] = bias_specs,
                                                   [EDGES_BEST] = best_specs};
    struct draft *d = g->d;
    return (!of[d->edges] || binder_bind(&g->b, of[d->edges], draft_roots, d, NULL, 0)) &&
           (d->edges != EDGES_GATED || binder_bind(&g->b, gate_specs, draft_roots, d, NULL, 0));
}

/* The file's (2, taps, hidden) as rows of hidden. */
static void flatten(struct tensor *t)
{
    t->n_dim = 2;
    t->dim[0] *= t->dim[1];
    t->dim[1] = t->dim[2];
}

/* Gemma-4's layers have norms that are not bound here. */
static bool refuse_layers(const struct drafting *g)
{
    static const char norm[] = "layers.0.pre_feedforward_layernorm.weight";
    const struct tensor *t = binder_find(&g->b, draft_roots, norm);
    return !t || err_file(g->b.e, st_path(g->b.st, t), "tensor %s is of a draft with gemma-4's "
                          "layers, which are not supported", show(t->name).s);
}

bool dflash_load(struct drafting *g)
{
    struct draft *d = g->d;
    if (!refuse_layers(g) || !configure(g))
        return false;
    fit_extents(g);
    if (!binder_bind(&g->b, trunk, draft_roots, d, NULL, 0))
        return false;
    for (int i = 0; i < d->cfg.n_layer; i++)
        if (!bind_layer(g, i))
            return false;
    if (!bind_edges(g) || !fit_ids(g) || !draft_finish(g, ignored))
        return false;
    for (int i = 0; i < d->cfg.n_layer && d->taps; i++) {
        flatten(&d->layer[i].attn_conv);
        flatten(&d->layer[i].mlp_conv);
    }
    return true;
}

/* ---- without a checkpoint -------------------------------------------------------------------- */

bool block_draft_shaped(struct draft *d, const struct model *target, bool dspark, struct err *e)
{
    enum { LAYERS = 5, GUESSES = 7, RANK = 256 };
    static const char *const top = "draft.";
    const struct config *t = &target->cfg;
    int64_t x[N_EXTENT] = {0};
    struct namer names;
    if (!draft_shape(d, dspark ? "dspark" : "dflash", target, LAYERS, 3 * t->hidden, e))
        return false;
    snprintf(d->cfg.family, sizeof d->cfg.family, "dflash");
    d->cfg.qk_norm = true;
    d->cfg.embed_scale = t->embed_scale;
    d->n_capture = LAYERS;
    for (int i = 0; i < LAYERS; i++) /* outputs of layers 1 to n - 3 */
        d->capture[i] = 2 + i * max_int(t->n_layer - 4, 0) / (LAYERS - 1);
    d->block_depth = dspark;
    d->block = GUESSES + !dspark;
    d->edges = dspark ? EDGES_BIAS : EDGES_NONE;
    d->rank = dspark ? RANK : 0;
    namer_open(&names, LAYERS + 1);
    shape_extents(x, d);
    shape_tensors(trunk, &d->cfg, x, top, d, NULL, 0, &names);
    if (dspark)
        shape_tensors(bias_specs, &d->cfg, x, top, d, NULL, 0, &names);
    for (int i = 0; i < LAYERS; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%slayers.%d.", top, i);
        shape_tensors(draft_layer, &d->cfg, x, prefix, &d->layer[i], &d->layer[i], i, &names);
    }
    d->names = names.all;
    d->bytes = names.bytes;
    return true;
}
