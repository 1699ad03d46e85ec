/* fresh.cu - stores fresh cells (struct fresh_cells, cuda.h) where attention does not. */
#include "kernels/cuda/base/row.cuh"
#include "kernels/cuda/dense/fresh.cuh"

/* Blocks (head of K or V, row) of a warp. */
template <int HD>
__global__ void __launch_bounds__(32) fresh_kernel(const __grid_constant__ fresh_cells f)
{
    const int h = (int)blockIdx.x;
    pdl_wait_trigger(); /* late, because attention reads old cells before its own wait
                           (kdev.late_epoch) */
    store_fresh_head<HD>(f, (int)blockIdx.y, h >= f.n_kv, h % f.n_kv);
}

void cuda_store_fresh(struct kdev *d, const struct fresh_cells *f)
{
    if (!f->k)
        return;
    cuda_launch(d, f->head_dim == 64    ? fresh_kernel<64>
                   : f->head_dim == 128 ? fresh_kernel<128> : fresh_kernel<256>,
                dim3((unsigned)(2 * f->n_kv), (unsigned)f->rows), 32, 0, *f);
}
