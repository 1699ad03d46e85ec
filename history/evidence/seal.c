/* seal.c - the key that seals heads (head.c), and HMAC-SHA-256 (RFC 2104, FIPS 198-1) over them.
 *
 * One key a process; it is set before the first log is opened. A seal binds the number of a head
 * and its chain, and so everything recorded before.
 */
#include "history/internal.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 64, SUM = 32, LEAST = 16, MOST = 4096 };

static uint8_t the_key[MOST];
static size_t n_key; /* 0: none */

void hmac_sha256(const void *key, size_t n_key_bytes, const void *p, size_t n, uint8_t out[32])
{
    uint8_t block[BLOCK] = {0}, inner[SUM];
    struct sha256 s;
    if (n_key_bytes > BLOCK) {
        sha256_init(&s);
        sha256_add(&s, key, n_key_bytes);
        sha256_end(&s, block);
    } else if (n_key_bytes) {
        memcpy(block, key, n_key_bytes);
    }
    for (int i = 0; i < BLOCK; i++)
        block[i] ^= 0x36;
    sha256_init(&s);
    sha256_add(&s, block, BLOCK);
    sha256_add(&s, p, n);
    sha256_end(&s, inner);
    for (int i = 0; i < BLOCK; i++)
        block[i] ^= 0x36 ^ 0x5c;
    sha256_init(&s);
    sha256_add(&s, block, BLOCK);
    sha256_add(&s, inner, SUM);
    sha256_end(&s, out);
    explicit_bzero(block, sizeof block);
}

/* Whether only the owner may read the file. */
static bool is_private(int fd, const char *file, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_set(e, ERR_USAGE, "cannot read the key %s: %s", file, strerror(errno));
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return err_set(e, ERR_USAGE, "the key %s belongs to another user; expected one of yours",
                       file);
    return !(st.st_mode & 077) ||
           err_set(e, ERR_USAGE, "the key %s can be read by others (mode %03o); expected 600: "
                                 "chmod 600",
                   file, (unsigned)(st.st_mode & 0777));
}

bool history_seal_with(const char *file, struct err *e)
{
    n_key = 0;
    if (!file)
        return true;
    int fd = file_open_regular(file, e);
    if (fd < 0)
        return false;
    size_t n = 0;
    ssize_t got = 1;
    uint8_t bytes[MOST + 1];
    bool ok = is_private(fd, file, e);
    while (ok && n < sizeof bytes && (got = read(fd, bytes + n, sizeof bytes - n)) != 0)
        if (got > 0)
            n += (size_t)got;
        else if (errno != EINTR)
            ok = err_set(e, ERR_USAGE, "cannot read the key %s: %s", file, strerror(errno));
    close(fd);
    if (ok && (n < LEAST || n > MOST))
        ok = err_set(e, ERR_USAGE, "the key %s has %s; expected %d to %d random bytes", file,
                     n > MOST ? "more than 4096 bytes" : "too few bytes", LEAST, MOST);
    if (ok) {
        memcpy(the_key, bytes, n);
        n_key = n;
    }
    explicit_bzero(bytes, sizeof bytes);
    return ok;
}

bool seal_has_key(void)
{
    return n_key > 0;
}

bool seal_of_head(int64_t n, const uint8_t chain[32], uint8_t out[32])
{
    static const char name[] = "aerie head 1";
    uint8_t text[sizeof name + 8 + SUM];
    if (!n_key)
        return false;
    memcpy(text, name, sizeof name);
    for (int i = 0; i < 8; i++)
        text[sizeof name + i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(text + sizeof name + 8, chain, SUM);
    hmac_sha256(the_key, n_key, text, sizeof text, out);
    return true;
}

bool seal_of_head_matches(int64_t n, const uint8_t chain[32], const void *seal, int n_seal)
{
    uint8_t want[SUM];
    unsigned differ = 0;
    if (!seal || !seal_of_head(n, chain, want))
        return true;
    if (n_seal != SUM)
        return false;
    for (int i = 0; i < SUM; i++)
        differ |= (unsigned)(want[i] ^ ((const uint8_t *)seal)[i]);
    return differ == 0;
}

bool seal_fits(struct db *d, struct err *e)
{
    sqlite3_stmt *st = n_key
                           ? db_prepare(d, e, "SELECT n, chain, seal FROM head WHERE seal NOT NULL"
                                          " ORDER BY n DESC LIMIT 1", "") : NULL;
    if (!st)
        return n_key == 0;
    int rc = sqlite3_step(st);
    bool fits = rc != SQLITE_ROW ||
                (sqlite3_column_bytes(st, 1) == SUM &&
                 seal_of_head_matches(sqlite3_column_int64(st, 0), sqlite3_column_blob(st, 1),
                                      sqlite3_column_blob(st, 2), sqlite3_column_bytes(st, 2)));
    bool ok = rc == SQLITE_ROW || rc == SQLITE_DONE || db_fail(d, e, "cannot read");
    sqlite3_finalize(st);
    if (ok && !fits)
        return err_set(e, ERR_DB, "%s is sealed with another key, or its last seal was changed; "
                                  "aerie db check --seal says more", d->path);
    return ok;
}

bool seal_is_missing(struct db *d)
{
    int64_t sealed = 0;
    return !n_key && db_int(d, &sealed, 0, "SELECT seal NOT NULL FROM head ORDER BY n DESC LIMIT 1",
                            "") == SQLITE_OK &&
           sealed;
}
