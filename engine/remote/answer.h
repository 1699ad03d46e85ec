/* answer.h - reads one JSON text of any known server about a reply.
 *
 * Read are: chunks and whole answers of the OpenAI API for chats and completions with the additions
 * of vLLM, SGLang and llama-server; llama-server's own /completion; SGLang's own /generate;
 * ollama's /api/chat; and the error objects of all of them. Every field is read if it is there and
 * of the right type; any other fact stays "not reported": -1, NAN, or no items. Only the rival of a
 * token is derived here. Pure functions; a struct belongs to one thread.
 */
#pragma once

#include <jansson.h>

#include "engine/served.h"
#include "kernels/base.h"

enum {
    ANSWER_TOKENS = 65536, /* most tokens or steps of one text */
    ANSWER_TOPS = 256,     /* best tokens of one token that are kept: the token itself and the
                              best */
};

/* One token of the reply with its log probability, and the best other token of the same row. */
struct answer_token {
    int32_t id, rival;       /* -1: not reported */
    float logp, rival_logp;  /* NAN: not reported */
};

enum finish {
    FINISH_NONE,   /* the reply goes on */
    FINISH_STOP,   /* the model ended it, or a stop text was met */
    FINISH_LENGTH, /* max_tokens, or the context is full */
    FINISH_ABORT,  /* the server ended it */
    FINISH_OTHER,  /* "tool_calls", "content_filter", ... */
};

/* Numbers that a server may report about a request; -1: not reported. */
struct answer_counts {
    int64_t prompt, generated; /* tokens */
    int64_t cached;            /* prompt tokens whose KV the server already held */
    int64_t drafted, accepted; /* draft tokens, in all */
    int64_t verifies;          /* steps of the target's model that verified a draft */
    double ms_prompt, ms_decode, ms_queue, ms_first; /* ms_first: until the first token */
};
#define NO_COUNTS {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1}

/* A report with these numbers and nothing else. */
struct served *answer_served(const struct answer_counts *counts);

struct answer {
    struct buf text, thought; /* pieces of the final and of the reasoning channel */
    bool cumulative;          /* text is the whole reply so far (SGLang /generate) */
    int index;                /* of the choice, from 0 */
    struct answer_token *token; /* (n_token) */
    int n_token;
    struct tops tops;     /* of those that came with log probabilities; k counts `token` */
    struct ids prompt;    /* the prompt's ids as the server read it; n 0: not reported */
    struct answer_token *prompt_token; /* (n_prompt_token) its tokens with their log probabilities,
                                          NAN for the first; without rivals */
    int n_prompt_token;
    struct ids reply;     /* ids of the whole reply so far, which SGLang repeats; with `partial`
                             those of this text only */
    bool partial;
    int64_t n_output;     /* tokens of the reply so far, of which `token` has the last; -1: `token`
                             has new ones only */
    struct ids accepted, drafted; /* per verification step of the whole request (vLLM) */
    enum finish finish;
    char finish_word[32]; /* the server's finish reason; "": not reported */
    struct answer_counts count;
    int64_t done, total;  /* progress of the prompt, -1: not reported */
    char model[128];      /* "" : not reported */
    char error[400];      /* "": none. One line, not sanitised */
    int error_code;       /* 0: not reported */
    bool replaced;        /* invalid UTF-8 became U+FFFD */
    bool end;             /* the text was "[DONE]", or says that it is the last */
};

/* Reads one text into *answer, whose former content is not freed. False and *e (ERR_MODEL): it is
 * not a JSON object. */
bool answer_read(struct answer *answer, const char *json, size_t n, struct err *e);
/* The same of an object that was parsed already. */
void answer_take(struct answer *answer, const json_t *o);
void answer_free(struct answer *answer);
