/* config.json, and behind a NUL generation_config.json, of a folder whose tensors belong to the
 * model or head that the text names: refused with a message, or loaded. */
#include "models/models.h"
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

const int fuzz_inputs = 500;

/* The folder whose tensors an input gets: the first whose word occurs in it. */
static struct base {
    const char *word, *dir;
    const char *target; /* of a head */
    int config, generation;
    char path[128];
    struct model of; /* the loaded target */
} bases[] = {
    {.word = "PEagle", .dir = "tests/golden/peagle-b", .target = "tests/golden/llama-b"},
    {.word = "Eagle3", .dir = "tests/golden/eagle3-nvidia-b", .target = "tests/golden/llama-b"},
    {.word = "DSpark", .dir = "tests/golden/dspark-gated-b", .target = "tests/golden/gemma3-b"},
    {.word = "DFlash2", .dir = "tests/golden/dflash2-b", .target = "tests/golden/qwen3-b"},
    {.word = "DFlash", .dir = "tests/golden/dflash-b", .target = "tests/golden/qwen3-b"},
    {.word = "gemma4_assistant", .dir = "tests/golden/gemma4-a-assistant",
     .target = "tests/golden/gemma4-a"},
    {.word = "gemma4_unified_assistant", .dir = "tests/golden/assistant-unified-b",
     .target = "tests/golden/gemma4-unified-b"},
    {.word = "gemma4_unified", .dir = "tests/golden/gemma4-unified-b"},
    {.word = "cohere2", .dir = "tests/golden/cohere2-b"},
    {.word = "afmoe", .dir = "tests/golden/afmoe-b"},
    {.word = "laguna", .dir = "tests/golden/laguna-b"},
    {.word = "muse_glimmer", .dir = "tests/golden/muse-b"},
    {.word = "mimo_v2", .dir = "tests/golden/mimo-b"},
    {.word = "step3p", .dir = "tests/golden/step-b"},
    {.word = "llama4", .dir = "tests/golden/llama4-b"},
    {.word = "longrope", .dir = "tests/golden/phi3-long-b"},
    {.word = "granitemoe", .dir = "tests/golden/granitemoe-b"},
    {.word = "granite", .dir = "tests/golden/granite-b"},
    {.word = "mellum", .dir = "tests/golden/mellum-b"},
    {.word = "qwen3_moe", .dir = "tests/golden/qwen3moe-b"},
    {.word = "phi3", .dir = "tests/golden/phi3-b"},
    {.word = "smollm3", .dir = "tests/golden/smollm3-b"},
    {.word = "exaone4", .dir = "tests/golden/exaone4-b"},
    {.word = "ministral3", .dir = "tests/golden/ministral3-b"},
    {.word = "gpt_oss", .dir = "tests/golden/gptoss-mxfp4-b"},
    {.word = "gemma2", .dir = "tests/golden/gemma2-b"},
    {.word = "gemma4", .dir = "tests/golden/gemma4-ple-b"},
    {.word = "olmo3", .dir = "tests/golden/olmo3-b"},
    {.word = "qwen2", .dir = "tests/golden/qwen2-b"},
    {.word = "qwen3", .dir = "tests/golden/qwen3-b"},
    {.word = "mistral", .dir = "tests/golden/mistral-b"},
    {.word = "llama", .dir = "tests/golden/llama-b"},
    {.word = "", .dir = "tests/golden/gemma3-b"},
};

static int make_file(const struct base *b, const char *name)
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s", b->path, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd > 0);
    return fd;
}

/* Links the tensors of the base into its folder. */
static void link_tensors(const struct base *b)
{
    char *from = realpath(b->dir, NULL);
    DIR *d = from ? opendir(from) : NULL;
    CHECK(d);
    for (struct dirent *f; (f = readdir(d));) {
        if (strncmp(f->d_name, "model", 5) != 0)
            continue;
        char *there = xasprintf("%s/%s", from, f->d_name),
            *here = xasprintf("%s/%s", b->path, f->d_name);
        CHECK(symlink(there, here) == 0);
        free(there);
        free(here);
    }
    closedir(d);
    free(from);
}

static void make_folder(struct base *b)
{
    struct err e;
    snprintf(b->path, sizeof b->path, "%s/%d", fuzz_folder(), (int)(b - bases));
    CHECK(mkdir(b->path, 0700) == 0);
    link_tensors(b);
    b->config = make_file(b, "config.json");
    b->generation = make_file(b, "generation_config.json");
    if (b->target && !model_load(&b->of, b->target, NULL, &e))
        die("%s", e.msg);
}

static void load(const struct base *b)
{
    struct err e = {0};
    struct model m;
    struct draft d;
    bool ok = b->target ? draft_load(&d, b->path, &b->of, NULL, NULL, &e)
                        : model_load(&m, b->path, NULL, &e);
    if (!ok)
        fuzz_message(&e);
    else if (b->target)
        draft_free(&d);
    else
        model_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct base *b = bases;
    while (!memmem(data, n, b->word, strlen(b->word)))
        b++;
    if (!b->config)
        make_folder(b);
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    size_t first = nul ? (size_t)(nul - data) : n, rest = nul ? n - first - 1 : 0;
    CHECK(ftruncate(b->config, 0) == 0 && pwrite(b->config, data, first, 0) == (ssize_t)first);
    const char *second = nul ? (const char *)nul + 1 : "{}";
    rest = nul ? rest : 2;
    CHECK(ftruncate(b->generation, 0) == 0 && pwrite(b->generation, second, rest, 0) ==
          (ssize_t)rest);
    load(b);
    return 0;
}
