/* verify_packed.cu - the verify kernel for matrices packed in blocks (packed.cuh), unpacked in
 * registers. */
#include "kernels/cuda/dense/verify.cuh"

int cuda_verify_packed(struct kdev *d, const struct product *p, bool defers)
{
    switch (p->m[0].type) {
#define RUN(stored) case stored: return run_rows<stored>(d, p, defers);
        PACKED_LAYOUTS(RUN)
#undef RUN
    default: CHECK(!"a layout without a kernel");
    }
    return 0;
}
