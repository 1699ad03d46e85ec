/* faults.c - the switches of a runtime for historical faults, and the faults of the cycle
 * itself. */
#include "engine/cache/faults.h"
#include "engine/cycle/accept.h"
#include "engine/plan/faults.h"

/* 41838: a fork shares every cell of the last page, written or not. */
static int publish_before_write(const struct runtime *r, const struct lane *src)
{
    int held = src->seq.n_col * r->kv.page_size;
    return max_int(src->seq.committed, min_int(held, src->tok.n - 1));
}

/* 34823: the draft's cell of the last common token was computed with the next one, which is not
 * common. */
static int bigram_length(const struct lane *src, int n)
{
    return min_int(n, src->seq.drafted);
}

/* 50021: index -1 of the tree's rows is the last one. */
static void accepted_index(const struct tree *t, struct outcome *o)
{
    if (o->n_cells == 1)
        o->path[0] = t->n - 1;
}

/* 47728: all rows of the step count, rejected ones included. (At most so many that what is released
 * lies before the committed cells.) */
static int scheduled(const struct runtime *r, const struct lane *l, const struct outcome *o)
{
    return min_int(o->rec.pos0 + o->rec.rows, l->seq.committed + r->kv.reach);
}

void runtime_set_bugs(struct runtime *r, const struct bugs *on)
{
    bool apart = bug_on(on, BUG_SWA_EXTEND_WINDOW); /* 26513 is a fault of extends in two parts */
    if (apart != (bug_on(&r->bugs, BUG_SWA_EXTEND_WINDOW) != 0))
        r->parts = apart ? 2 : 1;
    r->bugs = *on;
    r->kv.hook = kv_faults(&r->bugs);
    r->pass.opts.hook = plan_faults(&r->bugs);
    r->hook = (struct cycle_hooks){
        .shared = bug_on(on, BUG_PUBLISH_BEFORE_WRITE) ? publish_before_write : NULL,
        .pairs = bug_on(on, BUG_BIGRAM_LENGTH) ? bigram_length : NULL,
        .accepted = bug_on(on, BUG_ACCEPTED_INDEX) ? accepted_index : NULL,
        .passed = bug_on(on, BUG_WINDOW_FREED_EARLY) ? scheduled : NULL};
}
