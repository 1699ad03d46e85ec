/* export.c - a session as a file for machines (JSON lines) or for people (Markdown).
 *
 * JSON lines: the first names the schema, then one record a row, its type the table's name. Output
 * is ASCII only, so neither a line end nor a control character of a chat is ever in it raw. Packed
 * ids and trees are decoded; integers beyond 2^53 and digests are strings, because readers of JSON
 * round them; text that is no UTF-8 has its exact bytes beside it as NAME_hex.
 */
#include "history/hazards.h"
#include "history/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void json_int(struct buf *b, int64_t v)
{
    bool wide = v > (INT64_C(1) << 53) || v < -(INT64_C(1) << 53);
    buf_printf(b, wide ? "\"%lld\"" : "%lld", (long long)v);
}

void json_float(struct buf *b, double v)
{
    if (isfinite(v))
        buf_printf(b, "%.9g", v);
    else
        buf_str(b, "null");
}

void tree_json(const struct tree *t, struct buf *b)
{
    static const char *const fates[] = {"none", "accepted", "rejected", "cut"};
    buf_char(b, '[');
    for (int i = 0; i < t->n; i++) {
        buf_printf(b, "%s{\"token\": %d, \"parent\": %d, \"depth\": %d, \"fate\": \"%s\", \"q\": ",
                   i ? ", " : "", t->token[i], t->parent[i], t->depth[i], fates[t->fate[i] & 3]);
        json_float(b, (double)t->q[i]);
        buf_str(b, ", \"p\": ");
        json_float(b, (double)t->p[i]);
        buf_str(b, ", \"u\": ");
        json_float(b, (double)t->u[i]);
        buf_char(b, '}');
    }
    buf_char(b, ']');
}

/* ---- the file ---- */

struct sink {
    int fd;
    const char *path;
    struct err *e;
    bool ok;
    struct buf line;
};

/* One record, one write; a failure is kept and ends the export. */
static void sink_line(struct sink *s)
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

/* ---- JSON lines ---- */

static void hex(struct buf *b, const unsigned char *p, int n)
{
    buf_char(b, '"');
    for (int i = 0; i < n; i++)
        buf_printf(b, "%02x", p[i]);
    buf_char(b, '"');
}

static void blob_value(struct buf *b, const char *name, const void *p, int n)
{
    struct tree t;
    if (strcmp(name, "tokens") == 0) {
        buf_char(b, '[');
        for (int i = 0; i + 4 <= n; i += 4) {
            int32_t id;
            memcpy(&id, (const char *)p + i, sizeof id);
            buf_printf(b, "%s%d", i ? "," : "", id);
        }
        buf_char(b, ']');
    } else if (strcmp(name, "nodes") == 0 && tree_unpack(&t, p, (size_t)n, NULL)) {
        tree_json(&t, b);
    } else {
        hex(b, p, n);
    }
}

static void text_value(struct buf *b, const char *name, const char *s, int n)
{
    if (!json_str(b, s, (size_t)n)) {
        buf_printf(b, ", \"%s_hex\": ", name);
        hex(b, (const unsigned char *)s, n);
    }
}

static void column(struct buf *b, sqlite3_stmt *st, int i)
{
    const char *name = sqlite3_column_name(st, i);
    size_t n = strlen(name);
    bool digest = n > 7 && strcmp(name + n - 7, "_digest") == 0;
    buf_printf(b, ", \"%s\": ", name);
    switch (sqlite3_column_type(st, i)) {
    case SQLITE_INTEGER:
        if (digest)
            buf_printf(b, "\"%016llx\"", (unsigned long long)sqlite3_column_int64(st, i));
        else
            json_int(b, sqlite3_column_int64(st, i));
        break;
    case SQLITE_FLOAT:
        json_float(b, sqlite3_column_double(st, i));
        break;
    case SQLITE_TEXT: {
        const char *s = (const char *)sqlite3_column_text(st, i);
        text_value(b, name, s, sqlite3_column_bytes(st, i));
        break;
    }
    case SQLITE_BLOB: {
        const void *p = sqlite3_column_blob(st, i);
        blob_value(b, name, p, sqlite3_column_bytes(st, i));
        break;
    }
    default:
        buf_str(b, "null");
    }
}

static const struct {
    const char *type, *sql;
} records[] = {
    {"session", "SELECT * FROM session WHERE id = ?"},
    {"build", "SELECT * FROM build WHERE id IN (SELECT build_id FROM run WHERE session_id = ?)"},
    {"model", "SELECT * FROM model WHERE id IN (SELECT target_id FROM run WHERE session_id = ?1"
              " UNION SELECT draft_id FROM run WHERE session_id = ?1)"},
    {"run", "SELECT * FROM run WHERE session_id = ? ORDER BY id"},
    {"event", "SELECT * FROM event WHERE session_id = ? ORDER BY link"},
    {"turn", "SELECT * FROM turn WHERE session_id = ? ORDER BY n, role DESC"},
    {"turn_part", "SELECT p.* FROM turn t JOIN turn_part p ON p.turn_id = t.id"
                  " WHERE t.session_id = ? ORDER BY t.n, p.k"},
    {"step", "SELECT s.* FROM turn t JOIN step s ON s.turn_id = t.id"
             " WHERE t.session_id = ? ORDER BY t.n, s.n"},
    {"tree", "SELECT x.* FROM turn t JOIN step s ON s.turn_id = t.id JOIN tree x ON"
             " x.step_id = s.id WHERE t.session_id = ? ORDER BY t.n, s.n"},
    {"page_event", "SELECT p.* FROM turn t JOIN step s ON s.turn_id = t.id JOIN page_event p ON"
                   " p.step_id = s.id WHERE t.session_id = ? ORDER BY t.n, s.n, p.seq"},
};

static bool jsonl(struct hdb *h, const char *session, struct sink *s)
{
    buf_printf(&s->line, "{\"aerie_export\": 1, \"schema\": %d, \"version\": \"" AERIE_VERSION
               "\", \"session\": \"%s\", \"hazards\": ", SCHEMA_VERSION, session);
    struct buf hazards = {0};
    s->ok = hdb_hazards(h, session, true, "; ", &hazards, s->e);
    if (hazards.n)
        json_str(&s->line, hazards.p, hazards.n);
    else
        buf_str(&s->line, "null");
    buf_free(&hazards);
    buf_str(&s->line, "}\n");
    sink_line(s);
    for (size_t i = 0; s->ok && i < sizeof records / sizeof *records; i++) {
        sqlite3_stmt *st = db_prepare(&h->db, s->e, records[i].sql, "s", session);
        int rc = SQLITE_DONE;
        s->ok = st;
        while (s->ok && (rc = sqlite3_step(st)) == SQLITE_ROW) {
            buf_printf(&s->line, "{\"type\": \"%s\"", records[i].type);
            for (int c = 0; c < sqlite3_column_count(st); c++)
                column(&s->line, st, c);
            buf_str(&s->line, "}\n");
            sink_line(s);
        }
        if (s->ok && rc != SQLITE_DONE)
            s->ok = db_fail(&h->db, s->e, "cannot export");
        sqlite3_finalize(st);
    }
    return s->ok;
}

/* ---- Markdown ---- */

/* Characters that act on a terminal or reorder text, beyond the line end and the tab. */
static bool is_control(uint32_t c)
{
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0) || c == 0x061C ||
           (c >= 0x200E && c <= 0x200F) || c == 0x200B || (c >= 0x202A && c <= 0x202E) ||
           c == 0x2060 || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF ||
           (c >= 0xE0000 && c <= 0xE007F);
}

static void plain_text(struct buf *b, const char *s, size_t n)
{
    for (const char *p = s, *end = s + n; p < end;) {
        uint32_t c;
        int k = utf8_next(p, end, &c);
        if (k < 0)
            buf_str(b, "\xEF\xBF\xBD");
        else if (is_control(c))
            buf_printf(b, "<U+%04X>", c);
        else
            buf_add(b, p, (size_t)k);
        p += k < 0 ? 1 : k;
    }
}

static bool md_turn(const struct turn_row *r, void *arg)
{
    struct sink *s = arg;
    buf_printf(&s->line, "\n## %d. %s%s%s\n\n", r->n, r->is_user ? "You" : "Reply",
               r->regen ? " (again)" : "", r->undone ? " (undone)" : "");
    struct buf hazards = {0};
    if (r->is_user && hazards_of_settings(r->sampling, " · ", &hazards))
        buf_printf(&s->line, "**%s**\n\n", hazards.p);
    buf_free(&hazards);
    plain_text(&s->line, r->text, r->text_n);
    buf_char(&s->line, '\n');
    if (!r->is_user)
        buf_printf(&s->line, "\n*%s; %d tokens in %d steps, %d of %d drafted tokens accepted*\n",
                   *r->stop ? r->stop : "still running", r->tokens.n, r->n_steps, r->n_accepted,
                   r->n_drafted);
    sink_line(s);
    return s->ok;
}

static bool markdown(struct hdb *h, const struct session_row *row, struct sink *s)
{
    char when[32];
    time_t at = (time_t)(row->created_ms / 1000);
    struct tm tm;
    localtime_r(&at, &tm);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
    buf_str(&s->line, "# ");
    plain_text(&s->line, row->title, strlen(row->title));
    buf_printf(&s->line, "\n\nSession `%s`, begun %s, model `", row->id, when);
    plain_text(&s->line, row->model, strlen(row->model));
    buf_str(&s->line, "`");
    if (*row->parent)
        buf_printf(&s->line, ", forked from `%s` after turn %d", row->parent, row->fork_turn);
    buf_str(&s->line, "\n");
    struct buf hazards = {0};
    s->ok = hdb_hazards(h, row->id, true, " · ", &hazards, s->e);
    if (hazards.n)
        buf_printf(&s->line, "\n**%s**\n", hazards.p);
    buf_free(&hazards);
    sink_line(s);
    return s->ok && hdb_turns(h, row->id, 0, md_turn, s, s->e) >= 0 && s->ok;
}

bool hdb_export(struct hdb *h, const char *session, const char *format, const char *path,
                struct err *e)
{
    bool md = strcmp(format, "md") == 0, out = strcmp(path, "-") == 0;
    if (!md && strcmp(format, "jsonl") != 0)
        return err_set(e, ERR_USAGE, "unknown format \"%s\": expected jsonl or md", format);
    struct session_row row;
    if (!hdb_find(h, session, &row, e))
        return false;
    struct sink s = {.path = out ? "standard output" : path, .e = e, .ok = true};
    s.fd = out ? STDOUT_FILENO : file_create(path, e);
    bool ok = s.fd >= 0 && (md ? markdown(h, &row, &s) : jsonl(h, row.id, &s));
    if (s.fd >= 0 && !out) {
        if (ok && fsync(s.fd) != 0)
            ok = err_set(e, ERR_USAGE, "cannot write %s: %s", path, strerror(errno));
        close(s.fd);
        if (!ok)
            unlink(path);
    }
    buf_free(&s.line);
    session_row_free(&row);
    return ok;
}
