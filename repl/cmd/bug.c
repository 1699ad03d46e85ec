/* bug.c - /bug: switches historical faults on and off in the running chat. */

#include "engine/bugs.h"
#include "repl/cmd/cmd.h"
#include "repl/compare/facts.h"

static void bug_json(enum bug b, int variant, const struct printer *to)
{
    const struct bug_info *i = bug_at(b);
    const char *state = bug_state_name(b, variant);
    print_line(to, ST_TEXT, "\f%d{number}%s{name}%s{state}%s{rule}%s{path}%s{was}%s{trigger}",
               i->number, i->name, state, fault_rule(bug_rule(b, variant)), i->path, i->was,
               i->trigger);
}

static void list_bugs(const struct bugs *on, const struct printer *to)
{
    int widest = 0;
    for (int b = 0; b < N_BUGS; b++)
        widest = max_int(widest, (int)strlen(bug_state_name((enum bug)b, bug_on(on, (enum bug)b))));
    PRINT_IN(to, NULL, '[');
    for (int b = 0; b < N_BUGS; b++) {
        const struct bug_info *i = bug_at((enum bug)b);
        int variant = bug_on(on, (enum bug)b);
        const char *state = bug_state_name((enum bug)b, variant);
        print_note(to, variant ? ST_BAD : ST_TEXT, "%5d %-22s %-4s %-*s  %s", i->number,
                   i->name, fault_rule(bug_rule((enum bug)b, variant)), widest, state, i->path);
        bug_json((enum bug)b, variant, to);
    }
}

static void say_needs(struct app *a, const struct settings *s, enum bug b, int variant,
                      const struct printer *to)
{
    FREED(buf_free) struct buf needs = {0};
    if (facts_unmet_needs(backend_info(a->backend), s, b, variant, &needs))
        print_note(to, ST_WARN, "cannot fire now; needs %s", needs.p);
}

/* Asks the engine to switch a fault; it does so before the next turn. */
static bool switch_bug(struct app *a, enum bug b, const char *state, struct err *e)
{
    char line[64];
    snprintf(line, sizeof line, "bug.%d=%s", bug_at(b)->number, state);
    return app_request(a, RQ_SET, line, e);
}

static void say_story(enum bug b, const struct printer *to)
{
    const struct bug_info *i = bug_at(b);
    print_note(to, ST_DIM, "where: %s", i->path);
    print_note(to, ST_DIM, "what was wrong: %s", i->was);
    print_note(to, ST_DIM, "smallest input: %s", i->trigger);
    for (int v = 1; v <= bug_variants(b) && bug_variants(b) > 1; v++)
        print_note(to, ST_DIM, "one way to be wrong: %s (%s)", i->variant[v - 1],
                   fault_rule(bug_rule(b, v)));
}

bool cmd_bug(struct cmd_call *c)
{
    struct app *a = c->app;
    struct settings set;
    struct bugs on;
    enum bug b;
    int variant;
    if ((c->argc > 0 && !bug_find(c->argv[0], &b, c->e)) ||
        (c->argc == 2 && !bug_parse(b, c->argv[1], &variant, c->e)) || !cmd_needs(c, VIEW_FAULTS))
        return false;
    app_settings(a, &set);
    app_bugs(a, &on);
    if (c->argc == 0) {
        list_bugs(&on, &c->to);
        return true;
    }
    if (c->argc == 1)
        variant = bug_on(&on, b);
    const char *state = bug_state_name(b, variant);
    if (c->argc == 2 && !switch_bug(a, b, state, c->e))
        return false;
    const struct bug_info *i = bug_at(b);
    print_note(&c->to, variant ? ST_BAD : ST_TEXT, "%d %s is %s%s%s%s", i->number, i->name, state,
               variant ? "; rule " : "", variant ? fault_rule(bug_rule(b, variant)) : "",
               variant ? " must name it" : "");
    if (variant || c->argc == 1)
        say_needs(a, &set, b, max_int(variant, 1), &c->to);
    if (c->argc == 1)
        say_story(b, &c->to);
    bug_json(b, variant, &c->to);
    return true;
}

void complete_bug(struct app *, const char *before, const char *word, cmd_add_fn *add, void *arg)
{
    if (*before)
        complete_words("on | off", word, add, arg);
    for (int b = 0; b < N_BUGS && !*before; b++)
        if (strncmp(bug_at((enum bug)b)->name, word, strlen(word)) == 0)
            add(arg, bug_at((enum bug)b)->name, bug_at((enum bug)b)->path);
}
