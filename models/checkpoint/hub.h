/* hub.h - finds a model by its name in the cache of the Hugging Face hub, as its libraries fill it.
 *
 * A name is ORG/NAME, perhaps followed by @REVISION (a branch, a tag or a commit) and by :QUANT or
 * :FILE.gguf, which choose one of several GGUF files. Nothing is fetched or written.
 */
#ifndef AERIE_MODELS_HUB_H
#define AERIE_MODELS_HUB_H

#include "kernels/base.h"

/* What `name` means as a model: itself if there is such a file or folder, or if it is not of the
 * form above; the only GGUF file in a folder that has no other weights; else the folder or GGUF in
 * the cache that it names. NULL and *e (ERR_MODEL), which says where was looked, or which files a
 * folder has. The caller frees. */
char *hub_find(const char *name, struct err *e);

/* The name for people of the model at a path: "ORG/NAME", with ":FILE.gguf", of one in the cache;
 * else the last part of the path, "target" left out. The caller frees. */
char *hub_title(const char *path);
/* The same of one in the cache; NULL: it lies elsewhere. */
char *hub_title_in_cache(const char *path);

#endif
