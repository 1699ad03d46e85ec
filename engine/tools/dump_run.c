/* dump_run.c - aerie's pass over the rows of a dump, module by module; see dump.h. */
#include "engine/tools/dump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/run/probe_pass.h"
#include "engine/thread/load.h"
#include "engine/tools/dump_names.h"
#include "engine/tools/golden_noise.h"
#include "engine/tools/golden_report.h"
#include "engine/tools/noise_backend.h"
#include "engine/tools/torch_file.h"
#include "kernels/ascii.h"

/* An item of a pass that is compared. */
struct tapped_item {
    const struct dump_item *it;
    const struct dump_item *plus; /* a tensor that is added to it, or NULL */
    int module;                   /* index in run.module */
    int layer;
    enum tapped tap;
    bool tail;
};

struct dump_run {
    const struct dump_opts *o;
    struct dump_report *r;
    struct loaded l;
    struct runtime rt;
    const struct kernels *plain;
    struct probe_pass probe;
    struct probe taps[1 + DUMP_NOISE]; /* of the rows that run: without noise, and with */
    struct lane lane[1 + DUMP_NOISE];
    float *logits[1 + DUMP_NOISE];
    int runs; /* of a row: 1, or 1 + DUMP_NOISE */
    float noise;
    struct dump_module *module; /* (n_module) by layer and name */
    int n_module;
    /* the pass whose items are open */
    int pass;
    struct tapped_item *item;
    int n_item;
    struct torch_file *open; /* the file that was read last */
    const char *open_path;
    kbuf scratch[2]; /* (PROBE_ROWS, hidden) */
    bool wide;       /* some module has numbers of bf16 or f16 */
    int shards;      /* ranks that heads are spread over */
    uint64_t done, to_do;
};

/* ---- names ----------------------------------------------------------------------------------- */

static void skip_name(struct dump_run *g, const struct dump_name *p)
{
    static const char *const known[] = {"input_ids", "positions", "seq_lens", "req_pool_indices",
                                        "rids"};
    struct dump_report *r = g->r;
    char *name = xasprintf("%s%s%s%s", p->layer >= 0 ? "layers.*." : "", p->module,
                           *p->port ? "." : "", p->port);
    bool again = r->n_skipped == 512;
    for (size_t i = 0; i < sizeof known / sizeof *known && !again; i++)
        again = ends_with(name, known[i]);
    for (int i = 0; i < r->n_skipped && !again; i++)
        again = strcmp(r->skipped[i], name) == 0;
    if (again) {
        free(name);
        return;
    }
    r->skipped = xrealloc(r->skipped, (size_t)r->n_skipped + 1, sizeof *r->skipped);
    r->skipped[r->n_skipped++] = name;
}

/* The module of a name, made if it is new. */
static int module_of(struct dump_run *g, const struct dump_name *p, const struct module_name *m,
                     const char *name)
{
    int layer = m->in ? p->layer : m->tap == TAP_ENTRY ? 0 : g->l.model.cfg.n_layer;
    int order = layer * 1000 + dump_name_order(m);
    for (int i = 0; i < g->n_module; i++)
        if (g->module[i].order == order)
            return i;
    g->module = xrealloc(g->module, (size_t)g->n_module + 1, sizeof *g->module);
    g->module[g->n_module] = (struct dump_module){.name = xstrdup(name), .order = order,
                                                  .layer = m->in ? p->layer : -1,
                                                  .worst = -1, .pass = -1};
    return g->n_module++;
}

/* ---- items of a pass ------------------------------------------------------------------------- */

static void close_pass(struct dump_run *g)
{
    torch_close(g->open);
    g->open = NULL;
    free(g->item);
    g->item = NULL;
    g->n_item = 0;
    g->pass = -1;
}

/* Lists the items of a pass that are compared; of several of one module the first. */
static void open_pass(struct dump_run *g, int pass)
{
    const struct dump_pass *p = &g->r->d.pass[pass];
    if (g->pass == pass)
        return;
    close_pass(g);
    g->pass = pass;
    g->item = xcalloc((size_t)p->n + 1, sizeof *g->item);
    for (int i = 0; i < p->n; i++) {
        struct dump_name x;
        const struct dump_item *it = &p->item[i], *plus = NULL;
        dump_name_parse(it->name, &x);
        /* a layer's two outputs are added: the MLP's, and the residual stream before it */
        if (x.layer >= 0 && !x.module[0] && strcmp(x.port, "0") == 0) {
            for (int k = i + 1; k < p->n && !plus; k++) {
                struct dump_name y;
                dump_name_parse(p->item[k].name, &y);
                plus = y.layer == x.layer && !y.module[0] && !strcmp(y.port, "1") ? &p->item[k]
                                                                                : NULL;
            }
            snprintf(x.port, sizeof x.port, "%s", plus ? "0+1" : "");
        }
        const struct module_name *m = dump_name_find(&g->l.model, &x);
        if (!m) {
            skip_name(g, &x);
            continue;
        }
        int module = module_of(g, &x, m, it->name);
        bool again = false;
        for (int k = 0; k < g->n_item && !again; k++)
            again = g->item[k].module == module;
        if (!again)
            g->item[g->n_item++] = (struct tapped_item){
                it, plus, module, m->in ? x.layer : m->tap == TAP_ENTRY ? 0
                                                        : g->l.model.cfg.n_layer, m->tap,
                m->in == LAST_COLUMNS};
    }
}

/* The tensor of an item; its width are all dimensions but the first. */
static const struct torch_entry *open_item(struct dump_run *g, const struct dump_item *it,
                                           int64_t *width, struct err *e)
{
    if (!g->open || strcmp(g->open_path, it->file) != 0) {
        torch_close(g->open);
        g->open = torch_open(it->file, e);
        g->open_path = it->file;
    }
    const struct torch_entry *t = g->open ? torch_find(g->open, it->entry) : NULL;
    if (g->open && !t)
        err_set(e, ERR_USAGE, "%.200s: the tensor %.80s is gone", it->file, it->entry);
    *width = t && t->n_dim > 0 && t->dim[0] > 0 ? t->count / t->dim[0] : 0;
    return t;
}

/* ---- aerie's rows ---------------------------------------------------------------------------- */

static int width_of(const struct dump_run *g, const struct tapped_item *x)
{
    const struct config *c = &g->l.model.cfg;
    const struct layer *w = &g->l.model.layer[min_int(x->layer, c->n_layer - 1)];
    switch (x->tap) {
    case TAP_Q:
    case TAP_ATTN: return w->n_head * w->head_dim;
    case TAP_K:
    case TAP_V: return w->n_kv * w->head_dim;
    case TAP_LOGITS: return c->vocab;
    default: return c->hidden;
    }
}

/* out = norm(rows of in) */
static void normed(struct dump_run *g, const float *in, int rows, struct k_norm norm, float *out)
{
    int H = g->l.model.cfg.hidden;
    struct runtime *r = &g->rt;
    size_t bytes = (size_t)rows * (size_t)H * sizeof *in;
    r->dev.k->put(r->dev.d, g->scratch[0], in, bytes);
    r->dev.k->normalize(r->dev.d, &(struct k_normalize){
        .rows = rows, .n = H, .src_stride = H, .dst_stride = H, .src = g->scratch[0],
        .dst = g->scratch[1], .norm = norm, .scale = 1});
    r->dev.k->get(r->dev.d, out, g->scratch[1], bytes);
}

static void difference(const float *a, const float *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] - b[i];
}

/* The tapped rows of an item, (n_row, width), of run `run`. False: the layer has none. */
static bool own_rows(struct dump_run *g, const struct tapped_item *x, int run, float *out)
{
    const struct probe *p = &g->taps[run];
    const struct config *c = &g->l.model.cfg;
    const struct probe_layer *w = &p->layer[x->layer];
    const struct layer *l = &g->l.model.layer[min_int(x->layer, c->n_layer - 1)];
    size_t n = (size_t)p->n_row * (size_t)width_of(g, x);
    static const enum probe_point point[N_TAPS] = {
        [TAP_ENTRY] = PROBE_IN, [TAP_Q] = PROBE_Q, [TAP_K] = PROBE_K, [TAP_V] = PROBE_V,
        [TAP_ATTN] = PROBE_ATTN, [TAP_MIDDLE] = PROBE_MID};
    switch (x->tap) {
    case TAP_NORMED: normed(g, w->tap[PROBE_IN], p->n_row, norm_of(c, &l->in_norm), out); break;
    case TAP_NORMED2:
        normed(g, w->tap[PROBE_MID], p->n_row, norm_of(c, &l->ffn_in_norm), out);
        break;
    case TAP_ADDED: difference(w->tap[PROBE_MID], w->tap[PROBE_IN], n, out); break;
    case TAP_FED: difference(w->tap[PROBE_OUT], w->tap[PROBE_MID], n, out); break;
    case TAP_LEFT: /* of a layer the entry of the next; "norm.1" names the last boundary */
        memcpy(out, p->layer[min_int(x->layer + 1, c->n_layer)].tap[PROBE_IN], n * sizeof *out);
        break;
    case TAP_FINAL:
        normed(g, w->tap[PROBE_IN], p->n_row, final_norm_of(c, &g->l.model.norm), out);
        break;
    case TAP_LOGITS: memcpy(out, g->logits[run], n * sizeof *out); break;
    default:
        if (!w->tap[point[x->tap]])
            return false;
        memcpy(out, w->tap[point[x->tap]], n * sizeof *out);
    }
    return true;
}

/* ---- judging --------------------------------------------------------------------------------- */

static double row_error(const float *got, const float *want, size_t n)
{
    return compare(got, want, 1, n).rel;
}

/* The largest error of the row in runs with noise. */
static double band_of(float *const own[], int runs, int row, int width)
{
    double most = 0;
    size_t at = (size_t)row * (size_t)width;
    for (int k = 1; k < runs; k++) {
        double x = row_error(own[k] + at, own[0] + at, (size_t)width);
        most = x > most ? x : most;
    }
    return most;
}

static void judge_row(struct dump_run *g, struct dump_module *m, double error, double band,
                      int number, int row, int position)
{
    bool far = !(error <= g->r->tol + 2 * band);
    m->rows++;
    m->near += !far && error > g->r->tol;
    bool first = far && m->far == 0;
    m->far += far;
    if (first || (m->far == 0 && !(error <= m->worst))) {
        m->worst = error;
        m->band = band;
        m->pass = number;
        m->row = row;
        m->position = position;
    }
}

/* Reads rows of an item as float32. */
static bool read_rows(struct dump_run *g, const struct dump_item *it, int64_t row, int64_t n,
                      int width, bool tail, bool add, float *out, struct err *e)
{
    int64_t wide, from;
    const struct torch_entry *t = open_item(g, it, &wide, e);
    if (!t)
        return false;
    if (wide < width || t->dim[0] < row + n)
        return err_set(e, ERR_USAGE, "%.200s: %.80s changed while it was read", it->file,
                       it->entry);
    float *one = xmalloc((size_t)width * sizeof *one);
    bool ok = true;
    from = tail ? wide - width : 0;
    for (int64_t i = 0; ok && i < n; i++) {
        ok = torch_floats(g->open, t, (row + i) * wide + from, width, one, e);
        for (int k = 0; ok && k < width; k++)
            out[i * width + k] = one[k] + (add ? out[i * width + k] : 0);
    }
    free(one);
    return ok;
}

/* Over how many ranks the rows of a tensor are spread, by its width; 0: it is of another model.
 * *use: how many columns rank 0 has. Heads are spread; the residual stream is whole on each. */
static int shards_of(const struct dump_run *g, const struct tapped_item *x, int64_t wide, int *use)
{
    const struct layer *w = &g->l.model.layer[min_int(x->layer, g->l.model.cfg.n_layer - 1)];
    int width = width_of(g, x);
    *use = width;
    if (x->tap == TAP_LOGITS) /* a vocabulary may be padded */
        return wide >= width;
    if (x->tap < TAP_Q || x->tap > TAP_ATTN)
        return wide == width;
    for (int n = 1; n <= w->n_head; n++) {
        int kv = max_int(1, w->n_kv / n); /* heads of keys on a rank */
        bool queries = x->tap == TAP_Q || x->tap == TAP_ATTN;
        int heads = x->tail ? w->n_head / n + 2 * kv : queries ? w->n_head / n : kv;
        *use = queries ? heads * w->head_dim : kv * w->head_dim;
        if (w->n_head % n == 0 && (w->n_kv % n == 0 || n % w->n_kv == 0) &&
            wide == mul64(heads, w->head_dim))
            return n;
    }
    return 0;
}

/* Which rows of an item belong to rows [at, at + n) of the pass: all of them, or (logits) one for
 * each request; *count 0: none can be compared. False and *e: the dump is of another model. */
static bool fits(struct dump_run *g, const struct tapped_item *x, const struct dump_rows *w,
                 int at, int n, int64_t *row, int *count, int *use, struct err *e)
{
    int64_t wide;
    const struct torch_entry *t = open_item(g, x->it, &wide, e);
    if (!t)
        return false;
    bool real = t->type == DT_F32 || t->type == DT_F16 || t->type == DT_BF16;
    *count = 0;
    if (!real || t->n_dim < 2 || t->dim[0] == 0)
        return true;
    int shards = shards_of(g, x, wide, use);
    if (!shards)
        return err_set(e, ERR_USAGE, "%.120s has rows of %lld numbers, this model's have %d: the "
                       "dump is of another model", x->it->name, (long long)wide, width_of(g, x));
    /* with several ranks, products may not have been summed yet; and the columns of ranks but the
     * first are not known */
    if ((g->shards > 1 && (x->tap == TAP_ADDED || x->tap == TAP_FED)) ||
        (shards > 1 && g->r->d.rank > 0))
        return true;
    *row = w->row + at;
    *count = n;
    if (x->tap == TAP_LOGITS) { /* of the request's last row, unless there is one of every row */
        bool every = t->dim[0] >= (int64_t)w->row + w->n && t->dim[0] > w->request + 1;
        *count = every ? n : at + n == w->n;
        *row = every ? *row : w->request;
    }
    if (*row + *count > t->dim[0])
        *count = 0;
    return true;
}

static bool judge_item(struct dump_run *g, const struct tapped_item *x, const struct dump_rows *w,
                       int at, int n, struct err *e)
{
    int width = width_of(g, x), count, use;
    int64_t row;
    if (!fits(g, x, w, at, n, &row, &count, &use, e))
        return false;
    if (count == 0)
        return true;
    size_t all = (size_t)n * (size_t)width;
    float *theirs = xmalloc((size_t)count * (size_t)use * sizeof *theirs);
    float *own[1 + DUMP_NOISE] = {0};
    bool ok = read_rows(g, x->it, row, count, use, x->tail, false, theirs, e) &&
              (!x->plus || read_rows(g, x->plus, row, count, use, false, true, theirs, e)),
         there = true;
    for (int k = 0; ok && k < g->runs; k++) {
        own[k] = xmalloc(all * sizeof *own[k]);
        there = there && own_rows(g, x, k, own[k]);
        for (int i = 1; there && use < width && i < n; i++)
            memmove(own[k] + mul64(i, use), own[k] + mul64(i, width), (size_t)use * sizeof **own);
    }
    for (int i = 0; ok && there && i < count; i++) {
        int mine = n - count + i;
        double error = row_error(theirs + mul64(i, use), own[0] + mul64(mine, use), (size_t)use);
        judge_row(g, &g->module[x->module], error, band_of(own, g->runs, mine, use),
                  g->r->d.pass[w->pass].number, w->row + at + mine, w->position + at + mine);
    }
    for (int k = 0; k < g->runs; k++)
        free(own[k]);
    free(theirs);
    return ok;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static bool stopped(struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "the comparison was stopped");
}

static void use_table(struct dump_run *g, int run)
{
    const struct kernels *k = run == 0 ? g->plain
                                       : noise_table(g->plain, g->noise, (uint64_t)run);
    g->rt.dev.k = g->rt.net.dev.k = k;
}

/* Runs n rows of one lane from its committed length on, with taps (taps NULL: without). */
static bool run_rows(struct dump_run *g, int run, const int32_t *token, int n, bool taps,
                     struct err *e)
{
    struct runtime *r = &g->rt;
    struct lane *l = &g->lane[run];
    struct plan_req req = {.seq = &l->seq, .n = n, .token = token};
    if (stop_asked(g->o->stop))
        return stopped(e);
    use_table(g, run);
    g->probe.out = &g->taps[run];
    r->net.probe = taps ? &g->probe : NULL;
    bool ok = kv_reserve(&r->kv, &l->seq, l->seq.committed + n, e) &&
              pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e) &&
              (net_forward(&r->net, &r->pass.plan[PLAN_EXTEND], &r->pass.kp, NULL) || stopped(e));
    r->net.probe = NULL;
    bool logits = false;
    for (int i = 0; i < g->n_item; i++)
        logits |= g->item[i].tap == TAP_LOGITS;
    if (ok && taps && logits) {
        for (int at = 0, k; at < n; at += k) {
            int32_t row[TREE_MAX];
            size_t V = (size_t)g->l.model.cfg.vocab;
            k = min_int(min_int(r->max_logits, TREE_MAX), n - at);
            for (int j = 0; j < k; j++)
                row[j] = at + j;
            r->dev.k->put(r->dev.d, r->row, row, (size_t)k * sizeof *row);
            net_logits(&r->net, k, r->row, r->logits, (kbuf){0});
            r->dev.k->get(r->dev.d, g->logits[run] + (size_t)at * V, r->logits,
                          (size_t)k * V * sizeof(float));
        }
    }
    use_table(g, 0);
    return ok && r->dev.k->sync(r->dev.d, e);
}

static void settle(struct dump_run *g, int run, int upto)
{
    kv_commit(&g->rt.kv, &g->lane[run].seq, upto);
    kv_release_window(&g->rt.kv, &g->lane[run].seq);
}

/* Computes the request's first `upto` tokens once more, on empty lanes. */
static bool restart(struct dump_run *g, const int32_t *token, int upto, struct err *e)
{
    bool ok = true;
    for (int run = 0; ok && run < g->runs; run++) {
        lane_free(&g->rt, &g->lane[run]);
        g->lane[run] = (struct lane){.tap_row = -1};
        for (int at = 0, n; ok && at < upto; at += n) {
            n = min_int(PROBE_ROWS, upto - at);
            ok = run_rows(g, run, token + at, n, false, e);
            if (ok)
                settle(g, run, at + n);
        }
    }
    return ok;
}

/* Rows of one pass, PROBE_ROWS at once. known: the request's tokens before them; `computed`: how
 * many cells the lanes hold. Cells are committed when the next rows show how many were kept. */
static bool run_segment(struct dump_run *g, const struct dump_rows *w, const int32_t *known,
                        int *computed, struct err *e)
{
    bool ok = true;
    open_pass(g, w->pass);
    if (w->position < g->lane[0].seq.committed || w->position > *computed)
        ok = restart(g, known, w->position, e);
    for (int at = 0, n; ok && at < w->n; at += n) {
        n = min_int(PROBE_ROWS, w->n - at);
        for (int run = 0; ok && run < g->runs; run++) {
            if (g->lane[run].seq.committed < w->position + at)
                settle(g, run, w->position + at);
            ok = run_rows(g, run, w->token + at, n, true, e);
        }
        for (int i = 0; ok && i < g->n_item; i++)
            ok = judge_item(g, &g->item[i], w, at, n, e);
        *computed = w->position + at + n;
        g->done += (uint64_t)n;
        if (g->o->progress)
            g->o->progress(g->o->arg, "rows", g->done, g->to_do);
    }
    return ok;
}

static bool run_sequence(struct dump_run *g, const struct dump_sequence *q, struct err *e)
{
    int32_t *token = xcalloc((size_t)g->r->s.longest + 1, sizeof *token);
    int computed = 0;
    bool ok = true;
    for (int run = 0; run < 1 + DUMP_NOISE; run++)
        g->lane[run] = (struct lane){.tap_row = -1};
    for (int i = 0; ok && i < q->n; i++) {
        const struct dump_rows *w = &q->rows[i];
        memcpy(token + w->position, w->token, (size_t)w->n * sizeof *token);
        ok = run_segment(g, w, token, &computed, e);
    }
    for (int run = 0; run < 1 + DUMP_NOISE; run++)
        lane_free(&g->rt, &g->lane[run]);
    free(token);
    return ok;
}

/* All requests, with `noisy` runs beside. */
static bool run_all(struct dump_run *g, int noisy, struct err *e)
{
    bool ok = true;
    g->runs = 1 + noisy;
    g->done = 0;
    for (int i = 0; i < g->n_module; i++) {
        struct dump_module *m = &g->module[i];
        m->rows = m->near = m->far = 0;
        m->worst = -1;
    }
    for (int i = 0; ok && i < g->r->s.n; i++)
        ok = run_sequence(g, &g->r->s.v[i], e);
    close_pass(g);
    return ok;
}

/* ---- everything ------------------------------------------------------------------------------ */

static int by_order(const void *a, const void *b)
{
    return ((const struct dump_module *)a)->order - ((const struct dump_module *)b)->order;
}

/* The first pass in which a module differs, and there the first module in the order of
 * computation. */
static void find_first(struct dump_report *r)
{
    r->first = r->last_good = -1;
    for (int i = 0; i < r->n; i++)
        if (r->module[i].far > 0 && (r->first < 0 || r->module[i].pass < r->module[r->first].pass))
            r->first = i;
    for (int i = 0; i < r->first; i++)
        if (r->module[i].far == 0 || r->module[i].pass > r->module[r->first].pass)
            r->last_good = i;
}

static void take_modules(struct dump_run *g)
{
    struct dump_report *r = g->r;
    for (int i = 0; i < g->n_module; i++) {
        if (g->module[i].rows > 0) {
            r->module = xrealloc(r->module, (size_t)r->n + 1, sizeof *r->module);
            r->module[r->n++] = g->module[i];
        } else {
            free(g->module[i].name);
        }
    }
    free(g->module);
    if (r->n)
        qsort(r->module, (size_t)r->n, sizeof *r->module, by_order);
    find_first(r);
}

static bool check_model(const struct dump_run *g, struct err *e)
{
    const struct config *c = &g->l.model.cfg;
    const struct dump_sequences *s = &g->r->s;
    if (s->most_token >= c->vocab)
        return err_set(e, ERR_USAGE, "the dump has token %d, this model's vocabulary %d tokens: "
                                     "the "
                       "dump is of another model", s->most_token, c->vocab);
    if (s->n == 0)
        return err_set(e, ERR_USAGE, "no row can be computed: %s; turn the prefix cache off, or "
                       "record from a request's first token on", s->first_missing);
    return s->longest <= c->max_pos ||
           err_set(e, ERR_USAGE, "a request of the dump has %d tokens, this model's context %d",
                   s->longest, c->max_pos);
}

static bool open_runtime(struct dump_run *g, struct err *e)
{
    struct runtime_shape shape = {.page_size = 16, .context = g->r->s.longest + PROBE_ROWS,
                                  .max_rows = max_int(PROBE_ROWS, TREE_MAX),
                                  .lanes = 1 + DUMP_NOISE, .kv = g->l.dev.kv};
    struct runtime *r = &g->rt;
    const struct config *c = &g->l.model.cfg;
    if (!loaded_runtime(r, &g->l, &shape, e))
        return false;
    for (int i = 0; i < c->n_rope; i++)
        rope_for_context(&g->l.model.cfg.rope[i], shape.context);
    r->net.stop = r->dev.k->queued ? NULL : g->o->stop;
    size_t bytes = (size_t)mul64(PROBE_ROWS, c->hidden) * sizeof(float);
    for (int i = 0; i < 1 + DUMP_NOISE; i++)
        g->logits[i] = xmalloc((size_t)mul64(PROBE_ROWS, c->vocab) * sizeof *g->logits[i]);
    for (int i = 0; i < 2; i++) {
        g->scratch[i] = r->dev.k->alloc(r->dev.d, bytes, "rows of a dump", e);
        if (!g->scratch[i].p)
            return false;
    }
    g->plain = r->dev.k;
    return probe_open(&g->probe, &r->net, e);
}

static void close_runtime(struct dump_run *g)
{
    if (!g->rt.dev.k)
        return;
    probe_close(&g->probe, &g->rt.net);
    for (int i = 0; i < 1 + DUMP_NOISE; i++) {
        probe_clear(&g->taps[i]);
        free(g->logits[i]);
    }
    for (int i = 0; i < 2; i++)
        g->rt.dev.k->release(g->rt.dev.d, g->scratch[i]);
    runtime_close(&g->rt);
}

static bool differs(const struct dump_run *g)
{
    bool any = false;
    for (int i = 0; i < g->n_module; i++)
        any |= g->module[i].far > 0;
    return any;
}

/* Whether the modules of a dump have numbers of bf16 or f16, and over how many ranks heads are
 * spread: what its first pass with modules shows. */
static bool find_type(struct dump_run *g, struct err *e)
{
    bool ok = true;
    for (int i = 0; ok && g->shards == 0 && i < g->r->d.n; i++) {
        open_pass(g, i);
        for (int k = 0; ok && k < g->n_item; k++) {
            int64_t width;
            int use;
            const struct torch_entry *t = open_item(g, g->item[k].it, &width, e);
            ok = t != NULL;
            g->wide |= ok && (t->type == DT_F16 || t->type == DT_BF16);
            g->shards = max_int(g->shards, ok ? shards_of(g, &g->item[k], width, &use) : 0);
        }
    }
    g->r->tol = g->wide ? 2e-2 : 1e-3;
    g->r->type = g->wide ? "bf16" : "float32";
    g->noise = g->wide ? NOISE_BF16 : NOISE_F32;
    g->r->shards = g->shards;
    return ok;
}

/* Without noise; and with, if a row is off by more than the tolerance. */
static bool judge(struct dump_run *g, struct err *e)
{
    struct dump_report *r = g->r;
    g->to_do = (uint64_t)r->s.rows;
    bool ok = find_type(g, e) && run_all(g, 0, e);
    if (!ok || !differs(g))
        return ok;
    r->noisy = true;
    return run_all(g, DUMP_NOISE, e);
}

static bool compare_with(struct dump_run *g, struct err *e)
{
    struct engine_opts o = g->o->engine;
    o.draft = NULL;
    if (!o.precision)
        o.precision = "f32";
    bool ok = engine_load(&g->l, &o, LOAD_DEVICE, e);
    if (ok && g->o->begin)
        g->o->begin(g->o->arg);
    ok = ok && check_model(g, e) && open_runtime(g, e) && judge(g, e);
    close_runtime(g);
    engine_unload(&g->l);
    return ok;
}

bool dump_compare(const struct dump_opts *o, struct dump_report *r, struct err *e)
{
    struct dump_run g = {.o = o, .r = r, .pass = -1};
    *r = (struct dump_report){.first = -1, .last_good = -1};
    bool ok = dump_open(&r->d, o->path, e) && dump_align(&r->d, &r->s, e) && compare_with(&g, e);
    r->stopped = !ok && stop_asked(o->stop);
    close_pass(&g);
    take_modules(&g);
    if (ok && r->n == 0)
        ok = err_set(e, ERR_USAGE, "the dump has no module that aerie has numbers of");
    if (ok && r->first >= 0)
        ok = err_set(e, ERR_NEGATIVE, "%.120s differs", r->module[r->first].name);
    return ok;
}

void dump_report_free(struct dump_report *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->module[i].name);
    free(r->module);
    for (int i = 0; i < r->n_skipped; i++)
        free(r->skipped[i]);
    free(r->skipped);
    dump_sequences_free(&r->s);
    dump_close(&r->d);
    *r = (struct dump_report){0};
}
