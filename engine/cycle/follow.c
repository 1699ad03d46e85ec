/* follow.c - see follow.h. */
#include "engine/cycle/follow.h"

#include <stdlib.h>

void follow_init(struct follow *f)
{
    f->n = 0;
    f->from = NULL;
}

void follow_add(struct follow *f, struct lane *l, struct outcome *out, bool redo)
{
    CHECK(f->n < MAX_LANES);
    f->lane[f->n++] = (struct follow_lane){.lane = l, .out = out, .redo = redo,
                                           .base = l->seq.committed, .drafted = l->seq.drafted};
}

/* The token at index i of the lane once the outcome is committed. */
static int32_t token_at(const struct follow_lane *x, int i)
{
    const struct ids *tok = &x->lane->tok;
    CHECK(i < tok->n + x->out->n_new);
    return i < tok->n ? tok->v[i] : x->out->token[i - tok->n];
}

/* Reserves the draft cells of lane b and lists its rows. A drafter without KV of its own needs only
 * the lane's last state and its pending token. */
static bool request(struct runtime *r, struct follow *f, int b, int32_t *token, int32_t *from,
                    struct plan_req *req, struct err *e)
{
    struct follow_lane *x = &f->lane[b];
    struct lane *l = x->lane;
    bool owns = drafter_owns_kv(r->drafter), ok = true;
    int upto = x->base + x->out->n_cells, first = owns ? x->base - x->redo - x->behind : upto - 1;
    CHECK(!x->redo || (f->n == 1 && l->tap && !x->behind));
    pass_lock(&r->pass);
    if (owns)
        ok = kv_reserve_draft(&r->kv, &l->seq, first, upto, e);
    kv_ahead(&r->kv, &l->seq, upto, &f->after[b]);
    pass_unlock(&r->pass);
    if (!ok)
        return false;
    x->out->draft_cells = owns ? upto : -1;
    *req = (struct plan_req){.seq = &f->after[b], .n = upto - first, .token = token,
                             .draft_from = first};
    if (x->redo)
        head_put_tap(r->drafter->head, head_spare_row(r->drafter->head), l->tap);
    for (int s = first, k = 0; s < upto; s++, k++) {
        token[k] = token_at(x, s + 1);
        from[k] = s >= x->base ? outcome_row(x->out, s - x->base)
                  : x->redo    ? head_spare_row(r->drafter->head)
                               : head_backlog_row(r->drafter->head, k);
    }
    return true;
}

bool follow_plan(struct runtime *r, struct follow *f, struct err *e)
{
    struct plan_req req[MAX_LANES];
    int rows = 0;
    if (f->n == 0)
        return true;
    for (int b = 0; b < f->n; b++)
        rows += f->lane[b].out->n_cells + f->lane[b].redo + f->lane[b].behind;
    int32_t *token = xmalloc((size_t)rows * sizeof *token);
    f->from = xmalloc((size_t)rows * sizeof *f->from);
    bool ok = true;
    rows = 0;
    for (int b = 0; b < f->n && ok; b++) {
        ok = request(r, f, b, token + rows, f->from + rows, &req[b], e);
        rows += ok ? req[b].n : 0;
    }
    ok = ok && pass_prepare(&r->pass, head_extend_mode(r->drafter->head), req, f->n, e);
    free(token);
    return ok;
}

void follow_run(struct runtime *r, struct follow *f, int topk)
{
    int32_t slot[MAX_LANES];
    if (f->n == 0)
        return;
    for (int b = 0; b < f->n; b++)
        slot[b] = f->lane[b].lane->slot - 1;
    head_extend(r->drafter->head, &r->pass, f->from, slot, topk, f->guess);
    free(f->from);
    f->from = NULL;
}

void follow_abandon(struct follow *f)
{
    for (int b = 0; b < f->n; b++)
        f->lane[b].lane->seq.drafted = f->lane[b].drafted;
    free(f->from);
    f->from = NULL;
}
