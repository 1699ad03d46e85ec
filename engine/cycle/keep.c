/* keep.c - see keep.h. */
#include "engine/cycle/keep.h"

static void *copy_of(const void *p, size_t bytes)
{
    return p && bytes ? memcpy(xmalloc(bytes), p, bytes) : NULL;
}

/* ---- contents of pages ----------------------------------------------------------------------- */

/* Calls move for runs of pages with successive numbers: their place in a buffer of the pool, and in
 * the kept bytes. Returns the bytes of all pages. */
typedef void move_fn(struct runtime *r, kbuf on_device, uint8_t *kept, size_t bytes);

static size_t each_run(struct runtime *rt, const struct k_cells *c, const int32_t *page, int n,
                       uint8_t *kept, move_fn *move)
{
    const kbuf side[2] = {c->k, c->v};
    size_t one = (size_t)rt->kv.page_size * kv_cell_bytes(c->type, c->n_kv, c->head_dim), done = 0;
    for (int s = 0; s < 2; s++)
        for (int i = 0, run; i < n; i += run) {
            for (run = 1; i + run < n && page[i + run] == page[i] + run; run++)
                ;
            size_t bytes = one * (size_t)run;
            if (move)
                move(rt, kbuf_at(side[s], one * (size_t)page[i], bytes), kept + done, bytes);
            done += bytes;
        }
    return done;
}

/* The same for the kept pages of every layer of the pools whose pages a turn releases. */
static size_t each_kept(const struct kept *kept, struct runtime *rt, move_fn *move)
{
    const struct head *head = rt->drafter ? rt->drafter->head : NULL;
    size_t done = 0;
    for (int l = 0; l < rt->net.n_of_pool[POOL_SWA]; l++)
        done += each_run(rt, &rt->net.of_pool[POOL_SWA][l], kept->of[POOL_SWA].page,
                         kept->of[POOL_SWA].n, move ? kept->cells + done : NULL, move);
    for (int l = 0; head && l < head->n_cells; l++)
        done += each_run(rt, &head->cells[l], kept->of[POOL_DRAFT].page, kept->of[POOL_DRAFT].n,
                         move ? kept->cells + done : NULL, move);
    return done;
}

static void read_cells(struct runtime *rt, kbuf on_device, uint8_t *kept, size_t bytes)
{
    rt->dev.k->get(rt->dev.d, kept, on_device, bytes);
}

static void write_cells(struct runtime *rt, kbuf on_device, uint8_t *kept, size_t bytes)
{
    rt->dev.k->put(rt->dev.d, on_device, kept, bytes);
}

/* Adds a page if only this lane holds it: once released, it may be overwritten. */
static void add_page(struct kept *kept, const struct runtime *rt, enum pool_id pool, int32_t page)
{
    if (page && rt->kv.pool[pool].ref[page] == 1)
        kept->of[pool].page[kept->of[pool].n++] = page;
}

/* Keeps the pages that the coming steps may release because they leave a window. */
static void keep_pages(struct kept *kept, struct runtime *rt, const struct seq *s)
{
    int n = rt->kv.draft_window ? s->n_dcol : 0;
    kept->of[POOL_SWA].page = xmalloc((size_t)max_int(1, s->n_col) * sizeof(int32_t));
    kept->of[POOL_DRAFT].page = xmalloc((size_t)max_int(1, n) * sizeof(int32_t));
    for (int c = 0; c < s->n_col; c++)
        add_page(kept, rt, POOL_SWA, s->col[c].swa.v);
    for (int c = 0; c < n; c++)
        add_page(kept, rt, POOL_DRAFT, s->dcol[c].v);
    size_t bytes = each_kept(kept, rt, NULL);
    kept->cells = xmalloc(bytes ? bytes : 1);
    each_kept(kept, rt, read_cells);
    kept->bytes += bytes + (size_t)(s->n_col + n) * sizeof(int32_t);
}

/* ---- the drafter ----------------------------------------------------------------------------- */

static size_t root_bytes(const struct head *head)
{
    CHECK(head);
    return (size_t)head->state_n * sizeof(float);
}

/* The state of the lane's slot, and the captured states of its last cell. */
static void keep_drafter(struct kept *kept, struct runtime *rt, const struct lane *lane)
{
    struct head *head = rt->drafter ? rt->drafter->head : NULL;
    if (!head)
        return;
    if (lane->slot) {
        kept->root = xmalloc(root_bytes(head));
        rt->dev.k->get(rt->dev.d, kept->root, head_root(head, lane->slot - 1), root_bytes(head));
        kept->bytes += root_bytes(head);
    }
    size_t tap = (size_t)head_tap_floats(head) * sizeof *lane->tap;
    if (lane->tap_row >= 0) {
        kept->lane.tap = xmalloc(tap);
        head_get_tap(head, lane->tap_row, kept->lane.tap);
    } else if (lane->tap) {
        kept->lane.tap = copy_of(lane->tap, tap);
    }
    kept->lane.tap_row = -1;
    kept->bytes += kept->lane.tap ? tap : 0;
    if (lane->behind)
        kept->backlog = xmalloc(tap * (size_t)lane->behind);
    for (int i = 0; i < lane->behind; i++)
        head_get_tap(head, head_backlog_row(head, i),
                     kept->backlog + mul64(i, head_tap_floats(head)));
    kept->bytes += tap * (size_t)lane->behind;
}

/* ---- the state ------------------------------------------------------------------------------- */

void keep_state(struct kept *kept, struct runtime *rt, const struct lane *lane)
{
    *kept = (struct kept){.lane = *lane, .slots = rt->slots};
    pass_copies(&rt->pass);
    kept->lane.tok.v = NULL;
    kept->lane.tap = NULL;
    kept->lane.seq.col = copy_of(lane->seq.col, (size_t)lane->seq.n_col * sizeof *lane->seq.col);
    kept->lane.seq.dcol = copy_of(lane->seq.dcol,
                                  (size_t)lane->seq.n_dcol * sizeof *lane->seq.dcol);
    kept->lane.seq.cap_col = lane->seq.n_col;
    kept->lane.seq.cap_dcol = lane->seq.n_dcol;
    kv_state_save(&rt->kv, &kept->kv);
    kept->bytes += sizeof *kept + kept->kv.bytes + (size_t)lane->seq.n_col * sizeof *lane->seq.col +
                   (size_t)lane->seq.n_dcol * sizeof *lane->seq.dcol;
    keep_pages(kept, rt, &lane->seq);
    keep_drafter(kept, rt, lane);
}

/* The lane's page table. Without a stamp its columns count as changed, so that the fused cycle
 * writes, checks and sends all of them (page_list.h). */
static void restore_seq(const struct seq *from, struct seq *s)
{
    FREE(s->col, s->dcol);
    *s = *from;
    s->col = copy_of(from->col, (size_t)from->n_col * sizeof *from->col);
    s->dcol = copy_of(from->dcol, (size_t)from->n_dcol * sizeof *from->dcol);
    memset(s->stamp, 0, sizeof s->stamp);
    memset(s->clean, 0, sizeof s->clean);
}

void keep_restore(const struct kept *kept, struct runtime *rt, struct lane *lane)
{
    struct head *head = rt->drafter ? rt->drafter->head : NULL;
    struct lane now = *lane;
    CHECK(kept->lane.tok.n <= now.tok.n);
    pass_copies(&rt->pass);
    pass_lock(&rt->pass);
    kv_state_load(&rt->kv, &kept->kv);
    *lane = kept->lane;
    lane->tok = now.tok;
    lane->tok.n = kept->lane.tok.n;
    lane->seq = now.seq;
    restore_seq(&kept->lane.seq, &lane->seq);
    free(now.tap);
    lane->tap = kept->lane.tap
                    ? copy_of(kept->lane.tap, (size_t)head_tap_floats(head) * sizeof *lane->tap)
                    : NULL;
    rt->slots = kept->slots;
    pass_unlock(&rt->pass);
    each_kept(kept, rt, write_cells);
    if (kept->root)
        rt->dev.k->put(rt->dev.d, head_root(head, lane->slot - 1), kept->root, root_bytes(head));
    for (int i = 0; i < lane->behind; i++)
        head_put_tap(head, head_backlog_row(head, i),
                     kept->backlog + mul64(i, head_tap_floats(head)));
}

void keep_free(struct kept *kept)
{
    kv_state_free(&kept->kv);
    FREE(kept->lane.seq.col, kept->lane.seq.dcol, kept->lane.tap, kept->root, kept->backlog);
    for (int p = 0; p < N_POOLS; p++)
        free(kept->of[p].page);
    free(kept->cells);
    *kept = (struct kept){0};
}
