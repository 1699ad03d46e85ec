/* blocks.c - /blocks: the content of a server's prefix cache, according to its KV events. */
#include "repl/app/blocks.h"

#include "repl/cmd/cmd.h"

bool cmd_blocks(struct cmd_call *c)
{
    long most = 16;
    FREED(block_map_free) struct block_map m = {0};
    if (!arg_number(c, "the number of blocks listed", 0, 1 << 20, &most) ||
        !cmd_needs(c, VIEW_BLOCKS))
        return false;
    block_map_read(&m, c->app->backend);
    say_now(c);
    view_blocks(&m, (int)most, view_width(c->app), &c->to);
    return true;
}
