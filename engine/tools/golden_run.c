/* golden_run.c - see golden_run.h. */
#include "engine/tools/golden_run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char *golden_path(const char *from)
{
    struct stat st;
    bool file = stat(from, &st) == 0 && S_ISREG(st.st_mode);
    const char *name = file ? strrchr(from, '/') : NULL;
    return file ? xasprintf("%.*sgolden.safetensors", name ? (int)(name + 1 - from) : 0, from)
                : xasprintf("%s/golden.safetensors", from);
}

void *golden_tensor(struct safetensors *st, const char *name, enum dtype type, int n_dim,
                    const int64_t *dim, struct err *e)
{
    const struct tensor *t = st_find(st, name);
    if (!t) {
        err_set(e, ERR_MODEL, "golden.safetensors: no tensor '%s'", name);
        return NULL;
    }
    bool fits = t->type == type && t->n_dim == n_dim;
    for (int i = 0; i < n_dim && fits; i++)
        fits = dim[i] < 0 || t->dim[i] == dim[i];
    if (!fits) {
        err_set(e, ERR_MODEL, "golden.safetensors: tensor '%s' has another type or shape than %s",
                name, dtype_name(type));
        return NULL;
    }
    void *p = xmalloc(t->bytes);
    if (!st_read(st, t, p, e)) {
        free(p);
        return NULL;
    }
    return p;
}

bool golden_runtime(struct golden *b, struct runtime *r, int page_size, struct err *e)
{
    struct runtime_shape shape = {.page_size = page_size,
                                  .context = min_int(b->l.model.cfg.max_pos,
                                                     b->ref.n + b->ref.n_greedy + 2 * TREE_MAX),
                                  .max_rows = max_int(b->ref.n, TREE_MAX), .kv = b->l.dev.kv};
    if (!loaded_runtime(r, &b->l, &shape, e))
        return false;
    for (int i = 0; i < b->l.model.cfg.n_rope; i++)
        rope_for_context(&b->l.model.cfg.rope[i], shape.context);
    r->net.stop = r->dev.k->queued ? NULL : b->o->stop;
    return true;
}

static bool stopped(struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "the comparison was stopped");
}

bool golden_goes_on(const struct golden *b, struct err *e)
{
    return !stop_asked(b->o->stop) || stopped(e);
}

bool golden_forward(struct runtime *r, const struct taps *taps, struct err *e)
{
    return net_forward(&r->net, &r->pass.plan[PLAN_EXTEND], &r->pass.kp, taps) || stopped(e);
}

bool golden_prompt(struct golden *b, struct runtime *r, int chunk, float *logits,
                   const struct taps *taps, float *states, struct err *e)
{
    struct lane l = {.tap_row = -1};
    size_t V = (size_t)b->l.model.cfg.vocab;
    bool ok = true;
    ids_cat(&l.tok, b->ref.ids, b->ref.n);
    for (int at = 0, n; at < b->ref.n && ok; at += n) {
        n = min_int(chunk, b->ref.n - at);
        struct plan_req req = {.seq = &l.seq, .n = n, .token = l.tok.v + at};
        ok = kv_reserve(&r->kv, &l.seq, at + n, e) &&
             pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e) && golden_forward(r, taps, e);
        if (!ok)
            break;
        if (taps)
            r->dev.k->get(r->dev.d, states + (size_t)at * (size_t)taps->stride, taps->dst,
                          (size_t)n * (size_t)taps->stride * 4);
        for (int i = 0, k; logits && i < n; i += k) {
            k = min_int(r->max_logits, n - i);
            int32_t row[TREE_MAX];
            for (int j = 0; j < k; j++)
                row[j] = i + j;
            r->dev.k->put(r->dev.d, r->row, row, (size_t)k * 4);
            net_logits(&r->net, k, r->row, r->logits, (kbuf){0});
            r->dev.k->get(r->dev.d, logits + (size_t)(at + i) * V, r->logits, (size_t)k * V * 4);
        }
        kv_commit(&r->kv, &l.seq, at + n);
        kv_release_window(&r->kv, &l.seq);
    }
    ok = ok && r->dev.k->sync(r->dev.d, e);
    lane_free(r, &l);
    return ok;
}
