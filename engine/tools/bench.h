/* bench.h - `aerie bench`: measures the parts of a chat, and compares their times with the time of
 * reading their bytes at the bandwidth measured in the same run.
 *
 * Everything goes through the kernel table and the engine's own functions, so the same lines exist
 * on every device. Rules: random data only; several sets of weights in turn, together far beyond
 * the caches; outputs poisoned; before an operation is timed it runs twice, and its results must be
 * finite and the same to the bit. Times are medians of runs with their median absolute deviation.
 * The caller's thread.
 */
#pragma once

#include "engine/opts.h"

struct bench_line {
    const char *name;  /* "gemv.qkv.T4" */
    const char *shape; /* for people: "5120x2880 bf16, 9 sets" */
    int runs;          /* timed runs; 0: not possible, and the shape says why */
    double ms, spread; /* of one operation: median, median absolute deviation */
    double bytes;      /* that it must read (and write, for a copy) once; 0: not counted */
    double experts;    /* different ones that the rows chose, the layers' mean; 0: not of experts */
    double ratio;      /* R: the time of those bytes at mem.read over ms (prefill and products: of
                          the same products in cuBLASLt, or of their arithmetic at gemm.peak;
                          repl: of the same without the part that the line adds); 0: none */
    double value;      /* a second figure, if unit is not NULL */
    const char *unit;  /* "TB/s", "TFLOP/s", "tok/s", "us", "x plain", "experts" */
};

#define BENCH_QUESTION "Tell me a story about a fox."

/* Replies of the whole program to that question, each in a new session. */
enum { BENCH_REPLIES = 8 };
struct bench_replies {
    int n, tokens[BENCH_REPLIES];
    double ms[BENCH_REPLIES]; /* engine time of the reply, without its prompt */
    size_t shown;             /* bytes that the program wrote */
};

struct bench_opts {
    const char *const *pattern; /* lines whose name begins with one or matches it as a glob */
    int n_pattern;              /* 0: all lines */
    struct engine_opts engine;  /* backend: of models' lines, whatever `device` says */
    const char *model_name;     /* the model's name in the names of lines */
    const char *synthetic;      /* a published model by name (synthetic.c) instead; or NULL */
    const char *library;        /* a file that holds cuBLASLt; NULL: by its usual names */
    bool brief;                 /* fewer lines and runs */
    void (*about)(void *arg, const char *device); /* once, before the lines */
    void (*tell)(void *arg, const struct bench_line *line);
    /* Runs the whole program on the model, full screen or in lines; NULL: it cannot be done. */
    bool (*face)(void *arg, bool screen, bool draft, struct bench_replies *out, struct err *e);
    void *arg;
};

/* The i-th name with which lines begin, and what they measure; NULL: there are fewer. */
const char *bench_part(int i, const char **what);
/* False: *e (the device or a model cannot be opened, or a result is wrong); lines reported before
 * stay valid. */
bool bench_run(const struct bench_opts *o, struct err *e);
