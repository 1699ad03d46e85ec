/* bugs.c - `aerie bugs`: the table of historical faults, and the smallest input of one, run. */
#include "engine/bugs.h"
#include "engine/tools/bugs_try.h"
#include "repl/cli/cli.h"

static int table(struct cli *c)
{
    const struct settings *set = &c->opt.engine.settings;
    int page = c->opt.engine.page_size;
    /* no model is open: conditions on settings are checked, other conditions are only listed */
    const struct printer *to = cli_answer(c, '[');
    for (int b = 0; b < N_BUGS; b++) {
        const struct bug_info *i = bug_at((enum bug)b);
        struct bug_facts facts = {.window = true, .spec = set->spec, .topk = set->topk,
                                  .draft = i->needs.draft == NEED_DRAFT ? NEED_EAGLE3
                                                                        : i->needs.draft,
                                  .steps = set->steps, .nodes = set->nodes,
                                  .page_size = page ? page : 16};
        FREED(buf_free) struct buf needs = {0}, text = {0};
        bug_needs((enum bug)b, 1, NULL, false, &needs);
        print_line(to, ST_TEXT, "\f%d{number}%s{name}%s{rule}%s{path}%s{was}%s{trigger}%s{needs}",
                   i->number, i->name, fault_rule(i->rule), i->path, i->was, i->trigger, needs.p);
        buf_printf(&text, "%d %s: %s\n  was      %s\n  input    %s\n  rule     %s\n", i->number,
                   i->name, i->path, i->was, i->trigger, fault_rule(i->rule));
        for (int v = 1; v <= bug_variants((enum bug)b) && bug_variants((enum bug)b) > 1; v++)
            buf_printf(&text, "  variant  %s (%s)\n", i->variant[v - 1],
                       fault_rule(bug_rule((enum bug)b, v)));
        buf_str(&text, "  needs    ");
        buf_str(&text, bug_needs((enum bug)b, 1, &facts, false, &text) ? "\n" : "any model\n");
        print_text(to, ST_TEXT, text.p);
    }
    cli_answer_end();
    return 0;
}

int cli_bugs(struct cli *c)
{
    struct err e = {0};
    FREED(buf_free) struct buf out = {0};
    if (!c->attempt)
        return table(c);
    bool have = c->opt.engine.model ||
                err_set(&e, ERR_MODEL, "no model: the bundled one is not installed; expected -m "
                                       "DIR");
    bool ok = have && bug_try_text(c->opt.engine.model, c->opt.engine.draft, c->attempt,
                                   c->opt.json, &out, &e);
    if (!c->opt.json)
        cli_print_text(c, &out);
    else if (out.n > 2)
        cli_json(&out);
    return ok ? 0 : cli_fail(&e);
}
