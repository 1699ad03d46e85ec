/* internal.h - what the files of history/ share: SQLite helpers, the schema, the chain, rows.
 *
 * A struct db belongs to one thread at a time. Functions that return int return an SQLite result
 * code, SQLITE_OK (0) on success; the text of the failure is in sqlite3_errmsg(d->h). Steps in a
 * row are written `a ?: b ?: c`: the first code that is not SQLITE_OK, after which no step runs.
 */
#pragma once

#include "history/history.h"

#include <sqlite3.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ids are stored in little-endian order");

/* ---- db.c: a connection, statements, bindings ------------------------------------------------ */

enum { MAX_CACHED = 160 };

struct db {
    sqlite3 *h;
    char *path;
    struct {
        const char *sql; /* a string literal: compared by address */
        sqlite3_stmt *st;
    } cached[MAX_CACHED];
    int n_cached;
    int failed; /* primary result code of the last db_fail() */
    int64_t work, limit; /* of a reader: SQLite VM instructions / 200 since db_prepare(), and their
                            limit; 0: none */
};

/* Opens a connection with the safety settings that all have (defensive, untrusted schema, no
 * triggers, no views, limits, cell checks, busy timeout). flags: SQLITE_OPEN_*; with
 * SQLITE_OPEN_URI the path is a file: URI. *d must not move while it is open. False and *e (ERR_DB)
 * on failure. */
bool db_open(struct db *d, const char *path, int flags, struct err *e);
void db_close(struct db *d);
/* Makes each commit durable (synchronous=EXTRA: FULL, and the folder is synced after a rollback
 * journal was deleted). It reads the file, so call it only once the file is known to be a log. */
bool db_sync_all(struct db *d, struct err *e);
/* From now on the connection's full-text indexes have the first MiB of each text (indexed.c). False
 * and *e (ERR_DB): SQLite was built without FTS5. */
bool index_bound(struct db *d, struct err *e);
/* path as a URI with immutable=1: SQLite reads the file without locks. The caller frees. */
char *db_immutable_uri(const char *path);
/* Opens such a URI: SQLite cannot open a WAL database in a read-only folder in any other way. What
 * the write-ahead log holds is not seen. */
bool db_open_immutable(struct db *d, const char *path, struct err *e);
bool db_wal_has_rows(const char *path); /* perhaps: the write-ahead log beside the database is not
                                           empty */
/* Fills *e (ERR_DB) with "PATH: WHAT: sqlite's message", then rolls back; returns false. */
bool db_fail(struct db *d, struct err *e, const char *what);
/* The text of SQLite's last failure, with the text of errno if a system call failed
 * (vfs_cause()). */
void db_why(const struct db *d, char why[200]);
/* The name of the VFS of all connections (vfs.c); NULL: SQLite has no default VFS to wrap. */
const char *vfs_name(void);
/* The errno of the last file operation in this thread that failed with this result code (its
 * primary code). 0: none has failed since vfs_forget(), or no system call failed, e.g. another
 * process had the lock. */
int vfs_cause(int rc);
void vfs_forget(void);
/* False and *e if a file operation failed in this thread since vfs_forget(). SQLite's search index,
 * and readers that can do without a row, do not report such a failure. */
bool db_whole(const char *path, struct err *e);
void db_rollback(struct db *d); /* the open transaction, if there is one */
/* Bytes of the database; used: without its free pages, which new rows take first. */
int db_bytes(struct db *d, bool used, int64_t *out);
/* Copies a database, as of one moment, to a new file (0600) without a journal, which appears when
 * it is complete. */
bool db_copy(struct db *from, const char *to, struct err *e);

/* Values to bind follow `types`, one letter each: i int64_t · d double (NaN: null) · s char *
 * (NULL: null) · t char *, size_t · b void *, size_t · n null. Pointers must stay valid until the
 * statement is reset. */
/* A new statement, which the caller finalises; NULL and *e on failure. */
sqlite3_stmt *db_prepare(struct db *d, struct err *e, const char *sql, const char *types, ...);
/* A walk over the rows of such a statement: while (db_next(&rows)) ...; then rows.ok says whether
 * all went well. The body ends the walk by clearing `more`, or `ok` after an error of its own. */
struct db_rows {
    struct db *d;
    sqlite3_stmt *st; /* NULL: it could not be prepared, or the walk is over */
    const char *what; /* "cannot read turns", for the error of a step */
    struct err *e;
    bool ok, more;
    int n; /* rows so far */
};
static inline struct db_rows db_rows(struct db *d, sqlite3_stmt *st, const char *what,
                                     struct err *e)
{
    return (struct db_rows){d, st, what, e, st != NULL, true, 0};
}
/* Goes to the next row. False: there is none; the statement is finalised. */
bool db_next(struct db_rows *rows);
/* A statement that is kept for the next call with the same string literal; the caller resets it.
 * NULL on failure. */
sqlite3_stmt *db_cached(struct db *d, const char *sql, const char *types, ...);
/* Runs a statement of db_cached() (NULL: it failed) to its end. bound: the result code of binding
 * more values; if it is an error, the statement does not run. */
int db_run(struct db *d, sqlite3_stmt *st, int bound);
/* Moves a statement of db_cached() (NULL: it failed) to its next row. False: there is none, the
 * statement is reset, and *rc says how it ended. A caller that leaves earlier resets
 * the statement. */
bool db_row(struct db *d, sqlite3_stmt *st, int *rc);
/* db_cached() and db_run() at once. */
int db_do(struct db *d, const char *sql, const char *types, ...);
/* Sets *out to the first column of the first row, or to `none` if there is no row or it is null. */
int db_int(struct db *d, int64_t *out, int64_t none, const char *sql, const char *types, ...);
/* Runs statements without values to bind. False and *e on failure. */
bool db_exec(struct db *d, const char *sql, struct err *e);

char *col_str(sqlite3_stmt *st, int i);                  /* a copy; "" for null; the caller frees */
void col_id(sqlite3_stmt *st, int i, char out[SESSION_ID]);
/* An integer between lo and LOG_MAX; null is 0. Any other value sets *fits to false: the row is
 * damaged, and sums of such values could overflow. */
enum { LOG_MAX = INT32_MAX / 2 };
int col_int(sqlite3_stmt *st, int i, int lo, bool *fits);
void col_ids(sqlite3_stmt *st, int i, struct ids *out);  /* appends the packed ids of a blob */
void col_json(sqlite3_stmt *st, int i, struct buf *b);   /* a number, or null for all else */

/* ---- copy.c: rows from one database to another ----------------------------------------------- */

/* "INSERT OR IGNORE" into a table with the columns of a statement; NULL on failure. The caller
 * finalises. */
sqlite3_stmt *insert_like(struct db *to, const char *table, sqlite3_stmt *from);
/* What becomes of a column that is not copied as it is; an array ends with PUT_END. */
struct put {
    enum { PUT_END, PUT_NULL, PUT_VALUE, PUT_MORE /* v is added to a number other than 0 */ } how;
    const char *column;
    int64_t v;
};
/* Copies all rows of a query (db_prepare(); it is finalised; NULL: it cannot be read) to a table
 * with columns of the same names. put may be NULL. A row that breaks a rule of the table is left
 * out. *whole: all rows could be read. Returns the result of writing. */
int rows_copy(sqlite3_stmt *from, struct db *to, const char *table, const struct put *put,
              bool *whole);
/* The same for a turn row (own) and for its rows in other tables (rest). */
int turn_copy(struct db *from, struct db *to, int64_t turn, const struct put *own,
              const struct put *rest, bool *whole);

/* ---- schema.c: versions, migrations, the schema's text --------------------------------------- */

enum {
    APPLICATION_ID = 0x41455249 /* "AERI" */,
    PACK_ID = 0x41455250 /* "AERP" */,
    SCHEMA_VERSION = 9, /* the first that was released */
    MIGRATION_PARTS = 3
};

/* The migration to version `to` from the one before it in the list; the list's first makes the
 * tables in an empty file (version 0). */
struct migration {
    int to;
    const char *sql[MIGRATION_PARTS]; /* run in order, up to the first NULL */
    int (*fill)(struct db *d); /* computes values that SQL cannot; NULL: none */
};
extern const char schema_views[]; /* views.c */
/* Migrates the database to the last version of the list, in one transaction, after a backup beside
 * it ("PATH.v1-YYYYMMDD-HHMMSS") unless it was empty. A newer or foreign database is refused. */
bool schema_migrate(struct db *d, const struct migration *list, int n, struct err *e);
/* aerie's own schema. Writers call schema_accept() before they change anything, then schema_open(),
 * which creates or migrates; readers call schema_check(). Each refuses (ERR_DB) a database that is
 * foreign, newer, or whose schema differs from the text of its version, e.g. by a trigger. */
bool schema_accept(struct db *d, struct err *e);
bool schema_open(struct db *d, struct err *e);
bool schema_check(struct db *d, struct err *e);
/* How a database's schema differs from the text of its version. */
struct schema_diff {
    int n;            /* objects that are missing, were added or changed */
    char first[200];  /* a line about the first of them */
    char table[200];  /* about one that is a table of aerie, the full-text index aside; "": there is
                         none */
};
/* As schema_check(), but differences from the text are lines of the report, not an error. */
bool schema_report(struct db *d, struct buf *report, struct schema_diff *differ, struct err *e);
/* Makes the log's tables in an empty database, without a row. */
bool schema_make(struct db *d, struct err *e);
/* A digest of the schema's text, and the one that a new log or pack of this version has. */
bool schema_digest(struct db *d, char hex[65]);
const char *schema_known_digest(bool pack);
/* Opens a session log that exists and that `accept` accepts. */
bool open_as(struct db *d, const char *path, int flags, bool (*accept)(struct db *d, struct err *e),
             struct err *e);
/* Opens a session log that exists and has this version's schema; to write, it must fit the key
 * (seal.c). */
bool open_existing(struct db *d, const char *path, int flags, struct err *e);
/* Of packs (pack_file.c), which have the log's tables, the table `pack` and PACK_ID. Make: all
 * tables, in an empty database. Check: refuses (ERR_DB) what is no pack, one of another version,
 * and one whose schema differs from the text. */
bool schema_make_pack(struct db *d, struct err *e);
bool schema_check_pack(struct db *d, struct err *e);
/* Switches to WAL. False: the file system does not support it, and a rollback journal is used. */
bool schema_wal(struct db *d);

/* ---- file.c ---------------------------------------------------------------------------------- */

/* Whose file is at a path. Only the header is read: nothing is created or changed, no lock is
 * waited for, and this process loses no lock. A process that has the log open may open PATH through
 * SQLite only: see read_header() in file.c. */
enum file_owner {
    FILE_MISSING,
    FILE_OURS,    /* a session log, perhaps damaged, or an empty file */
    FILE_PACK,    /* a pack; *e (ERR_DB) says that it can only be read */
    FILE_FOREIGN, /* another program's, or a log whose header is damaged; *e (ERR_DB) says so */
    FILE_REFUSED, /* not a regular file, or it cannot be read; *e (ERR_DB) says why */
};
enum file_owner file_owner(const char *path, struct err *e);
/* Opens a file beside the log (PATH.live, PATH-wal, ...): flags as for open(), mode 0600. A link,
 * and anything but a regular file, is refused, because aerie makes regular files only. -1 and *e;
 * errno ENOENT: there is none. All files of history/ whose names are not the user's are opened
 * here. */
int file_open_beside(const char *name, int flags, struct err *e);

bool file_make_folder(const char *path, struct err *e); /* creates the folders above path, 0700 */
/* Creates a file (0600) that must not exist; returns its descriptor, or -1 and *e (ERR_DB). */
int file_create(const char *path, struct err *e);
/* For a file that appears under its name only when it is complete, whatever interrupts its writing.
 * Begin: creates PATH.part (its name, which the caller frees with file_complete(), in *part) and
 * returns its descriptor; -1 and *e (ERR_DB) if that fails or PATH exists. Complete: if ok, syncs
 * and renames it; else removes it. False: PATH does not exist (ok: and *e says why). */
int file_begin(const char *path, char **part, struct err *e);
bool file_complete(int fd, bool ok, char *part, const char *path, struct err *e);
/* Renames a damaged database and its -wal and -shm to PATH.corrupt-YYYYMMDD-HHMMSS; *to is the new
 * name, which the caller frees. */
bool file_rename_damaged(const char *path, char **to, struct err *e);
void file_sync_folder(const char *path); /* makes a rename or removal in path's folder durable */
/* "YYYYMMDD-HHMMSS", local time */
void time_stamp(char out[16]);

/* ---- live.c: which writers are alive, and the sessions that they lock ------------------------ */

/* A writer holds a lock on byte `id` of PATH.live for as long as its process lives; the kernel
 * releases the lock however the process dies. */
struct live {
    int fd;
    int64_t id;
    char *path; /* of the database */
};
/* Creates PATH.live, durably. Call it before a log is created: by this file a log is recognised
 * whose creation was interrupted. */
bool live_create(const char *path, struct err *e);
bool live_open(struct live *l, const char *path, struct err *e);
void live_close(struct live *l);
/* Whether a writer lives, or the file system has no locks to tell. */
bool live_or_unknown(const struct live *l, int64_t id);

/* Locks the session for the writer in a transaction of its own; true also if the writer has the
 * lock already. False and *e (ERR_DB); *elsewhere: another living process has it. */
bool session_lock(struct db *d, const struct live *l, const char *session, bool *elsewhere,
                  struct err *e);
/* Inside the caller's transaction: locks a session unless it is locked; unlocks a session (NULL:
 * all that the writer has locked); removes the locks of dead processes. */
int session_lock_row(struct db *d, const struct live *l, const char *session);
int session_unlock(struct db *d, const struct live *l, const char *session);
int session_unlock_dead(struct db *d, const struct live *l);

/* ---- side_file.c: events that could not be stored, in a second log beside the first ---------- */

struct waiting;
struct writer;
char *side_file_name(const char *path, int64_t writer); /* the caller frees */
/* Writes the rows of the waiting events to the writer's side file: synced, then renamed to its
 * final name, so that the file is never incomplete. Replaces an older one. False and *e (ERR_DB) on
 * failure. */
bool side_file_write(struct writer *w, const struct waiting *wait, int n, struct err *e);
bool side_file_exists(const char *path, int64_t writer);
void side_file_remove(const char *path, int64_t writer);
/* Called in the transaction that stores the events after all: notes that the side file, if it stays
 * behind, must not be stored again. */
int side_file_note_stored(struct db *d, int64_t writer);
/* Stores the side files of dead writers, each in one transaction; *turns counts the replies. False
 * and *e if one could not be stored: its file stays, or is renamed if damaged. */
bool side_files_store(struct db *d, const struct live *l, int *turns, struct err *e);

/* ---- salvage.c ---- */

/* Copies what can be read of the tables in the database file `path`, whose schema is damaged, to
 * `log`, an empty database that becomes a log of the same version. */
bool salvage(const char *path, struct db *log, struct err *e);

/* ---- parents.c: for repair.c ---- */

/* Copies the readable rows of `build`, `model`, `server` and `tokenizer` to the new log. Calls
 * broken(arg, table) for a table of which some rows could not be read. These functions return an
 * SQLite result code of writing. */
int parents_copy(struct db *from, struct db *to, void (*broken)(void *arg, const char *table),
                 void *arg);
/* Adds a placeholder for each row (build, model, draft model, server) that a run of `from` refers
 * to and that is lost; appends the names of these rows to *lost. */
int parents_of_run(struct db *from, struct db *to, int64_t run, struct buf *lost);
/* Adds a placeholder for a lost run. Its build and its model are placeholders, too. */
int parents_lost_run(struct db *to, const char *session, int64_t run, int64_t created_ms);

/* ---- hash.c: hashes of rows ------------------------------------------------------------------ */

void hash_int(struct sha256 *s, int64_t v);
/* Hashes type, length and bytes of a value, so that two different rows never hash the same bytes.
 */
void hash_column(struct sha256 *s, sqlite3_stmt *st, int i);
/* Hashes every row of a statement of db_cached() (NULL: it failed), and their number. */
int hash_rows(struct sha256 *s, struct db *d, sqlite3_stmt *st);

/* ---- head.c: the chain over the whole database ----------------------------------------------- */

/* Every change of an object's checksum appends a row to `head`. Objects (what, name): a session
 * (its id), a build, a model, a server, a tokenizer (the row's id). The newest row of an object has
 * its present checksum, or an empty one if aerie deleted the object. */
int head_add(struct db *d, const char *what, const char *name, const void *sum, size_t n);
/* The same for a row of one of these tables, with a checksum over its columns. */
int head_add_row(struct db *d, const char *table, int64_t id);
/* The same for the row that the last INSERT OR IGNORE has added; nothing if it added none. */
int head_add_inserted(struct db *d, const char *table);
/* Call it before an object is changed in a transaction. sum: the checksum computed from its content
 * (NULL: the content does not match the stored one). If the newest head has another checksum,
 * another program changed the object: a head of the kind "damage" records that, because the next
 * head would make the foreign change look like aerie's own. */
int head_touch(struct db *d, const char *what, const char *name, const uint8_t *sum);
int head_touch_row(struct db *d, const char *table, int64_t id);
/* Updates the checksum over the tables that have no heads: session locks, stored side files,
 * counters. Call it in every transaction that changed one of them. */
int head_state(struct db *d);
int head_add_table(struct db *d, const char *table); /* of each of its rows */
/* Verifies the chain of heads, with a key of history_seal_with() also their seals, and compares
 * each object with its newest head. Adds to *bad, and a line each to report (may be NULL). */
bool head_verify(struct db *d, int *bad, struct buf *report, struct err *e);

/* Names the last head in report, and whether the log has the head that the user noted earlier
 * (`head`, may be NULL). */
bool head_report(struct db *d, const char *head, struct buf *report, bool *clean, struct err *e);

/* ---- seal.c: the key of history_seal_with() -------------------------------------------------- */

void hmac_sha256(const void *key, size_t n_key, const void *p, size_t n, uint8_t out[32]);
bool seal_has_key(void);
/* The seal of a head. False: there is no key. */
bool seal_of_head(int64_t n, const uint8_t chain[32], uint8_t out[32]);
/* False: this process has a key, the head has a seal (not NULL), and the seal was made with another
 * key. */
bool seal_of_head_matches(int64_t n, const uint8_t chain[32], const void *seal, int n_seal);
/* Whether the last head is sealed and this process has no key. */
bool seal_is_missing(struct db *d);
/* Refuses (ERR_DB) to write to a log whose last seal was made with another key. */
bool seal_fits(struct db *d, struct err *e);

/* ---- chain.c --------------------------------------------------------------------------------- */

/* Every run, event and turn row of a session is a record: `link` counts from 1 in the order they
 * were completed, and sum = SHA-256(kind, link, the row's content). session.links is the last link,
 * and session.chain = SHA-256(session.chain before, sum), for each record in this order. */
enum link_kind { LINK_RUN, LINK_EVENT, LINK_TURN };

/* Appends a row to the session's chain. The row's content must be final. */
int chain_add(struct db *d, const char *session, enum link_kind kind, int64_t row);
/* Updates the session's seal: one checksum of its row (title and times included) and of how its
 * runs ended. Call it in every transaction that changed one of them, before its end. */
int chain_seal(struct db *d, const char *session);
/* Call it in every transaction before the first change of a session that has rows: see
 * head_touch(). */
int chain_touch(struct db *d, const char *session);
/* Runs a DELETE of sessions that ends in RETURNING id, and adds their heads; *n: sessions deleted.
 * st may be NULL (db_cached() failed). */
int chain_delete(struct db *d, sqlite3_stmt *st, int *n);
/* Updates the checksum over a tokenizer's texts for n that were added. */
int chain_texts(struct db *d, int64_t tokenizer, const int32_t *id, int n);
/* For repair.c: the checksum of a record, and whether the session's seal is that of its content. */
int chain_sum(struct db *d, enum link_kind kind, int64_t row, int64_t link, uint8_t out[32]);
int chain_seal_holds(struct db *d, const char *session, bool *same);
/* Removes the texts of tokenizers whose texts do not have their checksum. *bad: of how many. */
int chain_drop_texts(struct db *d, int64_t *bad);
int chain_begin_log(struct db *d); /* of a new database: the row of `roll` */
bool chain_verify(struct db *d, const char *session, int *turns, int *bad, struct buf *report,
                  struct err *e);

/* hdb_account() (account.c) on any connection. */
bool account_check(struct db *d, const char *session, int *first, int *bad, struct buf *report,
                   struct err *e);

/* ---- write.c: one event into rows ------------------------------------------------------------ */

/* The writer's state between events. It is copied before a transaction and restored after a
 * rollback. */
struct cursor {
    char session[SESSION_ID], parent[SESSION_ID]; /* session "": of none */
    int fork_turn;
    bool beside;         /* of event.beside */
    bool touched;        /* this transaction changed the session */
    bool stored;         /* the session and this run have rows */
    int64_t run;
    int shift;           /* turn number in the log minus the engine's: see number_turn() */
    struct buf settings; /* "name=value" lines in force */
    uint64_t draws;
    int64_t reply; /* the open turn's reply row; 0: none */
    int n, n_parts;
    struct buf text; /* reply text of text_channel that is not yet in a turn_part row */
    int text_channel;
    struct ids seq; /* ids of prompt and reply of turn seq_n; the next prompt is stored relative to
                       them */
    int seq_n;      /* -1: unknown */
};

/* An event that waits to be committed. */
struct waiting {
    struct event ev;
    enum log_level level; /* when it arrived */
    size_t bytes;
};

/* ---- texts.c: the texts of tokens ------------------------------------------------------------ */

/* A copy of a vocabulary. */
struct vocabulary {
    int n;
    size_t *at;  /* (n + 1) where the text of each id begins in bytes */
    char *bytes;
};
struct vocabulary vocabulary_copy(const struct history_texts *t); /* t may be NULL */
void vocabulary_free(struct vocabulary *v);

/* Which texts the log holds already; belongs to the writer. */
struct texts {
    struct vocabulary vocab;
    int64_t tokenizer; /* row; 0: not known yet */
    uint8_t *stored;   /* (vocab.n) 1: the row is there, or is inserted by this transaction */
    struct ids fresh;  /* inserted by this transaction */
};
void texts_take(struct texts *t, struct vocabulary *v); /* another vocabulary, which is moved */
void texts_free(struct texts *t);
/* Stores the texts of those of n ids that the log does not hold; inside the caller's transaction.
 * sha: of the tokenizer; "": nothing is stored. */
int texts_store(struct db *d, struct texts *t, const char *sha, const int32_t *id, int n);
void texts_ended(struct texts *t, bool committed); /* the transaction */

struct writer {
    struct texts texts;
    struct db db;
    struct live live;
    struct history_about about; /* own copies */
    struct cursor cur;     /* of the session of the latest event */
    struct cursor *parked; /* (n_parked) cursors of the other open sessions. At most one of all
                              cursors is not `beside`: that of the conversation */
    int n_parked;
    bool has_wal; /* false: a rollback journal */
    bool aside;   /* it fills a side file: prompts are stored whole, and what has rows in the log is
                     neither ended as crashed nor deleted */
    int64_t newest_ms; /* time of the last event, on the wall clock */
};

/* Steps of write_event() on w->cur that side_file.c needs. Store: the session's row, unless it
 * exists, and a row for this process's run. Number: for people, unless it has one. Reply: an empty
 * row. Assign: the number in the log of the turn that ev begins; *last: the one before. */
int store_session(struct writer *w, const struct event *ev);
int number_session(struct writer *w);
int insert_reply(struct writer *w, int64_t ms);
int assign_turn_number(struct writer *w, const struct event *ev, int64_t *last);
/* Applies one event inside the caller's transaction. *ended: a turn was completed. */
int write_event(struct writer *w, const struct event *ev, enum log_level level, bool *ended);
/* Closes one open reply row as "crashed"; inside the caller's transaction. */
int recover_turn(struct db *d, int64_t reply);
/* Puts "name=value" in place of the line with that name, or at the end. draft.shape has the parts
 * draft.steps, draft.topk and draft.nodes: the lines of what follows from the value change, too. */
void settings_set_line(struct buf *lines, const char *set);
void about_free(struct history_about *a);
int write_commit(struct writer *w); /* call before each commit: writes pending texts and seals */
/* Ends all runs, with their open turns. Deletes sessions without a turn. */
int write_end_all(struct writer *w);

/* cursors.c: the open sessions of a writer. */
void cursor_free(struct cursor *c);
/* Makes the session's cursor w->cur and parks the one before. False: it has none, nothing changes.
 */
bool cursors_switch(struct writer *w, const char *session);
/* As above, for the conversation's cursor; if there is none, w->cur becomes empty. */
void cursors_conversation(struct writer *w);
void cursors_park(struct writer *w); /* w->cur becomes empty; an empty one is not kept */
/* Calls fn for each cursor that is not empty, as w->cur, until one returns an error. */
int cursors_each(struct writer *w, int (*fn)(struct writer *w));
/* A copy of all cursors, to be taken back after a rollback, or dropped. */
struct cursors_saved {
    struct cursor cur, *parked;
    int n_parked;
};
void cursors_save(const struct writer *w, struct cursors_saved *out);
void cursors_restore(struct writer *w, struct cursors_saved *saved);
void cursors_drop(struct cursors_saved *saved);
void cursors_free(struct writer *w);

/* ---- open.c ---------------------------------------------------------------------------------- */

/* Opens the database for the writer: creates or migrates it, locks a byte for the process (live.c),
 * stores side files and closes the turns of dead writers. notice: one line if anything unusual
 * happened, else unchanged. False and *e (ERR_DB) on failure; nothing is open then. */
enum { NOTICE_BYTES = sizeof ((struct history_status *)0)->notice };
bool writer_open(struct writer *w, const char *path, char notice[NOTICE_BYTES], struct err *e);
/* Ends the runs of dead writers in one transaction: open turns become "crashed", with the text and
 * the ids stored so far (*closed: how many); sessions without a turn are deleted. On failure the
 * transaction stays open: db_fail() ends it. */
int recover_dead(struct db *d, const struct live *l, int *closed);

/* ---- rows.c: functions of several readers ---------------------------------------------------- */

/* A user row stores its prompt's ids without the first `shared`, which equal those of the previous
 * turn (prompt and reply). Changes *seq from the ids before a row to the ids after it. False: the
 * row does not fit the rows before it. */
bool sequence_next(struct ids *seq, bool is_user, int64_t shared, const void *ids, int bytes);
/* Sets *seq to the ids after turn n of a session. */
int sequence_load(struct db *d, const char *session, int n, struct ids *seq);

/* The facts of n tokens as the log packs them (schema.c). False: p is not n facts. */
bool token_facts_unpack(const void *p, size_t bytes, int n, struct token_fact **out);

/* Orders sessions `s` by their last use: "ORDER BY" SESSION_USED ", s.last_run". The wall clock may
 * have been wrong, so the key is the id of the session's latest turn (ids ascend in the order of
 * storing); if the latest run has no turn, the id of the latest turn of any run before. */
#define SESSION_USED                                                                               \
    "coalesce((SELECT u.id FROM turn u WHERE u.session_id = s.id AND u.run_id = s.last_run"        \
    " ORDER BY u.n DESC, u.role LIMIT 1), (SELECT u.id FROM run o JOIN turn u ON"                  \
    " u.session_id = o.session_id AND u.run_id = o.id WHERE o.id < s.last_run"                     \
    " ORDER BY o.id DESC, u.id DESC LIMIT 1), 0)"

/* Updates the full-text index for a turn row. was: the row's previous text; NULL: the row is
 * new. */
int turn_index(struct db *d, int64_t row, const char *was, const char *text, size_t n);

/* What a server reported of a reply row and of a step (served.c). *out: NULL where it was computed
 * here, or nothing was reported; the caller frees. False and *e on failure. */
bool served_read(struct db *d, int64_t reply, struct served **out, struct err *e);
bool served_read_tops(struct db *d, int64_t step, struct tops **out, struct err *e);

int op_parse(const char *s);                  /* -1: none */
enum stop_reason stop_parse(const char *s);   /* unknown: STOP_CRASHED */

/* ---- pack_file.c ----------------------------------------------------------------------------- */

struct pack {
    struct buf file; /* the database, and behind it the seal */
    struct pack_about about;
};

struct hdb {
    struct db db;  /* read-only */
    struct db sql; /* the connection of hdb_sql(); h == NULL until its first call */
    char *path;
    char warning[256];
    struct pack *pack; /* NULL: a log */
};

/* Writes a database's bytes and their seal to a new file, 0600, synced. False and *e on failure:
 * there is no file then. */
bool pack_write(const char *path, const void *bytes, size_t n, struct err *e);
bool pack_save(const char *path, struct db *d, struct err *e); /* the same for a database in
                                                                  memory */
/* Whether a file's last line is the seal of its other bytes. False: *e (ERR_DB) says how it
 * differs. */
bool pack_seal_holds(const char *path, const struct buf *file, struct err *e);
/* Reads the pack h->path, checks seal and schema, and opens h->db on its bytes. False and *e
 * (ERR_DB): h is as before. */
bool pack_open(struct hdb *h, struct err *e);
void pack_close(struct hdb *h); /* connections, too */
/* A read-only connection to the database in such a file, whose bytes must stay where they are. */
bool pack_connect(struct db *d, const char *path, const struct buf *file, struct err *e);

/* ---- pack.c ---------------------------------------------------------------------------------- */

/* What a pack keeps of a table: every column stands in one of the lists (names between blanks). */
struct pack_rule {
    const char *table, *where; /* ?1: session, ?2: order before which rows are kept */
    const char *facts;  /* kept always: neither text nor ids */
    const char *paths;  /* without text: the last component only */
    const char *ids;    /* ids and digests over them: -1 and 0 at PACK_SHAPE */
    const char *text;   /* kept at PACK_TEXT; of event also where the text is technical */
    const char *never;  /* never kept: checksums and process ids of the log */
    const char *of_id;  /* the column with a token id: a row is left out if the pack does not hold
                           the id, or if the pack has no text */
    const char *slice;  /* the column with the step's id; rows of steps outside of a slice are left
                           out */
};
const struct pack_rule *pack_rule(int i);   /* NULL after the last */
bool pack_names(const char *list, const char *name); /* whether a list (may be NULL) has a name */
