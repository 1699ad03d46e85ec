/* test_memory.c - how much memory each reader takes for a byte of its input (tests/SECURITY.md
 * lists the factors).
 *
 * The inputs are those that need the most: many small values. Each is read in a process of its own,
 * whose greatest size in memory is that of the kernel's account, less what the process had
 * before. */
#include "kernels/json_read.h"
#include "kernels/sanitizers.h"
#include "tests/history_kit.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/wait.h>

#include "engine/remote/answer.h"
#include "engine/remote/kv_blocks.h"
#include "engine/remote/metrics.h"
#include "engine/remote/records.h"
#include "engine/remote/wire.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors.h"
#include "tests/gguf_kit.h"
#include "models/tokenizer/tokenizer.h"
#include "repl/http/ask.h"

/* ---- what Jansson takes ---------------------------------------------------------------------- */

static size_t taken, peak;

static void *count_alloc(size_t n)
{
    void *p = malloc(n);
    taken += malloc_usable_size(p) + 8;
    peak = taken > peak ? taken : peak;
    return p;
}

static void count_free(void *p)
{
    taken -= p ? malloc_usable_size(p) + 8 : 0;
    free(p);
}

static void any_string(struct buf *b)
{
    static const char *const piece[] = {"a", "\\n", "\\u00e9", "\xC3\xA9", "[", "{", ",:", "\\\"",
                                        "0123456789abcdef"};
    buf_char(b, '"');
    for (unsigned n = below(4) ? below(4) : below(60); n; n--)
        buf_str(b, piece[below(9)]);
    buf_char(b, '"');
}

static void any_value(struct buf *b, int depth)
{
    static const char *const word[] = {"0", "-1", "12345", "1.5e3", "true", "false", "null",
                                       "9007199254740993"};
    unsigned kind = below(depth ? 8 : 5), n = below(12);
    if (kind < 4)
        buf_str(b, word[below(8)]);
    else if (kind == 4)
        any_string(b);
    else {
        buf_char(b, kind == 5 ? '[' : '{');
        for (unsigned i = 0; i < n; i++) {
            buf_str(b, i ? below(3) ? "," : " ,\n" : "");
            if (kind != 5)
                buf_printf(b, below(3) ? "\"%u\":" : "\"key %u\" : ", i);
            any_value(b, depth - 1);
        }
        buf_char(b, kind == 5 ? ']' : '}');
    }
}

/* The text is valid JSON: what Jansson takes for it, at its peak, is no more than is counted
 * before. */
static void assert_counted(const struct buf *b)
{
    taken = peak = 0;
    json_t *v = json_loadb(b->p, b->n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(v);
    json_decref(v);
    assert_int_equal(taken, 0);
    if (json_cost(b->p, b->n) < peak)
        fail_msg("%zu bytes are taken for %zu, %llu were counted: %.200s", peak, b->n,
                 (unsigned long long)json_cost(b->p, b->n), b->p);
}

static void test_no_more_is_taken_than_is_counted(void **state)
{
    (void)state;
    static const char *const unit[] = {"{}", "[]", "1", "-1.5", "\"\"", "\"a\"", "null", "true",
                                       "[1]", "[[]]", "{\"a\":1}",
                                       "{\"a\":{}}", "{\"a\":null}", "[1,2,3,4,5,6,7,8,9]",
                                       "\"\\u00e9\"",
                                       "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9}"};
    struct buf b = {0};
    json_set_alloc_funcs(count_alloc, count_free);
    for (size_t u = 0; u < sizeof unit / sizeof *unit; u++)
        for (int n = 1; n < 20000; n *= 3) {
            buf_clear(&b);
            for (int i = 0; i < n; i++)
                buf_printf(&b, "%c%s", i ? ',' : '[', unit[u]);
            buf_char(&b, ']');
            assert_counted(&b);
        }
    for (int n = 1; n < 20000; n *= 3) { /* the members of one object */
        buf_clear(&b);
        for (int i = 0; i < n; i++)
            buf_printf(&b, "%c\"%x\":%s", i ? ',' : '{', (unsigned)i, unit[i % 9]);
        buf_char(&b, '}');
        assert_counted(&b);
    }
    for (size_t n = 1; n < 1 << 20; n = 3 * n + 1) { /* one string */
        buf_clear(&b);
        buf_char(&b, '"');
        while (b.n < n)
            buf_char(&b, 'x');
        buf_char(&b, '"');
        assert_counted(&b);
    }
    for (int i = 0; i < 3000; i++) {
        buf_clear(&b);
        any_value(&b, 5);
        assert_counted(&b);
    }
    json_set_alloc_funcs(malloc, free);
    buf_free(&b);
}

/* `n` bytes: head, then unit after unit with `between` them, then tail. */
static void fill(struct buf *b, const char *head, const char *unit, const char *between,
                 const char *tail, size_t n)
{
    buf_clear(b);
    buf_str(b, head);
    buf_str(b, unit);
    while (b->n < n) {
        buf_str(b, between);
        buf_str(b, unit);
    }
    buf_str(b, tail);
}

static void test_too_many_small_values_are_refused_with_their_line(void **state)
{
    (void)state;
    static const struct { const char *unit; bool ok; } row[] = {
        {"{}", false}, {"[]", false}, {"[[]]", false}, {"{\"a\":{}}", false}, {"{\"a\":1}", false},
        {"\"\"", false},
        {"1", true}, {"12345", true}, {"null", true}, {"\"some text\"", true},
        {"{\"role\":\"user\",\"content\":\"a\"}", true},
        {"{\"token\":\"a\",\"logprob\":-0.1,\"bytes\":[97]}", true}};
    struct buf b = {0};
    json_set_alloc_funcs(count_alloc, count_free);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        json_error_t why;
        taken = peak = 0;
        fill(&b, "[", row[i].unit, ",", "]", 2 << 20);
        json_t *v = json_parse(b.p, b.n, 0, &why);
        if ((v != NULL) != row[i].ok)
            fail_msg("%s, again and again: %s", row[i].unit, v ? "was read" : why.text);
        assert_true(peak <= (size_t)JSON_FACTOR * b.n + JSON_SPARE);
        assert_true(row[i].ok ||
                    (peak == 0 && why.line == 1 &&
                     json_error_code(&why) == json_error_out_of_memory));
        json_decref(v);
        fill(&b, "[", row[i].unit, ",", "]", 10000); /* a small text is read, whatever is in it */
        v = json_parse(b.p, b.n, 0, &why);
        assert_non_null(v);
        json_decref(v);
    }
    fill(&b, "[\n\n", "{},", "\n", "{}]", 2 << 20);
    json_error_t why;
    assert_null(json_parse(b.p, b.n, 0, &why));
    assert_true(why.line > 1000 && why.position > 1000);
    json_set_alloc_funcs(malloc, free);
    buf_free(&b);
}

/* A stop ends the parsing of a long text; without one the result is that of json_loadb(). */
static void test_parsing_ends_when_it_is_stopped(void **state)
{
    (void)state;
    struct stop stop = {.submitted = 1, .running = 1};
    struct buf b = {0};
    json_error_t why;
    fill(&b, "[", "{\"role\":\"user\",\"content\":\"a\\u00e9\\u0000\"}", ",", "]", 3 << 20);
    json_t *want = json_parse(b.p, b.n, JSON_ALLOW_NUL, &why);
    json_stop_on(&stop);
    json_t *got = json_parse(b.p, b.n, JSON_ALLOW_NUL, &why);
    assert_true(want && json_equal(want, got));
    json_decref(got);
    assert_null(json_parse(b.p, b.n - 1, JSON_ALLOW_NUL, &why)); /* it is cut */
    assert_null(strstr(why.text, "stopped"));
    stop_all(&stop);
    assert_null(json_parse(b.p, b.n, JSON_ALLOW_NUL, &why));
    assert_string_equal(why.text, "stopped");
    assert_null(json_parse(b.p, b.n, JSON_ALLOW_NUL, NULL));
    json_stop_on(NULL);
    got = json_parse(b.p, b.n, JSON_ALLOW_NUL, NULL);
    assert_true(json_equal(want, got));
    json_decref(got);
    json_decref(want);
    buf_free(&b);
}

/* An integer that 64 bits do not hold, which Python writes, is a real number; all else is equal. */
static void test_integers_of_any_length_are_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text, *same; /* NULL: refused */
    } cases[] = {
        {"[1000000000000000019884624838656]", "[1e30]"},
        {"[-1000000000000000019884624838656,1,\"1000000000000000019884624838656\"]",
         "[-1e30,1,\"1000000000000000019884624838656\"]"},
        {"[9223372036854775807,9223372036854775808]", "[9223372036854775807,9223372036854775808.0]"},
        {"[-9223372036854775808,-9223372036854775809]",
         "[-9223372036854775808,-9223372036854775809.0]"},
        {"{\"a\\\"12345678901234567890\":12345678901234567890}",
         "{\"a\\\"12345678901234567890\":12345678901234567890.0}"},
        {"[12345678901234567890.5,12345678901234567890e2,12345678901234567890]",
         "[12345678901234567890.5,12345678901234567890e2,12345678901234567890.0]"},
        {"[12345678901234567890,1e999]", NULL},
        {"[12345678901234567890,]", NULL},
        {"[12345678901234567890", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *s = cases[i].text, *same = cases[i].same;
        json_t *got = json_parse_wide(s, strlen(s), NULL);
        json_t *want = same ? json_loads(same, 0, NULL) : NULL;
        assert_null(json_parse(s, strlen(s), 0, NULL));
        if (!same != !got || (same && !json_equal(got, want)))
            fail_msg("%s", s);
        json_decref(got);
        json_decref(want);
    }
}

/* ---- what a process takes -------------------------------------------------------------------- */

/* The greatest size of this process in memory, in bytes, since the last call with `reset`; 0: not
 * known. */
static size_t most_memory(bool reset)
{
    char line[256];
    size_t kb = 0;
    int fd = reset ? open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC) : -1;
    if (fd >= 0 && write(fd, "5", 1) != 1)
        kb = 0;
    if (fd >= 0)
        close(fd);
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %zu", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb << 10;
}

struct used {
    size_t bytes; /* beside the input */
    bool accepted;
};

/* Runs read(input) in a process of its own. */
static struct used memory_of(bool (*read_input)(const struct buf *in), const struct buf *in)
{
    struct used u;
    int pipe_of[2], status;
    assert_int_equal(pipe(pipe_of), 0);
    pid_t child = fork();
    if (child == 0) {
        malloc_trim(0);
        size_t before = most_memory(true);
        u.accepted = read_input(in);
        u.bytes = most_memory(false) - before;
        _exit(write(pipe_of[1], &u, sizeof u) != sizeof u);
    }
    close(pipe_of[1]);
    ssize_t got = read(pipe_of[0], &u, sizeof u);
    close(pipe_of[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(got == sizeof u && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return u;
}

static char *file_of(const char *name, const void *p, size_t n)
{
    char *path = xasprintf("%s/%s", scratch, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

/* ---- the readers ----------------------------------------------------------------------------- */

static bool read_config(const struct buf *in)
{
    struct err e;
    char *path = file_of("config.json", in->p, in->n);
    json_t *o = json_open(path, NULL, &e);
    return o != NULL;
}

static bool read_safetensors(const struct buf *in)
{
    struct err e;
    struct buf file = {0};
    uint64_t n = in->n;
    buf_add(&file, &n, 8); /* a little-endian machine */
    buf_add(&file, in->p, in->n);
    char *path = file_of("model.safetensors", file.p, file.n);
    buf_free(&file);
    most_memory(true);
    struct safetensors *s = st_open(path, &e);
    return s != NULL;
}

static bool read_gguf(const struct buf *in)
{
    struct err e;
    char *path = file_of("x.gguf", in->p, in->n);
    most_memory(true);
    return st_open(path, &e) != NULL;
}

static bool read_tokenizer(const struct buf *in)
{
    struct err e;
    char *path = file_of("tokenizer.json", in->p, in->n);
    struct tokenizer *t = tok_open(path, &e);
    return t != NULL;
}

static struct tokenizer *tok;

static bool read_body(const struct buf *in)
{
    struct ask a;
    struct refusal r = {0};
    const struct ask_of of = {.model = "m", .tok = tok, .context = 1 << 30, .vocab = 100,
                              .set.top_p = 1};
    return ask_read(&a, &of, false, in->p, in->n, &r);
}

static bool read_record(const struct buf *in)
{
    struct err e;
    struct record r;
    return record_read(&r, in->p, in->n, &e);
}

static bool take_answer(void *arg, const char *data, size_t n, struct err *e)
{
    struct answer a;
    (void)arg;
    bool ok = answer_read(&a, data, n, e);
    if (ok)
        answer_free(&a);
    return ok;
}

static bool read_stream(const struct buf *in)
{
    struct err e;
    struct wire w = {.form = WIRE_SSE};
    for (size_t at = 0; at < in->n; at += 65536)
        if (!wire_feed(&w, in->p + at, in->n - at < 65536 ? in->n - at : 65536, take_answer, NULL,
                       &e))
            return false;
    return wire_end(&w, take_answer, NULL, &e);
}

static bool read_metrics(const struct buf *in)
{
    struct err e;
    struct metrics m;
    return metrics_read(&m, in->p, in->n, &e);
}

static void take_event(void *arg, const struct kv_event *ev)
{
    kv_blocks_apply(arg, ev);
}

static bool read_kv_events(const struct buf *in)
{
    struct err e;
    struct kv_batch b;
    struct kv_blocks k;
    kv_blocks_init(&k);
    return kv_batch_read(&b, in->p, in->n, take_event, &k, &e) && b.n_event > b.n_refused;
}

enum {
    TEXT_BYTES = 2 << 20,
    SPARE_BYTES = 2 << 20, /* whatever the input: tables of a fixed size, JSON_SPARE */
};

/* What a text may look like, and the factor that SECURITY.md gives for its reader. */
static const struct text {
    const char *what;
    bool (*read)(const struct buf *in);
    const char *head, *unit, *between, *tail;
    int factor;
} texts[] = {
    {"config.json: empty objects", read_config, "{\"a\":[", "{}", ",", "]}", 36},
    {"config.json: digits", read_config, "{\"a\":[", "1", ",", "]}", 36},
    {"config.json: a string", read_config, "{\"a\":\"", "aaaaaaaa", "", "\"}", 36},
    {"a header: entries", read_safetensors, "{",
     "\"%x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", ",", "}", 36},
    {"a header: objects", read_safetensors, "{\"__metadata__\":{},\"a\":[", "{}", ",", "]}", 36},
    {"tokenizer.json: a vocabulary", read_tokenizer,
     "{\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"merges\":[],\"vocab\":{",
     "\"%x\":%u", ",", "}}}", 16},
    {"tokenizer.json: added tokens", read_tokenizer,
     "{\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"merges\":[],\"vocab\":{\"a\":0}},\"added_tokens\":[",
     "{\"id\":%u,\"content\":\"k%x\"}", ",", "]}", 16},
    {"tokenizer.json: merges", read_tokenizer,
     "{\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[", "\"a b\"", ",", "]}}", 16},
    {"tokenizer.json: steps", read_tokenizer,
     "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", "{}", ",", "]}}}", 16},
    {"a body: empty objects", read_body, "{\"model\":\"m\",\"prompt\":[", "{}", ",", "]}", 48},
    {"a body: ids", read_body, "{\"model\":\"m\",\"prompt\":[", "1", ",", "]}", 48},
    {"a body: text", read_body, "{\"model\":\"m\",\"prompt\":\"", "a b ", "", "\"}", 48},
    {"a record: messages", read_record, "{\"messages\":[", "{\"role\":\"user\",\"content\":\"a\"}",
     ",", "]}", 48},
    {"a record: ids", read_record, "{\"prompt\":[1],\"choices\":[{\"text\":\"a\",\"token_ids\":[",
     "1", ",", "]}]}", 48},
    {"a record: objects", read_record, "{\"prompt\":\"a\",\"choices\":[", "{}", ",", "]}", 48},
    {"a record: log probabilities", read_record,
     "{\"prompt\":\"a\",\"choices\":[{\"message\":{\"content\":\"a\"},\"logprobs\":{\"content\":[",
     "{\"token\":\"a\",\"logprob\":-1}", ",", "]}}]}", 48},
    {"a stream: an event of digits", read_stream,
     "data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[", "1", ",", "]}]}\n\n", 40},
    {"a stream: an event of objects", read_stream, "data: {\"choices\":[", "{}", ",", "]}\n\n", 40},
    {"a stream: log probabilities", read_stream,
     "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"logprobs\":{\"content\":[",
     "{\"token\":\"a\",\"logprob\":-1,\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-1}]}", ",",
     "]}}]}\n\n", 40},
    {"a stream: lines", read_stream, "", "data: 1\n", "", "\n\n", 40},
    {"a stream: events", read_stream, "", "data: {\"choices\":[]}\n\n", "", "", 40},
    {"metrics: samples", read_metrics, "", "a 1\n", "", "", 4},
    {"metrics: lines that are none", read_metrics, "", "\n", "", "", 4},
};

/* Units that ask for numbers get theirs, twice. */
static void fill_numbered(struct buf *b, const struct text *t)
{
    if (!strchr(t->unit, '%')) {
        fill(b, t->head, t->unit, t->between, t->tail, TEXT_BYTES);
        return;
    }
    buf_clear(b);
    buf_str(b, t->head);
    for (unsigned i = 1; b->n < TEXT_BYTES; i++) {
        buf_str(b, i > 1 ? t->between : "");
        buf_printf(b, t->unit, i, i);
    }
    buf_str(b, t->tail);
}

static void within(const char *what, const struct buf *in, struct used u, int factor)
{
    print_message("# %-29s %-8s %5.1f bytes for each of %zu: at most %d\n", what,
                  u.accepted ? "accepted" : "refused",
                  (double)u.bytes / (double)in->n, in->n, factor);
#if !HAS_ASAN /* whose shadow and quarantine are counted, too */
    if (u.bytes > (size_t)factor * in->n + SPARE_BYTES)
        fail_msg("%s: %zu bytes of memory for %zu bytes", what, u.bytes, in->n);
#endif
}

static void test_the_readers_of_texts(void **state)
{
    (void)state;
    struct err e;
    tok = tok_open("models/nestling/target", &e);
    struct buf b = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fill_numbered(&b, &texts[i]);
        struct used u = memory_of(texts[i].read, &b);
        within(texts[i].what, &b, u, texts[i].factor);
    }
    buf_free(&b);
    tok_close(tok);
}

static void begin_gguf(struct gw *w)
{
    gw_string(w, "general.architecture", "qwen3moe");
    gw_u32(w, "qwen3moe.block_count", 1);
    gw_u32(w, "qwen3moe.embedding_length", 1);
    gw_u32(w, "qwen3moe.attention.head_count", 1);
    gw_u32(w, "qwen3moe.context_length", 1);
    gw_u32(w, "qwen3moe.expert_count", 1);
    gw_u32(w, "qwen3moe.expert_used_count", 1);
    gw_u32(w, "qwen3moe.expert_feed_forward_length", 1);
    gw_f32(w, "qwen3moe.attention.layer_norm_rms_epsilon", 1);
    gw_tensor(w, "token_embd.weight", GGUF_F32, 2, (const int64_t[]){1, 1}, "abcd", 4);
}

/* GGUF files of short keys, of empty strings, of small tensors, and of experts that are each a
 * tensor. */
static void test_the_reader_of_gguf(void **state)
{
    (void)state;
    static const char *const what[] = {"GGUF: keys", "GGUF: tokens", "GGUF: tensors",
                                       "GGUF: experts"};
    static char zeros[4096];
    for (int k = 0; k < 4; k++) {
        struct gw w = {0};
        char name[64];
        begin_gguf(&w);
        if (k == 1) {
            gw_array(&w, "tokenizer.ggml.tokens", GW_STRING, TEXT_BYTES / 8);
            for (int i = 0; i < TEXT_BYTES / 8; i++)
                gw_text(&w.keys, "");
        }
        for (int i = 0; k != 1 && i < (k == 3 ? 500 : 30000); i++) {
            snprintf(name, sizeof name, k == 3 ? "blk.%d.ffn_up_exps.weight" : "%x", (unsigned)i);
            if (k == 0)
                gw_bool(&w, name, true);
            else if (k == 2)
                gw_tensor(&w, name, GGUF_I8, 1, (const int64_t[]){1}, "a", 1);
            else
                gw_tensor(&w, name, GGUF_I8, 3, (const int64_t[]){512, 1, 1}, zeros, 512);
        }
        struct buf b = gw_bytes(&w);
        struct used u = memory_of(read_gguf, &b);
        assert_true(u.accepted || k == 3);
        within(what[k], &b, u, k == 3 ? 400 : 24);
        buf_free(&b);
    }
}

/* Batches of KV events: hashes of a byte, each of which becomes a block. */
static void test_the_reader_of_kv_events(void **state)
{
    (void)state;
    struct buf b = {0};
    static const uint8_t head[] = {0x92, 0, 0xdd, 0, 0, 0, 8};
    buf_add(&b, head, sizeof head);
    for (int e = 0; e < 8; e++) { /* ["BlockStored", 65536 hashes, nil, 0 tokens, 1] */
        static const uint8_t event[] = {0x95, 0xab, 'B', 'l', 'o', 'c', 'k', 'S', 't', 'o', 'r',
                                        'e', 'd', 0xdd, 0, 1, 0, 0}, end[] = {0xc0, 0x90, 1};
        buf_add(&b, event, sizeof event);
        for (int i = 0; i < 65536; i++) {
            const uint8_t hash[] = {0xce, (uint8_t)e, (uint8_t)(i >> 8), (uint8_t)i, 7};
            buf_add(&b, hash, 5);
        }
        buf_add(&b, end, sizeof end);
    }
    struct used u = memory_of(read_kv_events, &b);
    assert_true(u.accepted);
    within("KV events", &b, u, 64);
    buf_free(&b);
}

static char pack_path[160];

static bool take_turn(const struct turn_row *r, void *arg)
{
    (void)r, (void)arg;
    return true;
}

static bool read_pack(const struct buf *in)
{
    struct err e;
    (void)in;
    struct hdb *d = hdb_open(pack_path, &e);
    return d && hdb_turns(d, hdb_packed(d)->session, 0, take_turn, NULL, &e) == 2;
}

/* A pack with one long message: the file, and the message as SQLite and aerie hold it. */
static void test_the_reader_of_packs(void **state)
{
    (void)state;
    static const char id[] = "01PACK0000000000000000000M";
    struct history *h = log_open(LOG_TREE);
    struct ids context = {0};
    struct made_turn t;
    struct err e = {0};
    post_session(h, id, "", 0);
    make_turn(&t, id, 1, &context);
    fill(&t.begin.text, "", "words and words, ", "", "", TEXT_BYTES);
    post_turn(h, &t, t.n_steps, true);
    assert_true(history_flush(h, 60000));
    history_close(h);
    free_turn(&t);
    ids_free(&context);
    snprintf(pack_path, sizeof pack_path, "%s/some pack.aerie", scratch);
    struct hdb *d = read_open();
    struct pack_opts o = {.level = PACK_TEXT, .made_by = "the test"};
    if (!hdb_pack(d, id, &o, pack_path, NULL, &e))
        fail_msg("%s", e.msg);
    hdb_close(d);
    struct buf b = {0};
    assert_true(buf_read_file(&b, pack_path, 64 << 20, &e));
    struct used u = memory_of(read_pack, &b);
    assert_true(u.accepted);
    within("a pack", &b, u, 12);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_more_is_taken_than_is_counted),
        cmocka_unit_test(test_too_many_small_values_are_refused_with_their_line),
        cmocka_unit_test(test_parsing_ends_when_it_is_stopped),
        cmocka_unit_test(test_integers_of_any_length_are_numbers),
        TEST(test_the_readers_of_texts),
        TEST(test_the_reader_of_gguf),
        TEST(test_the_reader_of_kv_events),
        TEST(test_the_reader_of_packs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
