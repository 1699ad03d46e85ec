/* bench.cu - what the benchmarks need of a device: synthetic weights, reading or copying a buffer
 * at full speed, and phases without work (launches, grid barriers, flags).
 *
 * Synthetic weights are made in a buffer of their own and then go through upload(), so they have
 * the device layout of real weights. Value i of a tensor depends on its seed and on i alone, and is
 * the same on the CPU (kernels/cpu/bench.c).
 */
#include "kernels/cuda/base/barrier.cuh"
#include "kernels/cuda/base/panel.cuh"

/* ---- synthetic weights ---------------------------------------------------------------------- */

/* mix64 of base.h */
__device__ __forceinline__ uint64_t mix64_device(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

__device__ __forceinline__ bf16 to_type(float v, bf16) { return __float2bfloat16_rn(v); }
__device__ __forceinline__ __half to_type(float v, __half) { return __float2half_rn(v); }
__device__ __forceinline__ float to_type(float v, float) { return v; }

/* Makes four values from each random word, uniform over +-32768 step; step 0: all ones. */
template <class T>
__global__ void make_floats(T *dst, size_t n, uint64_t seed, float step)
{
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i * 4 < n; i += stride) {
        uint64_t word = mix64_device(seed + i);
        for (int j = 0; j < 4 && i * 4 + j < n; j++) {
            float v = step == 0 ? 1.f : (float)(int16_t)(word >> (16 * j)) * step;
            dst[i * 4 + j] = to_type(v, T());
        }
    }
}

/* Makes eight bytes from each random word: the bytes themselves or, with exponent > 0, MXFP4 scales
 * of which each is the exponent or one less. */
__global__ void make_bytes(uint8_t *dst, size_t n, uint64_t seed, int exponent)
{
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i * 8 < n; i += stride) {
        uint64_t word = mix64_device(seed + i);
        for (int j = 0; j < 8 && i * 8 + j < n; j++) {
            uint8_t byte = (uint8_t)(word >> (8 * j));
            dst[i * 8 + j] = exponent ? (uint8_t)(exponent - (byte & 1)) : byte;
        }
    }
}

/* packed_random(), a thread a block. like: a block of the same type and scale, of which the scales
 * are taken. */
enum { SCALE_BYTES = 6 };
struct block_scales {
    int at[SCALE_BYTES]; /* offsets in a block; -1: none */
    uint8_t byte[SCALE_BYTES];
    bool e4m3; /* the other bytes are codes, of which 0x7f and 0xff are NaN */
};
__global__ void make_blocks(uint8_t *dst, size_t n, uint64_t seed, int bytes,
                            const __grid_constant__ struct block_scales s)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint8_t *b = dst + i * (size_t)bytes;
        uint64_t word = 0;
        for (int j = 0; j < bytes; j++, word >>= 8) {
            if (j % 8 == 0)
                word = mix64_device(seed + i * 32 + (size_t)j / 8);
            b[j] = (uint8_t)(word ^ (s.e4m3 && (word & 0x7f) == 0x7f));
        }
        for (int j = 0; j < SCALE_BYTES; j++)
            if (s.at[j] >= 0)
                b[s.at[j]] = s.byte[j];
    }
}

static struct block_scales scales_of(enum dtype t, uint64_t seed, float scale)
{
    const struct packed_format *f = packed_format(t);
    uint8_t block[PACKED_BLOCK];
    struct block_scales s = {{-1, -1, -1, -1, -1, -1}, {}, t == DT_E4M3};
    packed_random(t, seed, scale, 0, 1, block);
    for (int j = 0; j < SCALE_BYTES; j++) {
        const bool own = j < (t == DT_E2M1   ? 6
                              : t == DT_NVFP4 ? 4
                              : t == DT_E4M3  ? 2
                                              : t == DT_MXFP4); /* not f16 */
        s.at[j] = own ? j : j > 3 || f->scale[j / 2] < 0 ? -1 : f->scale[j / 2] + j % 2;
        s.byte[j] = s.at[j] < 0 ? 0 : block[s.at[j]];
    }
    return s;
}

static void fill_synthetic(struct kdev *d, const struct tensor *t, void *dst, uint64_t seed,
                           float scale)
{
    dim3 grid((unsigned)d->gpu.n_sm * 8);
    if (dtype_packed(t->type)) {
        const int bytes = packed_format(t->type)->bytes;
        make_blocks<<<grid, 256, 0, d->stream>>>((uint8_t *)dst, t->bytes / (size_t)bytes, seed,
                                                 bytes, scales_of(t->type, seed, scale));
        return;
    }
    size_t n = t->bytes / dtype_size(t->type);
    float step = synthetic_step(scale);
    if (t->type == DT_U8)
        make_bytes<<<grid, 256, 0, d->stream>>>(
            (uint8_t *)dst, n, seed, t->n_dim == 3 ? synthetic_exponent(scale) : 0);
    else if (t->type == DT_BF16)
        make_floats<<<grid, 256, 0, d->stream>>>((bf16 *)dst, n, seed, step);
    else if (t->type == DT_F16)
        make_floats<<<grid, 256, 0, d->stream>>>((__half *)dst, n, seed, step);
    else
        make_floats<<<grid, 256, 0, d->stream>>>((float *)dst, n, seed, step);
}

/* A packed tensor that becomes bf16 is made where upload() unpacks it: on the host. */
static bool synthesize_unpacked(struct kdev *d, struct tensor *t, uint64_t seed, float scale,
                                struct err *e)
{
    const size_t bytes = (size_t)packed_format(t->type)->bytes;
    void *host = malloc(t->bytes);
    if (!host)
        return err_set(e, ERR_MODEL, "out of memory: %s needs %zu bytes", t->name, t->bytes);
    packed_random(t->type, seed, scale, 0, t->bytes / bytes, host);
    t->data = host;
    const bool ok = cuda_upload(d, t, e);
    free(host);
    if (!ok)
        t->data = NULL;
    return ok;
}

bool cuda_synthesize(struct kdev *d, struct tensor *t, uint64_t seed, float scale, struct err *e)
{
    CHECK(!t->data && (t->type == DT_U8 || t->type == DT_BF16 || t->type == DT_F16 ||
                       t->type == DT_F32 || dtype_packed(t->type)));
    if (dtype_packed(t->type) && !cuda_stays_packed(d, t))
        return synthesize_unpacked(d, t, seed, scale, e);
    kbuf raw = cuda_alloc(d, t->bytes, t->name, e);
    if (!raw.p)
        return false;
    cuda_begin(d, "synthesize");
    fill_synthetic(d, t, raw.p, seed, scale);
    cuda_ok(d, cudaGetLastError());
    t->data = raw.p;
    bool ok = cuda_upload(d, t, e);
    if (!ok)
        t->data = NULL;
    cuda_release(d, raw);
    return ok;
}

/* ---- streaming a buffer --------------------------------------------------------------------- */

/* The XOR of all that is read decides a store that hardly ever happens, so the compiler keeps the
 * loads. Eight loads are in flight at a time. */
__global__ void __launch_bounds__(512) stream_in(const uint4 *p, size_t n, unsigned *out)
{
    enum { AHEAD = 8 };
    pdl_wait_trigger();
    uint4 x = make_uint4(0, 0, 0, 0);
    size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (AHEAD - 1) * step < n; i += AHEAD * step) {
        uint4 v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            v[j] = __ldcs(p + i + j * step);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            x.x ^= v[j].x, x.y ^= v[j].y, x.z ^= v[j].z, x.w ^= v[j].w;
    }
    for (; i < n; i += step) {
        uint4 v = __ldcs(p + i);
        x.x ^= v.x, x.y ^= v.y, x.z ^= v.z, x.w ^= v.w;
    }
    if ((x.x ^ x.y ^ x.z ^ x.w) == 0x12345678u)
        *out = 1;
}

/* Without dst: reads src in whole 16-byte words and leaves out the rest. With dst: copies. */
void cuda_stream(struct kdev *d, kbuf src, kbuf dst)
{
    cuda_begin(d, "stream");
    CHECK(!dst.p || dst.n >= src.n);
    if (!dst.p)
        cuda_launch(d, stream_in, dim3((unsigned)d->gpu.n_sm * 4), 512, 0, (const uint4 *)src.p,
                    src.n / 16, (unsigned *)d->arena);
    else if (!d->failed)
        cuda_ok(d, cudaMemcpyAsync(dst.p, src.p, src.n, cudaMemcpyDeviceToDevice, d->stream));
}

/* ---- phases ---------------------------------------------------------------------------------- */

enum { PHASE_THREADS = 512 };

__global__ void __launch_bounds__(PHASE_THREADS) phase_kernel(unsigned *out)
{
    pdl_trigger();
    pdl_wait_trigger();
    if (out)
        *out = threadIdx.x;
}

/* A grid barrier with one counter, 0 at first, to which every block adds one a phase. */
__global__ void __launch_bounds__(PHASE_THREADS) barrier_kernel(unsigned *count, int n)
{
    pdl_wait_trigger();
    for (unsigned sum = gridDim.x; n > 0; n--, sum += gridDim.x) {
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
            while (load_acquire(count) < sum)
                ;
        }
        __syncthreads();
    }
}

/* A grid barrier with one flag a block, all 0 at first; each thread waits for some of the flags. No
 * two blocks write the same word. */
__global__ void __launch_bounds__(PHASE_THREADS) flag_kernel(unsigned *flag, int n)
{
    pdl_wait_trigger();
    for (unsigned phase = 1; phase <= (unsigned)n; phase++) {
        __syncthreads();
        if (threadIdx.x == 0)
            store_release(flag + blockIdx.x, phase);
        for (unsigned i = threadIdx.x; i < gridDim.x; i += PHASE_THREADS)
            while (load_acquire(flag + i) < phase)
                ;
        __syncthreads();
    }
}

/* A cooperative launch of one block a multiprocessor: all blocks are resident at once. */
static void launch_cooperative(struct kdev *d, void (*kernel)(unsigned *, int), int n)
{
    size_t bytes = (size_t)d->gpu.n_sm * sizeof(unsigned);
    unsigned *words = (unsigned *)cuda_take(d, bytes);
    cudaLaunchAttribute attr = {};
    attr.id = cudaLaunchAttributeCooperative;
    attr.val.cooperative = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)d->gpu.n_sm);
    c.blockDim = dim3(PHASE_THREADS);
    c.stream = d->stream;
    c.attrs = &attr;
    c.numAttrs = 1;
    if (!d->failed && cuda_ok(d, cudaMemsetAsync(words, 0, bytes, d->stream)))
        cuda_ok(d, cudaLaunchKernelEx(&c, kernel, words, n));
}

/* One thread that waits for n milliseconds to pass. */
__global__ void busy_kernel(int n)
{
    uint64_t from, now;
    pdl_wait_trigger();
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(from));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - from < (uint64_t)n * 1000000);
}

static void launch_plain(struct kdev *d)
{
    if (d->failed)
        return;
    phase_kernel<<<(unsigned)d->gpu.n_sm, PHASE_THREADS, 0, d->stream>>>(NULL);
    cuda_ok(d, cudaGetLastError());
}

bool cuda_phase(struct kdev *d, enum k_phase kind, int n)
{
    cuda_begin(d, "phase");
    if (kind == PHASE_EARLY && !d->has_pdl)
        return false;
    if (kind == PHASE_BARRIER || kind == PHASE_FLAG)
        launch_cooperative(d, kind == PHASE_FLAG ? flag_kernel : barrier_kernel, n);
    if (kind == PHASE_BUSY)
        cuda_launch(d, busy_kernel, dim3(1), 1, 0, n);
    for (int i = 0; i < n && kind == PHASE_LAUNCH; i++)
        launch_plain(d);
    for (int i = 0; i < n && kind == PHASE_EARLY; i++)
        cuda_launch(d, phase_kernel, dim3((unsigned)d->gpu.n_sm), PHASE_THREADS, 0,
                    (unsigned *)NULL);
    return true;
}
