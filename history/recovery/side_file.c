/* side_file.c - keeps turns that could not be stored when the log was closed in a second log beside
 * the first.
 *
 * The same writer applies the waiting events to an empty log in memory. Its bytes become the file
 * PATH.unsaved-WRITER (0600), sealed as a pack is: written under a temporary name, synced, renamed.
 * A session, run or reply that the first log has already is begun in the second one, too. The next
 * start copies the rows, with new ids, in one transaction that also adds the writer to `taken`, and
 * then removes the file. A file whose writer is in `taken` is removed, its rows are not copied. So
 * each row is stored exactly once, whenever either process is killed.
 */
#include "history/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { MAX_FILE = 256 << 20, BUSY_MS = 500 };

/* ---- writing ---- */

char *side_file_name(const char *path, int64_t writer)
{
    return xasprintf("%s.unsaved-%016llx", path, (unsigned long long)writer);
}

/* What the log has already of a session: its row, the run, and the reply in progress. */
static int begin_again(struct writer *w)
{
    struct cursor *c = &w->cur;
    if (!c->stored)
        return SQLITE_OK;
    c->stored = false;
    int rc = store_session(w, &(struct event){.ns = clock_ns()});
    return rc || !c->reply ? rc : insert_reply(w, clock_unix_ms());
}

static int fill(struct writer *w, const struct waiting *wait, int n)
{
    bool end;
    int rc = cursors_each(w, begin_again) ?: db_do(&w->db, "UPDATE session SET updated_ms=0", "");
    for (int i = 0; !rc && i < n; i++) /* an event that fails here can be stored in no log */
        (void)write_event(w, &wait[i].ev, wait[i].level, &end);
    return rc ?:
           write_commit(w) ?:
           write_end_all(w);
}

static bool save(struct db *d, const char *name, struct err *e)
{
    FREED(free_at) char *temp = xasprintf("%s.part", name);
    unlink(temp);
    bool ok = pack_save(temp, d, e);
    if (ok && rename(temp, name) != 0)
        ok = err_set(e, ERR_DB, "cannot write %s: %s", name, strerror(errno));
    if (ok)
        file_sync_folder(name);
    else
        unlink(temp);
    return ok;
}

bool side_file_write(struct writer *w, const struct waiting *wait, int n, struct err *e)
{
    FREED(cursors_free) struct writer side = {.live = w->live, .about = w->about, .aside = true};
    struct cursors_saved cursors;
    FREED(free_at) char *name = side_file_name(w->db.path, w->live.id);
    cursors_save(w, &cursors);
    cursors_restore(&side, &cursors);
    bool ok = db_open(&side.db, ":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, e) &&
              schema_make(&side.db, e) && db_exec(&side.db, "BEGIN", e) &&
              (fill(&side, wait, n) == SQLITE_OK || db_fail(&side.db, e, "cannot keep events")) &&
              db_exec(&side.db, "COMMIT", e) && save(&side.db, name, e);
    db_close(&side.db);
    return ok;
}

int side_file_note_stored(struct db *d, int64_t writer)
{
    return db_do(d, "INSERT OR IGNORE INTO taken(id) VALUES(?)", "b", &writer, sizeof writer) ?:
           head_state(d);
}

void side_file_remove(const char *path, int64_t writer)
{
    FREED(free_at) char *name = side_file_name(path, writer);
    if (unlink(name) == 0)
        file_sync_folder(name);
}

bool side_file_exists(const char *path, int64_t writer)
{
    FREED(free_at) char *name = side_file_name(path, writer);
    return !file_missing(name);
}

/* ---- storing side files ---- */

struct taking {
    struct writer w; /* of the log; w.cur: the session whose rows are copied */
    struct db side;
    int64_t turn, step, event; /* what is added to the ids of such rows: the log's highest */
    int asked; /* the turn in the side file whose message was copied last; 0: none */
    int turns; /* replies that were copied */
};

/* The log's id of a row of the side file. */
static int64_t moved(int64_t id, int64_t by)
{
    return (int64_t)((uint64_t)id + (uint64_t)by);
}

/* Its first run may continue one that the log has. */
static int take_run(struct taking *t, int64_t id)
{
    struct cursor *c = &t->w.cur;
    struct db *d = &t->w.db;
    int64_t ms = 0;
    int rc = db_int(d, &c->run, 0, "SELECT id FROM run WHERE session_id=? AND writer=? AND ended=0",
                    "si", c->session, t->w.live.id) ?:
             db_int(&t->side, &ms, 0, "SELECT created_ms FROM run WHERE id=?", "i", id);
    uint64_t age = (uint64_t)clock_unix_ms() - (uint64_t)ms;
    c->stored = false;
    if (!rc && !c->run) /* seals what was copied before this run */
        rc = chain_seal(d, c->session);
    return rc ?:
           (!c->run ? store_session(&t->w, &(struct event){.ns = clock_ns() - age * 1000000u})
                    : SQLITE_OK) ?:
           db_do(d, "UPDATE run SET ended=1 WHERE id=?", "i", c->run);
}

static int take_event(struct taking *t, int64_t id)
{
    bool whole;
    const struct put put[] = {{PUT_MORE, "id", t->event},
                              {PUT_MORE, "turn", t->w.cur.shift},
                              {PUT_NULL, "link", 0},
                              {PUT_NULL, "sum", 0},
                              {PUT_END, NULL, 0}};
    return rows_copy(db_prepare(&t->side, NULL, "SELECT * FROM event WHERE id=?", "i", id),
                     &t->w.db, "event", put, &whole) ?:
           (whole ? SQLITE_OK : SQLITE_CORRUPT) ?:
           chain_add(&t->w.db, t->w.cur.session, LINK_EVENT, moved(id, t->event));
}

/* Makes room for a reply whose message the log has: its row, without its steps, is removed. *row is
 * its id; 0: the log has no such reply in progress. */
static int continue_reply(struct taking *t, int n, int64_t *row, int64_t *ms)
{
    struct db *d = &t->w.db;
    return db_int(d, row, 0, "SELECT id FROM turn WHERE run_id=? AND n=? AND stop=''", "ii",
                  t->w.cur.run, (int64_t)n) ?:
           db_int(d, ms, 0, "SELECT created_ms FROM turn WHERE id=?", "i", *row) ?:
           (*row ? db_do(d, "INSERT INTO turn_fts(turn_fts, rowid, text) VALUES('delete',?,'')",
                         "i", *row)
                 : SQLITE_OK) ?:
           db_do(d, "DELETE FROM turn WHERE id=?", "i", *row);
}

/* A turn row that lies in the side file: ended, or (a reply) still open. */
static int take_turn(struct taking *t, int64_t id, int n, bool is_user, bool ended)
{
    struct cursor *c = &t->w.cur;
    struct db *d = &t->w.db;
    int64_t last, row = moved(id, t->turn), ms = 0;
    bool whole = true, again = !is_user && n != t->asked;
    int rc = SQLITE_OK;
    if (is_user && !(rc = assign_turn_number(&t->w, &(struct event){.turn = n}, &last)))
        rc = number_session(&t->w);
    else if (again)
        rc = continue_reply(t, n, &row, &ms);
    if (rc || !row)
        return rc;
    t->asked = is_user ? n : t->asked;
    const struct put own[] = {{PUT_VALUE, "id", row},
                              {PUT_VALUE, "run_id", c->run},
                              {PUT_VALUE, "n", again ? n : c->n},
                              {PUT_MORE, "change_turn", c->shift},
                              {PUT_NULL, "link", 0},
                              {PUT_NULL, "sum", 0},
                              {again ? PUT_VALUE : PUT_END, "created_ms", ms},
                              {PUT_END, NULL, 0}};
    const struct put rest[] = {{PUT_VALUE, "turn_id", row},
                               {PUT_MORE, "id", t->step},
                               {PUT_MORE, "step_id", t->step},
                               {PUT_END, NULL, 0}};
    if (again && ended)
        rc = db_do(d, "DELETE FROM turn_part WHERE turn_id=? AND channel=0", "i", row);
    rc = rc ?: turn_copy(&t->side, d, id, own, rest, &whole) ?:
         (whole ? SQLITE_OK : SQLITE_CORRUPT) ?:
         db_do(d, "INSERT INTO turn_fts(rowid, text) SELECT id, text FROM turn WHERE id=?", "i",
               row);
    t->turns += !is_user && ended;
    return rc ?: ended ? chain_add(d, c->session, LINK_TURN, row) : recover_turn(d, row);
}

/* Copies the records of w.cur's session. A reply that did not end follows its message. */
static int take_records(struct taking *t)
{
    sqlite3_stmt *st = db_prepare(
        &t->side, NULL,
        "SELECT 0, id, 0, 0, 1, link FROM run WHERE session_id=?1 UNION ALL"
        " SELECT 1, id, 0, 0, 1, link FROM event WHERE session_id=?1 UNION ALL"
        " SELECT 2, id, n, role='user', link NOT NULL, coalesce(link, (SELECT u.link + 0.5 FROM"
        "  turn u WHERE u.session_id=?1 AND u.n=t.n AND u.role='user'), 1.5) FROM turn t WHERE"
        "  session_id=?1 ORDER BY 6",
        "s", t->w.cur.session);
    int rc = SQLITE_OK, read = SQLITE_ERROR;
    while (st && !rc && (read = sqlite3_step(st)) == SQLITE_ROW) {
        int kind = sqlite3_column_int(st, 0);
        int64_t id = sqlite3_column_int64(st, 1);
        rc = kind == LINK_RUN     ? take_run(t, id)
             : kind == LINK_EVENT ? take_event(t, id)
                                  : take_turn(t, id, sqlite3_column_int(st, 2),
                                              sqlite3_column_int(st, 3), sqlite3_column_int(st, 4));
    }
    sqlite3_finalize(st);
    return rc ?: read == SQLITE_DONE ? SQLITE_OK : SQLITE_CORRUPT;
}

/* The session that a statement is at: id, parent, fork_turn, title, updated_ms. */
static int take_session(struct taking *t, sqlite3_stmt *st)
{
    struct cursor *c = &t->w.cur;
    bool fits = true;
    cursor_free(c);
    col_id(st, 0, c->session);
    col_id(st, 1, c->parent);
    c->fork_turn = col_int(st, 2, 0, &fits);
    t->asked = 0;
    return chain_touch(&t->w.db, c->session) ?:
           take_records(t) ?:
           db_do(&t->w.db, "UPDATE session SET title=coalesce(title, ?2), updated_ms="
                 "max(updated_ms, ?3) WHERE id=?1", "ssi", c->session,
                 (const char *)sqlite3_column_text(st, 3), sqlite3_column_int64(st, 4)) ?:
           chain_seal(&t->w.db, c->session);
}

/* Copies all records inside the caller's transaction, in the order in which sessions were begun. */
static int take_all(struct taking *t)
{
    struct db *d = &t->w.db;
    int rc = db_int(d, &t->turn, 0, "SELECT max(id) FROM turn", "") ?:
             db_int(d, &t->step, 0, "SELECT max(id) FROM step", "") ?:
             db_int(d, &t->event, 0, "SELECT max(id) FROM event", "");
    sqlite3_stmt *st = db_prepare(&t->side, NULL, "SELECT id, parent, fork_turn, title, updated_ms"
                                  " FROM session ORDER BY number IS NULL, number, created_ms", "");
    int read = SQLITE_ERROR;
    while (st && !rc && (read = sqlite3_step(st)) == SQLITE_ROW)
        rc = take_session(t, st);
    sqlite3_finalize(st);
    return rc ?:
           (read == SQLITE_DONE ? SQLITE_OK : SQLITE_CORRUPT) ?:
           session_unlock(d, &t->w.live, NULL);
}

/* Stores a file's rows in one transaction, unless they were stored before. */
static bool store_once(struct taking *t, struct err *e)
{
    struct db *d = &t->w.db;
    int64_t done = 0;
    sqlite3_busy_timeout(d->h, BUSY_MS);
    int rc = db_do(d, "PRAGMA foreign_keys=OFF", "") ?: /* continue_reply() */
             db_do(d, "BEGIN IMMEDIATE", "") ?:
             db_int(d, &done, 0, "SELECT count(*) FROM taken WHERE id=?", "b", &t->w.live.id,
                    sizeof t->w.live.id) ?:
             (done ? SQLITE_OK
                   : take_all(t) ?: side_file_note_stored(d, t->w.live.id)) ?:
             db_do(d, "COMMIT", "");
    return rc == SQLITE_OK || db_fail(d, e, "cannot store the events of its side file");
}

/* What is equal for all runs that begin in this side file: see struct history_about. */
static void read_about(struct taking *t)
{
    const char **s = (const char **)&t->w.about;
    sqlite3_stmt *st = db_prepare(
        &t->side, NULL,
        "SELECT b.version, b.device, b.flags, m.dir, m.weights_sha, d.dir, d.weights_sha,"
        " m.tokenizer_sha, v.kind, v.version, v.url, v.facts, r.config FROM run r"
        " LEFT JOIN build b ON b.id = r.build_id LEFT JOIN model m ON m.id = r.target_id"
        " LEFT JOIN model d ON d.id = r.draft_id LEFT JOIN server v ON v.id = r.server_id LIMIT 1",
        "");
    bool some = st && sqlite3_step(st) == SQLITE_ROW;
    for (int i = 0; i < (int)(sizeof t->w.about / sizeof *s); i++)
        s[i] = some ? col_str(st, i) : xstrdup("");
    sqlite3_finalize(st);
}

/* Whether the ids of rows are those of a new log, so that none becomes one that the log has. */
static bool ids_fit(struct db *d)
{
    int64_t odd;
    int rc = db_int(d, &odd, 0, "SELECT count(*) FROM (SELECT id FROM turn UNION ALL SELECT id FROM"
                    " step UNION ALL SELECT id FROM event) WHERE id NOT BETWEEN 1 AND 1 << 40", "");
    return !rc && !odd;
}

static bool store_side_file(const char *path, int64_t writer, const char *name, int *turns,
                            struct err *e)
{
    struct buf b;
    struct taking t = {.w.live = {.fd = -1, .id = writer}};
    int fd = file_open_beside(name, O_RDONLY, e);
    if (fd < 0 || !buf_read_open(&b, fd, name, MAX_FILE, e))
        return false;
    bool whole = pack_seal_holds(name, &b, NULL) && pack_connect(&t.side, name, &b, NULL);
    if (whole) /* a stop of readers would make it look damaged */
        sqlite3_progress_handler(t.side.h, 0, NULL, NULL);
    whole = whole && schema_check(&t.side, NULL) && ids_fit(&t.side);
    bool ok = whole && open_existing(&t.w.db, path, SQLITE_OPEN_READWRITE, e);
    if (ok) {
        read_about(&t);
        ok = store_once(&t, e);
    }
    if (ok)
        side_file_remove(path, writer);
    if (!whole) {
        char *to;
        ok = file_rename_damaged(name, &to, e) &&
             err_set(e, ERR_DB, "%s is damaged, it is kept as %s", name, to);
        free(to);
    }
    *turns += ok ? t.turns : 0;
    db_close(&t.side);
    db_close(&t.w.db);
    cursors_free(&t.w);
    about_free(&t.w.about);
    buf_free(&b);
    return ok;
}

/* Deletes the rows of `taken` whose side file no longer exists. */
static void drop_old_notes(struct db *d, const char *path)
{
    FREED(free_at) int64_t *old = NULL;
    size_t n = 0;
    sqlite3_stmt *st = db_prepare(d, NULL, "SELECT id FROM taken", "");
    while (st && sqlite3_step(st) == SQLITE_ROW) {
        int64_t writer = 0;
        if (sqlite3_column_bytes(st, 0) == sizeof writer)
            memcpy(&writer, sqlite3_column_blob(st, 0), sizeof writer);
        if (!side_file_exists(path, writer))
            *APPEND(old, n) = writer;
    }
    sqlite3_finalize(st);
    if (n && db_do(d, "BEGIN IMMEDIATE", "") == SQLITE_OK) {
        int rc = SQLITE_OK;
        for (size_t i = 0; !rc && i < n; i++)
            rc = db_do(d, "DELETE FROM taken WHERE id=?", "b", &old[i], sizeof old[i]);
        if (!rc)
            rc = head_state(d);
        if (!rc)
            db_do(d, "COMMIT", "");
        db_rollback(d);
    }
}

bool side_files_store(struct db *d, const struct live *l, int *turns, struct err *e)
{
    const char *slash = strrchr(d->path, '/'), *base = slash ? slash + 1 : d->path;
    FREED(free_at) char *folder = path_folder(d->path);
    FREED(free_at) char *start = xasprintf("%s.unsaved-", base);
    size_t n = strlen(start);
    FREED(folder_close) DIR *dir = opendir(folder);
    bool ok = true;
    *turns = 0;
    for (struct dirent *f; dir && (f = readdir(dir));) {
        char *end;
        if (strncmp(f->d_name, start, n) != 0 || strlen(f->d_name) < n + 16)
            continue;
        int64_t writer = (int64_t)strtoull(f->d_name + n, &end, 16);
        bool part = strcmp(end, ".part") == 0; /* its process died before the file was complete */
        /* a live writer moves its events into the log itself */
        if ((*end && !part) || end != f->d_name + n + 16 || live_or_unknown(l, writer))
            continue;
        FREED(free_at) char *name = xasprintf("%s/%s", folder, f->d_name);
        if (part)
            unlink(name);
        else
            ok &= store_side_file(d->path, writer, name, turns, e);
    }
    drop_old_notes(d, d->path);
    return ok;
}
