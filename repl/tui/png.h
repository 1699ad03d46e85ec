/* png.h - writes a picture as PNG (ISO/IEC 15948): one byte a pixel, with a palette, compressed by
 * runs and by repeats of the row above. One object, one thread. */
#pragma once

#include "kernels/base.h"

enum { PNG_COLORS = 256 };

struct png {
    int w, h;         /* h: rows that were written */
    uint32_t color[PNG_COLORS]; /* 0xRRGGBB */
    int n_color;
    struct buf data;  /* compressed */
    uint64_t bits;    /* not yet in data, the next one lowest */
    int n_bits;
    uint32_t a, b;    /* Adler-32 */
};

void png_begin(struct png *p, int w);
/* The number of a colour in the palette; one that has no place there any more becomes the last. */
uint8_t png_color(struct png *p, uint32_t rgb);
/* Writes n rows below those written: of each a zero and its w pixels. */
void png_rows(struct png *p, const uint8_t *row, int n);
void png_end(struct png *p, struct buf *out); /* adds the file to out and frees p's memory */
