/* bench_run.c - the benchmark's names, memory, check of results, clock and lines; see
 * bench_run.h. */
#include "engine/tools/bench_run.h"

#include "kernels/packed.h"
#include "kernels/sort.h"

#include <fnmatch.h>
#include <math.h>

enum { MAX_RUNS = 31 };

/* ---- which lines ----------------------------------------------------------------------------- */

bool bench_wanted(const struct bench *b, const char *name)
{
    for (int i = 0; i < b->o->n_pattern; i++) {
        const char *p = b->o->pattern[i];
        if (!strncmp(name, p, strlen(p)) || !fnmatch(p, name, 0))
            return true;
    }
    return b->o->n_pattern == 0;
}

/* Compares the part of a pattern before its first special character. */
static bool may_match(const char *pattern, const char *prefix)
{
    size_t plain = strcspn(pattern, "*?["), n = strlen(prefix);
    return strncmp(pattern, prefix, plain < n ? plain : n) == 0;
}

bool bench_wanted_any(const struct bench *b, const char *prefix)
{
    for (int i = 0; i < b->o->n_pattern; i++)
        if (may_match(b->o->pattern[i], prefix))
            return true;
    return b->o->n_pattern == 0;
}

/* Every line's name begins with one of these. */
static const struct {
    const char *name, *what;
} parts[] = {
    {"mem", "copies and reads of memory"},
    {"phase", "the cost of one of many dependent operations"},
    {"gemv", "a product for T rows of decode"},
    {"gemm", "the rate of one large product (gemm.peak)"},
    {"moe", "a layer of experts for T rows"},
    {"attn", "attention over so many cells for T rows"},
    {"sample", "sampling for T rows"},
    {"step", "one pass of a model behind so many cells"},
    {"verify", "one pass for T rows of a draft tree"},
    {"draft", "one EAGLE3 pass or DFlash block (draft.step)"},
    {"cycle", "whole cycles; cycle.host: outside the device"},
    {"prefill", "a prompt; prefill.g4b.128k only in full"},
    {"cublas", "CUDA: the products of a prompt by cuBLASLt"},
    {"product", "CUDA: the same products by aerie"},
    {"chat", "greedy replies: plain, draft, n-gram lookup"},
    {"again", "the same question once more behind its reply"},
    {"shape", "shapes of the draft tree, and what auto chooses"},
    {"repl", "what queue, log, lines and screen add"},
};
enum { N_PARTS = LEN(parts) };

const char *bench_part(int i, const char **what)
{
    *what = i < N_PARTS ? parts[i].what : NULL;
    return i < N_PARTS ? parts[i].name : NULL;
}

static bool may_be_line(const char *pattern)
{
    char prefix[16];
    for (int i = 0; i < N_PARTS; i++) {
        snprintf(prefix, sizeof prefix, "%s.", parts[i].name);
        if (may_match(pattern, prefix))
            return true;
    }
    return false;
}

bool bench_no_line(const char *pattern, const struct bench_opts *o, struct err *e)
{
    return err_set(e, ERR_USAGE, "there is no line that begins with or matches \"%.60s\"; aerie "
                   "help bench lists them%s", pattern,
                   o->brief ? ", and the short form has fewer" : "");
}

bool bench_names(const struct bench_opts *o, struct err *e)
{
    for (int i = 0; i < o->n_pattern; i++)
        if (!may_be_line(o->pattern[i]))
            return bench_no_line(o->pattern[i], o, e);
    return true;
}

static bool has_part(const char *name)
{
    size_t n = strcspn(name, ".");
    return ANY(i, N_PARTS, strlen(parts[i].name) == n && strncmp(parts[i].name, name, n) == 0);
}

/* ---- memory ---------------------------------------------------------------------------------- */

uint64_t bench_random(struct bench *b)
{
    return mix64(b->random++);
}

kbuf bench_buffer(struct bench *b, size_t bytes, const void *src, struct err *e)
{
    kbuf buf = b->dev.k->alloc(b->dev.d, (bytes + 15) & ~(size_t)15, "bench", e);
    if (buf.p && src)
        b->dev.k->put(b->dev.d, buf, src, bytes);
    return buf;
}

void bench_release(struct bench *b, kbuf *buf, int n)
{
    for (int i = 0; i < n; i++) {
        b->dev.k->release(b->dev.d, buf[i]);
        buf[i] = (kbuf){0};
    }
}

kbuf bench_floats(struct bench *b, size_t n, struct err *e)
{
    FREED(free_at) float *x = xmalloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(int16_t)bench_random(b) * synthetic_step(1);
    return bench_buffer(b, n * sizeof *x, x, e);
}

enum { FILL_BYTES = 1 << 22 }; /* random bytes that the host makes for a buffer */

/* Copies x (n bytes) to the buffer; the device doubles it until the buffer is full. */
static bool fill_with(struct bench *b, kbuf buf, const void *x, size_t n, struct err *e)
{
    b->dev.k->put(b->dev.d, buf, x, n);
    for (size_t more; n < buf.n; n += more) {
        more = n < buf.n - n ? n : buf.n - n;
        b->dev.k->stream(b->dev.d, kbuf_at(buf, 0, more), kbuf_at(buf, n, more));
    }
    return b->dev.k->sync(b->dev.d, e);
}

bool bench_fill(struct bench *b, kbuf buf, enum kv_type type, struct err *e)
{
    const uint64_t keep = type == KV_FP8    ? 0x0707070707070707ull
                          : type == KV_BF16 ? 0x807f807f807f807full
                                            : 0x807fffff807fffffull;
    const uint64_t exponent = type == KV_FP8    ? 0x7878787878787878ull /* of codes and of scales */
                              : type == KV_BF16 ? 0x3c803c803c803c80ull
                                                : 0x3c8000003c800000ull;
    size_t n = buf.n < FILL_BYTES ? buf.n : FILL_BYTES;
    FREED(free_at) uint64_t *x = xmalloc(n + 8);
    for (size_t i = 0; i < n / 8 + 1; i++)
        x[i] = (bench_random(b) & keep) | exponent;
    return fill_with(b, buf, x, n, e);
}

bool bench_fill_uniform(struct bench *b, kbuf buf, float scale, struct err *e)
{
    size_t n = (buf.n < FILL_BYTES ? buf.n : FILL_BYTES) / 2;
    FREED(free_at) uint16_t *x = xmalloc(n * 2);
    for (size_t i = 0; i < n; i++)
        x[i] = f32_to_bf16((float)(int16_t)bench_random(b) * synthetic_step(scale));
    return fill_with(b, buf, x, n * 2, e);
}

static bool weights(struct bench *b, struct tensor *t, enum dtype type, int out, int in,
                    bool by_row, float scale, struct err *e)
{
    *t = (struct tensor){.type = type,
                         .n_dim = out ? 2 : 1,
                         .dim = {out ? out : in, in},
                         .bytes = (size_t)max_int(out, 1) * dtype_bytes(type, (size_t)in),
                         .name = "weights",
                         .by_row = by_row};
    return b->dev.k->synthesize(b->dev.d, t, bench_random(b), scale, e);
}

bool bench_weights(struct bench *b, struct tensor *t, int out, int in, float scale, struct err *e)
{
    return weights(b, t, DT_BF16, out, in, false, scale, e);
}

bool bench_typed(struct bench *b, struct tensor *t, enum dtype type, int out, int in, float scale,
                 struct err *e)
{
    return weights(b, t, type, out, in, false, scale, e);
}

bool bench_rows(struct bench *b, struct tensor *t, int out, int in, float scale, struct err *e)
{
    return weights(b, t, DT_BF16, out, in, true, scale, e);
}

/* ---- the check of results -------------------------------------------------------------------- */

#ifdef NOWAIT
enum { RESULTS_COUNT = 0 }; /* the results are wrong (kernels/cuda/cuda.h) */
#else
enum { RESULTS_COUNT = 1 };
#endif

/* Runs the work twice over poisoned output: both outputs must have the same bits, and float32
 * outputs must be finite. */
static bool gate(struct bench *b, const struct work *w, struct err *e)
{
    const struct kernels *k = b->dev.k;
    if (!w->out.p || !RESULTS_COUNT)
        return true;
    float *got[2] = {xmalloc(w->out.n), xmalloc(w->out.n)};
    for (int i = 0; i < 2; i++) {
        k->fill(b->dev.d, w->out, 0xff);
        w->run(b, w->arg);
        k->get(b->dev.d, got[i], w->out, w->out.n);
    }
    bool ok = k->sync(b->dev.d, e);
    if (ok && memcmp(got[0], got[1], w->out.n) != 0)
        ok = err_set(e, ERR_NEGATIVE, "two runs over the same input differ");
    if (ok && w->numbers && !ALL(i, w->out.n / sizeof(float), isfinite(got[0][i])))
        ok = err_set(e, ERR_NEGATIVE, "the result is not finite, or not all of it was written");
    FREE(got[0], got[1]);
    return ok;
}

/* ---- the clock ------------------------------------------------------------------------------- */

struct timing bench_timing(double *s, int n, double per)
{
    struct timing t = {.runs = n};
    sort_up(s, n);
    double m = s[n / 2];
    for (int i = 0; i < n; i++)
        s[i] = fabs(s[i] - m);
    sort_up(s, n);
    t.ms = m / per * 1e3;
    t.spread = s[n / 2] / per * 1e3;
    return t;
}

static void once(struct bench *b, const struct work *w, struct kgraph *g)
{
    if (g)
        b->dev.k->graph_launch(b->dev.d, g);
    else
        w->run(b, w->arg);
}

/* Seconds of `repeat` runs in sequence, the wait for the last one included. */
static bool run_for(struct bench *b, const struct work *w, struct kgraph *g, int repeat,
                    double *seconds, struct err *e)
{
    uint64_t t0 = clock_ns();
    for (int i = 0; i < repeat; i++)
        once(b, w, g);
    bool ok = b->dev.k->sync(b->dev.d, e);
    *seconds = (double)(clock_ns() - t0) * 1e-9;
    return ok;
}

/* A sample takes long compared with the wait that ends it. Where graphs cannot be recorded (the
 * CPU) the number of samples follows from the time of one. */
static bool sample(struct bench *b, const struct work *w, struct kgraph *g, struct timing *t,
                   struct err *e)
{
    double s[MAX_RUNS], first, least = b->o->brief ? 1e-3 : 4e-3;
    for (int i = 0; i < 2; i++) /* the first run warms up */
        if (!run_for(b, w, g, 1, &first, e))
            return false;
    int repeat = first < least ? (int)(least / fmax(first, 1e-6)) + 1 : 1;
    double budget = b->o->brief ? 0.1 : 0.8;
    int most = w->samples ? w->samples : MAX_RUNS;
    int n = b->graphs ? most : (int)fmin(MAX_RUNS, fmax(5, budget / (first * repeat)));
    for (int i = 0; i < n; i++)
        if (!run_for(b, w, g, repeat, &s[i], e))
            return false;
    *t = bench_timing(s, n, (double)repeat * w->times);
    return true;
}

bool bench_time(struct bench *b, const struct work *w, struct timing *t, struct err *e)
{
    const struct kernels *k = b->dev.k;
    struct kgraph *g = NULL;
    if (!gate(b, w, e))
        return false;
    if (!w->eager && k->graph_begin(b->dev.d)) {
        w->run(b, w->arg);
        g = k->graph_end(b->dev.d, e);
        if (!g)
            return false;
    }
    bool ok = sample(b, w, g, t, e);
    k->graph_free(b->dev.d, g);
    return ok;
}

/* floor: the least time in seconds, to which the ratio compares. */
static void tell(struct bench *b, const char *name, const char *shape, const struct timing *t,
                 const struct figure *f, double experts, double floor)
{
    double s = t->ms * 1e-3;
    struct bench_line line = {.name = name, .shape = shape, .runs = t->runs, .ms = t->ms,
                              .spread = t->spread, .bytes = f->bytes, .experts = experts,
                              .ratio = s > 0 ? floor / s : 0, .value = f->value, .unit = f->unit};
    if (f->flops > 0 && s > 0 && !f->unit) {
        line.value = f->flops / s * 1e-12;
        line.unit = "TFLOP/s";
    }
    b->n_wanted += bench_wanted(b, name);
    CHECK(has_part(line.name));
    b->o->tell(b->o->arg, &line);
}

void bench_tell_pass(struct bench *b, const char *name, const char *shape, const struct timing *t,
                     const struct figure *f, double experts)
{
    double rate = b->cache_rate > 0 && f->bytes <= (double)b->cache_bytes ? b->cache_rate
                                                                          : b->read_rate;
    double floor = f->flops > 0 && b->matrix_rate > 0 ? f->flops / b->matrix_rate
                   : f->flops > 0 || rate == 0        ? 0
                                                      : f->bytes / rate;
    tell(b, name, shape, t, f, experts, floor);
}

void bench_tell(struct bench *b, const char *name, const char *shape, const struct timing *t,
                const struct figure *f)
{
    bench_tell_pass(b, name, shape, t, f, 0);
}

void bench_tell_beside(struct bench *b, const char *name, const char *shape,
                       const struct timing *t, double flops, double peer_ms)
{
    const struct figure f = {0, flops, 0, NULL};
    if (peer_ms > 0)
        tell(b, name, shape, t, &f, 0, peer_ms * 1e-3);
    else
        bench_tell(b, name, shape, t, &f);
}

void bench_tell_ratio(struct bench *b, const char *name, const char *shape, const struct timing *t,
                      double tok_s, double other_ms)
{
    tell(b, name, shape, t, &(struct figure){0, 0, tok_s, "tok/s"}, 0, other_ms * 1e-3);
}

bool bench_reopen(struct bench *b, struct err *e)
{
    const struct engine_opts *o = &b->o->engine;
    if (b->dev.k)
        device_close(&b->dev);
    if (!device_open(&b->dev, o->device, o->threads, o->precision, e))
        return false;
    if (o->kv && strcmp(o->kv, "fp8") == 0) /* of attention's lines; models open a device with it */
        b->dev.kv = KV_FP8;
    return true;
}
