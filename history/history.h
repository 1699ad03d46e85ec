/* history.h - the session log: an SQLite database written by its own thread, and read by queries.
 *
 * The writer consumes engine events from one queue (engine/event.h) and owns the writing
 * connection. Readers open their own read-only connection on the thread that uses it. What is
 * acknowledged is never lost: the transaction that ends a turn is committed with synchronous=FULL
 * before the turn is acknowledged; steps before it are committed about every 100 ms under NORMAL.
 * Text is stored as it came, byte for byte; whoever shows it sanitises.
 */
#ifndef AERIE_HISTORY_H
#define AERIE_HISTORY_H

#include "engine/event.h"

/* ---- writing --------------------------------------------------------------------------------- */

/* Each level adds to the one before. */
enum log_level {
    LOG_OFF,   /* nothing; a turn that was already begun is still ended */
    LOG_TEXT,  /* sessions, turns (text, ids, settings, seed), operations, notices, faults */
    LOG_STEPS, /* every cycle with its ids, digests and times: the default */
    LOG_TREE,  /* draft trees */
    LOG_FULL,  /* page events */
};
/* "off", "text", "steps", "tree", "full"; -1 for anything else */
int log_level_parse(const char *s);
const char *log_level_name(enum log_level l);

struct history; /* the writer */

/* What every session row of this process refers to. Strings are copied. */
struct history_about {
    const char *version, *device, *flags;
    const char *model_dir, *model_sha, *draft_dir, *draft_sha, *tokenizer_sha;
    const char *config; /* options that replay needs, as "name=value" lines: page_size, context,
                           full_pages, swa_pages, capture, raw, kv */
};

/* Where the database lives: $XDG_DATA_HOME/aerie/sessions.db, else ~/.local/share/...; relative XDG
 * values are ignored. The caller frees. */
char *history_default_path(void);

/* Opens or creates (folder 0700, files 0600), migrates an older schema after a backup, refuses a
 * newer one, marks turns that a killed process left open as `crashed`, and starts the thread.
 * NULL and *e (ERR_DB) on failure: the caller goes on without a log and says so. A file that is no
 * database any more is renamed to PATH.corrupt-YYYYMMDD-HHMMSS, and status.notice says so. Ignores
 * SIGXFSZ for the process. */
struct history *history_open(const char *path, enum log_level level,
                             const struct history_about *about, struct err *e);
/* Says again what was given to history_open(), for the sessions that begin from now on: the hashes
 * of the models are known only once the engine is open, and it needs the log's queue first. Call it
 * before the first request. */
void history_describe(struct history *h, const struct history_about *about);
/* What could not be stored when the log was closed. */
struct history_left {
    bool some;       /* anything at all; turns may be 0: operations, notices */
    int turns;       /* replies */
    char why[256];   /* "not saved: ..." */
    char kept[512];  /* the side file that holds all of it; the next start takes it in; "": none */
};
/* Begins to close: no event comes any more, and what waits is tried again for up to ms. True: all is
 * stored. False: *left says what is not, so far; the writer goes on trying, call again to wait. */
bool history_finish(struct history *h, int ms, struct history_left *left);
/* Drains the queue, commits, checkpoints; after 2 s, or at once after history_finish(), what cannot
 * be stored is put into a side file. NULL is fine. */
void history_close(struct history *h);
struct evq *history_queue(struct history *h); /* give this to engine_opts.log */
void history_level(struct history *h, enum log_level level); /* from the next event on */

/* State for the status line; any thread. `error` is empty while all is well. */
struct history_status {
    bool recording;      /* false: the level is off, or the disk refuses: events wait in RAM */
    uint64_t acked_turns; /* turns whose FULL commit returned */
    uint64_t queued;      /* events waiting */
    char error[256];     /* "not saved: ..."; goes away when the disk takes everything after all */
    char notice[256];    /* what opening had to do: a damaged log set aside, ...; constant */
};
void history_status(struct history *h, struct history_status *s);
int history_fd(const struct history *h); /* polls readable once the status changed, until it is read */
/* Waits until every event posted before the call is committed, or ms passed. */
bool history_flush(struct history *h, int ms);

/* A session is open for writing in one process at a time. A session that this process begins is
 * locked with its first row; before one that exists is continued, it is locked here. False and *e
 * (ERR_DB) when another process has it open: who, and since when. The lock ends when the writer goes
 * on to another session, is closed, or its process dies. */
bool history_lock_session(struct history *h, const char *session, struct err *e);
void history_unlock_session(struct history *h, const char *session); /* it is not continued after all */

/* A new session id: ULID (48 bits of milliseconds, 80 random bits, Crockford base 32). Ids made by
 * one process only grow. */
void session_new_id(char out[SESSION_ID]);

/* ---- reading --------------------------------------------------------------------------------- */

struct hdb; /* a read-only connection; one thread */

/* Readers ask stop() every few hundred of SQLite's steps, and while they wait for a lock: once it says
 * true, their queries end with an error, "interrupted" (ERR_USAGE). NULL: nothing stops them. For the whole
 * process; set it before the first hdb_open(), from the thread that reads. */
void hdb_stop_when(bool (*stop)(void));

/* A file that does not exist yet is ERR_NEGATIVE, anything else ERR_DB. Where neither the file nor
 * its folder can be written, the log is opened as it lies and hdb_warning() says so. */
struct hdb *hdb_open(const char *path, struct err *e);
void hdb_close(struct hdb *d);
const char *hdb_warning(const struct hdb *d); /* "" when there is none */

/* A fork's child holds only its own turns: whoever wants the whole context walks the parents. */
struct session_row {
    char id[SESSION_ID], parent[SESSION_ID];
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
    bool regen;  /* answers again: it replaces the newest turn before it that was not undone */
    bool undone; /* an OP_UNDO of this session names it */
    char *text;
    size_t text_n;
    struct ids tokens;  /* user: the whole prompt; reply: generated ids; empty in search results */
    int64_t seed;
    char *sampling;     /* settings lines in force */
    uint64_t draws0;    /* uniforms drawn before the turn */
    uint64_t draws1;    /* and after it; replies only */
    int64_t order;      /* merges with op_row.order; INT64_MAX for a reply that is still open */
    char *stop;         /* stop_name(), replies only; "crashed" for a killed one; "" while open */
    int n_reused, n_steps, n_drafted, n_accepted;
    uint64_t us_prefill, us_decode;
    int64_t created_ms;
    char *snippet;      /* search results only, matches between \x01 and \x02 */
};
struct step_row {
    int turn, n;
    struct step_rec rec;
    struct ids tokens;
    struct tree *tree; /* NULL when not logged */
};
struct op_row {
    int64_t order; /* merges with turns by the order they happened */
    enum op_kind op;
    int turn;
    char *text;
};
void session_row_free(struct session_row *r);
void turn_row_free(struct turn_row *r);
void step_row_free(struct step_row *r);
void op_row_free(struct op_row *r);

/* Latest used first, without those in which nothing was said. `query` (FTS5, NULL: all) keeps
 * sessions with a matching turn, `model` (NULL: all) those whose model folder contains it; limit 0:
 * no limit. Rows go to fn until it returns false; the row is freed after each call. Returns the
 * count, -1 and *e on error. */
int hdb_sessions(struct hdb *d, const char *query, const char *model, int limit,
                 bool (*fn)(const struct session_row *r, void *arg), void *arg, struct err *e);
/* A full id, or the beginning of exactly one, or "last"; ambiguous or unknown is an error
 * (ERR_NEGATIVE unknown, ERR_USAGE ambiguous). */
bool hdb_find(struct hdb *d, const char *id, struct session_row *out, struct err *e);
/* Turns in order (user and reply rows alternate; turn 0: all). */
int hdb_turns(struct hdb *d, const char *session, int turn,
              bool (*fn)(const struct turn_row *r, void *arg), void *arg, struct err *e);
int hdb_steps(struct hdb *d, const char *session, int turn,
              bool (*fn)(const struct step_row *r, void *arg), void *arg, struct err *e);
int hdb_ops(struct hdb *d, const char *session,
            bool (*fn)(const struct op_row *r, void *arg), void *arg, struct err *e);
/* Full-text search over turns, best first: an FTS5 query, or, if it is none, its words. */
int hdb_search(struct hdb *d, const char *query, int limit,
               bool (*fn)(const struct turn_row *r, void *arg), void *arg, struct err *e);
/* A process that worked on a session: from `order` on until the next run's. Ids grow over all
 * sessions, so runs of different sessions can be put in order too. */
struct run_row {
    int64_t id, order; /* order merges with op_row.order and turn_row.order */
    char *about;       /* lines as hdb_about() gives them */
};
int hdb_runs(struct hdb *d, const char *session, bool (*fn)(const struct run_row *r, void *arg),
             void *arg, struct err *e);
/* The about of the session's latest run: build, models, options, as "name=value" lines. */
bool hdb_about(struct hdb *d, const char *session, struct buf *out, struct err *e);

/* A session's conversation as the log tells it: the turns of the sessions that it was forked from,
 * up to each fork, then its own. */
enum past_state {
    PAST_LIVE,     /* in the context */
    PAST_FAILED,   /* a rule or the device stopped it before it said anything: not in the context */
    PAST_SILENT,   /* nothing was generated for another reason: not in the context */
    PAST_REPLACED, /* a later turn answers the message again */
    PAST_UNDONE,
    PAST_LEFT_OUT, /* its room was needed, or /forget: no longer in the context */
};
/* "undone", "replaced", "left out of the context"; "" where a turn needs no mark. */
const char *past_mark(enum past_state s);
struct past_pair {
    struct turn_row user, reply; /* user.tokens is left empty; reply.n == 0: there is none */
    enum past_state state;
    bool inherited; /* of a session before the fork: user.session says which */
};
struct hdb_past {
    struct past_pair *turn; /* (n) in order */
    int n, cap;
    struct past_part { /* whose turns these are: the session itself last, its parents before it */
        char session[SESSION_ID];
        int upto; /* its later turns do not belong to this past */
    } *part;
    int n_part;
    int last;            /* the highest turn number used, undone turns included */
    uint64_t draws;      /* uniforms drawn so far */
    char *system;        /* the last system prompt set, or NULL */
    struct buf settings; /* "name=value" lines in force at the end */
};
/* All of it (upto INT_MAX), or as it stood when turn `upto` had ended (0: nothing yet); what a
 * session is now need not begin with what it was then: later turns may have been undone. ERR_DB for a log that contradicts itself. The caller frees *p;
 * on failure it is empty. */
bool hdb_past(struct hdb *d, const char *session, int upto, struct hdb_past *p, struct err *e);
void hdb_past_free(struct hdb_past *p);
/* Is the turn among the numbers of a list such as "1 2 5"? (The text of OP_FORK.) */
bool turn_listed(const char *list, int turn);

/* Read-only SQL with an authoriser, a row limit and a time limit (2 s). A text table, not
 * sanitised, with blobs as a hex prefix; or {"rows": [{column: value, ...}, ...], "truncated":
 * bool} in ASCII. Beside the tables and views (views.c) there are ids(tokens) and tree_json(nodes), the
 * same as JSON arrays. */
bool hdb_sql(struct hdb *d, const char *sql, bool json, int max_rows, struct buf *out,
             struct err *e);

/* Checks the checksum chain of a session ("" = all): *turns were looked at, *bad records do not
 * match what was written, one line each in report (may be NULL). */
bool hdb_verify(struct hdb *d, const char *session, int *turns, int *bad, struct buf *report,
                struct err *e);

/* Replies of a session ("" = all) of which the steps do not account for every token: *bad turns, one
 * line each in report (may be NULL); *first is the number of the first of them. Turns whose steps were
 * not logged are passed over. False and *e when the log cannot be read. */
bool hdb_account(struct hdb *d, const char *session, int *first, int *bad, struct buf *report,
                 struct err *e);

/* Writes a session ("last", an id or its beginning) as JSON lines: schema version first, then one
 * record type a table, ASCII only; a fork with the turns that it inherited. The file is created 0600
 * and must not exist (path "-": standard output). */
bool hdb_export(struct hdb *d, const char *session, const char *path, struct err *e);
/* Writes bytes to a file made in the same way; what could not be written whole is removed. */
bool hdb_save(const char *path, const char *bytes, size_t n, struct err *e);

/* `aerie db`: backup (VACUUM INTO, 0600, `to` must not exist), prune (parents of kept sessions and
 * sessions being written stay), check of structure, search index and chain (false and ERR_DB if
 * anything is wrong; report says what). Each opens its own connection. */
bool history_backup(const char *path, const char *to, struct err *e);
int history_prune(const char *path, int older_than_days, struct err *e); /* sessions removed, -1 */
bool history_check(const char *path, struct buf *report, struct err *e);
bool history_set_title(const char *path, const char *session, const char *title, struct err *e);

#endif
