#!/usr/bin/env python3
"""Writes a gemma-3 text model of published shape with made-up bf16 weights, for timings.

    synthetic.py SHAPE OUT_FOLDER [--like FOLDER] [--align N]      SHAPE: 270m, 1b or 4b

Needs numpy. Tokenizer and chat template are those of --like (the bundled model); the ids above its vocabulary stand
for no text. The weights are draws of one normal distribution, repeated from a block of 8 MB: no text that such a
model writes means anything, but shapes, bytes and work are those of the published model. The data begin at a multiple of
--align bytes in the file: 8, as in published files, unless given.
"""
import argparse
import json
import pathlib
import shutil
import struct

import numpy as np

SHAPES = {  # hidden, feed-forward, layers, heads, KV heads, window, longest context
    "270m": (640, 2048, 18, 4, 1, 512, 32768),
    "1b": (1152, 6912, 26, 4, 1, 512, 32768),
    "4b": (2560, 10240, 34, 8, 4, 1024, 131072),
}
HEAD_DIM, VOCAB, PERIOD = 256, 262144, 6


def config(like, shape):
    hidden, ffn, layers, heads, kv, window, longest = SHAPES[shape]
    kinds = ["full_attention" if i % PERIOD == PERIOD - 1 else "sliding_attention" for i in range(layers)]
    return json.loads((like / "config.json").read_text()) | {
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": HEAD_DIM, "query_pre_attn_scalar": HEAD_DIM, "sliding_window": window,
        "sliding_window_pattern": PERIOD, "layer_types": kinds, "vocab_size": VOCAB, "max_position_embeddings": longest}


def shapes(c):
    """Name and shape of each tensor, in the order of the file."""
    h, f, q, kv = (c["hidden_size"], c["intermediate_size"], c["num_attention_heads"] * HEAD_DIM,
                   c["num_key_value_heads"] * HEAD_DIM)
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    for i in range(c["num_hidden_layers"]):
        for name, shape in (
                ("input_layernorm", (h,)), ("mlp.down_proj", (h, f)), ("mlp.gate_proj", (f, h)), ("mlp.up_proj", (f, h)),
                ("post_attention_layernorm", (h,)), ("post_feedforward_layernorm", (h,)),
                ("pre_feedforward_layernorm", (h,)), ("self_attn.k_norm", (HEAD_DIM,)), ("self_attn.k_proj", (kv, h)),
                ("self_attn.o_proj", (h, q)), ("self_attn.q_norm", (HEAD_DIM,)), ("self_attn.q_proj", (q, h)),
                ("self_attn.v_proj", (kv, h))):
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", (h,)


def write_weights(path, c, align):
    all_shapes = list(shapes(c))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in all_shapes:
        n = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % align)
    normal = np.random.default_rng(1).standard_normal(1 << 22, dtype=np.float32) * np.float32(0.02)
    block = ((normal.view(np.uint32) + 0x8000) >> 16).astype(np.uint16).tobytes()
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in all_shapes:
            left = 2 * int(np.prod(shape))
            from_ = len(name) * 7919 % (len(block) // 2) * 2
            while left:
                part = block[from_:from_ + left]
                f.write(part)
                left -= len(part)
                from_ = 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", choices=SHAPES)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--like", type=pathlib.Path,
                   default=pathlib.Path(__file__).resolve().parents[2] / "models/nestling/target")
    p.add_argument("--align", type=int, default=8)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    c = config(a.like, a.shape)
    (a.out / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        shutil.copy(a.like / name, a.out / name)
    write_weights(a.out / "model.safetensors", c, a.align)


main()
