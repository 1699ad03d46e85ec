/* pools.c - see pools.h. */
#include "engine/cycle/pools.h"

#include <unistd.h>

int pools_rows(const struct runtime_shape *shape)
{
    return max_int(shape->max_rows ? shape->max_rows : 512, TREE_MAX * max_int(1, shape->lanes));
}

static bool is_page_size(int n)
{
    return n >= 1 && n <= MOST_PAGE_SIZE && !(n & (n - 1));
}

/* Whether the number of pages is within bounds: 0 stands for a number that follows from the
 * context. */
static bool check_pages(int n, struct err *e)
{
    return n == 0 || n >= LEAST_PAGES ||
           err_set(e, ERR_USAGE, "a pool of %d pages: a pool needs at least %d pages", n,
                   LEAST_PAGES);
}

static bool check_numbers(const struct runtime_shape *shape, struct err *e)
{
    if (!is_page_size(shape->page_size))
        return err_set(e, ERR_USAGE, "page size %d: expected 1, 2, 4, 8, 16, 32 or 64",
                       shape->page_size);
    if (shape->context < 1 || shape->context > MOST_CONTEXT)
        return err_set(e, ERR_USAGE, "a context of %d tokens: expected 1 to %d", shape->context,
                       MOST_CONTEXT);
    if (shape->lanes < 0 || shape->lanes > MAX_LANES)
        return err_set(e, ERR_USAGE, "%d conversations at once: expected at most %d", shape->lanes,
                       MAX_LANES);
    if (shape->max_rows < 0 || shape->max_rows > MOST_ROWS)
        return err_set(e, ERR_USAGE, "%d rows of a pass: expected at most %d", shape->max_rows,
                       MOST_ROWS);
    return check_pages(shape->full_pages, e) && check_pages(shape->swa_pages, e);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static int64_t pages_for(int64_t cells, int page_size)
{
    return (cells + page_size - 1) / page_size;
}

static int64_t full_pages(const struct runtime_shape *shape)
{
    int64_t lanes = max_int(1, shape->lanes), P = shape->page_size;
    if (shape->full_pages)
        return shape->full_pages;
    return lanes * (pages_for(shape->context, P) + pages_for(TREE_MAX, P) + 2) + 64;
}

/* held: cells of a sequence that a later pass may read in the sliding pool. */
static int64_t swa_pages(const struct runtime_shape *shape, int held, int64_t full)
{
    int64_t lanes = max_int(1, shape->lanes), P = shape->page_size;
    int64_t scratch = pages_for(max_int(pools_rows(shape), TREE_MAX), P) + 2;
    int64_t window = pages_for(min_int(held, shape->context), P);
    if (shape->swa_pages)
        return shape->swa_pages;
    int64_t n = lanes * (window + scratch) + 16 * (window + 2);
    return n < full ? n : full;
}

static int64_t draft_pages(const struct runtime_shape *shape)
{
    int64_t lanes = max_int(1, shape->lanes), P = shape->page_size;
    int64_t cells = (int64_t)shape->context + (int64_t)MAX_STEPS * MAX_TOPK;
    int64_t n = lanes * (pages_for(cells, P) + 2) + 64;
    return n > shape->full_pages ? n : shape->full_pages;
}

static bool set_pages(int64_t pages, enum pool_id id, int page_size, int *out, struct err *e)
{
    if (pages > POOL_CELLS / page_size)
        return err_set(e, ERR_USAGE, "the %s pool would have %lld pages of %d tokens: expected at "
                                     "most %d tokens in all",
                       pool_name(id), (long long)pages, page_size, POOL_CELLS);
    *out = (int)pages;
    return true;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool check_memory(const struct kv_shape *sizes, struct err *e)
{
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t need = kv_bytes(sizes);
    return need <= all ||
           err_set(e, ERR_USAGE, "the page tables and marks of %d full, %d swa and %d draft pages "
                                 "of %d tokens need %.1f GiB of memory, the machine has %.1f: "
                                 "expected fewer pages or a shorter context",
                   sizes->full_pages, sizes->swa_pages, sizes->draft_pages, sizes->page_size,
                   (double)need / 0x1p30, (double)all / 0x1p30);
}

bool pools_shape(const struct runtime_shape *shape, const struct model *model,
                 const struct draft *draft, struct kv_shape *out, struct err *e)
{
    *out = (struct kv_shape){.page_size = shape->page_size, .window = model->cfg.chunked
                             ? -model->cfg.window : model->cfg.window};
    if (!check_numbers(shape, e))
        return false;
    if (drafter_kv_of(draft) == DRAFT_KV_TARGET) /* its query is the last committed cell */
        out->reach = max_int(window_before(out->window), draft_window(draft));
    int64_t full = full_pages(shape);
    int held = max_int(model->cfg.window, out->reach);
    return set_pages(full, POOL_FULL, shape->page_size, &out->full_pages, e) &&
           (!out->window || set_pages(swa_pages(shape, held, full), POOL_SWA, shape->page_size,
                                      &out->swa_pages, e)) &&
           (drafter_kv_of(draft) != DRAFT_KV_OWN ||
            set_pages(draft_pages(shape), POOL_DRAFT, shape->page_size, &out->draft_pages, e)) &&
           check_memory(out, e);
}
