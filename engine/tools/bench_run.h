/* bench_run.h - shared by the files of the benchmark: one run's device, choice of lines, and the
 * clock. */
#pragma once

#include "engine/tools/bench.h"
#include "engine/run/device.h"

struct bench {
    const struct bench_opts *o;
    struct device dev;
    bool graphs;        /* the device records graphs: it is a GPU, and shapes may be large */
    double read_rate;   /* bytes a second of mem.read */
    double cache_rate;  /* the same of mem.cache, for lines that read at most cache_bytes; 0:
                           none */
    size_t cache_bytes;
    double matrix_rate; /* floating-point operations a second of gemm.peak; 0: not measured */
    uint64_t random;
    int n_wanted; /* lines whose names were asked for */
};

/* One thing to time. run() enqueues `times` equal operations and may be recorded: it must not call
 * put, get, alloc or sync. */
struct work {
    void (*run)(struct bench *b, void *arg);
    void *arg;
    int times;
    int samples;  /* this many samples on a device that records graphs; 0: the usual number */
    bool eager;   /* launched operation by operation, not as a graph */
    kbuf out;     /* the output, compared between two runs; absent: nothing to compare */
    bool numbers; /* out holds float32 that must be finite; else anything */
};

struct timing {
    double ms, spread; /* of one operation */
    int runs;
};

/* Closes and reopens the device, which frees the generated weights of the lines so far. */
bool bench_reopen(struct bench *b, struct err *e);

/* Whether a line of this name was requested; any: some line whose name begins with prefix. */
bool bench_wanted(const struct bench *b, const char *name);
bool bench_wanted_any(const struct bench *b, const char *prefix);
/* Refuses names that no part of the benchmark can have, before anything is measured. */
bool bench_names(const struct bench_opts *o, struct err *e);
bool bench_no_line(const char *pattern, const struct bench_opts *o, struct err *e); /* false */

/* Runs the work twice over poisoned output and compares, then times it. False: *e. */
bool bench_time(struct bench *b, const struct work *w, struct timing *t, struct err *e);
/* The median and spread of n times in seconds, each of `per` operations. */
struct timing bench_timing(double *seconds, int n, double per);

/* Reports a line. Its ratio is the time of the flops at gemm.peak over the measured time if flops
 * are given and gemm.peak was measured, else that of the bytes at mem.read. A timing of 0 runs:
 * nothing was measured. */
struct figure {
    double bytes, flops, value;
    const char *unit;
};
void bench_tell(struct bench *b, const char *name, const char *shape, const struct timing *t,
                const struct figure *f);
/* As bench_tell() for a pass or operation whose rows chose so many different experts a layer; 0: it
 * has no experts. */
void bench_tell_pass(struct bench *b, const char *name, const char *shape, const struct timing *t,
                     const struct figure *f, double experts);
/* As bench_tell(), with the time `peer_ms` of another implementation of the same arithmetic, which
 * gives the ratio (0: not known, as above). */
void bench_tell_beside(struct bench *b, const char *name, const char *shape,
                       const struct timing *t, double flops, double peer_ms);
/* As bench_tell() for a token that takes other_ms (0: not known) without the part that the line
 * measures. */
void bench_tell_ratio(struct bench *b, const char *name, const char *shape, const struct timing *t,
                      double tok_s, double other_ms);

/* Device memory, a copy of src (NULL: undefined); absent and *e where there is none. */
kbuf bench_buffer(struct bench *b, size_t bytes, const void *src, struct err *e);
void bench_release(struct bench *b, kbuf *buf, int n);
uint64_t bench_random(struct bench *b);
/* n floats, evenly spread over +-1.7, so of deviation 1. */
kbuf bench_floats(struct bench *b, size_t n, struct err *e);
/* Fills a buffer with random bf16 (or, two a number, f32) of both signs around 1/64. */
bool bench_fill(struct bench *b, kbuf buf, enum kv_type type, struct err *e);
/* Fills a buffer with random bf16 evenly spread over +-1.7 scale, as generated weights are. */
bool bench_fill_uniform(struct bench *b, kbuf buf, float scale, struct err *e);
/* A tensor of generated weights, (out, in), or (in) if out is 0. */
bool bench_weights(struct bench *b, struct tensor *t, int out, int in, float scale, struct err *e);
/* The same of another type, (out, in); packed ones on the CPU only. */
bool bench_typed(struct bench *b, struct tensor *t, enum dtype type, int out, int in, float scale,
                 struct err *e);
/* The same of a matrix of which single rows are read (tensor.by_row). */
bool bench_rows(struct bench *b, struct tensor *t, int out, int in, float scale,
                struct err *e);

bool bench_memory(struct bench *b, struct err *e);  /* mem.*; always measures the read rate */
bool bench_kernels(struct bench *b, struct err *e); /* phase, gemv, gemm, moe, attn, sample */
