/* window.h - the keys that a row reads: the window of a sliding layer and the extent of a tree row,
 * for host and device.
 *
 * A window of W keys counts the query's own: a key at position k is visible to a query at position
 * q iff 0 <= q - k < W. W == 0 stands for no window: every key up to q is visible. W < 0 stands for
 * chunks of -W keys: the keys up to q in its chunk are visible. No other file says so, except the
 * checker (engine/plan/check.c), which is a second implementation on purpose.
 */
#pragma once

#ifdef __CUDACC__
#define WINDOW_BOTH __host__ __device__
#else
#define WINDOW_BOTH
#endif

/* The first position that a query sees. */
static inline WINDOW_BOTH int window_first(int query, int window)
{
    if (window < 0)
        return query - query % -window;
    return window > 0 && query >= window ? query - window + 1 : 0;
}

/* How many keys before its own a query sees at most; 0 without a window. */
static inline WINDOW_BOTH int window_before(int window)
{
    return window > 0 ? window - 1 : window < 0 ? -window - 1 : 0;
}

/* What a row reads: positions [lo, hi) through the page table, then its expanded keys but the first
 * `skip` of them, which lie before the window. */
struct row_extent {
    int lo, hi, skip, n_expand;
};

/* A row reads positions [0, prefix) through the page table and has n expanded keys at the positions
 * from prefix on; the last of all is its query. Without expanded keys prefix counts the query's own
 * position. */
static inline WINDOW_BOTH struct row_extent row_extent(int prefix, int n, int window)
{
    int first = window_first(prefix + n - 1, window), skip = first > prefix ? first - prefix : 0;
    struct row_extent e = {first, prefix + skip, skip, n > skip ? n - skip : 0};
    return e;
}
