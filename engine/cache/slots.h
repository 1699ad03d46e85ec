/* slots.h - the index spaces of the three pools, as types that do not mix.
 *
 * A slot is one token's cell, a page is page_size of them in a row: slot s lies in page
 * s / page_size. Full layers read full slots, sliding layers swa slots, an EAGLE3 head draft slots.
 * Only kv_swa_slot() and kv_swa_page() (kvcache.h) turn a full id into an swa id. Id 0 of every
 * space means "none": page 0 is the NaN guard, never written and never live.
 */
#ifndef AERIE_SLOTS_H
#define AERIE_SLOTS_H

#include "kernels/base.h"

typedef struct { int32_t v; } full_slot;
typedef struct { int32_t v; } swa_slot;
typedef struct { int32_t v; } draft_slot;
typedef struct { int32_t v; } full_page;
typedef struct { int32_t v; } swa_page;
typedef struct { int32_t v; } draft_page;

#endif
