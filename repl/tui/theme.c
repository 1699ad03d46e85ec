/* theme.c - see theme.h. */
#include "repl/tui/theme.h"

#include <math.h>

/* Foreground colours. Of 8 colours only some of xterm's values are legible on black or white, so
 * several styles share a colour and differ in attributes. */
static const struct theme_row {
    short dark256, dark16, dark8, light256, light16; /* -1: the default */
    unsigned with, mono; /* attributes with colours, and without colours */
} rows[N_STYLES] = {
    [ST_TEXT] = {-1, -1, -1, -1, -1, 0, 0},
    [ST_DIM] = {247, -1, -1, 241, -1, 0, LOOK_DIM},
    [ST_BOLD] = {-1, -1, -1, -1, -1, LOOK_BOLD, LOOK_BOLD},
    [ST_ITALIC] = {-1, -1, -1, -1, -1, LOOK_ITALIC, LOOK_ITALIC},
    [ST_CODE] = {109, 14, 6, 23, 5, 0, 0},
    [ST_HEAD] = {-1, -1, -1, -1, -1, LOOK_BOLD | LOOK_UNDERLINE, LOOK_BOLD | LOOK_UNDERLINE},
    [ST_LINK] = {74, 14, 6, 25, 4, LOOK_UNDERLINE, LOOK_UNDERLINE},
    [ST_QUOTE] = {248, 6, 6, 240, 4, 0, LOOK_DIM},
    [ST_USER] = {74, 14, 6, 25, 4, LOOK_BOLD, LOOK_BOLD},
    [ST_GOOD] = {77, 10, 2, 22, 4, 0, 0},
    [ST_BAD] = {210, 9, -1, 124, 1, LOOK_BOLD, LOOK_BOLD | LOOK_REVERSE},
    [ST_WARN] = {179, 11, 3, 58, 1, 0, LOOK_BOLD},
    [ST_KEY] = {74, 14, 6, 25, 4, LOOK_BOLD, LOOK_BOLD},
    [ST_LABEL] = {248, 6, 6, 240, 5, 0, LOOK_DIM},
    [ST_DRAFT] = {176, 13, 6, 90, 5, 0, 0},
    [ST_ESCAPE] = {-1, -1, -1, -1, -1, LOOK_REVERSE, LOOK_REVERSE},
    [ST_HOT] = {209, 9, 3, 88, 1, 0, LOOK_BOLD},
    [ST_WARM] = {179, 11, 3, 58, 5, 0, 0},
    [ST_COOL] = {110, 14, 6, 19, 4, 0, 0},
    [ST_COLD] = {247, -1, -1, 241, -1, 0, LOOK_DIM},
    [ST_BONUS] = {222, 11, 3, 94, 5, 0, LOOK_UNDERLINE},
    [ST_DEPTH1] = {151, 10, 2, 23, 4, 0, 0},
    [ST_DEPTH2] = {114, 10, 2, 22, 4, 0, LOOK_DIM},
    [ST_DEPTH3] = {78, 10, 2, 18, 4, 0, LOOK_DIM | LOOK_ITALIC},
};

enum {
    POPUP_DARK = 236, POPUP_LIGHT = 254, /* backgrounds of a popup in 256 colours, ... */
    POPUP_TEXT_DARK = 252, POPUP_TEXT_LIGHT = 235, /* and of text in the default colour there */
    BLUE = 4, WHITE = 7,                 /* a popup in fewer colours */
};

struct look theme_look(enum theme t, int colors, enum style st, bool popup)
{
    const struct theme_row *r = &rows[st];
    bool light = t == THEME_LIGHT;
    struct look l = {.fg = -1, .bg = -1, .attr = r->with};
    if (colors < 8) {
        l.attr = r->mono;
    } else if (colors < 256) {
        l.fg = light ? r->light16 : colors < 16 ? r->dark8 : r->dark16;
        /* the red of 8 colours is not legible on black */
        if (!light && colors < 16 && st == ST_BAD)
            l.attr |= LOOK_REVERSE;
        if (popup)
            l.fg = WHITE, l.bg = BLUE;
    } else {
        l.fg = light ? r->light256 : r->dark256;
        if (popup && l.fg < 0)
            l.fg = light ? POPUP_TEXT_LIGHT : POPUP_TEXT_DARK;
        if (popup)
            l.bg = light ? POPUP_LIGHT : POPUP_DARK;
    }
    return l;
}

enum theme theme_of_variable(const char *colorfgbg)
{
    const char *last = colorfgbg ? strrchr(colorfgbg, ';') : NULL;
    char *end;
    if (!last || last[1] < '0' || last[1] > '9')
        return THEME_AUTO;
    long n = strtol(last + 1, &end, 10);
    if (*end || n > 15)
        return THEME_AUTO;
    return n == 7 || n > 8 ? THEME_LIGHT : THEME_DARK;
}

static double channel(uint32_t v)
{
    double c = v / 255.0;
    return c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4);
}

static double luminance(uint32_t rgb)
{
    return 0.2126 * channel(rgb >> 16 & 255) + 0.7152 * channel(rgb >> 8 & 255) +
           0.0722 * channel(rgb & 255);
}

double theme_contrast(uint32_t a, uint32_t b)
{
    double x = luminance(a), y = luminance(b);
    return (x > y ? x + 0.05 : y + 0.05) / (x > y ? y + 0.05 : x + 0.05);
}

enum theme theme_of_color(uint32_t rgb)
{
    return theme_contrast(rgb, 0x000000) > theme_contrast(rgb, 0xFFFFFF) ? THEME_LIGHT : THEME_DARK;
}
