/* prefill.cu - the prefill kernel for bf16 and FP8 matrices, and the maps that describe matrices to
 * TMA. */
#include "kernels/cuda/dense/prefill.cuh"

/* ---- host ----------------------------------------------------------------------------------- */

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function that encodes tensor maps; NULL: the driver has none. */
static encode_fn *encoder()
{
    static encode_fn *f;
    void *p = NULL;
    cudaDriverEntryPointQueryResult found;
    if (!f && cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000,
                                               cudaEnableDefault, &found) == cudaSuccess &&
        found == cudaDriverEntryPointSuccess)
        f = (encode_fn *)p;
    return f;
}

bool cuda_has_tensor_maps() { return encoder() != NULL; }

void cuda_tile_map(struct kdev *d, CUtensorMap *map, const void *p, int rows, int n, size_t pitch,
                   int box_n, int box_rows)
{
    const cuuint64_t dim[] = {(cuuint64_t)n, (cuuint64_t)rows}, stride[] = {pitch};
    const cuuint32_t box[] = {(cuuint32_t)box_n, (cuuint32_t)box_rows}, one[] = {1, 1};
    if (encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)p, dim, stride, box, one,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        cuda_fail(d, "a tensor map was refused");
}

/* A map of words; dim, stride (in bytes) and box as the driver takes them. */
static void word_map(struct kdev *d, CUtensorMap *map, CUtensorMapDataType word, const void *p,
                     int n_dim, const cuuint64_t *dim, const cuuint64_t *stride,
                     const cuuint32_t *box)
{
    const cuuint32_t one[] = {1, 1, 1, 1};
    if (encoder()(map, word, (cuuint32_t)n_dim, (void *)p, dim, stride, box, one,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        cuda_fail(d, "a tensor map was refused");
}

void cuda_word_map(struct kdev *d, CUtensorMap *map, const void *p, int words, int rows,
                   size_t pitch, int box_words, int box_rows)
{
    const cuuint64_t dim[] = {(cuuint64_t)words, (cuuint64_t)rows}, stride[] = {pitch};
    const cuuint32_t box[] = {(cuuint32_t)box_words, (cuuint32_t)box_rows};
    word_map(d, map, CU_TENSOR_MAP_DATA_TYPE_INT32, p, 2, dim, stride, box);
}

void cuda_piece_map(struct kdev *d, CUtensorMap *map, const void *p, int bytes, int pieces,
                    int rows, int box_rows, int box_bytes, size_t pitch)
{
    const cuuint64_t dim[] = {(cuuint64_t)bytes / 8, (cuuint64_t)pieces, (cuuint64_t)rows},
                     stride[] = {(cuuint64_t)bytes,
                                 pitch ? pitch : (cuuint64_t)bytes * (cuuint64_t)pieces};
    const cuuint32_t box[] = {(cuuint32_t)(box_bytes ? box_bytes : bytes) / 8, 1,
                              (cuuint32_t)box_rows};
    word_map(d, map, CU_TENSOR_MAP_DATA_TYPE_INT64, p, 3, dim, stride, box);
}

void cuda_panel_map(struct kdev *d, CUtensorMap *map, const void *p, const struct panels *l,
                    int box_panels, int box_rows)
{
    const cuuint64_t unit = (cuuint64_t)(l->rows * UNIT_BYTES);
    const cuuint64_t dim[] = {unit / 8, (cuuint64_t)l->n, UNITS, (cuuint64_t)l->ksplit.chunks},
                     stride[] = {panel_bytes(*l), unit, unit * UNITS};
    const cuuint32_t box[] = {(cuuint32_t)(box_rows * UNIT_BYTES / 8), (cuuint32_t)box_panels,
                              UNITS, 1};
    word_map(d, map, CU_TENSOR_MAP_DATA_TYPE_INT64, p, 4, dim, stride, box);
}

template <int TERMS, int COLS> static void run(struct kdev *d, const struct product *p)
{
    p->m[0].fp8 ? run<TERMS, COLS, STORED_FP8>(d, p) : run<TERMS, COLS, DT_BF16>(d, p);
}

int cuda_prefill_panels(const struct kdev *d, const struct product *p, int most)
{
    int first[MAX_MATS];
    struct division of[MAX_MATS];
    tiles_of(p, first, of);
    const int n_sm = d->gpu.n_sm, n = p->m[0].panels.n, all = of[0].n; /* panels, their tiles */
    const int tiles_row = div_up(p->rows * d->gpu.terms, best_columns(d, p));
    const int waves = (int)((long)all * most / n) * tiles_row / n_sm;
    return waves ? (int)((long)(waves * n_sm / tiles_row) * n / all) : most;
}

void cuda_product_prefill(struct kdev *d, const struct product *p)
{
    if (d->gpu.terms == 2)
        return run<2, 160>(d, p);
    switch (best_columns(d, p)) {
    case 128: run<1, 128>(d, p); break;
    case 160: run<1, 160>(d, p); break;
    default: run<1, 192>(d, p);
    }
}
