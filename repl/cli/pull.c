/* pull.c - `aerie pull`: fetches a model into the cache of the Hugging Face libraries. */

#include "engine/remote/pull.h"
#include "repl/cli/cli.h"

int cli_pull(struct cli *c)
{
    struct err e = {0};
    struct stop stop = {.submitted = 1, .running = 1};
    FREED(free_at) char *path = NULL;
    if (!cli_stop_open(&stop, &e))
        return cli_fail(&e);
    const struct pull_opts o = {
        .name = c->word[0], .stop = &stop, .progress = c->opt.quiet ? NULL : cli_progress};
    bool ok = hub_pull(&o, &path, &e);
    cli_progress_end();
    if (ok)
        out_printf("%s\n", path);
    return cli_stop_close(ok ? 0 : cli_fail(&e));
}
