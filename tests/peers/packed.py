#!/usr/bin/env python3
"""Writes tests/golden/packed.txt: what the Python package gguf makes of blocks of every packed type.

    packed.py >tests/golden/packed.txt

A line has a type, its number in GGUF files, the elements and bytes of a block, and two SHA-256: of 16384 elements as
float32, and as bf16 rounded to nearest even. The blocks are pseudo-random bytes; scales that are not finite become
finite, and those of the first eight blocks are extremes. tests/unit/test_packed.c makes the same blocks. Needs gguf
(0.19.0 made the file) and numpy.
"""
import hashlib
import warnings

import gguf
import numpy as np

SCALES = {  # offsets of the f16 scales in a block
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "NVFP4": [],
}
EXTREMES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x0400, 0x3C00], np.uint16)
ELEMENTS = 16384


def mix64(x):
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def blocks(name, number, n, size):
    at = np.arange(n * size, dtype=np.uint64) + np.uint64(number << 32)
    b = (mix64(at) & np.uint64(255)).astype(np.uint8).reshape(n, size)
    for i, off in enumerate(SCALES[name]):
        b[:8, off:off + 2] = np.roll(EXTREMES, 3 * i).view(np.uint8).reshape(8, 2)
        b[:, off + 1] ^= np.where(b[:, off + 1] & 0x7C == 0x7C, 0x40, 0).astype(np.uint8)
    if name == "MXFP4":
        b[:8, 0] = [0, 1, 2, 3, 127, 128, 251, 252]
        b[:, 0] = np.minimum(b[:, 0], 252)
    if name == "NVFP4":
        b[:, :4] ^= b[:, :4] & 0x7F == 0x7F
    return b


def bf16(x):
    u = x.view(np.uint32)
    return ((u + np.uint32(0x7FFF) + (u >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


np.seterr(over="ignore")
warnings.simplefilter("ignore")
for name in SCALES:
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    y = gguf.quants.dequantize(blocks(name, kind.value, ELEMENTS // elements, size), kind)
    y = np.ascontiguousarray(y, np.float32).reshape(-1)
    print(name, kind.value, elements, size, hashlib.sha256(y.tobytes()).hexdigest(),
          hashlib.sha256(bf16(y).tobytes()).hexdigest())
