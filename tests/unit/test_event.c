/* test_event.c - events and their queues: deep copies, order under contention, the bound, the wake
 * descriptor, and closing while others wait. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/event.h"

static struct event numbered(uint64_t seq)
{
    struct event ev = {.kind = EV_TEXT, .seq = seq};
    buf_printf(&ev.text, "event %llu", (unsigned long long)seq);
    return ev;
}

static bool readable(const struct evq *q)
{
    struct pollfd p = {.fd = evq_fd(q), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void test_every_name_is_its_own(void **unused)
{
    (void)unused;
    const char *name[64];
    int n = 0;
    for (int i = STOP_END; i <= STOP_OPEN; i++)
        name[n++] = stop_name((enum stop_reason)i);
    for (int i = OP_OPEN; i <= OP_FORK; i++)
        name[n++] = op_name((enum op_kind)i);
    for (int i = 0; i < N_POOLS; i++)
        name[n++] = i == POOL_FULL ? "full (pool)" : pool_name((enum pool_id)i);
    for (int i = PAGE_TAKE; i <= PAGE_WINDOW; i++)
        name[n++] = page_op_name((enum page_op)i);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (name[i][0] == '?' || strcmp(name[i], name[j]) == 0)
                fail_msg("names %d and %d: %s", j, i, name[i]);
    assert_string_equal(stop_name(STOP_MAX), "max_tokens");
    assert_string_equal(stop_name(STOP_CRASHED), "crashed");
    assert_string_equal(op_name(OP_FORK), "fork");
    assert_string_equal(pool_name(POOL_FULL), "full");
    assert_string_equal(page_op_name(PAGE_WINDOW), "window");
    assert_string_equal(stop_name((enum stop_reason)99), "?");
}

static void test_a_copy_shares_nothing_with_its_original(void **unused)
{
    (void)unused;
    struct event a = numbered(7), b;
    a.rec.accepted = 3;
    buf_add(&a.text, "\0tail", 5);
    ids_cat(&a.tokens, (int32_t[]){1, 2, 3}, 3);
    a.tree = xmalloc(sizeof *a.tree);
    tree_init(a.tree, 9);
    a.n_pages = 2;
    a.pages = xcalloc(2, sizeof *a.pages);
    a.pages[1].page = 42;
    event_copy(&b, &a);
    memset(a.text.p, 'x', a.text.n);
    a.tokens.v[0] = a.tree->token[0] = a.pages[1].page = -1;
    event_free(&a);
    assert_true(a.text.p == NULL && a.tree == NULL && a.pages == NULL && a.n_pages == 0);
    assert_int_equal(b.text.n, 12);
    assert_memory_equal(b.text.p, "event 7\0tail", 13);
    assert_true(b.tokens.n == 3 && b.tokens.v[0] == 1 && b.tree->token[0] == 9);
    assert_true(b.pages[1].page == 42 && b.rec.accepted == 3);
    event_free(&b);
    event_free(&b); /* zeroed: harmless */

    struct event none = {.kind = EV_NOTICE};
    event_copy(&b, &none);
    assert_true(b.text.p == NULL && b.tokens.v == NULL && b.tree == NULL && b.pages == NULL);
    event_free(&b);
}

static void test_the_descriptor_is_readable_exactly_while_events_wait(void **unused)
{
    (void)unused;
    struct evq *q = evq_new(5);
    uint64_t x = 1, in = 0, out = 0;
    for (int round = 0; round < 5000; round++) {
        struct event ev;
        x = mix64(x);
        if (x & 1 && in - out < 5) {
            ev = numbered(in++);
            assert_true(evq_put(q, &ev));
            assert_null(ev.text.p);
        } else {
            bool got = x & 2 ? evq_get(q, &ev) : evq_wait(q, &ev, 0);
            assert_int_equal(got, in != out);
            if (got) {
                assert_true(ev.seq == out++);
                event_free(&ev);
            }
        }
        assert_int_equal(readable(q), in != out);
    }
    evq_free(q); /* with what is left in it */
}

static void test_waiting_ends_after_its_time(void **unused)
{
    (void)unused;
    struct evq *q = evq_new(1);
    struct event ev;
    uint64_t start = clock_ns();
    assert_false(evq_wait(q, &ev, 30));
    /* it waited; how late it wakes is the machine's */
    assert_true((clock_ns() - start) / 1000000 >= 29);
    assert_false(evq_closed(q));
    evq_free(q);
}

struct party {
    struct evq *q;
    uint64_t done; /* puts that returned true */
    int wait_ms;
};

enum { PUTS = 20000 };

static void *producer(void *arg)
{
    struct party *p = arg;
    for (uint64_t i = 0; i < PUTS; i++) {
        struct event ev = numbered(i);
        if (!evq_put(p->q, &ev)) {
            if (ev.text.p) /* refused events are freed */
                abort();
            break;
        }
        __atomic_add_fetch(&p->done, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void test_a_slow_reader_gets_everything_in_order(void **unused)
{
    (void)unused;
    struct party p = {.q = evq_new(3)};
    pthread_t t;
    pthread_create(&t, NULL, producer, &p);
    for (uint64_t i = 0; i < PUTS; i++) {
        struct event ev;
        assert_true(evq_wait(p.q, &ev, -1));
        if (ev.seq != i)
            fail_msg("event %llu came as number %llu", (unsigned long long)ev.seq,
                     (unsigned long long)i);
        event_free(&ev);
    }
    pthread_join(t, NULL);
    assert_false(readable(p.q));
    evq_free(p.q);
}

static void test_a_full_queue_holds_the_writer(void **unused)
{
    (void)unused;
    struct party p = {.q = evq_new(4)};
    pthread_t t;
    pthread_create(&t, NULL, producer, &p);
    for (uint64_t end = clock_ns() + 60000000000u; clock_ns() < end;)
        if (__atomic_load_n(&p.done, __ATOMIC_SEQ_CST) == 4)
            break;
    usleep(20000);
    assert_int_equal(__atomic_load_n(&p.done, __ATOMIC_SEQ_CST), 4);
    evq_close(p.q); /* and closing lets it go */
    pthread_join(t, NULL);
    assert_int_equal(p.done, 4);

    struct event ev = numbered(99);
    assert_false(evq_put(p.q, &ev));
    assert_false(evq_closed(p.q)); /* four are still in it */
    for (uint64_t i = 0; i < 4; i++) {
        assert_true(evq_wait(p.q, &ev, -1));
        assert_true(ev.seq == i);
        event_free(&ev);
    }
    assert_true(evq_closed(p.q));
    assert_false(evq_wait(p.q, &ev, -1));
    evq_free(p.q);
}

static void *waiter(void *arg)
{
    struct party *p = arg;
    struct event ev;
    p->done = evq_wait(p->q, &ev, -1);
    return NULL;
}

static void test_closing_wakes_who_waits_for_ever(void **unused)
{
    (void)unused;
    struct party p = {.q = evq_new(4), .done = 5};
    pthread_t t;
    pthread_create(&t, NULL, waiter, &p);
    usleep(10000);
    evq_close(p.q);
    pthread_join(t, NULL);
    assert_int_equal(p.done, 0);
    evq_free(p.q);
    evq_free(NULL);
}

struct rest {
    struct evq *q;
    int n, ms;
    uint64_t took_ms;
};

static void *resting(void *arg)
{
    struct rest *r = arg;
    uint64_t start = clock_ns();
    evq_rest(r->q, r->n, r->ms);
    r->took_ms = (clock_ns() - start) / 1000000;
    return NULL;
}

/* Puts events of these kinds, 5 ms apart, while another thread rests; how long it did. */
static uint64_t rest_through(int cap, int n, int ms, const enum event_kind *kind, int n_kind,
                             bool close)
{
    struct rest r = {.q = evq_new(cap), .n = n, .ms = ms};
    pthread_t t;
    pthread_create(&t, NULL, resting, &r);
    for (int i = 0; i < n_kind; i++) {
        struct event ev = {.kind = kind[i]};
        usleep(5000);
        assert_true(evq_put(r.q, &ev));
    }
    if (close)
        evq_close(r.q);
    pthread_join(t, NULL);
    evq_free(r.q);
    return r.took_ms;
}

static void test_who_rests_sleeps_through_what_can_wait_and_nothing_else(void **unused)
{
    (void)unused;
    static const enum event_kind patient[] = {EV_TEXT, EV_STEP, EV_PREFILL},
                                 last[] = {EV_TEXT, EV_TURN_END};
    enum { SHORT = 60, LONG = 30000 };
    /* half of LONG only tells who was woken from who slept to the end */
    assert_true(rest_through(8, 4, SHORT, patient, 3, false) >= SHORT - 1);
    assert_true(rest_through(8, 3, LONG, patient, 3, false) <= LONG / 2);
    assert_true(rest_through(2, 9, LONG, patient, 2, false) <= LONG / 2); /* it is full */
    assert_true(rest_through(8, 9, LONG, last, 2, false) <= LONG / 2);
    assert_true(rest_through(8, 9, LONG, NULL, 0, true) <= LONG / 2);
    struct rest flushed = {.q = evq_new(8), .n = 9, .ms = LONG};
    pthread_t t;
    pthread_create(&t, NULL, resting, &flushed);
    usleep(5000);
    evq_flush(flushed.q);
    pthread_join(t, NULL);
    assert_true(flushed.took_ms <= LONG / 2);
    evq_flush(flushed.q); /* while nobody rests: the next rest does not begin, the one after it
                             does */
    evq_rest(flushed.q, 9, LONG);
    flushed.ms = SHORT;
    resting(&flushed);
    assert_true(flushed.took_ms >= SHORT - 1);
    evq_free(flushed.q);
    struct evq *q = evq_new(4); /* what is there already counts, too */
    struct event ev = {.kind = EV_NOTICE};
    assert_true(evq_put(q, &ev));
    struct rest r = {.q = q, .n = 9, .ms = LONG};
    resting(&r);
    assert_true(r.took_ms <= LONG / 2);
    evq_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_name_is_its_own),
        cmocka_unit_test(test_a_copy_shares_nothing_with_its_original),
        cmocka_unit_test(test_the_descriptor_is_readable_exactly_while_events_wait),
        cmocka_unit_test(test_waiting_ends_after_its_time),
        cmocka_unit_test(test_a_slow_reader_gets_everything_in_order),
        cmocka_unit_test(test_a_full_queue_holds_the_writer),
        cmocka_unit_test(test_closing_wakes_who_waits_for_ever),
        cmocka_unit_test(test_who_rests_sleeps_through_what_can_wait_and_nothing_else),
    };
    return cmocka_run_group_tests_name("event", tests, NULL, NULL);
}
