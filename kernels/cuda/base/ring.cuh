/* ring.cuh - a ring of stages in shared memory, between a producer that fills stages (copy.cuh) and
 * consumers that release them. Every role iterates with a ring of its own.
 *
 * Each stage has two mbarriers: full (the data have arrived) and empty (all consumers are done with
 * them). A consumer waits for full with the ring's phase, a producer for empty with phase ^ 1, so
 * that its first round over the ring does not wait.
 */
#pragma once

#include "kernels/cuda/base/barrier.cuh"

#ifdef __CUDACC__

/* A position in a ring: the stage, and the parity of the round over the ring. */
struct ring_pos {
    int slot;
    uint32_t phase;
    __device__ __forceinline__ void next(int stages)
    {
        if (++slot == stages)
            slot = 0, phase ^= 1;
    }
};

/* Element i of an array of mbarriers, given by its pointer or by its address. */
__device__ __forceinline__ uint64_t *barrier_at(uint64_t *b, int i)
{
    return b + i;
}
__device__ __forceinline__ uint32_t barrier_at(uint32_t b, int i)
{
    return b + (uint32_t)i * 8;
}

/* Initialises the barriers of a ring, one thread; mbarrier_init_fence() and a barrier of the block
 * follow. producers: arrivals that complete a phase of full; consumers: warps that arrive at empty
 * (mbarrier_arrive_warp()). */
__device__ __forceinline__ void init_ring(uint64_t *full, uint64_t *empty, int stages,
                                          int producers, int consumers)
{
    for (int i = 0; i < stages; i++)
        mbarrier_init(&full[i], producers), mbarrier_init(&empty[i], warp_arrivals(consumers));
}

/* A ring with the position of one role. Stages and barriers are given by pointers (PLACE uint8_t *,
 * BARRIER uint64_t *) or by addresses in shared memory (uint32_t both), which take half the
 * registers. */
template <class PLACE, class BARRIER> struct ring_of {
    PLACE at; /* the stages */
    BARRIER full, empty;
    int stages, stage; /* number of stages; bytes of a stage */
    struct ring_pos pos;
    __device__ __forceinline__ PLACE place() const { return at + pos.slot * stage; }
    __device__ __forceinline__ BARRIER filled() const { return barrier_at(full, pos.slot); }
    __device__ __forceinline__ BARRIER emptied() const { return barrier_at(empty, pos.slot); }
    __device__ __forceinline__ void next() { pos.next(stages); }
};
typedef ring_of<uint8_t *, uint64_t *> pointer_ring;
typedef ring_of<uint32_t, uint32_t> address_ring;

#endif
