/* safetensors.h - functions of the safetensors reader that only models/ uses; the rest is in
 * models.h.
 *
 * Every tensor passed in must come from st_at() or st_find(). All functions may be called from
 * several threads at once.
 */
#ifndef AERIE_MODELS_SAFETENSORS_H
#define AERIE_MODELS_SAFETENSORS_H

#include "models/models.h"

int st_index(const struct safetensors *s, const struct tensor *t); /* i where st_at(s, i) == t */
const char *st_type(const struct safetensors *s, const struct tensor *t); /* as in the header */
/* Path of the tensor's file. t NULL: of the index, or of the single file if there is no index. */
const char *st_path(const struct safetensors *s, const struct tensor *t);
/* Reads bytes [from, from + n) of a tensor into dst. False and *e (ERR_MODEL) on an I/O error. */
bool st_read_part(const struct safetensors *s, const struct tensor *t, size_t from, size_t n,
                  void *dst, struct err *e);
/* Asks the system to read those bytes into its page cache (posix_fadvise). */
void st_prefetch(const struct safetensors *s, const struct tensor *t, size_t from, size_t n);

#endif
