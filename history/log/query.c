/* query.c - reads and searches sessions, turns, steps and operations.
 *
 * A reader has its own read-only connection, so it sees every committed row and never waits for the
 * writer. Every call prepares its own statement, because a callback may run other queries.
 */
#include "engine/fault.h"
#include "history/columns.h"

#include "kernels/ascii.h"

#include <errno.h>
#include <limits.h>

/* Some ten seconds; blocked callbacks do not count. Only a damaged file can make a query take
 * longer. */
enum { READ_LIMIT = 5000000 };

/* ---- opening ---- */

/* Whether a log could not be opened because this process may not write it. Only then it is opened
 * as immutable, which leaves out the turns in the write-ahead log; after another failure, such as
 * no free descriptor, it is not. */
static bool is_denied(int failed)
{
    int why = vfs_cause(failed);
    return (failed == SQLITE_READONLY || failed == SQLITE_CANTOPEN) &&
           (!why || why == EACCES || why == EPERM || why == EROFS || why == ENOENT);
}

/* why: errno, or 0. */
static bool open_immutable(struct hdb *h, int why, struct err *e)
{
    vfs_forget(); /* the failures of the connection before */
    bool ok = db_open_immutable(&h->db, h->path, e);
    if (ok)
        h->db.limit = READ_LIMIT;
    if (ok && !schema_check(&h->db, e)) {
        db_close(&h->db);
        return false;
    }
    if (ok)
        snprintf(h->warning, sizeof h->warning, "the session log cannot be written%s%s: "
                                                "view only%s", why ? ": " : "",
                 why ? strerror(why) : "", db_wal_has_rows(h->path)
                 ? "; the newest turns may be missing" : "");
    return ok;
}

struct hdb *hdb_open(const char *path, struct err *e)
{
    vfs_forget();
    enum file_owner owner = file_owner(path, e);
    if (owner == FILE_MISSING)
        err_set(e, ERR_NEGATIVE, "there is no session log at %s yet", path);
    if (owner != FILE_OURS && owner != FILE_PACK)
        return NULL;
    struct hdb *h = xcalloc(1, sizeof *h);
    h->path = xstrdup(path);
    bool ok = owner == FILE_PACK ? pack_open(h, e) : db_open(&h->db, path, SQLITE_OPEN_READONLY, e);
    if (ok && h->pack)
        return h;
    if (ok)
        h->db.limit = READ_LIMIT;
    if (ok && !schema_check(&h->db, e)) {
        int why = vfs_cause(h->db.failed);
        ok = is_denied(h->db.failed);
        db_close(&h->db);
        ok = ok && open_immutable(h, why, e);
    }
    if (ok)
        return h;
    FREE(h->path, h);
    return NULL;
}

bool hdb_whole(const struct hdb *h, struct err *e)
{
    return db_whole(h->path, e);
}

void hdb_close(struct hdb *h)
{
    if (!h)
        return;
    pack_close(h);
    db_close(&h->db);
    db_close(&h->sql);
    FREE(h->path, h);
}

const char *hdb_warning(const struct hdb *h)
{
    return h->warning;
}

/* ---- full-text queries ---- */

/* Quotes every word, so that FTS5 reads none of them as an operator. */
static char *quote_words(const char *query)
{
    struct buf b = {0};
    for (const char *p = query; *p;) {
        while (ascii_space(*p))
            p++;
        if (!*p)
            break;
        buf_char(&b, '"');
        for (; *p && !ascii_space(*p); p++) {
            if (*p == '"')
                buf_char(&b, '"');
            buf_char(&b, *p);
        }
        buf_str(&b, "\" ");
    }
    buf_add(&b, "", 0);
    return b.p;
}

/* The words of a query that is being typed: the last one may go on. The caller frees. */
static char *typed_words(const char *words)
{
    char *q = quote_words(words);
    size_t n = strlen(q), end = strlen(words);
    if (n && !ascii_space(words[end - 1]))
        q[n - 1] = '*'; /* the blank after the last quote */
    return q;
}

static bool is_blank_text(const char *s)
{
    return s[strspn(s, " \t\r\n")] == '\0';
}

/* The query, or its words quoted if FTS5 cannot parse it. The caller frees. */
static char *usable_query(struct db *d, const char *query)
{
    sqlite3_stmt *st = db_prepare(d, NULL, "SELECT 1 FROM turn_fts WHERE turn_fts MATCH ? LIMIT 1",
                                  "s", query);
    int rc = st ? sqlite3_step(st) : SQLITE_ERROR;
    sqlite3_finalize(st);
    return (rc & 0xff) == SQLITE_ERROR ? quote_words(query) : xstrdup(query);
}

/* ---- sessions ---- */

#define SESSION_COLUMNS                                                                            \
    "SELECT s.id, s.parent, s.fork_turn, s.created_ms, s.updated_ms, s.title, m.dir, r.ended,"     \
    " (SELECT count(*) FROM turn t WHERE t.session_id = s.id AND t.role = 'user'), s.number"       \
    " FROM session s LEFT JOIN run r ON r.id = s.last_run LEFT JOIN model m ON m.id = r.target_id "

/* Sessions without a turn are not shown, except forks. */
#define SESSION_IS_SHOWN                                                                           \
    " (s.parent NOT NULL OR EXISTS(SELECT 1 FROM turn t WHERE t.session_id = s.id)) "

static bool row_to_session(sqlite3_stmt *st, struct session_row *r)
{
    bool fits = true;
    *r = (struct session_row){.fork_turn = col_int(st, 2, 0, &fits),
                              .created_ms = sqlite3_column_int64(st, 3),
                              .updated_ms = sqlite3_column_int64(st, 4),
                              .title = col_str(st, 5),
                              .model = col_str(st, 6),
                              .ended = sqlite3_column_int(st, 7) == 1,
                              .n_turns = sqlite3_column_int(st, 8),
                              .number = col_int(st, 9, 0, &fits)};
    col_id(st, 0, r->id);
    col_id(st, 1, r->parent);
    return fits;
}

/* Calls fn for each row until it returns false; finalises st. */
static int each_session(struct db *d, sqlite3_stmt *st,
                        bool (*fn)(const struct session_row *, void *), void *arg, struct err *e)
{
    struct db_rows rows = db_rows(d, st, "cannot read sessions", e);
    while (db_next(&rows)) {
        struct session_row r;
        rows.ok = row_to_session(st, &r) ||
                  err_set(e, ERR_DB, "%s: session %s: its number or the turn of its fork is out of "
                                     "range", d->path, r.id);
        rows.more = rows.ok && fn(&r, arg);
        session_row_free(&r);
    }
    return rows.ok ? rows.n : -1;
}

int hdb_sessions(struct hdb *h, const char *query, const char *model, int limit,
                 bool (*fn)(const struct session_row *r, void *arg), void *arg, struct err *e)
{
    bool words = query && !is_blank_text(query);
    FREED(free_at) char *q = words ? usable_query(&h->db, query) : xstrdup("");
    int64_t most = limit > 0 ? limit : INT_MAX;
    sqlite3_stmt *st =
        words ? db_prepare(&h->db, e, SESSION_COLUMNS "WHERE" SESSION_IS_SHOWN
                           "AND (?1 IS NULL OR instr(m.dir, ?1)) AND s.id IN"
                           " (SELECT t.session_id FROM turn_fts f CROSS JOIN turn t ON t.id = "
                           "f.rowid"
                           "  WHERE turn_fts MATCH ?3) ORDER BY " SESSION_USED " DESC, s.last_run "
                           "DESC LIMIT ?2", "sis",
                           model, most, q)
              : db_prepare(&h->db, e, SESSION_COLUMNS "WHERE" SESSION_IS_SHOWN
                           "AND (?1 IS NULL OR instr(m.dir, ?1))"
                           " ORDER BY " SESSION_USED " DESC, s.last_run DESC LIMIT ?2", "si", model,
                           most);
    return each_session(&h->db, st, fn, arg, e);
}

/* Calls fn for each row of a statement's one or two columns, a turn's rowid and a session's id;
 * ends st (NULL: it could not be prepared). */
static int each_turn_id(struct db *d, sqlite3_stmt *st,
                        bool (*fn)(int64_t turn, const char *session, void *arg), void *arg,
                        struct err *e)
{
    char id[SESSION_ID] = "";
    struct db_rows rows = db_rows(d, st, "cannot read turns", e);
    while (db_next(&rows)) {
        if (sqlite3_column_count(st) > 1)
            col_id(st, 1, id);
        rows.more = fn(sqlite3_column_int64(st, 0), id, arg);
    }
    return rows.ok ? rows.n : -1;
}

int hdb_turn_ids(struct hdb *h, bool (*fn)(int64_t turn, const char *session, void *arg), void *arg,
                 struct err *e)
{
    return each_turn_id(&h->db, db_prepare(&h->db, e, "SELECT id, session_id FROM turn"
                                           " ORDER BY session_id", ""), fn, arg, e);
}

int hdb_turns_with(struct hdb *h, const char *words,
                   bool (*fn)(int64_t turn, const char *unused, void *arg), void *arg,
                   struct err *e)
{
    if (is_blank_text(words))
        return 0;
    FREED(free_at) char *q = typed_words(words);
    return each_turn_id(&h->db, db_prepare(&h->db, e, "SELECT rowid FROM turn_fts WHERE turn_fts"
                                           " MATCH ?", "s", q), fn, arg, e);
}

bool hdb_session_sums(struct hdb *h, const char *session, struct session_sums *out, struct err *e)
{
    *out = (struct session_sums){0};
    sqlite3_stmt *st = db_prepare(&h->db, e, "SELECT count(*), sum(length(tokens) / 4), "
                                             "sum(n_steps), sum(n_drafted), sum(n_accepted) FROM "
                                             "turn WHERE session_id = ? AND role = 'reply'",
                                  "s", session);
    bool ok = st && (sqlite3_step(st) == SQLITE_ROW || db_fail(&h->db, e, "cannot read the turns"));
    if (ok)
        *out = (struct session_sums){.replies = sqlite3_column_int(st, 0),
                                     .tokens = sqlite3_column_int64(st, 1),
                                     .steps = sqlite3_column_int64(st, 2),
                                     .drafted = sqlite3_column_int64(st, 3),
                                     .accepted = sqlite3_column_int64(st, 4)};
    sqlite3_finalize(st);
    return ok;
}

struct found {
    int n;
    struct session_row *out;
};

static bool keep_first(const struct session_row *r, void *arg)
{
    struct found *f = arg;
    if (f->n++ == 0) {
        *f->out = *r;
        f->out->title = xstrdup(r->title);
        f->out->model = xstrdup(r->model);
    }
    return true;
}

/* Reads "12" or "#12" to *n. A leading 0 is refused: it begins a ULID. */
static bool is_number(const char *id, int64_t *n)
{
    id += *id == '#';
    size_t digits = strspn(id, "0123456789");
    *n = *id == '0' || digits > 9 ? 0 : strtoll(id, NULL, 10);
    return *n > 0 && !id[digits];
}

bool hdb_find(struct hdb *h, const char *id, struct session_row *out, struct err *e)
{
    struct found f = {.out = out};
    memset(out, 0, sizeof *out);
    if (h->pack && strcmp(id, "last") == 0)
        id = h->pack->about.session;
    if (strcmp(id, "last") == 0) {
        int n = hdb_sessions(h, NULL, NULL, 1, keep_first, &f, e);
        return n > 0 || (n == 0 && err_set(e, ERR_NEGATIVE, "no session is logged yet"));
    }
    int64_t number;
    if (is_number(id, &number)) {
        sqlite3_stmt *by = db_prepare(&h->db, e, SESSION_COLUMNS "WHERE s.number = ?", "i", number);
        int found = by ? each_session(&h->db, by, keep_first, &f, e) : -1;
        return found > 0 ||
               (found == 0 && err_set(e, ERR_NEGATIVE, "no session %lld: aerie logs and /sessions "
                                      "list their numbers", (long long)number));
    }
    char low[SESSION_ID] = "", high[SESSION_ID + 1];
    size_t n = strlen(id);
    for (size_t i = 0; i < n && i < SESSION_ID - 1; i++)
        low[i] = ascii_upper(id[i]);
    if (n == 0 || n >= SESSION_ID || strspn(low, "0123456789ABCDEFGHJKMNPQRSTVWXYZ") != n)
        return err_set(e, ERR_NEGATIVE, "no session \"%.40s\": expected a number or an id that "
                       "aerie logs or /sessions lists, the beginning of an id, or \"last\"", id);
    snprintf(high, sizeof high, "%s~", low); /* '~' sorts after every digit and letter */
    sqlite3_stmt *st = db_prepare(&h->db, e, SESSION_COLUMNS "WHERE s.id >= ? AND s.id < ? LIMIT 2",
                                  "ss", low, high);
    if (!st || each_session(&h->db, st, keep_first, &f, e) < 0)
        return false;
    if (f.n == 1)
        return true;
    session_row_free(out);
    return f.n ? err_set(e, ERR_USAGE, "more than one session begins with \"%s\"", id)
               : err_set(e, ERR_NEGATIVE, "no session \"%s\"", id);
}

void hdb_name(struct hdb *h, const char *session, char out[SESSION_ID])
{
    FREED(session_row_free) struct session_row r;
    bool found = hdb_find(h, session, &r, NULL) && r.number > 0;
    if (found)
        snprintf(out, SESSION_ID, "#%d", r.number);
    else
        snprintf(out, SESSION_ID, "%s", session);
}

/* ---- turns ---- */

#define TURN_COLUMNS                                                                               \
    "SELECT t.id, t.session_id, t.n, t.role = 'user', u.regen, t.text, u.seed, u.sampling,"        \
    " u.draws0, t.draws1, t.stop, u.n_reused, t.n_steps, t.n_drafted, t.n_accepted, t.us_prefill," \
    " t.us_decode, t.created_ms, t.link, EXISTS(SELECT 1 FROM event v WHERE"                       \
    "  v.session_id = t.session_id AND v.op = 'undo' AND v.turn = t.n), t.shared, t.tokens,"   \
    " t.change, t.change_turn, t.held, t.same, t.limited, t.gone_from, t.gone_to,"                 \
    " (SELECT x.tokens FROM turn r JOIN served x ON x.turn_id = r.id WHERE"                        \
    "  r.session_id = t.session_id AND r.n = t.n AND r.role = 'reply')"
#define TURN_JOIN /* settings and seed of a reply are in the user's row */                         \
    " LEFT JOIN turn u ON u.session_id = t.session_id AND u.n = t.n AND u.role = 'user' "
enum { COL_SHARED = 20, COL_TOKENS, COL_REUSE, COL_LATE = COL_REUSE + 7, COL_SNIPPET };

/* What another program wrote is CHANGE_UNKNOWN. */
static struct reuse read_reuse(sqlite3_stmt *st, bool *fits)
{
    const char *change = (const char *)sqlite3_column_text(st, COL_REUSE);
    const char *limit = (const char *)sqlite3_column_text(st, COL_REUSE + 4);
    struct reuse r = {.turn = col_int(st, COL_REUSE + 1, 0, fits),
                      .held = col_int(st, COL_REUSE + 2, 0, fits),
                      .same = col_int(st, COL_REUSE + 3, 0, fits),
                      .from = col_int(st, COL_REUSE + 5, 0, fits),
                      .to = col_int(st, COL_REUSE + 6, 0, fits)};
    bool known = change && limit && reuse_change_parse(change, &r.change) &&
                 reuse_limit_parse(limit, &r.limit);
    return known ? r : (struct reuse){0};
}

static bool read_turn(struct db *d, sqlite3_stmt *st, struct turn_row *r, struct err *e)
{
    bool fits = true;
    FREED(free_at) char *stop = col_str(st, 10);
    *r = (struct turn_row){.rowid = sqlite3_column_int64(st, 0),
                           .n = col_int(st, 2, 1, &fits),
                           .is_user = sqlite3_column_int(st, 3),
                           .regen = sqlite3_column_int(st, 4),
                           .text = col_str(st, 5),
                           .text_n = (size_t)sqlite3_column_bytes(st, 5),
                           .seed = sqlite3_column_int64(st, 6),
                           .sampling = col_str(st, 7),
                           .draws0 = (uint64_t)sqlite3_column_int64(st, 8),
                           .draws1 = (uint64_t)sqlite3_column_int64(st, 9),
                           .stop = stop_parse(stop),
                           .n_reused = col_int(st, 11, 0, &fits),
                           .n_steps = col_int(st, 12, 0, &fits),
                           .n_drafted = col_int(st, 13, 0, &fits),
                           .n_accepted = col_int(st, 14, 0, &fits),
                           .us_prefill = (uint64_t)sqlite3_column_int64(st, 15),
                           .us_decode = (uint64_t)sqlite3_column_int64(st, 16),
                           .created_ms = sqlite3_column_int64(st, 17),
                           .order = sqlite3_column_type(st, 18) == SQLITE_NULL
                                        ? INT64_MAX
                                        : sqlite3_column_int64(st, 18),
                           .undone = sqlite3_column_int(st, 19)};
    r->reuse = read_reuse(st, &fits);
    col_id(st, 1, r->session);
    return fits || err_set(e, ERR_DB, "%s: session %s: turn %lld has a number that is out of range",
                           d->path, r->session, (long long)sqlite3_column_int64(st, 2));
}

/* Advances *seq, the session's ids, over the statement's row, and sets the row's ids. */
static bool read_tokens(struct db *d, sqlite3_stmt *st, struct ids *seq, struct turn_row *r,
                        struct err *e)
{
    int bytes = sqlite3_column_bytes(st, COL_TOKENS);
    if (!sequence_next(seq, r->is_user, sqlite3_column_int64(st, COL_SHARED),
                       sqlite3_column_blob(st, COL_TOKENS), bytes))
        return err_set(e, ERR_DB, "%s: session %s: the stored prompt does not fit the turn before "
                                  "it", d->path, r->session);
    int n = r->is_user ? seq->n : bytes / (int)sizeof *seq->v;
    if (r->is_user && sqlite3_column_type(st, COL_LATE) != SQLITE_NULL)
        col_ids(st, COL_LATE, &r->tokens);
    else
        ids_cat(&r->tokens, seq->v + seq->n - n, n);
    return true;
}

int hdb_turns(struct hdb *h, const char *session, int turn,
              bool (*fn)(const struct turn_row *r, void *arg), void *arg, struct err *e)
{
    /* prompts are stored relative to the previous turn, so reading starts at the first turn */
    sqlite3_stmt *st = db_prepare(&h->db, e, TURN_COLUMNS " FROM turn t" TURN_JOIN
                                  "WHERE t.session_id = ?1 AND (?2 = 0 OR t.n <= ?2)"
                                  " ORDER BY t.n, t.role DESC", "si", session, (int64_t)turn);
    FREED(ids_free) struct ids seq = {0};
    int n = 0;
    struct db_rows rows = db_rows(&h->db, st, "cannot read turns", e);
    while (db_next(&rows)) {
        struct turn_row r;
        rows.ok = read_turn(&h->db, st, &r, e) && read_tokens(&h->db, st, &seq, &r, e) &&
                  (r.is_user || served_read(&h->db, r.rowid, &r.served, e));
        if (rows.ok && (!turn || r.n == turn)) {
            rows.more = fn(&r, arg);
            n++;
        }
        turn_row_free(&r);
    }
    return rows.ok ? n : -1;
}

int hdb_search(struct hdb *h, const char *query, int limit,
               bool (*fn)(const struct turn_row *r, void *arg), void *arg, struct err *e)
{
    if (is_blank_text(query))
        return FAILED(-1, e, ERR_USAGE, "the search query is empty");
    FREED(free_at) char *q = usable_query(&h->db, query);
    sqlite3_stmt *st = db_prepare(&h->db, e, TURN_COLUMNS
                                  ", snippet(turn_fts, 0, char(1), char(2), '...', 16)"
                                  " FROM turn_fts JOIN turn t ON t.id = turn_fts.rowid" TURN_JOIN
                                  "WHERE turn_fts MATCH ? ORDER BY rank LIMIT ?", "si", q,
                                  (int64_t)(limit > 0 ? limit : INT_MAX));
    if (!st)
        db_fail(&h->db, e, "cannot search");
    struct db_rows rows = db_rows(&h->db, st, "cannot search", e);
    while (db_next(&rows)) {
        struct turn_row r;
        rows.ok = read_turn(&h->db, st, &r, e);
        r.snippet = col_str(st, COL_SNIPPET);
        rows.more = rows.ok && fn(&r, arg);
        turn_row_free(&r);
    }
    return rows.ok ? rows.n : -1;
}

/* ---- steps and operations ---- */

static bool column_tree(sqlite3_stmt *st, int i, struct tree **out, struct err *e)
{
    if (sqlite3_column_type(st, i) == SQLITE_NULL)
        return true;
    *out = xmalloc(sizeof **out);
    return tree_unpack(*out, sqlite3_column_blob(st, i), (size_t)sqlite3_column_bytes(st, i), e);
}

/* What hdb_steps() selects; from STEP_FIRST on, the columns of step_columns. */
enum { STEP_TURN, STEP_N, STEP_ID, STEP_HAS_TOPS, STEP_NODES, STEP_EVENTS, STEP_FIRST };

static bool row_to_step(struct db *d, sqlite3_stmt *st, struct step_row *r, struct err *e)
{
    bool fits = true;
    *r = (struct step_row){.turn = col_int(st, STEP_TURN, 1, &fits),
                           .n = col_int(st, STEP_N, 0, &fits)};
    const char *bad = columns_read(st, STEP_FIRST, step_columns, N_STEP_COLUMNS, r, &fits);
    if (!bad && !fits)
        bad = " has a number that is out of range";
    if (bad)
        return err_set(e, ERR_DB, "step %d.%d%s", r->turn, r->n, bad);
    if (sqlite3_column_type(st, STEP_EVENTS) != SQLITE_NULL)
        buf_add(&r->pages, sqlite3_column_blob(st, STEP_EVENTS),
                (size_t)sqlite3_column_bytes(st, STEP_EVENTS));
    if (sqlite3_column_int(st, STEP_HAS_TOPS) &&
        !served_read_tops(d, sqlite3_column_int64(st, STEP_ID), &r->tops, e))
        return false;
    return column_tree(st, STEP_NODES, &r->tree, e) || err_prefix(e, "step %d.%d", r->turn, r->n);
}

int hdb_steps(struct hdb *h, const char *session, int turn,
              bool (*fn)(const struct step_row *r, void *arg), void *arg, struct err *e)
{
    sqlite3_stmt *st = db_prepare(&h->db, e,
        "SELECT t.n, s.n, s.id, EXISTS(SELECT 1 FROM top o WHERE o.step_id = s.id), x.nodes,"
        " p.events" STEP_COLUMNS(COLUMN_OF_S)
        " FROM turn t JOIN step s ON s.turn_id = t.id LEFT JOIN tree x ON x.step_id = s.id"
        " LEFT JOIN pages p ON p.step_id = s.id"
        " WHERE t.session_id = ?1 AND t.role = 'reply' AND (?2 = 0 OR t.n = ?2) ORDER BY t.n, s.n",
        "si", session, (int64_t)turn);
    struct db_rows rows = db_rows(&h->db, st, "cannot read steps", e);
    while (db_next(&rows)) {
        struct step_row r;
        rows.ok = row_to_step(&h->db, st, &r, e);
        rows.more = rows.ok && fn(&r, arg);
        step_row_free(&r);
    }
    return rows.ok ? rows.n : -1;
}

/* Reads what line_text() (write.c) wrote; a pack without tokens has no forced ones. */
static void op_read(struct op_row *r)
{
    struct forced_token f = {0};
    const char *at = r->text;
    bool lists = r->op == OP_FORK || r->op == OP_FORGET;
    for (int n; lists && int_at(&at, &n); at += *at == ' ')
        ids_add(&r->turns, n);
    if (r->op == OP_FORCE && int_at(&at, &f.step) && *at++ == ' ' && int_at(&at, &f.token))
        r->forced = f;
}

int hdb_ops(struct hdb *h, const char *session, bool (*fn)(const struct op_row *r, void *arg),
            void *arg, struct err *e)
{
    sqlite3_stmt *st = db_prepare(&h->db, e, "SELECT link, op, turn, text FROM event WHERE"
                                  " session_id = ? AND kind = 'op' ORDER BY link", "s", session);
    int n = 0;
    struct db_rows rows = db_rows(&h->db, st, "cannot read operations", e);
    while (db_next(&rows)) {
        char *name = col_str(st, 1);
        int op = op_parse(name);
        free(name);
        if (op < 0)
            continue;
        struct op_row r = {.order = sqlite3_column_int64(st, 0), .op = (enum op_kind)op,
                           .turn = col_int(st, 2, 0, &rows.ok), .text = col_str(st, 3)};
        op_read(&r);
        rows.more = rows.ok ? fn(&r, arg)
                            : err_set(e, ERR_DB, "%s: session %s: an operation's turn is out of "
                                      "range", h->path, session);
        op_row_free(&r);
        n++;
    }
    return rows.ok ? n : -1;
}

int hdb_faults(struct hdb *h, const char *session,
               bool (*fn)(const struct fault_row *r, void *arg), void *arg, struct err *e)
{
    sqlite3_stmt *st = db_prepare(&h->db, e, "SELECT turn, step, op, text FROM event WHERE "
                                             "session_id = ? AND kind = 'fault' AND turn > 0 "
                                             "ORDER BY link", "s", session);
    struct db_rows rows = db_rows(&h->db, st, "cannot read faults", e);
    while (db_next(&rows)) {
        char *rule = col_str(st, 2), *text = col_str(st, 3);
        struct fault_row r = {.turn = col_int(st, 0, 0, &rows.ok),
                              .step = col_int(st, 1, 0, &rows.ok),
                              .rule = rule ? fault_rule_of(rule) : 0, .text = text ? text : ""};
        rows.more = rows.ok ? fn(&r, arg)
                            : err_set(e, ERR_DB, "%s: session %s: a fault's turn or step is out of "
                                      "range", h->path, session);
        FREE(rule, text);
    }
    return rows.ok ? rows.n : -1;
}

bool hdb_verify(struct hdb *h, const char *session, int *turns, int *bad, struct buf *report,
                struct err *e)
{
    *bad = 0;
    *turns = h->pack ? h->pack->about.turns : 0;
    return h->pack || chain_verify(&h->db, session, turns, bad, report, e);
}
