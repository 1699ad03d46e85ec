/* gguf_tensors.c - see gguf_model.h.
 *
 * Most tensors only have another name. Others were changed by the converter, and a struct rows
 * undoes that when the tensor is read: rows of q and k in the order of an interleaved rope; norms
 * stored as w + 1; experts' gate and up in tensors of their own; gpt-oss's MXFP4 blocks. Packed
 * matrices stay packed. Packed vectors, and matrices of two packed types in one tensor, become
 * bf16, each value rounded once, which is what a packed weight is for the kernels, too
 * (kernels/packed.h).
 *
 * X.scale beside X.weight in NVFP4 multiplies all weights of the matrix, or has a number for each
 * expert (llama.cpp multiplies the product). Such a file's matrices in NVFP4 become E2M1, which has
 * a factor; the weights are those of the folder with these numbers (scaled.h). X.input_scale is of
 * products whose inputs are quantized, and is not read.
 */
#include "models/checkpoint/gguf_model.h"

#include "kernels/packed.h"
#include "models/checkpoint/json.h"

struct listing {
    const struct gguf *g;
    const struct gguf_arch *a;
    void (*add)(void *arg, const struct gguf_made *t);
    void *arg;
    struct err *e;
    int layers, blocks; /* of the model, and with those behind that predict further tokens */
    bool plain_experts; /* gguf_plain_experts() */
    bool outer;         /* a tensor scales another one: list_scale() */
    int *n;             /* tensors so far */
};

/* ---- names ---- */

static const char *const global_names[][2] = {
    {"token_embd", "embed_tokens"},
    {"output_norm", "norm"},
    {"per_layer_token_embd", "embed_tokens_per_layer"},
    {"per_layer_model_proj", "per_layer_model_projection"},
    {"per_layer_proj_norm", "per_layer_projection_norm"},
};

static const char *const layer_names[][2] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    /* gemma-4 */
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
};

/* Writes PREFIX, the published stem and the end of the name. False: the stem is not in the
 * table. */
static bool rename_stem(const char *const (*table)[2], size_t n, const char *prefix,
                        const char *name, char *out, size_t room)
{
    size_t stem = strcspn(name, ".");
    if (strcmp(name + stem, ".weight") != 0 && strcmp(name + stem, ".bias") != 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i][0]) == stem && !strncmp(table[i][0], name, stem)) {
            snprintf(out, room, "%s%s%s", prefix, table[i][1], name + stem);
            return true;
        }
    return false;
}

/* "blk.7.attn_q.weight": 7 and the place of "attn_q.weight"; -1: it is not a layer's. */
static int layer_of(const char *name, const char **rest)
{
    int layer = -1;
    const char *p = name + 4;
    if (strncmp(name, "blk.", 4) != 0 || *p < '0' || *p > '9' || !int_at(&p, &layer) || *p != '.')
        return -1;
    *rest = p + 1;
    return layer;
}

/* The row of the architecture's own names that a tensor has; NULL: it has a common name. */
static const struct gguf_name *own_name(const struct gguf_arch *a, const char *rest)
{
    for (const struct gguf_name *n = a->names; n && n->gguf; n++)
        if (!strcmp(n->gguf, rest))
            return n;
    return NULL;
}

/* The published name of a layer's tensor. */
static void publish_layer(const struct gguf_arch *a, int layer, const char *rest, char *out,
                          size_t room)
{
    char prefix[40];
    const struct gguf_name *own = own_name(a, rest);
    snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    if (own && own->published)
        snprintf(out, room, "%s%s", prefix, own->published);
    else if (!strcmp(rest, "ffn_norm.weight"))
        snprintf(out, room, "%s%s", prefix,
                 a->sandwich ? "pre_feedforward_layernorm.weight"
                             : "post_attention_layernorm.weight");
    else
        rename_stem(layer_names, LEN(layer_names), prefix, rest, out, room);
}

/* The published name. A tensor that has none keeps its own, by which it is refused later. */
static void publish(const struct listing *l, const char *name, char *out, size_t room)
{
    const char *rest = name;
    int layer = layer_of(name, &rest);
    const struct gguf_name *own = layer < 0 ? own_name(l->a, name) : NULL;
    snprintf(out, room, "%s", own && own->published ? own->published : name);
    if (own)
        return;
    if (layer >= l->layers && layer < l->blocks) /* predicts further tokens: not loaded */
        snprintf(out, room, "mtp.%s", name);
    else if (layer >= 0)
        publish_layer(l->a, layer, rest, out, room);
    else if (!strcmp(name, "output.weight"))
        snprintf(out, room, "lm_head.weight");
    else
        rename_stem(global_names, LEN(global_names), "model.", name, out, room);
}

/* ---- one tensor ---- */

enum { MOST_TENSORS = 1 << 18 };

__attribute__((format(printf, 3, 4)))
static bool bad(const struct listing *l, const struct gguf_tensor *t, const char *fmt, ...)
{
    char what[200];
    PRINT_ARGS(what, fmt);
    return err_file(l->e, l->g->file[t->file].path, "tensor %s %s", show(t->name).s, what);
}

static bool is_floats(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16 || dtype_packed(t);
}

/* The tensor NAME.scale beside NAME.weight, in which NAME has no further dot. NULL: there is none,
 * or it is one of the architecture's own. */
static const struct gguf_tensor *scale_beside(const struct listing *l, const char *name)
{
    char other[GGUF_NAME + 8];
    const char *rest = name;
    layer_of(name, &rest);
    const char *dot = strchr(rest, '.');
    if (!dot || strcmp(dot, ".weight") != 0)
        return NULL;
    snprintf(other, sizeof other, "%.*s.scale", (int)(dot - name), name);
    return own_name(l->a, other + (rest - name)) ? NULL : gguf_find(l->g, other);
}

/* The rows of a tensor of the file, with the numbers that multiply them. */
static struct row_source rows_of(const struct listing *l, const struct gguf_tensor *t)
{
    struct row_source s = {.file = t->file, .at = t->at, .type = t->type, .name = t->name,
                           .path = l->g->file[t->file].path};
    const struct gguf_tensor *o =
        l->outer && t->type == DT_NVFP4 ? scale_beside(l, t->name) : NULL;
    if (o)
        s.outer = (struct row_outer){o->file, o->at, t->n_dim == 3 ? t->dim[1] : INT64_MAX, o->name,
                                     l->g->file[o->file].path};
    return s;
}

/* The tensor as it is in the file, under its published name. */
static struct gguf_made made_of(const struct listing *l, const struct gguf_tensor *t)
{
    struct gguf_made m = {.source = t->type, .in_place = true};
    publish(l, t->name, m.name, sizeof m.name);
    m.t = (struct tensor){.type = t->type, .n_dim = t->n_dim, .bytes = (size_t)t->bytes};
    memcpy(m.t.dim, t->dim, sizeof t->dim);
    m.rows = (struct rows){.n_from = 1};
    m.rows.from[0] = rows_of(l, t);
    return m;
}

/* Rows of `elems` elements are made in another way than they are in the file. */
static void remake(struct gguf_made *m, enum row_order order, int64_t group, int64_t elems)
{
    m->in_place = false;
    m->rows.order = order;
    m->rows.group = group;
    m->rows.elems = elems;
}

/* The type that numbers of the file's types have in one tensor in memory. */
static enum dtype memory_type(enum dtype a, enum dtype b)
{
    bool bf16 = (dtype_packed(a) || a == DT_BF16) && (dtype_packed(b) || b == DT_BF16);
    return bf16 ? DT_BF16 : DT_F32;
}

/* Sets the tensor's type and size, and hands it on. */
static bool finish(const struct listing *l, struct gguf_made *m)
{
    struct rows *r = &m->rows;
    const enum dtype a = r->from[0].type, b = r->n_from > 1 ? r->from[1].type : a;
    if (m->in_place && dtype_packed(a))
        r->elems = packed_format(a)->elements;
    if (r->make == MAKE_SAME && (a != b || (dtype_packed(a) && m->t.n_dim == 1))) {
        m->in_place = false;
        r->make = MAKE_TYPE;
        r->to = m->t.type = memory_type(a, b);
    }
    if (r->make == MAKE_SAME && a == DT_NVFP4 && l->outer) {
        if (m->in_place)
            remake(m, ROWS_SAME, 0, m->t.dim[m->t.n_dim - 1]);
        r->make = MAKE_OUTER;
        m->t.type = DT_E2M1;
    }
    if (r->make == MAKE_LESS_1)
        m->t.type = DT_F32;
    if (r->make == MAKE_CODES || r->make == MAKE_SCALES)
        m->t.type = DT_U8;
    if (r->elems)
        r->bytes = rows_bytes(r);
    if (!dtype_bytes_fit(m->t.type, m->t.n_dim, m->t.dim, &m->t.bytes) || m->t.bytes > INT64_MAX)
        return err_file(l->e, l->g->file[r->from[0].file].path, "tensor %s has too many elements",
                        show(r->from[0].name).s);
    if (++*l->n > MOST_TENSORS)
        return err_file(l->e, l->g->file[0].path,
                        "has more than %d tensors, those of single experts counted", MOST_TENSORS);
    l->add(l->arg, m);
    return true;
}

/* ---- what converters did ---- */

/* The length of a row, 1 for a vector. */
static int64_t row_elems(const struct gguf_tensor *t)
{
    return t->n_dim > 1 ? t->dim[t->n_dim - 1] : 1;
}

/* An integer of the architecture's metadata: the layer's own if there is one a layer. *out has the
 * default. */
static bool layer_int(const struct listing *l, const char *key, int layer, int64_t *out)
{
    char full[80];
    FREED(free_at) int64_t *v = NULL;
    size_t n = 0;
    snprintf(full, sizeof full, "%s.%s", l->a->name, key);
    if (!gguf_ints(l->g, full, 1, 1 << 16, &v, &n, l->e))
        return false;
    if (n)
        *out = n == 1 ? v[0] : (size_t)layer < n ? v[layer] : *out;
    return true;
}

/* Heads of queries, and of keys and values. */
static bool layer_heads(const struct listing *l, int layer, int64_t *heads, int64_t *kv)
{
    *heads = 0;
    if (!layer_int(l, "attention.head_count", layer, heads))
        return false;
    *kv = *heads;
    return layer_int(l, "attention.head_count_kv", layer, kv);
}

/* Rows of q or k: pairs of an interleaved rope. */
static bool list_paired(const struct listing *l, const struct gguf_tensor *t, int layer, bool k)
{
    struct gguf_made m = made_of(l, t);
    int64_t heads, kv;
    if (!layer_heads(l, layer, &heads, &kv))
        return false;
    if (k)
        heads = kv;
    if (!heads || t->dim[0] % (2 * heads) || t->n_dim > 2)
        return bad(l, t, "has %lld rows, expected a multiple of 2 x %lld (%s.attention.%s)",
                   (long long)t->dim[0], (long long)heads, l->a->name,
                   k ? "head_count_kv" : "head_count");
    if (t->n_dim == 1 && dtype_packed(t->type))
        return bad(l, t, "has type %s, expected F32, F16 or BF16", dtype_name(t->type));
    remake(&m, ROWS_HALVES, t->dim[0] / heads, row_elems(t));
    return finish(l, &m);
}

static bool list_norm(const struct listing *l, const struct gguf_tensor *t)
{
    struct gguf_made m = made_of(l, t);
    remake(&m, ROWS_SAME, 0, dtype_packed(t->type) ? packed_format(t->type)->elements : 1);
    m.rows.make = MAKE_LESS_1;
    return finish(l, &m);
}

/* Codes and scales of MXFP4 blocks are two tensors: [E, rows, blocks, 16] and [E, rows, blocks]. */
static bool list_blocks(const struct listing *l, struct gguf_made *m, const char *name)
{
    m->t.dim[2] /= 32;
    m->t.n_dim = 4;
    m->t.dim[3] = 16;
    m->rows.make = MAKE_CODES;
    snprintf(m->name, sizeof m->name, "%s_blocks", name);
    if (!finish(l, m))
        return false;
    m->t.n_dim = 3;
    m->t.dim[3] = 0;
    m->rows.make = MAKE_SCALES;
    snprintf(m->name, sizeof m->name, "%s_scales", name);
    return finish(l, m);
}

/* Two tensors of one shape whose rows follow each other in another order. */
static bool list_two(const struct listing *l, const struct gguf_tensor *gate, const char *up_name,
                     enum row_order order, const char *published)
{
    const struct gguf_tensor *up = gguf_find(l->g, up_name);
    if (gate->n_dim < 2 || gate->n_dim > 3)
        return bad(l, gate, "has %d dimensions, expected 2 or 3", gate->n_dim);
    if (!up || up->n_dim != gate->n_dim || memcmp(up->dim, gate->dim, sizeof up->dim) != 0 ||
        (order == ROWS_PAIRS && up->type != gate->type &&
         (up->type == DT_MXFP4 || gate->type == DT_MXFP4)))
        return bad(l, gate, "does not fit %s, expected the same shape and type", up_name);
    struct gguf_made m = made_of(l, gate);
    m.rows.from[1] = rows_of(l, up);
    m.rows.n_from = 2;
    /* a vector of each expert is rows of one element */
    bool bias = gate->n_dim == 2;
    if (bias && (dtype_packed(gate->type) || dtype_packed(up->type)))
        return bad(l, gate, "has type %s, expected F32, F16 or BF16", dtype_name(gate->type));
    remake(&m, order, gate->dim[1], bias ? 1 : gate->dim[2]);
    m.t.dim[1] *= 2;
    snprintf(m.name, sizeof m.name, "%s", published);
    return gate->type == DT_MXFP4 && order == ROWS_PAIRS ? list_blocks(l, &m, published)
                                                         : finish(l, &m);
}

/* gpt-oss. MXFP4: rows of gate and up in turn, as published. Other types: rows of gate before those
 * of up. (The published bf16 layout has inputs before outputs, which no row of the file has.) */
static bool list_gptoss_expert(const struct listing *l, const struct gguf_tensor *t, int layer,
                               const char *rest)
{
    char up[40], name[80];
    const bool weight = strstr(rest, ".weight") != NULL, plain = l->plain_experts;
    if (weight && t->n_dim != 3)
        return bad(l, t, "has %d dimensions, expected 3", t->n_dim);
    if (!strncmp(rest, "ffn_down", 8)) {
        struct gguf_made m = made_of(l, t);
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", layer);
        if (plain) {
            snprintf(m.name, sizeof m.name, "%s.weight", name);
            return finish(l, &m);
        }
        remake(&m, ROWS_SAME, 0, 32);
        return list_blocks(l, &m, name);
    }
    snprintf(up, sizeof up, "blk.%d.ffn_up_exps.%s", layer, weight ? "weight" : "bias");
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj%s", layer,
             !weight ? "_bias" : plain ? ".weight" : "");
    return list_two(l, t, up, plain ? ROWS_STACKED : ROWS_PAIRS, name);
}

/* Gates and ups of experts lie in one tensor in memory. If the file's types differ, both become a
 * type that has the numbers of both. */
static void join_types(const struct listing *l, int layer, const char *rest, struct gguf_made *m)
{
    const bool gate = !strcmp(rest, "ffn_gate_exps.weight");
    char other[48];
    snprintf(other, sizeof other, "blk.%d.ffn_%s_exps.weight", layer, gate ? "up" : "gate");
    const struct gguf_tensor *t = gguf_find(l->g, other);
    if (!t || t->type == m->source || (!gate && strcmp(rest, "ffn_up_exps.weight") != 0))
        return;
    remake(m, ROWS_SAME, 0, m->t.dim[m->t.n_dim - 1]);
    m->rows.make = MAKE_TYPE;
    m->rows.to = m->t.type = memory_type(m->source, t->type);
}

/* Rows [from, from + n) of each expert's matrix in one tensor, as a tensor of each. */
static bool list_each(const struct listing *l, const struct gguf_tensor *t, int layer,
                      const char *rest, const char *what, int64_t from, int64_t n)
{
    const uint64_t row = t->bytes / (uint64_t)(t->dim[0] * t->dim[1]);
    struct gguf_tensor one = *t;
    one.n_dim = 2;
    one.dim[0] = n, one.dim[1] = t->dim[2], one.dim[2] = 0;
    one.bytes = row * (uint64_t)n;
    for (int64_t i = 0; i < t->dim[0]; i++) {
        one.at = t->at + row * (uint64_t)(i * t->dim[1] + from);
        struct gguf_made m = made_of(l, &one);
        m.rows.from[0] = rows_of(l, t); /* of all experts */
        m.rows.from[0].at = one.at;
        if (m.rows.from[0].outer.rows) {
            m.rows.from[0].outer.at += sizeof(float) * (uint64_t)i;
            m.rows.from[0].outer.rows = INT64_MAX;
        }
        snprintf(m.name, sizeof m.name, "model.layers.%d.mlp.experts.%d.%s_proj.weight", layer,
                 (int)i, what);
        join_types(l, layer, rest, &m);
        if (!finish(l, &m))
            return false;
    }
    return true;
}

/* The experts of a family whose folders have a tensor of each. *done: t has some of theirs. */
static bool list_single(const struct listing *l, const struct gguf_tensor *t, int layer,
                        const char *rest, bool *done)
{
    static const char *const names[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                        "ffn_down_exps.weight", "ffn_gate_up_exps.weight"};
    static const char *const what[] = {"gate", "up", "down"};
    int k = 0;
    while (k < 4 && strcmp(rest, names[k]) != 0)
        k++;
    *done = k < 4;
    if (!*done)
        return true;
    if (t->n_dim != 3 || t->dim[0] > 1 << 12 || (k == 3 && t->dim[1] % 2))
        return bad(l, t,
                   "has %d dimensions, the first of %lld, expected 3, and at most 4096 experts%s",
                   t->n_dim, (long long)t->dim[0], k == 3 ? " of an even number of rows" : "");
    int64_t half = t->dim[1] / 2;
    if (k == 3) /* gate above up */
        return list_each(l, t, layer, rest, "gate", 0, half) &&
               list_each(l, t, layer, rest, "up", half, half);
    return list_each(l, t, layer, rest, what[k], 0, t->dim[1]);
}

/* The experts of a family whose folders have gate and up of all in one tensor, called `published`.
 * *done: t has the gates, or is a part of the tensor that has them. */
static bool list_stacked(const struct listing *l, const struct gguf_tensor *t, int layer,
                         const char *rest, const char *published, bool *done)
{
    char name[96], other[48];
    bool gate = !strcmp(rest, "ffn_gate_exps.weight"), up = !strcmp(rest, "ffn_up_exps.weight");
    snprintf(other, sizeof other, "blk.%d.ffn_%s_exps.weight", layer, gate ? "up" : "gate");
    *done = (gate && t->n_dim == 3) || (up && gguf_find(l->g, other));
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, published);
    return !*done || up || list_two(l, t, other, ROWS_STACKED, name);
}

static bool list_gptoss(const struct listing *l, const struct gguf_tensor *t, int layer,
                        const char *rest, bool *done)
{
    char gate[48];
    bool up = !strncmp(rest, "ffn_up_exps.", 12);
    snprintf(gate, sizeof gate, "blk.%d.ffn_gate_exps.%s", layer, up ? rest + 12 : "");
    if (up && gguf_find(l->g, gate)) {
        *done = true; /* a part of that one */
        return true;
    }
    *done = !strncmp(rest, "ffn_gate_exps.", 14) || !strcmp(rest, "ffn_down_exps.weight");
    return !*done || list_gptoss_expert(l, t, layer, rest);
}

/* *done: t was one of experts that are stored otherwise than in folders. */
static bool list_expert(const struct listing *l, const struct gguf_tensor *t, int layer,
                        const char *rest, bool *done)
{
    const struct gguf_name *both = own_name(l->a, "ffn_gate_up_exps.weight");
    *done = false;
    return l->a->experts == EXPERTS_SINGLE ? list_single(l, t, layer, rest, done)
           : l->a->experts == EXPERTS_GPT_OSS
               ? list_gptoss(l, t, layer, rest, done)
               : !both || list_stacked(l, t, layer, rest, both->published, done);
}

/* q, k and v in one tensor, one after another. */
static bool list_qkv(const struct listing *l, const struct gguf_tensor *t, int layer,
                     const char *rest)
{
    int64_t heads, kv, key = 0, value = 0;
    if (!layer_heads(l, layer, &heads, &kv) || !layer_int(l, "attention.key_length", layer, &key))
        return false;
    if (!key && heads)
        key = t->dim[0] / (heads + 2 * kv);
    value = key;
    if (!layer_int(l, "attention.value_length", layer, &value))
        return false;
    if (!heads || t->n_dim > 2 || t->dim[0] != heads * key + kv * (key + value) ||
        (t->n_dim == 1 && dtype_packed(t->type)))
        return bad(l, t, "does not fit %lld heads and 2 x %lld of K and V", (long long)heads,
                   (long long)kv);
    const int64_t n[3] = {heads * key, kv * key, kv * value};
    const char *const what[] = {"attn_q", "attn_k", "attn_v"};
    struct gguf_tensor part = *t;
    for (int i = 0; i < 3; i++) {
        part.dim[0] = n[i];
        part.bytes = t->bytes / (uint64_t)t->dim[0] * (uint64_t)n[i];
        snprintf(part.name, sizeof part.name, "blk.%d.%s%s", layer, what[i],
                 rest + strlen("attn_qkv"));
        struct gguf_made m = made_of(l, &part);
        m.rows.from[0] = rows_of(l, t); /* of all three */
        m.rows.from[0].at = part.at;
        if (l->a->paired && i < 2)
            remake(&m, ROWS_HALVES, key, row_elems(t));
        if (!finish(l, &m))
            return false;
        part.at += part.bytes;
    }
    return true;
}

/* ---- all tensors ---- */

bool gguf_plain_experts(const struct gguf *g)
{
    for (int i = 0; i < g->n_tensor; i++) {
        const char *rest = g->tensor[i].name;
        if (layer_of(rest, &rest) >= 0 && g->tensor[i].type != DT_MXFP4 &&
            (!strcmp(rest, "ffn_gate_exps.weight") || !strcmp(rest, "ffn_up_exps.weight") ||
             !strcmp(rest, "ffn_down_exps.weight")))
            return true;
    }
    return false;
}

/* Whether gguf_config.c reads the tensor: it says something about the model and is none of it. */
static bool is_config(const struct gguf_arch *a, const char *rest)
{
    const struct gguf_name *own = own_name(a, rest);
    return !strcmp(rest, "rope_freqs.weight") || (own && !own->published);
}

/* Whether w + 1 is stored in place of a norm's w. */
static bool adds_1(const struct gguf_arch *a, const struct gguf_tensor *t)
{
    size_t n = strlen(t->name);
    return a->plus_1 && n >= 11 && !strcmp(t->name + n - 11, "norm.weight") &&
           is_floats(t->type) && !(a->last_norm_plain && !strcmp(t->name, "output_norm.weight"));
}

/* Whether the tensor scales a matrix of another name, or (input) its inputs. */
static bool is_outer_scale(const struct gguf_arch *a, const char *name, bool input)
{
    const char *rest = name;
    layer_of(name, &rest);
    const char *end = strchr(rest, '.');
    return end && !own_name(a, rest) && !strcmp(end, input ? ".input_scale" : ".scale");
}

static bool has_outer_scales(const struct gguf *g, const struct gguf_arch *a)
{
    int i = 0;
    while (i < g->n_tensor && !is_outer_scale(a, g->tensor[i].name, false))
        i++;
    return i < g->n_tensor;
}

/* Checks a scale of a matrix, which is read with that matrix, or one of inputs. */
static bool list_scale(const struct listing *l, const struct gguf_tensor *t, bool input)
{
    char name[GGUF_NAME + 8];
    snprintf(name, sizeof name, "%.*s.weight", (int)(strrchr(t->name, '.') - t->name), t->name);
    const struct gguf_tensor *of = gguf_find(l->g, name);
    if (!of)
        return bad(l, t, "is a scale of %s, which is missing", show(name).s);
    if (input)
        return true;
    if (of->type != DT_NVFP4 || of->n_dim < 2 || of->n_dim > 3)
        return bad(l, t, "is a scale of %s, which has type %s and dimensions: %d, expected NVFP4 "
                         "and 2 or 3", show(name).s, dtype_name(of->type), of->n_dim);
    const int64_t n = of->n_dim == 3 ? of->dim[0] : 1;
    return (t->type == DT_F32 && t->n_dim == 1 && t->dim[0] == n) ||
           bad(l, t, "has type %s and dimensions: %d, the first of %lld, expected F32 and one of "
                     "%lld (one number, or one for each expert)", dtype_name(t->type), t->n_dim,
               (long long)t->dim[0], (long long)n);
}

static bool list_tensor(const struct listing *l, const struct gguf_tensor *t)
{
    const char *rest = t->name;
    int layer = layer_of(t->name, &rest);
    for (int input = 0; input < 2; input++)
        if (is_outer_scale(l->a, t->name, input))
            return list_scale(l, t, input);
    for (int i = 0; i < t->n_dim; i++)
        if (!t->dim[i])
            return bad(l, t, "has a dimension of 0");
    if (is_config(l->a, rest))
        return true;
    bool done = false, in_model = layer >= 0 && (layer < l->layers || layer >= l->blocks);
    if (in_model && !list_expert(l, t, layer, rest, &done))
        return false;
    if (done)
        return true;
    if (in_model && !strncmp(rest, "attn_qkv.", 9) && !own_name(l->a, rest))
        return list_qkv(l, t, layer, rest);
    if (in_model && l->a->paired &&
        (!strncmp(rest, "attn_q.", 7) || !strncmp(rest, "attn_k.", 7)))
        return list_paired(l, t, layer, rest[5] == 'k');
    if (adds_1(l->a, t))
        return list_norm(l, t);
    struct gguf_made m = made_of(l, t);
    if (in_model && t->n_dim == 3)
        join_types(l, layer, rest, &m);
    return finish(l, &m);
}

bool gguf_tensors(const struct gguf *g, const struct gguf_arch *a,
                  void (*add)(void *arg, const struct gguf_made *t), void *arg, struct err *e)
{
    struct listing l = {.g = g, .a = a, .add = add, .arg = arg, .e = e, .n = &(int){0},
                        .plain_experts = gguf_plain_experts(g),
                        .outer = has_outer_scales(g, a)};
    if (!gguf_layers(g, a, &l.layers, &l.blocks, e))
        return false;
    return ALL(i, g->n_tensor, list_tensor(&l, &g->tensor[i]));
}

/* Whether the tensor is X.scale or X.input_scale of a matrix X.weight in NVFP4. */
static bool scales_nvfp4(const struct gguf *g, const char *name)
{
    const char *end = strrchr(name, '.');
    if (!end || (strcmp(end, ".scale") != 0 && strcmp(end, ".input_scale") != 0))
        return false;
    FREED(free_at) char *of = xasprintf("%.*s.weight", (int)(end - name), name);
    const struct gguf_tensor *t = gguf_find(g, of);
    return t && t->type == DT_NVFP4;
}

void gguf_about(const struct gguf *g, struct buf *out)
{
    static const char *const labels[] = {
        [0] = "F32",     [1] = "F16",     [2] = "Q4_0",    [3] = "Q4_1",    [7] = "Q8_0",
        [8] = "Q5_0",    [9] = "Q5_1",    [10] = "Q2_K",   [11] = "Q3_K_S", [12] = "Q3_K_M",
        [13] = "Q3_K_L", [14] = "Q4_K_S", [15] = "Q4_K_M", [16] = "Q5_K_S", [17] = "Q5_K_M",
        [18] = "Q6_K",   [25] = "IQ4_NL", [30] = "IQ4_XS", [32] = "BF16",   [38] = "MXFP4",
        [39] = "NVFP4",
    };
    int count[DT_E2M1 + 1] = {0};
    for (int i = 0; i < g->n_tensor; i++)
        count[g->tensor[i].type] += !scales_nvfp4(g, g->tensor[i].name);
    buf_str(out, "GGUF of ");
    for (bool first = true;; first = false) {
        int most = 0;
        for (int t = 0; t <= DT_E2M1; t++)
            most = count[t] > count[most] ? t : most;
        if (!count[most])
            break;
        buf_printf(out, "%s%d %s", first ? "" : " + ", count[most], dtype_name((enum dtype)most));
        count[most] = 0;
    }
    int64_t label = -1;
    if (gguf_int(g, "general.file_type", 0, 1 << 20, &label, NULL) && label >= 0 &&
        label < (int64_t)LEN(labels) && labels[label])
        buf_printf(out, ", labelled %s", labels[label]);
}
