/* transcript.h - the chat on the screen: entries, laid out lazily, seen through a window.
 *
 * An entry is a message, a reply, its reasoning, or a finished sheet. Rows are made for one width
 * and kept; only entries that are looked at are laid out, and of a streaming reply only the open
 * block at its end is rendered again. The window either sticks to the tail or holds its top row
 * while the text below grows.
 */
#ifndef AERIE_TRANSCRIPT_H
#define AERIE_TRANSCRIPT_H

#include "repl/text/sheet.h"

enum entry_kind {
    ENTRY_USER,
    ENTRY_REPLY,
    ENTRY_THINK, /* a reasoning channel */
    ENTRY_SHEET, /* command output */
    ENTRY_NOTE,  /* a notice; those that follow each other stand without a gap */
};

struct entry {
    enum entry_kind kind;
    int turn;          /* 0: belongs to none */
    struct buf text;   /* raw bytes of a message or reply */
    struct sheet src;  /* ENTRY_SHEET, ENTRY_NOTE: unwrapped */
    bool open;         /* more text may come */

    struct sheet rows; /* the layout */
    int width;         /* it was made for; 0: none */
    size_t done;       /* bytes of text whose rows are final */
    int done_rows;
    size_t shown;      /* bytes of text that the rows show */
    uint64_t frame;    /* when the open block was rendered */
};

struct transcript {
    struct entry *entry;
    int n, cap;
    bool ascii, raw, think; /* raw: replies as they came, messages whole; think: show reasoning */
    int width;              /* of the text, gutter excluded */
    uint64_t frame;         /* views so far */

    bool tail;              /* the window shows the end */
    int top, top_row;       /* else: entry and row (gap included) of its first line */
    int below;              /* rows below the window when it was last moved */
};

void transcript_init(struct transcript *t, bool ascii);
void transcript_free(struct transcript *t);
void transcript_clear(struct transcript *t);

void transcript_user(struct transcript *t, int turn, const char *text, size_t n);
/* Appends to the open entry of this turn and kind, or begins one. */
void transcript_append(struct transcript *t, int turn, enum entry_kind kind, const char *text,
                       size_t n);
void transcript_end(struct transcript *t, int turn); /* no more text for this turn */
/* Takes the sheet's rows; the sheet is empty afterwards. */
void transcript_sheet(struct transcript *t, enum entry_kind kind, int turn, struct sheet *s);
void transcript_retract(struct transcript *t, int turn); /* removes the turn's entries */
void transcript_set_raw(struct transcript *t, bool raw);
void transcript_set_think(struct transcript *t, bool think);

/* One line of the window. row NULL: an empty line. */
struct transcript_line {
    const struct sheet_row *row;
    enum entry_kind kind;
    bool first; /* of its entry: the gutter shows the mark */
};
/* Lays out and fills line[height]; returns how many rows lie below the window. */
int transcript_view(struct transcript *t, int width, int height, struct transcript_line *line);
/* Moves the window; call with the size of the last view. */
void transcript_scroll(struct transcript *t, int rows, int height);
void transcript_to_tail(struct transcript *t);
void transcript_to_head(struct transcript *t);

#endif
