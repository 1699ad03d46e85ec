/* overlay.c - overlays, which cover the screen: opening, closing, keys; and the help overlay. See
 * tui.h. */
#include "repl/cmd/commands.h"
#include "repl/tui/tui.h"

void tui_overlay_write(struct tui *t)
{
    if (!t->over_on)
        return;
    t->over.pane.head = 1;
    t->over.pane.scroll_to = -1;
    sheet_clear(&t->over.pane.rows);
    t->over.write(t, &t->over, max_int(t->w - 2, 1), max_int(t->h - 1, 1));
    t->dirty = true;
}

void tui_overlay_open(struct tui *t, const struct overlay *o)
{
    CHECK(o->write);
    tui_overlay_close(t);
    t->over = *o;
    t->over.pane = (struct pane){.head = 1, .scroll_to = -1};
    t->over.pane.rows = (struct sheet){.ascii = t->app->ascii};
    t->over_on = true;
    tui_overlay_write(t);
}

void tui_overlay_close(struct tui *t)
{
    if (!t->over_on)
        return;
    if (t->find.pane == &t->over.pane)
        finder_end(t);
    t->over_on = false;
    if (t->over.close)
        t->over.close(t, &t->over);
    sheet_free(&t->over.pane.rows);
    t->dirty = true;
}

bool tui_overlay_scroll(struct tui *t, struct overlay *o, const struct key *k)
{
    int page = max_int(t->h - 3, 1);
    switch (k->code) {
    case K_UP: o->pane.top--; break;
    case K_DOWN: o->pane.top++; break;
    case K_PGUP: o->pane.top -= page; break;
    case K_PGDN: o->pane.top += page; break;
    case K_HOME: o->pane.top = 0; break;
    case K_END: o->pane.top = o->pane.rows.n_row; break;
    default: return false;
    }
    o->pane.top = max_int(o->pane.top, 0);
    return true;
}

bool tui_overlay_key(struct tui *t, const struct key *k)
{
    bool (*key)(struct tui *, struct overlay *, const struct key *) =
        t->over.key ? t->over.key : tui_overlay_scroll;
    bool stays = key(t, &t->over, k);
    if (!stays)
        tui_overlay_close(t);
    else if (t->over.key)
        tui_overlay_write(t);
    return stays;
}

/* ---- help ---- */

static void add_help(struct tui *t, const struct cmd *help, const char *topic, struct sheet *out)
{
    struct err e = {0};
    FREED(free_at) char *word = xstrdup(topic);
    struct cmd_call c = {t->app, help, *topic ? 1 : 0, &word, topic, {out, NULL}, &e};
    if (!help->run(&c))
        say_line(out, ST_BAD, "%s", e.msg);
    sheet_line(out);
}

static void write_help(struct tui *t, struct overlay *o, int w, int)
{
    const struct cmd *help = cmd_find("help", NULL);
    FREED(sheet_free) struct sheet text = {.ascii = t->app->ascii};
    say_line(&text, ST_HEAD, "HELP");
    if (help) {
        add_help(t, help, "keys", &text);
        add_help(t, help, "panes", &text);
        add_help(t, help, "time", &text);
        add_help(t, help, "", &text);
    }
    sheet_append_wrapped(&o->pane.rows, &text, max_int(20, w));
}

void tui_help_open(struct tui *t)
{
    tui_overlay_open(t, &(struct overlay){
        .write = write_help, .footer = "arrows and PgUp/PgDn scroll, Ctrl-F finds, "
        "Esc or typing closes"});
}
