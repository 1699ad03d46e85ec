/* gguf.c - reads the tokenizer in a GGUF's metadata into a struct tokenizer.
 *
 * The metadata has tokens with their types, and either ranked merges (byte-level BPE, gemma-4) or
 * scores (SentencePiece). What tokenizer.json says beside that is implied there by two names:
 * tokenizer.ggml.model names the kind, and tokenizer.ggml.pre how text is split before the merges.
 * The tables below say what the names imply; the ids are those of the model's tokenizer.json. (The
 * flags lstrip, rstrip and single_word of added tokens are lost in a GGUF.)
 */
#include "models/checkpoint/gguf.h"
#include "models/tokenizer/load.h"

#include <math.h>

enum {
    MAX_TOKENS = 1 << 22,
    MAX_BYTES = 1 << 27,  /* of all tokens */
    MAX_MERGES = 1 << 22, /* made of scores */
    MOST_REGEX = 5,
};
static const uint64_t MAX_SPLITTING = 1ull << 32; /* bytes looked up to make merges of scores */

/* tokenizer.ggml.token_type */
enum kind { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

#define KEY "tokenizer.ggml."

/* ---- what the names imply -------------------------------------------------------------------- */

#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASES(tail)                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" tail "|"                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" tail "|"
#define CASES_REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Words of deepseek-v3, whose numbers and Chinese and Japanese texts are split off before. */
#define PUNCTUATED                                                                                 \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                                       \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"                                                 \
    " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Trinity's numbers are split into groups of three from the right, with one look ahead for each
 * number, so that the work grows with its length; then each of these scripts from the others. */
#define THREES "(?<!\\p{Nd})\\p{Nd}{1,2}(?=(?:\\p{Nd}{3})*+(?!\\p{Nd}))|\\p{Nd}{3}"
#define SCRIPTS                                                                                    \
    "[\u4e00-\u9fff\u3040-\u309f\u30a0-\u30ff\u3400-\u4dbf\uf900-\ufaff\uff65-\uff9f"              \
    "\u2f00-\u2fdf]+|[\u0e00-\u0e7f]+|[\u0e80-\u0eff]+|[\u1780-\u17ff]+|"                          \
    "[\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff]+|[\uac00-\ud7af\u1100-\u11ff]+"

/* How byte-level BPE splits text: by regular expressions, each of what the one before left apart or
 * found, then perhaps by GPT-2's. */
static const struct split {
    const char *pre[4];   /* names */
    const char *regex[MOST_REGEX]; /* none: only GPT-2's */
    bool gpt2, nfc;     /* nfc: text is brought into the Unicode form NFC before */
    bool whole;         /* a word that is a token is that token, whatever the merges say */
    bool bos;           /* where tokenizer.ggml.add_bos_token is absent */
} splits[] = {
    {{"llama-bpe", "llama3", "llama-v3"},
     .regex = {WORDS "\\p{N}{1,3}" REST},
     .whole = true,
     .bos = true},
    {{"dbrx", "smaug-bpe"}, .regex = {WORDS "\\p{N}{1,3}" REST}},
    /* the published one has (?!\r?\n) behind, which always holds there */
    {{"laguna"}, .regex = {"(?:\\r?\\n)+", WORDS "\\p{N}" REST}},
    {{"deepseek-v3"},
     .regex = {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", PUNCTUATED}},
    {{"afmoe"}, .regex = {THREES, SCRIPTS, PUNCTUATED}},
    {{"deepseek-coder"},
     .regex = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
               "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", "\\p{N}"}},
    {{"seed-coder"}, .regex = {WORDS "\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|"
                               "\\s+(?!\\S)|\\s+"}},
    {{"qwen2", "deepseek-r1-qwen"}, .regex = {WORDS "\\p{N}" REST}, .nfc = true},
    {{"gpt-4o", "llama4"},
     .regex = {CASES("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") "\\p{N}{1,3}" CASES_REST},
     .whole = true},
    {{"tekken"}, .regex = {CASES("") "\\p{N}" CASES_REST}, .whole = true, .bos = true},
    {{"smollm", "refact", "exaone", "mellum2"}, .regex = {"\\p{N}"}, .gpt2 = true},
    {{"command-r"}, .regex = {"\\p{N}"}, .gpt2 = true, .nfc = true},
    {{"gpt-2", "olmo", "exaone4", "mellum"}, .gpt2 = true},
    {{"ufakzeka"}, .regex = {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" REST}},
};

/* Texts with \u2581 for a space, as SentencePiece and gemma-4 have them, and with a token for each
 * byte. */
#define TO_MARK "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}"
#define FROM_MARK                                                                                  \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},"          \
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}"

static const char mark_norm[] = TO_MARK,
                  prefix_norm[] = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
                                  "\"prepend\":\"\xE2\x96\x81\"}," TO_MARK "]}",
                  mark_decoder[] = "{\"type\":\"Sequence\",\"decoders\":[" FROM_MARK "]}",
                  prefix_decoder[] = "{\"type\":\"Sequence\",\"decoders\":[" FROM_MARK
                                     ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,"
                                     "\"stop\":0}]}",
                  nfc_norm[] = "{\"type\":\"NFC\"}",
                  bytes_decoder[] = "{\"type\":\"ByteLevel\"}";

/* ---- the metadata ---------------------------------------------------------------------------- */

struct meta {
    struct load l;
    struct gguf *g;
    const struct split *split; /* NULL: spaces are marked, and bytes are tokens */
    bool scores;               /* merges are made of scores */
    bool by_id;                /* gemma: a lower id is what a higher score is */
    bool prefix;               /* a space is put before a text */
    bool bos;
    size_t n; /* tokens */
    struct pull_str *token;
    int64_t *kind; /* (n) enum kind */
    struct buf text; /* of the tokens that are not as in the file */
};

static bool text_is(struct gguf_text t, const char *s)
{
    return t.n == strlen(s) && memcmp(t.p, s, t.n) == 0;
}

static bool refuse(struct meta *m, const char *key, const char *what, struct gguf_text got,
                   const char *want)
{
    struct shown s = shown_str((struct pull_str){got.p, got.n});
    return gguf_refuse(m->g, key, m->l.e, "%s \"%s\" is not supported%s", what, s.s, want);
}

/* ollama's files of these architectures name GPT-2's way, or none, in place of the model's. */
static void correct_pre(struct gguf_text arch, struct gguf_text *pre)
{
    if (text_is(arch, "gptoss"))
        *pre = (struct gguf_text){"gpt-4o", 6};
    if (text_is(arch, "mistral3") && (!pre->n || text_is(*pre, "default")))
        *pre = (struct gguf_text){"tekken", 6};
}

static bool find_split(struct meta *m, struct gguf_text arch)
{
    static const char key[] = KEY "pre";
    struct gguf_text pre = {"", 0};
    if (!gguf_string(m->g, key, &pre, m->l.e))
        return false;
    correct_pre(arch, &pre);
    for (size_t i = 0; i < LEN(splits); i++)
        for (int k = 0; k < 4 && splits[i].pre[k]; k++)
            if (text_is(pre, splits[i].pre[k])) {
                m->split = &splits[i];
                m->bos = splits[i].bos;
                return true;
            }
    if (!pre.n)
        return gguf_refuse(m->g, key, m->l.e, "is missing: how the tokenizer splits text is not "
                                              "known");
    return refuse(m, key, "the pre-tokenizer", pre, "");
}

/* Reads the kind of tokenizer, and what follows from it. */
static bool read_model(struct meta *m)
{
    static const char key[] = KEY "model";
    struct gguf_text model = {"", 0}, arch = {"", 0};
    if (!gguf_string(m->g, key, &model, m->l.e) ||
        !gguf_string(m->g, "general.architecture", &arch, m->l.e))
        return false;
    if (!model.n)
        return gguf_refuse(m->g, key, m->l.e, "is missing: the file has no tokenizer");
    m->scores = text_is(model, "llama");
    m->bos = m->prefix = m->scores;
    m->by_id = arch.n >= 5 && memcmp(arch.p, "gemma", 5) == 0;
    if (text_is(model, "gpt2") && !find_split(m, arch))
        return false;
    if (text_is(model, "gemma4"))
        m->bos = true;
    else if (!m->scores && !m->split)
        return refuse(m, key, "the tokenizer", model, "; expected gpt2, llama or gemma4");
    return (!m->scores || gguf_bool(m->g, KEY "add_space_prefix", &m->prefix, m->l.e)) &&
           gguf_bool(m->g, KEY "add_bos_token", &m->bos, m->l.e);
}

static bool wrong_count(struct meta *m, const char *key, size_t n)
{
    return gguf_refuse(m->g, key, m->l.e, "has %zu elements; expected %zu, one for each token", n,
                       m->n);
}

/* The text of a token as tokenizer.json has it. */
static void put_token(struct meta *m, struct gguf_text x, int64_t kind)
{
    if (!m->split && kind == USER_DEFINED) /* the converter turns marks into spaces */
        for (size_t i = 0; i < x.n; i++) {
            if (x.p[i] == ' ')
                buf_str(&m->text, "\xE2\x96\x81");
            else
                buf_char(&m->text, x.p[i]);
        }
    else
        buf_add(&m->text, x.p, x.n);
}

static bool read_texts(struct meta *m, const struct gguf_text *text)
{
    size_t all = 0, at = 0;
    for (size_t i = 0; i < m->n && all <= MAX_BYTES; i++)
        all += text[i].n;
    if (all > MAX_BYTES)
        return gguf_refuse(m->g, m->l.tokens, m->l.e, "has more than %d bytes", MAX_BYTES);
    m->token = xcalloc(m->n, sizeof *m->token);
    for (size_t i = 0; i < m->n; i++) {
        if (!utf8_check(text[i].p, text[i].n))
            return gguf_refuse(m->g, m->l.tokens, m->l.e, "token %zu is not valid UTF-8", i);
        put_token(m, text[i], m->kind[i]);
        m->token[i].n = m->text.n - at;
        at = m->text.n;
    }
    at = 0;
    for (size_t i = 0; i < m->n; at += m->token[i++].n)
        m->token[i].s = m->text.p + at;
    return true;
}

static bool read_tokens(struct meta *m)
{
    static const char types[] = KEY "token_type";
    FREED(free_at) struct gguf_text *text = NULL;
    size_t n_kind = 0;
    if (!gguf_strings(m->g, m->l.tokens, &text, &m->n, m->l.e) ||
        !gguf_ints(m->g, types, NORMAL, BYTE, &m->kind, &n_kind, m->l.e))
        return false;
    if (!m->n || m->n > MAX_TOKENS)
        return gguf_refuse(m->g, m->l.tokens, m->l.e, "has %zu tokens; expected 1 to %d", m->n,
                           MAX_TOKENS);
    return n_kind == m->n ? read_texts(m, text) : wrong_count(m, types, n_kind);
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

/* Gemma's tokenizer.json has a tab where SentencePiece has the token of its byte, so that merges
 * can join tabs. */
static void name_tab(struct meta *m)
{
    size_t at = m->n;
    for (size_t i = 0; i < m->n; i++) {
        if (pull_is(m->token[i], "\t"))
            return;
        if (m->kind[i] == BYTE && pull_is(m->token[i], "<0x09>"))
            at = i;
    }
    if (at < m->n)
        m->token[at] = (struct pull_str){"\t", 1};
}

/* Unused tokens fill holes of the vocabulary: they have no text. */
static bool add_tokens(struct meta *m)
{
    bool ok = true;
    if (m->scores && m->by_id)
        name_tab(m);
    for (size_t i = 0; ok && i < m->n; i++)
        ok = m->kind[i] == UNUSED || !m->token[i].n || load_entry(&m->l, m->token[i], (int64_t)i);
    return ok;
}

static bool add_added(struct meta *m)
{
    bool ok = true;
    for (size_t i = 0; ok && i < m->n; i++) {
        int64_t kind = m->kind[i];
        struct added_entry a = {.content = m->token[i], .id = (int64_t)i,
                                .special = kind != USER_DEFINED};
        if (a.content.n && (kind == CONTROL || kind == USER_DEFINED ||
                            (kind == UNKNOWN && !m->split)))
            ok = load_added_token(&m->l, &a, a.id);
    }
    load_added_done(&m->l);
    return ok;
}

/* ---- merges ---------------------------------------------------------------------------------- */

static bool add_merges(struct meta *m)
{
    FREED(free_at) struct gguf_text *text = NULL;
    FREED(buf_free) struct buf joined = {0};
    size_t n = 0;
    bool ok = gguf_strings(m->g, m->l.merges, &text, &n, m->l.e) &&
              (n || gguf_refuse(m->g, m->l.merges, m->l.e, "is missing or empty"));
    for (size_t i = 0; ok && i < n; i++) {
        struct pull_str a = {text[i].p, text[i].n}, b;
        ok = load_pair(&m->l, (int64_t)i, &a, &b) &&
             load_merge(&m->l, (int64_t)i, a, b, &joined);
    }
    return ok;
}

/* One way to put a token together. */
struct pairing {
    float score;
    int32_t left, right, id;
    int n_left, n_right; /* characters */
};
struct pairings {
    struct pairing *v;
    size_t n;
    uint64_t work;
};

static int descending(const void *x, const void *y)
{
    const struct pairing *a = x, *b = y;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->n_left != b->n_left)
        return a->n_left > b->n_left ? -1 : 1;
    if (a->n_right != b->n_right)
        return a->n_right > b->n_right ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static int ascending(const void *x, const void *y)
{
    const struct pairing *a = x, *b = y;
    if (a->id != b->id)
        return a->id > b->id ? 1 : -1;
    return (a->n_left > b->n_left) - (a->n_left < b->n_left);
}

static bool has_merges(const struct meta *m, int id)
{
    return id >= 0 && m->kind[id] != CONTROL && m->kind[id] != UNKNOWN;
}

/* Every split of token id into two tokens. */
static bool pair_up(const struct meta *m, int id, float score, struct pairings *p)
{
    const struct bpe *b = &m->l.t->bpe;
    struct pull_str x = m->token[id];
    struct pairing one = {.score = score, .id = id};
    int chars = 0;
    p->work += (uint64_t)x.n * x.n;
    if (p->work > MAX_SPLITTING || p->n > MAX_MERGES)
        return gguf_refuse(m->g, m->l.tokens, m->l.e, "has tokens that are too long or too alike "
                           "to be split into one another");
    for (size_t i = 0; i < x.n; i += utf8_len(x.s + i))
        chars++;
    for (size_t i = utf8_len(x.s); i < x.n; i += utf8_len(x.s + i)) {
        one.n_left++;
        one.n_right = chars - one.n_left;
        one.left = bpe_find(b, x.s, i);
        if (!has_merges(m, one.left))
            continue;
        one.right = bpe_find(b, x.s + i, x.n - i);
        if (has_merges(m, one.right))
            *APPEND(p->v, p->n) = one;
    }
    return true;
}

/* Merges as Hugging Face makes them of SentencePiece's scores. A user-defined token comes before
 * all others: SentencePiece takes it whole. */
static bool merges_of_scores(struct meta *m)
{
    static const char key[] = KEY "scores";
    struct pairings p = {0};
    FREED(free_at) float *score = NULL;
    size_t n = 0;
    bool ok = gguf_reals(m->g, key, &score, &n, m->l.e);
    if (ok && n != m->n)
        ok = wrong_count(m, key, n);
    for (size_t i = 0; ok && i < n; i++) {
        if (!isfinite(score[i]))
            ok = gguf_refuse(m->g, key, m->l.e, "score %zu is not finite", i);
        else if (has_merges(m, (int)i) && m->kind[i] != UNUSED && m->token[i].n)
            ok = pair_up(m, (int)i, m->kind[i] == USER_DEFINED ? INFINITY : score[i], &p);
    }
    if (ok && p.n)
        qsort(p.v, p.n, sizeof *p.v, m->by_id ? ascending : descending);
    for (size_t i = 0; ok && i < p.n; i++)
        bpe_add_merge(&m->l.t->bpe, p.v[i].left, p.v[i].right, (uint32_t)i, p.v[i].id);
    free(p.v);
    return ok;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static struct pull_str constant(const char *s)
{
    return (struct pull_str){s, strlen(s)};
}

static bool add_steps(struct meta *m)
{
    struct tokenizer *t = m->l.t;
    const struct split *s = m->split;
    int n = 0;
    if (!s)
        return steps_normalizer(t, constant(m->prefix ? prefix_norm : mark_norm), m->l.e);
    while (n < MOST_REGEX && s->regex[n])
        n++;
    return (!s->nfc || steps_normalizer(t, constant(nfc_norm), m->l.e)) &&
           steps_bytes(t, s->regex, n, s->gpt2, m->l.e);
}

static bool read_switches(struct meta *m)
{
    struct bpe *b = &m->l.t->bpe;
    b->ignore_merges = m->split && m->split->whole;
    b->byte_fallback = b->fuse_unk = !m->split;
    b->unk = BPE_NONE;
    return m->split || gguf_token_id(m->g, "unknown", (int64_t)m->n, &b->unk, m->l.e);
}

static bool load_meta(struct meta *m)
{
    struct tokenizer *t = m->l.t;
    if (!read_model(m) || !read_tokens(m))
        return false;
    m->l.max_id = (int64_t)m->n - 1;
    load_open(&m->l, m->text.n);
    if (!add_tokens(m) || !(m->scores ? merges_of_scores(m) : add_merges(m)) || !read_switches(m))
        return false;
    bpe_seal(&t->bpe);
    if (!add_steps(m))
        return err_prefix(m->l.e, "%s", m->l.path);
    if (!add_added(m))
        return false;
    tokenizer_find_limits(t);
    const char *decoder = m->split ? bytes_decoder : m->prefix ? prefix_decoder : mark_decoder;
    if (!steps_decoder(t, constant(decoder), m->l.e))
        return err_prefix(m->l.e, "%s", m->l.path);
    if (!gguf_token_id(m->g, "bos", (int64_t)m->n, &t->bos, m->l.e))
        return false;
    t->bos = m->bos ? t->bos : -1;
    return true;
}

bool tokenizer_load_gguf(struct tokenizer *t, const char *path, struct err *e)
{
    struct shown shown = show_path(path);
    struct meta m = {.l = {.t = t, .path = shown.s, .tokens = KEY "tokens",
                           .merges = KEY "merges", .more = KEY "tokens", .e = e}};
    m.g = gguf_open(path, e);
    bool ok = m.g && load_meta(&m);
    load_close(&m.l);
    gguf_close(m.g);
    buf_free(&m.text);
    FREE(m.token, m.kind);
    return ok;
}

bool tokenizer_digest_gguf(const char *path, char hex[65], struct err *e)
{
    static const char *const decide[] = {
        "general.architecture", KEY "model", KEY "pre", KEY "tokens", KEY "token_type",
        KEY "merges", KEY "scores", KEY "add_space_prefix", KEY "add_bos_token",
        KEY "bos_token_id", KEY "unknown_token_id"};
    struct gguf *g = gguf_open(path, e);
    if (!g)
        return false;
    gguf_digest(g, decide, LEN(decide), hex);
    gguf_close(g);
    return true;
}
