/* gguf_config.c - see gguf_model.h: reads metadata, and what all architectures have. */
#include "models/checkpoint/gguf_meta.h"
#include "models/models.h"

#include <math.h>

enum { MAX_LAYERS = 1024 };

/* ---- reading keys ---- */

/* The full name of a key of the architecture, which counts as used from now on. */
struct key {
    char s[120];
};

static struct key meta_key(struct gguf_meta *m, const char *key)
{
    struct key k;
    snprintf(k.s, sizeof k.s, "%s.%s", m->a->name, key);
    const char *has;
    for (int i = 0; (has = gguf_key(m->g, i)); i++)
        if (!strcmp(has, k.s))
            m->used[i] = true;
    return k;
}

bool meta_has(struct gguf_meta *m, const char *key)
{
    return gguf_has(m->g, meta_key(m, key).s);
}

const char *meta_either(struct gguf_meta *m, const char *key, const char *other)
{
    return !meta_has(m, key) && meta_has(m, other) ? other : key;
}

void meta_refuse(struct gguf_meta *m, const char *key, const char *fmt, ...)
{
    char what[200];
    if (!m->ok)
        return;
    PRINT_ARGS(what, fmt);
    m->ok = gguf_refuse(m->g, meta_key(m, key).s, m->e, "%s", what);
}

int64_t meta_int(struct gguf_meta *m, const char *key, int64_t dflt, int64_t max)
{
    int64_t v = dflt;
    struct key k = meta_key(m, key);
    if (m->ok)
        m->ok = gguf_int(m->g, k.s, 0, max, &v, m->e);
    if (m->ok && v == META_NEEDED)
        meta_refuse(m, key, "is missing");
    return m->ok ? v : 0;
}

double meta_real(struct gguf_meta *m, const char *key, double dflt)
{
    double v = dflt;
    struct key k = meta_key(m, key);
    if (m->ok)
        m->ok = gguf_real(m->g, k.s, &v, m->e);
    if (m->ok && isnan(v))
        meta_refuse(m, key, "is missing");
    return m->ok ? v : 1;
}

bool meta_bool(struct gguf_meta *m, const char *key, bool dflt)
{
    struct key k = meta_key(m, key);
    if (m->ok)
        m->ok = gguf_bool(m->g, k.s, &dflt, m->e);
    return dflt;
}

struct gguf_text meta_string(struct gguf_meta *m, const char *key, const char *dflt)
{
    struct gguf_text t = {dflt, strlen(dflt)};
    struct key k = meta_key(m, key);
    if (m->ok)
        m->ok = gguf_string(m->g, k.s, &t, m->e);
    return t;
}

int64_t *meta_ints(struct gguf_meta *m, const char *key, int64_t max, size_t *n)
{
    int64_t *v = NULL;
    struct key k = meta_key(m, key);
    if (m->ok)
        m->ok = gguf_ints(m->g, k.s, 0, max, &v, n, m->e);
    return v;
}

float *meta_reals(struct gguf_meta *m, const char *key, size_t *n)
{
    float *v = NULL;
    struct key k = meta_key(m, key);
    if (m->ok)
        m->ok = gguf_reals(m->g, k.s, &v, n, m->e);
    return v;
}

/* meta_ints() with one entry for all layers, or one for each. */
static int64_t *layer_ints(struct gguf_meta *m, const char *key, int64_t max, size_t *n)
{
    int64_t *v = meta_ints(m, key, max, n);
    if (m->ok && v && *n != 1 && *n != (size_t)m->blocks)
        meta_refuse(m, key, "has %zu entries, expected one or %d, one a layer", *n, m->blocks);
    return v;
}

int64_t *meta_layers(struct gguf_meta *m, const char *key, int64_t dflt, int64_t max)
{
    int64_t *all = xcalloc((size_t)m->layers + 1, sizeof *all);
    size_t n = 0;
    FREED(free_at) int64_t *v = layer_ints(m, key, max, &n);
    if (m->ok && !v && dflt == META_NEEDED)
        meta_refuse(m, key, "is missing");
    for (int i = 0; m->ok && i < m->layers; i++)
        all[i] = !v ? dflt : n == 1 ? v[0] : v[i];
    return all;
}

int64_t meta_same(struct gguf_meta *m, const char *key, int64_t dflt, int64_t max)
{
    FREED(free_at) int64_t *v = meta_layers(m, key, dflt, max);
    for (int i = 1; m->ok && i < m->layers; i++)
        if (v[i] != v[0])
            meta_refuse(m, key, "has %lld for layer 0 and %lld for layer %d, expected the same",
                        (long long)v[0], (long long)v[i], i);
    return v[0];
}

bool meta_in_layer(const struct gguf_meta *m, int i, const char *name)
{
    char full[GGUF_NAME];
    snprintf(full, sizeof full, "blk.%d.%s", i, name);
    return gguf_find(m->g, full) != NULL;
}

bool meta_has_bias(const struct gguf_meta *m)
{
    return meta_in_layer(m, 0, "attn_q.bias") || meta_in_layer(m, 0, "attn_qkv.bias");
}

int64_t meta_rows(const struct gguf_meta *m, const char *name)
{
    const struct gguf_tensor *t = gguf_find(m->g, name);
    return t ? t->dim[0] : 0;
}

float *meta_floats(struct gguf_meta *m, const struct gguf_tensor *t, int64_t n)
{
    float *v = xcalloc((size_t)n, sizeof *v);
    if (t->type == DT_F32 && t->n_dim == 1 && t->dim[0] == n)
        m->ok = gguf_read(m->g, t, v, m->e);
    else
        m->ok = err_file(m->e, m->g->file[t->file].path,
                         "tensor %s has type %s and %lld elements, expected F32 and %lld",
                         show(t->name).s, dtype_name(t->type), (long long)t->dim[0], (long long)n);
    return v;
}

void put_real(struct gguf_meta *m, const char *key, double v)
{
    char text[32];
    double shown = v;
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        shown = strtod(text, NULL);
        if ((float)shown == (float)v)
            break;
    }
    json_object_set_new(m->out, key, json_real((double)(float)v == v ? shown : v));
}

/* ---- what all architectures have ---- */

bool gguf_layers(const struct gguf *g, const struct gguf_arch *a, int *layers, int *blocks,
                 struct err *e)
{
    int64_t all = -1, more = 0;
    char key[2][80];
    snprintf(key[0], sizeof key[0], "%s.block_count", a->name);
    snprintf(key[1], sizeof key[1], "%s.nextn_predict_layers", a->name);
    if (!gguf_int(g, key[0], 0, MAX_LAYERS, &all, e) ||
        !gguf_int(g, key[1], 0, MAX_LAYERS, &more, e))
        return false;
    if (all < 0)
        return gguf_refuse(g, key[0], e, "is missing");
    if (all <= more)
        return gguf_refuse(g, key[0], e, "is %lld%s", (long long)all,
                           more ? ", no more than nextn_predict_layers" : "");
    *blocks = (int)all;
    *layers = (int)(all - more);
    return true;
}

static void put_sizes(struct gguf_meta *m)
{
    const char *const eps = m->a->layer_norm ? "attention.layer_norm_epsilon"
                                             : "attention.layer_norm_rms_epsilon";
    meta_has(m, "nextn_predict_layers"); /* both were read before: they count as used */
    meta_has(m, "block_count");
    int64_t hidden = meta_int(m, "embedding_length", META_NEEDED, META_MAX);
    FREED(free_at) int64_t *heads = meta_layers(m, "attention.head_count", META_NEEDED, 1 << 16);
    m->heads = (int)(m->a->by_layer ? heads[0]
                                    : meta_same(m, "attention.head_count", META_NEEDED, 1 << 16));
    if (m->ok && (!m->heads || !hidden))
        meta_refuse(m, !m->heads ? "attention.head_count" : "embedding_length", "is 0");
    put_int(m, "num_hidden_layers", m->layers);
    put_int(m, "hidden_size", hidden);
    put_int(m, "num_attention_heads", m->heads);
    put_int(m, "max_position_embeddings", meta_int(m, "context_length", META_NEEDED, INT32_MAX));
    put_real(m, m->a->layer_norm ? "layer_norm_eps" : "rms_norm_eps",
             meta_real(m, eps, m->a->eps > 0 ? m->a->eps : NAN));
    int64_t vocab = meta_rows(m, "token_embd.weight");
    if (m->a->draft && !vocab)
        vocab = meta_int(m, "vocab_size", 0, META_MAX);
    if (vocab)
        put_int(m, "vocab_size", vocab);
    else if (m->ok && !m->a->draft)
        m->ok = err_file(m->e, m->g->file[0].path, "tensor token_embd.weight is missing");
    put_bool(m, "tie_word_embeddings", !m->a->draft && !gguf_find(m->g, "output.weight"));
}

int64_t meta_some_heads(struct gguf_meta *m)
{
    int64_t hidden = put_before(m, "hidden_size");
    int64_t dim = meta_int(m, "attention.key_length", m->ok ? hidden / m->heads : 0, 1 << 16);
    if (m->ok && !meta_has(m, "attention.key_length") && hidden % m->heads)
        meta_refuse(m, "attention.head_count", "is %d, which does not divide embedding_length %lld",
                    m->heads, (long long)hidden);
    put_int(m, "head_dim", dim);
    return meta_int(m, "attention.value_length", dim, 1 << 16);
}

int64_t meta_kv_heads(struct gguf_meta *m)
{
    int64_t value = meta_some_heads(m), dim = put_before(m, "head_dim");
    if (value != dim)
        meta_refuse(m, "attention.value_length", "is not attention.key_length %lld",
                    (long long)dim);
    put_int(m, "num_key_value_heads", meta_same(m, "attention.head_count_kv", m->heads, 1 << 16));
    return dim;
}

void meta_heads(struct gguf_meta *m)
{
    int64_t dim = meta_kv_heads(m);
    static const char *const keys[] = {"rope.dimension_count", "rope.dimension_count_swa"};
    for (int i = 0; i < 2; i++)
        if (meta_int(m, keys[i], dim, 1 << 16) != dim)
            meta_refuse(m, keys[i], "is not %lld, the width of a head", (long long)dim);
}

void meta_dense(struct gguf_meta *m)
{
    put_int(m, "intermediate_size", meta_same(m, "feed_forward_length", META_NEEDED, META_MAX));
    if (meta_int(m, "expert_count", 0, META_MAX))
        meta_refuse(m, "expert_count", "is not 0: aerie does not have the experts of this "
                                       "architecture");
}

void meta_windows(struct gguf_meta *m, int64_t period, bool first, int64_t window)
{
    const char *const key = "attention.sliding_window_pattern";
    size_t n = 0;
    FREED(free_at) int64_t *v = layer_ints(m, key, MAX_LAYERS, &n);
    if (m->ok && v && n == 1)
        period = v[0];
    json_t *types = json_array();
    for (int i = 0; m->ok && i < m->layers; i++) {
        bool full = period > 0 && i % period == (first ? 0 : period - 1);
        bool slides = v && n > 1 ? v[i] != 0 : period > 0 && !full;
        json_array_append_new(types, json_string(slides ? "sliding_attention" : "full_attention"));
    }
    json_object_set_new(m->out, "layer_types", types);
    put_int(m, "sliding_window", meta_int(m, "attention.sliding_window", window, INT32_MAX));
}

bool meta_slides(const struct gguf_meta *m, int i)
{
    const json_t *types = json_object_get(m->out, "layer_types");
    const char *t = json_string_value(json_array_get(types, (size_t)i));
    return t && !strcmp(t, "sliding_attention");
}

/* ---- ids ---- */

/* Texts of tokens that end a reply, whatever the metadata say, as llama.cpp has it. */
static const char *const end_texts[] = {"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>",
                                        "<|return|>", "<|call|>",   "<|endoftext|>", "<|eom_id|>"};

static void add_id(json_t *all, int64_t id)
{
    size_t i;
    json_t *v;
    json_array_foreach(all, i, v)
        if (json_integer_value(v) == id)
            return;
    if (json_array_size(all) <= (size_t)4 * MAX_EOS) /* more are refused where the config is read */
        json_array_append_new(all, json_integer(id));
}

static int64_t get_id(struct gguf_meta *m, const char *name)
{
    char key[64];
    int64_t id = -1;
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    if (m->ok)
        m->ok = gguf_int(m->g, key, INT64_MIN, INT64_MAX, &id, m->e);
    return id == UINT32_MAX ? -1 : id;
}

static void put_ids(struct gguf_meta *m)
{
    FREED(json_decrefp) json_t *all = json_array();
    const char *const ends[] = {"eos", "eot", "eom"};
    for (int i = 0; i < 3; i++)
        if (get_id(m, ends[i]) >= 0)
            add_id(all, get_id(m, ends[i]));
    FREED(free_at) int64_t *list = NULL; /* of ollama's converter */
    size_t n_list = 0;
    if (m->ok)
        m->ok = gguf_ints(m->g, "tokenizer.ggml.eos_token_ids", INT32_MIN, INT32_MAX, &list,
                          &n_list, m->e);
    for (size_t i = 0; i < n_list; i++)
        if (list[i] >= 0)
            add_id(all, list[i]);
    FREED(free_at) struct gguf_text *t = NULL;
    size_t n = 0;
    if (m->ok)
        m->ok = gguf_strings(m->g, "tokenizer.ggml.tokens", &t, &n, m->e);
    for (size_t i = 0; m->ok && i < n; i++)
        for (size_t k = 0; t[i].n && t[i].p[0] == '<' && k < LEN(end_texts);
             k++)
            if (t[i].n == strlen(end_texts[k]) && !memcmp(t[i].p, end_texts[k], t[i].n))
                add_id(all, (int64_t)i);
    if (json_array_size(all))
        json_object_set(m->out, "eos_token_id", all);
    const int64_t bos = get_id(m, "bos"), pad = get_id(m, "padding");
    if (bos >= 0)
        put_int(m, "bos_token_id", bos);
    if (pad >= 0)
        put_int(m, "pad_token_id", pad);
}

/* ---- keys that no row of the table reads ---- */

/* Keys of an architecture that change no number. */
static const char *const harmless[] = {
    "vocab_size",                "rope.scaling.finetuned", "rope.scaling.orig_ctx_len",
    "leading_dense_block_count", "expert_count",           "expert_used_count",
};

static void note_unused(const struct gguf_meta *m, struct buf *note)
{
    const char *key;
    size_t n = strlen(m->a->name);
    int found = 0;
    for (int i = 0; (key = gguf_key(m->g, i)); i++) {
        bool skip = m->used[i] || strncmp(key, m->a->name, n) != 0 || key[n] != '.' ||
                    ROW_NAMED(harmless, key + n + 1);
        if (!skip && found++ < 5)
            buf_printf(note, "%s%s", found == 1 ? "metadata that aerie does not use: " : ", ",
                       show(key).s);
    }
    if (found > 5)
        buf_printf(note, " and %d more", found - 5);
}

bool gguf_config(const struct gguf *g, const struct gguf_arch *a, struct buf *out, struct buf *note,
                 struct err *e)
{
    struct gguf_meta m = {.g = g, .a = a, .out = json_object(), .e = e, .ok = true,
                          .used = xcalloc((size_t)g->n_entry, sizeof *m.used)};
    m.ok = gguf_layers(g, a, &m.layers, &m.blocks, e);
    put_sizes(&m);
    if (!meta_bool(&m, "attention.causal", true) && !a->draft)
        meta_refuse(&m, "attention.causal", "is false, expected true");
    if (m.ok)
        a->config(&m);
    put_ids(&m);
    if (m.ok && !m.factors && gguf_find(g, "rope_freqs.weight"))
        m.ok = err_file(e, g->file[0].path,
                        "tensor rope_freqs.weight is not used by architecture %s", a->name);
    FREED(free_at) char *text = NULL;
    if (m.ok)
        text = json_dumps(m.out, JSON_REAL_PRECISION(17) | JSON_INDENT(1));
    if (text) {
        buf_str(out, text);
        note_unused(&m, note);
    }
    free(m.used);
    json_decref(m.out);
    return m.ok;
}
