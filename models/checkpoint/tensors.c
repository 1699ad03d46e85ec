/* tensors.c - the tensors of an open checkpoint: by name and number, and their bytes, read or
 * mapped (safetensors.h). */
#include "models/checkpoint/safetensors.h"

#include "models/checkpoint/json.h"

#include <fcntl.h>
#include <inttypes.h>

const struct tensor *st_find(const struct safetensors *s, const char *name)
{
    int at = FIRST_NOT(i, s->n, strcmp(s->by_name[i]->t.name, name) < 0);
    return at < s->n && !strcmp(s->by_name[at]->t.name, name) ? &s->by_name[at]->t : NULL;
}

int st_count(const struct safetensors *s)
{
    return s->n;
}

const struct tensor *st_at(const struct safetensors *s, int i)
{
    CHECK(i >= 0 && i < s->n);
    return &s->entry[i].t;
}

int st_index(const struct safetensors *s, const struct tensor *t)
{
    ptrdiff_t i = (const struct st_entry *)t - s->entry;
    CHECK(i >= 0 && i < s->n);
    return (int)i;
}

const char *st_path(const struct safetensors *s, const struct tensor *t)
{
    return t ? s->shard[s->entry[st_index(s, t)].shard].path : s->source;
}

bool st_read_part(const struct safetensors *s, const struct tensor *t, size_t from, size_t n,
                  void *dst, struct err *e)
{
    const struct st_entry *x = &s->entry[st_index(s, t)];
    CHECK(from <= t->bytes && n <= t->bytes - from);
    if (x->rows ? rows_read(s, x->rows, from, n, dst, e)
                : shard_pread(&s->shard[x->shard], dst, n, x->at + from, e))
        return true;
    return err_prefix(e, "tensor %s", show(t->name).s);
}

struct mapped *st_map(const struct safetensors *s, int file, struct err *e)
{
    const struct shard *f = &s->shard[file];
    struct mapped *m = mapped_open(f->fd, show_path(f->path).s, e);
    if (!m || mapped_size(m) == f->size)
        return m;
    err_file(e, f->path, "has %zu bytes now and had %" PRIu64 " when its header was read",
             mapped_size(m), f->size);
    mapped_close(m);
    return NULL;
}

bool st_mappable(const struct safetensors *s, const char **why)
{
    enum { WORTH_MAPPING = 64 << 20 };
    uint64_t total = 0;
    for (int i = 0; i < s->n_shard; i++)
        total += s->shard[i].size;
    if (total < WORTH_MAPPING)
        return *why = "they are less than 64 MB", false;
    for (int i = 0; i < s->n_shard; i++)
        if (!mapped_trusted(s->shard[i].fd, why))
            return false;
    return *why = NULL, true;
}

void st_prefetch(const struct safetensors *s, const struct tensor *t, size_t from, size_t n)
{
    const struct st_entry *x = &s->entry[st_index(s, t)];
    int file = x->shard;
    uint64_t at = x->rows ? rows_place(x->rows, from, &file) : x->at + from;
    posix_fadvise(s->shard[file].fd, (off_t)at, (off_t)n, POSIX_FADV_WILLNEED);
}

bool st_read(struct safetensors *s, const struct tensor *t, void *dst, struct err *e)
{
    return st_read_part(s, t, 0, t->bytes, dst, e);
}
