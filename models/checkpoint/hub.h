/* hub.h - finds a model by its name in the cache of the Hugging Face hub, as its libraries fill it.
 *
 * A name is ORG/NAME, perhaps followed by @REVISION (a branch, a tag or a commit) and by :QUANT or
 * :FILE.gguf, which choose one of several GGUF files. Nothing is fetched or written.
 */
#pragma once

#include "kernels/base.h"

/* What `name` means as a model: itself if there is such a file or folder, or if it is not of the
 * form above; the only GGUF file in a folder that has no other weights; else the folder or GGUF in
 * the cache that it names. NULL and *e (ERR_MODEL), which says where was looked, or which files a
 * folder has. The caller frees. */
char *hub_find(const char *name, struct err *e);

/* ---- for what fills the cache (engine/remote/pull.h) ---- */

enum { HUB_PART = 96 };
/* A name, taken apart. */
struct hub_name {
    const char *all; /* the caller's */
    char org[HUB_PART + 1], repo[HUB_PART + 1];
    char *revision; /* NULL: none is given */
    char *file;     /* behind the colon; NULL: none */
};
/* Whether s has the form of a name; if so, the caller frees *n with hub_name_free(). */
bool hub_read_name(const char *s, struct hub_name *n);
void hub_name_free(struct hub_name *n);
/* Whether a path below a folder stays below it: no "..", no empty part, no leading slash. */
bool hub_stays_below(const char *path);
bool hub_is_commit(const char *s); /* 40 hexadecimal digits */
/* The folder of the cache; the caller frees. */
char *hub_cache(void);
/* Of n paths in ascending order: the GGUF with weights that `quant`, or NULL, chooses; or NULL. */
const char *hub_choose(const char *quant, char *const *path, int n);
/* Whether a path is a GGUF with weights, and not a later part of one. */
bool hub_is_gguf(const char *path);

/* ---- lists of paths ---- */

struct hub_paths {
    char **path;
    int n;
};
void hub_paths_add(struct hub_paths *l, char *path); /* takes the path over */
void hub_paths_sort(struct hub_paths *l);            /* ascending */
void hub_paths_free(struct hub_paths *l);

/* The name for people of the model at a path: "ORG/NAME", with ":FILE.gguf", of one in the cache;
 * else the last part of the path, "target" left out. The caller frees. */
char *hub_title(const char *path);
/* The same of one in the cache; NULL: it lies elsewhere. */
char *hub_title_in_cache(const char *path);
