/* mouse.c - a click selects, and the wheel scrolls, the part of the screen under it. Keys do the
 * same. See tui.h. */
#include "repl/cmd/commands.h"
#include "repl/tui/tui.h"

enum { WHEEL_ROWS = 3 };

/* The node that the tree pane shows in row r: it draws depth first. -1: none. */
static int node_of_row(const struct tree *t, int r)
{
    int path[TREE_MAX], n = 0, seen = 0;
    if (t->n > 0)
        path[n++] = 0;
    while (n > 0) {
        int node = path[--n];
        if (seen++ == r)
            return node;
        for (int i = t->n - 1; i > node; i--) /* the last child is pushed first */
            if (t->parent[i] == node)
                path[n++] = i;
    }
    return -1;
}

static void click_tree(struct tui *t, int row)
{
    struct step_view v = {0};
    struct backend *b = t->app->backend;
    int turn, step;
    bool past = app_address(t->app, &turn, &step);
    if (!backend_has(b, VIEW_TREES) ||
        !(past ? app_find_step(t->app, turn, step, &v, NULL) : app_latest_tree(t->app, &v)))
        return;
    int node = node_of_row(&v.tree, row);
    if (node < 1)
        return;
    if (!cmd_find("why", NULL))
        return;
    char line[48];
    snprintf(line, sizeof line, "/why %d.%d.%d", v.turn, v.step, node);
    tui_submit(t, xstrdup(line));
}

static void click_pane(struct tui *t, const struct hit *h)
{
    struct pane *p = &t->pane[t->open[h->pane]];
    int row = h->row - p->head; /* index among the rows that scroll */
    t->focus = h->pane;
    switch (t->open[h->pane]) {
    case PANE_PAGES: tui_pages_click(t, row, h->x); break;
    case PANE_TREE: click_tree(t, row); break;
    case PANE_STEPS:
        if (row >= 0 && t->steps_first + row < t->time.line.n)
            time_go(t, t->steps_first + row);
        break;
    default: break;
    }
    if (t->have_view)
        tui_panes_update(t);
}

static void click_time(struct tui *t, int cell)
{
    bool behind = cell >= timeline_used(&t->time.line);
    t->focus = FOCUS_TIME;
    time_go(t, behind ? -1 : timeline_step_of(&t->time.line, cell));
}

static void wheel(struct tui *t, const struct hit *h, int by)
{
    switch (h->place) {
    case PLACE_OVERLAY: t->over.pane.top = max_int(t->over.pane.top + by * WHEEL_ROWS, 0); break;
    case PLACE_TALK:
        transcript_scroll(&t->talk, by * WHEEL_ROWS,
                          max_int(frame_talk_height(&t->frame, t->w, t->h), 2));
        break;
    case PLACE_TIME: time_go(t, max_int(time_index(t) + by, 0)); break;
    case PLACE_PANE:
        if (t->open[h->pane] == PANE_STEPS)
            time_go(t, max_int(time_index(t) + by, 0));
        else if (t->open[h->pane] == PANE_PAGES)
            tui_pages_move(t, 0, by);
        else
            t->pane[t->open[h->pane]].top = max_int(t->pane[t->open[h->pane]].top + by * WHEEL_ROWS,
                                                    0);
        if (t->have_view)
            tui_panes_update(t);
        break;
    default: break;
    }
}

void tui_mouse(struct tui *t, const struct key *k)
{
    struct hit h = frame_hit(&t->frame, t->w, t->h, k->x, k->y);
    if (k->mouse == MOUSE_WHEEL_UP || k->mouse == MOUSE_WHEEL_DOWN) {
        wheel(t, &h, k->mouse == MOUSE_WHEEL_UP ? -1 : 1);
        return;
    }
    if (k->mouse == MOUSE_DRAG && t->scrubbing && h.place == PLACE_TIME)
        click_time(t, h.x);
    if (k->mouse != MOUSE_DRAG)
        t->scrubbing = k->mouse == MOUSE_PRESS && h.place == PLACE_TIME;
    if (k->mouse != MOUSE_PRESS)
        return;
    switch (h.place) {
    case PLACE_OVERLAY:
        if (t->over.click)
            t->over.click(t, &t->over, h.row);
        tui_overlay_write(t);
        break;
    case PLACE_TALK: word_click(t, h.entry, h.row, h.x); break;
    case PLACE_PANE: click_pane(t, &h); break;
    case PLACE_TIME: click_time(t, h.x); break;
    case PLACE_INPUT: t->focus = FOCUS_INPUT; break;
    default: break;
    }
}
