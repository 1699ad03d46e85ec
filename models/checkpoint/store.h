/* store.h - the host memory of a checkpoint's weights, and how threads fill it.
 *
 * A store holds the bound tensors that are copied in one anonymous mapping, in file order, each at
 * a multiple of 64 bytes, so it is at most 64 bytes per tensor larger than these tensors. Up to
 * eight threads read the files directly into it. Tensors that are not copied lie in mappings of the
 * files, which the store owns; the threads read them for their digests only, which also fills the
 * page tables. The store also owns the tensors' names.
 */
#pragma once

#include "models/models.h"

/* Bytes to load: [from, from + bytes) of src are read into the store, at byte `at` of *dst. Most
 * loads read the whole of src, which is *dst then. A fused matrix has a load for each tensor that
 * it contains; a stacked one is read by several loads, which have a number in common. */
struct tensor_load {
    struct tensor *dst;
    struct tensor form;       /* what *dst is set to, but for data and name (src's) */
    const struct tensor *src; /* of the safetensors that is read */
    size_t from, bytes, at;
    int pairs; /* rows of a head, whose rows 2i become rows i and rows 2i + 1 rows pairs / 2 + i
                  after they have been read; 0: they stay as they are */
    int padded_from, padded_to; /* units of each group in the file, and in *dst, where the others
                                   are zero; 0: they are the same */
    size_t unit;                /* bytes */
    int stack; /* 1 and up, the same in all loads of *dst; 0: this load is all of it */
};

/* Does n loads into a new store. Sorts load[] by place in the files; digest[i] receives the
 * 64-bit content digest of load[i] in the sorted order. `what` names the model in progress reports;
 * how NULL: READ_COPY.
 * On failure *out is NULL and the dst tensors are unchanged. The caller frees *out with
 * store_free() after the last use of the tensors. */
bool store_load(struct store **out, struct safetensors *st, struct tensor_load *load, int n,
                uint64_t *digest, const char *what, const struct loading *how, struct err *e);
void store_free(struct store *s); /* NULL is allowed */
/* Returns the whole pages within [p, p + n) to the system; their contents are lost. Does nothing if
 * p does not point into the store's copies. */
void store_drop(struct store *s, const void *p, size_t n);

/* The content digest of one tensor, as store_load() computes it, without storing the tensor. */
bool store_digest(const struct safetensors *st, const struct tensor *t, uint64_t *digest,
                  struct err *e);
