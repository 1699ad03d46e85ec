/* fault.h - parses a message of the checker: which rule, which plan, which row, column or cell.
 *
 * The checker's messages are one line of a fixed form (check.h): rule, plan, table, then words such
 * as "row 3" or "column 8". A view of a violation takes the place from here, so only the message
 * itself has to be logged. Pure functions of text; any thread.
 */
#ifndef AERIE_FAULT_H
#define AERIE_FAULT_H

#include "kernels/base.h"

struct fault_place {
    char rule[8];  /* "I4"; "": the message names no rule */
    char plan[16]; /* mode of the refused plan, as /plan takes it; "": no plan was refused */
    char pool[8];  /* "full", "swa", "draft"; "": not named */
    /* -1: not named. row, request, column (logical page): of the plan's table; cell: a position of
     * the sequence; page: of the pool. */
    int row, request, column, cell, page;
};

/* Reads a message; false, and a place without a rule, when it is no message of the checker. */
bool fault_place_read(const char *message, struct fault_place *at);
/* "I4 verify, swa, row 0, position 130": the place in a few words. */
void fault_place_print(const struct fault_place *at, struct buf *out);
/* The logical page (of `page_size` tokens) that the place lies in; -1: it names none. */
int fault_place_column(const struct fault_place *at, int page_size);

#endif
