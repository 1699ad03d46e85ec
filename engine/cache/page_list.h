/* page_list.h - the page table of one sequence, kept from plan to plan on the host and on the
 * device.
 *
 * A plan that points into the list need not write, check and upload its whole page table: the work
 * of a cycle grows with the columns that changed, not with the context.
 *
 * list_write() updates one side of the list, the target's or the draft's, from the sequence. It
 * skips the columns that have not changed since list_mark_checked(). If the sequence is another
 * one, or another list was marked since, it rewrites every column. After list_write(),
 * page[pool][c] is the page of the sequence's column c in that pool; 0: the column holds none, or
 * has released it. list_send() updates the copy on the device. Engine thread, under its lock.
 */
#pragma once

#include "engine/cache/kvcache.h"
#include "kernels/kernels.h"

/* A red zone of words with a fixed pattern follows every array of a table: a store past the array's
 * end changes the pattern (rule I7) and no other array. At least as many words as a draft has
 * steps. */
enum { RED_ZONE = 16 };
#define RED_WORD INT32_C(0x52454421)

struct page_list {
    int cols;                 /* capacity of each pool's columns */
    int32_t *page[N_POOLS];   /* (cols), then a red zone; one allocation for all pools */
    int n[N_POOLS];           /* columns [n, cols) are 0 */
    uint64_t sum[N_POOLS];    /* digest: the sum over columns of a hash of index and page */
    uint64_t stamp[N_SIDES];  /* seq.stamp of the state that a side was written from, 0: none */
    uint64_t version[N_SIDES]; /* the number of column changes */
    int lo[N_POOLS], hi[N_POOLS]; /* columns that the device does not have yet */
    kbuf mem;                 /* the copy on the device, as long as `page` */
};

/* Allocates cols columns for every pool, on the host and on the device. False: device memory. */
bool list_open(struct page_list *l, const struct kernels *k, struct kdev *d, int cols,
               struct err *e);
void list_close(struct page_list *l, const struct kernels *k, struct kdev *d);
void list_write(struct page_list *l, const struct kv *kv, const struct seq *s, enum side side);
/* The next list_write() of either side rewrites every column. */
void list_mark_unchecked(struct page_list *l);
/* To be called when all columns of a side have been checked: the next list_write() skips those of
 * final cells. */
void list_mark_checked(struct page_list *l, struct kv *kv, struct seq *s, enum side side);
/* How many leading columns of a side were checked in this list and have not changed since. */
int list_checked(const struct page_list *l, const struct seq *s, enum side side);
/* Uploads the columns that changed; the device's copy then equals the list. */
void list_send(struct page_list *l, const struct kernels *k, struct kdev *d);
/* The first n columns of a pool in the device's copy. */
kbuf list_view(const struct page_list *l, enum pool_id pool, int n);
