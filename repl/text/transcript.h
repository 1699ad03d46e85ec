/* transcript.h - the chat on the screen: a list of entries, of which a window is shown.
 *
 * An entry is a message, a reply, its reasoning, or a finished sheet. Its rows are laid out for one
 * width when they are first shown, and kept; of a streaming reply only the incomplete block at its
 * end is rendered again. The window either follows the end of the transcript or keeps its top row
 * while text is appended. Main thread only. */
#pragma once

#include "repl/text/sheet.h"

enum entry_kind {
    ENTRY_USER,
    ENTRY_REPLY,
    ENTRY_THINK, /* a reasoning channel */
    ENTRY_SHEET, /* command output */
    ENTRY_NOTE,  /* a notice; there is no gap between successive notices */
};

/* The bytes [from, to) of an entry's text that a token produced. */
struct token_mark {
    int from, to;
    int step;     /* of the entry's turn */
    int nth;      /* of the step's tokens */
    int32_t id;
    int position; /* in the context; -1: not known */
    uint8_t depth; /* of the accepted drafted token; 0: it was not drafted */
    bool bonus;   /* the target's own token after a draft */
};

struct entry {
    enum entry_kind kind;
    int turn;          /* 0: none */
    struct buf text;   /* raw bytes of a message or reply */
    struct sheet src;  /* ENTRY_SHEET, ENTRY_NOTE: unwrapped */
    bool open;         /* more text may come */
    struct token_mark *mark; /* of its tokens, in the order of the text: see words.h */
    int n_mark;

    struct sheet rows; /* the layout */
    int width;         /* of the layout; 0: there is none */
    size_t done;       /* bytes of text whose rows are final */
    int done_rows;
    size_t shown;      /* bytes of text that the rows show */
    uint64_t frame;    /* of the last rendering of the incomplete block */
};

struct transcript {
    struct entry *entry;
    int n;
    bool ascii, raw, think; /* raw: replies as plain text, long messages complete; think: reasoning
                               is shown */
    int width;              /* of the text, without the gutter */
    uint64_t frame;         /* number of calls of transcript_view() */

    /* how tokens are drawn: used by frame.c only, the layout does not depend on it */
    bool tint;              /* words are tinted by how their tokens were accepted */
    int at_turn, at_step;   /* the step whose words are highlighted; 0: none */
    bool hide;              /* text after that step is not drawn; false: it is drawn dimmed */
    int cursor, cursor_from, cursor_to; /* entry and bytes of the word under the cursor; -1: none */

    bool (*stop)(void);
    bool tail;              /* the window shows the end */
    int top, top_row;       /* if not `tail`: entry and row (with its gap) of the window's first
                               line */
    int below;              /* rows below the window when it was last moved */
};

/* Laying out a long text ends early when t->stop says so; the caller sets it (NULL: never). */
void transcript_init(struct transcript *t, bool ascii);
void transcript_free(struct transcript *t);
void transcript_clear(struct transcript *t);

void transcript_user(struct transcript *t, int turn, const char *text, size_t n);
/* Appends to the open entry of this turn and kind, or to a new one. */
void transcript_append(struct transcript *t, int turn, enum entry_kind kind, const char *text,
                       size_t n);
/* Moves the open entries of this turn to the end, below what was shown since they began. */
void transcript_go_on(struct transcript *t, int turn);
void transcript_end(struct transcript *t, int turn); /* no more text for this turn */
/* Adds an entry of no turn with the sheet's rows; the sheet is empty afterwards. */
void transcript_sheet(struct transcript *t, enum entry_kind kind, struct sheet *s);
void transcript_retract(struct transcript *t, int turn); /* removes the turn's entries */
void transcript_set_raw(struct transcript *t, bool raw);
void transcript_set_think(struct transcript *t, bool think);

/* One line of the window. row NULL: an empty line. */
struct transcript_line {
    const struct sheet_row *row;
    enum entry_kind kind;
    bool first; /* of its entry: the gutter shows the mark */
    int entry, n; /* its number among the rows of its entry */
};
/* Lays out the entries in the window and fills line[height]; returns the number of rows below. */
int transcript_view(struct transcript *t, int width, int height, struct transcript_line *line);
/* Moves the window; call with the size of the last view. */
void transcript_scroll(struct transcript *t, int rows, int height);
/* Moves the window, if it does not show this row, so that the row is in its middle; with `last`, so
 * that the row is its last one, in any case. */
void transcript_show(struct transcript *t, int entry, int row, bool last, int height);
/* Lays an entry out for the present width. */
void transcript_lay(struct transcript *t, int entry);
void transcript_to_tail(struct transcript *t);
void transcript_to_head(struct transcript *t);
