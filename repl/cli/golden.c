/* golden.c - `aerie golden DIR`: compares the engine with the reference tensors of a folder. */
#include "repl/cli/cli.h"

#include "engine/tools/golden.h"

int cli_golden(struct cli *c)
{
    struct err e = {0};
    FREED(buf_free) struct buf report = {0};
    struct stop stop = {.running = 1};
    struct golden_opts opts = {.engine = c->opt.engine, .json = c->opt.json, .stop = &stop,
                               .begin = cli_stop_begin, .arg = &stop};
    opts.engine.model = c->word[0];
    if (!c->draft_given)
        opts.engine.draft = NULL;
    bool ok = golden_run(&opts, &report, &e);
    int signal = cli_stop_close(0);
    if (c->opt.json && report.n) {
        if (report.p[report.n - 1] == '\n')
            report.p[--report.n] = '\0';
        cli_json(&report);
    } else {
        cli_print_text(c, &report);
    }
    return signal ? signal : ok ? 0 : cli_fail(&e);
}
