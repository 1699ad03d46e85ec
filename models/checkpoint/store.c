/* store.c - see store.h.
 *
 * Tensors are divided into parts of at most PART bytes; no part spans two tensors. Threads take
 * parts in file order, and read each in blocks small enough that hashing a block finds it in the
 * CPU cache. A tensor's digest is a hash of its parts' digests, so it does not depend on which
 * thread read which part.
 */
#include "models/checkpoint/store.h"

#include "kernels/packed.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    PART = 2 << 20, BLOCK = 256 << 10, /* BLOCK is a multiple of 64 */
    AHEAD = 16, /* parts that are prefetched before a thread reads them */
    HUGE = 2 << 20, MAX_THREADS = 8,
};

struct store {
    char *base;
    size_t bytes;
    char *names;
    struct mapped **map; /* (n_map) of each file of the checkpoint; NULL: it is not mapped */
    int n_map;
};

/* ---- digest ---- */

__extension__ typedef unsigned __int128 wide;

/* Multiplies to 128 bits and combines both halves by exclusive or. */
static inline uint64_t fold(uint64_t a, uint64_t b)
{
    wide p = (wide)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Four independent multiply chains, which hide the multiplier's latency. They are written out
 * because compilers turn a loop over them into vector code that is four times slower. */
struct lanes {
    uint64_t h[4];
};

static struct lanes lanes_start(uint64_t seed)
{
    struct lanes l;
    for (int i = 0; i < 4; i++)
        l.h[i] = mix64(seed + (uint64_t)i);
    return l;
}

/* n is a multiple of 64 except in a part's last block, whose remainder goes to hash64(). */
static void lanes_add(struct lanes *l, const char *p, size_t n)
{
    uint64_t a = l->h[0], b = l->h[1], c = l->h[2], d = l->h[3], w[8];
    for (; n >= 64; n -= 64, p += 64) {
        memcpy(w, p, 64);
        a = fold(w[0] ^ 0x9E3779B97F4A7C15ull, w[1] ^ a);
        b = fold(w[2] ^ 0xBF58476D1CE4E5B9ull, w[3] ^ b);
        c = fold(w[4] ^ 0x94D049BB133111EBull, w[5] ^ c);
        d = fold(w[6] ^ 0x9FB21C651E98DF25ull, w[7] ^ d);
    }
    *l = (struct lanes){{n ? hash64(p, n, a) : a, b, c, d}};
}

/* Digests bytes [from, from + n) of a tensor, which lie at p. */
static uint64_t digest_range(const char *p, size_t from, size_t n)
{
    struct lanes l = lanes_start(from);
    lanes_add(&l, p, n);
    return hash64(l.h, sizeof l.h, n);
}

/* Reads and digests bytes [from, from + n) of t, into dst or, if dst is NULL, into a scratch
 * block. */
static bool read_range(const struct safetensors *st, const struct tensor *t, size_t from, size_t n,
                       char *dst, uint64_t *digest, struct err *e)
{
    FREED(free_at) char *scratch = dst ? NULL : xmalloc(BLOCK);
    struct lanes l = lanes_start(from);
    bool ok = true;
    for (size_t done = 0; ok && done < n; done += BLOCK) {
        size_t len = n - done < BLOCK ? n - done : BLOCK;
        char *to = dst ? dst + done : scratch;
        ok = st_read_part(st, t, from + done, len, to, e);
        if (ok)
            lanes_add(&l, to, len);
    }
    *digest = hash64(l.h, sizeof l.h, n);
    return ok;
}

static size_t part_count(size_t bytes)
{
    return (bytes + PART - 1) / PART;
}

static size_t part_size(size_t bytes, size_t part)
{
    size_t rest = bytes - part * PART;
    return rest < PART ? rest : PART;
}

bool store_digest(const struct safetensors *st, const struct tensor *t, uint64_t *digest,
                  struct err *e)
{
    size_t n = part_count(t->bytes);
    FREED(free_at) uint64_t *part = xcalloc(n, sizeof *part);
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++)
        ok = read_range(st, t, i * PART, part_size(t->bytes, i), NULL, &part[i], e);
    *digest = hash64(part, n * sizeof *part, t->bytes);
    return ok;
}

/* ---- threads ---- */

struct store_part {
    int load;
    size_t index; /* of the part within its load */
};

struct store_job {
    struct safetensors *st;
    const struct tensor_load *load;
    char *const *place; /* (n) address of each load's bytes in the store */
    const bool *mapped; /* (n) it is there already */
    struct store_part *part;
    uint64_t *digest; /* (n_part) */
    size_t n_part;
    atomic_size_t next;
    _Atomic uint64_t done;
    atomic_bool failed;
    pthread_mutex_t lock;
    struct err err; /* the first error, under the lock */
};

/* Several threads reading one file defeat the system's own read-ahead. */
static void job_prefetch(const struct store_job *j, size_t i)
{
    if (i >= j->n_part)
        return;
    struct store_part p = j->part[i];
    const struct tensor_load *l = &j->load[p.load];
    st_prefetch(j->st, l->src, l->from + p.index * PART, part_size(l->bytes, p.index));
}

/* Digests bytes [from, from + n) of a mapped tensor, which lie at p. False and *e: a block of
 * packed weights that begins there has a scale that is not finite. (st_read_part() checks what it
 * reads.) */
static bool digest_mapped(const struct tensor *t, const char *p, size_t from, size_t n,
                          uint64_t *digest, struct err *e)
{
    *digest = digest_range(p, from, n);
    if (!dtype_packed(t->type))
        return true;
    size_t block = (size_t)packed_format(t->type)->bytes, skip = (block - from % block) % block;
    size_t blocks = skip < n ? (n - skip + block - 1) / block : 0;
    return packed_not_finite(t->type, p + skip, (int64_t)blocks) < 0 ||
           err_set(e, ERR_MODEL, "tensor %s has a block with a scale that is not finite",
                   show(t->name).s);
}

static void job_fail(struct store_job *j, const struct err *e)
{
    LOCKED(&j->lock);
    if (!atomic_exchange(&j->failed, true))
        j->err = *e;
}

/* Reads the next part; false when none is left or any thread failed. */
static bool job_step(struct store_job *j)
{
    size_t i = atomic_fetch_add(&j->next, 1);
    if (i >= j->n_part || atomic_load(&j->failed))
        return false;
    job_prefetch(j, i + AHEAD);
    struct store_part p = j->part[i];
    const struct tensor_load *l = &j->load[p.load];
    size_t at = p.index * PART, from = l->from + at, n = part_size(l->bytes, p.index);
    struct err e = {0};
    char *place = j->place[p.load] + at;
    if (!(j->mapped[p.load] ? digest_mapped(l->src, place, from, n, &j->digest[i], &e)
                            : read_range(j->st, l->src, from, n, place, &j->digest[i], &e))) {
        job_fail(j, &e);
        return false;
    }
    atomic_fetch_add(&j->done, n);
    return true;
}

static void *job_thread(void *arg)
{
    while (job_step(arg))
        ;
    return NULL;
}

/* Runs the job on the calling thread and others; the calling thread reports progress after each
 * part that it reads itself. */
static bool job_run(struct store_job *j, uint64_t total, const char *what, const struct loading *p,
                    struct err *e)
{
    pthread_t thread[MAX_THREADS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    for (size_t i = 0; i < AHEAD; i++)
        job_prefetch(j, i);
    int n = 0, helpers = (cores > MAX_THREADS ? MAX_THREADS : (int)cores) - 1;
    /* at most one further thread per 16 MB */
    while (n < helpers && (uint64_t)n < total / ((uint64_t)8 * PART) &&
           pthread_create(&thread[n], NULL, job_thread, j) == 0)
        n++;
    while (job_step(j)) {
        if (p && p->report)
            p->report(p->arg, what, atomic_load(&j->done), total);
        if (p && p->stop && p->stop(p->arg))
            job_fail(j, &(struct err){.kind = ERR_USAGE, .msg = "stopped while it was read"});
    }
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    if (atomic_load(&j->failed)) {
        if (e)
            *e = j->err;
        return false;
    }
    if (p && p->report)
        p->report(p->arg, what, total, total);
    return true;
}

/* ---- memory ---- */

static struct store *store_new(size_t bytes, size_t names, int files, struct err *e)
{
    struct store *s = xcalloc(1, sizeof *s);
    s->bytes = bytes ? bytes : 1;
    s->map = xcalloc((size_t)files, sizeof *s->map);
    s->n_map = files;
    void *p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        FREE(s->map, s);
        return FAILED(NULL, e, ERR_MODEL, "not enough memory for %zu bytes of weights", bytes);
    }
    /* huge pages need fewer page faults; a small store would waste most of its last one */
    if (bytes >= 16 * (size_t)HUGE)
        madvise(p, s->bytes, MADV_HUGEPAGE);
    s->base = p;
    s->names = xmalloc(names);
    return s;
}

void store_free(struct store *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_map; i++)
        mapped_close(s->map[i]);
    munmap(s->base, s->bytes);
    FREE(s->map, s->names, s);
}

void store_drop(struct store *s, const void *p, size_t n)
{
    const char *from = p;
    if (!s || from < s->base || from >= s->base + s->bytes)
        return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t a = (size_t)(from - s->base + (ptrdiff_t)page - 1) / page * page;
    size_t z = ((size_t)(from - s->base) + n) / page * page;
    if (z > a)
        madvise(s->base + a, z - a, MADV_DONTNEED);
}

/* ---- loading ---- */

static _Thread_local const struct safetensors *sort_st;

static int by_place(const void *a, const void *b)
{
    const struct tensor_load *x = a, *y = b;
    int by_tensor = st_index(sort_st, x->src) - st_index(sort_st, y->src);
    return by_tensor ? by_tensor : (x->from > y->from) - (x->from < y->from);
}

static size_t aligned(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Lists the parts of all n loads in file order. */
static void job_list_parts(struct store_job *j, int n)
{
    for (int i = 0; i < n; i++)
        j->n_part += part_count(j->load[i].bytes);
    j->part = xcalloc(j->n_part, sizeof *j->part);
    j->digest = xcalloc(j->n_part, sizeof *j->digest);
    size_t at = 0;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < part_count(j->load[i].bytes); k++)
            j->part[at++] = (struct store_part){.load = i, .index = k};
}

static void bind_tensors(struct store *s, struct tensor_load *load, int n, char *const *place,
                         const struct store_job *j, uint64_t *digest)
{
    char *name = s->names;
    size_t part = 0;
    for (int i = 0; i < n; i++) {
        size_t parts = part_count(load[i].bytes), len = strlen(load[i].src->name) + 1;
        digest[i] = hash64(j->digest + part, parts * sizeof *digest, load[i].bytes);
        part += parts;
        if (load[i].at)
            continue; /* the load at 0 sets *dst */
        *load[i].dst = load[i].form;
        load[i].dst->data = place[i];
        load[i].dst->name = memcpy(name, load[i].src->name, len);
        name += len;
    }
}

/* Whether the files are mapped. */
static bool wants_map(const struct safetensors *st, const struct loading *how)
{
    const char *why;
    enum file_use r = how ? how->use : READ_COPY;
    return r == READ_MAP || (r == READ_AUTO && st_mappable(st, &why));
}

/* A tensor can be used where it lies in its file, which begins at a page, if its elements are
 * aligned there. */
static bool is_aligned(const struct tensor_load *l)
{
    size_t size = dtype_packed(l->src->type) ? 2 : dtype_size(l->src->type); /* scales are f16 */
    const struct st_entry *x = st_entry(l->src);
    return size && l->bytes && !l->stack && !l->pairs && !l->unit && !x->made &&
           (x->at + l->from) % size == 0;
}

/* Moves the groups apart, the last one first, and fills what is behind each with zeros. */
static void pad_groups(const struct tensor_load *l, char *p)
{
    size_t from = (size_t)l->padded_from * l->unit, to = (size_t)l->padded_to * l->unit;
    for (size_t i = l->bytes / from; i-- > 0;) {
        memmove(p + i * to, p + i * from, from);
        memset(p + i * to + from, 0, to - from);
    }
}

/* Puts the even rows of each head before its odd ones. */
static void part_pairs(const struct tensor_load *l, char *p)
{
    size_t row = l->bytes / (size_t)l->form.dim[0], n = (size_t)l->pairs;
    FREED(free_at) char *head = xmalloc(n * row);
    for (int64_t first = 0; first < l->form.dim[0]; first += l->pairs, p += n * row) {
        memcpy(head, p, n * row);
        for (size_t i = 0; i < n; i++)
            memcpy(p + (i % 2 * (n / 2) + i / 2) * row, head + i * row, row);
    }
}

/* Sets place[i] of the tensors that are used in the files, and maps these files. */
static bool map_files(struct store *s, const struct safetensors *st, const struct tensor_load *load,
                      const bool *mapped, int n, char **place, struct err *e)
{
    for (int i = 0; i < n; i++) {
        const struct st_entry *x = st_entry(load[i].src);
        struct mapped **map = &s->map[x->shard];
        if (!mapped[i])
            continue;
        if (!*map && !(*map = st_map(st, x->shard, e)))
            return false;
        place[i] = (char *)(uintptr_t)mapped_base(*map) + x->at + load[i].from;
    }
    return true;
}

/* Sets offset[i] of each load that is copied. Returns the bytes of all copies: each is at most its
 * files' size. */
static size_t lay_out_copies(const struct tensor_load *load, int n, const bool *mapped,
                             size_t *offset)
{
    FREED(free_at) size_t *stack = xcalloc((size_t)n + 1, sizeof *stack); /* begin of each, + 1 */
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        size_t *begin = &stack[load[i].stack];
        if (mapped[i])
            continue;
        if (!load[i].stack || !*begin) {
            *begin = at + 1;
            at += aligned(load[i].form.bytes);
        }
        offset[i] = *begin - 1 + load[i].at;
    }
    return at;
}

/* A store with a place in it for each load that is not mapped: place[i]. NULL and *e on failure. */
static struct store *lay_out(const struct safetensors *st, const struct tensor_load *load, int n,
                             const bool *mapped, char **place, struct err *e)
{
    FREED(free_at) size_t *offset = xcalloc((size_t)n, sizeof *offset);
    size_t names = 0;
    for (int i = 0; i < n; i++)
        names += strlen(load[i].src->name) + 1;
    struct store *s = store_new(lay_out_copies(load, n, mapped, offset), names, st->n_shard, e);
    for (int i = 0; s && i < n; i++)
        if (!mapped[i])
            place[i] = s->base + offset[i];
    return s;
}

bool store_load(struct store **out, struct safetensors *st, struct tensor_load *load, int n,
                uint64_t *digest, const char *what, const struct loading *how, struct err *e)
{
    uint64_t total = 0;
    sort_st = st;
    qsort(load, (size_t)n, sizeof *load, by_place);
    for (int i = 0; i < n; i++)
        total += load[i].bytes;
    FREED(free_at) bool *mapped = xcalloc((size_t)n, sizeof *mapped);
    FREED(free_at) char **place = xcalloc((size_t)n, sizeof *place);
    const bool map = wants_map(st, how), none = how && how->use == READ_HEADERS;
    for (int i = 0; i < n; i++)
        mapped[i] = none || (map && is_aligned(&load[i]));
    struct store *s = lay_out(st, load, n, mapped, place, e);
    if (s && !none && !map_files(s, st, load, mapped, n, place, e))
        store_free(s), s = NULL;
    struct store_job j = {.st = st, .load = load, .place = place, .mapped = mapped,
                          .lock = PTHREAD_MUTEX_INITIALIZER};
    job_list_parts(&j, n);
    bool ok = s && (none || (job_run(&j, total, what, how, e) && (!map || mapped_check(e))));
    for (int i = 0; ok && !none && i < n; i++) {
        if (load[i].pairs)
            part_pairs(&load[i], place[i]);
        if (load[i].unit)
            pad_groups(&load[i], place[i]);
    }
    if (ok)
        bind_tensors(s, load, n, place, &j, digest);
    FREE(j.part, j.digest);
    if (!ok)
        store_free(s), s = NULL;
    *out = s;
    return ok;
}
