/* served.c - reads what a server reported of a reply and of its steps. */
#include "history/columns.h"

#include <math.h>

static int64_t count_at(sqlite3_stmt *st, int i)
{
    return sqlite3_column_type(st, i) == SQLITE_NULL ? -1 : sqlite3_column_int64(st, i);
}

static double real_at(sqlite3_stmt *st, int i)
{
    return sqlite3_column_type(st, i) == SQLITE_NULL ? NAN : sqlite3_column_double(st, i);
}

static bool read_metrics(struct db *d, int64_t reply, struct served *s, struct err *e)
{
    sqlite3_stmt *st = db_prepare(d, e, "SELECT name, labels, before, after FROM metric WHERE "
                                        "turn_id = ? ORDER BY name, labels", "i", reply);
    struct db_rows rows = db_rows(d, st, "cannot read metrics", e);
    while (db_next(&rows)) {
        *APPEND(s->metric, s->n_metric) = (struct served_metric){col_str(st, 0), col_str(st, 1),
                                                          real_at(st, 2), real_at(st, 3)};
    }
    return rows.ok;
}

bool served_read(struct db *d, int64_t reply, struct served **out, struct err *e)
{
    *out = NULL;
    sqlite3_stmt *st = db_prepare(d, e, "SELECT turn_id" SERVED_COLUMNS(COLUMN_NAME)
                                  SERVED_TIMES(COLUMN_NAME) " FROM served WHERE turn_id = ?", "i",
                                  reply);
    int rc = st ? sqlite3_step(st) : SQLITE_ERROR;
    bool fits;
    if (rc == SQLITE_ROW) {
        *out = served_new();
        columns_read(st, 1, served_columns, N_SERVED_COLUMNS, *out, &fits);
    }
    sqlite3_finalize(st);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return st && db_fail(d, e, "cannot read what a server reported");
    return !*out || read_metrics(d, reply, *out, e);
}

bool served_read_tops(struct db *d, int64_t step, struct tops **out, struct err *e)
{
    *out = NULL;
    sqlite3_stmt *st = db_prepare(d, e, "SELECT k, token, logp, text FROM top WHERE step_id = ?"
                                  " ORDER BY k, rank", "i", step);
    bool fits = true;
    struct db_rows rows = db_rows(d, st, "cannot read the best tokens of a step", e);
    while (db_next(&rows)) {
        if (!*out)
            *out = xcalloc(1, sizeof **out);
        int k = col_int(st, 0, 0, &fits);
        fits = fits && k < SERVED_TOKENS; /* views allocate a row for each token up to the last */
        int64_t id = count_at(st, 1);
        bool said = sqlite3_column_type(st, 3) != SQLITE_NULL;
        const char *text = said ? sqlite3_column_blob(st, 3) : NULL;
        tops_add(*out, k, id < 0 || id > INT32_MAX ? -1 : (int32_t)id, (float)real_at(st, 2),
                 said && !text ? "" : text, said ? (size_t)sqlite3_column_bytes(st, 3) : 0);
    }
    return !rows.ok ? false : fits ||
           err_set(e, ERR_DB, "a best token of a step has a number that is out of range");
}
