#!/usr/bin/env python3
"""tiny.py FOLDER - models with random weights, one for each format of tools: what agents.py asks of a server needs no more.

Writes FOLDER/qwen3, llama, gpt_oss, gemma3 and gemma4: two layers, and a tokenizer of bytes and the markers of all formats.
gpt_oss thinks before it calls, and random weights would not end a thought within the limits of agents.py: its head prefers
the marker that ends a message, so that a thought has a few tokens, the blank of " to=", where a call begins, to another
thought, and the quote that ends a string.
Needs: pip install torch transformers
"""
import json
import pathlib
import sys

import torch
import transformers as T

MARKERS = [
    "<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<|channel>", "<channel|>",
    "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>", "<|think|>",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|return|>",
    "<|call|>", "<|constrain|>"]
VOCAB = 320
STOP = {"qwen3": "<|im_end|>", "llama": "<|eot_id|>", "gpt_oss": "<|return|>", "gemma3": "<end_of_turn>", "gemma4": "<turn|>"}
SMALL = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=8192, tie_word_embeddings=True)


def tokenizer(folder):
    vocab, other = {}, 0x100
    for b in range(256):
        plain = 32 < b < 127 or 160 < b != 173
        vocab[chr(b if plain else other)] = b
        other += not plain
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    added = [{"id": 256 + i, "content": m, "special": True} for i, m in enumerate(MARKERS)]
    (folder / "tokenizer.json").write_text(json.dumps({
        "model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": added, "decoder": level,
        "pre_tokenizer": level}))


def config(family):
    ids = {"eos_token_id": 256 + MARKERS.index(STOP[family]), "pad_token_id": 256, "bos_token_id": 257}
    if family == "qwen3":
        return T.Qwen3Config(**SMALL, **ids)
    if family == "llama":
        return T.LlamaConfig(**SMALL, **ids)
    if family == "gpt_oss":
        return T.GptOssConfig(**{**SMALL, "tie_word_embeddings": False}, **ids, num_local_experts=2, num_experts_per_tok=1, sliding_window=64)
    if family == "gemma3":
        return T.Gemma3TextConfig(**SMALL, **ids, sliding_window=64)
    return T.Gemma4TextConfig(**SMALL, **ids, sliding_window=64, global_head_dim=16, hidden_size_per_layer_input=0,
                              num_kv_shared_layers=0, layer_types=["sliding_attention", "full_attention"])


def prefer(model, wanted):
    """Makes single tokens likelier after every token: one feature of the residual stream is the same for all tokens, and
    only these tokens' rows of the head read it; 0.1 is a factor of 2, 0.3 one of 11."""
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 4
        head = model.get_output_embeddings().weight
        head[:, 0] = 0
        for token, weight in wanted:
            head[token, 0] = weight


def main():
    for family in STOP:
        folder = pathlib.Path(sys.argv[1], family)
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(1)
        model = T.AutoModelForCausalLM.from_config(config(family))
        if family == "gpt_oss":
            prefer(model, [(256 + MARKERS.index("<|end|>"), 0.6), (ord(" "), 0.05), (ord('"'), 0.3)])
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer(folder)
        print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
