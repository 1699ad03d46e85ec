/* served.h - replies of a server: their times, counts and accepted drafts, as lines of text and as
 * JSON, for /timing, /accept, /stats and the panes. Pure functions of copies. */
#pragma once

#include "engine/backend.h"
#include "repl/text/print.h"

/* Of a backend with VIEW_SERVED, copied. */
struct served_replies {
    struct served_turn *at; /* (n) oldest first, owned */
    int n;
    const char *kind, *rate, *length; /* as in struct backend_info and struct served_ops */
    struct step_info *step; /* (n_step) owned */
    int n_step;
};
void served_replies_read(struct served_replies *r, struct backend *b);
void served_replies_free(struct served_replies *r);

/* Median, 99th percentile and greatest of some numbers, by nearest rank. n 0: there are none. */
struct spread {
    double median, p99, max;
    int n;
};
/* Sorts v. */
struct spread spread_of(double *v, int n);

/* Milliseconds between the arrivals of consecutive pieces of each reply, and how many tokens a
 * piece after the first had on average (NAN: not known). Returns the number of gaps; the caller
 * frees *out. */
int served_gaps(const struct served_replies *r, double **out, double *tokens);

void served_timing(const struct served_replies *r, const struct printer *to);
/* Accepted drafts reply by reply. */
void served_accept(const struct served_replies *r, const struct printer *to);
/* The line of /stats; the member "latest". */
void served_latest(const struct served_replies *r, const struct printer *to);
