/* draft.c - loads a draft's folder: decides its kind. */
#include "models/draft/draft.h"

#include "models/checkpoint/safetensors.h"

static bool load_kind(struct drafting *g)
{
    const char *type = conf_str(&g->top, "model_type", "");
    if (!conf_ok(&g->top))
        return false;
    if (!strcmp(type, "gemma4_assistant") || !strcmp(type, "gemma4_unified_assistant"))
        return frozen_load(g);
    if (binder_find(&g->b, draft_roots, "hidden_norm.weight") ||
        binder_find(&g->b, draft_roots, "encoder.output_norm_enc.weight"))
        return dflash_load(g);
    if (binder_find(&g->b, draft_roots, "fc.weight"))
        return eagle3_load(g);
    return err_file(g->b.e, st_path(g->b.st, NULL),
                    "neither an EAGLE3 or P-EAGLE head (no tensor fc.weight) nor a DFlash, DSpark "
                    "or DFlash 2 draft (no hidden_norm.weight) nor a gemma4_assistant (model_type "
                    "\"%.60s\")",
                    show(type).s);
}

bool draft_load(struct draft *d, const char *dir, const struct model *target, const char *capture,
                const struct loading *p, struct err *e)
{
    *d = (struct draft){.kv_full = -1, .kv_swa = -1};
    d->dir = xstrdup(dir);
    struct drafting g = {.d = d, .target = target, .capture = capture, .progress = p};
    FREED(json_decrefp) json_t *root = NULL;
    bool ok = false;
    struct safetensors *st = st_open(dir, e);
    if (st && st->note)
        d->note = xstrdup(st->note);
    FREED(free_at) char *path = st ? st_config(st, &g.config, e) : NULL;
    struct conf_file file = {.path = path, .e = e};
    g.config_path = path;
    if (path && (root = json_read(g.config.p, g.config.n, JSON_DEPTH, path, e))) {
        g.top = g.own = (struct conf){.obj = root, .file = &file};
        binder_open(&g.b, st, &d->cfg, e);
        ok = load_kind(&g);
        binder_close(&g.b);
    } else {
        st_close(st);
    }
    buf_free(&g.config);
    if (!ok)
        draft_free(d);
    return ok;
}

void draft_free(struct draft *d)
{
    for (int i = 0; i < MAX_ROPE; i++)
        rope_free(&d->cfg.rope[i]);
    store_free(d->store);
    FREE(d->layer, d->d2t, d->token_order, d->dir, d->names, d->note);
    *d = (struct draft){0};
}

bool draft_each(struct draft *d, bool (*fn)(struct tensor *t, void *arg, struct err *e), void *arg,
                struct err *e)
{
    bool tied = draft_tied(d);
    struct tensor *own[] = {&d->fc,    &d->fc_b, &d->input_norm, &d->embed,     &d->norm,
                            tied ? NULL : &d->head, &d->pre_proj,   &d->post_proj, &d->centroids,
                            &d->context_norm, &d->mask_hidden, &d->prev, &d->next,
                            &d->edge, &d->edge_b};
    for (size_t i = 0; i < LEN(own); i++)
        if (own[i] && !each_tensor(own[i], 1, d->store, fn, arg, e))
            return false;
    if (!each_tensor(d->fc_norm, MAX_CAPTURE, d->store, fn, arg, e))
        return false;
    for (int i = 0; i < d->cfg.n_layer; i++) {
        int n;
        struct tensor *t = layer_tensors(&d->layer[i], &n);
        if (!each_tensor(t, n, d->store, fn, arg, e))
            return false;
    }
    if (tied)
        d->head = d->embed;
    return true;
}

struct odd_search {
    bool (*is_odd)(const struct tensor *t, void *arg);
    void *arg;
    const struct tensor *found;
};

/* For draft_each(): stops at a weight that is odd. */
static bool find_odd(struct tensor *t, void *arg, struct err *)
{
    struct odd_search *s = arg;
    if (!s->is_odd(t, s->arg))
        return true;
    s->found = t;
    return false;
}

const struct tensor *draft_odd_weight(struct draft *d,
                                      bool (*is_odd)(const struct tensor *t, void *arg), void *arg)
{
    struct odd_search s = {is_odd, arg, NULL};
    draft_each(d, find_odd, &s, NULL);
    return s.found;
}
