/* quantize.c - chooses the matrices that `--weights` and `--draft-weights` quantize to FP8. */
#include "models/models.h"

#define NOTHING "%s fp8: the %s has no bf16 matrices, the only kind that can be quantized"

/* Marks a bf16 matrix, or removes its mark; returns how many matrices that is, 1 or 0. */
static int mark_matrix(struct tensor *t, bool fp8)
{
    const bool is_one = t->bytes && t->type == DT_BF16 && t->n_dim == 2;
    t->quantize = is_one && fp8;
    return is_one;
}

static int mark_layers(struct layer *layer, int n, bool fp8)
{
    int marked = 0;
    FOR_EACH(struct layer, l, layer, n) {
        struct tensor *dense[] = {&l->wq, &l->wk, &l->wv, &l->wo, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < LEN(dense); k++)
            marked += mark_matrix(dense[k], fp8);
    }
    return marked;
}

static int mark_model(struct model *m, bool fp8)
{
    int marked = mark_layers(m->layer, m->cfg.n_layer, fp8) + mark_matrix(&m->head, fp8);
    return marked + (m->cfg.tied ? mark_matrix(&m->embed, fp8) : 0);
}

static int mark_draft(struct draft *d, bool fp8)
{
    int marked = mark_layers(d->layer, d->cfg.n_layer, fp8);
    struct tensor *own[] = {&d->fc, &d->head, &d->pre_proj, &d->post_proj, &d->next};
    for (size_t k = 0; k < LEN(own); k++)
        if (!own[k]->by_row) /* which a table is */
            marked += mark_matrix(own[k], fp8);
    if (draft_tied(d))
        marked += mark_matrix(&d->embed, fp8);
    return marked;
}

int models_mark(struct model *m, struct draft *d, bool fp8)
{
    return (m ? mark_model(m, fp8) : 0) + (d ? mark_draft(d, fp8) : 0);
}

/* The value of an option; NULL means `otherwise`. */
static bool is_fp8(const char *text, bool otherwise)
{
    return text ? !strcmp(text, "fp8") : otherwise;
}

bool models_quantize(struct model *m, struct draft *d, const struct quant_opts *o, struct err *e)
{
    bool model = is_fp8(o->weights, false), draft = is_fp8(o->draft_weights, model);
    if (model && m && !mark_model(m, true))
        return err_set(e, ERR_MODEL, NOTHING, "--weights", "model");
    if (draft && d && !mark_draft(d, true) && o->draft_weights)
        return err_set(e, ERR_MODEL, NOTHING, "--draft-weights", "draft");
    return true;
}

const char *models_quant_text(const struct quant_opts *o)
{
    bool model = is_fp8(o->weights, false), draft = is_fp8(o->draft_weights, model);
    return model && draft ? "weights fp8" : model ? "weights fp8, not the draft's"
           : draft ? "the draft's weights fp8" : NULL;
}
