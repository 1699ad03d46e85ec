/* rope.c - rotary embedding: the frequencies, and the config keys that choose them.
 *
 * With d = rot, the number of rotated dimensions, the unscaled frequency of pair i is
 * theta^(-2i/d); each kind below scales it. Values are rounded to float32 where the reference
 * rounds them: at position p an error e of a frequency is an error p e of the angle.
 */
#include "models/checkpoint/config.h"

#include <math.h>

/* ---- frequencies ---- */

/* YaRN's attention temperature, 0.1 m ln(factor) + 1 (Peng et al. 2023, eq. 22). */
static double yarn_mscale(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

/* The (fractional) index of the pair that makes `turns` rotations within the original context. */
static double yarn_pair(const struct rope *r, double turns)
{
    return r->rot * log(r->original_max / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

/* theta^(2i/d), whose reciprocal is the unscaled frequency. */
static float wavelength(const struct rope *r, int i)
{
    float exponent = (float)(2 * i) / (float)r->rot;
    return (float)pow((double)(float)r->theta, (double)exponent);
}

/* YaRN: high frequencies are kept, low ones are divided by the factor, with a linear ramp
 * between. */
static void yarn_fill(struct rope *r)
{
    double low = yarn_pair(r, r->beta_fast), high = yarn_pair(r, r->beta_slow);
    if (r->truncate)
        low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, r->rot - 1);
    if (low == high)
        high += 0.001;
    for (int i = 0; i < r->half; i++) {
        float slow = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0), 1);
        float keep = 1 - slow, w = wavelength(r, i);
        r->inv_freq[i] = 1 / ((float)r->factor * w) * (1 - keep) + 1 / w * keep;
    }
    double f = r->attention_factor;
    if (f == 0 && r->mscale != 0 && r->mscale_all_dim != 0)
        f = yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    r->cs_factor = (float)(f != 0 ? f : yarn_mscale(r->factor, 1));
}

/* Llama 3: frequencies with a wavelength above original_max / low are divided by the factor, those
 * below original_max / high are kept, and those between are interpolated. */
static void llama3_fill(struct rope *r)
{
    float low = (float)r->low_freq_factor;
    float range = (float)(r->high_freq_factor - r->low_freq_factor);
    for (int i = 0; i < r->half; i++) {
        float inv = 1 / wavelength(r, i), length = (float)(2 * M_PI) / inv;
        float keep = ((float)r->original_max / length - low) / range;
        if (length > (float)(r->original_max / r->low_freq_factor))
            inv /= (float)r->factor;
        else if (range > 0 && !(length < (float)(r->original_max / r->high_freq_factor)))
            inv = (1 - keep) * inv / (float)r->factor + keep * inv;
        r->inv_freq[i] = inv;
    }
}

void rope_for_context(struct rope *r, int context)
{
    if (r->kind != ROPE_LONG)
        return;
    r->beyond = context > r->original_max;
    for (int i = 0; i < r->half; i++)
        r->inv_freq[i] = 1 / (r->factors[r->beyond][i] * wavelength(r, i));
}

/* The temperature grows with how far the context was stretched (Ding et al. 2024). */
static void long_fill(struct rope *r)
{
    double f = r->attention_factor, s = r->factor;
    if (f == 0)
        f = s <= 1 ? 1 : sqrt(1 + log(s) / log(r->original_max));
    r->cs_factor = (float)f;
    rope_for_context(r, 0);
}

bool rope_init(struct rope *r, int head_dim, struct err *e)
{
    r->head_dim = head_dim;
    r->rot = r->kind == ROPE_PROPORTIONAL ? head_dim : (int)(head_dim * r->partial);
    r->half = r->rot / 2;
    r->cs_factor = 1;
    r->inv_freq = NULL;
    if (r->rot < 2 || r->rot % 2)
        return err_set(e, ERR_MODEL, "rope rotates %d of a head's %d dimensions "
                       "(partial_rotary_factor), expected an even number", r->rot, head_dim);
    if (r->kind == ROPE_LONG && r->half != r->n_factor)
        return err_set(e, ERR_MODEL, "rope has lists of %d factors, expected %d, half the rotated "
                       "dimensions", r->n_factor, r->half);
    r->inv_freq = xcalloc((size_t)r->half, sizeof *r->inv_freq);
    /* proportional: the frequencies of a full rotation, 0 beyond the share of rotated pairs */
    int n = r->kind == ROPE_PROPORTIONAL ? (int)floor(r->partial * head_dim / 2) : r->half;
    float factor = r->kind == ROPE_DEFAULT ? 1 : (float)r->factor;
    if (r->kind == ROPE_YARN)
        yarn_fill(r);
    else if (r->kind == ROPE_LLAMA3)
        llama3_fill(r);
    else if (r->kind == ROPE_LONG)
        long_fill(r);
    else
        for (int i = 0; i < n; i++)
            r->inv_freq[i] = 1 / wavelength(r, i) / factor;
    return true;
}

void rope_free(struct rope *r)
{
    DROP(r->inv_freq);
}

/* ---- config keys ---- */

static const char *const kind_names[] = {
    [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear",
    [ROPE_YARN] = "yarn",       [ROPE_LLAMA3] = "llama3",
    [ROPE_PROPORTIONAL] = "proportional", [ROPE_LONG] = "longrope",
};

static enum rope_kind rope_kind(const struct conf *p, const struct rope_spelling *s)
{
    const char *old = conf_str(p, "type", "default"), *name = conf_str(p, "rope_type", old);
    if (conf_has(p, "type") && strcmp(name, old) != 0)
        conf_refuse(p, "type", "is \"%.60s\" beside another rope_type", show(old).s);
    if (s->is_long && (!strcmp(name, "su") || !strcmp(name, "yarn")))
        name = kind_names[ROPE_LONG];
    for (int i = 0; i <= ROPE_LONG; i++)
        if (!strcmp(name, kind_names[i]) && (s->is_long ? i == ROPE_DEFAULT || i == ROPE_LONG
                                                        : i != ROPE_LONG))
            return (enum rope_kind)i;
    conf_refuse(p, conf_has(p, "rope_type") ? "rope_type" : "type", "\"%.60s\" is not supported, "
                "expected %s", show(name).s, s->is_long ? "default or longrope"
                : "default, linear, yarn, llama3 or proportional");
    return ROPE_DEFAULT;
}

/* The keys of a rope's object, and the kinds of rope that use each. */
enum {
    IN_LINEAR = 1 << ROPE_LINEAR, IN_YARN = 1 << ROPE_YARN, IN_LLAMA3 = 1 << ROPE_LLAMA3,
    IN_PROPORTIONAL = 1 << ROPE_PROPORTIONAL, IN_LONG = 1 << ROPE_LONG, IN_ANY = ~0,
};
static const struct {
    const char *key;
    int kinds;
    double neutral; /* this value says no more than an absent key */
} rope_keys[] = {
    {"rope_type", IN_ANY, NAN},
    {"type", IN_ANY, NAN},
    {"rope_theta", IN_ANY, NAN},
    {"factor", IN_LINEAR | IN_YARN | IN_LLAMA3 | IN_PROPORTIONAL | IN_LONG, 1},
    {"original_max_position_embeddings", IN_YARN | IN_LLAMA3 | IN_LONG, NAN},
    {"beta_fast", IN_YARN, NAN},
    {"beta_slow", IN_YARN, NAN},
    {"truncate", IN_YARN, NAN},
    {"attention_factor", IN_YARN | IN_LONG, 1},
    {"mscale", IN_YARN, 1},
    {"mscale_all_dim", IN_YARN, 1},
    {"low_freq_factor", IN_LLAMA3, NAN},
    {"high_freq_factor", IN_LLAMA3, NAN},
    {"partial_rotary_factor", IN_PROPORTIONAL, 1},
    {"long_factor", IN_LONG, NAN},
    {"short_factor", IN_LONG, NAN},
    {"llama_4_scaling_beta", 0, NAN},
    {"full_attention", 0, NAN},
    {"sliding_attention", 0, NAN},
};

/* Whether the family uses the key in a rope of these kinds. */
static bool family_uses(const struct rope_spelling *s, const char *key, int kinds)
{
    return (s->partial && !strcmp(key, "partial_rotary_factor")) ||
           (s->tempers && kinds & IN_YARN && !strcmp(key, "llama_4_scaling_beta"));
}

/* Refuses keys that no kind of rope in `kinds` uses. */
static void refuse_unused(const struct conf *p, const struct rope_spelling *s, int kinds,
                          const char *expected)
{
    for (size_t i = 0; i < LEN(rope_keys); i++) {
        const json_t *v = conf_value(p, rope_keys[i].key);
        if (v && !(rope_keys[i].kinds & kinds) && !family_uses(s, rope_keys[i].key, kinds) &&
            !(json_is_number(v) && json_number_value(v) == rope_keys[i].neutral))
            conf_refuse(p, rope_keys[i].key, "is not used there, expected %s", expected);
    }
}

static bool is_layer_type(const char *key)
{
    return !strcmp(key, "full_attention") || !strcmp(key, "sliding_attention");
}

/* An object with one rope per layer type has no other key of a rope beside them. */
static void refuse_untyped(const struct conf *all)
{
    for (size_t i = 0; i < LEN(rope_keys); i++)
        if (!is_layer_type(rope_keys[i].key) && conf_has(all, rope_keys[i].key))
            conf_refuse(all, rope_keys[i].key, "is not used there, expected it in full_attention "
                        "or sliding_attention");
}

/* Enters the object of rope_parameters for the layer type. False if there is none. */
static bool enter_parameters(const struct conf *c, const struct rope_spelling *s, struct conf *out)
{
    if (!conf_enter(c, "rope_parameters", out))
        return false;
    if (!s->type)
        return true;
    refuse_untyped(out);
    return conf_enter(out, s->type, out);
}

/* The context length that scaling starts from. Where layer types have ropes of their own, only
 * their objects say it. */
static double original_max(const struct conf *c, const struct conf *p, const struct config *cfg,
                           const struct rope_spelling *s, double dflt)
{
    static const char *const key = "original_max_position_embeddings";
    double of_rope = p ? conf_num(p, key, cfg->max_pos, 1, 1 << 30) : dflt;
    double of_model = conf_num(c, key, of_rope, 1, 1 << 30);
    if (s->type && of_model != of_rope)
        conf_refuse(c, key, "is %g, but the rope of the %s layers has %g", of_model, s->type,
                    of_rope);
    return of_model;
}

static void read_yarn(const struct conf *p, const struct rope_spelling *s, struct rope *r)
{
    r->beta_slow = conf_num(p, "beta_slow", 1, 1e-6, 1e6);
    r->beta_fast = conf_num(p, "beta_fast", 32, r->beta_slow, 1e6);
    r->truncate = conf_bool(p, "truncate", true);
    r->attention_factor = conf_num(p, "attention_factor", 0, 1e-6, 1e6);
    r->mscale = conf_num(p, "mscale", 0, 0, 1e6);
    r->mscale_all_dim = conf_num(p, "mscale_all_dim", 0, 0, 1e6);
    if (s->tempers)
        r->temper = conf_num(p, "llama_4_scaling_beta", 0, 0, 1e3);
    if (s->type && !r->truncate)
        conf_refuse(p, "truncate", "is false, which the reference does not use where layer types "
                    "have ropes of their own, expected true");
}

static void read_llama3(const struct conf *p, struct rope *r)
{
    r->low_freq_factor = conf_num(p, "low_freq_factor", NAN, 1e-6, 1e6);
    r->high_freq_factor = conf_num(p, "high_freq_factor", NAN, 1e-6, 1e6);
    if (r->high_freq_factor < r->low_freq_factor) /* equal in Llama 4 Scout: nothing between */
        conf_refuse(p, "high_freq_factor", "is %g, expected at least low_freq_factor %g",
                    r->high_freq_factor, r->low_freq_factor);
}

static void read_factors(const struct conf *p, const char *key, struct rope *r, float *factors)
{
    const json_t *v = conf_value(p, key);
    size_t n = json_array_size(v);
    if (n == 0 || n > MAX_FACTORS || (r->n_factor && n != (size_t)r->n_factor))
        conf_refuse(p, key, "has %zu numbers, expected a list of one for each rotated pair", n);
    for (size_t i = 0; i < n && n <= MAX_FACTORS; i++) {
        double x = json_number_value(json_array_get(v, i));
        if (!(x >= 1e-6 && x <= 1e6))
            conf_refuse(p, key, "has no number from 1e-6 to 1e6 at %zu", i);
        factors[i] = (float)x;
    }
    r->n_factor = n <= MAX_FACTORS ? (int)n : 0;
}

static void read_long(const struct conf *p, struct rope *r)
{
    r->attention_factor = conf_num(p, "attention_factor", 0, 1e-6, 1e6);
    read_factors(p, "short_factor", r, r->factors[0]);
    read_factors(p, "long_factor", r, r->factors[1]);
}

/* The share of a head that is rotated. Only the proportional kind leaves dimensions unrotated, and
 * families whose spelling says so. Where layer types have ropes of their own, the reference reads
 * their objects only. */
static double partial(const struct conf *c, const struct conf *p, const struct rope_spelling *s,
                      const struct rope *r)
{
    static const char *const key = "partial_rotary_factor";
    const struct conf *at = p && conf_has(p, key) ? p : c;
    bool fixed = s->partial ? s->type && at == c : !p || r->kind != ROPE_PROPORTIONAL;
    double expected = r->partial; /* without p: the family's; else 1 */
    double x = conf_num(at, key, expected, 1e-3, 1);
    if (fixed && x != expected && s->partial)
        conf_refuse(at, key, "is %g, which the rope of %s layers does not use, expected it in "
                    "rope_parameters.%s", x, s->type, s->type);
    else if (fixed && x != expected)
        conf_refuse(at, key, "is %g, which a rope of type %s does not use, expected %g", x,
                    kind_names[r->kind], expected);
    return x;
}

/* Reads a rope from its object p; NULL: there is none. */
static void read_rope(const struct conf *c, const struct conf *p, const struct config *cfg,
                      const struct rope_spelling *s, struct rope *r)
{
    *r = s->dflt;
    if (s->theta)
        r->theta = conf_num(c, s->theta, r->theta, 1.001, 1e12);
    if (p) {
        *r = (struct rope){.kind = rope_kind(p, s), .factor = 1, .partial = 1, .truncate = true,
                           .theta = conf_num(p, "rope_theta", r->theta, 1.001, 1e12)};
        if (r->kind == ROPE_DEFAULT && s->share > 0)
            r->partial = s->share;
        char expected[64];
        snprintf(expected, sizeof expected, "none in a rope of type %s", kind_names[r->kind]);
        refuse_unused(p, s, 1 << r->kind, expected);
    }
    r->partial = partial(c, p, s, r);
    if (r->kind == ROPE_YARN || r->kind == ROPE_LLAMA3 || r->kind == ROPE_LONG)
        r->original_max = original_max(c, p, cfg, s, r->original_max);
    if (r->kind == ROPE_LONG && !conf_has(c, "original_max_position_embeddings"))
        r->original_max = s->dflt.original_max; /* whatever the rope's object says */
    if (!p)
        return;
    bool stretches = r->kind == ROPE_YARN || r->kind == ROPE_LONG;
    double factor = stretches                      ? cfg->max_pos / r->original_max
                    : r->kind == ROPE_PROPORTIONAL ? 1
                                                   : NAN;
    if (r->kind != ROPE_DEFAULT)
        r->factor = conf_num(p, "factor", factor, 1e-3, 1e6);
    if (r->kind == ROPE_YARN)
        read_yarn(p, s, r);
    if (r->kind == ROPE_LLAMA3)
        read_llama3(p, r);
    if (r->kind == ROPE_LONG)
        read_long(p, r);
}

static bool same_rope(const struct rope *a, const struct rope *b)
{
    return a->kind == b->kind && a->theta == b->theta && a->factor == b->factor &&
           a->original_max == b->original_max && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->mscale == b->mscale &&
           a->mscale_all_dim == b->mscale_all_dim && a->attention_factor == b->attention_factor &&
           a->partial == b->partial && a->truncate == b->truncate && a->temper == b->temper &&
           a->n_factor == b->n_factor && !memcmp(a->factors, b->factors, sizeof a->factors);
}

void arch_rope(const struct conf *c, const struct config *cfg, const struct rope_spelling *s,
               struct rope *r)
{
    struct conf given, scaling;
    bool has_given = enter_parameters(c, s, &given);
    bool has_scaling = s->scaled && conf_enter(c, "rope_scaling", &scaling) &&
                       json_object_size(scaling.obj);
    if (has_scaling && s->type && conf_has(&scaling, "type") && !conf_has(&scaling, "rope_type"))
        conf_refuse(&scaling, "type", "is not used in this family, expected rope_type");
    read_rope(c, has_scaling ? &scaling : has_given ? &given : NULL, cfg, s, r);
    if (!has_scaling || !has_given)
        return;
    struct rope other;
    read_rope(c, &given, cfg, s, &other);
    if (!same_rope(r, &other))
        conf_refuse(c, "rope_scaling", "says something else than rope_parameters");
}

/* The layers of one table must agree on the width of their heads. */
static bool rope_head_dim(const struct config *g, const struct layer *layer, int r, int *dim,
                          struct err *e)
{
    *dim = 0;
    for (int i = 0; i < g->n_layer; i++) {
        if (layer[i].rope_id != r)
            continue;
        if (*dim && *dim != layer[i].head_dim)
            return err_set(e, ERR_MODEL, "layer %d has head_dim %d, other layers of its type %d", i,
                           layer[i].head_dim, *dim);
        *dim = layer[i].head_dim;
    }
    if (!*dim)
        *dim = layer[0].head_dim;
    return true;
}

bool arch_init_ropes(struct config *g, const struct layer *layer, const char *path, struct err *e)
{
    for (int r = 0; r < g->n_rope; r++) {
        int dim;
        if (!rope_head_dim(g, layer, r, &dim, e) || !rope_init(&g->rope[r], dim, e))
            return err_prefix(e, "%s", show_path(path).s);
    }
    return true;
}
