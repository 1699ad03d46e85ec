/* test_prompt_ids.c - turns whose prompts are given as token ids: the same steps and digests as
 * from the text, with no text at all. */
#include "tests/serve_kit.h"

/* What steps say, in one buffer: two engines that computed the same have equal ones. */
static void take_steps(struct backend *g, struct buf *out, struct ids *prompt)
{
    struct event ev;
    while (serve_event(g, &ev)) {
        if (ev.kind == EV_TURN_BEGIN) {
            prompt->n = 0;
            ids_cat(prompt, ev.tokens.v, ev.tokens.n);
            buf_printf(out, "turn %d reused %d\n", ev.turn, ev.n_reused);
        }
        if (ev.kind == EV_STEP)
            buf_printf(out, "%d.%d %016llx %016llx %016llx %llu\n", ev.turn, ev.step,
                       (unsigned long long)ev.rec.page_digest,
                       (unsigned long long)ev.rec.draft_digest,
                       (unsigned long long)ev.rec.logit_digest,
                       (unsigned long long)ev.rec.draws);
        if (ev.kind == EV_TURN_END || ev.kind == EV_NOTICE)
            buf_printf(out, "%s\n", ev.kind == EV_NOTICE ? ev.text.p : stop_name(ev.reason));
        event_free(&ev);
    }
}

static void send(struct backend *g, enum request_kind kind, const char *text, const struct ids *ids)
{
    struct err e = {0};
    struct request rq = {.kind = kind, .text = xstrdup(text)};
    if (ids)
        ids_cat(&rq.prompt, ids->v, ids->n);
    if (kind == RQ_FORGET)
        ids_add(&rq.turns, atoi(text));
    must(backend_submit(g, &rq, &e), &e);
}

static void test_a_session_without_text_computes_the_same(void **state)
{
    (void)state;
    static const struct {
        enum request_kind kind;
        const char *text;
    } act[] = {
        {RQ_SYSTEM, "Answer in one sentence."},
        {RQ_SAY, "My dog is called Rex."},
        {RQ_SAY, "What is my dog called?"},
        {RQ_SET, "temperature=0.8"},
        {RQ_REGEN, ""},
        {RQ_SET, "draft.topk=4"},
        {RQ_SAY, "Tell me a story."},
        {RQ_UNDO, ""},
        {RQ_FORGET, "1"},
        {RQ_SAY, "What did I say first?"},
    };
    struct engine_opts o = serve_opts();
    struct backend *a = serve_open(&o), *b = serve_open(&o);
    for (size_t i = 0; i < sizeof act / sizeof *act; i++) {
        struct buf with = {0}, without = {0};
        struct ids prompt = {0}, again = {0};
        bool turn = act[i].kind == RQ_SAY || act[i].kind == RQ_REGEN;
        send(a, act[i].kind, act[i].text, NULL);
        take_steps(a, &with, &prompt);
        send(b, act[i].kind, act[i].kind == RQ_SYSTEM || turn ? "" : act[i].text,
             turn ? &prompt : NULL);
        take_steps(b, &without, &again);
        buf_str(&with, "");
        buf_str(&without, "");
        assert_int_equal(prompt.n, again.n);
        if (act[i].kind != RQ_FORGET) /* its notice counts tokens of the text */
            assert_string_equal(without.p, with.p);
        assert_true(!turn || with.n > 100);
        buf_free(&with);
        buf_free(&without);
        ids_free(&prompt);
        ids_free(&again);
    }
    backend_close(a);
    backend_close(b);
}

static void test_a_prompt_that_is_none_is_refused(void **state)
{
    (void)state;
    struct engine_opts o = serve_opts();
    o.context = 64;
    struct backend *g = serve_open(&o);
    struct buf out = {0};
    struct ids prompt = {0}, begun = {0};
    for (int i = 0; i < 64; i++)
        ids_add(&prompt, 5);
    send(g, RQ_SAY, "", &prompt);
    take_steps(g, &out, &begun);
    assert_string_equal(out.p, "turn 1 reused 0\nthe prompt has 64 tokens, the context holds 64\n"
                               "context\n");
    buf_clear(&out);
    prompt.n = 3;
    prompt.v[1] = 1 << 30;
    send(g, RQ_SAY, "", &prompt);
    take_steps(g, &out, &begun);
    assert_non_null(strstr(out.p, "prompt token 1 is 1073741824: expected 0 to"));
    buf_free(&out);
    ids_free(&prompt);
    ids_free(&begun);
    backend_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_session_without_text_computes_the_same),
        cmocka_unit_test(test_a_prompt_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
