/* input.h - the line editor: a state that changes with each key. Depends on no terminal.
 *
 * The text is the bytes as typed or pasted; text_next() decides how they are drawn. The cursor is
 * always between two grapheme clusters. Rows are broken after `width` cells, also within words. */
#pragma once

#include "repl/tui/keys.h"
#include "repl/tui/recall.h"

enum { INPUT_MAX = 1 << 20 }; /* bytes of one message */

/* What the caller has to do after a key. */
enum input_act {
    IN_NONE,     /* nothing: the key was handled, or has no meaning here */
    IN_SEND,     /* take the text with input_take() */
    IN_EDITOR,   /* open an external editor */
    IN_COMPLETE, /* Tab */
    IN_EOF,      /* Ctrl-D on an empty line */
    IN_STOP,     /* Ctrl-C */
    IN_RECALL_QUEUED, /* Up on an empty line: take back a queued message, or show the history */
    IN_OTHER,    /* not an editing key */
    IN_FULL,     /* the text reached INPUT_MAX; the rest was dropped */
};

struct input_row {
    size_t from, to; /* bytes of the text, without the line break */
};

struct input {
    struct buf text;
    size_t cursor;
    int width;             /* cells of a row, >= 2; set by the caller */
    struct recall *recall; /* not owned; NULL: no history */

    int at;                /* history entry being shown; recall->n: the user's own text */
    struct buf draft;      /* the user's own text while an entry is shown */
    struct buf kill;       /* the erased text that Ctrl-Y inserts */
    bool killing;          /* the last key erased text: the next one adds to `kill` */
    bool after_x;          /* Ctrl-X was pressed */
    int goal;              /* column that Up and Down try to keep; -1: the current one */
    int pasted_lines;      /* lines of the last paste still in the text, for the hint */

    bool searching; /* Ctrl-R */
    struct buf pattern;
    int match; /* entry, -1: none */
    struct buf before; /* the text before the search, restored by Ctrl-G */

    struct input_row *row; /* the layout; input_layout() */
    int n_row, cap_row;
    bool laid;             /* the layout fits text and width */
    int laid_width;
};

void input_init(struct input *in, struct recall *recall);
void input_free(struct input *in);
/* Handles a key. *x is set to the key if it followed Ctrl-X and the editor does not use it. */
enum input_act input_key(struct input *in, const struct key *k, struct key *x);
void input_set(struct input *in, const char *text, size_t n);
bool input_insert(struct input *in, const char *text, size_t n); /* false: truncated */
/* Returns the text, which the caller frees, and empties the editor. `remember`: adds the text to
 * the history. */
char *input_take(struct input *in, bool remember);
/* Adds a line to the history that was not typed here; the text stays. */
void input_remember(struct input *in, const char *text, size_t n);
/* Replaces bytes [from, cursor) by text (a completion). */
void input_replace(struct input *in, size_t from, const char *text);

/* Lays the text out; afterwards row[] holds at least one row. */
void input_layout(struct input *in);
/* Row and column of the cursor in the layout. */
void input_cursor(struct input *in, int *row, int *column);
/* The first cluster of s: returns its bytes, *width is its cells (a tab has TAB_CELLS). */
enum { TAB_CELLS = 4 };
size_t input_cluster(const char *s, size_t n, int *width);
