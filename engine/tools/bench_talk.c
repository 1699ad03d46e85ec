/* bench_talk.c - the time that the program around a cycle adds to a reply: the engine's thread and
 * its queue of events, then the log and the two faces. See bench_model.h.
 *
 * repl.itl is the time between two tokens as a caller of engine.h sees it; repl.lines and repl.tui
 * are the engine's own time for a token while the plain mode or the full screen runs. R of repl.itl
 * and repl.lines is the time of the same run's chat lines (nothing but cycles) over theirs, R of
 * repl.tui that of repl.lines.
 */
#include "engine/tools/bench_model.h"

#include "engine/engine.h"
#include "kernels/sort.h"

enum { REPLIES = 6, MOST_GAPS = 2048, TOKENS = 128 };

/* ---- between two tokens ---------------------------------------------------------------------- */

struct gaps {
    double s[MOST_GAPS]; /* seconds a token */
    int n;
};

static bool ask(struct backend *backend, enum request_kind kind, const char *text, struct err *e)
{
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL};
    if (kind == RQ_NEW)
        snprintf(rq.session, sizeof rq.session, "bench");
    return backend_submit(backend, &rq, e);
}

/* The tokens of a cycle share the time since the event of the cycle before. */
static void add_gap(struct gaps *all, uint64_t ns, int tokens)
{
    for (int i = 0; i < tokens && all->n < MOST_GAPS; i++)
        all->s[all->n++] = (double)ns * 1e-9 / tokens;
}

static bool listen(struct backend *backend, struct gaps *all, struct err *e)
{
    struct event ev;
    uint64_t last = 0;
    for (bool done = false; !done;) {
        if (!backend_wait(backend, &ev, 60000))
            return err_set(e, ERR_MODEL, "the engine is silent");
        uint64_t now = clock_ns();
        if (ev.kind == EV_STEP && ev.tokens.n > 0) {
            if (last && all)
                add_gap(all, now - last, ev.tokens.n);
            last = now;
        }
        done = ev.kind == EV_TURN_END;
        bool failed = ev.kind == EV_FAULT;
        if (failed)
            err_set(e, ERR_MODEL, "%.*s", (int)ev.text.n, ev.text.p);
        event_free(&ev);
        if (failed)
            return false;
    }
    return true;
}

static void tell_gaps(struct bench *b, const char *name, struct gaps *all, double chat_ms)
{
    char text[80];
    sort_up(all->s, all->n);
    double p50 = all->s[all->n / 2] * 1e3, p99 = all->s[all->n * 99 / 100] * 1e3, sum = 0;
    for (int i = 0; i < all->n; i++)
        sum += all->s[i] * 1e3;
    struct timing t = bench_timing(all->s, all->n, 1);
    snprintf(text, sizeof text, "p50; p99 %.4f ms, %.2f x p50; mean %.4f ms", p99, p99 / p50,
             sum / all->n);
    bench_tell_ratio(b, name, text, &t, 1e3 / t.ms, chat_ms);
}

static bool itl(struct bench *b, const struct subject *s, bool draft, struct err *e)
{
    char name[64];
    snprintf(name, sizeof name, "repl.itl.%s.%s", s->name, draft ? "spec" : "plain");
    if (!bench_wanted(b, name))
        return true;
    struct engine_opts opts = b->o->engine;
    if (!draft)
        opts.draft = NULL;
    settings_init(&opts.settings);
    opts.settings.temperature = 0;
    opts.settings.max_tokens = TOKENS;
    opts.settings.spec = draft;
    struct backend *backend = engine_open(&opts, e);
    FREED(free_at) struct gaps *all = xcalloc(1, sizeof *all);
    bool ok = backend != NULL;
    for (int i = 0; i <= REPLIES && ok; i++) /* the first is not counted */
        ok = ask(backend, RQ_NEW, NULL, e) && ask(backend, RQ_SAY, BENCH_QUESTION, e) &&
             listen(backend, i ? all : NULL, e);
    backend_close(backend);
    if (ok && all->n > 0)
        tell_gaps(b, name, all, s->chat_ms[draft]);
    return ok || err_prefix(e, "%s", name);
}

/* ---- the whole program ----------------------------------------------------------------------- */

/* A face's replies of two rounds: milliseconds a token, summed up by reply. */
struct talk_shown {
    double ms[2 * BENCH_REPLIES];
    int n, tokens;
    size_t bytes;
};

static bool hear(struct bench *b, bool screen, bool draft, struct talk_shown *all, struct err *e)
{
    struct bench_replies r;
    if (!b->o->face(b->o->arg, screen, draft, &r, e))
        return false;
    for (int i = 0; i < r.n; i++) {
        all->ms[all->n++] = r.ms[i] / max_int(1, r.tokens[i]) * 1e-3;
        all->tokens += r.tokens[i];
    }
    all->bytes += r.shown;
    return true;
}

static double tell_face(struct bench *b, const char *name, struct talk_shown *all, const char *what,
                        double other_ms)
{
    char text[96];
    struct timing t = bench_timing(all->ms, all->n, 1);
    snprintf(text, sizeof text, "ms a token in %d replies, %s, %.0f bytes a token", t.runs, what,
             (double)all->bytes / max_int(1, all->tokens));
    bench_tell_ratio(b, name, text, &t, 1e3 / t.ms, other_ms);
    return t.ms;
}

/* Lines and screen alternate, so that other load on the machine affects both alike; twice, in the
 * short form once. */
static bool faces(struct bench *b, const struct subject *s, bool draft, struct err *e)
{
    const char *how = draft ? "spec" : "plain";
    char lines[64], tui[64];
    struct talk_shown all[2] = {{.n = 0}, {.n = 0}};
    snprintf(lines, sizeof lines, "repl.lines.%s.%s", s->name, how);
    snprintf(tui, sizeof tui, "repl.tui.%s.%s", s->name, how);
    if (!b->o->face || (!bench_wanted(b, lines) && !bench_wanted(b, tui)))
        return true;
    for (int i = 0; i < (b->o->brief ? 2 : 4); i++)
        if (!hear(b, i % 2, draft, &all[i % 2], e))
            return err_prefix(e, "%s", i % 2 ? tui : lines);
    double ms = tell_face(b, lines, &all[0], "logged", s->chat_ms[draft]);
    tell_face(b, tui, &all[1], "logged, 120x40 at 30 Hz", ms);
    return true;
}

bool bench_talk(struct bench *b, struct subject *s, struct err *e)
{
    if (b->o->synthetic || !b->o->engine.model || !bench_wanted_any(b, "repl."))
        return true;
    s->name = b->o->model_name;
    bool drafts = b->o->engine.draft != NULL;
    return itl(b, s, false, e) && (!drafts || itl(b, s, true, e)) && faces(b, s, false, e) &&
           (!drafts || faces(b, s, true, e));
}
