/* decode_packed.cu - the decode kernel for matrices packed in blocks (packed.cuh), here of those of
 * 32 elements; decode_k.cu has the others. */
#include "kernels/cuda/dense/decode_run.cuh"

void cuda_product_packed(struct kdev *d, struct product *p, const struct product_route *r)
{
    switch (p->m[0].type) {
    case DT_Q4_0: run_form<DT_Q4_0>(d, p, r->form); break;
    case DT_Q8_0: run_form<DT_Q8_0>(d, p, r->form); break;
    case DT_E4M3: run_form<DT_E4M3>(d, p, r->form); break;
    default: cuda_product_k(d, p, r);
    }
}
