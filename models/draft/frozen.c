/* frozen.c - loads gemma4_assistant and gemma4_unified_assistant, frozen-KV drafts: a few Gemma 4
 * layers that read the target's K and V.
 *
 * The layers own no K and V. Full layers read the cells of the target's last full layer that owns
 * its K and V, sliding layers those of its last sliding one. The head is the embedding; with
 * ordered embeddings only the tokens of the best centroids are scored (token_order lists them by
 * centroid).
 */
#include "models/draft/draft.h"
#include "models/checkpoint/safetensors.h"

static const char *const root[] = {"", NULL}, *const model_root[] = {"model.", NULL};
static const char *const ignored[] = {"*rotary_emb.inv_freq", NULL};
static const char *const order_name = "masked_embedding.token_ordering";

static const struct tensor_spec trunk[] = {
    {SPEC(draft, embed, "embed_tokens.weight", X_VOCAB, X_HIDDEN)},
    {SPEC(draft, norm, "norm.weight", X_HIDDEN)},
    {0},
};
static const struct tensor_spec outer[] = {
    {SPEC(draft, pre_proj, "pre_projection.weight", X_HIDDEN, X_TARGET2)},
    {SPEC(draft, post_proj, "post_projection.weight", X_TARGET, X_HIDDEN)},
    {SPEC(draft, head, "lm_head.weight", X_VOCAB, X_HIDDEN), .when = IF_UNTIED},
    {0},
};
static const struct tensor_spec ordered[] = {
    {SPEC(draft, centroids, "masked_embedding.centroids.weight", X_CENTROIDS, X_HIDDEN)},
    {0},
};

/* ---- config ---- */

/* The target layer whose cells draft layers of one type read: the owner of the K and V of the
 * target's last layer of that type. -1: the target has no such layer. */
static int last_owner(const struct model *target, bool sliding)
{
    for (int i = target->cfg.n_layer - 1; i >= 0; i--)
        if ((target->layer[i].window > 0) == sliding)
            return model_kv_owner(target, i);
    return -1;
}

static bool attach_layer(struct drafting *g, int i)
{
    struct layer *l = &g->d->layer[i];
    char what[80];
    int owner = l->window ? g->d->kv_swa : g->d->kv_full;
    const char *type = l->window ? "sliding" : "full";
    if (owner < 0) {
        snprintf(what, sizeof what, "layer %d: number of %s layers in the target", i, type);
        return draft_misfit(g, what, 0, 1);
    }
    const struct layer *t = &g->target->layer[owner];
    snprintf(what, sizeof what, "layer %d (%s): head_dim", i, type);
    if (l->head_dim != t->head_dim)
        return draft_misfit(g, what, l->head_dim, t->head_dim);
    snprintf(what, sizeof what, "layer %d (%s): num_key_value_heads", i, type);
    if (l->n_kv != t->n_kv)
        return draft_misfit(g, what, l->n_kv, t->n_kv);
    snprintf(what, sizeof what, "layer %d (%s): sliding_window", i, type);
    if (l->window > t->window)
        return draft_misfit(g, what, l->window, t->window);
    l->kv_src = owner;
    return true;
}

static bool attach(struct drafting *g)
{
    struct draft *d = g->d;
    bool full = false, swa = false;
    d->kv_full = last_owner(g->target, false);
    d->kv_swa = last_owner(g->target, true);
    for (int i = 0; i < d->cfg.n_layer; i++) {
        if (!attach_layer(g, i))
            return false;
        d->layer[i].window ? (swa = true) : (full = true);
    }
    if (!full)
        d->kv_full = -1;
    if (!swa)
        d->kv_swa = -1;
    return true;
}

/* Refuses features of Gemma 4 that an assistant does not have. */
static void refuse_variants(const struct arch *a)
{
    const struct conf *c = &a->c;
    const struct config *g = a->cfg;
    if (g->ple)
        conf_refuse(c, "hidden_size_per_layer_input", "is %d, expected 0 in an assistant", g->ple);
    if (g->moe)
        conf_refuse(c, "enable_moe_block", "is true, expected false in an assistant");
    for (int i = 0; i < g->n_layer; i++)
        if (a->layer[i].kv_src >= 0)
            conf_refuse(c, "num_kv_shared_layers", "leaves layer %d its own K and V, expected %d "
                        "shared layers in an assistant", i, g->n_layer);
}

static void configure_centroids(struct drafting *g)
{
    struct draft *d = g->d;
    if (!conf_bool(&g->top, "use_ordered_embeddings", false))
        return;
    d->n_centroid = conf_int(&g->top, "num_centroids", 2048, 1, 1 << 22);
    /* 64: the largest k of struct k_topk */
    d->centroid_top = conf_int(&g->top, "centroid_intermediate_top_k", 32, 1,
                               min_int(d->n_centroid, 64));
    if (d->cfg.vocab % d->n_centroid)
        conf_refuse(&g->top, "num_centroids", "is %d, which does not divide vocab_size %d",
                    d->n_centroid, d->cfg.vocab);
}

static bool configure(struct drafting *g)
{
    struct draft *d = g->d;
    struct config *c = &d->cfg;
    const struct config *t = &g->target->cfg;
    struct arch a = {.top = g->top, .c = g->top, .n_tensor = st_count(g->b.st), .cfg = c};
    snprintf(c->family, sizeof c->family, "gemma4_assistant");
    if (!conf_enter(&g->top, "text_config", &a.c))
        return conf_refuse(&g->top, "text_config", "is missing");
    bool unified = !strcmp(conf_str(&g->top, "model_type", ""), "gemma4_unified_assistant");
    const struct family *f = unified ? &family_gemma4_unified_assistant : &family_gemma4;
    a.c.keys = f->keys;
    bool ok = arch_family(&a, f);
    d->layer = a.layer;
    if (!ok)
        return false;
    refuse_variants(&a);
    arch_refuse_unused(&a);
    configure_centroids(g);
    c->tied = conf_bool(&g->top, "tie_word_embeddings", true);
    c->final_softcap = 0; /* the reference's assistant has none, whatever text_config says */
    d->target_hidden = conf_int(&g->top, "backbone_hidden_size", unified ? 3840 : 1536, 1,
                                1 << 16);
    d->draft_vocab = c->vocab;
    if (!conf_ok(&g->top))
        return false;
    if (d->target_hidden != t->hidden)
        return draft_misfit(g, "backbone_hidden_size", d->target_hidden, t->hidden);
    if (c->vocab != t->vocab)
        return draft_misfit(g, "text_config.vocab_size", c->vocab, t->vocab);
    return attach(g) && arch_init_ropes(c, d->layer, g->config_path, g->b.e);
}

/* ---- tensors ---- */

static bool bind(struct drafting *g)
{
    struct draft *d = g->d;
    int64_t *x = g->b.x;
    extents_of_config(x, &d->cfg);
    x[X_TARGET] = d->target_hidden;
    x[X_TARGET2] = 2 * (int64_t)d->target_hidden;
    x[X_CENTROIDS] = d->n_centroid;
    if (!binder_bind(&g->b, trunk, model_root, d, NULL, 0) ||
        !binder_bind(&g->b, outer, root, d, NULL, 0) ||
        (d->n_centroid && !binder_bind(&g->b, ordered, root, d, NULL, 0)))
        return false;
    for (int i = 0; i < d->cfg.n_layer; i++) {
        char name[48];
        snprintf(name, sizeof name, "model.layers.%d.", i);
        const char *const prefix[] = {name, NULL};
        /* index -1: no layer owns K and V */
        if (!binder_bind(&g->b, family_gemma4.layer, prefix, &d->layer[i], &d->layer[i], -1))
            return false;
    }
    return true;
}

/* Reads token_ordering, which must be a permutation of the vocabulary. */
static bool load_order(struct drafting *g)
{
    struct draft *d = g->d;
    int vocab = d->cfg.vocab;
    if (!d->n_centroid)
        return true;
    const struct tensor *t = binder_find(&g->b, root, order_name);
    if (!t)
        return err_file(g->b.e, st_path(g->b.st, NULL),
                        "tensor %s is missing, expected [%d (vocab_size)]", order_name, vocab);
    FREED(free_at) int64_t *id = binder_read_ints(&g->b, t, vocab, 0, vocab - 1);
    if (!id)
        return false;
    FREED(free_at) uint8_t *seen = xcalloc((size_t)vocab, 1);
    d->token_order = xcalloc((size_t)vocab, sizeof *d->token_order);
    for (int i = 0; i < vocab; i++) {
        if (seen[id[i]])
            return err_file(g->b.e, st_path(g->b.st, t), "tensor %s has token %lld twice",
                            order_name, (long long)id[i]);
        seen[id[i]] = 1;
        d->token_order[i] = (int32_t)id[i];
    }
    binder_mark_used(&g->b, t);
    return true;
}

bool frozen_load(struct drafting *g)
{
    struct draft *d = g->d;
    d->kind = "frozen-kv";
    if (!configure(g) || !bind(g) || !load_order(g))
        return false;
    const struct tensor *copy = binder_find(&g->b, root, "lm_head.weight");
    if (d->cfg.tied && copy &&
        !binder_use_copy(&g->b, copy, st_find(g->b.st, "model.embed_tokens.weight")))
        return false;
    if (!draft_finish(g, ignored))
        return false;
    if (d->cfg.tied)
        d->head = d->embed;
    return true;
}
