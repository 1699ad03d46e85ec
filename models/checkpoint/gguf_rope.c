/* gguf_rope.c - the rope of a GGUF file: see gguf_meta.h.
 *
 * Frequencies of a llama-3 rope are stored as factors, from which its parameters are found again,
 * so that the frequencies have the bits that the config.json gives them.
 */
#include "models/checkpoint/gguf_meta.h"

#include <math.h>

float *meta_factors(struct gguf_meta *m, int64_t n, const char **name)
{
    const struct gguf_tensor *t = gguf_find(m->g, "rope_freqs.weight");
    if (!t)
        t = gguf_find(m->g, "blk.0.rope_freqs.weight");
    *name = t ? t->name : NULL;
    m->factors = true;
    return t && m->ok && n > 0 ? meta_floats(m, t, n) : NULL;
}

/* The factor that the llama-3 rule gives a wavelength. */
static double llama3_factor(double wave, double factor, double original, double high)
{
    double low = 1, smooth = (original / wave - low) / (high - low);
    if (wave < original / high)
        return 1;
    return wave > original / low ? factor : 1 / ((1 - smooth) / factor + smooth);
}

/* The context that the llama-3 rule starts from: one factor between 1 and `factor` tells it. Where
 * there is none, any number does that is beyond `high` wavelengths of the factors 1 and below the
 * others. */
static double llama3_original(const float *f, int64_t n, double theta, double factor, double high)
{
    double least = 0, most = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double wave = 2 * M_PI * pow(theta, (double)i / (double)n), x = f[i];
        if (x > 1.01 && x < factor * 0.99)
            return round(wave * (1 + (high - 1) * (1 / x - 1 / factor) / (1 - 1 / factor)));
        if (x <= 1.01)
            least = fmax(least, high * wave);
        else
            most = fmin(most, wave);
    }
    double known = 8192; /* of all published models */
    return known > least && known < most ? known : isfinite(most) ? sqrt(least * most) : 2 * least;
}

/* Finds the llama-3 rule that gives these factors: with a low frequency factor of 1, as in all
 * published models, `factor` is the last of them. */
static bool find_llama3(const float *f, int64_t n, double theta, double high, double *factor,
                        double *original)
{
    *factor = f[n - 1];
    *original = floor(llama3_original(f, n, theta, *factor, high));
    for (int64_t i = 0; i < n; i++) {
        double wave = 2 * M_PI * pow(theta, (double)i / (double)n);
        double want = llama3_factor(wave, *factor, *original, high);
        if (!(fabs(f[i] - want) <= 1e-4 * want))
            return false;
    }
    return *factor >= 1 && *original >= 1 && *original <= 1 << 30;
}

json_t *meta_llama3(struct gguf_meta *m, double theta, double high)
{
    const char *name;
    int64_t n = put_before(m, "head_dim") / 2;
    FREED(free_at) float *f = meta_factors(m, n, &name);
    double factor, original;
    if (m->ok && f && find_llama3(f, n, theta, high, &factor, &original))
        return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", factor,
                         "low_freq_factor", 1.0, "high_freq_factor", high,
                         "original_max_position_embeddings", (json_int_t)original);
    if (m->ok && f)
        m->ok = err_file(m->e, m->g->file[0].path,
                         "the factors in tensor %s are not those of a llama3 rope, the only kind "
                         "that aerie reads",
                         show(name).s);
    return NULL;
}

/* ollama's converter writes the betas under older names. */
static json_t *yarn_scaling(struct gguf_meta *m, double factor, bool truncate)
{
    const char *const fast = meta_either(m, "rope.scaling.yarn_beta_fast",
                                         "rope.scaling.beta_fast");
    const char *const slow = meta_either(m, "rope.scaling.yarn_beta_slow",
                                         "rope.scaling.beta_slow");
    double attn = meta_real(m, "rope.scaling.yarn_attn_factor", 0), dflt = 0.1 * log(factor) + 1;
    json_t *s =
        json_pack("{s:s, s:f, s:I, s:f, s:f}", "rope_type", "yarn", "factor", factor,
                  "original_max_position_embeddings",
                  (json_int_t)meta_int(m, "rope.scaling.original_context_length",
                                       put_before(m, "max_position_embeddings"), INT32_MAX),
                  "beta_fast", meta_real(m, fast, 32), "beta_slow", meta_real(m, slow, 1));
    if (!truncate)
        json_object_set_new(s, "truncate", json_false());
    /* the default has more digits than its float32 */
    if (attn > 0 && fabs(attn - dflt) > 1e-6 * dflt)
        json_object_set_new(s, "attention_factor", json_real(attn));
    return s;
}

/* The factor that scales positions, by its key or the one of older files; absent, or 0: 1. */
static double scaling_factor(struct gguf_meta *m)
{
    const double v = meta_real(m, meta_either(m, "rope.scaling.factor", "rope.scale_linear"), 0);
    return v != 0 ? v : 1;
}

/* What llama.cpp multiplies sines and cosines by, whatever the rope is. */
static void refuse_attn_factor(struct gguf_meta *m)
{
    static const char *const key = "rope.scaling.attn_factor";
    if (meta_real(m, key, 1) != 1)
        meta_refuse(m, key, "is not 1, expected that but for phi3");
}

json_t *meta_scaling(struct gguf_meta *m, bool truncate)
{
    const char *const key = "rope.scaling.type";
    struct gguf_text t = meta_string(m, key, m->a->yarn ? "yarn" : "linear");
    FREED(free_at) char *type = xasprintf("%.*s", (int)(t.n < 40 ? t.n : 40), t.p);
    double factor = scaling_factor(m);
    refuse_attn_factor(m);
    if (m->ok && !strcmp(type, "linear") && factor != 1)
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", factor);
    if (m->ok && !strcmp(type, "yarn"))
        return yarn_scaling(m, factor, truncate);
    if (m->ok && strcmp(type, "none") != 0 && strcmp(type, "linear") != 0)
        meta_refuse(m, key, "is \"%.60s\", expected none, linear or yarn", show(type).s);
    return NULL;
}

void meta_unscaled(struct gguf_meta *m, bool lists)
{
    const char *const key = "rope.scaling.type";
    const struct gguf_text t = meta_string(m, key, "linear");
    const bool none = t.n == 4 && !memcmp(t.p, "none", 4);
    const bool yarn = t.n == 4 && !memcmp(t.p, "yarn", 4);
    if (!lists)
        refuse_attn_factor(m);
    if (yarn || (!none && scaling_factor(m) != 1))
        meta_refuse(m, yarn ? key : "rope.scaling.factor",
                    "asks for a scaled rope, which aerie does not have for this architecture");
}

void meta_rope(struct gguf_meta *m, bool truncate)
{
    double theta = meta_real(m, "rope.freq_base", 10000);
    if (meta_real(m, "rope.freq_base_swa", theta) != theta)
        meta_refuse(m, "rope.freq_base_swa", "is not rope.freq_base, expected one rope for all "
                                             "layers");
    put_rope(m, theta, meta_scaling(m, truncate));
}

void put_rope(struct gguf_meta *m, double theta, json_t *scaling)
{
    FREED(json_decrefp) json_t *s = scaling, *l = meta_llama3(m, theta, 4);
    if (s && l)
        meta_refuse(m, "rope.scaling.type", "is there beside rope_freqs.weight, "
                                            "expected one of them");
    put_real(m, "rope_theta", theta);
    if (s || l)
        json_object_set(m->out, "rope_scaling", l ? l : s);
}

void meta_ropes(struct gguf_meta *m, json_t *full, double theta, double sliding,
                const double partial[2])
{
    static const char *const type[] = {"full_attention", "sliding_attention"};
    theta = meta_real(m, "rope.freq_base", theta);
    sliding = meta_real(m, "rope.freq_base_swa", sliding > 0 ? sliding : theta);
    json_t *of[2] = {full ? full : json_pack("{s:s}", "rope_type", "default"),
                     json_pack("{s:s}", "rope_type", "default")};
    json_t *both = json_object();
    for (int i = 0; i < 2; i++) {
        json_object_set_new(of[i], "rope_theta", json_real(i ? sliding : theta));
        if (partial)
            json_object_set_new(of[i], "partial_rotary_factor", json_real(partial[i]));
        json_object_set_new(both, type[i], of[i]);
    }
    json_object_set_new(m->out, "rope_parameters", both);
}

double meta_partial(struct gguf_meta *m, const char *key, int64_t dim, double dflt)
{
    int64_t n = meta_int(m, key, -1, 1 << 16);
    if (n < 0 || !m->ok)
        return dflt;
    if (!n || n > dim || n % 2)
        meta_refuse(m, key, "is %lld, expected an even number up to %lld, the width of a head",
                    (long long)n, (long long)dim);
    double share = m->ok ? (double)n / (double)dim : 1;
    while (m->ok && (int64_t)((double)dim * share) < n)
        share = nextafter(share, 2);
    return share;
}
