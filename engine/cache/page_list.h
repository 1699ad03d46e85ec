/* page_list.h - the pages of one sequence, pool by pool and column by column, as tables hold them,
 * kept from plan to plan: what a cycle does to it follows the columns that changed, not the
 * context.
 *
 * A side of the list, the target's or the draft's, is written from the sequence by list_write(),
 * which goes over those columns only that the cache has touched since list_settle(); of another
 * sequence, or after another list was settled, it is written anew. Always true of a side after
 * list_write(): page[pool][c] is the page of the sequence's column c in that pool, 0 where it holds
 * none or has released it. A copy on the device is brought up to date by list_send(). Engine thread,
 * under its lock.
 */
#ifndef AERIE_PAGE_LIST_H
#define AERIE_PAGE_LIST_H

#include "engine/cache/kvcache.h"
#include "kernels/kernels.h"

/* Words of a fixed pattern behind every array of tables: what is written past an array's end shows
 * (I7) and hurts nothing. At least as many as a draft has steps. */
enum { RED_ZONE = 16 };
#define RED_WORD INT32_C(0x52454421)

struct page_list {
    int cols;                 /* room of each pool's columns */
    int32_t *page[N_POOLS];   /* (cols), then a red zone; one run of memory */
    int n[N_POOLS];           /* columns that are not 0 lie below */
    uint64_t sum[N_POOLS];    /* of the columns, each mixed with its place: their digest */
    uint64_t settled[N_SIDES]; /* the state of a sequence that a side was written for, 0: none */
    uint64_t version[N_SIDES]; /* counts the columns that were changed */
    int lo[N_POOLS], hi[N_POOLS]; /* what the device has not got yet */
    kbuf mem;                 /* the copy on the device, as long as `page` */
};

/* Room for cols columns in every pool, here and on the device. */
bool list_open(struct page_list *l, const struct kernels *k, struct kdev *d, int cols,
               struct err *e);
void list_close(struct page_list *l, const struct kernels *k, struct kdev *d);
void list_write(struct page_list *l, const struct kv *kv, const struct seq *s, enum side side);
/* The next list_write() of either side passes over nothing. */
void list_forget(struct page_list *l);
/* Every column of a side that was written has been checked: the next list_write() passes over those
 * of final cells. */
void list_settle(struct page_list *l, struct kv *kv, struct seq *s, enum side side);
/* Columns of a side that were checked in this list and have not changed since. */
int list_known(const struct page_list *l, const struct seq *s, enum side side);
/* Puts the columns that changed on the device, where the copy then is as the list. */
void list_send(struct page_list *l, const struct kernels *k, struct kdev *d);
/* The first n columns of a pool on the device. */
kbuf list_view(const struct page_list *l, enum pool_id pool, int n);

#endif
