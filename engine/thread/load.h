/* load.h - the one way to open models: for the chat and its batches, calibration and the tools.
 *
 * engine_load() opens the device, reads the target and the draft, decides whether the draft fits,
 * quantizes, and reads the tokenizer and the chat format, from which the ids that end a reply and
 * the ids that are never sampled follow. Runtimes over it are opened with engine_runtime() (pools
 * as the options say) or loaded_runtime() (a shape of the caller's). Any thread; one at a time. */
#pragma once

#include "engine/cycle/cycle.h"
#include "engine/cycle/fit.h"
#include "engine/opts.h"
#include "models/chat/chat.h"

/* What engine_load() reads beside the models. */
enum load_parts {
    LOAD_DEVICE = 1, /* opens the device; without it only the checkpoint's files are read */
    LOAD_TEXT = 2,   /* tokenizer, chat format, stop ids, token mask */
};

struct loaded {
    struct device dev; /* dev.k NULL: none was asked for */
    struct model model;
    struct draft draft;
    bool has_draft;
    char *draft_off; /* why there is no drafting; NULL: drafting works */
    char *passed;    /* why "auto" chose the CPU although the build has CUDA; NULL: otherwise */
    struct tokenizer *tok; /* these and the next four only with LOAD_TEXT */
    struct chat *chat;
    char date[11]; /* that the chat format was given */
    int32_t stop[MAX_STOP]; /* ids that end a reply */
    int n_stop;
    uint8_t *mask; /* (vocab) 1: an id without text, never sampled; NULL: every id has text */
};

/* Reads what the options name. Messages for the user go to o->notice: a draft that
 * does not fit (unless o->require_draft makes that an error), a template that is not known, a slow
 * start. On failure *loaded is empty and *e says why. The caller ends it with engine_unload(). */
bool engine_load(struct loaded *loaded, const struct engine_opts *o, int parts, struct err *e);
/* Another draft for the target that is loaded: reads what o->draft names (NULL: none) into *d,
 * which loaded_draft_free() frees; *loaded stays as it is. */
struct loaded_draft {
    struct draft draft;
    bool has;
    char *off; /* as draft_off */
};
bool engine_load_draft(struct loaded *loaded, const struct engine_opts *o, struct loaded_draft *d,
                       struct err *e);
void loaded_draft_free(struct loaded *loaded, struct loaded_draft *d); /* on its device, too */
/* Other models on the device that is open: replaces all else in *loaded. On failure *loaded holds
 * the device only. */
bool engine_load_again(struct loaded *loaded, const struct engine_opts *o, struct err *e);
void engine_unload(struct loaded *loaded); /* runtimes over it are closed already; empty is fine */

/* Opens a runtime with pools of this shape over the device and the models, and gives it stop ids
 * and token mask. On failure it is closed; if the device is too small (fit.h), nothing was uploaded
 * and *e says what would fit. */
bool loaded_runtime(struct runtime *rt, struct loaded *loaded, const struct runtime_shape *shape,
                    struct err *e);
/* The same with the shape that the options ask for. A context that was not asked for is shortened
 * to what the device's memory holds, with a notice. */
bool engine_runtime(struct runtime *rt, struct loaded *loaded, const struct engine_opts *o,
                    struct err *e);
/* The context of a runtime that the options ask for, before it is shortened. */
int engine_context(const struct loaded *loaded, const struct engine_opts *o);
/* What that runtime would take, and what fits (fit.h). Weights need not be loaded (o->headers). */
bool engine_fit(struct loaded *loaded, const struct engine_opts *o, struct fit *f, struct err *e);
/* What a runtime that engine_runtime() opened takes. */
struct need engine_need(struct loaded *loaded, const struct engine_opts *o,
                        const struct runtime *rt);
/* Takes check level and graph recording over from the settings. */
void runtime_set(struct runtime *rt, const struct settings *set);
/* How replies are to reason. */
struct chat_style load_style(const struct settings *set);
/* Prompt tokens of one pass: the setting, or 0: what suits the device. */
int load_chunk(const struct loaded *loaded, const struct settings *set);
