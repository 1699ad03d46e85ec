/* Bodies of requests to `aerie serve`: chats, completions and /v1/responses. A body is refused with
 * an OpenAI error object of one line, or becomes a request whose numbers are within their ranges.
 * The last byte chooses the kind and the chat format. */
#include "kernels/json_read.h"
#include "models/grammar/grammar.h"
#include "repl/http/responses.h"
#include "tests/fuzz/chats.h"

const int fuzz_inputs = 3000;

enum { CONTEXT = 512, KINDS = 3 };

static void check_refusal(const struct refusal *r)
{
    struct buf text = {0};
    CHECK(r->status >= 400 && r->status < 600 && r->message[0]);
    CHECK(memchr(r->message, '\0', sizeof r->message) && memchr(r->param, '\0', sizeof r->param));
    fuzz_clean(r->message, strlen(r->message), false);
    fuzz_clean(r->param, strlen(r->param), false);
    refusal_json(r, &text);
    json_t *o = json_parse(text.p, text.n, 0, NULL);
    CHECK(json_is_object(json_object_get(o, "error")));
    json_decref(o);
    buf_free(&text);
}

static void check_ids(const struct ids *ids)
{
    for (int i = 0; i < ids->n; i++)
        CHECK(ids->v[i] >= 0 && ids->v[i] < FUZZ_VOCAB);
}

static void check_format(const char *format)
{
    struct err e = {0};
    json_t *o = json_parse(format, strlen(format), 0, NULL);
    CHECK(o);
    struct grammar *g = grammar_open(o, NULL, NULL, &e);
    CHECK(g);
    grammar_close(g);
    json_decref(o);
}

static void check_ask(const struct ask *a, bool chat)
{
    CHECK(a->chat == chat && a->n_prompt > 0 && a->n >= 1 && a->n <= MOST_CHOICES);
    for (int i = 0; i < a->n_prompt; i++)
        check_ids(&a->prompt[i]);
    CHECK(a->set.temperature >= 0 && a->set.top_p >= 0 && a->set.top_p <= 1);
    CHECK(a->set.min_p >= 0 && a->set.min_p <= 1 && a->set.top_k >= 0);
    CHECK(a->most >= -1 && a->top >= -1 && a->prompt_top >= -1);
    CHECK(a->n_stop >= 0 && a->n_stop <= MOST_STOPS && a->n_stop_id <= MOST_STOPS);
    for (int i = 0; i < a->n_stop; i++)
        CHECK(a->stop[i].n > 0 && a->stop[i].n <= STOP_BYTES);
    for (int i = 0; i < a->n_stop_id; i++)
        CHECK(a->stop_id[i] >= 0 && a->stop_id[i] < FUZZ_VOCAB);
    if (a->format)
        check_format(a->format);
}

static void read_one(const struct ask_of *of, bool chat, const char *text, size_t n)
{
    struct ask a;
    struct refusal r;
    bool ok = ask_read(&a, of, chat, text, n, &r);
    CHECK(ok == (r.status == 0));
    if (ok)
        check_ask(&a, chat);
    else
        check_refusal(&r);
    ask_free(&a); /* of a refused one, too */
}

static void read_response(const struct ask_of *of, const char *text, size_t n)
{
    struct refusal r = {0};
    json_t *o = ask_object(text, n, &r), *chat = o ? responses_chat(o, &r) : NULL;
    if (chat) {
        char *body = json_dumps(chat, JSON_COMPACT);
        CHECK(body && r.status == 0);
        read_one(of, true, body, strlen(body));
        free(body);
    } else {
        check_refusal(&r);
    }
    json_decref(chat);
    json_decref(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    unsigned how = fuzz_choice(data, &n);
    const char *text = fuzz_tail(data, n);
    const struct ask_of of = {.model = "m", .chat = fuzz_chat_of(how / KINDS % FUZZ_FAMILIES),
                              .tok = fuzz_bytes(), .context = CONTEXT, .vocab = FUZZ_VOCAB,
                              .set = {.temperature = 1, .top_p = 1,
                                      .repetition_penalty = 1}};
    if (how % KINDS == 2)
        read_response(&of, text, n);
    else
        read_one(&of, how % KINDS == 0, text, n);
    return 0;
}
