/* waiting.c - the events that wait in memory, and the transactions that store them.
 *
 * One transaction applies all waiting events. If it fails for any reason (no space, a locked file,
 * an I/O error), nothing is lost: the transaction is rolled back, the cursor restored, and the same
 * events are retried. Always true:
 *   (1) acked_turns counts turns whose transaction was committed with synchronous=EXTRA
 *   (2) the queue is emptied even while writing fails, so the engine never waits for the disk
 *   (3) waiting events are bounded: beyond the bound steps and text pieces are dropped first (the
 *       end of a turn repeats its whole text and ids), then the newest events; `error` counts them
 */
#include "history/log/waiting.h"

#include <errno.h>
#include <unistd.h>

enum {
    ROOM_KEPT = 1024,        /* a larger array of waiting events is freed when none waits */
    RETRY_MS = 250,          /* delay before a retry; doubles with each failure ... */
    RETRY_MAX_MS = 500,      /* ... up to this */
    PATIENCE_MS = 600,       /* a lock held longer than this is reported */
    DETAILS_MS = 200,        /* hastened closing leaves out the steps not written by this time */
    SHED_EVENTS = 32768,     /* waiting events beyond which details are dropped */
    MAX_EVENTS = 2 * SHED_EVENTS,
    BATCH_MAX = 4096,        /* events of one transaction, approximately, ... */
    MANY_MAX = 16384,        /* ... of history_store_many(); of at most MANY_BYTES then */
};
static const size_t SHED_BYTES = (size_t)32 << 20, MANY_BYTES = (size_t)16 << 20;

/* ---- struct history_about: strings only ---- */

void about_copy(struct history_about *to, const struct history_about *from)
{
    const char *const *src = (const char *const *)from;
    const char **dst = (const char **)to;
    _Static_assert(sizeof *to % sizeof *dst == 0, "struct history_about holds strings only");
    for (size_t i = 0; i < sizeof *to / sizeof *dst; i++)
        dst[i] = xstrdup(src[i] ? src[i] : "");
}

/* The monotonic time `ms` milliseconds from now. */
void deadline_after(struct timespec *t, int ms)
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
    LOCKED(&h->mu);
    struct history_status *s = &h->status;
    double have = (double)(s->bytes = bytes), most = (double)h->limit.max_bytes;
    s->limit[0] = '\0';
    s->room_left = most <= 0 || have < 0.9 * most ? ROOM_ENOUGH
                   : have < most                  ? ROOM_LITTLE
                                                  : ROOM_NONE;
    if (s->room_left == ROOM_NONE)
        snprintf(s->limit, sizeof s->limit, "the log is full: %.1f of %.1f MB (max-size); %s aerie "
                                            "db prune makes room",
                 have / mb, most / mb, h->limit.stop ? "new turns are not saved,"
                 : "saving goes on,");
    else if (s->room_left == ROOM_LITTLE)
        snprintf(s->limit, sizeof s->limit, "the log is %.0f%% full: %.1f of %.1f MB (max-size); "
                                            "aerie db prune makes room",
                 100 * have / most, have / mb, most / mb);
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
bool closing_late(struct history *h, int ms)
{
    LOCKED(&h->mu);
    uint64_t since = h->hastened_ns;
    return since && clock_ns() - since > (uint64_t)ms * 1000000;
}

bool storing_many(struct history *h)
{
    LOCKED(&h->mu);
    return h->many;
}

bool waiting_full(struct history *h)
{
    return storing_many(h) ? h->n_wait >= MANY_MAX || h->bytes >= MANY_BYTES
                           : h->n_wait >= BATCH_MAX;
}

static void drop_details(struct history *h)
{
    int kept = 0;
    FOR_EACH(struct waiting, x, h->wait, h->n_wait) {
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

void waiting_add(struct history *h, struct event *ev)
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
    RESERVE(h->wait, h->n_wait + 1, h->cap_wait);
    if (h->n_wait == 0)
        h->first_ns = clock_ns();
    if (ev->kind == EV_TURN_BEGIN)
        judge_size(h);
    pthread_mutex_lock(&h->mu);
    enum log_level level = h->blocked ? LOG_OFF : h->level;
    h->status.left_out += h->blocked && h->level != LOG_OFF && ev->kind == EV_TURN_BEGIN;
    bool many = h->many;
    pthread_mutex_unlock(&h->mu);
    h->urgent |= (int)ev->kind == EV_MARK ||
                 (!many && (ev->kind == EV_TURN_BEGIN || ev->kind == EV_TURN_END ||
                            ev->kind == EV_FAULT));
    size_t bytes = event_bytes(ev);
    h->bytes += bytes;
    h->wait[h->n_wait++] = (struct waiting){.ev = *ev, .level = level, .bytes = bytes};
}

/* Drops a waiting event that cannot be stored. */
static void drop_event(struct history *h, int i)
{
    h->bytes -= h->wait[i].bytes;
    event_free(&h->wait[i].ev);
    CUT(h->wait, h->n_wait, i);
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

int writer_sync(struct history *h, int sync)
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
    bool late = false, many = storing_many(h);
    *bad = -1;
    *ended = *skipped = 0;
    for (int i = 0; !rc && i < h->n_wait; i++) {
        bool end = false;
        late = late || (!many && i % LOOK == 0 && closing_late(h, DETAILS_MS));
        if (late && is_detail(&h->wait[i].ev))
            *skipped += 1;
        else if ((int)h->wait[i].ev.kind == EV_MARK)
            *mark = h->wait[i].ev.seq;
        else
            rc = write_event(&h->w, &h->wait[i].ev, h->wait[i].level, &end);
        *ended += end && !many;
        if (rc)
            *bad = i;
    }
    return rc ?:
           write_commit(&h->w) ?:
           (h->in_side_file ? side_file_note_stored(&h->w.db, h->w.live.id) : SQLITE_OK) ?:
           db_do(&h->w.db, "COMMIT", "");
}

static bool has_turn_end(const struct history *h)
{
    return ANY(i, h->n_wait, h->wait[i].ev.kind == EV_TURN_END);
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
    int rc = writer_sync(h, (has_turn_end(h) && !storing_many(h)) || !h->w.has_wal ? 2 : 1) ?:
             apply_waiting(h, bad, ended, mark, &skipped);
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
    LOCKED(&h->mu);
    if (h->has_described) {
        about_free(&h->w.about);
        h->w.about = h->described;
        texts_take(&h->w.texts, &h->vocab);
        h->has_described = false;
    }
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
        DROP(h->wait);
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

void waiting_commit(struct history *h)
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
