/* decode_two.cu - the decode kernel for matrices of Q2_K (packed.cuh). */
#include "kernels/cuda/dense/decode_run.cuh"

void cuda_product_two(struct kdev *d, struct product *p, const struct product_route *r)
{
    run_form<DT_Q2_K>(d, p, r->form);
}
