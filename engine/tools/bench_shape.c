/* bench_shape.c - replies with each shape that draft.shape = auto chooses from, and with auto. See
 * bench_model.h.
 *
 * shape.MODEL.plain, .1-1-2, ..., .auto: a token of the same greedy replies. The manners alternate
 * prompt by prompt; auto's first replies, in which it tries the shapes, are not counted and have a
 * line of their own, shape.MODEL.auto.first. */
#include "engine/tools/bench_model.h"

#include "engine/draft/auto_shape.h"
#include "models/chat/chat.h"

static const char *const prompts[] = {
    BENCH_QUESTION, "What is a page table?", "My dog is called Rex. What is my dog called?",
    "Why is a draft token rejected?", "Tell me a short story about a lighthouse.",
};
enum { PROMPTS = LEN(prompts), ROUNDS = 5, MOST = 128,
       MANNERS = AUTO_SHAPES + 1 };

struct shape_replies {
    struct auto_shape *chooser; /* NULL: the shape is fixed */
    const struct tree_shape *shape;
    double seconds[ROUNDS * PROMPTS + 1]; /* a token, by reply */
    int n, tokens, cycles;
    bool wanted;
};

static bool cycle(struct subject *s, struct shape_replies *m, struct lane *lane, struct err *e)
{
    const struct step_limits lim = {MOST};
    const struct tree_shape *shape = m->chooser ? auto_shape_next(m->chooser) : m->shape;
    uint64_t t0 = clock_ns();
    if (!lane_step(&s->runtime, &lane, &lim, 1, !m->chooser && !shape->steps ? NULL : shape, e))
        return false;
    if (m->chooser && (!shape->steps || lane->tree.n > 1))
        auto_shape_take(m->chooser, &(struct auto_step){
            .ns = (double)(clock_ns() - t0), .ns_draft = 1e3 * lane->rec.us_draft,
            .ns_verify = 1e3 * lane->rec.us_verify, .tree = shape->steps ? &lane->tree : NULL,
            .accepted = lane->rec.accepted});
    return true;
}

static bool reply(struct subject *s, const struct ids *prompt, struct shape_replies *m, bool counts,
                  struct err *e)
{
    struct lane lane = {.tap_row = -1, .guesses = m->chooser ? AUTO_GUESSES : 0};
    int n = prompt->n, cycles = 0;
    ids_cat(&lane.tok, prompt->v, n);
    bool drafts = m->chooser || m->shape->steps;
    bool ok = lane_extend(&s->runtime, &lane, n, true, drafts, m->chooser ? 1
                          : max_int(1, m->shape->topk), e);
    uint64_t t0 = clock_ns();
    for (; ok && !lane.stopped && lane.tok.n - n <= MOST; cycles++)
        ok = cycle(s, m, &lane, e);
    double took = (double)(clock_ns() - t0) * 1e-9;
    int tokens = lane.tok.n - n - 1;
    if (ok && m->chooser) {
        auto_shape_rest(m->chooser);
        ok = lane_catch_up(&s->runtime, &lane, 1, e);
    }
    if (ok && counts && tokens > 0) {
        m->seconds[m->n++] = took / tokens;
        m->tokens += tokens;
        m->cycles += cycles;
    }
    lane_free(&s->runtime, &lane);
    return ok;
}

static void tell(struct bench *b, const char *name, struct shape_replies *m)
{
    char text[96];
    double sum = 0;
    for (int i = 0; i < m->n; i++)
        sum += m->seconds[i];
    double mean = sum / max_int(1, m->n);
    int at = snprintf(text, sizeof text, "mean ms a token of %d replies, %.2f tokens a step", m->n,
                      (double)m->tokens / max_int(1, m->cycles));
    if (m->chooser) {
        const struct tree_shape *now = auto_shape_next(m->chooser);
        snprintf(text + at, sizeof text - (size_t)at, ", now %d-%d-%d, %d switches", now->steps,
                 now->topk, now->nodes, (int)m->chooser->switches);
    }
    struct timing t = bench_timing(m->seconds, m->n, 1);
    t.ms = mean * 1e3; /* replies differ in what they cost, so their median says little */
    bench_tell(b, name, text, &t, &(struct figure){0, 0, 1 / mean, "tok/s"});
}

static void name_of(char out[64], const struct subject *s, int manner)
{
    const struct tree_shape *x = manner < AUTO_SHAPES ? auto_shape_at(manner) : NULL;
    if (!x)
        snprintf(out, 64, "shape.%.30s.auto", s->name);
    else if (!x->steps)
        snprintf(out, 64, "shape.%.30s.plain", s->name);
    else
        snprintf(out, 64, "shape.%.30s.%d-%d-%d", s->name, x->steps, x->topk, x->nodes);
}

/* A round of all manners over all prompts, each time in another order, because a manner may slow
 * down the next one; the first round only warms up the fixed shapes. */
static bool round_of(struct bench *, struct subject *s, const struct ids *prompt,
                     struct shape_replies *m, struct shape_replies *first, int turn, struct err *e)
{
    char name[64];
    for (int p = 0; p < PROMPTS; p++)
        for (int k = 0; k < MANNERS; k++) {
            int i = (k + 2 * p + turn + 1) % MANNERS;
            name_of(name, s, i);
            bool warm = turn < 0 && i == AUTO_SHAPES;
            if (m[i].wanted && !reply(s, &prompt[p], warm ? first : &m[i], turn >= 0 || warm, e))
                return err_prefix(e, "%s", name);
        }
    return true;
}

bool bench_shapes(struct bench *b, struct subject *s, struct err *e)
{
    static const struct tree_shape usual = {5, 1, 6};
    struct shape_replies *m = NULL, first = {0};
    struct ids prompt[PROMPTS] = {{0}};
    struct auto_shape chooser;
    char name[64];
    bool ok = true;
    bool asked = b->o->n_pattern > 0 && bench_wanted_any(b, "shape.");
    if (s->synthetic || !s->runtime.drafter || !asked)
        return true;
    m = xcalloc(MANNERS, sizeof *m);
    auto_shape_init(&chooser, &usual);
    for (int i = 0; i < MANNERS; i++) {
        name_of(name, s, i);
        m[i].wanted = bench_wanted(b, name);
        m[i].shape = i < AUTO_SHAPES ? auto_shape_at(i) : NULL;
        m[i].chooser = i == AUTO_SHAPES ? &chooser : NULL;
    }
    first.chooser = &chooser;
    s->runtime.n_stop = s->l.n_stop;
    for (int p = 0; p < PROMPTS && ok; p++) {
        FREED(free_at) char *text = xstrdup(prompts[p]);
        struct message question = {.role = ROLE_USER, .text = text};
        ok = chat_render(s->l.chat, &question, 1, &prompt[p], e);
    }
    for (int turn = -1; turn < ROUNDS && ok; turn++)
        ok = round_of(b, s, prompt, m, &first, turn, e);
    for (int i = 0; i < MANNERS && ok; i++)
        if (m[i].wanted) {
            name_of(name, s, i);
            tell(b, name, &m[i]);
        }
    if (ok && first.n) {
        snprintf(name, sizeof name, "shape.%.30s.auto.first", s->name);
        tell(b, name, &first);
    }
    s->runtime.n_stop = 0;
    for (int p = 0; p < PROMPTS; p++)
        ids_free(&prompt[p]);
    free(m);
    return ok;
}
