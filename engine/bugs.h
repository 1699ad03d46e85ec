/* bugs.h - historical faults of a large inference engine, each behind a switch.
 *
 * This file lists the faults: number, name, what went wrong, what each needs to show, and which are
 * switched on (struct bugs). The code of a fault lies in the folder of the correct code that it
 * replaces, never in a kernel: engine/cache/faults.c, engine/plan/faults.c, engine/cycle/faults.c.
 * These files fill in the hooks of their folder; a hook is NULL while no fault needs it.
 *
 * Switches belong to a runtime (runtime_set_bugs()): every engine in a process has its own. The
 * functions here have no state; any thread may call them. */
#pragma once

#include "kernels/base.h"

enum bug {
    BUG_SWA_UNTRANSLATED,      /* 24617 */
    BUG_DRAFT_EXPAND_OVERFLOW, /* 27360 */
    BUG_SWA_EXTEND_WINDOW,     /* 26513 */
    BUG_DRAFT_EXTEND_EXTENT,   /* 26512: 1 prefix only, 2 counted twice */
    BUG_FROZEN_STALE_POOL,     /* 26966: 1 cached at start, 2 ask the allocator, 3 dummy pool */
    BUG_SWA_MASK_OFFSET,       /* 9279 */
    BUG_PAGE_NOT_LOC,          /* 16267 */
    BUG_SWA_LEAK_PAGE,         /* 27789 */
    BUG_PUBLISH_BEFORE_WRITE,  /* 41838 */
    BUG_DRAFT_POOL_SMALL,      /* 17630 */
    BUG_TREE_WINDOW_BY_INDEX,  /* 39287: 1 window by index, 2 mask rows of another width */
    BUG_VERIFY_FROM_ZERO,      /* 39160 */
    BUG_PREFIX_ONE_BLOCK,      /* 22819 */
    BUG_DRAFT_GROUP_ZERO,      /* 50170 */
    BUG_WINDOW_OF_GROUP,       /* 51756 */
    BUG_BLOCK_LEFT_BOUND,      /* 35208 */
    BUG_WINDOW_FREED_EARLY,    /* 47728 */
    BUG_REUSE_LAST_WINDOW,     /* 10875 */
    BUG_ACCEPTED_INDEX,        /* 50021 */
    BUG_BIGRAM_LENGTH,         /* 34823 */
    N_BUGS
};

/* What model, drafter and settings a fault needs to change any result; 0: no such need. What the
 * conversation must be like is said in bug_info.trigger. */
enum bug_draft { NEED_NONE, NEED_DRAFT /* any */, NEED_EAGLE3, NEED_FROZEN, NEED_BLOCK };
struct bug_needs {
    bool window; /* sliding-window layers */
    enum bug_draft draft;
    int topk, steps, nodes, page_size; /* at least */
};

struct bug_info {
    int number;
    const char *name;       /* "swa-untranslated" */
    const char *variant[3]; /* a fault with one variant has "on" only */
    int rule;               /* the rule that it violates: 4 is I4; see bug_rule() */
    const char *path;       /* the part of the engine */
    const char *was;        /* what was wrong, and what users saw */
    const char *trigger;    /* the smallest input that shows the fault */
    struct bug_needs needs; /* of the first variant: see bug_needs() */
};
const struct bug_info *bug_at(enum bug b);
int bug_rule(enum bug b, int variant); /* the rule that a variant violates */
int bug_variants(enum bug b); /* 1, 2 or 3 */

/* The model, drafter and settings at hand. */
struct bug_facts {
    bool window, spec;
    enum bug_draft draft; /* NEED_NONE, NEED_EAGLE3 or NEED_FROZEN */
    int topk, steps, nodes, page_size;
};
/* Appends what a variant needs to change any result, as "draft.topk 2 (now 1), an EAGLE3 head";
 * with unmet_only, only the needs that *f does not meet. f NULL: not known, no need is compared.
 * False: nothing was appended. */
bool bug_needs(enum bug b, int variant, const struct bug_facts *f, bool unmet_only,
               struct buf *out);

/* Which faults are on. All zero: none. */
struct bugs {
    unsigned char variant[N_BUGS]; /* 0: off, else the variant, from 1 */
};
/* The variant of the fault that is on; 0: off. */
static inline int bug_on(const struct bugs *s, enum bug b)
{
    return s->variant[b];
}
bool bugs_any(const struct bugs *s); /* whether any fault is on */
void bug_switch(struct bugs *s, enum bug b, int variant);
/* The same by text. which: number or name. value: "on" (the first variant), "off", or a variant's
 * name or number. False and *e (ERR_USAGE), with *s unchanged: there is no such fault or
 * variant. */
bool bug_set(struct bugs *s, const char *which, const char *value, struct err *e);
bool bug_find(const char *which, enum bug *out, struct err *e);
bool bug_parse(enum bug b, const char *value, int *variant, struct err *e); /* *variant 0: off */
const char *bug_state_name(enum bug b, int variant); /* "off", "on", or the variant's name */
