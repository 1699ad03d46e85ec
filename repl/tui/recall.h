/* recall.h - the input history: a list without duplicates, newest last, kept in a file.
 *
 * The file ($XDG_STATE_HOME/aerie/history, folder 0700, file 0600) holds one entry per line, with
 * "\\" and "\n" for backslash and line break. Each entry is appended by one write() when it is
 * entered, so two processes may share the file and a killed one loses nothing. The file is replaced
 * (through a temporary file) when it has twice the entries that are kept. */
#pragma once

#include "kernels/base.h"

enum { RECALL_MAX = 1000, RECALL_ENTRY = 64 << 10 };

struct recall {
    char **line;
    int n;
    char *path; /* NULL: in memory only */
};

/* The path $XDG_STATE_HOME/aerie/NAME, else ~/.local/state/aerie/NAME; creates the folders (0700).
 * NULL if there is no home folder. The caller frees. */
char *recall_path(const char *name);
/* Reads the file; the list is empty if that fails. Takes ownership of path, which may be NULL. */
void recall_open(struct recall *r, char *path);
void recall_close(struct recall *r);
/* Adds an entry as the newest and removes an older equal one. Entries of more than RECALL_ENTRY
 * bytes and entries that begin with a space are ignored. */
void recall_add(struct recall *r, const char *text, size_t n);
/* The newest entry before index `before` that contains the pattern; -1: none. */
int recall_search(const struct recall *r, const char *pattern, int before);
