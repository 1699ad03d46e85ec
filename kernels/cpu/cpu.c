/* cpu.c - the CPU device: the kernel table, and the operations that embed, rotate, scale or move.
 *
 * Device memory is host memory; weights are used in the checkpoint's memory. Operations run
 * synchronously on the calling thread and the device's pool. A refused allocation is reported by
 * alloc(). sync() fails only if a mapped checkpoint has changed since it was loaded.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/mapped.h"

#include <math.h>
#include <sched.h>

enum { MAX_THREADS = 64 };

/* ---- the device ----------------------------------------------------------------------------- */

static bool isa_runs(const struct cpu_isa *isa)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (isa == &cpu_isa_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); /* implies F16C */
    if (isa == &cpu_isa_avx512)
        return isa_runs(&cpu_isa_avx2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq");
#endif
    return isa == &cpu_isa_scalar;
}

static const struct cpu_isa *isa_choose(const char *name, struct err *e)
{
    static const struct cpu_isa *const all[] = {
#if defined(__x86_64__)
        &cpu_isa_avx512, &cpu_isa_avx2,
#endif
        &cpu_isa_scalar};
    for (size_t i = 0; i < LEN(all); i++) {
        if (name && strcmp(name, all[i]->name) != 0)
            continue;
        if (isa_runs(all[i]))
            return all[i];
        if (name)
            return FAILED(NULL, e, ERR_MODEL, "this processor has no %s", all[i]->title);
    }
    return FAILED(NULL, e, ERR_USAGE, "unknown instruction set '%s': expected scalar, avx2 or "
                  "avx512", name);
}

static int core_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return max_int(1, CPU_COUNT(&set));
}

static struct kdev *cpu_open(const struct k_opts *opts, struct err *e)
{
    if (opts->threads < 0 || opts->threads > MAX_THREADS)
        return FAILED(NULL, e, ERR_USAGE, "%d threads: expected 0 (one for each core) to %d",
                      opts->threads, MAX_THREADS);
    const struct cpu_isa *isa = isa_choose(opts->isa, e);
    if (!isa)
        return NULL;
    struct kdev *d = xcalloc(1, sizeof *d);
    d->isa = isa;
    d->ones = (struct cpu_ones){.fd = -1};
    d->pool = cpu_pool_open(opts->threads ? opts->threads : min_int(core_count(), MAX_THREADS));
    d->threads = cpu_pool_threads(d->pool);
    snprintf(d->about, sizeof d->about, "%d thread%s, %s", d->threads, d->threads > 1 ? "s" : "",
             isa->title);
    return d;
}

static void cpu_close(struct kdev *d)
{
    if (!d)
        return;
    cpu_pool_close(d->pool);
    for (int i = 0; i < N_SCRATCH; i++)
        free(d->scratch[i].p);
    for (int i = 0; i < d->n_synthesized; i++)
        free(d->synthesized[i]);
    free(d->synthesized);
    cpu_ones_close(&d->ones);
    FREE(d->ahead, d);
}

static const char *cpu_about(struct kdev *d)
{
    return d->about;
}

/* ---- memory --------------------------------------------------------------------------------- */

static size_t cpu_footprint(struct kdev *, const struct tensor *)
{
    return 0;
}

static bool cpu_holds(struct kdev *, const struct tensor *)
{
    return false;
}

static bool cpu_sync(struct kdev *d, struct err *e)
{
    cpu_ones_close(&d->ones); /* the fills that share the file come one after another */
    return mapped_check(e);
}

static void cpu_memory(struct kdev *, size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = 0;
}

/* ---- operations that copy, scale or rotate --------------------------------------------------- */

struct embed_run {
    const struct k_embed *a;
    const struct cpu_isa *isa;
};

static void embed_row(void *arg, int r, int)
{
    const struct embed_run *run = arg;
    const struct k_embed *a = run->a;
    int32_t id = ((const int32_t *)a->ids.p)[r];
    float *dst = (float *)a->dst.p + (size_t)r * (size_t)cpu_stride(a->dst_stride, a->n);
    CHECK(id >= 0 && id < a->table->dim[0]);
    run->isa->widen(a->table, (size_t)id * (size_t)a->n, a->n, a->scale, dst);
}

void cpu_embed(struct kdev *d, const struct k_embed *a)
{
    struct embed_run run = {a, d->isa};
    CHECK(a->table->n_dim == 2 && a->table->dim[1] == a->n);
    cpu_mat_of(a->table);
    cpu_i32(a->ids, (size_t)a->rows);
    cpu_f32(a->dst, cpu_span(a->rows, cpu_stride(a->dst_stride, a->n), a->n));
    cpu_each(d, a->rows, a->n, embed_row, &run);
}

static void rope_row(void *arg, int r, int)
{
    const struct k_rope *a = arg;
    float pos = (float)((const int32_t *)a->pos.p)[r];
    float *cs = (float *)a->cs.p + (size_t)r * (size_t)a->half * 2;
    for (int i = 0; i < a->half; i++, cs += 2) {
        double s, c;
        float angle = pos * a->inv_freq[i];
        sincos(angle, &s, &c);
        cs[0] = (float)c * a->factor;
        cs[1] = (float)s * a->factor;
    }
}

void cpu_rope(struct kdev *d, const struct k_rope *a)
{
    cpu_i32(a->pos, (size_t)a->rows);
    cpu_f32(a->cs, (size_t)a->rows * (size_t)a->half * 2);
    cpu_each(d, a->rows, a->half * 500.0, rope_row, (void *)a);
}

struct normalize_run {
    const struct k_normalize *a;
    const struct cpu_isa *isa;
    size_t src_stride, dst_stride;
};

static void normalize_row(void *arg, int r, int)
{
    const struct normalize_run *run = arg;
    const struct k_normalize *a = run->a;
    run->isa->normalize((const float *)a->src.p + (size_t)r * run->src_stride, a->n, &a->norm,
                        a->add, a->scale, (float *)a->dst.p + (size_t)r * run->dst_stride);
}

void cpu_normalize(struct kdev *d, const struct k_normalize *a)
{
    int ss = cpu_stride(a->src_stride, a->n), ds = cpu_stride(a->dst_stride, a->n);
    struct normalize_run run = {a, d->isa, (size_t)ss, (size_t)ds};
    cpu_f32(a->src, cpu_span(a->rows, ss, a->n));
    cpu_f32(a->dst, cpu_span(a->rows, ds, a->n));
    cpu_each(d, a->rows, a->n * 4.0, normalize_row, &run);
}

static float far_factor(const struct k_scale *a, int pos)
{
    return 1 + a->beta * logf(1 + floorf((float)(pos + a->from) / a->period));
}

static float gate_of(float y, enum gate_kind gate)
{
    float e = expf(-fabsf(y));
    if (gate == GATE_SIGMOID)
        return (y < 0 ? e : 1) / (1 + e);
    return (y > 0 ? y : 0) + log1pf(e);
}

static float clamped(float y, float limit)
{
    return y > limit ? limit : y < -limit ? -limit : y;
}

static void gate_rows(const struct k_scale *a)
{
    CHECK(a->gate != GATE_NONE && a->group > 0 && a->n % a->group == 0);
    size_t n = (size_t)a->rows * (size_t)a->n, group = (size_t)a->group;
    float *x = cpu_f32(a->x, n);
    const float *by = cpu_f32(a->by, n / group);
    for (size_t i = 0; i < n; i += group) {
        bool clamp = a->gate == GATE_CLAMP;
        float y = by[i / group], f = clamp ? clamped(y, a->limit) : gate_of(y, a->gate);
        for (size_t j = i; j < i + group; j++)
            x[j] = f * (clamp && x[j] > a->limit ? a->limit : x[j]);
    }
}

void cpu_scale(struct kdev *d, const struct k_scale *a)
{
    if (a->by.p) {
        gate_rows(a);
        return;
    }
    float s = 1, *x = cpu_f32(a->x, (size_t)a->rows * (size_t)a->n);
    const int32_t *pos = a->s ? NULL : cpu_i32(a->pos, (size_t)a->rows);
    if (a->s) {
        cpu_store_of(a->s);
        d->isa->widen(a->s, 0, 1, 1, &s);
    }
    for (int r = 0; r < a->rows; r++, x += a->n)
        d->isa->scale(x, a->n, pos ? far_factor(a, pos[r]) : s);
}

struct conv_run {
    const struct k_conv *a;
    const struct cpu_isa *isa;
    float *base; /* (taps, n) */
};

/* The taps in their order, the product of each rounded before it is added; then dst. */
static void conv_row(void *arg, int r, int)
{
    const struct conv_run *c = arg;
    const struct k_conv *a = c->a;
    const int32_t *run = a->run.p;
    const float *src = (const float *)a->src.p + (size_t)r * (size_t)a->n;
    const float *by = (const float *)a->by.p + (size_t)r * (size_t)a->by_stride;
    float *dst = (float *)a->dst.p + (size_t)r * (size_t)a->n;
    int groups = a->n / a->group, taps = 1;
    while (taps < a->taps && taps <= r && run[r - taps] == run[r])
        taps++;
    for (int i = 0; i < a->n; i++) {
        float sum = 0;
        for (int t = 0; t < taps; t++)
            sum += (c->base[t * a->n + i] + by[t * groups + i / a->group]) *
                   src[i - (ptrdiff_t)t * a->n];
        dst[i] = a->add ? dst[i] + sum : sum;
    }
}

void cpu_conv(struct kdev *d, const struct k_conv *a)
{
    CHECK(a->taps > 0 && a->taps <= K_MAX_TAPS && a->group > 0 && a->n % a->group == 0);
    CHECK(a->base->n_dim == 2 && a->base->dim[1] == a->n && a->base->dim[0] >= a->at + a->taps);
    CHECK(a->dst.p != a->src.p);
    size_t n = (size_t)a->rows * (size_t)a->n;
    cpu_i32(a->run, (size_t)a->rows);
    cpu_f32(a->src, n);
    cpu_f32(a->dst, n);
    cpu_f32(a->by, cpu_span(a->rows, a->by_stride, a->taps * (a->n / a->group)));
    struct conv_run c = {a, d->isa, cpu_floats(d, SCRATCH_PART, (size_t)a->taps * (size_t)a->n)};
    cpu_store_of(a->base);
    d->isa->widen(a->base, (size_t)a->at * (size_t)a->n, a->taps * a->n, 1, c.base);
    cpu_each(d, a->rows, a->n * a->taps * 4.0, conv_row, &c);
}

/* The part of dst that begins at element p->at of row 0. */
static kbuf part_dst(const struct k_part *p)
{
    size_t off = (size_t)p->at * sizeof(float);
    CHECK(p->at >= 0 && p->at + p->n <= p->width && off <= p->dst.n);
    return kbuf_at(p->dst, off, p->dst.n - off);
}

static void gather_part(struct kdev *d, const struct k_part *p, int rows)
{
    kbuf dst = part_dst(p);
    if (p->table)
        cpu_embed(d, &(struct k_embed){.rows = rows, .n = p->n, .ids = p->idx, .table = p->table,
                                       .scale = p->scale, .dst = dst, .dst_stride = p->width});
    else
        cpu_rows(d, &(struct k_rows){.rows = rows, .n = p->n, .src_stride = p->src_stride,
                                     .dst_stride = p->width, .src = p->src, .dst = dst,
                                     .idx = p->idx});
    struct k_rows copy = {.rows = rows, .n = p->n, .src_stride = p->width, .src = dst,
                          .dst = p->copy};
    if (p->copy.p && !p->copy_normed)
        cpu_rows(d, &copy);
    cpu_normalize(d, &(struct k_normalize){.rows = rows, .n = p->n, .src_stride = p->width,
                                           .dst_stride = p->width, .src = dst, .dst = dst,
                                           .norm = p->norm, .scale = 1});
    if (p->copy.p && p->copy_normed)
        cpu_rows(d, &copy);
}

void cpu_gather(struct kdev *d, const struct k_gather *a)
{
    CHECK(a->n_parts <= K_MAX_PARTS);
    for (int i = 0; i < a->n_parts; i++)
        gather_part(d, &a->part[i], a->rows);
    for (int i = 0; i < K_MAX_ROPES && a->rope[i]; i++)
        cpu_rope(d, a->rope[i]);
}

static void move_layer(struct kdev *d, const struct k_cells *c, const int32_t *src,
                       const int32_t *dst, int pairs)
{
    size_t cell = kv_cell_bytes(c->type, c->n_kv, c->head_dim);
    char *k = c->k.p, *v = c->v.p;
    cpu_check_cells(c);
    char *held = cpu_scratch(d, SCRATCH_MOVE, (size_t)pairs * 2, cell);
    for (int i = 0; i < pairs; i++) {
        CHECK(src[i] >= 0 && src[i] < c->n_slots && dst[i] >= 0 && dst[i] < c->n_slots);
        memcpy(held + (size_t)(2 * i) * cell, k + (size_t)src[i] * cell, cell);
        memcpy(held + (size_t)(2 * i + 1) * cell, v + (size_t)src[i] * cell, cell);
    }
    for (int i = 0; i < pairs; i++) {
        memcpy(k + (size_t)dst[i] * cell, held + (size_t)(2 * i) * cell, cell);
        memcpy(v + (size_t)dst[i] * cell, held + (size_t)(2 * i + 1) * cell, cell);
    }
}

void cpu_move(struct kdev *d, const struct k_move *a)
{
    CHECK(a->pairs <= K_MAX_PAIRS && a->n_pools <= 2);
    for (int p = 0; p < a->n_pools; p++)
        for (int l = 0; l < a->pool[p].n_layers; l++)
            move_layer(d, &a->pool[p].cells[l], cpu_i32(a->pool[p].src, (size_t)a->pairs),
                       cpu_i32(a->pool[p].dst, (size_t)a->pairs), a->pairs);
}

/* ---- inbox and outbox; there are no graphs --------------------------------------------------- */

static void *cpu_inbox(struct kdev *d, size_t bytes)
{
    return cpu_scratch(d, SCRATCH_INBOX, bytes, 1);
}

static void cpu_read_inbox(struct kdev *d, kbuf dst, size_t bytes)
{
    CHECK(bytes <= dst.n && bytes <= d->scratch[SCRATCH_INBOX].n);
    memcpy(dst.p, d->scratch[SCRATCH_INBOX].p, bytes);
}

static void cpu_write_outbox(struct kdev *d, kbuf src, size_t bytes)
{
    CHECK(bytes <= src.n);
    memcpy(cpu_scratch(d, SCRATCH_OUTBOX, bytes, 1), src.p, bytes);
}

static const void *cpu_outbox(struct kdev *d)
{
    return d->scratch[SCRATCH_OUTBOX].p;
}

static bool cpu_graph_begin(struct kdev *)
{
    return false;
}

static struct kgraph *cpu_graph_end(struct kdev *, struct err *)
{
    CHECK(!"graph_begin() is false on the CPU");
}

static void cpu_graph_launch(struct kdev *, struct kgraph *g)
{
    CHECK(!g);
}

const struct kernels kernels_cpu = {
    .name = "cpu", .queued = false,
    .open = cpu_open, .close = cpu_close, .about = cpu_about,
    .alloc = cpu_alloc, .release = cpu_release, .put = cpu_put, .get = cpu_get, .fill = cpu_fill,
    .upload = cpu_upload, .unload = cpu_unload, .footprint = cpu_footprint,
    .holds = cpu_holds, .sync = cpu_sync, .memory = cpu_memory,
#define ENTRY(op) .op = cpu_##op,
    K_OPERATIONS(ENTRY)
#undef ENTRY
    .inbox = cpu_inbox, .read_inbox = cpu_read_inbox, .write_outbox = cpu_write_outbox,
    .outbox = cpu_outbox,
    .graph_begin = cpu_graph_begin, .graph_end = cpu_graph_end,
    .graph_launch = cpu_graph_launch, .graph_free = cpu_graph_launch,
    .synthesize = cpu_synthesize, .stream = cpu_stream, .phase = cpu_phase,
    .peer = cpu_peer,
};
