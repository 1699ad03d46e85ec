/* force.c - see force.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/thread/internal.h"

static void add_forced(struct forcing *f, int step, int32_t token)
{
    f->at = xrealloc(f->at, (size_t)f->n + 1, sizeof *f->at);
    f->at[f->n++] = (struct forced_token){step, token};
}

void force_turn_begins(struct engine *g, const struct request *rq)
{
    force_turn_ended(g);
    for (int i = 0; i < rq->n_force; i++)
        add_forced(&g->own.force, rq->force[i].step, rq->force[i].token);
}

void force_turn_ended(struct engine *g)
{
    free(g->own.force.at);
    g->own.force = (struct forcing){0};
}

void force_step_begins(struct engine *g)
{
    struct forcing *f = &g->own.force;
    struct lane *l = &g->own.ses.lane;
    int step = g->shared.step + 1;
    int32_t id = -1;
    if (l->n_given > 0 && !f->on)
        return;
    for (int i = 0; i < f->n; i++)
        if (f->at[i].step == step)
            id = f->at[i].token;
    f->by_user = id < 0;
    if (id < 0 && !f->silent)
        id = debug_forced(&g->debug);
    f->id = id;
    f->on = id >= 0;
    l->given = f->on ? &f->id : NULL;
    l->n_given = f->on;
}

void force_step_ended(struct engine *g, bool ok)
{
    struct forcing *f = &g->own.force;
    struct lane *l = &g->own.ses.lane;
    bool used = ok && f->on && l->n_given == 0;
    if (!f->on)
        return;
    f->on = false;
    l->given = NULL;
    l->n_given = 0;
    if (!used || !f->by_user)
        return;
    int step = g->shared.step + 1;
    char *text = xasprintf("%d %d", step, f->id);
    add_forced(f, step, f->id);
    debug_force(&g->debug, -1);
    engine_post_op(g, OP_FORCE, text, g->shared.turn);
    free(text);
}

/* ---- the caller's thread: what may be forced ------------------------------------------------- */

/* The one token of a text; what it is made of, if it is several. */
static bool token_of(struct engine *g, const char *text, int32_t *id, struct err *e)
{
    struct ids ids = {0};
    struct buf parts = {0};
    bool ok = tok_encode(g->loaded.tok, text, strlen(text), TOK_INNER, &ids, e);
    if (ok && ids.n != 1) {
        for (int i = 0; i < min_int(ids.n, 6); i++)
            buf_printf(&parts, " #%d", ids.v[i]);
        ok = err_set(e, ERR_USAGE, "the text is %d tokens (%s%s): expected one; force them one "
                     "after another, as #ID", ids.n, parts.n ? parts.p + 1 : "none",
                     ids.n > 6 ? " ..." : "");
    }
    if (ok)
        *id = ids.v[0];
    ids_free(&ids);
    buf_free(&parts);
    return ok;
}

static bool may_be_forced(struct engine *g, int32_t id, struct err *e)
{
    const struct loaded *l = &g->loaded;
    if (id < 0 || id >= l->model.cfg.vocab)
        return err_set(e, ERR_USAGE, "token #%d: expected 0 to %d", id, l->model.cfg.vocab - 1);
    if (l->mask && l->mask[id])
        return err_set(e, ERR_USAGE, "token #%d has no text: it is never chosen", id);
    bool stops = false;
    for (int i = 0; i < l->n_stop; i++)
        stops |= l->stop[i] == id;
    if (stops || tok_is_special(l->tok, id))
        return err_set(e, ERR_USAGE, "token #%d is special: it does not stand in a reply's text",
                       id);
    return true;
}

bool local_force(struct backend *b, const char *text, int32_t *id, struct err *e)
{
    struct engine *g = engine_of(b);
    if (!debug_may_force(&g->debug, e) || (text && !token_of(g, text, id, e)) ||
        (*id >= 0 && !may_be_forced(g, *id, e)))
        return false;
    debug_force(&g->debug, *id);
    return true;
}
