/* test_golden.c - what `aerie golden` makes of bf16, on the CPU.
 *
 * The CPU's table under another name computes in float32 over bf16 cells, which is bf16 to
 * golden_run(): the tolerance is 2e-2, and runs with noise tell where roundings carry further.
 */
#include "tests/ckpt.h"

#include "engine/tools/golden.h"
#include "engine/tools/golden_noise.h"
#include "engine/tools/golden_report.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define G "tests/golden/"

static struct kernels table; /* the CPU's, perhaps with a fault */

static bool in_bf16(const char *dir, const char *draft, struct buf *report)
{
    struct err e = {0};
    struct golden_opts o = {.dir = dir, .draft = draft, .threads = 2, .precision = "bf16",
                            .backend = &table};
    bool ok = golden_run(&o, report, &e);
    if (!ok && e.kind != ERR_NEGATIVE)
        fail_msg("%s", e.msg);
    return ok;
}

static void must_say(const char *dir, const char *draft, bool ok, bool near)
{
    struct buf report = {0};
    if (in_bf16(dir, draft, &report) != ok || (strstr(report.p, "\nnear") != NULL) != near)
        fail_msg("%s: expected %s%s\n%s", dir, ok ? "success" : "failure", near ? ", near" : "",
                 report.p);
    buf_free(&report);
}

static void test_what_cells_of_bf16_leave_within_tolerance_is_ok(void **state)
{
    (void)state;
    table = kernels_cpu;
    must_say(G "gemma3-a", NULL, true, false);
    must_say(G "llama-b", NULL, true, false);
}

static void test_what_roundings_carry_beyond_it_is_near(void **state)
{
    (void)state;
    table = kernels_cpu;
    must_say(G "gemma4-a", G "gemma4-a-assistant", true, true);
    must_say(G "gptoss-a", G "eagle3-gptoss-a", true, true);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void steep_attn(struct kdev *d, const struct k_attn *a)
{
    struct k_attn b = *a;
    b.scale *= 1.2f;
    kernels_cpu.attn(d, &b);
}

static void wide_rope(struct kdev *d, const struct k_gather *a)
{
    struct k_gather b = *a;
    struct k_rope rope[K_MAX_ROPES];
    for (int i = 0; i < K_MAX_ROPES && a->rope[i]; i++) {
        rope[i] = *a->rope[i];
        rope[i].factor *= 1.1f;
        b.rope[i] = &rope[i];
    }
    kernels_cpu.gather(d, &b);
}

static void narrow_moe(struct kdev *d, const struct k_moe *a)
{
    struct k_moe b = *a;
    b.top_k = 1;
    b.chosen = (kbuf){0};
    kernels_cpu.moe(d, &b);
}

static void loud_linear(struct kdev *d, const struct k_linear *a)
{
    struct k_linear b = *a;
    b.scale *= 1.05f;
    kernels_cpu.linear(d, &b);
}

static void test_a_fault_is_no_rounding(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        void (*attn)(struct kdev *d, const struct k_attn *a);
        void (*gather)(struct kdev *d, const struct k_gather *a);
        void (*moe)(struct kdev *d, const struct k_moe *a);
        void (*linear)(struct kdev *d, const struct k_linear *a);
    } faults[] = {
        {G "gemma3-a", .attn = steep_attn}, {G "gemma3-a", .linear = loud_linear},
        {G "gemma4-a", .attn = steep_attn}, {G "gemma4-a", .gather = wide_rope},
        {G "gemma4-moe-b", .gather = wide_rope}, {G "gemma4-moe-b", .moe = narrow_moe},
        {G "gptoss-a", .attn = steep_attn}, {G "gptoss-a", .linear = loud_linear},
        {G "gptoss-a", .moe = narrow_moe}, {G "gptoss-mxfp4-b", .gather = wide_rope},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct buf report = {0};
        table = kernels_cpu;
        table.attn = faults[i].attn ? faults[i].attn : table.attn;
        table.gather = faults[i].gather ? faults[i].gather : table.gather;
        table.moe = faults[i].moe ? faults[i].moe : table.moe;
        table.linear = faults[i].linear ? faults[i].linear : table.linear;
        if (in_bf16(faults[i].dir, NULL, &report))
            fail_msg("fault %zu passes for %s\n%s", i, faults[i].dir, report.p);
        buf_free(&report);
    }
}

/* ---- the noise itself ------------------------------------------------------------------------ */

enum { WIDE = 64 };

/* The same seed gives the same bits, another one others; no element moves by more than three
 * roundings to bf16, and the input stays as it is. The product is with the identity. */
static void test_noise_follows_from_its_seed(void **state)
{
    (void)state;
    struct err e = {0};
    struct kdev *d = kernels_cpu.open(&(struct k_opts){.threads = 1}, &e);
    static float w[WIDE][WIDE];
    float x[WIDE], y[3][WIDE], after[WIDE];
    struct tensor wt = {.data = w, .type = DT_F32, .n_dim = 2, .dim = {WIDE, WIDE},
                        .bytes = sizeof w, .name = "w"};
    kbuf src = kernels_cpu.alloc(d, sizeof x, "x", &e);
    kbuf dst = kernels_cpu.alloc(d, sizeof x, "y", &e);
    struct k_linear a = {.rows = 1, .src = src, .w = &wt, .scale = 1, .dst = dst};
    for (int i = 0; i < WIDE; i++) {
        w[i][i] = 1;
        x[i] = 1 + (float)i / 8;
    }
    kernels_cpu.put(d, src, x, sizeof x);
    for (int i = 0; i < 3; i++) {
        noise_table(&kernels_cpu, i == 2 ? 6 : 5)->linear(d, &a);
        kernels_cpu.get(d, y[i], dst, sizeof x);
    }
    kernels_cpu.get(d, after, src, sizeof x);
    assert_memory_equal(after, x, sizeof x);
    assert_memory_equal(y[0], y[1], sizeof x);
    assert_memory_not_equal(y[0], y[2], sizeof x);
    for (int i = 0; i < WIDE; i++)
        assert_true(fabsf(y[0][i] - x[i]) <= 3 * 0x1p-9f * x[i] * 1.0001f);
    kernels_cpu.release(d, src);
    kernels_cpu.release(d, dst);
    kernels_cpu.close(d);
}

static void test_limits_keep_the_furthest_and_forget_what_was_off_without_noise(void **state)
{
    (void)state;
    static struct limits l, quiet;
    limits_error(&l, "logits", (struct error){1, 0.25, 0.125});
    limits_error(&l, "logits", (struct error){2, 0.125, 0.25});
    limits_error(&l, "logits", (struct error){NAN, NAN, NAN});
    limits_same(&l, "greedy", 7, 16);
    limits_same(&l, "greedy", 16, 16);
    limits_same(&l, "greedy", 9, 16);
    const struct limit *m = limits_find(&l, "logits");
    assert_true(m->worst.max_abs == 2 && m->worst.rel == 0.25 && m->worst.row == 0.25);
    assert_int_equal(limits_find(&l, "greedy")->same, 7);
    assert_null(limits_find(&l, "states"));

    limits_error(&quiet, "logits", (struct error){1, 5e-4, 0});
    limits_same(&quiet, "greedy", 16, 16);
    limits_void(&l, &quiet, 1e-3);
    assert_true(limits_find(&l, "logits")->worst.rel == 0.25);
    assert_int_equal(limits_find(&l, "greedy")->same, 7);
    limits_error(&quiet, "logits", (struct error){1, 5e-3, 0});
    limits_same(&quiet, "greedy", 12, 16);
    limits_void(&l, &quiet, 1e-3);
    assert_true(limits_find(&l, "logits")->worst.rel == 0);
    assert_int_equal(limits_find(&l, "greedy")->same, INT_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_cells_of_bf16_leave_within_tolerance_is_ok),
        cmocka_unit_test(test_what_roundings_carry_beyond_it_is_near),
        cmocka_unit_test(test_a_fault_is_no_rounding),
        cmocka_unit_test(test_noise_follows_from_its_seed),
        cmocka_unit_test(test_limits_keep_the_furthest_and_forget_what_was_off_without_noise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
