/* pass.c - see pass.h. */
#include "engine/run/pass.h"

#include "kernels/json.h"

void pass_init(struct pass *ps, struct device dev, struct kv *kv)
{
    *ps = (struct pass){.dev = dev, .kv = kv, .check.level = CHECK_ON, .last = N_MODES};
}

void pass_free(struct pass *ps)
{
    for (int i = 0; i < N_MODES; i++)
        plan_free(&ps->plan[i]);
    if (ps->dev.k)
        ps->dev.k->release(ps->dev.d, ps->mem);
    *ps = (struct pass){0};
}

void pass_lock(struct pass *ps)
{
    if (ps->hold)
        ps->hold(ps->hold_arg, true);
}

void pass_unlock(struct pass *ps)
{
    if (ps->hold)
        ps->hold(ps->hold_arg, false);
}

void pass_begin_step(struct pass *ps)
{
    ps->digest = 0;
}

void pass_copies(struct pass *ps)
{
    if (!ps->kv->n_copy)
        return;
    CHECK(ps->copy);
    ps->copy(ps->copy_arg, ps->kv->copy, ps->kv->n_copy);
    ps->kv->n_copy = 0;
}

bool pass_plan(struct pass *ps, enum plan_mode mode, const struct plan_req *req, int n_req,
               const struct plan_opts *o, struct err *e)
{
    plan_build(&ps->plan[mode], ps->kv, mode, req, n_req, o);
    ps->last = mode;
    return check_plan(&ps->check, &ps->plan[mode], ps->kv, req, e);
}

/* The plan as JSON, with itself as a case. */
static void trace_plan(const struct plan *p, const struct kv *kv, const struct plan_req *req,
                       struct buf *out)
{
    plan_print(p, true, out);
    if (p->mode == PLAN_BLOCK)
        return;
    out->p[--out->n] = '\0'; /* the object goes on */
    jput_key(out, "case");
    plan_case(p, kv, req, out);
    jput_close(out, '}');
}

bool pass_prepare(struct pass *ps, enum plan_mode mode, const struct plan_req *req, int n_req,
                  struct err *e)
{
    struct plan *p = &ps->plan[mode];
    pass_lock(ps);
    bool ok = pass_plan(ps, mode, req, n_req, &ps->opts, e);
    ps->digest = mix64(ps->digest ^ plan_digest(p));
    if (ps->trace)
        trace_plan(p, ps->kv, req, ps->trace);
    pass_unlock(ps);
    if (!ok)
        return false;
    size_t bytes = (size_t)p->n_mem * sizeof *p->mem;
    if (bytes > ps->mem.n) {
        ps->dev.k->release(ps->dev.d, ps->mem);
        ps->mem = ps->dev.k->alloc(ps->dev.d, bytes * 2, "plan", e);
        if (!ps->mem.p)
            return false;
    }
    pass_copies(ps);
    ps->kp = plan_upload(p, ps->dev.k, ps->dev.d, ps->mem);
    pass_lock(ps);
    plan_mark(p, ps->kv, req);
    pass_unlock(ps);
    return true;
}
