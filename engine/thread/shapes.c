/* shapes.c - see shapes.h. */

#include "engine/thread/internal.h"

static void add_shape(struct shapes *s, int step, const struct tree_shape *shape)
{
    *APPEND(s->at, s->n) = (struct shape_change){step, shape->steps, shape->topk, shape->nodes};
}

static struct tree_shape fixed(const struct settings *set)
{
    return (struct tree_shape){set->steps, set->topk, set->nodes};
}

static bool same(const struct tree_shape *a, const struct tree_shape *b)
{
    return a->steps == b->steps && a->topk == b->topk && a->nodes == b->nodes;
}

void shapes_turn_begins(struct engine *engine, const struct request *rq)
{
    struct shapes *s = &engine->own.shapes;
    const struct settings *set = &engine->shared.set;
    s->logged = rq->n_shape > 0;
    FOR_EACH(const struct shape_change, x, rq->shape, rq->n_shape)
        add_shape(s, x->step, &(struct tree_shape){x->steps, x->topk, x->nodes});
    if (!s->chooser.ready) {
        struct tree_shape first = fixed(set);
        auto_shape_init(&s->chooser, &first);
    }
    engine->own.ses.lane.guesses = set->auto_shape ? AUTO_GUESSES : 0;
}

void shapes_turn_ended(struct engine *engine)
{
    struct shapes *s = &engine->own.shapes;
    struct lane *lane = &engine->own.ses.lane;
    struct err e = {0};
    auto_shape_rest(&s->chooser);
    DROP(s->at);
    s->n = s->decided = 0;
    if (!engine->own.lost && !lane_catch_up(&engine->own.runtime, lane, 1, &e))
        lane->behind = 0; /* the next turn computes the prompt's end again */
}

/* The shape of the step with this number; false: it has not been chosen yet. */
static bool known(const struct shapes *s, int step, struct tree_shape *out)
{
    int i = s->n - 1;
    while (i >= 0 && s->at[i].step > step)
        i--;
    if (i >= 0)
        *out = (struct tree_shape){s->at[i].steps, s->at[i].topk, s->at[i].nodes};
    return i >= 0 && (s->logged || step <= s->decided);
}

const struct tree_shape *shapes_peek(const struct engine *engine, const struct settings *set,
                                     struct tree_shape *room)
{
    const struct shapes *s = &engine->own.shapes;
    if (!set->spec || !engine->loaded.has_draft)
        return NULL;
    *room = fixed(set);
    if (set->auto_shape && !known(s, engine->shared.step + 1, room) && !s->logged &&
        s->chooser.ready) *room = *auto_shape_next(&s->chooser);
    return room;
}

const struct tree_shape *shapes_next(struct engine *engine, struct tree_shape *room)
{
    struct shapes *s = &engine->own.shapes;
    const struct settings *set = &engine->shared.set;
    const struct tree_shape *shape = shapes_peek(engine, set, room);
    int step = engine->shared.step + 1;
    if (!shape || !set->auto_shape || step <= s->decided)
        return shape;
    struct tree_shape last = {0};
    bool any = s->n > 0;
    if (any)
        last = (struct tree_shape){s->at[s->n - 1].steps, s->at[s->n - 1].topk,
                                   s->at[s->n - 1].nodes};
    s->decided = step;
    if (s->logged || (any && same(&last, shape)))
        return shape;
    add_shape(s, step, shape);
    char *text = xasprintf("%d %d-%d-%d", step, shape->steps, shape->topk, shape->nodes);
    engine_post_op(engine, OP_SHAPE, text, engine->shared.turn);
    free(text);
    return shape;
}

void shapes_measure(struct engine *engine, uint64_t ns)
{
    struct shapes *s = &engine->own.shapes;
    const struct lane *lane = &engine->own.ses.lane;
    const struct tree_shape *shape = auto_shape_next(&s->chooser);
    const struct shape_change *last = s->n ? &s->at[s->n - 1] : NULL;
    bool ran = last && !s->logged && last->steps == shape->steps && last->topk == shape->topk &&
               last->nodes == shape->nodes;
    if (!ran || !engine->shared.set.auto_shape || lane->rec.forced ||
        (shape->steps && lane->tree.n < 2))
        return;
    auto_shape_take(&s->chooser, &(struct auto_step){
        .ns = (double)ns, .ns_draft = 1e3 * lane->rec.us_draft,
            .ns_verify = 1e3 * lane->rec.us_verify,
        .tree = shape->steps ? &lane->tree : NULL, .accepted = lane->rec.accepted});
}

void shapes_view(const struct engine *engine, struct auto_view *v)
{
    static const char *const why[] = {"nothing is measured yet", "the fastest as measured",
                                      "it never ran before", "measured again"};
    const struct shapes *s = &engine->own.shapes;
    const struct auto_shape *a = &s->chooser;
    *v = (struct auto_view){.n = AUTO_SHAPES, .now = a->now, .why = why[a->why],
                            .switches = a->switches};
    for (int i = 0; i < AUTO_SHAPES; i++) {
        const struct tree_shape *shape = auto_shape_at(i);
        v->at[i] = (struct auto_view_shape){shape->steps, shape->topk, shape->nodes, a->of[i].runs,
                                            a->of[i].n ? auto_shape_ns(a, i) / 1e6 : 0,
                                            auto_shape_tokens(a, i)};
    }
    v->logged = s->logged;
}
