/* arena.h - memory for Jansson while an input is read: blocks one behind the other in one piece of
 * memory, which begins anew with each input.
 *
 * An address sanitizer needs most of the time of an input for allocations. This allocator asks it
 * only for what finds faults: the bytes between blocks, behind them and of freed blocks must not be
 * touched, and a block that nobody freed is counted. */
#pragma once

#include <jansson.h>
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else /* a compiler without its sanitizers */
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

#include "tests/fuzz/fuzz.h"

enum { ARENA_BYTES = 4 << 20, ARENA_GAP = 16 };

static struct arena {
    char *p;
    uint32_t *size; /* of the block at p + 8 i */
    size_t at;
    int live;
} arena;

static void *arena_alloc(size_t n)
{
    size_t room = ((n + 7) & ~(size_t)7) + ARENA_GAP;
    if (n > ARENA_BYTES || room > ARENA_BYTES - arena.at)
        return NULL;
    char *p = arena.p + arena.at;
    arena.size[arena.at / 8] = (uint32_t)n;
    arena.at += room;
    arena.live++;
    ASAN_UNPOISON_MEMORY_REGION(p, n);
    return p;
}

static void arena_free(void *p)
{
    if (!p)
        return;
    ASAN_POISON_MEMORY_REGION(p, arena.size[(size_t)((char *)p - arena.p) / 8]);
    arena.live--;
}

/* Before an input is read, and after all that it allocated is freed. */
static void arena_begin(void)
{
    if (!arena.p) {
        arena.p = xmalloc(ARENA_BYTES);
        arena.size = xmalloc(ARENA_BYTES / 2);
        ASAN_POISON_MEMORY_REGION(arena.p, ARENA_BYTES);
    }
    CHECK(arena.live == 0);
    arena.at = 0;
    json_set_alloc_funcs(arena_alloc, arena_free);
}

static void arena_end(void)
{
    CHECK(arena.live == 0); /* else there is a leak */
}
