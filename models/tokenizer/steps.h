/* steps.h - the small trees of tokenizer.json as flat lists of steps.
 *
 * For load.c only. raw is the tree's text in the file, s NULL when absent or
 * null. Messages name the place and the kind; the caller puts the file before them.
 */
#ifndef AERIE_TOKENIZER_STEPS_H
#define AERIE_TOKENIZER_STEPS_H

#include "models/tokenizer/pull.h"
#include "models/tokenizer/parts.h"

bool steps_normalizer(struct tokenizer *t, struct pull_str raw, struct err *e);
bool steps_pre_tokenizer(struct tokenizer *t, struct pull_str raw, struct err *e);
/* Fills t->plain and t->decoded for every id, with what the decoder makes of it. */
bool steps_decoder(struct tokenizer *t, struct pull_str raw, struct err *e);
/* Sets t->bos. A post_processor of any kind is accepted: no other part of it is used. */
bool steps_post_processor(struct tokenizer *t, struct pull_str raw, struct err *e);

#endif
