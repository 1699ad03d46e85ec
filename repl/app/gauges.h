/* gauges.h - a server's metrics over time, or the steps of the local engine, as lines of text and
 * as JSON: what /gauges, /pool, the Pool pane and the status line show. But for the two readers,
 * pure functions of copies. */
#pragma once

#include "repl/repl.h"

/* Readings of a backend with VIEW_GAUGES, or what the steps of a session tell, copied. */
struct gauge_series {
    struct gauges_view view;
    struct gauge_sample *at; /* (n) oldest first, owned; of steps, `ns` is their number in
                                milliseconds, so that equal times are equal numbers of steps */
    struct address *step;    /* (n) owned; NULL: readings of a server */
    int n;
    uint64_t ns; /* clock_ns() when they were copied */
    int room[N_POOLS]; /* of steps, whose pools are counted in pages: all pages of a pool */
    char source[STEP_SOURCE]; /* "of this session", ...: which steps these are */
};
void gauge_series_read(struct gauge_series *s, struct backend *b);
/* The steps up to the app's address. logged: from the log where memory does not have the first
 * step, which may take a while; else only those in memory. For backends with VIEW_STEPS and
 * VIEW_POOLS. */
void gauge_series_steps(struct gauge_series *s, struct app *a, bool logged);
void gauge_series_free(struct gauge_series *s);

/* One number over time. Values that are NAN do not count. */
struct gauge_range {
    float min, max, last; /* NAN: never reported */
    int n;
};
struct gauge_range gauge_range(const struct gauge_series *s, enum gauge g);
/* Spreads the readings over cells of equal time, the oldest first: each cell gets the greatest
 * value read in its time, or the mean of rates, NAN: nothing was read. Returns how many of the
 * `most` cells are used, *ms: the time of one. */
int gauge_cells(const struct gauge_series *s, enum gauge g, int most, float *cell, double *ms);

/* The pools, a line each. */
void gauge_pools(const struct gauge_series *s, const struct pool_view pool[N_POOLS],
                 const struct printer *to);
/* A graph of each number that is known, with its least and greatest value. most: readings listed in
 * JSON, the latest ones. */
void view_gauges(const struct gauge_series *s, int most, int width, const struct printer *to);
