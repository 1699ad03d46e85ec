/* http.c - libcurl's multi interface: see http.h. */
#include "engine/remote/http.h"

#include <curl/curl.h>
#include <limits.h>

#include "engine/remote/answer.h"
#include "kernels/ascii.h"
#include "kernels/late.h"

/* the functions of libcurl, which the first http_open() loads */
#define CURL_CALLS(X) \
    X(easy_cleanup) X(easy_getinfo) X(easy_init) X(easy_setopt) X(easy_strerror) X(free) \
    X(global_init_mem) X(multi_add_handle) X(multi_cleanup) X(multi_info_read) X(multi_init) \
    X(multi_perform) X(multi_poll) X(multi_remove_handle) X(multi_wakeup) X(slist_append) \
    X(slist_free_all) X(url) X(url_cleanup) X(url_get) X(url_set)
#define POINTER(name) __typeof__(curl_##name) *name;
#define NAME(name) "curl_" #name,
static struct {
    CURL_CALLS(POINTER)
} curl;
static const char *const curl_names[] = {CURL_CALLS(NAME)};

enum { SHOWN = 160, HTTP_CALLS = 64 }; /* bytes of an error's body in a message */

struct http {
    CURLM *multi;
    struct curl_slist *headers;
    char *url, *shown; /* shown: without user and password */
    const char *warning;
    bool answered; /* some request got an answer, of whatever status */
    struct http_opts opts;
    struct http_call *call[HTTP_CALLS]; /* (n) begun and not ended */
    int n;
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_loopback(const char *host)
{
    return !strcmp(host, "localhost") || !strncmp(host, "127.", 4) || !strcmp(host, "[::1]");
}

/* Removes slashes and "/v1" at the end of an address: addresses for clients of the OpenAI API have
 * it, but here the paths do. */
static char *trim_url(const char *text)
{
    size_t n = strlen(text);
    for (int i = 0; i < 2; i++) {
        while (n && text[n - 1] == '/')
            n--;
        if (i == 0 && n > 3 && !strncmp(text + n - 3, "/v1", 3))
            n -= 3;
    }
    return xasprintf("%.*s", (int)n, text);
}

/* Splits and checks the address; fills url, shown and warning. */
static bool read_url(struct http *http, const char *text, bool key, struct err *e)
{
    http->url = trim_url(text);
    CURLU *u = curl.url();
    char *scheme = NULL, *host = NULL, *shown = NULL;
    bool ok = u && curl.url_set(u, CURLUPART_URL, http->url, 0) == CURLUE_OK &&
              curl.url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              curl.url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
              (!strcmp(scheme, "http") || !strcmp(scheme, "https"));
    if (!ok)
        err_set(e, ERR_USAGE, "\"%.200s\" is no address of a server; expected http://HOST:PORT",
                text);
    if (ok) {
        curl.url_set(u, CURLUPART_USER, NULL, 0);
        curl.url_set(u, CURLUPART_PASSWORD, NULL, 0);
        curl.url_set(u, CURLUPART_QUERY, NULL, 0); /* some servers take keys there */
        curl.url_set(u, CURLUPART_FRAGMENT, NULL, 0);
        curl.url_get(u, CURLUPART_URL, &shown, 0);
        http->shown = xstrdup(shown ? shown : "?");
        if (!strcmp(scheme, "http") && !is_loopback(host))
            http->warning = key ? "the key and the conversation travel unencrypted (http to "
            "another machine)"
                             : "the conversation travels unencrypted (http to another machine)";
    }
    curl.free(scheme);
    curl.free(host);
    curl.free(shown);
    curl.url_cleanup(u);
    return ok;
}

static bool is_header(const char *s)
{
    const char *colon = strchr(s, ':');
    if (!colon || colon == s)
        return false;
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 127 || (s < colon && *s == ' '))
            return false;
    return true;
}

static bool add_headers(struct http *http, const struct http_opts *opts, struct err *e)
{
    for (int i = 0; i < opts->n_header; i++) {
        if (!is_header(opts->header[i]))
            return err_set(e, ERR_USAGE, "\"%.100s\" is no header; expected \"Name: value\"",
                           opts->header[i]);
        http->headers = curl.slist_append(http->headers, opts->header[i]);
    }
    if (opts->key) {
        FREED(free_at) char *line = xasprintf("Authorization: Bearer %s", opts->key);
        if (!is_header(line))
            return err_set(e, ERR_USAGE, "the key has a character that no header can hold");
        http->headers = curl.slist_append(http->headers, line);
    }
    http->headers = curl.slist_append(http->headers, "Content-Type: application/json");
    http->headers = curl.slist_append(http->headers, "Expect:");
    return true;
}

static void *resize(void *p, size_t n)
{
    return xrealloc(p, n, 1);
}

bool http_open(struct http **out, const struct http_opts *opts, struct err *e)
{
    static bool once; /* before the first thread */
    int n = (int)(LEN(curl_names));
    if (!once && !late_load(LIBCURL, curl_names, &curl, n, e))
        return false;
    if (!once && curl.global_init_mem(CURL_GLOBAL_DEFAULT, xmalloc, free, resize, xstrdup,
                                      xcalloc) != CURLE_OK)
        return err_set(e, ERR_MODEL, "libcurl cannot start");
    once = true;
    struct http *http = xcalloc(1, sizeof *http);
    http->opts = *opts;
    http->opts.connect_ms = opts->connect_ms ? opts->connect_ms : 10000;
    http->opts.first_ms = opts->first_ms ? opts->first_ms : 600000;
    http->opts.silence_ms = opts->silence_ms ? opts->silence_ms : 120000;
    http->multi = curl.multi_init();
    if (!http->multi || !read_url(http, opts->url, opts->key != NULL, e) ||
        !add_headers(http, opts, e)) {
        if (!http->multi)
            err_set(e, ERR_MODEL, "libcurl cannot start");
        http_close(http);
        return false;
    }
    *out = http;
    return true;
}

void http_close(struct http *http)
{
    if (!http)
        return;
    curl.multi_cleanup(http->multi);
    curl.slist_free_all(http->headers);
    FREE(http->url, http->shown, http);
}

const char *http_warning(const struct http *http) { return http->warning; }
const char *http_url(const struct http *http) { return http->shown; }
void http_wake(struct http *http) { curl.multi_wakeup(http->multi); }

/* ---- a request ------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3)))
static void fail(struct http_call *call, const char *fmt, ...)
{
    char text[400];
    PRINT_ARGS(text, fmt);
    if (!call->failed)
        err_set(&call->why, ERR_MODEL, "%s", text);
    call->failed = call->done = true;
}

/* The value of a header line "name: value\r\n"; NULL: it is another header. */
static const char *header_is(const char *line, size_t n, const char *name, size_t *len)
{
    size_t k = strlen(name);
    if (n <= k || line[k] != ':' || !ascii_same_n(line, name, k))
        return NULL;
    const char *v = line + k + 1, *end = line + n;
    while (v < end && ascii_space(*v))
        v++;
    while (end > v && ascii_space(end[-1]))
        end--;
    *len = (size_t)(end - v);
    return v;
}

static void copy_value(char *out, size_t room, const char *v, size_t n)
{
    snprintf(out, room, "%.*s", (int)(n < room ? n : room - 1), v);
}

static size_t on_header(char *line, size_t, size_t n, void *arg)
{
    struct http_call *call = arg;
    size_t len;
    const char *v;
    if (n > 5 && ascii_same_n(line, "HTTP/", 5)) { /* a new answer: 100, or after a proxy's own */
        call->type[0] = call->agent[0] = call->moved[0] = '\0';
        call->retry_s = -1;
        call->first = -1;
    } else if ((v = header_is(line, n, "content-range", &len))) {
        char told[64];
        copy_value(told, sizeof told, v, len);
        if (ascii_same_n(told, "bytes ", 6) && ascii_digit(told[6]))
            call->first = strtoll(told + 6, NULL, 10);
    } else if ((v = header_is(line, n, "content-type", &len))) {
        size_t stop = 0;
        while (stop < len && v[stop] != ';' && v[stop] != ' ')
            stop++;
        copy_value(call->type, sizeof call->type, v, stop);
        for (char *p = call->type; *p; p++)
            *p = ascii_lower(*p);
    } else if ((v = header_is(line, n, "server", &len))) {
        copy_value(call->agent, sizeof call->agent, v, len);
    } else if ((v = header_is(line, n, "location", &len))) {
        copy_value(call->moved, sizeof call->moved, v, len);
    } else if ((v = header_is(line, n, "retry-after", &len))) {
        char told[12];
        const char *at = told;
        copy_value(told, sizeof told, v, len);
        if (!int_at(&at, &call->retry_s) || call->retry_s < 0) /* a date, for example */
            call->retry_s = -1;
    }
    return n;
}

static size_t on_body(char *p, size_t, size_t n, void *arg)
{
    struct http_call *call = arg;
    long status = 0;
    curl.easy_getinfo(call->own, CURLINFO_RESPONSE_CODE, &status);
    call->n_bytes += n;
    call->ns_last = clock_ns();
    if (!call->ns_first)
        call->ns_first = call->ns_last;
    if (stop_asked(call->stop)) {
        fail(call, "stopped");
        return 0;
    }
    if (call->bytes && (status == 200 || (status == 206 && call->from))) {
        struct err e;
        if (call->n_bytes > (call->most ? call->most : HTTP_STREAM)) {
            fail(call, "the server's answer is longer than %llu GiB",
                 (unsigned long long)(call->most ? call->most : HTTP_STREAM) >> 30);
            return 0;
        }
        if (call->bytes(call->arg, p, n, &e))
            return n;
        fail(call, "%s", e.msg);
        return 0;
    }
    if (call->answer.n + n > HTTP_BODY) {
        fail(call, "the server's answer is longer than %d MiB", HTTP_BODY >> 20);
        return 0;
    }
    buf_add(&call->answer, p, n);
    return n;
}

void http_begin(struct http *http, struct http_call *call)
{
    CURL *q = curl.easy_init();
    CHECK(q);
    call->own = q;
    call->done = call->failed = call->unsent = false;
    call->status = 0;
    call->retry_s = -1;
    call->first = -1;
    call->ns_begin = clock_ns();
    call->ns_first = call->ns_last = call->ns_end = call->n_bytes = 0;
    buf_clear(&call->answer);
    char *url = xasprintf("%s%s", http->url, call->path);
    curl.easy_setopt(q, CURLOPT_URL, url);
    free(url); /* libcurl has copied it */
    curl.easy_setopt(q, CURLOPT_PRIVATE, call);
    curl.easy_setopt(q, CURLOPT_HTTPHEADER, http->headers);
    curl.easy_setopt(q, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(q, CURLOPT_PROTOCOLS_STR, "http,https");
    curl.easy_setopt(q, CURLOPT_FOLLOWLOCATION, 0L);
    curl.easy_setopt(q, CURLOPT_ACCEPT_ENCODING, call->as_stored ? "identity" : "");
    if (call->from) {
        char range[24];
        snprintf(range, sizeof range, "%llu-", (unsigned long long)call->from);
        curl.easy_setopt(q, CURLOPT_RANGE, range);
    }
    curl.easy_setopt(q, CURLOPT_TCP_NODELAY, 1L);
    curl.easy_setopt(q, CURLOPT_USERAGENT, "aerie/" AERIE_VERSION);
    curl.easy_setopt(q, CURLOPT_CONNECTTIMEOUT_MS, (long)http->opts.connect_ms);
    curl.easy_setopt(q, CURLOPT_HEADERFUNCTION, on_header);
    curl.easy_setopt(q, CURLOPT_HEADERDATA, call);
    curl.easy_setopt(q, CURLOPT_WRITEFUNCTION, on_body);
    curl.easy_setopt(q, CURLOPT_WRITEDATA, call);
    if (strcmp(call->method, "GET") != 0)
        curl.easy_setopt(q, CURLOPT_CUSTOMREQUEST, call->method);
    if (call->body) {
        curl.easy_setopt(q, CURLOPT_POSTFIELDS, call->body);
        curl.easy_setopt(q, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(call->body));
        /* libcurl would send the request again if a connection that was kept open turned out to be
         * closed */
        curl.easy_setopt(q, CURLOPT_FRESH_CONNECT, 1L);
    }
    CHECK(http->n < HTTP_CALLS);
    http->call[http->n++] = call;
    CURLMcode rc = curl.multi_add_handle(http->multi, q);
    CHECK(rc == CURLM_OK);
}

/* A hint for an address from which no answer ever came. */
static const char *address_hint(const struct http *http, CURLcode rc)
{
    bool tls = !strncmp(http->url, "https:", 6);
    if (http->answered)
        return "";
    switch (rc) {
    case CURLE_COULDNT_CONNECT: return " (is the server running, and is the port right?)";
    case CURLE_SSL_CONNECT_ERROR: return " (is it http:// there?)";
    case CURLE_OPERATION_TIMEDOUT: return tls ? " (is it http:// there?)" : "";
    case CURLE_GOT_NOTHING:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY: return tls ? "" : " (is it https:// there?)";
    default: return "";
    }
}

static void finish(struct http *http, struct http_call *call, CURLcode rc)
{
    long status = 0, sent = 0;
    curl.easy_getinfo(call->own, CURLINFO_RESPONSE_CODE, &status);
    curl.easy_getinfo(call->own, CURLINFO_REQUEST_SIZE, &sent);
    call->status = (int)status;
    call->ns_end = clock_ns();
    if (rc != CURLE_OK && !call->failed) {
        const char *hint = address_hint(http, rc);
        call->unsent = sent == 0;
        if (call->unsent)
            fail(call, "cannot reach %s: %s%s", http->shown, curl.easy_strerror(rc), hint);
        else
            fail(call, "the connection to %s ended%s: %s%s", http->shown,
                 call->n_bytes ? " in the middle of the answer" : " before an answer",
                 curl.easy_strerror(rc), hint);
    }
    http->answered |= status > 0;
    call->done = true;
}

/* Fails the requests whose server has been silent for too long. Returns the milliseconds until the
 * next one would be. */
static int watch(struct http *http)
{
    uint64_t now = clock_ns();
    int next = INT_MAX;
    for (int i = 0; i < http->n; i++) {
        struct http_call *call = http->call[i];
        if (call->done)
            continue;
        int most = call->ns_first ? http->opts.silence_ms : http->opts.first_ms;
        uint64_t since = call->ns_first ? call->ns_last : call->ns_begin;
        int left = most - (int)((now - since) / 1000000);
        if (left <= 0) {
            fail(call, call->ns_first ? "%s has sent nothing for %d s"
                                      : "%s has not answered for %d s",
                 http->shown, most / 1000);
            call->ns_end = now;
        }
        next = min_int(next, left);
    }
    return max_int(next, 0);
}

void http_run(struct http *http, int ms)
{
    int running, left;
    CURLMsg *m;
    curl.multi_perform(http->multi, &running);
    while ((m = curl.multi_info_read(http->multi, &left))) {
        struct http_call *call;
        if (m->msg != CURLMSG_DONE)
            continue;
        curl.easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &call);
        finish(http, call, m->data.result);
        ms = 0;
    }
    ms = min_int(ms, watch(http));
    if (ms > 0)
        curl.multi_poll(http->multi, NULL, 0, ms, NULL);
}

void http_end(struct http *http, struct http_call *call)
{
    if (!call->own)
        return;
    curl.multi_remove_handle(http->multi, call->own);
    curl.easy_cleanup(call->own);
    call->own = NULL;
    for (int i = 0; i < http->n; i++)
        if (http->call[i] == call)
            http->call[i--] = http->call[--http->n];
}

/* ---- whole answers --------------------------------------------------------------------------- */

/* The message in the body of an error, or the beginning of the body. */
static void error_text(const struct http_call *call, char *out, size_t room)
{
    struct answer answer;
    *out = '\0';
    if (call->answer.n && answer_read(&answer, call->answer.p, call->answer.n, NULL)) {
        snprintf(out, room, "%s", answer.error);
        answer_free(&answer);
    }
    if (*out || call->answer.n == 0)
        return;
    snprintf(out, room, "%.*s", (int)(call->answer.n < SHOWN ? call->answer.n : SHOWN),
             call->answer.p);
    for (char *p = out; *p; p++)
        if (*p == '\n' || *p == '\r')
            *p = ' ';
}

bool http_refused(const struct http_call *call, struct err *e)
{
    char text[400];
    error_text(call, text, sizeof text);
    if (call->moved[0] && call->status / 100 == 3)
        return err_set(e, ERR_MODEL, "the server redirects to %s; redirects are not followed: give "
                       "that address if you trust it", call->moved);
    const char *why = call->status == 401 || call->status == 403 ? " (a key is needed, "
    "or another one)"
                      : call->status == 429                   ? " (too many requests)"
                                                                 : "";
    return err_set(e, ERR_MODEL, "the server answers %d%s%s%s", call->status, why, *text ? ": "
                   : "", text);
}

int http_retry_ms(const struct http_call *call, int attempt)
{
    if (attempt >= RETRIES || !(call->unsent || call->status == 429 || call->status == 503))
        return -1;
    return call->retry_s >= 0 && call->retry_s <= 30 ? call->retry_s * 1000 : 500 << attempt;
}

bool http_call(struct http *http, struct http_call *call, const struct stop *stop, struct err *e)
{
    call->stop = stop;
    http_begin(http, call);
    while (!call->done && !stop_asked(stop))
        http_run(http, 50);
    bool done = call->done && !stop_asked(stop);
    http_end(http, call);
    if (!done)
        return err_set(e, ERR_NEGATIVE, "stopped");
    if (call->failed) {
        if (e)
            *e = call->why;
        return false;
    }
    return call->status / 100 == 2 || http_refused(call, e);
}
