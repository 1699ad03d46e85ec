/* server.h - which server this is, what it can report, and how it is asked.
 *
 * Requests to the server determine its kind, never the address. One table (server.c) lists what
 * each kind can report and which of its flags make it report more; doctor prints the table, and
 * greyed panes give their reason from it. Threads: as http.h.
 */
#pragma once

#include "engine/remote/answer.h"
#include "engine/opts.h"
#include "engine/remote/http.h"
#include "engine/settings.h"

enum server_kind {
    SERVER_OPENAI, /* speaks the OpenAI API; nothing else is known of it */
    SERVER_VLLM,
    SERVER_SGLANG,
    SERVER_LLAMA,
    SERVER_OLLAMA,
    SERVER_AERIE,
    N_SERVERS
};
const char *server_kind_name(enum server_kind k); /* "vLLM", ... */

/* Facts that a server may report and that the program shows. */
enum report {
    REPORT_PROMPT_IDS,
    REPORT_REPLY_IDS,
    REPORT_LOGPROBS,
    REPORT_ACCEPT_REQUEST, /* drafted and accepted tokens of a request */
    REPORT_ACCEPT_STEP,    /* of each step */
    REPORT_CACHED,         /* prompt tokens found in the cache */
    REPORT_TIMES,          /* the server's own times of a request: queue, prompt, first token */
    REPORT_POOLS,          /* how full the KV cache is */
    REPORT_METRICS,
    REPORT_LAUNCH,         /* the arguments that it was started with */
    N_REPORTS
};
const char *report_name(enum report r); /* "ids of the prompt", ... */

struct server {
    enum server_kind kind;
    char version[64];
    char model[256]; /* the name by which the server serves it */
    struct buf models; /* the names of all that it serves, one a line */
    int context;     /* most tokens of a request, 0: not reported */
    struct buf facts; /* "name=value" lines as the server reported them: launch arguments and such,
                         the values as JSON. Never a key or a password */
    struct buf page;  /* of its metrics, when it was probed */
    struct buf slots; /* llama-server's /slots then */
    bool said[N_REPORTS];     /* it has reported this */
    bool answers[N_REPORTS];  /* the endpoint for it answered when the server was probed */
};

/* The connections to a server, with its key and headers. False and *e (ERR_USAGE): the address, the
 * key's file or a header cannot be used. The caller ends with http_close(). */
bool server_http(struct http **http, const struct server_opts *opts, struct err *e);
/* Finds out what the server is. model: the name to use, or NULL: the only one it serves, else the
 * first. False and *e: it cannot be reached, or serves no model (ERR_MODEL). */
bool server_probe(struct server *server, struct http *http, const char *model, struct err *e);
void server_free(struct server *server);

/* Appends the facts as a JSON object. */
void server_facts_json(const struct server *server, struct buf *out);

/* Why the server does not report this, with the flag or field that would change that, as one line
 * for people; NULL: it can. */
const char *server_lacks(const struct server *server, enum report r);

/* How this kind of server counts drafts, in the names of its own fields: accepted per drafted
 * token, and tokens of a verifying step; NULL: it does not. server_length(): the latter of a reply,
 * NAN where it is not known; NULL with the formula. Constant. */
const char *server_rate_formula(enum server_kind k);
const char *server_length_formula(enum server_kind k);
double (*server_length(enum server_kind k))(const struct served *served);

/* One message of a conversation. */
struct said {
    const char *role, *text; /* "system", "user", "assistant" */
};
/* The path of the request for a reply, and appends its JSON: streamed, with everything that this
 * kind of server can report. seed < 0: none. */
const char *server_ask(const struct server *server, const struct said *said, int n,
                       const struct settings *set, int64_t seed, struct buf *body);
/* As server_ask(), for a request for the ids of the conversation's prompt; NULL: this kind has no
 * such request. */
const char *server_ask_prompt(const struct server *server, const struct said *said, int n,
                              const struct settings *set, struct buf *body);
/* Whether this kind of server has a setting; others are refused by name. */
bool server_knows(const struct server *server, const char *setting);
