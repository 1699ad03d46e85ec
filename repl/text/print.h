/* print.h - what a command or subcommand answers, stated once: text for people or JSON for
 * programs.
 *
 * A format names its facts (kernels/fields.h): "session %s{session}: %d{turns} turns". As text, the
 * names are left out, and so is everything between two "\f", or from one on; behind a "\v" the
 * style is ST_TEXT; a number that is not known ({name:-1}, NAN) is a dim "-". As JSON, only the
 * named facts count, and what is not known is null. Main thread only. */
#pragma once

#include "kernels/json.h"
#include "repl/text/sheet.h"

/* Where an answer goes: to json unless it is NULL, else to out. */
struct printer {
    struct sheet *out;
    struct buf *json;
};

/* Text alone, for a pane. */
#define ON_SHEET(sheet) (&(struct printer){(sheet), NULL})

/* A record: a line, none if its text is empty; or an object. */
void print_line(const struct printer *o, enum style st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A line, none if its text is empty; or members of the object that is open. */
void print_facts(const struct printer *o, enum style st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A part of a line; or members of the object that is open. */
void print_add(const struct printer *o, enum style st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A line for people only: headings, explanations. */
void print_note(const struct printer *o, enum style st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void print_text(const struct printer *o, enum style st,
                const char *text);       /* lines for people only */
/* Lines of text; or a string under a key. */
void print_body(const struct printer *o, enum style st, const char *key, const struct buf *text);
/* Text that is an answer already: lines of text, or one JSON value. */
void print_ready(const struct printer *o, const char *text);
void print_tab(const struct printer *o, int column); /* sheet_tab() */
void print_end(const struct printer *o); /* ends the line */
/* An array or object of JSON, under a key or (NULL) as an element; nothing in text. */
void print_open(const struct printer *o, const char *key, char bracket);
void print_close(const struct printer *o, char bracket);
/* print_open() whose print_close() comes where the block is left. */
#define PRINT_IN(o, key, bracket)                                                                  \
    FREED(print_leave) struct print_in OF_LINE(in_) = print_enter(o, key, bracket)
struct print_in {
    const struct printer *o;
    char end;
};
struct print_in print_enter(const struct printer *o, const char *key, char bracket);
void print_leave(struct print_in *in);
void print_none(const struct printer *o, const char *key); /* null; nothing in text */
/* Nothing in text: a number, an integer, a string; key NULL: an element of an array. */
void print_real(const struct printer *o, const char *key, double v);
void print_int(const struct printer *o, const char *key, int64_t v);
void print_str(const struct printer *o, const char *key, const char *s);
void print_ints(const struct printer *o, const char *key, const int32_t *v, int n); /* an array */
