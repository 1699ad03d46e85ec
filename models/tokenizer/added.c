/* added.c - finds added tokens in a text: leftmost first, the longest at each place.
 *
 * The tokens are sorted, so those that begin with the bytes read so far form a range, which each
 * further byte narrows. At most bytes of a text no token begins; those cost one table access.
 * tok_find() finds a token by its string.
 */
#include "models/tokenizer/parts.h"

#include <utf8proc.h>

void added_set_add(struct added_set *a, struct added x, const char *s, size_t n)
{
    CHECK(a->text.n + n < UINT32_MAX);
    x.off = (uint32_t)a->text.n;
    x.len = (uint32_t)n;
    buf_add(&a->text, s, n);
    *APPEND(a->v, a->n) = x;
}

static int compare_added(const void *x, const void *y, void *text)
{
    const struct added *a = x, *b = y;
    const char *t = text;
    int c = memcmp(t + a->off, t + b->off, a->len < b->len ? a->len : b->len);
    if (c == 0)
        c = (a->len > b->len) - (a->len < b->len);
    return c ? c : (a->order > b->order) - (a->order < b->order);
}

void added_set_seal(struct added_set *a)
{
    if (a->n)
        qsort_r(a->v, (size_t)a->n, sizeof *a->v, compare_added, a->text.p);
    int i = 0;
    for (int c = 0; c < 257; c++) {
        while (i < a->n && (uint8_t)a->text.p[a->v[i].off] < c)
            i++;
        a->first[c] = i;
    }
}

void added_set_free(struct added_set *a)
{
    buf_free(&a->text);
    free(a->v);
    *a = (struct added_set){0};
}

/* The first of v[lo..hi) whose byte number `depth` is at least c. All of them have the same first
 * `depth` bytes. */
static int lower_bound(const struct added_set *a, int lo, int hi, size_t depth, int c)
{
    const struct added *x = a->v + lo;
    return lo + FIRST_NOT(i, hi - lo,
                          x[i].len <= depth || (uint8_t)a->text.p[x[i].off + depth] < c);
}

/* The longest token that s begins with, or NULL. */
static const struct added *longest(const struct added_set *a, const char *s, size_t n)
{
    const struct added *best = NULL;
    int lo = a->first[(uint8_t)s[0]], hi = a->first[(uint8_t)s[0] + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        if (a->v[lo].len == depth)
            best = &a->v[lo];
        if (depth == n)
            break;
        int c = (uint8_t)s[depth];
        lo = lower_bound(a, lo, hi, depth, c);
        hi = lower_bound(a, lo, hi, depth, c + 1);
    }
    return best;
}

/* ---- the characters beside a match ---- */

/* A word character by Unicode Technical Standard 18: Alphabetic, marks, decimal digits, connectors,
 * joiners. */
static bool is_word_char(uint32_t c)
{
    switch (utf8proc_category((int32_t)replacement_char(c))) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME: case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* joiners; circled and squared letters are Alphabetic symbols */
        return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
               (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
               (c >= 0x1F170 && c <= 0x1F189);
    }
}

static size_t char_before(const char *s, size_t at)
{
    do
        at--;
    while (((uint8_t)s[at] & 0xC0) == 0x80);
    return at;
}

/* Whether [a, b) has no word character directly before or behind it. */
static bool stands_alone(const char *s, size_t n, size_t a, size_t b)
{
    return (a == 0 || !is_word_char(utf8_at(s + char_before(s, a)))) &&
           (b == n || !is_word_char(utf8_at(s + b)));
}

static void add_segment(struct segments *c, size_t off, size_t len, int id)
{
    *APPEND(c->v, c->n) = (struct segment){off, len, id};
}

bool added_split(const struct added_set *a, const struct bpe *b, const char *s, size_t n,
                 bool plain, const struct stop *stop, struct segments *out)
{
    size_t done = 0; /* text before this is in segments already */
    for (size_t i = 0, check = 0; i < n;) {
        if (i >= check) {
            if (stop_asked(stop))
                return false;
            check = next_check(i, n);
        }
        const struct added *x = longest(a, s + i, n - i);
        if (!x) {
            i++;
            continue;
        }
        size_t from = i, to = i + x->len;
        i = to; /* as in the reference, the search continues behind a match that is rejected */
        if ((plain && b->token[x->id].special) || (x->single_word && !stands_alone(s, n, from, to)))
            continue;
        if (x->rstrip)
            while (to < n && utf8_is_white(utf8_at(s + to)))
                to += utf8_len(s + to);
        if (x->lstrip) {
            for (size_t p; from > done && utf8_is_white(utf8_at(s + (p = char_before(s, from))));)
                from = p;
            from = from < done ? done : from;
            if (from >= to) /* the token is white space that the previous token includes */
                continue;
        }
        if (done < from)
            add_segment(out, done, from - done, -1);
        add_segment(out, from, to - from, x->id);
        done = to;
    }
    if (done < n)
        add_segment(out, done, n - done, -1);
    return true;
}

/* As strcmp() of the token's text and the string. */
static int compare_text(const struct added_set *a, const struct added *x, const char *s, size_t n)
{
    int c = memcmp(a->text.p + x->off, s, x->len < n ? x->len : n);
    return c ? c : (x->len > n) - (x->len < n);
}

int tok_find(const struct tokenizer *t, const char *string)
{
    size_t n = strlen(string);
    const struct added_set *a = &t->all;
    int at = FIRST_NOT(i, a->n, compare_text(a, &a->v[i], string, n) < 0);
    bool found = at < a->n && compare_text(a, &a->v[at], string, n) == 0;
    return found ? a->v[at].id : bpe_find(&t->bpe, string, n);
}
