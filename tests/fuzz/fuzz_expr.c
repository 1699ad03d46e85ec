/* Conditions of breakpoints: refused with a message, or tested on steps with and without tree and
 * tokens. A copy of a compiled condition gives the same answers. */
#include "engine/cache/tree.h"
#include "engine/thread/expr.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>

const int fuzz_inputs = 4000;

static const char *text_of(void *arg, int32_t id, size_t *n)
{
    static char text[8];
    (void)arg;
    *n = (size_t)snprintf(text, sizeof text, id % 3 ? "t%d" : "\"%d", id % 100);
    return text;
}

static const struct step_facts *a_step(bool bare)
{
    static struct tree tree;
    static int32_t token[] = {269, 3, 0};
    static struct step_facts full = {.turn = 9, .step = 214, .tree = &tree, .token = token,
                                     .n_token = 3, .text = text_of};
    static struct step_facts none = {.turn = 1, .step = 1, .text = text_of};
    if (!tree.n) {
        tree_init(&tree, 5);
        for (int i = 1; i < 6; i++)
            tree_add(&tree, i / 2, 10 * i, 1.0f / (float)i, -1.0f);
        for (int i = 0; i < N_FACTS; i++) {
            full.fact[i] = i % 4 ? i : NAN;
            none.fact[i] = NAN;
        }
    }
    return bare ? &none : &full;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct expr x, copy;
    struct err e = {0};
    char *text = fuzz_string(data, n);
    if (!expr_parse(&x, text, &e)) {
        fuzz_message(&e);
        free(text);
        return 0;
    }
    free(text);
    copy = x;
    CHECK(x.n_op > 0 && x.n_op <= EXPR_OPS);
    for (int i = 0; i < 2; i++) {
        const struct step_facts *s = a_step(i);
        int node = -1, token = -1;
        bool holds = expr_holds(&x, s, &node, &token);
        CHECK(expr_holds(&copy, s, NULL, NULL) == holds);
        CHECK(node >= -1 && token >= -1 && token < s->n_token &&
              (!s->tree ? node == -1 : node < s->tree->n));
        if (!x.nodes && !x.tokens) {
            double v = expr_value(&x, s), w = expr_value(&copy, s);
            CHECK(isnan(v) ? isnan(w) : !(v < w) && !(v > w));
        }
    }
    return 0;
}
