/* faults.h - the historical faults of plans (bugs.h): each changes a correct plan into the plan
 * that the old engine launched.
 */
#pragma once

#include "engine/bugs.h"
#include "engine/plan/plan.h"

/* The hooks of plan_build() for the faults that are on; all NULL when none is on. *on must outlive
 * them. */
struct plan_hooks plan_faults(const struct bugs *on);
