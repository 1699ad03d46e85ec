/* prompts.h - a file of prompts: plain text, one a line, or JSON lines.
 *
 * The first line that is not blank decides: a file of JSON lines begins with '{'. A line is then
 * {"prompt": text}, {"question": text, "answer": text} as GSM8K has them, or {"messages": [...]}
 * with the roles system, user and assistant. Blank lines are skipped. The file is read as the
 * prompts are asked for, so that its size does not matter. One thread. */
#pragma once

#include "engine/backend.h"

struct prompt {
    int line;               /* of the file, from 1 */
    char *text;
    char *system;           /* or NULL: the line has none */
    struct past_turn *past; /* (n_past) exchanges before the text, without ids */
    int n_past;
    char *answer;           /* the correct number, in the form of number_find(); or NULL */
};
void prompt_free(struct prompt *p); /* what it owns; zeroes it */
/* Whether both prompts have the same system prompt and the same exchanges before them. */
bool prompt_same_past(const struct prompt *a, const struct prompt *b);

struct prompts {
    FILE *f;
    const char *name;
    bool json;
    int line; /* read last */
    int n;    /* prompts of the file, at most `limit` */
    int next; /* number of prompts returned so far */
};
/* Opens the file ("-": standard input) and reads all of it once: each line that is no prompt is
 * passed to complain() as one line of text ("FILE line 3: expected ..."). limit: use no more than
 * so many prompts, and read no further; 0: all. False and *e (ERR_USAGE): the file cannot be read,
 * some line was no prompt, or there is none. The caller closes. */
bool prompts_open(struct prompts *p, const char *name, int limit,
                  void (*complain)(void *, const char *line), struct err *e);
void prompts_close(struct prompts *p);
void prompts_rewind(struct prompts *p); /* to the first prompt again */
/* The next prompt, which the caller frees: 1; 0: there are no more; -1 and *e: the file has changed
 * or cannot be read. */
int prompts_next(struct prompts *p, struct prompt *out, struct err *e);

/* The last number after the last "####" of a text, else the last number of the text, without commas
 * and needless zeros: "1,250.50" is 1250.5. False: the text has no number, or one of more than 62
 * digits. */
bool number_find(const char *text, char out[64]);
