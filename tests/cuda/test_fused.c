/* test_fused.c - fused cycles against stepped ones: the same tokens, trees, probabilities and
 * digests, bit for bit, on the CPU and, where there is one, on a GPU, launched kernel by kernel and
 * replayed as a graph. And the checker finds what a device fills in wrong. */
#include "tests/ckpt.h"
#include "tests/few.h"
#include "tests/runtimes.h"

#include "engine/cycle/fused.h"

#include <math.h>
#include <unistd.h>

#define TARGET "models/nestling/target"
#define DRAFT "models/nestling/draft"
#define BLOCK "models/nestling/block"

static const char *const texts[] = {"Tell me a story about a fox.", "What is a page table?",
                                    "My name is Ada. What is my name?"};
static const struct tree_shape shapes[] = {{1, 3, 4}, {3, 1, 4}, {5, 4, 16}, {6, 8, 60}};
enum { N_TEXT = 3, N_SHAPE = 4, MOST = 90 };

/* The cycles of a reply: all stepped, all fused (with graphs or without), or by turns. */
enum kind { STEPPED, FUSED, RECORDED, BY_TURNS };

/* Everything a cycle leaves behind, as bytes. */
static void note(struct buf *out, const struct lane *l)
{
    const struct step_rec *c = &l->rec;
    const struct tree *t = &l->tree;
    buf_printf(out, "%d at %d: %d rows, %d drafted, %d accepted, bonus %d, draws %llu, "
                    "tree %016llx, "
               "logits %016llx\n", c->kind, c->pos0, c->rows, c->drafted, c->accepted, c->bonus,
               (unsigned long long)c->draws, (unsigned long long)c->draft_digest,
               (unsigned long long)c->logit_digest);
    for (int i = 1; i < t->n; i++)
        buf_printf(out, "  %d under %d fate %d: score %a q %a p %a u %a\n", t->token[i],
                   t->parent[i], t->fate[i], (double)t->score[i], (double)t->q[i], (double)t->p[i],
                   isnan(t->u[i]) ? -1.0 : (double)t->u[i]);
    for (int i = l->tok.n - l->n_new; i < l->tok.n; i++)
        buf_printf(out, " %d", l->tok.v[i]);
    for (int i = 0; i < l->n_new; i++)
        buf_printf(out, " %a %d %a", (double)l->fact[i].logp, l->fact[i].rival,
                   (double)l->fact[i].rival_logp);
    buf_char(out, '\n');
}

static void reply(struct bed *b, const char *text, const struct tree_shape *s, enum kind kind,
                  double temperature, struct buf *out)
{
    struct err e = {0};
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)text};
    struct lane l = {.tap_row = -1, .seed = 7,
                     .how = {.temperature = (float)temperature, .top_p = 0.95f, .top_k = 50}};
    if (b->chat)
        must(chat_render(b->chat, &m, 1, &l.tok, &e), &e);
    for (int i = 0; !b->chat && i < 20; i++)
        ids_add(&l.tok, (int32_t)(mix64((uint64_t)(unsigned char)text[i]) % 120));
    int first = l.tok.n, most = rounds(50, MOST) / one_in(4);
    must(lane_extend(&b->r, &l, first, true, s != NULL, s ? s->topk : 1, &e), &e);
    b->r.record = kind == RECORDED;
    for (int i = 0; !l.stopped && l.tok.n < first + most; i++) {
        struct step_limits lim = {first + most - l.tok.n};
        struct lane *one = &l;
        b->r.fuse = kind == BY_TURNS ? i % 3 == 0 : kind != STEPPED;
        must(lane_step(&b->r, &one, &lim, 1, s, &e), &e);
        note(out, &l);
    }
    buf_char(out, '\0');
    lane_free(&b->r, &l);
}

/* The cycles of a reply stepped, and in all other kinds; returns how many replies were compared. */
static int reply_agrees(struct bed *b, const char *text, const struct tree_shape *shape,
                        double temperature)
{
    struct buf want = {0};
    reply(b, text, shape, STEPPED, temperature, &want);
    for (enum kind kind = FUSED; kind <= BY_TURNS; kind++) {
        struct buf got = {0};
        reply(b, text, shape, kind, temperature, &got);
        assert_string_equal(got.p, want.p);
        buf_free(&got);
    }
    buf_free(&want);
    return BY_TURNS;
}

static void cycles_agree(const char *device, const char *precision, bool fp8)
{
    static const int page_sizes[] = {1, 16};
    int runs = 0;
    uint64_t fused = 0, replayed = 0;
    for (int p = 0; p < 2; p += one_in(2)) {
        struct bed b;
        if (!bed_device(&b, device, precision))
            skip();
        b.dev.kv = fp8 ? KV_FP8 : b.dev.kv;
        bed_load(&b, TARGET, DRAFT);
        bed_chat(&b, TARGET);
        bed_runtime(&b, &(struct runtime_shape){.page_size = page_sizes[p], .context = 512,
                                                .kv = b.dev.kv});
        bed_stop(&b);
        for (int i = 0; i < N_TEXT; i += one_in(N_TEXT))
            for (int s = -1; s < N_SHAPE; s += one_in(4))
                for (int hot = 0; hot < 2; hot += one_in(2)) {
                    if (one_in(2) == 1 && rounds(1, 0) && (p + i + s + hot) % 2 != 0)
                        continue; /* usually one of the two temperatures for each text and shape */
                    const struct tree_shape *shape = s < 0 ? NULL : &shapes[s];
                    b.r.kv.draft_window = (p + i + s) % 2 ? 24 : 0;
                    runs += reply_agrees(&b, texts[i], shape, hot * 0.9);
                }
        fused += b.r.n_fused;
        replayed += b.r.n_replayed;
        bed_close(&b);
    }
    print_message("# %s: %d replies, %llu fused cycles, %llu replayed\n", device, runs,
                  (unsigned long long)fused, (unsigned long long)replayed);
    assert_true(fused > (uint64_t)rounds(300, 1000) || one_in(2) > 1);
}

/* The bundled head as a P-EAGLE head, with a mask that was not trained. Free the path. */
static char *parallel_head(void)
{
    enum { WIDE = 768 };
    struct ck c = ck_load(DRAFT, "model.safetensors");
    char *dir = scratch_folder();
    uint16_t mask[WIDE];
    for (int i = 0; i < WIDE; i++)
        mask[i] = f32_to_bf16((float)(mix64((uint64_t)i) % 512) / 256 - 1);
    ck_add(&c, "mask_hidden", "BF16", json_pack("[ii]", 1, WIDE), mask, sizeof mask);
    ck_set(&c, "ptd_token_id", json_integer(4));
    ck_set(&c, "num_depths", json_integer(7));
    ck_save(&c, dir, 1);
    ck_free(&c);
    return dir;
}

/* Chains and trees of a drafter that guesses 7 depths in a block; what is deeper runs stepped. Of
 * folders without a tokenizer the prompts are ids. */
static void blocks_agree(const char *device, const char *precision, const char *target,
                         const char *draft)
{
    static const struct tree_shape deep = {8, 2, 6};
    static const struct tree_shape some[] = {
        {7, 1, 8}, {3, 2, 6}, {1, 1, 2}, {7, 4, 24}};
    struct bed b;
    if (!bed_device(&b, device, precision))
        skip();
    bed_load(&b, target, draft);
    if (!strcmp(target, TARGET))
        bed_chat(&b, target);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 512, .kv = b.dev.kv});
    if (b.chat)
        bed_stop(&b);
    for (int s = 0; s < 4; s++) {
        b.r.kv.draft_window = s == 1 ? 24 : 0;
        uint64_t before = b.r.n_fused;
        reply_agrees(&b, texts[s % N_TEXT], &some[s], s % 2 * 0.9);
        assert_true(b.r.n_fused > before);
    }
    uint64_t before = b.r.n_fused;
    struct buf got = {0};
    reply(&b, texts[0], &deep, FUSED, 0, &got);
    buf_free(&got);
    assert_int_equal(b.r.n_fused, before);
    print_message("# %s: blocks of %s: %llu fused cycles, %llu replayed\n", device, b.d.kind,
                  (unsigned long long)b.r.n_fused, (unsigned long long)b.r.n_replayed);
    bed_close(&b);
}

static void both_agree(const char *device, const char *precision)
{
    blocks_agree(device, precision, TARGET, BLOCK); /* skips the test where there is no GPU */
    char *head = parallel_head();
    blocks_agree(device, precision, TARGET, head);
    scratch_remove(head);
}

/* Of drafts whose guesses depend on the token before. */
static void edges_agree(const char *device, const char *precision)
{
    blocks_agree(device, precision, "tests/golden/gemma3-b", "tests/golden/dspark-gated-b");
    blocks_agree(device, precision, "tests/golden/qwen3-b", "tests/golden/dflash2-b");
}

static void test_edge_cycles_agree_on_the_cpu(void **state)
{
    (void)state;
    edges_agree("cpu", NULL);
}

static void test_edge_cycles_agree_on_a_gpu(void **state)
{
    (void)state;
    edges_agree("cuda", "bf16");
    edges_agree("cuda", "f32");
}

static void test_block_cycles_agree_on_the_cpu(void **state)
{
    (void)state;
    both_agree("cpu", NULL);
}

static void test_block_cycles_agree_on_a_gpu(void **state)
{
    (void)state;
    both_agree("cuda", "bf16");
    both_agree("cuda", "f32");
}

static void test_cycles_agree_on_the_cpu(void **state)
{
    (void)state;
    cycles_agree("cpu", NULL, false);
}

static void test_cycles_agree_on_a_gpu(void **state)
{
    (void)state;
    cycles_agree("cuda", "bf16", false);
}

static void test_cycles_agree_on_a_gpu_in_float32(void **state)
{
    (void)state;
    cycles_agree("cuda", "f32", false);
}

static void test_cycles_agree_on_a_gpu_with_fp8_cells(void **state)
{
    (void)state;
    cycles_agree("cuda", "bf16", true);
}

/* ---- what the device fills in is checked ----------------------------------------------------- */

static const struct kernels *real;
static int damage; /* what select(), accept() or grow() does wrong */

static int32_t *ints(kbuf b)
{
    return b.p;
}

static void bad_select(struct kdev *d, const struct k_select *a)
{
    int last = a->t->nodes - 1;
    real->select(d, a);
    switch (damage) {
    case 1: ints(a->token)[0]++; break;
    case 2: ints(a->pos)[last]++; break;
    case 3: ints(a->reach[0].expand)[last * a->reach[0].expand_w]++; break;
    case 4: ints(a->reach[0].n_expand)[last]--; break;
    case 5: ints(a->reach[1].lo)[last]++; break;
    case 6: ints(a->reach[1].hi)[1]--; break;
    case 7: ints(a->reach[1].expand)[last * a->reach[1].expand_w] =
            ints(a->reach[0].expand)[last * a->reach[0].expand_w] + 5; break;
    case 8: ints(a->parent)[1] = 1; break;
    }
}

static void bad_accept(struct kdev *d, const struct k_accept *a)
{
    real->accept(d, a);
    if (damage == 9)
        ints(a->n_path)[0] = ints(a->n_path)[0] == 1 ? 2 : 1;
}

static void bad_grow(struct kdev *d, const struct k_grow *a)
{
    real->grow(d, a);
    if (damage == 14 && a->level == a->t->steps) /* no pass reads it any more */
        ints(a->t->cell)[ints(a->t->front)[a->t->topk]] = 1000;
    if (a->level != 2)
        return;
    switch (damage) {
    case 10: ints(a->token)[1]++; break;
    case 11: ints(a->reach[0].expand)[a->reach[0].expand_w]--; break;
    case 12: ints(a->reach[0].lo)[2]++; break;
    case 13: ints(a->reach[0].n_expand)[2]--; break;
    }
}

/* The checker finds wrong entries, nothing is committed, and the lane goes on. */
static void test_damaged_tables_are_found(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    bed_models(&b, TARGET, DRAFT);
    bed_chat(&b, TARGET);
    struct kernels spy = *(real = b.dev.k);
    spy.select = bad_select;
    spy.accept = bad_accept;
    spy.grow = bad_grow;
    b.dev.k = &spy;
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = 512});
    b.r.fuse = true;
    const struct tree_shape shape = {4, 3, 12};
    struct lane l = {.tap_row = -1}, *one = &l;
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)texts[0]};
    must(chat_render(b.chat, &m, 1, &l.tok, &e), &e);
    must(lane_extend(&b.r, &l, l.tok.n, true, true, shape.topk, &e), &e);
    for (damage = 1; damage <= 14; damage++) {
        int tokens = l.tok.n, committed = l.seq.committed;
        struct lane twin = {.tap_row = -1};
        lane_park(&b.r, &l);
        lane_fork(&b.r, &l, &twin);
        struct lane *other = &twin;
        e = (struct err){0};
        assert_false(lane_step(&b.r, &other, &(struct step_limits){100}, 1, &shape, &e));
        assert_int_equal(e.kind, ERR_INVARIANT);
        print_message("# damage %d: %s\n", damage, e.msg);
        assert_true(!strncmp(e.msg, damage == 8 || damage == 14 ? "I13" : "I17", 3));
        assert_int_equal(twin.tok.n, tokens);
        assert_int_equal(twin.seq.committed, committed);
        lane_free(&b.r, &twin);
    }
    damage = 0;
    must(lane_step(&b.r, &one, &(struct step_limits){100}, 1, &shape, &e), &e);
    lane_free(&b.r, &l);
    b.dev.k = real;
    bed_close(&b);
}

/* ---- pages that were checked before ---------------------------------------------------------- */

/* A column that was checked in an earlier cycle and then changed without the cache's knowledge is
 * found while the device works: nothing is committed, and once the column is right again the lane
 * goes on. */
static void test_a_page_changed_behind_the_cache_is_found(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    bed_models(&b, TARGET, DRAFT);
    bed_chat(&b, TARGET);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 512});
    b.r.fuse = true;
    const struct tree_shape shape = {4, 3, 12}, *shapes_of[] = {NULL, &shape};
    struct lane l = {.tap_row = -1}, *one = &l;
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)texts[0]};
    const struct step_limits lim = {100};
    must(chat_render(b.chat, &m, 1, &l.tok, &e), &e);
    must(lane_extend(&b.r, &l, l.tok.n, true, true, shape.topk, &e), &e);
    for (int i = 1; i >= 0; i--) {
        const struct tree_shape *s = shapes_of[i];
        must(lane_step(&b.r, &one, &lim, 1, s, &e), &e);
        int32_t mine = l.seq.col[0].full.v;
        int tokens = l.tok.n, committed = l.seq.committed;
        assert_true(l.seq.clean[SIDE_TARGET] > 1);
        l.seq.col[0].full = l.seq.col[1].full;
        for (int again = 0; again < 2; again++) { /* at first beside the device, then before it */
            uint64_t launched = b.r.n_fused;
            e = (struct err){0};
            assert_false(lane_step(&b.r, &one, &lim, 1, s, &e));
            assert_true(!strncmp(e.msg, "I10 ", 4));
            assert_int_equal(b.r.n_fused - launched, !again);
            assert_int_equal(l.tok.n, tokens);
            assert_int_equal(l.seq.committed, committed);
        }
        l.seq.col[0].full.v = mine;
        must(lane_step(&b.r, &one, &lim, 1, s, &e), &e);
    }
    lane_free(&b.r, &l);
    bed_close(&b);
}

/* ---- plans for people ------------------------------------------------------------------------ */

static bool shows_pages(struct bed *b, enum plan_mode mode)
{
    struct buf text = {0};
    plan_print(&b->r.pass.plan[mode], false, &text);
    buf_char(&text, '\0');
    bool all = strstr(text.p, " pages 1 2 3") && !strstr(text.p, "changed since");
    buf_free(&text);
    return all;
}

/* After a cycle its plans show their pages, and the draft's all its levels; once another lane's
 * have taken their place, nothing is shown instead. */
static void test_plans_show_their_pages(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    bed_models(&b, TARGET, DRAFT);
    bed_chat(&b, TARGET);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 512, .lanes = 2});
    b.r.fuse = true;
    const struct tree_shape shape = {4, 3, 12};
    struct lane l[2] = {{.tap_row = -1}, {.tap_row = -1}};
    for (int i = 0; i < 2; i++) {
        struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)texts[i]};
        struct lane *one = &l[i];
        must(chat_render(b.chat, &m, 1, &one->tok, &e), &e);
        must(lane_extend(&b.r, one, one->tok.n, true, true, shape.topk, &e), &e);
    }
    struct lane *one = &l[0], *other = &l[1];
    const struct step_limits lim = {100};
    must(lane_step(&b.r, &one, &lim, 1, &shape, &e), &e);
    assert_int_equal(b.r.pass.plan[PLAN_DRAFT].n_rows, 9);
    assert_true(shows_pages(&b, PLAN_DRAFT) && shows_pages(&b, PLAN_VERIFY) &&
                shows_pages(&b, PLAN_DRAFT_EXTEND));
    must(lane_step(&b.r, &other, &lim, 1, NULL, &e), &e);
    assert_true(shows_pages(&b, PLAN_DRAFT) && !shows_pages(&b, PLAN_VERIFY));
    for (int i = 0; i < 2; i++)
        lane_free(&b.r, &l[i]);
    bed_close(&b);
}

/* ---- forced acceptance ----------------------------------------------------------------------- */

static void forced_reply(struct bed *b, bool fuse, struct buf *out)
{
    struct err e = {0};
    const struct tree_shape shape = {5, 4, 16};
    struct lane l = {.tap_row = -1}, *one = &l;
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)texts[1]};
    b->r.fuse = fuse;
    must(chat_render(b->chat, &m, 1, &l.tok, &e), &e);
    must(lane_extend(&b->r, &l, l.tok.n, true, true, shape.topk, &e), &e);
    for (int i = 0; i < 12; i++) {
        int tokens = l.tok.n;
        l.force = 1 + i % 3;
        must(lane_step(&b->r, &one, &(struct step_limits){100}, 1, &shape, &e), &e);
        assert_int_equal(l.tok.n, tokens + l.force);
        int fates = 0; /* the last token counts as accepted if the tree held it, too */
        for (int k = 1; k < l.tree.n; k++)
            fates += l.tree.fate[k] == FATE_ACCEPTED;
        assert_int_equal(l.rec.accepted, fates);
        assert_true(fates == l.force - 1 || fates == l.force);
        note(out, &l);
    }
    buf_char(out, '\0');
    lane_free(&b->r, &l);
}

/* Forced acceptance keeps exactly the given number of rows, also behind stop tokens; the stepped
 * and the fused cycle keep the same ones. */
static void test_forced_acceptance(void **state)
{
    (void)state;
    struct bed b;
    struct buf stepped = {0}, fused = {0};
    bed_models(&b, TARGET, DRAFT);
    bed_chat(&b, TARGET);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = 512});
    bed_stop(&b);
    forced_reply(&b, false, &stepped);
    forced_reply(&b, true, &fused);
    assert_string_equal(fused.p, stepped.p);
    assert_true(b.r.n_fused == 12);
    buf_free(&stepped);
    buf_free(&fused);
    bed_close(&b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cycles_agree_on_the_cpu),
        cmocka_unit_test(test_block_cycles_agree_on_the_cpu),
        cmocka_unit_test(test_block_cycles_agree_on_a_gpu),
        cmocka_unit_test(test_edge_cycles_agree_on_the_cpu),
        cmocka_unit_test(test_edge_cycles_agree_on_a_gpu),
        cmocka_unit_test(test_damaged_tables_are_found),
        cmocka_unit_test(test_a_page_changed_behind_the_cache_is_found),
        cmocka_unit_test(test_plans_show_their_pages),
        cmocka_unit_test(test_forced_acceptance),
        cmocka_unit_test(test_cycles_agree_on_a_gpu),
        cmocka_unit_test(test_cycles_agree_on_a_gpu_in_float32),
        cmocka_unit_test(test_cycles_agree_on_a_gpu_with_fp8_cells),
    };
    if (access(TARGET "/config.json", R_OK) != 0 || access(DRAFT "/config.json", R_OK) != 0) {
        printf("ok 1 # SKIP needs models/nestling, from the project's root\n1..1\n");
        return 0;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
