/* spy_kit.h - an engine on a device that is too small, or that fails: the CPU's kernel table, which
 * reports little memory, or fails at the n-th wait and at every later one, as a GPU with a sticky
 * error does. */
#pragma once

#include "tests/few.h"
#include "tests/runtimes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "engine/cycle/fit.h"
#include "engine/engine.h"
#include "repl/cli/cli.h"
#include "repl/tui/tui.h"

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"
#define STICKY "CUDA failed in or before attn: an illegal memory access was encountered"

#define KIT static __attribute__((unused))

/* ---- the spy --------------------------------------------------------------------------------- */

static struct {
    struct kernels k;
    size_t total, left;  /* memory; total 0: unlimited */
    size_t taken;        /* bytes allocated and uploaded */
    size_t room;         /* not 0: memory, of which what is not taken is left */
    int scale;           /* of the tensors' size on the device */
    int n_alloc;         /* calls of alloc and upload */
    bool holds;             /* what is uploaded is on the device */
    const void *held[1024]; /* the uploaded tensors' data */
    int n_held;
    const char *refuse;  /* alloc fails for this purpose, once */
    int waits;           /* waits until the device fails; < 0: never */
    int gets;            /* copies to the host until the device fails; < 0: never */
    bool failed;
    struct backend *engine;
    int cancel_at;  /* attention operations until the user stops the turn; 0: never */
    bool cancelled; /* the user has: no prompt pass may compute attention any more */
} spy;

KIT kbuf spy_alloc(struct kdev *d, size_t bytes, const char *what, struct err *e)
{
    if (spy.refuse && strcmp(spy.refuse, what) == 0) {
        spy.refuse = NULL;
        err_set(e, ERR_MODEL, "out of GPU memory: %s", what);
        return (kbuf){0};
    }
    spy.taken += bytes;
    spy.n_alloc++;
    return kernels_cpu.alloc(d, bytes, what, e);
}

KIT void spy_release(struct kdev *d, kbuf b)
{
    spy.taken -= b.p ? b.n : 0;
    kernels_cpu.release(d, b);
}

KIT size_t spy_footprint(struct kdev *d, const struct tensor *t)
{
    (void)d;
    return (t->quantize ? t->bytes / 2 : t->bytes) * (size_t)spy.scale;
}

KIT bool spy_holds(struct kdev *d, const struct tensor *t)
{
    (void)d;
    for (int i = 0; spy.holds && i < spy.n_held; i++)
        if (spy.held[i] == t->data)
            return true;
    return false;
}

KIT bool spy_upload(struct kdev *d, struct tensor *t, struct err *e)
{
    if (spy_holds(d, t))
        return true;
    spy.taken += spy_footprint(d, t);
    spy.n_alloc++;
    assert_true(spy.n_held < 1024);
    spy.held[spy.n_held++] = t->data;
    return kernels_cpu.upload(d, t, e);
}

KIT void spy_unload(struct kdev *d, struct tensor *t)
{
    for (int i = 0; spy_holds(d, t) && i < spy.n_held; i++)
        if (spy.held[i] == t->data) {
            spy.held[i] = spy.held[--spy.n_held];
            spy.taken -= spy_footprint(d, t);
            t->data = NULL;
        }
}

KIT void spy_memory(struct kdev *d, size_t *free_bytes, size_t *total_bytes)
{
    (void)d;
    if (spy.room)
        spy.left = spy.room > spy.taken ? spy.room - spy.taken : 0;
    *free_bytes = spy.left;
    *total_bytes = spy.total;
}

KIT bool fails(void)
{
    spy.failed |= spy.waits == 0;
    spy.waits -= spy.waits > 0;
    return spy.failed;
}

KIT bool spy_sync(struct kdev *d, struct err *e)
{
    (void)d;
    return !fails() || err_set(e, ERR_MODEL, STICKY);
}

KIT const void *spy_outbox(struct kdev *d)
{
    return fails() ? NULL : kernels_cpu.outbox(d);
}

KIT void spy_get(struct kdev *d, void *dst, kbuf src, size_t bytes)
{
    spy.failed |= spy.gets == 0;
    spy.gets -= spy.gets > 0;
    if (spy.failed)
        memset(dst, 0, bytes);
    else
        kernels_cpu.get(d, dst, src, bytes);
}

KIT void spy_attn(struct kdev *d, const struct k_attn *a)
{
    /* a stopped prompt computes no further attention */
    assert_false(spy.cancelled && a->rows > 64);
    kernels_cpu.attn(d, a);
    if (spy.cancel_at && --spy.cancel_at == 0) {
        spy.cancelled = true;
        backend_cancel(spy.engine);
    }
}

/* queued: as a device with a queue: cycles are fused, and the engine waits at the outbox. */
KIT const struct kernels *new_spy(bool queued)
{
    memset(&spy, 0, sizeof spy);
    spy.k = kernels_cpu;
    spy.k.queued = queued;
    spy.k.alloc = spy_alloc;
    spy.k.release = spy_release;
    spy.k.upload = spy_upload;
    spy.k.unload = spy_unload;
    spy.scale = 1;
    spy.k.footprint = spy_footprint;
    spy.k.holds = spy_holds;
    spy.k.memory = spy_memory;
    spy.k.sync = spy_sync;
    spy.k.outbox = spy_outbox;
    spy.k.get = spy_get;
    spy.waits = spy.gets = -1;
    return &spy.k;
}

KIT void small(size_t bytes)
{
    spy.left = bytes;
    spy.total = (size_t)80 << 30;
}

KIT struct engine_opts spy_opts(void)
{
    struct engine_opts o = {.model = NESTLING, .draft = NESTLING_DRAFT, .backend = &spy.k,
                            .precision = "f32", .threads = test_threads()};
    settings_init(&o.settings);
    o.settings.max_tokens = 40;
    return o;
}

/* The events of a request, collected. */
struct answer {
    struct buf text, faults, notices;
    struct ids tokens;
    int n_fault, n_steps, n_prefill, n_prompt, n_reply; /* n_reply: complete ones of a batch */
    bool lost, ended;
    enum err_kind fault;
    enum stop_reason reason;
};

KIT void answer_free(struct answer *a)
{
    buf_free(&a->text);
    buf_free(&a->faults);
    buf_free(&a->notices);
    ids_free(&a->tokens);
    *a = (struct answer){0};
}

KIT void take(struct answer *a, const struct event *ev)
{
    if (ev->kind == EV_TEXT)
        buf_add(&a->text, ev->text.p, ev->text.n);
    if (ev->kind == EV_NOTICE)
        buf_str(&a->notices, ev->text.p);
    a->n_steps += ev->kind == EV_STEP;
    if (ev->kind == EV_TURN_BEGIN)
        a->n_prompt = ev->tokens.n;
    a->n_prefill += ev->kind == EV_PREFILL;
    a->n_reply += ev->kind == EV_BATCH_REPLY && ev->reason <= STOP_MAX;
    if (ev->kind == EV_FAULT) {
        a->n_fault++;
        a->lost |= ev->lost;
        a->fault = ev->fault;
        buf_str(&a->faults, ev->text.p);
    }
    if (ev->kind == EV_TURN_END) {
        a->ended = true;
        a->reason = ev->reason;
        ids_cat(&a->tokens, ev->tokens.v, ev->tokens.n);
        assert_int_equal(ev->text.n, a->text.n);
    }
}

KIT void submit_and_take(struct backend *g, struct request *rq, struct answer *a)
{
    struct err e = {0};
    struct event ev;
    must(backend_submit(g, rq, &e), &e);
    for (bool busy = true; busy;) {
        /* asked before the queue is read, so that the queue has all its events */
        busy = backend_busy(g);
        while (busy ? backend_wait(g, &ev, 20) : backend_next(g, &ev)) {
            take(a, &ev);
            event_free(&ev);
        }
    }
}

KIT void ask(struct backend *g, enum request_kind kind, const char *text, struct answer *a)
{
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL};
    answer_free(a);
    submit_and_take(g, &rq, a);
}
