/* test_probe.c - taps in the target's pass: a probed pass computes the same bits, what it keeps is
 * what the layers computed, and attention summed up on the host is the attention of the device. On
 * the CPU and, where there is one, on a GPU. */
#include "tests/chance.h"
#include "tests/few.h"
#include "tests/runtimes.h"

#include "engine/run/probe_pass.h"

#include <math.h>

static const struct golden {
    const char *target, *draft;
} goldens[] = {
    {"models/nestling/target", "models/nestling/draft"},
    {"tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a"}, /* sinks, experts */
    {"tests/golden/gptoss-mxfp4-b", NULL},
    {"tests/golden/gemma2-c", NULL},      /* caps that bite, a window of one */
    {"tests/golden/gemma4-moe-b", "tests/golden/assistant-moe-b"}, /* K as V, head dims by layer */
    {"tests/golden/gemma4-ple-b", NULL},  /* shared K and V, per-layer embeddings */
    {"tests/golden/olmo3-b", NULL},
    {"tests/golden/qwen3-b", NULL},       /* no window */
};
enum { N_GOLDEN = sizeof goldens / sizeof *goldens, PROMPT = 90, CYCLES = 8 };
static const struct tree_shape shape = {3, 2, 8};

static bool open_bed(struct bed *b, const struct golden *g, const char *device,
                     const char *precision, int page_size)
{
    if (!bed_device(b, device, precision))
        return false;
    bed_load(b, g->target, g->draft);
    bed_runtime(b,
                &(struct runtime_shape){.page_size = page_size, .context = 256, .kv = b->dev.kv});
    return true;
}

static void begin(struct bed *b, struct lane *l)
{
    *l = (struct lane){.tap_row = -1};
    dice = 5;
    for (int i = 0; i < PROMPT; i++)
        ids_add(&l->tok, below(b->m.cfg.vocab));
}

/* ---- what a probe says ----------------------------------------------------------------------- */

/* The largest difference that attention summed in another order may show, relative to its largest
 * output: float32 sums over at most 100 keys; on a GPU queries and weights are rounded to bf16, or
 * (in "f32") to 16 bits, the sum of two bf16 numbers. */
static double tolerance(const struct bed *b)
{
    return b->dev.kv == KV_BF16 ? 4e-2 : b->dev.k->queued ? 2e-4 : 5e-6;
}

/* The same of the sums of weights of attention, which are 1 in all. */
static double share_tolerance(const struct bed *b)
{
    return b->dev.k->queued ? 1e-5 : 1e-6;
}

static void check_shares(const struct bed *b, const struct probe *p, int l)
{
    const struct probe_layer *w = &p->layer[l];
    assert_non_null(w->share);
    for (int h = 0; h < w->n_head; h++) {
        const struct attn_share *s = &w->share[h];
        float sum = s->sink + s->within + s->beyond + s->tree;
        assert_true(fabs((double)sum - 1) < share_tolerance(b));
        assert_true(s->sink >= 0 && s->within >= 0 && s->beyond >= 0 && s->tree >= 0);
        assert_true((s->sink > 0) == (b->m.layer[l].sinks.data != NULL));
        assert_true(s->tree > 0); /* a row sees itself */
        if (w->window)
            assert_true(s->beyond <= 0);
        assert_true(s->first <= s->within + s->beyond + s->tree + 1e-6f);
    }
}

/* The keys listed are those of the layer's window, and their weights add up to the shares. */
static void check_keys(const struct bed *b, const struct probe *p)
{
    const struct probe_layer *w = &p->layer[p->key_layer];
    int q = p->pos[p->share_row - p->row0], from = window_first(q, w->window);
    assert_int_equal(p->n_key, q - from + 1);
    for (int i = 0; i < p->n_key; i++)
        assert_int_equal(p->key_pos[i], from + i);
    for (int h = 0; h < w->n_head; h++) {
        double within = 0, beyond = 0, tree = 0;
        for (int i = 0; i < p->n_key; i++) {
            double x = (double)p->key_p[h * p->n_key + i];
            bool seen = p->key_pos[i] >= window_first(q, p->window);
            *(p->key_pos[i] >= p->pos0 ? &tree : seen ? &within : &beyond) += x;
        }
        assert_true(fabs(within - (double)w->share[h].within) < share_tolerance(b));
        assert_true(fabs(beyond - (double)w->share[h].beyond) < share_tolerance(b));
        assert_true(fabs(tree - (double)w->share[h].tree) < share_tolerance(b));
    }
    if (!((double)p->key_error < tolerance(b)))
        fail_msg("layer %d: sum p v is off by %g of the largest output", p->key_layer,
                 (double)p->key_error);
}

/* A layer's residual stream goes on in the next one, where nothing else is added at its end. */
static void check_chain(const struct bed *b, const struct probe *p)
{
    bool same = b->m.cfg.ple == 0;
    for (int l = 0; l < p->n_layer; l++) {
        for (int i = 0; i < N_PROBE_POINTS; i++) {
            bool cells = i == PROBE_K || i == PROBE_V;
            assert_true((p->layer[l].tap[i] != NULL) == (!cells || b->m.layer[l].kv_src == l));
        }
        assert_true((p->layer[l].expert != NULL) == b->m.layer[l].is_moe);
        for (int i = 0; p->layer[l].expert && i < p->n_row * p->top_k; i++)
            assert_true(p->layer[l].expert[i] >= 0 && p->layer[l].expert[i] < b->m.cfg.n_expert);
        if (same && !b->m.layer[l].layer_scalar.data)
            assert_memory_equal(p->layer[l].tap[PROBE_OUT], p->layer[l + 1].tap[PROBE_IN],
                                (size_t)(p->n_row * p->hidden) * sizeof(float));
    }
}

/* The captures that an EAGLE3 head reads are the boundaries that the probe kept. */
static void check_captures(struct bed *b, const struct probe *p)
{
    const struct taps *t = b->r.drafter ? drafter_taps(b->r.drafter) : NULL;
    float *row = t ? xmalloc((size_t)t->stride * sizeof *row) : NULL;
    for (int r = p->row0; t && r < p->row0 + p->n_row; r++) {
        head_get_tap(b->r.drafter->head, r, row);
        for (int i = 0; i < t->n; i++)
            assert_memory_equal(row + i * p->hidden, probe_row(p, t->boundary[i], PROBE_IN, r),
                                (size_t)p->hidden * sizeof *row);
    }
    free(row);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void note(struct buf *out, const struct lane *l)
{
    buf_printf(out, "%d rows at %d: %d accepted, bonus %d, pages %016llx, tree %016llx, logits "
               "%016llx\n", l->rec.rows, l->rec.pos0, l->rec.accepted, l->rec.bonus,
               (unsigned long long)l->rec.page_digest, (unsigned long long)l->rec.draft_digest,
               (unsigned long long)l->rec.logit_digest);
}

/* One step, with taps or without: a prompt chunk, or a cycle. */
static void step(struct bed *b, struct lane *l, bool probed, int n, struct buf *out)
{
    struct err e = {0};
    struct probe_pass x = {0};
    bool prompt = l->seq.committed < PROMPT;
    if (probed) {
        must(probe_open(&x, &b->r.net, &e), &e);
        x.out = xcalloc(1, sizeof *x.out);
        x.key_layer = n % b->m.cfg.n_layer;
        b->r.net.probe = &x;
    }
    if (prompt) {
        int upto = min_int(PROMPT, l->seq.committed + 31);
        must(lane_extend(&b->r, l, upto, upto == PROMPT, b->has_draft, shape.topk, &e), &e);
    } else {
        struct step_limits lim = {100};
        must(lane_step(&b->r, &l, &lim, 1, b->has_draft ? &shape : NULL, &e), &e);
    }
    b->r.net.probe = NULL;
    if (probed) {
        assert_int_equal(x.out->n_rows, l->rec.rows);
        check_chain(b, x.out);
        for (int i = 0; i < x.out->n_layer; i++)
            check_shares(b, x.out, i);
        check_keys(b, x.out);
        if (l->rec.kind == STEP_DECODE && l->how.temperature <= 0)
            assert_int_equal(x.out->best[0][0], l->rec.bonus);
        if (prompt)
            check_captures(b, x.out);
        probe_free(x.out);
        probe_close(&x, &b->r.net);
    }
    note(out, l);
}

/* which: no step is probed, all are, or every other one. */
static struct buf run(const struct golden *g, const char *device, const char *precision, int P,
                      int which)
{
    struct bed b;
    struct buf out = {0};
    struct lane l;
    if (!open_bed(&b, g, device, precision, P))
        skip();
    begin(&b, &l);
    b.r.fuse = false; /* fused cycles have other plans: their page digests differ */
    for (int i = 0; i < CYCLES + 3; i++)
        step(&b, &l, which == 1 || (which == 2 && i % 2), i, &out);
    for (int i = PROMPT; i < l.tok.n; i++)
        buf_printf(&out, "%d ", l.tok.v[i]);
    lane_free(&b.r, &l);
    bed_close(&b);
    buf_char(&out, '\0');
    return out;
}

static void same_bits(const char *device, const char *precision)
{
    static const int page_size[] = {1, 4, 16};
    for (int i = 0; i < N_GOLDEN; i++) {
        struct buf want = run(&goldens[i], device, precision, page_size[i % 3], 0);
        for (int which = 1; which < 3; which += one_in(2)) {
            struct buf got = run(&goldens[i], device, precision, page_size[i % 3], which);
            assert_string_equal(want.p, got.p);
            buf_free(&got);
        }
        buf_free(&want);
    }
}

static void test_a_probed_step_has_the_bits_of_others(void **state)
{
    (void)state;
    same_bits("cpu", NULL);
}

static void test_the_same_on_a_gpu_in_float32(void **state)
{
    (void)state;
    same_bits("cuda", "f32");
}

static void test_the_same_on_a_gpu_in_bf16(void **state)
{
    (void)state;
    same_bits("cuda", "bf16");
}

/* Of a chunk of more rows than a probe keeps, the last ones are kept, or those from a row on. */
static void test_rows_kept_of_a_long_chunk(void **state)
{
    (void)state;
    for (int row = -1; row < PROMPT; row += 30) {
        struct bed b;
        struct lane l;
        struct err e = {0};
        struct probe_pass x;
        assert_true(open_bed(&b, &goldens[1], "cpu", NULL, 4));
        begin(&b, &l);
        must(probe_open(&x, &b.r.net, &e), &e);
        x.out = xcalloc(1, sizeof *x.out);
        x.row = row;
        b.r.net.probe = &x;
        must(lane_extend(&b.r, &l, PROMPT, true, true, 2, &e), &e);
        b.r.net.probe = NULL;
        const struct probe *p = x.out;
        assert_true(p->n_rows == PROMPT && p->n_row == PROBE_ROWS);
        assert_int_equal(p->share_row, row < 0 ? PROMPT - 1 : row);
        assert_true(p->share_row >= p->row0 && p->share_row < p->row0 + p->n_row);
        for (int i = 0; i < p->n_row; i++) {
            assert_int_equal(p->pos[i], p->row0 + i);
            assert_int_equal(p->token[i], l.tok.v[p->row0 + i]);
        }
        check_captures(&b, p);
        probe_free(x.out);
        probe_close(&x, &b.r.net);
        lane_free(&b.r, &l);
        bed_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_probed_step_has_the_bits_of_others),
        cmocka_unit_test(test_the_same_on_a_gpu_in_float32),
        cmocka_unit_test(test_the_same_on_a_gpu_in_bf16),
        cmocka_unit_test(test_rows_kept_of_a_long_chunk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
