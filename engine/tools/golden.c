/* golden.c - see golden.h.
 *
 * If a check fails on a device other than the CPU in float32, float32 runs with noise measure how
 * far rounding alone moves the reference (noise_backend.h), and every check is judged again with
 * these limits (golden_report.h). */
#include "engine/tools/golden.h"

#include "engine/thread/load.h"
#include "engine/tools/noise_backend.h"
#include "engine/tools/golden_run.h"
#include "kernels/json.h"

static const struct rounding float32 = {"float32", 1e-3, NOISE_F32}, /* sums in another order */
    bfloat16 = {"bf16", 2e-2, NOISE_BF16}, /* three roundings: activations and cells keep 8 bits */
    fp8_cells = {"fp8", 2e-2, NOISE_FP8};  /* cells keep 4 bits; the noise is at every product */

/* A run that violates a rule counts as a failed check; other errors end the comparison. */
static bool soft(struct golden_report *r, const char *name, bool ok, struct err *e)
{
    if (!ok && e->kind == ERR_INVARIANT) {
        check_line(r, false, name, e->msg);
        *e = (struct err){0};
        return true;
    }
    return ok;
}

/* ---- reference tensors ----------------------------------------------------------------------- */

static void reference_free(struct reference *r)
{
    FREE(r->ids, r->greedy, r->logits, r->hidden, r->margin);
    st_close(r->st);
    *r = (struct reference){0};
}

static bool reference_open(struct reference *r, const char *dir, const struct model *m,
                           struct err *e)
{
    char *path = golden_path(dir);
    int64_t V = m->cfg.vocab, H = m->cfg.hidden, n = m->cfg.n_layer + 1;
    *r = (struct reference){.st = st_open(path, e)};
    free(path);
    if (!r->st)
        return false;
    const struct tensor *ids = st_find(r->st, "input_ids"), *g = st_find(r->st, "greedy_ids");
    r->n = ids && ids->n_dim == 1 ? (int)ids->dim[0] : 0;
    r->n_greedy = g && g->n_dim == 1 ? (int)g->dim[0] : 0;
    r->ids = golden_tensor(r->st, "input_ids", DT_I32, 1, (int64_t[]){-1}, e);
    if (r->ids)
        r->logits = golden_tensor(r->st, "logits", DT_F32, 2, (int64_t[]){r->n, V}, e);
    if (r->logits)
        r->hidden = golden_tensor(r->st, "hidden_states", DT_F32, 3, (int64_t[]){n, r->n, H}, e);
    if (r->hidden)
        r->greedy = golden_tensor(r->st, "greedy_ids", DT_I32, 1, (int64_t[]){-1}, e);
    if (r->greedy)
        r->margin = golden_tensor(r->st, "greedy_margin", DT_F32, 1, (int64_t[]){r->n_greedy}, e);
    bool ok = r->ids && r->logits && r->hidden && r->greedy && r->margin;
    for (int i = 0; ok && i < r->n; i++)
        if (r->ids[i] < 0 || r->ids[i] >= V)
            ok = err_set(e, ERR_MODEL, "golden.safetensors: input_ids[%d] = %d is no token", i,
                         r->ids[i]);
    if (!ok)
        reference_free(r);
    return ok;
}

/* ---- one arrangement of pages and chunks ----------------------------------------------------- */

/* A run with noise writes no report. One page size and one chunking suffice for it: all have the
 * same bits. */
static bool with_noise(const struct golden *golden) { return !golden->rep.out; }

/* Greedy continuation of the prompt: ids to out, n of them. */
static bool run_greedy(struct golden *golden, struct runtime *rt, int chunk,
                       const struct tree_shape *shape, int32_t *out, int n, double *mal,
                       struct err *e)
{
    struct lane lane = {.tap_row = -1};
    struct lane *lp = &lane;
    int topk = shape ? shape->topk : 1, steps = 0;
    bool ok = true;
    ids_cat(&lane.tok, golden->ref.ids, golden->ref.n);
    while (ok && lane.seq.committed < golden->ref.n) {
        int upto = min_int(lane.seq.committed + chunk, golden->ref.n);
        ok = lane_extend(rt, &lane, upto, upto == golden->ref.n, shape != NULL, topk, e);
    }
    while (ok && lane.tok.n < golden->ref.n + n) {
        struct step_limits lim = {golden->ref.n + n - lane.tok.n};
        ok = lane_step(rt, &lp, &lim, 1, shape, e);
        steps++;
    }
    if (ok)
        memcpy(out, lane.tok.v + golden->ref.n, (size_t)n * sizeof *out);
    if (mal)
        *mal = steps ? (double)(n - 1) / steps : 0;
    lane_free(rt, &lane);
    return ok;
}

/* ---- the target's tensors -------------------------------------------------------------------- */

/* Hidden states at all boundaries, MAX_CAPTURE boundaries a pass. */
static bool check_hidden(struct golden *golden, struct runtime *rt, struct err *e)
{
    int n = golden->l.model.cfg.n_layer, H = golden->l.model.cfg.hidden, L = golden->ref.n,
        first_off = -1;
    FREED(free_at) float *states = xmalloc((size_t)L * (size_t)mul64(MAX_CAPTURE, H) * 4);
    FREED(free_at) float *one = xmalloc((size_t)L * (size_t)H * 4);
    struct error worst = {0};
    int worst_at = 0;
    bool ok = true;
    kbuf dst = golden->l.dev.k->alloc(golden->l.dev.d,
                                      (size_t)L * (size_t)mul64(MAX_CAPTURE, H) * 4, "taps", e);
    for (int at = 0; at < n && ok && dst.p; at += MAX_CAPTURE) {
        struct taps t = {.n = min_int(MAX_CAPTURE, n - at), .dst = dst};
        t.stride = t.n * H;
        for (int i = 0; i < t.n; i++)
            t.boundary[i] = at + i;
        ok = golden_prompt(golden, rt, L, NULL, &t, states, e);
        for (int i = 0; i < t.n && ok; i++) {
            for (int p = 0; p < L; p++)
                memcpy(one + (size_t)p * (size_t)H,
                       states + (size_t)p * (size_t)t.stride + (size_t)mul64(i, H), (size_t)H * 4);
            struct error x = compare(one,
                                     golden->ref.hidden + (size_t)(at + i) * (size_t)L * (size_t)H,
                                     L, (size_t)H);
            if (!(x.rel <= golden->rep.tol) && first_off < 0)
                first_off = at + i;
            if (!(x.rel <= worst.rel)) {
                worst = x;
                worst_at = at + i;
            }
        }
    }
    char more[80];
    snprintf(more, sizeof more,
             first_off < 0 ? ", worst at boundary %d" : ", first off: boundary %d",
             first_off < 0 ? worst_at : first_off);
    if (ok && dst.p)
        check_error(&golden->rep, "hidden states", "hidden states", worst, more);
    golden->l.dev.k->release(golden->l.dev.d, dst);
    return ok && dst.p;
}

/* The last entry of hidden_states is the final norm's output of the last layer. */
static bool check_final(struct golden *golden, struct runtime *rt, struct err *e)
{
    struct lane lane = {.tap_row = -1};
    int L = golden->ref.n, H = golden->l.model.cfg.hidden;
    size_t n = (size_t)L * (size_t)H;
    FREED(free_at) float *got = xmalloc(n * 4);
    kbuf dst = golden->l.dev.k->alloc(golden->l.dev.d, n * 4, "final states", e);
    ids_cat(&lane.tok, golden->ref.ids, L);
    struct plan_req req = {.seq = &lane.seq, .n = L, .token = lane.tok.v};
    bool ok = dst.p && kv_reserve(&rt->kv, &lane.seq, L, e) &&
              pass_prepare(&rt->pass, PLAN_EXTEND, &req, 1, e) && golden_forward(rt, NULL, e);
    if (ok) {
        const struct config *c = &golden->l.model.cfg;
        golden->l.dev.k->normalize(golden->l.dev.d, &(struct k_normalize){
            .rows = L, .n = H, .src_stride = H, .dst_stride = H, .src = rt->net.x, .dst = dst,
            .norm = final_norm_of(c, &golden->l.model.norm), .scale = 1});
        golden->l.dev.k->get(golden->l.dev.d, got, dst, n * 4);
        check_error(&golden->rep, "final states", "final states",
                    compare(got, golden->ref.hidden + (size_t)c->n_layer * n, L, (size_t)H), "");
    }
    lane_free(rt, &lane);
    golden->l.dev.k->release(golden->l.dev.d, dst);
    return ok;
}

static bool check_pages(struct golden *golden, int page_size, struct err *e)
{
    struct runtime rt;
    int L = golden->ref.n, N = golden->ref.n_greedy;
    size_t n = (size_t)L * (size_t)golden->l.model.cfg.vocab;
    if (!golden_runtime(golden, &rt, page_size, e))
        return false;
    float *logits = xmalloc(n * 4), *first = xmalloc(n * 4);
    FREED(free_at) int32_t *ids = xmalloc((size_t)N * sizeof *ids);
    const int chunks[] = {L, 7, page_size + 1, 1};
    bool ok = true;
    size_t n_chunks = with_noise(golden) ? 1 : LEN(chunks);
    for (size_t i = 0; i < n_chunks && ok; i++) {
        char name[64];
        snprintf(name, sizeof name, i ? "page %d, chunks of %d" : "page %d, one chunk", page_size,
                 chunks[i]);
        float *dst = i ? logits : first;
        ok = golden_prompt(golden, &rt, chunks[i], dst, NULL, NULL, e);
        if (!ok)
            break;
        bool same = i == 0 || !memcmp(logits, first, n * 4);
        struct error off = compare(dst, golden->ref.logits, L, n / (size_t)L);
        check_error(&golden->rep, name, "logits", off, i && same ? ", bits as in one chunk" : "");
        if (!same) /* a row must not depend on the chunks of the prompt (law 5) */
            check_line(&golden->rep, false, name, "the bits differ from those of one chunk");
        snprintf(name, sizeof name, i ? "  greedy, chunks of %d" : "  greedy, one chunk",
                 chunks[i]);
        bool ran = run_greedy(golden, &rt, chunks[i], NULL, ids, N, NULL, e);
        ok = soft(&golden->rep, name, ran, e);
        if (ran)
            check_ids(&golden->rep, name, "greedy", ids, N, golden->ref.greedy, N,
                      golden->ref.margin, off.rel <= golden->rep.tol ? 2 * off.max_abs : 0);
    }
    if (ok && page_size == 16)
        ok = check_hidden(golden, &rt, e) && check_final(golden, &rt, e);
    FREE(logits, first);
    runtime_close(&rt);
    return ok;
}

/* ---- trees of the draft --------------------------------------------------------------------- */

static const struct tree_shape spec_shapes[] = {{3, 1, 4}, {5, 4, 16}, {6, 8, 60}};

static bool check_spec(struct golden *golden, int page_size, struct err *e)
{
    FREED(runtime_close) struct runtime rt;
    int N = golden->ref.n_greedy;
    bool ok = golden_runtime(golden, &rt, page_size, e);
    int32_t *ids = xmalloc((size_t)N * sizeof *ids), *plain = xmalloc((size_t)N * sizeof *ids);
    ok = ok && run_greedy(golden, &rt, golden->ref.n, NULL, plain, N, NULL, e);
    for (size_t i = 0; i < LEN(spec_shapes) && ok; i++) {
        const struct tree_shape *s = &spec_shapes[i];
        double mal;
        char name[64];
        snprintf(name, sizeof name, "page %d, tree %d-%d-%d = plain", page_size, s->steps, s->topk,
                 s->nodes);
        bool ran = run_greedy(golden, &rt, i == 1 ? 7 : golden->ref.n, s, ids, N, &mal, e);
        ok = soft(&golden->rep, name, ran, e);
        if (ran)
            check_ids(&golden->rep, name, NULL, ids, N, plain, N, NULL, 0);
    }
    FREE(ids, plain);
    return ok;
}

static bool check_draft(struct golden *golden, struct err *e)
{
    bool ok = drafter_ops_of(&golden->l.draft)->weightless || golden_head(golden, e);
    const int pages[] = {1, 4, 16};
    for (int i = 0; i < 3 && ok && !with_noise(golden); i++)
        ok = check_spec(golden, pages[i], e);
    return ok;
}

/* ---- everything ------------------------------------------------------------------------------ */

static bool compare_all(struct golden *golden, struct err *e)
{
    const int pages[] = {16, 4, 1};
    bool ok = reference_open(&golden->ref, golden->o->engine.model, &golden->l.model, e);
    for (int i = 0; i < (with_noise(golden) ? 1 : 3) && ok; i++)
        ok = check_pages(golden, pages[i], e);
    if (ok && golden->l.has_draft)
        ok = check_draft(golden, e);
    reference_free(&golden->ref);
    return ok;
}

static bool load(struct golden *golden, struct engine_opts o, struct err *e)
{
    o.require_draft = o.draft != NULL;
    if (!o.precision)
        o.precision = "f32";
    return engine_load(&golden->l, &o, LOAD_DEVICE, e);
}

/* For each check the largest error of NOISE_RUNS runs with noise. */
static bool run_with_noise(const struct golden_opts *o, float size, struct limits *l, struct err *e)
{
    struct golden golden = {.o = o};
    struct engine_opts plain = o->engine;
    plain.device = "cpu";
    plain.precision = plain.kv = NULL;
    plain.backend = NULL;
    bool ok = load(&golden, plain, e) && compare_all(&golden, e);
    const struct kernels *cpu = golden.l.dev.k;
    struct limits quiet = golden.rep.limits;
    golden.rep.limits.n = 0;
    for (int i = 0; i < NOISE_RUNS && ok; i++) {
        golden.l.dev.k = noise_table(cpu, size, (uint64_t)i + 1);
        ok = compare_all(&golden, e);
    }
    limits_void(&golden.rep.limits, &quiet, float32.tol);
    *l = golden.rep.limits;
    golden.l.dev.k = cpu;
    engine_unload(&golden.l);
    return ok;
}

/* The CPU in float32 is what runs with noise start from, so noise cannot explain its errors. */
static bool is_reference(const struct golden *golden)
{
    return !golden->o->engine.backend && golden->l.dev.kv == KV_F32 &&
           !strcmp(golden->l.dev.k->name, "cpu");
}

static bool judge(struct golden *golden, struct buf *report, struct err *e)
{
    size_t start = report->n;
    const struct rounding *by = golden->l.dev.kv == KV_FP8    ? &fp8_cells
                                : golden->l.dev.kv == KV_BF16 ? &bfloat16
                                                              : &float32;
    const struct golden_report fresh = {.out = report, .json = golden->o->json, .tol = by->tol};
    golden->rep = fresh;
    golden->rounding = by;
    bool ok = compare_all(golden, e);
    if (!ok || golden->rep.failed == 0 || is_reference(golden))
        return ok;
    report->n = start;
    golden->rep = fresh;
    return run_with_noise(golden->o, by->noise, &golden->rep.limits, e) && compare_all(golden, e);
}

static void sum_up(const struct golden *golden, struct buf *out)
{
    const struct golden_report *r = &golden->rep;
    if (r->json) {
        jput_close(out, ']');
        jput_fields(out, "%d{checked}%d{near}%d{failed}%d{stopped?}", r->checks, r->near, r->failed,
                    stop_asked(golden->o->stop));
        jput_close(out, '}');
        buf_char(out, '\n');
        return;
    }
    buf_printf(out, "%d checks, %d failed", r->checks, r->failed);
    if (r->near)
        buf_printf(out, ", %d near: as far off as float32 runs with noise of %s's size", r->near,
                   golden->rounding->name);
    if (stop_asked(golden->o->stop))
        buf_str(out, "; stopped before all were done");
    buf_str(out, "\n");
}

bool golden_run(const struct golden_opts *o, struct buf *report, struct err *e)
{
    struct golden golden = {.o = o, .rep = {.json = o->json}};
    if (o->json) {
        jput_open(report, '{');
        jput_kopen(report, "checks", '[');
    }
    bool ok = load(&golden, o->engine, e);
    if (ok && o->begin)
        o->begin(o->arg);
    ok = ok && judge(&golden, report, e);
    if (ok || o->json || stop_asked(o->stop))
        sum_up(&golden, report);
    int failed = golden.rep.failed, checks = golden.rep.checks;
    engine_unload(&golden.l);
    return ok && (failed == 0 ||
                  err_set(e, ERR_NEGATIVE, "%d of %d checks failed", failed, checks));
}
