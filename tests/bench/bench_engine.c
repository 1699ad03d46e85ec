/* bench_engine.c - what the bundled model costs and gains on the CPU, in one run.
 *
 * Every figure is the median of repeated measurements with its spread (lowest to highest decile),
 * and configurations alternate within the run, so that a noisy machine hits all alike. Ratios are
 * against a read-only pass over the same weight bytes with the same threads in the same run.
 * WEIGHTS and DRAFT_WEIGHTS in the environment are what --weights and --draft-weights take;
 * THREADS is the number of threads (all cores, at most 16).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/cycle/cycle.h"
#include "engine/run/device.h"
#include "models/chat/chat.h"

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"
#define NESTLING_BLOCK "models/nestling/block"

static struct device dev;
static struct model model;
static struct draft head, block;
static struct tokenizer *tok;
static struct chat *chat;
static struct runtime with_head, with_block, *runtime = &with_head;
static int n_threads = 2;

static void must(bool ok, const struct err *e)
{
    if (!ok) {
        fprintf(stderr, "bench_engine: %s\n", e->msg);
        exit(1);
    }
}

/* ---- medians --------------------------------------------------------------------------------- */

struct sample {
    double *v;
    int n, cap;
};

static void add(struct sample *s, double v)
{
    if (s->n == s->cap) {
        s->cap = s->cap * 2 + 64;
        s->v = xrealloc(s->v, (size_t)s->cap, sizeof *s->v);
    }
    s->v[s->n++] = v;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double quantile(struct sample *s, double q)
{
    if (s->n == 0)
        return 0;
    qsort(s->v, (size_t)s->n, sizeof *s->v, ascending);
    return s->v[(int)(q * (s->n - 1) + 0.5)];
}

static double median(struct sample *s)
{
    return quantile(s, 0.5);
}

static double now(void)
{
    return (double)clock_ns() * 1e-9;
}

/* ---- the read-only pass ---------------------------------------------------------------------- */

/* 64 bytes at a time, eight running sums: the compiler uses the widest loads the machine has. */
typedef uint64_t v8 __attribute__((vector_size(64), aligned(8), may_alias));

struct part {
    const char *p;
    size_t n; /* bytes */
};

__attribute__((target_clones("avx512f", "avx2", "default")))
static uint64_t read_part(const struct part *t)
{
    v8 s[8] = {{0}};
    for (size_t i = 0; i + 512 <= t->n; i += 512)
        for (int k = 0; k < 8; k++)
            s[k] ^= *(const v8 *)(t->p + i + 64 * k);
    uint64_t sum = 0;
    for (int k = 0; k < 8; k++)
        for (int j = 0; j < 8; j++)
            sum ^= s[k][j];
    return sum;
}

struct tensors {
    struct part part[256];
    int n;
};

static bool collect(struct tensor *t, void *arg, struct err *e)
{
    struct tensors *all = arg;
    (void)e;
    if (all->n < 256)
        all->part[all->n++] = (struct part){t->data, t->bytes};
    return true;
}

/* Each thread reads its share of every matrix, pass after pass, and times each. */
enum { PASSES = 60 };
struct reader {
    struct tensors all;
    int id;
    pthread_barrier_t *start;
    double seconds[PASSES];
};

static void *reader(void *arg)
{
    struct reader *r = arg;
    uint64_t sum = 0;
    pthread_barrier_wait(r->start);
    for (int k = 0; k < PASSES; k++) {
        double t0 = now();
        for (int i = 0; i < r->all.n; i++) {
            size_t share = r->all.part[i].n / (size_t)n_threads / 64 * 64;
            sum ^= read_part(&(struct part){r->all.part[i].p + share * (size_t)r->id, share});
        }
        r->seconds[k] = now() - t0;
    }
    __asm__ volatile("" : : "r"(sum));
    return NULL;
}

/* Adds the passes' times: of each pass the slower thread's. */
static void read_passes(struct sample *out)
{
    struct tensors all = {.n = 0};
    static struct reader r[16];
    pthread_t t[16];
    pthread_barrier_t start;
    model_each(&model, collect, &all, NULL);
    pthread_barrier_init(&start, NULL, (unsigned)n_threads);
    for (int i = 0; i < n_threads; i++) {
        r[i] = (struct reader){.all = all, .id = i, .start = &start};
        pthread_create(&t[i], NULL, reader, &r[i]);
    }
    for (int i = 0; i < n_threads; i++)
        pthread_join(t[i], NULL);
    pthread_barrier_destroy(&start);
    for (int k = 10; k < PASSES; k++) {
        double worst = 0;
        for (int i = 0; i < n_threads; i++)
            worst = r[i].seconds[k] > worst ? r[i].seconds[k] : worst;
        add(out, worst);
    }
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/* The question, or with a reply: the question, the reply, the question again. */
static void prompt_again(struct lane *l, const char *text, const struct ids *reply,
                         const struct tree_shape *s)
{
    struct err e = {0};
    struct message m[3];
    m[0] = m[2] = (struct message){.role = ROLE_USER, .text = (char *)(uintptr_t)text};
    m[1] = (struct message){.role = ROLE_ASSISTANT, .text = (char *)(uintptr_t)""};
    if (reply)
        m[1].ids = *reply;
    *l = (struct lane){.tap_row = -1};
    must(chat_render(chat, m, reply ? 3 : 1, &l->tok, &e), &e);
    int n = l->tok.n;
    while (l->seq.committed < n) {
        int upto = min_int(l->seq.committed + 256, n);
        must(lane_extend(runtime, l, upto, upto == n, s != NULL, s ? s->topk : 1, &e), &e);
    }
}

static void prompt(struct lane *l, const char *text, const struct tree_shape *s)
{
    prompt_again(l, text, NULL, s);
}

static void step(struct lane *l, const struct tree_shape *s)
{
    struct err e = {0};
    struct step_limits lim = {1 << 20};
    must(lane_step(runtime, &l, &lim, 1, s, &e), &e);
}

/* ---- plain decoding, verify passes, the checker ---------------------------------------------- */

static void speed(void)
{
    struct sample read = {0}, plain = {0}, one = {0}, six = {0}, check = {0};
    struct lane l;
    struct err e = {0};
    for (int round = 0; round < 12; round++) {
        read_passes(&read);
        prompt(&l, "count to one hundred", NULL);
        for (int i = 0; i < 60; i++) {
            uint64_t c0 = runtime->pass.check.ns;
            double t0 = now();
            step(&l, NULL);
            double t = now() - t0;
            add(&plain, t);
            add(&check, (double)(runtime->pass.check.ns - c0) * 1e-9 / t);
        }
        /* the target's pass alone, one row and six, in turn */
        for (int i = 0; i < 60; i++) {
            int rows = i % 2 ? 6 : 1;
            struct tree t;
            tree_init(&t, l.tok.v[l.tok.n - 1]);
            for (int k = 1; k < rows; k++)
                tree_add(&t, k - 1, 100 + k, 0.5f, -(float)k);
            struct plan_req req = {.seq = &l.seq, .n = rows, .token = t.token, .tree = &t};
            must(kv_reserve(&runtime->kv, &l.seq, l.seq.committed + rows, &e), &e);
            double t0 = now();
            must(pass_prepare(&runtime->pass, PLAN_VERIFY, &req, 1, &e), &e);
            net_forward(&runtime->net, &runtime->pass.plan[PLAN_VERIFY], &runtime->pass.kp, NULL);
            net_logits(&runtime->net, rows, (kbuf){0}, runtime->logits);
            add(rows == 6 ? &six : &one, now() - t0);
            kv_rollback(&runtime->kv, &l.seq);
        }
        lane_free(runtime, &l);
    }
    double r = median(&read), p = median(&plain);
    printf("weights read per token        %.2f MB\n", (double)model.bytes / 1e6);
    printf("read-only pass                %.3f ms  [%.3f, %.3f]  (%.1f GB/s, %d threads)\n",
           r * 1e3, quantile(&read, 0.1) * 1e3, quantile(&read, 0.9) * 1e3,
           (double)model.bytes / r / 1e9, n_threads);
    printf(
        "plain decode                  %.3f ms  [%.3f, %.3f]  %.0f tok/s, %.2f of the read pass\n",
        p * 1e3, quantile(&plain, 0.1) * 1e3, quantile(&plain, 0.9) * 1e3, 1 / p, r / p);
    printf("target pass, 1 row            %.3f ms  [%.3f, %.3f]\n", median(&one) * 1e3,
           quantile(&one, 0.1) * 1e3, quantile(&one, 0.9) * 1e3);
    printf("target pass, 6 rows           %.3f ms  [%.3f, %.3f]  %.2f x one row\n",
           median(&six) * 1e3, quantile(&six, 0.1) * 1e3, quantile(&six, 0.9) * 1e3,
           median(&six) / median(&one));
    printf("checker, share of a step      %.2f %%  [%.2f, %.2f]\n", median(&check) * 100,
           quantile(&check, 0.1) * 100, quantile(&check, 0.9) * 100);
    free(read.v), free(plain.v), free(one.v), free(six.v), free(check.v);
}

/* ---- speculation by shape -------------------------------------------------------------------- */

static const struct way {
    const char *name;
    struct tree_shape shape;
    enum { HEAD, BLOCK, LOOKUP } by; /* the EAGLE3 head, the block drafter, the n-gram drafter */
} ways[] = {
    {"1-1-2", {1, 1, 2}, HEAD},            {"2-1-3", {2, 1, 3}, HEAD},
    {"3-1-4", {3, 1, 4}, HEAD},            {"5-1-6", {5, 1, 6}, HEAD},
    {"7-1-8", {7, 1, 8}, HEAD},            {"5-4-16", {5, 4, 16}, HEAD},
    {"6-8-60", {6, 8, 60}, HEAD},          {"block 5-1-6", {5, 1, 6}, BLOCK},
    {"block 7-1-8", {7, 1, 8}, BLOCK},     {"block 7-4-16", {7, 4, 16}, BLOCK},
    {"ngram 5-1-6", {5, 1, 6}, LOOKUP},    {"ngram 5-4-16", {5, 4, 16}, LOOKUP},
    {"ngram 16-1-17", {16, 1, 17}, LOOKUP},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

struct tally {
    int cycles, emitted, tokens;
    double seconds, drafting;
    struct draft_sums drafts;
    struct sample cycle; /* seconds a cycle */
};

static struct drafter *lookup;

/* A reply of up to 96 tokens, one way or plain (k == N_WAYS). */
static void run_way(const char *text, const struct ids *reply, int k, struct tally *t,
                    struct ids *said)
{
    const struct tree_shape *s = k < N_WAYS ? &ways[k].shape : NULL;
    runtime = s && ways[k].by == BLOCK ? &with_block : &with_head;
    struct drafter *own = runtime->drafter;
    struct lane l;
    if (s && ways[k].by == LOOKUP)
        runtime->drafter = lookup;
    prompt_again(&l, text, reply, s);
    int first = l.tok.n;
    double t0 = now();
    while (!l.stopped && l.tok.n < first + 96) {
        double c0 = now();
        step(&l, s);
        add(&t->cycle, now() - c0);
        t->cycles++;
        t->emitted += l.n_new;
        t->drafting += l.rec.us_draft * 1e-6;
        draft_sums_add(&t->drafts, &l.rec, tree_depth(&l.tree));
    }
    t->seconds += now() - t0;
    t->tokens += l.tok.n - first;
    if (said)
        ids_cat(said, l.tok.v + first, l.tok.n - first);
    lane_free(runtime, &l);
    runtime->drafter = own;
    runtime = &with_head;
}

static void print_tallies(struct tally *all, const char *what)
{
    struct tally *plain = &all[N_WAYS];
    double p = median(&plain->cycle), base = plain->tokens / plain->seconds;
    printf("\nspeculation, greedy, %s, replies of up to 96 tokens\n", what);
    printf("%-14s %8s %11s %9s %10s %9s %9s   accepted at depth 1, 2, ...\n", "shape", "tokens",
           "ms a cycle", "drafting", "break-even", "tok/s", "accepted");
    printf("%-14s %8.2f %11.3f %9s %10s %9.0f\n", "plain", 1.0, p * 1e3, "", "", base);
    for (int k = 0; k < N_WAYS; k++) {
        struct tally *t = &all[k];
        if (t->cycles == 0)
            continue;
        double ms = t->seconds / t->cycles; /* cycles differ: some of the lookup's have one row */
        printf("%-14s %8.2f %11.3f %9.3f %10.2f %9.0f %8.0f%%  ", ways[k].name,
               (double)t->emitted / t->cycles, median(&t->cycle) * 1e3,
               t->drafting / t->cycles * 1e3, ms * base, t->tokens / t->seconds,
               100.0 * (double)t->drafts.accepted / fmax(1, (double)t->drafts.drafted));
        for (int d = 1; d < TREE_MAX && t->drafts.depth[d].drafted; d++)
            printf(" .%03d", (int)(999.0 * (double)t->drafts.depth[d].accepted /
                                       (double)t->drafts.depth[d].drafted + 0.5));
        printf("\n");
    }
}

/* One prompt in all ways by turns, and again behind its own reply in those of depth 5 and more. */
static void run_prompt(const char *text, int turn, struct tally *once, struct tally *again)
{
    struct ids said = {0};
    for (int i = 0; i <= N_WAYS; i++) {
        int k = (i + turn) % (N_WAYS + 1);
        run_way(text, NULL, k, &once[k], k == N_WAYS ? &said : NULL);
    }
    for (int i = 0; i <= N_WAYS; i++) {
        int k = (i + turn) % (N_WAYS + 1);
        if (k == N_WAYS || ways[k].by == LOOKUP || ways[k].shape.nodes == 6)
            run_way(text, &said, k, &again[k], NULL);
    }
    ids_free(&said);
}

static void shapes_table(int every)
{
    static struct tally once[N_WAYS + 1], again[N_WAYS + 1]; /* the last: plain */
    FILE *f = fopen("tests/prompts.txt", "r");
    char line[8192], what[64];
    int n = 0, used = 0;
    if (!f) {
        fprintf(stderr, "bench_engine: cannot open tests/prompts.txt; run from the repository\n");
        exit(1);
    }
    while (fgets(line, sizeof line, f)) {
        char *tab = strchr(line, '\t');
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#' || !tab || n++ % every)
            continue;
        run_prompt(tab + 1, ++used, once, again);
    }
    fclose(f);
    snprintf(what, sizeof what, "%d held-out prompts", used);
    print_tallies(once, what);
    print_tallies(again, "the same prompts asked again behind their replies");
    printf("tokens: of a cycle, the bonus included. drafting: its mean share of a cycle in ms. "
           "break-even: the tokens of a cycle at which the cycles, on average, "
           "cost what their tokens cost plainly.\n");
}

/* ---- the first token of a fresh process ------------------------------------------------------ */

static double first_byte(const char *aerie)
{
    int fd[2];
    if (pipe(fd))
        return 0;
    double t0 = now();
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd[1], 1);
        close(fd[0]);
        execl(aerie, "aerie", "run", "-n", "-q", "Hello!", (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    char c;
    double t = read(fd[0], &c, 1) == 1 ? now() - t0 : 0;
    while (read(fd[0], &c, 1) == 1)
        ;
    close(fd[0]);
    waitpid(pid, NULL, 0);
    return t;
}

static void start_up(const char *aerie)
{
    struct sample s = {0};
    for (int i = 0; i < 15; i++)
        add(&s, first_byte(aerie));
    printf("\nfirst text of `aerie run`     %.0f ms  [%.0f, %.0f]\n", median(&s) * 1e3,
           quantile(&s, 0.1) * 1e3, quantile(&s, 0.9) * 1e3);
    free(s.v);
}

static void open_runtime(struct runtime *r, struct draft *d)
{
    struct err e = {0};
    must(runtime_open(r, dev, &model, d,
                      &(struct runtime_shape){.page_size = 16, .context = 4096}, &e),
         &e);
    r->n_stop = chat_stops(chat, r->stop);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    int every = argc > 2 ? atoi(argv[2]) : 3;
    const char *threads = getenv("THREADS");
    n_threads = threads ? atoi(threads) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    n_threads = max_int(1, min_int(16, n_threads));
    must(device_open(&dev, "cpu", n_threads, NULL, &e), &e);
    must(model_load(&model, NESTLING, NULL, &e), &e);
    must(draft_load(&head, NESTLING_DRAFT, &model, NULL, NULL, &e), &e);
    must(draft_load(&block, NESTLING_BLOCK, &model, NULL, NULL, &e), &e);
    const struct quant_opts quant = {getenv("WEIGHTS"), getenv("DRAFT_WEIGHTS")};
    must(models_quantize(&model, &head, &quant, &e), &e);
    must(models_quantize(NULL, &block, &quant, &e), &e);
    tok = tok_open(NESTLING, &e);
    must(tok != NULL, &e);
    chat = chat_open(&model, tok, false, NULL, &e);
    must(chat != NULL, &e);
    open_runtime(&with_head, &head);
    open_runtime(&with_block, &block);
    struct draft by_name = {.kind = "ngram"};
    lookup = drafter_open(&(struct drafter_setup){.w = &by_name}, &e);
    must(lookup != NULL, &e);
    printf("device: %s\n", dev.k->about(dev.d));
    speed();
    shapes_table(max_int(1, every));
    if (argc > 1)
        start_up(argv[1]);
    drafter_close(lookup);
    runtime_close(&with_block);
    runtime_close(&with_head);
    chat_close(chat);
    tok_close(tok);
    draft_free(&block);
    draft_free(&head);
    model_free(&model);
    device_close(&dev);
    return 0;
}
