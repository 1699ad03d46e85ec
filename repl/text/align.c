/* align.c - see align.h. */
#include "repl/text/align.h"

struct align_part {
    size_t from, to; /* range in the text; empty: the token shows none of it */
};

void align_free(struct align *a)
{
    buf_free(&a->text);
    buf_free(&a->bytes);
    ids_free(&a->size);
    *a = (struct align){0};
}

void align_text(struct align *a, const char *p, size_t n)
{
    buf_add(&a->text, p, n);
}

void align_token(struct align *a, const char *p, size_t n)
{
    buf_add(&a->bytes, p, n);
    ids_add(&a->size, (int32_t)n);
}

static bool is_blank(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != ' ' && p[i] != '\n' && p[i] != '\t')
            return false;
    return true;
}

/* Where text[0, end) ends with the bytes p[n], the beginning of them there; they may lack their
 * leading blanks, and must where they hold more than the text. SIZE_MAX: it does not. */
static size_t ends_with(const char *text, size_t end, const char *p, size_t n)
{
    size_t k = n < end ? n : end, blanks = 0;
    if (k > 0 && memcmp(text + end - k, p + n - k, k) == 0 && is_blank(p, n - k))
        return end - k;
    while (blanks < n && is_blank(p + blanks, 1))
        blanks++;
    k = n - blanks;
    bool rest = blanks > 0 && k > 0 && k <= end && memcmp(text + end - k, p + blanks, k) == 0;
    return rest ? end - k : SIZE_MAX;
}

/* Reads the text backwards from its end, which is behind `cut` bytes of token `last`. Returns
 * how much of the text is left over at its beginning. */
static size_t read_back(const struct align *a, int last, size_t cut, struct align_part *part)
{
    size_t end = a->text.n, at = 0;
    for (int i = 0; i < a->size.n; i++) {
        part[i] = (struct align_part){0, 0};
        at += i < last ? (size_t)a->size.v[i] : 0;
    }
    for (int i = last; i >= 0 && end > 0; i--) {
        size_t n = i == last ? cut : (size_t)a->size.v[i];
        size_t from = ends_with(a->text.p, end, a->bytes.p + at, n);
        at -= i > 0 ? (size_t)a->size.v[i - 1] : 0;
        if (from == SIZE_MAX && i == last)
            return a->text.n;
        if (from == SIZE_MAX)
            continue;
        part[i] = (struct align_part){from, end};
        end = from;
    }
    return end;
}

/* Whether the bytes of a token from `cut` on may be held back: the beginning of a character or a
 * tag. */
static bool may_hold(const char *p, size_t cut, size_t n)
{
    unsigned char c = cut < n ? (unsigned char)p[cut] : 0;
    return cut == n || c == '<' || (c >= 0xC0 && n - cut < (c >= 0xF0 ? 4u : c >= 0xE0 ? 3u : 2u));
}

void align_run(struct align *a, void (*tell)(void *arg, int token, size_t from, size_t to),
               void *arg)
{
    FREED(free_at) struct align_part *part = xcalloc((size_t)max_int(a->size.n, 1), sizeof *part);
    size_t best = a->text.n, best_cut = 0, at = a->bytes.n;
    int best_at = -1;
    for (int i = a->size.n - 1; i >= 0 && best > 0; i--) {
        size_t n = (size_t)a->size.v[i];
        at -= n;
        for (size_t cut = n; cut > 0 && best > 0; cut--) {
            size_t left = may_hold(a->bytes.p + at, cut, n) ? read_back(a, i, cut, part) : best;
            if (left < best)
                best = left, best_at = i, best_cut = cut;
        }
    }
    if (best_at >= 0)
        read_back(a, best_at, best_cut, part);
    for (int i = 0; i <= best_at; i++)
        if (part[i].to > part[i].from)
            tell(arg, i, part[i].from, part[i].to);
}
