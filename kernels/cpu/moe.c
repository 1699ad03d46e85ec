/* moe.c - mixture of experts.
 *
 * A pair is a row and one of its chosen experts. Pairs are grouped by expert, so that an expert's
 * weights are read once for all rows that chose it. The results of pairs are stored separately; at
 * the end each row sums those of its experts in the order of their rank.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>

struct moe_run {
    const struct k_moe *a;
    const struct cpu_isa *isa;
    int pairs, tile;
    /* routing */
    float *logits; /* (rows, E) */
    int32_t *chosen; /* (rows, top_k) */
    float *weight;   /* (rows, top_k) */
    /* pairs by expert: expert active[i] has order[begin[i]..begin[i + 1]) */
    int n_active;
    int32_t *active, *begin, *order;
    /* one matrix of every expert */
    const struct tensor *w, *scale;
    int k, n;        /* inputs and outputs of the current matrix */
    bool in_out;     /* it is stored as (k, n) */
    const float *in; /* packed rows; pair p reads row p / in_div */
    int in_div;
    float *out;      /* (pairs, n) */
    float *thread_rows; /* (threads, TILE_OUT, k) for in_out */
    const float **x; /* (pairs) in the order of `order` */
    float *hidden;   /* (pairs, packed ffn) */
    const float *up; /* (pairs, 2 ffn) */
};

/* ---- routing -------------------------------------------------------------------------------- */

static bool by_sigmoid(const struct k_moe *a)
{
    return a->router_kind == ROUTER_SIGMOID || a->router_kind == ROUTER_RAW;
}

static float sigmoid_of(const struct cpu_isa *isa, float x)
{
    float e = isa->exp(-fabsf(x));
    return (x < 0 ? e : 1) / (1 + e);
}

/* What experts are chosen by: the logit, or the sigmoid and the expert's bias. */
static float choice_of(const struct moe_run *run, const float *logits, int e)
{
    const struct k_moe *a = run->a;
    float b = 0;
    if (!by_sigmoid(a))
        return logits[e];
    if (a->choice_b)
        run->isa->widen(a->choice_b, (size_t)e, 1, 1, &b);
    return sigmoid_of(run->isa, logits[e]) + b;
}

/* The top_k largest choices (ties: lowest index; NaN is never larger). */
static void choose(const struct moe_run *run, const float *logits, int32_t *chosen)
{
    const struct k_moe *a = run->a;
    for (int i = 0; i < a->top_k; i++) {
        int best = -1;
        float top = 0;
        for (int e = 0; e < a->n_expert; e++) {
            bool taken = false;
            for (int j = 0; j < i; j++)
                taken |= chosen[j] == e;
            if (taken)
                continue;
            float c = choice_of(run, logits, e);
            if (best < 0 || c > top)
                best = e, top = c;
        }
        chosen[i] = best;
    }
}

/* Chooses the experts of a row and weighs them. */
static void route_row(void *arg, int r, int)
{
    const struct moe_run *run = arg;
    const struct k_moe *a = run->a;
    float *logits = run->logits + (size_t)r * (size_t)a->n_expert;
    int32_t *chosen = run->chosen + mul64(r, a->top_k);
    float *weight = run->weight + mul64(r, a->top_k), sum = 0;
    for (int e = 0; a->router_cap > 0 && e < a->n_expert; e++)
        logits[e] = a->router_cap * tanhf(logits[e] / a->router_cap);
    choose(run, logits, chosen);
    for (int i = 0; i < a->top_k; i++) {
        weight[i] = by_sigmoid(a) ? sigmoid_of(run->isa, logits[chosen[i]])
                                  : run->isa->exp(logits[chosen[i]] - logits[chosen[0]]);
        sum += weight[i];
    }
    if (a->router_kind == ROUTER_SIGMOID)
        sum += 1e-20f;
    if (a->router_kind == ROUTER_RAW)
        sum = 1;
    if (a->router_kind == ROUTER_ALL) {
        sum = 0;
        for (int e = 0; e < a->n_expert; e++)
            sum += run->isa->exp(logits[e] - logits[chosen[0]]);
    }
    for (int i = 0; i < a->top_k; i++) {
        float scale = a->weight_scale != 0 ? a->weight_scale : 1;
        float of_expert = 1;
        if (a->expert_scale)
            run->isa->widen(a->expert_scale, (size_t)chosen[i], 1, 1, &of_expert);
        weight[i] = weight[i] / sum * of_expert * scale;
    }
}

/* Sorts the pairs by expert, row and rank. */
static void group_pairs(struct moe_run *run)
{
    int n_expert = run->a->n_expert;
    int32_t *count = run->begin; /* counts per expert, overwritten by `begin` of active experts */
    memset(count, 0, (size_t)(n_expert + 1) * sizeof *count);
    for (int p = 0; p < run->pairs; p++)
        count[run->chosen[p]]++;
    int at = 0;
    run->n_active = 0;
    for (int e = 0; e < n_expert; e++) {
        int n = count[e];
        if (!n)
            continue;
        run->active[run->n_active] = e;
        run->begin[run->n_active++] = at;
        for (int p = 0; n; p++)
            if (run->chosen[p] == e)
                run->order[at++] = p, n--;
    }
    run->begin[run->n_active] = at;
}

/* ---- one matrix of every chosen expert ------------------------------------------------------ */

/* Whether an expert's matrices are stored as (inputs, outputs). */
static bool in_out(const struct k_moe *a)
{
    return a->layout == EXPERT_IN_OUT || a->layout == EXPERT_IN_OUT_HALVES;
}

static struct cpu_mat expert_mat(const struct moe_run *run, int expert)
{
    size_t n = (size_t)run->n, k = (size_t)run->k, e = (size_t)expert;
    if (run->a->layout != EXPERT_MXFP4)
        return cpu_rows_at(run->w, e * n, run->n, run->k);
    struct cpu_mat m = {
        .type = STORED_MXFP4, .n = run->n, .k = run->k, .pitch = k / 2, .scale_pitch = k / 32};
    m.data = (const uint8_t *)run->w->data + e * n * m.pitch;
    m.scale = (const uint8_t *)run->scale->data + e * n * m.scale_pitch;
    return m;
}

/* Transposes columns [out, out + n) of an expert's (k, n) matrix into rows of float32. */
static struct cpu_mat transpose_columns(const struct moe_run *run, int expert, int out, int n,
                                        float *rows)
{
    size_t width = (size_t)run->n, k = (size_t)run->k;
    for (size_t i = 0; i < k; i++) {
        float line[TILE_OUT];
        run->isa->widen(run->w, ((size_t)expert * k + i) * width + (size_t)out, n, 1, line);
        for (int o = 0; o < n; o++)
            rows[(size_t)o * k + i] = line[o];
    }
    return (struct cpu_mat){.data = (const uint8_t *)rows, .type = STORED_F32, .n = n,
                            .k = run->k, .pitch = k * sizeof(float)};
}

static void expert_item(void *arg, int item, int thread)
{
    const struct moe_run *run = arg;
    int tiles = div_up(run->n, run->tile), i = item / tiles, expert = run->active[i];
    int out = item % tiles * run->tile, n = min_int(run->tile, run->n - out), row = out;
    struct cpu_mat w;
    if (run->in_out) {
        float *rows = run->thread_rows + (size_t)thread * TILE_OUT * (size_t)run->k;
        w = transpose_columns(run, expert, out, n, rows);
        row = 0;
    } else {
        w = expert_mat(run, expert);
    }
    for (int at = run->begin[i]; at < run->begin[i + 1]; at += TILE_ROWS) {
        float tile[TILE_ROWS * TILE_OUT];
        int rows = min_int(TILE_ROWS, run->begin[i + 1] - at);
        run->isa->multiply(&w, run->x + at, rows, row, n, tile);
        for (int r = 0; r < rows; r++)
            memcpy(run->out + (size_t)run->order[at + r] * (size_t)run->n + out,
                   tile + mul64(r, TILE_OUT), (size_t)n * sizeof(float));
    }
}

static void multiply_experts(struct kdev *d, struct moe_run *run)
{
    size_t packed = (size_t)cpu_packed(run->k);
    for (int i = 0; i < run->pairs; i++)
        run->x[i] = run->in + (size_t)(run->order[i] / run->in_div) * packed;
    run->in_out = in_out(run->a);
    if (run->in_out)
        run->thread_rows =
            cpu_floats(d, SCRATCH_THREAD, (size_t)d->threads * TILE_OUT * (size_t)run->k);
    run->tile = TILE_OUT;
    double each = (double)run->pairs / run->n_active * run->tile * run->k;
    cpu_each(d, run->n_active * div_up(run->n, run->tile), each, expert_item, run);
}

/* ---- activation, and the sum over experts ---------------------------------------------------- */

static void add_bias(const struct moe_run *run, const struct tensor *b, int pair, int n, float *y)
{
    if (!b)
        return;
    for (int i = 0; i < n; i += TILE_OUT) {
        int m = min_int(TILE_OUT, n - i);
        struct cpu_epilogue f = {.b = b, .scale = 1, .dst = y + i, .dst_stride = 0,
                               .b_at = (size_t)run->chosen[pair] * (size_t)n + (size_t)i};
        run->isa->epilogue(&f, y + i, 1, m);
    }
}

/* Computes a pair's hidden row, act(gate) * up, and packs it. */
static void hidden_row(void *arg, int pair, int)
{
    static const struct k_norm none = {.kind = NORM_NONE};
    const struct moe_run *run = arg;
    const struct k_moe *a = run->a;
    float *u = (float *)run->up + (size_t)pair * 2 * (size_t)a->ffn;
    float *h = run->hidden + (size_t)pair * (size_t)cpu_packed(a->ffn);
    const bool halves = a->layout == EXPERT_HALVES || a->layout == EXPERT_IN_OUT_HALVES;
    add_bias(run, a->gate_up_b, pair, 2 * a->ffn, u);
    for (int i = 0; i < a->ffn; i += TILE_OUT) {
        float g[TILE_OUT], l[TILE_OUT];
        int n = min_int(TILE_OUT, a->ffn - i);
        for (int j = 0; j < n; j++) {
            g[j] = halves ? u[i + j] : u[mul64(2, i + j)];
            l[j] = halves ? u[a->ffn + i + j] : u[2 * (i + j) + 1];
        }
        if (a->weigh_input) {
            run->isa->scale(g, n, run->weight[pair]);
            run->isa->scale(l, n, run->weight[pair]);
        }
        run->isa->gate(g, l, n, a->act, a->limit, g);
        run->isa->pack(g, n, &none, NULL, 1, h + i);
    }
}

/* Sums a row's experts by their weights and applies the post-norm; what follows it for x. */
static void sum_row(void *arg, int r, int)
{
    const struct moe_run *run = arg;
    const struct k_moe *a = run->a;
    float *first = run->out + (size_t)r * (size_t)a->top_k * (size_t)a->in;
    for (int i = 0; i < a->top_k; i++) {
        float *y = first + (size_t)i * (size_t)a->in;
        float w = a->weigh_input ? 1 : run->weight[r * a->top_k + i];
        add_bias(run, a->down_b, r * a->top_k + i, a->in, y);
        if (i == 0)
            run->isa->scale(y, a->in, w);
        else
            run->isa->axpy(w, y, a->in, false, first);
    }
    float *dst = (float *)a->dst.p + (size_t)r * (size_t)a->in;
    run->isa->normalize(first, a->in, &a->post, a->add, 1, dst);
    if (!a->x.p)
        return;
    float s = 1, *x = (float *)a->x.p + (size_t)r * (size_t)a->in;
    if (a->s)
        run->isa->widen(a->s, 0, 1, 1, &s);
    run->isa->normalize(dst, a->in, &a->after, true, 1, x);
    run->isa->scale(x, a->in, s);
}

/* ---- the operation -------------------------------------------------------------------------- */

static void check_experts(const struct k_moe *a, const struct tensor *w, const struct tensor *s,
                          int n, int k)
{
    size_t all = (size_t)a->n_expert * (size_t)n * (size_t)k;
    CHECK(w && w->data);
    if (a->layout == EXPERT_MXFP4) {
        CHECK(k % 32 == 0 && s && s->data && w->type == DT_U8 && s->type == DT_U8);
        CHECK(w->bytes >= all / 2 && s->bytes >= all / 32);
    } else {
        CHECK(!in_out(a) || !dtype_packed(w->type));
        CHECK(w->data &&
              w->bytes >= (size_t)a->n_expert * (size_t)n * dtype_bytes(w->type, (size_t)k));
    }
}

static void moe_scratch(struct kdev *d, struct moe_run *run)
{
    const struct k_moe *a = run->a;
    size_t pairs = (size_t)run->pairs, e = (size_t)a->n_expert;
    int32_t *ints = cpu_scratch(d, SCRATCH_ROUTE, 3 * pairs + 2 * e + 1, sizeof *ints);
    run->chosen = ints;
    run->weight = (float *)(ints + pairs);
    run->order = ints + 2 * pairs;
    run->active = ints + 3 * pairs;
    run->begin = ints + 3 * pairs + e;
    run->x = cpu_scratch(d, SCRATCH_PTR_2, pairs, sizeof *run->x);
    run->hidden = cpu_floats(d, SCRATCH_HIDDEN, pairs * (size_t)cpu_packed(a->ffn));
}

static void route(struct kdev *d, struct moe_run *run, const float *packed)
{
    const struct k_moe *a = run->a;
    bool own = a->router_norm.kind != NORM_NONE || a->router_in || a->router_scale != 1;
    if (own) {
        const struct k_norm *norm = a->router_norm.kind != NORM_NONE ? &a->router_norm : &a->pre;
        packed = cpu_pack_rows(d, SCRATCH_PACK_2, a->src.p, (size_t)a->in, a->rows, a->in, norm,
                               a->router_in, a->router_scale);
    }
    CHECK(a->router->dim[0] == a->n_expert && a->router->dim[1] == a->in);
    run->logits = cpu_floats(d, SCRATCH_LOGITS, (size_t)a->rows * (size_t)a->n_expert);
    cpu_product(d, packed, a->rows, a->router, a->router_b, run->logits);
    cpu_each(d, a->rows, (double)a->n_expert * a->top_k * 4, route_row, run);
}

void cpu_moe(struct kdev *d, const struct k_moe *a)
{
    struct moe_run run = {.a = a, .isa = d->isa, .pairs = a->rows * a->top_k};
    size_t pairs = (size_t)run.pairs, n = (size_t)a->rows * (size_t)a->in;
    CHECK(a->top_k > 0 && a->top_k <= a->n_expert);
    CHECK(by_sigmoid(a) || (!a->choice_b && a->router_cap == 0));
    CHECK(!a->weigh_input || !a->gate_up_b);
    if (a->rows == 0)
        return;
    check_experts(a, a->gate_up, a->gate_up_s, 2 * a->ffn, a->in);
    check_experts(a, a->down, a->down_s, a->in, a->ffn);
    cpu_f32(a->dst, n);
    if (a->x.p)
        cpu_f32(a->x, n);
    if (a->s)
        cpu_store_of(a->s);
    moe_scratch(d, &run);
    float *x = cpu_pack_rows(d, SCRATCH_PACK, cpu_f32(a->src, n), (size_t)a->in, a->rows, a->in,
                             &a->pre, NULL, 1);
    route(d, &run, x);
    if (a->chosen.p)
        memcpy(cpu_i32(a->chosen, pairs), run.chosen, pairs * sizeof *run.chosen);
    group_pairs(&run);

    run.w = a->gate_up, run.scale = a->gate_up_s, run.n = 2 * a->ffn, run.k = a->in;
    run.in = x, run.in_div = a->top_k;
    run.up = run.out = cpu_floats(d, SCRATCH_UP, pairs * 2 * (size_t)a->ffn);
    multiply_experts(d, &run);
    cpu_each(d, run.pairs, a->ffn * 20.0, hidden_row, &run);

    run.w = a->down, run.scale = a->down_s, run.n = a->in, run.k = a->ffn;
    run.in = run.hidden, run.in_div = 1;
    run.out = cpu_floats(d, SCRATCH_DOWN, pairs * (size_t)a->in);
    multiply_experts(d, &run);
    cpu_each(d, a->rows, a->in * 4.0 * a->top_k, sum_row, &run);
}
