/* steps.h - reads the small trees of tokenizer.json into flat lists of steps.
 *
 * For load.c only. `raw` is the tree's text in the file; raw.s is NULL if it is absent or null.
 * False and *e (ERR_MODEL) on failure: the message names the place in the tree and the kind of the
 * step; the caller prefixes the file.
 */
#pragma once

#include "models/tokenizer/pull.h"
#include "models/tokenizer/parts.h"

/* Sets t->norm and t->n_norm. */
bool steps_normalizer(struct tokenizer *t, struct pull_str raw, struct err *e);
/* Sets t->pre and t->n_pre. */
bool steps_pre_tokenizer(struct tokenizer *t, struct pull_str raw, struct err *e);
/* The same of n regular expressions, each of whose matches is a piece, then perhaps GPT-2's, and
 * bytes as characters. */
bool steps_bytes(struct tokenizer *t, const char *const *regex, int n, bool gpt2, struct err *e);
/* Decodes every id: sets t->plain, t->decoded, t->decoded_first, t->strip and t->strip_max. */
bool steps_decoder(struct tokenizer *t, struct pull_str raw, struct err *e);
/* Sets t->bos. A post_processor of any kind is accepted: only its leading special token is used. */
bool steps_post_processor(struct tokenizer *t, struct pull_str raw, struct err *e);
