/* dump_run.c - aerie's pass over the rows of a dump, module by module; see dump.h. */
#include "engine/tools/dump.h"

#include "engine/run/probe_pass.h"
#include "engine/thread/load.h"
#include "engine/tools/dump_names.h"
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

static void skip_name(struct dump_run *dump, const struct dump_name *p)
{
    static const char *const known[] = {"input_ids", "positions", "seq_lens", "req_pool_indices",
                                        "rids"};
    struct dump_report *r = dump->r;
    char *name = xasprintf("%s%s%s%s", p->layer >= 0 ? "layers.*." : "", p->module,
                           *p->port ? "." : "", p->port);
    bool again = r->n_skipped == 512;
    for (size_t i = 0; i < LEN(known) && !again; i++)
        again = ends_with(name, known[i]);
    for (int i = 0; i < r->n_skipped && !again; i++)
        again = strcmp(r->skipped[i], name) == 0;
    if (again) {
        free(name);
        return;
    }
    *APPEND(r->skipped, r->n_skipped) = name;
}

/* The module of a name, made if it is new. */
static int module_of(struct dump_run *dump, const struct dump_name *p, const struct module_name *m,
                     const char *name)
{
    int layer = m->in ? p->layer : m->tap == TAP_ENTRY ? 0 : dump->l.model.cfg.n_layer;
    int order = layer * 1000 + dump_name_order(m);
    for (int i = 0; i < dump->n_module; i++)
        if (dump->module[i].order == order)
            return i;
    *APPEND(dump->module, dump->n_module) = (struct dump_module){
        .name = xstrdup(name), .order = order, .layer = m->in ? p->layer : -1, .worst = -1,
        .pass = -1};
    return dump->n_module - 1;
}

/* ---- items of a pass ------------------------------------------------------------------------- */

static void close_pass(struct dump_run *dump)
{
    torch_close(dump->open);
    dump->open = NULL;
    DROP(dump->item);
    dump->n_item = 0;
    dump->pass = -1;
}

/* Lists the items of a pass that are compared; of several of one module the first. */
static void open_pass(struct dump_run *dump, int pass)
{
    const struct dump_pass *p = &dump->r->d.pass[pass];
    if (dump->pass == pass)
        return;
    close_pass(dump);
    dump->pass = pass;
    dump->item = xcalloc((size_t)p->n + 1, sizeof *dump->item);
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
        const struct module_name *m = dump_name_find(&dump->l.model, &x);
        if (!m) {
            skip_name(dump, &x);
            continue;
        }
        int module = module_of(dump, &x, m, it->name);
        bool again = false;
        for (int k = 0; k < dump->n_item && !again; k++)
            again = dump->item[k].module == module;
        if (!again)
            dump->item[dump->n_item++] = (struct tapped_item){
                it, plus, module, m->in ? x.layer : m->tap == TAP_ENTRY ? 0
                                                        : dump->l.model.cfg.n_layer, m->tap,
                m->in == LAST_COLUMNS};
    }
}

/* The tensor of an item; its width are all dimensions but the first. */
static const struct torch_entry *open_item(struct dump_run *dump, const struct dump_item *it,
                                           int64_t *width, struct err *e)
{
    if (!dump->open || strcmp(dump->open_path, it->file) != 0) {
        torch_close(dump->open);
        dump->open = torch_open(it->file, e);
        dump->open_path = it->file;
    }
    const struct torch_entry *t = dump->open ? torch_find(dump->open, it->entry) : NULL;
    if (dump->open && !t)
        err_set(e, ERR_USAGE, "%.200s: the tensor %.80s is gone", it->file, it->entry);
    *width = t && t->n_dim > 0 && t->dim[0] > 0 ? t->count / t->dim[0] : 0;
    return t;
}

/* ---- aerie's rows ---------------------------------------------------------------------------- */

static int width_of(const struct dump_run *dump, const struct tapped_item *item)
{
    const struct config *c = &dump->l.model.cfg;
    const struct layer *w = &dump->l.model.layer[min_int(item->layer, c->n_layer - 1)];
    switch (item->tap) {
    case TAP_Q:
    case TAP_ATTN: return w->n_head * w->head_dim;
    case TAP_K:
    case TAP_V: return w->n_kv * w->head_dim;
    case TAP_LOGITS: return c->vocab;
    default: return c->hidden;
    }
}

/* out = norm(rows of in) */
static void normed(struct dump_run *dump, const float *in, int rows, struct k_norm norm, float *out)
{
    int H = dump->l.model.cfg.hidden;
    struct runtime *rt = &dump->rt;
    size_t bytes = (size_t)rows * (size_t)H * sizeof *in;
    rt->dev.k->put(rt->dev.d, dump->scratch[0], in, bytes);
    rt->dev.k->normalize(rt->dev.d, &(struct k_normalize){
        .rows = rows, .n = H, .src_stride = H, .dst_stride = H, .src = dump->scratch[0],
        .dst = dump->scratch[1], .norm = norm, .scale = 1});
    rt->dev.k->get(rt->dev.d, out, dump->scratch[1], bytes);
}

static void difference(const float *a, const float *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] - b[i];
}

/* The tapped rows of an item, (n_row, width), of run `run`. False: the layer has none. */
static bool own_rows(struct dump_run *dump, const struct tapped_item *item, int run, float *out)
{
    const struct probe *p = &dump->taps[run];
    const struct config *c = &dump->l.model.cfg;
    const struct probe_layer *w = &p->layer[item->layer];
    const struct layer *l = &dump->l.model.layer[min_int(item->layer, c->n_layer - 1)];
    size_t n = (size_t)p->n_row * (size_t)width_of(dump, item);
    static const enum probe_point point[N_TAPS] = {
        [TAP_ENTRY] = PROBE_IN, [TAP_Q] = PROBE_Q, [TAP_K] = PROBE_K, [TAP_V] = PROBE_V,
        [TAP_ATTN] = PROBE_ATTN, [TAP_MIDDLE] = PROBE_MID};
    switch (item->tap) {
    case TAP_NORMED: normed(dump, w->tap[PROBE_IN], p->n_row, norm_of(c, &l->in_norm), out); break;
    case TAP_NORMED2:
        normed(dump, w->tap[PROBE_MID], p->n_row, norm_of(c, &l->ffn_in_norm), out);
        break;
    case TAP_ADDED: difference(w->tap[PROBE_MID], w->tap[PROBE_IN], n, out); break;
    case TAP_FED: difference(w->tap[PROBE_OUT], w->tap[PROBE_MID], n, out); break;
    case TAP_LEFT: /* of a layer the entry of the next; "norm.1" names the last boundary */
        memcpy(out, p->layer[min_int(item->layer + 1, c->n_layer)].tap[PROBE_IN], n * sizeof *out);
        break;
    case TAP_FINAL:
        normed(dump, w->tap[PROBE_IN], p->n_row, final_norm_of(c, &dump->l.model.norm), out);
        break;
    case TAP_LOGITS: memcpy(out, dump->logits[run], n * sizeof *out); break;
    default:
        if (!w->tap[point[item->tap]])
            return false;
        memcpy(out, w->tap[point[item->tap]], n * sizeof *out);
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

static void judge_row(struct dump_run *dump, struct dump_module *m, double error, double band,
                      int number, int row, int position)
{
    bool far = !(error <= dump->r->tol + 2 * band);
    m->rows++;
    m->near += !far && error > dump->r->tol;
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
static bool read_rows(struct dump_run *dump, const struct dump_item *it, int64_t row, int64_t n,
                      int width, bool tail, bool add, float *out, struct err *e)
{
    int64_t wide, from;
    const struct torch_entry *t = open_item(dump, it, &wide, e);
    if (!t)
        return false;
    if (wide < width || t->dim[0] < row + n)
        return err_set(e, ERR_USAGE, "%.200s: %.80s changed while it was read", it->file,
                       it->entry);
    FREED(free_at) float *one = xmalloc((size_t)width * sizeof *one);
    bool ok = true;
    from = tail ? wide - width : 0;
    for (int64_t i = 0; ok && i < n; i++) {
        ok = torch_floats(dump->open, t, (row + i) * wide + from, width, one, e);
        for (int k = 0; ok && k < width; k++)
            out[i * width + k] = one[k] + (add ? out[i * width + k] : 0);
    }
    return ok;
}

/* Over how many ranks the rows of a tensor are spread, by its width; 0: it is of another model.
 * *use: how many columns rank 0 has. Heads are spread; the residual stream is whole on each. */
static int shards_of(const struct dump_run *dump, const struct tapped_item *item, int64_t wide,
                     int *use)
{
    const struct layer *w =
        &dump->l.model.layer[min_int(item->layer, dump->l.model.cfg.n_layer - 1)];
    int width = width_of(dump, item);
    *use = width;
    if (item->tap == TAP_LOGITS) /* a vocabulary may be padded */
        return wide >= width;
    if (item->tap < TAP_Q || item->tap > TAP_ATTN)
        return wide == width;
    for (int n = 1; n <= w->n_head; n++) {
        int kv = max_int(1, w->n_kv / n); /* heads of keys on a rank */
        bool queries = item->tap == TAP_Q || item->tap == TAP_ATTN;
        int heads = item->tail ? w->n_head / n + 2 * kv : queries ? w->n_head / n : kv;
        *use = queries ? heads * w->head_dim : kv * w->head_dim;
        if (w->n_head % n == 0 && (w->n_kv % n == 0 || n % w->n_kv == 0) &&
            wide == mul64(heads, w->head_dim))
            return n;
    }
    return 0;
}

/* Which rows of an item belong to rows [at, at + n) of the pass: all of them, or (logits) one for
 * each request; *count 0: none can be compared. False and *e: the dump is of another model. */
static bool fits(struct dump_run *dump, const struct tapped_item *item, const struct dump_rows *w,
                 int at, int n, int64_t *row, int *count, int *use, struct err *e)
{
    int64_t wide;
    const struct torch_entry *t = open_item(dump, item->it, &wide, e);
    if (!t)
        return false;
    bool real = t->type == DT_F32 || t->type == DT_F16 || t->type == DT_BF16;
    *count = 0;
    if (!real || t->n_dim < 2 || t->dim[0] == 0)
        return true;
    int shards = shards_of(dump, item, wide, use);
    if (!shards)
        return err_set(e, ERR_USAGE, "%.120s has rows of %lld numbers, this model's have %d: the "
                       "dump is of another model", item->it->name, (long long)wide,
                       width_of(dump, item));
    /* with several ranks, products may not have been summed yet; and the columns of ranks but the
     * first are not known */
    if ((dump->shards > 1 && (item->tap == TAP_ADDED || item->tap == TAP_FED)) ||
        (shards > 1 && dump->r->d.rank > 0))
        return true;
    *row = w->row + at;
    *count = n;
    if (item->tap == TAP_LOGITS) { /* of the request's last row, unless there is one of every row */
        bool every = t->dim[0] >= (int64_t)w->row + w->n && t->dim[0] > w->request + 1;
        *count = every ? n : at + n == w->n;
        *row = every ? *row : w->request;
    }
    if (*row + *count > t->dim[0])
        *count = 0;
    return true;
}

static bool judge_item(struct dump_run *dump, const struct tapped_item *item,
                       const struct dump_rows *w, int at, int n, struct err *e)
{
    int width = width_of(dump, item), count, use;
    int64_t row;
    if (!fits(dump, item, w, at, n, &row, &count, &use, e))
        return false;
    if (count == 0)
        return true;
    size_t all = (size_t)n * (size_t)width;
    FREED(free_at) float *theirs = xmalloc((size_t)count * (size_t)use * sizeof *theirs);
    float *own[1 + DUMP_NOISE] = {0};
    bool ok = read_rows(dump, item->it, row, count, use, item->tail, false, theirs, e) &&
              (!item->plus || read_rows(dump, item->plus, row, count, use, false, true, theirs, e)),
         there = true;
    for (int k = 0; ok && k < dump->runs; k++) {
        own[k] = xmalloc(all * sizeof *own[k]);
        there = there && own_rows(dump, item, k, own[k]);
        for (int i = 1; there && use < width && i < n; i++)
            memmove(own[k] + mul64(i, use), own[k] + mul64(i, width), (size_t)use * sizeof **own);
    }
    for (int i = 0; ok && there && i < count; i++) {
        int mine = n - count + i;
        double error = row_error(theirs + mul64(i, use), own[0] + mul64(mine, use), (size_t)use);
        judge_row(dump, &dump->module[item->module], error, band_of(own, dump->runs, mine, use),
                  dump->r->d.pass[w->pass].number, w->row + at + mine, w->position + at + mine);
    }
    for (int k = 0; k < dump->runs; k++)
        free(own[k]);
    return ok;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static bool stopped(struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "the comparison was stopped");
}

static void use_table(struct dump_run *dump, int run)
{
    const struct kernels *k = run == 0 ? dump->plain
                                       : noise_table(dump->plain, dump->noise, (uint64_t)run);
    dump->rt.dev.k = dump->rt.net.dev.k = k;
}

/* Runs n rows of one lane from its committed length on, with taps (taps NULL: without). */
static bool run_rows(struct dump_run *dump, int run, const int32_t *token, int n, bool taps,
                     struct err *e)
{
    struct runtime *rt = &dump->rt;
    struct lane *lane = &dump->lane[run];
    struct plan_req req = {.seq = &lane->seq, .n = n, .token = token};
    if (stop_asked(dump->o->stop))
        return stopped(e);
    use_table(dump, run);
    dump->probe.out = &dump->taps[run];
    rt->net.probe = taps ? &dump->probe : NULL;
    bool ok = kv_reserve(&rt->kv, &lane->seq, lane->seq.committed + n, e) &&
              pass_prepare(&rt->pass, PLAN_EXTEND, &req, 1, e) &&
              (net_forward(&rt->net, &rt->pass.plan[PLAN_EXTEND], &rt->pass.kp, NULL) ||
               stopped(e));
    rt->net.probe = NULL;
    bool logits = false;
    for (int i = 0; i < dump->n_item; i++)
        logits |= dump->item[i].tap == TAP_LOGITS;
    if (ok && taps && logits) {
        for (int at = 0, k; at < n; at += k) {
            size_t V = (size_t)dump->l.model.cfg.vocab;
            k = runtime_logits(rt, at, n);
            rt->dev.k->get(rt->dev.d, dump->logits[run] + (size_t)at * V, rt->logits,
                           (size_t)k * V * sizeof(float));
        }
    }
    use_table(dump, 0);
    return ok && rt->dev.k->sync(rt->dev.d, e);
}

static void commit_rows(struct dump_run *dump, int run, int upto)
{
    kv_commit(&dump->rt.kv, &dump->lane[run].seq, upto);
    kv_release_window(&dump->rt.kv, &dump->lane[run].seq);
}

/* Computes the request's first `upto` tokens once more, on empty lanes. */
static bool restart(struct dump_run *dump, const int32_t *token, int upto, struct err *e)
{
    bool ok = true;
    for (int run = 0; ok && run < dump->runs; run++) {
        lane_free(&dump->rt, &dump->lane[run]);
        dump->lane[run] = (struct lane){.tap_row = -1};
        for (int at = 0, n; ok && at < upto; at += n) {
            n = min_int(PROBE_ROWS, upto - at);
            ok = run_rows(dump, run, token + at, n, false, e);
            if (ok)
                commit_rows(dump, run, at + n);
        }
    }
    return ok;
}

/* Rows of one pass, PROBE_ROWS at once. known: the request's tokens before them; `computed`: how
 * many cells the lanes hold. Cells are committed when the next rows show how many were kept. */
static bool run_segment(struct dump_run *dump, const struct dump_rows *w, const int32_t *known,
                        int *computed, struct err *e)
{
    bool ok = true;
    open_pass(dump, w->pass);
    if (w->position < dump->lane[0].seq.committed || w->position > *computed)
        ok = restart(dump, known, w->position, e);
    for (int at = 0, n; ok && at < w->n; at += n) {
        n = min_int(PROBE_ROWS, w->n - at);
        for (int run = 0; ok && run < dump->runs; run++) {
            if (dump->lane[run].seq.committed < w->position + at)
                commit_rows(dump, run, w->position + at);
            ok = run_rows(dump, run, w->token + at, n, true, e);
        }
        for (int i = 0; ok && i < dump->n_item; i++)
            ok = judge_item(dump, &dump->item[i], w, at, n, e);
        *computed = w->position + at + n;
        dump->done += (uint64_t)n;
        if (dump->o->progress)
            dump->o->progress(dump->o->arg, "rows", dump->done, dump->to_do);
    }
    return ok;
}

static bool run_sequence(struct dump_run *dump, const struct dump_sequence *q, struct err *e)
{
    FREED(free_at) int32_t *token = xcalloc((size_t)dump->r->s.longest + 1, sizeof *token);
    int computed = 0;
    bool ok = true;
    for (int run = 0; run < 1 + DUMP_NOISE; run++)
        dump->lane[run] = (struct lane){.tap_row = -1};
    for (int i = 0; ok && i < q->n; i++) {
        const struct dump_rows *w = &q->rows[i];
        memcpy(token + w->position, w->token, (size_t)w->n * sizeof *token);
        ok = run_segment(dump, w, token, &computed, e);
    }
    for (int run = 0; run < 1 + DUMP_NOISE; run++)
        lane_free(&dump->rt, &dump->lane[run]);
    return ok;
}

/* All requests, with `noisy` runs beside. */
static bool run_all(struct dump_run *dump, int noisy, struct err *e)
{
    bool ok = true;
    dump->runs = 1 + noisy;
    dump->done = 0;
    FOR_EACH(struct dump_module, m, dump->module, dump->n_module) {
        m->rows = m->near = m->far = 0;
        m->worst = -1;
    }
    for (int i = 0; ok && i < dump->r->s.n; i++)
        ok = run_sequence(dump, &dump->r->s.v[i], e);
    close_pass(dump);
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

static void take_modules(struct dump_run *dump)
{
    struct dump_report *r = dump->r;
    for (int i = 0; i < dump->n_module; i++) {
        if (dump->module[i].rows > 0) {
            *APPEND(r->module, r->n) = dump->module[i];
        } else {
            free(dump->module[i].name);
        }
    }
    free(dump->module);
    if (r->n)
        qsort(r->module, (size_t)r->n, sizeof *r->module, by_order);
    find_first(r);
}

static bool check_model(const struct dump_run *dump, struct err *e)
{
    const struct config *c = &dump->l.model.cfg;
    const struct dump_sequences *s = &dump->r->s;
    if (s->most_token >= c->vocab)
        return err_set(e, ERR_USAGE, "the dump has token %d, this model's vocabulary %d tokens: "
                                     "the dump is of another model", s->most_token, c->vocab);
    if (s->n == 0)
        return err_set(e, ERR_USAGE, "no row can be computed: %s; turn the prefix cache off, or "
                       "record from a request's first token on", s->first_missing);
    return s->longest <= c->max_pos ||
           err_set(e, ERR_USAGE, "a request of the dump has %d tokens, this model's context %d",
                   s->longest, c->max_pos);
}

static bool open_runtime(struct dump_run *dump, struct err *e)
{
    struct runtime_shape shape = {.page_size = 16, .context = dump->r->s.longest + PROBE_ROWS,
                                  .max_rows = max_int(PROBE_ROWS, TREE_MAX),
                                  .lanes = 1 + DUMP_NOISE, .kv = dump->l.dev.kv};
    struct runtime *rt = &dump->rt;
    const struct config *c = &dump->l.model.cfg;
    if (!loaded_runtime(rt, &dump->l, &shape, e))
        return false;
    for (int i = 0; i < c->n_rope; i++)
        rope_for_context(&dump->l.model.cfg.rope[i], shape.context);
    rt->net.stop = rt->dev.k->queued ? NULL : dump->o->stop;
    size_t bytes = (size_t)mul64(PROBE_ROWS, c->hidden) * sizeof(float);
    for (int i = 0; i < 1 + DUMP_NOISE; i++)
        dump->logits[i] = xmalloc((size_t)mul64(PROBE_ROWS, c->vocab) * sizeof *dump->logits[i]);
    for (int i = 0; i < 2; i++) {
        dump->scratch[i] = rt->dev.k->alloc(rt->dev.d, bytes, "rows of a dump", e);
        if (!dump->scratch[i].p)
            return false;
    }
    dump->plain = rt->dev.k;
    return probe_open(&dump->probe, &rt->net, e);
}

static void close_runtime(struct dump_run *dump)
{
    if (!dump->rt.dev.k)
        return;
    probe_close(&dump->probe, &dump->rt.net);
    for (int i = 0; i < 1 + DUMP_NOISE; i++) {
        probe_clear(&dump->taps[i]);
        free(dump->logits[i]);
    }
    for (int i = 0; i < 2; i++)
        dump->rt.dev.k->release(dump->rt.dev.d, dump->scratch[i]);
    runtime_close(&dump->rt);
}

static bool differs(const struct dump_run *dump)
{
    return ANY(i, dump->n_module, dump->module[i].far > 0);
}

/* Whether the modules of a dump have numbers of bf16 or f16, and over how many ranks heads are
 * spread: what its first pass with modules shows. */
static bool find_type(struct dump_run *dump, struct err *e)
{
    bool ok = true;
    for (int i = 0; ok && dump->shards == 0 && i < dump->r->d.n; i++) {
        open_pass(dump, i);
        for (int k = 0; ok && k < dump->n_item; k++) {
            int64_t width;
            int use;
            const struct torch_entry *t = open_item(dump, dump->item[k].it, &width, e);
            ok = t != NULL;
            dump->wide |= ok && (t->type == DT_F16 || t->type == DT_BF16);
            dump->shards = max_int(dump->shards, ok ? shards_of(dump, &dump->item[k], width, &use)
                                                    : 0);
        }
    }
    dump->r->tol = dump->wide ? 2e-2 : 1e-3;
    dump->r->type = dump->wide ? "bf16" : "float32";
    dump->noise = dump->wide ? NOISE_BF16 : NOISE_F32;
    dump->r->shards = dump->shards;
    return ok;
}

/* Without noise; and with, if a row is off by more than the tolerance. */
static bool judge(struct dump_run *dump, struct err *e)
{
    struct dump_report *r = dump->r;
    dump->to_do = (uint64_t)r->s.rows;
    bool ok = find_type(dump, e) && run_all(dump, 0, e);
    if (!ok || !differs(dump))
        return ok;
    r->noisy = true;
    return run_all(dump, DUMP_NOISE, e);
}

static bool compare_with(struct dump_run *dump, struct err *e)
{
    struct engine_opts o = dump->o->engine;
    o.draft = NULL;
    if (!o.precision)
        o.precision = "f32";
    bool ok = engine_load(&dump->l, &o, LOAD_DEVICE, e);
    if (ok && dump->o->begin)
        dump->o->begin(dump->o->arg);
    ok = ok && check_model(dump, e) && open_runtime(dump, e) && judge(dump, e);
    close_runtime(dump);
    engine_unload(&dump->l);
    return ok;
}

bool dump_compare(const struct dump_opts *o, struct dump_report *r, struct err *e)
{
    struct dump_run dump = {.o = o, .r = r, .pass = -1};
    *r = (struct dump_report){.first = -1, .last_good = -1};
    bool ok = dump_open(&r->d, o->path, e) && dump_align(&r->d, &r->s, e) && compare_with(&dump, e);
    r->stopped = !ok && stop_asked(o->stop);
    close_pass(&dump);
    take_modules(&dump);
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
