/* grammar.h - which replies a request allows: a grammar over bytes, compiled from a JSON schema,
 * and for each state of a reply the tokens that may follow (constrained decoding).
 *
 * A grammar generates a part of the texts that its schema accepts, never another text: properties
 * in the schema's order, at most one line break between values, numbers of at most 18 digits, and
 * of an escaped or a raw spelling of a key only one. Of a pattern it has the texts that the whole
 * of it matches. Bytes that the vocabulary cannot spell one by one are left out, so no state is
 * a dead end. What a schema says and a grammar cannot keep is refused by name.
 *
 * A guide follows replies: its states are sets of stacks of positions in the grammar, found as they
 * are needed and kept, so that the state after a token, and the tokens allowed in a state, are
 * looked up when they are needed again. A grammar does not change; a guide is one thread's. */
#pragma once

#include <jansson.h>

#include "models/tokenizer/tokenizer.h"

/* What precedes the text that a grammar describes. */
struct reply_form {
    enum {
        FORM_TEXT,    /* nothing */
        FORM_THOUGHT, /* a thought that the prompt has opened, up to "</think>" and white space */
        FORM_CALLS,   /* nothing; calls begin and end with tokens of their own */
        FORM_HARMONY, /* messages of the channel "analysis", then one of "final" */
    } kind;
    int32_t channel, message, end, start; /* harmony's tokens */
    int32_t call, call_end;               /* of FORM_CALLS */
};

struct grammar;
/* Compiles a response format: {"type": "json_object"}, {"type": "json_schema", "schema": {...}}.
 * {"type": "tools", "tools": [{"name": NAME, "parameters": SCHEMA}, ...], "open": TEXT, "middle":
 * TEXT, "close": TEXT, "between": TEXT, "most": N}, which is 1 to N calls, each open NAME middle
 * ARGUMENTS close. NULL and *e (ERR_USAGE): it is no such object, or the schema has what is not
 * supported, by name.
 * tok: the vocabulary whose bytes are used; NULL: all bytes, to see whether a schema is
 * supported. */
struct grammar *grammar_open(const json_t *format, const struct reply_form *form,
                             const struct tokenizer *tok, struct err *e);
void grammar_close(struct grammar *grammar);

/* The vocabulary in the order of its bytes. Shared by guides; does not change. */
struct token_order;
struct token_order *token_order_open(const struct tokenizer *tok);
void token_order_close(struct token_order *order);

enum { GUIDE_DEAD = 0 }; /* the state after a token that was not allowed */

struct guide;
/* vocab: rows of the model's logits. stop: (n_stop) tokens that end a reply. The guide takes over
 * the grammar; *order stays the caller's. */
struct guide *guide_open(struct grammar *grammar, const struct token_order *order, int vocab,
                         const int32_t *stop, int n_stop);
void guide_close(struct guide *guide);
/* The state after n tokens of a reply. States are valid until the next guide_after(). */
int guide_after(struct guide *guide, const int32_t *ids, int n);
/* The state after one more token. */
int guide_next(struct guide *guide, int state, int32_t id);
/* A bit for each token that is not allowed in the state: (vocab + 31) / 32 words, valid until the
 * next guide_after(). All tokens are allowed in GUIDE_DEAD. */
const uint32_t *guide_banned(struct guide *guide, int state);
/* Whether the reply is complete in the state. */
bool guide_accepts(const struct guide *guide, int state);
