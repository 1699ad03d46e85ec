/* gguf_config.c - see gguf_model.h.
 *
 * An absent key has the default of the architecture, which is the one of llama.cpp: a file without
 * it is normal. What the format does not store is what the published models have: attention scales
 * of gemma, YaRN's `truncate` of gpt-oss. Frequencies of a llama-3 rope are stored as factors, from
 * which its parameters are found again, so that the frequencies have the bits that the config.json
 * gives them.
 */
#include "models/checkpoint/gguf_model.h"

#include "models/checkpoint/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 1024, MAX_SIZE = 1 << 22, MAX_STOPS = 8 };

/* ---- reading keys: the first error is kept ---- */

struct gguf_meta {
    const struct gguf *g;
    const struct gguf_arch *a;
    json_t *out;
    struct err *e;
    bool ok;
    int layers;
    int heads;
    bool *used;   /* of the entries of the metadata */
    bool factors; /* the tensor of frequency factors was read, or there is none */
};

/* The full name of a key of the architecture, which counts as used from now on. */
struct key {
    char s[120];
};

static struct key full(struct gguf_meta *m, const char *key)
{
    struct key k;
    snprintf(k.s, sizeof k.s, "%s.%s", m->a->name, key);
    const char *has;
    for (int i = 0; (has = gguf_key(m->g, i)); i++)
        if (!strcmp(has, k.s))
            m->used[i] = true;
    return k;
}

static bool has(struct gguf_meta *m, const char *key)
{
    return gguf_has(m->g, full(m, key).s);
}

static void refuse(struct gguf_meta *m, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void refuse(struct gguf_meta *m, const char *key, const char *fmt, ...)
{
    char what[200];
    va_list ap;
    if (!m->ok)
        return;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    m->ok = gguf_refuse(m->g, full(m, key).s, m->e, "%s", what);
}

#define NEEDED INT64_MIN

/* An integer from 0 to max; dflt if the key is absent. */
static int64_t get_int(struct gguf_meta *m, const char *key, int64_t dflt, int64_t max)
{
    int64_t v = dflt;
    struct key k = full(m, key);
    if (m->ok)
        m->ok = gguf_int(m->g, k.s, 0, max, &v, m->e);
    if (m->ok && v == NEEDED)
        refuse(m, key, "is missing");
    return m->ok ? v : 0;
}

/* A number; dflt if the key is absent, NaN: it is needed. */
static double get_real(struct gguf_meta *m, const char *key, double dflt)
{
    double v = dflt;
    struct key k = full(m, key);
    if (m->ok)
        m->ok = gguf_real(m->g, k.s, &v, m->e);
    if (m->ok && isnan(v))
        refuse(m, key, "is missing");
    return m->ok ? v : 1;
}

/* One integer a layer, or one for all, which the caller frees; dflt if the key is absent. */
static int64_t *get_layers(struct gguf_meta *m, const char *key, int64_t dflt, int64_t max)
{
    int64_t *v = NULL, *all = xcalloc((size_t)m->layers + 1, sizeof *all);
    size_t n = 0;
    struct key k = full(m, key);
    if (m->ok)
        m->ok = gguf_ints(m->g, k.s, 0, max, &v, &n, m->e);
    if (m->ok && !v && dflt == NEEDED)
        refuse(m, key, "is missing");
    if (m->ok && v && n != 1 && n != (size_t)m->layers)
        refuse(m, key, "has %zu entries, expected one or %d, one a layer", n, m->layers);
    for (int i = 0; m->ok && i < m->layers; i++)
        all[i] = !v ? dflt : n == 1 ? v[0] : v[i];
    free(v);
    return all;
}

/* The value that all layers have; refuses an array with several. */
static int64_t get_same(struct gguf_meta *m, const char *key, int64_t dflt, int64_t max)
{
    int64_t *v = get_layers(m, key, dflt, max), first = v[0];
    for (int i = 1; m->ok && i < m->layers; i++)
        if (v[i] != first)
            refuse(m, key, "has %lld for layer 0 and %lld for layer %d, expected the same",
                   (long long)first, (long long)v[i], i);
    free(v);
    return first;
}

static void put_int(struct gguf_meta *m, const char *key, int64_t v)
{
    json_object_set_new(m->out, key, json_integer(v));
}

static void put_real(struct gguf_meta *m, const char *key, double v)
{
    json_object_set_new(m->out, key, json_real(v));
}

static void put_bool(struct gguf_meta *m, const char *key, bool v)
{
    json_object_set_new(m->out, key, json_boolean(v));
}

static void put_string(struct gguf_meta *m, const char *key, const char *v)
{
    json_object_set_new(m->out, key, json_string(v));
}

/* Whether q, k and v have biases. */
static bool has_bias(const struct gguf_meta *m)
{
    return gguf_find(m->g, "blk.0.attn_q.bias") || gguf_find(m->g, "blk.0.attn_qkv.bias");
}

/* Rows of a tensor; 0: there is none. */
static int64_t rows_of(const struct gguf_meta *m, const char *name)
{
    const struct gguf_tensor *t = gguf_find(m->g, name);
    return t ? t->dim[0] : 0;
}

/* ---- what all architectures have ---- */

static void put_sizes(struct gguf_meta *m)
{
    m->layers = (int)get_int(m, "block_count", NEEDED, MAX_LAYERS);
    int64_t hidden = get_int(m, "embedding_length", NEEDED, MAX_SIZE);
    m->heads = (int)get_same(m, "attention.head_count", NEEDED, 1 << 16);
    if (m->ok && (!m->layers || !m->heads || !hidden))
        refuse(m,
               !m->layers  ? "block_count"
               : !m->heads ? "attention.head_count"
                           : "embedding_length",
               "is 0");
    put_int(m, "num_hidden_layers", m->layers);
    put_int(m, "hidden_size", hidden);
    put_int(m, "num_attention_heads", m->heads);
    put_int(m, "max_position_embeddings", get_int(m, "context_length", NEEDED, INT32_MAX));
    put_real(m, "rms_norm_eps", get_real(m, "attention.layer_norm_rms_epsilon", NAN));
    put_int(m, "vocab_size", rows_of(m, "token_embd.weight"));
    if (m->ok && !rows_of(m, "token_embd.weight"))
        m->ok = err_set(m->e, ERR_MODEL, "%s: tensor token_embd.weight is missing",
                        show_path(gguf_path(m->g, 0)).s);
    put_bool(m, "tie_word_embeddings", !gguf_find(m->g, "output.weight"));
}

/* Keys and values of a head have the same width, and all of it is rotated. */
static void put_heads(struct gguf_meta *m)
{
    int64_t hidden = json_integer_value(json_object_get(m->out, "hidden_size"));
    int64_t dim = get_int(m, "attention.key_length", m->ok ? hidden / m->heads : 0, 1 << 16);
    if (m->ok && !has(m, "attention.key_length") && hidden % m->heads)
        refuse(m, "attention.head_count", "is %d, which does not divide embedding_length %lld",
               m->heads, (long long)hidden);
    if (get_int(m, "attention.value_length", dim, 1 << 16) != dim)
        refuse(m, "attention.value_length", "is not attention.key_length %lld", (long long)dim);
    if (get_int(m, "rope.dimension_count", dim, 1 << 16) != dim)
        refuse(m, "rope.dimension_count", "is not %lld, the width of a head", (long long)dim);
    put_int(m, "head_dim", dim);
    put_int(m, "num_key_value_heads", get_same(m, "attention.head_count_kv", m->heads, 1 << 16));
}

static void put_dense(struct gguf_meta *m)
{
    put_int(m, "intermediate_size", get_same(m, "feed_forward_length", NEEDED, MAX_SIZE));
    if (get_int(m, "expert_count", 0, MAX_SIZE))
        refuse(m, "expert_count", "is not 0: aerie does not have the experts of this architecture");
}

/* Which layers slide: an array with an entry for each, or every period-th is full. */
static void put_windows(struct gguf_meta *m, int64_t period, int64_t window)
{
    const char *const key = "attention.sliding_window_pattern";
    int64_t *v = NULL;
    size_t n = 0;
    struct key k = full(m, key);
    if (m->ok)
        m->ok = gguf_ints(m->g, k.s, 0, MAX_LAYERS, &v, &n, m->e);
    if (m->ok && v && n != 1 && n != (size_t)m->layers)
        refuse(m, key, "has %zu entries, expected one or %d, one a layer", n, m->layers);
    if (m->ok && v && n == 1)
        period = v[0];
    json_t *types = json_array();
    for (int i = 0; m->ok && i < m->layers; i++) {
        bool slides = v && n > 1 ? v[i] != 0 : period > 0 && i % period < period - 1;
        json_array_append_new(types, json_string(slides ? "sliding_attention" : "full_attention"));
    }
    free(v);
    json_object_set_new(m->out, "layer_types", types);
    put_int(m, "sliding_window", get_int(m, "attention.sliding_window", window, INT32_MAX));
}

/* ---- ids ---- */

/* Texts of tokens that end a reply, whatever the metadata say, as llama.cpp has it. */
static const char *const end_texts[] = {"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>",
                                        "<|return|>", "<|call|>",   "<|endoftext|>", "<|eom_id|>"};

static void add_id(json_t *all, int64_t id)
{
    size_t i;
    json_t *v;
    json_array_foreach(all, i, v) if (json_integer_value(v) == id) return;
    if (json_array_size(all) < MAX_STOPS)
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
    json_t *all = json_array();
    const char *const ends[] = {"eos", "eot", "eom"};
    for (int i = 0; i < 3; i++)
        if (get_id(m, ends[i]) >= 0)
            add_id(all, get_id(m, ends[i]));
    struct gguf_text *t = NULL;
    size_t n = 0;
    if (m->ok)
        m->ok = gguf_strings(m->g, "tokenizer.ggml.tokens", &t, &n, m->e);
    for (size_t i = 0; m->ok && i < n; i++)
        for (size_t k = 0; t[i].n && t[i].p[0] == '<' && k < sizeof end_texts / sizeof *end_texts;
             k++)
            if (t[i].n == strlen(end_texts[k]) && !memcmp(t[i].p, end_texts[k], t[i].n))
                add_id(all, (int64_t)i);
    free(t);
    if (json_array_size(all))
        json_object_set_new(m->out, "eos_token_id", all);
    else
        json_decref(all);
    const int64_t bos = get_id(m, "bos"), pad = get_id(m, "padding");
    if (bos >= 0)
        put_int(m, "bos_token_id", bos);
    if (pad >= 0)
        put_int(m, "pad_token_id", pad);
}

/* ---- rope ---- */

/* Reads a vector of float32 numbers that the config is found from. */
static float *read_floats(struct gguf_meta *m, const struct gguf_tensor *t, int64_t n)
{
    float *v = xcalloc((size_t)n, sizeof *v);
    if (t->type == DT_F32 && t->n_dim == 1 && t->dim[0] == n)
        m->ok = gguf_read(m->g, t, v, m->e);
    else
        m->ok = err_set(m->e, ERR_MODEL,
                        "%s: tensor %s has type %s and %lld elements, expected F32 and %lld",
                        show_path(gguf_path(m->g, t->file)).s, show(t->name).s, dtype_name(t->type),
                        (long long)t->dim[0], (long long)n);
    return v;
}

/* The factors by which frequencies are divided; NULL: there are none. The caller frees. */
static float *rope_factors(struct gguf_meta *m, int64_t n, const char **name)
{
    const struct gguf_tensor *t = gguf_find(m->g, "rope_freqs.weight");
    if (!t)
        t = gguf_find(m->g, "blk.0.rope_freqs.weight");
    *name = t ? t->name : NULL;
    m->factors = true;
    return t && m->ok && n > 0 ? read_floats(m, t, n) : NULL;
}

/* The factor that the llama-3 rule gives a wavelength. */
static double llama3_factor(double wave, double factor, double original)
{
    double low = 1, high = 4, smooth = (original / wave - low) / (high - low);
    if (wave < original / high)
        return 1;
    return wave > original / low ? factor : 1 / ((1 - smooth) / factor + smooth);
}

/* The context that the llama-3 rule starts from: one factor between 1 and `factor` tells it. Where
 * there is none, any number does that is beyond 4 wavelengths of the factors 1 and below the
 * others. */
static double llama3_original(const float *f, int64_t n, double theta, double factor)
{
    double least = 0, most = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double wave = 2 * M_PI * pow(theta, (double)i / (double)n), x = f[i];
        if (x > 1.01 && x < factor * 0.99)
            return round(wave * (1 + 3 * (1 / x - 1 / factor) / (1 - 1 / factor)));
        if (x <= 1.01)
            least = fmax(least, 4 * wave);
        else
            most = fmin(most, wave);
    }
    double known = 8192; /* of all published models */
    return known > least && known < most ? known : isfinite(most) ? sqrt(least * most) : 2 * least;
}

/* Finds the llama-3 rule that gives these factors: with low and high frequency factors of 1 and 4,
 * as in all published models, `factor` is the last of them. */
static bool find_llama3(const float *f, int64_t n, double theta, double *factor, double *original)
{
    *factor = f[n - 1];
    *original = floor(llama3_original(f, n, theta, *factor));
    for (int64_t i = 0; i < n; i++) {
        double wave = 2 * M_PI * pow(theta, (double)i / (double)n);
        double want = llama3_factor(wave, *factor, *original);
        if (!(fabs(f[i] - want) <= 1e-4 * want))
            return false;
    }
    return *factor >= 1 && *original >= 1 && *original <= 1 << 30;
}

/* rope_scaling from the factors of a llama-3 rope; NULL: there are none. */
static json_t *llama3_scaling(struct gguf_meta *m, double theta)
{
    const char *name;
    int64_t n = json_integer_value(json_object_get(m->out, "head_dim")) / 2;
    float *f = rope_factors(m, n, &name);
    double factor, original;
    json_t *s = NULL;
    if (m->ok && f && find_llama3(f, n, theta, &factor, &original))
        s = json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", factor,
                      "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                      "original_max_position_embeddings", (json_int_t)original);
    else if (m->ok && f)
        m->ok = err_set(m->e, ERR_MODEL,
                        "%s: the factors in tensor %s are not those of a llama3 rope, "
                        "the only kind that aerie reads",
                        show_path(gguf_path(m->g, 0)).s, show(name).s);
    free(f);
    return s;
}

static json_t *yarn_scaling(struct gguf_meta *m, double factor, bool truncate)
{
    double attn = get_real(m, "rope.scaling.yarn_attn_factor", 0), dflt = 0.1 * log(factor) + 1;
    json_t *s =
        json_pack("{s:s, s:f, s:I, s:f, s:f}", "rope_type", "yarn", "factor", factor,
                  "original_max_position_embeddings",
                  (json_int_t)get_int(m, "rope.scaling.original_context_length", NEEDED, INT32_MAX),
                  "beta_fast", get_real(m, "rope.scaling.yarn_beta_fast", 32), "beta_slow",
                  get_real(m, "rope.scaling.yarn_beta_slow", 1));
    if (!truncate)
        json_object_set_new(s, "truncate", json_false());
    /* the default has more digits than its float32 */
    if (attn > 0 && fabs(attn - dflt) > 1e-6 * dflt)
        json_object_set_new(s, "attention_factor", json_real(attn));
    return s;
}

/* The object of rope_scaling; NULL: frequencies are not scaled. */
static json_t *scaling(struct gguf_meta *m, bool truncate)
{
    const char *const key = "rope.scaling.type";
    struct gguf_text t = {"none", 4};
    struct key k = full(m, key);
    if (m->ok)
        m->ok = gguf_string(m->g, k.s, &t, m->e);
    char *type = xasprintf("%.*s", (int)(t.n < 40 ? t.n : 40), t.p);
    json_t *s = NULL;
    double factor = get_real(m, "rope.scaling.factor", 1);
    if (m->ok && !strcmp(type, "linear") && factor != 1)
        s = json_pack("{s:s, s:f}", "rope_type", "linear", "factor", factor);
    else if (m->ok && !strcmp(type, "yarn"))
        s = yarn_scaling(m, factor, truncate);
    else if (m->ok && strcmp(type, "none") != 0 && strcmp(type, "linear") != 0)
        refuse(m, key, "is \"%.60s\", expected none, linear or yarn", show(type).s);
    free(type);
    return s;
}

/* rope_theta and rope_scaling of a model with one rope. */
static void put_rope(struct gguf_meta *m, bool truncate)
{
    double theta = get_real(m, "rope.freq_base", 10000);
    json_t *s = scaling(m, truncate), *l = llama3_scaling(m, theta);
    if (s && l)
        refuse(m, "rope.scaling.type", "is there beside rope_freqs.weight, expected one of them");
    put_real(m, "rope_theta", theta);
    if (s || l)
        json_object_set(m->out, "rope_scaling", l ? l : s);
    json_decref(s);
    json_decref(l);
}

/* The rope of full layers (scaled) and the rope of sliding ones, by layer type. */
static void put_ropes(struct gguf_meta *m, json_t *full_rope, double theta, double sliding)
{
    if (!full_rope)
        full_rope = json_pack("{s:s}", "rope_type", "default");
    json_object_set_new(full_rope, "rope_theta", json_real(theta));
    json_object_set_new(m->out, "rope_parameters",
                        json_pack("{s:o, s:{s:s, s:f}}", "full_attention", full_rope,
                                  "sliding_attention", "rope_type", "default", "rope_theta",
                                  sliding));
}

/* ---- architectures ---- */

static void put_block(struct gguf_meta *m, const char *type)
{
    put_string(m, "model_type", type);
    put_heads(m);
    put_dense(m);
    put_rope(m, true);
    if (has_bias(m))
        put_bool(m, "attention_bias", true);
}

/* Llama, Mistral and others that have the same block. */
static void config_llama(struct gguf_meta *m)
{
    if (has(m, "attention.sliding_window_pattern")) {
        put_block(m, "ministral");
        put_windows(m, 1, NEEDED);
        return;
    }
    int64_t context = get_int(m, "context_length", NEEDED, INT32_MAX);
    int64_t window = get_int(m, "attention.sliding_window", 0, INT32_MAX);
    bool slides = window && window < context;
    put_block(m, slides ? "mistral" : "llama");
    if (slides)
        put_int(m, "sliding_window", window);
}

static void config_qwen3(struct gguf_meta *m)
{
    put_block(m, "qwen3");
}

/* Weights of experts always add up to 1. A layer without experts is dense. */
static void config_qwen3moe(struct gguf_meta *m)
{
    put_string(m, "model_type", "qwen3_moe");
    put_heads(m);
    put_rope(m, true);
    put_bool(m, "attention_bias", has_bias(m));
    put_bool(m, "norm_topk_prob", true);
    put_int(m, "num_experts", get_int(m, "expert_count", NEEDED, MAX_SIZE));
    put_int(m, "num_experts_per_tok", get_int(m, "expert_used_count", NEEDED, MAX_SIZE));
    int64_t width = get_int(m, "expert_feed_forward_length", NEEDED, MAX_SIZE);
    put_int(m, "moe_intermediate_size", width);
    put_int(m, "intermediate_size", get_same(m, "feed_forward_length", width, MAX_SIZE));
    json_t *dense = json_array();
    for (int i = 0; m->ok && i < m->layers; i++) {
        char name[48];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_exps.weight", i);
        if (!gguf_find(m->g, name))
            json_array_append_new(dense, json_integer(i));
    }
    json_object_set_new(m->out, "mlp_only_layers", dense);
}

/* Every fourth layer has no rope, which the format does not say. */
static void config_smollm3(struct gguf_meta *m)
{
    put_block(m, "smollm3");
}

/* YaRN whose temperature is 1, and a factor of queries far into the context. */
static void config_mistral3(struct gguf_meta *m)
{
    put_string(m, "model_type", "ministral3");
    put_heads(m);
    put_dense(m);
    double theta = get_real(m, "rope.freq_base", 10000);
    double log_mul = get_real(m, "rope.scaling.yarn_log_multiplier", 0);
    double temper = get_real(m, "attention.temperature_scale", 0);
    json_t *s = scaling(m, true);
    if (!s)
        s = json_pack("{s:s}", "rope_type", "default");
    json_object_set_new(s, "rope_theta", json_real(theta));
    if (log_mul != 0) {
        json_object_set_new(s, "mscale", json_real(log_mul));
        json_object_set_new(s, "mscale_all_dim", json_real(log_mul));
    }
    if (temper != 0)
        json_object_set_new(s, "llama_4_scaling_beta", json_real(temper));
    json_object_set_new(m->out, "rope_parameters", s);
}

/* The model of 64 layers has windows, whose full layers have no rope; the one of 30 has none. */
static void config_exaone4(struct gguf_meta *m)
{
    bool slides = m->layers == 64 || get_int(m, "attention.sliding_window", 0, INT32_MAX) > 0;
    put_block(m, "exaone4");
    if (slides)
        put_windows(m, 4, 4096);
    else
        json_object_set_new(m->out, "sliding_window", json_null());
}

/* The scale of the queries: by the width of a head, but in the largest model of a family by
 * hidden_size / heads. */
static void put_gemma(struct gguf_meta *m, const char *type, int largest)
{
    put_string(m, "model_type", type);
    put_heads(m);
    put_dense(m);
    int64_t hidden = json_integer_value(json_object_get(m->out, "hidden_size"));
    int64_t dim = json_integer_value(json_object_get(m->out, "head_dim"));
    put_int(m, "query_pre_attn_scalar", m->ok && m->layers == largest ? hidden / m->heads : dim);
    put_bool(m, "tie_word_embeddings", !gguf_find(m->g, "output.weight"));
}

static void config_gemma2(struct gguf_meta *m)
{
    put_gemma(m, "gemma2", 46);
    put_windows(m, 2, 4096);
    put_rope(m, true);
    put_real(m, "attn_logit_softcapping", get_real(m, "attn_logit_softcapping", 50));
    put_real(m, "final_logit_softcapping", get_real(m, "final_logit_softcapping", 30));
}

static void config_gemma3(struct gguf_meta *m)
{
    put_gemma(m, "gemma3_text", 62);
    put_windows(m, 6, NEEDED);
    put_rope(m, true);
    put_real(m, "rope_local_base_freq", get_real(m, "rope.freq_base_swa", 10000));
    double cap = get_real(m, "final_logit_softcapping", 0);
    if (cap > 0)
        put_real(m, "final_logit_softcapping", cap);
}

static void config_gptoss(struct gguf_meta *m)
{
    put_string(m, "model_type", "gpt_oss");
    put_heads(m);
    put_windows(m, 2, NEEDED);
    put_rope(m, false);
    int64_t dense = get_same(m, "feed_forward_length", 0, MAX_SIZE);
    put_int(m, "intermediate_size",
            get_int(m, "expert_feed_forward_length", dense ? dense : NEEDED, MAX_SIZE));
    put_int(m, "num_local_experts", get_int(m, "expert_count", NEEDED, MAX_SIZE));
    put_int(m, "num_experts_per_tok", get_int(m, "expert_used_count", NEEDED, MAX_SIZE));
    put_bool(m, "attention_bias", has_bias(m));
    json_object_set_new(m->out, "quantization_config", json_pack("{s:s}", "quant_method", "mxfp4"));
}

/* OLMo 2 and, where there is a window, OLMo 3. */
static void config_olmo(struct gguf_meta *m)
{
    if (!get_int(m, "attention.sliding_window", 0, INT32_MAX)) {
        put_block(m, "olmo2");
        return;
    }
    put_string(m, "model_type", "olmo3");
    put_heads(m);
    put_dense(m);
    put_windows(m, 4, 0);
    double theta = get_real(m, "rope.freq_base", 10000);
    put_ropes(m, scaling(m, true), theta, get_real(m, "rope.freq_base_swa", theta));
}

/* The share of a head that full layers rotate: pairs whose factor is 1, the others never turn. */
static double gemma4_partial(struct gguf_meta *m, int64_t dim)
{
    const char *name;
    int64_t n = dim / 2, ones = 0;
    float *f = rope_factors(m, n, &name);
    while (f && ones < n && f[ones] == 1)
        ones++;
    for (int64_t i = ones; f && i < n; i++)
        if (!(f[i] >= 1e20f) && m->ok)
            m->ok = err_set(m->e, ERR_MODEL,
                            "%s: the factors in tensor %s are neither 1 nor 1e30, as those "
                            "of a partial rope are",
                            show_path(gguf_path(m->g, 0)).s, show(name).s);
    bool all = !f || !n;
    free(f);
    return all ? 1 : (double)ones / (double)n;
}

/* Layer i < layers - shared has `wide`, or what all have; the others twice as much. */
static void put_gemma4_mlp(struct gguf_meta *m, int64_t shared)
{
    const char *const key = "feed_forward_length";
    int64_t *v = get_layers(m, key, NEEDED, MAX_SIZE), first = v[0];
    bool wide = m->ok && shared && v[m->layers - 1] == 2 * first;
    for (int i = 0; m->ok && i < m->layers; i++)
        if (v[i] != (wide && i >= m->layers - shared ? 2 * first : first))
            refuse(m, key,
                   "is %lld for layer %d, expected %lld, or twice that in the last %lld layers",
                   (long long)v[i], i, (long long)first, (long long)shared);
    free(v);
    put_int(m, "intermediate_size", first);
    put_int(m, "num_kv_shared_layers", shared);
    put_bool(m, "use_double_wide_mlp", wide);
}

/* Heads of full layers are wider and may be fewer. */
static void put_gemma4_heads(struct gguf_meta *m)
{
    const char *const key = "attention.head_count_kv";
    int64_t dim = get_int(m, "attention.key_length", NEEDED, 1 << 16);
    int64_t swa = get_int(m, "attention.key_length_swa", dim, 1 << 16);
    if (get_int(m, "attention.value_length", dim, 1 << 16) != dim)
        refuse(m, "attention.value_length", "is not attention.key_length");
    if (get_int(m, "attention.value_length_swa", swa, 1 << 16) != swa)
        refuse(m, "attention.value_length_swa", "is not attention.key_length_swa");
    if (get_int(m, "rope.dimension_count", dim, 1 << 16) != dim)
        refuse(m, "rope.dimension_count", "is not attention.key_length");
    if (get_int(m, "rope.dimension_count_swa", swa, 1 << 16) != swa)
        refuse(m, "rope.dimension_count_swa", "is not attention.key_length_swa");
    int64_t *kv = get_layers(m, key, m->heads, 1 << 16), of[2] = {0, 0};
    const json_t *types = json_object_get(m->out, "layer_types");
    bool k_is_v = false;
    for (int i = 0; m->ok && i < m->layers; i++) {
        char v[40];
        bool slides =
            !strcmp(json_string_value(json_array_get(types, (size_t)i)), "sliding_attention");
        snprintf(v, sizeof v, "blk.%d.attn_k.weight", i);
        bool own = gguf_find(m->g, v);
        snprintf(v, sizeof v, "blk.%d.attn_v.weight", i);
        k_is_v |= !slides && own && !gguf_find(m->g, v);
        if (of[slides] && of[slides] != kv[i])
            refuse(m, key, "is %lld for layer %d and %lld for others of its type", (long long)kv[i],
                   i, (long long)of[slides]);
        of[slides] = kv[i];
    }
    free(kv);
    if (m->ok && of[0] && of[1] && of[0] != of[1] && !k_is_v)
        refuse(m, key, "differs between full and sliding layers, expected that where K is V only");
    put_int(m, "head_dim", swa);
    put_int(m, "global_head_dim", dim);
    put_int(m, "num_key_value_heads", of[1] ? of[1] : of[0]);
    put_bool(m, "attention_k_eq_v", k_is_v);
    if (k_is_v)
        put_int(m, "num_global_key_value_heads", of[0] ? of[0] : of[1]);
}

static void config_gemma4(struct gguf_meta *m)
{
    put_string(m, "model_type", "gemma4_text");
    put_windows(m, 6, NEEDED);
    put_gemma4_heads(m);
    put_gemma4_mlp(m, get_int(m, "attention.shared_kv_layers", 0, m->layers));
    int64_t dim = json_integer_value(json_object_get(m->out, "global_head_dim"));
    double theta = get_real(m, "rope.freq_base", 1e6), partial = gemma4_partial(m, dim);
    json_t *rope =
        json_pack("{s:s, s:f}", "rope_type", "proportional", "partial_rotary_factor", partial);
    put_ropes(m, rope, theta, get_real(m, "rope.freq_base_swa", 10000));
    put_int(m, "hidden_size_per_layer_input",
            get_int(m, "embedding_length_per_layer_input", 0, MAX_SIZE));
    put_int(m, "vocab_size_per_layer_input", rows_of(m, "per_layer_token_embd.weight"));
    double cap = get_real(m, "final_logit_softcapping", 0);
    if (cap > 0)
        put_real(m, "final_logit_softcapping", cap);
    int64_t experts = get_int(m, "expert_count", 0, MAX_SIZE);
    put_bool(m, "enable_moe_block", experts > 0);
    if (!experts)
        return;
    put_int(m, "num_experts", experts);
    put_int(m, "top_k_experts", get_int(m, "expert_used_count", NEEDED, MAX_SIZE));
    put_int(m, "moe_intermediate_size", get_int(m, "expert_feed_forward_length", NEEDED, MAX_SIZE));
}

static const struct gguf_arch archs[] = {
    {.name = "llama", .paired = true, .config = config_llama},
    {.name = "gemma2", .plus_1 = true, .sandwich = true, .config = config_gemma2},
    {.name = "gemma3", .plus_1 = true, .sandwich = true, .config = config_gemma3},
    {.name = "gemma4", .sandwich = true, .config = config_gemma4},
    {.name = "gpt-oss", .config = config_gptoss},
    {.name = "olmo2", .config = config_olmo},
    {.name = "qwen3", .config = config_qwen3},
    {.name = "qwen3moe", .config = config_qwen3moe},
    {.name = "smollm3", .paired = true, .config = config_smollm3},
    {.name = "mistral3", .paired = true, .config = config_mistral3},
    {.name = "exaone4", .config = config_exaone4},
};

enum { N_ARCHS = sizeof archs / sizeof *archs };

const struct gguf_arch *gguf_arch(const struct gguf *g, struct err *e)
{
    static const char *const key = "general.architecture";
    struct gguf_text t = {NULL, 0};
    struct buf known = {0};
    if (!gguf_string(g, key, &t, e))
        return NULL;
    for (int i = 0; t.p && i < N_ARCHS; i++)
        if (strlen(archs[i].name) == t.n && !memcmp(archs[i].name, t.p, t.n))
            return &archs[i];
    for (int i = 0; i < N_ARCHS; i++)
        buf_printf(&known, "%s%s", i ? ", " : "", archs[i].name);
    char *name = xasprintf("%.*s", (int)(t.n < 60 ? t.n : 60), t.p ? t.p : "");
    if (!t.p)
        gguf_refuse(g, key, e, "is missing");
    else if (!strcmp(name, "clip") || !strcmp(name, "mmproj"))
        gguf_refuse(g, key, e,
                    "is \"%s\": these are the image and sound parts of a model (mmproj), "
                    "expected the file of its text model",
                    name);
    else
        gguf_refuse(g, key, e, "\"%s\" is not supported, expected one of %s", show(name).s,
                    known.p);
    free(name);
    buf_free(&known);
    return NULL;
}

/* ---- keys that no row of the table reads ---- */

/* Keys of an architecture that change no number. */
static const char *const harmless[] = {
    "vocab_size",        "rope.scaling.finetuned",    "rope.scaling.orig_ctx_len",
    "attention.causal",  "leading_dense_block_count", "expert_count",
    "expert_used_count",
};

static void note_unused(const struct gguf_meta *m, struct buf *note)
{
    const char *key;
    size_t n = strlen(m->a->name);
    int found = 0;
    for (int i = 0; (key = gguf_key(m->g, i)); i++) {
        bool skip = m->used[i] || strncmp(key, m->a->name, n) != 0 || key[n] != '.';
        for (size_t k = 0; !skip && k < sizeof harmless / sizeof *harmless; k++)
            skip = !strcmp(key + n + 1, harmless[k]);
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
    int n = 0;
    while (gguf_key(g, n))
        n++;
    struct gguf_meta m = {.g = g,
                          .a = a,
                          .out = json_object(),
                          .e = e,
                          .ok = true,
                          .used = xcalloc((size_t)n, sizeof *m.used)};
    put_sizes(&m);
    if (m.ok)
        a->config(&m);
    put_ids(&m);
    if (m.ok && !m.factors && gguf_find(g, "rope_freqs.weight"))
        m.ok = err_set(e, ERR_MODEL, "%s: tensor rope_freqs.weight is not used by architecture %s",
                       show_path(gguf_path(g, 0)).s, a->name);
    char *text = m.ok ? json_dumps(m.out, JSON_REAL_PRECISION(17) | JSON_INDENT(1)) : NULL;
    if (text) {
        buf_str(out, text);
        note_unused(&m, note);
    }
    free(text);
    free(m.used);
    json_decref(m.out);
    return m.ok;
}
