/* responses.h - OpenAI's /v1/responses over chats: its requests become requests for a chat, and the
 * reply of a chat becomes its object or its events. Nothing is kept from one request to the
 * next. */
#pragma once

#include "repl/http/task.h"

/* The request for a chat that asks for the same, as a new object; NULL and *r: a field is not
 * supported. Any thread. */
json_t *responses_chat(const json_t *o, struct refusal *r);

/* As task_answer() and task_stream(), of a task whose request was for /v1/responses. Main
 * thread. */
void responses_answer(const struct task *t, struct buf *out);
void responses_stream(struct task *t, size_t most, struct buf *out);
