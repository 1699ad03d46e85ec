/* safetensors.h - the reader of checkpoints, for the files of models/; what others use of it is in
 * models.h.
 *
 * A GGUF file (gguf_model.h) looks like the folder that it was made of: the same tensors, some of
 * which are made of the file's when they are read, and the same config. So do the matrices of a
 * folder that stores codes and scales (coded.h).
 *
 * Every tensor passed in must come from st_at() or st_find(). All functions but st_open() and
 * st_close() may be called from several threads at once.
 */
#pragma once

#include "kernels/mapped.h"
#include "models/checkpoint/rows.h"
#include "models/models.h"

enum { MAX_HEADER = 100000000, HEADER_DEPTH = 4 }; /* bytes of a header or an index, its nesting */

struct st_entry {
    struct tensor t; /* first: a caller's tensor is an entry */
    const char *type; /* as written in the file */
    int shard;
    uint64_t at; /* of its first byte in the shard's file */
    struct rows *rows; /* how it is read; NULL: as it lies in the file */
    bool made;         /* of the file's rows, which have other bytes */
    bool hidden;       /* by coded_find(): codes or scales of a matrix, or a scale that is not used;
                          the binder does not see the tensor */
};

struct shard {
    char *name; /* base name */
    char *path;
    int fd;
    uint64_t size;
    int first, n; /* its entries */
};

struct safetensors {
    char *source; /* path of the index, or of the single file */
    char *dir;    /* of the folder, or NULL */
    char *note;   /* a line for people about what the folder's files leave open, or NULL */
    char *about;  /* what a GGUF file or a folder with a quantization_config is, for people; NULL:
                     another folder */
    const char *inputs; /* how a server quantizes the inputs of the folder's matrices, for people, a
                           constant text; NULL: no config says so */
    struct gguf *gguf;  /* NULL: safetensors files */
    struct buf config;  /* of a GGUF file */
    struct shard *shard;
    int n_shard;
    struct st_entry *entry; /* by shard and offset */
    int n, n_hidden; /* hidden entries lie behind the n others: their names are used */
    struct st_entry **by_name;
};

static inline const struct st_entry *st_entry(const struct tensor *t)
{
    return (const struct st_entry *)t;
}
int st_index(const struct safetensors *s, const struct tensor *t); /* i where st_at(s, i) == t */
/* Path of the tensor's file. t NULL: of the index, or of the single file if there is no index. */
const char *st_path(const struct safetensors *s, const struct tensor *t);
/* The text of the checkpoint's config.json and its path, which the caller frees; of a GGUF file
 * what its metadata say, and the file's path. NULL and *e on failure. */
char *st_config(const struct safetensors *s, struct buf *text, struct err *e);
/* Makes bf16 of a matrix that coded_find() left packed, or that a scale beside a GGUF's NVFP4
 * multiplies, before it is read; others stay. */
void st_as_bf16(const struct tensor *t);
/* Reads bytes [from, from + n) of a tensor into dst. False and *e (ERR_MODEL): an I/O error, or a
 * weight of a GGUF file is not finite. */
bool st_read_part(const struct safetensors *s, const struct tensor *t, size_t from, size_t n,
                  void *dst, struct err *e);
/* Maps a file as it was when it was opened. NULL and *e (ERR_MODEL): its size changed since, or the
 * system refuses. */
struct mapped *st_map(const struct safetensors *s, int file, struct err *e);
/* Whether READ_AUTO maps the files (models.h); otherwise *why is the reason, a constant text. */
bool st_mappable(const struct safetensors *s, const char **why);
/* Asks the system to read those bytes into its page cache (posix_fadvise). */
void st_prefetch(const struct safetensors *s, const struct tensor *t, size_t from, size_t n);

/* ---- one file (shard.c) ---- */

/* Opens f->path, checks the rules (1) to (3) and appends the file's tensors to s->entry. f is one
 * of s->shard; its descriptor is closed by the caller, also on failure. */
bool shard_open(struct safetensors *s, struct shard *f, struct err *e);
/* Room for one more entry behind the s->n there are; valid until the next call. */
struct st_entry *entry_room(struct safetensors *s);
/* Sets *e to "FILE: tensor NAME: <text>". Returns false. */
__attribute__((format(printf, 4, 5)))
bool bad_entry(const struct shard *f, const char *name, struct err *e, const char *fmt, ...);
/* Reads exactly n bytes at file offset `at`. Any thread. */
bool shard_pread(const struct shard *f, void *dst, size_t n, uint64_t at, struct err *e);
