/* memory.c - memory of the CPU device, scratch memory, and copies of rows.
 *
 * A large buffer is a mapping of its own, and filling it writes nothing: the buffer then maps a
 * file in memory whose bytes are all 0xff, or fresh zeros, and a page of it takes memory when
 * something is first written there. Pools of KV cells, which start as NaN, so cost what is used of
 * them. A build with AddressSanitizer or -DKERNELS_POISON allocates with malloc() and fills new
 * memory with NaN.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/fp8.h"
#include "kernels/sanitizers.h"

#include <sys/mman.h>
#include <unistd.h>

#if HAS_ASAN && !defined(KERNELS_POISON)
#define KERNELS_POISON 1
#endif

enum {
    LARGE = 1 << 20,   /* bytes of a buffer that is a mapping of its own */
    ONES = 2 << 20,    /* least bytes of the file of ones */
    MAX_PIECES = 256,  /* mappings of the file that fill one buffer; a process has 65530 at most */
};

static bool is_large(size_t bytes)
{
#ifdef KERNELS_POISON
    (void)bytes;
    return false;
#else
    return bytes >= LARGE;
#endif
}

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *map_zeros(void *at, size_t bytes)
{
    void *p = mmap(at, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* A mapping takes memory when it is written, so the system grants one that can never be full. */
static bool exceeds_memory(size_t bytes)
{
    return bytes / page_size() > (size_t)sysconf(_SC_PHYS_PAGES);
}

kbuf cpu_alloc(struct kdev *, size_t bytes, const char *what, struct err *e)
{
    size_t rounded;
    void *p = NULL;
    if (exceeds_memory(bytes))
        return FAILED((kbuf){0}, e, ERR_MODEL, "out of memory: %s needs %zu bytes, the machine has "
                      "%zu", what, bytes, (size_t)sysconf(_SC_PHYS_PAGES) * page_size());
    if (is_large(bytes))
        p = map_zeros(NULL, bytes);
    else if (size_add(bytes, 63, &rounded))
        p = aligned_alloc(64, (rounded & ~(size_t)63) + (bytes ? 0 : 64));
    if (!p)
        return FAILED((kbuf){0}, e, ERR_MODEL, "out of memory: %s needs %zu bytes", what, bytes);
#ifdef KERNELS_POISON
    memset(p, 0xFF, bytes);
#endif
    return (kbuf){p, bytes};
}

void cpu_release(struct kdev *, kbuf b)
{
    if (b.p && is_large(b.n))
        munmap(b.p, b.n);
    else
        free(b.p);
}

void cpu_put(struct kdev *, kbuf dst, const void *src, size_t bytes)
{
    CHECK(bytes <= dst.n);
    if (bytes)
        memcpy(dst.p, src, bytes);
}

void cpu_get(struct kdev *, void *dst, kbuf src, size_t bytes)
{
    CHECK(bytes <= src.n);
    if (bytes)
        memcpy(dst, src.p, bytes);
}

/* ---- filling ---- */

void cpu_ones_close(struct cpu_ones *o)
{
    if (o->fd >= 0)
        close(o->fd);
    *o = (struct cpu_ones){.fd = -1};
}

/* Makes the file at least `bytes` long; false: the system refuses. */
static bool ones_make(struct cpu_ones *o, size_t bytes)
{
    enum { BLOCK = 64 << 10 };
    if (o->fd < 0)
        o->fd = memfd_create("ones", MFD_CLOEXEC);
    if (o->fd < 0)
        return false;
    FREED(free_at) char *block = memset(xmalloc(BLOCK), 0xff, BLOCK);
    while (o->bytes < bytes && pwrite(o->fd, block, BLOCK, (off_t)o->bytes) == BLOCK)
        o->bytes += BLOCK;
    return o->bytes >= bytes;
}

/* Maps the file over [p, p + n), whole pages. Returns how many of the first bytes now are ones. */
static size_t map_ones(struct cpu_ones *o, char *p, size_t n)
{
    size_t each = ONES, done = 0;
    while (each < n / MAX_PIECES)
        each *= 2;
    if (!ones_make(o, each))
        return 0;
    for (size_t len; done < n; done += len) {
        len = n - done < each ? n - done : each;
        if (mmap(p + done, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED,
                 o->fd, 0) == MAP_FAILED)
            return done;
    }
    return n;
}

void cpu_fill(struct kdev *d, kbuf dst, uint8_t byte)
{
    char *p = dst.p, *end = p + dst.n;
    if (is_large(dst.n) && (byte == 0xff || byte == 0)) {
        size_t page = page_size(), head = -(size_t)(uintptr_t)p & (page - 1);
        size_t whole = (dst.n - head) & ~(page - 1);
        memset(p, byte, head);
        p += head;
        p += byte ? map_ones(&d->ones, p, whole) : map_zeros(p, whole) ? whole : 0;
    }
    if (p < end)
        memset(p, byte, (size_t)(end - p));
}

void *cpu_scratch(struct kdev *d, enum cpu_scratch_use which, size_t n, size_t size)
{
    size_t bytes;
    CHECK(size_mul(n, size, &bytes));
    if (bytes > d->scratch[which].n) {
        free(d->scratch[which].p);
        size_t grown = bytes + bytes / 4 + 4096;
        d->scratch[which].p = xaligned(grown);
        d->scratch[which].n = grown;
    }
    return d->scratch[which].p;
}

/* On the CPU a quantized matrix remains bf16, with the weights rounded to FP8 values (fp8.h). */
bool cpu_upload(struct kdev *, struct tensor *t, struct err *e)
{
    if (!t->quantize)
        return true;
    uint16_t *w = t->data, largest = 0;
    size_t n = t->bytes / sizeof *w;
    for (size_t i = 0; i < n; i++)
        largest = (w[i] & 0x7fff) > largest ? w[i] & 0x7fff : largest;
    if (largest >= FP8_NOT_FINITE)
        return err_set(e, ERR_MODEL, FP8_REFUSED, t->name);
    t->unit = fp8_unit(largest);
    for (size_t i = 0; i < n; i++)
        w[i] = fp8_value(fp8_of(w[i], t->unit), t->unit);
    return true;
}

/* Weights lie in the memory of the model's files, or synthetic ones with the device. */
void cpu_unload(struct kdev *, struct tensor *)
{
}

void cpu_rows(struct kdev *, const struct k_rows *a)
{
    size_t ss = (size_t)cpu_stride(a->src_stride, a->n);
    size_t ds = (size_t)cpu_stride(a->dst_stride, a->n), n = (size_t)a->n;
    float *dst = cpu_f32(a->dst, cpu_span(a->rows, (int)ds, a->n));
    const int32_t *idx = a->idx.p ? cpu_i32(a->idx, (size_t)a->rows) : NULL;
    for (int r = 0; r < a->rows; r++) {
        CHECK(!idx || idx[r] >= 0);
        size_t from = (size_t)(idx ? idx[r] : r) * ss;
        memmove(dst + (size_t)r * ds, cpu_f32(a->src, from + n) + from, n * sizeof(float));
    }
}
