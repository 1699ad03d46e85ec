/* json.h - strict reading of JSON files.
 *
 * Shared by the files of models/ that read config.json, an index or a safetensors header. A parsed
 * tree has no duplicate keys, no NaN, no number that overflows, valid UTF-8, and bounded depth.
 */
#pragma once

#include "kernels/base.h"

#include <jansson.h>

enum { JSON_DEPTH = 32, JSON_CONFIG = 16 << 20 }; /* deepest nesting of a config file; its bytes */

/* Untrusted text made safe for one line of a message: control characters become '?', and a text
 * that is too long is cut off at its end (show) or at its beginning (show_path). */
struct shown {
    char s[164];
};
struct shown show(const char *text);
struct shown show_path(const char *path);
/* Sets *e to "FILE: <text>" (ERR_MODEL), the file's path made safe. Returns false. */
bool err_file(struct err *e, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether a file that begins with these n bytes is another than its name says: empty, a pointer of
 * Git LFS, or a web page; *e says so then, and how to get the file. n 0: the file is empty. */
bool err_mistaken(struct err *e, const char *path, const void *bytes, size_t n);

/* Whether a name in a file is not empty and has no control characters. */
bool name_is_plain(const char *name, size_t n);

/* Opens a file of a checkpoint for reading; only a regular file will do. The caller closes *fd,
 * also on failure where it is not -1. *size: bytes. */
bool open_regular(const char *path, int *fd, uint64_t *size, struct err *e);

/* Parses n bytes; the top value must be an object. NULL and *e (ERR_MODEL, naming `file`) on
 * failure; the caller releases the tree with json_decref(). */
json_t *json_read(const char *bytes, size_t n, int max_depth, const char *file, struct err *e);
/* Reads the text of a file of at most so many bytes into an empty *out, which the caller frees.
 * False and *e (ERR_MODEL) on failure. */
bool json_text(const char *path, size_t max, struct buf *out, struct err *e);
/* Reads and parses a file. If `absent` is not NULL, a file that does not exist is no error: *absent
 * is set and NULL is returned. */
json_t *json_open(const char *path, bool *absent, struct err *e);
