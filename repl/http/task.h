/* task.h - a request for tokens that is being answered: its jobs and their replies.
 *
 * serve.c starts its jobs and adds the backend's events to its replies; front.c reads the
 * answer, as one JSON object or as chunks of a stream. A task owns no connection. Main thread. */
#pragma once

#include "repl/http/reply.h"

struct reply_job {
    uint64_t id;
    char session[SESSION_ID];
    struct reply reply;
    bool started, begun, ended; /* begun: EV_JOB_BEGIN came */
    bool cut;                   /* cancelled, because the reply has one of the client's stops */
    bool settled;               /* ended, and the log has stored the turn, or cannot */
    uint64_t mark, ns_marked;   /* of the log, behind the turn; 0: nothing is logged */
    int n_step;                 /* posted to the log */
    int n_drafted, n_accepted;
    struct ids all;             /* tokens of all steps, those behind a stop text included */
};

struct task {
    struct ask ask;
    struct ask_of of;
    char name[64];        /* of the request, from the client; or "" */
    const char *print;    /* system_fingerprint */
    int64_t created;      /* seconds since 1970 */
    uint64_t ns_arrived;
    struct reply_job *job;      /* (n_job) */
    int n_job, n_settled;
    struct refusal failed; /* a job could not be computed, or not be stored */
    bool cancelled;       /* the client has disconnected, or the server ends */
    void *call;           /* the connection's request in front.c; NULL: it has ended */
    /* of a stream */
    struct ids order;     /* the job of each piece, as they came */
    int at;               /* pieces written */
    int *n_written;       /* (n_job) of each job's pieces */
    bool *opened;         /* (n_job) its first chunk is written */
    bool closed;          /* the end is written */
    struct {              /* of a stream of /v1/responses (responses.c) */
        int n, items;     /* events; items of the output that are complete */
        int open;         /* the item that is not: an enum item */
        size_t from, to;  /* of its text, in the reply's */
    } events;
};

/* Takes over *a. */
struct task *task_new(struct ask *a, const struct ask_of *of, const char *print);
void task_free(struct task *t);
/* Whether all jobs have ended and the log has stored them: the answer can be acknowledged. */
bool task_done(const struct task *t);
/* Whether the status of the answer is known: a job has begun, or all are done. */
bool task_begun(const struct task *t);
/* Appends the answer of a task that is done. */
void task_answer(const struct task *t, struct buf *out);
/* Appends the part of the stream that can be sent now, about `most` bytes. The stream of a task
 * that failed ends with an error, and without the "[DONE]" of a complete one. */
void task_stream(struct task *t, size_t most, struct buf *out);

/* Appends a JSON string: the token as the vocabulary writes it, which is the spelling of its
 * bytes that the tokenizer knows by this id. */
void token_spelling(const struct tokenizer *t, int32_t id, struct buf *out);

/* The numbers of "usage" and "metrics". */
struct task_counts {
    int64_t prompt, cached, generated;
    double ms_first, ms_queue, ms_decode; /* of the slowest job; -1: there was no token */
};
void task_count(const struct task *t, struct task_counts *c);
