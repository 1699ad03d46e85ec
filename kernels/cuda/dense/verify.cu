/* verify.cu - the verify kernel for bf16 and FP8 matrices, and the kernel that reduces partial
 * sums. */
#include "kernels/cuda/dense/verify.cuh"

enum { REDUCE_THREADS = 256 };

/* Reduces the partial sums; a thread computes one output of one row. */
static __global__ void __launch_bounds__(REDUCE_THREADS)
    reduce_splits_kernel(const __grid_constant__ struct product p, const float *part, int all,
                         int splits)
{
    const int at = (int)(blockIdx.x * REDUCE_THREADS + threadIdx.x), row = (int)blockIdx.y;
    int mat = 0, out = at;
    pdl_trigger();
    while (mat + 1 < p.n_mats && out >= paired(p.m[mat].n))
        out -= paired(p.m[mat++].n);
    pdl_wait_trigger();
    if (at >= all || out >= p.m[mat].n)
        return;
    part += partial_at(p.rows, row, at);
    float y[K_SPLITS];
#pragma unroll
    for (int r = 0; r < K_SPLITS; r++)
        y[r] = r < splits ? __ldcg(part + (size_t)r * partial_floats(p.rows, all)) : 0.f;
#pragma unroll
    for (int r = 1; r < K_SPLITS; r++)
        y[0] += y[r];
    store_output(p.f[mat], apply_epilogue(p.f[mat], y[0], out, row), out, row);
}

/* ---- host ----------------------------------------------------------------------------------- */

void cuda_reduce_splits(struct kdev *d, const struct product *p, const float *part, int all,
                        int splits)
{
    dim3 grid((unsigned)div_up(all, REDUCE_THREADS), (unsigned)p->rows);
    cuda_launch(d, reduce_splits_kernel, grid, REDUCE_THREADS, 0, *p, part, all, splits);
}

void cuda_reduce_pending(struct kdev *d, struct pending *w)
{
    struct product p = {};
    p.n_mats = 1, p.rows = w->rows;
    p.m[0].n = w->n;
    p.f[0].scale = 1;
    p.f[0].dst = d->pending_buf[w->src == d->pending_buf[0]];
    p.f[0].dst_stride = (size_t)w->n;
    cuda_reduce_splits(d, &p, w->src, w->n, w->splits);
    w->src = p.f[0].dst, w->splits = 0;
}

bool cuda_is_bare_store(const struct epilogue *f)
{
    return !f->b.p && f->act == ACT_NONE && f->softcap <= 0 && f->scale == 1 && !f->mul && !f->add;
}

int cuda_product_verify(struct kdev *d, const struct product *p, bool defers)
{
    if (dtype_packed((enum dtype)p->m[0].type))
        return cuda_verify_packed(d, p, defers);
    return p->m[0].fp8 ? run_rows<STORED_FP8>(d, p, defers) : run_rows<DT_BF16>(d, p, defers);
}
