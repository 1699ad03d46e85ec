/* kv_state.c - see kv_state.h. */
#include "engine/cache/kv_state.h"

/* The arrays of the cache beside those of the state, each with its bytes. Returns how many. */
struct array {
    void **live, **kept;
    size_t bytes;
};

enum { MAX_ARRAYS = 2 * N_POOLS + 5 };

static int arrays_of(struct kv *kv, struct kv_state *s, struct array a[MAX_ARRAYS])
{
    int n = 0;
    size_t slots[2];
    for (int p = 0; p < N_POOLS; p++) {
        size_t total = (size_t)kv->pool[p].total;
        a[n++] = (struct array){(void **)&kv->pool[p].free, (void **)&s->pool[p].free,
                                total * sizeof *kv->pool[p].free};
        a[n++] = (struct array){(void **)&kv->pool[p].ref, (void **)&s->pool[p].ref,
                                total * sizeof *kv->pool[p].ref};
        if (p != POOL_DRAFT)
            slots[p] = total << kv->shift;
    }
    a[n++] = (struct array){(void **)&kv->swa_of, (void **)&s->swa_of,
                            (size_t)kv->pool[POOL_FULL].total * sizeof *kv->swa_of};
    a[n++] = (struct array){(void **)&kv->full_of, (void **)&s->full_of,
                            (size_t)kv->pool[POOL_SWA].total * sizeof *kv->full_of};
    for (int p = 0; p < 2; p++)
        a[n++] = (struct array){(void **)&kv->mark[p], (void **)&s->mark[p],
                                slots[p] * sizeof(struct mark)};
    return n;
}

/* Arrays begin at multiples of 16 bytes. */
static size_t room(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

void kv_state_save(const struct kv *from, struct kv_state *s)
{
    struct kv kv = *from; /* arrays_of() takes pointers to non-const */
    struct array a[MAX_ARRAYS];
    CHECK(kv.n_copy == 0);
    *s = (struct kv_state){0};
    memcpy(s->pool, kv.pool, sizeof s->pool);
    memcpy(s->held, kv.held, sizeof s->held);
    int n = arrays_of(&kv, s, a);
    for (int i = 0; i < n; i++)
        s->bytes += room(a[i].bytes);
    uint8_t *at = s->mem = xmalloc(s->bytes + 1);
    s->n_since = kv.log.n_since;
    size_t since = (size_t)kv.log.n_since * sizeof *s->since;
    s->since = since ? memcpy(xmalloc(since), kv.log.since, since) : NULL;
    s->bytes += since;
    for (int i = 0; i < n; i++) {
        *a[i].kept = a[i].bytes ? memcpy(at, *a[i].live, a[i].bytes) : NULL;
        at += room(a[i].bytes);
    }
}

void kv_state_load(struct kv *kv, const struct kv_state *from)
{
    struct kv_state s = *from;
    struct array a[MAX_ARRAYS];
    CHECK(kv->n_copy == 0);
    for (int i = 0, n = arrays_of(kv, &s, a); i < n; i++)
        if (a[i].bytes)
            memcpy(*a[i].live, *a[i].kept, a[i].bytes);
    for (int p = 0; p < N_POOLS; p++) {
        struct pool *pool = &kv->pool[p];
        CHECK(pool->total == s.pool[p].total && pool->epoch == s.pool[p].epoch);
        pool->n_free = s.pool[p].n_free;
        pool->n_owned = s.pool[p].n_owned;
        pool->n_refs = s.pool[p].n_refs;
        kv->held[p] = s.held[p];
    }
    kv->log.n_since = 0;
    for (int i = 0; i < s.n_since; i++)
        page_log_add(&kv->log, &s.since[i]);
}

void kv_state_free(struct kv_state *s)
{
    FREE(s->since, s->mem);
    *s = (struct kv_state){0};
}
