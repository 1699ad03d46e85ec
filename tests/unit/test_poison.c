/* test_poison.c - every cell that no sequence owns is made NaN before every pass, the guard page
 * and the scratch behind each committed length with it: nothing that is computed may change. On the
 * CPU, step by step and fused; and on a GPU where there is one. */
#include "tests/few.h"
#include "tests/runtimes.h"

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"

/* Fills slots [first, first + n) of one layer's cells with NaN. */
static void poison_cells(const struct runtime *r, const struct k_cells *c, int first, int n)
{
    size_t size = (size_t)(c->n_kv * c->head_dim) * kv_type_size(c->type);
    size_t at = (size_t)first * size, len = (size_t)n * size;
    r->dev.k->fill(r->dev.d, kbuf_at(c->k, at, len), 0xff);
    r->dev.k->fill(r->dev.d, kbuf_at(c->v, at, len), 0xff);
}

static int poisoned;

/* Slot s of pool `id` in every layer that lives there. */
static void poison(struct runtime *r, enum pool_id id, int first, int n)
{
    for (int l = 0; l < r->model->cfg.n_layer; l++)
        if (r->model->layer[l].kv_src == l && (r->model->layer[l].window > 0) == (id == POOL_SWA))
            poison_cells(r, &r->net.cells[l], first, n);
    poisoned += n;
}

/* All cells of the target's pools but the lane's committed ones. */
static void poison_all(struct runtime *r, const struct seq *s)
{
    int P = r->kv.page_size;
    for (int id = 0; id <= POOL_SWA; id++)
        for (int page = 0; page < r->kv.pool[id].total; page++)
            if (r->kv.pool[id].ref[page] == 0)
                poison(r, (enum pool_id)id, page * P, P);
    for (int cell = s->committed; cell < s->n_col * P; cell++) {
        full_slot f = kv_full_slot(&r->kv, s, cell);
        poison(r, POOL_FULL, f.v, 1);
        if (r->kv.has_swa && kv_swa_slot(&r->kv, f).v)
            poison(r, POOL_SWA, kv_swa_slot(&r->kv, f).v, 1);
    }
}

/* A digest over every step's logits, tokens and tree. */
static uint64_t run(struct bed *b, const struct ids *prompt, int chunk, int steps,
                    const struct tree_shape *shape, bool with)
{
    struct lane l = {.tap_row = -1}, *lp = &l;
    struct err e = {0};
    uint64_t digest = 0;
    ids_cat(&l.tok, prompt->v, prompt->n);
    while (l.seq.committed < prompt->n) {
        int upto = min_int(prompt->n, l.seq.committed + chunk);
        if (with)
            poison_all(&b->r, &l.seq);
        must(lane_extend(&b->r, &l, upto, upto == prompt->n, shape != NULL, shape ? shape->topk : 1,
                         &e),
             &e);
        digest = mix64(digest ^ l.rec.logit_digest);
    }
    for (int i = 0; i < steps && !l.stopped && l.tok.n < b->r.context - 1; i++) {
        if (with)
            poison_all(&b->r, &l.seq);
        must(lane_step(&b->r, &lp, &(struct step_limits){1000}, 1, shape, &e), &e);
        digest = mix64(digest ^ l.rec.logit_digest ^ l.rec.draft_digest);
    }
    digest = hash64(l.tok.v, (size_t)l.tok.n * sizeof *l.tok.v, digest);
    lane_free(&b->r, &l);
    return digest;
}

/* A device, its precision, and whether the cycle is fused. */
struct place {
    const char *device, *precision;
    bool fuse;
};

static void same_with_poison(const struct place *at, const char *target, const char *draft,
                             const char *text, int steps)
{
    static const struct tree_shape shape = {4, 4, 14};
    steps /= one_in(4);
    for (int P = one_in(4); P <= 16; P *= 4 * one_in(4)) {
        struct bed b;
        struct ids prompt = {0};
        assert_true(bed_device(&b, at->device, at->precision));
        bed_load(&b, target, draft);
        if (text) {
            bed_chat(&b, target);
            chat_prompt(&b, text, &prompt);
        }
        for (int i = 0; !text && i < 40; i++)
            ids_add(&prompt, 3 + (i * 37 + i / 7) % (b.m.cfg.vocab - 3));
        bed_runtime(&b, &(struct runtime_shape){.page_size = P, .context = 200, .max_rows = 64,
                                                .kv = b.dev.kv});
        b.r.fuse = at->fuse;
        for (int spec = 0; spec <= (draft != NULL); spec++)
            for (int chunk = 7 * one_in(7); chunk <= 49; chunk += 42) {
                const struct tree_shape *s = spec ? &shape : NULL;
                if (rounds(one_in(2) == 1, 0) && (chunk == 7) == (spec == (P == 4)))
                    continue; /* usually one of the two for each page size and way of drafting */
                uint64_t clean = run(&b, &prompt, chunk, steps, s, false);
                uint64_t dirty = run(&b, &prompt, chunk, steps, s, true);
                if (clean != dirty)
                    fail_msg("%s: page size %d, chunk %d, %s: an unowned cell was read", target, P,
                             chunk, spec ? "drafted" : "plain");
            }
        ids_free(&prompt);
        bed_close(&b);
    }
}

static void everywhere(const struct place *at)
{
    poisoned = 0;
    same_with_poison(at, "tests/golden/gemma3-a", NULL, NULL, 30);
    same_with_poison(at, "tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a", NULL, 30);
    same_with_poison(at, "tests/golden/gemma4-a", "tests/golden/gemma4-a-assistant", NULL, 20);
    same_with_poison(at, NESTLING, NESTLING_DRAFT, "count to forty", 20);
    print_message("# %s: %d cells poisoned\n", at->device, poisoned);
    assert_true(poisoned > rounds(25000, 50000) || one_in(2) > 1);
}

static void test_poison_changes_no_bit(void **state)
{
    (void)state;
    everywhere(&(struct place){"cpu", NULL, false});
}

static void test_poison_changes_no_bit_of_a_fused_cycle(void **state)
{
    (void)state;
    everywhere(&(struct place){"cpu", NULL, true});
}

static void test_poison_changes_no_bit_on_a_gpu(void **state)
{
    struct bed b;
    (void)state;
    if (!bed_device(&b, "cuda", NULL))
        skip();
    device_close(&b.dev);
    everywhere(&(struct place){"cuda", "bf16", true});
    everywhere(&(struct place){"cuda", "f32", true});
    everywhere(&(struct place){"cuda", "bf16", false});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poison_changes_no_bit),
        cmocka_unit_test(test_poison_changes_no_bit_of_a_fused_cycle),
        cmocka_unit_test(test_poison_changes_no_bit_on_a_gpu),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
