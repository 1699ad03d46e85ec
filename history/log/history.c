/* history.c - the writer: a thread that stores events in transactions.
 *
 * Events wait in memory until they are committed; one transaction applies all waiting events. If it
 * fails for any reason (no space, a locked file, an I/O error), nothing is lost: the transaction is
 * rolled back, the cursor restored, and the same events are retried. Always true:
 *   (1) acked_turns counts turns whose transaction was committed with synchronous=EXTRA
 *   (2) the queue is emptied even while writing fails, so the engine never waits for the disk
 *   (3) waiting events are bounded: beyond the bound steps and text pieces are dropped first (the
 *       end of a turn repeats its whole text and ids), then the newest events; `error` counts them
 */
#include "history/internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    QUEUE = 4096,            /* events between the engine and this thread */
    BATCH_MS = 100,          /* an event waits at most this long for its commit */
    BATCH_MAX = 4096,        /* events of one transaction, approximately */
    ROOM_KEPT = 1024,        /* a larger array of waiting events is freed when none waits */
    RETRY_MS = 250,          /* delay before a retry; doubles with each failure ... */
    RETRY_MAX_MS = 500,      /* ... up to this */
    PATIENCE_MS = 600,       /* a lock held longer than this is reported */
    CLOSE_MS = 2000,         /* closing retries for at most this long */
    SIDE_FILE_MS = 300,      /* closing writes the side file after this time */
    HASTE_MS = 100,          /* hastened closing checkpoints no log whose disk is slower, */
    DETAILS_MS = 200,        /* and leaves out the steps that are not written after this time */
    SHED_EVENTS = 32768,     /* waiting events beyond which details are dropped */
    MAX_EVENTS = 2 * SHED_EVENTS,
    EV_MARK = 1000,          /* an event kind of this file: history_mark() */
};
static const size_t SHED_BYTES = (size_t)32 << 20;

struct history {
    /* constant while the writer thread runs */
    struct evq *q;
    pthread_t thread;
    int wake; /* an eventfd, written when the status changes */

    /* the writer thread's; other threads read the constant w.db.path and w.live only */
    struct writer w;
    struct waiting *wait; /* (cap_wait) */
    int n_wait, cap_wait;
    size_t bytes;      /* of all waiting events */
    bool urgent;       /* commit as soon as the queue is empty */
    uint64_t first_ns; /* when the oldest waiting event arrived */
    int retry_ms;
    uint64_t failing_ns, retry_ns; /* since when commits fail, next retry; 0: none failed */
    uint64_t dropped;
    int sync; /* the connection's synchronous: 1 NORMAL, 2 EXTRA (FULL, and the folder is synced
                 where a journal is deleted); 0: not set */
    char why[200]; /* the last failure's reason */
    bool in_side_file; /* a side file holds the waiting events */
    bool blocked;      /* the log is full: turns that begin now are not stored */
    bool limit_changed; /* status.limit changed since set_status() */

    /* shared by the writer thread and its callers, all of it under mu */
    pthread_mutex_t mu;
    pthread_cond_t flushed;
    uint64_t mark; /* the newest EV_MARK */
    enum log_level level;
    bool closing;  /* history_finish() was called */
    uint64_t hastened_ns; /* when history_hasten() was called; 0: it was not */
    bool joined;   /* the thread was joined */
    bool give_up;  /* no more retries */
    bool finished; /* the thread ended */
    struct history_left left; /* while closing */
    struct history_about described; /* by history_describe(), not yet moved to w.about, ... */
    struct vocabulary vocab;        /* ... and to w.texts */
    bool has_described;
    struct history_limit limit;
    struct history_status status;
};

/* ---- struct history_about: strings only ---- */

static void copy_about(struct history_about *to, const struct history_about *from)
{
    const char *const *src = (const char *const *)from;
    const char **dst = (const char **)to;
    _Static_assert(sizeof *to % sizeof *dst == 0, "struct history_about holds strings only");
    for (size_t i = 0; i < sizeof *to / sizeof *dst; i++)
        dst[i] = xstrdup(src[i] ? src[i] : "");
}

/* The monotonic time `ms` milliseconds from now. */
static void deadline(struct timespec *t, int ms)
{
    clock_gettime(CLOCK_MONOTONIC, t);
    t->tv_sec += ms / 1000;
    t->tv_nsec += ms % 1000 * 1000000L;
    t->tv_sec += t->tv_nsec / 1000000000L;
    t->tv_nsec %= 1000000000L;
}

/* ---- the size of the log ---- */

static void set_status(struct history *h, const char *why);

/* Reads the database's size and updates status.bytes and status.limit. */
static void measure(struct history *h)
{
    const double mb = 1e6;
    int64_t bytes;
    db_bytes(&h->w.db, true, &bytes);
    pthread_mutex_lock(&h->mu);
    struct history_status *s = &h->status;
    double have = (double)(s->bytes = bytes), most = (double)h->limit.max_bytes;
    s->limit[0] = '\0';
    s->room_left = most <= 0 || have < 0.9 * most ? ROOM_ENOUGH
                   : have < most                  ? ROOM_LITTLE
                                                  : ROOM_NONE;
    if (s->room_left == ROOM_NONE)
        snprintf(s->limit, sizeof s->limit, "the log is full: %.1f of %.1f MB (max-size); "
                                            "%s aerie db prune makes"
                 " room", have / mb, most / mb, h->limit.stop ? "new turns are not saved,"
                 : "saving goes on,");
    else if (s->room_left == ROOM_LITTLE)
        snprintf(s->limit, sizeof s->limit, "the log is %.0f%% full: %.1f of %.1f MB (max-size); "
                                            "aerie db prune makes"
                 " room", 100 * have / most, have / mb, most / mb);
    pthread_mutex_unlock(&h->mu);
}

/* Before a turn: sets `blocked`. */
static void judge_size(struct history *h)
{
    bool was = h->blocked;
    pthread_mutex_lock(&h->mu);
    bool stops = h->limit.stop && h->limit.max_bytes > 0;
    pthread_mutex_unlock(&h->mu);
    if (was && stops) /* another process may have made room */
        measure(h);
    pthread_mutex_lock(&h->mu);
    h->blocked = stops && h->status.bytes >= h->limit.max_bytes;
    pthread_mutex_unlock(&h->mu);
    if (was != h->blocked)
        set_status(h, NULL);
}

/* ---- waiting events ---- */

static size_t event_bytes(const struct event *ev)
{
    return sizeof *ev + ev->text.cap + (size_t)ev->tokens.cap * sizeof *ev->tokens.v +
           (ev->facts ? (size_t)ev->tokens.n * sizeof *ev->facts : 0) +
           (ev->tree ? sizeof *ev->tree : 0) + (size_t)ev->n_pages * sizeof *ev->pages;
}

static bool is_detail(const struct event *ev)
{
    return ev->kind == EV_STEP || ev->kind == EV_TEXT;
}

/* Whether closing was hastened more than ms ago. */
static bool is_late(struct history *h, int ms)
{
    pthread_mutex_lock(&h->mu);
    uint64_t since = h->hastened_ns;
    pthread_mutex_unlock(&h->mu);
    return since && clock_ns() - since > (uint64_t)ms * 1000000;
}

static void drop_details(struct history *h)
{
    int kept = 0;
    for (int i = 0; i < h->n_wait; i++) {
        struct waiting *x = &h->wait[i];
        if (is_detail(&x->ev)) {
            h->dropped++;
            h->bytes -= x->bytes;
            event_free(&x->ev);
        } else {
            h->wait[kept++] = *x;
        }
    }
    h->n_wait = kept;
}

/* Whether one more event may wait, by rule (3) above; drops details if needed. */
static bool make_room(struct history *h, const struct event *ev)
{
    bool over = h->n_wait >= SHED_EVENTS || h->bytes >= SHED_BYTES;
    if (over && (int)ev->kind == EV_MARK)
        return true;
    if (over)
        drop_details(h);
    bool still = h->n_wait >= SHED_EVENTS || h->bytes >= SHED_BYTES;
    return !(still && is_detail(ev)) && h->n_wait < MAX_EVENTS && h->bytes < 2 * SHED_BYTES;
}

static void enqueue(struct history *h, struct event *ev)
{
    if (ev->kind == EV_PREFILL) { /* progress only, not stored */
        event_free(ev);
        return;
    }
    if (!make_room(h, ev)) {
        h->dropped++;
        event_free(ev);
        return;
    }
    if (h->n_wait == h->cap_wait) {
        h->cap_wait = h->cap_wait ? 2 * h->cap_wait : 256;
        h->wait = xrealloc(h->wait, (size_t)h->cap_wait, sizeof *h->wait);
    }
    if (h->n_wait == 0)
        h->first_ns = clock_ns();
    if (ev->kind == EV_TURN_BEGIN)
        judge_size(h);
    pthread_mutex_lock(&h->mu);
    enum log_level level = h->blocked ? LOG_OFF : h->level;
    h->status.left_out += h->blocked && h->level != LOG_OFF && ev->kind == EV_TURN_BEGIN;
    pthread_mutex_unlock(&h->mu);
    h->urgent |= ev->kind == EV_TURN_BEGIN || ev->kind == EV_TURN_END || ev->kind == EV_FAULT ||
                 (int)ev->kind == EV_MARK;
    size_t bytes = event_bytes(ev);
    h->bytes += bytes;
    h->wait[h->n_wait++] = (struct waiting){.ev = *ev, .level = level, .bytes = bytes};
}

/* Drops a waiting event that cannot be stored. */
static void drop_event(struct history *h, int i)
{
    h->bytes -= h->wait[i].bytes;
    event_free(&h->wait[i].ev);
    memmove(h->wait + i, h->wait + i + 1, (size_t)(--h->n_wait - i) * sizeof *h->wait);
    h->dropped++;
}

/* ---- one transaction ---- */

/* Whether a retry may succeed; any other failure is caused by the event itself. */
static bool is_retryable(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_FULL: case SQLITE_IOERR: case SQLITE_BUSY: case SQLITE_LOCKED: case SQLITE_READONLY:
    case SQLITE_CANTOPEN: case SQLITE_NOMEM: case SQLITE_CORRUPT: case SQLITE_NOTADB:
    case SQLITE_PERM: case SQLITE_AUTH: case SQLITE_PROTOCOL: case SQLITE_INTERRUPT:
    case SQLITE_SCHEMA:
        return true;
    }
    return false;
}

static int set_sync(struct history *h, int sync)
{
    if (h->sync == sync)
        return SQLITE_OK;
    int rc = sync == 2 ? db_do(&h->w.db, "PRAGMA synchronous=EXTRA", "")
                       : db_do(&h->w.db, "PRAGMA synchronous=NORMAL", "");
    h->sync = rc ? 0 : sync;
    return rc;
}

/* Applies and commits all waiting events. *bad: index of the event that failed; -1: none did.
 * *skipped: details that were left out, because the program ends. */
static int apply_waiting(struct history *h, int *bad, uint64_t *ended, uint64_t *mark,
                         uint64_t *skipped)
{
    enum { LOOK = 64 }; /* events between two looks at the time */
    int rc = db_do(&h->w.db, "BEGIN IMMEDIATE", "");
    bool late = false;
    *bad = -1;
    *ended = *skipped = 0;
    for (int i = 0; !rc && i < h->n_wait; i++) {
        bool end = false;
        late = late || (i % LOOK == 0 && is_late(h, DETAILS_MS));
        if (late && is_detail(&h->wait[i].ev))
            *skipped += 1;
        else if ((int)h->wait[i].ev.kind == EV_MARK)
            *mark = h->wait[i].ev.seq;
        else
            rc = write_event(&h->w, &h->wait[i].ev, h->wait[i].level, &end);
        *ended += end;
        if (rc)
            *bad = i;
    }
    if (!rc)
        rc = write_commit(&h->w);
    if (!rc && h->in_side_file)
        rc = side_file_note_stored(&h->w.db, h->w.live.id);
    return rc ? rc : db_do(&h->w.db, "COMMIT", "");
}

static bool has_turn_end(const struct history *h)
{
    for (int i = 0; i < h->n_wait; i++)
        if (h->wait[i].ev.kind == EV_TURN_END)
            return true;
    return false;
}

/* Runs one transaction. On failure neither the database nor the cursor has changed, and why[] holds
 * the reason. */
static int try_transaction(struct history *h, int *bad, uint64_t *ended, uint64_t *mark,
                           char why[200])
{
    struct cursors_saved before;
    cursors_save(&h->w, &before);
    uint64_t skipped = 0;
    *bad = -1;
    /* with a rollback journal, a commit that is not synced at once could damage the file */
    int rc = set_sync(h, has_turn_end(h) || !h->w.has_wal ? 2 : 1);
    if (!rc)
        rc = apply_waiting(h, bad, ended, mark, &skipped);
    texts_ended(&h->w.texts, !rc);
    if (!rc) {
        h->dropped += skipped;
        cursors_drop(&before);
        return rc;
    }
    db_why(&h->w.db, why);
    db_rollback(&h->w.db);
    cursors_restore(&h->w, &before);
    return rc;
}

/* Whether the open database file was renamed or deleted: rows written to it would be lost. */
static bool file_moved(struct history *h)
{
    int moved = 0;
    sqlite3_file_control(h->w.db.h, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    return moved;
}

static void adopt_about(struct history *h)
{
    pthread_mutex_lock(&h->mu);
    if (h->has_described) {
        about_free(&h->w.about);
        h->w.about = h->described;
        texts_take(&h->w.texts, &h->vocab);
        h->has_described = false;
    }
    pthread_mutex_unlock(&h->mu);
}

static void notify_status(struct history *h)
{
    uint64_t one = 1;
    CHECK(write(h->wake, &one, sizeof one) == sizeof one || errno == EAGAIN);
}

static void set_status(struct history *h, const char *why)
{
    struct history_status *s = &h->status;
    pthread_mutex_lock(&h->mu);
    struct history_status was = *s;
    if (!why && !h->dropped)
        snprintf(s->error, sizeof s->error, "%s", h->blocked ? s->limit : "");
    else if (h->dropped)
        snprintf(s->error, sizeof s->error, "%llu events%s%s",
                 (unsigned long long)h->dropped, why ? ": " : "", why ? why : "");
    else
        snprintf(s->error, sizeof s->error, "%s", why);
    s->queued = (uint64_t)h->n_wait;
    s->room = (uint64_t)h->cap_wait;
    s->recording = h->level != LOG_OFF && !why && !h->blocked;
    bool changed = was.recording != s->recording || strcmp(was.error, s->error) != 0 ||
                   h->limit_changed;
    h->limit_changed = false;
    pthread_mutex_unlock(&h->mu);
    if (changed)
        notify_status(h);
}

/* lost: an event of the transaction could not be stored and was dropped. */
static void commit_succeeded(struct history *h, uint64_t ended, uint64_t mark, bool lost)
{
    for (int i = 0; i < h->n_wait; i++)
        event_free(&h->wait[i].ev);
    h->n_wait = 0;
    h->bytes = 0;
    if (h->cap_wait > ROOM_KEPT) { /* up to 32 MB after a time in which nothing could be stored */
        free(h->wait);
        h->wait = NULL;
        h->cap_wait = 0;
    }
    h->urgent = false;
    h->failing_ns = h->retry_ns = 0;
    h->retry_ms = 0;
    h->why[0] = '\0';
    char was[sizeof h->status.limit];
    memcpy(was, h->status.limit, sizeof was); /* only this thread writes it */
    measure(h);
    h->limit_changed = strcmp(was, h->status.limit) != 0;
    set_status(h, NULL);
    pthread_mutex_lock(&h->mu);
    h->status.acked_turns += ended;
    if (mark && lost)
        h->status.mark_failed = mark;
    else if (mark)
        h->status.mark_stored = mark;
    pthread_cond_broadcast(&h->flushed);
    pthread_mutex_unlock(&h->mu);
    if (mark)
        notify_status(h);
}

/* Ends the waits for marks whose commit failed. */
static void give_up_marks(struct history *h)
{
    uint64_t mark = 0;
    for (int i = 0; i < h->n_wait; i++)
        if ((int)h->wait[i].ev.kind == EV_MARK)
            mark = h->wait[i].ev.seq;
    if (!mark)
        return;
    pthread_mutex_lock(&h->mu);
    h->status.mark_failed = mark;
    pthread_cond_broadcast(&h->flushed);
    pthread_mutex_unlock(&h->mu);
    notify_status(h);
}

static void commit_failed(struct history *h, int rc, const char *why)
{
    uint64_t now = clock_ns();
    if (!h->failing_ns)
        h->failing_ns = now;
    h->retry_ms = h->retry_ms ? min_int(2 * h->retry_ms, RETRY_MAX_MS) : RETRY_MS;
    h->retry_ns = now + (uint64_t)h->retry_ms * 1000000;
    snprintf(h->why, sizeof h->why, "%s", why);
    bool busy = (rc & 0xff) == SQLITE_BUSY,
        brief = busy && now - h->failing_ns < PATIENCE_MS * 1000000ull;
    if (!brief)
        set_status(h, why);
    if (!busy) /* if another process has the lock, those who wait for marks wait on */
        give_up_marks(h);
}

static void commit(struct history *h)
{
    adopt_about(h);
    for (bool lost = false;; lost = true) {
        uint64_t ended = 0, mark = 0;
        int bad = -1;
        char why[200] = "the log's file was moved or deleted; restart aerie to begin a new one";
        int rc = file_moved(h) ? SQLITE_CANTOPEN : try_transaction(h, &bad, &ended, &mark, why);
        if (!rc) {
            commit_succeeded(h, ended, mark, lost);
            return;
        }
        if (is_retryable(rc) || bad < 0) {
            commit_failed(h, rc, why);
            return;
        }
        drop_event(h, bad);
    }
}

/* ---- the thread ---- */

/* Milliseconds until the next commit or retry; -1: nothing waits. */
static int time_left(const struct history *h)
{
    if (!h->n_wait)
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
    char *name = side_file_name(h->w.db.path, h->w.live.id);
    pthread_mutex_lock(&h->mu);
    h->left.turns = turns;
    h->left.some = some;
    snprintf(h->left.kept, sizeof h->left.kept, "%s", h->in_side_file ? name : "");
    h->left.failed = h->why[0] != '\0';
    snprintf(h->left.why, sizeof h->left.why, "%s", h->why);
    bool enough = h->give_up || !some;
    pthread_cond_broadcast(&h->flushed);
    pthread_mutex_unlock(&h->mu);
    free(name);
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
        set_sync(h, 1);
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
        commit(h);
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
    bool late = is_late(h, HASTE_MS);
    if (late)
        sqlite3_db_config(h->w.db.h, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    if (!h->n_wait)
        store_ends(h, late);
    if (!h->n_wait && !late)
        sqlite3_wal_checkpoint_v2(h->w.db.h, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    publish_left(h);
    pthread_mutex_lock(&h->mu);
    h->finished = true;
    pthread_cond_broadcast(&h->flushed);
    pthread_mutex_unlock(&h->mu);
}

void history_hasten(struct history *h)
{
    pthread_mutex_lock(&h->mu);
    if (!h->hastened_ns)
        h->hastened_ns = clock_ns();
    pthread_mutex_unlock(&h->mu);
}

bool history_finish(struct history *h, int ms, struct history_left *left)
{
    struct timespec until;
    evq_close(h->q);
    deadline(&until, ms);
    pthread_mutex_lock(&h->mu);
    h->closing = true;
    for (int rc = 0; !h->finished && rc != ETIMEDOUT;)
        rc = pthread_cond_timedwait(&h->flushed, &h->mu, &until);
    *left = h->left;
    left->some |= !h->finished;
    if (!left->why[0]) /* the thread is in a commit that began before the queue was closed */
        snprintf(left->why, sizeof left->why, "still being stored");
    bool done = h->finished && !h->left.some;
    pthread_mutex_unlock(&h->mu);
    return done;
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
            evq_rest(h->q, BATCH_MAX / 2, left);
        bool got = evq_wait(h->q, &ev, left > 0 ? 0 : left);
        for (; got; got = h->n_wait < BATCH_MAX && evq_get(h->q, &ev))
            enqueue(h, &ev);
        if (h->n_wait && (time_left(h) == 0 || (h->n_wait >= BATCH_MAX && !h->retry_ns)))
            commit(h);
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
    copy_about(&h->w.about, about);
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
    pthread_mutex_lock(&h->mu);
    h->level = level;
    h->status.recording = level != LOG_OFF && !h->status.error[0];
    pthread_mutex_unlock(&h->mu);
}

void history_set_limit(struct history *h, const struct history_limit *l)
{
    pthread_mutex_lock(&h->mu);
    h->limit = *l;
    pthread_mutex_unlock(&h->mu);
    history_flush(h, 2000);
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
    pthread_mutex_lock(&h->mu);
    *s = h->status;
    pthread_mutex_unlock(&h->mu);
}

void history_describe(struct history *h, const struct history_about *about,
                      const struct history_texts *texts)
{
    struct history_about copy;
    struct vocabulary vocab = vocabulary_copy(texts);
    copy_about(&copy, about);
    pthread_mutex_lock(&h->mu);
    vocabulary_free(&h->vocab);
    h->vocab = vocab;
    if (h->has_described)
        about_free(&h->described);
    h->described = copy;
    h->has_described = true;
    pthread_mutex_unlock(&h->mu);
}

bool history_lock_session(struct history *h, const char *session, bool *elsewhere, struct err *e)
{
    struct db d;
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
    ok = ok && session_lock(&d, &h->w.live, session, elsewhere, e);
    db_close(&d);
    return ok;
}

void history_unlock_session(struct history *h, const char *session)
{
    struct db d;
    if (!open_existing(&d, h->w.db.path, SQLITE_OPEN_READWRITE, NULL))
        return;
    if (db_do(&d, "BEGIN IMMEDIATE", "") == SQLITE_OK &&
        session_unlock(&d, &h->w.live, session) == SQLITE_OK)
        db_do(&d, "COMMIT", "");
    db_rollback(&d);
    db_close(&d);
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
    pthread_mutex_lock(&h->mu);
    while (s->mark_stored < mark && s->mark_failed < mark && clock_ns() < until &&
           !(stop && stop())) {
        int left = (int)((until - clock_ns()) / 1000000) + 1;
        deadline(&slice, stop && left > SLICE_MS ? SLICE_MS : left);
        pthread_cond_timedwait(&h->flushed, &h->mu, &slice);
    }
    bool done = s->mark_stored >= mark;
    pthread_mutex_unlock(&h->mu);
    return done;
}
