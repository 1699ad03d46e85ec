/* find.c - see find.h. */
#include "repl/text/find.h"
#include "kernels/ascii.h"

void find_free(struct find *f)
{
    buf_free(&f->pattern);
    free(f->piece);
    *f = (struct find){.at = -1};
}

void find_clear(struct find *f)
{
    f->n_piece = f->n = 0;
}

/* Bytes of a row without the blanks at its end. */
static size_t trimmed(const struct sheet_row *r)
{
    size_t n = r->text.n;
    while (n > 0 && r->text.p[n - 1] == ' ')
        n--;
    return n;
}

/* Where byte `at` of the joined rows is: the row is found by halving. */
static int row_of(const size_t *start, int n, size_t at)
{
    int lo = 0, hi = n - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (start[mid] <= at)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

void find_rows(struct find *f, int entry, const struct sheet_row *row, int from, int n)
{
    size_t k = f->pattern.n;
    if (k == 0 || from >= n)
        return;
    FREED(buf_free) struct buf all = {0};
    FREED(free_at) size_t *start = xcalloc((size_t)n + 1, sizeof *start);
    for (int i = from; i < n; i++) {
        start[i] = all.n;
        buf_add(&all, buf_text(&row[i].text), trimmed(&row[i]));
        buf_char(&all, ' ');
    }
    for (size_t at = 0; at + k <= all.n && f->n < FIND_MOST;) {
        if (!ascii_same_n(all.p + at, f->pattern.p, k)) {
            at++;
            continue;
        }
        for (int i = from + row_of(start + from, n - from, at); i < n && start[i] < at + k; i++) {
            size_t a = at > start[i] ? at - start[i] : 0, b = at + k - start[i];
            b = b < trimmed(&row[i]) ? b : trimmed(&row[i]);
            if (a < b)
                *APPEND(f->piece, f->n_piece) = (struct find_piece){entry, i, (int)a, (int)b, f->n};
        }
        bool any = f->n_piece > 0 && f->piece[f->n_piece - 1].match == f->n;
        f->n += any;
        at += any ? k : 1;
    }
}

static bool comes_before(const struct find_piece *p, int entry, int row)
{
    return p->entry != entry ? p->entry < entry : p->row < row;
}

/* The index of the first piece at or after a row. */
static int lower(const struct find *f, int entry, int row)
{
    return FIRST_NOT(i, f->n_piece, comes_before(&f->piece[i], entry, row));
}

const struct find_piece *find_match(const struct find *f, int match)
{
    int at = FIRST_NOT(i, f->n_piece, f->piece[i].match < match);
    return at < f->n_piece && f->piece[at].match == match ? &f->piece[at] : NULL;
}

int find_before(const struct find *f, int entry, int row)
{
    int i = lower(f, entry, row + 1);
    return i > 0 ? f->piece[i - 1].match : -1;
}

int find_after(const struct find *f, int entry, int row)
{
    int i = lower(f, entry, row);
    return i < f->n_piece ? f->piece[i].match : -1;
}

int find_here(const struct find *f, int entry, int row, int at)
{
    for (int i = lower(f, entry, row); i < f->n_piece; i++) {
        const struct find_piece *p = &f->piece[i];
        if (p->entry != entry || p->row != row || p->from > at)
            return 0;
        if (at < p->to)
            return p->match == f->at ? 2 : 1;
    }
    return 0;
}
