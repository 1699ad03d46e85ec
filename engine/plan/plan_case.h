/* plan_case.h - a plan as a case (history/pack/CASE.md): with the pages that its sequences hold and
 * the map, so that it can be judged without the engine. Engine thread.
 */
#pragma once

#include "engine/plan/plan.h"

/* Appends the plan as one JSON object, without tokens. req: the requests that it was built from.
 * Not of a block, whose rows see later ones. */
void plan_case(const struct plan *p, const struct kv *kv, const struct plan_req *req,
               struct buf *out);
