/* rope.c - rotary embedding: the frequencies, and the config keys that choose them.
 *
 * With d = rot, the number of rotated dimensions, the unscaled frequency of pair i is
 * theta^(-2i/d); each kind below scales it. Values are rounded to float32 where the reference
 * rounds them: at position p an error e of a frequency is an error p e of the angle.
 */
#include "models/checkpoint/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
        else if (!(length < (float)(r->original_max / r->high_freq_factor)))
            inv = (1 - keep) * inv / (float)r->factor + keep * inv;
        r->inv_freq[i] = inv;
    }
}

bool rope_init(struct rope *r, int head_dim, struct err *e)
{
    r->head_dim = head_dim;
    r->rot = r->kind == ROPE_PROPORTIONAL ? head_dim : (int)(head_dim * r->partial);
    r->half = r->rot / 2;
    r->cs_factor = 1;
    r->inv_freq = NULL;
    if (r->rot < 2 || r->rot % 2)
        return err_set(e, ERR_MODEL, "rope rotates %d of a head's %d dimensions, expected an even "
                       "number", r->rot, head_dim);
    r->inv_freq = xcalloc((size_t)r->half, sizeof *r->inv_freq);
    /* proportional: the frequencies of a full rotation, 0 beyond the share of rotated pairs */
    int n = r->kind == ROPE_PROPORTIONAL ? (int)floor(r->partial * head_dim / 2) : r->half;
    float factor = r->kind == ROPE_DEFAULT ? 1 : (float)r->factor;
    if (r->kind == ROPE_YARN)
        yarn_fill(r);
    else if (r->kind == ROPE_LLAMA3)
        llama3_fill(r);
    else
        for (int i = 0; i < n; i++)
            r->inv_freq[i] = 1 / wavelength(r, i) / factor;
    return true;
}

void rope_free(struct rope *r)
{
    free(r->inv_freq);
    r->inv_freq = NULL;
}

/* ---- config keys ---- */

static const char *const kind_names[] = {
    [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear",
    [ROPE_YARN] = "yarn",       [ROPE_LLAMA3] = "llama3",
    [ROPE_PROPORTIONAL] = "proportional",
};

static enum rope_kind rope_kind(const struct conf *p, enum rope_kind dflt)
{
    const char *key = conf_has(p, "rope_type") ? "rope_type" : "type";
    const char *name = conf_str(p, key, kind_names[dflt]);
    for (int i = 0; i <= ROPE_PROPORTIONAL; i++)
        if (!strcmp(name, kind_names[i]))
            return (enum rope_kind)i;
    conf_refuse(p, key, "\"%.60s\" is not supported, expected default, linear, yarn, llama3 or "
                "proportional", show(name).s);
    return dflt;
}

/* Enters the layer type's object of rope_parameters or rope_scaling. False if there is none. */
static bool enter_type(const struct conf *c, const char *key, const struct rope_spelling *s,
                       struct conf *out)
{
    if (!conf_enter(c, key, out))
        return false;
    if (conf_has(out, "full_attention") || conf_has(out, "sliding_attention"))
        return conf_enter(out, s->type, out);
    return s->scaled;
}

/* The context length that scaling starts from. */
static double original_max(const struct conf *c, const struct conf *p, const struct config *cfg)
{
    static const char *const key = "original_max_position_embeddings";
    double dflt = conf_num(p, key, cfg->max_pos, 1, 1 << 30);
    return conf_num(c, key, dflt, 1, 1 << 30);
}

static void read_scaling(const struct conf *c, const struct conf *p, const struct config *cfg,
                         struct rope *r)
{
    if (r->kind == ROPE_YARN || r->kind == ROPE_LLAMA3)
        r->original_max = original_max(c, p, cfg);
    double factor = r->kind == ROPE_YARN           ? cfg->max_pos / r->original_max
                    : r->kind == ROPE_PROPORTIONAL ? 1
                                                   : NAN;
    if (r->kind != ROPE_DEFAULT)
        r->factor = conf_num(p, "factor", factor, 1e-3, 1e6);
    if (r->kind == ROPE_YARN) {
        r->beta_slow = conf_num(p, "beta_slow", 1, 1e-6, 1e6);
        r->beta_fast = conf_num(p, "beta_fast", 32, r->beta_slow, 1e6);
        r->truncate = conf_bool(p, "truncate", true);
        r->attention_factor = conf_num(p, "attention_factor", 0, 1e-6, 1e6);
        r->mscale = conf_num(p, "mscale", 0, 0, 1e6);
        r->mscale_all_dim = conf_num(p, "mscale_all_dim", 0, 0, 1e6);
    }
    if (r->kind == ROPE_LLAMA3) {
        r->low_freq_factor = conf_num(p, "low_freq_factor", NAN, 1e-6, 1e6);
        r->high_freq_factor = conf_num(p, "high_freq_factor", NAN, 1e-6, 1e6);
        if (r->high_freq_factor <= r->low_freq_factor)
            conf_refuse(p, "high_freq_factor", "is %g, expected more than low_freq_factor %g",
                        r->high_freq_factor, r->low_freq_factor);
    }
}

void arch_rope(const struct conf *c, const struct config *cfg, const struct rope_spelling *s,
               struct rope *r)
{
    struct conf given, scaling;
    *r = s->dflt;
    bool has_given = enter_type(c, "rope_parameters", s, &given);
    bool has_scaling = s->scaled && enter_type(c, "rope_scaling", s, &scaling);
    /* theta: the innermost object that has the key wins */
    r->theta = conf_num(c, s->theta, r->theta, 1.001, 1e12);
    if (has_given)
        r->theta = conf_num(&given, "rope_theta", r->theta, 1.001, 1e12);
    if (has_scaling)
        r->theta = conf_num(&scaling, "rope_theta", r->theta, 1.001, 1e12);
    const struct conf *p = has_scaling ? &scaling : has_given ? &given : NULL;
    r->partial = conf_num(c, "partial_rotary_factor", p ? 1 : r->partial, 1e-3, 1);
    if (!p)
        return;
    r->partial = conf_num(p, "partial_rotary_factor", r->partial, 1e-3, 1);
    r->kind = rope_kind(p, ROPE_DEFAULT);
    read_scaling(c, p, cfg, r);
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
