/* base.h - the bottom of the stack: errors, checks, memory, clock, hashes, byte buffers, tensors.
 *
 * The one header every folder may include. Nothing here knows of models, tokens or pages; struct
 * violation only carries their numbers.
 * All functions are safe on any thread unless they say otherwise.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AERIE_VERSION "0.1.0"

/* ---- errors that the caller must handle: returned, never printed here ---------------------- */

/* Why something failed; the numbers are the program's exit codes (repl/README.md, "Exit codes"). */
enum err_kind {
    ERR_NONE = 0,
    ERR_NEGATIVE = 1,  /* the answer is no: diverged, nothing found */
    ERR_USAGE = 2,     /* wrong usage, and every error that has no kind of its own */
    ERR_MODEL = 3,     /* the model or the device is not available */
    ERR_DB = 4,        /* the session database */
    ERR_INVARIANT = 5, /* a checker rule was violated */
};

/* Which rule of the checker (engine/plan/check.h) was violated, where, and what was found there;
 * made by fault_at() (engine/fault.h). A field that names nothing is -1. */
struct violation {
    int rule;    /* N of the rule IN; 0: no rule was violated */
    bool filled; /* it is one of a plan that the device filled in, which as a whole violates I17 */
    int mode;    /* enum plan_mode of the refused plan */
    int pool;    /* enum pool_id */
    bool table, prefix; /* the place is in the plan's table of the pool; in its prefix part */
    int sequence;              /* index of the sequence that a sweep of all of them was at */
    int row, request, column;  /* of the plan or its table; column: a logical page */
    int cell, page;            /* a position of the sequence; a page of the pool */
    bool compared;             /* found and expected hold numbers that should be equal */
    int64_t found, expected;
};

struct err {
    enum err_kind kind;
    char msg[512]; /* one line: what, where, what was expected; to be printed by err_print() */
    struct violation at; /* of an ERR_INVARIANT of the checker; else at.rule is 0 */
};

/* Fills *e (which may be NULL) and returns false, so that callers can `return err_set(...)`. */
bool err_set(struct err *e, enum err_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Puts "PREFIX: " in front of the message in *e (which may be NULL); returns false. */
bool err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- CHECK: assertions on aerie's own correctness, active in release builds, too ------------ */

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0))                                                          \
            die("%s:%d: check failed: %s", __FILE__, __LINE__, #cond);                             \
    } while (0)

/* Prints a message on standard error and aborts. */
_Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints "aerie: TEXT" and a line end on standard error, without allocating if the line has at
 * most 1,000 bytes. In the text, whatever utf8_is_hidden() is written as <U+001B>, so that no name
 * in it commands a terminal. One write, unless the text holds such characters. A signal that
 * interrupts the write loses the line only where the write would have to wait again. */
void err_print(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* As err_print(), without "aerie: ". */
void err_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Sets a function that runs once before die() or no_memory() prints; the repl restores the terminal
 * there. */
void die_hook(void (*hook)(void));
/* Names an unfinished file that die() and no_memory() remove; NULL: none. The caller keeps the
 * path. One file at a time. */
void die_removes(const char *path);

/* ---- memory: these functions end the program if the system has none; callers free() ---------- */

/* Prints "aerie: out of memory (WHAT)" and ends the process with ERR_USAGE. It runs no exit
 * handlers: other threads go on until then, and what the log has acknowledged is on the disk. */
_Noreturn void no_memory(const char *what, ...) __attribute__((format(printf, 1, 2)));

void *xmalloc(size_t n) __attribute__((malloc, returns_nonnull));
/* zeroed; dies when n * size overflows */
void *xcalloc(size_t n, size_t size) __attribute__((malloc, returns_nonnull));
void *xrealloc(void *p, size_t n, size_t size) __attribute__((returns_nonnull));
/* 64-byte aligned, freed with free() */
void *xaligned(size_t n) __attribute__((malloc, returns_nonnull));
char *xstrdup(const char *s) __attribute__((malloc, returns_nonnull));
char *xasprintf(const char *fmt, ...)
    __attribute__((malloc, returns_nonnull, format(printf, 1, 2)));
/* free() of each of these pointers. */
#define FREE(...)                                                                                  \
    free_each((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))
static inline void free_each(void *const *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(p[i]);
}

/* False on overflow; *out is unchanged then. */
static inline bool size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
/* The product of two counts or indices in 64 bits, where it cannot overflow. Products of ints that
 * become an address or a size go through here: `make lint` finds those that do not. */
static inline int64_t mul64(int a, int b)
{
    return (int64_t)a * b;
}
static inline int div_up(int a, int b) { return a / b + (a % b > 0); } /* b > 0 */
static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }
/* For "%d turn%s": "" or "s". */
static inline const char *plural(long long n) { return n == 1 ? "" : "s"; }

/* ---- numbers in text ------------------------------------------------------------------------- */

/* Reads a decimal number, "-" before it or not, as an int and moves *s behind it. False, with *s
 * and *out unchanged, if *s begins with anything else (a blank, "+") or the number is no int. */
bool int_at(const char **s, int *out);
/* Reads "9.214": two numbers of digits only with a full stop between them; *s, *turn and *step as
 * above. */
bool address_at(const char **s, int *turn, int *step);

/* ---- a growable byte buffer; NUL-terminated after the first write; {0} is empty ------------- */

struct buf {
    char *p;
    size_t n, cap;
};

void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_char(struct buf *b, char c);
void buf_utf8(struct buf *b, uint32_t cp); /* a code point; nothing for one beyond U+10FFFF */
/* Writes 2 n lower-case digits, without a NUL. */
void hex_digits(char *out, const uint8_t *p, size_t n);
void buf_hex(struct buf *b, const void *p, size_t n); /* two lower-case digits per byte */
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
void buf_or(struct buf *b, int i, int n, const char *word); /* word i of n: "a, b or c" */
void buf_clear(struct buf *b); /* keeps the memory */
void buf_free(struct buf *b);
/* Whether no file has this name. False also if this cannot be determined: opening the file then
 * gives the reason. */
bool file_missing(const char *path);
/* The folder in which a path lies, "." or "/" at least. The caller frees. */
char *path_folder(const char *path);
/* open() with O_CLOEXEC, repeated while signals interrupt it; -1 and errno. Not for files whose
 * opening may block: FIFOs, devices. */
int file_open(const char *path, int flags, unsigned mode);
/* Opens a regular file for reading; returns the descriptor, or -1 and *e (ERR_USAGE). Refuses a
 * FIFO, a device, a socket or a folder without waiting for its other end. */
int file_open_regular(const char *path, struct err *e);
/* Whether a regular file has at most max bytes; anything else, such as a pipe, has no size: reading
 * it finds out. False and *e (ERR_USAGE): the file has more, and nothing of it was read: a file of
 * holes can claim any size. */
bool file_fits(int fd, const char *path, uint64_t max, struct err *e);
/* Takes the permissions of group and others from a regular file of this user. */
void file_make_private(const char *path);
/* Writes all n bytes, in as many calls as necessary. False and errno: not all were written. */
bool write_fully(int fd, const void *bytes, size_t n);
/* Makes the n bytes a file that only this user can read, in place of one that is there: they are
 * written beside it, to a hidden file of this process, which is renamed. False and errno: the file
 * is as it was. */
bool file_replace(const char *path, const void *bytes, size_t n);
/* Reads n bytes from the file's offset `at`, in as many calls as necessary. Returns the number
 * read, which is smaller at the end of the file; -1 and errno. */
ptrdiff_t pread_fully(int fd, void *bytes, size_t n, uint64_t at);
/* Reads a whole regular file into *out, which the caller frees. False and *e (ERR_USAGE) if it
 * cannot be read or has more than max bytes; a file too large is refused before it is read. *out is
 * empty then. */
bool buf_read_file(struct buf *out, const char *path, size_t max, struct err *e);
/* As buf_read_file(), of a file that is open, from its offset on; name: for messages. Closes fd in
 * every case. */
bool buf_read_open(struct buf *out, int fd, const char *name, size_t max, struct err *e);

/* ---- growable arrays; {NULL, 0} is empty ----------------------------------------------------- */

/* The element behind the n of the array v, which now has one more; its bytes are not set:
 * `*APPEND(list->v, list->n) = x;`. x must not read n. The array keeps no capacity: it is
 * reallocated whenever n is 0 or a power of two. So all of its elements must come from APPEND();
 * n may become smaller in between. */
#define APPEND(v, n)                                                                               \
    ({                                                                                             \
        MAKE_ROOM(v, n);                                                                           \
        &(v)[(n)++];                                                                               \
    })
/* The same without counting: for arrays that share their n. */
#define MAKE_ROOM(v, n)                                                                            \
    do {                                                                                           \
        if (((n) & ((n) - 1)) == 0)                                                                \
            (v) = xrealloc((v), (n) ? 2 * (size_t)(n) : 1, sizeof *(v));                           \
    } while (0)
/* Room for `need` elements in the array v of `cap`: for arrays that grow by several elements, and
 * for those that are often emptied and filled again. */
#define RESERVE(v, need, cap)                                                                      \
    do {                                                                                           \
        if ((need) > (cap)) {                                                                      \
            (cap) = (need) + (need) / 2 + 8;                                                       \
            (v) = xrealloc((v), (size_t)(cap), sizeof *(v));                                       \
        }                                                                                          \
    } while (0)

/* ---- a growable array of token ids; {0} is empty --------------------------------------------- */

struct ids {
    int32_t *v;
    int n, cap;
};

void ids_add(struct ids *a, int32_t id);
void ids_cat(struct ids *a, const int32_t *v, int n);
void ids_free(struct ids *a);
bool ids_equal(const struct ids *a, const struct ids *b);

/* ---- clock and hashes ---------------------------------------------------------------------- */

uint64_t clock_ns(void);     /* CLOCK_MONOTONIC */
/* A file without a name, in memory, for writing and reading; NULL and errno. */
FILE *temporary_file(void);
int64_t clock_unix_ms(void); /* wall clock, for display: durations and order use clock_ns() */

/* splitmix64's finaliser: a bijection on 64 bits (Steele, Lea, Flood 2014). */
static inline uint64_t mix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
/* 64-bit digest of bytes, chained through `seed`. Not cryptographic. Same on every machine. */
uint64_t hash64(const void *p, size_t n, uint64_t seed);
/* Streaming SHA-256 (FIPS 180-4), for weights and for the log's checksum chain. */
struct sha256 {
    uint32_t h[8];
    uint64_t n;
    uint8_t block[64];
};
void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *p, size_t n);
void sha256_end(struct sha256 *s, uint8_t out[32]);
void sha256_end_hex(struct sha256 *s, char out[65]); /* 64 hexadecimal digits and a NUL */
void sha256_hex(const void *p, size_t n, char out[65]); /* of n bytes */
/* CRC-32 of n bytes, as ZIP and PNG have it (reflected, polynomial 0x04C11DB7). Any thread. */
uint32_t crc32_of(const void *p, size_t n);
/* Adds whole blocks of 64 bytes to a state, in plain C or with the processor's instructions (NULL:
 * it has none): the functions above take these where there are any. */
typedef void sha256_blocks_fn(uint32_t h[8], const uint8_t *p, size_t blocks);
void sha256_blocks_c(uint32_t h[8], const uint8_t *p, size_t blocks);
sha256_blocks_fn *sha256_blocks_cpu(void);

/* ---- tensors -------------------------------------------------------------------------------- */

enum dtype { DT_NONE, DT_F32, DT_F16, DT_BF16, DT_I64, DT_I32, DT_I16, DT_I8, DT_U8, DT_BOOL,
             DT_OTHER, /* a safetensors type that no model here uses */
             /* blocks of several elements: packed.h */
             DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_Q2_K, DT_Q3_K, DT_Q4_K, DT_Q5_K,
             DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS, DT_MXFP4, DT_NVFP4, DT_E4M3, DT_E2M1 };

/* Bytes of one element; 0 for DT_NONE, DT_OTHER and packed types, of which dtype_bytes() (packed.h)
 * tells the bytes of a row. */
size_t dtype_size(enum dtype t);
const char *dtype_name(enum dtype t);

enum { TENSOR_DIMS = 8 };

/* A named array of a checkpoint, row-major. `data` is host memory until a backend's upload()
 * replaces it; NULL: the checkpoint has no such tensor. The model owns the data; no tensor is freed
 * separately. The weights of a linear layer are (out, in). */
struct tensor {
    void *data;
    enum dtype type;
    int n_dim;
    int64_t dim[TENSOR_DIMS]; /* the first ones, if there are more */
    size_t bytes;
    const char *name; /* as in the file, for messages; valid as long as the model */
    bool by_row;      /* a matrix of which only single rows are read, as experts' biases */
    bool quantize;    /* a bf16 matrix that upload() quantizes to FP8 (fp8.h) */
    int unit;         /* exponent of the FP8 scale, set by upload() */
};

/* ---- norms, activations and number formats, used by model configs and kernels ---------------- */

enum norm_kind {
    NORM_NONE,  /* leave the row as it is */
    NORM_RMS,   /* x / rms(x) * w */
    NORM_RMS1P, /* x / rms(x) * (1 + w): gemma 2 and 3 */
    NORM_PLAIN, /* x / rms(x), no weight: gemma-4's v_norm */
    NORM_LAYER, /* (x - mean(x)) / deviation(x) * w: cohere 2 */
};

enum act_kind {
    ACT_NONE,
    ACT_SILU,
    ACT_GELU_TANH, /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    ACT_SWIGLU_CLAMP, /* gpt-oss, gated only: g = min(g, limit), u = clamp(u, +-limit),
                         (u + 1) g sigmoid(1.702 g) */
    ACT_SILU_CLAMP, /* gated only: min(silu(g), limit) clamp(u, +-limit) */
};

/* How a router weighs the experts that it has chosen. */
enum router_kind {
    ROUTER_CHOSEN,  /* softmax over the chosen ones */
    ROUTER_ALL,     /* their shares of the softmax over all */
    ROUTER_SIGMOID, /* their sigmoids, divided by the sum of these */
    ROUTER_RAW,     /* their sigmoids */
};

enum gate_kind {
    GATE_NONE,
    GATE_SIGMOID,
    GATE_SOFTPLUS, /* ln(1 + e^x) */
    GATE_CLAMP,    /* x becomes min(x, limit) clamp(by, +-limit) */
};

static inline float bf16_to_f32(uint16_t v)
{
    union { uint32_t u; float f; } x = {.u = (uint32_t)v << 16};
    return x.f;
}
uint16_t f32_to_bf16(float f); /* round to nearest even; NaN stays NaN */
float f16_to_f32(uint16_t v);
/* The f16 number that equals v. False: there is none, or v is not finite. */
bool f16_of(float v, uint16_t *half);

/* ---- stopping -------------------------------------------------------------------------------- */

#ifndef __cplusplus
#include <stdatomic.h>

/* Cancelling of requests. Requests are numbered in the order of submission. A cancel ends all
 * requests up to the newest number at that moment, those still queued included, and no later one;
 * nothing has to be reset afterwards. */
struct stop {
    atomic_uint_least64_t submitted; /* number of the newest request; the first is 1 */
    atomic_uint_least64_t cancelled; /* requests up to this number are to end */
    uint64_t running;                /* number of the request being served; set by its thread */
};

/* Cancels the requests up to a number. Any thread, and signal handlers. */
static inline void stop_up_to(struct stop *s, uint64_t number)
{
    uint_least64_t old = atomic_load(&s->cancelled);
    while (old < number && !atomic_compare_exchange_weak(&s->cancelled, &old, number))
        ;
}

/* Cancels all requests submitted so far. */
static inline void stop_all(struct stop *s)
{
    stop_up_to(s, atomic_load(&s->submitted));
}

/* Whether the running request was cancelled. NULL: never. Only on the thread that serves it. */
static inline bool stop_asked(const struct stop *s)
{
    return s && s->running <= atomic_load(&s->cancelled);
}

#include "kernels/idioms.h"
#endif
