/* test_families.c - every family and every dialect of draft heads, against reference tensors.
 *
 * The folders under tests/golden/ are made by make_target.py and make_draft.py there. Each is held
 * against its reference in every chunking and page size, with its head in every tree shape.
 */
#include "tests/ckpt.h"
#include "tests/few.h"

#include "engine/tools/golden.h"
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct pair {
    const char *target, *draft; /* below tests/golden/; draft NULL: the target alone */
};

static bool run(const struct pair *p, struct buf *report, struct err *e)
{
    char *dir = xasprintf("tests/golden/%s", p->target);
    char *draft = p->draft ? xasprintf("tests/golden/%s", p->draft) : NULL;
    struct golden_opts o = {.engine = {.model = dir, .draft = draft, .device = "cpu",
                                       .threads = test_threads()}};
    bool ok = golden_run(&o, report, e);
    free(dir);
    free(draft);
    return ok;
}

static void test_equals_its_reference(void **state)
{
    struct buf report = {0};
    struct err e = {0};
    if (!run(*state, &report, &e))
        fail_msg("%s\n%s", e.msg, report.p ? report.p : "");
    assert_null(strstr(report.p, "bits differ")); /* chunks and pages do not change a row */
    buf_free(&report);
}

/* Each of these changes the arithmetic by one switch, which the comparison must notice. */
static const struct mutant {
    const char *target, *from, *to; /* in config.json, once */
    const char *draft;              /* whose config is changed then, not the target's */
} mutants[] = {
    {"gemma3-mm-b", "\"rope_local_base_freq\": 10000.0", "\"rope_local_base_freq\": 11000.0", NULL},
    {"olmo3-b", "\"factor\": 8.0", "\"factor\": 7.0", NULL},
    {"gemma2-c", "\"attn_logit_softcapping\": 2.0", "\"attn_logit_softcapping\": null", NULL},
    {"gemma2-c", "\"final_logit_softcapping\": 3.0", "\"final_logit_softcapping\": null", NULL},
    {"gemma2-c", "\"sliding_window\": 1", "\"sliding_window\": 2", NULL},
    {"gemma2-b", "\"sliding_window\": 5", "\"sliding_window\": 6", NULL},
    {"gemma3-b", "\"query_pre_attn_scalar\": 12", "\"query_pre_attn_scalar\": 10", NULL},
    {"gemma4-moe-b", "\"top_k_experts\": 2", "\"top_k_experts\": 3", NULL},
    {"gemma4-moe-b", "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.5", NULL},
    {"gptoss-mxfp4-b", "\"truncate\": false", "\"truncate\": true", NULL},
    {"gptoss-plain-b", "\"swiglu_limit\": 7.0", "\"swiglu_limit\": 1.0", NULL},
    {"llama-b", "\"factor\": 8.0", "\"factor\": 4.0", NULL},
    {"olmo2-b", "\"rope_theta\": 500000.0", "\"rope_theta\": 20.0", NULL},
    {"smollm3-b", "\"sliding_window\": 5", "\"sliding_window\": 6", NULL},
    {"qwen2-b", "\"sliding_window\": 5", "\"sliding_window\": 6", NULL},
    {"exaone4-b", "\"sliding_window\": 5", "\"sliding_window\": 6", NULL},
    {"exaone4-b", "\"rope_theta\": 1000000.0", "\"rope_theta\": 20.0", NULL},
    {"ministral3-b", "\"llama_4_scaling_beta\": 0.4", "\"llama_4_scaling_beta\": 0.3", NULL},
    {"gemma4-unified-b", "\"sliding_window\": 7", "\"sliding_window\": 8", NULL},
    {"phi3-b", "\"sliding_window\": 6", "\"sliding_window\": 7", NULL},
    {"qwen3moe-b", "\"norm_topk_prob\": false", "\"norm_topk_prob\": true", NULL},
    {"qwen3moe-b", "\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 2", NULL},
    {"mellum-b", "\"sliding_window\": 6", "\"sliding_window\": 7", NULL},
    {"granite-b", "\"residual_multiplier\": 0.6", "\"residual_multiplier\": 0.7", NULL},
    {"granite-b", "\"logits_scaling\": 1.7", "\"logits_scaling\": 1.6", NULL},
    {"granite-b", "\"attention_multiplier\": 0.4", "\"attention_multiplier\": 0.6", NULL},
    {"granitemoe-b", "\"residual_multiplier\": 0.5", "\"residual_multiplier\": 0.6", NULL},
    {"granitemoe-b", "\"embedding_multiplier\": 2.0", "\"embedding_multiplier\": 3.0", NULL},
    {"cohere2-b", "\"logit_scale\": 0.4", "\"logit_scale\": 0.5", NULL},
    {"cohere2-b", "\"sliding_window\": 5", "\"sliding_window\": 6", NULL},
    {"cohere2-b", "\"layer_norm_eps\": 1e-05", "\"layer_norm_eps\": 1e-01", NULL},
    {"phi3-long-b", "1.5,", "2.5,", NULL},
    {"phi3-short-b", "1.1,", "1.9,", NULL},
    {"afmoe-b", "\"route_scale\": 1.7", "\"route_scale\": 1.4", NULL},
    {"afmoe-b", "\"mup_enabled\": true", "\"mup_enabled\": false", NULL},
    {"laguna-b", "\"moe_router_logit_softcapping\": 1.5", "\"moe_router_logit_softcapping\": 0.3",
     NULL},
    {"laguna-b", "\"moe_routed_scaling_factor\": 1.6", "\"moe_routed_scaling_factor\": 1.3", NULL},
    {"muse-b", "\"post_norm_eps\": 0.001", "\"post_norm_eps\": 0.2", NULL},
    {"muse-b", "\"qk_scale_factor\": 2.5", "\"qk_scale_factor\": 2.0", NULL},
    {"muse-b", "\"output_multiplier\": 0.6", "\"output_multiplier\": 0.5", NULL},
    {"mimo-b", "\"attention_value_scale\": 0.707", "\"attention_value_scale\": 0.6", NULL},
    {"mimo-b", "\"routed_scaling_factor\": 1.4", "\"routed_scaling_factor\": 1.2", NULL},
    {"mimo-b", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", NULL},
    {"llama4-b", "\"attention_chunk_size\": 7", "\"attention_chunk_size\": 8", NULL},
    {"llama4-b", "\"floor_scale\": 5", "\"floor_scale\": 9", NULL},
    {"llama4-b", "\"use_qk_norm\": true", "\"use_qk_norm\": false", NULL},
    {"step-b", "\"moe_router_scaling_factor\": 1.4", "\"moe_router_scaling_factor\": 1.2", NULL},
    {"step-b", "0.7", "0.1", NULL},
    {"step-b", "0.6", "0.1", NULL},
    {"olmo3-b", "\"norm_before_residual\": true", "\"norm_before_residual\": false",
     "eagle3-redhat-b"},
    {"olmo3-b", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-02", "eagle3-redhat-b"},
    {"gptoss-plain-b", "\"sliding_window\": 5", "\"sliding_window\": 6", "eagle3-nvidia-b"},
    {"gptoss-plain-b", "\"factor\": 32.0", "\"factor\": 16.0", "eagle3-nvidia-b"},
    {"qwen3-b", "\"norm_output\": true", "\"norm_output\": false", "eagle3-deep-b"},
    {"llama-b", "\"ptd_token_id\": 128", "\"ptd_token_id\": 127", "peagle-b"},
    {"gemma3-b", "\"norm_before_residual\": true", "\"norm_before_residual\": false",
     "peagle-swa-b"},
    {"qwen3-b", "\"mask_token_id\": 128", "\"mask_token_id\": 127", "dflash-b"},
    {"qwen3-b", "\"block_size\": 6", "\"is_causal\": true, \"block_size\": 6", "dflash-b"},
    {"gemma3-b", "\"sliding_window\": 11", "\"sliding_window\": 12", "dflash-swa-b"},
    {"gemma3-b", "\"block_size\": 9", "\"is_causal\": false, \"block_size\": 9",
     "dflash-swa-b"},
    {"gemma3-b", "\"markov_head_type\": \"gated\"", "\"markov_head_type\": \"gated\", "
     "\"logit_scale\": 0.9", "dspark-gated-b"},
    {"qwen3-b", "\"output_multiplier\": 0.75", "\"output_multiplier\": 0.7", "dflash2-b"},
    {"qwen3-b", "\"final_logit_softcapping\": 2.5", "\"final_logit_softcapping\": 2.6",
     "dflash2-b"},
    {"qwen3-b", "\"selector_top_k\": 9", "\"selector_top_k\": 8", "dflash2-b"},
    {"qwen3-b", "\"is_causal\": false", "\"is_causal\": true", "dflash2-b"},
    {"gemma3-b", "\"sliding_window_non_causal\": true", "\"sliding_window_non_causal\": false",
     "dflash2-swa-b"},
    {"gemma4-moe-b", "\"sliding_window\": 5", "\"sliding_window\": 4", "assistant-moe-b"},
    {"gemma4-unified-b", "\"sliding_window\": 7", "\"sliding_window\": 6", "assistant-unified-b"},
};
enum { FINE = 2 }; /* the first so many are too small a change for bf16's tolerance */

/* In float32, or over bf16 cells, where noise must not excuse what the folder itself says wrong. */
static void must_notice(const struct mutant *m, const struct golden_opts *o)
{
    struct buf report = {0};
    struct err e = {0};
    bool same = golden_run(o, &report, &e);
    if (same || e.kind != ERR_NEGATIVE)
        fail_msg("%s with %s, %s: %s", m->draft ? m->draft : m->target, m->to,
                 o->engine.precision ? o->engine.precision : "f32",
                 same ? "equals its reference all the same" : e.msg);
    buf_free(&report);
}

/* A copy of the folder, the weights being links, with one change to its config. */
static char *mutate(const struct mutant *m)
{
    const char *name = m->draft ? m->draft : m->target;
    char *dir = scratch_folder(), *from = xasprintf("tests/golden/%s", name);
    char *abs = realpath(from, NULL);
    struct buf text = ck_read(from, "config.json"), changed = {0};
    buf_char(&text, '\0');
    char *at = strstr(text.p, m->from);
    if (!at || strstr(at + 1, m->from))
        fail_msg("%s: %s is not in config.json exactly once", name, m->from);
    buf_printf(&changed, "%.*s%s%s", (int)(at - text.p), text.p, m->to, at + strlen(m->from));
    ck_write(dir, "config.json", changed.p, changed.n);
    DIR *d = opendir(from);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *old = xasprintf("%s/%s", abs, e->d_name), *new = xasprintf("%s/%s", dir, e->d_name);
        if (strstr(e->d_name, ".safetensors"))
            assert_int_equal(symlink(old, new), 0);
        free(old);
        free(new);
    }
    closedir(d);
    buf_free(&text);
    buf_free(&changed);
    free(from);
    free(abs);
    return dir;
}

static void test_one_wrong_switch_is_noticed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        const struct mutant *m = &mutants[i];
        char *dir = mutate(m), *target = xasprintf("tests/golden/%s", m->target);
        const struct kernels table = kernels_cpu; /* not by name: bf16 is what was asked for */
        struct golden_opts o = {.engine = {.model = m->draft ? target : dir, .draft = m->draft ? dir
                                           : NULL,
                                           .device = "cpu", .threads = test_threads()}};
        must_notice(m, &o);
        o.engine.backend = &table;
        o.engine.precision = "bf16";
        if (i >= FINE && i % (size_t)rounds(4, 1) == 0)
            must_notice(m, &o);
        scratch_remove(dir);
        free(target);
    }
}

static struct pair pairs[] = {
    {"gemma2-b", NULL},
    {"gemma2-c", NULL},       /* caps that bite, a window of one */
    {"gemma3-b", NULL},
    {"gemma3-mm-b", NULL},    /* inside a multimodal folder, older rope spelling */
    {"gemma4-ple-b", NULL},   /* per-layer embeddings, shared K and V, double-wide MLPs */
    {"gemma4-moe-b", NULL},   /* experts beside the dense MLP, K as V */
    {"gptoss-plain-b", NULL}, /* bf16 experts */
    {"gptoss-mxfp4-b", NULL}, /* packed experts, shards numbered from 0, older rope spelling */
    {"olmo3-b", NULL},
    {"qwen3-b", NULL},
    {"qwen2-b", NULL},        /* biases of q, k and v; the last layers slide */
    {"llama-b", NULL},
    {"mistral-b", NULL},
    {"olmo2-b", NULL},
    {"smollm3-b", NULL},        /* layers without rope, which slide */
    {"exaone4-b", NULL},        /* full layers without rope */
    {"ministral3-b", NULL},     /* below text_config; a factor of queries by position */
    {"phi3-b", NULL},           /* fused matrices; a part of each head rotated */
    {"qwen3moe-b", NULL},       /* experts beside dense layers, softmax over all */
    {"qwen3moe-c", NULL},       /* softmax over the chosen */
    {"mellum-b", NULL},         /* a rope for each layer type, dense layers */
    {"granite-b", NULL},        /* sinks, multipliers, two thetas and layers without rope */
    {"granitemoe-b", NULL},     /* experts beside a shared MLP */
    {"cohere2-b", NULL},        /* a parallel block behind a layer norm, neighbours rotated */
    {"phi3-short-b", NULL},     /* longrope, below its original context */
    {"phi3-long-b", NULL},      /* and beyond */
    {"afmoe-b", NULL},          /* a gate by element; experts by sigmoids and a bias, shared ones */
    {"laguna-b", NULL},         /* a gate and a number of heads by head and layer; a capped
                                   router */
    {"laguna-c", NULL},         /* a gate by element; a dense layer between sparse ones */
    {"muse-b", NULL},           /* a normalised embedding; q and k normalised without weights */
    {"mimo-b", NULL},           /* values narrower than keys, sinks and KV heads by layer */
    {"llama4-b", NULL},         /* chunks, weights of experts' inputs, queries by position */
    {"step-b", NULL},           /* heads by layer type, clamped MLPs, a gate by head */
    {"gemma4-unified-b", NULL}, /* shared K and V, K as V, double-wide MLPs */
    {"olmo3-b", "eagle3-redhat-b"},        /* speculators: norm before residual, input_norm */
    {"gptoss-plain-b", "eagle3-nvidia-b"}, /* own window and YaRN; the target's head and table */
    {"qwen3-b", "eagle3-deep-b"},          /* three layers, another width, fc_norm, norm_output */
    {"llama-b", "peagle-b"},      /* AWS's layout, two layers; a draft vocabulary */
    {"gemma3-b", "peagle-swa-b"}, /* speculators: a window as wide as there are depths, fc_norm */
    {"qwen3-b", "dflash-b"},      /* z-lab's layout; the target's head and table */
    {"gemma3-b", "dflash-swa-b"}, /* speculators: causal sliding layers, draft vocabulary, YaRN */
    {"qwen3-b", "dspark-b"},      /* DeepSpec's layout; its own head and table */
    {"gemma3-b", "dspark-gated-b"}, /* speculators: a gated bias, draft vocabulary */
    {"qwen3-b", "dflash2-b"},     /* z-lab's layout: multiplied and capped logits */
    {"gemma3-b", "dflash2-swa-b"}, /* speculators: three taps, guesses from the anchor */
    {"gemma4-moe-b", "assistant-moe-b"},   /* frozen KV over K-as-V layers */
    {"gemma4-unified-b", "assistant-unified-b"},
};

int main(void)
{
    enum { N = sizeof pairs / sizeof *pairs };
    struct CMUnitTest tests[N + 1];
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){
            .name = xasprintf("test_%s%s%s_equals_its_reference", pairs[i].target,
                              pairs[i].draft ? "_with_" : "", pairs[i].draft ? pairs[i].draft : ""),
            .test_func = test_equals_its_reference, .initial_state = &pairs[i]};
    tests[N] = (struct CMUnitTest)cmocka_unit_test(test_one_wrong_switch_is_noticed);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < N; i++)
        free((char *)tests[i].name);
    return failed;
}
