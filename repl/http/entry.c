/* entry.c - see entry.h. */
#include "repl/http/entry.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include "kernels/ascii.h"

/* ---- places ---------------------------------------------------------------------------------- */

int entry_places(const struct http_entry *e)
{
    return e->o->connections ? e->o->connections : PLACES;
}

static void count_open(struct http_entry *e, const struct door *d, int by)
{
    e->n += by;
    e->n_strangers += d->known ? 0 : by;
}

/* libmicrohttpd finds the end of the connection, and closes it. */
static void shut(struct http_entry *e, struct door *d)
{
    d->shut = true;
    count_open(e, d, -1);
    *(d->prev ? &d->prev->next : &e->doors) = d->next;
    if (d->next)
        d->next->prev = d->prev;
    d->prev = d->next = NULL;
    shutdown(d->fd, SHUT_RDWR);
}

static bool same_address(const struct door *a, const struct door *b)
{
    return memcmp(&a->from, &b->from, sizeof a->from) == 0;
}

/* The connection that has waited longest, perhaps the newcomer; known: of all, else of the
 * strangers; here: of those from the newcomer's address. */
static struct door *longest_waiting(const struct http_entry *e, struct door *newcomer, bool here,
                                    bool known)
{
    struct door *found = newcomer;
    for (struct door *d = e->doors; d; d = d->next)
        if (d->waits && (known || !d->known) && (!here || same_address(d, newcomer)) &&
            d->since < found->since)
            found = d;
    return found;
}

static int strangers_from(const struct http_entry *e, const struct door *from)
{
    int n = 0;
    for (struct door *d = e->doors; d; d = d->next)
        n += !d->known && same_address(d, from);
    return n;
}

static void make_place(struct http_entry *e, struct door *d)
{
    if (strangers_from(e, d) > max_int(1, entry_places(e) / 8))
        shut(e, longest_waiting(e, d, true, false));
    else if (e->n_strangers > max_int(1, entry_places(e) / 2))
        shut(e, longest_waiting(e, d, false, false));
    else if (e->n > entry_places(e))
        shut(e, longest_waiting(e, d, false, true));
}

static void read_address(const struct sockaddr *a, struct in6_addr *out)
{
    *out = (struct in6_addr){0};
    if (a && a->sa_family == AF_INET6) {
        *out = ((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    } else if (a && a->sa_family == AF_INET) {
        out->s6_addr[10] = out->s6_addr[11] = 0xFF;
        memcpy(out->s6_addr + 12, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
    }
}

struct door *door_open(struct http_entry *e, int fd, const struct sockaddr *from)
{
    struct door *d = xcalloc(1, sizeof *d);
    d->fd = fd;
    read_address(from, &d->from);
    d->next = e->doors;
    if (e->doors)
        e->doors->prev = d;
    e->doors = d;
    count_open(e, d, 1);
    door_waits(e, d);
    make_place(e, d);
    return d;
}

void door_close(struct http_entry *e, struct door *d)
{
    if (!d->shut)
        shut(e, d);
    free(d);
}

void door_known(struct http_entry *e, struct door *d)
{
    if (d->known || d->shut)
        return;
    d->known = true;
    e->n_strangers--;
}

/* ---- time ------------------------------------------------------------------------------------ */

void door_waits(const struct http_entry *e, struct door *d)
{
    d->waits = true;
    d->since = clock_ns();
    int s = d->known ? NEXT_S : e->o->head_s ? e->o->head_s : HEAD_S;
    d->until = d->since + (uint64_t)s * 1000000000;
}

void door_received(struct door *d, size_t n)
{
    d->until += (uint64_t)n * 1000000000 / BODY_RATE;
}

void door_served(struct door *d)
{
    d->waits = false;
}

int entry_look(struct http_entry *e, int ms)
{
    uint64_t now = clock_ns();
    for (struct door *d = e->doors, *next; d; d = next) {
        next = d->next;
        if (d->waits && d->until <= now)
            shut(e, d);
        else if (d->waits && (d->until - now) / 1000000 < (uint64_t)ms)
            ms = (int)((d->until - now) / 1000000) + 1;
    }
    return ms;
}

/* ---- heads ----------------------------------------------------------------------------------- */

static const char *const names[ASKED_FIELDS] = {
    "Host", "Content-Length", "Transfer-Encoding", "Content-Type", "Authorization", "Origin"};

void asked_add(struct asked *h, const char *name, const char *value)
{
    static const char token[] = "!#$%&'*+-.^_`|~0123456789"
                                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    h->odd_name |= !*name || name[strspn(name, token)];
    for (int i = 0; i < ASKED_FIELDS; i++)
        if (ascii_same(name, names[i]) && h->n[i]++ == 0)
            h->value[i] = value;
}

static bool is_proper(const struct asked *h, struct refusal *r)
{
    const char *length = h->value[ASKED_LENGTH], *coding = h->value[ASKED_CODING];
    if (h->odd_name)
        return refuse(r, 400, NULL, "the name of a header has a character that names may not have");
    for (int i = 0; i < ASKED_FIELDS; i++)
        if (h->n[i] > 1)
            return refuse(r, 400, NULL, "the request has %d headers %s; expected at most one",
                          h->n[i], names[i]);
    if (!h->value[ASKED_HOST] && h->http11)
        return refuse(r, 400, NULL, "the request has no header Host, which HTTP/1.1 asks for");
    if (coding && (!h->http11 || !ascii_same(coding, "chunked")))
        return refuse(r, 400, NULL, "Transfer-Encoding is \"%.40s\"; expected chunked, in HTTP/1.1",
                      coding);
    if (length && coding)
        return refuse(r, 400, NULL, "the request has both Content-Length and Transfer-Encoding");
    if (length && (!*length || length[strspn(length, "0123456789")]))
        return refuse(r, 400, NULL, "Content-Length is \"%.40s\"; expected digits", length);
    return true;
}

/* Compares in constant time, wherever the two differ. */
static bool same_key(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned char differ = n != m;
    for (size_t i = 0; i < m; i++)
        differ |= (unsigned char)(b[i] ^ (n ? a[i % n] : 1));
    return !differ;
}

static bool shows_key(const struct http_entry *e, const struct asked *h)
{
    const char *said = h->value[ASKED_KEY];
    bool bearer = said && ascii_same_n(said, "Bearer ", 7);
    return same_key(bearer ? said + 7 : "", e->o->key);
}

/* Against DNS rebinding: a web page whose host name was made to resolve to this address must not
 * reach a server without a key. */
static bool host_is_here(const struct http_entry *e, const struct asked *h)
{
    const char *host = h->value[ASKED_HOST];
    char name[64];
    struct in_addr a4;
    if (!host || e->o->key)
        return true;
    if (*host == '[')
        return true; /* a number, no name */
    size_t n = strcspn(host, ":");
    snprintf(name, sizeof name, "%.*s", (int)(n < 63 ? n : 63), host);
    return ascii_same(name, "localhost") || inet_pton(AF_INET, name, &a4) == 1;
}

bool entry_is_cors(const struct http_entry *e, const struct asked *h)
{
    const char *origin = h->value[ASKED_ORIGIN];
    return origin && e->o->cors && strcmp(origin, e->o->cors) == 0;
}

/* A page in a browser may send any request to this address that needs no permission of the
 * server: a form, or text. Its Origin says so. */
static bool origin_is_foreign(const struct http_entry *e, const struct asked *h)
{
    const char *origin = h->value[ASKED_ORIGIN], *host = h->value[ASKED_HOST];
    if (!origin || entry_is_cors(e, h))
        return false;
    const char *name = ascii_same_n(origin, "http://", 7)    ? origin + 7
                       : ascii_same_n(origin, "https://", 8) ? origin + 8
                                                             : NULL;
    return !name || !host || !ascii_same(name, host);
}

bool entry_admits(const struct http_entry *e, const struct asked *h, bool *known, struct refusal *r)
{
    bool reads = !strcmp(h->method, "GET") || !strcmp(h->method, "HEAD");
    *known = false;
    if (!is_proper(h, r))
        return false;
    if (!host_is_here(e, h))
        return refuse(r, 403, NULL,
                      "this server has no key and answers to localhost or an address only");
    if (!reads && origin_is_foreign(e, h))
        return refuse(r, 403, NULL, "a page of %.80s may not ask this server; --cors ORIGIN lets "
                      "one origin ask", h->value[ASKED_ORIGIN]);
    *known = !e->o->key || shows_key(e, h);
    return *known || h->open ||
           refuse(r, 401, NULL, "the key is missing or wrong; expected Authorization: Bearer KEY");
}
