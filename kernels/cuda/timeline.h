/* timeline.h - time stamps of kernels, for performance work; absent from usual builds.
 *
 * `make STAMPS=1` builds a program (build/release-cuda-stamps) whose kernels record the global
 * timer around their griddepcontrol.wait (in the warps of the first block), and wherever a kernel
 * says STAMP(what) or STAMP_VALUE(what, value). `what` is 16 to 199, or 1 to 15 before the kernel's
 * wait. When the device is closed, the last two milliseconds are written to the file that the
 * environment variable STAMP_FILE names; tests/bench/timeline.sh prints them. A stamp costs its
 * thread about 50 ns, and a whole step becomes 3 to 7 % slower.
 *
 * Every source file has the address of the records in a constant, so that no kernel needs an
 * argument for it. Records are indexed by time and multiprocessor. No thread waits for another; of
 * two records of one multiprocessor within 32 ns one may be lost.
 */
#pragma once

#ifdef STAMPS
void cuda_timeline_open(void);
void cuda_timeline_close(void);
#else
static inline void cuda_timeline_open(void) {}
static inline void cuda_timeline_close(void) {}
#endif

#if defined(__CUDACC__) && defined(STAMPS)

enum {
    STAMP_TICKS = 1 << 17, STAMP_LANES = 512, /* ticks of 32 ns; records of one tick */
    /* of every block: it begins (value: enum stamp_kernel), its first and its last byte of weights
     * have arrived (value of the last one: bytes), it has stored its results */
    STAMP_BEGINS = 240, STAMP_FIRST, STAMP_LAST, STAMP_ENDS,
    STAMP_WAITS = 250, STAMP_WENT = 251, /* of the first block: before and after its wait */
};
enum stamp_kernel { STAMP_PRODUCT = 1, STAMP_PAIR, STAMP_HEADS, STAMP_ATTENTION, STAMP_ROUTER,
                    STAMP_EXPERTS };
struct stamp {
    unsigned long long ns;
    unsigned what, shared; /* what: | multiprocessor << 8 | threads << 16 */
    unsigned grid_xy, grid_z_block_z, block_xy, value;
};
static_assert(sizeof(struct stamp) == 32);

/* Where the records are; cuda_timeline_open() sets it in all files, which register here. */
static __constant__ struct stamp *stamp_records;
void cuda_timeline_file(const void *records);
static const struct stamp_file {
    stamp_file() { cuda_timeline_file(&stamp_records); }
} registered_for_stamps;

__device__ __forceinline__ void stamp_now(unsigned what, unsigned value)
{
    unsigned long long ns;
    unsigned sm, shared;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    asm volatile("mov.u32 %0, %dynamic_smem_size;" : "=r"(shared));
    const unsigned tick = (unsigned)(ns >> 5) & (STAMP_TICKS - 1);
    const unsigned lane = (sm + what % 3 * 132) % STAMP_LANES;
    uint4 *to = (uint4 *)stamp_records + ((size_t)tick * STAMP_LANES + lane) * 2;
    to[0] = make_uint4((unsigned)ns, (unsigned)(ns >> 32), what | sm << 8 | blockDim.x << 16,
                       shared);
    to[1] = make_uint4(gridDim.x | gridDim.y << 16, gridDim.z | blockIdx.z << 16,
                       blockIdx.x | blockIdx.y << 16, value);
}
__device__ __forceinline__ void stamp_wait(unsigned what)
{
    if (threadIdx.x % 32 == 0 && blockIdx.x + blockIdx.y + blockIdx.z == 0)
        stamp_now(what, 0);
}
#define STAMP(what) stamp_now(what, 0)
#define STAMP_BLOCK(what, value) stamp_now(STAMP_##what, value)
#define STAMP_VALUE(what, value) stamp_now(what, value)
#define STAMP_WAIT(what) stamp_wait(what)

#else
#define STAMP(what) ((void)0)
#define STAMP_BLOCK(what, value) ((void)0)
#define STAMP_VALUE(what, value) ((void)0)
#define STAMP_WAIT(what) ((void)0)
#endif
