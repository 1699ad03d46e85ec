/* entries.c - see load.h: tokens, merges and added tokens, checked as they are added. */
#include "models/tokenizer/load.h"

struct shown shown_str(struct pull_str x)
{
    char s[49];
    size_t n = x.n < sizeof s ? x.n : sizeof s - 1;
    memcpy(s, x.s, n);
    s[n] = '\0';
    return show(s);
}

void load_open(struct load *l, size_t n)
{
    l->added = xcalloc((size_t)l->max_id + 1, sizeof *l->added);
    work_bound(&l->work, n);
}

void load_close(struct load *l)
{
    tok_work_free(&l->work);
    free(l->added);
    buf_free(&l->file);
}

/* ---- vocabulary ---- */

static bool good_id(struct load *l, const char *where, struct pull_str name, int64_t id)
{
    if (id < 0 || id > l->max_id)
        return err_set(l->e, ERR_MODEL, "%s: %s: id %lld of \"%s\" is out of range (0 to %lld)",
                       l->path, where, (long long)id, shown_str(name).s, (long long)l->max_id);
    return true;
}

bool load_entry(struct load *l, struct pull_str s, int64_t id)
{
    struct bpe *b = &l->t->bpe;
    if (!good_id(l, l->tokens, s, id))
        return false;
    if (id < b->n_token && b->token[id].used)
        return err_set(l->e, ERR_MODEL, "%s: %s: id %lld occurs twice (\"%s\")", l->path, l->tokens,
                       (long long)id, shown_str(s).s);
    return bpe_add(b, (int)id, s.s, s.n) ||
           err_set(l->e, ERR_MODEL, "%s: %s: \"%s\" occurs twice", l->path, l->tokens,
                   shown_str(s).s);
}

/* ---- merges ---- */

bool load_pair(struct load *l, int64_t at, struct pull_str *a, struct pull_str *b)
{
    const char *gap = a->n ? memchr(a->s, ' ', a->n) : NULL;
    size_t left = gap ? (size_t)(gap - a->s) : 0;
    if (!gap || memchr(gap + 1, ' ', a->n - left - 1))
        return err_set(l->e, ERR_MODEL, "%s: %s[%lld]: \"%s\" is not two tokens with one space "
                       "between", l->path, l->merges, (long long)at, shown_str(*a).s);
    *b = (struct pull_str){gap + 1, a->n - left - 1};
    a->n = left;
    return true;
}

bool load_merge(struct load *l, int64_t at, struct pull_str a, struct pull_str b,
                struct buf *joined)
{
    buf_clear(joined);
    buf_add(joined, a.s, a.n);
    buf_add(joined, b.s, b.n);
    struct pull_str all = {joined->p, joined->n};
    struct pull_str *name[] = {&a, &b, &all};
    int id[3];
    for (int i = 0; i < 3; i++) {
        id[i] = bpe_find(&l->t->bpe, name[i]->s, name[i]->n);
        if (id[i] < 0)
            return err_set(l->e, ERR_MODEL, "%s: %s[%lld]: \"%s\" is not in %s", l->path,
                           l->merges, (long long)at, shown_str(*name[i]).s, l->tokens);
    }
    bpe_add_merge(&l->t->bpe, id[0], id[1], (uint32_t)at, id[2]);
    return true;
}

/* ---- added tokens ---- */

/* An added token is an entry of the vocabulary with the same id, or has an id that no entry has. */
static bool name_added(struct load *l, const struct added_entry *a, int64_t at)
{
    struct bpe *b = &l->t->bpe;
    char where[64];
    snprintf(where, sizeof where, "%s[%lld]", l->more, (long long)at);
    if (!good_id(l, where, a->content, a->id))
        return false;
    int in_vocab = bpe_find(b, a->content.s, a->content.n);
    if (in_vocab >= 0 ? in_vocab != a->id : a->id < b->n_token && b->token[a->id].used)
        return err_set(l->e, ERR_MODEL, "%s: %s: \"%s\" has id %lld, %s%s", l->path, where,
                       shown_str(a->content).s, (long long)a->id,
                       in_vocab >= 0 ? "another one in " : "which another token has",
                       in_vocab >= 0 ? l->tokens : "");
    if (l->added[a->id])
        return err_set(l->e, ERR_MODEL, "%s: %s: id %lld occurs twice", l->path, where,
                       (long long)a->id);
    l->added[a->id] = true;
    if (in_vocab < 0)
        bpe_name(b, (int)a->id, a->content.s, a->content.n);
    b->token[a->id].special = a->special;
    return true;
}

static bool add_normalized(struct load *l, struct added x, struct pull_str s)
{
    struct tok_work *w = &l->work;
    if (!normalize(l->t, s.s, s.n, w, l->e))
        return false;
    if (w->text.n)
        added_set_add(&l->t->normalized, x, w->text.p, w->text.n);
    return true;
}

bool load_added_token(struct load *l, const struct added_entry *a, int64_t at)
{
    struct tokenizer *t = l->t;
    if (!name_added(l, a, at))
        return false;
    /* of equal texts the reference matches a special token, then the first in the file */
    struct added x = {.id = (int)a->id, .order = (int)at + (a->special ? 0 : 1 << 29),
                      .single_word = a->single_word, .lstrip = a->lstrip, .rstrip = a->rstrip};
    added_set_add(&t->all, x, a->content.s, a->content.n);
    if (!a->normalized)
        added_set_add(&t->raw, x, a->content.s, a->content.n);
    else if (!add_normalized(l, x, a->content))
        return err_prefix(l->e, "%s: %s[%lld]", l->path, l->more, (long long)at);
    return true;
}

void load_added_done(struct load *l)
{
    added_set_seal(&l->t->raw);
    added_set_seal(&l->t->normalized);
    added_set_seal(&l->t->all);
}
