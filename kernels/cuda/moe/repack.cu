/* repack.cu - experts of a file become those of the device (expert_blocks.cuh), during their
 * upload. */
#include "kernels/cuda/dense/file_blocks.cuh"
#include "kernels/cuda/moe/expert_blocks.cuh"

enum { THREADS = 256 };

/* What an output has of scales of chunk k of a block (expert_blocks.cuh), of its type or of that
 * which it is stored as. A minimum of Q5_0 is 16 d, of Q4_1 and Q5_1 -m; 2^8 times a factor is the
 * scale of MXFP4. own: the two bytes of has_own_scales(). */
__device__ __forceinline__ void put_expert_scales(int type, const uint8_t *b, int k, uint8_t *to,
                                                  uint8_t *own)
{
    const int at = type == DT_Q2_K   ? 80
                   : type == DT_Q3_K ? 108
                   : type == DT_Q6_K ? 208
                                     : 0; /* of d */
    switch (type) {
    case DT_Q4_0: {
        const two_factors f = factors_of(half_at(b));
        *(uint16_t *)to = f.second, *(uint16_t *)(to + 2) = f.first;
        return;
    }
    case DT_Q4_K:
    case DT_Q5_K:
        put_scale_min(b, k, own);
        for (int i = 0; i < 4; i++)
            to[i] = b[i];
        return;
    case DT_MXFP4:
        *(uint32_t *)to = b[0] < 9 ? 0x400000u >> (8 - b[0]) : (uint32_t)(b[0] - 8) << 23;
        own[0] = own[1] = 0x78;
        return;
    case DT_NVFP4:
        *(float *)to = 1;
        own[0] = b[2 * k] & 0x7f, own[1] = b[2 * k + 1] & 0x7f;
        return;
    case DT_E2M1:
        for (int i = 0; i < 4; i++)
            to[i] = b[i];
        own[0] = b[4], own[1] = b[5];
        return;
    default: break;
    }
    to[0] = b[at], to[1] = b[at + 1];
    if (type == DT_Q4_1 || type == DT_Q5_1)
        to[2] = b[2], to[3] = b[3] ^ 0x80, own[0] = own[1] = 1;
    else if (type == DT_Q5_0)
        to[2] = b[0], to[3] = b[1], own[0] = 1, own[1] = 16;
    else if (type == DT_Q2_K)
        to[2] = b[at + 2], to[3] = b[at + 3], own[0] = b[2 * k], own[1] = b[2 * k + 1];
    else if (type == DT_Q6_K)
        put_half_scales(b, k, to + 2);
    else if (type == DT_Q3_K)
        to[2] = q3_k_scale(b, 2 * k), to[3] = q3_k_scale(b, 2 * k + 1);
    else if (type == DT_IQ4_XS || type == DT_IQ4_NL)
        to[2] = type == DT_IQ4_XS ? iq4_xs_scale(b, k) : 129, to[3] = 0;
}

/* A thread converts eight codes of an output of a tile (expert_blocks.cuh), and the first of a
 * chunk's four its scales. A block of the file has `each` chunks and `bytes` bytes. */
__global__ void repack_experts(int type, int form, int each, int bytes, const uint8_t *src,
                               const __grid_constant__ struct ksplit c, int n, uint8_t *dst)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int q = (int)(i % 4), row = (int)(i / 4 % TILE_OUTS), g = row % 8;
    const size_t at = i / 4 / TILE_OUTS;
    const int chunk = (int)(at % (size_t)c.chunks), k = chunk % each;
    const size_t tile = at / (size_t)c.chunks;
    if (tile >= (size_t)n)
        return;
    const uint8_t *b =
        src + ((tile * TILE_OUTS + (size_t)row) * (size_t)(c.chunks / each) +
               (size_t)(chunk / each)) * (size_t)bytes;
    dst += (tile * (size_t)c.chunks + (size_t)chunk_place(c, chunk)) * (size_t)chunk_bytes(form) +
           (size_t)(row / 8 * eight_bytes(form));
    const int lane = 4 * g + q;
    if (type == DT_E4M3) {
        *(uint2 *)(dst + lane * 8) = make_uint2(fp8_word(b + 2 + q * 8), fp8_word(b + 6 + q * 8));
    } else if (type == DT_Q8_0) {
        for (int j = 0; j < 8; j++)
            dst[lane * 8 + j] = (uint8_t)code_of(type, b, k, q * 8 + j);
    } else if (form == DT_E2M1 || form == DT_IQ4_XS) {
        uint32_t word = 0;
        for (int j = 0; j < 8; j++)
            word |= code_of(type, b, k, q * 8 + j) << 4 * j;
        *(uint32_t *)(dst + lane * 4) = form == DT_E2M1 ? packed_word(word) : word;
    } else {
        uint32_t low = 0, high = 0;
        for (int j = 0; j < 8; j++) {
            const uint32_t code = code_of(type, b, k, q * 8 + j);
            low |= (code & 15) << (16 * (j % 2) + 4 * (j / 2));
            high |= code >> 4 << (high_bit_of(form, j / 2, j % 2) +
                                  (form == DT_Q6_K ? 8 * (j % 2) : 0));
        }
        *(uint32_t *)(dst + lane * 4) = low;
        if (form == DT_Q5_K)
            dst[HIGH_AT + lane] = (uint8_t)high;
        if (form == DT_Q6_K)
            *(uint16_t *)(dst + HIGH_AT + lane * 2) = (uint16_t)high;
    }
    if (q == 0) {
        uint8_t *scales = dst + scales_at(form);
        put_expert_scales(type, b, k, scales + g * (has_byte_codes(form) ? 2 : 4),
                          scales + OWN_SCALES + g * 2);
    }
}

void cuda_repack_experts(struct kdev *d, int type, const void *blocks, int k, int n, void *dst)
{
    const struct packed_format *f = packed_format((enum dtype)type);
    const struct ksplit c = ksplit_of(k);
    const size_t threads = (size_t)n * (size_t)c.chunks * TILE_OUTS * 4;
    CHECK(k % f->elements == 0);
    repack_experts<<<(unsigned)((threads + THREADS - 1) / THREADS), THREADS, 0, d->stream>>>(
        type, experts_as(type), f->elements / K_CHUNK, f->bytes, (const uint8_t *)blocks, c, n,
        (uint8_t *)dst);
}
