/* fit.c - whether a draft that reads captured states of the target fits it: widths, embedding, head
 * and vocabulary. Shared by EAGLE3 and DFlash, whose embedding and head may be the target's.
 */
#include "models/draft/draft.h"
#include "models/checkpoint/safetensors.h"

const char *const draft_roots[] = {"", "model.", NULL};
const char *const draft_ignored[] = {"*rotary_emb.inv_freq", "verifier_*", "model.verifier_*",
                                     NULL};
const struct tensor_spec draft_layer[] = {
    SPECS_PRE_NORM, SPECS_ATTENTION, SPECS_HEAD_NORMS, SPECS_MLP, {0},
};

void fit_vocab(struct drafting *g, const struct conf *c, const char *key)
{
    const struct tensor *head = binder_find(&g->b, draft_roots, "lm_head.weight");
    int vocab = g->target->cfg.vocab;
    bool rows_known = head && head->n_dim == 2 && head->dim[0] <= vocab;
    g->d->draft_vocab = conf_int(c, key, rows_known ? head->dim[0] : vocab, 1, vocab);
}

void shape_extents(int64_t *x, const struct draft *d)
{
    extents_of_config(x, &d->cfg);
    x[X_TARGET] = d->target_hidden;
    x[X_CAPTURED] = (int64_t)d->n_capture * d->target_hidden;
    x[X_DRAFT_VOCAB] = d->draft_vocab;
    x[X_TAPS] = d->taps;
    x[X_KERNELS] = d->group ? 2 * (int64_t)d->taps * (d->cfg.hidden / d->group) : 0;
    x[X_RANK] = d->rank;
    x[X_STATE_RANK] = (int64_t)d->cfg.hidden + d->rank;
}

void fit_extents(struct drafting *g)
{
    shape_extents(g->b.x, g->d);
}

bool draft_shape(struct draft *d, const char *kind, const struct model *target, int layers, int ffn,
                 struct err *e)
{
    const struct config *t = &target->cfg;
    const struct layer *l = &target->layer[0];
    struct rope rope = ROPE_PLAIN(1e4);
    *d = (struct draft){0};
    if (!rope_init(&rope, l->head_dim, e))
        return false;
    *d = (struct draft){.kind = kind, .target_hidden = t->hidden, .draft_vocab = t->vocab,
                        .dir = xstrdup("draft"),
                        .layer = xcalloc((size_t)layers, sizeof *d->layer)};
    d->cfg = (struct config){
        .hidden = t->hidden, .n_layer = layers, .vocab = t->vocab,
        .max_pos = t->max_pos, .norm = NORM_RMS, .place = PLACE_PRE, .eps = 1e-5f,
        .attn_scale = 1 / __builtin_sqrtf((float)l->head_dim), .embed_scale = 1,
        .residual_scale = 1, .logit_scale = 1, .value_scale = 1, .route_scale = 1,
        .act = ACT_SILU,
        .rope = {rope}, .n_rope = 1, .bos = -1, .pad = -1};
    snprintf(d->cfg.family, sizeof d->cfg.family, "%s", kind);
    for (int i = 0; i < layers; i++)
        d->layer[i] = (struct layer){.n_head = l->n_head, .n_kv = l->n_kv,
                                     .head_dim = l->head_dim, .ffn = ffn, .kv_src = i};
    return true;
}

static bool fit_widths(struct drafting *g, const struct conf *width)
{
    const struct config *t = &g->target->cfg, *cfg = &g->d->cfg;
    static const char *const key = "target_hidden_size";
    int hidden = conf_int(width, key, t->hidden, 1, 1 << 16);
    if (!conf_ok(&g->top))
        return false;
    if (cfg->vocab != t->vocab)
        return draft_misfit(g, "vocab_size", cfg->vocab, t->vocab);
    if (hidden != t->hidden)
        return draft_misfit(g, key, hidden, t->hidden);
    bool own_embed = binder_find(&g->b, draft_roots, "embed_tokens.weight");
    bool own_head = binder_find(&g->b, draft_roots, "lm_head.weight");
    if (cfg->hidden != t->hidden && !own_embed)
        return draft_misfit(g, "hidden_size (it has no embed_tokens.weight of its own)",
                            cfg->hidden, t->hidden);
    bool tied = cfg->tied && own_embed;
    if (cfg->hidden != t->hidden && !own_head && !tied)
        return draft_misfit(g, "hidden_size (it has no lm_head.weight of its own)",
                            cfg->hidden, t->hidden);
    if (g->d->draft_vocab != t->vocab && !own_head)
        return draft_misfit(g, "draft_vocab_size (it has no lm_head.weight of its own)",
                            g->d->draft_vocab, t->vocab);
    return true;
}

bool fit_target(struct drafting *g, const struct conf *width, const struct tensor *fc, bool dflash)
{
    g->d->target_hidden = g->target->cfg.hidden;
    if (!fit_widths(g, width) || !draft_captures(g, fc, dflash))
        return false;
    if (!rope_init(&g->d->cfg.rope[0], g->d->layer[0].head_dim, g->b.e))
        return err_prefix(g->b.e, "%s", show_path(g->config_path).s);
    return conf_ok(&g->top);
}

/* ---- the draft vocabulary ---- */

/* Checks that t2d marks exactly the target ids to which d2t maps. */
static bool check_t2d(struct drafting *g, const struct tensor *t, const uint8_t *mapped)
{
    int vocab = g->target->cfg.vocab;
    const char *path = st_path(g->b.st, t);
    if ((t->type != DT_BOOL && t->type != DT_U8) || t->bytes != (size_t)vocab)
        return err_file(g->b.e, path, "tensor %s has %zu entries of type %s, expected %d of BOOL",
                        show(t->name).s, t->bytes / (dtype_size(t->type) ? dtype_size(t->type) : 1),
                        st_entry(t)->type, vocab);
    FREED(free_at) uint8_t *mark = xmalloc((size_t)vocab);
    if (!st_read(g->b.st, t, mark, g->b.e))
        return false;
    for (int i = 0; i < vocab; i++)
        if (!mark[i] != !mapped[i])
            return err_file(g->b.e, path, "tensor %s %s target id %d, d2t %s", show(t->name).s,
                            mark[i] ? "marks" : "does not mark", i,
                            mapped[i] ? "maps to it" : "does not map to it");
    return true;
}

void draft_note(struct draft *d, const char *fmt, ...)
{
    struct buf all = {0};
    va_list ap;
    if (d->note)
        buf_printf(&all, "%s; ", d->note);
    buf_printf(&all, "%s: ", show_path(d->dir).s);
    va_start(ap, fmt);
    buf_vprintf(&all, fmt, ap);
    va_end(ap);
    free(d->note);
    d->note = xstrdup(buf_text(&all));
    buf_free(&all);
}

/* Reads d2t, which holds offsets: target id = draft id + d2t[draft id]; in a GGUF (`ids`) it holds
 * target ids. Sets mapped[target id]. */
static bool map_ids(struct drafting *g, const struct tensor *t, bool ids, uint8_t *mapped)
{
    struct draft *d = g->d;
    int vocab = g->target->cfg.vocab;
    FREED(free_at) int64_t *off = binder_read_ints(&g->b, t, d->draft_vocab, -vocab, vocab);
    if (!off)
        return false;
    bool ok = true, ascending = true, same = d->draft_vocab == vocab;
    d->d2t = xcalloc((size_t)d->draft_vocab, sizeof *d->d2t);
    for (int i = 0; ok && i < d->draft_vocab; i++) {
        int64_t id = ids ? off[i] : i + off[i];
        if (id < 0 || id >= vocab || mapped[id])
            ok = err_file(g->b.e, st_path(g->b.st, t),
                          "tensor %s maps draft id %d to target id %lld, %s", show(t->name).s, i,
                          (long long)id,
                          id >= 0 && id < vocab ? "as it does an earlier one"
                                                : "which the target does not have");
        else
            mapped[id] = 1;
        d->d2t[i] = (int32_t)id;
        ascending &= i == 0 || d->d2t[i] > d->d2t[i - 1];
        same &= id == i;
    }
    if (ok && same) {
        free(d->d2t);
        d->d2t = NULL;
    }
    if (ok && !ascending)
        draft_note(d, "d2t is not in ascending order");
    return ok;
}

bool fit_ids(struct drafting *g)
{
    const struct tensor *d2t = binder_find(&g->b, draft_roots, "d2t");
    const struct tensor *t2d = binder_find(&g->b, draft_roots, "t2d");
    const struct tensor *ids = d2t ? NULL : binder_find(&g->b, draft_roots, "d2t_ids");
    d2t = d2t ? d2t : ids;
    int vocab = g->target->cfg.vocab;
    if (!d2t && g->d->draft_vocab != vocab)
        return err_file(g->b.e, st_path(g->b.st, NULL),
                        "tensor d2t is missing, expected [%d (draft_vocab_size)]",
                        g->d->draft_vocab);
    FREED(free_at) uint8_t *mapped = xcalloc((size_t)vocab, 1);
    if (!d2t)
        memset(mapped, 1, (size_t)vocab);
    bool ok = (!d2t || map_ids(g, d2t, ids != NULL, mapped)) && (!t2d || check_t2d(g, t2d, mapped));
    if (d2t)
        binder_mark_used(&g->b, d2t);
    if (t2d)
        binder_mark_used(&g->b, t2d);
    return ok;
}

bool draft_finish(struct drafting *g, const char *const *ignored)
{
    struct draft *d = g->d;
    return binder_refuse_unused(&g->b, ignored) &&
           binder_load(&g->b, "draft", &g->config, &d->store, &d->bytes, d->sha, g->progress);
}
