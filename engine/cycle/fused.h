/* fused.h - the draft, verify and accept phases of one lane's cycle, and the drafter's pass after
 * them, as one run of device operations. The host fills the inbox, waits once for the outbox, and
 * commits. The run can be recorded and replayed as a graph (a CUDA graph).
 *
 * The shape of the tree is decided on the device, so each plan is checked twice. The check before
 * the launch covers lengths, the positions of all levels and every slot that the device may read or
 * write; each row's only ancestor is then the row itself. The check of the results compares the
 * plan, as the device has completed it, with the tree that was grown (I17), before anything is
 * committed.
 *
 * The host's work does not grow with the context. The pages lie in a list (page_list.h), on the
 * host and on the device; a cycle writes, checks before the launch, and sends only the columns that
 * are new or that the cache has changed. All other columns were checked in an earlier cycle, and
 * every cycle checks them again while the device works; if one is wrong, nothing is committed.
 *
 * Fused cycles serve a lane without drafter, or with a drafter that has KV cells of its own. (A
 * block's plan has its tokens before the launch.) cycle.c runs the phases one by one (stepped) for
 * everything else: several lanes, frozen-KV drafters, trees deeper than a block, the last cycles
 * before a limit, given tokens, penalties, grammars, probed passes, historical faults. Both give
 * the same tokens, trees and logits, bit for bit. Engine thread.
 */
#pragma once

#include "engine/cycle/cycle.h"

/* Whether a cycle that has begun can be run fused. */
bool fused_fits(const struct cycle *cycle);
/* Draft, verify, accept and follow; the caller commits. Fills the cycle's tree, outcome and guess.
 * Opens rt->fused when it is first needed. False: the cycle must be abandoned; the drafter's state
 * of the lane may then be that of the lost path, so that the next tree may differ, but no token. */
bool fused_run(struct cycle *cycle, struct err *e);
/* For measuring: runs the last cycle's recorded operations once more, on the same inbox; the
 * results are ignored. False: nothing was recorded. */
bool fused_again(struct runtime *rt);
void fused_close(struct runtime *rt); /* frees rt->fused */
