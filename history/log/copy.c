/* copy.c - copies rows from one database to another: for packs, side files and repairs. */
#include "history/internal.h"

sqlite3_stmt *insert_like(struct db *to, const char *table, sqlite3_stmt *from)
{
    FREED(buf_free) struct buf sql = {0};
    sqlite3_stmt *st = NULL;
    int n = sqlite3_column_count(from);
    buf_printf(&sql, "INSERT OR IGNORE INTO %s(", table);
    for (int i = 0; i < n; i++)
        buf_printf(&sql, "%s%s", i ? "," : "", sqlite3_column_name(from, i));
    buf_str(&sql, ") VALUES(");
    for (int i = 0; i < n; i++)
        buf_str(&sql, i ? ",?" : "?");
    buf_char(&sql, ')');
    sqlite3_prepare_v2(to->h, sql.p, -1, &st, NULL);
    return st;
}

static int bind_column(sqlite3_stmt *to, sqlite3_stmt *from, int i, const struct put *p)
{
    int64_t v = sqlite3_column_int64(from, i);
    while (p && p->how != PUT_END && strcmp(p->column, sqlite3_column_name(from, i)) != 0)
        p++;
    if (p && p->how == PUT_NULL)
        return sqlite3_bind_null(to, i + 1);
    if (p && p->how == PUT_VALUE)
        return sqlite3_bind_int64(to, i + 1, p->v);
    if (p && p->how == PUT_MORE && v)
        return sqlite3_bind_int64(to, i + 1, (int64_t)((uint64_t)v + (uint64_t)p->v));
    return sqlite3_bind_value(to, i + 1, sqlite3_column_value(from, i));
}

int rows_copy(sqlite3_stmt *from, struct db *to, const char *table, const struct put *put,
              bool *whole)
{
    sqlite3_stmt *in = from ? insert_like(to, table, from) : NULL;
    int rc = from && !in ? sqlite3_extended_errcode(to->h) : SQLITE_OK, read = SQLITE_ERROR;
    while (in && !rc && (read = sqlite3_step(from)) == SQLITE_ROW) {
        for (int i = 0; !rc && i < sqlite3_column_count(from); i++)
            rc = bind_column(in, from, i, put);
        if (!rc)
            sqlite3_step(in);
        rc = rc ?: sqlite3_reset(in);
        if ((rc & 0xff) == SQLITE_MISMATCH)
            rc = SQLITE_OK;
    }
    *whole = read == SQLITE_DONE;
    sqlite3_finalize(from);
    sqlite3_finalize(in);
    return rc;
}

int turn_copy(struct db *from, struct db *to, int64_t turn, const struct put *own,
              const struct put *rest, bool *whole)
{
#define OF_STEP " WHERE step_id IN (SELECT id FROM step WHERE turn_id=?)"
    static const struct {
        const char *table, *query;
    } parts[] = {
        {"turn", "SELECT * FROM turn WHERE id=?"},
        {"turn_part", "SELECT * FROM turn_part WHERE turn_id=?"},
        {"step", "SELECT * FROM step WHERE turn_id=?"},
        {"served", "SELECT * FROM served WHERE turn_id=?"},
        {"metric", "SELECT * FROM metric WHERE turn_id=?"},
        {"tree", "SELECT * FROM tree" OF_STEP},
        {"pages", "SELECT * FROM pages" OF_STEP},
        {"top", "SELECT * FROM top" OF_STEP},
    };
    int rc = SQLITE_OK;
    *whole = true;
    for (size_t i = 0; !rc && i < LEN(parts); i++) {
        bool all;
        rc = rows_copy(db_prepare(from, NULL, parts[i].query, "i", turn), to, parts[i].table,
                       i ? rest : own, &all);
        *whole &= all;
    }
    return rc;
}
