/* kernel_test.h - the harness of the kernel tests.
 *
 * A scenario computes something on the device at hand; everywhere() runs it on each instruction
 * set this machine has and on 1, 2 and 3 threads, requires the same bits of all, and hands the
 * result to the test, which compares it with its own reference in double precision.
 */
#pragma once

#include "tests/few.h"
#include "tests/kernel_cases.h"
#include "kernels/cpu/cpu.h"
#include "kernels/sanitizers.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdarg.h>
#include <cmocka.h>

static struct case_dev T; /* the device at hand */

typedef void scenario(const void *arg, float *out); /* out: host memory */

#if HAS_TSAN /* only more than one thread can race, and only scalar.o is instrumented */
static const struct { const char *isa; int threads; } configs[] = {{"scalar", 3}, {NULL, 2}};
enum { FEW_CONFIGS = 1 };
#else
static const struct { const char *isa; int threads; } configs[] = {
    {"scalar", 1}, {"avx2", 1}, {"avx512", 1}, {NULL, 2}, {NULL, 3}};
enum { FEW_CONFIGS = 4 }; /* the first and the last */
#endif

UNUSED static bool runs_here(const char *isa)
{
    struct err e;
    struct kdev *d = kernels_cpu.open(&(struct k_opts){.isa = isa, .threads = 1}, &e);
    if (d)
        kernels_cpu.close(d);
    return d != NULL;
}

UNUSED static void everywhere(scenario *run, const void *arg, float *out, size_t n)
{
    float *again = xmalloc(n * sizeof *again);
    for (size_t c = 0; c < sizeof configs / sizeof *configs; c += (size_t)one_in(FEW_CONFIGS)) {
        if (!runs_here(configs[c].isa))
            continue;
        dev_open(&T, &kernels_cpu, configs[c].isa, configs[c].threads);
        run(arg, c ? again : out);
        for (size_t i = 0; c && i < n; i++)
            if (memcmp(&out[i], &again[i], sizeof *out) != 0)
                fail_msg("%s differs from scalar at %zu of %zu: %.9g, not %.9g",
                         T.k->about(T.d), i, n, (double)again[i], (double)out[i]);
        dev_close(&T);
    }
    free(again);
}

UNUSED static void take(float *out, kbuf b, size_t n)
{
    T.k->get(T.d, out, b, n * sizeof *out);
}

UNUSED static kbuf floats(const float *x, size_t n) { return dev_buf(&T, x, n * sizeof *x); }
UNUSED static kbuf ints(const int32_t *x, size_t n) { return dev_buf(&T, x, n * sizeof *x); }
UNUSED static kbuf blank(size_t n) { return dev_buf(&T, NULL, n * sizeof(float)); }

/* |got - want| <= tol * (scale of the whole + |want|) */
UNUSED static void close_to(const float *got, const double *want, size_t n, double tol)
{
    double rms = 0;
    for (size_t i = 0; i < n; i++)
        rms += want[i] * want[i];
    rms = sqrt(rms / (double)(n ? n : 1));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tol * (rms + fabs(want[i]))))
            fail_msg("element %zu of %zu is %.9g, expected %.9g (rms %.3g, tolerance %.1g)", i, n,
                     (double)got[i], want[i], rms, tol);
}

UNUSED static double relative_l2(const float *got, const float *want, size_t n)
{
    double err = 0, ref = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        err += d * d, ref += (double)want[i] * (double)want[i];
    }
    return sqrt(err / ref);
}

UNUSED static void same_bits(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s: element %zu is %.9g, not %.9g", what, i, (double)got[i], (double)want[i]);
}

/* A product of k terms in single precision is right to about k/32 + 5 roundings of its terms; the
 * functions behind it add a few. 1e-5 of the output's rms is 150 roundings: far below any
 * mistake, above what k = 900 and a norm can add up to (7e-7 was seen, 4e-6 of mixtures). */
UNUSED static const double TOL = 1e-5;

/* ---- references ----------------------------------------------------------------------------- */

UNUSED static double ref_act(double x, enum act_kind act)
{
    if (act == ACT_SILU)
        return x / (1 + exp(-x));
    if (act == ACT_GELU_TANH)
        return .5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + .044715 * x * x * x)));
    return x;
}

UNUSED static double ref_cap(double x, double cap) { return cap > 0 ? cap * tanh(x / cap) : x; }

UNUSED static void ref_norm(const double *x, int n, const struct k_norm *norm, double *y)
{
    double ss = 0, mean = 0;
    for (int i = 0; norm->kind == NORM_LAYER && i < n; i++)
        mean += x[i] / n;
    for (int i = 0; i < n; i++)
        ss += (x[i] - mean) * (x[i] - mean);
    double inv = 1 / sqrt(ss / n + (double)norm->eps);
    for (int i = 0; i < n; i++) {
        bool weighted = norm->kind == NORM_RMS || norm->kind == NORM_LAYER;
        double w = weighted ? weight_at(norm->w, (size_t)i)
                   : norm->kind == NORM_RMS1P ? 1 + weight_at(norm->w, (size_t)i) : 1;
        y[i] = norm->kind == NORM_NONE ? x[i] : (x[i] - mean) * inv * w;
    }
}

UNUSED static double *widened(const float *x, size_t n)
{
    double *y = xmalloc(n * sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

/* y (rows, out) = w norm(x) + b */
UNUSED static void ref_linear(const double *x, int rows, size_t stride, const struct k_norm *norm,
                       const struct tensor *w, const struct tensor *b, double *y)
{
    int out = (int)w->dim[0], in = (int)w->dim[1];
    double *row = xmalloc((size_t)in * sizeof *row);
    for (int r = 0; r < rows; r++) {
        ref_norm(x + (size_t)r * stride, in, norm, row);
        for (int o = 0; o < out; o++) {
            double sum = b ? weight_at(b, (size_t)o) : 0;
            for (int i = 0; i < in; i++)
                sum += row[i] * weight_at(w, (size_t)o * (size_t)in + (size_t)i);
            y[(size_t)r * (size_t)out + (size_t)o] = sum;
        }
    }
    free(row);
}

UNUSED static const enum dtype weight_types[] = {DT_BF16, DT_F16, DT_F32};
UNUSED static const struct k_norm no_norm = {.kind = NORM_NONE};
