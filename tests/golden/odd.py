#!/usr/bin/env python3
"""Compares aerie with transformers on odd but legal checkpoints.

  python3 tests/golden/odd.py [--aerie PROGRAM] [--out DIR] [--singles N] [--pairs N] [--seed S]
                              [--only TEXT] [BASE...]

Each case is a tiny random checkpoint whose config.json differs from a base by one key, or whose
weights are stored in another way (about 280 cases a base; --singles N draws N of them), or that
differs by two of these (--pairs N draws N). The weights are made from the config as transformers
understands it, so that they fit. What may come out:

  equal        the same logits, hidden states and greedy ids
  refused      aerie refuses the folder and names the key (or a tensor that does not fit, or a
               key that is missing)
  both refuse  neither transformers nor aerie can run the folder
  aerie only   transformers cannot run the folder, aerie can
  DIFFERENT    aerie computes other numbers
  UNNAMED      aerie refuses the folder without naming what was changed

The last two are faults: the exit status is 1 if there is one. Needs torch and transformers (made
with 2.15 and 5.24).
"""
import argparse
import collections
import copy
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers
from safetensors.torch import load_file, save_file

import make_target as mt

S, F = mt.SLIDE, mt.FULL
DROP = object()  # as a value: the key is removed
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
PART = {"rope_type": "proportional", "partial_rotary_factor": 0.5}
PLAIN = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_attention_heads=4,
             num_key_value_heads=2, num_hidden_layers=4, max_position_embeddings=256)


def plain(kind, **more):
    return dict(PLAIN, model_type=kind, **more)


def typed(full, sliding, theta=5000.0):
    return {F: dict(full, rope_theta=theta), S: dict(sliding, rope_theta=100.0)}


GEMMA3 = dict(head_dim=16, sliding_window=5, query_pre_attn_scalar=12)
GEMMA4 = dict(head_dim=8, global_head_dim=16, sliding_window=5, hidden_size_per_layer_input=0,
              num_hidden_layers=6, rope_parameters=typed(
                  {"rope_type": "proportional", "partial_rotary_factor": 0.25},
                  {"rope_type": "default"}))
GPTOSS = dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2, intermediate_size=32,
              sliding_window=5)
BASES = {
    "llama": plain("llama"),
    "llama-old": plain("llama", rope_theta=5000.0, rope_scaling=LLAMA3),
    "qwen3": plain("qwen3", head_dim=8),
    "qwen3-window": plain("qwen3", head_dim=8, use_sliding_window=True, sliding_window=5,
                          max_window_layers=2),
    "qwen2": plain("qwen2"),
    "llama4": plain("llama4_text", head_dim=8, attention_chunk_size=5, intermediate_size_mlp=40,
                    num_local_experts=4, num_experts_per_tok=2, no_rope_layer_interval=3,
                    interleave_moe_layer_step=2, floor_scale=8, pad_token_id=0),
    "qwen2-window": plain("qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=2),
    "mistral": plain("mistral", sliding_window=5),
    "mistral-full": plain("mistral", sliding_window=None, rope_parameters=dict(LINEAR)),
    "ministral": plain("ministral", sliding_window=5, head_dim=8, layer_types=[S, F, S, F]),
    "gemma2": plain("gemma2", head_dim=16, sliding_window=5, query_pre_attn_scalar=12),
    "gemma3": plain("gemma3_text", rope_parameters=typed(LINEAR, {"rope_type": "default"}),
                    layer_types=[S, F, S, F], **GEMMA3),
    "gemma3-old": plain("gemma3_text", rope_theta=5000.0, rope_local_base_freq=100.0,
                        rope_scaling=LINEAR, sliding_window_pattern=2, **GEMMA3),
    "gemma3-bare": dict(plain("gemma3_text", **GEMMA3), num_hidden_layers=7),
    "gemma3-mm": {"model_type": "gemma3", "text_config": plain(
        "gemma3_text", rope_theta=5000.0, rope_scaling=LINEAR, layer_types=[S, F, S, F],
        **GEMMA3)},
    "gemma4": plain("gemma4_text", **{**GEMMA4, "layer_types": [S, F] * 3}),
    "gemma4-bare": {k: v for k, v in plain("gemma4_text", **GEMMA4).items()
                    if k != "rope_parameters"},
    "gemma4-ple": plain("gemma4_text", **{
        **GEMMA4, "layer_types": [S, F, S, S, F, F], "hidden_size_per_layer_input": 6,
        "vocab_size_per_layer_input": 97, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0}),
    "gemma4-moe": plain("gemma4_text", **{
        **GEMMA4, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
        "moe_intermediate_size": 12, "attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    "gemma4-mm": {"model_type": "gemma4", "vision_config": None, "audio_config": None,
                  "text_config": plain("gemma4_text", **GEMMA4)},
    "olmo3": plain("olmo3", sliding_window=5, rope_parameters=typed(YARN, {"rope_type": "default"}),
                   layer_types=[S, F, S, F]),
    "olmo3-old": plain("olmo3", sliding_window=5, rope_theta=500000.0, rope_scaling=YARN),
    "olmo2": plain("olmo2", rope_parameters=YARN),
    "smollm3": plain("smollm3", pad_token_id=0, head_dim=8, no_rope_layers=[1, 0, 1, 1], use_sliding_window=True,
                     sliding_window=5),
    "exaone4": plain("exaone4", head_dim=8, sliding_window=5, sliding_window_pattern=2),
    "ministral3": plain("ministral3", head_dim=8, rope_parameters=dict(
        YARN, rope_theta=5000.0, llama_4_scaling_beta=0.4)),
    "gemma4-unified": plain("gemma4_unified_text", **{
        k: v for k, v in GEMMA4.items() if k != "hidden_size_per_layer_input"}),
    "phi3": plain("phi3", pad_token_id=0, sliding_window=5),
    "qwen3-moe": plain("qwen3_moe", head_dim=8, num_experts=4, num_experts_per_tok=2,
                       moe_intermediate_size=20, mlp_only_layers=[2]),
    "mellum": plain("mellum", head_dim=8, num_experts=4, num_experts_per_tok=2, sliding_window=5,
                    moe_intermediate_size=20, layer_types=[S, F, S, F],
                    mlp_layer_types=["sparse", "dense", "sparse", "sparse"]),
    "granite": plain("granite_swa", sliding_window=5, bos_token_id=1, eos_token_id=2,
                     layer_rope_theta=[0, 1e4, 5e3, 1e4], residual_multiplier=0.6,
                     embedding_multiplier=3.0, logits_scaling=1.7, attention_multiplier=0.4),
    "granite-moe": plain("granitemoe_swa", sliding_window=5, num_local_experts=4,
                         num_experts_per_tok=2, shared_intermediate_size=20),
    "cohere2": plain("cohere2", sliding_window=5, logit_scale=0.4, bos_token_id=1, eos_token_id=2),
    "afmoe": plain("afmoe", head_dim=8, sliding_window=5, global_attn_every_n_layers=2,
                   num_dense_layers=1, num_experts=4, num_experts_per_tok=2,
                   moe_intermediate_size=20, num_shared_experts=1),
    "laguna": plain("laguna", head_dim=8, sliding_window=5, layer_types=[F, S, F, S],
                    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20,
                    shared_expert_intermediate_size=8),
    "mimo": dict(plain("mimo_v2_flash", head_dim=12, v_head_dim=8, sliding_window=5,
                  layer_types=[F, S, F, S], n_routed_experts=4, num_experts_per_tok=2,
                  moe_intermediate_size=20), num_key_value_heads=1),
    "laguna-ropes": plain("laguna", head_dim=8, sliding_window=5, layer_types=[F, S, F, S],
                          num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20,
                          shared_expert_intermediate_size=8,
                          rope_parameters=typed(YARN, {"rope_type": "default"})),
    "mimo-published": dict(plain("mimo_v2_flash", head_dim=12, v_head_dim=8, sliding_window=5,
                                 hybrid_layer_pattern=[0, 1, 0, 1], n_routed_experts=4,
                                 num_experts_per_tok=2, moe_intermediate_size=20,
                                 rope_theta=5000000, swa_rope_theta=10000,
                                 partial_rotary_factor=0.334, routed_scaling_factor=None),
                           num_key_value_heads=1),
    "gptoss": plain("gpt_oss", **GPTOSS),
    "gptoss-old": plain("gpt_oss", rope_theta=5000.0, rope_scaling=dict(YARN, truncate=False),
                        experts_per_token=2, **GPTOSS),
    "gptoss-mxfp4": plain("gpt_oss", **GPTOSS, quantization_config={"quant_method": "mxfp4"}),
}

# The values of one key of the text model's object. "N": the number of layers.
TYPES = {"alternate": [S, F], "all full": [F], "all sliding": [S], "legacy": ["attention"]}
ROPES = [
    None, {}, LINEAR, {"type": "linear", "factor": 4.0}, {"factor": 4.0}, YARN,
    dict(YARN, truncate=False), dict(YARN, mscale=0.7, mscale_all_dim=0.9),
    dict(YARN, attention_factor=1.5), dict(YARN, beta_fast=8.0, beta_slow=2.0), LLAMA3, PART,
    {"rope_type": "yarn", "factor": 8.0}, {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 777.0}, dict(LINEAR, rope_theta=777.0),
    dict(YARN, rope_theta=777.0), dict(LINEAR, type="default"),
    {"rope_type": "default", "factor": 4.0}, {"rope_type": "default", "partial_rotary_factor": 0.5},
    dict(LINEAR, partial_rotary_factor=0.5), dict(YARN, partial_rotary_factor=1.0),
    dict(LINEAR, low_freq_factor=1.0, beta_fast=8.0),
    {"rope_type": "dynamic", "factor": 4.0}, typed(LINEAR, {"rope_type": "default"}),
    typed(YARN, {"rope_type": "default"}), typed(dict(YARN, truncate=False), LINEAR),
    dict(typed(YARN, {"rope_type": "default"}), truncate=False),
    {F: LINEAR}, {F: LINEAR, S: LINEAR}, {F: None, S: dict(rope_theta=777.0)},
    {F: dict(rope_theta=777.0)}, {S: dict(YARN, rope_theta=777.0)},
    dict(typed(LINEAR, {"rope_type": "default"}), rope_theta=777.0, factor=2.0),
]
PER_LAYER = [
    {}, None, {"1": {"head_dim": 16}}, {"1": {"num_key_value_heads": 1}},
    {"1": {"sliding_window": 2}}, {"1": {"intermediate_size": 24}}, {"1": {"skip": ["mlp"]}},
    {"01": {"head_dim": 24}}, {"1": {"rms_norm_eps": 0.1}}, {"1": {"layer_types": [F]}},
    {"1": {"hidden_activation": "silu"}}, {"1": {"attention_bias": True}},
    {"1": {"query_pre_attn_scalar": 3}}, {"1": {}},
]
KEYS = {
    "partial_rotary_factor": [0.5, 0.25, 1.0, None],
    "layer_types": list(TYPES) + [None],
    "sliding_window": [3, 1, 200, None, DROP],
    "sliding_window_pattern": [1, 2, 3, 6, None, DROP],
    "_sliding_window_pattern": [1, 2, 6, None],
    "use_sliding_window": [True, False, DROP],
    "max_window_layers": [0, 1, 28, DROP],
    "attn_logit_softcapping": [2.0, 0.0, None],
    "final_logit_softcapping": [3.0, 0.0, None],
    "query_pre_attn_scalar": [5, 8, 16, DROP],
    "rope_theta": [5000.0, 300.0, 10000, DROP],
    "rope_local_base_freq": [300.0, DROP],
    "rope_scaling": ROPES + [DROP],
    "rope_parameters": ROPES + [DROP],
    "original_max_position_embeddings": [32, 256],
    "max_position_embeddings": [64, DROP],
    "rms_norm_eps": [0.01, DROP],
    "layer_norm_eps": [0.01],
    "hidden_act": ["gelu_pytorch_tanh", "silu", "gelu_new", "swish", "gelu", "relu", DROP],
    "hidden_activation": ["gelu_pytorch_tanh", "silu", "gelu_new", "gelu", "relu", DROP],
    "attention_bias": [True, False], "mlp_bias": [True, False], "bias": [True],
    "qkv_bias": [True], "use_bias": [True],
    "tie_word_embeddings": [True, False, DROP],
    "head_dim": [8, 24, None, DROP],
    "num_key_value_heads": [1, 4, None, DROP],
    "num_attention_heads": [2], "num_hidden_layers": [1, 2, 8], "intermediate_size": [64],
    "hidden_size": [64], "vocab_size": [130],
    "is_causal": [False, True], "is_decoder": [True],
    "use_bidirectional_attention": [True, False, None, "vision", "all"],
    "attention_chunk_size": [4, None], "chunk_size_feed_forward": [2],
    "attention_dropout": [0.5], "per_layer_config": PER_LAYER,
    "num_experts": [2, 4, None], "num_local_experts": [3, 4, DROP],
    "num_experts_per_tok": [1, 3, DROP], "experts_per_token": [1, 4, None],
    "top_k_experts": [1, DROP], "moe_intermediate_size": [20, DROP],
    "norm_topk_prob": [True, False], "enable_moe_block": [True, False],
    "swiglu_limit": [1.0, DROP], "swiglu_alpha": [1.0, 1.702],
    "initial_context_length": [16], "router_aux_loss_coef": [0.5],
    "attention_k_eq_v": [True, False], "global_head_dim": [24, None, DROP],
    "num_global_key_value_heads": [2, 1, None], "hidden_size_per_layer_input": [4, None, 0],
    "vocab_size_per_layer_input": [97, 120, 0], "num_kv_shared_layers": [1, 2, 4, 0],
    "use_double_wide_mlp": [True, False],
    "no_rope_layers": [[0, 1, 0, 1]], "no_rope_layer_interval": [2],
    "layer_rope_theta": [[0.0, 1e4, 0.0, 1e4]], "logit_scale": [0.5, 1.0],
    "logits_scaling": [4.0, 1.0], "embedding_multiplier": [2.0], "residual_multiplier": [0.5],
    "attention_multiplier": [0.5], "clip_qkv": [0.1, None], "alibi": [True, False],
    "rope_interleaved": [True, False], "use_qk_norm": [True], "rotary_pct": [0.5],
    "rope_ratio": [2.0], "attn_temperature_tuning": [True], "embed_scale": [2.0],
    "llama_4_scaling_beta": [0.1], "parallel_attn": [True],
    "pretraining_tp": [2], "dtype": ["float16"], "torch_dtype": ["float16"],
    "text_config": [{}, {"num_hidden_layers": 2}], "transformers_weights": ["other.safetensors"],
    "quantization_config": [{"quant_method": "fp8"}, None, {"quant_method": "mxfp4"}],
    "compression_config": [{"quant_method": "compressed-tensors"}],
    "attn_implementation": ["eager"], "pruned_heads": [{"1": [0]}], "unknown_key": [5],
    "output_router_logits": [True], "use_cache": [False], "pad_token_id": [3, None, -1],
    "mlp_layer_types": [["dense", "sparse", "dense", "sparse"]],
    "tie_last_hidden_states": [True],
    "decoder_sparse_step": [2], "mlp_only_layers": [[1]],
}
# How the weights are stored.
STORED = ["f16", "f32", "mixed", "shards", "shards beside another file", "without model.",
          "a tensor too many", "a head too many", "another head", "inv_freq", "generation_config"]
# Keys beside text_config: those that a person might write there.
OUTER = ("tie_word_embeddings", "sliding_window", "rope_theta", "rope_scaling", "layer_types",
         "hidden_act", "vocab_size", "num_hidden_layers", "head_dim", "is_causal", "attention_bias",
         "use_bidirectional_attention", "query_pre_attn_scalar", "final_logit_softcapping",
         "rms_norm_eps", "per_layer_config", "hidden_size", "quantization_config", "unknown_key",
         "transformers_weights", "partial_rotary_factor", "rope_parameters")


# ---- cases ---------------------------------------------------------------------------------------

def text_of(config):
    nested = config["model_type"] in ("gemma3", "gemma4")
    return config.get("text_config", config) if nested else config


def change(config, path, value):
    """Sets one key; path is KEY, or "^KEY" beside text_config."""
    at = config if path[0] in "^@" else text_of(config)
    key = path.lstrip("^")
    if key == "layer_types" and isinstance(value, str):
        n = text_of(config)["num_hidden_layers"]
        value = (TYPES[value] * n)[:n]
    if value is DROP:
        at.pop(key, None)
    else:
        at[key] = copy.deepcopy(value)


def singles(base):
    yield ()
    for key, values in KEYS.items():
        for v in values:
            if v is DROP and key not in text_of(BASES[base]):
                continue
            yield ((key, v),)
    for how in () if "quantization_config" in BASES[base] else STORED:
        yield (("@stored", how),)
    if text_of(BASES[base]) is not BASES[base]:
        for key in OUTER:
            for v in KEYS[key]:
                if v is not DROP:
                    yield (("^" + key, v),)


def pairs(base, n, seed):
    r = random.Random(f"{base} {seed}")
    every = [c[0] for c in singles(base) if c]
    for _ in range(n):
        a, b = r.sample(every, 2)
        if a[0] != b[0]:
            yield (a, b)


def written(case):
    one = (f"{k}={'(absent)' if v is DROP else json.dumps(v)}" for k, v in case)
    return " + ".join(one) or "base"


# ---- the reference -------------------------------------------------------------------------------

def write_config(path, config):
    with open(path + "/config.json", "w") as f:
        json.dump(config, f, indent=1)


def folder_config(config):
    """The config.json of the folder: a multimodal one needs something to see with."""
    c = {k: copy.deepcopy(v) for k, v in config.items() if k[0] != "@"}
    if c["model_type"] == "gemma3":
        c["vision_config"] = VISION
        c["mm_tokens_per_image"] = 4
    return c


VISION = {"model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 8,
          "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 8, "patch_size": 4}


def halve(tensors, mixed):
    every = list(enumerate(sorted(tensors)))
    return {k: tensors[k].to(torch.float16 if not mixed or i % 3 == 0 else
                             torch.float32 if i % 3 == 1 else torch.bfloat16)
            for i, k in every if tensors[k].is_floating_point()}


def store(path, how):
    """Writes the weights of a folder in another way."""
    file = path + "/model.safetensors"
    t = load_file(file)
    embed = next(k for k in t if k.endswith("embed_tokens.weight"))
    head = ("language_model." if "language_model.model" in embed else "") + "lm_head.weight"
    if how in ("f16", "mixed"):
        t = halve(t, how == "mixed")
    if how == "f32":
        t = {k: v.float() for k, v in t.items()}
    if how == "without model.":
        t = {k.removeprefix("model."): v for k, v in t.items()}
    if how == "a tensor too many":
        t["model.layers.0.self_attn.rel_pos.weight"] = torch.ones(3)
    if how in ("a head too many", "another head"):
        t[head] = t[embed].clone() * (2 if how == "another head" else 1)
    if how == "inv_freq":
        t["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    if how == "generation_config":
        with open(path + "/generation_config.json", "w") as f:
            json.dump({"temperature": 0.5, "eos_token_id": [5, 7], "do_sample": True}, f)
    save_file(t, file, metadata={"format": "pt"})
    if how.startswith("shards"):
        if how != "shards":
            shutil.copy(file, path + "/kept")
            t = {k: v * 2 for k, v in t.items()}
        mt.write_shards(path, t, 3)
    if how == "shards beside another file":
        os.rename(path + "/kept", file)


def make(path, config, seed):
    """Writes the folder with weights that fit, and golden.safetensors. Raises what transformers
    raises."""
    os.makedirs(path)
    c = folder_config(config)
    mxfp4 = c.get("quantization_config") == {"quant_method": "mxfp4"}
    write_config(path, {k: v for k, v in c.items() if not (mxfp4 and k == "quantization_config")})
    seen = transformers.AutoConfig.from_pretrained(path)
    seen._attn_implementation = seen._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(seen)
    mt.randomise(model, seed)
    packed = mt.quantise(model) if mxfp4 else {}
    with tempfile.TemporaryDirectory() as t:
        model.to(torch.bfloat16).save_pretrained(t)
        shutil.copy(t + "/model.safetensors", path)
    if "@stored" in config:
        store(path, config["@stored"])
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    left = {k: v for k, v in info.items() if v and k != "unexpected_keys"}
    if left:
        raise ValueError(f"weights that transformers wrote do not fit: {left}")
    vocab = again.get_input_embeddings().weight.shape[0]
    ids = torch.randint(3, vocab, (21,), generator=torch.Generator().manual_seed(seed))
    ref = mt.reference(again.eval(), ids, 3)
    if not torch.isfinite(ref["logits"]).all():
        raise ValueError("the logits are not finite")
    save_file(ref, path + "/golden.safetensors")
    if packed:
        tensors = load_file(path + "/model.safetensors")
        save_file({k: v for k, v in tensors.items() if k + "_blocks" not in packed} | packed,
                  path + "/model.safetensors", metadata={"format": "pt"})
    write_config(path, c)


def golden(aerie, path):
    """The exit status, all lines on standard output, and the error."""
    p = subprocess.run([aerie, "golden", "-q", "--device", "cpu", path], capture_output=True,
                       text=True)
    return p.returncode, p.stdout.splitlines(), p.stderr.strip().replace(path, "")


def judge(aerie, path, case):
    """aerie's answer: equal, refused, DIFFERENT or UNNAMED; and a line that shows it."""
    rc, lines, why = golden(aerie, path)
    if rc == 0:
        return "equal", ""
    if rc == 1:
        return "DIFFERENT", next((x for x in lines if x.startswith("FAIL")), why)
    named = any(k.lstrip("^") in why for k, _ in case) or "tensor " in why or "is missing" in why
    return ("refused" if rc == 3 and named else "UNNAMED"), why


def compare(aerie, path, base, case, seed):
    """Whether aerie refuses the config is asked first, with the weights of the base: then
    transformers need not compute anything."""
    config = copy.deepcopy(BASES[base])
    for key, value in case:
        change(config, key, value)
    ready = f"{os.path.dirname(path)}/{base}"
    if not os.path.exists(ready):
        make(ready, BASES[base], seed)
    write_config(ready, folder_config(config))
    verdict, why = judge(aerie, ready, case)
    if verdict == "refused" and "config.json: " in why:
        return verdict, why
    shutil.rmtree(path, ignore_errors=True)
    try:
        make(path, config, seed)
    except Exception as e:  # whatever transformers raises
        loads = "golden.safetensors" in golden(aerie, path)[2]
        why = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:120]}"
        return "aerie only" if loads else "both refuse", why
    return judge(aerie, path, case)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("bases", nargs="*")
    p.add_argument("--aerie", default="build/release-cpu/aerie")
    p.add_argument("--out")
    p.add_argument("--pairs", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", default="")
    p.add_argument("--singles", type=int)
    a = p.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    out = a.out or tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    total = collections.Counter()
    for base in a.bases or BASES:
        cases = list(singles(base))
        if a.singles is not None:
            cases = random.Random(f"{base} {a.seed}").sample(cases, a.singles)
        cases += pairs(base, a.pairs, a.seed)
        for i, case in enumerate(cases):
            if a.only and a.only not in written(case):
                continue
            path = f"{out}/{base}-{i}"
            verdict, why = compare(a.aerie, path, base, case, a.seed)
            total[verdict] += 1
            print(f"{verdict:11} {base}: {written(case)}" + (f"   [{why}]" if why else ""),
                  flush=True)
            if not a.out:
                shutil.rmtree(path, ignore_errors=True)
    print(", ".join(f"{n} {k}" for k, n in sorted(total.items())))
    return 1 if total["DIFFERENT"] or total["UNNAMED"] else 0


if __name__ == "__main__":
    sys.exit(main())
