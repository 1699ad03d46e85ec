/* bench_routing.h - which experts the rows of a pass choose: how many different ones, and router
 * biases that make the rows of a made-up model share experts as the rows of a text do.
 *
 * T rows that choose k of E experts independently of each other hit U = E (1 - (1 - k/E)^T)
 * different ones, on average; made-up routers come close to that. Rows of a text are alike and hit
 * fewer: of the experts beyond one row's k, TEXT_SHARE times as many, U' = k + 0.69 (U - k). The
 * source of the number is in tests/bench/results-h200.md.
 *
 * A made-up router's logits deviate by 1 from row to row. For text-like routing the experts of a
 * layer get biases besides, normal numbers of deviation s, the same for all rows: an expert with a
 * large bias is popular. s is fitted to the pass that is measured, such that its rows hit U'
 * (bench_pass.c). The caller's thread.
 */
#pragma once

#include "engine/tools/bench_run.h"

#define TEXT_SHARE 0.69

/* The number of different experts among n choices, each in [0, n_expert). */
int routing_hit(const int32_t *chosen, int n, int n_expert);
/* U and U' of `rows` rows. */
double routing_independent(int n_expert, int top_k, int rows);
double routing_of_text(int n_expert, int top_k, int rows);

/* The router biases of a model while a line of text-like routing is measured. */
struct text_routing {
    struct model *m;
    struct tensor *own; /* (n_layer) the model's, meanwhile */
    float *normal;      /* (n_layer, n_expert) normal numbers of deviation 1 */
    uint16_t *bias;     /* (n_layer, n_expert) bf16, on the host */
    double deviation;   /* s */
};
/* False: there is a layer whose router has no biases that could be replaced. */
bool text_routing_open(struct text_routing *t, struct model *m);
/* Gives the layers biases of this deviation, for the passes from now on. The device must be idle;
 * what it allocates for the biases is freed when it closes. False: *e. */
bool text_routing_set(struct text_routing *t, struct device *dev, double deviation, struct err *e);
/* Gives the layers their own biases back. */
void text_routing_close(struct text_routing *t);
