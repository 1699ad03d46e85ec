/* rows.c - ids of sessions, prompts stored as differences, and copies of rows. */
#include "history/internal.h"

#include <pthread.h>
#include <sys/random.h>

/* ---- session ids ---- */

/* If the millisecond is not later than that of the id before, the random part is incremented, so
 * that ids ascend. */
void session_new_id(char out[SESSION_ID])
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int64_t last_ms;
    static uint8_t tail[10]; /* 80 bits, big-endian */
    static const char digit[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

    LOCKED(&lock);
    int64_t ms = clock_unix_ms();
    bool again = ms <= last_ms;
    for (int i = 9; again && i >= 0; i--)
        again = ++tail[i] == 0; /* carry; true after the loop: all 80 bits wrapped */
    if (ms > last_ms || again) {
        last_ms = ms > last_ms ? ms : last_ms + 1;
        CHECK(getrandom(tail, sizeof tail, 0) == sizeof tail);
        tail[0] &= 0x7F; /* leaves room for increments */
    }
    uint64_t head = (uint64_t)last_ms;
    for (int i = 0; i < 10; i++)
        out[i] = digit[head >> (45 - 5 * i) & 31];
    for (int i = 0; i < 16; i++) {
        int bit = 5 * i, byte = bit / 8;
        unsigned two = (unsigned)tail[byte] << 8 | (byte < 9 ? tail[byte + 1] : 0);
        out[10 + i] = digit[two >> (11 - bit % 8) & 31];
    }
    out[26] = '\0';
}

/* ---- prompts ---- */

bool sequence_next(struct ids *seq, bool is_user, int64_t shared, const void *ids, int bytes)
{
    if (bytes % (int)sizeof(int32_t))
        return false;
    if (is_user) {
        if (shared < 0 || shared > seq->n)
            return false;
        seq->n = (int)shared;
    }
    int old = seq->n, n = bytes / (int)sizeof(int32_t);
    for (int i = 0; i < n; i++)
        ids_add(seq, 0);
    if (n)
        memcpy(seq->v + old, ids, (size_t)bytes);
    return true;
}

int sequence_load(struct db *d, const char *session, int n, struct ids *seq)
{
    seq->n = 0;
    sqlite3_stmt *st = db_cached(d, "SELECT role = 'user', shared, tokens FROM turn"
                                 " WHERE session_id=? AND n<=? ORDER BY n, role DESC", "si",
                                 session, (int64_t)n);
    int rc;
    while (db_row(d, st, &rc))
        if (!sequence_next(seq, sqlite3_column_int(st, 0), sqlite3_column_int64(st, 1),
                           sqlite3_column_blob(st, 2), sqlite3_column_bytes(st, 2)))
            seq->n = 0; /* a damaged row, which chain_verify() reports; continue without it */
    return rc;
}

int turn_index(struct db *d, int64_t row, const char *was, const char *text, size_t n)
{
    return (was ? db_do(d, "INSERT INTO turn_fts(turn_fts, rowid, text) VALUES('delete',?,?)",
                        "is", row, was)
                : SQLITE_OK) ?:
           db_do(d, "INSERT INTO turn_fts(rowid, text) VALUES(?,?)", "it", row, text, n);
}

/* ---- names ---- */

int op_parse(const char *s)
{
    for (int i = 0; i <= OP_FORMAT; i++)
        if (strcmp(s, op_name((enum op_kind)i)) == 0)
            return i;
    return -1;
}

enum stop_reason stop_parse(const char *s)
{
    for (int i = 0; i <= STOP_OPEN; i++)
        if (strcmp(s, stop_name((enum stop_reason)i)) == 0)
            return (enum stop_reason)i;
    return STOP_CRASHED;
}

/* ---- copying and freeing ---- */

void turn_row_copy(struct turn_row *dst, const struct turn_row *src)
{
    *dst = *src;
    dst->text = xmalloc(src->text_n + 1);
    memcpy(dst->text, src->text ? src->text : "", src->text ? src->text_n : 0);
    dst->text[src->text_n] = '\0';
    dst->tokens = (struct ids){0};
    ids_cat(&dst->tokens, src->tokens.v, src->tokens.n);
    dst->sampling = xstrdup(src->sampling ? src->sampling : "");
    dst->snippet = NULL;
    dst->served = served_copy(src->served);
}

void session_row_free(struct session_row *r)
{
    FREE(r->title, r->model);
    *r = (struct session_row){0};
}

void turn_row_free(struct turn_row *r)
{
    free(r->text);
    ids_free(&r->tokens);
    FREE(r->sampling, r->snippet);
    served_free(r->served);
    *r = (struct turn_row){0};
}

void step_row_copy(struct step_row *dst, const struct step_row *src)
{
    *dst = *src;
    dst->tokens = (struct ids){0};
    ids_cat(&dst->tokens, src->tokens.v, src->tokens.n);
    dst->facts = facts_copy(src->facts, src->tokens.n);
    dst->tops = tops_copy(src->tops);
    dst->tree = xcopy(src->tree, 1, sizeof *src->tree);
    dst->pages = (struct buf){0};
    buf_add(&dst->pages, src->pages.p, src->pages.n);
}

void step_row_free(struct step_row *r)
{
    ids_free(&r->tokens);
    free(r->facts);
    tops_free(r->tops);
    free(r->tree);
    buf_free(&r->pages);
    *r = (struct step_row){0};
}

void op_row_free(struct op_row *r)
{
    free(r->text);
    ids_free(&r->turns);
    *r = (struct op_row){0};
}
