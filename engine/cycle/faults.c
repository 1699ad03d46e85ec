/* faults.c - the switches of a runtime for historical faults, and the faults of the cycle
 * itself. */
#include "engine/cycle/accept.h"

/* 41838: a fork shares every cell of the last page, written or not. */
static int publish_before_write(const struct runtime *rt, const struct lane *src)
{
    int held = src->seq.n_col * rt->kv.page_size;
    return max_int(src->seq.committed, min_int(held, src->tok.n - 1));
}

/* 34823: the draft's cell of the last common token was computed with the next one, which is not
 * common. */
static int bigram_length(const struct lane *src, int n)
{
    return min_int(n, src->seq.drafted);
}

/* 50021: index -1 of the tree's rows is the last one. */
static void accepted_index(const struct tree *tree, struct outcome *out)
{
    if (out->n_cells == 1)
        out->path[0] = tree->n - 1;
}

/* 47728: all rows of the step count, rejected ones included. (At most so many that what is released
 * lies before the committed cells.) */
static int scheduled(const struct runtime *rt, const struct lane *lane, const struct outcome *out)
{
    return min_int(out->rec.pos0 + out->rec.rows, lane->seq.committed + rt->kv.reach);
}

void runtime_set_bugs(struct runtime *rt, const struct bugs *on)
{
    bool apart = bug_on(on, BUG_SWA_EXTEND_WINDOW); /* 26513 is a fault of extends in two parts */
    if (apart != (bug_on(&rt->bugs, BUG_SWA_EXTEND_WINDOW) != 0))
        rt->parts = apart ? 2 : 1;
    rt->bugs = *on;
    rt->kv.hook = kv_faults(&rt->bugs);
    rt->pass.opts.hook = plan_faults(&rt->bugs);
    rt->hook = (struct cycle_hooks){
        .shared = bug_on(on, BUG_PUBLISH_BEFORE_WRITE) ? publish_before_write : NULL,
        .pairs = bug_on(on, BUG_BIGRAM_LENGTH) ? bigram_length : NULL,
        .accepted = bug_on(on, BUG_ACCEPTED_INDEX) ? accepted_index : NULL,
        .passed = bug_on(on, BUG_WINDOW_FREED_EARLY) ? scheduled : NULL};
}
