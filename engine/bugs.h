/* bugs.h - historical faults of a large engine, each behind a switch.
 *
 * This file knows the faults by number and name, says what each one did and which are switched on
 * (struct bugs). Their code lies where aerie does the same job right: engine/cache/faults.c,
 * engine/plan/faults.c and engine/cycle/faults.c, never in a kernel. Each of these fills in hooks
 * of its folder; a hook is NULL while no fault needs it.
 *
 * Switches belong to a runtime (engine/cycle/cycle.h): two engines in one process have their own.
 * All functions here are pure, any thread may call them. */
#ifndef AERIE_BUGS_H
#define AERIE_BUGS_H

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
    BUG_TREE_WINDOW_BY_INDEX,  /* 39287 */
    N_BUGS
};

/* What a fault needs of model, drafter and settings to change anything at all; 0: nothing of the
 * kind. Texts that are long enough, or forked, are the user's part (trigger). */
enum bug_draft { NEED_NONE, NEED_DRAFT /* any */, NEED_EAGLE3, NEED_FROZEN };
struct bug_needs {
    bool window; /* sliding-window layers */
    enum bug_draft draft;
    int topk, steps, nodes, page_size; /* at least */
};

struct bug_info {
    int number;
    const char *name;       /* "swa-untranslated" */
    const char *variant[3]; /* names of the ways to be wrong, when there is more than one */
    const char *rule;       /* the checker's rule that must name it: "I4" */
    const char *path;       /* what the code there does */
    const char *was;        /* what was wrong, and what its users saw */
    const char *trigger;    /* the smallest input */
    struct bug_needs needs; /* of the first variant: see bug_needs() */
};
const struct bug_info *bug_at(enum bug b);
int bug_variants(enum bug b); /* 1, 2 or 3 */

/* What there is. */
struct bug_facts {
    bool window, spec;
    enum bug_draft draft; /* NEED_NONE, NEED_EAGLE3 or NEED_FROZEN */
    int topk, steps, nodes, page_size;
};
/* Appends what a variant needs in order to fire, as "draft.topk 2 (now 1), an EAGLE3 head"; with
 * unmet_only what *f does not offer. f NULL: nothing is known. False: nothing was appended. */
bool bug_needs(enum bug b, int variant, const struct bug_facts *f, bool unmet_only,
               struct buf *out);

/* Which faults are on. All zero: none. */
struct bugs {
    unsigned char variant[N_BUGS]; /* 0: off, else the variant, from 1 */
};
/* 0: off, the normal case; else which variant of the fault is on. */
static inline int bug_on(const struct bugs *s, enum bug b)
{
    return s->variant[b];
}
bool bugs_any(const struct bugs *s); /* is any switch on? */
void bug_switch(struct bugs *s, enum bug b, int variant);
/* The same in words. which: number or name. value: "on" (the first variant), "off", or a variant's
 * name or number. False and *e (ERR_USAGE), with *s unchanged: there is no such fault or
 * variant. */
bool bug_set(struct bugs *s, const char *which, const char *value, struct err *e);
bool bug_find(const char *which, enum bug *out, struct err *e);
bool bug_parse(enum bug b, const char *value, int *variant, struct err *e); /* *variant 0: off */
const char *bug_state_name(enum bug b, int variant); /* "off", "on", or the variant's name */

#endif
