/* bench_engine.c - what the bundled model costs and gains on the CPU, in one run.
 *
 * Every figure is the median of repeated measurements with its spread (lowest to highest decile),
 * and configurations alternate within the run, so that a noisy machine hits all alike. Ratios are
 * against a read-only pass over the same weight bytes with the same threads in the same run.
 * WEIGHTS and DRAFT_WEIGHTS in the environment are what --weights and --draft-weights take.
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

static struct device dev;
static struct model model;
static struct draft head;
static struct tokenizer *tok;
static struct chat *chat;
static struct rig rig;
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

static void prompt(struct lane *l, const char *text, const struct tree_shape *s)
{
    struct err e = {0};
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)text};
    *l = (struct lane){.tap_row = -1};
    must(chat_render(chat, &m, 1, &l->tok, &e), &e);
    int n = l->tok.n;
    while (l->seq.committed < n) {
        int upto = min_int(l->seq.committed + 256, n);
        must(lane_extend(&rig, l, upto, upto == n, s != NULL, s ? s->topk : 1, &e), &e);
    }
}

static void step(struct lane *l, const struct tree_shape *s)
{
    struct err e = {0};
    struct step_limits lim = {1 << 20};
    must(lane_step(&rig, &l, &lim, 1, s, &e), &e);
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
            uint64_t c0 = rig.pass.check.ns;
            double t0 = now();
            step(&l, NULL);
            double t = now() - t0;
            add(&plain, t);
            add(&check, (double)(rig.pass.check.ns - c0) * 1e-9 / t);
        }
        /* the target's pass alone, one row and six, in turn */
        for (int i = 0; i < 60; i++) {
            int rows = i % 2 ? 6 : 1;
            struct tree t;
            tree_init(&t, l.tok.v[l.tok.n - 1]);
            for (int k = 1; k < rows; k++)
                tree_add(&t, k - 1, 100 + k, 0.5f, -(float)k);
            struct plan_req req = {.seq = &l.seq, .n = rows, .token = t.token, .tree = &t};
            must(kv_reserve(&rig.kv, &l.seq, l.seq.committed + rows, &e), &e);
            double t0 = now();
            must(pass_prepare(&rig.pass, PLAN_VERIFY, &req, 1, &e), &e);
            net_forward(&rig.net, &rig.pass.plan[PLAN_VERIFY], &rig.pass.kp, NULL);
            net_logits(&rig.net, rows, (kbuf){0}, rig.logits, (kbuf){0});
            add(rows == 6 ? &six : &one, now() - t0);
            kv_rollback(&rig.kv, &l.seq);
        }
        lane_free(&rig, &l);
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

static const struct tree_shape shapes[] = {{1, 1, 2},  {2, 1, 3},  {3, 1, 4}, {5, 1, 6},
                                           {5, 4, 16}, {6, 8, 60}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

struct tally {
    int cycles, emitted, tokens;
    double seconds;
    uint64_t deep[TREE_MAX], hit[TREE_MAX];
    struct sample cycle; /* seconds a cycle */
};

static struct tally by_shape[N_SHAPES + 1]; /* the last: plain */

static void run_shape(const char *text, int k)
{
    const struct tree_shape *s = k < N_SHAPES ? &shapes[k] : NULL;
    struct tally *t = &by_shape[k];
    struct lane l;
    prompt(&l, text, s);
    int first = l.tok.n;
    double t0 = now();
    while (!l.stopped && l.tok.n < first + 96) {
        double c0 = now();
        step(&l, s);
        add(&t->cycle, now() - c0);
        t->cycles++;
        t->emitted += l.n_new;
        int deepest = l.tree.n > 1 ? tree_depth(&l.tree) : 0;
        for (int d = 1; d <= deepest; d++) {
            t->deep[d]++;
            t->hit[d] += d <= l.rec.accepted;
        }
    }
    t->seconds += now() - t0;
    t->tokens += l.tok.n - first;
    lane_free(&rig, &l);
}

static void shapes_table(int every)
{
    FILE *f = fopen("tests/prompts.txt", "r");
    char line[8192];
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
        used++;
        for (int k = 0; k <= N_SHAPES; k++)
            run_shape(tab + 1, (k + used) % (N_SHAPES + 1));
    }
    fclose(f);
    struct tally *plain = &by_shape[N_SHAPES];
    double p = median(&plain->cycle), base = plain->tokens / plain->seconds;
    printf("\nspeculation, greedy, %d held-out prompts, replies of up to 96 tokens\n", used);
    printf("%-10s %9s %11s %10s %9s   accepted at depth 1, 2, ...\n", "shape", "MAL", "ms a cycle",
           "break-even", "tok/s");
    printf("%-10s %9.2f %11.3f %10s %9.0f\n", "plain", 1.0, p * 1e3, "", base);
    for (int k = 0; k < N_SHAPES; k++) {
        struct tally *t = &by_shape[k];
        char name[32];
        snprintf(name, sizeof name, "%d-%d-%d", shapes[k].steps, shapes[k].topk, shapes[k].nodes);
        printf("%-10s %9.2f %11.3f %10.2f %9.0f  ", name, (double)t->emitted / t->cycles,
               median(&t->cycle) * 1e3, median(&t->cycle) / p, t->tokens / t->seconds);
        for (int d = 1; d < TREE_MAX && t->deep[d]; d++)
            printf(" .%03d", (int)(999.0 * (double)t->hit[d] / (double)t->deep[d] + 0.5));
        printf("\n");
    }
    printf(
        "MAL: tokens a cycle, bonus included. break-even: the MAL at which a cycle costs what its "
        "tokens cost plainly.\n");
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

int main(int argc, char **argv)
{
    struct err e = {0};
    int every = argc > 2 ? atoi(argv[2]) : 3;
    n_threads = min_int(16, (int)sysconf(_SC_NPROCESSORS_ONLN));
    must(device_open(&dev, "cpu", n_threads, NULL, &e), &e);
    must(model_load(&model, NESTLING, NULL, &e), &e);
    must(draft_load(&head, NESTLING_DRAFT, &model, NULL, NULL, &e), &e);
    must(models_quantize(&model, &head,
                    &(struct quant_opts){getenv("WEIGHTS"), getenv("DRAFT_WEIGHTS")}, &e),
         &e);
    tok = tok_open(NESTLING, &e);
    must(tok != NULL, &e);
    chat = chat_open(&model, tok, false, NULL, &e);
    must(chat != NULL, &e);
    must(rig_open(&rig, dev, &model, &head, &(struct rig_shape){.page_size = 16, .context = 4096},
                  &e),
         &e);
    rig.n_stop = chat_stops(chat, rig.stop);
    printf("device: %s\n", dev.k->about(dev.d));
    speed();
    shapes_table(max_int(1, every));
    if (argc > 1)
        start_up(argv[1]);
    rig_close(&rig);
    chat_close(chat);
    tok_close(tok);
    draft_free(&head);
    model_free(&model);
    device_close(&dev);
    return 0;
}
