/* test_golden.c - how `aerie golden` judges rounding errors, at each precision, on the CPU.
 *
 * A table of kernels that is given to golden_run() is a device to it, whatever computes: it is
 * judged by the tolerance of its precision, and where that does not hold, by how far runs with
 * noise of that precision's size come. In bf16 the CPU's kernels compute in float32 over bf16
 * cells; in float32 a table with noise of its own stands for a device whose sums run in another
 * order. */
#include "tests/ckpt.h"
#include "tests/few.h"
#include "tests/runtimes.h"

#include "engine/tools/golden.h"
#include "engine/tools/golden_report.h"
#include "engine/tools/noise_backend.h"

/* A second table with noise of its own, for a device that is judged by the first. */
#define noise_table device_table
#define noise_backend device_backend
#include "engine/tools/noise_backend.c"
#undef noise_table
#undef noise_backend

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define G "tests/golden/"

static struct kernels table; /* the CPU's, perhaps with a fault */

static bool judged(const char *dir, const char *draft, const char *precision, struct buf *report)
{
    struct err e = {0};
    struct golden_opts o = {
        .engine = {.model = dir, .draft = draft, .threads = 1, .precision = precision,
                   .backend = &table}};
    bool ok = golden_run(&o, report, &e);
    if (!ok && e.kind != ERR_NEGATIVE)
        fail_msg("%s", e.msg);
    return ok;
}

static void must_say(const char *dir, const char *draft, const char *precision, bool ok, bool near)
{
    struct buf report = {0};
    if (judged(dir, draft, precision, &report) != ok ||
        (strstr(report.p, "\nnear") != NULL) != near)
        fail_msg("%s in %s: expected %s%s\n%s", dir, precision, ok ? "success" : "failure",
                 near ? ", near" : "", report.p);
    buf_free(&report);
}

static void test_what_cells_of_bf16_leave_within_tolerance_is_ok(void **state)
{
    (void)state;
    table = kernels_cpu;
    must_say(G "gemma3-a", NULL, "bf16", true, false);
    must_say(G "llama-b", NULL, "bf16", true, false);
}

static void test_what_roundings_carry_beyond_it_is_near(void **state)
{
    (void)state;
    table = kernels_cpu;
    if (rounds(0, 1))
        must_say(G "gemma4-a", G "gemma4-a-assistant", "bf16", true, true);
    must_say(G "gptoss-a", G "eagle3-gptoss-a", "bf16", true, true);
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

/* Every fault, usually every third one from `first` on: each kind at one of the precisions. */
static void fail_at(const char *precision, size_t first)
{
    static const struct {
        const char *dir;
        void (*attn)(struct kdev *d, const struct k_attn *a);
        void (*gather)(struct kdev *d, const struct k_gather *a);
        void (*moe)(struct kdev *d, const struct k_moe *a);
        void (*linear)(struct kdev *d, const struct k_linear *a);
    } faults[] = {
        {G "gemma3-a", .attn = steep_attn}, {G "gemma3-a", .linear = loud_linear},
        {G "gemma4-a", .attn = steep_attn}, {G "gemma4-a", .gather = wide_rope},
        {G "gemma4-moe-b", .moe = narrow_moe}, {G "gemma4-moe-b", .gather = wide_rope},
        {G "gptoss-a", .attn = steep_attn}, {G "gptoss-a", .linear = loud_linear},
        {G "gptoss-a", .moe = narrow_moe}, {G "gptoss-mxfp4-b", .gather = wide_rope},
    };
    for (size_t i = first * (size_t)rounds(1, 0); i < sizeof faults / sizeof *faults;
         i += (size_t)rounds(3, 1)) {
        struct buf report = {0};
        table = kernels_cpu;
        table.attn = faults[i].attn ? faults[i].attn : table.attn;
        table.gather = faults[i].gather ? faults[i].gather : table.gather;
        table.moe = faults[i].moe ? faults[i].moe : table.moe;
        table.linear = faults[i].linear ? faults[i].linear : table.linear;
        if (judged(faults[i].dir, NULL, precision, &report))
            fail_msg("fault %zu passes for %s in %s\n%s", i, faults[i].dir, precision, report.p);
        buf_free(&report);
    }
}

static void test_a_fault_is_no_rounding_of_bf16(void **state)
{
    (void)state, fail_at("bf16", 0);
}
static void test_a_fault_is_no_rounding_of_float32(void **state)
{
    (void)state, fail_at("f32", 1);
}

/* A window one key short, which no table of kernels can have: the config says it. */
static void test_a_wrong_window_is_no_rounding(void **state)
{
    (void)state;
    static const char from[] = G "gemma3-a";
    char *dir = scratch_folder();
    struct ck ck = ck_load(from, "model.safetensors");
    struct buf golden = ck_read(from, "golden.safetensors");
    ck_set(&ck, "sliding_window",
           json_integer(json_integer_value(json_object_get(ck.config, "sliding_window")) - 1));
    ck_save_config(&ck, dir);
    ck_save(&ck, dir, 1);
    ck_write(dir, "golden.safetensors", golden.p, golden.n);
    table = kernels_cpu;
    must_say(dir, NULL, "bf16", false, false);
    must_say(dir, NULL, "f32", false, false);
    buf_free(&golden);
    ck_free(&ck);
    scratch_remove(dir);
}

/* ---- float32 where noise is magnified -------------------------------------------------------- */

static const char steep[] = G "gemma4-a";
enum { STEEP = 5, LOUD = 3 }; /* q norms and norms behind attention, times 2 to the power */

/* A row per position: logits (V), or the states that enter a layer or leave the last norm (H). */
static void reference_rows(struct bed *b, const struct ids *ids, int boundary, float *out)
{
    const struct config *c = &b->m.cfg;
    struct runtime *r = &b->r;
    struct lane l = {.tap_row = -1};
    struct err e = {0};
    int L = ids->n, H = c->hidden;
    size_t n = (size_t)L * (size_t)H * 4;
    ids_cat(&l.tok, ids->v, L);
    kbuf dst = b->dev.k->alloc(b->dev.d, n, "states", &e);
    struct plan_req req = {.seq = &l.seq, .n = L, .token = l.tok.v};
    struct taps taps = {.n = 1, .dst = dst, .stride = H, .boundary = {boundary}};
    bool inner = boundary >= 0 && boundary < c->n_layer;
    must(kv_reserve(&r->kv, &l.seq, L, &e) && pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, &e), &e);
    net_forward(&r->net, &r->pass.plan[PLAN_EXTEND], &r->pass.kp, inner ? &taps : NULL);
    if (boundary == c->n_layer)
        b->dev.k->normalize(b->dev.d, &(struct k_normalize){.rows = L,
                                                            .n = H,
                                                            .src_stride = H,
                                                            .dst_stride = H,
                                                            .src = r->net.x,
                                                            .dst = dst,
                                                            .norm = {c->norm, &b->m.norm, c->eps},
                                                            .scale = 1});
    if (boundary >= 0)
        b->dev.k->get(b->dev.d, out, dst, n);
    for (int i = 0; boundary < 0 && i < L; i++) {
        b->dev.k->put(b->dev.d, r->row, &(int32_t){i}, 4);
        net_logits(&r->net, 1, r->row, r->logits);
        b->dev.k->get(b->dev.d, out + (size_t)i * (size_t)c->vocab, r->logits,
                      (size_t)c->vocab * 4);
    }
    b->dev.k->release(b->dev.d, dst);
    lane_free(r, &l);
}

static void put_floats(struct ck *ck, const char *name, json_t *shape, const float *v, size_t n)
{
    ck_drop(ck, name);
    ck_add(ck, name, "F32", shape, v, n * 4);
}

/* The reference of the checkpoint in dir: what the CPU computes in float32. */
static void write_reference(const char *dir)
{
    struct ck ck = ck_load(steep, "golden.safetensors");
    struct bed b;
    struct ids ids = {0};
    struct lane l = {.tap_row = -1};
    const struct ck_tensor *in = ck_find(&ck, "input_ids"), *g = ck_find(&ck, "greedy_ids");
    ids_cat(&ids, (const int32_t *)(const void *)in->data, (int)in->n / 4);
    bed_models(&b, dir, NULL);
    int L = ids.n, N = (int)g->n / 4, V = b.m.cfg.vocab, H = b.m.cfg.hidden,
        n = b.m.cfg.n_layer + 1;
    bed_runtime(&b,
                &(struct runtime_shape){.page_size = 16, .context = L + N + 8, .max_rows = L + 8});
    float *logits = xmalloc((size_t)L * (size_t)V * 4);
    float *states = xmalloc((size_t)n * (size_t)L * (size_t)H * 4);
    float *margin = xcalloc((size_t)N, 4);
    reference_rows(&b, &ids, -1, logits);
    for (int i = 0; i < n; i++)
        reference_rows(&b, &ids, i, states + (size_t)i * (size_t)L * (size_t)H);
    put_floats(&ck, "logits", json_pack("[ii]", L, V), logits, (size_t)L * (size_t)V);
    put_floats(&ck, "hidden_states", json_pack("[iii]", n, L, H), states,
               (size_t)n * (size_t)L * (size_t)H);
    put_floats(&ck, "greedy_margin", json_pack("[i]", N), margin, (size_t)N);
    ids_cat(&l.tok, ids.v, L);
    lane_prompt(&b.r, &l, L, NULL);
    lane_run(&b.r, &l, N, NULL);
    ck_drop(&ck, "greedy_ids");
    ck_add(&ck, "greedy_ids", "I32", json_pack("[i]", N), l.tok.v + L, (size_t)N * 4);
    json_decref(ck.config);
    ck.config = NULL;
    ck_save_file(&ck, dir, "golden.safetensors", 0, ck.n);
    lane_free(&b.r, &l);
    bed_close(&b);
    ck_free(&ck);
    ids_free(&ids);
    free(logits);
    free(states);
    free(margin);
}

/* A checkpoint whose attention is so steep and so loud that roundings choose other keys: a noise of
 * 1e-6 moves its logits by 0.1. */
static char *steep_folder(void)
{
    char *dir = scratch_folder();
    struct ck ck = ck_load(steep, "model.safetensors");
    for (int i = 0; i < ck.n; i++)
        if (strstr(ck.t[i].name, "q_norm") || strstr(ck.t[i].name, "post_attention_layernorm"))
            for (size_t k = 0; k < ck.t[i].n; k += 2) {
                uint16_t *w = (uint16_t *)(void *)(ck.t[i].data + k);
                bool q = strstr(ck.t[i].name, "q_norm") != NULL;
                *w = (uint16_t)(*w + ((q ? STEEP : LOUD) << 7)); /* the exponent of bf16 */
            }
    ck_save_config(&ck, dir);
    ck_save(&ck, dir, 1);
    ck_free(&ck);
    write_reference(dir);
    return dir;
}

static void test_float32_is_judged_by_noise_where_it_is_magnified(void **state)
{
    (void)state;
    char *dir = steep_folder();
    struct err e = {0};
    struct buf report = {0};
    struct golden_opts cpu = {.engine = {.model = dir, .device = "cpu", .threads = test_threads()}};
    table = kernels_cpu;
    must_say(dir, NULL, "f32", true, false);
    table = *device_table(&kernels_cpu, 0x1p-21f, 4711); /* a device with roundings of its own */
    must_say(dir, NULL, "f32", true, true);
    must_say(steep, NULL, "f32", true, false); /* nothing is magnified there */
    assert_true(golden_run(&cpu, &report, &e));
    assert_null(strstr(report.p, "noise"));
    buf_free(&report);
    scratch_remove(dir);
}

static void test_a_fault_fails_where_noise_is_magnified(void **state)
{
    (void)state;
    char *dir = steep_folder();
    for (int i = rounds(2, 0); i < 3; i++) {
        table = kernels_cpu;
        table.gather = i == 0 ? wide_rope : table.gather;
        table.attn = i == 1 ? steep_attn : table.attn;
        table.linear = i == 2 ? loud_linear : table.linear;
        must_say(dir, NULL, "f32", false, true);
    }
    table = *device_table(&kernels_cpu, 3 * 0x1p-9f, 4711); /* bf16 that calls itself float32 */
    must_say(steep, NULL, "f32", false, false);
    scratch_remove(dir);
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
        noise_table(&kernels_cpu, 3 * 0x1p-9f, i == 2 ? 6 : 5)->linear(d, &a);
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

static int packed_calls; /* operations that were asked for packed rows, or to read some */

static void look_gather(struct kdev *, const struct k_gather *a)
{
    packed_calls += a->part[0].packed || a->part[1].packed;
}
static void look_attn(struct kdev *, const struct k_attn *a)
{
    packed_calls += a->packed;
}
static void look_linear(struct kdev *, const struct k_linear *a)
{
    packed_calls += a->packed;
}
static void look_glu(struct kdev *, const struct k_glu *a)
{
    packed_calls += a->packed;
}
static void look_qkv(struct kdev *, const struct k_qkv *a)
{
    packed_calls += a->packed;
}

/* A GPU may store rows for a product in a layout that only the product reads, if it is asked to;
 * noise is added on the host, which would read them as floats. */
static void test_noise_asks_for_no_packed_rows(void **state)
{
    (void)state;
    struct err e = {0};
    struct kdev *d = kernels_cpu.open(&(struct k_opts){.threads = 1}, &e);
    struct tensor w = {.type = DT_F32, .n_dim = 2, .dim = {WIDE, WIDE}, .name = "w"};
    kbuf x = kernels_cpu.alloc(d, WIDE * sizeof(float), "x", &e);
    struct kernels gpu = kernels_cpu;
    gpu.gather = look_gather;
    gpu.attn = look_attn;
    gpu.linear = look_linear;
    gpu.glu = look_glu;
    gpu.qkv = look_qkv;
    kernels_cpu.fill(d, x, 0);
    for (int with = 1; with >= 0; with--) {
        const struct kernels *k = with ? noise_table(&gpu, 3 * 0x1p-9f, 1) : &gpu;
        packed_calls = 0;
        k->gather(d, &(struct k_gather){.rows = 1, .n_parts = 2, .part = {{.packed = true},
                                                                         {.packed = true}}});
        k->attn(d, &(struct k_attn){.rows = 1, .packed = true});
        k->linear(d, &(struct k_linear){.rows = 1, .src = x, .w = &w, .packed = true});
        k->glu(d, &(struct k_glu){.rows = 1, .src = x, .gate = &w, .up = &w, .packed = true});
        k->qkv(d, &(struct k_qkv){.rows = 1, .src = x, .wq = &w, .packed = true});
        assert_int_equal(packed_calls, with ? 0 : 5);
    }
    kernels_cpu.release(d, x);
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
    const struct golden_limit *m = limits_find(&l, "logits");
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

/* ---- stopping -------------------------------------------------------------------------------- */

static struct {
    struct stop stop;
    int calls, stop_at, late; /* attentions; the one that stops; those after it */
} user;

static void stopping_attn(struct kdev *d, const struct k_attn *a)
{
    kernels_cpu.attn(d, a);
    user.late += user.calls >= user.stop_at;
    if (++user.calls == user.stop_at)
        stop_all(&user.stop);
}

static void begin(void *arg)
{
    ++*(int *)arg;
}

/* The checks that were done by then are in the report, none is called a failure, and no layer runs
 * on. */
static void test_a_stopped_comparison_reports_what_is_done(void **state)
{
    (void)state;
    static const struct { const char *target, *draft; } pair[] = {
        {G "gptoss-a", G "eagle3-gptoss-a"}, {G "gemma4-a", G "gemma4-a-assistant"}};
    for (int i = 0; i < 2; i++) {
        int most = 0;
        for (int at = 1;; at += rounds(14000, 1500)) {
            struct buf report = {0};
            struct err e = {0};
            int begun = 0;
            table = kernels_cpu;
            table.attn = stopping_attn;
            memset(&user, 0, sizeof user);
            user.stop = (struct stop){.submitted = 1, .running = 1};
            user.stop_at = at;
            struct golden_opts o = {.engine = {.model = pair[i].target, .draft = pair[i].draft,
                                               .threads = 1,
                                               .backend = &table}, .json = true, .stop = &user.stop,
                                    .begin = begin, .arg = &begun};
            bool ok = golden_run(&o, &report, &e);
            assert_true(begun == 1 && strstr(report.p, "\"failed\":0"));
            int checked = atoi(strstr(report.p, "\"checked\":") + 10);
            assert_true(checked >= most);
            most = checked;
            bool ended = ok && user.calls < at;
            if (!ended) {
                assert_false(ok);
                assert_int_equal(e.kind, ERR_NEGATIVE);
                assert_non_null(strstr(report.p, "\"stopped\":true"));
                assert_true(user.late <= 16); /* at most the rest of one draft tree */
            }
            buf_free(&report);
            if (ended)
                break;
        }
        assert_true(most > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_cells_of_bf16_leave_within_tolerance_is_ok),
        cmocka_unit_test(test_what_roundings_carry_beyond_it_is_near),
        cmocka_unit_test(test_a_fault_is_no_rounding_of_bf16),
        cmocka_unit_test(test_a_fault_is_no_rounding_of_float32),
        cmocka_unit_test(test_a_wrong_window_is_no_rounding),
        cmocka_unit_test(test_float32_is_judged_by_noise_where_it_is_magnified),
        cmocka_unit_test(test_a_fault_fails_where_noise_is_magnified),
        cmocka_unit_test(test_noise_follows_from_its_seed),
        cmocka_unit_test(test_a_stopped_comparison_reports_what_is_done),
        cmocka_unit_test(test_noise_asks_for_no_packed_rows),
        cmocka_unit_test(test_limits_keep_the_furthest_and_forget_what_was_off_without_noise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
