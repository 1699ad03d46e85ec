/* base.c - see base.h. */
#include "kernels/base.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <utf8proc.h>

#include "kernels/utf8.h"

/* ---- errors and checks ---- */

bool err_set(struct err *e, enum err_kind kind, const char *fmt, ...)
{
    if (!e)
        return false;
    PRINT_ARGS(e->msg, fmt);
    e->kind = kind;
    e->at = (struct violation){0};
    return false;
}

bool err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return false;
    char head[256], old[sizeof e->msg];
    PRINT_ARGS(head, fmt);
    memcpy(old, e->msg, sizeof old);
    snprintf(e->msg, sizeof e->msg, "%s: %.*s", head, (int)(sizeof old - sizeof head - 4), old);
    return false;
}

static void (*hook_before_death)(void);
static const char *_Atomic removed_at_death;

void die_hook(void (*hook)(void))
{
    hook_before_death = hook;
}

void die_removes(const char *path)
{
    atomic_store(&removed_at_death, path);
}

static void write_message(const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(STDERR_FILENO, p, n);
        struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
        if (k < 0 && (errno != EINTR || poll(&room, 1, 0) != 1))
            return;
        p += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
}

/* The length of the beginning of a text that a terminal only shows. */
static size_t harmless(const char *s, size_t n)
{
    uint32_t cp;
    size_t at = 0;
    for (size_t k; at < n && (k = utf8_char(s + at, n - at, &cp)) > 0 && !utf8_is_hidden(cp);
         at += k)
        ;
    return at;
}

static void write_text(const char *s, size_t n)
{
    size_t at = harmless(s, n);
    write_message(s, at);
    while (at < n) {
        char shown[16];
        uint32_t cp;
        at += utf8_decode(s + at, n - at, &cp);
        snprintf(shown, sizeof shown, cp == 0xFFFD ? "\xEF\xBF\xBD" : "<U+%04X>", (unsigned)cp);
        write_message(shown, strlen(shown));
        size_t k = harmless(s + at, n - at);
        write_message(s + at, k);
        at += k;
    }
}

/* Prints a line with `name` in front of it. */
static void print_message(const char *name, const char *fmt, va_list ap)
{
    const size_t at = strlen(name);
    char some[1024], *line = some;
    va_list again;
    va_copy(again, ap);
    memcpy(some, name, at);
    int n = vsnprintf(some + at, sizeof some - at, fmt, ap);
    size_t whole = at + (size_t)max_int(n, 0) + 1, room = sizeof some;
    if (whole > room && (line = malloc(whole)) != NULL) {
        room = whole;
        memcpy(line, name, at);
        vsnprintf(line + at, room - at, fmt, again);
    }
    va_end(again);
    line = line ? line : some; /* without memory, its beginning */
    whole = whole < room ? whole : room;
    line[whole - 1] = '\n';
    if (harmless(line, whole - 1) == whole - 1) {
        write_message(line, whole);
    } else {
        write_text(line, whole - 1);
        write_message("\n", 1);
    }
    if (line != some)
        free(line);
}

void err_print(const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, print_message("aerie: ", fmt, ap));
}

void err_note(const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, print_message("", fmt, ap));
}

/* Only one thread prints why the program ends; others wait, so that none ends it before the
 * terminal is restored. */
static void begin_to_die(void)
{
    static atomic_bool dying;
    static _Thread_local bool mine;
    if (atomic_exchange(&dying, true) && !mine)
        for (;;)
            pause();
    mine = true;
    void (*hook)(void) = hook_before_death;
    hook_before_death = NULL;
    if (hook)
        hook();
    const char *path = atomic_load(&removed_at_death);
    if (path)
        unlink(path);
}

_Noreturn void die(const char *fmt, ...)
{
    begin_to_die();
    WITH_ARGS(ap, fmt, print_message("aerie: ", fmt, ap));
    abort();
}

/* ---- memory ---- */

_Noreturn void no_memory(const char *fmt, ...)
{
    char what[64];
    begin_to_die();
    PRINT_ARGS(what, fmt);
    err_print("out of memory (%s)", what);
    _exit(ERR_USAGE);
}

/* The length of formatted text; the C library may need memory to find it. */
static size_t formatted(int n)
{
    if (n < 0 && errno == ENOMEM)
        no_memory("formatting");
    CHECK(n >= 0);
    return (size_t)n;
}

void *xmalloc(size_t n)
{
    void *p = malloc(n ? n : 1);
    if (!p)
        no_memory("%zu bytes", n);
    return p;
}

void *xcalloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (!p)
        no_memory("%zu x %zu bytes", n, size);
    return p;
}

void *xrealloc(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!size_mul(n, size, &bytes))
        no_memory("%zu x %zu bytes", n, size);
    p = realloc(p, bytes ? bytes : 1);
    if (!p)
        no_memory("%zu bytes", bytes);
    return p;
}

void *xaligned(size_t n)
{
    size_t rounded;
    if (!size_add(n, 63, &rounded))
        no_memory("%zu bytes", n);
    rounded &= ~(size_t)63;
    void *p = aligned_alloc(64, rounded ? rounded : 64);
    if (!p)
        no_memory("%zu bytes", n);
    return p;
}

char *xstrdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(xmalloc(n), s, n);
}

char *xasprintf(const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    size_t n = formatted(vsnprintf(NULL, 0, fmt, ap));
    va_end(ap);
    char *s = xmalloc(n + 1);
    formatted(vsnprintf(s, n + 1, fmt, again));
    va_end(again);
    return s;
}

/* ---- numbers in text ---- */

bool int_at(const char **s, int *out)
{
    const char *at = *s;
    bool negative = *at == '-';
    int64_t v = 0;
    at += negative;
    if (*at < '0' || *at > '9')
        return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        v = 10 * v + (*at - '0');
        if (v > (int64_t)INT32_MAX + negative)
            return false;
    }
    *out = (int)(negative ? -v : v);
    *s = at;
    return true;
}

bool address_at(const char **s, int *turn, int *step)
{
    const char *at = *s;
    int t, n;
    if (*at == '-' || !int_at(&at, &t) || *at++ != '.' || *at == '-' || !int_at(&at, &n))
        return false;
    *turn = t;
    *step = n;
    *s = at;
    return true;
}

/* ---- byte buffers ---- */

static void buf_room(struct buf *b, size_t more)
{
    size_t need;
    if (!size_add(b->n, more, &need) || !size_add(need, 1, &need))
        no_memory("buffer");
    if (need <= b->cap)
        return;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap += cap / 2 + 64;
    b->p = xrealloc(b->p, cap, 1);
    b->cap = cap;
}

void buf_add(struct buf *b, const void *bytes, size_t n)
{
    buf_room(b, n);
    if (n)
        memcpy(b->p + b->n, bytes, n);
    b->n += n;
    b->p[b->n] = '\0';
}

void buf_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void hex_digits(char *out, const uint8_t *p, size_t n)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[p[i] >> 4];
        out[2 * i + 1] = digit[p[i] & 15];
    }
}

void buf_hex(struct buf *b, const void *p, size_t n)
{
    char pair[2];
    for (size_t i = 0; i < n; i++) {
        hex_digits(pair, (const uint8_t *)p + i, 1);
        buf_add(b, pair, 2);
    }
}

void buf_char(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_utf8(struct buf *out, uint32_t cp)
{
    uint8_t b[4];
    utf8proc_ssize_t k = utf8proc_encode_char((utf8proc_int32_t)cp, b);
    buf_add(out, b, k > 0 ? (size_t)k : 0);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, buf_vprintf(b, fmt, ap));
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    size_t room = b->p ? b->cap - b->n : 0;
    va_list again;
    va_copy(again, ap);
    size_t n = formatted(vsnprintf(room ? b->p + b->n : NULL, room, fmt, ap));
    if (n >= room) { /* it did not fit */
        buf_room(b, n);
        formatted(vsnprintf(b->p + b->n, n + 1, fmt, again));
    }
    va_end(again);
    b->n += n;
}

void buf_or(struct buf *b, int i, int n, const char *word)
{
    buf_printf(b, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", word);
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    if (b->p)
        b->p[0] = '\0';
}

void buf_free(struct buf *b)
{
    free(b->p);
    *b = (struct buf){0};
}

bool file_missing(const char *path)
{
    return access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

char *path_folder(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n ? xasprintf("%.*s", (int)n, path) : xstrdup(".");
}

int file_open(const char *path, int flags, unsigned mode)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

void file_make_private(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 077))
        chmod(path, st.st_mode & 0700);
}

/* Whether an open file is a regular one; else closes it. */
static bool is_regular(int fd, const char *name, struct err *e)
{
    struct stat st;
    bool known = fstat(fd, &st) == 0;
    if (known && S_ISREG(st.st_mode))
        return true;
    err_set(e, ERR_USAGE, known ? "cannot read %s: it is %s" : "cannot read %s: %s", name,
            !known                 ? strerror(errno)
            : S_ISDIR(st.st_mode)  ? "a folder"
            : S_ISFIFO(st.st_mode) ? "a FIFO; expected a regular file"
                                   : "a device; expected a regular file");
    close(fd);
    return false;
}

int file_open_regular(const char *path, struct err *e)
{
    int fd = file_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0); /* a FIFO opens at once */
    if (fd >= 0)
        return is_regular(fd, path, e) ? fd : -1;
    return FAILED(-1, e, ERR_USAGE, "cannot open %s: %s", path, strerror(errno));
}

bool write_fully(int fd, const void *bytes, size_t n)
{
    for (const char *p = bytes; n > 0;) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

bool file_replace(const char *path, const void *bytes, size_t n)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    FREED(free_at) char *temp = xasprintf("%.*s.%s.%ld", (int)(name - path), path, name,
                                          (long)getpid());
    unlink(temp); /* of an earlier process with the same number */
    int fd = file_open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0)
        return false;
    bool ok = write_fully(fd, bytes, n);
    ok = close(fd) == 0 && ok && rename(temp, path) == 0;
    int why = errno;
    if (!ok)
        unlink(temp);
    errno = why;
    return ok;
}

ptrdiff_t pread_fully(int fd, void *bytes, size_t n, uint64_t at)
{
    size_t done = 0;
    while (done < n) {
        ssize_t k = pread(fd, (char *)bytes + done, n - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -1;
        if (k == 0)
            break;
        done += (size_t)k;
    }
    return (ptrdiff_t)done;
}

static bool too_large(const char *path, uint64_t bytes, uint64_t max, struct err *e)
{
    return err_set(e, ERR_USAGE, "%s has %" PRIu64 " bytes: expected at most %" PRIu64, path, bytes,
                   max);
}

bool file_fits(int fd, const char *path, uint64_t max, struct err *e)
{
    struct stat st;
    bool sized = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    return !sized || (uint64_t)st.st_size <= max || too_large(path, (uint64_t)st.st_size, max, e);
}

bool buf_read_file(struct buf *out, const char *path, size_t max, struct err *e)
{
    *out = (struct buf){0};
    int fd = file_open_regular(path, e);
    return fd >= 0 && buf_read_open(out, fd, path, max, e);
}

bool buf_read_open(struct buf *out, int fd, const char *name, size_t max, struct err *e)
{
    *out = (struct buf){0};
    if (!is_regular(fd, name, e))
        return false;
    if (!file_fits(fd, name, max, e)) {
        close(fd);
        return false;
    }
    for (;;) {
        buf_room(out, 65536);
        ssize_t got = read(fd, out->p + out->n, 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            err_set(e, ERR_USAGE, "cannot read %s: %s", name, strerror(errno));
        else if (got > 0 && out->n + (size_t)got > max) /* it grows, or is one of the kernel's,
                                                           without a size */
            got = -1, too_large(name, out->n + (size_t)got, max, e);
        if (got < 0) {
            close(fd);
            buf_free(out);
            return false;
        }
        out->n += (size_t)got;
        out->p[out->n] = '\0';
        if (got == 0)
            break;
    }
    close(fd);
    return true;
}

/* ---- token ids ---- */

void ids_cat(struct ids *a, const int32_t *v, int n)
{
    CHECK(n >= 0 && a->n <= INT32_MAX - n);
    if (a->n + n > a->cap) {
        a->cap = a->n + n + a->cap / 2 + 16;
        a->v = xrealloc(a->v, (size_t)a->cap, sizeof *a->v);
    }
    if (n)
        memcpy(a->v + a->n, v, (size_t)n * sizeof *v);
    a->n += n;
}

void ids_add(struct ids *a, int32_t id)
{
    ids_cat(a, &id, 1);
}

void ids_free(struct ids *a)
{
    free(a->v);
    *a = (struct ids){0};
}

bool ids_equal(const struct ids *a, const struct ids *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v) == 0);
}

/* ---- clock ---- */

uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int64_t clock_unix_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- hashes ---- */

uint64_t hash64(const void *p, size_t n, uint64_t seed)
{
    const uint8_t *b = p;
    uint64_t h = mix64(seed ^ (n * 0x9FB21C651E98DF25ull));
    if (n >= 64) { /* four chains at once, in registers: each waits for its own multiplication */
        uint64_t w[4], h0 = h, h1 = h + 1, h2 = h + 2, h3 = h + 3;
        for (; n >= 32; n -= 32, b += 32) {
            memcpy(w, b, sizeof w);
            h0 = (h0 ^ w[0]) * 0x9FB21C651E98DF25ull;
            h1 = (h1 ^ w[1]) * 0x9FB21C651E98DF25ull;
            h2 = (h2 ^ w[2]) * 0x9FB21C651E98DF25ull;
            h3 = (h3 ^ w[3]) * 0x9FB21C651E98DF25ull;
            h0 ^= h0 >> 29;
            h1 ^= h1 >> 29;
            h2 ^= h2 >> 29;
            h3 ^= h3 >> 29;
        }
        h = mix64(mix64(mix64(mix64(h ^ h0) ^ h1) ^ h2) ^ h3);
    }
    for (; n >= 8; n -= 8, b += 8) {
        uint64_t w;
        memcpy(&w, b, 8);
        h = (h ^ w) * 0x9FB21C651E98DF25ull;
        h ^= h >> 29;
    }
    uint64_t tail = 0;
    if (n)
        memcpy(&tail, b, n);
    return mix64(h ^ tail);
}

/* ---- number formats ---- */

size_t dtype_size(enum dtype t)
{
    switch (t) {
    case DT_I64: return 8;
    case DT_F32: case DT_I32: return 4;
    case DT_F16: case DT_BF16: case DT_I16: return 2;
    case DT_I8: case DT_U8: case DT_BOOL: return 1;
    default: return 0; /* packed types, too */
    }
}

const char *dtype_name(enum dtype t)
{
    static const char *const name[] = {"none", "F32", "F16", "BF16", "I64", "I32",
                                       "I16",  "I8",  "U8",  "BOOL", "other",
                                       "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K",
                                       "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
                                       "NVFP4", "E4M3", "E2M1"};
    return (unsigned)t < LEN(name) ? name[t] : "?";
}

uint16_t f32_to_bf16(float f)
{
    union { float f; uint32_t u; } x = {.f = f};
    if ((x.u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(x.u >> 16 | 0x40);
    return (uint16_t)((x.u + 0x7fff + (x.u >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t v)
{
    uint32_t sign = (uint32_t)(v & 0x8000) << 16, exp = v >> 10 & 31, man = v & 1023;
    union { uint32_t u; float f; } x;
    if (exp == 31)
        x.u = sign | 0x7f800000 | man << 13;
    else if (exp)
        x.u = sign | (exp + 112) << 23 | man << 13;
    else {
        x.f = (float)man * 0x1p-24f;
        x.u |= sign;
    }
    return x.f;
}

bool f16_of(float v, uint16_t *half)
{
    union { float f; uint32_t u; } x = {.f = v};
    const int exp = (int)(x.u >> 23 & 255) - 112; /* as f16 has it */
    const uint32_t man = x.u & 0x7fffff;
    if (exp >= 31)
        return false;
    *half = (uint16_t)(x.u >> 16 & 0x8000);
    if (exp > 0)
        *half |= (uint16_t)(exp << 10 | (int)(man >> 13));
    else if (exp > -10)
        *half |= (uint16_t)((man | 0x800000) >> (14 - exp));
    return f16_to_f32(*half) == v;
}

FILE *temporary_file(void)
{
    int fd = memfd_create("aerie", MFD_CLOEXEC);
    FILE *f = fd >= 0 ? fdopen(fd, "w+") : NULL;
    if (!f && fd >= 0)
        close(fd);
    return f;
}
