/* test_gguf_tokens.c - the tokenizer in a GGUF's metadata gives the ids of the model's
 * tokenizer.json.
 *
 * The tokenizers of tests/tokenizers/ and of the bundled model are written as metadata, as the
 * converter does; the texts there have runs of newlines, emoji, decomposed accents, bytes without a
 * token and added tokens. Then metadata that is refused.
 */
#include "tests/gguf_kit.h"
#include "tests/tokens_kit.h"

#define T "tokenizer.ggml."

/* ---- a tokenizer.json as metadata ---- */

struct words {
    char **text; /* (n) by id; NULL: none */
    int64_t *kind;
    size_t n;
};

static struct words words_of(const json_t *top)
{
    struct words w = {.n = 1 << 17};
    const json_t *vocab = json_object_get(json_object_get(top, "model"), "vocab");
    json_t *added = json_object_get(top, "added_tokens"), *v;
    const char *s;
    size_t most = 0, i;
    w.text = xcalloc(w.n, sizeof *w.text);
    w.kind = xcalloc(w.n, sizeof *w.kind);
    json_object_foreach((json_t *)(uintptr_t)vocab, s, v) {
        size_t id = (size_t)json_integer_value(v);
        w.text[id] = xstrdup(s);
        w.kind[id] = strncmp(s, "<0x", 3) == 0 ? 6 : 1;
        most = id + 1 > most ? id + 1 : most;
    }
    json_array_foreach(added, i, v) {
        size_t id = (size_t)json_integer_value(json_object_get(v, "id"));
        free(w.text[id]);
        w.text[id] = xstrdup(json_string_value(json_object_get(v, "content")));
        w.kind[id] = json_is_true(json_object_get(v, "special")) ? 3 : 4;
        most = id + 1 > most ? id + 1 : most;
    }
    w.n = most + 3; /* as many rows as the embedding has, the last ones without a token */
    for (i = 0; i < w.n; i++)
        if (!w.text[i]) {
            w.text[i] = xasprintf("[PAD%zu]", i);
            w.kind[i] = 5;
        }
    return w;
}

static void words_free(struct words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->text[i]);
    free(w->text);
    free(w->kind);
}

static void put_merges(struct gw *g, const json_t *merges)
{
    json_t *v;
    size_t i;
    gw_array(g, T "merges", GW_STRING, json_array_size(merges));
    json_array_foreach((json_t *)(uintptr_t)merges, i, v) {
        char *s = json_is_string(v) ? xstrdup(json_string_value(v))
                                    : xasprintf("%s %s", json_string_value(json_array_get(v, 0)),
                                                json_string_value(json_array_get(v, 1)));
        gw_text(&g->keys, s);
        free(s);
    }
}

static void put_scores(struct gw *g, size_t n)
{
    gw_array(g, T "scores", GW_F32, n);
    for (size_t i = 0; i < n; i++) {
        union { float f; uint32_t u; } x = {.f = -(float)(i * 7919 % 9001)};
        gw_little(&g->keys, x.u, 4);
    }
}

static struct tokenizer *open_bytes(struct gw *g)
{
    struct err e = {0};
    struct buf b = gw_bytes(g);
    write_file(b.p, b.n);
    buf_free(&b);
    struct tokenizer *t = tok_open(path, &e);
    if (!t)
        fail_msg("%s", e.msg);
    return t;
}

/* pre NULL: none */
static struct tokenizer *open_gguf(const json_t *top, const char *arch, const char *model,
                                   const char *pre)
{
    struct gw g = {0};
    struct words w = words_of(top);
    gw_string(&g, "general.architecture", arch);
    gw_string(&g, T "model", model);
    if (pre)
        gw_string(&g, T "pre", pre);
    gw_strings(&g, T "tokens", (const char *const *)w.text, w.n);
    gw_ints(&g, T "token_type", GW_I32, w.kind, w.n);
    if (strcmp(model, "llama") == 0) {
        put_scores(&g, w.n);
        gw_u32(&g, T "unknown_token_id", 3);
        gw_bool(&g, T "add_space_prefix", strncmp(arch, "gemma", 5) != 0);
    } else {
        put_merges(&g, json_object_get(json_object_get(top, "model"), "merges"));
        gw_u32(&g, T "unknown_token_id", 3);
    }
    gw_u32(&g, T "bos_token_id", 2);
    words_free(&w);
    return open_bytes(&g);
}

/* ---- the same ids ---- */

static void encode(const struct tokenizer *t, const char *s, size_t n, unsigned flags,
                   struct ids *out)
{
    struct err e = {0};
    out->n = 0;
    if (!tok_encode(t, s, n, flags, out, &e))
        fail_msg("%s", e.msg);
}

static void assert_same_text(const struct tokenizer *a, const struct tokenizer *b,
                             const struct ids *ids)
{
    struct buf x = {0}, y = {0};
    tok_decode(a, ids->v, ids->n, &x);
    tok_decode(b, ids->v, ids->n, &y);
    assert_int_equal(x.n, y.n);
    assert_true(!x.n || memcmp(x.p, y.p, x.n) == 0);
    buf_free(&x);
    buf_free(&y);
}

/* Each text of NAME.cases, alone and with the texts before it on the same line. */
static void check_texts(const struct tokenizer *json, const struct tokenizer *gguf,
                        const char *name, const char *what)
{
    struct buf lines = {0}, all = {0};
    struct ids a = {0}, b = {0};
    int n = 0;
    read_text(name, ".cases", &lines);
    for (char *p = lines.p, *end; *p; p = end + 1, n++) {
        end = strchrnul(p, '\n');
        json_t *c = json_loadb(p, (size_t)(end - p), JSON_ALLOW_NUL, NULL);
        json_t *text = json_object_get(c, "text");
        buf_clear(&all);
        buf_add(&all, json_string_value(text), json_string_length(text));
        buf_str(&all, "<|im_end|> 7\xC2\xBD" "12'LL we'\xC5\xBF e\xCC\x81<bos>\n\n\n  it's");
        for (unsigned flags = 0; flags < 4; flags++) {
            encode(json, all.p, all.n, flags, &a);
            encode(gguf, all.p, all.n, flags, &b);
            if (a.n != b.n || memcmp(a.v, b.v, (size_t)a.n * sizeof *a.v) != 0)
                fail_msg("%s: other ids for \"%.200s\"", what, all.p);
            assert_same_text(json, gguf, &a);
        }
        json_decref(c);
    }
    assert_int_equal(n, 181);
    ids_free(&a);
    ids_free(&b);
    buf_free(&lines);
    buf_free(&all);
}

#define SPLIT(regex)                                                                               \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\"}"
#define SPLIT_BYTES(regex)                                                                         \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT(regex)                    \
    ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}"
#define SPLITS_BYTES(regexes)                                                                      \
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" regexes          \
    ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}"
#define DIGITS_BYTES                                                                               \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","            \
    "\"individual_digits\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}"
#define NFC "\"normalizer\":{\"type\":\"NFC\"}"

/* A name of the split, and what tokenizer.json of models that have it differs in from the
 * fixture. */
static void test_byte_level_gives_the_ids_of_tokenizer_json(void **state)
{
    static const struct {
        const char *name, *pre, *change;
    } each[] = {
        {"o200kpat", "default", "{}"}, /* as ollama's files of gpt-oss are */
        {"gpt2", "gpt-2", "{}"}, {"cl100k", "llama-bpe", "{}"}, {"o200kpat", "gpt-4o", "{}"},
        {"qwenpat", "qwen2", "{}"}, {"gpt2", "smollm", "{" DIGITS_BYTES "}"},
        {"gpt2", "command-r", "{" NFC "," DIGITS_BYTES "}"},
        {"o200kpat", "tekken",
         "{" SPLIT_BYTES("[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*"
                         "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
                         "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*|"
                         "\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|"
                         "\\\\s+(?!\\\\S)|\\\\s+") "}"},
        {"qwenpat", "laguna",
         "{" SPLITS_BYTES(SPLIT("(?:\\\\r?\\\\n)+") ","
                          SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
                                "\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
                                "\\\\s+(?!\\\\S)|\\\\s+")) "}"},
        {"qwenpat", "deepseek-v3",
         "{" SPLITS_BYTES(SPLIT("\\\\p{N}{1,3}") "," SPLIT("[一-龥\u3040-ゟ゠-ヿ]+") ","
                          SPLIT("[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|"
                                "[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+|"
                                " ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
                                "\\\\s+(?!\\\\S)|\\\\s+")) "}"},
        {"qwenpat", "afmoe",
         "{" SPLITS_BYTES(SPLIT("\\\\p{Nd}{1,510}(?=(?>\\\\p{Nd}{510})*(?:\\\\P{Nd}|$))|"
                                "\\\\G\\\\p{Nd}{510}") ","
                          SPLIT("\\\\A\\\\p{Nd}{1,2}(?=\\\\p{Nd}{3}+\\\\z)") ","
                          SPLIT("\\\\p{Nd}{3}") ","
                          SPLIT("[\u4e00-\u9fff\u3040-\u309f\u30a0-\u30ff\u3400-\u4dbf\uf900-\ufaff"
                                "\uff65-\uff9f\u2f00-\u2fdf]+|[\u0e00-\u0e7f]+|[\u0e80-\u0eff]+|"
                                "[\u1780-\u17ff]+|[\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff]+|"
                                "[\uac00-\ud7af\u1100-\u11ff]+") ","
                          SPLIT("[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|"
                                "[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+|"
                                " ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
                                "\\\\s+(?!\\\\S)|\\\\s+")) "}"},
        {"qwenpat", "deepseek-coder",
         "{" SPLITS_BYTES(SPLIT("[\\r\\n]") "," SPLIT("\\\\s?\\\\p{L}+") ","
                          SPLIT("\\\\s?\\\\p{P}+") "," SPLIT("[一-龥\u0800-一가-\ud7ff]+") ","
                          "{\"type\":\"Digits\",\"individual_digits\":true}") "}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        json_t *top = full_json(each[i].name), *change = json_loads(each[i].change, 0, NULL);
        assert_non_null(change);
        json_object_update(top, change);
        const char *arch = !strcmp(each[i].pre, "default") ? "gptoss" : "x";
        struct tokenizer *json = open_json(top), *gguf = open_gguf(top, arch, "gpt2", each[i].pre);
        bool bos = !strncmp(each[i].pre, "llama", 5) || !strcmp(each[i].pre, "tekken");
        assert_int_equal(tok_bos(gguf), bos ? 2 : -1);
        check_texts(json, gguf, each[i].name, each[i].pre);
        tok_close(json);
        tok_close(gguf);
        json_decref(change);
        json_decref(top);
    }
}

static void test_merges_without_a_rule_for_whole_words(void **state)
{
    (void)state;
    json_t *top = full_json("cl100k");
    json_object_set_new(json_object_get(top, "model"), "ignore_merges", json_false());
    struct tokenizer *json = open_json(top), *gguf = open_gguf(top, "olmo2", "gpt2", "dbrx");
    check_texts(json, gguf, "cl100k", "dbrx");
    tok_close(json);
    tok_close(gguf);
    json_decref(top);
}

static void test_the_bundled_model_as_metadata(void **state)
{
    struct err e = {0};
    struct buf b = {0};
    (void)state;
    assert_true(buf_read_file(&b, "models/nestling/target/tokenizer.json", 8 << 20, &e));
    json_t *top = json_loadb(b.p, b.n, 0, NULL);
    struct tokenizer *json = open_json(top), *gguf = open_gguf(top, "gemma3", "gpt2", "ufakzeka");
    check_texts(json, gguf, "qwenpat", "ufakzeka");
    assert_int_equal(tok_find(gguf, "<end_of_turn>"), tok_find(json, "<end_of_turn>"));
    assert_true(tok_is_special(gguf, tok_find(gguf, "<end_of_turn>")));
    tok_close(json);
    tok_close(gguf);
    json_decref(top);
    buf_free(&b);
}

/* Gemma's merges follow the ids, gemma-4's are in the file. */
static void test_gemma_gives_the_ids_of_tokenizer_json(void **state)
{
    (void)state;
    json_t *top = full_json("gemmastyle");
    struct tokenizer *json = open_json(top);
    struct tokenizer *gemma3 = open_gguf(top, "gemma3", "llama", NULL),
                     *gemma4 = open_gguf(top, "gemma4", "gemma4", "gemma4");
    size_t n;
    check_texts(json, gemma3, "gemmastyle", "gemma3");
    check_texts(json, gemma4, "gemmastyle", "gemma4");
    assert_int_equal(tok_bos(gemma3), 2);
    assert_int_equal(tok_bos(gemma4), 2);
    assert_non_null(tok_bytes(gemma3, 8999, &n));
    assert_null(tok_bytes(gemma3, 9001, &n)); /* fills a row of the embedding */
    tok_close(json);
    tok_close(gemma3);
    tok_close(gemma4);
    json_decref(top);
}

/* spm.json has the ids that Hugging Face tokenizers gives with the merges of transformers. */
static void test_scores_become_the_merges_of_the_reference(void **state)
{
    (void)state;
    struct buf text = {0}, lines = {0};
    struct ids ids = {0};
    size_t i = 0;
    json_t *top = full_json("gemmastyle");
    struct tokenizer *t = open_gguf(top, "llama", "llama", NULL);
    read_text("spm", ".json", &text);
    read_text("gemmastyle", ".cases", &lines);
    json_t *all = json_loadb(text.p, text.n, 0, NULL);
    assert_int_equal(json_array_size(all), 181);
    for (char *p = lines.p, *end; *p; p = end + 1, i++) {
        end = strchrnul(p, '\n');
        json_t *c = json_loadb(p, (size_t)(end - p), JSON_ALLOW_NUL, NULL),
            *want = json_array_get(all, i);
        json_t *s = json_object_get(c, "text");
        encode(t, json_string_value(s), json_string_length(s), TOK_SPECIAL, &ids);
        bool same = (size_t)ids.n == json_array_size(want);
        for (int k = 0; same && k < ids.n; k++)
            same = ids.v[k] == json_integer_value(json_array_get(want, (size_t)k));
        if (!same)
            fail_msg("other ids for \"%.200s\"", json_string_value(s));
        json_decref(c);
    }
    ids_free(&ids);
    json_decref(all);
    json_decref(top);
    buf_free(&text);
    buf_free(&lines);
    tok_close(t);
}

/* ---- a small vocabulary ---- */

/* Metadata of which a test changes a part. */
struct small {
    const char *arch, *model, *pre;
    const char *token[24];
    int64_t kind[24];
    double score[24];
    const char *merge[8];
    int n_token, n_kind, n_score, n_merge;
};

static const struct small pieces = {
    .arch = "llama", .model = "llama",
    .token = {"<unk>", "<s>", "</s>", "<0x09>", "<0x0A>", "\xE2\x96\x81", "a", "b", "ab",
              "\xE2\x96\x81" "a", "  ", "\n\n", "\t\t", "aba", "ba"},
    .kind = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 4, 4, 1, 1, 1},
    .score = {0, 0, 0, 0, 0, -1, -2, -3, -4, -5, -1000, -1000, -6, -7, -8},
    .n_token = 15, .n_kind = 15, .n_score = 15,
};
static const struct small words = {
    .arch = "llama", .model = "gpt2", .pre = "gpt-2", .token = {"a", "b", "ab", "<s>", "abb"},
    .kind = {1, 1, 1, 3, 1}, .merge = {"a b", "ab b"}, .n_token = 5, .n_kind = 5, .n_merge = 2,
};

static void put_small(struct gw *g, const struct small *s)
{
    if (s->arch)
        gw_string(g, "general.architecture", s->arch);
    if (s->model)
        gw_string(g, T "model", s->model);
    if (s->pre)
        gw_string(g, T "pre", s->pre);
    if (s->n_token)
        gw_strings(g, T "tokens", s->token, (size_t)s->n_token);
    if (s->n_kind)
        gw_ints(g, T "token_type", GW_I32, s->kind, (size_t)s->n_kind);
    if (s->n_merge)
        gw_strings(g, T "merges", s->merge, (size_t)s->n_merge);
    if (s->n_score)
        gw_array(g, T "scores", GW_F32, (size_t)s->n_score);
    for (int i = 0; i < s->n_score; i++) {
        union { float f; uint32_t u; } x = {.f = (float)s->score[i]};
        gw_little(&g->keys, x.u, 4);
    }
}

static void assert_ids(const struct tokenizer *t, const char *text, unsigned flags, int n, ...)
{
    struct ids ids = {0};
    va_list ap;
    encode(t, text, strlen(text), flags, &ids);
    va_start(ap, n);
    for (int i = 0; i < ids.n && i < n; i++)
        if (ids.v[i] != va_arg(ap, int))
            fail_msg("\"%s\": id %d is %d", text, i, ids.v[i]);
    va_end(ap);
    assert_int_equal(ids.n, n);
    ids_free(&ids);
}

static void test_a_small_vocabulary_of_pieces(void **state)
{
    struct gw g = {0};
    (void)state;
    put_small(&g, &pieces);
    gw_u32(&g, T "unknown_token_id", 0);
    gw_u32(&g, T "bos_token_id", 1);
    struct tokenizer *t = open_bytes(&g);
    assert_int_equal(tok_bos(t), 1); /* the default of this kind */
    assert_ids(t, "ab", 0, 2, 5, 8); /* a space is put before the text; "ab" before "_a" */
    assert_ids(t, "ab", TOK_INNER, 2, 5, 8);
    assert_ids(t, "  a", 0, 2, 10, 9); /* user-defined pieces come first, whatever their scores */
    assert_ids(t, "\n\n\n\t\t", 0, 5, 11, 5, 4, 3, 3); /* no tab to merge: bytes */
    assert_ids(t, "c<s>", TOK_SPECIAL, 3, 5, 0, 1);
    tok_close(t);

    struct small s = pieces;
    s.arch = "gemma3";
    put_small(&g, &s);
    gw_bool(&g, T "add_space_prefix", false);
    gw_bool(&g, T "add_bos_token", false);
    gw_u32(&g, T "bos_token_id", 1);
    t = open_bytes(&g);
    assert_int_equal(tok_bos(t), -1);
    tok_close(t);
    put_small(&g, &s);
    gw_bool(&g, T "add_space_prefix", false);
    gw_u32(&g, T "bos_token_id", UINT32_MAX); /* none */
    t = open_bytes(&g);
    assert_int_equal(tok_bos(t), -1);
    assert_ids(t, "ab", 0, 1, 8);
    assert_ids(t, "\n\n\n\t\t", 0, 3, 11, 4, 12); /* gemma has the tab itself */
    assert_ids(t, "\xE2\x96\x81\xE2\x96\x81", 0, 1, 10);
    tok_close(t);
}

/* Names of the splits that have another name above. */
static void test_every_name_of_a_split_is_known(void **state)
{
    static const char *const pre[] = {"llama3", "llama-v3", "smaug-bpe", "refact", "exaone", "olmo",
                                      "exaone4"};
    (void)state;
    for (size_t i = 0; i < sizeof pre / sizeof *pre; i++) {
        struct small s = words;
        struct gw g = {0};
        s.pre = pre[i];
        put_small(&g, &s);
        struct tokenizer *t = open_bytes(&g);
        assert_ids(t, "aabb<s>", TOK_SPECIAL, 3, 0, 4, 3);
        tok_close(t);
    }
}

/* ---- the digest ---- */

static void digest_of(const struct small *s, const char *more, char out[65])
{
    struct err e = {0};
    struct gw g = {0};
    gw_string(&g, "general.name", more);
    put_small(&g, s);
    struct buf b = gw_bytes(&g);
    write_file(b.p, b.n);
    buf_free(&b);
    if (!tok_digest(path, out, &e))
        fail_msg("%s", e.msg);
}

static void test_the_digest_is_of_what_decides_ids(void **state)
{
    char as_is[65], renamed[65], changed[65], plain[65];
    struct buf b = {0};
    struct err e = {0};
    (void)state;
    digest_of(&words, "x", as_is);
    digest_of(&words, "another name", renamed);
    assert_string_equal(as_is, renamed);
    for (int i = 0; i < 5; i++) {
        struct small s = words;
        switch (i) {
        case 0: s.pre = "olmo"; break;
        case 1: s.token[1] = "c"; break;
        case 2: s.kind[4] = 4; break;
        case 3: s.merge[1] = "a bb"; break;
        case 4: s.n_merge = 1; break;
        }
        digest_of(&s, "x", changed);
        if (strcmp(changed, as_is) == 0)
            fail_msg("change %d: the digest is the same", i);
    }
    /* of a folder: of its tokenizer.json, as logs have it since they have digests */
    assert_true(buf_read_file(&b, "models/nestling/target/tokenizer.json", 8 << 20, &e));
    sha256_hex(b.p, b.n, plain);
    assert_true(tok_digest("models/nestling/target", changed, &e));
    assert_string_equal(changed, plain);
    assert_true(tok_digest("tests/golden/llama-b", changed, &e)); /* which has none */
    assert_string_equal(changed, "");
    buf_free(&b);
}

/* ---- refused ---- */

static void refused_by(struct buf b, const char *what, const char *says)
{
    struct err e = {0};
    write_file(b.p, b.n);
    buf_free(&b);
    struct tokenizer *t = tok_open(path, &e);
    if (t)
        fail_msg("%s: accepted", what);
    assert_int_equal(e.kind, ERR_MODEL);
    if (!strstr(e.msg, says) || !strstr(e.msg, path) || strpbrk(e.msg, "\n\r\033"))
        fail_msg("%s: said \"%s\"", what, e.msg);
}

static void refused(const struct small *s, const char *what, const char *says)
{
    struct gw g = {0};
    put_small(&g, s);
    refused_by(gw_bytes(&g), what, says);
}

#define REFUSED(base, change, what, says)                                                          \
    do {                                                                                           \
        struct small s = base;                                                                     \
        change;                                                                                    \
        refused(&s, what, says);                                                                   \
    } while (0)

static void test_bad_metadata_is_refused_in_one_line(void **state)
{
    (void)state;
    REFUSED(words, s.model = NULL, "no tokenizer", "tokenizer.ggml.model is missing");
    REFUSED(words, s.model = "bert", "another kind", "tokenizer \"bert\" is not supported");
    REFUSED(words, s.model = "gpt\n2", "a kind with a newline", "is not supported");
    REFUSED(words, s.pre = NULL, "no split", "tokenizer.ggml.pre is missing");
    REFUSED(words, s.pre = "default", "the default split",
            "pre-tokenizer \"default\" is not supported");
    REFUSED(words, s.pre = "qwen4", "an unknown split", "\"qwen4\" is not supported");
    REFUSED(words, s.n_token = 0, "no tokens", "tokenizer.ggml.tokens");
    REFUSED(words, s.n_kind = 0, "no types", "token_type has 0 elements; expected 5");
    REFUSED(words, s.n_kind = 4, "fewer types", "token_type has 4 elements; expected 5");
    REFUSED(words, s.kind[1] = 0, "type 0", "token_type");
    REFUSED(words, s.kind[1] = 7, "type 7", "token_type");
    REFUSED(words, s.kind[1] = -1, "type -1", "token_type");
    REFUSED(words, s.token[1] = "a", "a token twice", "\"a\" occurs twice");
    REFUSED(words, s.token[1] = "\xFF", "not UTF-8", "token 1 is not valid UTF-8");
    REFUSED(words, s.n_merge = 0, "no merges", "merges is missing");
    REFUSED(words, s.merge[1] = "ab c", "a merge of no token", "merges[1]: \"c\" is not in");
    REFUSED(words, s.merge[1] = "b b", "a merge into no token", "merges[1]: \"bb\" is not in");
    REFUSED(words, s.merge[1] = "abb", "a merge of one", "merges[1]: \"abb\" is not two tokens");
    REFUSED(words, s.merge[1] = "a b b", "a merge of three", "is not two tokens");
    REFUSED(words, s.merge[1] = "", "an empty merge", "is not two tokens");
    REFUSED(pieces, s.n_score = 14, "fewer scores", "scores has 14 elements; expected 15");
    REFUSED(pieces, s.n_score = 16, "more scores", "scores has 16 elements; expected 15");
    REFUSED(pieces, s.n_score = 0, "no scores", "scores has 0 elements");
    REFUSED(pieces, s.score[2] = 1e300 * 1e300, "an infinite score", "score 2 is not finite");
    REFUSED(pieces, s.token[10] = "\xE2\x96\x81", "a mark twice", "occurs twice");

    static const struct {
        const char *key;
        int64_t v;
    } id[] = {{T "bos_token_id", 15}, {T "bos_token_id", -1}, {T "unknown_token_id", 1ll << 31}};
    for (size_t i = 0; i < sizeof id / sizeof *id; i++) {
        struct gw g = {0};
        put_small(&g, &pieces);
        gw_int(&g, id[i].key, GW_I64, id[i].v);
        refused_by(gw_bytes(&g), "an id beyond the tokens", id[i].key);
    }
    struct gw g = {0};
    put_small(&g, &words);
    gw_string(&g, T "add_bos_token", "yes");
    refused_by(gw_bytes(&g), "a switch of another type", "add_bos_token");
    gw_string(&g, T "model", "gpt2");
    gw_string(&g, T "pre", "gpt-2");
    gw_array(&g, T "tokens", GW_STRING, 1u << 30);
    refused_by(gw_bytes(&g), "2^30 tokens in a small file", T "tokens");
}

/* 3000 tokens of up to 3000 bytes, each of which falls apart into two others everywhere. */
static void test_pieces_that_cost_too_much_are_refused(void **state)
{
    struct gw g = {0};
    enum { N = 3000 };
    char *all = xcalloc(N + 2, 1);
    (void)state;
    memset(all, 'a', N);
    gw_string(&g, T "model", "llama");
    gw_array(&g, T "tokens", GW_STRING, N);
    for (int i = 1; i <= N; i++) {
        gw_little(&g.keys, (uint64_t)i, 8);
        buf_add(&g.keys, all, (size_t)i);
    }
    gw_array(&g, T "token_type", GW_I32, N);
    for (int i = 0; i < N; i++)
        gw_little(&g.keys, 1, 4);
    gw_array(&g, T "scores", GW_F32, N);
    for (int i = 0; i < N; i++)
        gw_little(&g.keys, 0, 4);
    free(all);
    refused_by(gw_bytes(&g), "tokens of one letter", "too long or too alike");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level_gives_the_ids_of_tokenizer_json),
        cmocka_unit_test(test_merges_without_a_rule_for_whole_words),
        cmocka_unit_test(test_the_bundled_model_as_metadata),
        cmocka_unit_test(test_gemma_gives_the_ids_of_tokenizer_json),
        cmocka_unit_test(test_scores_become_the_merges_of_the_reference),
        cmocka_unit_test(test_a_small_vocabulary_of_pieces),
        cmocka_unit_test(test_every_name_of_a_split_is_known),
        cmocka_unit_test(test_the_digest_is_of_what_decides_ids),
        cmocka_unit_test(test_bad_metadata_is_refused_in_one_line),
        cmocka_unit_test(test_pieces_that_cost_too_much_are_refused),
    };
    return cmocka_run_group_tests(tests, make_path, drop_path);
}
