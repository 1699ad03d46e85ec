/* args.c - the words of a command line: splitting, numbers, choices, names that are nearly
 * right. */
#include "repl/text/args.h"

#include "kernels/ascii.h"

/* ---- names that are nearly right ------------------------------------------------------------- */

/* The optimal string alignment distance: insertions, deletions, replacements and swaps of
 * neighbours that turn a into b. MAX for names longer than the table. */
static int edit_distance(const char *a, const char *b)
{
    enum { MAX = 32 };
    int n = (int)strlen(a), m = (int)strlen(b), d[MAX + 1][MAX + 1];
    if (n > MAX || m > MAX)
        return MAX;
    for (int i = 0; i <= n; i++)
        for (int j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            int best = min_int(d[i - 1][j], d[i][j - 1]) + 1;
            best = min_int(best, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = min_int(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    return d[n][m];
}

/* "a, b or c" */
void join_or(struct buf *out, const char *const *item, int n, const char *before)
{
    for (int i = 0; i < n; i++) {
        buf_or(out, i, n, before);
        buf_str(out, item[i]);
    }
}

void nearest_names(const char *word, const char *(*name)(int i), int n, const char *before,
                   struct buf *out)
{
    enum { SHOW = 3 };
    const char *near[SHOW];
    int far[SHOW], found = 0, most = max_int(1, (int)strlen(word) / 2);
    for (int i = 0; i < n; i++) {
        int d = edit_distance(word, name(i));
        if (strncmp(name(i), word, strlen(word)) == 0 && *word)
            d = 0;
        bool again = false; /* two rows of a table may have one name */
        for (int k = 0; k < found; k++)
            again |= !strcmp(near[k], name(i));
        if (again || d > min_int(most, 3))
            continue;
        int at = found < SHOW ? found++ : SHOW;
        while (at > 0 && far[at - 1] > d) {
            if (at < SHOW) {
                far[at] = far[at - 1];
                near[at] = near[at - 1];
            }
            at--;
        }
        if (at < SHOW) {
            far[at] = d;
            near[at] = name(i);
        }
    }
    join_or(out, near, found, before);
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Reads one word at *p into w; false when its quote is not closed. */
static bool read_word(const char **p, struct buf *w)
{
    bool quoted = false;
    const char *s = *p;
    for (; *s && (quoted || !ascii_space(*s)); s++) {
        if (*s == '"')
            quoted = !quoted;
        else if (*s == '\\' && (s[1] == '"' || s[1] == '\\'))
            buf_char(w, *++s);
        else
            buf_char(w, *s);
    }
    *p = s;
    return !quoted;
}

void words_free(char **word, int n)
{
    for (int i = 0; i < n; i++)
        free(word[i]);
}

int words_split(const char *text, char **word, int max, struct err *e)
{
    int n = 0;
    for (const char *p = text;;) {
        p += strspn(p, " \t\r\n\v\f");
        if (!*p)
            return n;
        struct buf w = {0};
        buf_str(&w, "");
        bool closed = read_word(&p, &w);
        if (closed && n < max) {
            word[n++] = w.p;
            continue;
        }
        buf_free(&w);
        words_free(word, n);
        if (closed)
            err_set(e, ERR_USAGE, "too many words: a command takes at most %d", max);
        else
            err_set(e, ERR_USAGE, "a quote (\") is not closed; \\\" is a literal one");
        return -1;
    }
}

bool arg_int(const char *s, const char *what, long min, long max, long *out, struct err *e)
{
    char *end;
    long v = strtol(s, &end, 10);
    if (!*s || *end || ascii_space(*s) || v < min || v > max || strlen(s) > 18)
        return err_set(e, ERR_USAGE, "%s is a number from %ld to %ld, not \"%.40s\"", what, min,
                       max, s);
    *out = v;
    return true;
}

int arg_choice(const char *s, const char *what, const char *const *word, int n, struct err *e)
{
    int fits = 0, at = -1;
    for (int i = 0; i < n; i++) {
        if (strcmp(s, word[i]) == 0)
            return i;
        if (*s && strncmp(s, word[i], strlen(s)) == 0) {
            fits++;
            at = i;
        }
    }
    if (fits == 1)
        return at;
    FREED(buf_free) struct buf list = {0};
    join_or(&list, word, n, "");
    return FAILED(-1, e, ERR_USAGE, "%s is %s, not \"%.40s\"", what, list.p, s);
}

void complete_words(const char *list, const char *word, cmd_add_fn *add, void *arg)
{
    for (const char *p = strchr(list, '|') ? list : ""; *p;) {
        char item[32];
        int n = (int)strcspn(p, "| ");
        snprintf(item, sizeof item, "%.*s", n, p);
        bool plain = n && (int)strspn(p, "abcdefghijklmnopqrstuvwxyz") == n;
        if (plain && strncmp(item, word, strlen(word)) == 0)
            add(arg, item, NULL);
        p += n + strspn(p + n, "| ");
    }
}
