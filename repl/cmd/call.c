/* call.c - what every command may ask or say. */
#include "repl/cmd/cmd.h"

bool arg_expected(const struct cmd_call *c, const char *expected)
{
    return err_set(c->e, ERR_USAGE, "/%s %s, for example: %s", c->cmd->name, expected,
                   c->cmd->example);
}

bool arg_number(const struct cmd_call *c, const char *what, long lo, long hi, long *n)
{
    if (c->argc > 1)
        return arg_expected(c, "takes at most one number");
    return c->argc == 0 || arg_int(c->argv[0], what, lo, hi, n, c->e);
}

bool cmd_needs(const struct cmd_call *c, enum backend_view v)
{
    return app_needs(c->app, c->cmd->name, v, c->e);
}

void say_now(const struct cmd_call *c)
{
    const struct address *at = &c->app->at;
    if (at->turn && !app_recording(c->app))
        print_note(&c->to, ST_WARN, "/%s shows what is now, not step %d.%d", c->cmd->name, at->turn,
                   at->step);
}

int view_width(const struct app *a)
{
    return a->face.width > 0 ? a->face.width : 80;
}
