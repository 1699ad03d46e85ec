/* history.h - the session log: an SQLite database with one writer thread, and readers.
 *
 * The writer consumes engine events from one queue (engine/event.h) and owns the writing
 * connection. Each reader opens its own read-only connection on the thread that uses it. An
 * acknowledged turn survives a crash and a power failure: the transaction that ends a turn is
 * committed with synchronous=EXTRA before the turn is acknowledged; the steps before it are
 * committed about every 100 ms with synchronous=NORMAL. Text is stored byte for byte; code that
 * shows it must sanitise it.
 *
 * Threads: the writer thread owns the writing connection and the events that wait for their
 * commit. Its callers give it events through the queue, and share with it, under a mutex, the
 * level, the description, the status and the marks of history_flush(). A struct hdb, its
 * connection and what it returned belong to the thread that opened it. */
#pragma once

#include "engine/event.h"

/* From now on, if SQLite cannot allocate memory, the program ends (no_memory()), because a
 * statement that failed in this way would look like one that has no more rows. A value has at most
 * 256 MiB (db_open()). Call it once, before any other function that uses SQLite. */
void history_claim_memory(void);

/* ---- writing --------------------------------------------------------------------------------- */

/* Each level stores what the previous one does, and: */
enum log_level {
    LOG_OFF,   /* nothing, except the end of a turn that is already stored */
    LOG_TEXT,  /* sessions, turns (text, ids, settings, seed), operations, notices, faults */
    LOG_STEPS, /* every cycle with its ids, digests, margin and times */
    LOG_TREE,  /* draft trees, page events, facts of emitted tokens: the default */
};

struct history; /* the writer */

/* The build, models and options to which the session rows of this process refer. Strings are
 * copied. */
struct history_about {
    const char *version, *device, *flags;
    const char *model_dir, *model_sha, *draft_dir, *draft_sha, *tokenizer_sha;
    const char *server, *server_version, *server_url, *server_facts; /* as in struct backend_info;
                           server NULL: computed here. model_dir: the name by which it serves the
                           model */
    const char *config; /* options that a replay needs, as "name=value" lines: page_size, context,
                           full_pages, swa_pages, capture, raw, kv */
};

/* The database's default path: $XDG_DATA_HOME/aerie/sessions.db, else
 * ~/.local/share/aerie/sessions.db. A relative XDG_DATA_HOME is ignored. The caller frees. */
char *history_default_path(void);

/* Opens or creates the database (folder 0700, files 0600), migrates an older schema after a backup,
 * refuses a newer one, marks turns that a killed process left open as "crashed", and starts the
 * writer thread. NULL and *e (ERR_DB) on failure. A damaged database is renamed to
 * PATH.corrupt-YYYYMMDD-HHMMSS and a new one is created; status.notice says so. Ignores SIGXFSZ for
 * the whole process. The caller ends with history_close(). */
struct history *history_open(const char *path, enum log_level level,
                             const struct history_about *about, struct err *e);
/* What an isolated process may not do to the log at path (repl/process/isolate.h). If it will be
 * written: takes the permissions of group and others from it. For root at another user's log: makes
 * the files beside it, with its owner. Nothing happens to a file that is no log. */
void history_before_isolation(const char *path, bool written);
/* The texts of a vocabulary, for a log that can be read without its model. */
struct history_texts {
    int n; /* ids 0 .. n - 1; 0: not known */
    const char *(*text)(void *arg, int32_t id, size_t *n); /* its bytes, not always UTF-8 */
    void *arg;
};
/* Replaces `about` of history_open() for the sessions that begin from now on. The models' hashes
 * are known only after the engine is open, and the engine is opened with the log's queue; so this
 * is called in between, before the first request. texts (or NULL) is copied during the call: the
 * engine may be closed while events of it still wait. */
void history_describe(struct history *h, const struct history_about *about,
                      const struct history_texts *texts);
/* The events that are not stored yet when the log is closed. */
struct history_left {
    bool some;       /* there is such an event; turns is 0 if all are operations and notices */
    bool failed;     /* a commit of them has failed; else they are still being stored */
    int turns;       /* replies among them */
    char why[256];   /* if `failed` */
    char kept[512];  /* the side file with all of them, which the next start stores; "": there is
                        none */
};
/* Before history_finish(), if a signal ends the program: where the disk takes long to store the
 * events, nothing is written that the next start can do as well (the checkpoint of the WAL). */
void history_hasten(struct history *h);
/* Closes the queue and waits up to ms until all events are stored. False: *left describes those
 * that are not yet; the writer keeps storing, and the caller may call again to wait longer. Only
 * history_join() says that an event is lost. */
bool history_finish(struct history *h, int ms, struct history_left *left);
/* Ends the writer after the commit that it is in, however long the disk takes for it: the writer
 * tries no failed commit again, and writes the events that are not stored to a side file. True: all
 * are stored. *left describes the others, for good. */
bool history_join(struct history *h, struct history_left *left);
/* Stores all queued events, checkpoints the WAL, ends the thread and frees *h. Events that cannot
 * be stored within 2 s (after history_finish(): at once) are written to a side file. NULL is
 * allowed. */
void history_close(struct history *h);
struct evq *history_queue(struct history *h); /* give this to engine_opts.log */
/* Sets the level of the events that are queued from now on; any thread. */
void history_level(struct history *h, enum log_level level);

/* Seals everything that this process records in any log with the key in a file; checks then verify
 * the seals. NULL: no key. Call it before a log is opened. False and *e (ERR_USAGE): the file is
 * not a regular file, not private to its owner, or not 16 to 4096 bytes long. */
bool history_seal_with(const char *file, struct err *e);

/* State for the status line; any thread. */
struct history_status {
    bool recording;      /* false: the level is off, or writing fails and events wait in memory */
    uint64_t acked_turns; /* turns that were committed with synchronous=EXTRA */
    uint64_t mark_stored; /* the newest history_mark() before which every event is committed */
    uint64_t mark_failed; /* the newest one before which an event's commit failed, for another
                             reason than the lock of another process. The writer tries the commit
                             again, so the mark may be stored later */
    uint64_t queued;      /* events waiting to be committed */
    uint64_t room;        /* capacity of the array of waiting events */
    char error[256];     /* why events are not saved; empty again once all are stored */
    int64_t bytes;       /* of the database, without free pages; 0: not known yet */
    enum log_room { ROOM_ENOUGH, ROOM_LITTLE, ROOM_NONE } room_left; /* of max_bytes; from 90 % on
                                                                         little */
    char limit[160];     /* a line about that, unless there is enough */
    uint64_t left_out;   /* turns that were not stored, because the log is full */
    char notice[256];    /* one line about an unusual opening, e.g. a damaged log; constant */
};
void history_status(struct history *h, struct history_status *s);
/* A limit on the size of the database. At max_bytes either status.limit says so and storing goes
 * on, or (stop) turns that begin then are not stored and status.error says so; a turn that had
 * begun is stored. */
struct history_limit {
    int64_t max_bytes; /* 0: none */
    bool stop;
};
/* Sets it, and waits up to 2 s until the size is known; any thread. */
void history_set_limit(struct history *h, const struct history_limit *l);
/* A descriptor that becomes readable when the status changes, and when a mark is stored or fails,
 * until history_status() is called. */
int history_fd(const struct history *h);
/* Marks the events that this thread has posted so far: status.mark_stored reaches the number that
 * is returned, at least 1, when they are committed. They are committed soon, together with whatever
 * else waits. 0: the log is closed. Any thread. */
uint64_t history_mark(struct history *h);
/* Waits until every event posted before the call is committed. False: ms passed first, or the mark
 * failed as status.mark_failed says. Any thread. */
bool history_flush(struct history *h, int ms);
/* As history_flush(), but also ends, with false, soon after stop() says true. NULL: never. */
bool history_flush_unless(struct history *h, int ms, bool (*stop)(void));

/* For a program that stores many sessions at once; any thread, before it posts events. What is
 * posted between two marks becomes one transaction, if it is less than 16,384 events and 16 MiB.
 * The disk is synced where SQLite moves the write-ahead log into the database, and when the log is
 * closed, not for each turn: a killed process loses nothing that history_flush() waited for, a
 * power failure may lose the newest transactions. No turn is acknowledged. */
void history_store_many(struct history *h);

/* A session is open for writing in one process at a time. A new session is locked with its first
 * row; call this before an existing session is continued. False and *e (ERR_DB); *elsewhere:
 * because another process has the session open (*e says its pid and since when). The lock ends when
 * the writer begins another session or is closed, or when the process dies. Any thread. */
bool history_lock_session(struct history *h, const char *session, bool *elsewhere, struct err *e);
/* Releases the lock of history_lock_session() if the session is not continued after all. */
void history_unlock_session(struct history *h, const char *session);

/* A new session id: ULID (48 bits of milliseconds, 80 random bits, Crockford base 32). The ids of
 * one process ascend. */
void session_new_id(char out[SESSION_ID]);

/* ---- reading --------------------------------------------------------------------------------- */

struct hdb; /* a read-only connection; one thread */

/* Sets a function that readers call every 200 SQLite VM instructions and while they wait for a
 * lock. Once stop() returns true, queries end with the error "interrupted" (ERR_USAGE). NULL:
 * nothing stops them. Applies to the whole process; call it before the first hdb_open(), on the
 * reading thread. */
void hdb_stop_when(bool (*stop)(void));

/* Opens a log or a pack for reading. NULL and *e: ERR_NEGATIVE if the file does not exist, else
 * ERR_DB. If neither the file nor its folder can be written, a log is opened without locks, as
 * an immutable file, and hdb_warning() says so. A pack is read into memory, and refused unless
 * its seal matches; "last" names the session in it. The caller closes. */
struct hdb *hdb_open(const char *path, struct err *e);
/* False and *e (ERR_DB) if a system call on a log's file failed in this thread since hdb_open():
 * rows that were read since may be incomplete. */
bool hdb_whole(const struct hdb *d, struct err *e);
void hdb_close(struct hdb *d); /* may be NULL */
static inline void hdb_close_at(struct hdb **d) /* for FREED() */
{
    hdb_close(*d);
}
const char *hdb_warning(const struct hdb *d); /* "" when there is none */

/* A row of `session`. A forked session holds only its own turns; hdb_past() adds those of its
 * parents. */
struct session_row {
    char id[SESSION_ID], parent[SESSION_ID];
    int number; /* for people: counts from 1, never used again; 0: it has no turn yet */
    int fork_turn, n_turns;
    int64_t created_ms, updated_ms;
    char *title, *model; /* title: set by the user or the first message's first line */
    bool ended;
};
struct turn_row {
    int64_t rowid;
    char session[SESSION_ID];
    int n;
    bool is_user;
    bool regen;  /* /regen: the turn replaces the newest earlier turn that was not undone */
    bool undone; /* an OP_UNDO of this session names it */
    char *text;
    size_t text_n;
    struct ids tokens;  /* user: the whole prompt; reply: generated ids; empty in search results */
    int64_t seed;
    char *sampling;     /* settings lines in force */
    uint64_t draws0;    /* uniform random numbers drawn before the turn */
    uint64_t draws1;    /* the same after the turn; replies only */
    int64_t order;      /* merges with op_row.order; INT64_MAX for a reply that is still open */
    enum stop_reason stop; /* replies only */
    int n_reused, n_steps, n_drafted, n_accepted;
    struct served *served; /* replies: what the server reported; NULL: computed here */
    struct reuse reuse; /* user: why not more was reused; CHANGE_UNKNOWN: not logged */
    uint64_t us_prefill, us_decode;
    int64_t created_ms;
    char *snippet;      /* search results only, matches between \x01 and \x02 */
};
struct step_row {
    int turn, n;
    struct step_rec rec;
    struct ids tokens;
    struct token_fact *facts; /* one for each of tokens; NULL: not logged */
    struct tops *tops;        /* NULL: none are logged */
    struct tree *tree;        /* NULL when not logged */
    struct buf pages; /* page events as stored (engine/cache/page_event.h); empty: not logged */
};
struct op_row {
    int64_t order; /* when it happened, comparable with turn_row.order */
    enum op_kind op;
    int turn;
    char *text; /* as stored */
    struct ids turns; /* as in struct event; empty, step 0: not logged, or no such operation */
    struct forced_token forced;
};
void session_row_free(struct session_row *r);
/* Copies src to *dst, without the snippet; turn_row_free() frees the copy. */
void turn_row_copy(struct turn_row *dst, const struct turn_row *src);
void turn_row_free(struct turn_row *r);
void step_row_copy(struct step_row *dst, const struct step_row *src); /* deep; step_row_free() */
void step_row_free(struct step_row *r);
/* Append the columns of a step, of a server's report, as members of a JSON object. */
void step_row_json(const struct step_row *r, struct buf *b);
void served_report_json(const struct served *s, struct buf *b);
/* Appends a token's facts as a JSON object. */
void fact_json(const struct token_fact *f, struct buf *b);
/* Appends a draft tree as a JSON array of its nodes. */
void tree_json(const struct tree *t, struct buf *b);
void op_row_free(struct op_row *r);
/* A violated rule or a failure of the device in a turn. */
struct fault_row {
    int turn, step; /* step: the one that failed, 0: none */
    int rule;       /* the violated rule; 0: none */
    const char *text;
};

/* The functions below call fn for each row until it returns false; a row is valid during the call.
 * They return the number of rows, or -1 and *e (ERR_DB; ERR_USAGE if stopped).
 *
 * Sessions with at least one turn, latest used first. `query` (FTS5; NULL: all) selects sessions
 * with a matching turn, `model` (NULL: all) those whose model folder contains the text; limit 0:
 * none. */
int hdb_sessions(struct hdb *d, const char *query, const char *model, int limit,
                 bool (*fn)(const struct session_row *r, void *arg), void *arg, struct err *e);
/* Calls fn with the rowid of every turn row and its session, session by session. */
int hdb_turn_ids(struct hdb *d, bool (*fn)(int64_t turn, const char *session, void *arg), void *arg,
                 struct err *e);
/* Calls fn with the rowid of each turn row whose text has all these words; the last word may be the
 * beginning of one, unless a blank follows. */
int hdb_turns_with(struct hdb *d, const char *words,
                   bool (*fn)(int64_t turn, const char *unused, void *arg), void *arg,
                   struct err *e);
/* Sums over the replies of a session, without those that a fork inherited. */
struct session_sums {
    int replies;
    int64_t tokens, steps, drafted, accepted;
};
bool hdb_session_sums(struct hdb *d, const char *session, struct session_sums *out, struct err *e);
/* The session with a number ("12" or "#12"), with a full id, with the beginning of exactly one id,
 * or "last". False and *e: ERR_NEGATIVE if there is none, ERR_USAGE if the beginning is ambiguous.
 * The caller frees *out. */
bool hdb_find(struct hdb *d, const char *id, struct session_row *out, struct err *e);
/* How people name the session with this id: "#12", or the id where it has no number. */
void hdb_name(struct hdb *d, const char *session, char out[SESSION_ID]);
/* Turns in order (user and reply rows alternate; turn 0: all). */
int hdb_turns(struct hdb *d, const char *session, int turn,
              bool (*fn)(const struct turn_row *r, void *arg), void *arg, struct err *e);
int hdb_steps(struct hdb *d, const char *session, int turn,
              bool (*fn)(const struct step_row *r, void *arg), void *arg, struct err *e);
/* Calls fn for the text of every token that the log knows in the vocabulary of the session's latest
 * run, ids ascending; a log holds the texts of the ids that occur in it. Counts as above. */
int hdb_token_texts(struct hdb *d, const char *session,
                    bool (*fn)(int32_t id, const char *text, size_t n, void *arg), void *arg,
                    struct err *e);
/* Appends the text of one such token. False: the log does not know it. */
bool hdb_token_text(struct hdb *d, const char *session, int32_t id, struct buf *out);
int hdb_ops(struct hdb *d, const char *session,
            bool (*fn)(const struct op_row *r, void *arg), void *arg, struct err *e);
/* In the order in which they happened; those outside a turn are left out. */
int hdb_faults(struct hdb *d, const char *session,
               bool (*fn)(const struct fault_row *r, void *arg), void *arg, struct err *e);
/* Full-text search over turns, best first: an FTS5 query, or, if it is none, its words. */
int hdb_search(struct hdb *d, const char *query, int limit,
               bool (*fn)(const struct turn_row *r, void *arg), void *arg, struct err *e);
/* A run: the work of one process on a session, from `order` until the next run's. Ids ascend over
 * all sessions, so they also order runs of different sessions. */
struct run_row {
    int64_t id, order; /* order merges with op_row.order and turn_row.order */
    char *about;       /* lines as hdb_about() gives them */
};
/* Calls fn with the config of each run that has a line "name=...", and whose replies were not cut
 * off by the end of a process. Returns their number, or -1 and *e. */
int hdb_configs(struct hdb *d, const char *name, bool (*fn)(const char *config, void *arg),
                void *arg, struct err *e);
int hdb_runs(struct hdb *d, const char *session, bool (*fn)(const struct run_row *r, void *arg),
             void *arg, struct err *e);
/* Appends the session's latest run (build, models, options) as "name=value" lines. False and *e on
 * failure. */
bool hdb_about(struct hdb *d, const char *session, struct buf *out, struct err *e);

/* A session's whole conversation in the log: the turns of the sessions that it was forked from,
 * each up to the fork, then its own. */
enum past_state {
    PAST_LIVE,     /* in the context */
    PAST_FAILED,   /* a checker rule or the device stopped it before the first token: not in the
                      context */
    PAST_SILENT,   /* no token was generated for another reason: not in the context */
    PAST_REPLACED, /* a later turn answers the message again (/regen) */
    PAST_UNDONE,
    PAST_LEFT_OUT, /* removed from the context to make room, or by /forget */
};
/* "undone", "replaced", "left out of the context"; "" for a turn in the context. */
const char *past_mark(enum past_state s);
struct past_pair {
    struct turn_row user, reply; /* user.tokens is empty; reply.n == 0: there is no reply */
    enum past_state state;
    bool inherited; /* the turn belongs to a parent session, user.session */
};
struct hdb_past {
    struct past_pair *turn; /* (n) in order */
    int n;
    struct past_part { /* the sessions that contribute turns: the oldest parent first, the session
                          itself last */
        char session[SESSION_ID];
        int upto; /* its turns up to this number contribute */
    } *part;
    int n_part;
    int last;            /* the highest turn number used, undone turns included */
    int complete;        /* the highest whose reply is complete: another process may be writing the
                            last turn */
    uint64_t draws;      /* uniform random numbers drawn so far */
    char *system;        /* the last system prompt set, or NULL */
    struct buf settings; /* "name=value" lines in force at the end */
};
/* Reads the conversation as it is now (upto INT_MAX), or as it was when turn `upto` had ended (0:
 * before the first turn), which need not be a prefix of the present one: turns may have been undone
 * since. False and *e (ERR_DB) for an inconsistent log; *p is empty then. The caller frees *p. */
bool hdb_past(struct hdb *d, const char *session, int upto, struct hdb_past *p, struct err *e);
void hdb_past_free(struct hdb_past *p);

/* Read-only SQL with an authoriser, a row limit and a time limit (2 s). A text table, not
 * sanitised, with blobs as a hex prefix; or {"rows": [{column: value, ...}, ...], "truncated":
 * bool} in ASCII. Beside the tables and views (views.c) there are ids(tokens) and tree_json(nodes),
 * the same as JSON arrays. */
bool hdb_sql(struct hdb *d, const char *sql, bool json, int max_rows, struct buf *out,
             struct err *e);

/* Verifies the checksum chain of a session ("": of all). *turns: turns verified; *bad: records that
 * differ from their checksum, each a line in report (may be NULL). False and *e if the log cannot
 * be read. */
bool hdb_verify(struct hdb *d, const char *session, int *turns, int *bad, struct buf *report,
                struct err *e);

/* Finds replies of a session ("": of all) whose tokens differ from those of their logged steps:
 * *bad of them, each a line in report (may be NULL); *first is the turn number of the first. Turns
 * whose steps were not logged are skipped. False and *e if the log cannot be read. */
bool hdb_account(struct hdb *d, const char *session, int *first, int *bad, struct buf *report,
                 struct err *e);

/* From now on, hdb_save() and hdb_export() create files with `create`, which returns what open()
 * would. When a file is complete (keep) or has failed, they call `settle`, which keeps or removes
 * it. Both functions set errno. Call it before the first export. */
void hdb_create_through(int (*create)(const char *path),
                        bool (*settle)(const char *path, bool keep));

/* Writes a session ("last", an id or its beginning) as JSON lines in ASCII: the schema version,
 * then one record per row; a fork includes the turns before it. The file is created 0600 and must
 * not exist (path "-": standard output); an incomplete file is removed. False and *e on failure. */
bool hdb_export(struct hdb *d, const char *session, const char *path, struct err *e);
/* Writes n bytes to a file under the same rules. */
bool hdb_save(const char *path, const char *bytes, size_t n, struct err *e);

/* A pack: one file with a session (and those that it was forked from) as the log has it, to be
 * given away. Every reader above reads it; history/pack/PACK.md describes it. */
enum pack_level {
    PACK_TEXT,  /* messages, replies, titles, system prompts, notices, and the texts of tokens */
    PACK_IDS,   /* no text; token ids are kept, so the session can be computed again */
    PACK_SHAPE, /* no ids either, and no digest over them: it can be looked at only */
    N_PACK_LEVELS
};
const char *pack_level_name(enum pack_level l); /* "text", "ids", "shape" */
struct pack_about {
    char session[SESSION_ID];
    enum pack_level level;
    int turns, steps; /* in the pack */
    char trees[48];   /* "9.3..9.40": the steps whose draft trees are kept; "": all */
    char made_by[96];
    char seal[65];
    uint64_t bytes; /* of the file */
};
struct pack_opts {
    enum pack_level level;
    /* Of a slice: keeps no turn after to_turn, and the draft trees of these steps only. 0: from the
     * first, to the last step. */
    int from_turn, from_step, to_turn, to_step;
    const char *made_by; /* build */
};
/* Writes a session (a full id) to a new file, 0600. *out (may be NULL) describes it. False and *e:
 * nothing was written; ERR_NEGATIVE: the session has no such step. A pack of a pack keeps no more
 * than the first. */
bool hdb_pack(struct hdb *d, const char *session, const struct pack_opts *o, const char *path,
              struct pack_about *out, struct err *e);
/* Appends a server's launch facts (a JSON object, about's server_facts) as a pack without text
 * holds them: without names of its machine and folders. False: `facts` is not JSON. */
bool hdb_plain_launch(struct hdb *d, const char *facts, struct buf *out);
/* The description in an open pack; NULL: d is a log. */
const struct pack_about *hdb_packed(const struct hdb *d);

/* Maintenance (`aerie db`), each on its own connection; false and *e on failure. Backup: a copy of
 * the log as of one moment while others write, 0600, checked afterwards; `to` must not exist.
 * Check: verifies structure, search index and checksums; false and ERR_DB if any is wrong, with a
 * line per problem in report. Vacuum: gives free space back; *before and *after are bytes. */
bool history_backup(const char *path, const char *to, struct err *e);
bool history_vacuum(const char *path, int64_t *before, int64_t *after, struct err *e);
/* Which sessions prune deletes, the longest unused first: those not used for older_than days, while
 * there are more than `keep` (-1: any number), and while the rest takes more than to_bytes (-1: any
 * size). Never: parents of sessions that stay, pinned sessions, and sessions that are open. */
enum { ANY_AGE = INT32_MIN };
struct prune_rule {
    int older_than; /* ANY_AGE: not by age */
    int keep;
    int64_t to_bytes;
    const char *only; /* a full id: this session and no other is deleted, whatever the rest says;
                         false and *e if it must stay. NULL: by age, number and size */
    bool dry; /* only counts and reports */
    bool by_itself; /* the prune at each start (keep-days), not a user's command: no session is
                       removed by age if, by the clock, nothing was stored for over a year */
};
struct pruned {
    int sessions, turns;
    int64_t bytes; /* of the rows that were deleted */
    bool clock_doubted; /* nothing was removed by age: see by_itself */
};
/* A line for each session in report (may be NULL). */
bool history_prune(const char *path, const struct prune_rule *rule, struct pruned *out,
                   struct buf *report,
                   struct err *e);
/* A pinned session is never pruned. session: a full id. ERR_NEGATIVE: there is none. */
bool history_pin(const char *path, const char *session, bool pinned, struct err *e);
/* Writes the sound records of a damaged log to a new log `to`, and reports the others. The damaged
 * file is only read: a copy of it beside `to` is examined, and removed afterwards. *lost: records
 * left out. A file that is no log by its header is searched for records, too; if it has none, it is
 * refused. */
bool history_repair(const char *path, const char *to, struct buf *report, int *lost, struct err *e);
bool history_check(const char *path, struct buf *report, struct err *e);
/* As history_check(), and the log must have had the head "12:5f..." that an earlier report named
 * (NULL: any). ERR_USAGE if `head` does not have this form. */
bool history_check_head(const char *path, const char *head, struct buf *report, struct err *e);
bool history_set_title(const char *path, const char *session, const char *title, struct err *e);
