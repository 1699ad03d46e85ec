/* attention.cuh - what the two attention implementations of the CUDA backend share. attention.cu
 * accumulates with float32 FMA, for cells of any type and heads of any width; tile.cu and decode.cu
 * multiply tiles of bf16 cells on the tensor cores, and of FP8 cells, which they widen to bf16
 * (cell.cuh): their bits are those of bf16 cells that hold the same numbers.
 */
#pragma once

#include "kernels/cuda/base/row.cuh"

struct attn_args {
    const float *q; /* (rows, n_head, head_dim) */
    const uint16_t *q_bf16; /* the same rounded to bf16; or NULL */
    const void *k, *v; /* (n_slots, n_kv, head_dim) */
    int cell_bytes;    /* FP8 cells: bytes of a slot's keys, or values (kv_cell_bytes()); else 0 */
    struct fresh_cells fresh; /* those of its cells that it is to store itself, or to have stored */
    /* n_expand NULL: no row has expanded keys */
    const int32_t *req, *pages, *lo, *hi, *expand, *n_expand;
    int rows, n_req, page_size, n_cols, expand_w, n_slots;
    int n_head, n_kv, head_dim, group;
    int window; /* no row sees more keys than this; 0: no window */
    float scale, softcap;
    struct vec sinks;
    float *dst, *lse; /* lse may be NULL */
    /* Packed activations for the next product, written instead of dst; or NULL. */
    uint16_t *pack_to;
    struct row_format pack_as;
    /* Scratch, (rows, n_head, most_splits): sums over head_dim, and each split's m and l. */
    float *part;
    int most_splits;
};

/* Attention by tile.cu or decode.cu, over bf16 or FP8 cells with activations of one bf16 term. r:
 * not ATTN_SPLITS. */
void cuda_attn_tiles(struct kdev *d, const struct attn_args *a, const struct attn_route *r);
