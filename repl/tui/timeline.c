/* timeline.c - see timeline.h. */
#include "repl/tui/timeline.h"

void timeline_free(struct timeline *t)
{
    int cells = t->cells;
    FREE(t->at, t->cell);
    *t = (struct timeline){.cells = cells};
}

/* ---- cells ---- */

static int fit_unit(const struct timeline *t)
{
    return max_int(div_up(max_int(t->n, 1), max_int(t->cells, 1)), 1);
}

static void sum_up(struct timeline *t, int i)
{
    struct moment_sum *c = &t->cell[i / t->unit];
    const struct moment *m = &t->at[i];
    c->steps++;
    c->marks |= m->marks;
    c->cycles += m->kind == STEP_SPEC;
    c->accepted += m->kind == STEP_SPEC ? m->accepted : 0;
    t->most = max_int(t->most, m->accepted);
}

/* Sums the cells up again from the one of index i on. */
static void sum_from(struct timeline *t, int i)
{
    int first = i / t->unit, used = timeline_used(t);
    RESERVE(t->cell, used, t->cap_cell);
    for (int c = first; c < used; c++)
        t->cell[c] = (struct moment_sum){0};
    for (int k = first * t->unit; k < t->n; k++)
        sum_up(t, k);
}

int timeline_used(const struct timeline *t)
{
    return t->n ? div_up(t->n, max_int(t->unit, 1)) : 0;
}

void timeline_fit(struct timeline *t, int cells)
{
    t->cells = max_int(cells, 1);
    int unit = fit_unit(t);
    if (unit == t->unit)
        return;
    t->unit = unit;
    sum_from(t, 0);
}

int timeline_cell_of(const struct timeline *t, int i)
{
    return i / max_int(t->unit, 1);
}

int timeline_step_of(const struct timeline *t, int cell)
{
    if (t->n == 0)
        return -1;
    int last = (max_int(cell, 0) + 1) * max_int(t->unit, 1) - 1;
    return min_int(last, t->n - 1);
}

const char *timeline_cell(const struct timeline *t, int cell, bool ascii, enum style *st,
                          bool *underline)
{
    static const char *const block[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const digit[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
    const struct moment_sum *c = &t->cell[cell];
    *underline = c->marks & MARK_WINDOW;
    *st = c->marks & MARK_FAULT ? ST_BAD : c->marks & (MARK_PAUSE | MARK_EVICT) ? ST_WARN : ST_DIM;
    if (c->marks & MARK_FAULT)
        return ascii ? "!" : "✗";
    if (c->marks & MARK_PAUSE)
        return ascii ? "*" : "●";
    if (c->marks & MARK_EVICT)
        return ascii ? "e" : "◇";
    if (c->marks & MARK_TURN)
        return ascii ? "|" : "│";
    if (c->cycles == 0)
        return ascii ? "." : "·";
    *st = ST_GOOD;
    /* a cell of several steps shows the mean */
    int mean = (c->accepted + c->cycles / 2) / c->cycles;
    return ascii ? digit[min_int(mean, 9)] : block[t->most > 7 ? mean * 7 / t->most : mean];
}

/* ---- moments ---- */

static bool before(const struct moment *m, int turn, int step)
{
    return m->turn != turn ? m->turn < turn : m->step < step;
}

/* The index of the first step that is not before this one. */
static int bound(const struct timeline *t, int turn, int step)
{
    return FIRST_NOT(i, t->n, before(&t->at[i], turn, step));
}

int timeline_find(const struct timeline *t, int turn, int step)
{
    int i = bound(t, turn, step);
    bool here = i < t->n && t->at[i].turn == turn && t->at[i].step == step;
    return here ? i : i - 1;
}

static void truncate_to(struct timeline *t, int n)
{
    if (n >= t->n)
        return;
    t->n = n;
    t->most = 0;
    t->unit = fit_unit(t);
    sum_from(t, 0);
}

void timeline_cut(struct timeline *t, int turn)
{
    truncate_to(t, bound(t, turn + 1, 0));
}

void timeline_add(struct timeline *t, struct moment m)
{
    truncate_to(t, bound(t, m.turn, m.step));
    if (t->n == 0 || t->at[t->n - 1].turn != m.turn)
        m.marks |= MARK_TURN;
    *APPEND(t->at, t->n) = m;
    bool grown = fit_unit(t) != t->unit;
    t->unit = fit_unit(t);
    sum_from(t, grown ? 0 : t->n - 1);
}

void timeline_mark(struct timeline *t, int turn, int step, int marks)
{
    int i = timeline_find(t, turn, step);
    if (i < 0)
        return;
    t->at[i].marks |= (uint8_t)marks;
    t->cell[i / t->unit].marks |= (uint8_t)marks;
}

int timeline_turn(const struct timeline *t, int i, int by)
{
    if (t->n == 0)
        return -1;
    i = max_int(min_int(i, t->n - 1), 0);
    int first = bound(t, t->at[i].turn, 0);
    if (by > 0) {
        int next = bound(t, t->at[i].turn + 1, 0);
        return next < t->n ? next : t->n - 1;
    }
    return i > first ? first : first > 0 ? bound(t, t->at[first - 1].turn, 0) : 0;
}
