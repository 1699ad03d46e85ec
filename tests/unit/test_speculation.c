/* test_speculation.c - speculative decoding on the CPU yields what plain decoding yields, greedy
 * and sampled. */
#include "tests/few.h"
#include "tests/runtimes.h"

#include <math.h>

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"

/* ---- greedy speculation is plain decoding ---------------------------------------------------- */

static const struct tree_shape shapes[] = {{3, 1, 4}, {5, 4, 16}, {6, 8, 60}};
static const int page_sizes[] = {1, 4, 16};

struct parity {
    struct bed *b; /* one bed a page size */
    int runs, tokens;
};

/* Each prompt runs plain once and with every shape, each shape at another page size in turn;
 * usually every ninth prompt with one shape: nine of them have every pair of a shape and a page
 * size. */
static void parity_one(int i, const char *kind, const char *text, void *arg)
{
    struct parity *p = arg;
    struct ids prompt = {0};
    struct lane plain = {.tap_row = -1};
    (void)kind;
    if (i % rounds(9, 1) != 0)
        return;
    i /= rounds(9, 1);
    chat_prompt(&p->b[0], text, &prompt);
    ids_cat(&plain.tok, prompt.v, prompt.n);
    struct runtime *r = &p->b[i % 3].r;
    lane_prompt(r, &plain, 256, NULL);
    lane_run(r, &plain, 40, NULL);
    for (int k = 0; k < rounds(1, 3); k++) {
        int s = (i / 3 + k) % 3;
        struct runtime *q = &p->b[(i + k) % 3].r;
        struct lane l = {.tap_row = -1};
        ids_cat(&l.tok, prompt.v, prompt.n);
        lane_prompt(q, &l, i % 2 ? 256 : 17, &shapes[s]);
        lane_run(q, &l, 40, &shapes[s]);
        assert_int_equal(l.tok.n, plain.tok.n);
        assert_memory_equal(l.tok.v, plain.tok.v, (size_t)l.tok.n * sizeof *l.tok.v);
        assert_int_equal(l.seq.committed, plain.seq.committed);
        lane_free(q, &l);
        p->runs++;
        p->tokens += plain.tok.n - prompt.n;
    }
    lane_free(r, &plain);
    ids_free(&prompt);
}

static void test_greedy_speculation_equals_greedy_decoding(void **state)
{
    (void)state;
    struct bed b[3];
    for (int i = 0; i < 3; i++) {
        bed_models(&b[i], NESTLING, NESTLING_DRAFT);
        bed_chat(&b[i], NESTLING);
        bed_runtime(&b[i], &(struct runtime_shape){.page_size = page_sizes[i], .context = 4096});
        bed_stop(&b[i]);
    }
    struct parity p = {b, 0, 0};
    int n = each_prompt(parity_one, &p);
    assert_true(n >= 200);
    print_message("%d prompts, %d speculative runs, %d tokens equal\n", n, p.runs, p.tokens);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(b[i].r.pass.check.violations, 0);
        assert_true(b[i].r.pass.check.checks > (uint64_t)rounds(100, 1000));
        struct err e = {0};
        must(kv_check(&b[i].r.kv, NULL, 0, &e), &e); /* every page came back */
        bed_close(&b[i]);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* The tree that the drafter grows where the lane stands. */
static struct tree tree_of(struct runtime *r, struct lane *l, const struct tree_shape *s)
{
    struct err e = {0};
    struct tree t;
    tree_init(&t, l->tok.v[l->tok.n - 1]);
    struct drafting d = {&l->seq, &l->guess, l->slot - 1, s->steps, &t, l->tok.v, l->tok.n};
    assert_true(r->drafter->ops->ready(r->drafter, &d));
    pass_begin_step(&r->pass);
    must(drafter_grow(r->drafter, &r->pass, &d, 1, s, &e), &e);
    return t;
}

/* A DFlash draft's cells depend on the committed tokens only, a P-EAGLE head's on the pending one,
 * too, which is the same in greedy replies: a lane that went there in cycles of every kind, over
 * any pages, grows the tree that one pass over the whole text grows, bit for bit. */
static void blocks_of(const char *target, const char *draft)
{
    const bool greedy = strstr(draft, "peagle") != NULL;
    static const struct tree_shape block[] = {{5, 1, 6}, {16, 1, 17}, {4, 3, 14}, {1, 8, 9}};
    struct bed b[3];
    for (int i = 0; i < 3; i++) {
        bed_models(&b[i], target, draft);
        bed_runtime(&b[i], &(struct runtime_shape){.page_size = page_sizes[i], .context = 128});
    }
    for (int i = 0; i < rounds(greedy ? 6 : 12, 36); i++) {
        struct bed *x = &b[i % 3];
        const struct tree_shape *s = &block[i / 3 % 4];
        struct lane plain = {.tap_row = -1}, l = plain, once = plain;
        l.how = plain.how = i % 2 && !greedy ? (struct sampling){.temperature = 0.9f, .top_p = 1}
                                  : (struct sampling){0};
        l.seed = plain.seed = (uint64_t)i;
        for (int k = 0; k < 9 + i; k++)
            ids_add(&l.tok, (int32_t)(mix64((uint64_t)(i * 100 + k)) % 120));
        ids_cat(&plain.tok, l.tok.v, l.tok.n);
        lane_prompt(&x->r, &plain, 64, NULL);
        lane_run(&x->r, &plain, 50, NULL);
        lane_prompt(&x->r, &l, 1 + i % 7, s);
        lane_run(&x->r, &l, 20, s);
        lane_run(&x->r, &l, 9, &(struct tree_shape){0, 1, 1}); /* the drafter follows later */
        lane_run(&x->r, &l, 21, s);
        assert_int_equal(l.tok.n, plain.tok.n);
        assert_memory_equal(l.tok.v, plain.tok.v, (size_t)l.tok.n * sizeof *l.tok.v);
        struct runtime *r = &b[(i + 1) % 3].r;
        ids_cat(&once.tok, l.tok.v, l.tok.n - 1);
        lane_prompt(r, &once, 512, s);
        once.tok.v[once.tok.n - 1] = l.tok.v[l.tok.n - 1]; /* sampled in l */
        assert_int_equal(l.seq.drafted, once.seq.drafted);
        struct tree a = tree_of(&x->r, &l, s), c = tree_of(r, &once, s);
        assert_true(a.n > 1 && tree_digest(&a) == tree_digest(&c));
        assert_memory_equal(a.q, c.q, (size_t)a.n * sizeof *a.q);
        lane_free(&x->r, &plain);
        lane_free(&x->r, &l);
        lane_free(r, &once);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(b[i].r.pass.check.violations, 0);
        bed_close(&b[i]);
    }
}

static void test_blocks_do_not_depend_on_how_their_context_came(void **state)
{
    (void)state;
    blocks_of("tests/golden/qwen3-b", "tests/golden/dflash-b");
    blocks_of("tests/golden/gemma3-b", "tests/golden/dflash-swa-b");
    blocks_of("tests/golden/gemma3-b", "tests/golden/dspark-gated-b");
    blocks_of("tests/golden/qwen3-b", "tests/golden/dflash2-b");
    blocks_of("tests/golden/llama-b", "tests/golden/peagle-b");
    blocks_of("tests/golden/gemma3-b", "tests/golden/peagle-swa-b");
}

/* ---- sampling -------------------------------------------------------------------------------- */

static void sample_run(struct runtime *r, struct lane *prompt, uint64_t seed, int n,
                       const struct tree_shape *s, int32_t *out)
{
    struct lane l;
    lane_park(r, prompt);
    lane_fork(r, prompt, &l);
    l.seed = seed;
    l.tok.n--; /* draw the first token anew as well */
    /* the prompt's last token is pending again: run it without the reply's first token */
    int first = l.tok.n;
    lane_prompt(r, &l, 64, s);
    lane_run(r, &l, n - 1, s);
    for (int i = 0; i < n; i++)
        out[i] = l.tok.v[first + i];
    lane_free(r, &l);
}

/* A lane that holds all but the last prompt token, so that forks of it sample from the start. */
static void prepare_prompt(struct bed *b, struct lane *l, const struct tree_shape *s)
{
    struct err e = {0};
    static const int32_t tok[] = {5, 77, 130, 9, 401, 22, 22, 313, 48, 7, 256, 91, 100, 3, 88, 19};
    *l = (struct lane){.tap_row = -1};
    l->how = (struct sampling){.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.01f};
    ids_cat(&l->tok, tok, 16);
    must(lane_extend(&b->r, l, 15, false, s != NULL, s ? s->topk : 1, &e), &e);
    ids_add(&l->tok, 0); /* room that sample_run() takes away again */
}

static void test_sampled_speculation_draws_what_plain_sampling_draws(void **state)
{
    (void)state;
    struct bed b;
    struct lane l;
    bed_models(&b, "tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a");
    bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 256});
    for (int s = 0; s < 3; s++) {
        prepare_prompt(&b, &l, &shapes[s]);
        for (uint64_t seed = 0; seed < (uint64_t)rounds(8, 60); seed++) {
            int32_t plain[24], spec[24];
            sample_run(&b.r, &l, seed, 24, NULL, plain);
            sample_run(&b.r, &l, seed, 24, &shapes[s], spec);
            assert_memory_equal(plain, spec, sizeof plain);
        }
        lane_free(&b.r, &l);
    }
    bed_close(&b);
}

/* ---- a window of the draft ------------------------------------------------------------------- */

static int mask_window; /* of mask_rows() */

/* Keeps of one row's keys those that a mask of the window leaves: one key after the other, by its
 * position. A full pool lies below: the cache knows no window and releases nothing. */
static void mask_row(struct table *t, int r)
{
    int32_t *slot = t->expand + (size_t)r * (size_t)t->expand_w;
    int n = t->n_expand[r], query = t->hi[r] + n - 1, kept = 0, lo = t->hi[r];
    for (int at = t->hi[r] - 1; at >= t->lo[r]; at--)
        if (query - at < mask_window)
            lo = at;
    for (int i = 0; i < n; i++)
        if (query - (t->hi[r] + i) < mask_window)
            slot[kept++] = slot[i];
    t->lo[r] = lo;
    t->n_expand[r] = kept;
}

static void mask_rows(const struct bugs *on, struct plan *p, const struct kv *kv,
                      const struct plan_req *req)
{
    (void)on, (void)kv, (void)req;
    for (int i = TABLE_DRAFT; i < N_TABLES; i++)
        for (int r = 0; p->table[i].used && r < p->n_rows; r++)
            mask_row(&p->table[i], r);
}

/* A reply to a long prompt, and everything that was drafted on the way, as bytes. The most draft
 * pages that were held after a step. */
static int windowed_reply(struct runtime *r, int n, const struct tree_shape *s, struct ids *reply,
                          struct buf *drafts)
{
    struct lane l = {.tap_row = -1, .seed = 3}, *one = &l;
    struct err e = {0};
    int most = 0;
    for (int i = 0; i < n; i++)
        ids_add(&l.tok, (i * i + 7 * i + 1) % r->model->cfg.vocab);
    lane_prompt(r, &l, 37, s);
    while (l.tok.n < n + 40) {
        must(lane_step(r, &one, &(struct step_limits){n + 40 - l.tok.n}, 1, s, &e), &e);
        buf_add(drafts, l.tree.token, (size_t)l.tree.n * sizeof *l.tree.token);
        buf_add(drafts, l.tree.parent, (size_t)l.tree.n);
        buf_add(drafts, l.tree.q + 1, (size_t)max_int(0, l.tree.n - 1) * sizeof *l.tree.q);
        buf_add(drafts, l.guess.token, (size_t)l.guess.n * sizeof *l.guess.token);
        buf_add(drafts, l.guess.logp, (size_t)l.guess.n * sizeof *l.guess.logp);
        most = max_int(most, pool_used(&r->kv.pool[POOL_DRAFT]));
    }
    ids_cat(reply, l.tok.v + n, 40);
    lane_free(r, &l);
    return most;
}

/* draft.window N: the same drafts as a mask of N keys over a pool that keeps every page, stepped
 * and fused; the reply of plain decoding; and no more pages than the window needs. */
static void window_agrees(const char *target, const char *draft, int P, int window, int kind)
{
    static const struct tree_shape small = {4, 3, 12}, chain = {6, 1, 7};
    const struct tree_shape *s = kind & 1 ? &small : &chain;
    struct buf masked = {0}, got = {0};
    struct ids plain = {0}, spec = {0}, other = {0};
    struct bed b;
    bed_models(&b, target, draft);
    bed_runtime(&b, &(struct runtime_shape){.page_size = P, .context = 320});
    struct runtime *r = &b.r;
    struct buf none = {0};
    windowed_reply(r, 200, NULL, &plain, &none);
    mask_window = window;
    r->pass.opts.hook.built = mask_rows;
    r->pass.check.level = CHECK_OFF;
    int all = windowed_reply(r, 200, s, &other, &masked);
    r->pass.opts.hook.built = NULL;
    r->pass.check.level = CHECK_STRICT;
    r->kv.draft_window = window;
    r->fuse = kind & 2;
    int held = windowed_reply(r, 200, s, &spec, &got);
    assert_int_equal(got.n, masked.n);
    assert_memory_equal(got.p, masked.p, got.n);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(spec.v[i], plain.v[i]);
        assert_int_equal(other.v[i], plain.v[i]);
    }
    int scratch = div_up(s->steps * s->topk + s->steps + 1, P) + 2;
    assert_true(all >= div_up(200, P) && held <= div_up(window + 1, P) + scratch);
    assert_true((r->n_fused > 0) == (r->fuse != 0));
    assert_int_equal(r->pass.check.violations, 0);
    r->kv.draft_window = 0; /* the drafts above are those of the window, not of this draft anyway */
    got.n = 0;
    windowed_reply(r, 200, s, &spec, &got);
    bool wide = window > 200 || (!r->pass.opts.draft_full && window >= r->pass.opts.draft_window);
    assert_true(wide || got.n != masked.n || memcmp(got.p, masked.p, got.n) != 0);
    buf_free(&masked);
    buf_free(&got);
    buf_free(&none);
    ids_free(&plain);
    ids_free(&spec);
    ids_free(&other);
    bed_close(&b);
}

static void test_a_window_of_the_draft_is_a_mask_of_its_keys(void **state)
{
    (void)state;
    static const char *const pair[][2] = {
        {"tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a"},
        {"tests/golden/llama-b", "tests/golden/eagle3-nvidia-b"},
        {"tests/golden/qwen3-b", "tests/golden/eagle3-deep-b"},
    };
    static const int windows[] = {1, 3, 16, 50, 300}, pages[] = {1, 4, 16, 64};
    int n = 0;
    for (int k = 0; k < 3; k++)
        for (int w = 0; w < 5; w++)
            for (int kind = 0; kind < 4; kind++)
                if (rounds(0, 1) || (k + w + kind) % 4 == 0) {
                    window_agrees(pair[k][0], pair[k][1], pages[(w + kind + k) % 4], windows[w],
                                  kind);
                    n++;
                }
    print_message("%d windows\n", n);
}

/* Upper tail of chi-square by Wilson and Hilferty's cube-root approximation, as a z score. */
static double chi_square_z(double x, int df)
{
    double k = 2.0 / (9.0 * df);
    return (cbrt(x / df) - (1 - k)) / sqrt(k);
}

static void test_speculative_and_plain_samples_have_one_distribution(void **state)
{
    (void)state;
    enum { V = 512 };
    struct bed b;
    struct lane l;
    static double count[2][V];
    bed_models(&b, "tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a");
    bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 256});
    memset(count, 0, sizeof count);
    prepare_prompt(&b, &l, &shapes[1]);
    for (int i = 0; i < rounds(2000, 5000); i++) {
        int32_t t[3];
        sample_run(&b.r, &l, 10000 + (uint64_t)i, 3, NULL, t);
        count[0][t[2]]++;
        sample_run(&b.r, &l, 900000 + (uint64_t)i, 3, &shapes[1], t);
        count[1][t[2]]++;
    }
    double x = 0, rest[2] = {0, 0};
    int bins = 0;
    for (int v = 0; v < V; v++) {
        double a = count[0][v], c = count[1][v];
        if (a + c < 20) {
            rest[0] += a;
            rest[1] += c;
            continue;
        }
        x += (a - c) * (a - c) / (a + c);
        bins++;
    }
    if (rest[0] + rest[1] > 0) {
        x += (rest[0] - rest[1]) * (rest[0] - rest[1]) / (rest[0] + rest[1]);
        bins++;
    }
    double z = chi_square_z(x, bins - 1);
    print_message("chi-square %.1f over %d bins, z %.2f\n", x, bins, z);
    assert_true(bins > 20);
    assert_true(z < 4);
    lane_free(&b.r, &l);
    bed_close(&b);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_speculation_equals_greedy_decoding),
        cmocka_unit_test(test_blocks_do_not_depend_on_how_their_context_came),
        cmocka_unit_test(test_sampled_speculation_draws_what_plain_sampling_draws),
        cmocka_unit_test(test_a_window_of_the_draft_is_a_mask_of_its_keys),
        cmocka_unit_test(test_speculative_and_plain_samples_have_one_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
