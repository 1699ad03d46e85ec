/* font.c - see font.h. A letter is drawn in 6x12 points, each of which is four pixels; a letter
 * with an accent is its parts over each other. */
#include "repl/tui/font.h"

#include <utf8proc.h>

#include "kernels/utf8.h"

enum { COLUMNS = 5, TOP = 2, FULL = (1 << GLYPH_W) - 1 }; /* TOP: points above a letter */

/* Each character and the rows of its shape from above: digits of base 32, whose bits are five
 * points. Letters stand on the seventh row; marks are as above (or below) a low letter. */
static const char shapes[] =
    "!4444404 \"AAA #AAVAVAA $4FKE5U4 %OP248J3 &CIK8LID '444 (248888842 )842222248 *04LEL4 "
    "+044V44 ,00000CC48 -000E .00000CC /1122488GG 0EHJLPHE 14C4444E 2EH1248V 3V2421HE 426AIV22 "
    "5VGU11HE 668GUHHE 7V124888 8EHHEHHE 9EHHF12C :00CC0CC ;00CC0CC48 <248G842 =00V0V >8421248 "
    "?EH12404 @EH1DLLE AEHHVHHH BUHHUHHU CEHGGGHE DSIHHHIS EVGGUGGV FVGGUGGG GEHGNHHF HHHHVHHH "
    "IE44444E J72222IC KHIKOKIH LGGGGGGV MHRLLHHH NHHPLJHH OEHHHHHE PUHHUGGG QEHHHHHE21 RUHHUKIH "
    "SFGGE11U TV444444 UHHHHHHE VHHHHHA4 WHHHLLLA XHHA4AHH YHHHA444 ZV1248GV [E8888888E "
    "\\GG8842211 ]E2222222E ^4AH _0000000V `84 a00E1FHF bGGUHHHU c00FGGGF d11FHHHF e00EHVGE "
    "f698S888 g00FHHHF1E hGGUHHHH i40C444E j2062222IC kGGIKOKI lC44444E m00QLLLL n00UHHHH "
    "o00EHHHE p00UHHHUGG q00FHHHF11 r00MPGGG s00FGE1U t88S8896 u00HHHHF v00HHHA4 w00HHLLA "
    "x00HA4AH y00HHHHF1E z00V248V {244484442 |444444444 }844424448 ~008L2 ·0004 …000000L →042V24 "
    "←048V84 ↑4EL4444 ↓4444LE4 ✗0HRERH ✓013IUC ●0EVVVE ○0EHHHE ◦00EAE •00EEE ◇04AHA4 ◷0ELNHE "
    "›084248 ‹024842 «05AKA5 »0KA5AK –000V ▸08CEC8 ▶GOSUSOG ▼0VVEE4 ▾00VE4 ▿0VHAA4 ×0HA4AH °CIIC "
    "≥O616O0V ≤3CGC30V ≠12V4V8G €78U8U87 ‘244 ’448 “5AA ”55A ßCIIMHHM \u030084 \u030124 \u03024A "
    "\u0303DM \u0308A \u030aEE \u030cA4 \u0327000000048 \u0328000000023 \u0304E ";
/* U+2500 to U+257F as lines from the middle, of one weight: up 1, down 2, left 4, right 8. */
static const char arms[] = "CC33CC33CC33AAAA666699995555BBBBBBBB77777777EEEEEEEEDDDDDDDDFFFF"
                           "FFFFFFFFFFFFCC33C3AAA666999555BBB777EEEDDDFFFA65900041824182C3C3";

static int digit(char c)
{
    return c <= '9' ? c - '0' : c - 'A' + 10;
}

static void fill(uint16_t *row, int x, int y, int w, int h)
{
    for (int i = y; i < y + h; i++)
        row[i] |= (uint16_t)(((1 << w) - 1) << x);
}

/* Lines and blocks; false: the character is another one. */
static bool draw_lines(uint32_t cp, uint16_t *row)
{
    enum { X = GLYPH_W / 2, Y = GLYPH_H / 2 };
    int four = cp == 0x2014 ? 12 /* a dash from edge to edge */
               : cp >= 0x2500 && cp < 0x2580 ? digit(arms[cp - 0x2500]) : 0;
    if (four & 1)
        fill(row, X - 1, 0, 2, Y + 1);
    if (four & 2)
        fill(row, X - 1, Y - 1, 2, Y + 1);
    if (four & 4)
        fill(row, 0, Y - 1, X + 1, 2);
    if (four & 8)
        fill(row, X - 1, Y - 1, X + 1, 2);
    if (cp > 0x2580 && cp <= 0x2588) { /* eighths from below */
        int h = GLYPH_H / 8 * (int)(cp - 0x2580);
        fill(row, 0, GLYPH_H - h, GLYPH_W, h);
    } else if (cp > 0x2588 && cp < 0x2590) { /* and from the left */
        fill(row, 0, 0, div_up(GLYPH_W * (int)(0x2590 - cp), 8), GLYPH_H);
    } else if (cp > 0x2590 && cp < 0x2594) { /* a quarter of the pixels, two, three */
        for (int y = 0; y < GLYPH_H; y++)
            row[y] = cp == 0x2592 ? y % 2 ? 0x555 : 0xAAA
                     : (y % 2 ? 0 : y % 4 ? 0x444 : 0x111) ^ (cp == 0x2593 ? FULL : 0);
    } else {
        return four != 0;
    }
    return true;
}

/* A shape, so many points higher than usual; false: there is none. */
static bool draw_shape(uint32_t cp, int higher, uint16_t *row)
{
    const char *s = shapes;
    while (*s && utf8_at(s) != cp)
        s += strcspn(s, " ") + 1;
    if (!*s)
        return false;
    s += utf8_len(s);
    for (int y = 2 * (TOP - higher); *s != ' '; s++, y += 2)
        for (int x = 0; x < COLUMNS; x++)
            if (digit(*s) >> (COLUMNS - 1 - x) & 1)
                fill(row, 1 + 2 * x, y, 2, 2);
    return true;
}

/* A character as its letter and marks, or the outline of the cell, which may be half of one. */
static void draw_parts(const struct cell *c, uint16_t *row)
{
    enum { N = 16 };
    utf8proc_int32_t part[N + CELL_MARKS];
    int last = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c->cp[0], part, N,
                                                 UTF8PROC_DECOMPOSE, &last);
    if (n < 1 || n > N || !draw_shape((uint32_t)part[0], 0, row)) {
        fill(row, 1, 4, GLYPH_W - 2, 2);
        fill(row, 1, GLYPH_H - 6, GLYPH_W - 2, 2);
        fill(row, 1, 4, c->width != 0 ? 2 : 0, GLYPH_H - 8);
        fill(row, GLYPH_W - 3, 4, c->width != 2 ? 2 : 0, GLYPH_H - 8);
        return;
    }
    for (int k = 1; k <= CELL_MARKS && c->cp[k]; k++)
        part[n++] = (utf8proc_int32_t)c->cp[k];
    bool tall = utf8proc_category(part[0]) == UTF8PROC_CATEGORY_LU || strchr("bdfhklt", part[0]);
    for (int i = 1; i < n; i++)
        draw_shape((uint32_t)part[i], tall && part[i] < 0x320 ? TOP : 0, row);
}

void font_draw(const struct cell *c, bool bold, bool italic, uint16_t row[GLYPH_H])
{
    memset(row, 0, GLYPH_H * sizeof *row);
    if (utf8proc_category((utf8proc_int32_t)c->cp[0]) == UTF8PROC_CATEGORY_ZS ||
        draw_lines(c->cp[0], row))
        return;
    if (c->cp[1] || !draw_shape(c->cp[0], 0, row))
        draw_parts(c, row);
    for (int y = 0; y < GLYPH_H; y++) {
        row[y] |= bold ? (uint16_t)(row[y] << 1) : 0;
        row[y] = (uint16_t)(row[y] << (italic ? (GLYPH_H - y) / 8 : 0) & FULL);
    }
}
