#!/usr/bin/env python3
"""Writes a gemma-3 text model in bf16, such as models/nestling/target, as GGUF for llama-server.

    to_gguf.py MODEL_FOLDER OUT.gguf [--pre NAME] [--type TYPE]

Needs gguf and numpy. --type packs all matrices: Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1 as the package gguf does; a type that the
package cannot write (Q4_K, Q6_K) gets random codes with scales of the weights' size, which serves for timings only.
--pre names llama.cpp's pattern that splits text before the merges. "ufakzeka" is exactly the
bundled model's, in newer builds; "qwen2", which all know, splits a word differently only after 's, 't, 're and the
like ("'tis").
"""
import argparse
import json
import multiprocessing
import pathlib
import struct

import gguf
import numpy as np

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def tensors(path):
    """Name, shape and raw bytes of each tensor of a safetensors file, all bf16."""
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    for name, t in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        if t["dtype"] != "BF16":
            raise SystemExit(f"{path}: {name} is {t['dtype']}; expected BF16")
        a, b = t["data_offsets"]
        yield name, t["shape"], np.frombuffer(data[8 + n + a:8 + n + b], np.uint16)


# the scales of a block of 256: its values come near the spread of the weights, 0.02
RANDOM = {"Q4_K": ([0, 2], 1e-4), "Q5_K": ([0, 2], 5e-5), "Q6_K": ([208], 2e-5)}


def random_blocks(kind, shape):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    r = np.random.default_rng(shape[0])
    b = r.integers(0, 256, (shape[0], shape[1] // elements, size), np.uint8)
    at, scale = RANDOM[kind.name]
    for off in at:
        b[:, :, off:off + 2] = np.full(1, scale, np.float16).view(np.uint8)
    return b.reshape(shape[0], -1)


def pack(job):
    """The bytes of a matrix in another type, row after row."""
    bits, shape, kind = job
    kind = gguf.GGMLQuantizationType[kind]
    if kind.name in RANDOM:
        return random_blocks(kind, shape)
    if kind.name == "BF16":
        return bits.reshape(shape).view(np.uint8)
    return gguf.quants.quantize((bits.reshape(shape).astype(np.uint32) << 16).view(np.float32), kind)


def type_of(shape, kind):
    """Rows that blocks do not fill get smaller blocks, as llama.cpp's quantizer gives them."""
    return kind if shape[1] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0] == 0 else "Q5_0"


def packed(folder, kind):
    """Name, bytes and type of each tensor; norms as float32."""
    all_tensors = list(tensors(folder / "model.safetensors"))
    big = [t for t in all_tensors if len(t[1]) == 2]
    with multiprocessing.Pool() as pool:
        done = iter(pool.imap(pack, ((bits, shape, type_of(shape, kind)) for _, shape, bits in big)))
        for name, shape, bits in all_tensors:
            if len(shape) == 2:
                yield name, next(done), gguf.GGMLQuantizationType[type_of(shape, kind)]
            elif name.endswith("norm.weight"):  # gemma-3 scales by 1 + w, llama.cpp by w
                yield name, ((bits.astype(np.uint32) << 16).view(np.float32) + np.float32(1)).reshape(shape), None


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        layer, stem = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{NAMES[stem]}.weight"
    return f"{NAMES[stem]}.weight"


def period(types):
    """Every n-th layer attends to everything."""
    n = types.index("full_attention") + 1
    if types != [("full_attention" if i % n == n - 1 else "sliding_attention") for i in range(len(types))]:
        raise SystemExit(f"layer_types {types} have no period; llama.cpp's gemma3 needs one")
    return n


def add_config(w, c, name):
    w.add_name(name)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_sliding_window(c["sliding_window"])
    w.add_uint32("gemma3.attention.sliding_window_pattern", period(c["layer_types"]))
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)  # told of, not relied on: each tensor has its type


def add_tokenizer(w, folder, c, pre):
    t = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    added = {a["content"]: a["id"] for a in t["added_tokens"]}
    texts = {i: s for s, i in (t["model"]["vocab"] | added).items()}
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list([texts.get(i, f"<unused{i}>") for i in range(c["vocab_size"])])
    kind = gguf.TokenType
    w.add_token_types([kind.CONTROL if texts.get(i) in added else kind.NORMAL if i in texts else kind.UNUSED
                       for i in range(c["vocab_size"])])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    ends = c["eos_token_id"] if isinstance(c["eos_token_id"], list) else [c["eos_token_id"]]
    w.add_bos_token_id(c["bos_token_id"])
    w.add_eos_token_id(ends[0])
    if len(ends) > 1:
        w.add_eot_token_id(ends[1])
    w.add_add_bos_token(True)
    w.add_chat_template(settings["chat_template"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("out")
    p.add_argument("--pre", default="qwen2")
    p.add_argument("--type", default="BF16")
    a = p.parse_args()
    c = json.loads((a.folder / "config.json").read_text())
    w = gguf.GGUFWriter(a.out, "gemma3")
    add_config(w, c, a.folder.resolve().parent.name)
    add_tokenizer(w, a.folder, c, a.pre)
    for name, data, kind in packed(a.folder, a.type):
        w.add_tensor(gguf_name(name), data, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
