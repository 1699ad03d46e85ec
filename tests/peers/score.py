#!/usr/bin/env python3
"""Log probabilities of a gemma-3 text model, computed with numpy in float64 from its safetensors file: a second
computation beside aerie's, sharing no code with it. Model folders as models/nestling/target.
"""
import json
import pathlib
import struct

import numpy as np


def load(folder):
    folder = pathlib.Path(folder)
    data = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    weights = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            bits = np.frombuffer(data[8 + n + a:8 + n + b], np.uint16).astype(np.uint32) << 16
            weights[name.removeprefix("model.")] = bits.view(np.float32).astype(np.float64).reshape(t["shape"])
    return json.loads((folder / "config.json").read_text()), weights


def norm(x, w, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * (1 + w)


def rotate(x, base):
    """x: (heads, positions, dims)."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


def attention(c, w, at, x, sliding):
    n, dim, heads, kv = len(x), c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    base = c["rope_local_base_freq"] if sliding else c["rope_theta"]

    def split(name, count):
        return (x @ w[f"{at}.self_attn.{name}_proj.weight"].T).reshape(n, count, dim).transpose(1, 0, 2)

    q = rotate(norm(split("q", heads), w[f"{at}.self_attn.q_norm.weight"], c["rms_norm_eps"]), base)
    k = rotate(norm(split("k", kv), w[f"{at}.self_attn.k_norm.weight"], c["rms_norm_eps"]), base)
    v = split("v", kv)
    k, v = (np.repeat(t, heads // kv, axis=0) for t in (k, v))
    s = q @ k.transpose(0, 2, 1) / np.sqrt(c["query_pre_attn_scalar"])
    back = np.arange(n)[:, None] - np.arange(n)
    seen = (back >= 0) & (back < c["sliding_window"] if sliding else True)
    s = np.where(seen, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return (p @ v).transpose(1, 0, 2).reshape(n, heads * dim) @ w[f"{at}.self_attn.o_proj.weight"].T


def mlp(w, at, x):
    g = x @ w[f"{at}.mlp.gate_proj.weight"].T
    g = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g ** 3)))
    return (g * (x @ w[f"{at}.mlp.up_proj.weight"].T)) @ w[f"{at}.mlp.down_proj.weight"].T


def log_probabilities(c, w, ids):
    """(positions, vocabulary): of the token after each position."""
    eps = c["rms_norm_eps"]
    x = w["embed_tokens.weight"][ids] * float(np.float32(np.sqrt(c["hidden_size"])))
    for i, kind in enumerate(c["layer_types"]):
        at = f"layers.{i}"
        y = attention(c, w, at, norm(x, w[f"{at}.input_layernorm.weight"], eps), kind == "sliding_attention")
        x = x + norm(y, w[f"{at}.post_attention_layernorm.weight"], eps)
        y = mlp(w, at, norm(x, w[f"{at}.pre_feedforward_layernorm.weight"], eps))
        x = x + norm(y, w[f"{at}.post_feedforward_layernorm.weight"], eps)
    z = norm(x, w["norm.weight"], eps) @ w["embed_tokens.weight"].T
    z -= z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))
