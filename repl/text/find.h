/* find.h - every place of a text in rows as they are shown, in the transcript or in a pane: for
 * Ctrl-F. Pure.
 *
 * Case does not matter (ASCII). Rows that were wrapped are joined by a blank, so a text is found
 * that goes on in the next row; such a match has a piece in each of its rows. */
#pragma once

#include "repl/text/sheet.h"

enum { FIND_MOST = 9999 }; /* matches that are kept; the rest is not counted */

struct find {
    struct buf pattern;
    struct find_piece {
        int entry, row; /* in the order of the calls of find_rows(), and of the rows */
        int from, to;   /* bytes of the row's text */
        int match;
    } *piece; /* (n_piece) owned */
    int n_piece;
    int n;  /* matches */
    int at; /* the one that is shown, from 0; -1: none */
};

void find_free(struct find *f);
/* Forgets the matches, not the pattern and not `at`. */
void find_clear(struct find *f);
/* Adds the matches in rows [from, n) of an entry. */
void find_rows(struct find *f, int entry, const struct sheet_row *row, int from, int n);
/* The first piece of a match. */
const struct find_piece *find_match(const struct find *f, int match);
/* The last match that begins at or before a row, or the first one at or after it; -1: none. */
int find_before(const struct find *f, int entry, int row);
int find_after(const struct find *f, int entry, int row);
/* Whether byte `at` of a row is in a match: 0: no, 1: yes, 2: in the one that is shown. */
int find_here(const struct find *f, int entry, int row, int at);
