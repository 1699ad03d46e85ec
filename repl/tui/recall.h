/* recall.h - the lines typed before: a list without duplicates, newest last, kept in a file.
 *
 * The file ($XDG_STATE_HOME/aerie/history, folder 0700, file 0600) holds one entry a line, with
 * "\\" and "\n" for backslash and line break. An entry is appended by one write as it is entered,
 * so two programs may share the file and a killed one loses nothing; it is rewritten through a
 * temporary file only when it has grown to twice what is kept.
 */
#ifndef AERIE_RECALL_H
#define AERIE_RECALL_H

#include "kernels/base.h"

enum { RECALL_MAX = 1000, RECALL_ENTRY = 64 << 10 };

struct recall {
    char **line;
    int n, cap;
    char *path; /* NULL: in memory only */
};

/* $XDG_STATE_HOME/aerie/NAME, else ~/.local/state/aerie/NAME; folders are made (0700). NULL if
 * there is no home. The caller frees. */
char *recall_path(const char *name);
/* Reads the file; a missing or unreadable one is an empty list. Takes path (may be NULL). */
void recall_open(struct recall *r, char *path);
void recall_close(struct recall *r);
/* Adds an entry as the newest; an older equal one is dropped. Entries above RECALL_ENTRY bytes and
 * those that begin with a space are not kept. */
void recall_add(struct recall *r, const char *text, size_t n);
/* The newest entry before index `before` that contains the pattern; -1: none. */
int recall_search(const struct recall *r, const char *pattern, int before);

#endif
