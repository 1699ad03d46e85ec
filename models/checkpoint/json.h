/* json.h - JSON files read strictly, and one object of a config read key by key.
 *
 * Shared by the files of models/ that read config.json, an index or a safetensors header. A parsed
 * tree has no duplicate keys, no NaN, no number that overflows, valid UTF-8, and bounded depth.
 *
 * A struct conf reads the keys of one object. The first thing that is wrong is kept in its error
 * and later ones are dropped, so a reader asks for all its keys and tests conf_ok() once. A value
 * returned after an error is within the limits that were asked for, so that arithmetic on it is
 * safe, and it is otherwise meaningless.
 */
#ifndef AERIE_MODELS_JSON_H
#define AERIE_MODELS_JSON_H

#include "kernels/base.h"

#include <jansson.h>

enum { JSON_DEPTH = 32 }; /* deepest nesting of a config file */

/* Text of unknown origin made fit for one line of a message: control characters become '?', and
 * what is too long keeps its beginning (show) or its end (show_path). */
struct shown {
    char s[164];
};
struct shown show(const char *text);
struct shown show_path(const char *path);

/* Parses n bytes whose top must be an object. NULL and *e, naming `file`, on failure; the caller
 * releases the tree with json_decref(). */
json_t *json_read(const char *bytes, size_t n, int max_depth, const char *file, struct err *e);
/* Reads and parses DIR/NAME. A file that does not exist is not an error when `absent` is given: it
 * is set and NULL is returned. */
json_t *json_open(const char *path, bool *absent, struct err *e);

/* ---- one object of a config ---------------------------------------------------------------- */

struct conf_file { /* what all the objects of one file share */
    const char *path;
    struct err *e;
    bool bad; /* *e holds the first error */
};

struct conf {
    const json_t *obj;
    struct conf_file *file;
    char at[96]; /* "text_config." or "": stands before key names in messages */
};

static inline bool conf_ok(const struct conf *c) { return !c->file->bad; }

/* Refuses: "FILE: AT.KEY <text>". Returns false. */
bool conf_refuse(const struct conf *c, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Present and not null. */
bool conf_has(const struct conf *c, const char *key);
/* Present and null, which to some keys means "none" rather than "the default". */
bool conf_is_null(const struct conf *c, const char *key);
/* Enters an object; false if it is absent or null, and refused if it is anything else. */
bool conf_enter(const struct conf *c, const char *key, struct conf *out);

#define CONF_NEEDED INT64_MIN /* as a default: the key must be there */

/* An integer within [min, max]; the default stands for an absent or null key. */
int conf_int(const struct conf *c, const char *key, int64_t dflt, int min, int max);
/* A number within [min, max]. A NaN default means that the key must be there. */
double conf_num(const struct conf *c, const char *key, double dflt, double min, double max);
bool conf_bool(const struct conf *c, const char *key, bool dflt);
/* A string, which lives as long as the tree; NULL default: an absent key gives NULL. */
const char *conf_str(const struct conf *c, const char *key, const char *dflt);
/* Appends the integers of a number or an array of numbers to v; at most max of them. */
int conf_ints(const struct conf *c, const char *key, int64_t *v, int max);

#endif
