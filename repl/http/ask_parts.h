/* ask_parts.h - what the files that read requests share: ask.c, ask_fields.c, ask_form.c. Private
 * to them. Any thread. */
#pragma once

#include "repl/http/ask.h"

/* A field that is not null; NULL: not there. */
static inline json_t *get(const json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);
    return json_is_null(v) ? NULL : v;
}

/* ask_fields.c: the kinds of requests. */
enum { CHAT = 1, COMPLETION = 2, BOTH = CHAT | COMPLETION };
/* Checks all fields of a request of one kind that are not read. A field that is null counts as
 * absent. False and *r: one would change the answer, or is not known. */
bool check_fields(const json_t *o, int kind, struct refusal *r);

/* ask_form.c. Whether "tools" is a list of functions; else *r. */
bool check_tools(const json_t *o, struct refusal *r);
/* A "tool_choice" of type "allowed_tools" becomes its mode, and "tools" the functions it names. */
bool narrow_tools(json_t *o, struct refusal *r);
/* The functions that a request offers; NULL: none. */
const json_t *tools_of(const json_t *o);
/* The calls of a message of the assistant: [{"name", "arguments"}], a new list. NULL and *r. */
json_t *read_calls(const json_t *list, const char *where, struct refusal *r);
/* The name of the function whose call message `at` of the list answers, or NULL. */
const char *called_name(const json_t *list, int at, const json_t *m);
/* "tool_choice" and "response_format" with its kin: set a->calls and a->format. */
bool read_choice(struct ask *a, const struct ask_of *of, const json_t *o, struct refusal *r);
bool read_format(struct ask *a, const json_t *o, struct refusal *r);
