/* golden.c - `aerie golden DIR`: the engine held against the reference tensors of a folder. */
#include "repl/cli/cli.h"

#include "engine/tools/golden.h"

int cli_golden(struct cli *c)
{
    struct err e = {0};
    struct buf report = {0};
    const struct golden_opts opts = {
        .dir = c->word[0],
        .draft = c->draft_given ? c->opt.engine.draft : NULL,
        .device = c->opt.engine.device,
        .capture = c->opt.engine.capture,
        .threads = c->opt.engine.threads,
        .precision = c->opt.engine.precision,
        .json = c->opt.json,
    };
    bool ok = golden_run(&opts, &report, &e);
    if (c->opt.json && report.n) {
        if (report.p[report.n - 1] == '\n')
            report.p[--report.n] = '\0';
        cli_json(&report);
    } else {
        struct sheet s;
        sheet_init(&s, c->opt.ascii);
        cli_text(&s, ST_TEXT, report.n ? report.p : "", report.n);
        cli_print(c, &s);
        sheet_free(&s);
    }
    buf_free(&report);
    return ok ? 0 : cli_fail(&e);
}
