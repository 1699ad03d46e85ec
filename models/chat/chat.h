/* chat.h - chat formats: renders a conversation to token ids, and separates a reply's text into
 * channels.
 *
 * The whole conversation is rendered for each turn; the engine finds the prefix that its cache
 * already holds. User text never becomes a special token, except in raw mode. A struct chat does
 * not change after its set-up and may then be used from any thread.
 */
#pragma once

#include <jansson.h>

#include "models/models.h"
#include "models/tokenizer/tokenizer.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL };
enum channel { CHAN_FINAL, CHAN_ANALYSIS, CHAN_COMMENTARY };

struct message {
    enum role role;
    char *text;     /* a user's or system text, or the reply's final text */
    struct ids ids; /* a reply's generated ids, stop token included. Formats that send generated ids
                       back use them verbatim; empty: text is encoded. A reply that does not end in
                       the format's end token was interrupted; the end token is added. */
    const json_t *calls; /* of a reply: [{"name": NAME, "arguments": OBJECT}, ...], or NULL.
                            Arguments that are no object are a text */
    const char *name;    /* of a message of role tool: the function whose result `text` is */
};

struct chat;

/* Chooses the format by the config's family and the template in the model's folder or GGUF. `raw`:
 * no format; the texts are encoded one after another, special tokens in them matched, after the
 * tokenizer's bos. *warning (the pointer may be NULL) is set to one line for the user, e.g. about
 * an unknown template, or to NULL; it is valid as long as the chat. NULL and *e on failure, e.g. if
 * the tokenizer lacks a token of the format (ERR_MODEL). m and t must outlive the chat;
 * chat_close() frees it. */
struct chat *chat_open(const struct model *m, const struct tokenizer *t, bool raw,
                       const char **warning, struct err *e);
void chat_close(struct chat *c);
const char *chat_name(const struct chat *c); /* "gemma", "harmony", "chatml", "raw", ... */

/* The date in the system message of formats that have one; other formats ignore it. Call it before
 * the first rendering. date: "YYYY-MM-DD", by default the one that the model's template names, else
 * the day of chat_open(). False and *e (ERR_USAGE) for any other text. */
bool chat_set_date(struct chat *c, const char *date, struct err *e);
const char *chat_date(const struct chat *c);

/* How a reply should think, where the model's template has a variable for that; zeros: as the
 * template does without the variable. */
struct chat_style {
    const char *effort; /* reasoning_effort; NULL: the template's own. Live while it is used */
    enum { THINK_AS_EVER, THINK_NOT, THINK } think; /* enable_thinking */
    const json_t *tools; /* functions that the reply may call, as OpenAI's "tools"; NULL: none. Each
                            has a name. Live while it is used */
};
/* Sets the style to an effort as APIs name it: "none" is no thinking, NULL the template's own. The
 * text is not copied. */
void chat_style_effort(struct chat_style *s, const char *effort);
/* Whether prompts of this style can be rendered, also because they are so anyway; else *e
 * (ERR_USAGE) says what the format lacks. */
bool chat_has_style(const struct chat *c, const struct chat_style *s, struct err *e);

/* Whether a system message may follow another message: the format has turns of later ones. */
bool chat_later_system(const struct chat *c);

/* Whether a prompt of at most `context` tokens can hold the texts of these messages (those without
 * ids), judged by their bytes alone: a text that is far too long is refused before it is encoded.
 * False and *e (ERR_USAGE), which calls them `what`. */
bool chat_fits(const struct chat *c, const char *what, const struct message *m, int n, int context,
               struct err *e);

/* Appends the prompt for the next reply: bos, the n messages, and the beginning of the reply's
 * turn. A system message that is not the first is refused in formats without turns of later ones.
 * On failure *out is unchanged: ERR_USAGE for messages in the wrong order, tok_encode()'s errors,
 * ERR_MODEL for an id outside the vocabulary. */
bool chat_render(const struct chat *c, const struct message *m, int n, struct ids *out,
                 struct err *e);
/* The same in a style that the chat has. */
bool chat_render_in(const struct chat *c, const struct chat_style *s, const struct message *m,
                    int n, struct ids *out, struct err *e);
/* The ids that end a reply: the format's, then the config's and the GGUF's. Returns how many. */
int chat_stops(const struct chat *c, int32_t out[MAX_STOP]);

/* Tokens around the messages of a format that has messages within a reply (harmony); false: this
 * one has not. */
struct chat_marks {
    int32_t channel, message, end, start;
};
bool chat_marks(const struct chat *c, struct chat_marks *out);

/* Reads a reply token by token and separates the visible text by channel. One thread at a time. */
struct chat_reader {
    const struct chat *chat;
    struct tok_stream utf8;
    enum channel channel;
    int state;
    struct buf held; /* text held back: a message header, or a possible beginning of a tag */
    /* Which token produced which byte. The bytes of the tokens, hidden ones included, are numbered
     * in the order in which they came; text that is appended has successive numbers. */
    size_t came, shown; /* the bytes so far; the number behind the text appended last */
    struct ids *ends;   /* the caller's, or NULL: gets the number behind each token pushed */
    char to[80];        /* the function that the message calls, of formats that say so in the
                           header; "": none */
};
void chat_reader_init(struct chat_reader *r, const struct chat *c);
/* After init: the reply follows this prompt, in whose last lines a thought may have begun. */
void chat_reader_follow(struct chat_reader *r, const struct ids *prompt);
/* How a call of a function is written in a reply: open NAME middle ARGUMENTS close; between: what
 * separates calls, NULL: a reply has one at most. */
struct chat_call_form {
    const char *open, *middle, *close, *between;
};
bool chat_call_form(const struct chat *c, struct chat_call_form *out); /* false: there are none */
/* The tokens that `open` and `close` begin with, where they are tokens of their own (gemma-4);
 * false: they are text. */
bool chat_call_tokens(const struct chat *c, int32_t *open, int32_t *close);

/* Appends to out the visible text that one more token completes, and sets *channel to that text's
 * channel. Stop tokens and format tokens append nothing. */
void chat_reader_push(struct chat_reader *r, int id, struct buf *out, enum channel *channel);
/* Appends the text still held back, whose channel is r->channel, and frees the reader's memory. */
void chat_reader_end(struct chat_reader *r, struct buf *out);
/* Notes which tokens produced the n bytes that the call before appended, from byte `at` of a text
 * on: bytes [ends->v[i - 1], ends->v[i]) of the text are of token *first + i, counted from 0 (i =
 * 0: from 0 on). *ends is empty before a text begins, and r->ends is not NULL. */
void chat_reader_spans(const struct chat_reader *r, size_t at, size_t n, int *first,
                       struct ids *ends);

/* Separates the calls of functions from the text of a reply that may call some. */
struct tool_call {
    char *name, *arguments; /* JSON */
};
struct call_reader {
    const struct chat *chat;
    struct buf held;
    bool inside, plain; /* inside a call; the reply is text */
    char to[80];
    struct tool_call *call; /* (n) complete */
    int n;
};
void call_reader_init(struct call_reader *x, const struct chat *c);
/* n bytes of text that r has just given for the channel: appends to out what is no call. */
void call_reader_push(struct call_reader *x, const struct chat_reader *r, enum channel channel,
                      const char *text, size_t n, struct buf *out);
/* The reply has ended: what is held is a call, or text. */
void call_reader_end(struct call_reader *x, struct buf *out);
void call_reader_free(struct call_reader *x);
