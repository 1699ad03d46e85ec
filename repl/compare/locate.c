/* locate.c - see locate.h. */
#include "repl/compare/locate.h"

#include <math.h>

/* ---- rows ------------------------------------------------------------------------------------ */

bool rows_all(const struct probe *a, const struct probe *b, struct row_map *m)
{
    m->n = 0;
    for (int i = 0; i < a->n_row && a->n_rows == b->n_rows; i++) {
        int row = a->row0 + i, k = row - b->row0;
        if (k < 0 || k >= b->n_row)
            continue;
        m->a[m->n] = m->b[m->n] = row;
        m->n++;
    }
    return m->n > 0;
}

int row_of_token(const struct probe *p, const struct step_row *s, int at)
{
    if (s->rec.kind == STEP_PREFILL)
        return p->row0 + p->n_row == p->n_rows ? p->n_rows - 1 : -1;
    int row = 0;
    for (int i = 0; i < at; i++) {
        int next = -1;
        for (int k = p->n_row - 1; k > 0; k--)
            if (p->parent[k] == row && p->token[k] == s->tokens.v[i])
                next = k;
        if (next < 0)
            return -1;
        row = next;
    }
    return p->row0 == 0 ? row : -1;
}

/* ---- points ---------------------------------------------------------------------------------- */

const char *place_operation(const struct place *p)
{
    switch (p->at) {
    case PROBE_IN: return p->layer == 0 ? "embedding" : "the layer before";
    case PROBE_Q: return "norm, q projection and RoPE";
    case PROBE_K: return "norm, k projection, RoPE and the store of the cell";
    case PROBE_V: return "norm, v projection and the store of the cell";
    case PROBE_ATTN: return "attention";
    case PROBE_MID: return "output projection of attention";
    case PROBE_OUT: return p->experts ? "router" : p->moe ? "experts" : "MLP";
    case N_PROBE_POINTS: break;
    }
    return "final norm and LM head";
}

/* Relative distance of two rows; infinite if a value is NaN or infinite. */
static double distance(const float *a, const float *b, int n)
{
    double diff = 0, norm = 0;
    if (memcmp(a, b, (size_t)n * sizeof *a) == 0)
        return 0;
    for (int i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        diff += d * d;
        norm += (double)a[i] * (double)a[i];
    }
    if (isnan(diff) || isnan(norm))
        return INFINITY;
    return norm > 0 ? sqrt(diff / norm) : diff > 0 ? INFINITY : 0;
}

static bool same_experts(const struct probe *a, const struct probe *b, int l, int row_a, int row_b)
{
    const int32_t *x = a->layer[l].expert, *y = b->layer[l].expert;
    size_t k = (size_t)a->top_k;
    return !x || !y || memcmp(x + (size_t)(row_a - a->row0) * k, y + (size_t)(row_b - b->row0) * k,
                              k * sizeof *x) == 0;
}

/* Whether rows differ at a point by more than they may; fills in the place. */
static bool differs_at(const struct probe *a, const struct probe *b, const struct row_map *m,
                       const struct bands *bands, double factor, int l, int at, struct place *p)
{
    int width = a->layer[l].width[at];
    *p = (struct place){.layer = l, .at = (enum probe_point)at, .row = -1, .compared = m->n,
                        .sliding = a->layer[l].window > 0, .moe = a->layer[l].expert != NULL,
                        .band = bands ? fmax(bands->at[l][at], bands->least) : 0};
    if (!width || width != b->layer[l].width[at])
        return false;
    for (int i = 0; i < m->n; i++) {
        const float *x = probe_row(a, l, (enum probe_point)at, m->a[i]);
        const float *y = probe_row(b, l, (enum probe_point)at, m->b[i]);
        double far = x && y ? distance(x, y, width) : 0;
        bool differs = x && y && (bands ? far > factor * p->band
                                        : memcmp(x, y, (size_t)width * sizeof *x) != 0);
        p->far = far > p->far ? far : p->far;
        p->rows += differs;
        if (differs && p->row < 0) {
            p->row = m->a[i];
            p->row_b = m->b[i];
            p->pos = a->pos[m->a[i] - a->row0];
            p->experts = at == PROBE_OUT && !same_experts(a, b, l, m->a[i], m->b[i]);
        }
    }
    p->found = p->rows > 0;
    return p->found;
}

/* The logits: the best tokens of each row with their log probabilities. */
static bool logits_differ(const struct probe *a, const struct probe *b, const struct row_map *m,
                          struct place *p)
{
    *p = (struct place){.layer = a->n_layer, .at = N_PROBE_POINTS, .row = -1, .compared = m->n};
    for (int i = 0; i < m->n; i++) {
        int x = m->a[i] - a->row0, y = m->b[i] - b->row0;
        bool known = a->best[x][0] >= 0 && b->best[y][0] >= 0;
        bool differs = known && (memcmp(a->best[x], b->best[y], sizeof a->best[x]) != 0 ||
                                 memcmp(a->best_logp[x], b->best_logp[y], sizeof a->best_logp[x]) !=
                                 0);
        p->rows += differs;
        if (differs && p->row < 0) {
            p->row = m->a[i];
            p->row_b = m->b[i];
            p->pos = a->pos[x];
            p->far = fabs((double)a->best_logp[x][0] - (double)b->best_logp[y][0]);
        }
    }
    p->found = p->rows > 0;
    return p->found;
}

void locate(const struct probe *a, const struct probe *b, const struct row_map *m,
            const struct bands *bands, double factor, struct place *p)
{
    *p = (struct place){.found = false};
    if (a->n_layer != b->n_layer)
        return;
    for (int l = 0; l <= a->n_layer; l++)
        for (int at = 0; at < (l < a->n_layer ? N_PROBE_POINTS : 1); at++)
            if (differs_at(a, b, m, bands, factor, l, at, p))
                return;
    if (bands || !logits_differ(a, b, m, p))
        *p = (struct place){.found = false, .compared = m->n};
}

void bands_add(struct bands *bands, const struct probe *a, const struct probe *b,
               const struct row_map *m)
{
    if (!bands->at) {
        bands->n_layer = a->n_layer;
        bands->at = xcalloc((size_t)a->n_layer + 1, sizeof *bands->at);
    }
    for (int l = 0; l <= a->n_layer; l++)
        for (int at = 0; at < (l < a->n_layer ? N_PROBE_POINTS : 1); at++) {
            struct place p;
            differs_at(a, b, m, NULL, 1, l, at, &p);
            if (p.far > bands->at[l][at])
                bands->at[l][at] = p.far;
        }
}

void bands_free(struct bands *b)
{
    free(b->at);
    *b = (struct bands){0};
}
