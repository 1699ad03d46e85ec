/* font.h - the shapes of characters, for pictures of the screen. Constant tables; any thread. */
#pragma once

#include "repl/tui/frame.h"

enum { GLYPH_W = 12, GLYPH_H = 24 }; /* pixels of a cell */

/* Draws a cell's character and its marks: bit x of row[y] is the pixel in column x. A character
 * without a shape becomes a hollow box. */
void font_draw(const struct cell *c, bool bold, bool italic, uint16_t row[GLYPH_H]);
