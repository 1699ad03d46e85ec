/* draft.c - the commands about drafting: trees, acceptance, and where a step's time goes. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "repl/cmd/cmd.h"

/* ---- /tree ----------------------------------------------------------------------------------- */

/* A step to find, and what was found. */
struct found_step {
    int turn, n;
    bool any, drafted; /* the log has the step; it drafted */
    struct tree tree;
    int32_t bonus; /* -1: unknown */
};

/* "9.214", or "214" of the current turn. */
static bool step_parse(const struct app *a, const char *s, int *turn, int *step, struct err *e)
{
    int used = 0, t = a->turn, n = 0;
    bool ok = strspn(s, "0123456789.") == strlen(s) && strlen(s) < 18;
    if (ok && strchr(s, '.'))
        ok = sscanf(s, "%d.%d%n", &t, &n, &used) == 2 && !s[used];
    else
        ok = ok && sscanf(s, "%d%n", &n, &used) == 1 && !s[used];
    if (!ok || t < 1 || n < 1)
        return err_set(e, ERR_USAGE,
                       "a step is written TURN.STEP, for example 9.214, or STEP of this "
                       "turn, not \"%.40s\"", s);
    *turn = t;
    *step = n;
    return true;
}

static bool find_logged_step(const struct step_row *r, void *arg)
{
    struct found_step *f = arg;
    if (r->n != f->n)
        return true;
    f->any = true;
    f->drafted = r->rec.drafted > 0;
    f->bonus = r->rec.bonus;
    if (r->tree)
        f->tree = *r->tree;
    return false;
}

/* The session whose log holds the turn: turns before a fork are in the log of a parent. */
static const struct past_part *part_of(const struct hdb_past *p, int turn)
{
    for (int i = 0; i < p->n_part - 1; i++)
        if (turn <= p->part[i].upto)
            return &p->part[i];
    return &p->part[p->n_part - 1];
}

/* "memory holds the steps 3.1 to 9.2" of the session, in a sentence. */
static void held_steps(const struct step_range *held, struct buf *out)
{
    if (held->n)
        buf_printf(out, "memory holds the steps %d.%d to %d.%d", held->first_turn, held->first_step,
                   held->last_turn, held->last_step);
    else
        buf_str(out, "this process has run no step of it");
}

/* Reads the step from the log. False: the log cannot be read. */
static bool read_step(struct app *a, struct found_step *f, struct err *e)
{
    struct hdb_past p;
    struct hdb *d = app_hdb(a, e);
    if (!d || !hdb_past(d, a->session, INT_MAX, &p, e))
        return false;
    bool ok = hdb_steps(d, part_of(&p, f->turn)->session, f->turn, find_logged_step, f, e) >= 0;
    hdb_past_free(&p);
    return ok;
}

static bool find_logged(struct app *a, const struct step_range *in_memory, struct found_step *f,
                        struct err *e)
{
    struct buf held = {0};
    held_steps(in_memory, &held);
    bool logged = a->history && !a->private_, ok = false;
    if (logged && !read_step(a, f, e))
        ;
    else if (f->tree.n)
        ok = true;
    else if (f->any && !f->drafted)
        err_set(e, ERR_NEGATIVE, "step %d.%d did not draft, so it has no tree", f->turn, f->n);
    else if (f->any)
        err_set(e, ERR_NEGATIVE, "step %d.%d was logged without its tree, and %s; --log-level tree "
                "keeps every tree", f->turn, f->n, held.p);
    else if (logged)
        err_set(e, ERR_NEGATIVE, "neither the log nor memory has a step %d.%d; %s", f->turn, f->n,
                held.p);
    else
        err_set(e, ERR_NEGATIVE, "no step %d.%d: nothing is logged, and %s", f->turn, f->n, held.p);
    buf_free(&held);
    return ok;
}

/* The tree of a step of the session: from memory, else from the log. */
static bool find_step(struct app *a, struct found_step *f, struct err *e)
{
    struct chat_view v;
    struct step_range held;
    struct step_view s;
    backend_chat(a->backend, &v);
    a->backend->trees->range(a->backend, &held);
    if (!held.n && !v.turn)
        return err_set(e, ERR_NEGATIVE, "there is no step yet: send a message first");
    if (held.n &&
        (f->turn > held.last_turn || (f->turn == held.last_turn && f->n > held.last_step)))
        return err_set(e, ERR_NEGATIVE, "there is no step %d.%d yet: %d.%d is the newest", f->turn,
                       f->n, held.last_turn, held.last_step);
    if (!a->backend->trees->of_step(a->backend, f->turn, f->n, &s))
        return find_logged(a, &held, f, e);
    f->tree = s.tree;
    f->bonus = s.rec.bonus;
    return s.tree.n > 0 || err_set(e, ERR_NEGATIVE,
                                   "step %d.%d did not draft, so it has no tree: it "
                                   "was a %s step",
                                   f->turn, f->n, step_kind_name(s.rec.kind));
}

static void found_tree_json(struct app *a, const struct found_step *f, struct buf *json)
{
    const struct tree *t = &f->tree;
    jput_open(json, '{');
    jput_kint(json, "turn", f->turn);
    jput_kint(json, "step", f->n);
    jput_kint(json, "bonus", f->bonus);
    jput_key(json, "nodes");
    jput_open(json, '[');
    for (int i = 0; i < t->n; i++) {
        size_t n;
        const char *text = backend_token(a->backend, t->token[i], &n);
        jput_open(json, '{');
        jput_kint(json, "node", i);
        jput_kint(json, "parent", t->parent[i]);
        jput_kint(json, "depth", t->depth[i]);
        jput_kint(json, "token", t->token[i]);
        jput_key(json, "text");
        jput_strn(json, text, n);
        jput_kreal(json, "q", (double)t->q[i]);
        jput_kreal(json, "p", (double)t->p[i]);
        jput_kreal(json, "u", (double)t->u[i]);
        jput_kstr(json, "fate", fate_name(t->fate[i]));
        jput_close(json, '}');
    }
    jput_close(json, ']');
    jput_close(json, '}');
}

bool cmd_tree(struct app *a, int argc, char **argv, const char *rest, struct sheet *out,
              struct buf *json, struct err *e)
{
    (void)rest;
    struct found_step f = {.bonus = -1};
    struct step_view latest;
    if (argc > 1)
        return arg_expected("tree", "takes at most one step", e);
    if (argc == 1 && !step_parse(a, argv[0], &f.turn, &f.n, e))
        return false;
    if (!app_needs(a, "tree", VIEW_TREES, e))
        return false;
    bool ok = argc == 0 || find_step(a, &f, e);
    if (argc == 0 && app_latest_tree(a, &latest))
        f = (struct found_step){.turn = latest.turn, .n = latest.step, .tree = latest.tree,
                                .bonus = latest.rec.bonus};
    if (ok && json)
        found_tree_json(a, &f, json);
    else if (ok)
        view_tree(a->backend, &f.tree, f.turn, f.n, f.bonus, a->face.width, out);
    return ok;
}

/* ---- /accept --------------------------------------------------------------------------------- */

/* Sums over the speculative cycles of a turn, or of a range of context lengths. */
struct group {
    int first, last;
    uint64_t cycles, drafted, accepted;
};
enum { MAX_GROUPS = 4096 };
struct groups {
    bool by_turn;
    struct group *v;
    int n;
};

/* Ranges double in length: 0-63, 64-127, 128-255, ... */
static void context_range(int pos, int *first, int *last)
{
    *first = 0;
    *last = 63;
    while (pos > *last) {
        *first = *last + 1;
        *last = 2 * *last + 1;
    }
}

static void group_add(struct groups *g, int turn, const struct step_rec *r)
{
    if (r->kind != STEP_SPEC)
        return;
    int first = turn, last = turn, i = 0;
    if (!g->by_turn)
        context_range(r->pos0, &first, &last);
    while (i < g->n && g->v[i].first < first)
        i++;
    if (i == g->n || g->v[i].first != first) {
        if (g->n == MAX_GROUPS)
            return;
        g->v = xrealloc(g->v, (size_t)g->n + 1, sizeof *g->v);
        memmove(g->v + i + 1, g->v + i, (size_t)(g->n - i) * sizeof *g->v);
        g->v[i] = (struct group){.first = first, .last = last};
        g->n++;
    }
    g->v[i].cycles++;
    g->v[i].drafted += (uint64_t)r->drafted;
    g->v[i].accepted += (uint64_t)r->accepted;
}

static bool group_step(const struct step_row *r, void *arg)
{
    group_add(arg, r->turn, &r->rec);
    return true;
}

/* From the log where there is one, else from the steps in memory. */
static bool group_all(struct app *a, struct groups *g, const char **source, struct err *e)
{
    *source = "of this session, from the log";
    if (a->history && !a->private_) {
        struct hdb *d = app_hdb(a, e);
        return d && hdb_steps(d, a->session, 0, group_step, g, e) >= 0;
    }
    struct step_info *step = xmalloc(STEPS_KEPT * sizeof *step);
    int n = a->backend->steps->latest(a->backend, step, STEPS_KEPT);
    for (int i = 0; i < n; i++)
        group_add(g, step[i].turn, &step[i].rec);
    free(step);
    *source = "of the steps in memory (nothing is logged)";
    return true;
}

static void groups_text(const struct groups *g, const char *source, struct sheet *out)
{
    sheet_add(out, ST_HEAD, "ACCEPT");
    sheet_printf(out, ST_TEXT, "  by %s, %s", g->by_turn ? "turn" : "context", source);
    sheet_line(out);
    say_line(out, ST_HEAD, "%15s %8s %8s %9s %6s %6s", g->by_turn ? "turn" : "context", "cycles",
             "drafted", "accepted", "rate", "MAL");
    for (int i = 0; i < g->n; i++) {
        const struct group *p = &g->v[i];
        char name[32];
        snprintf(name, sizeof name, g->by_turn ? "%d" : "%d-%d", p->first, p->last);
        say_line(out, ST_TEXT, "%15s %8llu %8llu %9llu %6.2f %6.2f", name,
                 (unsigned long long)p->cycles, (unsigned long long)p->drafted,
                 (unsigned long long)p->accepted,
                 p->drafted ? (double)p->accepted / (double)p->drafted : 0,
                 1 + (double)p->accepted / (double)p->cycles);
    }
    say_line(out, ST_DIM,
             g->n ? "MAL = 1 + accepted/cycles, bonus included" : "nothing drafted yet");
}

static void groups_json(const struct groups *g, struct buf *json)
{
    jput_open(json, '[');
    for (int i = 0; i < g->n; i++) {
        const struct group *p = &g->v[i];
        jput_open(json, '{');
        jput_kint(json, g->by_turn ? "turn" : "from", p->first);
        if (!g->by_turn)
            jput_kint(json, "to", p->last);
        jput_kint(json, "cycles", (int64_t)p->cycles);
        jput_kint(json, "drafted", (int64_t)p->drafted);
        jput_kint(json, "accepted", (int64_t)p->accepted);
        jput_kreal(json, "mal", 1 + (double)p->accepted / (double)p->cycles);
        jput_close(json, '}');
    }
    jput_close(json, ']');
}

static void depths_json(const struct chat_view *v, struct buf *json)
{
    jput_open(json, '[');
    for (int d = 1; d < TREE_MAX && v->depth[d].drafted > 0; d++) {
        jput_open(json, '{');
        jput_kint(json, "depth", d);
        jput_kint(json, "cycles", (int64_t)v->cycles);
        jput_kint(json, "drafted", (int64_t)v->depth[d].drafted);
        jput_kint(json, "accepted", (int64_t)v->depth[d].accepted);
        jput_close(json, '}');
    }
    jput_close(json, ']');
}

bool cmd_accept(struct app *a, int argc, char **argv, const char *rest, struct sheet *out,
                struct buf *json, struct err *e)
{
    (void)rest;
    static const char *const by[] = {"depth", "turn", "context"};
    int how = 0;
    if (argc > 1)
        return arg_expected("accept", "takes at most one of depth, turn and context", e);
    if (argc == 1 && (how = arg_choice(argv[0], "the grouping", by, 3, e)) < 0)
        return false;
    if (!app_needs(a, "accept", VIEW_ACCEPT, e))
        return false;
    if (how == 0) {
        struct chat_view v;
        backend_chat(a->backend, &v);
        if (json)
            depths_json(&v, json);
        else
            view_accept(&v, view_width(a), out);
        return true;
    }
    if (!app_needs(a, "accept", VIEW_STEPS, e))
        return false;
    struct groups g = {.by_turn = how == 1};
    const char *source;
    bool ok = group_all(a, &g, &source, e);
    if (ok && json)
        groups_json(&g, json);
    else if (ok)
        groups_text(&g, source, out);
    free(g.v);
    return ok;
}

/* ---- /timing --------------------------------------------------------------------------------- */

enum { PHASES = 4, TIMED = 256 };
static const char *const phase_name[PHASES] = {"draft", "verify", "commit", "check"};

/* The latest steps of the session. */
struct timed {
    struct step_info step[TIMED];
    int n;
};

/* The times of one phase in the steps of one kind, sorted. */
struct times {
    uint32_t us[TIMED];
    int n;
};

static int by_time(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

static void times_of(const struct timed *all, enum step_kind kind, int phase, struct times *t)
{
    t->n = 0;
    for (int i = 0; i < all->n; i++) {
        const struct step_rec *r = &all->step[i].rec;
        const uint32_t us[PHASES] = {r->us_draft, r->us_verify, r->us_commit, r->us_check};
        if (r->kind == kind)
            t->us[t->n++] = us[phase];
    }
    if (t->n)
        qsort(t->us, (size_t)t->n, sizeof *t->us, by_time);
}

static void timing_json(const struct timed *a, struct buf *json)
{
    struct times t;
    jput_open(json, '[');
    for (int k = STEP_PREFILL; k <= STEP_SPEC; k++)
        for (int p = 0; p < PHASES; p++) {
            times_of(a, (enum step_kind)k, p, &t);
            if (t.n == 0)
                continue;
            jput_open(json, '{');
            jput_kstr(json, "kind", step_kind_name((enum step_kind)k));
            jput_kstr(json, "phase", phase_name[p]);
            jput_kint(json, "steps", t.n);
            jput_kint(json, "median_us", t.us[t.n / 2]);
            jput_kint(json, "p90_us", t.us[t.n * 9 / 10]);
            jput_kint(json, "max_us", t.us[t.n - 1]);
            jput_close(json, '}');
        }
    jput_close(json, ']');
}

static void timing_text(const struct timed *a, struct sheet *out)
{
    struct times t;
    sheet_add(out, ST_HEAD, "TIMING");
    sheet_printf(out, ST_TEXT, "  the latest %d step%s, microseconds: median, p90, longest", a->n,
                 a->n == 1 ? "" : "s");
    sheet_line(out);
    for (int k = STEP_PREFILL; k <= STEP_SPEC; k++)
        for (int p = 0; p < PHASES; p++) {
            times_of(a, (enum step_kind)k, p, &t);
            if (t.n == 0)
                break;
            if (p == 0)
                say_line(out, ST_LABEL, "%s, %d step%s", step_kind_name((enum step_kind)k), t.n,
                         plural(t.n));
            say_line(out, ST_TEXT, "  %-8s %8u %8u %8u", phase_name[p], t.us[t.n / 2],
                     t.us[t.n * 9 / 10], t.us[t.n - 1]);
        }
    if (a->n == 0)
        say_line(out, ST_DIM, "no step yet");
}

bool cmd_timing(struct app *a, int argc, char **argv, const char *rest, struct sheet *out,
                struct buf *json, struct err *e)
{
    (void)argc, (void)argv, (void)rest;
    struct timed t;
    if (!app_needs(a, "timing", VIEW_STEPS, e))
        return false;
    t.n = a->backend->steps->latest(a->backend, t.step, TIMED);
    if (json)
        timing_json(&t, json);
    else
        timing_text(&t, out);
    return true;
}
