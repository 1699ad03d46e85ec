/* args.h - the words of a command line: splitting, numbers, choices, completion, names that are
 * nearly right. Any thread. */
#pragma once

#include "kernels/base.h"

/* Splits text at blanks; "a b" is one word, \" a quote inside it. At most max words, allocated;
 * returns their number, -1 and *e when a quote is not closed or there are too many. */
int words_split(const char *text, char **word, int max, struct err *e);
void words_free(char **word, int n);
/* A whole number between min and max; `what` names it in the error. */
bool arg_int(const char *s, const char *what, long min, long max, long *out, struct err *e);
/* The index of the one of n words that a word is, or of which it is an unambiguous beginning; -1
 * and *e. */
int arg_choice(const char *s, const char *what, const char *const *word, int n, struct err *e);

/* Appends the items as "a, b or c", with `before` before each. */
void join_or(struct buf *out, const char *const *item, int n, const char *before);
/* Appends the names nearest to a word as "a, b or c"; nothing when no name is near. */
void nearest_names(const char *word, const char *(*name)(int i), int n, const char *before,
                   struct buf *out);

/* One candidate of a completion; help: a line of description, or NULL. */
typedef void cmd_add_fn(void *arg, const char *s, const char *help);
/* Offers the words of a list such as "auto | dark | light" that begin with `word`; of others, such
 * as "0 .. 100", none. */
void complete_words(const char *list, const char *word, cmd_add_fn *add, void *arg);
