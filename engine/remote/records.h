/* records.h - reads files of recorded requests to servers and their replies: one JSON object a
 * line.
 *
 * Read are: the OpenAI batch API (lines with custom_id and body; lines with custom_id and
 * response.body), which vLLM's run_batch writes, too; {"request": ..., "response": ...}, as aerie's
 * script writes them from SGLang's dumps; and plain lines that hold the fields of a request and of
 * its reply side by side (messages or prompt, choices or vLLM's outputs). Facts that a line does
 * not have stay "not reported". Pure functions; a struct belongs to one thread.
 */
#pragma once

#include "engine/backend.h"
#include "engine/remote/answer.h"

enum { RECORD_MESSAGES = 10000 };

struct record {
    char *name;   /* custom_id or rid; NULL: none */
    bool request, reply; /* which of the two the line has */
    /* the request */
    char *system;           /* NULL: none */
    struct past_turn *past; /* (n_past) exchanges before the question, without ids */
    int n_past;
    char *text;      /* the question; "" where only ids are known */
    int joined;      /* messages that were joined with others, because user and assistant did not
                        alternate */
    int left_out;    /* parts of messages that are not text */
    bool raw;        /* the prompt is plain text, not a chat */
    struct ids prompt; /* n 0: not known */
    struct buf settings; /* "name=value" lines of the settings in the request */
    /* the reply */
    char *answer, *thought; /* of the final and of the reasoning channel */
    struct answer_token *token; /* (n_token): of the whole reply, or none */
    int n_token;
    struct ids accepted, drafted; /* of each verification step */
    struct answer_counts count;
    enum stop_reason reason;
    char finish[32]; /* the server's finish reason; "": not known */
    char *error;     /* why the request failed; NULL: it did not */
    int choices;     /* of the reply; the first one is read */
    /* both */
    char model[128], server[128]; /* "": not known */
    double created;               /* seconds since 1970; 0: not known */
};

/* Reads one line of n bytes. False and *e (ERR_USAGE): the line is no such record; *record is empty
 * then. */
bool record_read(struct record *record, const char *line, size_t n, struct err *e);
/* Moves the request of *request to *reply, which has only a reply. */
void record_join(struct record *reply, struct record *request);
void record_free(struct record *record);
