/* fuzzy.h - finds names by some of their letters: for completion and the palette. Pure.
 *
 * A query is words with blanks between them. A word fits a name if its letters stand in the name in
 * their order; case does not matter (ASCII). Letters at the beginning of a word of the name count
 * most, then letters that follow each other; of names with equal letters the shorter one is first.
 */
#pragma once

#include "kernels/base.h"

enum {
    FUZZY_WORD = 32, FUZZY_NAME = 128, /* bytes that are compared; the rest is ignored */
    FUZZY_POINT = 64, /* the score of a letter; lower parts of a score prefer shorter names */
};

/* How well the query fits: the greater, the better; -1: a word of it fits neither the name nor, as
 * a whole, the help (NULL: none). hit, if not NULL: which bytes of the name the query's letters
 * are. An empty query fits everything with 0. */
int fuzzy_match(const char *query, const char *name, const char *help, bool hit[FUZZY_NAME]);
