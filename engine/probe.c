/* probe.c - see probe.h. */
#include "engine/probe.h"

void probe_clear(struct probe *p)
{
    for (int l = 0; p->layer && l <= p->n_layer; l++) {
        for (int i = 0; i < N_PROBE_POINTS; i++)
            free(p->layer[l].tap[i]);
        FREE(p->layer[l].expert, p->layer[l].share);
    }
    FREE(p->layer, p->key_pos, p->key_slot, p->key_token, p->key_p);
    *p = (struct probe){0};
}

void probe_free(struct probe *p)
{
    if (p)
        probe_clear(p);
    free(p);
}

void probe_past_free(struct probe_past *p)
{
    if (p)
        ids_free(&p->context);
    free(p);
}

const float *probe_row(const struct probe *p, int l, enum probe_point at, int row)
{
    if (l < 0 || l > p->n_layer || row < p->row0 || row >= p->row0 + p->n_row)
        return NULL;
    const struct probe_layer *w = &p->layer[l];
    return w->tap[at] ? w->tap[at] + (size_t)(row - p->row0) * (size_t)w->width[at] : NULL;
}
