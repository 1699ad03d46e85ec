/* dump.h - what another engine recorded of its passes, held against aerie's pass over the same
 * checkpoint: `aerie dump`.
 *
 * A dump is a folder of SGLang's dumper (step=S___rank=R___...name=NAME.pt), or one of SGLang's
 * --debug-tensor-dump-output-folder (PassNNNNN.pt). Both hold tensors by the names of modules
 * ("model.layers.3.self_attn.o_proj"), and the input ids and positions of each pass. Files are
 * read as data (torch_file.h), or are safetensors.
 *
 * Passes are aligned by input ids and positions: rows that follow each other belong to a request,
 * and a request's later passes continue it. aerie computes the same rows and compares each module
 * that it has a tap for. A row agrees if its relative L2 error is within the tolerance of the
 * dump's type (2e-2 of bf16 and f16, 1e-3 of f32). A row is near if its error exceeds the tolerance
 * by no more than twice what runs with noise of that type's roundings differ from the run without
 * (noise_backend.h; of transformers in bf16, on SmolLM2, products differ by at most 2.1 times that,
 * and small tensors by 3.1 times, which the tolerance covers). Rows whose prefix the dump lacks are
 * counted, not compared. Runs on the calling thread with a device of its own. */
#pragma once

#include "engine/opts.h"

struct stop;

enum { DUMP_FILES = 1 << 18, DUMP_NOISE = 8 }; /* files of a folder; runs with noise */

struct dump_item {
    char *name;  /* of the module, with ".output" and the like */
    char *file;  /* path */
    char *entry; /* name inside the file */
};

struct dump_pass {
    int number; /* of the step or of the file */
    struct dump_item *item;
    int n;
};

struct dump {
    const char *engine; /* what wrote it, for people: a constant text */
    struct dump_pass *pass; /* by number */
    int n;
    int ranks, rank; /* ranks of which the lowest is read; its number */
    int files, refused; /* refused: of them not read ... */
    char why[400];      /* ... and why, of the first one */
};

/* Lists the passes and items of a folder or a file. False and *e (ERR_USAGE). */
bool dump_open(struct dump *d, const char *path, struct err *e);
void dump_close(struct dump *d);

/* ---- alignment (dump_align.c) ---- */

/* Successive positions of one request in one pass. */
struct dump_rows {
    int pass;          /* index */
    int row, n;        /* its rows in the pass */
    int request;       /* which of the pass; its row of the logits */
    int position;      /* of its first row */
    int32_t *token;    /* (n) */
};

struct dump_sequence {
    struct dump_rows *rows; /* in the order of the passes */
    int n;
    int length; /* tokens that are known now */
    int64_t key; /* row of the engine's request pool, or -1 */
};

struct dump_sequences {
    struct dump_sequence *v;
    int n;
    int longest;
    int64_t rows, missing, unclear; /* rows aligned; rows whose prefix the dump lacks; rows that fit
                                       several requests, or are nodes of a tree */
    int no_ids;  /* passes without input ids or positions */
    int32_t most_token; /* the largest id */
    char first_missing[160]; /* which rows; "": none */
};

bool dump_align(const struct dump *d, struct dump_sequences *s, struct err *e);
void dump_sequences_free(struct dump_sequences *s);

/* ---- comparison (dump_run.c) ---- */

struct dump_module {
    char *name; /* as in the dump */
    int layer;  /* -1: of no layer */
    int order;  /* of computation */
    int64_t rows, near, far;
    double worst, band; /* relative L2 error of the worst row; that of runs with noise there */
    int pass, row, position; /* number of the pass and row of the first row that differs, else of
                                the worst */
};

struct dump_report {
    struct dump d;
    struct dump_sequences s;
    struct dump_module *module; /* those compared, in the order of computation */
    int n;
    int first; /* the first module that differs; -1: none */
    int last_good; /* the module compared before it, which agrees; -1: none was */
    char **skipped; /* (n_skipped) names that aerie has no tap for, without layers' numbers */
    int n_skipped;
    double tol;
    const char *type; /* of the dump's numbers, for people */
    int shards;       /* ranks that heads are spread over, by the widths of tensors */
    bool noisy;       /* runs with noise were made */
    bool stopped;
};

struct dump_opts {
    struct engine_opts engine; /* precision NULL: "f32" */
    const char *path;
    const struct stop *stop;
    void (*begin)(void *arg); /* called once, when the model is loaded; or NULL */
    void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total); /* or NULL */
    void *arg;
};

/* Compares. True: every module agrees. False: *e is ERR_NEGATIVE and the report names what
 * differs; or another kind, and the dump cannot be compared with this model. The caller ends with
 * dump_report_free(), in any case. */
bool dump_compare(const struct dump_opts *o, struct dump_report *r, struct err *e);
void dump_report_free(struct dump_report *r);
