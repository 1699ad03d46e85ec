/* blocks.c - /blocks: the content of a server's prefix cache, according to its KV events. */
#include "repl/app/blocks.h"

#include "repl/cmd/cmd.h"

bool cmd_blocks(struct app *a, int argc, char **argv, const char *rest, struct sheet *out, struct buf *json,
                struct err *e)
{
    (void)rest;
    long most = 16;
    struct block_map m;
    if (argc > 1)
        return arg_expected("blocks", "takes at most one number", e);
    if (argc == 1 && !arg_int(argv[0], "the number of blocks listed", 0, 1 << 20, &most, e))
        return false;
    if (!app_needs(a, "blocks", VIEW_BLOCKS, e))
        return false;
    block_map_read(&m, a->backend);
    if (json)
        blocks_json(&m, json);
    else {
        say_now(a, "blocks", out);
        view_blocks(&m, (int)most, view_width(a), out);
    }
    block_map_free(&m);
    return true;
}
