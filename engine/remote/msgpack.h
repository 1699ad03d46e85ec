/* msgpack.h - reads MessagePack value by value, from memory, without memory of its own.
 *
 * Any bytes can be read: a length that goes past the end, or a byte that begins no value, makes the
 * reader fail, and a container cannot have more items than bytes follow, so the work is bounded by
 * the length of the input. No function is recursive. Pure functions; a struct belongs to one
 * thread.
 */
#pragma once

#include "kernels/base.h"

struct msgpack {
    const uint8_t *p, *end;
    bool bad; /* a read has failed: all others do, too */
};

enum msgpack_kind {
    MP_NIL,
    MP_BOOL,
    MP_INT,   /* what fits int64_t */
    MP_WIDE,  /* an unsigned number beyond it */
    MP_REAL,
    MP_TEXT,  /* bytes; not checked for UTF-8 */
    MP_BYTES,
    MP_ARRAY, /* n values follow */
    MP_MAP,   /* n pairs of values follow */
    MP_OTHER, /* an extension: its bytes */
};

struct msgpack_value {
    enum msgpack_kind kind;
    int64_t i;       /* MP_BOOL, MP_INT */
    uint64_t wide;   /* MP_WIDE */
    double real;     /* MP_REAL */
    const char *p;   /* MP_TEXT, MP_BYTES, MP_OTHER: within the text read */
    uint32_t n;      /* of their bytes, of items or of pairs */
};

struct msgpack msgpack_of(const void *p, size_t n);
/* Reads one value; of a container only its head: its items are the next values. False: there is
 * none. */
bool msgpack_next(struct msgpack *pack, struct msgpack_value *v);
/* Skips one value with everything in it. */
bool msgpack_skip(struct msgpack *pack);
/* Whether a value is this text. */
bool msgpack_is(const struct msgpack_value *v, const char *text);
