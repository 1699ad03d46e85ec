/* msgpack.c - see msgpack.h; the format is that of github.com/msgpack/msgpack, spec.md. */
#include "engine/remote/msgpack.h"

struct msgpack msgpack_of(const void *p, size_t n)
{
    return (struct msgpack){p, (const uint8_t *)p + n, false};
}

static bool fail(struct msgpack *pack)
{
    pack->bad = true;
    return false;
}

/* An unsigned big-endian number of n bytes. */
static bool number(struct msgpack *pack, int n, uint64_t *out)
{
    if (pack->end - pack->p < n)
        return fail(pack);
    *out = 0;
    while (n--)
        *out = *out << 8 | *pack->p++;
    return true;
}

static bool set_bytes(struct msgpack *pack, struct msgpack_value *v, enum msgpack_kind kind,
                      uint64_t n)
{
    if (n > (uint64_t)(pack->end - pack->p))
        return fail(pack);
    v->kind = kind;
    v->p = (const char *)pack->p;
    v->n = (uint32_t)n;
    pack->p += n;
    return true;
}

/* Every item takes at least a byte. */
static bool set_items(struct msgpack *pack, struct msgpack_value *v, enum msgpack_kind kind,
                      uint64_t n)
{
    if ((kind == MP_MAP ? 2 * n : n) > (uint64_t)(pack->end - pack->p))
        return fail(pack);
    v->kind = kind;
    v->n = (uint32_t)n;
    return true;
}

static void set_int(struct msgpack_value *v, int64_t i)
{
    v->kind = MP_INT;
    v->i = i;
}

static void set_unsigned(struct msgpack_value *v, uint64_t u)
{
    v->kind = u > INT64_MAX ? MP_WIDE : MP_INT;
    v->i = u > INT64_MAX ? 0 : (int64_t)u;
    v->wide = u;
}

static void set_signed(struct msgpack_value *v, uint64_t u, int bytes)
{
    int unused = 64 - 8 * bytes;
    CHECK(unused < 64);
    set_int(v, (int64_t)(u << unused) >> unused);
}

static void set_real(struct msgpack_value *v, uint64_t bits, int bytes)
{
    uint32_t low = (uint32_t)bits;
    float f;
    v->kind = MP_REAL;
    if (bytes == 8) {
        memcpy(&v->real, &bits, sizeof v->real);
        return;
    }
    memcpy(&f, &low, sizeof f);
    v->real = (double)f;
}

/* The formats from 0xC4 on; those of one kind stand in the order of their sizes. */
static bool next_long(struct msgpack *pack, int head, struct msgpack_value *v)
{
    static const struct {
        uint8_t bytes; /* of the number behind the head */
        uint8_t is;
    } form[] = {
        {1, 'b'}, {2, 'b'}, {4, 'b'},        /* C4: bytes */
        {1, 'x'}, {2, 'x'}, {4, 'x'},                 /* C7: extensions */
        {4, 'f'}, {8, 'f'},                           /* CA: float, double */
        {1, 'u'}, {2, 'u'}, {4, 'u'}, {8, 'u'},       /* CC: unsigned */
        {1, 's'}, {2, 's'}, {4, 's'}, {8, 's'},       /* D0: signed */
        {0, 'x'}, {0, 'x'}, {0, 'x'}, {0, 'x'}, {0, 'x'}, /* D4: extensions of 1, 2, 4, 8, 16
                                                             bytes */
        {1, 't'}, {2, 't'}, {4, 't'},                 /* D9: texts */
        {2, 'a'}, {4, 'a'}, {2, 'm'}, {4, 'm'},       /* DC: arrays, maps */
    };
    int at = head - 0xC4, bytes = form[at].bytes;
    uint64_t u = 0;
    if (!number(pack, bytes, &u))
        return false;
    switch (form[at].is) {
    case 'b': return set_bytes(pack, v, MP_BYTES, u);
    case 't': return set_bytes(pack, v, MP_TEXT, u);
    case 'x': /* a byte for the type is among what is passed over */
        return set_bytes(pack, v, MP_OTHER, 1 + (bytes ? u : (uint64_t)1 << (head - 0xD4)));
    case 'a': return set_items(pack, v, MP_ARRAY, u);
    case 'm': return set_items(pack, v, MP_MAP, u);
    case 'u': set_unsigned(v, u); return true;
    case 's': set_signed(v, u, bytes); return true;
    default: set_real(v, u, bytes); return true;
    }
}

bool msgpack_next(struct msgpack *pack, struct msgpack_value *v)
{
    *v = (struct msgpack_value){.kind = MP_NIL};
    if (pack->bad || pack->p == pack->end)
        return fail(pack);
    int head = *pack->p++;
    if (head < 0x80)
        set_int(v, head);
    else if (head < 0x90)
        return set_items(pack, v, MP_MAP, head & 15);
    else if (head < 0xA0)
        return set_items(pack, v, MP_ARRAY, head & 15);
    else if (head < 0xC0)
        return set_bytes(pack, v, MP_TEXT, head & 31);
    else if (head >= 0xE0)
        set_int(v, head - 256);
    else if (head == 0xC2 || head == 0xC3)
        *v = (struct msgpack_value){.kind = MP_BOOL, .i = head & 1};
    else if (head >= 0xC4)
        return next_long(pack, head, v);
    else if (head != 0xC0) /* 0xC1 begins no value */
        return fail(pack);
    return true;
}

bool msgpack_skip(struct msgpack *pack)
{
    struct msgpack_value v;
    for (uint64_t left = 1; left > 0; left--) {
        if (!msgpack_next(pack, &v))
            return false;
        left += v.kind == MP_ARRAY ? v.n : v.kind == MP_MAP ? 2 * (uint64_t)v.n : 0;
    }
    return true;
}

bool msgpack_is(const struct msgpack_value *v, const char *text)
{
    size_t n = strlen(text);
    return v->kind == MP_TEXT && v->n == n && memcmp(v->p, text, n) == 0;
}
