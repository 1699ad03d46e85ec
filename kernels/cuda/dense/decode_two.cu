/* decode_two.cu - the decode kernel for matrices of Q2_K and Q3_K (packed.cuh). */
#include "kernels/cuda/dense/decode_run.cuh"

void cuda_product_two(struct kdev *d, struct product *p, const struct product_route *r)
{
    if (p->m[0].type == DT_Q2_K)
        run_form<DT_Q2_K>(d, p, r->form);
    else
        run_form<DT_Q3_K>(d, p, r->form);
}
