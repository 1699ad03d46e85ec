/* words.h - the words of replies as the transcript shows them, and the tokens that produced them.
 *
 * An entry of the transcript has a mark for each token that produced some of its text. A word is a
 * run of characters of one row, between blanks, that shows text of the entry; its tokens are those
 * whose bytes it shows. The address is a step: its words are drawn highlighted, and the words after
 * it dimmed or hidden. Main thread only. */
#pragma once

#include "repl/text/transcript.h"

/* A word; from == to: none. */
struct word {
    int entry, row;
    int x, w;     /* cells of the row */
    int from, to; /* bytes of the entry's text */
};

/* Notes that a token produced bytes [from, to) of the open entry of this turn and kind; calls come
 * in the order of the text. */
void words_mark(struct transcript *t, int turn, enum entry_kind kind, struct token_mark m);
/* The mark of byte `at` of an entry; NULL: no token is known. */
const struct token_mark *words_token(const struct entry *e, int at);
/* The marks of a word: entry->mark[first, first + n). Returns n. */
int words_tokens(const struct entry *e, struct word w, int *first);

/* The first or the last word of the transcript. False: it has none. */
bool words_end(struct transcript *t, bool last, struct word *w);
/* The next word (by 1) or the one before (by -1), in other rows and entries, too. False: there is
 * none, and *w is unchanged. */
bool words_next(struct transcript *t, int by, struct word *w);
/* The word nearest to the middle of *w in the next row (by 1) or the one before that has any. */
bool words_below(struct transcript *t, int by, struct word *w);
/* The word at a cell of a row of an entry. */
bool words_at(struct transcript *t, int entry, int row, int x, struct word *w);
/* The word that shows byte `at` of an entry, or the next one. */
bool words_of_byte(struct transcript *t, int entry, int at, struct word *w);
/* The first word that a step produced. False: none that is shown. */
bool words_of_step(struct transcript *t, int turn, int step, struct word *w);
