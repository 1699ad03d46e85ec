/* prefill_packed.cu - the prefill kernel for matrices packed in blocks (packed.cuh), unpacked in
 * registers. */
#include "kernels/cuda/dense/prefill.cuh"

template <int TYPE> static void run_columns(struct kdev *d, const struct product *p)
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
#define RUN(stored) case stored: run_columns<stored>(d, p); break;
        PACKED_LAYOUTS(RUN)
#undef RUN
    }
}
