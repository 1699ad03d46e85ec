/* gauges.h - a server's metrics over time, as lines of text and as JSON: what /gauges, /pool, the
 * Pool pane and the status line show. Pure functions of copies. */
#ifndef AERIE_REPL_GAUGES_H
#define AERIE_REPL_GAUGES_H

#include "engine/backend.h"
#include "repl/text/sheet.h"

/* Readings of a backend with VIEW_GAUGES, copied. */
struct gauge_series {
    struct gauges_view view;
    struct gauge_sample *at; /* (n) oldest first, owned */
    int n;
    uint64_t ns; /* clock_ns() when they were copied */
};
void gauge_series_read(struct gauge_series *s, struct backend *b);
void gauge_series_free(struct gauge_series *s);

/* One number over time. Values that are NAN do not count. */
struct gauge_range {
    float min, max, last; /* NAN: never reported */
    int n;
};
struct gauge_range gauge_range(const struct gauge_series *s, enum gauge g);
/* Spreads the readings over cells of equal time, the oldest first: each cell gets the greatest
 * value read in its time, NAN: nothing was. Returns how many of the `most` cells are used, *ms: the
 * time of one. */
int gauge_cells(const struct gauge_series *s, enum gauge g, int most, float *cell, double *ms);

/* "full", "swa", "running", ...: of the graph and of the JSON member. */
const char *gauge_name(const struct gauges_view *v, enum gauge g);
/* The pools, and a graph of each number that the server reports, with its least and greatest
 * value. */
void view_gauges(const struct gauge_series *s, const struct pool_view pool[N_POOLS], int width,
                 struct sheet *out);
/* most: readings listed, the latest ones. */
void gauges_json(const struct gauge_series *s, int most, struct buf *json);

#endif
