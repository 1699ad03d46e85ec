/* play_server.c - answers like a server, from the recorded exchanges of tests/exchanges: for scripts.
 *
 *   play_server KIND SECONDS [KEY]
 *
 * KIND is "vllm" or "llama". Prints "http://127.0.0.1:PORT" on a line of its own, serves for so many
 * seconds, and prints a line for each request. With KEY, requests without it are answered with 401. */
#include "tests/play.h"

struct server {
    struct play play;
    const char *kind, *key;
};

static const char *exchange_of(const struct server *s, const char *path)
{
    static const struct { const char *path, *vllm, *llama; } at[] = {
        {"/version", "version", NULL}, {"/v1/models", "models", "models"},
        {"/metrics", "metrics", "metrics"}, {"/tokenize", "tokenize", NULL}, {"/props", NULL, "props"},
        {"/slots", NULL, "slots"}, {"/v1/chat/completions", "chat", "chat-draft"},
    };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (strcmp(at[i].path, path) == 0)
            return strcmp(s->kind, "vllm") == 0 ? at[i].vllm : at[i].llama;
    return NULL;
}

static void choose(void *arg, const struct play_request *rq, struct play_answer *a)
{
    const struct server *s = arg;
    const char *name = exchange_of(s, rq->path), *key = play_header(rq, "authorization");
    bool known = !s->key || (key && strncmp(key, "Bearer ", 7) == 0 && strcmp(key + 7, s->key) == 0);
    printf("%s %s\n", rq->method, rq->path);
    fflush(stdout);
    if (known && name && play_recorded(s->kind, rq, name, a))
        return;
    *a = (struct play_answer){.status = known ? 404 : 401, .type = "application/json"};
    buf_str(&a->body, known ? "{\"detail\":\"Not Found\"}" : "{\"error\":\"Unauthorized\"}");
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: play_server KIND SECONDS [KEY]\n");
        return 2;
    }
    struct server s = {.kind = argv[1], .key = argc > 3 ? argv[3] : NULL};
    play_open(&s.play, choose, &s);
    printf("%s\n", s.play.url);
    fflush(stdout);
    sleep((unsigned)atoi(argv[2]));
    play_close(&s.play);
    return 0;
}
