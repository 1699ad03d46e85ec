/* test_faults.c - what happens when the device is too small, or fails for good.
 *
 * The device is a spy: the CPU's kernel table, which claims little memory or fails after so many
 * waits, and from then on for ever, as a GPU with a sticky error does. Faces run in a process of
 * their own, so that exit codes, standard error and the terminal are what a user would see.
 */
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

/* ---- the spy --------------------------------------------------------------------------------- */

static struct {
    struct kernels k;
    size_t total, left;  /* memory; total 0: unlimited */
    size_t taken;        /* bytes allocated and uploaded */
    int n_alloc;         /* calls of alloc and upload */
    const char *refuse;  /* alloc fails for this purpose, once */
    int waits;           /* until the device fails; < 0: never */
    int gets;            /* the same, of copies to the host: it fails before it is waited for */
    bool failed;
    struct backend *engine;
    int cancel_at; /* attentions until the user stops, 0: never; after it there is none of ... */
    bool cancelled; /* ... a prompt's many rows */
} spy;

static kbuf spy_alloc(struct kdev *d, size_t bytes, const char *what, struct err *e)
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

static bool spy_upload(struct kdev *d, struct tensor *t, struct err *e)
{
    spy.taken += t->bytes;
    spy.n_alloc++;
    return kernels_cpu.upload(d, t, e);
}

static size_t spy_footprint(struct kdev *d, const struct tensor *t)
{
    (void)d;
    return t->bytes;
}

static void spy_memory(struct kdev *d, size_t *free_bytes, size_t *total_bytes)
{
    (void)d;
    *free_bytes = spy.left;
    *total_bytes = spy.total;
}

static bool fails(void)
{
    spy.failed |= spy.waits == 0;
    spy.waits -= spy.waits > 0;
    return spy.failed;
}

static bool spy_sync(struct kdev *d, struct err *e)
{
    (void)d;
    return !fails() || err_set(e, ERR_MODEL, STICKY);
}

static const void *spy_outbox(struct kdev *d)
{
    return fails() ? NULL : kernels_cpu.outbox(d);
}

static void spy_get(struct kdev *d, void *dst, kbuf src, size_t bytes)
{
    spy.failed |= spy.gets == 0;
    spy.gets -= spy.gets > 0;
    if (spy.failed)
        memset(dst, 0, bytes);
    else
        kernels_cpu.get(d, dst, src, bytes);
}

static void spy_attn(struct kdev *d, const struct k_attn *a)
{
    assert_false(spy.cancelled && a->rows > 64); /* of the long prompt: nothing more */
    kernels_cpu.attn(d, a);
    if (spy.cancel_at && --spy.cancel_at == 0) {
        spy.cancelled = true;
        backend_cancel(spy.engine);
    }
}

/* queued: cycles run as one, and the engine waits at the outbox. */
static const struct kernels *new_spy(bool queued)
{
    memset(&spy, 0, sizeof spy);
    spy.k = kernels_cpu;
    spy.k.queued = queued;
    spy.k.alloc = spy_alloc;
    spy.k.upload = spy_upload;
    spy.k.footprint = spy_footprint;
    spy.k.memory = spy_memory;
    spy.k.sync = spy_sync;
    spy.k.outbox = spy_outbox;
    spy.k.get = spy_get;
    spy.waits = spy.gets = -1;
    return &spy.k;
}

static void small(size_t bytes)
{
    spy.left = bytes;
    spy.total = (size_t)80 << 30;
}

/* ---- a model that does not fit --------------------------------------------------------------- */

static void spy_bed(struct bed *b)
{
    struct err e = {0};
    const struct device_opts w = {.threads = 2, .precision = "f32", .table = new_spy(false)};
    *b = (struct bed){0};
    must(device_choose(&b->dev, &w, NULL, &e), &e);
    bed_load(b, NESTLING, NESTLING_DRAFT);
}

static size_t sum(const struct need *n)
{
    return n->weights + n->cells + n->work;
}

/* Bytes of the cells that the layers own. */
static size_t cell_bytes(const struct net *n)
{
    size_t bytes = 0;
    for (int l = 0; l < n->m->cfg.n_layer; l++)
        if (n->m->layer[l].kv_src == l)
            bytes += n->cells[l].k.n + n->cells[l].v.n;
    return bytes;
}

static void test_what_is_counted_is_what_is_taken(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct bed b;
        struct runtime_shape s = {.page_size = 16, .context = i ? 4096 << i : 64, .lanes = i + 1,
                                  .max_rows = i == 3 ? 2048 : 0};
        spy_bed(&b);
        struct need n = fit_need(b.dev, &b.m, i == 2 ? NULL : &b.d, &s);
        assert_int_equal(spy.n_alloc, 0);
        struct err e = {0};
        must(runtime_open(&b.r, b.dev, &b.m, i == 2 ? NULL : &b.d, &s, &e), &e);
        assert_true(n.weights >= b.m.bytes && n.cells >= cell_bytes(&b.r.net));
        assert_true(sum(&n) >= spy.taken);
        assert_true(sum(&n) <= spy.taken + (size_t)spy.n_alloc * ((size_t)2 << 20));
        bed_close(&b);
    }
}

/* The number behind `before` in the message. */
static int number_after(const char *msg, const char *before)
{
    const char *at = strstr(msg, before);
    if (!at)
        fail_msg("\"%s\" does not say %s", msg, before);
    return atoi(at + strlen(before));
}

static bool opens(struct bed *b, struct draft *d, const struct runtime_shape *s, struct err *e)
{
    *e = (struct err){0};
    bool ok = runtime_open(&b->r, b->dev, &b->m, d, s, e);
    runtime_close(&b->r);
    return ok;
}

static void test_too_long_a_context_is_told_the_one_that_fits(void **state)
{
    (void)state;
    struct bed b;
    struct err e;
    struct runtime_shape s = {.page_size = 16, .context = 1 << 20};
    spy_bed(&b);
    small((size_t)1 << 30);
    assert_false(opens(&b, &b.d, &s, &e));
    assert_int_equal(e.kind, ERR_MODEL);
    assert_int_equal(spy.n_alloc, 0); /* nothing was touched */
    assert_non_null(strstr(e.msg, "KV cells of 1048576 tokens"));
    assert_non_null(strstr(e.msg, "1.0 GiB are free"));
    assert_null(strchr(e.msg, '\n'));
    int n = number_after(e.msg, "--context ");
    assert_true(n > 512 && n < s.context);
    s.context = n;
    assert_true(opens(&b, &b.d, &s, &e));
    s.context = n + 256;
    assert_false(opens(&b, &b.d, &s, &e));
    s.context = 1 << 20;
    s.shorten = true;
    must(runtime_open(&b.r, b.dev, &b.m, &b.d, &s, &e), &e);
    assert_int_equal(b.r.context, n);
    bed_close(&b);
}

static void test_other_ways_out_are_told_too(void **state)
{
    (void)state;
    struct bed b;
    struct err e;
    struct runtime_shape s = {.page_size = 16, .context = 1024, .full_pages = 1 << 16};
    spy_bed(&b);
    small((size_t)800 << 20);
    assert_false(opens(&b, &b.d, &s, &e));
    s.full_pages = number_after(e.msg, "--full-pages ");
    assert_true(opens(&b, &b.d, &s, &e));
    s.full_pages = 0;
    struct need with = fit_need(b.dev, &b.m, &b.d, &s), without = fit_need(b.dev, &b.m, NULL, &s);
    small(((size_t)384 << 20) + (sum(&with) + sum(&without)) / 2);
    s.context = 512;
    if (opens(&b, &b.d, &s, &e))
        fail_msg("the draft needs nothing");
    assert_non_null(strstr(e.msg, "it fits without the draft"));
    small(((size_t)384 << 20) + with.weights / 2);
    s.shorten = true;
    assert_false(opens(&b, &b.d, &s, &e));
    assert_non_null(strstr(e.msg, "the model's weights need"));
    assert_non_null(strstr(e.msg, "--device cpu"));
    bed_close(&b);
}

/* ---- an engine on the spy -------------------------------------------------------------------- */

static struct engine_opts spy_opts(void)
{
    struct engine_opts o = {.model = NESTLING, .draft = NESTLING_DRAFT, .backend = &spy.k,
                            .precision = "f32", .threads = 2};
    settings_init(&o.settings);
    o.settings.max_tokens = 40;
    return o;
}

/* What a request brought. */
struct answer {
    struct buf text, faults, notices;
    struct ids tokens;
    int n_fault, n_steps, n_prefill, n_prompt, n_reply; /* n_reply: complete ones of a batch */
    bool lost, ended;
    enum err_kind fault;
    enum stop_reason reason;
};

static void answer_free(struct answer *a)
{
    buf_free(&a->text);
    buf_free(&a->faults);
    buf_free(&a->notices);
    ids_free(&a->tokens);
    *a = (struct answer){0};
}

static void take(struct answer *a, const struct event *ev)
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

static void submit_and_take(struct backend *g, struct request *rq, struct answer *a)
{
    struct err e = {0};
    struct event ev;
    must(backend_submit(g, rq, &e), &e);
    for (bool busy = true; busy;) {
        busy = backend_busy(g); /* before the queue: what it posted is then in there */
        while (busy ? backend_wait(g, &ev, 20) : backend_next(g, &ev)) {
            take(a, &ev);
            event_free(&ev);
        }
    }
}

static void ask(struct backend *g, enum request_kind kind, const char *text, struct answer *a)
{
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL};
    answer_free(a);
    submit_and_take(g, &rq, a);
}

static void test_an_engine_shortens_a_context_that_nobody_asked_for(void **state)
{
    (void)state;
    struct err e = {0};
    struct answer a = {0};
    new_spy(false);
    struct engine_opts o = spy_opts();
    struct backend *g = engine_open(&o, &e);
    must(g != NULL, &e);
    assert_int_equal(backend_info(g)->context, 4096);
    backend_close(g);
    struct bed b;
    spy_bed(&b);
    struct runtime_shape s = {.page_size = 16, .context = 4096}, less = s;
    less.context = 1024;
    struct need full = fit_need(b.dev, &b.m, &b.d, &s), part = fit_need(b.dev, &b.m, &b.d, &less);
    bed_close(&b);
    new_spy(false);
    small(((size_t)384 << 20) + (sum(&full) + sum(&part)) / 2);
    g = engine_open(&o, &e);
    must(g != NULL, &e);
    int n = backend_info(g)->context;
    assert_true(n >= 512 && n < 4096);
    ask(g, RQ_SAY, "Hello!", &a);
    assert_int_equal(a.reason, STOP_END);
    assert_int_equal(number_after(a.notices.p, "the context is "), n);
    backend_close(g);
    o.context = 4096; /* asked for: it is that or nothing */
    g = engine_open(&o, &e);
    assert_null(g);
    assert_int_equal(e.kind, ERR_MODEL);
    assert_int_equal(number_after(e.msg, "--context "), n);
    answer_free(&a);
}

/* After `waits` waits the device is gone: what was said before stands, the rest does not come. */
static void one_loss(bool queued, int waits, int gets, const struct answer *healthy)
{
    struct err e = {0};
    struct answer a = {0};
    new_spy(queued);
    struct engine_opts o = spy_opts();
    struct backend *g = engine_open(&o, &e);
    must(g != NULL, &e);
    ask(g, RQ_NEW, NULL, &a);
    spy.waits = waits;
    spy.gets = gets;
    ask(g, RQ_SAY, "count to twenty", &a);
    assert_true(a.ended && a.lost && a.n_fault == 1);
    assert_int_equal(a.reason, STOP_DEVICE);
    assert_int_equal(a.fault, ERR_MODEL);
    assert_string_equal(a.faults.p, "the device failed: " STICKY);
    assert_true(a.text.n < healthy->text.n && a.tokens.n < healthy->tokens.n);
    assert_true(a.text.n == 0 || memcmp(a.text.p, healthy->text.p, a.text.n) == 0);
    assert_true(a.tokens.n == 0 || memcmp(a.tokens.v, healthy->tokens.v,
                                          (size_t)a.tokens.n * sizeof *a.tokens.v) == 0);
    assert_true(waits < 0 || (a.n_steps > 0) == (waits > 0));
    ask(g, RQ_SAY, "and again", &a);
    assert_true(a.lost && a.n_fault == 1 && !a.ended);
    backend_close(g);
    answer_free(&a);
}

static void test_a_lost_device_ends_the_turn_and_keeps_what_was_said(void **state)
{
    (void)state;
    for (int queued = 0; queued < 2; queued++) {
        struct err e = {0};
        struct answer a = {0};
        new_spy(queued);
        struct engine_opts o = spy_opts();
        struct backend *g = engine_open(&o, &e);
        must(g != NULL, &e);
        ask(g, RQ_SAY, "count to twenty", &a);
        assert_true(a.n_fault == 0 && a.n_steps > 6);
        backend_close(g);
        for (int n = 0; n < 8; n++) {
            if (n < 6)
                one_loss(queued, n, -1, &a);
            one_loss(queued, -1, queued ? n : 3 * n, &a); /* single passes copy more */
        }
        answer_free(&a);
    }
}

static void test_a_violated_rule_and_short_memory_leave_the_engine_alive(void **state)
{
    (void)state;
    struct err e = {0};
    struct answer a = {0};
    new_spy(false);
    struct engine_opts o = spy_opts();
    struct backend *g = engine_open(&o, &e);
    must(g != NULL, &e);
    ask(g, RQ_SET, "bug.16267=on", &a);
    ask(g, RQ_SAY, "Hello!", &a);
    assert_true(a.n_fault == 1 && !a.lost);
    assert_int_equal(a.fault, ERR_INVARIANT);
    assert_int_equal(a.reason, STOP_FAULT);
    ask(g, RQ_SET, "bug.16267=off", &a);
    ask(g, RQ_NEW, NULL, &a);
    spy.refuse = "plan";
    ask(g, RQ_SAY, "Hello!", &a);
    assert_true(a.n_fault == 1 && !a.lost);
    assert_int_equal(a.fault, ERR_MODEL);
    assert_int_equal(a.reason, STOP_FAULT);
    ask(g, RQ_SAY, "Hello!", &a);
    assert_int_equal(a.reason, STOP_END);
    backend_close(g);
    answer_free(&a);
}

/* ---- a long prompt that is stopped ----------------------------------------------------------- */

static char *long_prompt(void)
{
    struct buf b = {0};
    for (int i = 0; i < 300; i++)
        buf_printf(&b, "This is line %d. ", i);
    return b.p;
}

/* Cancels at the first chunk that is reported; only the one under way may still come to its end. */
static void stop_early(struct backend *g, struct answer *a)
{
    struct err e = {0};
    struct request rq = {.kind = RQ_SAY, .text = long_prompt()};
    struct event ev;
    uint64_t stopped = 0;
    int done = 0, total = 0, late = 0;
    must(backend_submit(g, &rq, &e), &e);
    while (!a->ended) {
        if (!backend_wait(g, &ev, 1000))
            continue;
        take(a, &ev);
        if (ev.kind == EV_PREFILL) {
            late += stopped && ev.ns > stopped;
            done = ev.done;
            total = ev.total;
            if (!stopped) {
                backend_cancel(g);
                stopped = clock_ns();
            }
        }
        event_free(&ev);
    }
    assert_true(done < total && late <= 1);
    while (backend_busy(g)) /* the end is told before the session is put back */
        usleep(1000);
}

static void test_a_long_prompt_stops_between_chunks_and_leaves_the_session_usable(void **state)
{
    (void)state;
    for (int queued = 0; queued < 2; queued++) {
        struct err e = {0};
        struct answer a = {0};
        struct check_report report;
        struct chat_view v;
        struct pool_view pool[N_POOLS];
        new_spy(queued);
        struct engine_opts o = spy_opts();
        o.settings.chunk = 32;
        struct backend *g = engine_open(&o, &e);
        must(g != NULL, &e);
        ask(g, RQ_NEW, NULL, &a);
        ask(g, RQ_SAY, "Hello!", &a);
        backend_chat(g, &v);
        g->pools->ledger(g, pool);
        int length = v.length, used = pool[POOL_FULL].used;
        answer_free(&a);
        stop_early(g, &a);
        assert_int_equal(a.reason, STOP_CANCEL);
        assert_true(a.n_fault == 0 && a.text.n == 0 && a.n_steps > 0);
        must(g->check->sweep(g, &report, &e), &e);
        backend_chat(g, &v); /* the conversation is where it was, and so are the pages */
        g->pools->ledger(g, pool);
        assert_true(v.length == length && pool[POOL_FULL].used <= used + 1);
        ask(g, RQ_SAY, "Hello!", &a);
        assert_int_equal(a.reason, STOP_END);
        assert_true(a.text.n > 0);
        backend_close(g);
        answer_free(&a);
    }
}

/* One chunk as long as the prompt: the pass itself is left, between two layers. */
static void test_a_long_chunk_stops_between_layers(void **state)
{
    (void)state;
    struct err e = {0};
    struct answer a = {0};
    struct check_report report;
    new_spy(false);
    spy.k.attn = spy_attn;
    struct engine_opts o = spy_opts();
    o.settings.chunk = 4096;
    struct backend *g = spy.engine = engine_open(&o, &e);
    must(g != NULL, &e);
    char *text = long_prompt();
    spy.cancel_at = 3;
    ask(g, RQ_SAY, text, &a);
    assert_int_equal(a.reason, STOP_CANCEL);
    assert_true(a.n_steps == 0 && a.n_fault == 0 && spy.cancel_at == 0);
    must(g->check->sweep(g, &report, &e), &e);
    ask(g, RQ_SAY, "Hello!", &a);
    assert_int_equal(a.reason, STOP_END);
    backend_close(g);
    free(text);
    answer_free(&a);
}

static void test_the_chunk_suits_the_device_unless_it_is_given(void **state)
{
    (void)state;
    static const struct {
        bool queued;
        int given, want;
    } cases[] = {{false, 0, 256}, {true, 0, 2048}, {true, 300, 300}, {false, 4096, 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct answer a = {0};
        struct chat_view v;
        new_spy(cases[i].queued);
        struct engine_opts o = spy_opts();
        o.settings.chunk = cases[i].given;
        struct backend *g = engine_open(&o, &e);
        must(g != NULL, &e);
        char *text = long_prompt();
        ask(g, RQ_SAY, text, &a);
        assert_true(a.n_prompt > 2048);
        assert_int_equal(a.n_prefill, div_up(a.n_prompt, cases[i].want));
        backend_chat(g, &v);
        assert_int_equal(v.settings.chunk, cases[i].want);
        ask(g, RQ_SET, "chunk=0", &a);
        backend_chat(g, &v);
        assert_int_equal(v.settings.chunk, cases[i].queued ? 2048 : 256);
        free(text);
        backend_close(g);
        answer_free(&a);
    }
}

/* ---- faces ----------------------------------------------------------------------------------- */

static char *db; /* of the test at hand */

static void new_db(void)
{
    db = xstrdup("/tmp/aerie-faults-XXXXXX");
    int fd = mkstemp(db);
    assert_true(fd >= 0);
    close(fd);
    unlink(db);
}

static void drop_db(void)
{
    static const char *const ends[] = {"", "-wal", "-shm", "-lock"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char *path = xasprintf("%s%s", db, ends[i]);
        unlink(path);
        free(path);
    }
    free(db);
}

static struct options options(void)
{
    return (struct options){.engine = spy_opts(), .level = LOG_STEPS, .db = db, .color = 2};
}

/* In the child: a face on an app whose device fails `waits` waits after it is open. */
static int with_app(struct options *o, int waits, int (*face)(struct app *a))
{
    struct err e = {0};
    struct app *a = xcalloc(1, sizeof *a);
    if (!app_open(a, o, &e))
        return cli_fail(&e);
    while (backend_busy(a->backend))
        usleep(1000);
    spy.waits = waits;
    int rc = face(a);
    app_close(a);
    free(a);
    return rc;
}

static int face_run(struct app *a) { return run_once(a, "count to twenty"); }

struct shown {
    int rc;
    struct buf out, err;
};

static void shown_free(struct shown *s)
{
    buf_free(&s->out);
    buf_free(&s->err);
    *s = (struct shown){0};
}

static void read_all(int fd, struct buf *out)
{
    char part[4096];
    ssize_t n;
    buf_str(out, "");
    while ((n = read(fd, part, sizeof part)) > 0 || (n < 0 && errno == EINTR))
        buf_add(out, part, n > 0 ? (size_t)n : 0);
    close(fd);
}

/* Runs `child` with `input` on standard input and keeps what it prints. */
static void in_child(int (*child)(void), const char *input, struct shown *s)
{
    int in[2], out[2], err[2], status;
    assert_true(pipe(in) == 0 && pipe(out) == 0 && pipe(err) == 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(in[0], 0), dup2(out[1], 1), dup2(err[1], 2);
        close(in[1]), close(out[0]), close(err[0]);
        int rc = child();
        fflush(NULL);
        _exit(rc);
    }
    close(in[0]), close(out[1]), close(err[1]);
    assert_int_equal(write(in[1], input, strlen(input)), strlen(input));
    close(in[1]);
    read_all(out[0], &s->out); /* neither is long enough to fill the other pipe */
    read_all(err[0], &s->err);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    s->rc = WEXITSTATUS(status);
}

static int lines_of(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += *s == '\n';
    return n;
}

static int child_once(void)
{
    struct options o = options();
    return with_app(&o, 4, face_run);
}

static int child_once_json(void)
{
    struct options o = options();
    o.json = true;
    return with_app(&o, 4, face_run);
}

static int child_plain(void)
{
    struct options o = options();
    o.plain = true;
    return with_app(&o, 4, plain_run);
}

static bool one_turn(const struct turn_row *r, void *arg)
{
    struct buf *b = arg;
    if (!r->is_user)
        buf_printf(b, "%s|%.*s", r->stop, (int)r->text_n, r->text);
    return true;
}

/* The replies of the newest session as the log has them. */
static void logged(struct buf *out)
{
    struct err e = {0};
    struct session_row row = {0};
    int turns = 0, bad = 0;
    struct hdb *h = hdb_open(db, &e);
    must(h != NULL, &e);
    must(hdb_find(h, "last", &row, &e), &e);
    assert_true(hdb_turns(h, row.id, 0, one_turn, out, &e) > 0);
    must(hdb_verify(h, "", &turns, &bad, NULL, &e), &e);
    assert_int_equal(bad, 0);
    session_row_free(&row);
    hdb_close(h);
}

static void test_every_plain_face_ends_with_one_line_and_exit_code_3(void **state)
{
    (void)state;
    int (*const child[])(void) = {child_once, child_plain, child_once_json};
    for (size_t i = 0; i < sizeof child / sizeof *child; i++) {
        struct shown s = {0};
        struct buf log = {0};
        new_db();
        new_spy(i % 2);
        in_child(child[i], "count to twenty\nHello!\n", &s);
        assert_int_equal(s.rc, 3);
        assert_int_equal(lines_of(s.err.p), 1);
        assert_non_null(strstr(s.err.p, "aerie: the device failed: " STICKY));
        assert_non_null(strstr(s.err.p, "aerie --session "));
        if (i == 2)
            assert_non_null(strstr(s.out.p, "\"stop\":\"device_failed\""));
        logged(&log);
        assert_int_equal(strncmp(log.p, "device_failed|", 14), 0);
        assert_null(strstr(log.p + 14, "|")); /* the second line was not sent any more */
        char *said = log.p + 14;
        assert_true(strlen(said) > 3);
        assert_non_null(strstr(s.out.p, said));
        shown_free(&s);
        buf_free(&log);
        drop_db();
    }
}

/* ---- many prompts, and a replay -------------------------------------------------------------- */

/* Runs prompts in a batch, one lane at a time. False: loading or the batch failed (*a: why). */
static bool run_batch(const struct engine_opts *asked, const char *const *prompts, int n,
                      struct answer *a)
{
    struct engine_opts o = *asked;
    struct err e = {0};
    struct request rq = {.kind = RQ_BATCH, .count = n,
                         .prompts = xcalloc((size_t)n, sizeof *rq.prompts)};
    answer_free(a);
    o.lanes = 1;
    for (int i = 0; i < n; i++)
        rq.prompts[i] = xstrdup(prompts[i]);
    struct backend *g = engine_open(&o, &e);
    if (g) {
        submit_and_take(g, &rq, a);
    } else {
        a->fault = e.kind;
        buf_str(&a->faults, e.msg);
        for (int i = 0; i < n; i++)
            free(rq.prompts[i]);
        free(rq.prompts);
    }
    backend_close(g);
    return g && a->n_fault == 0;
}

static void test_a_batch_keeps_the_results_it_has_told(void **state)
{
    (void)state;
    static const char *const prompts[] = {"Hello!", "Hello!", "count to twenty"};
    struct answer a = {0};
    new_spy(false);
    struct engine_opts o = spy_opts();
    assert_true(run_batch(&o, prompts, 3, &a));
    assert_int_equal(a.n_reply, 3);
    int n = 0;
    for (int waits = 0, most = 0;; waits += 3, n++) {
        new_spy(false);
        spy.waits = waits;
        if (run_batch(&o, prompts, 3, &a))
            break; /* it never waited so often */
        assert_int_equal(a.fault, ERR_MODEL);
        assert_non_null(strstr(a.faults.p, STICKY));
        assert_true(a.n_reply >= most && a.n_reply < 3);
        most = a.n_reply;
    }
    assert_true(n > 3 && spy.waits >= 0 && a.n_reply == 3);
    answer_free(&a);
}

static int n_recorded;

static bool count_record(struct kdev *d)
{
    (void)d;
    n_recorded++;
    return false;
}

static void test_a_batch_records_cycles_unless_graphs_are_off(void **state)
{
    (void)state;
    static const char *const prompts[] = {"Hello!", "Hello!", "Hello!"};
    for (int graph = 0; graph < 2; graph++) {
        struct answer a = {0};
        new_spy(true);
        spy.k.graph_begin = count_record;
        struct engine_opts o = spy_opts();
        o.settings.graph = graph;
        n_recorded = 0;
        assert_true(run_batch(&o, prompts, 3, &a));
        assert_int_equal(a.n_reply, 3);
        answer_free(&a);
        assert_true(graph ? n_recorded > 0 : n_recorded == 0);
    }
}

static int replay_waits; /* of the child's device */

static int child_replay(void)
{
    char *word[] = {(char *)"last"};
    struct cli c = {.opt = options(), .word = word, .n_word = 1, .check = true};
    spy.waits = replay_waits;
    return cli_replay(&c);
}

static int child_healthy(void)
{
    struct options o = options();
    return with_app(&o, -1, face_run);
}

static void test_a_replay_tells_a_lost_device_from_a_difference(void **state)
{
    (void)state;
    struct shown s = {0};
    new_db();
    new_spy(false);
    in_child(child_healthy, "", &s);
    assert_int_equal(s.rc, 0);
    shown_free(&s);
    replay_waits = 5;
    in_child(child_replay, "", &s);
    assert_int_equal(s.rc, 3);
    assert_int_equal(lines_of(s.err.p), 1);
    assert_non_null(strstr(s.err.p, STICKY));
    shown_free(&s);
    in_child(child_once, "", &s); /* a second session, cut short by its device */
    assert_int_equal(s.rc, 3);
    shown_free(&s);
    replay_waits = -1;
    in_child(child_replay, "", &s); /* is the same up to there */
    assert_string_equal(s.err.p, "");
    assert_int_equal(strncmp(s.out.p, "equal: 1 turn,", 14), 0);
    assert_int_equal(s.rc, 0);
    shown_free(&s);
    drop_db();
}

/* ---- the full screen ------------------------------------------------------------------------- */

/* Reads the terminal until `until` appears, the child is gone or 20 s have passed. */
static bool see(int fd, struct buf *out, const char *until)
{
    uint64_t end = clock_ns() + 20000000000u;
    buf_str(out, "");
    while (clock_ns() < end) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char part[4096];
        ssize_t n = poll(&p, 1, 100) > 0 ? read(fd, part, sizeof part) : 0;
        if (n < 0)
            return strstr(out->p, until) != NULL;
        for (ssize_t i = 0; i < n; i++)
            if (part[i]) /* a screen holds no NUL, and strstr() stops at one */
                buf_add(out, &part[i], 1);
        if (n > 0 && strstr(out->p, until))
            return true;
    }
    return false;
}

/* A terminal, and a face behind it. */
struct stage {
    int master, slave, err;
    struct termios before;
    pid_t pid;
    struct buf screen;
};

static void stage_open(struct stage *s, const struct options *given, int waits,
                       int (*face)(struct app *a))
{
    struct winsize size = {.ws_row = 30, .ws_col = 100};
    int err[2];
    *s = (struct stage){0};
    assert_int_equal(openpty(&s->master, &s->slave, NULL, NULL, &size), 0);
    assert_int_equal(tcgetattr(s->slave, &s->before), 0);
    assert_int_equal(pipe(err), 0);
    fflush(NULL);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        struct options o = *given;
        dup2(s->slave, 0), dup2(s->slave, 1), dup2(err[1], 2);
        close(s->master), close(err[0]);
        _exit(with_app(&o, waits, face));
    }
    close(err[1]);
    s->err = err[0];
}

/* The exit code; what came over standard error. */
static int stage_close(struct stage *s, struct buf *err)
{
    int status;
    struct termios after;
    read_all(s->err, err);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(tcgetattr(s->slave, &after), 0);
    assert_true(s->before.c_lflag == after.c_lflag && s->before.c_iflag == after.c_iflag &&
                s->before.c_oflag == after.c_oflag);
    close(s->master);
    close(s->slave);
    buf_free(&s->screen);
    return WEXITSTATUS(status);
}

static void type(struct stage *s, const char *keys)
{
    assert_int_equal(write(s->master, keys, strlen(keys)), strlen(keys));
}

/* The device fails while the full screen is up; both faces then take up the session. */
static void lose_the_screen(int waits)
{
    struct stage s;
    struct buf err = {0}, log = {0};
    struct options o = options();
    stage_open(&s, &o, waits, tui_run);
    assert_true(see(s.master, &s.screen, "Enter"));
    type(&s, "count to twenty\r");
    assert_true(see(s.master, &s.screen, "\033[?1049l")); /* back from the other screen */
    assert_int_equal(stage_close(&s, &err), 3);
    assert_int_equal(lines_of(err.p), 1);
    assert_non_null(strstr(err.p, "aerie: the device failed: " STICKY));
    buf_free(&err);
    logged(&log);
    assert_int_equal(strncmp(log.p, "device_failed|", 14), 0);
    assert_true((strlen(log.p) > 14) == (waits > 0));
    buf_free(&log);
    int (*const face[])(struct app *a) = {tui_run, plain_run};
    o.resume_last = true;
    for (int i = 0; i < 2; i++) {
        stage_open(&s, &o, -1, face[i]);
        assert_true(see(s.master, &s.screen, "stopped: device_failed"));
        type(&s, "/bye\r");
        assert_int_equal(stage_close(&s, &err), 0);
        buf_free(&err);
    }
}

static void test_the_screen_is_restored_and_a_later_start_shows_the_failed_turn(void **state)
{
    (void)state;
    setenv("TERM", "xterm", 1);
    for (int waits = 0; waits <= 4; waits += 4) { /* before the first word, and after a few */
        new_db();
        new_spy(true);
        lose_the_screen(waits);
        drop_db();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_counted_is_what_is_taken),
        cmocka_unit_test(test_too_long_a_context_is_told_the_one_that_fits),
        cmocka_unit_test(test_other_ways_out_are_told_too),
        cmocka_unit_test(test_an_engine_shortens_a_context_that_nobody_asked_for),
        cmocka_unit_test(test_a_lost_device_ends_the_turn_and_keeps_what_was_said),
        cmocka_unit_test(test_a_violated_rule_and_short_memory_leave_the_engine_alive),
        cmocka_unit_test(test_a_long_prompt_stops_between_chunks_and_leaves_the_session_usable),
        cmocka_unit_test(test_a_long_chunk_stops_between_layers),
        cmocka_unit_test(test_the_chunk_suits_the_device_unless_it_is_given),
        cmocka_unit_test(test_every_plain_face_ends_with_one_line_and_exit_code_3),
        cmocka_unit_test(test_a_batch_keeps_the_results_it_has_told),
        cmocka_unit_test(test_a_batch_records_cycles_unless_graphs_are_off),
        cmocka_unit_test(test_a_replay_tells_a_lost_device_from_a_difference),
        cmocka_unit_test(test_the_screen_is_restored_and_a_later_start_shows_the_failed_turn),
    };
    setenv("XDG_STATE_HOME", "/tmp", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
