/* frame.h - draws the screen's state into a grid of cells.
 *
 * Drawing depends on neither terminal nor clock nor engine: the same state and size give the same
 * grid, so screens are tested as text. Every text is drawn through text_next(), so a cell never
 * holds a control, bidi or invisible code point. */
#pragma once

#include "repl/text/find.h"
#include "repl/text/words.h"
#include "repl/tui/input.h"
#include "repl/tui/timeline.h"

enum { CELL_MARKS = 4, MIN_WIDTH = 40, MIN_HEIGHT = 10, MAX_PANES = 4 };
enum cell_flag {
    CELL_REVERSE = 1,
    CELL_POPUP = 2, /* on the background of a popup */
    CELL_UNDERLINE = 4,
    CELL_BOLD = 8,
};

struct cell {
    uint32_t cp[1 + CELL_MARKS]; /* a code point and its marks, 0-terminated when shorter */
    uint8_t width;               /* 1, 2, or 0: the right half of the previous cell */
    uint8_t style;               /* enum style */
    uint8_t flags;
    uint8_t zero; /* 0, so that there is no padding: cells are compared with memcmp() */
};

struct grid {
    int w, h;
    struct cell *cell; /* (h, w) */
    int x, y;          /* the cursor; x < 0: hidden */
    bool ascii;        /* truncated text ends in '~' instead of an ellipsis */
};

void grid_resize(struct grid *g, int w, int h); /* sets the size and clears all cells */
void grid_free(struct grid *g);
/* Draws text from column x in at most `room` cells, with a mark at its end if it is truncated;
 * returns the number of cells used. */
int grid_text(struct grid *g, int x, int y, int room, enum style st, int flags, const char *s,
              size_t n);

struct rect {
    int x, y, w, h;
};

/* What the layout depends on besides the size of the screen. */
struct shape {
    int n_pane;
    int input_rows;         /* wanted height of the input, which gets at most a third of the
                               screen */
    bool time;              /* the timeline is wanted */
    bool words;             /* the transcript has the focus, so it must be visible */
    int side;               /* per cent of the width for panes beside the transcript; 0: the
                               default */
    int weight[MAX_PANES];  /* how the panes share their height; 0: as others do */
};

/* The areas of the screen. Height 0: the area is not shown. */
struct layout {
    bool too_small;
    struct rect talk, rule, time, input, status, pane[MAX_PANES];
    int n_pane;      /* panes drawn, one above the other */
    bool pane_only;  /* the panes replace the transcript */
    bool below;      /* the panes are below the transcript */
};
/* Computes the layout. On a screen of 100 cells or more, panes are beside the transcript. On a
 * narrower one they replace it, or are below it if its words have the focus. As many panes are
 * drawn as have room for PANE_ROWS rows each. */
enum { SIDE_DEFAULT = 48, SIDE_MIN = 25, SIDE_MAX = 75, WEIGHT_DEFAULT = 8 };
void frame_layout(int w, int h, const struct shape *s, struct layout *l);

struct pane {
    struct sheet rows; /* the first row is the title */
    int head;          /* rows at the top that do not scroll, the title included; >= 1 */
    int least;         /* other rows that a low pane shows: for them, rows of the head below the
                          title scroll, too */
    int still;         /* rows that did not scroll when the pane was drawn last */
    int top;           /* first of the other rows shown */
    int scroll_to;     /* a row that must be visible, -1: none */
    int key;           /* the function key that closes it: 5 is F5; 0: none */
};

/* A completion candidate; help: a line, or NULL. */
struct choice {
    char *text, *help;
};

enum focus { FOCUS_INPUT = -1, FOCUS_WORDS = -2, FOCUS_TIME = -3 };

/* The screen's state. The caller owns everything that is pointed to. */
struct frame {
    bool ascii;
    struct transcript *talk;
    struct input *input;
    bool busy;                   /* a reply is generated, ... */
    bool paused;                 /* ... and the debugger holds it */
    const struct sheet *status;  /* one row */
    struct pane *pane[MAX_PANES];
    int n_pane, focus;           /* pane with the focus, or a value of enum focus */
    int side, weight[MAX_PANES]; /* as in struct shape */
    const struct timeline *time; /* NULL: no timeline */
    int time_at;                 /* index of the step that is shown; -1: now */
    char *const *queued;         /* messages that wait for the end of the reply */
    int n_queued;
    const char *hint;            /* a short message in the rule, or NULL */
    int done, total;             /* prefill; total 0: none */
    const char *attached;        /* files that go with the message, or NULL */
    const struct choice *choice; /* completion candidates */
    int n_choice, chosen;        /* chosen -1: none yet */
    const struct find *find;     /* matches that are highlighted; NULL: none */
    const struct pane *find_in;  /* they are in this pane; NULL: in the transcript */
    const char *find_line;       /* in the place of the hint and the footer */
    struct rect typed;           /* out: where the text of the input was drawn */
    struct pane *overlay;        /* covers everything except the last row; or NULL */
    const char *footer;          /* the last row below an overlay, or NULL */
};

/* Draws all rows of a sheet into *g, which gets their size. */
void frame_sheet(const struct sheet *s, bool ascii, struct grid *g);
/* Draws into *g, whose size is that of the screen. */
void frame_draw(struct frame *f, struct grid *g);
/* Draws the candidates of completion with their help above the input, whose upper edge is rule; the
 * chosen one is reversed, and the list scrolls so that it is visible. */
void frame_choices(const struct frame *f, struct grid *g, struct rect rule);

/* The part of the screen to which a cell belongs. */
enum place { PLACE_NONE, PLACE_TALK, PLACE_PANE, PLACE_TIME, PLACE_INPUT, PLACE_OVERLAY };
struct hit {
    enum place place;
    int pane;       /* PLACE_PANE: its index */
    int entry, row; /* PLACE_TALK: a row of an entry, entry -1: none; else row of the pane's
                       sheet */
    int x;          /* cells from the left of the row */
};
int frame_time_cells(int w); /* cells of the timeline on a screen of this width */
struct hit frame_hit(struct frame *f, int w, int h, int x, int y);
/* Rows of the transcript in a screen of this size, for paging. */
int frame_talk_height(const struct frame *f, int w, int h);
