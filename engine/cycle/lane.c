/* lane.c - see lane.h. */
#include "engine/cycle/lane.h"

#include <stdlib.h>
#include <string.h>

int runtime_step_lanes(const struct runtime *r, const struct tree_shape *shape)
{
    if (!shape)
        return min_int(r->max_logits, MAX_LANES);
    /* a level of the draft has topk rows a lane, for which a head has max_rows / 4 (head.c) */
    int verify = r->max_logits / shape->nodes;
    int level = r->max_rows / (TREE_MAX / MAX_TOPK) / shape->topk;
    return max_int(1, min_int(min_int(verify, level), MAX_LANES));
}

bool lane_take_slot(struct runtime *r, struct lane *l)
{
    if (l->slot == 0 && r->slots != UINT64_MAX) {
        l->slot = __builtin_ctzll(~r->slots) + 1;
        r->slots |= 1ull << (l->slot - 1);
    }
    return l->slot > 0;
}

void lane_give_slot(struct runtime *r, struct lane *l)
{
    if (l->slot)
        r->slots &= ~(1ull << (l->slot - 1));
    l->slot = 0;
}

void lane_free(struct runtime *r, struct lane *l)
{
    kv_drop(&r->kv, &l->seq);
    lane_give_slot(r, l);
    ids_free(&l->tok);
    free(l->tap);
    *l = (struct lane){.tap_row = -1};
}

void lane_park(struct runtime *r, struct lane *l)
{
    if (!r->drafter || l->tap_row < 0)
        return;
    if (!l->tap)
        l->tap = xmalloc((size_t)head_tap_floats(r->drafter->head) * sizeof *l->tap);
    head_get_tap(r->drafter->head, l->tap_row, l->tap);
    l->tap_row = -1;
}

void lane_fork_as(struct runtime *r, struct lane *src, struct lane *dst, enum page_holder holder)
{
    CHECK(!r->drafter || src->tap_row < 0);
    *dst = *src;
    dst->seq = (struct seq){.holder = holder};
    dst->tok = (struct ids){0};
    dst->tap = NULL;
    dst->slot = 0;
    dst->given = NULL;
    dst->n_given = 0;
    dst->scores = NULL;
    dst->settled = false;
    dst->behind = 0;
    int committed = src->seq.committed;
    if (r->hook.shared)
        src->seq.committed = r->hook.shared(r, src);
    if (dst->guess.n && lane_take_slot(r, dst))
        head_copy_slot(r->drafter->head, src->slot - 1, dst->slot - 1);
    else
        dst->guess.n = 0;
    ids_cat(&dst->tok, src->tok.v, src->tok.n);
    kv_fork(&r->kv, &src->seq, &dst->seq);
    src->seq.committed = committed;
    if (src->tap) {
        size_t n = (size_t)head_tap_floats(r->drafter->head) * sizeof *dst->tap;
        dst->tap = memcpy(xmalloc(n), src->tap, n);
    }
}

bool lane_can_follow(const struct runtime *r, const struct lane *l)
{
    if (r->drafter && !drafter_owns_kv(r->drafter))
        return true;
    return r->drafter && l->seq.drafted == l->seq.committed &&
           kv_can_draft(&r->kv, &l->seq, l->seq.drafted) &&
           (l->seq.committed == 0 || l->tap || l->tap_row >= 0 || l->guess.n || l->settled);
}

bool lane_continues(const struct runtime *r, const struct lane *l, const struct ids *prompt,
                    bool draft)
{
    int n = l->seq.committed;
    return n > 0 && n < prompt->n && !memcmp(l->tok.v, prompt->v, (size_t)n * sizeof *prompt->v) &&
           (!draft || !r->drafter || lane_can_follow(r, l));
}

int lane_shared(const struct runtime *r, const struct lane *l, const struct ids *prompt,
                bool draft)
{
    int n = 0, most = min_int(l->seq.committed, prompt->n - 1);
    while (n < most && l->tok.v[n] == prompt->v[n])
        n++;
    if (n == l->seq.committed && (!draft || !r->drafter || lane_can_follow(r, l)))
        return n;
    /* a draft cell is computed with the token after it */
    bool cells = draft && r->drafter && drafter_owns_kv(r->drafter);
    if (cells)
        n = r->hook.pairs ? r->hook.pairs(l, n) : min_int(n - 1, l->seq.drafted);
    bool held = kv_can_fork_at(&r->kv, &l->seq, n) &&
                (!cells || kv_can_draft(&r->kv, &l->seq, n));
    return held ? n : 0;
}

void lane_fork_at(struct runtime *r, struct lane *src, int n, bool draft, struct lane *dst,
                  enum page_holder holder)
{
    if (n == src->seq.committed && (!draft || !r->drafter || lane_can_follow(r, src))) {
        lane_fork_as(r, src, dst, holder);
        return;
    }
    int drafted = min_int(n, src->seq.drafted);
    if (!kv_can_draft(&r->kv, &src->seq, drafted))
        drafted = 0;
    *dst = (struct lane){.tap_row = -1, .seq.holder = holder, .settled = drafted == n};
    kv_fork_at(&r->kv, &src->seq, n, drafted, &dst->seq);
    ids_cat(&dst->tok, src->tok.v, n);
}

int lane_draft_depth(const struct runtime *r, const struct lane *l, int max_new)
{
    return min_int(r->context - l->tok.n - 1, max_new - 1);
}
