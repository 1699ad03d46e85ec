/* dflash.c - loads DFlash drafts, which guess a block of tokens in one pass (arXiv 2602.06036), in
 * their published layouts.
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

/* ---- config ---------------------------------------------------------------------------------- */

/* Whose layout the folder has; neither: z-lab's. */
struct layout {
    bool speculators, muse;
};

/* Refuses variants that aerie does not compute. Those with tensors of their own (DFlash 2, DSpark,
 * Laguna, separate mask rows) are refused by these tensors' names. */
static void refuse_variants(const struct drafting *g)
{
    static const char *const off[] = {"sample_from_anchor", "attention_sink_bias",
                                      "add_swa_attention_sink_bias", "use_gemma_norm"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (conf_bool(place_of(g, off[i]), off[i], false))
            conf_refuse(place_of(g, off[i]), off[i], "is true, which is not supported");
    if (!conf_bool(&g->top, "is_neox_style", true))
        conf_refuse(&g->top, "is_neox_style", "is false, which is not supported");
    const struct conf *c = place_of(g, "output_multiplier");
    if (conf_num(c, "output_multiplier", 1, -1e9, 1e9) != 1)
        conf_refuse(c, "output_multiplier", "is not 1, which is not supported");
}

static void configure_block(struct drafting *g, const struct layout *p)
{
    struct draft *d = g->d;
    const struct conf *c = place_of(g, "block_size");
    d->block = conf_int(c, "block_size", p->speculators ? 8 : 16, 2, MAX_BLOCK);
    c = place_of(g, "mask_token_id");
    if (!conf_has(c, "mask_token_id"))
        conf_refuse(c, "mask_token_id", "is missing");
    d->mask = conf_int(c, "mask_token_id", 0, 0, g->target->cfg.vocab - 1);
    c = &g->top;
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
    bool free_swa = conf_bool(&g->top, "sliding_window_non_causal", false);
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
    struct draft *d = g->d;
    struct layout p = {0};
    struct arch a = {.top = g->top, .c = g->top, .n_tensor = st_count(g->b.st), .cfg = &d->cfg};
    struct sizes dflt = {.eps = 1e-6, .vocab = g->target->cfg.vocab, .max_pos = 4096};
    p.muse = !strcmp(conf_str(&g->top, "model_type", ""), "muse_glimmer_assistant");
    p.speculators = conf_enter(&g->top, "transformer_layer_config", &a.c);
    conf_enter(&g->top, "dflash_config", &g->own);
    snprintf(d->cfg.family, sizeof d->cfg.family, "dflash");
    bool ok = arch_block(&a, &dflt, PLACE_PRE, NULL);
    d->layer = a.layer;
    if (!ok)
        return false;
    d->cfg.tied = false; /* a draft without a head has the target's */
    d->cfg.qk_norm = true;
    d->cfg.final_softcap = arch_softcap(place_of(g, "final_logit_softcapping"),
                                        "final_logit_softcapping", 0);
    d->cfg.logit_scale = (float)conf_num(&g->top, "logit_scale", 1, 1e-6, 1e6);
    bool own = binder_find(&g->b, draft_roots, "embed_tokens.weight");
    d->cfg.embed_scale = own ? 1 : g->target->cfg.embed_scale;
    refuse_variants(g);
    configure_block(g, &p);
    configure_windows(g, &a, &p);
    configure_causality(g, &p);
    configure_rope(&a, p.muse);
    fit_vocab(g, place_of(g, "draft_vocab_size"), "draft_vocab_size");
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
    return binder_bind(&g->b, draft_layer, prefix, l, l, i);
}

bool dflash_load(struct drafting *g)
{
    struct draft *d = g->d;
    d->kind = "dflash";
    if (!configure(g))
        return false;
    fit_extents(g);
    if (!binder_bind(&g->b, trunk, draft_roots, d, NULL, 0))
        return false;
    for (int i = 0; i < d->cfg.n_layer; i++)
        if (!bind_layer(g, i))
            return false;
    return fit_ids(g) && draft_finish(g, draft_ignored);
}
