/* A case of aerie check: what is read is judged, drawn and written, and the written case is the
 * same; a smaller one breaks the same rule. Making a case smaller judges it a hundred times: one
 * input of sixteen, by its bytes, is. */
#include "engine/tools/case.h"

#include "tests/fuzz/arena.h"

const int fuzz_inputs = 3000;

/* The case of c as text, twice written: both texts are one. */
static void check_again(const struct attn_case *c, const struct case_verdict *v)
{
    struct attn_case other;
    struct buf text = {0}, again = {0};
    struct case_verdict w;
    struct err e = {0};
    case_json(c, &text);
    CHECK(case_read(&other, text.p, text.n, &e));
    case_judge(&other, &w);
    CHECK(w.n == v->n && w.checked == v->checked);
    for (int i = 0; i < w.n; i++)
        CHECK(w.found[i].rule == v->found[i].rule && !strcmp(w.found[i].text, v->found[i].text));
    case_json(&other, &again);
    CHECK(again.n == text.n && !memcmp(again.p, text.p, text.n));
    case_free(&other);
    buf_free(&text);
    buf_free(&again);
}

static bool one(struct attn_case *c, int i, void *arg)
{
    struct case_verdict v, w;
    struct buf picture = {0};
    const bool *shrinks = arg;
    (void)i;
    case_judge(c, &v);
    CHECK(v.n >= 0 && v.n <= CASE_FOUND);
    for (int k = 0; k < v.n; k++) {
        CHECK(v.found[k].rule > 0 && v.found[k].rule < N_RULES);
        fuzz_clean(v.found[k].text, strlen(v.found[k].text), false);
    }
    check_again(c, &v);
    case_draw(c, &picture);
    fuzz_clean(picture.p, picture.n, true);
    buf_free(&picture);
    int before = case_numbers(c);
    if (!*shrinks || before > 100) /* smaller ones are enough to try this */
        return true;
    case_shrink(c, NULL);
    case_judge(c, &w);
    CHECK((w.n > 0) == (v.n > 0) && (!v.n || w.found[0].rule == v.found[0].rule));
    CHECK(case_numbers(c) <= before);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err e = {0};
    bool shrinks = hash64(data, n, 1) % 16 == 0;
    const char *text = fuzz_tail(data, n);
    arena_begin();
    if (case_each(text, n, one, &shrinks, &e) < 0) {
        CHECK(e.kind == ERR_USAGE);
        fuzz_message(&e);
        CHECK(!strchr(e.msg, '\n'));
    }
    arena_end();
    return 0;
}
