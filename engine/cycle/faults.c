/* faults.c - the switches of a runtime for historical faults, and the faults of the cycle
 * itself. */
#include "engine/cache/faults.h"
#include "engine/cycle/cycle.h"
#include "engine/plan/faults.h"

/* 41838: a fork shares every cell of the last page, written or not. */
static int publish_before_write(const struct runtime *r, const struct lane *src)
{
    int held = src->seq.n_col * r->kv.page_size;
    return max_int(src->seq.committed, min_int(held, src->tok.n - 1));
}

void runtime_set_bugs(struct runtime *r, const struct bugs *on)
{
    bool apart = bug_on(on, BUG_SWA_EXTEND_WINDOW); /* 26513 is a fault of extends in two parts */
    if (apart != (bug_on(&r->bugs, BUG_SWA_EXTEND_WINDOW) != 0))
        r->parts = apart ? 2 : 1;
    r->bugs = *on;
    r->kv.hook = kv_faults(&r->bugs);
    r->pass.opts.hook = plan_faults(&r->bugs);
    r->hook.shared = bug_on(on, BUG_PUBLISH_BEFORE_WRITE) ? publish_before_write : NULL;
}
