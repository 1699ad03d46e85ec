/* json.h - strict reading of JSON files, and of the keys of one config object.
 *
 * Shared by the files of models/ that read config.json, an index or a safetensors header. A parsed
 * tree has no duplicate keys, no NaN, no number that overflows, valid UTF-8, and bounded depth.
 *
 * A struct conf reads the keys of one object. Only the first error of a file is kept, so a caller
 * reads all its keys and tests conf_ok() once. After an error every value returned is within the
 * limits given, so that arithmetic on it is safe, but otherwise meaningless.
 */
#ifndef AERIE_MODELS_JSON_H
#define AERIE_MODELS_JSON_H

#include "kernels/base.h"

#include <jansson.h>

enum { JSON_DEPTH = 32 }; /* deepest nesting of a config file */

/* Untrusted text made safe for one line of a message: control characters become '?', and a text
 * that is too long is cut off at its end (show) or at its beginning (show_path). */
struct shown {
    char s[164];
};
struct shown show(const char *text);
struct shown show_path(const char *path);

/* Parses n bytes; the top value must be an object. NULL and *e (ERR_MODEL, naming `file`) on
 * failure; the caller releases the tree with json_decref(). */
json_t *json_read(const char *bytes, size_t n, int max_depth, const char *file, struct err *e);
/* Reads and parses a file. If `absent` is not NULL, a file that does not exist is no error: *absent
 * is set and NULL is returned. */
json_t *json_open(const char *path, bool *absent, struct err *e);

/* ---- one object of a config ---------------------------------------------------------------- */

struct conf_file { /* shared by all objects of one file */
    const char *path;
    struct err *e;
    bool bad; /* *e holds the first error */
};

struct conf {
    const json_t *obj;
    struct conf_file *file;
    const char *const *keys; /* the keys of obj that a reader sees (keys.h); NULL: all */
    char at[96]; /* "text_config." or "": precedes key names in messages */
};

static inline bool conf_ok(const struct conf *c) { return !c->file->bad; }

/* Sets the file's error to "FILE: AT.KEY <text>", if it is the first one. Returns false. */
bool conf_refuse(const struct conf *c, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether a reader sees the key. Such a key must be in the list of keys.c. */
bool conf_sees(const struct conf *c, const char *key);
/* Whether that list has the key. Defined in keys.c. */
bool key_decides(const char *key);

/* The functions below treat a key that a reader does not see as absent. */

/* Whether the key is present and not null. */
bool conf_has(const struct conf *c, const char *key);
/* Whether the key is present and null, which for some keys means "none", not "the default". */
bool conf_is_null(const struct conf *c, const char *key);
/* The value at key, or NULL if it is absent or null. */
const json_t *conf_value(const struct conf *c, const char *key);
/* Sets *out to the object at key, whose keys are all seen (out may be c). False if the key is absent or null; any other
 * value is an error. */
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

#endif
