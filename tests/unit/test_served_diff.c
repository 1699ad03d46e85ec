/* test_served_diff.c - the comparison of two runs of which one or both were computed by a server,
 * with hand-made traces and without an engine. A single change is found in its place, and no other
 * difference is reported. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "repl/compare/verdict.h"

enum { TURNS = 3, MOST = 40 };

static const char *const local_about = "version=0.1\nbackend=cpu\nmodel_dir=m\n",
                         *const server_about = "backend=remote\nserver=vLLM 0.26.0\nmodel_dir=m\n";

static uint64_t state = 7;
static uint32_t draw(uint32_t below)
{
    state = mix64(state + 1);
    return (uint32_t)(state % below);
}

static void add_turn(struct trace *t, int n, const struct ids *prompt, const struct ids *reply,
                     float by, const char *about, int piece)
{
    t->turn = xrealloc(t->turn, (size_t)t->n + 1, sizeof *t->turn);
    struct trace_turn *x = &t->turn[t->n++];
    *x = (struct trace_turn){.n = n,
                             .user = xstrdup("a question"),
                             .text = xstrdup("a reply"),
                             .n_prompt = -1,
                             .n_reply = reply->n,
                             .settings = xstrdup("temperature=0\nmax_tokens=0\n"),
                             .about = xstrdup(about),
                             .stop = STOP_END};
    ids_cat(&x->prompt, prompt->v, prompt->n);
    ids_cat(&x->reply, reply->v, reply->n);
    for (int at = 0; at < reply->n;) { /* the sides are cut into steps differently */
        int k = min_int(piece, reply->n - at);
        x->step = xrealloc(x->step, (size_t)x->n_step + 1, sizeof *x->step);
        struct step_row *s = &x->step[x->n_step++];
        *s = (struct step_row){.turn = n, .n = x->n_step};
        s->facts = xcalloc((size_t)k, sizeof *s->facts);
        for (int i = 0; i < k; i++) {
            int32_t id = reply->v[at + i];
            ids_add(&s->tokens, id);
            s->facts[i] = (struct token_fact){-0.25F - by, -2.5F, id + 1};
        }
        at += k;
    }
}

/* Two equal runs. */
static void make(struct trace *a, struct trace *b, const char *about_a, const char *about_b)
{
    *a = *b = (struct trace){0};
    for (int i = 1; i <= TURNS; i++) {
        struct ids prompt = {0}, reply = {0};
        for (int k = 3 + (int)draw(20); k; k--)
            ids_add(&prompt, (int32_t)draw(4000));
        for (int k = 2 + (int)draw(MOST); k; k--)
            ids_add(&reply, (int32_t)draw(4000));
        add_turn(a, i, &prompt, &reply, 0, about_a, 1 + (int)draw(6));
        add_turn(b, i, &prompt, &reply, 0, about_b, 1 + (int)draw(6));
        ids_free(&prompt);
        ids_free(&reply);
    }
}

static void judge(const struct trace *a, const struct trace *b, struct report *r)
{
    struct verdict_ask ask = {
        .log_a = a, .log_b = b, .log_only = true, .names = {"in a", "in b"}, .who = {"a", "b"}};
    struct err e;
    assert_true(verdict_find(&ask, r, &e));
}

static bool claims(const struct report *r, const char *part)
{
    for (int i = 0; i < r->n_evidence; i++)
        if (strstr(r->evidence[i], part))
            return true;
    return false;
}

static void end(struct trace *a, struct trace *b, struct report *r)
{
    report_free(r);
    trace_free(a);
    trace_free(b);
}

static struct token_fact *fact_at(struct trace_turn *t, int i, int32_t **id)
{
    int at, k = trace_step_of(t, i, &at);
    *id = &t->step[k].tokens.v[at];
    return &t->step[k].facts[at];
}

static void test_equal_runs_are_equal(void **unused)
{
    (void)unused;
    const char *about[][2] = {
        {local_about, server_about}, {server_about, local_about}, {server_about, server_about}};
    for (int i = 0; i < 3; i++) {
        struct trace a, b;
        struct report r;
        make(&a, &b, about[i][0], about[i][1]);
        judge(&a, &b, &r);
        assert_int_equal(r.verdict, VERDICT_EQUAL);
        assert_int_equal(r.diff.class, DIFF_NONE);
        assert_int_equal(r.counts.turns, TURNS);
        assert_int_equal(r.n_logp, r.counts.tokens);
        assert_true(r.counts.most == 0 && r.served);
        end(&a, &b, &r);
    }
}

static void test_one_changed_id_is_found_where_it_is(void **unused)
{
    (void)unused;
    for (int round = 0; round < 300; round++) {
        struct trace a, b;
        struct report r;
        int32_t *id;
        make(&a, &b, local_about, server_about);
        struct trace_turn *t = &b.turn[draw(TURNS)];
        int i = (int)draw((uint32_t)t->reply.n);
        struct token_fact *f = fact_at(t, i, &id);
        *id = t->reply.v[i] += 5;
        f->logp = -0.5F;
        judge(&a, &b, &r);
        assert_int_equal(r.diff.class, DIFF_LOGITS);
        assert_int_equal(r.diff.turn, t->n);
        assert_int_equal(r.diff.token, i);
        assert_int_equal(r.chosen[0] + 5, r.chosen[1]);
        assert_true(r.margins[0] == 2.25 && r.margins[1] == 2.0);
        assert_int_equal(r.verdict,
                         VERDICT_OPEN); /* the logs alone do not decide, and no number is a bug */
        end(&a, &b, &r);
    }
}

static void test_one_shifted_log_probability_is_found(void **unused)
{
    (void)unused;
    for (int round = 0; round < 300; round++) {
        struct trace a, b;
        struct report r;
        int32_t *id;
        make(&a, &b, server_about, local_about);
        struct trace_turn *t = &a.turn[draw(TURNS)];
        int i = (int)draw((uint32_t)t->reply.n);
        fact_at(t, i, &id)->logp -= 0.125F;
        judge(&a, &b, &r);
        assert_int_equal(r.diff.class, DIFF_NONE);
        assert_true(r.counts.most == 0.125 && r.logp_median == 0);
        assert_int_equal(r.counts.most_turn, t->n);
        assert_int_equal(r.counts.most_token, i);
        end(&a, &b, &r);
    }
}

static void test_a_dropped_token_is_found(void **unused)
{
    (void)unused;
    struct trace a, b;
    struct report r;
    make(&a, &b, local_about, server_about);
    struct trace_turn *t = &b.turn[1];
    t->reply.n--;
    t->n_reply = -1;
    judge(&a, &b, &r);
    assert_int_equal(r.diff.class, DIFF_REPLY);
    assert_int_equal(r.diff.turn, 2);
    report_free(&r);
    t->n_reply =
        a.turn[1].reply.n; /* the server counted it, and leaves out the id of the end only */
    judge(&a, &b, &r);
    assert_int_equal(r.diff.class, DIFF_NONE);
    report_free(&r);
    t->stop = STOP_MAX;
    judge(&a, &b, &r);
    assert_int_equal(r.diff.class, DIFF_REPLY);
    end(&a, &b, &r);
}

static void test_another_prompt_is_named_first(void **unused)
{
    (void)unused;
    struct trace a, b;
    struct report r;
    int32_t *id;
    make(&a, &b, server_about, server_about);
    b.turn[2].prompt.v[2]++;
    *(fact_at(&b.turn[2], 0, &id), id) += 1;
    b.turn[2].reply.v[0]++;
    judge(&a, &b, &r);
    assert_int_equal(r.diff.class, DIFF_PROMPT);
    assert_int_equal(r.diff.turn, 3);
    assert_int_equal(r.verdict, VERDICT_OTHER);
    assert_non_null(strstr(r.diff.why, "token 2 is"));
    end(&a, &b, &r);
}

static void test_without_ids_nothing_is_claimed_about_ids(void **unused)
{
    (void)unused;
    struct trace a, b;
    struct report r;
    make(&a, &b, local_about, server_about);
    for (int i = 0; i < TURNS; i++) {
        b.turn[i].prompt.n = b.turn[i].reply.n = 0;
        for (int k = 0; k < b.turn[i].n_step; k++)
            step_row_free(&b.turn[i].step[k]);
        b.turn[i].n_step = 0;
    }
    judge(&a, &b, &r);
    assert_int_equal(r.verdict, VERDICT_EQUAL);
    assert_true(r.counts.text_only && r.counts.tokens == 0 && r.n_logp == 0);
    assert_true(claims(&r, "the texts were compared") &&
                claims(&r, "the prompts' ids are not known"));
    report_free(&r);
    free(b.turn[1].text);
    b.turn[1].text = xstrdup("a replica");
    judge(&a, &b, &r);
    assert_int_equal(r.diff.class, DIFF_REPLY);
    assert_int_equal(r.diff.turn, 2);
    assert_non_null(strstr(r.diff.why, "at byte 6"));
    end(&a, &b, &r);
}

static void test_sampled_replies_are_no_difference_of_numbers(void **unused)
{
    (void)unused;
    struct trace a, b;
    struct report r;
    int32_t *id;
    make(&a, &b, local_about, server_about);
    for (int i = 0; i < TURNS; i++) {
        free(b.turn[i].settings);
        b.turn[i].settings = xstrdup("temperature=0.7\n");
    }
    *(fact_at(&b.turn[0], 0, &id), id) += 1;
    b.turn[0].reply.v[0]++;
    judge(&a, &b, &r);
    assert_int_equal(r.verdict, VERDICT_OPEN);
    assert_true(r.sampled && claims(&r, "other random numbers"));
    end(&a, &b, &r);
}

static const char *const here =
    "version=0.1\nmodel_sha=ab12\nflags=gcc 12, build 77\nbackend=cpu\nprecision=f32\nkv=f32\n";
static const char *const facts =
    "{\"build\":\"gcc 12, build 77\",\"model_sha\":\"%s\",\"backend\":\"cpu\",\"precision\":"
    "\"f32\",\"kv\":\"f32\"}";

/* Log probabilities do not say which token is chosen from logits that a penalty or a bias changed,
 * and none is chosen where a person gave one. */
static void test_changed_logits_and_given_tokens_are_no_difference_of_numbers(void **unused)
{
    (void)unused;
    static const char *const changes[][2] = {
        {"repetition_penalty=1.1", "repetition_penalty=1"},
        {"presence_penalty=0.5", "presence_penalty=0"},
        {"logit_bias=5:-100", "logit_bias=none"},
        {"frequency_penalty=0", "frequency_penalty=-1"},
        {"repetition_penalty=1.1", "repetition_penalty=1.1"}, /* on both sides */
        {"check=on", "check=on"}, /* on none */
    };
    FREED(free_at) char *told = xasprintf(facts, "ab12");
    FREED(free_at) char *there = xasprintf(
        "backend=remote\nserver_kind=aerie\nserver_version=0.1\nserver_facts=%s\n", told);
    for (int i = 0; i < 14; i++) {
        struct trace a, b;
        struct report r;
        int32_t *id;
        bool exact = i % 2, by_hand = i >= 12, both = i / 2 == 4, none = i / 2 == 5;
        make(&a, &b, exact ? there : server_about, exact ? here : local_about);
        for (int k = 0; k < TURNS && !by_hand; k++) {
            FREE(a.turn[k].settings, b.turn[k].settings);
            a.turn[k].settings = xasprintf("temperature=0\n%s\n", changes[i / 2][0]);
            b.turn[k].settings = xasprintf("temperature=0\n%s\n", changes[i / 2][1]);
        }
        struct trace_turn *t = &b.turn[1];
        fact_at(t, 0, &id);
        *id = t->reply.v[0] += 5;
        t->step[0].rec.forced = by_hand;
        judge(&a, &b, &r);
        assert_int_equal(r.diff.class, DIFF_LOGITS);
        assert_int_equal(r.steered, !none);
        assert_int_equal(claims(&r, "or penalties or biases changed the logits"), !none);
        /* one build that chooses alike must choose the same token */
        assert_int_equal(r.verdict, exact && (both || none) ? VERDICT_BEYOND : VERDICT_OPEN);
        end(&a, &b, &r);
    }
}

static void test_the_same_build_has_no_band(void **unused)
{
    (void)unused;
    for (int i = 0; i < 4; i++) {
        struct trace a, b;
        struct report r;
        int32_t *id;
        char *told = xasprintf(facts, i == 2 ? "cd34" : "ab12");
        char *there = xasprintf(
            "backend=remote\nserver_kind=aerie\nserver_version=0.1\nserver_facts=%s\n", told);
        make(&a, &b, there, here);
        if (i)
            fact_at(&a.turn[1], 0, &id)->logp -= 1e-6F;
        if (i == 3) { /* the first turn only */
            char *kv = strstr(a.turn[0].about, "\"kv\":\"f32\"");
            assert_non_null(kv);
            memcpy(kv + 6, "fp8", 3);
        }
        judge(&a, &b, &r);
        assert_int_equal(r.verdict, i == 1 ? VERDICT_BEYOND : VERDICT_EQUAL);
        assert_int_equal(claims(&r, "the band is 0"), i < 2);
        assert_int_equal(claims(&r, "weights ab12 | cd34") || claims(&r, "weights cd34 | ab12"),
                         i == 2);
        end(&a, &b, &r);
        free(there);
        free(told);
    }
}

static void test_a_servers_session_is_not_replayed_with_changes(void **unused)
{
    (void)unused;
    struct trace a, b;
    struct report r;
    struct err e = {0};
    make(&a, &b, server_about, local_about);
    assert_false(verdict_find(&(struct verdict_ask){.log_a = &a}, &r, &e));
    assert_non_null(strstr(e.msg, "--forced"));
    assert_false(verdict_find(&(struct verdict_ask){.log_a = &b, .forced = true}, &r, &e));
    assert_non_null(strstr(e.msg, "computed locally"));
    trace_free(&a);
    trace_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_runs_are_equal),
        cmocka_unit_test(test_one_changed_id_is_found_where_it_is),
        cmocka_unit_test(test_one_shifted_log_probability_is_found),
        cmocka_unit_test(test_a_dropped_token_is_found),
        cmocka_unit_test(test_another_prompt_is_named_first),
        cmocka_unit_test(test_without_ids_nothing_is_claimed_about_ids),
        cmocka_unit_test(test_sampled_replies_are_no_difference_of_numbers),
        cmocka_unit_test(test_changed_logits_and_given_tokens_are_no_difference_of_numbers),
        cmocka_unit_test(test_the_same_build_has_no_band),
        cmocka_unit_test(test_a_servers_session_is_not_replayed_with_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
