/* draft.c - the commands about drafting: trees, and where a step's time goes. */

#include "kernels/sort.h"
#include "repl/cmd/cmd.h"
#include "repl/app/served.h"
#include "repl/cmd/views.h"

/* ---- /tree ----------------------------------------------------------------------------------- */

static void found_tree_json(struct app *a, const struct step_view *v, struct buf *json)
{
    const struct tree *t = &v->tree;
    JPUT_IN(json, '{');
    jput_fields(json, "%d{turn}%d{step}%d{bonus:-1}", v->turn, v->step, v->rec.bonus);
    JPUT_KIN(json, "nodes", '[');
    for (int i = 0; i < t->n; i++) {
        size_t n;
        const char *text = backend_token(a->backend, t->token[i], &n);
        jput_record(json, "%d{node}%d{parent}%d{depth}%d{token}%.*s{text}%g{q}%g{p}%g{u}%s{fate}",
                    i, t->parent[i], t->depth[i], t->token[i], (int)n, text, t->q[i], t->p[i],
                    t->u[i], fate_name(t->fate[i]));
    }
}

bool cmd_tree(struct cmd_call *c)
{
    struct app *a = c->app;
    struct step_view v = {.rec.bonus = -1};
    int turn, step;
    if (c->argc == 1 && !arg_step(a, c->argv[0], &turn, &step, NULL, c->e))
        return false;
    bool named = c->argc == 1 || app_address(a, &turn, &step);
    if (!cmd_needs(c, VIEW_TREES))
        return false;
    if (named && (!app_find_step(a, turn, step, &v, c->e) || !step_drafted(&v, c->e)))
        return false;
    if (!named && !app_latest_tree(a, &v))
        v = (struct step_view){.rec.bonus = -1};
    if (c->to.json)
        found_tree_json(a, &v, c->to.json);
    else
        view_tree(a->backend, &v.tree, v.turn, v.step, v.rec.bonus, a->face.width, c->to.out);
    return true;
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

static void times_of(const struct timed *all, enum step_kind kind, int phase, struct times *t)
{
    t->n = 0;
    for (int i = 0; i < all->n; i++) {
        const struct step_rec *r = &all->step[i].rec;
        const uint32_t us[PHASES] = {r->us_draft, r->us_verify, r->us_commit, r->us_check};
        if (r->kind == kind)
            t->us[t->n++] = us[phase];
    }
    sort_times(t->us, t->n);
}

static void show_timing(const struct timed *a, const struct printer *to)
{
    struct times t;
    print_add(to, ST_HEAD, "TIMING");
    print_note(to, ST_TEXT, "  the latest %d step%s, microseconds: median, p90, longest", a->n,
               plural(a->n));
    print_open(to, NULL, '[');
    for (int k = STEP_PREFILL; k <= STEP_SPEC; k++)
        for (int p = 0; p < PHASES; p++) {
            const char *kind = step_kind_name((enum step_kind)k);
            times_of(a, (enum step_kind)k, p, &t);
            if (t.n == 0)
                break;
            if (p == 0)
                print_note(to, ST_LABEL, "%s, %d step%s", kind, t.n, plural(t.n));
            print_line(
                to, ST_TEXT,
                "\f%s{kind}\f  %-8s{phase}\f%d{steps}\f %8u{median_us} %8u{p90_us} %8u{max_us}",
                kind, phase_name[p], t.n, t.us[t.n / 2], t.us[t.n * 9 / 10], t.us[t.n - 1]);
        }
    print_close(to, ']');
    if (a->n == 0)
        print_note(to, ST_DIM, "no step yet");
}

bool cmd_timing(struct cmd_call *c)
{
    struct app *a = c->app;
    struct timed t;
    if (backend_has(a->backend, VIEW_SERVED)) {
        FREED(served_replies_free) struct served_replies r = {0};
        served_replies_read(&r, app_served(a));
        served_timing(&r, &c->to);
        return true;
    }
    if (!cmd_needs(c, VIEW_STEPS))
        return false;
    t.n = app_steps(a, t.step, TIMED);
    show_timing(&t, &c->to);
    return true;
}
