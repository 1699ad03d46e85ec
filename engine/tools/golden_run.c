/* golden_run.c - see golden_run.h. */
#include "engine/tools/golden_run.h"

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
    if (!t)
        return FAILED(NULL, e, ERR_MODEL, "golden.safetensors: no tensor '%s'", name);
    bool fits = t->type == type && t->n_dim == n_dim;
    for (int i = 0; i < n_dim && fits; i++)
        fits = dim[i] < 0 || t->dim[i] == dim[i];
    if (!fits)
        return FAILED(NULL, e, ERR_MODEL, "golden.safetensors: tensor '%s' has another type or "
                      "shape than %s", name, dtype_name(type));
    void *p = xmalloc(t->bytes);
    if (!st_read(st, t, p, e)) {
        free(p);
        return NULL;
    }
    return p;
}

bool golden_runtime(struct golden *golden, struct runtime *rt, int page_size, struct err *e)
{
    struct runtime_shape shape = {.page_size = page_size,
                                  .context = min_int(golden->l.model.cfg.max_pos,
                                                     golden->ref.n + golden->ref.n_greedy +
                                                     2 * TREE_MAX),
                                  .max_rows = max_int(golden->ref.n, TREE_MAX),
                                  .kv = golden->l.dev.kv};
    if (!loaded_runtime(rt, &golden->l, &shape, e))
        return false;
    for (int i = 0; i < golden->l.model.cfg.n_rope; i++)
        rope_for_context(&golden->l.model.cfg.rope[i], shape.context);
    rt->net.stop = rt->dev.k->queued ? NULL : golden->o->stop;
    return true;
}

static bool stopped(struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "the comparison was stopped");
}

bool golden_goes_on(const struct golden *golden, struct err *e)
{
    return !stop_asked(golden->o->stop) || stopped(e);
}

bool golden_forward(struct runtime *rt, const struct taps *taps, struct err *e)
{
    return net_forward(&rt->net, &rt->pass.plan[PLAN_EXTEND], &rt->pass.kp, taps) || stopped(e);
}

bool golden_prompt(struct golden *golden, struct runtime *rt, int chunk, float *logits,
                   const struct taps *taps, float *states, struct err *e)
{
    struct lane lane = {.tap_row = -1};
    size_t V = (size_t)golden->l.model.cfg.vocab;
    bool ok = true;
    ids_cat(&lane.tok, golden->ref.ids, golden->ref.n);
    for (int at = 0, n; at < golden->ref.n && ok; at += n) {
        n = min_int(chunk, golden->ref.n - at);
        struct plan_req req = {.seq = &lane.seq, .n = n, .token = lane.tok.v + at};
        ok = kv_reserve(&rt->kv, &lane.seq, at + n, e) &&
             pass_prepare(&rt->pass, PLAN_EXTEND, &req, 1, e) && golden_forward(rt, taps, e);
        if (!ok)
            break;
        if (taps)
            rt->dev.k->get(rt->dev.d, states + (size_t)at * (size_t)taps->stride, taps->dst,
                           (size_t)n * (size_t)taps->stride * 4);
        for (int i = 0, k; logits && i < n; i += k) {
            k = runtime_logits(rt, i, n);
            rt->dev.k->get(rt->dev.d, logits + (size_t)(at + i) * V, rt->logits, (size_t)k * V * 4);
        }
        kv_commit(&rt->kv, &lane.seq, at + n);
        kv_release_window(&rt->kv, &lane.seq);
    }
    ok = ok && rt->dev.k->sync(rt->dev.d, e);
    lane_free(rt, &lane);
    return ok;
}
