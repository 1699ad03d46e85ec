/* golden_report.c - see golden_report.h. */
#include "engine/tools/golden_report.h"

#include "kernels/json.h"
#include "kernels/sort.h"

#include <limits.h>
#include <math.h>

/* ---- errors ---------------------------------------------------------------------------------- */

struct error compare(const float *got, const float *want, int rows, size_t n)
{
    double diff = 0, norm = 0, most = 0, *row = xmalloc((size_t)rows * sizeof *row);
    for (int r = 0; r < rows; r++) {
        double d2 = 0, n2 = 0;
        for (size_t i = (size_t)r * n; i < ((size_t)r + 1) * n; i++) {
            double d = (double)got[i] - want[i];
            d2 += d * d;
            n2 += (double)want[i] * want[i];
            if (!(fabs(d) <= most))
                most = fabs(d);
        }
        row[r] = n2 > 0 ? sqrt(d2 / n2) : sqrt(d2);
        diff += d2;
        norm += n2;
    }
    sort_up(row, rows);
    struct error e = {most, sqrt(diff) / (norm > 0 ? sqrt(norm) : 1), rows ? row[rows / 2] : 0};
    free(row);
    return e;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static struct golden_limit *limit_of(struct limits *l, const char *key)
{
    struct golden_limit *found = (struct golden_limit *)(uintptr_t)limits_find(l, key);
    if (found)
        return found;
    CHECK(l->n < MAX_LIMITS && strlen(key) < sizeof found->key);
    found = &l->v[l->n++];
    *found = (struct golden_limit){.same = INT_MAX};
    memcpy(found->key, key, strlen(key));
    return found;
}

const struct golden_limit *limits_find(const struct limits *l, const char *key)
{
    for (int i = 0; i < l->n; i++)
        if (!strcmp(l->v[i].key, key))
            return &l->v[i];
    return NULL;
}

void limits_error(struct limits *l, const char *key, struct error e)
{
    struct golden_limit *m = limit_of(l, key);
    m->worst.max_abs = e.max_abs > m->worst.max_abs ? e.max_abs : m->worst.max_abs;
    m->worst.rel = e.rel > m->worst.rel ? e.rel : m->worst.rel;
    m->worst.row = e.row > m->worst.row ? e.row : m->worst.row;
}

void limits_same(struct limits *l, const char *key, int same, int n)
{
    struct golden_limit *m = limit_of(l, key);
    if (same < n && same < m->same)
        m->same = same;
}

void limits_void(struct limits *l, const struct limits *quiet, double tol)
{
    for (int i = 0; i < l->n; i++) {
        const struct golden_limit *q = limits_find(quiet, l->v[i].key);
        if (!q || !(q->worst.rel <= tol))
            l->v[i].worst = (struct error){0};
        if (!q || q->same < INT_MAX)
            l->v[i].same = INT_MAX;
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

void report_line(struct golden_report *r, enum verdict v, const char *name, const char *what)
{
    static const char *const word[] = {[FAIL] = "FAIL", [NEAR] = "near", [OK] = "ok"};
    if (!r->out)
        return;
    r->failed += v == FAIL;
    r->near += v == NEAR;
    r->checks++;
    if (!r->json) {
        buf_printf(r->out, "%-4s  %-28s %s\n", word[v], name, what);
        return;
    }
    jput_record(r->out, "%s{check}%d{ok?}%d{near?}%s{detail}", name, v != FAIL, v == NEAR, what);
}

void check_line(struct golden_report *r, bool ok, const char *name, const char *what)
{
    report_line(r, ok ? OK : FAIL, name, what);
}

void check_error(struct golden_report *r, const char *name, const char *key, struct error e,
                 const char *more)
{
    char what[200], noise[48] = "";
    if (!r->out) {
        limits_error(&r->limits, key, e);
        return;
    }
    const struct golden_limit *l = limits_find(&r->limits, key);
    double reach = l ? l->worst.rel : 0, row = l ? l->worst.row : 0;
    /* an error of some rows only (another expert was chosen) must not become one of all rows */
    bool near = reach > r->tol && e.rel <= reach + r->tol &&
                e.row <= r->tol + (row > r->tol ? row : 0);
    if (reach > r->tol)
        snprintf(noise, sizeof noise, "; with noise %.3g", reach);
    snprintf(what, sizeof what, "max abs %.3g  relative L2 %.3g (tolerance %.0e%s)%s", e.max_abs,
             e.rel, r->tol, noise, more);
    report_line(r, e.rel <= r->tol ? OK : near ? NEAR : FAIL, name, what);
}

/* Near if runs with noise differ at the same place or earlier. */
enum verdict verdict_at(struct golden_report *r, const char *key, int same, int n)
{
    if (!r->out)
        limits_same(&r->limits, key, same, n);
    const struct golden_limit *l = limits_find(&r->limits, key);
    return same == n ? OK : l && same >= l->same ? NEAR : FAIL;
}

void check_ids(struct golden_report *r, const char *name, const char *key, const int32_t *got,
               int n_got, const int32_t *want, int n, const float *margin, double tie)
{
    static const char *const why[] = {
        [FAIL] = "", [NEAR] = ": from here on float32 runs with noise part, too",
        [OK] = " (a tie within the logits' own error; compared no further)"};
    char what[160], gap[48] = "";
    int same = 0;
    while (same < n && same < n_got && got[same] == want[same])
        same++;
    enum verdict v = key ? verdict_at(r, key, same, n) : same == n ? OK : FAIL;
    if (same < n && margin && margin[same] < tie)
        v = OK;
    if (same < n && margin)
        snprintf(gap, sizeof gap, " by a margin of %.3g", (double)margin[same]);
    if (same == n)
        snprintf(what, sizeof what, "%d of %d ids equal", n, n);
    else
        snprintf(what, sizeof what, "id %d is %d, expected %d%s%s", same,
                 same < n_got ? got[same] : -1, want[same], gap, why[v]);
    report_line(r, v, name, what);
}
