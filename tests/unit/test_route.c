/* test_route.c - which kernel an operation takes on a GPU (kernels/cuda/route.h): a table for each
 * kind of operation, and that the lists of forms, from which the kernels are compiled, hold exactly
 * what some route takes. No GPU is used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/base.h"
#include "kernels/cuda/route.h"

#define LENGTH(a) (int)(sizeof(a) / sizeof *(a))

static const struct gpu h100 = {132, 227 << 10, 1, true}, h100_f32 = {132, 227 << 10, 2, true},
                        a100 = {108, 163 << 10, 1, false}, a100_f32 = {108, 163 << 10, 2, false},
                        ada = {128, 99 << 10, 1, false}, ada_f32 = {128, 99 << 10, 2, false};
static const struct gpu *const gpus[] = {&h100, &h100_f32, &a100, &a100_f32, &ada, &ada_f32};

/* ---- products ------------------------------------------------------------------------------- */

/* Which packed types stay packed: a letter for each that does (dtype order), elsewhere a dot; and
 * in whose layout. */
static void test_packed_types(void **unused)
{
    (void)unused;
    static const struct {
        const struct gpu *gpu;
        const char *types;
    } t[] = {
        {&h100, "805f5234k6iieeEe"}, {&h100_f32, "................"},
        {&a100, "805f5234k6iieeEe"}, {&a100_f32, "................"},
        {&ada, "805f5234k6iieeEe"}, {&ada_f32, "................"},
    };
    for (int g = 0; g < LENGTH(t); g++)
        for (int i = DT_Q8_0; i <= DT_E2M1; i++)
            assert_int_equal(packs_on(t[g].gpu, i), t[g].types[i - DT_Q8_0] != '.');
    assert_false(packs_on(&h100, DT_BF16));
    static const enum dtype as[] = {['8'] = DT_Q8_0, ['0'] = DT_Q4_0, ['5'] = DT_Q5_1,
                                    ['f'] = DT_Q5_0, ['2'] = DT_Q2_K, ['3'] = DT_Q3_K,
                                    ['4'] = DT_Q4_K, ['k'] = DT_Q5_K, ['6'] = DT_Q6_K,
                                    ['i'] = DT_IQ4_XS, ['E'] = DT_E4M3, ['e'] = DT_E2M1,
                                    ['.'] = DT_NONE};
    for (int i = DT_Q8_0; i <= DT_E2M1; i++)
        assert_int_equal(packed_as(i), as[(int)t[0].types[i - DT_Q8_0]]);
    assert_int_equal(packed_as(DT_BF16), DT_NONE);
}

/* In whose layout experts of a packed type stay packed (dtype order). */
static void test_packed_experts(void **unused)
{
    (void)unused;
    static const enum dtype as[] = {['8'] = DT_Q8_0, ['0'] = DT_Q4_0, ['4'] = DT_Q4_K,
                                    ['5'] = DT_Q5_K, ['6'] = DT_Q6_K, ['2'] = DT_Q2_K,
                                    ['i'] = DT_IQ4_XS, ['e'] = DT_E4M3, ['f'] = DT_E2M1};
    static const char types[] = "8045526456iiffef";
    for (int i = DT_Q8_0; i <= DT_E2M1; i++)
        assert_int_equal(experts_as(i), as[(int)types[i - DT_Q8_0]]);
    assert_int_equal(experts_as(DT_BF16), DT_NONE);
}

static void test_product_kernels(void **unused)
{
    (void)unused;
    static const char letters[] = {[PRODUCT_DECODE] = 'D', [PRODUCT_VERIFY] = 'V',
                                   [PRODUCT_PREFILL] = 'P', [PRODUCT_TILE] = 'T'};
    static const struct {
        const struct gpu *gpu;
        const char *of; /* 1, 4, 5, 8, 16, 17, 64, 65 rows */
        bool splits[8];
    } t[] = {
        {&h100, "DDDDDVVP", {0, 0, 0, 0, 0, 1, 1, 0}},
        {&h100_f32, "DDDDDTTP", {0}},
        {&a100, "DDDDDTTT", {0, 0, 0, 0, 0, 1, 1, 0}},
        {&a100_f32, "DDDDDTTT", {0}},
        {&ada, "DDDDTTTT", {0, 0, 0, 0, 1, 1, 1, 0}},
        {&ada_f32, "DDTTTTTT", {0}},
    };
    static const int rows[] = {1, 4, 5, 8, 16, 17, 64, 65};
    for (int g = 0; g < LENGTH(t); g++)
        for (int i = 0; i < LENGTH(rows); i++) {
            assert_int_equal(letters[product_kernel_of(t[g].gpu, true, rows[i])], t[g].of[i]);
            assert_int_equal(product_leaves_splits(t[g].gpu, rows[i]), t[g].splits[i]);
            assert_int_equal(product_kernel_of(t[g].gpu, false, rows[i]), PRODUCT_FLOATS);
        }
}

/* A linear of rows of `in` elements with nothing unusual. */
static struct product_shape linear(int rows, int in, int outs)
{
    struct product_shape s = {.rows = rows, .whole = rows, .in = in, .kp = (in + 31) / 32 * 32,
                              .n_mats = 1, .outs = outs, .bf16 = true, .has_norm = true,
                              .aligned = true, .all_aligned = true, .adjacent = true};
    s.panels[0] = (struct panel_shape){16, (outs + 15) / 16};
    return s;
}

/* q, k and v with heads of 64 that a decode product can finish. */
static struct product_shape qkv(int rows, int in, int n_head, int n_kv)
{
    struct product_shape s = linear(rows, in, n_head * 64);
    s.work = WORK_HEADS, s.n_mats = 3;
    s.heads = (struct heads_shape){.n_kv = n_kv, .head_dim = 64, .rot = 64, .aligned = true,
                                   .splits = true, .normed = {true, true, false}};
    for (int i = 0; i < 3; i++)
        s.panels[i] = (struct panel_shape){8, (i ? n_kv : n_head) * 8};
    return s;
}

/* What a product's shape decides, one property changed at a time. */
static void test_product_routes(void **unused)
{
    (void)unused;
    struct product_shape norm = linear(1, 2880, 2880), s;
    struct product_route r;
    norm.work = WORK_NORM, norm.may_wait = true;
    static const struct {
        const char *what;
        enum row_pack pack;
        bool applies, copies, fresh;
        enum row_finish finish;
    } t[] = {
        {"one row", PACK_PROLOGUE, true, false, false, FINISH_PENDING},
        {"one row, sums that may not wait", PACK_PROLOGUE, true, false, false, FINISH_NEXT},
        {"one row, too wide to wait", PACK_PROLOGUE, true, false, false, FINISH_NEXT},
        {"one packed row", PACK_READY, true, false, false, FINISH_PENDING},
        {"one captured row", PACK_PROLOGUE, false, true, false, FINISH_PENDING},
        {"four rows", PACK_SHORT, true, false, false, FINISH_PENDING},
        {"four captured rows", PACK_SHORT, true, false, false, FINISH_PENDING},
        {"four rows of a group", PACK_SHORT, false, false, false, FINISH_NEXT},
        {"four rows with gaps", PACK_SHORT, false, false, false, FINISH_PENDING},
        {"four rows that are not aligned", PACK_ANY, false, false, false, FINISH_PENDING},
        {"four long rows", PACK_ANY, false, false, false, FINISH_PENDING},
        {"four rows, f16", PACK_ANY, false, false, false, FINISH_PENDING},
        {"heads", PACK_PROLOGUE, true, false, false, FINISH_HERE},
        {"heads, FP8 cells", PACK_PROLOGUE, true, false, true, FINISH_HERE},
        {"heads, FP8 cells, 9 rows", PACK_SHORT, true, false, false, FINISH_NEXT},
        {"heads, v from k", PACK_PROLOGUE, true, false, false, FINISH_NEXT},
        {"heads, 32 rows", PACK_SHORT, true, false, false, FINISH_SPLITS},
        {"heads, 32 rows, unaligned", PACK_SHORT, true, false, false, FINISH_NEXT},
        {"heads, 100 rows", PACK_SHORT, true, false, false, FINISH_NEXT},
        {"nothing left", PACK_PROLOGUE, true, false, false, FINISH_HERE},
    };
    for (int i = 0; i < LENGTH(t); i++) {
        s = i < 12 ? norm : qkv(1, 2880, 64, 8);
        if (i >= 5 && i < 12)
            s.rows = s.whole = 4;
        switch (i) {
        case 1: s.may_wait = false; break;
        case 2: s.outs = 6176; break;
        case 3: s.packed = true; break;
        case 4: s.captures = true; break;
        case 6: s.captures = true; break;
        case 7: s.whole = 8; break;
        case 8: s.adjacent = false; break;
        case 9: s.all_aligned = false; break;
        case 10: s.in = s.kp = 6176; break;
        case 11: s.bf16 = false; break;
        case 13: s.heads.fp8 = true; break;
        case 14: s.heads.fp8 = true, s.rows = s.whole = 9; break;
        case 15: s.heads.v_from_k = true; break;
        case 16: s.rows = s.whole = 32; break;
        case 17: s.rows = s.whole = 32, s.heads.splits = false; break;
        case 18: s.rows = s.whole = 100; break;
        case 19: s = linear(1, 2880, 2880); break;
        }
        r = product_route_of(&h100, &s);
        if (r.pack != t[i].pack || r.applies_update != t[i].applies ||
            r.copies_capture != t[i].copies || r.fresh != t[i].fresh || r.finish != t[i].finish)
            fail_msg("%s: pack %d, applies %d, copies %d, fresh %d, finish %d", t[i].what, r.pack,
                     r.applies_update, r.copies_capture, r.fresh, r.finish);
    }
    /* gemma-3-27b's rows are packed by a kernel of their own, which applies the update, too;
     * without a norm also by the prologue, which then applies no update */
    for (int rows = 1; rows <= 4; rows += 3) {
        s = norm, s.rows = s.whole = rows, s.in = s.kp = s.outs = 5376;
        r = product_route_of(&h100, &s);
        assert_true(r.pack == PACK_SHORT && r.applies_update && r.finish == FINISH_PENDING);
        assert_int_equal(r.form.rows, RESIDENT_ROWS);
        s.has_norm = false;
        r = product_route_of(&h100, &s);
        assert_int_equal(r.pack, rows == 1 ? PACK_PROLOGUE : PACK_SHORT);
        assert_true(r.applies_update == (rows > 1));
    }
    s = norm, s.rows = s.whole = 4, s.all_aligned = s.has_norm = false;
    assert_int_equal(product_route_of(&h100, &s).pack, PACK_PLAIN);
    /* weights in blocks take the routes of bf16 */
    static const int rows[] = {1, 4, 16, 17, 64, 65, 128, 129, 4096};
    for (int i = 0; i < LENGTH(rows); i++) {
        s = linear(rows[i], 2880, 2880), s.blocks = true;
        r = product_route_of(&h100, &s), s.blocks = false;
        const struct product_route plain = product_route_of(&h100, &s);
        assert_false(plain.unpacks);
        assert_true(r.unpacks == (rows[i] == 4096)); /* many rows unpack to scratch */
        assert_int_equal(r.kernel, plain.kernel);
        assert_int_equal(r.kernel, rows[i] > 128  ? PRODUCT_PREFILL
                                   : rows[i] > 16 ? PRODUCT_VERIFY
                                                  : PRODUCT_DECODE);
        assert_true(r.pack == plain.pack && r.finish == plain.finish);
        assert_memory_equal(&r.form, &plain.form, sizeof r.form);
    }
    /* two terms leave no room for the verify kernel */
    s = linear(65, 2880, 2880);
    assert_int_equal(product_route_of(&h100_f32, &s).kernel, PRODUCT_PREFILL);
    /* the fewest rows of those types that unpack to scratch, and one less */
    static const int least[][2] = {{DT_Q4_K, 576}, {DT_Q5_K, 576}, {DT_Q6_K, 832},
                                   {DT_Q5_1, 832}, {DT_IQ4_XS, 1024}, {DT_E2M1, 1024},
                                   {DT_Q8_0, 1536}, {DT_Q4_0, 1536}, {DT_E4M3, 1536},
                                   {DT_Q2_K, 1536}, {DT_Q3_K, 1536}, {DT_Q5_0, 1536}};
    for (int i = 0; i < 2 * LENGTH(least); i++) {
        s = linear(least[i / 2][1] - i % 2, 2880, 2880), s.blocks = true, s.type = least[i / 2][0];
        assert_true(product_route_of(&h100, &s).unpacks == (i % 2 == 0));
    }
    /* of two panels a block that are no whole pairs of tiles, of four bits, units have both */
    s = linear(1, 2880, 5376), s.blocks = s.doubles = true;
    s.panels[0] = (struct panel_shape){22, 245};
    assert_int_equal(product_route_of(&h100, &s).form.kind, UNIT_DOUBLE);
    s.panels[0].n = h100.n_sm;
    assert_int_equal(product_route_of(&h100, &s).form.kind, UNIT_PLAIN);
    /* and are unpacked where neither kernel takes them */
    s = linear(9, 2880, 2880), s.blocks = true;
    assert_true(product_route_of(&ada, &s).unpacks);
    s = linear(4096, 2880, 2880), s.blocks = true;
    assert_true(product_route_of(&ada, &s).unpacks && product_route_of(&a100, &s).unpacks);
}

static int decode_form_number(const struct decode_form *f)
{
    int n = 0;
#define FIND(c, t, k, r)                                                               \
    if (f->columns == c && f->tiles == t && f->kind == k && f->rows == r)              \
        return n;                                                                      \
    n++;
    DECODE_FORMS(FIND)
#undef FIND
    return -1;
}
#define ONE(...) +1
enum { N_DECODE = 0 DECODE_FORMS(ONE), N_TILE = 0 ATTN_TILE_FORMS(ONE),
       N_ROUND = 0 ATTN_ROUND_FORMS(ONE) };

static void take_decode(const struct gpu *g, struct product_shape *s, int *taken)
{
    static const int rows[] = {1, 2, 3, 4, 5, 8, 9, 16}, in[] = {64, 2880, 8192, 32768, 131072};
    for (int i = 0; i < LENGTH(rows); i++)
        for (int k = 0; k < LENGTH(in); k++) {
            s->rows = s->whole = rows[i], s->in = s->kp = in[k];
            const struct product_route r = product_route_of(g, s);
            if (r.kernel != PRODUCT_DECODE)
                continue;
            const int n = decode_form_number(&r.form);
            if (n < 0)
                fail_msg("%d rows of %d: no such form: %d columns, %d tiles, kind %d, rows %d",
                         rows[i], in[k], r.form.columns, r.form.tiles, r.form.kind, r.form.rows);
            taken[n]++;
        }
}

static void test_decode_forms(void **unused)
{
    (void)unused;
    int taken[N_DECODE] = {0};
    for (int g = 0; g < LENGTH(gpus); g++) {
        struct product_shape s = linear(1, 64, 4096), glu = s, wide = s, heads = qkv(1, 64, 64, 8);
        struct product_shape blocks = s;
        wide.panels[0].rows = 24, blocks.panels[0] = (struct panel_shape){18, 228};
        blocks.blocks = blocks.doubles = true;
        glu.glu = true, glu.n_mats = 2, glu.panels[1] = glu.panels[0];
        take_decode(gpus[g], &s, taken);
        take_decode(gpus[g], &wide, taken);
        take_decode(gpus[g], &blocks, taken);
        take_decode(gpus[g], &glu, taken);
        for (int panel = 8; panel <= 16; panel += 8) {
            for (int i = 0; i < 3; i++) /* panels that can stand side by side */
                heads.panels[i] = (struct panel_shape){panel, 64};
            take_decode(gpus[g], &heads, taken);
        }
    }
    for (int i = 0; i < N_DECODE; i++)
        if (!taken[i])
            fail_msg("no route takes form %d of the decode kernel", i);
}

/* ---- attention ------------------------------------------------------------------------------ */

static int tile_form_number(const struct tile_form *f, bool whole)
{
    int n = 0;
#define FIND(hd, a, b, c, d, e, w, all)                                                          \
    if (f->head_dim == hd && f->mi == a && f->wm == b && f->warps == c && f->stages == d &&      \
        f->blocks == e && f->wgmma == w && whole == all)                                         \
        return n;                                                                                \
    n++;
    ATTN_TILE_FORMS(FIND)
#undef FIND
    return -1;
}
static int round_form_number(const struct round_form *f)
{
    int n = 0;
#define FIND(hd, a, b, c)                                                        \
    if (f->head_dim == hd && f->mi == a && f->g == b && f->blocks == c)          \
        return n;                                                                \
    n++;
    ATTN_ROUND_FORMS(FIND)
#undef FIND
    return -1;
}

static struct attn_shape attention(int rows, int n_head, int n_kv, int head_dim, int keys)
{
    return (struct attn_shape){.rows = rows, .n_req = 1, .n_head = n_head, .n_kv = n_kv,
                               .head_dim = head_dim, .page_size = 16, .n_cols = keys / 16,
                               .n_slots = keys + 64, .scales = true};
}

static void test_attention_routes(void **unused)
{
    (void)unused;
    const enum attn_kernel S = ATTN_SPLITS;
    static const struct {
        const struct gpu *gpu;
        int rows, n_head, n_kv, head_dim, keys, window;
        enum attn_kernel kernel;
        int tile_rows, split_blocks; /* -1: some */
    } t[] = {
        {&h100, 1, 64, 8, 64, 4096, 0, ATTN_ROUNDS, 1, -1},
        {&h100, 1, 64, 8, 64, 4096, 128, ATTN_ROUNDS, 1, 0},
        {&h100, 8, 64, 8, 64, 4096, 0, ATTN_ROUNDS, 2, -1},
        {&h100, 8, 64, 8, 64, 16384, 0, ATTN_TILES, 8, -1},
        {&h100, 16, 64, 8, 64, 4096, 0, ATTN_TILES, 16, -1},
        {&h100, 4096, 64, 8, 64, 4096, 0, ATTN_TILES, 16, 0},
        {&h100, 40, 64, 8, 64, 4096, 128, ATTN_TILES, 1, 0},
        {&h100, 1, 8, 4, 256, 4096, 0, ATTN_ROUNDS, 1, -1},
        {&h100, 32, 8, 4, 256, 4096, 0, ATTN_ROUNDS, 16, -1},
        {&h100, 64, 8, 4, 256, 4096, 0, ATTN_TILES, 64, -1},
        {&h100, 64, 8, 4, 256, 4096, 1024, ATTN_TILES, 32, -1},
        {&h100, 512, 8, 4, 256, 4096, 0, ATTN_TILES, 32, 0},
        {&h100, 4096, 8, 4, 256, 65536, 0, ATTN_TILES, 64, 0},
        {&a100, 512, 8, 4, 256, 4096, 0, ATTN_TILES, 32, 0},
        {&h100, 1, 32, 4, 512, 131072, 0, ATTN_ROUNDS, 1, -1},
        {&h100, 4, 32, 4, 512, 4096, 0, ATTN_ROUNDS, 4, -1},
        {&h100, 16, 32, 4, 512, 4096, 0, ATTN_ROUNDS, 4, -1},
        {&h100, 4096, 16, 2, 512, 4096, 0, ATTN_TILES, 8, 0},
        {&h100, 4096, 16, 2, 512, 2048, 0, ATTN_ROUNDS, 4, 0},
        {&h100, 200, 16, 2, 512, 4096, 0, ATTN_ROUNDS, 4, 0},
        {&a100, 4096, 16, 2, 512, 4096, 0, ATTN_ROUNDS, 2, 0},
        {&a100, 4, 16, 2, 512, 4096, 0, ATTN_ROUNDS, 2, -1},
        {&ada, 1, 16, 2, 512, 4096, 0, ATTN_ROUNDS, 1, -1},
        {&h100, 1, 8, 4, 80, 4096, 0, ATTN_SPLITS, 0, 0},
        {&h100_f32, 1, 64, 8, 64, 4096, 0, ATTN_SPLITS, 0, 0},
    };
    for (int i = 0; i < LENGTH(t); i++) {
        struct attn_shape s =
            attention(t[i].rows, t[i].n_head, t[i].n_kv, t[i].head_dim, t[i].keys);
        s.window = t[i].window;
        const struct attn_route r = attn_route_of(t[i].gpu, &s);
        if (r.kernel != t[i].kernel || r.tile_rows != t[i].tile_rows ||
            (t[i].split_blocks < 0 ? !r.split_blocks : r.split_blocks != t[i].split_blocks))
            fail_msg("row %d: kernel %d, %d rows a tile, %d blocks for splits", i, r.kernel,
                     r.tile_rows, r.split_blocks);
    }
    struct attn_shape s = attention(1, 64, 8, 64, 4096), odd = s;
    odd.page_size = 24;
    assert_int_equal(attn_route_of(&h100, &odd).kernel, S);
    odd = s, odd.float_cells = true;
    assert_int_equal(attn_route_of(&h100, &odd).kernel, S);
    odd = s, odd.scales = false;
    assert_int_equal(attn_route_of(&h100, &odd).kernel, S);
    odd = s, odd.n_head = 17 * 8;
    assert_int_equal(attn_route_of(&h100, &odd).kernel, S);
}

struct attn_taken {
    int tile[N_TILE], round[N_ROUND][2]; /* round: whole or not */
};

static void take_attention(const struct gpu *g, const struct attn_shape *s, struct attn_taken *t)
{
    const struct attn_route r = attn_route_of(g, s);
    const int group = s->n_head / s->n_kv, of_request = (s->rows + s->n_req - 1) / s->n_req;
    if (r.kernel == ATTN_SPLITS)
        return;
    assert_true(r.tile_rows >= 1 && r.tile_rows <= of_request && r.most_splits > 0);
    assert_true(r.tiles * r.tile_rows >= s->rows && (r.tiles - 1) * r.tile_rows < s->rows);
    assert_true(r.kernel != ATTN_ROUNDS || r.tile_rows * group <= (s->head_dim == 64 ? 16 : 32));
    assert_true((r.parts + r.totals) * sizeof(float) <= ARENA_BYTES && !r.parts == !r.split_blocks);
    const int n = r.kernel == ATTN_ROUNDS ? round_form_number(&r.round)
                                          : tile_form_number(&r.tile, !r.split_blocks);
    if (n < 0)
        fail_msg("%d rows of %d requests, %d and %d heads of %d, %d columns, window %d: kernel %d,"
                 " no such form", s->rows, s->n_req, s->n_head, s->n_kv, s->head_dim, s->n_cols,
                 s->window, r.kernel);
    if (r.kernel == ATTN_ROUNDS)
        t->round[n][!r.split_blocks]++;
    else
        t->tile[n]++;
}

static void test_attention_forms(void **unused)
{
    (void)unused;
    static const int rows[] = {1, 2, 5, 8, 16, 17, 33, 64, 65, 200, 512, 4096},
                     dims[] = {64, 128, 256, 512}, groups[] = {1, 2, 4, 8, 16},
                         kv[] = {1, 4, 8, 32},
                     keys[] = {64, 2048, 8192, 16384, 131072}, windows[] = {0, 128, 512, 4096},
                     requests[] = {1, 16, 64};
    struct attn_taken t = {0};
    long routes = 0;
    for (int i = 0; i < LENGTH(gpus) * LENGTH(rows) * LENGTH(dims) * LENGTH(groups) * LENGTH(kv);
         i++) {
        int at = i;
#define NEXT(a) a[at % LENGTH(a)]; at /= LENGTH(a)
        const struct gpu *g = NEXT(gpus);
        const int n = NEXT(rows);
        const int hd = NEXT(dims);
        const int group = NEXT(groups);
        const int n_kv = NEXT(kv);
        for (int j = 0; j < LENGTH(keys) * LENGTH(windows) * LENGTH(requests) * 2; j++, routes++) {
            at = j / 2;
            const int k = NEXT(keys);
            struct attn_shape s = attention(n, group * n_kv, n_kv, hd, k);
            s.window = NEXT(windows);
            s.n_req = NEXT(requests);
            s.n_req = s.n_req < n ? s.n_req : n;
            s.expand_w = j % 2 ? 16 : 0;
            take_attention(g, &s, &t);
        }
#undef NEXT
    }
    for (int i = 0; i < N_TILE; i++)
        if (!t.tile[i])
            fail_msg("no route takes form %d of tile_kernel", i);
    for (int i = 0; i < N_ROUND; i++)
        if (!t.round[i][0] || !t.round[i][1])
            fail_msg("no route takes form %d of round_kernel, %s", i,
                     t.round[i][0] ? "whole" : "in splits");
    assert_true(routes > 100000);
}

/* ---- mixtures of experts -------------------------------------------------------------------- */

static void test_moe_routes(void **unused)
{
    (void)unused;
    static const struct {
        const struct gpu *gpu;
        int rows, n_expert; /* top 4 of experts of gpt-oss */
        enum moe_kernel kernel;
        bool selects, adds;
        int job_pairs;
    } t[] = {
        {&h100, 1, 32, MOE_ROW, true, true, 1},
        {&h100, 1, 128, MOE_ROW, true, true, 1},
        {&h100, 1, 256, MOE_COLUMNS_4, false, true, 1},
        {&h100, 2, 32, MOE_FEW, true, true, 2},
        {&h100, 4, 32, MOE_FEW, true, true, 4},
        {&h100, 5, 32, MOE_COLUMNS_4, true, true, 4},
        {&h100, 9, 32, MOE_COLUMNS_8, true, true, 8},
        {&h100, 64, 32, MOE_COLUMNS_16, true, true, 16},
        {&h100, 64, 128, MOE_COLUMNS_8, true, true, 8},
        {&h100, 65, 32, MOE_PREFILL, false, false, 65},
        {&h100_f32, 1, 32, MOE_COLUMNS_8, true, true, 1},
        {&h100_f32, 65, 32, MOE_PREFILL, false, false, 65},
        {&a100, 65, 32, MOE_COLUMNS_8, false, true, 8},
        {&a100, 300, 32, MOE_TILES, false, false, 300},
        {&ada, 1, 32, MOE_ROW, true, true, 1},
        {&ada, 200, 32, MOE_TILES, false, false, 200},
    };
    for (int i = 0; i < LENGTH(t); i++) {
        const struct moe_shape s = {t[i].rows, 2880, 2880, t[i].n_expert, 4, true, true, false};
        const struct moe_route r = moe_route_of(t[i].gpu, &s);
        const bool decode = r.kernel != MOE_PREFILL && r.kernel != MOE_TILES;
        if (r.kernel != t[i].kernel || r.block_select != t[i].selects ||
            r.adds_experts != t[i].adds || r.job_pairs != t[i].job_pairs)
            fail_msg("row %d: kernel %d, selects %d, adds %d, %d pairs a job", i, r.kernel,
                     r.block_select, r.adds_experts, r.job_pairs);
        assert_int_equal(r.stages > 0 && r.row_stages > 0, decode);
        assert_true(!decode || (r.shared && r.shared <= t[i].gpu->smem_max - EXPERT_OWN));
    }
    struct moe_shape s = {1, 2880, 2880, 32, 4, true, false, false};
    assert_int_equal(moe_route_of(&h100, &s).kernel, MOE_FEW); /* another type of norm weights */
    s.pre_bf16 = true, s.in = 4096;
    assert_int_equal(moe_route_of(&h100, &s).kernel, MOE_FEW); /* a row that a block cannot hold */
    s.mxfp4 = false;
    assert_int_equal(moe_route_of(&h100, &s).kernel, MOE_PLAIN);
    s.in = 2816, s.ffn = 704, s.n_expert = 128, s.top_k = 8;
    for (s.rows = 1; s.rows < 100; s.rows++) /* bf16 experts, and others that are not MXFP4 */
        for (int bf16 = 0; bf16 < 2; bf16++) {
            s.as_bf16 = bf16;
            const struct moe_route r = moe_route_of(&h100, &s);
            assert_int_equal(r.kernel, !bf16                  ? MOE_PLAIN
                                       : s.rows == 1           ? MOE_ROW
                                       : s.rows <= FLAG_ROWS   ? MOE_FEW
                                       : s.rows <= 64          ? MOE_COLUMNS_4
                                                               : MOE_PREFILL);
            assert_int_equal(r.shared > 0, bf16 && s.rows <= 64);
            assert_true(!r.shared || (r.stages > 2 && r.row_stages > 1));
            assert_true(!r.shared || r.block_select == (s.rows * s.top_k <= DIRECT_PAIRS));
            assert_int_equal(moe_route_of(&a100, &s).kernel, MOE_PLAIN);
        }
    s.rows = 17, s.n_expert = 8, s.top_k = 2; /* an expert has more rows than a job */
    assert_int_equal(moe_route_of(&h100, &s).kernel, MOE_PREFILL);
    s.rows = 16;
    assert_int_equal(moe_route_of(&h100, &s).kernel, MOE_COLUMNS_4);
    s.n_expert = 128, s.top_k = 8;
    s.rows = 4, s.ffn = 712;
    assert_int_equal(moe_route_of(&h100, &s).kernel, MOE_PLAIN); /* no whole units */
    s.rows = 5;
    assert_int_equal(moe_route_of(&h100, &s).kernel, MOE_PREFILL);
    s.rows = 4, s.ffn = 704, s.n_expert = 129; /* the router's last block selects them */
    assert_int_equal(moe_route_of(&h100, &s).kernel, MOE_COLUMNS_4);
    assert_false(moe_route_of(&h100, &s).block_select);
    for (s.rows = 4; s.rows <= 300; s.rows++) /* no block has room for four rows of 12,288; that of
                                                 the router for prefill rows has */
        for (s.in = 12288; s.in <= 32768; s.in += 20480) {
            const bool many = s.in == 12288 && s.rows > COLUMN_ROWS;
            const struct moe_route r = moe_route_of(&h100, &s);
            assert_int_equal(r.kernel, many ? MOE_PREFILL : MOE_PLAIN);
            assert_int_equal(r.job_pairs, s.rows);
            assert_false(r.adds_experts || r.block_select || r.shared);
            assert_int_equal(moe_route_of(&a100, &s).kernel, MOE_PLAIN);
        }
    s = (struct moe_shape){1, 65536, 65536, 32, 4, true, true, false};
    assert_int_equal(moe_route_of(&ada, &s).shared, 0); /* no block has room for such rows */
    assert_int_equal(moe_router_rows(&h100, &s), 0);
    s.in = 2880;
    assert_int_equal(moe_router_rows(&h100, &s), 8);
    assert_int_equal(moe_router_rows(&ada, &s), 8);
    s.in = 3076; /* more than a block's registers hold of eight rows */
    assert_int_equal(moe_router_rows(&h100, &s), 4);
    s.in = 6148;
    assert_int_equal(moe_router_rows(&h100, &s), 2);
    s.in = 2880, s.n_expert = 512; /* partial sums of so many experts */
    assert_int_equal(moe_router_rows(&h100, &s), 8);
    assert_int_equal(moe_router_rows(&ada, &s), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_types), cmocka_unit_test(test_product_kernels),
        cmocka_unit_test(test_product_routes),
        cmocka_unit_test(test_decode_forms),    cmocka_unit_test(test_attention_routes),
        cmocka_unit_test(test_attention_forms), cmocka_unit_test(test_moe_routes),
        cmocka_unit_test(test_packed_experts),
    };
    return cmocka_run_group_tests_name("route", tests, NULL, NULL);
}
