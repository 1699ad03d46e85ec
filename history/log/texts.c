/* texts.c - the texts of tokens, so that a log can be read without its model.
 *
 * A text is stored once for each id that occurs in the log and each tokenizer (by its hash): as
 * TEXT where it is valid UTF-8 without a NUL, else as BLOB, because SQLite clients refuse other
 * text. The writer remembers which ids are stored; what a transaction added is forgotten if it is
 * rolled back.
 */
#include "history/internal.h"
#include "kernels/utf8.h"

struct vocabulary vocabulary_copy(const struct history_texts *t)
{
    struct vocabulary v = {0};
    struct buf all = {0};
    if (!t || t->n <= 0)
        return v;
    v.n = t->n;
    buf_str(&all, "");
    v.at = xcalloc((size_t)t->n + 1, sizeof *v.at);
    for (int i = 0; i < t->n; i++) {
        size_t n = 0;
        const char *s = t->text(t->arg, i, &n);
        buf_add(&all, s ? s : "", s ? n : 0);
        v.at[i + 1] = all.n;
    }
    v.bytes = all.p;
    return v;
}

void vocabulary_free(struct vocabulary *v)
{
    FREE(v->at, v->bytes);
    *v = (struct vocabulary){0};
}

void texts_take(struct texts *t, struct vocabulary *v)
{
    texts_free(t);
    t->vocab = *v;
    *v = (struct vocabulary){0};
}

void texts_free(struct texts *t)
{
    vocabulary_free(&t->vocab);
    free(t->stored);
    ids_free(&t->fresh);
    *t = (struct texts){0};
}

/* Finds or makes the tokenizer's row, and reads which ids are stored. */
static int open_tokenizer(struct db *d, struct texts *t, const char *sha)
{
    int rc = db_do(d, "INSERT OR IGNORE INTO tokenizer(sha) VALUES(?)", "s", sha) ?:
             head_add_inserted(d, "tokenizer") ?:
             db_int(d, &t->tokenizer, 0, "SELECT id FROM tokenizer WHERE sha=?", "s", sha);
    if (rc)
        return rc;
    t->stored = xrealloc(t->stored, (size_t)t->vocab.n, 1);
    memset(t->stored, 0, (size_t)t->vocab.n);
    sqlite3_stmt *st = db_cached(d, "SELECT id FROM token WHERE tokenizer=?", "i", t->tokenizer);
    while (db_row(d, st, &rc)) {
        int64_t id = sqlite3_column_int64(st, 0);
        if (id >= 0 && id < t->vocab.n)
            t->stored[id] = 1;
    }
    return rc;
}

static int store_one(struct db *d, struct texts *t, int32_t id)
{
    const char *s = t->vocab.bytes + t->vocab.at[id];
    size_t n = t->vocab.at[id + 1] - t->vocab.at[id];
    int rc = utf8_check(s, n) && !memchr(s, 0, n)
                 ? db_do(d, "INSERT OR IGNORE INTO token(tokenizer, id, text) VALUES(?,?,?)", "iit",
                         t->tokenizer, (int64_t)id, s, n)
                 : db_do(d, "INSERT OR IGNORE INTO token(tokenizer, id, text) VALUES(?,?,?)", "iib",
                         t->tokenizer, (int64_t)id, s, n);
    if (rc)
        return rc;
    t->stored[id] = 1;
    if (sqlite3_changes(d->h)) /* else another process has stored it */
        ids_add(&t->fresh, id);
    return SQLITE_OK;
}

int texts_store(struct db *d, struct texts *t, const char *sha, const int32_t *id, int n)
{
    if (!t->vocab.n || !*sha)
        return SQLITE_OK;
    int rc = t->tokenizer ? SQLITE_OK : open_tokenizer(d, t, sha);
    int before = t->fresh.n;
    for (int i = 0; !rc && i < n; i++)
        if (id[i] >= 0 && id[i] < t->vocab.n && !t->stored[id[i]])
            rc = store_one(d, t, id[i]);
    if (!rc && before == 0 && t->fresh.n)
        rc = head_touch_row(d, "tokenizer", t->tokenizer);
    if (rc || t->fresh.n == before)
        return rc;
    return chain_texts(d, t->tokenizer, t->fresh.v + before, t->fresh.n - before);
}

void texts_ended(struct texts *t, bool committed)
{
    for (int i = 0; !committed && i < t->fresh.n; i++)
        t->stored[t->fresh.v[i]] = 0;
    if (!committed)
        t->tokenizer = 0; /* its row may be gone, too */
    t->fresh.n = 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

#define TEXTS_OF_SESSION                                                                           \
    "SELECT k.id AS id, k.text AS text FROM session s JOIN run r ON r.id = s.last_run JOIN model"  \
    " m ON m.id = r.target_id JOIN tokenizer z ON z.sha = m.tokenizer_sha JOIN token k ON"         \
    " k.tokenizer = z.id WHERE s.id = ?1 UNION ALL SELECT o.token, max(o.text) FROM turn t"        \
    " JOIN step p ON p.turn_id = t.id JOIN top o ON o.step_id = p.id WHERE t.session_id = ?1"      \
    " AND o.token NOT NULL AND length(o.text) > 0 GROUP BY o.token"

int hdb_token_texts(struct hdb *h, const char *session,
                    bool (*fn)(int32_t id, const char *text, size_t n, void *arg), void *arg,
                    struct err *e)
{
    sqlite3_stmt *st = db_prepare(&h->db, e, TEXTS_OF_SESSION " ORDER BY 1", "s", session);
    struct db_rows rows = db_rows(&h->db, st, "cannot read the texts of tokens", e);
    while (db_next(&rows)) {
        const void *p = sqlite3_column_blob(st, 1);
        rows.more = fn((int32_t)sqlite3_column_int64(st, 0), p ? p : "",
                       (size_t)sqlite3_column_bytes(st, 1), arg);
    }
    return rows.ok ? rows.n : -1;
}

bool hdb_token_text(struct hdb *h, const char *session, int32_t id, struct buf *out)
{
    sqlite3_stmt *st = db_prepare(&h->db, NULL, "SELECT id, text FROM (" TEXTS_OF_SESSION ")"
                                  " WHERE id = ?2", "si", session, (int64_t)id);
    bool found = st && sqlite3_step(st) == SQLITE_ROW;
    if (found)
        buf_add(out, sqlite3_column_blob(st, 1), (size_t)sqlite3_column_bytes(st, 1));
    sqlite3_finalize(st);
    return found;
}
