/* decode_five.cu - the decode kernel for matrices with codes of five bits (packed.cuh). */
#include "kernels/cuda/dense/decode_run.cuh"

void cuda_product_five(struct kdev *d, struct product *p, const struct product_route *r)
{
    switch (p->m[0].type) {
    case DT_Q5_K: run_form<DT_Q5_K>(d, p, r->form); break;
    case DT_Q5_0: run_form<DT_Q5_0>(d, p, r->form); break;
    default: run_form<DT_Q5_1>(d, p, r->form);
    }
}
