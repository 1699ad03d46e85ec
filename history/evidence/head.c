/* head.c - the chain over the whole database.
 *
 * Every row of `head` records the checksum of one object at one moment, in the order in which they
 * were written, and chain = SHA-256(chain of the row before, number, object, checksum, time,
 * sealed). So the chain of the last row, the head, stands for the whole log: whoever has noted it
 * can tell later whether the log's past is still the same. An object that is missing, was added or
 * is not at its newest checksum is named.
 *
 * With a key (seal.c) each row is sealed when it is written: only who has the key can write a row
 * that passes. Without one, a program that changes the file can compute the whole chain again.
 * Neither shows that the file was replaced by an older copy of itself; a head that was noted
 * elsewhere does (`db check --head`).
 */
#include "history/internal.h"

enum { SUM = 32 };

static const char damage[] = "damage"; /* `what` of a head that records a foreign change */

static void head_hash(int64_t n, const uint8_t *before, int n_before, const char *what,
                      const char *name,
                      const void *sum, size_t n_sum, int64_t ms, bool sealed, uint8_t out[SUM])
{
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, before, (size_t)n_before);
    hash_int(&s, n);
    hash_int(&s, (int64_t)strlen(what));
    sha256_add(&s, what, strlen(what));
    hash_int(&s, (int64_t)strlen(name));
    sha256_add(&s, name, strlen(name));
    hash_int(&s, (int64_t)n_sum);
    sha256_add(&s, sum, n_sum);
    hash_int(&s, ms);
    hash_int(&s, sealed);
    sha256_end(&s, out);
}

/* ---- writing ---- */

/* The chain so far. *n: the number of the last head; -1: there is no row of `roll` (a pack has
 * none), or no number is left. */
static int read_roll(struct db *d, int64_t *n, uint8_t chain[SUM], int *n_chain)
{
    int64_t last;
    sqlite3_stmt *st = db_cached(d, "SELECT heads, head FROM roll WHERE id=1", "");
    int rc;
    *n = -1;
    *n_chain = 0;
    if (!db_row(d, st, &rc))
        return rc;
    *n = sqlite3_column_int64(st, 0);
    *n_chain = min_int(sqlite3_column_bytes(st, 1), SUM);
    if (*n_chain)
        memcpy(chain, sqlite3_column_blob(st, 1), (size_t)*n_chain);
    sqlite3_reset(st);
    rc = db_int(d, &last, 0, "SELECT max(n) FROM head", "");
    /* `roll` is damaged, which head_verify() reports; writing goes on, so that no turn is lost */
    if (*n < last)
        *n = last;
    if (*n < 0 || *n > INT64_MAX / 2)
        *n = -1;
    return rc;
}

int head_add(struct db *d, const char *what, const char *name, const void *sum, size_t n_sum)
{
    uint8_t before[SUM], chain[SUM], mac[SUM];
    int64_t n = 0, ms = clock_unix_ms();
    int n_before = 0, rc = read_roll(d, &n, before, &n_before);
    if (rc || n < 0)
        return rc;
    n++;
    bool sealed = seal_has_key();
    head_hash(n, before, n_before, what, name, sum, n_sum, ms, sealed, chain);
    seal_of_head(n, chain, mac);
    return db_do(d, "INSERT INTO head(n, what, name, sum, made_ms, chain, seal)"
                 " VALUES(?,?,?,?,?,?,nullif(?,x''))", "issbibb", n, what, name, sum, n_sum, ms,
                 chain, sizeof chain, mac, sealed ? sizeof mac : (size_t)0) ?:
           db_do(d, "UPDATE roll SET heads=?, head=? WHERE id=1", "ib", n, chain,
                 sizeof chain);
}

/* The newest head of an object: *n 0: there is none. */
static int newest(struct db *d, const char *what, const char *name, int64_t *n, uint8_t sum[SUM],
                  bool *good)
{
    sqlite3_stmt *st = db_cached(d, "SELECT n, sum, chain, seal FROM head WHERE what=? AND name=?"
                                 " ORDER BY n DESC LIMIT 1", "ss", what, name);
    int rc;
    bool some = db_row(d, st, &rc);
    *n = some ? sqlite3_column_int64(st, 0) : 0;
    *good = some && sqlite3_column_bytes(st, 1) == SUM && sqlite3_column_bytes(st, 2) == SUM &&
            seal_of_head_matches(*n, sqlite3_column_blob(st, 2), sqlite3_column_blob(st, 3),
                                 sqlite3_column_bytes(st, 3));
    if (*good)
        memcpy(sum, sqlite3_column_blob(st, 1), SUM);
    sqlite3_reset(st);
    return rc;
}

int head_touch(struct db *d, const char *what, const char *name, const uint8_t *sum)
{
    uint8_t have[SUM];
    char object[96];
    int64_t n;
    bool good;
    int rc = newest(d, what, name, &n, have, &good);
    if (rc || (good && sum && memcmp(have, sum, SUM) == 0))
        return rc;
    snprintf(object, sizeof object, "%s %.60s", what, name);
    return head_add(d, damage, object, sum ? sum : (const uint8_t *)"", sum ? SUM : 0);
}

/* ---- objects other than sessions: rows of four tables ---- */

/* The statement that reads their rows with ids [from, to] in this order, each row's id first. */
static sqlite3_stmt *read_rows(struct db *d, const char *table, int64_t from, int64_t to)
{
#define ROWS(columns, table)                                                                       \
    "SELECT id, " columns " FROM " table " WHERE id BETWEEN ? AND ? ORDER BY id"
    if (strcmp(table, "build") == 0)
        return db_cached(d, ROWS("version, device, flags", "build"), "ii", from, to);
    if (strcmp(table, "model") == 0)
        return db_cached(d, ROWS("role, dir, weights_sha, tokenizer_sha", "model"), "ii", from, to);
    if (strcmp(table, "server") == 0)
        return db_cached(d, ROWS("kind, version, url, model, facts", "server"), "ii", from, to);
    CHECK(strcmp(table, "tokenizer") == 0);
    return db_cached(d, ROWS("sha, texts, sum", "tokenizer"), "ii", from, to);
}

static const char *const tables[] = {"build", "model", "server", "tokenizer"};
enum { N_TABLES = LEN(tables) };

static void row_sum(sqlite3_stmt *st, uint8_t out[SUM])
{
    struct sha256 s;
    sha256_init(&s);
    for (int i = 0; i < sqlite3_column_count(st); i++)
        hash_column(&s, st, i);
    sha256_end(&s, out);
}

static int sum_of_row(struct db *d, const char *table, int64_t id, uint8_t out[SUM], bool *some)
{
    sqlite3_stmt *st = read_rows(d, table, id, id);
    int rc;
    *some = db_row(d, st, &rc);
    if (*some)
        row_sum(st, out);
    sqlite3_reset(st);
    return rc;
}

static int on_row(struct db *d, const char *table, int64_t id,
                  int (*fn)(struct db *d, const char *what, const char *name, const uint8_t *sum))
{
    uint8_t sum[SUM];
    char name[24];
    bool some = false;
    int rc = sum_of_row(d, table, id, sum, &some);
    snprintf(name, sizeof name, "%lld", (long long)id);
    return rc || !some ? rc : fn(d, table, name, sum);
}

static int add_sum(struct db *d, const char *what, const char *name, const uint8_t *sum)
{
    return head_add(d, what, name, sum, SUM);
}

int head_add_row(struct db *d, const char *table, int64_t id)
{
    return on_row(d, table, id, add_sum);
}

int head_add_inserted(struct db *d, const char *table)
{
    return sqlite3_changes(d->h) ? head_add_row(d, table, sqlite3_last_insert_rowid(d->h))
                                 : SQLITE_OK;
}

int head_touch_row(struct db *d, const char *table, int64_t id)
{
    return on_row(d, table, id, head_touch);
}

/* ---- state: what changes without a head ---- */

static int state_sum(struct db *d, uint8_t out[SUM])
{
    struct sha256 s;
    sha256_init(&s);
    int rc = hash_rows(&s, d,
                       db_cached(d, "SELECT session_id, writer, pid, host, since_ms FROM held"
                                        " ORDER BY session_id", "")) ?:
             hash_rows(&s, d, db_cached(d, "SELECT id FROM taken ORDER BY id", "")) ?:
             hash_rows(&s, d, db_cached(d, "SELECT name, seq FROM sqlite_sequence ORDER BY name",
                                        "")) ?:
             hash_rows(&s, d, db_cached(d, "SELECT last_number FROM roll WHERE id=1", ""));
    sha256_end(&s, out);
    return rc;
}

int head_state(struct db *d)
{
    uint8_t sum[SUM];
    return state_sum(d, sum) ?:
           db_do(d, "UPDATE roll SET state=? WHERE id=1", "b", sum, sizeof sum);
}

int head_add_table(struct db *d, const char *table)
{
    int64_t id = 0;
    for (;;) { /* head_add() inserts rows: no cursor stays open between two of them */
        sqlite3_stmt *st = read_rows(d, table, id + 1, INT64_MAX);
        int rc;
        bool some = db_row(d, st, &rc);
        if (some)
            id = sqlite3_column_int64(st, 0);
        sqlite3_reset(st);
        rc = some ? head_add_row(d, table, id) : rc;
        if (rc || !some || id == INT64_MAX)
            return rc;
    }
}

/* ---- verifying ---- */

struct log_heads {
    struct db *d;
    struct buf *report;
    int *bad;
    int64_t n;              /* of the last head verified */
    uint8_t chain[SUM];
    int64_t first_sealed, broken, open_from; /* open_from: the first head without seal after a
                                                sealed one */
};

__attribute__((format(printf, 2, 3)))
static void complain(struct log_heads *v, const char *fmt, ...)
{
    char line[256];
    ++*v->bad;
    PRINT_ARGS(line, fmt);
    if (v->report)
        buf_printf(v->report, "%s\n", line);
}

static const char *text_at(sqlite3_stmt *st, int i)
{
    const char *s = (const char *)sqlite3_column_text(st, i);
    return s ? s : "";
}

/* If there is a key, verifies the seal of the head that the statement is at. */
static void verify_head_seal(struct log_heads *v, sqlite3_stmt *st, int64_t n)
{
    bool some = sqlite3_column_type(st, 6) != SQLITE_NULL;
    if (!seal_has_key())
        return;
    if (!some) {
        if (v->first_sealed && !v->open_from)
            v->open_from = n;
        return;
    }
    if (v->open_from)
        complain(v, "heads %lld to %lld were written without the key", (long long)v->open_from,
                 (long long)n - 1);
    v->open_from = 0;
    v->first_sealed = v->first_sealed ? v->first_sealed : n;
    if (!seal_of_head_matches(n, v->chain, sqlite3_column_blob(st, 6),
                              sqlite3_column_bytes(st, 6)) &&
        ++v->broken <= 3)
        complain(v, "the seal of head %lld is not of this key", (long long)n);
}

/* Verifies the head that the statement is at: n, what, name, sum, made_ms, chain, seal. After a
 * mismatch it continues from the stored chain value, so that one change is reported once. */
static void verify_head(struct log_heads *v, sqlite3_stmt *st)
{
    uint8_t want[SUM];
    int64_t n = sqlite3_column_int64(st, 0);
    const void *sum = sqlite3_column_blob(st, 3), *chain = sqlite3_column_blob(st, 5);
    bool whole = chain && sqlite3_column_bytes(st, 5) == SUM,
        sealed = sqlite3_column_type(st, 6) != SQLITE_NULL;
    if ((uint64_t)n != (uint64_t)v->n + 1)
        complain(v, "heads %lld to %lld are missing", (long long)v->n + 1, (long long)n - 1);
    head_hash(n, v->chain, v->n ? SUM : 0, text_at(st, 1), text_at(st, 2), sum ? sum : "",
              (size_t)sqlite3_column_bytes(st, 3), sqlite3_column_int64(st, 4), sealed, want);
    if (!whole || (sealed && sqlite3_column_bytes(st, 6) != SUM) || memcmp(chain, want, SUM) != 0)
        complain(v, "head %lld does not match what was written", (long long)n);
    else if (strcmp(text_at(st, 1), damage) == 0)
        complain(v, "%.80s had been changed by another program before aerie wrote head %lld",
                 text_at(st, 2), (long long)n);
    if (whole)
        memcpy(v->chain, chain, SUM);
    verify_head_seal(v, st, n);
    v->n = n;
}

static int verify_chain(struct log_heads *v)
{
    sqlite3_stmt *st = db_cached(v->d, "SELECT n, what, name, sum, made_ms, chain, seal FROM head"
                                 " ORDER BY n", "");
    int rc;
    while (db_row(v->d, st, &rc))
        verify_head(v, st);
    if (v->open_from)
        complain(v, "heads %lld to %lld were written without the key", (long long)v->open_from,
                 (long long)v->n);
    if (v->broken > 3)
        complain(v, "so are the seals of %lld more heads", (long long)v->broken - 3);
    return rc;
}

/* Compares the end of the chain with `roll`, which finds heads missing at the end; and the state.
 */
static int verify_end(struct log_heads *v)
{
    uint8_t state[SUM];
    int rc = state_sum(v->d, state);
    if (rc)
        return rc;
    sqlite3_stmt *st = db_cached(v->d, "SELECT heads, head, state FROM roll WHERE id=1", "");
    bool some = db_row(v->d, st, &rc);
    if (rc)
        return rc;
    if (!some || sqlite3_column_int64(st, 0) != v->n ||
        sqlite3_column_bytes(st, 1) != (v->n ? SUM : 0) ||
        (v->n && memcmp(sqlite3_column_blob(st, 1), v->chain, SUM) != 0))
        complain(v, "head %lld is the last, and aerie wrote %lld", (long long)v->n,
                 some ? (long long)sqlite3_column_int64(st, 0) : -1LL);
    if (!some || sqlite3_column_bytes(st, 2) != SUM ||
        memcmp(sqlite3_column_blob(st, 2), state, SUM) != 0)
        complain(v, "the session locks, the notes of side files or the counters do not match what "
                    "was written");
    sqlite3_reset(st);
    return SQLITE_OK;
}

/* Compares an object's checksum with its newest head. */
static int verify_object(struct log_heads *v, const char *what, const char *name, const void *sum,
                         int n_sum)
{
    uint8_t have[SUM];
    int64_t n;
    bool good;
    int rc = newest(v->d, what, name, &n, have, &good);
    if (rc)
        return rc;
    if (!n)
        complain(v, "%s %.40s has no head: aerie did not write it", what, name);
    else if (!good || n_sum != SUM || memcmp(sum, have, SUM) != 0)
        complain(v, "%s %.40s is not as of its newest head, %lld", what, name, (long long)n);
    return SQLITE_OK;
}

static int verify_rows(struct log_heads *v, const char *table)
{
    sqlite3_stmt *st = read_rows(v->d, table, INT64_MIN, INT64_MAX);
    int rc = SQLITE_OK;
    while (!rc && db_row(v->d, st, &rc)) {
        uint8_t sum[SUM];
        char name[24];
        row_sum(st, sum);
        snprintf(name, sizeof name, "%lld", (long long)sqlite3_column_int64(st, 0));
        rc = verify_object(v, table, name, sum, SUM);
    }
    sqlite3_reset(st);
    return rc;
}

static int verify_sessions(struct log_heads *v)
{
    sqlite3_stmt *st = db_cached(v->d, "SELECT id, seal FROM session ORDER BY id", "");
    int rc = SQLITE_OK;
    while (!rc && db_row(v->d, st, &rc))
        rc = verify_object(v, "session", text_at(st, 0), sqlite3_column_blob(st, 1),
                           sqlite3_column_bytes(st, 1));
    sqlite3_reset(st);
    return rc;
}

/* Finds objects that have a head and are missing. */
static int verify_missing(struct log_heads *v)
{
    sqlite3_stmt *st = db_cached(v->d,
        "SELECT h.what, h.name, h.n FROM head h WHERE length(h.sum) > 0 AND"
        " NOT EXISTS(SELECT 1 FROM head o WHERE o.what = h.what AND o.name = h.name AND o.n > h.n) "
        "AND CASE h.what WHEN 'session' THEN NOT EXISTS(SELECT 1 FROM session WHERE id = h.name)"
        " WHEN 'build' THEN NOT EXISTS(SELECT 1 FROM build WHERE id = CAST(h.name AS INTEGER))"
        " WHEN 'model' THEN NOT EXISTS(SELECT 1 FROM model WHERE id = CAST(h.name AS INTEGER))"
        " WHEN 'server' THEN NOT EXISTS(SELECT 1 FROM server WHERE id = CAST(h.name AS INTEGER))"
        " WHEN 'tokenizer' THEN NOT EXISTS(SELECT 1 FROM tokenizer WHERE id = CAST(h.name AS "
        "INTEGER)) ELSE 0 END ORDER BY h.n", "");
    int rc;
    while (db_row(v->d, st, &rc))
        complain(v, "%.20s %.40s is missing: another program deleted it after head %lld",
                 text_at(st, 0), text_at(st, 1), (long long)sqlite3_column_int64(st, 2));
    return rc;
}

bool head_verify(struct db *d, int *bad, struct buf *report, struct err *e)
{
    struct log_heads v = {.d = d, .report = report, .bad = bad};
    int rc = verify_chain(&v) ?: verify_end(&v);
    for (int i = 0; !rc && i < N_TABLES; i++)
        rc = verify_rows(&v, tables[i]);
    rc = rc ?:
         verify_sessions(&v) ?:
         verify_missing(&v);
    return rc == SQLITE_OK || db_fail(d, e, "cannot verify");
}

/* Reads "12:5f..." with at least 16 digits. */
static bool parse_head(const char *text, int64_t *n, const char **hex, struct err *e)
{
    char *end;
    *n = strtoll(text, &end, 10);
    *hex = *end ? end + 1 : end;
    size_t digits = strspn(*hex, "0123456789abcdef");
    return (*n > 0 && *end == ':' && digits >= 16 && digits <= (size_t)2 * SUM &&
            !(*hex)[digits]) ||
           err_set(e, ERR_USAGE, "\"%.80s\" is no head; expected one as db check names it, such as"
                   " 12:0123456789abcdef", text);
}

static bool chain_at(struct db *d, int64_t n, char hex[2 * SUM + 1], struct err *e)
{
    FREED(buf_free) struct buf b = {0};
    sqlite3_stmt *st = db_prepare(d, e, "SELECT chain FROM head WHERE n=?", "i", n);
    int rc = st ? sqlite3_step(st) : SQLITE_ERROR;
    if (rc == SQLITE_ROW)
        buf_hex(&b, sqlite3_column_blob(st, 0), (size_t)min_int(sqlite3_column_bytes(st, 0), SUM));
    bool ok = st && (rc == SQLITE_ROW || rc == SQLITE_DONE || db_fail(d, e, "cannot read"));
    sqlite3_finalize(st);
    snprintf(hex, 2 * SUM + 1, "%s", buf_text(&b));
    return ok;
}

bool head_report(struct db *d, const char *head, struct buf *report, bool *clean, struct err *e)
{
    int64_t last, n = 0, sealed;
    const char *noted = NULL;
    char hex[2 * SUM + 1];
    if (head && !parse_head(head, &n, &noted, e))
        return false;
    if (db_int(d, &last, 0, "SELECT max(n) FROM head", "") ||
        db_int(d, &sealed, 0, "SELECT count(*) FROM head WHERE seal NOT NULL", ""))
        return db_fail(d, e, "cannot read");
    if (head && !chain_at(d, n, hex, e))
        return false;
    if (head && strncmp(hex, noted, strlen(noted)) != 0) {
        buf_printf(report, "the log's past is not the one of head %.80s\n", head);
        *clean = false;
    } else if (head) {
        buf_printf(report, "the log's past is still the one of head %.80s\n", head);
    }
    if (sealed && seal_has_key())
        buf_printf(report, "%lld of %lld heads are sealed\n", (long long)sealed, (long long)last);
    else if (sealed)
        buf_printf(report, "%lld of %lld heads are sealed; the seals were not checked: "
                           "--seal KEYFILE checks them\n",
                   (long long)sealed, (long long)last);
    if (!last)
        return true;
    if (!chain_at(d, last, hex, e))
        return false;
    buf_printf(report, "head %lld:%s\n", (long long)last, hex);
    return true;
}
