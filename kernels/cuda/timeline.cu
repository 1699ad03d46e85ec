/* timeline.cu - the memory of the time stamps (timeline.h) and the file that they are written to.
 * Empty in usual builds.
 */
#include "kernels/cuda/cuda.h"

#ifdef STAMPS

enum : size_t { STAMP_BYTES = sizeof(struct stamp) * STAMP_TICKS * STAMP_LANES };

enum { MAX_STAMP_FILES = 64 };
static const void *stamp_file_records[MAX_STAMP_FILES];
static int n_stamp_files;
static struct stamp *all_stamps; /* device */

void cuda_timeline_file(const void *records)
{
    if (n_stamp_files < MAX_STAMP_FILES)
        stamp_file_records[n_stamp_files++] = records;
}

void cuda_timeline_open(void)
{
    if (all_stamps)
        return;
    if (cudaMalloc(&all_stamps, STAMP_BYTES) != cudaSuccess ||
        cudaMemset(all_stamps, 0, STAMP_BYTES) != cudaSuccess) {
        fprintf(stderr, "aerie: no room for %zu MiB of stamps\n", (size_t)STAMP_BYTES >> 20);
        exit(1);
    }
    for (int i = 0; i < n_stamp_files; i++) /* a file without stamps has no constant */
        if (cudaMemcpyToSymbol(stamp_file_records[i], &all_stamps, sizeof all_stamps) !=
            cudaSuccess)
            cudaGetLastError();
}

void cuda_timeline_close(void)
{
    const char *name = getenv("STAMP_FILE");
    FILE *f = name ? fopen(name, "w") : NULL;
    if (!f || !all_stamps)
        return;
    struct stamp *all = (struct stamp *)malloc(STAMP_BYTES);
    unsigned long long last = 0;
    cudaDeviceSynchronize();
    cudaMemcpy(all, all_stamps, STAMP_BYTES, cudaMemcpyDeviceToHost);
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
