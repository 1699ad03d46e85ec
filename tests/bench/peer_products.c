/* peer_products.c - products of many rows on the CPU: aerie's linear(), a library's sgemm, or a
 * loop of independent multiply-adds. peer_products.py runs it and prints the table.
 *
 *   peer_products aerie|LIBRARY.so|peak THREADS CALLS ISA SHAPE...
 *
 * SHAPE: OUTxINxROWS:TYPE, as in 1152x6912x256:Q4_0. ISA, of aerie and the peak: avx2 or avx512;
 * "": the best of this machine.
 *
 * Prints the device, then for each shape the GFLOP/s of the best of CALLS calls, behind one call
 * that is not timed; of the peak one line. A single thread is timed by its processor time, several
 * threads by the clock. A library multiplies the same weights in float32, and takes the number of
 * its threads from its own environment variables. Of each result some elements are compared with
 * sums in double precision; a wrong one ends the program with status 1.
 */
#include "tests/kernel_cases.h"
#include "kernels/cpu/cpu.h"
#include "kernels/packed.h"

#include <dlfcn.h>
#include <stdio.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static struct case_dev D;
static int n_threads, n_calls;

/* ---- time ------------------------------------------------------------------------------------ */

static double now(void)
{
    struct timespec t;
    clock_gettime(n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double best(void (*run)(void *arg), void *arg)
{
    double least = INFINITY;
    run(arg);
    for (int i = 0; i < n_calls; i++) {
        double start = now();
        run(arg);
        least = fmin(least, now() - start);
    }
    return least;
}

/* ---- the peak -------------------------------------------------------------------------------- */

enum { STEPS = 1 << 19, CHAINS = 12 }; /* a processor has at most 10 multiply-adds in flight */

#if defined(__x86_64__)
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define BEGIN(i) a##i = m,
#define STEP(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+v"(a##i) : "v"(m), "v"(c));

#define CHAINS_OF(name, isa, type, set)                                                         \
    __attribute__((target(isa))) static void name(void *arg, int item, int thread)              \
    {                                                                                           \
        (void)arg, (void)item, (void)thread;                                                    \
        const type m = set(.999f), c = set(.001f);                                              \
        type EACH(BEGIN) end = m;                                                               \
        for (int k = 0; k < STEPS; k++) {                                                       \
            EACH(STEP)                                                                          \
        }                                                                                       \
        (void)end;                                                                              \
    }
CHAINS_OF(chains_avx512, "avx512f", __m512, _mm512_set1_ps)
CHAINS_OF(chains_avx2, "avx2,fma", __m256, _mm256_set1_ps)

static void all_chains(void *arg)
{
    cpu_each(D.d, n_threads, 1e9, *(bool *)arg ? chains_avx512 : chains_avx2, NULL);
}
#endif

static int print_peak(void)
{
#if defined(__x86_64__)
    bool wide = !strcmp(D.d->isa->name, "avx512");
    if (wide || !strcmp(D.d->isa->name, "avx2")) {
        double flops = 2. * STEPS * CHAINS * (wide ? 16 : 8) * n_threads;
        printf("peak %.1f\n", flops / best(all_chains, &wide) * 1e-9);
        return 0;
    }
#endif
    fprintf(stderr, "peer_products: no loop of multiply-adds for %s\n", D.d->isa->name);
    return 1;
}

/* ---- products -------------------------------------------------------------------------------- */

struct product {
    struct tensor w;
    int rows, in, out;
    kbuf x, y;         /* (rows, in), (rows, out) */
    const float *wide; /* the weights in float32, as products take them */
};

static void ours(void *arg)
{
    const struct product *p = arg;
    D.k->linear(D.d, &(struct k_linear){.rows = p->rows, .src_stride = p->in, .src = p->x,
                                        .w = &p->w, .scale = 1, .dst = p->y});
}

/* A library's sgemm, in one of three conventions; row-major, w transposed. */
enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };
static int (*dnnl)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
static void (*cblas)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                     int lda, const float *b, int ldb, float beta, float *c, int ldc);
static void (*cblas64)(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha,
                       const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                       float *c, int64_t ldc);

static void theirs(void *arg)
{
    const struct product *p = arg;
    int m = p->rows, n = p->out, k = p->in;
    if (dnnl)
        CHECK(!dnnl('N', 'T', m, n, k, 1, p->x.p, k, p->wide, k, 0, p->y.p, n));
    else if (cblas64)
        cblas64(ROW_MAJOR, AS_IS, TRANSPOSED, m, n, k, 1, p->x.p, k, p->wide, k, 0, p->y.p, n);
    else
        cblas(ROW_MAJOR, AS_IS, TRANSPOSED, m, n, k, 1, p->x.p, k, p->wide, k, 0, p->y.p, n);
}

static void open_library(const char *path)
{
    void *so = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!so)
        die("%s", dlerror());
    *(void **)&dnnl = dlsym(so, "dnnl_sgemm");
    *(void **)&cblas64 = dlsym(so, "scipy_cblas_sgemm64_"); /* OpenBLAS in wheels of numpy */
    *(void **)&cblas = dlsym(so, "cblas_sgemm");
    if (!dnnl && !cblas64 && !cblas)
        die("%s has no sgemm", path);
}

static float *huge_floats(size_t n) /* in huge pages, as synthetic weights are */
{
    enum { HUGE_PAGE = 2 << 20 };
    size_t bytes = (n * sizeof(float) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    float *p = aligned_alloc(HUGE_PAGE, bytes);
    CHECK(p);
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void parse(const char *shape, struct product *p)
{
    char type[16];
    if (sscanf(shape, "%dx%dx%d:%15s", &p->out, &p->in, &p->rows, type) != 4 || p->out < 1 ||
        p->in < 1 || p->rows < 1)
        die("%s: expected OUTxINxROWS:TYPE", shape);
    p->w = (struct tensor){.n_dim = 2, .dim = {p->out, p->in}, .name = shape};
    for (enum dtype t = DT_Q8_0; t <= DT_E2M1; t++)
        if (!strcasecmp(type, dtype_name(t)))
            p->w.type = t;
    if (!strcasecmp(type, "bf16"))
        p->w.type = DT_BF16;
    if (!dtype_bytes_fit(p->w.type, 2, p->w.dim, &p->w.bytes))
        die("%s: no weights of this shape and type", shape);
}

/* The worst error of some elements, in units of the deviation of all: rows and weights are of
 * deviation 1 and DEVIATION. */
#define DEVIATION 0x1p-6f
static double worst_error(const struct product *p)
{
    double worst = 0;
    const float *x = p->x.p, *y = p->y.p;
    for (int i = 0; i < 64; i++) {
        int r = rnd_int(p->rows), o = rnd_int(p->out);
        double sum = 0;
        for (int k = 0; k < p->in; k++)
            sum += (double)x[(size_t)r * (size_t)p->in + (size_t)k] *
                   (double)p->wide[(size_t)o * (size_t)p->in + (size_t)k];
        double off = fabs(sum - (double)y[(size_t)r * (size_t)p->out + (size_t)o]);
        worst = fmax(worst, off / (sqrt(p->in) * (double)DEVIATION));
    }
    return worst;
}

static int print_product(const char *shape, void (*run)(void *arg))
{
    struct product p;
    struct err e;
    parse(shape, &p);
    if (!D.k->synthesize(D.d, &p.w, 1, DEVIATION, &e))
        die("%s", e.msg);
    size_t n_x = (size_t)p.rows * (size_t)p.in;
    float *x = rnd_floats(n_x, 1), *wide = huge_floats((size_t)p.out * (size_t)p.in);
    for (int o = 0; o < p.out; o++) {
        size_t at = (size_t)o * (size_t)p.in;
        D.d->isa->widen(&p.w, at, p.in, 1, wide + at);
    }
    p.wide = wide;
    p.x = dev_buf(&D, x, n_x * sizeof *x);
    p.y = dev_buf(&D, NULL, (size_t)p.rows * (size_t)p.out * sizeof(float));
    double flops = 2. * p.out * p.in * p.rows;
    printf("%s %.1f\n", shape, flops / best(run, &p) * 1e-9);
    fflush(stdout);
    double off = worst_error(&p);
    dev_release(&D);
    free(x), free(wide);
    if (!(off < 1e-4)) {
        fprintf(stderr, "peer_products: %s: wrong result, off by %.1e\n", shape, off);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 5 || (n_threads = atoi(argv[2])) < 1 || (n_calls = atoi(argv[3])) < 1)
        die("usage: peer_products aerie|LIBRARY.so|peak THREADS CALLS ISA SHAPE...");
    const char *what = argv[1];
    dev_open(&D, &kernels_cpu, argv[4][0] ? argv[4] : NULL, n_threads);
    printf("%s\n", D.k->about(D.d));
    int rc = 0;
    if (!strcmp(what, "peak"))
        rc = print_peak();
    else if (strcmp(what, "aerie") != 0)
        open_library(what);
    for (int i = 5; i < argc && !rc; i++)
        rc = print_product(argv[i], strcmp(what, "aerie") ? theirs : ours);
    dev_close(&D);
    return rc;
}
