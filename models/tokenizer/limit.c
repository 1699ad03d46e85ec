/* limit.c - how many bytes of text a number of tokens can stand for.
 *
 * The steps of encoding turn a text into another, and that one is a concatenation of the strings of
 * the tokens. So n tokens stand for at most n times the longest string, times the factor by which
 * each step can shorten a text. There is no limit where a step may drop text: white space beside an
 * added token, the matches of a split, characters that the vocabulary lacks.
 */
#include "models/tokenizer/parts.h"

/* A normal form's character of L bytes stands for at most so many times L bytes: each character of
 * its full decomposition, of which a character of one byte has one, one of two bytes at most three
 * and others four, stems from one character of at most four bytes. */
enum { FORM_SHRINKS = 6 };

/* The factor by which replacing matches of p by `by` may shorten a text; 0: without limit. */
static size_t replace_shrinks(const struct pattern *p, const struct buf *by)
{
    if (!p->literal || by->n == 0)
        return 0;
    return by->n >= p->n ? 1 : (p->n + by->n - 1) / by->n;
}

/* The product of the factors of all steps; 0: without limit. */
static size_t steps_shrink(const struct tokenizer *t)
{
    size_t factor = 1;
    FOR_EACH(const struct norm_step, s, t->norm, t->n_norm) {
        size_t one = s->kind == NORMALIZE_FORM      ? FORM_SHRINKS
                     : s->kind == NORMALIZE_REPLACE ? replace_shrinks(&s->pattern, &s->content)
                                                    : 1;
        factor = one ? factor * one : 0;
    }
    FOR_EACH(const struct pre_step, s, t->pre, t->n_pre) {
        size_t one = s->kind == PRE_REPLACE ? replace_shrinks(&s->pattern, &s->content) : 1;
        if (s->kind == PRE_SPLIT && s->how == SPLIT_REMOVED)
            one = 0;
        factor = one ? factor * one : 0;
    }
    return factor > MAX_TEXT ? 0 : factor;
}

/* Whether the last step writes bytes as characters, so that a character is one byte of the text. */
static bool has_byte_alphabet(const struct tokenizer *t)
{
    return t->n_pre > 0 && t->pre[t->n_pre - 1].kind == PRE_BYTES;
}

/* Whether each character that can occur becomes a token or tokens. */
static bool knows_all(const struct tokenizer *t)
{
    const struct bpe *b = &t->bpe;
    bool bytes = b->byte_fallback, alphabet = has_byte_alphabet(t);
    for (int c = 0; c < 256; c++) {
        int id = b->direct_id[byte_to_char((uint8_t)c)];
        bytes = bytes && b->byte_id[c] >= 0;
        alphabet = alphabet && id >= 0 && !b->token[id].special;
    }
    return bytes || alphabet || (b->unk >= 0 && !b->fuse_unk);
}

/* Whether an added token that is matched includes the white space beside it. */
static bool swallows_white(const struct tokenizer *t, bool plain)
{
    FOR_EACH(const struct added, x, t->all.v, t->all.n)
        if ((x->lstrip || x->rstrip) && !(plain && t->bpe.token[x->id].special))
            return true;
    return false;
}

/* The longest string of a token, in bytes of the text that it stands for. */
static size_t longest_token(const struct tokenizer *t)
{
    size_t most = 4; /* the unknown token stands for a character */
    bool alphabet = has_byte_alphabet(t);
    FOR_EACH(const struct bpe_token, x, t->bpe.token, t->bpe.n_token) {
        size_t n = x->used ? x->len : 0, shared = 0;
        for (size_t k = 0; alphabet && k < n; k++)
            shared += ((uint8_t)t->bpe.text.p[x->off + k] & 0xC0) == 0x80;
        most = n - shared > most ? n - shared : most;
    }
    const struct added_set *sets[] = {&t->all, &t->normalized};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < sets[k]->n; i++)
            most = sets[k]->v[i].len > most ? sets[k]->v[i].len : most;
    return most;
}

void tokenizer_find_limits(struct tokenizer *t)
{
    size_t factor = knows_all(t) ? steps_shrink(t) : 0, longest = longest_token(t);
    bool any = factor && longest <= SIZE_MAX / factor;
    t->most_bytes[0] = any && !swallows_white(t, false) ? factor * longest : 0;
    t->most_bytes[1] = any && !swallows_white(t, true) ? factor * longest : 0;
}

size_t tok_most_bytes(const struct tokenizer *t, int n, unsigned flags)
{
    size_t one = t->most_bytes[!(flags & TOK_SPECIAL)];
    CHECK(n >= 0);
    return one == 0 || (n && one > SIZE_MAX / (size_t)n) ? SIZE_MAX : one * (size_t)n;
}
