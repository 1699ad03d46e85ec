/* drafter.c - the table of drafters; see drafter.h. */
#include "engine/draft/drafter.h"

#include <unistd.h>

/* To add a drafter: define NAME_drafter in a file of its own and add X(NAME) here. */
#define DRAFTERS(X) X(eagle3) X(peagle) X(dflash) X(dspark) X(dflash2) X(frozen) X(ngram)

#define DECLARED(name) extern const struct drafter_ops name##_drafter;
#define LISTED(name) &name##_drafter,
DRAFTERS(DECLARED)
static const struct drafter_ops *const drafters[] = {DRAFTERS(LISTED)};
enum { N_DRAFTERS = LEN(drafters) };

static const struct drafter_ops *find(const char *name)
{
    for (int i = 0; i < N_DRAFTERS; i++)
        if (strcmp(drafters[i]->name, name) == 0)
            return drafters[i];
    return NULL;
}

/* "ngram": the names that need no folder. */
static void weightless_names(char *out, size_t room)
{
    size_t n = 0;
    for (int i = 0; i < N_DRAFTERS; i++)
        if (drafters[i]->weightless && n < room)
            n += (size_t)snprintf(out + n, room - n, "%s%s", n ? " or " : "", drafters[i]->name);
}

bool drafter_load(struct draft *d, const char *name, const struct model *target,
                  const char *capture, const struct loading *p, struct err *e)
{
    const struct drafter_ops *ops = find(name);
    if (!ops || !ops->weightless) {
        char names[64];
        if (draft_load(d, name, target, capture, p, e))
            return true;
        weightless_names(names, sizeof names);
        return !strchr(name, '/') && access(name, F_OK) != 0
                   ? err_set(e, ERR_MODEL, "no folder and no drafter is called \"%.80s\": "
                             "expected a folder, a GGUF file, %s or none", name, names)
                   : false;
    }
    *d = (struct draft){.kind = ops->name, .dir = xstrdup(name), .kv_full = -1, .kv_swa = -1};
    return true;
}

const struct drafter_ops *drafter_ops_of(const struct draft *w)
{
    const struct drafter_ops *ops = w ? find(w->kind) : NULL;
    CHECK(ops || !w);
    return ops;
}

enum draft_kv drafter_kv_of(const struct draft *w)
{
    return w ? drafter_ops_of(w)->kv : DRAFT_KV_NONE;
}

int draft_window(const struct draft *w)
{
    int most = 0;
    for (int l = 0; l < w->cfg.n_layer; l++)
        most = max_int(most, w->layer[l].window);
    return most && drafter_kv_of(w) == DRAFT_KV_TARGET ? most + 1 : most;
}

struct drafter *drafter_open(const struct drafter_setup *s, struct err *e)
{
    const struct drafter_ops *ops = drafter_ops_of(s->w);
    CHECK(ops);
    struct drafter *d = ops->open(ops, s, e);
    if (d)
        d->ops = ops;
    return d;
}

void drafter_close(struct drafter *d)
{
    if (d)
        d->ops->close(d);
}

bool drafter_grow(struct drafter *d, struct pass *ps, struct drafting *lane, int n,
                  const struct tree_shape *shape, struct err *e)
{
    CHECK(n <= MAX_LANES);
    return d->ops->grow(d, ps, lane, n, shape, e);
}
