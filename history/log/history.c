/* history.c - the writer: a thread that stores events in transactions (waiting.c), and what other
 * threads ask of it. */
#include "history/log/waiting.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    QUEUE = 4096,            /* events between the engine and this thread */
    BATCH_MS = 100,          /* an event waits at most this long for its commit */
    REST_EVENTS = 2048,      /* events that end a rest before that */
    CLOSE_MS = 2000,         /* closing retries for at most this long */
    SIDE_FILE_MS = 300,      /* closing writes the side file after this time */
    HASTE_MS = 100,          /* hastened closing checkpoints no log whose disk is slower */
};

/* ---- the thread ---- */

/* Milliseconds until the next commit or retry; -1: nothing waits. */
static int time_left(struct history *h)
{
    if (!h->n_wait || (!h->urgent && !h->retry_ns && storing_many(h)))
        return -1;
    uint64_t due = h->retry_ns ? h->retry_ns
                 : h->urgent   ? 0
                               : h->first_ns + (uint64_t)BATCH_MS * 1000000;
    uint64_t now = clock_ns();
    return due <= now ? 0 : (int)((due - now) / 1000000) + 1;
}

/* ---- closing ---- */

/* Counts the replies among the waiting events. *some: there is an event of a session that has rows,
 * or that has rows once the events are stored. */
static int count_waiting(const struct history *h, bool *some)
{
    int turns = 0;
    bool rows = h->w.cur.stored, reply = h->w.cur.reply != 0;
    *some = false;
    for (int i = 0; i < h->w.n_parked; i++) {
        rows |= h->w.parked[i].stored;
        reply |= h->w.parked[i].reply != 0;
    }
    for (int i = 0; i < h->n_wait; i++) {
        const struct event *ev = &h->wait[i].ev;
        bool open = reply || h->wait[i].level != LOG_OFF;
        turns += ev->kind == EV_TURN_END && open;
        rows |= ev->kind == EV_TURN_BEGIN && open;
        *some |= rows && (int)ev->kind != EV_MARK && ev->kind != EV_SESSION;
    }
    return turns;
}

/* Sets h->left for the thread that waits in history_finish(). True: no more retries are wanted. */
static bool publish_left(struct history *h)
{
    bool some;
    int turns = count_waiting(h, &some);
    FREED(free_at) char *name = side_file_name(h->w.db.path, h->w.live.id);
    LOCKED(&h->mu);
    h->left.turns = turns;
    h->left.some = some;
    snprintf(h->left.kept, sizeof h->left.kept, "%s", h->in_side_file ? name : "");
    h->left.failed = h->why[0] != '\0';
    snprintf(h->left.why, sizeof h->left.why, "%s", h->why);
    bool enough = h->give_up || !some;
    pthread_cond_broadcast(&h->flushed);
    return enough;
}

static void write_side_file(struct history *h)
{
    struct err e = {0};
    if (!h->in_side_file)
        h->in_side_file = side_file_write(&h->w, h->wait, h->n_wait, &e);
}

/* Marks the sessions as ended and releases their locks. On a late close these rows are not synced:
 * after a power cut the next start finds a session that ended like a killed one. */
static void store_ends(struct history *h, bool late)
{
    struct db *d = &h->w.db;
    if (late && h->w.has_wal)
        writer_sync(h, 1);
    else if (storing_many(h)) /* syncs all transactions */
        writer_sync(h, 2);
    if (db_do(d, "BEGIN IMMEDIATE", "") != SQLITE_OK)
        return;
    if (write_end_all(&h->w) == SQLITE_OK && session_unlock(d, &h->w.live, NULL) == SQLITE_OK)
        db_do(d, "COMMIT", "");
    db_rollback(d);
}

static void finish_writing(struct history *h)
{
    uint64_t from = clock_ns();
    bool some;
    publish_left(h);
    for (bool enough = false; h->n_wait && !enough;) {
        waiting_commit(h);
        count_waiting(h, &some);
        if (h->n_wait && some && clock_ns() - from > SIDE_FILE_MS * 1000000ull)
            write_side_file(h);
        enough = h->n_wait && publish_left(h);
        if (h->n_wait && !enough)
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    count_waiting(h, &some);
    if (h->n_wait && some)
        write_side_file(h);
    if (!h->n_wait && h->in_side_file)
        side_file_remove(h->w.db.path, h->w.live.id);
    bool late = closing_late(h, HASTE_MS);
    if (late)
        sqlite3_db_config(h->w.db.h, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    if (!h->n_wait)
        store_ends(h, late);
    if (!h->n_wait && !late)
        sqlite3_wal_checkpoint_v2(h->w.db.h, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    publish_left(h);
    LOCKED(&h->mu);
    h->finished = true;
    pthread_cond_broadcast(&h->flushed);
}

void history_hasten(struct history *h)
{
    LOCKED(&h->mu);
    if (!h->hastened_ns)
        h->hastened_ns = clock_ns();
}

bool history_finish(struct history *h, int ms, struct history_left *left)
{
    struct timespec until;
    evq_close(h->q);
    deadline_after(&until, ms);
    LOCKED(&h->mu);
    h->closing = true;
    for (int rc = 0; !h->finished && rc != ETIMEDOUT;)
        rc = pthread_cond_timedwait(&h->flushed, &h->mu, &until);
    *left = h->left;
    left->some |= !h->finished;
    if (!left->why[0]) /* the thread is in a commit that began before the queue was closed */
        snprintf(left->why, sizeof left->why, "still being stored");
    return h->finished && !h->left.some;
}

bool history_join(struct history *h, struct history_left *left)
{
    evq_close(h->q);
    pthread_mutex_lock(&h->mu);
    h->closing = h->give_up = true;
    pthread_mutex_unlock(&h->mu);
    if (!h->joined)
        pthread_join(h->thread, NULL);
    h->joined = true;
    *left = h->left;
    return !left->some;
}

static void *writer_main(void *arg)
{
    struct history *h = arg;
    while (!evq_closed(h->q)) {
        struct event ev;
        int left = time_left(h);
        /* events are waiting for their commit: those that join them need not wake this thread */
        if (left > 0)
            evq_rest(h->q, REST_EVENTS, left);
        bool got = evq_wait(h->q, &ev, left > 0 ? 0 : left);
        for (; got; got = !waiting_full(h) && evq_get(h->q, &ev))
            waiting_add(h, &ev);
        if (h->n_wait && (time_left(h) == 0 || (waiting_full(h) && !h->retry_ns)))
            waiting_commit(h);
    }
    finish_writing(h);
    return NULL;
}

static bool start_thread(struct history *h, struct err *e)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old); /* signals belong to the main thread */
    int rc = pthread_create(&h->thread, NULL, writer_main, h);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc == 0 || err_set(e, ERR_DB, "cannot start the log's thread: %s", strerror(rc));
}

/* ---- opening and closing ---- */

struct history *history_open(const char *path, enum log_level level,
                             const struct history_about *about, struct err *e)
{
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is then an error like a full disk */
    struct history *h = xcalloc(1, sizeof *h);
    h->w.live.fd = -1;
    h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->level = level;
    h->status.recording = level != LOG_OFF;
    if (h->wake < 0 || !writer_open(&h->w, path, h->status.notice, e)) {
        if (h->wake < 0)
            err_set(e, ERR_DB, "cannot open the log: %s", strerror(errno));
        else
            close(h->wake);
        free(h);
        return NULL;
    }
    about_copy(&h->w.about, about);
    h->q = evq_new(QUEUE);
    bool ok = h->q != NULL ||
              err_set(e, ERR_DB, "cannot make the log's queue: %s", strerror(errno));
    pthread_mutex_init(&h->mu, NULL);
    pthread_condattr_t steady;
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&h->flushed, &steady);
    pthread_condattr_destroy(&steady);
    if (ok && start_thread(h, e))
        return h;
    h->thread = pthread_self();
    history_close(h);
    return NULL;
}

void history_close(struct history *h)
{
    if (!h)
        return;
    struct history_left left;
    if (!pthread_equal(h->thread, pthread_self())) {
        history_finish(h, h->closing ? 0 : CLOSE_MS, &left);
        history_join(h, &left);
    }
    close(h->wake);
    for (int i = 0; i < h->n_wait; i++)
        event_free(&h->wait[i].ev);
    free(h->wait);
    cursors_free(&h->w);
    db_close(&h->w.db);
    live_close(&h->w.live);
    about_free(&h->w.about);
    texts_free(&h->w.texts);
    vocabulary_free(&h->vocab);
    if (h->has_described)
        about_free(&h->described);
    evq_free(h->q);
    pthread_cond_destroy(&h->flushed);
    pthread_mutex_destroy(&h->mu);
    free(h);
}

/* ---- for other threads ---- */

struct evq *history_queue(struct history *h)
{
    return h->q;
}

void history_level(struct history *h, enum log_level level)
{
    LOCKED(&h->mu);
    h->level = level;
    h->status.recording = level != LOG_OFF && !h->status.error[0];
}

void history_set_limit(struct history *h, const struct history_limit *l)
{
    pthread_mutex_lock(&h->mu);
    h->limit = *l;
    pthread_mutex_unlock(&h->mu);
    history_flush(h, 2000);
}

void history_store_many(struct history *h)
{
    LOCKED(&h->mu);
    h->many = true;
}

int history_fd(const struct history *h)
{
    return h->wake;
}

void history_status(struct history *h, struct history_status *s)
{
    uint64_t news;
    bool any = read(h->wake, &news, sizeof news) == sizeof news;
    (void)any;
    LOCKED(&h->mu);
    *s = h->status;
}

void history_describe(struct history *h, const struct history_about *about,
                      const struct history_texts *texts)
{
    struct history_about copy;
    struct vocabulary vocab = vocabulary_copy(texts);
    about_copy(&copy, about);
    LOCKED(&h->mu);
    vocabulary_free(&h->vocab);
    h->vocab = vocab;
    if (h->has_described)
        about_free(&h->described);
    h->described = copy;
    h->has_described = true;
}

bool history_lock_session(struct history *h, const char *session, bool *elsewhere, struct err *e)
{
    FREED(db_close) struct db d = {0};
    int turns, closed;
    *elsewhere = false;
    if (!open_existing(&d, h->w.db.path, SQLITE_OPEN_READWRITE, e))
        return false;
    /* the process that wrote the session last may have been killed since this one began, and have
     * left a side file, an open turn */
    side_files_store(&d, &h->w.live, &turns, NULL);
    bool ok = recover_dead(&d, &h->w.live, &closed) == SQLITE_OK ||
              db_fail(&d, e, "cannot close what a killed process left");
    db_rollback(&d);
    return ok && session_lock(&d, &h->w.live, session, elsewhere, e);
}

void history_unlock_session(struct history *h, const char *session)
{
    FREED(db_close) struct db d = {0};
    if (!open_existing(&d, h->w.db.path, SQLITE_OPEN_READWRITE, NULL))
        return;
    if (db_do(&d, "BEGIN IMMEDIATE", "") == SQLITE_OK &&
        session_unlock(&d, &h->w.live, session) == SQLITE_OK)
        db_do(&d, "COMMIT", "");
    db_rollback(&d);
}

bool history_flush(struct history *h, int ms)
{
    return history_flush_unless(h, ms, NULL);
}

uint64_t history_mark(struct history *h)
{
    pthread_mutex_lock(&h->mu);
    uint64_t mark = ++h->mark;
    pthread_mutex_unlock(&h->mu);
    struct event ev = {.kind = (enum event_kind)EV_MARK, .seq = mark, .ns = clock_ns()};
    return evq_put(h->q, &ev) ? mark : 0;
}

bool history_flush_unless(struct history *h, int ms, bool (*stop)(void))
{
    enum { SLICE_MS = 50 };
    const uint64_t until = clock_ns() + (uint64_t)ms * 1000000;
    const struct history_status *s = &h->status;
    struct timespec slice;
    uint64_t mark = history_mark(h);
    if (!mark)
        return false;
    LOCKED(&h->mu);
    while (s->mark_stored < mark && s->mark_failed < mark && clock_ns() < until &&
           !(stop && stop())) {
        int left = (int)((until - clock_ns()) / 1000000) + 1;
        deadline_after(&slice, stop && left > SLICE_MS ? SLICE_MS : left);
        pthread_cond_timedwait(&h->flushed, &h->mu, &slice);
    }
    return s->mark_stored >= mark;
}
