/* config.c - see config.h. */
#include "models/checkpoint/config.h"

#include "models/checkpoint/coded_config.h"

#include <math.h>

enum {
    MAX_HIDDEN = 1 << 16, MAX_FFN = 1 << 20, MAX_LAYERS = 1024, MAX_HEADS = 1024,
    MAX_HEAD_DIM = 1024, MAX_VOCAB = 1 << 22, MAX_CONTEXT = 1 << 30,
};

/* ---- sizes ---- */

static int64_t or_needed(int dflt)
{
    return dflt ? dflt : CONF_NEEDED;
}

static int read_head_dim(const struct arch *a, int dflt, int heads)
{
    const struct conf *c = &a->c;
    int hidden = a->cfg->hidden;
    if (conf_is_null(c, "head_dim"))
        dflt = 0;
    if (!conf_has(c, "head_dim") && !dflt && conf_ok(c)) {
        if (hidden % heads)
            conf_refuse(c, "num_attention_heads", "is %d, which does not divide hidden_size %d",
                        heads, hidden);
        dflt = hidden / heads;
    }
    int dim = conf_int(c, "head_dim", dflt, 2, MAX_HEAD_DIM);
    if (conf_ok(c) && (dim < 2 || dim > MAX_HEAD_DIM || dim % 2))
        conf_refuse(c, "head_dim", "is %d, expected an even number from 2 to %d", dim,
                    MAX_HEAD_DIM);
    return dim;
}

static bool read_sizes(struct arch *a, const struct sizes *d)
{
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->hidden = conf_int(c, "hidden_size", or_needed(d->hidden), 1, MAX_HIDDEN);
    g->vocab = conf_int(c, "vocab_size", or_needed(d->vocab), 1, MAX_VOCAB);
    g->n_layer = conf_int(c, "num_hidden_layers", or_needed(d->layers), 1, MAX_LAYERS);
    g->max_pos = conf_int(c, "max_position_embeddings", or_needed(d->max_pos), 1, MAX_CONTEXT);
    g->eps = (float)conf_num(c, "rms_norm_eps", d->eps, 1e-12, 1);
    int heads = conf_int(c, "num_attention_heads", or_needed(d->heads), 1, MAX_HEADS);
    int kv_dflt = d->kv && !conf_is_null(c, "num_key_value_heads") ? d->kv : heads;
    int kv = conf_int(c, "num_key_value_heads", kv_dflt, 1, MAX_HEADS);
    int ffn = conf_int(c, "intermediate_size", or_needed(d->ffn), 1, MAX_FFN);
    int dim = read_head_dim(a, d->head_dim, heads);
    bool bias = conf_bool(c, "attention_bias", false);
    if (heads % kv)
        conf_refuse(c, "num_key_value_heads", "is %d, which does not divide num_attention_heads %d",
                    kv, heads);
    if (g->n_layer > a->n_tensor)
        conf_refuse(c, "num_hidden_layers", "is %d, but the checkpoint has only %d tensors",
                    g->n_layer, a->n_tensor);
    if (!conf_ok(c))
        return false;
    g->qkv_bias = g->o_bias = bias;
    g->attn_scale = (float)pow(dim, -0.5);
    g->embed_scale = g->residual_scale = g->logit_scale = g->value_scale = g->route_scale = 1;
    g->bos = g->pad = -1;
    a->layer = xcalloc((size_t)g->n_layer, sizeof *a->layer);
    for (int i = 0; i < g->n_layer; i++) {
        struct layer *l = &a->layer[i];
        l->n_head = heads;
        l->n_kv = kv;
        l->head_dim = dim;
        l->ffn = ffn;
        l->kv_src = i;
    }
    return true;
}

/* ---- lists of layers ---- */

const json_t *arch_list(const struct arch *a, const char *key, bool more)
{
    const json_t *list = conf_value(&a->c, key);
    size_t n = json_array_size(list), layers = (size_t)a->cfg->n_layer;
    if (list && (more ? n < layers : n != layers))
        conf_refuse(&a->c, key, "has %zu entries, expected %s%zu (num_hidden_layers)", n,
                    more ? "at least " : "", layers);
    return list;
}

bool arch_word(const struct arch *a, const char *key, int i, const char *no, const char *yes)
{
    const char *t = json_string_value(json_array_get(conf_value(&a->c, key), (size_t)i));
    if (!t || (strcmp(t, no) != 0 && strcmp(t, yes) != 0))
        conf_refuse(&a->c, key, "has \"%.60s\" for layer %d, expected %s or %s",
                    t ? show(t).s : "?", i, no, yes);
    return t && !strcmp(t, yes);
}

/* ---- windows ---- */

static bool layer_slides(const struct arch *a, const json_t *types, int i, int period, int first)
{
    return types ? arch_word(a, "layer_types", i, "full_attention", "sliding_attention")
                 : period == 0 || i % period != first % period;
}

void arch_windows(struct arch *a, int period, int window)
{
    arch_windows_from(a, period, period - 1, window);
}

void arch_windows_from(struct arch *a, int period, int first, int window)
{
    const struct conf *c = &a->c;
    int n = a->cfg->n_layer;
    const json_t *types = arch_list(a, "layer_types", false);
    bool any = false;
    for (int i = 0; i < n; i++) {
        a->layer[i].window = layer_slides(a, types, i, period, first); /* 1 until W is known */
        any |= a->layer[i].window;
    }
    if (!any)
        return;
    if (conf_is_null(c, "sliding_window"))
        conf_refuse(c, "sliding_window", "is null, but there are sliding layers");
    int w = conf_int(c, "sliding_window", or_needed(window), 1, MAX_CONTEXT);
    a->cfg->window = w;
    for (int i = 0; i < n; i++)
        if (a->layer[i].window)
            a->layer[i].window = w;
}

void arch_rope_ids(struct arch *a, int full, int sliding)
{
    for (int i = 0; i < a->cfg->n_layer; i++)
        a->layer[i].rope_id = a->layer[i].window ? sliding : full;
}

void arch_no_rope(struct arch *a)
{
    const struct conf *c = &a->c;
    const json_t *list = conf_value(c, "no_rope_layers"), *has = NULL;
    if (!json_is_array(list) || json_array_size(list)) /* empty as published for Llama 4 Scout */
        has = arch_list(a, "no_rope_layers", true);
    int every = conf_int(c, "no_rope_layer_interval", 4, 1, 1 << 20);
    for (int i = 0; i < a->cfg->n_layer; i++) {
        const json_t *v = json_array_get(has, (size_t)i);
        bool none = has ? json_is_integer(v) && !json_integer_value(v) : (i + 1) % every == 0;
        if (has && !json_is_integer(v))
            conf_refuse(c, "no_rope_layers", "has no number for layer %d, expected 1 (rope) or 0",
                        i);
        a->layer[i].rope_id = none ? -1 : 0;
    }
}

/* ---- experts ---- */

void arch_experts(struct arch *a, const char *count, int n, int k, int ffn)
{
    static const char top[] = "num_experts_per_tok";
    const struct conf *c = &a->c;
    struct config *g = a->cfg;
    g->moe = MOE_ALONE;
    g->store = STORE_HALVES;
    g->n_expert = conf_int(c, count, n, 1, 512);
    g->top_k = conf_int(c, top, k, 1, min_int(g->n_expert, 32));
    if (g->top_k > g->n_expert)
        conf_refuse(c, top, "is missing, and its default %d is more than the %d experts", k,
                    g->n_expert);
    g->expert_ffn = ffn ? conf_int(c, "moe_intermediate_size", ffn, 1, MAX_FFN) : a->layer[0].ffn;
}

void arch_mlp_types(struct arch *a, int dense)
{
    const char *const key = "mlp_layer_types";
    const json_t *types = arch_list(a, key, false);
    for (int i = 0; i < a->cfg->n_layer; i++)
        a->layer[i].is_moe = types ? arch_word(a, key, i, "dense", "sparse") : i >= dense;
}

void arch_shared(struct arch *a, int ffn)
{
    for (int i = 0; i < a->cfg->n_layer; i++)
        if (a->layer[i].is_moe)
            a->layer[i].ffn = ffn;
}

/* ---- enumerations ---- */

enum act_kind arch_act(const struct conf *c, const char *key, const char *dflt)
{
    const char *s = conf_str(c, key, dflt);
    enum act_kind act = ACT_NONE;
    if (!s)
        conf_refuse(c, key, "is missing");
    else if (!act_of_name(s, &act))
        conf_refuse(c, key, "\"%.60s\" is not supported, expected silu or gelu_pytorch_tanh",
                    show(s).s);
    return act;
}

float arch_softcap(const struct conf *c, const char *key, double dflt)
{
    return (float)conf_num(c, key, conf_is_null(c, key) ? 0 : dflt, 1e-3, 1e6);
}

bool arch_tied(const struct arch *a, bool dflt)
{
    bool alone = a->c.obj == a->top.obj;
    return conf_bool(&a->top, "tie_word_embeddings", alone ? dflt : !a->has_head);
}

static void check_method(const struct conf *c, const char *method)
{
    struct conf q;
    if (!conf_enter(c, "quantization_config", &q))
        return;
    const char *s = coded_method_of(&q);
    if (!coded_method(s) && (!method || strcmp(s, method) != 0))
        conf_refuse(&q, "quant_method", "\"%.60s\" is not supported for this family, expected %s",
                    show(s).s, method ? method
                                      : "compressed-tensors, modelopt or fp8; fetch the model in "
                                        "one of them, in bf16, or a GGUF file of it");
}

/* ---- the block of most families ---- */

bool arch_block(struct arch *a, const struct sizes *dflt, enum norm_place place,
                const char *quantized)
{
    if (!read_sizes(a, dflt))
        return false;
    a->cfg->norm = NORM_RMS;
    a->cfg->place = place;
    a->cfg->act = arch_act(&a->c, "hidden_act", "silu");
    a->cfg->tied = arch_tied(a, false);
    check_method(&a->top, quantized);
    check_method(&a->c, quantized);
    return true;
}

/* ---- special tokens and generation_config.json ---- */

static void config_add_stop(struct config *g, const struct conf *c, int64_t id)
{
    for (int i = 0; i < g->n_stop; i++)
        if (g->stop[i] == id)
            return;
    if (g->n_stop == MAX_EOS)
        conf_refuse(c, "eos_token_id", "makes more than %d stop tokens", MAX_EOS);
    else
        g->stop[g->n_stop++] = (int)id;
}

/* An id outside the vocabulary can be neither sampled nor fed to the model: it is ignored. */
static void read_id(const struct conf *c, const char *key, const struct config *g, int *out)
{
    int64_t v;
    if (conf_has(c, key) && conf_ints(c, key, &v, 1) == 1 && v >= 0 && v < g->vocab)
        *out = (int)v;
}

void arch_tokens(const struct conf *c, struct config *g)
{
    int64_t v[4 * MAX_EOS];
    int n = conf_ints(c, "eos_token_id", v, 4 * MAX_EOS);
    for (int i = 0; i < n; i++)
        if (v[i] >= 0 && v[i] < g->vocab)
            config_add_stop(g, c, v[i]);
    read_id(c, "bos_token_id", g, &g->bos);
    read_id(c, "pad_token_id", g, &g->pad);
}

static void read_sampling(const struct conf *c, struct config *g)
{
    struct sampling_defaults *s = &g->sampling;
    s->given = conf_has(c, "do_sample") || conf_has(c, "temperature") || conf_has(c, "top_p") ||
               conf_has(c, "top_k") || conf_has(c, "min_p");
    s->temperature = (float)conf_num(c, "temperature", 1, 0, 100);
    s->top_p = (float)conf_num(c, "top_p", 1, 0, 1);
    s->min_p = (float)conf_num(c, "min_p", 0, 0, 1);
    s->top_k = max_int(conf_int(c, "top_k", 0, -1, INT32_MAX), 0); /* -1: all, as servers have it */
    if (!conf_bool(c, "do_sample", conf_has(c, "temperature")))
        s->temperature = 0;
}

bool generation_read(const char *dir, struct config *g, struct err *e)
{
    bool absent;
    FREED(free_at) char *path = xasprintf("%s/generation_config.json", dir);
    FREED(json_decrefp) json_t *root = json_open(path, &absent, e);
    struct conf_file file = {.path = path, .e = e};
    struct conf c = {.obj = root, .file = &file};
    if (root) {
        arch_tokens(&c, g);
        read_sampling(&c, g);
        g->n_suppressed = (int)json_array_size(json_object_get(root, "suppress_tokens"));
    }
    return absent || (root && conf_ok(&c));
}
