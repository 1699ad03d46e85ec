/* graph.cu - operations recorded as CUDA graphs, and the two ports through which the host exchanges
 * data with a graph without copy commands or waits in the driver.
 *
 * Both ports are pinned host memory that the device addresses directly. The host fills the inbox,
 * and the graph's first kernel (take) copies it to device memory. The graph's last kernel (give)
 * copies results to the outbox and then raises the outbox's count, for which the host polls.
 */
#include "kernels/cuda/cuda.h"

struct kgraph {
    cudaGraphExec_t run;
    uint32_t gives; /* give operations of one launch */
#ifdef STRESS
    struct tally *tally; /* its kernels */
#endif
};

/* ---- ports ----------------------------------------------------------------------------------- */

/* Layout of the outbox: the count in the first word, the data from byte 16 on. */
cudaError_t cuda_open_ports(struct kdev *d)
{
    const size_t bytes[2] = {INBOX_BYTES, OUTBOX_BYTES};
    struct port *port[2] = {&d->in, &d->out};
    TRY(cudaMalloc(&d->ticket, sizeof *d->ticket));
    TRY(cudaMemsetAsync(d->ticket, 0, sizeof *d->ticket, d->stream));
    for (int i = 0; i < 2; i++) {
        TRY(cudaHostAlloc(&port[i]->host, bytes[i], cudaHostAllocMapped));
        TRY(cudaHostGetDevicePointer(&port[i]->dev, port[i]->host, 0));
        memset(port[i]->host, 0, 16);
    }
    return cudaSuccess;
}

void cuda_close_ports(struct kdev *d)
{
    cudaFreeHost(d->in.host);
    cudaFreeHost(d->out.host);
    cudaFree(d->ticket);
}

void *cuda_inbox(struct kdev *d, size_t bytes)
{
    return !d->failed && bytes <= INBOX_BYTES ? d->in.host : NULL;
}

__global__ void take_kernel(const uint4 *from, uint4 *to, size_t n)
{
    pdl_wait_trigger();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = __ldcv(from + i);
}

/* take and give copy whole 16-byte words; buffers are allocated in multiples of 16 bytes. */
void cuda_read_inbox(struct kdev *d, kbuf dst, size_t bytes)
{
    size_t n = (bytes + 15) / 16;
    CHECK(bytes <= dst.n && bytes <= INBOX_BYTES);
    cuda_begin(d, "take");
    unsigned blocks = (unsigned)(n / 256 + 1);
    cuda_launch(d, take_kernel, dim3(blocks < 32 ? blocks : 32), 256, 0, (const uint4 *)d->in.dev,
                (uint4 *)dst.p, n);
}

/* One block, so that the count is written after all of the data. */
__global__ void give_kernel(const uint4 *from, uint4 *to, size_t n, unsigned *ticket,
                            volatile unsigned *count)
{
    pdl_wait_trigger();
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        to[i] = __ldcg(from + i);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0)
        *count = ++*ticket;
}

void cuda_write_outbox(struct kdev *d, kbuf src, size_t bytes)
{
    cuda_begin(d, "give");
    size_t n = (bytes + 15) / 16;
    CHECK(bytes <= src.n && n * 16 + 16 <= OUTBOX_BYTES);
    cuda_launch(d, give_kernel, dim3(1), 512, 0, (const uint4 *)src.p, (uint4 *)(d->out.dev + 16),
                n, d->ticket, (volatile unsigned *)d->out.dev);
    *(d->recording ? &d->recorded_gives : &d->launched_gives) += 1;
}

static bool arrived(struct kdev *d)
{
    return __atomic_load_n((uint32_t *)d->out.host, __ATOMIC_ACQUIRE) == d->launched_gives;
}

/* Polls, because a cycle is shorter than the latency of a wait in the driver. A failed device never
 * raises the count, so the stream is queried from time to time. */
const void *cuda_outbox(struct kdev *d)
{
    cuda_begin(d, d->op);
    struct countdown c = cuda_countdown(d);
    for (unsigned spins = 1; !d->failed; spins++) {
        if (arrived(d))
            return d->out.host + 16;
        if (spins % 4096)
            continue;
        cudaError_t rc = cudaStreamQuery(d->stream);
        if (rc == cudaErrorNotReady)
            cudaGetLastError(), cuda_keep_waiting(d, &c);
        else if (cuda_ok(d, rc) && !arrived(d))
            cuda_fail(d, "the run ended without its results");
    }
    return NULL;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

bool cuda_graph_begin(struct kdev *d)
{
    cuda_begin(d, "graph_begin");
    CHECK(!d->recording);
    if (d->failed ||
        !cuda_ok(d, cudaStreamBeginCapture(d->record_stream, cudaStreamCaptureModeThreadLocal)))
        return false;
    d->stream = d->record_stream;
    d->recorded_gives = 0;
    return d->recording = true;
}

struct kgraph *cuda_graph_end(struct kdev *d, struct err *e)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t run = NULL;
    CHECK(d->recording);
    d->recording = false;
    cuda_begin(d, "graph_end");
    cudaError_t rc = cudaStreamEndCapture(d->record_stream, &graph);
    d->stream = d->run_stream;
    if (rc == cudaSuccess)
        rc = cudaGraphInstantiate(&run, graph, 0);
    if (rc == cudaSuccess)
        rc = cudaGraphUpload(run, d->stream);
    if (graph)
        cudaGraphDestroy(graph);
    if (!cuda_ok(d, rc) || d->failed) {
        if (run)
            cudaGraphExecDestroy(run);
        if (e)
            *e = d->first;
        return NULL;
    }
    struct kgraph *g = (struct kgraph *)xcalloc(1, sizeof *g);
    g->run = run;
    g->gives = d->recorded_gives;
#ifdef STRESS
    g->tally = cuda_tally_of_graph(d);
#endif
    return g;
}

void cuda_graph_launch(struct kdev *d, struct kgraph *g)
{
    cuda_begin(d, "graph_launch");
    if (d->failed || !cuda_ok(d, cudaGraphLaunch(g->run, d->stream)))
        return;
    d->launched_gives += g->gives;
#ifdef STRESS
    cuda_tally_add(g->tally);
#endif
}

void cuda_graph_free(struct kdev *d, struct kgraph *g)
{
    if (!g)
        return;
    cuda_begin(d, "graph_free");
    cuda_finish(d);
    if (!cuda_hung(d))
        cuda_ok(d, cudaGraphExecDestroy(g->run));
#ifdef STRESS
    free(g->tally);
#endif
    free(g);
}
