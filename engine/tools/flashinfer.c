/* flashinfer.c - see flashinfer.h. */
#include "engine/tools/flashinfer.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <sys/stat.h>

#include "engine/tools/golden_report.h"
#include "engine/tools/torch_file.h"
#include "kernels/ascii.h"
#include "kernels/json_read.h"

enum {
    MOST_RECORDS = 1 << 16,
    META_BYTES = 4 << 20,
    MOST_HEADS = 1024, MOST_DIM = 1024, MOST_PAGE = 1024,
    MOST_NUMBERS = 1 << 24, /* of an index vector */
    MOST_KEYS = 1 << 22,    /* of a request */
    MOST_FLOATS = 1 << 28,  /* of its keys */
};

struct record {
    char *dir, *name;
    json_t *meta;   /* the last line of metadata.jsonl */
    bool completed;
};

struct fi_reader {
    struct record *v;
    int n;
    const struct stop *stop;
};

/* ---- records --------------------------------------------------------------------------------- */

static bool exists(const char *dir, const char *file)
{
    struct stat st;
    FREED(free_at) char *path = xasprintf("%s/%s", dir, file);
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool fi_is(const char *path)
{
    if (exists(path, "metadata.jsonl") || exists(path, "session.jsonl"))
        return true;
    FREED(folder_close) DIR *dir = opendir(path);
    bool found = false;
    for (struct dirent *d; dir && !found && (d = readdir(dir));) {
        FREED(free_at) char *below = xasprintf("%s/%s", path, d->d_name);
        found = d->d_name[0] != '.' && exists(below, "metadata.jsonl");
    }
    return found;
}

/* The last whole line of metadata.jsonl: the state that is the most complete. */
static json_t *last_line(const char *dir, struct err *e)
{
    FREED(buf_free) struct buf text = {0};
    FREED(free_at) char *path = xasprintf("%s/metadata.jsonl", dir);
    json_t *found = NULL;
    if (buf_read_file(&text, path, META_BYTES, e)) {
        for (char *s = text.n ? text.p : NULL, *end; s && *s; s = end) {
            end = s + strcspn(s, "\n");
            json_t *one = end > s ? json_parse(s, (size_t)(end - s), 0, NULL) : NULL;
            end += *end == '\n';
            if (json_is_object(one)) {
                json_decref(found);
                found = one;
            } else {
                json_decref(one);
            }
        }
        if (!found)
            err_set(e, ERR_USAGE, "%.200s: no line is a JSON object", path);
    }
    return found;
}

static bool add_record(struct fi_reader *f, const char *dir, struct err *e)
{
    const char *slash = strrchr(dir, '/');
    json_t *meta = last_line(dir, e);
    if (!meta)
        return false;
    if (f->n == MOST_RECORDS) {
        json_decref(meta);
        return err_set(e, ERR_USAGE, "more than %d records", (int)MOST_RECORDS);
    }
    const char *status = json_string_value(json_object_get(meta, "execution_status"));
    bool complete = status && strcmp(status, "completed") == 0;
    *APPEND(f->v, f->n) = (struct record){xstrdup(dir), xstrdup(slash ? slash + 1 : dir), meta,
                                          complete};
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct record *)a)->name, ((const struct record *)b)->name);
}

static bool read_records(struct fi_reader *f, const char *path, struct err *e)
{
    bool ok = true;
    if (exists(path, "metadata.jsonl"))
        return add_record(f, path, e);
    FREED(folder_close) DIR *dir = opendir(path);
    if (!dir)
        return err_set(e, ERR_USAGE, "cannot open %.200s: %s", path, strerror(errno));
    for (struct dirent *d; ok && (d = readdir(dir));) {
        FREED(free_at) char *below = xasprintf("%s/%s", path, d->d_name);
        if (d->d_name[0] != '.' && exists(below, "metadata.jsonl"))
            ok = add_record(f, below, e);
    }
    if (f->n)
        qsort(f->v, (size_t)f->n, sizeof *f->v, by_name);
    return ok;
}

static const char *function_of(const struct record *r)
{
    return json_str(r->meta, "function_name");
}

static bool same_object(const struct record *a, const struct record *b)
{
    static const char *const keys[] = {"process_id", "self_id"};
    for (int i = 0; i < 2; i++) {
        const json_t *x = json_object_get(a->meta, keys[i]), *y = json_object_get(b->meta, keys[i]);
        if (!x || !y || !json_equal(x, y))
            return false;
    }
    return true;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* An argument that is no tensor, by its place or its name; NULL: not given. */
static const json_t *plain(const struct record *r, int place, const char *name)
{
    char key[64];
    const json_t *all = json_object_get(r->meta, "input_metadata"), *v;
    snprintf(key, sizeof key, "kwarg_%s", name);
    v = json_object_get(all, key);
    if (!v && place > 0) {
        snprintf(key, sizeof key, "arg_%d", place);
        v = json_object_get(all, key);
    }
    return json_is_null(v) ? NULL : v;
}

static bool take_int(const struct record *r, int place, const char *name, int64_t least,
                     int64_t most, int *out, struct err *why)
{
    const json_t *v = plain(r, place, name);
    if (!v)
        return true;
    int64_t i = json_is_boolean(v) ? json_is_true(v) : json_integer_value(v);
    if ((!json_is_integer(v) && !json_is_boolean(v)) || i < least || i > most)
        return err_set(why, ERR_USAGE, "%s is no whole number from %lld to %lld", name,
                       (long long)least, (long long)most);
    *out = (int)i;
    return true;
}

static double real(const struct record *r, int place, const char *name, double usual)
{
    const json_t *v = plain(r, place, name);
    return json_is_number(v) ? json_number_value(v) : usual;
}

/* A tensor argument in the inputs; NULL: not given. */
static const struct torch_entry *argument(const struct torch_file *f, int place, const char *name,
                                          const char *more)
{
    char key[80];
    snprintf(key, sizeof key, "kwarg_%s%s", name, more);
    const struct torch_entry *t = torch_find(f, key);
    if (!t) {
        snprintf(key, sizeof key, "arg_%d%s", place, more);
        t = torch_find(f, key);
    }
    return t && !t->text ? t : NULL;
}

static struct torch_file *open_part(const struct record *r, const char *part, struct err *e)
{
    FREED(free_at) char *pt = xasprintf("%s.pt", part), *safe = xasprintf("%s.safetensors", part);
    FREED(free_at) char *path = xasprintf("%s/%s", r->dir, exists(r->dir, safe) ? safe : pt);
    return torch_open(path, e);
}

/* ---- a plan ---------------------------------------------------------------------------------- */

struct fi_plan {
    int batch, n_q, n_kv, dim, page, rows;
    int causal, window_left; /* -1: none */
    double scale, cap;
    int64_t *qo, *kv, *page_of, *last; /* (batch + 1), (batch + 1), (kv[batch]), (batch) */
    int64_t n_page_of;
    uint8_t *mask;   /* custom: a byte a pair, request after request; NULL: none */
    int64_t *mask_at; /* (batch) */
};

static void plan_free(struct fi_plan *p)
{
    FREE(p->qo, p->kv, p->page_of, p->last, p->mask, p->mask_at);
    *p = (struct fi_plan){0};
}

static bool numbers(struct torch_file *f, int place, const char *name, int64_t **out, int64_t *n,
                    struct err *why)
{
    const struct torch_entry *t = argument(f, place, name, "");
    if (!t || t->count > MOST_NUMBERS)
        return err_set(why, ERR_USAGE, "the plan has no %s", name);
    *out = xcalloc((size_t)t->count + 1, sizeof **out);
    *n = t->count;
    return torch_wholes(f, t, *out, why);
}

static int64_t kv_len(const struct fi_plan *p, int b)
{
    int64_t pages = p->kv[b + 1] - p->kv[b];
    return pages ? (pages - 1) * p->page + p->last[b] : 0;
}

/* Checks the plan's vectors before a kernel gets them; why: what is wrong. */
static bool check_plan_vectors(const struct fi_plan *p, struct err *why)
{
    for (int b = 0; b < p->batch; b++) {
        int64_t pages = p->kv[b + 1] - p->kv[b], rows = p->qo[b + 1] - p->qo[b];
        const char *wrong = NULL;
        if (p->kv[b] < 0 || pages < 0 || p->kv[b + 1] > p->n_page_of)
            wrong = "kv_indptr falls, or points behind the page indices";
        else if (p->qo[b] < 0 || rows < 0 || rows > MOST_NUMBERS)
            wrong = "qo_indptr falls";
        else if (pages && (p->last[b] < 1 || p->last[b] > p->page))
            wrong = "last_page_len is not 1 to the page size";
        else if (kv_len(p, b) > MOST_KEYS)
            wrong = "more keys than any context has";
        if (wrong)
            return err_set(why, ERR_USAGE,
                           "request %d: %s (kv_indptr %lld to %lld, last_page_len %lld)", b, wrong,
                           (long long)p->kv[b], (long long)p->kv[b + 1], (long long)p->last[b]);
    }
    return true;
}

/* A custom mask, unpacked: a byte for each pair of a row and a key. */
static bool read_mask(struct torch_file *f, struct fi_plan *p, struct err *why)
{
    const struct torch_entry *whole = argument(f, 10, "custom_mask", "");
    const struct torch_entry *packed = argument(f, 11, "packed_custom_mask", "");
    const struct torch_entry *t = packed ? packed : whole;
    int64_t n = 0, bytes = 0, *v;
    if (!t)
        return true;
    p->mask_at = xcalloc((size_t)p->batch + 1, sizeof *p->mask_at);
    for (int b = 0; b < p->batch; b++) {
        p->mask_at[b] = n;
        int64_t pairs = (p->qo[b + 1] - p->qo[b]) * kv_len(p, b);
        n += pairs;
        bytes += (pairs + 7) / 8;
        if (n > MOST_NUMBERS)
            return err_set(why, ERR_USAGE, "a mask of more than %d pairs", (int)MOST_NUMBERS);
    }
    if (t->count != (packed ? bytes : n))
        return err_set(why, ERR_USAGE, "the mask has %lld entries; the lengths need %lld",
                       (long long)t->count, (long long)(packed ? bytes : n));
    v = xcalloc((size_t)t->count + 1, sizeof *v);
    bool ok = torch_wholes(f, t, v, why);
    p->mask = xcalloc((size_t)n + 1, 1);
    for (int b = 0, byte = 0; ok && b < p->batch; b++) {
        int64_t pairs = (p->qo[b + 1] - p->qo[b]) * kv_len(p, b);
        for (int64_t i = 0; i < pairs; i++)
            p->mask[p->mask_at[b] + i] = packed ? v[byte + i / 8] >> (i % 8) & 1
                                                : v[p->mask_at[b] + i] != 0;
        byte += (int)((pairs + 7) / 8);
    }
    free(v);
    return ok;
}

static bool read_sizes(const struct record *r, bool prefill, struct fi_plan *p, struct err *why)
{
    int at = prefill ? 5 : 4;
    const json_t *rope = plain(r, prefill ? 13 : 0, "pos_encoding_mode");
    p->window_left = -1;
    if (json_is_string(rope) && strcmp(json_string_value(rope), "NONE") != 0)
        return err_set(why, ERR_USAGE, "pos_encoding_mode %.40s turns keys within the kernel",
                       json_string_value(rope));
    bool ok = take_int(r, at, "num_qo_heads", 1, MOST_HEADS, &p->n_q, why) &&
              take_int(r, at + 1, "num_kv_heads", 1, MOST_HEADS, &p->n_kv, why) &&
              take_int(r, at + 2, prefill ? "head_dim_qk" : "head_dim", 1, MOST_DIM, &p->dim,
                       why) &&
              take_int(r, at + 3, "page_size", 1, MOST_PAGE, &p->page, why) &&
              take_int(r, prefill ? 12 : 0, "causal", 0, 1, &p->causal, why) &&
              take_int(r, prefill ? 16 : 0, "window_left", -1, INT32_MAX, &p->window_left, why);
    if (ok && (!p->n_q || !p->n_kv || !p->dim || !p->page || p->n_q % p->n_kv))
        return err_set(why, ERR_USAGE,
                       "the plan's numbers of heads, dimensions or page size are missing");
    p->scale = real(r, prefill ? 15 : 0, "sm_scale", ok ? 1 / sqrt(p->dim) : 1);
    p->cap = real(r, prefill ? 17 : 0, "logits_soft_cap", 0);
    return ok;
}

/* False: *why; *broken: the tables are wrong, not only unknown. */
static bool read_plan(const struct record *r, bool prefill, struct fi_plan *p, struct err *why,
                      bool *broken)
{
    int64_t n_qo = 0, n_kv = 0, n_last = 0;
    int at = prefill ? 2 : 1;
    *p = (struct fi_plan){0};
    struct torch_file *f = open_part(r, "inputs", why);
    if (!f)
        return false;
    bool ok = read_sizes(r, prefill, p, why) &&
              (!prefill || numbers(f, 1, "qo_indptr", &p->qo, &n_qo, why)) &&
              numbers(f, at, prefill ? "paged_kv_indptr" : "indptr", &p->kv, &n_kv, why) &&
              numbers(f, at + 1, prefill ? "paged_kv_indices" : "indices", &p->page_of,
                      &p->n_page_of, why) &&
              numbers(f, at + 2, prefill ? "paged_kv_last_page_len" : "last_page_len", &p->last,
                      &n_last, why);
    p->batch = ok ? (int)n_last : 0;
    if (ok && !prefill) { /* a row for each request */
        p->qo = xcalloc((size_t)n_last + 1, sizeof *p->qo);
        for (int64_t b = 0; b <= n_last; b++)
            p->qo[b] = b;
        n_qo = n_last + 1;
    }
    if (ok && (n_kv != n_last + 1 || n_qo != n_last + 1)) {
        ok = err_set(why, ERR_USAGE,
                     "qo_indptr, kv_indptr and last_page_len are of %lld, %lld and "
                     "%lld requests",
                     (long long)n_qo - 1, (long long)n_kv - 1, (long long)n_last);
        *broken = true;
    } else if (ok) {
        ok = check_plan_vectors(p, why);
        *broken = !ok;
    }
    ok = ok && (!prefill || read_mask(f, p, why));
    p->rows = ok && p->batch ? (int)p->qo[p->batch] : 0;
    torch_close(f);
    return ok;
}

/* ---- a run ----------------------------------------------------------------------------------- */

struct fi_call {
    const struct fi_plan *p;
    struct torch_file *in;
    const struct torch_entry *q, *k, *v; /* v NULL: the second half of k's pages */
    bool hnd;
    int64_t pool; /* pages */
    float *sinks; /* (n_q) or NULL */
    double scale, v_scale;
    int window_left;
    float *got, *query; /* (rows, n_q, dim) */
    float *keys, *values; /* (kv_len, n_kv, dim) of a request */
    const struct stop *stop;
};

/* Reads pages [.., n) of a request in the order (cell, head, dim). */
static bool read_pages(struct fi_call *c, int b, bool values, float *out, struct err *e)
{
    const struct fi_plan *p = c->p;
    bool pair = !c->v;
    const struct torch_entry *t = values && c->v ? c->v : c->k;
    int64_t page = (int64_t)p->page * p->n_kv * p->dim, len = kv_len(p, b);
    FREED(free_at) float *one = xmalloc((size_t)page * sizeof *one);
    bool ok = true;
    for (int64_t i = 0; ok && i < p->kv[b + 1] - p->kv[b]; i++) {
        int64_t at = p->page_of[p->kv[b] + i];
        ok = torch_floats(c->in, t, (pair ? 2 * at + values : at) * page, page, one, e);
        for (int64_t cell = 0; ok && cell < p->page && i * p->page + cell < len; cell++)
            for (int h = 0; h < p->n_kv; h++)
                memcpy(out + (((size_t)(i * p->page + cell) * (size_t)p->n_kv + (size_t)h) *
                              (size_t)p->dim),
                       one + (size_t)(c->hnd ? mul64(h, p->page) + cell : cell * p->n_kv + h) *
                                 (size_t)p->dim, (size_t)p->dim * sizeof *out);
    }
    return ok;
}

/* What is attended to; variants of it explain a wrong result. */
struct fi_rule {
    const char *name;
    int window_left; /* -1: none */
    bool causal, masked;
    int64_t extra; /* keys more than the plan says */
};

static bool sees(const struct fi_call *c, const struct fi_rule *w, int b, int64_t row, int64_t len,
                 int64_t key)
{
    const struct fi_plan *p = c->p;
    int64_t rows = p->qo[b + 1] - p->qo[b], at = row + kv_len(p, b) - rows;
    if (w->masked && key < kv_len(p, b) &&
        !p->mask[p->mask_at[b] + row * kv_len(p, b) + key])
        return false;
    return key < len && (w->window_left < 0 || key >= at - w->window_left) &&
           (w->masked || !w->causal || key <= at);
}

/* One row's attention, in double precision, all heads. */
static void attend(const struct fi_call *c, const struct fi_rule *w, int b, int64_t row,
                   double *score, float *out)
{
    const struct fi_plan *p = c->p;
    int64_t len = kv_len(p, b) + w->extra;
    const float *q = c->query + (size_t)(p->qo[b] + row) * (size_t)p->n_q * (size_t)p->dim;
    int group = p->n_q / p->n_kv;
    for (int h = 0; h < p->n_q; h++) {
        double most = c->sinks ? (double)c->sinks[h] : -INFINITY, sum = 0, add[MOST_DIM] = {0};
        for (int64_t k = 0; k < len; k++) {
            const float *key = c->keys + (size_t)(k * p->n_kv + h / group) * (size_t)p->dim;
            double dot = 0;
            for (int i = 0; i < p->dim; i++)
                dot += (double)q[h * p->dim + i] * (double)key[i];
            dot *= c->scale;
            if (p->cap > 0)
                dot = p->cap * tanh(dot / p->cap);
            score[k] = sees(c, w, b, row, len, k) ? dot : -INFINITY;
            most = fmax(most, score[k]);
        }
        if (c->sinks)
            sum = exp((double)c->sinks[h] - most);
        for (int64_t k = 0; k < len; k++) {
            double x = score[k] == -INFINITY ? 0 : exp(score[k] - most);
            const float *value = c->values + (size_t)(k * p->n_kv + h / group) * (size_t)p->dim;
            sum += x;
            for (int i = 0; x > 0 && i < p->dim; i++)
                add[i] += x * (double)value[i];
        }
        for (int i = 0; i < p->dim; i++)
            out[h * p->dim + i] = (float)(sum > 0 ? add[i] / sum * c->v_scale : 0);
    }
}

/* The largest error of a request's rows under a rule; *at: the first row beyond tol, or the
 * worst. */
static double worst_of(const struct fi_call *c, const struct fi_rule *w, int b, double tol,
                       int64_t *at)
{
    const struct fi_plan *p = c->p;
    size_t width = (size_t)p->n_q * (size_t)p->dim;
    double worst = -1;
    FREED(free_at) double *score = xcalloc((size_t)(kv_len(p, b) + w->extra) + 1, sizeof *score);
    FREED(free_at) float *row = xmalloc(width * sizeof *row);
    int64_t rows = p->qo[b + 1] - p->qo[b];
    for (int64_t i = 0; i < rows && !(worst > tol) && !stop_asked(c->stop); i++) {
        attend(c, w, b, i, score, row);
        double x = compare(c->got + (size_t)(p->qo[b] + i) * width, row, 1, width).rel;
        if (!(x <= worst)) {
            worst = isnan(x) ? INFINITY : x;
            *at = i;
        }
    }
    return worst;
}

/* Which other rule the request's result follows. */
static const char *explain(const struct fi_call *c, const struct fi_rule *w, int b, double tol)
{
    int64_t at, tail = c->p->kv[b + 1] > c->p->kv[b] ? c->p->page - c->p->last[b] : 0;
    struct fi_rule other[] = {*w, *w, *w, *w, *w, *w};
    other[0].window_left = -1, other[0].name = "of no window";
    other[1].window_left--, other[1].name = "of a window that is one key shorter";
    other[2].window_left++, other[2].name = "of a window that is one key longer";
    other[3].causal = !w->causal;
    other[3].name = w->causal ? "of no causal mask" : "of a causal mask";
    other[4].masked = false, other[4].name = "of no custom mask";
    other[5].extra = tail, other[5].name = "of the whole last page, unwritten keys included";
    for (int i = 0; i < 6; i++) {
        bool same = i < 3 ? w->window_left < 0 : i == 4 ? !w->masked : i == 5 ? tail == 0
                    : w->masked;
        if (!same && other[i].window_left >= -1 && worst_of(c, &other[i], b, tol, &at) <= tol)
            return other[i].name;
    }
    return NULL;
}

/* The keys beside the last page are read, too, for explain(). */
static bool load_request(struct fi_call *c, int b, struct err *e)
{
    const struct fi_plan *p = c->p;
    int64_t pages = p->kv[b + 1] - p->kv[b], last = p->last[b];
    size_t n = (size_t)(pages * p->page) * (size_t)p->n_kv * (size_t)p->dim;
    FREE(c->keys, c->values);
    c->keys = xcalloc(n + 1, sizeof *c->keys);
    c->values = xcalloc(n + 1, sizeof *c->values);
    p->last[b] = pages ? p->page : 0;
    bool ok = read_pages(c, b, false, c->keys, e) && read_pages(c, b, true, c->values, e);
    p->last[b] = last;
    return ok;
}

static bool judge_rows(struct fi_call *c, struct fi_run *run, double tol, struct err *e)
{
    const struct fi_plan *p = c->p;
    const struct fi_rule rule = {"", c->window_left, p->causal, p->mask != NULL, 0};
    run->worst = -1;
    for (int b = 0; b < p->batch && run->verdict == FI_AGREES; b++) {
        int64_t at = 0;
        if (!load_request(c, b, e))
            return false;
        double worst = worst_of(c, &rule, b, tol, &at);
        if (stop_asked(c->stop))
            return err_set(e, ERR_USAGE, "the comparison was stopped");
        if (worst > run->worst) {
            run->worst = worst;
            run->request = b;
            run->row = (int)(p->qo[b] + at);
            run->position = (int)(at + kv_len(p, b) - (p->qo[b + 1] - p->qo[b]));
        }
        if (worst > tol) {
            run->verdict = FI_DIFFERS;
            run->like = explain(c, &rule, b, tol);
        }
    }
    return true;
}

/* Finds the caches and their layout. */
static bool find_cache(struct fi_call *c, const char *layout, struct err *why)
{
    const struct fi_plan *p = c->p;
    const struct torch_entry *both = argument(c->in, 2, "paged_kv_cache", "");
    c->k = both ? both : argument(c->in, 2, "paged_kv_cache", "__0");
    c->v = both ? NULL : argument(c->in, 2, "paged_kv_cache", "__1");
    int n = both ? 5 : 4;
    if (!c->k || (!both && !c->v) || c->k->n_dim != n || (c->v && c->v->n_dim != n) ||
        c->k->dim[n - 1] != p->dim || (both && both->dim[1] != 2))
        return err_set(why, ERR_USAGE,
                       "the paged cache is missing, or no tensor of pages, cells and heads");
    int64_t second = c->k->dim[n - 3], third = c->k->dim[n - 2];
    bool nhd = second == p->page && third == p->n_kv, hnd = second == p->n_kv && third == p->page;
    c->hnd = hnd && (!nhd || (layout && strcmp(layout, "HND") == 0));
    if (!nhd && !hnd)
        return err_set(why, ERR_USAGE,
                       "the paged cache has pages of %lld x %lld; the plan says %d cells and "
                       "%d heads",
                       (long long)second, (long long)third, p->page, p->n_kv);
    c->pool = c->v && c->v->dim[0] < c->k->dim[0] ? c->v->dim[0] : c->k->dim[0];
    for (int i = 1; c->v && i < n; i++)
        if (c->v->dim[i] != c->k->dim[i])
            return err_set(why, ERR_USAGE,
                           "the caches of keys and values have pages of two shapes");
    for (int b = 0; b < p->batch; b++)
        if ((p->kv[b + 1] - p->kv[b]) * p->page > MOST_FLOATS / ((int64_t)p->n_kv * p->dim))
            return err_set(why, ERR_USAGE, "request %d has more than 2^28 numbers of keys", b);
    return true;
}

static bool check_pages(const struct fi_call *c, struct err *why)
{
    const struct fi_plan *p = c->p;
    for (int b = 0; b < p->batch; b++)
        for (int64_t i = p->kv[b]; i < p->kv[b + 1]; i++)
            if (p->page_of[i] < 0 || p->page_of[i] >= c->pool)
                return err_set(
                    why, ERR_USAGE, "request %d, column %lld: page %lld of a pool of %lld", b,
                    (long long)(i - p->kv[b]), (long long)p->page_of[i], (long long)c->pool);
    return true;
}

static float *all_floats(struct torch_file *f, const struct torch_entry *t, struct err *e)
{
    float *x = xmalloc((size_t)t->count * sizeof *x + 1);
    if (torch_floats(f, t, 0, t->count, x, e))
        return x;
    free(x);
    return NULL;
}

/* Queries, result, sinks and scales of a call. */
static bool read_call(struct fi_call *c, const struct record *r, struct torch_file *out,
                      const char *layout, double *tol, struct err *why)
{
    const struct fi_plan *p = c->p;
    int64_t need = (int64_t)p->rows * p->n_q * p->dim;
    const struct torch_entry *result = torch_find(out, "result");
    if (!result)
        result = torch_find(out, "result_0");
    c->q = argument(c->in, 1, "q", "");
    if (!c->q || !result || result->text || c->q->count != need || result->count != need)
        return err_set(why, ERR_USAGE, "queries and result are not %d rows of %d heads of %d",
                       p->rows, p->n_q, p->dim);
    if (plain(r, 0, "k_scale") && !json_is_number(plain(r, 0, "k_scale")))
        return err_set(why, ERR_USAGE, "scales of keys as tensors");
    c->scale = p->scale * real(r, 0, "q_scale", 1) * real(r, 0, "k_scale", 1);
    c->v_scale = real(r, 0, "v_scale", 1);
    c->window_left = p->window_left;
    const struct torch_entry *sinks = argument(c->in, -1, "sinks", "");
    if (!take_int(r, 0, "window_left", -1, INT32_MAX, &c->window_left, why) ||
        !find_cache(c, layout, why))
        return false;
    c->got = all_floats(out, result, why);
    c->query = c->got ? all_floats(c->in, c->q, why) : NULL;
    if (!c->query)
        return false;
    if (sinks && sinks->count == p->n_q)
        c->sinks = all_floats(c->in, sinks, why);
    if (sinks && !c->sinks)
        return err_set(why, ERR_USAGE, "sinks that are not one a head");
    *tol = result->type == DT_F32 && c->q->type == DT_F32 && c->k->type == DT_F32 ? 1e-3 : 2e-2;
    return true;
}

/* ---- all calls ------------------------------------------------------------------------------- */

/* The latest record of this method of the same object before record i; NULL: there is none. */
static const struct record *before(const struct fi_reader *f, int i, const char *method)
{
    for (int k = i - 1; k >= 0; k--)
        if (same_object(&f->v[k], &f->v[i]) && ends_with(function_of(&f->v[k]), method))
            return &f->v[k];
    return NULL;
}

static bool judge(const struct fi_reader *f, int i, bool prefill, struct fi_run *run, double *tol,
                  struct err *e)
{
    const struct record *r = &f->v[i], *plan = before(f, i, ".plan"),
                        *made = before(f, i, ".__init__");
    struct fi_plan p = {0};
    struct fi_call c = {.p = &p, .stop = f->stop};
    struct err why = {0};
    bool broken = false;
    const char *layout = made ? json_string_value(plain(made, 2, "kv_layout")) : NULL;
    run->verdict = FI_SKIPPED;
    if (!plan) {
        snprintf(run->why, sizeof run->why, "no record of its plan");
        return true;
    }
    bool ok = read_plan(plan, prefill, &p, &why, &broken), fine = true;
    run->requests = p.batch;
    run->rows = p.rows;
    run->window = p.window_left >= 0 ? p.window_left + 1 : 0;
    struct torch_file *out = ok && r->completed ? open_part(r, "outputs", &why) : NULL;
    c.in = out ? open_part(r, "inputs", &why) : NULL;
    if (ok && !r->completed)
        run->verdict = FI_NO_OUTPUT;
    else if (broken)
        run->verdict = FI_BROKEN;
    else if (c.in && read_call(&c, r, out, layout, tol, &why)) {
        run->verdict = check_pages(&c, &why) ? FI_AGREES : FI_BROKEN;
        fine = run->verdict != FI_AGREES || judge_rows(&c, run, *tol, e);
    }
    snprintf(run->why, sizeof run->why, "%.199s", why.msg);
    torch_close(out);
    torch_close(c.in);
    FREE(c.sinks, c.got, c.query, c.keys, c.values);
    plan_free(&p);
    return fine;
}

static bool compare_all(const struct fi_reader *f, struct fi_report *r, struct err *e)
{
    bool ok = true;
    for (int i = 0; ok && i < f->n; i++) {
        const char *name = function_of(&f->v[i]);
        bool prefill = strcmp(name, "BatchPrefillWithPagedKVCacheWrapper.run") == 0;
        bool decode = strcmp(name, "BatchDecodeWithPagedKVCacheWrapper.run") == 0;
        double tol = 0;
        r->records++;
        if (!prefill && !decode) {
            r->other += !ends_with(name, ".plan") && !ends_with(name, ".__init__");
            continue;
        }
        struct fi_run *run = APPEND(r->v, r->n);
        *run = (struct fi_run){.name = xstrdup(f->v[i].name), .request = -1, .row = -1,
                               .position = -1};
        for (char *s = run->name; *s; s++)
            *s = *s < ' ' || *s > '~' ? '?' : *s;
        ok = judge(f, i, prefill, run, &tol, e);
        r->tol = tol > r->tol ? tol : r->tol;
        if (r->first < 0 && (run->verdict == FI_DIFFERS || run->verdict == FI_BROKEN))
            r->first = r->n - 1;
    }
    return ok;
}

bool fi_compare(const char *path, const struct stop *stop, struct fi_report *r, struct err *e)
{
    struct fi_reader f = {.stop = stop};
    *r = (struct fi_report){.first = -1};
    bool ok = read_records(&f, path, e) && compare_all(&f, r, e);
    if (ok && r->n == 0)
        ok = err_set(e, ERR_USAGE, "%.200s: no call of run() of a paged wrapper among %d records",
                     path, r->records);
    if (ok && r->first >= 0)
        ok = err_set(e, ERR_NEGATIVE, "%.120s %s", r->v[r->first].name,
                     fi_word(r->v[r->first].verdict));
    for (int i = 0; i < f.n; i++) {
        FREE(f.v[i].dir, f.v[i].name);
        json_decref(f.v[i].meta);
    }
    free(f.v);
    return ok;
}

void fi_free(struct fi_report *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->v[i].name);
    free(r->v);
    *r = (struct fi_report){0};
}

const char *fi_word(enum fi_verdict v)
{
    static const char *const words[] = {
        [FI_AGREES] = "agrees", [FI_DIFFERS] = "differs", [FI_BROKEN] = "has broken tables",
        [FI_NO_OUTPUT] = "has no output", [FI_SKIPPED] = "was not compared"};
    return words[v];
}
