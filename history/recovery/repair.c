/* repair.c - `db repair`: writes what is sound in a damaged log to a new one.
 *
 * The damaged file is only read: a copy of it and of its journals is examined, beside the new log.
 * If its schema cannot be read, or if records are lost, salvage.c finds the rows without the
 * schema, the indexes and damaged inner pages, and the new log that keeps more records is taken. A
 * record is sound if what can be read of it has the checksum that was stored with it. A run that
 * refers to lost rows cannot be compared; it is kept. The report names what is lost, and so does a
 * notice at the end of the repaired session. The new log has checksums of its own.
 */
#include "history/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* One record of a session's chain. */
struct repair_record {
    enum link_kind kind;
    int64_t id, link;
    int n;         /* of a turn row: the turn */
    bool is_user;
    bool no_parent; /* a run whose build, model or server is lost: it refers to placeholders */
    enum { SOUND, UNKNOWN, BAD, UNREADABLE } state;
};

/* A record that a scan of its table found, and its session. */
struct scanned {
    char session[SESSION_ID];
    struct repair_record x;
};

struct repair {
    struct db from, to;
    struct scanned *scan; /* (n_scan) by session */
    int n_scan;
    struct db *shared; /* where builds, models, servers and texts of tokens are; NULL: `from` */
    struct buf *report;
    struct err *e;
    int64_t next_event;      /* id of the next notice: above those of the damaged log */
    int lost, kept, guessed; /* records left out, kept, and kept without a comparison */
    int rowless;             /* sessions whose row is lost */
};

struct records {
    struct repair_record *v;
    int n;
};

struct sessions {
    char (*v)[SESSION_ID];
    int n;
};

static void note(struct repair *r, struct buf *of_session, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A line for the report and, if there is one, for the session's notice. */
static void note(struct repair *r, struct buf *of_session, const char *fmt, ...)
{
    char line[300];
    PRINT_ARGS(line, fmt);
    buf_printf(r->report, "%s\n", line);
    if (of_session)
        buf_printf(of_session, "%s%s", of_session->n ? "; " : "", line);
}

/* ---- the copy that is examined ---- */

static bool copy_file(const char *from, const char *to, bool must, struct err *e)
{
    char bytes[1 << 16];
    ssize_t n = 1;
    int in = file_open_beside(from, O_RDONLY, e);
    if (in < 0)
        return !must && errno == ENOENT;
    int out = file_create(to, e);
    bool ok = out >= 0;
    while (ok && (n = read(in, bytes, sizeof bytes)) != 0)
        if (n > 0 ? !write_fully(out, bytes, (size_t)n) : errno != EINTR)
            ok = err_set(e, ERR_DB, "cannot copy %s to %s: %s", from, to, strerror(errno));
    if (out >= 0)
        close(out);
    close(in);
    return ok;
}

static const char *const tails[] = {"", "-wal", "-journal"};

static void remove_copy(const char *copy)
{
    static const char *const all[] = {"", "-wal", "-shm", "-journal"};
    for (int i = 0; i < 4; i++) {
        FREED(free_at) char *name = xasprintf("%s%s", copy, all[i]);
        unlink(name);
    }
}

static bool copy_log(const char *path, const char *copy, struct err *e)
{
    bool ok = true;
    for (int i = 0; ok && i < 3; i++) {
        char *from = xasprintf("%s%s", path, tails[i]), *to = xasprintf("%s%s", copy, tails[i]);
        ok = copy_file(from, to, i == 0, e);
        FREE(from, to);
    }
    return ok;
}

/* Refuses a log that a process writes: a copy could hold half of a change. */
static bool is_at_rest(const char *path, struct err *e)
{
    FREED(free_at) char *name = xasprintf("%s.live", path);
    int fd = file_open_beside(name, O_RDONLY, NULL);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    bool used = fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return !used || err_set(e, ERR_DB, "%s is open in another aerie; close it first", path);
}

/* ---- copying rows ---- */

/* Takes the result code of a write to the new log. False and *e: it failed. */
static bool written(struct repair *r, int rc)
{
    return rc == SQLITE_OK || db_fail(&r->to, r->e, "cannot write");
}

static void note_broken(void *arg, const char *table)
{
    struct repair *r = arg;
    note(r, NULL, "the table %s cannot be read as a whole", table);
    r->lost++;
}

/* Builds, models, servers, and the texts of tokens. */
static bool copy_shared(struct repair *r)
{
    struct db *from = r->shared ? r->shared : &r->from;
    int64_t bad = 0, lost;
    bool whole, ok = written(r, parents_copy(from, &r->to, note_broken, r));
    sqlite3_stmt *st = ok ? db_prepare(&r->to, r->e, "SELECT id FROM tokenizer", "") : NULL;
    while (ok && st && sqlite3_step(st) == SQLITE_ROW)
        ok =
            written(r, rows_copy(db_prepare(from, NULL, "SELECT * FROM token WHERE tokenizer=?",
                                            "i", sqlite3_column_int64(st, 0)),
                                 &r->to, "token", NULL, &whole));
    sqlite3_finalize(st);
    ok = ok && st && written(r, chain_drop_texts(&r->to, &bad));
    db_int(from, &lost, 0,
           "SELECT count(DISTINCT tokenizer) FROM token WHERE tokenizer NOT IN"
           " (SELECT id FROM tokenizer)",
           "");
    bad += lost;
    if (ok && bad)
        note(r, NULL, "the texts of %lld tokenizer%s are not what was written, and left out",
             (long long)bad, bad == 1 ? "" : "s"),
            r->lost++;
    return ok;
}

/* ---- which records are sound ---- */

static void add_record(struct records *a, struct repair_record x)
{
    for (int i = 0; i < a->n; i++)
        if (a->v[i].kind == x.kind && a->v[i].id == x.id)
            return;
    *APPEND(a->v, a->n) = x;
}

/* The record in the row of a query for id, link, turn number and role. */
static struct repair_record record_of(sqlite3_stmt *st, enum link_kind kind)
{
    const char *role = (const char *)sqlite3_column_text(st, 3);
    bool fits = true;
    return (struct repair_record){.kind = kind, .id = sqlite3_column_int64(st, 0),
                                  .link = sqlite3_column_int64(st, 1),
                                  .n = col_int(st, 2, 0, &fits),
                                  .is_user = role && strcmp(role, "user") == 0};
}

static const struct {
    const char *table, *columns;
    enum link_kind kind;
} linked[] = {{"run", "0, ''", LINK_RUN},
              {"event", "0, ''", LINK_EVENT},
              {"turn", "n, role", LINK_TURN}};

static int by_session(const void *a, const void *b)
{
    return strcmp(((const struct scanned *)a)->session, ((const struct scanned *)b)->session);
}

/* Reads the records of all sessions through the tables, each up to the first damaged page. */
static void scan_records(struct repair *r)
{
    for (size_t i = 0; i < LEN(linked); i++) {
        char sql[160];
        snprintf(sql, sizeof sql, "SELECT id, link, %s, session_id FROM %s NOT INDEXED WHERE "
                                  "link NOT NULL", linked[i].columns, linked[i].table);
        sqlite3_stmt *st = db_prepare(&r->from, NULL, sql, "");
        while (st && sqlite3_step(st) == SQLITE_ROW) {
            struct scanned *s = APPEND(r->scan, r->n_scan);
            s->x = record_of(st, linked[i].kind);
            col_id(st, 4, s->session);
        }
        sqlite3_finalize(st);
    }
    if (r->n_scan)
        qsort(r->scan, (size_t)r->n_scan, sizeof *r->scan, by_session);
}

/* The place of the session's first record in the scan, or where it would be. */
static int scan_begin(const struct repair *r, const char *session)
{
    return FIRST_NOT(i, r->n_scan, strcmp(r->scan[i].session, session) < 0);
}

static int by_link(const void *a, const void *b)
{
    const struct repair_record *x = a, *y = b;
    return (x->link > y->link) - (x->link < y->link);
}

/* Whether the table's row has this session: an index whose key is damaged names rows of others. */
static bool is_of(struct repair *r, const char *table, int64_t id, const char *session)
{
    char sql[80], of[SESSION_ID] = "";
    snprintf(sql, sizeof sql, "SELECT session_id FROM %s NOT INDEXED WHERE id=?", table);
    sqlite3_stmt *st = db_prepare(&r->from, NULL, sql, "i", id);
    if (st && sqlite3_step(st) == SQLITE_ROW)
        col_id(st, 0, of);
    sqlite3_finalize(st);
    return strcmp(of, session) == 0;
}

/* Reads through the index and through the table: records on a damaged page of one are found in the
 * other. */
static void list_records(struct repair *r, const char *session, struct records *out)
{
    for (size_t i = 0; i < LEN(linked); i++) {
        char sql[160];
        snprintf(sql, sizeof sql,
                 "SELECT id, link, %s FROM %s WHERE session_id=? AND link NOT NULL",
                 linked[i].columns, linked[i].table);
        sqlite3_stmt *st = db_prepare(&r->from, NULL, sql, "s", session);
        while (st && sqlite3_step(st) == SQLITE_ROW) {
            struct repair_record x = record_of(st, linked[i].kind);
            if (is_of(r, linked[i].table, x.id, session))
                add_record(out, x);
        }
        sqlite3_finalize(st);
    }
    for (int i = scan_begin(r, session);
         i < r->n_scan && strcmp(r->scan[i].session, session) == 0; i++)
        add_record(out, r->scan[i].x);
    if (out->n)
        qsort(out->v, (size_t)out->n, sizeof *out->v, by_link);
}

/* Reads the stored checksum of a record. False: it cannot be read. */
static bool stored_sum(struct repair *r, const struct repair_record *x, uint8_t out[32])
{
    static const char *const sql[] = {[LINK_RUN] = "SELECT sum FROM run WHERE id=?",
                                      [LINK_EVENT] = "SELECT sum FROM event WHERE id=?",
                                      [LINK_TURN] = "SELECT sum FROM turn WHERE id=?"};
    sqlite3_stmt *st = db_prepare(&r->from, NULL, sql[x->kind], "i", x->id);
    bool some = st && sqlite3_step(st) == SQLITE_ROW && sqlite3_column_bytes(st, 0) == 32;
    if (some)
        memcpy(out, sqlite3_column_blob(st, 0), 32);
    sqlite3_finalize(st);
    return some;
}

/* Adds placeholders for the lost rows (build, models, server) that a run refers to. */
static bool add_placeholders(struct repair *r, const char *session, struct repair_record *x,
                             struct buf *lines)
{
    FREED(buf_free) struct buf lost = {0};
    bool ok = written(r, parents_of_run(&r->from, &r->to, x->id, &lost));
    x->no_parent = lost.n > 0;
    if (x->no_parent)
        note(r, lines, "session %s: of run %lld these facts are lost: %s", session,
             (long long)x->id, lost.p), r->lost++;
    return ok;
}

/* Copies a record's rows, without its place in the chain. *whole: all could be read. */
static int copy_parts(struct repair *r, const struct repair_record *x, bool *whole)
{
    static const struct put unlinked[] = {
        {PUT_NULL, "link", 0}, {PUT_NULL, "sum", 0}, {PUT_END, NULL, 0}};
    if (x->kind == LINK_TURN)
        return turn_copy(&r->from, &r->to, x->id, unlinked, NULL, whole);
    if (x->kind == LINK_RUN)
        return rows_copy(db_prepare(&r->from, NULL, "SELECT * FROM run WHERE id=?", "i", x->id),
                         &r->to, "run", unlinked, whole);
    return rows_copy(db_prepare(&r->from, NULL, "SELECT * FROM event WHERE id=?", "i", x->id),
                     &r->to, "event", unlinked, whole);
}

/* The checksum of what can be read of a record: of its rows in the new log, from which they are
 * removed again. */
static bool sum_record(struct repair *r, const struct repair_record *x, uint8_t out[32],
                       bool *whole)
{
    int rc = db_do(&r->to, "SAVEPOINT record", "") ?:
             copy_parts(r, x, whole) ?:
             chain_sum(&r->to, x->kind, x->id, x->link, out) ?:
             db_do(&r->to, "ROLLBACK TO record", "");
    return written(r, rc ?: db_do(&r->to, "RELEASE record", ""));
}

static bool judge_records(struct repair *r, const char *session, struct records *a,
                          struct buf *lines)
{
    uint8_t want[32], have[32];
    FOR_EACH(struct repair_record, x, a->v, a->n) {
        bool whole, some = stored_sum(r, x, have);
        if ((x->kind == LINK_RUN && !add_placeholders(r, session, x, lines)) ||
            !sum_record(r, x, want, &whole))
            return false;
        bool same = some && memcmp(want, have, sizeof want) == 0;
        /* a page that cannot be read need not have had rows of this record */
        x->state = same ? SOUND : !whole || !some ? UNREADABLE : x->no_parent ? UNKNOWN : BAD;
    }
    return true;
}

/* ---- one session ---- */

static const char *name_of(const struct repair_record *x, char out[64])
{
    if (x->kind == LINK_TURN)
        snprintf(out, 64, "the %s of turn %d", x->is_user ? "message" : "reply", x->n);
    else
        snprintf(out, 64, "%s %lld", x->kind == LINK_RUN ? "run" : "event", (long long)x->id);
    return out;
}

static bool is_kept(const struct repair_record *x)
{
    return x->state == SOUND || x->state == UNKNOWN;
}

/* Whether the message of a turn is kept. */
static bool has_message(const struct records *a, int turn)
{
    for (int i = 0; i < a->n; i++)
        if (a->v[i].kind == LINK_TURN && a->v[i].is_user && a->v[i].n == turn)
            return is_kept(&a->v[i]);
    return false;
}

/* A reply without its message cannot be shown, nor events without a run and a turn. */
static void drop_orphans(struct records *a)
{
    bool some = false;
    for (int i = 0; i < a->n; i++)
        some |= a->v[i].kind != LINK_EVENT && is_kept(&a->v[i]);
    for (int i = 0; i < a->n; i++)
        if (!some || (a->v[i].kind == LINK_TURN && !a->v[i].is_user && !has_message(a, a->v[i].n)))
            a->v[i].state = a->v[i].state == UNREADABLE ? UNREADABLE : BAD;
}

/* A prompt's ids are stored relative to the turn before; if that turn is lost, they are unknown. */
static bool empty_prompt(struct repair *r, int64_t turn)
{
    return written(r, db_do(&r->to, "UPDATE turn SET shared=0, tokens=x'' WHERE id=?", "i", turn));
}

/* If the run of a turn is lost, adds a placeholder for the run. */
static bool run_of_turn(struct repair *r, const char *session, int64_t turn, struct buf *lines)
{
    int64_t run, lost, ms;
    if (!written(r, db_int(&r->to, &run, 0, "SELECT run_id FROM turn WHERE id=?", "i", turn)) ||
        !written(r, db_int(&r->to, &ms, 0, "SELECT created_ms FROM turn WHERE id=?", "i", turn)) ||
        !written(r, db_int(&r->to, &lost, 0, "SELECT NOT EXISTS(SELECT 1 FROM run WHERE id=?)", "i",
                           run)))
        return false;
    if (!lost)
        return true;
    note(r, lines, "session %s: run %lld is lost: its build, model and settings are not known",
         session, (long long)run);
    r->lost++;
    return written(r, parents_lost_run(&r->to, session, run, ms)) &&
           written(r, chain_add(&r->to, session, LINK_RUN, run));
}

static bool copy_record(struct repair *r, const char *session, const struct repair_record *x,
                        bool gap, struct buf *lines)
{
    bool whole, ok = written(r, copy_parts(r, x, &whole));
    if (x->kind == LINK_TURN)
        ok = ok && run_of_turn(r, session, x->id, lines) &&
             (!gap || !x->is_user || empty_prompt(r, x->id));
    else if (x->kind == LINK_RUN)
        ok = ok &&
             written(r, db_do(&r->to, "UPDATE run SET ended=max(ended,1) WHERE id=?", "i", x->id));
    r->kept++;
    r->guessed += x->state == UNKNOWN;
    return ok && written(r, chain_add(&r->to, session, x->kind, x->id));
}

static bool copy_records(struct repair *r, const char *session, const struct records *a,
                         int64_t links, struct buf *lines)
{
    char name[64];
    bool gap = false;
    int64_t link = 0;
    FOR_EACH(const struct repair_record, x, a->v, a->n) {
        bool missing = x->link != link + 1;
        if (missing)
            note(r, lines, "session %s: what stood before %s is missing", session,
                 name_of(x, name)), r->lost++;
        link = x->link;
        if (x->state == UNKNOWN)
            note(r, lines, "session %s: %s is kept, but could not be compared", session,
                 name_of(x, name));
        if (!is_kept(x)) {
            note(r, lines, "session %s: %s %s, and left out", session, name_of(x, name),
                 x->state == BAD ? "is not what was written" : "cannot be read");
            r->lost++;
        }
        gap |= missing || (!is_kept(x) && x->kind == LINK_TURN);
        if (is_kept(x) && !copy_record(r, session, x, gap, lines))
            return false;
    }
    if (link < links)
        note(r, lines, "session %s: its last %lld records are missing", session,
             (long long)(links - link)), r->lost++;
    if (gap)
        buf_str(lines, "; the token ids of prompts after the first loss are not known");
    return true;
}

/* Copies the session's row, even if its checksum does not match its title and times. *some: it
 * could be read. */
static bool copy_session_row(struct repair *r, const char *session, struct buf *lines, bool *some)
{
    bool same = false, whole;
    int64_t n = 0;
    sqlite3_stmt *st = db_prepare(&r->from, NULL, "SELECT id, parent, fork_turn, title, "
                                                  "created_ms, updated_ms, number, pinned FROM "
                                                  "session WHERE id=?", "s", session);
    int rc = rows_copy(st, &r->to, "session", NULL, &whole) ?:
             db_int(&r->to, &n, 0, "SELECT count(*) FROM session WHERE id=?", "s", session);
    *some = n > 0;
    if (*some && (chain_seal_holds(&r->from, session, &same) || !same))
        note(r, lines, "session %s: its title, number, pin, times or the ends of its runs are "
                       "kept, but are not what was written", session);
    return written(r, rc);
}

/* Adds a row for a session whose row is lost. number_sessions() gives it a number once all other
 * numbers are known. */
static bool add_session_row(struct repair *r, const char *session, const struct records *a,
                            struct buf *lines)
{
    int64_t first = 0, last = 0;
    for (int i = 0; i < a->n; i++) {
        int64_t ms = 0;
        if (a->v[i].kind == LINK_TURN && is_kept(&a->v[i]))
            db_int(&r->from, &ms, 0, "SELECT created_ms FROM turn WHERE id=?", "i", a->v[i].id);
        first = ms && (!first || ms < first) ? ms : first;
        last = ms > last ? ms : last;
    }
    note(r, lines, "session %s: its row is lost: its title, number, pin and what it was forked "
                   "from are not known", session);
    r->lost++;
    r->rowless++;
    return written(r,
                   db_do(&r->to, "INSERT INTO session(id, fork_turn, created_ms, "
                                 "updated_ms) VALUES(?,0,?,?)", "sii",
                            session, first, last));
}

/* Numbers for sessions whose rows are lost. */
static bool number_sessions(struct repair *r, const struct sessions *all)
{
    bool ok = true;
    for (int i = 0; ok && i < all->n; i++)
        ok = written(r, db_do(&r->to, "UPDATE session SET number=(SELECT coalesce(max(number), 0) "
                                      "+ 1 FROM session) WHERE id=? "
                                      "AND number IS NULL", "s", all->v[i])) &&
             written(r, chain_seal(&r->to, all->v[i]));
    return ok;
}

/* A fork of a session that is lost becomes a session of its own turns. */
static bool cut_fork(struct repair *r, const char *session, struct buf *lines)
{
    int rc = db_do(&r->to, "UPDATE session SET parent=NULL, fork_turn=0 WHERE id=? AND parent NOT "
                           "NULL AND parent NOT IN (SELECT id FROM session)", "s", session);
    if (!rc && sqlite3_changes(r->to.h))
        note(r, lines, "session %s was forked from one that is lost: it begins with its own turns",
             session);
    return written(r, rc);
}

static bool finish_session(struct repair *r, const char *session, const struct buf *lines)
{
    struct db *d = &r->to;
    int rc = db_do(d, "UPDATE session SET last_run=coalesce((SELECT max(id) FROM run WHERE "
                      "session_id=?1), 0) WHERE id=?1", "s", session);
    if (!rc && lines->n) {
        FREED(free_at) char *text = xasprintf("repaired: %s", lines->p);
        rc = db_do(d, "INSERT INTO event(id, session_id, turn, step, kind, text, created_ms)"
                   " VALUES(?,?,0,0,'notice',?,?)", "issi", r->next_event, session, text,
                   clock_unix_ms());
        if (!rc)
            rc = chain_add(d, session, LINK_EVENT, r->next_event++);
    }
    return written(r, rc ?: chain_seal(d, session));
}

static bool repair_session(struct repair *r, const char *session)
{
    struct records a = {0};
    FREED(buf_free) struct buf lines = {0};
    bool some, kept = false;
    int64_t links = 0;
    list_records(r, session, &a);
    bool ok = judge_records(r, session, &a, &lines);
    drop_orphans(&a);
    for (int i = 0; i < a.n; i++)
        kept |= is_kept(&a.v[i]);
    db_int(&r->from, &links, 0, "SELECT links FROM session WHERE id=?", "s", session);
    ok = ok && copy_session_row(r, session, &lines, &some);
    if (ok && !some && kept)
        ok = add_session_row(r, session, &a, &lines);
    if (ok && !kept) {
        note(r, NULL, "session %s: %s, and left out", session,
             some ? "none of its records is sound" : "neither its row nor any of its records can "
                                                     "be read");
        r->lost++;
        ok = written(r, db_do(&r->to, "DELETE FROM session WHERE id=?", "s", session));
    } else if (ok) {
        ok = cut_fork(r, session, &lines) && copy_records(r, session, &a, links, &lines) &&
             finish_session(r, session, &lines);
    }
    free(a.v);
    return ok;
}

/* ---- all sessions ---- */

static void find_sessions(struct repair *r, const char *sql, struct sessions *out)
{
    sqlite3_stmt *st = db_prepare(&r->from, NULL, sql, "");
    while (st && sqlite3_step(st) == SQLITE_ROW) {
        char id[SESSION_ID];
        col_id(st, 0, id);
        if (*id)
            memcpy(APPEND(out->v, out->n), id, sizeof id);
    }
    sqlite3_finalize(st);
}

/* By id, a session's places in their order. */
static int by_id(const void *a, const void *b, void *all)
{
    const struct sessions *s = all;
    int x = *(const int *)a, y = *(const int *)b;
    return strcmp(s->v[x], s->v[y]) ?: x - y;
}

/* Keeps the first of equal sessions, where it stands. */
static void drop_repeated(struct sessions *all)
{
    FREED(free_at) int *order = xcalloc((size_t)all->n + 1, sizeof *order);
    FREED(free_at) bool *again = xcalloc((size_t)all->n + 1, sizeof *again);
    int n = 0;
    for (int i = 0; i < all->n; i++)
        order[i] = i;
    qsort_r(order, (size_t)all->n, sizeof *order, by_id, all);
    for (int i = 1; i < all->n; i++)
        again[order[i]] = strcmp(all->v[order[i - 1]], all->v[order[i]]) == 0;
    for (int i = 0; i < all->n; i++)
        if (!again[i])
            memmove(all->v[n++], all->v[i], sizeof *all->v);
    all->n = n;
}

static bool repair_sessions(struct repair *r)
{
    static const char *const ways[] = {
        "SELECT id FROM session ORDER BY created_ms, id", "SELECT id FROM session NOT INDEXED",
        "SELECT id FROM session ORDER BY id", "SELECT DISTINCT session_id FROM turn",
        ("SELECT name FROM (SELECT name, length(sum) AS there, max(n) FROM head WHERE "
         "what='session' GROUP BY name) WHERE there > 0"),
    };
    const int64_t unread = INT64_C(1) << 40;
    struct sessions all = {0};
    bool ok = true;
    if (db_int(&r->from, &r->next_event, 0, "SELECT max(id) FROM event", "") ||
        r->next_event > unread)
        r->next_event = unread;
    r->next_event++;
    for (size_t i = 0; i < LEN(ways); i++)
        find_sessions(r, ways[i], &all);
    drop_repeated(&all);
    scan_records(r);
    for (int i = 0; ok && i < all.n; i++)
        ok = repair_session(r, all.v[i]);
    DROP(r->scan);
    r->n_scan = 0;
    ok = ok && number_sessions(r, &all);
    free(all.v);
    return ok;
}

static bool finish(struct repair *r)
{
    static const char *const table[] = {"build", "model", "server", "tokenizer"};
    struct db *d = &r->to;
    int rc = db_do(d, "INSERT INTO turn_fts(rowid, text) SELECT id, text FROM turn", "") ?:
             db_do(d, "UPDATE roll SET last_number=coalesce((SELECT max(number) FROM session), 0)"
                   " WHERE id=1", "");
    for (int i = 0; !rc && i < 4; i++)
        rc = head_add_table(d, table[i]);
    if (!rc)
        rc = head_state(d);
    return written(r, rc);
}

/* Whether aerie's tables have the schema's text; *e names one that differs. Objects that another
 * program added to the schema are not read. */
static bool tables_are_ours(struct repair *r)
{
    struct schema_diff differ;
    char hex[65];
    if (schema_digest(&r->from, hex) && strcmp(hex, schema_known_digest(false)) == 0)
        return true; /* whatever version a damaged header has */
    return schema_report(&r->from, r->report, &differ, r->e) &&
           (!differ.table[0] ||
            err_set(r->e, ERR_DB, "%s cannot be repaired: %s", r->from.path, differ.table));
}

static bool open_copy(struct repair *r, const char *copy)
{
    return db_open(&r->from, copy, SQLITE_OPEN_READWRITE, r->e) && tables_are_ours(r);
}

/* Lets salvage() write the rows of the copy, whose main file has all of them, to the new database
 * `rows`, and opens that. */
static bool open_salvaged(struct repair *r, const char *copy, const char *rows, const char *why)
{
    note(r, NULL, "%s: tables were found by what they hold", why);
    return db_open(&r->from, rows, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, r->e) &&
           salvage(copy, &r->from, r->e);
}

static bool write_new(struct repair *r, const char *to)
{
    char *part;
    int fd = file_begin(to, &part, r->e);
    bool ok = fd >= 0 && db_open(&r->to, part, SQLITE_OPEN_READWRITE, r->e) &&
              db_sync_all(&r->to, r->e) && schema_open(&r->to, r->e) &&
              db_exec(&r->to, "PRAGMA foreign_keys=OFF; BEGIN IMMEDIATE", r->e) && copy_shared(r) &&
              repair_sessions(r) && finish(r) && db_exec(&r->to, "COMMIT", r->e);
    db_close(&r->to);
    return file_complete(fd, ok, part, to, r->e);
}

/* Writes the new log once more, to `other`, from the rows that salvage() finds in the copy. If that
 * keeps more records, or as many and more rows of sessions, it takes the first one's place. */
static void write_again(struct repair *r, const char *copy, const char *rows, const char *to,
                        const char *other, size_t first)
{
    FREED(buf_free) struct buf lines = {0};
    struct err e = {0};
    struct repair again = {.report = &lines, .e = &e, .shared = &r->from};
    db_exec(&r->from, "PRAGMA wal_checkpoint(TRUNCATE)", NULL);
    bool ok = open_salvaged(&again, copy, rows, "damaged pages hide records: rows were searched "
                                                "for without the schema") &&
              write_new(&again, other);
    bool better = again.kept > r->kept || (again.kept == r->kept && again.rowless < r->rowless);
    ok = ok && (!better || rename(other, to) == 0 ||
                err_set(&e, ERR_USAGE, "%s: %s", to, strerror(errno)));
    if (!ok)
        note(r, NULL, "searching damaged pages for more records failed: %s", e.msg);
    else if (better) {
        r->report->n = first;
        buf_add(r->report, lines.p, lines.n);
        r->kept = again.kept, r->lost = again.lost, r->guessed = again.guessed;
    }
    db_close(&again.from);
}

/* Gives the finished log its name, when nothing else is left beside it. */
static bool take_name(const char *from, const char *to, struct err *e)
{
    int fd = file_open_beside(from, O_RDONLY, e);
    return file_complete(fd, fd >= 0, xstrdup(from), to, e);
}

bool history_repair(const char *path, const char *to, struct buf *report, int *lost, struct err *e)
{
    struct repair r = {.report = report, .e = e};
    enum file_owner owner = file_owner(path, e);
    const struct err refusal = *e;
    bool foreign = owner == FILE_FOREIGN; /* or its header is damaged */
    if (owner == FILE_MISSING)
        return err_set(e, ERR_NEGATIVE, "%s: %s", path, strerror(ENOENT));
    if ((owner != FILE_OURS && !foreign) || !is_at_rest(path, e))
        return false;
    if (access(to, F_OK) == 0)
        return err_set(e, ERR_DB, "%s exists; expected the name of a new file", to);
    /* beside the copy: rows without a schema, the new log, a second one */
    static const char *const ends[] = {"", ".rows", ".new", ".new.part", ".again", ".again.part"};
    char *name[LEN(ends)];
    for (size_t i = 0; i < LEN(ends); i++) {
        name[i] = xasprintf("%s.examined%s", to, ends[i]);
        remove_copy(name[i]); /* of a process that was interrupted */
    }
    const char *copy = name[0], *rows = name[1], *made = name[2];
    const size_t first = report->n;
    bool ok = copy_log(path, copy, e), by_schema = ok && !foreign && open_copy(&r, copy);
    if (ok && !by_schema) {
        int why = r.from.failed; /* SQLITE_ERROR: a file format that SQLite does not know */
        ok = foreign || why == SQLITE_CORRUPT || why == SQLITE_NOTADB || why == SQLITE_ERROR;
        db_close(&r.from);
        ok = ok && open_salvaged(&r, copy, rows, "the pages that say which tables there are are "
                                                 "damaged");
    }
    ok = ok && write_new(&r, made);
    if (foreign && !r.kept) {
        ok = false;
        report->n = first;
        *e = refusal;
    }
    if (ok && by_schema && r.lost)
        write_again(&r, copy, rows, made, name[4], first);
    db_close(&r.from);
    for (size_t i = 0; i < LEN(ends); i++)
        if (!ok || name[i] != made)
            remove_copy(name[i]);
    ok = ok && take_name(made, to, e);
    for (size_t i = 0; i < LEN(ends); i++)
        free(name[i]);
    *lost = r.lost;
    if (ok) {
        buf_printf(report, "%d record%s kept, %d of them without a comparison; "
                           "%d lost or left out\n", r.kept,
                   plural(r.kept), r.guessed, r.lost);
        ok = history_check(to, report, e);
    }
    return ok;
}
