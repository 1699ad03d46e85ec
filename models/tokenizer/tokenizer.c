/* tokenizer.c - see tokenizer.h: encoding, decoding, and streams of decoded text. */
#include "models/checkpoint/gguf.h"
#include "models/checkpoint/json.h"
#include "models/tokenizer/load.h"

#include <errno.h>
#include <sys/stat.h>

/* The file of the tokenizer at a path; NULL and *e: the path cannot be looked at. The caller
 * frees. */
static char *file_at(const char *dir, struct err *e)
{
    struct stat st;
    bool known = stat(dir, &st) == 0, folder = known && S_ISDIR(st.st_mode);
    if (!known && errno != ENOENT)
        return FAILED(NULL, e, ERR_MODEL, "cannot open %s: %s", dir, strerror(errno));
    return folder ? xasprintf("%s/tokenizer.json", dir) : xstrdup(dir);
}

bool tok_digest(const char *dir, char hex[65], struct err *e)
{
    FREED(buf_free) struct buf b = {0};
    FREED(free_at) char *path = file_at(dir, e);
    hex[0] = '\0';
    if (!path || file_missing(path))
        return path != NULL;
    if (gguf_is(path))
        return tokenizer_digest_gguf(path, hex, e);
    if (!buf_read_file(&b, path, TOK_FILE_BYTES, e))
        return false;
    sha256_hex(b.p, b.n, hex);
    return true;
}

/* Whether the folder `dir` has no file at `path`, its tokenizer.json; *e then says so, and which
 * other tokenizer is there. */
static bool lacks_tokenizer(const char *dir, const char *path, struct err *e)
{
    static const char *const others[] = {"tokenizer.model", "tekken.json", "vocab.json", NULL};
    struct stat st;
    if (!strcmp(dir, path) || lstat(path, &st) == 0)
        return false;
    for (const char *const *o = others; *o; o++) {
        FREED(free_at) char *other = xasprintf("%s/%s", dir, *o);
        if (!file_missing(other))
            return FAILED(true, e, ERR_MODEL, "%s has no tokenizer.json, only %s, which aerie does "
                          "not read; transformers makes the one of the other: "
                          "AutoTokenizer.from_pretrained(), then save_pretrained()",
                          show_path(dir).s, *o);
    }
    return FAILED(true, e, ERR_MODEL, "%s has no tokenizer.json", show_path(dir).s);
}

struct tokenizer *tok_open(const char *dir, struct err *e)
{
    FREED(free_at) char *path = file_at(dir, e);
    if (!path || lacks_tokenizer(dir, path, e))
        return NULL;
    struct tokenizer *t = xcalloc(1, sizeof *t);
    if ((gguf_is(path) ? tokenizer_load_gguf : tokenizer_load)(t, path, e))
        return t;
    tok_close(t);
    return NULL;
}

void tok_close(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_free(&t->bpe);
    added_set_free(&t->raw);
    added_set_free(&t->normalized);
    added_set_free(&t->all);
    for (int i = 0; i < t->n_norm; i++) {
        pattern_free(&t->norm[i].pattern);
        buf_free(&t->norm[i].content);
    }
    for (int i = 0; i < t->n_pre; i++) {
        pattern_free(&t->pre[i].pattern);
        buf_free(&t->pre[i].content);
    }
    buf_free(&t->plain);
    FREE(t->decoded, t->decoded_first, t);
}

/* ---- UTF-8 ---- */

/* Bytes of valid UTF-8 at the beginning of s; fewer if `stop` asks. */
static size_t valid_bytes(const char *s, size_t n, const struct stop *stop)
{
    size_t good = 0, len = 1;
    uint32_t cp;
    for (size_t end; good < n && len && !stop_asked(stop);) {
        end = next_check(good, n);
        while (good < end && (len = utf8_char(s + good, n - good, &cp)))
            good += len;
    }
    return good;
}

/* s, or a copy in *fixed with U+FFFD for each invalid sequence. NULL: `stop` asked. */
static const char *valid_text(const char *s, size_t *n, const struct stop *stop, struct buf *fixed)
{
    size_t good = valid_bytes(s, *n, stop);
    uint32_t cp;
    if (good == *n)
        return s;
    buf_add(fixed, s, good);
    for (size_t i = good, end; i < *n && !stop_asked(stop);)
        for (end = next_check(i, *n); i < end;) {
            i += utf8_decode(s + i, *n - i, &cp);
            buf_utf8(fixed, cp);
        }
    *n = fixed->n;
    return stop_asked(stop) ? NULL : fixed->p;
}

/* ---- encoding ---- */

/* Encodes normalised text without added tokens. */
static bool encode_words(const struct tokenizer *t, const char *s, size_t n, bool at_start,
                         bool plain, struct tok_work *w, struct ids *out, struct err *e)
{
    if (!pre_tokenize(t, s, n, at_start, w, e))
        return false;
    for (size_t i = 0; i < w->in.span.n; i++) {
        const struct text_span *x = &w->in.span.v[i];
        if ((i % 1024 == 0 && must_stop(w)) ||
            !bpe_word(&t->bpe, w->in.text.p + x->off, x->len, plain, &w->bpe, out))
            return was_stopped(e);
        if (out->n > MAX_TEXT)
            return err_set(e, ERR_MODEL, "the text has more than %d tokens", MAX_TEXT);
    }
    return true;
}

/* Encodes text without raw added tokens. */
static bool encode_stretch(const struct tokenizer *t, const char *s, size_t n, bool at_start,
                           bool plain, struct tok_work *w, struct ids *out, struct err *e)
{
    if (!normalize(t, s, n, w, e))
        return false;
    w->norm.n = 0;
    if (!added_split(&t->normalized, &t->bpe, w->text.p, w->text.n, plain, w->find.stop, &w->norm))
        return was_stopped(e);
    for (size_t i = 0; i < w->norm.n; i++) {
        const struct segment *c = &w->norm.v[i];
        if (c->id >= 0)
            ids_add(out, c->id);
        else if (!encode_words(t, w->text.p + c->off, c->len, at_start && c->off == 0, plain, w,
                               out, e))
            return false;
    }
    return true;
}

static _Thread_local const struct stop *stop_flag;

void tok_stop_on(const struct stop *stop)
{
    stop_flag = stop;
}

bool tok_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                struct ids *out, struct err *e)
{
    if (n > MAX_TEXT / 4)
        return err_set(e, ERR_USAGE, "text of %zu bytes is too long to encode", n);
    bool plain = !(flags & TOK_SPECIAL), ok = true;
    FREED(tok_work_free) struct tok_work w = {.find.stop = stop_flag, .bpe.stop = stop_flag};
    FREED(buf_free) struct buf fixed = {0};
    int before = out->n;
    work_bound(&w, n);
    text = valid_text(text, &n, stop_flag, &fixed);
    if (!text || !added_split(&t->raw, &t->bpe, text, n, plain, stop_flag, &w.raw))
        ok = was_stopped(e);
    for (size_t i = 0; ok && i < w.raw.n; i++) {
        const struct segment *c = &w.raw.v[i];
        if (c->id >= 0)
            ids_add(out, c->id);
        else
            ok = encode_stretch(t, text + c->off, c->len, c->off == 0 && !(flags & TOK_INNER),
                                plain, &w, out, e);
    }
    if (!ok)
        out->n = before;
    return ok;
}

/* ---- vocabulary ---- */

int tok_vocab(const struct tokenizer *t)
{
    return t->bpe.n_token;
}

int tok_bos(const struct tokenizer *t)
{
    return t->bos;
}

static bool has_string(const struct tokenizer *t, int id)
{
    return id >= 0 && id < t->bpe.n_token && t->bpe.token[id].used;
}

bool tok_is_special(const struct tokenizer *t, int id)
{
    return has_string(t, id) && t->bpe.token[id].special;
}

bool tok_eats_white(const struct tokenizer *t, int id)
{
    for (int i = 0; i < t->all.n; i++)
        if (t->all.v[i].id == id)
            return t->all.v[i].rstrip;
    return false;
}

const char *tok_bytes(const struct tokenizer *t, int id, size_t *n)
{
    *n = 0;
    if (!has_string(t, id))
        return NULL;
    *n = t->decoded[id].len;
    return t->plain.p + t->decoded[id].off;
}

/* ---- decoding ---- */

/* Appends decoded bytes to out, without the characters stripped at the start of a whole text. */
static void emit(struct tok_stream *s, const struct tokenizer *t, const char *p, size_t n,
                 struct buf *out)
{
    size_t len = strlen(t->strip);
    while (n && !s->begun && s->stripped < t->strip_max && n >= len &&
           memcmp(p, t->strip, len) == 0) {
        p += len;
        n -= len;
        s->stripped++;
    }
    s->begun |= n > 0;
    buf_add(out, p, n);
}

size_t tok_stream_push(struct tok_stream *s, const struct tokenizer *t, int id, struct buf *out)
{
    size_t n, own, done = 0;
    uint32_t cp;
    bool open = false;
    const char *p = tok_bytes(t, id, &n);
    if (p && !s->pushed && t->decoded_first) {
        n = t->decoded_first[id].len;
        p = t->plain.p + t->decoded_first[id].off;
    }
    s->pushed |= p != NULL;
    own = n;
    if (!n)
        return 0;
    FREED(buf_free) struct buf all = {0};
    if (s->n_held) {
        buf_add(&all, s->held, (size_t)s->n_held);
        buf_add(&all, p, n);
        p = all.p;
        n = all.n;
    }
    while (done < n && !open) {
        size_t len = utf8_char(p + done, n - done, &cp);
        if (len == 0) {
            len = utf8_invalid(p + done, n - done, &open);
            len = open ? 0 : len;
        }
        done += len;
    }
    emit(s, t, p, done, out);
    s->n_held = (int)(n - done);
    memcpy(s->held, p + done, n - done); /* at most three bytes */
    return own;
}

void tok_stream_flush(struct tok_stream *s, struct buf *out)
{
    buf_add(out, s->held, (size_t)s->n_held);
    *s = (struct tok_stream){0};
}

void tok_decode(const struct tokenizer *t, const int32_t *ids, int n, struct buf *out)
{
    struct tok_stream s = {0};
    for (int i = 0; i < n; i++)
        tok_stream_push(&s, t, ids[i], out);
    tok_stream_flush(&s, out);
}
