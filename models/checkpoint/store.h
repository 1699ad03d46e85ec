/* store.h - the host memory of a checkpoint's weights, and the fast way to fill it.
 *
 * A store is one anonymous mapping: the chosen tensors one after another in file order, each on a
 * 64-byte boundary, read straight into place by a few threads. Its size never exceeds the
 * tensors' bytes by more than 64 for each. The store also keeps the tensors' names.
 */
#ifndef AERIE_MODELS_STORE_H
#define AERIE_MODELS_STORE_H

#include "models/models.h"

/* "Read src of the checkpoint into memory and make dst that tensor." */
struct want {
    struct tensor *dst;
    const struct tensor *src; /* of the safetensors that is read */
    bool by_row;              /* for dst */
};

/* Loads all wants (sorting them by place in the files) into a new store; *digest receives a 64-bit
 * digest of each want's content, in the sorted order. On failure *out is NULL, dst tensors are
 * untouched. The caller frees *out with store_free() after the last use of the tensors. */
bool store_load(struct store **out, struct safetensors *st, struct want *want, int n,
                uint64_t *digest, const char *what, const struct progress *p, struct err *e);
void store_free(struct store *s); /* NULL is fine */
/* Gives the whole pages of [p, p + n) back to the system; what they held is gone. A pointer that
 * is not the store's is left alone. */
void store_drop(struct store *s, const void *p, size_t n);

/* The same digest of one tensor, read in passing without being kept. */
bool store_digest(const struct safetensors *st, const struct tensor *t, uint64_t *digest,
                  struct err *e);

#endif
