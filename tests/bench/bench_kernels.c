/* bench_kernels.c - how fast the CPU kernels are, next to a plain read of the same bytes.
 *
 *   bench_kernels [--isa scalar|avx2|avx512] [--threads N] [--runs N]
 *
 * Shapes are the bundled model's: hidden 256, ffn 896, 4 heads and 2 kv heads of 64, 8 layers,
 * vocabulary 4096, bf16: 16 MB of weights. "of read" is the time of reading the operation's
 * weights once, with the same threads, over the operation's time: 1 means that arithmetic is free.
 * Each line gives the median, the best and the spread (median absolute deviation over median) of
 * its runs. The read and the operations alternate, so a noisy neighbour meets both.
 */
#include "tests/kernel_cases.h"
#include "kernels/cpu/cpu.h"

#include <stdio.h>

enum { HIDDEN = 256, FFN = 896, HEADS = 4, KV = 2, DIM = 64, LAYERS = 8, VOCAB = 4096 };

static struct case_dev D;
enum { MAX_RUNS = 999 };
static int n_runs = 41;

/* ---- statistics ----------------------------------------------------------------------------- */

struct times {
    double median, best, spread; /* seconds, seconds, of the median */
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct times summary(double *t, int n)
{
    struct times s;
    qsort(t, (size_t)n, sizeof *t, ascending);
    s.median = t[n / 2];
    s.best = t[0];
    for (int i = 0; i < n; i++)
        t[i] = fabs(t[i] - s.median);
    qsort(t, (size_t)n, sizeof *t, ascending);
    s.spread = t[n / 2] / s.median;
    return s;
}

static struct times measure(void (*run)(void *arg), void *arg)
{
    double t[MAX_RUNS];
    run(arg);
    for (int i = 0; i < n_runs; i++) {
        uint64_t start = clock_ns();
        run(arg);
        t[i] = (double)(clock_ns() - start) * 1e-9;
    }
    return summary(t, n_runs);
}

/* ---- the read ------------------------------------------------------------------------------- */

struct read_run {
    const uint8_t *p;
    size_t n;
    int items;
    uint64_t sum[4096];
};

/* Four streams of whole cache lines, as a block of four weight rows is read. */
static void read_item(void *arg, int item, int thread)
{
    (void)thread;
    struct read_run *r = arg;
    typedef uint64_t wide __attribute__((vector_size(64), aligned(64)));
    size_t n = r->n / (size_t)r->items / 256;
    const wide *p = (const wide *)(r->p + (size_t)item * n * 256);
    wide a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < n; i++)
        a ^= p[i], b ^= p[n + i], c ^= p[2 * n + i], d ^= p[3 * n + i];
    a ^= b ^ c ^ d;
    r->sum[item] = a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

static void read_all(void *arg)
{
    struct read_run *r = arg;
    cpu_each(D.d, r->items, 1e9, read_item, r);
}

/* ---- a fake model --------------------------------------------------------------------------- */

struct fake_layer {
    struct tensor wq, wk, wv, wo, gate, up, down;
    kbuf k, v;
};

struct fake {
    char *weights; /* all matrices in one run of bytes */
    size_t bytes;
    struct tensor norm, head_norm, head, embed;
    struct fake_layer layer[LAYERS];
    int rows, keys, n_slots;
    struct k_table table;
    float inv_freq[DIM / 2];
    kbuf x, h, q, att, mid, cs, logits, ids, pos, out, p, u;
};

static struct tensor carve(struct fake *m, char **at, int out, int in)
{
    struct tensor t = {.data = *at, .type = DT_BF16, .n_dim = 2, .dim = {out, in}, .name = "w"};
    t.bytes = (size_t)out * (size_t)in * 2;
    *at += t.bytes;
    CHECK(*at <= m->weights + m->bytes);
    uint16_t *w = t.data;
    for (size_t i = 0; i < t.bytes / 2; i++) /* cheap noise about as large as trained weights */
        w[i] = f32_to_bf16((float)((int)(rnd() & 1023) - 512) * 2e-4f);
    return t;
}

static void fake_weights(struct fake *m)
{
    size_t layer = (size_t)HIDDEN * (HEADS + 2 * KV + HEADS) * DIM + (size_t)3 * HIDDEN * FFN;
    m->bytes = 2 * (LAYERS * layer + (size_t)VOCAB * HIDDEN);
    m->weights = xaligned(m->bytes);
    char *at = m->weights;
    m->norm = TENSOR(DT_BF16, .1f, HIDDEN);
    m->head_norm = TENSOR(DT_BF16, .1f, DIM);
    m->head = m->embed = carve(m, &at, VOCAB, HIDDEN);
    for (int l = 0; l < LAYERS; l++) {
        struct fake_layer *y = &m->layer[l];
        y->wq = carve(m, &at, HEADS * DIM, HIDDEN), y->wk = carve(m, &at, KV * DIM, HIDDEN);
        y->wv = carve(m, &at, KV * DIM, HIDDEN), y->wo = carve(m, &at, HIDDEN, HEADS * DIM);
        y->gate = carve(m, &at, FFN, HIDDEN), y->up = carve(m, &at, FFN, HIDDEN);
        y->down = carve(m, &at, HIDDEN, FFN);
    }
    for (int i = 0; i < DIM / 2; i++)
        m->inv_freq[i] = powf(10000, -2.f * (float)i / DIM);
}

static kbuf i32s(int n, int first, int step)
{
    int32_t *v = xmalloc((size_t)n * sizeof *v);
    for (int i = 0; i < n; i++)
        v[i] = first + i * step;
    kbuf b = dev_buf(&D, v, (size_t)n * sizeof *v);
    free(v);
    return b;
}

/* Buffers for forwards of `rows` rows that see `keys` keys each: bf16 cells, page size 16. */
static void fake_shape(struct fake *m, int rows, int keys)
{
    size_t n = (size_t)rows * sizeof(float);
    int pages = div_up(keys, 16);
    dev_release(&D);
    m->rows = rows, m->keys = keys, m->n_slots = pages * 16 + rows;
    size_t cells = (size_t)m->n_slots * KV * DIM * 2;
    char *zero = xcalloc(cells, 1);
    for (int l = 0; l < LAYERS; l++) {
        m->layer[l].k = dev_buf(&D, zero, cells);
        m->layer[l].v = dev_buf(&D, zero, cells);
    }
    free(zero);
    m->table = (struct k_table){
        .page_size = 16, .n_cols = pages, .expand_w = 1, .req = i32s(rows, 0, 0),
        .pages = i32s(pages, 0, 1), .lo = i32s(rows, 0, 0), .hi = i32s(rows, keys - 1, 0),
        .expand = i32s(rows, pages * 16, 1), .n_expand = i32s(rows, 1, 0),
        .write = i32s(rows, pages * 16, 1)};
    m->x = dev_buf(&D, NULL, n * HIDDEN), m->h = dev_buf(&D, NULL, n * HIDDEN);
    m->q = dev_buf(&D, NULL, n * HEADS * DIM), m->att = dev_buf(&D, NULL, n * HEADS * DIM);
    m->mid = dev_buf(&D, NULL, n * FFN), m->cs = dev_buf(&D, NULL, n * DIM);
    m->logits = dev_buf(&D, NULL, n * VOCAB);
    m->ids = i32s(rows, 17, 1), m->pos = i32s(rows, keys, 0), m->out = i32s(rows, 0, 0);
    m->p = dev_buf(&D, NULL, n), m->u = dev_buf(&D, NULL, n);
}

/* ---- operations ----------------------------------------------------------------------------- */

static struct k_norm rms(const struct tensor *w) { return (struct k_norm){NORM_RMS1P, w, 1e-6f}; }

static void op_embed(struct fake *m)
{
    D.k->embed(D.d, &(struct k_embed){m->rows, HIDDEN, m->ids, &m->embed, 16, m->x, 0});
}

static void op_qkv(struct fake *m, int l)
{
    struct fake_layer *y = &m->layer[l];
    D.k->qkv(D.d, &(struct k_qkv){
        .rows = m->rows, .src_stride = HIDDEN, .src = m->x, .norm = rms(&m->norm), .wq = &y->wq,
        .wk = &y->wk, .wv = &y->wv, .n_head = HEADS, .n_kv = KV, .head_dim = DIM,
        .q_norm = rms(&m->head_norm), .k_norm = rms(&m->head_norm), .rot = DIM, .cs = m->cs,
        .q = m->q, .cells = {y->k, y->v, KV_BF16, m->n_slots, KV, DIM}, .table = &m->table});
}

static void op_attn(struct fake *m, int l)
{
    struct fake_layer *y = &m->layer[l];
    D.k->attn(D.d, &(struct k_attn){
        .rows = m->rows, .n_head = HEADS, .scale = .125f, .q = m->q, .dst = m->att,
        .cells = {y->k, y->v, KV_BF16, m->n_slots, KV, DIM}, .table = &m->table});
}

static void op_linear(struct fake *m, const struct tensor *w, kbuf src, kbuf dst, bool post)
{
    D.k->linear(D.d, &(struct k_linear){
        .rows = m->rows, .src_stride = (int)w->dim[1], .src = src, .w = w, .scale = 1, .dst = dst,
        .pre = post ? (struct k_norm){0} : rms(&m->norm),
        .post = post ? rms(&m->norm) : (struct k_norm){0}, .add = post});
}

static void op_glu(struct fake *m, int l)
{
    D.k->glu(D.d, &(struct k_glu){.rows = m->rows, .src = m->x, .pre = rms(&m->norm),
                                  .gate = &m->layer[l].gate, .up = &m->layer[l].up,
                                  .act = ACT_GELU_TANH, .dst = m->mid});
}

static void forward(void *arg) /* one pass: every operation of eight layers, then a greedy draw */
{
    struct fake *m = arg;
    op_embed(m);
    D.k->rope(D.d, &(struct k_rope){m->rows, DIM / 2, m->pos, m->inv_freq, 1, m->cs});
    for (int l = 0; l < LAYERS; l++) {
        op_qkv(m, l);
        op_attn(m, l);
        op_linear(m, &m->layer[l].wo, m->att, m->x, true);
        op_glu(m, l);
        op_linear(m, &m->layer[l].down, m->mid, m->x, true);
    }
    op_linear(m, &m->head, m->x, m->logits, false);
    D.k->sample(D.d, &(struct k_sample){.rows = m->rows, .n = VOCAB, .logits = m->logits,
                                        .ids = m->out, .p = m->p, .u = m->u});
}

static void all_qkv(void *arg)
{
    for (int l = 0; l < LAYERS; l++)
        op_qkv(arg, l);
}

static void all_o(void *arg)
{
    struct fake *m = arg;
    for (int l = 0; l < LAYERS; l++)
        op_linear(m, &m->layer[l].wo, m->att, m->x, true);
}

static void all_glu(void *arg)
{
    for (int l = 0; l < LAYERS; l++)
        op_glu(arg, l);
}

static void all_down(void *arg)
{
    struct fake *m = arg;
    for (int l = 0; l < LAYERS; l++)
        op_linear(m, &m->layer[l].down, m->mid, m->x, true);
}

static void one_head(void *arg)
{
    struct fake *m = arg;
    op_linear(m, &m->head, m->x, m->logits, false);
}

static void all_attn(void *arg)
{
    for (int l = 0; l < LAYERS; l++)
        op_attn(arg, l);
}

static void print_op(const char *name, int rows, size_t bytes, double read_rate, struct times t)
{
    printf("%-22s %5d %10.1f %10.1f %6.1f%% %8.1f %8.2f\n", name, rows, t.median * 1e6,
           t.best * 1e6, t.spread * 100, (double)bytes / t.median * 1e-9,
           (double)bytes / read_rate / t.median);
}

static void bench_products(struct fake *m, double rate)
{
    static const int rows[] = {1, 2, 4, 6, 8, 16, 60};
    const struct { const char *name; void (*run)(void *); size_t weights; } ops[] = {
        {"qkv (8 layers)", all_qkv, (size_t)LAYERS * HIDDEN * (HEADS + 2 * KV) * DIM},
        {"o + post-norm (8)", all_o, (size_t)LAYERS * HIDDEN * HEADS * DIM},
        {"glu (8)", all_glu, (size_t)LAYERS * 2 * HIDDEN * FFN},
        {"down + post-norm (8)", all_down, (size_t)LAYERS * HIDDEN * FFN},
        {"head", one_head, (size_t)VOCAB * HIDDEN}};
    for (int r = 0; r < 7; r++) {
        fake_shape(m, rows[r], 128);
        forward(m);
        for (int i = 0; i < 5; i++)
            print_op(ops[i].name, rows[r], 2 * ops[i].weights, rate, measure(ops[i].run, m));
    }
}

static void bench_attention(struct fake *m, double rate)
{
    static const int shapes[][2] = {{1, 64}, {1, 1024}, {1, 4096}, {6, 1024}, {60, 1024}};
    for (int i = 0; i < 5; i++) {
        char name[32];
        fake_shape(m, shapes[i][0], shapes[i][1]);
        forward(m);
        snprintf(name, sizeof name, "attention (8), %d", shapes[i][1]);
        print_op(name, shapes[i][0], (size_t)LAYERS * (size_t)shapes[i][1] * KV * DIM * 4, rate,
                 measure(all_attn, m));
    }
}

struct moe_bench {
    struct k_moe a;
};

static void one_moe(void *arg)
{
    D.k->moe(D.d, &((struct moe_bench *)arg)->a);
}

static void bench_moe(double rate) /* 16 experts of 512 x 512, top 4 */
{
    enum { E = 16, IN = 512, F = 512, K = 4 };
    struct tensor router = TENSOR(DT_BF16, .1f, E, IN);
    struct tensor gu = TENSOR(DT_U8, 1, E, 2 * F, IN / 32, 16);
    struct tensor dn = TENSOR(DT_U8, 1, E, IN, F / 32, 16);
    struct tensor gus = TENSOR(DT_U8, 1, E, 2 * F, IN / 32), dns = TENSOR(DT_U8, 1, E, IN, F / 32);
    struct tensor gu16 = TENSOR(DT_BF16, .05f, E, 2 * F, IN);
    struct tensor dn16 = TENSOR(DT_BF16, .05f, E, IN, F);
    memset(gus.data, 121, gus.bytes), memset(dns.data, 121, dns.bytes);
    static const int rows[] = {1, 6, 16};
    for (int i = 0; i < 6; i++) {
        int n = rows[i / 2];
        float *x = rnd_floats((size_t)n * IN, 1);
        dev_release(&D);
        struct moe_bench b = {{
            .rows = n, .in = IN, .ffn = F, .n_expert = E, .top_k = K, .router_scale = 1,
            .src = dev_buf(&D, x, (size_t)n * IN * 4), .router = &router, .act = ACT_SWIGLU_CLAMP,
            .limit = 7, .dst = dev_buf(&D, NULL, (size_t)n * IN * 4),
            .chosen = dev_buf(&D, NULL, (size_t)n * K * 4), .layout = EXPERT_MXFP4,
            .gate_up = &gu, .gate_up_s = &gus, .down = &dn, .down_s = &dns}};
        if (i % 2)
            b.a.layout = EXPERT_HALVES, b.a.gate_up = &gu16, b.a.down = &dn16;
        one_moe(&b);
        int32_t chosen[16 * K];
        unsigned hit = 0;
        D.k->get(D.d, chosen, b.a.chosen, (size_t)(n * K) * 4);
        for (int j = 0; j < n * K; j++)
            hit |= 1u << chosen[j];
        size_t bytes = (size_t)__builtin_popcount(hit) * 3 * IN * F;
        print_op(i % 2 ? "moe bf16" : "moe mxfp4", n, i % 2 ? 2 * bytes : bytes * 17 / 32, rate,
                 measure(one_moe, &b));
        free(x);
    }
    struct tensor *all[] = {&router, &gu, &dn, &gus, &dns, &gu16, &dn16};
    for (int i = 0; i < 7; i++)
        free(all[i]->data);
}

/* The read and the pass alternate; their ratio is taken run by run. */
static void bench_pass(struct fake *m, struct read_run *read, int rows)
{
    double t[MAX_RUNS], r[MAX_RUNS], ratio[MAX_RUNS];
    fake_shape(m, rows, 128);
    forward(m);
    for (int i = 0; i < n_runs; i++) {
        uint64_t a = clock_ns();
        read_all(read);
        uint64_t b = clock_ns();
        forward(m);
        uint64_t c = clock_ns();
        r[i] = (double)(b - a) * 1e-9, t[i] = (double)(c - b) * 1e-9;
        ratio[i] = r[i] / t[i];
    }
    struct times pass = summary(t, n_runs), floor = summary(r, n_runs), q = summary(ratio, n_runs);
    printf("%5d %11.1f %9.1f %6.1f%% %10.1f %9.1f %12.2f %10.2f %10.0f %10.0f\n", rows,
           pass.median * 1e6, pass.best * 1e6, pass.spread * 100, floor.median * 1e6,
           floor.best * 1e6, q.median, floor.best / pass.best, rows / pass.median,
           rows / pass.best);
}

int main(int argc, char **argv)
{
    const char *isa = NULL;
    int threads = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--isa") == 0)
            isa = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--runs") == 0)
            n_runs = min_int(MAX_RUNS, max_int(3, atoi(argv[i + 1])));
    }
    static struct fake m;
    static struct read_run read;
    dev_open(&D, &kernels_cpu, isa, threads);
    fake_weights(&m);
    read = (struct read_run){.p = (const uint8_t *)m.weights, .n = m.bytes, .items = 512};
    struct times r = measure(read_all, &read);
    double rate = (double)m.bytes / r.median;
    printf("device: %s; %d runs a line\n", D.k->about(D.d), n_runs);
    printf("read of %.1f MB: median %.1f us, best %.1f us, spread %.1f%%: %.1f GB/s\n\n",
           (double)m.bytes * 1e-6, r.median * 1e6, r.best * 1e6, r.spread * 100, rate * 1e-9);
    printf("whole pass, 128 keys\n%5s %11s %9s %7s %10s %9s %12s %10s %10s %10s\n", "rows",
           "median us", "best us", "grow", "read us", "best us", "read / pass", "best/best",
           "rows/s", "best");
    static const int rows[] = {1, 2, 4, 6, 8, 16, 60, 256};
    for (int i = 0; i < 8; i++)
        bench_pass(&m, &read, rows[i]);
    printf("\n%-22s %5s %10s %10s %7s %8s %8s\n", "operation", "rows", "median us", "best us",
           "grow", "GB/s", "of read");
    bench_products(&m, rate);
    bench_attention(&m, rate);
    bench_moe(rate);
    dev_close(&D);
    free(m.weights), free(m.norm.data), free(m.head_norm.data);
    return 0;
}
