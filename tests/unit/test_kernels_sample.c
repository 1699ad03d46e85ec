/* test_kernels_sample.c - the CPU kernels that read logits: topk, logp, sample. Against full sorts
 * in double precision, against expected frequencies, and at the edges (tests/kernel_test.h).
 */
#include "tests/kernel_test.h"

/* ---- references ----------------------------------------------------------------------------- */

static const float *sort_row;

static int by_logit(const void *a, const void *b)
{
    int i = *(const int *)a, j = *(const int *)b;
    return sort_row[i] > sort_row[j] ? -1 : sort_row[i] < sort_row[j] ? 1 : i - j;
}

/* Indices not masked and above -inf, best first. */
static int ref_order(const float *x, const uint8_t *mask, int n, bool infinite, int *order)
{
    int m = 0;
    for (int i = 0; i < n; i++)
        if (!(mask && mask[i]) && !isnan(x[i]) && (infinite || !isinf(x[i])))
            order[m++] = i;
    sort_row = x;
    qsort(order, (size_t)m, sizeof *order, by_logit);
    return m;
}

static double ref_lse(const float *x, int n)
{
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (int i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

/* p (n): the filtered distribution; order and count as in ref_order() */
static int ref_filter(const float *x, const uint8_t *mask, int n, const struct sampling *how,
                      int *order, double *p)
{
    int m = ref_order(x, mask, n, false, order), keep;
    double sum = 0, run = 0;
    if (how->top_k > 0 && how->top_k < m)
        m = how->top_k;
    for (int i = 0; i < m; i++)
        sum += p[i] = exp(((double)x[order[i]] - (double)x[order[0]]) / (double)how->temperature);
    for (keep = 0; keep < m && (keep == 0 || how->top_p >= 1 ||
                                run < (double)how->top_p * sum); keep++)
        run += p[keep];
    while (keep > 1 && p[keep - 1] < (double)how->min_p)
        keep--;
    for (sum = 0, m = 0; m < keep; m++)
        sum += p[m];
    for (int i = 0; i < keep; i++)
        p[i] /= sum;
    return keep;
}

/* ---- topk and logp -------------------------------------------------------------------------- */

struct topk_case {
    int rows, n, k;
    const float *x;
    const uint8_t *mask;
};

/* out: ids (rows, k) as floats, logp (rows, k), lse (rows) */
static void run_topk(const void *arg, float *out)
{
    const struct topk_case *c = arg;
    size_t pairs = (size_t)(c->rows * c->k);
    struct k_topk a = {.rows = c->rows, .n = c->n, .k = c->k, .ids = blank(pairs),
                       .logits = floats(c->x, (size_t)(c->rows * c->n)), .logp = blank(pairs),
                       .lse = blank((size_t)c->rows)};
    if (c->mask)
        a.mask = dev_buf(&T, c->mask, (size_t)c->n);
    int32_t *ids = xmalloc(pairs * sizeof *ids);
    T.k->topk(T.d, &a);
    T.k->get(T.d, ids, a.ids, pairs * sizeof *ids);
    for (size_t i = 0; i < pairs; i++)
        out[i] = (float)ids[i];
    take(out + pairs, a.logp, pairs);
    take(out + 2 * pairs, a.lse, (size_t)c->rows);
    free(ids);
}

static void check_topk(const struct topk_case *c)
{
    int *order = xmalloc((size_t)c->n * sizeof *order), pairs = c->rows * c->k;
    float *out = rnd_floats((size_t)(2 * pairs + c->rows), 1);
    everywhere(run_topk, c, out, (size_t)(2 * pairs + c->rows));
    for (int r = 0; r < c->rows; r++) {
        const float *x = c->x + r * c->n;
        int m = ref_order(x, c->mask, c->n, true, order);
        double lse = ref_lse(x, c->n);
        assert_true(fabs((double)out[2 * pairs + r] - lse) <= 1e-6 * (1 + fabs(lse)));
        for (int i = 0; i < c->k; i++) {
            float id = out[r * c->k + i], logp = out[pairs + r * c->k + i];
            assert_true(id == (i < m ? (float)order[i] : -1));
            if (i >= m || x[order[i]] == -INFINITY)
                assert_true(logp == -INFINITY);
            else
                assert_true(fabs((double)logp - ((double)x[order[i]] - lse)) <=
                            2e-6 * (1 + fabs(lse)));
        }
    }
    free(order), free(out);
}

static void test_topk_is_a_sorted_head(void **state)
{
    (void)state;
    static const int sizes[][3] = {{1, 1, 1}, {3, 17, 17}, {2, 100, 64}, {5, 4096, 10},
                                   {2, 4097, 64}, {1, 50000, 8}, {4, 15, 1}};
    for (int i = 0; i < 28; i += one_in(5)) {
        const int *s = sizes[i % 7];
        float *x = rnd_floats((size_t)(s[0] * s[1]), 4);
        uint8_t *mask = xcalloc((size_t)s[1], 1);
        for (int j = 0; j < s[0] * s[1]; j++)
            x[j] = i % 2 ? roundf(x[j]) : x[j]; /* many ties, 0 and -0 among them */
        for (int j = 0; j < s[1]; j++)
            mask[j] = rnd_int(3) == 0 ? (uint8_t)(1 + rnd_int(255)) : 0;
        if (i > 13 && s[1] > 20)
            x[3] = x[7] = -INFINITY;
        check_topk(&(struct topk_case){s[0], s[1], s[2], x, i % 3 ? mask : NULL});
        free(x), free(mask);
    }
    float rising[70], falling[70];
    for (int i = 0; i < 70; i++)
        rising[i] = (float)i, falling[i] = (float)-i;
    check_topk(&(struct topk_case){1, 70, 64, rising, NULL});
    check_topk(&(struct topk_case){1, 70, 64, falling, NULL});
}

struct logp_case {
    const float *x;
    int32_t row[20], id[20];
};

static void run_logp(const void *arg, float *out)
{
    const struct logp_case *c = arg;
    kbuf logp = blank(20);
    T.k->logp(T.d, &(struct k_logp){20, 999, 6, floats(c->x, 6 * 999), ints(c->row, 20),
                                    ints(c->id, 20), logp});
    take(out, logp, 20);
}

struct rerank_case {
    int rows, n, k, width, lists;
    const int32_t *from, *ids;
    const float *logp, *src;
    struct tensor table;
};

/* out: ids (rows, k) as floats, logp (rows, k) */
static void run_rerank(const void *arg, float *out)
{
    const struct rerank_case *c = arg;
    size_t pairs = (size_t)(c->rows * c->k), all = (size_t)(c->lists * c->n);
    struct k_rerank a = {.rows = c->rows, .n = c->n, .k = c->k, .width = c->width,
                         .from = ints(c->from, (size_t)c->rows), .ids = ints(c->ids, all),
                         .logp = floats(c->logp, all),
                         .src = floats(c->src, (size_t)(c->rows * c->width)), .table = &c->table,
                         .best = blank(pairs), .best_logp = blank(pairs)};
    int32_t *ids = xmalloc(pairs * sizeof *ids);
    T.k->rerank(T.d, &a);
    T.k->get(T.d, ids, a.best, pairs * sizeof *ids);
    for (size_t i = 0; i < pairs; i++)
        out[i] = (float)ids[i];
    take(out + pairs, a.best_logp, pairs);
    free(ids);
}

/* The candidates of a list by score, which are there, and their scores. */
static int ref_scores(const struct rerank_case *c, int r, float *score, int *order)
{
    int n = 0;
    const int32_t *ids = c->ids + c->from[r] * c->n;
    for (; n < c->n && ids[n] >= 0; n++) {
        double sum = 0;
        for (int i = 0; i < c->width; i++)
            sum += weight_at(&c->table, (size_t)(ids[n] * c->width + i)) *
                   (double)c->src[r * c->width + i];
        score[n] = (float)((double)c->logp[c->from[r] * c->n + n] + sum);
    }
    return ref_order(score, NULL, n, true, order);
}

static void check_rerank(const struct rerank_case *c)
{
    int pairs = c->rows * c->k, order[64];
    float *out = rnd_floats((size_t)(2 * pairs), 1), score[64];
    everywhere(run_rerank, c, out, (size_t)(2 * pairs));
    for (int r = 0; r < c->rows; r++) {
        int n = ref_scores(c, r, score, order);
        double lse = ref_lse(score, n);
        for (int i = 0; i < c->k; i++) {
            float id = out[r * c->k + i], logp = out[pairs + r * c->k + i];
            int32_t want = i < n ? c->ids[c->from[r] * c->n + order[i]] : -1;
            assert_true(id == (float)want);
            if (i >= n)
                assert_true(logp == -INFINITY);
            else
                assert_true(fabs((double)logp - ((double)score[order[i]] - lse)) <= 1e-4);
        }
    }
    free(out);
}

/* Lists of which rows share some, lists that are shorter, more asked for than there is, ties. */
static void test_rerank_orders_by_score(void **state)
{
    (void)state;
    enum { V = 90, LISTS = 5, ROWS = 7 };
    static const int32_t from[ROWS] = {4, 0, 1, 1, 3, 2, 4};
    static const int shapes[][3] = {{9, 9, 24}, {1, 1, 1}, {16, 5, 256}, {64, 64, 33}, {6, 16, 40}};
    for (int i = 0; i < 10; i++) {
        int n = shapes[i % 5][0], k = shapes[i % 5][1], width = shapes[i % 5][2];
        int32_t ids[LISTS * 64];
        for (int j = 0; j < LISTS * n; j++)
            ids[j] = n > 3 && j / n == 1 && j % n > 2 ? -1 : (j / n * 7 + j % n * 11) % V;
        struct rerank_case c = {ROWS, n, k, width, LISTS, from, ids,
                                rnd_floats((size_t)(LISTS * n), 3),
                                rnd_floats((size_t)(ROWS * width), i < 5 ? 1.f : 0.f),
                                TENSOR(i % 2 ? DT_BF16 : DT_F32, 1, V, width)};
        float *logp = (float *)c.logp;
        for (int j = 0; j < LISTS * n && i > 4; j++)
            logp[j] = roundf(logp[j]); /* ties: nothing is added to them */
        check_rerank(&c);
        float odd[2 * 64];
        logp[4 * n] = NAN;
        c.rows = 1;
        everywhere(run_rerank, &c, odd, (size_t)(2 * k));
        for (int j = 0; j < k; j++)
            assert_true(odd[j] == (j < n ? (float)ids[4 * n + j] : -1) &&
                        (j < n ? isnan(odd[k + j]) : odd[k + j] == -INFINITY));
        free(logp), free((void *)c.src), free(c.table.data);
    }
}

static void test_logp_is_log_softmax(void **state)
{
    (void)state;
    struct logp_case c = {rnd_floats(6 * 999, 5), {0}, {0}};
    float out[20];
    for (int i = 0; i < 20; i++)
        c.row[i] = rnd_int(5), c.id[i] = rnd_int(999); /* the last row is of no interest */
    ((float *)c.x)[5 * 999 + 3] = NAN;
    everywhere(run_logp, &c, out, 20);
    for (int i = 0; i < 20; i++) {
        const float *x = c.x + c.row[i] * 999;
        assert_true(fabs((double)out[i] - ((double)x[c.id[i]] - ref_lse(x, 999))) < 1e-5);
    }
    free((float *)c.x);
}

/* ---- adjust --------------------------------------------------------------------------------- */

enum { ADJUST_ROWS = 5, ADJUST_N = 777, ADJUST_EVERY = 90, ADJUST_ALL = 120 };
struct adjust_case {
    const float *x;
    const uint32_t *banned;
    const struct k_change *change;
};

static void run_adjust(const void *arg, float *out)
{
    const struct adjust_case *c = arg;
    size_t all = ADJUST_ROWS * ADJUST_N;
    struct k_adjust a = {.rows = ADJUST_ROWS, .n = ADJUST_N, .changes = ADJUST_ALL,
                         .every = ADJUST_EVERY, .src = floats(c->x, all), .dst = blank(all)};
    a.change = dev_buf(&T, c->change, ADJUST_ALL * sizeof *c->change);
    if (c->banned)
        a.banned = dev_buf(&T, c->banned, (size_t)ADJUST_ROWS * ((ADJUST_N + 31) / 32) * 4);
    T.k->adjust(T.d, &a);
    take(out, a.dst, all);
}

/* The change of one row for an id comes before that for every row; what is banned stays so. */
static float adjusted(const struct adjust_case *c, int r, int i)
{
    float x = c->x[r * ADJUST_N + i];
    const struct k_change *of = NULL;
    if (c->banned && c->banned[r * ((ADJUST_N + 31) / 32) + i / 32] >> (i % 32) & 1)
        return -INFINITY;
    for (int k = 0; k < ADJUST_ALL; k++)
        if (c->change[k].id == i && (k < ADJUST_EVERY || c->change[k].row == r))
            of = &c->change[k];
    if (!of)
        return x;
    x += of->bias;
    x = x > 0 ? x / of->rep : x * of->rep;
    return x - of->less;
}

static void test_adjust_changes_and_bans_single_logits(void **state)
{
    (void)state;
    enum { WORDS = (ADJUST_N + 31) / 32 };
    struct k_change change[ADJUST_ALL];
    uint32_t banned[ADJUST_ROWS * WORDS];
    float *out = xmalloc(sizeof(float) * ADJUST_ROWS * ADJUST_N);
    struct adjust_case c = {rnd_floats(ADJUST_ROWS * ADJUST_N, 5), NULL, change};
    for (int i = 0; i < ADJUST_ALL; i++)
        change[i] = (struct k_change){.row = i < ADJUST_EVERY ? -1 : i % ADJUST_ROWS,
                                      .id = i < ADJUST_EVERY ? i * 7 : i * 5,
                                      .bias = (float)(rnd_int(200) - 100) / 16,
                                      .rep = 0.5f + (float)rnd_int(100) / 64,
                                      .less = (float)(rnd_int(200) - 100) / 32};
    for (int i = 0; i < ADJUST_ROWS * WORDS; i++)
        banned[i] = (uint32_t)rnd_int(1 << 30) & (uint32_t)rnd_int(1 << 30);
    for (int i = 0; i < ADJUST_ROWS; i++)
        banned[i * WORDS + WORDS - 1] &= (1u << ADJUST_N % 32) - 1;
    for (int round = 0; round < 2; round++) {
        c.banned = round ? banned : NULL;
        everywhere(run_adjust, &c, out, ADJUST_ROWS * ADJUST_N);
        for (int r = 0; r < ADJUST_ROWS; r++)
            for (int i = 0; i < ADJUST_N; i++)
                assert_true(out[r * ADJUST_N + i] == adjusted(&c, r, i));
    }
    free(out);
    free((float *)c.x);
}

/* ---- sample --------------------------------------------------------------------------------- */

struct sample_case {
    int rows, n;
    const float *x, *u;
    const uint8_t *mask;
    struct sampling how;
};

static void run_sample(const void *arg, float *out)
{
    const struct sample_case *c = arg;
    size_t rows = (size_t)c->rows;
    struct k_sample a = {.rows = c->rows, .n = c->n, .how = c->how, .u = floats(c->u, rows),
                         .logits = floats(c->x, rows * (size_t)c->n), .ids = blank(rows),
                         .p = blank(rows)};
    if (c->mask)
        a.mask = dev_buf(&T, c->mask, (size_t)c->n);
    int32_t *ids = xmalloc(rows * sizeof *ids);
    T.k->sample(T.d, &a);
    T.k->get(T.d, ids, a.ids, rows * sizeof *ids);
    for (size_t i = 0; i < rows; i++)
        out[i] = (float)ids[i];
    take(out + rows, a.p, rows);
    free(ids);
}

/* One row, one u, on every device. */
static int sample_one(const float *x, const uint8_t *mask, int n, struct sampling how, float u,
                      float *p)
{
    float out[2];
    struct sample_case c = {1, n, x, &u, mask, how};
    everywhere(run_sample, &c, out, 2);
    if (p)
        *p = out[1];
    return (int)out[0];
}

/* Each drawn id is the one whose share of [0, 1) holds u, up to single precision at its borders. */
static void test_sample_inverts_the_filtered_distribution(void **state)
{
    (void)state;
    static const struct sampling hows[] = {
        {1, 0, 1, 0}, {.7f, 0, 1, 0}, {1, 5, 1, 0}, {1, 0, .9f, 0}, {1, 0, 1, .05f},
        {1.3f, 40, .95f, .02f}, {2, 1, 1, 0}, {.05f, 0, .45f, 0}, {5, 0, 1, 0},
        {1, 100000, .99f, 0}};
    for (int i = 0; i < 40; i += one_in(7)) {
        enum { ROWS = 7 };
        int n = i % 4 == 0 ? 4096 : i % 4 == 1 ? 33 : i % 4 == 2 ? 1000 : 20000, order[20000];
        static double p[20000];
        struct sample_case c = {ROWS, n, NULL, NULL, NULL, hows[i % 10]};
        float *x = rnd_floats((size_t)(ROWS * n), i % 3 ? 3 : .3f), u[ROWS], out[2 * ROWS];
        uint8_t *mask = xcalloc((size_t)n, 1);
        for (int j = 0; j < ROWS * n; j++)
            x[j] = i % 2 ? roundf(x[j] * 4) / 4 : x[j];
        for (int j = 0; j < n; j++)
            mask[j] = rnd_int(4) == 0;
        for (int r = 0; r < ROWS; r++)
            u[r] = rnd_unit();
        c.x = x, c.u = u, c.mask = i % 5 < 2 ? mask : NULL;
        everywhere(run_sample, &c, out, 2 * ROWS);
        for (int r = 0; r < ROWS; r++) {
            int m = ref_filter(x + r * n, c.mask, n, &c.how, order, p), at = 0;
            double below = 0;
            while (at < m && order[at] != (int)out[r])
                below += p[at++];
            assert_true(at < m); /* a survivor of the filters */
            assert_true((double)u[r] > below - 1e-5 && (double)u[r] < below + p[at] + 1e-5);
            assert_true(fabs((double)out[ROWS + r] - p[at]) < 1e-5 * p[at] + 1e-9);
        }
        free(x), free(mask);
    }
}

static void test_sample_frequencies(void **state)
{
    (void)state;
    enum { N = 12, DRAWS = 20000 };
    static const struct sampling how = {.8f, 9, .97f, .01f};
    const float x[N] = {0, 1, 2, 1.5f, -1, 0, 2, -3, .5f, 1, -2, .25f};
    int order[N], count[N] = {0};
    double p[N], chi2 = 0;
    float *rows = xmalloc(DRAWS * N * sizeof *rows), *u = xmalloc(DRAWS * sizeof *u);
    float *out = xmalloc(2 * DRAWS * sizeof *out);
    for (int i = 0; i < DRAWS; i++) {
        memcpy(rows + i * N, x, sizeof x);
        u[i] = rnd_unit();
    }
    struct sample_case c = {DRAWS, N, rows, u, NULL, how};
    dev_open(&T, &kernels_cpu, NULL, 2);
    run_sample(&c, out);
    dev_close(&T);
    for (int i = 0; i < DRAWS; i++)
        count[(int)out[i]]++;
    int m = ref_filter(x, NULL, N, &how, order, p), seen = 0;
    for (int i = 0; i < m; i++) {
        double want = p[i] * DRAWS, d = count[order[i]] - want;
        chi2 += d * d / want;
        seen += count[order[i]];
    }
    assert_int_equal(seen, DRAWS);
    assert_true(m == 8 && chi2 < 24.3); /* 7 degrees of freedom, one chance in a thousand */
    free(rows), free(u), free(out);
}

/* A long row is scanned in parts: ties, masked and invalid elements in several of them. */
static void test_greedy_over_a_long_row(void **state)
{
    (void)state;
    enum { N = 50000 };
    const struct sampling greedy = {0, 0, 1, 0};
    float *x = rnd_floats(N, 1);
    uint8_t *mask = xcalloc(N, 1);
    x[40001] = x[33000] = x[17000] = 9;
    assert_int_equal(sample_one(x, NULL, N, greedy, 0, NULL), 17000);
    x[16383] = 9; /* the last of its part */
    assert_int_equal(sample_one(x, NULL, N, greedy, 0, NULL), 16383);
    mask[16383] = mask[17000] = 1;
    assert_int_equal(sample_one(x, mask, N, greedy, 0, NULL), 33000);
    x[N - 1] = 10;
    assert_int_equal(sample_one(x, mask, N, greedy, 0, NULL), N - 1);
    x[20000] = NAN, mask[20000] = 1;
    assert_int_equal(sample_one(x, mask, N, greedy, 0, NULL), -1);
    free(x), free(mask);
}

static void test_sample_at_the_edges(void **state)
{
    (void)state;
    const struct sampling plain = {1, 0, 1, 0}, greedy = {0, 0, 1, 0}, best = {1, 1, 1, 0};
    const struct sampling two = {1, 2, 1, 0};
    const float almost = 0x1.fffffep-1f;
    float p, x[40];
    for (int i = 0; i < 40; i++)
        x[i] = (float)(i % 4);
    /* greedy and ties: the lowest index; order (logit, index) at both ends of u */
    assert_int_equal(sample_one(x, NULL, 40, greedy, .9f, &p), 3);
    assert_true(p == 1);
    assert_int_equal(sample_one(x, NULL, 40, plain, 0, NULL), 3);
    assert_int_equal(sample_one(x, NULL, 40, plain, almost, NULL), 36);
    assert_int_equal(sample_one(x, NULL, 40, best, almost, &p), 3);
    assert_true(p == 1);
    /* top_k cuts among equals by index, top_p keeps at least one */
    assert_int_equal(sample_one(x, NULL, 40, two, almost, &p), 7);
    assert_true(p == .5f);
    assert_int_equal(sample_one(x, NULL, 40, two, 0x.ffffffp-1f, NULL), 3);
    assert_int_equal(sample_one(x, NULL, 40, two, .5f, NULL), 7); /* exceeds u: 0.5 does not */
    assert_int_equal(sample_one(x, NULL, 40, (struct sampling){1, 0, 0, 0}, almost, NULL), 3);
    assert_int_equal(sample_one(x, NULL, 40, (struct sampling){1, 0, 1, 1}, almost, NULL), 39);
    /* masks: the best may be banned, all may be */
    uint8_t mask[40] = {0};
    mask[3] = 1, mask[7] = 255;
    assert_int_equal(sample_one(x, mask, 40, greedy, 0, NULL), 11);
    assert_int_equal(sample_one(x, mask, 40, plain, 0, NULL), 11);
    memset(mask, 1, sizeof mask);
    assert_int_equal(sample_one(x, mask, 40, greedy, 0, &p), -1);
    assert_int_equal(sample_one(x, mask, 40, plain, .5f, &p), -1);
    assert_true(p == 0);
    /* -inf is never drawn; a single finite candidate always is */
    for (int i = 0; i < 40; i++)
        x[i] = -INFINITY;
    assert_int_equal(sample_one(x, NULL, 40, greedy, 0, NULL), -1);
    assert_int_equal(sample_one(x, NULL, 40, plain, 0, NULL), -1);
    x[21] = -1e30f;
    assert_int_equal(sample_one(x, NULL, 40, (struct sampling){3e38f, 0, 1, 0}, almost, &p), 21);
    assert_true(p == 1);
    assert_int_equal(sample_one(x, NULL, 40, (struct sampling){1e-30f, 9, .5f, .5f}, 0, NULL), 21);
    /* -0 and 0 are a tie */
    x[5] = -0.f, x[6] = 0.f, x[21] = 0.f;
    assert_int_equal(sample_one(x, NULL, 40, plain, 0, NULL), 5);
    assert_int_equal(sample_one(x, NULL, 40, greedy, 0, NULL), 5);
    assert_int_equal(sample_one(x, NULL, 40, plain, .5f, NULL), 6);
    /* one NaN or +inf anywhere, banned or not, spoils the row */
    for (int at = 0; at < 40; at += 13) {
        float bad[40];
        memset(mask, 0, sizeof mask);
        mask[at] = 1;
        for (int kind = 0; kind < 2; kind++) {
            memcpy(bad, x, sizeof x);
            bad[at] = kind ? INFINITY : NAN;
            assert_int_equal(sample_one(bad, NULL, 40, greedy, 0, NULL), -1);
            assert_int_equal(sample_one(bad, mask, 40, plain, .3f, NULL), -1);
        }
    }
}

/* A row's draw does not depend on its neighbours: a sick row spoils itself only. */
static void test_sample_rows_are_independent(void **state)
{
    (void)state;
    enum { ROWS = 9, N = 777 };
    float *x = rnd_floats(ROWS * N, 2), u[ROWS], all[2 * ROWS], one[2];
    for (int r = 0; r < ROWS; r++)
        u[r] = rnd_unit();
    x[4 * N + 100] = NAN;
    struct sample_case c = {ROWS, N, x, u, NULL, {.9f, 50, .95f, 0}};
    everywhere(run_sample, &c, all, 2 * ROWS);
    for (int r = 0; r < ROWS; r++) {
        one[0] = (float)sample_one(x + r * N, NULL, N, c.how, u[r], &one[1]);
        assert_true(one[0] == all[r] && one[1] == all[ROWS + r] && (one[0] < 0) == (r == 4));
    }
    free(x);
}

/* ---- all of them of the same rows ------------------------------------------------------------ */

enum { READ_K = 8, READ_ROWS = 60 };

struct read_case {
    int rows, n;
    const float *x, *u;
    const uint8_t *mask;
    struct sampling how;
    int32_t row[READ_ROWS], id[READ_ROWS]; /* a pair a row */
};

/* Both ways: ids and logp of the best, choices and chances, log probabilities of the pairs. */
static void run_read(const void *arg, float *out)
{
    const struct read_case *c = arg;
    size_t rows = (size_t)c->rows, most = rows * READ_K, n = 2 * most + 3 * rows;
    kbuf logits = floats(c->x, rows * (size_t)c->n), both = blank(2 * n);
    for (int way = 0; way < 2; way++) {
        size_t at = (size_t)way * n * 4;
        struct k_sample s = {.rows = c->rows, .n = c->n, .logits = logits, .how = c->how,
                             .u = floats(c->u, rows), .ids = kbuf_at(both, at, rows * 4),
                             .p = kbuf_at(both, at + rows * 4, rows * 4)};
        struct k_logp l = {c->rows, c->n, c->rows, logits, ints(c->row, rows), ints(c->id, rows),
                           kbuf_at(both, at + rows * 8, rows * 4)};
        struct k_topk k = {.rows = c->rows, .n = c->n, .k = READ_K, .logits = logits,
                           .ids = kbuf_at(both, at + rows * 12, most * 4),
                           .logp = kbuf_at(both, at + rows * 12 + most * 4, most * 4)};
        if (c->mask)
            s.mask = dev_buf(&T, c->mask, (size_t)c->n);
        if (way) {
            T.k->read(T.d, &(struct k_read){&s, &k, rows > 1 ? &l : NULL});
            continue;
        }
        T.k->sample(T.d, &s);
        T.k->topk(T.d, &k);
        if (rows > 1)
            T.k->logp(T.d, &l);
    }
    float *got = xcalloc(2 * n, sizeof *got);
    take(got, both, 2 * n);
    if (rows == 1)
        got[2] = got[n + 2] = 0; /* no pair */
    same_bits(got + n, got, n, "all of them at once");
    memcpy(out, got, n * sizeof *out);
    free(got);
}

/* Rows of every kind: any numbers, rising and falling ones, ties, rows whose best are banned, rows
 * without a candidate, and with what is not a number. */
static void draw_rows(struct read_case *c, float *x, uint8_t *mask)
{
    int n = c->n;
    for (int i = 0; i < n; i++)
        mask[i] = rnd_int(50) == 0;
    for (int r = 0; r < c->rows; r++) {
        float *row = x + (size_t)r * (size_t)n;
        int kind = c->rows == 1 ? rnd_int(9) : r % 9;
        for (int i = 0; i < n; i++) {
            float v = 4 * rnd_normal();
            row[i] = kind == 1 ? (float)i + v : kind == 2 ? (float)-i + v
                     : kind == 3 ? roundf(v) : kind == 4 ? 1 : kind == 5 ? -INFINITY : v;
            if (kind == 6 && mask[i])
                row[i] += 100;
        }
        if (kind == 7)
            row[rnd_int(n)] = rnd_int(2) ? NAN : INFINITY;
        if (kind == 5 && r % 2)
            row[n - 1] = 2;
        c->row[r] = rnd_int(c->rows), c->id[r] = rnd_int(n);
    }
}

static void check_best(const struct read_case *c, const float *out)
{
    int *order = xmalloc((size_t)c->n * sizeof *order);
    size_t rows = (size_t)c->rows;
    for (int r = 0; r < c->rows; r++) {
        const int32_t *id = (const int32_t *)out + 3 * rows + (size_t)r * READ_K;
        int m = ref_order(c->x + (size_t)r * (size_t)c->n, NULL, c->n, true, order);
        for (int i = 0; i < READ_K; i++)
            assert_int_equal(id[i], i < m ? order[i] : -1);
    }
    free(order);
}

static void test_read_is_all_of_them(void **state)
{
    (void)state;
    static const int sizes[][2] = {{1, 262}, {1, 30001}, {9, 4100}, {READ_ROWS, 40000},
                                   {18, 33001}};
    for (int t = 0; t < 10; t++) {
        struct read_case c = {.rows = sizes[t % 5][0], .n = sizes[t % 5][1]};
        size_t all = (size_t)c.rows * (size_t)c.n;
        float *x = rnd_floats(all, 1), u[READ_ROWS],
            *out = xcalloc((READ_K * 2 + 3) * READ_ROWS, 4);
        uint8_t *mask = xcalloc((size_t)c.n, 1);
        draw_rows(&c, x, mask);
        for (int r = 0; r < c.rows; r++)
            u[r] = rnd_unit();
        c.x = x, c.u = u, c.mask = t % 2 ? mask : NULL;
        if (t > 6)
            c.how = (struct sampling){.temperature = .8f, .top_k = t > 8 ? 20 : 0, .top_p = .95f};
        everywhere(run_read, &c, out, (size_t)(c.rows * (2 * READ_K + 3)));
        check_best(&c, out);
        free(x), free(mask), free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topk_is_a_sorted_head),
        cmocka_unit_test(test_rerank_orders_by_score),
        cmocka_unit_test(test_logp_is_log_softmax),
        cmocka_unit_test(test_adjust_changes_and_bans_single_logits),
        cmocka_unit_test(test_read_is_all_of_them),
        cmocka_unit_test(test_sample_inverts_the_filtered_distribution),
        cmocka_unit_test(test_sample_frequencies),
        cmocka_unit_test(test_greedy_over_a_long_row),
        cmocka_unit_test(test_sample_at_the_edges),
        cmocka_unit_test(test_sample_rows_are_independent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
