/* flashinfer.h - FlashInfer's records of level 10, held against attention in double precision.
 *
 * With FLASHINFER_LOGLEVEL=10 each call writes a folder ..._FUNCTION_callNNNN with metadata.jsonl,
 * inputs.pt and outputs.pt (or .safetensors). Of the paged wrappers (BatchPrefillWithPagedKVCache,
 * BatchDecodeWithPagedKVCache) a call of run() is joined with the latest plan() of the same object;
 * the keys and values that the plan's pages name are attended to by the record's own queries, and
 * the result is compared with the record's. So the inputs agree by construction, and a difference
 * is the kernel's or the plan's. If it is that of another window, mask or length, that is named.
 * One thread. */
#pragma once

#include "kernels/base.h"

enum fi_verdict { FI_AGREES, FI_DIFFERS, FI_BROKEN, FI_NO_OUTPUT, FI_SKIPPED };

struct fi_run {
    char *name; /* of its folder */
    enum fi_verdict verdict;
    int requests, rows;
    double worst;           /* relative L2 error of the worst row */
    int request, row, position; /* of the first row beyond the tolerance, else of the worst; row: of
                                   the call */
    int window;             /* W, the row's own key included; 0: none */
    char why[200];          /* FI_BROKEN: what is wrong with the tables; FI_SKIPPED: what is
                               missing */
    const char *like;       /* FI_DIFFERS: whose result it is instead; NULL: of none that was
                               tried */
};

struct fi_report {
    struct fi_run *v; /* in the order of the calls */
    int n;
    int records; /* folders; of them `other` are of functions that are not compared */
    int other;
    int first; /* the first that does not agree; -1: none */
    double tol; /* the largest that was used */
};

/* Whether the path is a folder of such records, or one of them. */
bool fi_is(const char *path);
/* Compares every call. True: all agree. False: *e is ERR_NEGATIVE, or ERR_USAGE: there is nothing
 * to compare, or it was stopped. stop may be NULL. The caller ends with fi_free(). */
bool fi_compare(const char *path, const struct stop *stop, struct fi_report *r, struct err *e);
void fi_free(struct fi_report *r);
const char *fi_word(enum fi_verdict v);
