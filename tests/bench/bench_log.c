/* bench_log.c - what the session log costs, level by level, with the bundled model on the CPU.
 *
 * Bytes: the log's file after greedy replies to held-out prompts, four to a session, over what an
 * empty log takes; texts of tokens included. Speed: the same replies at every level by turns, the
 * best of ROUNDS (4) each, against level off, whose events are made, but not stored. Processor
 * time: the steps of one reply posted again and again; "engine": the thread that posts (what a
 * reply waits for), "both": the writer, too, which has a core to itself where the model runs on a
 * GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/engine.h"
#include "history/history.h"

enum { MOST = 400, REPLIES = 40, POSTED = 30000 };
static const char *const level_names[] = {"off", "text", "steps", "tree"};
enum { N_LEVELS = 4 };

static char *prompt[MOST];
static int n_prompt;
static char folder[] = "/tmp/aerie-bench-XXXXXX";

static void die_of(const struct err *e)
{
    fprintf(stderr, "bench_log: %s\n", e->msg);
    exit(1);
}

static const struct history_about about = {.version = "bench", .tokenizer_sha = "bench"};

static const char *text_of(void *arg, int32_t id, size_t *n)
{
    return backend_token(arg, id, n);
}

/* ---- one engine with its log ----------------------------------------------------------------- */

struct side {
    struct history *log;
    struct backend *g;
    char path[80];
};

static void open_log(struct side *s, int level)
{
    struct err e = {0};
    snprintf(s->path, sizeof s->path, "%s/%s.db", folder, level_names[level]);
    s->log = history_open(s->path, (enum log_level)level, &about, &e);
    if (!s->log)
        die_of(&e);
}

static void open_side(struct side *s, int level, const int tree[3])
{
    struct err e = {0};
    struct engine_opts o = {.model = "models/nestling/target", .draft = "models/nestling/draft",
                            .device = "cpu", .precision = "f32"};
    settings_init(&o.settings);
    o.settings.max_tokens = 96;
    o.settings.steps = tree[0];
    o.settings.topk = tree[1];
    o.settings.nodes = tree[2];
    open_log(s, level);
    o.log = history_queue(s->log);
    s->g = engine_open(&o, &e);
    if (!s->g)
        die_of(&e);
    struct history_texts texts = {backend_info(s->g)->vocab, text_of, s->g};
    history_describe(s->log, &about, &texts);
}

static void close_side(struct side *s)
{
    backend_close(s->g);
    history_close(s->log);
}

/* Adds the reply's tokens, and copies of its steps to `steps` unless that is NULL. Returns the
 * microseconds of decoding. */
static uint64_t ask(struct side *s, const char *text, bool anew, int *tokens, struct event *steps,
                    int *n_steps)
{
    struct err e = {0};
    struct event ev;
    uint64_t us = 0;
    struct request new = {.kind = RQ_NEW}, say = {.kind = RQ_SAY, .text = xstrdup(text)};
    session_new_id(new.session);
    if ((anew && !backend_submit(s->g, &new, &e)) || !backend_submit(s->g, &say, &e))
        die_of(&e);
    for (bool ended = false; !ended;) {
        if (!backend_wait(s->g, &ev, 1000))
            continue;
        ended = ev.kind == EV_TURN_END;
        if (ended) {
            us = ev.us_decode;
            *tokens += ev.tokens.n;
        }
        if (ev.kind == EV_STEP && steps && *n_steps < MOST)
            event_copy(&steps[(*n_steps)++], &ev);
        event_free(&ev);
    }
    history_flush(s->log, 10000);
    return us;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void remove_log(const struct side *s)
{
    char live[100];
    snprintf(live, sizeof live, "%s.live", s->path);
    unlink(live);
    unlink(s->path);
}

static long long file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (long long)st.st_size : 0;
}

static void bytes(const int tree[3])
{
    long long empty = 0;
    printf("tree %d-%d-%d:", tree[0], tree[1], tree[2]);
    for (int level = 1; level < N_LEVELS; level++) {
        struct side s;
        int tokens = 0;
        open_log(&s, level);
        history_close(s.log);
        empty = file_bytes(s.path);
        remove_log(&s);
        open_side(&s, level, tree);
        for (int i = 0; i < REPLIES; i++)
            ask(&s, prompt[i * n_prompt / REPLIES], i % 4 == 0, &tokens, NULL, NULL);
        close_side(&s);
        printf(" %s %.0f%s", level_names[level], (double)(file_bytes(s.path) - empty) / tokens,
               level + 1 < N_LEVELS ? "," : "");
        if (level + 1 == N_LEVELS)
            printf(" bytes a token (%d tokens)\n", tokens);
        remove_log(&s);
    }
}

/* ---- speed ----------------------------------------------------------------------------------- */

/* The best time of each reply at each level, over rounds in which the levels take turns. */
static void speed(const int tree[3], int rounds)
{
    static double best[REPLIES][N_LEVELS];
    double sum[N_LEVELS] = {0};
    struct side s;
    open_side(&s, 0, tree);
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < REPLIES; i++)
            for (int k = 0; k < N_LEVELS; k++) {
                int level = (k + r + i) % N_LEVELS, tokens = 0;
                history_level(s.log, (enum log_level)level);
                const char *text = prompt[i * n_prompt / REPLIES];
                double us = (double)ask(&s, text, true, &tokens, NULL, NULL);
                if (r == 0 || us < best[i][level])
                    best[i][level] = us;
            }
    for (int i = 0; i < REPLIES; i++)
        for (int level = 0; level < N_LEVELS; level++)
            sum[level] += best[i][level];
    printf("tree %d-%d-%d: decoding %d replies takes %.1f ms at off;", tree[0], tree[1], tree[2],
           REPLIES, sum[0] / 1e3);
    for (int level = 1; level < N_LEVELS; level++)
        printf(" %s %+.1f %%%s", level_names[level], 100 * sum[level] / sum[0] - 100,
               level + 1 < N_LEVELS ? "," : "");
    printf(" (best of %d each)\n", rounds);
    close_side(&s);
    remove_log(&s);
}

/* ---- processor time -------------------------------------------------------------------------- */

static double cpu_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void post(struct side *s, struct event *ev)
{
    ev->ns = clock_ns();
    if (!evq_put(history_queue(s->log), ev))
        exit(1);
}

static void posting(const int tree[3])
{
    struct event step[MOST];
    struct side s;
    int n = 0, tokens = 0;
    open_side(&s, 0, tree);
    ask(&s, prompt[0], true, &tokens, step, &n);
    close_side(&s);
    remove_log(&s);
    printf("tree %d-%d-%d, us a step:", tree[0], tree[1], tree[2]);
    for (int level = 0; level < N_LEVELS; level++) {
        struct event ev = {.kind = EV_SESSION};
        open_log(&s, level);
        session_new_id(ev.session);
        for (int i = 0; i < n; i++)
            memcpy(step[i].session, ev.session, sizeof ev.session);
        post(&s, &ev);
        ev = (struct event){.kind = EV_TURN_BEGIN, .turn = 1};
        memcpy(ev.session, step[0].session, sizeof ev.session);
        post(&s, &ev);
        double mine = cpu_us(CLOCK_THREAD_CPUTIME_ID), all = cpu_us(CLOCK_PROCESS_CPUTIME_ID);
        for (int i = 0; i < POSTED; i++) {
            event_copy(&ev, &step[i % n]);
            ev.step = i + 1;
            post(&s, &ev);
        }
        mine = cpu_us(CLOCK_THREAD_CPUTIME_ID) - mine;
        history_flush(s.log, 60000);
        all = cpu_us(CLOCK_PROCESS_CPUTIME_ID) - all;
        printf(" %s engine %.2f, both %.1f%s", level_names[level], mine / POSTED, all / POSTED,
               level + 1 < N_LEVELS ? ";" : "\n");
        history_close(s.log);
        remove_log(&s);
    }
    for (int i = 0; i < n; i++)
        event_free(&step[i]);
}

int main(void)
{
    static const int trees[][3] = {{5, 1, 6}, {5, 4, 16}, {6, 8, 60}};
    char line[4096], *rounds = getenv("ROUNDS");
    FILE *f = fopen("tests/prompts.txt", "r");
    while (f && n_prompt < MOST && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (*line != '#' && strchr(line, '\t'))
            prompt[n_prompt++] = xstrdup(strchr(line, '\t') + 1);
    }
    if (!f || n_prompt < REPLIES || !mkdtemp(folder))
        return 1;
    fclose(f);
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++)
        bytes(trees[i]);
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++)
        posting(trees[i]);
    speed(trees[0], rounds ? atoi(rounds) : 4);
    rmdir(folder);
    for (int i = 0; i < n_prompt; i++)
        free(prompt[i]);
    return 0;
}
