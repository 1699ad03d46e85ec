/* sessions.h - the saved sessions as a list that a filter narrows while it is typed: for the
 * browser of the full screen and /sessions. Main thread only. */
#pragma once

#include "history/history.h"

struct session_list {
    struct session_row *row;   /* (n) latest used first */
    struct session_sums *sums; /* (n) read on first use */
    bool *summed;              /* (n) whether sums[i] was read */
    char **title;              /* (n) session_list_title(), NULL: not read yet */
    bool *twin;                /* (n) another session has the same title */
    int n;
    int *shown;  /* (n_shown) rows that pass the filter, in order */
    int n_shown;
    struct turn_owner {
        int64_t turn; /* rowid */
        int row;      /* of its session */
    } *owner;         /* (n_owner) sorted by turn: the full-text index returns turns */
    int n_owner;
};

/* Reads the sessions of a log and the ids of their turns; all sessions are shown. False and *e. The
 * caller frees, also after a failure. */
bool session_list_open(struct session_list *l, struct hdb *d, struct err *e);
void session_list_free(struct session_list *l);
/* Shows the sessions in which every word of the filter is part of the title or the model's folder,
 * is the beginning of the id, or is the number, and those with a turn that has all words (the last
 * may be the beginning of one). Case does not matter. "": all. False and *e: the text cannot be
 * searched; titles and models are filtered all the same. */
bool session_list_filter(struct session_list *l, struct hdb *d, const char *filter, struct err *e);
/* the number by which users name it */
int session_list_number(const struct session_list *l, int row);
/* The title of a row, "" if it has none. To titles that several sessions have it adds what was said
 * there next; read on first use. The list owns it. */
const char *session_list_title(struct session_list *l, struct hdb *d, int row);
/* The sums of a row: read on first use; zero if they cannot be read. */
const struct session_sums *session_list_sums(struct session_list *l, struct hdb *d, int row);
/* Whether the text has one of the filter's words, whatever their case. */
bool filter_touches(const char *filter, const char *text);
