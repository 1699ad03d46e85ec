/* db.c - a connection with its safety settings, and functions that prepare and bind statements in
 * one call.
 */
#include "history/internal.h"

#include "kernels/ascii.h"
#include "kernels/json.h"

#include <sys/stat.h>
#include <time.h>

enum {
    BUSY_MS = 5000,
    PROGRESS_STEPS = 200, /* SQLite VM instructions between two calls of on_progress() */
};

/* ---- memory ---- */

static sqlite3_mem_methods plain;

static void *sqlite_malloc(int n)
{
    void *p = plain.xMalloc(n);
    if (!p)
        no_memory("%d bytes for SQLite", n);
    return p;
}

static void *sqlite_realloc(void *old, int n)
{
    void *p = plain.xRealloc(old, n);
    if (!p)
        no_memory("%d bytes for SQLite", n);
    return p;
}

void history_claim_memory(void)
{
    if (sqlite3_config(SQLITE_CONFIG_GETMALLOC, &plain) != SQLITE_OK)
        return;
    sqlite3_mem_methods m = plain;
    m.xMalloc = sqlite_malloc;
    m.xRealloc = sqlite_realloc;
    CHECK(sqlite3_config(SQLITE_CONFIG_MALLOC, &m) == SQLITE_OK);
}

/* ---- connections ---- */

void db_why(const struct db *d, char why[200])
{
    int rc = d->h ? sqlite3_errcode(d->h) & 0xff : SQLITE_NOMEM;
    bool of_system = rc == SQLITE_IOERR || rc == SQLITE_CANTOPEN || rc == SQLITE_READONLY ||
                     rc == SQLITE_BUSY || rc == SQLITE_PROTOCOL;
    int error = of_system ? vfs_cause(rc) : 0;
    snprintf(why, 200, "%s%s%s", d->h ? sqlite3_errmsg(d->h) : "out of memory", error ? ": " : "",
             error ? strerror(error) : "");
}

bool db_fail(struct db *d, struct err *e, const char *what)
{
    char why[200];
    db_why(d, why);
    d->failed = d->h ? sqlite3_errcode(d->h) & 0xff : SQLITE_NOMEM;
    if (d->failed == SQLITE_INTERRUPT)
        err_set(e, ERR_USAGE, d->limit && d->work > d->limit
                                  ? "reading %s took too long and was stopped"
                                  : "interrupted", d->path);
    else
        err_set(e, ERR_DB, "%s: %s: %s", d->path, what, why);
    db_rollback(d);
    return false;
}

void db_rollback(struct db *d)
{
    if (d->h && !sqlite3_get_autocommit(d->h))
        sqlite3_exec(d->h, "ROLLBACK", NULL, NULL, NULL);
}

bool db_whole(const char *path, struct err *e)
{
    int why = vfs_cause(SQLITE_IOERR);
    return !why || err_set(e, ERR_DB, "cannot read all of %s: %s", path, strerror(why));
}

bool db_exec(struct db *d, const char *sql, struct err *e)
{
    return sqlite3_exec(d->h, sql, NULL, NULL, NULL) == SQLITE_OK || db_fail(d, e, "cannot set up");
}

/* ---- stopping readers ---- */

static bool (*ask_stop)(void);

void hdb_stop_when(bool (*stop)(void))
{
    ask_stop = stop;
}

static bool stopped(void)
{
    return ask_stop && ask_stop();
}

static int on_progress(void *arg)
{
    struct db *d = arg;
    return stopped() || (++d->work > d->limit && d->limit);
}

/* The busy handler of readers: as sqlite3_busy_timeout(), but a stop ends the wait within 10 ms. */
static int wait_for_lock(void *, int times)
{
    const struct timespec slice = {.tv_nsec = 10000000};
    if (times >= BUSY_MS / 10 || stopped())
        return 0;
    nanosleep(&slice, NULL);
    return 1;
}

/* The schema is compared with aerie's before a statement uses it (schema.c). If another program
 * changes it afterwards, SQLite compiles the statements again: with triggers and views off, neither
 * can take part in them. */
static void switch_off(sqlite3 *h)
{
    sqlite3_db_config(h, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(h, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(h, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(h, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    sqlite3_db_config(h, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, NULL);
}

static void set_limits(sqlite3 *h)
{
    enum { VALUE_BYTES = 256 << 20, SQL_BYTES = 1 << 20, CASCADE = 8 };
    sqlite3_limit(h, SQLITE_LIMIT_LENGTH, VALUE_BYTES);
    sqlite3_limit(h, SQLITE_LIMIT_SQL_LENGTH, SQL_BYTES);
    sqlite3_limit(h, SQLITE_LIMIT_TRIGGER_DEPTH, CASCADE); /* deleting a session deletes its rows */
    sqlite3_limit(h, SQLITE_LIMIT_WORKER_THREADS, 0);
    sqlite3_limit(h, SQLITE_LIMIT_ATTACHED, 1); /* by VACUUM only */
}

bool db_open(struct db *d, const char *path, int flags, struct err *e)
{
    *d = (struct db){.path = xstrdup(path)};
    if (sqlite3_open_v2(path, &d->h, flags | SQLITE_OPEN_FULLMUTEX, vfs_name()) != SQLITE_OK) {
        db_fail(d, e, "cannot open");
        db_close(d);
        return false;
    }
    sqlite3_extended_result_codes(d->h, 1);
    if (flags & SQLITE_OPEN_READONLY) {
        sqlite3_progress_handler(d->h, PROGRESS_STEPS, on_progress, d);
        sqlite3_busy_handler(d->h, wait_for_lock, NULL);
    } else {
        sqlite3_busy_timeout(d->h, BUSY_MS);
    }
    sqlite3_db_config(d->h, SQLITE_DBCONFIG_ENABLE_FKEY, 1, NULL);
    switch_off(d->h);
    set_limits(d->h);
    if (!index_bound(d, e) || !db_exec(d, "PRAGMA cell_size_check=ON; PRAGMA secure_delete=ON; "
                                          "PRAGMA temp_store=MEMORY", e)) {
        db_close(d);
        return false;
    }
    return true;
}

bool db_sync_all(struct db *d, struct err *e)
{
    return db_exec(d, "PRAGMA synchronous=EXTRA", e);
}

char *db_immutable_uri(const char *path)
{
    struct buf b = {0};
    buf_str(&b, "file:");
    for (const char *p = path; *p; p++) {
        if (ascii_alnum(*p) || strchr("/._-~", *p))
            buf_char(&b, *p);
        else
            buf_printf(&b, "%%%02X", (unsigned char)*p);
    }
    buf_str(&b, "?immutable=1");
    return b.p;
}

bool db_open_immutable(struct db *d, const char *path, struct err *e)
{
    FREED(free_at) char *uri = db_immutable_uri(path);
    return db_open(d, uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, e);
}

bool db_wal_has_rows(const char *path)
{
    FREED(free_at) char *wal = xasprintf("%s-wal", path);
    struct stat st;
    return lstat(wal, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
}

void db_close(struct db *d)
{
    for (int i = 0; i < d->n_cached; i++)
        sqlite3_finalize(d->cached[i].st);
    sqlite3_close(d->h);
    free(d->path);
    *d = (struct db){0};
}

/* Leaves WAL mode, so that the database is one file without a write-ahead log beside it. */
static bool make_plain(struct db *d, struct err *e)
{
    return db_exec(d, "PRAGMA journal_mode=DELETE", e);
}

static bool copy_pages(struct db *from, const char *to, struct err *e)
{
    enum { TRIES = 500, WAIT_MS = 10 };
    FREED(db_close) struct db d = {0};
    if (!db_open(&d, to, SQLITE_OPEN_READWRITE, e))
        return false;
    sqlite3_backup *b = db_sync_all(&d, e) ? sqlite3_backup_init(d.h, "main", from->h, "main")
                                           : NULL;
    int rc = b ? SQLITE_BUSY : SQLITE_ERROR;
    for (int i = 0; i < TRIES && ((rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_LOCKED);
         i++) {
        if (i)
            sqlite3_sleep(WAIT_MS);
        rc = sqlite3_backup_step(b, -1); /* all pages: as of one moment */
    }
    int end = b ? sqlite3_backup_finish(b) : rc;
    bool ok = (rc == SQLITE_DONE && end == SQLITE_OK) || db_fail(&d, e, "cannot copy");
    return ok && make_plain(&d, e);
}

bool db_copy(struct db *from, const char *to, struct err *e)
{
    char *part;
    int fd = file_begin(to, &part, e);
    return file_complete(fd, fd >= 0 && copy_pages(from, part, e), part, to, e);
}

int db_bytes(struct db *d, bool used, int64_t *out)
{
    int64_t pages = 0, size = 0, unused = 0;
    int rc = db_int(d, &pages, 0, "PRAGMA page_count", "") ?:
             db_int(d, &size, 0, "PRAGMA page_size", "") ?:
             db_int(d, &unused, 0, "PRAGMA freelist_count", "");
    *out = rc ? 0 : (pages - (used ? unused : 0)) * size;
    return rc;
}

static int bind_one(sqlite3_stmt *st, int i, char type, va_list *ap)
{
    const char *s;
    size_t n;
    switch (type) {
    case 'i':
        return sqlite3_bind_int64(st, i, va_arg(*ap, int64_t));
    case 'd':
        return sqlite3_bind_double(st, i, va_arg(*ap, double)); /* NaN becomes null */
    case 's':
        return sqlite3_bind_text(st, i, va_arg(*ap, const char *), -1, SQLITE_STATIC);
    case 't':
        s = va_arg(*ap, const char *);
        n = va_arg(*ap, size_t);
        return sqlite3_bind_text64(st, i, s ? s : "", n, SQLITE_STATIC, SQLITE_UTF8);
    case 'b':
        s = va_arg(*ap, const void *);
        n = va_arg(*ap, size_t);
        return sqlite3_bind_blob64(st, i, s ? s : "", n, SQLITE_STATIC);
    default:
        CHECK(type == 'n');
        return sqlite3_bind_null(st, i);
    }
}

static int bind_all(sqlite3_stmt *st, const char *types, va_list *ap)
{
    CHECK((int)strlen(types) == sqlite3_bind_parameter_count(st));
    for (int i = 0; types[i]; i++) {
        int rc = bind_one(st, i + 1, types[i], ap);
        if (rc)
            return rc;
    }
    return SQLITE_OK;
}

sqlite3_stmt *db_prepare(struct db *d, struct err *e, const char *sql, const char *types, ...)
{
    sqlite3_stmt *st = NULL;
    d->work = 0;
    int rc = sqlite3_prepare_v2(d->h, sql, -1, &st, NULL);
    if (!rc)
        WITH_ARGS(ap, types, rc = bind_all(st, types, &ap));
    if (!rc)
        return st;
    db_fail(d, e, "cannot read");
    sqlite3_finalize(st);
    return NULL;
}

static sqlite3_stmt *find_cached(struct db *d, const char *sql)
{
    for (int i = 0; i < d->n_cached; i++)
        if (d->cached[i].sql == sql)
            return d->cached[i].st;
    sqlite3_stmt *st;
    if (sqlite3_prepare_v3(d->h, sql, -1, SQLITE_PREPARE_PERSISTENT, &st, NULL))
        return NULL;
    CHECK(d->n_cached < MAX_CACHED);
    d->cached[d->n_cached].sql = sql;
    d->cached[d->n_cached++].st = st;
    return st;
}

bool db_next(struct db_rows *rows)
{
    int rc = rows->ok && rows->more ? sqlite3_step(rows->st) : SQLITE_DONE;
    if (rc == SQLITE_ROW)
        return ++rows->n;
    if (rc != SQLITE_DONE)
        rows->ok = db_fail(rows->d, rows->e, rows->what);
    sqlite3_finalize(rows->st);
    rows->st = NULL;
    return false;
}

static sqlite3_stmt *cached_v(struct db *d, const char *sql, const char *types, va_list *ap)
{
    sqlite3_stmt *st = find_cached(d, sql);
    if (!st)
        return NULL;
    sqlite3_reset(st);
    return bind_all(st, types, ap) ? NULL : st;
}

sqlite3_stmt *db_cached(struct db *d, const char *sql, const char *types, ...)
{
    sqlite3_stmt *st;
    WITH_ARGS(ap, types, st = cached_v(d, sql, types, &ap));
    return st;
}

bool db_row(struct db *d, sqlite3_stmt *st, int *rc)
{
    *rc = st ? sqlite3_step(st) : sqlite3_extended_errcode(d->h);
    bool some = *rc == SQLITE_ROW;
    if (some || *rc == SQLITE_DONE)
        *rc = SQLITE_OK;
    if (!some)
        sqlite3_reset(st);
    return some;
}

int db_run(struct db *d, sqlite3_stmt *st, int bound)
{
    int rc = bound;
    while (!bound && db_row(d, st, &rc))
        ;
    sqlite3_reset(st);
    return rc;
}

int db_do(struct db *d, const char *sql, const char *types, ...)
{
    sqlite3_stmt *st;
    WITH_ARGS(ap, types, st = cached_v(d, sql, types, &ap));
    return db_run(d, st, SQLITE_OK);
}

int db_int(struct db *d, int64_t *out, int64_t none, const char *sql, const char *types, ...)
{
    sqlite3_stmt *st;
    WITH_ARGS(ap, types, st = cached_v(d, sql, types, &ap));
    int rc;
    bool some = db_row(d, st, &rc) && sqlite3_column_type(st, 0) != SQLITE_NULL;
    *out = some ? sqlite3_column_int64(st, 0) : none;
    sqlite3_reset(st);
    return rc;
}

char *col_str(sqlite3_stmt *st, int i)
{
    const char *s = (const char *)sqlite3_column_text(st, i);
    int n = sqlite3_column_bytes(st, i);
    char *copy = xmalloc((size_t)n + 1);
    if (n)
        memcpy(copy, s, (size_t)n);
    copy[n] = '\0';
    return copy;
}

void col_id(sqlite3_stmt *st, int i, char out[SESSION_ID])
{
    const char *s = (const char *)sqlite3_column_text(st, i);
    memset(out, 0, SESSION_ID);
    if (s)
        strncpy(out, s, SESSION_ID - 1);
}

int col_int(sqlite3_stmt *st, int i, int lo, bool *fits)
{
    int type = sqlite3_column_type(st, i);
    int64_t v = sqlite3_column_int64(st, i);
    bool good = type == SQLITE_NULL || (type == SQLITE_INTEGER && v >= lo && v <= LOG_MAX);
    *fits &= good;
    return good ? (int)v : 0;
}

void col_ids(sqlite3_stmt *st, int i, struct ids *out)
{
    const void *p = sqlite3_column_blob(st, i);
    int n = sqlite3_column_bytes(st, i) / (int)sizeof(int32_t);
    for (int k = 0; k < n; k++) {
        int32_t id;
        memcpy(&id, (const char *)p + (size_t)k * sizeof id, sizeof id);
        ids_add(out, id);
    }
}

void col_json(sqlite3_stmt *st, int i, struct buf *b)
{
    if (sqlite3_column_type(st, i) == SQLITE_INTEGER)
        jput_wide(b, sqlite3_column_int64(st, i));
    else if (sqlite3_column_type(st, i) == SQLITE_FLOAT)
        jput_real(b, sqlite3_column_double(st, i));
    else
        jput_null(b);
}
