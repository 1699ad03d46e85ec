/* idioms.h - idioms of C, each in one line where it is used. Include kernels/base.h instead, whose
 * last line this is. */
#pragma once

#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

#include "kernels/base.h"

/* err_set() with this value in place of false: `return FAILED(NULL, e, ERR_USAGE, ...);`. */
#define FAILED(value, ...) (err_set(__VA_ARGS__), (value))

/* In a function that ends in "...": runs the statement, where ap has the arguments behind fmt. */
#define WITH_ARGS(ap, fmt, ...)                                                                    \
    do {                                                                                           \
        va_list ap;                                                                                \
        va_start(ap, fmt);                                                                         \
        __VA_ARGS__;                                                                               \
        va_end(ap);                                                                                \
    } while (0)
/* Prints these arguments into the array `text`. */
#define PRINT_ARGS(text, fmt) WITH_ARGS(ap_, fmt, vsnprintf(text, sizeof text, fmt, ap_))

/* Before the declaration of local variables: by(&variable) is called where their block is left,
 * once the value of a return is known; the variable declared last comes first. */
#define FREED(by) __attribute__((cleanup(by)))

/* FREED(free_at) is for pointers, which may be NULL, to memory of xmalloc() and its kind. */
static inline void free_at(void *pointer)
{
    void *p;
    memcpy(&p, pointer, sizeof p);
    free(p);
}
/* FREED(fd_close) is for a descriptor; negative: none. */
static inline void fd_close(const int *fd)
{
    if (*fd >= 0)
        close(*fd);
}
/* FREED(folder_close) is for what opendir() returns, NULL included. */
static inline void folder_close(DIR **folder)
{
    if (*folder)
        closedir(*folder);
}

/* A variable of its own for each line of a function. */
#define OF_LINE(name) OF_LINE_AT(name, __LINE__)
#define OF_LINE_AT(name, line) OF_LINE_JOINED(name, line)
#define OF_LINE_JOINED(name, line) name##line

/* Locks the mutex until the block is left: `LOCKED(&q->mu);`. */
#define LOCKED(mu) FREED(unlock_at) pthread_mutex_t *OF_LINE(locked_) = lock_taken(mu)
static inline pthread_mutex_t *lock_taken(pthread_mutex_t *mu)
{
    pthread_mutex_lock(mu);
    return mu;
}
static inline void unlock_at(pthread_mutex_t **mu)
{
    pthread_mutex_unlock(*mu);
}

/* Removes element i of the n of the array v; what it owns is not freed. */
#define CUT(v, n, i)                                                                               \
    do {                                                                                           \
        (n)--;                                                                                     \
        memmove((v) + (i), (v) + (i) + 1, (size_t)((n) - (i)) * sizeof *(v));                      \
    } while (0)

/* The number of an array's elements. */
#define LEN(a) (sizeof(a) / sizeof *(a))

/* for-loop over the n elements of an array: x points at each. */
#define FOR_EACH(type, x, array, n)                                                                \
    for (type *x = (array), *x##_first = x; x - x##_first < (ptrdiff_t)(n); x++)

/* Whether `holds` is true for an i < n, and for all; no later ones are looked at than needed. */
#define ALL(i, n, holds) (!ANY(i, n, !(holds)))
#define ANY(i, n, holds)                                                                           \
    ({                                                                                             \
        bool any_ = false;                                                                         \
        for (__typeof__((n) + 0) i = 0; i < (n) && !any_; i++)                                     \
            any_ = (holds);                                                                        \
        any_;                                                                                      \
    })

/* The first i < n for which `before` is false, n if there is none: those for which it is true come
 * first. */
#define FIRST_NOT(i, n, before)                                                                    \
    ({                                                                                             \
        __typeof__((n) + 0) lo_ = 0, hi_ = (n);                                                    \
        while (lo_ < hi_) {                                                                        \
            __typeof__((n) + 0) i = lo_ + (hi_ - lo_) / 2;                                         \
            if (before)                                                                            \
                lo_ = i + 1;                                                                       \
            else                                                                                   \
                hi_ = i;                                                                           \
        }                                                                                          \
        lo_;                                                                                       \
    })

/* free() of a pointer, which is NULL then. */
#define DROP(pointer)                                                                              \
    do {                                                                                           \
        free(pointer);                                                                             \
        (pointer) = NULL;                                                                          \
    } while (0)

/* A copy of n elements; NULL: there are none. The caller frees. */
static inline void *xcopy(const void *array, size_t n, size_t size)
{
    return array && n ? memcpy(xcalloc(n, size), array, n * size) : NULL;
}

/* Frees the text at *at and sets a copy of another one, which may be NULL. */
static inline void set_text(char **at, const char *text)
{
    char *copy = text ? xstrdup(text) : NULL;
    free(*at);
    *at = copy;
}

/* The text of a buffer, which before the first write is "". */
static inline const char *buf_text(const struct buf *b)
{
    return b->p ? b->p : "";
}

/* Exchanges two values of one type. */
#define SWAP(a, b)                                                                                 \
    do {                                                                                           \
        __typeof__(a) swap_ = (a);                                                                 \
        (a) = (b);                                                                                 \
        (b) = swap_;                                                                               \
    } while (0)

/* A number of n bytes, the lowest first. */
static inline uint64_t little(const void *p, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint64_t)((const uint8_t *)p)[i] << (8 * i);
    return v;
}

/* The row of a table that is called `word`: its first member, a const char *, is that text. NULL:
 * none is. A table may be a list of texts. */
#define ROW_NAMED(table, word)                                                                     \
    row_named(table, LEN(table), sizeof *(table), word)
static inline const void *row_named(const void *table, size_t n, size_t each, const char *word)
{
    for (const char *row = table, *end = row + n * each; row < end; row += each)
        if (strcmp(*(const char *const *)(const void *)row, word) == 0)
            return row;
    return NULL;
}
