/* follow.c - see follow.h. */
#include "engine/cycle/follow.h"

void follow_init(struct follow *follow)
{
    follow->n = 0;
    follow->from = NULL;
}

void follow_add(struct follow *follow, struct lane *lane, struct outcome *out, bool redo)
{
    CHECK(follow->n < MAX_LANES);
    follow->lane[follow->n++] = (struct follow_lane){.lane = lane, .out = out, .redo = redo,
                                                     .base = lane->seq.committed,
                                                     .drafted = lane->seq.drafted};
}

/* The token at index i of the lane once the outcome is committed. */
static int32_t token_at(const struct follow_lane *part, int i)
{
    const struct ids *tok = &part->lane->tok;
    CHECK(i < tok->n + part->out->n_new);
    return i < tok->n ? tok->v[i] : part->out->token[i - tok->n];
}

/* Reserves the draft cells of lane b and lists its rows. A drafter without KV of its own needs only
 * the lane's last state and its pending token. */
static bool request(struct runtime *rt, struct follow *follow, int b, int32_t *token, int32_t *from,
                    struct plan_req *req, struct err *e)
{
    struct follow_lane *part = &follow->lane[b];
    struct lane *lane = part->lane;
    bool owns = drafter_owns_kv(rt->drafter), ok = true;
    int upto = part->base + part->out->n_cells,
        first = owns ? part->base - part->redo - part->behind : upto - 1;
    CHECK(!part->redo || (follow->n == 1 && lane->tap && !part->behind));
    pass_lock(&rt->pass);
    if (owns)
        ok = kv_reserve_draft(&rt->kv, &lane->seq, first, upto, e);
    kv_ahead(&rt->kv, &lane->seq, upto, &follow->after[b]);
    pass_unlock(&rt->pass);
    if (!ok)
        return false;
    part->out->draft_cells = owns ? upto : -1;
    *req = (struct plan_req){.seq = &follow->after[b], .n = upto - first, .token = token,
                             .draft_from = first};
    if (part->redo)
        head_put_tap(rt->drafter->head, head_spare_row(rt->drafter->head), lane->tap);
    for (int s = first, k = 0; s < upto; s++, k++) {
        token[k] = token_at(part, s + 1);
        from[k] = s >= part->base ? outcome_row(part->out, s - part->base)
                  : part->redo    ? head_spare_row(rt->drafter->head)
                                  : head_backlog_row(rt->drafter->head, k);
    }
    return true;
}

bool follow_plan(struct runtime *rt, struct follow *follow, struct err *e)
{
    struct plan_req req[MAX_LANES];
    int rows = 0;
    if (follow->n == 0)
        return true;
    for (int b = 0; b < follow->n; b++)
        rows += follow->lane[b].out->n_cells + follow->lane[b].redo + follow->lane[b].behind;
    FREED(free_at) int32_t *token = xmalloc((size_t)rows * sizeof *token);
    follow->from = xmalloc((size_t)rows * sizeof *follow->from);
    bool ok = true;
    rows = 0;
    for (int b = 0; b < follow->n && ok; b++) {
        ok = request(rt, follow, b, token + rows, follow->from + rows, &req[b], e);
        rows += ok ? req[b].n : 0;
    }
    ok = ok && pass_prepare(&rt->pass, head_extend_mode(rt->drafter->head), req, follow->n, e);
    return ok;
}

void follow_run(struct runtime *rt, struct follow *follow, int topk)
{
    int32_t slot[MAX_LANES];
    if (follow->n == 0)
        return;
    for (int b = 0; b < follow->n; b++)
        slot[b] = follow->lane[b].lane->slot - 1;
    head_extend(rt->drafter->head, &rt->pass, follow->from, slot, topk, follow->guess);
    DROP(follow->from);
}

void follow_abandon(struct follow *follow)
{
    for (int b = 0; b < follow->n; b++)
        follow->lane[b].lane->seq.drafted = follow->lane[b].drafted;
    DROP(follow->from);
}
