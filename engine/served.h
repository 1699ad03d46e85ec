/* served.h - a server's report of a reply that it computed: counts, times, metrics, and the best
 * tokens of each row. Everything is as the server sent it; facts that it did not send stay "not
 * reported".
 */
#pragma once

#include "kernels/base.h"

/* A metric before the request and after the reply; a NAN where that page had no such sample. */
struct served_metric {
    char *name;   /* with its prefix: "vllm:num_requests_running" */
    char *labels; /* as received, without the model's name: "engine=\"0\"", or "" */
    double before, after;
};

/* Counts are -1 and times NAN where the server did not report them. */
struct served {
    int64_t prompt, generated, cached; /* tokens as the server counts them; cached: of the
                                          prompt's */
    int64_t drafted, accepted;         /* draft tokens of the request */
    int64_t verifies;                  /* steps that verified drafts */
    double ms_queue, ms_first;         /* until the request ran, until its first token */
    double ms_prompt, ms_decode;
    char finish[32];             /* the server's finish reason; "": not reported */
    bool prompt_ids, reply_ids;  /* the ids in the log are the server's; false: it sent none */
    double ms_before, ms_after;  /* how long before the request, and after the reply's end, the
                                    metrics were read; NAN: there are none */
    struct served_metric *metric; /* owned, (n_metric), ordered by name and labels */
    int n_metric;
};

struct served *served_new(void); /* with nothing reported */
struct served *served_copy(const struct served *s); /* NULL for NULL */
void served_free(struct served *s);

enum { SERVED_TOKENS = 65536 }; /* most tokens of a step or of a piece of a stream */

/* One of the best tokens of a row; the first of each token is the token itself. */
struct top {
    int k;       /* index of the token in the step, from 0 to SERVED_TOKENS - 1 */
    int32_t id;  /* -1: the server sent only the text */
    float logp;  /* NAN: not reported */
    char *text;  /* (n bytes and a NUL) as the server sent it; NULL: not reported */
    int n;
};

/* The best tokens of a step, ordered by k; for each k the token itself first, then the others, best
 * first. */
struct tops {
    struct top *at; /* owned, (n) */
    int n;
};

/* Appends one; text is copied. */
void tops_add(struct tops *t, int k, int32_t id, float logp, const char *text, size_t n);
/* Appends those of the tokens [first, first + n), which become the tokens 0 .. n - 1 of *to. */
void tops_slice(struct tops *to, const struct tops *from, int first, int n);
struct tops *tops_copy(const struct tops *t); /* NULL for NULL */
void tops_clear(struct tops *t);
void tops_free(struct tops *t); /* and t itself; NULL is fine */
