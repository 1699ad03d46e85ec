/* prefill_packed.cu - the prefill kernel for matrices packed in blocks (packed.cuh), unpacked in
 * registers. */
#include "kernels/cuda/dense/prefill.cuh"

template <int TYPE> static void run_wide(struct kdev *d, const struct product *p)
{
    switch (best_columns(d, p)) {
    case 128: run<1, 128, TYPE>(d, p); break;
    case 160: run<1, 160, TYPE>(d, p); break;
    default: run<1, 192, TYPE>(d, p);
    }
}

void cuda_prefill_packed(struct kdev *d, const struct product *p)
{
    switch (p->m[0].type) {
    case DT_Q4_0: run_wide<DT_Q4_0>(d, p); break;
    case DT_Q8_0: run_wide<DT_Q8_0>(d, p); break;
    case DT_E4M3: run_wide<DT_E4M3>(d, p); break;
    case DT_Q4_K: run_wide<DT_Q4_K>(d, p); break;
    case DT_Q5_K: run<1, 128, DT_Q5_K>(d, p); break;
    case DT_Q5_1: run<1, 128, DT_Q5_1>(d, p); break;
    case DT_IQ4_XS: run<1, 128, DT_IQ4_XS>(d, p); break;
    case DT_E2M1: run<1, 128, DT_E2M1>(d, p); break;
    default: run_wide<DT_Q6_K>(d, p);
    }
}
