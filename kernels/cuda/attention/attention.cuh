/* attention.cuh - what the two attentions of the CUDA backend share: attention.cu adds in float32
 * lanes, for cells of any kind and heads of any width; tile.cu multiplies tiles of bf16
 * cells on the tensor cores.
 */
#ifndef AERIE_CUDA_ATTN_CUH
#define AERIE_CUDA_ATTN_CUH

#include "kernels/cuda/base/row.cuh"

struct attn_args {
    const float *q; /* (rows, n_head, head_dim) */
    const uint16_t *q_bits; /* the same as bf16; or NULL */
    const void *k, *v; /* (n_slots, n_kv, head_dim) */
    const int32_t *req, *pages, *lo, *hi, *expand, *n_expand; /* n_expand NULL: none */
    int rows, n_req, page_size, n_cols, expand_w, n_slots;
    int n_head, n_kv, head_dim, group;
    int window; /* no row sees more keys, 0: unknown */
    float scale, softcap;
    struct vec sinks;
    float *dst, *lse; /* lse or NULL */
    uint16_t *pack_to; /* instead of dst, packed for the product that follows; or NULL */
    struct row_format pack_as;
    float *part;      /* scratch: (rows, n_head, most_splits, head_dim), and each one's m and l */
    int most_splits;
};

/* Bf16 cells at one 16-bit number an activation. False, and nothing is done, where the shape is
 * not one that it has tiles for. */
bool cuda_attn_tiles(struct kdev *d, const struct attn_args *a);

#endif
