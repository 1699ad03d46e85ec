/* model_kit.h - loading checkpoints in tests: golden folders, variants written on the spot, and
 * checks that a tensor is bound to its name in the file. */
#pragma once

#include "tests/ckpt.h"

#include "models/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#define G3 "tests/golden/gemma3-a"
#define OSS "tests/golden/gptoss-a"
#define G4 "tests/golden/gemma4-a"
#define EAGLE "tests/golden/eagle3-gptoss-a"
#define ASSIST "tests/golden/gemma4-a-assistant"
#define ST "model.safetensors"

#define KIT static __attribute__((unused))

KIT struct model load(const char *dir)
{
    struct model m;
    struct err e = {0};
    if (!model_load(&m, dir, NULL, &e))
        fail_msg("%s", e.msg);
    return m;
}

KIT struct model load_ck(const struct ck *c, int shards)
{
    char *dir = scratch_folder();
    ck_save(c, dir, shards);
    struct model m = load(dir);
    scratch_remove(dir);
    return m;
}

KIT struct draft load_draft(const struct ck *c, const struct model *target, const char *capture)
{
    struct draft d;
    struct err e = {0};
    char *dir = scratch_folder();
    ck_save(c, dir, 1);
    if (!draft_load(&d, dir, target, capture, NULL, &e))
        fail_msg("%s", e.msg);
    scratch_remove(dir);
    return d;
}

/* The tensor has the bytes of the tensor of that name in the file, and these dimensions. */
KIT void assert_tensor(struct safetensors *s, const struct tensor *t, const char *name, int d0,
                          int d1, int d2, int d3)
{
    const int dim[4] = {d0, d1, d2, d3};
    struct err e = {0};
    const struct tensor *f = st_find(s, name);
    if (!f)
        fail_msg("%s is not in the file", name);
    int rank = 0;
    while (rank < 4 && dim[rank])
        rank++;
    if (!t->data || strcmp(t->name, name) || t->n_dim != rank || t->bytes != f->bytes)
        fail_msg("%s is bound to %s", name, t->data ? t->name : "nothing");
    for (int i = 0; i < rank; i++)
        assert_int_equal(t->dim[i], dim[i]);
    assert_int_equal((uintptr_t)t->data % 64, 0);
    char *bytes = xmalloc(f->bytes);
    assert_true(st_read(s, f, bytes, &e));
    assert_memory_equal(bytes, t->data, f->bytes);
    free(bytes);
}

struct row { /* one tensor of a layer */
    size_t at;
    const char *name;
    int dim[4];
};
#define ROW(member, name, ...) {offsetof(struct layer, member), name, {__VA_ARGS__}}

KIT int assert_layer(struct safetensors *s, struct layer *l, const char *prefix,
                        const struct row *row, int n)
{
    for (int i = 0; i < n; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", prefix, row[i].name);
        assert_tensor(s, (struct tensor *)((char *)l + row[i].at), name, row[i].dim[0],
                      row[i].dim[1], row[i].dim[2], row[i].dim[3]);
    }
    int all, there = 0;
    struct tensor *t = layer_tensors(l, &all);
    for (int i = 0; i < all; i++)
        there += t[i].data != NULL;
    assert_int_equal(there, n); /* the file has no other tensor of this layer */
    return n;
}

#define COUNT(a) ((int)LEN(a))

KIT struct safetensors *open_dir(const char *dir)
{
    struct err e = {0};
    struct safetensors *s = st_open(dir, &e);
    if (!s)
        fail_msg("%s", e.msg);
    return s;
}
