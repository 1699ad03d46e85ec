/* test_server_faults.c - every kind of server against every kind of fault.
 *
 * A row of `faults` is one way in which an answer goes wrong, with the expected result for every
 * server: the whole reply, a part of it, or none, with one clear line, logged as it was shown,
 * after the given number of requests. Afterwards the conversation goes on, and the next answer is
 * complete.
 */
#include "tests/server_kit.h"

/* ---- bodies ---------------------------------------------------------------------------------- */

static void swap_body(struct play_answer *a, struct buf *with)
{
    buf_free(&a->body);
    a->body = *with;
    *with = (struct buf){0};
}

/* The text goes between all events, and before the first. */
static void between(const struct kind *k, struct play_answer *a, const char *text)
{
    struct buf b = {0};
    size_t at = 0, n = a->body.n;
    for (int i = 1; at < n; i++) {
        size_t end = event_end(k, &a->body, i);
        if (end == at)
            end = n;
        buf_str(&b, text);
        buf_add(&b, a->body.p + at, end - at);
        at = end;
    }
    swap_body(a, &b);
}

/* The text goes behind the n-th event. */
static void put_in(const struct kind *k, struct play_answer *a, int n, const char *text, size_t len)
{
    struct buf b = {0};
    size_t at = event_end(k, &a->body, n);
    buf_add(&b, a->body.p, at);
    buf_add(&b, text, len);
    buf_add(&b, a->body.p + at, a->body.n - at);
    swap_body(a, &b);
}

/* gzip and zlib data of stored blocks. */
static void pack(struct play_answer *a, bool gzip)
{
    struct buf b = {0};
    uint32_t crc = 0xFFFFFFFF, s1 = 1, s2 = 0;
    for (size_t i = 0; i < a->body.n; i++) {
        uint8_t c = (uint8_t)a->body.p[i];
        crc ^= c;
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        s1 = (s1 + c) % 65521;
        s2 = (s2 + s1) % 65521;
    }
    buf_add(&b, gzip ? "\x1F\x8B\x08\0\0\0\0\0\0\x03" : "\x78\x01", gzip ? 10 : 2);
    for (size_t at = 0; at < a->body.n;) {
        size_t n = a->body.n - at < 60000 ? a->body.n - at : 60000;
        uint8_t head[5] = {at + n == a->body.n, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)~n,
                           (uint8_t)(~n >> 8)};
        buf_add(&b, head, 5);
        buf_add(&b, a->body.p + at, n);
        at += n;
    }
    uint32_t sum = gzip ? ~crc : s2 << 16 | s1, n = (uint32_t)a->body.n;
    for (int i = 0; i < 4; i++)
        buf_char(&b, (char)(sum >> (gzip ? 8 * i : 24 - 8 * i)));
    for (int i = 0; i < 4 && gzip; i++)
        buf_char(&b, (char)(n >> (8 * i)));
    a->header = gzip ? "Content-Encoding: gzip\r\n" : "Content-Encoding: deflate\r\n";
    swap_body(a, &b);
}

/* Chunks of 1 to 13 bytes in all spellings that HTTP allows; last: with the end, or without. */
static void chunk(struct play_answer *a, bool last)
{
    struct buf b = {0};
    for (size_t at = 0, size = 1; at < a->body.n; size = size % 13 + 1) {
        size_t n = a->body.n - at < size ? a->body.n - at : size;
        buf_printf(&b, n % 3 == 0 ? "%zX\r\n" : n % 3 == 1 ? "000%zx;a=\"b\"\r\n" : "%zx\r\n", n);
        buf_add(&b, a->body.p + at, n);
        buf_str(&b, "\r\n");
        at += n;
    }
    if (last)
        buf_str(&b, "0\r\nX-Trailer: x\r\n\r\n");
    a->header = "Transfer-Encoding: chunked\r\n";
    swap_body(a, &b);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static char elsewhere[128]; /* header lines: the address of another server, which must hear
                               nothing */

static void f_none(const struct kind *k, struct play_answer *a) { (void)k, (void)a; }
static void f_bytes(const struct kind *k, struct play_answer *a) { (void)k, a->cut = 1; }
static void f_comments(const struct kind *k, struct play_answer *a)
{
    between(k, a, k->lines ? "\n" : ": keep-alive\n\n:\n");
}
static void f_empty(const struct kind *k, struct play_answer *a)
{
    between(k, a, k->lines ? "  \t\r\n" : "data:\n\ndata: \n\ndata\n\n");
}
static void f_fields(const struct kind *k, struct play_answer *a)
{
    between(k, a, k->lines ? "\n" : "event: message\nid: 7\nretry: 100\nnonsense\nDATA: x\n");
}
static void f_foreign(const struct kind *k, struct play_answer *a)
{
    between(k, a, k->lines
            ? "{\"model\":\"other\",\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":false}\n"
                           : "data: {\"id\":\"chatcmpl-keep-alive\",\"object\":\"chat.completion.chunk\",\"choices\":[]}\n\n"
                             "data: {\"id\":\"other\",\"choices\":[{\"index\":0,\"delta\":{}}]}\n\n");
}
static void f_crlf(const struct kind *k, struct play_answer *a)
{
    struct buf b = {0};
    (void)k;
    for (size_t i = 0; i < a->body.n; i++) {
        if (a->body.p[i] == '\n')
            buf_char(&b, '\r');
        buf_char(&b, a->body.p[i]);
    }
    swap_body(a, &b);
}
static void f_mark(const struct kind *k, struct play_answer *a)
{
    put_in(k, a, 0, "\xEF\xBB\xBF", 3);
}
static void f_no_done(const struct kind *k, struct play_answer *a)
{
    char *done = k->lines ? NULL : strstr(a->body.p, "data: [DONE]");
    if (done)
        a->body.n = (size_t)(done - a->body.p);
}
static void f_no_end(const struct kind *k, struct play_answer *a)
{
    f_no_done(k, a);
    while (a->body.n && a->body.p[a->body.n - 1] == '\n')
        a->body.n--;
}
static void f_more(const struct kind *k, struct play_answer *a)
{
    buf_str(&a->body, k->lines ? "{\"message\":{\"content\":\"more\"}}\nnonsense\n"
                               : "data: {\"choices\":[{\"delta\":{\"content\":\"more\"}}]}\n\ndata: nonsense\n\n");
}
static void f_error(const struct kind *k, struct play_answer *a)
{
    const char *text = k->lines ? "{\"error\":\"out of memory\"}\n"
                                : "data: {\"error\":{\"message\":\"out "
                                "of\\nmemory\",\"code\":500}}\n\n";
    put_in(k, a, middle(k, &a->body), text, strlen(text));
}
static void f_no_json(const struct kind *k, struct play_answer *a)
{
    const char *text = k->lines ? "<html>\n" : "data: <html>\n\n";
    put_in(k, a, middle(k, &a->body), text, strlen(text));
}
static void f_nothing(const struct kind *k, struct play_answer *a) { (void)k, a->status = 0; }
static void f_reset_first(const struct kind *k, struct play_answer *a)
{
    (void)k, a->status = 0, a->reset = true;
}
static void f_reset_head(const struct kind *k, struct play_answer *a)
{
    (void)k;
    buf_clear(&a->body);
    a->header = "Content-Length: 1000\r\n";
    a->reset = true;
}
static void f_reset_middle(const struct kind *k, struct play_answer *a)
{
    (void)k;
    a->most = a->body.n / 2;
    a->length = a->reset = true;
}
static void f_short(const struct kind *k, struct play_answer *a)
{
    f_reset_middle(k, a), a->reset = false;
}
static void f_half(const struct kind *k, struct play_answer *a)
{
    a->most = event_end(k, &a->body, middle(k, &a->body));
    if (!k->lines)
        a->most -= 1; /* without the empty line that would end the event */
}
static void f_empty_body(const struct kind *k, struct play_answer *a)
{
    (void)k, buf_clear(&a->body);
}
static void f_gzip(const struct kind *k, struct play_answer *a) { (void)k, pack(a, true); }
static void f_deflate(const struct kind *k, struct play_answer *a)
{
    (void)k, pack(a, false), a->cut = 100;
}
static void f_gzip_cut(const struct kind *k, struct play_answer *a)
{
    (void)k;
    pack(a, true);
    a->most = a->body.n / 2;
    a->length = true;
}
static void f_no_gzip(const struct kind *k, struct play_answer *a)
{
    (void)k, a->header = "Content-Encoding: gzip\r\n";
}
static void f_chunks(const struct kind *k, struct play_answer *a)
{
    (void)k, chunk(a, true), a->cut = 7;
}
static void f_no_last_chunk(const struct kind *k, struct play_answer *a)
{
    f_half(k, a);
    a->body.n = a->most;
    a->most = 0;
    chunk(a, false);
}
static void f_wrong_chunk(const struct kind *k, struct play_answer *a)
{
    f_no_last_chunk(k, a);
    buf_str(&a->body, "zz\r\n");
}
static void f_400(const struct kind *k, struct play_answer *a)
{
    status(a, 400, k->lines ? "{\"error\":\"too\\nlong\"}" : !strcmp(k->name, "sglang")
           ? "{\"object\":\"error\",\"message\":\"too\\nlong\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}"
           : "{\"error\":{\"message\":\"too\\nlong\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}");
}
static void f_401(const struct kind *k, struct play_answer *a)
{
    (void)k, status(a, 401, "{\"error\":\"Unauthorized\"}");
}
static void f_404(const struct kind *k, struct play_answer *a)
{
    (void)k, status(a, 404, "{\"detail\":\"Not Found\"}");
}
static void f_500(const struct kind *k, struct play_answer *a) { (void)k, status(a, 500, ""); }
static void f_502(const struct kind *k, struct play_answer *a)
{
    (void)k;
    status(a, 502, "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n</html>");
    a->type = "text/html";
}
static void f_503(const struct kind *k, struct play_answer *a)
{
    f_429(k, a);
    a->status = 503;
}
static void f_html(const struct kind *k, struct play_answer *a)
{
    (void)k;
    a->type = "text/html; charset=utf-8";
    replace_body(a, "<html><body>Sign in to the proxy</body></html>");
}
static void f_no_type(const struct kind *k, struct play_answer *a) { (void)k, a->type = NULL; }
static void redirect(struct play_answer *a, int code)
{
    a->status = code;
    a->header = elsewhere;
    replace_body(a, "");
}
static void f_302(const struct kind *k, struct play_answer *a) { (void)k, redirect(a, 302); }
static void f_307(const struct kind *k, struct play_answer *a) { (void)k, redirect(a, 307); }
static void long_line(const struct kind *k, struct play_answer *a, size_t n, bool data)
{
    struct buf b = {0};
    buf_str(&b, k->lines ? "" : data ? "data: " : ": ");
    size_t from = b.n;
    for (size_t i = 0; i < n; i += 64)
        buf_str(&b, "                                                                ");
    if (data)
        memset(b.p + from, 'x', n);
    buf_str(&b, "\n\n");
    put_in(k, a, middle(k, &a->body), b.p, b.n);
    buf_free(&b);
}
static void f_ten_megabytes(const struct kind *k, struct play_answer *a)
{
    long_line(k, a, 10 << 20, false);
}
static void f_too_long(const struct kind *k, struct play_answer *a)
{
    long_line(k, a, 17 << 20, true);
}
static void f_utf8(const struct kind *k, struct play_answer *a)
{
    char *at = strstr(a->body.p, k->word);
    assert_non_null(at);
    at[2] = '\xFF';
}

static const struct fault faults[] = {
    {"nothing", f_none, WHOLE, NULL, 0},
    {"every byte apart", f_bytes, WHOLE, NULL, 0},
    {"comments, empty lines", f_comments, WHOLE, NULL, 0},
    {"empty data", f_empty, WHOLE, NULL, 0},
    {"other fields", f_fields, WHOLE, NULL, 0},
    {"foreign chunks", f_foreign, WHOLE, NULL, 0},
    {"CR LF", f_crlf, WHOLE, NULL, 0},
    {"byte order mark", f_mark, WHOLE, NULL, 0},
    {"no [DONE]", f_no_done, WHOLE, NULL, 0},
    {"no last line end", f_no_end, WHOLE, NULL, 0},
    {"more behind the end", f_more, WHOLE, NULL, 0},
    {"error in mid-stream", f_error, BROKEN, "the server reports: out of", 0},
    {"no JSON in mid-stream", f_no_json, BROKEN, "the server sent what is no JSON object: <html>",
     0},
    {"closed before an answer", f_nothing, REFUSED, "the connection to ", 0},
    {"reset before an answer", f_reset_first, REFUSED, "the connection to ", 0},
    {"reset behind the head", f_reset_head, REFUSED, "the connection to ", 0},
    {"reset in mid-stream", f_reset_middle, RESET, "the connection to ", 0},
    {"shorter than promised", f_short, BROKEN, "the connection to ", 0},
    {"ends in mid-stream", f_half, BROKEN, "the server's stream ended without an end of the reply",
     0},
    {"empty body", f_empty_body, REFUSED, "the server's stream ended without an end of the reply",
     0},
    {"gzip", f_gzip, WHOLE, NULL, 0},
    {"deflate", f_deflate, WHOLE, NULL, 0},
    {"gzip cut short", f_gzip_cut, RESET, "the connection to ", 0},
    {"no gzip although said", f_no_gzip, REFUSED, "the connection to ", 0},
    {"chunks", f_chunks, WHOLE, NULL, 0},
    {"no last chunk", f_no_last_chunk, BROKEN, "the connection to ", 0},
    {"wrong chunk", f_wrong_chunk, BROKEN, "the connection to ", 0},
    {"400", f_400, REFUSED, "the server answers 400: too long", 0},
    {"401", f_401, REFUSED, "the server answers 401 (a key is needed, or another one): "
                            "Unauthorized", 0},
    {"404", f_404, REFUSED, "the server answers 404: Not Found", 0},
    {"500", f_500, REFUSED, "the server answers 500", 0},
    {"502 of a proxy", f_502, REFUSED, "the server answers 502: <html>", 0},
    {"429", f_429, REFUSED, "the server answers 429 (too many requests): slow down", 1 + RETRIES},
    {"503", f_503, REFUSED, "the server answers 503: slow down", 1 + RETRIES},
    {"page of a proxy", f_html, REFUSED, "the server answers with text/html instead of a stream of "
                                         "events", 0},
    {"no type", f_no_type, REFUSED, "the server answers with bytes of no type", 0},
    {"redirect 302", f_302, REFUSED, "the server redirects to http://127.0.0.1:", 0},
    {"redirect 307", f_307, REFUSED, "the server redirects to http://127.0.0.1:", 0},
    {"10 MB of nothing", f_ten_megabytes, WHOLE, NULL, 0},
    {"a line of 17 MB", f_too_long, BROKEN, "the server sent an event of more than 16 MiB", 0},
    {"invalid UTF-8", f_utf8, REPLACED, NULL, 0},
};
enum { N_FAULTS = sizeof faults / sizeof *faults };

static int n_elsewhere;

static void choose_elsewhere(void *arg, const struct play_request *rq, struct play_answer *a)
{
    (void)arg, (void)rq;
    n_elsewhere++;
    *a = (struct play_answer){.status = 200, .type = "text/event-stream"};
    buf_str(&a->body, "data: [DONE]\n\n");
}

static void every_kind_with_every_fault(void **state)
{
    (void)state;
    struct play other;
    play_open(&other, choose_elsewhere, NULL);
    snprintf(elsewhere, sizeof elsewhere, "Location: %s/v1/chat/completions\r\n", other.url);
    for (int i = 0; i < N_KINDS; i++) {
        struct kind k = kinds[i];
        struct scene s = {.kind = &k};
        struct client c;
        if (!k.text)
            read_text(&k);
        play_open(&s.play, choose, &s);
        client_open(&c, s.play.url);
        if (!begins(backend_info(c.b)->family, k.family))
            fail_msg("%s is taken for %s", k.name, backend_info(c.b)->family);
        for (int f = 0; f < N_FAULTS; f++) {
            one_turn(&c, &s, &k, &faults[f]);
        }
        one_turn(&c, &s, &k, NULL);
        client_close(&c);
        play_close(&s.play);
    }
    play_close(&other);
    assert_int_equal(n_elsewhere, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_with_every_fault),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
