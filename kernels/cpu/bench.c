/* bench.c - operations for benchmarks: synthetic weights (the same values on every device), reading
 * and copying memory with all threads, and empty phases.
 */
#include "kernels/cpu/cpu.h"

#include <sys/mman.h>

/* ---- synthetic weights ----------------------------------------------------------------------- */

enum { PART = 1 << 18 }; /* bytes of an item */
static const size_t HUGE_PAGE = (size_t)2 << 20;

struct synthesis {
    struct tensor *t;
    uint64_t seed;
    float step, scale;
    int exponent;
};

static void put_value(const struct tensor *t, size_t i, float v)
{
    if (t->type == DT_BF16)
        ((uint16_t *)t->data)[i] = f32_to_bf16(v);
    else
        ((float *)t->data)[i] = v;
}

/* Generates elements [first, first + n): four uniformly distributed values from each random
 * word. */
static void synthesize_floats(const struct synthesis *m, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++) {
        uint64_t word = mix64(m->seed + i / 4);
        float v = (float)(int16_t)(word >> (16 * (i % 4))) * m->step;
        put_value(m->t, i, m->step == 0 ? 1 : v);
    }
}

static void synthesize_bytes(const struct synthesis *m, size_t first, size_t n)
{
    uint8_t *dst = m->t->data;
    for (size_t i = first; i < first + n; i++) {
        uint8_t byte = (uint8_t)(mix64(m->seed + i / 8) >> (8 * (i % 8)));
        dst[i] = m->exponent ? (uint8_t)(m->exponent - (byte & 1)) : byte;
    }
}

/* Bytes of an element, or of a block. */
static size_t unit_of(const struct tensor *t)
{
    return dtype_packed(t->type) ? (size_t)packed_format(t->type)->bytes : dtype_size(t->type);
}

static void synthesize_part(void *arg, int item, int)
{
    const struct synthesis *m = arg;
    size_t size = unit_of(m->t), each = PART / size, all = m->t->bytes / size;
    size_t first = (size_t)item * each, n = all - first < each ? all - first : each;
    if (dtype_packed(m->t->type))
        packed_random(m->t->type, m->seed, m->scale, first, n,
                      (uint8_t *)m->t->data + first * size);
    else
        (m->t->type == DT_U8 ? synthesize_bytes : synthesize_floats)(m, first, n);
}

bool cpu_synthesize(struct kdev *d, struct tensor *t, uint64_t seed, float scale, struct err *e)
{
    CHECK(!t->data &&
          (t->type == DT_U8 || t->type == DT_BF16 || t->type == DT_F32 || dtype_packed(t->type)));
    size_t align = t->bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : 64;
    void *p = aligned_alloc(align, (t->bytes + align - 1) & ~(align - 1));
    if (!p)
        return err_set(e, ERR_MODEL, "out of memory: %s needs %zu bytes", t->name, t->bytes);
    if (align == HUGE_PAGE)
        madvise(p, t->bytes, MADV_HUGEPAGE); /* as a checkpoint's weights have */
    struct synthesis m = {t, seed, synthetic_step(scale), scale,
                          t->type == DT_U8 && t->n_dim == 3 ? synthetic_exponent(scale) : 0};
    t->data = p;
    size_t each = PART / unit_of(t), all = t->bytes / unit_of(t);
    cpu_each(d, (int)((all + each - 1) / each), PART, synthesize_part, &m);
    *APPEND(d->synthesized, d->n_synthesized) = p;
    return cpu_upload(d, t, e);
}

/* ---- memory bandwidth ------------------------------------------------------------------------ */

/* 64 bytes, which the compiler loads with the widest instructions of the target. */
typedef uint64_t wide __attribute__((vector_size(64), aligned(8), may_alias));

static inline __attribute__((always_inline)) uint64_t read_wide(const char *p, size_t n)
{
    wide sum[8] = {{0}};
    for (size_t i = 0; i + 512 <= n; i += 512)
        for (int k = 0; k < 8; k++)
            sum[k] ^= *(const wide *)(p + i + mul64(64, k));
    uint64_t all = 0;
    for (int k = 0; k < 8; k++)
        for (int j = 0; j < 8; j++)
            all ^= sum[k][j];
    return all;
}

/* The version is chosen at each call, not by target_clones, whose resolvers run in the loader,
 * before a sanitizer is initialised. */
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static uint64_t read_avx512(const char *p, size_t n)
{
    return read_wide(p, n);
}

__attribute__((target("avx2"))) static uint64_t read_avx2(const char *p, size_t n)
{
    return read_wide(p, n);
}
#endif

static uint64_t read_part(const char *p, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return read_avx512(p, n);
    if (__builtin_cpu_supports("avx2"))
        return read_avx2(p, n);
#endif
    return read_wide(p, n);
}

struct stream_run {
    const char *src;
    char *dst; /* NULL: src is only read */
    size_t n, each;
};

static void stream_part(void *arg, int item, int)
{
    const struct stream_run *s = arg;
    size_t at = (size_t)item * s->each, n = s->n - at < s->each ? s->n - at : s->each;
    if (s->dst)
        memcpy(s->dst + at, s->src + at, n);
    else
        __asm__ volatile("" : : "r"(read_part(s->src + at, n)));
}

void cpu_stream(struct kdev *d, kbuf src, kbuf dst)
{
    CHECK(!dst.p || dst.n >= src.n);
    struct stream_run s = {src.p, dst.p, src.n, PART};
    cpu_each(d, (int)((src.n + PART - 1) / PART), PART, stream_part, &s);
}

/* ---- phases ---------------------------------------------------------------------------------- */

static void nothing(void *, int, int)
{
}

bool cpu_phase(struct kdev *d, enum k_phase kind, int n)
{
    for (int i = 0; i < n && kind == PHASE_LAUNCH; i++)
        cpu_each(d, d->threads, 1e9, nothing, NULL);
    return kind == PHASE_LAUNCH;
}

/* ---- products by a vendor's library: none on the CPU ----------------------------------------- */

int cpu_peer(struct kdev *, const struct k_peer *, struct err *e)
{
    return FAILED(0, e, ERR_MODEL, "the CPU has no library to compare with");
}
