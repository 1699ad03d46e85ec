/* decode.cu - the decode kernel for bf16 and FP8 matrices, and the format of its rows. */
#include "kernels/cuda/dense/decode_run.cuh"

struct row_format cuda_decode_format(const struct kdev *d, int rows, int kp)
{
    struct row_format f = {};
    f.cols = rows * d->gpu.terms;
    f.kind = decode_rows_fit(&d->gpu, f.cols, kp) ? ROW_BY_CHUNK : ROW_BY_STAGE;
    f.kp = kp;
    f.group = decode_group(&d->gpu);
    f.ksplit = ksplit_of(kp);
    return f;
}

static_assert((int)JOINED_MAX + 8 == sum_pitch(6), "route.c knows the room for sums");

void cuda_product_decode(struct kdev *d, struct product *p, const struct product_route *r)
{
    if (p->m[0].fp8)
        run_form<STORED_FP8>(d, p, r->form);
    else
        run_form<DT_BF16>(d, p, r->form);
}
