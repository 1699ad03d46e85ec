/* lines.h - texts of lines, and of lines "name=value", as settings and facts are. Any thread. */
#pragma once

#include "kernels/base.h"

struct line {
    const char *p;
    size_t n; /* bytes, without the line break */
};

static inline struct line line_at(const char *text)
{
    text = text ? text : "";
    return (struct line){text, strcspn(text, "\n")};
}

/* Each line of a text; NULL has none, and nothing behind the last line break is no line. */
#define FOR_LINES(l, text)                                                                         \
    for (struct line l = line_at(text); *l.p; l = line_at(l.p + l.n + (l.p[l.n] == '\n')))

/* The bytes before "=", all if there is none. */
static inline struct line line_name(struct line l)
{
    return (struct line){l.p, strcspn(l.p, "=\n")};
}

/* The value of the first line with this name; p NULL: there is none. */
static inline struct line line_value(const char *lines, const char *name)
{
    const size_t n = strlen(name);
    FOR_LINES(l, lines)
        if (strncmp(l.p, name, n) == 0 && l.p[n] == '=')
            return (struct line){l.p + n + 1, l.n - n - 1};
    return (struct line){NULL, 0};
}

/* The caller frees. */
static inline char *line_copy(struct line l)
{
    return xasprintf("%.*s", (int)(l.n < INT32_MAX ? l.n : INT32_MAX), l.p);
}
