/* keys.h - reading the keys of one object of a config, and the keys that decide numbers.
 *
 * A struct conf reads the keys of one object. Only the first error of a file is kept, so a caller
 * reads all its keys and tests conf_ok() once. After an error every value returned is within the
 * limits given, so that arithmetic on it is safe, but otherwise meaningless.
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
#pragma once

#include "models/checkpoint/json.h"
#include "models/models.h"

/* Keys that all families use. */
#define KEYS_OF_ALL                                                                                \
    "hidden_size", "vocab_size", "num_hidden_layers", "max_position_embeddings", "rms_norm_eps",   \
        "num_attention_heads", "num_key_value_heads", "intermediate_size", "head_dim",             \
        "tie_word_embeddings", "quantization_config", "rope_parameters",                           \
        "partial_rotary_factor", "original_max_position_embeddings"
/* The older spelling of rope_parameters. */
#define KEYS_OF_OLD_ROPE "rope_theta", "rope_scaling"
#define KEYS_OF_MOST KEYS_OF_ALL, KEYS_OF_OLD_ROPE, "hidden_act"

/* ---- one object of a config ---------------------------------------------------------------- */

struct conf_file { /* shared by all objects of one file */
    const char *path;
    struct err *e;
    bool bad; /* *e holds the first error */
};

struct conf {
    const json_t *obj;
    struct conf_file *file;
    const char *const *keys; /* the keys of obj that a reader sees (above); NULL: all */
    char at[96]; /* "text_config." or "": precedes key names in messages */
};

static inline bool conf_ok(const struct conf *c) { return !c->file->bad; }

/* Sets the file's error to "FILE: AT.KEY <text>", if it is the first one. Returns false. */
bool conf_refuse(const struct conf *c, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The functions below treat a key that a reader does not see as absent. */

/* Whether the key is present and not null. */
bool conf_has(const struct conf *c, const char *key);
/* Whether the key is present and null, which for some keys means "none", not "the default". */
bool conf_is_null(const struct conf *c, const char *key);
/* The value at key, or NULL if it is absent or null. */
const json_t *conf_value(const struct conf *c, const char *key);
/* Sets *out to the object at key, whose keys are all seen (out may be c). False if the key is
 * absent or null; any other value is an error. */
bool conf_enter(const struct conf *c, const char *key, struct conf *out);

#define CONF_NEEDED INT64_MIN /* as a default: the key is required */

/* An integer within [min, max]; dflt if the key is absent or null. */
int conf_int(const struct conf *c, const char *key, int64_t dflt, int min, int max);
/* A number within [min, max]. A NaN default: the key is required. */
double conf_num(const struct conf *c, const char *key, double dflt, double min, double max);
bool conf_bool(const struct conf *c, const char *key, bool dflt);
/* A string, valid as long as the tree; dflt (which may be NULL) if the key is absent. */
const char *conf_str(const struct conf *c, const char *key, const char *dflt);
/* Stores an integer, or the integers of an array, in v; returns how many. More than max are an
 * error. */
int conf_ints(const struct conf *c, const char *key, int64_t *v, int max);

/* Whether `name` names an activation that is supported, and which. */
bool act_of_name(const char *name, enum act_kind *act);

struct arch; /* config.h */
/* Refuses keys that decide numbers and that `a`'s family (a->c.keys) does not use. In a multimodal
 * folder also those beside text_config that differ from text_config's. Called when the switches and
 * the unscaled ropes are known. */
void arch_refuse_unused(const struct arch *a);
