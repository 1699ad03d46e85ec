/* fields.h - the fields that requests for tokens may have, of OpenAI, vLLM, llama-server, ollama
 * and their clients: which of them are read, which cannot change an answer, and which ask for
 * what every answer is anyway. Plain data, any thread. */
#ifndef AERIE_SERVE_FIELDS_H
#define AERIE_SERVE_FIELDS_H

#include <jansson.h>

#include "repl/http/ask.h"

enum { FIELDS_CHAT = 1, FIELDS_COMPLETION = 2 };

/* Checks all fields of a request of one kind that ask.c does not read. A field that is null
 * counts as absent. False and *r: one would change the answer, or is not known. */
bool fields_check(const json_t *o, int kind, struct refusal *r);

#endif
