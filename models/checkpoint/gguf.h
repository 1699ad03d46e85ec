/* gguf.h - a strict reader of GGUF files: typed metadata, and the list of tensors.
 *
 * A file, or the first of the parts PREFIX-00001-of-0000N.gguf, whose others are opened with it.
 * The header is checked completely when the file is opened: every length lies within the file
 * before memory is allocated for it, keys and names are unique and printable, every tensor's type
 * is one that aerie reads, and the tensors follow each other in the data without holes or overlaps.
 * The whole header is kept in memory, at most GGUF_HEADER bytes a file.
 *
 * A struct gguf does not change after gguf_open(): any thread may read it. Errors are ERR_MODEL.
 */
#pragma once

#include "kernels/base.h"

enum { GGUF_HEADER = 512 << 20 };

/* Text in a header: bytes that nobody has checked, without a NUL at their end. Valid as long as the
 * struct gguf. */
struct gguf_text {
    const char *p;
    size_t n;
};

/* The types of tensors that aerie reads, by the numbers of the format. */
enum gguf_type {
    GGUF_F32 = 0, GGUF_F16 = 1, GGUF_BF16 = 30,
    GGUF_I8 = 24, GGUF_I16 = 25, GGUF_I32 = 26, GGUF_I64 = 27,
    GGUF_Q4_0 = 2, GGUF_Q4_1 = 3, GGUF_Q5_0 = 6, GGUF_Q5_1 = 7, GGUF_Q8_0 = 8,
    GGUF_Q2_K = 10, GGUF_Q3_K = 11, GGUF_Q4_K = 12, GGUF_Q5_K = 13, GGUF_Q6_K = 14,
    GGUF_IQ4_NL = 20, GGUF_IQ4_XS = 23, GGUF_MXFP4 = 39, GGUF_NVFP4 = 40,
    GGUF_TYPES = 43,
};

enum { GGUF_NAME = 64 };

struct gguf_tensor {
    char name[GGUF_NAME];
    enum dtype type;
    int n_dim; /* 1 to 4 */
    int64_t dim[4]; /* row-major, as in struct tensor: the last one is the length of a row. (The
                       file has them in the other order.) A multiple of the block's elements */
    int file;
    uint64_t at, bytes; /* in the file */
};

/* Types of metadata values. */
enum value_type {
    V_U8, V_I8, V_U16, V_I16, V_U32, V_I32, V_F32, V_BOOL, V_STRING, V_ARRAY, V_U64, V_I64, V_F64,
    N_VALUES
};
struct value_kind {
    const char *name;
    int bytes; /* 0: a string or an array, whose length stands before it */
};
extern const struct value_kind gguf_values[N_VALUES];

struct gguf_entry {
    size_t key;           /* place in the header; a NUL ends it */
    enum value_type type; /* of the value, or of the elements of an array */
    bool array;
    uint64_t n; /* elements; 1: not an array */
    size_t at;  /* place of the value, or of the first element */
};

struct gguf_file {
    char *path;
    int fd; /* whoever takes it away sets -1, and closes it */
    uint64_t size;
    char *head; /* what has been read of the header */
    size_t n_head, room;
    size_t pos; /* the next byte to be understood */
};

struct gguf {
    struct gguf_file *file;
    int n_file;
    struct gguf_entry *entry; /* of the first file, by key */
    int n_entry;
    struct gguf_tensor *tensor; /* in the order of the files */
    int n_tensor;
    int *by_name;
};

/* Whether a regular file begins with "GGUF", whatever its name is. */
bool gguf_is(const char *path);
/* NULL and *e: the file or one of its parts is refused. The caller closes. */
struct gguf *gguf_open(const char *path, struct err *e);
void gguf_close(struct gguf *g); /* NULL is allowed */

/* ---- metadata -------------------------------------------------------------------------------- */

/* The functions below return false and *e, which names file and key, if the key is present with
 * another type, more elements or other values than asked for. An absent key is no error: true, with
 * *out (and *n) unchanged, so that they hold the default. */

bool gguf_has(const struct gguf *g, const char *key);
/* Integers of any width. A bool is 0 or 1. */
bool gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
              struct err *e);
/* The id at tokenizer.ggml.NAME_token_id, below n; -1: the key is absent or has 2^32 - 1, by which
 * converters say that there is none. */
bool gguf_token_id(const struct gguf *g, const char *name, int64_t n, int *out, struct err *e);
bool gguf_real(const struct gguf *g, const char *key, double *out, struct err *e); /* f32 or f64 */
bool gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e);
bool gguf_string(const struct gguf *g, const char *key, struct gguf_text *out, struct err *e);
/* Arrays, in memory that the caller frees; a value that is no array is an array of one. */
bool gguf_ints(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t **out,
               size_t *n, struct err *e);
bool gguf_reals(const struct gguf *g, const char *key, float **out, size_t *n, struct err *e);
bool gguf_strings(const struct gguf *g, const char *key, struct gguf_text **out, size_t *n,
                  struct err *e);
/* SHA-256, in hex, over those of n keys that the file has, with the types and bytes of their
 * values. */
void gguf_digest(const struct gguf *g, const char *const *key, int n, char out[65]);
/* Sets *e to "FILE: key KEY <text>"; returns false. */
bool gguf_refuse(const struct gguf *g, const char *key, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The key of metadata entry i, in ascending order; NULL: there are not so many. */
const char *gguf_key(const struct gguf *g, int i);
/* The entry of a key among n of a file that are sorted by key; NULL: there is none. */
const struct gguf_entry *gguf_entry(const struct gguf_file *f, const struct gguf_entry *x, int n,
                                    const char *key);
/* The entry's value; -1: the entry is NULL, or is not one integer. */
int64_t gguf_entry_int(const struct gguf_file *f, const struct gguf_entry *x);

/* ---- tensors --------------------------------------------------------------------------------- */

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name); /* NULL: none */
/* Reads all bytes of a small tensor. */
bool gguf_read(const struct gguf *g, const struct gguf_tensor *t, void *dst, struct err *e);
