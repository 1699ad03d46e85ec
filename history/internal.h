/* internal.h - what the files of history/ share: SQLite helpers, the schema, the chain, rows.
 *
 * A struct db belongs to one thread at a time. Functions that return int return an SQLite result
 * code, SQLITE_OK (0) on success; the text of the failure is in sqlite3_errmsg(d->h).
 */
#ifndef AERIE_HISTORY_INTERNAL_H
#define AERIE_HISTORY_INTERNAL_H

#include "history/history.h"

#include <sqlite3.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ids are stored as they lie");

/* ---- db.c: a connection, statements, bindings ------------------------------------------------ */

enum { MAX_CACHED = 64 };

struct db {
    sqlite3 *h;
    char *path;
    struct {
        const char *sql; /* a string literal: compared by address */
        sqlite3_stmt *st;
    } cached[MAX_CACHED];
    int n_cached;
    int failed; /* primary result code of the last db_fail() */
    int64_t work, limit; /* of a reader: SQLite's steps / 200 since db_prepare(), and how many may be;
                            0: any */
};

/* Opens with the safety settings every connection has (defensive, untrusted schema, cell checks,
 * busy timeout). flags: SQLITE_OPEN_*; path is a file: URI when SQLITE_OPEN_URI is among them. */
bool db_open(struct db *d, const char *path, int flags, struct err *e); /* *d must not move then */
void db_close(struct db *d);
/* path as a URI that makes SQLite read the file as it lies, without locks. The caller frees. */
char *db_immutable_uri(const char *path);
/* Fills *e (ERR_DB) with "PATH: WHAT: sqlite's message", then rolls back; returns false. */
bool db_fail(struct db *d, struct err *e, const char *what);
void db_rollback(struct db *d); /* the open transaction, if there is one */

/* Values follow `types`, one letter each: i int64_t · s char * (NULL: null) · t char *, size_t ·
 * b void *, size_t · n null. Pointers stay valid until the statement is reset. */
/* A fresh statement, the caller finalises; NULL and *e on failure. */
sqlite3_stmt *db_prepare(struct db *d, struct err *e, const char *sql, const char *types, ...);
/* A statement kept for the next call with the same literal; the caller resets. NULL on failure. */
sqlite3_stmt *db_cached(struct db *d, const char *sql, const char *types, ...);
/* Runs a cached statement to its end. */
int db_do(struct db *d, const char *sql, const char *types, ...);
/* The first column of the first row as an integer; `none` when there is no row or it is null. */
int db_int(struct db *d, int64_t *out, int64_t none, const char *sql, const char *types, ...);
/* Runs statements that need no values. */
bool db_exec(struct db *d, const char *sql, struct err *e);

char *col_str(sqlite3_stmt *st, int i);                  /* a copy; "" for null; the caller frees */
void col_id(sqlite3_stmt *st, int i, char out[SESSION_ID]);
/* A count or number between lo and LOG_MAX; null is 0. Anything else sets *fits to false: the row was
 * tampered with, and sums of such numbers could overflow. */
enum { LOG_MAX = INT32_MAX / 2 };
int col_int(sqlite3_stmt *st, int i, int lo, bool *fits);
void col_ids(sqlite3_stmt *st, int i, struct ids *out);  /* appends the packed ids of a blob */

/* ---- schema.c: versions, migrations, the schema's text ---------------------------------------- */

enum { APPLICATION_ID = 0x41455249 /* "AERI" */, SCHEMA_VERSION = 3 };

/* What leads from version `to` - 1 to version `to`. Version 0 is an empty file. */
struct migration {
    int to;
    const char *sql;
    int (*fill)(struct db *d); /* what SQL cannot compute; NULL: nothing */
};
extern const char schema_views[]; /* views.c: version 3 */
/* Brings the database to the last version of the list, in one transaction, after a backup beside
 * it ("PATH.v1-YYYYMMDD-HHMMSS") if it held anything. A newer or foreign database is refused. */
bool schema_migrate(struct db *d, const struct migration *list, int n, struct err *e);
/* The product's own schema. Writers call schema_accept() before they change anything, then
 * schema_open(), which creates or migrates; readers call schema_check(). Each refuses a database
 * that is foreign, newer, or holds anything but the text of its version: a view, a trigger. */
bool schema_accept(struct db *d, struct err *e);
bool schema_open(struct db *d, struct err *e);
bool schema_check(struct db *d, struct err *e);
/* As schema_check(), but differences from the text are lines of the report. */
bool schema_report(struct db *d, struct buf *report, int *differ, struct err *e);
/* WAL where it works; false: not on this file system, a rollback journal is used. */
bool schema_wal(struct db *d);

/* ---- file.c ---------------------------------------------------------------------------------- */

/* What lies at a path, judged by reading alone: nothing is created, changed or waited for. */
enum file_owner {
    FILE_MISSING,
    FILE_OURS,    /* a session log, maybe damaged, or an empty file */
    FILE_REFUSED, /* another program's, or no regular file; *e (ERR_DB) says which */
};
enum file_owner file_owner(const char *path, struct err *e);

bool file_make_folder(const char *path, struct err *e); /* the folders above path, 0700 */
/* Creates an empty 0600 file that must not exist; the descriptor, -1 and *e on failure. */
int file_create(const char *path, struct err *e);
/* Renames a damaged database and its -wal and -shm to PATH.corrupt-YYYYMMDD-HHMMSS. */
bool file_rename_damaged(const char *path, char **to, struct err *e);
void file_sync_folder(const char *path); /* a rename or removal in path's folder is on the disk */
/* "YYYYMMDD-HHMMSS", local time */
void time_stamp(char out[16]);

/* ---- live.c: which writers are alive, and what dead ones left -------------------------------- */

/* A writer holds a lock on byte `id` of PATH.live for as long as its process lives; the kernel
 * drops it however the process dies. */
struct live {
    int fd;
    int64_t id;
    char *path; /* of the database */
};
bool live_open(struct live *l, const char *path, struct err *e);
void live_close(struct live *l);
enum live_state { LIVE_NO, LIVE_YES, LIVE_UNKNOWN /* the file system has no locks */ };
enum live_state live_state(const struct live *l, int64_t id);
bool live_or_unknown(const struct live *l, int64_t id); /* also true when it cannot be told */

/* Ends the runs of dead writers: open turns become "crashed", with the text and the ids that were
 * stored before the end; sessions without a turn vanish. In one transaction, which is left open on
 * failure: db_fail() ends it. */
int recover_dead(struct db *d, const struct live *l, int *closed);
/* Closes one open reply row as "crashed"; inside the caller's transaction. */
int recover_turn(struct db *d, int64_t reply);

/* ---- aside.c: what could not be stored at the end, in a file beside the log -------------------- */

struct waiting;
struct writer;
char *side_file_name(const char *path, int64_t writer); /* the caller frees */
/* Writes events and cursor, synced, under their final name at once; over an older file. */
bool side_file_write(struct writer *w, const struct waiting *wait, int n, struct err *e);
bool side_file_exists(const char *path, int64_t writer);
void side_file_remove(const char *path, int64_t writer);
/* In the transaction that stores the events after all: a file that is left is not taken in. */
int side_file_note_stored(struct db *d, int64_t writer);
/* Stores what dead writers left, each in one transaction; *turns counts replies. False and *e when
 * one could not be stored: its file stays, or, if damaged, is renamed. */
bool side_files_store(struct db *d, const struct live *l, int *turns, struct err *e);

/* ---- hold.c: a session is open for writing in one process at a time --------------------------- */

/* Takes the session for the writer, in a transaction of its own; also true when it holds it
 * already. False and *e (ERR_DB) when another living process does: its pid and since when. */
bool session_lock(struct db *d, const struct live *l, const char *session, struct err *e);
/* Inside the caller's transaction: the writer's lock on a session, unless somebody has it; its
 * end (NULL: of all that the writer has); the end of those whose process died. */
int session_lock_row(struct db *d, const struct live *l, const char *session);
int session_unlock(struct db *d, const struct live *l, const char *session);
int session_unlock_dead(struct db *d, const struct live *l);

/* ---- chain.c --------------------------------------------------------------------------------- */

/* Every run, event and turn row of a session is a link: `link` counts from 1 in the order they were
 * completed, and chain = SHA-256(chain of the link before, kind, link, the row's content). */
enum link_kind { LINK_RUN, LINK_EVENT, LINK_TURN };

/* The chain of a session without links, from its own row; written to the row. */
int chain_begin(struct db *d, const char *session);
/* Appends the row to the session's chain. Its content must be final. */
int chain_add(struct db *d, const char *session, enum link_kind kind, int64_t row);
/* The session's row, its title and times too, and how its runs ended, under one checksum; called
 * in every transaction that changed one of them, before its end. */
int chain_seal(struct db *d, const char *session);
/* The session was created or deleted: the sum over all sessions follows. */
int chain_roll(struct db *d, const char *session, int by);
/* Runs a DELETE of sessions that ends in RETURNING id, and keeps the sum; *n: how many. NULL for a
 * statement that could not be made. */
int chain_delete(struct db *d, sqlite3_stmt *st, int *n);
/* For a database of version 1: the seals and the sum that it did not have. */
int chain_seal_all(struct db *d);
bool chain_verify(struct db *d, const char *session, int *turns, int *bad, struct buf *report,
                  struct err *e);

/* account.c: hdb_account() on any connection. */
bool account_check(struct db *d, const char *session, int *first, int *bad, struct buf *report,
                   struct err *e);

/* ---- write.c: one event into rows ------------------------------------------------------------ */

/* What the rows of the next event depend on. Copied before a transaction, so that a rollback puts
 * it back. */
struct cursor {
    char session[SESSION_ID], parent[SESSION_ID];
    int fork_turn;
    bool stored;         /* the session and this run have rows */
    int64_t run;
    int shift;           /* turn number in the log minus the engine's: see write_turn_begin() */
    struct buf settings; /* "name=value" lines in force */
    uint64_t draws;
    int64_t reply; /* the open turn's reply row; 0: none */
    int n, n_parts;
    struct buf text; /* reply text not yet in a turn_part row, of text_channel */
    int text_channel;
    struct ids seq; /* prompt and reply ids of turn seq_n, to store the next prompt's difference */
    int seq_n;      /* -1: not known */
};

/* An event that waits for its transaction. */
struct waiting {
    struct event ev;
    enum log_level level; /* when it arrived */
    size_t bytes;
};

struct writer {
    struct db db;
    struct live live;
    struct history_about about; /* own copies */
    struct cursor cur;
    int64_t newest_ms; /* time of the last event, on the wall clock */
};

/* Applies one event inside the caller's transaction. *ended: a turn was completed. */
int write_event(struct writer *w, const struct event *ev, enum log_level level, bool *ended);
/* Puts "name=value" in place of the line with that name, or at the end. */
void settings_set_line(struct buf *lines, const char *set);
void about_free(struct history_about *a);
int write_commit(struct writer *w); /* before each commit: pending text, the seal */
/* The run is over; a session without a turn vanishes unless `keep`. */
int write_end_run(struct writer *w, bool keep);
void cursor_copy(struct cursor *dst, const struct cursor *src); /* dst: freed or zeroed */
void cursor_free(struct cursor *c);

/* ---- admin.c ---- */

/* Opens a session log that exists and has this version's schema. */
bool open_existing(struct db *d, const char *path, int flags, struct err *e);

/* ---- rows.c: what several readers need ------------------------------------------------------- */

/* A user row stores only the ids after the first `shared`, which equal the beginning of the turn
 * before it (prompt, then reply). Turns `seq` from the sequence before a row to the one after it.
 * False: the row does not fit what is before it. */
bool sequence_next(struct ids *seq, bool is_user, int64_t shared, const void *ids, int bytes);
/* The sequence after turn n of a session. */
int sequence_load(struct db *d, const char *session, int n, struct ids *seq);

/* Keeps the word index at a turn row's text. was: its text before; NULL: the row is new. */
int turn_index(struct db *d, int64_t row, const char *was, const char *text, size_t n);

const char *step_kind_name(enum step_kind k); /* "prefill", "decode", "spec" */
int step_kind_parse(const char *s);           /* -1: none */
int op_parse(const char *s);                  /* -1: none */
enum op_kind op_last(void);

/* JSON in ASCII only. A string's bytes that are no UTF-8 become U+FFFD; false then. */
bool json_str(struct buf *b, const char *s, size_t n);
void json_int(struct buf *b, int64_t v);  /* a string beyond 2^53, where readers would round */
void json_float(struct buf *b, double v); /* null when it is not finite */
void tree_json(const struct tree *t, struct buf *b); /* an array of nodes */
/* One UTF-8 code point from p..end into *cp; its length, or -1 for a byte that starts none. */
int utf8_next(const char *p, const char *end, uint32_t *cp);

struct hdb {
    struct db db;  /* read-only */
    struct db sql; /* the inspector's own; h == NULL until hdb_sql() opens it */
    char *path;
    char warning[256];
};

#endif
