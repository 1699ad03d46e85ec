#!/usr/bin/env python3
"""Quantizes a folder with compressed-tensors, and writes transformers' numbers for it beside the weights.

    coded_folders.py tests/golden/gemma3-a OUT     # folders OUT/FP8_ROW, OUT/NVFP4, ...
    for f in OUT/*; do build/aerie golden $f; done

The reference is the model that transformers unpacks to bf16, run in float32: `aerie golden` compares logits, hidden states
and greedy ids with it. Needs transformers (5.24.0), compressed-tensors (0.20.0), torch and safetensors.
"""
import os
import sys

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme,
                                             apply_quantization_config)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

FORMATS = {
    "FP8_ROW": dict(num_bits=8, type="float", strategy="channel"),
    "FP8_BLOCK": dict(num_bits=8, type="float", strategy="block", block_structure=[128, 128]),
    "NVFP4": dict(num_bits=4, type="float", strategy="tensor_group", group_size=16),
    "MXFP4": dict(num_bits=4, type="float", strategy="group", group_size=32, scale_dtype="torch.uint8"),
    "INT4": dict(num_bits=4, type="int", strategy="group", group_size=8),
    "INT4_32": dict(num_bits=4, type="int", strategy="group", group_size=32),
    "INT8": dict(num_bits=8, type="int", strategy="channel"),
}


def largest(w, q):
    """Of each block of w."""
    if q.strategy == "channel":
        return w.abs().amax(1, keepdim=True)
    if q.strategy != "block":
        return w.abs().reshape(w.shape[0], -1, q.group_size).amax(-1)
    rows, cols = q.block_structure
    n, m = -(-w.shape[0] // rows), -(-w.shape[1] // cols)
    whole = torch.zeros(n * rows, m * cols)
    whole[:w.shape[0], :w.shape[1]] = w.abs()
    return whole.reshape(n, rows, m, cols).amax((1, 3))


def quantize(source, out, args):
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(symmetric=True, dynamic=False, **args))
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]))
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        w, q, by = module.weight.data.float(), module.quantization_scheme.weights, None
        if hasattr(module, "weight_global_scale"):
            by = (448 * 6 / w.abs().max()).reshape(1)
            module.weight_global_scale.data = by
        most = largest(w, q)
        scale, _ = calculate_qparams(-most, most, q, global_scale=by)
        module.weight_scale.data = scale.to(module.weight_scale.dtype).reshape(module.weight_scale.shape)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(out)
    compressor.update_config(out)


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


source, out = sys.argv[1:3]
ids = load_file(source + "/golden.safetensors")["input_ids"].long()
for name, args in FORMATS.items():
    folder = os.path.join(out, name)
    quantize(source, folder, args)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager",
                                                 quantization_config=CompressedTensorsConfig(run_compressed=False))
    save_file(reference(model.float().eval(), ids, 16), folder + "/golden.safetensors")
