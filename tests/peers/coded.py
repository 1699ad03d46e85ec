#!/usr/bin/env python3
"""Writes tests/golden/coded.txt: what matrices of codes and scales stand for, held against compressed-tensors.

    coded.py >tests/golden/coded.txt

A line has a format and the SHA-256 of 200 x 320 weights as bf16. They are computed with numpy in the order that
models/checkpoint/scaled.h says; on standard error stands how many differ from what compressed-tensors unpacks, rounded to
bf16, and by how much. Codes and scales are pseudo-random; tests/unit/test_coded.c makes the same. Needs compressed-tensors
(0.20.0 made the file), torch, ml_dtypes and numpy.
"""
import hashlib
import sys

import ml_dtypes
import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

ROWS, COLS = 200, 320
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
ARGS = {
    "fp8-row": ("float-quantized", dict(num_bits=8, type="float", strategy="channel")),
    "fp8-tensor": ("float-quantized", dict(num_bits=8, type="float", strategy="tensor")),
    "fp8-block": ("float-quantized", dict(num_bits=8, type="float", strategy="block", block_structure=[128, 128])),
    "mxfp8": ("mxfp8-quantized", dict(num_bits=8, type="float", strategy="group", group_size=32)),
    "int8-row": ("int-quantized", dict(num_bits=8, type="int", strategy="channel")),
    "nvfp4": ("nvfp4-pack-quantized", dict(num_bits=4, type="float", strategy="tensor_group", group_size=16)),
    "nvfp4-modelopt": (None, None),
    "mxfp4": ("mxfp4-pack-quantized", dict(num_bits=4, type="float", strategy="group", group_size=32)),
    "int4-group": ("pack-quantized", dict(num_bits=4, type="int", strategy="group", group_size=64)),
    "int8-packed": ("pack-quantized", dict(num_bits=8, type="int", strategy="channel")),
}


def mix64(x):
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def numbers(seed, n):
    return mix64(np.arange(n, dtype=np.uint64) + np.uint64(seed << 32))


def bf16(x):
    return np.ascontiguousarray(x, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def codes_of(name, seed):
    """Bytes of the codes, and their values."""
    four = "fp4" in name or "int4" in name
    b = (numbers(seed, ROWS * COLS // (2 if four else 1)) & np.uint64(255)).astype(np.uint8)
    if "fp8" in name:
        b ^= (b & 0x7F == 0x7F).astype(np.uint8)
        return b.reshape(ROWS, -1), b.view(ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(ROWS, COLS)
    if name == "int8-row":
        return b.reshape(ROWS, -1), b.view(np.int8).astype(np.float32).reshape(ROWS, COLS)
    if name == "int8-packed":
        return b.reshape(ROWS, -1), b.astype(np.float32).reshape(ROWS, COLS) - 128
    n = np.stack([b & 15, b >> 4], 1).reshape(ROWS, COLS)
    if name == "int4-group":
        return b.reshape(ROWS, -1), n.astype(np.float32) - 8
    return b.reshape(ROWS, -1), np.where(n & 8, -E2M1[n & 7], E2M1[n & 7]).astype(np.float32)


def scales_of(name, seed):
    """Scales as the file has them, and one for each weight."""
    rows, cols = {"fp8-tensor": (ROWS, COLS), "fp8-block": (128, 128), "mxfp4": (1, 32), "mxfp8": (1, 32), "int4-group": (1, 64)}.get(
        name, (1, 16) if name.startswith("nvfp4") else (1, COLS))
    shape = (-(-ROWS // rows), -(-COLS // cols))
    r = numbers(seed + 100, shape[0] * shape[1])
    if name.startswith("nvfp4"):
        raw = (r % np.uint64(118) + np.uint64(8)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    elif name.startswith("mx"):
        raw = (r % np.uint64(20) + np.uint64(110)).astype(np.uint8)
    elif name in ("fp8-tensor", "int8-row"):
        raw = ((1 + (r & np.uint64(0xFFFFF)).astype(np.float64) / 2**20) * 2.0**-11).astype(np.float32)
    else:
        raw = (np.uint64(0x3A00) + (r & np.uint64(0x1FF))).astype(np.uint16).view(ml_dtypes.bfloat16)
    value = np.exp2(raw.astype(np.float32) - 127) if name.startswith("mx") else raw.astype(np.float32)
    at = np.ix_(np.arange(ROWS) // rows, np.arange(COLS) // cols)
    return raw.reshape(shape), value.reshape(shape)[at]


def tensor(a):
    kinds = {ml_dtypes.bfloat16: (np.int16, torch.bfloat16), ml_dtypes.float8_e4m3fn: (np.uint8, torch.float8_e4m3fn)}
    for kind, (plain, as_kind) in kinds.items():
        if a.dtype == kind:
            return torch.from_numpy(a.view(plain).copy()).view(as_kind)
    return torch.from_numpy(a.copy())


def unpacked_by_library(name, raw, scale, outer):
    """The library's weights as float32."""
    kind, args = ARGS[name]
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    state = {"weight_scale": tensor(scale)}
    if "fp8" in name:
        state["weight"] = tensor(raw.view(ml_dtypes.float8_e4m3fn))
    elif name == "int8-row":
        state["weight"] = tensor(raw.view(np.int8))
    else:
        state["weight_packed"] = tensor(raw.view(np.int32) if "int" in name else raw)
    if "int" in name and name != "int8-row":
        state["weight_shape"] = torch.tensor([ROWS, COLS])
    if outer is not None:
        state["weight_global_scale"] = torch.tensor([outer])
    return BaseCompressor.get_value_from_registry(kind).decompress(state, scheme)["weight"].float().numpy()


for seed, name in enumerate(ARGS):
    raw, code = codes_of(name, seed)
    scale, each = scales_of(name, seed)
    outer = {"nvfp4": np.float32(3001.7), "nvfp4-modelopt": np.float32(1 / 3001.7)}.get(name)
    w = code * each
    w = w / outer if name == "nvfp4" else w * outer if outer is not None else w
    ours = bf16(w)
    print(name, hashlib.sha256(ours.tobytes()).hexdigest())
    exact = code.astype(np.float64) * each
    exact = exact / float(outer) if name == "nvfp4" else exact * float(outer) if outer is not None else exact
    off = ours.view(ml_dtypes.bfloat16).astype(np.float64) - exact
    note = f"rounding to bf16: rms {np.sqrt((off**2).sum() / (exact**2).sum()):.2e}"
    if ARGS[name][0]:
        theirs = bf16(unpacked_by_library(name, raw, scale, outer))
        steps = np.abs((ours & 0x7FFF).astype(int) - (theirs & 0x7FFF).astype(int))
        note += f"; compressed-tensors: {(ours != theirs).mean():.4%} differ, by {steps.max()} in the last place at most"
    print(name, note, file=sys.stderr)
