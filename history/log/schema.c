/* schema.c - the tables, their versions, and the check that a database holds these tables only.
 *
 * Always true: the version of a database changes in the transaction that changes its tables; a
 * database that was not empty is copied to a backup before. No statement runs on a database whose
 * schema differs from the text below, so a foreign view or trigger never runs.
 */
#include "history/columns.h"

#include <errno.h>
#include <sys/vfs.h>

/* Ids and digests: `tokens` are packed little-endian int32; the digests of a step are 64 bits seen
 * as signed. `link`, `sum` and `chain`: see internal.h. session.seal is a checksum (chain.c),
 * `head` and roll.heads, roll.head the chain over the whole database, roll.state a checksum over
 * held, taken and the counters (head.c), `held` the session locks (live.c), `taken` the
 * writers whose side files were stored (side_file.c). session.number: for users; roll.last_number:
 * the last one that was assigned. session.pinned: 1: prune keeps the session.
 *
 * A turn has two rows: the user's has prompt, settings, seed, and from change to gone_to the values
 * of struct reuse; the reply's the generated text and ids; stop is '' while the turn runs. An
 * undone turn keeps its rows; an event row records the undo. turn_part holds the final channel only
 * while the turn runs (its end moves it to turn.text), and the other channels permanently. Every
 * turn row is in turn_fts; not by triggers, which a schema that is not trusted may not use on
 * virtual tables, but by turn_index().
 *
 * step.facts: 12 bytes a token, little-endian: f32 log probability, i32 rival (-1: none), f32 log
 * probability of the rival. pages.events: page_pack() of a step. A step's source is 'server' or
 * 'piece' (enum step_source), null where it was computed here. top: the best tokens of token k of a
 * step; rank 0 is the token itself. What a server reported: server.facts is a JSON object of what
 * it says of its launch; served and metric belong to reply rows; us_prefill and us_decode of the
 * turn are what the client measured; served.tokens: the prompt's token ids, if the server reported
 * them after the user's row was written. token: texts of a tokenizer's ids; tokenizer.texts counts
 * them, tokenizer.sum is a checksum of them (chain.c). */
static const char schema_tables[] =
    "CREATE TABLE build(id INTEGER PRIMARY KEY, version TEXT NOT NULL, device TEXT NOT NULL,"
    " flags TEXT NOT NULL, UNIQUE(version, device, flags));"

    "CREATE TABLE model(id INTEGER PRIMARY KEY,"
    " role TEXT NOT NULL CHECK(role IN('target','draft')), dir TEXT NOT NULL,"
    " weights_sha TEXT NOT NULL, tokenizer_sha TEXT NOT NULL,"
    " UNIQUE(role, dir, weights_sha, tokenizer_sha));"

    "CREATE TABLE server(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, version TEXT NOT NULL,"
    " url TEXT NOT NULL, model TEXT NOT NULL, facts TEXT NOT NULL);"

    "CREATE TABLE tokenizer(id INTEGER PRIMARY KEY, sha TEXT NOT NULL UNIQUE,"
    " texts INTEGER NOT NULL DEFAULT 0, sum BLOB NOT NULL DEFAULT x'');"

    "CREATE TABLE token(tokenizer INTEGER NOT NULL REFERENCES tokenizer(id), id INTEGER NOT NULL,"
    " text NOT NULL, PRIMARY KEY(tokenizer, id)) WITHOUT ROWID;"

    "CREATE TABLE session(id TEXT PRIMARY KEY NOT NULL, number INTEGER, parent TEXT,"
    " fork_turn INTEGER NOT NULL, title TEXT, created_ms INTEGER NOT NULL,"
    " updated_ms INTEGER NOT NULL, last_run INTEGER NOT NULL DEFAULT 0, pinned INTEGER,"
    " links INTEGER NOT NULL DEFAULT 0, chain BLOB NOT NULL DEFAULT x'',"
    " seal BLOB NOT NULL DEFAULT x'');"
    "CREATE INDEX session_parent ON session(parent) WHERE parent IS NOT NULL;"
    "CREATE INDEX session_run ON session(last_run);"
    "CREATE UNIQUE INDEX session_number ON session(number);"

    /* ended: 0 running, 1 closed, 2 the process was killed */
    "CREATE TABLE run(id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " session_id TEXT NOT NULL REFERENCES session(id) ON DELETE CASCADE,"
    " build_id INTEGER NOT NULL REFERENCES build(id),"
    " target_id INTEGER NOT NULL REFERENCES model(id), draft_id INTEGER REFERENCES model(id),"
    " server_id INTEGER REFERENCES server(id), config TEXT NOT NULL, writer INTEGER NOT NULL,"
    " ended INTEGER NOT NULL DEFAULT 0, created_ms INTEGER NOT NULL, link INTEGER, sum BLOB,"
    " UNIQUE(session_id, link));"
    "CREATE INDEX run_open ON run(writer) WHERE ended = 0;"

    "CREATE TABLE turn(id INTEGER PRIMARY KEY,"
    " session_id TEXT NOT NULL REFERENCES session(id) ON DELETE CASCADE,"
    " run_id INTEGER NOT NULL, n INTEGER NOT NULL,"
    " role TEXT NOT NULL CHECK(role IN('user','reply')), text TEXT NOT NULL,"
    " shared INTEGER, tokens BLOB NOT NULL, regen INTEGER, seed INTEGER, sampling TEXT,"
    " draws0 INTEGER, n_reused INTEGER, change TEXT, change_turn INTEGER, held INTEGER,"
    " same INTEGER, limited TEXT, gone_from INTEGER, gone_to INTEGER,"
    " stop TEXT, draws1 INTEGER, n_steps INTEGER, n_drafted INTEGER, n_accepted INTEGER,"
    " us_prefill INTEGER, us_decode INTEGER, created_ms INTEGER NOT NULL,"
    " link INTEGER, sum BLOB, UNIQUE(session_id, n, role));"
    "CREATE INDEX turn_open ON turn(run_id) WHERE stop = '';"

    "CREATE TABLE turn_part(turn_id INTEGER NOT NULL REFERENCES turn(id) ON DELETE CASCADE,"
    " k INTEGER NOT NULL, channel INTEGER NOT NULL, text TEXT NOT NULL,"
    " PRIMARY KEY(turn_id, k)) WITHOUT ROWID;"

    "CREATE TABLE served(turn_id INTEGER PRIMARY KEY REFERENCES turn(id) ON DELETE CASCADE"
    SERVED_COLUMNS(COLUMN_SQL) ", tokens BLOB" SERVED_TIMES(COLUMN_SQL) ");"

    "CREATE TABLE metric(turn_id INTEGER NOT NULL REFERENCES turn(id) ON DELETE CASCADE,"
    " name TEXT NOT NULL, labels TEXT NOT NULL, before REAL, after REAL,"
    " PRIMARY KEY(turn_id, name, labels)) WITHOUT ROWID;"

    "CREATE TABLE step(id INTEGER PRIMARY KEY,"
    " turn_id INTEGER NOT NULL REFERENCES turn(id) ON DELETE CASCADE, n INTEGER NOT NULL"
    STEP_COLUMNS(COLUMN_SQL) ", UNIQUE(turn_id, n));"

    "CREATE TABLE tree(step_id INTEGER PRIMARY KEY REFERENCES step(id) ON DELETE CASCADE,"
    " nodes BLOB NOT NULL);"

    "CREATE TABLE pages(step_id INTEGER PRIMARY KEY REFERENCES step(id) ON DELETE CASCADE,"
    " events BLOB NOT NULL);"

    "CREATE TABLE top(step_id INTEGER NOT NULL REFERENCES step(id) ON DELETE CASCADE,"
    " k INTEGER NOT NULL, rank INTEGER NOT NULL, token INTEGER, logp REAL, text TEXT,"
    " PRIMARY KEY(step_id, k, rank)) WITHOUT ROWID;"

    /* op: of an operation its name, of a fault the violated rule ("I4") */
    "CREATE TABLE event(id INTEGER PRIMARY KEY,"
    " session_id TEXT NOT NULL REFERENCES session(id) ON DELETE CASCADE,"
    " turn INTEGER NOT NULL, step INTEGER NOT NULL,"
    " kind TEXT NOT NULL CHECK(kind IN('op','notice','fault')), op TEXT, text TEXT NOT NULL,"
    " created_ms INTEGER NOT NULL, link INTEGER, sum BLOB, UNIQUE(session_id, link));"
    "CREATE INDEX event_undo ON event(session_id, turn) WHERE op = 'undo';"

    "CREATE TABLE roll(id INTEGER PRIMARY KEY CHECK(id = 1),"
    " last_number INTEGER NOT NULL DEFAULT 0, heads INTEGER NOT NULL DEFAULT 0,"
    " head BLOB NOT NULL DEFAULT x'', state BLOB NOT NULL DEFAULT x'');"

    "CREATE TABLE head(n INTEGER PRIMARY KEY, what TEXT NOT NULL, name TEXT NOT NULL,"
    " sum BLOB NOT NULL, made_ms INTEGER NOT NULL, chain BLOB NOT NULL, seal BLOB);"
    "CREATE INDEX head_of ON head(what, name, n);"

    "CREATE TABLE held(session_id TEXT PRIMARY KEY NOT NULL, writer INTEGER NOT NULL,"
    " pid INTEGER NOT NULL, host TEXT NOT NULL, since_ms INTEGER NOT NULL) WITHOUT ROWID;"

    "CREATE TABLE taken(id BLOB PRIMARY KEY NOT NULL) WITHOUT ROWID;"

    "CREATE VIRTUAL TABLE turn_fts USING fts5(text, content='turn', content_rowid='id',"
    " tokenize='unicode61');";

/* Of packs only (pack.c): what was packed, and how. */
static const char schema_pack[] =
    "CREATE TABLE pack(name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID;";

static const struct migration migrations[] = {
    {SCHEMA_VERSION, {schema_tables, schema_views}, chain_begin_log},
};
static const struct migration of_pack[] = {
    {SCHEMA_VERSION, {schema_pack, schema_tables, schema_views}, chain_begin_log},
};
enum { N_MIGRATIONS = LEN(migrations) };

/* ---- versions ---- */

static bool read_version(struct db *d, int64_t *version, struct err *e)
{
    int64_t app, tables;
    /* In this order: while another process makes the file, in one transaction, who sees its tables
     * or its version sees its application, too. */
    if (db_int(d, &tables, 0, "SELECT count(*) FROM sqlite_schema", "") ||
        db_int(d, version, 0, "PRAGMA user_version", "") ||
        db_int(d, &app, 0, "PRAGMA application_id", ""))
        return db_fail(d, e, "cannot read");
    if (app != APPLICATION_ID && (app || *version || tables))
        return err_set(e, ERR_DB, "%s belongs to another program, it is no session log", d->path);
    return true;
}

/* Version 0 is an empty file. */
static bool refuse_unknown(struct db *d, int64_t version, const struct migration *list, int n,
                           struct err *e)
{
    if (version == 0 || (version >= list[0].to && version <= list[n - 1].to))
        return true;
    if (version > list[n - 1].to)
        return err_set(e, ERR_DB, "%s has schema version %lld; this aerie knows versions up to %d: "
                       "use the newer aerie, or another file with --db", d->path,
                       (long long)version, list[n - 1].to);
    return err_set(e, ERR_DB, "%s has schema version %lld, from before the first release; expected"
                   " version %d: use another file with --db", d->path, (long long)version,
                   list[0].to);
}

/* Copies the database to a backup beside it. */
static bool backup_before(struct db *d, int64_t version, struct err *e)
{
    char stamp[16];
    time_stamp(stamp);
    char *to = xasprintf("%s.v%lld-%s", d->path, (long long)version, stamp);
    /* a migration of the same second was interrupted */
    for (int i = 1; !file_missing(to) && i < 100; i++) {
        free(to);
        to = xasprintf("%s.v%lld-%s-%d", d->path, (long long)version, stamp, i);
    }
    bool ok = db_copy(d, to, e) || err_prefix(e, "cannot back up before a migration");
    free(to);
    return ok;
}

static bool run_sql(struct db *d, const struct migration *m, struct err *e)
{
    bool ok = true;
    for (int i = 0; ok && i < MIGRATION_PARTS && m->sql[i]; i++)
        ok = db_exec(d, m->sql[i], e);
    return ok;
}

static bool apply_migrations(struct db *d, const struct migration *list, int n, struct err *e)
{
    int64_t version;
    if (!read_version(d, &version, e) || !refuse_unknown(d, version, list, n, e))
        return false;
    for (int i = 0; i < n; i++)
        if (list[i].to > version &&
            (!run_sql(d, &list[i], e) ||
             (list[i].fill && list[i].fill(d) && !db_fail(d, e, "cannot migrate"))))
            return err_prefix(e, "schema version %d", list[i].to);
    char set[96];
    snprintf(set, sizeof set, "PRAGMA application_id=%d; PRAGMA user_version=%d", APPLICATION_ID,
             list[n - 1].to);
    return db_exec(d, set, e);
}

/* ---- the schema's text ---- */

/* A database in memory with the schema of a version, whose text this SQLite version writes. */
static bool make_expected(struct db *d, const struct migration *list, int n, int64_t version,
                          struct err *e)
{
    if (!db_open(d, ":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, e))
        return false;
    bool ok = db_exec(d, "BEGIN", e);
    for (int i = 0; ok && i < n && list[i].to <= version; i++)
        ok = run_sql(d, &list[i], e);
    ok = ok && db_exec(d, "COMMIT", e);
    if (!ok)
        db_close(d);
    return ok;
}

/* Two schemas, read row by row in the order of names. */
struct schema_pair {
    sqlite3_stmt *want, *have;
    int rc_want, rc_have;
    struct buf *report; /* or NULL */
    struct schema_diff *differ;
};

/* The name of a schema object; "" if it is not text: no object of aerie has such a name. */
static const char *object_name(sqlite3_stmt *st)
{
    const char *s = sqlite3_column_type(st, 1) == SQLITE_TEXT
                        ? (const char *)sqlite3_column_text(st, 1) : "";
    return s ? s : "";
}

static void schema_differs(struct schema_pair *b, sqlite3_stmt *st, bool ours, const char *how)
{
    struct schema_diff *d = b->differ;
    const char *kind = (const char *)sqlite3_column_text(st, 0), *name = object_name(st);
    char line[sizeof d->first];
    snprintf(line, sizeof line, "schema: %.20s \"%.100s\" %s", kind ? kind : "", name, how);
    if (b->report)
        buf_printf(b->report, "%s\n", line);
    line[strcspn(line, "\n")] = '\0';
    if (d->n++ == 0)
        memcpy(d->first, line, sizeof line);
    if (ours && kind && strcmp(kind, "table") == 0 && strncmp(name, "turn_fts", 8) != 0)
        memcpy(d->table, line, sizeof line);
}

static bool same_text(sqlite3_stmt *a, sqlite3_stmt *b)
{
    for (int i = 0; i < 4; i++) {
        /* before conversions */
        bool same_type = sqlite3_column_type(a, i) == sqlite3_column_type(b, i);
        const char *x = (const char *)sqlite3_column_text(a, i);
        const char *y = (const char *)sqlite3_column_text(b, i);
        if (!same_type || !x != !y || (x && strcmp(x, y) != 0))
            return false;
    }
    return true;
}

/* Advances the schema whose name comes first, or both if the names are equal. */
static void compare_next(struct schema_pair *b)
{
    int order = b->rc_want != SQLITE_ROW   ? 1
                : b->rc_have != SQLITE_ROW ? -1
                                           : strcmp(object_name(b->want), object_name(b->have));
    if (order > 0)
        schema_differs(b, b->have, false, "was added, aerie did not make it");
    else if (order < 0)
        schema_differs(b, b->want, true, "is missing");
    else if (order == 0 && !same_text(b->want, b->have))
        schema_differs(b, b->have, true, "is not as aerie made it");
    if (order <= 0)
        b->rc_want = sqlite3_step(b->want);
    if (order >= 0)
        b->rc_have = sqlite3_step(b->have);
}

static const char all_objects[] = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY "
"name";

bool schema_digest(struct db *d, char hex[65])
{
    struct sha256 s;
    sha256_init(&s);
    sqlite3_stmt *st = db_prepare(d, NULL, all_objects, "");
    int rc = st ? SQLITE_DONE : SQLITE_ERROR;
    while (st && (rc = sqlite3_step(st)) == SQLITE_ROW)
        for (int i = 0; i < 4; i++)
            hash_column(&s, st, i);
    sqlite3_finalize(st);
    sha256_end_hex(&s, hex);
    return rc == SQLITE_DONE;
}

/* The digests of this version's schema, so that its text need not be generated each time a log is
 * opened. A schema with another digest is compared object by object: other versions of SQLite may
 * write the same schema differently. */
static const char digest_of_log[] =
    "924482e1dbb0965b483731c73e4978842c1517f9a6750f8b29acf732a4e3be12";
static const char digest_of_pack[] =
    "7d19b1b201c3e7608ddd2c5fa781b25bb85fb2a5e82a27f40ac22e48b40b3c2d";

const char *schema_known_digest(bool pack)
{
    return pack ? digest_of_pack : digest_of_log;
}

static bool compare_schemas(struct db *d, struct db *expected, struct schema_pair *b, struct err *e)
{
    b->want = db_prepare(expected, e, all_objects, "");
    b->have = b->want ? db_prepare(d, e, all_objects, "") : NULL;
    if (b->have) {
        b->rc_want = sqlite3_step(b->want);
        b->rc_have = sqlite3_step(b->have);
        while (b->rc_want == SQLITE_ROW || b->rc_have == SQLITE_ROW)
            compare_next(b);
    }
    bool ok = b->have && (b->rc_have == SQLITE_DONE || db_fail(d, e, "cannot read the schema"));
    sqlite3_finalize(b->want);
    sqlite3_finalize(b->have);
    return ok;
}

/* Compares the schema with the text of the database's own version; the report, if there is one,
 * gets a line per difference. */
static bool compare_text(struct db *d, const struct migration *list, int n, int64_t version,
                         struct buf *report, struct schema_diff *differ, struct err *e)
{
    FREED(db_close) struct db expected = {0};
    struct schema_pair b = {.report = report, .differ = differ};
    return make_expected(&expected, list, n, version, e) && compare_schemas(d, &expected, &b, e);
}

static bool require_schema(struct db *d, const struct migration *list, int n, int64_t version,
                           struct err *e)
{
    struct schema_diff differ = {0};
    const char *known = schema_known_digest(list == of_pack);
    char hex[65];
    if (version == SCHEMA_VERSION && schema_digest(d, hex) && strcmp(hex, known) == 0)
        return true;
    if (!compare_text(d, list, n, version, NULL, &differ, e))
        return false;
    if (differ.n > 1)
        return err_set(e, ERR_DB, "%s is not used: %s, and %d more", d->path, differ.first,
                       differ.n - 1);
    return !differ.n || err_set(e, ERR_DB, "%s is not used: %s", d->path, differ.first);
}

/* ---- opening ---- */

bool schema_migrate(struct db *d, const struct migration *list, int n, struct err *e)
{
    int64_t version;
    if (!read_version(d, &version, e) || !refuse_unknown(d, version, list, n, e))
        return false;
    if (version > 0 && !require_schema(d, list, n, version, e))
        return false;
    if (version == list[n - 1].to)
        return true;
    if (version > 0 && !backup_before(d, version, e))
        return false;
    /* another process may have migrated meanwhile, so the version is read under the lock */
    if (!db_exec(d, "BEGIN IMMEDIATE", e))
        return false;
    if (apply_migrations(d, list, n, e) && db_exec(d, "COMMIT", e))
        return true;
    db_rollback(d);
    return false;
}

bool schema_accept(struct db *d, struct err *e)
{
    int64_t version;
    return read_version(d, &version, e) &&
           refuse_unknown(d, version, migrations, N_MIGRATIONS, e) &&
           (version == 0 || require_schema(d, migrations, N_MIGRATIONS, version, e));
}

bool schema_open(struct db *d, struct err *e)
{
    return schema_migrate(d, migrations, N_MIGRATIONS, e);
}

bool schema_make(struct db *d, struct err *e)
{
    char set[96];
    snprintf(set, sizeof set, "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
             APPLICATION_ID, SCHEMA_VERSION);
    return db_exec(d, "BEGIN", e) && run_sql(d, &migrations[N_MIGRATIONS - 1], e) &&
           db_exec(d, set, e);
}

static bool check_version(struct db *d, struct err *e)
{
    int64_t version;
    if (!read_version(d, &version, e) ||
        !refuse_unknown(d, version, migrations, N_MIGRATIONS, e))
        return false;
    if (version == 0)
        return err_set(e, ERR_DB, "%s has no session yet, its creation was interrupted: the next "
                       "chat or run that saves completes it", d->path);
    return version == SCHEMA_VERSION ||
           err_set(e, ERR_DB, "%s has schema version %lld, older than %d: start aerie once, it "
                   "makes a backup and migrates", d->path, (long long)version, SCHEMA_VERSION);
}

bool schema_check(struct db *d, struct err *e)
{
    return check_version(d, e) && require_schema(d, migrations, N_MIGRATIONS, SCHEMA_VERSION, e);
}

bool schema_report(struct db *d, struct buf *report, struct schema_diff *differ, struct err *e)
{
    char hex[65];
    *differ = (struct schema_diff){0};
    return check_version(d, e) &&
           ((schema_digest(d, hex) && strcmp(hex, schema_known_digest(false)) == 0) ||
            compare_text(d, migrations, N_MIGRATIONS, SCHEMA_VERSION, report, differ, e));
}

/* ---- packs ---- */

bool schema_make_pack(struct db *d, struct err *e)
{
    char set[96];
    snprintf(set, sizeof set, "PRAGMA application_id=%d; PRAGMA user_version=%d", PACK_ID,
             SCHEMA_VERSION);
    return run_sql(d, of_pack, e) && db_exec(d, set, e);
}

bool schema_check_pack(struct db *d, struct err *e)
{
    int64_t version, app;
    if (db_int(d, &version, 0, "PRAGMA user_version", "") ||
        db_int(d, &app, 0, "PRAGMA application_id", ""))
        return db_fail(d, e, "cannot read");
    if (app != PACK_ID || version < 1)
        return err_set(e, ERR_DB, "%s is no pack of aerie", d->path);
    return refuse_unknown(d, version, of_pack, 1, e) && require_schema(d, of_pack, 1, version, e);
}

/* ---- opening what exists ---- */

bool open_as(struct db *d, const char *path, int flags,
             bool (*accept)(struct db *d, struct err *e), struct err *e)
{
    enum file_owner owner = file_owner(path, e);
    if (owner == FILE_MISSING)
        return err_set(e, ERR_NEGATIVE, "%s: %s", path, strerror(ENOENT));
    if (owner != FILE_OURS || !db_open(d, path, flags, e))
        return false;
    if (accept(d, e))
        return true;
    db_close(d);
    return false;
}

bool open_existing(struct db *d, const char *path, int flags, struct err *e)
{
    if (!open_as(d, path, flags, schema_check, e))
        return false;
    if ((flags & SQLITE_OPEN_READONLY) || (db_sync_all(d, e) && seal_fits(d, e)))
        return true;
    db_close(d);
    return false;
}

/* ---- the journal ---- */

/* WAL needs shared memory between processes, which network file systems do not support. */
static bool is_network(const char *path)
{
    static const unsigned remote[] = {
        0x6969u /* NFS */,  0x517Bu /* SMB */,     0xFF534D42u /* CIFS */, 0xFE534D42u /* SMB2 */,
        0x01021997u /* 9p */, 0x00C36400u /* Ceph */, 0x5346414Fu /* AFS */, 0x47504653u /* GPFS */,
    };
    struct statfs fs;
    if (statfs(path, &fs) != 0)
        return false;
    return ANY(i, LEN(remote), (unsigned)fs.f_type == remote[i]);
}

bool schema_wal(struct db *d)
{
    bool remote = is_network(d->path), wal = false;
    sqlite3_stmt *st = remote ? db_cached(d, "PRAGMA journal_mode=DELETE", "")
                              : db_cached(d, "PRAGMA journal_mode=WAL", "");
    if (st && sqlite3_step(st) == SQLITE_ROW)
        wal = strcmp((const char *)sqlite3_column_text(st, 0), "wal") == 0;
    if (st)
        sqlite3_reset(st);
    return wal;
}
