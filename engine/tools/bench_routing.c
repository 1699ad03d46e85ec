/* bench_routing.c - see bench_routing.h. */
#include "engine/tools/bench_routing.h"

#include <math.h>

/* ---- counts ---------------------------------------------------------------------------------- */

int routing_hit(const int32_t *chosen, int n, int n_expert)
{
    FREED(free_at) bool *seen = xcalloc((size_t)n_expert, sizeof *seen);
    int hit = 0;
    for (int i = 0; i < n; i++) {
        CHECK(chosen[i] >= 0 && chosen[i] < n_expert);
        hit += !seen[chosen[i]];
        seen[chosen[i]] = true;
    }
    return hit;
}

double routing_independent(int n_expert, int top_k, int rows)
{
    return n_expert * (1 - pow(1 - (double)top_k / n_expert, rows));
}

double routing_of_text(int n_expert, int top_k, int rows)
{
    return top_k + TEXT_SHARE * (routing_independent(n_expert, top_k, rows) - top_k);
}

/* ---- a model's biases ------------------------------------------------------------------------ */

/* Number i of a sequence of normal numbers of deviation 1: the sum of twelve uniform ones. */
static float normal(uint64_t i)
{
    int sum = 0;
    for (uint64_t j = 0; j < 3; j++) {
        uint64_t word = mix64(3 * i + j);
        for (int part = 0; part < 64; part += 16)
            sum += (int16_t)(word >> part);
    }
    return (float)(sum + 6) / 65536; /* an int16_t is -1/2 on average */
}

bool text_routing_open(struct text_routing *t, struct model *m)
{
    const int layers = m->cfg.n_layer;
    const size_t n = (size_t)layers * (size_t)m->cfg.n_expert;
    for (int l = 0; l < layers; l++)
        if (!m->layer[l].is_moe || !m->layer[l].router_b.data)
            return false;
    *t = (struct text_routing){.m = m, .own = xcalloc((size_t)layers, sizeof *t->own),
                               .normal = xmalloc(n * sizeof *t->normal),
                               .bias = xcalloc(n, sizeof *t->bias)};
    for (int l = 0; l < layers; l++)
        t->own[l] = m->layer[l].router_b;
    for (size_t i = 0; i < n; i++)
        t->normal[i] = normal(i);
    return true;
}

bool text_routing_set(struct text_routing *t, struct device *dev, double deviation, struct err *e)
{
    const size_t each = (size_t)t->m->cfg.n_expert;
    bool ok = true;
    t->deviation = deviation;
    for (int l = 0; l < t->m->cfg.n_layer && ok; l++) {
        uint16_t *bias = t->bias + (size_t)l * each;
        for (size_t i = 0; i < each; i++)
            bias[i] = f32_to_bf16((float)deviation * t->normal[(size_t)l * each + i]);
        struct tensor b = {.type = DT_BF16, .n_dim = 1, .dim = {(int64_t)each}, .data = bias,
                           .bytes = each * sizeof *bias, .name = "router biases"};
        ok = dev->k->upload(dev->d, &b, e);
        if (ok)
            t->m->layer[l].router_b = b;
    }
    return ok;
}

void text_routing_close(struct text_routing *t)
{
    for (int l = 0; l < t->m->cfg.n_layer; l++)
        t->m->layer[l].router_b = t->own[l];
    FREE(t->own, t->normal, t->bias);
    *t = (struct text_routing){0};
}
