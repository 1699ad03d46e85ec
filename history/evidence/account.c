/* account.c - checks that every token of a reply comes from a logged step of its turn.
 *
 * A cycle that failed after its commit could leave tokens in the context that no step reports. Such
 * a log is intact, so the checksum chain cannot find the fault.
 */
#include "history/internal.h"

/* Compares the reply's ids with the ids of its steps in order. If there are fewer step rows than
 * steps, the log level kept no more of them, and the rest of the reply cannot be compared. */
static bool check_turn(struct db *d, sqlite3_stmt *turn, struct buf *report, bool *good,
                       struct err *e)
{
    FREED(ids_free) struct ids reply = {0}, steps = {0};
    int64_t n = sqlite3_column_int64(turn, 2), logged = sqlite3_column_int64(turn, 3);
    col_ids(turn, 4, &reply);
    sqlite3_stmt *st = db_prepare(d, e, "SELECT tokens, source = 'piece' AND length(tokens) = 0 "
                                        "FROM step WHERE turn_id = ? ORDER BY n", "i",
                                  sqlite3_column_int64(turn, 0));
    struct db_rows rows = db_rows(d, st, "cannot read steps", e);
    while (db_next(&rows)) {
        col_ids(st, 0, &steps);
        rows.n -= sqlite3_column_int(st, 1); /* a piece of a server's stream, without ids */
    }
    bool all = rows.n >= logged;
    *good = !rows.ok || (steps.n <= reply.n && (!all || steps.n == reply.n) &&
                    (steps.n == 0 || memcmp(steps.v, reply.v, (size_t)steps.n * sizeof *steps.v) ==
                     0));
    if (!*good && report)
        buf_printf(report, "session %s: turn %lld: the reply has %d tokens, its steps %d\n",
                   (const char *)sqlite3_column_text(turn, 1), (long long)n, reply.n, steps.n);
    return rows.ok;
}

bool account_check(struct db *d, const char *session, int *first, int *bad, struct buf *report,
                   struct err *e)
{
    *first = *bad = 0;
    sqlite3_stmt *st = db_prepare(d, e, "SELECT id, session_id, n, coalesce(n_steps, 0), tokens"
                                  " FROM turn WHERE role = 'reply' AND stop <> '' AND ?1 IN ('', "
                                  "session_id) ORDER BY session_id, n", "s", session);
    bool good = true;
    struct db_rows rows = db_rows(d, st, "cannot read turns", e);
    while (db_next(&rows)) {
        rows.ok = check_turn(d, st, report, &good, e);
        if (!good && !*first)
            *first = sqlite3_column_int(st, 2);
        *bad += !good;
    }
    return rows.ok;
}

bool hdb_account(struct hdb *h, const char *session, int *first, int *bad, struct buf *report,
                 struct err *e)
{
    return account_check(&h->db, session, first, bad, report, e);
}
