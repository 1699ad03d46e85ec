#!/usr/bin/env python3
"""Writes a gemma-3 text model of published shape with made-up weights, for timings.

    synthetic.py SHAPE OUT_FOLDER [--like FOLDER] [--align N]      in bf16; SHAPE: 270m, 1b, 4b or 27b
    synthetic.py SHAPE OUT.gguf [--type Q4_0] [--like FOLDER]      the file of llama.cpp, packed; types as in to_gguf.py

Needs numpy, and gguf for the second form. Tokenizer and chat template are those of --like (the bundled model); the ids above its vocabulary stand
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

SHAPES = {  # hidden, feed-forward, layers, heads, KV heads, head size, window, longest context
    "270m": (640, 2048, 18, 4, 1, 256, 512, 32768),
    "1b": (1152, 6912, 26, 4, 1, 256, 512, 32768),
    "4b": (2560, 10240, 34, 8, 4, 256, 1024, 131072),
    "27b": (5376, 21504, 62, 32, 16, 128, 1024, 131072),
}
VOCAB, PERIOD = 262144, 6


def config(like, shape):
    hidden, ffn, layers, heads, kv, head, window, longest = SHAPES[shape]
    kinds = ["full_attention" if i % PERIOD == PERIOD - 1 else "sliding_attention" for i in range(layers)]
    return json.loads((like / "config.json").read_text()) | {
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": head, "query_pre_attn_scalar": hidden // heads if shape == "27b" else head,
        "sliding_window": window,
        "sliding_window_pattern": PERIOD, "layer_types": kinds, "vocab_size": VOCAB, "max_position_embeddings": longest}


def shapes(c):
    """Name and shape of each tensor, in the order of the file."""
    h, f, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    for i in range(c["num_hidden_layers"]):
        for name, shape in (
                ("input_layernorm", (h,)), ("mlp.down_proj", (h, f)), ("mlp.gate_proj", (f, h)), ("mlp.up_proj", (f, h)),
                ("post_attention_layernorm", (h,)), ("post_feedforward_layernorm", (h,)),
                ("pre_feedforward_layernorm", (h,)), ("self_attn.k_norm", (head,)), ("self_attn.k_proj", (kv, h)),
                ("self_attn.o_proj", (h, q)), ("self_attn.q_norm", (head,)), ("self_attn.q_proj", (q, h)),
                ("self_attn.v_proj", (kv, h))):
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", (h,)


def normal_bits(n):
    normal = np.random.default_rng(1).standard_normal(n, dtype=np.float32) * np.float32(0.02)
    return ((normal.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def write_weights(path, c, align):
    all_shapes = list(shapes(c))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in all_shapes:
        n = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % align)
    block = normal_bits(1 << 22).tobytes()
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


def write_gguf(path, c, like, kind):
    import gguf
    import to_gguf
    w = gguf.GGUFWriter(str(path), "gemma3")
    to_gguf.add_config(w, c, "synthetic")
    to_gguf.add_tokenizer(w, like, c, "qwen2")
    blocks, todo = {}, []
    for name, shape in shapes(c):
        if len(shape) == 1:  # llama.cpp multiplies norms by w, not by 1 + w
            raw, data = gguf.GGMLQuantizationType.F32, np.ones(shape, np.float32)
            packed, size = shape, data.nbytes
        else:
            t = to_gguf.type_of(shape, kind)
            raw = gguf.GGMLQuantizationType[t]
            if t not in blocks:
                blocks[t] = to_gguf.pack((normal_bits(1 << 22), (1 << 10, 1 << 12), t)).tobytes()
            elements, bytes_of = gguf.GGML_QUANT_SIZES[raw]
            packed = (shape[0], shape[1] // elements * bytes_of)
            size, data = packed[0] * packed[1], (t, len(name) * 7919 % 1024 * bytes_of)
        w.add_tensor_info(to_gguf.gguf_name(name), packed, np.dtype(np.float32 if len(shape) == 1 else np.uint8), size, raw)
        todo.append((data, size))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for data, size in todo:
        if isinstance(data, tuple):
            block, from_ = blocks[data[0]], data[1]
            data = np.frombuffer((block * ((from_ + size) // len(block) + 1))[from_:from_ + size], np.uint8)
        w.write_tensor_data(data)
    w.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", choices=SHAPES)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--like", type=pathlib.Path,
                   default=pathlib.Path(__file__).resolve().parents[2] / "models/nestling/target")
    p.add_argument("--align", type=int, default=8)
    p.add_argument("--type", default="Q4_0")
    a = p.parse_args()
    c = config(a.like, a.shape)
    if a.out.suffix == ".gguf":
        return write_gguf(a.out, c, a.like, a.type)
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        shutil.copy(a.like / name, a.out / name)
    write_weights(a.out / "model.safetensors", c, a.align)


main()
