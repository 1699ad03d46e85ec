/* shot.c - /screenshot: the screen as it was drawn last, or a whole pane, as text or as SVG. The
 * cells hold nothing that a terminal or an XML reader would act on. See tui.h.
 */
#include "repl/tui/theme.h"
#include "repl/tui/tui.h"

#include <string.h>

enum { CELL_W = 84, CELL_H = 170, MARGIN = 140, BASE = 130 }; /* tenths of a pixel */

static void add_cells(struct buf *out, const struct grid *g, int y, int from, int to, bool xml)
{
    for (int x = from; x < to; x++)
        for (int k = 0; k <= CELL_MARKS && g->cell[mul64(y, g->w) + x].cp[k]; k++) {
            uint32_t cp = g->cell[mul64(y, g->w) + x].cp[k];
            if (xml && cp == '&')
                buf_str(out, "&amp;");
            else if (xml && cp == '<')
                buf_str(out, "&lt;");
            else if (xml && cp == '>')
                buf_str(out, "&gt;");
            else /* not every code point may stand in XML */
                buf_utf8(out, xml && (cp & 0xFFFE) == 0xFFFE ? 0xFFFD : cp);
        }
}

static void shot_text(const struct grid *g, struct buf *out)
{
    for (int y = 0; y < g->h; y++) {
        add_cells(out, g, y, 0, g->w, false);
        while (out->n > 0 && out->p[out->n - 1] == ' ')
            out->n--;
        buf_char(out, '\n');
    }
}

/* The usual colours of a terminal with 256, as 0xRRGGBB. */
static uint32_t rgb_of(int n)
{
    static const uint32_t first[] = {0x000000, 0xcd3131, 0x0dbc79, 0xe5e510, 0x2472c8, 0xbc3fbc,
                                     0x11a8cd, 0xe5e5e5, 0x666666, 0xf14c4c, 0x23d18b, 0xf5f543,
                                     0x3b8eea, 0xd670d6, 0x29b8db, 0xffffff};
    static const uint32_t level[] = {0, 95, 135, 175, 215, 255};
    if (n < 16)
        return first[n];
    if (n > 231)
        return (uint32_t)(8 + 10 * (n - 232)) * 0x010101;
    n -= 16;
    return level[n / 36] << 16 | level[n / 6 % 6] << 8 | level[n % 6];
}

static bool same_look(const struct cell *a, const struct cell *b)
{
    return a->style == b->style && a->flags == b->flags;
}

static void pixels(struct buf *out, const char *name, int64_t tenths)
{
    buf_printf(out, " %s=\"%d.%d\"", name, (int)(tenths / 10), (int)(tenths % 10));
}

/* A run of cells of one look: its background and its text. */
static void svg_run(struct buf *out, const struct grid *g, enum theme t, int y, int from, int to)
{
    const struct cell *c = &g->cell[mul64(y, g->w) + from];
    struct look l = theme_look(t, 256, (enum style)c->style, c->flags & CELL_POPUP);
    uint32_t paper = t == THEME_LIGHT ? 0xffffff : 0x1e1e1e, ink = t == THEME_LIGHT ? 0x1e1e1e
                     : 0xd4d4d4, fg = l.fg < 0 ? ink : rgb_of(l.fg), bg = l.bg < 0 ? paper
                     : rgb_of(l.bg);
    bool bold = l.attr & LOOK_BOLD || c->flags & CELL_BOLD, blank = true;
    if ((l.attr & LOOK_REVERSE) != 0 || (c->flags & CELL_REVERSE) != 0) {
        uint32_t was = fg;
        fg = bg;
        bg = was;
    }
    for (int x = from; x < to; x++)
        blank &= g->cell[mul64(y, g->w) + x].cp[0] == ' ';
    if (bg != paper) {
        buf_str(out, "<rect");
        pixels(out, "x", MARGIN + (int64_t)from * CELL_W);
        pixels(out, "y", MARGIN + (int64_t)y * CELL_H);
        pixels(out, "width", (int64_t)(to - from) * CELL_W);
        pixels(out, "height", CELL_H);
        buf_printf(out, " fill=\"#%06x\"/>\n", (unsigned)bg);
    }
    if (blank)
        return;
    buf_str(out, "<text");
    pixels(out, "x", MARGIN + (int64_t)from * CELL_W);
    pixels(out, "y", MARGIN + (int64_t)y * CELL_H + BASE);
    pixels(out, "textLength", (int64_t)(to - from) * CELL_W);
    buf_printf(out, " fill=\"#%06x\"%s%s%s>", (unsigned)fg, bold ? " font-weight=\"bold\"" : "",
               l.attr & LOOK_ITALIC ? " font-style=\"italic\"" : "",
               l.attr & LOOK_UNDERLINE || c->flags & CELL_UNDERLINE
                   ? " text-decoration=\"underline\"" : "");
    add_cells(out, g, y, from, to, true);
    buf_str(out, "</text>\n");
}

static void shot_svg(const struct grid *g, enum theme t, struct buf *out)
{
    buf_str(out, "<svg xmlns=\"http://www.w3.org/2000/svg\"");
    pixels(out, "width", (int64_t)g->w * CELL_W + (int64_t)2 * MARGIN);
    pixels(out, "height", (int64_t)g->h * CELL_H + (int64_t)2 * MARGIN);
    buf_printf(out, " font-family=\"ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace\""
                    " font-size=\"14\" xml:space=\"preserve\">\n"
                    "<rect width=\"100%%\" height=\"100%%\" rx=\"8\" fill=\"%s\"/>\n",
               t == THEME_LIGHT ? "#ffffff" : "#1e1e1e");
    for (int y = 0; y < g->h; y++)
        for (int from = 0, to; from < g->w; from = to) {
            const struct cell *c = &g->cell[mul64(y, g->w) + from];
            for (to = from + 1; to < g->w && same_look(c, &g->cell[mul64(y, g->w) + to]);)
                to++;
            svg_run(out, g, t, y, from, to);
        }
    buf_str(out, "</svg>\n");
}

/* The screen that was drawn last, without the command in its input line. */
static void copy_screen(const struct tui *t, struct grid *g)
{
    const struct rect *r = &t->frame.typed;
    grid_resize(g, t->grid.w, t->grid.h);
    g->ascii = t->grid.ascii;
    memcpy(g->cell, t->grid.cell, (size_t)g->w * (size_t)g->h * sizeof *g->cell);
    for (int y = r->y; y < r->y + r->h && y < g->h; y++)
        for (int x = r->x; x < r->x + r->w; x++)
            grid_text(g, x, y, 1, ST_TEXT, 0, " ", 1);
}

bool tui_shot(struct app *a, const char *pane, bool svg, struct buf *out, struct err *e)
{
    struct tui *t = a->face.state;
    struct grid g = {0};
    if (!pane)
        copy_screen(t, &g);
    else if (!tui_pane_draw(t, pane, &g, e))
        return false;
    if (svg)
        shot_svg(&g, tui_theme(t), out);
    else
        shot_text(&g, out);
    grid_free(&g);
    return true;
}
