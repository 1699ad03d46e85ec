/* serve_kit.h - an engine over the bundled model for tests: sends requests and collects their
 * results. */
#pragma once

#include "tests/few.h"
#include "tests/runtimes.h"

#include "engine/engine.h"
#include "engine/thread/internal.h"
#include "kernels/text.h"

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"

static inline struct engine_opts serve_opts(void)
{
    struct engine_opts o = {.model = NESTLING, .draft = NESTLING_DRAFT, .device = "cpu",
                            .precision = "f32", .threads = test_threads(),
                            .load = "map"}; /* engines are opened often */
    settings_init(&o.settings);
    o.settings.max_tokens = 40;
    return o;
}

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
static const char *device = TEST_DEVICE;

/* Skips the test if there is no such device. */
static inline struct backend *serve_open(const struct engine_opts *o)
{
    struct err e = {0};
    struct backend *g = engine_open(o, &e);
    if (!g && strcmp(device, "cpu") != 0) {
        print_message("# no %s: %s\n", device, e.msg);
        skip();
    }
    must(g != NULL, &e);
    return g;
}

/* The next event of an engine, which the caller frees. False: it is idle, and no event is left. */
static inline bool serve_event(struct backend *g, struct event *ev)
{
    for (bool busy = true; busy;) {
        busy = backend_busy(g); /* asked before the queue is read, so that it has all events */
        if (busy ? backend_wait(g, ev, 20) : backend_next(g, ev))
            return true;
    }
    return false;
}

/* Compares the page tables of two backends after the same step, without the session's id and the
 * context's capacity. */
static inline void same_tables(const struct page_table *a, const struct page_table *b)
{
    assert_int_equal(a->turn, b->turn);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->length, b->length);
    assert_int_equal(a->committed, b->committed);
    assert_int_equal(a->window, b->window);
    assert_int_equal(a->window_lo, b->window_lo);
    assert_int_equal(a->draft_length, b->draft_length);
    assert_int_equal(a->n_page, b->n_page);
    assert_memory_equal(a->page, b->page, (size_t)a->n_page * sizeof *a->page);
    assert_memory_equal(a->pool, b->pool, sizeof a->pool);
    for (int p = 0; p < N_POOLS; p++)
        if (a->pool[p].exists) {
            size_t n = (size_t)a->pool[p].total;
            assert_memory_equal(a->refs[p], b->refs[p], n * sizeof *a->refs[p]);
            assert_memory_equal(a->mine[p], b->mine[p], n);
        }
}

enum { MAX_ENDS = 8, MAX_REPLIES = 16 };

/* One reply of a batch. */
struct brought_reply {
    struct batch_rec rec;
    enum stop_reason reason;
    struct buf text, pieces; /* of EV_BATCH_REPLY; of all EV_BATCH_TEXT, the final channel's */
    struct ids tokens;
    int n_drafted, n_accepted;
};

/* The events of requests, collected. */
struct brought {
    struct buf text, notices, ops, faults; /* ops: "name:text|" */
    struct buf order;                      /* n: a notice, f: OP_FORGET, b: a turn begins */
    enum stop_reason reason[MAX_ENDS]; /* of each turn */
    int n_end, n_step[MAX_ENDS], n_begin;
    struct ids step_tokens, end_tokens, prompt; /* prompt: of the last turn begun */
    struct reuse reuse; /* the same turn's */
    int n_reused;
    struct buf facts; /* struct token_fact, one for each of step_tokens */
    uint64_t us_decode;
    struct brought_reply reply[MAX_REPLIES]; /* by index */
    struct batch_rec batch_begin, batch_end;
    enum stop_reason batch_reason;
    int n_reply, last_index, n_batch_end; /* replies complete; the index of the last */
    struct calibration calibration;
    int n_calibration;
};

static inline void brought_free(struct brought *b)
{
    buf_free(&b->text);
    buf_free(&b->notices);
    buf_free(&b->ops);
    buf_free(&b->faults);
    buf_free(&b->order);
    ids_free(&b->step_tokens);
    ids_free(&b->end_tokens);
    ids_free(&b->prompt);
    buf_free(&b->facts);
    for (int i = 0; i < MAX_REPLIES; i++) {
        buf_free(&b->reply[i].text);
        buf_free(&b->reply[i].pieces);
        ids_free(&b->reply[i].tokens);
    }
    *b = (struct brought){0};
}

static inline void brought_clear(struct brought *b)
{
    struct buf *all[] = {&b->text, &b->notices, &b->ops, &b->faults, &b->order};
    brought_free(b);
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        buf_str(all[k], ""); /* "" is easier to compare than nothing */
}

static inline void bring_reply(struct brought *b, const struct event *ev)
{
    int i = ev->batch.index;
    assert_true(i < MAX_REPLIES && (b->n_reply == 0 || i > b->last_index)); /* in their order */
    b->reply[i].rec = ev->batch;
    b->reply[i].reason = ev->reason;
    b->reply[i].n_drafted = ev->n_drafted;
    b->reply[i].n_accepted = ev->n_accepted;
    buf_add(&b->reply[i].text, ev->text.p ? ev->text.p : "", ev->text.n);
    ids_cat(&b->reply[i].tokens, ev->tokens.v, ev->tokens.n);
    b->last_index = i;
    b->n_reply++;
}

static inline void bring(struct brought *b, const struct event *ev)
{
    const char *text = ev->text.p ? ev->text.p : "";
    switch (ev->kind) {
    case EV_TEXT: buf_str(&b->text, text); break;
    case EV_NOTICE:
        buf_printf(&b->notices, "%s\n", text);
        buf_char(&b->order, 'n');
        break;
    case EV_FAULT: buf_printf(&b->faults, "%s\n", text); break;
    case EV_OP:
        buf_printf(&b->ops, "%s:%s", op_name(ev->op), text);
        buf_ints(&b->ops, ev->turns.v, ev->turns.n);
        buf_char(&b->ops, '|');
        if (ev->op == OP_FORGET)
            buf_char(&b->order, 'f');
        break;
    case EV_TURN_BEGIN:
        b->n_begin++;
        buf_char(&b->order, 'b');
        b->prompt.n = 0;
        ids_cat(&b->prompt, ev->tokens.v, ev->tokens.n);
        b->reuse = ev->reuse;
        b->n_reused = ev->n_reused;
        break;
    case EV_STEP:
        b->n_step[b->n_end]++;
        ids_cat(&b->step_tokens, ev->tokens.v, ev->tokens.n);
        buf_add(&b->facts, ev->facts, (size_t)ev->tokens.n * sizeof *ev->facts);
        break;
    case EV_TURN_END:
        assert_true(b->n_end < MAX_ENDS);
        b->reason[b->n_end++] = ev->reason;
        b->us_decode = ev->us_decode;
        ids_cat(&b->end_tokens, ev->tokens.v, ev->tokens.n);
        break;
    case EV_BATCH_BEGIN: b->batch_begin = ev->batch; break;
    case EV_BATCH_TEXT:
        assert_true(ev->batch.index < MAX_REPLIES);
        if (ev->channel == 0)
            buf_add(&b->reply[ev->batch.index].pieces, text, ev->text.n);
        break;
    case EV_BATCH_REPLY: bring_reply(b, ev); break;
    case EV_BATCH_END:
        b->batch_end = ev->batch;
        b->batch_reason = ev->reason;
        b->n_batch_end++;
        break;
    case EV_CALIBRATION:
        b->calibration = *ev->calibration;
        b->n_calibration++;
        break;
    default: break;
    }
}

static inline void submit_batch(struct backend *g, const char *const *prompt, int n)
{
    struct err e = {0};
    struct request rq = {.kind = RQ_BATCH, .count = n,
                         .prompts = xcalloc((size_t)n + 1, sizeof *rq.prompts)};
    for (int i = 0; i < n; i++)
        rq.prompts[i] = xstrdup(prompt[i]);
    must(backend_submit(g, &rq, &e), &e);
}

static inline void submit(struct backend *g, enum request_kind kind, const char *text, int count)
{
    struct err e = {0};
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL, .count = count};
    for (int n; kind == RQ_FORGET && int_at(&text, &n); text += *text == ' ')
        ids_add(&rq.turns, n);
    must(backend_submit(g, &rq, &e), &e);
}

static inline void settle(struct backend *g, struct brought *b)
{
    struct event ev;
    while (serve_event(g, &ev)) {
        bring(b, &ev);
        event_free(&ev);
    }
}

static inline void ask(struct backend *g, enum request_kind kind, const char *text,
                       struct brought *b)
{
    brought_clear(b);
    submit(g, kind, text, 0);
    settle(g, b);
}

/* "word word ...": n words of one token or two. */
static inline char *words(int n)
{
    struct buf b = {0};
    for (int i = 0; i < n; i++)
        buf_printf(&b, "%sThis is line %d.", i ? " " : "", i);
    return b.p;
}
