/* locate.h - finds the first layer and operation whose tapped results differ between two runs by
 * more than they may. Main thread only. */
#pragma once

#include "engine/probe.h"
#include "repl/compare/trace.h"

/* Where two runs first differ in a step. */
struct place {
    bool found;
    int layer;           /* n_layer: after the last layer */
    enum probe_point at; /* the first tapped point that differs; N_PROBE_POINTS: the logits */
    bool sliding, moe;   /* the layer */
    bool experts;        /* PROBE_OUT: other experts were chosen */
    int row, pos;        /* the first row that differs there: of the first side's pass */
    int row_b;           /* the same row in the other side's pass */
    int rows;            /* rows that differ there, of `compared` */
    int compared;
    double far;          /* largest relative distance of a row there (L2) */
    double band;         /* relative distance that rounding explains there; 0: none */
};
/* The operation between two tapped points: "attention", "q, k and v", "MLP", ... */
const char *place_operation(const struct place *p);

/* A relative distance for each point of each layer that rounding explains; 0: none. */
struct bands {
    int n_layer;
    double (*at)[N_PROBE_POINTS]; /* (n_layer + 1) owned */
    double least; /* what storing a value rounds away, wherever it was computed */
};
void bands_free(struct bands *b);

/* Rows that correspond: row[i] of *a to with[i] of *b, n of them. */
struct row_map {
    int n, a[PROBE_ROWS], b[PROBE_ROWS];
};
/* All kept rows of two passes over the same tree or chunk. False: they have other numbers of
 * rows. */
bool rows_all(const struct probe *a, const struct probe *b, struct row_map *m);
/* The row from which token `at` of the tokens that a step emitted was chosen; -1: not kept. */
int row_of_token(const struct probe *p, const struct step_row *s, int at);

/* The first point, in the order of computation, at which a row lies further from its partner than
 * `factor` times the band. bands NULL: at which any bit differs. */
void locate(const struct probe *a, const struct probe *b, const struct row_map *m,
            const struct bands *bands, double factor, struct place *p);
/* Widens the bands by the distances of two probes' rows. */
void bands_add(struct bands *bands, const struct probe *a, const struct probe *b,
               const struct row_map *m);
