/* golden_run.h - shared by the files of `aerie golden`: golden.c compares the target and runs all
 * checks, golden_draft.c compares the draft's own tensors. See golden.h. */
#pragma once

#include "engine/thread/load.h"
#include "engine/tools/golden.h"
#include "engine/tools/golden_report.h"

/* A precision: the tolerated relative L2 error, and the relative noise at the input of each product
 * that stands for its rounding. */
struct rounding {
    const char *name;
    double tol;
    float noise;
};

struct reference {
    struct safetensors *st;
    int n, n_greedy; /* prompt and continuation tokens */
    int32_t *ids, *greedy;
    float *logits, *hidden, *margin;
};

struct golden {
    const struct golden_opts *o;
    struct loaded l;
    struct reference ref;
    struct golden_report rep;
    const struct rounding *rounding; /* of the device */
};

/* The reference tensors in a folder, or beside a GGUF file. The caller frees. */
char *golden_path(const char *from);
/* A tensor of a golden.safetensors of this type and shape (dim -1: any), allocated; NULL and *e
 * (ERR_MODEL): there is none. */
void *golden_tensor(struct safetensors *st, const char *name, enum dtype type, int n_dim,
                    const int64_t *dim, struct err *e);
/* A runtime for the reference's prompt and continuation. */
bool golden_runtime(struct golden *golden, struct runtime *rt, int page_size, struct err *e);
/* Whether another pass of the draft may run; passes of the target look by themselves. False: *e. */
bool golden_goes_on(const struct golden *golden, struct err *e);
/* Runs the prepared extend pass of the target; taps as for net_forward(). False: stopped (*e). */
bool golden_forward(struct runtime *rt, const struct taps *taps, struct err *e);
/* Runs the prompt in chunks; reads logits (L, V), or NULL, and the states (L, taps->stride) of the
 * boundaries of `taps`, or NULL, back. */
bool golden_prompt(struct golden *golden, struct runtime *rt, int chunk, float *logits,
                   const struct taps *taps, float *states, struct err *e);
/* The numbers of a draft with a head against its own golden.safetensors. */
bool golden_head(struct golden *golden, struct err *e);
