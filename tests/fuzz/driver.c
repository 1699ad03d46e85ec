/* driver.c - the targets of fuzzing without libFuzzer: a test that feeds each of them its corpus,
 * its regressions and mutations of both, the same ones in every run.
 *
 *   test_fuzz               all targets, each in a process of its own; TAP
 *   test_fuzz NAME FILE...  one target on these files
 *
 * Of a target that fails, the input is left in the folder of the test's log: fuzz-NAME.input.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base.h"

/* FUZZ_LIST: a file with X(name) for each of them */
#define X(name)                                                                                    \
    int target_##name(const uint8_t *data, size_t n);                                              \
    extern const int inputs_##name;
#include FUZZ_LIST
#undef X

static const struct target {
    const char *name;
    int (*run)(const uint8_t *data, size_t n);
    const int *inputs; /* mutations */
} targets[] = {
#define X(name) {#name, target_##name, &inputs_##name},
#include FUZZ_LIST
#undef X
};
enum { N_TARGETS = sizeof targets / sizeof *targets, LONGEST_INPUT = 4096, LONGEST_SEED = 1 << 20,
       SECONDS = 120 };

/* The input that is being read, so that the parent can say which one it was. */
static struct current {
    int n_files, n_mutations;
    size_t n;
    uint8_t data[LONGEST_SEED];
} *current;

static void feed(const struct target *t, const uint8_t *data, size_t n)
{
    current->n = n;
    if (n)
        memmove(current->data, data, n);
    uint8_t *copy = xmalloc(n ? n : 1); /* ends where its memory ends */
    if (n)
        memcpy(copy, data, n);
    t->run(copy, n);
    free(copy);
}

/* ---- seeds ----------------------------------------------------------------------------------- */

struct seeds {
    struct buf *at;
    int n;
};

static bool add_file(struct seeds *s, const char *path)
{
    struct buf b;
    if (!buf_read_file(&b, path, LONGEST_SEED, NULL))
        return false;
    s->at = xrealloc(s->at, (size_t)s->n + 1, sizeof *s->at);
    s->at[s->n++] = b;
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All files of a folder, by name; none where there is no folder. */
static void add_folder(struct seeds *s, const char *folder)
{
    char **name = NULL;
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *f; d && (f = readdir(d));) {
        if (f->d_name[0] == '.')
            continue;
        name = xrealloc(name, (size_t)n + 1, sizeof *name);
        name[n++] = xasprintf("%s/%s", folder, f->d_name);
    }
    if (d)
        closedir(d);
    if (n)
        qsort(name, (size_t)n, sizeof *name, by_name);
    for (int i = 0; i < n; i++) {
        add_file(s, name[i]);
        free(name[i]);
    }
    free(name);
}

/* Corpus, regressions, and the paths that corpus/NAME.paths lists, one a line. */
static void add_seeds(struct seeds *s, const char *target)
{
    static const char *const in[] = {"tests/fuzz/corpus", "tests/fuzz/regressions"};
    struct buf paths = {0};
    for (int i = 0; i < 2; i++) {
        char *folder = xasprintf("%s/%s", in[i], target);
        add_folder(s, folder);
        free(folder);
    }
    char *list = xasprintf("tests/fuzz/corpus/%s.paths", target);
    if (access(list, F_OK) == 0 && buf_read_file(&paths, list, LONGEST_SEED, NULL))
        for (char *line = strtok(paths.p, "\n"); line; line = strtok(NULL, "\n"))
            if (!add_file(s, line))
                die("%s names %s, which cannot be read", list, line);
    buf_free(&paths);
    free(list);
}

/* ---- mutations ------------------------------------------------------------------------------- */

static uint64_t dice;

static size_t below(size_t n)
{
    dice = mix64(dice);
    return n ? dice % n : 0;
}

static size_t put_bytes(uint8_t *p, size_t n, size_t at, const uint8_t *from, size_t k)
{
    k = k < LONGEST_INPUT - n ? k : LONGEST_INPUT - n;
    memmove(p + at + k, p + at, n - at);
    memcpy(p + at, from, k);
    return n + k;
}

/* One change: a bit, a byte, a run removed, repeated, or taken from another seed. */
static size_t change(uint8_t *p, size_t n, const struct seeds *s)
{
    static const uint8_t odd[] = {0, 1, 0x7F, 0x80, 0xFF, '\n', '\r', '"', '\\', '{', '}', '[', ']',
                                  '-', '9', ' '};
    const struct buf *other = &s->at[below((size_t)s->n)];
    size_t at = below(n + 1), k = 1 + below(16), from = below(other->n);
    uint8_t copy[16];
    switch (below(6)) {
    case 0:
        if (at < n)
            p[at] ^= (uint8_t)(1 << below(8));
        return n;
    case 1:
        if (at < n)
            p[at] = odd[below(sizeof odd)];
        return n;
    case 2:
        k = k < n - at ? k : n - at;
        memmove(p + at, p + at + k, n - at - k);
        return n - k;
    case 3:
        k = k < n - at ? k : n - at;
        memcpy(copy, p + at, k);
        return put_bytes(p, n, at, copy, k);
    case 4:
        return put_bytes(p, n, at, odd + below(sizeof odd), 1);
    default:
        k = k < other->n - from ? k : other->n - from;
        return k ? put_bytes(p, n, at, (uint8_t *)other->p + from, k) : n;
    }
}

static void run_target(const struct target *t)
{
    struct seeds s = {0};
    uint8_t *p = xmalloc(LONGEST_INPUT);
    add_seeds(&s, t->name);
    for (int i = 0; i < s.n; i++) {
        current->n_files++;
        feed(t, (uint8_t *)s.at[i].p, s.at[i].n);
    }
    if (!s.n) {
        s.at = xcalloc(1, sizeof *s.at);
        s.n = 1;
    }
    dice = hash64(t->name, strlen(t->name), 1);
    for (int i = 0; i < *t->inputs; i++) {
        const struct buf *b = &s.at[below((size_t)s.n)];
        size_t n = b->n < LONGEST_INPUT ? b->n : LONGEST_INPUT;
        if (n)
            memcpy(p, b->p, n);
        for (size_t k = 1 + below(4); k; k--)
            n = change(p, n, &s);
        current->n_mutations++;
        feed(t, p, n);
    }
    for (int i = 0; i < s.n; i++)
        buf_free(&s.at[i]);
    free(s.at);
    free(p);
}

/* ---- all targets ----------------------------------------------------------------------------- */

static void keep_input(const struct target *t)
{
    const char *build = getenv("BUILD");
    char *path = xasprintf("%s/test-logs/fuzz-%s.input", build ? build : ".", t->name);
    FILE *f = fopen(path, "w");
    if (f) {
        fwrite(current->data, 1, current->n, f);
        fclose(f);
        printf("# the input is in %s\n", path);
    }
    free(path);
}

static bool passes(const struct target *t, int number)
{
    int status = 0;
    current->n_files = current->n_mutations = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS); /* an endless loop ends here, and its input is known */
        run_target(t);
        exit(0);
    }
    bool ok = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
              WEXITSTATUS(status) == 0;
    printf("%s %d - %s: %d files, %d mutations\n", ok ? "ok" : "not ok", number, t->name,
           current->n_files, current->n_mutations);
    if (!ok && WIFSIGNALED(status))
        printf("# ended by %s\n", strsignal(WTERMSIG(status)));
    if (!ok)
        keep_input(t);
    return ok;
}

int main(int argc, char **argv)
{
    int bad = 0;
    current = mmap(NULL, sizeof *current, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0);
    if (current == MAP_FAILED)
        die("no memory");
    for (int i = 0; i < N_TARGETS; i++) {
        if (argc > 1 && strcmp(argv[1], targets[i].name) != 0)
            continue;
        struct seeds s = {0};
        for (int k = 2; k < argc; k++)
            if (!add_file(&s, argv[k]))
                die("%s cannot be read", argv[k]);
        for (int k = 0; k < s.n; k++)
            feed(&targets[i], (uint8_t *)s.at[k].p, s.at[k].n);
        bad += argc <= 2 && !passes(&targets[i], i + 1);
    }
    if (argc <= 2)
        printf("1..%d\n", argc > 1 ? 1 : N_TARGETS);
    return bad > 0;
}
