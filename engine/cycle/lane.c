/* lane.c - see lane.h. */
#include "engine/cycle/lane.h"

int runtime_step_lanes(const struct runtime *rt, const struct tree_shape *shape)
{
    if (!shape)
        return min_int(rt->max_logits, MAX_LANES);
    /* a level of the draft has topk rows a lane, for which a head has max_rows / 4 (head.c) */
    int verify = rt->max_logits / shape->nodes;
    int level = rt->max_rows / (TREE_MAX / MAX_TOPK) / shape->topk;
    return max_int(1, min_int(min_int(verify, level), MAX_LANES));
}

bool lane_take_slot(struct runtime *rt, struct lane *lane)
{
    if (lane->slot == 0 && rt->slots != UINT64_MAX) {
        lane->slot = __builtin_ctzll(~rt->slots) + 1;
        rt->slots |= 1ull << (lane->slot - 1);
    }
    return lane->slot > 0;
}

void lane_give_slot(struct runtime *rt, struct lane *lane)
{
    if (lane->slot)
        rt->slots &= ~(1ull << (lane->slot - 1));
    lane->slot = 0;
}

void lane_free(struct runtime *rt, struct lane *lane)
{
    kv_drop(&rt->kv, &lane->seq);
    lane_give_slot(rt, lane);
    ids_free(&lane->tok);
    free(lane->tap);
    *lane = (struct lane){.tap_row = -1};
}

void lane_park(struct runtime *rt, struct lane *lane)
{
    if (!rt->drafter || lane->tap_row < 0)
        return;
    if (!lane->tap)
        lane->tap = xmalloc((size_t)head_tap_floats(rt->drafter->head) * sizeof *lane->tap);
    head_get_tap(rt->drafter->head, lane->tap_row, lane->tap);
    lane->tap_row = -1;
}

void lane_fork_as(struct runtime *rt, struct lane *src, struct lane *dst, enum page_holder holder)
{
    CHECK(!rt->drafter || src->tap_row < 0);
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
    if (rt->hook.shared)
        src->seq.committed = rt->hook.shared(rt, src);
    if (dst->guess.n && lane_take_slot(rt, dst))
        head_copy_slot(rt->drafter->head, src->slot - 1, dst->slot - 1);
    else
        dst->guess.n = 0;
    ids_cat(&dst->tok, src->tok.v, src->tok.n);
    kv_fork(&rt->kv, &src->seq, &dst->seq);
    src->seq.committed = committed;
    if (src->tap) {
        size_t n = (size_t)head_tap_floats(rt->drafter->head) * sizeof *dst->tap;
        dst->tap = memcpy(xmalloc(n), src->tap, n);
    }
}

bool lane_can_follow(const struct runtime *rt, const struct lane *lane)
{
    if (rt->drafter && !drafter_owns_kv(rt->drafter))
        return true;
    return rt->drafter && lane->seq.drafted == lane->seq.committed &&
           kv_can_draft(&rt->kv, &lane->seq, lane->seq.drafted) &&
           (lane->seq.committed == 0 || lane->tap || lane->tap_row >= 0 || lane->guess.n ||
            lane->settled);
}

bool lane_continues(const struct runtime *rt, const struct lane *lane, const struct ids *prompt,
                    bool draft)
{
    int n = lane->seq.committed;
    return n > 0 && n < prompt->n &&
           !memcmp(lane->tok.v, prompt->v, (size_t)n * sizeof *prompt->v) &&
           (!draft || !rt->drafter || lane_can_follow(rt, lane));
}

int lane_shared(const struct runtime *rt, const struct lane *lane, const struct ids *prompt,
                bool draft)
{
    int n = 0, most = min_int(lane->seq.committed, prompt->n - 1);
    while (n < most && lane->tok.v[n] == prompt->v[n])
        n++;
    if (n == lane->seq.committed && (!draft || !rt->drafter || lane_can_follow(rt, lane)))
        return n;
    /* a draft cell is computed with the token after it */
    bool cells = draft && rt->drafter && drafter_owns_kv(rt->drafter);
    if (cells)
        n = rt->hook.pairs ? rt->hook.pairs(lane, n) : min_int(n - 1, lane->seq.drafted);
    bool held = kv_can_fork_at(&rt->kv, &lane->seq, n) &&
                (!cells || kv_can_draft(&rt->kv, &lane->seq, n));
    return held ? n : 0;
}

void lane_fork_at(struct runtime *rt, struct lane *src, int n, bool draft, struct lane *dst,
                  enum page_holder holder)
{
    if (n == src->seq.committed && (!draft || !rt->drafter || lane_can_follow(rt, src))) {
        lane_fork_as(rt, src, dst, holder);
        return;
    }
    int drafted = min_int(n, src->seq.drafted);
    if (!kv_can_draft(&rt->kv, &src->seq, drafted))
        drafted = 0;
    *dst = (struct lane){.tap_row = -1, .seq.holder = holder, .settled = drafted == n};
    kv_fork_at(&rt->kv, &src->seq, n, drafted, &dst->seq);
    ids_cat(&dst->tok, src->tok.v, n);
}

int lane_draft_depth(const struct runtime *rt, const struct lane *lane, int max_new)
{
    return min_int(rt->context - lane->tok.n - 1, max_new - 1);
}
