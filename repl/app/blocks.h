/* blocks.h - the blocks of a server's prefix cache, as lines of text and as JSON: what /blocks and
 * the Pool pane show. Pure functions of copies. */
#pragma once

#include "engine/backend.h"
#include "repl/text/print.h"

/* The view of a backend with VIEW_BLOCKS, copied. */
struct block_map {
    struct blocks_view view;
    struct block_sample *sample; /* (n_sample) oldest first, owned */
    struct session_block *block; /* (n_block) of the session, owned */
    int n_sample, n_block;
    uint64_t ns; /* clock_ns() when it was copied */
};
void block_map_read(struct block_map *m, struct backend *b);
void block_map_free(struct block_map *m);

/* The groups, each with its number of blocks over time, and how good the counts are. most: blocks
 * of the session listed, the first ones. */
void view_blocks(const struct block_map *m, int most, int width, const struct printer *to);
