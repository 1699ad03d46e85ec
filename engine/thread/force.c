/* force.c - see force.h. */

#include "engine/thread/internal.h"

static void add_forced(struct forcing *f, int step, int32_t token)
{
    *APPEND(f->at, f->n) = (struct forced_token){step, token, 0};
}

void force_turn_begins(struct engine *engine, const struct request *rq)
{
    force_turn_ended(engine);
    for (int i = 0; i < rq->n_force; i++)
        *APPEND(engine->own.force.at, engine->own.force.n) = rq->force[i];
}

void force_turn_ended(struct engine *engine)
{
    free(engine->own.force.at);
    engine->own.force = (struct forcing){0};
}

int force_room(const struct engine *engine, int generated)
{
    const struct forcing *f = &engine->own.force;
    int room = INT32_MAX;
    for (int i = 0; i < f->n; i++)
        if (!f->at[i].step && f->at[i].after > generated)
            room = min_int(room, f->at[i].after - generated);
    return room;
}

void force_step_begins(struct engine *engine, int generated)
{
    struct forcing *f = &engine->own.force;
    struct lane *lane = &engine->own.ses.lane;
    int step = engine->shared.step + 1;
    int32_t id = -1;
    if (lane->n_given > 0 && !f->on)
        return;
    for (int i = 0; i < f->n; i++)
        if (f->at[i].step ? f->at[i].step == step : f->at[i].after == generated)
            id = f->at[i].token;
    f->by_user = id < 0;
    if (id < 0 && !f->silent)
        id = debug_forced(&engine->debug);
    f->id = id;
    f->on = id >= 0;
    lane->given = f->on ? &f->id : NULL;
    lane->n_given = f->on;
}

void force_step_ended(struct engine *engine, bool ok)
{
    struct forcing *f = &engine->own.force;
    struct lane *lane = &engine->own.ses.lane;
    bool used = ok && f->on && lane->n_given == 0;
    if (!f->on)
        return;
    f->on = false;
    lane->given = NULL;
    lane->n_given = 0;
    if (!used || !f->by_user)
        return;
    int step = engine->shared.step + 1;
    add_forced(f, step, f->id);
    debug_force(&engine->debug, -1);
    struct event ev = engine_event(engine, EV_OP);
    ev.op = OP_FORCE;
    ev.forced = (struct forced_token){.step = step, .token = f->id};
    engine_post(engine, &ev);
}

/* ---- the caller's thread: what may be forced ------------------------------------------------- */

/* The one token of a text; what it is made of, if it is several. */
static bool token_of(struct engine *engine, const char *text, int32_t *id, struct err *e)
{
    FREED(ids_free) struct ids ids = {0};
    FREED(buf_free) struct buf parts = {0};
    bool ok = tok_encode(engine->loaded.tok, text, strlen(text), TOK_INNER, &ids, e);
    if (ok && ids.n != 1) {
        for (int i = 0; i < min_int(ids.n, 6); i++)
            buf_printf(&parts, " #%d", ids.v[i]);
        ok = err_set(e, ERR_USAGE, "the text is %d tokens (%s%s): expected one; force them one "
                     "after another, as #ID", ids.n, parts.n ? parts.p + 1 : "none",
                     ids.n > 6 ? " ..." : "");
    }
    if (ok)
        *id = ids.v[0];
    return ok;
}

static bool may_be_forced(struct engine *engine, int32_t id, struct err *e)
{
    const struct loaded *loaded = &engine->loaded;
    if (id < 0 || id >= loaded->model.cfg.vocab)
        return err_set(e, ERR_USAGE, "token #%d: expected 0 to %d", id,
                       loaded->model.cfg.vocab - 1);
    if (loaded->mask && loaded->mask[id])
        return err_set(e, ERR_USAGE, "token #%d has no text: it is never chosen", id);
    bool stops = false;
    for (int i = 0; i < loaded->n_stop; i++)
        stops |= loaded->stop[i] == id;
    if (stops || tok_is_special(loaded->tok, id))
        return err_set(e, ERR_USAGE, "token #%d is special: it does not stand in a reply's text",
                       id);
    return true;
}

bool local_force(struct backend *b, const char *text, int32_t *id, struct err *e)
{
    struct engine *engine = engine_of(b);
    if (!debug_may_force(&engine->debug, e) || (text && !token_of(engine, text, id, e)) ||
        (*id >= 0 && !may_be_forced(engine, *id, e)))
        return false;
    debug_force(&engine->debug, *id);
    return true;
}
