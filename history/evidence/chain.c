/* chain.c - the checksum chain, which finds changes in stored sessions.
 *
 * SQLite's integrity_check verifies the structure of the file, not its content: of 200 flipped bits
 * in stored text it reported two. So every completed record has a checksum, and its session one
 * over all of them (internal.h). Writing and verifying both hash a record as the same function
 * reads it from the database.
 *
 * Values that change later (the title, the time of the last change, how a run ended) are covered by
 * the session's seal, which is computed again with each change; a tokenizer's texts by the
 * exclusive or of their hashes. head.c chains these checksums over the whole database, and may seal
 * them with a key. Without a key all this detects accidents, not attacks: a program that writes the
 * file can also compute the checksums.
 */
#include "history/columns.h"

static int hash_run(struct sha256 *s, struct db *d, int64_t id)
{
    return hash_rows(s, d, db_cached(d,
        "SELECT r.id, r.session_id, r.config, r.writer, r.created_ms, b.version, b.device, b.flags,"
        " t.role, t.dir, t.weights_sha, t.tokenizer_sha, d.role, d.dir, d.weights_sha,"
        " d.tokenizer_sha, v.kind, v.version, v.url, v.model, v.facts"
        " FROM run r LEFT JOIN build b ON b.id = r.build_id"
        " LEFT JOIN model t ON t.id = r.target_id LEFT JOIN model d ON d.id = r.draft_id"
        " LEFT JOIN server v ON v.id = r.server_id WHERE r.id = ?", "i", id));
}

static int hash_event(struct sha256 *s, struct db *d, int64_t id)
{
    return hash_rows(s, d, db_cached(d,
        "SELECT id, session_id, turn, step, kind, op, text, created_ms FROM event WHERE id = ?",
        "i", id));
}

/* Hashes a turn row with its rows in other tables. (A user row has none of them.) */
static int hash_turn(struct sha256 *s, struct db *d, int64_t id)
{
    static const char *const rows[] = {
        "SELECT id, session_id, run_id, n, role, text, shared, tokens, regen, seed, sampling,"
        " draws0, n_reused, change, change_turn, held, same, limited, gone_from, gone_to, stop,"
        " draws1, n_steps, n_drafted, n_accepted, us_prefill, us_decode, created_ms"
        " FROM turn WHERE id = ?",
        "SELECT k, channel, text FROM turn_part WHERE turn_id = ? ORDER BY k",
        "SELECT s.n" STEP_COLUMNS(COLUMN_OF_S) ", t.nodes, p.events"
        " FROM step s LEFT JOIN tree t ON t.step_id = s.id"
        " LEFT JOIN pages p ON p.step_id = s.id WHERE s.turn_id = ? ORDER BY s.n",
        ("SELECT s.n, o.k, o.rank, o.token, o.logp, o.text FROM step s JOIN top o ON"
         " o.step_id = s.id WHERE s.turn_id = ? ORDER BY s.n, o.k, o.rank"),
        "SELECT * FROM served WHERE turn_id = ?",
        "SELECT name, labels, before, after FROM metric WHERE turn_id = ? ORDER BY name, labels"};
    int rc = SQLITE_OK;
    for (size_t i = 0; !rc && i < LEN(rows); i++)
        rc = hash_rows(s, d, db_cached(d, rows[i], "i", id));
    return rc;
}

int chain_sum(struct db *d, enum link_kind kind, int64_t row, int64_t link, uint8_t out[32])
{
    static int (*const hash[])(struct sha256 *, struct db *, int64_t) = {
        [LINK_RUN] = hash_run, [LINK_EVENT] = hash_event, [LINK_TURN] = hash_turn};
    struct sha256 s;
    sha256_init(&s);
    hash_int(&s, kind);
    hash_int(&s, link);
    int rc = hash[kind](&s, d, row);
    sha256_end(&s, out);
    return rc;
}

/* A session's chain after a record with this checksum. */
static void extend(uint8_t chain[32], int n_chain, const uint8_t sum[32])
{
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, chain, (size_t)n_chain);
    sha256_add(&s, sum, 32);
    sha256_end(&s, chain);
}

/* ---- the seal of a session ---- */

static int seal_hash(struct db *d, const char *session, uint8_t out[32])
{
    struct sha256 s;
    sha256_init(&s);
    int rc = hash_rows(&s, d, db_cached(d,
        "SELECT id, number, parent, fork_turn, title, created_ms, updated_ms, last_run, pinned,"
        " links, chain FROM session WHERE id = ?", "s", session)) ?:
             hash_rows(&s, d, db_cached(d, "SELECT id, ended FROM run WHERE session_id = ? "
                                           "ORDER BY id", "s", session));
    sha256_end(&s, out);
    return rc;
}

static int seal(struct db *d, const char *session, const uint8_t sum[32])
{
    return db_do(d, "UPDATE session SET seal=? WHERE id=?", "bs", sum, (size_t)32, session);
}

/* *same: the stored seal equals sum, that of the session's content. *some: there is such a
 * session. */
static int seal_matches(struct db *d, const char *session, uint8_t sum[32], bool *same,
                        bool *some)
{
    int rc = seal_hash(d, session, sum);
    if (rc)
        return rc;
    sqlite3_stmt *st = db_cached(d, "SELECT seal FROM session WHERE id=?", "s", session);
    *some = db_row(d, st, &rc);
    *same = *some && sqlite3_column_bytes(st, 0) == 32 &&
            memcmp(sqlite3_column_blob(st, 0), sum, 32) == 0;
    sqlite3_reset(st);
    return rc;
}

int chain_seal(struct db *d, const char *session)
{
    uint8_t sum[32];
    bool same, some;
    int rc = seal_matches(d, session, sum, &same, &some);
    if (rc || same || !some)
        return rc;
    return seal(d, session, sum) ?: head_add(d, "session", session, sum, sizeof sum);
}

int chain_touch(struct db *d, const char *session)
{
    uint8_t sum[32];
    bool same, some;
    int rc = seal_matches(d, session, sum, &same, &some);
    return rc || !some ? rc : head_touch(d, "session", session, same ? sum : NULL);
}

int chain_delete(struct db *d, sqlite3_stmt *st, int *n)
{
    char (*gone)[SESSION_ID] = NULL;
    *n = 0;
    int rc;
    while (db_row(d, st, &rc))
        col_id(st, 0, *APPEND(gone, *n));
    for (int i = 0; !rc && i < *n; i++)
        rc = head_add(d, "session", gone[i], "", 0);
    free(gone);
    return rc;
}

int chain_begin_log(struct db *d)
{
    return db_do(d, "INSERT INTO roll(id) VALUES(1)", "") ?: head_state(d);
}

int chain_seal_holds(struct db *d, const char *session, bool *same)
{
    uint8_t sum[32];
    bool some;
    return seal_matches(d, session, sum, same, &some);
}

/* ---- the checksum of a tokenizer's texts ---- */

/* Adds the hashes of texts to *sum by exclusive or: of one id, or (id -1) of all. */
static int texts_toggle(struct db *d, int64_t tokenizer, int32_t id, int64_t *n, uint8_t sum[32])
{
    sqlite3_stmt *st = db_cached(d, "SELECT id, text FROM token WHERE tokenizer=?1 AND"
                                 " ?2 IN (-1, id) AND id BETWEEN max(?2, 0) AND"
                                 " iif(?2<0, 1<<31, ?2)", "ii", tokenizer, (int64_t)id);
    int rc;
    for (*n = 0; db_row(d, st, &rc); ++*n) {
        uint8_t one[32];
        struct sha256 s;
        sha256_init(&s);
        hash_column(&s, st, 0);
        hash_column(&s, st, 1);
        sha256_end(&s, one);
        for (int i = 0; i < 32; i++)
            sum[i] ^= one[i];
    }
    return rc;
}

static int texts_read(struct db *d, int64_t tokenizer, int64_t *n, uint8_t sum[32])
{
    sqlite3_stmt *st = db_cached(d, "SELECT texts, sum FROM tokenizer WHERE id=?", "i", tokenizer);
    int rc;
    bool some = db_row(d, st, &rc);
    *n = some ? sqlite3_column_int64(st, 0) : -1;
    memset(sum, 0, 32);
    if (some && sqlite3_column_bytes(st, 1) == 32)
        memcpy(sum, sqlite3_column_blob(st, 1), 32);
    sqlite3_reset(st);
    return rc;
}

int chain_texts(struct db *d, int64_t tokenizer, const int32_t *id, int n)
{
    uint8_t sum[32];
    int64_t texts, one;
    int rc = n ? texts_read(d, tokenizer, &texts, sum) : SQLITE_OK;
    for (int i = 0; !rc && i < n; i++)
        rc = texts_toggle(d, tokenizer, id[i], &one, sum);
    if (rc || n == 0)
        return rc;
    return db_do(d, "UPDATE tokenizer SET texts=?, sum=? WHERE id=?", "ibi", texts + n, sum,
                 sizeof sum, tokenizer);
}

int chain_drop_texts(struct db *d, int64_t *bad)
{
    static const uint8_t none[32];
    int rc = SQLITE_OK, step = SQLITE_DONE;
    sqlite3_stmt *st = db_prepare(d, NULL, "SELECT id FROM tokenizer", "");
    for (*bad = 0; st && !rc && (step = sqlite3_step(st)) == SQLITE_ROW;) {
        int64_t id = sqlite3_column_int64(st, 0), want = 0, have = 0;
        uint8_t sum[32], all[32] = {0};
        rc = texts_read(d, id, &want, sum) ?: texts_toggle(d, id, -1, &have, all);
        if (rc || (want == have && memcmp(sum, all, sizeof sum) == 0))
            continue;
        *bad += 1;
        rc = db_do(d, "DELETE FROM token WHERE tokenizer=?", "i", id) ?:
             db_do(d, "UPDATE tokenizer SET texts=0, sum=? WHERE id=?", "bi", none, sizeof none,
                   id);
    }
    sqlite3_finalize(st);
    return rc ?: step == SQLITE_DONE ? SQLITE_OK : step;
}

/* ---- writing ---- */

static int set_link(struct db *d, enum link_kind kind, int64_t row, int64_t link,
                    const uint8_t sum[32])
{
    static const char *const update[] = {
        [LINK_RUN] = "UPDATE run SET link=?, sum=? WHERE id=?",
        [LINK_EVENT] = "UPDATE event SET link=?, sum=? WHERE id=?",
        [LINK_TURN] = "UPDATE turn SET link=?, sum=? WHERE id=?"};
    return db_do(d, update[kind], "ibi", link, sum, (size_t)32, row);
}

int chain_add(struct db *d, const char *session, enum link_kind kind, int64_t row)
{
    sqlite3_stmt *st = db_cached(d, "SELECT links, chain FROM session WHERE id=?", "s", session);
    int rc;
    if (!db_row(d, st, &rc))
        return rc ?: SQLITE_CORRUPT;
    uint8_t chain[32] = {0}, sum[32];
    int64_t links = sqlite3_column_int64(st, 0), link = links + (links < INT64_MAX);
    if (links < 0 || links == INT64_MAX) { /* damaged */
        sqlite3_reset(st);
        return SQLITE_CORRUPT;
    }
    int n = min_int(sqlite3_column_bytes(st, 1), (int)sizeof chain);
    if (n)
        memcpy(chain, sqlite3_column_blob(st, 1), (size_t)n);
    sqlite3_reset(st);
    rc = chain_sum(d, kind, row, link, sum) ?: set_link(d, kind, row, link, sum);
    extend(chain, n, sum);
    return rc ?: db_do(d, "UPDATE session SET links=?, chain=? WHERE id=?", "ibs", link, chain,
                           sizeof chain, session);
}

/* ---- verifying ---- */

struct verify {
    struct db *d;
    char session[SESSION_ID];
    uint8_t chain[32]; /* (n_chain) over the records so far */
    int n_chain;
    int64_t link; /* of the last record verified */
    bool gap;     /* records are missing, which was reported */
    int turns, bad;
    struct buf *report;
};

static void report_bad(struct verify *v, const char *what, int64_t n)
{
    v->bad++;
    if (v->report)
        buf_printf(v->report, "session %s: %s %lld does not match what was written\n", v->session,
                   what, (long long)n);
}

static void report_line(struct verify *v, const char *line)
{
    v->bad++;
    if (v->report)
        buf_printf(v->report, "%s%s%s%s\n", *v->session ? "session " : "", v->session,
                   *v->session ? ": " : "", line);
}

/* Verifies the statement's row: link, kind, id, turn number, role, sum. After a mismatch the chain
 * goes on with the stored checksum, so that one change is reported once. */
static int verify_link(struct verify *v, sqlite3_stmt *st)
{
    static const char *const names[] = {"run", "event", "turn"};
    int64_t link = sqlite3_column_int64(st, 0), n = sqlite3_column_int64(st, 3);
    int kind = sqlite3_column_int(st, 1);
    const char *role = (const char *)sqlite3_column_text(st, 4);
    bool is_user = role && strcmp(role, "user") == 0;
    const char *what = is_user ? "the message of turn" : names[kind];
    v->turns += kind == LINK_TURN && !is_user;
    uint8_t sum[32];
    int rc = chain_sum(v->d, kind, sqlite3_column_int64(st, 2), link, sum);
    const void *stored = sqlite3_column_blob(st, 5);
    bool whole = stored && sqlite3_column_bytes(st, 5) == (int)sizeof sum;
    if ((uint64_t)link != (uint64_t)v->link + 1) {
        report_bad(v, "what stood before link", link);
        v->gap = true;
    }
    if (!rc && (!whole || memcmp(stored, sum, sizeof sum) != 0))
        report_bad(v, what, n);
    extend(v->chain, v->n_chain, whole ? stored : sum);
    v->n_chain = sizeof v->chain;
    v->link = link;
    return rc;
}

/* Compares the end of the chain with the session's row, which finds rows missing at the end. */
static int verify_end(struct verify *v)
{
    sqlite3_stmt *st = db_cached(v->d, "SELECT links, chain FROM session WHERE id=?", "s",
                                 v->session);
    int rc;
    bool some = db_row(v->d, st, &rc);
    const void *chain = some ? sqlite3_column_blob(st, 1) : NULL;
    bool same = some && sqlite3_column_bytes(st, 1) == v->n_chain &&
                (v->gap || !v->n_chain || memcmp(chain, v->chain, sizeof v->chain) == 0);
    if (!rc && (!same || sqlite3_column_int64(st, 0) != v->link))
        report_bad(v, "the end, link", v->link);
    sqlite3_reset(st);
    return rc;
}

static bool verify_session(struct verify *v, struct err *e)
{
    v->link = v->n_chain = 0;
    v->gap = false;
    sqlite3_stmt *st = db_prepare(v->d, e,
        "SELECT link, 0, id, id, NULL, sum FROM run WHERE session_id=?1 AND link NOT NULL"
        " UNION ALL"
        " SELECT link, 1, id, id, NULL, sum FROM event WHERE session_id=?1 AND link NOT NULL"
        " UNION ALL"
        " SELECT link, 2, id, n, role, sum FROM turn WHERE session_id=?1 AND link NOT NULL"
        " ORDER BY 1", "s", v->session);
    struct db_rows rows = db_rows(v->d, st, "cannot verify", e);
    while (db_next(&rows))
        rows.ok = !verify_link(v, st) || db_fail(v->d, e, rows.what);
    return rows.ok && (!verify_end(v) || db_fail(v->d, e, rows.what));
}

/* Finds rows that no link covers, except one reply per run, which may be in progress. */
static bool verify_covered(struct verify *v, struct err *e)
{
    sqlite3_stmt *st = db_prepare(v->d, e,
        "SELECT 'run ' || id FROM run WHERE session_id=?1 AND link IS NULL UNION ALL"
        " SELECT kind || ' ' || id FROM event WHERE session_id=?1 AND link IS NULL UNION ALL"
        " SELECT iif(t.role = 'user', 'the message of turn ', 'the reply of turn ') || t.n"
        " FROM turn t WHERE t.session_id=?1 AND t.link IS NULL AND NOT (t.role = 'reply' AND"
        "  t.stop = '' AND EXISTS(SELECT 1 FROM run r WHERE r.id = t.run_id AND r.ended = 0) AND"
        "  t.id = (SELECT max(id) FROM turn o WHERE o.run_id = t.run_id AND o.stop = ''))", "s",
        v->session);
    struct db_rows rows = db_rows(v->d, st, "cannot verify", e);
    while (db_next(&rows)) {
        char line[160];
        snprintf(line, sizeof line, "%.80s is not covered by the chain: aerie did not write it",
                 (const char *)sqlite3_column_text(st, 0));
        report_line(v, line);
    }
    return rows.ok;
}

static bool verify_seal(struct verify *v, struct err *e)
{
    uint8_t sum[32];
    bool same, some;
    if (seal_matches(v->d, v->session, sum, &same, &some))
        return db_fail(v->d, e, "cannot verify");
    if (!same)
        report_line(v, "its title, number, pin, times or the ends of its runs do not match what "
                       "was written");
    return true;
}

/* Finds texts of tokens that were changed, deleted or added by another program. */
static bool verify_texts(struct verify *v, struct err *e)
{
    sqlite3_stmt *st = db_prepare(v->d, e, "SELECT id FROM tokenizer ORDER BY id", "");
    int rc = SQLITE_ERROR;
    v->session[0] = '\0';
    while (st && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        int64_t id = sqlite3_column_int64(st, 0), want, have;
        uint8_t sum[32], all[32] = {0};
        rc = texts_read(v->d, id, &want, sum) ?: texts_toggle(v->d, id, -1, &have, all);
        if (rc)
            break;
        if (want != have || memcmp(sum, all, 32) != 0)
            report_bad(v, "the texts of tokenizer", id);
    }
    sqlite3_finalize(st);
    int64_t lost = 0;
    if (rc == SQLITE_DONE &&
        !(rc = db_int(v->d, &lost, 0, "SELECT count(*) FROM token WHERE tokenizer NOT IN"
                      " (SELECT id FROM tokenizer)", "")) && lost)
        report_bad(v, "(no tokenizer): texts left over,", lost);
    return rc == SQLITE_OK || (st && db_fail(v->d, e, "cannot verify"));
}

/* Finds rows of sessions that have no session row. */
static bool verify_owners(struct verify *v, struct err *e)
{
    int64_t lost = 0;
    int rc = db_int(v->d, &lost, 0, "SELECT count(*) FROM (SELECT session_id AS s FROM run"
                    " UNION ALL SELECT session_id FROM event UNION ALL SELECT session_id FROM turn)"
                    " WHERE s NOT IN (SELECT id FROM session)", "");
    if (rc)
        return db_fail(v->d, e, "cannot verify");
    v->session[0] = '\0';
    if (lost)
        report_bad(v, "(deleted): rows left over,", lost);
    return true;
}

static bool verify_all(struct verify *v, const char *session, struct err *e)
{
    struct db *d = v->d;
    sqlite3_stmt *st = db_prepare(d, e, "SELECT id FROM session WHERE ?1 IN ('', id) ORDER BY id",
                                  "s", session);
    struct db_rows rows = db_rows(d, st, "cannot verify", e);
    while (db_next(&rows)) {
        col_id(st, 0, v->session);
        rows.ok = verify_session(v, e) && verify_covered(v, e) && verify_seal(v, e);
    }
    return rows.ok && (*session || (verify_owners(v, e) && verify_texts(v, e) &&
                               head_verify(d, &v->bad, v->report, e)));
}

/* Runs in one read transaction, so that another process may write meanwhile. */
bool chain_verify(struct db *d, const char *session, int *turns, int *bad, struct buf *report,
                  struct err *e)
{
    struct verify v = {.d = d, .report = report};
    if (!db_exec(d, "BEGIN", e))
        return false;
    bool ok = verify_all(&v, session, e);
    db_rollback(d);
    *turns = v.turns;
    *bad = v.bad;
    return ok;
}
