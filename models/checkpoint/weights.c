/* weights.c - see weights.h. */
#include "models/checkpoint/weights.h"

#include "kernels/packed.h"
#include "models/checkpoint/safetensors.h"

#include <fnmatch.h>

/* ---- extents ---- */

static const char *const extent_name[N_EXTENT] = {
    [X_ONE] = "1",
    [X_HIDDEN] = "hidden_size",
    [X_IN] = "hidden_size",
    [X_VOCAB] = "vocab_size",
    [X_Q] = "heads x head_dim",
    [X_KV] = "kv heads x head_dim",
    [X_HEAD_DIM] = "head_dim",
    [X_HEADS] = "heads",
    [X_FFN] = "intermediate_size",
    [X_EXPERTS] = "experts",
    [X_EXPERT_FFN] = "expert width",
    [X_EXPERT_FFN2] = "2 x expert width",
    [X_HIDDEN_BLOCKS] = "hidden_size / 32",
    [X_EXPERT_FFN_BLOCKS] = "expert width / 32",
    [X_BLOCK] = "16",
    [X_V] = "kv heads x v_head_dim",
    [X_O] = "heads x v_head_dim",
    [X_GATE] = "gates of heads",
    [X_PLE] = "hidden_size_per_layer_input",
    [X_PLE_VOCAB] = "vocab_size_per_layer_input",
    [X_PLE_ALL] = "layers x hidden_size_per_layer_input",
    [X_TARGET] = "target's hidden_size",
    [X_TARGET2] = "2 x target's hidden_size",
    [X_CAPTURED] = "captures x target's hidden_size",
    [X_DRAFT_VOCAB] = "draft_vocab_size",
    [X_CENTROIDS] = "num_centroids",
    [X_FUSED] = "of its parts",
    [X_TWO] = "input and output",
    [X_TAPS] = "conv_kernel_size",
    [X_KERNELS] = "2 x conv_kernel_size x groups",
    [X_RANK] = "rank",
    [X_STATE_RANK] = "hidden_size + rank",
};

static void extents_of_layer(int64_t *x, const struct config *g, const struct layer *l)
{
    x[X_Q] = (int64_t)l->n_head * l->head_dim;
    x[X_KV] = (int64_t)l->n_kv * l->head_dim;
    x[X_HEAD_DIM] = l->head_dim;
    x[X_HEADS] = l->n_head;
    int64_t v = g->v_head_dim ? g->v_head_dim : l->head_dim;
    x[X_V] = l->n_kv * v;
    x[X_O] = l->n_head * v;
    x[X_GATE] = g->gate_by_head ? l->n_head : x[X_Q];
    x[X_FFN] = l->ffn;
}

void extents_of_config(int64_t *x, const struct config *g)
{
    x[X_ONE] = 1;
    x[X_TWO] = 2;
    x[X_HIDDEN] = x[X_IN] = g->hidden;
    x[X_VOCAB] = g->vocab;
    x[X_EXPERTS] = g->n_expert;
    x[X_EXPERT_FFN] = g->expert_ffn;
    x[X_EXPERT_FFN2] = 2 * (int64_t)g->expert_ffn;
    x[X_HIDDEN_BLOCKS] = g->hidden / 32;
    x[X_EXPERT_FFN_BLOCKS] = g->expert_ffn / 32;
    x[X_BLOCK] = 16;
    x[X_PLE] = g->ple;
    x[X_PLE_VOCAB] = g->ple_vocab;
    x[X_PLE_ALL] = (int64_t)g->n_layer * g->ple;
}

/* Prints a shape as "[64, 128]". */
static void print_shape(char *out, size_t room, const struct tensor *t)
{
    size_t n = (size_t)snprintf(out, room, "[");
    for (int i = 0; i < t->n_dim && i < 4; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
    snprintf(out + n, room - n, t->n_dim > 4 ? ", ...]" : "]");
}

/* Prints an expected shape as "[64 (hidden_size), ...]". */
static void print_expected(char *out, size_t room, const int64_t *x, const enum extent *dim)
{
    size_t n = (size_t)snprintf(out, room, "[");
    for (int i = 0; i < 4 && dim[i]; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%lld (%s)", i ? ", " : "",
                              (long long)x[dim[i]], extent_name[dim[i]]);
    snprintf(out + n, room - n, "]");
}

/* ---- conditions ---- */

static bool condition_holds(const struct config *g, const struct layer *l, int index,
                            enum when when)
{
    bool own = l && l->kv_src == index;
    switch (when) {
    case ALWAYS: case IF_PRESENT: return true;
    case IF_UNTIED: return !g->tied;
    case IF_QKV_BIAS: return g->qkv_bias;
    case IF_KV_BIAS: return g->qkv_bias && own;
    case IF_V_BIAS: return g->qkv_bias && own && !l->v_from_k;
    case IF_O_BIAS: return g->o_bias;
    case IF_OWN_KV: return own;
    case IF_OWN_V: return own && !l->v_from_k;
    case IF_QK_NORM: return g->qk_norm;
    case IF_K_NORM: return g->qk_norm && own;
    case IF_DENSE: return !l->is_moe;
    case IF_SHARED: return l->ffn > 0;
    case IF_MOE: return l->is_moe;
    case IF_MXFP4: return l->is_moe && g->store == STORE_MXFP4;
    case IF_IN_OUT: return l->is_moe && g->store == STORE_IN_OUT;
    case IF_HALVES: return l->is_moe && g->store == STORE_HALVES;
    case IF_PLE: return g->ple > 0;
    case IF_GATE: return g->gate != GATE_NONE;
    case IF_SINKS: return g->sinks && l->window;
    }
    return false;
}

/* ---- binding ---- */

void binder_open(struct binder *b, struct safetensors *st, const struct config *cfg, struct err *e)
{
    *b = (struct binder){.st = st, .cfg = cfg, .e = e};
    b->used = xcalloc((size_t)st_count(st), sizeof *b->used);
    extents_of_config(b->x, cfg);
}

void binder_close(struct binder *b)
{
    FREE(b->used, b->load);
    st_close(b->st);
    *b = (struct binder){0};
}

const struct tensor *binder_find(const struct binder *b, const char *const *prefix,
                                 const char *name)
{
    for (; *prefix; prefix++) {
        char full[160];
        if ((size_t)snprintf(full, sizeof full, "%s%s", *prefix, name) >= sizeof full)
            continue;
        const struct tensor *t = st_find(b->st, full);
        if (t && !b->used[st_index(b->st, t)])
            return t;
    }
    return NULL;
}

void binder_mark_used(struct binder *b, const struct tensor *t)
{
    b->used[st_index(b->st, t)] = true;
}

static bool check_tensor(const struct binder *b, const struct tensor *t,
                         const enum extent *dim, enum content content)
{
    bool floats = t->type == DT_BF16 || t->type == DT_F16 || t->type == DT_F32 ||
                  (dtype_packed(t->type) && t->n_dim > 1);
    const char *path = st_path(b->st, t);
    if (content == FLOATS ? !floats : t->type != DT_U8)
        return err_file(b->e, path, "tensor %s has type %s, expected %s", show(t->name).s,
                        st_entry(t)->type, content == FLOATS ? "BF16, F16 or F32" : "U8");
    int rank = 0;
    bool same = true;
    for (; rank < 4 && dim[rank]; rank++)
        same &= rank >= t->n_dim || t->dim[rank] == b->x[dim[rank]];
    if (same && rank == t->n_dim)
        return true;
    char has[100], expected[200];
    print_shape(has, sizeof has, t);
    print_expected(expected, sizeof expected, b->x, dim);
    return err_file(b->e, path, "tensor %s has shape %s, expected %s", show(t->name).s, has,
                    expected);
}

static bool refuse_missing(const struct binder *b, const char *name_, const enum extent *dim,
                           const char *prefix)
{
    char name[160], expected[200];
    snprintf(name, sizeof name, "%s%s", prefix, name_);
    print_expected(expected, sizeof expected, b->x, dim);
    return err_file(b->e, st_path(b->st, NULL), "tensor %s is missing, expected %s", show(name).s,
                    expected);
}

static struct tensor *place_of(const struct tensor_spec *s, void *base)
{
    return (struct tensor *)((char *)base + s->at);
}

/* Rows of a head that are loaded in another order (struct config, rope_adjacent); 0: none. */
static int pairs_of(const struct binder *b, const struct tensor_spec *s)
{
    return s->rotates && b->rotates ? (int)b->x[X_HEAD_DIM] : 0;
}

/* The tensor is to have room for head_dim numbers of each head's values. */
static void pad_values(const struct binder *b, const struct tensor_spec *s, struct tensor_load *l)
{
    int64_t *dim = &l->form.dim[s->values - 1], heads = *dim / b->cfg->v_head_dim;
    *dim = heads * b->x[X_HEAD_DIM];
    l->form.bytes = l->bytes / (size_t)b->cfg->v_head_dim * (size_t)b->x[X_HEAD_DIM];
    l->padded_from = b->cfg->v_head_dim;
    l->padded_to = (int)b->x[X_HEAD_DIM];
    l->unit = s->values == 1 ? l->bytes / (size_t)l->src->dim[0] : dtype_size(l->src->type);
}

static struct tensor_load *add_load(struct binder *b, void *base, const struct tensor_spec *s,
                                    const struct tensor *src)
{
    struct tensor_load *l = APPEND(b->load, b->n_load);
    *l = (struct tensor_load){.dst = place_of(s, base), .form = *src, .src = src,
                              .bytes = src->bytes, .pairs = pairs_of(b, s)};
    if (s->values && b->cfg->v_head_dim)
        pad_values(b, s, l);
    l->form.by_row = spec_by_row(s);
    binder_mark_used(b, src);
    return l;
}

/* The tensor of that name, checked. NULL and an error: it is missing, or has another form. */
static const struct tensor *find_checked(struct binder *b, const struct tensor_spec *s,
                                         const char *name, const enum extent *dim,
                                         const char *const *prefix)
{
    const struct tensor *t = binder_find(b, prefix, name);
    if (!t)
        return refuse_missing(b, name, dim, prefix[0]), NULL;
    if (spec_by_row(s) || (s->values == 2 && b->cfg->v_head_dim))
        st_as_bf16(t); /* single rows are read; columns are padded */
    return check_tensor(b, t, dim, s->content) ? t : NULL;
}

/* Binds the s->fused rows of a table to the rows of one matrix of the file. */
static bool bind_fused(struct binder *b, const struct tensor_spec *s, const char *const *prefix,
                       void *base)
{
    const enum extent dim[4] = {X_FUSED, s->dim[1]};
    b->x[X_FUSED] = 0;
    for (int i = 0; i < s->fused; i++)
        b->x[X_FUSED] += b->x[s[i].dim[0]];
    const struct tensor *t = find_checked(b, s, s->name, dim, prefix);
    size_t from = 0;
    for (int i = 0; t && i < s->fused; i++) {
        struct tensor_load *l = add_load(b, base, &s[i], t);
        l->form.dim[0] = b->x[s[i].dim[0]];
        l->bytes = l->form.bytes = t->bytes / (size_t)t->dim[0] * (size_t)l->form.dim[0];
        l->from = from;
        from += l->bytes;
    }
    return t != NULL;
}

/* Whether the file has a stacked row in one tensor for each expert, not in one for all of them. */
static bool one_each(const struct tensor_spec *s) { return strchr(s->name, '*') != NULL; }

/* Sets the shape of s->stacked matrices of every expert. */
static void stacked_shape(const struct tensor_spec *s, const int64_t *x, struct tensor *t)
{
    const int rows = one_each(s) ? 0 : 1;
    t->n_dim = 3;
    t->dim[0] = x[X_EXPERTS], t->dim[1] = 0, t->dim[2] = x[s->dim[rows + 1]];
    for (int i = 0; i < s->stacked; i++)
        t->dim[1] += x[s[i].dim[rows]];
    t->bytes = (size_t)t->dim[0] * (size_t)t->dim[1] * dtype_bytes(t->type, (size_t)t->dim[2]);
}

/* The tensor of expert e's row, checked: its own, or that of all experts, which is in *all then. */
static const struct tensor *find_stacked(struct binder *b, const struct tensor_spec *row, int e,
                                         const struct tensor **all, const char *const *prefix)
{
    char name[80];
    if (!one_each(row)) {
        if (!*all)
            *all = find_checked(b, row, row->name, row->dim, prefix);
        return *all;
    }
    snprintf(name, sizeof name, "%.*s%d%s", (int)strcspn(row->name, "*"), row->name, e,
             strchr(row->name, '*') + 1);
    return find_checked(b, row, name, row->dim, prefix);
}

static bool bind_stacked(struct binder *b, const struct tensor_spec *s, const char *const *prefix,
                         void *base)
{
    const struct tensor *all[MAX_STACKED] = {NULL};
    enum dtype type = DT_BF16;
    size_t at = 0;
    CHECK(s->stacked <= MAX_STACKED);
    b->n_stack++;
    for (int k = 0; k < s->stacked * (int)b->x[X_EXPERTS]; k++) {
        const int i = k % s->stacked, e = k / s->stacked;
        const struct tensor *t = find_stacked(b, &s[i], e, &all[i], prefix);
        if (!t)
            return false;
        type = k ? type : t->type;
        if (t->type != type)
            return err_file(b->e, st_path(b->st, t),
                            "tensor %s has type %s, expected that of the first expert's",
                            show(t->name).s, st_entry(t)->type);
        struct tensor_load *l = add_load(b, base, s, t);
        stacked_shape(s, b->x, &l->form);
        if (all[i])
            l->bytes /= (size_t)b->x[X_EXPERTS], l->from = l->bytes * (size_t)e;
        l->at = at;
        l->stack = b->n_stack;
        at += l->bytes;
    }
    return true;
}

bool binder_bind(struct binder *b, const struct tensor_spec *spec, const char *const *prefix,
                 void *base, const struct layer *l, int index)
{
    if (l)
        extents_of_layer(b->x, b->cfg, l);
    b->rotates = l && b->cfg->rope_adjacent && l->rope_id >= 0;
    for (const struct tensor_spec *s = spec; s->name; s += max_int(1, s->fused + s->stacked)) {
        bool has = condition_holds(b->cfg, l, index, s->when), ok = true;
        if (s->instead && b->n_load && b->load[b->n_load - 1].dst == place_of(s, base))
            continue;
        if (s->fused || s->stacked) {
            ok = !has || (s->fused ? bind_fused : bind_stacked)(b, s, prefix, base);
        } else {
            const struct tensor *t = binder_find(b, prefix, s->name);
            if (!has && t && s->unused_ok && l->kv_src != index)
                binder_mark_used(b, t);
            if (!has || (!t && (s->when == IF_PRESENT || s[1].instead)))
                continue;
            bool older = !t && s->older && binder_find(b, prefix, s->older);
            t = find_checked(b, s, older ? s->older : s->name, s->dim, prefix);
            ok = t && add_load(b, base, s, t);
        }
        if (!ok)
            return false;
    }
    return true;
}

bool binder_use_copy(struct binder *b, const struct tensor *copy, const struct tensor *of)
{
    uint64_t x, y;
    bool same = copy->type == of->type && copy->bytes == of->bytes && copy->n_dim == of->n_dim &&
                copy->dim[0] == of->dim[0];
    if (same && (!store_digest(b->st, copy, &x, b->e) || !store_digest(b->st, of, &y, b->e)))
        return false;
    if (!same || x != y)
        return err_file(b->e, st_path(b->st, copy),
                        "tensor %s differs from %s, but the config ties them (tie_word_embeddings)",
                        show(copy->name).s, show(of->name).s);
    binder_mark_used(b, copy);
    return true;
}

bool binder_refuse_unused(const struct binder *b, const char *const *ignored)
{
    for (int i = 0; i < st_count(b->st); i++) {
        const struct tensor *t = st_at(b->st, i);
        const char *const *p = ignored;
        while (*p && fnmatch(*p, t->name, 0))
            p++;
        if (!b->used[i] && !*p)
            return err_file(b->e, st_path(b->st, t),
                            "tensor %s does not belong to a %s model with this config",
                            show(t->name).s, b->cfg->family);
    }
    return true;
}

/* ---- shapes without a checkpoint ---- */

void namer_open(struct namer *n, int layers)
{
    enum { EACH = 96, TENSORS = 40 }; /* bytes of a name; names of a layer, and outside of layers */
    size_t room = (size_t)(layers + 1) * EACH * TENSORS;
    *n = (struct namer){.all = xmalloc(room), .room = room};
}

static const char *full_name(struct namer *n, const char *prefix, const char *name)
{
    char *at = n->all + n->used;
    n->used += (size_t)snprintf(at, n->room - n->used, "%s%s", prefix, name) + 1;
    CHECK(n->used <= n->room);
    return at;
}

void shape_tensor(const struct tensor_spec *s, const int64_t *x, const char *prefix, void *base,
                  struct namer *names)
{
    struct tensor t = {.type = s->content == BYTES ? DT_U8 : DT_BF16,
                       .name = full_name(names, prefix, s->name),
                       .by_row = spec_by_row(s)};
    t.bytes = dtype_size(t.type);
    for (; t.n_dim < 4 && s->dim[t.n_dim]; t.n_dim++) {
        t.dim[t.n_dim] = x[s->dim[t.n_dim]];
        t.bytes *= (size_t)t.dim[t.n_dim];
    }
    if (s->stacked)
        stacked_shape(s, x, &t);
    names->bytes += t.bytes;
    *(struct tensor *)((char *)base + s->at) = t;
}

void shape_tensors(const struct tensor_spec *spec, const struct config *g, int64_t *x,
                   const char *prefix, void *base, const struct layer *l, int index,
                   struct namer *names)
{
    if (l)
        extents_of_layer(x, g, l), x[X_V] = x[X_KV], x[X_O] = x[X_Q]; /* padded */
    for (const struct tensor_spec *s = spec; s->name; s += max_int(1, s->stacked))
        if (s->when != IF_PRESENT && !s->instead && condition_holds(g, l, index, s->when))
            shape_tensor(s, x, prefix, base, names);
}

/* ---- loading ---- */

struct line { /* one load in the text that the SHA-256 covers */
    const struct tensor *t;
    size_t from;
    uint64_t digest;
};

static int line_by_name(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    int by_name = strcmp(x->t->name, y->t->name);
    return by_name ? by_name : (x->from > y->from) - (x->from < y->from);
}

static void sha_line(struct sha256 *h, const struct line *x)
{
    FREED(buf_free) struct buf b = {0};
    buf_printf(&b, "%s %s", x->t->name, dtype_name(x->t->type));
    for (int i = 0; i < x->t->n_dim; i++)
        buf_printf(&b, " %lld", (long long)x->t->dim[i]);
    buf_printf(&b, " %016llx\n", (unsigned long long)x->digest);
    sha256_add(h, b.p, b.n);
}

/* Computes the SHA-256 that models.h defines (struct model, `sha`). */
static void sha_of(const struct binder *b, const uint64_t *digest, const struct buf *config,
                   char sha[65])
{
    FREED(free_at) struct line *line = xcalloc((size_t)b->n_load, sizeof *line);
    for (int i = 0; i < b->n_load; i++)
        line[i] = (struct line){b->load[i].src, b->load[i].from, digest[i]};
    qsort(line, (size_t)b->n_load, sizeof *line, line_by_name);
    struct sha256 h;
    sha256_init(&h);
    sha256_add(&h, config->p, config->n);
    for (int i = 0; i < b->n_load; i++)
        sha_line(&h, &line[i]);
    sha256_end_hex(&h, sha);
}

bool binder_load(struct binder *b, const char *what, const struct buf *config, struct store **store,
                 uint64_t *bytes, char sha[65], const struct loading *p)
{
    FREED(free_at) uint64_t *digest = xcalloc((size_t)b->n_load, sizeof *digest);
    bool ok = store_load(store, b->st, b->load, b->n_load, digest, what, p, b->e);
    if (ok && !(p && p->use == READ_HEADERS))
        sha_of(b, digest, config, sha);
    *bytes = 0;
    for (int i = 0; i < b->n_load; i++)
        *bytes += b->load[i].unit ? b->load[i].form.bytes : b->load[i].bytes;
    return ok;
}

int64_t *binder_read_ints(const struct binder *b, const struct tensor *t, int64_t n, int64_t min,
                          int64_t max)
{
    struct err *e = b->e;
    const char *path = st_path(b->st, t);
    const struct shown name = show(t->name);
    if (t->type != DT_I64 && t->type != DT_I32)
        return err_file(e, path, "tensor %s has type %s, expected I64 or I32", name.s,
                        st_entry(t)->type), NULL;
    if ((int64_t)(t->bytes / dtype_size(t->type)) != n)
        return err_file(e, path, "tensor %s has %zu entries, expected %lld", name.s,
                        t->bytes / dtype_size(t->type), (long long)n), NULL;
    int64_t *v = xcalloc((size_t)n, sizeof *v);
    bool ok = st_read(b->st, t, v, e);
    if (ok && t->type == DT_I32)
        for (int64_t i = n - 1; i >= 0; i--) {
            int32_t x;
            memcpy(&x, (char *)v + 4 * i, 4);
            v[i] = x;
        }
    for (int64_t i = 0; ok && i < n; i++)
        if (v[i] < min || v[i] > max)
            ok = err_file(e, path, "tensor %s has %lld at %lld, expected %lld to %lld", name.s,
                          (long long)v[i], (long long)i, (long long)min, (long long)max);
    if (ok)
        return v;
    free(v);
    return NULL;
}

bool each_tensor(struct tensor *tensors, int n, struct store *store,
                 bool (*fn)(struct tensor *t, void *arg, struct err *e), void *arg, struct err *e)
{
    FOR_EACH(struct tensor, t, tensors, n) {
        if (!t->data && !t->bytes)
            continue;
        const void *was = t->data;
        const size_t bytes = t->bytes; /* fn may give a packed tensor another type */
        if (!fn(t, arg, e))
            return false;
        if (t->data != was)
            store_drop(store, was, bytes);
    }
    return true;
}
