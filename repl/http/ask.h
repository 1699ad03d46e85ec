/* ask.h - requests of clients for tokens, read from JSON and checked, in OpenAI's and vLLM's form.
 *
 * What happens with the fields that are not read: ask_fields.c. Plain data, any thread. */
#pragma once

#include <jansson.h>

#include "engine/job.h"
#include "models/chat/chat.h"

/* Why a request is not answered: an HTTP status and OpenAI's error object. */
struct refusal {
    int status; /* 0: nothing is refused */
    char param[64]; /* the field; "": none */
    char message[512];
};

/* Fills *r; returns false. param may be NULL. Characters of a request that are not for a terminal
 * become '?' in param and message. */
bool refuse(struct refusal *r, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Appends {"error": {...}} and a line break. */
void refusal_json(const struct refusal *r, struct buf *out);

enum { MOST_STOPS = 16, MOST_CHOICES = 128, STOP_BYTES = 1024 };

struct ask {
    bool chat;           /* else a completion */
    struct ids *prompt;  /* (n_prompt) */
    char **text;         /* (n_prompt) what a log shows as the user's message; NULL: a prompt of
                            ids */
    int n_prompt, n;     /* replies to each prompt */
    char *system;        /* of a chat, or NULL */
    struct settings set; /* sampling, penalties and biases; else the defaults */
    char *format;        /* what a reply must be, as of RQ_FORMAT; NULL: any text */
    bool calls;          /* replies may call functions */
    bool responses;      /* asked for in /v1/responses' form */
    enum { SEED_NONE, SEED_ANY, SEED_GIVEN } seed_is; /* ANY: another one for each request */
    uint64_t seed;
    int most; /* tokens of a reply; -1: as many as the context holds */
    bool run_on, stream, usage, usage_each, echo, ids, names_ids, keep_stop;
    int top;        /* -1: no log probabilities; else best tokens beside each */
    int prompt_top; /* the same of the prompt */
    struct buf stop[MOST_STOPS];
    int n_stop;
    int32_t stop_id[MOST_STOPS];
    int n_stop_id;
};

/* The limits and defaults for requests. */
struct ask_of {
    const char *model; /* as clients name it */
    const struct chat *chat;
    const struct tokenizer *tok;
    int context, vocab;
    struct settings set; /* whose sampling, penalties and biases requests have that name none */
};

/* Reads the body of a request of either kind. False and *r; *a is empty then. */
bool ask_read(struct ask *a, const struct ask_of *of, bool chat, const char *body, size_t n,
              struct refusal *r);
void ask_free(struct ask *a);

/* The object that a body holds; the caller releases it. NULL and *r. */
json_t *ask_object(const char *body, size_t n, struct refusal *r);
/* Whether this is the name of the server's model; else *r, with status 404. */
bool ask_is_model(const char *name, const struct ask_of *of, struct refusal *r);
/* Whether the request names this server's model, or none. */
bool ask_model(const json_t *o, const struct ask_of *of, struct refusal *r);
/* Appends the ids of a text: with the tokenizer's bos unless `bare`; special tokens in it are
 * matched. */
bool ask_encode(const struct ask_of *of, const char *text, size_t n, bool bare, struct ids *out,
                struct refusal *r);
/* Appends the ids of the request's "messages", in the style that it asks for; fit: they are refused
 * if the context cannot hold their bytes. *user and *system (which may be NULL) receive copies of
 * the last user message and of the system message, or NULL. */
bool ask_messages(const json_t *o, const struct ask_of *of, bool fit, struct ids *out, char **user,
                  char **system, struct refusal *r);
