/* calibrate.h - finds out by scoring on which of the target's states an EAGLE3 head was trained.
 *
 * Configs write the captured layers in conventions that differ by one (models/draft/capture.c), and
 * a wrong reading only lowers acceptance. Each plausible reading is scored on text: the head runs
 * over the target's own states, teacher-forced, and its first guess is compared with the target's
 * own choice at the same position. That is the acceptance of a greedy chain's first token. Runs on
 * the calling thread. */
#pragma once

#include "engine/event.h"

struct loaded;

struct stop;

struct calib_opts {
    struct loaded *l;        /* with device, tokenizer and an EAGLE3 head, else refused */
    const int32_t *text;     /* a conversation to score; if it has fewer than CALIB_TOKENS
                                tokens, */
    int n_text;              /* answers of the target to a few prompts are scored instead */
    const struct stop *stop; /* may be NULL */
};

/* False: the draft has no captures to choose from, or the device failed. A run that was stopped
 * ends well: *out tells what was scored until then. */
bool calibrate_run(const struct calib_opts *o, struct calibration *out, struct err *e);
