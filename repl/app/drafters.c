/* drafters.c - see drafters.h. */
#include "repl/app/drafters.h"

#include <limits.h>

#include "repl/compare/facts.h"

static int find_drafter(struct drafters *d, const char *name)
{
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->v[i].name, name))
            return i;
    *APPEND(d->v, d->n) = (struct drafter_use){.name = xstrdup(name)};
    return d->n - 1;
}

/* One session's rows while they are put together. */
struct reading {
    struct drafters *d;
    struct {
        int64_t order;
        int who;
    } *run;
    int n_run;
    int upto; /* its turns up to this one */
};

static bool take_run(const struct run_row *r, void *arg)
{
    struct reading *x = arg;
    FREED(free_at) char *draft = facts_value(r->about, "draft_dir");
    MAKE_ROOM(x->run, x->n_run);
    x->run[x->n_run].order = r->order;
    x->run[x->n_run++].who = find_drafter(x->d, draft && *draft ? draft : "none");
    return true;
}

static void add_turn(struct drafters *d, int turn, int who)
{
    struct drafter_use *u = &d->v[who];
    u->first = u->first ? u->first : turn;
    u->last = turn;
    if (d->n_from && d->from[d->n_from - 1].who == who)
        return;
    MAKE_ROOM(d->from, d->n_from);
    d->from[d->n_from].turn = turn;
    d->from[d->n_from++].who = who;
}

static bool take_turn(const struct turn_row *r, void *arg)
{
    struct reading *x = arg;
    int k = x->n_run - 1;
    if (!r->is_user || r->n > x->upto)
        return true;
    while (k > 0 && x->run[k].order > r->order)
        k--;
    if (k >= 0)
        add_turn(x->d, r->n, x->run[k].who);
    return true;
}

/* Parents come first, each up to the fork. */
static void read_session(struct drafters *d, struct hdb *db, const char *id, int upto, int depth)
{
    enum { DEEPEST = 1000 };
    FREED(session_row_free) struct session_row row = {0};
    struct reading x = {.d = d, .upto = upto};
    struct err e;
    if (depth > DEEPEST || !hdb_find(db, id, &row, &e))
        return;
    if (row.parent[0])
        read_session(d, db, row.parent, min_int(upto, row.fork_turn), depth + 1);
    if (hdb_runs(db, row.id, take_run, &x, &e) > 0)
        hdb_turns(db, row.id, 0, take_turn, &x, &e);
    free(x.run);
}

void drafters_read(struct drafters *d, struct app *a)
{
    struct err e;
    const char *now = backend_info(a->backend)->draft_dir;
    bool logged = app_recording(a) || (a->history && !a->private_);
    struct hdb *db = logged ? app_hdb(a, &e) : NULL;
    *d = (struct drafters){0};
    if (db)
        read_session(d, db, a->session, INT_MAX, 0);
    if (!app_recording(a))
        find_drafter(d, now ? now : "none");
    if (!d->n)
        find_drafter(d, "none");
}

int drafter_of(const struct drafters *d, int turn)
{
    int i = d->n_from - 1;
    while (i > 0 && d->from[i].turn > turn)
        i--;
    return i < 0 ? d->n - 1 : d->from[i].who;
}

static bool add_step(const struct step_view *s, void *arg)
{
    struct drafters *d = arg;
    const struct step_rec *r = &s->rec;
    struct drafter_use *u = &d->v[drafter_of(d, s->turn)];
    if (r->kind == STEP_PREFILL)
        return true;
    draft_report_add(&u->drafts, r, r->accepted);
    u->steps++;
    u->tokens += (uint64_t)r->accepted + 1;
    u->us += (uint64_t)r->us_draft + r->us_verify + r->us_commit;
    return true;
}

void drafters_count(struct drafters *d, struct app *a, char source[STEP_SOURCE])
{
    app_each_step(a, false, add_step, d, source);
}

void drafters_free(struct drafters *d)
{
    for (int i = 0; i < d->n; i++)
        free(d->v[i].name);
    FREE(d->v, d->from);
    *d = (struct drafters){0};
}
