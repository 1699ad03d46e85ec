/* event.c - see event.h. A queue is a ring under one mutex. Its eventfd is readable exactly while
 * the ring holds events, so poll() and evq_get() agree. */
#include "engine/event.h"

#include "engine/job.h"
#include "engine/probe.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* ---- names ---- */

#define NAME(table, i) ((unsigned)(i) < sizeof(table) / sizeof *(table) ? (table)[i] : "?")

const char *stop_name(enum stop_reason r)
{
    static const char *const name[] = {"end",     "max_tokens", "context",       "cancel",
                                       "kv_full", "fault",      "device_failed", "crashed",
                                       ""};
    return NAME(name, r);
}

bool turns_have(const struct ids *turns, int turn)
{
    return ANY(i, turns->n, turns->v[i] == turn);
}

const char *op_name(enum op_kind k)
{
    static const char *const name[] = {"open", "set", "system", "undo", "resume", "fork",
                                       "forget", "force", "shape", "format"};
    return NAME(name, k);
}

const char *step_kind_name(enum step_kind k)
{
    static const char *const name[] = {"prefill", "decode", "spec"};
    return NAME(name, k);
}

const char *step_source_name(enum step_source s)
{
    static const char *const name[] = {"computed", "server", "piece"};
    return NAME(name, s);
}

const char *fate_name(int fate)
{
    static const char *const name[] = {"none", "accepted", "rejected", "cut"};
    return NAME(name, fate);
}

/* ---- sums over steps ---- */

void draft_sums_add(struct draft_sums *s, const struct step_rec *r, int deepest)
{
    if (r->drafted <= 0)
        return;
    s->cycles++;
    s->drafted += (uint64_t)r->drafted;
    s->accepted += (uint64_t)r->accepted;
    for (int d = 1; d <= min_int(deepest, TREE_MAX - 1); d++) {
        s->depth[d].drafted++;
        s->depth[d].accepted += d <= r->accepted;
    }
}

void draft_report_add(struct draft_report *r, const struct step_rec *rec, int deepest)
{
    int k = 0;
    if (rec->drafted <= 0)
        return;
    while (k + 1 < DRAFT_RANGES && rec->pos0 >= draft_range_first(k + 1))
        k++;
    draft_sums_add(&r->all, rec, deepest);
    r->range[k].cycles++;
    r->range[k].drafted += (uint64_t)rec->drafted;
    r->range[k].accepted += (uint64_t)rec->accepted;
    r->us_draft += rec->us_draft;
    r->us_verify += rec->us_verify;
}

void draft_report_join(struct draft_report *r, const struct draft_report *more)
{
    draft_sums_join(&r->all, &more->all);
    for (int k = 0; k < DRAFT_RANGES; k++) {
        r->range[k].cycles += more->range[k].cycles;
        r->range[k].drafted += more->range[k].drafted;
        r->range[k].accepted += more->range[k].accepted;
    }
    r->us_draft += more->us_draft;
    r->us_verify += more->us_verify;
}

void draft_sums_join(struct draft_sums *s, const struct draft_sums *more)
{
    s->cycles += more->cycles;
    s->drafted += more->drafted;
    s->accepted += more->accepted;
    for (int d = 1; d < TREE_MAX; d++) {
        s->depth[d].drafted += more->depth[d].drafted;
        s->depth[d].accepted += more->depth[d].accepted;
    }
}

double draft_sums_mal(const struct draft_sums *s)
{
    return s->cycles ? 1 + (double)s->accepted / (double)s->cycles : 0;
}

/* ---- events ---- */

static void job_news_free(struct job_news *n)
{
    if (n)
        FREE(n->prompt_fact, n->top, n);
}

void event_free(struct event *ev)
{
    buf_free(&ev->text);
    ids_free(&ev->tokens);
    ids_free(&ev->prompt);
    ids_free(&ev->ends);
    ids_free(&ev->turns);
    FREE(ev->facts, ev->drafts);
    tops_free(ev->tops);
    served_free(ev->served);
    FREE(ev->tree, ev->pages, ev->calibration);
    probe_free(ev->probe);
    free(ev->what_if);
    job_news_free(ev->job);
    memset(ev, 0, sizeof *ev);
}

struct token_fact *facts_copy(const struct token_fact *fact, int n)
{
    return xcopy(fact, (size_t)n, sizeof *fact);
}

void event_copy(struct event *dst, const struct event *src)
{
    *dst = *src;
    dst->probe = NULL;
    dst->what_if = NULL;
    dst->job = NULL;
    dst->text = (struct buf){0};
    dst->tokens = dst->prompt = dst->ends = dst->turns = (struct ids){0};
    if (src->text.p)
        buf_add(&dst->text, src->text.p, src->text.n);
    ids_cat(&dst->tokens, src->tokens.v, src->tokens.n);
    ids_cat(&dst->prompt, src->prompt.v, src->prompt.n);
    ids_cat(&dst->ends, src->ends.v, src->ends.n);
    ids_cat(&dst->turns, src->turns.v, src->turns.n);
    dst->drafts = NULL;
    dst->facts = facts_copy(src->facts, src->tokens.n);
    dst->tops = tops_copy(src->tops);
    dst->served = served_copy(src->served);
    dst->tree = xcopy(src->tree, 1, sizeof *src->tree);
    dst->calibration = xcopy(src->calibration, 1, sizeof *src->calibration);
    dst->pages = xcopy(src->pages, (size_t)src->n_pages, sizeof *src->pages);
}

static void note_reply(const struct event *ev, struct buf *out)
{
    const struct batch_rec *r = &ev->batch;
    buf_printf(out, "reply %d of %d", r->index + 1, r->count);
    if (!r->refused)
        buf_printf(out, " (%d token%s, %s)", r->n_tokens, plural(r->n_tokens),
                   stop_name(ev->reason));
    buf_str(out, ": ");
    buf_add(out, ev->text.p, ev->text.n);
}

static void note_calibration(const struct calibration *c, struct buf *out)
{
    CHECK(c);
    buf_printf(out, "calibration: boundaries ");
    for (int i = 0; i < c->n_capture; i++)
        buf_printf(out, "%s%d", i ? "," : "", c->row[c->best].boundary[i]);
    buf_printf(out, " agree at %d of %d tokens, %s", c->row[c->best].agree, c->tokens,
               c->certain ? "certainly the best" : "not certainly the best");
}

bool event_to_log(struct event *ev)
{
    struct buf line = {0};
    switch (ev->kind) {
    case EV_PREFILL: case EV_BATCH_BEGIN: case EV_BATCH_TEXT: case EV_BATCH_END: case EV_PAUSE:
    case EV_PROBE: case EV_WHAT_IF: case EV_JOB_BEGIN: case EV_JOB_STEP: case EV_JOB_END:
        return false;
    case EV_BATCH_REPLY: note_reply(ev, &line); break;
    case EV_CALIBRATION: note_calibration(ev->calibration, &line); break;
    default: return true;
    }
    struct event kept = {.kind = EV_NOTICE, .seq = ev->seq, .ns = ev->ns, .turn = ev->turn,
                         .step = ev->step, .text = line};
    memcpy(kept.session, ev->session, sizeof kept.session);
    event_free(ev);
    *ev = kept;
    return true;
}

/* ---- queues ---- */

struct evq {
    pthread_mutex_t lock;
    pthread_cond_t filled, drained;
    struct event *ring; /* (cap), events head .. head + n - 1 modulo cap */
    int cap, head, n;
    int wanted; /* number of events that wakes the sleeping consumer; 0: no consumer sleeps */
    int fd;
    bool closed, flush; /* flush: ends evq_rest(), or its next call at once */
};

struct evq *evq_new(int capacity)
{
    CHECK(capacity > 0);
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
        return NULL;
    struct evq *q = xcalloc(1, sizeof *q);
    q->ring = xcalloc((size_t)capacity, sizeof *q->ring);
    q->cap = capacity;
    q->fd = fd;
    pthread_condattr_t steady; /* timeouts use the monotonic clock */
    CHECK(pthread_mutex_init(&q->lock, NULL) == 0 && pthread_condattr_init(&steady) == 0 &&
          pthread_condattr_setclock(&steady, CLOCK_MONOTONIC) == 0 &&
          pthread_cond_init(&q->filled, &steady) == 0 && pthread_cond_init(&q->drained, NULL) == 0);
    pthread_condattr_destroy(&steady);
    return q;
}

void evq_free(struct evq *q)
{
    if (!q)
        return;
    for (int i = 0; i < q->n; i++)
        event_free(&q->ring[(q->head + i) % q->cap]);
    pthread_cond_destroy(&q->filled);
    pthread_cond_destroy(&q->drained);
    pthread_mutex_destroy(&q->lock);
    close(q->fd);
    FREE(q->ring, q);
}

int evq_fd(const struct evq *q)
{
    return q->fd;
}

/* Sets or clears the eventfd when the ring becomes filled or empty. Lock held. No other code uses
 * the descriptor and it does not block, so neither call can fail. */
static void set_readable(struct evq *q, bool on)
{
    uint64_t v = 1;
    ssize_t n = on ? write(q->fd, &v, sizeof v) : read(q->fd, &v, sizeof v);
    CHECK(n == sizeof v);
}

static bool can_wait(enum event_kind kind)
{
    return kind == EV_TEXT || kind == EV_STEP || kind == EV_PREFILL || kind == EV_BATCH_TEXT;
}

bool evq_put(struct evq *q, struct event *ev)
{
    bool patient = can_wait(ev->kind);
    pthread_mutex_lock(&q->lock);
    while (q->n == q->cap && !q->closed)
        pthread_cond_wait(&q->drained, &q->lock);
    bool open = !q->closed;
    if (open) {
        q->ring[(q->head + q->n) % q->cap] = *ev;
        memset(ev, 0, sizeof *ev);
        if (q->n++ == 0)
            set_readable(q, true);
        if (q->wanted && (!patient || q->n >= q->wanted)) {
            q->wanted = 0;
            pthread_cond_signal(&q->filled);
        }
    }
    pthread_mutex_unlock(&q->lock);
    if (!open)
        event_free(ev);
    return open;
}

void evq_post(struct evq *screen, struct evq *log, struct event *ev)
{
    if (log) {
        struct event copy;
        event_copy(&copy, ev);
        if (event_to_log(&copy))
            evq_put(log, &copy);
        else
            event_free(&copy);
    }
    evq_put(screen, ev);
}

/* Lock held. */
static bool pop_event(struct evq *q, struct event *ev)
{
    if (q->n == 0)
        return false;
    *ev = q->ring[q->head];
    q->head = (q->head + 1) % q->cap;
    if (--q->n == 0)
        set_readable(q, false);
    pthread_cond_signal(&q->drained);
    return true;
}

bool evq_get(struct evq *q, struct event *ev)
{
    LOCKED(&q->lock);
    return pop_event(q, ev);
}

static struct timespec after_ms(int ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (ms > 0) {
        t.tv_sec += ms / 1000;
        t.tv_nsec += ms % 1000 * 1000000L;
        if (t.tv_nsec >= 1000000000L) {
            t.tv_nsec -= 1000000000L;
            t.tv_sec++;
        }
    }
    return t;
}

/* Sleeps until n events wait, or one that can_wait() denies, or ms milliseconds are over (ms < 0:
 * no limit). Lock held; one consumer. */
static void sleep_for(struct evq *q, int n, int ms, bool rest)
{
    struct timespec until = after_ms(ms);
    int rc = 0;
    q->wanted = n;
    while (q->wanted && !q->closed && !(rest && q->flush) && rc == 0)
        rc = ms < 0 ? pthread_cond_wait(&q->filled, &q->lock)
                    : pthread_cond_timedwait(&q->filled, &q->lock, &until);
    q->wanted = 0;
}

bool evq_wait(struct evq *q, struct event *ev, int ms)
{
    LOCKED(&q->lock);
    if (q->n == 0 && !q->closed && ms)
        sleep_for(q, 1, ms, false);
    return pop_event(q, ev);
}

void evq_rest(struct evq *q, int n, int ms)
{
    CHECK(n > 0 && ms >= 0);
    LOCKED(&q->lock);
    bool urgent = q->n >= min_int(n, q->cap) || q->closed || q->flush;
    for (int i = 0; i < q->n && !urgent; i++)
        urgent = !can_wait(q->ring[(q->head + i) % q->cap].kind);
    if (!urgent)
        sleep_for(q, min_int(n, q->cap), ms, true);
    q->flush = false;
}

void evq_flush(struct evq *q)
{
    LOCKED(&q->lock);
    q->flush = true;
    pthread_cond_signal(&q->filled);
}

void evq_close(struct evq *q)
{
    if (!q)
        return;
    LOCKED(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->filled);
    pthread_cond_broadcast(&q->drained);
}

bool evq_closed(struct evq *q)
{
    LOCKED(&q->lock);
    return q->closed && q->n == 0;
}
