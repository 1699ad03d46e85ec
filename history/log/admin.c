/* admin.c - maintenance of the database: backup, vacuum, prune, titles and pins; check.c and
 * repair.c have the rest. Each call opens its own connection.
 */
#include "history/internal.h"
#include "kernels/when.h"

/* ---- backup ---- */

bool history_backup(const char *path, const char *to, struct err *e)
{
    FREED(db_close) struct db d = {0};
    FREED(buf_free) struct buf report = {0};
    if (!open_existing(&d, path, SQLITE_OPEN_READONLY, e))
        return false;
    /* a copy of a damaged log is kept, too: it may be all that is left */
    return db_copy(&d, to, e) && (history_check(to, &report, e) ||
                                  err_prefix(e, "%s is copied, but its check says", to));
}

/* ---- vacuum ---- */

/* VACUUM with its copy of the database in an unnamed file in the log's folder: in memory the copy
 * would take as much as the log, and the folder for temporary files may be another disk, or out of
 * reach (isolate.h). */
static bool vacuum_in_place(struct db *d, struct err *e)
{
    char *was = sqlite3_temp_directory, *folder = path_folder(d->path);
    sqlite3_temp_directory = sqlite3_mprintf("%s", folder);
    free(folder);
    bool ok = db_exec(d, "PRAGMA temp_store=FILE", e) &&
              (db_do(d, "VACUUM", "") == SQLITE_OK || db_fail(d, e, "cannot vacuum"));
    sqlite3_free(sqlite3_temp_directory);
    sqlite3_temp_directory = was;
    return ok;
}

bool history_vacuum(const char *path, int64_t *before, int64_t *after, struct err *e)
{
    FREED(db_close) struct db d = {0};
    if (!open_existing(&d, path, SQLITE_OPEN_READWRITE, e))
        return false;
    bool ok = (!db_bytes(&d, false, before) || db_fail(&d, e, "cannot vacuum")) &&
              vacuum_in_place(&d, e) &&
              (!db_bytes(&d, false, after) || db_fail(&d, e, "cannot vacuum"));
    if (ok)
        sqlite3_wal_checkpoint_v2(d.h, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    return ok;
}

/* ---- prune ---- */

struct pruning {
    struct db *d;
    const struct prune_rule *rule;
    struct pruned *out;
    struct buf *report;
    int64_t before_ms; /* sessions last used before this time are too old */
    int64_t left;      /* sessions in the log */
    struct err kept;   /* why the one session of rule->only must stay */
};

static int report_session(struct pruning *p, const char *id)
{
    sqlite3_stmt *st = db_cached(p->d, "SELECT coalesce(number, 0), title, updated_ms,"
                                 " (SELECT count(*) FROM turn WHERE session_id = s.id AND role = "
                                 "'user') FROM session s WHERE id=?", "s", id);
    int rc;
    if (db_row(p->d, st, &rc)) {
        char when[20], *title = col_str(st, 1);
        when_text(sqlite3_column_int64(st, 2), when);
        p->out->turns += sqlite3_column_int(st, 3);
        if (p->report)
            buf_printf(p->report, "%5d  %s  %d turn%s  %s\n", sqlite3_column_int(st, 0), when,
                       sqlite3_column_int(st, 3), plural(sqlite3_column_int(st, 3)), title);
        free(title);
    }
    sqlite3_reset(st);
    return rc;
}

/* *more: it is deleted. */
static int delete_session(struct pruning *p, const char *id, bool *more)
{
    int n = 0;
    int rc = report_session(p, id) ?:
             chain_delete(p->d, db_cached(p->d, "DELETE FROM session WHERE id=? RETURNING id", "s",
                                          id), &n);
    p->out->sessions += n;
    p->left -= n;
    *more = n > 0;
    return rc;
}

/* Deletes the one session that the rule names, or says in p->kept why it must stay. */
static int prune_named(struct pruning *p)
{
    const char *id = p->rule->only;
    sqlite3_stmt *st = db_cached(p->d, "SELECT coalesce(number, 0), pinned IS NOT NULL,"
                                 " id IN (SELECT session_id FROM run WHERE ended = 0"
                                 " UNION SELECT session_id FROM held),"
                                 " (SELECT group_concat('#' || number, ', ') FROM session f"
                                 " WHERE f.parent = s.id) FROM session s WHERE id=?", "s", id);
    int rc;
    bool gone;
    if (!db_row(p->d, st, &rc))
        return rc;
    int number = sqlite3_column_int(st, 0);
    bool pinned = sqlite3_column_int(st, 1), open = sqlite3_column_int(st, 2);
    FREED(free_at) char *forks = col_str(st, 3);
    sqlite3_reset(st);
    if (open)
        err_set(&p->kept, ERR_DB, "session #%d is open in an aerie, which must end first", number);
    else if (pinned)
        err_set(&p->kept, ERR_USAGE, "session #%d is pinned; aerie db unpin %d comes first", number,
                number);
    else if (*forks)
        err_set(&p->kept, ERR_USAGE, "session #%d cannot be removed before %s, forked from it, "
                "which has its turns", number, forks);
    return p->kept.kind ? SQLITE_OK : delete_session(p, id, &gone);
}

/* *due: the rule deletes the session that was unused longest, last used at used_ms. */
static int is_due(struct pruning *p, int64_t used_ms, bool *due)
{
    int64_t bytes = 0;
    int rc = p->rule->to_bytes >= 0 ? db_bytes(p->d, true, &bytes) : SQLITE_OK;
    *due = used_ms < p->before_ms || (p->rule->keep >= 0 && p->left > p->rule->keep) ||
           (p->rule->to_bytes >= 0 && bytes > p->rule->to_bytes);
    return rc;
}

/* Of the sessions that may be deleted (not pinned, no parent, not open), deletes the one unused
 * longest if the rule demands it. *more: one was deleted. Each call passes by the older sessions
 * that must stay. */
static int prune_one(struct pruning *p, bool *more)
{
    char id[SESSION_ID] = "";
    *more = false;
    sqlite3_stmt *st = db_cached(p->d, "SELECT s.id, u.ms, u.nth FROM temp.used u JOIN session s"
                                 " ON s.id = u.id WHERE s.pinned IS NULL"
                                 " AND NOT EXISTS (SELECT 1 FROM session WHERE parent = s.id)"
                                 " AND NOT EXISTS (SELECT 1 FROM run WHERE session_id = s.id AND"
                                 " ended = 0)"
                                 " AND NOT EXISTS (SELECT 1 FROM held WHERE session_id = s.id)"
                                 " ORDER BY u.nth LIMIT 1", "");
    int rc;
    if (!db_row(p->d, st, &rc))
        return rc;
    col_id(st, 0, id);
    int64_t used_ms = sqlite3_column_int64(st, 1), nth = sqlite3_column_int64(st, 2);
    sqlite3_reset(st);
    bool due;
    rc = is_due(p, used_ms, &due);
    return rc || !due ? rc : delete_session(p, id, more) ?:
           db_do(p->d, "DELETE FROM temp.used WHERE nth=?", "i", nth);
}

/* Makes temp.used: the sessions in the order of their last use, with its time. The clock may have
 * been wrong, so a time in the future counts as unknown, and no session has an earlier time than
 * the one before it in that order. */
static int list_used(struct db *d, int64_t now)
{
    return db_do(d, "CREATE TABLE temp.used(nth INTEGER PRIMARY KEY, id TEXT NOT NULL, "
                    "ms INTEGER NOT NULL)", "") ?:
           db_do(d, "INSERT INTO temp.used SELECT nth, id, coalesce(max(ms) OVER (ORDER BY nth),"
                 " min(ms) OVER (ORDER BY nth ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING),"
                 " ?1) FROM (SELECT row_number() OVER (ORDER BY place, run, id) AS nth, id,"
                 "  CASE WHEN ms <= ?1 THEN ms END AS ms FROM (SELECT s.id AS id,"
                 "  s.updated_ms AS ms, s.last_run AS run, " SESSION_USED " AS place"
                 "  FROM session s))", "i", now);
}

/* If, by the clock, nothing was stored for over a year, the clock may be wrong: a prune at the
 * start (by_itself) then removes nothing by age. */
static int doubt_clock(struct pruning *p, int64_t now)
{
    enum { YEAR_DAYS = 366 };
    int64_t newest;
    int rc = db_int(p->d, &newest, now, "SELECT max(ms) FROM temp.used", "");
    p->out->clock_doubted = p->rule->by_itself && p->rule->older_than != ANY_AGE &&
                            now - newest > YEAR_DAYS * INT64_C(86400000);
    if (p->out->clock_doubted)
        p->before_ms = INT64_MIN;
    return rc;
}

static int prune_transaction(struct pruning *p)
{
    struct db *d = p->d;
    int64_t before = 0, after = 0, now = clock_unix_ms();
    int rc = db_do(d, "BEGIN IMMEDIATE", "") ?:
             list_used(d, now) ?:
             doubt_clock(p, now) ?:
             db_int(d, &p->left, 0, "SELECT count(*) FROM session", "") ?:
             db_bytes(d, true, &before);
    if (!rc && p->rule->only)
        rc = prune_named(p);
    else
        for (bool more = true; !rc && more;)
            rc = prune_one(p, &more);
    if (!rc)
        rc = db_bytes(d, true, &after);
    p->out->bytes = before - after;
    if (!rc && p->rule->dry)
        return db_do(d, "ROLLBACK", "");
    if (!rc && p->out->sessions) /* removes the deleted text from the full-text index */
        rc = db_do(d, "INSERT INTO turn_fts(turn_fts) VALUES('rebuild')", "");
    return rc ?: db_do(d, "COMMIT", "");
}

bool history_prune(const char *path, const struct prune_rule *rule, struct pruned *out,
                   struct buf *report, struct err *e)
{
    FREED(db_close) struct db d = {0};
    struct live l = {.fd = -1};
    struct pruning p = {.d = &d, .rule = rule, .out = out, .report = report,
                        .before_ms = INT64_MIN};
    int closed;
    *out = (struct pruned){0};
    if (rule->older_than != ANY_AGE)
        p.before_ms = clock_unix_ms() - rule->older_than * INT64_C(86400000);
    if (!open_existing(&d, path, SQLITE_OPEN_READWRITE, e))
        return false;
    /* ends the sessions of dead processes, so that they can be pruned */
    bool ok = live_open(&l, path, e);
    if (ok && (recover_dead(&d, &l, &closed) || prune_transaction(&p)))
        ok = db_fail(&d, e, "cannot prune");
    if (ok && p.kept.kind) {
        *e = p.kept;
        ok = false;
    }
    if (ok && !rule->dry)
        sqlite3_wal_checkpoint_v2(d.h, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    live_close(&l);
    return ok;
}

/* ---- titles and pins ---- */

/* Runs an UPDATE of one session in a transaction that seals it. */
static bool change_session(const char *path, const char *session, const char *what,
                           sqlite3_stmt *(*update)(struct db *d, const char *session,
                                                   const void *arg),
                           const void *arg, struct err *e)
{
    struct db file, *d = &file;
    if (!open_existing(d, path, SQLITE_OPEN_READWRITE, e))
        return false;
    int rc = db_do(d, "BEGIN IMMEDIATE", "") ?: chain_touch(d, session);
    bool found = false;
    if (!rc) {
        rc = db_run(d, update(d, session, arg), SQLITE_OK);
        found = !rc && sqlite3_changes(d->h);
    }
    rc = rc ?: chain_seal(d, session) ?: db_do(d, "COMMIT", "");
    bool ok = rc ? db_fail(d, e, what) : found ||
              err_set(e, ERR_NEGATIVE, "no session \"%s\"", session);
    db_close(d);
    return ok;
}

static sqlite3_stmt *update_title(struct db *d, const char *session, const void *title)
{
    return db_cached(d, "UPDATE session SET title=? WHERE id=?", "ss", (const char *)title,
                     session);
}

bool history_set_title(const char *path, const char *session, const char *title, struct err *e)
{
    return change_session(path, session, "cannot set the title", update_title, title, e);
}

static sqlite3_stmt *update_pin(struct db *d, const char *session, const void *pinned)
{
    return db_cached(d, "UPDATE session SET pinned=nullif(?,0) WHERE id=?", "is",
                     (int64_t)*(const bool *)pinned, session);
}

bool history_pin(const char *path, const char *session, bool pinned, struct err *e)
{
    return change_session(path, session, "cannot pin", update_pin, &pinned, e);
}
