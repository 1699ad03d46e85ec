/* runtime.c - see runtime.h. */
#include "engine/cycle/runtime.h"

#include "engine/cycle/accept.h"
#include "engine/cycle/fused.h"
#include "engine/cycle/pools.h"
#include "engine/cycle/steer.h"

#include <stdlib.h>
#include <string.h>

/* Carries out page copies that the cache queued: page_size cell moves each, pool by pool. */
static void copy_pages(void *arg, const struct page_copy *copy, int n)
{
    struct runtime *r = arg;
    int P = r->kv.page_size;
    int32_t src[64], dst[64];
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < P; j++) {
            src[j] = copy[i].src * P + j;
            dst[j] = copy[i].dst * P + j;
        }
        r->dev.k->put(r->dev.d, r->pair_src, src, (size_t)P * sizeof *src);
        r->dev.k->put(r->dev.d, r->pair_dst, dst, (size_t)P * sizeof *dst);
        if (copy[i].pool == POOL_DRAFT) {
            head_move(r->drafter->head, P, r->pair_src, r->pair_dst);
            continue;
        }
        kbuf from[2] = {{0}}, to[2] = {{0}};
        from[copy[i].pool] = r->pair_src;
        to[copy[i].pool] = r->pair_dst;
        net_move(&r->net, P, from, to);
    }
}

static bool open_buffers(struct runtime *r, struct err *e)
{
    size_t rows = (size_t)r->max_rows * 4, vocab = (size_t)r->m->cfg.vocab * 4;
    const struct {
        kbuf *b;
        size_t bytes;
    } all[] = {
        {&r->logits, (size_t)r->max_logits * vocab}, {&r->path_logits, (MAX_STEPS + 1) * vocab},
        {&r->ids, rows * DIGEST_BEST}, {&r->p, rows * DIGEST_BEST}, {&r->u, rows}, {&r->row, rows},
        {&r->logp, rows}, {&r->idx, rows}, {&r->pair_src, (size_t)K_MAX_PAIRS * 4},
        {&r->pair_dst, (size_t)K_MAX_PAIRS * 4},
        {&r->changes, steer_bytes(r->m->cfg.vocab)},
        {&r->bans, steer_ban_bytes(r->m->cfg.vocab)}};
    bool ok = true;
    for (size_t i = 0; i < sizeof all / sizeof *all && ok; i++) {
        *all[i].b = r->dev.k->alloc(r->dev.d, all[i].bytes, "sampling buffers", e);
        ok = all[i].b->p != NULL;
    }
    return ok;
}

/* Registers the memory behind each pool: tables carry its identity, and the checker compares it. */
static void register_pools(struct runtime *r, const struct kv_shape *ks)
{
    const void *base[N_POOLS] = {NULL};
    for (int l = r->m->cfg.n_layer - 1; l >= 0; l--)
        base[r->m->layer[l].window ? POOL_SWA : POOL_FULL] = r->net.cells[l].k.p;
    if (r->drafter)
        base[POOL_DRAFT] = r->drafter;
    for (int p = 0; p < N_POOLS; p++)
        if (r->kv.pool[p].total)
            kv_back(&r->kv, (enum pool_id)p, base[p], kv_cells(ks, (enum pool_id)p));
}

bool runtime_open(struct runtime *r, struct device dev, struct model *m, struct draft *draft,
                  const struct runtime_shape *shape, struct err *e)
{
    struct kv_shape ks;
    *r = (struct runtime){0};
    if (!pools_shape(shape, m, draft, &ks, e))
        return false;
    *r = (struct runtime){.dev = dev, .m = m, .context = shape->context,
                          .max_rows = pools_rows(shape)};
    r->fuse = r->record = dev.k->queued;
    r->max_logits = TREE_MAX * max_int(1, shape->lanes);
    kv_init(&r->kv, &ks);
    pass_init(&r->pass, dev, &r->kv);
    r->pass.copy = copy_pages;
    r->pass.copy_arg = r;
    bool ok = net_open(&r->net, dev, m, kv_cells(&ks, POOL_FULL), kv_cells(&ks, POOL_SWA),
                       shape->kv, r->max_rows, e) &&
              open_buffers(r, e);
    if (ok && draft) {
        struct drafter_setup setup = {dev, draft, &r->net, kv_cells(&ks, POOL_DRAFT), shape->kv,
                                      r->max_rows + 1};
        r->drafter = drafter_open(&setup, e);
        ok = r->drafter != NULL;
        r->pass.opts.draft_window = draft_window(draft);
        memcpy(r->pass.opts.draft_causal, draft->causal, sizeof draft->causal);
        for (int l = 0; l < draft->cfg.n_layer; l++)
            r->pass.opts.draft_full |= draft->layer[l].window == 0;
    }
    ok = ok && dev.k->sync(dev.d, e); /* the pools are filled */
    if (ok)
        register_pools(r, &ks);
    else
        runtime_close(r);
    if (ok && shape->bugs)
        runtime_set_bugs(r, shape->bugs);
    return ok;
}

void runtime_close(struct runtime *r)
{
    if (!r->dev.k)
        return;
    fused_close(r);
    kbuf all[] = {r->logits, r->path_logits, r->ids, r->p, r->u, r->row, r->logp, r->idx,
                  r->pair_src, r->pair_dst, r->mask, r->changes, r->bans};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        r->dev.k->release(r->dev.d, all[i]);
    drafter_close(r->drafter);
    net_close(&r->net);
    pass_free(&r->pass);
    kv_free(&r->kv);
    *r = (struct runtime){0};
}

bool runtime_mask(struct runtime *r, const uint8_t *mask, int n, struct err *e)
{
    size_t v = (size_t)r->m->cfg.vocab;
    uint8_t *all = xmalloc(v);
    memset(all, 1, v);
    memcpy(all, mask, (size_t)min_int(n, (int)v));
    r->mask = r->dev.k->alloc(r->dev.d, v, "token mask", e);
    if (r->mask.p)
        r->dev.k->put(r->dev.d, r->mask, all, v);
    free(all);
    return r->mask.p != NULL;
}

void runtime_choices(struct runtime *r, int rows, int32_t *choice)
{
    const struct kernels *k = r->dev.k;
    for (int at = 0, n; at < rows; at += n) {
        int32_t row[TREE_MAX];
        n = min_int(min_int(r->max_logits, TREE_MAX), rows - at);
        for (int i = 0; i < n; i++)
            row[i] = at + i;
        k->put(r->dev.d, r->row, row, (size_t)n * sizeof *row);
        net_logits(&r->net, n, r->row, r->logits, (kbuf){0});
        k->topk(r->dev.d, &(struct k_topk){.rows = n, .n = r->m->cfg.vocab, .k = 1,
                                           .logits = r->logits, .ids = r->ids, .logp = r->p});
        k->get(r->dev.d, choice + at, r->ids, (size_t)n * sizeof *choice);
    }
}

bool runtime_stops(const struct runtime *r, int32_t id)
{
    return tree_stops(r->stop, r->n_stop, id, false);
}
