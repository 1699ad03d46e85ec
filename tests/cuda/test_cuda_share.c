/* test_cuda_share.c - two engines of one process on one device at the same time: the same replies,
 * bit for bit, as alone, and neither hangs, although their kernels wait for each other's blocks
 * (kernels/cuda/stream.cu). On the CPU, and on a GPU where there is one.
 *   test_cuda_share [SECONDS]   every engine replies so long; run as two processes at once, it is
 *                                 the test of two processes (tests/bench/two.sh) */
#include "tests/runtimes.h"

#include <pthread.h>

/* A mixture of experts in MXFP4 with the heads and windows of gpt-oss: all kernels whose blocks
 * wait for each other run in its cycles. */
static const char shape[] =
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":768,\"intermediate_size\":768,"
    "\"num_hidden_layers\":6,\"num_local_experts\":16,\"num_experts_per_tok\":4,"
    "\"num_attention_heads\":16,\"num_key_value_heads\":4,\"head_dim\":64,\"vocab_size\":4096,"
    "\"max_position_embeddings\":4096,\"sliding_window\":128}";

static int seconds;
/* Tokens of a prompt and of a reply, and rounds of replies at least; few on a CPU. */
static struct amount {
    int prompt, reply, rounds;
} amount;

/* In a thread of its own a failure ends the program. */
static void sure(bool ok, const struct err *e)
{
    if (!ok)
        die("%s", e->msg);
}

static void mix_in(uint64_t *h, uint64_t x) { *h = mix64(*h ^ x) + x; }

/* Everything that a reply of fused, replayed cycles leaves, as a digest. */
static uint64_t reply(struct runtime *r, const struct tree_shape *s)
{
    struct err e = {0};
    struct lane l = {.tap_row = -1}, *one = &l;
    uint64_t h = 0;
    const int prompt = amount.prompt, end = prompt + amount.reply;
    for (int i = 0; i < prompt; i++)
        ids_add(&l.tok, i * 7 % 4096);
    sure(lane_extend(r, &l, prompt, true, s != NULL, s ? s->topk : 1, &e), &e);
    r->fuse = r->record = true;
    while (l.tok.n < end) {
        struct step_limits lim = {end - l.tok.n};
        sure(lane_step(r, &one, &lim, 1, s, &e), &e);
        mix_in(&h, l.rec.logit_digest);
        mix_in(&h, l.rec.draft_digest);
    }
    for (int i = prompt; i < l.tok.n; i++)
        mix_in(&h, (uint64_t)l.tok.v[i]);
    lane_free(r, &l);
    return h;
}

/* An engine's work: replies until the time is over, at least so many rounds. want 0: sets it. */
struct work {
    const char *device;
    uint64_t want, until;
    int replies, wrong;
};

static void run(struct work *w)
{
    static const struct tree_shape shapes[] = {{1, 3, 4}, {4, 3, 12}};
    struct bed b;
    struct err e = {0};
    sure(bed_device(&b, w->device, NULL), &(struct err){.msg = "no such device"});
    sure(model_shaped(&b.m, shape, &e) && draft_shaped(&b.d, &b.m, 512, 1000, &e), &e);
    b.has_draft = true;
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = 512, .kv = b.dev.kv});
    for (int i = 0; i < amount.rounds || clock_ns() < w->until; i++) {
        uint64_t h = 0;
        mix_in(&h, reply(&b.r, NULL));
        for (int s = 0; s < 2; s++)
            mix_in(&h, reply(&b.r, &shapes[s]));
        w->want = w->want ? w->want : h;
        w->wrong += h != w->want;
        w->replies += 3;
    }
    runtime_close(&b.r);
    draft_free(&b.d);
    model_free(&b.m);
    device_close(&b.dev);
}

static void *run_thread(void *w)
{
    run(w);
    return NULL;
}

static void two_engines(const char *device)
{
    struct bed b;
    if (!bed_device(&b, device, NULL))
        skip();
    device_close(&b.dev);
    struct work alone = {.device = device}, w[2];
    pthread_t t[2];
    run(&alone);
    assert_int_equal(alone.wrong, 0);
    for (int i = 0; i < 2; i++) {
        w[i] = (struct work){.device = device, .want = alone.want,
                             .until = clock_ns() + (uint64_t)seconds * 1000000000u};
        assert_int_equal(pthread_create(&t[i], NULL, run_thread, &w[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    print_message("# %s: digest %016llx, %d and %d replies beside each other, %d wrong\n", device,
                  (unsigned long long)alone.want, w[0].replies, w[1].replies,
                  w[0].wrong + w[1].wrong);
    assert_int_equal(w[0].wrong + w[1].wrong, 0);
}

static void test_two_engines_on_a_cpu(void **state)
{
    (void)state;
    amount = (struct amount){20, 5, 1};
    two_engines("cpu");
}

static void test_two_engines_on_a_gpu(void **state)
{
    (void)state;
    amount = (struct amount){300, 60, 3};
    two_engines("cuda");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest on_gpu[] = {cmocka_unit_test(test_two_engines_on_a_gpu)};
    const struct CMUnitTest all[] = {cmocka_unit_test(test_two_engines_on_a_cpu), on_gpu[0]};
    seconds = argc > 1 ? atoi(argv[1]) : 0;
    return seconds ? cmocka_run_group_tests(on_gpu, NULL, NULL)
                   : cmocka_run_group_tests(all, NULL, NULL);
}
