/* parents.c - for repair.c: the rows of a damaged log to which runs refer (builds, models, servers)
 * and the tokenizers.
 *
 * One damaged page of such a table would lose every session, because a run is not read without its
 * build and its model. Each table is read forwards, backwards and through an index that has its
 * columns, into the new log. If none of these reads finds a row that a run refers to, a placeholder
 * is added.
 */
#include "history/internal.h"

#define LOST "(lost)" /* the text in the columns of a placeholder that would describe the row */

#define IS_LOST(table, column)                                                                     \
    "SELECT substr(" column ", 1, 6)='" LOST "' FROM " table " WHERE id=?"

static const struct parent_table {
    const char *name;
    const char *what;        /* its name in the report; NULL: runs do not refer to this table */
    bool again;              /* an entry before this one reads the same table */
    const char *indexed;     /* a query through an index that has the columns needed, or NULL */
    const char *of_run;      /* a query for the id of the row that a run refers to */
    const char *is_lost;     /* a query whether the row with an id is a placeholder */
    const char *placeholder; /* inserts one; ?1: id */
} tables[] = {
    {"build", "build", false,
     "SELECT id, version, device, flags FROM build INDEXED BY sqlite_autoindex_build_1",
     "SELECT build_id FROM run WHERE id=?", IS_LOST("build", "version"),
     "INSERT INTO build(id, version, device, flags) VALUES(?1, "
     "'" LOST "', '" LOST "', '" LOST " '||?1)"},
    {"model", "model", false,
     "SELECT id, role, dir, weights_sha, tokenizer_sha FROM model INDEXED BY "
     "sqlite_autoindex_model_1", "SELECT target_id FROM run WHERE id=?", IS_LOST("model", "dir"),
     "INSERT INTO model(id, role, dir, weights_sha, tokenizer_sha) VALUES(?1, 'target', "
     "'" LOST "', '" LOST " '||?1, '')"},
    {"model", "draft model", true, NULL, "SELECT draft_id FROM run WHERE id=?",
     IS_LOST("model", "dir"),
     "INSERT INTO model(id, role, dir, weights_sha, tokenizer_sha) VALUES(?1, 'draft', "
     "'" LOST "', '" LOST " '||?1, '')"},
    {"server", "server", false, NULL,
     "SELECT server_id FROM run WHERE id=?", IS_LOST("server", "url"),
     "INSERT INTO server(id, kind, version, url, model, facts) VALUES(?1, "
     "'" LOST "', '', '" LOST "', '" LOST "', '{}')"},
    /* the index lacks `sum`; without it, token texts cannot be compared and are left out */
    {"tokenizer", NULL, false,
     "SELECT id, sha FROM tokenizer INDEXED BY sqlite_autoindex_tokenizer_1", NULL, NULL, NULL},
};
enum { N_TABLES = LEN(tables) };

int parents_copy(struct db *from, struct db *to, void (*broken)(void *arg, const char *table),
                 void *arg)
{
    int rc = SQLITE_OK;
    for (int i = 0; !rc && i < N_TABLES; i++) {
        const struct parent_table *t = &tables[i];
        char forwards[100], backwards[120];
        bool whole = t->again;
        snprintf(forwards, sizeof forwards, "SELECT * FROM %s NOT INDEXED ORDER BY id", t->name);
        snprintf(backwards, sizeof backwards, "%s DESC", forwards);
        const char *const ways[] = {forwards, backwards, t->indexed};
        for (int k = 0; !rc && !whole && k < 3 && ways[k]; k++)
            rc = rows_copy(db_prepare(from, NULL, ways[k], ""), to, t->name, NULL, &whole);
        if (!whole)
            broken(arg, t->name);
    }
    return rc;
}

/* ---- placeholders ---- */

/* If the table has no row `id`, adds a placeholder. *lost: the row is a placeholder now. */
static int add_if_lost(const struct parent_table *t, struct db *to, int64_t id, bool *lost)
{
    int64_t is;
    int rc = db_int(to, &is, 2, t->is_lost, "i", id);
    *lost = is != 0;
    return rc || is != 2 ? rc : db_do(to, t->placeholder, "i", id);
}

int parents_of_run(struct db *from, struct db *to, int64_t run, struct buf *lost)
{
    int rc = SQLITE_OK;
    for (int i = 0; !rc && i < N_TABLES; i++) {
        int64_t id;
        bool is = false;
        if (tables[i].what && db_int(from, &id, 0, tables[i].of_run, "i", run) == SQLITE_OK && id)
            rc = add_if_lost(&tables[i], to, id, &is);
        if (is)
            buf_printf(lost, "%s%s", lost->n ? ", " : "", tables[i].what);
    }
    return rc;
}

int parents_lost_run(struct db *to, const char *session, int64_t run, int64_t created_ms)
{
    enum { BUILD, TARGET };
    int64_t id[2];
    bool lost;
    int rc = db_int(to, &id[BUILD], 1, "SELECT coalesce(max(id), 0) + 1 FROM build WHERE "
                                       "version<>'" LOST "'", "") ?:
             db_int(to, &id[TARGET], 1, "SELECT coalesce(max(id), 0) + 1 FROM model WHERE "
                                        "dir<>'" LOST "'", "");
    for (int i = BUILD; !rc && i <= TARGET; i++)
        rc = add_if_lost(&tables[i], to, id[i], &lost);
    return rc ?: db_do(to, "INSERT INTO run(id, session_id, build_id, target_id, config, "
                           "writer, ended, created_ms) VALUES(?,?,?,?,'',0,1,?)", "isiii", run,
                           session, id[BUILD], id[TARGET], created_ms);
}
