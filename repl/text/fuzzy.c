/* fuzzy.c - see fuzzy.h. */
#include "repl/text/fuzzy.h"
#include "kernels/ascii.h"

enum { LETTER = 1, FOLLOWS = 5, WORD_START = 8, NAME_START = 4, HELP_WORD = 6, HELP_START = 4 };

static bool is_start(const char *name, int at)
{
    return at == 0 || (!ascii_alnum(name[at - 1]) && ascii_alnum(name[at]));
}

static int worth(const char *name, int at)
{
    bool first = at == 0 || (at == 1 && !ascii_alnum(name[0]));
    return LETTER + (is_start(name, at) ? WORD_START : 0) + (first ? NAME_START : 0);
}

/* The best way to place n letters in a name of m bytes, in their order. best[j]: of the letters so
 * far, the last one at byte j; from[i][j]: where the letter before it is. -1: there is no way. */
static int place_letters(const char *word, int n, const char *name, int m, bool *hit)
{
    static const int none = -1;
    uint8_t from[FUZZY_WORD][FUZZY_NAME];
    int best[FUZZY_NAME], last = -1, score = none;
    memset(from, 0, sizeof from);
    for (int j = 0; j < m; j++)
        best[j] = none;
    for (int i = 0; i < n; i++) {
        int before = none, before_at = 0, left = none; /* best of [0, j - 1), and best[j - 1] */
        for (int j = 0; j < m; j++) {
            int follows = left, apart = before, here = none;
            if (left > before) {
                before = left;
                before_at = j - 1;
            }
            left = best[j];
            if (ascii_lower(word[i]) == ascii_lower(name[j])) {
                here = i == 0 ? 0 : follows >= 0 && follows + FOLLOWS >= apart ? follows + FOLLOWS
                       : apart;
                from[i][j] = (uint8_t)(i > 0 && follows >= 0 && here == follows + FOLLOWS
                                           ? j - 1 : before_at);
                here += here >= 0 ? worth(name, j) : 0;
            }
            best[j] = here;
        }
    }
    for (int j = 0; j < m; j++)
        if (best[j] > score) {
            score = best[j];
            last = j;
        }
    for (int i = n - 1; i >= 0 && last >= 0 && hit; last = from[i][last], i--)
        hit[last] = true;
    return score;
}

/* Whether the word stands in the help as it is: -1: no. */
static int in_help(const char *word, int n, const char *help)
{
    int best = -1;
    for (const char *p = help; p && *p; p++)
        if (ascii_same_n(p, word, (size_t)n))
            best = max_int(best, HELP_WORD + (is_start(help, (int)(p - help)) ? HELP_START : 0));
    return best;
}

int fuzzy_match(const char *query, const char *name, const char *help, bool hit[FUZZY_NAME])
{
    int m = (int)strnlen(name, FUZZY_NAME), sum = 0;
    if (hit)
        memset(hit, 0, FUZZY_NAME * sizeof *hit);
    if (!query[strspn(query, " \t")])
        return 0;
    for (const char *p = query + strspn(query, " \t"); *p; p += strspn(p, " \t")) {
        int n = (int)strcspn(p, " \t"), used = min_int(n, FUZZY_WORD);
        int score = max_int(place_letters(p, used, name, m, hit), in_help(p, used, help));
        if (score < 0)
            return -1;
        sum += score;
        p += n;
    }
    /* the command /check is no longer than the setting check */
    m -= m > 0 && !ascii_alnum(name[0]);
    return sum * FUZZY_POINT + FUZZY_POINT - 1 - min_int(m, FUZZY_POINT - 1);
}
