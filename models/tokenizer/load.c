/* load.c - reads tokenizer.json into a struct tokenizer.
 *
 * The large members (vocabulary, merges, added tokens) are read in place by the pull parser
 * (pull.h); the small trees (normalizer, pre_tokenizer, decoder) by steps.c. Whatever ids the file
 * contains, memory stays proportional to the file's size.
 */
#include "models/tokenizer/load.h"

/* The text of the members of the file and of its "model", not yet parsed; s NULL: absent. */
struct parts {
    struct pull_str version, model, added, normalizer, pre_tokenizer, decoder, post;
    struct pull_str type, vocab, merges, unk, dropout, prefix, suffix;
    struct pull_str ignore_merges, byte_fallback, fuse_unk;
};

static struct pull reader(struct pull_str raw)
{
    char *s = (char *)(uintptr_t)raw.s; /* points into l->file, which may be changed */
    return (struct pull){s, s, s + raw.n, NULL};
}

/* Whether the parser j failed; sets l->e then, with the offset in the whole file. */
static bool read_failed(const struct load *l, const struct pull *j)
{
    struct pull whole = *j;
    whole.begin = l->file.p;
    return pull_failed(&whole, l->e, l->path);
}

/* ---- finding the members ---- */

static const struct member {
    const char *name;
    size_t at;
} file_members[] = {
    {"version", offsetof(struct parts, version)},
    {"model", offsetof(struct parts, model)},
    {"added_tokens", offsetof(struct parts, added)},
    {"normalizer", offsetof(struct parts, normalizer)},
    {"pre_tokenizer", offsetof(struct parts, pre_tokenizer)},
    {"decoder", offsetof(struct parts, decoder)},
    {"post_processor", offsetof(struct parts, post)},
    {NULL, 0},
}, model_members[] = {
    {"type", offsetof(struct parts, type)},
    {"vocab", offsetof(struct parts, vocab)},
    {"merges", offsetof(struct parts, merges)},
    {"unk_token", offsetof(struct parts, unk)},
    {"dropout", offsetof(struct parts, dropout)},
    {"continuing_subword_prefix", offsetof(struct parts, prefix)},
    {"end_of_word_suffix", offsetof(struct parts, suffix)},
    {"ignore_merges", offsetof(struct parts, ignore_merges)},
    {"byte_fallback", offsetof(struct parts, byte_fallback)},
    {"fuse_unk", offsetof(struct parts, fuse_unk)},
    {NULL, 0},
};

/* Finds the text of each known member of an object; a null member counts as absent. */
static bool find_members(struct load *l, struct pull *j, const struct member *known,
                         struct parts *p)
{
    for (bool more = pull_open(j, '{'); more; more = pull_next(j, '}')) {
        struct pull_str key, raw;
        if (!pull_key(j, &key) || !pull_skip(j, &raw))
            break;
        const struct member *m = known;
        while (m->name && !pull_is(key, m->name))
            m++;
        if (!m->name || pull_is(raw, "null"))
            continue;
        struct pull_str *to = (struct pull_str *)((char *)p + m->at);
        if (to->s)
            return err_set(l->e, ERR_MODEL, "%s: \"%s\" occurs twice", l->path, m->name);
        *to = raw;
    }
    return !read_failed(l, j);
}

static bool find_parts(struct load *l, struct parts *p)
{
    struct pull j = reader((struct pull_str){l->file.p, l->file.n});
    if (!find_members(l, &j, file_members, p))
        return false;
    if (!pull_end(&j))
        return !read_failed(l, &j);
    if (p->version.s && !pull_is(p->version, "\"1.0\""))
        return err_set(l->e, ERR_MODEL, "%s: version %s; expected \"1.0\"", l->path,
                       shown_str(p->version).s);
    if (!p->model.s)
        return err_set(l->e, ERR_MODEL, "%s: \"model\" is missing", l->path);
    j = reader(p->model);
    if (!find_members(l, &j, model_members, p))
        return false;
    if (p->type.s && !pull_is(p->type, "\"BPE\""))
        return err_set(l->e, ERR_MODEL, "%s: model.type: %s is not supported; expected \"BPE\"",
                       l->path, shown_str(p->type).s);
    if (!p->vocab.s || !p->merges.s)
        return err_set(l->e, ERR_MODEL, "%s: model.%s is missing", l->path,
                       p->vocab.s ? "merges" : "vocab");
    return true;
}

/* ---- vocabulary ---- */

static bool load_vocab(struct load *l, struct pull_str raw)
{
    struct bpe *b = &l->t->bpe;
    struct pull j = reader(raw);
    for (bool more = pull_open(&j, '{'); more; more = pull_next(&j, '}')) {
        struct pull_str s;
        int64_t id;
        if (!pull_key(&j, &s) || !pull_int(&j, &id))
            break;
        if (!load_entry(l, s, id))
            return false;
    }
    if (read_failed(l, &j))
        return false;
    if (!b->n_vocab)
        return err_set(l->e, ERR_MODEL, "%s: model.vocab is empty", l->path);
    return true;
}

/* ---- merges ---- */

/* "a b" or ["a","b"]. */
static bool read_pair(struct load *l, struct pull *j, int64_t at, struct pull_str *a,
                      struct pull_str *b)
{
    if (pull_peek(j) == '[') {
        if (pull_open(j, '[') && pull_string(j, a) && pull_next(j, ']') && pull_string(j, b) &&
            !pull_next(j, ']') && !j->bad)
            return true;
        return read_failed(l, j) ? false
                                 : err_set(l->e, ERR_MODEL, "%s: model.merges[%lld]: expected a "
                                           "pair of strings", l->path, (long long)at);
    }
    if (!pull_string(j, a))
        return !read_failed(l, j);
    return load_pair(l, at, a, b);
}

static bool load_merges(struct load *l, struct pull_str raw)
{
    struct pull j = reader(raw);
    FREED(buf_free) struct buf joined = {0};
    int64_t at = 0;
    bool ok = true;
    for (bool more = pull_open(&j, '['); ok && more; more = ok && pull_next(&j, ']'), at++) {
        struct pull_str a, b;
        ok = read_pair(l, &j, at, &a, &b) && load_merge(l, at, a, b, &joined);
    }
    return ok && !read_failed(l, &j);
}

/* ---- added tokens ---- */

static bool read_added(struct pull *j, struct added_entry *a)
{
    const struct {
        const char *name;
        bool *to;
    } flag[] = {{"single_word", &a->single_word}, {"lstrip", &a->lstrip}, {"rstrip", &a->rstrip},
                {"normalized", &a->normalized}, {"special", &a->special}};
    *a = (struct added_entry){.id = -1};
    for (bool more = pull_open(j, '{'); more; more = pull_next(j, '}')) {
        struct pull_str key, raw;
        if (!pull_key(j, &key))
            break;
        size_t f = 0;
        while (f < 5 && !pull_is(key, flag[f].name))
            f++;
        if (f < 5 ? !pull_bool(j, flag[f].to)
                  : pull_is(key, "content") ? !pull_string(j, &a->content)
                  : pull_is(key, "id")      ? !pull_int(j, &a->id)
                                            : !pull_skip(j, &raw))
            break;
    }
    return !j->bad;
}

static bool load_added(struct load *l, struct pull_str raw)
{
    if (!raw.s)
        raw = (struct pull_str){"[]", 2};
    struct pull j = reader(raw);
    int64_t at = 0;
    for (bool more = pull_open(&j, '['); more; more = pull_next(&j, ']'), at++) {
        struct added_entry a;
        if (!read_added(&j, &a))
            break;
        if (!a.content.n) /* an empty token never matches */
            continue;
        if (!load_added_token(l, &a, at))
            return false;
    }
    if (read_failed(l, &j))
        return false;
    load_added_done(l);
    return true;
}

/* ---- switches of the model ---- */

static bool load_flag(struct load *l, struct pull_str raw, const char *name, bool *to)
{
    if (raw.s && !pull_is(raw, "true") && !pull_is(raw, "false"))
        return err_set(l->e, ERR_MODEL, "%s: model.%s: expected true or false", l->path, name);
    *to = raw.s && raw.s[0] == 't';
    return true;
}

static bool load_unk(struct load *l, struct pull_str raw)
{
    struct bpe *b = &l->t->bpe;
    struct pull_str s;
    b->unk = BPE_NONE;
    if (!raw.s || pull_is(raw, "\"\""))
        return true;
    struct pull j = reader(raw);
    if (!pull_string(&j, &s))
        return !read_failed(l, &j);
    b->unk = bpe_find(b, s.s, s.n);
    if (b->unk < 0)
        return err_set(l->e, ERR_MODEL, "%s: model.unk_token: \"%s\" is not in model.vocab",
                       l->path, shown_str(s).s);
    return true;
}

static bool load_switches(struct load *l, const struct parts *p)
{
    struct bpe *b = &l->t->bpe;
    const struct {
        const char *name;
        struct pull_str raw;
    } off[] = {{"continuing_subword_prefix", p->prefix}, {"end_of_word_suffix", p->suffix}};
    for (int i = 0; i < 2; i++)
        if (off[i].raw.s && !pull_is(off[i].raw, "\"\""))
            return err_set(l->e, ERR_MODEL, "%s: model.%s: %s is not supported; expected null",
                           l->path, off[i].name, shown_str(off[i].raw).s);
    if (p->dropout.s && strtod(p->dropout.s, NULL) != 0)
        return err_set(l->e, ERR_MODEL, "%s: model.dropout: %s is not supported; expected null",
                       l->path, shown_str(p->dropout).s);
    return load_flag(l, p->ignore_merges, "ignore_merges", &b->ignore_merges) &&
           load_flag(l, p->byte_fallback, "byte_fallback", &b->byte_fallback) &&
           load_flag(l, p->fuse_unk, "fuse_unk", &b->fuse_unk) && load_unk(l, p->unk);
}

/* ---- all of it ---- */

static bool load_file(struct load *l)
{
    struct tokenizer *t = l->t;
    struct parts p = {0};
    if (!find_parts(l, &p) || !load_vocab(l, p.vocab) || !load_merges(l, p.merges) ||
        !load_switches(l, &p))
        return false;
    bpe_seal(&t->bpe);
    if (!steps_normalizer(t, p.normalizer, l->e) || !steps_pre_tokenizer(t, p.pre_tokenizer, l->e))
        return err_prefix(l->e, "%s", l->path);
    if (!load_added(l, p.added))
        return false;
    tokenizer_find_limits(t);
    return (steps_decoder(t, p.decoder, l->e) && steps_post_processor(t, p.post, l->e)) ||
           err_prefix(l->e, "%s", l->path);
}

bool tokenizer_load(struct tokenizer *t, const char *path, struct err *e)
{
    struct shown shown = show_path(path);
    struct load l = {.t = t, .path = shown.s, .tokens = "model.vocab", .merges = "model.merges",
                     .more = "added_tokens", .e = e};
    if (!json_text(path, TOK_FILE_BYTES, &l.file, e))
        return false;
    /* a vocabulary entry takes more than eight bytes of the file, which bounds plausible ids */
    l.max_id = 4096 + (int64_t)(l.file.n / 8);
    load_open(&l, l.file.n);
    bool ok = !err_mistaken(e, path, l.file.p, l.file.n) &&
              (utf8_check(l.file.p, l.file.n) ||
               err_set(e, ERR_MODEL, "%s: not valid UTF-8", path));
    ok = ok && load_file(&l);
    load_close(&l);
    return ok;
}
