/* hazards.c - see hazards.h. */
#include "history/evidence/hazards.h"

#include "history/internal.h"
#include "kernels/lines.h"

void hazard_print(const char *number, const char *state, struct buf *out)
{
    if (!number)
        buf_str(out, "CHECK OFF");
    else if (strcmp(state, "on") == 0)
        buf_printf(out, "BUG %s", number);
    else
        buf_printf(out, "BUG %s %s", number, state);
}

/* Calls fn with the number and the state of each fault among the lines, in the order of the lines,
 * then, with number NULL, if the checker is off. */
static void each_hazard(const char *lines,
                        void (*fn)(void *arg, const char *number, const char *state), void *arg)
{
    bool off = false;
    FOR_LINES(l, lines) {
        char line[96], *value = NULL;
        snprintf(line, sizeof line, "%.*s", (int)min_int((int)l.n, (int)sizeof line - 1), l.p);
        value = strchr(line, '=');
        if (!value)
            continue;
        *value++ = '\0';
        if (!strncmp(line, "bug.", 4) && strcmp(value, "off") != 0)
            fn(arg, line + 4, value);
        else if (!strcmp(line, "check") && !strcmp(value, "off"))
            off = true;
    }
    if (off)
        fn(arg, NULL, NULL);
}

struct hazard_list {
    struct buf *out;
    const char *between;
    int n;
};

static void add_name(void *arg, const char *number, const char *state)
{
    struct hazard_list *l = arg;
    buf_str(l->out, l->n++ ? l->between : "");
    hazard_print(number, state, l->out);
}

bool hazards_of_settings(const char *lines, const char *between, struct buf *out)
{
    struct hazard_list l = {out, between, 0};
    each_hazard(lines, add_name, &l);
    return l.n > 0;
}

/* ---- over a session -------------------------------------------------------------------------- */

struct hazard {
    struct buf name;
    bool unchecked;   /* it is the checker */
    struct buf turns; /* "2-4, 7": the ranges of turns before the last one */
    int first, last;  /* the last range */
    int64_t steps;
};

struct hazards {
    struct hazard *v;
    int n, turn;
    int64_t steps; /* of the turn */
};

/* Appends the last range to the list of ranges. */
static void end_range(struct hazard *h)
{
    buf_printf(&h->turns, "%s%d", h->turns.n ? ", " : "", h->first);
    if (h->last > h->first)
        buf_printf(&h->turns, "-%d", h->last);
}

static void count_turn(void *arg, const char *number, const char *state)
{
    struct hazards *all = arg;
    struct hazard *h = NULL;
    FREED(buf_free) struct buf name = {0};
    hazard_print(number, state, &name);
    for (int i = 0; i < all->n && !h; i++)
        h = strcmp(all->v[i].name.p, name.p) ? NULL : &all->v[i];
    if (!h) {
        h = APPEND(all->v, all->n);
        *h = (struct hazard){name, !number, .first = all->turn, .last = all->turn};
        name = (struct buf){0};
    } else if (all->turn > h->last + 1) {
        end_range(h);
        h->first = all->turn;
    }
    h->last = all->turn;
    h->steps += all->steps;
}

static void print_hazard(struct hazard *h, bool turns, struct buf *out)
{
    buf_str(out, h->name.p);
    if (!turns)
        return;
    end_range(h);
    bool several = strpbrk(h->turns.p, "-,") != NULL;
    buf_printf(out, " in turn%s %s", several ? "s" : "", h->turns.p);
    if (h->unchecked)
        buf_printf(out, " (%lld step%s unchecked)", (long long)h->steps, h->steps == 1 ? "" : "s");
}

static int compare_hazards(const void *x, const void *y)
{
    const struct hazard *a = x, *b = y;
    return strcmp(a->name.p, b->name.p);
}

bool hdb_hazards(struct hdb *d, const char *session, bool turns, const char *between,
                 struct buf *out, struct err *e)
{
    /* UNION, not UNION ALL, ends the recursion if damaged rows name each other as parents */
    sqlite3_stmt *st = db_prepare(&d->db, e, "WITH RECURSIVE up(id, upto) AS"
        " (VALUES(?, 1 << 31) UNION SELECT parent, fork_turn FROM session JOIN up USING(id)"
        "  WHERE parent NOT NULL)"
        " SELECT u.n, u.sampling, r.n_steps FROM up JOIN turn u ON u.session_id = up.id"
        "  AND u.role = 'user' AND u.n <= up.upto"
        " LEFT JOIN turn r ON r.session_id = u.session_id AND r.n = u.n AND r.role = 'reply'"
        " WHERE instr(u.sampling, 'bug.') OR instr(u.sampling, 'check=off') ORDER BY u.n",
        "s", session);
    struct hazards all = {0};
    struct db_rows rows = db_rows(&d->db, st, "cannot read turns", e);
    while (db_next(&rows)) {
        all.turn = sqlite3_column_int(st, 0);
        all.steps = sqlite3_column_int64(st, 2);
        each_hazard((const char *)sqlite3_column_text(st, 1), count_turn, &all);
    }
    if (all.n)
        qsort(all.v, (size_t)all.n, sizeof *all.v, compare_hazards);
    for (int i = 0; i < all.n; i++) {
        buf_str(out, i ? between : "");
        print_hazard(&all.v[i], turns, out);
        buf_free(&all.v[i].name);
        buf_free(&all.v[i].turns);
    }
    free(all.v);
    return rows.ok;
}
