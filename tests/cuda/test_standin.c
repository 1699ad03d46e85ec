/* test_standin.c - the host's half of the CUDA backend without a GPU: every launch, copy, fill,
 * tensor map, attribute and graph of passes, drafts, cycles and uploads is checked by a stand-in of
 * the CUDA runtime (standin.h), for the limits of an H200 and of other classes of GPUs, and nothing
 * is left when a device closes. The first tests let the stand-in itself see faulty calls.
 *
 * Kernels compute nothing, so that all logits are zero and all choices token 0. The trees of fused
 * cycles are grown on the device: such a cycle is launched, and then refused (I13).
 */
#include "engine/tools/synthetic.h"
#include "kernels/packed.h"
#include "tests/cuda/standin.h"
#include "tests/runtimes.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <glob.h>
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- what kernels write for which the host waits --------------------------------------------- */

/* take_kernel(from, to, words of 16 bytes), give_kernel(from, to, words, ticket, count) */
static void copy_words(void *const *args)
{
    const size_t n = *(const size_t *)args[2] * 16;
    memcpy(standin_memory(*(void **)args[1], n), standin_memory(*(void **)args[0], n), n);
}

static void give(void *const *args)
{
    copy_words(args);
    unsigned *ticket = standin_memory(*(void **)args[3], 4);
    *(unsigned *)standin_memory(*(void **)args[4], 4) = ++*ticket;
}

/* What find_largest(w, n, out) finds in weights that are quantized, and repack_blocks(...,
 * too_large) in packed ones. */
static unsigned largest, too_large;

static void find_largest(void *const *args)
{
    *(unsigned *)standin_memory(*(void **)args[2], 4) = largest;
}

static void repack_blocks(void *const *args)
{
    *(unsigned *)standin_memory(*(void **)args[9], 4) = too_large;
}

/* ---- the stand-in sees faulty calls ---------------------------------------------------------- */

static const char *seen;
/* The call breaks a rule, which is named with these words; or none. */
#define REFUSED(words, call)                                                                       \
    do {                                                                                           \
        (void)(call);                                                                              \
        seen = standin_wrong();                                                                    \
        if (!strstr(seen, words) || strchr(seen, '\n') != seen + strlen(seen) - 1)                 \
            fail_msg("%s: expected \"%s\", was \"%s\"", #call, words, seen);                       \
    } while (0)
#define ALLOWED(call)                                                                              \
    do {                                                                                           \
        assert_int_equal(call, 0);                                                                 \
        assert_string_equal(standin_wrong(), "");                                                  \
    } while (0)

/* A device with 4096 bytes of memory, a stream, and pinned memory of 4096 bytes. */
static struct {
    char *p, *pinned;
    cudaStream_t s;
} one;

static int open_one(void **state)
{
    (void)state;
    struct cudaDeviceProp p;
    void *memory, *pinned;
    unsetenv("AERIE_GPU_AS");
    ALLOWED(cudaGetDeviceProperties(&p, 0));
    ALLOWED(cudaMalloc(&memory, 4096));
    ALLOWED(cudaMallocHost(&pinned, 4096));
    ALLOWED(cudaStreamCreateWithFlags(&one.s, cudaStreamNonBlocking));
    one.p = memory, one.pinned = pinned;
    return 0;
}

static int close_one(void **state)
{
    (void)state;
    assert_string_equal(standin_left(), "4096 bytes in 1 allocations, 1 pinned, 1 streams, "
                                        "0 events, 0 graphs");
    ALLOWED(cudaFree(one.p));
    ALLOWED(cudaFreeHost(one.pinned));
    ALLOWED(cudaStreamDestroy(one.s));
    assert_string_equal(standin_left(), "");
    cudaGetLastError(); /* of a refused call, or a later test would see it */
    return 0;
}

/* Copies words of 16 bytes from pinned memory to p. */
static cudaError_t take(const void *kernel, dim3 grid, dim3 block, size_t shared, char *p,
                        cudaLaunchAttribute *attr)
{
    size_t words = 1;
    void *args[] = {&one.pinned, &p, &words};
    cudaLaunchConfig_t c = {.gridDim = grid, .blockDim = block, .dynamicSmemBytes = shared,
                            .stream = one.s, .attrs = attr, .numAttrs = attr != NULL};
    return cudaLaunchKernelExC(&c, kernel, args);
}
static dim3 of(unsigned x, unsigned y, unsigned z) { return (dim3){x, y, z}; }

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* A matrix of 32 rows of 64 bf16, in boxes of 16 rows, with one thing changed. */
struct map {
    int off, map_off;
    cuuint32_t rank, box[2], step;
    cuuint64_t dim[2], stride;
    CUtensorMapSwizzle swizzle;
    CUtensorMapInterleave interleave;
    int type; /* bf16 and so much */
};

static CUresult map_of(struct map m)
{
    void *f;
    enum cudaDriverEntryPointQueryResult found;
    static CUtensorMap map[2];
    const cuuint32_t step[] = {m.step, m.step};
    assert_int_equal(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, 0,
                                                      &found), 0);
    return ((encode_fn *)(uintptr_t)f)(
        (CUtensorMap *)(void *)((char *)map + m.map_off),
        (CUtensorMapDataType)(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 + m.type), m.rank, one.p + m.off,
        m.dim, &m.stride, m.box, step, m.interleave, m.swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static const struct map good_map = {.rank = 2, .box = {64, 16}, .step = 1, .dim = {64, 32},
                                    .stride = 128, .swizzle = CU_TENSOR_MAP_SWIZZLE_128B};

static void test_launches(void **state)
{
    (void)state;
    const void *k = standin_kernel("take_kernel"), *bound = standin_kernel("fresh_kernel");
    char *p = one.p, *end = one.p + 4096;
    cudaLaunchAttribute pdl = {.id = cudaLaunchAttributeProgrammaticStreamSerialization},
                        carve = {.id = cudaLaunchAttributePreferredSharedMemoryCarveout},
                        other = {.id = cudaLaunchAttributePriority};
    const dim3 few = {32, 1, 1}, single = {1, 1, 1};
    carve.val.sharedMemCarveout = 101;
    strcpy(one.pinned, "sixteen bytes..");
    ALLOWED(take(k, of(0x7fffffff, 65535, 65535), few, 0, p, &pdl));
    assert_string_equal((char *)standin_memory(p, 16), "sixteen bytes..");
    ALLOWED(take(k, single, of(16, 1, 64), 48 << 10, end - 16, NULL));
    REFUSED("a grid of 0", take(k, of(0, 1, 1), few, 0, p, NULL));
    REFUSED("a grid of 1, 65536", take(k, of(1, 65536, 1), few, 0, p, NULL));
    REFUSED("a grid of 2147483648", take(k, of(1u << 31, 1, 1), few, 0, p, NULL));
    REFUSED("a block of 1025", take(k, single, of(1025, 1, 1), 0, p, NULL));
    REFUSED("a block of 1, 1, 65", take(k, single, of(1, 1, 65), 0, p, NULL));
    REFUSED("threads, compiled for", take(bound, single, of(33, 1, 1), 0, p, NULL));
    const int had = standin_registers(k, 65);
    REFUSED("65 registers, 1024 threads", take(k, single, of(1024, 1, 1), 0, p, NULL));
    standin_registers(k, had);
    ALLOWED(take(k, single, of(1024, 1, 1), 0, p, NULL));
    REFUSED("49153 and 0 bytes of shared memory", take(k, single, few, (48 << 10) + 1, p, NULL));
    REFUSED("not a function", take(&seen, single, few, 0, p, NULL));
    REFUSED("are not allocated", take(k, single, few, 0, end - 8, NULL));
    char *w[] = {p - 64, NULL}; /* of scale_kernel(x, n, {w, type}) */
    size_t n_scaled = 0;
    void *args[] = {&p, &n_scaled, w};
    cudaLaunchConfig_t c = {.gridDim = single, .blockDim = few, .stream = one.s};
    REFUSED("parameter 2, byte 0", cudaLaunchKernelExC(&c, standin_kernel("12scale_kernel"), args));
    REFUSED("a carveout of 101", take(k, single, few, 0, p, &carve));
    REFUSED("is not known", take(k, single, few, 0, p, &other));
    const enum cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    ALLOWED(cudaFuncSetAttribute(k, most, 227 << 10));
    ALLOWED(take(k, single, few, 227 << 10, p, NULL));
    REFUSED("at most 227 KiB", cudaFuncSetAttribute(k, most, (227 << 10) + 1));
    REFUSED("is not known", cudaFuncSetAttribute(k, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                 1));
    int n = 0;
    ALLOWED(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, k, 1024, 0));
    assert_int_equal(n, 2);
    ALLOWED(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, k, 32, 100 << 10));
    assert_int_equal(n, 2);
    REFUSED("occupancy", cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, k, 1025, 0));
}

static jmp_buf left;
static void leave(void *const *args)
{
    (void)args;
    longjmp(left, 1);
}

/* In a process of its own: an effect ends as cmocka ends a test that fails or crashes. */
static void leave_a_launch(void)
{
    char *w[] = {one.p, NULL};
    size_t n = 0;
    void *args[] = {&one.p, &n, w};
    const void *kernel = standin_kernel("12scale_kernel");
    cudaLaunchConfig_t c = {.gridDim = of(1, 1, 1), .blockDim = of(32, 1, 1), .stream = one.s};
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    alarm(100); /* if the next call waits for the mutex */
    standin_effect("12scale_kernel", leave);
    if (setjmp(left) == 0)
        cudaLaunchKernelExC(&c, kernel, args);
    cudaStreamQuery(one.s);
    _exit(0);
}

static void test_a_failure_in_a_launch_ends_the_process(void **state)
{
    (void)state;
    int ends[2], status;
    char text[200];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        leave_a_launch();
    }
    close(ends[1]);
    FILE *said = fdopen(ends[0], "r");
    assert_true(fgets(text, sizeof text, said));
    fclose(said);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_true(strstr(text, "standin: the test failed or crashed in _Z12scale_kernel") == text);
}

/* The same calls on a smaller class of GPUs. */
static void test_smaller_classes(void **state)
{
    (void)state;
    struct cudaDeviceProp p;
    const void *k = standin_kernel("take_kernel");
    const enum cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    cudaLaunchAttribute pdl = {.id = cudaLaunchAttributeProgrammaticStreamSerialization};
    setenv("AERIE_GPU_AS", "8.6", 1);
    ALLOWED(cudaGetDeviceProperties(&p, 0));
    assert_int_equal(p.sharedMemPerBlockOptin, 99 << 10);
    REFUSED("at most 99 KiB", cudaFuncSetAttribute(k, most, (99 << 10) + 1));
    REFUSED("programmatic", take(k, of(1, 1, 1), of(32, 1, 1), 0, one.p, &pdl));
    REFUSED("compute capability", map_of(good_map));
    unsetenv("AERIE_GPU_AS");
    ALLOWED(cudaGetDeviceProperties(&p, 0));
}

static void test_memory(void **state)
{
    (void)state;
    const enum cudaMemcpyKind UP = cudaMemcpyHostToDevice, DOWN = cudaMemcpyDeviceToHost,
                              ANY = cudaMemcpyDefault;
    char *p = one.p, host[8192] = "over and back", back[32];
    void *more, *gone;
    ALLOWED(cudaMemcpyAsync(p + 1, host, 4095, UP, one.s));
    ALLOWED(cudaMemcpyAsync(back, p + 1, sizeof back, DOWN, one.s));
    assert_string_equal(back, host);
    ALLOWED(cudaMemsetAsync(p, 7, 4096, one.s));
    assert_int_equal(*(char *)standin_memory(p + 4095, 1), 7);
    REFUSED("to device memory exceeds it", cudaMemcpyAsync(p + 1, host, 4096, UP, one.s));
    REFUSED("from device memory exceeds it", cudaMemcpyAsync(host, p, 4097, ANY, one.s));
    REFUSED("from host memory exceeds it", cudaMemcpyAsync(p, one.pinned + 1, 4096, UP, one.s));
    REFUSED("kind 1 from device to device", cudaMemcpyAsync(p, p + 64, 64, UP, one.s));
    REFUSED("kind 2 from host to device", cudaMemcpyAsync(p, host, 64, DOWN, one.s));
    REFUSED("a fill of 4097", cudaMemsetAsync(p, 0, 4097, one.s));
    REFUSED("of host memory", cudaMemsetAsync(host, 0, 1, one.s));
    ALLOWED(cudaMemcpy2DAsync(p, 64, host, 100, 60, 64, ANY, one.s));
    REFUSED("rows of 65 bytes", cudaMemcpy2DAsync(p, 64, host, 100, 65, 64, ANY, one.s));
    REFUSED("to device memory exceeds it", cudaMemcpy2DAsync(p, 64, host, 100, 60, 65, ANY, one.s));
    REFUSED("exceeds its source", cudaMemcpy2DAsync(p, 8, one.pinned, 128, 8, 33, ANY, one.s));
    ALLOWED(cudaMalloc(&gone, 64));
    ALLOWED(cudaMalloc(&more, 64));
    ALLOWED(cudaFree(gone));
    ALLOWED(cudaFree(more));
    REFUSED("is not allocated", cudaFree(gone));
    REFUSED("is not allocated", cudaFree(p + 64));
    REFUSED("exceeds it", cudaMemsetAsync(gone, 0, 1, one.s));
    REFUSED("is not allocated", cudaFreeHost(host));
    REFUSED("cudaHostGetDevicePointer", cudaHostGetDevicePointer(&more, host, 0));
    assert_int_equal(cudaMalloc(&more, (size_t)142 << 30), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    standin_fail(2);
    ALLOWED(cudaMemsetAsync(p, 0, 1, one.s));
    assert_false(standin_failed());
    assert_int_equal(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
    assert_true(standin_failed() && !more);
}

static void test_graphs(void **state)
{
    (void)state;
    const enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    const void *k = standin_kernel("take_kernel");
    void *p, *other;
    cudaGraph_t graph;
    cudaGraphExec_t run;
    cudaStream_t s2, s3;
    cudaEvent_t event;
    ALLOWED(cudaStreamCreateWithFlags(&s2, cudaStreamNonBlocking));
    ALLOWED(cudaStreamCreateWithFlags(&s3, cudaStreamNonBlocking));
    ALLOWED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    ALLOWED(cudaMalloc(&p, 64));
    REFUSED("does not capture", cudaStreamEndCapture(one.s, &graph));
    ALLOWED(cudaStreamBeginCapture(one.s, mode));
    REFUSED("captures already", cudaStreamBeginCapture(one.s, mode));
    REFUSED("while the thread captures", cudaMalloc(&other, 64));
    REFUSED("while the thread captures", cudaFree(p));
    REFUSED("while the thread captures", cudaHostAlloc(&other, 64, 0));
    REFUSED("cudaStreamQuery of a capture", cudaStreamQuery(one.s));
    ALLOWED(cudaMemsetAsync(p, 1, 64, one.s));
    ALLOWED(take(k, of(1, 1, 1), of(32, 1, 1), 0, p, NULL));
    ALLOWED(cudaStreamEndCapture(one.s, &graph));
    ALLOWED(cudaGraphInstantiate(&run, graph, 0));
    ALLOWED(cudaGraphDestroy(graph));
    REFUSED("not a graph", cudaGraphDestroy(graph));
    strcpy(one.pinned, "in a graph");
    ALLOWED(cudaGraphLaunch(run, s2));
    assert_string_equal((char *)standin_memory(p, 16), "in a graph");
    assert_int_equal(((char *)standin_memory(p, 64))[63], 1);
    ALLOWED(cudaStreamBeginCapture(s2, mode));
    REFUSED("launched in a capture", cudaGraphLaunch(run, s2));
    ALLOWED(cudaStreamEndCapture(s2, &graph));
    REFUSED("capture mode", cudaStreamBeginCapture(s2, cudaStreamCaptureModeGlobal));
    REFUSED("device 1", cudaSetDevice(1));
    ALLOWED(cudaStreamBeginCapture(s3, mode));
    REFUSED("destroyed that captures", cudaStreamDestroy(s3));
    ALLOWED(cudaGraphDestroy(graph));
    ALLOWED(cudaFree(p));
    (void)cudaGraphLaunch(run, s2);
    seen = standin_wrong();
    assert_non_null(strstr(seen, "a copy or fill of memory that is not allocated"));
    assert_non_null(strstr(seen, "not allocated any more (graph)"));
    assert_int_equal(strncmp(standin_left(), "4096 bytes in 1 allocations, 1 pinned, 2 streams, "
                                             "1 events, 1 graphs", 70), 0);
    ALLOWED(cudaGraphExecDestroy(run));
    REFUSED("not a graph to run", cudaGraphLaunch(run, s2));
    ALLOWED(cudaStreamDestroy(s2));
    REFUSED("not a stream", cudaMemsetAsync(one.p, 0, 1, s2));
    REFUSED("not a stream", cudaEventRecord(event, s2));
    ALLOWED(cudaEventDestroy(event));
    REFUSED("not a event", cudaEventQuery(event));
}

static void test_tensor_maps(void **state)
{
    (void)state;
    struct map m;
    ALLOWED(map_of(good_map));
#define CHANGED(words, member, value)                                                              \
    m = good_map, m.member = value;                                                                \
    REFUSED("tensor map: " words " (", map_of(m))
    CHANGED("alignment of the map", map_off, 32);
    CHANGED("type of elements", type, 100);
    CHANGED("interleave is not known here", interleave, CU_TENSOR_MAP_INTERLEAVE_16B);
    CHANGED("rank", rank, 6);
    CHANGED("address", off, 8);
    CHANGED("dimension", dim[1], 0);
    CHANGED("box", box[1], 257);
    CHANGED("box", box[1], 0);
    CHANGED("element stride", step, 9);
    CHANGED("stride", stride, 136);
    CHANGED("bytes of a box's row", box[0], 60);
    CHANGED("bytes of a box's row beyond the swizzle", box[0], 128);
    CHANGED("bytes of a box's row beyond the swizzle", swizzle, CU_TENSOR_MAP_SWIZZLE_64B);
    CHANGED("tensor beyond its allocation", dim[1], 33);
    CHANGED("tensor beyond its allocation", off, 16);
#undef CHANGED
}

/* ---- passes ---------------------------------------------------------------------------------- */

enum { CONTEXT = 4096, NEAR = 37, FAR = 3000 };

/* A model and how it is run. */
static struct subject {
    const char *as, *model, *precision;
    bool fp8; /* weights and cells */
} subject;

static void open_subject(struct bed *b)
{
    struct err e = {0};
    const char *brief;
    setenv("AERIE_GPU_AS", subject.as, 1);
    assert_true(bed_device(b, "cuda", subject.precision));
    b->dev.kv = subject.fp8 ? KV_FP8 : b->dev.kv;
    must(synthetic_open(&b->m, &b->d, subject.model, &brief, &e), &e);
    b->has_draft = true;
    if (subject.fp8)
        models_mark(&b->m, &b->d, true);
    bed_runtime(b, &(struct runtime_shape){.page_size = 16, .context = CONTEXT, .max_rows = 2048,
                                           .kv = b->dev.kv});
}

/* Fails if a call broke a rule. */
static void all_well(const char *what, int rows)
{
    seen = standin_wrong();
    if (*seen)
        fail_msg("%s as %s, %s of %d rows: %s", subject.model, subject.as, what, rows, seen);
}

static void close_subject(struct bed *b)
{
    bed_close(b);
    all_well("the end", 0);
    assert_string_equal(standin_left(), "");
}

/* A lane with n committed cells that no pass has written. */
static struct lane lane_at(struct runtime *rt, int n)
{
    struct err e = {0};
    struct lane l = {.tap_row = -1};
    while (l.tok.n < CONTEXT)
        ids_add(&l.tok, l.tok.n * 7 % 1000);
    for (int upto; l.seq.committed < n;) {
        upto = min_int(l.seq.committed + rt->max_rows, n);
        struct plan_req req = {.seq = &l.seq, .n = upto - l.seq.committed,
                               .token = l.tok.v + l.seq.committed};
        must(kv_reserve(&rt->kv, &l.seq, upto, &e) &&
             pass_prepare(&rt->pass, PLAN_EXTEND, &req, 1, &e), &e);
        kv_commit(&rt->kv, &l.seq, upto);
        kv_release_window(&rt->kv, &l.seq);
    }
    return l;
}

static void one_pass(struct runtime *rt, struct lane *l, enum plan_mode mode, int rows)
{
    struct err e = {0};
    struct plan_req req = {.seq = &l->seq, .n = rows, .token = l->tok.v + l->seq.committed};
    if (mode == PLAN_VERIFY) {
        tree_init(&l->tree, req.token[0]);
        for (int i = 1; i < rows; i++)
            tree_add(&l->tree, rows < 8 ? i - 1 : (i - 1) / 2, i, .5f, -(float)i);
        req.token = l->tree.token, req.tree = &l->tree;
    }
    must(kv_reserve(&rt->kv, &l->seq, l->seq.committed + rows, &e) &&
         pass_prepare(&rt->pass, mode, &req, 1, &e), &e);
    net_forward(&rt->net, &rt->pass.plan[mode], &rt->pass.kp, NULL);
    net_logits(&rt->net, mode == PLAN_VERIFY || rows <= 16 ? rows : 1, (kbuf){0}, rt->logits);
    must(rt->dev.k->sync(rt->dev.d, &e), &e);
    kv_rollback(&rt->kv, &l->seq);
    all_well(mode == PLAN_VERIFY ? "a tree" : "a pass", rows);
}

/* Where a kernel takes the place of another, and beside it. */
static const int some_rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 47, 48,
                                49, 63, 64, 65, 66, 80, 96, 97, 127, 128, 129, 160, 191, 192, 193,
                                255, 256, 257, 300, 511, 513, 1000, 2048};

/* `upto`: every number of rows up to there is tried as well. */
static void passes(int upto)
{
    struct bed b;
    open_subject(&b);
    for (int far = 0; far < 2; far++) {
        struct lane l = lane_at(&b.r, far ? FAR : NEAR);
        for (int i = -upto; i < (int)LEN(some_rows); i++) {
            const int rows = i < 0 ? -i : some_rows[i];
            if (rows > CONTEXT - l.seq.committed)
                break;
            one_pass(&b.r, &l, rows == 1 ? PLAN_DECODE : PLAN_EXTEND, rows);
            if (rows > 1 && rows <= 64)
                one_pass(&b.r, &l, PLAN_VERIFY, rows);
        }
        lane_free(&b.r, &l);
    }
    close_subject(&b);
}

static const char *const classes[] = {"9.0", "8.0", "8.6", "12.0"};

static void test_shapes(void **state)
{
    static const char *const models[] = {"gemma-3-270m", "gemma-3-4b", "gemma-3-27b", "gemma-4-E4B",
                                         "gpt-oss-20b", "qwen3-30b-a3b", "gemma-4-26B-A4B"};
    (void)state;
    for (size_t m = 0; m < LEN(models); m++)
        for (size_t c = 0; c < LEN(classes); c++) {
            subject = (struct subject){classes[c], models[m], "bf16", false};
            passes(c == 0 ? 300 : 0);
        }
}

static void test_packed_types(void **state)
{
    (void)state;
    for (enum dtype t = DT_Q8_0; t <= DT_E2M1; t++)
        for (int moe = 0; moe < 2; moe++) {
            char name[64];
            snprintf(name, sizeof name, "%s:%s", moe ? "qwen3-30b-a3b" : "gemma-3-1b",
                     dtype_name(t));
            subject = (struct subject){classes[(t + moe) % 4], name, "bf16", false};
            passes(0);
            subject.as = "9.0";
            passes(0);
        }
}

static void test_float32_and_fp8(void **state)
{
    static const char *const models[] = {"gemma-3-270m", "gpt-oss-20b", "small-moe-32",
                                         "small-moe-32:Q6_K"};
    (void)state;
    for (size_t m = 0; m < LEN(models); m++)
        for (int fp8 = 0; fp8 < 2; fp8++) {
            subject = (struct subject){classes[m], models[m], fp8 ? "bf16" : "f32", fp8};
            passes(0);
        }
}

/* ---- drafts and cycles ----------------------------------------------------------------------- */

static const struct tree_shape shapes[] = {{3, 1, 4}, {5, 4, 16}, {5, 8, 60}};

/* A prompt and some cycles; shape NULL: without a draft. */
static void cycles(struct bed *b, const struct tree_shape *s, int prompt, bool fuse, bool record)
{
    struct err e = {0};
    struct lane l = {.tap_row = -1}, *one_lane = &l;
    struct step_limits lim = {8};
    for (int i = 0; i < prompt; i++)
        ids_add(&l.tok, i * 7 % 1000);
    b->r.fuse = fuse, b->r.record = record;
    lane_prompt(&b->r, &l, 512, s);
    for (int i = 0; i < 3; i++)
        if (!lane_step(&b->r, &one_lane, &lim, 1, s, &e)) {
            if (!fuse || !s || !strstr(e.msg, "I13"))
                fail_msg("%s: %s", subject.model, e.msg);
            break;
        }
    all_well(s ? "cycles with a draft" : "cycles", s ? s->nodes : 1);
    lane_free(&b->r, &l);
}

static void test_cycles(void **state)
{
    static const char *const models[] = {"gemma-3-270m", "gpt-oss-20b", "gpt-oss-20b+dflash",
                                         "gemma-3-1b:Q4_K+dspark", "gemma-3-270m:Q8_0"};
    (void)state;
    for (size_t m = 0; m < LEN(models); m++) {
        struct bed b;
        subject = (struct subject){classes[m % 4], models[m], "bf16", false};
        open_subject(&b);
        for (int s = -1; s < (int)LEN(shapes); s++)
            for (int way = 0; way < 3; way++)
                cycles(&b, s < 0 ? NULL : &shapes[s], way == 1 ? 600 : 20, way > 0, way > 1);
        close_subject(&b);
    }
    assert_true(standin_counts().replayed > 0);
}

/* ---- models of files ------------------------------------------------------------------------- */

/* The targets among the checkpoints of golden tests, of every family. */
static void test_families(void **state)
{
    static const int rows[] = {1, 3, 16, 17, 64, 65, 130};
    (void)state;
    int targets = 0;
    glob_t found;
    assert_int_equal(glob("tests/golden/*-[abc]", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct err e = {0};
        struct bed b;
        subject = (struct subject){classes[i % 4], found.gl_pathv[i], i % 3 ? "bf16" : "f32",
                                   false};
        setenv("AERIE_GPU_AS", subject.as, 1);
        assert_true(bed_device(&b, "cuda", subject.precision));
        if (model_load(&b.m, subject.model, NULL, &e)) {
            bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = 512,
                                                    .kv = b.dev.kv});
            struct lane l = lane_at(&b.r, NEAR);
            for (size_t r = 0; r < LEN(rows); r++)
                one_pass(&b.r, &l, rows[r] == 1 ? PLAN_DECODE : PLAN_EXTEND, rows[r]);
            lane_free(&b.r, &l);
            cycles(&b, NULL, 20, true, true);
            targets++;
            close_subject(&b);
        } else {
            device_close(&b.dev);
        }
    }
    globfree(&found);
    assert_true(targets >= 30);
}

/* ---- uploads --------------------------------------------------------------------------------- */

enum { SIDE = 512 };
enum { REFUSED_UPLOAD, FP8_UPLOAD, PACKED_UPLOAD, UNPACKED_UPLOAD, N_UPLOADS };

static struct tensor matrix(int kind, void *data)
{
    const enum dtype type = kind < PACKED_UPLOAD ? DT_BF16 : DT_Q4_0;
    struct tensor t = {.type = type, .n_dim = 2, .dim = {SIDE, SIDE}, .name = "layers.0.wq",
                       .data = data, .bytes = SIDE * dtype_bytes(type, SIDE)};
    t.quantize = kind < PACKED_UPLOAD;
    largest = kind == REFUSED_UPLOAD ? 0x7f80 /* infinite */ : 0x3f80;
    too_large = kind == UNPACKED_UPLOAD;
    return t;
}

/* Uploads a matrix; call number `fail` of the runtime fails, 0: none. Whatever comes of it, no
 * memory is left when the matrix is gone, and a matrix that was refused is as it was. True: that
 * call came. */
static bool upload(int kind, bool made_up, int fail)
{
    struct err e = {0};
    static uint16_t zeros[SIDE * SIDE];
    char before[200];
    struct kdev *d = kernels_cuda.open(&(struct k_opts){.precision = K_BF16}, &e);
    assert_non_null(d);
    snprintf(before, sizeof before, "%s", standin_left());
    struct tensor t = matrix(kind, made_up ? NULL : zeros);
    const struct tensor given = t;
    standin_fail(fail);
    const bool ok = made_up ? kernels_cuda.synthesize(d, &t, 1, .01f, &e)
                            : kernels_cuda.upload(d, &t, &e);
    const bool well = ok && kernels_cuda.sync(d, &e), failed = standin_failed();
    standin_fail(0);
    if (ok) {
        assert_int_equal(t.type, kind == UNPACKED_UPLOAD ? DT_BF16 : given.type);
        kernels_cuda.unload(d, &t);
    } else {
        assert_true(t.data == given.data && t.type == given.type);
    }
    assert_true(well == !(kind == REFUSED_UPLOAD || failed) && (well || *e.msg));
    assert_string_equal(standin_left(), before);
    kernels_cuda.close(d);
    assert_string_equal(standin_wrong(), "");
    assert_string_equal(standin_left(), "");
    return failed;
}

static void test_uploads(void **state)
{
    (void)state;
    unsetenv("AERIE_GPU_AS");
    for (int kind = 0; kind < N_UPLOADS; kind++)
        for (int made_up = 0; made_up < 2; made_up++) {
            int fails = 0;
            assert_false(upload(kind, made_up, 0));
            while (upload(kind, made_up, fails + 1))
                fails++;
            assert_true(fails >= 7);
        }
    largest = too_large = 0;
}

/* A row that the tile kernel's copies cannot address is refused in one line (panel.cuh). */
static void test_too_long_rows(void **state)
{
    (void)state;
    static uint16_t zeros[139776 + 32];
    for (int longer = 0; longer < 2; longer++) {
        struct err e = {0};
        struct tensor t = {.type = DT_BF16, .n_dim = 2, .dim = {1, 139776 + 32 * longer},
                           .name = "layers.0.down", .data = zeros, .bytes = sizeof zeros};
        struct kdev *d = kernels_cuda.open(&(struct k_opts){.precision = K_BF16}, &e);
        assert_non_null(d);
        assert_int_equal(kernels_cuda.upload(d, &t, &e), !longer);
        assert_string_equal(e.msg, !longer ? "" :
                            "CUDA: layers.0.down has rows of 139808 elements; expected at most "
                            "139776 (--device cpu takes longer ones)");
        kernels_cuda.unload(d, &t);
        kernels_cuda.close(d);
        assert_string_equal(standin_left(), "");
    }
}

/* ---- calls that fail ------------------------------------------------------------------------- */

/* A device is opened, a target and a head are loaded, and cycles run. *failed: a call has failed
 * before all is closed, which reports nothing. */
static bool whole_run(bool *failed, struct err *e)
{
    struct bed b = {0};
    struct lane l = {.tap_row = -1}, *one_lane = &l;
    struct step_limits lim = {8};
    const bool open = device_open(&b.dev, "cuda", 1, NULL, e);
    *failed = standin_failed();
    if (!open)
        return false;
    bed_load(&b, "tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a");
    bool ok = runtime_open(&b.r, b.dev, &b.m, &b.d,
                           &(struct runtime_shape){.page_size = 16, .context = 256,
                                                   .kv = b.dev.kv}, e);
    for (int i = 0; i < 20; i++)
        ids_add(&l.tok, i);
    if (ok) {
        ok = lane_extend(&b.r, &l, 20, true, true, 4, e);
        for (int way = 0; ok && way < 4; way++) {
            b.r.fuse = b.r.record = way > 1;
            ok = lane_step(&b.r, &one_lane, &lim, 1, way == 1 ? &shapes[1] : NULL, e);
        }
        *failed = standin_failed();
        lane_free(&b.r, &l);
        runtime_close(&b.r);
    } else {
        *failed = standin_failed();
        ids_free(&l.tok);
    }
    draft_free(&b.d);
    model_free(&b.m);
    device_close(&b.dev);
    return ok;
}

/* Every call of the runtime fails in turn, each in a run of its own: the run ends with a message,
 * breaks no rule, and leaves nothing. */
static void test_every_failing_call(void **state)
{
    (void)state;
    unsetenv("AERIE_GPU_AS");
    int at = 1;
    for (bool came = true; came; at++) {
        struct err e = {0};
        bool failed;
        standin_fail(at);
        const bool ok = whole_run(&failed, &e);
        came = standin_failed();
        standin_fail(0);
        seen = standin_wrong();
        if (*seen || *standin_left() || ok == failed || (failed && !*e.msg))
            fail_msg("call %d of the runtime fails (\"%s\"): %s%s", at, e.msg, seen,
                     standin_left());
    }
    print_message("# %d calls\n", at - 2);
    assert_true(at > 800);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int print_counts(void **state)
{
    (void)state;
    const struct standin_counts c = standin_counts();
    print_message("# %lu launches of %d kernels, %lu in graphs, %lu copies, %lu tensor maps, "
                  "%lu pointers\n", c.launches, c.kernels, c.replayed, c.copies, c.maps,
                  c.pointers);
    return 0;
}

static int begin(void **state)
{
    (void)state;
    standin_effect("take_kernel", copy_words);
    standin_effect("give_kernel", give);
    standin_effect("find_largest", find_largest);
    standin_effect("repack_blocks", repack_blocks);
    return 0;
}

int main(int argc, char **argv)
{
#define RULES(test) cmocka_unit_test_setup_teardown(test, open_one, close_one)
    const struct CMUnitTest tests[] = {
        RULES(test_a_failure_in_a_launch_ends_the_process),
        RULES(test_launches),
        RULES(test_smaller_classes),
        RULES(test_memory),
        RULES(test_graphs),
        RULES(test_tensor_maps),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_packed_types),
        cmocka_unit_test(test_float32_and_fp8),
        cmocka_unit_test(test_cycles),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_uploads), cmocka_unit_test(test_too_long_rows),
        cmocka_unit_test(test_every_failing_call),
    };
    if (!standin_has_code()) {
        puts("1..1\nok 1 - the CUDA backend's calls # SKIP the build has no code for 9.0");
        return 0;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, begin, print_counts);
}
