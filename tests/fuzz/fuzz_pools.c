/* Sizes of pools from hostile configs and flags: page counts, page sizes, windows, contexts, rows,
 * lanes and draft settings, read from the input as numbers of which most are edges. A shape is
 * refused with a message, or its sizes are within bounds; pools that are small enough are built
 * over a small model, and run a prompt, a fork and two steps. */
#include "engine/cycle/cycle.h"
#include "engine/cycle/pools.h"
#include "engine/run/device.h"
#include "tests/fuzz/fuzz.h"

const int fuzz_inputs = 600;

/* ---- numbers --------------------------------------------------------------------------------- */

/* The bytes of the input, and behind them others that follow from them: a short input is a whole
 * case. */
struct input {
    const uint8_t *p;
    size_t n;
    uint64_t dice;
};

static unsigned byte_of(struct input *in)
{
    if (in->n)
        return in->n--, *in->p++;
    in->dice = mix64(in->dice);
    return in->dice & 0xff;
}

static int64_t raw(struct input *in, int bytes)
{
    int64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v = v << 8 | byte_of(in);
    return v;
}

/* A number whose product with `by` wraps around 32 bits to a small one. */
static int64_t wraps(struct input *in, int64_t by)
{
    int64_t turns = 1 + byte_of(in) % 16, beyond = byte_of(in);
    return ((turns << 32) + beyond * by) / by;
}

/* An int. by: a factor that the number will meet, if it is one that sizes have. */
static int number(struct input *in, int64_t by)
{
    static const int64_t edge[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 127, 128,
                                   255, 256, 257, 511, 512,
                                   513, 1023, 4095, 4096, 65535, 65536, 131072, 1 << 24,
                                   (1 << 24) + 1, 171798464,
                                   1 << 25, (1 << 25) - 1, 1 << 26, 1 << 28, 1 << 30, (1 << 30) + 1,
                                   INT32_MAX - 64,
                                   INT32_MAX - 1, INT32_MAX, -1, -2, -64, INT32_MIN, INT32_MIN + 1};
    int64_t v;
    by = by < 1 || by > 1 << 20 ? 1 : by;
    switch (byte_of(in) % 8) {
    case 0:
        v = 0;
        break;
    case 1:
        v = byte_of(in) % 32;
        break;
    case 2:
        v = edge[byte_of(in) % (sizeof edge / sizeof *edge)];
        break;
    case 3:
        v = (INT64_C(1) << byte_of(in) % 31) + (int)(byte_of(in) % 3) - 1;
        break;
    case 4:
        v = raw(in, 2);
        break;
    case 5:
        v = raw(in, 4);
        break;
    case 6:
        v = wraps(in, by);
        break;
    default:
        v = INT32_MAX / by + (int)(byte_of(in) % 3) - 1;
        break;
    }
    return (int)(int32_t)(uint32_t)(uint64_t)v;
}

/* Mostly a number of a user's, from lo to hi. */
static int setting(struct input *in, int lo, int hi, int64_t by)
{
    bool odd = byte_of(in) % 3 == 0;
    return odd ? number(in, by) : lo + (int)(raw(in, 2) % (hi - lo + 1));
}

/* The number if config.json may have it, else another one that it may have. */
static int within(int v, int lo, int hi)
{
    int64_t n = (int64_t)hi - lo + 1, off = ((int64_t)v - lo) % n;
    return (int)(lo + (off < 0 ? off + n : off));
}

/* ---- models ---------------------------------------------------------------------------------- */

static struct pair {
    const char *target, *draft;
    struct model m;
    struct draft d;
    int draft_window; /* as loaded; 0: none */
} pairs[] = {
    {.target = "tests/golden/gemma3-b"},
    {.target = "tests/golden/gemma3-b", .draft = "ngram"},
    {.target = "tests/golden/llama-b", .draft = "tests/golden/eagle3-nvidia-b"},
    {.target = "tests/golden/gptoss-a", .draft = "tests/golden/eagle3-gptoss-a"},
    {.target = "tests/golden/gemma4-a", .draft = "tests/golden/gemma4-a-assistant"},
    {.target = "tests/golden/gemma3-b", .draft = "tests/golden/dflash-swa-b"},
    {.target = "tests/golden/gemma3-b", .draft = "tests/golden/peagle-swa-b"},
    {.target = "tests/golden/gemma3-b", .draft = "tests/golden/dspark-gated-b"},
};

static struct device device;

static struct pair *load(unsigned which)
{
    struct pair *p = &pairs[which % (sizeof pairs / sizeof *pairs)];
    struct err e;
    if (!device.k && !device_open(&device, "cpu", 1, NULL, &e))
        die("%s", e.msg);
    if (p->m.layer)
        return p;
    if (!model_load(&p->m, p->target, NULL, &e) ||
        (p->draft && !drafter_load(&p->d, p->draft, &p->m, NULL, NULL, &e))) die("%s", e.msg);
    return p;
}

/* Windows as config.json may give them. */
static void set_windows(struct pair *p, struct input *in, int64_t by)
{
    const int most = 1 << 30; /* of models/checkpoint/config.c */
    if (p->m.cfg.window)
        p->m.cfg.window = within(setting(in, 1, 100, by), 1, most);
    for (int i = 0; i < p->m.cfg.n_layer; i++)
        if (p->m.layer[i].window)
            p->m.layer[i].window = p->m.cfg.window;
    int own = within(setting(in, 1, 100, by), 1, most);
    for (int i = 0; i < p->d.cfg.n_layer; i++)
        if (p->d.layer[i].window)
            p->d.layer[i].window = own;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static struct runtime_shape shape_of(struct input *in, int page_size)
{
    struct runtime_shape s = {.page_size = page_size};
    s.context = setting(in, 2, 300, page_size);
    if (byte_of(in) % 2)
        s.full_pages = setting(in, 4, 80, page_size);
    if (byte_of(in) % 2)
        s.swa_pages = setting(in, 4, 80, page_size);
    s.max_rows = setting(in, 1, 80, 4);
    s.lanes = setting(in, 0, 3, TREE_MAX);
    return s;
}

/* The properties of sizes that were not refused. */
static void check_shape(const struct runtime_shape *s, const struct kv_shape *k)
{
    const int pages[N_POOLS] = {k->full_pages, k->swa_pages, k->draft_pages};
    for (int p = 0; p < N_POOLS; p++)
        CHECK(pages[p] >= 0 && (int64_t)pages[p] * s->page_size <= INT32_MAX);
    CHECK(k->full_pages > GUARD_PAGES && (k->window > 0) == (k->swa_pages > 0));
    CHECK(s->swa_pages || k->swa_pages <= k->full_pages);
    int64_t lanes = s->lanes ? s->lanes : 1, scratch = pools_rows(s) + 3 * s->page_size;
    int64_t held = s->context + 3 * s->page_size;
    CHECK(s->swa_pages || (int64_t)k->swa_pages * s->page_size <= lanes * (held + scratch) +
          16 * held);
}

/* ---- two steps ------------------------------------------------------------------------------- */

/* Pools and buffers that are built and freed a thousand times a second. */
static bool is_small(const struct runtime_shape *s, const struct kv_shape *k)
{
    return kv_bytes(k) < 256 << 10 && pools_rows(s) <= 256;
}

static bool fine(bool ok, struct err *e)
{
    if (!ok) {
        fuzz_message(e);
        if (e->kind == ERR_INVARIANT) die("%s", e->msg);
    }
    return ok;
}

/* The prompt in chunks. False: the pools are short. */
static bool run_prompt(struct runtime *r, struct lane *l, int n, int chunk, int topk)
{
    struct err e = {0};
    for (int i = 0; i < n; i++)
        ids_add(&l->tok, i * 7 % r->model->cfg.vocab);
    for (int to = 0; to < n;) {
        to = min_int(to + chunk, n);
        if (!fine(lane_extend(r, l, to, to == n, topk > 0, max_int(1, topk), &e), &e))
            return false;
    }
    return true;
}

static void run(struct runtime *r, struct input *in)
{
    struct err e = {0};
    struct tree_shape tree = {(int)(1 + byte_of(in) % MAX_STEPS), (int)(1 + byte_of(in) % MAX_TOPK),
                              (int)(2 + byte_of(in) % (TREE_MAX - 1))};
    const struct tree_shape *shape = r->drafter ? &tree : NULL;
    struct lane lane[2] = {{.tap_row = -1, .run_on = true}, {.tap_row = -1, .run_on = true}},
        *live[2] = {&lane[0], &lane[1]};
    int n = min_int((int)(1 + byte_of(in) % 40), r->context - 1),
        lanes = 1 + (int)(byte_of(in) % 2);
    int chunk = min_int((int)(1 + byte_of(in) % 40), r->max_rows);
    if (n < 1 || !run_prompt(r, &lane[0], n, chunk, shape ? shape->topk : 0))
        lanes = 0;
    if (lanes > 0)
        lane_park(r, &lane[0]);
    lanes = min_int(lanes, runtime_step_lanes(r, shape));
    if (lanes > 1)
        lane_fork(r, &lane[0], &lane[1]);
    for (int step = 0; step < 2 && lanes; step++) {
        struct step_limits lim[2] = {{r->context - lane[0].tok.n},
                                     {r->context - lane[lanes - 1].tok.n}};
        if (lim[0].max_new < 1 || lim[1].max_new < 1 ||
            !fine(lane_step(r, live, lim, lanes, shape, &e), &e)) break;
    }
    const struct seq *const all[2] = {&lane[0].seq, &lane[1].seq};
    fine(kv_check(&r->kv, all, 2, &e), &e);
    for (int i = 0; i < 2; i++)
        lane_free(r, &lane[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct input in = {data, n, hash64(data, n, 1)};
    struct err e = {0};
    struct kv_shape k;
    struct runtime r;
    struct pair *p = load(byte_of(&in));
    unsigned size = byte_of(&in);
    int page_size = size < 8 ? number(&in, 1) : 1 << size % 7;
    struct runtime_shape s = shape_of(&in, page_size);
    set_windows(p, &in, (s.lanes + INT64_C(16)) * page_size);
    struct draft *d = p->draft ? &p->d : NULL;
    if (!pools_shape(&s, &p->m, d, &k, &e)) {
        fuzz_message(&e);
        CHECK(!runtime_open(&r, device, &p->m, d, &s, &e));
        return 0;
    }
    check_shape(&s, &k);
    if (!is_small(&s, &k))
        return 0;
    if (!runtime_open(&r, device, &p->m, d, &s, &e))
        die("%s", e.msg);
    run(&r, &in);
    runtime_close(&r);
    return 0;
}
