/* standin.c - a stand-in of the CUDA runtime, for the host's half of the CUDA backend on a machine
 * without a GPU. A test linked with it in place of libcudart runs the same object files as the
 * program. Kernels do not run; every call is checked against what NVIDIA's documentation requires
 * of it, and a call that breaks a rule fails as it would on a device, and is kept for the test
 * (standin_wrong()).
 *
 * The device is an H200 (9.0), or has the limits of the class that AERIE_GPU_AS names. Device
 * memory is a range of addresses that the host can neither read nor write; its contents lie
 * `memory - device` bytes away (standin_memory()). Addresses are not used twice while anything is
 * allocated, so that pointers to freed memory are found, and are aligned to the 256 bytes that the
 * runtime promises and to no more.
 *
 * What a launch needs to know of a kernel is read from the machine code in the program, an ELF file
 * for each source file: registers, static shared memory, the launch bound, and place and size of
 * each parameter. Every parameter is searched for addresses of the device (address_in()).
 *
 * If a test fails or crashes inside a call, the next call ends the process with a line that names
 * the kernel of the first (lock()).
 *
 * Not seen: what kernels do, whether the host waits where it must, and the order of two streams.
 */
#include "tests/cuda/standin.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <elf.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SPAN ((size_t)1 << 38) /* addresses of the device */
#define TOTAL ((size_t)141 << 30)
enum {
    SM = 90,           /* whose machine code is read */
    FIRST = (1 << 20) + 256, /* the offset of the first allocation */
    GAP = 1 << 16,     /* at least so many bytes between two allocations */
    PAGE = 4096,
    BIG = 1 << 20,     /* more bytes are not copied or filled: execute() */
    REGISTERS = 1 << 16, DEFAULT_SHARED = 48 << 10, /* of a block */
    MAX_KERNELS = 1 << 13, MAX_OBJECTS = 1 << 12, MAX_EFFECTS = 8,
};

/* ---- limits of a class of GPUs: the tables of the CUDA C++ programming guide ----------------- */

static const struct class_of_gpus {
    const char *name;
    int major, block_kib, sm_kib, warps, blocks, n_sm; /* block_kib: of shared memory, of a block */
} classes[] = {
    {"9.0", 9, 227, 228, 64, 32, 132}, {"8.0", 8, 163, 164, 64, 32, 108},
    {"8.6", 8, 99, 100, 48, 16, 82},   {"12.0", 12, 99, 100, 48, 24, 170},
}, *gpu = classes;

/* ---- what the test sees ---------------------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static struct standin_counts counts;
static char wrongs[4096], told[sizeof wrongs];
static size_t wrongs_at;
static int fail_in;
static bool did_fail, broken; /* broken: a stream has failed, and stays so */
static struct effect {
    const char *part;
    void (*run)(void *const *args);
} effects[MAX_EFFECTS];
static _Thread_local cudaError_t last;

/* The call that the thread is in: its kernel, or "a call of the runtime". NULL: none. */
static _Thread_local const char *inside;

/* Takes the mutex. cmocka leaves a test that fails or crashes by longjmp() and goes on with its
 * teardown. Inside a call the mutex is then still locked, and the state half changed. */
static void lock(void)
{
    if (inside) {
        fprintf(stderr, "standin: the test failed or crashed in %s, which did not return\n",
                inside);
        abort();
    }
    pthread_mutex_lock(&mutex);
}

static cudaError_t failed(cudaError_t rc)
{
    if (rc != cudaSuccess)
        last = rc;
    return rc;
}

/* Keeps a line about a broken rule. */
__attribute__((format(printf, 2, 3))) static cudaError_t wrong(cudaError_t rc, const char *f, ...)
{
    if (wrongs_at + 600 < sizeof wrongs) {
        va_list args;
        va_start(args, f);
        const int n = vsnprintf(wrongs + wrongs_at, 500, f, args);
        va_end(args);
        wrongs_at += (size_t)(n < 500 ? n : 499);
        wrongs_at += (size_t)sprintf(wrongs + wrongs_at, "\n");
    }
    return failed(rc);
}

const char *standin_wrong(void)
{
    lock();
    memcpy(told, wrongs, sizeof told);
    wrongs[wrongs_at = 0] = '\0';
    pthread_mutex_unlock(&mutex);
    return told;
}

struct standin_counts standin_counts(void)
{
    lock();
    const struct standin_counts c = counts;
    pthread_mutex_unlock(&mutex);
    return c;
}

void standin_fail(int n)
{
    lock();
    fail_in = n, did_fail = broken = false;
    pthread_mutex_unlock(&mutex);
}

bool standin_failed(void) { return did_fail; }

void standin_effect(const char *part, void (*run)(void *const *args))
{
    int i = 0;
    while (effects[i].part)
        i++;
    effects[i] = (struct effect){part, run};
}

/* Begins a call: takes the mutex. A call that can fail does, if it is its turn. */
static bool begins(bool can_fail)
{
    lock();
    inside = "a call of the runtime";
    const bool now = can_fail && fail_in > 0 && --fail_in == 0;
    did_fail |= now;
    return !now;
}
static cudaError_t ends(cudaError_t rc)
{
    inside = NULL;
    pthread_mutex_unlock(&mutex);
    return rc;
}
#define CALL(error)                   \
    do {                              \
        if (!begins(true))            \
            return ends(failed(error)); \
    } while (0)

/* ---- memory ---------------------------------------------------------------------------------- */

/* Allocations in the order of their addresses; pinned ones, whose addresses the C library chooses,
 * in any order. */
struct list {
    struct range {
        char *at;
        size_t n;
    } *range;
    int n, cap;
};
static struct list live, pinned;
static char *device, *memory;
static size_t next = FIRST, used;

static void add(struct list *l, char *at, size_t n)
{
    if (l->n == l->cap)
        l->range = realloc(l->range, (size_t)(l->cap = l->cap * 2 + 64) * sizeof *l->range);
    l->range[l->n++] = (struct range){at, n};
}

/* The last range that begins at p or before it; -1: none. */
static int before(const struct list *l, const char *p)
{
    int lo = -1, hi = l->n;
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        *(l->range[mid].at <= p ? &lo : &hi) = mid;
    }
    return lo;
}

/* The range at exactly p; -1: none. */
static int exactly(const struct list *l, const void *p)
{
    int i = 0;
    while (i < l->n && l->range[i].at != p)
        i++;
    return i < l->n ? i : -1;
}

static void take_out(struct list *l, int i)
{
    memmove(l->range + i, l->range + i + 1, (size_t)(--l->n - i) * sizeof *l->range);
}

static void map_memory(void)
{
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (device)
        return;
    device = mmap((void *)0x6d1100000000, SPAN, PROT_NONE, how | MAP_FIXED_NOREPLACE, -1, 0);
    memory = mmap(NULL, SPAN, PROT_READ | PROT_WRITE, how, -1, 0);
    if (device == MAP_FAILED || memory == MAP_FAILED) {
        fprintf(stderr, "standin: no address space\n");
        abort();
    }
}

static bool on_device(const void *p)
{
    return (const char *)p >= device && (const char *)p < device + SPAN;
}

/* Whether n bytes from p on, an address of the device, are in one allocation. */
static bool allocated(const void *p, size_t n)
{
    const int i = before(&live, p);
    if (i < 0)
        return false;
    const size_t off = (size_t)((const char *)p - live.range[i].at);
    return off <= live.range[i].n && n <= live.range[i].n - off;
}

/* The same of any address: pageable memory of the host is not known. */
static bool readable(const void *p, size_t n)
{
    if (on_device(p))
        return allocated(p, n);
    for (int i = 0; i < pinned.n; i++) {
        const struct range *r = &pinned.range[i];
        const size_t off = (size_t)((const char *)p - r->at);
        if ((const char *)p >= r->at && off < r->n)
            return n <= r->n - off;
    }
    return p != NULL;
}

static char *contents(const void *p)
{
    return on_device(p) ? memory + ((const char *)p - device) : (char *)(uintptr_t)p;
}

void *standin_memory(const void *p, size_t n)
{
    if (!readable(p, n))
        wrong(cudaErrorIllegalAddress, "a kernel reads or writes %zu bytes at %p, which are not "
                                       "allocated", n, p);
    return contents(p);
}

/* ---- streams, events and graphs -------------------------------------------------------------- */

enum kind { STREAM = 1, EVENT, GRAPH, EXEC, KINDS };
static const char *const kind_name[KINDS] = {"", "stream", "event", "graph", "graph to run"};

/* A launch, a copy or a fill of a graph. */
struct node {
    struct kernel *kernel; /* NULL: a copy, or without src a fill */
    char *params;          /* as of the kernel's struct param; the node owns them */
    void *dst;
    const void *src;
    size_t n;
    int value;
};
struct object {
    enum kind kind;
    bool capturing; /* a stream */
    pthread_t by;   /* who began the capture */
    int n, cap;
    struct node *node; /* a graph, or a stream that captures one */
};
static struct object *objects[MAX_OBJECTS];
static int n_objects;

static struct object *make(enum kind kind)
{
    if (n_objects == MAX_OBJECTS) {
        fprintf(stderr, "standin: too many objects\n");
        abort();
    }
    struct object *o = objects[n_objects++] = calloc(1, sizeof *o);
    o->kind = kind;
    return o;
}

/* The object of a handle; NULL, and a broken rule: there is none of that kind. */
static struct object *find(enum kind kind, const void *handle)
{
    for (int i = 0; i < n_objects; i++)
        if (objects[i] == handle && objects[i]->kind == kind)
            return objects[i];
    wrong(cudaErrorInvalidResourceHandle, "not a %s: %p", kind_name[kind], handle);
    return NULL;
}

static void free_nodes(struct object *o)
{
    for (int i = 0; i < o->n; i++)
        free(o->node[i].params);
    free(o->node);
}

static cudaError_t destroy(enum kind kind, void *handle)
{
    struct object *o = find(kind, handle);
    if (!o)
        return cudaErrorInvalidResourceHandle;
    if (o->capturing)
        wrong(cudaErrorStreamCaptureUnsupported, "a stream is destroyed that captures");
    for (int i = 0; i < n_objects; i++)
        if (objects[i] == o)
            objects[i] = objects[--n_objects];
    free_nodes(o);
    free(o);
    return cudaSuccess;
}

/* A call that a thread must not make while it captures. */
static bool forbidden(const char *call)
{
    for (int i = 0; i < n_objects; i++)
        if (objects[i]->capturing && pthread_equal(objects[i]->by, pthread_self())) {
            wrong(cudaErrorStreamCaptureUnsupported, "%s while the thread captures", call);
            return true;
        }
    return false;
}

const char *standin_left(void)
{
    static char text[200];
    int n[KINDS] = {0};
    lock();
    for (int i = 0; i < n_objects; i++)
        n[objects[i]->kind]++;
    text[0] = '\0';
    if (live.n || pinned.n || n_objects)
        snprintf(text, sizeof text,
                 "%zu bytes in %d allocations, %d pinned, %d streams, %d events, %d graphs", used,
                 live.n, pinned.n, n[STREAM], n[EVENT], n[GRAPH] + n[EXEC]);
    pthread_mutex_unlock(&mutex);
    return text;
}

/* ---- kernels --------------------------------------------------------------------------------- */

struct param {
    int at, size;
};
struct kernel {
    const void *host; /* the address by which the host names it; NULL: a free entry */
    const char *name;
    const void *code; /* the ELF file; NULL: none for SM */
    bool read;        /* what follows was read from it */
    int registers, fixed /* static shared memory */, most /* threads */, n_params;
    struct param *param;
    size_t size; /* of all parameters */
    int dynamic; /* dynamic shared memory that was allowed; -1: the default */
    unsigned long launches;
    void (*effect)(void *const *args);
};
static struct kernel kernels[MAX_KERNELS];

static struct kernel *entry(const void *host)
{
    size_t i = (uintptr_t)host / 16 % MAX_KERNELS;
    while (kernels[i].host && kernels[i].host != host)
        i = (i + 1) % MAX_KERNELS;
    return &kernels[i];
}

/* The machine code for SM in what a source file registers: a word that says what it is, and behind
 * it the address of ELF files and PTX with a header whose second word is the length. */
static const void *find_code(const void *registered)
{
    const char *all = ((const void *const *)registered)[1];
    size_t n = ((const uint64_t *)all)[1] + 16;
    for (size_t i = 0; i + sizeof(Elf64_Ehdr) <= n; i += 8) {
        const Elf64_Ehdr *h = (const void *)(all + i);
        if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 || h->e_machine != EM_CUDA)
            continue;
        /* where the architecture is changed with CUDA 13 */
        if ((h->e_flags >> (h->e_ident[EI_ABIVERSION] >= 8 ? 8 : 0) & 0xff) == SM)
            return h;
    }
    return NULL;
}

/* One attribute of a section of attributes: its form, its code, and a value, or with FORM_BYTES the
 * length of what follows. */
struct attribute {
    uint8_t form, code;
    uint16_t value;
};
enum {
    FORM_BYTES = 4,
    MAX_THREADS = 0x05, REQUIRED_THREADS = 0x10, PARAMETER = 0x17, REGISTER_COUNT = 0x2f,
    RESERVED_SHARED = 1024, /* of the system, at the front of a block's shared memory */
};

static void read_attribute(struct kernel *k, const struct attribute *a, const char *symbol_name)
{
    const uint32_t *word = (const void *)(a + 1);
    if (a->code == MAX_THREADS || a->code == REQUIRED_THREADS) {
        k->most = (int)(word[0] * word[1] * word[2]);
    } else if (a->code == PARAMETER) { /* number and place, 16 bits each; size from bit 18 on */
        const int i = (int)(word[1] & 0xffff), at = (int)(word[1] >> 16);
        const int size = (int)(word[2] >> 18);
        if (i >= k->n_params) {
            k->param = realloc(k->param, (size_t)(i + 1) * sizeof *k->param);
            while (k->n_params <= i)
                k->param[k->n_params++] = (struct param){0, 0};
        }
        k->param[i] = (struct param){at, size};
        if ((size_t)(at + size) > k->size)
            k->size = (size_t)(at + size);
    } else if (a->code == REGISTER_COUNT && symbol_name && !strcmp(symbol_name, k->name)) {
        k->registers = (int)word[1];
    }
}

static const Elf64_Shdr *section(const Elf64_Ehdr *h, unsigned i)
{
    return (const Elf64_Shdr *)(const void *)((const char *)h + h->e_shoff) + i;
}

/* The name of the symbol with this number, from the table of symbols. */
static const char *symbol(const Elf64_Ehdr *h, const Elf64_Shdr *table, uint32_t i)
{
    const Elf64_Sym *s = (const Elf64_Sym *)(const void *)((const char *)h + table->sh_offset) + i;
    return (const char *)h + section(h, table->sh_link)->sh_offset + s->st_name;
}

/* Reads what the machine code says of a kernel. False: it says nothing. */
static bool read_code(struct kernel *k)
{
    const Elf64_Ehdr *h = k->code;
    const Elf64_Shdr *symbols = NULL;
    if (k->read || !h)
        return k->read;
    const char *names = (const char *)h + section(h, h->e_shstrndx)->sh_offset;
    for (unsigned i = 0; i < h->e_shnum; i++)
        if (section(h, i)->sh_type == SHT_SYMTAB)
            symbols = section(h, i);
    k->most = 1024;
    for (unsigned i = 0; i < h->e_shnum; i++) {
        const Elf64_Shdr *s = section(h, i);
        const char *name = names + s->sh_name, *all = (const char *)h + s->sh_offset;
        const bool common = !strcmp(name, ".nv.info"),
                   own = !strncmp(name, ".nv.info.", 9) && !strcmp(name + 9, k->name);
        if (!strncmp(name, ".nv.shared.", 11) && !strcmp(name + 11, k->name) &&
            s->sh_size > RESERVED_SHARED)
            k->fixed = (int)s->sh_size - RESERVED_SHARED;
        k->read |= own;
        for (size_t at = 0; (common || own) && at + 4 <= s->sh_size;) {
            const struct attribute *a = (const void *)(all + at);
            const uint32_t *word = (const void *)(a + 1);
            const size_t more = a->form == FORM_BYTES ? a->value : 0;
            if (more)
                read_attribute(k, a, common && symbols ? symbol(h, symbols, *word) : NULL);
            at += 4 + more;
        }
    }
    return k->read = k->read && k->registers > 0;
}

const void *standin_kernel(const char *part)
{
    for (int i = 0; i < MAX_KERNELS; i++)
        if (kernels[i].host && strstr(kernels[i].name, part))
            return kernels[i].host;
    return NULL;
}

int standin_registers(const void *kernel, int n)
{
    struct kernel *k = entry(kernel);
    const int had = read_code(k) ? k->registers : 0;
    k->registers = n;
    return had;
}

/* The kernel of a call; NULL, and a broken rule: there is none. */
static struct kernel *kernel_of(const void *host, const char *call)
{
    struct kernel *k = entry(host);
    if (k->host && read_code(k))
        return k;
    wrong(cudaErrorInvalidDeviceFunction, "%s: %s", call,
          k->host ? k->name : "not a function of the device");
    return NULL;
}

/* Static and dynamic shared memory of a block may be so many bytes together without an attribute,
 * and so many at most. */
static size_t dynamic_allowed(const struct kernel *k)
{
    return k->dynamic >= 0 ? (size_t)k->dynamic
           : k->fixed < DEFAULT_SHARED ? (size_t)(DEFAULT_SHARED - k->fixed) : 0;
}

static int warps_of(size_t threads) { return (int)((threads + 31) / 32); }
static int registers_of_warp(const struct kernel *k) { return (k->registers + 7) / 8 * 8 * 32; }

/* The blocks that a multiprocessor holds at once: registers are allocated by warp, each quarter of
 * a multiprocessor has a quarter of them, and of shared memory every block has 1 KiB more. */
static int resident(const struct kernel *k, size_t threads, size_t shared)
{
    const int warps = warps_of(threads), by_registers = REGISTERS / registers_of_warp(k) / 4 * 4;
    const size_t each = (shared + (size_t)k->fixed + 127) / 128 * 128 + RESERVED_SHARED;
    int n = gpu->blocks;
    n = gpu->warps / warps < n ? gpu->warps / warps : n;
    n = by_registers / warps < n ? by_registers / warps : n;
    const size_t by_shared = ((size_t)gpu->sm_kib << 10) / each;
    return by_shared < (size_t)n ? (int)by_shared : n;
}

/* The address of the device that eight bytes of a parameter hold; NULL: none. A device's upper half
 * (0x6d11 to 0x6d50) is no size or number of rows, but may be left in the padding behind a small
 * int or a float, so that a lower half which is one is not taken for an address's. */
static const void *address_in(const char *bytes)
{
    uint32_t lower;
    float number;
    const void *p;
    memcpy(&p, bytes, sizeof p);
    memcpy(&lower, bytes, sizeof lower);
    memcpy(&number, bytes, sizeof number);
    const bool other = lower < 1 << 20 || (number > 1e-7f && number <= 2);
    return on_device(p) && !other ? p : NULL;
}

/* Every address of the device in a kernel's parameters is in an allocation, or at its end. param(i)
 * is args[i], or without args at its place in `packed`. */
static void check_pointers(const struct kernel *k, void *const *args, const char *packed)
{
    for (int i = 0; i < k->n_params; i++) {
        const struct param *p = &k->param[i];
        const char *from = args ? (const char *)args[i] : packed + p->at;
        for (int o = (8 - p->at % 8) % 8; o + 8 <= p->size; o += 8) {
            const void *v = address_in(from + o);
            if (!v)
                continue;
            counts.pointers++;
            if (!allocated(v, 0))
                wrong(cudaErrorIllegalAddress, "%s: parameter %d, byte %d: %p is not allocated%s",
                      k->name, i, o, v, args ? "" : " any more (graph)");
        }
    }
}

static void run_effect(const struct kernel *k, void *const *args)
{
    if (k->effect)
        k->effect(args);
}

static struct node *append(struct object *stream)
{
    if (stream->n == stream->cap)
        stream->node = realloc(stream->node,
                               (size_t)(stream->cap = stream->cap * 2 + 64) * sizeof *stream->node);
    struct node *node = &stream->node[stream->n++];
    *node = (struct node){0};
    return node;
}

static void capture_launch(struct object *stream, struct kernel *k, void *const *args)
{
    struct node *node = append(stream);
    node->kernel = k;
    node->params = calloc(1, k->size + 1);
    for (int i = 0; i < k->n_params; i++)
        memcpy(node->params + k->param[i].at, args[i], (size_t)k->param[i].size);
}

static cudaError_t check_launch(const struct kernel *k, dim3 g, dim3 b, size_t shared)
{
    const size_t threads = (size_t)b.x * b.y * b.z;
    const char *n = k->name;
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
        return wrong(cudaErrorInvalidConfiguration, "%s: a grid of %u, %u, %u", n, g.x, g.y, g.z);
    if (!threads || threads > 1024 || b.z > 64)
        return wrong(cudaErrorInvalidConfiguration, "%s: a block of %u, %u, %u", n, b.x, b.y, b.z);
    if (threads > (size_t)k->most)
        return wrong(cudaErrorLaunchOutOfResources, "%s: %zu threads, compiled for %d", n, threads,
                     k->most);
    if (registers_of_warp(k) * warps_of(threads) > REGISTERS)
        return wrong(cudaErrorLaunchOutOfResources, "%s: %d registers, %zu threads", n,
                     k->registers, threads);
    if (shared > dynamic_allowed(k) ||
        shared + (size_t)k->fixed > (size_t)gpu->block_kib << 10)
        return wrong(cudaErrorInvalidValue,
                     "%s: %zu and %d bytes of shared memory, allowed %zu and together %d KiB", n,
                     shared, k->fixed, dynamic_allowed(k), gpu->block_kib);
    return cudaSuccess;
}

static cudaError_t launch(const void *host, dim3 g, dim3 b, void *const *args, size_t shared,
                          cudaStream_t stream)
{
    struct kernel *k = kernel_of(host, "launch");
    struct object *s = stream ? find(STREAM, stream) : NULL;
    if (!k || (stream && !s))
        return last;
    const cudaError_t rc = check_launch(k, g, b, shared);
    if (rc != cudaSuccess)
        return rc;
    inside = k->name;
    counts.launches++;
    counts.kernels += k->launches++ == 0;
    check_pointers(k, args, NULL);
    if (s && s->capturing)
        capture_launch(s, k, args);
    else
        run_effect(k, args);
    return cudaSuccess;
}

static cudaError_t check_attribute(const cudaLaunchAttribute *a)
{
    if (a->id == cudaLaunchAttributeProgrammaticStreamSerialization)
        return gpu->major >= 9 ? cudaSuccess
                               : wrong(cudaErrorNotSupported, "programmatic dependent launch on %s",
                                       gpu->name);
    if (a->id == cudaLaunchAttributePreferredSharedMemoryCarveout)
        return (int)a->val.sharedMemCarveout >= -1 && (int)a->val.sharedMemCarveout <= 100
                   ? cudaSuccess : wrong(cudaErrorInvalidValue, "a carveout of %d percent",
                                         (int)a->val.sharedMemCarveout);
    if (a->id == cudaLaunchAttributeCooperative)
        return cudaSuccess;
    return wrong(cudaErrorInvalidValue, "launch attribute %d is not known here", (int)a->id);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static const char *side(const void *p) { return on_device(p) ? "device" : "host"; }

/* Whether a copy of n bytes is allowed. */
static cudaError_t check_copy(const void *dst, const void *src, size_t n, enum cudaMemcpyKind kind)
{
    const bool to = on_device(dst), from = on_device(src);
    counts.copies++;
    if (kind != cudaMemcpyDefault && (to != (kind & 1) || from != (kind >= cudaMemcpyDeviceToHost)))
        return wrong(cudaErrorInvalidValue, "a copy of kind %d from %s to %s", (int)kind, side(src),
                     side(dst));
    if (!readable(dst, n))
        return wrong(cudaErrorInvalidValue, "a copy of %zu bytes to %s memory exceeds it", n,
                     side(dst));
    if (!readable(src, n))
        return wrong(cudaErrorInvalidValue, "a copy of %zu bytes from %s memory exceeds it", n,
                     side(src));
    return cudaSuccess;
}

/* Large fills and copies within the device are those of weights and cells: no host code reads what
 * they leave, and it would take this machine's memory. */
static void execute(const struct node *node)
{
    if (node->n > BIG && (!node->src || (on_device(node->src) && on_device(node->dst))))
        return;
    if (node->src)
        memmove(contents(node->dst), contents(node->src), node->n);
    else
        memset(contents(node->dst), node->value, node->n);
}

/* Runs a copy or a fill, or adds it to the graph that the stream captures. */
static cudaError_t enqueue(const struct node *node, cudaStream_t stream)
{
    struct object *s = stream ? find(STREAM, stream) : NULL;
    if (stream && !s)
        return last;
    if (s && s->capturing)
        *append(s) = *node;
    else
        execute(node);
    return cudaSuccess;
}

/* ---- tensor maps ----------------------------------------------------------------------------- */

static const int element_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
enum { N_ELEMENTS = sizeof element_bytes / sizeof *element_bytes };

/* What is wrong with a map; NULL: nothing. */
static const char *odd_map(const CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                           const void *p, const cuuint64_t *dim, const cuuint64_t *stride,
                           const cuuint32_t *box, const cuuint32_t *step,
                           CUtensorMapSwizzle swizzle)
{
    if (gpu->major < 9)
        return "compute capability";
    if ((uintptr_t)map % 64)
        return "alignment of the map";
    if ((unsigned)type >= N_ELEMENTS)
        return "type of elements";
    if (rank < 1 || rank > 5)
        return "rank";
    if ((uintptr_t)p % 16 || !on_device(p))
        return "address";
    const size_t each = (size_t)element_bytes[type];
    size_t span = (size_t)dim[0] * each;
    for (cuuint32_t i = 0; i < rank; i++) {
        if (!dim[i] || dim[i] > 1ull << 32)
            return "dimension";
        if (!box[i] || box[i] > 256)
            return "box";
        if (!step[i] || step[i] > 8)
            return "element stride";
        if (i && (stride[i - 1] % 16 || stride[i - 1] >= 1ull << 40))
            return "stride";
        if (i)
            span += (size_t)(dim[i] - 1) * (size_t)stride[i - 1];
    }
    const size_t row = box[0] * each;
    if (row % 16)
        return "bytes of a box's row";
    if ((swizzle == CU_TENSOR_MAP_SWIZZLE_32B && row > 32) ||
        (swizzle == CU_TENSOR_MAP_SWIZZLE_64B && row > 64) ||
        (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && row > 128))
        return "bytes of a box's row beyond the swizzle";
    return allocated(p, span) ? NULL : "tensor beyond its allocation";
}

static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *p,
                       const cuuint64_t *dim, const cuuint64_t *stride, const cuuint32_t *box,
                       const cuuint32_t *step, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                       CUtensorMapFloatOOBfill oob)
{
    (void)promotion, (void)oob;
    if (!begins(true)) {
        ends(cudaSuccess);
        return CUDA_ERROR_UNKNOWN;
    }
    const char *why = interleave != CU_TENSOR_MAP_INTERLEAVE_NONE
                          ? "interleave is not known here"
                          : odd_map(map, type, rank, p, dim, stride, box, step, swizzle);
    counts.maps++;
    if (why)
        wrong(cudaErrorInvalidValue, "tensor map: %s (rank %u, box %u)", why, rank, box[0]);
    else
        memset(map, 0, sizeof *map), memcpy(map, &p, sizeof p);
    ends(cudaSuccess);
    return why ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- the runtime: registration and launches -------------------------------------------------- */

static int n_code, n_files;

bool standin_has_code(void) { return n_files > 0 && n_code == n_files; }

/* What the compiler's code calls before main() and at a launch; nothing declares it for C. */
void **__cudaRegisterFatBinary(void *file);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device_function,
                            const char *name, int limit, void *tid, void *bid, void *block,
                            void *grid, int *warp);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(const void **kernel, const void *host);
cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *file)
{
    map_memory();
    const void *code = find_code(file);
    n_files++, n_code += code != NULL;
    return (void **)(uintptr_t)code;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

void __cudaRegisterFunction(void **handle, const char *host, char *device_function,
                            const char *name, int limit, void *tid, void *bid, void *block,
                            void *grid, int *warp)
{
    (void)device_function, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    *entry(host) = (struct kernel){.host = host, .name = name, .code = handle, .dynamic = -1};
}

/* Between <<<>>> and the launch that it becomes. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
    *(cudaStream_t *)stream = pushed.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(const void **kernel, const void *host)
{
    *kernel = host;
    return cudaSuccess;
}

static void set_effect(const void *host)
{
    struct kernel *k = entry(host);
    for (int i = 0; k->host && !k->launches && i < MAX_EFFECTS && effects[i].part; i++)
        if (strstr(k->name, effects[i].part))
            k->effect = effects[i].run;
}

cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream)
{
    CALL(cudaErrorLaunchFailure);
    set_effect(kernel);
    return ends(launch(kernel, grid, block, args, shared, stream));
}

/* As which compilers before CUDA 13 launch. */
cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    return __cudaLaunchKernel(f, grid, block, args, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **args)
{
    CALL(cudaErrorLaunchFailure);
    cudaError_t rc = cudaSuccess;
    for (unsigned i = 0; i < c->numAttrs && rc == cudaSuccess; i++)
        rc = check_attribute(&c->attrs[i]);
    set_effect(f);
    return ends(rc == cudaSuccess ? launch(f, c->gridDim, c->blockDim, args, c->dynamicSmemBytes,
                                           c->stream) : rc);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f)
{
    CALL(cudaErrorUnknown);
    const struct kernel *k = kernel_of(f, "cudaFuncGetAttributes");
    if (!k)
        return ends(last);
    memset(a, 0, sizeof *a);
    a->numRegs = k->registers, a->sharedSizeBytes = (size_t)k->fixed;
    a->maxThreadsPerBlock = k->most;
    a->maxDynamicSharedSizeBytes = (int)dynamic_allowed(k);
    return ends(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute attribute, int value)
{
    CALL(cudaErrorUnknown);
    struct kernel *k = kernel_of(f, "cudaFuncSetAttribute");
    if (!k)
        return ends(last);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return ends(wrong(cudaErrorInvalidValue, "%s: attribute %d is not known here", k->name,
                          (int)attribute));
    if (value < 0 || value + k->fixed > gpu->block_kib << 10)
        return ends(wrong(cudaErrorInvalidValue, "%s: %d and %d bytes of shared memory, at most "
                          "%d KiB", k->name, value, k->fixed, gpu->block_kib));
    k->dynamic = value;
    return ends(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int threads,
                                                          size_t shared)
{
    CALL(cudaErrorUnknown);
    const struct kernel *k = kernel_of(f, "occupancy");
    if (!k)
        return ends(last);
    if (threads < 1 || threads > k->most)
        return ends(wrong(cudaErrorInvalidValue, "%s: occupancy of %d threads", k->name, threads));
    *n = resident(k, (size_t)threads, shared);
    return ends(cudaSuccess);
}

/* ---- the runtime: memory --------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **p, size_t n)
{
    *p = NULL;
    CALL(cudaErrorMemoryAllocation);
    if (forbidden("cudaMalloc"))
        return ends(last);
    if (!n)
        return ends(cudaSuccess);
    if (n > TOTAL - used)
        return ends(failed(cudaErrorMemoryAllocation));
    if (n > SPAN - next - 2 * (size_t)GAP) {
        fprintf(stderr, "standin: the addresses of the device are used up\n");
        abort();
    }
    *p = device + next;
    add(&live, *p, n);
    next = (next + n + GAP + PAGE) / PAGE * PAGE + 256;
    used += n;
    return ends(cudaSuccess);
}

cudaError_t cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    begins(false);
    const int i = exactly(&live, p);
    if (forbidden("cudaFree"))
        return ends(last);
    if (i < 0)
        return ends(wrong(cudaErrorInvalidValue, "cudaFree of %p, which is not allocated", p));
    used -= live.range[i].n;
    madvise(contents(p) - 256, live.range[i].n + 256, MADV_DONTNEED);
    take_out(&live, i);
    if (!live.n)
        next = FIRST;
    return ends(cudaSuccess);
}

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags)
{
    (void)flags;
    *p = NULL;
    CALL(cudaErrorMemoryAllocation);
    if (forbidden("cudaHostAlloc"))
        return ends(last);
    add(&pinned, *p = calloc(1, n), n);
    return ends(cudaSuccess);
}

cudaError_t cudaMallocHost(void **p, size_t n) { return cudaHostAlloc(p, n, 0); }

cudaError_t cudaFreeHost(void *p)
{
    if (!p)
        return cudaSuccess;
    begins(false);
    const int i = exactly(&pinned, p);
    if (i < 0)
        return ends(wrong(cudaErrorInvalidValue, "cudaFreeHost of %p, which is not allocated", p));
    take_out(&pinned, i);
    free(p);
    return ends(cudaSuccess);
}

cudaError_t cudaHostGetDevicePointer(void **d, void *h, unsigned flags)
{
    (void)flags;
    CALL(cudaErrorUnknown);
    if (exactly(&pinned, h) < 0)
        return ends(wrong(cudaErrorInvalidValue, "cudaHostGetDevicePointer of %p", h));
    *d = h;
    return ends(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    CALL(cudaErrorUnknown);
    *left = TOTAL - used, *all = TOTAL;
    return ends(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    CALL(cudaErrorUnknown);
    const cudaError_t rc = check_copy(dst, src, n, kind);
    return ends(rc ? rc : enqueue(&(struct node){.dst = dst, .src = src, .n = n}, stream));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t rows, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    CALL(cudaErrorUnknown);
    if (width > dst_pitch || width > src_pitch)
        return ends(wrong(cudaErrorInvalidPitchValue, "a copy of rows of %zu bytes, %zu and %zu "
                          "apart", width, dst_pitch, src_pitch));
    if (!rows || !width)
        return ends(cudaSuccess);
    cudaError_t rc = check_copy(dst, src, (rows - 1) * dst_pitch + width, kind);
    if (rc == cudaSuccess && !readable(src, (rows - 1) * src_pitch + width))
        rc = wrong(cudaErrorInvalidValue, "a copy of %zu rows exceeds its source", rows);
    if (rows * width > BIG && on_device(dst) && on_device(src)) /* as execute() */
        return ends(rc);
    for (size_t i = 0; i < rows && rc == cudaSuccess; i++)
        rc = enqueue(&(struct node){.dst = (char *)dst + i * dst_pitch,
                                    .src = (const char *)src + i * src_pitch, .n = width}, stream);
    return ends(rc);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream)
{
    CALL(cudaErrorUnknown);
    counts.copies++;
    if (!on_device(p) || !allocated(p, n))
        return ends(wrong(cudaErrorInvalidValue, "a fill of %zu bytes of %s memory exceeds it", n,
                          side(p)));
    return ends(enqueue(&(struct node){.dst = p, .n = n, .value = value}, stream));
}

/* ---- the runtime: streams, events, graphs ---------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    (void)flags;
    CALL(cudaErrorUnknown);
    *s = (cudaStream_t)make(STREAM);
    return ends(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    begins(false);
    return ends(destroy(STREAM, s));
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    broken |= !begins(true);
    if (broken)
        return ends(failed(cudaErrorUnknown));
    const struct object *o = find(STREAM, s);
    if (o && o->capturing)
        return ends(wrong(cudaErrorStreamCaptureUnsupported, "cudaStreamQuery of a capture"));
    return ends(o ? cudaSuccess : last);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    (void)flags;
    CALL(cudaErrorUnknown);
    *e = (cudaEvent_t)make(EVENT);
    return ends(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    begins(false);
    return ends(destroy(EVENT, e));
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    CALL(cudaErrorUnknown);
    return ends(find(EVENT, e) && find(STREAM, s) ? cudaSuccess : last);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    CALL(cudaErrorUnknown);
    return ends(find(EVENT, e) ? cudaSuccess : last);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    CALL(cudaErrorUnknown);
    struct object *o = find(STREAM, s);
    if (!o)
        return ends(last);
    if (o->capturing)
        return ends(wrong(cudaErrorIllegalState, "the stream captures already"));
    if (mode != cudaStreamCaptureModeThreadLocal)
        return ends(wrong(cudaErrorInvalidValue, "capture mode %d is not known here", (int)mode));
    o->capturing = true, o->by = pthread_self();
    return ends(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    *graph = NULL;
    const bool ok = begins(true);
    struct object *o = find(STREAM, s);
    if (!o)
        return ends(last);
    if (!o->capturing || !pthread_equal(o->by, pthread_self()))
        return ends(wrong(cudaErrorIllegalState, "the thread does not capture this stream"));
    struct object *g = make(GRAPH);
    g->n = o->n, g->cap = o->cap, g->node = o->node;
    o->capturing = false, o->n = o->cap = 0, o->node = NULL;
    *graph = (cudaGraph_t)g;
    if (!ok) {
        destroy(GRAPH, g);
        *graph = NULL;
        return ends(failed(cudaErrorStreamCaptureInvalidated));
    }
    return ends(cudaSuccess);
}

/* The graph may be destroyed while what was made of it runs on: the nodes go over to it. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *x = NULL;
    CALL(cudaErrorUnknown);
    struct object *g = find(GRAPH, graph);
    if (!g)
        return ends(last);
    struct object *run = make(EXEC);
    run->n = g->n, run->cap = g->cap, run->node = g->node;
    g->n = g->cap = 0, g->node = NULL;
    *x = (cudaGraphExec_t)run;
    return ends(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s)
{
    CALL(cudaErrorUnknown);
    return ends(find(EXEC, x) && find(STREAM, s) ? cudaSuccess : last);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    begins(false);
    return ends(destroy(GRAPH, graph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    begins(false);
    return ends(destroy(EXEC, x));
}

static void replay(const struct node *node)
{
    const struct kernel *k = node->kernel;
    if (!k) {
        if (!readable(node->dst, node->n) || (node->src && !readable(node->src, node->n)))
            wrong(cudaErrorIllegalAddress, "graph: a copy or fill of memory that is not allocated");
        else
            execute(node);
        return;
    }
    inside = k->name;
    counts.replayed++;
    check_pointers(k, NULL, node->params);
    if (k->effect) {
        void *args[64];
        for (int i = 0; i < k->n_params && i < 64; i++)
            args[i] = node->params + k->param[i].at;
        run_effect(k, args);
    }
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    CALL(cudaErrorLaunchFailure);
    const struct object *g = find(EXEC, x), *o = find(STREAM, s);
    if (!g || !o)
        return ends(last);
    if (o->capturing)
        return ends(wrong(cudaErrorStreamCaptureUnsupported, "a graph is launched in a capture"));
    for (int i = 0; i < g->n; i++)
        replay(&g->node[i]);
    return ends(cudaSuccess);
}

/* ---- the runtime: the rest ------------------------------------------------------------------- */

cudaError_t cudaGetLastError(void)
{
    const cudaError_t rc = last;
    last = cudaSuccess;
    return rc;
}

const char *cudaGetErrorString(cudaError_t rc)
{
    static _Thread_local char text[64];
    snprintf(text, sizeof text, "stand-in: error %d", (int)rc);
    return text;
}

cudaError_t cudaSetDevice(int ordinal)
{
    CALL(cudaErrorUnknown);
    return ends(ordinal == 0 ? cudaSuccess : wrong(cudaErrorInvalidDevice, "device %d", ordinal));
}

cudaError_t cudaGetDeviceCount(int *n)
{
    CALL(cudaErrorUnknown);
    *n = 1;
    return ends(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int ordinal)
{
    snprintf(id, (size_t)n, "0000:00:00.%d", ordinal);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal)
{
    (void)attribute, (void)ordinal;
    *value = 0;
    return cudaSuccess;
}

/* The code for 9.0 runs in every class, so that a build for one architecture is enough. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int ordinal)
{
    const char *as = getenv("AERIE_GPU_AS");
    CALL(cudaErrorUnknown);
    gpu = classes;
    for (size_t i = 0; as && *as && i < sizeof classes / sizeof *classes; i++)
        if (!strcmp(classes[i].name, as))
            gpu = &classes[i];
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "stand-in as %s", gpu->name);
    p->major = 9, p->minor = 0;
    p->multiProcessorCount = gpu->n_sm;
    p->sharedMemPerBlockOptin = (size_t)gpu->block_kib << 10;
    p->totalGlobalMem = TOTAL;
    return ends(ordinal == 0 ? cudaSuccess : wrong(cudaErrorInvalidDevice, "device %d", ordinal));
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **p, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)version, (void)flags;
    const bool known = !strcmp(name, "cuTensorMapEncodeTiled");
    *p = known ? (void *)(uintptr_t)encode : NULL;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
