/* decode_k.cu - the decode kernel for matrices packed in blocks of 256 elements (packed.cuh). */
#include "kernels/cuda/dense/decode_run.cuh"

void cuda_product_k(struct kdev *d, struct product *p, const struct product_route *r)
{
    if (p->m[0].type == DT_Q4_K)
        run_form<DT_Q4_K>(d, p, r->form);
    else
        run_form<DT_Q6_K>(d, p, r->form);
}
