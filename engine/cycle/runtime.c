/* runtime.c - see runtime.h. */
#include "engine/cycle/runtime.h"

#include "engine/cycle/accept.h"
#include "engine/cycle/fused.h"
#include "engine/cycle/pools.h"
#include "engine/cycle/steer.h"

/* Carries out page copies that the cache queued: page_size cell moves each, pool by pool. */
static void copy_pages(void *arg, const struct page_copy *copy, int n)
{
    struct runtime *rt = arg;
    int P = rt->kv.page_size;
    int32_t src[64], dst[64];
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < P; j++) {
            src[j] = copy[i].src * P + j;
            dst[j] = copy[i].dst * P + j;
        }
        rt->dev.k->put(rt->dev.d, rt->pair_src, src, (size_t)P * sizeof *src);
        rt->dev.k->put(rt->dev.d, rt->pair_dst, dst, (size_t)P * sizeof *dst);
        if (copy[i].pool == POOL_DRAFT) {
            head_move(rt->drafter->head, P, rt->pair_src, rt->pair_dst);
            continue;
        }
        kbuf from[2] = {{0}}, to[2] = {{0}};
        from[copy[i].pool] = rt->pair_src;
        to[copy[i].pool] = rt->pair_dst;
        net_move(&rt->net, P, from, to);
    }
}

static bool open_buffers(struct runtime *rt, struct err *e)
{
    size_t rows = (size_t)rt->max_rows * 4, vocab = (size_t)rt->model->cfg.vocab * 4;
    const struct {
        kbuf *b;
        size_t bytes;
    } all[] = {
        {&rt->logits, (size_t)rt->max_logits * vocab}, {&rt->path_logits, (MAX_STEPS + 1) * vocab},
        {&rt->ids, rows * DIGEST_BEST}, {&rt->prob, rows * DIGEST_BEST}, {&rt->uniform, rows},
        {&rt->row, rows},
        {&rt->logp, rows}, {&rt->idx, rows}, {&rt->pair_src, (size_t)K_MAX_PAIRS * 4},
        {&rt->pair_dst, (size_t)K_MAX_PAIRS * 4},
        {&rt->changes, steer_bytes(rt->model->cfg.vocab)},
        {&rt->bans, steer_ban_bytes(rt->model->cfg.vocab)}};
    bool ok = true;
    for (size_t i = 0; i < LEN(all) && ok; i++) {
        *all[i].b = rt->dev.k->alloc(rt->dev.d, all[i].bytes, "sampling buffers", e);
        ok = all[i].b->p != NULL;
    }
    return ok;
}

/* Registers the memory behind each pool: tables carry its identity, and the checker compares it. */
static void register_pools(struct runtime *rt, const struct kv_shape *sizes)
{
    const void *base[N_POOLS] = {NULL};
    for (int l = rt->model->cfg.n_layer - 1; l >= 0; l--)
        base[rt->model->layer[l].window ? POOL_SWA : POOL_FULL] = rt->net.cells[l].k.p;
    if (rt->drafter)
        base[POOL_DRAFT] = rt->drafter;
    for (int p = 0; p < N_POOLS; p++)
        if (rt->kv.pool[p].total)
            kv_back(&rt->kv, (enum pool_id)p, base[p], kv_cells(sizes, (enum pool_id)p));
}

bool runtime_open(struct runtime *rt, struct device dev, struct model *model, struct draft *draft,
                  const struct runtime_shape *shape, struct err *e)
{
    struct kv_shape sizes;
    *rt = (struct runtime){0};
    if (!pools_shape(shape, model, draft, &sizes, e))
        return false;
    *rt = (struct runtime){.dev = dev, .model = model, .context = shape->context,
                           .max_rows = pools_rows(shape)};
    rt->fuse = rt->record = dev.k->queued;
    rt->max_logits = TREE_MAX * max_int(1, shape->lanes);
    kv_init(&rt->kv, &sizes);
    pass_init(&rt->pass, dev, &rt->kv);
    rt->pass.copy = copy_pages;
    rt->pass.copy_arg = rt;
    bool ok = net_open(&rt->net, dev, model, kv_cells(&sizes, POOL_FULL),
                       kv_cells(&sizes, POOL_SWA), shape->kv, rt->max_rows, e) &&
              open_buffers(rt, e);
    if (ok && draft) {
        struct drafter_setup setup = {dev, draft, &rt->net, kv_cells(&sizes, POOL_DRAFT), shape->kv,
                                      rt->max_rows + 1};
        rt->drafter = drafter_open(&setup, e);
        ok = rt->drafter != NULL;
        rt->pass.opts.draft_window = draft_window(draft);
        memcpy(rt->pass.opts.draft_causal, draft->causal, sizeof draft->causal);
        for (int l = 0; l < draft->cfg.n_layer; l++)
            rt->pass.opts.draft_full |= draft->layer[l].window == 0;
    }
    ok = ok && dev.k->sync(dev.d, e); /* the pools are filled */
    if (ok)
        register_pools(rt, &sizes);
    else
        runtime_close(rt);
    if (ok && shape->bugs)
        runtime_set_bugs(rt, shape->bugs);
    return ok;
}

void runtime_close(struct runtime *rt)
{
    if (!rt->dev.k)
        return;
    fused_close(rt);
    kbuf all[] = {rt->logits, rt->path_logits, rt->ids, rt->prob, rt->uniform, rt->row, rt->logp,
                  rt->idx, rt->pair_src, rt->pair_dst, rt->mask, rt->changes, rt->bans};
    for (size_t i = 0; i < LEN(all); i++)
        rt->dev.k->release(rt->dev.d, all[i]);
    drafter_close(rt->drafter);
    net_close(&rt->net);
    pass_free(&rt->pass);
    kv_free(&rt->kv);
    *rt = (struct runtime){0};
}

bool runtime_mask(struct runtime *rt, const uint8_t *mask, int n, struct err *e)
{
    size_t v = (size_t)rt->model->cfg.vocab;
    FREED(free_at) uint8_t *all = xmalloc(v);
    memset(all, 1, v);
    memcpy(all, mask, (size_t)min_int(n, (int)v));
    rt->mask = rt->dev.k->alloc(rt->dev.d, v, "token mask", e);
    if (rt->mask.p)
        rt->dev.k->put(rt->dev.d, rt->mask, all, v);
    return rt->mask.p != NULL;
}

int runtime_logits(struct runtime *rt, int first, int rows)
{
    int32_t row[TREE_MAX];
    int n = min_int(min_int(rt->max_logits, TREE_MAX), rows - first);
    for (int i = 0; i < n; i++)
        row[i] = first + i;
    rt->dev.k->put(rt->dev.d, rt->row, row, (size_t)n * sizeof *row);
    net_logits(&rt->net, n, rt->row, rt->logits);
    return n;
}

void runtime_choices(struct runtime *rt, int rows, int32_t *choice)
{
    const struct kernels *k = rt->dev.k;
    for (int at = 0, n; at < rows; at += n) {
        n = runtime_logits(rt, at, rows);
        k->topk(rt->dev.d, &(struct k_topk){.rows = n, .n = rt->model->cfg.vocab, .k = 1,
                                            .logits = rt->logits, .ids = rt->ids,
                                            .logp = rt->prob});
        k->get(rt->dev.d, choice + at, rt->ids, (size_t)n * sizeof *choice);
    }
}

bool runtime_stops(const struct runtime *rt, int32_t id)
{
    return tree_stops(rt->stop, rt->n_stop, id, false);
}
