/* sample.c - operations on logits: top-k, log probabilities, and sampling.
 *
 * Rows are independent items. No vocabulary is sorted: top-k scans it for values above the current
 * k-th best, and sampling pops candidates from a heap, best first, until its filters are satisfied.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { MAX_TOPK = 64 };

static double lse_of(const struct cpu_isa *isa, const float *x, int n)
{
    bool invalid;
    float max = isa->max(x, NULL, n, &invalid);
    if (invalid)
        return NAN;
    if (max == -INFINITY)
        return -INFINITY;
    return (double)max + log(isa->sum_exp(x, NULL, n, max, 1, NULL));
}

/* ---- topk ----------------------------------------------------------------------------------- */

struct topk_run {
    const struct k_topk *a;
    const struct cpu_isa *isa;
};

static void topk_row(void *arg, int r, int thread)
{
    (void)thread;
    const struct topk_run *run = arg;
    const struct k_topk *a = run->a;
    const float *x = (const float *)a->logits.p + (size_t)r * (size_t)a->n;
    const uint8_t *mask = a->mask.p;
    int32_t ids[MAX_TOPK];
    int n = 0;
    float bar = -INFINITY;
    for (int i = 0; (i = run->isa->find(x, i, a->n, bar)) < a->n; i++) {
        if (mask && mask[i])
            continue;
        int at = n < a->k ? n++ : a->k - 1; /* replaces the worst if the list is full */
        for (; at > 0 && x[i] > x[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = i;
        if (n == a->k)
            bar = nextafterf(x[ids[a->k - 1]], INFINITY); /* ties keep the lower index */
        if (bar == INFINITY && x[ids[a->k - 1]] == INFINITY)
            break;
    }
    double lse = lse_of(run->isa, x, a->n);
    for (int i = 0; i < a->k; i++) {
        ((int32_t *)a->ids.p)[r * a->k + i] = i < n ? ids[i] : -1;
        ((float *)a->logp.p)[r * a->k + i] = i < n ? (float)((double)x[ids[i]] - lse) : -INFINITY;
    }
    if (a->lse.p)
        ((float *)a->lse.p)[r] = (float)lse;
}

void cpu_topk(struct kdev *d, const struct k_topk *a)
{
    struct topk_run run = {a, d->isa};
    size_t rows = (size_t)a->rows;
    CHECK(a->k > 0 && a->k <= MAX_TOPK && a->k <= a->n);
    CHECK(!a->mask.p || a->mask.n >= (size_t)a->n);
    cpu_f32(a->logits, rows * (size_t)a->n);
    cpu_i32(a->ids, rows * (size_t)a->k);
    cpu_f32(a->logp, rows * (size_t)a->k);
    if (a->lse.p)
        cpu_f32(a->lse, rows);
    cpu_each(d, a->rows, a->n * 8.0, topk_row, &run);
}

/* ---- the head of a distribution: its most probable tokens ----------------------------------- */

/* Candidates in descending order: order[0..n_order) are sorted, the heap holds further ones with a
 * logit of at least `bar`. When the heap is empty, the bar is lowered and the row is read again. So
 * a typical draw sorts few candidates; the worst case sorts all, with the same result. */
struct head {
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

static bool head_refill(struct head *h)
{
    static const float depth[] = {4, 12, 40}; /* bars below max, times temperature; then all */
    const int last = (int)(sizeof depth / sizeof *depth);
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
static int head_at(struct head *h, int rank)
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
static int head_filter(struct head *h, int most, double enough, float least, double *mass)
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
    size_t thread_bytes;
    char *scratch;
};

/* Applies the filters in order, then draws the first candidate at which the running sum of weights
 * exceeds u times their mass. The best candidate has weight 1, so min_p is a limit on weights. */
static void draw_token(struct head *h, const struct sampling *how, double total, float u,
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
    bool invalid;
    float max = run->isa->max(x, a->mask.p, a->n, &invalid);
    *id = -1;
    *p = 0;
    if (invalid || max == -INFINITY)
        return;
    if (!(a->how.temperature > 0)) {
        const uint8_t *mask = a->mask.p;
        int i = run->isa->find(x, 0, a->n, max);
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
    struct head h = {.isa = run->isa, .x = x, .w = w, .mask = a->mask.p, .n = a->n, .max = max,
                     .temperature = a->how.temperature, .heap = heap, .order = order};
    draw_token(&h, &a->how, total, ((const float *)a->u.p)[r], id, p);
}

void cpu_sample(struct kdev *d, const struct k_sample *a)
{
    struct sample_run run = {.a = a, .isa = d->isa};
    size_t rows = (size_t)a->rows, n = (size_t)a->n;
    CHECK(!a->mask.p || a->mask.n >= n);
    cpu_f32(a->logits, rows * n);
    cpu_i32(a->ids, rows);
    cpu_f32(a->p, rows);
    if (a->how.temperature > 0) {
        cpu_f32(a->u, rows);
        size_t each = sizeof(uint64_t) + sizeof(int32_t) + sizeof(float); /* heap, order, w */
        run.thread_bytes = (n * each + 127) & ~(size_t)127;
        run.scratch = cpu_scratch(d, SCRATCH_THREAD, (size_t)d->threads, run.thread_bytes);
    }
    cpu_each(d, a->rows, a->n * 8.0, sample_row, &run);
}

/* ---- logp ----------------------------------------------------------------------------------- */

struct logp_run {
    const struct k_logp *a;
    const struct cpu_isa *isa;
    double *lse;   /* (rows) */
    uint8_t *used; /* (rows) */
};

static void logp_row(void *arg, int r, int thread)
{
    (void)thread;
    const struct logp_run *run = arg;
    if (run->used[r])
        run->lse[r] = lse_of(run->isa, (const float *)run->a->logits.p +
                                           (size_t)r * (size_t)run->a->n, run->a->n);
}

void cpu_logp(struct kdev *d, const struct k_logp *a)
{
    size_t rows = (size_t)a->rows, pairs = (size_t)a->pairs, n = (size_t)a->n;
    const float *x = cpu_f32(a->logits, rows * n);
    const int32_t *row = cpu_i32(a->row, pairs), *id = cpu_i32(a->id, pairs);
    float *logp = cpu_f32(a->logp, pairs);
    struct logp_run run = {.a = a, .isa = d->isa,
                           .lse = cpu_scratch(d, SCRATCH_LOGITS, rows, sizeof(double) + 1)};
    run.used = (uint8_t *)(run.lse + rows);
    memset(run.used, 0, rows);
    for (size_t i = 0; i < pairs; i++) {
        CHECK(row[i] >= 0 && row[i] < a->rows && id[i] >= 0 && id[i] < a->n);
        run.used[row[i]] = 1;
    }
    cpu_each(d, a->rows, a->n * 4.0, logp_row, &run);
    for (size_t i = 0; i < pairs; i++)
        logp[i] = (float)((double)x[(size_t)row[i] * n + (size_t)id[i]] - run.lse[row[i]]);
}

/* ---- read: sample, topk and logp ------------------------------------------------------------- */

void cpu_read(struct kdev *d, const struct k_read *a)
{
    cpu_sample(d, a->sample);
    cpu_topk(d, a->topk);
    if (a->logp)
        cpu_logp(d, a->logp);
}
