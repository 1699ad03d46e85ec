/* keys.h - the keys of config.json that decide numbers, and which of them a family uses.
 *
 * keys.c lists every key that decides numbers in some family. A family's table (struct family,
 * `keys`) lists those that the family uses; a reader of its config sees no others (struct conf,
 * `keys`), as transformers sees none. A key of keys.c that is in the config but not in the family's
 * table is refused by name, unless its value is neutral: one that changes nothing in this model. So
 * a config cannot ask for arithmetic that the model then lacks, or get arithmetic that transformers
 * would not do. Other keys are ignored.
 *
 * A new key: a row in keys.c, the name in the table of each family that uses it, and its reader.
 */
#ifndef AERIE_MODELS_KEYS_H
#define AERIE_MODELS_KEYS_H

#include "models/checkpoint/config.h"

/* Keys that all families use. */
#define KEYS_OF_ALL                                                                                \
    "hidden_size", "vocab_size", "num_hidden_layers", "max_position_embeddings", "rms_norm_eps",   \
        "num_attention_heads", "num_key_value_heads", "intermediate_size", "head_dim",             \
        "tie_word_embeddings", "quantization_config", "rope_parameters",                           \
        "partial_rotary_factor", "original_max_position_embeddings"
/* The older spelling of rope_parameters. */
#define KEYS_OF_OLD_ROPE "rope_theta", "rope_scaling"

/* Refuses keys that decide numbers and that `a`'s family (a->c.keys) does not use. In a multimodal
 * folder also those beside text_config that differ from text_config's. Called when the switches and
 * the unscaled ropes are known. */
void arch_refuse_unused(const struct arch *a);

#endif
