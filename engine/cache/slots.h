/* slots.h - one type for the slots and one for the pages of each of the three pools.
 *
 * A slot is one token's cell; a page is page_size successive slots: slot s lies in page s /
 * page_size. Full layers read full slots, sliding layers swa slots, an EAGLE3 head draft slots.
 * Because the types differ, an id of one pool cannot be used as an id of another. Only
 * kv_swa_slot() and kv_swa_page() (kvcache.h) translate a full id to an swa id. Id 0 of every type
 * means "none": page 0 is the guard page, whose cells are NaN, which is never written and never
 * live.
 */
#pragma once

#include "kernels/base.h"

typedef struct { int32_t v; } full_slot;
typedef struct { int32_t v; } swa_slot;
typedef struct { int32_t v; } draft_slot;
typedef struct { int32_t v; } full_page;
typedef struct { int32_t v; } swa_page;
typedef struct { int32_t v; } draft_page;
