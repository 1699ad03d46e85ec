/* bench_host.c - what the host does in a fused cycle, on a device that computes nothing: the
 * models' operations are left out, those of the draft tree and of the ports are the CPU's. Before:
 * from the call to the launch; during: work that hides behind the device's; after: from the
 * results to the end. Before and after are what a chat waits for; the driver's launch comes on
 * top.
 */
#include "tests/runtimes.h"

#define NO_OP(name, args)                                                                   \
    static void no_##name(struct kdev *d, const struct args *a)                             \
    {                                                                                       \
        (void)d, (void)a;                                                                   \
    }
NO_OP(embed, k_embed)
NO_OP(rope, k_rope)
NO_OP(normalize, k_normalize)
NO_OP(linear, k_linear)
NO_OP(glu, k_glu)
NO_OP(qkv, k_qkv)
NO_OP(attn, k_attn)
NO_OP(merge, k_merge)
NO_OP(moe, k_moe)
NO_OP(scale, k_scale)
NO_OP(rows, k_rows)
NO_OP(lay, k_gather)
NO_OP(move, k_move)

static uint64_t rng = 1;

static uint64_t roll(void)
{
    rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return rng >> 33;
}

/* Any ids and falling log probabilities, so that trees of every form grow. */
static void some_topk(struct kdev *d, const struct k_topk *a)
{
    int32_t *ids = a->ids.p;
    float *logp = a->logp.p;
    (void)d;
    for (int i = 0; i < a->rows; i++) {
        int32_t first = (int32_t)(roll() % (uint64_t)a->n);
        float at = -0.1f - (float)(roll() % 100) * 0.01f;
        for (int j = 0; j < a->k; j++) {
            ids[i * a->k + j] = (first + j) % a->n;
            logp[i * a->k + j] = at;
            at -= 0.1f + (float)(roll() % 100) * 0.01f;
        }
    }
}

static void some_sample(struct kdev *d, const struct k_sample *a)
{
    (void)d;
    for (int i = 0; i < a->rows; i++)
        ((int32_t *)a->ids.p)[i] = (int32_t)(roll() % (uint64_t)a->n);
}

static void some_logp(struct kdev *d, const struct k_logp *a)
{
    (void)d;
    for (int i = 0; i < a->pairs; i++)
        ((float *)a->logp.p)[i] = -1;
}

static void some_read(struct kdev *d, const struct k_read *a)
{
    some_sample(d, a->sample);
    some_topk(d, a->topk);
    if (a->logp)
        some_logp(d, a->logp);
}

/* Between a run and its results everything else may pass through the caches. */
static bool cold;
static const struct kernels *real;

static const void *late_outbox(struct kdev *d)
{
    enum { LINES = (16 << 20) / 64 };
    static char other[LINES * 64];
    for (int i = 0; cold && i < LINES; i++)
        other[i * 64]++;
    return real->outbox(d);
}

static struct kernels idle_device(const struct kernels *device)
{
    struct kernels k = *device;
    real = device;
    k.embed = no_embed, k.rope = no_rope, k.normalize = no_normalize, k.linear = no_linear;
    k.glu = no_glu, k.qkv = no_qkv, k.attn = no_attn, k.merge = no_merge, k.moe = no_moe;
    k.scale = no_scale, k.rows = no_rows, k.gather = no_lay, k.move = no_move;
    k.topk = some_topk, k.sample = some_sample, k.logp = some_logp, k.read = some_read;
    k.outbox = late_outbox;
    k.queued = true;
    return k;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void cycles(struct runtime *r, int context, const char *name, const struct tree_shape *shape,
                   double accepted)
{
    enum { WARM = 20, N = 401 };
    double before[N], during[N], after[N], both[N], check[N], due = 0;
    struct err e = {0};
    struct lane l = {.tap_row = -1}, *lp = &l;
    for (int i = 0; i <= context; i++)
        ids_add(&l.tok, (int32_t)(roll() % (uint64_t)r->model->cfg.vocab));
    lane_prompt(r, &l, 512, shape);
    for (int i = -WARM; i < N; i++) {
        due += accepted;
        l.force = (int)due;
        due -= l.force;
        uint64_t checked = r->pass.check.ns;
        must(lane_step(r, &lp, &(struct step_limits){1 << 20}, 1, shape, &e), &e);
        if (i < 0)
            continue;
        before[i] = (double)r->host.before * 1e-3;
        during[i] = (double)r->host.during * 1e-3;
        after[i] = (double)r->host.after * 1e-3;
        both[i] = before[i] + after[i];
        check[i] = (double)(r->pass.check.ns - checked) * 1e-3;
    }
    double *all[] = {before, during, after, check, both};
    for (int i = 0; i < 5; i++)
        qsort(all[i], N, sizeof **all, by_value);
    printf("%-7s %6d cells%s  %7.2f us [%.2f, %.2f]   before %6.2f  after %6.2f   during %6.2f"
           "   checks %6.2f\n", name, context, cold ? ", cold" : "      ", both[N / 2],
           both[N / 10], both[N * 9 / 10],
           before[N / 2], after[N / 2], during[N / 2], check[N / 2]);
    lane_free(r, &l);
}

int main(void)
{
    static const struct {
        const char *name;
        struct tree_shape shape;
        double accepted;
    } kind[] = {{"plain", {0, 0, 0}, 0}, {"2-1-3", {2, 1, 3}, 2.35}, {"3-1-4", {3, 1, 4}, 2.35},
                {"5-8-60", {5, 8, 60}, 4.0}};
    static const int context[] = {512, 32768, 131072};
    struct bed b;
    bed_models(&b, "models/nestling/target", "models/nestling/draft");
    bed_chat(&b, "models/nestling/target");
    struct kernels idle = idle_device(b.dev.k);
    b.dev.k = &idle;
    b.m.cfg.max_pos = b.d.cfg.max_pos = 1 << 18;
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = 131072 + 4096});
    printf("host time of a cycle, page size 16, window %d; medians [10 %%, 90 %%] of 401\n",
           b.m.cfg.window);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++)
            cycles(&b.r, context[i], kind[j].name, kind[j].shape.steps ? &kind[j].shape : NULL,
                   kind[j].accepted);
    cold = true;
    for (int j = 0; j < 4; j++)
        cycles(&b.r, context[1], kind[j].name, kind[j].shape.steps ? &kind[j].shape : NULL,
               kind[j].accepted);
    bed_close(&b);
    return 0;
}
