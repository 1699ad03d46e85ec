/* fused.h - one lane's whole cycle as one run of device operations: grow the tree, verify it,
 * sample, accept, move cells, let the drafter follow. The host fills the inbox, waits once for the
 * outbox, and the run can be recorded and replayed as it stands (a CUDA graph).
 *
 * What the tree looks like is decided on the device. So a plan is checked twice: before the
 * launch as it is sent, with all that the host decides (lengths, positions of the levels, every
 * slot that the device may read or write), its rows standing behind no ancestor yet; and when the
 * results are there as the device left it, against the tree that was grown (I17), before anything
 * is committed.
 *
 * Host work does not grow with the context. Pages lie in a list (page_list.h), here and on the
 * device, of which a cycle writes, checks before the launch and sends the columns that are new or
 * that the cache has touched. Those it passes over were checked in an earlier cycle; all the same
 * they are looked at again in every cycle, while the device works, and nothing is committed if
 * one is wrong.
 *
 * Serves a lane without drafter, or with one that owns its KV. cycle.c takes the stepped road for
 * everything else: several lanes, frozen KV, the last cycles before a limit, historical faults.
 * Both roads give the same tokens, trees and logits, bit for bit. Engine thread.
 */
#ifndef AERIE_FUSED_H
#define AERIE_FUSED_H

#include "engine/cycle/cycle.h"

/* Whether this cycle can take the fused road. shape NULL: plain decoding. */
bool fused_fits(const struct rig *r, const struct lane *l, const struct step_limits *lim,
                const struct tree_shape *shape);
/* One cycle, as lane_step(). Opens r->fused when it is first needed. */
bool fused_step(struct rig *r, struct lane *l, const struct step_limits *lim,
                const struct tree_shape *shape, struct err *e);
/* For measuring: enqueues the last cycle's recorded run once more, with what the inbox still holds;
 * nobody looks at what it gives. False: none was recorded. */
bool fused_again(struct rig *r);

#endif
