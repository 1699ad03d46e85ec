/* ckpt.h - checkpoints taken apart, changed and written again, for the tests of models/.
 *
 * A struct ck is a folder in memory: its config and its tensors in file order. Written without a
 * change it loads as the original does.
 */
#pragma once

#include "tests/scratch.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ck_tensor {
    char *name, *dtype;
    json_t *shape;
    char *data;
    size_t n;
};

struct ck {
    json_t *config;
    struct ck_tensor *t;
    int n;
};

/* ---- files ---- */

static inline void ck_write(const char *dir, const char *name, const void *p, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

static inline void ck_write_text(const char *dir, const char *name, const char *text)
{
    ck_write(dir, name, text, strlen(text));
}

static inline struct buf ck_read(const char *dir, const char *name)
{
    char path[512];
    struct buf b;
    struct err e;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!buf_read_file(&b, path, 1 << 30, &e))
        die("%s", e.msg);
    return b;
}

/* ---- reading ---- */

static inline uint64_t ck_u64(const char *p)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | (uint8_t)p[i];
    return n;
}

static inline struct ck_tensor *ck_add(struct ck *c, const char *name, const char *dtype,
                                       json_t *shape, const void *data, size_t n)
{
    c->t = xrealloc(c->t, (size_t)c->n + 1, sizeof *c->t);
    struct ck_tensor *t = &c->t[c->n++];
    *t = (struct ck_tensor){xstrdup(name), xstrdup(dtype), shape, xmalloc(n), n};
    if (data)
        memcpy(t->data, data, n);
    else
        memset(t->data, 0, n);
    return t;
}

static inline int ck_order(const void *a, const void *b)
{
    return strcmp(((const struct ck_tensor *)a)->name, ((const struct ck_tensor *)b)->name);
}

/* Reads DIR/config.json (if there) and DIR/FILE. */
static inline struct ck ck_load(const char *dir, const char *file)
{
    struct ck c = {0};
    struct buf b = ck_read(dir, file), text = {0};
    uint64_t n = ck_u64(b.p);
    json_t *head = json_loadb(b.p + 8, n, 0, NULL), *v;
    const char *name;
    CHECK(head);
    json_object_foreach(head, name, v) {
        if (!strcmp(name, "__metadata__"))
            continue;
        const json_t *o = json_object_get(v, "data_offsets");
        size_t from = (size_t)json_integer_value(json_array_get(o, 0));
        size_t to = (size_t)json_integer_value(json_array_get(o, 1));
        ck_add(&c, name, json_string_value(json_object_get(v, "dtype")),
               json_deep_copy(json_object_get(v, "shape")), b.p + 8 + n + from, to - from);
    }
    qsort(c.t, (size_t)c.n, sizeof *c.t, ck_order);
    json_decref(head);
    buf_free(&b);
    text = ck_read(dir, "config.json");
    c.config = json_loadb(text.p, text.n, 0, NULL);
    CHECK(c.config);
    buf_free(&text);
    return c;
}

static inline void ck_free_tensor(struct ck_tensor *t)
{
    free(t->name);
    free(t->dtype);
    free(t->data);
    json_decref(t->shape);
}

static inline void ck_free(struct ck *c)
{
    for (int i = 0; i < c->n; i++)
        ck_free_tensor(&c->t[i]);
    free(c->t);
    json_decref(c->config);
    *c = (struct ck){0};
}

/* Adds the tensors of DIR/FILE. */
static inline void ck_load_more(struct ck *c, const char *dir, const char *file)
{
    struct ck more = ck_load(dir, file);
    for (int k = 0; k < more.n; k++)
        ck_add(c, more.t[k].name, more.t[k].dtype, json_incref(more.t[k].shape), more.t[k].data,
               more.t[k].n);
    ck_free(&more);
}

static inline struct ck_tensor *ck_find(const struct ck *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->t[i].name, name))
            return &c->t[i];
    die("no tensor %s", name);
}

static inline void ck_drop(struct ck *c, const char *name)
{
    struct ck_tensor *t = ck_find(c, name);
    ck_free_tensor(t);
    *t = c->t[--c->n];
}

static inline void ck_rename(struct ck *c, const char *from, const char *to)
{
    struct ck_tensor *t = ck_find(c, from);
    free(t->name);
    t->name = xstrdup(to);
}

static inline size_t ck_type_size(const char *dtype)
{
    return strstr(dtype, "64") ? 8 : strstr(dtype, "32") ? 4 : strstr(dtype, "16") ? 2 : 1;
}

/* Gives a tensor another type and shape (NULL: as it is), with that many bytes of data. */
static inline void ck_reshape(struct ck *c, const char *name, const char *dtype, const char *shape)
{
    struct ck_tensor *t = ck_find(c, name);
    if (dtype) {
        free(t->dtype);
        t->dtype = xstrdup(dtype);
    }
    if (shape) {
        json_decref(t->shape);
        t->shape = json_loads(shape, JSON_DECODE_ANY, NULL);
    }
    size_t i, n = ck_type_size(t->dtype);
    json_t *v;
    json_array_foreach(t->shape, i, v)
        n *= (size_t)json_integer_value(v);
    t->data = xrealloc(t->data, n, 1);
    if (n > t->n)
        memset(t->data + t->n, 0, n - t->n);
    t->n = n;
}

/* ---- writing ---- */

/* The header of tensors [from, to), as JSON. */
static inline json_t *ck_header(const struct ck *c, int from, int to)
{
    json_t *head = json_object();
    size_t at = 0;
    for (int i = from; i < to; i++) {
        const struct ck_tensor *t = &c->t[i];
        json_object_set_new(head, t->name,
                            json_pack("{s:s, s:O, s:[I,I]}", "dtype", t->dtype, "shape", t->shape,
                                      "data_offsets", (json_int_t)at, (json_int_t)(at + t->n)));
        at += t->n;
    }
    return head;
}

/* A file of `n` header bytes and the data of tensors [from, to). */
static inline struct buf ck_file(const struct ck *c, int from, int to, const char *head, size_t n)
{
    struct buf b = {0};
    for (int i = 0; i < 8; i++)
        buf_char(&b, (char)(n >> (8 * i)));
    buf_add(&b, head, n);
    for (int i = from; i < to; i++)
        buf_add(&b, c->t[i].data, c->t[i].n);
    return b;
}

static inline void ck_save_file(const struct ck *c, const char *dir, const char *name, int from,
                                int to)
{
    json_t *head = ck_header(c, from, to);
    char *text = json_dumps(head, JSON_COMPACT);
    struct buf b = ck_file(c, from, to, text, strlen(text));
    ck_write(dir, name, b.p, b.n);
    buf_free(&b);
    free(text);
    json_decref(head);
}

static inline void ck_save_config(const struct ck *c, const char *dir)
{
    char *text = json_dumps(c->config, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    ck_write_text(dir, "config.json", text);
    free(text);
}

/* As a single file, or as `shards` files (0-based names) with an index. */
static inline void ck_save(const struct ck *c, const char *dir, int shards)
{
    ck_save_config(c, dir);
    if (shards <= 1) {
        ck_save_file(c, dir, "model.safetensors", 0, c->n);
        return;
    }
    json_t *map = json_object();
    for (int s = 0; s < shards; s++) {
        char name[64];
        int from = c->n * s / shards, to = c->n * (s + 1) / shards;
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s, shards - 1);
        ck_save_file(c, dir, name, from, to);
        for (int i = from; i < to; i++)
            json_object_set_new(map, c->t[i].name, json_string(name));
    }
    json_t *index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 0, "weight_map", map);
    char *text = json_dumps(index, 0);
    ck_write_text(dir, "model.safetensors.index.json", text);
    free(text);
    json_decref(index);
}

/* Sets (or, with NULL, removes) a config key; `path` may be "a.b.c". */
static inline void ck_set(struct ck *c, const char *path, json_t *v)
{
    json_t *o = c->config;
    char key[128];
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        json_t *in = json_object_get(o, key);
        if (!json_is_object(in)) {
            in = json_object();
            json_object_set_new(o, key, in);
        }
        o = in;
    }
    if (v)
        json_object_set_new(o, path, v);
    else
        json_object_del(o, path);
}

/* The same, from JSON text. */
static inline void ck_set_text(struct ck *c, const char *path, const char *json)
{
    json_t *v = json ? json_loads(json, JSON_DECODE_ANY, NULL) : NULL;
    CHECK(!json || v);
    ck_set(c, path, v);
}
