#!/usr/bin/env python3
"""Makes small random checkpoints in Hugging Face layout with reference tensors beside them.

  python3 tests/golden/make_target.py [NAME...]            writes the fixtures, tests/golden/NAME/
  python3 tests/golden/make_target.py --vary N --out DIR [--seed S] [--edges] [FAMILY...]
                                                           writes N odd-sized cases of each family;
                                                           --edges: the prompt ends next to the
                                                           window's or a page's edge
  for d in DIR/*/; do aerie golden $d; done                compares them

The reference is transformers itself (made with 5.23), eager, in float32, from the bf16 or MXFP4
weights that are stored: input_ids [L], logits [L, V], hidden_states [layers + 1, L, H] (entry i
enters layer i, the last one is after the final norm), greedy_ids [N] by full recomputation,
greedy_margin [N] (top-1 minus top-2 logit). How far transformers in bf16 is from that is printed,
for comparison with `aerie golden --precision bf16`. Sizes are odd on purpose: no power of two,
heads that do not divide the hidden size, windows shorter than the prompt. To add a family, add a
line to CASES and a vary_ function.
"""
import argparse
import json
import os
import random
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = dict(vocab_size=131, hidden_size=48, intermediate_size=72, num_attention_heads=6,
            num_key_value_heads=2, num_hidden_layers=4, max_position_embeddings=512,
            pad_token_id=0, bos_token_id=1, eos_token_id=2)
YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=32.0,
            beta_slow=1.0, rope_theta=500000.0)
SLIDE, FULL = "sliding_attention", "full_attention"

CLASS = {
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM"),
    "gptoss": ("GptOssConfig", "GptOssForCausalLM"),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "ministral": ("MinistralConfig", "MinistralForCausalLM"),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM"),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM"),
    "exaone4": ("Exaone4Config", "Exaone4ForCausalLM"),
    "ministral3": ("Ministral3Config", "Ministral3ForCausalLM"),
    "gemma4unified": ("Gemma4UnifiedTextConfig", "Gemma4UnifiedForCausalLM"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM"),
    "qwen3moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "mellum": ("MellumConfig", "MellumForCausalLM"),
    "granite": ("GraniteSWAConfig", "GraniteSWAForCausalLM"),
    "granitemoe": ("GraniteMoeSWAConfig", "GraniteMoeSWAForCausalLM"),
    "cohere2": ("Cohere2Config", "Cohere2ForCausalLM"),
    "afmoe": ("AfmoeConfig", "AfmoeForCausalLM"),
    "laguna": ("LagunaConfig", "LagunaForCausalLM"),
    "muse": ("MuseGlimmerConfig", "MuseGlimmerForConditionalGeneration"),
    "mimo": ("MiMoV2FlashConfig", "MiMoV2FlashForCausalLM"),
    "llama4": ("Llama4TextConfig", "Llama4ForCausalLM"),
    "step": ("Step3p7Config", "Step3p7ForConditionalGeneration"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
}
# model_type of the multimodal folder that contains such a text model
OUTER = {"gemma3": "gemma3", "gemma4": "gemma4", "gemma4unified": "gemma4_unified",
         "mistral": "mistral3", "ministral3": "mistral3", "exaone4": "exaone4_5",
         "llama4": "llama4"}

# How the folder is written, beside what transformers writes by itself:
#   mxfp4     experts packed in blocks of 32
#   shards    that many files behind an index, numbered from 0 as gpt-oss's are
#   old_rope  rope_theta, rope_scaling and rope_local_base_freq in place of rope_parameters
#   wrap      the prefix of a multimodal folder; the config below text_config, a vision tensor too
#   prompt    tokens of the prompt
OPTIONS = ("mxfp4", "shards", "old_rope", "wrap", "prompt")

LONG = dict(hidden_size=60, num_hidden_layers=3, max_position_embeddings=2048, prompt=37,
            rope_parameters=dict(
                rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.8,
                short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[1.5, 2.0, 5.0, 9.0]))

# name: (family, what differs from BASE); new ones at the end, seeds go by place
CASES = {
    "gemma2-b": ("gemma2", dict(head_dim=10, sliding_window=5, query_pre_attn_scalar=12)),
    "gemma3-b": ("gemma3", dict(
        head_dim=10, sliding_window=7, query_pre_attn_scalar=12, layer_types=[SLIDE, FULL] * 2,
        rope_parameters={FULL: dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                         SLIDE: dict(rope_type="default", rope_theta=1e4)})),
    "gemma4-moe-b": ("gemma4", dict(
        layer_types=[SLIDE] * 3 + [FULL], head_dim=10, global_head_dim=16, sliding_window=5,
        attention_k_eq_v=True, num_global_key_value_heads=3, hidden_size_per_layer_input=0,
        enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=12,
        final_logit_softcapping=30.0)),
    "gptoss-plain-b": ("gptoss", dict(head_dim=10, num_local_experts=5, num_experts_per_tok=2,
                                      intermediate_size=24, sliding_window=5)),
    "olmo3-b": ("olmo3", dict(sliding_window=5, rope_parameters={
        FULL: YARN, SLIDE: dict(rope_type="default", rope_theta=500000.0)})),
    "qwen3-b": ("qwen3", dict(head_dim=10, num_hidden_layers=3)),
    "llama-b": ("llama", dict(attention_bias=True, num_hidden_layers=3, rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=64))),
    "mistral-b": ("mistral", dict(num_hidden_layers=3, sliding_window=6)),
    "gemma2-c": ("gemma2", dict(  # caps that bite, a window of one
        head_dim=24, sliding_window=1, query_pre_attn_scalar=9, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0, num_attention_heads=3, num_key_value_heads=1,
        num_hidden_layers=3, layer_types=[FULL, SLIDE, FULL], prompt=37)),
    "gemma3-mm-b": ("gemma3", dict(
        head_dim=24, sliding_window=13, num_attention_heads=3, num_key_value_heads=1,
        hidden_size=48, query_pre_attn_scalar=20, num_hidden_layers=3, vocab_size=157,
        layer_types=[SLIDE, SLIDE, FULL], wrap="language_model.model.", old_rope=True, prompt=37,
        rope_parameters={FULL: dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                         SLIDE: dict(rope_type="default", rope_theta=1e4)})),
    "gemma4-ple-b": ("gemma4", dict(
        layer_types=[SLIDE, FULL, SLIDE, SLIDE, FULL], num_hidden_layers=5, head_dim=10,
        global_head_dim=24, sliding_window=8, num_attention_heads=3, num_key_value_heads=1,
        hidden_size_per_layer_input=6, vocab_size_per_layer_input=131, num_kv_shared_layers=3,
        use_double_wide_mlp=True, hidden_size=40, intermediate_size=36,
        final_logit_softcapping=30.0, wrap="model.language_model.")),
    "gptoss-mxfp4-b": ("gptoss", dict(
        head_dim=12, num_local_experts=7, num_experts_per_tok=3, hidden_size=64,
        intermediate_size=32, num_attention_heads=3, num_key_value_heads=1, sliding_window=6,
        num_hidden_layers=3, layer_types=[SLIDE, FULL, SLIDE], mxfp4=True, shards=3, old_rope=True,
        prompt=41, rope_parameters=dict(
            rope_type="yarn", factor=32.0, original_max_position_embeddings=256, beta_fast=32.0,
            beta_slow=1.0, truncate=False, rope_theta=100.0))),
    "olmo2-b": ("olmo2", dict(num_hidden_layers=3, attention_bias=True, old_rope=True,
                              rope_parameters=YARN)),
    "smollm3-b": ("smollm3", dict(  # layers without rope, which slide
        head_dim=10, num_hidden_layers=5, no_rope_layers=[1, 0, 1, 1, 0], use_sliding_window=True,
        sliding_window=5)),
    "exaone4-b": ("exaone4", dict(  # full layers without rope
        head_dim=10, sliding_window=5, sliding_window_pattern=2, rope_parameters=dict(
            rope_type="llama3", rope_theta=1e6, factor=16.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=64))),
    "ministral3-b": ("ministral3", dict(  # queries beyond position 15 get a factor
        head_dim=10, num_hidden_layers=3, prompt=41, wrap="language_model.model.",
        rope_parameters=dict(rope_type="yarn", rope_theta=1e6, factor=16.0, beta_fast=32.0,
                             beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                             original_max_position_embeddings=16, llama_4_scaling_beta=0.4))),
    "gemma4-unified-b": ("gemma4unified", dict(
        layer_types=[SLIDE, FULL, SLIDE, SLIDE, FULL], num_hidden_layers=5, head_dim=10,
        global_head_dim=16, sliding_window=7, attention_k_eq_v=True, num_global_key_value_heads=3,
        num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size=40, intermediate_size=36,
        wrap="model.language_model.")),
    "phi3-b": ("phi3", dict(  # fused matrices, a part of each head rotated
        hidden_size=60, num_hidden_layers=3, sliding_window=6,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.8))),
    "qwen3moe-b": ("qwen3moe", dict(  # weights of experts that do not add up to 1, dense layers
        head_dim=10, num_hidden_layers=5, num_experts=7, num_experts_per_tok=3,
        moe_intermediate_size=20, decoder_sparse_step=1, mlp_only_layers=[1],
        use_sliding_window=True, sliding_window=9)),
    "qwen3moe-c": ("qwen3moe", dict(  # weights that do; every second layer
        head_dim=16, num_hidden_layers=4, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=12, decoder_sparse_step=2, norm_topk_prob=True,
        attention_bias=True)),
    "mellum-b": ("mellum", dict(  # a rope for each layer type, dense layers
        head_dim=16, num_hidden_layers=4, sliding_window=6, layer_types=[SLIDE, FULL] * 2,
        mlp_layer_types=["sparse", "dense", "sparse", "sparse"], num_experts=6,
        num_experts_per_tok=3, moe_intermediate_size=16, rope_parameters={
            FULL: YARN,
            SLIDE: dict(rope_type="default", rope_theta=1e4)})),
    "granite-b": ("granite", dict(  # two thetas and layers without rope
        num_hidden_layers=6, sliding_window=5, layer_rope_theta=[0, 1e4, 5e5, 1e4, 0, 5e5],
        embedding_multiplier=3.0, logits_scaling=1.7, residual_multiplier=0.6,
        attention_multiplier=0.4)),
    "granitemoe-b": ("granitemoe", dict(  # experts beside a shared MLP
        intermediate_size=20, num_hidden_layers=5, sliding_window=7, num_local_experts=5,
        num_experts_per_tok=2, shared_intermediate_size=28, embedding_multiplier=2.0,
        logits_scaling=0.7, residual_multiplier=0.5, attention_multiplier=0.3)),
    "cohere2-b": ("cohere2", dict(  # a parallel block behind a layer norm, full layers without rope
        hidden_size=60, num_hidden_layers=5, sliding_window=5, logit_scale=0.4,
        attention_bias=True, layer_types=[SLIDE, FULL, SLIDE, SLIDE, FULL])),
    "phi3-short-b": ("phi3", dict(LONG, original_max_position_embeddings=256)),
    "phi3-long-b": ("phi3", dict(LONG, original_max_position_embeddings=16)),
    "afmoe-b": ("afmoe", dict(  # a gate by element, experts chosen by sigmoids and a bias
        head_dim=10, num_hidden_layers=5, sliding_window=5, global_attn_every_n_layers=3,
        num_dense_layers=2, num_experts=7, num_experts_per_tok=3, num_shared_experts=2,
        moe_intermediate_size=12, route_scale=1.7, mup_enabled=True)),
    "laguna-b": ("laguna", dict(  # heads by layer, a gate by head, a soft-cap of the router
        head_dim=12, num_hidden_layers=5, sliding_window=6,
        layer_types=[FULL, SLIDE, SLIDE, FULL, SLIDE], num_attention_heads_per_layer=[6, 4, 2, 8, 6],
        num_experts=7, num_experts_per_tok=3, moe_intermediate_size=12,
        shared_expert_intermediate_size=20, moe_routed_scaling_factor=1.6,
        moe_router_logit_softcapping=1.5, rope_parameters={
            FULL: dict(YARN, partial_rotary_factor=0.5),
            SLIDE: dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0)})),
    "laguna-c": ("laguna", dict(  # a gate by element, the default rope
        head_dim=8, num_hidden_layers=3, gating="per-element", num_experts=5,
        num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=8,
        mlp_layer_types=["sparse", "dense", "sparse"])),
    "muse-b": ("muse", dict(  # a normalised embedding, q and k normalised without weights
        head_dim=10, num_hidden_layers=6, sliding_window=5, qk_scale_factor=2.5, prompt=31,
        output_multiplier=0.6, final_logit_softcapping=3.0, post_norm_eps=1e-3)),
    "mimo-b": ("mimo", dict(  # values narrower than keys, sinks and more KV heads in sliding layers
        head_dim=18, v_head_dim=10, num_attention_heads=4, num_key_value_heads=1,
        num_hidden_layers=5, sliding_window=6, layer_types=[FULL, SLIDE, SLIDE, FULL, SLIDE],
        n_routed_experts=7, num_experts_per_tok=3, moe_intermediate_size=12,
        routed_scaling_factor=1.4)),
    "llama4-b": ("llama4", dict(  # chunks, weights of experts' inputs, queries that get a factor
        head_dim=10, num_hidden_layers=6, attention_chunk_size=7, no_rope_layer_interval=3,
        floor_scale=5, attn_scale=0.4, intermediate_size=20, intermediate_size_mlp=28,
        interleave_moe_layer_step=2, num_local_experts=5, num_experts_per_tok=2, prompt=33,
        wrap="language_model.model.", rope_parameters=dict(
            rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=64))),
    "step-b": ("step", dict(  # heads by layer type, clamped MLPs, a gate by head
        head_dim=12, num_hidden_layers=5, layer_types=[FULL, SLIDE, SLIDE, FULL, SLIDE],
        num_sliding_attention_heads=4, sliding_window=5, n_routed_experts=7,
        num_experts_per_tok=3, moe_intermediate_size=12, share_expert_dim=20,
        moe_router_scaling_factor=1.4, swiglu_limits=[0, 0, 0, 0.5, 0.7],
        swiglu_limits_shared=[0, 0, 0.6, 0, 0.4], moe_layers_enum="1,3,4",
        rope_theta=[5e5, 1e4, 1e4, 5e5, 1e4], partial_rotary_factors=[0.5, 1.0, 1.0, 0.5, 1.0],
        rope_scaling=dict(rope_type="llama3", factor=2.0, low_freq_factor=1.0,
                          high_freq_factor=32.0, original_max_position_embeddings=64))),
    "qwen2-b": ("qwen2", dict(  # biases of q, k and v; windows in the last layers
        use_sliding_window=True, sliding_window=5, max_window_layers=2,
        old_rope=True, rope_parameters=dict(YARN, truncate=True))),
}


# ---- odd sizes by chance -------------------------------------------------------------------------

def sizes(r):
    kv = r.choice([1, 2, 3, 5])
    return dict(vocab_size=r.choice([97, 131, 260, 523]),
                hidden_size=r.choice([40, 48, 72, 80, 96]),
                intermediate_size=r.choice([36, 56, 100, 160]), num_key_value_heads=kv,
                num_attention_heads=kv * r.choice([1, 2, 3, 4]),
                head_dim=r.choice([8, 10, 16, 24, 32]),
                num_hidden_layers=r.randint(1, 9), max_position_embeddings=r.choice([512, 4096]),
                rms_norm_eps=r.choice([1e-6, 1e-5]), prompt=r.choice([3, 17, 48, 77, 110]),
                shards=r.choice([0, 0, 2, 3]))


def window(r):
    return r.choice([1, 2, 5, 8, 13, 31, 200])


def types(r, n, last_full=False):
    t = r.choice([[SLIDE, FULL], [SLIDE] * 3 + [FULL], [SLIDE] * 5 + [FULL], [FULL, SLIDE, SLIDE],
                  [SLIDE], [FULL], r.choices([SLIDE, FULL], k=n)])
    t = (t * n)[:n]
    return t[:-1] + [FULL] if last_full else t


def rope(r, kinds=("default", "linear", "yarn", "llama3")):
    kind, p = r.choice(kinds), dict(rope_theta=r.choice([1e4, 1.5e5, 5e5, 1e6]))
    if kind != "default":
        p["factor"] = r.choice([1.0, 2.0, 8.0, 32.0])
    if kind in ("yarn", "llama3"):
        p["original_max_position_embeddings"] = r.choice([16, 64, 256])
    if kind == "yarn":
        for key, values in (("beta_fast", [32.0, 8.0]), ("beta_slow", [1.0, 2.0]),
                            ("truncate", [True, False]), ("attention_factor", [1.2, 0.9])):
            if r.random() < 0.5:
                p[key] = r.choice(values)
        if "attention_factor" not in p and r.random() < 0.4:
            p.update(mscale=r.choice([1.0, 0.7]), mscale_all_dim=r.choice([1.0, 0.8]))
    if kind == "llama3":
        p.update(low_freq_factor=1.0, high_freq_factor=r.choice([2.0, 4.0]))
    return dict(rope_type=kind, **p)


def two_ropes(r, full):
    return {FULL: full, SLIDE: dict(rope_type="default", rope_theta=r.choice([1e4, 5e5]))}


def vary_gemma2(r, d):
    return dict(sliding_window=window(r), query_pre_attn_scalar=r.choice([7, 24, 256]),
                attn_logit_softcapping=r.choice([50.0, 2.0, None]),
                final_logit_softcapping=r.choice([30.0, 3.0, None]),
                layer_types=types(r, d["num_hidden_layers"]))


def vary_gemma3(r, d):
    return dict(sliding_window=window(r), query_pre_attn_scalar=r.choice([7, 24, 168]),
                layer_types=types(r, d["num_hidden_layers"]), old_rope=r.random() < 0.5,
                wrap=r.choice([None, "language_model.model.", "model.language_model."]),
                rope_parameters=two_ropes(r, rope(r, ("default", "linear"))))


def vary_gemma4(r, d):
    n, kind = d["num_hidden_layers"] + 1, r.choice(["dense", "ple", "moe"])
    heads = d["num_attention_heads"]
    t = types(r, n, True)
    x = dict(num_hidden_layers=n, layer_types=t, global_head_dim=r.choice([8, 16, 24, 48]),
             sliding_window=window(r), hidden_size_per_layer_input=0,
             wrap=r.choice([None, "model.language_model."]),
             final_logit_softcapping=r.choice([None, 30.0, 2.0]))
    if kind == "ple":
        shared = [s for s in range(n) if set(t[:n - s]) == set(t)]
        x.update(hidden_size_per_layer_input=r.choice([4, 6, 12]),
                 vocab_size_per_layer_input=d["vocab_size"],
                 num_kv_shared_layers=r.choice(shared), use_double_wide_mlp=r.random() < 0.5)
    elif r.random() < 0.7:
        x.update(attention_k_eq_v=True, num_global_key_value_heads=r.choice(
            [k for k in range(1, heads + 1) if heads % k == 0]))
    if kind == "moe":
        e = r.choice([3, 8, 13])
        x.update(enable_moe_block=True, num_experts=e, top_k_experts=r.randint(1, e),
                 moe_intermediate_size=r.choice([12, 20, 33]))
    return x


def vary_gptoss(r, d):
    n, e, mx = d["num_hidden_layers"], r.choice([2, 4, 7, 32]), r.random() < 0.6
    p = rope(r, ("yarn", "yarn", "default"))
    x = dict(num_local_experts=e, num_experts_per_tok=r.randint(1, min(e, 4)), mxfp4=mx,
             sliding_window=window(r), layer_types=types(r, n), rope_parameters=p,
             # the older spelling's null means this family's own YaRN
             old_rope=p["rope_type"] == "yarn" and r.random() < 0.6,
             swiglu_limit=r.choice([7.0, 1.0]), intermediate_size=r.choice([24, 40]))
    if mx:
        x.update(hidden_size=r.choice([32, 64, 96]), intermediate_size=r.choice([32, 96]))
    return x


def vary_olmo3(r, d):
    return dict(sliding_window=window(r), layer_types=types(r, d["num_hidden_layers"]),
                rope_parameters=two_ropes(r, rope(r, ("default", "yarn"))))


def vary_qwen3(r, d):
    return dict(rope_parameters=rope(r), attention_bias=r.random() < 0.3, old_rope=r.random() < 0.5,
                tie_word_embeddings=r.random() < 0.5, use_sliding_window=r.random() < 0.5,
                sliding_window=window(r), max_window_layers=r.randint(0, d["num_hidden_layers"]))


def vary_qwen2(r, d):
    d = vary_qwen3(r, d)
    del d["attention_bias"]
    return d


def vary_llama(r, d):
    return dict(rope_parameters=rope(r), attention_bias=r.random() < 0.3,
                old_rope=r.random() < 0.5, tie_word_embeddings=r.random() < 0.5)


def vary_mistral(r, d):
    return dict(sliding_window=r.choice([None, window(r)]), rope_parameters=rope(r))


def vary_ministral(r, d):
    return dict(sliding_window=window(r), layer_types=types(r, d["num_hidden_layers"]),
                rope_parameters=rope(r))


def vary_olmo2(r, d):
    return dict(rope_parameters=rope(r), attention_bias=r.random() < 0.3, old_rope=r.random() < 0.5)


def vary_smollm3(r, d):
    n = d["num_hidden_layers"]
    return dict(rope_parameters=rope(r), attention_bias=r.random() < 0.3, old_rope=r.random() < 0.5,
                tie_word_embeddings=r.random() < 0.5, use_sliding_window=r.random() < 0.5,
                sliding_window=r.choice([None, window(r)]), no_rope_layer_interval=r.choice([1, 2, 4]),
                no_rope_layers=r.choice([None, r.choices([0, 1], k=n)]))


def vary_exaone4(r, d):
    n = d["num_hidden_layers"]
    return {**dict(rope_parameters=rope(r), old_rope=r.random() < 0.5, sliding_window=window(r),
                   tie_word_embeddings=r.random() < 0.5,
                   wrap=r.choice([None, "model.language_model."])),
            **r.choice([dict(layer_types=types(r, n)),
                        dict(sliding_window_pattern=r.choice([1, 2, 3, 4])),
                        dict(sliding_window=None, layer_types=[FULL] * n)])}


def vary_ministral3(r, d):
    p = dict(rope(r, ("yarn",)), llama_4_scaling_beta=r.choice([0.0, 0.1, 1.0]))
    return dict(sliding_window=r.choice([None, window(r)]), rope_parameters=p,
                tie_word_embeddings=r.random() < 0.5,
                wrap=r.choice([None, "language_model.model.", "model.language_model."]))


def vary_gemma4unified(r, d):
    n, heads = d["num_hidden_layers"] + 1, d["num_attention_heads"]
    t = types(r, n, True)
    x = dict(num_hidden_layers=n, layer_types=t, global_head_dim=r.choice([8, 16, 24, 48]),
             sliding_window=window(r), wrap=r.choice([None, "model.language_model."]),
             num_kv_shared_layers=r.choice([s for s in range(n) if set(t[:n - s]) == set(t)]),
             use_double_wide_mlp=r.random() < 0.5, final_logit_softcapping=r.choice([None, 2.0]))
    if r.random() < 0.7:
        x.update(attention_k_eq_v=True, num_global_key_value_heads=r.choice(
            [k for k in range(1, heads + 1) if heads % k == 0]))
    return x


def vary_phi3(r, d):
    heads = d["num_attention_heads"]
    width = r.choice([8, 16, 24])
    return dict(head_dim=width, hidden_size=heads * width, sliding_window=r.choice([None, window(r)]),
                rope_parameters=dict(rope_type="default", rope_theta=r.choice([1e4, 2.5e5]),
                                     partial_rotary_factor=r.choice([1.0, 0.5, 0.75])),
                tie_word_embeddings=r.random() < 0.5)


def vary_qwen3moe(r, d):
    n, e = d["num_hidden_layers"], r.choice([3, 8, 13])
    return dict(num_experts=e, num_experts_per_tok=r.randint(1, min(e, 4)),
                moe_intermediate_size=r.choice([12, 20, 32]), norm_topk_prob=r.random() < 0.5,
                decoder_sparse_step=r.choice([1, 1, 2]),
                mlp_only_layers=r.choice([[], [r.randrange(n)]]), rope_parameters=rope(r),
                attention_bias=r.random() < 0.3, use_sliding_window=r.random() < 0.5,
                sliding_window=window(r), tie_word_embeddings=r.random() < 0.5)


def vary_mellum(r, d):
    n, e = d["num_hidden_layers"], r.choice([3, 8, 13])
    ropes = {t: rope(r) for t in (FULL, SLIDE)}
    for p in ropes.values():
        p.pop("truncate", None)
    return dict(num_experts=e, num_experts_per_tok=r.randint(1, min(e, 4)),
                moe_intermediate_size=r.choice([12, 20, 32]), norm_topk_prob=r.random() < 0.5,
                mlp_layer_types=r.choice([None, r.choices(["dense", "sparse"], k=n)]),
                attention_bias=r.random() < 0.3, layer_types=types(r, n), sliding_window=window(r),
                rope_parameters=ropes)


def vary_granite(r, d):
    n, thetas = d["num_hidden_layers"], [0] + r.choice([[1e4], [1e4, 5e5]])
    return dict(sliding_window=window(r), layer_types=r.choice([None, types(r, n)]),
                layer_rope_theta=r.choice([None, r.choices(thetas, k=n)]),
                embedding_multiplier=r.choice([1.0, 3.0]), rope_parameters=rope(r),
                logits_scaling=r.choice([1.0, 8.0, 0.5]), attention_bias=r.random() < 0.3,
                residual_multiplier=r.choice([1.0, 0.22]), tie_word_embeddings=r.random() < 0.5,
                attention_multiplier=r.choice([1.0, 0.3]))


def vary_granitemoe(r, d):
    e = r.choice([3, 8, 13])
    return dict(vary_granite(r, d), num_local_experts=e,
                num_experts_per_tok=r.randint(1, min(e, 4)),
                shared_intermediate_size=r.choice([0, 24, 36]))


def vary_cohere2(r, d):
    n, width = d["num_hidden_layers"], r.choice([8, 10, 16, 24])
    return dict(hidden_size=d["num_attention_heads"] * width, head_dim=width,
                layer_norm_eps=r.choice([1e-5, 1e-3]), logit_scale=r.choice([0.0625, 1.0, 0.25]),
                rope_parameters=rope(r), attention_bias=r.random() < 0.3, old_rope=r.random() < 0.5,
                sliding_window=window(r), tie_word_embeddings=r.random() < 0.5,
                layer_types=r.choice([None, types(r, n)]))


def vary_afmoe(r, d):
    n, e = d["num_hidden_layers"], r.choice([3, 8, 13])
    return dict(num_experts=e, num_experts_per_tok=r.randint(1, min(e, 4)),
                moe_intermediate_size=r.choice([12, 20, 32]), num_shared_experts=r.choice([1, 2]),
                num_dense_layers=r.randint(0, n), mup_enabled=r.random() < 0.5,
                route_scale=r.choice([1.0, 2.5]), rope_parameters=rope(r), sliding_window=window(r),
                attention_bias=r.random() < 0.3, old_rope=r.random() < 0.5,
                tie_word_embeddings=r.random() < 0.3,
                **r.choice([dict(layer_types=types(r, n)),
                            dict(global_attn_every_n_layers=r.choice([1, 2, 4]))]))


def vary_laguna(r, d):
    n, e, kv = d["num_hidden_layers"], r.choice([3, 8, 13]), d["num_key_value_heads"]
    ropes = {t: dict(rope(r), partial_rotary_factor=p) for t, p in ((FULL, 0.5), (SLIDE, 1.0))}
    for p in ropes.values():
        p.pop("truncate", None)
    return dict(num_experts=e, num_experts_per_tok=r.randint(1, min(e, 4)),
                head_dim=r.choice([8, 12, 16, 24]), gating=r.choice([True, "per-head", "per-element"]),
                moe_intermediate_size=r.choice([12, 20, 32]),
                shared_expert_intermediate_size=r.choice([8, 24]),
                mlp_layer_types=r.choice([None, r.choices(["dense", "sparse"], k=n)]),
                num_attention_heads_per_layer=r.choice(
                    [None, [kv * r.choice([1, 2, 3]) for _ in range(n)]]),
                moe_routed_scaling_factor=r.choice([1.0, 2.5]),
                moe_router_logit_softcapping=r.choice([0.0, 2.0]), sliding_window=window(r),
                layer_types=types(r, n), rope_parameters=r.choice([None, ropes]))


def vary_muse(r, d):
    n = d["num_hidden_layers"]
    return dict(sliding_window=window(r), layer_types=r.choice([None, types(r, n)]),
                hidden_size=d["num_attention_heads"] * 24, rope_parameters=rope(r),
                layer_rope_theta=r.choice([None, r.choices([0, 1e4], k=n)]),
                qk_scale_factor=r.choice([1.0, 3.87]), output_multiplier=r.choice([1.0, 0.2]),
                final_logit_softcapping=r.choice([20.0, 2.0]), attention_bias=r.random() < 0.3,
                tie_word_embeddings=r.random() < 0.3)


def vary_mimo(r, d):
    n, e, kv = d["num_hidden_layers"], r.choice([3, 8, 13]), d["num_key_value_heads"]
    ropes = {t: dict(rope(r), partial_rotary_factor=0.5) for t in (FULL, SLIDE)}
    for p in ropes.values():
        p.pop("truncate", None)
    return dict(n_routed_experts=e, num_experts_per_tok=r.randint(1, min(e, 4)),
                head_dim=r.choice([12, 16, 24]), v_head_dim=r.choice([8, 10, 12]),
                num_attention_heads=2 * kv * r.choice([1, 2]), attention_bias=r.random() < 0.3,
                moe_intermediate_size=r.choice([12, 20, 32]), norm_topk_prob=r.random() < 0.7,
                mlp_layer_types=r.choice([None, r.choices(["dense", "sparse"], k=n)]),
                routed_scaling_factor=r.choice([None, 1.0, 2.5]), sliding_window=window(r),
                attention_value_scale=r.choice([None, 0.707]),
                layer_types=r.choice([None, types(r, n)]), rope_parameters=r.choice([None, ropes]))


def vary_llama4(r, d):
    n, e = d["num_hidden_layers"], r.choice([3, 8, 13])
    return dict(num_local_experts=e, num_experts_per_tok=r.randint(1, min(e, 3)),
                intermediate_size=r.choice([12, 20, 32]), intermediate_size_mlp=r.choice([20, 28]),
                interleave_moe_layer_step=r.choice([1, 2]), use_qk_norm=r.random() < 0.5,
                attention_chunk_size=r.choice([None, window(r)]), attention_bias=r.random() < 0.3,
                attn_temperature_tuning=r.random() < 0.7, floor_scale=r.choice([5, 8192]),
                no_rope_layer_interval=r.choice([2, 3, 4]), rope_parameters=rope(r),
                tie_word_embeddings=r.random() < 0.3, old_rope=r.random() < 0.5,
                wrap=r.choice([None, "language_model.model."]))


def vary_step(r, d):
    n, e, kv = d["num_hidden_layers"], r.choice([3, 8, 13]), d["num_key_value_heads"]
    ropes = {t: dict(rope(r), partial_rotary_factor=r.choice([0.5, 1.0])) for t in (FULL, SLIDE)}
    for p in ropes.values():
        p.pop("truncate", None)
    return dict(n_routed_experts=e, num_experts_per_tok=r.randint(1, min(e, 4)),
                head_dim=r.choice([8, 12, 16, 24]), share_expert_dim=r.choice([8, 24]),
                num_sliding_attention_heads=r.choice([None, kv * r.choice([1, 2, 3])]),
                moe_intermediate_size=r.choice([12, 20, 32]), layer_types=types(r, n),
                moe_router_scaling_factor=r.choice([1.0, 2.5]), sliding_window=window(r),
                mlp_layer_types=r.choices(["dense", "sparse"], k=n), rope_parameters=ropes,
                swiglu_limits=r.choice([None, r.choices([0, 0.5, 7.0], k=n)]),
                swiglu_limits_shared=r.choice([None, r.choices([0, 0.4, 7.0], k=n)]))


VARY = {f: globals()["vary_" + f] for f in CLASS}


def varied(family, seed):
    """The first draw that transformers takes: in some families heads divide the hidden size."""
    r = random.Random(f"{family} {seed}")
    while True:
        d = sizes(r)
        d.update(VARY[family](r, d))
        try:
            getattr(transformers, CLASS[family][0])(
                **nested(family, {**BASE, **{k: v for k, v in d.items() if k not in OPTIONS}}))
            return family, d
        except Exception as e:
            if "not a multiple" not in str(e):
                raise


def edged(d, seed):
    """The same with a window of one, two or about a page, and a prompt that ends at its edge, at
    twice its length or at a page's edge, or one token before or behind that."""
    r = random.Random(f"edges {seed}")
    wide = r.choice([1, 2, 3, 15, 16, 17, 32])
    for key in ("sliding_window", "attention_chunk_size"):
        if d.get(key):
            d[key] = wide
    return dict(d, prompt=max(1, r.choice([wide, 2 * wide, 16, 32]) + r.choice([-1, 0, 1])))


# ---- weights -------------------------------------------------------------------------------------

@torch.no_grad()
def randomise(model, seed):
    """Weights large enough that layers matter and the best token stands out."""
    g = torch.Generator().manual_seed(seed)
    ones = type(model).__name__ not in ("Gemma2ForCausalLM", "Gemma3ForCausalLM")  # they add 1
    muse = type(model).__name__.startswith("Muse")  # adds 1 but for the last norm
    ones &= not type(model).__name__.startswith("Step")
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if "inv_freq" in name or "embed_scale" in name:
            continue
        r = torch.randn(p.shape, generator=g)
        if "norm" in name or "scale" in name or "scalar" in name:
            r = (1.0 if ones and not (muse and "layers." in name) else 0.0) + 0.2 * r
        elif "embed" in name:
            r = r * p.shape[-1] ** -0.5
        elif p.dim() >= 2:
            r = r * (p.shape[-1] if "experts" not in name else p.shape[1]) ** -0.5
        else:
            r = 0.3 * r
        p.copy_(r)


FP4 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4_pack(w):
    """(E, in, out) -> blocks (E, out, in / 32, 16), scales (E, out, in / 32), and their values."""
    x = w.float().transpose(1, 2)
    x = x.reshape(*x.shape[:2], -1, 32)
    exp = torch.floor(torch.log2(x.abs().amax(-1, keepdim=True).clamp(min=1e-30))) - 2
    code = (x / torch.exp2(exp)).unsqueeze(-1).sub(FP4).abs().argmin(-1)
    back = FP4[code] * torch.exp2(exp)
    blocks = (code[..., 0::2] | code[..., 1::2] << 4).to(torch.uint8)
    scales = (exp.squeeze(-1) + 127).to(torch.uint8)
    return blocks, scales, back.flatten(2).transpose(1, 2)


@torch.no_grad()
def quantise(model):
    """Rounds the experts to what MXFP4 holds; returns the packed tensors by name."""
    packed = {}
    for name, p in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales, back = mxfp4_pack(p)
            packed[name + "_blocks"], packed[name + "_scales"] = blocks, scales
            p.copy_(back)
    return packed


# ---- how the folder is written -------------------------------------------------------------------

def old_spelling(c):
    p = c.pop("rope_parameters")
    if FULL in p:
        c["rope_local_base_freq"] = p[SLIDE]["rope_theta"]
        p = p[FULL]
    c["rope_theta"] = p.pop("rope_theta")
    c["rope_scaling"] = None if p["rope_type"] == "default" else p


def write_shards(path, tensors, n):
    os.remove(path + "/model.safetensors")
    where = {}
    for i in range(n):
        file = f"model-{i:05}-of-{n - 1:05}.safetensors"
        part = {k: tensors[k] for k in sorted(tensors)[i::n]}
        where.update({k: file for k in part})
        save_file(part, f"{path}/{file}")
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    with open(path + "/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {"total_size": size}, "weight_map": where}, f, indent=1)


def rewrite(path, family, opt, packed):
    """Turns the folder that transformers wrote into the wanted spelling."""
    with open(path + "/config.json") as f:
        c = json.load(f)
    tensors = load_file(path + "/model.safetensors")
    if opt.get("old_rope"):
        old_spelling(c)
    if packed:
        tensors = {k: v for k, v in tensors.items()
                   if k + "_blocks" not in packed} | packed
        c["quantization_config"] = {"quant_method": "mxfp4"}
    if opt.get("wrap"):
        c = {"model_type": OUTER[family], "tie_word_embeddings": c["tie_word_embeddings"],
             "text_config": c, "vision_config": {"hidden_size": 8}}
        tensors = {k.replace("model.", opt["wrap"], 1): v for k, v in tensors.items()}
        if "lm_head.weight" in tensors and opt["wrap"].startswith("language_model."):
            tensors["language_model.lm_head.weight"] = tensors.pop("lm_head.weight")
        tensors["vision_tower.patch.weight"] = torch.ones(8, 3, dtype=torch.bfloat16)
    with open(path + "/config.json", "w") as f:
        f.write(json.dumps(c, indent=2) + "\n")
    if family in VISION:  # but for one of its tensors, which must be ignored
        out = sorted(k for k in tensors if "vi" in k.split(".")[0] + k.split(".")[1])
        tensors = {k: v for k, v in tensors.items() if k not in out[1:]}
    save_file(tensors, path + "/model.safetensors", metadata={"format": "pt"})
    if opt.get("shards"):
        write_shards(path, tensors, opt["shards"])


# ---- the reference -------------------------------------------------------------------------------

@torch.no_grad()
def reference(model, ids, n):
    out = model(input_ids=ids[None], use_cache=False, output_hidden_states=True)
    t = {"input_ids": ids.int(), "logits": out.logits[0],
         "hidden_states": torch.stack([h[0] for h in out.hidden_states])}
    cur, margin = ids, []
    for _ in range(n):
        top = model(input_ids=cur[None], use_cache=False).logits[0, -1].topk(2)
        margin.append(top.values[0] - top.values[1])
        cur = torch.cat([cur, top.indices[:1]])
    t["greedy_ids"], t["greedy_margin"] = cur[len(ids):].int(), torch.stack(margin)
    return {k: v.contiguous() for k, v in t.items()}


@torch.no_grad()
def off_in_bf16(load, ref):
    ids = ref["input_ids"][None].long()
    off = load(torch.bfloat16)(input_ids=ids, use_cache=False).logits[0].double() - ref["logits"]
    return (off.norm() / ref["logits"].norm()).item()


VISION = {"muse": dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                       num_attention_heads=2),
          "step": dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                       patch_size=14)}


def nested(family, diff):
    """The arguments of a config that has the text model's below text_config."""
    return dict(text_config=diff, vision_config=VISION[family]) if family in VISION else diff


def make(path, family, diff, seed, margin):
    """Writes one folder; false if some greedy choice is closer than `margin`."""
    config, cls = (getattr(transformers, x) for x in CLASS[family])
    diff = {**BASE, **diff}
    opt = {k: diff.pop(k) for k in OPTIONS if k in diff}
    shutil.rmtree(path, ignore_errors=True)
    model = cls(config(**nested(family, diff)))
    randomise(model, seed)
    packed = quantise(model) if opt.get("mxfp4") else {}
    model.to(torch.bfloat16).save_pretrained(path)
    os.path.exists(path + "/generation_config.json") and os.remove(path + "/generation_config.json")

    def load(dtype):
        return cls.from_pretrained(path, dtype=dtype, attn_implementation="eager",
                                   experts_implementation="eager").eval()

    ids = torch.randint(3, diff["vocab_size"], (opt.get("prompt", 29),),
                        generator=torch.Generator().manual_seed(seed))
    ref = reference(load(torch.float32), ids, 16)
    if ref["greedy_margin"].min() < margin:
        return False
    bf16 = off_in_bf16(load, ref)
    rewrite(path, family, opt, packed)
    save_file(ref, path + "/golden.safetensors")
    for f in os.listdir(path):
        os.chmod(os.path.join(path, f), 0o644)
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    print(f"{path}: {size} bytes, smallest margin {ref['greedy_margin'].min():.4f}, "
          f"transformers in bf16 off by {bf16:.4f}", flush=True)
    return True


def main():
    p = argparse.ArgumentParser()
    p.add_argument("names", nargs="*")
    p.add_argument("--vary", type=int, default=0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--edges", action="store_true")
    p.add_argument("--out")
    a = p.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if a.vary:
        for family in a.names or VARY:
            for s in range(a.seed, a.seed + a.vary):
                diff = varied(family, s)[1]
                make(f"{a.out}/{family}-{s}", family, edged(diff, s) if a.edges else diff, s, 0)
        return
    for i, name in enumerate(CASES):
        if not a.names or name in a.names:
            path = os.path.join(HERE, name)
            next(s for s in range(100 + i, 10000, 100) if make(path, *CASES[name], s, 0.01))


if __name__ == "__main__":
    main()
