/* bench_check.c - what the always-on checker costs: on the bundled model as a share of a step, and
 * on a cache of 10^5 pages by what a pass touches and by what the pool holds. */
#include "tests/runtimes.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the bundled model ----------------------------------------------------------------------- */

/* fuse: the cycle as one run, as a GPU has it: its plans are checked before and after. */
static void bundled(enum check_level level, const char *name, const struct tree_shape *shape,
                    bool fuse)
{
    enum { N = 120 };
    struct bed b;
    struct lane l = {.tap_row = -1}, *lp = &l;
    struct err e = {0};
    double share[N], us[N];
    bed_models(&b, "models/nestling/target", "models/nestling/draft");
    bed_chat(&b, "models/nestling/target");
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = 2048});
    chat_prompt(&b, "count to one hundred", &l.tok);
    b.r.pass.check.level = level;
    b.r.fuse = fuse;
    lane_prompt(&b.r, &l, 256, shape);
    for (int i = 0; i < N; i++) {
        uint64_t t = clock_ns(), c = b.r.pass.check.ns;
        must(lane_step(&b.r, &lp, &(struct step_limits){1000}, 1, shape, &e), &e);
        us[i] = (double)(b.r.pass.check.ns - c) * 1e-3;
        share[i] = us[i] * 1e3 / (double)(clock_ns() - t) * 100;
    }
    qsort(share, N, sizeof *share, by_value);
    qsort(us, N, sizeof *us, by_value);
    printf("%-34s %6.2f us a step   %5.2f %% of it  [%.2f, %.2f]\n", name, us[N / 2], share[N / 2],
           share[N / 10], share[N * 9 / 10]);
    lane_free(&b.r, &l);
    bed_close(&b);
}

/* ---- a cache without a model ----------------------------------------------------------------- */

static double check_us(int pages, int columns, enum check_level level)
{
    enum { P = 16, RUNS = 31, CHUNK = 1 << 14 };
    struct kv kv;
    struct seq s = {0};
    struct plan p = {0};
    struct checker c = {.level = level};
    struct err e = {0};
    const struct plan_opts o = {0};
    static int32_t tok[CHUNK];
    double us[RUNS];
    kv_init(&kv, &(struct kv_shape){.page_size = P, .window = 64, .full_pages = pages,
                                    .swa_pages = CHUNK / P + 64});
    while (s.committed < columns * P - 1) {
        int n = min_int(CHUNK, columns * P - 1 - s.committed);
        must(kv_reserve(&kv, &s, s.committed + n, &e), &e);
        struct plan_req req = {.seq = &s, .n = n, .token = tok};
        plan_build(&p, &kv, PLAN_EXTEND, &req, 1, &o);
        plan_mark(&p, &kv, &req);
        kv_commit(&kv, &s, s.committed + n);
        kv_release_window(&kv, &s);
    }
    must(kv_reserve(&kv, &s, s.committed + 1, &e), &e);
    struct plan_req req = {.seq = &s, .n = 1, .token = tok};
    plan_build(&p, &kv, PLAN_DECODE, &req, 1, &o);
    for (int i = 0; i < RUNS; i++) {
        uint64_t t = clock_ns();
        must(check_plan(&c, &p, &kv, &req, &e), &e);
        us[i] = (double)(clock_ns() - t) * 1e-3;
    }
    qsort(us, RUNS, sizeof *us, by_value);
    kv_drop(&kv, &s);
    kv_free(&kv);
    plan_free(&p);
    return us[RUNS / 2];
}

int main(void)
{
    const struct tree_shape tree = {5, 4, 16}, wide = {5, 8, 60};
    printf("bundled model, page size 16; medians [10 %%, 90 %%] of 120 steps\n");
    bundled(CHECK_ON, "  plain, on", NULL, false);
    bundled(CHECK_ON, "  tree 5-4-16 (all its passes), on", &tree, false);
    bundled(CHECK_STRICT, "  plain, strict", NULL, false);
    bundled(CHECK_ON, "  plain, fused, on", NULL, true);
    bundled(CHECK_ON, "  tree 5-4-16, fused, on", &tree, true);
    bundled(CHECK_ON, "  tree 5-8-60, fused, on", &wide, true);
    printf("one decode row over a cache of 100000 pages of 16 tokens, by pages touched\n");
    static const int touched[] = {100, 1000, 10000, 99000};
    for (int i = 0; i < 4; i++)
        printf("  %6d pages touched   on %8.2f us   strict %10.2f us\n", touched[i],
               check_us(100000, touched[i], CHECK_ON), check_us(100000, touched[i], CHECK_STRICT));
    printf("the same over 1000 pages, by pages in the pool\n");
    for (int pages = 2000; pages <= 200000; pages *= 10)
        printf("  %6d pages in the pool   on %8.2f us\n", pages, check_us(pages, 1000, CHECK_ON));
    return 0;
}
