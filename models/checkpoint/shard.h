/* shard.h - one file of a safetensors checkpoint, for its reader (safetensors.c): what the reader
 * keeps of a file and of each tensor, and a file's header (shard.c).
 */
#ifndef AERIE_MODELS_CHECKPOINT_SHARD_H
#define AERIE_MODELS_CHECKPOINT_SHARD_H

#include "models/checkpoint/safetensors.h"

enum { MAX_HEADER = 100000000, HEADER_DEPTH = 4 }; /* bytes of a header or an index, its nesting */

struct st_entry {
    struct tensor t; /* first: a caller's tensor is an entry */
    const char *type; /* as written in the file */
    int shard;
    uint64_t at; /* of its first byte in the shard's file */
    struct rows *rows; /* how it is read from a GGUF file; NULL: as it lies there */
    bool made;         /* of the file's rows, which have other bytes */
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
    char *note;   /* st_note() */
    char *about;  /* st_about() */
    const char *inputs; /* st_inputs() */
    struct gguf *gguf; /* NULL: safetensors files */
    struct buf config; /* of a GGUF file */
    struct shard *shard;
    int n_shard;
    struct st_entry *entry; /* by shard and offset */
    int n, n_hidden; /* hidden entries lie behind the n others: their names are used */
    const struct st_entry **by_name;
};

/* Opens f->path, checks the rules (1) to (3) and appends the file's tensors to s->entry. f is one
 * of s->shard; its descriptor is closed by the caller, also on failure. */
bool shard_open(struct safetensors *s, struct shard *f, struct err *e);

/* Room for one more entry behind the s->n there are; valid until the next call. */
struct st_entry *entry_room(struct safetensors *s);

/* Sets *e to "FILE: tensor NAME: <text>". Returns false. */
__attribute__((format(printf, 4, 5)))
bool bad_entry(const struct shard *f, const char *name, struct err *e, const char *fmt, ...);

/* Whether a name in a file is not empty and has no control characters. */
bool name_is_plain(const char *name);

/* Reads exactly n bytes at file offset `at`. Any thread. */
bool shard_pread(const struct shard *f, void *dst, size_t n, uint64_t at, struct err *e);

#endif
