/* capture.c - finds the target's hidden states that an EAGLE3 or DFlash head was trained on.
 *
 * Boundary b is the residual stream that enters layer b (b = n_layer: the output of the last
 * layer). Configs use two conventions that differ by one:
 *   eagle_config.eagle_aux_hidden_state_layer_ids  outputs of layers: boundary = id + 1
 *   eagle_aux_hidden_state_layer_ids at the top     boundary = id
 * Two published NVIDIA heads write boundaries in eagle_config: one list is recognised by an id that
 * no layer has (36 of 36 layers), the other by its exact value. Without a list the boundaries are
 * 2, n/2, n-3. DFlash: below. A wrong list causes no error, only fewer accepted tokens, so
 * capture_from tells people where the list was found.
 */
#include "models/draft/draft.h"

#include "models/checkpoint/safetensors.h"

#include <math.h>

static const char *const ids_key = "eagle_aux_hidden_state_layer_ids";

/* A list of ids from a config or the command line. */
struct capture_reading {
    int64_t id[MAX_CAPTURE];
    int n;
    int shift; /* boundary = id + shift */
    const char *from;
};

static bool parse_list(const char *s, struct capture_reading *r)
{
    for (int v; r->n < MAX_CAPTURE && int_at(&s, &v) && v >= 0; s++) {
        r->id[r->n++] = v;
        if (*s != ',')
            return !*s;
    }
    return false;
}

/* Whether eagle_config has boundaries: the two exceptions above, heads for 36-layer targets
 * (gpt-oss-120b). */
static bool nested_are_boundaries(const struct capture_reading *r, int n_layer)
{
    static const int64_t long_context[3] = {1, 17, 32};
    for (int i = 0; i < r->n; i++)
        if (r->id[i] == n_layer)
            return true;
    return n_layer == 36 && r->n == 3 && !memcmp(r->id, long_context, sizeof long_context);
}

static void read_eagle3(struct drafting *g, struct capture_reading *r)
{
    int n_layer = g->target->cfg.n_layer;
    if (g->own.obj != g->top.obj &&
        (r->n = conf_ints(&g->own, ids_key, r->id, MAX_CAPTURE)) > 0) {
        bool as_is = nested_are_boundaries(r, n_layer);
        r->shift = as_is ? 0 : 1;
        r->from = as_is ? "eagle_config (NVIDIA: boundaries as written)"
                        : "eagle_config (layer outputs, plus 1)";
        return;
    }
    r->n = conf_ints(&g->top, ids_key, r->id, MAX_CAPTURE);
    r->shift = 0;
    r->from = "config (boundaries as written)";
    if (r->n > 0)
        return;
    r->n = 3;
    r->id[0] = 2, r->id[1] = n_layer / 2, r->id[2] = n_layer - 3;
    r->from = "default (2, n/2, n-3)";
}

/* DFlash: target_layer_ids, in dflash_config or at the top, are outputs of layers (boundary = id +
 * 1); aux_hidden_state_layer_ids, of speculators, are boundaries. Without a list the n layers lie
 * evenly between layer 1 and layer n_layer - 3, as in SGLang; one is the middle one. */
static void read_dflash(struct drafting *g, struct capture_reading *r, int n)
{
    static const char *const ids = "target_layer_ids", *const aux = "aux_hidden_state_layer_ids";
    const struct conf *c = place_of(g, ids);
    int n_layer = g->target->cfg.n_layer;
    r->shift = 1;
    r->from = c->obj == g->top.obj ? "config (layer outputs, plus 1)"
                                   : "dflash_config (layer outputs, plus 1)";
    if (conf_has(c, ids)) {
        r->n = conf_ints(c, ids, r->id, MAX_CAPTURE);
    } else if (conf_has(&g->top, aux)) {
        r->n = conf_ints(&g->top, aux, r->id, MAX_CAPTURE);
        r->shift = 0;
        r->from = "config (boundaries as written)";
    } else {
        r->from = "default (evenly spread layers)";
        for (r->n = 0; r->n < n; r->n++)
            r->id[r->n] = n == 1 ? n_layer / 2
                                 : 1 + (int64_t)rint((double)r->n * (n_layer - 4) / (n - 1));
    }
}

/* The number of states that fc concatenates; 0 and an error. */
static int count_captures(struct drafting *g, const struct tensor *fc)
{
    int64_t t = g->target->cfg.hidden;
    if (fc->n_dim == 2 && fc->dim[1] % t == 0 && fc->dim[1] >= t && fc->dim[1] <= MAX_CAPTURE * t)
        return (int)(fc->dim[1] / t);
    err_file(g->b.e, st_path(g->b.st, fc),
             "the draft does not fit the target: tensor %s takes %lld values, expected a few times "
             "the target's hidden_size %lld",
             fc->name, fc->n_dim == 2 ? (long long)fc->dim[1] : 0, (long long)t);
    return 0;
}

bool draft_captures(struct drafting *g, const struct tensor *fc, bool dflash)
{
    struct capture_reading r = {0};
    int n_layer = g->target->cfg.n_layer, n = count_captures(g, fc);
    if (n == 0)
        return false;
    if (g->capture) {
        r.from = "given by the user";
        if (!parse_list(g->capture, &r))
            return err_set(g->b.e, ERR_USAGE, "captures \"%.60s\" are not a list such as 2,12,21",
                           show(g->capture).s);
    } else {
        dflash ? read_dflash(g, &r, n) : read_eagle3(g, &r);
        if (!conf_ok(&g->top))
            return false;
    }
    if (r.n != n)
        return err_file(g->b.e, g->config_path, "%d captured states (%s), but fc.weight takes %d",
                        r.n, r.from, n);
    for (int i = 0; i < n; i++) {
        int64_t b = r.id[i] + r.shift;
        if (b < 0 || b > n_layer)
            return err_file(g->b.e, g->config_path,
                            "%s: boundary %lld (%s) is out of range, the target has 0 to %d",
                            dflash ? "captured layers" : ids_key, (long long)b, r.from, n_layer);
        g->d->capture[i] = (int)b;
    }
    g->d->n_capture = n;
    snprintf(g->d->capture_from, sizeof g->d->capture_from, "%s", r.from);
    return true;
}
