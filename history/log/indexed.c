/* indexed.c - which part of a text the full-text index has: its first INDEXED_BYTES.
 *
 * FTS5 adds one row's text in one call, which nothing can interrupt, and which takes a second for a
 * few megabytes of different words. So the log's tokenizer, unicode61, is replaced by one of the
 * same name that reads no further. Adding, deleting, checking and quoting a row all use it, so they
 * agree.
 */
#include "history/internal.h"

enum { INDEXED_BYTES = 1 << 20 };

/* SQLite's own tokenizer, of one connection. */
struct inner {
    fts5_tokenizer fn;
    void *arg;
};

/* A tokenizer of ours. */
struct bounded {
    const struct inner *inner;
    Fts5Tokenizer *of;
};

static int create(void *arg, const char **word, int n, Fts5Tokenizer **out)
{
    struct inner *inner = arg;
    struct bounded *b = xcalloc(1, sizeof *b);
    b->inner = inner;
    int rc = inner->fn.xCreate(inner->arg, word, n, &b->of);
    if (rc)
        free(b);
    else
        *out = (Fts5Tokenizer *)b;
    return rc;
}

static void delete(Fts5Tokenizer *t)
{
    FREED(free_at) struct bounded *b = (struct bounded *)t;
    b->inner->fn.xDelete(b->of);
}

static int tokenize(Fts5Tokenizer *t, void *arg, int flags, const char *text, int n,
                    int (*token)(void *arg, int flags, const char *text, int n, int from, int to))
{
    const struct bounded *b = (const struct bounded *)t;
    if (n > INDEXED_BYTES)
        for (n = INDEXED_BYTES; n > INDEXED_BYTES - 4 && ((uint8_t)text[n] & 0xC0) == 0x80;)
            n--; /* not inside a character */
    return b->inner->fn.xTokenize(b->of, arg, flags, text, n, token);
}

bool index_bound(struct db *d, struct err *e)
{
    sqlite3_stmt *st = NULL;
    fts5_api *api = NULL;
    struct inner *inner = xcalloc(1, sizeof *inner);
    fts5_tokenizer ours = {create, delete, tokenize};
    int rc = sqlite3_prepare_v2(d->h, "SELECT fts5(?1)", -1, &st, NULL);
    if (!rc) {
        sqlite3_bind_pointer(st, 1, &api, "fts5_api_ptr", NULL);
        sqlite3_step(st);
    }
    sqlite3_finalize(st);
    bool ok = api && api->xFindTokenizer(api, "unicode61", &inner->arg, &inner->fn) == SQLITE_OK &&
              api->xCreateTokenizer(api, "unicode61", inner, &ours, free) == SQLITE_OK;
    if (ok)
        return true;
    free(inner);
    return err_set(e, ERR_DB, "this SQLite has no full-text index (FTS5)");
}
