/* runs.c - reads the runs of a session: which processes wrote it, with which build, models and
 * options.
 */
#include "history/internal.h"

static const char *const names[] = {"version",   "device",    "flags",     "model_dir",
                                    "model_sha", "draft_dir", "draft_sha", "tokenizer_sha"};
/* Names of the server's facts; only of runs that a server computed. */
static const char *const of_server[] = {"server_kind", "server_version", "server_url",
                                        "server_facts"};
enum { N_NAMES = LEN(names), N_OF_SERVER = LEN(of_server) };

/* Formats the statement's columns from `at` on as "name=value" lines: the facts of the run, those
 * of its server, config. */
static char *about_lines(sqlite3_stmt *st, int at)
{
    struct buf b = {0};
    for (int i = 0; i < N_NAMES; i++) {
        FREED(free_at) char *v = col_str(st, at + i);
        buf_printf(&b, "%s=%s\n", names[i], v);
    }
    at += N_NAMES;
    for (int i = 0; sqlite3_column_type(st, at) != SQLITE_NULL && i < N_OF_SERVER; i++) {
        FREED(free_at) char *v = col_str(st, at + i);
        buf_printf(&b, "%s=%s\n", of_server[i], v);
    }
    FREED(free_at) char *config = col_str(st, at + N_OF_SERVER);
    buf_str(&b, config);
    return b.p;
}

int hdb_runs(struct hdb *h, const char *session, bool (*fn)(const struct run_row *r, void *arg),
             void *arg, struct err *e)
{
    sqlite3_stmt *st = db_prepare(&h->db, e,
        "SELECT r.id, r.link, b.version, b.device, b.flags, t.dir, t.weights_sha, d.dir,"
        " d.weights_sha, t.tokenizer_sha, v.kind, v.version, v.url, v.facts, r.config"
        " FROM run r JOIN build b ON b.id = r.build_id JOIN model t ON t.id = r.target_id"
        " LEFT JOIN model d ON d.id = r.draft_id LEFT JOIN server v ON v.id = r.server_id"
        " WHERE r.session_id = ? ORDER BY r.link", "s", session);
    struct db_rows rows = db_rows(&h->db, st, "cannot read runs", e);
    while (db_next(&rows)) {
        struct run_row r = {.id = sqlite3_column_int64(st, 0),
                            .order = sqlite3_column_int64(st, 1),
                            .about = about_lines(st, 2)};
        rows.more = fn(&r, arg);
        free(r.about);
    }
    return rows.ok ? rows.n : -1;
}

int hdb_configs(struct hdb *h, const char *name, bool (*fn)(const char *config, void *arg),
                void *arg, struct err *e)
{
    sqlite3_stmt *st = db_prepare(&h->db, e,
        "SELECT config FROM run r WHERE instr(char(10) || config, char(10) || ? || '=') AND NOT"
        " EXISTS(SELECT 1 FROM turn WHERE session_id = r.session_id AND stop IN ('', 'crashed'))",
        "s", name);
    struct db_rows rows = db_rows(&h->db, st, "cannot read runs", e);
    while (db_next(&rows)) {
        FREED(free_at) char *config = col_str(st, 0);
        rows.more = fn(config, arg);
    }
    return rows.ok ? rows.n : -1;
}

static bool keep_about(const struct run_row *r, void *arg)
{
    struct buf *b = arg;
    buf_clear(b);
    buf_str(b, r->about);
    return true;
}

bool hdb_about(struct hdb *h, const char *session, struct buf *out, struct err *e)
{
    FREED(buf_free) struct buf latest = {0};
    int n = hdb_runs(h, session, keep_about, &latest, e);
    if (n > 0)
        buf_add(out, latest.p, latest.n);
    return n > 0 || (n == 0 && err_set(e, ERR_NEGATIVE, "no session \"%s\"", session));
}
