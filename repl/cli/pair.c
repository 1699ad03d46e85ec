/* pair.c - the draft of a model that was named alone. */
#include "repl/cli/cli.h"

bool cli_find_pair(struct cli *c, const char *model, struct err *e)
{
    struct engine_opts *o = &c->opt.engine;
    struct pairing *p = &c->pair;
    pair_free(p);
    if (!pair_find(model, p, e))
        return false;
    o->model = p->model ? p->model : model;
    o->draft = p->n ? p->draft[0].path : NULL;
    o->draft_from = p->n ? p->draft[0].from : NULL;
    return true;
}
