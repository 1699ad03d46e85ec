/* packed.cu - matrices packed in blocks: the device layout of blocks (packed.cuh), made during
 * their upload, and its panels as those of a bf16 matrix. */
#include "kernels/cuda/dense/file_blocks.cuh"
#include "kernels/cuda/dense/fp8.cuh"

enum { THREADS = 256 };

/* ---- upload --------------------------------------------------------------------------------- */

/* Stores the codes of eight successive elements, number q of the chunk's four times eight, of row r
 * of a pair. to: the pair's chunk. */
__device__ __forceinline__ void put_codes(int type, const uint8_t *b, int k, int q, int r,
                                          uint8_t *to)
{
    if (four_bit(type)) {
        uint32_t word = 0;
        for (int i = 0; i < 8; i++)
            word |= code_of(type, b, k, q * 8 + i) << (16 * (i % 2) + 4 * (i / 2));
        *(uint32_t *)(to + codes_of(type, 2 * q + r)) = word;
        return;
    }
    if (type == DT_E4M3) {
        const uint8_t *c = b + 2 + q * 8;
        *(uint2 *)(to + codes_of(type, 2 * q + r)) = make_uint2(fp8_word(c), fp8_word(c + 4));
        return;
    }
    if (type == DT_Q6_K) {
        uint32_t word = 0, high = 0;
        for (int at = 0; at < 4; at++) { /* elements 4 (at % 2) + at / 2 and the second behind it */
            const int i = q * 8 + at % 2 * 4 + at / 2;
            const uint32_t first = code_of(type, b, k, i), second = code_of(type, b, k, i + 2);
            word |= (first << 2 | (second & 3)) << 8 * at;
            high |= second >> 2 << (at < 2 ? 8 * at + 4 : 8 * at - 16);
        }
        *(uint32_t *)(to + codes_of(type, 2 * q + r)) = word;
        *(uint16_t *)(to + high_codes_of(2 * q + r)) = (uint16_t)high;
        return;
    }
    for (int i = 0; i < 8; i++)
        to[codes_of(type, 2 * q + i % 2) + i / 2 * 2 + r] = (uint8_t)code_of(type, b, k, q * 8 + i);
}

/* block: where the block of the chunk is; its chunks store the same there. *too_large becomes 1 if
 * packed.cuh has no place for a scale. */
__device__ __forceinline__ void put_scales(int type, const uint8_t *b, int k, uint8_t *to,
                                           uint8_t *block, unsigned *too_large)
{
    if (type == DT_E4M3) {
        const float d = bf16_value((uint16_t)(b[0] | b[1] << 8));
        if (fabsf(d) >= 256)
            *too_large = 1;
        *(uint16_t *)to = __bfloat16_as_ushort(__float2bfloat16_rn(d * 0x1p120f)); /* exact */
        return;
    }
    if (type == DT_Q4_K) {
        put_scale_min(b, k, to);
        const float d = half_at(b);
        if (fabsf(d) * (float)max(to[0], 1) >= 1 / 2.f)
            *too_large = 1;
        *(uint16_t *)block = __half_as_ushort(__float2half_rn(d * 0x1p9f)); /* exact */
        block[2] = b[2], block[3] = b[3];
        return;
    }
    if (type == DT_Q4_0) {
        const two_factors f = factors_of(half_at(b));
        *(uint16_t *)to = f.second, *(uint16_t *)(to + FIRST_FACTOR) = f.first;
        return;
    }
    if (type == DT_Q6_K) {
        const float d = half_at(b + 208);
        put_half_scales(b, k, to + 2);
        for (int i = 2; i < 4; i++)
            if (fabsf(d) * (float)max(abs(to[i] - 128), 1) >= 1 / 8.f)
                *too_large = 1;
        *(uint16_t *)to = __half_as_ushort(__float2half_rn(d * 0x1p19f)); /* exact */
        return;
    }
    to[0] = b[0], to[1] = b[1];
}

/* A thread converts eight weights of a row of one of n panels, and the first of a row's chunk its
 * scales. src: the panels' rows; a block has `each` chunks and `bytes` bytes. dst was filled with
 * zeros. */
__global__ void repack_blocks(const uint8_t *src, int type, int each, int bytes, int rows,
                              const __grid_constant__ struct panels p, int n, uint8_t *dst,
                              unsigned *too_large)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int chunks = p.ksplit.chunks;
    const int q = (int)(i % 4), row = (int)(i / 4 % (size_t)p.rows);
    const size_t at = i / 4 / (size_t)p.rows;
    const int chunk = (int)(at % (size_t)chunks), panel = (int)(at / (size_t)chunks);
    const int r = panel * p.rows + row;
    if (panel >= n || r >= rows)
        return;
    const uint8_t *block = src + ((size_t)r * (size_t)(chunks / each) + (size_t)(chunk / each)) *
                                     (size_t)bytes;
    const struct packed_place to =
        packed_place_of(p, type, row, chunk / p.ksplit.each, chunk % p.ksplit.each);
    dst += (size_t)panel * stored_bytes(p, type);
    put_codes(type, block, chunk % each, q, row % 2, dst + to.codes);
    if (q == 0)
        put_scales(type, block, chunk % each, dst + to.scales, dst + to.block, too_large);
}

void cuda_repack_blocks(struct kdev *d, const struct panels *p, int type, const void *blocks,
                        int rows, int k, int n, void *dst, unsigned *too_large)
{
    const struct packed_format *f = packed_format((enum dtype)type);
    const size_t threads = (size_t)n * (size_t)p->ksplit.chunks * (size_t)p->rows * 4;
    CHECK(k == p->ksplit.chunks * K_CHUNK && k % f->elements == 0);
    repack_blocks<<<(unsigned)((threads + THREADS - 1) / THREADS), THREADS, 0, d->stream>>>(
        (const uint8_t *)blocks, type, f->elements / K_CHUNK, f->bytes, rows, *p, n,
        (uint8_t *)dst, too_large);
}

/* ---- panels of bf16 ------------------------------------------------------------------------- */

/* A thread unpacks eight weights, which are four words of 4 bytes in the units of a panel of bf16
 * (panel_place()); the threads of a warp have eight rows of a chunk. Blocks (threads of a panel,
 * panels). The memory should bring 20 bytes in the time of the thread's instructions, so there is
 * no division of 64 bits. */
template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    unpack_panels(const uint8_t *src, const __grid_constant__ struct panels p, uint8_t *dst)
{
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, rows = (unsigned)p.rows;
    const struct ksplit &c = p.ksplit;
    const int q = (int)(i % 4), place = (int)(i / 4 / rows), whole = c.rest * c.splits;
    const int row = (int)(i / 4 - (unsigned)place * rows);
    const int splits = place < whole ? c.splits : c.splits - 1, from = place < whole ? 0 : whole;
    const int in = (int)((unsigned)(place - from) / (unsigned)max(splits, 1));
    const int split = place - from - in * splits, position = in + (place < whole ? 0 : c.rest);
    pdl_wait();
    if (place >= c.chunks)
        return;
    src += blockIdx.y * stored_bytes(p, TYPE);
    dst += blockIdx.y * panel_bytes(p) + (size_t)(place * p.rows) * K_CHUNK_BYTES;
    const uint4 v = eight_at(packed_place_of(p, TYPE, row, split, position), TYPE, src, row, q);
    uint8_t *to = dst + row * UNIT_BYTES + q * 4;
    const int unit = p.rows * (int)UNIT_BYTES;
    *(uint32_t *)to = v.x;
    *(uint32_t *)(to + unit) = v.y;
    *(uint32_t *)(to + 2 * unit) = v.z;
    *(uint32_t *)(to + 3 * unit) = v.w;
}

void cuda_unpack_panels(struct kdev *d, const struct panels *p, int type, const void *panels,
                        int first, int n, void *dst)
{
    const uint8_t *src = (const uint8_t *)panels + (size_t)first * stored_bytes(*p, type);
    const int threads = p->ksplit.chunks * p->rows * 4, most = 65535; /* rows of a grid */
    for (int i = 0; i < n; i += most)
        cuda_launch(d,
                    type == DT_Q4_0   ? unpack_panels<DT_Q4_0>
                    : type == DT_Q8_0 ? unpack_panels<DT_Q8_0>
                    : type == DT_E4M3 ? unpack_panels<DT_E4M3>
                    : type == DT_Q4_K ? unpack_panels<DT_Q4_K>
                                      : unpack_panels<DT_Q6_K>,
                    dim3((unsigned)div_up(threads, THREADS), (unsigned)min_int(n - i, most)),
                    THREADS, 0, src + (size_t)i * stored_bytes(*p, type), *p,
                    (uint8_t *)dst + (size_t)i * panel_bytes(*p));
    d->serial = true;
}
