/* llama_steps.c - what a step and a prompt of one sequence cost in llama.cpp on a GPU
 *
 *     llama_steps MODEL.gguf [UBATCH]
 *
 * Prints "prompt N BEST MEDIAN" and "step N BEST MEDIAN" in milliseconds for N = 512 and 4,096: the
 * prompt of N tokens, and a step behind it (the mean of 64 steps); best and median of five rounds.
 * All layers are on the GPU, flash attention is on, cells are float16, the sliding layers keep a
 * window of cells, as in llama-server. A step is llama_decode() of one token; its logits come to
 * the host, nothing is sampled. Build it against llama.cpp, such as the source in the sdist of the
 * PyPI package llama-cpp-python:
 *     cc llama_steps.c -I include -I ggml/include -lllama -lggml -lggml-base
 */
#include "ggml-backend.h"
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 5, STEPS = 64, LONGEST = 4096 };

static double ms_now(void)
{
    return (double)ggml_time_us() / 1e3;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void decode(struct llama_context *ctx, llama_token *ids, int n)
{
    if (llama_decode(ctx, llama_batch_get_one(ids, n)) != 0) {
        fprintf(stderr, "llama_decode failed\n");
        exit(1);
    }
}

static void tell(const char *what, int n, double *ms)
{
    qsort(ms, ROUNDS, sizeof *ms, by_size);
    printf("%s %d %.4f %.4f\n", what, n, ms[0], ms[ROUNDS / 2]);
    fflush(stdout);
}

static void quiet(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level >= GGML_LOG_LEVEL_WARN)
        fputs(text, stderr);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    llama_log_set(quiet, NULL);
    ggml_backend_load_all();
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 999;
    struct llama_model *model = llama_model_load_from_file(argv[1], mp);
    if (!model)
        return 1;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 2 * LONGEST;
    cp.n_batch = LONGEST;
    cp.n_ubatch = argc > 2 ? (uint32_t)atoi(argv[2]) : 512;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    cp.swa_full = false;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    if (!ctx)
        return 1;
    llama_token ids[LONGEST];
    for (int i = 0; i < LONGEST; i++)
        ids[i] = 300 + (i * 7919) % 3000;
    for (int n = 512; n <= LONGEST; n *= 8) {
        double prompt[ROUNDS] = {0}, step[ROUNDS] = {0};
        for (int r = -1; r < ROUNDS; r++) { /* the first round warms up */
            llama_memory_clear(llama_get_memory(ctx), true);
            double begin = ms_now();
            decode(ctx, ids, n);
            llama_synchronize(ctx);
            double end = ms_now();
            for (int i = 0; i < STEPS; i++) {
                decode(ctx, &ids[i], 1);
                llama_synchronize(ctx);
            }
            if (r >= 0)
                prompt[r] = end - begin, step[r] = (ms_now() - end) / STEPS;
        }
        tell("prompt", n, prompt);
        tell("step", n, step);
    }
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
