/* pack_file.c - a pack as a file: its seal, and opening one for reading.
 *
 * A pack is a database with the tables of the log and the table `pack`, followed by one line that
 * seals all bytes before it:
 *   aerie-pack 1 sha256 DIGEST
 * SQLite ignores the line: it lies behind the last page that the database's header counts. A reader
 * reads the file into memory, checks the seal and opens a database on these very bytes. So no file
 * is created beside a pack, none is locked, and a change of any byte is an error.
 */
#include "history/internal.h"

#include <errno.h>
#include <unistd.h>

#define SEAL_HEAD "aerie-pack 1 sha256 "
enum {
    SEAL_BYTES = sizeof SEAL_HEAD - 1 + 64 + 1,
    MAX_BYTES = 1 << 30,
    READ_LIMIT = 5000000, /* as for logs: some ten seconds of a single query */
};

static void seal_line(const void *bytes, size_t n, char out[SEAL_BYTES + 1])
{
    char hex[65];
    sha256_hex(bytes, n, hex);
    snprintf(out, SEAL_BYTES + 1, SEAL_HEAD "%s\n", hex);
}

/* ---- writing ---- */

bool pack_write(const char *path, const void *bytes, size_t n, struct err *e)
{
    char seal[SEAL_BYTES + 1];
    seal_line(bytes, n, seal);
    int fd = file_create(path, e);
    if (fd < 0)
        return false;
    bool ok = (write_fully(fd, bytes, n) && write_fully(fd, seal, SEAL_BYTES) && fsync(fd) == 0) ||
              err_set(e, ERR_USAGE, "cannot write %s: %s", path, strerror(errno));
    close(fd);
    if (!ok)
        unlink(path);
    return ok;
}

bool pack_save(const char *path, struct db *d, struct err *e)
{
    sqlite3_int64 n = 0;
    unsigned char *bytes = sqlite3_serialize(d->h, "main", &n, 0);
    bool ok = bytes ? pack_write(path, bytes, (size_t)n, e)
                    : err_set(e, ERR_DB, "cannot pack: out of memory");
    sqlite3_free(bytes);
    return ok;
}

/* ---- reading ---- */

bool pack_seal_holds(const char *path, const struct buf *file, struct err *e)
{
    char want[SEAL_BYTES + 1];
    const size_t head = sizeof SEAL_HEAD - 1;
    size_t n = file->n > SEAL_BYTES ? file->n - SEAL_BYTES : 0;
    if (!n || memcmp(file->p + n, SEAL_HEAD, head) != 0)
        return err_set(e, ERR_DB, "%s is a damaged pack: its last line is no seal; expected the "
                       "whole file as aerie pack wrote it", path);
    seal_line(file->p, n, want);
    return memcmp(file->p + n, want, SEAL_BYTES) == 0 ||
           err_set(e, ERR_DB, "%s is not as aerie pack wrote it: its bytes do not match its seal "
                   "(%.12s..., now %.12s...)", path, file->p + n + head, want + head);
}

bool pack_connect(struct db *d, const char *path, const struct buf *file, struct err *e)
{
    if (!db_open(d, ":memory:", SQLITE_OPEN_READONLY, e))
        return false;
    set_text(&d->path, path);
    sqlite3_int64 n = (sqlite3_int64)(file->n - SEAL_BYTES);
    if (sqlite3_deserialize(d->h, "main", (unsigned char *)file->p, n, n,
                            SQLITE_DESERIALIZE_READONLY) == SQLITE_OK)
        return true;
    db_fail(d, e, "cannot open");
    db_close(d);
    return false;
}

static int text_int(const char *s)
{
    long v = strtol(s, NULL, 10);
    return v < 0 || v > LOG_MAX ? 0 : (int)v;
}

static const char *const level_name[] = {"text", "ids", "shape"};

const char *pack_level_name(enum pack_level l)
{
    return level_name[l];
}

static void take_fact(struct pack_about *a, const char *name, const char *value)
{
    if (!strcmp(name, "session"))
        snprintf(a->session, sizeof a->session, "%.26s", value);
    else if (!strcmp(name, "made_by"))
        snprintf(a->made_by, sizeof a->made_by, "%.95s", value);
    else if (!strcmp(name, "turns"))
        a->turns = text_int(value);
    else if (!strcmp(name, "steps"))
        a->steps = text_int(value);
    else if (!strcmp(name, "trees"))
        snprintf(a->trees, sizeof a->trees, "%.47s", value);
    for (int i = 0; !strcmp(name, "keeps") && i < N_PACK_LEVELS; i++)
        if (!strcmp(value, level_name[i]))
            a->level = (enum pack_level)i;
}

static bool read_facts(struct hdb *h, struct err *e)
{
    sqlite3_stmt *st = db_prepare(&h->db, e, "SELECT name, value FROM pack", "");
    struct db_rows rows = db_rows(&h->db, st, "cannot read", e);
    while (db_next(&rows)) {
        char *name = col_str(st, 0), *value = col_str(st, 1);
        take_fact(&h->pack->about, name, value);
        FREE(name, value);
    }
    if (!rows.ok)
        return false;
    return h->pack->about.session[0] ||
           err_set(e, ERR_DB, "%s does not say which session it holds; expected a pack", h->path);
}

static bool connect_checked(struct hdb *h, struct err *e)
{
    bool ok = pack_connect(&h->db, h->path, &h->pack->file, e) && schema_check_pack(&h->db, e);
    h->db.limit = READ_LIMIT;
    return ok && read_facts(h, e);
}

bool pack_open(struct hdb *h, struct err *e)
{
    h->pack = xcalloc(1, sizeof *h->pack);
    h->pack->about.level = PACK_SHAPE; /* unless it says another */
    struct buf *file = &h->pack->file;
    if (buf_read_file(file, h->path, MAX_BYTES, e) && pack_seal_holds(h->path, file, e)) {
        const char *hex = file->p + file->n - 65;
        snprintf(h->pack->about.seal, sizeof h->pack->about.seal, "%.64s", hex);
        h->pack->about.bytes = file->n;
        if (connect_checked(h, e))
            return true;
    }
    if (e)
        e->kind = ERR_DB;
    pack_close(h);
    return false;
}

void pack_close(struct hdb *h)
{
    if (!h->pack)
        return;
    db_close(&h->db);
    db_close(&h->sql);
    buf_free(&h->pack->file);
    DROP(h->pack);
}

const struct pack_about *hdb_packed(const struct hdb *h)
{
    return h->pack ? &h->pack->about : NULL;
}
