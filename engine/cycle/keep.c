/* keep.c - see keep.h. */
#include "engine/cycle/keep.h"

#include <stdlib.h>
#include <string.h>

static void *copy_of(const void *p, size_t bytes)
{
    return p && bytes ? memcpy(xmalloc(bytes), p, bytes) : NULL;
}

/* ---- contents of pages ----------------------------------------------------------------------- */

/* Bytes of a page in one layer's keys (or values). */
static size_t page_bytes(const struct runtime *r, const struct k_cells *c)
{
    return (size_t)r->kv.page_size * kv_cell_bytes(c->type, c->n_kv, c->head_dim);
}

/* Calls move for runs of pages with successive numbers: their place in a buffer of the pool, and in
 * the kept bytes. Returns the bytes of all pages. */
typedef void move_fn(struct runtime *r, kbuf on_device, uint8_t *kept, size_t bytes);

static size_t each_run(struct runtime *r, const struct k_cells *c, const int32_t *page, int n,
                       uint8_t *kept, move_fn *move)
{
    const kbuf side[2] = {c->k, c->v};
    size_t one = page_bytes(r, c), done = 0;
    for (int s = 0; s < 2; s++)
        for (int i = 0, run; i < n; i += run) {
            for (run = 1; i + run < n && page[i + run] == page[i] + run; run++)
                ;
            size_t bytes = one * (size_t)run;
            if (move)
                move(r, kbuf_at(side[s], one * (size_t)page[i], bytes), kept + done, bytes);
            done += bytes;
        }
    return done;
}

/* The same for the kept pages of every layer of the pools whose pages a turn releases. */
static size_t each_kept(const struct kept *k, struct runtime *r, move_fn *move)
{
    const struct head *h = r->drafter ? r->drafter->head : NULL;
    size_t done = 0;
    for (int l = 0; l < r->net.n_of_pool[POOL_SWA]; l++)
        done += each_run(r, &r->net.of_pool[POOL_SWA][l], k->of[POOL_SWA].page, k->of[POOL_SWA].n,
                         move ? k->cells + done : NULL, move);
    for (int l = 0; h && l < h->n_cells; l++)
        done += each_run(r, &h->cells[l], k->of[POOL_DRAFT].page, k->of[POOL_DRAFT].n,
                         move ? k->cells + done : NULL, move);
    return done;
}

static void read_cells(struct runtime *r, kbuf on_device, uint8_t *kept, size_t bytes)
{
    r->dev.k->get(r->dev.d, kept, on_device, bytes);
}

static void write_cells(struct runtime *r, kbuf on_device, uint8_t *kept, size_t bytes)
{
    r->dev.k->put(r->dev.d, on_device, kept, bytes);
}

/* Adds a page if only this lane holds it: once released, it may be overwritten. */
static void add_page(struct kept *k, const struct runtime *r, enum pool_id pool, int32_t page)
{
    if (page && r->kv.pool[pool].ref[page] == 1)
        k->of[pool].page[k->of[pool].n++] = page;
}

/* Keeps the pages that the coming steps may release because they leave a window. */
static void keep_pages(struct kept *k, struct runtime *r, const struct seq *s)
{
    int n = r->kv.draft_window ? s->n_dcol : 0;
    k->of[POOL_SWA].page = xmalloc((size_t)max_int(1, s->n_col) * sizeof(int32_t));
    k->of[POOL_DRAFT].page = xmalloc((size_t)max_int(1, n) * sizeof(int32_t));
    for (int c = 0; c < s->n_col; c++)
        add_page(k, r, POOL_SWA, s->col[c].swa.v);
    for (int c = 0; c < n; c++)
        add_page(k, r, POOL_DRAFT, s->dcol[c].v);
    size_t bytes = each_kept(k, r, NULL);
    k->cells = xmalloc(bytes ? bytes : 1);
    each_kept(k, r, read_cells);
    k->bytes += bytes + (size_t)(s->n_col + n) * sizeof(int32_t);
}

/* ---- the drafter ----------------------------------------------------------------------------- */

static size_t root_bytes(const struct head *h)
{
    CHECK(h);
    return (size_t)h->state_n * sizeof(float);
}

/* The state of the lane's slot, and the captured states of its last cell. */
static void keep_drafter(struct kept *k, struct runtime *r, const struct lane *l)
{
    struct head *h = r->drafter ? r->drafter->head : NULL;
    if (!h)
        return;
    if (l->slot) {
        k->root = xmalloc(root_bytes(h));
        r->dev.k->get(r->dev.d, k->root, head_root(h, l->slot - 1), root_bytes(h));
        k->bytes += root_bytes(h);
    }
    size_t tap = (size_t)head_tap_floats(h) * sizeof *l->tap;
    if (l->tap_row >= 0) {
        k->lane.tap = xmalloc(tap);
        head_get_tap(h, l->tap_row, k->lane.tap);
    } else if (l->tap) {
        k->lane.tap = copy_of(l->tap, tap);
    }
    k->lane.tap_row = -1;
    k->bytes += k->lane.tap ? tap : 0;
    if (l->behind)
        k->backlog = xmalloc(tap * (size_t)l->behind);
    for (int i = 0; i < l->behind; i++)
        head_get_tap(h, head_backlog_row(h, i), k->backlog + mul64(i, head_tap_floats(h)));
    k->bytes += tap * (size_t)l->behind;
}

/* ---- the state ------------------------------------------------------------------------------- */

void keep_state(struct kept *k, struct runtime *r, const struct lane *l)
{
    *k = (struct kept){.lane = *l, .slots = r->slots};
    pass_copies(&r->pass);
    k->lane.tok.v = NULL;
    k->lane.tap = NULL;
    k->lane.seq.col = copy_of(l->seq.col, (size_t)l->seq.n_col * sizeof *l->seq.col);
    k->lane.seq.dcol = copy_of(l->seq.dcol, (size_t)l->seq.n_dcol * sizeof *l->seq.dcol);
    k->lane.seq.cap_col = l->seq.n_col;
    k->lane.seq.cap_dcol = l->seq.n_dcol;
    kv_state_save(&r->kv, &k->kv);
    k->bytes += sizeof *k + k->kv.bytes + (size_t)l->seq.n_col * sizeof *l->seq.col +
                (size_t)l->seq.n_dcol * sizeof *l->seq.dcol;
    keep_pages(k, r, &l->seq);
    keep_drafter(k, r, l);
}

/* The lane's page table. Without a stamp its columns count as changed, so that the fused cycle
 * writes, checks and sends all of them (page_list.h). */
static void restore_seq(const struct seq *from, struct seq *s)
{
    free(s->col);
    free(s->dcol);
    *s = *from;
    s->col = copy_of(from->col, (size_t)from->n_col * sizeof *from->col);
    s->dcol = copy_of(from->dcol, (size_t)from->n_dcol * sizeof *from->dcol);
    memset(s->stamp, 0, sizeof s->stamp);
    memset(s->clean, 0, sizeof s->clean);
}

void keep_restore(const struct kept *k, struct runtime *r, struct lane *l)
{
    struct head *h = r->drafter ? r->drafter->head : NULL;
    struct lane now = *l;
    CHECK(k->lane.tok.n <= now.tok.n);
    pass_copies(&r->pass);
    pass_lock(&r->pass);
    kv_state_load(&r->kv, &k->kv);
    *l = k->lane;
    l->tok = now.tok;
    l->tok.n = k->lane.tok.n;
    l->seq = now.seq;
    restore_seq(&k->lane.seq, &l->seq);
    free(now.tap);
    l->tap = k->lane.tap ? copy_of(k->lane.tap, (size_t)head_tap_floats(h) * sizeof *l->tap) : NULL;
    r->slots = k->slots;
    pass_unlock(&r->pass);
    each_kept(k, r, write_cells);
    if (k->root)
        r->dev.k->put(r->dev.d, head_root(h, l->slot - 1), k->root, root_bytes(h));
    for (int i = 0; i < l->behind; i++)
        head_put_tap(h, head_backlog_row(h, i), k->backlog + mul64(i, head_tap_floats(h)));
}

void keep_free(struct kept *k)
{
    kv_state_free(&k->kv);
    free(k->lane.seq.col);
    free(k->lane.seq.dcol);
    free(k->lane.tap);
    free(k->root);
    free(k->backlog);
    for (int p = 0; p < N_POOLS; p++)
        free(k->of[p].page);
    free(k->cells);
    *k = (struct kept){0};
}
