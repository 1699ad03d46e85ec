/* bench_model.h - benchmarks of a model. bench.c opens it, bench_model.c makes lanes, bench_pass.c
 * times single passes, bench_peer.c the products of prompts, bench_cycle.c cycles, prompts and
 * replies, bench_talk.c replies of the whole program.
 *
 * A long context needs no prompt: its pages are taken and marked as a prompt's would be, and the
 * cells hold random numbers.
 *
 * The bytes of a pass are its weights (of the experts, those that its rows chose), the embedding's
 * rows, and for each layer the keys and values that it may see; activations are not counted.
 */
#pragma once

#include "engine/tools/bench_run.h"
#include "engine/thread/load.h"

struct subject {
    const char *name; /* as in the names of lines */
    const char *synthetic; /* a published model by name, with generated weights; or NULL */
    struct loaded l;
    struct quant_opts quant;
    struct runtime runtime;
    int chunk;   /* prompt tokens a pass */
    int most;    /* longest context that is measured */
    int usual;   /* context of verify passes and cycles */
    double step_ms;  /* time of the step at the usual context, 0: not measured */
    double plain_ms; /* time of lane_step() there without a draft */
    double chat_ms[2]; /* time of a token of a reply without and with a draft, cycles alone */
    double peer_ms[2]; /* time of cuBLASLt for the products of a prompt of 512 and of 4096
                          tokens; 0: not measured */
};

/* A lane with n committed cells that no pass has written, and a pending token. */
bool bench_pretend(struct bench *b, struct subject *s, struct lane *lane, int n, struct err *e);
/* A lane after a prefill of n tokens; topk > 0: the drafter followed. */
bool bench_prompted(struct bench *b, struct subject *s, struct lane *lane, int n, int topk,
                    struct err *e);
/* "512", "4k" */
const char *bench_length(char out[16], int n);
/* "4096 cells, bf16, 13.1 experts a layer" */
void bench_describe(char *out, size_t room, const struct subject *s, int n, double hit);

static inline bool bench_is_expert(const struct layer *l, const struct tensor *t)
{
    return t == &l->gate_up || t == &l->gate_up_s || t == &l->gate_up_b || t == &l->down_e ||
           t == &l->down_s || t == &l->down_b;
}
/* Of a tensor that is read once. A matrix quantized to FP8 counts as FP8, whatever the device reads
 * (the CPU, and CUDA for more than 16 rows: bf16). */
static inline double bench_weight_bytes(const struct tensor *t)
{
    return (double)t->bytes / (t->quantize ? 2 : 1);
}
static inline double bench_cell_bytes(const struct layer *l, enum kv_type type)
{
    return 2.0 * (double)kv_cell_bytes(type, l->n_kv, l->head_dim);
}
/* Of the target's last pass; *hit (may be NULL): experts a layer. */
double bench_pass_bytes(struct bench *b, struct runtime *rt, int rows, int n, double *hit);
/* Of one pass of an EAGLE3 head with as many rows, or of one block and as many depths of guesses
 * from it (EAGLE3: 1); only the first of a cycle runs fc. */
double bench_draft_bytes(struct runtime *rt, int rows, int depths, int n, bool first);

/* The benchmark lines. */
bool bench_passes(struct bench *b, struct subject *s, struct err *e);
bool bench_products(struct bench *b, struct subject *s, struct err *e);
bool bench_talk(struct bench *b, struct subject *s, struct err *e);
bool bench_cycles(struct bench *b, struct subject *s, struct err *e);
bool bench_shapes(struct bench *b, struct subject *s, struct err *e);
