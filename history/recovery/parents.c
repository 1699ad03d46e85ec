/* parents.c - for repair.c: the rows of a damaged log to which runs refer (builds, models, servers) and the tokenizers.
 *
 * One damaged page of such a table would lose every session, because a run is not read without its
 * build and its model. Each table is read forwards, backwards and through an index that has its
 * columns, into a temporary table of the same name, which SQLite prefers to the log's own. If none
 * of these reads finds a row that a run refers to, a placeholder is added to the temporary table
 * and to the new log.
 */
#include "history/internal.h"

#include <stdio.h>

#define LOST "(lost)" /* the text in the columns of a placeholder that would describe the row */

#define IS_LOST(table, column) "SELECT substr(" column ", 1, 6)='" LOST "' FROM temp." table " WHERE id=?"

static const struct parent_table {
    const char *name;
    const char *what;        /* its name in the report; NULL: runs do not refer to this table */
    const char *columns;     /* of the temporary table; NULL: an entry before this one reads the
                                same table */
    const char *indexed;     /* a query through an index that has the columns needed, or NULL */
    const char *of_run;      /* a query for the id of the row that a run refers to */
    const char *is_lost;     /* a query whether the row with an id is a placeholder */
    const char *placeholder; /* inserts one; ?1: id */
} tables[] = {
    {"build", "build", "id INTEGER PRIMARY KEY, version, device, flags",
     "SELECT id, version, device, flags FROM main.build INDEXED BY sqlite_autoindex_build_1",
     "SELECT build_id FROM run WHERE id=?", IS_LOST("build", "version"),
     "INSERT INTO build(id, version, device, flags) VALUES(?1, '" LOST "', '" LOST "', '" LOST " '||?1)"},
    {"model", "model", "id INTEGER PRIMARY KEY, role, dir, weights_sha, tokenizer_sha",
     "SELECT id, role, dir, weights_sha, tokenizer_sha FROM main.model INDEXED BY sqlite_autoindex_model_1",
     "SELECT target_id FROM run WHERE id=?", IS_LOST("model", "dir"),
     "INSERT INTO model(id, role, dir, weights_sha, tokenizer_sha) VALUES(?1, 'target', '" LOST "', '" LOST " '||?1, '')"},
    {"model", "draft model", NULL, NULL, "SELECT draft_id FROM run WHERE id=?", IS_LOST("model", "dir"),
     "INSERT INTO model(id, role, dir, weights_sha, tokenizer_sha) VALUES(?1, 'draft', '" LOST "', '" LOST " '||?1, '')"},
    {"server", "server", "id INTEGER PRIMARY KEY, kind, version, url, model, facts", NULL,
     "SELECT server_id FROM run WHERE id=?", IS_LOST("server", "url"),
     "INSERT INTO server(id, kind, version, url, model, facts) VALUES(?1, '" LOST "', '', '" LOST "', '" LOST "', '{}')"},
    /* the index lacks `sum`; without it, token texts cannot be compared and are left out */
    {"tokenizer", NULL, "id INTEGER PRIMARY KEY, sha, texts, sum",
     "SELECT id, sha, 0 AS texts, x'' AS sum FROM main.tokenizer INDEXED BY sqlite_autoindex_tokenizer_1", NULL, NULL, NULL},
};
enum { N_TABLES = sizeof tables / sizeof *tables };

/* Adds the rows of a query to temp.NAME, up to the first row that cannot be read. True: all rows
 * were read. */
static bool add_rows(struct db *d, const char *name, const char *query)
{
    char table[40];
    bool whole;
    snprintf(table, sizeof table, "temp.%s", name);
    return rows_copy(db_prepare(d, NULL, query, ""), d, table, NULL, &whole) == SQLITE_OK && whole;
}

bool parents_read(struct db *d, void (*broken)(void *arg, const char *table), void *arg, struct err *e)
{
    char sql[200];
    /* in memory: the isolated process may create files beside the new log only (isolate.h) */
    bool ok = db_exec(d, "PRAGMA temp_store=MEMORY", e);
    for (int i = 0; ok && i < N_TABLES; i++) {
        const struct parent_table *t = &tables[i];
        if (!t->columns)
            continue;
        snprintf(sql, sizeof sql, "CREATE TEMP TABLE %s(%s)", t->name, t->columns);
        ok = db_exec(d, sql, e);
        snprintf(sql, sizeof sql, "SELECT * FROM main.%s NOT INDEXED ORDER BY id", t->name);
        bool whole = ok && add_rows(d, t->name, sql);
        snprintf(sql, sizeof sql, "SELECT * FROM main.%s NOT INDEXED ORDER BY id DESC", t->name);
        if (ok && !whole)
            add_rows(d, t->name, sql);
        if (ok && !whole && t->indexed)
            whole = add_rows(d, t->name, t->indexed);
        if (ok && !whole)
            broken(arg, t->name);
    }
    return ok;
}

/* ---- placeholders ---- */

static int add_placeholder(const struct parent_table *t, struct db *from, struct db *to, int64_t id)
{
    int rc = db_do(from, t->placeholder, "i", id);
    return rc ? rc : db_do(to, t->placeholder, "i", id);
}

/* If the table has no row `id`, adds a placeholder to both logs. *lost: the row is a placeholder
 * now. */
static int add_if_lost(const struct parent_table *t, struct db *from, struct db *to, int64_t id, bool *lost)
{
    int64_t is;
    int rc = db_int(from, &is, 2, t->is_lost, "i", id);
    *lost = is != 0;
    return rc || is != 2 ? rc : add_placeholder(t, from, to, id);
}

int parents_of_run(struct db *from, struct db *to, int64_t run, struct buf *lost)
{
    int rc = SQLITE_OK;
    for (int i = 0; !rc && i < N_TABLES; i++) {
        int64_t id;
        bool is = false;
        if (tables[i].what && db_int(from, &id, 0, tables[i].of_run, "i", run) == SQLITE_OK && id)
            rc = add_if_lost(&tables[i], from, to, id, &is);
        if (is)
            buf_printf(lost, "%s%s", lost->n ? ", " : "", tables[i].what);
    }
    return rc;
}

int parents_lost_run(struct db *from, struct db *to, const char *session, int64_t run, int64_t created_ms)
{
    enum { BUILD, TARGET };
    int64_t id[2];
    bool lost;
    int rc = db_int(from, &id[BUILD], 1, "SELECT coalesce(max(id), 0) + 1 FROM temp.build WHERE version<>'" LOST "'", "");
    if (!rc)
        rc = db_int(from, &id[TARGET], 1, "SELECT coalesce(max(id), 0) + 1 FROM temp.model WHERE dir<>'" LOST "'", "");
    for (int i = BUILD; !rc && i <= TARGET; i++)
        rc = add_if_lost(&tables[i], from, to, id[i], &lost);
    return rc ? rc : db_do(to, "INSERT INTO run(id, session_id, build_id, target_id, config, writer, ended, created_ms)"
                           " VALUES(?,?,?,?,'',0,1,?)", "isiii", run, session, id[BUILD], id[TARGET], created_ms);
}
