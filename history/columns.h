/* columns.h - the columns of a step and of a server's report of a reply, one row each.
 *
 * No other file lists them. From these rows follow the tables (schema.c), what is written, read and
 * shown as JSON (columns.c), the checksum of a turn (chain.c), the view v_step (views.c) and what a
 * pack keeps (pack.c). A list gives its rows, one after another, to the macro X.
 */
#pragma once

#include "history/internal.h"

/* X(name, type, SQL, member of struct step_row, KEEP, PART, VIEW)
 *
 * type: TYPE_type. KEEP: a pack always keeps a FACT; IDS are token ids, or are computed from them.
 * PART: PART_part, the place in JSON. VIEW: VIEW_view of views.c. The order is that of the table
 * and of the checksum. */
#define STEP_COLUMNS(X)                                                                            \
    X(kind,         KIND,    "TEXT NOT NULL CHECK(kind IN('prefill','decode','spec'))",            \
                                                 rec.kind,         FACT, SHAPE,  PLAIN)            \
    X(pos0,         COUNT,   "INTEGER NOT NULL", rec.pos0,         FACT, SHAPE,  POSITION)         \
    X(rows,         COUNT,   "INTEGER NOT NULL", rec.rows,         FACT, SHAPE,  WHOLE)            \
    X(drafted,      COUNT,   "INTEGER NOT NULL", rec.drafted,      FACT, SHAPE,  WHOLE)            \
    X(accepted,     COUNT,   "INTEGER NOT NULL", rec.accepted,     FACT, SHAPE,  ACCEPTED)         \
    X(bonus,        TOKEN,   "INTEGER NOT NULL", rec.bonus,        IDS,  SHAPE,  TOKEN)            \
    X(draws,        U64,     "INTEGER NOT NULL", rec.draws,        FACT, TRACE,  HERE)             \
    X(page_digest,  DIGEST,  "INTEGER NOT NULL", rec.page_digest,  IDS,  TRACE,  DIGEST)           \
    X(draft_digest, DIGEST,  "INTEGER NOT NULL", rec.draft_digest, IDS,  TRACE,  DIGEST)           \
    X(logit_digest, DIGEST,  "INTEGER NOT NULL", rec.logit_digest, IDS,  TRACE,  DIGEST)           \
    X(us_draft,     U32,     "INTEGER NOT NULL", rec.us_draft,     FACT, TRACE,  HERE)             \
    X(us_verify,    U32,     "INTEGER NOT NULL", rec.us_verify,    FACT, TRACE,  HERE)             \
    X(us_commit,    U32,     "INTEGER NOT NULL", rec.us_commit,    FACT, TRACE,  HERE)             \
    X(us_check,     U32,     "INTEGER NOT NULL", rec.us_check,     FACT, TRACE,  HERE)             \
    X(tokens,       TOKENS,  "BLOB NOT NULL",    tokens,           IDS,  TOKENS, NONE)             \
    X(margin,       FLOAT,   "REAL",             rec.margin,       FACT, CHOICE, PLAIN)            \
    X(forced,       COUNT,   "INTEGER",          rec.forced,       FACT, CHOICE, PLAIN)            \
    X(fused,        FLAG,    "INTEGER",          rec.fused,        FACT, CHOICE, FUSED)            \
    X(facts,        FACTS,   "BLOB",             facts,            IDS,  TOKENS, NONE)             \
    X(source,       SOURCE,  "TEXT",             rec.source,       FACT, ORIGIN, SOURCE)           \
    X(us_arrived,   ARRIVED, "INTEGER",          rec.us_arrived,   FACT, ORIGIN, ARRIVED)          \
    X(draft_window, COUNT,   "INTEGER",          rec.draft_window, FACT, CHOICE, PLAIN)

/* X(name, type, SQL): of struct served, whose members have the same names. The table has the column
 * `tokens` between the two lists. */
#define SERVED_COLUMNS(X)                                                                          \
    X(prompt,     TOLD,   "INTEGER")                                                               \
    X(generated,  TOLD,   "INTEGER")                                                               \
    X(cached,     TOLD,   "INTEGER")                                                               \
    X(drafted,    TOLD,   "INTEGER")                                                               \
    X(accepted,   TOLD,   "INTEGER")                                                               \
    X(verifies,   TOLD,   "INTEGER")                                                               \
    X(ms_queue,   DOUBLE, "REAL")                                                                  \
    X(ms_first,   DOUBLE, "REAL")                                                                  \
    X(ms_prompt,  DOUBLE, "REAL")                                                                  \
    X(ms_decode,  DOUBLE, "REAL")                                                                  \
    X(finish,     WORD,   "TEXT NOT NULL")                                                         \
    X(prompt_ids, FLAG,   "INTEGER NOT NULL")                                                      \
    X(reply_ids,  FLAG,   "INTEGER NOT NULL")
#define SERVED_TIMES(X)                                                                            \
    X(ms_before, DOUBLE, "REAL")                                                                   \
    X(ms_after,  DOUBLE, "REAL")

/* Values for X: parts of SQL, each of which begins with a comma. */
#define COLUMN_SQL(name, type, sql, ...) ", " #name " " sql
#define COLUMN_NAME(name, ...) ", " #name
#define COLUMN_OF_S(name, ...) ", s." #name
#define COLUMN_MARK(...) ",?"
#define COLUMN_NULL(...) "n" /* for db_cached(): null, until columns_bind() */
#define COLUMN_COUNT(...) +1

enum column_type {
    TYPE_COUNT,   /* int, at least 0 */
    TYPE_TOKEN,   /* int32_t; -1: none */
    TYPE_U32, TYPE_U64, TYPE_DIGEST,
    TYPE_FLOAT,   /* NAN: null */
    TYPE_FLAG,
    /* of struct served */
    TYPE_TOLD,    /* int64_t; -1, not reported: null */
    TYPE_DOUBLE,  /* NAN, not reported: null */
    TYPE_WORD,    /* `finish` */
    /* of struct step_row */
    TYPE_KIND, TYPE_TOKENS,
    TYPE_SOURCE,  /* STEP_COMPUTED: null */
    TYPE_ARRIVED, /* uint64_t; null in a step that was computed here */
    TYPE_FACTS,   /* NULL: null */
};

/* The order of JSON; inside a part it is that of the table. */
enum column_part { PART_SHAPE, PART_TOKENS, PART_CHOICE, PART_TRACE, PART_ORIGIN, N_PARTS };

struct column {
    const char *name;
    enum column_type type;
    enum column_part part;
    size_t at; /* in the struct */
};
enum {
    N_STEP_COLUMNS = 0 STEP_COLUMNS(COLUMN_COUNT),
    N_SERVED_COLUMNS = 0 SERVED_COLUMNS(COLUMN_COUNT) SERVED_TIMES(COLUMN_COUNT)
};
extern const struct column step_columns[N_STEP_COLUMNS];
extern const struct column served_columns[N_SERVED_COLUMNS]; /* of both lists */

/* Binds n columns of a struct step_row or a struct served to the parameters from `at` (the first is
 * 1) on. The row must stay valid until the statement is reset. Returns an SQLite result code. */
int columns_bind(sqlite3_stmt *st, int at, const struct column *c, int n, const void *row);
/* Reads n columns of a statement, from `at` (the first is 0) on, into a zeroed row, which its owner
 * frees. *fits: as col_int(). Returns NULL, or what else is wrong with the row. */
const char *columns_read(sqlite3_stmt *st, int at, const struct column *c, int n, void *row,
                         bool *fits);
