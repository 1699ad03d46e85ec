/* rerank.cu - chooses again among the best of each row of logits, by a score that depends on
 * another row. A warp computes a candidate's score: lane l adds the products of elements l, l + 32,
 * and so on, then the lanes' sums are added as a tree (base/reduce.cuh). One thread orders them. */
#include "kernels/cuda/base/panel.cuh"
#include "kernels/cuda/sampling/sample.cuh"

enum { RERANK_THREADS = 256, RERANK_WARPS = RERANK_THREADS / 32 };

struct rerank_args {
    int n, k, width, n_table;
    const int32_t *from, *ids;
    const float *logp, *src;
    struct vec table;
    size_t pitch; /* elements between rows of the table */
    int32_t *best;
    float *best_logp;
};

__device__ __forceinline__ float rerank_product(const rerank_args &a, const float *src, int id)
{
    float sum = 0;
    for (int i = (int)threadIdx.x % 32; i < a.width; i += 32)
        sum = fmaf(weight_at(a.table, (size_t)id * a.pitch + (size_t)i), src[i], sum);
    return warp_sum(sum);
}

__global__ void __launch_bounds__(RERANK_THREADS, 1)
    rerank_kernel(const __grid_constant__ rerank_args a)
{
    __shared__ float score[MAX_K];
    __shared__ double term[MAX_K];
    __shared__ int order[MAX_K];
    __shared__ int there; /* candidates */
    __shared__ bool odd;  /* a score is no number */
    const int tid = (int)threadIdx.x, r = (int)blockIdx.x;
    pdl_trigger();
    pdl_wait_trigger();
    const size_t from = (size_t)a.from[r] * (size_t)a.n;
    const float *src = a.src + (size_t)r * (size_t)a.width;
    for (int c = tid / 32; c < a.n; c += RERANK_WARPS) {
        const int id = a.ids[from + (size_t)c];
        const bool is = id >= 0 && id < a.n_table; /* see struct k_rerank */
        const float s = is ? a.logp[from + (size_t)c] + rerank_product(a, src, id) : 0.f;
        if (tid % 32 == 0)
            score[c] = s, order[c] = is;
    }
    __syncthreads();
    if (tid == 0) {
        int n = 0;
        bool nan = false;
        while (n < a.n && order[n])
            n++;
        for (int i = 0; i < n; i++) { /* the earlier of equal scores first */
            int at = i;
            nan |= isnan(score[i]);
            for (; at > 0 && score[i] > score[order[at - 1]]; at--)
                order[at] = order[at - 1];
            order[at] = i;
        }
        there = n, odd = nan;
    }
    __syncthreads();
    const double most = there ? (double)score[order[0]] : 0;
    if (tid < there)
        term[tid] = exp((double)score[tid] - most);
    __syncthreads();
    if (tid >= a.k)
        return;
    double sum = 0;
    for (int i = 0; i < there; i++)
        sum += term[i];
    const bool none = tid >= there;
    const size_t to = (size_t)r * (size_t)a.k + (size_t)tid;
    a.best[to] = none ? -1 : a.ids[from + (size_t)(odd ? tid : order[tid])];
    a.best_logp[to] = none ? -INFINITY
                      : odd ? NAN : (float)((double)score[order[tid]] - most - log(sum));
}

void cuda_rerank(struct kdev *d, const struct k_rerank *a)
{
    cuda_begin(d, "rerank");
    const size_t rows = (size_t)a->rows, k = (size_t)a->k;
    CHECK(a->n > 0 && a->n <= MAX_K && a->k > 0 && a->k <= RERANK_THREADS);
    CHECK(a->table->n_dim == 2 && a->table->dim[1] == a->width && !cuda_paneled(a->table));
    rerank_args x = {a->n, a->k, a->width, (int)a->table->dim[0], cuda_i32(a->from, rows),
                     cuda_i32(a->ids, (size_t)a->n), cuda_f32(a->logp, (size_t)a->n),
                     cuda_f32(a->src, rows * (size_t)a->width), cuda_vec(a->table),
                     cuda_pitch(a->table), cuda_i32(a->best, rows * k),
                     cuda_f32(a->best_logp, rows * k)};
    cuda_launch(d, rerank_kernel, dim3((unsigned)a->rows), RERANK_THREADS, 0, x);
}
