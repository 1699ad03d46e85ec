/* router.cuh - the router of a mixture of experts: what its two kernels (router.cu for decode and
 * verify rows, router_prefill.cu for prefill rows) define once, and how a block holds a row.
 *
 * The kernels differ in how they multiply, for speed: for decode and verify rows a block holds the
 * weights of a few experts in registers and reads row after row; for prefill rows a block holds
 * several rows in registers and reads the weights of expert after expert.
 * They agree to the bit: an element belongs to the same thread (ROUTE_THREADS threads, PER elements
 * each), its products are added in the same order, and the logit, the selection and the grouping
 * are the functions here.
 */
#pragma once

#include "kernels/cuda/moe/experts.cuh"

#ifdef __CUDACC__

enum {
    ROUTE_THREADS = ROUTER_THREADS,
    ROUTE_WARPS = ROUTE_THREADS / 32,
    PER = ROUTER_PER, /* elements that a thread holds, so that it waits once for several loads */
    ROUTE_PASS = PER * ROUTE_THREADS, /* elements of a row held at once */
};

/* A predicated volatile load of one number; 0 if `there` is false. In this form the load is a
 * compare and an address with an offset, and the compiler does not move it across the wait. */
__device__ __forceinline__ uint32_t fetch(const uint16_t *p, bool there)
{
    uint32_t v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov.u32 %0, 0;\n"
                 "@p ld.global.nc.u16 %0, [%1];\n}"
                 : "=r"(v)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return v;
}
__device__ __forceinline__ uint32_t fetch(const uint32_t *p, bool there)
{
    uint32_t v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov.u32 %0, 0;\n"
                 "@p ld.global.nc.u32 %0, [%1];\n}"
                 : "=r"(v)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return v;
}
/* The same for an element of a row, which another kernel may have written: not through L1. */
__device__ __forceinline__ float fetch(const float *p, bool there)
{
    float v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov.f32 %0, 0f00000000;\n"
                 "@p ld.global.cg.f32 %0, [%1];\n}"
                 : "=f"(v)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return v;
}

/* A thread's elements of a pass: x[j] is element from + j * ROUTE_THREADS + thread of the n at
 * p. */
template <class IN, class OUT>
__device__ __forceinline__ void fetch_part(const IN *p, int n, int from, OUT (&x)[PER])
{
    const int i = from + (int)threadIdx.x;
    p += i;
#pragma unroll
    for (int j = 0; j < PER; j++)
        x[j] = fetch(p + j * ROUTE_THREADS, i + j * ROUTE_THREADS < n);
}

/* A thread's weights of a pass as raw bits: converting a loaded number at once would wait for the
 * load. BF16: the weights are bf16, which shortens the code. Without weights w is left as it is. */
template <bool BF16>
__device__ __forceinline__ void fetch_weights(struct vec v, size_t first, int n, int from,
                                              uint32_t (&w)[PER])
{
    if (!BF16 && v.p && v.type == DT_F32)
        fetch_part((const uint32_t *)v.p + first, n, from, w);
    else if (v.p)
        fetch_part((const uint16_t *)v.p + first, n, from, w);
}
/* Converts raw bits to float32. */
template <bool BF16> __device__ __forceinline__ float as_float(struct vec v, uint32_t w)
{
    return BF16 ? low_bf16(w) : raw_value(v.type, w);
}

/* Barrier of the threads that hold a row; the block may have further threads. */
__device__ __forceinline__ void route_sync()
{
    named_barrier<ROUTE_BARRIER, ROUTE_THREADS>();
}

/* The sum, and the maximum of non-negative numbers, over these threads. scratch: ROUTE_WARPS floats
 * that no thread still reads. */
__device__ __forceinline__ float route_sum(float v, float *scratch)
{
    return block_sum<ROUTE_WARPS>(v, scratch, route_sync);
}
__device__ __forceinline__ float route_max(float v, float *scratch)
{
    return block_max_positive<ROUTE_WARPS>(v, scratch, route_sync);
}

/* ---- logits --------------------------------------------------------------------------------- */

/* The norm of the router's input. */
__device__ __forceinline__ const struct norm &route_norm(const moe_args &a)
{
    return a.router_norm.kind != NORM_NONE ? a.router_norm : a.pre;
}

/* Stores the key of expert e's logit for row r. y: the product without 1 / rms; squares: the sum of
 * the row's squares; bias: the expert's as loaded (raw_at()). */
__device__ __forceinline__ void store_logit(const moe_args &a, const struct norm &norm, int r,
                                            int e, float y, float squares, uint32_t bias)
{
    if (norm.kind != NORM_NONE)
        y *= 1 / sqrtf(squares / (float)a.in + norm.eps);
    y *= a.router_scale;
    if (a.router_b.p)
        y += raw_value(a.router_b.type, bias);
    __stcg(a.keys + (size_t)r * (size_t)a.n_expert + (size_t)e, order_key(y));
}

/* ---- selection and grouping ----------------------------------------------------------------- */

/* Selects the experts of row r and stores them. One warp, whose lanes have EACH keys; a lane below
 * top_k gets its rank's expert. */
template <int EACH>
__device__ __forceinline__ int select_and_store(const moe_args &a, int r)
{
    const int lane = (int)threadIdx.x % 32;
    int e = 0;
    float w = 0;
    uint32_t key[EACH];
    wait_for_keys(a, a.keys + (size_t)r * (size_t)a.n_expert, key);
    select_experts(a, key, &e, &w);
    if (lane < a.top_k) {
        const size_t at = (size_t)r * (size_t)a.top_k + (size_t)lane;
        a.chosen[at] = e, a.weight[at] = w;
        if (a.chosen_out)
            a.chosen_out[at] = e;
    }
    return e;
}

/* Divides the experts' pairs into jobs. One warp. at: the number of pairs of each expert; becomes
 * the position of the expert's next pair. */
__device__ __forceinline__ void begin_jobs(const moe_args &a, int *at)
{
    int sum = 0, n = 0;
    for (int e = (int)threadIdx.x; e < (a.n_expert + 31) / 32 * 32; e += 32) {
        const int c = e < a.n_expert ? at[e] : 0, jobs = (c + a.job_pairs - 1) / a.job_pairs;
        const int upto = inclusive_scan(c), jobs_upto = inclusive_scan(jobs);
        for (int j = 0; j < jobs; j++) {
            a.begin[n + jobs_upto - jobs + j] = sum + upto - c + j * a.job_pairs;
            a.active[n + jobs_upto - jobs + j] = e;
        }
        if (e < a.n_expert)
            at[e] = sum + upto - c;
        n += __shfl_sync(~0u, jobs_upto, 31);
        sum += __shfl_sync(~0u, upto, 31);
    }
    if (threadIdx.x == 0)
        a.begin[n] = sum, *a.n_active = n;
}

/* Groups the pairs into jobs by expert, within an expert in any order: a pair's results do not
 * depend on its position. One block of ROUTE_THREADS. */
__device__ __forceinline__ void group_pairs(const moe_args &a)
{
    __shared__ int at[MAX_EXPERTS];
    const int pairs = a.rows * a.top_k, tid = (int)threadIdx.x;
    for (int e = tid; e < a.n_expert; e += ROUTE_THREADS)
        at[e] = 0;
    __syncthreads();
#pragma unroll 1
    for (int p = tid; p < pairs; p += ROUTE_THREADS)
        atomicAdd(&at[__ldcg(a.chosen + p)], 1);
    __syncthreads();
    if (tid < 32)
        begin_jobs(a, at);
    __syncthreads();
#pragma unroll 1
    for (int p = tid; p < pairs; p += ROUTE_THREADS) {
        const int place = atomicAdd(&at[__ldcg(a.chosen + p)], 1);
        a.order[place] = p;
    }
}

#endif
