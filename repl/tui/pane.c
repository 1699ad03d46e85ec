/* pane.c - the panes beside the chat: which are open, their contents and their keys. */
#include "repl/tui/tui.h"
#include "repl/app/blocks.h"
#include "repl/app/gauges.h"
#include "repl/app/served.h"
#include "repl/cmd/views.h"
#include "repl/text/args.h"

/* ---- the table of panes ---- */

static void write_tree(struct tui *t, struct pane *p, int width);
/* Whether the replies differ from those that t->served shows; records the present ones. */
static bool served_changed(struct tui *t, int width)
{
    struct step_range r;
    struct served_turn last = {0};
    struct address at = t->app->at;
    struct backend *b = app_served(t->app);
    b->steps->range(b, &r);
    b->served->turns(b, &last, 1);
    bool same = memcmp(&r, &t->served.of, sizeof r) == 0 && t->served.turn == last.turn &&
                t->served.width == width &&
                t->served.at.turn == at.turn && t->served.at.step == at.step;
    t->served.of = r;
    t->served.at = at;
    t->served.turn = last.turn;
    t->served.width = width;
    return !same;
}

/* Writes accepted drafts and times of a server's replies. It is cached, because it sorts the steps
 * of all replies. */
static void write_served(struct tui *t, int width, struct sheet *s)
{
    FREED(served_replies_free) struct served_replies r = {0};
    const struct chat_view *v = &t->now.chat;
    if (!served_changed(t, width)) {
        sheet_append_wrapped(s, &t->served.rows, width);
        return;
    }
    served_replies_read(&r, app_served(t->app));
    FREED(sheet_free) struct sheet text = {.ascii = t->app->ascii};
    if (t->now.has[VIEW_ACCEPT] && v->drafts.depth[1].drafted)
        view_accept(v, true, width, ON_SHEET(&text));
    else if (t->now.has[VIEW_ACCEPT])
        served_accept(&r, ON_SHEET(&text));
    if (t->now.has[VIEW_ACCEPT])
        sheet_line(&text);
    served_timing(&r, ON_SHEET(&text));
    sheet_clear(&t->served.rows);
    sheet_append_wrapped(&t->served.rows, &text, width);
    sheet_append_wrapped(s, &t->served.rows, width);
}

static void write_steps_over_time(struct tui *t, int width, struct sheet *s)
{
    FREED(gauge_series_free) struct gauge_series series = {0};
    if (!t->now.has[VIEW_STEPS])
        return;
    gauge_series_steps(&series, t->app, t->app->at.turn > 0);
    FREED(sheet_free) struct sheet text = {.ascii = t->app->ascii};
    sheet_line(&text);
    view_gauges(&series, 0, width, ON_SHEET(&text));
    sheet_append_wrapped(s, &text, width);
}

static void write_pool(struct tui *t, struct pane *p, int width);
static void write_why(struct tui *t, struct pane *p, int width);

/* A new pane: a value of enum pane_kind, and its row here. */
static const struct {
    const char *title, *name;
    int key;                /* opens and closes the pane */
    enum backend_view view; /* the view of the backend that the pane shows */
    void (*write)(struct tui *t, struct pane *p, int width); /* writes p->rows */
    const char *keys; /* those that mean something else than in other panes */
    const char *command; /* prints the same */
} pane[N_PANE_KINDS] = {
    [PANE_PAGES] = {"PAGES", "pages", K_F2, VIEW_PAGES, tui_pages_write,
                    "arrows         move over the positions; the last lines say where one lies\n"
                    "Home End       the first position, and the newest\n"
                    "click          that position\n", "/pages, /map POS, /page N"},
    [PANE_TREE] = {"TREE", "tree", K_F3, VIEW_TREES, write_tree,
                   "Up Down        scroll; PgUp and PgDn by half a screen; Home End\n"
                   "click          tells why that node was accepted or rejected (/why)\n",
                   "/tree, /tree T.S"},
    [PANE_STEPS] = {"STEPS", "steps", K_F4, VIEW_STEPS, tui_steps_write,
                    "Up Down        show the step before and the one after, in all panes\n"
                    "Home End       the first step, and the last one\n"
                    "click          that step\n", "/at T.S, /tokens"},
    [PANE_POOL] = {"POOL", "pool", K_F5, VIEW_POOLS, write_pool,
                   "Up Down        scroll; PgUp and PgDn by half a screen; Home End\n",
                   "/pool, /accept; over time: /gauges"},
    [PANE_WORD] = {"WORD", "word", K_F6, VIEW_STEPS, tui_word_write,
                   "Up Down        scroll; PgUp and PgDn by half a screen; Home End\n"
                   "Ctrl-X t       moves the arrows to the words of the reply\n", "/tokens, /top"},
    [PANE_WHY] = {"WHY", "why", K_F7, VIEW_STEPS, write_why,
                  "Up Down        scroll; PgUp and PgDn by half a screen; Home End\n",
                  "/why T.S.NODE"},
};

/* ---- the keys of a pane ---- */

static const char common_keys[] =
    "/ Ctrl-F       finds a text in the pane; then n and N\n"
    "[ ]            the step before and the step after; { } the turn; . the newest\n"
    "+ -            the height of this pane; < > the width of all\n"
    "Ctrl-X y       copies the rows to the terminal's clipboard\n"
    "Tab            goes to the next part of the screen\n"
    "Esc            back to the input; so does typing\n";

static void write_keys(struct tui *t, struct overlay *o, int w, int)
{
    int kind = t->focus >= 0 ? (int)t->open[t->focus] : 0;
    FREED(sheet_free) struct sheet text = {.ascii = t->app->ascii};
    say_line(&text, ST_HEAD, "KEYS OF %s", pane[kind].title);
    say_text(&text, ST_TEXT, pane[kind].keys);
    say_text(&text, ST_TEXT, common_keys);
    say_line(&text, ST_TEXT, "F%-14dcloses it", pane[kind].key - K_F1 + 1);
    say_line(&text, ST_DIM, "As commands, also in plain mode: %s", pane[kind].command);
    sheet_append_wrapped(&o->pane.rows, &text, max_int(20, w));
}

void tui_panes_init(struct tui *t)
{
    for (int i = 0; i < N_PANE_KINDS; i++) {
        CHECK(pane[i].title && pane[i].key && pane[i].write);
        t->pane[i].rows = (struct sheet){.ascii = t->app->ascii};
        t->pane[i].head = 1;
        t->pane[i].scroll_to = -1;
        t->pane[i].key = pane[i].key - K_F1 + 1;
    }
    t->served.rows = (struct sheet){.ascii = t->app->ascii};
}

void tui_panes_free(struct tui *t)
{
    for (int i = 0; i < N_PANE_KINDS; i++)
        sheet_free(&t->pane[i].rows);
    sheet_free(&t->served.rows);
}

/* ---- opening and closing ---- */

bool tui_shows_time(const struct tui *t)
{
    return t->time.line.n > 0 &&
           (t->app->opt.timeline == 0 || t->focus == FOCUS_TIME || t->app->at.turn > 0);
}

void tui_layout(const struct tui *t, int n_pane, struct layout *l)
{
    struct shape s = {.n_pane = n_pane, .input_rows = t->input.n_row, .time = tui_shows_time(t),
                      .words = t->focus == FOCUS_WORDS, .side = t->side};
    for (int i = 0; i < t->n_open && i < MAX_PANES; i++)
        s.weight[i] = t->weight[t->open[i]];
    frame_layout(t->w, t->h, &s, l);
}

void tui_pane_close(struct tui *t, int index)
{
    for (int i = index; i + 1 < t->n_open; i++)
        t->open[i] = t->open[i + 1];
    t->n_open--;
    t->focus = FOCUS_INPUT;
}

static int find_open(const struct tui *t, enum pane_kind kind)
{
    for (int i = 0; i < t->n_open; i++)
        if (t->open[i] == kind)
            return i;
    return -1;
}

/* Opens or closes a pane. If the screen has no room for another one, the oldest is closed. */
static void toggle(struct tui *t, enum pane_kind kind)
{
    int at = find_open(t, kind);
    if (at >= 0) {
        tui_pane_close(t, at);
        return;
    }
    struct layout l;
    tui_layout(t, MAX_PANES, &l);
    while (t->n_open >= max_int(l.n_pane, 1))
        tui_pane_close(t, 0);
    t->open[t->n_open++] = kind;
    t->pane[kind].top = 0;
    tui_panes_update(t);
}

bool tui_pane_open_key(struct tui *t, int code)
{
    for (int i = 0; i < N_PANE_KINDS; i++)
        if (pane[i].key == code) {
            toggle(t, (enum pane_kind)i);
            return true;
        }
    return false;
}

/* ---- contents ---- */

/* Writes the pane of a view that the backend lacks: the title and the reason, dimmed. */
static void write_lack(struct sheet *s, const char *title, const char *why, int width)
{
    FREED(sheet_free) struct sheet text = {.ascii = s->ascii};
    say_line(&text, ST_DIM, "%s", title);
    say_line(&text, ST_DIM, "%s", why);
    sheet_append_wrapped(s, &text, width);
}

static void note(struct sheet *s, const char *title, const struct address *at, const char *text)
{
    sheet_add(s, ST_HEAD, title);
    say_line(s, ST_DIM, " %d.%d", at->turn, at->step);
    say_line(s, ST_DIM, "%s", text);
}

static void write_tree(struct tui *t, struct pane *p, int width)
{
    struct backend *b = t->app->backend;
    struct step_view v = {0};
    struct address at;
    struct err e = {0};
    if (!app_address(t->app, &at.turn, &at.step)) {
        app_latest_tree(t->app, &v);
    } else if (!app_find_step(t->app, at.turn, at.step, &v, &e)) {
        note(&p->rows, "TREE", &at, e.msg);
        return;
    } else if (v.tree.n == 0) {
        char text[80];
        snprintf(text, sizeof text, "this step drafted nothing: a %s step",
                 step_kind_name(v.rec.kind));
        note(&p->rows, "TREE", &at, text);
        return;
    }
    view_tree(b, &v.tree, v.turn, v.step, v.rec.bonus, width, &p->rows);
}

static void write_why(struct tui *t, struct pane *p, int width)
{
    struct err e = {0};
    struct address at = {0};
    app_address(t->app, &at.turn, &at.step);
    FREED(sheet_free) struct sheet text = {.ascii = t->app->ascii};
    if (view_why(t->app, at.turn, at.step, -1, ON_SHEET(&text), &e))
        sheet_append_wrapped(&p->rows, &text, width);
    else
        note(&p->rows, "WHY", &at, e.msg);
}

static void pool_bar(struct sheet *s, const struct pool_view *v, int cells)
{
    static const enum style shade[] = {ST_HOT, ST_WARM, ST_COOL, ST_COLD};
    static const char *const block[] = {"█", "▓", "▒", "░"}, *const ascii[] = {"#", "=", "-", "."};
    int part[] = {v->used, v->protected_, v->evictable, v->free};
    int all = max_int(v->total - v->reserved, 1), sum = 0, at = 0;
    for (int i = 0; i < 4; i++) {
        int end = (int)((int64_t)(sum += part[i]) * cells / all);
        if (i < 3 && part[i] > 0)
            end = max_int(end, at + 1); /* at least one cell, so that it is visible */
        for (; at < end && at < cells; at++)
            sheet_add(s, shade[i], s->ascii ? ascii[i] : block[i]);
    }
}

static void pool_part(struct sheet *s, enum style st, const char *sign, const char *name, int n)
{
    sheet_printf(s, st, "%s ", sign);
    sheet_printf(s, ST_LABEL, "%s ", name);
    sheet_printf(s, ST_TEXT, "%d  ", n);
}

enum { PART_CELLS = 47, SUM_CELLS = 15 }; /* of a pool's parts and their sum, without the numbers */

static int cells_of(int n)
{
    char text[16];
    return snprintf(text, sizeof text, "%d", n);
}

static void pool_rows(struct sheet *s, const char *name, const struct pool_view *v, int width)
{
    int all = v->total - v->reserved, sum = v->used + v->protected_ + v->evictable + v->free;
    sheet_line(s);
    sheet_printf(s, ST_BOLD, "%-6s", name);
    if (!v->exists) {
        say_line(s, ST_DIM, "none: model and drafter do not need it");
        return;
    }
    pool_bar(s, v, max_int(min_int(width - 12, 64), 8));
    say_line(s, ST_TEXT, " %3.0f%%", all ? 100.0 * (v->used + v->protected_) / all : 0.0);
    int parts = PART_CELLS + cells_of(v->used) + cells_of(v->protected_) + cells_of(v->evictable) +
                cells_of(v->free);
    bool a = s->ascii, one = width >= parts;
    bool wide = width >= parts + SUM_CELLS + cells_of(sum) + cells_of(all);
    sheet_tab(s, 6);
    pool_part(s, ST_HOT, a ? "#" : "█", "used", v->used);
    pool_part(s, ST_WARM, a ? "=" : "▓", "shared", v->protected_);
    if (!one) {
        sheet_line(s);
        sheet_tab(s, 6);
    }
    pool_part(s, ST_COOL, a ? "-" : "▒", "evictable", v->evictable);
    pool_part(s, ST_COLD, a ? "." : "░", "free", v->free);
    if (!wide) {
        sheet_line(s);
        sheet_tab(s, 6);
    }
    sheet_printf(s, ST_DIM, "sum %d of %d ", sum, all);
    say_line(s, sum == all ? ST_GOOD : ST_BAD, "%s", sum == all ? "ok" : "DIFFERS");
}

static void write_gauges(struct tui *t, struct pane *p, int width)
{
    FREED(gauge_series_free) struct gauge_series series = {0};
    struct backend *b = t->app->backend;
    gauge_series_read(&series, b);
    FREED(sheet_free) struct sheet text = {.ascii = t->app->ascii};
    sheet_add(&text, ST_HEAD, "POOL");
    say_line(&text, ST_DIM, "   %s", backend_info(b)->family);
    if (!t->now.has[VIEW_POOLS])
        say_line(&text, ST_DIM, "%s", b->lacks[VIEW_POOLS]);
    gauge_pools(&series, t->now.pool, ON_SHEET(&text));
    view_gauges(&series, 0, width, ON_SHEET(&text));
    sheet_append_wrapped(&p->rows, &text, width);
}

static void write_blocks(struct tui *t, struct pane *p, int width)
{
    enum { LISTED = 8 };
    FREED(block_map_free) struct block_map m = {0};
    block_map_read(&m, t->app->backend);
    FREED(sheet_free) struct sheet text = {.ascii = t->app->ascii};
    sheet_line(&text);
    view_blocks(&m, LISTED, width, ON_SHEET(&text));
    sheet_append_wrapped(&p->rows, &text, width);
}

static void write_pool(struct tui *t, struct pane *p, int width)
{
    const struct status *now = &t->now;
    struct sheet *s = &p->rows;
    if (now->has[VIEW_GAUGES] || now->has[VIEW_SERVED]) {
        if (now->has[VIEW_GAUGES])
            write_gauges(t, p, width);
        else
            write_lack(s, "POOL", t->app->backend->lacks[VIEW_GAUGES], width);
        if (now->has[VIEW_BLOCKS])
            write_blocks(t, p, width);
        sheet_line(s);
        write_served(t, width, s);
        return;
    }
    struct address at = {now->chat.turn, now->chat.step};
    if (!now->pool[POOL_FULL].exists) {
        note(s, "POOL", &at, "the pools of this step are not known");
        return;
    }
    sheet_add(s, ST_HEAD, "POOL");
    say_line(s, ST_DIM, "   step %d.%d   pages of %d tokens", at.turn, at.step,
             now->pool[POOL_FULL].page_size);
    for (int i = 0; i < N_POOLS; i++)
        pool_rows(s, pool_name((enum pool_id)i), &now->pool[i], width);
    write_steps_over_time(t, width, s);
    if (!now->has[VIEW_ACCEPT])
        return;
    FREED(sheet_free) struct sheet text = {.ascii = t->app->ascii};
    sheet_line(&text);
    view_accept(&now->chat, now->has[VIEW_SERVED], width, ON_SHEET(&text));
    sheet_append_wrapped(s, &text, width);
}

/* Cells of a pane on this screen. */
static int pane_width(const struct tui *t)
{
    struct layout l;
    tui_layout(t, max_int(t->n_open, 1), &l);
    return l.too_small ? MIN_WIDTH : l.pane[0].w;
}

/* Adds to the pane's title the hazards that are on, and the place at which the shown turn violated
 * a rule, wrapped. */
static void add_alarm(struct tui *t, struct pane *p, int width)
{
    const struct check_view *v = &t->now.check;
    FREED(buf_free) struct buf hazards = {0}, place = {0};
    bool danger = app_hazards(&t->now, t->app->ascii, &hazards);
    if (!danger && !v->violated_now)
        return;
    FREED(sheet_free) struct sheet all = {.ascii = t->app->ascii};
    FREED(sheet_free) struct sheet alarm = {.ascii = t->app->ascii};
    sheet_add_row(&all, &p->rows.row[0], 0, (int)p->rows.row[0].text.n);
    sheet_line(&all);
    if (danger)
        say_line(&alarm, ST_BAD, "%s", hazards.p);
    if (v->violated_now) {
        fault_place_print(&v->violation.at, &place);
        say_line(&alarm, ST_BAD, "%d.%d violates %s", v->violation.turn, v->violation.step,
                 place.p);
    }
    sheet_append_wrapped(&all, &alarm, width);
    int added = all.n_row - 1;
    for (int i = 1; i < p->rows.n_row; i++) {
        sheet_add_row(&all, &p->rows.row[i], 0, (int)p->rows.row[i].text.n);
        sheet_line(&all);
    }
    sheet_clear(&p->rows);
    sheet_append_wrapped(&p->rows, &all, 0);
    p->head += added;
    p->scroll_to += p->scroll_to >= 0 ? added : 0;
}

/* Writes the rows of a pane from the current view. */
static void write_pane(struct tui *t, int kind, int width)
{
    struct pane *p = &t->pane[kind];
    sheet_clear(&p->rows);
    p->head = 1;
    p->least = 0;
    p->scroll_to = -1;
    const char *why = t->app->backend->lacks[pane[kind].view];
    if (why && !(kind == PANE_POOL && t->now.has[VIEW_SERVED]))
        write_lack(&p->rows, pane[kind].title, why, width);
    else
        pane[kind].write(t, p, width);
    add_alarm(t, p, width);
    sheet_cut(&p->rows, width);
}

bool tui_pane_draw(struct tui *t, const char *name, struct grid *g, struct err *e)
{
    const char *title[N_PANE_KINDS];
    for (int i = 0; i < N_PANE_KINDS; i++)
        title[i] = pane[i].name;
    int kind = arg_choice(name, "the pane", title, N_PANE_KINDS, e);
    if (kind < 0)
        return false;
    write_pane(t, kind, pane_width(t));
    frame_sheet(&t->pane[kind].rows, t->app->ascii, g);
    return true;
}

void tui_panes_update(struct tui *t)
{
    int width = pane_width(t);
    for (int i = 0; i < t->n_open && t->have_view; i++)
        write_pane(t, (int)t->open[i], width);
}

/* ---- keys of the focused pane ---- */

static void move_by(struct tui *t, int x, int y)
{
    struct pane *p = &t->pane[t->open[t->focus]];
    if (t->open[t->focus] == PANE_PAGES)
        tui_pages_move(t, x, y);
    else if (t->open[t->focus] == PANE_STEPS)
        time_go(t, max_int(time_index(t) + y, 0));
    else
        p->top = max_int(p->top + y, 0);
}

static void jump(struct tui *t, bool end)
{
    struct pane *p = &t->pane[t->open[t->focus]];
    if (t->open[t->focus] == PANE_PAGES)
        t->page_at = end ? -1 : 0;
    else if (t->open[t->focus] == PANE_STEPS)
        time_go(t, end ? t->time.line.n - 1 : 0);
    else
        p->top = end ? p->rows.n_row : 0;
}

bool tui_pane_key(struct tui *t, const struct key *k)
{
    int page = max_int(t->h / 2, 1);
    if (k->code == K_ESC || k->code == K_ENTER)
        t->focus = FOCUS_INPUT;
    else if (time_key(t, k) || layout_key(t, k))
        ;
    else if (key_is_letter(k, '?'))
        tui_overlay_open(t, &(struct overlay){
            .write = write_keys, .footer = "Esc closes, F1 has all keys"});
    else if (k->code == K_LEFT)
        move_by(t, -1, 0);
    else if (k->code == K_RIGHT)
        move_by(t, 1, 0);
    else if (k->code == K_UP)
        move_by(t, 0, -1);
    else if (k->code == K_DOWN)
        move_by(t, 0, 1);
    else if (k->code == K_PGUP)
        move_by(t, 0, -page);
    else if (k->code == K_PGDN)
        move_by(t, 0, page);
    else if (k->code == K_HOME)
        jump(t, false);
    else if (k->code == K_END)
        jump(t, true);
    else
        return false;
    if (t->have_view)
        tui_panes_update(t);
    return true;
}
