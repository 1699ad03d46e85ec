/* faults.h - the historical faults of the page cache (bugs.h). */
#pragma once

#include "engine/bugs.h"
#include "engine/cache/kvcache.h"

/* The hooks of the cache for the faults that are on; all NULL when none of them is the cache's. */
struct kv_hooks kv_faults(const struct bugs *on);
