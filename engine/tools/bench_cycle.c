/* bench_cycle.c - times of a chat, host time included: cycles with a scripted acceptance, prompts,
 * and whole replies, through lane_extend() and lane_step(). See bench_model.h. */
#include "engine/tools/bench_model.h"

#include "engine/cycle/fused.h"
#include "engine/settings.h"
#include "models/chat/chat.h"

enum { MANY = 60 }; /* cycles that are timed */

/* ---- cycles ---------------------------------------------------------------------------------- */

/* Runs the last cycle's recording again for WARM_NS: a GPU lowers its clocks when it is idle, and
 * when products exceed its power, as those of bench_products() do just before, and raises them
 * slowly. Does nothing if the cycle was not recorded. */
static bool warm_up(struct bench *b, struct runtime *rt, struct err *e)
{
    enum { WARM_NS = 200000000, AT_ONCE = 8 };
    bool recorded = true, ok = true;
    for (uint64_t t0 = clock_ns(); ok && recorded && clock_ns() - t0 < WARM_NS;) {
        for (int i = 0; i < AT_ONCE && recorded; i++)
            recorded = fused_again(rt);
        ok = b->dev.k->sync(b->dev.d, e);
    }
    return ok;
}

/* Times lane_step() after three that are not timed and warm_up(). The acceptance length, on
 * average, is scripted (0: the target's own choice). *mean: tokens a cycle. */
static bool time_cycles(struct bench *b, struct subject *s, struct lane *lane,
                        const struct tree_shape *shape, double accepted, struct timing *t,
                        double *mean, struct err *e)
{
    enum { WARM = 3 };
    const struct step_limits lim = {1 << 20};
    int n = b->o->brief && !b->graphs ? 20 : MANY, tokens = 0;
    double seconds[MANY], due = 0;
    for (int i = -WARM; i < n; i++) {
        if (i == 0 && !warm_up(b, &s->runtime, e))
            return false;
        due += accepted;
        lane->force = accepted > 0 ? (int)due : 0;
        due -= lane->force;
        uint64_t t0 = clock_ns();
        if (!lane_step(&s->runtime, &lane, &lim, 1, shape, e))
            return false;
        if (i >= 0) {
            seconds[i] = (double)(clock_ns() - t0) * 1e-9;
            tokens += lane->n_new;
        }
    }
    *mean = (double)tokens / n;
    *t = bench_timing(seconds, n, 1);
    return true;
}

/* Seconds that the device alone takes for the last cycle: recorded, it runs some more times. 0: it
 * was not recorded. */
static bool device_seconds(struct bench *b, struct runtime *rt, double wall, double *seconds,
                           struct err *e)
{
    int n = (int)(2e-3 / wall) + 2;
    uint64_t t0 = clock_ns();
    for (int i = 0; i < n; i++)
        if (!fused_again(rt))
            n = 0;
    bool ok = b->dev.k->sync(b->dev.d, e);
    *seconds = n ? (double)(clock_ns() - t0) * 1e-9 / n : 0;
    return ok;
}

/* cycle.host.*: the time of a cycle minus that of the device: the host's work between a run's
 * results and the next launch, and the driver's launch. Cycles run as they were timed, each
 * followed by a run of its recording alone, because the device's time depends on the experts that
 * the rows choose. */
static bool host_share(struct bench *b, struct subject *s, struct lane *lane,
                       const struct tree_shape *shape, const char *name, struct err *e)
{
    enum { TIMES = 31 };
    const struct step_limits lim = {1 << 20};
    double host[TIMES], device[TIMES], own[TIMES], wall;
    char text[96];
    for (int i = 0; i < TIMES; i++) { /* one after the other, as in a chat */
        if (!lane_step(&s->runtime, &lane, &lim, 1, shape, e))
            return false;
        own[i] = (double)(s->runtime.host.before + s->runtime.host.after) * 1e-9;
    }
    for (int i = 0; i < TIMES; i++) {
        uint64_t t0 = clock_ns();
        if (!lane_step(&s->runtime, &lane, &lim, 1, shape, e))
            return false;
        wall = (double)(clock_ns() - t0) * 1e-9;
        if (!device_seconds(b, &s->runtime, wall, &device[i], e))
            return false;
        if (device[i] == 0) /* nothing was recorded: device and host time cannot be separated */
            return true;
        host[i] = wall - device[i];
    }
    struct timing t = bench_timing(host, TIMES, 1), alone = bench_timing(device, TIMES, 1);
    snprintf(text, sizeof text, "wall time beyond the device's %.4f ms, own work %.1f us", alone.ms,
             bench_timing(own, TIMES, 1).ms * 1e3);
    bench_tell(b, name, text, &t, &(struct figure){0, 0, t.ms * 1e3, "us"});
    return true;
}

/* One step of plain decoding. */
static bool plain(struct bench *b, struct subject *s, struct err *e)
{
    char name[64], host[64], shape[64];
    struct lane lane;
    struct timing t;
    double mean, hit;
    if (!bench_wanted_any(b, "cycle."))
        return true;
    snprintf(name, sizeof name, "cycle.%s.plain", s->name);
    snprintf(host, sizeof host, "cycle.host.%s.plain", s->name);
    bool ok = bench_pretend(b, s, &lane, s->usual, e) &&
              time_cycles(b, s, &lane, NULL, 0, &t, &mean, e);
    if (ok) {
        double bytes = bench_pass_bytes(b, &s->runtime, 1, s->usual, &hit);
        bench_describe(shape, sizeof shape, s, s->usual, hit);
        s->plain_ms = t.ms;
        if (bench_wanted(b, name))
            bench_tell_pass(b, name, shape, &t, &(struct figure){bytes, 0, 1e3 / t.ms, "tok/s"},
                            hit);
        ok = !bench_wanted(b, host) || host_share(b, s, &lane, NULL, host, e);
    }
    lane_free(&s->runtime, &lane);
    return ok || err_prefix(e, "%s", name);
}

static bool cycle(struct bench *b, struct subject *s, struct tree_shape shape, double accepted,
                  struct err *e)
{
    struct runtime *rt = &s->runtime;
    char of[40], name[64], host[64], text[128], experts[32] = "";
    struct lane lane;
    struct timing t;
    double mean, hit;
    snprintf(of, sizeof of, "%.26s.%d-%d-%d", s->name, shape.steps, shape.topk, shape.nodes);
    snprintf(name, sizeof name, "cycle.%s", of);
    snprintf(host, sizeof host, "cycle.host.%s", of);
    if (!rt->drafter || (!bench_wanted(b, name) && !bench_wanted(b, host)))
        return true;
    bool ok = bench_prompted(b, s, &lane, s->usual, shape.topk, e) &&
              time_cycles(b, s, &lane, &shape, accepted, &t, &mean, e);
    if (ok) {
        int n = lane.seq.committed;
        double bytes = bench_pass_bytes(b, rt, shape.nodes, n, &hit);
        if (drafter_owns_kv(rt->drafter) && rt->drafter->head->w->block)
            bytes += bench_draft_bytes(rt, rt->drafter->head->w->block, shape.steps, n, true);
        else if (drafter_owns_kv(rt->drafter))
            for (int i = 0; i < shape.steps; i++)
                bytes += bench_draft_bytes(rt, i ? shape.topk : 1, 1, n, i == 0);
        const char *cut = models_quant_text(&s->quant);
        if (hit > 0) /* of the last cycle's verify pass */
            snprintf(experts, sizeof experts, ", %.1f experts a layer", hit);
        snprintf(text, sizeof text, "%d cells, %.2f tokens a cycle, %.0f tok/s%s%s%s", s->usual,
                 mean, mean / t.ms * 1e3, cut ? ", " : "", cut ? cut : "", experts);
        if (bench_wanted(b, name))
            bench_tell_pass(b, name, text, &t,
                            &(struct figure){bytes, 0, mean * s->plain_ms / t.ms, "x plain"}, hit);
        ok = !bench_wanted(b, host) || host_share(b, s, &lane, &shape, host, e);
    }
    lane_free(rt, &lane);
    return ok || err_prefix(e, "%s", name);
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Multiplications and additions of n prompt tokens; the head runs once. */
static double prompt_flops(struct model *m, int n)
{
    const struct config *c = &m->cfg;
    double all = 2.0 * c->hidden * c->vocab;
    FOR_EACH(struct layer, w, m->layer, c->n_layer) {
        int count, window = w->window && w->window < n ? w->window : n;
        const struct tensor *t = layer_tensors(w, &count);
        double weights = w->is_moe ? 3.0 * c->top_k * c->hidden * c->expert_ffn : 0;
        for (int i = 0; i < count; i++)
            if (t[i].n_dim == 2 && !bench_is_expert(w, &t[i]))
                weights += (double)t[i].dim[0] * (double)t[i].dim[1];
        double keys = (double)window * n - (double)window * window / 2;
        all += 2 * weights * n + 4.0 * w->n_head * w->head_dim * keys;
    }
    return all;
}

/* Whether the line was requested by its whole name: required for lines that take seconds a run. */
static bool named(const struct bench *b, const char *name)
{
    return ANY(i, b->o->n_pattern, !strcmp(b->o->pattern[i], name));
}

static bool prefill(struct bench *b, struct subject *s, int n, struct err *e)
{
    enum { TIMES = 5, USUAL = 4096 /* longer prompts run once, and only if named */ };
    char name[64], shape[64], length[16];
    double seconds[TIMES];
    snprintf(name, sizeof name, "prefill.%s.%s", s->name, bench_length(length, n));
    const bool once = n > USUAL;
    if (n > s->most || !(once ? named(b, name) : bench_wanted(b, name)))
        return true;
    int times = once ? 1 : b->o->brief || n > 512 ? 3 : TIMES;
    for (int i = once ? 0 : -1; i < times; i++) {
        struct lane lane;
        uint64_t t0 = clock_ns();
        bool ok = bench_prompted(b, s, &lane, n, 0, e) && b->dev.k->sync(b->dev.d, e);
        if (i >= 0)
            seconds[i] = (double)(clock_ns() - t0) * 1e-9;
        lane_free(&s->runtime, &lane);
        if (!ok)
            return err_prefix(e, "%s", name);
    }
    struct timing t = bench_timing(seconds, times, 1);
    double flops = prompt_flops(&s->l.model, n);
    double peer_ms = once ? 0 : s->peer_ms[n > 512];
    snprintf(shape, sizeof shape, "chunks of %d, %.0f tok/s%s", s->chunk, n / t.ms * 1e3,
             peer_ms > 0 ? ", R: of cublas" : "");
    bench_tell_beside(b, name, shape, &t, flops, peer_ms);
    return true;
}

/* ---- whole replies --------------------------------------------------------------------------- */

enum { TALKS = 7 }; /* replies that are timed */

/* One greedy reply of at most 128 tokens on a new lane; seconds without its prompt. */
static bool talk_lane(struct subject *s, const struct ids *prompt, const struct tree_shape *shape,
                      struct lane *lane, int *tokens, int *cycles, double *seconds, struct err *e)
{
    const struct step_limits lim = {128};
    int n = prompt->n;
    *lane = (struct lane){.tap_row = -1};
    ids_cat(&lane->tok, prompt->v, n);
    bool ok = lane_extend(&s->runtime, lane, n, true, shape, shape ? shape->topk : 1, e);
    uint64_t t0 = clock_ns();
    *tokens = *cycles = 0;
    for (; ok && !lane->stopped && *tokens < lim.max_new; ++*cycles) {
        ok = lane_step(&s->runtime, &lane, &lim, 1, shape, e);
        *tokens += ok ? lane->n_new : 0;
    }
    *seconds = (double)(clock_ns() - t0) * 1e-9;
    return ok && (*tokens > 0 || err_set(e, ERR_NEGATIVE, "the reply is empty"));
}

/* A manner of decoding a reply. */
struct manner {
    const char *name;
    const struct tree_shape *shape; /* NULL: plain */
    struct drafter *drafter;        /* NULL: none, unless plain the manner is left out */
    double seconds[TALKS];
    int tokens, cycles;
};
enum { PLAIN, SPEC, NGRAM, N_MANNERS };

/* One reply in a manner; turn < 0: not counted. */
static bool one_reply(struct subject *s, const struct ids *prompt, struct manner *m, int turn,
                      struct err *e)
{
    struct drafter *own = s->runtime.drafter;
    struct lane lane;
    double took;
    s->runtime.drafter = m->drafter;
    bool ok = talk_lane(s, prompt, m->shape, &lane, &m->tokens, &m->cycles, &took, e);
    lane_free(&s->runtime, &lane);
    s->runtime.drafter = own;
    if (ok && turn >= 0)
        m->seconds[turn] = took;
    return ok;
}

static struct timing tell_talk(struct bench *b, struct subject *s, const char *name,
                               const struct ids *prompt, struct manner *m, int times)
{
    char text[64];
    struct timing t = bench_timing(m->seconds, times, m->tokens);
    snprintf(text, sizeof text, "ms a token of %d, %.2f tokens a step", m->tokens,
             (double)m->tokens / m->cycles);
    /* one row a token: its pass in the middle of the reply; a drafted one depends on the text */
    double bytes =
        m->shape ? 0 : bench_pass_bytes(b, &s->runtime, 1, prompt->n + m->tokens / 2, NULL);
    bench_tell(b, name, text, &t, &(struct figure){bytes, 0, 1e3 / t.ms, "tok/s"});
    return t;
}

/* Replies to one prompt in all manners, alternating, so that other load on the machine affects all
 * alike. */
static bool talk(struct bench *b, struct subject *s, const char *group, const struct ids *prompt,
                 struct manner *m, struct err *e)
{
    char name[N_MANNERS][64];
    bool wanted[N_MANNERS], ok = true;
    int times = b->o->brief ? 3 : TALKS;
    for (int i = 0; i < N_MANNERS; i++) {
        snprintf(name[i], sizeof name[i], "%s.%s.%s", group, s->name, m[i].name);
        wanted[i] = bench_wanted(b, name[i]) && (m[i].drafter || !m[i].shape);
    }
    for (int turn = -1; turn < times; turn++)
        for (int i = 0; i < N_MANNERS && ok; i++)
            ok = !wanted[i] || one_reply(s, prompt, &m[i], turn, e) || err_prefix(e, "%s", name[i]);
    for (int i = 0; i < N_MANNERS && ok; i++)
        if (wanted[i]) {
            struct timing t = tell_talk(b, s, name[i], prompt, &m[i], times);
            if (strcmp(group, "chat") == 0 && i != NGRAM)
                s->chat_ms[i == SPEC] = t.ms;
        }
    return ok;
}

/* The question, its plain reply, and the question again. */
static bool ask_again(struct subject *s, const struct ids *prompt, struct message question,
                      struct ids *again, struct err *e)
{
    struct lane lane;
    static char nothing[] = "";
    struct message m[3] = {question, {.role = ROLE_ASSISTANT, .text = nothing}, question};
    bool ok = talk_lane(s, prompt, NULL, &lane, &(int){0}, &(int){0}, &(double){0}, e);
    if (ok)
        ids_cat(&m[1].ids, lane.tok.v + prompt->n, lane.tok.n - prompt->n);
    ok = ok && chat_render(s->l.chat, m, 3, again, e);
    ids_free(&m[1].ids);
    lane_free(&s->runtime, &lane);
    return ok;
}

static bool talks(struct bench *b, struct subject *s, struct err *e)
{
    if (s->synthetic || (!bench_wanted_any(b, "chat.") && !bench_wanted_any(b, "again.")))
        return true;
    struct settings set;
    settings_init(&set);
    const struct tree_shape shape = {set.steps, set.topk, set.nodes};
    static char text[] = BENCH_QUESTION;
    const struct message question = {.role = ROLE_USER, .text = text};
    FREED(ids_free) struct ids prompt = {0}, again = {0};
    struct draft lookup = {.kind = "ngram"};
    struct drafter *ngram = drafter_open(&(struct drafter_setup){.w = &lookup}, e);
    bool ok = ngram != NULL;
    struct manner m[N_MANNERS] = {{.name = "plain"},
                                  {.name = "spec", .shape = &shape, .drafter = s->runtime.drafter},
                                  {.name = "ngram", .shape = &shape, .drafter = ngram}};
    s->runtime.n_stop = s->l.n_stop; /* the other lines have no end but their length */
    ok = ok && chat_render(s->l.chat, &question, 1, &prompt, e) &&
         talk(b, s, "chat", &prompt, m, e) && ask_again(s, &prompt, question, &again, e) &&
         talk(b, s, "again", &again, m, e);
    s->runtime.n_stop = 0;
    drafter_close(ngram);
    return ok;
}

/* ---- in order -------------------------------------------------------------------------------- */

bool bench_cycles(struct bench *b, struct subject *s, struct err *e)
{
    static const struct {
        struct tree_shape shape;
        double accepted;
    } cycles[] = {{{2, 1, 3}, 2.35}, {{3, 1, 4}, 2.35}, {{7, 1, 8}, 4.0}, {{5, 8, 60}, 4.0}};
    bool brief = b->o->brief, ok = plain(b, s, e);
    for (int i = 0; i < (int)LEN(cycles) && ok; i++)
        ok = (brief && i != 1) || cycle(b, s, cycles[i].shape, cycles[i].accepted, e);
    ok = ok && prefill(b, s, 512, e);
    if (!brief || b->graphs)
        ok = ok && prefill(b, s, 4096, e) && prefill(b, s, 131072, e);
    return ok && talks(b, s, e);
}
