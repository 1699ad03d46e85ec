/* shot.c - /screenshot: the screen as it was drawn last, or a whole pane, as text, SVG or PNG. The
 * cells hold nothing that a terminal or an XML reader would act on. See tui.h. */
#include "repl/tui/font.h"
#include "repl/tui/png.h"
#include "repl/tui/theme.h"
#include "repl/tui/tui.h"

enum { CELL_W = 84, CELL_H = 170, MARGIN = 140, BASE = 130 }; /* of SVG: tenths of a pixel */
enum { EDGE = 20, UNDER = 10 }; /* of PNG: pixels of the margin; the row of points under a text */

static void add_cells(struct buf *out, const struct cell *cell, int n, bool xml)
{
    for (const struct cell *c = cell; c < cell + n; c++)
        for (int k = 0; k <= CELL_MARKS && c->cp[k]; k++) {
            uint32_t cp = c->cp[k];
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
        add_cells(out, &g->cell[mul64(y, g->w)], g->w, false);
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

/* Cells of a row that look alike. Colours are 0xRRGGBB. */
struct run {
    const struct cell *cell; /* (to - from) */
    int y, from, to;
    uint32_t paper, fg, bg; /* paper: of the whole picture */
    bool bold, italic, underline;
};
typedef void run_fn(void *arg, const struct run *r);

/* Calls draw for each run of a grid, row by row from the left. */
static void each_run(const struct grid *g, enum theme t, run_fn *draw, void *arg)
{
    uint32_t paper = t == THEME_LIGHT ? 0xffffff : 0x1e1e1e;
    uint32_t ink = t == THEME_LIGHT ? 0x1e1e1e : 0xd4d4d4;
    for (int y = 0; y < g->h; y++)
        for (int from = 0, to; from < g->w; from = to) {
            const struct cell *c = &g->cell[mul64(y, g->w) + from];
            to = from + 1;
            while (to < g->w && c[to - from].style == c->style && c[to - from].flags == c->flags)
                to++;
            struct look l = theme_look(t, 256, (enum style)c->style, c->flags & CELL_POPUP);
            uint32_t fg = l.fg < 0 ? ink : rgb_of(l.fg), bg = l.bg < 0 ? paper : rgb_of(l.bg);
            bool turned = l.attr & LOOK_REVERSE || c->flags & CELL_REVERSE;
            draw(arg, &(struct run){c, y, from, to, paper, turned ? bg : fg, turned ? fg : bg,
                                    l.attr & LOOK_BOLD || c->flags & CELL_BOLD,
                                    l.attr & LOOK_ITALIC,
                                    l.attr & LOOK_UNDERLINE || c->flags & CELL_UNDERLINE});
        }
}

/* ---- SVG ------------------------------------------------------------------------------------- */

static void pixels(struct buf *out, const char *name, int64_t tenths)
{
    buf_printf(out, " %s=\"%d.%d\"", name, (int)(tenths / 10), (int)(tenths % 10));
}

static void svg_run(void *arg, const struct run *r)
{
    struct buf *out = arg;
    int64_t x = MARGIN + mul64(r->from, CELL_W), y = MARGIN + mul64(r->y, CELL_H);
    bool blank = true;
    for (int i = 0; i < r->to - r->from; i++)
        blank &= r->cell[i].cp[0] == ' ';
    if (r->bg != r->paper) {
        buf_str(out, "<rect");
        pixels(out, "x", x);
        pixels(out, "y", y);
        pixels(out, "width", mul64(r->to - r->from, CELL_W));
        pixels(out, "height", CELL_H);
        buf_printf(out, " fill=\"#%06x\"/>\n", (unsigned)r->bg);
    }
    if (blank)
        return;
    buf_str(out, "<text");
    pixels(out, "x", x);
    pixels(out, "y", y + BASE);
    pixels(out, "textLength", mul64(r->to - r->from, CELL_W));
    buf_printf(out, " fill=\"#%06x\"%s%s%s>", (unsigned)r->fg,
               r->bold ? " font-weight=\"bold\"" : "", r->italic ? " font-style=\"italic\"" : "",
               r->underline ? " text-decoration=\"underline\"" : "");
    add_cells(out, r->cell, r->to - r->from, true);
    buf_str(out, "</text>\n");
}

static void shot_svg(const struct grid *g, enum theme t, struct buf *out)
{
    int64_t w = mul64(g->w, CELL_W) + (int64_t)2 * MARGIN;
    int64_t h = mul64(g->h, CELL_H) + (int64_t)2 * MARGIN;
    buf_printf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\"",
               (int)(w / 10), (int)(h / 10));
    pixels(out, "width", w);
    pixels(out, "height", h);
    buf_printf(out, " font-family=\"ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace\""
                    " font-size=\"14\" xml:space=\"preserve\">\n"
                    "<rect width=\"100%%\" height=\"100%%\" rx=\"8\" fill=\"%s\"/>\n",
               t == THEME_LIGHT ? "#ffffff" : "#1e1e1e");
    each_run(g, t, svg_run, out);
    buf_str(out, "</svg>\n");
}

/* ---- PNG ------------------------------------------------------------------------------------- */

struct painter {
    struct png png;
    uint8_t *row; /* the pixels of one row of cells: GLYPH_H times a zero and png.w pixels */
    int y;        /* this row of cells; -1: the margin above the first */
};

/* Writes `rows` of the pixels and leaves paper in their place. */
static void put_rows(struct painter *p, int rows)
{
    size_t line = 1 + (size_t)p->png.w;
    png_rows(&p->png, p->row, rows);
    memset(p->row, 0, GLYPH_H * line); /* the first colour is the paper's */
}

static void png_run(void *arg, const struct run *r)
{
    struct painter *p = arg;
    uint16_t glyph[GLYPH_H];
    if (r->y != p->y)
        put_rows(p, p->y < 0 ? EDGE : GLYPH_H);
    p->y = r->y;
    uint8_t fg = png_color(&p->png, r->fg), bg = png_color(&p->png, r->bg);
    for (int i = 0; i < r->to - r->from; i++) {
        font_draw(&r->cell[i], r->bold, r->italic, glyph);
        for (int y = 0; y < GLYPH_H; y++) {
            uint8_t *to = p->row + mul64(y, 1 + p->png.w) + 1 + EDGE + mul64(r->from + i, GLYPH_W);
            for (int x = 0; x < GLYPH_W; x++)
                to[x] = glyph[y] >> x & 1 || (r->underline && y / 2 == UNDER) ? fg : bg;
        }
    }
}

static void shot_png(const struct grid *g, enum theme t, struct buf *out)
{
    struct painter p = {.y = -1};
    png_begin(&p.png, g->w * GLYPH_W + 2 * EDGE);
    p.row = xcalloc(GLYPH_H, 1 + (size_t)p.png.w);
    png_color(&p.png, t == THEME_LIGHT ? 0xffffff : 0x1e1e1e);
    each_run(g, t, png_run, &p);
    put_rows(&p, GLYPH_H);
    put_rows(&p, EDGE);
    png_end(&p.png, out);
    free(p.row);
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

bool tui_shot(struct app *a, const char *pane, enum picture kind, struct buf *out, struct err *e)
{
    struct tui *t = a->face.state;
    struct grid g = {0};
    if (!pane)
        copy_screen(t, &g);
    else if (!tui_pane_draw(t, pane, &g, e))
        return false;
    if (kind == PICTURE_TEXT)
        shot_text(&g, out);
    else if (kind == PICTURE_SVG)
        shot_svg(&g, tui_theme(t), out);
    else
        shot_png(&g, tui_theme(t), out);
    grid_free(&g);
    return true;
}
