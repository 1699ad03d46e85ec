/* play_server.c - answers like a server, from the recorded exchanges of tests/exchanges: for
 * scripts.
 *
 *   play_server KIND SECONDS [KEY [WORD...]]
 *
 * KIND is "vllm" or "llama". Prints "http://127.0.0.1:PORT" on a line of its own, serves for so
 * many seconds, and prints a line for each request. With KEY other than "-", requests without it
 * are answered with 401. WORDs: "reset": the prefix cache can be reset; "drafts": its metrics count
 * 5 draft tokens, 3 of them accepted, for each chat; "chat=NAME": the exchange that answers chats;
 * "FROM=>TO": the first FROM of each answer to a chat, /tokenize or /v1/models becomes TO, an error
 * of the server on purpose; "kv": recorded KV events are published before the first chat is
 * answered, one of them only for who asks again; their address, as --kv-events takes it, is printed
 * on a second line. */
#include "tests/kv_play.h"
#include "tests/play.h"

struct server {
    struct play play;
    const char *kind, *key, *chat;
    char **word;
    int n_word;
    int n_chat; /* answered */
#if HAVE_ZMQ
    struct kv_play kv;
#endif
};

/* Batches 0 to 3 of the recording, of which 2 gets lost; then time for the client to take them
 * in. */
static void publish(struct server *s)
{
#if HAVE_ZMQ
    struct kv_frame f[4];
    int n = kv_frames_read("tests/exchanges/vllm-kv-events", f, 4), asked = 0;
    kv_play_wait(&s->kv, 5000);
    for (int i = 0; i < n; i++)
        kv_play_send(&s->kv, f[i].seq, &f[i].batch, i == 2);
    for (int i = 0; i < 500 && asked < 2; i++) { /* when it began, and for the lost one */
        usleep(10000);
        pthread_mutex_lock(&s->kv.mu);
        asked = s->kv.n_asked;
        pthread_mutex_unlock(&s->kv.mu);
    }
    usleep(200000);
    for (int i = 0; i < n; i++)
        buf_free(&f[i].batch);
#else
    (void)s;
#endif
}

static bool has_word(const struct server *s, const char *word)
{
    for (int i = 0; i < s->n_word; i++)
        if (strcmp(s->word[i], word) == 0)
            return true;
    return false;
}

/* The first `from` of *text becomes `to`. */
static void edit(struct buf *text, const char *word)
{
    const char *arrow = strstr(word, "=>");
    char *from = arrow ? xasprintf("%.*s", (int)(arrow - word), word) : NULL;
    char *at = from ? strstr(text->p, from) : NULL;
    if (at) {
        char *rest = xstrdup(at + strlen(from));
        text->n = (size_t)(at - text->p);
        buf_str(text, arrow + 2);
        buf_str(text, rest);
        free(rest);
    }
    free(from);
}

static void change(struct server *s, const char *path, struct buf *body)
{
    bool chat = strcmp(path, "/v1/chat/completions") == 0;
    bool models = strcmp(path, "/v1/models") == 0;
    buf_str(body, "");
    s->n_chat += chat;
    for (int i = 0; (chat || models || strcmp(path, "/tokenize") == 0) && i < s->n_word; i++)
        edit(body, s->word[i]);
    if (strcmp(path, "/metrics") == 0 && has_word(s, "drafts"))
        buf_printf(body, "vllm:spec_decode_num_drafts_total{engine=\"0\"} %d\n"
                         "vllm:spec_decode_num_draft_tokens_total{engine=\"0\"} %d\n"
                         "vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} %d\n",
                   1000 + s->n_chat, 5000 + 5 * s->n_chat, 3000 + 3 * s->n_chat);
}

static const char *exchange_of(const struct server *s, const char *path)
{
    static const struct { const char *path, *vllm, *llama; } at[] = {
        {"/version", "version", NULL}, {"/v1/models", "models", "models"},
        {"/metrics", "metrics", "metrics"}, {"/tokenize", "tokenize", NULL},
        {"/props", NULL, "props"},
        {"/slots", NULL, "slots"}, {"/v1/chat/completions", "chat", "chat-draft"},
    };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (strcmp(at[i].path, path) == 0)
            return strcmp(s->kind, "vllm") == 0 ? at[i].vllm : at[i].llama;
    return NULL;
}

static void choose(void *arg, const struct play_request *rq, struct play_answer *a)
{
    struct server *s = arg;
    const char *name = exchange_of(s, rq->path), *key = play_header(rq, "authorization");
    bool known = !s->key ||
                 (key && strncmp(key, "Bearer ", 7) == 0 && strcmp(key + 7, s->key) == 0);
    printf("%s %s\n", rq->method, rq->path);
    fflush(stdout);
    if (name && s->chat && strcmp(rq->path, "/v1/chat/completions") == 0)
        name = s->chat;
    if (known && has_word(s, "kv") && s->n_chat == 0 && strcmp(rq->path, "/v1/chat/completions") ==
        0) publish(s);
    if (known && name && play_recorded(s->kind, rq, name, a)) {
        change(s, rq->path, &a->body);
        return;
    }
    if (known && has_word(s, "reset") && strcmp(rq->path, "/reset_prefix_cache") == 0) {
        *a = (struct play_answer){.status = 200, .type = "application/json"};
        buf_str(&a->body, "{\"success\":true}");
        return;
    }
    *a = (struct play_answer){.status = known ? 404 : 401, .type = "application/json"};
    buf_str(&a->body, known ? "{\"detail\":\"Not Found\"}" : "{\"error\":\"Unauthorized\"}");
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: play_server KIND SECONDS [KEY [WORD...]]\n");
        return 2;
    }
    struct server s = {.kind = argv[1], .key = argc > 3 && strcmp(argv[3], "-") != 0 ? argv[3]
                       : NULL,
                       .word = argv + 4, .n_word = argc > 4 ? argc - 4 : 0};
    for (int i = 0; i < s.n_word; i++)
        if (strncmp(s.word[i], "chat=", 5) == 0)
            s.chat = s.word[i] + 5;
    play_open(&s.play, choose, &s);
    printf("%s\n", s.play.url);
#if HAVE_ZMQ
    if (has_word(&s, "kv")) {
        kv_play_open(&s.kv);
        printf("%s\n", s.kv.both);
    }
#endif
    fflush(stdout);
    sleep((unsigned)atoi(argv[2]));
    play_close(&s.play);
#if HAVE_ZMQ
    if (has_word(&s, "kv"))
        kv_play_close(&s.kv);
#endif
    return 0;
}
