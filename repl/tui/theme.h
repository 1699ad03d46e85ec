/* theme.h - colours and attributes of each style, for dark and light backgrounds.
 *
 * Constant tables; tests/unit/test_theme.c computes the contrast of every colour. */
#pragma once

#include "repl/text/sheet.h"

enum theme { THEME_AUTO, THEME_DARK, THEME_LIGHT };

enum look_attr { LOOK_BOLD = 1, LOOK_DIM = 2, LOOK_ITALIC = 4, LOOK_UNDERLINE = 8,
                 LOOK_REVERSE = 16 };

struct look {
    short fg, bg;  /* colour numbers of the terminal; -1: its default */
    unsigned attr; /* enum look_attr */
};

/* The colours and attributes of a style on a terminal with `colors` colours (256, 16, 8; fewer:
 * none are used). popup: on the background of a popup. t must not be THEME_AUTO. */
struct look theme_look(enum theme t, int colors, enum style st, bool popup);

/* The theme for a value of COLORFGBG ("15;0", "0;default;15"; may be NULL); THEME_AUTO: unknown. */
enum theme theme_of_variable(const char *colorfgbg);
/* The theme for a background colour, 0xRRGGBB. */
enum theme theme_of_color(uint32_t rgb);
/* Contrast ratio of two colours, 1 .. 21 (WCAG 2.1). */
double theme_contrast(uint32_t a, uint32_t b);
