/* change.c - see change.h. */
#include "repl/compare/change.h"

static bool take_option(struct engine_opts *all, const struct option *o, const char *value,
                        struct err *e)
{
    if (o->kind == OPT_TEXT && !*value)
        return err_set(e, ERR_USAGE, "%s cannot be empty", o->name);
    if (option_read(o, all, o->kind == OPT_TEXT && strcmp(value, "none") == 0 ? NULL : value))
        return true;
    if (o->kind == OPT_INT || o->kind == OPT_POW2)
        return err_set(e, ERR_USAGE, "%s cannot be \"%.80s\"; expected a %s from %.0f to %.0f",
                       o->name,
                       value, o->kind == OPT_POW2 ? "power of two" : "number", o->min, o->max);
    return err_set(e, ERR_USAGE, "%s cannot be \"%.80s\"; expected %s", o->name, value,
                   o->kind == OPT_FLAG ? "on or off" : o->range);
}

static bool unknown(const char *name, struct err *e)
{
    FREED(buf_free) struct buf all = {0};
    for (int i = 0; i < opts_count(); i++)
        if (opts_at(i)->change)
            buf_printf(&all, "%s%s", i ? ", " : "", opts_at(i)->name);
    return FAILED(false, e, ERR_USAGE, "\"%.64s\" cannot be changed; expected a setting (aerie "
                  "help run lists them), bug.NUMBER, or one of %s", name, all.p);
}

bool change_apply(struct engine_opts *o, const char *text, struct err *e)
{
    const char *eq = strchr(text, '=');
    if (!eq || eq == text)
        return err_set(e, ERR_USAGE, "\"%.80s\": expected NAME=VALUE", text);
    struct engine_opts new = *o;
    FREED(free_at) char *name = xasprintf("%.*s", (int)(eq - text), text);
    const struct option *option = opts_find(name);
    bool change = option && option->change && strcmp(option->name, name) == 0;
    bool ok = strncmp(name, "bug.", 4) == 0   ? bug_set(&new.bugs, name + 4, eq + 1, e)
              : change                        ? take_option(&new, option, eq + 1, e)
              : settings_index(name) >= 0     ? settings_set(&new.settings, name, eq + 1, e)
                                              : unknown(name, e);
    if (ok)
        *o = new;
    return ok;
}

/* ---- two sets of options --------------------------------------------------------------------- */

bool change_reopens(const struct engine_opts *a, const struct engine_opts *b)
{
    FREED(buf_free) struct buf x = {0}, y = {0};
    opts_key(a, &x);
    opts_key(b, &y);
    return strcmp(x.p, y.p) != 0;
}

void change_lines(const struct engine_opts *from, const struct engine_opts *to, struct buf *lines)
{
    FREED(buf_free) struct buf a = {0}, b = {0};
    for (int i = 0; i < settings_count(); i++) {
        const char *name = settings_at(i)->name;
        buf_clear(&a);
        buf_clear(&b);
        settings_get(&from->settings, name, &a);
        settings_get(&to->settings, name, &b);
        if (strcmp(a.p, b.p) != 0)
            buf_printf(lines, "%s=%s\n", name, b.p);
    }
    for (int i = 0; i < N_BUGS; i++)
        if (bug_on(&from->bugs, (enum bug)i) != bug_on(&to->bugs, (enum bug)i))
            buf_printf(lines, "bug.%d=%s\n", bug_at((enum bug)i)->number,
                       bug_state_name((enum bug)i, bug_on(&to->bugs, (enum bug)i)));
}
