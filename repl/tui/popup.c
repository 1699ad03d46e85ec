/* popup.c - the candidates of completion above the input. See frame.h. */

#include "repl/tui/frame.h"

enum { MAX_CHOICES = 8 };

static int choice_width(const char *s, int most)
{
    return s ? min_int(text_width(s, strlen(s)), most) : 0;
}

/* Draws one edge of the popup's frame: corners, the line between them, and a text on it. */
static void draw_edge(const struct frame *f, struct grid *g, struct rect r, int y, const char *text)
{
    bool top = y == r.y;
    for (int x = r.x; x < r.x + r.w; x++) {
        const char *s = x > r.x && x < r.x + r.w - 1 ? "─" : x == r.x ? top ? "╭" : "╰" : top ? "╮"
                        : "╯";
        if (f->ascii)
            s = x > r.x && x < r.x + r.w - 1 ? "-" : "+";
        grid_text(g, x, y, 1, ST_DIM, CELL_POPUP, s, strlen(s));
    }
    grid_text(g, r.x + 2, y, r.w - 4, ST_DIM, CELL_POPUP, text, strlen(text));
}

static void draw_choice(const struct frame *f, struct grid *g, struct rect r, int y, int name_width,
                        int i)
{
    const struct choice *c = &f->choice[i];
    int flags = CELL_POPUP | (i == f->chosen ? CELL_REVERSE : 0), x = r.x + 2 + name_width + 2;
    const char *bar = f->ascii ? "|" : "│";
    grid_text(g, r.x, y, 1, ST_DIM, CELL_POPUP, bar, strlen(bar));
    grid_text(g, r.x + r.w - 1, y, 1, ST_DIM, CELL_POPUP, bar, strlen(bar));
    for (int k = r.x + 1; k < r.x + r.w - 1; k++)
        grid_text(g, k, y, 1, ST_TEXT, flags, " ", 1);
    grid_text(g, r.x + 2, y, min_int(name_width, r.w - 4), ST_KEY, flags, c->text, strlen(c->text));
    if (c->help && x < r.x + r.w - 2)
        grid_text(g, x, y, r.x + r.w - 2 - x, ST_TEXT, flags, c->help, strlen(c->help));
}

void frame_choices(const struct frame *f, struct grid *g, struct rect rule)
{
    int n = min_int(f->n_choice, min_int(MAX_CHOICES, rule.y - 2)), name = 0, help = 0;
    int top = max_int(min_int(f->chosen - n / 2, f->n_choice - n), 0), most = rule.w - 2;
    char text[64] = " Tab chooses, Esc closes ";
    if (n < 1)
        return;
    if (f->n_choice > n)
        snprintf(text, sizeof text, " %d in all, Tab chooses, Esc closes ", f->n_choice);
    if (f->chosen >= 0)
        snprintf(text, sizeof text, " %d of %d, Enter takes it ", f->chosen + 1, f->n_choice);
    for (int i = 0; i < f->n_choice; i++) {
        name = max_int(name, choice_width(f->choice[i].text, most - 4));
        help = max_int(help, choice_width(f->choice[i].help, most));
    }
    int w = max_int(name + 4 + (help ? help + 2 : 0), text_width(text, strlen(text)) + 4);
    struct rect r = {1, rule.y - n - 2, min_int(w, most), n + 2};
    draw_edge(f, g, r, r.y, "");
    for (int i = 0; i < n; i++)
        draw_choice(f, g, r, r.y + 1 + i, name, top + i);
    draw_edge(f, g, r, r.y + n + 1, text);
}
