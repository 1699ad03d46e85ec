/* Answers of servers of all kinds, one JSON text each: what is not said stays "not reported". */
#include <math.h>

#include "engine/remote/answer.h"
#include "tests/fuzz/arena.h"

const int fuzz_inputs = 3000;

static void check_ids(const struct ids *a)
{
    CHECK(a->n >= 0 && a->n <= ANSWER_TOKENS);
    for (int i = 0; i < a->n; i++)
        CHECK(a->v[i] >= 0);
}

static void check_answer(const struct answer *a)
{
    const int64_t count[] = {a->count.prompt, a->count.generated, a->count.cached, a->count.drafted,
                             a->count.accepted, a->count.verifies, a->done, a->total};
    const double ms[] = {a->count.ms_prompt, a->count.ms_decode, a->count.ms_queue,
                         a->count.ms_first};
    for (size_t i = 0; i < sizeof count / sizeof *count; i++)
        CHECK(count[i] >= -1 && count[i] <= INT32_MAX);
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        CHECK(ms[i] >= -1 && ms[i] <= 1e12);
    CHECK(a->n_token >= 0 && a->n_token <= ANSWER_TOKENS && a->index >= 0);
    for (int i = 0; i < a->n_token; i++)
        CHECK(a->token[i].id >= -1 && a->token[i].rival >= -1);
    CHECK(a->n_prompt_token >= 0 && a->n_prompt_token <= ANSWER_TOKENS);
    for (int i = 0; i < a->n_prompt_token; i++)
        CHECK(a->prompt_token[i].id >= -1 && isnan(a->prompt_token[i].rival_logp));
    for (int i = 0; i < a->tops.n; i++) {
        const struct top *t = &a->tops.at[i];
        CHECK(t->k >= (i ? t[-1].k : 0) && t->k < a->n_token && t->id >= -1 && (t->text || !t->n));
    }
    check_ids(&a->prompt);
    check_ids(&a->reply);
    check_ids(&a->accepted);
    check_ids(&a->drafted);
    CHECK(memchr(a->model, '\0', sizeof a->model) && memchr(a->error, '\0', sizeof a->error));
    CHECK(!strpbrk(a->error, "\r\n"));
    CHECK(utf8_check(a->text.p ? a->text.p : "", a->text.n));
    CHECK(utf8_check(a->thought.p ? a->thought.p : "", a->thought.n));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct answer a;
    struct err e = {0};
    char *json = fuzz_tail(data, n);
    arena_begin();
    bool ok = answer_read(&a, json, n, &e);
    if (ok)
        check_answer(&a);
    else
        fuzz_message(&e);
    answer_free(&a);
    arena_end();
    return 0;
}
