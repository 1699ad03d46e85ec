/* test_tokenizer.c - equal to the reference, near-linear, and unharmed by bad files.
 *
 * The fixtures in tests/tokenizers/ were made by make.py there. Five full tokenizers with 181 texts
 * each, and small ones that use every option; a text of a megabyte; files broken one by one and at
 * random; decoding in a stream against decoding as a whole.
 */
#include "kernels/sanitizers.h"
#include "tests/few.h"
#include "tests/tokens_kit.h"

#include <time.h>

static bool same_ids(const struct ids *got, const json_t *want)
{
    if ((size_t)got->n != json_array_size(want))
        return false;
    for (int i = 0; i < got->n; i++)
        if (got->v[i] != json_integer_value(json_array_get(want, (size_t)i)))
            return false;
    return true;
}

/* One text: its ids under flags, and what they decode to. */
static void check_case(const struct tokenizer *t, const json_t *c, const char *key, unsigned flags,
                       const char *where)
{
    const json_t *text = json_object_get(c, "text"), *decoded = json_object_get(c, "decoded");
    struct ids ids = {0};
    struct err e = {0};
    if (!tok_encode(t, json_string_value(text), json_string_length(text), flags, &ids, &e))
        fail_msg("%s: %s", where, e.msg);
    if (!same_ids(&ids, json_object_get(c, key)))
        fail_msg("%s: other %s for \"%.200s\"", where, key, json_string_value(text));
    if (decoded && flags) {
        struct buf out = {0};
        tok_decode(t, ids.v, ids.n, &out);
        if (out.n != json_string_length(decoded) ||
            (out.n && memcmp(out.p, json_string_value(decoded), out.n) != 0))
            fail_msg("%s: \"%.200s\" decodes to \"%.200s\"", where, json_string_value(text), out.p);
        buf_free(&out);
    }
    ids_free(&ids);
}

static void check_full(const char *name)
{
    struct buf lines = {0};
    struct tokenizer *t = open_full(name);
    int n = 0;
    read_text(name, ".cases", &lines);
    for (char *p = lines.p, *end; *p; p = end + 1, n++) {
        end = strchrnul(p, '\n');
        json_t *c = json_loadb(p, (size_t)(end - p), JSON_ALLOW_NUL, NULL);
        assert_non_null(c);
        check_case(t, c, "ids", TOK_SPECIAL, name);
        json_decref(c);
    }
    assert_int_equal(n, 181);
    buf_free(&lines);
    tok_close(t);
}

static void test_gpt2_equals_the_reference(void **state) { (void)state, check_full("gpt2"); }
static void test_cl100k_equals_the_reference(void **state) { (void)state, check_full("cl100k"); }
static void test_o200k_equals_the_reference(void **state) { (void)state, check_full("o200kpat"); }
static void test_qwen_equals_the_reference(void **state) { (void)state, check_full("qwenpat"); }
static void test_gemma_equals_the_reference(void **state) { (void)state, check_full("gemmastyle"); }

static void test_every_option_equals_the_reference(void **state)
{
    (void)state;
    struct buf text = {0};
    read_text("variants", ".json", &text);
    json_t *all = json_loadb(text.p, text.n, JSON_ALLOW_NUL, NULL), *v, *c;
    size_t i, k;
    assert_int_equal(json_array_size(all), 58);
    json_array_foreach(all, i, v) {
        char where[32];
        struct tokenizer *t = open_json(json_object_get(v, "file"));
        snprintf(where, sizeof where, "variant %zu", i);
        json_array_foreach(json_object_get(v, "cases"), k, c) {
            check_case(t, c, "ids", TOK_SPECIAL, where);
            check_case(t, c, "plain", 0, where);
        }
        tok_close(t);
    }
    json_decref(all);
    buf_free(&text);
}

/* ---- size ---- */

/* An unoptimised or sanitised build is not measured, only kept from hanging. */
#if defined(__OPTIMIZE__) && !HAS_ASAN && !HAS_TSAN
enum { SLOW = 1 };
#else
enum { SLOW = 20 };
#endif

/* Processor seconds, which other work on the machine does not lengthen. */
static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static void test_long_text_of_anything_takes_less_than_a_second(void **state)
{
    (void)state;
    static const char *const name[] = {"gpt2", "cl100k", "o200kpat", "qwenpat", "gemmastyle"};
    static const char *const unit[] = {"A", " ", "\xE4\xBD\xA0", "\xF0\x9F\x98\x80", "\n", "a ",
                                       "\xCC\x96\xCC\x81", "<|", " \n"};
    size_t bytes = (size_t)rounds(1 << 17, 1 << 20);
    for (int i = 0; i < 5; i++) {
        struct tokenizer *t = open_full(name[i]);
        for (size_t u = 0; u < sizeof unit / sizeof *unit; u++) {
            struct buf text = {0};
            struct ids ids = {0};
            while (text.n + strlen(unit[u]) <= bytes)
                buf_str(&text, unit[u]);
            double start = seconds();
            assert_true(tok_encode(t, text.p, text.n, TOK_SPECIAL, &ids, NULL));
            double took = seconds() - start;
            if (took > SLOW)
                fail_msg("%s: %zu bytes of \"%s\" took %.2f s", name[i], text.n, unit[u], took);
            struct buf back = {0};
            tok_decode(t, ids.v, ids.n, &back);
            if (i != 3) /* which puts marks in order */
                assert_true(back.n == text.n && memcmp(back.p, text.p, text.n) == 0);
            buf_free(&back);
            buf_free(&text);
            ids_free(&ids);
        }
        tok_close(t);
    }
}

/* ---- a small tokenizer to break ---- */

static const char small[] =
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":8,\"content\":\"<s>\",\"special\":true},"
    "{\"id\":9,\"content\":\"cab\",\"normalized\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
    "{\"type\":\"Replace\","
    "\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}]},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
    "{\"Regex\":\"\\\\p{N}{1,3}|(?i:ab)\"},\"behavior\":\"Isolated\",\"invert\":false}]},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
    "\"pattern\":{\"String\":"
    "\"\\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":"
    "\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
    "\"<s>\",\"type_id\":0}}]},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":\"<unk>\",\"fuse_unk\":true,"
    "\"byte_fallback\":true,\"ignore_merges\":false,\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,"
    "\"c\":3,\"ab\":4,\"\\u2581\":5,\"abc\":6,\"<0xC3>\":7,\"<0xA9>\":10},"
    "\"merges\":[[\"a\",\"b\"],\"ab c\"]}}";

static struct tokenizer *open_small(void)
{
    struct err e = {0};
    write_file(small, sizeof small - 1);
    struct tokenizer *t = tok_open(path, &e);
    if (!t)
        fail_msg("%s", e.msg);
    return t;
}

static void assert_ids(const struct tokenizer *t, const char *text, unsigned flags, int n, ...)
{
    struct ids ids = {0};
    va_list ap;
    assert_true(tok_encode(t, text, strlen(text), flags, &ids, NULL));
    assert_int_equal(ids.n, n);
    va_start(ap, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(ids.v[i], va_arg(ap, int));
    va_end(ap);
    ids_free(&ids);
}

static void test_special_tokens_match_only_when_asked(void **state)
{
    (void)state;
    struct tokenizer *t = open_small();
    assert_ids(t, "a<s>cab", TOK_SPECIAL, 3, 1, 8, 9);
    assert_ids(t, "a<s>cab", 0, 3, 1, 0, 9); /* <s> is three unknown characters, fused */
    assert_int_equal(tok_find(t, "<s>"), 8);
    assert_int_equal(tok_find(t, "cab"), 9);
    assert_int_equal(tok_find(t, "abc"), 6);
    assert_int_equal(tok_find(t, "ca"), -1);
    assert_true(tok_is_special(t, 8));
    assert_false(tok_is_special(t, 9));
    assert_int_equal(tok_bos(t), 8);
    assert_int_equal(tok_vocab(t), 11);
    tok_close(t);
}

/* The mark of a text's beginning is put where the text begins, not before what is left of it. */
static void test_the_first_piece_is_the_one_that_begins_the_text(void **state)
{
    static const char begin[] = "\"pretokenizers\":[";
    (void)state;
    struct err e = {0};
    struct buf b = {0};
    const char *from = strstr(small, begin) + strlen(begin), *to = strstr(small, "]},\"decoder\"");
    buf_add(&b, small, (size_t)(from - small));
    buf_str(&b, "{\"type\":\"Split\",\"pattern\":{\"String\":\"c\"},\"behavior\":\"Removed\","
                "\"invert\":false},{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\","
                "\"prepend_scheme\":\"first\",\"split\":true}");
    buf_str(&b, to);
    write_file(b.p, b.n);
    struct tokenizer *t = tok_open(path, &e);
    if (!t)
        fail_msg("%s", e.msg);
    assert_ids(t, "b", 0, 2, 5, 2);
    assert_ids(t, "bcb", 0, 3, 5, 2, 2);
    assert_ids(t, "cb", 0, 1, 2);
    tok_close(t);
    buf_free(&b);
}

static void test_text_that_is_not_utf8_is_replaced(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"a\xFF", "a\xEF\xBF\xBD"}, {"\xE2\x82" "b", "\xEF\xBF\xBD" "b"},
        {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"}, {"\xED\xA0\x80",
         "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF0\x9F\x98", "\xEF\xBF\xBD"}, {"\xF4\x90\x80\x80",
         "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
    };
    struct tokenizer *t = open_full("gpt2");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct ids a = {0}, b = {0};
        assert_true(tok_encode(t, wrong[i][0], strlen(wrong[i][0]), 0, &a, NULL));
        assert_true(tok_encode(t, wrong[i][1], strlen(wrong[i][1]), 0, &b, NULL));
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.v, b.v, (size_t)a.n * sizeof *a.v);
        ids_free(&a);
        ids_free(&b);
    }
    tok_close(t);
}

/* Looking for specials in any text must not let one through when they are not wanted. */
static void test_plain_text_never_becomes_special(void **state)
{
    (void)state;
    static const char *const part[] = {"<|", "|>", "<|start|>", "<|end|>", "<bos>", "<eos>", "<",
                                       "<end_of_turn>", "start", " ", "\n", "<|endoftext|>", "_"};
    static const char *const name[] = {"cl100k", "o200kpat", "gemmastyle"};
    srand(11);
    for (int k = 0; k < 3; k++) {
        struct tokenizer *t = open_full(name[k]);
        int unk = tok_find(t, "<unk>");
        for (int round = 0; round < 300; round++) {
            struct buf text = {0};
            struct ids ids = {0};
            for (int i = rand() % 12; i >= 0; i--)
                buf_str(&text, part[(size_t)rand() % (sizeof part / sizeof *part)]);
            assert_true(tok_encode(t, text.p, text.n, 0, &ids, NULL));
            for (int i = 0; i < ids.n; i++)
                assert_false(tok_is_special(t, ids.v[i]) && ids.v[i] != unk);
            buf_free(&text);
            ids_free(&ids);
        }
        tok_close(t);
    }
}

/* ---- how many bytes tokens can stand for ---- */

static void assert_holds(const struct tokenizer *t, const char *text, size_t n, unsigned flags)
{
    struct ids ids = {0};
    assert_true(tok_encode(t, text, n, flags, &ids, NULL));
    if (n > tok_most_bytes(t, ids.n, flags))
        fail_msg("%zu bytes are %d tokens, of at most %zu", n, ids.n,
                 tok_most_bytes(t, ids.n, flags));
    ids_free(&ids);
}

/* No text is refused that the context could hold: each token alone, the longest one again and
 * again, and texts that the steps shorten. */
static void test_no_text_has_more_bytes_than_its_tokens_stand_for(void **state)
{
    static const char *const name[] = {"gpt2", "cl100k", "o200kpat", "qwenpat", "gemmastyle",
                                       "models/nestling/target"};
    static const char *const shorter[] = {"e\xCC\x81", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8",
                                          "\xE2\x84\xAB",
                                          "\xE2\x84\xAA", "\xFF", "   ", "\xF0\x9F\x98\x80"};
    (void)state;
    for (size_t k = 0; k < sizeof name / sizeof *name; k++) {
        struct err e;
        struct tokenizer *t = k < 5 ? open_full(name[k]) : tok_open(name[k], &e);
        size_t longest = 0;
        struct buf text = {0};
        assert_non_null(t);
        for (int id = 0; id < tok_vocab(t); id++) {
            size_t n;
            const char *p = tok_bytes(t, id, &n);
            if (p)
                assert_holds(t, p, n, TOK_SPECIAL);
            longest = p && n > longest ? n : longest;
        }
        for (int id = 0; id < tok_vocab(t); id++) {
            size_t n;
            const char *p = tok_bytes(t, id, &n);
            for (int i = 0; p && n == longest && i < 50; i++)
                buf_add(&text, p, n);
        }
        assert_holds(t, text.p, text.n, 0);
        assert_true(tok_most_bytes(t, 1, 0) < 6 * longest + 64); /* the limit is of use */
        for (size_t i = 0; i < sizeof shorter / sizeof *shorter; i++) {
            buf_clear(&text);
            for (int r = 0; r < 200; r++)
                buf_str(&text, shorter[i]);
            assert_holds(t, text.p, text.n, 0);
        }
        assert_int_equal(tok_most_bytes(t, 0, 0), 0);
        assert_true(tok_most_bytes(t, INT32_MAX, 0) >= (size_t)INT32_MAX);
        buf_free(&text);
        tok_close(t);
    }
}

/* Where steps may drop text there is no limit. */
static void test_a_tokenizer_that_drops_text_has_no_limit(void **state)
{
    static const struct {
        const char *from, *to;
    } change[] = {
        {"", ""}, /* as it is, unknown characters are fused */
        {"\"fuse_unk\":true", "\"fuse_unk\":false"}, /* this one has a limit */
        {"\"String\":\" \"},\"content\":\"\\u2581\"}]}", "\"String\":\" \"},\"content\":\"\"}]}"},
        {"{\"String\":\" \"},\"content\":\"\\u2581\"}]}",
         "{\"Regex\":\" +\"},\"content\":\"\\u2581\"}]}"},
        {"\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\""},
        {"\"content\":\"cab\",\"normalized\":true", "\"content\":\"cab\",\"rstrip\":true"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        struct buf b = {0};
        struct err e;
        const char *s = small, *at;
        for (size_t k = 0; k < 2; k++) { /* all but the first also fuse nothing */
            size_t c = k ? i : i ? 1 : 0;
            if ((k && c <= 1) || !(at = strstr(s, change[c].from)) || !*change[c].from)
                continue;
            struct buf part = {0};
            buf_add(&part, s, (size_t)(at - s));
            buf_str(&part, change[c].to);
            buf_str(&part, at + strlen(change[c].from));
            buf_free(&b);
            b = part;
            s = b.p;
        }
        write_file(s, strlen(s));
        struct tokenizer *t = tok_open(path, &e);
        if (!t)
            fail_msg("%s", e.msg);
        if (i == 1)
            assert_int_equal(tok_most_bytes(t, 2, 0), 2 * 6 * strlen("<0xC3>"));
        else
            assert_true(tok_most_bytes(t, 2, 0) == SIZE_MAX);
        tok_close(t);
        buf_free(&b);
    }
}

/* ---- decoding ---- */

static bool is_complete(const char *p, size_t n)
{
    json_t *s = json_stringn(p, n); /* NULL when it is not UTF-8 */
    json_decref(s);
    return s != NULL;
}

static void check_stream(const struct tokenizer *t, const struct ids *ids, bool text)
{
    struct tok_stream s = {0};
    struct buf streamed = {0}, whole = {0};
    for (int i = 0; i < ids->n; i++) {
        size_t from = streamed.n;
        tok_stream_push(&s, t, ids->v[i], &streamed);
        if (text)
            assert_true(is_complete(streamed.p ? streamed.p + from : "", streamed.n - from));
    }
    tok_stream_flush(&s, &streamed);
    tok_decode(t, ids->v, ids->n, &whole);
    assert_int_equal(streamed.n, whole.n);
    if (whole.n)
        assert_memory_equal(streamed.p, whole.p, whole.n);
    buf_free(&streamed);
    buf_free(&whole);
}

static void test_a_stream_equals_the_whole(void **state)
{
    (void)state;
    static const char *const name[] = {"cl100k", "gemmastyle"};
    static const char text[] = "\xE4\xBD\xA0\xF0\x9F\x98\x80 na\xC3\xAFve "
                               "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80\n";
    srand(3);
    for (int k = 0; k < 2; k++) {
        struct tokenizer *t = open_full(name[k]);
        for (int round = 0; round < 500; round++) { /* any ids, also without text */
            struct ids ids = {0};
            for (int i = rand() % 20; i >= 0; i--)
                ids_add(&ids, rand() % (rand() % 2 ? 300 : tok_vocab(t) + 50) - 5);
            check_stream(t, &ids, false);
            ids_free(&ids);
        }
        struct ids ids = {0};
        assert_true(tok_encode(t, text, sizeof text - 1, 0, &ids, NULL));
        check_stream(t, &ids, true);
        ids_free(&ids);
        tok_close(t);
    }
}

static void test_incomplete_bytes_wait_and_invalid_ones_pass(void **state)
{
    (void)state;
    struct tokenizer *t = open_small();
    struct tok_stream s = {0};
    struct buf out = {0};
    size_t n;
    tok_stream_push(&s, t, 7, &out); /* C3 */
    assert_int_equal(out.n, 0);
    tok_stream_push(&s, t, 10, &out); /* A9 */
    assert_string_equal(out.p, "\xC3\xA9");
    tok_stream_push(&s, t, 7, &out);
    tok_stream_push(&s, t, 1, &out); /* can no longer be completed */
    assert_string_equal(out.p, "\xC3\xA9\xC3" "a");
    tok_stream_push(&s, t, 7, &out);
    tok_stream_flush(&s, &out);
    assert_string_equal(out.p, "\xC3\xA9\xC3" "a\xC3");
    assert_null(tok_bytes(t, -1, &n));
    assert_null(tok_bytes(t, 11, &n));
    assert_null(tok_bytes(t, INT32_MAX, &n));
    buf_clear(&out);
    int32_t ids[] = {5, 5, 1, -7, 8, 4000000, 5};
    tok_decode(t, ids, 7, &out); /* one leading space is stripped */
    assert_string_equal(out.p, " a<s> ");
    buf_free(&out);
    tok_close(t);
}

/* ---- bad files ---- */

/* Each makes 625 characters of one. */
#define A5(x) x x x x x
#define GROW                                                                                       \
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\".\"},\"content\":\"" A5(A5(A5(A5("a")))) "\"}"

static void test_bad_files_are_refused_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *what, *find, *put, *says;
    } bad[] = {
        {"not JSON", "{\"version\"", "\"version\"", "expected an object"},
        {"cut off", "\"ab c\"]}}", "\"ab c\"]", " at byte "},
        {"text behind", "\"ab c\"]}}", "\"ab c\"]}} x", "after the end"},
        {"another version", "1.0", "2.0", "version \"2.0\""},
        {"no model", "\"model\":{\"type\"", "\"mode\":{\"type\"", "\"model\" is missing"},
        {"two models", "\"added_tokens\":[", "\"model\":{},\"added_tokens\":[", "occurs twice"},
        {"another model", "\"BPE\"", "\"Unigram\"", "\"Unigram\" is not supported"},
        {"no vocabulary", "\"vocab\"", "\"vocaB\"", "model.vocab is missing"},
        {"no merges", "\"merges\"", "\"mergeS\"", "model.merges is missing"},
        {"vocabulary a list", "\"vocab\":{\"<unk>\":0", "\"vocab\":[{\"<unk>\":0", "expected"},
        {"id a string", "\"a\":1", "\"a\":\"1\"", "expected a number"},
        {"id negative", "\"a\":1", "\"a\":-1", "id -1 of \"a\" is out of range"},
        {"id huge", "\"a\":1", "\"a\":2147483647", "out of range"},
        {"id beyond 2^53", "\"a\":1", "\"a\":99999999999999999999", "too large"},
        {"id a fraction", "\"a\":1", "\"a\":1.5", "whole number"},
        {"id with leading zero", "\"a\":1", "\"a\":01", "malformed number"},
        {"id twice", "\"b\":2", "\"b\":1", "id 1 occurs twice"},
        {"token twice", "\"b\":2", "\"a\":2", "\"a\" occurs twice"},
        {"merge of one", "\"ab c\"", "\"abc\"", "merges[1]: \"abc\" is not two tokens"},
        {"merge of three", "\"ab c\"", "\"a b c\"", "merges[1]: \"a b c\" is not two tokens"},
        {"merge of an unknown token", "\"ab c\"", "\"ab x\"",
         "merges[1]: \"x\" is not in model.vocab"},
        {"merge into an unknown token", "\"ab c\"", "\"c c\"", "merges[1]: \"cc\" is not in"},
        {"merge a list of one", "[\"a\",\"b\"]", "[\"a\"]", "merges[0]: expected a pair"},
        {"merge a list of three", "[\"a\",\"b\"]", "[\"a\",\"b\",\"c\"]",
         "merges[0]: expected a pair"},
        {"merge a number", "[\"a\",\"b\"]", "7", "expected a string"},
        {"unknown unk", "\"unk_token\":\"<unk>\"", "\"unk_token\":\"<x>\"", "unk_token: \"<x>\""},
        {"dropout", "\"dropout\":null", "\"dropout\":0.1", "model.dropout"},
        {"word suffix", "\"dropout\":null", "\"end_of_word_suffix\":\"</w>\"",
         "end_of_word_suffix"},
        {"flag a number", "\"fuse_unk\":true", "\"fuse_unk\":1", "model.fuse_unk"},
        {"added id of another", "\"id\":8", "\"id\":1", "which another token has"},
        {"added id twice", "\"id\":9", "\"id\":8", "added_tokens[1]"},
        {"added id missing", "\"id\":8,", "", "out of range"},
        {"added token with two ids", "\"<s>\",\"special\"", "\"a\",\"special\"", "another one in"},
        {"added flag a string", "\"special\":true", "\"special\":\"yes\"", "true or false"},
        {"normalizer kind", "\"NFC\"", "\"Lowercase\"",
         "normalizer.normalizers[0]: unsupported kind "
         "\"Lowercase\""},
        {"normalizer without pattern", "\"pattern\":{\"String\":\" \"}", "\"patten\":1", "pattern"},
        {"empty pattern", "{\"String\":\" \"}", "{\"String\":\"\"}", "a pattern of 0 bytes"},
        {"pre-tokenizer kind", "\"Split\"", "\"Whitespace\"",
         "pre_tokenizer.pretokenizers[0]: "
         "unsupported kind \"Whitespace\""},
        {"behaviour", "\"Isolated\"", "\"Alone\"", "unsupported behavior \"Alone\""},
        {"expression", "{1,3}|", "{1,3}|(", "regular expression"},
        {"expression that means something else", "{1,3}|", "[a&&b]|", "a class inside a class"},
        {"expression that matches backwards", "{1,3}|", "{1,3}|(?=(?1))a|zz(ab\\\\K)|", "(?1"},
        {"expression with a start that moves", "{1,3}|", "{1,3}|ab\\\\K|", "\\K"},
        {"decoder that grows without bound", "{\"type\":\"ByteFallback\"}", GROW "," GROW "," GROW,
         "decoder: "},
        {"normalizer that grows without bound", "{\"type\":\"NFC\"}", GROW "," GROW "," GROW,
         "the tokenizer's steps expand the text"},
        {"invert", "\"invert\":false", "\"invert\":0", "invert"},
        {"list a string", "\"pretokenizers\":[", "\"pretokenizerS\":[", "expected an array"},
        {"decoder kind", "\"ByteFallback\"", "\"WordPiece\"",
         "decoder.decoders[1]: unsupported kind"},
        {"decoder order", "{\"type\":\"Fuse\"}", "{\"type\":\"ByteLevel\"}", "unsupported order"},
        {"decoder missing", "\"decoder\":{", "\"decodeR\":{", "decoder: missing"},
        {"strip of two characters", "\"content\":\" \",\"start\"", "\"content\":\"  \",\"start\"",
         "one character"},
        {"strip count", "\"start\":1", "\"start\":-1", "count"},
        {"strip at the text's end", "\"stop\":0", "\"stop\":1", "a strip across tokens"},
        {"lone surrogate", "\"a\":1", "\"\\ud800\":1", "surrogate"},
        {"bad escape", "\"a\":1", "\"\\q\":1", "unknown escape"},
        {"control character", "\"a\":1", "\"\x01\":1", "control character"},
        {"not UTF-8", "\"a\":1", "\"\xFF\":1", "not valid UTF-8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        struct buf b = {0};
        const char *at = strstr(small, bad[i].find);
        assert_non_null(at);
        buf_add(&b, small, (size_t)(at - small));
        buf_str(&b, bad[i].put);
        buf_str(&b, at + strlen(bad[i].find));
        write_file(b.p, b.n);
        struct tokenizer *t = tok_open(path, &e);
        if (t)
            fail_msg("%s: accepted", bad[i].what);
        assert_int_equal(e.kind, ERR_MODEL);
        if (!strstr(e.msg, bad[i].says) || !strstr(e.msg, path) || strchr(e.msg, '\n'))
            fail_msg("%s: said \"%s\"", bad[i].what, e.msg);
        buf_free(&b);
    }
    struct err e = {0};
    assert_null(tok_open("/nonexistent/tokenizer.json", &e));
    assert_int_equal(e.kind, ERR_MODEL);
    char *dir = scratch_folder(), *other = xasprintf("%s/tekken.json", dir);
    assert_null(tok_open(dir, &e));
    assert_non_null(strstr(e.msg, "has no tokenizer.json"));
    fclose(fopen(other, "w"));
    assert_null(tok_open(dir, &e));
    assert_non_null(strstr(e.msg, "only tekken.json"));
    free(other);
    scratch_remove(dir);
}

static void test_deep_nesting_is_refused(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf b = {0};
    buf_str(&b, "{\"post_processor\":");
    for (int i = 0; i < 1000000; i++)
        buf_char(&b, '[');
    write_file(b.p, b.n);
    assert_null(tok_open(path, &e));
    assert_non_null(strstr(e.msg, "nested too deeply"));
    buf_free(&b);
}

static void test_an_expression_that_explodes_is_an_error(void **state)
{
    (void)state;
    struct err e = {0};
    struct ids ids = {0};
    struct buf b = {0}, text = {0};
    const char *at = strstr(small, "\\\\p{N}{1,3}|(?i:ab)");
    buf_add(&b, small, (size_t)(at - small));
    buf_str(&b, "(?:a|aa)+b\\\\1|(x)");
    buf_str(&b, at + strlen("\\\\p{N}{1,3}|(?i:ab)"));
    write_file(b.p, b.n);
    struct tokenizer *t = tok_open(path, &e);
    if (!t)
        fail_msg("%s", e.msg);
    for (int i = 0; i < 100; i++)
        buf_char(&text, 'a');
    ids_add(&ids, 5);
    assert_false(tok_encode(t, text.p, text.n, 0, &ids, &e));
    assert_non_null(strstr(e.msg, "gives up"));
    assert_int_equal(ids.n, 1);
    ids_free(&ids);
    buf_free(&b);
    buf_free(&text);
    tok_close(t);
}

static void test_encoding_ends_when_it_is_stopped(void **state)
{
    (void)state;
    struct tokenizer *t = open_small();
    struct stop stop = {.submitted = 1, .running = 1};
    struct ids ids = {0};
    struct err e = {0};
    tok_stop_on(&stop);
    assert_true(tok_encode(t, "abc 1", 5, 0, &ids, &e));
    int n = ids.n;
    stop_all(&stop);
    assert_false(tok_encode(t, "abc 1", 5, 0, &ids, &e));
    assert_int_equal(e.kind, ERR_NEGATIVE);
    assert_int_equal(ids.n, n);
    tok_stop_on(NULL);
    assert_true(tok_encode(t, "abc 1", 5, 0, &ids, &e));
    ids_free(&ids);
    tok_close(t);
}

/* Files with bytes changed, taken out, doubled or cut off: refused, or good for any text. */
static void test_mutated_files_do_no_harm(void **state)
{
    (void)state;
    static const char bits[] = "\"{}[]:,0129-\\ue<>x \n\xC3\xA9\xFF\0";
    static const char text[] = "ab cab<s> \xC3\xA9" "9 abc \xE2\x96\x81 \xF0\x9F\x98\x80";
    int opened = 0;
    srand(1);
    for (int round = 0; round < rounds(800, 4000); round++) {
        struct buf b = {0};
        buf_add(&b, small, sizeof small - 1);
        for (int k = rand() % 3; k >= 0 && b.n > 40; k--) {
            size_t at = (size_t)rand() % (b.n - 20), len = 1 + (size_t)rand() % 16;
            switch (rand() % 5) {
            case 0: b.p[at] = bits[(size_t)rand() % (sizeof bits - 1)]; break;
            case 1: b.p[at] ^= (char)(1 << rand() % 8); break;
            case 2: memmove(b.p + at, b.p + at + len, b.n - at - len), b.n -= len; break;
            case 3: memmove(b.p + at, b.p + (size_t)rand() % (b.n - len), len); break;
            default: b.n -= rand() % 8 ? 0 : len; break;
            }
        }
        struct err e = {0};
        write_file(b.p, b.n);
        struct tokenizer *t = tok_open(path, &e);
        if (t) {
            struct ids ids = {0};
            struct buf out = {0};
            opened++;
            for (unsigned flags = 0; flags < 4; flags++)
                tok_encode(t, text, sizeof text - 1, flags, &ids, &e);
            for (int id = -1; id <= tok_vocab(t); id++)
                ids_add(&ids, id);
            tok_decode(t, ids.v, ids.n, &out);
            ids_free(&ids);
            buf_free(&out);
        } else {
            assert_int_equal(e.kind, ERR_MODEL);
            assert_null(strchr(e.msg, '\n'));
        }
        tok_close(t);
        buf_free(&b);
    }
    assert_true(opened >= 100 && opened <= 3000); /* both ends were reached */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_equals_the_reference),
        cmocka_unit_test(test_cl100k_equals_the_reference),
        cmocka_unit_test(test_o200k_equals_the_reference),
        cmocka_unit_test(test_qwen_equals_the_reference),
        cmocka_unit_test(test_gemma_equals_the_reference),
        cmocka_unit_test(test_every_option_equals_the_reference),
        cmocka_unit_test(test_long_text_of_anything_takes_less_than_a_second),
        cmocka_unit_test(test_special_tokens_match_only_when_asked),
        cmocka_unit_test(test_the_first_piece_is_the_one_that_begins_the_text),
        cmocka_unit_test(test_text_that_is_not_utf8_is_replaced),
        cmocka_unit_test(test_plain_text_never_becomes_special),
        cmocka_unit_test(test_a_stream_equals_the_whole),
        cmocka_unit_test(test_incomplete_bytes_wait_and_invalid_ones_pass),
        cmocka_unit_test(test_bad_files_are_refused_in_one_line),
        cmocka_unit_test(test_deep_nesting_is_refused),
        cmocka_unit_test(test_an_expression_that_explodes_is_an_error),
        cmocka_unit_test(test_encoding_ends_when_it_is_stopped),
        cmocka_unit_test(test_mutated_files_do_no_harm),
        cmocka_unit_test(test_no_text_has_more_bytes_than_its_tokens_stand_for),
        cmocka_unit_test(test_a_tokenizer_that_drops_text_has_no_limit),
    };
    return cmocka_run_group_tests(tests, make_path, drop_path);
}
