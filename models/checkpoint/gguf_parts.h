/* gguf_parts.h - an open GGUF file as gguf.c has read it, for gguf_values.c, which reads the values
 * of its metadata. Only these two files include it.
 */
#ifndef AERIE_MODELS_GGUF_PARTS_H
#define AERIE_MODELS_GGUF_PARTS_H

#include "models/checkpoint/gguf.h"

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
    int fd;
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

/* The entry of a key among n that are sorted by key; NULL: there is none. */
const struct gguf_entry *gguf_entry(const struct gguf_file *f, const struct gguf_entry *x, int n,
                                    const char *key);
/* The entry's value; -1: the entry is NULL, or is not one integer. */
int64_t gguf_entry_int(const struct gguf_file *f, const struct gguf_entry *x);

#endif
