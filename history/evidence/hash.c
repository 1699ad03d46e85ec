/* hash.c - hashes rows of the database, as the same function reads them when they are written and
 * when they are verified.
 */
#include "history/internal.h"

void hash_int(struct sha256 *s, int64_t v)
{
    uint8_t le[8];
    for (int i = 0; i < 8; i++)
        le[i] = (uint8_t)((uint64_t)v >> (8 * i));
    sha256_add(s, le, sizeof le);
}

void hash_column(struct sha256 *s, sqlite3_stmt *st, int i)
{
    int type = sqlite3_column_type(st, i);
    hash_int(s, type);
    if (type == SQLITE_INTEGER) {
        hash_int(s, sqlite3_column_int64(st, i));
    } else if (type == SQLITE_FLOAT) {
        double v = sqlite3_column_double(st, i);
        sha256_add(s, &v, sizeof v);
    } else if (type != SQLITE_NULL) {
        const void *p = type == SQLITE_TEXT ? (const void *)sqlite3_column_text(st, i)
                                            : sqlite3_column_blob(st, i);
        hash_int(s, sqlite3_column_bytes(st, i));
        sha256_add(s, p, (size_t)sqlite3_column_bytes(st, i));
    }
}

int hash_rows(struct sha256 *s, struct db *d, sqlite3_stmt *st)
{
    int rc, rows = 0;
    for (; db_row(d, st, &rc); rows++)
        for (int i = 0; i < sqlite3_column_count(st); i++)
            hash_column(s, st, i);
    hash_int(s, rows);
    return rc;
}
