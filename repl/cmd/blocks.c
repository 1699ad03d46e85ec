/* blocks.c - /blocks: the content of a server's prefix cache, according to its KV events. */
#include "repl/app/blocks.h"

#include "repl/cmd/cmd.h"

bool cmd_blocks(struct cmd_call *c)
{
    long most = 16;
    struct block_map m;
    if (c->argc > 1)
        return arg_expected(c, "takes at most one number");
    if (c->argc == 1 &&
        !arg_int(c->argv[0], "the number of blocks listed", 0, 1 << 20, &most, c->e))
        return false;
    if (!cmd_needs(c, VIEW_BLOCKS))
        return false;
    block_map_read(&m, c->app->backend);
    say_now(c);
    view_blocks(&m, (int)most, view_width(c->app), &c->to);
    block_map_free(&m);
    return true;
}
