/* golden.h - compares the engine with reference tensors: `aerie golden DIR`.
 *
 * DIR holds config.json, the weights and golden.safetensors with input_ids (L), logits (L, vocab),
 * hidden_states (layers + 1, L, hidden: boundaries 0 .. n-1, then the final norm's output),
 * greedy_ids (N), greedy_margin (N). Runs on the calling thread with a device of its own.
 */
#pragma once

#include "engine/opts.h"

struct stop;

struct golden_opts {
    struct engine_opts engine; /* model: DIR; precision NULL: "f32", as exact as the reference */
    bool json; /* the report is one JSON object */
    const struct stop *stop;       /* ends it before the next pass; or NULL */
    void (*begin)(void *arg);      /* called once, when the models are loaded; or NULL */
    void *arg;
};

/* Compares every tensor, every chunking, page sizes 1, 4 and 16, and with a draft every tree shape.
 * True: all equal within 1e-3 (float32) or 2e-2 (bf16) relative L2, or as near as float32 runs with
 * noise of that precision's size come, which the report says check by check; the CPU in float32 has
 * the tolerance alone. False: *e is ERR_NEGATIVE and *report names what is off (or holds the checks
 * done until it was stopped), or another kind when the folder cannot be used. */
bool golden_run(const struct golden_opts *o, struct buf *report, struct err *e);
