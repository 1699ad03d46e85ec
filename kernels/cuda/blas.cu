/* blas.cu - matrix products by cuBLASLt, as a yardstick for the benchmark.
 *
 * The program neither links the library nor needs its header. The library is loaded at the first
 * use, from the file that the caller names or under its usual names, and stays loaded as long as
 * the process lives. The declarations here are the part of its binary interface that versions 12
 * and 13 share. If loading or describing the product fails, *e is set and nothing is launched; a
 * failed launch is kept by the device as any other failure.
 */
#include "kernels/cuda/cuda.h"

#include <dlfcn.h>

/* ---- the library's interface ---------------------------------------------------------------- */

typedef int status;               /* 0: success */
typedef struct blas_any *opaque; /* a handle, descriptor, layout or preference */

enum {
    TYPE_F32 = 0, TYPE_BF16 = 14, SUMS_F32 = 68,
    DESC_TRANS_A = 3, TRANSPOSED = 1,
    LAYOUT_BATCH = 5, LAYOUT_STRIDE = 6,
    PREF_WORKSPACE = 1,
};

struct heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    status state;
    float waves;
    int reserved[4];
};

struct blas {
    void *file;
    opaque handle;
    size_t (*version)(void);
    status (*create)(opaque *handle);
    status (*desc_create)(opaque *desc, int sums, int scale_type);
    status (*desc_set)(opaque desc, int what, const void *v, size_t n);
    status (*desc_destroy)(opaque desc);
    status (*layout_create)(opaque *layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    status (*layout_set)(opaque layout, int what, const void *v, size_t n);
    status (*layout_destroy)(opaque layout);
    status (*pref_create)(opaque *pref);
    status (*pref_set)(opaque pref, int what, const void *v, size_t n);
    status (*pref_destroy)(opaque pref);
    status (*get_heuristic)(opaque handle, opaque desc, opaque a, opaque b, opaque c, opaque d,
                            opaque pref, int most, struct heuristic *out, int *n);
    status (*multiply)(opaque handle, opaque desc, const void *alpha, const void *a, opaque la,
                       const void *b, opaque lb, const void *beta, const void *c, opaque lc,
                       void *d, opaque ld, const uint64_t *algorithm, void *workspace, size_t n,
                       cudaStream_t stream);
};

static struct blas blas;

static bool find_functions(struct blas *b, const char **missing)
{
    const struct {
        const char *name;
        void *to;
    } all[] = {
        {"cublasLtGetVersion", &b->version},
        {"cublasLtCreate", &b->create},
        {"cublasLtMatmulDescCreate", &b->desc_create},
        {"cublasLtMatmulDescSetAttribute", &b->desc_set},
        {"cublasLtMatmulDescDestroy", &b->desc_destroy},
        {"cublasLtMatrixLayoutCreate", &b->layout_create},
        {"cublasLtMatrixLayoutSetAttribute", &b->layout_set},
        {"cublasLtMatrixLayoutDestroy", &b->layout_destroy},
        {"cublasLtMatmulPreferenceCreate", &b->pref_create},
        {"cublasLtMatmulPreferenceSetAttribute", &b->pref_set},
        {"cublasLtMatmulPreferenceDestroy", &b->pref_destroy},
        {"cublasLtMatmulAlgoGetHeuristic", &b->get_heuristic},
        {"cublasLtMatmul", &b->multiply},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *p = dlsym(b->file, all[i].name);
        *missing = all[i].name;
        if (!p)
            return false;
        memcpy(all[i].to, &p, sizeof p);
    }
    return true;
}

static bool open_library(struct blas *b, const char *library, struct err *e)
{
    static const char *const usual[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    const char *missing;
    if (b->handle)
        return true;
    if (library)
        b->file = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 2 && !library && !b->file; i++)
        b->file = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
    if (!b->file)
        return library ? err_set(e, ERR_MODEL, "cannot load %.200s: %.200s", library, dlerror())
                       : err_set(e, ERR_MODEL, "no cuBLASLt was found (--cublas FILE)");
    status rc = 0;
    bool ok = find_functions(b, &missing) ||
              err_set(e, ERR_MODEL, "this cuBLASLt has no %s", missing);
    if (ok && (rc = b->create(&b->handle)) != 0)
        ok = err_set(e, ERR_MODEL, "cuBLASLt cannot start: status %d", rc);
    if (!ok) {
        dlclose(b->file);
        *b = (struct blas){};
    }
    return ok;
}

/* ---- one product ----------------------------------------------------------------------------- */

enum { MAX_CHOICES = 8, WORKSPACE = 64 << 20 };

/* The library's matrices are column-major: a row-major (out, in) matrix is its (in, out). So the
 * product here is transpose(w) (in, out) times src (in, rows), which gives dst (out, rows). */
struct multiplication {
    opaque desc, pref, w, src, dst;
};

static status make_layout(opaque *l, int rows, int cols, int batch)
{
    int64_t stride = (int64_t)rows * cols;
    TRY(blas.layout_create(l, TYPE_BF16, (uint64_t)rows, (uint64_t)cols, rows));
    TRY(blas.layout_set(*l, LAYOUT_BATCH, &batch, sizeof batch));
    return blas.layout_set(*l, LAYOUT_STRIDE, &stride, sizeof stride);
}

static status describe(struct multiplication *m, const struct k_peer *a)
{
    int transposed = TRANSPOSED;
    size_t workspace = WORKSPACE;
    TRY(blas.desc_create(&m->desc, SUMS_F32, TYPE_F32));
    TRY(blas.desc_set(m->desc, DESC_TRANS_A, &transposed, sizeof transposed));
    TRY(blas.pref_create(&m->pref));
    TRY(blas.pref_set(m->pref, PREF_WORKSPACE, &workspace, sizeof workspace));
    TRY(make_layout(&m->w, a->in, a->out, a->batch));
    TRY(make_layout(&m->src, a->in, a->rows, a->batch));
    return make_layout(&m->dst, a->out, a->rows, a->batch);
}

static void destroy(struct multiplication *m)
{
    opaque layout[] = {m->w, m->src, m->dst};
    for (int i = 0; i < 3; i++)
        if (layout[i])
            blas.layout_destroy(layout[i]);
    if (m->desc)
        blas.desc_destroy(m->desc);
    if (m->pref)
        blas.pref_destroy(m->pref);
}

static void multiply(struct kdev *d, const struct multiplication *m, const struct k_peer *a,
                     const struct heuristic *p)
{
    const float one = 1, zero = 0;
    char why[64];
    if (d->failed)
        return;
    status rc = blas.multiply(blas.handle, m->desc, &one, a->w.p, m->w, a->src.p, m->src, &zero,
                              a->dst.p, m->dst, a->dst.p, m->dst, p->algorithm,
                              cuda_take(d, WORKSPACE), WORKSPACE, d->stream);
    snprintf(why, sizeof why, "cuBLASLt: status %d", rc);
    if (rc)
        cuda_fail(d, why);
}

int cuda_peer(struct kdev *d, const struct k_peer *a, struct err *e)
{
    struct heuristic choice[MAX_CHOICES];
    struct multiplication m = {};
    size_t n = (size_t)a->batch * 2;
    int count = 0;
    cuda_begin(d, "peer");
    CHECK(a->src.n >= n * (size_t)a->rows * (size_t)a->in && a->choice >= 0 &&
          a->w.n >= n * (size_t)a->out * (size_t)a->in &&
          a->dst.n >= n * (size_t)a->rows * (size_t)a->out);
    if (!open_library(&blas, a->library, e))
        return 0;
    status rc = describe(&m, a);
    if (rc == 0)
        rc = blas.get_heuristic(blas.handle, m.desc, m.w, m.src, m.dst, m.dst, m.pref, MAX_CHOICES,
                          choice, &count);
    if (rc || count == 0)
        err_set(e, ERR_MODEL, "cuBLASLt %zu does not multiply (%d, %d) by (%d, %d): status %d",
                blas.version(), a->rows, a->in, a->out, a->in, rc);
    else if (a->choice < count)
        multiply(d, &m, a, &choice[a->choice]);
    destroy(&m);
    return rc ? 0 : count;
}
