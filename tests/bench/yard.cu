/* yard.cu - cycles and joules of a prompt's products: aerie's kernel beside cuBLASLt's and
 * CUTLASS's. Prints a line a window, of which tests/bench/yard.sh makes a table.
 *
 * One product is launched again and again on the same inputs. aerie's kernel is the one that
 * cuda_product() chooses for rows that are packed already: the prefill kernel, or on a GPU without
 * wgmma the tile kernel; beside it run CUTLASS's kernels for the same instructions. Gate and up are
 * one product. aerie's includes the activation and packs its rows, which the other libraries leave
 * to a kernel of their own.
 *
 * Before anything is timed, each product is computed over a poisoned output and compared with that
 * of another library. Weights and inputs are evenly distributed random numbers, because the power
 * that a product draws depends on them.
 *
 * A batch is eight launches, and the next batch follows at once; or one launch, and a pause of nine
 * times its time follows. In front of each batch a kernel of one thread runs for 20 us. It measures
 * the SM clock (clock64() over globaltimer), and the host enqueues the batch meanwhile, so the time
 * between the events around the batch contains no wait for the host. Energy comes from NVML's
 * counter, between the first and the last change in the window (it changes about ten times a
 * second). The energy of a launch is what the GPU draws in the window, less its idle power for the
 * time in which no product runs, over the number of launches.
 */
#include "kernels/cuda/dense/product.cuh"
#include "tests/bench/yard.h"

#include <algorithm>
#include <atomic>
#include <dlfcn.h>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

static const struct kernels *const K = &kernels_cuda;

[[noreturn]] __attribute__((format(printf, 2, 3))) static void fail(int status, const char *f, ...)
{
    va_list args;
    va_start(args, f);
    fputs("yard: ", stderr);
    vfprintf(stderr, f, args);
    fputc('\n', stderr);
    va_end(args);
    exit(status);
}
enum { USAGE = 2, NO_DEVICE = 3, WRONG = 1 };

/* Waits; ends the program if something has failed. */
static void sync(struct kdev *d)
{
    struct err e = {};
    if (!K->sync(d, &e))
        fail(WRONG, "%s", e.msg);
    const cudaError_t rc = cudaGetLastError();
    if (rc != cudaSuccess)
        fail(WRONG, "%s", cudaGetErrorString(rc));
}

/* ---- energy ---------------------------------------------------------------------------------- */

static struct {
    void *device;
    int (*init)(void);
    int (*by_bus)(const char *bus, void **device);
    int (*energy)(void *device, unsigned long long *mj); /* since the driver was loaded */
    int (*limit)(void *device, unsigned *mw);
} nvml;

static unsigned long long energy_mj(void)
{
    unsigned long long mj = 0;
    const int rc = nvml.energy(nvml.device, &mj);
    if (rc)
        fail(NO_DEVICE, "NVML counts no energy of this GPU: status %d", rc);
    return mj;
}

static void open_nvml(const struct kdev *d)
{
    char bus[32];
    void *const file = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    const struct {
        const char *name;
        void *to;
    } all[] = {{"nvmlInit_v2", &nvml.init},
               {"nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_bus},
               {"nvmlDeviceGetTotalEnergyConsumption", &nvml.energy},
               {"nvmlDeviceGetEnforcedPowerLimit", &nvml.limit}};
    if (!file)
        fail(NO_DEVICE, "no NVML: %s", dlerror());
    for (const auto &f : all) {
        void *const p = dlsym(file, f.name);
        if (!p)
            fail(NO_DEVICE, "this NVML has no %s", f.name);
        memcpy(f.to, &p, sizeof p);
    }
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, d->ordinal) != cudaSuccess || nvml.init() ||
        nvml.by_bus(bus, &nvml.device))
        fail(NO_DEVICE, "NVML does not find this GPU");
    energy_mj();
}

static double seconds(void) { return (double)clock_ns() * 1e-9; }

/* Reads the counter in a thread of its own while it lives, because a call of NVML takes longer than
 * the batches that are enqueued ahead: the thread that enqueues must not wait for one. */
class meter {
    struct change {
        double at; /* seconds */
        unsigned long long mj;
    };
    std::vector<change> changes;
    std::atomic<bool> over{false};
    std::thread reader{[this] {
        for (unsigned long long seen = energy_mj(); !over; usleep(4000)) {
            const double before = seconds();
            const unsigned long long mj = energy_mj();
            if (mj != seen)
                changes.push_back({(before + seconds()) / 2, mj});
            seen = mj;
        }
    }};

public:
    ~meter()
    {
        over = true;
        if (reader.joinable())
            reader.join();
    }
    /* Ends the readings: mean watts between the first and the last change. */
    double watts(void)
    {
        over = true;
        reader.join();
        if (changes.size() < 2)
            fail(NO_DEVICE, "the energy counter changed %zu times in a window: take a longer one",
                 changes.size());
        return (double)(changes.back().mj - changes[0].mj) * 1e-3 /
               (changes.back().at - changes[0].at);
    }
};

static double idle_watts(void)
{
    usleep(300000);
    meter m;
    usleep(1000000);
    return m.watts();
}

/* ---- windows --------------------------------------------------------------------------------- */

enum { BATCH = 8, AHEAD = 4 /* batches that are enqueued at once */ };

/* sums: cycles and nanoseconds. */
__global__ void clock_kernel(unsigned long long *sums)
{
    const auto now = [] {
        unsigned long long ns;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
        return ns;
    };
    unsigned long long begin = now(), from, to;
    while ((from = now()) == begin) /* the timer's step may be a microsecond */
        ;
    const long long cycles = clock64();
    while ((to = now()) < from + 20000)
        ;
    sums[0] += (unsigned long long)(clock64() - cycles);
    sums[1] += to - from;
}

static kgraph *record(struct kdev *d, int times, const std::function<void()> &launch)
{
    struct err e = {};
    if (!K->graph_begin(d))
        sync(d);
    for (int i = 0; i < times; i++)
        launch();
    kgraph *const g = K->graph_end(d, &e);
    if (!g)
        fail(WRONG, "%s", e.msg);
    return g;
}

static float middle(std::vector<float> v)
{
    std::sort(v.begin(), v.end());
    return v.empty() ? 0 : v[v.size() / 2];
}

struct figures {
    double us, mhz, watts, millijoules; /* us, millijoules: of a launch */
};

/* pause: of what a launch takes; 0: batches of eight. */
struct timer {
    struct kdev *d;
    kbuf sums; /* of clock_kernel() */
    cudaEvent_t from[AHEAD], to[AHEAD];
    double idle;

    void enqueue(kgraph *g, int slot)
    {
        clock_kernel<<<1, 1, 0, d->run_stream>>>((unsigned long long *)sums.p);
        cudaEventRecord(from[slot], d->run_stream);
        K->graph_launch(d, g);
        cudaEventRecord(to[slot], d->run_stream);
    }
    float wait(int slot) /* us of the batch */
    {
        float ms = 0;
        if (cudaEventSynchronize(to[slot]) != cudaSuccess)
            sync(d);
        cudaEventElapsedTime(&ms, from[slot], to[slot]);
        return ms * 1e3f;
    }
    std::vector<float> batches(kgraph *g, int pause, double length) /* for so long */
    {
        std::vector<float> us;
        const int ahead = pause ? 1 : AHEAD;
        int begun = 0, done = 0;
        for (const double end = seconds() + length; done < begun || seconds() < end;) {
            const bool more = seconds() < end;
            if (more)
                enqueue(g, begun++ % ahead);
            if (more && begun - done < ahead)
                continue;
            us.push_back(wait(done++ % ahead));
            for (const double next = seconds() + pause * us.back() * 1e-6; seconds() < next;)
                ;
        }
        return us;
    }
    struct figures window(const std::function<void()> &launch, int pause, double length)
    {
        const int each = pause ? 1 : BATCH;
        kgraph *const g = record(d, each, launch);
        unsigned long long clock[2];
        batches(g, pause, 0.3); /* until clock and power are those of the load */
        K->fill(d, sums, 0);
        meter m;
        const double begin = seconds();
        const std::vector<float> us = batches(g, pause, length);
        const double period = (seconds() - begin) * 1e6 / (double)us.size() / each;
        K->get(d, clock, sums, sizeof clock);
        sync(d);
        K->graph_free(d, g);
        struct figures f = {};
        f.us = middle(us) / each, f.mhz = (double)clock[0] * 1e3 / (double)clock[1];
        f.watts = m.watts();
        if (!pause && f.us < 0.8 * period)
            fprintf(stderr, "yard: batches did not follow at once: the GPU multiplied for %.0f %% "
                    "of a window\n", 100 * f.us / period);
        f.millijoules = (f.watts * period - idle * (period - f.us)) * 1e-3;
        return f;
    }
};

/* ---- products -------------------------------------------------------------------------------- */

struct shape {
    const char *name;
    int out, in; /* out: of gate and of up each */
    bool glu;
};
static const struct shape shapes[] = {
    {"g4b.glu", 10240, 2560, true},    {"g4b.down", 2560, 10240, false},
    {"g4b.o", 2560, 2048, false},      {"g27b.glu", 21504, 5376, true},
    {"g27b.down", 5376, 21504, false}, {"20b.qkv", 5120, 2880, false},
};

enum form {
    OTHERS, /* bf16, (rows, all outputs) */
    FLOATS, /* float32, (rows, out) */
    PACKED, /* act(gate) up, bf16 in the order of ROW_TILED, (rows, out) */
};

struct contender {
    std::string name;
    std::function<void()> launch;
    enum form form;
};

/* Counts the elements that equal those of `want`, and the zeros. want: OTHERS; gate and up beside
 * each other if got is PACKED. The outputs' standard deviation is about 1. A bf16 number is off by
 * up to 2^-8 of its value, and act(gate) up by what three are. */
struct counts {
    unsigned equal, zeros;
};
__global__ void compare_kernel(enum form form, const void *got, const bf16 *want, int rows, int out,
                               struct counts *n)
{
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        const int o = (int)(blockIdx.x * blockDim.x + threadIdx.x);
        if (o >= out)
            return;
        const size_t row = (size_t)r * (size_t)out;
        float x, y;
        if (form == PACKED) {
            const bf16 *const both = want + 2 * row;
            y = activate(__bfloat162float(both[o]), ACT_GELU_TANH) *
                __bfloat162float(both[out + o]);
            x = __bfloat162float(((const bf16 *)got)[row + (size_t)tile_place(o)]);
        } else {
            y = __bfloat162float(want[row + (size_t)o]);
            x = form == FLOATS ? ((const float *)got)[row + (size_t)o]
                               : __bfloat162float(((const bf16 *)got)[row + (size_t)o]);
        }
        if (fabsf(x - y) <= 0x1p-6f * fabsf(y) + 0x1p-7f)
            atomicAdd(&n->equal, 1);
        if (x == 0)
            atomicAdd(&n->zeros, 1);
    }
}

__global__ void widen_kernel(const bf16 *from, size_t n, float *to)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        to[i] = __bfloat162float(from[i]);
}

static kbuf buffer(struct kdev *d, size_t bytes)
{
    struct err e = {};
    const kbuf b = K->alloc(d, bytes, "a product", &e);
    if (!b.p)
        fail(NO_DEVICE, "%s", e.msg);
    return b;
}
/* A matrix of random numbers; rows: as in a file, else as the device's products read it. */
static struct tensor matrix(struct kdev *d, int out, int in, bool rows, uint64_t seed, float scale)
{
    struct err e = {};
    struct tensor t = {};
    t.type = DT_BF16, t.n_dim = 2, t.dim[0] = out, t.dim[1] = in, t.name = "a product's";
    t.bytes = (size_t)out * (size_t)in * sizeof(bf16), t.by_row = rows;
    if (!K->synthesize(d, &t, seed, scale, &e))
        fail(NO_DEVICE, "%s", e.msg);
    return t;
}

/* The inputs of a shape in both forms, and one output for all. */
struct inputs {
    struct kdev *d;
    struct shape s;
    int rows, all; /* outputs */
    struct tensor panels[2];
    kbuf w, x, packed, y, first;

    inputs(struct kdev *dev, const struct shape &of, int n_rows) : d(dev), s(of), rows(n_rows)
    {
        const size_t n = (size_t)rows * (size_t)s.in, each = (size_t)s.out * (size_t)s.in * 2;
        const int mats = s.glu ? 2 : 1;
        const float scale = 1 / sqrtf((float)s.in);
        all = mats * s.out;
        w = buffer(d, mats * each), x = buffer(d, n * 2), packed = buffer(d, n * 2);
        y = buffer(d, (size_t)rows * (size_t)s.out * 4), first = buffer(d, y.n);
        for (int i = 0; i < mats; i++) {
            panels[i] = matrix(d, s.out, s.in, false, 1000 + (uint64_t)i, scale);
            take(s.out, 1000 + (uint64_t)i, scale, (char *)w.p + i * each);
        }
        take(rows, 77, 1, x.p);
        pack();
        sync(d);
    }
    ~inputs()
    {
        for (kbuf b : {w, x, packed, y, first})
            K->release(d, b);
        for (int i = 0; i < all / s.out; i++)
            K->unload(d, &panels[i]);
    }
    void take(int n, uint64_t seed, float scale, void *to) const /* n rows of random numbers */
    {
        struct tensor t = matrix(d, n, s.in, true, seed, scale);
        cudaMemcpyAsync(to, t.data, t.bytes, cudaMemcpyDeviceToDevice, d->stream);
        sync(d);
        K->unload(d, &t);
    }
    void pack(void) const /* x as aerie's products take it */
    {
        const size_t n = (size_t)rows * (size_t)s.in;
        const kbuf floats = buffer(d, n * sizeof(float));
        struct product p = {};
        const struct row_format f = cuda_rows_format(d, rows, s.in);
        cuda_begin(d, "pack");
        widen_kernel<<<(unsigned)((n + 255) / 256), 256, 0, d->stream>>>((const bf16 *)x.p, n,
                                                                         (float *)floats.p);
        p.rows = rows, p.in.src = (const float *)floats.p;
        p.in.stride = (size_t)s.in, p.in.n = s.in, p.x.kp = s.in, p.x.terms = 1;
        cuda_pack_rows(d, &p, PACK_PLAIN, &f);
        cudaMemcpyAsync(packed.p, p.x.x, packed.n, cudaMemcpyDeviceToDevice, d->stream);
        sync(d);
        K->release(d, floats);
    }
    void launch_aerie(void) const
    {
        struct product p = {};
        cuda_begin(d, "product");
        p.rows = rows, p.in.n = s.in, p.x.x = (const uint16_t *)packed.p;
        p.glu = s.glu, p.glu_act = ACT_GELU_TANH, p.n_mats = s.glu ? 2 : 1;
        for (int i = 0; i < p.n_mats; i++) {
            p.m[i].w = (const uint8_t *)panels[i].data, p.m[i].type = DT_BF16;
            p.m[i].pitch = (size_t)s.in * 2, p.m[i].n = s.out, p.m[i].k = s.in;
            p.m[i].panels = cuda_panels(d, &panels[i]);
            p.f[i].scale = 1, p.f[i].dst = (float *)y.p, p.f[i].dst_stride = (size_t)s.out;
        }
        if (s.glu)
            p.pack_to = (uint16_t *)y.p, p.pack_as = cuda_rows_format(d, rows, s.out);
        cuda_product(d, &p, STORE_BF16, rows);
    }
    struct k_peer cublas(const char *library, int choice) const
    {
        struct k_peer a = {};
        a.library = library, a.rows = rows, a.in = s.in, a.out = all, a.batch = 1;
        a.choice = choice, a.src = x, a.w = w, a.dst = y;
        return a;
    }
};

/* The library's fastest proposal; -1: there is none, and a line says why. */
static int best_of_cublas(struct timer &t, const struct inputs &in, const char *library)
{
    struct err why = {};
    float least = 0;
    int best = -1;
    struct k_peer a = in.cublas(library, INT32_MAX);
    const int n = K->peer(in.d, &a, &why);
    if (n == 0)
        printf("# cuBLASLt is left out: %s\n", why.msg);
    for (int i = 0; i < n; i++) {
        a.choice = i;
        kgraph *const g = record(in.d, BATCH, [&] { K->peer(in.d, &a, NULL); });
        const float us = middle(t.batches(g, 0, 0.05));
        K->graph_free(in.d, g);
        if (best < 0 || us < least)
            best = i, least = us;
    }
    return best;
}

static std::vector<contender> contenders_of(struct timer &t, const struct inputs &in,
                                            const char *library)
{
    std::vector<contender> all;
    const int choice = best_of_cublas(t, in, library);
    if (choice >= 0)
        all.push_back({"cuBLASLt",
                       [&in, a = in.cublas(library, choice)] { K->peer(in.d, &a, NULL); }, OTHERS});
    for (const struct cutlass_kernel &c : cutlass_kernels) {
        if (c.wgmma != in.d->gpu.has_wgmma)
            continue;
        void *const p = c.prepare(in.x.p, in.w.p, in.y.p, in.rows, in.all, in.s.in);
        if (!p)
            fail(WRONG, "%s refuses %s", c.name, in.s.name);
        all.push_back({c.name,
                       [&in, &c, p] {
                           if (!c.launch(p, in.d->stream))
                               cuda_fail(in.d, c.name);
                       },
                       OTHERS});
    }
    all.push_back({"aerie", [&in] { in.launch_aerie(); }, in.s.glu ? PACKED : FLOATS});
    return all;
}

/* All products are the first one's, and none leaves elements as they were or is full of zeros. */
static void check(const struct inputs &in, const std::vector<contender> &all)
{
    const kbuf counts = buffer(in.d, sizeof(struct counts));
    for (const contender &c : all) {
        const int out = c.form == OTHERS ? in.all : in.s.out;
        const dim3 grid((unsigned)div_up(out, 256), (unsigned)std::min(in.rows, 1024));
        const unsigned elements = (unsigned)in.rows * (unsigned)out;
        struct counts n;
        K->fill(in.d, in.y, 0xff); /* NaN */
        c.launch();
        if (&c == &all[0])
            cudaMemcpyAsync(in.first.p, in.y.p, in.y.n, cudaMemcpyDeviceToDevice, in.d->stream);
        K->fill(in.d, counts, 0);
        compare_kernel<<<grid, 256, 0, in.d->stream>>>(c.form, in.y.p, (const bf16 *)in.first.p,
                                                       in.rows, out, (struct counts *)counts.p);
        K->get(in.d, &n, counts, sizeof n);
        sync(in.d);
        if (n.equal != elements || n.zeros > elements / 1000)
            fail(WRONG, "%s, %s: of %u elements %u equal those of %s, and %u are zero", in.s.name,
                 c.name.c_str(), elements, n.equal, all[0].name.c_str(), n.zeros);
    }
    K->release(in.d, counts);
}

/* ---- in order -------------------------------------------------------------------------------- */

struct options {
    int rows = 2048, turns = 3;
    double length = 1;
    const char *library = NULL;
    std::vector<const struct shape *> shapes;
};

static void measure(struct timer &t, const struct options &o, const struct shape &s)
{
    const struct inputs in(t.d, s, o.rows);
    const std::vector<contender> all = contenders_of(t, in, o.library);
    check(in, all);
    for (int turn = 0; turn < o.turns; turn++)
        for (int pause : {0, 9})
            for (const contender &c : all) {
                const struct figures f = t.window(c.launch, pause, o.length);
                printf("%s\t%d\t%s\t%s\t%.2f\t%.1f\t%.1f\t%.3f\n", s.name, o.rows, c.name.c_str(),
                       pause ? "at a tenth" : "back to back", f.us, f.mhz, f.millijoules, f.watts);
                fflush(stdout);
            }
}

static void usage(FILE *to)
{
    fputs("usage: yard [OPTION...] [SHAPE...]\n"
          "Cycles and joules of a prompt's products: aerie's kernel beside cuBLASLt's and "
          "CUTLASS's.\n"
          "AERIE_GPU_AS=8.0 takes the kernels of GPUs without wgmma.\n"
          "  --rows N       rows of a product, 129 to 4096 (2048)\n"
          "  --seconds S    of a window, 0.5 to 60 (1)\n"
          "  --turns N      windows of each kernel, 1 to 99 (3)\n"
          "  --cublas FILE  cuBLASLt, if it is not under its usual names\n"
          "Shapes, outputs x inputs (all of them):\n",
          to);
    for (const struct shape &s : shapes)
        fprintf(to, "  %-14s %s%d x %d\n", s.name, s.glu ? "2 x " : "", s.out, s.in);
    fputs("Lines: shape, rows, kernel, launches, us, MHz, mJ of a launch, W; '#': where.\n", to);
}

static double number_of(const char *option, const char *text, double least, double most, bool whole)
{
    char *end = NULL;
    const double v = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || !(v >= least && v <= most) || (whole && v != floor(v)))
        fail(USAGE, "%s %s: expected %sfrom %g to %g", option, text ? text : "",
             whole ? "a whole number " : "a number ", least, most);
    return v;
}

static struct options options_of(int argc, char **argv)
{
    struct options o;
    for (int i = 1; i < argc; i++) {
        const std::string a = argv[i];
        const char *const value = i + 1 < argc ? argv[i + 1] : NULL;
        const auto named = [&](const struct shape &s) { return a == s.name; };
        const struct shape *const s = std::find_if(std::begin(shapes), std::end(shapes), named);
        if (a == "--help")
            usage(stdout), exit(0);
        else if (a == "--rows")
            o.rows = (int)number_of("--rows", value, 129, 4096, true), i++;
        else if (a == "--turns")
            o.turns = (int)number_of("--turns", value, 1, 99, true), i++;
        else if (a == "--seconds")
            o.length = number_of("--seconds", value, 0.5, 60, false), i++;
        else if (a == "--cublas" && value)
            o.library = value, i++;
        else if (s != std::end(shapes))
            o.shapes.push_back(s);
        else
            fail(USAGE, "%s: no such option or shape (--help lists them)", a.c_str());
    }
    return o;
}

int main(int argc, char **argv)
{
    struct options o = options_of(argc, argv);
    struct k_opts how = {};
    struct err e = {};
    struct timer t = {};
    unsigned limit = 0;
    how.precision = K_BF16;
    t.d = K->open(&how, &e);
    if (!t.d)
        fail(NO_DEVICE, "%s", e.msg);
    open_nvml(t.d);
    for (int i = 0; i < AHEAD; i++)
        if (cudaEventCreate(&t.from[i]) || cudaEventCreate(&t.to[i]))
            sync(t.d);
    t.sums = buffer(t.d, 2 * sizeof(unsigned long long));
    t.idle = idle_watts();
    nvml.limit(nvml.device, &limit);
    printf("# %s%s%s; CUTLASS %s; idle %.0f W, limit %.0f W\n", K->about(t.d),
           t.d->restricted ? " as " : "", t.d->restricted ? getenv("AERIE_GPU_AS") : "",
           cutlass_version, t.idle, limit * 1e-3);
    if (o.shapes.empty())
        for (const struct shape &s : shapes)
            o.shapes.push_back(&s);
    for (const struct shape *s : o.shapes)
        measure(t, o, *s);
    K->release(t.d, t.sums);
    K->close(t.d);
    return 0;
}
