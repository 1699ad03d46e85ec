/* timeline.cu - the memory of the time stamps (timeline.h) and the file that they are written to.
 * Empty in usual builds.
 */
#include "kernels/cuda/cuda.h"

#ifdef STAMPS
#include <cuda.h>

enum : size_t { STAMP_BYTES = sizeof(struct stamp) * STAMP_TICKS * STAMP_LANES };

/* A function of the driver. The program is not linked with the driver. */
template <class F> static F driver(const char *name)
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found);
    return (F)f;
}

void cuda_timeline_open(void)
{
    static bool open;
    CUmemAllocationProp kind = {};
    CUmemAccessDesc access = {};
    CUmemGenericAllocationHandle memory;
    CUdeviceptr at = 0;
    if (open)
        return;
    open = true;
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location = kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    auto create = driver<decltype(&cuMemCreate)>("cuMemCreate");
    auto reserve = driver<decltype(&cuMemAddressReserve)>("cuMemAddressReserve");
    auto map = driver<decltype(&cuMemMap)>("cuMemMap");
    auto allow = driver<decltype(&cuMemSetAccess)>("cuMemSetAccess");
    cudaFree(NULL); /* creates the context */
    if (create(&memory, STAMP_BYTES, &kind, 0) || reserve(&at, STAMP_BYTES, 0, STAMP_AT, 0) ||
        at != STAMP_AT || map(at, STAMP_BYTES, 0, memory, 0) ||
        allow(at, STAMP_BYTES, &access, 1) ||
        cudaMemset((void *)STAMP_AT, 0, STAMP_BYTES) != cudaSuccess) {
        fprintf(stderr, "aerie: no room for stamps at their address\n");
        exit(1);
    }
}

void cuda_timeline_close(void)
{
    const char *name = getenv("STAMP_FILE");
    FILE *f = name ? fopen(name, "w") : NULL;
    if (!f)
        return;
    struct stamp *all = (struct stamp *)malloc(STAMP_BYTES);
    unsigned long long last = 0;
    cudaDeviceSynchronize();
    cudaMemcpy(all, (void *)STAMP_AT, STAMP_BYTES, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < STAMP_BYTES / sizeof *all; i++)
        last = all[i].ns > last ? all[i].ns : last;
    for (size_t i = 0; i < STAMP_BYTES / sizeof *all; i++) {
        const struct stamp *s = &all[i];
        if (!s->ns || last - s->ns >= 32ull * STAMP_TICKS)
            continue;
        fprintf(f, "%llu %u/%u/%ux%ux%u %u %u,%u,%u %u\n", s->ns, s->what >> 16, s->shared,
                s->grid_xy & 0xffff, s->grid_xy >> 16, s->grid_z_block_z & 0xffff, s->what & 255,
                s->block_xy & 0xffff, s->block_xy >> 16, s->grid_z_block_z >> 16, s->value);
    }
    fclose(f);
    free(all);
}
#endif
