/* timeline.h - the steps of the session as one line of cells.
 *
 * A moment is a committed step; the timeline holds those of the session in their order, and sums
 * them up in cells: one step a cell, or `unit` steps a cell when there are more steps than cells. A
 * moment costs 16 bytes; adding one changes one cell, except when the unit grows. Depends on
 * neither terminal nor engine's state. Main thread only. */
#pragma once

#include "engine/event.h"
#include "repl/text/sheet.h"

enum moment_mark {
    MARK_WINDOW = 1, /* pages behind the window were released */
    MARK_TURN = 2,   /* the turn's first step */
    MARK_EVICT = 4,  /* checkpoints or idle sessions gave up pages */
    MARK_PAUSE = 8,  /* a breakpoint or a watch paused the turn here */
    MARK_FAULT = 16, /* the step after it failed */
};

struct moment {
    int turn, step;
    uint8_t kind; /* enum step_kind */
    uint8_t drafted, accepted, n_token;
    uint8_t marks; /* enum moment_mark */
    bool piece;    /* a piece of a server's stream, whose step is not known */
};

struct timeline {
    struct moment *at; /* (n) */
    int n;
    int cells; /* wanted at most; >= 1 */
    int unit;  /* steps a cell */
    struct moment_sum {
        int accepted, cycles, steps;
        uint8_t marks;
    } *cell; /* (timeline_used()) */
    int cap_cell;
    int most; /* accepted of any step */
};

void timeline_free(struct timeline *t); /* also empties it */
/* Adds a step. If it or later steps are there, they are removed first: the session went back and
 * computes them again. */
void timeline_add(struct timeline *t, struct moment m);
/* Adds marks to a step; to the latest before it if there is none. */
void timeline_mark(struct timeline *t, int turn, int step, int marks);
/* Removes the steps after turn `turn`. */
void timeline_cut(struct timeline *t, int turn);
/* The index of a step, or of the latest before it; -1: there is none. */
int timeline_find(const struct timeline *t, int turn, int step);
/* The index of the first step of the next turn after index i (by 1) or of the previous one (by -1);
 * for -1, of the turn itself if i is after its first step. Stays within the timeline. */
int timeline_turn(const struct timeline *t, int i, int by);

/* Chooses the unit so that the timeline fits into `cells` cells. */
void timeline_fit(struct timeline *t, int cells);
int timeline_used(const struct timeline *t);              /* cells */
int timeline_cell_of(const struct timeline *t, int i);    /* of a step's index */
int timeline_step_of(const struct timeline *t, int cell); /* index of a cell's last step, -1:
                                                             none */
/* How a cell is drawn: a text of one cell, its style, and whether it is underlined
 * (MARK_WINDOW). */
const char *timeline_cell(const struct timeline *t, int cell, bool ascii, enum style *st,
                          bool *underline);
