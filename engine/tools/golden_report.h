/* golden_report.h - verdicts on the checks of golden.c, and the lines of the report.
 *
 * A check is ok if its error is within the tolerance. If the error is larger, but at most by the
 * tolerance larger than that of the runs with noise (noise_backend.h), the check is "near":
 * reported, and not failed. Runs with noise write no lines; they only record the error of each
 * check. */
#pragma once

#include "kernels/base.h"

enum verdict { FAIL, NEAR, OK };

struct error {
    double max_abs, rel; /* |got - want| at most; norm(got - want) / norm(want) */
    double row;          /* the latter of the median row */
};

/* Rows of n. NaN anywhere makes max_abs and rel NaN. */
struct error compare(const float *got, const float *want, int rows, size_t n);

/* The largest errors of all runs. NaN does not count as large. */
struct golden_limit {
    char key[48];
    struct error worst; /* each of its figures */
    int same;           /* ids or nodes before the first that differed; INT_MAX: none did */
};
enum { MAX_LIMITS = 96 };
struct limits {
    int n;
    struct golden_limit v[MAX_LIMITS];
};

void limits_error(struct limits *l, const char *key, struct error e);
void limits_same(struct limits *l, const char *key, int same, int n); /* of n */
const struct golden_limit *limits_find(const struct limits *l, const char *key); /* NULL: none */
/* Removes the limits of checks that a run without noise did not pass: such an error is not caused
 * by rounding. */
void limits_void(struct limits *l, const struct limits *quiet, double tol);

struct golden_report {
    struct buf *out; /* NULL: a run with noise, which only records limits */
    bool json;
    double tol;
    int checks, failed, near;
    struct limits limits;
};

void report_line(struct golden_report *r, enum verdict v, const char *name, const char *what);
void check_line(struct golden_report *r, bool ok, const char *name, const char *what);
/* key: names the tensor; checks of one tensor have the same key. */
void check_error(struct golden_report *r, const char *name, const char *key, struct error e,
                 const char *more);
/* same: the first place that differs, or n. */
enum verdict verdict_at(struct golden_report *r, const char *key, int same, int n);
/* With margins, a first difference whose margin (top-1 minus top-2 logit of the reference) is below
 * `tie` is a tie that rounding decided. key NULL: runs with noise are not considered. */
void check_ids(struct golden_report *r, const char *name, const char *key, const int32_t *got,
               int n_got, const int32_t *want, int n, const float *margin, double tie);
