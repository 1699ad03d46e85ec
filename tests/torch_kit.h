/* torch_kit.h - files as torch.save() writes them: a pickle and its storages in a zip archive whose
 * members are stored. For tests that need such files without torch. */
#pragma once

#include "kernels/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pt_member {
    char name[64];
    struct buf bytes;
};

struct pt {
    struct buf pickle;
    struct pt_member member[64]; /* the storages */
    int n, memo;
    int method; /* of the members; 0: stored */
    bool wide;   /* the archive's end has its numbers in the 64-bit record */
    bool no_crc; /* the storages' CRC is 0 */
};

#define KIT static __attribute__((unused))

KIT void pt_number(struct buf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buf_char(b, i < 8 ? (char)(v >> (8 * i)) : 0);
}

KIT void pt_text(struct pt *p, const char *s)
{
    buf_char(&p->pickle, 'X');
    pt_number(&p->pickle, strlen(s), 4);
    buf_str(&p->pickle, s);
}

KIT void pt_int(struct pt *p, int64_t v)
{
    if (v >= INT32_MIN && v <= INT32_MAX) {
        buf_char(&p->pickle, 'J');
        pt_number(&p->pickle, (uint64_t)v, 4);
    } else {
        buf_add(&p->pickle, "\x8a\x08", 2);
        pt_number(&p->pickle, (uint64_t)v, 8);
    }
}

KIT void pt_begin(struct pt *p)
{
    *p = (struct pt){0};
    buf_add(&p->pickle, "\x80\x02}(", 4); /* a dict, and a mark for its entries */
}

/* A storage of so many bytes; its index. */
KIT int pt_storage(struct pt *p, const void *bytes, size_t n)
{
    struct pt_member *m = &p->member[p->n];
    CHECK(p->n < 64);
    snprintf(m->name, sizeof m->name, "data/%d", p->n);
    buf_add(&m->bytes, bytes, n);
    return p->n++;
}

/* A tensor in storage `at`, of elements `count`, as torch._utils._rebuild_tensor_v2. */
KIT void pt_view(struct pt *p, const char *class, int at, int64_t count, int64_t first, int n_dim,
                 const int64_t *dim, const int64_t *stride)
{
    char key[16];
    snprintf(key, sizeof key, "%d", at);
    buf_str(&p->pickle, "ctorch._utils\n_rebuild_tensor_v2\n((");
    pt_text(p, "storage");
    buf_printf(&p->pickle, "ctorch\n%s\n", class);
    pt_text(p, key);
    pt_text(p, "cuda:0");
    pt_int(p, count);
    buf_str(&p->pickle, "tQ");
    pt_int(p, first);
    for (int k = 0; k < 2; k++) {
        buf_char(&p->pickle, '(');
        for (int i = 0; i < n_dim; i++)
            pt_int(p, (k ? stride : dim)[i]);
        buf_char(&p->pickle, 't');
    }
    buf_str(&p->pickle, "\x89" "ccollections\nOrderedDict\n)RtR");
}

KIT void pt_floats(struct pt *p, const char *name, const float *x, int64_t rows, int64_t width)
{
    pt_text(p, name);
    int at = pt_storage(p, x, (size_t)(rows * width) * sizeof *x);
    pt_view(p, "FloatStorage", at, rows * width, 0, 2, (int64_t[]){rows, width},
            (int64_t[]){width, 1});
}

/* The same numbers, each rounded to bf16. */
KIT void pt_halves(struct pt *p, const char *name, const float *x, int64_t rows, int64_t width)
{
    size_t n = (size_t)(rows * width);
    uint16_t *half = xmalloc(n * sizeof *half);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        half[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    pt_text(p, name);
    int at = pt_storage(p, half, n * sizeof *half);
    pt_view(p, "BFloat16Storage", at, (int64_t)n, 0, 2, (int64_t[]){rows, width},
            (int64_t[]){width, 1});
    free(half);
}

KIT void pt_wholes(struct pt *p, const char *name, const int64_t *x, int64_t n)
{
    pt_text(p, name);
    int at = pt_storage(p, x, (size_t)n * sizeof *x);
    pt_view(p, "LongStorage", at, n, 0, 1, &n, (int64_t[]){1});
}

KIT uint32_t pt_crc(const struct buf *b)
{
    uint32_t c = 0xffffffff;
    for (size_t i = 0; i < b->n; i++) {
        c ^= (uint8_t)b->p[i];
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0xedb88320 : 0);
    }
    return ~c;
}

KIT void pt_put(struct buf *out, struct buf *directory, const char *name, const struct buf *bytes,
                int method, uint32_t crc)
{
    struct buf common = {0};
    uint64_t at = out->n;
    char full[80];
    snprintf(full, sizeof full, "x/%s", name);
    pt_number(&common, 0, 2); /* flags */
    pt_number(&common, (uint64_t)method, 2);
    pt_number(&common, 0, 4); /* time */
    pt_number(&common, crc, 4);
    pt_number(&common, bytes->n, 4);
    pt_number(&common, bytes->n, 4);
    pt_number(&common, strlen(full), 2);
    pt_number(&common, 0, 2); /* extra field */
    buf_add(out, "PK\3\4\0\0", 6);
    buf_add(out, common.p, common.n);
    buf_str(out, full);
    if (bytes->n)
        buf_add(out, bytes->p, bytes->n);
    buf_add(directory, "PK\1\2\0\0\0\0", 8);
    buf_add(directory, common.p, common.n);
    pt_number(directory, 0, 2 + 2 + 2 + 4); /* comment, disk, attributes */
    pt_number(directory, at, 4);
    buf_str(directory, full);
    buf_free(&common);
}

/* The archive, in *out; *p is empty afterwards. */
KIT void pt_end(struct pt *p, struct buf *out)
{
    struct buf directory = {0}, little = {0};
    if (p->pickle.n && p->pickle.p[p->pickle.n - 1] != '.')
        buf_str(&p->pickle, "u.");
    buf_str(&little, "little");
    pt_put(out, &directory, "data.pkl", &p->pickle, p->method, pt_crc(&p->pickle));
    pt_put(out, &directory, "byteorder", &little, 0, pt_crc(&little));
    for (int i = 0; i < p->n; i++) {
        const struct buf *bytes = &p->member[i].bytes;
        pt_put(out, &directory, p->member[i].name, bytes, 0, p->no_crc ? 0 : pt_crc(bytes));
        buf_free(&p->member[i].bytes);
    }
    const uint64_t at = out->n, n = (uint64_t)p->n + 2;
    buf_add(out, directory.p, directory.n);
    if (p->wide) {
        const uint64_t record = out->n;
        buf_add(out, "PK\6\6", 4);
        pt_number(out, 44, 8);     /* bytes of the record after this number */
        pt_number(out, 0, 2 + 2 + 4 + 4);
        const uint64_t number[] = {n, n, directory.n, at};
        for (int i = 0; i < 4; i++)
            pt_number(out, number[i], 8);
        buf_add(out, "PK\6\7\0\0\0\0", 8);
        pt_number(out, record, 8);
        pt_number(out, 1, 4);
    }
    const uint64_t none = UINT64_MAX;
    buf_add(out, "PK\5\6\0\0\0\0", 8);
    pt_number(out, p->wide ? none : n, 2);
    pt_number(out, p->wide ? none : n, 2);
    pt_number(out, p->wide ? none : directory.n, 4);
    pt_number(out, p->wide ? none : at, 4);
    pt_number(out, 0, 2);
    buf_free(&directory);
    buf_free(&little);
    buf_free(&p->pickle);
}

KIT void pt_write(struct pt *p, const char *path)
{
    struct buf out = {0};
    pt_end(p, &out);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(out.p, 1, out.n, f) == out.n && fclose(f) == 0);
    buf_free(&out);
}
