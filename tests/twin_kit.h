/* twin_kit.h - two forms of one model: the same weights, the same logits and greedy ids, bit for
 * bit. */
#pragma once

#include "tests/model_kit.h"
#include "tests/runtimes.h"

#include "kernels/packed.h"

struct named {
    const struct tensor *t[4096];
    int n;
};

KIT bool keep(struct tensor *t, void *arg, struct err *e)
{
    (void)e;
    struct named *all = arg;
    assert_true(all->n < 4096);
    all->t[all->n++] = t;
    return true;
}

/* A name below its trunk. */
KIT const char *below(const char *name)
{
    const char *const trunk[] = {"model.language_model.", "language_model.model.", "model.",
                                 "language_model."};
    for (int i = 0; i < 4; i++)
        if (!strncmp(name, trunk[i], strlen(trunk[i])))
            return name + strlen(trunk[i]);
    return name;
}

/* Names of one tensor; a stacked one has its own, or that of its first part. */
KIT bool same_name(const char *a, const char *b)
{
    const char *x = below(a), *y = below(b), *experts = strstr(x, ".experts.");
    return !strcmp(x, y) || (experts && !strncmp(x, y, (size_t)(experts - x) + 9));
}

KIT void assert_same_tensors(const struct named *x, const struct named *y)
{
    assert_int_equal(x->n, y->n);
    for (int i = 0; i < x->n; i++) {
        struct tensor one, *s = &one;
        const struct tensor *t = y->t[i];
        one = *x->t[i];
        uint16_t *values = NULL;
        if (dtype_packed(s->type)) { /* its values, each rounded to bf16 */
            size_t n = t->bytes / 2;
            assert_int_equal(dtype_bytes(s->type, n), s->bytes);
            s->data = values = xcalloc(n, 2);
            packed_bf16(s->type, x->t[i]->data, n, values);
            s->type = DT_BF16;
            s->bytes = 2 * n;
        }
        if (!same_name(s->name, t->name) || s->type != t->type ||
            s->bytes != t->bytes || s->n_dim != t->n_dim ||
            memcmp(s->dim, t->dim, sizeof s->dim) != 0)
            fail_msg("%s is %s of %zu bytes, expected %s, %s of %zu", s->name, dtype_name(s->type),
                     s->bytes, t->name, dtype_name(t->type), t->bytes);
        if (memcmp(s->data, t->data, s->bytes) != 0)
            fail_msg("%s has other bits", s->name);
        free(values);
    }
}

KIT void assert_same_weights(struct model *a, struct model *b)
{
    static struct named x, y;
    x.n = y.n = 0;
    model_each(a, keep, &x, NULL);
    model_each(b, keep, &y, NULL);
    assert_same_tensors(&x, &y);
}

static struct kernels spy;
static uint64_t seen; /* digest of the logits of all steps */

KIT void see_logits(struct kdev *d, const struct k_sample *a)
{
    seen = hash64(a->logits.p, (size_t)a->n * sizeof(float), seen);
    kernels_cpu.sample(d, a);
}

/* Greedy ids after a prompt, and the digest of the logits that they were chosen from. */
KIT uint64_t greedy(const char *from, int32_t out[16])
{
    struct bed b;
    const struct runtime_shape shape = {.context = 64, .page_size = 8};
    bed_models(&b, from, NULL);
    spy = kernels_cpu;
    spy.sample = see_logits;
    b.dev.k = &spy;
    bed_runtime(&b, &shape);
    struct lane l = {.tap_row = -1};
    for (int i = 0; i < 12; i++)
        ids_add(&l.tok, 5 + 7 * i % 90);
    seen = 1;
    lane_prompt(&b.r, &l, 5, NULL);
    lane_run(&b.r, &l, 16, NULL);
    memcpy(out, l.tok.v + 12, 16 * sizeof *out);
    lane_free(&b.r, &l);
    bed_close(&b);
    return seen;
}

KIT void assert_same_run(const char *from, const char *twin)
{
    int32_t a[16], b[16];
    uint64_t x = greedy(from, a), y = greedy(twin, b);
    assert_memory_equal(a, b, sizeof a);
    assert_true(x == y && x != 1);
}
