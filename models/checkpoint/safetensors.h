/* safetensors.h - functions of the reader of checkpoints that only models/ uses; the rest is in
 * models.h.
 *
 * A GGUF file (gguf_model.h) looks like the folder that it was made of: the same tensors, some of
 * which are made of the file's when they are read, and the same config.
 *
 * Every tensor passed in must come from st_at() or st_find(). All functions may be called from
 * several threads at once.
 */
#ifndef AERIE_MODELS_SAFETENSORS_H
#define AERIE_MODELS_SAFETENSORS_H

#include "kernels/mapped.h"
#include "models/models.h"

int st_index(const struct safetensors *s, const struct tensor *t); /* i where st_at(s, i) == t */
const char *st_type(const struct safetensors *s, const struct tensor *t); /* as in the header */
/* Path of the tensor's file. t NULL: of the index, or of the single file if there is no index. */
const char *st_path(const struct safetensors *s, const struct tensor *t);
/* A line for people about what the folder's files leave open, or "". */
const char *st_note(const struct safetensors *s);
/* The text of the checkpoint's config.json and its path, which the caller frees; of a GGUF file
 * what its metadata say, and the file's path. NULL and *e on failure. */
char *st_config(const struct safetensors *s, struct buf *text, struct err *e);
/* What a GGUF file or a folder with a quantization_config is, for people; NULL: another folder. */
const char *st_about(const struct safetensors *s);
/* How a server quantizes the inputs of the folder's matrices, for people, a constant text; NULL: no
 * config says so. */
const char *st_inputs(const struct safetensors *s);
/* Whether a tensor's bytes lie in its file as they are, at st_offset(). Others are made of what is
 * there. */
bool st_in_place(const struct safetensors *s, const struct tensor *t);
/* Reads bytes [from, from + n) of a tensor into dst. False and *e (ERR_MODEL): an I/O error, or a
 * weight of a GGUF file is not finite. */
bool st_read_part(const struct safetensors *s, const struct tensor *t, size_t from, size_t n,
                  void *dst, struct err *e);
/* A checkpoint's files are numbered from 0: how many there are, which one holds a tensor, and where
 * in it the tensor begins. */
int st_files(const struct safetensors *s);
int st_file_of(const struct safetensors *s, const struct tensor *t);
uint64_t st_offset(const struct safetensors *s, const struct tensor *t);
/* Maps a file as it was when it was opened. NULL and *e (ERR_MODEL): its size changed since, or the
 * system refuses. */
struct mapped *st_map(const struct safetensors *s, int file, struct err *e);
/* Whether READ_AUTO maps the files (models.h); otherwise *why is the reason, a constant text. */
bool st_mappable(const struct safetensors *s, const char **why);
/* Asks the system to read those bytes into its page cache (posix_fadvise). */
void st_prefetch(const struct safetensors *s, const struct tensor *t, size_t from, size_t n);

#endif
