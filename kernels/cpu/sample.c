/* sample.c - operations on logits: top-k, log probabilities, and sampling.
 *
 * Rows are independent, and scanned in parts. No vocabulary is sorted: top-k scans a part for
 * values above the current k-th best, and sampling pops candidates from a heap, best first, until
 * its filters are satisfied.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { MAX_TOPK = 64 };

/* ---- scans: rows in parts, which are items --------------------------------------------------- */

enum {
    SUM = 512,       /* elements of a sum of sum_exp(); those are added in order */
    PART = 32 * SUM, /* elements of an item */
};

struct sample_scan {
    const struct cpu_isa *isa;
    const float *x; /* (rows, n) */
    const uint8_t *mask, *used; /* (n), (rows) or NULL; a row that is not used is not read */
    int rows, n, parts;
    struct sample_part { float max; bool invalid; } *part; /* (rows, parts) */
    double *sum; /* (rows, parts * (PART / SUM)), of exp(x - max of the row) */
};

static struct sample_scan scan_of(struct kdev *d, const float *x, int rows, int n,
                                  const uint8_t *mask)
{
    struct sample_scan s = {.isa = d->isa, .x = x, .mask = mask, .rows = rows, .n = n,
                            .parts = div_up(n, PART)};
    s.part = cpu_scratch(d, SCRATCH_SCAN, (size_t)rows * (size_t)s.parts, sizeof *s.part);
    return s;
}

/* The range of a part; false if its row is not used. */
static bool part_range(const struct sample_scan *s, int item, int *r, int *from, int *to)
{
    *r = item / s->parts;
    *from = item % s->parts * PART;
    *to = min_int(s->n, *from + PART);
    return !s->used || s->used[*r];
}

static void max_item(void *arg, int item, int)
{
    const struct sample_scan *s = arg;
    int r, from, to;
    if (!part_range(s, item, &r, &from, &to))
        return;
    struct sample_part *p = &s->part[item];
    p->max = s->isa->max(s->x + (size_t)r * (size_t)s->n + from, s->mask ? s->mask + from : NULL,
                         to - from, &p->invalid);
}

/* The largest element of each part that is not masked, and whether any element is NaN or +inf. */
static void scan_max(struct kdev *d, struct sample_scan *s)
{
    cpu_each(d, s->rows * s->parts, PART / 4.0, max_item, s);
}

/* Those of the row; *at: the first part with the largest element. */
static struct sample_part row_max(const struct sample_scan *s, int r, int *at)
{
    struct sample_part all = s->part[mul64(r, s->parts)];
    *at = 0;
    for (int i = 1; i < s->parts; i++) {
        const struct sample_part *p = &s->part[r * s->parts + i];
        all.invalid |= p->invalid;
        if (p->max > all.max)
            all.max = p->max, *at = i;
    }
    return all;
}

static void sum_item(void *arg, int item, int)
{
    const struct sample_scan *s = arg;
    int r, from, to, at;
    if (!part_range(s, item, &r, &from, &to))
        return;
    struct sample_part all = row_max(s, r, &at);
    if (all.invalid || all.max == -INFINITY)
        return;
    double *sum = s->sum + (size_t)item * (PART / SUM);
    for (; from < to; from += SUM)
        *sum++ = s->isa->sum_exp(s->x + (size_t)r * (size_t)s->n + from, NULL,
                                 min_int(SUM, to - from), all.max, 1, NULL);
}

static void alloc_sums(struct kdev *d, struct sample_scan *s)
{
    size_t n = (size_t)s->rows * (size_t)s->parts * (PART / SUM);
    s->sum = cpu_scratch(d, SCRATCH_SUMS, n, sizeof *s->sum);
}

/* The sums of each part, after scan_max() without a mask. */
static void scan_sums(struct kdev *d, struct sample_scan *s)
{
    alloc_sums(d, s);
    cpu_each(d, s->rows * s->parts, PART * 4.0, sum_item, s);
}

static double row_lse(const struct sample_scan *s, int r)
{
    int at;
    struct sample_part all = row_max(s, r, &at);
    if (all.invalid)
        return NAN;
    if (all.max == -INFINITY)
        return -INFINITY;
    double total = 0;
    for (int i = 0; i < div_up(s->n, SUM); i++)
        total += s->sum[(size_t)r * (size_t)s->parts * (PART / SUM) + (size_t)i];
    /* cppcheck-suppress invalidFunctionArg ; the largest logit alone adds 1 to the sum */
    return (double)all.max + log(total);
}

/* ---- topk ----------------------------------------------------------------------------------- */

struct topk_run {
    const struct k_topk *a;
    struct sample_scan scan;
    int32_t *ids; /* (rows, parts, k) best of each part; -1: no more */
};

/* Inserts i behind those that are not smaller, n of at most k; returns how many there are. */
static int insert(const float *x, int32_t *ids, int n, int k, int i)
{
    if (n == k && !(x[i] > x[ids[k - 1]]))
        return n;
    int at = n < k ? n : k - 1; /* replaces the worst if the list is full */
    for (; at > 0 && x[i] > x[ids[at - 1]]; at--)
        ids[at] = ids[at - 1];
    ids[at] = i;
    return n < k ? n + 1 : k;
}

static void topk_item(void *arg, int item, int thread)
{
    const struct topk_run *run = arg;
    const struct k_topk *a = run->a;
    int r, from, to, n = 0;
    part_range(&run->scan, item, &r, &from, &to);
    const float *x = run->scan.x + (size_t)r * (size_t)a->n;
    const uint8_t *mask = a->mask.p;
    int32_t *ids = run->ids + (size_t)item * (size_t)a->k;
    float bar = -INFINITY;
    for (int i = from; (i = run->scan.isa->find(x, i, to, bar)) < to; i++) {
        if (mask && mask[i])
            continue;
        n = insert(x, ids, n, a->k, i);
        if (n < a->k)
            continue;
        if (x[ids[a->k - 1]] == INFINITY)
            break;
        bar = nextafterf(x[ids[a->k - 1]], INFINITY); /* ties keep the lower index */
    }
    for (; n < a->k; n++)
        ids[n] = -1;
    sum_item(&((struct topk_run *)arg)->scan, item, thread);
}

static void topk_row(const struct topk_run *run, int r)
{
    const struct k_topk *a = run->a;
    const float *x = run->scan.x + (size_t)r * (size_t)a->n;
    const int32_t *part = run->ids + (size_t)r * (size_t)run->scan.parts * (size_t)a->k;
    int32_t ids[MAX_TOPK] = {0};
    int n = 0;
    for (int i = 0; i < run->scan.parts * a->k; i++) /* in the order of indices where values tie */
        if (part[i] >= 0)
            n = insert(x, ids, n, a->k, part[i]);
    double lse = row_lse(&run->scan, r);
    for (int i = 0; i < a->k; i++) {
        ((int32_t *)a->ids.p)[r * a->k + i] = i < n ? ids[i] : -1;
        ((float *)a->logp.p)[r * a->k + i] = i < n ? (float)((double)x[ids[i]] - lse) : -INFINITY;
    }
    if (a->lse.p)
        ((float *)a->lse.p)[r] = (float)lse;
}

void cpu_topk(struct kdev *d, const struct k_topk *a)
{
    size_t rows = (size_t)a->rows;
    CHECK(a->k > 0 && a->k <= MAX_TOPK && a->k <= a->n);
    CHECK(!a->mask.p || a->mask.n >= (size_t)a->n);
    cpu_i32(a->ids, rows * (size_t)a->k);
    cpu_f32(a->logp, rows * (size_t)a->k);
    if (a->lse.p)
        cpu_f32(a->lse, rows);
    const float *x = cpu_f32(a->logits, rows * (size_t)a->n);
    struct topk_run run = {a, scan_of(d, x, a->rows, a->n, NULL), NULL};
    struct sample_scan *s = &run.scan;
    scan_max(d, s);
    alloc_sums(d, s);
    run.ids = cpu_scratch(d, SCRATCH_IDS, (size_t)a->rows * (size_t)s->parts * (size_t)a->k,
                          sizeof *run.ids);
    cpu_each(d, a->rows * s->parts, PART * 5.0, topk_item, &run);
    for (int r = 0; r < a->rows; r++)
        topk_row(&run, r);
}

/* ---- the head of a distribution: its most probable tokens ----------------------------------- */

/* Candidates in descending order: order[0..n_order) are sorted, the heap holds further ones with a
 * logit of at least `bar`. When the heap is empty, the bar is lowered and the row is read again. So
 * a typical draw sorts few candidates; the worst case sorts all, with the same result. */
struct sample_head {
    const struct cpu_isa *isa;
    const float *x, *w; /* logits; exp((x - max) / temperature) */
    const uint8_t *mask;
    int n, level;
    float max, temperature, bar;
    uint64_t *heap; /* (n) keys, larger is better */
    int n_heap;
    int32_t *order; /* (n) */
    int n_order;
};

/* Order of keys: logit descending, then index ascending. */
static uint64_t key_of(float x, int i)
{
    union { float f; uint32_t u; } v = {.f = x + 0.f}; /* -0 and 0 are a tie */
    uint32_t up = v.u & 0x80000000u ? ~v.u : v.u | 0x80000000u;
    return (uint64_t)up << 32 | (0xffffffffu - (uint32_t)i);
}

static void sift_down(uint64_t *heap, int n, int i)
{
    uint64_t key = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] > heap[child])
            child++;
        if (key >= heap[child])
            break;
        heap[i] = heap[child];
    }
    heap[i] = key;
}

static bool head_refill(struct sample_head *h)
{
    static const float depth[] = {4, 12, 40}; /* bars below max, times temperature; then all */
    const int last = (int)(LEN(depth));
    while (h->n_heap == 0 && h->level <= last) {
        float above = h->level ? h->bar : INFINITY, lowest = -3.4028235e38f; /* excludes -inf */
        h->bar = h->level < last ? h->max - depth[h->level] * h->temperature : lowest;
        h->bar = h->bar > lowest ? h->bar : lowest;
        h->level++;
        for (int i = 0; (i = h->isa->find(h->x, i, h->n, h->bar)) < h->n; i++)
            if (h->x[i] < above && !(h->mask && h->mask[i]))
                h->heap[h->n_heap++] = key_of(h->x[i], i);
        for (int i = h->n_heap / 2 - 1; i >= 0; i--)
            sift_down(h->heap, h->n_heap, i);
    }
    return h->n_heap > 0;
}

/* The token at this rank (0: the best), or -1 if there are fewer candidates. */
static int head_at(struct sample_head *h, int rank)
{
    while (h->n_order <= rank) {
        if (h->n_heap == 0 && !head_refill(h))
            return -1;
        h->order[h->n_order++] = (int32_t)(0xffffffffu - (uint32_t)h->heap[0]);
        h->heap[0] = h->heap[--h->n_heap];
        if (h->n_heap)
            sift_down(h->heap, h->n_heap, 0);
    }
    return h->order[rank];
}

/* Counts the candidates, best first, that pass a filter: at most `most`, until their mass reaches
 * `enough`, each of a weight of at least `least`; the best always passes. *mass: the sum of their
 * weights. */
static int head_filter(struct sample_head *h, int most, double enough, float least, double *mass)
{
    int n = 0;
    *mass = 0;
    for (int i; n < most && (n == 0 || *mass < enough) && (i = head_at(h, n)) >= 0; n++) {
        if (n > 0 && h->w[i] < least)
            break;
        *mass += (double)h->w[i];
    }
    return n;
}

/* ---- sample --------------------------------------------------------------------------------- */

struct sample_run {
    const struct k_sample *a;
    const struct cpu_isa *isa;
    struct sample_scan scan;
    size_t thread_bytes;
    char *scratch;
};

/* Applies the filters in order, then draws the first candidate at which the running sum of weights
 * exceeds u times their mass. The best candidate has weight 1, so min_p is a limit on weights. */
static void draw_token(struct sample_head *h, const struct sampling *how, double total, float u,
                       int32_t *id, float *p)
{
    int count = INT32_MAX; /* no limit, until a filter sets one */
    double mass = total, sum = 0;
    if (how->top_k > 0)
        count = head_filter(h, how->top_k, INFINITY, 0, &mass);
    if (how->top_p < 1)
        count = head_filter(h, count, (double)how->top_p * mass, 0, &mass);
    if (how->min_p > 0)
        count = head_filter(h, count, INFINITY, how->min_p, &mass);
    for (int n = 0, i; n < count && (i = head_at(h, n)) >= 0 && h->w[i] > 0; n++) {
        *id = i; /* the last candidate is drawn if rounding keeps the sum below u times the mass */
        sum += (double)h->w[i];
        if (sum > (double)u * mass)
            break;
    }
    *p = (float)((double)h->w[*id] / mass);
}

static void sample_row(void *arg, int r, int thread)
{
    const struct sample_run *run = arg;
    const struct k_sample *a = run->a;
    const float *x = (const float *)a->logits.p + (size_t)r * (size_t)a->n;
    int32_t *id = (int32_t *)a->ids.p + r;
    float *p = (float *)a->p.p + r;
    int part;
    struct sample_part all = row_max(&run->scan, r, &part);
    float max = all.max;
    *id = -1;
    *p = 0;
    if (all.invalid || max == -INFINITY)
        return;
    if (!(a->how.temperature > 0)) {
        const uint8_t *mask = a->mask.p;
        int i = run->isa->find(x, part * PART, a->n, max);
        while (mask && mask[i])
            i = run->isa->find(x, i + 1, a->n, max);
        *id = i;
        *p = 1;
        return;
    }
    uint64_t *heap = (uint64_t *)(run->scratch + (size_t)thread * run->thread_bytes);
    int32_t *order = (int32_t *)(heap + a->n);
    float *w = (float *)(order + a->n);
    double total = run->isa->sum_exp(x, a->mask.p, a->n, max, a->how.temperature, w);
    struct sample_head h = {.isa = run->isa, .x = x, .w = w, .mask = a->mask.p, .n = a->n,
                            .max = max,
                            .temperature = a->how.temperature, .heap = heap, .order = order};
    draw_token(&h, &a->how, total, ((const float *)a->u.p)[r], id, p);
}

void cpu_sample(struct kdev *d, const struct k_sample *a)
{
    struct sample_run run = {.a = a, .isa = d->isa};
    size_t rows = (size_t)a->rows, n = (size_t)a->n;
    CHECK(!a->mask.p || a->mask.n >= n);
    run.scan = scan_of(d, cpu_f32(a->logits, rows * n), a->rows, a->n, a->mask.p);
    cpu_i32(a->ids, rows);
    cpu_f32(a->p, rows);
    scan_max(d, &run.scan);
    if (a->how.temperature > 0) {
        cpu_f32(a->u, rows);
        size_t each = sizeof(uint64_t) + sizeof(int32_t) + sizeof(float); /* heap, order, w */
        run.thread_bytes = (n * each + 127) & ~(size_t)127;
        run.scratch = cpu_scratch(d, SCRATCH_THREAD, (size_t)d->threads, run.thread_bytes);
    }
    cpu_each(d, a->rows, a->how.temperature > 0 ? a->n * 8.0 : PART, sample_row, &run);
}

/* ---- adjust --------------------------------------------------------------------------------- */

static float changed(float x, const struct k_change *c)
{
    x += c->bias;
    x = x > 0 ? x / c->rep : x * c->rep;
    return x - c->less;
}

static void adjust_row(void *arg, int r, int)
{
    const struct k_adjust *a = arg;
    size_t n = (size_t)a->n, words = (n + 31) / 32;
    const float *src = (const float *)a->src.p + (size_t)r * n;
    const uint32_t *banned = a->banned.p ? (const uint32_t *)a->banned.p + (size_t)r * words : NULL;
    const struct k_change *c = a->change.p;
    float *dst = (float *)a->dst.p + (size_t)r * n;
    memcpy(dst, src, n * sizeof *dst);
    for (int i = 0; i < a->changes; i++)
        if (i < a->every || c[i].row == r)
            dst[c[i].id] = changed(src[c[i].id], &c[i]);
    for (size_t w = 0; banned && w < words; w++)
        for (uint32_t bits = banned[w]; bits; bits &= bits - 1)
            dst[w * 32 + (size_t)__builtin_ctz(bits)] = -INFINITY;
}

void cpu_adjust(struct kdev *d, const struct k_adjust *a)
{
    size_t rows = (size_t)a->rows, n = (size_t)a->n;
    const struct k_change *c = a->change.p;
    cpu_f32(a->src, rows * n);
    cpu_f32(a->dst, rows * n);
    CHECK(!a->banned.p || a->banned.n >= rows * ((n + 31) / 32) * 4);
    CHECK(a->changes == 0 || a->change.n >= (size_t)a->changes * sizeof *c);
    for (int i = 0; i < a->changes; i++)
        CHECK(c[i].id >= 0 && c[i].id < a->n &&
              (i < a->every || (c[i].row >= 0 && c[i].row < a->rows)));
    cpu_each(d, a->rows, a->n * 2.0, adjust_row, (void *)(uintptr_t)a);
}

/* ---- logp ----------------------------------------------------------------------------------- */

void cpu_logp(struct kdev *d, const struct k_logp *a)
{
    size_t rows = (size_t)a->rows, pairs = (size_t)a->pairs, n = (size_t)a->n;
    const float *x = cpu_f32(a->logits, rows * n);
    const int32_t *row = cpu_i32(a->row, pairs), *id = cpu_i32(a->id, pairs);
    float *logp = cpu_f32(a->logp, pairs);
    uint8_t *used = cpu_scratch(d, SCRATCH_LOGITS, rows, 1);
    memset(used, 0, rows);
    for (size_t i = 0; i < pairs; i++) {
        CHECK(row[i] >= 0 && row[i] < a->rows && id[i] >= 0 && id[i] < a->n);
        used[row[i]] = 1;
    }
    struct sample_scan s = scan_of(d, x, a->rows, a->n, NULL);
    s.used = used;
    scan_max(d, &s);
    scan_sums(d, &s);
    for (size_t i = 0; i < pairs; i++)
        logp[i] = (float)((double)x[(size_t)row[i] * n + (size_t)id[i]] - row_lse(&s, row[i]));
}

/* ---- rerank ---------------------------------------------------------------------------------- */

struct rerank_run {
    const struct k_rerank *a;
    const struct cpu_isa *isa;
    const float *packed; /* (rows, packed width) */
};

/* The scores of a row's candidates: how many there are. */
static int rerank_scores(const struct rerank_run *run, int r, const int32_t *ids, const float *logp,
                         float *score)
{
    const struct k_rerank *a = run->a;
    const float *x = run->packed + (size_t)r * (size_t)cpu_packed(a->width);
    int n = 0;
    for (; n < a->n && ids[n] >= 0; n++) {
        CHECK(ids[n] < a->table->dim[0]);
        struct cpu_mat one = cpu_rows_at(a->table, (size_t)ids[n], 1, a->width);
        float tile[TILE_OUT];
        run->isa->multiply(&one, &x, 1, 0, 1, tile);
        score[n] = logp[n] + tile[0];
    }
    return n;
}

static void rerank_row(void *arg, int r, int)
{
    const struct rerank_run *run = arg;
    const struct k_rerank *a = run->a;
    size_t from = (size_t)((const int32_t *)a->from.p)[r] * (size_t)a->n;
    const int32_t *ids = (const int32_t *)a->ids.p + from;
    int32_t *best = (int32_t *)a->best.p + (size_t)r * (size_t)a->k, order[MAX_TOPK] = {0};
    float *logp = (float *)a->best_logp.p + (size_t)r * (size_t)a->k, score[MAX_TOPK];
    int n = rerank_scores(run, r, ids, (const float *)a->logp.p + from, score), kept = 0;
    double sum = 0;
    bool odd = false;
    for (int i = 0; i < n; i++) {
        kept = insert(score, order, kept, MAX_TOPK, i);
        odd |= isnan(score[i]);
    }
    for (int i = 0; i < n && !odd; i++)
        sum += exp((double)score[i] - (double)score[order[0]]);
    for (int i = 0; i < a->k; i++) {
        best[i] = i >= n ? -1 : odd ? ids[i] : ids[order[i]];
        logp[i] = i >= n ? -INFINITY
                : odd    ? NAN
                         : (float)((double)score[order[i]] - (double)score[order[0]] - log(sum));
    }
}

void cpu_rerank(struct kdev *d, const struct k_rerank *a)
{
    static const struct k_norm none = {NORM_NONE, NULL, 0};
    size_t rows = (size_t)a->rows;
    CHECK(a->n > 0 && a->n <= MAX_TOPK && a->k > 0 && a->table->n_dim == 2 &&
          a->table->dim[1] == a->width);
    const int32_t *from = cpu_i32(a->from, rows);
    for (int r = 0; r < a->rows; r++) {
        CHECK(from[r] >= 0);
        cpu_i32(a->ids, (size_t)(from[r] + 1) * (size_t)a->n);
        cpu_f32(a->logp, (size_t)(from[r] + 1) * (size_t)a->n);
    }
    cpu_i32(a->best, rows * (size_t)a->k);
    cpu_f32(a->best_logp, rows * (size_t)a->k);
    cpu_f32(a->src, rows * (size_t)a->width);
    struct rerank_run run = {a, d->isa, cpu_pack_rows(d, SCRATCH_PACK, a->src.p, (size_t)a->width,
                                                      a->rows, a->width, &none, NULL, 1)};
    cpu_each(d, a->rows, a->n * (double)a->width, rerank_row, &run);
}

/* ---- read: sample, topk and logp ------------------------------------------------------------- */

void cpu_read(struct kdev *d, const struct k_read *a)
{
    cpu_sample(d, a->sample);
    cpu_topk(d, a->topk);
    if (a->logp)
        cpu_logp(d, a->logp);
}
