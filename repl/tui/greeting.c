/* greeting.c - the first lines of the transcript: the program, the model, and once the keys. */
#include "repl/tui/tui.h"

#include "models/checkpoint/hub.h"

/* The last two parts of a path, e.g. "nestling/target". */
static const char *last_parts(const char *path)
{
    const char *p = path + strlen(path);
    for (int slashes = 0; p > path; p--)
        if (p[-1] == '/' && ++slashes == 2)
            break;
    return p;
}

void tui_greet(struct tui *t, bool first)
{
    const struct backend_info *i = backend_info(t->app->backend);
    const char *dot = t->app->ascii ? " | " : " · ";
    FREED(buf_free) struct buf line = {0};
    FREED(free_at) char *named = i->model_dir ? hub_title_in_cache(i->model_dir) : NULL;
    buf_str(&line, named          ? named
                   : i->model_dir ? last_parts(i->model_dir)
                                  : "a model without a name");
    if (i->family)
        buf_printf(&line, "%s%s", dot, i->family);
    if (i->device)
        buf_printf(&line, " on %s", i->device);
    if (i->context)
        buf_printf(&line, "%scontext %d", dot, i->context);
    if (backend_has(t->app->backend, VIEW_ACCEPT) && !i->server_url)
        buf_printf(&line, "%s%s", dot, i->draft_off ? i->draft_off : "drafting");
    tui_note(t, ST_BOLD, "aerie %s", AERIE_VERSION);
    tui_note(t, ST_DIM, "%s", line.p);
    if (first) /* the keys worth knowing; later the screen says nothing about keys */
        tui_note(t, ST_DIM, "Ctrl-P finds every command%sF1 explains%sCtrl-C stops a reply, Ctrl-D "
                            "quits", dot, dot);
}
