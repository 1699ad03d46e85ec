/* inspect.c - runs SQL that a user typed, on a connection that can only read.
 *
 * Three mechanisms prevent writing: the file is opened read-only; an authoriser permits only reads,
 * safe functions and a few pragmas; and the text must be a single statement that SQLite reports as
 * read-only. Time, and the sizes of values, rows and output, are limited.
 */
#include "history/internal.h"
#include "kernels/json.h"
#include "kernels/utf8.h"

#include <utf8proc.h>

enum {
    TIME_MS = 2000,
    VALUE_BYTES = 6 << 20,   /* the largest string or blob a query may build */
    OUTPUT_BYTES = 16 << 20,
    BLOB_SHOWN = 16,         /* bytes of a blob shown as hex */
    CELL_WIDTH = 60,         /* columns of a cell in the text table */
};

static const char *const pragmas[] = {"table_info", "table_xinfo", "table_list", "index_list",
                                      "index_info", "index_xinfo", "foreign_key_list"};
static const char *const plain_pragmas[] = {"user_version", "application_id", "page_count",
                                            "page_size", "freelist_count", "encoding",
                                            "auto_vacuum", "compile_options", "data_version"};

static bool is_among(const char *s, const char *const *list, size_t n)
{
    return ANY(i, n, sqlite3_stricmp(s, list[i]) == 0);
}
#define AMONG(s, list) is_among(s, list, sizeof(list) / sizeof *(list))

static int authorise(void *, int action, const char *a, const char *b, const char *,
                     const char *)
{
    static const char *const unsafe[] = {"load_extension", "fts3_tokenizer", "fts5"};
    switch (action) {
    case SQLITE_SELECT: case SQLITE_READ: case SQLITE_RECURSIVE:
        return SQLITE_OK;
    case SQLITE_FUNCTION:
        return AMONG(b, unsafe) ? SQLITE_DENY : SQLITE_OK;
    case SQLITE_UPDATE: /* older SQLite versions request this when they first open a virtual table;
                           the other mechanisms stop a real update of the schema */
        return strcmp(a, "sqlite_master") == 0 ? SQLITE_OK : SQLITE_DENY;
    case SQLITE_PRAGMA:
        return AMONG(a, pragmas) || (!b && AMONG(a, plain_pragmas)) ? SQLITE_OK : SQLITE_DENY;
    }
    return SQLITE_DENY;
}

static int out_of_time(void *until)
{
    return clock_ns() > *(uint64_t *)until;
}

/* ---- SQL functions that decode blobs ---- */

/* ids(tokens): the packed ids as a JSON array */
static void sql_ids(sqlite3_context *c, int, sqlite3_value **v)
{
    const char *p = sqlite3_value_blob(v[0]);
    int bytes = sqlite3_value_bytes(v[0]);
    FREED(buf_free) struct buf b = {0};
    buf_char(&b, '[');
    for (int i = 0; i + 4 <= bytes; i += 4) {
        int32_t id;
        memcpy(&id, p + i, sizeof id);
        buf_printf(&b, "%s%d", i ? "," : "", id);
    }
    buf_char(&b, ']');
    sqlite3_result_text64(c, b.p, b.n, SQLITE_TRANSIENT, SQLITE_UTF8);
}

static void sql_tree(sqlite3_context *c, int, sqlite3_value **v)
{
    FREED(buf_free) struct buf b = {0};
    struct tree t;
    struct err e;
    if (sqlite3_value_type(v[0]) == SQLITE_NULL)
        return;
    if (tree_unpack(&t, sqlite3_value_blob(v[0]), (size_t)sqlite3_value_bytes(v[0]), &e)) {
        tree_json(&t, &b);
        sqlite3_result_text64(c, b.p, b.n, SQLITE_TRANSIENT, SQLITE_UTF8);
    } else {
        sqlite3_result_error(c, e.msg, -1);
    }
}

static bool open_inspector(struct hdb *h, struct err *e)
{
    if (h->sql.h)
        return true;
    bool frozen = h->warning[0]; /* hdb_open() opened the file as immutable */
    char *name = frozen ? db_immutable_uri(h->path) : xstrdup(h->path);
    bool ok = h->pack ? pack_connect(&h->sql, h->path, &h->pack->file, e)
                      : db_open(&h->sql, name,
                                SQLITE_OPEN_READONLY | (frozen ? SQLITE_OPEN_URI : 0), e);
    free(name);
    if (!ok)
        return false;
    sqlite3 *s = h->sql.h;
    const int pure = SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS;
    sqlite3_create_function(s, "ids", 1, pure, NULL, sql_ids, NULL, NULL);
    sqlite3_create_function(s, "tree_json", 1, pure, NULL, sql_tree, NULL, NULL);
    if (!db_exec(&h->sql, "PRAGMA query_only=ON", e)) {
        db_close(&h->sql);
        return false;
    }
    /* the schema's own views: its text was compared */
    sqlite3_db_config(s, SQLITE_DBCONFIG_ENABLE_VIEW, 1, NULL);
    sqlite3_db_config(s, SQLITE_DBCONFIG_DQS_DML, 0, NULL); /* "typo" is an error, not a string */
    sqlite3_limit(s, SQLITE_LIMIT_LENGTH, VALUE_BYTES);
    sqlite3_limit(s, SQLITE_LIMIT_ATTACHED, 0);
    sqlite3_limit(s, SQLITE_LIMIT_WORKER_THREADS, 0);
    sqlite3_set_authorizer(s, authorise, NULL);
    return true;
}

/* ---- printing ---- */

static void blob_hex(struct buf *b, sqlite3_stmt *st, int i)
{
    const unsigned char *p = sqlite3_column_blob(st, i);
    int n = sqlite3_column_bytes(st, i);
    buf_str(b, "x'");
    buf_hex(b, p, (size_t)min_int(n, BLOB_SHOWN));
    buf_str(b, n > BLOB_SHOWN ? "..." : "");
    buf_char(b, '\'');
    if (n > BLOB_SHOWN)
        buf_printf(b, " (%d bytes)", n);
}

static void json_value(struct buf *b, sqlite3_stmt *st, int i)
{
    struct buf hex = {0};
    int type = sqlite3_column_type(st, i);
    if (type == SQLITE_BLOB) {
        blob_hex(&hex, st, i);
        jput_strn(b, hex.p, hex.n);
        buf_free(&hex);
    } else if (type == SQLITE_TEXT) {
        jput_strn(b, (const char *)sqlite3_column_text(st, i), (size_t)sqlite3_column_bytes(st, i));
    } else {
        col_json(st, i, b);
    }
}

/* A line for each row. */
static void json_row(struct buf *b, sqlite3_stmt *st, int row)
{
    buf_str(b, row ? ",\n" : "\n");
    JPUT_IN(b, '{');
    for (int i = 0; i < sqlite3_column_count(st); i++) {
        jput_key(b, sqlite3_column_name(st, i));
        json_value(b, st, i);
    }
}

/* Appends s as one line of at most CELL_WIDTH columns: line ends and tabs become spaces. */
static void cell_text(struct buf *b, const char *s, size_t n, int *width)
{
    *width = 0;
    for (const char *p = s, *end = s + n; p < end;) {
        uint32_t c;
        size_t k = utf8_char(p, (size_t)(end - p), &c);
        int w = k ? utf8proc_charwidth((utf8proc_int32_t)c) : 1;
        if (*width + w > CELL_WIDTH) {
            buf_str(b, "...");
            *width += 3;
            return;
        }
        if (k > 0 && (c == '\n' || c == '\t' || c == '\r')) {
            buf_char(b, ' ');
            w = 1;
        } else {
            buf_add(b, p, k ? k : 1);
        }
        *width += w;
        p += k ? k : 1;
    }
}

/* The cells of the output table, row by row; row 0 holds the column names. */
struct inspect_cells {
    struct buf text;
    struct inspect_cell {
        size_t at, n;
        int width;
        bool number;
    } *cell;
    int n, columns;
};

static void add_table_cell(struct inspect_cells *t, const char *s, size_t n, bool number)
{
    struct inspect_cell *c = APPEND(t->cell, t->n);
    *c = (struct inspect_cell){.at = t->text.n, .number = number};
    cell_text(&t->text, s, n, &c->width);
    c->n = t->text.n - c->at;
}

static void add_value(struct inspect_cells *t, sqlite3_stmt *st, int i)
{
    FREED(buf_free) struct buf b = {0};
    int type = sqlite3_column_type(st, i);
    if (type == SQLITE_BLOB) {
        blob_hex(&b, st, i);
        add_table_cell(t, b.p, b.n, false);
    } else if (type == SQLITE_NULL) {
        add_table_cell(t, "-", 1, false);
    } else {
        const char *s = (const char *)sqlite3_column_text(st, i);
        add_table_cell(t, s, (size_t)sqlite3_column_bytes(st, i), type != SQLITE_TEXT);
    }
}

static void print_row(const struct inspect_cells *t, int row, const int *width, struct buf *out)
{
    for (int i = 0; i < t->columns; i++) {
        const struct inspect_cell *c = &t->cell[row * t->columns + i];
        int pad = width[i] - c->width;
        if (i)
            buf_str(out, "  ");
        if (c->number)
            buf_printf(out, "%*s", pad, "");
        buf_add(out, t->text.p + c->at, c->n);
        if (!c->number && i < t->columns - 1)
            buf_printf(out, "%*s", pad, "");
    }
    buf_char(out, '\n');
}

static void print_table(const struct inspect_cells *t, struct buf *out)
{
    FREED(free_at) int *width = xcalloc((size_t)t->columns, sizeof *width);
    for (int i = 0; i < t->n; i++)
        width[i % t->columns] = max_int(width[i % t->columns], t->cell[i].width);
    for (int row = 0; row < t->n / t->columns; row++) {
        print_row(t, row, width, out);
        for (int i = 0; row == 0 && i < t->columns; i++) {
            buf_str(out, i ? "  " : "");
            for (int k = 0; k < width[i]; k++)
                buf_char(out, '-');
        }
        if (row == 0)
            buf_char(out, '\n');
    }
}

/* ---- running ---- */

/* Collects the statement's rows. *cut: a limit was reached before the last row. */
static int collect_rows(sqlite3_stmt *st, bool json, int max_rows, struct inspect_cells *t,
                        struct buf *out, bool *cut, int *rows)
{
    int rc;
    t->columns = sqlite3_column_count(st);
    for (int i = 0; !json && i < t->columns; i++)
        add_table_cell(t, sqlite3_column_name(st, i), strlen(sqlite3_column_name(st, i)), false);
    for (*rows = 0; (rc = sqlite3_step(st)) == SQLITE_ROW; ++*rows) {
        *cut = *rows >= max_rows || out->n + t->text.n > OUTPUT_BYTES;
        if (*cut)
            return SQLITE_DONE;
        if (json)
            json_row(out, st, *rows);
        for (int i = 0; !json && i < t->columns; i++)
            add_value(t, st, i);
    }
    return rc;
}

static bool run_query(struct hdb *h, sqlite3_stmt *st, bool json, int max_rows, struct buf *out,
                      struct err *e)
{
    struct inspect_cells t = {0};
    FREED(buf_free) struct buf rows_json = {0};
    bool cut = false;
    int rows;
    uint64_t until = clock_ns() + TIME_MS * 1000000ull;
    sqlite3_progress_handler(h->sql.h, 1000, out_of_time, &until);
    int rc = collect_rows(st, json, max_rows, &t, &rows_json, &cut, &rows);
    sqlite3_progress_handler(h->sql.h, 0, NULL, NULL);
    if (rc == SQLITE_DONE && json) {
        jput_open(out, '{');
        jput_kopen(out, "rows", '[');
        buf_add(out, rows_json.p, rows_json.n);
        buf_str(out, rows ? "\n" : "");
        jput_close(out, ']');
        jput_kbool(out, "truncated", cut);
        jput_close(out, '}');
        buf_char(out, '\n');
    } else if (rc == SQLITE_DONE) {
        print_table(&t, out);
        if (cut && rows == 1)
            buf_str(out, "(only the first row)\n");
        else
            buf_printf(out, "(%s%d row%s)\n", cut ? "only the first " : "", rows, plural(rows));
    } else if (rc == SQLITE_INTERRUPT) {
        err_set(e, ERR_USAGE, "the query took longer than %d s and was stopped", TIME_MS / 1000);
    } else {
        err_set(e, ERR_USAGE, "SQL: %s", sqlite3_errmsg(h->sql.h));
    }
    free(t.cell);
    buf_free(&t.text);
    return rc == SQLITE_DONE;
}

/* Whether only white space and comments follow the statement: anything else would be prepared. */
static bool is_alone(struct db *d, const char *tail)
{
    sqlite3_stmt *more = NULL;
    int rc = sqlite3_prepare_v2(d->h, tail, -1, &more, NULL);
    sqlite3_finalize(more);
    return rc == SQLITE_OK && !more;
}

bool hdb_sql(struct hdb *h, const char *sql, bool json, int max_rows, struct buf *out,
             struct err *e)
{
    if (!open_inspector(h, e))
        return false;
    sqlite3_stmt *st = NULL;
    const char *tail;
    bool ok = false;
    if (sqlite3_prepare_v2(h->sql.h, sql, -1, &st, &tail) != SQLITE_OK)
        err_set(e, ERR_USAGE, "SQL: %s%s", sqlite3_errmsg(h->sql.h),
                sqlite3_errcode(h->sql.h) == SQLITE_AUTH ? ": only reading is allowed" : "");
    else if (!st)
        err_set(e, ERR_USAGE, "SQL: expected a SELECT");
    else if (!sqlite3_stmt_readonly(st) || !sqlite3_column_count(st))
        err_set(e, ERR_USAGE, "SQL: only reading is allowed");
    else if (!is_alone(&h->sql, tail))
        err_set(e, ERR_USAGE, "SQL: expected one statement");
    else
        ok = run_query(h, st, json, max_rows, out, e);
    sqlite3_finalize(st);
    return ok;
}
