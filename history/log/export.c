/* export.c - exports a session as JSON lines.
 *
 * The first line names the schema; each further line is one row of a table. The output is ASCII, so
 * it holds no raw control characters of a chat's text. Packed ids and trees are decoded. Integers
 * beyond 2^53 and digests are strings, because JSON readers round large numbers. Text that is not
 * valid UTF-8 is repeated, byte for byte, as NAME_hex.
 */
#include "history/evidence/hazards.h"
#include "history/internal.h"
#include "kernels/ascii.h"
#include "kernels/json.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

void tree_json(const struct tree *t, struct buf *b)
{
    JPUT_IN(b, '[');
    for (int i = 0; i < t->n; i++) {
        jput_record(b, "%d{token}%d{parent}%d{depth}%s{fate}%g{q}%g{p}%g{u}", t->token[i],
                    t->parent[i], t->depth[i], fate_name(t->fate[i]), t->q[i], t->p[i], t->u[i]);
    }
}

/* ---- the file ---- */

struct sink {
    int fd;
    const char *path;
    struct err *e;
    bool ok;
    struct buf line;
};

enum { SINK_BYTES = 1 << 16 };

/* Writes the buffered lines. The first failure is kept and ends the export. */
static void sink_flush(struct sink *s)
{
    for (size_t at = 0; s->ok && at < s->line.n;) {
        ssize_t n = write(s->fd, s->line.p + at, s->line.n - at);
        if (n > 0)
            at += (size_t)n;
        else if (n == 0 || errno != EINTR)
            s->ok = err_set(s->e, ERR_USAGE, "cannot write %s: %s", s->path, strerror(errno));
    }
    buf_clear(&s->line);
}

/* Ends a line. Lines are written in large blocks: one write() per line would dominate the time. */
static void sink_line(struct sink *s)
{
    if (s->line.n >= SINK_BYTES)
        sink_flush(s);
}

/* ---- JSON lines ---- */

static void facts_json(struct buf *b, const void *p, int bytes)
{
    struct token_fact *fact;
    int n = bytes / 12;
    bool ok = token_facts_unpack(p, (size_t)bytes, n, &fact);
    jput_open(b, '[');
    for (int i = 0; ok && i < n; i++)
        fact_json(&fact[i], b);
    jput_close(b, ']');
    free(fact);
}

static void blob_value(struct buf *b, const char *name, sqlite3_stmt *st, int i)
{
    const void *p = sqlite3_column_blob(st, i);
    int n = sqlite3_column_bytes(st, i);
    struct tree t;
    struct ids ids = {0};
    if (strcmp(name, "tokens") == 0) {
        col_ids(st, i, &ids);
        jput_ints(b, ids.v, ids.n);
        ids_free(&ids);
    } else if (strcmp(name, "facts") == 0) {
        facts_json(b, p, n);
    } else if (strcmp(name, "nodes") == 0 && tree_unpack(&t, p, (size_t)n, NULL)) {
        tree_json(&t, b);
    } else {
        jput_hex(b, p, (size_t)n);
    }
}

static void text_value(struct buf *b, const char *name, const char *s, size_t n)
{
    if (!jput_strn(b, s, n)) {
        FREED(free_at) char *key = xasprintf("%s_hex", name);
        jput_key(b, key);
        jput_hex(b, s, n);
    }
}

static void column(struct buf *b, sqlite3_stmt *st, int i)
{
    const char *name = sqlite3_column_name(st, i);
    int type = sqlite3_column_type(st, i);
    jput_key(b, name);
    if (type == SQLITE_TEXT)
        text_value(b, name, (const char *)sqlite3_column_text(st, i),
                   (size_t)sqlite3_column_bytes(st, i));
    else if (type == SQLITE_BLOB)
        blob_value(b, name, st, i);
    else if (type == SQLITE_INTEGER && ends_with(name, "_digest"))
        jput_digest(b, (uint64_t)sqlite3_column_int64(st, i));
    else
        col_json(st, i, b);
}

static const struct {
    const char *type, *sql;
} records[] = {
    {"session", "SELECT * FROM session WHERE id = ?1 AND ?2 > 0"},
    {"build", "SELECT * FROM build WHERE ?2 > 0 AND id IN"
              " (SELECT build_id FROM run WHERE session_id = ?1)"},
    {"model", "SELECT * FROM model WHERE ?2 > 0 AND id IN (SELECT target_id FROM run WHERE "
              "session_id = ?1 UNION SELECT draft_id FROM run WHERE session_id = ?1)"},
    {"run", "SELECT * FROM run WHERE session_id = ?1 AND ?2 > 0 ORDER BY id"},
    {"server", "SELECT * FROM server WHERE ?2 > 0 AND id IN"
               " (SELECT server_id FROM run WHERE session_id = ?1)"},
    {"event", "SELECT * FROM event WHERE session_id = ?1 AND turn <= ?2 ORDER BY link"},
    {"turn", "SELECT * FROM turn WHERE session_id = ?1 AND n <= ?2 ORDER BY n, role DESC"},
    {"turn_part", "SELECT p.* FROM turn t JOIN turn_part p ON p.turn_id = t.id"
                  " WHERE t.session_id = ?1 AND t.n <= ?2 ORDER BY t.n, p.k"},
    {"step", "SELECT s.* FROM turn t JOIN step s ON s.turn_id = t.id"
             " WHERE t.session_id = ?1 AND t.n <= ?2 ORDER BY t.n, s.n"},
    {"tree", "SELECT x.* FROM turn t JOIN step s ON s.turn_id = t.id JOIN tree x ON"
             " x.step_id = s.id WHERE t.session_id = ?1 AND t.n <= ?2 ORDER BY t.n, s.n"},
    {"served", "SELECT x.* FROM turn t JOIN served x ON x.turn_id = t.id"
               " WHERE t.session_id = ?1 AND t.n <= ?2 ORDER BY t.n"},
    {"metric", "SELECT m.* FROM turn t JOIN metric m ON m.turn_id = t.id"
               " WHERE t.session_id = ?1 AND t.n <= ?2 ORDER BY t.n, m.name, m.labels"},
    {"top", "SELECT o.* FROM turn t JOIN step s ON s.turn_id = t.id JOIN top o ON"
            " o.step_id = s.id WHERE t.session_id = ?1 AND t.n <= ?2 ORDER BY t.n, s.n, o.k, "
            "o.rank"},
    {"pages", "SELECT p.* FROM turn t JOIN step s ON s.turn_id = t.id JOIN pages p ON"
              " p.step_id = s.id WHERE t.session_id = ?1 AND t.n <= ?2 ORDER BY t.n, s.n"},
};

/* The first line: format, schema version, and the parents of a fork with their last inherited
 * turn. */
static void write_head(struct hdb *h, const struct hdb_past *p, struct sink *s)
{
    FREED(buf_free) struct buf hazards = {0};
    struct buf *b = &s->line;
    jput_open(b, '{');
    jput_fields(b, "%d{aerie_export}%d{schema}%s{version}%s{session}", 1, SCHEMA_VERSION,
                AERIE_VERSION, p->part[p->n_part - 1].session);
    jput_kopen(b, "inherited", '[');
    for (int i = 0; i < p->n_part - 1; i++)
        jput_record(b, "%s{session}%d{upto}", p->part[i].session, p->part[i].upto);
    jput_close(b, ']');
    s->ok = hdb_hazards(h, p->part[p->n_part - 1].session, true, "; ", &hazards, s->e);
    jput_kstr(b, "hazards", hazards.n ? hazards.p : NULL);
    jput_close(b, '}');
    buf_char(b, '\n');
    sink_line(s);
}

/* The rows of a session; of a parent those up to the turn of the fork. */
static void jsonl(struct hdb *h, const struct past_part *part, struct sink *s)
{
    for (size_t i = 0; s->ok && i < LEN(records); i++) {
        sqlite3_stmt *st = db_prepare(&h->db, s->e, records[i].sql, "si", part->session,
                                      (int64_t)part->upto);
        int rc = SQLITE_DONE;
        s->ok = st;
        while (s->ok && (rc = sqlite3_step(st)) == SQLITE_ROW) {
            jput_open(&s->line, '{');
            jput_kstr(&s->line, "type", records[i].type);
            for (int c = 0; c < sqlite3_column_count(st); c++)
                column(&s->line, st, c);
            jput_close(&s->line, '}');
            buf_char(&s->line, '\n');
            sink_line(s);
        }
        if (s->ok && rc != SQLITE_DONE)
            s->ok = db_fail(&h->db, s->e, "cannot export");
        sqlite3_finalize(st);
    }
}

/* ---- the whole export ---- */

static int (*create_file)(const char *path);
static bool (*settle_file)(const char *path, bool keep);

void hdb_create_through(int (*create)(const char *path),
                        bool (*settle)(const char *path, bool keep))
{
    create_file = create;
    settle_file = settle;
}

/* An isolated process may not write at the path itself: hdb_create_through() names a function that
 * can. */
static int create_output(const char *path, struct err *e)
{
    if (!create_file)
        return file_create(path, e);
    int fd = create_file(path);
    if (fd < 0)
        err_set(e, ERR_DB, "cannot create %s: %s%s", path, strerror(errno),
                errno == EPERM
                    ? " (a chat does not write hidden files or folders; aerie export does)"
                : errno == ELOOP ? " (a chat follows no link to a folder; aerie export does)"
                                 : "");
    return fd;
}

static bool sink_open(struct sink *s, const char *path, struct err *e)
{
    bool out = strcmp(path, "-") == 0;
    *s = (struct sink){.path = out ? "standard output" : path, .e = e, .ok = true};
    s->fd = out ? STDOUT_FILENO : create_output(path, e);
    if (!out && !create_file && s->fd >= 0)
        die_removes(path);
    return s->fd >= 0;
}

/* Closes the file, and removes it if it is incomplete. */
static bool sink_close(struct sink *s)
{
    sink_flush(s);
    buf_free(&s->line);
    if (s->fd == STDOUT_FILENO)
        return s->ok;
    if (s->ok && fsync(s->fd) != 0)
        s->ok = err_set(s->e, ERR_USAGE, "cannot write %s: %s", s->path, strerror(errno));
    close(s->fd);
    bool settled = !settle_file || settle_file(s->path, s->ok);
    if (!settled && s->ok)
        s->ok = err_set(s->e, ERR_USAGE, "cannot keep %s: %s", s->path, strerror(errno));
    if (!settle_file && !s->ok)
        unlink(s->path);
    die_removes(NULL);
    return s->ok;
}

bool hdb_save(const char *path, const char *bytes, size_t n, struct err *e)
{
    struct sink s;
    if (!sink_open(&s, path, e))
        return false;
    buf_add(&s.line, bytes, n);
    sink_line(&s);
    return sink_close(&s);
}

bool hdb_export(struct hdb *h, const char *session, const char *path, struct err *e)
{
    FREED(session_row_free) struct session_row row = {0};
    FREED(hdb_past_free) struct hdb_past past = {0};
    struct sink s;
    if (!hdb_find(h, session, &row, e))
        return false;
    bool ok = hdb_past(h, row.id, INT_MAX, &past, e);
    ok = ok && sink_open(&s, path, e);
    if (ok) {
        write_head(h, &past, &s);
        for (int i = 0; i < past.n_part; i++)
            jsonl(h, &past.part[i], &s);
        ok = sink_close(&s);
    }
    return ok;
}
