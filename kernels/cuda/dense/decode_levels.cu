/* decode_levels.cu - the decode kernel for matrices whose codes number levels (packed.cuh): IQ4_XS
 * and E2M1. */
#include "kernels/cuda/dense/decode_run.cuh"

void cuda_product_levels(struct kdev *d, struct product *p, const struct product_route *r)
{
    if (p->m[0].type == DT_IQ4_XS)
        run_form<DT_IQ4_XS>(d, p, r->form);
    else
        run_form<DT_E2M1>(d, p, r->form);
}
