/* canary.c - see canary.h. */
#include "engine/tools/canary.h"
#include "kernels/ascii.h"

#include <errno.h>

enum { LINE = 1 << 16, FIELD = 64 };

static const struct {
    const char *name;
    int bit;
} reasons[CANARY_REASONS] = {
    {"verify_chain_hash", CANARY_CHAIN}, {"verify_position", CANARY_POSITION},
    {"verify_real_kv_hash", CANARY_REAL_KV}, {"write_token", CANARY_WRITE_TOKEN},
    {"write_position", CANARY_WRITE_POSITION}, {"verify_token", CANARY_TOKEN},
};

/* ---- one line -------------------------------------------------------------------------------- */

/* The value behind "KEY=" up to a blank; false: there is none, or it is too long. */
static bool field(const char *s, const char *end, const char *key, char out[FIELD])
{
    size_t n = strlen(key);
    for (; (size_t)(end - s) > n + 1; s++) {
        if (memcmp(s, key, n) != 0 || s[n] != '=')
            continue;
        size_t k = 0;
        for (s += n + 1; s < end && *s > ' ' && *s <= '~'; s++) {
            if (k == FIELD - 1)
                return false;
            out[k++] = *s;
        }
        out[k] = '\0';
        return k > 0;
    }
    return false;
}

static bool whole(const char *s, const char *end, const char *key, int64_t *out)
{
    char text[FIELD], *stop;
    if (!field(s, end, key, text) || (text[0] != '-' && (text[0] < '0' || text[0] > '9')))
        return false;
    errno = 0;
    long long v = strtoll(text, &stop, 10);
    *out = v;
    return !*stop && !errno;
}

static bool hash(const char *s, const char *end, const char *key, uint64_t *out)
{
    char text[FIELD], *stop;
    if (!field(s, end, key, text) || strncmp(text, "0x", 2) != 0)
        return false;
    errno = 0;
    *out = strtoull(text + 2, &stop, 16);
    return text[2] && !*stop && !errno;
}

static bool read_reasons(const char *text, int *bits)
{
    *bits = 0;
    for (const char *s = text; *s;) {
        size_t n = strcspn(s, "+");
        int before = *bits;
        for (int i = 0; i < CANARY_REASONS; i++)
            if (strlen(reasons[i].name) == n && memcmp(reasons[i].name, s, n) == 0)
                *bits |= reasons[i].bit;
        if (*bits == before)
            return false;
        s += n + (s[n] == '+');
    }
    return *bits != 0;
}

static bool read_tag(const char *text, struct canary_line *l)
{
    size_t n = strlen(text);
    if (n >= sizeof l->tag)
        return false;
    memcpy(l->tag, text, n + 1);
    if (ends_with(text, "_FULL"))
        l->pool = POOL_FULL;
    else if (ends_with(text, "_SWA"))
        l->pool = POOL_SWA;
    else
        return false;
    return true;
}

bool canary_take(const char *text, size_t n, struct canary_line *out, bool *damaged)
{
    static const char name[] = "kv_canary ", what[] = "violation: ";
    const char *end = text + n, *s = n ? memmem(text, n, name, sizeof name - 1) : NULL;
    char tag[FIELD];
    *damaged = false;
    *out = (struct canary_line){0};
    if (!s || (size_t)(end - s) < sizeof name + sizeof what ||
        memcmp(s + sizeof name - 1, what, sizeof what - 1) != 0)
        return false;
    s += sizeof name + sizeof what - 2;
    /* fail_reason may have all six, which are longer than a field */
    char all[256];
    const char *r = memmem(s, (size_t)(end - s), "fail_reason=", 12);
    size_t k = 0;
    for (r = r ? r + 12 : end; r < end && *r > ' ' && k < sizeof all - 1; r++)
        all[k++] = *r;
    all[k] = '\0';
    bool ok = field(s, end, "launch_tag", tag) && read_tag(tag, out) &&
              read_reasons(all, &out->reasons) && whole(s, end, "slot_idx", &out->slot) &&
              whole(s, end, "position", &out->position) &&
              whole(s, end, "stored_token", &out->stored_token) &&
              whole(s, end, "expected_token", &out->expected_token) &&
              hash(s, end, "stored_chain_hash", &out->stored_hash) &&
              hash(s, end, "expected_aux", &out->expected_aux) && out->slot >= 0;
    *damaged = !ok;
    return ok;
}

/* ---- a file ---------------------------------------------------------------------------------- */

bool canary_is(const char *path)
{
    char head[4096];
    struct err e;
    int fd = file_open_regular(path, &e);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    if (f)
        fclose(f);
    return n > 0 && !memchr(head, '\0', n) && !(n > 3 && memcmp(head, "PK\3\4", 4) == 0);
}

static void add_text(struct canary *c, const char *text, size_t n)
{
    static const char full[] = "ring_overflow=True";
    struct canary_line l;
    bool damaged;
    c->overflowed |= n >= sizeof full - 1 && memmem(text, n, full, sizeof full - 1) != NULL;
    if (!canary_take(text, n, &l, &damaged)) {
        c->damaged += damaged && c->damaged < INT32_MAX;
        return;
    }
    l.line = c->lines;
    if (c->total++ >= CANARY_LINES)
        return;
    *APPEND(c->v, c->n) = l;
}

bool canary_read(struct canary *c, const char *path, const struct stop *stop, struct err *e)
{
    int fd = file_open_regular(path, e), ch;
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    *c = (struct canary){0};
    if (!f)
        return false;
    char *line = xmalloc(LINE);
    size_t n = 0;
    do {
        ch = getc_unlocked(f);
        if (ch != '\n' && ch != EOF) {
            if (n < LINE) /* what stands behind is not of the line */
                line[n++] = (char)ch;
            continue;
        }
        c->lines++;
        add_text(c, line, n);
        n = 0;
    } while (ch != EOF && !((c->lines & 1023) == 0 && stop_asked(stop)));
    bool ok = !ferror(f) || err_set(e, ERR_USAGE, "cannot read %.200s: %s", path, strerror(errno));
    free(line);
    fclose(f);
    if (ok && c->n == 0)
        ok = err_set(e, ERR_USAGE, "%.200s has no line \"kv_canary violation: ...\"%s", path,
                     c->damaged ? " that is whole" : "");
    if (!ok)
        canary_free(c);
    return ok;
}

void canary_free(struct canary *c)
{
    free(c->v);
    *c = (struct canary){0};
}

/* ---- what it says ---------------------------------------------------------------------------- */

void canary_reasons(int bits, struct buf *out)
{
    bool first = true;
    for (int i = 0; i < CANARY_REASONS; i++)
        if (bits & reasons[i].bit) {
            buf_printf(out, "%s%s", first ? "" : "+", reasons[i].name);
            first = false;
        }
}

const char *canary_means(const struct canary_line *l)
{
    if (l->reasons & (CANARY_WRITE_POSITION | CANARY_WRITE_TOKEN))
        return "I9: the row writes another position or token than its request has there";
    if (l->reasons & (CANARY_POSITION | CANARY_CHAIN | CANARY_TOKEN))
        return l->pool == POOL_SWA
                   ? "I15: the cell holds other tokens; of the sliding pool look at the map first "
                   "(I4)" : "I15: the cell holds another position or other tokens than the request";
    return "no rule of plans: bytes changed while their record stayed, a write outside of the plan";
}

static uint64_t stir(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

uint64_t canary_next(uint64_t prev, int64_t token, int64_t position)
{
    return stir(stir(stir(prev) ^ (uint64_t)token) ^ (uint64_t)position);
}

int canary_piece(const struct canary *c, int i)
{
    int n = 1;
    for (; i + n < c->n; n++) {
        const struct canary_line *a = &c->v[i + n - 1], *b = &c->v[i + n];
        if (strcmp(a->tag, b->tag) != 0 || b->position != a->position + 1 ||
            canary_next(a->stored_hash, a->stored_token, a->position) != b->stored_hash)
            break;
    }
    return n;
}
