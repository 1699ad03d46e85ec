/* safetensors.h - what models/ needs of the reader beyond models.h.
 *
 * Tensors passed in are those that st_at() and st_find() returned. st_read_part() may be called by
 * several threads at once; everything else here only looks.
 */
#ifndef AERIE_MODELS_SAFETENSORS_H
#define AERIE_MODELS_SAFETENSORS_H

#include "models/models.h"

int st_index(const struct safetensors *s, const struct tensor *t); /* st_at(s, this) == t */
const char *st_type(const struct safetensors *s, const struct tensor *t); /* as written there */
/* The tensor's file; NULL: the file that says what there is, the single one or the index. */
const char *st_path(const struct safetensors *s, const struct tensor *t);
/* Reads bytes [from, from + n) of a tensor into dst. */
bool st_read_part(const struct safetensors *s, const struct tensor *t, size_t from, size_t n,
                  void *dst, struct err *e);
/* Asks the system to have those bytes ready soon. */
void st_prefetch(const struct safetensors *s, const struct tensor *t, size_t from, size_t n);

#endif
