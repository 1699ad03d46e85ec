/* fault.c - see fault.h. */
#include "engine/fault.h"

#include "kernels/ascii.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The word at *s (up to a blank, a colon or a comma) if it is one of n words; *s moves behind
 * it. */
static const char *take_word(const char **s, const char *const *word, size_t n)
{
    size_t len = strcspn(*s, " :,");
    for (size_t i = 0; i < n; i++)
        if (strlen(word[i]) == len && !memcmp(*s, word[i], len)) {
            *s += len;
            *s += **s == ' ';
            return word[i];
        }
    return NULL;
}

/* The number behind the first "NAME " in the message, -1: none. */
static int number_after(const char *s, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = strstr(s, name); p; p = strstr(p + 1, name))
        if ((p == s || p[-1] == ' ') && ascii_digit(p[n])) {
            long v = strtol(p + n, NULL, 10);
            return v <= INT32_MAX ? (int)v : -1;
        }
    return -1;
}

bool fault_place_read(const char *message, struct fault_place *at)
{
    static const char *const mode[] = {"extend", "decode", "verify", "draft", "draft-extend",
                                       "frozen"};
    static const char *const pool[] = {"full", "swa", "draft"};
    static const char filled[] = "what the device filled in: ";
    *at = (struct fault_place){.row = -1, .request = -1, .column = -1, .cell = -1, .page = -1};
    size_t n = strcspn(message, " ");
    if (message[0] != 'I' || n < 2 || n > 3 || strspn(message + 1, "0123456789") != n - 1 ||
        !message[n])
        return false;
    memcpy(at->rule, message, n);
    const char *s = message + n + 1, *word;
    if (!strncmp(s, filled, sizeof filled - 1)) { /* I17 and the rule behind it */
        s += sizeof filled - 1;
        s += strcspn(s, " ");
        s += *s == ' ';
    }
    const char *after = s;
    word = take_word(&after, pool, 3);
    if (word && *after == ':') { /* "draft: ...": the pool itself, no plan */
        snprintf(at->pool, sizeof at->pool, "%s", word);
    } else if ((word = take_word(&s, mode, 6))) {
        snprintf(at->plan, sizeof at->plan, "%s", word);
        if ((word = take_word(&s, pool, 3)))
            snprintf(at->pool, sizeof at->pool, "%s", word);
    } else if ((word = take_word(&s, pool, 3))) {
        snprintf(at->pool, sizeof at->pool, "%s", word);
    }
    at->row = number_after(s, "row ");
    at->request = number_after(s, "request ");
    at->column = number_after(s, "column ");
    at->cell = number_after(s, "cell ");
    at->page = number_after(s, "page ");
    return true;
}

void fault_place_print(const struct fault_place *at, struct buf *out)
{
    const struct {
        const char *name;
        int v;
    } part[] = {{"row", at->row}, {"column", at->column}, {"page", at->page},
                {"position", at->cell}};
    buf_str(out, at->rule);
    if (at->plan[0])
        buf_printf(out, " %s", at->plan);
    if (at->pool[0])
        buf_printf(out, "%s%s", at->plan[0] ? ", " : " ", at->pool);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (part[i].v >= 0)
            buf_printf(out, ", %s %d", part[i].name, part[i].v);
}

int fault_place_column(const struct fault_place *at, int page_size)
{
    if (at->row >= 0 && at->cell < 0) /* its column is one of the row's own cells, not a page */
        return -1;
    return at->row < 0 && at->column >= 0 ? at->column : at->cell >= 0 ? at->cell / max_int(page_size, 1) : -1;
}
