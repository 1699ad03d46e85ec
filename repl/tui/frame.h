/* frame.h - what the screen shows: state in, a grid of cells out.
 *
 * Pure: no terminal, no clock, no engine. The same state and size give the same grid, so screens
 * are tested as text. Every text passes text_next() on its way into a cell: whatever the state
 * holds, a cell never holds a control, bidi or invisible code point.
 */
#ifndef AERIE_FRAME_H
#define AERIE_FRAME_H

#include "repl/tui/input.h"
#include "repl/text/transcript.h"

enum { CELL_MARKS = 4, MIN_WIDTH = 40, MIN_HEIGHT = 10, MAX_PANES = 2 };
enum cell_flag { CELL_REVERSE = 1, CELL_POPUP = 2 /* on the background of a popup */ };

struct cell {
    uint32_t cp[1 + CELL_MARKS]; /* a code point and its marks, 0-terminated when shorter */
    uint8_t width;               /* 1, 2, or 0: the right half of the cell before */
    uint8_t style;               /* enum style */
    uint8_t flags;
    uint8_t zero; /* no padding: cells are compared as bytes */
};

struct grid {
    int w, h;
    struct cell *cell; /* (h, w) */
    int x, y;          /* the cursor; x < 0: hidden */
    bool ascii;        /* what is cut ends in '~' instead of an ellipsis */
};

void grid_resize(struct grid *g, int w, int h); /* and blanks it */
void grid_free(struct grid *g);
/* Puts text from column x in at most `room` cells, with a mark at its end where it is cut; returns
 * the cells used. */
int grid_text(struct grid *g, int x, int y, int room, enum style st, int flags, const char *s,
              size_t n);

struct rect {
    int x, y, w, h;
};

/* Where everything goes. Heights of 0 mean: not there. */
struct layout {
    bool too_small;
    struct rect talk, rule, input, status, pane[MAX_PANES];
    int n_pane;      /* panes drawn */
    bool pane_only;  /* one pane takes the transcript's place */
};
/* Pure arithmetic: a column of panes from 100 cells on, two panes from 160 on, one instead of the
 * transcript below. input_rows: rows the input would like; a third of the screen at most. */
void frame_layout(int w, int h, int n_pane, int input_rows, struct layout *l);

struct pane {
    struct sheet rows; /* the first row is the title */
    int head;          /* rows at the top that do not scroll, the title included; >= 1 */
    int top;           /* first of the other rows shown */
    int scroll_to;     /* a row to keep in sight, -1: none */
};

/* A completion candidate; help: a line, or NULL. */
struct choice {
    char *text, *help;
};

/* Everything the screen shows. Pointers are the caller's. */
struct frame {
    bool ascii;
    struct transcript *talk;
    struct input *input;
    bool busy;                   /* a reply is generated */
    const struct sheet *status;  /* one row */
    struct pane *pane[MAX_PANES];
    int n_pane, focus;           /* pane with the focus, -1: the input */
    char *const *queued;         /* messages that wait */
    int n_queued;
    const char *hint;            /* a short message in the rule, or NULL */
    int done, total;             /* prefill; total 0: none */
    const char *attached;        /* files that go with the message, or NULL */
    const struct choice *choice; /* completion candidates */
    int n_choice, chosen;        /* chosen -1: none yet */
    struct pane *overlay;        /* help, in place of everything but the status; or NULL */
};

/* Draws into *g, which has the size already. */
void frame_draw(struct frame *f, struct grid *g);
/* Rows of the transcript and of a pane as the last layout had them, for paging. */
int frame_talk_height(const struct frame *f, int w, int h);

#endif
