/* test_signal_loops.c - SIGTERM while the program works on something large: every loop whose time
 * depends on input has a bound or asks for a stop.
 *
 * A row of loops[] names such a loop, says what ends it, and how a program is brought into it. The
 * test checks that the program then ends with the status of the signal, after at most LATE_MS of
 * processor time (time on the wall depends on the machine's other work), and never says that
 * something is lost; or, where a bound ends the loop, that the program ends by itself with a line
 * that says so, in no more time. The inputs are just large enough that a loop without a bound takes
 * longer; AERIE_TEST_LONG makes them four times as large. The table of the latest ends is printed
 * with AERIE_SIGNALS=all. Loops whose input is small by its nature, and commands that catch no
 * signal (a signal ends them at once), have no row.
 */
#include "tests/few.h"
#include "tests/signals_kit.h"

#include "kernels/sanitizers.h"

#include <sys/mman.h>

enum face { SCREEN, ONCE, SCRIPT };

/* What a server sends instead of a reply. */
enum server { NO_SERVER, ENDLESS, BOMB, TOPS, DEEP };

struct place {
    char *dir;
    pid_t server, writer;
    int port, client;
};

struct loop {
    const char *file, *function; /* one that has the loop */
    const char *ends;            /* its bound, or the stop that it asks */
    const char *name;            /* of the state */
    enum face face;
    const char *argv;  /* words; DIR: the folder of inputs; URL: the server; HERE: the folder of the
                          case */
    const char *ready; /* what it prints when `enter` may be called; NULL: when it has opened its
                          log */
    void (*enter)(struct child *c, struct place *p); /* brings it into the loop; or NULL */
    int work_ms, rest_ms; /* the signal comes when it has worked for so long since, or after
                             rest_ms */
    enum server server;
    bool log;          /* it finds the log of long sessions */
    int sync_ms;       /* a sync of the disk takes so long */
    int code;          /* 0: the signal ends it. Else it has ended before, with this status, and */
    const char *says;  /* has said this */
};

/* ---- ways in --------------------------------------------------------------------------------- */

static char *top;

static void read_input(const char *name, struct buf *b)
{
    struct err e;
    char *path = xasprintf("%s/%s", top, name);
    if (!buf_read_file(b, path, 1 << 30, &e))
        die("%s", e.msg);
    free(path);
}

/* Another process types, because the program may read slowly. */
static void type_file(struct child *c, struct place *p, const char *name)
{
    struct buf b = {0};
    read_input(name, &b);
    p->writer = fork();
    if (p->writer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        write_fully(c->in, b.p, b.n);
        _exit(0);
    }
    buf_free(&b);
}

static void type_long_line(struct child *c, struct place *p)
{
    type_file(c, p, "typed");
}

static void say_words(struct child *c, struct place *p)
{
    type_file(c, p, "line");
}

/* Sends all of a request to `aerie serve`, whose address it has printed, and keeps the
 * connection. */
static void post(struct child *c, struct place *p, const char *path, const char *name)
{
    struct buf body = {0};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *port = strstr(c->text.p, "http://127.0.0.1:");
    CHECK(port);
    at.sin_port = htons((uint16_t)strtol(port + strlen("http://127.0.0.1:"), NULL, 10));
    read_input(name, &body);
    p->client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(p->client >= 0 && connect(p->client, (struct sockaddr *)&at, sizeof at) == 0);
    dprintf(p->client, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                       "application/json\r\nContent-Length: %zu\r\n\r\n",
            path, body.n);
    write_fully(p->client, body.p, body.n);
    buf_free(&body);
}

static void post_tokenize(struct child *c, struct place *p)
{
    post(c, p, "/tokenize", "prompt.json");
}
static void post_detokenize(struct child *c, struct place *p)
{
    post(c, p, "/detokenize", "tokens.json");
}
static void post_chat(struct child *c, struct place *p)
{
    post(c, p, "/v1/chat/completions", "messages.json");
}

static void say_hello(struct child *c, struct place *p)
{
    (void)p;
    type_keys(c, "hello\n");
    AWAIT(c, c->gone || printed(c, 0, "small task")); /* its reply is shown, and not yet stored */
}

static void resume_blocks(struct child *c, struct place *p)
{
    (void)p;
    type_keys(c, "/resume 2\r");
}

/* ---- the table ------------------------------------------------------------------------------- */

#define STORED "still being stored"

static const struct loop loops[] = {
    /* texts of the user */
    {"models/chat/chat.c", "chat_fits", "bound: context x the longest token, before the text is "
                                        "logged or encoded",
     "run -f, a text of megabytes", ONCE, "run -f DIR/words hi", .code = 2,
     .says = "the context of 4096 tokens holds at most 61440"},
    {"repl/app/app.c", "app_send", "bound: as above", "a chat, a line of megabytes", SCRIPT,
     "--plain", .enter = say_words,
     .work_ms = 150, .rest_ms = 1000, .says = "holds at most 61440"},
    {"repl/app/app.c", "app_send", "bound: as above", "a script, a line of megabytes", ONCE,
     "--plain --script DIR/line", .code = 2,
     .says = "holds at most 61440"},
    {"repl/cmd/chat.c", "cmd_read", "bound: as above", "/read of megabytes", ONCE,
     "--plain --script DIR/read", .code = 2,
     .says = "holds at most 61440"},
    {"engine/thread/session.c", "render", "bound: as above, for each prompt",
     "run --batch, prompts of megabytes", ONCE,
     "run --batch DIR/prompts.jsonl", .code = 1, .says = "holds at most 61440"},
    {"repl/process/reader.c", "reader_line", "stop: between two parts of 64 KiB; "
                                             "a part is searched once",
     "run -, a line without end", SCRIPT, "run -", .enter = say_words, .rest_ms = 300},
    /* texts of clients */
    {"models/tokenizer/tokenizer.c", "tok_encode", "stop: in every stage, each 65,536 bytes, "
                                                   "characters, pieces or merges",
     "serve, /tokenize of megabytes", ONCE, "serve --port 0", "at http://", .enter = post_tokenize,
     .work_ms = 100,
     .rest_ms = 2000},
    {"repl/http/ask.c", "ask_messages", "bound: context x the longest token, before the messages "
                                        "are encoded",
     "serve, messages of megabytes", ONCE, "serve --port 0", "at http://", .enter = post_chat,
     .work_ms = 100,
     .rest_ms = 1000},
    {"kernels/json_read.c", "json_parse", "stop: between two parts of 1 KiB; bound: "
                                          "24 bytes of memory a byte",
     "serve, /detokenize of megabytes", ONCE, "serve --port 0", "at http://",
     .enter = post_detokenize, .work_ms = 50,
     .rest_ms = 1000},
    /* replies of servers */
    {"engine/remote/incoming.c", "is_bounded", "stop: each part of 16 KiB; bound: 16 MiB of text, "
                                               "2^20 tokens",
     "server, a reply without end", ONCE, "run --remote URL hi", .rest_ms = 1500,
     .server = ENDLESS},
    {"engine/remote/http.c", "on_body", "stop: each part, unpacked; bound: 1 GiB",
     "server, a gzip bomb", ONCE,
     "run --remote URL hi", .work_ms = 300, .rest_ms = 1500, .server = BOMB, .code = 3,
     .says = "longer than 16 MiB"},
    {"engine/remote/answer.c", "put_row", "bound: sorted once, the best 256 are kept",
     "server, 200,000 top tokens", ONCE,
     "run --remote URL hi", .work_ms = 150, .rest_ms = 1500, .server = TOPS},
    {"kernels/json_read.c", "exceeds", "bound: 24 bytes of memory a byte, counted before parsing",
     "server, an event of empty objects",
     ONCE, "run --remote URL hi", .server = DEEP, .code = 3, .says = "what is no JSON object"},
    /* files of records */
    {"engine/remote/answer.c", "put_row", "bound: as above", "import, 200,000 top tokens", ONCE,
     "import DIR/tops.jsonl",
     .work_ms = 150, .rest_ms = 1500},
    {"history/log/indexed.c", "tokenize", "bound: the first MiB of a text",
     "import, a reply of megabytes", ONCE,
     "import DIR/reply.jsonl", .work_ms = 150, .rest_ms = 1500},
    {"kernels/json_read.c", "exceeds", "bound: as above", "import, a line of empty objects", ONCE,
     "import DIR/deep.jsonl",
     .code = 2, .says = "too many small values"},
    /* the log */
    {"history/log/history.c", "finish_writing", "bound: the syncs of what was shown; "
                                                "no checkpoint, no further steps",
     "a slow disk", SCRIPT, "--plain", .enter = say_hello, .log = true, .sync_ms = 700,
     .says = STORED},
    /* the screen */
    {"repl/text/sheet.c", "sheet_add_row", "bound: the spans of a row are found by bisection",
     "a session, one long paragraph",
     SCREEN, "--session 1", "\033[?1049h", .work_ms = 100, .rest_ms = 1500, .log = true},
    {"repl/text/transcript.c", "lay_text", "stop: between two blocks; bound: "
                                           "1 MiB a block of Markdown, 64 KiB of plain text",
     "a session, many blocks", SCREEN, "", "ctx ", .enter = resume_blocks, .work_ms = 200,
     .rest_ms = 3000, .log = true},
    {"repl/text/sheet.c", "row_tab", "bound: a row is measured from its last tab on",
     "a session, a line of tabs", SCREEN,
     "--session 3", "\033[?1049h", .work_ms = 100, .rest_ms = 1500, .log = true},
    {"repl/text/transcript.c", "lay_text", "as above", "a recording, many blocks", SCREEN,
     "replay 2", "\033[?1049h",
     .work_ms = 100, .rest_ms = 3000, .log = true},
    {"repl/tui/tui.c", "handle_keys", "stop: between two keys; bound: a layout for each frame, "
                                      "not for each key",
     "a terminal that sends without end", SCREEN, "", "ctx ", .enter = type_long_line,
     .work_ms = 100, .rest_ms = 1000},
};
enum { N_LOOPS = sizeof loops / sizeof *loops };

/* ---- servers --------------------------------------------------------------------------------- */

static const char head_of_stream[] = "HTTP/1.1 200 OK\r\nContent-Type: "
"text/event-stream\r\nConnection: close\r\n";

static bool send_all(int fd, const struct buf *b)
{
    return write_fully(fd, b->p, b->n);
}

/* Words without end, an event each. */
static void send_words(int fd)
{
    struct buf b = {0};
    dprintf(fd, "%s\r\n", head_of_stream);
    for (int i = 0; i < 200; i++)
        buf_str(&b, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"}}]}\n\n");
    while (send_all(fd, &b))
        ;
}

/* A stream of bits as deflate (RFC 1951) has them. */
struct bits {
    struct buf out;
    unsigned held;
    int n;
};

static void put_bits(struct bits *w, unsigned v, int n)
{
    w->held |= v << w->n;
    for (w->n += n; w->n >= 8; w->n -= 8, w->held >>= 8)
        buf_char(&w->out, (char)w->held);
}

/* A Huffman code, whose first bit is the highest. */
static void put_code(struct bits *w, unsigned code, int n)
{
    while (n-- > 0)
        put_bits(w, code >> n & 1, 1);
}

/* An event of 9,000 bytes without end: 25 bits are 258 bytes of it. */
static void send_bomb(int fd)
{
    enum { PERIOD = 9000, BASE = 8193 /* of the distances with 12 more bits */ };
    static const char begin[] = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"",
        end[] = "\"}}]}\n\n";
    struct bits w = {0};
    struct buf event = {0};
    buf_str(&event, begin);
    while (event.n + sizeof end - 1 < PERIOD)
        buf_char(&event, 'a');
    buf_str(&event, end);
    dprintf(fd, "%sContent-Encoding: gzip\r\n\r\n", head_of_stream);
    buf_add(&w.out, "\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
    put_bits(&w, 0, 1);
    put_bits(&w, 1, 2); /* the fixed codes */
    for (size_t i = 0; i < event.n; i++)
        put_code(&w, 0x30u + (unsigned char)event.p[i], 8);
    do {
        for (int i = 0; i < 4000; i++) {
            put_code(&w, 0xC5, 8); /* a length of 258 */
            put_code(&w, 26, 5);
            put_bits(&w, PERIOD - BASE, 12);
        }
    } while (send_all(fd, &w.out) && (buf_clear(&w.out), true));
}

/* A list of n best tokens, the worst first. */
static void put_tops(struct buf *b, int n)
{
    buf_str(b, "{\"content\":[{\"token\":\"x\",\"logprob\":-1,\"top_logprobs\":[");
    for (int i = 0; i < n; i++)
        buf_printf(b, "%s{\"token\":\"\",\"logprob\":%d}", i ? "," : "", i - 10 * n);
    buf_str(b, "]}]}");
}

static void put_objects(struct buf *b, int n)
{
    buf_char(b, '[');
    for (int i = 0; i < n; i++)
        buf_str(b, "{},");
    buf_str(b, "{}]");
}

static int many_tops(void) { return rounds(200000, 400000); }
static int many_objects(void) { return rounds(3000000, 5000000); }

static void send_event(int fd, enum server kind)
{
    struct buf b = {0};
    dprintf(fd, "%s\r\n", head_of_stream);
    buf_str(&b, "data: ");
    if (kind == TOPS) {
        buf_str(&b, "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"logprobs\":");
        put_tops(&b, many_tops());
        buf_str(&b, "}]}");
    } else {
        put_objects(&b, many_objects());
    }
    buf_str(&b, "\n\n");
    send_all(fd, &b);
    pause();
}

static void serve_hostile(int fd, int kind)
{
    static const char models[] =
        "{\"object\":\"list\",\"data\":[{\"id\":\"slow\",\"object\":\"model\"}]}";
    char head[8192];
    size_t n = 0;
    for (ssize_t k; n + 1 < sizeof head && (k = read(fd, head + n, sizeof head - 1 - n)) > 0;) {
        head[n += (size_t)k] = '\0';
        if (strstr(head, "\r\n\r\n"))
            break;
    }
    bool list = strncmp(head, "GET /v1/models ", 15) == 0;
    if (strncmp(head, "POST /v1/chat/", 14) != 0)
        dprintf(fd, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: "
                    "%zu\r\nConnection: close\r\n\r\n%s",
                list ? "200 OK" : "404 Not Found", list ? sizeof models - 1 : 0, list ? models
                : "");
    else if (kind == ENDLESS)
        send_words(fd);
    else if (kind == BOMB)
        send_bomb(fd);
    else
        send_event(fd, (enum server)kind);
    close(fd);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void put_words(struct buf *b, size_t n)
{
    for (uint64_t x = 1; b->n < n; x = mix64(x))
        buf_printf(b, "%06x ", (unsigned)(x & 0xffffff));
}

static void put_line(const char *name, const char *before, const struct buf *middle,
                     const char *after)
{
    struct buf b = {0};
    buf_str(&b, before);
    buf_add(&b, middle->p, middle->n);
    buf_str(&b, after);
    write_new(top, name, &b);
    buf_free(&b);
}

#define ASKED "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"choices\":[{\"finish_reason\":\"stop\",\"message\":{\"content\":"

static void make_texts(void)
{
    const size_t mb = 1000000;
    struct buf b = {0};
    put_words(&b, 4 * mb); /* /read takes 4 MiB */
    write_new(top, "words", &b);
    put_line("line", "", &b, "\n");
    put_line("prompts.jsonl", "{\"prompt\":\"", &b, "\"}\n");
    put_line("reply.jsonl", ASKED "\"", &b, "\"}}]}\n");
    put_words(&b, (size_t)rounds(7, 30) * mb);
    put_line("prompt.json", "{\"prompt\":\"", &b, "\"}");
    put_line("messages.json", "{\"messages\":[{\"role\":\"user\",\"content\":\"", &b, "\"}]}");
    buf_clear(&b);
    buf_printf(&b, "/read %s/words\nhello\n", top);
    write_new(top, "read", &b);
    buf_clear(&b);
    for (size_t i = 0; i < (size_t)rounds(5, 15) * mb; i++)
        buf_str(&b, i ? ",7" : "7");
    put_line("tokens.json", "{\"tokens\":[", &b, "]}");
    buf_clear(&b);
    put_words(&b, (size_t)rounds(60000, 500000));
    write_new(top, "typed", &b);
    buf_clear(&b);
    put_tops(&b, many_tops());
    put_line("tops.jsonl", ASKED "\"x\"},\"logprobs\":", &b, "}]}\n");
    buf_clear(&b);
    put_objects(&b, many_objects());
    put_line("deep.jsonl", "{\"messages\":[],\"x\":", &b, "}\n");
    buf_free(&b);
}

/* Sessions 1 to 3: one paragraph, many blocks, a line of tabs. */
static void make_records(void)
{
    struct buf b = {0};
    buf_str(&b, ASKED "\"");
    for (int i = 0; i < 60000; i++)
        buf_str(&b, "a *b* **c** `d` ");
    buf_str(&b, "\"}}]}\n" ASKED "\"");
    for (int i = 0; i < rounds(110000, 130000); i++)
        buf_printf(&b, "- **item** with `code`\\n  > a quote | b | c\\n\\n| a | b "
                       "|\\n|---|---|\\n| %d | x |\\n\\n", i);
    buf_str(&b, "\"}}]}\n" ASKED "\"");
    for (int i = 0; i < rounds(60000, 500000); i++)
        buf_str(&b, "a\\t");
    buf_str(&b, "\"}}]}\n");
    write_new(top, "records.jsonl", &b);
    buf_free(&b);
}

static void make_log(const char *aerie)
{
    char *records = xasprintf("%s/records.jsonl", top), *db = xasprintf("%s/long.db", top);
    const char *argv[] = {aerie, "import", "--db", db, records, NULL};
    struct child k;
    start_child(&k, argv, false);
    shut(&k.in);
    if (!AWAIT(&k, k.gone) || k.status != 0)
        die("the log could not be made: %s", k.text.p ? k.text.p : "");
    end_child(&k);
    free(records);
    free(db);
}

/* ---- cases ----------------------------------------------------------------------------------- */

enum { LATE_MS = HAS_ASAN || HAS_TSAN ? 8000 : 1000 };

struct outcome {
    double cpu, wall;
    bool early;
    char wrong[512];
};

static const char *aerie, *hooked;

static char *path_in(const char *dir, const char *name)
{
    return xasprintf("%s/%s", dir, name);
}

static void open_place(struct place *p, const struct loop *l, int number)
{
    *p = (struct place){.dir = xasprintf("%s/%d", top, number), .client = -1};
    char *data = path_in(p->dir, "data"), *folder = path_in(p->dir, "data/aerie"),
        *state = path_in(p->dir, "state");
    CHECK(mkdir(p->dir, 0700) == 0 && mkdir(data, 0700) == 0 && mkdir(folder, 0700) == 0);
    if (l->log) {
        char *from = path_in(top, "long.db"), *to = path_in(folder, "sessions.db");
        copy_file(from, to);
        free(from);
        free(to);
    }
    if (l->server)
        p->server = start_server_with(serve_hostile, l->server, &p->port);
    setenv("XDG_DATA_HOME", data, 1);
    setenv("XDG_STATE_HOME", state, 1);
    setenv("HOME", p->dir, 1);
    char ms[16];
    snprintf(ms, sizeof ms, "%d", l->sync_ms);
    setenv("SYNC_MS", ms, 1);
    free(data);
    free(folder);
    free(state);
}

static void end_process(pid_t pid)
{
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

static void close_place(struct place *p)
{
    end_process(p->server);
    end_process(p->writer);
    shut(&p->client);
    remove_tree(p->dir);
    free(p->dir);
}

static void start_loop(struct child *c, const struct loop *l, const struct place *p)
{
    const char *argv[16] = {l->sync_ms ? hooked : aerie};
    char *words = xstrdup(l->argv), *next, *made[16];
    int n = 1, n_made = 0;
    for (char *w = strtok_r(words, " ", &next); w; w = strtok_r(NULL, " ", &next), n++) {
        argv[n] = w;
        if (strncmp(w, "DIR/", 4) == 0)
            argv[n] = made[n_made++] = path_in(top, w + 4);
        else if (strcmp(w, "URL") == 0)
            argv[n] = made[n_made++] = xasprintf("http://127.0.0.1:%d", p->port);
    }
    start_child(c, argv, l->face == SCREEN);
    while (n_made > 0)
        free(made[--n_made]);
    free(words);
}

static bool has_a_log(const struct place *p)
{
    char *db = path_in(p->dir, "data/aerie/sessions.db");
    bool there = access(db, F_OK) == 0;
    free(db);
    return there;
}

static void fail_as(struct outcome *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void fail_as(struct outcome *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!o->wrong[0])
        vsnprintf(o->wrong, sizeof o->wrong, fmt, ap);
    va_end(ap);
}

static void reach(struct child *c, const struct loop *l, struct place *p, struct outcome *o)
{
    bool command = l->face == ONCE && !l->ready;
    if (!AWAIT(c, c->gone ||
               (l->ready ? printed(c, 0, l->ready) : has_a_log(p) || (command && l->code))))
        fail_as(o, "the state was not reached");
    if (l->enter && !c->gone)
        l->enter(c, p);
    double begun = used_ms(c);
    for (uint64_t t0 = clock_ns(); ms_since(t0) < l->rest_ms && !c->gone &&
         !(l->work_ms && used_ms(c) > begun + l->work_ms);)
        pump(c);
    if (l->code && !l->rest_ms) /* its input is bounded: it ends by itself */
        AWAIT(c, c->gone);
}

/* What holds once it is gone. */
static void judge(struct child *c, const struct loop *l, struct outcome *o)
{
    int status = WIFEXITED(c->status) ? WEXITSTATUS(c->status) : 128 + WTERMSIG(c->status);
    int wanted = o->early ? l->code : 128 + SIGTERM;
    for (int i = 0; i < 5; i++)
        pump(c); /* what is still on its way */
    if (o->early && !l->code)
        fail_as(o, "it ended before the signal, with %d: %.200s", status, c->text.p ? c->text.p
                : "");
    if (status != wanted)
        fail_as(o, "it ended with %d, expected %d: %.200s", status, wanted, c->text.p ? c->text.p
                : "");
    if (l->says && (o->early || !l->code) && !printed(c, 0, l->says))
        fail_as(o, "it did not say \"%s\": %.200s", l->says, c->text.p ? c->text.p : "");
    if (printed(c, 0, "lost"))
        fail_as(o, "it said that something is lost");
    if (o->cpu > LATE_MS)
        fail_as(o, "it took %.0f ms of processor time %s", o->cpu, o->early ? "in all"
                : "after the signal");
}

static void run_loop(const struct loop *l, int number, struct outcome *o)
{
    struct child c;
    struct place p;
    open_place(&p, l, number);
    start_loop(&c, l, &p);
    reach(&c, l, &p, o);
    o->early = c.gone;
    double before = o->early ? 0 : used_ms(&c);
    uint64_t t0 = clock_ns();
    if (!c.gone) /* its number may be another process's by now */
        kill(c.pid, SIGTERM);
    if (!AWAIT(&c, c.gone))
        fail_as(o, "it did not end within %d s", hang_ms() / 1000);
    o->wall = o->early ? 0 : ms_since(t0);
    if (c.gone) {
        o->cpu = used_ms(&c) - before;
        judge(&c, l, o);
    }
    end_child(&c);
    close_place(&p);
}

/* Whether the file has the function that a row names. */
static bool names_a_function(const struct loop *l)
{
    struct buf text = {0};
    struct err e;
    char *call = xasprintf("%s(", l->function);
    bool found = buf_read_file(&text, l->file, 1 << 20, &e) && strstr(text.p, call);
    buf_free(&text);
    free(call);
    return found;
}

/* A worker takes the next row that nobody has taken. */
static void work(struct outcome *o, _Atomic int *next)
{
    setsid();
    signal(SIGHUP, SIG_IGN);
    signal(SIGTTOU, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    for (int i; (i = (*next)++) < N_LOOPS;)
        run_loop(&loops[i], i, &o[i]);
    _exit(0);
}

static void set_environment(void)
{
    char *config = path_in(top, "config"), *folder = path_in(top, "config/aerie");
    struct buf device = {0};
    CHECK(mkdir(config, 0700) == 0 && mkdir(folder, 0700) == 0);
    buf_str(&device, "device = cpu\nload = map\n");
    write_new(folder, "config", &device);
    setenv("XDG_CONFIG_HOME", config, 1);
    setenv("TERM", "xterm-256color", 1);
    setenv("COLORFGBG", "15;0", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    buf_free(&device);
    free(config);
    free(folder);
}

int main(void)
{
    enum { WORKERS = 4 };
    struct shared {
        _Atomic int next;
        struct outcome o[N_LOOPS];
    } *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *tmp = getenv("TMPDIR"), *built = getenv("AERIE"), *build = getenv("BUILD"),
        *print = getenv("AERIE_SIGNALS");
    int bad = 0;
    top = xasprintf("%s/aerie-loops-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    CHECK(all != MAP_FAILED && mkdtemp(top));
    aerie = built ? built : "build/aerie";
    hooked = path_in(build ? build : "build/release-cpu", "tests/hooked_aerie");
    set_environment();
    make_texts();
    make_records();
    make_log(aerie);
    for (int i = 0; i < WORKERS; i++)
        if (fork() == 0)
            work(all->o, &all->next);
    while (wait(NULL) > 0)
        ;
    double cpu = 0, wall = 0;
    for (int i = 0; i < N_LOOPS; i++) {
        const struct loop *l = &loops[i];
        struct outcome *o = &all->o[i];
        if (!names_a_function(l))
            fail_as(o, "%s has no %s()", l->file, l->function);
        printf("%s %d - %s", o->wrong[0] ? "not ok" : "ok", i + 1, l->name);
        if (print)
            printf(" [%s %s(): %s] %s%.0f ms, %.0f of the processor", l->file, l->function, l->ends,
                   o->early ? "ended before; " : "", o->wall, o->cpu);
        printf("\n");
        if (o->wrong[0])
            printf("# %s\n", o->wrong);
        bad += o->wrong[0] != '\0';
        cpu = o->cpu > cpu ? o->cpu : cpu;
        wall = o->wall > wall ? o->wall : wall;
    }
    printf("# %d loops; the latest end %.0f ms after the signal, the most processor time %.0f ms\n",
           N_LOOPS, wall, cpu);
    printf("1..%d\n", N_LOOPS);
    remove_tree(top);
    return bad > 0;
}
