/* golden.c - see golden.h.
 *
 * Where some check does not hold on a device other than the CPU in float32, float32 runs with noise
 * tell how far roundings alone carry the reference (golden_noise.h), and everything is judged again
 * (golden_report.h). */
#include "engine/tools/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/load.h"
#include "engine/tools/golden_noise.h"
#include "engine/tools/golden_report.h"
#include "kernels/json.h"

/* What a precision leaves of the reference: the tolerance of relative L2, and the relative noise at
 * the entry of each product that stands for its roundings. */
struct rounding {
    const char *name;
    double tol;
    float noise;
};
static const struct rounding float32 = {"float32", 1e-3, 0x1p-20f}, /* sums in another order */
    bfloat16 = {"bf16", 2e-2, 3 * 0x1p-9f}; /* three roundings: activations and cells keep 8 bits */

/* A run that failed on its own numbers is a failed check, not an unusable folder. */
static bool soft(struct report *r, const char *name, bool ok, struct err *e)
{
    if (!ok && e->kind == ERR_INVARIANT) {
        check_line(r, false, name, e->msg);
        *e = (struct err){0};
        return true;
    }
    return ok;
}

/* ---- reference tensors ----------------------------------------------------------------------- */

struct reference {
    struct safetensors *st;
    int n, n_greedy; /* prompt and continuation tokens */
    int32_t *ids, *greedy;
    float *logits, *hidden, *margin;
};

static void *read_tensor(struct safetensors *st, const char *name, enum dtype type, int n_dim,
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

static void reference_free(struct reference *r)
{
    free(r->ids);
    free(r->greedy);
    free(r->logits);
    free(r->hidden);
    free(r->margin);
    st_close(r->st);
    *r = (struct reference){0};
}

static bool reference_open(struct reference *r, const char *dir, const struct model *m,
                           struct err *e)
{
    char *path = xasprintf("%s/golden.safetensors", dir);
    int64_t V = m->cfg.vocab, H = m->cfg.hidden, n = m->cfg.n_layer + 1;
    *r = (struct reference){.st = st_open(path, e)};
    free(path);
    if (!r->st)
        return false;
    const struct tensor *ids = st_find(r->st, "input_ids"), *g = st_find(r->st, "greedy_ids");
    r->n = ids && ids->n_dim == 1 ? (int)ids->dim[0] : 0;
    r->n_greedy = g && g->n_dim == 1 ? (int)g->dim[0] : 0;
    r->ids = read_tensor(r->st, "input_ids", DT_I32, 1, (int64_t[]){-1}, e);
    if (r->ids)
        r->logits = read_tensor(r->st, "logits", DT_F32, 2, (int64_t[]){r->n, V}, e);
    if (r->logits)
        r->hidden = read_tensor(r->st, "hidden_states", DT_F32, 3, (int64_t[]){n, r->n, H}, e);
    if (r->hidden)
        r->greedy = read_tensor(r->st, "greedy_ids", DT_I32, 1, (int64_t[]){-1}, e);
    if (r->greedy)
        r->margin = read_tensor(r->st, "greedy_margin", DT_F32, 1, (int64_t[]){r->n_greedy}, e);
    bool ok = r->margin != NULL;
    for (int i = 0; ok && i < r->n; i++)
        if (r->ids[i] < 0 || r->ids[i] >= V)
            ok = err_set(e, ERR_MODEL, "golden.safetensors: input_ids[%d] = %d is no token", i,
                         r->ids[i]);
    if (!ok)
        reference_free(r);
    return ok;
}

/* ---- one arrangement of pages and chunks ----------------------------------------------------- */

struct bench {
    const struct golden_opts *o;
    struct loaded l;
    struct reference ref;
    struct report rep;
    const struct rounding *rounding; /* of the device */
};

/* One arrangement is enough then: the others have the same bits. */
static bool with_noise(const struct bench *b) { return !b->rep.out; }

static bool open_runtime(struct bench *b, struct runtime *r, int page_size, struct err *e)
{
    struct runtime_shape shape = {.page_size = page_size,
                                  .context = min_int(b->l.model.cfg.max_pos,
                                                     b->ref.n + b->ref.n_greedy + 2 * TREE_MAX),
                                  .max_rows = max_int(b->ref.n, TREE_MAX), .kv = b->l.dev.kv};
    if (!loaded_runtime(r, &b->l, &shape, e))
        return false;
    r->net.stop = r->dev.k->queued ? NULL : b->o->stop;
    return true;
}

static bool stopped(struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "the comparison was stopped");
}

/* Whether another pass of the draft may run; passes of the target ask by themselves. */
static bool goes_on(const struct bench *b, struct err *e)
{
    return !stop_asked(b->o->stop) || stopped(e);
}

static bool forward(struct runtime *r, const struct taps *taps, struct err *e)
{
    return net_forward(&r->net, &r->pass.plan[PLAN_EXTEND], &r->pass.kp, taps) || stopped(e);
}

/* Runs the prompt in chunks; logits (L, V) and, for the boundaries of `taps`, states
 * (L, taps.stride) are read back. */
static bool run_prompt(struct bench *b, struct runtime *r, int chunk, float *logits,
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
             pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e) && forward(r, taps, e);
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

/* Greedy continuation of the prompt: ids to out, n of them. */
static bool run_greedy(struct bench *b, struct runtime *r, int chunk,
                       const struct tree_shape *shape, int32_t *out, int n, double *mal,
                       struct err *e)
{
    struct lane l = {.tap_row = -1};
    struct lane *lp = &l;
    int topk = shape ? shape->topk : 1, steps = 0;
    bool ok = true;
    ids_cat(&l.tok, b->ref.ids, b->ref.n);
    while (ok && l.seq.committed < b->ref.n) {
        int upto = min_int(l.seq.committed + chunk, b->ref.n);
        ok = lane_extend(r, &l, upto, upto == b->ref.n, shape != NULL, topk, e);
    }
    while (ok && l.tok.n < b->ref.n + n) {
        struct step_limits lim = {b->ref.n + n - l.tok.n};
        ok = lane_step(r, &lp, &lim, 1, shape, e);
        steps++;
    }
    if (ok)
        memcpy(out, l.tok.v + b->ref.n, (size_t)n * sizeof *out);
    if (mal)
        *mal = steps ? (double)(n - 1) / steps : 0;
    lane_free(r, &l);
    return ok;
}

/* ---- the target's tensors -------------------------------------------------------------------- */

/* Hidden states at all boundaries, a few taps at a time. */
static bool check_hidden(struct bench *b, struct runtime *r, struct err *e)
{
    int n = b->l.model.cfg.n_layer, H = b->l.model.cfg.hidden, L = b->ref.n, first_off = -1;
    float *states = xmalloc((size_t)L * (size_t)(MAX_CAPTURE * H) * 4);
    float *one = xmalloc((size_t)L * (size_t)H * 4);
    struct error worst = {0};
    int worst_at = 0;
    bool ok = true;
    kbuf dst = b->l.dev.k->alloc(b->l.dev.d, (size_t)L * (size_t)(MAX_CAPTURE * H) * 4, "taps", e);
    for (int at = 0; at < n && ok && dst.p; at += MAX_CAPTURE) {
        struct taps t = {.n = min_int(MAX_CAPTURE, n - at), .dst = dst};
        t.stride = t.n * H;
        for (int i = 0; i < t.n; i++)
            t.boundary[i] = at + i;
        ok = run_prompt(b, r, L, NULL, &t, states, e);
        for (int i = 0; i < t.n && ok; i++) {
            for (int p = 0; p < L; p++)
                memcpy(one + (size_t)p * (size_t)H,
                       states + (size_t)p * (size_t)t.stride + (size_t)(i * H), (size_t)H * 4);
            struct error x = compare(one, b->ref.hidden + (size_t)(at + i) * (size_t)L * (size_t)H,
                                     L, (size_t)H);
            if (!(x.rel <= b->rep.tol) && first_off < 0)
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
        check_error(&b->rep, "hidden states", "hidden states", worst, more);
    b->l.dev.k->release(b->l.dev.d, dst);
    free(states);
    free(one);
    return ok && dst.p;
}

/* The last entry of hidden_states is the final norm's output of the last layer. */
static bool check_final(struct bench *b, struct runtime *r, struct err *e)
{
    struct lane l = {.tap_row = -1};
    int L = b->ref.n, H = b->l.model.cfg.hidden;
    size_t n = (size_t)L * (size_t)H;
    float *got = xmalloc(n * 4);
    kbuf dst = b->l.dev.k->alloc(b->l.dev.d, n * 4, "final states", e);
    ids_cat(&l.tok, b->ref.ids, L);
    struct plan_req req = {.seq = &l.seq, .n = L, .token = l.tok.v};
    bool ok = dst.p && kv_reserve(&r->kv, &l.seq, L, e) &&
              pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e) && forward(r, NULL, e);
    if (ok) {
        const struct config *c = &b->l.model.cfg;
        b->l.dev.k->normalize(b->l.dev.d, &(struct k_normalize){
            .rows = L, .n = H, .src_stride = H, .dst_stride = H, .src = r->net.x, .dst = dst,
            .norm = {c->norm, &b->l.model.norm, c->eps}, .scale = 1});
        b->l.dev.k->get(b->l.dev.d, got, dst, n * 4);
        check_error(&b->rep, "final states", "final states",
                    compare(got, b->ref.hidden + (size_t)c->n_layer * n, L, (size_t)H), "");
    }
    lane_free(r, &l);
    b->l.dev.k->release(b->l.dev.d, dst);
    free(got);
    return ok;
}

static bool check_pages(struct bench *b, int page_size, struct err *e)
{
    struct runtime r;
    int L = b->ref.n, N = b->ref.n_greedy;
    size_t n = (size_t)L * (size_t)b->l.model.cfg.vocab;
    if (!open_runtime(b, &r, page_size, e))
        return false;
    float *logits = xmalloc(n * 4), *first = xmalloc(n * 4);
    int32_t *ids = xmalloc((size_t)N * sizeof *ids);
    const int chunks[] = {L, 7, page_size + 1, 1};
    bool ok = true;
    size_t n_chunks = with_noise(b) ? 1 : sizeof chunks / sizeof *chunks;
    for (size_t i = 0; i < n_chunks && ok; i++) {
        char name[64];
        snprintf(name, sizeof name, i ? "page %d, chunks of %d" : "page %d, one chunk", page_size,
                 chunks[i]);
        float *dst = i ? logits : first;
        ok = run_prompt(b, &r, chunks[i], dst, NULL, NULL, e);
        if (!ok)
            break;
        bool same = i == 0 || !memcmp(logits, first, n * 4);
        struct error off = compare(dst, b->ref.logits, L, n / (size_t)L);
        check_error(&b->rep, name, "logits", off, i && same ? ", bits as in one chunk" : "");
        if (!same) /* a row must not depend on how the prompt is cut (law 5) */
            check_line(&b->rep, false, name, "the bits differ from those of one chunk");
        snprintf(name, sizeof name, i ? "  greedy, chunks of %d" : "  greedy, one chunk",
                 chunks[i]);
        bool ran = run_greedy(b, &r, chunks[i], NULL, ids, N, NULL, e);
        ok = soft(&b->rep, name, ran, e);
        if (ran)
            check_ids(&b->rep, name, "greedy", ids, N, b->ref.greedy, N, b->ref.margin,
                      off.rel <= b->rep.tol ? 2 * off.max_abs : 0);
    }
    if (ok && page_size == 16)
        ok = check_hidden(b, &r, e) && check_final(b, &r, e);
    free(logits);
    free(first);
    free(ids);
    runtime_close(&r);
    return ok;
}

/* ---- the draft's tensors --------------------------------------------------------------------- */

static const struct tree_shape spec_shapes[] = {{3, 1, 4}, {5, 4, 16}, {6, 8, 60}};

static bool check_spec(struct bench *b, int page_size, struct err *e)
{
    struct runtime r;
    int N = b->ref.n_greedy;
    bool ok = open_runtime(b, &r, page_size, e);
    int32_t *ids = xmalloc((size_t)N * sizeof *ids), *plain = xmalloc((size_t)N * sizeof *ids);
    ok = ok && run_greedy(b, &r, b->ref.n, NULL, plain, N, NULL, e);
    for (size_t i = 0; i < sizeof spec_shapes / sizeof *spec_shapes && ok; i++) {
        const struct tree_shape *s = &spec_shapes[i];
        double mal;
        char name[64];
        snprintf(name, sizeof name, "page %d, tree %d-%d-%d = plain", page_size, s->steps, s->topk,
                 s->nodes);
        bool ran = run_greedy(b, &r, i == 1 ? 7 : b->ref.n, s, ids, N, &mal, e);
        ok = soft(&b->rep, name, ran, e);
        if (ran)
            check_ids(&b->rep, name, NULL, ids, N, plain, N, NULL, 0);
    }
    free(ids);
    free(plain);
    runtime_close(&r);
    return ok;
}

/* The last row's state after the head's final norm. */
static void fed_back(struct bench *b, struct runtime *r, float *out)
{
    const struct config *c = &b->l.draft.cfg;
    int H = c->hidden;
    r->dev.k->normalize(r->dev.d, &(struct k_normalize){.rows = 1,
                                                        .n = H,
                                                        .src_stride = H,
                                                        .dst_stride = H,
                                                        .src = r->drafter->head->ops->output(r->drafter->head),
                                                        .dst = r->drafter->head->inputs,
                                                        .norm = {c->norm, &b->l.draft.norm, c->eps},
                                                        .scale = 1});
    r->dev.k->get(r->dev.d, out, r->drafter->head->inputs, (size_t)H * 4);
}

/* Extends the draft over the reference's own fused states, row by row; compares both outputs. */
static bool check_prefill(struct bench *b, struct runtime *r, struct lane *l,
                          struct safetensors *st, struct guess *guess, struct err *e)
{
    int L = l->tok.n - 1, wide = head_tap_floats(r->drafter->head), V = head_vocab(r->drafter->head);
    int H = b->l.draft.cfg.hidden, spare = head_spare_row(r->drafter->head);
    float *fused = read_tensor(st, "fused_hidden", DT_F32, 2, (int64_t[]){L, wide}, e);
    float *hidden = fused ? read_tensor(st, "prefill.draft_hidden", DT_F32, 2, (int64_t[]){L, H}, e)
                          : NULL;
    float *want = hidden ? read_tensor(st, "prefill.draft_logits", DT_F32, 2, (int64_t[]){L, V}, e)
                         : NULL;
    float *states = xmalloc((size_t)L * (size_t)H * 4),
          *logits = xmalloc((size_t)L * (size_t)V * 4);
    float *fed = xmalloc((size_t)L * (size_t)H * 4);
    bool ok = want != NULL;
    for (int i = 0; i < L && ok; i++) {
        struct plan_req req = {.seq = &l->seq, .n = 1, .token = l->tok.v + i + 1, .draft_from = i};
        head_put_tap(r->drafter->head, spare, fused + (size_t)i * (size_t)wide);
        ok = goes_on(b, e) && kv_reserve_draft(&r->kv, &l->seq, i, i + 1, e) &&
             pass_prepare(&r->pass, PLAN_DRAFT_EXTEND, &req, 1, e);
        if (!ok)
            break;
        head_extend(r->drafter->head, &r->pass, &(int32_t){spare}, &(int32_t){0}, MAX_TOPK, guess);
        head_logits(r->drafter->head, 0, logits + (size_t)i * (size_t)V);
        head_states(r->drafter->head, 1, states + (size_t)i * (size_t)H);
        fed_back(b, r, fed + (size_t)i * (size_t)H);
        kv_commit_draft(&r->kv, &l->seq, i + 1);
    }
    if (ok) {
        /* where norm_output feeds back the normed state, a reference may have kept either */
        struct error raw = compare(states, hidden, L, (size_t)H);
        struct error norm = compare(fed, hidden, L, (size_t)H);
        bool normed = b->l.draft.norm_output && norm.rel < raw.rel;
        check_error(&b->rep, "draft states", "draft states", normed ? norm : raw,
                    normed ? ", after the final norm" : "");
        check_error(&b->rep, "draft logits", "draft logits",
                    compare(logits, want, L, (size_t)V), "");
    }
    free(fused);
    free(hidden);
    free(want);
    free(states);
    free(logits);
    free(fed);
    return ok;
}

/* The target's own captured states, against the reference's. */
static bool check_fused(struct bench *b, struct runtime *r, struct safetensors *st, struct err *e)
{
    const struct taps *t = drafter_taps(r->drafter);
    int L = b->ref.n;
    size_t n = (size_t)L * (size_t)t->stride;
    float *want = read_tensor(st, "fused_hidden", DT_F32, 2, (int64_t[]){L, t->stride}, e);
    float *got = xmalloc(n * 4);
    bool ok = want && run_prompt(b, r, L, NULL, t, got, e);
    if (ok)
        check_error(&b->rep, "captured states", "captured states",
                    compare(got, want, L, (size_t)t->stride), "");
    free(want);
    free(got);
    return ok;
}

/* True if they are equal. */
static bool check_tree(struct bench *b, const struct tree *t, const char *prefix,
                       struct safetensors *st, struct err *e)
{
    char name[96], what[160];
    int64_t n = -1;
    snprintf(name, sizeof name, "%s.draft_tokens", prefix);
    int32_t *tok = read_tensor(st, name, DT_I32, 1, &n, e);
    int want = tok ? (int)st_find(st, name)->dim[0] : 0;
    snprintf(name, sizeof name, "%s.position_ids", prefix);
    int32_t *pos = tok ? read_tensor(st, name, DT_I32, 1, (int64_t[]){want}, e) : NULL;
    snprintf(name, sizeof name, "%s.tree_mask", prefix);
    uint8_t *mask = pos ? read_tensor(st, name, DT_U8, 2, (int64_t[]){want, want}, e) : NULL;
    int off = t->n == want ? -1 : min_int(t->n, want);
    const char *field = "nodes";
    for (int i = 0; mask && i < t->n && i < want && off < 0; i++) {
        if (tok[i] != t->token[i])
            off = i, field = "token";
        else if (pos[i] != t->depth[i])
            off = i, field = "position";
        for (int j = 0; j < want && off < 0; j++)
            if (mask[i * want + j] != (t->anc[i] >> j & 1))
                off = i, field = "mask";
    }
    if (off < 0)
        snprintf(what, sizeof what, "%d nodes: tokens, positions and mask equal", want);
    else
        snprintf(what, sizeof what, "%s of node %d differs (%d nodes, expected %d)", field, off,
                 t->n, want);
    enum verdict v = mask ? verdict_at(&b->rep, prefix, off < 0 ? want : off, want) : FAIL;
    report_line(&b->rep, v, prefix, what);
    free(tok);
    free(pos);
    free(mask);
    return v == OK;
}

/* Leaves, as paths from the root: retrieve_indices rows in any order. */
static void check_leaves(struct bench *b, const struct tree *t, const char *prefix,
                         struct safetensors *st, struct err *e)
{
    char name[96], what[96];
    int64_t dims[2] = {-1, -1};
    snprintf(name, sizeof name, "%s.retrieve_indices", prefix);
    const struct tensor *info = st_find(st, name);
    if (!info)
        return;
    int32_t *idx = read_tensor(st, name, DT_I32, 2, dims, e);
    int leaves = 0, matched = 0, rows = (int)info->dim[0], cols = (int)info->dim[1];
    for (int i = 0; idx && i < t->n; i++) {
        bool leaf = true;
        for (int j = i + 1; j < t->n; j++)
            leaf = leaf && t->parent[j] != i;
        if (!leaf)
            continue;
        leaves++;
        for (int r = 0; r < rows; r++) {
            int node = i;
            bool same = t->depth[i] < cols;
            for (int c = 0; c < cols && same; c++)
                same = (idx[r * cols + c] == -1) == (c > t->depth[i]);
            for (int c = t->depth[i]; c >= 0 && same; c--, node = t->parent[node])
                same = idx[r * cols + c] == node;
            matched += same;
        }
    }
    snprintf(what, sizeof what, "%d of %d leaf paths equal", matched, rows);
    snprintf(name, sizeof name, "  %s leaves", prefix);
    check_line(&b->rep, idx && leaves == rows && matched == rows, name, what);
    free(idx);
}

/* Every tensor group tree_{nodes}_{depth}_{topk}; depth counts forwards after the first top-k. */
static bool check_trees(struct bench *b, struct runtime *r, struct lane *l, struct safetensors *st,
                        const struct guess *guess, struct err *e)
{
    bool ok = true;
    for (int i = 0; i < st_count(st) && ok; i++) {
        int nodes, depth, topk, used = 0;
        const char *name = st_at(st, i)->name;
        if (sscanf(name, "tree_%d_%d_%d.draft_tokens%n", &nodes, &depth, &topk, &used) != 3 ||
            !used || name[used])
            continue;
        struct tree t;
        struct guess g = *guess;
        struct tree_shape shape = {depth + 1, topk, nodes};
        char prefix[64];
        snprintf(prefix, sizeof prefix, "tree_%d_%d_%d", nodes, depth, topk);
        if (nodes > TREE_MAX || topk > g.n || depth + 1 > MAX_STEPS) {
            check_line(&b->rep, false, prefix, "larger than this engine's trees");
            continue;
        }
        g.n = topk;
        tree_init(&t, l->tok.v[l->tok.n - 1]);
        struct drafting d = {&l->seq, &g, 0, depth + 1, &t, l->tok.v, l->tok.n};
        l->seq.committed = l->seq.drafted; /* the target itself does not run here */
        ok = goes_on(b, e) && drafter_grow(r->drafter, &r->pass, &d, 1, &shape, e);
        l->seq.committed = 0;
        if (ok) {
            if (check_tree(b, &t, prefix, st, e))
                check_leaves(b, &t, prefix, st, e);
        }
    }
    return ok;
}

/* ---- an assistant's recurrent steps ---- */

struct assistant {
    int steps;
    int32_t *first, *tokens; /* (1), (steps) */
    float *last, *logits, *hidden; /* (H), (steps, V), (steps, H) */
};

static bool assistant_read(struct assistant *a, struct safetensors *st, int V, int H, struct err *e)
{
    *a = (struct assistant){.first = read_tensor(st, "first_token", DT_I32, 1, (int64_t[]){1}, e)};
    a->tokens = a->first ? read_tensor(st, "draft_tokens", DT_I32, 1, (int64_t[]){-1}, e) : NULL;
    a->steps = a->tokens ? (int)st_find(st, "draft_tokens")->dim[0] : 0;
    if (a->tokens)
        a->last = read_tensor(st, "last_hidden", DT_F32, 1, (int64_t[]){H}, e);
    if (a->last)
        a->logits = read_tensor(st, "draft_logits", DT_F32, 2, (int64_t[]){a->steps, V}, e);
    if (a->logits)
        a->hidden = read_tensor(st, "draft_hidden", DT_F32, 2, (int64_t[]){a->steps, H}, e);
    return a->hidden != NULL;
}

static void assistant_free(struct assistant *a)
{
    free(a->first);
    free(a->tokens);
    free(a->last);
    free(a->logits);
    free(a->hidden);
}

/* One pass of the head from row *from of some states, or from row 0 of its inputs. */
static bool assistant_pass(struct runtime *r, struct lane *l, int32_t token, kbuf states, kbuf from,
                           struct err *e)
{
    struct plan_req req = {.seq = &l->seq, .n = 1, .token = &token};
    if (!pass_prepare(&r->pass, PLAN_FROZEN, &req, 1, e))
        return false;
    r->drafter->head->ops->level(r->drafter->head, &r->pass.kp, 1, states, from);
    return true;
}

/* Each step from the reference's own state and token: errors do not pile up over the steps. */
static bool assistant_forced(struct bench *b, struct runtime *r, struct lane *l,
                             const struct assistant *a, struct err *e)
{
    int V = head_vocab(r->drafter->head), H = b->l.model.cfg.hidden;
    float *logits = xmalloc((size_t)V * 4), *state = xmalloc((size_t)H * 4);
    bool ok = true;
    for (int s = 0; s < a->steps && ok; s++) {
        const float *from = s ? a->hidden + (size_t)(s - 1) * (size_t)H : a->last;
        char name[48];
        b->l.dev.k->put(b->l.dev.d, r->drafter->head->inputs, from, (size_t)H * 4);
        ok = goes_on(b, e) &&
             assistant_pass(r, l, s ? a->tokens[s - 1] : a->first[0], (kbuf){0}, (kbuf){0}, e);
        if (!ok)
            break;
        head_logits(r->drafter->head, 0, logits);
        head_states(r->drafter->head, 1, state);
        snprintf(name, sizeof name, "step %d logits", s + 1);
        check_error(&b->rep, name, name,
                    compare(logits, a->logits + (size_t)s * (size_t)V, 1, (size_t)V), "");
        snprintf(name, sizeof name, "step %d state", s + 1);
        check_error(&b->rep, name, name,
                    compare(state, a->hidden + (size_t)s * (size_t)H, 1, (size_t)H), "");
    }
    free(logits);
    free(state);
    return ok;
}

/* All steps on the engine's own states, from the target's last one on. */
static bool assistant_free_run(struct bench *b, struct runtime *r, struct lane *l,
                               const struct assistant *a, struct err *e)
{
    struct guess guess;
    int32_t *got = xcalloc((size_t)a->steps + 1, sizeof *got), token = a->first[0];
    struct plan_req req = {.seq = &l->seq, .n = 1, .token = &token};
    bool ok = pass_prepare(&r->pass, PLAN_FROZEN, &req, 1, e);
    for (int s = 0; s < a->steps && ok; s++) {
        if (s == 0) {
            head_extend(r->drafter->head, &r->pass, &(int32_t){b->ref.n - 1}, &(int32_t){0}, 1,
                           &guess);
        } else {
            ok = assistant_pass(r, l, token, r->drafter->head->state,
                                head_rows(r->drafter->head, &(int32_t){0}, 1), e);
        }
        float *logits = xmalloc((size_t)head_vocab(r->drafter->head) * 4);
        head_logits(r->drafter->head, 0, logits);
        token = 0;
        for (int i = 1; i < head_vocab(r->drafter->head); i++)
            if (logits[i] > logits[token])
                token = i;
        got[s] = token;
        free(logits);
    }
    if (ok)
        check_ids(&b->rep, "all steps, own states", "steps", got, a->steps, a->tokens, a->steps,
                  NULL, 0);
    free(got);
    return ok;
}

static bool check_assistant(struct bench *b, struct runtime *r, struct safetensors *st,
                            struct err *e)
{
    struct lane l = {.tap_row = -1};
    struct assistant a;
    int L = b->ref.n;
    bool ok = assistant_read(&a, st, head_vocab(r->drafter->head), b->l.model.cfg.hidden, e);
    ids_cat(&l.tok, b->ref.ids, L);
    struct plan_req req = {.seq = &l.seq, .n = L, .token = l.tok.v};
    ok = ok && kv_reserve(&r->kv, &l.seq, L, e) &&
         pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e) &&
         forward(r, drafter_taps(r->drafter), e);
    if (ok) {
        kv_commit(&r->kv, &l.seq, L);
        kv_release_window(&r->kv, &l.seq);
        ok = assistant_free_run(b, r, &l, &a, e) && assistant_forced(b, r, &l, &a, e);
    }
    lane_free(r, &l);
    assistant_free(&a);
    return ok;
}

static bool check_eagle3(struct bench *b, struct runtime *r, struct safetensors *st, struct err *e)
{
    struct lane l = {.tap_row = -1};
    struct guess guess;
    int32_t *ids = read_tensor(st, "input_ids", DT_I32, 1, (int64_t[]){b->ref.n}, e);
    int32_t *next = ids ? read_tensor(st, "next_token", DT_I32, 1, (int64_t[]){1}, e) : NULL;
    bool ok = next != NULL;
    if (ok) {
        bool same = !memcmp(ids, b->ref.ids, (size_t)b->ref.n * sizeof *ids) &&
                    next[0] == b->ref.greedy[0];
        check_line(&b->rep, same, "draft prompt", same ? "the target's own" : "not the target's");
        ids_cat(&l.tok, ids, b->ref.n);
        ids_add(&l.tok, next[0]);
        /* the lag rule counts committed tokens; here the reference stands in for the target */
        r->pass.check.level = CHECK_OFF;
        ok = check_fused(b, r, st, e) && check_prefill(b, r, &l, st, &guess, e) &&
             check_trees(b, r, &l, st, &guess, e);
        r->pass.check.level = CHECK_ON;
        lane_free(r, &l);
    }
    free(ids);
    free(next);
    return ok;
}

/* The head's own numbers; a drafter without a head has none. */
static bool check_head(struct bench *b, struct err *e)
{
    char *path = xasprintf("%s/golden.safetensors", b->o->draft);
    struct safetensors *st = st_open(path, e);
    struct runtime r = {0};
    free(path);
    bool ok = st && open_runtime(b, &r, 16, e) &&
              (drafter_owns_kv(r.drafter) ? check_eagle3(b, &r, st, e)
                                          : check_assistant(b, &r, st, e));
    runtime_close(&r);
    st_close(st);
    return ok;
}

static bool check_draft(struct bench *b, struct err *e)
{
    bool ok = drafter_ops_of(&b->l.draft)->weightless || check_head(b, e);
    const int pages[] = {1, 4, 16};
    for (int i = 0; i < 3 && ok && !with_noise(b); i++)
        ok = check_spec(b, pages[i], e);
    return ok;
}

/* ---- everything ------------------------------------------------------------------------------ */

static bool run(struct bench *b, struct err *e)
{
    const int pages[] = {16, 4, 1};
    bool ok = reference_open(&b->ref, b->o->dir, &b->l.model, e);
    for (int i = 0; i < (with_noise(b) ? 1 : 3) && ok; i++)
        ok = check_pages(b, pages[i], e);
    if (ok && b->l.has_draft)
        ok = check_draft(b, e);
    reference_free(&b->ref);
    return ok;
}

static bool load(struct bench *b, const char *device, const char *precision,
                 const struct kernels *backend, struct err *e)
{
    const struct golden_opts *g = b->o;
    const struct engine_opts o = {.model = g->dir, .draft = g->draft, .capture = g->capture,
                                  .require_draft = g->draft != NULL, .device = device,
                                  .precision = precision, .backend = backend,
                                  .threads = g->threads};
    return engine_load(&b->l, &o, LOAD_DEVICE, e);
}

/* How far noise carries each check, the furthest of NOISE_RUNS runs. */
static bool run_with_noise(const struct golden_opts *o, float size, struct limits *l, struct err *e)
{
    struct bench b = {.o = o};
    bool ok = load(&b, "cpu", "f32", NULL, e) && run(&b, e);
    const struct kernels *cpu = b.l.dev.k;
    struct limits quiet = b.rep.limits;
    b.rep.limits.n = 0;
    for (int i = 0; i < NOISE_RUNS && ok; i++) {
        b.l.dev.k = noise_table(cpu, size, (uint64_t)i + 1);
        ok = run(&b, e);
    }
    limits_void(&b.rep.limits, &quiet, float32.tol);
    *l = b.rep.limits;
    b.l.dev.k = cpu;
    engine_unload(&b.l);
    return ok;
}

/* The CPU in float32 computes what runs with noise are held against: no noise excuses it. */
static bool is_reference(const struct bench *b)
{
    return !b->o->backend && b->l.dev.kv == KV_F32 && !strcmp(b->l.dev.k->name, "cpu");
}

static bool judge(struct bench *b, struct buf *report, struct err *e)
{
    size_t start = report->n;
    const struct rounding *by = b->l.dev.kv == KV_BF16 ? &bfloat16 : &float32;
    const struct report fresh = {.out = report, .json = b->o->json, .tol = by->tol};
    b->rep = fresh;
    b->rounding = by;
    bool ok = run(b, e);
    if (!ok || b->rep.failed == 0 || is_reference(b))
        return ok;
    report->n = start;
    b->rep = fresh;
    return run_with_noise(b->o, by->noise, &b->rep.limits, e) && run(b, e);
}

static void sum_up(const struct bench *b, struct buf *out)
{
    const struct report *r = &b->rep;
    if (r->json) {
        jput_close(out, ']');
        jput_kint(out, "checked", r->checks);
        jput_kint(out, "near", r->near);
        jput_kint(out, "failed", r->failed);
        jput_kbool(out, "stopped", stop_asked(b->o->stop));
        jput_close(out, '}');
        buf_char(out, '\n');
        return;
    }
    buf_printf(out, "%d checks, %d failed", r->checks, r->failed);
    if (r->near)
        buf_printf(out, ", %d near: as far off as float32 runs with noise of %s's size", r->near,
                   b->rounding->name);
    if (stop_asked(b->o->stop))
        buf_str(out, "; stopped before all were done");
    buf_str(out, "\n");
}

bool golden_run(const struct golden_opts *o, struct buf *report, struct err *e)
{
    struct bench b = {.o = o, .rep = {.json = o->json}};
    if (o->json) {
        jput_open(report, '{');
        jput_key(report, "checks");
        jput_open(report, '[');
    }
    const char *precision = o->precision ? o->precision : "f32"; /* a proof, not a race */
    bool ok = load(&b, o->device, precision, o->backend, e);
    if (ok && o->begin)
        o->begin(o->arg);
    ok = ok && judge(&b, report, e);
    if (ok || o->json || stop_asked(o->stop))
        sum_up(&b, report);
    int failed = b.rep.failed, checks = b.rep.checks;
    engine_unload(&b.l);
    return ok && (failed == 0 ||
                  err_set(e, ERR_NEGATIVE, "%d of %d checks failed", failed, checks));
}
