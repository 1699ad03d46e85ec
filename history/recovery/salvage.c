/* salvage.c - reads the tables of a log whose schema cannot be read.
 *
 * SQLite finds a table through the schema; if the schema's pages are damaged, the tables' b-trees
 * are still there. A root page is one that no other page refers to; an inner page that is damaged
 * refers to none, so that the pages below it count as roots, too. In a copy of the file with a
 * new schema, each b-tree becomes a table of columns without types. The types of the values in its
 * first rows tell which of aerie's tables it is: no two tables have the same types, except trees
 * and page events, whose content differs. The rows are copied to an empty log of the same version.
 * The search index is not read, because a repaired log gets a new one.
 */
#include "history/internal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    COLUMNS = 40, /* more than any table has */
    SAMPLE = 16,  /* rows from which the table is recognised */
    PAGE_1_HEADER = 100,
    INNER_INDEX = 2, INNER_TABLE = 5, LEAF_INDEX = 10, LEAF_TABLE = 13,
};

struct image {
    const unsigned char *p;
    size_t mapped, size, page, n; /* bytes in the file, bytes of whole pages, bytes of a page,
                                     pages */
};

static uint32_t big_endian(const unsigned char *p, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

/* ---- the b-trees ---- */

static void mark(const struct image *m, unsigned char *child, uint32_t page)
{
    if (page && page <= m->n)
        child[page] = 1;
}

/* Whether a page can be a child of an inner page of that kind. */
static bool is_child(const struct image *m, uint32_t page, int inner)
{
    int kind = page > 1 && page <= m->n ? m->p[(size_t)(page - 1) * m->page] : 0;
    return inner == INNER_TABLE ? kind == INNER_TABLE || kind == LEAF_TABLE
                                : kind == INNER_INDEX || kind == LEAF_INDEX;
}

/* The page to which cell i of an inner page refers; i == the number of cells: the last one. 0: the
 * cell is not within the page. */
static uint32_t child_at(const struct image *m, const unsigned char *p, const unsigned char *head,
                         uint32_t i)
{
    const uint32_t cells = big_endian(head + 3, 2);
    size_t table = (size_t)(head - p) + 12;
    if (i == cells)
        return big_endian(head + 8, 4);
    uint32_t at = big_endian(p + table + (size_t)2 * i, 2);
    return at >= table + (size_t)2 * cells && at + 4 <= m->page ? big_endian(p + at, 4) : 0;
}

/* Marks the pages to which a page refers, unless it is damaged. */
static void mark_children(const struct image *m, size_t page, unsigned char *child)
{
    const unsigned char *p = m->p + (page - 1) * m->page,
        *head = p + (page == 1 ? PAGE_1_HEADER : 0);
    if (head[0] != INNER_INDEX && head[0] != INNER_TABLE)
        return;
    const uint32_t cells = big_endian(head + 3, 2);
    if ((size_t)(head - p) + 12 + (size_t)2 * cells > m->page)
        return;
    for (uint32_t i = 0; i <= cells; i++)
        if (!is_child(m, child_at(m, p, head, i), head[0]))
            return;
    for (uint32_t i = 0; i <= cells; i++)
        mark(m, child, child_at(m, p, head, i));
}

static bool is_keyed(const struct image *m, int32_t page)
{
    int kind = m->p[(size_t)(page - 1) * m->page];
    return kind == INNER_INDEX || kind == LEAF_INDEX;
}

static void find_trees(const struct image *m, struct ids *out)
{
    unsigned char *child = xcalloc(m->n + 1, 1);
    for (size_t i = 1; i <= m->n; i++)
        mark_children(m, i, child);
    for (size_t i = 2; i <= m->n && i < INT32_MAX; i++) {
        int kind = m->p[(i - 1) * m->page];
        if (!child[i] && (kind == INNER_INDEX || kind == INNER_TABLE || kind == LEAF_INDEX ||
                          kind == LEAF_TABLE))
            ids_add(out, (int32_t)i);
    }
    free(child);
}

/* ---- the copy with a new schema ---- */

/* Writes a database in whose schema each tree is a table tN(c0, c1, ...), N its root page. Its own
 * pages come after the last page of the image, so that the image's pages can be copied over it. */
static bool write_schema(const struct image *m, const struct ids *trees, const char *to)
{
    sqlite3 *h = NULL;
    FREED(buf_free) struct buf sql = {0};
    buf_printf(&sql, "PRAGMA page_size=%zu; PRAGMA journal_mode=OFF; BEGIN; CREATE TABLE filler(x);"
               "INSERT INTO filler VALUES(zeroblob(%zu));", m->page, m->size);
    for (int i = 0; i < trees->n; i++) {
        bool keyed = is_keyed(m, trees->v[i]);
        buf_printf(&sql, "CREATE TABLE t%d(c0%s", (int)trees->v[i], keyed ? " PRIMARY KEY" : "");
        for (int k = 1; k < COLUMNS; k++)
            buf_printf(&sql, ",c%d", k);
        buf_printf(&sql, ")%s;", keyed ? " WITHOUT ROWID" : "");
    }
    buf_str(&sql, "PRAGMA writable_schema=ON; DELETE FROM sqlite_schema WHERE name='filler';"
            "UPDATE sqlite_schema SET rootpage=CAST(substr(name,2) AS INTEGER); COMMIT");
    bool ok = sqlite3_open(to, &h) == SQLITE_OK && sqlite3_exec(h, sql.p, NULL, NULL, NULL) ==
              SQLITE_OK;
    sqlite3_close(h);
    return ok;
}

static bool write_trees(const struct image *m, const struct ids *trees, const char *to,
                        struct err *e)
{
    int fd = file_create(to, e);
    if (fd < 0)
        return false;
    bool ok = write_schema(m, trees, to) && lseek(fd, (off_t)m->page, SEEK_SET) == (off_t)m->page &&
              write_fully(fd, m->p + m->page, m->size - m->page);
    close(fd);
    return ok || err_set(e, ERR_DB, "cannot write %s", to);
}

/* ---- which table a tree is ---- */

/* For a table of the log: a condition that its rows meet, and the list of its columns, both in
 * terms of c0, c1, ... */
struct salvage_shape {
    struct buf fits, values;
};

static void add_column(struct salvage_shape *s, int i, sqlite3_stmt *info, bool keyed)
{
    const char *type = (const char *)sqlite3_column_text(info, 2),
        *none = (const char *)sqlite3_column_text(info, 4);
    bool row_id = !keyed && sqlite3_column_int(info, 5) && strcmp(type, "INTEGER") == 0;
    bool null = !sqlite3_column_int(info, 3) || none;
    const char *kind = strcmp(type, "INTEGER") == 0 ? "'integer'"
                       : strcmp(type, "TEXT") == 0  ? "'text'"
                       : strcmp(type, "REAL") == 0  ? "'real','integer'"
                       : !*type                     ? "'text','blob'"
                                                    : "'blob'";
    const char *comma = i ? "," : "", *name = (const char *)sqlite3_column_text(info, 1);
    if (row_id) {
        buf_printf(&s->values, "%srowid AS %s", comma, name);
        buf_printf(&s->fits, "%sc%d IS NULL", i ? " AND " : "", i);
        return;
    }
    if (none) /* rows from before the column was added are shorter */
        buf_printf(&s->values, "%scoalesce(c%d,%s) AS %s", comma, i, none, name);
    else
        buf_printf(&s->values, "%sc%d AS %s", comma, i, name);
    buf_printf(&s->fits, "%stypeof(c%d) IN (%s%s)", i ? " AND " : "", i, kind, null ? ",'null'"
               : "");
}

static void shape_of(struct db *log, const char *table, bool keyed, struct salvage_shape *s)
{
    char sql[100];
    int n = 0;
    *s = (struct salvage_shape){0};
    snprintf(sql, sizeof sql, "PRAGMA table_info(%.60s)", table);
    sqlite3_stmt *info = db_prepare(log, NULL, sql, "");
    for (; info && sqlite3_step(info) == SQLITE_ROW; n++)
        add_column(s, n, info, keyed);
    sqlite3_finalize(info);
    for (; n < COLUMNS; n++)
        buf_printf(&s->fits, " AND c%d IS NULL", n);
    if (strcmp(table, "top") == 0) /* an index of three numbers is none */
        buf_str(&s->fits, " AND coalesce(c3,c4,c5) NOT NULL");
}

/* Tells draft trees from page events, whose columns have the same types, by their content. */
static bool content_fits(struct db *trees, int32_t root, const char *table)
{
    char sql[100];
    bool fits = true;
    if (strcmp(table, "tree") != 0 && strcmp(table, "pages") != 0)
        return true;
    snprintf(sql, sizeof sql, "SELECT c1 FROM t%d LIMIT %d", (int)root, SAMPLE);
    sqlite3_stmt *st = db_prepare(trees, NULL, sql, "");
    while (fits && st && sqlite3_step(st) == SQLITE_ROW) {
        const void *p = sqlite3_column_blob(st, 0);
        size_t n = (size_t)sqlite3_column_bytes(st, 0);
        struct tree t;
        struct context_lengths l;
        FREED(free_at) struct page_event *ev = NULL;
        int n_ev = 0;
        fits = strcmp(table, "tree") == 0 ? tree_unpack(&t, p, n, NULL)
                                          : page_unpack(p, n, &l, &ev, &n_ev, NULL);
    }
    sqlite3_finalize(st);
    return fits;
}

static bool tree_fits(struct db *trees, int32_t root, const char *table,
                      const struct salvage_shape *s)
{
    int64_t some = 0, fits = 0;
    char *sql = xasprintf("SELECT count(*), total(%s) FROM (SELECT * FROM t%d LIMIT %d)", s->fits.p,
                          (int)root, SAMPLE);
    sqlite3_stmt *st = db_prepare(trees, NULL, sql, "");
    if (st && sqlite3_step(st) == SQLITE_ROW) {
        some = sqlite3_column_int64(st, 0);
        fits = sqlite3_column_int64(st, 1);
    }
    sqlite3_finalize(st);
    free(sql);
    return some > 0 && fits == some && content_fits(trees, root, table);
}

/* Copies the rows of the trees that fit, each up to the first row that cannot be read. */
static int copy_table(const struct image *m, const struct ids *roots, struct db *trees,
                      struct db *log, const char *table, bool keyed)
{
    struct salvage_shape s;
    int rc = SQLITE_OK;
    bool whole;
    shape_of(log, table, keyed, &s);
    for (int i = 0; !rc && i < roots->n; i++)
        if (is_keyed(m, roots->v[i]) == keyed && tree_fits(trees, roots->v[i], table, &s)) {
            char *get = xasprintf("SELECT %s FROM t%d", s.values.p, (int)roots->v[i]);
            rc = rows_copy(db_prepare(trees, NULL, get, ""), log, table, NULL, &whole);
            free(get);
        }
    buf_free(&s.fits);
    buf_free(&s.values);
    return rc;
}

/* ---- all of it ---- */

static bool copy_tables(const struct image *m, const struct ids *roots, struct db *trees,
                        struct db *log, struct err *e)
{
    int rc = SQLITE_OK;
    sqlite3_stmt *st = db_prepare(log, e, "SELECT name, sql LIKE '%WITHOUT ROWID' FROM "
                                          "sqlite_schema WHERE type='table' AND name NOT LIKE "
                                          "'turn\\_fts%' ESCAPE '\\' AND name NOT LIKE 'sqlite%'",
                                          "");
    while (st && !rc && sqlite3_step(st) == SQLITE_ROW)
        rc = copy_table(m, roots, trees, log, (const char *)sqlite3_column_text(st, 0),
                        sqlite3_column_int(st, 1));
    sqlite3_finalize(st);
    return st && (!rc || db_fail(log, e, "cannot write"));
}

static bool image_open(struct image *m, const char *path, struct err *e)
{
    enum { AT_PAGE_SIZE = 16, DEFAULT_PAGE = 4096 };
    struct stat st;
    int fd = file_open_beside(path, O_RDONLY, e);
    void *p = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > DEFAULT_PAGE
                  ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (p == MAP_FAILED)
        return err_set(e, ERR_DB, "cannot read %s", path);
    *m = (struct image){.p = p, .mapped = (size_t)st.st_size, .page = DEFAULT_PAGE};
    uint32_t page = big_endian(m->p + AT_PAGE_SIZE, 2);
    if (memcmp(p, "SQLite format 3", 16) == 0 && page >= 512 && (page & (page - 1)) == 0)
        m->page = page;
    m->n = m->mapped / m->page;
    m->size = m->n * m->page;
    return true;
}

bool salvage(const char *path, struct db *log, struct err *e)
{
    struct image m = {0};
    struct ids roots = {0};
    struct db trees = {0};
    if (!image_open(&m, path, e))
        return false;
    FREED(free_at) char *to = xasprintf("%s.trees", path);
    unlink(to);
    find_trees(&m, &roots);
    bool ok = schema_make(log, e) && write_trees(&m, &roots, to, e) &&
              db_open(&trees, to, SQLITE_OPEN_READONLY, e) &&
              db_exec(log, "PRAGMA foreign_keys=OFF; BEGIN", e) &&
              copy_tables(&m, &roots, &trees, log, e) &&
              db_exec(log, "COMMIT; PRAGMA foreign_keys=ON", e);
    db_close(&trees);
    unlink(to);
    ids_free(&roots);
    munmap((void *)m.p, m.mapped);
    return ok;
}
